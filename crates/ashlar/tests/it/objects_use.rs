//! Tests of the commands and the library for objects and small values.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::objects::{
    Assertion, Field, Listing, Name, ObjectChange, ObjectError, ObjectPool, ObjectSteps, Operation,
    StepResult,
};
use client::{Client, Config, block_on};
use serde_json::{Value, json};

use crate::fio::Fio;
use crate::harness::{Cluster, Directory, run, wait_for};
use crate::replication::{start_osd, stop_osd};
use crate::scrub::scrub;

/// Starts a cluster with a pool of objects of 8 PGs with this number of copies, on as many OSDs.
fn with_objects(name: &str, copies: &str) -> Cluster {
    with_objects_on(name, copies, copies)
}

/// Starts a cluster with a pool of objects of 8 PGs with this number of copies, on so many OSDs.
fn with_objects_on(name: &str, osds: &str, copies: &str) -> Cluster {
    let cluster = Cluster::up(name, &["--osds", osds, "--osd-size", "1GiB"]);
    let create = ["pool", "create", "kv", "--kind", "object", "--pgs", "8", "--replicas", copies];
    cluster.run(&[&create[..], &["--failure-domain", "osd"]].concat());
    cluster.wait_active();
    cluster
}

fn open(cluster: &Cluster) -> ObjectPool {
    let config = Config::find(Some(cluster.path())).expect("the cluster is there");
    let client = Client::start(&config).expect("io_uring works");
    block_on(client.open_pool("kv")).expect("the pool is there")
}

/// Runs a command with this standard input. Returns its standard output.
fn piped(cluster: &Cluster, arguments: &[&str], input: &[u8]) -> Vec<u8> {
    let mut command = cluster.command(arguments);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it reads all");
    assert!(output.status.success(), "{arguments:?}");
    output.stdout
}

fn bytes_of(command: &mut Command) -> Vec<u8> {
    let output = run(command);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn objects_are_stored_changed_and_listed_by_commands() {
    let cluster = with_objects("object-commands", "2");
    let files = Directory::new("object-files");
    // 10 MB take several operations.
    let long: Vec<u8> = (0..10_000_000u32).map(|at| (at / 997) as u8).collect();
    for (name, data) in [("empty", &[][..]), ("short", b"a stone"), ("long", &long)] {
        let file = files.path().join(name);
        fs::write(&file, data).expect("writable");
        let file = file.to_str().expect("UTF-8");
        let put = cluster.json(&["object", "put", name, file]);
        let stat = &cluster.json(&["object", "stat", name])[0];
        assert_eq!((&stat["size_bytes"], &stat["version"]), (&json!(data.len()), &put["version"]));
        assert_eq!(stat["partial"], false);
        assert!(bytes_of(&mut cluster.command(&["object", "get", name])) == data, "{name}");
        let copy = files.path().join("copy");
        cluster.run(&["object", "get", name, copy.to_str().expect("UTF-8")]);
        assert!(fs::read(&copy).expect("written") == data, "{name}");
    }
    let range = ["object", "get", "long", "--offset", "3145720", "--length", "4000"];
    assert_eq!(bytes_of(&mut cluster.command(&range)), long[3_145_720..3_149_720]);
    piped(&cluster, &["object", "put", "photos/a", "-", "--if-absent"], b"from a pipe");
    let absent = ["object", "put", "photos/a", "/etc/hostname", "--if-absent"];
    cluster.refused(&absent, "asserted");
    cluster.refused(
        &["object", "put", "short", "/etc/hostname", "--if-version", "1.99999"],
        "asserted",
    );
    let version = cluster.json(&["object", "stat", "short"])[0]["version"].clone();
    let version = version.as_str().expect("a text");
    piped(&cluster, &["object", "put", "short", "-", "--if-version", version], b"another");
    assert_eq!(cluster.run(&["object", "get", "short"]), "another");

    // Attributes and records.
    cluster.run(&["object", "setattr", "short", "colour", "blue"]);
    let version_of = |name: &str| {
        let version = cluster.json(&["object", "stat", name])[0]["version"].clone();
        version.as_str().expect("a text").to_string()
    };
    let version = version_of("short");
    let if_version = ["object", "setattr", "short", "colour", "grey", "--if-version", &version];
    cluster.run(&if_version);
    cluster.refused(&if_version, "asserted");
    cluster.refused(&["object", "rm", "short", "--if-version", &version], "asserted");
    cluster.refused(&["object", "rm", "short", "long", "--if-version", &version], "invalid");
    let bytes = b"all\0bytes\xff";
    piped(&cluster, &["object", "setattr", "short", "raw", "--file", "-"], bytes);
    assert_eq!(bytes_of(&mut cluster.command(&["object", "getattr", "short", "raw"])), bytes);
    cluster.refused(&["object", "rmattr", "short", "raw", "--if-version", &version], "asserted");
    cluster.run(&["object", "rmattr", "short", "raw", "--if-version", &version_of("short")]);
    cluster.refused(&["object", "getattr", "short", "raw"], "not_found");
    assert_eq!(cluster.run(&["object", "getattr", "short", "colour"]), "grey");
    cluster.refused(&["object", "getattr", "short", "size"], "not_found");
    for key in ["b", "a", "c"] {
        cluster.run(&["object", "records", "set", "short", key, &format!("value {key}")]);
    }
    assert_eq!(cluster.run(&["object", "records", "add", "short", "n", "41"]).trim(), "41");
    assert_eq!(cluster.run(&["object", "records", "add", "short", "n", "-1"]).trim(), "40");
    cluster.run(&["object", "records", "rm", "short", "b"]);
    cluster.refused(&["object", "records", "rm", "short", "b"], "not_found");
    let keys = |range: &[&str]| -> Vec<Value> {
        let rows = cluster.json(&[&["object", "records", "ls", "short"], range].concat());
        rows.as_array().expect("a list").iter().map(|row| row["key"].clone()).collect()
    };
    assert_eq!(keys(&[]), ["a", "c", "n"]);
    assert_eq!(keys(&["--from", "b", "--before", "n"]), ["c"]);
    assert_eq!(keys(&["--limit", "1"]), ["a"]);
    // What was under the name of a copy goes.
    cluster.run(&["object", "setattr", "photos/b", "old", "x"]);
    cluster.run(&["object", "records", "set", "photos/b", "old", "x"]);
    cluster.run(&["object", "cp", "short", "photos/b"]);
    cluster.refused(&["object", "getattr", "photos/b", "old"], "not_found");
    cluster.refused(&["object", "records", "get", "photos/b", "old"], "not_found");
    cluster.run(&["object", "cp", "long", "photos/c"]);
    assert!(bytes_of(&mut cluster.command(&["object", "get", "photos/c"])) == long);
    cluster.run(&["object", "records", "clear", "photos/b", "--from", "c", "--before", "d"]);
    cluster.refused(&["object", "records", "get", "photos/b", "c"], "not_found");
    cluster.run(&["object", "records", "set", "photos/b", "c", "value c"]);
    cluster.run(&["object", "rm", "photos/c"]);
    assert_eq!(cluster.run(&["object", "get", "photos/b"]), "another");
    assert_eq!(cluster.run(&["object", "records", "get", "photos/b", "c"]), "value c");
    assert_eq!(cluster.run(&["object", "getattr", "photos/b", "colour"]), "grey");
    cluster.run(&["object", "rmattr", "photos/b", "colour"]);
    assert_eq!(cluster.json(&["object", "lsattr", "photos/b"]), json!([]));
    assert_eq!(cluster.json(&["object", "lsattr", "short"])[0]["key"], "colour");

    // Lists, of all PGs in order.
    let names = |arguments: &[&str]| -> Vec<Value> {
        let rows = cluster.json(&[&["object", "ls"], arguments].concat());
        rows.as_array().expect("a list").iter().map(|row| row["name"].clone()).collect()
    };
    assert_eq!(names(&[]), ["empty", "long", "photos/a", "photos/b", "short"]);
    assert_eq!(names(&["--delimiter", "/"]), ["empty", "long", "photos/", "short"]);
    assert_eq!(names(&["--prefix", "photos/", "--delimiter", "/"]), ["photos/a", "photos/b"]);
    assert_eq!(names(&["--from", "f", "--limit", "2"]), ["long", "photos/a"]);
    cluster.run(&["object", "rm", "long", "photos/a", "photos/b"]);
    cluster.refused(&["object", "rm", "long"], "not_found");
    assert_eq!(names(&[]), ["empty", "short"]);

    // Everything is there when the cluster was stopped in good order.
    cluster.down();
    cluster.start(&[]);
    cluster.wait_active();
    assert_eq!(cluster.run(&["object", "get", "short"]), "another");
    assert_eq!(keys(&[]), ["a", "c", "n"]);
    assert_eq!(names(&[]), ["empty", "short"]);
}

#[test]
fn values_are_stored_in_bulk_and_scanned_in_order() {
    let cluster = with_objects("values", "2");
    let mut lines: BTreeMap<String, String> = BTreeMap::new();
    for number in 0..20_000u32 {
        let key = format!("key {:08x}", number.wrapping_mul(0x9e37_79b9));
        lines.insert(key, format!("value {number} {}", "x".repeat(number as usize % 300)));
    }
    let text = |lines: &BTreeMap<String, String>| -> String {
        lines.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect()
    };
    let said = piped(&cluster, &["kv", "bulk", "-"], text(&lines).as_bytes());
    assert_eq!(said, b"20000 keys changed\n");
    assert!(cluster.run(&["kv", "scan"]) == text(&lines), "all of it, in order");
    // Lines without a tab remove.
    let gone: Vec<String> = lines.keys().step_by(3).cloned().collect();
    gone.iter().for_each(|key| _ = lines.remove(key));
    let input = gone.join("\n") + "\n";
    piped(&cluster, &["kv", "bulk", "-"], input.as_bytes());
    assert!(cluster.run(&["kv", "scan"]) == text(&lines), "what is left");
    // Long lists have one title, and are one list.
    assert_eq!(cluster.run(&["object", "ls"]).lines().count(), lines.len() + 1);
    for list in [["object", "ls"], ["kv", "scan"]] {
        assert_eq!(cluster.json(&list).as_array().map(Vec::len), Some(lines.len()));
    }
    assert_eq!(cluster.json(&["kv", "scan", "--prefix", "none"]), json!([]));
    let some = lines.range("key 4".to_string().."key 8".to_string()).take(1500);
    let some: BTreeMap<_, _> = some.map(|(key, value)| (key.clone(), value.clone())).collect();
    let scan = ["kv", "scan", "--from", "key 4", "--before", "key 8", "--limit", "1500"];
    assert!(cluster.run(&scan) == text(&some), "a range");
    cluster.run(&["kv", "put", "colour\t1", "\\ grey\n"]);
    assert_eq!(cluster.run(&["kv", "get", "colour\t1"]), "\\ grey\n");
    assert_eq!(cluster.run(&["kv", "scan", "--prefix", "colour"]), "colour\\t1\t\\\\ grey\\n\n");
    let got = cluster.json(&["kv", "get", "colour\t1"]);
    assert_eq!((&got["key"], &got["value"]), (&json!("colour\t1"), &json!("\\ grey\n")));
    let version = got["version"].as_str().expect("a text");
    cluster.run(&["kv", "put", "colour\t1", "red", "--if-version", version]);
    cluster.refused(&["kv", "put", "colour\t1", "blue", "--if-version", version], "asserted");
    cluster.refused(&["kv", "del", "colour\t1", "--if-version", version], "asserted");
    cluster.run(&["kv", "del", "colour\t1"]);
    cluster.refused(&["kv", "get", "colour\t1"], "not_found");
    // A last line that may be cut off is not carried out.
    let files = Directory::new("value-files");
    let cut = files.path().join("cut");
    fs::write(&cut, format!("new\t1\n{}", lines.keys().next().expect("some"))).expect("writable");
    cluster.refused(&["kv", "bulk", cut.to_str().expect("UTF-8")], "invalid");
    assert!(cluster.run(&["kv", "scan", "--prefix", "key"]) == text(&lines), "nothing is removed");
    let long = "x".repeat((32 << 10) + 1);
    cluster.refused(&["kv", "put", "long", &long], "invalid");
}

#[test]
fn keys_that_stay_come_exactly_once_in_a_scan_beside_writers_and_a_kill() {
    let cluster = with_objects("scan-beside-writers", "2");
    let name = |number: u32, kind: &str| {
        let key = format!("{:08x} {kind}", number.wrapping_mul(0x9e37_79b9));
        Name::new(key.as_bytes()).expect("short")
    };
    let put = |name: Name, size: usize| ObjectSteps {
        name,
        assertions: Vec::new(),
        changes: vec![ObjectChange::Put(vec![b'v'; size])],
    };
    let remove = |name: Name| ObjectSteps {
        name,
        assertions: Vec::new(),
        changes: vec![ObjectChange::Remove],
    };
    let stays: Vec<Name> = (0..6000).map(|number| name(number, "stays")).collect();
    let pool = open(&cluster);
    let puts = stays.iter().map(|name| put(name.clone(), 500)).collect();
    assert_eq!(block_on(pool.bulk(puts)), (stays.len(), Ok(())));
    let mut sorted: Vec<&[u8]> = stays.iter().map(|name| name.bytes()).collect();
    sorted.sort_unstable();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let pool = open(&cluster);
            for round in 0u32.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                // Some come and go, and some of those that stay are written again.
                let passing = (0..300).map(|number| name(number * 7 + round % 5, "passes"));
                let again = stays.iter().skip(round as usize % 11).step_by(31).cloned();
                let passing =
                    passing.map(|it| if round % 2 == 0 { put(it, 300) } else { remove(it) });
                let changes = passing.chain(again.map(|name| put(name, 700))).collect();
                block_on(pool.bulk(changes)).1.expect("clients wait for their OSDs");
            }
        });
        for round in 0..6 {
            if round == 3 {
                // PGs that have two copies move to the other one; the rest wait until it is back.
                cluster.kill("osd", 1);
            }
            let mut listing = Listing { count_max: 500, ..client::objects::all() };
            let mut found = Vec::new();
            loop {
                let page = match round % 2 == 0 {
                    true => block_on(pool.list(&listing, true)),
                    false => block_on(pool.scan(&listing, round == 3)),
                };
                let page = page.expect("it is answered");
                found.extend(page.entries.iter().map(|entry| entry.key().to_vec()));
                match page.next {
                    Some(next) => listing.from = next,
                    None => break,
                }
            }
            assert!(found.is_sorted_by(|one, next| one < next), "in order, each once");
            let stayed = found.iter().filter(|key| key.ends_with(b"stays")).map(|key| &key[..]);
            assert!(stayed.eq(sorted.iter().copied()), "round {round}");
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().expect("no panic");
    });
}

#[test]
fn a_counter_of_many_clients_counts_each_addition_once() {
    let cluster = with_objects("counter", "2");
    let name = Name::new(b"visits").expect("short");
    let add = || {
        let pool = open(&cluster);
        let mut sums = Vec::new();
        for _ in 0..100 {
            let change = ObjectChange::Add(Field::Record(b"count".to_vec()), 1);
            let executed = block_on(pool.change(&name, vec![change])).expect("it is added");
            let [StepResult::Sum(sum)] = executed.results[..] else { panic!("{executed:?}") };
            sums.push(sum);
        }
        sums
    };
    let mut sums: Vec<i64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(add)).collect();
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect()
    });
    sums.sort_unstable();
    assert_eq!(sums, (1..=400).collect::<Vec<i64>>());
}

#[test]
fn names_of_all_bytes_are_kept_and_what_is_too_long_is_refused() {
    let cluster = with_objects("object-input", "1");
    // One key of each byte, and one of all of them, as `scan` prints them.
    let escaped = |byte: u8| match byte {
        b'\\' => "\\\\".to_string(),
        byte => format!("\\x{byte:02x}"),
    };
    let lines: Vec<String> = (0..=255).map(|byte| format!("{0}\t{0}\n", escaped(byte))).collect();
    let all: String = (0..=255).map(escaped).collect();
    let input = lines.concat() + &format!("{all}\t{all}\n");
    piped(&cluster, &["kv", "bulk", "-"], input.as_bytes());
    let pool = open(&cluster);
    let every: Vec<u8> = (0..=255).collect();
    for name in every.chunks(1).chain([&every[..]]) {
        let found = block_on(pool.get(&Name::new(name).expect("short"))).expect("readable");
        assert_eq!(found.map(|(_, data)| data).as_deref(), Some(name));
    }
    let scanned = bytes_of(&mut cluster.command(&["kv", "scan"]));
    piped(&cluster, &["kv", "bulk", "-"], &scanned);
    assert_eq!(cluster.json(&["kv", "scan"]).as_array().map(Vec::len), Some(257));

    let text = |length| "x".repeat(length);
    let (name, key, value) = (text(1088), text(2048), text(64 << 10));
    cluster.run(&["object", "records", "set", &name, &key, &value]);
    assert_eq!(cluster.run(&["object", "records", "get", &name, &key]), value);
    cluster.run(&["object", "setattr", &name, &text(255), &value]);
    let version = cluster.json(&["object", "stat", &name])[0]["version"].clone();
    let files = Directory::new("too-long");
    let long = files.path().join("long");
    fs::File::create(&long).and_then(|file| file.set_len((64 << 20) + 1)).expect("writable");
    let long = long.to_str().expect("UTF-8");
    for (bad, code) in [
        (&["object", "put", &name, long][..], "invalid"),
        (&["object", "records", "set", &name, &text(2049), "1"], "invalid"),
        (&["object", "records", "set", &name, "", "1"], "invalid"),
        (&["object", "records", "set", &name, "k", &text((64 << 10) + 1)], "invalid"),
        (&["object", "setattr", &name, &text(256), "1"], "invalid"),
        (&["object", "setattr", &name, "a", &text((64 << 10) + 1)], "invalid"),
        (&["kv", "put", &name, &text((32 << 10) + 1)], "invalid"),
        (&["object", "records", "add", &name, &key, "1"], "asserted"),
        (&["object", "rm", &name, "--if-version", "one"], "usage"),
    ] {
        let output = run(cluster.command(bad).arg("--json"));
        let error: Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert_eq!(error["error"]["code"], code, "{:?}: {error}", &bad[..2]);
        assert!(!output.status.success());
    }
    for bad in [text(1089), String::new()] {
        let output = run(cluster.command(&["object", "put", &bad, "/etc/hostname"]).arg("--json"));
        let error: Value = serde_json::from_slice(&output.stderr).expect("JSON");
        assert!(
            error["error"]["message"].as_str().expect("text").contains("is no name"),
            "{error}"
        );
    }
    assert_eq!(cluster.json(&["object", "stat", &name])[0]["version"], version, "nothing changed");
}

#[test]
fn objects_on_a_full_osd_are_refused_read_and_removed() {
    let cluster = Cluster::up("objects-full", &["--osds", "1", "--osd-size", "256MiB"]);
    let create = ["pool", "create", "kv", "--kind", "object", "--pgs", "8", "--replicas", "1"];
    cluster.run(&[&create[..], &["--failure-domain", "osd"]].concat());
    cluster.wait_active();
    let pool = open(&cluster);
    let name = |number: usize| Name::new(format!("long {number}").as_bytes()).expect("short");
    let data = |number: usize| vec![number as u8; 2_500_000];
    let put = |number| block_on(pool.put(&name(number), Vec::new(), data(number), |_| {}));
    let mut count = 0;
    let refused = loop {
        match put(count) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
        assert!(count < 150, "256 MiB hold {count} objects of 2.5 MB");
    };
    assert_eq!(refused, ObjectError::Full);
    assert!(count > 40, "{count}");
    // All of it is there, and the one that was refused is not.
    for number in 0..count {
        let (stat, found) = block_on(pool.get(&name(number))).expect("readable").expect("there");
        assert!(found == data(number) && !stat.is_partial, "{number}");
    }
    assert_eq!(block_on(pool.stat(&name(count))), Ok(None));
    for number in 0..count / 2 {
        assert_eq!(block_on(pool.remove(&name(number), Vec::new())), Ok(true));
    }
    wait_for("room for what was refused", || put(count).is_ok());
    for number in count / 2..=count {
        let found = block_on(pool.get(&name(number))).expect("readable").expect("there");
        assert!(found.1 == data(number), "{number}");
    }
    cluster.check_osds();
}

/// What a client was told of its changes: objects by number, or none if it was removed; the sum of a counter;
/// and which batches of small values it stored.
#[derive(Default)]
struct Told {
    objects: BTreeMap<u64, Option<Object>>,
    sum: i64,
    batches: Vec<u64>,
}

/// What an object must have.
struct Object {
    /// The number of which its data is made, and the size.
    data: (u64, usize),
    /// Its record and its attribute.
    fields: [Option<Vec<u8>>; 2],
}

impl Told {
    fn name(number: u64) -> Name {
        Name::new(format!("told {number}").as_bytes()).expect("short")
    }

    /// Returns the names of a batch of small values.
    fn batch(number: u64) -> impl Iterator<Item = Name> {
        let name = move |at| Name::new(format!("value {number} {at}").as_bytes()).expect("short");
        (0..50).map(name)
    }

    fn fields() -> [Field; 2] {
        [Field::Record(b"number".to_vec()), Field::Attribute(b"number".to_vec())]
    }

    fn value(number: u64, size: usize) -> Vec<u8> {
        number.to_le_bytes().repeat(size / 8)
    }

    /// Puts an object with a record and an attribute, and adds to the counter; some objects are removed
    /// again.
    fn change(&mut self, pool: &ObjectPool, number: u64) {
        let waits = "a client waits for its OSDs";
        let (name, bytes) = (Told::name(number), number.to_le_bytes().to_vec());
        // Data in the head, or in blocks.
        let size = if number.is_multiple_of(7) { 100_000 } else { 304 };
        let sets = Told::fields().map(|field| ObjectChange::Set(field, bytes.clone()));
        let put = ObjectChange::Put(Told::value(number, size));
        let changes = [put].into_iter().chain(sets).collect();
        block_on(pool.change(&name, changes)).expect(waits);
        let fields = [Some(bytes.clone()), Some(bytes.clone())];
        self.objects.insert(number, Some(Object { data: (number, size), fields }));
        if let Some(Some(before)) = self.objects.get_mut(&number.wrapping_sub(1)) {
            // What was there is replaced, and its records go as a range.
            let size = if number.is_multiple_of(4) { 50_000 } else { 96 };
            let range = ObjectChange::RemoveRecords { from: b"n".to_vec(), before: None };
            let changes = vec![range, ObjectChange::Put(Told::value(number, size))];
            block_on(pool.change(&Told::name(number - 1), changes)).expect(waits);
            (before.data, before.fields[0]) = ((number, size), None);
        }
        if number % 30 == 11 {
            // It takes two operations.
            let size = 4_000_000;
            let put = pool.put(&name, Vec::new(), Told::value(number, size), |_| {});
            block_on(put).expect(waits);
            self.objects.get_mut(&number).expect("put").as_mut().expect("put").data.1 = size;
        }
        if number % 10 == 3 {
            let put = |name| ObjectSteps {
                name,
                assertions: Vec::new(),
                changes: vec![ObjectChange::Put(bytes.clone())],
            };
            let (count, result) = block_on(pool.bulk(Told::batch(number).map(put).collect()));
            assert_eq!((count, result), (50, Ok(())));
            self.batches.push(number);
        }
        let counter = Name::new(b"counter").expect("short");
        let add = ObjectChange::Add(Field::Record(b"sum".to_vec()), 1);
        let executed = block_on(pool.change(&counter, vec![add])).expect(waits);
        self.sum += 1;
        assert_eq!(executed.results, [StepResult::Sum(self.sum)], "each is counted once");
        if number.is_multiple_of(5) {
            block_on(pool.change(&name, vec![ObjectChange::Remove])).expect(waits);
            self.objects.insert(number, None);
        }
    }

    fn check(&self, pool: &ObjectPool) {
        for (number, kept) in &self.objects {
            let name = Told::name(*number);
            let found = block_on(pool.get(&name)).expect("readable");
            let Some(Object { data: (of, size), fields }) = kept else {
                assert!(found.is_none(), "{name:?} was removed");
                continue;
            };
            let (stat, data) = found.expect("it is there");
            assert_eq!((stat.size, stat.is_partial), (*size as u64, false));
            assert!(data == Told::value(*of, *size), "{name:?}");
            let values = block_on(pool.values(&name, &Told::fields())).expect("readable");
            assert_eq!(values, *fields, "{name:?}");
        }
        for number in &self.batches {
            for name in Told::batch(*number) {
                let found = block_on(pool.get(&name)).expect("readable");
                assert_eq!(found.map(|(_, data)| data), Some(number.to_le_bytes().to_vec()));
            }
        }
    }
}

#[test]
fn what_was_answered_is_there_after_kill_minus_nine_beside_a_volume() {
    let cluster = with_objects_on("object-kill", "3", "2");
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    cluster.wait_clean();
    let mut fio = Fio::start_at_rate(&cluster.uri("v"), 48 << 20, 43, 4 << 20);
    fio.wait_written(1 << 20);
    let (is_over, mut told) = (AtomicBool::new(false), Told::default());
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let pool = open(&cluster);
            for number in (0u64..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                told.change(&pool, number);
            }
        });
        for (round, killed) in [&[1][..], &[2], &[3, 1], &[1, 2, 3]].into_iter().enumerate() {
            // At any point of what the clients do.
            let since_1970 = std::time::SystemTime::UNIX_EPOCH.elapsed().expect("later");
            let pause = 200 + u64::from(since_1970.subsec_nanos()) / 1000 % 900;
            println!("round {round}: after {pause} ms");
            std::thread::sleep(Duration::from_millis(pause));
            killed.iter().for_each(|osd| cluster.kill("osd", *osd));
            // `up` starts them again. What waits for them is answered then.
            cluster.wait_clean();
        }
        is_over.store(true, Ordering::Relaxed);
        writer.join().expect("no panic");
    });
    assert!(told.objects.len() > 40, "{}", told.objects.len());
    told.check(&open(&cluster));
    assert!(fio.verified_bytes() > 0);
    // Each copy alone has all of it.
    cluster.run(&["osd", "stop", "1"]);
    cluster.wait_active();
    told.check(&open(&cluster));
}

#[test]
fn benchmarks_of_objects_report_all_their_numbers() {
    let cluster = with_objects("object-bench", "1");
    let verify = |value: &Value, records: u64| {
        let number = |value: &Value| value.as_f64().expect("a number");
        assert_eq!(value["absent"], 0, "{value:#}");
        assert!(value["records"].as_u64() >= Some(records), "{value:#}");
        let seconds = number(&value["seconds"]);
        for (rate, count) in [("records_per_second", "records"), ("bytes_per_second", "bytes")] {
            let told = number(&value[rate]) * seconds;
            assert!((told - number(&value[count])).abs() < 0.5, "{rate}: {value:#}");
        }
        let latency = ["p50", "p99", "p999", "max"].map(|it| number(&value["latency_us"][it]));
        assert!(latency[0] > 0.0 && latency.is_sorted(), "{value:#}");
    };
    let small = ["--records", "2000"];
    let kv = |options: &[&str]| cluster.json(&[&["bench", "kv"], &small[..], options].concat());
    let fill = kv(&["--op", "fill", "--batch", "64", "--depth", "3"]);
    verify(&fill, 2000);
    assert_eq!((&fill["records"], &fill["operations"]), (&json!(2000), &json!(32)));
    for options in [&["--op", "put", "--seconds", "1"][..], &["--op", "get", "--seconds", "1"]] {
        verify(&kv(&[options, &["--depth", "4"]].concat()), 10);
    }
    for depth in ["1", "3"] {
        let scan = kv(&["--op", "scan", "--depth", depth]);
        verify(&scan, 2000);
        assert_eq!((&scan["records"], &scan["bytes"]), (&json!(2000), &fill["bytes"]));
    }
    let object = |options: &[&str]| {
        let sizes =
            ["--records", "5", "--prefix", "o/", "--min-size", "1KiB", "--max-size", "5MiB"];
        cluster.json(&[&["bench", "object", "--incompressible"], &sizes[..], options].concat())
    };
    verify(&object(&["--op", "fill", "--depth", "2"]), 5);
    verify(&object(&["--op", "put", "--seconds", "1"]), 1);
    verify(&object(&["--op", "get", "--seconds", "1"]), 1);
    assert_eq!(object(&["--op", "ls"])["records"], 5);
    // Values that were read twice came from the cache.
    let hits = || cluster.json(&["osd", "ls"])[0]["engine"]["value_hits"].as_u64() > Some(0);
    wait_for("the OSD to report hits of its cache", hits);
    let row = &cluster.json(&["osd", "ls"])[0];
    let rate = row["engine"]["value_hit_rate"].as_f64().expect("a number");
    assert!(rate > 0.0 && rate < 1.0, "{row:#}");
    assert!(cluster.run(&["osd", "ls"]).contains("CACHE HITS"));
    // The pool's work is counted.
    let pools = cluster.json(&["pool", "ls"]);
    let io = pools.as_array().expect("a list").iter().find(|row| row["name"] == "kv").unwrap();
    assert!(io["io"]["write"]["ops"].as_u64() >= Some(32), "{io:#}");
    assert!(io["io"]["read"]["bytes"].as_u64() > Some(100_000), "{io:#}");
    let line = cluster.run(&["bench", "kv", "--op", "scan", "--records", "2000"]);
    assert!(line.contains("records/s") && line.contains("p99"), "{line}");
    let missing =
        cluster.json(&["bench", "kv", "--op", "get", "--prefix", "no/", "--seconds", "1"]);
    assert!(missing["absent"].as_u64() > Some(0) && missing["records"] == 0, "{missing:#}");
    cluster.refused(&["bench", "kv", "--max-size", "33KiB"], "invalid");
    cluster.refused(&["bench", "object", "--min-size", "2MiB"], "invalid");

    let scratch = Directory::new("engine-bench");
    let mut engine = Command::new(crate::harness::ASHLAR);
    engine.args(["bench", "engine"]).arg(scratch.path()).args(["--records", "2000", "--json"]);
    let text = bytes_of(engine.args(["--seconds", "1", "--compression", "zstd"]));
    let value: Value = serde_json::from_slice(&text).expect("JSON");
    for (load, records) in [("fill", 2000), ("get", 10), ("scan", 2000)] {
        verify(&value[load], records);
    }
    assert!(value["disk_bytes"].as_u64() > Some(100_000), "{value:#}");
    assert_eq!(fs::read_dir(scratch.path()).expect("readable").count(), 0, "nothing is left");
}

#[test]
fn a_benchmark_removes_the_objects_that_it_put_and_no_other() {
    let cluster = with_objects("object-removal", "2");
    piped(&cluster, &["object", "put", "kept", "-"], b"data");
    let names = || {
        let rows = cluster.json(&["object", "ls"]);
        let rows = rows.as_array().expect("a list").clone();
        rows.iter().map(|row| row["name"].clone()).collect::<Vec<_>>()
    };
    let object = |options: &[&str]| cluster.json(&[&["bench", "object"], options].concat());
    let small = ["--op", "remove", "--records", "3000", "--min-size", "0B", "--max-size", "4KiB"];
    let value = object(&[&small[..], &["--batch", "70", "--depth", "8"]].concat());
    let told = |value: &Value| ["records", "operations", "absent"].map(|it| value[it].as_u64());
    assert_eq!(told(&value), [Some(3000), Some(43), Some(0)], "{value:#}");
    assert_eq!(value["fill"]["records"], 3000, "{value:#}");
    assert!(value["fill"]["bytes"].as_u64() > value["bytes"].as_u64(), "{value:#}");
    assert_eq!(names(), ["kept"]);
    // Long ones lie in blocks. Here each has a request of its own.
    let long = ["--records", "12", "--min-size", "20KiB", "--max-size", "4MiB", "--depth", "4"];
    assert_eq!(object(&[&long[..], &["--op", "fill"]].concat())["records"], 12);
    assert_eq!(names().len(), 13);
    let filled = [&long[..], &["--op", "remove", "--filled"]].concat();
    let value = object(&filled);
    assert_eq!(told(&value), [Some(12), Some(12), Some(0)], "{value:#}");
    assert_eq!((names(), value["fill"].is_null()), (vec![json!("kept")], true));
    assert_eq!(told(&object(&filled)), [Some(0), Some(12), Some(12)], "nothing is left");
    let line = cluster.run(&[&["bench", "object"], &filled[..]].concat());
    assert!(line.contains("(12 were not there)"), "{line}");
    wait_for("the space of the long ones to be free", || {
        let rows = cluster.json(&["osd", "ls"]);
        let mut rows = rows.as_array().expect("a list").iter();
        rows.all(|row| row["used_bytes"].as_u64() < Some(4 << 20))
    });
    let (_, data) = block_on(open(&cluster).get(&Name::new(b"kept").expect("short")))
        .expect("readable")
        .expect("there");
    assert_eq!(data, b"data");
}

/// What an OSD keeps free for writes of pools with parity must leave room for objects.
#[test]
fn objects_are_put_beside_an_empty_pool_with_parity_on_small_osds() {
    let cluster = Cluster::up("object-parity", &["--osds", "3", "--osd-size", "2GiB"]);
    cluster.run(&["pool", "create", "parity", "--ec", "2+1", "--failure-domain", "osd"]);
    let create = ["pool", "create", "kv", "--kind", "object", "--failure-domain", "osd"];
    cluster.run(&create);
    cluster.wait_active();
    let size = ["--min-size", "512KiB", "--max-size", "512KiB", "--records", "64"];
    for (prefix, depth) in [("one by one/", "1"), ("many/", "32")] {
        let fill = ["bench", "object", "--op", "fill", "--prefix", prefix, "--depth", depth];
        let value = cluster.json(&[&fill[..], &size].concat());
        assert_eq!(value["records"], 64, "{value:#}");
    }
    let list = cluster.json(&["bench", "object", "--op", "ls", "--prefix", "many/"]);
    assert_eq!(list["records"], 64, "{list:#}");
}

/// What a pool has whose members change: keys with values, and long objects by name.
#[derive(Default)]
struct Kept {
    values: BTreeMap<String, String>,
    long: BTreeMap<String, Vec<u8>>,
}

impl Kept {
    /// Changes some keys, and an object.
    fn change(&mut self, cluster: &Cluster, round: usize) {
        for at in (0..2000).filter(|at| round == 0 || at % 7 == round) {
            self.values.insert(format!("key {at:04}"), format!("{round} {at}"));
        }
        let lines: Vec<String> =
            self.values.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
        piped(cluster, &["kv", "bulk", "-"], lines.concat().as_bytes());
        let name = format!("long {}", round % 3);
        let size = 1_000_000 * (3 - round as u32 % 3);
        let data: Vec<u8> = (0..size).map(|at| (at / 997 + round as u32) as u8).collect();
        piped(cluster, &["object", "put", &name, "-"], &data);
        self.long.insert(name, data);
    }

    fn check(&self, cluster: &Cluster) {
        let scan = cluster.run(&["kv", "scan", "--prefix", "key"]);
        let lines: Vec<String> =
            self.values.iter().map(|(key, value)| format!("{key}\t{value}\n")).collect();
        assert!(scan == lines.concat(), "values differ");
        for (name, data) in &self.long {
            let got = bytes_of(&mut cluster.command(&["object", "get", name]));
            assert!(got == *data, "{name} differs");
        }
    }
}

/// Stops the cluster, and returns what the check of its OSDs finds. They stop one after the other: PGs that
/// are tidied meanwhile have members with different versions, whose records cannot be compared. Then the
/// cluster runs and stops again.
fn check_of_stopped(cluster: &Cluster, osds: &[PathBuf]) -> Value {
    for _ in 0..5 {
        cluster.down();
        let mut check = cluster.command(&["check", "--json"]);
        let found: Value = serde_json::from_slice(&bytes_of(check.args(osds))).expect("JSON");
        if !found.to_string().contains("were not compared") {
            return found;
        }
        cluster.start(&[]);
        cluster.wait_clean();
    }
    panic!("PGs were tidied each time the cluster stopped");
}

#[test]
fn a_pool_of_objects_goes_on_when_an_osd_was_away_or_leaves_for_good() {
    let cluster = with_objects_on("objects-filled", "3", "2");
    let mut kept = Kept::default();
    kept.change(&cluster, 0);
    // It comes back, and lacks what changed meanwhile.
    cluster.run(&["osd", "stop", "2"]);
    cluster.wait_active();
    kept.change(&cluster, 1);
    cluster.run(&["osd", "start", "2"]);
    cluster.wait_clean();
    kept.check(&cluster);
    // Each of them leaves, so that in the end nobody has what it got from clients.
    for (round, osd) in ["3", "1", "2"].into_iter().enumerate() {
        cluster.run(&["osd", "out", osd]);
        cluster.wait_status("an empty OSD, and all copies elsewhere", |status| {
            let pgs = &status["pgs"];
            let tree = cluster.json(&["osd", "tree"]);
            let name = format!("osd.{osd}");
            let rows = tree.as_array().expect("a list");
            pgs["total"] == pgs["clean"]
                && rows.iter().any(|row| row["name"] == name && row["pgs"] == 0)
        });
        kept.check(&cluster);
        kept.change(&cluster, 2 + round);
        cluster.run(&["osd", "in", osd]);
        cluster.wait_clean();
        kept.check(&cluster);
    }
    // All of them have the same.
    scrub(&cluster, "kv");
    let scrubs = cluster.json(&["status"])["scrub"].clone();
    assert_eq!((&scrubs["damaged_blocks"], &scrubs["repaired_blocks"]), (&json!(0), &json!(0)));
    let osds = ["osd.1", "osd.2", "osd.3"].map(|osd| cluster.path().join(osd));
    let found = check_of_stopped(&cluster, &osds);
    // What OSDs have not removed yet is a warning.
    let findings = found["findings"].as_array().expect("a list");
    assert!(findings.iter().all(|finding| finding["severity"] == "warning"), "{found}");
    assert!(found["records"].as_u64() > Some(2_000), "{found}");
    let inspect = bytes_of(cluster.command(&["osd", "inspect"]).arg(&osds[0]));
    assert!(String::from_utf8_lossy(&inspect).contains("blocks"));
}

/// An OSD is away while a million records change, and then has them all.
#[test]
fn an_osd_that_was_away_gets_a_million_records() {
    let cluster = with_objects("a-million", "2");
    let lines = |round: u32, count: u32| -> Vec<String> {
        let line = |number: u32| {
            let key = number.wrapping_mul(0x9e37_79b9);
            format!("key {key:08x}\t{round} {number} {}\n", "x".repeat(number as usize % 50))
        };
        (0..count).map(line).collect()
    };
    piped(&cluster, &["kv", "bulk", "-"], lines(1, 10_000).concat().as_bytes());
    cluster.wait_clean();
    cluster.run(&["osd", "stop", "2"]);
    cluster.wait_active();
    let mut all = lines(2, 1_000_000);
    let said = piped(&cluster, &["kv", "bulk", "-"], all.concat().as_bytes());
    assert_eq!(said, b"1000000 keys changed\n");
    cluster.run(&["osd", "start", "2"]);
    cluster.wait_clean();
    cluster.run(&["osd", "stop", "1"]);
    cluster.wait_active();
    all.sort_unstable();
    let scan = bytes_of(&mut cluster.command(&["kv", "scan"]));
    assert!(scan == all.concat().as_bytes(), "{} bytes differ", scan.len());
}

/// Damages a part of all files of an engine: neither their beginning, where the engine says what it has,
/// nor their end, which says where records are.
fn damage_engine(objects: &Path) -> usize {
    let mut count = 0;
    for entry in fs::read_dir(objects).expect("readable") {
        let path = entry.expect("readable").path();
        if path.extension().is_some_and(|it| it == "sst") {
            let mut bytes = fs::read(&path).expect("readable");
            let part = bytes.len() / 4..bytes.len() / 2;
            bytes[part].iter_mut().for_each(|byte| *byte ^= 0x55);
            fs::write(&path, bytes).expect("writable");
            count += 1;
        }
    }
    count
}

#[test]
fn an_osd_whose_engine_is_lost_gets_an_empty_one_and_keeps_its_volumes() {
    let cluster = with_objects("engine-lost", "2");
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    cluster.run(&["bench", "volume", "v", "--op", "write", "--seconds", "1"]);
    let mut kept = Kept::default();
    kept.change(&cluster, 0);
    cluster.wait_clean();
    cluster.run(&["osd", "stop", "2"]);
    cluster.wait_active();
    let osd = cluster.path().join("osd.2");
    let path = osd.to_str().expect("UTF-8");
    let running = cluster.path().join("osd.1");
    let running = running.to_str().expect("UTF-8");
    cluster.refused(&["osd", "new-engine", running, "--yes"], "busy");
    // One that is sound stays.
    cluster.refused(&["osd", "new-engine", path, "--yes"], "invalid");
    // Without one of its files RocksDB does not open.
    let database = osd.join("objects/rocksdb");
    let files = fs::read_dir(&database).expect("readable").map(|it| it.expect("readable").path());
    let mut tables = files.filter(|path| path.extension().is_some_and(|it| it == "sst"));
    fs::remove_file(tables.next().expect("some records are in files")).expect("writable");
    cluster.refused(&["osd", "check", path], "engine");
    cluster.refused(&["osd", "new-engine", path], "confirm");
    kept.change(&cluster, 1);
    cluster.run(&["osd", "new-engine", path, "--yes"]);
    cluster.run(&["osd", "start", "2"]);
    cluster.wait_clean();
    kept.check(&cluster);
    // It has everything now.
    cluster.run(&["osd", "stop", "1"]);
    cluster.wait_active();
    kept.check(&cluster);
    let check = cluster.json(&["osd", "check", running]);
    assert_eq!(check["findings"], json!([]), "{check:#}");
}

#[test]
fn records_that_rot_on_one_osd_are_replaced_by_those_of_another() {
    let cluster = with_objects_on("objects-rot", "3", "3");
    let mut kept = Kept::default();
    kept.change(&cluster, 0);
    cluster.wait_clean();
    cluster.run(&["osd", "stop", "2"]);
    cluster.wait_active();
    assert!(damage_engine(&cluster.path().join("osd.2/objects/rocksdb")) > 0);
    cluster.run(&["osd", "start", "2"]);
    // Whoever reads meets the damage, is told so at once, and gets all when another member leads.
    let damaged = || {
        let status = cluster.json(&["status"]);
        let checks = status["checks"].as_array().expect("a list").clone();
        checks.iter().any(|check| check["code"] == "engine_damaged")
    };
    let scan = || run(&mut cluster.command(&["kv", "scan", "--prefix", "key"])).status.success();
    wait_for("the damage is met", || !scan() || damaged());
    cluster.wait_status("copies anew", |status| {
        status["pgs"]["clean"] == status["pgs"]["total"] && !damaged() && scan()
    });
    kept.check(&cluster);
    // What it has now is whole.
    cluster.run(&["osd", "stop", "1"]);
    cluster.wait_active();
    cluster.run(&["pool", "set", "kv", "--min-size", "1"]);
    cluster.run(&["osd", "stop", "3"]);
    // Volumes have fewer copies: some of their PGs wait.
    kept.check(&cluster);
}

#[test]
fn pgs_that_cannot_answer_stop_no_other_one_of_their_pool() {
    // With one copy, the PGs of a stopped OSD have nobody else.
    let cluster = with_objects_on("object-windows", "3", "1");
    let pool = open(&cluster);
    let names = (0..100).filter_map(|number| Name::new(format!("o{number}").as_bytes()));
    let by_pg: BTreeMap<u32, Name> = names.map(|name| (pool.pg_of(&name), name)).collect();
    assert_eq!(by_pg.len(), 8, "each PG has one");
    let put = |byte| vec![ObjectChange::Put(vec![byte; 100])];
    for name in by_pg.values() {
        block_on(pool.change(name, put(1))).expect("all is well");
    }
    stop_osd(&cluster, 1);
    let limited = pool.within(Duration::from_secs(2));
    let (live, silent): (Vec<&Name>, Vec<&Name>) =
        by_pg.values().partition(|name| match block_on(limited.change(name, put(2))) {
            Ok(_) => true,
            Err(ObjectError::Unavailable { why }) => {
                assert!(why.contains("PG "), "{why}");
                false
            }
            Err(error) => panic!("{error:?}"),
        });
    assert!(!live.is_empty() && !silent.is_empty(), "{live:?} {silent:?}");
    // More requests than a client has in flight wait for PGs that do not answer.
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut stuck: Vec<_> =
        (0..1000).map(|turn| Box::pin(pool.change(silent[turn % silent.len()], put(3)))).collect();
    for request in &mut stuck {
        assert!(request.as_mut().poll(&mut context).is_pending());
    }
    for turn in 0..100 {
        let name = live[turn % live.len()];
        block_on(limited.change(name, put(4))).expect("it goes on");
    }
    let refused = block_on(limited.change(silent[0], put(5)));
    assert!(matches!(refused, Err(ObjectError::Unavailable { .. })), "{refused:?}");
    // What nobody waits for does not happen.
    drop(stuck.split_off(silent.len()));
    start_osd(&cluster, 1);
    for request in stuck {
        block_on(request).expect("it happens");
    }
    for name in &silent {
        let (_, data) = block_on(pool.get(name)).expect("readable").expect("there");
        assert_eq!(data, [3; 100]);
    }
}

/// How long a turn of an OSD's loop may take here, in microseconds: the aim is 100 ms, on a machine that does
/// nothing else.
const TURN_MAX_US: u64 = 1_000_000;

fn longest_turn(cluster: &Cluster) -> u64 {
    let rows = cluster.json(&["osd", "ls"]);
    let rows = rows.as_array().expect("a list").clone();
    let longest = rows.iter().map(|row| row["turns"]["longest_us"].as_u64());
    longest.map(|it| it.expect("an OSD counts turns")).max().expect("there is an OSD")
}

#[test]
fn operations_at_their_limits_hold_up_no_osd() {
    let cluster = with_objects("object-limits", "1");
    let pool = open(&cluster);
    let record = |at: u32| Field::Record(at.to_le_bytes().to_vec());
    let one = |name: &[u8], assertions, changes| {
        let name = Name::new(name).expect("short");
        Operation { objects: vec![ObjectSteps { name, assertions, changes }] }
    };
    let execute = |operation: &Operation| block_on(pool.execute(operation)).expect("it is true");
    let mut told = 0;
    let mut measure = |what: &str, operations: &dyn Fn()| {
        let begun = std::time::Instant::now();
        operations();
        println!("{what}: {:?}", begun.elapsed());
        told += 1;
    };
    // 16 ranges among 4,080 records, ten at a time.
    let sets = || (0..4080).map(|at| ObjectChange::Set(record(at), vec![1]));
    let range = |at: u8| ObjectChange::RemoveRecords { from: vec![at], before: Some(vec![at, 9]) };
    let ranges = one(b"ranges", vec![], sets().chain((0..16).map(|at| range(2 * at))).collect());
    measure("ten operations of records and ranges", &|| {
        std::thread::scope(|scope| {
            (0..10).for_each(|_| drop(scope.spawn(|| execute(&ranges))));
        });
    });
    // Each of many asserts another record of the same object, and changes it.
    execute(&one(
        b"swaps",
        vec![],
        (0..1000).map(|at| ObjectChange::Set(record(at), vec![1])).collect(),
    ));
    let swap = |at: u32| {
        let equals = Assertion::Equals(record(at), vec![1]);
        one(b"swaps", vec![equals], vec![ObjectChange::Set(record(at), vec![2])])
    };
    measure("1,000 conditional operations on one object", &|| {
        std::thread::scope(|scope| {
            for thread in 0..200 {
                let swap = &swap;
                scope.spawn(move || {
                    (5 * thread..5 * thread + 5).for_each(|at| drop(execute(&swap(at))))
                });
            }
        });
    });
    let is_swapped = (0..1000).map(|at| Assertion::Equals(record(at), vec![2])).collect();
    execute(&one(b"swaps", is_swapped, vec![]));
    // The most steps, of which none finds anything; and the longest values.
    let lacks = (1 << 20..(1 << 20) + 4096).map(|at| Assertion::Lacks(record(at))).collect();
    let lacks = one(b"swaps", lacks, vec![]);
    measure("4,096 assertions", &|| drop(execute(&lacks)));
    for at in 0..64 {
        let set = ObjectChange::Set(record(at), vec![at as u8; 64 << 10]);
        execute(&one(b"values", vec![], vec![set]));
    }
    let has = one(b"values", (0..64).map(|at| Assertion::Has(record(at))).collect(), vec![]);
    measure("4 MiB of values asserted", &|| drop(execute(&has)));
    assert_eq!(told, 4);
    // The OSD reports later than that.
    let before = cluster.json(&["osd", "ls"])[0]["turns"]["count"].as_u64();
    wait_for("a report of the OSD", || {
        cluster.json(&["osd", "ls"])[0]["turns"]["count"].as_u64() > before
    });
    let turns = &cluster.json(&["osd", "ls"])[0]["turns"];
    println!("turns: {turns}");
    let sum = turns["histogram"].as_array().expect("a list").iter();
    let sum: u64 = sum.map(|step| step["count"].as_u64().expect("a number")).sum();
    assert_eq!(Some(sum), turns["count"].as_u64());
    assert!(longest_turn(&cluster) < TURN_MAX_US, "{turns}");
}
