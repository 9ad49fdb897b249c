//! What a store knows of each PG besides its blocks: versions, the floor, suspicion.
//!
//! Invariant: `last` and `held` of a PG never go back.

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
    /// The records that a checkpoint names.
    pub fn load(records: Vec<(PgId, PgRecord)>) -> PgRecords {
        PgRecords { records: records.into_iter().collect() }
    }

    /// The PG's record; an empty one where nothing is known.
    pub fn get(&self, pg: PgId) -> PgRecord {
        self.records.get(&pg).copied().unwrap_or_default()
    }

    /// PGs that have a record, in order.
    pub fn keys(&self) -> impl Iterator<Item = PgId> {
        self.records.keys().copied()
    }

    /// Tombstones of each PG up to this version are not needed.
    pub fn floors(&self) -> impl Iterator<Item = (PgId, Version)> {
        self.records.iter().map(|(pg, record)| (*pg, record.floor))
    }

    /// The records as they are now, for a checkpoint.
    pub fn snapshot(&self) -> PgRecordMap {
        self.records.clone()
    }

    /// Whether damage may have cost the PG acknowledged writes. `suspect_since`: from which lsn on the
    /// whole store is suspect.
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
            kind => {
                record.held = record.held.max(header.version);
                if kind.is_versioned() {
                    record.last = record.last.max(header.version);
                    // The PG made sure of all before it went on to a new epoch.
                    record.hole = record.hole.filter(|hole| hole.epoch >= record.last.epoch);
                }
            }
        }
    }

    /// Recovery dropped this version. It is a hole if the PG's last write is of the same epoch: others
    /// of the epoch, before and behind it, are here. Of a later epoch nothing came; of an earlier one
    /// the PG made sure of all before it went on.
    pub fn note_dropped(&mut self, pg: PgId, version: Version) {
        if let Some(record) = self.records.get_mut(&pg)
            && record.last.epoch == version.epoch
        {
            record.hole = Some(record.hole.map_or(version, |hole| hole.min(version)));
        }
    }
}
