//! Fuzz test of one node: clients send anything that the wire format allows, the monitor changes the map
//! meanwhile, and the disk is slow now and then. Checks that nothing crashes the node or corrupts its
//! counters.
//!
//! The test checks that no request is executed twice, that no request and no byte is counted as open once
//! everything is quiet, and that the PG still serves.

use std::collections::BTreeSet;

use base::{ConnectionId, Duration, Epoch, ImageId, MapRevision, SessionId, StripeIndex, Version};
use format::wire::{Message, Op, Request};

use crate::tests::rig::*;

/// A small random number generator; every failure prints its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % bound
    }

    /// Returns a number that is mostly below `bound` units, and sometimes absurdly large.
    fn number(&mut self, bound: u32) -> u32 {
        match self.below(20) {
            0 => u32::MAX - self.below(2) * (UNIT - 1),
            1 => self.below(UNIT),
            _ => self.below(bound) * UNIT,
        }
    }
}

struct Run {
    rig: Rig,
    random: Random,
    open: BTreeSet<ConnectionId>,
    connection_next: u64,
    sequence: u64,
    epoch: u32,
    revision: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            rig: Rig::serving(),
            random: Random::new(seed),
            open: BTreeSet::new(),
            connection_next: CLIENT.get(),
            sequence: 0,
            epoch: 1,
            revision: 10,
        }
    }

    fn op(&mut self) -> Op {
        let image = ImageId::new(1 + self.random.below(3)).expect("above 0");
        let place = place(image.get(), self.random.below(4));
        let (offset, length) = (self.random.number(4), self.random.number(5));
        let parents = vec![ImageId::FIRST; self.random.below(3) as usize];
        match self.random.below(7) {
            0 => Op::Read { place, offset, length, parents },
            1 | 2 => {
                let (mut checksums, data) = fill(1 + self.random.below(4), 9);
                checksums.truncate(4 - self.random.below(20) as usize / 19);
                let expected = (self.random.below(4) == 0).then_some(Version::ZERO);
                Op::Write {
                    place,
                    offset,
                    checksums,
                    data,
                    expected,
                    lazy: self.random.below(2) == 0,
                }
            }
            3 => Op::Zero { place, offset, length, lazy: false },
            4 => Op::Extents { place, parents },
            5 => Op::Sync,
            _ => Op::DeleteRange { image, from: StripeIndex::new(self.random.below(3)) },
        }
    }

    fn request(&mut self) {
        let link = self.rig.link();
        let connections: Vec<ConnectionId> = self.open.iter().copied().chain([link]).collect();
        let index = self.random.below(connections.len() as u32) as usize;
        let back = u64::from(self.random.below(10) / 8);
        self.sequence += 1;
        let mut request = Request {
            session: SessionId::new(u64::from(self.random.below(4))),
            sequence: self.sequence - back,
            pg: PG,
            epoch: Epoch::new(self.epoch + self.random.below(20) / 19),
            revision: MapRevision::new(self.revision + u64::from(self.random.below(20) / 19)),
            op: self.op(),
        };
        if self.random.below(50) == 0 {
            request.pg.number = self.random.below(3);
        }
        if self.random.below(50) == 0 {
            request.epoch = Epoch::new(self.epoch - 1);
        }
        self.rig.receive(connections[index], Message::Request(request));
    }

    fn change_map(&mut self) {
        self.epoch += self.random.below(2);
        let fences = [u64::from(self.random.below(40))];
        let fences = if fences[0] < 4 && fences[0] > 1 { &fences[..] } else { &[] };
        let next = self.revision + 1;
        self.rig.monitor_says(map(self.revision, next, vec![entry(self.epoch, 1)], fences));
        self.revision = next;
    }

    fn step(&mut self) {
        match self.random.below(40) {
            0 => self.change_map(),
            1 => self.rig.holds_disk = true,
            2 | 3 => self.rig.release_disk(),
            4 | 5 => {
                self.connection_next += 2;
                let connection = ConnectionId::new(self.connection_next);
                self.open.insert(connection);
                self.rig.accept(connection);
            }
            6 => {
                if let Some(connection) = self.open.pop_first() {
                    self.rig.close(connection);
                }
            }
            7 => self.rig.advance(Duration::from_millis(300)),
            _ => self.request(),
        }
        for connection in self.rig.closed.drain(..) {
            self.open.remove(&connection);
        }
    }

    fn check(&mut self) {
        self.rig.release_disk();
        self.rig.advance(Duration::from_secs(20));
        assert_eq!(self.rig.stopped, None);
        assert!(self.rig.node.is_idle());
        let mut done = BTreeSet::new();
        for (connection, reply) in self.rig.replies.drain(..) {
            if reply.outcome.is_ok() {
                let is_new = done.insert((connection, reply.session, reply.sequence));
                assert!(is_new, "done twice: {reply:?}");
            }
        }
        let outcome = self.rig.ask(self.epoch, write_in(place(1, 0), 0, 1, 5));
        assert!(outcome.is_ok(), "{outcome:?}");
    }
}

#[test]
fn no_client_request_and_no_map_crashes_a_node() {
    for seed in base::seeds(1..=60) {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        for _ in 0..400 {
            run.step();
        }
        run.check();
    }
}
