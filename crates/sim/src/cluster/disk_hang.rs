//! The state of an OSD's disk that may hang, and checks of the OSD's reports about it.
//!
//! An OSD may report that it is stalled only if its disk hung. It may report that it has recovered only after
//! the disk has answered for long enough.

use base::{Duration, Time};

use crate::random::{Chance, Random};

/// A disk that completes every operation within this time is slow, not hung.
const SLOW_MAX: Duration = Duration::from_secs(4);
/// The shortest hang that an OSD may report: it reports one when an operation is older than five
/// seconds, by a clock that may run fast.
const STALL_MIN: Duration = Duration::from_millis(4500);
/// An OSD reports that its disk works again after the disk has answered for ten seconds, by a clock
/// that may run fast.
const ANSWERED_MIN: Duration = Duration::from_millis(8500);
/// During a hang of this length, a probe takes more than a second, so the OSD always notices the hang.
const SEEN_MIN: Duration = Duration::from_millis(2500);
/// The interval at which an operation on a hung disk is retried.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// The maximum number of long hangs in a run. Each long hang doubles the time for which the disk must
/// answer before the OSD counts as recovered.
const LONG_COUNT_MAX: u32 = 3;

/// The source of random disk hangs in a run.
pub(super) struct Hangs {
    pub(super) random: Random,
    /// The chance, per event, that a hang begins.
    chance: Chance,
    long_count: u32,
}

/// The hangs of one disk, and what its OSD has reported about them.
#[derive(Clone, Copy, Default)]
pub(super) struct Hang {
    since: Time,
    until: Time,
    /// The end of the last hang that was long enough for the OSD to notice.
    answers_since: Time,
    /// Before the current hang, the disk had answered for long enough to count as recovered: the OSD
    /// may have noticed this without having had time to report it.
    had_answered: bool,
    /// The time since which the OSD has been reporting that it is stalled.
    said_since: Option<Time>,
    /// The current run of the OSD began after a hang: the disk must first prove that it answers.
    is_tried: bool,
    /// The OSD stood still in the current hang. It does not count all of that time as the age of its
    /// operations, so it may not notice the hang.
    is_unseen: bool,
    /// An earlier hang was long enough for a report, and the OSD has not reported since that its disk works:
    /// it may have had no monitor until now.
    is_untold: bool,
}

impl Hangs {
    pub(super) fn draw(seed: u64) -> Hangs {
        let mut random = Random::new(seed, "hangs");
        let happens = random.chance(Chance::percent(40));
        let chance = if happens { Chance(random.scale(20..400) as u32) } else { Chance::NEVER };
        Hangs { random, chance, long_count: 0 }
    }

    /// Draws whether a hang begins now on one of `osd_count` disks. Returns the index of the disk,
    /// and the length of the hang.
    pub(super) fn next(&mut self, osd_count: usize) -> Option<(usize, Duration)> {
        if !self.random.chance(self.chance) {
            return None;
        }
        let index = self.random.index(osd_count);
        let is_long = self.random.chance(Chance::percent(50));
        let span = match is_long && self.long_count < LONG_COUNT_MAX {
            true => self.random.range(5_500..14_000),
            false => self.random.range(500..SLOW_MAX.as_millis()),
        };
        Some((index, Duration::from_millis(span)))
    }

    /// Counts a hang. Returns whether it is long enough for the OSD to report it.
    pub(super) fn note(&mut self, span: Duration) -> bool {
        self.long_count += u32::from(span > SLOW_MAX);
        span > SLOW_MAX
    }

    /// Draws whether the drill hangs the disk of its OSD instead of ending the process.
    pub(super) fn takes_drill(&mut self) -> bool {
        self.random.chance(Chance::percent(50))
    }
}

impl Hang {
    /// If the disk hangs, returns the time at which an operation that would complete now is tried
    /// again.
    pub(super) fn again_at(&self, now: Time) -> Option<Time> {
        (now < self.until).then(|| self.until.min(now + LOOK_EVERY))
    }

    /// Makes the disk hang for `span` from now on; a hang in progress that would end earlier is
    /// extended. A hang that begins just as the previous one ends counts as the same hang, because
    /// waiting operations may not have completed in between.
    pub(super) fn begin(&mut self, now: Time, span: Duration) {
        if self.until < now {
            self.is_untold |= self.until.since(self.since) >= STALL_MIN;
            if self.until.since(self.since) > SEEN_MIN {
                self.answers_since = self.until;
            }
            self.had_answered = now.since(self.answers_since) >= ANSWERED_MIN;
            self.since = now;
            self.is_unseen = false;
        }
        self.until = self.until.max(now + span);
    }

    /// Records that the OSD stands still from now on. If the disk hangs, the OSD may not notice that.
    pub(super) fn stands_still(&mut self, now: Time) {
        self.is_unseen |= now < self.until;
    }

    /// Ends the hang: the disk answers from now on.
    pub(super) fn end(&mut self, now: Time) {
        self.until = self.until.min(now);
    }

    /// Records the start of a run of the OSD. `knows`: the previous run recorded that the disk had
    /// hung.
    pub(super) fn run_starts(&mut self, knows: bool) {
        self.is_tried = knows;
        self.said_since = self.said_since.filter(|_| knows);
    }

    /// Returns the time since which the OSD has been reporting that it is stalled.
    pub(super) fn said_since(&self) -> Option<Time> {
        self.said_since
    }

    /// Checks an OSD's report that it is or is not stalled against the state of its disk.
    pub(super) fn judge(&mut self, now: Time, is_stalled: bool) -> Result<(), String> {
        let span = self.until.since(self.since).min(now.since(self.since));
        match (self.said_since, is_stalled) {
            (None, true) if !self.is_tried && !self.is_untold && span < STALL_MIN => {
                return Err(format!("says that its disk hangs: {span:?}"));
            }
            (None, true) => self.said_since = Some(now),
            (Some(_), false) => {
                let answers = now.since(self.until);
                let is_early = answers < ANSWERED_MIN && !self.had_answered && !self.is_unseen;
                if self.is_tried && span > SEEN_MIN && is_early {
                    return Err(format!(
                        "counts as one whose disk answers, {answers:?} after it hung"
                    ));
                }
                self.said_since = None;
                self.is_tried = false;
            }
            (None, false) | (Some(_), true) => {}
        }
        self.is_untold &= is_stalled;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_that_begins_as_the_one_before_ends_is_the_same_hang() {
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        let span = Duration::from_millis(3_000);
        for (gap, is_one) in [(0, true), (1, false)] {
            let mut hang = Hang::default();
            hang.begin(at(100), span);
            hang.begin(at(3_100 + gap), span);
            // An operation may have waited through both hangs.
            assert_eq!(hang.judge(at(5_000), true).is_ok(), is_one);
        }
    }

    #[test]
    fn a_long_hang_may_be_reported_late_unless_the_osd_said_that_the_disk_works() {
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        for says in [false, true] {
            let mut hang = Hang::default();
            hang.begin(at(100), Duration::from_millis(6_000));
            if says {
                hang.begin(at(7_000), Duration::from_millis(500));
                assert_eq!(hang.judge(at(8_000), false), Ok(()));
            }
            hang.begin(at(9_000), Duration::from_millis(500));
            assert_eq!(hang.judge(at(9_200), true).is_err(), says);
        }
    }

    #[test]
    fn an_osd_that_stood_still_in_a_hang_need_not_have_noticed_it() {
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        for stands_still_at in [None, Some(1_000), Some(5_000)] {
            let mut hang = Hang::default();
            hang.run_starts(true);
            assert_eq!(hang.judge(at(50), true), Ok(()));
            hang.begin(at(100), Duration::from_millis(4_000));
            if let Some(millis) = stands_still_at {
                hang.stands_still(at(millis));
            }
            assert_eq!(hang.judge(at(6_000), false).is_ok(), stands_still_at == Some(1_000));
        }
    }
}
