//! A volume or object pool opened by the user: its attachment, its requests in flight, and its writes that are not durable.
//!
//! Invariants
//!   1. The parts in flight stay within `PARTS_IN_FLIGHT_MAX` and `BYTES_IN_FLIGHT_MAX`; a single part may
//!      exceed the limit of bytes.
//!   2. `undurable` lists every PG with an acknowledged write that was not durable and that no sync
//!      has covered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Duration, PgId, Time};

use crate::Attached;
use crate::table::{PartKey, RequestKey};
use crate::unsynced::Unsynced;

/// Maximum number of parts of one volume in flight at a time.
pub(crate) const PARTS_IN_FLIGHT_MAX: usize = 256;
/// Maximum number of bytes of one volume in flight at a time; a single part may exceed the limit.
pub(crate) const BYTES_IN_FLIGHT_MAX: u64 = 32 << 20;

/// How long a closing volume waits for answers to sent requests.
pub(crate) const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a closing lazy volume waits: longer, because it must also make its writes durable.
pub(crate) const CLOSE_SYNC_TIME_MAX: Duration = Duration::from_secs(4);

/// A volume that the user has opened.
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) wants: Wants,
    pub(crate) attachment: Attachment,
    /// The detach that is under way; set once the user has requested it.
    pub(crate) closing: Option<Closing>,
    /// When the attach times out.
    pub(crate) open_deadline: Option<Time>,
    /// Requests that are not completely cut into parts, in the order they arrived.
    pub(crate) pending: VecDeque<RequestKey>,
    pub(crate) request_count: usize,
    pub(crate) part_count: usize,
    pub(crate) byte_count: u64,
    /// PGs with acknowledged writes that were not durable, with the number of the last one (see
    /// `undurable_count`).
    pub(crate) undurable: BTreeMap<PgId, u64>,
    /// Number of writes ever acknowledged without being durable.
    pub(crate) undurable_count: u64,
    /// In a lazy volume: writes that its PGs acknowledged but did not make durable.
    pub(crate) unsynced: BTreeMap<PgId, Unsynced>,
    /// Bytes of the writes in `unsynced`.
    pub(crate) unsynced_bytes: u64,
    /// Bytes that wait for space, as last reported to the monitor.
    pub(crate) told_waiting: u64,
    /// In a lazy volume: reads that wait because an overlapping change was sent before them and received no
    /// answer.
    pub(crate) held_reads: Vec<PartKey>,
    /// The sync that the core began on its own, until the sync has ended.
    pub(crate) own_sync: Option<RequestKey>,
    /// Whether this session has synced every PG of the image.
    pub(crate) synced_all: bool,
    /// Whether a change was abandoned without an answer: it may still reach the OSD.
    pub(crate) has_unanswered: bool,
    /// In an object pool: the number of the last mutation.
    pub(crate) last_number: u64,
    /// In an object pool: the mutations that have not ended, by hash and number.
    pub(crate) mutations: BTreeSet<(u32, u64)>,
}

/// What the user wants to attach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wants {
    /// A volume.
    Volume { read_only: bool, lock: bool },
    /// An object pool.
    Pool,
}

/// The states of an attachment, in chronological order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Attachment {
    /// Waits for the monitor's answer to request number `ask`.
    Opening { ask: u64 },
    /// Attached.
    Open(Attached),
    /// The session is over.
    Ended,
}

/// A detach that is under way.
#[derive(Default)]
pub(crate) struct Closing {
    /// When to stop waiting for answers.
    pub(crate) deadline: Option<Time>,
    /// Whether to wait for durability for as long as the session lasts.
    pub(crate) is_patient: bool,
    /// Whether the deadline has passed: nothing more is awaited.
    pub(crate) has_given_up: bool,
}

impl Volume {
    /// Creates a volume whose attach is being requested.
    pub(crate) fn opening(
        name: String,
        wants: Wants,
        ask: u64,
        open_deadline: Option<Time>,
    ) -> Volume {
        Volume {
            name,
            wants,
            attachment: Attachment::Opening { ask },
            closing: None,
            open_deadline,
            pending: VecDeque::new(),
            request_count: 0,
            part_count: 0,
            byte_count: 0,
            undurable: BTreeMap::new(),
            undurable_count: 0,
            unsynced: BTreeMap::new(),
            unsynced_bytes: 0,
            told_waiting: 0,
            held_reads: Vec::new(),
            own_sync: None,
            synced_all: false,
            has_unanswered: false,
            last_number: 0,
            mutations: BTreeSet::new(),
        }
    }

    /// Whether the user may change nothing.
    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.wants, Wants::Volume { read_only: true, .. })
    }

    /// Returns the lowest number of a mutation of these hashes that has not ended. Requires: there is one.
    pub(crate) fn lowest_number(&self, (first, last): (u32, u32)) -> u64 {
        let there = self.mutations.range((first, 0)..=(last, u64::MAX));
        there.map(|(_, number)| *number).min().expect("at least the one that is sent")
    }

    /// Returns how long the volume may take to close.
    pub(crate) fn close_time_max(&self) -> Duration {
        if self.is_lazy() { CLOSE_SYNC_TIME_MAX } else { CLOSE_TIME_MAX }
    }

    pub(crate) fn attached(&self) -> Option<&Attached> {
        match &self.attachment {
            Attachment::Open(attached) => Some(attached),
            Attachment::Opening { .. } | Attachment::Ended => None,
        }
    }

    /// Whether the volume's changes may be acknowledged before they are durable.
    pub(crate) fn is_lazy(&self) -> bool {
        self.attached().is_some_and(|attached| attached.lazy)
    }

    /// Whether a replay waits for space in its PG.
    pub(crate) fn waits_for_room(&self) -> bool {
        let mut gates = self.unsynced.values().filter_map(|unsynced| unsynced.gate);
        gates.any(|gate| gate.waits_for_room)
    }

    /// Returns the number of bytes that replays must write but have no space for.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let of_pg = |unsynced: &Unsynced| {
            let gate = unsynced.gate.filter(|gate| gate.waits_for_room)?;
            Some(unsynced.bytes_before(gate.epoch))
        };
        self.unsynced.values().filter_map(of_pg).sum()
    }

    /// Whether one more part of this weight may be sent.
    pub(crate) fn has_room(&self, weight: u64) -> bool {
        let fits = self.byte_count + weight <= BYTES_IN_FLIGHT_MAX;
        self.part_count < PARTS_IN_FLIGHT_MAX && (fits || self.part_count == 0)
    }
}
