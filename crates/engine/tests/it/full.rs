//! A full file system: a small tmpfs in a mount namespace of its own.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use engine::{Change, Compression, EngineError, EngineEvent, OpenError, Rocks, Settings};

use crate::subject::{Client, IDENTITY, Random, RealEngine, TempDirectory, pool, put, settings};

const DIRECTORY: &str = "ENGINE_TEST_FULL_DIRECTORY";
/// RocksDB looks for space each five seconds.
const SPACE_IS_NOTICED_WITHIN: Duration = Duration::from_secs(90);

/// Bytes that do not compress.
fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(size + 4);
    while bytes.len() < size {
        bytes.extend_from_slice(&(random.below(1 << 32) as u32).to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

fn name(lsn: u64) -> String {
    format!("{lsn:03}")
}

/// Takes all the space that is left. Returns the file that has it.
fn fill(directory: &Path) -> PathBuf {
    let path = directory.with_file_name("ballast");
    let mut file = File::create(&path).expect("a file");
    let mut size = 1 << 20;
    while size > 0 {
        match file.write(&vec![1; size]) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => size /= 2,
            Err(error) => panic!("{error}"),
        }
    }
    path
}

fn fill_client(client: &Client<RealEngine>) -> PathBuf {
    fill(&client.engine.directory.0)
}

/// Repeats a request that failed with `Full` until it succeeds.
fn repeat(pause: Duration, mut request: impl FnMut() -> Result<(), EngineError>) {
    let begun = Instant::now();
    while let Err(error) = request() {
        assert_eq!(error, EngineError::Full);
        assert!(begun.elapsed() < SPACE_IS_NOTICED_WITHIN, "it stays full");
        std::thread::sleep(pause);
    }
}

/// A kill just now would leave all batches up to this lsn in the family.
fn assert_durable(client: &Client<RealEngine>, family: u32, lsn: u64, size: usize) {
    let (copy, found) = client.engine.open_copy();
    let found = found.iter().find(|found| found.family == pool(family)).expect("the family");
    assert!(found.lsn.get() >= lsn, "{} was told, {} is there", lsn, found.lsn);
    let mut copy = Client::new(copy);
    for lsn in 1..=lsn {
        assert_eq!(copy.get(family, name(lsn)), Ok(Some(noise(lsn, size))));
    }
}

fn open(settings: &Settings) -> Option<Client<RealEngine>> {
    let path = std::env::var(DIRECTORY).ok()?;
    let directory = TempDirectory(PathBuf::from(path).join("engine"));
    Rocks::create(&directory.0, IDENTITY).expect("an empty directory");
    let mut client = Client::new(RealEngine::open(directory, settings.clone()).0);
    client.create_family(1, Compression::None).expect("new");
    client.create_family(2, Compression::None).expect("new");
    client.write(2, 1, vec![put(name(1), noise(1, SIZE))]).expect("written");
    client.flush(2).expect("flushed");
    Some(client)
}

/// A record of the first test.
const SIZE: usize = 300_000;

/// There is no space at all when the flush begins. Flushes are so slow that whoever is told of one too early
/// finds nothing on disk.
#[test]
#[ignore = "the child of a test below"]
fn child_has_no_space_for_a_flush() {
    let settings = Settings { background_rate_max: Some(500_000), ..settings() };
    let Some(mut client) = open(&settings) else { return };
    for lsn in 1..=3 {
        client.write(1, lsn, vec![put(name(lsn), noise(lsn, SIZE))]).expect("written");
    }
    let ballast = fill_client(&client);
    assert_eq!(client.flush(1), Err(EngineError::Full));
    let record = |lsn| vec![put(name(lsn), noise(lsn, SIZE))];
    assert_eq!(client.write(1, 4, record(4)), Err(EngineError::Full));
    assert_eq!(client.write(1, 5, record(5)), Err(EngineError::Full));
    assert_eq!(client.write(2, 2, record(2)), Err(EngineError::Full));
    assert_eq!(client.flush(1), Err(EngineError::Full));
    assert_eq!(client.create_family(3, Compression::None), Err(EngineError::Full));
    assert_eq!(client.remove_family(2), Err(EngineError::Full));
    assert_eq!(client.get(1, name(1)), Ok(Some(noise(1, SIZE))), "reads go on");
    assert_eq!(client.get(2, name(1)), Ok(Some(noise(1, SIZE))));
    assert_eq!(client.take_flushed(1), None);

    // Space comes back; RocksDB notices it by itself. The write is repeated so fast that some of them fail
    // while RocksDB gets going again, which makes it begin once more.
    fs::remove_file(ballast).expect("removed");
    let mut client_write = |lsn| client.write(1, lsn, record(lsn));
    repeat(Duration::from_millis(1), || {
        // A later write must not pass the failed one.
        assert_eq!(client_write(5), Err(EngineError::Full));
        client_write(4)
    });
    client.write(1, 5, record(5)).expect("written");
    client.write(1, 6, record(6)).expect("written");

    // From now on RocksDB says at once that a flush is done. Two seconds are needed.
    let flush = client.begin_flush(1);
    let told = client.wait_for(|event| match event {
        EngineEvent::Done { op, .. } => *op == flush,
        EngineEvent::Flushed { lsn, .. } => lsn.get() == 6,
        _ => false,
    });
    assert_eq!(told, EngineEvent::Flushed { family: pool(1), lsn: base::Lsn::new(6) });
    assert_durable(&client, 1, 6, SIZE);
    assert_eq!(client.wait_done(flush), Ok(()));

    // The memtable of a family that is removed never gets into a file.
    client.write(2, 2, vec![put("a", noise(2, 4 * SIZE))]).expect("written");
    let flush = client.begin_flush(2);
    std::thread::sleep(Duration::from_millis(100));
    client.remove_family(2).expect("removed");
    let ended = client.wait_done(flush);
    assert!(matches!(ended, Ok(()) | Err(EngineError::NoFamily)), "{ended:?}");
    client.create_family(2, Compression::None).expect("new");
    client.write(2, 1, vec![put(name(1), noise(1, SIZE))]).expect("written");
    client.flush(2).expect("flushed");
    assert_durable(&client, 2, 1, SIZE);

    // A closing RocksDB gives up flushes that it has only begun.
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    let (_, found) = RealEngine::open(directory, settings);
    assert_eq!(found[0].lsn.get(), 6);
    println!("the full file system was survived");
}

/// Space ends somewhere in a flush or a compaction, while writes go on.
#[test]
#[ignore = "the child of a test below"]
fn child_fills_its_file_system() {
    const SIZE: usize = 1 << 20;
    let settings = Settings { write_buffer_size: 4 << 20, ..settings() };
    let Some(mut client) = open(&settings) else { return };
    let ballast = client.engine.directory.0.with_file_name("ballast");
    fs::write(&ballast, vec![1; 48 << 20]).expect("space");
    let record = |lsn| vec![put(name(lsn), noise(lsn, SIZE))];
    let mut failed = None;
    for lsn in 1..=64 {
        match client.write(1, lsn, record(lsn)) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error, EngineError::Full);
                failed = Some(lsn);
                break;
            }
        }
        if let Some(lsn) = client.take_flushed(1) {
            let (_, found) = client.engine.open_copy();
            assert!(found[0].lsn.get() >= lsn, "{lsn} was told, {} is there", found[0].lsn);
        }
    }
    let failed = failed.expect("the file system is smaller than what was written");
    assert_eq!(client.write(1, failed + 1, record(failed + 1)), Err(EngineError::Full));
    fs::remove_file(&ballast).expect("removed");
    for lsn in [failed, failed + 1] {
        repeat(Duration::from_millis(500), || client.write(1, lsn, record(lsn)));
    }
    repeat(Duration::from_millis(500), || client.flush(1));
    assert_eq!(client.take_flushed(1), Some(failed + 1));
    assert_durable(&client, 1, failed + 1, SIZE);
    println!("the full file system was survived");
}

/// Creation and opening, when there is no space at all.
#[test]
#[ignore = "the child of a test below"]
fn child_has_no_space_for_an_opening() {
    let Some(client) = open(&settings()) else { return };
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    let ballast = fill(&directory.0);
    let other = directory.0.with_file_name("other");
    let created = Rocks::create(&other, IDENTITY);
    assert!(matches!(created, Err(OpenError::Full(_))), "{created:?}");
    let opened = Rocks::open(&directory.0, IDENTITY, settings(), || {});
    assert!(matches!(opened, Err(OpenError::Full(_))), "{opened:?}");
    fs::remove_file(ballast).expect("removed");
    Rocks::create(&other, IDENTITY).expect("what is left of a creation");
    let (engine, found) = RealEngine::open(directory, settings());
    assert_eq!(found[1].lsn.get(), 1);

    // What a closing RocksDB would like to flush is lost; the journal has it.
    let mut client = Client::new(engine);
    client.write(1, 1, vec![put(name(1), noise(1, SIZE))]).expect("written");
    let ballast = fill_client(&client);
    let RealEngine { engine, directory, .. } = client.engine;
    drop(engine);
    fs::remove_file(ballast).expect("removed");
    let (_, found) = RealEngine::open(directory, settings());
    assert_eq!((found[0].lsn.get(), found[1].lsn.get()), (0, 1));
    println!("the full file system was survived");
}

/// RocksDB takes room for its manifest in advance: families come and go without space, until a flush failed.
#[test]
#[ignore = "the child of a test below"]
fn child_has_no_space_for_families() {
    let Some(mut client) = open(&settings()) else { return };
    client.write(1, 1, vec![put(name(1), noise(1, SIZE))]).expect("written");
    let ballast = fill_client(&client);
    let mut there = vec![1, 2];
    for id in 10..20 {
        client.create_family(id, Compression::None).expect("there is room for it");
        there.push(id);
    }
    client.remove_family(19).expect("there is room for it");
    there.pop();
    assert_eq!(client.flush(1), Err(EngineError::Full));
    assert_eq!(client.remove_family(10), Err(EngineError::Full));
    assert_eq!(client.create_family(20, Compression::None), Err(EngineError::Full));
    fs::remove_file(ballast).expect("removed");
    let pause = Duration::from_millis(20);
    repeat(pause, || client.create_family(20, Compression::None));
    there.push(20);
    repeat(pause, || client.remove_family(10));
    there.retain(|id| *id != 10);
    repeat(pause, || client.flush(1));
    assert_durable(&client, 1, 1, SIZE);
    let (_, found) = client.engine.open_copy();
    let found: Vec<u32> = found.iter().map(|found| found.family.get()).collect();
    assert_eq!(found, there);
    println!("the full file system was survived");
}

/// Little space is told before there is none, and what is removed comes back without further writes. Sizes
/// are in MiB: of what is written, of what takes the space, and below which little is left.
fn little_space_is_told_and_comes_back(count: u64, ballast_size: usize, low_space: u64) {
    const SIZE: usize = 1 << 20;
    let settings = Settings { low_space_min: low_space << 20, ..settings() };
    let Some(mut client) = open(&settings) else { return };
    for lsn in 1..=count {
        client.write(1, lsn, vec![put(name(lsn), noise(lsn, SIZE))]).expect("there is space");
    }
    client.flush(1).expect("flushed");
    // A compaction takes about as much again for a while, and perhaps little space was left.
    let is_of_space = |event: &EngineEvent| matches!(event, EngineEvent::Space { .. });
    client.forget(is_of_space);
    let ballast = client.engine.directory.0.with_file_name("ballast");
    fs::write(ballast, vec![1; ballast_size << 20]).expect("space");
    let told = |is_low| move |event: &EngineEvent| *event == EngineEvent::Space { is_low };
    client.wait_for(told(true));
    let range = Change::DeleteRange { start: name(1).into(), end: name(count + 1).into() };
    client.write(1, count + 1, vec![range]).expect("there is space");
    client.wait_for(told(false));
    assert_eq!(client.get(1, name(1)), Ok(None));
    println!("the full file system was survived");
}

#[test]
#[ignore = "the child of a test below"]
fn child_is_told_that_little_space_is_left() {
    little_space_is_told_and_comes_back(40, 150, 60);
}

#[test]
#[ignore = "the child of a test below"]
fn child_with_several_levels_is_told_that_little_space_is_left() {
    little_space_is_told_and_comes_back(700, 1600, 340);
}

#[test]
#[ignore = "the child of a test below"]
fn child_has_no_families_and_little_space() {
    let Ok(path) = std::env::var(DIRECTORY) else { return };
    let directory = TempDirectory(PathBuf::from(path).join("engine"));
    Rocks::create(&directory.0, IDENTITY).expect("an empty directory");
    let ballast = directory.0.with_file_name("ballast");
    fs::write(ballast, vec![1; 100 << 20]).expect("space");
    let settings = Settings { low_space_min: 60 << 20, ..settings() };
    let mut client = Client::new(RealEngine::open(directory, settings).0);
    // An opening looks at the space.
    client.engine.engine.take_events(&mut client.events);
    assert_eq!(client.events, [], "it keeps nothing");
    let told = |is_low| move |event: &EngineEvent| *event == EngineEvent::Space { is_low };
    client.create_family(1, Compression::None).expect("there is space");
    client.wait_for(told(true));
    client.remove_family(1).expect("there is space");
    client.wait_for(told(false));
    println!("the full file system was survived");
}

#[test]
fn an_engine_without_families_never_has_little_space() {
    run_child("120m", "full::child_has_no_families_and_little_space");
}

#[test]
fn little_space_is_told_and_comes_back_when_records_are_removed() {
    run_child("240m", "full::child_is_told_that_little_space_is_left");
}

/// More than fits the first level: what removes it must reach the last one.
#[test]
#[ignore = "takes a minute, and 2.5 GiB of memory"]
fn space_comes_back_from_several_levels() {
    run_child("2600m", "full::child_with_several_levels_is_told_that_little_space_is_left");
}

#[test]
fn families_without_space_are_kept_or_refused() {
    run_child("24m", "full::child_has_no_space_for_families");
}

#[test]
fn an_opening_without_space_is_refused() {
    run_child("24m", "full::child_has_no_space_for_an_opening");
}

#[test]
fn a_flush_without_space_is_told_when_it_is_done() {
    run_child("24m", "full::child_has_no_space_for_a_flush");
}

#[test]
fn a_file_system_that_fills_up_is_survived() {
    run_child("72m", "full::child_fills_its_file_system");
}

fn run_child(size: &str, child: &str) {
    let directory = TempDirectory::new();
    let program = std::env::current_exe().expect("this program");
    let script = "mount -t tmpfs -o size=\"$3\" none \"$1\" && \
                  exec \"$2\" --ignored --exact --nocapture \"$4\"";
    let output = Command::new("unshare")
        .args(["--mount", "--map-root-user", "sh", "-c", script, "sh"])
        .arg(&directory.0)
        .arg(program)
        .args([size, child])
        .env(DIRECTORY, &directory.0)
        .output()
        .expect("unshare, of util-linux");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("the full file system was survived"), "{text}");
}
