//! The notes that an OSD keeps about the map. With them it recognises a map that is older than one it has
//! seen, such as the map of a state store that was restored from a backup.
//!
//! Each PG's entry has its own note, see `pg::Record`. The copy of the state store has its own notes, too,
//! see `state_log.rs`.
//!
//! Invariants
//!   1. At most one write of the note about the cluster is under way at a time.
//!   2. A lease longer than any earlier one is given only after a note with its span is durable, because a
//!      later run must wait for that span.
//!   3. A note never replaces a newer revision of a pool with an older one.

use std::collections::BTreeMap;

use base::{ClusterId, Duration, MapRevision, OsdId, PgId, PoolId};
use blockstore::{NoteKey, Store};
use cluster::copy::Seen;
use cluster::map::{ClusterMap, Pool};
use pg::Record;
use serde::{Deserialize, Serialize};

use crate::leases::LEASE_DEFAULT;

/// The notes of this OSD's store, and what has to be noted next.
pub(crate) struct Notes {
    /// The longest span of a lease that this OSD may have given in any run.
    lease_span: Duration,
    /// Pools as earlier runs of this OSD noted them, without those that have been removed since.
    pools: BTreeMap<PoolId, PoolNote>,
    /// The PGs whose notes cannot be read, and why.
    damaged: BTreeMap<PgId, String>,
    /// The newest run of this OSD and the newest map revisions found in its records of PGs.
    recorded: Seen,
    /// When the last check of the store's metadata ended, or the first one was scheduled, in seconds since
    /// 1970; 0: never.
    checked_at: u64,
    /// Whether the map or `checked_at` differs from the note about the cluster.
    is_old: bool,
    /// The lease span in the note about the cluster that is being written; `None` if no write is under way.
    open: Option<Duration>,
}

impl Notes {
    /// Creates the notes of a store that is not open yet.
    pub(crate) fn unread() -> Notes {
        Notes {
            lease_span: LEASE_DEFAULT,
            pools: BTreeMap::new(),
            damaged: BTreeMap::new(),
            recorded: Seen::default(),
            checked_at: 0,
            is_old: false,
            open: None,
        }
    }

    /// Reads the notes that earlier runs of this OSD left in its store. The error says why the note about the
    /// cluster cannot be read. A PG whose note cannot be read is listed as damaged: its data here is as
    /// suspect as after damage found by recovery.
    pub(crate) fn read(store: &Store, osd: OsdId) -> Result<Notes, String> {
        let mut notes = Notes { recorded: seen_in_records(store, osd), ..Notes::unread() };
        for (key, note) in store.notes() {
            if let (NoteKey::Pg(id), Err(why)) = (key, Record::decode(note)) {
                notes.damaged.insert(id, why);
            }
        }
        if let Some(note) = store.note(NoteKey::Cluster) {
            let note = ClusterNote::decode(note)?;
            notes.lease_span = notes.lease_span.max(note.lease());
            notes.checked_at = note.metadata_checked_at.unwrap_or(0);
            notes.pools = note.pools_by_id();
        }
        Ok(notes)
    }

    // ---- notes of earlier runs

    /// Returns the longest span of a lease that any run may have given.
    pub(crate) fn lease_span(&self) -> Duration {
        self.lease_span
    }

    /// Returns the newest run and the newest map revisions found in the records of PGs.
    pub(crate) fn recorded(&self) -> &Seen {
        &self.recorded
    }

    /// Returns the pools as earlier runs noted them.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (PoolId, &PoolNote)> {
        self.pools.iter().map(|(id, noted)| (*id, noted))
    }

    /// Returns the revision of a pool that earlier runs noted.
    pub(crate) fn revision(&self, pool: PoolId) -> MapRevision {
        self.pools.get(&pool).map_or(MapRevision::ZERO, |noted| noted.revision)
    }

    /// Forgets a pool that was removed.
    pub(crate) fn forget_pool(&mut self, pool: PoolId) {
        self.pools.remove(&pool);
    }

    /// Returns the PGs whose notes cannot be read, and why.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = (PgId, &str)> {
        self.damaged.iter().map(|(id, why)| (*id, why.as_str()))
    }

    /// Returns whether the note of any PG cannot be read.
    pub(crate) fn has_damaged(&self) -> bool {
        !self.damaged.is_empty()
    }

    /// Returns why the note of this PG cannot be read, or `None` if it can be read.
    pub(crate) fn damage_of(&self, pg: PgId) -> Option<&str> {
        self.damaged.get(&pg).map(String::as_str)
    }

    /// Forgets that the note of this PG cannot be read, because the note is being removed.
    pub(crate) fn forget_damage(&mut self, pg: PgId) {
        self.damaged.remove(&pg);
    }

    /// Forgets damaged notes of PGs that are no longer suspect.
    pub(crate) fn keep_damage(&mut self, is_suspect: impl Fn(PgId) -> bool) {
        self.damaged.retain(|id, _| is_suspect(*id));
    }

    // ---- the note about the cluster

    /// Returns the span of leases that may be given now if `wanted` is the span in the settings.
    pub(crate) fn lease_allowed(&self, wanted: Duration) -> Duration {
        wanted.min(self.lease_span)
    }

    /// Requests a new note if leases of this span need one.
    pub(crate) fn want_lease(&mut self, wanted: Duration) {
        self.is_old |= wanted > self.lease_span;
    }

    /// Returns when the last check of the store's metadata ended, or the first one was scheduled; 0: never.
    pub(crate) fn checked_at(&self) -> u64 {
        self.checked_at
    }

    /// Records the time of day at which a check of the store's metadata ended, or the first one was
    /// scheduled.
    pub(crate) fn set_checked_at(&mut self, day: u64) {
        self.checked_at = day;
        self.is_old = true;
    }

    /// Records that the map has changed, so that the note must be written again.
    pub(crate) fn map_changed(&mut self) {
        self.is_old = true;
    }

    /// Returns whether the note about the cluster must be written and no write of it is under way.
    pub(crate) fn is_due(&self) -> bool {
        self.is_old && self.open.is_none()
    }

    /// Begins a write of the note about the cluster and returns its bytes. Requires: the write is due.
    pub(crate) fn begin(
        &mut self,
        cluster: ClusterId,
        map: &ClusterMap,
        lease_wanted: Duration,
    ) -> Vec<u8> {
        assert!(self.is_due());
        let span = self.lease_span.max(lease_wanted);
        let mut note = ClusterNote::of(cluster, map, span);
        note.keep_newer(&self.pools);
        note.metadata_checked_at = (self.checked_at > 0).then_some(self.checked_at);
        self.is_old = false;
        self.open = Some(span);
        note.encode()
    }

    /// Handles the end of the note's write; `is_durable` is false if the write failed. Requires: a write is
    /// under way.
    pub(crate) fn on_written(&mut self, is_durable: bool) {
        let span = self.open.take().expect("one note at a time");
        if is_durable {
            self.lease_span = self.lease_span.max(span);
        } else {
            self.is_old = true;
        }
    }
}

/// Returns the records of PGs. Records that cannot be read are skipped; their PGs wait for an operator.
pub(crate) fn records(store: &Store) -> impl Iterator<Item = Record> + '_ {
    store.notes().filter_map(|(key, bytes)| match key {
        NoteKey::Pg(_) => Record::decode(bytes).ok(),
        NoteKey::Cluster | NoteKey::State(_) | NoteKey::Scrub(_) => None,
    })
}

/// Returns what this OSD has seen of the cluster according to its records of PGs, which may be newer than
/// the note about the cluster.
fn seen_in_records(store: &Store, osd: OsdId) -> Seen {
    let mut seen = Seen::default();
    for entry in records(store).map(|record| record.entry) {
        raise(&mut seen, entry.pg.pool, entry.revision);
        let ours = entry.members().filter(|member| member.osd == osd);
        let run = ours.map(|member| member.incarnation).max().unwrap_or_default();
        seen.incarnation = seen.incarnation.max(run);
    }
    seen
}

/// Raises the revision of a pool in `seen`, if this one is newer.
pub(crate) fn raise(seen: &mut Seen, pool: PoolId, revision: MapRevision) {
    let known = seen.pools.entry(pool).or_default();
    *known = (*known).max(revision);
}

/// The note about the cluster, stored under `NoteKey::Cluster`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClusterNote {
    /// The cluster that this OSD belongs to.
    pub cluster: ClusterId,
    /// All pools.
    pub pools: Vec<PoolNote>,
    /// The longest span of a lease that any run has given, in milliseconds; omitted if it is the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// When the last check of the store's metadata ended, or the first one was scheduled, in seconds since
    /// 1970; omitted if none was scheduled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata_checked_at: Option<u64>,
}

/// A pool without its entries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolNote {
    /// The rules of the pool.
    pub pool: Pool,
    /// The revision of the pool's map that was seen.
    pub revision: MapRevision,
}

impl ClusterNote {
    /// Keeps the noted state of each pool that this note's map lacks or has only in an older revision. So the
    /// map of a state store that went back in time does not erase the evidence.
    pub fn keep_newer(&mut self, noted: &BTreeMap<PoolId, PoolNote>) {
        let mut pools = noted.clone();
        for pool in std::mem::take(&mut self.pools) {
            let is_older =
                pools.get(&pool.pool.id).is_some_and(|noted| noted.revision > pool.revision);
            if !is_older {
                pools.insert(pool.pool.id, pool);
            }
        }
        self.pools = pools.into_values().collect();
    }

    /// Creates the note from a map.
    pub fn of(cluster: ClusterId, map: &ClusterMap, lease: Duration) -> ClusterNote {
        let pools = map.pools.values();
        let pools = pools
            .map(|known| PoolNote { pool: known.pool.clone(), revision: known.revision })
            .collect();
        let lease_ms = (lease > LEASE_DEFAULT).then_some(lease.as_millis());
        ClusterNote { cluster, pools, lease_ms, metadata_checked_at: None }
    }

    /// Encodes the note. Limits on pools keep its size far below the limit for a note.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data with text keys")
    }

    /// Decodes the bytes that [`ClusterNote::encode`] returned; the error says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<ClusterNote, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// Returns the longest span of a lease that any run has given.
    pub fn lease(&self) -> Duration {
        self.lease_ms.map_or(LEASE_DEFAULT, Duration::from_millis)
    }

    /// Returns the pools by id.
    pub fn pools_by_id(self) -> BTreeMap<PoolId, PoolNote> {
        self.pools.into_iter().map(|pool| (pool.pool.id, pool)).collect()
    }
}
