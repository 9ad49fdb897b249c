//! The state of the contact with the monitor beyond the connection itself, and the messages that must still
//! be sent.

use base::{SessionId, Time};
use cluster::monitor_link::MonitorLink;

use crate::link::{CONNECT_DELAY_MAX, CONNECT_DELAY_MIN};

/// The state of the contact with the monitor.
pub(crate) struct MonitorContact {
    pub(crate) link: MonitorLink,
    /// The time at which `Timer::Monitor` expires. Messages from the monitor do not postpone the timer: it
    /// expires at the old time and is then armed again.
    pub(crate) alarm: Option<Time>,
    /// Number of consecutive handshakes that failed because the monitor did not trust this client, or the
    /// client did not trust the monitor.
    pub(crate) untrusted_count: usize,
    /// Whether a whole map was requested after a gap in the map's revisions, and has not arrived.
    pub(crate) resubscribed: bool,
    /// Whether it has been logged that a monitor answers.
    pub(crate) is_told: bool,
}

impl MonitorContact {
    /// Creates the state of a contact without a connection. Requires: at least one address.
    pub(crate) fn new(monitors: &[String]) -> MonitorContact {
        MonitorContact {
            link: MonitorLink::new(monitors.to_vec(), CONNECT_DELAY_MIN, CONNECT_DELAY_MAX),
            alarm: None,
            untrusted_count: 0,
            resubscribed: false,
            is_told: false,
        }
    }
}

/// The message that a monitor must receive about a session that the user has closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Farewell {
    pub(crate) session: SessionId,
    /// Whether a change by the session may still be in flight to an OSD.
    pub(crate) unanswered: bool,
    /// Number of the last attach request before the close: an answer to a later one shows that the
    /// monitor has received the close.
    pub(crate) last_ask: u64,
}
