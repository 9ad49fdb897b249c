//! A store that is not running, opened with the recovery of an ordinary start. What recovery writes stays
//! in memory.
//!
//! Invariants
//!   1. Nothing is written to the device, nor to the engine.
//!   2. It reads every page and every journal entry, and makes the same decisions as a start.

use std::collections::{BTreeMap, VecDeque};

use base::{BufferPool, PoolId, Time};
use format::door::{DiskEffect, DiskError, DiskEvent};

use crate::index::KEY_FIRST;
use crate::recover::ENGINE_NEEDED;
use crate::stopped_engine::{ReadEngine, ScratchEngine};
use crate::{
    Answer, AsOf, BlockKey, Effect, Event, Request, RequestId, Settings, Store, StoreError,
};

/// Reads the device: fills the buffer from an offset in bytes, or returns the reason of the failure.
pub type ReadDevice<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<(), String>;

/// The device, overlaid with what recovery wrote in memory.
struct Scratch<'a> {
    read: ReadDevice<'a>,
    /// Written sectors of 512 bytes, by number.
    written: BTreeMap<u64, Vec<u8>>,
}

const SCRATCH_SECTOR_SIZE: u64 = 512;

impl Scratch<'_> {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        (self.read)(offset, buffer).map_err(DiskError::Io)?;
        let end = offset + buffer.len() as u64;
        let sectors =
            self.written.range(offset / SCRATCH_SECTOR_SIZE..end.div_ceil(SCRATCH_SECTOR_SIZE));
        for (number, bytes) in sectors {
            let at = (number * SCRATCH_SECTOR_SIZE - offset) as usize;
            buffer[at..at + bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for (index, sector) in bytes.chunks(SCRATCH_SECTOR_SIZE as usize).enumerate() {
            self.written.insert(offset / SCRATCH_SECTOR_SIZE + index as u64, sector.to_vec());
        }
    }

    fn done(&mut self, effect: DiskEffect) -> DiskEvent {
        match effect {
            DiskEffect::Read { op, offset, mut buffer } => {
                let result = self.read(offset, &mut buffer);
                DiskEvent::Read { op, buffer, result }
            }
            DiskEffect::Write { op, offset, buffers, .. } => {
                let mut at = offset;
                for buffer in buffers {
                    self.write(at, &buffer);
                    at += buffer.len() as u64;
                }
                DiskEvent::Done { op, result: Ok(()) }
            }
            DiskEffect::Flush { op }
            | DiskEffect::Reserve { op, .. }
            | DiskEffect::Discard { op, .. } => DiskEvent::Done { op, result: Ok(()) },
        }
    }
}

/// A store that is not running, in the state that a start would find.
pub struct StoppedStore<'a> {
    disk: Scratch<'a>,
    engine: ScratchEngine<'a>,
    store: Store,
    effects: VecDeque<Effect>,
    request_last: u64,
}

impl<'a> StoppedStore<'a> {
    /// Opens a store read-only. The error says why it cannot be opened.
    pub fn open(read: ReadDevice<'a>, device_size: u64) -> Result<StoppedStore<'a>, String> {
        StoppedStore::open_with(read, device_size, None)
    }

    /// Opens a store that may have an engine. If it has one that holds anything, that must be given.
    pub fn open_with(
        read: ReadDevice<'a>,
        device_size: u64,
        engine: Option<&'a mut dyn ReadEngine>,
    ) -> Result<StoppedStore<'a>, String> {
        let engine = ScratchEngine::new(engine);
        let mut effects = Vec::new();
        let pool = BufferPool::default();
        let device = (device_size, engine.found());
        let store = Store::open_with(Settings::default(), pool, device, &mut effects);
        let disk = Scratch { read, written: BTreeMap::new() };
        let (effects, request_last) = (effects.into(), 0);
        let mut stopped = StoppedStore { disk, engine, store, effects, request_last };
        match stopped.run() {
            Some(Effect::Opened) => Ok(stopped),
            Some(Effect::Stopped { reason }) => Err(reason),
            other => unreachable!("opening ends with Opened or Stopped, not with {other:?}"),
        }
    }

    /// Returns whether the store can do without its engine, which then holds nothing. The error says why it
    /// cannot be opened in any case.
    pub fn needs_no_engine(read: ReadDevice<'a>, device_size: u64) -> Result<bool, String> {
        match StoppedStore::open(read, device_size) {
            Ok(_) => Ok(true),
            Err(reason) if reason == ENGINE_NEEDED => Ok(false),
            Err(reason) => Err(reason),
        }
    }

    /// Returns the store, for queries that need no read.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Returns all blocks in order, tombstones included.
    pub fn keys(&self) -> impl Iterator<Item = BlockKey> + '_ {
        self.store.parts().blocks.index().iter_from(KEY_FIRST).map(|(key, _)| key)
    }

    /// Returns the pools of which the engine has records.
    pub fn families(&self) -> Vec<PoolId> {
        self.engine.families()
    }

    /// Calls `on_record` with each record of a pool, in the order of keys, as a start would find it. The
    /// error says what of the engine cannot be read.
    pub fn walk_records(
        &mut self,
        family: PoolId,
        on_record: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), String> {
        self.engine.walk(family, on_record)
    }

    /// Executes the store's operations on disk and engine until it produces another effect, and returns that
    /// effect.
    fn run(&mut self) -> Option<Effect> {
        while let Some(effect) = self.effects.pop_front() {
            let event = match effect {
                Effect::Disk(effect) => Event::Disk(self.disk.done(effect)),
                Effect::Engine(effect) => Event::Engine(self.engine.done(effect)),
                effect => return Some(effect),
            };
            self.apply(event);
        }
        None
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.store.apply(Time::ZERO, event, &mut effects);
        self.store.submit(&mut effects);
        self.effects.extend(effects);
    }

    /// Reads the first `length` bytes of a block.
    pub fn read(&mut self, key: BlockKey, length: u32) -> Result<Answer, StoreError> {
        self.read_as_of(key, AsOf::View, length)
    }

    /// Reads the first `length` bytes of a block in the state selected by `as_of`.
    pub fn read_as_of(
        &mut self,
        key: BlockKey,
        as_of: AsOf,
        length: u32,
    ) -> Result<Answer, StoreError> {
        self.ask(Request::Read { key, offset: 0, length, as_of })
    }

    /// Returns which units of a block are written, and which are damaged.
    pub fn extents(&mut self, key: BlockKey) -> Result<Answer, StoreError> {
        self.ask(Request::Extents { key, as_of: AsOf::View })
    }

    /// Reads a whole block in the state selected by `as_of`, including which units are damaged.
    pub fn copy_as_of(&mut self, key: BlockKey, as_of: AsOf) -> Result<Answer, StoreError> {
        self.ask(Request::Copy { key, units: Vec::new(), as_of })
    }

    fn ask(&mut self, request: Request) -> Result<Answer, StoreError> {
        self.request_last += 1;
        let id = RequestId(self.request_last);
        self.apply(Event::Request { id, request });
        match self.run() {
            Some(Effect::Done { result, .. }) => result,
            other => unreachable!("a read ends with an answer, not with {other:?}"),
        }
    }
}
