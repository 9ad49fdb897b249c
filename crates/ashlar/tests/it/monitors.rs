//! Tests that every host finds the remaining monitors, whichever monitor address it had at first.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use crate::harness::{ASHLAR, Directory, refused, succeed, wait_for};
use crate::namespaces::{Hosts, Shape, V4};

/// Returns whether the cluster.toml of a host lists this monitor.
fn knows(hosts: &Hosts, host: usize, monitor: &str) -> bool {
    let text = fs::read_to_string(hosts.home(host).join("cluster.toml")).expect("it is there");
    text.contains(&format!("\"tcp:{monitor}\""))
}

/// Returns how often the OSD's log contains this message, over all its runs.
fn said(hosts: &Hosts, what: &str) -> usize {
    let log = fs::read_to_string(hosts.path("osd.1.log")).unwrap_or_default();
    log.matches(what).count()
}

#[test]
fn a_daemon_that_knew_one_monitor_joins_through_another_when_that_one_is_lost() {
    let networks = &["--network", "10.77.1.0/24"];
    let shape =
        Shape { hosts: 3, etcds: 1, etcd_in: V4, monitors: 2, osds: 1, networks, commit: "fsync" };
    let mut hosts = Hosts::new("learn", shape);
    let mut init = hosts.on(1, ASHLAR);
    init.args(["init", "--json", "--state", "etcd:http://127.0.0.1:1", "--dir"]);
    refused(init.arg(hosts.home(1)), "state");
    assert!(!hosts.home(1).exists(), "nothing is left of a cluster that was not made");
    hosts.make_cluster();
    let (first, second, third) = ("10.77.1.1:4130", "10.77.1.2:4130", "10.77.1.2:4131");
    let socket = hosts.path("nbd.sock");
    let listen = format!("--listen=unix:{}", socket.display());
    let mut nbd = hosts.ashlar(3, &["nbd", &listen]);
    hosts.start("nbd", &mut nbd);
    wait_for("NBD to listen", || socket.exists());
    let osd = ["osd.1".to_owned()];
    hosts.kill(&osd);

    // On hosts 1 and 3 only one daemon runs that can learn about a new monitor: a monitor and an NBD server.
    let path = hosts.home(2).join("mon.3");
    succeed(hosts.ashlar(2, &["mon", "create", "--port", "4131"]).arg(&path));
    let mut command = hosts.ashlar(2, &["mon", "run"]);
    hosts.start("mon.3", command.arg(&path));
    for host in [1, 3] {
        wait_for("a host to know the new monitor", || knows(&hosts, host, third));
        assert!(knows(&hosts, host, first) && knows(&hosts, host, second), "the others stay");
    }

    // The host of this OSD has only the address of the first monitor, because its token was created early.
    let settings = hosts.home(1).join("cluster.toml");
    let text = fs::read_to_string(&settings).expect("it is there");
    let rest = text.lines().filter(|line| !line.starts_with("monitors"));
    let rest = rest.collect::<Vec<_>>().join("\n");
    let early =
        format!("# of host 1\nmonitors = [\"tcp:{first}\"] # one\nhost = \"first\"\n{rest}\n");
    fs::write(&settings, &early).expect("writable");
    hosts.begin(&osd[0]);
    wait_for("the OSD's host to know all", || knows(&hosts, 1, second) && knows(&hosts, 1, third));
    let later = fs::read_to_string(&settings).expect("it is there");
    assert!(later.starts_with("# of host 1\n") && later.contains("] # one\n"), "{later}");
    assert!(later.ends_with(&format!("\nhost = \"first\"\n{rest}\n")), "{later}");
    hosts.await_osds(2);
    wait_for("the OSD to be known by its host's name", || {
        hosts.json(2, &["osd", "ls"])[0]["host"] == "first"
    });
    let table = succeed(&mut hosts.ashlar(2, &["osd", "ls"]));
    assert!(table.contains("HOST") && table.contains(" first "), "{table}");

    // The first monitor is lost.
    hosts.kill(&["mon.1".to_owned(), osd[0].clone()]);
    let runs = said(&hosts, "joined the cluster");
    hosts.begin(&osd[0]);
    wait_for("the OSD to join over another", || said(&hosts, "joined the cluster") > runs);
    hosts.await_osds(1);

    // If no monitor answers, the error lists the addresses that were tried. The OSD may already have logged
    // such an error when it had fewer addresses.
    let before = said(&hosts, "no monitor answers");
    hosts.kill(&["mon.2".to_owned(), "mon.3".to_owned()]);
    wait_for("the OSD to say that nobody answers", || said(&hosts, "no monitor answers") > before);
    let log = fs::read_to_string(hosts.path("osd.1.log")).expect("it is there");
    let line = log.lines().rfind(|line| line.contains("no monitor answers")).expect("just seen");
    assert!([first, second, third].iter().all(|monitor| line.contains(monitor)), "{line}");
    let error = refused(hosts.ashlar(1, &["status"]).arg("--json"), "unreachable");
    assert!(error["hint"].as_str().expect("a text").contains("mon run"), "{error}");
}

/// Returns the names and contents of all files below a directory.
fn contents(directory: &Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory").flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => {
                found.push((path.display().to_string(), String::new()));
                found.extend(contents(&path));
            }
            false => {
                let text = fs::read_to_string(&path).expect("a text");
                found.push((path.display().to_string(), text));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn commands_for_one_machine_refuse_a_cluster_of_several_hosts_and_change_nothing() {
    let directory = Directory::new("several");
    let dir = directory.path();
    let mut options = fs::File::options();
    let key = options.write(true).create_new(true).mode(0o600).open(dir.join("key"));
    writeln!(key.expect("writable"), "{}", "5a".repeat(32)).expect("writable");
    let cluster = "cluster = \"00000000000000000000000000000abc\"\n";
    let here = "monitors = [\"tcp:127.0.0.1:1\"]\n";
    let several = [
        format!("{cluster}{here}networks = [\"127.0.0.0/8\"]\n"),
        format!("{cluster}monitors = [\"tcp:10.9.9.9:4130\"]\n"),
    ];
    let up = |more: &[&str]| {
        let mut up = Command::new(ASHLAR);
        up.args(["up", "--no-gateway", "--json", "--dir"]).arg(dir).args(more);
        let error = refused(&mut up, "several_hosts");
        assert!(error["hint"].as_str().expect("a text").contains("mon run"), "{error}");
    };
    for text in several {
        fs::write(dir.join("cluster.toml"), text).expect("writable");
        let before = contents(dir);
        up(&[]);
        up(&["--detach"]);
        let run = |arguments: &[&str], code: &str| {
            let mut command = Command::new(ASHLAR);
            refused(command.args(arguments).args(["--json", "--cluster"]).arg(dir), code)
        };
        run(&["osd", "stop", "1"], "several_hosts");
        let error = run(&["osd", "start", "1"], "several_hosts");
        assert!(error["hint"].as_str().expect("a text").contains("osd run"), "{error}");
        // Without this check any directory would be accepted as that of the first monitor.
        run(&["mon", "run", &dir.join("mon.1").display().to_string()], "not_found");
        assert_eq!(contents(dir), before);
    }
    // The directory of a cluster's first host, but without its settings.
    fs::remove_file(dir.join("cluster.toml")).expect("it is there");
    fs::create_dir(dir.join("mon.1")).expect("writable");
    fs::write(dir.join("mon.1/monitor.toml"), "id = 1\nlisten = []\n").expect("writable");
    let before = contents(dir);
    up(&["--detach"]);
    assert_eq!(contents(dir), before);
}
