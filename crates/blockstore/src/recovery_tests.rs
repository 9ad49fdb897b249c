//! One test for each row of the recovery table. The tests also check the findings of `check` about the row.

use std::collections::{BTreeMap, BTreeSet};

use base::hash::pg_of_hash;
use base::{BlockSize, Checksum, Lsn, PgId, UNIT_SIZE, Version};
use format::disk::{EntryHeader, EntryKind, PAGE_SIZE};

use crate::decide::{Content, Header, Inline, Seen, decide, is_suspicious};
use crate::harness::{Bench, MemoryDisk, PG, SIZE, key, options, settings};
use crate::journal::plain_header;
use crate::{
    Answer, AsOf, CheckOptions, CheckReport, CommitMode, NoteKey, Request, Severity, check, inspect,
};

const ENTRY: u64 = 512 + 4096;

fn report(disk: &MemoryDisk) -> CheckReport {
    let mut read = |offset: u64, buffer: &mut [u8]| {
        let end = offset + buffer.len() as u64;
        if disk.unreadable.is_some_and(|(from, to)| from < end && offset < to) {
            return Err("medium error".to_owned());
        }
        disk.visible.read(offset, buffer);
        Ok(())
    };
    check(&mut read, SIZE, CheckOptions { data: true })
}

fn open(disk: MemoryDisk) -> Bench {
    let bench = Bench::on(disk, settings(), 3);
    assert!(bench.opened, "{:?}", bench.stopped);
    bench
}

/// Returns a store with three blocks whose last write of unit 0 is in the journal, and the lsn of each
/// entry.
fn three_writes(is_acked: bool) -> (Bench, [Lsn; 3]) {
    let mut bench = Bench::new(CommitMode::Fsync);
    let entries = [1, 2, 3].map(|number| {
        let lsn = bench.tail();
        bench.write(number, 0, 1, number as u64 * 100);
        lsn
    });
    bench.run();
    if is_acked {
        bench.idle();
    }
    (bench, entries)
}

/// Returns an entry without content, like one left by a misdirected or an old write.
fn stray(lsn: Lsn, previous: u32) -> Vec<u8> {
    let header = EntryHeader {
        lsn,
        previous: Checksum::new(previous),
        size: 512,
        ..plain_header(EntryKind::Idle)
    };
    let mut bytes = Vec::new();
    header.encode(options(CommitMode::Fsync, 512).store.tag(), 512, &mut bytes);
    bytes
}

fn assert_written(bench: &mut Bench, numbers: &[u32]) {
    for number in 1..=3 {
        let is_written = numbers.contains(&number);
        assert_eq!(bench.store.version_of(&key(number)) != Version::ZERO, is_written);
        if is_written {
            bench.assert_unit(number, 0, Some(number as u64 * 100));
        }
    }
}

/// Checks that the store accepts writes and keeps them over further starts, which find no new damage.
fn goes_on(mut bench: Bench, numbers: &[u32], is_suspect: bool) {
    for round in 0..2 {
        assert_written(&mut bench, numbers);
        assert_eq!(bench.store.is_suspect(PG), is_suspect);
        assert_eq!(bench.store.has_unsettled_damage(), is_suspect);
        bench.write(10 + round, 0, 1, 7);
        bench.idle();
        let rows = bench.rows();
        bench = bench.crash();
        assert!(bench.opened, "{:?}", bench.stopped);
        let new = bench.rows();
        let is_known = |row| "AFDNO".contains(row);
        assert!(new.chars().all(is_known), "{rows} then {new}");
    }
    bench.assert_unit(10, 0, Some(7));
    bench.assert_unit(11, 0, Some(7));
    if is_suspect {
        assert_eq!(bench.done(Request::Absolve { pg: PG }), Ok(Answer::Durable));
        assert!(!bench.store.is_suspect(PG));
        bench.checkpoint();
        let bench = bench.crash();
        assert!(!bench.store.is_suspect(PG));
        assert!(!bench.store.has_unsettled_damage());
    }
}

#[test]
fn row_a_whole_entries_are_replayed() {
    let (bench, _) = three_writes(false);
    let disk = bench.off();
    assert!(report(&disk).findings.is_empty());
    let bench = open(disk);
    assert_eq!(bench.rows(), "AF");
    goes_on(bench, &[1, 2, 3], false);
}

#[test]
fn row_b_a_torn_tail_is_cut_and_stays_cut() {
    let (bench, [_, second, third]) = three_writes(false);
    let place = bench.place(second) + 512;
    let mut disk = bench.off();
    disk.flip(place);
    assert!(report(&disk).findings.is_empty());
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "AB");
    assert!(bench.tail() > third);
    assert_written(&mut bench, &[1]);
    // The bytes are correct again, but the earlier decision stands.
    let mut disk = bench.off();
    disk.flip(place);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFN");
    goes_on(bench, &[1], false);
}

#[test]
fn row_c_acknowledged_data_that_is_damaged_costs_its_own_units() {
    let (mut bench, _) = three_writes(false);
    let lsn = bench.tail();
    bench.write(4, 0, 3, 400);
    bench.idle();
    let place = bench.place(lsn) + 512 + UNIT_SIZE;
    let mut disk = bench.off();
    disk.flip(place);
    let findings = report(&disk).findings;
    assert!(findings.iter().any(|finding| finding.severity == Severity::Error));
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "ACF");
    for _ in 0..2 {
        bench.assert_unit(4, 0, Some(400));
        bench.assert_unit(4, 2, Some(400));
        assert!(bench.read(4, 1, 1).is_err());
        bench.checkpoint();
    }
    let mut bench = bench.crash();
    assert!(bench.read(4, 0, 32).is_err());
    bench.zero(4, 1, 1);
    bench.assert_unit(4, 1, None);
    goes_on(bench, &[1, 2, 3], false);
}

#[test]
fn row_d_an_entry_of_an_earlier_lap_ends_the_journal() {
    let (bench, _) = three_writes(false);
    let place = bench.place(bench.tail());
    let mut disk = bench.off();
    disk.overwrite(place, &stray(Lsn::ZERO, 0));
    assert!(report(&disk).findings.is_empty());
    let bench = open(disk);
    assert_eq!(bench.rows(), "AD");
    goes_on(bench, &[1, 2, 3], false);
}

#[test]
fn row_e_an_acknowledged_entry_that_is_still_the_old_one_makes_the_store_suspect() {
    let (bench, [_, second, _]) = three_writes(true);
    let place = bench.place(second);
    let mut disk = bench.off();
    disk.overwrite(place, &stray(Lsn::ZERO, 0));
    assert!(!report(&disk).findings.is_empty());
    let bench = open(disk);
    assert_eq!(bench.rows(), "AEF");
    goes_on(bench, &[1, 3], true);
}

#[test]
fn row_f_a_torn_header_ends_the_journal() {
    let (bench, [_, _, third]) = three_writes(false);
    let place = bench.place(third);
    let mut disk = bench.off();
    disk.flip(place + 20);
    assert!(report(&disk).findings.is_empty());
    let bench = open(disk);
    assert_eq!(bench.rows(), "AF");
    assert_eq!(bench.tail(), third);
    goes_on(bench, &[1, 2], false);
}

#[test]
fn row_g_a_lost_sector_inside_the_journal_makes_the_store_suspect() {
    let (bench, [_, second, _]) = three_writes(true);
    let place = bench.place(second);
    let mut disk = bench.off();
    disk.flip(place + 20);
    assert!(!report(&disk).findings.is_empty());
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFG");
    goes_on(bench, &[1, 3], true);
}

/// Writes a whole block that the disk has not confirmed yet. Also returns where the block's data is.
fn a_large_write() -> (Bench, u64) {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 1, 100);
    bench.idle();
    bench.write(2, 0, 32, 900);
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(2)).expect("it is written").location);
    (bench, place)
}

#[test]
fn row_h_wrong_data_drops_its_entry_and_nothing_else() {
    let (mut bench, place) = a_large_write();
    bench.write(3, 0, 1, 300);
    bench.run();
    let mut disk = bench.off();
    disk.flip(place + 5);
    assert!(report(&disk).findings.is_empty());
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFH");
    goes_on(bench, &[1, 3], false);
}

#[test]
fn row_p_a_later_entry_of_a_block_with_a_dropped_one_is_dropped_too() {
    let (mut bench, place) = a_large_write();
    bench.write(2, 0, 1, 200);
    bench.write(3, 0, 1, 300);
    bench.run();
    let mut disk = bench.off();
    disk.flip(place + 5);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFHP");
    goes_on(bench, &[1, 3], false);
}

#[test]
fn row_o_a_dropped_entry_stays_dropped_although_its_data_is_whole_again() {
    let (mut bench, place) = a_large_write();
    bench.write(3, 0, 1, 300);
    bench.run();
    let mut disk = bench.off();
    disk.flip(place + 5);
    let mut disk = open(disk).off();
    disk.flip(place + 5);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFO");
    goes_on(bench, &[1, 3], false);
}

#[test]
fn row_t_an_unreadable_sector_at_the_tail_makes_the_store_suspect() {
    let (bench, [_, second, third]) = three_writes(false);
    let place = bench.place(second);
    let mut disk = bench.off();
    disk.unreadable = Some((place, place + 512));
    assert!(!report(&disk).findings.is_empty());
    let bench = open(disk);
    assert_eq!(bench.rows(), "AT");
    assert!(bench.tail() > third);
    assert!(bench.disk.unreadable.is_some(), "nothing is written over it");
    goes_on(bench, &[1], true);
}

#[test]
fn row_u_an_acknowledged_entry_that_cannot_be_read_makes_the_store_suspect() {
    let (bench, [_, second, _]) = three_writes(true);
    let place = bench.place(second);
    let mut disk = bench.off();
    disk.unreadable = Some((place, place + 512));
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFU");
    goes_on(bench, &[1, 3], true);
}

#[test]
fn row_v_data_of_the_last_write_that_cannot_be_read_costs_its_own_units() {
    let (mut bench, _) = three_writes(false);
    let lsn = bench.tail();
    bench.write(4, 0, 3, 400);
    bench.run();
    let place = bench.place(lsn) + 512 + UNIT_SIZE;
    let mut disk = bench.off();
    disk.unreadable = Some((place, place + 512));
    assert!(!report(&disk).findings.is_empty());
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "AFV");
    for _ in 0..2 {
        bench.assert_unit(4, 0, Some(400));
        bench.assert_unit(4, 2, Some(400));
        assert!(bench.read(4, 1, 1).is_err());
        bench.checkpoint();
    }
    goes_on(bench, &[1, 2, 3], false);
}

#[test]
fn row_w_a_last_note_that_cannot_be_read_makes_the_store_suspect() {
    let (mut bench, _) = three_writes(false);
    let lsn = bench.tail();
    let note = Request::Note { key: NoteKey::Cluster, bytes: b"map".to_vec() };
    assert!(bench.done(note).is_ok());
    let place = bench.place(lsn) + 512;
    let mut disk = bench.off();
    disk.unreadable = Some((place, place + 512));
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFW");
    assert_eq!(bench.store.note(NoteKey::Cluster), None);
    goes_on(bench, &[1, 2, 3], true);
}

#[test]
fn row_x_large_data_that_cannot_be_read_costs_its_own_units() {
    let (mut bench, place) = a_large_write();
    bench.write(3, 0, 1, 300);
    bench.run();
    let mut disk = bench.off();
    disk.unreadable = Some((place + 2 * UNIT_SIZE, place + 2 * UNIT_SIZE + 512));
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "AFX");
    for _ in 0..2 {
        bench.assert_unit(2, 1, Some(900));
        bench.assert_unit(2, 3, Some(900));
        assert!(bench.read(2, 2, 1).is_err());
        bench = bench.crash();
    }
    assert!(!bench.store.is_suspect(PG));
    bench.write(2, 2, 1, 950);
    bench.checkpoint();
    bench.assert_unit(2, 2, Some(950));
    bench.assert_unit(3, 0, Some(300));
}

#[test]
fn row_z_a_prepared_version_that_a_later_entry_calls_committed_counts_as_recorded() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let units: Vec<u32> = (0..32).collect();
    let version = bench.next_version();
    let content = bench.content(version, &units, &units, 900);
    bench.prepare(2, version, content, None, true);
    bench.run();
    let info = bench.store.parts().blocks.as_of(&key(2), AsOf::View).expect("it is prepared");
    let place = bench.store.parts().place(info.location);
    bench.commit(version);
    let next = bench.next_version();
    bench.skip(next, true);
    bench.run();
    let mut disk = bench.off();
    disk.flip(place + 2 * UNIT_SIZE);
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "AFZ");
    for _ in 0..2 {
        assert_eq!(bench.store.version_as_of(&key(2), AsOf::Stable), version);
        bench.assert_unit(2, 1, Some(900));
        assert!(bench.read(2, 2, 1).is_err());
        bench = bench.crash();
    }
    assert!(!bench.store.is_suspect(PG));
    assert_eq!(bench.store.facts(PG).last, next);
}

#[test]
fn row_y_an_unreadable_root_costs_nothing_while_the_journal_holds_all_behind_the_other() {
    for is_newest in [false, true] {
        let (mut bench, _) = three_writes(false);
        bench.checkpoint();
        bench.write(9, 0, 32, 9);
        bench.write(1, 0, 32, 100);
        bench.checkpoint();
        // This block gets a place that was free in the newest root.
        bench.write(10, 0, 32, 10);
        bench.idle();
        let parts = bench.store.parts();
        let place = parts.root_place(parts.root.sequence + u64::from(!is_newest));
        let mut disk = bench.off();
        disk.unreadable = Some((place, place + 4096));
        let mut bench = open(disk);
        assert_eq!(bench.rows(), "AFY");
        bench.run();
        for round in 0..2 {
            assert!(!bench.store.is_suspect(PG));
            assert_written(&mut bench, &[1, 2, 3]);
            bench.assert_unit(9, 31, Some(9));
            bench.assert_unit(10, 31, Some(10));
            if round == 0 {
                bench.write(11, 0, 1, 11);
                bench.checkpoint();
                bench = bench.crash();
                assert!(!bench.rows().contains('Y'), "a checkpoint wrote it anew");
            }
        }
    }
}

#[test]
fn an_older_root_names_places_that_blocks_of_another_size_have_now() {
    for by_pieces in [false, true] {
        let mut bench = Bench::new(CommitMode::Fsync);
        (0..8).for_each(|number| _ = bench.write(number, 0, 32, number.into()));
        bench.run();
        bench.checkpoint();
        for number in 0..8 {
            match by_pieces {
                // The checkpoint takes away the block's place, and no entry records this.
                true => {
                    bench.zero(number, 0, 16);
                    bench.zero(number, 16, 16);
                }
                false => _ = bench.delete(number),
            }
        }
        bench.run();
        bench.checkpoint();
        let request = bench.write_of(100, BlockSize::MAX, 0, 256, 100);
        bench.ask(request);
        bench.idle();
        let place = |bench: &Bench, number| {
            bench.store.parts().blocks.get(&key(number)).expect("it is written").location
        };
        assert_eq!(place(&bench, 100), 0, "the segment has gone to the other block size");
        let parts = bench.store.parts();
        let root = parts.root_place(parts.root.sequence);
        let mut disk = bench.off();
        disk.unreadable = Some((root, root + 4096));
        let mut bench = open(disk);
        assert!(bench.opened, "{:?}", bench.stopped);
        assert_eq!(bench.rows(), "AFY");
        for _ in 0..2 {
            bench.assert_unit(100, 255, Some(100));
            (0..8).for_each(|number| bench.assert_unit(number, 0, None));
            bench.checkpoint();
            assert_eq!(bench.store.space().used_bytes, BlockSize::MAX.bytes());
            bench = bench.crash();
        }
    }
}

#[test]
fn a_journal_that_went_on_behind_a_lost_root_stops_the_store() {
    for is_unreadable in [false, true] {
        let (mut bench, _) = three_writes(false);
        bench.checkpoint();
        let from = bench.store.parts().root.replay;
        bench.write(9, 0, 32, 9);
        bench.checkpoint();
        let parts = bench.store.parts();
        let place = parts.root_place(parts.root.sequence);
        let next_lap = from.advance(parts.journal.size());
        let (over, mut disk) = (bench.place(from), bench.off());
        disk.overwrite(over, &stray(next_lap, 12345));
        match is_unreadable {
            true => disk.unreadable = Some((place, place + 4096)),
            false => disk.flip(place + 8),
        }
        let bench = Bench::on(disk, settings(), 3);
        let reason = bench.stopped.expect("the other root is too old");
        assert!(reason.contains("newest checkpoint root"), "{reason}");
    }
}

#[test]
fn a_superblock_that_cannot_be_read_is_not_called_missing() {
    let (bench, _) = three_writes(true);
    let mut disk = bench.off();
    disk.unreadable = Some((0, 4096));
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFQ");
    let mut disk = bench.off();
    disk.unreadable = Some((0, 128 << 10));
    let bench = Bench::on(disk, settings(), 3);
    let reason = bench.stopped.expect("both copies are unreadable");
    assert!(reason.contains("cannot be read"), "{reason}");
}

#[test]
fn read_errors_that_pass_cost_nothing_at_start() {
    let (mut bench, _) = three_writes(true);
    bench.checkpoint();
    bench.write(4, 0, 32, 400);
    bench.run();
    let mut disk = bench.off();
    let reads = {
        let before = disk.read_count;
        let bench = open(disk);
        let count = bench.disk.read_count - before;
        disk = bench.off();
        count
    };
    for skipped in 0..reads {
        let mut bench = Bench::begin(disk, settings(), 3, skipped);
        bench.disk.read_errors = 3;
        bench.run();
        assert!(bench.opened, "{:?}", bench.stopped);
        assert!(bench.rows().chars().all(|row| "AFN".contains(row)), "{}", bench.rows());
        assert_written(&mut bench, &[1, 2, 3]);
        bench.assert_unit(4, 9, Some(400));
        disk = bench.off();
        disk.read_errors = 0;
    }
}

#[test]
fn row_i_an_entry_of_a_later_lap_makes_the_store_suspect() {
    let (bench, _) = three_writes(false);
    let place = bench.place(bench.tail());
    let mut disk = bench.off();
    disk.overwrite(place, &stray(Lsn::new(1 << 40), 0));
    let bench = open(disk);
    assert_eq!(bench.rows(), "AI");
    goes_on(bench, &[1, 2, 3], true);
}

#[test]
fn row_j_a_misdirected_write_over_an_acknowledged_entry_makes_the_store_suspect() {
    let (bench, [_, second, _]) = three_writes(true);
    let place = bench.place(second);
    let mut disk = bench.off();
    disk.overwrite(place, &stray(Lsn::new(1 << 40), 0));
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFJ");
    goes_on(bench, &[1, 3], true);
}

#[test]
fn row_k_a_replaced_tail_does_not_fit() {
    let (bench, _) = three_writes(false);
    let (tail, place) = (bench.tail(), bench.place(bench.tail()));
    let mut disk = bench.off();
    disk.overwrite(place, &stray(tail, 12345));
    assert!(report(&disk).findings.is_empty());
    let bench = open(disk);
    assert_eq!(bench.rows(), "AK");
    assert!(bench.tail() > tail);
    goes_on(bench, &[1, 2, 3], false);
}

#[test]
fn row_l_an_acknowledged_entry_replaced_by_another_makes_the_store_suspect() {
    let (bench, [_, second, _]) = three_writes(true);
    let place = bench.place(second);
    let mut disk = bench.off();
    disk.overwrite(place, &stray(second, 12345));
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "AFL");
    assert!(bench.store.is_suspect(PG));
    assert_written(&mut bench, &[1, 3]);
}

#[test]
fn row_m_a_lost_note_makes_the_store_suspect() {
    let (mut bench, _) = three_writes(false);
    let lsn = bench.tail();
    let note = Request::Note { key: NoteKey::Cluster, bytes: b"map".to_vec() };
    assert!(bench.done(note).is_ok());
    bench.idle();
    let place = bench.place(lsn) + 512;
    let mut disk = bench.off();
    disk.flip(place);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFM");
    assert_eq!(bench.store.note(NoteKey::Cluster), None);
    goes_on(bench, &[1, 2, 3], true);
}

#[test]
fn row_n_a_recovery_that_is_killed_decides_the_same_again() {
    let (bench, [_, second, _]) = three_writes(false);
    let place = bench.place(second) + 512;
    let mut disk = bench.off();
    disk.flip(place);
    // Three times, the entry with the decision is torn.
    for _ in 0..3 {
        let bench = open(disk);
        assert_eq!(bench.rows(), "AB");
        let decision = bench.place(bench.store.parts().journal.durable()) - ENTRY;
        disk = bench.off();
        disk.flip(decision + 512);
    }
    let bench = open(disk);
    assert_eq!(bench.rows(), "AB");
    goes_on(bench, &[1], false);
}

/// Fills the journal until `rest` bytes of the ring are left behind the tail, all of it recorded as durable.
/// Changes only blocks 20 and 21.
fn fill_ring(bench: &mut Bench, rest: u64) {
    let left = |bench: &Bench| {
        let size = bench.store.parts().superblock.journal.size;
        size - bench.tail().get() % size
    };
    while left(bench) > rest + 4 * ENTRY {
        bench.write(20, 0, 1, 1);
        bench.run();
    }
    bench.checkpoint();
    // An entry without data takes one sector, and so does the last, idle one.
    while left(bench) > rest + 512 {
        bench.delete(21);
        bench.run();
    }
    bench.idle();
    assert_eq!(left(bench), rest);
}

/// Ends the process right after a start whose entry with decisions lies at the start of the ring. The pad
/// before it at `pad` is lost: it was a write of its own, and it was not flushed either.
fn without_pad(bench: Bench, pad: Lsn) -> MemoryDisk {
    let place = bench.place(pad);
    assert_eq!(bench.place(bench.tail()), bench.place(Lsn::ZERO) + ENTRY);
    let mut disk = bench.off();
    disk.overwrite(place, &[0; 512]);
    disk
}

#[test]
fn a_cut_holds_after_the_entry_that_recorded_it_was_cut_off_too() {
    let mut bench = Bench::new(CommitMode::Fsync);
    fill_ring(&mut bench, 3 * ENTRY + 2048);
    let [_, second, _] = [1, 2, 3].map(|number| {
        let lsn = bench.tail();
        bench.write(number, 0, 1, number as u64 * 100);
        lsn
    });
    bench.run();
    let (place, pad) = (bench.place(second) + 512, bench.tail());
    let mut disk = bench.off();
    disk.flip(place);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AB");
    let mut disk = without_pad(bench, pad);
    // Killed at once, the next recovery leaves only the entry with its decisions. Behind it is the last lap.
    for rows in ["AFN", "ADN", "ADN"] {
        let bench = open(disk);
        assert_eq!(bench.rows(), rows);
        disk = bench.off();
    }
    goes_on(open(disk), &[1], false);
}

#[test]
fn a_drop_holds_after_the_entry_that_recorded_it_was_cut_off_too() {
    let mut bench = Bench::new(CommitMode::Fsync);
    bench.write(1, 0, 1, 100);
    fill_ring(&mut bench, 512 + ENTRY + 2048);
    bench.write(2, 0, 32, 900);
    let parts = bench.store.parts();
    let place = parts.place(parts.blocks.get(&key(2)).expect("it is written").location);
    bench.write(3, 0, 1, 300);
    bench.run();
    let pad = bench.tail();
    let mut disk = bench.off();
    disk.flip(place + 5);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFH");
    let mut disk = without_pad(bench, pad);
    // The data is whole again, but the earlier decision stands.
    disk.flip(place + 5);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AFO");
    goes_on(bench, &[1, 3], false);
}

#[test]
fn a_sector_of_a_replaced_tail_that_cannot_be_read_costs_nothing() {
    let (mut bench, _) = three_writes(true);
    bench.write(4, 0, 32, 400);
    bench.idle();
    bench.write(1, 0, 1, 100);
    let torn = bench.tail();
    // Longer than the pieces in which the journal is read.
    let last = (0..30).map(|_| {
        let lsn = bench.tail();
        bench.write(4, 0, 31, 500);
        lsn
    });
    let last = last.last().expect("there are some");
    bench.run();
    let (torn, last) = (bench.place(torn), bench.place(last));
    let mut disk = bench.off();
    disk.flip(torn + 512);
    let bench = open(disk);
    assert_eq!(bench.rows(), "AB");
    let mut disk = bench.off();
    disk.unreadable = Some((last, last + 512));
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "AFN");
    bench.assert_unit(4, 0, Some(400));
    goes_on(bench, &[1, 2, 3], false);
}

#[test]
fn row_q_a_damaged_superblock_copy_is_rewritten() {
    for offset in [0, 64 << 10] {
        let (bench, _) = three_writes(false);
        let mut disk = bench.off();
        disk.flip(offset + 40);
        assert_eq!(report(&disk).findings.len(), 1);
        let bench = open(disk);
        assert_eq!(bench.rows(), "AFQ");
        goes_on(bench, &[1, 2, 3], false);
    }
}

#[test]
fn row_r_the_older_root_is_used_where_the_newest_is_damaged() {
    let (mut bench, _) = three_writes(false);
    bench.checkpoint();
    bench.write(9, 0, 1, 9);
    bench.checkpoint();
    let parts = bench.store.parts();
    let place = parts.page_place(parts.root.directory.page);
    let mut disk = bench.off();
    disk.flip(place + PAGE_SIZE as u64 - 1);
    let mut bench = open(disk);
    assert!(bench.rows().contains('R'), "{}", bench.rows());
    assert!(bench.store.is_suspect(PG));
    assert_written(&mut bench, &[1, 2, 3]);
    bench.assert_unit(9, 0, Some(9));
    bench.checkpoint();
    let bench = bench.crash();
    assert!(!bench.rows().contains('R'));
}

#[test]
fn row_s_a_damaged_leaf_costs_its_blocks_and_makes_their_pg_suspect() {
    let (mut bench, _) = three_writes(false);
    bench.checkpoint();
    let parts = bench.store.parts();
    let (_, leaf) = parts.pages.directory().first_key_value().expect("there is one");
    let place = parts.page_place(leaf.page);
    let mut disk = bench.off();
    disk.flip(place + 100);
    assert!(!report(&disk).findings.is_empty());
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "AFS");
    bench.checkpoint();
    let bench = bench.crash();
    assert!(!bench.rows().contains('S'));
    goes_on(bench, &[], true);
}

#[test]
fn places_of_an_unreadable_leaf_are_not_reused_before_a_checkpoint() {
    for step_count in 0.. {
        let (mut bench, _) = three_writes(false);
        bench.checkpoint();
        let parts = bench.store.parts();
        let (_, leaf) = parts.pages.directory().first_key_value().expect("there is one");
        let place = parts.page_place(leaf.page);
        let mut disk = bench.off();
        disk.flip(place + 100);
        let mut bench = open(disk);
        assert!(bench.rows().contains('S'));
        let root = bench.store.parts().root.sequence;
        // Write another block, which gets a place.
        bench.write(50, 0, 32, 9);
        for _ in 0..step_count {
            bench.submit();
            bench.step();
        }
        if bench.store.parts().root.sequence > root {
            assert!(step_count > 0);
            bench.run();
            bench.assert_unit(50, 0, Some(9));
            break;
        }
        // Power is lost before the checkpoint of this start has finished; then the leaf can be read again.
        let mut disk = bench.off();
        disk.flip(place + 100);
        let mut bench = open(disk);
        if bench.store.parts().root.sequence == root {
            assert!(!bench.rows().contains('S'));
            assert_written(&mut bench, &[1, 2, 3]);
        }
    }
}

/// Returns the PG of a block: one of 16 PGs.
fn pg_of(number: u32) -> PgId {
    PgId { number: pg_of_hash(key(number).hash, 16), ..PG }
}

/// Returns a store with blocks of 16 PGs in several leaves.
fn many_leaves() -> Bench {
    let mut bench = Bench::new(CommitMode::Fsync);
    for number in 0..BLOCKS_OF_LEAVES {
        let mut request = bench.write_of(number, BlockSize::DEFAULT, 0, 1, 100);
        if let Request::Write { pg, .. } = &mut request {
            *pg = pg_of(number);
        }
        bench.ask(request);
        if number % 64 == 0 {
            bench.run();
        }
    }
    bench.checkpoint();
    bench
}

const BLOCKS_OF_LEAVES: u32 = 1200;

#[test]
fn a_damaged_leaf_makes_only_the_pgs_of_its_keys_suspect() {
    let directory: Vec<_> = many_leaves().store.parts().pages.directory().keys().copied().collect();
    assert!(directory.len() > 3, "{}", directory.len());
    for (index, first) in directory.iter().enumerate() {
        let bench = many_leaves();
        let parts = bench.store.parts();
        let place = parts.page_place(parts.pages.directory()[first].page);
        let mut disk = bench.off();
        disk.flip(place + 100);
        let mut bench = open(disk);
        assert!(bench.rows().contains('S'));
        let next = directory.get(index + 1);
        let is_lost =
            |number: &u32| *first <= key(*number) && next.is_none_or(|next| key(*number) < *next);
        let lost: BTreeSet<PgId> = (0..BLOCKS_OF_LEAVES).filter(is_lost).map(pg_of).collect();
        let mut suspects = BTreeSet::new();
        for round in 0..3 {
            suspects = (0..16)
                .map(|number| PgId { number, ..PG })
                .filter(|pg| bench.store.is_suspect(*pg))
                .collect();
            assert!(suspects.is_superset(&lost), "leaf {index}: {suspects:?} for {lost:?}");
            // A PG whose known blocks end before the leaf's first key may have had a block in the leaf.
            assert!(suspects.len() <= lost.len() + 2, "leaf {index}: {suspects:?} for {lost:?}");
            assert!(bench.store.has_unsettled_damage());
            if round == 1 {
                bench.checkpoint();
            }
            bench = bench.crash();
        }
        for pg in suspects {
            assert_eq!(bench.done(Request::Absolve { pg }), Ok(Answer::Durable));
        }
        bench.checkpoint();
        assert!(!bench.crash().store.has_unsettled_damage());
    }
}

#[test]
fn blocks_of_a_damaged_leaf_are_back_when_the_older_root_is_used() {
    let (mut bench, _) = three_writes(false);
    bench.checkpoint();
    bench.write(1, 1, 1, 700);
    bench.run();
    let parts = bench.store.parts();
    let (_, leaf) = parts.pages.directory().first_key_value().expect("there is one");
    let (leaf_place, root_place) =
        (parts.page_place(leaf.page), parts.root_place(parts.root.sequence));
    let mut disk = bench.off();
    disk.flip(leaf_place + 100);
    let bench = open(disk);
    assert!(bench.rows().contains('S'));
    assert_eq!(bench.store.version_of(&key(2)), Version::ZERO, "its leaf is lost");
    // Damage the newer root before another checkpoint overwrites the older root.
    let mut disk = bench.off();
    disk.flip(root_place + 8);
    let mut bench = open(disk);
    assert_eq!(bench.rows(), "AF", "the journal holds all behind the older root");
    assert!(bench.store.is_suspect(PG), "an earlier start found that something is lost");
    assert_written(&mut bench, &[1, 2, 3]);
    bench.assert_unit(1, 1, Some(700));
}

#[test]
fn an_older_root_is_not_used_where_it_leaves_the_journal_no_room() {
    let mut bench = Bench::new(CommitMode::Fsync);
    let size = bench.store.parts().journal.size();
    let mut number = 0;
    while bench.tail().get() < size {
        match size - bench.tail().get() > 64 << 10 {
            true => bench.write(number % 50, 0, 8, 1),
            false => bench.delete(1_000 + number),
        };
        bench.run();
        number += 1;
    }
    assert_eq!(bench.tail().get(), size);
    let parts = bench.store.parts();
    assert_eq!(parts.root.sequence, 1);
    let root_place = parts.root_place(1);
    let mut disk = bench.off();
    disk.flip(root_place + 8);
    let bench = Bench::on(disk, settings(), 3);
    assert!(bench.stopped.is_some_and(|reason| reason.contains("newest checkpoint root")));
}

#[test]
fn a_leaf_that_rots_while_running_costs_data_but_no_versions() {
    let mut bench = Bench::new(CommitMode::Fsync);
    for number in 0..800 {
        bench.write(number, 0, 1, 100);
        if number % 64 == 0 {
            bench.run();
        }
    }
    bench.checkpoint();
    let mut bench = bench.crash();
    let parts = bench.store.parts_mut();
    let (page, _) = parts.pages.leaf_of(&key(7)).map(|(_, page)| (page, ())).expect("it is there");
    let place = parts.page_place(page.page);
    parts.pages.forget(page.page);
    bench.disk.flip(place + 200);
    assert!(bench.read(7, 0, 1).is_err());
    bench.write(7, 1, 1, 200);
    bench.checkpoint();
    for _ in 0..2 {
        bench.assert_unit(7, 1, Some(200));
        assert!(bench.read(7, 0, 1).is_err());
        assert_eq!(bench.store.blocks(PG.pool, 0, u32::MAX, None).count(), 800);
        bench = bench.crash();
        assert!(!bench.store.is_suspect(PG));
    }
}

/// Returns the rows of the table in the header of `decide.rs`: each row's letter and the rest of its line.
fn rows_of_the_table() -> BTreeMap<char, &'static str> {
    let lines = include_str!("decide.rs").lines().filter_map(|line| line.strip_prefix("//! @"));
    let rows: Vec<(char, &str)> =
        lines.filter_map(|line| line.chars().next().map(|row| (row, &line[1..]))).collect();
    let table: BTreeMap<char, &str> = rows.iter().copied().collect();
    assert_eq!(rows.len(), table.len(), "a row is there twice");
    table
}

#[test]
fn every_row_of_the_table_has_one_test_and_says_what_makes_the_store_suspect() {
    let here = include_str!("recovery_tests.rs").lines();
    let lines = here.chain(include_str!("batch_block_tests.rs").lines());
    let is_of_row = |name: &&str| name.starts_with("row_") || name.starts_with("object_row_");
    let names: Vec<&str> =
        lines.filter_map(|line| line.strip_prefix("fn ")).filter(is_of_row).collect();
    let table = rows_of_the_table();
    for (row, line) in &table {
        let of_objects = if row.is_lowercase() { "object_" } else { "" };
        let name = format!("{of_objects}row_{}_", row.to_ascii_lowercase());
        let count = names.iter().filter(|found| found.starts_with(&name)).count();
        assert_eq!(count, 1, "tests of row {row}");
        let is_suspect = line.contains(": suspect") || line.contains("; suspect");
        assert_eq!(is_suspect, is_suspicious(*row), "row {row}");
    }
    assert_eq!(names.len(), table.len());
}

#[test]
fn every_row_can_happen_and_decides_what_the_table_says() {
    use Content::*;
    let table = rows_of_the_table();
    let bits = [false, true];
    let mut rows = BTreeSet::new();
    for header in [
        Header::Unreadable,
        Header::Bad,
        Header::Old,
        Header::Newer,
        Header::Unchained,
        Header::Next,
    ] {
        for index in 0..720 {
            let bit = |at: u32| bits[(index >> at) & 1];
            let units = [Whole, Unreadable, Bad].map(|units| Inline::Body { units });
            let inline = [Inline::Block, Inline::Other, units[0], units[1], units[2]];
            let inline = inline[index / 144];
            let seen = Seen {
                header,
                inline,
                is_of_objects: bit(0) || matches!(inline, Inline::Body { .. }),
                is_acked: bit(1),
                follows_dropped: bit(2),
                body: [Whole, Unreadable, Bad][(index / 8) % 3],
                data: [Whole, Unreadable, Bad][(index / 24) % 3],
                is_committed: (index / 72) % 2 == 1,
            };
            let (row, verdict) = decide(seen);
            assert!(table[&row].contains(&format!(" {verdict:?} ")), "row {row}: {verdict:?}");
            rows.insert(row);
        }
    }
    assert_eq!(rows.into_iter().collect::<String>(), "ABCDEFGHIJKLMPTUVWXZacde");
}

#[test]
fn inspect_tells_and_changes_nothing() {
    let (mut bench, _) = three_writes(true);
    bench.delete(3);
    bench.run();
    let (head, tail) = (bench.store.parts().root.replay, bench.tail());
    let disk = bench.off();
    let mut read = |offset: u64, buffer: &mut [u8]| {
        disk.visible.read(offset, buffer);
        Ok(())
    };
    let seen = inspect(&mut read, SIZE, None).expect("it is a store");
    assert_eq!((seen.blocks, seen.tombstones, seen.notes), (2, 1, 0));
    assert_eq!((seen.journal_head, seen.journal_tail), (head.get(), tail.get()));
    assert!(!seen.suspect);
    let mut nothing = |_: u64, _: &mut [u8]| Err("unreadable".to_owned());
    assert!(inspect(&mut nothing, SIZE, None).is_err());
}
