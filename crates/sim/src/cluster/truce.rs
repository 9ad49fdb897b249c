//! A truce: no fault is injected until the cluster has been whole for a while.

use base::{Duration, Time};

/// How long the cluster may take to become whole once a truce has begun.
const TRUCE_MAX: Duration = Duration::from_secs(90);

/// How long the cluster must have been whole. By then, each process that was suspected to be down has
/// been heard from again.
const WHOLE_FOR: Duration = Duration::from_secs(3);

/// The interval between checks of the cluster during a truce.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A truce in progress: no fault is injected.
#[derive(Clone, Copy, Debug)]
pub struct Truce {
    since: Time,
    /// The time of the next check of the cluster.
    look_at: Time,
    /// The time since which the cluster has been whole, if it is.
    whole_since: Option<Time>,
    /// A strike follows the truce.
    pub(super) strikes: bool,
}

impl Truce {
    /// Returns a truce that begins now.
    pub(super) fn begin(now: Time, strikes: bool) -> Truce {
        Truce { since: now, look_at: now, whole_since: None, strikes }
    }

    /// Returns whether it is time to check the cluster.
    pub(super) fn is_looked_at(&self, now: Time) -> bool {
        now >= self.look_at
    }

    /// Returns whether the cluster has taken too long to become whole.
    pub(super) fn is_late(&self, now: Time) -> bool {
        now.since(self.since) > TRUCE_MAX
    }

    /// Records whether the cluster is whole now.
    pub(super) fn seen(self, now: Time, is_whole: bool) -> Truce {
        let whole_since = is_whole.then(|| self.whole_since.unwrap_or(now));
        Truce { look_at: now + LOOK_EVERY, whole_since, ..self }
    }

    /// Returns whether the cluster has been whole for long enough.
    pub(super) fn may_end(&self, now: Time) -> bool {
        self.whole_since.is_some_and(|since| now.since(since) >= WHOLE_FOR)
    }
}
