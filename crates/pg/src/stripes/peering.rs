//! Peering in pools with parity: decides which version an epoch adopts, and brings members to it. A member
//! that lacks versions up to the adopted one is *brought forward*: it gets the newer state of each key that
//! changed. A member that has versions above the adopted one *goes back*: it drops them.
//!
//! ```text
//!   complete of the members    41  45  45  47        k = 3
//!   adopted: the 3rd highest   45: 41 is brought forward, 47 goes back
//! ```
//!
//! *Complete* ends before the first prepared version that lost data; *had* does not. A version that all
//! members had may have been acknowledged, so it is adopted even if fewer than `k` have it undamaged. A member
//! that had the adopted version is not brought forward: it makes its own prepared versions stable, and lost
//! units become damaged units. A read restores each of them from `k` others, and fails only where these are
//! damaged, too.
//!
//! Invariants
//!   1. Nothing is decided before every acting member has reported its state.
//!   2. The adopted version is never below the highest one in a record, because that epoch was settled only
//!      after all of its acting members had everything up to it, and never below what a member has committed.
//!   3. Keys that are brought forward are only prepared, and raise no member's *complete*: until the epoch is
//!      settled, each member can still go back.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{Epoch, Version};
use blockstore::{Answer, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Content, MemberState, PeerBody};

use super::Stripes;
use super::fill_short::was_filled_short;
use super::gather::{Gather, Inconsistent};
use super::part::{Part, table_of};
use super::replicate::{GatherFor, GatherJob};
use crate::ask::Asked;
use crate::compare::Compare;
use crate::face::Source;
use crate::lead::Lead;
use crate::slots::ForwardSlot;
use crate::store_calls::Call;
use crate::units::Units;
use crate::{Action, MemberSet, Need, Pg, Serving};

/// A key that is brought forward at members with the same *had*. The key's state as of the adopted version is
/// compared with its state as of *had*, and these members get the units that differ.
pub struct Forward {
    targets: MemberSet,
    had: Version,
    /// The key as of the adopted version; `None`: it is still being gathered.
    after: Option<Gather>,
}

/// The version that an epoch adopts, and the members that lack versions up to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Adopted {
    pub version: Version,
    /// Acting members that lack some version up to the adopted one.
    pub behind: MemberSet,
    /// The lowest *had* of these members; the adopted version if there are none.
    pub lowest: Version,
    /// The highest version that is stable at any acting member.
    pub stable: Version,
    pub settled: Settled,
}

/// The highest version that members' records call settled, and the newest epoch that settled it. Everybody
/// who was an acting member in that epoch has everything up to that version: it was settled only then.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Settled {
    adopted: Version,
    epoch: Epoch,
}

impl Lead {
    /// Decides which version the epoch adopts. Requires: all acting members have reported their state, and
    /// there are at least `data_count` of them.
    pub fn adopt_prefix(&self, data_count: usize) -> Adopted {
        let states: Vec<_> = self.acting_states().collect();
        let mut complete: Vec<Version> = states.iter().map(|state| state.complete).collect();
        complete.sort_unstable_by(|one, next| next.cmp(one));
        let settled = Settled::of(states.iter().copied());
        let stable = states.iter().map(|state| committed(state)).max().unwrap_or_default();
        let version = complete[data_count - 1].max(settled.adopted).max(stable);
        let had = states.iter().map(|state| state.had).min().unwrap_or_default();
        let is_planted = planted::on(Bug::DamagedPreparedRolledBack);
        let version = if is_planted { version } else { version.max(had) };
        let mut behind = MemberSet::default();
        let lacks = |state: &MemberState| state.had < version && !settled.covers(state, version);
        for (index, _) in states.iter().enumerate().filter(|(_, state)| lacks(state)) {
            behind.add(index);
        }
        let lowest = behind.iter().map(|index| states[index].had).min();
        Adopted { version, behind, lowest: lowest.unwrap_or(version), stable, settled }
    }

    /// Returns the acting members from which a key can be brought forward at a member that had everything up
    /// to `had`: they can be read as of the adopted version and as of `had`, and list every deletion between.
    fn sources_above(&self, had: Version) -> impl Iterator<Item = Source> {
        let is_source = move |index: &usize| {
            let state = self.state_of(*index);
            // Members with damaged versions are no sources: a unit that they lost may have changed since.
            let has_both = self.settled.is_held_by(state, self.adopted) && state.complete >= had;
            has_both && committed(state) <= had && state.floor <= had
        };
        self.acting.iter().filter(is_source).map(|index| self.source(index))
    }

    /// Returns the state that a member has reported. Requires: it has reported it.
    fn state_of(&self, index: usize) -> &MemberState {
        self.peers[index].state.as_ref().expect("the member has reported its state")
    }
}

impl Settled {
    /// Returns the newest settled version in the records of these members.
    pub fn of<'a>(states: impl Iterator<Item = &'a MemberState>) -> Settled {
        let recorded = states.filter(|state| state.record_epoch > Epoch::ZERO);
        let newest = recorded.filter_map(|state| state.history.last());
        let newest = newest.max_by_key(|activation| (activation.adopted, activation.epoch));
        newest.map_or(Settled::default(), |activation| Settled {
            adopted: activation.adopted,
            epoch: activation.epoch,
        })
    }

    /// Returns whether an acting member with an older record counts as having everything up to `version`,
    /// whatever it reports: it took part in the epoch that settled this version.
    fn covers(&self, state: &MemberState, version: Version) -> bool {
        version == self.adopted && state.record_epoch < self.epoch
    }

    /// Returns whether an acting member took part in the epoch that settled this version, and has an older
    /// record.
    pub fn covers_record(&self, state: &MemberState) -> bool {
        state.record_epoch < self.epoch
    }

    /// Returns whether an acting member has everything up to `version`, undamaged.
    pub fn is_held_by(&self, state: &MemberState, version: Version) -> bool {
        let is_undamaged = state.complete == state.had;
        state.complete >= version || (self.covers(state, version) && is_undamaged)
    }
}

/// Returns the version up to which what an acting member has is stable. A store that was filled as of an
/// older version than it had settled before keeps the higher number.
pub fn committed(state: &MemberState) -> Version {
    state.committed.min(state.had)
}

impl Pg {
    /// Decides how the epoch continues, once all acting members have reported their state.
    pub(crate) fn judge_stripes(&mut self, stripes: &Stripes, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let count = lead.acting.count();
        if count < stripes.data_count() {
            let why = format!("{count} members are too few to rebuild the parts of the others");
            return self.end_epoch(Need::NewEpoch, why, actions);
        }
        if self.lacks_holders(stripes, actions) {
            return;
        }
        let lead = self.lead();
        let adopted = lead.adopt_prefix(stripes.data_count());
        let floor = lead.acting_states().map(|state| state.floor).max().unwrap_or_default();
        lead.adopted = adopted.version;
        lead.behind = adopted.behind;
        lead.settled = adopted.settled;
        let stable = adopted.stable.max(floor);
        let is_stuck = |index: &usize| {
            let had = lead.state_of(*index).had;
            had < stable && lead.sources_above(had).count() < stripes.data_count()
        };
        if let Some(index) = adopted.behind.iter().find(is_stuck) {
            if self.awaits_sources(actions) {
                return;
            }
            // Members cannot be read as of what this member had, and tombstones of deletions that it missed
            // may be gone.
            let why = "the member lacks versions that are stable at too many others";
            return self.on_peer_failed(index, why.into(), actions);
        }
        if adopted.behind.is_empty() {
            return self.activate(actions);
        }
        lead.compare = Compare::new(count, adopted.lowest);
        self.serving = Serving::Comparing;
        self.compare_on(actions);
    }

    /// Begins to bring a key forward at the members that lack versions up to the adopted one.
    pub(crate) fn forward_key(
        &mut self,
        key: BlockKey,
        stripes: &'static Stripes,
        actions: &mut Vec<Action>,
    ) {
        let block_size = self.shape.block_size;
        let all = Units::from_range(0..block_size.unit_count());
        let lead = self.lead();
        lead.compare.take(key);
        let (behind, adopted) = (lead.behind, lead.adopted);
        // Members are grouped by *had*: a unit that changed above the lowest *had* may have been changed back
        // in the adopted version, so a comparison from the lowest *had* would miss the change.
        let mut by_had: BTreeMap<Version, MemberSet> = BTreeMap::new();
        for index in behind.iter() {
            by_had.entry(lead.state_of(index).had).or_default().add(index);
        }
        for (had, targets) in by_had {
            let lead = self.lead();
            let wants = targets.iter().map(|index| (lead.peers[index].position.index(), all));
            let wants = wants.collect();
            let gather = Gather::new(stripes, block_size, lead.sources_above(had), wants, false);
            let forward = Box::new(Forward { targets, had, after: None });
            let purpose = GatherFor::Forward(forward);
            self.begin_gather(GatherJob { key, gather, as_of: Some(adopted), purpose }, actions);
        }
    }

    /// Continues when a key has been gathered as of the adopted version, or as of *had*.
    pub(crate) fn on_forward_gathered(
        &mut self,
        key: BlockKey,
        forward: Forward,
        gather: Gather,
        actions: &mut Vec<Action>,
    ) {
        if self.serving != Serving::Comparing {
            return;
        }
        let Forward { targets, had, after } = forward;
        let Some(mut after) = after else {
            return self.gather_before(key, Forward { targets, had, after: Some(gather) }, actions);
        };
        let before = gather;
        if let Some((position, version)) = lost_write(&before, &after) {
            self.lost_writes.insert(key);
            let lead = self.lead();
            if targets.iter().any(|index| !was_filled_short(lead.state_of(index))) {
                return self.drop_where_lost((position, version), actions);
            }
        }
        let changed = changed_units(&before, &after);
        after.make_good(&before, &self.buffers);
        let slot = self.lead().forwards.insert(targets);
        let mut left = targets;
        for index in targets.iter() {
            match self.content_forward(index, changed, &before, &after) {
                Ok(Some(content)) => self.send_forward(slot, index, key, content, actions),
                Ok(None) => left.take(index),
                Err(Inconsistent) => {
                    self.lead().forwards.remove(slot);
                    let why = format!("the parts of {key:?} are inconsistent with each other");
                    return self.end_epoch(Need::NewEpoch, why, actions);
                }
            }
        }
        self.lead().forwards[slot] = left;
        self.end_forward(slot, actions);
    }

    /// Takes a version back whose data part was made of an older one than parity knows, because its member
    /// lost a write: going forward, parity would lose that write, too. The member reports nothing from this
    /// version on, durably, and the next epoch adopts less: without that member, fewer than `k` have the
    /// version. That is so only if a member with parity refused it. Members that were filled while others
    /// were lost refused nothing: the version may have been acknowledged.
    fn drop_where_lost(
        &mut self,
        (position, version): (usize, Version),
        actions: &mut Vec<Action>,
    ) {
        let lead = self.lead();
        if lead.drops_lost_write {
            return;
        }
        lead.drops_lost_write = true;
        let is_there = |index: &usize| lead.peers[*index].position.index() == position;
        let index = lead.acting.iter().find(is_there).expect("the part came from an acting member");
        self.drop_at(index, version, actions);
    }

    /// Gathers a key that is brought forward, as of *had*, from the positions that were asked for the
    /// adopted version. Lost units are reconstructed from all members that have everything up to *had*.
    fn gather_before(&mut self, key: BlockKey, forward: Forward, actions: &mut Vec<Action>) {
        let stripes = self.stripes().expect("the pool has parity");
        let (block_size, had) = (self.shape.block_size, forward.had);
        let all = Units::from_range(0..block_size.unit_count());
        let after = forward.after.as_ref().expect("it was gathered first");
        let wants = after.asked_positions().map(|position| (position, all)).collect();
        let lead = self.lead();
        let can_tell = |index: &usize| {
            let state = lead.state_of(*index);
            state.complete >= had && committed(state) <= had
        };
        let sources = lead.acting.iter().filter(can_tell);
        let sources: Vec<_> = sources.map(|index| lead.source(index)).collect();
        // Parity that knows a later version of a data part shows that its member lost a write.
        let gather = Gather::new(stripes, block_size, sources, wants, true);
        let purpose = GatherFor::Forward(Box::new(forward));
        self.begin_gather(GatherJob { key, gather, as_of: Some(had), purpose }, actions);
    }

    /// Returns the content that a member must prepare, so that its part is that of the adopted version;
    /// `None`: its part does not change.
    fn content_forward(
        &mut self,
        index: usize,
        changed: Units,
        before: &Gather,
        after: &Gather,
    ) -> Result<Option<Content>, Inconsistent> {
        let stripes = self.stripes().expect("the pool has parity");
        let (block_size, buffers) = (self.shape.block_size, self.buffers.clone());
        let lead = self.lead();
        let (had, position) = (lead.state_of(index).had, lead.peers[index].position.index());
        let newest = after.all_held().values().map(|part| part.version.max(part.deleted)).max();
        let newest = newest.unwrap_or_default();
        let (table, table_before) = (after.table()?, before.table()?);
        let table = table.ok_or(Inconsistent)?;
        let is_data = position < stripes.data_count();
        let version = if is_data { table.parts[position].version } else { table.version() };
        if version == Version::ZERO {
            // The part holds nothing in the adopted version. If the member missed a deletion, it gets a
            // tombstone with the newest version that the deletion can have.
            let known = table_before.map_or(Version::ZERO, |table| match is_data {
                true => table.parts[position].version,
                false => table.version(),
            });
            let is_gone = newest <= had || known == Version::ZERO;
            return Ok((!is_gone).then_some(Content::Tombstone { version: newest }));
        }
        // Parity changes with every version of its stripe, also with a deletion that does not show in the
        // versions of newer data parts.
        let version = if is_data { version } else { newest };
        if version <= had {
            return Ok(None);
        }
        let mut units = changed;
        if let (true, Some(old)) = (is_data, &table_before) {
            let (old, new) = (old.parts[position].written, table.parts[position].written);
            units = units.with(&old.without(&new)).with(&new.without(&old));
        }
        let mut part = after.part(position, units, version, &buffers)?;
        if !is_data {
            part.table = table.encode(block_size);
        }
        Ok(Some(part.into_content(block_size, &buffers)))
    }

    fn send_forward(
        &mut self,
        slot: ForwardSlot,
        index: usize,
        key: BlockKey,
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        let lead = self.lead();
        let replaces = lead.state_of(index).had;
        if index == lead.me {
            return self.prepare_forward(key, content, replaces, Call::ForwardHere(slot), actions);
        }
        let call = lead.asks.ask(index, Asked::Forward { slot });
        self.send(index, PeerBody::Forward { call, key, content, replaces }, actions);
    }

    /// Prepares a key's adopted state at this OSD.
    pub(crate) fn prepare_forward(
        &mut self,
        key: BlockKey,
        content: Content,
        replaces: Version,
        call: Call,
        actions: &mut Vec<Action>,
    ) {
        let (version, is_delete) = match &content {
            Content::Block { version, .. } => (*version, false),
            Content::Tombstone { version } => (*version, true),
            Content::Gone => unreachable!("what goes forward has a version"),
        };
        let units = 0..self.shape.block_size.unit_count();
        self.local_state.on_repair(version, key, units, is_delete);
        if planted::on(Bug::ForwardAsStable) {
            let request = StoreRequest::Repair { pg: self.shape.pg, key, content };
            return self.call(call, request, actions);
        }
        let (pg, replaces) = (self.shape.pg, Some(replaces));
        let request = StoreRequest::Prepare { pg, key, version, content, replaces, lazy: false };
        self.call(call, request, actions);
    }

    /// Handles the primary's request to prepare a key's adopted state. The error says how the message
    /// violates the protocol.
    pub(crate) fn on_forward(
        &mut self,
        call: u32,
        key: BlockKey,
        content: Content,
        replaces: Version,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        self.shape.check_key(key)?;
        let part = Part::of(content.clone(), self.shape.block_size, true)?;
        let version = part.version.max(part.deleted);
        self.check_version(version)?;
        let stripes = self.stripes().ok_or("the pool has no parity")?;
        if version <= replaces {
            return Err("the new version is not above the version that it replaces".into());
        }
        let _ = table_of(&part, stripes.data_count(), self.shape.block_size)?;
        self.prepare_forward(key, content, replaces, Call::Forwarded { call }, actions);
        Ok(())
    }

    /// Handles the store's answer to the preparation of a key's adopted state, and replies to the primary.
    pub(crate) fn on_forwarded(
        &mut self,
        call: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        match result {
            Ok(_) => self.answer(PeerBody::Repaired { call }, actions),
            Err(_) => self.cannot_follow("the store has no room for a write", actions),
        }
    }

    /// Handles the store's answer to the preparation of a key's adopted state at the primary itself.
    pub(crate) fn on_forwarded_here(
        &mut self,
        slot: ForwardSlot,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let me = self.lead().me;
        if result.is_ok() {
            return self.on_forwarded_by(me, slot, actions);
        }
        let why = "the store is full".to_owned();
        let need = Need::Failed(self.lead().peers[me].member, why.clone());
        self.end_epoch(need, why, actions);
    }

    /// Notes that a member has prepared a key's adopted state.
    pub(crate) fn on_forwarded_by(
        &mut self,
        index: usize,
        slot: ForwardSlot,
        actions: &mut Vec<Action>,
    ) {
        self.lead().forwards[slot].take(index);
        self.end_forward(slot, actions);
    }

    fn end_forward(&mut self, slot: ForwardSlot, actions: &mut Vec<Action>) {
        let lead = self.lead();
        if lead.forwards[slot].is_empty() {
            lead.forwards.remove(slot);
            self.compare_on(actions);
        }
    }
}

/// Returns a position with data whose part was older than parity knows before the adopted version changed it,
/// and the version of its part now.
fn lost_write(before: &Gather, after: &Gather) -> Option<(usize, Version)> {
    let known = before.table_of_parity()?;
    let mut parts = before.all_held().range(..known.parts.len());
    parts.find_map(|(position, old)| {
        let new = after.held(*position)?;
        let is_lost = old.version < known.parts[*position].version && new.version > old.version;
        is_lost.then_some((*position, new.version))
    })
}

/// Returns the units that differ between the two versions at any position that was read as of both.
fn changed_units(before: &Gather, after: &Gather) -> Units {
    let mut units = Units::default();
    for (position, new) in after.all_held() {
        let Some(old) = before.held(*position) else { continue };
        for unit in new.units.with(&new.damaged).iter() {
            let data = |part: &Part| part.written.get(&unit).map(|data| data.data.clone());
            let is_same = match (old.damaged.has(unit), new.damaged.has(unit)) {
                (false, false) => old.units.has(unit) && data(old) == data(new),
                // A lost unit stays lost until a version replaces it.
                (is_old_lost, is_new_lost) => is_old_lost && is_new_lost,
            };
            if !is_same {
                units.add(unit);
            }
        }
    }
    units
}
