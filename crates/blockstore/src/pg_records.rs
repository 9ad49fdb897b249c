//! What a store records about each PG in addition to its blocks: versions, the floor, whether it is suspect.
//!
//! Invariant: `committed` and `held` of a PG never decrease; `last` decreases only when a settle rolls back
//! prepared versions.

use std::collections::BTreeMap;

use base::{Lsn, PgId, Version};
use format::disk::{EntryHeader, EntryKind, PgRecord};

/// All records, as a checkpoint writes them.
pub type PgRecordMap = BTreeMap<PgId, PgRecord>;

/// The records of all PGs.
#[derive(Default)]
pub struct PgRecords {
    records: PgRecordMap,
}

impl PgRecords {
    /// Loads the records from a checkpoint.
    pub fn load(records: Vec<(PgId, PgRecord)>) -> PgRecords {
        PgRecords { records: records.into_iter().collect() }
    }

    /// Returns the PG's record; an empty one if nothing is known.
    pub fn get(&self, pg: PgId) -> PgRecord {
        self.records.get(&pg).copied().unwrap_or_default()
    }

    /// Returns the PGs that have a record, in order.
    pub fn keys(&self) -> impl Iterator<Item = PgId> {
        self.records.keys().copied()
    }

    /// Returns the floor of each PG. Tombstones up to the floor are not needed.
    pub fn floors(&self) -> impl Iterator<Item = (PgId, Version)> {
        self.records.iter().map(|(pg, record)| (*pg, record.floor))
    }

    /// Returns a copy of the records, for a checkpoint.
    pub fn snapshot(&self) -> PgRecordMap {
        self.records.clone()
    }

    /// Whether damage may have destroyed acknowledged writes of the PG. `suspect_since`: the lsn at which
    /// the whole store became suspect.
    pub fn is_suspect(&self, pg: PgId, suspect_since: Option<Lsn>) -> bool {
        let record = self.get(pg);
        let suspect = suspect_since.max(record.suspect);
        suspect.is_some_and(|at| record.absolved.is_none_or(|absolved| absolved < at))
    }

    /// Applies an entry of the PG.
    pub fn apply(&mut self, header: &EntryHeader, pg: PgId, lsn: Lsn) {
        let record = self.records.entry(pg).or_default();
        match header.kind {
            EntryKind::Floor => record.floor = record.floor.max(header.version),
            EntryKind::Absolve => record.absolved = Some(lsn),
            EntryKind::Suspect => record.suspect = Some(lsn),
            // A settle is recorded by [`PgRecords::settle`], together with its effect on prepared versions.
            EntryKind::Settle => {}
            kind => {
                record.held = record.held.max(header.version);
                let is_next = kind.is_prepared() && header.replaces.is_none();
                let is_next = is_next && !header.flags.is_copy;
                let has_own = matches!(kind, EntryKind::Skip | EntryKind::Batch);
                if kind.is_versioned() || has_own || is_next {
                    record.last = record.last.max(header.version);
                    // The PG made all earlier writes safe before it began a new epoch.
                    record.hole = record.hole.filter(|hole| hole.epoch >= record.last.epoch);
                }
            }
        }
    }

    /// Raises the PG's committed version to `upto`, but not above its last version. Returns the new value if
    /// it was raised.
    pub fn commit(&mut self, pg: PgId, upto: Version) -> Option<Version> {
        let record = self.records.get_mut(&pg)?;
        let upto = upto.min(record.last);
        if upto <= record.committed {
            return None;
        }
        record.committed = upto;
        Some(upto)
    }

    /// Records a settle: everything up to `upto` is stable, and no version above it exists.
    pub fn settle(&mut self, pg: PgId, upto: Version) {
        let record = self.records.entry(pg).or_default();
        record.last = upto;
        record.committed = upto;
        record.held = record.held.max(upto);
        record.hole = None;
    }

    /// Records that recovery dropped this version. The version is a hole if the PG's last write is in the
    /// same epoch, because other writes of that epoch are present. If the version is in a later epoch, no
    /// write of that epoch is present. If it is in an earlier epoch, the PG made all writes safe before it
    /// began the next epoch.
    pub fn note_dropped(&mut self, pg: PgId, version: Version) {
        if let Some(record) = self.records.get_mut(&pg)
            && record.last.epoch == version.epoch
        {
            record.hole = Some(record.hole.map_or(version, |hole| hole.min(version)));
        }
    }
}
