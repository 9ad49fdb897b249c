//! Watches for a disk that is slow, that hangs, and that responds again.
//!
//! ```text
//!   Well ── oldest operation over STALL_AFTER ──▶ Stalled ── its operations ended ──▶ Over ── 2 s ──▶ Well
//!                                                    │ and a PG left              │ a PG left
//!                                                    └──────────▶ Leaving ◀───────┘
//!   Probing (the next run) ◀── the store is closed, every operation has ended ─────┘
//!      └── durable writes, each below 1 s, for as long as the pause ──▶ Well
//! ```
//!
//! In the stages Stalled, Leaving and Probing, this OSD reports to the monitor that its disk hangs. It
//! still serves the PGs whose entries list it.

use base::planted::{self, Bug};
use base::{Duration, Time, TraceEvent};
use blockstore::{NoteKey, Request as StoreRequest, Store};

use crate::Effect;

/// Interval between checks of the disk. If two turns of the event loop are further apart than this, the store
/// counts only part of the gap as age of its operations.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// A disk hangs when its oldest operation takes longer than this.
const STALL_AFTER: Duration = Duration::from_secs(5);
/// A disk responds again when no operation and no probe takes longer than this.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// After a stall, how long to wait for a map entry that may still be on its way.
const OVER_FOR: Duration = Duration::from_secs(2);
/// Interval from the end of a probe to the next one.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Minimum and maximum time for which a disk must respond before it is used again.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// A stall that begins within this time after the previous one doubles the pause.
const PAUSE_DOUBLES_WITHIN: Duration = Duration::from_secs(3600);

/// The history of stalls, passed to the next run in the same process.
#[derive(Clone, Default, Debug)]
pub struct Stalls {
    /// When the last stall began, and how long the disk must respond before it is used again.
    last: Option<(Time, Duration)>,
    /// Whether the previous run ended because of this stall.
    is_recent: bool,
}

impl Stalls {
    pub(crate) fn began(&mut self, now: Time) {
        let before = self.last.filter(|(then, _)| now.since(*then) < PAUSE_DOUBLES_WITHIN);
        let pause = before.map_or(PAUSE_MIN, |(_, pause)| pause.doubled_up_to(PAUSE_MAX));
        self.last = Some((now, pause));
    }

    pub(crate) fn pause(&self) -> Duration {
        self.last.map_or(PAUSE_MIN, |(_, pause)| pause)
    }
}

/// The stages of the picture above.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Well,
    Stalled {
        has_left: bool,
    },
    Over {
        until: Time,
    },
    Leaving,
    /// `since`: when the disk began to respond. `next`: when the next probe is due. Both are in the store's
    /// running time (see `Store::ran`).
    Probing {
        since: Time,
        next: Time,
    },
}

/// The state of the disk watch.
pub(crate) struct DiskWatch {
    /// When the disk is checked next.
    pub(crate) at: Time,
    /// Whether the oldest operation is older than `slow_after`.
    is_slow: bool,
    stage: Stage,
    stalls: Stalls,
    /// If a probe is under way: when it was sent, as time for which the store has run.
    probe: Option<Time>,
}

impl DiskWatch {
    pub(crate) fn new(now: Time, stalls: Stalls) -> DiskWatch {
        let stage = match stalls.is_recent {
            true => Stage::Probing { since: Time::ZERO, next: Time::ZERO },
            false => Stage::Well,
        };
        DiskWatch { at: now, is_slow: false, stage, stalls, probe: None }
    }

    /// Returns whether this OSD reports to the monitor that its disk hangs.
    pub(crate) fn is_stalled(&self) -> bool {
        matches!(self.stage, Stage::Stalled { .. } | Stage::Leaving | Stage::Probing { .. })
    }

    /// Returns whether the node is stopping in order to reopen the store.
    pub(crate) fn is_leaving(&self) -> bool {
        self.stage == Stage::Leaving
    }

    /// Handles a shutdown by the operator: the process does not start another run.
    pub(crate) fn stay_away(&mut self) {
        if self.stage == Stage::Leaving {
            self.stage = Stage::Stalled { has_left: true };
        }
    }

    /// Returns the history of stalls for the next run of this process.
    pub(crate) fn for_next_run(&self) -> Stalls {
        Stalls { is_recent: true, ..self.stalls.clone() }
    }

    /// Checks the age of the oldest operation. `slow_after`: the age above which the disk is reported as
    /// slow.
    pub(crate) fn look(
        &mut self,
        now: Time,
        store: &Store,
        slow_after: Duration,
        effects: &mut Vec<Effect>,
    ) -> Look {
        self.at = now + WATCH_EVERY;
        let age = store.oldest_operation();
        let was_stalled = self.is_stalled();
        let before = self.stage;
        let mut next = None;
        match self.stage {
            Stage::Well | Stage::Over { .. } | Stage::Probing { .. } if age > STALL_AFTER => {
                self.stalls.began(now);
                self.stage = Stage::Stalled { has_left: false };
            }
            Stage::Over { until } if until <= now => self.stage = Stage::Well,
            Stage::Stalled { has_left: true } if age <= ANSWERS_WITHIN => {
                self.stage = Stage::Leaving;
                next = Some(LookStep::Leave);
            }
            Stage::Stalled { has_left: false } if age <= ANSWERS_WITHIN => {
                let ran = store.ran();
                self.stage = match self.stalls.is_recent {
                    true => Stage::Probing { since: ran, next: ran },
                    false => Stage::Over { until: now + OVER_FOR },
                };
            }
            Stage::Probing { since, next: next_at } => {
                next = self
                    .probe(store, since, next_at)
                    .map(|request| LookStep::Probe(Box::new(request)));
            }
            Stage::Well | Stage::Over { .. } | Stage::Stalled { .. } | Stage::Leaving => {}
        }
        let is_slow = age > slow_after;
        let is_new = std::mem::replace(&mut self.is_slow, is_slow) != is_slow;
        if is_new {
            effects.push(Effect::Trace(match is_slow {
                true => TraceEvent::warn("the disk is slow").number("oldest_ms", age.as_millis()),
                false => TraceEvent::info("the disk is no longer slow"),
            }));
        }
        effects.extend(stage_line(before, self.stage, age).map(Effect::Trace));
        Look { is_report_due: is_new || was_stalled != self.is_stalled(), next }
    }

    /// Handles a PG's new entry that no longer lists this OSD. Returns true if the process must end at
    /// once.
    pub(crate) fn on_pg_left(&mut self) -> bool {
        match self.stage {
            Stage::Stalled { .. } if planted::on(Bug::StoreReopenedEarly) => {
                self.stage = Stage::Leaving;
                return true;
            }
            Stage::Stalled { .. } | Stage::Over { .. } => {
                self.stage = Stage::Stalled { has_left: true };
            }
            Stage::Well | Stage::Leaving | Stage::Probing { .. } => {}
        }
        false
    }

    /// Returns the next durable probe write when it is due. Ends the stage when the disk has responded
    /// for the whole pause.
    fn probe(&mut self, store: &Store, since: Time, next: Time) -> Option<StoreRequest> {
        let ran = store.ran();
        let is_awaited = self.probe.is_some() && !planted::on(Bug::ProbeNotAwaited);
        let has_answered = ran.since(since) >= self.stalls.pause();
        if since == Time::ZERO {
            self.stage = Stage::Probing { since: ran, next: ran };
        } else if has_answered && !is_awaited {
            self.stage = Stage::Well;
            self.stalls.is_recent = false;
        } else if self.probe.is_none() && next <= ran {
            self.probe = Some(ran);
            let bytes = store.note(NoteKey::Cluster).unwrap_or_default().to_vec();
            return Some(StoreRequest::Note { key: NoteKey::Cluster, bytes });
        }
        None
    }

    /// Handles the end of a probe. The pause starts again if the probe failed or took too long.
    pub(crate) fn on_probed(&mut self, store: &Store, is_done: bool) {
        let asked = self.probe.take();
        let (Stage::Probing { since, .. }, Some(asked)) = (self.stage, asked) else { return };
        let ran = store.ran();
        let is_good = is_done && ran.since(asked) < ANSWERS_WITHIN;
        let since = if is_good { since } else { ran };
        self.stage = Stage::Probing { since, next: ran + PROBE_EVERY };
    }
}

/// The result of a check of the disk.
pub(crate) struct Look {
    /// A report must be sent to the monitor at once.
    pub(crate) is_report_due: bool,
    /// The next step, if any.
    pub(crate) next: Option<LookStep>,
}

/// What to do after a check of the disk.
pub(crate) enum LookStep {
    /// The disk responds, but PGs continued without this OSD: close the store; the next run reopens it.
    Leave,
    /// Send this request to the store, and pass the result to [`DiskWatch::on_probed`].
    Probe(Box<StoreRequest>),
}

/// Returns the log line for a change of stage.
fn stage_line(before: Stage, stage: Stage, age: Duration) -> Option<TraceEvent> {
    Some(match (before, stage) {
        (Stage::Stalled { .. }, Stage::Stalled { .. }) => return None,
        (_, Stage::Stalled { .. }) => {
            let event = TraceEvent::error("the disk hangs: other OSDs take over its PGs");
            event.number("oldest_ms", age.as_millis())
        }
        (Stage::Stalled { .. }, Stage::Leaving) => TraceEvent::warn(
            "the disk answers again, but PGs continued without it: reopening the store",
        ),
        (Stage::Stalled { .. }, _) => TraceEvent::info("the disk answers again"),
        (Stage::Probing { .. }, Stage::Well) => {
            TraceEvent::info("the disk has answered for long enough: it is used again")
        }
        _ => return None,
    })
}
