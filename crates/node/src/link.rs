//! The connection to a monitor: one at a time, and how far it has come.
//!
//! While the link is down I/O goes on.

use base::{ConnectionId, Duration, Time};
use cluster::heartbeat::{Beat, Heartbeat};
use cluster::reconnect::Reconnect;

/// The link and how far it has come.
pub struct Link {
    reconnect: Reconnect,
    pub stage: LinkStage,
    heartbeat: Heartbeat,
}

/// How far a link has come. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkStage {
    /// The store is not open yet, or this OSD is stopping.
    Idle,
    /// Waits until the next attempt is due.
    Down { until: Time },
    /// Waits for the handshake.
    Connecting { connection: ConnectionId, until: Time },
    /// Waits for the answer to the boot.
    Booting { connection: ConnectionId, until: Time },
    /// The monitor knows this run.
    Joined { connection: ConnectionId },
}

/// What a link asks for when its time has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkStep {
    /// Connect to this address, by [`Link::connecting`].
    Connect { address: String, until: Time },
    /// Ask the monitor for a sign of life.
    Ask,
    /// Close this connection: it timed out.
    HangUp { connection: ConnectionId },
}

impl Link {
    /// Requires: at least one address.
    pub fn new(addresses: Vec<String>, delay_min: Duration, delay_max: Duration) -> Link {
        Link {
            reconnect: Reconnect::new(addresses, delay_min, delay_max),
            stage: LinkStage::Idle,
            heartbeat: Heartbeat::default(),
        }
    }

    /// Where monitors listen, as one of them said.
    pub fn learn(&mut self, told: Vec<String>) {
        self.reconnect.learn(told);
    }

    /// What was told, if that is another list than the one taken before.
    pub fn take_told(&mut self) -> Option<Vec<String>> {
        self.reconnect.take_told()
    }

    /// All addresses, in the order in which they are tried.
    pub fn addresses(&self) -> &[String] {
        self.reconnect.addresses()
    }

    /// Whether this OSD looks for a monitor.
    pub fn is_seeking(&self) -> bool {
        !matches!(self.stage, LinkStage::Idle | LinkStage::Joined { .. })
    }

    /// The connection, if there is one or one is being made.
    pub fn connection(&self) -> Option<ConnectionId> {
        match self.stage {
            LinkStage::Idle | LinkStage::Down { .. } => None,
            LinkStage::Connecting { connection, .. }
            | LinkStage::Booting { connection, .. }
            | LinkStage::Joined { connection } => Some(connection),
        }
    }

    /// The connection, if something can be said over it.
    pub fn open(&self) -> Option<ConnectionId> {
        match self.stage {
            LinkStage::Booting { connection, .. } | LinkStage::Joined { connection } => {
                Some(connection)
            }
            _ => None,
        }
    }

    /// The connection, if the monitor knows this run.
    pub fn joined(&self) -> Option<ConnectionId> {
        match self.stage {
            LinkStage::Joined { connection } => Some(connection),
            _ => None,
        }
    }

    /// When something is to be done if nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        match self.stage {
            LinkStage::Idle => None,
            LinkStage::Down { until } | LinkStage::Connecting { until, .. } => Some(until),
            LinkStage::Booting { until, .. } => Some(until.min(self.heartbeat.due())),
            LinkStage::Joined { .. } => Some(self.heartbeat.due()),
        }
    }

    /// What is to be done now.
    pub fn step(&mut self, now: Time) -> Option<LinkStep> {
        match self.stage {
            LinkStage::Down { until } if until <= now => {
                let (address, until) = self.reconnect.connect(now);
                Some(LinkStep::Connect { address, until })
            }
            LinkStage::Connecting { connection, until }
            | LinkStage::Booting { connection, until }
                if until <= now =>
            {
                Some(LinkStep::HangUp { connection })
            }
            LinkStage::Booting { connection, .. } | LinkStage::Joined { connection } => {
                match self.heartbeat.beat(now)? {
                    Beat::Ask => Some(LinkStep::Ask),
                    Beat::Silent => Some(LinkStep::HangUp { connection }),
                }
            }
            _ => None,
        }
    }

    /// A connection is being made.
    pub fn connecting(&mut self, connection: ConnectionId, until: Time) {
        self.stage = LinkStage::Connecting { connection, until };
    }

    /// The handshake passed.
    pub fn connected(&mut self, now: Time) {
        self.heartbeat.begin(now);
    }

    /// The boot is sent, or a monitor that recovers its state has asked for more.
    pub fn booting(&mut self, connection: ConnectionId, until: Time) {
        self.stage = LinkStage::Booting { connection, until };
    }

    /// A message of the monitor came.
    pub fn word(&mut self, now: Time) {
        self.heartbeat.word(now);
    }

    /// The monitor answered the boot.
    pub fn join(&mut self, connection: ConnectionId) {
        self.reconnect.served();
        self.stage = LinkStage::Joined { connection };
    }

    /// This OSD is stopping: it does not connect again.
    pub fn end(&mut self) {
        self.stage = LinkStage::Idle;
    }

    /// The connection is gone: the next address is tried after a delay.
    pub fn lose(&mut self, now: Time) {
        self.stage = LinkStage::Down { until: self.reconnect.lost(now) };
    }
}
