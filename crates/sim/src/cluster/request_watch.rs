//! A record of requests and replies: which epoch and revision each request states, which map each run of an
//! OSD was sent, and which volume each session belongs to.
//!
//! Invariants checked
//!   1. No request is executed in a newer epoch than it states.
//!   2. An OSD executes no request that states a newer revision of the pool's map than the OSD was sent.

use std::collections::BTreeMap;

use base::{Epoch, MapRevision, PgId, SessionId};
use format::wire::{Outcome, Reply, Request};

use super::arrivals::{Arrivals, OsdRun};
use super::syncs::Syncs;
use crate::tally::Counts;

/// What a request states.
#[derive(Clone, Copy, Debug)]
pub struct Named {
    /// The PG that it is for.
    pub pg: PgId,
    /// The epoch in which its client believes the PG to be.
    pub epoch: Epoch,
    /// The revision of the pool's map that its client has.
    pub revision: MapRevision,
}

/// Everything seen about requests so far.
#[derive(Default)]
pub struct RequestWatch {
    /// What each request that is not answered yet states.
    named: BTreeMap<(SessionId, u64), Named>,
    /// The newest revision of the pool's map that each run of an OSD was sent.
    told: BTreeMap<OsdRun, MapRevision>,
    /// The volume that each session was opened for.
    volumes: BTreeMap<SessionId, usize>,
    arrivals: Arrivals,
    /// Syncs, and changes that were answered before they were durable.
    pub(super) syncs: Syncs,
}

impl RequestWatch {
    /// Records a request that a client sends.
    pub fn on_sent(&mut self, request: &Request) {
        let named = Named { pg: request.pg, epoch: request.epoch, revision: request.revision };
        self.named.insert((request.session, request.sequence), named);
    }

    /// Records a request that reaches a run of an OSD. Returns whether it waits there for a newer
    /// map.
    pub fn on_arrived(&mut self, run: OsdRun, request: &Request, faults: &mut Counts) -> bool {
        self.arrivals.note(run, request, faults);
        let told = self.told(run);
        self.arrivals.note_session(run, request, told)
    }

    /// Checks the reply of a run of an OSD against the order in which requests arrived.
    pub fn on_answered(&mut self, run: OsdRun, reply: &Reply) -> Result<(), String> {
        let told = self.told(run);
        self.arrivals.answered(run, reply, told)
    }

    /// Returns what the request of a reply stated, and forgets the request.
    pub fn take_named(&mut self, reply: &Reply) -> Option<Named> {
        self.named.remove(&(reply.session, reply.sequence))
    }

    /// Checks what a run of an OSD did for a request.
    pub fn judge(
        &self,
        run: OsdRun,
        reply: &Reply,
        named: Named,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let (session, sequence) = (reply.session, reply.sequence);
        let Named { epoch, revision, .. } = named;
        // A request that finds nothing to change is answered with an old version.
        if let Outcome::Written { version, .. } = outcome
            && version.epoch > epoch
        {
            return Err(format!(
                "request {sequence} of session {session} names epoch {epoch}, but it got version \
                 {version}"
            ));
        }
        let told = self.told(run);
        if told < revision {
            return Err(format!(
                "request {sequence} of session {session} names revision {revision}, but osd \
                 {}, which did it, was told no more than {told}",
                run.0
            ));
        }
        Ok(())
    }

    /// Returns the newest revision of the map that a run of an OSD was sent.
    pub fn told(&self, run: OsdRun) -> MapRevision {
        self.told.get(&run).copied().unwrap_or_default()
    }

    /// Records that a run of an OSD is sent a revision of the map.
    pub fn on_map(&mut self, run: OsdRun, revision: MapRevision) {
        let known = self.told.entry(run).or_default();
        *known = revision.max(*known);
    }

    /// Records that a session is opened for a volume.
    pub fn on_opened(&mut self, session: SessionId, volume: usize) {
        self.volumes.insert(session, volume);
    }

    /// Returns the volume that a session was opened for.
    pub fn volume_of(&self, session: SessionId) -> Option<usize> {
        self.volumes.get(&session).copied()
    }
}
