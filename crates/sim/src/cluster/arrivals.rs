//! What reaches an OSD in another way than its client sent it: twice, late, in another order.
//!
//! A connection keeps its order, so all of it happens between connections: what a broken one still
//! brings, and what is sent again over the next. A client gives each sending a new sequence, so a
//! write and its repetition are known by their bytes: no value is written twice.
//!
//! Invariant it judges: a request that reaches a run of an OSD after a newer one of its session is
//! never done.

use std::collections::{BTreeMap, BTreeSet};

use base::{ImageId, SessionId, StripeIndex};
use format::wire::{Op, Reply, Request};

use crate::tally::Counts;

/// One run of an OSD's process: which OSD, and which run.
type OsdRun = (usize, u64);

/// Everything that arrived so far.
#[derive(Default)]
pub struct Arrivals {
    /// The highest sequence of each session.
    newest: BTreeMap<(OsdRun, SessionId), u64>,
    /// The highest sequence of each write that was not refused.
    writes: BTreeMap<(OsdRun, SessionId, WriteId), u64>,
    /// Writes without an answer.
    open: BTreeMap<(OsdRun, SessionId, u64), WriteId>,
    /// Requests that came after a newer one.
    late: BTreeSet<(OsdRun, SessionId, u64)>,
}

/// Image, stripe, offset, and the first unit's checksum.
type WriteId = (ImageId, StripeIndex, u32, u32);

impl Arrivals {
    /// A client's request arrives.
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

    /// An OSD answers. What it refuses is to be sent again.
    pub fn answered(&mut self, run: OsdRun, reply: &Reply) -> Result<(), String> {
        let (session, sequence) = (reply.session, reply.sequence);
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
        assert_eq!(seen.answered(run, &refused), Ok(()));
        seen.note(run, &write(2, 1), &mut faults);
        assert_eq!(faults.sum(), 0);
        let done = |sequence| Reply {
            session: SessionId::new(7),
            sequence,
            outcome: Ok(format::wire::Outcome::Synced),
        };
        seen.note(run, &write(1, 1), &mut Counts::new(&NAMES));
        assert_eq!(seen.answered(run, &done(2)), Ok(()));
        assert!(seen.answered(run, &done(1)).is_err());
        // What another run had received is gone with it.
        assert_eq!(counts(&[(run, 2, 1), ((0, 2), 1, 1)]), [0, 0, 0]);
    }
}
