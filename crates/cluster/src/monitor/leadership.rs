//! Whether this monitor leads, and how far it has read the state. `load.rs` moves it from stage to
//! stage.
//!
//! ```text
//!   New ─▶ ReadLeader ─▶ Lead ─▶ Load (page by page) ─▶ Ready
//!              ▲          │ unknown, conflict   │           │ unknown, conflict
//!              └──────────┴─────────────────────┴───────────┘
//! ```
//!
//! Invariants
//!   1. Once a monitor has led, it never leads again after another monitor has led: its process ends, or it
//!      starts over without any of its earlier state.
//!   2. A monitor without a lease is the only process that can open its store.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{MonitorId, Time};

use crate::records::LeaderRecord;
use crate::state::{KeyValue, LeaseId, StateRequest, StateRevision};

/// The leadership of one monitor.
pub(super) struct Leadership {
    /// The lease under which this monitor leads, if other monitors use the same store.
    lease: Option<LeaseId>,
    /// Whether an empty store is treated as that of a new cluster.
    may_create: bool,
    stage: Stage,
    /// The time at which this monitor became the leader; `None`: it has not led yet.
    led_since: Option<Time>,
    /// The store's revision when this monitor became the leader.
    led_from: Option<StateRevision>,
    /// Manual edits from this revision on are trusted: a monitor had already reported the store as damaged.
    believes_from: Option<StateRevision>,
}

/// The stages on the way to leadership, in the order in which they occur.
enum Stage {
    /// Waits for the first event.
    New,
    /// Waits before the next attempt, because the store could not be reached.
    Rest { until: Time },
    /// Waits for the leader's key to be read.
    ReadLeader { request: StateRequest },
    /// Waits for the transaction that makes this monitor the leader.
    Lead { request: StateRequest },
    /// Waits for a page of the store.
    Load { request: StateRequest, leader: StateRevision, loaded: BTreeMap<String, KeyValue> },
    /// Leads and has read the state.
    Ready,
    /// Stopped, and has emitted the reason.
    Stopped,
}

/// The kind of read that was answered.
pub(super) enum Reading {
    /// The leader's key.
    LeaderKey,
    /// A page of the store, with the pages that were read before it under the same leadership.
    Page { leader: StateRevision, loaded: BTreeMap<String, KeyValue> },
}

impl Leadership {
    /// Creates a leadership that has not read anything yet.
    pub(super) fn new(lease: Option<LeaseId>, may_create: bool) -> Leadership {
        Leadership {
            lease,
            may_create,
            stage: Stage::New,
            led_since: None,
            led_from: None,
            believes_from: None,
        }
    }

    /// Returns the leadership of a monitor that starts over and reads everything again. Unless the store was
    /// restored from the OSDs' records, manual edits made since this monitor began to lead are trusted: they
    /// may have repaired the store.
    pub(super) fn begin_anew(&self, is_restored: bool) -> Leadership {
        let believes_from = self.believes_from.or(self.led_from).filter(|_| !is_restored);
        Leadership { believes_from, ..Leadership::new(self.lease, self.may_create) }
    }

    pub(super) fn lease(&self) -> Option<LeaseId> {
        self.lease
    }

    /// Whether an empty store is treated as that of a new cluster.
    pub(super) fn may_create(&self) -> bool {
        self.may_create
    }

    /// Whether this monitor leads, or led until its leadership became uncertain.
    pub(super) fn has_led(&self) -> bool {
        self.led_since.is_some()
    }

    /// Returns the time at which this monitor became the leader; `ZERO` before that.
    pub(super) fn led_since(&self) -> Time {
        self.led_since.unwrap_or(Time::ZERO)
    }

    /// Whether this monitor leads and has read the state.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready)
    }

    /// Whether this monitor has emitted the reason why it stops.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.stage, Stage::Stopped)
    }

    /// Whether this monitor has read the state or is reading it, so that a change that the watch
    /// misses must be found by reading again.
    pub(super) fn has_begun_to_read(&self) -> bool {
        matches!(self.stage, Stage::Lead { .. } | Stage::Load { .. } | Stage::Ready)
    }

    /// Whether this request is the transaction that makes this monitor the leader.
    pub(super) fn is_taking(&self, answered: StateRequest) -> bool {
        matches!(self.stage, Stage::Lead { request } if request == answered)
    }

    /// Returns the time at which to read the leader's key if no event arrives earlier.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.stage {
            Stage::New => Some(Time::ZERO),
            Stage::Rest { until } => Some(until),
            _ => None,
        }
    }

    /// Waits until this time, because the store could not be reached.
    pub(super) fn rest(&mut self, until: Time) {
        self.stage = Stage::Rest { until };
    }

    /// Notes that the leader's key is being read.
    pub(super) fn read_leader(&mut self, request: StateRequest) {
        self.stage = Stage::ReadLeader { request };
    }

    /// Notes that the leader's key is being written.
    pub(super) fn take(&mut self, request: StateRequest) {
        self.stage = Stage::Lead { request };
    }

    /// Notes that a page of the store is being read.
    pub(super) fn read_page(
        &mut self,
        request: StateRequest,
        leader: StateRevision,
        loaded: BTreeMap<String, KeyValue>,
    ) {
        self.stage = Stage::Load { request, leader, loaded };
    }

    /// Returns the kind of read that the request was for, if it is awaited. The caller sets the next stage.
    pub(super) fn take_reading(&mut self, answered: StateRequest) -> Option<Reading> {
        match &mut self.stage {
            Stage::ReadLeader { request } if *request == answered => Some(Reading::LeaderKey),
            Stage::Load { request, leader, loaded } if *request == answered => {
                Some(Reading::Page { leader: *leader, loaded: std::mem::take(loaded) })
            }
            _ => None,
        }
    }

    /// Notes that all pages have been read under the leadership that began at `leader`.
    pub(super) fn all_read(&mut self, leader: StateRevision) {
        self.led_from.get_or_insert(leader);
    }

    /// Notes that this monitor leads and has read the state; returns whether this is the first time.
    pub(super) fn become_ready(&mut self, now: Time) -> bool {
        assert!(self.led_from.is_some(), "the state is read before it is served");
        self.stage = Stage::Ready;
        let is_first = self.led_since.is_none();
        self.led_since.get_or_insert(now);
        is_first
    }

    /// Stops: further events are ignored.
    pub(super) fn stop(&mut self) {
        self.stage = Stage::Stopped;
    }

    /// Whether the leader's key belongs to another monitor, or another monitor may have written since this
    /// one last read. `monitor` and `pid` identify this monitor.
    ///
    /// Under a lease, this monitor keeps its state only while its own key exists: if the key was gone for a
    /// moment, another monitor may have led in that time.
    pub(super) fn another_leads(
        &self,
        (monitor, pid): (MonitorId, u32),
        found: Option<&KeyValue>,
        record: Option<&LeaderRecord>,
    ) -> bool {
        let Some(ours) = self.lease else {
            let is_us = |record: &LeaderRecord| record.monitor == monitor && record.pid == pid;
            return self.has_led() && record.is_some_and(|record| !is_us(record));
        };
        match found.map(|entry| entry.lease) {
            Some(Some(lease)) => lease != ours && !planted::on(Bug::LeadershipTakenOver),
            // No monitor leads, or the key was edited by hand: the next monitor to write it leads.
            Some(None) | None => self.has_led(),
        }
    }

    /// Whether a manual edit at this revision is trusted.
    pub(super) fn believes(&self, revision: StateRevision) -> bool {
        self.believes_from.is_some_and(|from| revision >= from)
    }
}
