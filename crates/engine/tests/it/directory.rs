//! Who an engine is: what is refused when a directory is opened, used to create an engine, or to destroy it.

use std::collections::BTreeMap;
use std::fs;

use engine::{Change, Compression, EngineError, Identity, OpenError, Rocks, RocksReadOnly};

use crate::subject::{
    Client, IDENTITY, RealEngine, TempDirectory, damage, delete_range, large_value, put, settings,
};

fn open_error(directory: &TempDirectory, identity: Identity) -> OpenError {
    Rocks::open(&directory.0, identity, settings(), || {}).map(|_| ()).expect_err("refused")
}

fn created() -> TempDirectory {
    let directory = TempDirectory::new();
    Rocks::create(&directory.0, IDENTITY).expect("an empty directory");
    directory
}

#[test]
fn a_missing_engine_is_refused() {
    let directory = TempDirectory::new();
    assert!(matches!(open_error(&directory, IDENTITY), OpenError::Missing(_)));
    let absent = TempDirectory(directory.0.join("absent"));
    assert!(matches!(open_error(&absent, IDENTITY), OpenError::Missing(_)));
    let text = open_error(&absent, IDENTITY).to_string();
    assert!(text.contains("absent has no engine"), "{text}");
}

#[test]
fn a_foreign_engine_is_refused() {
    let directory = created();
    for identity in [Identity { engine: 1, ..IDENTITY }, Identity { store: 1, ..IDENTITY }] {
        let error = open_error(&directory, identity);
        assert!(matches!(error, OpenError::Foreign(_)), "{error:?}");
        let text = error.to_string();
        assert!(text.contains(&IDENTITY.to_string()), "{text}");
        assert!(text.contains(&identity.to_string()), "{text}");
        let destroyed = Rocks::destroy(&directory.0, identity);
        assert!(matches!(destroyed, Err(OpenError::Foreign(_))), "{destroyed:?}");
    }
    RealEngine::open(directory, settings());
}

#[test]
fn an_engine_that_is_open_is_refused() {
    let (open, _) = RealEngine::open(created(), settings());
    let error = open_error(&open.directory, IDENTITY);
    assert!(matches!(error, OpenError::InUse(_)), "{error:?}");
    let destroyed = Rocks::destroy(&open.directory.0, IDENTITY);
    assert!(matches!(destroyed, Err(OpenError::InUse(_))), "{destroyed:?}");
}

#[test]
fn a_damaged_engine_is_not_said_to_be_open_because_of_its_path() {
    let parent = TempDirectory::new();
    let directory = parent.0.join("blocks, locked");
    Rocks::create(&directory, IDENTITY).expect("the place is empty");
    fs::remove_file(directory.join("rocksdb/CURRENT")).expect("it is there");
    let opened = Rocks::open(&directory, IDENTITY, settings(), || {});
    assert!(matches!(opened, Err(OpenError::Corrupt(_))), "{opened:?}");
}

#[test]
fn an_occupied_directory_is_refused() {
    let directory = created();
    let again = Rocks::create(&directory.0, IDENTITY);
    assert!(matches!(again, Err(OpenError::Occupied(_))), "{again:?}");
    let other = TempDirectory::new();
    fs::write(other.0.join("letter.txt"), "dear").expect("a file");
    let refused = Rocks::create(&other.0, IDENTITY);
    assert!(matches!(refused, Err(OpenError::Occupied(_))), "{refused:?}");
    assert!(other.0.join("letter.txt").exists());
}

#[test]
fn an_interrupted_creation_begins_again() {
    let directory = created();
    // As it was before the last rename.
    fs::rename(directory.0.join("engine"), directory.0.join("engine.unfinished")).expect("a name");
    let error = open_error(&directory, IDENTITY);
    assert!(matches!(error, OpenError::Missing(_)), "{error:?}");
    assert!(error.to_string().contains("interrupted"), "{error}");
    Rocks::create(&directory.0, IDENTITY).expect("what is left of a creation");
    let (_, found) = RealEngine::open(directory, settings());
    assert_eq!(found, []);
}

#[test]
fn a_renewed_engine_is_empty_and_has_the_identity_of_the_old_one() {
    let mut client = Client::new(RealEngine::open(created(), settings()).0);
    client.create_family(1, Compression::Lz4).expect("new");
    let RealEngine { engine, mut directory, .. } = client.engine;
    drop(engine);
    let is_empty = |directory| {
        let (open, found) = RealEngine::open(directory, settings());
        assert_eq!(found, []);
        let RealEngine { engine, directory, .. } = open;
        drop(engine);
        directory
    };
    // Without any of these files it cannot be opened.
    fs::remove_file(directory.0.join("rocksdb/CURRENT")).expect("it is there");
    assert!(matches!(open_error(&directory, IDENTITY), OpenError::Corrupt(_)));
    let other = Identity { engine: 99, ..IDENTITY };
    assert!(matches!(Rocks::renew(&directory.0, other), Err(OpenError::Foreign(_))));
    Rocks::renew(&directory.0, IDENTITY).expect("it is ours");
    directory = is_empty(directory);
    // The process died before the new one was there.
    fs::rename(directory.0.join("engine"), directory.0.join("engine.unfinished")).expect("there");
    assert!(matches!(open_error(&directory, IDENTITY), OpenError::Missing(_)));
    Rocks::renew(&directory.0, IDENTITY).expect("it goes on");
    directory = is_empty(directory);
    // The file that says whose it is is damaged, or gone.
    fs::write(directory.0.join("engine"), "ashlar engine 1\n").expect("writable");
    assert!(matches!(open_error(&directory, IDENTITY), OpenError::Corrupt(_)));
    Rocks::renew(&directory.0, IDENTITY).expect("it is named anew");
    directory = is_empty(directory);
    let newer = "ashlar engine 2\nsomething\n";
    fs::write(directory.0.join("engine"), newer).expect("writable");
    assert!(matches!(Rocks::renew(&directory.0, IDENTITY), Err(OpenError::TooNew(_))));
    assert_eq!(fs::read_to_string(directory.0.join("engine")).expect("it stays"), newer);
    fs::remove_file(directory.0.join("engine")).expect("it is there");
    Rocks::renew(&directory.0, IDENTITY).expect("only files of an engine are there");
    directory = is_empty(directory);
    fs::write(directory.0.join("a letter"), "").expect("writable");
    assert!(matches!(Rocks::renew(&directory.0, IDENTITY), Err(OpenError::Occupied(_))));
    // Everything is gone.
    fs::remove_dir_all(&directory.0).expect("it is there");
    Rocks::renew(&directory.0, IDENTITY).expect("there is nothing in the way");
    is_empty(directory);
}

#[test]
fn a_destroyed_engine_is_gone() {
    let mut client = Client::new(RealEngine::open(created(), settings()).0);
    client.create_family(1, Compression::Lz4).expect("new");
    client.write(1, 1, vec![put("a", "1")]).expect("written");
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    // A note of damage goes with it.
    fs::write(directory.0.join("damaged"), "1.lz4\n").expect("a file");
    Rocks::destroy(&directory.0, IDENTITY).expect("it is there");
    assert_eq!(fs::read_dir(&directory.0).expect("a directory").count(), 0);
    Rocks::create(&directory.0, IDENTITY).expect("an empty directory");
    assert_eq!(RealEngine::open(directory, settings()).1, []);
}

#[test]
fn a_closed_engine_has_everything() {
    let mut client = Client::new(RealEngine::open(created(), settings()).0);
    client.create_family(1, Compression::Lz4).expect("new");
    client.write(1, 7, vec![put("a", "1")]).expect("written");
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    // RocksDB's text log is not among its files: it does not survive a full file system.
    for entry in fs::read_dir(directory.0.join("rocksdb")).expect("a directory").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(!name.starts_with("LOG"), "{name}");
    }
    let (_, found) = RealEngine::open(directory, settings());
    assert_eq!(found[0].lsn.get(), 7);
}

#[test]
fn a_note_of_damage_about_families_that_are_not_there_is_ignored() {
    let mut client = Client::new(RealEngine::open(created(), settings()).0);
    client.create_family(1, Compression::Lz4).expect("new");
    client.create_family(2, Compression::Lz4).expect("new");
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    fs::write(directory.0.join("damaged"), "2.lz4\n3.none\n1.zstd\n").expect("a file");
    let (_, found) = RealEngine::open(directory, settings());
    let damaged: Vec<bool> = found.iter().map(|found| found.is_damaged).collect();
    assert_eq!(damaged, [false, true]);
}

#[test]
fn a_missing_file_of_the_database_is_damage() {
    let mut client = Client::new(RealEngine::open(created(), settings()).0);
    client.create_family(1, Compression::None).expect("new");
    client.write(1, 7, vec![put("a", "1")]).expect("written");
    client.flush(1).expect("flushed");
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    for entry in fs::read_dir(directory.0.join("rocksdb")).expect("a directory").flatten() {
        if entry.path().extension().is_some_and(|ending| ending == "sst") {
            fs::remove_file(entry.path()).expect("removed");
        }
    }
    let error = open_error(&directory, IDENTITY);
    assert!(matches!(error, OpenError::Corrupt(_)), "{error:?}");
}

/// Damage that a compaction finds stops writes of all families. It is noticed without a request.
#[test]
fn damage_found_by_a_compaction_poisons() {
    let mut client = Client::new(RealEngine::open(created(), settings()).0);
    client.create_family(1, Compression::None).expect("new");
    client.create_family(2, Compression::None).expect("new");
    let records = |name: &str| -> Vec<Change> {
        let keys = (0..100).map(|n| format!("{name}-{n:03}"));
        keys.map(|key| put(&key, large_value(&key))).collect()
    };
    client.write(1, 1, records("unique")).expect("written");
    client.flush(1).expect("flushed");
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    damage(&directory.0, "unique-050");
    let mut client = Client::new(RealEngine::open(directory, settings()).0);
    // Four files at the first level are merged. Nothing is requested then.
    for lsn in 2..=4 {
        let mut records = records("other");
        records.push(put("a", "1"));
        records.push(put("z", "1"));
        client.write(1, lsn, records).expect("written");
        // The last flush may meet the failed compaction that follows it.
        let flushed = client.flush(1);
        assert!(flushed.is_ok() || lsn == 4, "{flushed:?}");
    }
    let poisoned =
        |event: &engine::EngineEvent| matches!(event, engine::EngineEvent::Poisoned { .. });
    match client.wait_for(poisoned) {
        engine::EngineEvent::Poisoned { text } => assert!(text.contains("Corruption"), "{text}"),
        event => unreachable!("{event:?}"),
    }
    let text = |result| match result {
        Err(engine::EngineError::Poisoned { text }) => text,
        other => panic!("{other:?}"),
    };
    let first = text(client.write(2, 1, vec![put("a", "1")]));
    assert_eq!(text(client.flush(2)), first);
    assert_eq!(text(client.get(2, "a").map(|_| ())), first);
    assert_eq!(text(client.create_family(3, Compression::None)), first);
    assert!(!client.events.iter().any(poisoned), "it is told once");
}

/// What became of a damaged file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Damage {
    /// The engine is not opened.
    Refused,
    /// The family is gone, or its lsn is below what was told as flushed.
    Behind,
    /// Some record cannot be read.
    Corrupt,
    /// Everything is there.
    Harmless,
}

/// Whatever byte of a file is damaged: somebody can see it, and no read gives anything wrong.
#[test]
fn a_damaged_byte_is_noticed() {
    let mut client = Client::new(RealEngine::open(created(), settings()).0);
    client.create_family(1, Compression::Lz4).expect("new");
    let keys: Vec<String> = (0..40).map(|n| format!("key-{n:03}")).collect();
    let records: Vec<Change> = keys.iter().map(|key| put(key, large_value(key))).collect();
    client.write(1, 1, records).expect("written");
    client.write(1, 2, vec![delete_range("x", "y")]).expect("written");
    client.flush(1).expect("flushed");
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    let mut outcomes = BTreeMap::new();
    for entry in fs::read_dir(directory.0.join("rocksdb")).expect("a directory").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !(name.ends_with(".sst") || name.starts_with("MANIFEST") || name == "CURRENT") {
            continue;
        }
        let bytes = fs::read(entry.path()).expect("a file");
        // A manifest whose lengths are damaged ends early for RocksDB; there are few such bytes.
        let step = if name.ends_with(".sst") { bytes.len() / 60 } else { 1 };
        for at in (0..bytes.len()).step_by(step) {
            let copy = directory.copy();
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            fs::write(copy.0.join("rocksdb").join(&name), &damaged).expect("a file");
            let outcome = look_at(copy, &keys, &format!("byte {at} of {name}"));
            *outcomes.entry(outcome).or_insert(0) += 1;
        }
    }
    // The test would show nothing if one of them were missing.
    assert_eq!(outcomes.len(), 4, "{outcomes:?}");
}

fn look_at(directory: TempDirectory, keys: &[String], what: &str) -> Damage {
    let (engine, found) = match RealEngine::try_open(directory, settings()) {
        Ok(opened) => opened,
        Err(OpenError::Corrupt(_)) => return Damage::Refused,
        Err(error) => panic!("{what}: {error:?}"),
    };
    if found.first().is_none_or(|found| found.lsn.get() < 2) {
        return Damage::Behind;
    }
    let mut client = Client::new(engine);
    let mut outcome = Damage::Harmless;
    for key in keys {
        match client.get(1, key) {
            Ok(value) => assert_eq!(value, Some(large_value(key)), "{what}"),
            Err(EngineError::Corrupt { .. }) => outcome = Damage::Corrupt,
            Err(error) => panic!("{what}: {error:?}"),
        }
    }
    outcome
}

/// Returns name and content of each file of an engine.
fn files(directory: &TempDirectory) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for part in [directory.0.clone(), directory.0.join("rocksdb")] {
        for entry in fs::read_dir(&part).expect("a directory").flatten() {
            if entry.path().is_file() {
                let bytes = fs::read(entry.path()).expect("a file");
                found.insert(entry.path().display().to_string(), bytes);
            }
        }
    }
    found
}

#[test]
fn an_opening_that_only_reads_changes_nothing_and_meets_damage() {
    let mut client = Client::new(RealEngine::open(created(), settings()).0);
    client.create_family(1, Compression::None).expect("new");
    let keys = (0..100).map(|n| format!("key-{n:03}"));
    let records = keys.map(|key| put(&key, large_value(&key))).collect();
    client.write(1, 7, records).expect("written");
    client.flush(1).expect("flushed");
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    let before = files(&directory);
    let other = Identity { store: 1, ..IDENTITY };
    let refused = RocksReadOnly::open(&directory.0, other, &settings()).map(|_| ());
    assert!(matches!(refused, Err(OpenError::Foreign(_))), "{refused:?}");
    let walk = || {
        let opened = RocksReadOnly::open(&directory.0, IDENTITY, &settings());
        let (engine, found) = opened.expect("it is its own");
        assert_eq!((found.len(), found[0].lsn.get()), (1, 7));
        let mut count = 0;
        let walked = engine.walk(found[0].family, &mut |key, _| {
            assert!(key.starts_with(b"key-"), "{key:?}");
            count += 1;
        });
        (walked.is_ok(), count)
    };
    assert_eq!(walk(), (true, 100));
    assert!(files(&directory) == before);
    damage(&directory.0, "key-050");
    let (is_whole, count) = walk();
    assert!(!is_whole && count < 100, "{count}");
}
