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
//! Stalled, Leaving and Probing count as stalled: nobody counts on this disk. What PGs still have this
//! OSD in their entries it serves like any other.

use base::planted::{self, Bug};
use base::{Duration, Time, TraceEvent};
use blockstore::{NoteKey, Request as StoreRequest};
use cluster::settings::Setting;
use format::wire::PgEntry;

use crate::node::{CALL_PROBE, Phase};
use crate::{Effect, Node, StopReason};

/// How often it is looked at: of a longer gap between two turns the store counts a part only.
const WATCH_EVERY: Duration = Duration::from_millis(200);
/// A disk whose oldest operation takes longer hangs.
const STALL_AFTER: Duration = Duration::from_secs(5);
/// It answers again when none takes longer than this, and no probe does.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// So long after it answers again an entry that was on its way meanwhile may still come.
const OVER_FOR: Duration = Duration::from_secs(2);
/// From the end of a probe to the next one.
const PROBE_EVERY: Duration = Duration::from_millis(500);
/// How long the disk must answer the first time, and at most.
const PAUSE_MIN: Duration = Duration::from_secs(10);
const PAUSE_MAX: Duration = Duration::from_secs(600);
/// A stall so soon after the one before doubles the pause.
const PAUSE_DOUBLES_WITHIN: Duration = Duration::from_secs(3600);

/// What is remembered of stalls from one run of a process to its next one.
#[derive(Clone, Default, Debug)]
pub struct Stalls {
    /// The last one, and how long the disk has to answer after it.
    last: Option<(Time, Duration)>,
    /// The run before this one ended by it.
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

/// See the module's picture.
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
    /// Since when and for when the loop ran.
    Probing {
        since: Time,
        next: Time,
    },
}

/// What was seen of the disk.
pub(crate) struct DiskWatch {
    /// When it is looked at again.
    pub(crate) at: Time,
    /// Its oldest operation took longer than it should.
    is_slow: bool,
    stage: Stage,
    stalls: Stalls,
    /// A probe is on its way, since the loop ran so long.
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

    /// Nobody counts on the disk.
    pub(crate) fn is_stalled(&self) -> bool {
        matches!(self.stage, Stage::Stalled { .. } | Stage::Leaving | Stage::Probing { .. })
    }

    /// The node ends to begin anew over the same disk.
    pub(crate) fn is_leaving(&self) -> bool {
        self.stage == Stage::Leaving
    }

    /// The operator ends it meanwhile: it does not begin anew.
    pub(crate) fn stay_away(&mut self) {
        if self.stage == Stage::Leaving {
            self.stage = Stage::Stalled { has_left: true };
        }
    }
}

impl Node {
    /// What the next run of this process is to know.
    pub fn stalls(&self) -> Stalls {
        Stalls { is_recent: true, ..self.disk_watch.stalls.clone() }
    }

    /// Looks how old the oldest operation is; what is new of that is reported at once.
    pub(crate) fn watch_disk(&mut self, now: Time, effects: &mut Vec<Effect>) {
        self.disk_watch.at = now + WATCH_EVERY;
        let age = self.store.oldest_operation();
        let was_stalled = self.disk_watch.is_stalled();
        let before = self.disk_watch.stage;
        match self.disk_watch.stage {
            Stage::Well | Stage::Over { .. } | Stage::Probing { .. } if age > STALL_AFTER => {
                self.disk_watch.stalls.began(now);
                self.disk_watch.stage = Stage::Stalled { has_left: false };
            }
            Stage::Over { until } if until <= now => self.disk_watch.stage = Stage::Well,
            Stage::Stalled { has_left: true } if age <= ANSWERS_WITHIN => {
                self.leave_store(now, effects);
            }
            Stage::Stalled { has_left: false } if age <= ANSWERS_WITHIN => {
                let ran = self.store.ran();
                self.disk_watch.stage = match self.disk_watch.stalls.is_recent {
                    true => Stage::Probing { since: ran, next: ran },
                    false => Stage::Over { until: now + OVER_FOR },
                };
            }
            Stage::Probing { .. } => self.probe(now),
            Stage::Well | Stage::Over { .. } | Stage::Stalled { .. } | Stage::Leaving => {}
        }
        let is_slow = age > Setting::DiskSlow.span_in(&self.cluster_settings);
        if is_slow != self.disk_watch.is_slow {
            let event = match is_slow {
                true => TraceEvent::warn("the disk is slow").number("oldest_ms", age.as_millis()),
                false => TraceEvent::info("the disk is no longer slow"),
            };
            effects.push(Effect::Trace(event));
        }
        self.trace_stage(before, age, effects);
        if is_slow != self.disk_watch.is_slow || was_stalled != self.disk_watch.is_stalled() {
            self.disk_watch.is_slow = is_slow;
            self.report_at = now;
        }
    }

    /// Tells the log what has changed of a disk that hangs.
    fn trace_stage(&self, before: Stage, age: Duration, effects: &mut Vec<Effect>) {
        let event = match (before, self.disk_watch.stage) {
            (Stage::Stalled { .. }, Stage::Stalled { .. }) => return,
            (_, Stage::Stalled { .. }) => {
                let event = TraceEvent::error("the disk hangs: nobody counts on it");
                event.number("oldest_ms", age.as_millis())
            }
            (Stage::Stalled { .. }, Stage::Leaving) => TraceEvent::warn(
                "the disk answers again, and PGs went on without it: the store is opened anew",
            ),
            (Stage::Stalled { .. }, _) => TraceEvent::info("the disk answers again"),
            (Stage::Probing { .. }, Stage::Well) => {
                TraceEvent::info("the disk has answered for long enough: it counts again")
            }
            _ => return,
        };
        effects.push(Effect::Trace(event));
    }

    /// Newer entries took the place of these, in which this OSD had a part.
    pub(crate) fn see_what_left(&mut self, before: &[PgEntry], effects: &mut Vec<Effect>) {
        let is_out = |entry: &PgEntry| !self.map.pg(entry.pg).is_some_and(|it| self.has_part(it));
        if !before.iter().any(is_out) {
            return;
        }
        match self.disk_watch.stage {
            Stage::Stalled { .. } if planted::on(Bug::StoreReopenedEarly) => {
                self.disk_watch.stage = Stage::Leaving;
                self.stop(StopReason::Stalled, effects);
            }
            Stage::Stalled { .. } | Stage::Over { .. } => {
                self.disk_watch.stage = Stage::Stalled { has_left: true };
            }
            Stage::Well | Stage::Leaving | Stage::Probing { .. } => {}
        }
    }

    /// The disk answers, and PGs went on without it: the store is closed, and opened by the next run.
    fn leave_store(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.phase == Phase::Running {
            self.disk_watch.stage = Stage::Leaving;
            self.begin_end(now, effects);
        }
    }

    /// Writes durably now and then, for as long as the disk has to answer.
    fn probe(&mut self, now: Time) {
        let Stage::Probing { since, next } = self.disk_watch.stage else { return };
        let ran = self.store.ran();
        let is_awaited = self.disk_watch.probe.is_some() && !planted::on(Bug::ProbeNotAwaited);
        let has_answered = ran.since(since) >= self.disk_watch.stalls.pause();
        if since == Time::ZERO {
            self.disk_watch.stage = Stage::Probing { since: ran, next: ran };
        } else if has_answered && !is_awaited {
            self.disk_watch.stage = Stage::Well;
            self.disk_watch.stalls.is_recent = false;
        } else if self.disk_watch.probe.is_none() && next <= ran {
            self.disk_watch.probe = Some(ran);
            let bytes = self.store.note(NoteKey::Cluster).unwrap_or_default().to_vec();
            let request = StoreRequest::Note { key: NoteKey::Cluster, bytes };
            self.ask_store(now, CALL_PROBE, request);
        }
    }

    /// A probe has ended. One that failed, or took long, begins the pause anew.
    pub(crate) fn probed(&mut self, is_done: bool) {
        let asked = self.disk_watch.probe.take();
        let (Stage::Probing { since, .. }, Some(asked)) = (self.disk_watch.stage, asked) else {
            return;
        };
        let ran = self.store.ran();
        let is_good = is_done && ran.since(asked) < ANSWERS_WITHIN;
        let since = if is_good { since } else { ran };
        self.disk_watch.stage = Stage::Probing { since, next: ran + PROBE_EVERY };
    }
}
