//! How OSDs and clients reach a monitor, and how they notice that theirs has fallen silent.
//!
//! One address after another is tried, each a moment after the one before failed. A connection that does
//! not stand after a second is given up: a silent host costs that second, and since the time doubles after
//! each round of all addresses, a slow monitor is reached nevertheless. One that stands is asked whether
//! anybody is there whenever it has been silent for a while. The kernel alone would notice later, and of a
//! process that stands still it notices nothing.
//!
//! I/O goes on without a monitor.

use base::{Duration, Time};

/// Addresses of monitors that are remembered.
const ADDRESS_COUNT_MAX: usize = 800;
/// How long the first connection to an address may take.
const CONNECT_SPAN_MIN: Duration = Duration::from_secs(1);
/// And the longest: it may have to look up a name, for which a second server of names is asked after 5 s.
const CONNECT_SPAN_MAX: Duration = Duration::from_secs(8);
/// A monitor that has said nothing for so long is asked whether it is there.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// How long it may take to answer that.
const ANSWER_SPAN_MIN: Duration = Duration::from_secs(1);
/// A monitor that stands still for so long may find that it was left.
pub const LEFT_AFTER: Duration =
    Duration::from_millis(ASK_AFTER.as_millis() + ANSWER_SPAN_MIN.as_millis());
/// The longest that it may take: each monitor that was left for its silence gives the next one twice the
/// time, for it may be the cluster that is slow, and connections made anew make it no faster.
const ANSWER_SPAN_MAX: Duration = Duration::from_secs(8);
/// After so long without a silence the next one is noticed as soon as the first.
const CALM_SPAN: Duration = Duration::from_secs(5);
/// Who comes later than this to judge an answer was away itself, and asks again.
const LATE_SPAN: Duration = Duration::from_millis(300);

/// Which address is tried next, when, and for how long.
pub struct Reach {
    /// Those this process was started with.
    known: Vec<String>,
    /// All of them, in the order in which they are tried.
    addresses: Vec<String>,
    /// Where monitors listen, as one of them said last.
    told: Vec<String>,
    /// They are others than before, and nobody has taken note of that.
    is_news: bool,
    /// Which address is tried, or was last.
    place: usize,
    delay_min: Duration,
    delay_max: Duration,
    delay: Duration,
    /// Connections in a row that came to nothing.
    loss_count: usize,
    /// A monitor serves over the present connection.
    is_served: bool,
}

impl Reach {
    /// Requires: at least one address.
    pub fn new(addresses: Vec<String>, delay_min: Duration, delay_max: Duration) -> Reach {
        assert!(!addresses.is_empty());
        Reach {
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

    /// Where monitors listen, as one of them said, in an order in which each is followed by another
    /// monitor's: they are tried before those that it did not name, the one after the present one first.
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

    /// What was told, if that is another list than the one taken before: for those who start later.
    pub fn take_told(&mut self) -> Option<Vec<String>> {
        std::mem::take(&mut self.is_news).then(|| self.told.clone())
    }

    /// All addresses, in the order in which they are tried.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The address to connect to now, and when that has taken too long.
    pub fn connect(&mut self, now: Time) -> (String, Time) {
        let rounds = 0..self.loss_count / self.addresses.len();
        let doubled = |span: Duration, _| span.doubled_up_to(CONNECT_SPAN_MAX);
        let until = now + rounds.take(8).fold(CONNECT_SPAN_MIN, doubled);
        (self.addresses[self.place].clone(), until)
    }

    /// The monitor at the end of the connection serves.
    pub fn served(&mut self) {
        self.delay = self.delay_min;
        self.loss_count = 0;
        self.is_served = true;
    }

    /// The connection is gone, or never came to be: when the next address is tried.
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

/// Whether a monitor is there, by its words.
pub struct Heartbeat {
    /// Since when nothing spoke for a slow cluster.
    calm_since: Time,
    /// When its last word came.
    word: Time,
    /// It was asked then, and has said nothing since.
    asked: Option<Time>,
    /// How long it may take to answer.
    answer_span: Duration,
}

/// What a heartbeat asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    /// Ask the monitor whether it is there.
    Ask,
    /// It is not: try the next one.
    Silent,
}

impl Default for Heartbeat {
    fn default() -> Heartbeat {
        Heartbeat {
            calm_since: Time::ZERO,
            word: Time::ZERO,
            asked: None,
            answer_span: ANSWER_SPAN_MIN,
        }
    }
}

impl Heartbeat {
    /// A connection stands.
    pub fn begin(&mut self, now: Time) {
        (self.word, self.asked) = (now, None);
    }

    /// The monitor said something.
    pub fn word(&mut self, now: Time) {
        (self.word, self.asked) = (now, None);
        if now.since(self.calm_since) >= CALM_SPAN {
            self.answer_span = ANSWER_SPAN_MIN;
        }
    }

    /// When [`Heartbeat::beat`] is wanted.
    pub fn due(&self) -> Time {
        self.asked.map_or(self.word + ASK_AFTER, |asked| asked + self.answer_span)
    }

    /// What is to be done now.
    pub fn beat(&mut self, now: Time) -> Option<Beat> {
        let due = self.due();
        if now < due {
            return None;
        }
        if self.asked.is_some() && now.since(due) <= LATE_SPAN {
            self.calm_since = now;
            self.answer_span = self.answer_span.doubled_up_to(ANSWER_SPAN_MAX);
            return Some(Beat::Silent);
        }
        self.asked = Some(now);
        Some(Beat::Ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIN: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_millis(150);

    fn reach(addresses: &[&str]) -> Reach {
        Reach::new(addresses.iter().map(ToString::to_string).collect(), MIN, MAX)
    }

    fn list(addresses: &[&str]) -> Vec<String> {
        addresses.iter().map(ToString::to_string).collect()
    }

    /// Connects so often in vain; what was tried.
    fn tried(reach: &mut Reach, count: usize) -> Vec<String> {
        let tries = (0..count).map(|_| {
            let (address, _) = reach.connect(Time::ZERO);
            reach.lost(Time::ZERO);
            address
        });
        tries.collect()
    }

    #[test]
    fn monitors_that_are_told_of_are_tried_and_the_known_ones_stay() {
        let mut reach = reach(&["a"]);
        reach.learn(list(&["b", "c"]));
        assert_eq!(tried(&mut reach, 4), ["a", "b", "c", "a"]);
        // Taken once, and again when it changes.
        assert_eq!(reach.take_told(), Some(list(&["b", "c"])));
        assert_eq!(reach.take_told(), None);
        reach.learn(list(&["b", "c"]));
        assert_eq!(reach.take_told(), None);
        reach.learn(list(&["c"]));
        assert_eq!(reach.take_told(), Some(list(&["c"])));
    }

    #[test]
    fn after_a_monitor_the_one_that_follows_it_in_the_newest_list_is_tried() {
        let mut reach = reach(&["c", "a"]);
        assert_eq!(reach.connect(Time::ZERO).0, "c");
        reach.served();
        reach.learn(list(&["a", "b", "c", "d"]));
        reach.lost(Time::ZERO);
        assert_eq!(tried(&mut reach, 3), ["d", "a", "b"]);
        // After one that nobody knows any more: from the beginning.
        let mut reach = Reach::new(list(&["x", "y"]), MIN, MAX);
        reach.learn(list(&["a", "b"]));
        assert_eq!(tried(&mut reach, 2), ["x", "y"]);
        reach.learn(list(&["c", "d"]));
        reach.lost(Time::ZERO);
        assert_eq!(tried(&mut reach, 2), ["c", "d"]);
    }

    #[test]
    fn each_failure_tries_another_address_later() {
        let mut reach = reach(&["a", "b"]);
        let mut now = Time::ZERO;
        let mut seen = Vec::new();
        for _ in 0..4 {
            let (address, _) = reach.connect(now);
            let next = reach.lost(now);
            seen.push((address, next.since(now).as_millis()));
            now = next;
        }
        let wanted = [("a", 50), ("b", 100), ("a", 150), ("b", 150)];
        assert_eq!(seen, wanted.map(|(address, delay)| (address.to_string(), delay)));
    }

    #[test]
    fn a_silent_address_costs_a_second_and_a_slow_one_is_waited_for_in_later_rounds() {
        let mut reach = reach(&["a", "b"]);
        let spans = |reach: &mut Reach, count: usize| {
            let connects = (0..count).map(|_| {
                let (_, until) = reach.connect(Time::ZERO);
                reach.lost(Time::ZERO);
                until.since(Time::ZERO).as_millis()
            });
            connects.collect::<Vec<_>>()
        };
        assert_eq!(spans(&mut reach, 8), [1_000, 1_000, 2_000, 2_000, 4_000, 4_000, 8_000, 8_000]);
        reach.served();
        reach.lost(Time::ZERO);
        assert_eq!(spans(&mut reach, 3), [1_000, 1_000, 2_000]);
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_monitor_that_is_silent_is_asked_and_then_left() {
        let mut heart = Heartbeat::default();
        heart.begin(at(0));
        assert_eq!((heart.due(), heart.beat(at(499))), (at(500), None));
        assert_eq!(heart.beat(at(500)), Some(Beat::Ask));
        assert_eq!((heart.due(), heart.beat(at(1_499))), (at(1_500), None));
        heart.word(at(1_499));
        assert_eq!((heart.due(), heart.beat(at(1_500))), (at(1_999), None));
        assert_eq!(heart.beat(at(1_999)), Some(Beat::Ask));
        assert_eq!(heart.beat(at(2_999)), Some(Beat::Silent));
    }

    #[test]
    fn who_was_away_asks_again() {
        let mut heart = Heartbeat::default();
        heart.begin(at(0));
        assert_eq!(heart.beat(at(60_000)), Some(Beat::Ask));
        assert_eq!(heart.beat(at(61_301)), Some(Beat::Ask));
        assert_eq!(heart.beat(at(62_301)), Some(Beat::Silent));
    }

    /// Lets the monitor be silent once; how long that takes to be noticed.
    fn noticed_after(heart: &mut Heartbeat, from: u64) -> u64 {
        heart.begin(at(from));
        assert_eq!(heart.beat(heart.due()), Some(Beat::Ask));
        let due = heart.due();
        assert_eq!(heart.beat(due), Some(Beat::Silent));
        due.since(at(from)).as_millis()
    }

    #[test]
    fn a_slow_cluster_is_given_more_time_until_it_is_calm() {
        let mut heart = Heartbeat::default();
        let spans: Vec<u64> =
            (0..5).map(|round| noticed_after(&mut heart, round * 10_000)).collect();
        assert_eq!(spans, [1_500, 2_500, 4_500, 8_500, 8_500]);
        heart.begin(at(50_000));
        heart.word(at(53_499));
        assert_eq!(noticed_after(&mut heart, 53_499), 8_500, "it was silent 5 seconds ago");
        heart.begin(at(62_000));
        heart.word(at(66_999));
        assert_eq!(noticed_after(&mut heart, 67_000), 1_500);
    }
}
