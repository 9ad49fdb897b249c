//! Tests of the state store in etcd against real etcd servers, which are stopped, killed and compacted.
//!
//! Needs Debian's `etcd-server` (`scripts/install.sh test`).
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use base::{Duration as Span, Time};
use cluster::state::{
    KeyValue, LeaseId, OPERATION_COUNT_MAX, Operation, RangeAnswer, StateEffect, StateEvent,
    StateRequest, StateRevision, StateStore, Transaction, TransactionOutcome, Unavailable, WatchId,
    conformance,
};
use io::etcd::{EtcdPlace, EtcdState, PREFIX_SIZE_MAX};
use rustix::process::{Pid, Signal, kill_process};

/// Timeout for each step of these tests; exceeding it is a failure.
const PATIENCE: Duration = Duration::from_secs(20);
/// A silent endpoint is abandoned within 2 s; the rest is a margin for a busy machine.
const LEFT_TIME_MAX: Duration = Duration::from_secs(3);

/// An etcd server of one member on a free port; removed when dropped.
struct Server {
    directory: PathBuf,
    port: u16,
    /// A second port to listen on, if any.
    more: Option<u16>,
    /// The space quota in bytes, if it is not etcd's default.
    quota: Option<u64>,
    child: Option<Child>,
}

impl Server {
    /// Returns a server that is not running yet.
    fn new(name: &str) -> Server {
        let name = format!("ashlar-etcd-{}-{name}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        Server { directory, port: free_port(), more: None, quota: None, child: None }
    }

    fn running(name: &str) -> Server {
        let mut server = Server::new(name);
        server.start();
        server
    }

    fn start(&mut self) {
        let url = self.url();
        let more = self.more.map(|port| format!(",http://127.0.0.1:{port}"));
        let listen = format!("{url}{}", more.unwrap_or_default());
        let peer = "http://127.0.0.1:0";
        let child = Command::new("etcd")
            .args(["--name", "test", "--logger", "zap", "--log-level", "error"])
            .arg("--data-dir")
            .arg(&self.directory)
            .args(["--listen-client-urls", &listen, "--advertise-client-urls", &url])
            .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
            .args(["--initial-cluster", &format!("test={peer}")])
            // The etcd cluster's id is derived from this.
            .args(["--initial-cluster-token", &self.directory.display().to_string()])
            .args(self.quota.map(|quota| format!("--quota-backend-bytes={quota}")))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.expect("etcd is installed: apt-get install etcd-server");
        assert!(self.child.replace(child).is_none());
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(self.child.as_ref().expect("it runs"));
        kill_process(pid, signal).unwrap();
        // Each thread stops when it is scheduled next: until then it may still answer.
        while signal == Signal::STOP && !self.is_stopped() {
            std::thread::yield_now();
        }
    }

    fn is_stopped(&self) -> bool {
        let pid = self.child.as_ref().expect("it runs").id();
        fs::read_dir(format!("/proc/{pid}/task")).unwrap().all(|task| {
            let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        })
    }

    /// Returns the number of used bytes that the server reports.
    fn used_bytes(&self) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix("etcd_mvcc_db_total_size_in_bytes "));
        value.unwrap().parse::<f64>().unwrap() as u64
    }

    /// Kills the server as `kill -9` does.
    fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn connect(endpoints: &[&str], prefix: &str) -> (EtcdState, Receiver<()>) {
    let (sender, bell) = channel();
    let place = EtcdPlace::parse(&endpoints.join(","), prefix).unwrap();
    let wake = move || {
        let _ = sender.send(());
    };
    (EtcdState::connect(place, wake).unwrap(), bell)
}

/// A store, and its events that the test has not read yet.
struct Driver {
    store: EtcdState,
    bell: Receiver<()>,
    request: u64,
    events: Vec<StateEvent>,
}

impl Driver {
    fn new(endpoints: &[&str], prefix: &str) -> Driver {
        let (store, bell) = connect(endpoints, prefix);
        Driver { store, bell, request: 0, events: Vec::new() }
    }

    fn start(&mut self, make: impl FnOnce(StateRequest) -> StateEffect) -> StateRequest {
        self.request += 1;
        let request = StateRequest(self.request);
        self.store.apply(Time::ZERO, make(request), &mut self.events);
        request
    }

    /// Waits for the first event that `wanted` accepts.
    fn wait<T>(&mut self, wanted: impl Fn(&StateEvent) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.store.poll(Time::ZERO, &mut self.events);
            if let Some(place) = self.events.iter().position(|event| wanted(event).is_some()) {
                return wanted(&self.events.remove(place)).unwrap();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let rung = self.bell.recv_timeout(left);
            assert!(rung.is_ok(), "no answer; unread events: {:?}", self.events);
        }
    }

    fn outcome_of(&mut self, request: StateRequest) -> TransactionOutcome {
        self.wait(|event| match event {
            StateEvent::Transacted { request: told, outcome } if *told == request => Some(*outcome),
            _ => None,
        })
    }

    fn transact(&mut self, transaction: Transaction) -> TransactionOutcome {
        let request = self.start(|request| StateEffect::Transact { request, transaction });
        self.outcome_of(request)
    }

    fn put(&mut self, key: &str, value: &str, revision: StateRevision) -> TransactionOutcome {
        self.transact(put(key, value, revision))
    }

    fn commit(&mut self, transaction: Transaction) -> StateRevision {
        match self.transact(transaction) {
            TransactionOutcome::Committed { revision } => revision,
            other => panic!("not committed: {other:?}"),
        }
    }

    /// Commits as soon as the store is reachable.
    fn commit_soon(&mut self, transaction: Transaction) -> StateRevision {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.transact(transaction.clone()) {
                TransactionOutcome::Committed { revision } => return revision,
                TransactionOutcome::Unknown => assert!(Instant::now() < deadline),
                other => panic!("{other:?}"),
            }
        }
    }

    fn range(&mut self, prefix: &str, limit: usize) -> Result<RangeAnswer, Unavailable> {
        self.range_after(prefix, None, limit)
    }

    fn range_after(
        &mut self,
        prefix: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<RangeAnswer, Unavailable> {
        let prefix = prefix.to_string();
        let asked = self.start(|request| StateEffect::Range { request, prefix, after, limit });
        self.wait(|event| match event {
            StateEvent::Range { request, result } if *request == asked => Some(result.clone()),
            _ => None,
        })
    }

    /// Reads a key; retries until the store is reachable.
    fn get(&mut self, key: &str) -> Option<KeyValue> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.range(key, 1) {
                Ok(answer) => return answer.entries.into_iter().find(|entry| entry.key == key),
                Err(Unavailable) => assert!(Instant::now() < deadline, "never again"),
            }
        }
    }

    fn watch(&mut self, watch: WatchId, prefix: &str, from: StateRevision) {
        let prefix = prefix.to_string();
        self.start(|_| StateEffect::Watch { watch, prefix, from });
    }

    /// Returns the next revision that a watch reports.
    fn watched(&mut self, watch: WatchId) -> (StateRevision, Vec<(String, Option<KeyValue>)>) {
        self.wait(|event| match event {
            StateEvent::Watched { watch: told, revision, changes } if *told == watch => {
                Some((*revision, changes.clone()))
            }
            _ => None,
        })
    }

    fn trouble(&mut self) -> String {
        self.wait(|event| match event {
            StateEvent::Condition { trouble } => trouble.clone(),
            _ => None,
        })
    }

    fn no_trouble(&mut self) {
        let is_fine = |event: &StateEvent| *event == StateEvent::Condition { trouble: None };
        self.wait(|event| is_fine(event).then_some(()));
    }

    fn lease(&mut self, asked: StateRequest) -> Option<LeaseId> {
        self.wait(|event| match event {
            StateEvent::Lease { request, lease } if *request == asked => Some(*lease),
            _ => None,
        })
    }

    fn compact(&mut self, revision: StateRevision) {
        let asked = self.start(|request| StateEffect::Compact { request, revision });
        let is_done = |event: &StateEvent| *event == StateEvent::Compacted { request: asked };
        self.wait(|event| is_done(event).then_some(()));
    }
}

fn put(key: &str, value: &str, revision: StateRevision) -> Transaction {
    let mut transaction = Transaction::new();
    let operation = Operation::Put { key: key.into(), value: value.into(), lease: None };
    transaction.write(operation, revision);
    transaction
}

/// A store for which time passes as the conformance checks pass it: the checks have no other clock.
struct Paced {
    store: EtcdState,
    last: Time,
}

impl StateStore for Paced {
    fn apply(&mut self, now: Time, effect: StateEffect, events: &mut Vec<StateEvent>) {
        self.store.apply(now, effect, events);
    }

    fn poll(&mut self, now: Time, events: &mut Vec<StateEvent>) {
        let passed = now.as_nanos() - self.last.as_nanos();
        self.last = now;
        std::thread::sleep(Duration::from_nanos(passed));
        let before = events.len();
        self.store.poll(now, events);
        // An event about the reachability of etcd is not an answer.
        let mut place = 0;
        events.retain(|event| {
            place += 1;
            place <= before || !matches!(event, StateEvent::Condition { .. })
        });
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

#[test]
fn the_store_in_etcd_keeps_the_promises_of_the_trait() {
    let server = Server::running("conformance");
    let mut count = 0;
    // Wait for the server's start here, because the checks do not wait for it.
    Driver::new(&[&server.url()], "first").get("nothing");
    conformance::run(|| {
        count += 1;
        let (store, _) = connect(&[&server.url()], &format!("case/{count}"));
        Box::new(Paced { store, last: Time::from_nanos(1) })
    });
}

/// The largest transaction within the limits: the number of writes, the length of keys, the size of values.
fn largest_transaction(letter: &str) -> Transaction {
    let mut transaction = Transaction::new();
    let operation = |number: usize, size: usize| Operation::Put {
        key: format!("{letter}{number:0>511}"),
        value: "x".repeat(size),
        lease: None,
    };
    for number in 0..OPERATION_COUNT_MAX / 2 {
        transaction.write(operation(number, 16 << 10), StateRevision::ZERO);
    }
    let last = OPERATION_COUNT_MAX / 2;
    let fits = |size: &usize| transaction.has_room_for(&[operation(last, *size)]);
    let size = (0..1 << 20).rev().find(|size| size % 64 == 0 && fits(size)).unwrap();
    transaction.write(operation(last, size), StateRevision::ZERO);
    assert_eq!(transaction.broken_rule(), None);
    transaction
}

#[test]
fn the_largest_transactions_under_the_longest_prefix_work() {
    let server = Server::running("large");
    let prefix = "p".repeat(PREFIX_SIZE_MAX);
    let mut driver = Driver::new(&[&server.url()], &prefix);
    driver.get("nothing");
    let revisions = ["a", "b", "c"].map(|letter| driver.commit(largest_transaction(letter)));
    // etcd splits what it sends into messages of about 2 MiB, even within a revision.
    let watch = WatchId(1);
    driver.watch(watch, "", revisions[0]);
    for (revision, letter) in revisions.into_iter().zip(["a", "b", "c"]) {
        let (told, changes) = driver.watched(watch);
        assert_eq!((told, changes.len()), (revision, OPERATION_COUNT_MAX / 2 + 1));
        assert!(changes.iter().all(|(key, _)| key.starts_with(letter)));
    }
}

#[test]
fn long_answers_come_in_pages_and_binary_keys_are_skipped() {
    let server = Server::running("pages");
    let mut driver = Driver::new(&[&server.url()], "pages");
    driver.get("nothing");
    let value = "v".repeat(1 << 20);
    let keys: Vec<String> = (0..20).map(|number| format!("k{number:02}")).collect();
    for key in &keys {
        driver.commit(put(key, &value, StateRevision::ZERO));
    }
    put_raw(&server.url(), b"pages/k\xff\xfe", b"1");
    for number in 0..3 {
        put_raw(&server.url(), &[b"pages/x\xff", &[number][..]].concat(), b"1");
    }
    put_raw(&server.url(), b"pages/y", b"\xff");
    driver.commit(put("z", "last", StateRevision::ZERO));
    let (mut found, mut after, mut pages) = (Vec::new(), None, 0);
    loop {
        let answer = driver.range_after("", after.take(), 1000).unwrap();
        found.extend(answer.entries.iter().map(|entry| entry.key.clone()));
        pages += 1;
        if !answer.more {
            break;
        }
        after = found.last().cloned();
    }
    assert!((2..6).contains(&pages), "{pages} pages");
    let mut expected = keys;
    expected.extend(["y".to_string(), "z".to_string()]);
    assert_eq!(found, expected);
    // Pages of one key: a page without any of our keys is not an answer.
    let answer = driver.range_after("", Some("k19".into()), 1).unwrap();
    assert_eq!((answer.entries[0].key.as_str(), answer.more), ("y", true));
    // This store has no keys after the prefix.
    let answer = driver.range_after("k", Some("z".into()), 10).unwrap();
    assert_eq!((answer.entries.len(), answer.more), (0, false));
    // A watch skips foreign keys as well.
    let watch = WatchId(1);
    driver.watch(watch, "x", StateRevision::new(1));
    driver.commit(put("x1", "1", StateRevision::ZERO));
    assert_eq!(driver.watched(watch).1[0].0, "x1");
}

/// Writes a key or value that this program never writes.
fn put_raw(url: &str, key: &[u8], value: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = etcd_client::Client::connect([url], None).await.unwrap();
        client.kv_client().put(key, value, None).await.unwrap();
    });
}

/// Increments a number in a key, by transactions that compare its revision; resolves unknown outcomes.
struct Counter {
    count: u64,
    revision: StateRevision,
    unknown: u32,
}

impl Counter {
    fn new() -> Counter {
        Counter { count: 0, revision: StateRevision::ZERO, unknown: 0 }
    }

    fn advance(&mut self, driver: &mut Driver) {
        let next = (self.count + 1).to_string();
        loop {
            match driver.put("counter", &next, self.revision) {
                TransactionOutcome::Committed { revision } => {
                    self.revision = revision;
                    break;
                }
                TransactionOutcome::Invalid { why } => panic!("{why}"),
                outcome => {
                    self.unknown += u32::from(outcome == TransactionOutcome::Unknown);
                    let found = driver.get("counter");
                    let (value, revision) =
                        found.map_or((None, StateRevision::ZERO), |f| (Some(f.value), f.revision));
                    if value.as_ref() == Some(&next) {
                        self.revision = revision;
                        break;
                    }
                    assert_eq!(revision, self.revision, "nobody else counts");
                }
            }
        }
        self.count += 1;
    }
}

/// Expects that a watch of the counter reports every value once, in order, and then nothing.
fn expect_counted(driver: &mut Driver, watch: WatchId, from: u64, to: u64) {
    for expected in from..=to {
        let (revision, changes) = driver.watched(watch);
        let [(key, Some(entry))] = &changes[..] else { panic!("{changes:?}") };
        assert_eq!((key.as_str(), entry.revision), ("counter", revision));
        assert_eq!(entry.value, expected.to_string());
    }
    let is_more = |event: &StateEvent| match event {
        StateEvent::Watched { watch: told, .. } => *told == watch,
        _ => false,
    };
    assert!(!driver.events.iter().any(is_more), "{:?}", driver.events);
}

#[test]
fn a_paused_etcd_is_noticed_and_nothing_is_done_twice() {
    let server = Server::running("stopped");
    let mut driver = Driver::new(&[&server.url()], "x");
    let watch = WatchId(1);
    driver.watch(watch, "counter", StateRevision::ZERO);
    let mut counter = Counter::new();
    for _ in 0..5 {
        counter.advance(&mut driver);
    }
    expect_counted(&mut driver, watch, 1, 5);
    driver.events.clear();
    let time_to_live = Span::from_secs(60);
    let grant = driver.start(|request| StateEffect::LeaseGrant { request, time_to_live });
    let lease = driver.lease(grant).unwrap();
    server.signal(Signal::STOP);
    let stopped = Instant::now();
    let renewal = driver.start(|request| StateEffect::LeaseRenew { request, lease });
    // A transaction that reached the stopped server's socket: it may still be carried out.
    assert_eq!(driver.put("counter", "6", counter.revision), TransactionOutcome::Unknown);
    let noticed = stopped.elapsed();
    let trouble = driver.trouble();
    assert!(trouble.contains(&server.url()), "{trouble}");
    assert!(trouble.contains("cluster.toml"), "{trouble}");
    assert!(noticed < LEFT_TIME_MAX, "{noticed:?}");
    let started = Instant::now();
    assert_eq!(driver.range("", 1), Err(Unavailable));
    assert!(started.elapsed() < LEFT_TIME_MAX, "{:?}", started.elapsed());
    let grant = driver.start(|request| StateEffect::LeaseGrant { request, time_to_live });
    server.signal(Signal::CONT);
    driver.no_trouble();
    // An idempotent request is repeated until it is answered.
    assert_eq!(driver.lease(renewal), Some(lease));
    let other = driver.lease(grant).unwrap();
    let revocation = driver.start(|request| StateEffect::LeaseRevoke { request, lease: other });
    assert_eq!(driver.lease(revocation), Some(other));
    for _ in 0..5 {
        counter.advance(&mut driver);
    }
    // Whether or not the sixth write was carried out late, the watch reports each value once.
    expect_counted(&mut driver, watch, 6, 10);
    println!("a stopped etcd was noticed after {noticed:?}");
}

#[test]
fn a_silent_etcd_is_noticed_without_any_request() {
    let server = Server::running("silent");
    let mut driver = Driver::new(&[&server.url()], "x");
    driver.get("nothing");
    driver.store.poll(Time::ZERO, &mut driver.events);
    driver.events.clear();
    server.signal(Signal::STOP);
    let stopped = Instant::now();
    driver.trouble();
    let noticed = stopped.elapsed();
    assert!(noticed < LEFT_TIME_MAX, "{noticed:?}");
    server.signal(Signal::CONT);
    driver.no_trouble();
}

#[test]
fn watches_survive_a_killed_etcd_and_report_every_change_once() {
    let mut server = Server::running("killed");
    let mut writer = Driver::new(&[&server.url()], "x");
    let mut watcher = Driver::new(&[&server.url()], "x");
    let (first, second) = (WatchId(1), WatchId(2));
    watcher.watch(first, "counter", StateRevision::ZERO);
    let mut counter = Counter::new();
    for round in 1..=3 {
        for number in 1..=20 {
            counter.advance(&mut writer);
            if number == 10 && round < 3 {
                // Some of these revisions have been reported, others have not.
                server.kill();
                server.start();
            }
        }
        if round == 2 {
            watcher.watch(second, "counter", counter.revision);
        }
    }
    expect_counted(&mut watcher, first, 1, 60);
    expect_counted(&mut watcher, second, 40, 60);
}

#[test]
fn a_watch_that_missed_a_compaction_is_lost() {
    let mut server = Server::running("compacted");
    let old_url = server.url();
    let mut watcher = Driver::new(&[&old_url], "x");
    let watch = WatchId(1);
    watcher.watch(watch, "counter", StateRevision::ZERO);
    let mut counter = Counter::new();
    let mut writer = Driver::new(&[&old_url], "x");
    counter.advance(&mut writer);
    counter.advance(&mut writer);
    // A compaction of revisions that were reported does not affect an open watch.
    watcher.watched(watch);
    watcher.watched(watch);
    writer.compact(counter.revision);
    counter.advance(&mut writer);
    expect_counted(&mut watcher, watch, 3, 3);
    drop(writer);
    // While the watcher cannot reach the server, write to it, and compact beyond the newest revision.
    server.kill();
    let old_port = std::mem::replace(&mut server.port, free_port());
    server.start();
    let mut writer = Driver::new(&[&server.url()], "x");
    for _ in 0..3 {
        counter.advance(&mut writer);
    }
    let compacted = counter.revision;
    writer.compact(StateRevision::new(compacted.get() + 100));
    writer.compact(StateRevision::new(1));
    counter.advance(&mut writer);
    drop(writer);
    server.kill();
    server.port = old_port;
    server.start();
    let lost = watcher.wait(|event| match event {
        StateEvent::WatchLost { watch: told, compacted } => {
            assert_eq!(*told, watch);
            Some(*compacted)
        }
        _ => None,
    });
    assert_eq!(lost, compacted);
    let read = watcher.get("counter").unwrap();
    assert_eq!(read.value, "7");
    let watch = WatchId(2);
    watcher.watch(watch, "counter", read.revision.next());
    counter.advance(&mut watcher);
    expect_counted(&mut watcher, watch, 8, 8);
    // A watch that begins at the last compacted revision is lost too: some changes of that revision are gone.
    let watch = WatchId(3);
    watcher.watch(watch, "", compacted);
    let is_lost = StateEvent::WatchLost { watch, compacted };
    watcher.wait(|event| (*event == is_lost).then_some(()));
}

#[test]
fn dead_and_silent_endpoints_are_abandoned_for_one_that_answers() {
    let server = Server::running("failover");
    let dead = format!("http://127.0.0.1:{}", free_port());
    // The kernel accepts connections to this port; nothing reads from them.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}", listener.local_addr().unwrap());
    Driver::new(&[&server.url()], "x").get("nothing");
    let started = Instant::now();
    let mut driver = Driver::new(&[&dead, &silent, &server.url()], "x");
    let revision = driver.commit_soon(put("a", "1", StateRevision::ZERO));
    let took = started.elapsed();
    assert!(took < LEFT_TIME_MAX, "{took:?}");
    assert_eq!(driver.get("a").map(|entry| entry.revision), Some(revision));
    assert!(!driver.events.iter().any(|event| matches!(event, StateEvent::Condition { .. })));
    drop(listener);
}

#[test]
fn an_unused_endpoint_that_does_not_answer_is_reported() {
    let mut server = Server::running("survey");
    let port = free_port();
    let other = format!("http://127.0.0.1:{port}");
    let foreign = Server::running("beside");
    let mut driver = Driver::new(&[&server.url(), &other, &foreign.url()], "x");
    driver.commit_soon(put("a", "1", StateRevision::ZERO));
    let down = |driver: &mut Driver| {
        driver.wait(|event| match event {
            StateEvent::Endpoints(found) => Some(found.down.clone()),
            _ => None,
        })
    };
    let [dead, wrong] = &down(&mut driver)[..] else { panic!("two of three") };
    let (dead, wrong) = match dead.endpoint == other {
        true => (dead, wrong),
        false => (wrong, dead),
    };
    assert_eq!((&dead.endpoint, &wrong.endpoint), (&other, &foreign.url()));
    assert!(dead.why.contains("refused"), "{dead:?}");
    assert!(wrong.why.contains("a different etcd"), "{wrong:?}");
    server.kill();
    server.more = Some(port);
    server.start();
    let left = down(&mut driver);
    assert_eq!(left.iter().map(|down| &down.endpoint).collect::<Vec<_>>(), [&foreign.url()]);
}

#[test]
fn a_nearly_full_etcd_is_reported() {
    let mut server = Server::running("room");
    let mut filler = Driver::new(&[&server.url()], "x");
    let value = "1".repeat(1 << 20);
    for number in 0..20 {
        filler.commit_soon(put(&number.to_string(), &value, StateRevision::ZERO));
    }
    drop(filler);
    // etcd's file grows by 16 MiB or more at a time, at its own pace, so the quota is set from its actual
    // size.
    server.kill();
    server.start();
    Driver::new(&[&server.url()], "x").get("0").unwrap();
    let size_max = server.used_bytes() * 100 / 85;
    server.kill();
    server.quota = Some(size_max);
    server.start();
    let mut driver = Driver::new(&[&server.url()], "x");
    let found = driver.wait(|event| match event {
        StateEvent::Endpoints(found) => Some(found.clone()),
        _ => None,
    });
    assert_eq!(found.down, []);
    let [room] = &found.nearly_full[..] else { panic!("one address: {found:?}") };
    assert_eq!((&room.endpoint, room.size_max), (&server.url(), size_max));
    assert!((84..=85).contains(&room.used_percent), "{room:?}");
    // Small writes are still accepted.
    driver.commit_soon(put("a", "1", StateRevision::ZERO));
}

#[test]
fn an_etcd_that_starts_later_is_found_and_a_foreign_one_refused() {
    let mut server = Server::new("later");
    let foreign = Server::running("foreign");
    Driver::new(&[&foreign.url()], "x").get("nothing");
    let mut driver = Driver::new(&[&server.url()], "x");
    let trouble = driver.trouble();
    assert!(trouble.contains(&server.url()) && trouble.contains("refused"), "{trouble}");
    assert_eq!(driver.put("a", "1", StateRevision::ZERO), TransactionOutcome::Unknown);
    server.start();
    driver.no_trouble();
    driver.commit_soon(put("a", "2", StateRevision::ZERO));
    drop(driver);

    let mut driver = Driver::new(&[&server.url(), &foreign.url()], "x");
    driver.get("a").unwrap();
    server.kill();
    let trouble = driver.wait(|event| match event {
        StateEvent::Condition { trouble: Some(text) } if text.contains("a different etcd") => {
            Some(text.clone())
        }
        _ => None,
    });
    assert!(trouble.contains(&foreign.url()), "{trouble}");
    assert_eq!(driver.range("a", 1), Err(Unavailable));
    server.start();
    driver.no_trouble();
    assert_eq!(driver.get("a").unwrap().value, "2");
}
