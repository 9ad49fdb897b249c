//! Timers of the client core: one ordered set, so that the next deadline is always at hand.

use std::collections::BTreeSet;

use base::{OsdId, Time};

use crate::VolumeHandle;
use crate::table::{PartKey, RequestKey};

/// What happens when a timer rings.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    /// Connect to a monitor, close a connection that timed out, or ask for a sign of life.
    Monitor,
    /// Connect to an OSD again.
    Link(OsdId),
    /// Send a refused part again.
    Part(PartKey),
    /// A request times out; of a replay that pauses: the next pass begins.
    Request(RequestKey),
    /// An attach times out.
    Open(VolumeHandle),
    /// A closing volume stops waiting for answers.
    Close(VolumeHandle),
}

/// Timers that are armed. To disarm one takes the same time and kind.
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

    /// When the next timer rings.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.armed.first().map(|(at, _)| *at)
    }

    /// When the next timer rings, except that of the monitor.
    #[cfg(test)]
    pub(crate) fn deadline_but_of_monitor(&self) -> Option<Time> {
        let mut armed = self.armed.iter();
        armed.find(|(_, timer)| *timer != Timer::Monitor).map(|(at, _)| *at)
    }

    /// Takes one timer that is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        let (at, _) = self.armed.first()?;
        if *at > now {
            return None;
        }
        self.armed.pop_first().map(|(_, timer)| timer)
    }
}
