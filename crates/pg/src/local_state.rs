//! What a member has of its PG, what it keeps as a record, and what it reports when a new epoch begins.
//!
//! Invariants
//!   1. The member has every write of its PG up to the version that it reports as complete. All of them are
//!      durable once nothing is in flight at its store.
//!   2. A record found in a suspect store is not trusted. A record written since then is.
//!   3. At most one record at a time is being written to the store.
//!   4. The change list holds every change of the store above its reach, except repairs while this OSD is a
//!      learner. When these repairs end, the list starts again, empty.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{Epoch, Version};
use blockstore::{BlockKey, PgFacts};
use format::wire::MemberState;

use super::Record;
use super::changes::Changes;
use super::units::Units;

/// What a member has of its PG, and its record.
pub struct LocalState {
    /// The highest version of any write that was sent to the store in version order.
    last: Version,
    /// The highest version of any block that the member ever had.
    held: Version,
    /// The lowest version, in the epoch of `last`, that the store dropped or refused.
    hole: Option<Version>,
    /// Tombstones up to this version are gone.
    floor: Version,
    /// In pools with parity: prepared versions up to this one are stable, or will be when the record that is
    /// being written is durable.
    committed: Version,
    settling: Version,
    /// In pools with parity: the oldest prepared version that lost data. It limits what is reported as
    /// complete.
    first_lost: Option<Version>,
    /// The store is damaged and may have lost acknowledged writes.
    is_suspect: bool,
    /// The record was written after the damage was found, or there was no damage.
    is_believed: bool,
    /// The newest record that is durable here.
    record: Option<Record>,
    /// A record that is being written to the store's journal.
    recording: Option<(Record, RecordFor)>,
    /// The highest epoch that other members may have recorded while this OSD was its primary.
    epoch_promised: Epoch,
    changes: Changes,
    change_count_max: usize,
    /// Whether there may be a tombstone that the floor has not passed.
    has_tombstones: bool,
}

/// Who waits for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecordFor {
    /// This OSD as primary: it activates the epoch.
    Lead,
    /// Another OSD as primary: it activates the epoch.
    Activation,
    /// The primary that fills this learner. `call`: the number of its request.
    Progress { call: u32 },
    /// This OSD as primary: it takes a version back.
    OwnDrop,
    /// Another OSD as primary: it takes a version back. `call`: the number of its request.
    Drop { call: u32 },
    /// In pools of objects, this OSD as primary: it gets what it lacks.
    OwnForward,
    /// In pools of objects, another OSD as primary: it sends what this one lacks. `call`: the number of its
    /// request.
    Forward { call: u32 },
    /// The epoch is over, or the connection is gone.
    Nobody,
}

impl LocalState {
    /// Returns the state of a PG when the OSD starts. `facts`: what the store has recorded about the PG;
    /// `record`: the content of the store's note.
    pub fn new(facts: PgFacts, record: Option<Record>, change_count_max: usize) -> LocalState {
        let held = facts.held.max(facts.last);
        let reach = record.as_ref().map_or(held, |record| record.adopted.max(held));
        LocalState {
            last: facts.last,
            held,
            hole: facts.hole,
            floor: facts.floor,
            committed: facts.committed,
            settling: Version::ZERO,
            first_lost: None,
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

    /// Returns the newest record that is durable here.
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

    /// Returns the highest epoch that was begun here.
    pub fn epoch_floor(&self) -> Epoch {
        let recording = self.recording.iter().map(|(record, _)| record);
        let records = self.record.iter().chain(recording);
        let recorded = records.map(|record| record.entry.epoch).max().unwrap_or(Epoch::ZERO);
        recorded.max(self.held.epoch).max(self.epoch_promised)
    }

    /// Notes that other members may record this epoch from now on, even if this OSD fails to.
    pub fn promise(&mut self, epoch: Epoch) {
        self.epoch_promised = epoch;
    }

    /// Notes that a record is sent to the store; returns its bytes.
    pub fn begin_record(&mut self, record: Record, what: RecordFor) -> Vec<u8> {
        assert!(self.recording.is_none());
        let bytes = record.encode();
        self.recording = Some((record, what));
        bytes
    }

    /// Notes that the record is durable, or was refused. Returns who waits for it.
    pub fn end_record(&mut self, is_durable: bool) -> RecordFor {
        let (record, what) = self.recording.take().expect("a record is being written");
        let settled = std::mem::take(&mut self.settling);
        if is_durable {
            self.record = Some(record);
            self.is_believed = true;
            self.on_commit(settled);
            if settled > Version::ZERO {
                self.first_lost = None;
            }
        }
        what
    }

    /// Notes that the record that is being written settles prepared versions up to this one.
    pub fn settle(&mut self, upto: Version) {
        assert!(self.is_recording());
        self.settling = upto;
    }

    /// Notes the oldest prepared version that lost data in the store.
    pub fn on_first_lost(&mut self, first_lost: Option<Version>) {
        self.first_lost = first_lost;
    }

    /// Notes that the store was asked to make prepared versions up to this one stable.
    pub fn on_commit(&mut self, upto: Version) {
        self.committed = self.committed.max(upto);
    }

    /// Returns the version up to which prepared versions are stable here.
    pub fn committed(&self) -> Version {
        self.committed
    }

    pub fn is_recording(&self) -> bool {
        self.recording.is_some()
    }

    /// Notes that the epoch is over: nobody waits for the record in flight.
    pub fn abandon(&mut self) {
        if let Some((_, what)) = &mut self.recording {
            *what = RecordFor::Nobody;
        }
    }

    /// Notes a write, in version order, that is sent to the store.
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

    /// Notes the last version of a batch of a pool of objects, in version order. The floor follows all of
    /// them: logs are cut up to it.
    pub fn on_batch(&mut self, version: Version) {
        self.on_version(version);
        self.has_tombstones = true;
    }

    /// Notes a version, in version order, that changes nothing here.
    pub fn on_version(&mut self, version: Version) {
        self.last = self.last.max(version);
        self.held = self.held.max(version);
    }

    /// Notes a repair that is sent to the store. `units`: all units of the block.
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

    /// Notes a repair that is sent to the store while this OSD is a learner. It is not added to the change
    /// list.
    pub fn on_fill(&mut self, version: Version, is_delete: bool) {
        self.held = self.held.max(version);
        self.has_tombstones |= is_delete;
    }

    /// Starts the change list again, empty: this OSD, a learner until now, has everything.
    pub fn on_filled(&mut self) {
        self.changes = Changes::new(self.held, self.change_count_max);
    }

    /// Notes that the store refused a write. The store receives no later write of this epoch.
    pub fn lacks(&mut self, version: Version) {
        let known = self.hole.filter(|hole| hole.epoch == version.epoch);
        self.hole = Some(known.map_or(version, |hole| hole.min(version)));
    }

    /// Notes that the store refused a batch of a pool of objects that begins with this version, and all later
    /// ones. What an acting member has is a prefix, so it has what was before.
    pub fn lacks_batch(&mut self, first: Version) {
        let record = self.record.as_ref();
        let acting = record.filter(|it| it.filling.is_none() && it.entry.epoch == first.epoch);
        let Some(record) = acting else { return self.lacks(first) };
        let before = version_before(first, record);
        self.last = self.last.min(before);
        self.held = self.held.min(before);
    }

    /// Notes that all that this acting member of a pool of objects lacked up to a version is durable here.
    pub fn on_forward(&mut self, version: Version) {
        self.on_batch(version);
        self.hole = self.hole.filter(|hole| *hole > version);
    }

    /// Notes that the operator gave up the lost data, or that backfill restored it.
    pub fn absolved(&mut self) {
        self.is_suspect = false;
        self.is_believed = true;
    }

    /// Raises the floor: tombstones up to it may be dropped. Returns false if the floor was already as high.
    pub fn raise_floor(&mut self, floor: Version) -> bool {
        let rises = floor > self.floor;
        self.floor = self.floor.max(floor);
        rises
    }

    /// Returns whether there may be tombstones that the floor has not passed. Those up to `mark` count as
    /// passed from now on.
    pub fn pass_tombstones(&mut self, mark: Version) -> bool {
        let had_tombstones = self.has_tombstones;
        self.has_tombstones &= self.held > mark;
        had_tombstones
    }

    /// Returns the blocks with changes above `version`, and the units that changed. Returns `None` if the
    /// list does not reach back that far.
    pub fn changes_since(&self, version: Version) -> Option<BTreeMap<BlockKey, Units>> {
        self.changes.since(version)
    }

    /// Returns the version up to which the member has everything, undamaged.
    fn complete(&self, record: &Record) -> Version {
        let had = self.had(record);
        if record.filling.is_some() {
            return had;
        }
        let is_prepared = |version: &Version| *version > self.committed && *version <= had;
        let lost = self.first_lost.filter(is_prepared).map(|lost| version_before(lost, record));
        lost.map_or(had, |lost| lost.min(had))
    }

    /// Returns the version up to which the member had everything. Prepared versions that lost data since
    /// count; what recovery dropped does not.
    fn had(&self, record: &Record) -> Version {
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

    /// Returns the version up to which what the member has is stable. What a learner was filled with is
    /// stable, too: up to the version in the record that ended its backfill.
    fn committed_with(&self, record: Option<&Record>) -> Version {
        let filled = record.filter(|record| record.filling.is_none());
        self.committed.max(filled.map_or(Version::ZERO, |record| record.adopted))
    }

    /// Returns the state that the member reports. `is_in_role`: the member holds the data of its position in
    /// the new entry.
    pub fn state(&self, is_in_role: bool) -> MemberState {
        let record = self.record.as_ref().filter(|_| self.is_believed && is_in_role);
        MemberState {
            record_epoch: record.map_or(Epoch::ZERO, |record| record.entry.epoch),
            complete: record.map_or(Version::ZERO, |record| self.complete(record)),
            had: record.map_or(Version::ZERO, |record| self.had(record)),
            committed: self.committed_with(record),
            held: self.held,
            floor: self.floor,
            is_suspect: self.is_suspect,
            history: record.map(|record| record.history.clone()).unwrap_or_default(),
            filling: record.and_then(|record| record.filling.clone()),
            elsewhere: None,
            acting: Vec::new(),
        }
    }

    /// Returns the epoch of the record, the version up to which this member has everything, and whether it
    /// is being filled. A filling counts as soon as its record is on the way: what fills comes behind it.
    pub fn recorded(&self) -> Option<(Epoch, Version, bool)> {
        let record = self.record.as_ref().filter(|_| self.is_believed)?;
        let mut records = self.recording.iter().map(|(record, _)| record).chain([record]);
        let is_filled = records.any(|record| record.filling.is_some());
        Some((record.entry.epoch, self.complete(record), is_filled))
    }

    /// Returns the newest activation at which this member had everything. `None`: it has no record of it, or
    /// was filled since while other members were lost.
    pub fn activated(&self) -> Option<Epoch> {
        let record = self.record.as_ref().filter(|_| self.is_believed)?;
        let newest = record.history.last()?.epoch;
        (record.filling.is_none() && newest == record.entry.epoch).then_some(newest)
    }
}

/// Returns the version before `version`, which is of the record's epoch.
fn version_before(version: Version, record: &Record) -> Version {
    let counter = version.counter - 1;
    let adopted = record.history.last().map_or(record.adopted, |activation| activation.adopted);
    if counter <= adopted.counter { adopted } else { Version { epoch: version.epoch, counter } }
}
