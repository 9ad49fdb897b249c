//! The rules of `docs/internals/engine.md`, one test for each, run against both engines.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use engine::{
    Answer, Change, Compression, EngineError, EngineEvent, EngineOp, Flags, Folding, Query,
    READ_COUNT_MAX,
};

use crate::model::{self, Written};
use crate::subject::{
    Client, Engine, Random, RealEngine, TwinEngine, behind_listed, delete, delete_range, get,
    large_value, list, pool, put, scan,
};

/// Makes each function a test of both engines.
macro_rules! conformance {
    ($($name:ident)*) => {
        mod rocksdb {
            $(#[test] fn $name() { super::$name::<super::RealEngine>(); })*
        }
        mod twin {
            $(#[test] fn $name() { super::$name::<super::TwinEngine>(); })*
        }
    };
}

conformance! {
    families_are_created_and_removed
    a_removed_family_comes_back_empty
    changes_of_a_batch_take_effect_in_order
    a_range_deletion_deletes_what_waits_to_be_written_before_it
    random_groups_leave_what_a_sorted_map_has
    a_batch_at_or_below_the_lsn_is_skipped
    writes_end_in_the_order_of_their_requests
    a_scan_stops_at_its_limits_and_says_whether_there_is_more
    a_list_passes_what_a_record_stands_for
    a_list_that_ends_early_has_a_record
    a_list_behind_deleted_records_shows_the_next_one
    any_bytes_are_a_key
    all_queries_of_a_read_see_one_state
    a_read_contains_what_had_ended_before_it
    a_crash_loses_only_what_was_not_flushed
    a_flush_tells_its_lsn_before_it_ends
    families_are_flushed_on_their_own
    every_compression_is_read_back
    a_read_from_memory_never_waits
    a_damaged_record_fails_its_own_reads_only
    a_damaged_record_that_was_replaced_is_read
    damage_that_a_compaction_meets_poisons_and_is_noted
    a_family_that_is_noted_as_damaged_goes_on_until_it_is_removed
    statistics_describe_each_family
    statistics_tell_the_oldest_batch_that_is_not_flushed
    large_values_are_read_back
}

fn with_family<E: Engine>() -> Client<E> {
    let mut client = Client::<E>::create();
    client.create_family(1, Compression::Lz4).expect("new");
    client
}

fn keys(found: &[(Vec<u8>, Vec<u8>)]) -> Vec<&[u8]> {
    found.iter().map(|(key, _)| key.as_slice()).collect()
}

fn families_are_created_and_removed<E: Engine>() {
    let mut client = Client::<E>::create();
    assert_eq!(client.write(1, 10, vec![put("a", "1")]), Err(EngineError::NoFamily));
    assert_eq!(client.get(1, "a"), Err(EngineError::NoFamily));
    assert_eq!(client.flush(1), Err(EngineError::NoFamily));
    assert_eq!(client.create_family(1, Compression::Zstd), Ok(()));
    assert_eq!(client.create_family(1, Compression::Zstd), Ok(()));
    let other = EngineError::OtherCompression { found: Compression::Zstd };
    assert_eq!(client.create_family(1, Compression::Lz4), Err(other));
    assert_eq!(client.create_family(2, Compression::None), Ok(()));
    assert_eq!(client.write(1, 10, vec![put("a", "1")]), Ok(()));
    assert_eq!(client.get(2, "a"), Ok(None));

    // Both are durable without a flush.
    let (mut client, found) = client.crash();
    let families: Vec<_> = found.iter().map(|found| (found.family, found.compression)).collect();
    assert_eq!(families, [(pool(1), Compression::Zstd), (pool(2), Compression::None)]);
    assert_eq!(client.remove_family(2), Ok(()));
    assert_eq!(client.remove_family(2), Ok(()));
    let (mut client, found) = client.crash();
    assert_eq!(found.len(), 1);
    assert_eq!(client.get(2, "a"), Err(EngineError::NoFamily));
}

fn a_removed_family_comes_back_empty<E: Engine>() {
    let mut client = with_family::<E>();
    client.write(1, 10, vec![put("a", "1")]).expect("written");
    client.flush(1).expect("flushed");
    client.write(1, 20, vec![put("b", "1")]).expect("written");
    client.remove_family(1).expect("removed");
    client.create_family(1, Compression::Bzip2).expect("new");
    assert_eq!(client.all(1), []);
    client.write(1, 5, vec![put("c", "1")]).expect("its lsns begin anew");
    assert_eq!(keys(&client.all(1)), [b"c"]);
    client.flush(1).expect("flushed");
    let (mut client, found) = client.crash();
    assert_eq!((found[0].lsn.get(), found[0].compression), (5, Compression::Bzip2));
    assert_eq!(keys(&client.all(1)), [b"c"]);
}

fn changes_of_a_batch_take_effect_in_order<E: Engine>() {
    let mut client = with_family::<E>();
    let first = vec![put("a", "1"), put("b", "1"), put("c", "1"), put("d", "1"), put("e", "")];
    client.write(1, 10, first).expect("written");
    let second = vec![
        delete("a"),
        put("a", "2"),
        put("b", "2"),
        delete("b"),
        put("cc", "2"),
        delete_range("c", "d"),
        put("c", "3"),
    ];
    client.write(1, 20, second).expect("written");
    let expected: [(&[u8], &[u8]); 4] = [(b"a", b"2"), (b"c", b"3"), (b"d", b"1"), (b"e", b"")];
    let found = client.all(1);
    let found: Vec<(&[u8], &[u8])> =
        found.iter().map(|(key, value)| (key.as_slice(), value.as_slice())).collect();
    assert_eq!(found, expected);
    assert_eq!(client.get(1, "e"), Ok(Some(Vec::new())));
    assert_eq!(client.get(1, "cc"), Ok(None));
}

/// Batches that wait are written together: RocksDB does not show the earlier ones yet.
fn a_range_deletion_deletes_what_waits_to_be_written_before_it<E: Engine>() {
    let mut client = with_family::<E>();
    let mut ops = Vec::new();
    for round in 0..60u64 {
        let name = |field: &str| format!("object{round:02}/{field}");
        let lsn = 3 * round;
        ops.push(client.begin_write(1, lsn + 1, vec![put(name("a"), "1"), put(name("c"), "1")]));
        let range = delete_range(name(""), name("b"));
        ops.push(client.begin_write(1, lsn + 2, vec![put(name("b"), "1"), range]));
        let again = vec![delete_range(name(""), name("c")), put(name("a"), "2")];
        ops.push(client.begin_write(1, lsn + 3, again));
    }
    for op in ops {
        client.wait_done(op).expect("written");
    }
    let of_round = |round| [(round, "a", "2"), (round, "c", "1")];
    let expected = (0..60).flat_map(of_round).map(|(round, field, value)| {
        (format!("object{round:02}/{field}").into_bytes(), value.as_bytes().to_vec())
    });
    assert!(client.all(1).into_iter().eq(expected));
}

/// A batch of puts, deletions, and deletions of ranges: narrow ones, ones with about as many keys as are
/// deleted one by one, and wide ones.
fn random_batch(random: &mut Random) -> Vec<Change> {
    let key = |number: u64| format!("{number:03}");
    let count = if random.below(8) == 0 { 100 } else { random.below(6) };
    let mut changes = Vec::new();
    for _ in 0..count {
        let at = random.below(300);
        changes.push(match random.below(8) {
            0..5 => put(key(at), vec![at as u8; random.below(100) as usize]),
            5 => delete(key(at)),
            _ => {
                let width = [4, 100, 300][random.below(3) as usize];
                delete_range(key(at), key(at + 1 + random.below(width)))
            }
        });
    }
    changes
}

fn random_groups_leave_what_a_sorted_map_has<E: Engine>() {
    for seed in 1..=6 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut client = Client::<E>::create();
        let mut written: BTreeMap<u32, Written> = BTreeMap::new();
        for family in 1..=2 {
            client.create_family(family, Compression::Lz4).expect("new");
            written.insert(family, Written::default());
        }
        let mut lsn = 0;
        for _ in 0..60 {
            let mut ops = Vec::new();
            for _ in 0..1 + random.below(30) {
                lsn += 1;
                let family = 1 + random.below(2) as u32;
                let changes = random_batch(&mut random);
                ops.push(client.begin_write(family, lsn, changes.clone()));
                written.get_mut(&family).expect("it is there").batches.push((lsn, changes));
            }
            for op in ops {
                client.wait_done(op).expect("written");
            }
            match random.below(10) {
                0 => client.flush(1).expect("flushed"),
                1 => client = model::crash(client, &mut written),
                _ => {}
            }
            for (family, written) in &written {
                assert!(client.all(*family).into_iter().eq(written.model()), "family {family}");
            }
        }
    }
}

fn a_batch_at_or_below_the_lsn_is_skipped<E: Engine>() {
    let mut client = with_family::<E>();
    client.write(1, 10, vec![put("a", "1")]).expect("written");
    client.write(1, 20, vec![put("a", "2")]).expect("written");
    client.write(1, 20, vec![put("a", "again")]).expect("skipped");
    client.write(1, 10, vec![put("a", "older")]).expect("skipped");
    assert_eq!(client.get(1, "a"), Ok(Some(b"2".to_vec())));
    // An empty batch records its lsn.
    client.write(1, 30, Vec::new()).expect("written");
    client.write(1, 25, vec![put("a", "older")]).expect("skipped");
    assert_eq!(client.get(1, "a"), Ok(Some(b"2".to_vec())));
    client.flush(1).expect("flushed");
    let (mut client, found) = client.crash();
    assert_eq!(found[0].lsn.get(), 30);
    client.write(1, 30, vec![put("a", "again")]).expect("skipped");
    client.write(1, 31, vec![put("b", "3")]).expect("written");
    assert_eq!(client.get(1, "a"), Ok(Some(b"2".to_vec())));
    assert_eq!(client.get(1, "b"), Ok(Some(b"3".to_vec())));
}

fn writes_end_in_the_order_of_their_requests<E: Engine>() {
    let mut client = with_family::<E>();
    client.create_family(2, Compression::None).expect("new");
    let mut ops = Vec::new();
    for lsn in 1..=100 {
        ops.push(client.begin_write(1 + (lsn % 2) as u32, lsn, vec![put("a", lsn.to_string())]));
        client.begin_read(1, vec![get("a")], false);
    }
    let last = *ops.last().expect("some");
    let mut ended: Vec<EngineOp> = Vec::new();
    while ended.last() != Some(&last) {
        match client.wait_for(|event| matches!(event, EngineEvent::Done { .. })) {
            EngineEvent::Done { op, result } => {
                assert_eq!(result, Ok(()));
                ended.push(op);
            }
            event => unreachable!("{event:?}"),
        }
    }
    assert_eq!(ended, ops);
    assert_eq!(client.get(1, "a"), Ok(Some(b"100".to_vec())));
    assert_eq!(client.get(2, "a"), Ok(Some(b"99".to_vec())));
}

fn a_scan_stops_at_its_limits_and_says_whether_there_is_more<E: Engine>() {
    let mut client = with_family::<E>();
    client.write(1, 9, Vec::new()).expect("written");
    assert_eq!(client.all(1), []);
    let records = ["a", "b", "c", "d", "e"].map(|key| put(key, "12345"));
    client.write(1, 10, records.to_vec()).expect("written");
    client.flush(1).expect("flushed");
    // From, to before, records, bytes; what is found, and whether there is more.
    type Case = (&'static str, Option<&'static str>, usize, usize, &'static str, bool);
    let cases: [Case; 12] = [
        ("", None, 99, 999, "abcde", false),
        ("", None, 5, 999, "abcde", false),
        ("", None, 4, 999, "abcd", true),
        ("b", Some("d"), 99, 999, "bc", false),
        ("b", Some("d"), 2, 999, "bc", false),
        ("b", Some("d"), 1, 999, "b", true),
        ("b\0", Some("dd"), 99, 999, "cd", false),
        ("", None, 99, 0, "a", true),
        ("", None, 99, 6, "a", true),
        ("", None, 99, 7, "ab", true),
        ("f", None, 99, 999, "", false),
        ("d", Some("b"), 99, 999, "", false),
    ];
    for (start, end, count_max, size_max, expected, expected_more) in cases {
        let query = scan(start.as_bytes(), end.map(str::as_bytes), count_max, size_max);
        let (records, more) = client.scan(1, query.clone()).expect("readable");
        let found: String =
            records.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()).collect();
        assert_eq!((found.as_str(), more), (expected, expected_more), "{query:?}");
        assert!(records.iter().all(|(_, value)| value == b"12345"));
    }
}

fn a_list_passes_what_a_record_stands_for<E: Engine>() {
    let mut client = with_family::<E>();
    let keys = ["xa", "xb/1", "xb/2", "xc/1", "xc/2", "xc/3", "xd/1", "xe"];
    // What has the flag is passed over: the second and the third record stand for nothing.
    let value = |key: &str| if ["xb/1", "xc/1", "xd/1"].contains(&key) { "02" } else { "00" };
    let records = keys.map(|key| put(key, value(key)));
    client.write(1, 10, records.to_vec()).expect("written");
    client.flush(1).expect("flushed");
    let folding = |prefix_size, delimiter: &str, mask| Folding {
        prefix_size,
        delimiter: delimiter.into(),
        passed: vec![Flags { at: 1, mask }],
    };
    let all = keys.to_vec();
    let cases = [
        ("x", folding(1, "/", 2), vec!["xa", "xb/1", "xb/2", "xc/1", "xc/2", "xd/1", "xe"]),
        ("x", folding(1, "/", 0), vec!["xa", "xb/1", "xc/1", "xd/1", "xe"]),
        ("xb/1\0", folding(1, "/", 0), vec!["xb/2", "xc/1", "xd/1", "xe"]),
        ("x", folding(0, "x", 0), vec!["xa"]),
        ("x", folding(1, "x", 0), all.clone()),
        ("x", Folding::default(), all),
    ];
    for (start, folding, expected) in cases {
        for count_max in [1, 2, 100] {
            let (mut from, mut found) = (start.as_bytes().to_vec(), Vec::new());
            loop {
                let query = list(&from, Some(b"xe\0"), count_max, &folding);
                let (records, more) = client.scan(1, query).expect("readable");
                assert!(records.count() <= count_max);
                found.extend(
                    records.iter().map(|(key, _)| String::from_utf8_lossy(key).into_owned()),
                );
                if !more {
                    break;
                }
                from = behind_listed(&records, &folding);
            }
            assert_eq!(found, expected, "{start} {folding:?}");
        }
    }
    // A scan passes nothing.
    let (records, more) = client.scan(1, scan(b"x", None, 100, 1000)).expect("readable");
    assert_eq!((records.count(), more), (keys.len(), false));
}

fn a_list_that_ends_early_has_a_record<E: Engine>() {
    let mut client = with_family::<E>();
    let records = (0..2_000).map(|number| put(numbered(number), [0; 20])).collect();
    client.write(1, 10, records).expect("written");
    for from_memory in [false, true] {
        let (mut from, mut count) = (Vec::new(), 0);
        loop {
            let query = list(&from, None, 900, &Folding::default());
            let op = client.begin_read(1, vec![query], from_memory);
            let answers = match client.wait_read(op).1 {
                Err(EngineError::WouldBlock) if from_memory => continue,
                answers => answers.expect("readable"),
            };
            let [Answer::Records { records, more }] = &answers[..] else { panic!("{answers:?}") };
            count += records.count();
            if !more {
                break;
            }
            from = behind_listed(records, &Folding::default());
        }
        assert_eq!(count, 2_000);
    }
}

fn numbered(number: u32) -> String {
    format!("{number:07}")
}

/// Writes records, and deletes all but the last of them.
fn with_deleted_records<E: Engine>(count: u32) -> Client<E> {
    let mut client = with_family::<E>();
    let keys: Vec<String> = (0..count).map(numbered).collect();
    for (lsn, keys) in (10..).zip(keys.chunks(1_000)) {
        client.write(1, lsn, keys.iter().map(|key| put(key, b"value")).collect()).expect("written");
    }
    for (lsn, keys) in (1_000_000..).zip(keys[..keys.len() - 1].chunks(1_000)) {
        client.write(1, lsn, keys.iter().map(delete).collect()).expect("written");
    }
    client
}

/// Neither a list nor a scan takes what it passed in vain for the end of its range.
fn a_list_behind_deleted_records_shows_the_next_one<E: Engine>() {
    let mut client = with_deleted_records::<E>(5_000);
    let queries =
        || [list(b"", None, 10, &Folding::default()), scan(b"", None, 10, 1000)].map(|it| vec![it]);
    let is_right = |answers: &[Answer]| {
        let [Answer::Records { records, more: false }] = answers else { return false };
        records.iter().map(|(key, _)| key).eq([numbered(4_999).as_bytes()])
    };
    for query in queries() {
        for _ in 0..10 {
            let op = client.begin_read(1, query.clone(), true);
            match client.wait_read(op).1 {
                // The twin passes what it wants.
                Ok(answers) => assert!(!E::IS_THREADED && is_right(&answers), "{answers:?}"),
                Err(error) => assert_eq!(error, EngineError::WouldBlock),
            }
        }
        let answers = client.read(1, query).expect("readable");
        assert!(is_right(&answers), "{answers:?}");
    }
}

#[test]
fn scans_from_memory_share_the_time_of_a_turn() {
    let mut client = with_family::<RealEngine>();
    let records = (0..20_000).map(|number| put(numbered(number), b"value")).collect();
    client.write(1, 10, records).expect("written");
    let folding = Folding::default();
    let all = || vec![list(b"", None, usize::MAX, &folding), list(b"", None, 1, &folding)];
    let begun = Instant::now();
    let ops: Vec<EngineOp> =
        (0..READ_COUNT_MAX - 1).map(|_| client.begin_read(1, all(), true)).collect();
    let took = begun.elapsed();
    // Keys are found from memory as ever.
    let key = client.begin_read(1, vec![get(numbered(7))], true);
    let results: Vec<_> = ops.into_iter().map(|op| client.wait_read(op).1).collect();
    let blocked = results.iter().position(|result| *result == Err(EngineError::WouldBlock));
    let blocked = blocked.expect("a quarter of them takes longer");
    let are_blocked = |result: &Result<_, _>| *result == Err(EngineError::WouldBlock);
    assert!(results[blocked..].iter().all(are_blocked), "{blocked}");
    assert!(blocked < 100, "{blocked} reads in {took:?}");
    assert_eq!(client.wait_read(key).1, Ok(vec![Answer::Value(Some(b"value".to_vec()))]));
    // In the next turn they are answered again.
    let op = client.begin_read(1, vec![list(b"", None, 1, &folding)], true);
    assert!(client.wait_read(op).1.is_ok());
}

#[test]
fn files_full_of_deletions_are_compacted() {
    let mut client = with_family::<RealEngine>();
    let puts = (0..20_000).map(|number| put(numbered(number), b"value"));
    for (lsn, puts) in (10..).zip(puts.collect::<Vec<_>>().chunks(1_000)) {
        client.write(1, lsn, puts.to_vec()).expect("written");
    }
    client.flush(1).expect("flushed");
    // So few files are not compacted for their number.
    client
        .write(1, 1_000, (1..20_000).map(|number| delete(numbered(number))).collect())
        .expect("ok");
    client.flush(1).expect("flushed");
    let begun = Instant::now();
    loop {
        let statistics = client.statistics();
        if statistics.families[0].disk_size < 4_000 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{statistics:?}");
        std::thread::yield_now();
    }
    assert_eq!(client.all(1).len(), 1);
}

/// Prints what lists take on the caller's thread. Run it with `--ignored --nocapture`.
#[test]
#[ignore = "it measures"]
fn what_lists_take() {
    let mut client = with_deleted_records::<RealEngine>(200_000);
    let folding = Folding::default();
    for (what, from_memory) in [("from memory", true), ("on a thread", false)] {
        let begun = Instant::now();
        let op = client.begin_read(1, vec![list(b"", None, 1_000, &folding)], from_memory);
        let submitted = begun.elapsed();
        let result = client.wait_read(op).1.map(|answers| answers.len());
        println!("behind 200000 removals {what}: {submitted:?}, {:?}: {result:?}", begun.elapsed());
    }
    client.write(1, 2_000_000, vec![delete_range("0", "1")]).expect("written");
    let values = (0..20_000).map(|number| put(numbered(number), b"value"));
    client.write(1, 2_000_001, values.collect()).expect("written");
    client.write(1, 2_000_002, vec![delete_range("0", "1")]).expect("written");
    let begun = Instant::now();
    let op = client.begin_read(1, vec![list(b"", None, 1_000, &folding)], true);
    let submitted = begun.elapsed();
    println!(
        "behind a range of 20000: {submitted:?}: {:?}",
        client.wait_read(op).1.map(|it| it.len())
    );
    let mut client = with_family::<RealEngine>();
    let names = (0..40_000).map(|number| format!("x{:04}/{:02}", number / 40, number % 40));
    for (lsn, names) in (10..).zip(names.collect::<Vec<_>>().chunks(1_000)) {
        client.write(1, lsn, names.iter().map(|key| put(key, [0; 60])).collect()).expect("written");
    }
    client.flush(1).expect("flushed");
    client.all(1);
    let folding = Folding { prefix_size: 1, delimiter: b"/".to_vec(), passed: Vec::new() };
    for round in 0..2 {
        let (mut from, mut rounds, mut longest) = (b"x".to_vec(), 0, Duration::ZERO);
        let begun = Instant::now();
        loop {
            let query = match round {
                // A round for each common prefix.
                0 => scan(&from, Some(b"y"), 16, usize::MAX),
                _ => list(&from, Some(b"y"), 1_001, &folding),
            };
            let round_begun = Instant::now();
            let op = client.begin_read(1, vec![query.clone()], true);
            longest = longest.max(round_begun.elapsed());
            let answers = match client.wait_read(op).1 {
                Err(EngineError::WouldBlock) => {
                    rounds += 1;
                    client.read(1, vec![query])
                }
                answers => answers,
            };
            let answers = answers.expect("readable");
            rounds += 1;
            let [Answer::Records { records, more }] = &answers[..] else { panic!("{answers:?}") };
            if records.is_empty() || round == 1 && !more {
                break;
            }
            let (key, _) = match round {
                0 => records.iter().next(),
                _ => records.iter().last(),
            }
            .expect("a record");
            from = format::engine::behind(&key[..6]).expect("not the last");
        }
        println!(
            "1000 common prefixes: {rounds} rounds, {:?}, longest {longest:?}",
            begun.elapsed()
        );
    }
}

fn any_bytes_are_a_key<E: Engine>() {
    let mut client = with_family::<E>();
    let mut wanted: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte]).collect();
    wanted.extend([vec![0; 4352], vec![255; 4352], vec![0, 0], vec![255, 0]]);
    let changes = wanted.iter().map(|key| put(key, [key.len() as u8])).collect();
    client.write(1, 10, changes).expect("written");
    client.flush(1).expect("flushed");
    wanted.sort();
    let found = client.all(1);
    assert!(found.iter().map(|(key, _)| key).eq(&wanted));
    for key in wanted {
        assert_eq!(client.get(1, &key), Ok(Some(vec![key.len() as u8])));
    }
}

/// A batch changes ten records at once; a read of all of them, one by one and by a scan, sees them equal.
fn all_queries_of_a_read_see_one_state<E: Engine>() {
    let mut client = with_family::<E>();
    let names: Vec<String> = (0..10).map(|number| format!("key{number}")).collect();
    let mut reads = Vec::new();
    for lsn in 1..=200 {
        let changes = names.iter().map(|name| put(name, format!("{lsn:04}"))).collect();
        client.begin_write(1, lsn, changes);
        // So many that writes come between them.
        let mut queries: Vec<Query> = Vec::new();
        for _ in 0..30 {
            queries.extend(names.iter().take(5).map(get));
            queries.push(scan(b"", None, 99, 9999));
            queries.extend(names.iter().skip(5).map(get));
        }
        reads.push(client.begin_read(1, queries, false));
    }
    for op in reads {
        let (contains, result) = client.wait_read(op);
        let mut values = Vec::new();
        for answer in result.expect("readable") {
            match answer {
                Answer::Value(value) => values.push(value),
                Answer::Records { records, .. } if records.is_empty() => values.push(None),
                Answer::Records { records, .. } => {
                    assert_eq!(records.count(), 10);
                    values.extend(records.iter().map(|(_, value)| Some(value.to_vec())));
                }
            }
        }
        assert!(values.windows(2).all(|pair| pair[0] == pair[1]), "{values:?}");
        let seen = values[0]
            .as_ref()
            .map_or(0, |value| String::from_utf8_lossy(value).parse::<u64>().expect("a number"));
        assert!(contains <= seen, "{contains} {seen}");
    }
}

fn a_read_contains_what_had_ended_before_it<E: Engine>() {
    let mut client = with_family::<E>();
    for lsn in 1..=50 {
        client.write(1, lsn, vec![put("a", lsn.to_string())]).expect("written");
        let op = client.begin_read(1, vec![get("a")], false);
        let (contains, result) = client.wait_read(op);
        assert_eq!(contains, lsn);
        assert_eq!(result, Ok(vec![Answer::Value(Some(lsn.to_string().into_bytes()))]));
    }
}

fn a_crash_loses_only_what_was_not_flushed<E: Engine>() {
    let mut client = with_family::<E>();
    let name = |lsn: u64| format!("{lsn:03}");
    for lsn in 1..=10 {
        client.write(1, lsn, vec![put(name(lsn), "x")]).expect("written");
    }
    client.flush(1).expect("flushed");
    for lsn in 11..=20 {
        client.write(1, lsn, vec![put(name(lsn), "x")]).expect("written");
    }
    let (mut client, found) = client.crash();
    let lsn = found[0].lsn.get();
    assert!((10..=20).contains(&lsn), "{lsn}");
    let expected: Vec<String> = (1..=lsn).map(name).collect();
    let expected: Vec<&[u8]> = expected.iter().map(String::as_bytes).collect();
    assert_eq!(keys(&client.all(1)), expected);
    // Replay brings the rest.
    for lsn in 5..=20 {
        client.write(1, lsn, vec![put(name(lsn), "x")]).expect("written");
    }
    assert_eq!(client.all(1).len(), 20);
}

fn a_flush_tells_its_lsn_before_it_ends<E: Engine>() {
    let mut client = with_family::<E>();
    client.write(1, 10, vec![put("a", "1")]).expect("written");
    let op = client.begin_flush(1);
    let first = client.wait_for(|event| match event {
        EngineEvent::Flushed { .. } => true,
        EngineEvent::Done { op: o, .. } => *o == op,
        _ => false,
    });
    assert!(matches!(first, EngineEvent::Flushed { lsn, .. } if lsn.get() == 10), "{first:?}");
    assert_eq!(client.wait_done(op), Ok(()));
    // What is flushed already is told once.
    client.flush(1).expect("nothing to do");
    assert_eq!(client.take_flushed(1), None);
    client.write(1, 20, vec![put("b", "1")]).expect("written");
    client.flush(1).expect("flushed");
    assert_eq!(client.take_flushed(1), Some(20));
}

fn families_are_flushed_on_their_own<E: Engine>() {
    let mut client = with_family::<E>();
    client.create_family(2, Compression::Zlib).expect("new");
    client.write(1, 10, vec![put("a", "1")]).expect("written");
    client.write(2, 20, vec![put("a", "1")]).expect("written");
    client.flush(2).expect("flushed");
    assert_eq!(client.take_flushed(2), Some(20));
    let (_, found) = client.crash();
    assert!(found[0].lsn.get() <= 10);
    assert_eq!(found[1].lsn.get(), 20);
}

fn every_compression_is_read_back<E: Engine>() {
    let mut client = Client::<E>::create();
    let value = |family: u32, number: u64| {
        format!("{family} {number} {}", "compressible ".repeat(number as usize % 40))
    };
    let families: Vec<(u32, Compression)> = (1..).zip(Compression::ALL).collect();
    for (family, compression) in &families {
        client.create_family(*family, *compression).expect("new");
        for lsn in 1..=20 {
            let numbers = lsn * 50..(lsn + 1) * 50;
            let changes = numbers.map(|n| put(format!("{n:06}"), value(*family, n))).collect();
            client.write(*family, lsn, changes).expect("written");
        }
        client.flush(*family).expect("flushed");
    }
    let (mut client, found) = client.crash();
    assert!(found.iter().map(|found| found.compression).eq(Compression::ALL));
    for (family, compression) in families {
        let records = client.all(family);
        assert_eq!(records.len(), 1000, "{compression}");
        for (number, (key, found)) in (50..).zip(records) {
            assert_eq!(key, format!("{number:06}").into_bytes());
            assert_eq!(found, value(family, number).into_bytes(), "{compression}");
        }
    }
}

fn a_read_from_memory_never_waits<E: Engine>() {
    // Opened anew: the blocks of these records were not read yet.
    let (mut client, _) = with_large_records::<E>().crash();
    let expected = vec![
        Answer::Value(Some(large_value("family1-050"))),
        Answer::Value(None),
        Answer::Value(Some(large_value("family1-090"))),
    ];
    let queries = vec![get("family1-050"), get("family1-055x"), get("family1-090")];
    let (mut hits, mut misses) = (0, 0);
    for round in 0..30 {
        let op = client.begin_read(1, queries.clone(), true);
        match client.wait_read(op).1 {
            Ok(answers) => {
                assert_eq!(answers, expected);
                hits += 1;
            }
            Err(error) => {
                assert_eq!(error, EngineError::WouldBlock);
                misses += 1;
            }
        }
        if round == 10 {
            assert_eq!(client.read(1, queries.clone()), Ok(expected.clone()));
        }
    }
    assert!(hits > 0);
    assert!(misses > 0);
}

/// Two families, uncompressed: records of 1,000 bytes each.
fn with_large_records<E: Engine>() -> Client<E> {
    let mut client = Client::<E>::create();
    for family in [1, 2] {
        client.create_family(family, Compression::None).expect("new");
        let records = (0..100).map(|n| format!("family{family}-{n:03}"));
        let records = records.map(|key| put(&key, large_value(&key)));
        client.write(family, 10, records.collect()).expect("written");
        client.flush(family).expect("flushed");
    }
    client
}

fn a_damaged_record_fails_its_own_reads_only<E: Engine>() {
    let mut client = with_large_records::<E>().corrupt(1, "family1-050");
    match client.get(1, "family1-050") {
        Err(EngineError::Corrupt { family, start, end, text }) => {
            assert_eq!((family, start), (pool(1), b"family1-050".to_vec()));
            assert_eq!(end, Some(b"family1-050\0".to_vec()));
            assert!(!text.is_empty());
        }
        other => panic!("{other:?}"),
    }
    match client.scan(1, scan(b"", Some(b"family1-060"), 999, 1 << 30)) {
        Err(EngineError::Corrupt { start, end, .. }) => {
            assert!(start.as_slice() <= &b"family1-050"[..], "{start:?}");
            assert!(start.as_slice() > &b"family1-020"[..], "{start:?}");
            assert_eq!(end, Some(b"family1-060".to_vec()));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(client.get(1, "family1-000"), Ok(Some(large_value("family1-000"))));
    assert_eq!(client.get(1, "family1-099"), Ok(Some(large_value("family1-099"))));
    assert_eq!(client.all(2).len(), 100);
    assert_eq!(client.write(1, 20, vec![put("x", "1")]), Ok(()));
    assert_eq!(client.flush(1), Ok(()));
    let poisoned = |event: &EngineEvent| matches!(event, EngineEvent::Poisoned { .. });
    assert!(!client.events.iter().any(poisoned));
}

fn a_damaged_record_that_was_replaced_is_read<E: Engine>() {
    let mut client = with_large_records::<E>().corrupt(1, "family1-050");
    assert!(client.get(1, "family1-050").is_err());
    client.write(1, 20, vec![put("family1-050", "new")]).expect("written");
    assert_eq!(client.get(1, "family1-050"), Ok(Some(b"new".to_vec())));
}

/// Writes over the whole range of family 1, and flushes, so often that compactions read all of it. Stops when
/// the engine is poisoned, and returns whether it is already.
fn make_compactions<E: Engine>(client: &mut Client<E>, first_lsn: u64) -> bool {
    for lsn in first_lsn..first_lsn + 12 {
        let value = lsn.to_string();
        let written = client.write(1, lsn, vec![put("a", &value), put("z", &value)]);
        let flushed = client.flush(1);
        for result in [written, flushed] {
            match result {
                Ok(()) => {}
                Err(EngineError::Poisoned { .. }) => return true,
                Err(error) => panic!("{error:?}"),
            }
        }
        client.engine.compact();
    }
    false
}

fn wait_for_poison<E: Engine>(client: &mut Client<E>) -> String {
    match client.wait_for(|event| matches!(event, EngineEvent::Poisoned { .. })) {
        EngineEvent::Poisoned { text } => text,
        event => unreachable!("{event:?}"),
    }
}

fn damage_that_a_compaction_meets_poisons_and_is_noted<E: Engine>() {
    let mut client = with_large_records::<E>().corrupt(1, "family1-050");
    make_compactions(&mut client, 20);
    let poisoned = Err(EngineError::Poisoned { text: wait_for_poison(&mut client) });
    assert_eq!(client.write(2, 20, vec![put("a", "1")]), poisoned);
    assert_eq!(client.flush(2), poisoned);
    assert_eq!(client.create_family(3, Compression::None), poisoned);
    assert_eq!(client.get(2, "a").map(|_| ()), poisoned);
    let told = |event: &EngineEvent| matches!(event, EngineEvent::Poisoned { .. });
    assert!(!client.events.iter().any(told), "it is told once");
    let (_, found) = client.crash();
    let damaged: Vec<_> = found.iter().map(|found| (found.family, found.is_damaged)).collect();
    assert_eq!(damaged, [(pool(1), true), (pool(2), false)]);
}

/// The twin forgets it: there a read meets the damage again.
#[test]
fn damage_that_a_read_met_is_known_at_the_next_opening() {
    let mut client = with_large_records::<RealEngine>().corrupt(1, "family1-050");
    assert!(matches!(client.get(1, "family1-050"), Err(EngineError::Corrupt { .. })));
    let (mut client, found) = client.crash();
    let damaged: Vec<bool> = found.iter().map(|found| found.is_damaged).collect();
    assert_eq!(damaged, [true, false]);
    client.remove_family(1).expect("removed");
    let (_, found) = client.crash();
    assert!(found.iter().all(|found| !found.is_damaged));
}

fn a_family_that_is_noted_as_damaged_goes_on_until_it_is_removed<E: Engine>() {
    let mut client = with_large_records::<E>().corrupt(1, "family1-050");
    make_compactions(&mut client, 20);
    wait_for_poison(&mut client);
    let (mut client, found) = client.crash();
    assert!(found[0].is_damaged);
    assert!(client.statistics().families[0].is_damaged);
    let lsn = found[0].lsn.get();
    assert!(!make_compactions(&mut client, lsn + 1), "it is not compacted");
    assert!(matches!(client.get(1, "family1-050"), Err(EngineError::Corrupt { .. })));
    assert_eq!(client.get(1, "family1-099"), Ok(Some(large_value("family1-099"))));
    assert_eq!(client.get(1, "a"), Ok(Some((lsn + 12).to_string().into_bytes())));
    assert_eq!(client.all(2).len(), 100);
    // The next opening finds it so, too.
    let (mut client, found) = client.crash();
    assert!(found[0].is_damaged);

    client.remove_family(1).expect("removed");
    client.create_family(1, Compression::None).expect("new");
    assert!(!client.statistics().families[0].is_damaged);
    let (mut client, found) = client.crash();
    assert!(!found[0].is_damaged);
    assert!(!make_compactions(&mut client, 1), "nothing is damaged");
    assert_eq!(client.all(1).len(), 2);
}

fn statistics_tell_the_oldest_batch_that_is_not_flushed<E: Engine>() {
    let mut client = with_family::<E>();
    let unflushed = |client: &mut Client<E>| {
        let statistics = client.statistics();
        assert_eq!(statistics.families.len(), 1);
        statistics.families[0].unflushed_lsn.map(|lsn| lsn.get())
    };
    assert_eq!(unflushed(&mut client), None);
    client.write(1, 10, vec![put("a", "1")]).expect("written");
    client.write(1, 20, vec![put("a", "2")]).expect("written");
    // An engine may flush by itself.
    assert!([None, Some(10), Some(20)].contains(&unflushed(&mut client)));
    client.flush(1).expect("flushed");
    assert_eq!(unflushed(&mut client), None);
    client.write(1, 30, vec![put("a", "3")]).expect("written");
    client.write(1, 40, vec![put("a", "4")]).expect("written");
    let found = unflushed(&mut client);
    assert!([None, Some(30), Some(40)].contains(&found), "{found:?}");
    // RocksDB has no reason to flush so little.
    assert!(!E::IS_THREADED || found == Some(30), "{found:?}");
    let (mut client, _) = client.crash();
    assert_eq!(unflushed(&mut client), None);
}

fn statistics_describe_each_family<E: Engine>() {
    let mut client = with_large_records::<E>();
    client.write(1, 20, vec![put("x", [1; 100_000])]).expect("written");
    let statistics = client.statistics();
    let [first, second] = statistics.families.as_slice() else { panic!("{statistics:?}") };
    assert_eq!((first.family, first.compression), (pool(1), Compression::None));
    assert_eq!((first.lsn.get(), second.lsn.get()), (20, 10));
    assert!([10, 20].contains(&first.flushed_lsn.get()), "{first:?}");
    assert_eq!(second.flushed_lsn.get(), 10);
    assert!(second.disk_size >= 100_000, "{second:?}");
    assert!((50..=200).contains(&second.record_count_estimate), "{second:?}");
    assert_eq!(statistics.background_error_count, 0);
}

/// Each read after a range deletion costs what those in memory cost together. The twin has no such thing.
#[test]
fn many_range_deletions_are_flushed() {
    let mut client = with_family::<RealEngine>();
    let key = |number: u32| format!("{number:03}");
    client.write(1, 10, (0..100).map(|number| put(key(number), "1")).collect()).expect("written");
    client.write(1, 20, vec![delete_range(key(0), key(100)); 1000]).expect("written");
    match client.wait_for(|event| matches!(event, EngineEvent::Flushed { .. })) {
        EngineEvent::Flushed { lsn, .. } => assert_eq!(lsn.get(), 20),
        event => unreachable!("{event:?}"),
    }
    assert_eq!(client.all(1), []);
}

fn large_values_are_read_back<E: Engine>() {
    let mut client = with_family::<E>();
    let value: Vec<u8> = (0..4 << 20).map(|n: u32| (n ^ (n >> 8)) as u8).collect();
    client.write(1, 10, vec![put("a", &value)]).expect("written");
    client.write(1, 20, vec![put("b", &value)]).expect("written");
    client.write(1, 30, vec![put("c", &value)]).expect("written");
    assert_eq!(client.get(1, "a"), Ok(Some(value.clone())));
    client.flush(1).expect("flushed");
    let (records, more) = client.scan(1, scan(b"", None, 99, 1)).expect("readable");
    assert_eq!((records.count(), records.size(), more), (1, 1 + value.len(), true));
}
