//! Measurements of a failover drill: how long operations take before and after a member leaves.

use base::{Duration, Time};

use super::client::Handle;
use super::plan::Departure;

/// How long operations run before their latency is checked.
const WARM: Duration = Duration::from_millis(200);

/// How long operations then run before the member leaves.
const CALM: Duration = Duration::from_millis(400);

/// How long the drill runs beyond the longest time that an operation may take, so that late answers are
/// noticed.
const SPAN: Duration = Duration::from_secs(3);

/// The longest time that an operation may take while no member leaves.
const CALM_MAX: Duration = Duration::from_millis(200);

/// A drill in progress.
pub struct Drill {
    pub(super) attached: Handle,
    /// When the drill ends.
    end: Time,
    /// The OSD that leaves, how it leaves, and when (`None` once it has left).
    pub(super) victim: usize,
    pub(super) departure: Departure,
    leaves_at: Option<Time>,
    /// Operations that were issued before this time are not checked.
    judged_from: Time,
    /// The longest operation before the member left.
    longest_calm: Duration,
    /// The longest operation since the member left.
    longest: Duration,
}

impl Drill {
    /// Returns a drill that begins now and issues its operations through `attached`.
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

    /// Returns whether the drill has ended and issues no more operations.
    pub(super) fn is_over(&self, now: Time) -> bool {
        now > self.end
    }

    /// Returns whether the member must leave now. Returns true only once.
    pub(super) fn leaves_now(&mut self, now: Time) -> bool {
        self.leaves_at.take_if(|at| *at <= now).is_some()
    }

    /// Returns the time until which a process that is silenced now stays silent: the end of the drill.
    pub(super) fn silent_until(&self, now: Time) -> Time {
        now + longest_of(self.departure) + SPAN
    }

    /// Returns the longest time that an operation took before the member left, and since then.
    pub(super) fn longest(&self) -> (Duration, Duration) {
        (self.longest_calm, self.longest)
    }

    /// Checks that every operation was answered in time.
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

    /// Records the answer to an operation.
    pub(super) fn note_answer(&mut self, now: Time, asked_at: Time) {
        if asked_at < self.judged_from {
            return;
        }
        let is_calm = self.leaves_at.is_some();
        let longest = if is_calm { &mut self.longest_calm } else { &mut self.longest };
        *longest = now.since(asked_at).max(*longest);
    }
}

/// Returns the longest time that an operation may take when a member leaves in this way.
fn longest_of(departure: Departure) -> Duration {
    match departure {
        Departure::Killed => Duration::from_millis(500),
        Departure::Silent | Departure::SilentWithFollower => Duration::from_millis(3000),
        Departure::Stopped => Duration::from_millis(200),
        Departure::SilentWithLeader => Duration::from_millis(6000),
        Departure::DiskHangs => Duration::from_millis(7000),
    }
}
