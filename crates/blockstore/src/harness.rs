//! Test harness: a disk in memory that loses and tears writes that were not flushed, and a store on this
//! disk.

use std::collections::{BTreeMap, BTreeSet};

use base::{
    BlockSize, Buffer, BufferPool, Checksum, ClusterId, Duration, Epoch, ImageId, MIB, OsdId, PgId,
    PoolId, StripeIndex, Time, UNIT_SIZE, Version,
};
use format::disk::UnitSet;
use format::door::{DiskEffect, DiskError, DiskEvent, DiskOp};
use format::wire::Content;

use format::engine::EngineEffect;

use crate::EngineFound;
use crate::{
    Answer, AsOf, BlockKey, CommitMode, CreateOptions, Effect, Event, Request, RequestId, Settings,
    Store, StoreError, StoreId, create,
};

pub const SIZE: u64 = 128 * MIB;
const PAGE: u64 = 4096;
const SECTOR: usize = 512;

/// A small deterministic random number generator.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

#[derive(Clone, Default)]
pub struct Bytes(BTreeMap<u64, Vec<u8>>);

impl Bytes {
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        let mut at = 0;
        while at < to.len() {
            let place = offset + at as u64;
            let (page, within) = (place / PAGE, (place % PAGE) as usize);
            let count = (PAGE as usize - within).min(to.len() - at);
            match self.0.get(&page) {
                Some(bytes) => to[at..at + count].copy_from_slice(&bytes[within..within + count]),
                None => to[at..at + count].fill(0),
            }
            at += count;
        }
    }

    pub fn write(&mut self, offset: u64, from: &[u8]) {
        let mut at = 0;
        while at < from.len() {
            let place = offset + at as u64;
            let (page, within) = (place / PAGE, (place % PAGE) as usize);
            let count = (PAGE as usize - within).min(from.len() - at);
            let piece = &from[at..at + count];
            // Zeros take no memory where nothing has been written before.
            if self.0.contains_key(&page) || piece.iter().any(|byte| *byte != 0) {
                let bytes = self.0.entry(page).or_insert_with(|| vec![0; PAGE as usize]);
                bytes[within..within + count].copy_from_slice(piece);
            }
            at += count;
        }
    }
}

/// An operation in flight.
pub enum Op {
    Read(u64, base::BufferMut),
    Write(u64, Vec<u8>, bool),
    Flush(usize),
    Reserve(u64, u64),
    Discard(u64, u64),
}

/// A file system with little space, which holds the store as a sparse file.
#[derive(Clone)]
pub struct Host {
    pub free_bytes: u64,
    /// Pages of the file that have space allocated.
    held: BTreeSet<u64>,
}

impl Host {
    /// Creates a file system whose file has space only for the part before the data area.
    pub fn new(data_offset: u64, free_bytes: u64) -> Host {
        Host { free_bytes, held: (0..data_offset / PAGE).collect() }
    }

    /// Allocates space for a range, as far as the file system has free space. Returns whether the whole range
    /// got space.
    fn take(&mut self, offset: u64, length: u64) -> bool {
        for page in offset / PAGE..(offset + length).div_ceil(PAGE) {
            if self.held.contains(&page) {
                continue;
            }
            if self.free_bytes < PAGE {
                return false;
            }
            self.free_bytes -= PAGE;
            self.held.insert(page);
        }
        true
    }

    fn give(&mut self, offset: u64, length: u64) {
        for page in offset / PAGE..(offset + length) / PAGE {
            self.free_bytes += PAGE * self.held.remove(&page) as u64;
        }
    }
}

impl Op {
    pub fn is_flush(&self) -> bool {
        matches!(self, Op::Flush(_))
    }
}

/// The disk. A write is visible once it is done, and safe once it is flushed.
#[derive(Default)]
pub struct MemoryDisk {
    /// Size in bytes.
    pub size: u64,
    pub visible: Bytes,
    pub safe: Bytes,
    /// Writes that are done but not flushed.
    unsafe_writes: Vec<(u64, Vec<u8>)>,
    pub ops: BTreeMap<DiskOp, Op>,
    pub write_bytes: u64,
    pub write_count: u64,
    /// Number of upcoming writes that fail for lack of space.
    pub no_space: u32,
    /// The file system that holds the store, if the store is a file.
    pub host: Option<Host>,
    /// Whether the next write or flush fails.
    pub fails: bool,
    /// A range whose reads fail until it is written.
    pub unreadable: Option<(u64, u64)>,
    /// Number of upcoming reads that fail.
    pub read_errors: u32,
    pub read_count: u64,
    pub flush_count: u64,
    /// Ranges that were discarded: (offset, length).
    pub discarded: Vec<(u64, u64)>,
}

impl MemoryDisk {
    fn ask(&mut self, effect: DiskEffect) {
        let (op, asked) = match effect {
            DiskEffect::Read { op, offset, buffer } => (op, Op::Read(offset, buffer)),
            DiskEffect::Write { op, offset, buffers, durable } => {
                assert!(buffers.iter().all(|buffer| buffer.is_aligned_to(SECTOR)));
                assert!(buffers.iter().all(|buffer| buffer.len().is_multiple_of(SECTOR)));
                assert!(offset.is_multiple_of(SECTOR as u64));
                (op, Op::Write(offset, buffers.iter().flat_map(|b| b.to_vec()).collect(), durable))
            }
            DiskEffect::Flush { op } => (op, Op::Flush(self.unsafe_writes.len())),
            DiskEffect::Reserve { op, offset, length } => (op, Op::Reserve(offset, length)),
            DiskEffect::Discard { op, offset, length } => (op, Op::Discard(offset, length)),
        };
        assert!(self.ops.insert(op, asked).is_none());
    }

    /// Returns the first outstanding write whose offset matches.
    pub fn find_write(&self, is_it: impl Fn(u64) -> bool) -> Option<usize> {
        self.ops.values().position(|op| matches!(op, Op::Write(offset, ..) if is_it(*offset)))
    }

    /// Simulates a power loss in which everything that was not flushed is lost.
    pub fn lose_all(&mut self) {
        self.ops.clear();
        self.unsafe_writes.clear();
        self.visible = self.safe.clone();
    }

    /// Returns the disk as the end of the process would leave it.
    pub fn copy(&self) -> MemoryDisk {
        let visible = self.visible.clone();
        MemoryDisk { size: self.size, safe: visible.clone(), visible, ..MemoryDisk::default() }
    }

    /// Completes the operation with this index.
    pub fn end(&mut self, index: usize) -> DiskEvent {
        let op = *self.ops.keys().nth(index).expect("it is outstanding");
        let asked = self.ops.remove(&op).expect("it is outstanding");
        let mut result = Ok(());
        match asked {
            Op::Read(offset, mut buffer) => {
                self.visible.read(offset, &mut buffer);
                let end = offset + buffer.len() as u64;
                self.read_count += 1;
                if self.read_errors > 0 {
                    self.read_errors -= 1;
                    result = Err(DiskError::Io("medium error".to_owned()));
                }
                if self.unreadable.is_some_and(|(from, to)| from < end && offset < to) {
                    result = Err(DiskError::Io("medium error".to_owned()));
                }
                return DiskEvent::Read { op, buffer, result };
            }
            Op::Write(..) | Op::Flush(_) if self.fails => {
                result = Err(DiskError::Io("medium error".to_owned()));
            }
            Op::Write(..) if self.no_space > 0 => {
                self.no_space -= 1;
                result = Err(DiskError::NoSpace);
            }
            Op::Write(offset, ref bytes, _) if !self.has_space(offset, bytes.len() as u64) => {
                result = Err(DiskError::NoSpace);
            }
            Op::Reserve(offset, length) => {
                if !self.has_space(offset, length) {
                    result = Err(DiskError::NoSpace);
                }
            }
            Op::Write(offset, bytes, durable) => {
                self.write_count += 1;
                let end = offset + bytes.len() as u64;
                self.unreadable =
                    self.unreadable.filter(|(from, to)| *to <= offset || end <= *from);
                self.write_bytes += bytes.len() as u64;
                self.visible.write(offset, &bytes);
                match durable {
                    true => self.safe.write(offset, &bytes),
                    false => self.unsafe_writes.push((offset, bytes)),
                }
            }
            Op::Flush(count) => {
                self.flush_count += 1;
                for (offset, bytes) in self.unsafe_writes.drain(..count) {
                    self.safe.write(offset, &bytes);
                }
                for other in self.ops.values_mut() {
                    if let Op::Flush(other) = other {
                        *other = other.saturating_sub(count);
                    }
                }
            }
            Op::Discard(offset, length) => {
                self.discarded.push((offset, length));
                if let Some(host) = &mut self.host {
                    host.give(offset, length);
                }
                // The content of a discarded range is unspecified.
                self.visible.write(offset, &vec![0xdd; length as usize]);
                self.safe.write(offset, &vec![0xdd; length as usize]);
            }
        }
        DiskEvent::Done { op, result }
    }

    fn has_space(&mut self, offset: u64, length: u64) -> bool {
        self.host.as_mut().is_none_or(|host| host.take(offset, length))
    }

    /// Simulates a power loss. Of the sectors that were not flushed, each is either written or lost.
    pub fn crash(&mut self, random: &mut Random) {
        let mut unsafe_writes = std::mem::take(&mut self.unsafe_writes);
        for (_, op) in std::mem::take(&mut self.ops) {
            if let Op::Write(offset, bytes, _) = op {
                unsafe_writes.push((offset, bytes));
            }
        }
        for (offset, bytes) in unsafe_writes {
            let share = random.below(4);
            for (index, sector) in bytes.chunks(SECTOR).enumerate() {
                if random.below(3) < share {
                    self.safe.write(offset + (index * SECTOR) as u64, sector);
                }
            }
        }
        self.visible = self.safe.clone();
    }

    /// Overwrites bytes on the disk.
    pub fn overwrite(&mut self, offset: u64, bytes: &[u8]) {
        self.visible.write(offset, bytes);
        self.safe.write(offset, bytes);
    }

    pub fn flip(&mut self, offset: u64) {
        let mut byte = [0];
        self.visible.read(offset, &mut byte);
        self.overwrite(offset, &[byte[0] ^ 0x40]);
    }
}

/// A store on a disk.
pub struct Bench {
    pub disk: MemoryDisk,
    pub store: Store,
    pub pool: BufferPool,
    pub random: Random,
    pub now: Time,
    pub settings: Settings,
    pub answers: BTreeMap<RequestId, Result<Answer, StoreError>>,
    pub opened: bool,
    pub stopped: Option<String>,
    request_last: u64,
    pub counter: u64,
    /// The epoch of the versions that the bench assigns.
    pub epoch: Epoch,
    /// Requests to the engine that the test has not taken.
    pub engine_effects: Vec<EngineEffect>,
    effects: Vec<Effect>,
}

pub fn options(commit: CommitMode, sector_size: u32) -> CreateOptions {
    CreateOptions {
        cluster: ClusterId::new(1),
        osd: OsdId::FIRST,
        store: StoreId::new(77),
        size: SIZE,
        sector_size,
        commit,
        engine: None,
    }
}

pub fn settings() -> Settings {
    Settings { memory_bytes: 16 * MIB, ..Settings::default() }
}

pub fn created(options: &CreateOptions) -> MemoryDisk {
    let mut disk = MemoryDisk { size: options.size, ..MemoryDisk::default() };
    for (offset, image) in create(options).expect("the options are sound").images {
        disk.overwrite(offset, &image);
    }
    disk
}

pub const PG: PgId = PgId { pool: PoolId::FIRST, number: 3 };

pub fn key(number: u32) -> BlockKey {
    let stripe = StripeIndex::new(number);
    let hash = base::hash::stripe_hash(ImageId::FIRST, stripe);
    BlockKey { pool: PoolId::FIRST, hash, image: ImageId::FIRST, stripe }
}

/// Returns the content of a unit written with this tag.
pub fn unit(tag: u64) -> Vec<u8> {
    (0..UNIT_SIZE / 8)
        .flat_map(|word| (tag.wrapping_mul(31).wrapping_add(word)).to_le_bytes())
        .collect()
}

impl Bench {
    pub fn new(commit: CommitMode) -> Bench {
        Bench::on(created(&options(commit, 512)), settings(), 1)
    }

    /// Opens a store on a disk.
    pub fn on(disk: MemoryDisk, settings: Settings, seed: u64) -> Bench {
        let mut bench = Bench::begin(disk, settings, seed, u64::MAX);
        bench.run();
        bench.counter = bench.store.last_version(PG).counter;
        bench
    }

    /// Begins to open a store, and completes `steps` operations.
    pub fn begin(disk: MemoryDisk, settings: Settings, seed: u64, steps: u64) -> Bench {
        Bench::begin_with(disk, settings, seed, (steps, None))
    }

    /// Opens a store with this engine, whose part the test plays.
    pub fn with_engine(disk: MemoryDisk, engine: EngineFound) -> Bench {
        let mut bench = Bench::begin_with(disk, settings(), 1, (u64::MAX, Some(engine)));
        bench.run();
        bench
    }

    /// Begins to open a store with or without an engine, and completes `steps` operations.
    pub fn begin_with(
        disk: MemoryDisk,
        settings: Settings,
        seed: u64,
        (steps, engine): (u64, Option<EngineFound>),
    ) -> Bench {
        let pool = BufferPool::default();
        let mut effects = Vec::new();
        let device = (disk.size, engine);
        let store = Store::open_with(settings.clone(), pool.clone(), device, &mut effects);
        let mut bench = Bench {
            disk,
            store,
            pool,
            random: Random::new(seed),
            now: Time::ZERO,
            settings,
            answers: BTreeMap::new(),
            opened: false,
            stopped: None,
            request_last: 0,
            counter: 0,
            epoch: Epoch::new(1),
            engine_effects: Vec::new(),
            effects,
        };
        bench.take_effects();
        for _ in 0..steps {
            if !bench.step() {
                break;
            }
        }
        bench
    }

    fn take_effects(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            assert!(self.stopped.is_none(), "no effect follows Stopped");
            match effect {
                Effect::Disk(effect) => self.disk.ask(effect),
                Effect::Engine(effect) => self.engine_effects.push(effect),
                Effect::Opened => self.opened = true,
                Effect::Done { id, result } => {
                    assert!(self.answers.insert(id, result).is_none(), "answered twice");
                }
                Effect::Stopped { reason } => self.stopped = Some(reason),
            }
        }
    }

    pub fn apply(&mut self, event: Event) {
        self.now = self.now + Duration::from_micros(10);
        self.store.apply(self.now, event, &mut self.effects);
        self.take_effects();
    }

    pub fn submit(&mut self) {
        self.store.submit(&mut self.effects);
        self.take_effects();
    }

    /// Runs until only discards are outstanding.
    pub fn run_but_discards(&mut self) {
        self.submit();
        let is_other = |op: &Op| !matches!(op, Op::Discard(..));
        while let Some(index) = self.disk.ops.values().position(is_other) {
            let event = self.disk.end(index);
            self.apply(Event::Disk(event));
            self.submit();
        }
    }

    /// Completes one operation, chosen at random. Returns false if none is outstanding.
    pub fn step(&mut self) -> bool {
        if self.disk.ops.is_empty() || self.stopped.is_some() {
            return false;
        }
        let index = self.random.below(self.disk.ops.len() as u64) as usize;
        let event = self.disk.end(index);
        self.apply(Event::Disk(event));
        true
    }

    /// Runs until no operation is outstanding and the store has no immediate work.
    pub fn run(&mut self) {
        loop {
            self.submit();
            let is_due = self.store.deadline().is_some_and(|at| at <= self.now);
            if is_due && self.stopped.is_none() {
                self.apply(Event::Tick);
            } else if !self.step() {
                break;
            }
        }
    }

    /// Lets time pass, and then runs.
    pub fn pass(&mut self, span: Duration) {
        self.now = self.now + span;
        self.apply(Event::Tick);
        self.run();
    }

    /// Simulates a power loss, then `count` more while the store recovers; then opens the store.
    pub fn crash_often(self, count: u64) -> Bench {
        let Bench { mut disk, settings, mut random, counter, epoch, .. } = self;
        for _ in 0..count {
            disk.crash(&mut random);
            let seed = random.below(u64::MAX);
            let steps = random.below(60);
            disk = Bench::begin(disk, settings.clone(), seed, steps).disk;
        }
        disk.crash(&mut random);
        let seed = random.below(u64::MAX);
        Bench { counter, epoch, ..Bench::on(disk, settings, seed) }
    }

    /// Simulates a power loss, and opens the store again.
    pub fn crash(self) -> Bench {
        let Bench { mut disk, settings, mut random, counter, epoch, .. } = self;
        disk.crash(&mut random);
        let seed = random.below(u64::MAX);
        Bench { counter, epoch, ..Bench::on(disk, settings, seed) }
    }

    /// Ends the process; all finished writes stay on the disk. The disk can be changed before [`Bench::on`].
    pub fn off(self) -> MemoryDisk {
        let mut disk = self.disk;
        disk.ops.clear();
        for (offset, bytes) in std::mem::take(&mut disk.unsafe_writes) {
            disk.safe.write(offset, &bytes);
        }
        disk
    }

    /// Returns the position of an lsn on the device.
    pub fn place(&self, lsn: base::Lsn) -> u64 {
        self.store.parts().journal.place(lsn)
    }

    pub fn tail(&self) -> base::Lsn {
        self.store.parts().journal.tail()
    }

    /// Lets the journal become idle, so that everything so far is recorded as durable.
    pub fn idle(&mut self) {
        self.run();
        self.pass(Duration::from_millis(150));
    }

    pub fn ask(&mut self, request: Request) -> RequestId {
        self.request_last += 1;
        let id = RequestId(self.request_last);
        self.apply(Event::Request { id, request });
        id
    }

    /// Moves the PG to the next epoch, as happens after a refused version.
    pub fn next_epoch(&mut self) {
        self.epoch = self.epoch.next();
    }

    pub fn next_version(&mut self) -> Version {
        self.counter += 1;
        Version { epoch: self.epoch, counter: self.counter }
    }

    /// Builds a request to write `count` units, beginning with unit `first`; unit `i` of the block gets
    /// `unit(tag + i)`.
    pub fn write_of(
        &mut self,
        number: u32,
        block_size: BlockSize,
        first: u32,
        count: u32,
        tag: u64,
    ) -> Request {
        let bytes: Vec<u8> =
            (first..first + count).flat_map(|index| unit(tag + index as u64)).collect();
        let mut checksums: Vec<Checksum> = Vec::new();
        base::checksum::checksum_units(&bytes, &mut checksums);
        Request::Write {
            pg: PG,
            key: key(number),
            block_size,
            version: self.next_version(),
            offset: first * UNIT_SIZE as u32,
            checksums,
            data: self.pool.copy_of(&bytes),
            lazy: false,
        }
    }

    /// Writes lazily.
    pub fn write_lazily(&mut self, number: u32, first: u32, count: u32, tag: u64) -> RequestId {
        let mut request = self.write_of(number, BlockSize::DEFAULT, first, count, tag);
        if let Request::Write { lazy, .. } = &mut request {
            *lazy = true;
        }
        self.ask(request)
    }

    pub fn is_written(&self, id: RequestId) -> bool {
        self.answers.get(&id) == Some(&Ok(Answer::Written))
    }

    pub fn write(&mut self, number: u32, first: u32, count: u32, tag: u64) -> RequestId {
        let request = self.write_of(number, BlockSize::DEFAULT, first, count, tag);
        self.ask(request)
    }

    pub fn zero(&mut self, number: u32, first: u32, count: u32) -> RequestId {
        let version = self.next_version();
        self.ask(Request::Zero {
            pg: PG,
            key: key(number),
            block_size: BlockSize::DEFAULT,
            version,
            offset: first * UNIT_SIZE as u32,
            length: count * UNIT_SIZE as u32,
            lazy: false,
        })
    }

    pub fn delete(&mut self, number: u32) -> RequestId {
        let version = self.next_version();
        self.ask(Request::Delete { pg: PG, key: key(number), version })
    }

    /// Builds a content that covers `units`. Each unit `i` in `written` holds `unit(tag + i)`.
    pub fn content(&self, version: Version, units: &[u32], written: &[u32], tag: u64) -> Content {
        let set = |units: &[u32]| {
            let mut set = UnitSet::EMPTY;
            units.iter().for_each(|unit| set.insert(*unit));
            set
        };
        let bytes: Vec<u8> = written.iter().flat_map(|index| unit(tag + *index as u64)).collect();
        let mut checksums = Vec::new();
        base::checksum::checksum_units(&bytes, &mut checksums);
        Content::Block {
            version,
            block_size: BlockSize::DEFAULT,
            units: set(units).words(32),
            written: set(written).words(32),
            damaged: vec![0],
            checksums,
            data: (!written.is_empty()).then(|| self.pool.copy_of(&bytes)),
            table: Vec::new(),
        }
    }

    pub fn repair(&mut self, number: u32, content: Content) -> RequestId {
        self.ask(Request::Repair { pg: PG, key: key(number), content })
    }

    pub fn prepare(
        &mut self,
        number: u32,
        version: Version,
        content: Content,
        replaces: Option<Version>,
        lazy: bool,
    ) -> RequestId {
        let key = key(number);
        self.ask(Request::Prepare { pg: PG, key, version, content, replaces, lazy })
    }

    /// Prepares the next version: `count` units, beginning with unit `first`, get `unit(tag + i)`.
    pub fn prepare_units(&mut self, number: u32, first: u32, count: u32, tag: u64) -> Version {
        let version = self.next_version();
        let units: Vec<u32> = (first..first + count).collect();
        let content = self.content(version, &units, &units, tag);
        let id = self.prepare(number, version, content, None, false);
        self.run();
        assert!(self.is_durable(id), "{:?}", self.answers.get(&id));
        version
    }

    pub fn skip(&mut self, version: Version, lazy: bool) -> RequestId {
        self.ask(Request::Skip { pg: PG, version, lazy })
    }

    pub fn commit(&mut self, upto: Version) {
        let id = self.ask(Request::Commit { pg: PG, upto });
        assert_eq!(self.answers.remove(&id), Some(Ok(Answer::Committed)), "at once");
    }

    pub fn settle(&mut self, upto: Version) -> Result<Answer, StoreError> {
        self.done(Request::Settle { pg: PG, note: None, upto })
    }

    /// Checks a unit in the state selected by `as_of`.
    pub fn assert_as_of(&mut self, as_of: AsOf, number: u32, index: u32, tag: Option<u64>) {
        let offset = index * UNIT_SIZE as u32;
        let request = Request::Read { key: key(number), offset, length: UNIT_SIZE as u32, as_of };
        match self.done(request) {
            Ok(Answer::Read { data, .. }) => {
                let expected = tag.map(|tag| unit(tag + u64::from(index)));
                let found = (!data.is_empty()).then_some(&data[..]);
                assert!(found == expected.as_deref(), "{as_of:?}, block {number}, unit {index}");
            }
            other => panic!("{other:?} is no read"),
        }
    }

    /// Returns the block as another member would receive it.
    pub fn copy(&mut self, number: u32, units: &[u64]) -> Content {
        match self.done(Request::Copy {
            key: key(number),
            units: units.to_vec(),
            as_of: AsOf::View,
        }) {
            Ok(Answer::Copy { content }) => {
                content.check().expect("it agrees with itself");
                if let Content::Block { checksums, data: Some(data), .. } = &content {
                    assert_eq!(base::checksum::first_mismatch(data, checksums), None);
                }
                content
            }
            other => panic!("{other:?} is no copy"),
        }
    }

    /// Sends a request to the store, and runs until it is answered.
    pub fn done(&mut self, request: Request) -> Result<Answer, StoreError> {
        let id = self.ask(request);
        self.run();
        self.answers.remove(&id).expect("nothing is outstanding, so it is answered")
    }

    pub fn read(
        &mut self,
        number: u32,
        first: u32,
        count: u32,
    ) -> Result<Option<Buffer>, StoreError> {
        let request = Request::Read {
            key: key(number),
            offset: first * UNIT_SIZE as u32,
            length: count * UNIT_SIZE as u32,
            as_of: AsOf::View,
        };
        match self.done(request)? {
            Answer::Read { data, checksums, .. } => {
                assert_eq!(data.len(), checksums.len() * UNIT_SIZE as usize);
                Ok((!data.is_empty()).then_some(data))
            }
            other => panic!("{other:?} is no read"),
        }
    }

    pub fn assert_unit(&mut self, number: u32, index: u32, tag: Option<u64>) {
        let data = self.read(number, index, 1).expect("it is not damaged");
        let expected = tag.map(|tag| unit(tag + index as u64));
        assert!(data.as_deref() == expected.as_deref(), "block {number}, unit {index}");
    }

    pub fn is_durable(&self, id: RequestId) -> bool {
        self.answers.get(&id) == Some(&Ok(Answer::Durable))
    }

    /// Makes a checkpoint and waits for it.
    pub fn checkpoint(&mut self) {
        self.store.parts_mut().wants_checkpoint = true;
        self.apply(Event::Tick);
        self.run();
        assert!(!self.store.has_checkpoint());
    }

    pub fn rows(&self) -> String {
        self.store.recovery_report().rows.iter().map(|(row, _)| *row).collect()
    }
}
