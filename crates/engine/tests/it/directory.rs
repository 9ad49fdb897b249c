//! Who an engine is: what is refused when a directory is opened, used to create an engine, or to destroy it.

use std::fs;

use engine::{Change, Compression, Identity, OpenError, Rocks};

use crate::subject::{
    Client, IDENTITY, RealEngine, TempDirectory, damage, large_value, put, settings,
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
