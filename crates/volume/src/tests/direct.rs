//! Direct reads: in pools with parity, reads of one part go to the member that holds it.

use base::{BlockSize, Duration, Epoch, Incarnation, MapRevision, Scheme};
use cluster::map::{MapDelta, OsdInfo};
use cluster::message::FromMonitor;
use format::door::CloseReason;
use format::wire::{Member, Op, PgEntry, Refusal, Request};

use super::world::{World, osd, osd_info, pg, pool_delta};

const BLOCK: u64 = 128 * 1024;

/// A pool of two data parts and parity. In each PG osd.1 leads and has the first part, osd.2 has the second
/// one, osd.3 has parity.
fn entry_of_three(number: u32, epoch: u32) -> PgEntry {
    let member = |number| Member { osd: osd(number), incarnation: Incarnation::new(1) };
    let entry = PgEntry::new(pg(number), (1..=3).map(member));
    PgEntry { epoch: Epoch::new(epoch), revision: MapRevision::new(1), ..entry }
}

fn attached() -> World {
    let mut world = World::new(None);
    world.open(false);
    world.connect();
    let mut delta = pool_delta(0, 1, (0..4).map(|number| entry_of_three(number, 1)).collect());
    delta.pool.scheme = Scheme::Xor { data: 2 };
    delta.pool.block_size = BlockSize::new(BLOCK).expect("in range");
    let osds = (1..=3).map(|number| osd_info(number, 1)).collect();
    world.say(FromMonitor::Map(MapDelta { osds, pools: vec![delta], ..MapDelta::default() }));
    world.accept_session();
    world
}

/// Returns the OSD that is asked next, and whether as a direct read. The request stays.
fn asked(world: &mut World) -> (u32, bool) {
    world.connect();
    let (connection, request) = world.asked.front().expect("something is asked");
    (world.osds[connection].get(), matches!(request.op, Op::ReadPart { .. }))
}

#[test]
fn a_read_of_one_part_goes_to_its_member_once_that_is_connected() {
    let mut world = attached();
    let id = world.read(0, 4096);
    world.finish(id).expect("it is read");
    let first = world.read(BLOCK, 4096);
    assert_eq!(asked(&mut world), (1, false), "nothing waits for the connection");
    world.finish(first).expect("it is read");
    let second = world.read(BLOCK + 100, 200);
    assert_eq!(asked(&mut world), (2, true));
    world.finish(second).expect("it is read");
    let id = world.read(0, 4096);
    assert_eq!(asked(&mut world), (1, false), "the primary's part");
    world.finish(id).expect("it is read");
    world.write(BLOCK, &[7; 4096]);
    assert_eq!(asked(&mut world), (1, false), "a write");
}

/// Returns where all requests went, and whether as direct reads, with the length of each.
fn all_asked(world: &mut World) -> Vec<(u32, bool, u32)> {
    world.connect();
    let of = |(connection, request): &(_, Request)| {
        let (Op::Read { length, .. } | Op::ReadPart { length, .. }) = &request.op else {
            panic!("{:?}", request.op)
        };
        let is_direct = matches!(request.op, Op::ReadPart { .. });
        (world.osds[connection].get(), is_direct, *length)
    };
    world.asked.iter().map(of).collect()
}

#[test]
fn a_read_of_several_parts_is_cut_while_all_data_members_are_up() {
    let mut world = attached();
    let bytes: Vec<u8> = (0..8192_u32).map(|byte| byte as u8 ^ (byte >> 8) as u8).collect();
    let id = world.write(BLOCK - 4096, &bytes);
    world.finish(id).expect("it is written");
    let first = world.read(BLOCK, 4096);
    world.finish(first).expect("it is read");
    let say_down = |world: &mut World, down: u32, revision: u64| {
        let info = OsdInfo { up: false, ..osd_info(down, revision) };
        world.say(FromMonitor::Map(MapDelta { osds: vec![info], ..MapDelta::default() }));
    };
    let read = |world: &mut World, routes: &[(u32, bool, u32)]| {
        let id = world.read(BLOCK - 4096, 8192);
        assert_eq!(all_asked(world), routes);
        world.finish(id).expect("it is read");
        assert!(world.bytes(BLOCK - 4096, 8192) == bytes, "the pieces are in order");
    };
    read(&mut world, &[(1, false, 4096), (2, true, 4096)]);
    say_down(&mut world, 3, 2);
    read(&mut world, &[(1, false, 4096), (2, true, 4096)]);
    say_down(&mut world, 2, 3);
    read(&mut world, &[(1, false, 8192)]);
}

#[test]
fn what_a_member_refuses_goes_to_the_primary() {
    let damaged = Refusal::Damaged { units: vec![1] };
    for refusal in [Refusal::AskPrimary, Refusal::Busy, damaged, Refusal::Stale(None)] {
        let mut world = attached();
        let first = world.read(BLOCK, 4096);
        world.finish(first).expect("it is read");
        let id = world.read(BLOCK, 4096);
        assert_eq!(asked(&mut world), (2, true));
        world.refuse(refusal);
        assert_eq!(asked(&mut world), (1, false), "at once");
        world.finish(id).expect("it is read");
    }
}

#[test]
fn a_newer_entry_in_a_refusal_moves_the_read() {
    let mut world = attached();
    let first = world.read(BLOCK, 4096);
    world.finish(first).expect("it is read");
    let id = world.read(BLOCK, 4096);
    assert_eq!(asked(&mut world), (2, true));
    let number = world.asked[0].1.pg.number;
    world.refuse(Refusal::Stale(Some(entry_of_three(number, 2))));
    assert_eq!(asked(&mut world), (1, false));
    assert_eq!(world.asked[0].1.epoch, Epoch::new(2));
    world.finish(id).expect("it is read");
}

#[test]
fn a_member_that_is_lost_holds_nothing_up() {
    let mut world = attached();
    let first = world.read(BLOCK, 4096);
    world.finish(first).expect("it is read");
    let id = world.read(BLOCK, 4096);
    assert_eq!(asked(&mut world), (2, true));
    world.break_osd(osd(2));
    assert_eq!(asked(&mut world), (1, false), "it is sent again, to the primary");
    world.finish(id).expect("it is read");
    // It is tried again after a while, and not for each read.
    for _ in 0..3 {
        let id = world.read(BLOCK, 4096);
        assert!(world.connecting.is_empty());
        world.finish(id).expect("it is read");
    }
    world.now = world.now + Duration::from_secs(2);
    let id = world.read(BLOCK, 4096);
    world.refuse_connection(CloseReason::Refused);
    world.finish(id).expect("it is read");
    world.read(BLOCK, 4096);
    assert!(world.connecting.is_empty());
}
