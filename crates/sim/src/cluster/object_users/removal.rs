//! Many objects are removed while a client writes to a volume, one write at a time.
//!
//! The simulated disks and network take time, the engine's requests up to 0.2 ms each, whatever they hold, and
//! processors none. So this finds writes that wait for something of the removal: for a place in the journal, for an
//! engine that lags, for a timer. `make bench` measures how long real processors and engines take.

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, MIB, SessionId};
use objects::{Name, ObjectChange, ObjectSteps, Operation, StepResult};
use volume::VolumeHandle;

use super::super::client::Handle;
use super::super::net::Weather;
use super::super::object_history::{End, What};
use super::super::operator::Job;
use super::super::plan::Pools;
use super::super::volume_model::{Shape, Volume};
use super::super::world::{Stage, WHOLE_FOR, World};
use super::{ObjectPool, UserStage};
use crate::outcome::Run;
use crate::random::Chance;

/// The number of objects.
const OBJECT_COUNT: usize = 20_000;
/// One object in so many has data in a block; the data of the others lies in the engine.
const LONG_EVERY: usize = 100;
/// The number of objects that are put together, at most.
const PUT_COUNT: usize = 50;
/// The number of operations on objects in flight.
const DEPTH: usize = 32;
/// The mean latencies of disks and messages, in nanoseconds: with them the removal takes longer than a write
/// may.
const DISK_LATENCY: u64 = 500_000;
const NET_LATENCY: u64 = 200_000;
/// The number of units of the volume.
const UNIT_COUNT: u64 = 1000;
/// The size of each OSD's journal: the records of the removals do not fit.
const JOURNAL_SIZE: u64 = 2 * MIB;

const WRITER: usize = 0;
const REMOVER: usize = 1;

/// Returns a cluster without faults that has a pool of objects and a pool of volumes, each with several
/// copies. `None`: this seed has another one.
fn cluster_of(seed: u64) -> Option<World> {
    let mut world = World::new(Run { seed, verbose: false }, Pools::Copies);
    let is_wanted = world.objects.is_some() && world.plan.position_count() > 1;
    if !is_wanted || world.plan.may_fill() {
        return None;
    }
    let plan = &mut world.plan;
    (plan.slow_disk, plan.patience, plan.prefills) = (Chance::NEVER, None, false);
    (plan.disk_latency, plan.journal_size) = (DISK_LATENCY, JOURNAL_SIZE);
    plan.checkpoint_after_bytes = JOURNAL_SIZE / 4;
    plan.has_small_limits = false;
    world.net.set_weather(Weather { latency: NET_LATENCY, ..plan.weather.calm() });
    Some(world)
}

fn name(number: usize) -> Name {
    Name::new(format!("object {number}").as_bytes()).expect("neither empty nor long")
}

/// Returns operations that put all objects, many together.
fn puts(pool: &ObjectPool) -> VecDeque<Operation> {
    let mut operations = VecDeque::new();
    let mut of_pgs: BTreeMap<u32, Vec<ObjectSteps>> = BTreeMap::new();
    for number in 0..OBJECT_COUNT {
        let is_long = number % LONG_EVERY == 0;
        let data = vec![number as u8; if is_long { 33 << 10 } else { 100 }];
        let name = name(number);
        let pg = pool.history.pg_of(&name);
        let changes = vec![ObjectChange::Put(data)];
        let steps = ObjectSteps { name, assertions: Vec::new(), changes };
        if is_long {
            operations.push_back(Operation { objects: vec![steps] });
            continue;
        }
        let group = of_pgs.entry(pg).or_default();
        group.push(steps);
        if group.len() == PUT_COUNT {
            operations.push_back(Operation { objects: std::mem::take(group) });
        }
    }
    let rest = of_pgs.into_values().filter(|group| !group.is_empty());
    operations.extend(rest.map(|objects| Operation { objects }));
    operations
}

fn removals() -> VecDeque<Operation> {
    let changes = || vec![ObjectChange::Remove];
    let steps =
        |number| ObjectSteps { name: name(number), assertions: Vec::new(), changes: changes() };
    (0..OBJECT_COUNT).map(|number| Operation { objects: vec![steps(number)] }).collect()
}

impl World {
    fn pool(&self) -> &ObjectPool {
        self.objects.as_ref().expect("chosen for it")
    }

    /// Opens the pool of objects at a client.
    fn open_pool_at(&mut self, client: usize) -> Result<(VolumeHandle, SessionId), String> {
        self.open_objects(client)?;
        let opened = |world: &World| match world.pool().users[client].pool {
            Some((handle, UserStage::Open(session))) => Some((handle, session)),
            _ => None,
        };
        self.wait("an object pool is never opened", |world| opened(world).is_some())?;
        Ok(opened(self).expect("just seen"))
    }

    /// Creates a volume and attaches it to the writer.
    fn attach_new_volume(&mut self) -> Result<Handle, String> {
        let shape = Shape::new(self.plan.scheme, self.plan.block_size, self.plan.pg_count);
        self.volumes.push(Volume::new("v".to_string(), 1, UNIT_COUNT, shape));
        self.operator.jobs.push_back(Job::Create(0));
        self.wait("a volume is never created", |world| world.operator.jobs.is_empty())?;
        let attached = self.attach_for(WRITER, 0, Some(true))?;
        attached.ok_or_else(|| "the volume cannot be attached".to_string())
    }

    /// Executes operations on objects, many at a time, and lets the writer write all the while, if there
    /// is one. Returns how long each of its writes took.
    fn execute_all(
        &mut self,
        (pool, session): (VolumeHandle, SessionId),
        mut operations: VecDeque<Operation>,
        writer: Option<Handle>,
    ) -> Result<Vec<Duration>, String> {
        let (mut took, mut asked_at) = (Vec::new(), None);
        while !operations.is_empty() || self.pool().is_asked() {
            while self.pool().users[REMOVER].open.len() < DEPTH
                && let Some(operation) = operations.pop_front()
            {
                self.ask_change(REMOVER, pool, session, operation)?;
            }
            if let Some(to) = writer.filter(|_| self.clients[WRITER].open.is_empty()) {
                took.extend(asked_at.replace(self.now).map(|at| self.now.since(at)));
                let unit = self.work.below(to.units);
                self.ask_write(to.client, to.handle, to.volume, unit * 8..unit * 8 + 8)?;
            }
            self.step()?;
        }
        self.wait("a write is never answered", |world| world.clients[WRITER].open.is_empty())?;
        took.extend(asked_at.map(|at| self.now.since(at)));
        Ok(took)
    }

    /// Returns how many removals found an object.
    fn removed_count(&self) -> usize {
        let found = self.pool().history.asks.iter().filter(|ask| {
            let What::Change { operation, .. } = &ask.what else { return false };
            let Some((_, End::Changed { results, .. })) = &ask.end else { return false };
            operation.objects[0].changes == [ObjectChange::Remove]
                && *results == [StepResult::Removed(true)]
        });
        found.count()
    }
}

/// Removes many objects beside a client that writes. Returns how long each of its writes took; `None`: the
/// cluster of this seed has no pool of objects with copies.
pub fn run(seed: u64) -> Option<Result<Vec<Duration>, String>> {
    cluster_of(seed).map(writes_beside_removal)
}

fn writes_beside_removal(mut world: World) -> Result<Vec<Duration>, String> {
    world.build()?;
    // Users do nothing by themselves.
    world.stage = Stage::End;
    if world.pool().plan.created_after.is_some() {
        world.operator.jobs.push_back(Job::CreateObjectPool);
    }
    let attached = world.attach_new_volume()?;
    let opened = world.open_pool_at(REMOVER)?;
    let puts = puts(world.pool());
    world.execute_all(opened, puts, None)?;
    world.get_whole(WHOLE_FOR)?;
    let took = world.execute_all(opened, removals(), Some(attached))?;
    match world.removed_count() {
        OBJECT_COUNT => Ok(took),
        count => Err(format!("{count} of {OBJECT_COUNT} objects were removed")),
    }
}
