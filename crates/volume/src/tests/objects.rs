//! Tests of object pools: numbers of mutations, what is sent again, and what ends a request.

use base::hash::hash_range_of_pg;
use base::{ConnectionId, Epoch, PoolId, Version};
use cluster::message::{FromMonitor, ToMonitor};
use format::door::NetEvent;
use format::wire::{
    self, FRAME_HEADER_SIZE, Message, Op, Outcome, Payload, Refusal, Reply, Request,
};

use super::world::{REIGN, SESSION, UNIT, VOLUME, World, osd, pool_delta};
use crate::part::MISMATCH_COUNT_MAX;
use crate::{Answer, Event, Operation, Place, RequestId, VolumeError};

impl World {
    /// Returns a world with one open object pool. PGs 0 and 2 are on osd.1, PGs 1 and 3 on osd.2.
    fn with_objects() -> World {
        let mut world = World::new(None);
        world.apply(Event::OpenPool { pool: VOLUME, name: "kv".to_string() });
        world.connect();
        world.give_map();
        let asks = |told: &ToMonitor| match told {
            ToMonitor::OpenPool { request, pool, .. } if pool == "kv" => Some(*request),
            _ => None,
        };
        let request = world.told.iter().find_map(asks).expect("the pool is asked for");
        let pool = pool_delta(0, 1, Vec::new()).pool;
        let (session, reign) = (SESSION, REIGN);
        world.say(FromMonitor::PoolOpened { request, session, pool, reign });
        let (_, opened) = &world.opened[0];
        assert_eq!(opened.as_ref().expect("it is open").pool(), PoolId::FIRST);
        world
    }

    fn mutate(&mut self, hash: u32) -> RequestId {
        self.ask(Operation::Mutate { hash, operation: b"change".to_vec() })
    }

    fn look(&mut self, at: Place) -> RequestId {
        self.ask(Operation::Look { at, reads: b"what?".to_vec(), answers_size_max: 1 << 20 })
    }

    /// Takes the oldest request, and returns its PG, and number, lowest number and whether it is sent again.
    fn next_mutation(&mut self) -> (u32, (u64, u64, bool)) {
        let asked = self.next();
        let Op::Mutate { number, lowest, again, operation } = &asked.1.op else {
            panic!("a mutation: {asked:?}")
        };
        assert_eq!((operation.bytes(), asked.1.session), (Some(&b"change"[..]), SESSION));
        let told = (asked.1.pg.number, (*number, *lowest, *again));
        self.asked.push_front(asked);
        told
    }

    /// Answers a look with bytes that change on their way.
    fn reply_damaged(&mut self, to: &(ConnectionId, Request)) {
        let (connection, Request { session, sequence, .. }) = (to.0, &to.1);
        let outcome = Ok(Outcome::Looked { answers: Payload::new(b"this", &self.pool) });
        let reply = Reply { session: *session, sequence: *sequence, outcome };
        let mut bytes = Vec::new();
        let sent = wire::encode(&Message::Reply(reply), &mut bytes).expect("it has a payload");
        let mut came = self.pool.take_zeroed(sent.len());
        came.copy_from_slice(&sent);
        came[0] ^= 1;
        let (header, body) = bytes.split_at(FRAME_HEADER_SIZE);
        let header = wire::decode_header(header.try_into().expect("of its size")).expect("sound");
        let message = wire::decode(&header, body, Some(came.freeze()), &self.pool).expect("sound");
        self.net(NetEvent::Received { connection, message });
    }

    fn answer_mutation(&mut self, counter: u64) {
        let asked = self.next();
        let version = Version { epoch: Epoch::new(1), counter };
        self.reply(&asked, Ok(Outcome::Mutated { version, results: vec![counter as u8] }));
    }
}

/// Returns a hash of the PG with this number.
fn hash_of(pg: u32) -> u32 {
    hash_range_of_pg(pg, 4).1
}

fn mutated(counter: u64) -> Result<Answer, VolumeError> {
    let version = Version { epoch: Epoch::new(1), counter };
    Ok(Answer::Mutated { version, results: vec![counter as u8] })
}

#[test]
fn a_mutation_names_the_lowest_open_number_of_its_pg() {
    let mut world = World::with_objects();
    let ids: Vec<RequestId> = [0, 1, 0].map(|pg| world.mutate(hash_of(pg))).into();
    assert_eq!(world.next_mutation(), (0, (1, 1, false)));
    world.answer_mutation(11);
    // The third one was sent before the first one had ended.
    assert_eq!(world.next_mutation(), (0, (3, 1, false)));
    world.answer_mutation(12);
    assert_eq!(world.next_mutation(), (1, (2, 2, false)));
    let later = world.mutate(hash_of(0));
    world.answer_mutation(13);
    assert_eq!(world.next_mutation(), (0, (4, 4, false)));
    world.answer_mutation(14);
    for (id, counter) in [(ids[0], 11), (ids[2], 12), (ids[1], 13), (later, 14)] {
        assert_eq!(world.result(id), mutated(counter));
    }
    assert!(world.core.volumes[&VOLUME].mutations.is_empty());
}

#[test]
fn what_is_sent_again_keeps_its_number_and_says_so() {
    let mut world = World::with_objects();
    let (first, second) = (world.mutate(hash_of(0)), world.mutate(hash_of(0)));
    world.connect();
    assert_eq!(world.next_mutation(), (0, (1, 1, false)));
    world.refuse(Refusal::Busy);
    world.break_osd(osd(1));
    for _ in 0..2 {
        while world.asked.is_empty() {
            world.wait();
            world.connect();
        }
        let (_, (number, _, again)) = world.next_mutation();
        assert!(again);
        world.answer_mutation(number);
    }
    assert_eq!([world.result(first), world.result(second)], [mutated(1), mutated(2)]);
}

#[test]
fn refusals_that_end_a_mutation() {
    let version = Version { epoch: Epoch::new(3), counter: 9 };
    for (refusal, error) in [
        (
            Refusal::Asserted { object: 1, step: 2, version },
            VolumeError::Asserted { object: 1, step: 2, version },
        ),
        (
            Refusal::TooLarge { why: "it is".to_string() },
            VolumeError::TooLarge { why: "it is".to_string() },
        ),
        (Refusal::Full, VolumeError::Full),
    ] {
        let mut world = World::with_objects();
        let id = world.mutate(hash_of(2));
        world.refuse(refusal);
        assert_eq!(world.result(id), Err(error));
    }
}

#[test]
fn a_look_goes_to_a_pg_by_hash_or_number_and_its_answer_is_checked() {
    let mut world = World::with_objects();
    for (at, pg) in [(Place::Hash(hash_of(3)), 3), (Place::Pg(2), 2)] {
        let id = world.look(at);
        let asked = world.next();
        assert_eq!(asked.1.pg.number, pg);
        let Op::Look { reads } = &asked.1.op else { panic!("a look: {asked:?}") };
        assert_eq!(reads.bytes(), Some(&b"what?"[..]));
        let answers = Payload::new(b"this", &world.pool);
        world.reply(&asked, Ok(Outcome::Looked { answers }));
        assert_eq!(world.result(id), Ok(Answer::Looked(b"this".to_vec())));
    }
    let id = world.look(Place::Pg(0));
    for _ in 0..MISMATCH_COUNT_MAX {
        let asked = world.next();
        world.reply_damaged(&asked);
        if !world.done.contains_key(&id) {
            world.wait();
        }
    }
    assert_eq!(world.result(id), Err(VolumeError::Damaged));
}

/// Returns the PGs that a request lists, with their epochs.
fn listed(request: &Request) -> Vec<(u32, Epoch)> {
    let Op::List { beside, names } = &request.op else { panic!("a list: {request:?}") };
    assert_eq!(names.bytes(), Some(&b"all"[..]));
    [vec![(request.pg.number, request.epoch)], beside.clone()].concat()
}

#[test]
fn a_list_asks_each_osd_once_and_names_the_pgs_that_were_refused() {
    let mut world = World::with_objects();
    let list =
        |pgs_max| Operation::List { names: b"all".to_vec(), page_size_max: 1 << 10, pgs_max };
    let id = world.ask(list(256));
    let epoch = Epoch::new(1);
    for (pgs, refused) in [([1, 3], vec![]), ([0, 2], vec![2])] {
        let asked = world.next();
        assert_eq!(listed(&asked.1), pgs.map(|pg| (pg, epoch)));
        let pages = Payload::new(&[pgs[0] as u8], &world.pool);
        world.reply(&asked, Ok(Outcome::Listed { refused, pages }));
    }
    let pages = vec![vec![1], vec![0]];
    assert_eq!(world.result(id), Ok(Answer::Listed { pages, refused: vec![2] }));
    // As many PGs as fit one request; a request that was lost is sent again, whole.
    let id = world.ask(list(1));
    world.connect();
    assert_eq!(world.asked.len(), 4);
    world.refuse(Refusal::Busy);
    world.break_osd(osd(1));
    let mut pages = Vec::new();
    for _ in 0..4 {
        while world.asked.is_empty() {
            world.wait();
            world.connect();
        }
        let asked = world.next();
        let pgs = listed(&asked.1);
        assert_eq!(pgs.len(), 1);
        pages.push(vec![pgs[0].0 as u8]);
        let answer = Payload::new(&[pgs[0].0 as u8], &world.pool);
        world.reply(&asked, Ok(Outcome::Listed { refused: vec![], pages: answer }));
    }
    assert_eq!(world.result(id), Ok(Answer::Listed { pages: pages.clone(), refused: vec![] }));
    pages.sort();
    assert_eq!(pages, [[0], [1], [2], [3]]);
}

#[test]
fn volumes_have_no_objects_and_pools_have_no_blocks() {
    let mut world = World::attached();
    let id = world.mutate(1);
    assert!(matches!(world.result(id), Err(VolumeError::Invalid { .. })));
    let mut world = World::with_objects();
    let id = world.write(0, &vec![1; UNIT]);
    assert!(matches!(world.result(id), Err(VolumeError::Invalid { .. })));
    let id = world.ask(Operation::Mutate { hash: 1, operation: vec![0; 5 << 20] });
    assert!(matches!(world.result(id), Err(VolumeError::TooLarge { .. })));
}

#[test]
fn a_pool_that_is_closed_says_whether_a_change_is_on_its_way() {
    for is_lost in [false, true] {
        let mut world = World::with_objects();
        let id = world.mutate(hash_of(0));
        world.connect();
        world.apply(Event::Close { volume: VOLUME, patient: false });
        match is_lost {
            true => _ = world.wait(),
            false => world.answer_mutation(1),
        }
        assert_eq!(world.detached, [VOLUME]);
        assert_eq!(world.result(id), Err(VolumeError::Ended));
        let closed = world.told.iter().find_map(|told| match told {
            ToMonitor::CloseSession { session: SESSION, unanswered } => Some(*unanswered),
            _ => None,
        });
        assert_eq!(closed, Some(is_lost));
    }
}

#[test]
fn an_unknown_mutation_keeps_its_number_open_until_it_has_ended() {
    for is_lost in [false, true] {
        let mut world = World::with_objects();
        world.patience = Some(base::Duration::from_secs(3));
        let unknown = world.mutate(hash_of(0));
        let asked = world.next();
        world.wait();
        assert_eq!(world.result(unknown), Err(VolumeError::Unknown));
        world.mutate(hash_of(0));
        assert_eq!(world.next_mutation(), (0, (2, 1, false)), "it may still happen");
        world.answer_mutation(12);
        if is_lost {
            world.break_osd(osd(1));
        } else {
            let version = Version { epoch: Epoch::new(1), counter: 11 };
            world.reply(&asked, Ok(Outcome::Mutated { version, results: vec![] }));
        }
        world.mutate(hash_of(0));
        world.connect();
        assert_eq!(world.next_mutation(), (0, (3, 3, false)));
        world.answer_mutation(13);
        assert!(world.asked.is_empty(), "it is not sent again");
        assert!(world.core.volumes[&VOLUME].mutations.is_empty());
    }
}

#[test]
fn small_requests_do_not_pass_a_large_one_that_waits_for_room_of_their_pg() {
    let mut world = World::with_objects();
    let look = |world: &mut World, pg: u32, mib: u8| {
        let answers_size_max = u64::from(mib) << 20;
        world.ask(Operation::Look { at: Place::Pg(pg), reads: vec![mib], answers_size_max });
        world.connect();
    };
    let sent = |world: &World| -> Vec<u8> {
        let size = |(_, request): &(ConnectionId, Request)| match &request.op {
            Op::Look { reads } => reads.bytes().expect("sound")[0],
            other => panic!("{other:?}"),
        };
        world.asked.iter().map(size).collect()
    };
    look(&mut world, 0, 5);
    look(&mut world, 0, 4);
    for _ in 0..20 {
        look(&mut world, 0, 1);
    }
    assert_eq!(sent(&world), [5], "the second one has no room, and is the next");
    look(&mut world, 1, 3);
    assert_eq!(sent(&world), [5, 3], "another PG");
    let asked = world.next();
    let answers = Payload::new(b"this", &world.pool);
    world.reply(&asked, Ok(Outcome::Looked { answers }));
    assert_eq!(sent(&world), [3, 4, 1, 1, 1]);
}

/// An OSD may keep a mutation waiting while looks pass it: what is seen behind an unknown outcome must be
/// final.
#[test]
fn a_look_waits_for_mutations_of_its_pg_that_were_given_up() {
    let mut world = World::with_objects();
    let id = world.mutate(hash_of(0));
    let asked = world.next();
    world.apply(Event::Cancel { id });
    assert_eq!(world.result(id), Err(VolumeError::Unknown));
    let look = world.look(Place::Pg(0));
    assert!(world.asked.is_empty(), "the mutation may still happen");
    let other = world.look(Place::Pg(2));
    assert!(matches!(world.next().1.op, Op::Look { .. }), "another PG, of the same OSD");
    let dropped = world.look(Place::Hash(hash_of(0)));
    world.apply(Event::Cancel { id: dropped });
    assert!(matches!(world.result(dropped), Err(VolumeError::Unavailable { .. })));
    let version = Version { epoch: Epoch::new(1), counter: 1 };
    world.reply(&asked, Ok(Outcome::Mutated { version, results: vec![] }));
    let asked = world.next();
    assert!(matches!(asked.1.op, Op::Look { .. }));
    let answers = Payload::new(b"this", &world.pool);
    world.reply(&asked, Ok(Outcome::Looked { answers }));
    assert_eq!(world.result(look), Ok(Answer::Looked(b"this".to_vec())));
    assert!(world.asked.is_empty());
    let _ = other;
}

#[test]
fn a_look_waits_until_the_connection_of_a_given_up_mutation_was_replaced() {
    let mut world = World::with_objects();
    let id = world.mutate(hash_of(0));
    let asked = world.next();
    world.apply(Event::Cancel { id });
    let look = world.look(Place::Pg(0));
    assert!(world.asked.is_empty());
    world.break_osd(world.osds[&asked.0]);
    world.connect();
    if world.asked.is_empty() {
        world.wait();
        world.connect();
    }
    let asked = world.next();
    assert!(matches!(asked.1.op, Op::Look { .. }), "the mutation is not sent again");
    let answers = Payload::new(b"this", &world.pool);
    world.reply(&asked, Ok(Outcome::Looked { answers }));
    assert_eq!(world.result(look), Ok(Answer::Looked(b"this".to_vec())));
    assert!(world.core.parts.is_empty() && world.core.requests.is_empty());
}
