//! A full file system: a small tmpfs in a mount namespace of its own.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use engine::{Compression, EngineError, Rocks, Settings};

use crate::subject::{Client, IDENTITY, Random, RealEngine, TempDirectory, put, settings};

const DIRECTORY: &str = "ENGINE_TEST_FULL_DIRECTORY";

/// A megabyte that does not compress.
fn noise(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..1 << 20).map(|_| random.below(256) as u8).collect()
}

/// Not a test of its own: runs where the directory is a small tmpfs.
#[test]
#[ignore = "the child of the test below"]
fn child_fills_its_file_system() {
    let Ok(path) = std::env::var(DIRECTORY) else { return };
    let directory = TempDirectory(PathBuf::from(path).join("engine"));
    let ballast = directory.0.with_file_name("ballast");
    std::fs::write(&ballast, vec![1; 24 << 20]).expect("space");
    Rocks::create(&directory.0, IDENTITY).expect("an empty directory");
    let settings = Settings { write_buffer_size: 4 << 20, ..settings() };
    let mut client = Client::new(RealEngine::open(directory, settings.clone()).0);
    client.create_family(1, Compression::None).expect("new");
    client.create_family(2, Compression::None).expect("new");
    client.write(2, 1, vec![put("a", "1")]).expect("written");
    client.flush(2).expect("flushed");

    let mut failed = None;
    for lsn in 1..=64 {
        let result = client.write(1, lsn, vec![put(format!("{lsn:03}"), noise(lsn))]);
        if result.is_err() {
            assert_eq!(result, Err(EngineError::Full));
            failed = Some(lsn);
            break;
        }
        if lsn % 4 == 0 && client.flush(1).is_err() {
            assert_eq!(client.flush(1), Err(EngineError::Full));
        }
    }
    let failed = failed.expect("the file system is smaller than what was written");
    assert_eq!(client.write(1, failed + 1, vec![put("x", "1")]), Err(EngineError::Full));
    assert_eq!(client.get(1, "001"), Ok(Some(noise(1))), "reads go on");
    assert_eq!(client.get(2, "a"), Ok(Some(b"1".to_vec())));

    // Space comes back; RocksDB notices it by itself.
    std::fs::remove_file(&ballast).expect("removed");
    let begun = Instant::now();
    // It is repeated so fast that some write fails just while RocksDB gets going again: then 7.8 remembers an
    // error for ever, and says that flushes are done when they have only begun.
    let again = vec![put(format!("{failed:03}"), noise(failed))];
    loop {
        // A later write must not pass the failed one.
        assert_eq!(client.write(1, failed + 1, vec![put("x", "1")]), Err(EngineError::Full));
        match client.write(1, failed, again.clone()) {
            Ok(()) => break,
            Err(error) => assert_eq!(error, EngineError::Full),
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays full");
        std::thread::sleep(Duration::from_millis(1));
    }
    client.write(1, failed + 1, vec![put("x", "1")]).expect("written");
    client.flush(1).expect("flushed");
    // A closing RocksDB gives up flushes that it has only begun.
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    let (engine, found) = RealEngine::open(directory, settings);
    let mut client = Client::new(engine);
    assert_eq!(found[0].lsn.get(), failed + 1);
    for lsn in 1..=failed {
        assert_eq!(client.get(1, format!("{lsn:03}")), Ok(Some(noise(lsn))));
    }
    println!("the full file system was survived");
}

/// Five runs, because what RocksDB does wrong depends on the moment.
#[test]
fn a_full_file_system_is_survived() {
    let runs: Vec<_> = (0..5).map(|_| std::thread::spawn(run_child)).collect();
    for run in runs {
        run.join().expect("the child survives");
    }
}

fn run_child() {
    let directory = TempDirectory::new();
    let program = std::env::current_exe().expect("this program");
    let script = "mount -t tmpfs -o size=40m none \"$1\" && exec \"$2\" --ignored --exact --nocapture \
                  full::child_fills_its_file_system";
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script, "sh"])
        .arg(&directory.0)
        .arg(program)
        .env(DIRECTORY, &directory.0)
        .output()
        .expect("unshare, of util-linux");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("the full file system was survived"), "{text}");
}
