//! Random schedules with refusals, lost connections, repeated requests and moved PGs. Every request is
//! answered once, and at the end the volume has the same content as if the writes had been executed in the
//! order of their requests.

use base::ConnectionId;
use cluster::map::MapDelta;
use cluster::message::FromMonitor;
use format::wire::{Op, Refusal, Request};
use proptest::prelude::*;

use super::world::{BLOCK, UNIT, World, entry, pool_delta};
use crate::{Answer, Operation, RequestId};

/// Few blocks, so that writes overlap.
const RANGE: u64 = 3 * BLOCK;

#[derive(Clone, Debug)]
enum Action {
    Write {
        offset: u64,
        length: u64,
    },
    Zero {
        offset: u64,
        length: u64,
    },
    Read {
        offset: u64,
        length: u64,
    },
    Flush,
    /// The waiting request with this index (modulo their number) is answered.
    Serve(usize),
    /// The waiting request with this index is refused.
    Refuse(usize, u8),
    /// The connection of the first waiting request breaks after this many of its requests were
    /// executed.
    Break(usize),
    /// Requested connections are established.
    Connect,
    /// Time passes until the next deadline.
    Wait,
    /// PGs move to the other OSD.
    Move,
    BreakMonitor,
}

fn some_range() -> impl Strategy<Value = (u64, u64)> {
    let units = (0..RANGE / UNIT as u64, 1..6u64)
        .prop_map(|(unit, count)| (unit * UNIT as u64, count * UNIT as u64));
    let bytes = (0..RANGE, 1..9000u64);
    let narrow = (0..RANGE, 1..100u64);
    prop_oneof![units, bytes, narrow]
        .prop_map(|(offset, length)| (offset, length.min(RANGE - offset)))
}

fn some_action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => some_range().prop_map(|(offset, length)| Action::Write { offset, length }),
        1 => some_range().prop_map(|(offset, length)| Action::Zero { offset, length }),
        1 => some_range().prop_map(|(offset, length)| Action::Read { offset, length }),
        1 => Just(Action::Flush),
        6 => any::<usize>().prop_map(Action::Serve),
        2 => (any::<usize>(), any::<u8>()).prop_map(|(at, kind)| Action::Refuse(at, kind)),
        1 => (0..4usize).prop_map(Action::Break),
        3 => Just(Action::Connect),
        2 => Just(Action::Wait),
        1 => Just(Action::Move),
        1 => Just(Action::BreakMonitor),
    ]
}

struct Run {
    world: World,
    /// The content that the volume must have at the end.
    model: Vec<u8>,
    asked: Vec<RequestId>,
    epoch: u32,
}

impl Run {
    fn new(durable: bool) -> Run {
        let mut world = World::attached();
        world.durable = durable;
        Run { world, model: vec![0; RANGE as usize], asked: Vec::new(), epoch: 1 }
    }

    fn act(&mut self, number: usize, action: &Action) {
        let world = &mut self.world;
        match *action {
            Action::Write { offset, length } => {
                let byte = (number % 250) as u8 + 1;
                let range = offset as usize..(offset + length) as usize;
                self.model[range].fill(byte);
                self.asked.push(world.write(offset, &vec![byte; length as usize]));
            }
            Action::Zero { offset, length } => {
                let range = offset as usize..(offset + length) as usize;
                self.model[range].fill(0);
                self.asked.push(world.ask(Operation::Zero { offset, length, durable: false }));
            }
            Action::Read { offset, length } => self.asked.push(world.read(offset, length)),
            Action::Flush => self.asked.push(world.ask(Operation::Flush)),
            Action::Serve(at) => {
                if world.bring_forward(at) {
                    world.serve_one();
                }
            }
            Action::Refuse(at, kind) => {
                if world.bring_forward(at) {
                    let number = world.asked[0].1.pg.number;
                    world.refuse(match kind % 5 {
                        0 => Refusal::Busy,
                        1 => Refusal::Incomplete { why: String::new() },
                        2 => Refusal::Corrupted,
                        3 => Refusal::Stale(None),
                        _ => Refusal::Stale(Some(entry(number, self.epoch, 1))),
                    });
                }
            }
            Action::Break(executed) => {
                if !world.asked.is_empty() {
                    let osd = world.asked_osd();
                    world.execute_some(executed);
                    world.break_osd(osd);
                }
            }
            Action::Connect => world.connect(),
            Action::Wait => {
                if world.deadline().is_some() {
                    world.wait();
                }
            }
            Action::Move => self.move_pgs(),
            Action::BreakMonitor => {
                if world.monitor.is_some() {
                    world.break_monitor();
                }
            }
        }
    }

    fn move_pgs(&mut self) {
        if self.world.monitor.is_none() {
            return;
        }
        let since = u64::from(self.epoch);
        self.epoch += 1;
        let primary = 1 + self.epoch % 2;
        let pgs = (0..4).map(|number| entry(number, self.epoch, primary)).collect();
        let pools = vec![pool_delta(since, since + 1, pgs)];
        // Requests that were sent to the old primary can still be executed, but only before the move.
        self.world.execute_some(usize::MAX);
        self.world.asked.clear();
        self.world.say(FromMonitor::Map(MapDelta { pools, ..MapDelta::default() }));
        self.world.break_all_osds();
    }

    /// The faults stop: everything must finish.
    fn finish(&mut self) {
        let world = &mut self.world;
        for _ in 0..10_000 {
            world.serve();
            if self.asked.iter().all(|id| world.done.contains_key(id)) {
                break;
            }
            world.wait();
        }
        for id in std::mem::take(&mut self.asked) {
            let result = world.result(id);
            assert!(matches!(result, Ok(Answer::Done | Answer::Data(_))), "{result:?}");
        }
        assert!(world.core.parts.is_empty());
        assert!(world.core.requests.is_empty());
        assert!(world.core.stripes.is_empty());
        assert!(world.core.unrouted.is_empty());
        let bytes = world.bytes(0, RANGE);
        let wrong = bytes.iter().zip(&self.model).position(|(found, wanted)| found != wanted);
        assert_eq!(wrong, None, "first wrong byte");
    }
}

impl World {
    /// Moves one of the waiting requests to the front; returns whether there is one. Requests of one stripe
    /// on one connection stay in order, because an OSD preserves that order.
    pub(super) fn bring_forward(&mut self, at: usize) -> bool {
        if self.asked.is_empty() {
            return false;
        }
        let stripe_of = |(connection, request): &(ConnectionId, Request)| match &request.op {
            Op::Read { place, .. }
            | Op::ReadPart { place, .. }
            | Op::Write { place, .. }
            | Op::Zero { place, .. }
            | Op::Extents { place, .. } => Some((*connection, place.image, place.stripe)),
            Op::Sync
            | Op::DeleteRange { .. }
            | Op::Mutate { .. }
            | Op::Look { .. }
            | Op::List { .. } => None,
        };
        let at = at % self.asked.len();
        let stripe = stripe_of(&self.asked[at]);
        let is_first = |it: &(ConnectionId, Request)| stripe.is_some() && stripe_of(it) == stripe;
        let first = self.asked.iter().position(is_first).unwrap_or(at);
        let chosen = self.asked.remove(first).expect("it is within");
        self.asked.push_front(chosen);
        true
    }

    /// Executes up to `count` waiting requests whose replies will be lost.
    fn execute_some(&mut self, count: usize) {
        let ops: Vec<_> = self.asked.iter().take(count).map(|(_, it)| it.op.clone()).collect();
        for op in ops {
            let _ = self.execute(&op);
        }
    }

    fn break_all_osds(&mut self) {
        self.execute_some(usize::MAX);
        self.asked.clear();
        for connection in std::mem::take(&mut self.osds).into_keys() {
            let reason = format::door::CloseReason::Reset;
            self.net(format::door::NetEvent::Closed { connection, reason });
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn writes_take_effect_in_the_order_asked_whatever_fails(
        actions in prop::collection::vec(some_action(), 1..120),
        durable in any::<bool>(),
    ) {
        let mut run = Run::new(durable);
        for (number, action) in actions.iter().enumerate() {
            run.act(number, action);
        }
        run.finish();
    }
}
