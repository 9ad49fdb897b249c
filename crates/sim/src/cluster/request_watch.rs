//! Tracks requests and replies: the epoch and map revision in each request, the map that each run of an OSD
//! has received, and the volume of each session.
//!
//! Invariants checked
//!   1. No request is executed in an epoch newer than the one in the request.
//!   2. An OSD executes no request with a newer revision of the pool's map than the OSD has received.

use std::collections::BTreeMap;

use base::{Epoch, MapRevision, PgId, SessionId};
use format::wire::{Op, Outcome, Reply, Request};

use super::arrivals::{Arrivals, OsdRun};
use super::syncs::Syncs;
use super::volume_model::{PIECE_SIZE, Sent};
use crate::tally::Counts;

/// The PG, epoch and map revision in a request.
#[derive(Clone, Debug)]
pub struct Named {
    /// The PG that the request is for.
    pub pg: PgId,
    /// The epoch of the PG that the client assumes.
    pub epoch: Epoch,
    /// The client's revision of the pool's map.
    pub revision: MapRevision,
    /// What it changes, if it is a write of whole units or a discard.
    pub sent: Option<Sent>,
}

/// The requests and replies seen so far.
#[derive(Default)]
pub struct RequestWatch {
    /// The PG, epoch and map revision of each unanswered request.
    named: BTreeMap<(SessionId, u64), Named>,
    /// The newest revision of the pool's map that was sent to each run of an OSD.
    told: BTreeMap<OsdRun, MapRevision>,
    /// The volume for which each session was opened.
    volumes: BTreeMap<SessionId, usize>,
    arrivals: Arrivals,
    /// Syncs, and changes that were acknowledged before they were durable.
    pub(super) syncs: Syncs,
}

impl RequestWatch {
    /// Records a request that a client sends.
    pub fn on_sent(&mut self, request: &Request) {
        let sent = match &request.op {
            Op::Write { place, offset, data, expected: None, .. } => Some(Sent {
                stripe: place.stripe,
                range: (*offset, data.len() as u32),
                first_piece: Some(data[..PIECE_SIZE as usize].to_vec()),
            }),
            Op::Zero { place, offset, length, .. } => {
                Some(Sent { stripe: place.stripe, range: (*offset, *length), first_piece: None })
            }
            _ => None,
        };
        let Request { pg, epoch, revision, .. } = *request;
        let named = Named { pg, epoch, revision, sent };
        self.named.insert((request.session, request.sequence), named);
    }

    /// Records a request that reaches a run of an OSD. Returns whether the request must wait there for
    /// a newer map.
    pub fn on_arrived(&mut self, run: OsdRun, request: &Request, faults: &mut Counts) -> bool {
        self.arrivals.note(run, request, faults);
        let told = self.told(run);
        self.arrivals.note_session(run, request, told)
    }

    /// Checks a reply of a run of an OSD against the order in which requests reached that run.
    pub fn on_answered(&mut self, run: OsdRun, reply: &Reply) -> Result<(), String> {
        let told = self.told(run);
        self.arrivals.answered(run, reply, told)
    }

    /// Returns the PG, epoch and map revision of the request to which this reply belongs, and forgets
    /// the request.
    pub fn take_named(&mut self, reply: &Reply) -> Option<Named> {
        self.named.remove(&(reply.session, reply.sequence))
    }

    /// Checks how a run of an OSD executed a request.
    pub fn judge(
        &self,
        run: OsdRun,
        reply: &Reply,
        named: Named,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let (session, sequence) = (reply.session, reply.sequence);
        let Named { epoch, revision, .. } = named;
        // A request that finds nothing to change returns an old version, so an old version is no error.
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

    /// Returns the newest map revision that was sent to a run of an OSD.
    pub fn told(&self, run: OsdRun) -> MapRevision {
        self.told.get(&run).copied().unwrap_or_default()
    }

    /// Records that a map revision is sent to a run of an OSD.
    pub fn on_map(&mut self, run: OsdRun, revision: MapRevision) {
        let known = self.told.entry(run).or_default();
        *known = revision.max(*known);
    }

    /// Records that a session was opened for a volume.
    pub fn on_opened(&mut self, session: SessionId, volume: usize) {
        self.volumes.insert(session, volume);
    }

    /// Returns the volume for which a session was opened.
    pub fn volume_of(&self, session: SessionId) -> Option<usize> {
        self.volumes.get(&session).copied()
    }
}
