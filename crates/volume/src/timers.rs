//! Timers of the client core: one ordered set, so that the next deadline is always at hand.

use std::collections::BTreeSet;

use base::{OsdId, Time};

use crate::VolumeHandle;
use crate::table::{PartKey, RequestKey};

/// What happens when a moment comes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    /// Connect to a monitor, give a connection to one up, or ask it whether it is there.
    Monitor,
    /// Connect to an OSD again.
    Link(OsdId),
    /// Send a refused part again.
    Part(PartKey),
    /// The user's patience with a request ends; of a replay that found no room: it is tried again.
    Request(RequestKey),
    /// The user's patience with an attach ends.
    Open(VolumeHandle),
    /// What a closed volume has sent is no longer awaited.
    Close(VolumeHandle),
}

/// Moments to come. Whoever arms a timer disarms it, with the same moment.
#[derive(Default)]
pub(crate) struct Timers {
    armed: BTreeSet<(Time, Timer)>,
}

impl Timers {
    pub(crate) fn arm(&mut self, at: Time, timer: Timer) {
        let new = self.armed.insert((at, timer));
        assert!(new);
    }

    pub(crate) fn disarm(&mut self, at: Time, timer: Timer) {
        let armed = self.armed.remove(&(at, timer));
        assert!(armed);
    }

    /// The next moment at which something happens.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.armed.first().map(|(at, _)| *at)
    }

    /// The next moment at which more may happen than that a monitor is asked whether it is there.
    #[cfg(test)]
    pub(crate) fn deadline_but_of_monitor(&self) -> Option<Time> {
        let mut armed = self.armed.iter();
        armed.find(|(_, timer)| *timer != Timer::Monitor).map(|(at, _)| *at)
    }

    /// Takes one timer whose moment has come.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        let (at, _) = self.armed.first()?;
        if *at > now {
            return None;
        }
        self.armed.pop_first().map(|(_, timer)| timer)
    }
}
