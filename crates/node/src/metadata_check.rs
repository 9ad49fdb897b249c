//! The check of this OSD's own metadata: superblocks, directory and leaves of its store. It belongs to the
//! scrubs: the same settings say when it runs and how fast, see `scrubbing.rs`.
//!
//! Invariants
//!   1. At most one portion is being read at a time.
//!   2. A check that was requested while one runs begins after it.

use base::{OsdId, UNIT_SIZE};
use blockstore::{MetadataPosition, MetadataReport};

const HOUR: u64 = 3600;

/// When the metadata is checked, and how far the check is.
#[derive(Default)]
pub(crate) struct MetadataChecks {
    /// Whether an operator requested a check that has not begun.
    is_asked: bool,
    running: Option<Running>,
}

struct Running {
    on_demand: bool,
    /// Where the next portion begins.
    after: Option<MetadataPosition>,
    /// Whether a portion is being read.
    is_reading: bool,
    bytes: u64,
    damaged: u64,
}

/// A check that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ended {
    pub(crate) bytes: u64,
    /// Number of damaged pieces that it found.
    pub(crate) damaged: u64,
}

/// What a check does in a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Read the next portion.
    Read { after: Option<MetadataPosition>, page_count: u32 },
    /// Wait for the portion that is being read.
    Wait,
}

impl MetadataChecks {
    /// Records that an operator requested a check.
    pub(crate) fn ask(&mut self) {
        self.is_asked = true;
    }

    /// Returns whether a check runs, or begins in this turn. `is_due`: by the schedule; `may_run`: scheduled
    /// scrubs may run at this hour.
    pub(crate) fn wants(&self, is_due: bool, may_run: bool) -> bool {
        match &self.running {
            Some(running) => running.on_demand || self.is_asked || may_run,
            None => self.is_asked || (is_due && may_run),
        }
    }

    /// Begins or continues a check: returns its next step. At most `bytes` are read, but at least a page.
    pub(crate) fn step(&mut self, bytes: u64) -> Step {
        if self.running.is_none() {
            let on_demand = std::mem::take(&mut self.is_asked);
            let (after, is_reading) = (None, false);
            self.running = Some(Running { on_demand, after, is_reading, bytes: 0, damaged: 0 });
        }
        match &mut self.running {
            Some(running) if !running.is_reading => {
                running.is_reading = true;
                let page_count = u32::try_from(bytes / UNIT_SIZE).unwrap_or(u32::MAX).max(1);
                Step::Read { after: running.after, page_count }
            }
            _ => Step::Wait,
        }
    }

    /// Handles the end of a portion. Returns the check if that was its last one. Requires: a portion is being
    /// read.
    pub(crate) fn on_portion(&mut self, report: &MetadataReport) -> Option<Ended> {
        let running = self.running.as_mut().expect("a portion was being read");
        assert!(running.is_reading);
        running.is_reading = false;
        running.bytes += report.bytes;
        running.damaged += report.findings.len() as u64;
        running.after = report.next;
        if running.after.is_some() {
            return None;
        }
        let Running { bytes, damaged, .. } = self.running.take().expect("it was just seen");
        Some(Ended { bytes, damaged })
    }
}

/// Returns whether a check is due: an interval after the last one, or up to an eighth earlier, so that the
/// OSDs of a cluster do not all begin at once. `span_hours`: 0 means never. `checked_at`: 0 means that the
/// schedule has not begun.
pub(crate) fn is_due(osd: OsdId, checked_at: u64, span_hours: u64, day: u64) -> bool {
    let span = span_hours * HOUR;
    let jitter = u64::from(osd.get().wrapping_mul(0x9e37_79b9));
    let early = jitter * (span / 8) / u64::from(u32::MAX);
    let last = pg::credible(checked_at, day);
    span > 0 && checked_at > 0 && day >= last + span - early
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_due_an_interval_after_the_last_one_or_a_little_earlier() {
        let day = 10_000 * HOUR;
        for osd in (1..100).filter_map(OsdId::new) {
            assert!(is_due(osd, day - 720 * HOUR, 720, day));
            assert!(!is_due(osd, day - 629 * HOUR, 720, day), "an eighth is spread");
            assert!(!is_due(osd, day - 720 * HOUR, 0, day), "never");
            assert!(!is_due(osd, 0, 720, day), "the schedule has not begun");
            assert!(is_due(osd, u64::MAX, 720, day), "a clock that was far ahead once");
        }
        let early = (1..100).filter_map(OsdId::new);
        let early = early.filter(|osd| is_due(*osd, day - 675 * HOUR, 720, day)).count();
        assert!((25..75).contains(&early), "{early}: half of them");
    }

    #[test]
    fn a_check_that_was_requested_runs_at_any_hour_and_one_after_the_other() {
        let mut checks = MetadataChecks::default();
        assert!(!checks.wants(false, true) && !checks.wants(true, false));
        assert!(checks.wants(true, true));
        checks.ask();
        assert!(checks.wants(false, false));
        assert_eq!(checks.step(8192), Step::Read { after: None, page_count: 2 });
        checks.ask();
        assert_eq!(checks.step(8192), Step::Wait);
        let report = MetadataReport { bytes: 8192, next: None, findings: Vec::new() };
        assert_eq!(checks.on_portion(&report), Some(Ended { bytes: 8192, damaged: 0 }));
        assert!(checks.wants(false, false), "the next one");
        assert_eq!(checks.step(1), Step::Read { after: None, page_count: 1 });
    }
}
