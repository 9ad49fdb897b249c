//! The engine of each OSD that has one: the twin of RocksDB. It loses, at a crash, any suffix of what it did not
//! flush; it carries out requests in any order that the door allows.

use base::{Duration, PoolId};
use blockstore::{EngineFound, StoreId};
use engine::{EngineEffect, EngineEvent, Identity, Twin};
use node::Engine;

use super::agenda::Item;
use super::process::Process;
use super::world::World;
use crate::random::{Chance, Random};

/// How often the engine flushes something by itself, for each of its steps.
const FLUSHES: Chance = Chance::percent(10);
/// The usual time until it carries out a request, in nanoseconds.
const LATENCY: u64 = 100_000;
/// Its file system has no space for at most so long, in nanoseconds.
const FULL_MAX: u64 = 3_000_000_000;
/// When there is space again, all others know it after this time.
const IS_KNOWN: Duration = Duration::from_secs(5);

/// What lies beside the disk of an OSD: an engine, in runs with an object pool.
pub struct OsdEngine {
    twin: Option<(Identity, Twin)>,
    random: Random,
}

impl OsdEngine {
    /// Returns the place for the engine of an OSD that is not created yet.
    pub fn new(seed: u64, index: usize) -> OsdEngine {
        OsdEngine { twin: None, random: Random::new(seed, &format!("engine {index}")) }
    }

    /// Creates the engine of this store. Requires: there is none.
    pub fn create(&mut self, store: StoreId) {
        assert!(self.twin.is_none());
        let identity = Identity { engine: u128::MAX - store.get(), store: store.get() };
        self.twin = Some((identity, Twin::create(identity)));
    }

    /// Opens the engine for a run of the OSD.
    pub fn open(&mut self) -> Engine {
        let Some((identity, twin)) = &mut self.twin else {
            return Engine::None("no OSD of this run has one".to_owned());
        };
        let families = twin.open(*identity).expect("it is this store's");
        Engine::Open(EngineFound { identity: *identity, families })
    }

    /// The process that uses it ends, in any way.
    pub fn crash(&mut self) {
        if let Some((_, twin)) = &mut self.twin {
            twin.crash(&mut |end| self.random.below(end));
        }
    }

    /// Returns whether it holds records of any pool.
    pub fn has_families(&self) -> bool {
        self.twin.as_ref().is_some_and(|(_, twin)| twin.families().next().is_some())
    }

    /// Returns its records of a pool.
    pub fn records(&self, pool: PoolId) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.twin.iter().flat_map(move |(_, twin)| twin.records(pool))
    }

    fn submit(&mut self, effect: EngineEffect) {
        let (_, twin) = self.twin.as_mut().expect("only an OSD that has it asks it");
        twin.submit(effect, &mut |end| self.random.below(end));
    }

    /// Carries out a request at once. Returns what the engine says.
    pub fn carry_out(&mut self, effect: EngineEffect) -> Vec<EngineEvent> {
        self.submit(effect);
        let (_, twin) = self.twin.as_mut().expect("it was asked for something");
        while twin.step(&mut |end| self.random.below(end)) {}
        let mut events = Vec::new();
        twin.take_events(&mut events);
        events
    }

    /// Whether its file system has no space, or has little of it.
    fn set_full(&mut self, is_full: bool) {
        let Some((_, twin)) = &mut self.twin else { return };
        twin.set_low(is_full);
        twin.set_full(is_full);
    }

    /// Lets the engine do something. Returns what it says.
    fn step(&mut self) -> Vec<EngineEvent> {
        let mut events = Vec::new();
        let (_, twin) = self.twin.as_mut().expect("it was asked for something");
        twin.step(&mut |end| self.random.below(end));
        if self.random.chance(FLUSHES) {
            twin.flush_some(&mut |end| self.random.below(end));
        }
        twin.take_events(&mut events);
        events
    }
}

impl World {
    /// Hands a request to the engine of an OSD.
    pub(super) fn submit_to_engine(
        &mut self,
        index: usize,
        effect: EngineEffect,
    ) -> Result<(), String> {
        self.note_executed(index, &effect)?;
        self.osds[index].engine.submit(effect);
        // It takes effect, and then its event is told.
        for _ in 0..2 {
            let after = 1 + self.osds[index].engine.random.below(LATENCY * 2);
            self.schedule(Duration::from_nanos(after), Item::Engine(index));
        }
        Ok(())
    }

    /// Lets the engine of an OSD do something, or takes the space of its file system.
    pub(super) fn engine_step(&mut self, index: usize) -> Result<(), String> {
        let fills = self.objects.as_ref().map_or(Chance::NEVER, |pool| pool.plan.engine_fills);
        let is_work = self.stage_is_work();
        let engine = &mut self.osds[index].engine;
        if is_work && engine.random.chance(fills) {
            engine.set_full(true);
            let after = engine.random.scale(1_000_000..FULL_MAX);
            self.tally.faults.add("engine full", 1);
            self.trace.line(format_args!("{:?} the engine of osd {index} is full", self.now));
            let after = Duration::from_nanos(after);
            self.schedule(after, Item::EngineRoom(index));
            let pool = self.objects.as_mut().expect("its engines fill");
            pool.engines_full_until = pool.engines_full_until.max(self.now + after + IS_KNOWN);
        }
        self.tell_engine(index)
    }

    /// Whether changes may be refused since the file system of an engine has no space, or had none just now.
    pub(super) fn is_engine_full(&self) -> bool {
        self.objects.as_ref().is_some_and(|pool| self.now < pool.engines_full_until)
    }

    /// The file system of an engine has space again: it goes on with what waits for that.
    pub(super) fn engine_gets_room(&mut self, index: usize) -> Result<(), String> {
        self.trace.line(format_args!("{:?} the engine of osd {index} has room", self.now));
        self.osds[index].engine.set_full(false);
        self.tell_engine(index)
    }

    fn tell_engine(&mut self, index: usize) -> Result<(), String> {
        let life = self.life(Process::Osd(index));
        for event in self.osds[index].engine.step() {
            if self.life(Process::Osd(index)) == life {
                self.apply_osd(index, node::Event::Engine(event))?;
            }
        }
        Ok(())
    }
}
