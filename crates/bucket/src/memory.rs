//! An index pool in memory, and a world around it, for tests: tasks that run in a random order that a seed fixes, a
//! clock that jumps from timer to timer, pauses between any two effects, clocks of gateways far apart, and
//! operations whose outcome nobody knows.
//!
//! [`Pool`] alone is enough to implement [`Door`] under a runtime with a real clock.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use base::{Epoch, Version};
use bytes::Bytes;
use objects::model::{Models, listed, model};
use objects::{Listed, Lister, Name, Operation, Page, Read, ReadAnswer, Stat, merge_pages};

use crate::door::{
    ContainerId, Door, DoorError, Executed, Layout, ListQuery, Piece, Session, UNIT,
};
use crate::names::{Group, Locator, Shards, place_of};
use crate::waiting::lock;

/// All objects of a pool.
#[derive(Default)]
pub struct Pool(Mutex<State>);

#[derive(Default)]
struct State {
    objects: Models,
    counter: u64,
}

impl Pool {
    /// Answers reads, all at this moment.
    pub fn look(&self, reads: &[Read]) -> Result<Vec<ReadAnswer>, DoorError> {
        let state = lock(&self.0);
        reads.iter().map(|read| answer(&state.objects, read)).collect()
    }

    /// Carries out an operation, or nothing of it.
    pub fn execute(&self, operation: &Operation) -> Result<Executed, DoorError> {
        operation.check().map_err(|why| DoorError::Invalid { why })?;
        let mut places = operation.objects.iter().map(|steps| place_of(steps.name.bytes()));
        let first = places.next();
        if places.any(|place| Some(place) != first) {
            let why = "objects of one operation have one group and locator".into();
            return Err(DoorError::Invalid { why });
        }
        let state = &mut *lock(&self.0);
        let version = Version { epoch: Epoch::new(1), counter: state.counter + 1 };
        match model(&mut state.objects, operation, version) {
            Ok((results, true)) => {
                state.counter += 1;
                Ok(Executed { version, results })
            }
            Ok((results, false)) => Ok(Executed { version: Version::ZERO, results }),
            Err((object, step)) => {
                let name = &operation.objects[object].name;
                let version = state.objects.get(name).map(|(version, _)| *version);
                Err(DoorError::Asserted { object, step, version })
            }
        }
    }

    /// Lists names of one locator, or of all names. `passes`: so many objects are passed at most.
    pub fn list(
        &self,
        query: &ListQuery,
        locator: Option<(Group, Locator)>,
        passes: usize,
    ) -> Page<Listed> {
        let state = lock(&self.0);
        let mut lister = Lister::new(query.listing.clone());
        let objects = listed(&state.objects, query.with_data, 0);
        let data = listed(&state.objects, true, 0);
        let (mut passed, mut keys) = (0, objects.into_iter());
        while let Some((start, end)) = lister.range() {
            let (start, end) = (start.to_vec(), end.map(<[u8]>::to_vec));
            let next = keys.find(|(name, _)| {
                *name >= start && (locator.is_none() || place_of(name) == locator)
            });
            let next = next.filter(|(name, _)| end.as_ref().is_none_or(|end| name < end));
            let is_last = next.is_none();
            let found = next.map(|(name, object)| {
                let first = data.get(&name).and_then(|it| it.data.as_ref()?.first().copied());
                let is_skipped = first.is_some_and(|first| first & query.skip != 0);
                (name.into(), (!is_skipped).then_some(object))
            });
            lister.add(found, is_last);
            passed += 1;
            if passed >= passes && lister.range().is_some() {
                lister.stop();
            }
        }
        lister.finish()
    }

    /// Lists names of all shards of a query, all at this moment.
    pub fn list_all(&self, query: &ListQuery) -> Page<Listed> {
        let pages = locators_of(&query.shards).into_iter();
        let pages = pages.map(|locator| self.list(query, locator, usize::MAX));
        merge_pages(pages, query.listing.count_max, query.listing.size_max)
    }

    /// Returns the names of all objects.
    pub fn names(&self) -> Vec<Name> {
        lock(&self.0).objects.keys().cloned().collect()
    }
}

/// Returns what a list asks, one after the other. `None`: all names.
fn locators_of(shards: &Shards) -> Vec<Option<(Group, Locator)>> {
    match shards {
        Shards::All => vec![None],
        Shards::Of { group, spread } => {
            let locators = (0..*spread).filter_map(Locator::new);
            locators.map(|locator| Some((*group, locator))).collect()
        }
    }
}

fn answer(objects: &Models, read: &Read) -> Result<ReadAnswer, DoorError> {
    let found = read.name().and_then(|name| objects.get(name));
    let stat = found.map(|(version, object)| Stat {
        version: *version,
        size: object.data.len() as u64,
        modified: objects::model::MODIFIED,
        is_partial: object.is_partial,
    });
    match read {
        Read::Stat { .. } => Ok(ReadAnswer::Stat(stat)),
        Read::Data { offset, length, .. } => {
            let data = stat.zip(found).map(|(stat, (_, object))| {
                let bytes = object.data.iter().skip(*offset as usize).take(*length as usize);
                (stat, bytes.copied().collect())
            });
            Ok(ReadAnswer::Data(data))
        }
        Read::Values { fields, .. } => {
            let value = |field| found.and_then(|(_, object)| object.field(field)).cloned();
            Ok(ReadAnswer::Values(fields.iter().map(value).collect()))
        }
        Read::Records { listing, .. } => {
            let mut lister = Lister::new(listing.clone());
            let records = found.map(|(_, object)| object.records.clone()).unwrap_or_default();
            if lister.range().is_some() {
                let value = |(key, value): (Vec<u8>, Vec<u8>)| (key.into(), Some(value.into()));
                lister.add(records.into_iter().map(value), true);
            }
            Ok(ReadAnswer::Fields(lister.finish()))
        }
        Read::Attributes { .. } | Read::List { .. } => {
            Err(DoorError::Invalid { why: "the pool in memory has no such read".into() })
        }
    }
}

/// The containers of a data pool, in memory.
#[derive(Default)]
pub struct Volumes(Mutex<BTreeMap<ContainerId, BTreeMap<u64, Bytes>>>);

impl Volumes {
    /// How data lies in them: small, so that tests have many blocks and stripes.
    pub const LAYOUT: Layout =
        Layout { block: 4 * UNIT, stripe: 8 * UNIT, container_size: 1 << 40 };

    /// Creates a container.
    pub fn create(&self, container: ContainerId) -> Result<(), DoorError> {
        // Who asks twice has it.
        lock(&self.0).entry(container).or_default();
        Ok(())
    }

    /// Removes a container.
    pub fn remove(&self, container: ContainerId) {
        lock(&self.0).remove(&container);
    }

    /// Writes whole units.
    pub fn write(
        &self,
        container: ContainerId,
        offset: u64,
        data: &Bytes,
    ) -> Result<(), DoorError> {
        let mut volumes = lock(&self.0);
        let volume = volumes.get_mut(&container).ok_or(DoorError::Gone)?;
        for unit in units(offset, data.len() as u64) {
            let at = (unit * UNIT - offset) as usize;
            volume.insert(unit, data.slice(at..at + UNIT as usize));
        }
        Ok(())
    }

    /// Reads whole units, all at this moment: one piece for each stripe.
    pub fn read(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, DoorError> {
        let volumes = lock(&self.0);
        let volume = volumes.get(&container).ok_or(DoorError::Gone)?;
        let mut pieces = Vec::new();
        for range in stripes(offset, length) {
            let length = range.end - range.start;
            let mut bytes = Vec::with_capacity(length as usize);
            let mut is_hole = true;
            for unit in units(range.start, length) {
                let data = volume.get(&unit);
                is_hole &= data.is_none();
                match data {
                    Some(data) => bytes.extend_from_slice(data),
                    None => bytes.resize(bytes.len() + UNIT as usize, 0),
                }
            }
            pieces.push(if is_hole { Piece::Hole(length) } else { Piece::Data(bytes.into()) });
        }
        Ok(pieces)
    }

    /// Gives whole units back.
    pub fn trim(&self, container: ContainerId, offset: u64, length: u64) -> Result<(), DoorError> {
        let mut volumes = lock(&self.0);
        let volume = volumes.get_mut(&container).ok_or(DoorError::Gone)?;
        units(offset, length).for_each(|unit| drop(volume.remove(&unit)));
        Ok(())
    }

    /// Returns all units that are stored: container and number.
    pub fn stored(&self) -> BTreeSet<(ContainerId, u64)> {
        let volumes = lock(&self.0);
        let of = |(container, volume): (&ContainerId, &BTreeMap<u64, Bytes>)| {
            let container = *container;
            volume.keys().map(move |unit| (container, *unit)).collect::<Vec<_>>()
        };
        volumes.iter().flat_map(of).collect()
    }
}

/// Returns the numbers of the units of a range. Panics if it does not consist of whole units.
fn units(offset: u64, length: u64) -> std::ops::Range<u64> {
    assert!(length > 0);
    assert!(offset.is_multiple_of(UNIT) && length.is_multiple_of(UNIT));
    assert!(offset + length <= Volumes::LAYOUT.container_size);
    offset / UNIT..(offset + length) / UNIT
}

/// Cuts a range at stripes.
pub(crate) fn stripes(offset: u64, length: u64) -> Vec<std::ops::Range<u64>> {
    let (stripe, end) = (Volumes::LAYOUT.stripe, offset + length);
    let mut ranges = Vec::new();
    let mut at = offset;
    while at < end {
        let next = end.min((at / stripe + 1) * stripe);
        ranges.push(at..next);
        at = next;
    }
    ranges
}

/// Random numbers of a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Begins with a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Returns a number below this one, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.bits() % end
    }

    /// Whether something happens that happens so many times in a thousand.
    pub fn is_one_of_thousand(&mut self, count: u64) -> bool {
        self.below(1000) < count
    }
}

type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs tasks, one poll after the other, in a random order.
#[derive(Clone)]
pub struct Runner(Arc<Mutex<Running>>);

struct Running {
    now_us: u64,
    steps: u64,
    dice: Dice,
    next: u64,
    /// `None`: it is being polled.
    tasks: BTreeMap<u64, Option<BoxedTask>>,
    ready: Vec<u64>,
    timers: BTreeMap<(u64, u64), Waker>,
}

struct TaskWaker {
    runner: Runner,
    task: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        let mut running = lock(&self.runner.0);
        if !running.ready.contains(&self.task) {
            running.ready.push(self.task);
        }
    }
}

impl Runner {
    /// Creates it with a seed.
    pub fn new(seed: u64) -> Runner {
        Runner(Arc::new(Mutex::new(Running {
            now_us: 1_000_000,
            steps: 0,
            dice: Dice::new(seed),
            next: 0,
            tasks: BTreeMap::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
        })))
    }

    /// Returns the time that has passed, in microseconds.
    pub fn now_us(&self) -> u64 {
        lock(&self.0).now_us
    }

    /// Returns a number that is greater at each call.
    pub fn moment(&self) -> u64 {
        let mut running = lock(&self.0);
        running.steps += 1;
        running.steps
    }

    /// Draws random numbers.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Dice) -> T) -> T {
        draw(&mut lock(&self.0).dice)
    }

    /// Adds a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut running = lock(&self.0);
        running.next += 1;
        let number = running.next;
        running.tasks.insert(number, Some(Box::pin(task)));
        running.ready.push(number);
    }

    /// Ends after this time.
    pub async fn sleep(&self, time: Duration) {
        let (at, number) = {
            let mut running = lock(&self.0);
            running.next += 1;
            (running.now_us + time.as_micros() as u64, running.next)
        };
        poll_fn(|context| {
            let mut running = lock(&self.0);
            if running.now_us >= at {
                return Poll::Ready(());
            }
            running.timers.insert((at, number), context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Lets others run.
    pub async fn pause(&self) {
        let mut is_second = false;
        poll_fn(|context| {
            if std::mem::replace(&mut is_second, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    /// Runs all tasks until this one has ended. Panics if none can go on.
    pub fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> T {
        let result = Arc::new(Mutex::new(None));
        let place = result.clone();
        self.spawn(async move {
            let value = task.await;
            *lock(&place) = Some(value);
        });
        loop {
            if let Some(value) = lock(&result).take() {
                return value;
            }
            assert!(self.step(), "no task can go on");
        }
    }

    /// Polls one task, or goes on to the next timer. Returns whether there was one.
    fn step(&self) -> bool {
        let (number, mut task) = {
            let running = &mut *lock(&self.0);
            running.steps += 1;
            if running.ready.is_empty() {
                let Some(((at, _), waker)) = running.timers.pop_first() else { return false };
                running.now_us = running.now_us.max(at);
                // Waking takes the lock.
                running.timers.insert((0, 0), waker);
                (0, None)
            } else {
                let at = running.dice.below(running.ready.len() as u64) as usize;
                let number = running.ready.swap_remove(at);
                (number, running.tasks.get_mut(&number).and_then(Option::take))
            }
        };
        let Some(future) = &mut task else {
            let waker = lock(&self.0).timers.remove(&(0, 0));
            waker.into_iter().for_each(Waker::wake);
            return true;
        };
        let waker = Arc::new(TaskWaker { runner: self.clone(), task: number }).into();
        let poll = future.as_mut().poll(&mut Context::from_waker(&waker));
        match poll {
            Poll::Pending => {
                lock(&self.0).tasks.insert(number, task);
            }
            Poll::Ready(()) => {
                lock(&self.0).tasks.remove(&number);
            }
        }
        true
    }
}

/// What goes wrong at a door, in thousandths.
#[derive(Clone, Copy, Default, Debug)]
pub struct Faults {
    /// A pause between two effects is long.
    pub long_pauses: u64,
    /// The outcome of an operation is unknown.
    pub unknown: u64,
    /// A request is not carried out.
    pub unavailable: u64,
    /// The session of the index pool ends.
    pub sessions: u64,
    /// A write or a trim is told as failed, and happens later.
    pub late: u64,
}

/// The door of one gateway.
pub struct MemoryDoor {
    pool: Arc<Pool>,
    runner: Runner,
    /// How far its wall clock is ahead, in microseconds.
    ahead_us: u64,
    faults: Faults,
    /// Operations whose outcome is unknown, and that may still happen.
    open: Arc<Mutex<BTreeMap<u64, Operation>>>,
    /// Before which effect from now on a pause is long, and how long.
    stall: Mutex<Option<(u64, Duration)>>,
    /// The PG that is down: looks at it, and all lists, are not answered.
    down: Mutex<Option<u64>>,
    volumes: Arc<Volumes>,
    session: Mutex<u64>,
}

impl MemoryDoor {
    /// Creates a door to a pool.
    pub fn new(pool: Arc<Pool>, runner: Runner, ahead_us: u64, faults: Faults) -> MemoryDoor {
        let (open, stall, down) = (Arc::default(), Mutex::default(), Mutex::default());
        let (volumes, session) = (Arc::default(), Mutex::new(runner.draw(Dice::bits)));
        MemoryDoor { pool, runner, ahead_us, faults, open, stall, down, volumes, session }
    }

    /// Uses these containers instead of its own.
    pub fn with_volumes(self, volumes: Arc<Volumes>) -> MemoryDoor {
        MemoryDoor { volumes, ..self }
    }

    /// The session of the index pool is over: the next one is another.
    pub fn end_session(&self) {
        *lock(&self.session) = self.runner.draw(Dice::bits);
    }

    /// Does something with containers: now, or later while it is told as failed.
    async fn change_data(
        &self,
        change: impl FnOnce(&Volumes) -> Result<(), DoorError> + Send + 'static,
    ) -> Result<(), DoorError> {
        self.pause().await;
        self.unavailable()?;
        if self.runner.draw(|dice| dice.is_one_of_thousand(self.faults.late)) {
            let (runner, volumes) = (self.runner.clone(), self.volumes.clone());
            self.runner.spawn(async move {
                let wait_us = runner.draw(|dice| dice.below(9_000_000));
                runner.sleep(Duration::from_micros(wait_us)).await;
                let _ = change(&volumes);
            });
            self.pause().await;
            return Err(DoorError::Unknown);
        }
        let changed = change(&self.volumes);
        self.pause().await;
        changed
    }

    /// Returns the runner.
    pub fn runner(&self) -> &Runner {
        &self.runner
    }

    /// The gateway is stopped for so long before its n-th effect from now on.
    pub fn stall_at(&self, effect: u64, time: Duration) {
        *lock(&self.stall) = Some((effect, time));
    }

    /// The PG of this object is down from now on, or none is.
    pub fn set_down(&self, name: Option<&Name>) {
        *lock(&self.down) = name.map(|name| self.pg_of(name));
    }

    /// Waits while a PG is down that one of these is in.
    async fn wait_for_pg(&self, mut names: impl Iterator<Item = &Name>) {
        let down = *lock(&self.down);
        if down.is_some_and(|down| names.any(|name| self.pg_of(name) == down)) {
            std::future::pending::<()>().await;
        }
    }

    /// Returns how long the gateway is stopped before this effect.
    fn stalled(&self) -> Option<Duration> {
        let mut stall = lock(&self.stall);
        let (effect, time) = stall.as_mut()?;
        *effect = effect.saturating_sub(1);
        let time = (*effect == 0).then_some(*time)?;
        *stall = None;
        Some(time)
    }

    /// Any time passes.
    async fn pause(&self) {
        let stalled = self.stalled();
        if let Some(time) = stalled {
            self.runner.sleep(time).await;
        }
        let pause_us = self.runner.draw(|dice| match dice.below(1000) {
            at if at < self.faults.long_pauses => dice.below(6_000_000),
            0..600 => 0,
            600..900 => dice.below(1_000),
            _ => dice.below(20_000),
        });
        match pause_us {
            0 => self.runner.pause().await,
            _ => self.runner.sleep(Duration::from_micros(pause_us)).await,
        }
    }

    fn unavailable(&self) -> Result<(), DoorError> {
        match self.runner.draw(|dice| dice.is_one_of_thousand(self.faults.unavailable)) {
            true => Err(DoorError::Unavailable { why: "a fault".into() }),
            false => Ok(()),
        }
    }
}

/// An open operation happens now, or never will.
fn settle(pool: &Pool, runner: &Runner, operation: Operation) {
    if runner.draw(|dice| dice.below(2) == 0) {
        let _ = pool.execute(&operation);
    }
}

impl Door for MemoryDoor {
    async fn look(&self, reads: Vec<Read>) -> Result<Vec<ReadAnswer>, DoorError> {
        self.wait_for_pg(reads.iter().filter_map(Read::name)).await;
        self.pause().await;
        self.unavailable()?;
        let overlaps = |operation: &Operation| {
            let mut names = operation.objects.iter().map(|steps| &steps.name);
            names.any(|name| reads.iter().any(|read| read.name() == Some(name)))
        };
        let mut settled = Vec::new();
        lock(&self.open).retain(|_, operation| match overlaps(operation) {
            true => {
                settled.push(operation.clone());
                false
            }
            false => true,
        });
        for operation in settled {
            settle(&self.pool, &self.runner, operation);
        }
        let answers = self.pool.look(&reads);
        self.pause().await;
        answers
    }

    async fn execute(&self, operation: Operation) -> Result<Executed, DoorError> {
        self.pause().await;
        self.unavailable()?;
        if self.runner.draw(|dice| dice.is_one_of_thousand(self.faults.unknown)) {
            match self.runner.draw(|dice| dice.below(3)) {
                0 => {
                    let _ = self.pool.execute(&operation);
                }
                _ => {
                    let number = self.runner.moment();
                    lock(&self.open).insert(number, operation);
                    let (open, pool) = (self.open.clone(), self.pool.clone());
                    let runner = self.runner.clone();
                    self.runner.spawn(async move {
                        let wait_us = runner.draw(|dice| dice.below(5_000_000));
                        runner.sleep(Duration::from_micros(wait_us)).await;
                        let operation = lock(&open).remove(&number);
                        if let Some(operation) = operation {
                            settle(&pool, &runner, operation);
                        }
                    });
                }
            }
            self.pause().await;
            return Err(DoorError::Unknown);
        }
        let executed = self.pool.execute(&operation);
        self.pause().await;
        executed
    }

    async fn list(&self, query: ListQuery) -> Result<Page<Listed>, DoorError> {
        if lock(&self.down).is_some() {
            std::future::pending::<()>().await;
        }
        let mut pages = Vec::new();
        for locator in locators_of(&query.shards) {
            self.pause().await;
            self.unavailable()?;
            // Some end before they must.
            let passes = self.runner.draw(|dice| match dice.below(4) {
                0 => 1 + dice.below(5),
                _ => u64::MAX,
            });
            pages.push(self.pool.list(&query, locator, passes as usize));
        }
        self.pause().await;
        Ok(merge_pages(pages, query.listing.count_max, query.listing.size_max))
    }

    async fn session(&self) -> Result<Session, DoorError> {
        if self.runner.draw(|dice| dice.is_one_of_thousand(self.faults.sessions)) {
            self.end_session();
        }
        Ok(Session(*lock(&self.session)))
    }

    async fn execute_over(
        &self,
        session: Session,
        operation: Operation,
    ) -> Result<Executed, DoorError> {
        self.pause().await;
        if *lock(&self.session) != session.0 {
            return Err(DoorError::Unavailable { why: "the session is over".into() });
        }
        self.execute(operation).await
    }

    async fn layout(&self, _data_pool: &str) -> Result<Layout, DoorError> {
        Ok(Volumes::LAYOUT)
    }

    async fn create_container(
        &self,
        _data_pool: &str,
        container: ContainerId,
    ) -> Result<(), DoorError> {
        self.change_data(move |volumes| volumes.create(container)).await
    }

    async fn write(
        &self,
        container: ContainerId,
        offset: u64,
        data: Bytes,
    ) -> Result<(), DoorError> {
        // Stripes are written one after the other.
        for range in stripes(offset, data.len() as u64) {
            let part = (range.start - offset) as usize..(range.end - offset) as usize;
            let data = data.slice(part);
            self.change_data(move |volumes| volumes.write(container, range.start, &data)).await?;
        }
        Ok(())
    }

    async fn read(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, DoorError> {
        let mut pieces = Vec::new();
        for range in stripes(offset, length) {
            self.pause().await;
            self.unavailable()?;
            pieces.extend(self.volumes.read(container, range.start, range.end - range.start)?);
        }
        self.pause().await;
        Ok(pieces)
    }

    async fn trim(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<(), DoorError> {
        for range in stripes(offset, length) {
            let length = range.end - range.start;
            self.change_data(move |volumes| volumes.trim(container, range.start, length)).await?;
        }
        Ok(())
    }

    fn wall_us(&self) -> u64 {
        1_700_000_000_000_000 + self.ahead_us + self.runner.now_us()
    }

    fn running_us(&self) -> u64 {
        self.runner.now_us()
    }

    fn random(&self) -> u64 {
        self.runner.draw(Dice::bits)
    }

    async fn sleep(&self, time: Duration) {
        self.runner.sleep(time).await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runner.spawn(task);
    }
}
