//! A volume of the user: its attachment, what of it is under way, and what of it is not durable.
//!
//! Invariants
//!   1. What is under way stays within `PARTS_IN_FLIGHT_MAX` and `BYTES_IN_FLIGHT_MAX`; one part may
//!      go beyond the bytes.
//!   2. `undurable` names every PG that has an acknowledged write which no sync has covered.

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, PgId, Time};

use crate::Attached;
use crate::table::{PartKey, RequestKey};
use crate::unsynced::Unsynced;

/// Most parts of one volume under way at a time.
pub(crate) const PARTS_IN_FLIGHT_MAX: usize = 256;
/// Most bytes of one volume under way at a time; a single part may exceed that.
pub(crate) const BYTES_IN_FLIGHT_MAX: u64 = 32 << 20;

/// How long a closing volume waits for answers to sent requests.
pub(crate) const CLOSE_TIME_MAX: Duration = Duration::from_secs(2);
/// The same for a lazy volume, which also makes its writes durable.
pub(crate) const CLOSE_SYNC_TIME_MAX: Duration = Duration::from_secs(4);

/// A volume of the user.
pub(crate) struct Volume {
    pub(crate) name: String,
    pub(crate) read_only: bool,
    pub(crate) wants_lock: bool,
    pub(crate) attachment: Attachment,
    /// The user asked to detach it.
    pub(crate) closing: Option<Closing>,
    /// Timeout of the attach.
    pub(crate) open_deadline: Option<Time>,
    /// Requests that are not cut to the end, in the order they were asked.
    pub(crate) pending: VecDeque<RequestKey>,
    pub(crate) request_count: usize,
    pub(crate) part_count: usize,
    pub(crate) byte_count: u64,
    /// PGs with acknowledged writes that were not told durable, with the count of the last one.
    pub(crate) undurable: BTreeMap<PgId, u64>,
    /// Writes acknowledged and not told durable, ever.
    pub(crate) undurable_count: u64,
    /// Of a lazy volume: writes that its PGs acknowledged and did not make durable.
    pub(crate) unsynced: BTreeMap<PgId, Unsynced>,
    /// Bytes of these writes.
    pub(crate) unsynced_bytes: u64,
    /// Bytes that wait for room, as the monitor was last told.
    pub(crate) told_waiting: u64,
    /// Of a lazy volume: reads that wait for changes which were sent once without an answer.
    pub(crate) held_reads: Vec<PartKey>,
    /// A sync that this core itself asked for and that is not done.
    pub(crate) own_sync: Option<RequestKey>,
    /// Whether this session has synced every PG of the image.
    pub(crate) synced_all: bool,
    /// A change was given up without an answer: it may still be on its way.
    pub(crate) has_unanswered: bool,
}

/// Top to bottom is the order in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Attachment {
    /// Waits for the monitor's answer to this ask.
    Opening { ask: u64 },
    /// Serves.
    Open(Attached),
    /// The session is over.
    Ended,
}

/// A detach that is under way.
#[derive(Default)]
pub(crate) struct Closing {
    /// Until when answers are awaited.
    pub(crate) deadline: Option<Time>,
    /// It waits for durability for as long as the session lasts.
    pub(crate) is_patient: bool,
    /// It took too long: it waits for nothing more.
    pub(crate) has_given_up: bool,
}

impl Volume {
    /// A volume whose attach is asked for.
    pub(crate) fn opening(
        name: String,
        read_only: bool,
        wants_lock: bool,
        ask: u64,
        open_deadline: Option<Time>,
    ) -> Volume {
        Volume {
            name,
            read_only,
            wants_lock,
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
        }
    }

    /// How long it may take to close.
    pub(crate) fn close_time_max(&self) -> Duration {
        if self.is_lazy() { CLOSE_SYNC_TIME_MAX } else { CLOSE_TIME_MAX }
    }

    pub(crate) fn attached(&self) -> Option<&Attached> {
        match &self.attachment {
            Attachment::Open(attached) => Some(attached),
            Attachment::Opening { .. } | Attachment::Ended => None,
        }
    }

    /// Whether its changes may be answered before they are durable.
    pub(crate) fn is_lazy(&self) -> bool {
        self.attached().is_some_and(|attached| attached.lazy)
    }

    /// Whether a replay waits for room in its PG.
    pub(crate) fn waits_for_room(&self) -> bool {
        let mut gates = self.unsynced.values().filter_map(|unsynced| unsynced.gate);
        gates.any(|gate| gate.waits_for_room)
    }

    /// Bytes that replays have to write and find no room for.
    pub(crate) fn waiting_bytes(&self) -> u64 {
        let of_pg = |unsynced: &Unsynced| {
            let gate = unsynced.gate.filter(|gate| gate.waits_for_room)?;
            Some(unsynced.bytes_before(gate.epoch))
        };
        self.unsynced.values().filter_map(of_pg).sum()
    }

    /// Whether one more part of this weight may be under way.
    pub(crate) fn has_room(&self, weight: u64) -> bool {
        let fits = self.byte_count + weight <= BYTES_IN_FLIGHT_MAX;
        self.part_count < PARTS_IN_FLIGHT_MAX && (fits || self.part_count == 0)
    }
}
