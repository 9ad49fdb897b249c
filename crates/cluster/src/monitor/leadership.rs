//! Whether this monitor leads, and how far it is with reading the state. `load.rs` moves it.
//!
//! ```text
//!   New ─▶ ReadLeader ─▶ Lead ─▶ Load (page by page) ─▶ Ready
//!              ▲          │ unknown, conflict   │           │ unknown, conflict
//!              └──────────┴─────────────────────┴───────────┘
//! ```
//!
//! Invariants
//!   1. Once it has led it never leads again after another monitor did: its process ends, or it begins
//!      anew with nothing of what it knew.
//!   2. A monitor without a lease is the only one that can open its store.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{MonitorId, Time};

use crate::records::LeaderRecord;
use crate::state::{KeyValue, LeaseId, StateRequest, StateRevision};

/// The leadership of one monitor.
pub(super) struct Leadership {
    /// What it leads under, where other monitors use the same store.
    lease: Option<LeaseId>,
    /// Whether an empty store is that of a new cluster.
    may_create: bool,
    stage: Stage,
    /// When it came to lead; `None`: it has not led yet.
    led_since: Option<Time>,
    /// The store's revision when it began to lead.
    led_from: Option<StateRevision>,
    /// Manual edits from this revision on are believed: a monitor has said that the store is damaged.
    believes_from: Option<StateRevision>,
}

/// Top to bottom is the order in time.
enum Stage {
    /// Waits for the first event.
    New,
    /// Waits a while: the store could not be asked.
    Rest { until: Time },
    /// Waits for the leader's key.
    ReadLeader { request: StateRequest },
    /// Waits for the transaction that makes this monitor the leader.
    Lead { request: StateRequest },
    /// Waits for a page of the store.
    Load { request: StateRequest, leader: StateRevision, loaded: BTreeMap<String, KeyValue> },
    /// Leads and knows the state.
    Ready,
    /// Has told why it ends.
    Stopped,
}

/// What an answer of the store was awaited for.
pub(super) enum Reading {
    /// Who leads.
    LeaderKey,
    /// One more page, beside those of this leading that are here.
    Page { leader: StateRevision, loaded: BTreeMap<String, KeyValue> },
}

impl Leadership {
    /// Nothing was read yet.
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

    /// As a monitor begins that reads everything anew. Of a store that was not restored from what OSDs
    /// know it believes manual edits since this one leads: that may have mended it.
    pub(super) fn begin_anew(&self, is_restored: bool) -> Leadership {
        let believes_from = self.believes_from.or(self.led_from).filter(|_| !is_restored);
        Leadership { believes_from, ..Leadership::new(self.lease, self.may_create) }
    }

    pub(super) fn lease(&self) -> Option<LeaseId> {
        self.lease
    }

    /// Whether an empty store is that of a new cluster.
    pub(super) fn may_create(&self) -> bool {
        self.may_create
    }

    /// Whether it leads, or did until its leadership became unsure.
    pub(super) fn has_led(&self) -> bool {
        self.led_since.is_some()
    }

    /// When it came to lead; `ZERO` before that.
    pub(super) fn led_since(&self) -> Time {
        self.led_since.unwrap_or(Time::ZERO)
    }

    /// Whether it leads and knows the state.
    pub(super) fn is_ready(&self) -> bool {
        matches!(self.stage, Stage::Ready)
    }

    /// Whether it has told why it ends.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.stage, Stage::Stopped)
    }

    /// Whether it reads the state or knows it: then a change that is missed is not seen any more.
    pub(super) fn has_begun_to_read(&self) -> bool {
        matches!(self.stage, Stage::Lead { .. } | Stage::Load { .. } | Stage::Ready)
    }

    /// Whether this request is the one that is to make it the leader.
    pub(super) fn is_taking(&self, answered: StateRequest) -> bool {
        matches!(self.stage, Stage::Lead { request } if request == answered)
    }

    /// When to read the leader's key although no event asks for it.
    pub(super) fn deadline(&self) -> Option<Time> {
        match self.stage {
            Stage::New => Some(Time::ZERO),
            Stage::Rest { until } => Some(until),
            _ => None,
        }
    }

    /// The store could not be asked.
    pub(super) fn rest(&mut self, until: Time) {
        self.stage = Stage::Rest { until };
    }

    /// The leader's key is asked for.
    pub(super) fn read_leader(&mut self, request: StateRequest) {
        self.stage = Stage::ReadLeader { request };
    }

    /// The leader's key is being written.
    pub(super) fn take(&mut self, request: StateRequest) {
        self.stage = Stage::Lead { request };
    }

    /// A page of the store is asked for.
    pub(super) fn read_page(
        &mut self,
        request: StateRequest,
        leader: StateRevision,
        loaded: BTreeMap<String, KeyValue>,
    ) {
        self.stage = Stage::Load { request, leader, loaded };
    }

    /// What was awaited by this request, if anything. The caller says what comes next.
    pub(super) fn take_reading(&mut self, answered: StateRequest) -> Option<Reading> {
        match &mut self.stage {
            Stage::ReadLeader { request } if *request == answered => Some(Reading::LeaderKey),
            Stage::Load { request, leader, loaded } if *request == answered => {
                Some(Reading::Page { leader: *leader, loaded: std::mem::take(loaded) })
            }
            _ => None,
        }
    }

    /// All pages are here, of the leading that began at `leader`.
    pub(super) fn all_read(&mut self, leader: StateRevision) {
        self.led_from.get_or_insert(leader);
    }

    /// It leads and knows the state; tells whether that is the first time.
    pub(super) fn become_ready(&mut self, now: Time) -> bool {
        assert!(self.led_from.is_some(), "the state is read before it is served");
        self.stage = Stage::Ready;
        let is_first = self.led_since.is_none();
        self.led_since.get_or_insert(now);
        is_first
    }

    /// Nothing happens any more.
    pub(super) fn stop(&mut self) {
        self.stage = Stage::Stopped;
    }

    /// Whether what stands under the leader's key is another's, or what this monitor knows may be
    /// older than what another has written. `monitor` and `pid` say who it is itself.
    ///
    /// Under a lease it goes on with what it knows only where its own key still stands: if that was
    /// gone for a moment, another one may have led in it.
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
            // No monitor leads, or the key was edited by hand: the next one to write it leads.
            Some(None) | None => self.has_led(),
        }
    }

    /// Whether a manual edit at this revision is trusted.
    pub(super) fn believes(&self, revision: StateRevision) -> bool {
        self.believes_from.is_some_and(|from| revision >= from)
    }
}
