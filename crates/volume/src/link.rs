//! The connection to one OSD: opened when a part needs it, reopened with a growing delay.
//!
//! Invariants
//!   1. There is at most one connection to an OSD at a time.
//!   2. Parts are in flight only on an open connection, in the order of their sequence numbers.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Index, IndexMut};

use base::{ConnectionId, Duration, Incarnation, OsdId, Time};

use crate::table::PartKey;

/// Minimum delay before reconnecting.
pub(crate) const CONNECT_DELAY_MIN: Duration = Duration::from_millis(10);
/// Maximum delay before reconnecting.
pub(crate) const CONNECT_DELAY_MAX: Duration = Duration::from_secs(1);

/// The connection to one OSD and the parts that use it.
pub(crate) struct Link {
    pub(crate) state: LinkState,
    /// The next delay before reconnecting; each reply resets it to the minimum.
    pub(crate) delay: Duration,
    /// Before this time no direct read opens the connection: the last one was lost, or could not be made.
    pub(crate) rests_until: Time,
    /// Index of the address to try next, modulo the number of addresses.
    pub(crate) address: usize,
    /// The revision of the OSD's entry in the map at the last attempt to connect.
    pub(crate) revision: u64,
    /// Parts sent but not answered, in ascending order of sequence.
    pub(crate) in_flight: VecDeque<InFlight>,
    /// Parts to send once the connection is open.
    pub(crate) waiting: Vec<PartKey>,
}

/// The states of a link, in chronological order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LinkState {
    /// No part needs the link.
    Idle,
    /// Waits until this time, or until the OSD's entry in the map changes.
    Waiting { until: Time },
    /// Waits for the handshake.
    Connecting { connection: ConnectionId },
    /// Connected to this incarnation of the OSD (`ZERO`: the OSD had no incarnation yet).
    Open { connection: ConnectionId, incarnation: Incarnation },
}

/// A part that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InFlight {
    pub(crate) sequence: u64,
    pub(crate) part: PartKey,
}

impl Link {
    /// Creates an idle link, which first tries the address with this index, modulo the number of addresses.
    pub(crate) fn new(address: usize) -> Link {
        Link {
            state: LinkState::Idle,
            delay: CONNECT_DELAY_MIN,
            rests_until: Time::ZERO,
            address,
            revision: 0,
            in_flight: VecDeque::new(),
            waiting: Vec::new(),
        }
    }

    /// Records a part as sent. Requires: sequence numbers grow.
    pub(crate) fn sent(&mut self, sequence: u64, part: PartKey) {
        assert!(matches!(self.state, LinkState::Open { .. }));
        assert!(self.in_flight.back().is_none_or(|last| last.sequence < sequence));
        self.in_flight.push_back(InFlight { sequence, part });
    }

    /// Returns the part that was sent with this sequence number.
    pub(crate) fn find(&self, sequence: u64) -> Option<PartKey> {
        let place = self.place(sequence)?;
        Some(self.in_flight[place].part)
    }

    /// Removes the part that was sent with this sequence number.
    pub(crate) fn forget(&mut self, sequence: u64) {
        let place = self.place(sequence).expect("only what is in flight is forgotten");
        self.in_flight.remove(place);
    }

    fn place(&self, sequence: u64) -> Option<usize> {
        self.in_flight.binary_search_by_key(&sequence, |sent| sent.sequence).ok()
    }

    /// Returns the delay before the next attempt, and doubles the delay for the attempt after it.
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
    /// Links that may no longer have waiting parts; checked before `apply` returns.
    idle: Vec<OsdId>,
}

impl Links {
    /// Returns the link to an OSD; creates it if necessary.
    pub(crate) fn to(&mut self, osd: OsdId) -> &mut Link {
        // The first address depends on the OSD's id, so that connections spread over the networks.
        self.by_osd.entry(osd).or_insert_with(|| Link::new(osd.get() as usize))
    }

    /// Returns all OSDs that have a link.
    pub(crate) fn osds(&self) -> Vec<OsdId> {
        self.by_osd.keys().copied().collect()
    }

    /// Returns the OSD at the other end of a connection; `None` for abandoned connections, whose late
    /// replies are ignored.
    pub(crate) fn osd_of(&self, connection: ConnectionId) -> Option<OsdId> {
        self.by_connection.get(&connection).copied()
    }

    /// Records that a connection to the OSD is being opened.
    pub(crate) fn connecting(&mut self, osd: OsdId, connection: ConnectionId) {
        self.by_connection.insert(connection, osd);
        self[osd].state = LinkState::Connecting { connection };
    }

    /// Removes a connection that is closed or abandoned.
    pub(crate) fn forget(&mut self, connection: ConnectionId) -> Option<OsdId> {
        self.by_connection.remove(&connection)
    }

    /// Marks a link that may no longer have waiting parts: it is checked before `apply` returns.
    pub(crate) fn may_rest(&mut self, osd: OsdId) {
        self.idle.push(osd);
    }

    /// Marks all links in the same way as [`Links::may_rest`].
    pub(crate) fn all_may_rest(&mut self) {
        self.idle.extend(self.by_osd.keys());
    }

    /// Removes and returns the next link that [`Links::may_rest`] marked.
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
