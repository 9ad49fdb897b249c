//! A truce: faults rest until the cluster has been whole for a while.

use base::{Duration, Time};

/// How long the cluster may take to be whole again once faults rest.
const TRUCE_MAX: Duration = Duration::from_secs(90);

/// For how long it must have been whole: whoever was suspected before has been heard again.
const WHOLE_FOR: Duration = Duration::from_secs(3);

/// How often it is looked at meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Faults rest.
#[derive(Clone, Copy, Debug)]
pub struct Truce {
    since: Time,
    /// When the cluster is looked at next.
    look_at: Time,
    /// Since when it is whole.
    whole_since: Option<Time>,
    /// A strike ends it; else it ends by itself.
    pub(super) strikes: bool,
}

impl Truce {
    /// One that begins now.
    pub(super) fn begin(now: Time, strikes: bool) -> Truce {
        Truce { since: now, look_at: now, whole_since: None, strikes }
    }

    /// Whether it is time to look at the cluster.
    pub(super) fn is_looked_at(&self, now: Time) -> bool {
        now >= self.look_at
    }

    /// Whether the cluster should have been whole by now.
    pub(super) fn is_late(&self, now: Time) -> bool {
        now.since(self.since) > TRUCE_MAX
    }

    /// The cluster is whole now, or it is not.
    pub(super) fn seen(self, now: Time, is_whole: bool) -> Truce {
        let whole_since = is_whole.then(|| self.whole_since.unwrap_or(now));
        Truce { look_at: now + LOOK_EVERY, whole_since, ..self }
    }

    /// Whether it has been whole for long enough.
    pub(super) fn may_end(&self, now: Time) -> bool {
        self.whole_since.is_some_and(|since| now.since(since) >= WHOLE_FOR)
    }
}
