//! `ashlar bench disk`: the store on a scratch file, driven by the reactor as in an OSD.
//!
//! The load resembles that of one PG: versions grow without gaps, data has checksums as if from a client,
//! and reads verify the checksums. This measures the store and io_uring without the network.

use std::path::Path;

use base::hash::stripe_hash;
use base::histogram::Histogram;
use base::{
    BlockSize, Buffer, Checksum, Duration, Epoch, ImageId, PgId, PoolId, StripeIndex, Time,
    Version, checksum,
};
use blockstore::{
    AsOf, BlockKey, CommitMode, CreateOptions, Effect, Event, RecoveryReport, Request, RequestId,
    Settings, Store, StoreId,
};
use client::bench::{Load, Places};
use cluster::message::Failure;
use format::door::DiskEffect;
use io::{Disk, Event as IoEvent, Reactor};

use super::measured::{Measured, span_of};
use crate::daemon::no_reactor;
use crate::output::{failure, size_text};

const BLOCK_SIZE: BlockSize = BlockSize::DEFAULT;
const PG: PgId = PgId { pool: PoolId::FIRST, number: 0 };

/// The result of measuring a store.
pub struct StoreMeasured {
    /// Latencies, duration and processor time of the load.
    pub load: Measured,
    /// Bytes written to the device during the load, including journal and checkpoints.
    pub device_bytes: u64,
    /// How long the store took to reopen right after the load.
    pub recovery: Duration,
    /// What recovery read during that reopen.
    pub recovered: RecoveryReport,
}

/// Creates a store in a new file of `size` bytes, measures it, and reopens it as after a crash.
pub fn run(
    path: &Path,
    size: u64,
    commit: CommitMode,
    load: Load,
) -> Result<StoreMeasured, Failure> {
    let cannot =
        |error: io::Error| failure("io", error.to_string(), "choose a directory with free space");
    let directory = path.parent().unwrap_or(Path::new("."));
    let sector_size = io::probe(directory).map_err(cannot)?.sector_size;
    let options = CreateOptions {
        cluster: base::ClusterId::new(0),
        osd: base::OsdId::FIRST,
        store: StoreId::new(u128::from_le_bytes(io::random_bytes())),
        size,
        sector_size,
        commit,
        engine: None,
    };
    let created = blockstore::create(&options)
        .map_err(|error| failure("invalid", error.to_string(), "choose another --size"))?;
    let store =
        io::NewStore { zero: &created.zero, clear: &created.clear, images: &created.images };
    io::prepare(path, size, &store, &mut |_, _| {}).map_err(cannot)?;
    let mut bench = Bench::open(path, size)?;
    // Use the same range of the file as the raw load. Each block is written once first, so that no operation
    // has to allocate space.
    let range = (bench.space / 2).min(io::bench::RANGE_SIZE_MAX);
    if range < load.block_size {
        let message = format!("--size {} is too small for --block-size", size_text(size));
        return Err(failure("invalid", message, "one operation must fit into half of the store"));
    }
    let places = Places::new(range, load.block_size);
    bench.fill(&places, load.block_size)?;
    bench.written_bytes = 0;
    let load = bench.measure(places, load)?;
    let device_bytes = bench.written_bytes;
    drop(bench);
    let began = io::now();
    let bench = Bench::open(path, size)?;
    let recovery = io::now().since(began);
    Ok(StoreMeasured { load, device_bytes, recovery, recovered: bench.store.recovery_report() })
}

struct Bench {
    reactor: Reactor,
    store: Store,
    effects: Vec<Effect>,
    events: Vec<IoEvent>,
    /// The operations in flight: for each, how many of its parts are not done yet, and its start time.
    flights: Vec<Flight>,
    counter: u64,
    data: Buffer,
    checksums: Vec<Checksum>,
    /// Number of bytes of data that the store can hold.
    space: u64,
    opened: bool,
    /// Bytes written to the device.
    written_bytes: u64,
}

#[derive(Clone, Copy)]
struct Flight {
    began: Time,
    parts_missing: u32,
}

impl Bench {
    fn open(path: &Path, size: u64) -> Result<Bench, Failure> {
        let mut reactor = Reactor::new(io::Options::default()).map_err(no_reactor)?;
        let disk = Disk::open(path).map_err(|error| {
            failure("io", error.to_string(), "choose a directory with free space")
        })?;
        let settings = Settings { is_sparse: !disk.is_device(), ..Settings::default() };
        reactor.attach_disk(disk);
        let mut effects = Vec::new();
        let pool = reactor.pool().clone();
        let store = Store::open(settings, pool.clone(), size, &mut effects);
        let mut data = pool.take(BLOCK_SIZE.bytes() as usize);
        for (index, byte) in data.iter_mut().enumerate() {
            *byte = (index * 31 / 7) as u8;
        }
        let data = data.freeze();
        let mut checksums = Vec::new();
        checksum::checksum_units(&data, &mut checksums);
        let mut bench = Bench {
            reactor,
            store,
            effects,
            events: Vec::new(),
            flights: Vec::new(),
            counter: 0,
            data,
            checksums,
            space: 0,
            opened: false,
            written_bytes: 0,
        };
        while !bench.opened {
            bench.turn(&mut |_, _| {})?;
        }
        bench.space = bench.store.space().free_bytes;
        Ok(bench)
    }

    /// Submits to the store, then runs one turn of the reactor unless operations have already finished. Calls
    /// `done` for each operation that finished.
    fn turn(&mut self, done: &mut dyn FnMut(usize, Time)) -> Result<(), Failure> {
        self.store.submit(&mut self.effects);
        if self.carry_out(done)? {
            return Ok(());
        }
        self.reactor.turn(self.store.deadline(), &mut self.events).map_err(no_reactor)?;
        let now = self.reactor.now();
        for event in self.events.drain(..) {
            if let IoEvent::Disk(event) = event {
                self.store.apply(now, Event::Disk(event), &mut self.effects);
            }
        }
        if self.store.deadline().is_some_and(|deadline| deadline <= now) {
            self.store.apply(now, Event::Tick, &mut self.effects);
        }
        self.store.submit(&mut self.effects);
        self.carry_out(done).map(|_| ())
    }

    /// Carries out the effects of the store. Returns whether an operation finished.
    fn carry_out(&mut self, done: &mut dyn FnMut(usize, Time)) -> Result<bool, Failure> {
        let mut ended = false;
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Disk(effect) => {
                    if let DiskEffect::Write { buffers, .. } = &effect {
                        self.written_bytes +=
                            buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
                    }
                    self.reactor.disk(effect);
                }
                Effect::Engine(_) => unreachable!("the store of a bench has no engine"),
                Effect::Opened => {
                    self.opened = true;
                    ended = true;
                }
                Effect::Stopped { reason } => {
                    return Err(failure(
                        "store",
                        reason,
                        "check whether the disk is full or broken",
                    ));
                }
                Effect::Done { result: Err(error), .. } => {
                    let message = format!("the store refused a request: {error:?}");
                    return Err(failure("store", message, "use a larger --size"));
                }
                Effect::Done { id, result: Ok(_) } => {
                    self.part_done(id, done);
                    ended = true;
                }
            }
        }
        self.effects = effects;
        Ok(ended)
    }

    fn part_done(&mut self, id: RequestId, done: &mut dyn FnMut(usize, Time)) {
        let slot = (id.0 >> 32) as usize;
        let flight = &mut self.flights[slot];
        assert!(flight.parts_missing > 0);
        flight.parts_missing -= 1;
        if flight.parts_missing == 0 {
            done(slot, flight.began);
        }
    }

    /// Starts an operation on bytes [offset, offset + length) of the image.
    fn start(&mut self, slot: usize, is_read: bool, offset: u64, length: u64) {
        let now = self.reactor.now();
        let block = BLOCK_SIZE.bytes();
        let (first, last) = (offset / block, (offset + length - 1) / block);
        self.flights[slot] = Flight { began: now, parts_missing: (last - first + 1) as u32 };
        for stripe in first..=last {
            let from = offset.max(stripe * block) - stripe * block;
            let to = (offset + length).min((stripe + 1) * block) - stripe * block;
            let id = RequestId((slot as u64) << 32 | (stripe - first));
            let stripe = StripeIndex::new(stripe as u32);
            let hash = stripe_hash(ImageId::FIRST, stripe);
            let key = BlockKey { pool: PG.pool, hash, image: ImageId::FIRST, stripe };
            let request = if is_read {
                Request::Read {
                    key,
                    offset: from as u32,
                    length: (to - from) as u32,
                    as_of: AsOf::View,
                }
            } else {
                self.counter += 1;
                let units = (to - from) as usize / base::UNIT_SIZE as usize;
                // Do what a client and a primary do: compute checksums, and verify them on arrival.
                let data = self.data.slice(0..(to - from) as usize);
                let checksums = self.checksums[..units].to_vec();
                assert!(checksum::first_mismatch(&data, &checksums).is_none());
                Request::Write {
                    pg: PG,
                    key,
                    block_size: BLOCK_SIZE,
                    version: Version { epoch: Epoch::new(1), counter: self.counter },
                    offset: from as u32,
                    checksums,
                    data,
                    lazy: false,
                }
            };
            let event = Event::Request { id, request };
            self.store.apply(now, event, &mut self.effects);
        }
    }

    /// Writes every block of the range once.
    fn fill(&mut self, places: &Places, block_size: u64) -> Result<(), Failure> {
        self.flights = vec![Flight { began: Time::ZERO, parts_missing: 0 }; 1];
        let step = BLOCK_SIZE.bytes().max(block_size);
        let mut offset = 0;
        while offset < places.size() {
            let mut ended = false;
            self.start(0, false, offset, step.min(places.size() - offset));
            while !ended {
                self.turn(&mut |_, _| ended = true)?;
            }
            offset += step;
        }
        Ok(())
    }

    fn measure(&mut self, mut places: Places, load: Load) -> Result<Measured, Failure> {
        let is_read = load.kind.is_read();
        let linear = load.kind.is_linear();
        let time = span_of(&load);
        self.flights = vec![Flight { began: Time::ZERO, parts_missing: 0 }; load.depth];
        let mut histogram = Histogram::default();
        let (began, cpu) = (self.reactor.now(), io::bench::cpu_time());
        for slot in 0..load.depth {
            self.start(slot, is_read, places.next(linear), load.block_size);
        }
        let mut ended = Vec::new();
        let mut open = load.depth;
        while open > 0 {
            self.turn(&mut |slot, began| ended.push((slot, began)))?;
            let now = self.reactor.now();
            for (slot, flight_began) in ended.drain(..) {
                histogram.record(now.since(flight_began));
                if now.since(began) >= time {
                    open -= 1;
                } else {
                    self.start(slot, is_read, places.next(linear), load.block_size);
                }
            }
        }
        let elapsed = self.reactor.now().since(began);
        let cpu = io::bench::cpu_time().since(cpu);
        Ok(Measured { histogram, elapsed, cpu: Some(cpu), block_size: load.block_size })
    }
}
