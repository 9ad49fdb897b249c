//! kill -9 at a random moment: what RocksDB has afterwards is a prefix of the batches of each family, and at least what
//! was told as flushed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use engine::{Change, Compression, EngineEvent, Settings};

use crate::subject::{Client, Engine, Random, RealEngine, TempDirectory, delete, put};
use crate::subject::{IDENTITY, settings};

const DIRECTORY: &str = "ENGINE_TEST_DIRECTORY";
const FIRST_LSN: &str = "ENGINE_TEST_FIRST_LSN";
const FAMILIES: [u32; 2] = [1, 2];

/// Flushes and compactions all the time.
fn small_settings() -> Settings {
    Settings { write_buffer_size: 200_000, ..settings() }
}

/// The batch with this lsn: five records of one of 500 keys each, and a deletion. Its content follows from
/// the lsn alone.
fn batch(lsn: u64) -> (u32, Vec<Change>) {
    let mut random = Random::new(lsn);
    let family = FAMILIES[random.below(2) as usize];
    let mut changes: Vec<Change> = (0..5)
        .map(|_| {
            let size = 10 + random.below(600) as usize;
            put(format!("{:03}", random.below(500)), vec![lsn as u8; size])
        })
        .collect();
    changes.push(delete(format!("{:03}", random.below(500))));
    (family, changes)
}

/// Not a test of its own: the process that is killed. Prints what it is told.
#[test]
#[ignore = "the child of the test below"]
fn child_writes_until_it_is_killed() {
    let Ok(path) = std::env::var(DIRECTORY) else { return };
    let first: u64 = std::env::var(FIRST_LSN).expect("set").parse().expect("a number");
    let directory = TempDirectory(PathBuf::from(path));
    let mut client = Client::new(RealEngine::open(directory, small_settings()).0);
    let mut stdout = std::io::stdout().lock();
    for lsn in first.. {
        let (family, changes) = batch(lsn);
        client.write(family, lsn, changes).expect("written");
        if lsn.is_multiple_of(700) {
            client.begin_flush(family);
        }
        for event in std::mem::take(&mut client.events) {
            if let EngineEvent::Flushed { family, lsn } = event {
                writeln!(stdout, "flushed {family} {lsn}").expect("a pipe");
            }
        }
        if lsn.is_multiple_of(20) {
            writeln!(stdout, "written {lsn}").expect("a pipe");
        }
    }
}

#[test]
fn kill_leaves_a_prefix_with_all_that_was_flushed() {
    let directory = TempDirectory::new();
    engine::Rocks::create(&directory.0, IDENTITY).expect("an empty directory");
    let mut client = Client::new(RealEngine::open(directory, small_settings()).0);
    for family in FAMILIES {
        client.create_family(family, Compression::Lz4).expect("new");
    }
    let mut random = Random::new(42);
    let mut next_lsn = 1;
    let mut flushes = 0;
    let mut lost = 0;
    for _ in 0..6 {
        let RealEngine { engine, directory, .. } = client.engine;
        drop(engine);
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "--nocapture", "crash::child_writes_until_it_is_killed"])
            .env(DIRECTORY, &directory.0)
            .env(FIRST_LSN, next_lsn.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a child");
        // It is killed while it writes, some time after it has begun.
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut told = Vec::new();
        while let Some(Ok(line)) = lines.next() {
            let begun = line.starts_with("written");
            told.push(line);
            if begun {
                break;
            }
        }
        let reader = std::thread::spawn(move || {
            told.extend(lines.map_while(Result::ok));
            told
        });
        std::thread::sleep(Duration::from_millis(100 + random.below(400)));
        child.kill().expect("a child");
        child.wait().expect("a child");
        let told = reader.join().expect("the reader");

        let mut flushed = [0; 2];
        let mut written = 0;
        for line in told {
            match line.split(' ').collect::<Vec<_>>().as_slice() {
                ["flushed", family, lsn] => {
                    let family: usize = family.parse().expect("a family");
                    flushed[family - 1] = lsn.parse().expect("a lsn");
                    flushes += 1;
                }
                ["written", lsn] => written = lsn.parse().expect("a lsn"),
                _ => {}
            }
        }
        assert!(written > next_lsn, "the child wrote");
        let (engine, found) = RealEngine::open(directory, small_settings());
        client = Client::new(engine);
        let kept = [found[0].lsn.get(), found[1].lsn.get()];
        assert!(kept[0] >= flushed[0], "{kept:?} {flushed:?}");
        assert!(kept[1] >= flushed[1], "{kept:?} {flushed:?}");
        lost += u64::from(kept[0].max(kept[1]) < written);
        for family in FAMILIES {
            let mut model = std::collections::BTreeMap::new();
            let kept = kept[family as usize - 1];
            for (_, changes) in (1..=kept).map(batch).filter(|(of, _)| *of == family) {
                for change in changes {
                    match change {
                        Change::Put { key, value } => model.insert(key, value),
                        Change::Delete { key } => model.remove(&key),
                        change => unreachable!("{change:?}"),
                    };
                }
            }
            assert!(client.all(family).into_iter().eq(model), "pool {family} up to {kept}");
        }
        // Replay: everything that the child wrote, as its journal would have it. It may have been killed
        // before
        // it told what one of the families has.
        let from = kept[0].min(kept[1]).saturating_sub(10).max(1);
        let last = kept[0].max(kept[1]).max(written);
        for lsn in from..=last {
            let (family, changes) = batch(lsn);
            client.write(family, lsn, changes).expect("written");
        }
        next_lsn = last + 1;
    }
    assert!(flushes > 0, "the engine flushed by itself");
    assert!(lost > 0, "some kill lost something, or the test shows nothing");
}

/// Large families are flushed without a request, which is told.
#[test]
fn the_engine_flushes_by_itself() {
    let mut client = Client::<RealEngine>::create();
    client.create_family(1, Compression::None).expect("new");
    client.create_family(2, Compression::None).expect("new");
    client.write(2, 1, vec![put("a", "1")]).expect("written");
    // Twice the write buffer.
    for lsn in 2..=10 {
        client.write(1, lsn, vec![put(format!("{lsn}"), vec![1; 1 << 20])]).expect("written");
    }
    let flushed = client.wait_for(|event| matches!(event, EngineEvent::Flushed { .. }));
    let EngineEvent::Flushed { family, lsn } = flushed else { unreachable!("{flushed:?}") };
    assert_eq!(family.get(), 1, "the largest one");
    let (_, found) = client.engine.crash();
    assert!(found[0].lsn >= lsn);
}
