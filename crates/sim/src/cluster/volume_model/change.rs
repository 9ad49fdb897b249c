//! Changes of a volume that its model keeps: those that are not answered yet, those that no flush covers, and
//! those of fenced sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::SessionId;

use crate::register::{Moment, Value};

/// Identifies an operation that changes a volume. Also the value that it writes, except for
/// discards.
pub type ChangeId = u64;

/// A change that was requested and has not been answered.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) by: SessionId,
    pub(super) value: Value,
    pub(super) from: Moment,
    pub(super) pieces: Range<u64>,
}

/// Lazy changes of a volume that no flush covers.
#[derive(Default)]
pub(super) struct Unsynced {
    pub(super) changes: BTreeMap<ChangeId, Unsafe>,
    /// By PG: the moment after which every member of the PG lost power.
    pub(super) power_lost: BTreeMap<u32, Moment>,
}

/// A change that is lost if its client goes away and its PG loses power.
pub(super) struct Unsafe {
    pub(super) owner: Owner,
    pub(super) pieces: Range<u64>,
    pub(super) from: Moment,
    /// When it was answered.
    pub(super) to: Moment,
    /// Since when its owner is gone.
    pub(super) left: Option<Moment>,
}

/// Identifies an attachment: its client, and its number at that client.
pub type Owner = (usize, u64);

/// The sessions of a volume.
#[derive(Default)]
pub(super) struct Fences {
    /// Each session, with the sessions that were fenced when it was opened.
    pub(super) sessions: BTreeMap<SessionId, BTreeSet<SessionId>>,
    /// Sessions, each with a PG that has answered it.
    pub(super) served: BTreeSet<(SessionId, u32)>,
    /// Since when a PG executes nothing for a session any more.
    pub(super) over: BTreeMap<(SessionId, u32), Moment>,
}
