//! What a member has of its PG, keeps as a record, and states when a new epoch begins.
//!
//! Invariants
//!   1. Up to what it states as complete the member has every write of its PG, durably once nothing is
//!      under way at its store.
//!   2. A record that a suspect store kept is not believed; one that was written since is.
//!   3. One record at a time is on its way to the store.
//!   4. Every change of the store above the reach of `changes` is in them, except repairs of a learner,
//!      with whose end they begin anew.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{Epoch, Version};
use blockstore::{BlockKey, PgFacts};
use format::wire::MemberState;

use super::Record;
use super::changes::Changes;
use super::units::Units;

/// What a member has, and its record.
pub struct LocalState {
    /// The highest version that was given to its store in version order.
    last: Version,
    /// The highest version of any block it ever had.
    held: Version,
    /// The lowest version of the epoch of `last` that its store dropped or refused.
    hole: Option<Version>,
    /// Tombstones up to it are gone.
    floor: Version,
    /// Damage may have cost acknowledged writes.
    is_suspect: bool,
    /// The record was written since the damage was found, or there was none.
    is_believed: bool,
    /// The newest record that is durable here.
    record: Option<Record>,
    /// A record on its way to the store's journal.
    recording: Option<(Record, RecordFor)>,
    /// The highest epoch that other members may have recorded for this OSD.
    epoch_promised: Epoch,
    changes: Changes,
    change_count_max: usize,
    /// Whether a tombstone was made that the floor has not passed.
    has_tombstones: bool,
}

/// Who waits for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordFor {
    /// This OSD as primary, which activates the epoch.
    Lead,
    /// The primary that activates the epoch.
    Activation,
    /// The primary that fills this learner; `call` is its number.
    Progress { call: u32 },
    /// This OSD as primary, which takes a version back.
    OwnDrop,
    /// The primary, which takes a version back.
    Drop { call: u32 },
    /// The epoch is over, or the connection is gone.
    Nobody,
}

impl LocalState {
    /// `facts`: what the store knows of the PG; `record`: what its note says.
    pub fn new(facts: PgFacts, record: Option<Record>, change_count_max: usize) -> LocalState {
        let held = facts.held.max(facts.last);
        let reach = record.as_ref().map_or(held, |record| record.adopted.max(held));
        LocalState {
            last: facts.last,
            held,
            hole: facts.hole,
            floor: facts.floor,
            is_suspect: facts.is_suspect,
            is_believed: !facts.is_suspect,
            record,
            recording: None,
            epoch_promised: Epoch::ZERO,
            changes: Changes::new(reach, change_count_max),
            change_count_max,
            has_tombstones: true,
        }
    }

    /// The newest record that is durable here.
    pub fn record(&self) -> Option<&Record> {
        self.record.as_ref()
    }

    pub fn held(&self) -> Version {
        self.held
    }

    pub fn floor(&self) -> Version {
        self.floor
    }

    pub fn is_suspect(&self) -> bool {
        self.is_suspect
    }

    /// The highest epoch that was begun here.
    pub fn epoch_floor(&self) -> Epoch {
        let recording = self.recording.iter().map(|(record, _)| record);
        let records = self.record.iter().chain(recording);
        let recorded = records.map(|record| record.entry.epoch).max().unwrap_or(Epoch::ZERO);
        recorded.max(self.held.epoch).max(self.epoch_promised)
    }

    /// From now on other members may record this epoch, even if this one fails to.
    pub fn promise(&mut self, epoch: Epoch) {
        self.epoch_promised = epoch;
    }

    /// A record goes to the store; returns its bytes.
    pub fn begin_record(&mut self, record: Record, what: RecordFor) -> Vec<u8> {
        assert!(self.recording.is_none());
        let bytes = record.encode();
        self.recording = Some((record, what));
        bytes
    }

    /// The record is durable, or was refused; returns who waits for it.
    pub fn end_record(&mut self, is_durable: bool) -> RecordFor {
        let (record, what) = self.recording.take().expect("one record at a time, until its answer");
        if is_durable {
            self.record = Some(record);
            self.is_believed = true;
        }
        what
    }

    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// The epoch is over: nothing waits for the record in flight.
    pub fn abandon(&mut self) {
        if let Some((_, what)) = &mut self.recording {
            *what = RecordFor::Nobody;
        }
    }

    /// A write in version order goes to the store.
    pub fn on_write(
        &mut self,
        version: Version,
        key: BlockKey,
        units: Range<u32>,
        is_delete: bool,
    ) {
        self.last = self.last.max(version);
        self.held = self.held.max(version);
        self.has_tombstones |= is_delete;
        self.changes.add(version, key, units);
    }

    /// A repair goes to the store. `units`: all of the block.
    pub fn on_repair(
        &mut self,
        version: Version,
        key: BlockKey,
        units: Range<u32>,
        is_delete: bool,
    ) {
        self.on_fill(version, is_delete);
        self.changes.add(version, key, units);
    }

    /// A repair of this OSD as learner goes to the store; it is in no list of changes.
    pub fn on_fill(&mut self, version: Version, is_delete: bool) {
        self.held = self.held.max(version);
        self.has_tombstones |= is_delete;
    }

    /// This OSD, a learner until now, has everything: the list of changes begins here.
    pub fn on_filled(&mut self) {
        self.changes = Changes::new(self.held, self.change_count_max);
    }

    /// The store refused a write; it gets no later one of this epoch.
    pub fn lacks(&mut self, version: Version) {
        let known = self.hole.filter(|hole| hole.epoch == version.epoch);
        self.hole = Some(known.map_or(version, |hole| hole.min(version)));
    }

    /// What was lost is given up, or filled again.
    pub fn absolved(&mut self) {
        self.is_suspect = false;
        self.is_believed = true;
    }

    /// Tombstones up to `floor` may go; false: they did before.
    pub fn raise_floor(&mut self, floor: Version) -> bool {
        let rises = floor > self.floor;
        self.floor = self.floor.max(floor);
        rises
    }

    /// Whether a tombstone was made that a floor at `mark` passes. It counts as passed then.
    pub fn pass_tombstones(&mut self, mark: Version) -> bool {
        let had_tombstones = self.has_tombstones;
        self.has_tombstones &= self.held > mark;
        had_tombstones
    }

    /// The blocks with changes above `version`, and their units; `None`: the list does not reach back so
    /// far.
    pub fn changes_since(&self, version: Version) -> Option<BTreeMap<BlockKey, Units>> {
        self.changes.since(version)
    }

    /// The version up to which the member has everything.
    fn complete(&self, record: &Record) -> Version {
        if let Some(filling) = &record.filling {
            return filling.complete;
        }
        let epoch = record.entry.epoch;
        let hole = self.hole.filter(|hole| hole.epoch == epoch);
        let complete = match hole {
            _ if self.last.epoch != epoch => record.adopted,
            None => self.last,
            Some(hole) => version_before(hole, record),
        };
        match record.dropped {
            Some(dropped) if dropped <= complete => version_before(dropped, record),
            _ => complete,
        }
    }

    /// What the member states. `is_in_role`: what it holds is what its position in the new entry holds.
    pub fn state(&self, is_in_role: bool) -> MemberState {
        let record = self.record.as_ref().filter(|_| self.is_believed && is_in_role);
        MemberState {
            record_epoch: record.map_or(Epoch::ZERO, |record| record.entry.epoch),
            complete: record.map_or(Version::ZERO, |record| self.complete(record)),
            held: self.held,
            floor: self.floor,
            is_suspect: self.is_suspect,
            history: record.map(|record| record.history.clone()).unwrap_or_default(),
            filling: record.and_then(|record| record.filling.clone()),
        }
    }
}

/// The version before one of the record's epoch.
fn version_before(version: Version, record: &Record) -> Version {
    let counter = version.counter - 1;
    let adopted = record.history.last().map_or(record.adopted, |activation| activation.adopted);
    if counter <= adopted.counter { adopted } else { Version { epoch: version.epoch, counter } }
}
