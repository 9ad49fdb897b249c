//! What a failover drill measures: how long operations take before and after a member goes.

use base::{Duration, Time};

use super::client::Handle;
use super::plan::Departure;

/// How long operations run before answers are judged.
const WARM: Duration = Duration::from_millis(200);

/// How long they run after that before the member goes.
const CALM: Duration = Duration::from_millis(400);

/// How much longer they run than one may take, so that late answers are noticed.
const SPAN: Duration = Duration::from_secs(3);

/// How long an operation may take while nothing happens.
const CALM_MAX: Duration = Duration::from_millis(200);

/// A drill under way.
pub struct Drill {
    pub(super) attached: Handle,
    /// When it ends.
    end: Time,
    /// The OSD that goes, how and when.
    pub(super) victim: usize,
    pub(super) departure: Departure,
    leaves_at: Option<Time>,
    /// Operations asked before that are not judged.
    judged_from: Time,
    /// How long the longest answer took before the member went.
    longest_calm: Duration,
    /// How long the longest took since.
    longest: Duration,
}

impl Drill {
    /// One that begins now, with the operations of an attachment.
    pub(super) fn new(now: Time, attached: Handle, victim: usize, departure: Departure) -> Drill {
        Drill {
            attached,
            end: now + WARM + CALM + longest_of(departure) + SPAN,
            victim,
            departure,
            leaves_at: Some(now + WARM + CALM),
            judged_from: now + WARM,
            longest_calm: Duration::ZERO,
            longest: Duration::ZERO,
        }
    }

    /// Whether nothing more is asked.
    pub(super) fn is_over(&self, now: Time) -> bool {
        now > self.end
    }

    /// Whether the member goes now. True once.
    pub(super) fn leaves_now(&mut self, now: Time) -> bool {
        self.leaves_at.take_if(|at| *at <= now).is_some()
    }

    /// Until when whoever is silenced now stays so: to the end of the drill.
    pub(super) fn silent_until(&self, now: Time) -> Time {
        now + longest_of(self.departure) + SPAN
    }

    /// The longest answers, before the member went and since.
    pub(super) fn longest(&self) -> (Duration, Duration) {
        (self.longest_calm, self.longest)
    }

    /// Whether every operation was answered in time.
    pub(super) fn judge(&self) -> Result<(), String> {
        let Drill { victim, departure, longest_calm, longest, .. } = self;
        if *longest_calm > CALM_MAX {
            return Err(format!(
                "an operation takes {longest_calm:?}, not {CALM_MAX:?} at most, though nothing happens"
            ));
        }
        let most = longest_of(*departure);
        if *longest > most {
            return Err(format!(
                "osd {victim} goes ({departure:?}), and an operation takes {longest:?}, not \
                 {most:?} at most"
            ));
        }
        Ok(())
    }

    /// An operation is answered.
    pub(super) fn note_answer(&mut self, now: Time, asked_at: Time) {
        if asked_at < self.judged_from {
            return;
        }
        let is_calm = self.leaves_at.is_some();
        let longest = if is_calm { &mut self.longest_calm } else { &mut self.longest };
        *longest = now.since(asked_at).max(*longest);
    }
}

/// How long an operation may take when a member goes so.
fn longest_of(departure: Departure) -> Duration {
    match departure {
        Departure::Killed => Duration::from_millis(500),
        Departure::Silent | Departure::SilentWithFollower => Duration::from_millis(3000),
        Departure::Stopped => Duration::from_millis(200),
        Departure::SilentWithLeader => Duration::from_millis(6000),
        Departure::DiskHangs => Duration::from_millis(7000),
    }
}
