//! Timers of the client core: one ordered set, so the next deadline is always its first entry.

use std::collections::BTreeSet;

use base::{OsdId, Time};

use crate::VolumeHandle;
use crate::table::{PartKey, RequestKey};

/// What to do when a timer expires.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Timer {
    /// Connect to a monitor, close a connection that timed out, or send a ping.
    Monitor,
    /// Connect to an OSD again.
    Link(OsdId),
    /// Send a refused part again.
    Part(PartKey),
    /// A request times out; for a paused replay: the next pass begins.
    Request(RequestKey),
    /// Check which PGs answer.
    Stalls(VolumeHandle),
    /// An attach times out.
    Open(VolumeHandle),
    /// A closing volume stops waiting for answers.
    Close(VolumeHandle),
}

/// Armed timers. Disarming needs the same time and timer as arming.
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

    /// Returns the time at which the next timer expires.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.armed.first().map(|(at, _)| *at)
    }

    /// Returns the time at which the next timer other than the monitor's expires.
    #[cfg(test)]
    pub(crate) fn deadline_but_of_monitor(&self) -> Option<Time> {
        let mut armed = self.armed.iter();
        armed.find(|(_, timer)| *timer != Timer::Monitor).map(|(at, _)| *at)
    }

    /// Removes and returns one timer that is due.
    pub(crate) fn pop_due(&mut self, now: Time) -> Option<Timer> {
        let (at, _) = self.armed.first()?;
        if *at > now {
            return None;
        }
        self.armed.pop_first().map(|(_, timer)| timer)
    }
}
