//! State of the core's contact with the monitor beyond the connection, and the messages it still has
//! to send.

use base::{SessionId, Time};
use cluster::monitor_link::MonitorLink;

use crate::link::{CONNECT_DELAY_MAX, CONNECT_DELAY_MIN};

/// The monitor as the core sees it.
pub(crate) struct MonitorContact {
    pub(crate) link: MonitorLink,
    /// When `Timer::Monitor` expires. Messages from the monitor do not postpone the timer: it expires
    /// at the old time and is set again.
    pub(crate) alarm: Option<Time>,
    /// Consecutive handshakes that failed because the monitor did not trust this client, or this
    /// client the monitor.
    pub(crate) untrusted_count: usize,
    /// After a gap in the map's revisions, a whole map was requested and has not arrived.
    pub(crate) resubscribed: bool,
    /// Whether the log already says that a monitor answers.
    pub(crate) is_told: bool,
}

impl MonitorContact {
    /// Requires: at least one address.
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

/// What the monitor must be sent about a session that the user has closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Farewell {
    pub(crate) session: SessionId,
    /// Whether a change by the session may still be in transit to an OSD.
    pub(crate) unanswered: bool,
    /// Number of the last attach request before the close: an answer to a later one shows that the
    /// monitor has received the close.
    pub(crate) last_ask: u64,
}
