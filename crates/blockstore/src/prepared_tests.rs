//! Tests of prepared versions: what reads see, whether versions become stable or are rolled back, and that no
//! crash changes this.

use base::{MIB, PgId, UNIT_SIZE, Version};
use format::wire::Content;

use crate::harness::{Bench, PG, created, key, options, settings};
use crate::{Answer, AsOf, CommitMode, NoteKey, PreparedRoom, Request, Settings, StoreError};

const BOTH: [CommitMode; 2] = [CommitMode::Fsync, CommitMode::Immediate];

/// Returns a store in which units 0 and 1 of block 1 hold 100 as stable content, and the version of block 1.
pub fn with_base(commit: CommitMode) -> (Bench, Version) {
    let mut bench = Bench::new(commit);
    let base = bench.prepare_units(1, 0, 2, 100);
    bench.commit(base);
    (bench, base)
}

/// Overwrites block 90 repeatedly, so that the journal advances by about `bytes`.
pub fn churn(bench: &mut Bench, bytes: u64) {
    let (counter, epoch) = (bench.counter, bench.epoch);
    for _ in 0..bytes / (16 * UNIT_SIZE) {
        let version = bench.store.version_of(&key(90));
        let version = Version { counter: version.counter + 1, ..version };
        let units: Vec<u32> = (0..15).collect();
        let content = bench.content(version, &units, &units, 9000);
        let id = bench.repair(90, content);
        bench.run();
        assert!(bench.is_durable(id));
    }
    (bench.counter, bench.epoch) = (counter, epoch);
}

#[test]
fn versions_lie_above_the_stable_one_until_they_are_committed() {
    for commit in BOTH {
        let (mut bench, base) = with_base(commit);
        let second = bench.prepare_units(1, 1, 2, 200);
        let third = bench.prepare_units(1, 1, 1, 300);
        for round in 0..3 {
            for (as_of, version, tags) in [
                (AsOf::Stable, base, [Some(100), Some(100), None]),
                (AsOf::Version(base), base, [Some(100), Some(100), None]),
                (AsOf::Version(second), second, [Some(100), Some(200), Some(200)]),
                (AsOf::View, third, [Some(100), Some(300), Some(200)]),
            ] {
                assert_eq!(bench.store.version_as_of(&key(1), as_of), version);
                for (index, tag) in (0..).zip(tags) {
                    bench.assert_as_of(as_of, 1, index, tag);
                }
            }
            let facts = bench.store.facts(PG);
            assert_eq!((facts.committed, facts.last), (base, third));
            match round {
                0 => bench.checkpoint(),
                _ => bench = bench.crash(),
            }
        }
        bench.commit(second);
        assert_eq!(bench.store.version_as_of(&key(1), AsOf::Stable), second);
        bench.assert_as_of(AsOf::Stable, 1, 1, Some(200));
        // The commit wrote nothing, so a crash undoes it.
        let mut bench = bench.crash();
        assert_eq!(bench.store.version_as_of(&key(1), AsOf::Stable), base);
        bench.commit(second);
        let fourth = bench.prepare_units(2, 0, 1, 400);
        let mut bench = bench.crash();
        assert_eq!(bench.store.facts(PG).committed, second, "the next entry says it");
        assert_eq!(bench.store.version_as_of(&key(2), AsOf::Stable), Version::ZERO);
        bench.commit(fourth);
        bench.checkpoint();
        let mut bench = bench.crash();
        assert_eq!(bench.store.facts(PG).committed, fourth, "the checkpoint says it");
        bench.assert_as_of(AsOf::Stable, 1, 1, Some(300));
        bench.assert_as_of(AsOf::Stable, 2, 0, Some(400));
        assert!(bench.store.parts().blocks.prepared.is_empty());
    }
}

#[test]
fn a_settle_takes_back_what_is_above_it_and_nothing_brings_it_back() {
    for commit in BOTH {
        for with_checkpoint in [false, true] {
            let (mut bench, base) = with_base(commit);
            let second = bench.prepare_units(1, 1, 1, 200);
            bench.prepare_units(1, 0, 32, 300);
            bench.prepare_units(3, 0, 32, 400);
            if with_checkpoint {
                bench.checkpoint();
            }
            let note = Some((NoteKey::Pg(PG), b"record".to_vec()));
            let settle = Request::Settle { pg: PG, note, upto: second };
            assert_eq!(bench.done(settle), Ok(Answer::Durable));
            assert_eq!(bench.settle(base), Err(StoreError::AboveSettled));
            for _ in 0..3 {
                let facts = bench.store.facts(PG);
                assert_eq!((facts.committed, facts.last), (second, second));
                assert_eq!(bench.store.version_of(&key(1)), second);
                assert_eq!(bench.store.version_of(&key(3)), Version::ZERO);
                bench.assert_as_of(AsOf::View, 1, 0, Some(100));
                bench.assert_as_of(AsOf::View, 1, 1, Some(200));
                bench.assert_as_of(AsOf::View, 3, 0, None);
                assert_eq!(bench.store.note(NoteKey::Pg(PG)), Some(&b"record"[..]));
                bench = bench.crash_often(2);
            }
            bench.checkpoint();
            bench.idle();
            assert_eq!(bench.store.space().used_bytes, 128 << 10, "the places are given back");
        }
    }
}

#[test]
fn a_place_goes_with_its_version() {
    for commit in BOTH {
        let (mut bench, base) = with_base(commit);
        let place = |bench: &Bench, as_of| {
            bench.store.parts().blocks.as_of(&key(1), as_of).expect("it is there").location
        };
        let old = place(&bench, AsOf::View);
        let large = bench.prepare_units(1, 0, 32, 200);
        let small = bench.prepare_units(1, 3, 1, 300);
        let new = place(&bench, AsOf::View);
        assert_ne!(new, old);
        assert_eq!(place(&bench, AsOf::Stable), old);
        bench.commit(small);
        assert_eq!(place(&bench, AsOf::Stable), new, "the small one goes to the large one's");
        let mut bench = bench.crash();
        assert_eq!(place(&bench, AsOf::Stable), old);
        bench.commit(large);
        bench.checkpoint();
        bench.commit(small);
        bench.checkpoint();
        let mut bench = bench.crash();
        assert_eq!(bench.store.version_as_of(&key(1), AsOf::Stable), small);
        bench.assert_unit(1, 2, Some(200));
        bench.assert_unit(1, 3, Some(300));
        assert!(bench.store.facts(PG).committed > base);
    }
}

#[test]
fn a_deleted_or_emptied_block_keeps_what_versions_above_it_need() {
    let (mut bench, _) = with_base(CommitMode::Fsync);
    let version = bench.next_version();
    let deleted = Content::Tombstone { version };
    bench.prepare(1, version, deleted, None, false);
    let after = bench.prepare_units(1, 5, 1, 500);
    bench.commit(version);
    bench.ask(Request::SetFloor { pg: PG, floor: version });
    bench.checkpoint();
    assert_eq!(bench.store.version_as_of(&key(1), AsOf::Stable), version, "its tombstone stays");
    let mut bench = bench.crash();
    bench.assert_as_of(AsOf::View, 1, 0, None);
    bench.assert_as_of(AsOf::View, 1, 5, Some(500));
    bench.commit(after);
    // This version turns all units into zeros. The next version uses the place of the empty block.
    let version = bench.next_version();
    let units: Vec<u32> = (0..16).collect();
    let content = bench.content(version, &units, &[], 0);
    bench.prepare(1, version, content, None, false);
    bench.run();
    let last = bench.prepare_units(1, 6, 1, 600);
    bench.commit(version);
    bench.checkpoint();
    bench.checkpoint();
    let mut bench = bench.crash();
    bench.assert_as_of(AsOf::Stable, 1, 5, None);
    bench.commit(last);
    bench.checkpoint();
    bench.assert_unit(1, 6, Some(600));
    assert_eq!(bench.store.space().used_bytes, 128 << 10);
}

#[test]
fn versions_come_in_order() {
    let (mut bench, base) = with_base(CommitMode::Fsync);
    let content = |bench: &Bench, version| bench.content(version, &[0], &[0], 7);
    let ask = |bench: &mut Bench, version, of, replaces| {
        let content = content(bench, of);
        let id = bench.prepare(1, version, content, replaces, false);
        bench.run();
        bench.answers.remove(&id).expect("it is answered")
    };
    let gap = Version { counter: base.counter + 2, ..base };
    assert_eq!(ask(&mut bench, gap, gap, None), Err(StoreError::Unordered));
    assert_eq!(ask(&mut bench, base, base, None), Err(StoreError::Unordered));
    let next = bench.next_version();
    assert_eq!(ask(&mut bench, next, base, None), Err(StoreError::Corrupted));
    let id = bench.skip(next, false);
    bench.run();
    assert!(bench.is_durable(id));
    let repair = bench.next_version();
    assert_eq!(ask(&mut bench, repair, repair, None), Ok(Answer::Durable));
    let content = bench.content(repair, &[0], &[0], 7);
    let id = bench.repair(1, content);
    assert_eq!(bench.answers.remove(&id), Some(Err(StoreError::Unordered)));
    // A version of peering replaces the versions above `next`, and does not raise the PG's last version.
    let forward = Version { counter: repair.counter + 4, ..repair };
    assert_eq!(ask(&mut bench, forward, forward, Some(next)), Ok(Answer::Durable));
    assert_eq!(bench.store.facts(PG).last, repair);
    assert_eq!(bench.store.version_as_of(&key(1), AsOf::Version(repair)), base);
    assert_eq!(bench.store.version_of(&key(1)), forward);
    assert_eq!(bench.settle(forward), Ok(Answer::Durable));
    let mut bench = bench.crash();
    assert_eq!(bench.store.facts(PG).last, forward);
    bench.assert_as_of(AsOf::Stable, 1, 0, Some(7));
    bench.assert_as_of(AsOf::Stable, 1, 1, Some(100));
}

#[test]
fn old_versions_are_copied_and_do_not_hold_back_the_journal() {
    for commit in BOTH {
        for memory_bytes in [4 * MIB, 64 * MIB] {
            let settings = Settings { memory_bytes, ..settings() };
            let mut bench = Bench::on(created(&options(commit, 512)), settings, 5);
            let base = bench.prepare_units(1, 0, 2, 100);
            bench.commit(base);
            let small = bench.prepare_units(1, 1, 1, 200);
            let large = bench.prepare_units(3, 0, 32, 300);
            for round in 0..4 {
                churn(&mut bench, 9 * MIB);
                bench.checkpoint();
                let parts = bench.store.parts();
                let behind = parts.journal.tail().since(parts.root.replay);
                assert!(behind <= parts.journal.size() / 8 + MIB, "{behind}");
                if round % 2 == 1 {
                    bench = bench.crash();
                }
                bench.assert_as_of(AsOf::View, 1, 1, Some(200));
                bench.assert_as_of(AsOf::Stable, 1, 1, Some(100));
                bench.assert_as_of(AsOf::View, 3, 31, Some(300));
                bench.assert_as_of(AsOf::Stable, 3, 31, None);
            }
            bench.commit(small);
            bench.checkpoint();
            let mut bench = bench.crash();
            bench.assert_as_of(AsOf::Stable, 1, 1, Some(200));
            bench.commit(large);
            bench.checkpoint();
            let mut bench = bench.crash();
            bench.assert_as_of(AsOf::Stable, 3, 31, Some(300));
        }
    }
}

#[test]
fn a_copy_names_damaged_units_and_the_rest_stays() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let first = bench.tail();
    let version = bench.prepare_units(1, 0, 3, 100);
    let place = bench.place(first);
    churn(&mut bench, 3 * MIB);
    let mut disk = bench.off();
    disk.flip(place + 512 + UNIT_SIZE);
    let mut bench = Bench::on(disk, settings(), 3);
    churn(&mut bench, 9 * MIB);
    bench.checkpoint();
    for _ in 0..2 {
        bench.assert_unit(1, 0, Some(100));
        bench.assert_unit(1, 2, Some(100));
        assert!(bench.read(1, 1, 1).is_err());
        bench = bench.crash();
    }
    bench.commit(version);
    bench.checkpoint();
    bench.assert_unit(1, 2, Some(100));
    assert!(bench.read(1, 1, 1).is_err());
    assert!(!bench.store.is_suspect(PG));
}

/// Returns a store in which a version with all units of block 3 is prepared, lazily; the version of the
/// base, and the place of the prepared data on the disk.
fn with_large_version() -> (Bench, Version, u64) {
    let (mut bench, base) = with_base(CommitMode::Fsync);
    bench.idle();
    let version = bench.next_version();
    let units: Vec<u32> = (0..32).collect();
    let content = bench.content(version, &units, &units, 300);
    bench.prepare(3, version, content, None, true);
    let info = bench.store.parts().blocks.as_of(&key(3), AsOf::View).expect("it is there");
    let place = bench.store.parts().place(info.location);
    (bench, base, place)
}

#[test]
fn a_version_that_recovery_drops_takes_those_behind_it_along() {
    let (mut bench, base, place) = with_large_version();
    let next = bench.next_version();
    let content = bench.content(next, &[1], &[1], 200);
    bench.prepare(1, next, content, None, true);
    let skipped = bench.next_version();
    bench.skip(skipped, true);
    bench.run();
    let mut disk = bench.off();
    disk.flip(place + 5);
    let mut bench = Bench::on(disk, settings(), 3);
    assert_eq!(bench.rows(), "AFHP");
    for round in 0..3 {
        assert_eq!(bench.store.facts(PG).last, base);
        assert_eq!(bench.store.version_of(&key(1)), base);
        assert_eq!(bench.store.version_of(&key(3)), Version::ZERO);
        bench.assert_unit(1, 1, Some(100));
        assert!(!bench.store.is_suspect(PG));
        bench = bench.crash();
        if round == 1 {
            break;
        }
    }
    // Versions are accepted again after the entry that records the drop.
    bench.next_epoch();
    bench.counter = base.counter;
    bench.settle(base).expect("nothing above is stable");
    let later = bench.prepare_units(1, 1, 1, 500);
    let mut bench = bench.crash();
    assert_eq!(bench.store.version_of(&key(1)), later);
    bench.assert_unit(1, 1, Some(500));
}

#[test]
fn at_the_limit_versions_are_refused_and_a_settle_is_not() {
    let (mut bench, base) = with_base(CommitMode::Fsync);
    let mut count = 0u32;
    loop {
        let room = bench.store.prepared_room();
        assert!(room.used_bytes <= room.bytes_max);
        let version = bench.next_version();
        let units: Vec<u32> = (0..15).collect();
        let content = bench.content(version, &units, &units, 700);
        let id = bench.prepare(5 + count % 40, version, content, None, false);
        bench.run();
        match bench.answers.remove(&id) {
            Some(Ok(Answer::Durable)) => count += 1,
            Some(Err(StoreError::Full)) => {
                assert!(room.free_bytes() < PreparedRoom::cost_of(15), "what has room is taken");
                break;
            }
            other => panic!("{other:?}"),
        }
        assert!(count < 1000);
    }
    assert!(count > 20);
    let refused = bench.next_version();
    let id = bench.skip(refused, false);
    assert_eq!(bench.answers.remove(&id), Some(Err(StoreError::Full)), "no gap in an epoch");
    // All PGs share the room; primaries divide it among PGs. Replicated blocks need no such room.
    let pg = PgId { number: PG.number + 1, ..PG };
    let units: Vec<u32> = (0..15).collect();
    let content = bench.content(base, &units, &units, 700);
    let prepare =
        Request::Prepare { pg, key: key(99), version: base, content, replaces: None, lazy: false };
    assert_eq!(bench.done(prepare), Err(StoreError::Full));
    bench.write(90, 0, 1, 5);
    bench.run();
    assert_eq!(bench.settle(base), Ok(Answer::Durable));
    assert_eq!(bench.store.prepared_room().used_bytes, 0);
    bench.next_epoch();
    let mut bench = bench.crash();
    assert_eq!(bench.store.version_of(&key(5)), Version::ZERO);
    bench.assert_unit(1, 0, Some(100));
}

#[test]
fn listings_show_the_newest_version_or_the_stable_one() {
    let (mut bench, base) = with_base(CommitMode::Fsync);
    let second = bench.prepare_units(2, 0, 1, 200);
    let third = bench.prepare_units(1, 0, 1, 300);
    let version = bench.next_version();
    bench.prepare(4, version, Content::Tombstone { version }, None, false);
    let list = |bench: &Bench, is_stable: bool| {
        let mut found: Vec<(u32, Version, bool)> = match is_stable {
            true => bench.store.stable_blocks(PG.pool, 0, u32::MAX, None).collect::<Vec<_>>(),
            false => bench.store.blocks(PG.pool, 0, u32::MAX, None).collect::<Vec<_>>(),
        }
        .into_iter()
        .map(|(key, version, is_tombstone)| (key.stripe.get(), version, is_tombstone))
        .collect();
        found.sort_unstable();
        found
    };
    assert_eq!(list(&bench, true), [(1, base, false)]);
    let all = [(1, third, false), (2, second, false), (4, version, true)];
    assert_eq!(list(&bench, false), all);
    let keys: Vec<_> = bench.store.blocks(PG.pool, 0, u32::MAX, None).map(|of| of.0).collect();
    assert!(keys.is_sorted());
    for (index, key) in keys.iter().enumerate() {
        let rest = bench.store.blocks(PG.pool, 0, u32::MAX, Some(*key));
        assert!(rest.map(|of| of.0).eq(keys[index + 1..].iter().copied()));
    }
}

#[test]
fn what_was_dropped_along_stays_dropped_when_the_journal_that_shows_why_is_freed() {
    let (mut bench, base, place) = with_large_version();
    // This version of another PG makes checkpoints keep the journal from here on.
    let other = PgId { number: PG.number + 1, ..PG };
    let content = bench.content(base, &[0], &[0], 800);
    let (key_8, replaces) = (key(8), None);
    let prepare =
        Request::Prepare { pg: other, key: key_8, version: base, content, replaces, lazy: true };
    bench.ask(prepare);
    let next = bench.next_version();
    let content = bench.content(next, &[1], &[1], 200);
    bench.prepare(1, next, content, None, true);
    bench.run();
    let mut disk = bench.off();
    disk.flip(place + 5);
    let mut bench = Bench::on(disk, settings(), 3);
    assert_eq!(bench.rows(), "AFHP");
    for _ in 0..2 {
        bench.checkpoint();
        bench = bench.crash();
        assert_eq!(bench.store.version_of(&key(1)), base);
        assert_eq!(bench.store.version_of(&key_8), base);
        assert_eq!(bench.store.facts(PG).last, base);
        bench.assert_unit(1, 1, Some(100));
        bench.assert_unit(8, 0, Some(800));
    }
}
