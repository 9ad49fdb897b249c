//! How OSDs and clients notice that their monitor has fallen silent.
//!
//! A connected monitor that has been silent for a while is probed. The kernel alone would notice a loss
//! later, and would never notice a process that is suspended.

use base::{Duration, Time};

/// A monitor that has said nothing for so long is asked whether it is there.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// How long it may take to answer that.
const ANSWER_SPAN_MIN: Duration = Duration::from_secs(1);
/// After being suspended for this long, a monitor may find that its peers have left.
pub const LEFT_AFTER: Duration =
    Duration::from_millis(ASK_AFTER.as_millis() + ANSWER_SPAN_MIN.as_millis());
/// The longest that it may take: each monitor that was left for its silence gives the next one twice the
/// time, for it may be the cluster that is slow, and connections made anew make it no faster.
const ANSWER_SPAN_MAX: Duration = Duration::from_secs(8);
/// After so long without a silence the next one is noticed as soon as the first.
const CALM_SPAN: Duration = Duration::from_secs(5);
/// A process that checks an answer later than this stood still itself, and asks again.
const LATE_SPAN: Duration = Duration::from_millis(300);

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
