//! How OSDs and clients connect to a monitor, and to the next one when the connection is lost.
//!
//! One address after another is tried, each a moment after the previous attempt failed. A
//! connection that is not open after one second is abandoned. So a silent host costs one second;
//! since this time doubles after each round of all addresses, a slow monitor is reached as well.
//!
//! I/O continues without a monitor.

use base::{Duration, Time};

/// Maximum number of monitor addresses that are kept.
const ADDRESS_COUNT_MAX: usize = 800;
/// How long the first connection to an address may take.
const CONNECT_SPAN_MIN: Duration = Duration::from_secs(1);
/// Maximum time for an attempt: it may need a name lookup, which tries a second name server after 5 s.
const CONNECT_SPAN_MAX: Duration = Duration::from_secs(8);

/// Decides which address is tried next, when, and for how long.
pub struct Reconnect {
    /// The addresses that this process was started with.
    known: Vec<String>,
    /// All addresses, in the order in which they are tried.
    addresses: Vec<String>,
    /// The addresses of monitors that a monitor sent last.
    told: Vec<String>,
    /// Whether `told` has changed since the last [`Reconnect::take_told`].
    is_news: bool,
    /// Index of the address that is being tried, or was tried last.
    place: usize,
    delay_min: Duration,
    delay_max: Duration,
    delay: Duration,
    /// Number of failed connections in a row.
    loss_count: usize,
    /// Whether a monitor serves over the current connection.
    is_served: bool,
}

impl Reconnect {
    /// Returns a value that tries these addresses. Requires: at least one address.
    pub fn new(addresses: Vec<String>, delay_min: Duration, delay_max: Duration) -> Reconnect {
        assert!(!addresses.is_empty());
        Reconnect {
            known: addresses.clone(),
            addresses,
            told: Vec::new(),
            is_news: false,
            place: 0,
            delay_min,
            delay_max,
            delay: delay_min,
            loss_count: 0,
            is_served: false,
        }
    }

    /// Adopts the addresses that a monitor sent. In that list, each address is followed by one of another
    /// monitor. They are tried before addresses that are not in the list, beginning with the one after the
    /// current address.
    pub fn learn(&mut self, mut told: Vec<String>) {
        told.truncate(ADDRESS_COUNT_MAX);
        self.is_news |= self.told != told;
        self.told.clone_from(&told);
        let present = std::mem::replace(&mut self.addresses, told).swap_remove(self.place);
        let more = self.known.iter().filter(|address| !self.addresses.contains(address));
        self.addresses.extend(more.cloned().collect::<Vec<_>>());
        let place = self.addresses.iter().position(|address| *address == present);
        self.place = place.unwrap_or(self.addresses.len() - 1);
    }

    /// Returns the addresses that a monitor sent, if they differ from the list returned by the previous call.
    /// They are saved for processes that start later.
    pub fn take_told(&mut self) -> Option<Vec<String>> {
        std::mem::take(&mut self.is_news).then(|| self.told.clone())
    }

    /// Returns all addresses, in the order in which they are tried.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Returns the address to connect to now, and when the attempt times out.
    pub fn connect(&mut self, now: Time) -> (String, Time) {
        let rounds = 0..self.loss_count / self.addresses.len();
        let doubled = |span: Duration, _| span.doubled_up_to(CONNECT_SPAN_MAX);
        let until = now + rounds.take(8).fold(CONNECT_SPAN_MIN, doubled);
        (self.addresses[self.place].clone(), until)
    }

    /// Records that the connected monitor serves.
    pub fn served(&mut self) {
        self.delay = self.delay_min;
        self.loss_count = 0;
        self.is_served = true;
    }

    /// Records that the connection was lost, or could not be made; returns the time at which the next address
    /// is tried.
    pub fn lost(&mut self, now: Time) -> Time {
        self.place = (self.place + 1) % self.addresses.len();
        if !std::mem::take(&mut self.is_served) {
            self.loss_count = self.loss_count.saturating_add(1);
        }
        let until = now + self.delay;
        self.delay = self.delay.doubled_up_to(self.delay_max);
        until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_millis(150);

    fn reconnect(addresses: &[&str]) -> Reconnect {
        Reconnect::new(addresses.iter().map(ToString::to_string).collect(), MIN, MAX)
    }

    fn list(addresses: &[&str]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    /// Makes this many failed connections; returns the addresses that were tried.
    fn tried(reconnect: &mut Reconnect, count: usize) -> Vec<String> {
        let tries = (0..count).map(|_| {
            let (address, _) = reconnect.connect(Time::ZERO);
            reconnect.lost(Time::ZERO);
            address
        });
        tries.collect()
    }

    #[test]
    fn monitors_that_are_told_of_are_tried_and_the_known_ones_stay() {
        let mut reconnect = reconnect(&["a"]);
        reconnect.learn(list(&["b", "c"]));
        assert_eq!(tried(&mut reconnect, 4), ["a", "b", "c", "a"]);
        // The list is returned once, and again when it changes.
        assert_eq!(reconnect.take_told(), Some(list(&["b", "c"])));
        assert_eq!(reconnect.take_told(), None);
        reconnect.learn(list(&["b", "c"]));
        assert_eq!(reconnect.take_told(), None);
        reconnect.learn(list(&["c"]));
        assert_eq!(reconnect.take_told(), Some(list(&["c"])));
    }

    #[test]
    fn after_a_monitor_the_one_that_follows_it_in_the_newest_list_is_tried() {
        let mut reconnect = reconnect(&["c", "a"]);
        assert_eq!(reconnect.connect(Time::ZERO).0, "c");
        reconnect.served();
        reconnect.learn(list(&["a", "b", "c", "d"]));
        reconnect.lost(Time::ZERO);
        assert_eq!(tried(&mut reconnect, 3), ["d", "a", "b"]);
        // If the last address is in no list any more, the next attempts start from the beginning of the list.
        let mut reconnect = Reconnect::new(list(&["x", "y"]), MIN, MAX);
        reconnect.learn(list(&["a", "b"]));
        assert_eq!(tried(&mut reconnect, 2), ["x", "y"]);
        reconnect.learn(list(&["c", "d"]));
        reconnect.lost(Time::ZERO);
        assert_eq!(tried(&mut reconnect, 2), ["c", "d"]);
    }

    #[test]
    fn each_failure_tries_another_address_later() {
        let mut reconnect = reconnect(&["a", "b"]);
        let mut now = Time::ZERO;
        let mut seen = Vec::new();
        for _ in 0..4 {
            let (address, _) = reconnect.connect(now);
            let next = reconnect.lost(now);
            seen.push((address, next.since(now).as_millis()));
            now = next;
        }
        let wanted = [("a", 50), ("b", 100), ("a", 150), ("b", 150)];
        assert_eq!(seen, wanted.map(|(address, delay)| (address.to_string(), delay)));
    }

    #[test]
    fn a_silent_address_costs_a_second_and_a_slow_one_is_waited_for_in_later_rounds() {
        let mut reconnect = reconnect(&["a", "b"]);
        let spans = |reconnect: &mut Reconnect, count: usize| {
            let connects = (0..count).map(|_| {
                let (_, until) = reconnect.connect(Time::ZERO);
                reconnect.lost(Time::ZERO);
                until.since(Time::ZERO).as_millis()
            });
            connects.collect::<Vec<_>>()
        };
        assert_eq!(
            spans(&mut reconnect, 8),
            [1_000, 1_000, 2_000, 2_000, 4_000, 4_000, 8_000, 8_000]
        );
        reconnect.served();
        reconnect.lost(Time::ZERO);
        assert_eq!(spans(&mut reconnect, 3), [1_000, 1_000, 2_000]);
    }
}
