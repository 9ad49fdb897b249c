//! Changes of a volume that its model keeps: unanswered changes, changes that no flush covers, and changes of
//! fenced sessions.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::{SessionId, StripeIndex};

use crate::register::{Moment, Value};

/// Identifies an operation that changes a volume. It is also the value that the operation writes,
/// unless that is a discard.
pub type ChangeId = u64;

/// An unanswered change.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) by: SessionId,
    pub(super) value: Value,
    pub(super) from: Moment,
    pub(super) pieces: Range<u64>,
    /// Its client was told that the outcome is unknown.
    pub(super) is_unknown: bool,
    /// Registers in which a later change of its session took effect: it cannot take effect there any more.
    pub(super) over_in: BTreeSet<u64>,
    /// Registers in which a PG has acknowledged it, whether its client learned it or not.
    pub(super) done_in: BTreeSet<u64>,
}

/// A write of whole units, or a discard, that a client sends.
#[derive(Clone, Debug)]
pub struct Sent {
    pub stripe: StripeIndex,
    /// Its offset and length in bytes, within the stripe.
    pub range: (u32, u32),
    /// The first piece that it writes; `None`: it is a discard.
    pub first_piece: Option<Vec<u8>>,
}

/// Lazy changes of a volume that are not covered by a flush.
#[derive(Default)]
pub(super) struct Unsynced {
    pub(super) changes: BTreeMap<ChangeId, Unsafe>,
    /// By PG: a moment since which every member of the PG has lost power.
    pub(super) power_lost: BTreeMap<u32, Moment>,
}

/// A change that is lost if its client goes away and all members of its PG lose power.
pub(super) struct Unsafe {
    pub(super) owner: Owner,
    pub(super) pieces: Range<u64>,
    pub(super) from: Moment,
    /// When the change was acknowledged.
    pub(super) to: Moment,
    /// When its owner went away, if it did.
    pub(super) left: Option<Moment>,
}

/// Identifies an attachment: its client, and its number at that client.
pub type Owner = (usize, u64);

/// The sessions of a volume.
#[derive(Default)]
pub(super) struct Fences {
    /// Each session, with the sessions that had been fenced when it was opened.
    pub(super) sessions: BTreeMap<SessionId, BTreeSet<SessionId>>,
    /// Pairs of a session and a PG that has served it.
    pub(super) served: BTreeSet<(SessionId, u32)>,
    /// The moment from which a PG no longer executes requests of a session.
    pub(super) over: BTreeMap<(SessionId, u32), Moment>,
}
