//! Changes of a volume that its model keeps: those without an answer, those that no flush covers, and those of fenced
//! sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::SessionId;

use crate::register::{Moment, Value};

/// Names an operation that changes a volume; its value, but for discards.
pub type ChangeId = u64;

/// A change that was asked and has no answer.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) by: SessionId,
    pub(super) value: Value,
    pub(super) from: Moment,
    pub(super) pieces: Range<u64>,
}

/// What was asked of a volume lazily, and no flush covers.
#[derive(Default)]
pub(super) struct Unsynced {
    pub(super) changes: BTreeMap<ChangeId, Unsafe>,
    /// By PG: every member of it lost power after that moment.
    pub(super) power_lost: BTreeMap<u32, Moment>,
}

/// A change that is lost if its client and the power of its PG go.
pub(super) struct Unsafe {
    pub(super) owner: Owner,
    pub(super) pieces: Range<u64>,
    pub(super) from: Moment,
    /// When it was answered.
    pub(super) to: Moment,
    /// Since when its owner is gone.
    pub(super) left: Option<Moment>,
}

/// Names an attachment: its client, and its number there.
pub type Owner = (usize, u64);

/// The sessions of a volume.
#[derive(Default)]
pub(super) struct Fences {
    /// Each with those that were fenced when it was opened, until a PG has answered it.
    pub(super) sessions: BTreeMap<SessionId, BTreeSet<SessionId>>,
    /// PGs that have answered a session.
    pub(super) served: BTreeSet<(SessionId, u32)>,
    /// Since when a PG does nothing of a session any more.
    pub(super) over: BTreeMap<(SessionId, u32), Moment>,
}
