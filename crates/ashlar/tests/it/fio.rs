//! Runs fio on a volume: random reads and writes, and a verification of everything that was written.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Cluster, finish, text_of};

/// If fio takes longer than this, it hangs. It sends reports even while it waits.
const PATIENCE: Duration = Duration::from_secs(900);

/// A run of fio: a random mix of reads and writes, then a verification of everything written.
pub struct Fio {
    child: Option<Child>,
    began: Instant,
    /// Number of bytes that the mix reads or writes. After the mix, fio reads back everything that it wrote.
    size: u64,
    /// The reports of fio, one each second and one at the end.
    reports: Receiver<Value>,
    last: Value,
}

impl Fio {
    /// Starts fio with reads at 5 MB/s and writes at 7 MB/s, and a flush after every 32nd write: 384 MiB take
    /// 32 seconds, plus the verification.
    pub fn start(cluster: &Cluster, volume: &str, size: u64, seed: u32) -> Fio {
        Fio::start_at(&cluster.uri(volume), size, seed)
    }

    /// Starts fio at the same rate on a volume of any NBD server.
    pub fn start_at(uri: &str, size: u64, seed: u32) -> Fio {
        Fio::start_at_rate(uri, size, seed, 12_288 << 10)
    }

    /// Starts fio with this total rate of reads and writes, in bytes per second.
    pub fn start_at_rate(uri: &str, size: u64, seed: u32, rate: u64) -> Fio {
        let mut fio = Command::new("fio");
        fio.args(["--name=verify", "--ioengine=nbd", "--rw=randrw", "--rwmixread=40"]);
        fio.args(["--bssplit=4k/60:16k/20:128k/15:512k/5", "--iodepth=16"]);
        fio.args(["--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0"]);
        fio.arg("--fsync=32");
        fio.args([format!("--size={size}"), format!("--randseed={seed}")]);
        // Four of ten operations are reads.
        fio.arg(format!("--rate={},{}", rate * 4 / 10, rate * 6 / 10));
        fio.args(["--output-format=json", "--status-interval=1"]);
        fio.arg(format!("--uri={uri}"));
        fio.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = fio.spawn().expect("fio is installed");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (sender, reports) = channel();
        std::thread::spawn(move || {
            let mut text = String::new();
            for line in output.lines().map_while(Result::ok) {
                // fio prints other lines between its JSON documents.
                if line == "{" {
                    text.clear();
                }
                text.push_str(&line);
                if line == "}" {
                    let report: Value = serde_json::from_str(&text).expect("JSON");
                    let _ = sender.send(report["jobs"][0].clone());
                } else if line.starts_with("fio: ") || line.starts_with("verify: ") {
                    eprintln!("{line}");
                }
            }
        });
        Fio { child: Some(child), began: Instant::now(), size, reports, last: Value::Null }
    }

    /// Waits for the next report; returns `None` if fio has exited.
    fn next_report(&self) -> Option<Value> {
        assert!(self.began.elapsed() < PATIENCE, "after {PATIENCE:?}: {:#}", self.last);
        self.reports.recv_timeout(Duration::from_secs(120)).ok()
    }

    fn bytes(&self, direction: &str) -> u64 {
        self.last[direction]["io_bytes"].as_u64().unwrap_or(0)
    }

    /// Waits until fio has written this many bytes.
    pub fn wait_written(&mut self, bytes: u64) {
        while self.bytes("write") < bytes {
            self.last = self.next_report().expect("fio goes on");
        }
    }

    /// Waits for the next report. Returns whether fio has written since the previous report; it has not if it
    /// has exited or is already reading back.
    pub fn writes_on(&mut self) -> bool {
        self.reports.try_iter().for_each(|report| self.last = report);
        let before = self.bytes("write");
        match self.next_report() {
            Some(report) => self.last = report,
            None => return false,
        }
        self.bytes("write") > before
    }

    /// Returns the longest time so far that one read, write or flush took, in seconds. Any of the three may
    /// be the one that waits: fio does nothing else during a flush.
    pub fn longest_wait(&self) -> f64 {
        let longest = |kind: &str| self.last[kind]["lat_ns"]["max"].as_f64().unwrap_or(0.0);
        ["read", "write", "sync"].map(longest).into_iter().fold(0.0, f64::max) / 1e9
    }

    /// Waits until fio exits. Returns the number of bytes that it wrote, all of which it has read back and
    /// verified.
    pub fn verified_bytes(&mut self) -> u64 {
        while let Some(report) = self.next_report() {
            self.last = report;
        }
        let child = self.child.take().expect("it is waited for once");
        let output = finish(child, Duration::from_secs(60));
        assert!(output.status.success(), "{}", text_of(&output));
        assert_eq!(self.last["error"], 0, "{:#}", self.last);
        let bytes = |direction: &str| self.last[direction]["io_bytes"].as_u64().expect("a number");
        // The mix reads the bytes that it does not write; at the end fio reads back all that it wrote.
        let read_in_mix = self.size - bytes("write");
        assert_eq!(bytes("read") - read_in_mix, bytes("write"));
        bytes("write")
    }
}
