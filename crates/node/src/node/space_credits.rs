//! Applies space credits to requests: those that wait for space, and those that use it.

use std::sync::Arc;

use base::{BlockSize, OsdId, Time};
use blockstore::{BlockKey, Request as StoreRequest};
use format::wire::{BatchContent, Change, Content, PeerBody, PgEntry};

use pg::Charge;

use super::Node;
use crate::Effect;
use crate::pg_table::PgSlot;
use crate::space_credits::{Space, Verdict, space_of};

impl Node {
    /// Returns the space of this OSD's store.
    pub(super) fn space(&self) -> Space {
        space_of(&self.store)
    }

    /// Informs the store which block sizes its PGs may write.
    pub(super) fn expect_blocks(&mut self) {
        let has_part = |entry: &PgEntry| self.cluster.has_part(entry);
        let pools = self.cluster.pools().filter(|(_, known)| known.pgs.iter().any(has_part));
        let sizes: Vec<BlockSize> = pools.map(|(_, known)| known.pool.block_size).collect();
        self.store.expect_blocks(sizes.into_iter());
        self.space_credits.on_entries_changed();
    }

    /// Returns whether all members of the PG in `slot` have credit for a change, and nobody who arrived
    /// earlier waits for that.
    pub(super) fn credit_for(
        &mut self,
        now: Time,
        slot: PgSlot,
        arrival: u64,
        charge: Charge,
    ) -> Verdict {
        if charge == Charge::default() {
            return Verdict::Enough;
        }
        let givers = self.pgs[slot].lease_givers();
        self.space_credits.judge(now, self.space(), &givers, arrival, charge)
    }

    /// Takes credit for a change of all members, and returns the others. Requires: [`Node::credit_for`]
    /// returned `Enough`.
    pub(super) fn take_credit(&mut self, slot: PgSlot, charge: Charge) -> Arc<[OsdId]> {
        if charge == Charge::default() {
            return Arc::default();
        }
        let givers = self.pgs[slot].lease_givers();
        self.space_credits.take(&givers, charge);
        givers
    }

    /// Frees the room that the versions of this OSD's PGs take in members' journals, as far as that is in its
    /// power: lazy versions are made durable, marks are sent, and members are asked for credit again. Called
    /// while writes wait for room. Otherwise each write would wait until the periodic sync of lazy versions
    /// has ended, and a small journal has room for few writes between two of these.
    pub(super) fn free_room(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.space_credits.on_room_freed(now);
        for slot in self.pgs.slots() {
            if self.pgs[slot].keeps_parity() {
                self.drive(now, slot, effects, pg::Pg::free_room);
            }
        }
        self.requests.on_credit();
    }

    /// Ends the use of credit by an answered request: all members have stored its change, or the PG counts
    /// what they lack of it.
    pub(super) fn end_credit(&mut self, givers: &[OsdId], charge: Charge) {
        if charge != Charge::default() {
            self.space_credits.end(givers, charge);
            self.requests.on_credit();
        }
    }

    /// Returns whether this OSD, as a learner, has space for a new block from its primary, beyond the
    /// space promised to others.
    pub(super) fn may_take_copy(&mut self, now: Time, slot: PgSlot, body: &PeerBody) -> bool {
        if let PeerBody::Page { content, .. } | PeerBody::Batch { content, .. } = body {
            return self.may_take_units(now, slot, content);
        }
        let key = match body {
            PeerBody::Repair { key, content: Content::Block { .. }, .. }
            | PeerBody::Part { key, content: Content::Block { .. }, .. }
            | PeerBody::Parity { key, content: Content::Block { .. }, .. }
            | PeerBody::Write { key, change: Change::Write { .. }, .. } => Some(key),
            PeerBody::Part { .. } | PeerBody::Parity { .. } => None,
            _ => return true,
        };
        let me = self.identity.osd;
        let learns = |entry: &PgEntry| entry.learner(me).is_some();
        let is_learner = self.pgs[slot].entry().is_some_and(learns);
        let room_bytes = if is_learner { self.pgs[slot].room_for(body) } else { 0 };
        !is_learner || self.may_take_block(now, slot, key, (true, room_bytes))
    }

    /// Returns whether this OSD, if it is a learner, has space for the blocks of a page or batch, beyond the
    /// space promised to others.
    fn may_take_units(&mut self, now: Time, slot: PgSlot, content: &BatchContent) -> bool {
        let me = self.identity.osd;
        let is_learner = self.pgs[slot].entry().is_some_and(|entry| entry.learner(me).is_some());
        let units = content.units_size() as u64;
        if !is_learner || units == 0 {
            return true;
        }
        let bytes = units.next_multiple_of(self.pgs[slot].block_size().bytes());
        let reserve_bytes = self.store.space().reserve_bytes;
        self.review_demand(now);
        self.space_credits.may_take_copy(self.space(), reserve_bytes, (bytes, 0))
    }

    /// Returns whether this OSD, as an acting member, has space for a repair beyond the space promised to
    /// writes. A repair may not use the space that the store reserves for writes that have a version.
    pub(super) fn may_take_repair(
        &mut self,
        now: Time,
        slot: PgSlot,
        request: &StoreRequest,
    ) -> bool {
        let StoreRequest::Repair { key, content: Content::Block { .. }, .. } = request else {
            return true;
        };
        self.may_take_block(now, slot, Some(key), (false, 0))
    }

    /// Returns whether this OSD already stores this block, or has space for it beyond the space promised to
    /// others. `None`: a deletion, which takes no space. `with_reserve`: whether the space that the store
    /// reserves for writes that have a version may be used, too. `room_bytes`: the room that it takes as a
    /// prepared version, whatever is stored.
    fn may_take_block(
        &mut self,
        now: Time,
        slot: PgSlot,
        key: Option<&BlockKey>,
        (with_reserve, room_bytes): (bool, u64),
    ) -> bool {
        let is_new = key.is_some_and(|key| !self.store.has_place(key));
        if !is_new && room_bytes == 0 {
            return true;
        }
        let bytes = if is_new { self.pgs[slot].block_size().bytes() } else { 0 };
        let reserve_bytes = if with_reserve { self.store.space().reserve_bytes } else { 0 };
        self.review_demand(now);
        self.space_credits.may_take_copy(self.space(), reserve_bytes, (bytes, room_bytes))
    }

    /// Checks whether this OSD's own store now has space for the requests that wait for it.
    pub(super) fn look_for_space(&mut self, now: Time) {
        if !self.space_credits.is_awaited() {
            return;
        }
        // An idle promise ends when its lease expires: no message announces that.
        if self.space_credits.has_idle_promise() {
            self.review_demand(now);
        }
        self.want_bytes(now);
        if self.space_credits.has_come_here(self.space()) {
            self.requests.on_credit();
        }
    }

    /// Tells the store how much space is waited for, here or by other primaries. Otherwise places that were
    /// freed would be ready only when the journal is full, and what waits for them would wait for others'
    /// writes.
    pub(super) fn want_bytes(&mut self, now: Time) {
        let bytes = self.space_credits.bytes_wanted(now, self.space());
        self.store.want_bytes(now, bytes);
    }

    /// Updates the promises to match the entries, if something may have changed.
    pub(super) fn review_demand(&mut self, now: Time) {
        if self.space_credits.is_demand_due() {
            let demand =
                self.space_credits.demand_of(&self.cluster, &self.notes, &self.pgs, &self.store);
            let connections = &self.peer_connections;
            self.space_credits.on_demand(now, demand, |osd| connections.has_holder(osd));
        }
    }
}
