//! `ashlar bench engine`: the engine of objects alone, with the loads that `bench kv` has.

use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration as StdDuration, Instant};

use base::{Duration, Lsn, PoolId};
use client::bench::{ObjectsMeasured, Records};
use cluster::message::Failure;
use engine::{
    Answer, Change, Compression, EngineEffect, EngineError, EngineEvent, EngineOp, Identity, Query,
    Rocks, Settings,
};
use serde_json::{Value, json};

use super::objects::value;
use crate::output::failure;

const FAMILY: PoolId = PoolId::FIRST;
const IDENTITY: Identity = Identity { engine: 1, store: 1 };
/// Writes in flight, as a store has several.
const WRITES_IN_FLIGHT: usize = 8;
/// Records and bytes of a part of a scan: those of a page.
const SCAN_COUNT: usize = 1000;
const SCAN_SIZE: usize = 1 << 20;

/// What is measured.
pub struct EngineLoad {
    pub records: Records,
    pub batch: u64,
    pub compression: Compression,
    pub depth: usize,
    pub memory: u64,
    pub time: StdDuration,
}

/// The engine and what waits for it.
struct Bench {
    rocks: Rocks,
    woken: Receiver<()>,
    events: Vec<EngineEvent>,
    op_last: u64,
}

/// Runs the loads in a directory, which the caller removes.
pub fn run(directory: &Path, load: &EngineLoad) -> Result<Value, Failure> {
    let cannot = |error: engine::OpenError| {
        failure("engine", error.to_string(), "choose a directory with free space")
    };
    Rocks::create(directory, IDENTITY).map_err(cannot)?;
    let settings = Settings {
        cache_size: load.memory,
        write_buffer_size: (load.memory / 4).clamp(8 << 20, 64 << 20),
        ..Settings::default()
    };
    let (wake, woken) = sync_channel(1);
    // A full channel says that a wake-up is on its way.
    let (rocks, _) = Rocks::open(directory, IDENTITY, settings, move || _ = wake.try_send(()))
        .map_err(cannot)?;
    let mut bench = Bench { rocks, woken, events: Vec::new(), op_last: 0 };
    let op = bench.op();
    let create = EngineEffect::Create { op, family: FAMILY, compression: load.compression };
    bench.rocks.submit(create);
    bench.wait_done()?;
    let fill = bench.fill(load)?;
    let op = bench.op();
    bench.rocks.submit(EngineEffect::Flush { op, family: FAMILY });
    bench.wait_done()?;
    let disk_bytes = size_of(directory);
    let get = bench.get(load)?;
    let scan = bench.scan()?;
    Ok(json!({
        "fill": value(&fill, None),
        "get": value(&get, None),
        "scan": value(&scan, None),
        "disk_bytes": disk_bytes,
    }))
}

impl Bench {
    fn op(&mut self) -> EngineOp {
        self.op_last += 1;
        EngineOp(self.op_last)
    }

    /// Waits for an event.
    fn next(&mut self) -> EngineEvent {
        loop {
            if let Some(event) = self.events.pop() {
                return event;
            }
            self.rocks.take_events(&mut self.events);
            self.events.reverse();
            if self.events.is_empty() {
                let _ = self.woken.recv();
            }
        }
    }

    /// Waits for the end of a request that is no read.
    fn wait_done(&mut self) -> Result<EngineOp, Failure> {
        loop {
            match self.next() {
                EngineEvent::Done { op, result } => {
                    return result.map(|()| op).map_err(|error| failed(&error));
                }
                EngineEvent::Poisoned { text } => {
                    return Err(failed(&EngineError::Poisoned { text }));
                }
                EngineEvent::Read { .. }
                | EngineEvent::Flushed { .. }
                | EngineEvent::Space { .. }
                | EngineEvent::Statistics { .. } => {}
            }
        }
    }

    /// Writes each record once.
    fn fill(&mut self, load: &EngineLoad) -> Result<ObjectsMeasured, Failure> {
        let (mut measured, mut open) = (ObjectsMeasured::default(), Vec::new());
        let (start, mut next) = (Instant::now(), 0);
        while next < load.records.count || !open.is_empty() {
            if next < load.records.count && open.len() < WRITES_IN_FLIGHT {
                let behind = (next + load.batch).min(load.records.count);
                let put = |number| Change::Put {
                    key: load.records.key(number).into_bytes(),
                    value: load.records.value(number),
                };
                let changes: Vec<Change> = (next..behind).map(put).collect();
                measured.records += behind - next;
                measured.bytes += changes.iter().map(Change::size).sum::<usize>() as u64;
                next = behind;
                let op = self.op();
                let lsn = Lsn::new(op.0);
                open.push((op, Instant::now()));
                let changes = changes.into();
                self.rocks.submit(EngineEffect::Write { op, family: FAMILY, lsn, changes });
                continue;
            }
            let done = self.wait_done()?;
            let index = open.iter().position(|(op, _)| *op == done);
            let (_, since) = open.swap_remove(index.expect("it was asked"));
            measured.latencies.record(span(since));
        }
        measured.elapsed = span(start);
        Ok(measured)
    }

    /// Gets random records: from memory, if they are there, like an OSD.
    fn get(&mut self, load: &EngineLoad) -> Result<ObjectsMeasured, Failure> {
        let (mut measured, mut open) = (ObjectsMeasured::default(), Vec::new());
        let (start, mut number) = (Instant::now(), 0u64);
        loop {
            let is_over = start.elapsed() >= load.time;
            if !is_over && open.len() < load.depth {
                // Numbers far from each other.
                number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let key = load.records.key(number % load.records.count).into_bytes();
                let op = self.op();
                open.push((op, Instant::now(), key.clone()));
                self.read(op, Query::Get { key }, true);
                continue;
            }
            if open.is_empty() {
                break;
            }
            let EngineEvent::Read { op: done, result, .. } = self.next() else { continue };
            let index = open.iter().position(|(op, ..)| *op == done).expect("it was asked");
            match result {
                Err(EngineError::WouldBlock) => {
                    let query = Query::Get { key: open[index].2.clone() };
                    self.read(done, query, false);
                    continue;
                }
                Err(error) => return Err(failed(&error)),
                Ok(answers) => {
                    let (_, since, key) = open.swap_remove(index);
                    measured.latencies.record(span(since));
                    let Some(Answer::Value(Some(value))) = answers.first() else {
                        measured.absent += 1;
                        continue;
                    };
                    measured.records += 1;
                    measured.bytes += (key.len() + value.len()) as u64;
                }
            }
        }
        measured.elapsed = span(start);
        Ok(measured)
    }

    /// Reads all records in order, in parts like pages.
    fn scan(&mut self) -> Result<ObjectsMeasured, Failure> {
        let (mut measured, mut from) = (ObjectsMeasured::default(), Some(Vec::new()));
        let begin = Instant::now();
        while let Some(start) = from.take() {
            let since = Instant::now();
            let (count_max, size_max) = (SCAN_COUNT, SCAN_SIZE);
            let op = self.op();
            self.read(op, Query::Scan { start, end: None, count_max, size_max }, false);
            let answers = loop {
                if let EngineEvent::Read { result, .. } = self.next() {
                    break result.map_err(|error| failed(&error))?;
                }
            };
            measured.latencies.record(span(since));
            let Some(Answer::Records { records, more }) = answers.first() else { continue };
            measured.records += records.count() as u64;
            measured.bytes += records.size() as u64;
            from = records.last_key().filter(|_| *more).map(|last| [last, &[0]].concat());
        }
        measured.elapsed = span(begin);
        Ok(measured)
    }

    fn read(&mut self, op: EngineOp, query: Query, from_memory: bool) {
        let queries = vec![query];
        self.rocks.submit(EngineEffect::Read { op, family: FAMILY, queries, from_memory });
    }
}

fn failed(error: &EngineError) -> Failure {
    failure("engine", error.to_string(), "choose a directory with free space")
}

fn span(since: Instant) -> Duration {
    Duration::from_nanos(u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX))
}

/// Returns the bytes of the files below a directory.
fn size_of(directory: &Path) -> u64 {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size_of(&entry.path()),
        metadata => metadata.map_or(0, |metadata| metadata.len()),
    };
    entries.map(size).sum()
}
