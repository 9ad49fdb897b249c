//! The connection to a monitor: one at a time, another address after each failure, with a delay
//! that doubles up to a bound. So does the time that a connection may take, after each round of all
//! addresses: a silent host costs a second, and a slow one is reached nevertheless.
//!
//! While the link is down I/O goes on.

use base::{ConnectionId, Duration, Time};

use crate::lane::CONNECT_MAX;

/// Addresses of monitors that are remembered.
const ADDRESS_COUNT_MAX: usize = 800;

/// The link and how far it has come.
pub struct Link {
    /// Those this OSD was started with.
    known: Vec<String>,
    /// All of them, in the order in which they are tried.
    addresses: Vec<String>,
    /// Where monitors listen, as one of them said last.
    told: Vec<String>,
    /// They are others than before, and nobody has taken note of that.
    is_news: bool,
    /// Which address is next.
    next: usize,
    delay_min: Duration,
    delay_max: Duration,
    delay: Duration,
    /// Connections in a row that came to nothing.
    loss_count: usize,
    pub stage: LinkStage,
}

/// How far a link has come. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkStage {
    /// The store is not open yet, or this OSD leaves: nothing to join with.
    Idle,
    /// Waits for its time to try.
    Down { until: Time },
    /// Waits for the handshake.
    Connecting { connection: ConnectionId, until: Time },
    /// Waits for the answer to the boot.
    Booting { connection: ConnectionId, until: Time },
    /// The monitor knows this run.
    Joined { connection: ConnectionId },
}

impl Link {
    /// Requires: at least one address.
    pub fn new(addresses: Vec<String>, delay_min: Duration, delay_max: Duration) -> Link {
        assert!(!addresses.is_empty());
        Link {
            known: addresses.clone(),
            addresses,
            told: Vec::new(),
            is_news: false,
            next: 0,
            delay_min,
            delay_max,
            delay: delay_min,
            loss_count: 0,
            stage: LinkStage::Idle,
        }
    }

    /// Where monitors listen, as one of them said: tried before those that it did not name.
    pub fn learn(&mut self, mut told: Vec<String>) {
        told.truncate(ADDRESS_COUNT_MAX);
        self.is_news |= self.told != told;
        self.told.clone_from(&told);
        self.addresses = told;
        let more = self.known.iter().filter(|address| !self.addresses.contains(address));
        self.addresses.extend(more.cloned().collect::<Vec<_>>());
    }

    /// What was told, if that is another list than the one taken before.
    pub fn take_told(&mut self) -> Option<Vec<String>> {
        std::mem::take(&mut self.is_news).then(|| self.told.clone())
    }

    /// All addresses, in the order in which they are tried.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Whether a monitor is looked for.
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
            LinkStage::Idle | LinkStage::Joined { .. } => None,
            LinkStage::Down { until }
            | LinkStage::Connecting { until, .. }
            | LinkStage::Booting { until, .. } => Some(until),
        }
    }

    /// The address of the next connection, which may take `span_max` at most.
    pub fn connect(&mut self, now: Time, connection: ConnectionId, span_max: Duration) -> String {
        let address = self.addresses[self.next % self.addresses.len()].clone();
        let rounds = 0..self.loss_count / self.addresses.len();
        let doubled = |span: Duration, _| span.doubled_up_to(span_max);
        let until = now + rounds.take(8).fold(CONNECT_MAX.min(span_max), doubled);
        self.stage = LinkStage::Connecting { connection, until };
        address
    }

    /// The handshake passed and the boot is sent.
    pub fn booting(&mut self, connection: ConnectionId, until: Time) {
        self.stage = LinkStage::Booting { connection, until };
    }

    /// The monitor answered the boot.
    pub fn join(&mut self, connection: ConnectionId) {
        self.delay = self.delay_min;
        self.loss_count = 0;
        self.stage = LinkStage::Joined { connection };
    }

    /// This OSD leaves: no other connection is made.
    pub fn end(&mut self) {
        self.stage = LinkStage::Idle;
    }

    /// The connection is gone: the next address is tried after a delay.
    pub fn lose(&mut self, now: Time) {
        self.next = (self.next + 1) % self.addresses.len();
        if !matches!(self.stage, LinkStage::Joined { .. }) {
            self.loss_count = self.loss_count.saturating_add(1);
        }
        self.stage = LinkStage::Down { until: now + self.delay };
        self.delay = self.delay.doubled_up_to(self.delay_max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn monitors_that_are_told_of_are_tried_and_the_known_ones_stay() {
        let (min, max) = (Duration::from_millis(50), Duration::from_millis(150));
        let mut link = Link::new(vec!["tcp:a:1".to_string()], min, max);
        link.learn(vec!["tcp:b:1".to_string(), "tcp:c:1".to_string()]);
        let mut tried = Vec::new();
        for _ in 0..3 {
            tried.push(link.connect(Time::ZERO, ConnectionId::new(2), max));
            link.lose(Time::ZERO);
        }
        tried.sort();
        assert_eq!(tried, ["tcp:a:1", "tcp:b:1", "tcp:c:1"]);
        // Taken once, and again when it changes.
        assert_eq!(link.take_told().map(|told| told.len()), Some(2));
        assert_eq!(link.take_told(), None);
        link.learn(vec!["tcp:b:1".to_string(), "tcp:c:1".to_string()]);
        assert_eq!(link.take_told(), None);
        link.learn(vec!["tcp:c:1".to_string()]);
        assert_eq!(link.take_told(), Some(vec!["tcp:c:1".to_string()]));
    }

    #[test]
    fn each_failure_tries_another_address_later() {
        let addresses = vec!["tcp:a:1".to_string(), "tcp:b:1".to_string()];
        let (min, max) = (Duration::from_millis(50), Duration::from_millis(150));
        let mut link = Link::new(addresses, min, max);
        let mut now = Time::ZERO;
        let mut seen = Vec::new();
        for _ in 0..4 {
            let address = link.connect(now, ConnectionId::new(2), max);
            link.lose(now);
            let until = link.deadline().expect("it is down");
            seen.push((address, until.since(now).as_millis()));
            now = until;
        }
        let wanted = [("tcp:a:1", 50), ("tcp:b:1", 100), ("tcp:a:1", 150), ("tcp:b:1", 150)];
        assert_eq!(seen, wanted.map(|(address, delay)| (address.to_string(), delay)));
    }

    #[test]
    fn a_silent_address_costs_a_second_and_a_slow_one_is_waited_for_in_later_rounds() {
        let addresses = vec!["tcp:a:1".to_string(), "tcp:b:1".to_string()];
        let (min, max) = (Duration::from_millis(50), Duration::from_millis(150));
        let mut link = Link::new(addresses, min, max);
        let spans = |link: &mut Link, count: usize| {
            let connects = (0..count).map(|_| {
                link.connect(Time::ZERO, ConnectionId::new(2), Duration::from_secs(5));
                let until = link.deadline().expect("it connects");
                link.lose(Time::ZERO);
                until.since(Time::ZERO).as_millis()
            });
            connects.collect::<Vec<_>>()
        };
        assert_eq!(spans(&mut link, 8), [1_000, 1_000, 2_000, 2_000, 4_000, 4_000, 5_000, 5_000]);
        link.join(ConnectionId::new(2));
        link.lose(Time::ZERO);
        assert_eq!(spans(&mut link, 3), [1_000, 1_000, 2_000]);
    }
}
