//! A disk that is slow, that hangs, and that answers again.
//!
//! ```text
//!   Well ── oldest operation over STALL_AFTER ──▶ Stalled ── all of those ended ──▶ Over ── 2 s ──▶ Well
//!                                                    │ and a PG left              │ a PG left
//!                                                    └──────────▶ Leaving ◀───────┘
//!   Probing (the next run) ◀── the store is closed, every operation has ended ─────┘
//!      └── durable writes, each below 1 s, for as long as the pause ──▶ Well
//! ```
//!
//! In the stages Stalled, Leaving and Probing the monitor is told that the disk hangs. PGs whose entries
//! still name this OSD are served all the same.

use base::planted::{self, Bug};
use base::{Duration, Time, TraceEvent};
use blockstore::{NoteKey, Request as StoreRequest, Store};

use crate::Effect;

/// Interval between looks at the disk. Of a longer gap between two turns the store counts only a part.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// A disk hangs when its oldest operation takes longer than this.
const STALL_AFTER: Duration = Duration::from_secs(5);
/// A disk answers again when no operation and no probe takes longer than this.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// After a stall, how long an entry of the map that was on its way may still arrive.
const OVER_FOR: Duration = Duration::from_secs(2);
/// From the end of a probe to the next one.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// Shortest and longest time for which a disk must answer before it counts again.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// A stall within this time after the one before doubles that time.
const PAUSE_DOUBLES_WITHIN: Duration = Duration::from_secs(3600);

/// Stalls that the next run of the process must know of.
#[derive(Clone, Default, Debug)]
pub struct Stalls {
    /// When the last one began, and for how long the disk must answer after it.
    last: Option<(Time, Duration)>,
    /// The run before this one ended because of it.
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
    /// Since when the disk has answered, and when the next probe is due; both by the time that the loop ran.
    Probing {
        since: Time,
        next: Time,
    },
}

/// What was seen of the disk.
pub(crate) struct DiskWatch {
    /// When the disk is looked at next.
    pub(crate) at: Time,
    /// Its oldest operation took longer than it should.
    is_slow: bool,
    stage: Stage,
    stalls: Stalls,
    /// A probe is under way; how long the loop had run when it was sent.
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

    /// Whether the monitor is told that the disk hangs.
    pub(crate) fn is_stalled(&self) -> bool {
        matches!(self.stage, Stage::Stalled { .. } | Stage::Leaving | Stage::Probing { .. })
    }

    /// Whether the node ends to open the same disk anew.
    pub(crate) fn is_leaving(&self) -> bool {
        self.stage == Stage::Leaving
    }

    /// The operator has ended the process: it is not started again.
    pub(crate) fn stay_away(&mut self) {
        if self.stage == Stage::Leaving {
            self.stage = Stage::Stalled { has_left: true };
        }
    }

    /// What the next run of this process is to know.
    pub(crate) fn for_next_run(&self) -> Stalls {
        Stalls { is_recent: true, ..self.stalls.clone() }
    }

    /// Looks how old the oldest operation is. `slow_after`: what operators call slow.
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
                next = self.probe(store, since, next_at).map(LookStep::Probe);
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

    /// A PG went on without this OSD. True if the process is to end at once.
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

    /// Writes durably now and then, for as long as the disk has to answer.
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

    /// A probe has ended. One that failed, or took long, begins the pause anew.
    pub(crate) fn on_probed(&mut self, store: &Store, is_done: bool) {
        let asked = self.probe.take();
        let (Stage::Probing { since, .. }, Some(asked)) = (self.stage, asked) else { return };
        let ran = store.ran();
        let is_good = is_done && ran.since(asked) < ANSWERS_WITHIN;
        let since = if is_good { since } else { ran };
        self.stage = Stage::Probing { since, next: ran + PROBE_EVERY };
    }
}

/// What a look at the disk leads to.
pub(crate) struct Look {
    /// The monitor must be told at once.
    pub(crate) is_report_due: bool,
    /// What is to be done.
    pub(crate) next: Option<LookStep>,
}

/// What is to be done after a look at the disk.
pub(crate) enum LookStep {
    /// The disk answers, and PGs went on without it: the store is closed, and opened by the next run.
    Leave,
    /// Ask the store for this, and hand the answer to [`DiskWatch::on_probed`].
    Probe(StoreRequest),
}

/// The line for the log of a change of stage.
fn stage_line(before: Stage, stage: Stage, age: Duration) -> Option<TraceEvent> {
    Some(match (before, stage) {
        (Stage::Stalled { .. }, Stage::Stalled { .. }) => return None,
        (_, Stage::Stalled { .. }) => {
            let event = TraceEvent::error("the disk hangs: other OSDs take over its PGs");
            event.number("oldest_ms", age.as_millis())
        }
        (Stage::Stalled { .. }, Stage::Leaving) => TraceEvent::warn(
            "the disk answers again, but PGs went on without it: reopening the store",
        ),
        (Stage::Stalled { .. }, _) => TraceEvent::info("the disk answers again"),
        (Stage::Probing { .. }, Stage::Well) => {
            TraceEvent::info("the disk has answered for long enough: it is used again")
        }
        _ => return None,
    })
}
