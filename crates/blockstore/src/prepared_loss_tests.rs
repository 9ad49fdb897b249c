//! Tests of prepared versions whose data is lost, and of what checkpoints journal again.

use base::{MIB, PgId, UNIT_SIZE, Version};
use format::wire::Digest;

use crate::harness::{Bench, PG, key, settings};
use crate::prepared_tests::{churn, with_base};
use crate::{Answer, AsOf, CommitMode, PreparedRoom, Request, StoreError};

#[test]
fn rows_c_v_and_x_keep_a_prepared_version_and_the_store_says_which() {
    for (row, is_large, is_recorded) in
        [('C', false, true), ('V', false, false), ('X', true, false)]
    {
        let (mut bench, base) = with_base(CommitMode::Fsync);
        bench.idle();
        let lsn = bench.tail();
        let version = bench.prepare_units(1, 0, if is_large { 32 } else { 3 }, 200);
        let info = bench.store.parts().blocks.as_of(&key(1), AsOf::View).expect("it is there");
        let place = match is_large {
            true => bench.store.parts().place(info.location),
            false => bench.place(lsn) + 512,
        };
        assert_eq!(bench.store.first_lost(PG), None);
        if is_recorded {
            bench.idle();
        }
        let mut disk = bench.off();
        let from = place + UNIT_SIZE;
        match is_recorded {
            true => disk.flip(from),
            false => disk.unreadable = Some((from, from + 512)),
        }
        let mut bench = Bench::on(disk, settings(), 3);
        assert!(bench.rows().contains(row), "{row}: {}", bench.rows());
        for round in 0..4 {
            let facts = bench.store.facts(PG);
            assert_eq!((facts.last, facts.committed), (version, base));
            assert_eq!(bench.store.first_lost(PG), Some(version), "{row}, round {round}");
            bench.assert_as_of(AsOf::Stable, 1, 1, Some(100));
            bench.assert_as_of(AsOf::View, 1, 0, Some(200));
            bench.assert_as_of(AsOf::View, 1, 2, Some(200));
            assert!(bench.read(1, 1, 1).is_err());
            match round {
                // The copy says it, too.
                1 => {
                    churn(&mut bench, 9 * MIB);
                    bench.checkpoint();
                }
                _ => bench = bench.crash(),
            }
        }
        bench.settle(version).expect("nothing above is stable");
        assert_eq!(bench.store.first_lost(PG), None, "nothing is prepared");
        assert!(bench.read(1, 1, 1).is_err());
        assert!(!bench.store.is_suspect(PG));
    }
}

#[test]
fn a_unit_that_was_prepared_as_damaged_is_no_loss() {
    let (mut bench, _) = with_base(CommitMode::Fsync);
    let version = bench.next_version();
    let mut content = bench.content(version, &[0, 1], &[0], 200);
    let format::wire::Content::Block { damaged, .. } = &mut content else { panic!("a block") };
    damaged[0] |= 2;
    bench.prepare(1, version, content, None, false);
    bench.run();
    for _ in 0..2 {
        assert_eq!(bench.store.version_of(&key(1)), version);
        assert_eq!(bench.store.first_lost(PG), None);
        assert!(bench.read(1, 1, 1).is_err());
        churn(&mut bench, 9 * MIB);
        bench.checkpoint();
        bench = bench.crash();
    }
}

#[test]
fn a_copy_of_what_peering_prepared_takes_nothing_back() {
    let (mut bench, base) = with_base(CommitMode::Fsync);
    let replace = |bench: &mut Bench, more: u64, above: Version| {
        let version = Version { counter: base.counter + more, ..base };
        let content = bench.content(version, &[0], &[0], 100 * (more + 1));
        let id = bench.prepare(1, version, content, Some(above), false);
        bench.run();
        assert!(bench.is_durable(id));
        version
    };
    let first = replace(&mut bench, 3, base);
    churn(&mut bench, 6 * MIB);
    let second = replace(&mut bench, 6, first);
    // The first one is old, and is journaled again behind the second one.
    bench.checkpoint();
    for _ in 0..2 {
        bench = bench.crash();
        assert_eq!(bench.store.version_of(&key(1)), second);
        bench.assert_as_of(AsOf::Stable, 1, 0, Some(100));
        bench.assert_as_of(AsOf::Version(first), 1, 0, Some(400));
        bench.assert_as_of(AsOf::View, 1, 0, Some(700));
        assert_eq!(bench.store.facts(PG).last, base, "they are outside the order");
    }
}

#[test]
fn peering_does_not_take_the_room_of_others() {
    let (mut bench, base) = with_base(CommitMode::Fsync);
    let other = PgId { number: PG.number + 1, ..PG };
    let before = bench.store.prepared_room(PG);
    let units: Vec<u32> = (0..15).collect();
    let mut count = 0;
    loop {
        count += 1;
        assert!(count < 1000);
        let version = Version { counter: base.counter + count, ..base };
        let content = bench.content(version, &units, &units, 800);
        let key = key(100 + count as u32);
        let replaces = Some(base);
        let prepare = Request::Prepare { pg: other, key, version, content, replaces, lazy: false };
        match bench.done(prepare) {
            Ok(Answer::Durable) => {}
            Err(StoreError::Full) => break,
            answer => panic!("{answer:?}"),
        }
    }
    assert!(count > 20, "{count}");
    assert_eq!(bench.store.prepared_room(PG), before);
    let mut bench = bench.crash();
    bench.commit(base);
    churn(&mut bench, 9 * MIB);
    bench.checkpoint();
    assert_eq!(bench.store.prepared_room(PG), before, "copies are of peering, too");
    // What was promised is still there, and a settle gives back what peering took.
    let given = before.free_bytes() / PreparedRoom::cost_of(15);
    for _ in 0..given {
        let version = bench.next_version();
        let content = bench.content(version, &units, &units, 700);
        let prepare = bench.prepare(2, version, content, None, false);
        bench.run();
        assert!(bench.is_durable(prepare));
    }
    let settle = Request::Settle { pg: other, note: None, upto: base };
    assert_eq!(bench.done(settle), Ok(Answer::Durable));
    assert!(bench.store.prepared_room(other).used_bytes > 0, "of the first PG");
}

#[test]
fn a_digest_is_of_the_view() {
    let (mut bench, _) = with_base(CommitMode::Fsync);
    let second = bench.prepare_units(1, 1, 2, 200);
    for deep in [false, true] {
        match bench.done(Request::Digest { key: key(1), deep }) {
            Ok(Answer::Digest(Digest::Block { version, written, damaged, checksums })) => {
                assert_eq!((version, written, damaged), (second, vec![7], vec![0]));
                assert_eq!(checksums.len(), 3);
            }
            other => panic!("{other:?}"),
        }
    }
}
