//! The connection of an OSD or a client to a monitor: one at a time, and its stage.
//!
//! ```text
//!   Idle ── start ──▶ Down ── time ──▶ Connecting ── handshake ──▶ Open ── served ──▶ Open, nothing awaited
//!                      ▲                   │ timeout                 │ silence, timeout
//!                      └───────────────────┴─────────────────────────┘
//! ```
//!
//! I/O continues while there is no connection.
//!
//! Invariants
//!   1. At most one connection exists or is being made.
//!   2. After each loss another address is tried, after a delay that grows until a monitor serves.

use base::{ConnectionId, Duration, Time};

use crate::heartbeat::{Beat, Heartbeat};
use crate::reconnect::Reconnect;

/// The connection to a monitor.
pub struct MonitorLink {
    reconnect: Reconnect,
    stage: Stage,
    heartbeat: Heartbeat,
}

/// The stages of the connection, in the order in which they occur.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// No connection to a monitor is wanted.
    Idle,
    /// Waits until the next attempt is due.
    Down { until: Time },
    /// Waits for the handshake.
    Connecting { connection: ConnectionId, until: Time },
    /// Messages may be sent. The monitor must answer a request by `answer_by`; `None`: the monitor serves.
    Open { connection: ConnectionId, answer_by: Option<Time> },
}

/// What the owner must do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkStep {
    /// Connect to this address, and then call [`MonitorLink::connecting`].
    Connect {
        /// The address of a monitor.
        address: String,
        /// The time at which the attempt times out.
        until: Time,
    },
    /// Ask the monitor whether it is alive.
    Ask,
    /// Close this connection: it timed out.
    HangUp {
        /// The connection.
        connection: ConnectionId,
    },
}

impl MonitorLink {
    /// Returns an idle link. Requires: at least one address.
    pub fn new(addresses: Vec<String>, delay_min: Duration, delay_max: Duration) -> MonitorLink {
        MonitorLink {
            reconnect: Reconnect::new(addresses, delay_min, delay_max),
            stage: Stage::Idle,
            heartbeat: Heartbeat::default(),
        }
    }

    // ---- addresses

    /// Adopts the addresses of all monitors, as sent by a monitor.
    pub fn learn(&mut self, told: Vec<String>) {
        self.reconnect.learn(told);
    }

    /// Returns the addresses that a monitor sent last, if they differ from the list returned by the previous
    /// call.
    pub fn take_told(&mut self) -> Option<Vec<String>> {
        self.reconnect.take_told()
    }

    /// Returns all addresses, in the order in which they are tried.
    pub fn addresses(&self) -> &[String] {
        self.reconnect.addresses()
    }

    // ---- queries

    /// Whether no connection to a monitor is wanted.
    pub fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Whether a connection to a monitor is wanted and no monitor serves.
    pub fn is_seeking(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Open { answer_by: None, .. })
    }

    /// Returns the connection, if it exists or is being made.
    pub fn connection(&self) -> Option<ConnectionId> {
        match self.stage {
            Stage::Idle | Stage::Down { .. } => None,
            Stage::Connecting { connection, .. } | Stage::Open { connection, .. } => {
                Some(connection)
            }
        }
    }

    /// Returns the connection, if messages may be sent.
    pub fn open(&self) -> Option<ConnectionId> {
        match self.stage {
            Stage::Open { connection, .. } => Some(connection),
            _ => None,
        }
    }

    /// Returns the connection, if the monitor serves.
    pub fn serving(&self) -> Option<ConnectionId> {
        match self.stage {
            Stage::Open { connection, answer_by: None } => Some(connection),
            _ => None,
        }
    }

    /// Returns the time at which [`MonitorLink::step`] is due. Messages from the monitor postpone it.
    pub fn deadline(&self) -> Option<Time> {
        match self.stage {
            Stage::Idle => None,
            Stage::Down { until } | Stage::Connecting { until, .. } => Some(until),
            Stage::Open { answer_by, .. } => {
                let beat = self.heartbeat.due();
                Some(answer_by.map_or(beat, |until| until.min(beat)))
            }
        }
    }

    // ---- transitions

    /// Starts the link: the first attempt is due now. Requires: the link is idle.
    pub fn start(&mut self, now: Time) {
        assert!(self.is_idle());
        self.stage = Stage::Down { until: now };
    }

    /// Ends the link: no connection to a monitor is wanted any more.
    pub fn end(&mut self) {
        self.stage = Stage::Idle;
    }

    /// Returns what must be done now, if anything.
    pub fn step(&mut self, now: Time) -> Option<LinkStep> {
        match self.stage {
            Stage::Idle => None,
            Stage::Down { until } => (until <= now).then(|| {
                let (address, until) = self.reconnect.connect(now);
                LinkStep::Connect { address, until }
            }),
            Stage::Connecting { connection, until }
            | Stage::Open { connection, answer_by: Some(until) }
                if until <= now =>
            {
                Some(LinkStep::HangUp { connection })
            }
            Stage::Connecting { .. } => None,
            Stage::Open { connection, .. } => match self.heartbeat.beat(now)? {
                Beat::Ask => Some(LinkStep::Ask),
                Beat::Silent => Some(LinkStep::HangUp { connection }),
            },
        }
    }

    /// Records that a connection is being made. Requires: there is no connection.
    pub fn connecting(&mut self, connection: ConnectionId, until: Time) {
        assert!(self.connection().is_none());
        self.stage = Stage::Connecting { connection, until };
    }

    /// Records that the handshake succeeded. `answer_by`: the time by which the monitor must answer
    /// the next request; `None`: the monitor serves at once. Requires: the connection is being made.
    pub fn on_connected(&mut self, now: Time, answer_by: Option<Time>) {
        let Stage::Connecting { connection, .. } = self.stage else {
            unreachable!("only a connection that is being made is opened");
        };
        self.heartbeat.begin(now);
        self.stage = Stage::Open { connection, answer_by };
    }

    /// Waits for another answer until this time. Requires: the connection is open.
    pub fn await_answer(&mut self, until: Time) {
        let connection = self.open().expect("something was asked over it");
        self.stage = Stage::Open { connection, answer_by: Some(until) };
    }

    /// Records that a message from the monitor arrived.
    pub fn on_message(&mut self, now: Time) {
        self.heartbeat.word(now);
    }

    /// Records that the monitor serves: no answer is awaited any more. Requires: the connection is open.
    pub fn on_served(&mut self) {
        let connection = self.open().expect("it answered over it");
        self.reconnect.served();
        self.stage = Stage::Open { connection, answer_by: None };
    }

    /// Records that the connection was lost, or could not be made.
    pub fn on_lost(&mut self, now: Time) {
        self.stage = Stage::Down { until: self.reconnect.lost(now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: ConnectionId = ConnectionId::new(2);

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    /// Returns a link whose handshake succeeded at this time.
    fn connected(milliseconds: u64, answer_by: Option<Time>) -> MonitorLink {
        let delay = Duration::from_millis(50);
        let mut link = MonitorLink::new(vec!["a".into(), "b".into()], delay, delay);
        link.start(at(0));
        let Some(LinkStep::Connect { until, .. }) = link.step(at(0)) else { panic!("it is due") };
        link.connecting(ID, until);
        link.on_connected(at(milliseconds), answer_by);
        link
    }

    #[test]
    fn a_connection_attempt_that_takes_too_long_is_closed() {
        let delay = Duration::from_millis(50);
        let mut link = MonitorLink::new(vec!["a".into()], delay, delay);
        assert_eq!(link.step(at(0)), None);
        link.start(at(0));
        let Some(LinkStep::Connect { address, until }) = link.step(at(0)) else {
            panic!("it is due");
        };
        assert_eq!((address.as_str(), until), ("a", at(1_000)));
        link.connecting(ID, until);
        assert_eq!(link.step(at(999)), None);
        assert_eq!(link.step(at(1_000)), Some(LinkStep::HangUp { connection: ID }));
        link.on_lost(at(1_000));
        assert_eq!(link.deadline(), Some(at(1_050)));
    }

    #[test]
    fn a_monitor_that_does_not_answer_in_time_is_left() {
        let mut link = connected(0, Some(at(200)));
        assert_eq!((link.open(), link.serving()), (Some(ID), None));
        assert!(link.is_seeking());
        assert_eq!(link.step(at(200)), Some(LinkStep::HangUp { connection: ID }));
        link.on_served();
        assert_eq!((link.serving(), link.is_seeking()), (Some(ID), false));
        assert_eq!(link.step(at(201)), None);
    }

    #[test]
    fn a_serving_monitor_that_falls_silent_is_asked_and_then_left() {
        let mut link = connected(0, None);
        link.on_message(at(100));
        assert_eq!(link.deadline(), Some(at(600)));
        assert_eq!(link.step(at(600)), Some(LinkStep::Ask));
        assert_eq!(link.step(at(1_600)), Some(LinkStep::HangUp { connection: ID }));
        link.on_lost(at(1_600));
        let Some(LinkStep::Connect { address, .. }) = link.step(at(1_650)) else {
            panic!("it is due");
        };
        assert_eq!(address, "b");
    }
}
