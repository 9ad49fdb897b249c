//! fio on a volume: random reads and writes, and a verification of everything that was written.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Cluster, finish, text_of};

/// Longer than this means that fio hangs. It reports even while it waits.
const PATIENCE: Duration = Duration::from_secs(900);

/// A random mix of reads and writes, then a verification of everything written.
pub struct Fio {
    child: Option<Child>,
    began: Instant,
    /// Bytes that it reads or writes; then it reads everything that it wrote once more.
    size: u64,
    /// Its reports, one each second and one at its end.
    reports: Receiver<Value>,
    last: Value,
}

impl Fio {
    /// Reads at 5 MB/s and writes at 7 MB/s, with a flush after every 32nd write: 384 MiB take 32
    /// seconds, plus the final reading.
    pub fn start(cluster: &Cluster, volume: &str, size: u64, seed: u32) -> Fio {
        Fio::start_at(&cluster.uri(volume), size, seed)
    }

    /// The same on a volume of any NBD server.
    pub fn start_at(uri: &str, size: u64, seed: u32) -> Fio {
        Fio::start_at_rate(uri, size, seed, 12_288 << 10)
    }

    /// The same, at this many bytes per second, reads and writes together.
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

    /// Waits for the next report. `None`: fio has exited.
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

    /// Waits for the next report. Returns whether fio has written since the report before: not if it has
    /// exited, or is reading back what it wrote.
    pub fn writes_on(&mut self) -> bool {
        self.reports.try_iter().for_each(|report| self.last = report);
        let before = self.bytes("write");
        match self.next_report() {
            Some(report) => self.last = report,
            None => return false,
        }
        self.bytes("write") > before
    }

    /// The longest wait so far for one read, write or flush, in seconds. Which of them waits is
    /// chance: fio does nothing else during a flush.
    pub fn longest_wait(&self) -> f64 {
        let longest = |kind: &str| self.last[kind]["lat_ns"]["max"].as_f64().unwrap_or(0.0);
        ["read", "write", "sync"].map(longest).into_iter().fold(0.0, f64::max) / 1e9
    }

    /// Waits until fio exits. Returns how many bytes it wrote; it has read and verified all of them.
    pub fn verified_bytes(&mut self) -> u64 {
        while let Some(report) = self.next_report() {
            self.last = report;
        }
        let child = self.child.take().expect("it is waited for once");
        let output = finish(child, Duration::from_secs(60));
        assert!(output.status.success(), "{}", text_of(&output));
        assert_eq!(self.last["error"], 0, "{:#}", self.last);
        let bytes = |direction: &str| self.last[direction]["io_bytes"].as_u64().expect("a number");
        // What the mix did not write, it read; what it wrote, it read at the end.
        let read_in_mix = self.size - bytes("write");
        assert_eq!(bytes("read") - read_in_mix, bytes("write"));
        bytes("write")
    }
}
