//! Tests of prepared versions whose data is lost, and of the copies that checkpoints journal.

use base::{MIB, PgId, UNIT_SIZE, Version};
use format::wire::Digest;

use crate::harness::{Bench, PG, key, settings};
use crate::prepared_tests::{churn, with_base};
use crate::{
    Answer, AsOf, CommitMode, NoteKey, PreparedRoom, Request, RequestId, Settings, StoreError,
};

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
                // The copy lists the loss, too.
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
    // The first version is old: the checkpoint journals it again, after the second version.
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
    let before = bench.store.prepared_room();
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
    assert_eq!(bench.store.prepared_room(), before);
    let mut bench = bench.crash();
    bench.commit(base);
    churn(&mut bench, 9 * MIB);
    bench.checkpoint();
    assert_eq!(bench.store.prepared_room(), before, "copies are of peering, too");
    // The promised room is still free, and a settle frees the room that peering used.
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
    assert!(bench.store.prepared_room().used_bytes > 0, "of the first PG");
}

#[test]
fn a_copy_of_a_version_whose_base_is_lost_is_dropped() {
    let (mut bench, _) = with_base(CommitMode::Fsync);
    let version = bench.prepare_units(1, 1, 1, 200);
    bench.checkpoint();
    let parts = bench.store.parts();
    let (_, leaf) = parts.pages.leaf_of(&key(1)).expect("it is there");
    let leaf_place = parts.page_place(leaf.page);
    churn(&mut bench, 4 * MIB);
    bench.checkpoint();
    let parts = bench.store.parts();
    let root_place = parts.root_place(parts.root.sequence);
    let mut disk = bench.off();
    // Replay begins at the older root, whose leaf is lost. It collects the version, and then finds its copy.
    disk.flip(root_place + 8);
    disk.flip(leaf_place + 100);
    let mut bench = Bench::on(disk, settings(), 3);
    assert!(bench.opened, "{:?}", bench.stopped);
    assert!(bench.rows().contains('S') && bench.rows().contains('P'), "{}", bench.rows());
    assert_eq!(bench.store.version_of(&key(1)), Version::ZERO);
    assert!(bench.store.is_suspect(PG));
    bench.commit(version);
    bench.checkpoint();
    assert_eq!(bench.crash().store.version_of(&key(1)), Version::ZERO);
}

#[test]
fn a_digest_is_of_the_view() {
    let (mut bench, _) = with_base(CommitMode::Fsync);
    let second = bench.prepare_units(1, 1, 2, 200);
    for deep in [false, true] {
        match bench.done(Request::Digest { key: key(1), deep }) {
            Ok(Answer::Digest(Digest::Block { version, written, damaged, checksums, .. })) => {
                assert_eq!((version, written, damaged), (second, vec![7], vec![0]));
                assert_eq!(checksums.len(), 3);
            }
            other => panic!("{other:?}"),
        }
    }
}

const OTHER: PgId = PgId { pool: PG.pool, number: PG.number + 1 };

/// Prepares a version of block 8 in another PG.
fn prepare_other(bench: &mut Bench, version: Version) -> RequestId {
    let content = bench.content(version, &[0], &[0], 800);
    let (pg, key, replaces) = (OTHER, key(8), None);
    bench.ask(Request::Prepare { pg, key, version, content, replaces, lazy: false })
}

#[test]
fn a_settle_whose_note_is_lost_takes_back_what_it_took_back() {
    for (is_in_checkpoint, row) in [(false, 'M'), (false, 'W'), (true, 'A')] {
        let (mut bench, base) = with_base(CommitMode::Fsync);
        // This version of another PG makes checkpoints keep the journal from here on.
        let other = prepare_other(&mut bench, base);
        bench.run();
        assert!(bench.is_durable(other));
        bench.prepare_units(1, 1, 1, 200);
        bench.prepare_units(3, 0, 32, 300);
        bench.idle();
        let lsn = bench.tail();
        let note = Some((NoteKey::Pg(PG), b"record".to_vec()));
        let settle = Request::Settle { pg: PG, note, upto: base };
        assert_eq!(bench.done(settle), Ok(Answer::Durable));
        match (is_in_checkpoint, row) {
            (true, _) => bench.checkpoint(),
            (false, 'M') => bench.idle(),
            _ => {}
        }
        let parts = bench.store.parts();
        assert!(parts.root.replay <= lsn && (lsn < parts.root.until) == is_in_checkpoint);
        let place = bench.place(lsn) + 512;
        let mut disk = bench.off();
        match row {
            'W' => disk.unreadable = Some((place, place + 512)),
            _ => disk.flip(place),
        }
        let mut bench = Bench::on(disk, settings(), 3);
        assert!(bench.rows().contains(row), "{}", bench.rows());
        for _ in 0..3 {
            let facts = bench.store.facts(PG);
            assert_eq!((facts.last, facts.committed), (base, base), "row {row}");
            assert_eq!(bench.store.version_of(&key(1)), base);
            assert_eq!(bench.store.version_of(&key(3)), Version::ZERO);
            bench.assert_unit(1, 1, Some(100));
            assert_eq!(bench.store.is_suspect(PG), !is_in_checkpoint, "its note is lost");
            let note = is_in_checkpoint.then_some(&b"record"[..]);
            assert_eq!(bench.store.note(NoteKey::Pg(PG)), note);
            bench = bench.crash();
        }
    }
}

#[test]
fn a_committed_version_on_a_dropped_repair_is_dropped_too() {
    let (mut bench, base) = with_base(CommitMode::Fsync);
    let said = bench.next_version();
    bench.skip(said, false);
    bench.idle();
    let units: Vec<u32> = (0..32).collect();
    let content = bench.content(base, &units, &units, 500);
    let lsn = bench.tail();
    bench.repair(1, content);
    let info = bench.store.parts().blocks.get(&key(1)).expect("it is there");
    let version = bench.next_version();
    let content = bench.content(version, &[1, 2], &[1, 2], 600);
    bench.prepare(1, version, content, None, true);
    bench.commit(version);
    let next = bench.next_version();
    bench.skip(next, true);
    bench.run();
    let parts = bench.store.parts();
    let data = parts.place(info.location) + 5 * UNIT_SIZE;
    let body = bench.place(lsn.advance(2 * 512));
    let mut disk = bench.off();
    disk.flip(data);
    disk.flip(body + UNIT_SIZE);
    let mut bench = Bench::on(disk, settings(), 3);
    assert_eq!(bench.rows(), "AFHP");
    for _ in 0..2 {
        let facts = bench.store.facts(PG);
        assert_eq!((facts.last, facts.committed), (said, said), "it states what it has");
        assert_eq!(bench.store.version_of(&key(1)), base);
        bench.assert_unit(1, 1, Some(100));
        bench = bench.crash();
    }
}

#[test]
fn a_copy_that_lost_data_does_not_replace_the_entry_that_has_it() {
    let settings = Settings { memory_bytes: 4 * MIB, ..settings() };
    let (bench, base) = with_base(CommitMode::Fsync);
    let mut bench = Bench::on(bench.off(), settings, 3);
    bench.counter = base.counter;
    bench.commit(base);
    let lsn = bench.tail();
    let version = bench.prepare_units(1, 0, 3, 200);
    let from = bench.place(lsn) + 512 + UNIT_SIZE;
    churn(&mut bench, 6 * MIB);
    let header = bench.store.parts().blocks.prepared.get(&key(1), version).header.clone();
    assert_eq!(header.lsn, lsn, "it is not copied yet");
    // One sector cannot be read for a while.
    bench.disk.unreadable = Some((from, from + 512));
    let sequence = bench.store.parts().root.sequence;
    bench.store.parts_mut().wants_checkpoint = true;
    bench.apply(crate::Event::Tick);
    let is_copied = |bench: &Bench| {
        let parts = bench.store.parts();
        let header = &parts.blocks.prepared.get(&key(1), version).header;
        header.flags.is_copy && parts.journal.durable() > header.lsn
    };
    while !is_copied(&bench) {
        bench.submit();
        assert!(bench.step());
    }
    assert_eq!(bench.store.first_lost(PG), Some(version));
    assert_eq!(bench.store.parts().root.sequence, sequence, "the entry is still in the journal");
    let mut disk = bench.off();
    disk.unreadable = None;
    let mut bench = Bench::on(disk, Settings::default(), 3);
    for round in 0..3 {
        assert_eq!(bench.store.first_lost(PG), None, "round {round}");
        bench.assert_as_of(AsOf::Stable, 1, 1, Some(100));
        bench.assert_unit(1, 1, Some(200));
        assert_eq!(bench.store.version_of(&key(1)), version);
        match round {
            0 => {
                churn(&mut bench, 4 * MIB);
                bench.checkpoint();
            }
            _ => bench = bench.crash(),
        }
    }
}

#[test]
fn a_lost_header_leaves_a_hole_or_makes_the_store_suspect() {
    for is_in_checkpoint in [false, true] {
        let (mut bench, base) = with_base(CommitMode::Fsync);
        let first = bench.prepare_units(1, 1, 1, 200);
        let lsn = bench.tail();
        bench.prepare_units(2, 0, 1, 300);
        bench.prepare_units(3, 0, 1, 400);
        match is_in_checkpoint {
            true => bench.checkpoint(),
            false => bench.idle(),
        }
        let parts = bench.store.parts();
        assert!(parts.root.replay <= lsn && (lsn < parts.root.until) == is_in_checkpoint);
        let place = bench.place(lsn) + 20;
        let mut disk = bench.off();
        disk.flip(place);
        let bench = Bench::on(disk, settings(), 3);
        assert!(bench.rows().contains('G'), "{}", bench.rows());
        // A suspect member reports nothing as complete.
        assert!(bench.store.is_suspect(PG));
        assert_eq!(bench.store.facts(PG).committed, base);
        if !is_in_checkpoint {
            assert_eq!(bench.store.facts(PG).last, first);
            assert_eq!(bench.store.version_of(&key(3)), Version::ZERO, "a counter is missing");
        }
    }
}

#[test]
fn a_commit_takes_no_room_of_the_journal() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let version = bench.next_version();
    let pg = |number: u32| PgId { number, ..PG };
    for number in 0..2000 {
        bench.ask(Request::Skip { pg: pg(number), version, lazy: true });
    }
    bench.run();
    let kept = |bench: &Bench| bench.store.parts().blocks.prepared.kept_bytes(512);
    let before = kept(&bench);
    for number in 0..2000 {
        bench.ask(Request::Commit { pg: pg(number), upto: version });
    }
    assert_eq!(kept(&bench), before);
    let tail = bench.tail();
    bench.store.parts_mut().wants_checkpoint = true;
    bench.apply(crate::Event::Tick);
    let said = bench.tail().since(tail);
    assert!(said > 2000 * format::disk::MARK_SIZE as u64);
    assert!(said <= before, "{said} bytes of marks within {before}");
    bench.run();
    let bench = bench.crash();
    assert!(kept(&bench) >= before, "also after a start");
}

#[test]
fn a_torn_copy_of_a_committed_version_damages_nothing() {
    let settings = Settings { memory_bytes: 4 * MIB, ..settings() };
    let (bench, base) = with_base(CommitMode::Fsync);
    let mut bench = Bench::on(bench.off(), settings, 3);
    bench.counter = base.counter;
    bench.commit(base);
    let version = bench.prepare_units(1, 0, 3, 200);
    churn(&mut bench, 6 * MIB);
    bench.store.parts_mut().wants_checkpoint = true;
    bench.apply(crate::Event::Tick);
    let place_of_copy = |bench: &Bench| {
        let header = &bench.store.parts().blocks.prepared.get(&key(1), version).header;
        header.flags.is_copy.then(|| bench.place(header.lsn))
    };
    let place = loop {
        bench.submit();
        if let Some(place) = place_of_copy(&bench)
            && let Some(index) = bench.disk.find_write(|offset| offset == place)
        {
            // The copy is on the disk, and nothing records that.
            let _ = bench.disk.end(index);
            break place;
        }
        assert!(bench.step());
    };
    // The header of what follows records the commit.
    bench.commit(version);
    let skipped = bench.next_version();
    let place_of_skip = bench.place(bench.tail());
    bench.skip(skipped, false);
    bench.submit();
    let index = bench.disk.find_write(|offset| offset == place_of_skip);
    let _ = bench.disk.end(index.expect("it is being written"));
    let mut disk = bench.off();
    disk.flip(place + 512 + UNIT_SIZE);
    let mut bench = Bench::on(disk, Settings::default(), 3);
    assert!(bench.rows().contains('B'), "{}", bench.rows());
    assert_eq!(bench.store.first_lost(PG), None);
    for unit in 0..3 {
        bench.assert_as_of(AsOf::View, 1, unit, Some(200));
    }
}
