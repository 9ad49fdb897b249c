//! A member's part in a scrub that another OSD leads: it reports what it holds, applies repairs, and keeps
//! the note.
//!
//! Invariants
//!   1. A member takes part in a scrub only after it has recorded the epoch, and not as a learner.
//!   2. A repair for which the store has no room changes nothing, and does not end the member's part in the
//!      epoch.

use base::Version;
use blockstore::{Answer, NoteKey, Request as StoreRequest, StoreError};
use format::wire::{Content, Digest, PeerBody};

use super::ScrubNote;
use crate::copy::intact_count;
use crate::store_calls::Call;
use crate::stripes::part::{Part, table_of};
use crate::units::Held;
use crate::{Action, Pg};

impl Pg {
    /// Handles a message from the primary about scrubs. Requires: the epoch is active here. The error says
    /// how the message violates the protocol.
    pub(crate) fn on_scrub_said(
        &mut self,
        body: PeerBody,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if !self.follow().is_acting() {
            return Err("a learner cannot be scrubbed".into());
        }
        match body {
            PeerBody::Scrub { call, key, deep } => {
                self.shape.check_key(key)?;
                let request = StoreRequest::Digest { key, deep };
                self.call(Call::PeerDigest { call }, request, actions);
                Ok(())
            }
            PeerBody::Mend { call, key, content } => {
                self.shape.check_key(key)?;
                self.check_mended_part(&content)?;
                let held = Held::of(content.clone(), self.shape.block_size, true)?;
                let version = held.version();
                self.check_version(version)?;
                if version == Version::ZERO {
                    return Err("a scrub may not remove a block".into());
                }
                let is_delete = matches!(held, Held::Tombstone(_));
                let units = 0..self.shape.block_size.unit_count();
                self.local_state.on_repair(version, key, units, is_delete);
                let order = self.begin_taken();
                let units = intact_count(&content) as u32;
                let request = StoreRequest::Repair { pg: self.shape.pg, key, content };
                self.call_unpromised(Call::PeerMend { order, call, units }, request, actions);
                Ok(())
            }
            PeerBody::Recall { call } => {
                let is_there = self.scrub_note != ScrubNote::default();
                let note = if is_there { self.scrub_note.encode() } else { Vec::new() };
                self.answer(PeerBody::Recalled { call, note }, actions);
                Ok(())
            }
            PeerBody::Keep { call, note } => {
                let primary = self.follow().primary();
                let Some(note) = self.read_note(primary, &note, actions) else {
                    self.answer(PeerBody::Tried { call, is_done: false }, actions);
                    return Ok(());
                };
                let bytes = note.encode();
                self.scrub_note = note;
                let key = NoteKey::Scrub(self.shape.pg);
                let request = StoreRequest::Note { key, bytes };
                self.call(Call::PeerKeep { call }, request, actions);
                Ok(())
            }
            _ => Err("not a scrub message".into()),
        }
    }

    /// Checks a repair of this member's part, in pools with parity: the mark has passed its version, and only
    /// parity has a table.
    fn check_mended_part(&self, content: &Content) -> Result<(), String> {
        let Some(stripes) = self.stripes() else { return Ok(()) };
        let (block_size, data_count) = (self.shape.block_size, stripes.data_count());
        let part = Part::of(content.clone(), block_size, true)?;
        let is_parity = !stripes.is_data(self.own_position());
        if part.version > Version::ZERO && part.table.is_empty() == is_parity {
            return Err("a repair is meant for a part of another kind".into());
        }
        table_of(&part, data_count, block_size)?;
        match part.version.max(part.deleted) <= self.local_state.committed() {
            true => Ok(()),
            false => Err("a repair with a version that may still be taken back".into()),
        }
    }

    /// Sends the primary the store's digest of a key.
    pub(crate) fn on_peer_digest(
        &mut self,
        call: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let (digest, floor) = (digest_of(result), self.local_state.floor());
        self.answer(PeerBody::Scrubbed { call, floor, digest }, actions);
    }

    /// Handles the store's answer to a repair by a scrub.
    pub(crate) fn on_peer_mended(
        &mut self,
        (order, call, units): (u64, u32, u32),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let is_done = result.is_ok();
        if is_done {
            self.mended_units += u64::from(units);
        }
        self.end_taken(order, PeerBody::Tried { call, is_done }, actions);
    }

    /// Handles the store's answer to a request to store a scrub's note.
    pub(crate) fn on_peer_kept(
        &mut self,
        call: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        self.answer(PeerBody::Tried { call, is_done: result.is_ok() }, actions);
    }
}

/// Returns the digest in a store's answer.
pub fn digest_of(result: Result<Answer, StoreError>) -> Digest {
    match result {
        Ok(Answer::Digest(digest)) => digest,
        _ => unreachable!("the store sent another kind of answer"),
    }
}
