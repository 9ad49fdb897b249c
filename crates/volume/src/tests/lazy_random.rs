//! Random schedules of a lazy volume whose OSDs lose power. No read returns older data than an earlier read,
//! everything that a flush covered is durable, and at the end the volume has the same content as if the
//! changes had been executed in the order of their requests.

use base::{Duration, StripeIndex, UNIT_SIZE};
use format::wire::{Op, Refusal};
use proptest::prelude::*;

use super::world::{BLOCK, UNIT, VOLUME, World, pg_number};
use crate::{Answer, Operation, Piece, RequestId, VolumeError};

/// Few blocks, so that changes overlap.
const RANGE: usize = 3 * BLOCK as usize;

#[derive(Clone, Debug)]
enum Action {
    Change {
        offset: usize,
        length: usize,
        zero: bool,
        durable: bool,
    },
    Read {
        offset: usize,
        length: usize,
    },
    Flush,
    Serve(usize),
    Refuse(usize, u8),
    /// The connection of a waiting request breaks after this many requests were executed.
    Break(usize),
    Connect,
    Wait,
    /// A PG gets a new epoch after this many waiting requests were executed. The seed selects which writes
    /// the PG loses in a power loss; `None`: nothing is lost.
    NewEpoch {
        block: u32,
        executed: usize,
        lost: Option<u64>,
        answers: bool,
    },
    BreakMonitor,
    /// OSDs have no space for data from now on, or have space again.
    Fill(bool),
    /// A waiting request is executed; its answer arrives later.
    Execute(usize),
    /// The answer to an executed request arrives.
    Answer(usize),
}

fn some_range() -> impl Strategy<Value = (usize, usize)> {
    let units = (0..RANGE / UNIT, 1..6usize).prop_map(|(unit, count)| (unit * UNIT, count * UNIT));
    let bytes = (0..RANGE, 1..9000usize);
    let narrow = (0..RANGE, 1..100usize);
    prop_oneof![2 => units, 1 => bytes, 1 => narrow]
        .prop_map(|(offset, length)| (offset, length.min(RANGE - offset)))
}

fn some_action() -> impl Strategy<Value = Action> {
    let change = (some_range(), 0..5u8, 0..5u8).prop_map(|((offset, length), zero, durable)| {
        Action::Change { offset, length, zero: zero == 0, durable: durable == 0 }
    });
    let lost = proptest::option::of(any::<u64>());
    let epoch =
        (0..3u32, 0..6usize, lost, any::<bool>()).prop_map(|(block, executed, lost, answers)| {
            Action::NewEpoch { block, executed, lost, answers }
        });
    prop_oneof![
        6 => change,
        3 => some_range().prop_map(|(offset, length)| Action::Read { offset, length }),
        1 => Just(Action::Flush),
        9 => any::<usize>().prop_map(Action::Serve),
        1 => (any::<usize>(), any::<u8>()).prop_map(|(at, kind)| Action::Refuse(at, kind)),
        1 => (0..4usize).prop_map(Action::Break),
        3 => Just(Action::Connect),
        2 => Just(Action::Wait),
        2 => epoch,
        1 => Just(Action::BreakMonitor),
        1 => any::<bool>().prop_map(Action::Fill),
    ]
}

fn some_action_or_late_answer() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => some_action(),
        1 => any::<usize>().prop_map(Action::Execute),
        1 => any::<usize>().prop_map(Action::Answer),
    ]
}

/// A requested change; changes take effect in the order of their indexes.
struct Change {
    id: RequestId,
    range: std::ops::Range<usize>,
    /// The byte that is written; 0: the range is zeroed.
    byte: u8,
    durable: bool,
    is_done: bool,
}

struct Reading {
    id: RequestId,
    range: std::ops::Range<usize>,
    /// For each byte, the oldest change that the read may show.
    oldest: Vec<usize>,
}

struct Flushing {
    id: RequestId,
    oldest: Vec<usize>,
}

struct Run {
    world: World,
    /// All requested changes; index 0 stands for the volume as it was created.
    changes: Vec<Change>,
    readings: Vec<Reading>,
    flushings: Vec<Flushing>,
    /// For each byte, the newest change that was acknowledged or read.
    known: Vec<usize>,
    /// For each byte, the newest change that must be durable.
    safe: Vec<usize>,
    /// Executed requests, with answers that have not arrived.
    late: Vec<(Asked, Told)>,
    /// Whether a PG has lost writes that may not be replayed yet.
    has_lost: bool,
}

impl Run {
    fn new(unsynced_units_max: u64, patience: Option<Duration>) -> Run {
        let mut world = World::lazy(patience);
        world.core.settings.unsynced_size_max = unsynced_units_max * UNIT_SIZE;
        let nothing =
            Change { id: RequestId(0), range: 0..RANGE, byte: 0, durable: true, is_done: true };
        Run {
            world,
            changes: vec![nothing],
            readings: Vec::new(),
            flushings: Vec::new(),
            known: vec![0; RANGE],
            safe: vec![0; RANGE],
            late: Vec::new(),
            has_lost: false,
        }
    }

    fn act(&mut self, action: &Action) {
        let world = &mut self.world;
        match *action {
            Action::Change { offset, length, zero, durable } => {
                let byte = if zero { 0 } else { self.changes.len() as u8 };
                let (at, size) = (offset as u64, length as u64);
                let operation = if zero {
                    Operation::Zero { offset: at, length: size, durable }
                } else {
                    let data = world.pool.copy_of(&vec![byte; length]);
                    Operation::Write { offset: at, data, durable }
                };
                let id = world.ask(operation);
                let range = offset..offset + length;
                self.changes.push(Change { id, range, byte, durable, is_done: false });
            }
            Action::Read { offset, length } => {
                let range = offset..offset + length;
                let oldest = self.known[range.clone()].to_vec();
                let id = world.read(offset as u64, length as u64);
                self.readings.push(Reading { id, range, oldest });
            }
            Action::Flush => {
                let id = world.ask(Operation::Flush);
                self.flushings.push(Flushing { id, oldest: self.known.clone() });
            }
            Action::Serve(at) => {
                if world.bring_forward(at) {
                    self.answer_before_reading();
                    self.world.serve_one();
                }
            }
            Action::Refuse(at, kind) => {
                if world.bring_forward(at) {
                    world.refuse(match kind % 3 {
                        0 => Refusal::Busy,
                        1 => Refusal::Incomplete { why: String::new() },
                        _ => Refusal::Stale(None),
                    });
                }
            }
            Action::Break(executed) => {
                if !world.asked.is_empty() {
                    let osd = world.asked_osd();
                    let broken = world.asked[0].0;
                    world.execute_current(executed, |(on, _)| *on == broken);
                    world.break_osd(osd);
                }
            }
            Action::Connect => world.connect(),
            Action::Wait => {
                if world.deadline().is_some() {
                    world.wait();
                }
            }
            Action::NewEpoch { block, executed, lost, answers } => {
                self.new_epoch(pg_number(StripeIndex::new(block)), executed, lost, answers);
            }
            Action::BreakMonitor => {
                if world.monitor.is_some() {
                    world.break_monitor();
                }
            }
            Action::Fill(is_full) => world.is_full = is_full,
            Action::Execute(at) => {
                if world.bring_forward(at) {
                    self.answer_before_reading();
                    let asked = self.world.next();
                    let told = self.world.do_as_asked(&asked.1);
                    self.late.push((asked, told));
                }
            }
            Action::Answer(at) => self.answer_late(at),
        }
        self.judge();
    }

    /// Makes an OSD answer a change before it answers a read that sees the change: both answers arrive over
    /// one connection, in that order.
    fn answer_before_reading(&mut self) {
        let (connection, request) = &self.world.asked[0];
        if !matches!(request.op, Op::Read { .. } | Op::Extents { .. }) {
            return;
        }
        let connection = *connection;
        let (now, later) = std::mem::take(&mut self.late)
            .into_iter()
            .partition(|((on, request), _)| *on == connection && request.op != Op::Sync);
        self.late = later;
        let now: Vec<(Asked, Told)> = now;
        for (asked, told) in now {
            self.world.reply(&asked, told);
        }
    }

    /// Delivers a late answer; the client ignores it if its connection was closed meanwhile.
    fn answer_late(&mut self, at: usize) {
        if let Some(place) = at.checked_rem(self.late.len()) {
            let (asked, told) = self.late.swap_remove(place);
            self.world.reply(&asked, told);
        }
    }

    fn new_epoch(&mut self, number: u32, executed: usize, lost: Option<u64>, answers: bool) {
        let world = &mut self.world;
        let of_pg = |(_, request): &Asked| request.pg.number == number;
        let late = world.execute_current(executed, of_pg);
        if let Some(seed) = lost {
            let mut state = seed | 1;
            world.lose_power(number, |count| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) as usize % count
            });
            self.has_lost = true;
        }
        world.next_epoch(number);
        if answers && lost.is_none() && self.late.is_empty() {
            // These answers were in transit when the epoch ended.
            for (asked, outcome) in late {
                if world.osds.contains_key(&asked.0) && !world.closed.contains(&asked.0) {
                    world.reply(&asked, outcome);
                }
            }
        }
    }

    /// Checks the requests that have finished, and the content of the OSDs.
    fn judge(&mut self) {
        for index in 1..self.changes.len() {
            let change = &mut self.changes[index];
            if change.is_done || !self.world.done.contains_key(&change.id) {
                continue;
            }
            change.is_done = true;
            if is_given_up(&self.world.done[&change.id]) {
                // The change may have taken effect, in part or as a whole.
                continue;
            }
            if self.world.done[&change.id] == Err(VolumeError::Full) {
                // As above, the change may have taken effect, in part or as a whole.
                let std::ops::Range { start, end } = change.range;
                let is_discard = change.byte == 0 && start % UNIT == 0 && end % UNIT == 0;
                assert!(!is_discard, "discards always work");
                continue;
            }
            assert_eq!(self.world.done[&change.id], Ok(Answer::Done));
            for byte in change.range.clone() {
                self.known[byte] = self.known[byte].max(index);
                if change.durable {
                    self.safe[byte] = self.safe[byte].max(index);
                }
            }
        }
        let ended = |id: &RequestId, world: &World| world.done.contains_key(id);
        let (done, open) =
            std::mem::take(&mut self.readings).into_iter().partition(|r| ended(&r.id, &self.world));
        self.readings = open;
        let done: Vec<Reading> = done;
        done.into_iter().for_each(|reading| self.judge_reading(reading));
        let (done, open) = std::mem::take(&mut self.flushings)
            .into_iter()
            .partition(|flushing| ended(&flushing.id, &self.world));
        self.flushings = open;
        let done: Vec<Flushing> = done;
        for flushing in done {
            let result = self.world.result(flushing.id);
            if is_given_up(&result) {
                continue;
            }
            assert_eq!(result, Ok(Answer::Done));
            for (safe, oldest) in self.safe.iter_mut().zip(flushing.oldest) {
                *safe = oldest.max(*safe);
            }
        }
        self.judge_disks();
    }

    /// Returns the first change, from `oldest` on, after which this byte can have this value.
    fn shown(&self, place: usize, byte: u8, oldest: usize) -> Option<usize> {
        (oldest..self.changes.len()).find(|index| {
            let change = &self.changes[*index];
            change.range.contains(&place) && change.byte == byte
        })
    }

    fn judge_reading(&mut self, reading: Reading) {
        let pieces = match self.world.result(reading.id) {
            Ok(Answer::Data(pieces)) => pieces,
            Err(VolumeError::Unavailable { .. }) => return,
            other => panic!("a read finds data, not {other:?}"),
        };
        let mut bytes = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Data(data) => bytes.extend_from_slice(&data),
                Piece::Hole(count) => bytes.resize(bytes.len() + count as usize, 0),
            }
        }
        for ((place, byte), oldest) in reading.range.zip(bytes).zip(reading.oldest) {
            let shown = self.shown(place, byte, oldest);
            let shown = shown.unwrap_or_else(|| panic!("byte {place} goes back to {byte}"));
            self.known[place] = self.known[place].max(shown);
        }
    }

    /// Checks two guarantees. No content that a power loss may leave in a unit is older than the last flush.
    /// While no PG has lost writes, the current content is not older than the acknowledged content, in case
    /// the client dies now.
    fn judge_disks(&mut self) {
        for place in (0..RANGE).step_by(UNIT / 4) {
            let stripe = StripeIndex::new((place / BLOCK as usize) as u32);
            let unit = (place % BLOCK as usize / UNIT) as u32;
            let byte_of = |held: Option<&Vec<u8>>| held.map_or(0, |bytes| bytes[place % UNIT]);
            let now = byte_of(self.world.held(stripe, unit));
            if !self.has_lost {
                let is_there = self.shown(place, now, self.known[place]).is_some();
                assert!(is_there, "byte {place} is {now}, older than what was done");
            }
            let older = self.world.unstable.get(&(stripe, unit)).into_iter().flatten();
            for byte in older.map(|held| byte_of(held.as_ref())).chain([now]) {
                let is_safe = self.shown(place, byte, self.safe[place]).is_some();
                assert!(is_safe, "byte {place} may be {byte} after it was flushed");
            }
        }
        let volume = &self.world.core.volumes[&VOLUME];
        let most = self.world.core.settings.unsynced_size_max + BLOCK;
        assert!(volume.unsynced_bytes <= most.max(BLOCK), "{}", volume.unsynced_bytes);
    }

    fn end_all(&mut self) {
        while !self.late.is_empty() {
            self.answer_late(0);
            self.judge();
        }
        loop {
            self.world.serve();
            self.judge();
            if self.world.core.requests.is_empty() {
                break;
            }
            self.world.wait();
        }
        assert!(self.changes.iter().all(|change| change.is_done));
        assert!(self.readings.is_empty() && self.flushings.is_empty());
    }

    /// The faults stop: everything must finish.
    fn finish(&mut self) {
        self.world.is_full = false;
        self.world.patience = None;
        self.end_all();
        self.act(&Action::Read { offset: 0, length: RANGE });
        self.end_all();
        self.act(&Action::Flush);
        self.end_all();
        let core = &self.world.core;
        assert!(core.parts.is_empty() && core.requests.is_empty());
        assert!(core.stripes.is_empty());
        assert!(core.unrouted.is_empty());
        assert!(core.volumes[&VOLUME].unsynced.is_empty());
        assert_eq!(core.volumes[&VOLUME].unsynced_bytes, 0);
        assert!(self.world.unstable.is_empty());
    }
}

type Asked = (base::ConnectionId, format::wire::Request);
type Told = Result<format::wire::Outcome, Refusal>;

fn is_given_up(result: &Result<Answer, VolumeError>) -> bool {
    matches!(result, Err(VolumeError::Unavailable { .. } | VolumeError::Unknown))
}

impl World {
    /// Executes up to `count` of the waiting requests that carry the current epoch of their PG, without
    /// answering them. Returns the answers that they would have received.
    fn execute_current(
        &mut self,
        count: usize,
        wanted: impl Fn(&Asked) -> bool,
    ) -> Vec<(Asked, Told)> {
        let is_current = |asked: &&Asked| {
            self.epochs[&asked.1.pg.number] == asked.1.epoch.get() && wanted(asked)
        };
        let chosen = self.asked.iter().filter(is_current).take(count);
        let chosen: Vec<Asked> = chosen.cloned().collect();
        let executed = chosen.into_iter().map(|asked| {
            let told = self.execute(&asked.1.op);
            if told == Ok(format::wire::Outcome::Synced) {
                self.sync(asked.1.pg.number);
            }
            (asked, told)
        });
        executed.collect()
    }
}

#[test]
fn the_checker_sees_a_byte_that_went_back() {
    let mut run = Run::new(1024, None);
    run.act(&Action::Change { offset: 0, length: UNIT, zero: false, durable: false });
    run.world.serve();
    run.judge();
    run.world.lose_power(pg_number(StripeIndex::new(0)), |_| 0);
    let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run.judge()));
    assert!(verdict.is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_living_client_loses_nothing_and_a_dead_one_nothing_that_it_flushed(
        actions in prop::collection::vec(some_action(), 1..120),
        unsynced_units_max in prop_oneof![Just(2u64), 4..20u64, Just(10_000)],
    ) {
        let mut run = Run::new(unsynced_units_max, None);
        for action in &actions {
            run.act(action);
        }
        run.finish();
    }

    #[test]
    fn a_timed_out_change_is_not_undone_once_it_was_read(
        actions in prop::collection::vec(some_action_or_late_answer(), 1..120),
        unsynced_units_max in prop_oneof![Just(2u64), 4..20u64, Just(10_000)],
        patience_ms in prop_oneof![1..30u64, 30..3000u64],
    ) {
        let mut run = Run::new(unsynced_units_max, Some(Duration::from_millis(patience_ms)));
        for action in &actions {
            run.act(action);
        }
        run.finish();
    }
}
