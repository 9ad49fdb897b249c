//! How OSDs and clients detect that their monitor has fallen silent.
//!
//! A connected monitor that has been silent for a while is probed. The kernel alone would notice a lost
//! connection later, and would never notice a suspended process.

use base::{Duration, Time};

/// A monitor that has sent nothing for this long is asked whether it is alive.
const ASK_AFTER: Duration = Duration::from_millis(500);
/// How long the monitor may take to answer, at first.
const ANSWER_SPAN_MIN: Duration = Duration::from_secs(1);
/// A monitor process that was suspended for this long may find that its peers have disconnected.
pub const LEFT_AFTER: Duration =
    Duration::from_millis(ASK_AFTER.as_millis() + ANSWER_SPAN_MIN.as_millis());
/// Maximum time to answer. Each time a monitor is abandoned because of its silence, the next one gets twice
/// the time: the whole cluster may be slow, and new connections would not make it faster.
const ANSWER_SPAN_MAX: Duration = Duration::from_secs(8);
/// After this long without a silent monitor, the time to answer is reset to the minimum.
const CALM_SPAN: Duration = Duration::from_secs(5);
/// A process that is late by more than this when it checks for the answer was itself suspended, and asks
/// again.
const LATE_SPAN: Duration = Duration::from_millis(300);

/// Detects a silent monitor by the messages that arrive from it.
pub struct Heartbeat {
    /// The time since which nothing has indicated a slow cluster.
    calm_since: Time,
    /// The time at which the monitor's last message arrived.
    word: Time,
    /// The time at which the monitor was asked whether it is alive; `None`: it has sent a message since.
    asked: Option<Time>,
    /// How long the monitor may take to answer.
    answer_span: Duration,
}

/// What the owner of a heartbeat must do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Beat {
    /// Ask the monitor whether it is alive.
    Ask,
    /// The monitor is silent: try the next one.
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
    /// Starts over with a new connection.
    pub fn begin(&mut self, now: Time) {
        (self.word, self.asked) = (now, None);
    }

    /// Notes that a message from the monitor arrived.
    pub fn word(&mut self, now: Time) {
        (self.word, self.asked) = (now, None);
        if now.since(self.calm_since) >= CALM_SPAN {
            self.answer_span = ANSWER_SPAN_MIN;
        }
    }

    /// Returns the time at which [`Heartbeat::beat`] must be called.
    pub fn due(&self) -> Time {
        self.asked.map_or(self.word + ASK_AFTER, |asked| asked + self.answer_span)
    }

    /// Returns what must be done now, if anything.
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

    /// Simulates one silence of the monitor; returns the number of milliseconds until the silence is
    /// detected.
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
