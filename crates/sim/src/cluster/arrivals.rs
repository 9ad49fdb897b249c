//! Requests that reach an OSD twice, late, or in another order than the client sent them.
//!
//! Requests on one connection arrive in order, so this happens only across connections: a broken connection
//! may still deliver requests after the client has resent them over a new one. A client gives each
//! transmission a new sequence number, so a write and its retransmission are matched by their bytes: no value
//! is written twice.
//!
//! Invariants checked
//!   1. A request that reaches a run of an OSD after a newer request of the same session is never executed.
//!   2. Once a run has received a request of a session that acts on a newer map than the run has, it executes
//!      no request of an older session of the same image until it has received that map.

use std::collections::{BTreeMap, BTreeSet};

use base::{ImageId, MapRevision, SessionId, StripeIndex};
use format::wire::{Op, Reply, Request};

use crate::tally::Counts;

/// One run of an OSD's process: which OSD, and which run.
pub type OsdRun = (usize, u64);

/// The requests that have arrived so far.
#[derive(Default)]
pub struct Arrivals {
    /// The highest sequence number received from each session.
    newest: BTreeMap<(OsdRun, SessionId), u64>,
    /// The highest sequence number of each write that was not refused.
    writes: BTreeMap<(OsdRun, SessionId, WriteId), u64>,
    /// Writes that have not been answered.
    open: BTreeMap<(OsdRun, SessionId, u64), WriteId>,
    /// Requests that arrived after a newer one of their session.
    late: BTreeSet<(OsdRun, SessionId, u64)>,
    /// The lowest map revision in the requests of each session.
    lowest: BTreeMap<(OsdRun, SessionId), MapRevision>,
    /// For each image, the newest session that acted on a map revision which the run had not received,
    /// and the lowest revision in the requests of this session.
    takeovers: BTreeMap<(OsdRun, ImageId), (SessionId, MapRevision)>,
    /// Requests of older sessions, with the map revision that the run must have before it executes
    /// them.
    held: BTreeMap<(OsdRun, SessionId, u64), MapRevision>,
}

/// Identifies a write by image, stripe, offset, and the first unit's checksum.
type WriteId = (ImageId, StripeIndex, u32, u32);

impl Arrivals {
    /// Records the arrival of a client's request.
    pub fn note(&mut self, run: OsdRun, request: &Request, faults: &mut Counts) {
        let (session, sequence) = (request.session, request.sequence);
        let newest = self.newest.entry((run, session)).or_default();
        if sequence < *newest {
            faults.add("requests arrived in another order", 1);
            self.late.insert((run, session, sequence));
        }
        *newest = sequence.max(*newest);
        let Op::Write { place, offset, checksums, .. } = &request.op else { return };
        let Some(first) = checksums.first() else { return };
        let write = (place.image, place.stripe, *offset, first.get());
        let newest = self.writes.entry((run, session, write)).or_default();
        if *newest != 0 {
            faults.add("request arrived twice", 1);
            if sequence < *newest {
                faults.add("request arrived late, after its repetition", 1);
            }
        }
        *newest = sequence.max(*newest);
        self.open.insert((run, session, sequence), write);
    }

    /// Records the arrival of a client's request at a run whose map has revision `told`. Returns
    /// whether the request must wait for a later revision, because a newer session of the same image
    /// acts on that revision.
    pub fn note_session(&mut self, run: OsdRun, request: &Request, told: MapRevision) -> bool {
        let (session, sequence) = (request.session, request.sequence);
        let lowest = self.lowest.entry((run, session)).or_insert(request.revision);
        *lowest = request.revision.min(*lowest);
        let Some(image) = image_of(&request.op) else { return false };
        let takeover = self.takeovers.get(&(run, image)).copied();
        if *lowest > told && takeover.is_none_or(|(newest, _)| newest <= session) {
            self.takeovers.insert((run, image), (session, *lowest));
        }
        let held = takeover.filter(|(newest, revision)| session < *newest && told < *revision);
        if let Some((_, revision)) = held {
            self.held.insert((run, session, sequence), revision);
        }
        held.is_some()
    }

    /// Checks the reply of a run whose map has revision `told`. Forgets a refused write, because the
    /// client sends it again.
    pub fn answered(
        &mut self,
        run: OsdRun,
        reply: &Reply,
        told: MapRevision,
    ) -> Result<(), String> {
        let (session, sequence) = (reply.session, reply.sequence);
        let awaited = self.held.remove(&(run, session, sequence));
        if let Some(revision) = awaited.filter(|revision| reply.outcome.is_ok() && told < *revision)
        {
            return Err(format!(
                "request {sequence} of session {session} is done by an OSD that was told revision \
                 {told}, though a newer session of its image acts on {revision}"
            ));
        }
        if reply.outcome.is_ok() && self.late.contains(&(run, session, sequence)) {
            return Err(format!(
                "request {sequence} of session {session} came after a newer one, and is done"
            ));
        }
        let Some(write) = self.open.remove(&(run, session, sequence)) else { return Ok(()) };
        if reply.outcome.is_err() {
            self.writes.remove(&(run, session, write));
        }
        Ok(())
    }
}

fn image_of(op: &Op) -> Option<ImageId> {
    match op {
        Op::Read { place, .. }
        | Op::ReadPart { place, .. }
        | Op::Write { place, .. }
        | Op::Zero { place, .. }
        | Op::Extents { place, .. } => Some(place.image),
        Op::Sync
        | Op::DeleteRange { .. }
        | Op::Mutate { .. }
        | Op::Look { .. }
        | Op::List { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use base::{Buffer, BufferPool, Epoch, MapRevision, PgId, PoolId};
    use format::wire::Place;

    use super::*;

    const NAMES: [&str; 3] = [
        "request arrived twice",
        "request arrived late, after its repetition",
        "requests arrived in another order",
    ];

    fn write(sequence: u64, byte: u8) -> Request {
        let mut data = BufferPool::default().take(4096);
        data.fill(byte);
        let data: Buffer = data.freeze();
        let image = ImageId::new(1).expect("not 0");
        Request {
            session: SessionId::new(7),
            sequence,
            pg: PgId { pool: PoolId::new(1).expect("not 0"), number: 0 },
            epoch: Epoch::new(1),
            revision: MapRevision::ZERO,
            op: Op::Write {
                place: Place { image, seed: image, stripe: StripeIndex::new(0) },
                offset: 0,
                checksums: vec![base::crc32c(&data)],
                data,
                expected: None,
                lazy: false,
            },
        }
    }

    fn counts(arrivals: &[((usize, u64), u64, u8)]) -> [u64; 3] {
        let mut faults = Counts::new(&NAMES);
        let mut seen = Arrivals::default();
        for (run, sequence, byte) in arrivals {
            seen.note(*run, &write(*sequence, *byte), &mut faults);
        }
        NAMES.map(|name| faults.get(name))
    }

    #[test]
    fn repetition_lateness_and_order_are_told_apart() {
        let run = (0, 1);
        assert_eq!(counts(&[(run, 1, 1), (run, 2, 2)]), [0, 0, 0]);
        assert_eq!(counts(&[(run, 1, 1), (run, 2, 1)]), [1, 0, 0]);
        assert_eq!(counts(&[(run, 2, 1), (run, 1, 1)]), [1, 1, 1]);
        assert_eq!(counts(&[(run, 2, 2), (run, 1, 1)]), [0, 0, 1]);
        let mut faults = Counts::new(&["request arrived twice"]);
        let mut seen = Arrivals::default();
        seen.note(run, &write(1, 1), &mut faults);
        let outcome = Err(format::wire::Refusal::Busy);
        let refused = Reply { session: SessionId::new(7), sequence: 1, outcome };
        let told = MapRevision::ZERO;
        assert_eq!(seen.answered(run, &refused, told), Ok(()));
        seen.note(run, &write(2, 1), &mut faults);
        assert_eq!(faults.sum(), 0);
        let done = |sequence| Reply {
            session: SessionId::new(7),
            sequence,
            outcome: Ok(format::wire::Outcome::Synced),
        };
        seen.note(run, &write(1, 1), &mut Counts::new(&NAMES));
        assert_eq!(seen.answered(run, &done(2), told), Ok(()));
        assert!(seen.answered(run, &done(1), told).is_err());
        // Requests that reached an earlier run do not count for a new run.
        assert_eq!(counts(&[(run, 2, 1), ((0, 2), 1, 1)]), [0, 0, 0]);
    }

    #[test]
    fn an_older_session_that_is_served_beside_a_newer_one_with_a_newer_map_is_found() {
        let run = (0, 1);
        let revision = MapRevision::new;
        let of = |session, sequence, named| Request {
            session: SessionId::new(session),
            revision: revision(named),
            ..write(sequence, 1)
        };
        let done = |session, sequence| Reply {
            session: SessionId::new(session),
            sequence,
            outcome: Ok(format::wire::Outcome::Synced),
        };
        let mut seen = Arrivals::default();
        assert!(!seen.note_session(run, &of(7, 1, 3), revision(3)));
        assert!(!seen.note_session(run, &of(9, 1, 4), revision(3)), "it is the newest");
        assert!(!seen.note_session((0, 2), &of(7, 1, 3), revision(3)), "another run knows nothing");
        assert!(seen.note_session(run, &of(7, 2, 3), revision(3)));
        assert!(seen.note_session(run, &of(7, 3, 3), revision(3)));
        assert_eq!(seen.answered(run, &done(7, 1), revision(3)), Ok(()), "it came before");
        assert!(seen.answered(run, &done(7, 2), revision(3)).is_err());
        assert_eq!(seen.answered(run, &done(7, 3), revision(4)), Ok(()));
        assert!(!seen.note_session(run, &of(7, 4, 3), revision(4)));
        // The first map revision that the newest session acted on already contains all fences from
        // before the session.
        assert!(!seen.note_session(run, &of(9, 2, 6), revision(5)));
        assert!(!seen.note_session(run, &of(7, 5, 3), revision(5)));
    }
}
