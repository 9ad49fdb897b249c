//! The connection to one OSD: made when a part needs it, made again with a growing delay.
//!
//! Invariants
//!   1. There is at most one connection to an OSD at a time.
//!   2. Parts are in flight only on an open connection, in the order of their sequence.

use std::collections::VecDeque;

use base::{ConnectionId, Duration, Incarnation, Time};

use crate::part::PartKey;

/// First delay before connecting again.
pub(crate) const CONNECT_DELAY_MIN: Duration = Duration::from_millis(10);
/// Longest delay before connecting again.
pub(crate) const CONNECT_DELAY_MAX: Duration = Duration::from_secs(1);

/// One OSD as seen from here.
pub(crate) struct Link {
    pub(crate) state: LinkState,
    /// The next delay; back to the shortest with each reply.
    pub(crate) delay: Duration,
    /// Which of the OSD's addresses is tried next, modulo their number.
    pub(crate) address: usize,
    /// The revision of the OSD's entry in the map when it was last tried.
    pub(crate) revision: u64,
    /// Sent and not answered, by growing sequence.
    pub(crate) in_flight: VecDeque<InFlight>,
    /// To be sent when the connection stands.
    pub(crate) waiting: Vec<PartKey>,
}

/// Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
    /// Nobody needs it.
    Idle,
    /// Waits for this moment, or a change of the OSD's entry.
    Waiting { until: Time },
    /// Waits for the handshake.
    Connecting { connection: ConnectionId },
    /// Serves; to this run of the OSD (`ZERO`: it did not know it yet).
    Open { connection: ConnectionId, incarnation: Incarnation },
}

/// A part that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InFlight {
    pub(crate) sequence: u64,
    pub(crate) part: PartKey,
}

impl Link {
    /// Nobody needs it yet. It is tried at this address first, modulo their number.
    pub(crate) fn new(address: usize) -> Link {
        Link {
            state: LinkState::Idle,
            delay: CONNECT_DELAY_MIN,
            address,
            revision: 0,
            in_flight: VecDeque::new(),
            waiting: Vec::new(),
        }
    }

    /// Remembers what is sent. Requires: sequences grow.
    pub(crate) fn sent(&mut self, sequence: u64, part: PartKey) {
        assert!(matches!(self.state, LinkState::Open { .. }));
        assert!(self.in_flight.back().is_none_or(|last| last.sequence < sequence));
        self.in_flight.push_back(InFlight { sequence, part });
    }

    /// The part that was sent with this sequence.
    pub(crate) fn find(&self, sequence: u64) -> Option<PartKey> {
        let place = self.place(sequence)?;
        Some(self.in_flight[place].part)
    }

    /// Forgets what was sent with this sequence.
    pub(crate) fn forget(&mut self, sequence: u64) {
        let place = self.place(sequence).expect("only what is in flight is forgotten");
        self.in_flight.remove(place);
    }

    fn place(&self, sequence: u64) -> Option<usize> {
        self.in_flight.binary_search_by_key(&sequence, |sent| sent.sequence).ok()
    }

    /// The delay before the next try; each is twice the one before.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.delay = delay.doubled_up_to(CONNECT_DELAY_MAX);
        delay
    }
}
