//! Random test of one PG: random operations, a store that answers in random order, and epochs that change in
//! between. No schedule may break the order of the PG's operations.
//!
//! Checks that every operation is answered once; that versions have no gaps; that a read returns, for each
//! unit, a value that some possible order of the concurrent operations explains; and that at the end, when
//! everything has been answered, the mark is the newest version and nothing is left over.

use super::tests::*;
use super::*;

/// A small random number generator. The seed of every run is printed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as u32 % bound
    }
}

/// One operation as the client saw it.
struct Seen {
    stripe: u32,
    units: std::ops::Range<u32>,
    /// The byte that a write wrote; 0 for a zero.
    byte: u8,
    reads: bool,
    started: usize,
    ended: Option<usize>,
    outcome: Option<Result<Outcome, Refusal>>,
}

struct Run {
    bench: Bench,
    random: Random,
    seen: Vec<Seen>,
    epoch: u32,
    step: usize,
}

impl Run {
    fn new(seed: u64) -> Run {
        let random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Run { bench: Bench::new(), random, seen: Vec::new(), epoch: 1, step: 0 }
    }

    fn start_any(&mut self) {
        let stripe = self.random.below(2);
        let first = self.random.below(UNITS);
        let units = 1 + self.random.below(UNITS - first);
        let place = place_in(1, stripe);
        let ticket = self.seen.len() as u32;
        let byte = (ticket % 250) as u8 + 1;
        let (offset, length) = (first * UNIT, units * UNIT);
        let lazy = self.random.below(2) == 0;
        let (op, byte, reads) = match self.random.below(8) {
            0..3 => {
                let (checksums, data) = fill(units, byte);
                (Op::Write { place, offset, checksums, data, expected: None, lazy }, byte, false)
            }
            3 => {
                let (checksums, data) = fill(units, byte);
                let newest = self.bench.blocks.values().map(|block| block.version).max();
                let expected = Some(newest.unwrap_or_default());
                (Op::Write { place, offset, checksums, data, expected, lazy }, byte, false)
            }
            4 => (Op::Zero { place, offset, length, lazy }, 0, false),
            5 => (read_in(place, first, units, &[2]), 0, true),
            _ => (read_in(place, first, units, &[]), 0, true),
        };
        let units = first..first + units;
        let started = self.step;
        self.seen.push(Seen { stripe, units, byte, reads, started, ended: None, outcome: None });
        self.bench.start(ticket, op);
    }

    /// Delivers one of the store's pending answers, in any order. A real store has less freedom.
    fn answer_any(&mut self) {
        let count = self.bench.answers.len() as u32;
        if count > 0 {
            let index = self.random.below(count) as usize;
            let (call, result) = self.bench.answers.remove(index).unwrap();
            self.bench.give(call, result);
        }
    }

    fn change_epoch(&mut self) {
        self.epoch += 1;
        let mut actions = Vec::new();
        self.bench.pg.enter(entry(self.epoch), ONE_COPY, None, &mut actions);
        self.bench.carry_out(actions);
    }

    fn collect(&mut self) {
        for (ticket, outcome) in self.bench.replies.drain(..) {
            let seen = &mut self.seen[ticket as usize];
            assert!(seen.outcome.is_none(), "answered twice");
            seen.outcome = Some(outcome);
            seen.ended = Some(self.step);
        }
    }

    fn run(&mut self) {
        while self.seen.len() < 200 {
            self.step += 1;
            let is_active = *self.bench.pg.serving() == Serving::Active;
            match self.random.below(20) {
                0 if is_active => self.change_epoch(),
                1..10 if is_active => self.start_any(),
                _ => self.answer_any(),
            }
            self.collect();
        }
        self.step += 1;
        self.bench.answer_all();
        self.collect();
        assert_eq!(self.bench.run(Op::Sync), Ok(Outcome::Synced));
    }

    fn check(&self) {
        assert_eq!(self.bench.pg.open_count(), 0);
        assert!(self.bench.pg.calls.is_empty());
        assert_eq!(self.bench.pg.mark(), self.bench.pg.versions.newest());
        let mut counters: Vec<u64> = self.bench.versions.iter().map(|new| new.counter).collect();
        assert!(counters.is_sorted(), "the store got them in order");
        counters.dedup();
        assert!(counters.iter().copied().eq(1..=self.bench.pg.versions.newest().counter), "no gap");
        for read in self.seen.iter().filter(|seen| seen.reads) {
            if let Some(Ok(Outcome::Read { data, .. })) = &read.outcome {
                for unit in read.units.clone() {
                    let index = (unit - read.units.start) as usize * UNIT as usize;
                    let byte = data.get(index).copied().unwrap_or(0);
                    assert!(self.explains(read, unit, byte), "unit {unit} read as {byte}");
                }
            }
        }
    }

    /// Returns whether `read` can have returned `byte` for this unit: a write wrote it, in a possible order
    /// of the operations, or `byte` is zero and nothing was written.
    fn explains(&self, read: &Seen, unit: u32, byte: u8) -> bool {
        let writes = || {
            self.seen.iter().filter(|seen| {
                let is_there = seen.stripe == read.stripe && seen.units.contains(&unit);
                !seen.reads && is_there && matches!(seen.outcome, Some(Ok(_)))
            })
        };
        let read_ended = read.ended.expect("it was answered");
        let is_hidden = |put_ended: usize| {
            writes().any(|other| {
                let ended = other.ended.expect("it was answered");
                put_ended < other.started && ended < read.started
            })
        };
        if byte == 0 && !writes().any(|other| other.ended < Some(read.started)) {
            return true;
        }
        // An operation that was answered `Stale` may have taken effect before its answer.
        let maybe = self.seen.iter().filter(|seen| {
            let is_there = seen.stripe == read.stripe && seen.units.contains(&unit);
            !seen.reads && is_there && matches!(seen.outcome, Some(Err(Refusal::Stale(_))))
        });
        writes().chain(maybe).any(|put| {
            let ended = put.ended.expect("it was answered");
            put.byte == byte && put.started <= read_ended && !is_hidden(ended)
        })
    }
}

#[test]
fn no_schedule_breaks_the_order_of_a_pg() {
    for seed in base::seeds(1..=300) {
        println!("seed {seed}");
        let mut run = Run::new(seed);
        run.run();
        run.check();
    }
}
