//! A volume or object pool opened by the user: its attachment, its requests in flight, and its writes that are not durable.
//!
//! Invariants
//!   1. What is in flight is bounded, for the whole and for each PG (`windows`).
//!   2. `undurable` lists every PG with an acknowledged write that was not durable and that no sync
//!      has covered.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, PgId, Time};

use crate::Attached;
use crate::queue::Queue;
use crate::table::{PartKey, RequestKey};
use crate::unsynced::Unsynced;
use crate::windows::Windows;

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
    /// Requests that are not completely cut into parts.
    pub(crate) queue: Queue,
    pub(crate) request_count: usize,
    /// Number of parts in flight, and of parts of replays.
    pub(crate) part_count: usize,
    pub(crate) byte_count: u64,
    /// What is in flight, by PG, without replays.
    pub(crate) windows: Windows,
    /// When PGs are checked next for whether they answer.
    pub(crate) stall_check: Option<Time>,
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
    /// The syncs that the core began on its own, each of one PG, until they have ended.
    pub(crate) own_syncs: BTreeMap<PgId, RequestKey>,
    /// Whether this session has synced every PG of the image.
    pub(crate) synced_all: bool,
    /// Whether a change was abandoned without an answer: it may still reach the OSD.
    pub(crate) has_unanswered: bool,
    /// In an object pool: the number of the last mutation.
    pub(crate) last_number: u64,
    /// In an object pool: the mutations that have not ended, by hash and number.
    pub(crate) mutations: BTreeSet<(u32, u64)>,
    /// In an object pool: how many mutations of a PG were given up while they were sent, and have not ended.
    pub(crate) given_up: BTreeMap<PgId, usize>,
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
            queue: Queue::default(),
            request_count: 0,
            part_count: 0,
            byte_count: 0,
            windows: Windows::default(),
            stall_check: None,
            undurable: BTreeMap::new(),
            undurable_count: 0,
            unsynced: BTreeMap::new(),
            unsynced_bytes: 0,
            told_waiting: 0,
            held_reads: Vec::new(),
            own_syncs: BTreeMap::new(),
            synced_all: false,
            has_unanswered: false,
            last_number: 0,
            mutations: BTreeSet::new(),
            given_up: BTreeMap::new(),
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

    /// Whether a replay of this PG waits for space.
    pub(crate) fn waits_for_room(&self, pg: PgId) -> bool {
        let gate = self.unsynced.get(&pg).and_then(|unsynced| unsynced.gate);
        gate.is_some_and(|gate| gate.waits_for_room)
    }

    /// Returns the number of bytes that are kept of a PG.
    pub(crate) fn kept_bytes(&self, pg: PgId) -> u64 {
        self.unsynced.get(&pg).map_or(0, Unsynced::bytes)
    }

    /// Returns the PGs of which something is kept, and for which no sync of the core is under way.
    pub(crate) fn unsynced_pgs(&self) -> Vec<PgId> {
        let kept = self
            .unsynced
            .iter()
            .filter(|(pg, unsynced)| unsynced.bytes() > 0 && !self.own_syncs.contains_key(pg));
        kept.map(|(pg, _)| *pg).collect()
    }

    /// Returns the number of bytes that replays must write but have no space for.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let of_pg = |unsynced: &Unsynced| {
            let gate = unsynced.gate.filter(|gate| gate.waits_for_room)?;
            Some(unsynced.bytes_before(gate.epoch))
        };
        self.unsynced.values().filter_map(of_pg).sum()
    }
}
