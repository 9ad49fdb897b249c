//! The copy that OSDs keep of the state store, so that a store restored from a backup is recognized
//! and brought up to date again: see `monitor/restore.rs`.
//!
//! PG entries are not part of the copy: each OSD has the entries of its own PGs in their records, durable
//! before the PGs are served. Fences are not part of it either: a restore fences every session that has no
//! record.
//!
//! Invariants
//!   1. A copy is the state as of its `change`: the number of the last transaction that it includes.
//!   2. A copy is never replaced by an earlier one.

use std::collections::BTreeMap;

use base::{Epoch, Incarnation, MapRevision, PgId, PoolId, SessionId, SessionRange};
use format::wire::PgEntry;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::map::Pool;
use crate::numbers::{self, NUMBER_MAX};
use crate::records::Key;
use crate::revisions_by_pool;

/// Maximum bytes of record text in one message or note. The last record may exceed the maximum by its own
/// length; the total then is still below the size limits of messages and of notes.
const PART_SIZE_MAX: usize = 256 << 10;

/// Records of the state store by their keys, as of one transaction.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct StateCopy {
    /// The number of the last transaction included; 0: nothing has been received yet.
    pub change: u64,
    /// The reign that made that transaction: see `records::ChangeRecord`.
    pub reign: u64,
    /// The records' JSON values, by key.
    #[serde(default)]
    pub records: BTreeMap<String, Value>,
}

/// A part of a copy, or a change to it.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct CopyPart {
    /// Whether this part begins a whole copy; the receiver then drops its earlier contents.
    #[serde(default)]
    pub begins: bool,
    /// The transaction that is complete with this part, and its reign; `None`: other parts follow.
    pub change: Option<(u64, u64)>,
    /// Records that exist, with their values.
    #[serde(default)]
    pub put: BTreeMap<String, Value>,
    /// Keys that were deleted.
    #[serde(default)]
    pub gone: Vec<String>,
}

/// A receiver's copy, and the parts of a change that has not arrived completely.
#[derive(Default)]
pub struct CopyKeeper {
    copy: StateCopy,
    coming: Vec<CopyPart>,
}

/// The newest state that an OSD has seen. If a monitor's store lacks any of it, the store was set back to an
/// older state.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Seen {
    /// The number of the last transaction in the OSD's copy of the state.
    #[serde(default)]
    pub change: u64,
    /// The reign that made that transaction.
    #[serde(default)]
    pub reign: u64,
    /// The OSD's newest run.
    #[serde(default)]
    pub incarnation: Incarnation,
    /// The highest revision of each pool's map that the OSD has seen, in the map or in the records of its
    /// PGs.
    #[serde(default, with = "revisions_by_pool")]
    pub pools: BTreeMap<PoolId, MapRevision>,
}

/// An OSD's records about the cluster, or part of them.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct KnownState {
    /// Entries of the OSD's PGs, both from their records and from the map. One PG may have several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entries: Vec<PgEntry>,
    /// Activated epochs of the PGs that the OSD holds completely.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub activated: Vec<Activated>,
    /// The pools in the OSD's map.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolSeen>,
    /// The highest revision of an OSD entry that the OSD has seen.
    #[serde(default)]
    pub osd_revision: u64,
    /// The OSD's copy of the state.
    #[serde(default)]
    pub copy: StateCopy,
}

impl Seen {
    /// Whether all numbers are within the limits in `numbers.rs`, so that they can have been issued.
    pub fn is_sound(&self) -> bool {
        let mut pools = self.pools.iter();
        self.change <= NUMBER_MAX
            && self.incarnation.get() <= NUMBER_MAX
            && pools.all(|(pool, revision)| is_pool_sound(*pool, *revision))
    }
}

impl KnownState {
    /// Adds the next part.
    pub fn add(&mut self, part: KnownState) {
        self.entries.extend(part.entries);
        self.activated.extend(part.activated);
        self.pools.extend(part.pools);
        self.osd_revision = self.osd_revision.max(part.osd_revision);
        (self.copy.change, self.copy.reign) = (part.copy.change, part.copy.reign);
        self.copy.records.extend(part.copy.records);
    }

    /// Whether all numbers are within the limits in `numbers.rs`, so that they can have been issued.
    pub fn is_sound(&self) -> bool {
        let mut epochs = self.activated.iter().flat_map(|activated| &activated.epochs);
        let is_seen_sound = |seen: &PoolSeen| {
            // The ranges come from the OSD's map and from its note, in no particular order.
            let ends = seen.fence_ranges.iter().flat_map(|(first, last)| [first, last]);
            let mut sessions = seen.fences.iter().chain(ends);
            is_pool_sound(seen.pool.id, seen.revision)
                && sessions.all(|session| numbers::check_session(*session).is_ok())
        };
        self.osd_revision <= NUMBER_MAX
            && self.copy.change <= NUMBER_MAX
            && self.entries.iter().all(|entry| numbers::check_entry(entry).is_ok())
            && epochs.all(|epoch| numbers::check_epoch(*epoch).is_ok())
            && self.pools.iter().all(is_seen_sound)
    }
}

fn is_pool_sound(pool: PoolId, revision: MapRevision) -> bool {
    numbers::check_pool(pool).is_ok() && numbers::check_revision(revision).is_ok()
}

/// The epochs of a PG that a member's record continues.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Activated {
    /// The PG.
    pub pg: PgId,
    /// The epochs, oldest first; the last one is the record's epoch. Epochs before the first are unknown.
    pub epochs: Vec<Epoch>,
}

/// What an OSD has recorded about a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PoolSeen {
    /// The pool's rules.
    pub pool: Pool,
    /// The revision of the pool's map.
    pub revision: MapRevision,
    /// Sessions that are permanently refused.
    pub fences: Vec<SessionId>,
    /// Ranges of sessions that are permanently refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fence_ranges: Vec<SessionRange>,
}

/// Whether the record under a key is part of the copy.
pub fn is_copied(key: &Key) -> bool {
    match key {
        // Not copied: the store's own keys (`change` is sent with a whole copy); entries, which are
        // in PG records; fences, which are in the map; the name index, which is derived from
        // images.
        Key::Leader | Key::Cluster | Key::Change | Key::Recovery => false,
        Key::PgShard(..) | Key::Fence(_) | Key::ImageName(_) => false,
        // Not copied: statistics, because nothing depends on them.
        Key::Stats(..) => false,
        _ => true,
    }
}

/// Splits records into parts, each short enough for a message; returns at least one part.
pub fn in_parts(
    records: impl IntoIterator<Item = (String, Value)>,
) -> Vec<BTreeMap<String, Value>> {
    let mut parts = Vec::new();
    let mut part = BTreeMap::new();
    let mut size = 0;
    for (key, value) in records {
        size += key.len() + value.to_string().len();
        if size > PART_SIZE_MAX {
            size = 0;
            parts.push(std::mem::take(&mut part));
        }
        part.insert(key, value);
    }
    parts.push(part);
    parts
}

impl CopyKeeper {
    /// Returns a keeper that starts with this copy.
    #[cfg(test)]
    pub fn new(copy: StateCopy) -> CopyKeeper {
        CopyKeeper { copy, coming: Vec::new() }
    }

    /// Returns the newest complete copy.
    pub fn copy(&self) -> &StateCopy {
        &self.copy
    }

    /// Whether some parts of a change have arrived and others have not.
    pub fn is_taking(&self) -> bool {
        !self.coming.is_empty()
    }

    /// Adds a part sent by a monitor; once all parts of a change have arrived, returns the whole change.
    pub fn take(&mut self, part: CopyPart) -> Option<CopyPart> {
        if part.begins {
            self.coming.clear();
        }
        let end = part.change;
        self.coming.push(part);
        let (change, reign) = end?;
        let parts = std::mem::take(&mut self.coming);
        let is_whole = parts[0].begins;
        if change < self.copy.change || (self.copy.change == 0 && !is_whole) {
            return None;
        }
        let (mut put, mut gone) = (BTreeMap::new(), Vec::new());
        for part in parts {
            put.extend(part.put);
            gone.extend(part.gone);
        }
        let records = &mut self.copy.records;
        if is_whole {
            gone = records.keys().filter(|key| !put.contains_key(*key)).cloned().collect();
            put.retain(|key, value| records.get(key) != Some(value));
        }
        gone.iter().for_each(|key| drop(records.remove(key)));
        records.extend(put.clone());
        (self.copy.change, self.copy.reign) = (change, reign);
        Some(CopyPart { begins: false, change: end, put, gone })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(begins: bool, change: Option<u64>, put: &[&str], gone: &[&str]) -> CopyPart {
        let put = put.iter().map(|key| (key.to_string(), Value::Null)).collect();
        CopyPart {
            begins,
            change: change.map(|change| (change, 7)),
            put,
            gone: gone.iter().map(|key| key.to_string()).collect(),
        }
    }

    fn keys(keeper: &CopyKeeper) -> Vec<&str> {
        keeper.copy().records.keys().map(|key| &key[..]).collect()
    }

    #[test]
    fn a_copy_is_replaced_when_the_new_one_is_whole_and_then_follows_changes() {
        let mut keeper = CopyKeeper::default();
        assert!(keeper.take(part(false, Some(3), &["z"], &[])).is_none(), "of nothing");
        assert!(keeper.take(part(true, Some(4), &["a", "b"], &[])).is_some());
        assert!(keeper.take(part(true, None, &["b", "c"], &[])).is_none());
        assert_eq!((keys(&keeper), keeper.copy().change), (vec!["a", "b"], 4));
        let difference = keeper.take(part(false, Some(6), &["d"], &[])).unwrap();
        assert_eq!(difference.put.keys().collect::<Vec<_>>(), ["c", "d"]);
        assert_eq!(difference.gone, ["a"]);
        assert_eq!(keys(&keeper), ["b", "c", "d"]);
        keeper.take(part(false, Some(7), &["e"], &["b", "c"]));
        assert_eq!((keys(&keeper), keeper.copy().change), (vec!["d", "e"], 7));
    }

    #[test]
    fn an_older_copy_replaces_none() {
        let mut keeper = CopyKeeper::default();
        keeper.take(part(true, Some(9), &["a"], &[]));
        assert!(keeper.take(part(true, Some(8), &["b"], &[])).is_none());
        assert!(keeper.take(part(false, Some(8), &["c"], &[])).is_none());
        assert_eq!((keys(&keeper), keeper.copy().change), (vec!["a"], 9));
    }
}
