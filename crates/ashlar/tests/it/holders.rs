//! Tests what clients see when OSDs that hold their data are paused, or die together, while clients write.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Cluster, QemuIo, is_running, kill_9, patient_image, report, wait_for};
use crate::replication::{
    ask, has_check, pieces, signal, start_osd, stop_osd, three, three_copies,
};
use crate::servers::{Detour, NbdServer};

/// Number of 1 MiB ranges that a stream overwrites in turn.
const STREAM_PIECES: u64 = 16;

/// A client that writes continuously, one range after another, each time with another pattern, until it is
/// stopped. So a write is in flight at any time.
pub struct Stream {
    /// Offset of the first range, in MiB.
    begin: u64,
    acknowledged: Arc<AtomicU64>,
    is_to_end: Arc<AtomicBool>,
    /// Returns the duration of the longest write.
    thread: JoinHandle<Duration>,
}

/// Returns the offset in MiB and the pattern of a write, given its number counted from 0.
fn stream_write(begin: u64, number: u64) -> (u64, u64) {
    (begin + number % STREAM_PIECES, 1 + (begin * 13 + number / STREAM_PIECES) % 250)
}

impl Stream {
    pub fn start(cluster: &Cluster, volume: &str, begin: u64) -> Stream {
        let acknowledged = Arc::new(AtomicU64::new(0));
        let is_to_end = Arc::new(AtomicBool::new(false));
        let (count, end) = (acknowledged.clone(), is_to_end.clone());
        let image = patient_image(cluster, volume);
        let thread = std::thread::spawn(move || {
            let mut qemu = QemuIo::open(&["--image-opts", &image]);
            let mut longest = Duration::ZERO;
            while !end.load(Ordering::Relaxed) {
                let number = count.load(Ordering::Relaxed);
                let (place, pattern) = stream_write(begin, number);
                let began = Instant::now();
                qemu.ask(&format!("write -P {pattern} {place}M 1M"));
                longest = longest.max(began.elapsed());
                count.store(number + 1, Ordering::Relaxed);
            }
            qemu.begin("flush");
            qemu.close();
            longest
        });
        Stream { begin, acknowledged, is_to_end, thread }
    }

    /// Returns the number of acknowledged writes.
    fn count(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Waits until this many more writes are acknowledged.
    pub fn wait_for_more(&self, more: u64) {
        let wanted = self.count() + more;
        wait_for("a stream of writes to go on", || {
            assert!(!self.thread.is_finished(), "it ended by itself: its words are above");
            self.count() >= wanted
        });
    }

    /// Stops the client. Returns the commands that read back what it wrote, and the duration of the longest
    /// write.
    pub fn end(self) -> (Vec<String>, Duration) {
        self.is_to_end.store(true, Ordering::Relaxed);
        let longest = self.thread.join().expect("each write was done");
        let count = self.acknowledged.load(Ordering::Relaxed);
        assert!(count >= STREAM_PIECES);
        let last = (count - STREAM_PIECES..count).map(|number| stream_write(self.begin, number));
        (last.map(|(place, pattern)| format!("read -P {pattern} {place}M 1M")).collect(), longest)
    }
}

/// Returns the primary of a pool's only PG, if it has one.
fn primary_of_one(cluster: &Cluster, pool: &str) -> Option<u64> {
    let rows = cluster.json(&["pg", "ls", "--pool", pool]);
    assert_eq!(rows.as_array().map(Vec::len), Some(1));
    rows[0]["primary"].as_u64()
}

#[test]
fn a_primary_paused_under_writes_never_serves_stale_data_and_loses_nothing() {
    // Clients that share a volume write durably, so the OSDs commit at once.
    let cluster = three("stood-still", "512MiB", &["--commit", "immediate"]);
    // The pool has one PG, so that its primary receives every request.
    let create = ["pool", "create", "one", "--replicas", "2", "--pgs", "1"];
    cluster.run(&[&create[..], &["--failure-domain", "osd"]].concat());
    cluster.run(&["volume", "create", "v", "--size", "64MiB", "--pool", "one"]);
    cluster.wait_clean();
    // The paused client must keep its session during the pause.
    cluster.run(&["config", "set", "session_timeout_ms", "10min"]);
    ask(&cluster, "v", &pieces("write", 1, 64));
    let streams: Vec<Stream> =
        [0, 16, 32].map(|begin| Stream::start(&cluster, "v", begin)).into_iter().collect();
    // Another client, which connects to the monitor through a proxy of its own.
    let detour = Detour::to(cluster.monitor_address());
    let files = cluster.copy_of_files("stood-still-files", &detour.address.to_string());
    let server = NbdServer::start(files.path(), "near.sock");
    let mut near = server.open("v");
    near.ask(&pieces("read", 1, 64)[63]);
    streams.iter().for_each(|stream| stream.wait_for_more(STREAM_PIECES));
    let former = primary_of_one(&cluster, "one").expect("the pool is served");
    let (osd, monitor) = (cluster.pid("osd", former), cluster.pid("mon", 1));

    // The client's server and the primary, which has writes in flight, are paused, so neither notices what
    // follows.
    server.signal(Signal::STOP);
    detour.cut();
    signal(osd, Signal::STOP);
    wait_for("another primary", || {
        primary_of_one(&cluster, "one").is_some_and(|primary| primary != former)
    });
    // The new primary overwrites everything, including the writes that were in flight before.
    streams.iter().for_each(|stream| stream.wait_for_more(2 * STREAM_PIECES));
    let ended: Vec<(Vec<String>, Duration)> = streams.into_iter().map(Stream::end).collect();
    let longest = ended.iter().map(|(_, longest)| *longest).max().expect("three");
    let reads: Vec<String> = ended.into_iter().flat_map(|(reads, _)| reads).collect();

    // The client resumes first: it sends to the old primary, because no monitor can report the new one.
    signal(monitor, Signal::STOP);
    near.begin(&reads[0]);
    server.signal(Signal::CONT);
    let early = near.ended_within(Duration::from_secs(1));
    assert_eq!(early, None, "it asks nobody but who stands still");
    signal(osd, Signal::CONT);
    let early = near.ended_within(Duration::from_secs(2));
    signal(monitor, Signal::CONT);
    let line = early.unwrap_or_else(|| near.end());
    assert!(!line.contains("failed"), "what was overwritten: {line}");
    report(&format!(
        "a primary stood still under writes: the longest took {:.2} s",
        longest.as_secs_f64()
    ));
    for read in &reads {
        near.ask(read);
    }
    near.ask("write -P 7 63M 1M");
    near.ask("read -P 7 63M 1M");
    near.close();
    server.end();
    cluster.wait_clean();
    ask(&cluster, "v", &reads);
    ask(&cluster, "v", &pieces("read", 1, 63).split_off(48));
    assert!(cluster.check_copies() >= 64 * 8);
}

#[test]
fn with_two_of_three_members_dead_writes_wait_and_no_acknowledged_write_is_lost() {
    let cluster = three_copies("two-dead", "512MiB", &["--restart-after", "never"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB", "--pool", "safe"]);
    ask(&cluster, "v", &pieces("write", 1, 64));
    let stream = Stream::start(&cluster, "v", 0);
    stream.wait_for_more(2 * STREAM_PIECES);
    let pids = [cluster.pid("osd", 1), cluster.pid("osd", 2)];
    pids.iter().for_each(|pid| kill_9(*pid));
    wait_for("them to be gone", || !pids.iter().any(|pid| is_running(*pid)));
    for osd in [1, 2] {
        cluster.wait_osd(osd, false);
    }
    let is_waiting = |row: &Value| row["state"] == "incomplete";
    wait_for("every PG to wait", || {
        let rows = cluster.json(&["pg", "ls", "--pool", "safe"]);
        rows.as_array().expect("a list").iter().all(is_waiting)
    });
    assert!(has_check(&cluster, "pg_incomplete"));
    // Wait until the count includes every write that was acknowledged earlier.
    wait_for("the stream to stand still", || {
        let before = stream.count();
        std::thread::sleep(Duration::from_secs(1));
        stream.count() == before
    });
    let before = stream.count();
    // Nothing signals that no write is acknowledged, so the test can only wait.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(stream.count(), before, "the third alone acknowledges nothing");
    assert!(!cluster.command(&["check"]).output().expect("it runs").status.success());

    start_osd(&cluster, 1);
    stream.wait_for_more(2 * STREAM_PIECES);
    let (reads, longest) = stream.end();
    report(&format!(
        "two of three holders were dead until one was back: the longest write took {:.2} s",
        longest.as_secs_f64()
    ));
    ask(&cluster, "v", &reads);
    ask(&cluster, "v", &pieces("read", 1, 64).split_off(16));
    ask(&cluster, "v", &pieces("write", 2, 48).split_off(32));
    start_osd(&cluster, 2);
    cluster.wait_clean();
    ask(&cluster, "v", &reads);
    ask(&cluster, "v", &pieces("read", 2, 48).split_off(32));
    cluster.wait_healthy();
    cluster.run(&["check"]);
    assert!(cluster.check_copies() >= 64 * 8);
}

#[test]
fn nothing_is_lost_when_the_only_complete_member_dies_during_backfill_and_returns() {
    let cluster = three("source-dies", "1GiB", &["--restart-after", "never"]);
    cluster.run(&["volume", "create", "v", "--size", "320MiB"]);
    ask(&cluster, "v", &pieces("write", 1, 192));
    let list = |row: &Value, key: &str| row[key].as_array().expect("a list").clone();
    // Returns the OSD that is the only member of a PG that backfills this learner, or `None` if the backfill
    // finishes first.
    let source_of = |learner: u64| {
        let mut source = None;
        wait_for("it to be filled", || {
            let rows = cluster.json(&["pg", "ls"]);
            let rows = rows.as_array().expect("a list");
            let alone = |row: &&Value| {
                let (acting, learners) = (list(row, "acting"), list(row, "learners"));
                acting.len() == 1 && learners == [Value::from(learner)]
            };
            source = rows.iter().find(alone).and_then(|row| list(row, "acting")[0].as_u64());
            source.is_some() || rows.iter().all(|row| list(row, "acting").len() == 2)
        });
        source
    };
    // Returns how many PGs wait for this OSD, which is down and is their only complete member.
    let wait_for_it = |source: u64| {
        let rows = cluster.json(&["pg", "ls"]);
        let rows = rows.as_array().expect("a list").clone().into_iter();
        let alone = rows.filter(|row| list(row, "acting") == [Value::from(source)]);
        alone.filter(|row| row["state"] == "down").count()
    };
    let mut seed = 1;
    let (source, waiting) = loop {
        assert!(seed <= 10, "no filling is ever seen under way");
        seed += 1;
        stop_osd(&cluster, 1);
        ask(&cluster, "v", &pieces("write", seed, 192));
        cluster.run(&["osd", "start", "1"]);
        let Some(source) = source_of(1) else { continue };
        kill_9(cluster.pid("osd", source));
        cluster.wait_osd(source, false);
        match wait_for_it(source) {
            // Too late: the backfill had finished, so the learner has everything.
            0 => ask(&cluster, "v", &pieces("read", seed, 192)),
            waiting => break (source, waiting),
        }
        start_osd(&cluster, source);
        cluster.wait_clean();
    };
    wait_for("the status to say so", || has_check(&cluster, "pg_down"));
    let image = patient_image(&cluster, "v");
    let mut qemu = QemuIo::open(&["--image-opts", &image]);
    // The write covers 1024 blocks in 64 PGs, so it reaches the waiting PGs even if there is only one.
    qemu.begin("write -P 251 192M 128M");
    assert_eq!(
        qemu.ended_within(Duration::from_secs(2)),
        None,
        "{waiting} PGs wait for osd.{source}"
    );
    start_osd(&cluster, source);
    let line = qemu.end();
    assert!(line.contains("wrote 134217728/134217728"), "{line}");
    qemu.ask("read -P 251 192M 128M");
    qemu.close();
    ask(&cluster, "v", &pieces("read", seed, 192));
    cluster.wait_clean();
    ask(&cluster, "v", &pieces("read", seed, 192));
    cluster.wait_healthy();
    assert!(cluster.check_copies() >= 192 * 8);
}
