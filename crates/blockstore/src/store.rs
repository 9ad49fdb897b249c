//! The store as a value.

use base::{BufferPool, PgId, PoolId, Time, Version};

use crate::{
    BlockKey, CommitMode, Effect, Event, Identity, NoteKey, RecoveryReport, Settings, Space,
};

/// One store.
pub struct Store {
    _pool: BufferPool,
}

impl Store {
    /// Begins to open the store on a device of `device_size` bytes: emits the first reads. Ends
    /// with [`Effect::Opened`] or [`Effect::Stopped`]; until then no request is accepted.
    pub fn open(
        _settings: Settings,
        pool: BufferPool,
        _device_size: u64,
        _effects: &mut Vec<Effect>,
    ) -> Store {
        Store { _pool: pool }
    }

    /// Takes one event.
    pub fn apply(&mut self, _now: Time, _event: Event, _effects: &mut Vec<Effect>) {}

    /// Writes the entries collected since the last call, as one device write. The owner calls it
    /// at the end of each turn of its loop.
    pub fn submit(&mut self, _effects: &mut Vec<Effect>) {}

    /// When the store wants a [`Event::Tick`]; may change with every event.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// The block's version, a tombstone's too; `ZERO` where it was never written.
    pub fn version_of(&self, _key: &BlockKey) -> Version {
        Version::ZERO
    }

    /// Whether the block is deleted and its tombstone is still here.
    pub fn is_tombstone(&self, _key: &BlockKey) -> bool {
        false
    }

    /// Blocks of the pool with `hash_first <= hash <= hash_last`, in order, from behind `after`:
    /// (key, version, whether it is a tombstone).
    pub fn blocks(
        &self,
        _pool: PoolId,
        _hash_first: u32,
        _hash_last: u32,
        _after: Option<BlockKey>,
    ) -> impl Iterator<Item = (BlockKey, Version, bool)> + '_ {
        std::iter::empty()
    }

    /// The highest version ever accepted for the PG.
    pub fn last_version(&self, _pg: PgId) -> Version {
        Version::ZERO
    }

    /// A note, durable or on its way.
    pub fn note(&self, _key: NoteKey) -> Option<&[u8]> {
        None
    }

    /// All notes in order.
    pub fn notes(&self) -> impl Iterator<Item = (NoteKey, &[u8])> + '_ {
        std::iter::empty()
    }

    /// Space for data.
    pub fn space(&self) -> Space {
        Space { size_bytes: 0, used_bytes: 0, free_bytes: 0, full: false }
    }

    /// Whether recovery found damage that may have cost this PG acknowledged writes.
    pub fn is_suspect(&self, _pg: PgId) -> bool {
        false
    }

    /// When a write is durable. Requires: opened.
    pub fn commit_mode(&self) -> CommitMode {
        CommitMode::Fsync
    }

    /// Who it is. Requires: opened.
    pub fn identity(&self) -> Identity {
        unreachable!("not opened")
    }

    /// What recovery found.
    pub fn recovery_report(&self) -> RecoveryReport {
        RecoveryReport::default()
    }

    /// Damaged units met since the start.
    pub fn damaged_units_count(&self) -> u64 {
        0
    }

    /// Whether writes wait for the journal or for space: take no more from clients until it ends.
    pub fn is_congested(&self) -> bool {
        false
    }
}
