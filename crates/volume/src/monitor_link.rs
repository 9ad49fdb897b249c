//! Where the connection to a monitor stands, and what is still to be said over it.

use base::{ConnectionId, SessionId, Time};
use cluster::heartbeat::Heartbeat;
use cluster::reconnect::Reconnect;

use crate::link::{CONNECT_DELAY_MAX, CONNECT_DELAY_MIN};

/// Where the connection to the monitors stands.
pub(crate) struct MonitorLink {
    pub(crate) state: MonitorState,
    pub(crate) reconnect: Reconnect,
    pub(crate) heartbeat: Heartbeat,
    /// When `Timer::Monitor` rings. A word of the monitor does not put it off: it rings and is set again.
    pub(crate) alarm: Option<Time>,
    /// Handshakes in a row that failed because a monitor did not trust this client, or the reverse.
    pub(crate) untrusted_count: usize,
    /// A first map was asked for after a gap and has not come.
    pub(crate) resubscribed: bool,
    /// The log says already that a monitor answers.
    pub(crate) is_told: bool,
}

/// Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MonitorState {
    /// Nothing needs a monitor yet.
    Idle,
    /// Waits until the next attempt is due.
    Waiting,
    /// Waits for the handshake, until the alarm.
    Connecting { connection: ConnectionId },
    /// Serves.
    Open { connection: ConnectionId },
}

impl MonitorLink {
    /// Requires: at least one address.
    pub(crate) fn new(monitors: &[String]) -> MonitorLink {
        MonitorLink {
            state: MonitorState::Idle,
            reconnect: Reconnect::new(monitors.to_vec(), CONNECT_DELAY_MIN, CONNECT_DELAY_MAX),
            heartbeat: Heartbeat::default(),
            alarm: None,
            untrusted_count: 0,
            resubscribed: false,
            is_told: false,
        }
    }

    /// Whether this is the connection to a monitor.
    pub(crate) fn is(&self, id: ConnectionId) -> bool {
        match self.state {
            MonitorState::Idle | MonitorState::Waiting => false,
            MonitorState::Connecting { connection } | MonitorState::Open { connection } => {
                connection == id
            }
        }
    }
}

/// What the monitor is told of a session that its user gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Farewell {
    pub(crate) session: SessionId,
    /// A change of it may still be on its way.
    pub(crate) unanswered: bool,
    /// The last ask for an attach before: an answer to a later one says that the monitor knows.
    pub(crate) last_ask: u64,
}
