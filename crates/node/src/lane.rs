//! One connection to another OSD, which this OSD opens and keeps open.
//!
//! After each failure the next address is tried: at once if the connection had been up for a while,
//! otherwise after a delay that doubles up to a maximum.

use base::{ConnectionId, Duration, Time};

/// Minimum and maximum delay before the next attempt to connect.
const DELAY_MIN: Duration = Duration::from_millis(20);
const DELAY_MAX: Duration = Duration::from_secs(1);
/// Timeout for the connection and its handshake; after it the next address is tried.
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// If a connection was up for less than this, the next attempt is delayed: the peer probably closed it on
/// purpose.
const UP_MIN: Duration = Duration::from_secs(1);

/// A connection that is up, being made, or waiting to be made.
pub struct Lane {
    stage: Stage,
    /// Index of the next address to try, or of the current connection's address.
    address_next: usize,
    /// Number of consecutive attempts that were refused because nothing listened at the address.
    refusal_count: usize,
    delay: Duration,
}

/// The stages of a lane, in the order in which they occur.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Waits until the next attempt is due.
    Down { until: Time },
    /// Waits for the handshake.
    Connecting { connection: ConnectionId, until: Time },
    /// The connection is up: messages may be sent.
    Up { connection: ConnectionId, since: Time },
}

impl Lane {
    /// Creates a lane whose first attempt is due now. `address_first` is taken modulo the number of
    /// addresses.
    pub fn new(now: Time, address_first: usize) -> Lane {
        let stage = Stage::Down { until: now };
        Lane { stage, address_next: address_first, refusal_count: 0, delay: DELAY_MIN }
    }

    /// Returns the connection, if it is up.
    pub fn up(&self) -> Option<ConnectionId> {
        match self.stage {
            Stage::Up { connection, .. } => Some(connection),
            Stage::Down { .. } | Stage::Connecting { .. } => None,
        }
    }

    /// Returns the connection, if it is up or being made.
    pub fn connection(&self) -> Option<ConnectionId> {
        match self.stage {
            Stage::Up { connection, .. } | Stage::Connecting { connection, .. } => Some(connection),
            Stage::Down { .. } => None,
        }
    }

    /// Returns whether both lanes use the same address although the peer has several.
    pub fn is_beside(&self, other: &Lane, address_count: usize) -> bool {
        address_count > 1 && self.address_next % address_count == other.address_next % address_count
    }

    /// Returns when the lane needs attention if no event comes first.
    pub fn deadline(&self) -> Option<Time> {
        match self.stage {
            Stage::Down { until } | Stage::Connecting { until, .. } => Some(until),
            Stage::Up { .. } => None,
        }
    }

    /// Returns whether an attempt is due.
    pub fn is_due(&self, now: Time) -> bool {
        matches!(self.stage, Stage::Down { until } if until <= now)
    }

    /// Returns whether the attempt under way has timed out.
    pub fn is_late(&self, now: Time) -> bool {
        matches!(self.stage, Stage::Connecting { until, .. } if until <= now)
    }

    /// Returns whether all `address_count` addresses refused the connection in a row.
    pub fn is_refused(&self, address_count: usize) -> bool {
        self.refusal_count >= address_count.max(1)
    }

    /// Begins a connection and returns the index of its address. Requires: an attempt is due, and there
    /// is an address.
    pub fn connect(&mut self, now: Time, connection: ConnectionId, address_count: usize) -> usize {
        assert!(self.is_due(now));
        self.stage = Stage::Connecting { connection, until: now + CONNECT_MAX };
        self.address_next % address_count
    }

    /// Handles a completed handshake with the expected peer.
    pub fn on_connected(&mut self, now: Time) {
        let Stage::Connecting { connection, .. } = self.stage else {
            unreachable!("only a connection that is being made is opened");
        };
        self.refusal_count = 0;
        self.stage = Stage::Up { connection, since: now };
    }

    /// Handles the loss of the connection. `refused`: nothing listens at its address.
    pub fn on_lost(&mut self, now: Time, refused: bool, address_count: usize) {
        self.address_next = (self.address_next + 1) % address_count.max(1);
        self.refusal_count = if refused { self.refusal_count + 1 } else { 0 };
        let was_up = match self.stage {
            Stage::Up { since, .. } => now.since(since) >= UP_MIN,
            Stage::Down { .. } | Stage::Connecting { .. } => false,
        };
        let has_another = refused && self.refusal_count < address_count;
        if was_up {
            self.delay = DELAY_MIN;
        }
        if was_up || has_another {
            self.stage = Stage::Down { until: now };
            return;
        }
        self.stage = Stage::Down { until: now + self.delay };
        self.delay = self.delay.doubled_up_to(DELAY_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ConnectionId = ConnectionId::new(2);

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_lost_connection_is_retried_at_once_and_then_after_growing_delays() {
        let mut lane = Lane::new(at(0), 0);
        lane.connect(at(0), ID, 1);
        lane.on_connected(at(1));
        assert_eq!(lane.up(), Some(ID));
        lane.on_lost(at(5_000), false, 1);
        assert_eq!(lane.deadline(), Some(at(5_000)));
        assert!(!lane.is_refused(1), "it was reset, not refused");
        let mut now = 5_000;
        let mut waits = Vec::new();
        for _ in 0..8 {
            lane.connect(at(now), ID, 1);
            lane.on_lost(at(now), true, 1);
            assert!(lane.is_refused(1));
            let until = lane.deadline().unwrap();
            waits.push(until.since(at(now)).as_millis());
            now += waits.last().unwrap();
        }
        assert_eq!(waits, [20, 40, 80, 160, 320, 640, 1_000, 1_000]);
    }

    #[test]
    fn all_addresses_are_tried_at_once_before_a_peer_counts_as_refused() {
        let mut lane = Lane::new(at(0), 0);
        let mut indexes = Vec::new();
        for _ in 0..3 {
            assert!(!lane.is_refused(3));
            indexes.push(lane.connect(at(0), ID, 3));
            lane.on_lost(at(0), true, 3);
        }
        assert_eq!(indexes, [0, 1, 2]);
        assert!(lane.is_refused(3));
        assert!(!lane.is_due(at(0)));
    }

    #[test]
    fn a_connection_closed_right_after_the_handshake_is_retried_after_a_delay() {
        let mut lane = Lane::new(at(0), 0);
        lane.connect(at(0), ID, 1);
        lane.on_connected(at(0));
        lane.on_lost(at(10), false, 1);
        assert!(!lane.is_due(at(10)));
        assert!(lane.is_due(at(30)));
    }

    #[test]
    fn a_connection_attempt_times_out_after_a_second() {
        let mut lane = Lane::new(at(0), 0);
        lane.connect(at(0), ID, 1);
        assert!(!lane.is_late(at(999)));
        assert!(lane.is_late(at(1_000)));
        lane.on_connected(at(1_000));
        assert!(!lane.is_late(at(9_000)));
    }
}
