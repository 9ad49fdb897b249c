//! The connection to one OSD: made when a part needs it, made again with a growing delay.
//!
//! Invariants
//!   1. There is at most one connection to an OSD at a time.
//!   2. Parts are in flight only on an open connection, in the order of their sequence.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};

use base::{ConnectionId, Duration, Incarnation, OsdId, Time};

use crate::table::PartKey;

/// First delay before connecting again.
pub(crate) const CONNECT_DELAY_MIN: Duration = Duration::from_millis(10);
/// Longest delay before connecting again.
pub(crate) const CONNECT_DELAY_MAX: Duration = Duration::from_secs(1);

/// One OSD as seen from here.
pub(crate) struct Link {
    pub(crate) state: LinkState,
    /// The next delay; back to the shortest with each reply.
    pub(crate) delay: Duration,
    /// Index of the address that is tried next, modulo the number of addresses.
    pub(crate) address: usize,
    /// The revision of the OSD's entry in the map when it was last tried.
    pub(crate) revision: u64,
    /// Sent and not answered, by growing sequence.
    pub(crate) in_flight: VecDeque<InFlight>,
    /// Parts to be sent once the connection is up.
    pub(crate) waiting: Vec<PartKey>,
}

/// Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
    /// No part needs it.
    Idle,
    /// Waits for this moment, or a change of the OSD's entry.
    Waiting { until: Time },
    /// Waits for the handshake.
    Connecting { connection: ConnectionId },
    /// Up, to this run of the OSD (`ZERO`: the OSD did not know its run yet).
    Open { connection: ConnectionId, incarnation: Incarnation },
}

/// A part that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InFlight {
    pub(crate) sequence: u64,
    pub(crate) part: PartKey,
}

impl Link {
    /// A link that is not needed yet. Its first attempt uses this address, modulo their number.
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

/// The connections to all OSDs.
#[derive(Default)]
pub(crate) struct Links {
    by_osd: BTreeMap<OsdId, Link>,
    by_connection: BTreeMap<ConnectionId, OsdId>,
    /// Links that nobody may wait for any more.
    idle: Vec<OsdId>,
}

impl Links {
    /// The link to an OSD, made if there is none.
    pub(crate) fn to(&mut self, osd: OsdId) -> &mut Link {
        // OSDs that have several addresses are reached over one network or another.
        self.by_osd.entry(osd).or_insert_with(|| Link::new(osd.get() as usize))
    }

    /// All OSDs that a part went to.
    pub(crate) fn osds(&self) -> Vec<OsdId> {
        self.by_osd.keys().copied().collect()
    }

    /// The OSD at the end of a connection. Connections that were left have none: their late replies
    /// count for nothing.
    pub(crate) fn osd_of(&self, connection: ConnectionId) -> Option<OsdId> {
        self.by_connection.get(&connection).copied()
    }

    /// A connection to the OSD is being made.
    pub(crate) fn connecting(&mut self, osd: OsdId, connection: ConnectionId) {
        self.by_connection.insert(connection, osd);
        self[osd].state = LinkState::Connecting { connection };
    }

    /// A connection is gone, or left.
    pub(crate) fn forget(&mut self, connection: ConnectionId) -> Option<OsdId> {
        self.by_connection.remove(&connection)
    }

    /// Nobody may wait for this link any more: it is looked at before `apply` returns.
    pub(crate) fn may_rest(&mut self, osd: OsdId) {
        self.idle.push(osd);
    }

    /// Nobody may wait for any link.
    pub(crate) fn all_may_rest(&mut self) {
        self.idle.extend(self.by_osd.keys());
    }

    /// A link that nobody may wait for.
    pub(crate) fn pop_idle(&mut self) -> Option<OsdId> {
        self.idle.pop()
    }
}

impl Index<OsdId> for Links {
    type Output = Link;

    fn index(&self, osd: OsdId) -> &Link {
        self.by_osd.get(&osd).expect("made when a part came")
    }
}

impl IndexMut<OsdId> for Links {
    fn index_mut(&mut self, osd: OsdId) -> &mut Link {
        self.by_osd.get_mut(&osd).expect("made when a part came")
    }
}
