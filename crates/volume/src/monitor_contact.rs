//! What the core knows of its monitor beside the connection, and what it has still to say.

use base::{SessionId, Time};
use cluster::monitor_link::MonitorLink;

use crate::link::{CONNECT_DELAY_MAX, CONNECT_DELAY_MIN};

/// The monitor as the core sees it.
pub(crate) struct MonitorContact {
    pub(crate) link: MonitorLink,
    /// When `Timer::Monitor` rings. A message of the monitor does not put it off: it rings and is set
    /// again.
    pub(crate) alarm: Option<Time>,
    /// Handshakes in a row that failed because a monitor did not trust this client, or the reverse.
    pub(crate) untrusted_count: usize,
    /// A first map was asked for after a gap and has not come.
    pub(crate) resubscribed: bool,
    /// The log says already that a monitor answers.
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

/// What the monitor is told of a session that its user gave back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Farewell {
    pub(crate) session: SessionId,
    /// A change of it may still be on its way.
    pub(crate) unanswered: bool,
    /// The last ask for an attach before: an answer to a later one says that the monitor knows.
    pub(crate) last_ask: u64,
}
