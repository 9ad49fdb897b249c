//! Messages that no correct member sends are refused: they neither end the process nor have an effect.

use format::wire::{Change, Content, Filling, MemberState};

use super::world::{World, osd_id};
use super::*;

const OTHER: OsdId = OsdId::new(2).unwrap();

/// Versions that cannot exist in epoch 5.
fn impossible() -> [Version; 2] {
    [version(6, 1), version(4, u64::MAX)]
}

/// Returns OSD 1 as a member of epoch 5. If `leads`, OSD 1 is the primary, otherwise OSD 2.
fn member(leads: bool, learns: bool) -> Pg {
    let alone = entry(5);
    let me = alone.acting_member(OsdId::FIRST).expect("it acts alone");
    let other = Member { osd: OTHER, incarnation: Incarnation::new(1) };
    let entry = match learns {
        true => PgEntry { positions: vec![Some(other)], ..alone }.with_learners([me]),
        false => PgEntry { positions: vec![Some(me), Some(other)], ..alone },
    };
    let entry = entry.led_by(if leads { OsdId::FIRST } else { OTHER });
    let facts = facts(Version::ZERO);
    let mut pg = Pg::new(shape(), OsdId::FIRST, facts, None, BufferPool::default());
    pg.enter(entry, Scheme::Copies { count: 2 }, None, &mut Vec::new());
    pg
}

fn says(pg: &mut Pg, body: PeerBody) -> Result<(), String> {
    pg.peer_said(OTHER, body, &mut Vec::new())
}

fn refused(pg: &mut Pg, body: PeerBody) {
    let why = says(pg, body).expect_err("no member sends this");
    assert!(why.contains("cannot exist in epoch"), "{why}");
}

fn filling(complete: Version, since: Version) -> Filling {
    Filling { complete, cursor: None, since, whole: Vec::new(), listing: false }
}

fn activate(adopted: Version, filling: Option<Filling>) -> PeerBody {
    let history = vec![Activation { epoch: Epoch::new(5), adopted }];
    PeerBody::Activate { adopted, floor: Version::ZERO, history, filling }
}

fn write_of(version: Version, mark: Version, key: BlockKey) -> PeerBody {
    let (checksums, data) = fill(1, 7);
    let change = Change::Write { offset: 0, checksums, data };
    PeerBody::Write { version, mark, key, block_size: BLOCK_SIZE, lazy: false, change }
}

#[test]
fn a_write_of_an_earlier_epoch_ends_nothing_in_the_next_one() {
    let mut world = World::new(7, 3, 3);
    world.settle();
    let at = world.server().unwrap();
    let (one, other) = ((at + 1) % 3, (at + 2) % 3);
    world.write(at, 1, 0, 1);
    let given = world.sent.iter().rev().find_map(|(_, _, body)| match body {
        PeerBody::Write { version, .. } => Some(*version),
        _ => None,
    });
    let version = given.expect("it was sent");
    world.disconnect(at, one);
    world.monitor();
    world.learn(at);
    assert!(matches!(world.serving(at), Serving::Draining | Serving::Asking));
    let mut verdict = Ok(());
    world.with(at, |pg, actions| {
        verdict =
            pg.peer_said(osd_id(other), PeerBody::Written { version, durable: true }, actions);
    });
    assert!(verdict.is_err());
    world.settle();
    assert!(world.is_whole());
}

#[test]
fn a_state_with_versions_that_cannot_be_is_refused() {
    for wrong in impossible() {
        let mut pg = member(true, false);
        pg.peer_ready(OTHER, &mut Vec::new());
        let past = vec![Activation { epoch: Epoch::new(4), adopted: wrong }];
        for state in [
            MemberState { complete: wrong, had: wrong, ..state() },
            MemberState { had: wrong, ..state() },
            MemberState { committed: wrong, ..state() },
            MemberState { held: wrong, ..state() },
            MemberState { floor: wrong, ..state() },
            MemberState { history: past, ..state() },
            MemberState { filling: Some(filling(wrong, Version::ZERO)), ..state() },
            MemberState { filling: Some(filling(Version::ZERO, wrong)), ..state() },
        ] {
            refused(&mut pg, PeerBody::State(state));
        }
        let key = pg.shape.key(place());
        let blocks = vec![ListedBlock { key, version: wrong, is_tombstone: false }];
        refused(&mut pg, PeerBody::Listed { call: 0, blocks, is_last: true });
        says(&mut pg, PeerBody::State(state())).expect("it is sound");
    }
}

#[test]
fn a_primary_that_names_versions_that_cannot_be_is_refused() {
    for wrong in impossible() {
        let mut pg = member(false, false);
        says(&mut pg, PeerBody::Query { revision: MapRevision::new(1) }).unwrap();
        refused(&mut pg, activate(wrong, None));
        let key = pg.shape.key(place());
        let content = Content::Tombstone { version: wrong };
        refused(&mut pg, PeerBody::Repair { call: 0, key, content });
        says(&mut pg, activate(version(4, 9), None)).unwrap();
        refused(&mut pg, write_of(version(5, 10), wrong, key));
        says(&mut pg, write_of(version(5, 10), version(4, 9), key)).unwrap();
    }
}

#[test]
fn a_learners_first_write_is_of_its_epoch() {
    let mut pg = member(false, true);
    says(&mut pg, PeerBody::Query { revision: MapRevision::new(1) }).unwrap();
    for wrong in impossible() {
        refused(&mut pg, activate(version(4, 9), Some(filling(wrong, Version::ZERO))));
    }
    says(&mut pg, activate(version(4, 9), Some(filling(Version::ZERO, Version::ZERO)))).unwrap();
    let key = pg.shape.key(place());
    says(&mut pg, write_of(version(4, 10), version(4, 9), key)).expect_err("it is of an old epoch");
    refused(&mut pg, write_of(version(5, u64::MAX), version(4, 9), key));
    says(&mut pg, write_of(version(5, 12), version(5, 10), key)).unwrap();
    says(&mut pg, write_of(version(5, 14), version(5, 10), key)).expect_err("one is missing");
    says(&mut pg, write_of(version(5, 13), version(5, 10), key)).unwrap();
}

/// Returns a pool of two data parts and a parity part. A unit of part 1 was written twice; the second version
/// is in transit to the member with part 1.
fn write_under_way() -> (World, usize) {
    let mut world = World::of_scheme(1, 3, Scheme::ReedSolomon { data: 2, parity: 1 });
    world.large_percent = 0;
    world.settle();
    let at = world.server().unwrap();
    assert_eq!(at, 0, "it is another member than that of part 1");
    world.write(at, 1, UNITS, 2);
    world.settle();
    world.sent.clear();
    world.write(at, 1, UNITS, 1);
    (world, at)
}

/// Returns the newest message that was sent for which `is_meant` is true.
fn sent(world: &World, is_meant: impl Fn(&PeerBody) -> bool) -> PeerBody {
    let found = world.sent.iter().rev().map(|(_, _, body)| body).find(|body| is_meant(body));
    found.cloned().expect("it was sent")
}

fn says_in(world: &mut World, (from, to): (usize, usize), body: PeerBody) -> Result<(), String> {
    let mut verdict = Ok(());
    world.with(to, |pg, actions| verdict = pg.peer_said(osd_id(from), body, actions));
    verdict
}

#[test]
fn a_version_of_a_part_is_taken_once_and_in_its_turn() {
    let (mut world, at) = write_under_way();
    let part = sent(&world, |body| matches!(body, PeerBody::Part { .. }));
    world.deliver(at, 1, true);
    let with = |counter: u64| {
        let mut body = part.clone();
        if let PeerBody::Part { version, mark, content, .. } = &mut body {
            (version.counter, *mark) = (counter, Version::ZERO);
            if let Content::Block { version: its, .. } = content {
                its.counter = counter;
            }
        }
        body
    };
    for wrong in [part.clone(), with(0), with(1), with(4), with(u64::MAX)] {
        assert!(says_in(&mut world, (at, 1), wrong.clone()).is_err(), "{wrong:?}");
    }
    let key = *world.osds[1].store.now.view().keys().next().unwrap();
    says_in(&mut world, (at, 1), write_of(version(1, 3), version(1, 1), key)).unwrap_err();
    world.settle();
    world.check_equal();
    world.history.check();
}

#[test]
fn a_difference_is_passed_on_once_and_only_if_it_is_the_one_that_was_asked_for() {
    for is_damaged in [false, true] {
        let (mut world, at) = write_under_way();
        let key = *world.osds[1].store.now.view().keys().next().unwrap();
        if is_damaged {
            // The old unit must be reconstructed from others, which takes a while.
            world.osds[1].store.damage(key, 0);
        }
        // Without a connection with the parity member, the difference goes through the primary.
        world.disconnect(1, 2);
        world.deliver(at, 1, true);
        world.store_goes_on(1);
        let delta = sent(&world, |body| matches!(body, PeerBody::Delta { .. }));
        let PeerBody::Delta { version, part, content, .. } = delta.clone() else { return };
        let other = BlockKey { hash: key.hash ^ 1, ..key };
        let Content::Block { block_size, version: before, .. } = content else {
            panic!("its part was there")
        };
        let all = Content::Block {
            version: before,
            block_size,
            units: vec![(1 << UNITS) - 1],
            written: vec![0],
            damaged: vec![(1 << UNITS) - 1],
            checksums: Vec::new(),
            data: None,
            table: Vec::new(),
        };
        let wrong = [
            PeerBody::Delta { version, key: other, part, content: content.clone() },
            PeerBody::Delta { version, key, part, content: all },
            PeerBody::Delta { version, key, part, content: Content::Gone },
        ];
        for wrong in wrong {
            assert!(says_in(&mut world, (1, at), wrong.clone()).is_err(), "{wrong:?}");
        }
        says_in(&mut world, (1, at), delta.clone()).unwrap();
        let passed = |world: &World| {
            let deltas = world.sent.iter().filter(|(from, _, body)| {
                *from == at && matches!(body, PeerBody::ParityDelta { .. })
            });
            deltas.count()
        };
        let before = passed(&world);
        says_in(&mut world, (1, at), delta).unwrap();
        assert_eq!(passed(&world), before, "the second one is dropped");
        world.settle();
        assert_eq!(passed(&world), 1);
        world.check_equal();
        world.history.check();
    }
}

#[test]
fn a_difference_is_taken_of_the_acting_member_of_its_part_and_only_if_it_was_announced() {
    let (mut world, at) = write_under_way();
    world.deliver(at, 1, true);
    world.deliver(at, 2, true);
    world.store_goes_on(1);
    let delta = sent(&world, |body| matches!(body, PeerBody::ParityDelta { .. }));
    let PeerBody::ParityDelta { version, key, content, part } = delta.clone() else { return };
    let other = BlockKey { hash: key.hash ^ 1, ..key };
    let first = Position::FIRST;
    let of_part = |part| PeerBody::ParityDelta { version, key, part, content: content.clone() };
    let of_key = |key| PeerBody::ParityDelta { version, key, part, content: content.clone() };
    let late = Version { epoch: version.epoch.next(), ..version };
    let of_version = PeerBody::ParityDelta { version: late, key, part, content: content.clone() };
    let wrong = [
        ((1, 2), of_part(first)),
        ((1, 2), of_key(other)),
        ((1, 2), of_version),
        ((1, 2), PeerBody::Sync { call: 1 }),
        ((at, 2), of_part(first)),
        ((1, at), delta),
        ((1, at), PeerBody::DeltaWanted { version, part }),
        ((2, at), PeerBody::DeltaWanted { version: late, part }),
    ];
    for (way, wrong) in wrong {
        assert!(says_in(&mut world, way, wrong.clone()).is_err(), "{way:?}: {wrong:?}");
    }
    world.settle();
    world.check_equal();
    world.history.check();
}
