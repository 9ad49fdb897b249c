//! One store, its disk and its users: the event loop of a run, with crashes and restarts.

use std::collections::{BTreeMap, VecDeque};

use base::{BlockSize, BufferPool, ClusterId, Duration, Epoch, OsdId, Time};
use blockstore::{
    AsOf, CheckOptions, CreateOptions, Effect, Event, MetadataPosition, ReadEngine, Request,
    RequestId, Settings, Severity, StoppedStore, Store, StoreId, check_stopped,
};
use engine::Identity;
use format::disk::{EngineId, Superblock};
use format::door::{DiskEffect, DiskError, DiskEvent, DiskOp};

use super::asked::{Asked, Todo};
use super::catalog::tally;
use super::damage::Damage;
use super::model::Model;
use super::objects::{ObjectPlan, Objects};
use super::part_tables::set_of;
use super::plan::Plan;
use super::versions::Versions;
use crate::disk::{Crash, SimDisk};
use crate::outcome::Run;
use crate::random::{Chance, Random};
use crate::tally::Tally;
use crate::trace::Trace;

/// A run with more events than this counts as endless and fails.
const STEP_COUNT_MAX: u64 = 10_000_000;

/// The maximum number of crashes in a row while the store opens. Opening takes long if the store must
/// read sectors one by one.
const OPENING_CRASHES_MAX: u32 = 8;

/// The complete state of one run.
pub struct World {
    pub(super) plan: Plan,
    pub(super) work: Random,
    pub(super) chaos: Random,
    pub(super) checks: Random,
    medium: Random,
    timing: Random,
    pub(super) disk: SimDisk,
    pub(super) damage: Damage,
    pub(super) store: Option<Store>,
    pub(super) stage: Stage,
    pub(super) model: Model,
    pub(super) versions: Versions,
    /// The object pool, in some seeds.
    pub(super) objects: Option<Objects>,
    /// Whether the store is being opened with an engine that is not its own.
    pub(super) is_foreign: bool,
    /// How often the store was started.
    pub(super) start_count: u64,
    pub(super) pool: BufferPool,
    agenda: BTreeMap<(Time, u64), Item>,
    agenda_last: u64,
    submit_due: bool,
    pub(super) now: Time,
    pub(super) asked: BTreeMap<RequestId, Asked>,
    pub(super) asked_count: u64,
    /// Where the next portion of a check of the metadata begins, and the damage found since a check began.
    pub(super) metadata_next: Option<MetadataPosition>,
    pub(super) metadata_found: usize,
    /// Requests that take precedence over random requests.
    pub(super) todo: VecDeque<Todo>,
    /// Until this time, power failures are more frequent.
    pub(super) risky_until: Time,
    request_last: u64,
    pub(super) epoch: Epoch,
    step_count: u64,
    /// The number of crashes in a row since the store was last open.
    pub(super) opening_crashes: u32,
    pub(super) tally: Tally,
    pub(super) trace: Trace,
}

/// The stage of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// The store is recovering from the disk.
    Opening,
    /// The store accepts requests.
    Open,
    /// The run is ending: no more faults happen.
    Quiet,
}

/// An event that is scheduled for a time.
pub(super) enum Item {
    /// A disk operation completes.
    Disk(DiskOp, Operation),
    /// The user may make a request.
    Ask,
    /// The store's owner ends a turn of its loop.
    Submit,
    /// The engine does something.
    Engine,
}

/// The kind and range of a disk operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Read { offset: u64, length: u64 },
    Write { offset: u64, length: u64 },
    Flush,
    Reserve,
    Discard,
}

impl Operation {
    fn of(effect: &DiskEffect) -> Operation {
        match effect {
            DiskEffect::Read { offset, buffer, .. } => {
                Operation::Read { offset: *offset, length: buffer.len() as u64 }
            }
            DiskEffect::Write { offset, buffers, .. } => {
                let length = buffers.iter().map(|buffer| buffer.len() as u64).sum();
                Operation::Write { offset: *offset, length }
            }
            DiskEffect::Flush { .. } => Operation::Flush,
            DiskEffect::Reserve { .. } => Operation::Reserve,
            DiskEffect::Discard { .. } => Operation::Discard,
        }
    }
}

impl World {
    /// Creates a new store on a new disk.
    pub fn new(run: Run) -> World {
        let mut plan = Plan::draw(&mut Random::new(run.seed, "plan"));
        plan.add_parity(&mut Random::new(run.seed, "parity"));
        plan.add_checks(&mut Random::new(run.seed, "checks"));
        let mut objects = ObjectPlan::draw(&mut Random::new(run.seed, "objects"));
        if let Some(objects) = &mut objects {
            objects.draw_backlog(&mut Random::new(run.seed, "backlog"));
        }
        let store = u128::from(run.seed) + 1;
        let identity = Identity { engine: store << 64, store };
        let mut objects = objects.map(|plan| Objects::new(plan, run.seed, identity));
        // Sometimes adding the engine was interrupted: the store does not know of it yet.
        let names_engine = objects.as_mut().is_some_and(Objects::is_named);
        let mut trace = Trace::new(run.verbose);
        let mut disk = SimDisk::new(plan.size, plan.sector_size);
        let options = CreateOptions {
            cluster: ClusterId::new(1),
            osd: OsdId::FIRST,
            store: StoreId::new(store),
            size: plan.size,
            sector_size: plan.sector_size,
            commit: plan.commit,
            engine: EngineId::new(identity.engine).filter(|_| names_engine),
        };
        let layout = install_store(&mut disk, &options, plan.journal_size);
        if let Some(free_bytes) = plan.host_bytes {
            disk.set_host(layout.data.offset, free_bytes);
        }
        trace.line(format_args!("created {options:?} {}", if plan.polite { "polite" } else { "" }));
        let first = plan.pools[0].block_size;
        let is_other = |size: BlockSize| size != first;
        let moves_blocks = plan.pools.iter().any(|pool| is_other(pool.block_size))
            || objects.as_ref().is_some_and(|objects| is_other(objects.block_size()));
        World {
            work: Random::new(run.seed, "work"),
            chaos: Random::new(run.seed, "chaos"),
            checks: Random::new(run.seed, "checks drawn"),
            medium: Random::new(run.seed, "medium"),
            timing: Random::new(run.seed, "timing"),
            disk,
            damage: Damage::new(&layout),
            store: None,
            stage: Stage::Opening,
            model: Model::new(moves_blocks),
            versions: Versions::default(),
            objects,
            is_foreign: false,
            start_count: 0,
            pool: BufferPool::default(),
            agenda: BTreeMap::new(),
            agenda_last: 0,
            submit_due: false,
            now: Time::from_nanos(1_000_000_000),
            asked: BTreeMap::new(),
            asked_count: 0,
            metadata_next: None,
            metadata_found: 0,
            todo: VecDeque::new(),
            risky_until: Time::ZERO,
            request_last: 0,
            epoch: Epoch::ZERO,
            step_count: 0,
            opening_crashes: 0,
            tally: tally(),
            trace,
            plan,
        }
    }

    /// Returns the hash of the trace, and the tally.
    pub fn into_parts(self) -> (u64, Tally) {
        (self.trace.hash(), self.tally)
    }

    /// Runs the seed from start to end.
    pub fn run(&mut self) -> Result<(), String> {
        self.start()?;
        while self.asked_count < self.plan.operation_count || self.tally.faults.sum() < 5 {
            self.step()?;
        }
        self.finish()
    }

    /// Ends all faults and waits for all answers, then cuts the power once more and checks every block.
    fn finish(&mut self) -> Result<(), String> {
        self.wait_until_open()?;
        self.stage = Stage::Quiet;
        self.drain()?;
        self.settle_all()?;
        self.drain()?;
        self.settle_down()?;
        self.check_metadata_twice()?;
        self.audit_objects()?;
        self.drain()?;
        self.check_space()?;
        // An idle store has made all answered changes durable.
        let order = self.model.next_order();
        self.model.synced(order);
        self.parity_synced(&self.parity_lasts());
        self.crash(Crash::Power)?;
        self.wait_until_open()?;
        self.stage = Stage::Quiet;
        self.todo.clear();
        for (key, units) in self.audit_list() {
            self.ask_read(key, 0..units)?;
        }
        for (key, units) in self.parity_audit_list() {
            self.ask_parity_range(key, AsOf::View, 0..units)?;
            self.ask_parity_copy(key, AsOf::View, set_of(0..units))?;
        }
        self.audit_objects()?;
        self.drain()?;
        self.settle_down()?;
        self.count_moves();
        self.check_space()
    }

    fn count_moves(&mut self) {
        let moved = self.store().moved_bytes() / base::KIB;
        self.tally.consequences.add("KiB of blocks moved", moved);
    }

    fn wait_until_open(&mut self) -> Result<(), String> {
        self.plan.faults.opening = Chance::NEVER;
        while self.stage == Stage::Opening {
            self.step()?;
        }
        Ok(())
    }

    pub(super) fn drain(&mut self) -> Result<(), String> {
        while !self.asked.is_empty() {
            if self.agenda.is_empty() && self.store().deadline().is_none() {
                let (id, asked) = self.asked.first_key_value().expect("not empty");
                return Err(format!("{id:?} is never answered: {asked:?}"));
            }
            self.step()?;
        }
        Ok(())
    }

    /// Lets two seconds of simulated time pass.
    pub(super) fn settle_down(&mut self) -> Result<(), String> {
        let end = self.now + Duration::from_secs(2);
        while self.next_time().is_some_and(|next| next < end) {
            self.step()?;
        }
        Ok(())
    }

    pub(super) fn store(&self) -> &Store {
        self.store.as_ref().expect("a store always runs")
    }

    fn next_time(&self) -> Option<Time> {
        let agenda = self.agenda.first_key_value().map(|((time, _), _)| *time);
        let deadline = self.store().deadline();
        match (agenda, deadline) {
            (Some(agenda), Some(deadline)) => Some(agenda.min(deadline)),
            (agenda, deadline) => agenda.or(deadline),
        }
    }

    pub(super) fn schedule(&mut self, after: u64, item: Item) {
        self.agenda_last += 1;
        let time = self.now + Duration::from_nanos(after);
        self.agenda.insert((time, self.agenda_last), item);
    }

    /// Handles the earliest event.
    fn step(&mut self) -> Result<(), String> {
        self.step_count += 1;
        if self.step_count > STEP_COUNT_MAX {
            return Err("it does not come to an end".into());
        }
        let Some(next) = self.next_time() else {
            return Err(format!("nothing will ever happen again; {:?}", self.stage));
        };
        let agenda = self.agenda.first_key_value().map(|((time, _), _)| *time);
        self.now = self.now.max(next);
        if agenda.is_none_or(|time| time > next) {
            self.trace.line(format_args!("{:?} tick", self.now));
            return self.apply(Event::Tick);
        }
        let (_, item) = self.agenda.pop_first().expect("just seen");
        match item {
            Item::Disk(op, operation) => self.disk_done(op, operation)?,
            Item::Ask => self.turn()?,
            Item::Engine => self.engine_step()?,
            Item::Submit => {
                self.submit_due = false;
                let mut effects = Vec::new();
                self.store.as_mut().expect("a store always runs").submit(&mut effects);
                self.carry_out(effects)?;
            }
        }
        self.rot();
        self.change_host();
        Ok(())
    }

    /// Runs the user's turn: makes a request, and schedules the next turn.
    fn turn(&mut self) -> Result<(), String> {
        if self.stage == Stage::Quiet {
            return Ok(());
        }
        let pause = self.timing.chance(Chance::percent(1));
        let longest = if pause { self.plan.idle_after.as_nanos() * 3 } else { self.plan.latency };
        let after = self.timing.below(longest.max(1));
        self.schedule(after, Item::Ask);
        if self.stage == Stage::Open && self.asked.len() < self.plan.depth_max {
            match self.todo.pop_front() {
                Some(todo) => self.ask_todo(todo)?,
                None if self.draws_objects() => self.ask_objects()?,
                None => self.ask_something()?,
            }
        }
        Ok(())
    }

    fn draws_objects(&mut self) -> bool {
        self.objects.as_mut().is_some_and(Objects::draws)
    }

    /// Sends a request to the store.
    pub(super) fn request(&mut self, asked: Asked, request: Request) -> Result<(), String> {
        self.request_last += 1;
        let id = RequestId(self.request_last);
        self.trace.line(format_args!("{:?} ask {id:?} {asked:?}", self.now));
        self.asked.insert(id, asked);
        self.apply(Event::Request { id, request })
    }

    pub(super) fn apply(&mut self, event: Event) -> Result<(), String> {
        let mut effects = Vec::new();
        let store = self.store.as_mut().expect("a store always runs");
        store.apply(self.now, event, &mut effects);
        if self.timing.chance(Chance::percent(60)) {
            store.submit(&mut effects);
        } else if !self.submit_due {
            self.submit_due = true;
            let after = self.timing.below(20_000);
            self.schedule(after, Item::Submit);
        }
        self.carry_out(effects)
    }

    /// Executes the store's effects; a crash may happen before any of them.
    fn carry_out(&mut self, effects: Vec<Effect>) -> Result<(), String> {
        let crash = self.draw_crash();
        let until = match crash {
            Some(_) => self.chaos.index(effects.len() + 1),
            None => effects.len(),
        };
        let mut effects = effects.into_iter();
        for effect in effects.by_ref().take(until) {
            match effect {
                Effect::Disk(effect) => self.submit(effect),
                Effect::Engine(effect) => self.submit_to_engine(effect),
                Effect::Opened => self.opened()?,
                Effect::Done { id, result } => {
                    let asked = self
                        .asked
                        .remove(&id)
                        .ok_or_else(|| format!("{id:?} is answered, but it is not open"))?;
                    self.trace.line(format_args!("{:?} done {id:?}", self.now));
                    self.answered(asked, result)?;
                }
                Effect::Stopped { reason } => {
                    if let Some(effect) = effects.next() {
                        return Err(format!("{effect:?} follows Stopped"));
                    }
                    // A crash that was drawn for a later effect is dropped: the process has already
                    // ended.
                    return self.stopped(&reason);
                }
            }
        }
        match crash {
            Some(crash) => self.crash(crash),
            None => Ok(()),
        }
    }

    fn draw_crash(&mut self) -> Option<Crash> {
        let faults = &self.plan.faults;
        match self.stage {
            Stage::Opening => {
                let crash = *self.chaos.pick(&[Crash::Power, Crash::Process]);
                let may_crash = self.opening_crashes < OPENING_CRASHES_MAX;
                (may_crash && self.chaos.chance(faults.opening)).then(|| {
                    self.opening_crashes += 1;
                    self.tally.faults.add("crash while opening", 1);
                    crash
                })
            }
            Stage::Open if self.now < self.risky_until => {
                let may_fail = self.chaos.chance(self.plan.power_then);
                may_fail.then_some(Crash::Power)
            }
            Stage::Open if self.chaos.chance(faults.power) => Some(Crash::Power),
            Stage::Open if self.chaos.chance(faults.kill) => Some(Crash::Process),
            Stage::Open | Stage::Quiet => None,
        }
    }

    fn submit(&mut self, effect: DiskEffect) {
        let operation = Operation::of(&effect);
        let op = self.disk.submit(effect);
        self.trace.line(format_args!("{:?} {op:?} {operation:?}", self.now));
        let mut after = 1 + self.timing.below(self.plan.latency * 2);
        let slow = match operation {
            Operation::Read { .. } | Operation::Flush => self.plan.slow_read.max(self.plan.slow),
            _ => self.plan.slow,
        };
        if self.timing.chance(slow) {
            after *= 100;
            self.tally.faults.add("slow disk operation", 1);
        }
        if operation == Operation::Discard {
            after *= self.objects.as_ref().map_or(1, Objects::discard_slowness);
        }
        self.schedule(after, Item::Disk(op, operation));
    }

    fn disk_done(&mut self, op: DiskOp, operation: Operation) -> Result<(), String> {
        self.trace.line(format_args!("{:?} {op:?} ends", self.now));
        if let Some(error) = self.draw_disk_error(operation) {
            let must_stop = error != DiskError::NoSpace
                && matches!(operation, Operation::Write { .. } | Operation::Flush);
            let event = self.disk.fail(op, error, &mut self.medium);
            self.damage.must_stop = must_stop;
            self.apply(Event::Disk(event))?;
            if self.damage.must_stop {
                return Err(format!("the store goes on after a failed {operation:?}"));
            }
            return Ok(());
        }
        let fault = self.draw_lie(operation);
        let event = self.disk.complete(op, fault, &mut self.medium);
        if let DiskEvent::Done { result: Err(_), .. } = &event {
            self.tally.faults.add("file system full", 1);
        }
        self.apply(Event::Disk(event))
    }

    /// Handles a stop of the store. It may stop only after a failed write or flush, or if damage makes
    /// the store unrecognizable.
    fn stopped(&mut self, reason: &str) -> Result<(), String> {
        self.trace.line(format_args!("{:?} stopped: {reason}", self.now));
        if self.damage.must_stop || self.is_foreign {
            return self.crash(Crash::Process);
        }
        if self.stage == Stage::Opening && self.heal() {
            return self.crash(Crash::Process);
        }
        Err(format!("the store stopped: {reason}"))
    }

    /// Ends the process with a crash, and starts a new one.
    pub(super) fn crash(&mut self, crash: Crash) -> Result<(), String> {
        self.tally.faults.add(
            match crash {
                Crash::Power => "power cut",
                Crash::Process => "process killed",
            },
            1,
        );
        self.count_moves();
        let report = self.disk.crash(crash, &mut self.medium);
        self.trace.line(format_args!("{:?} {crash:?} crash: {report:?}", self.now));
        self.tally.faults.add("unflushed write lost", report.lost);
        self.tally.faults.add("unflushed write torn", report.torn);
        self.tally.faults.add("unflushed writes reordered", report.reordered);
        self.agenda.clear();
        self.submit_due = false;
        self.asked.clear();
        self.todo.clear();
        self.metadata_next = None;
        if crash == Crash::Power || self.damage.must_stop {
            self.model.lose_power();
        }
        self.model.crash();
        self.versions.crash(crash == Crash::Process && !self.damage.must_stop);
        self.objects.iter_mut().for_each(Objects::crash);
        self.break_objects();
        self.is_foreign = false;
        self.damage.must_stop = false;
        if self.stage != Stage::Quiet {
            self.break_sectors(self.plan.faults.unreadable_at_crash);
        }
        if self.chaos.chance(Chance::percent(15)) {
            self.check_image()?;
        }
        self.start()
    }

    fn start(&mut self) -> Result<(), String> {
        self.stage = Stage::Opening;
        self.damage.read_errors.clear();
        let settings = Settings {
            memory_bytes: self.plan.memory_bytes,
            // None, a tiny one and one that holds all.
            value_cache_bytes: match self.plan.memory_bytes >> 20 {
                0..16 => 0,
                16..64 => 4 << 10,
                _ => 1 << 20,
            },
            idle_after: self.plan.idle_after,
            checkpoint_after_bytes: self.plan.checkpoint_after_bytes,
            engine_backlog_bytes_max: self
                .objects
                .as_ref()
                .map_or(u64::MAX, Objects::backlog_bytes_max),
            is_sparse: self.plan.is_sparse,
            shares_space_with_engine: true,
        };
        let mut effects = Vec::new();
        let (pool, size) = (self.pool.clone(), self.disk.size());
        self.start_count += 1;
        let mut engine = self.objects.as_mut().map(Objects::start);
        self.change_engine(&mut engine);
        self.store = Some(Store::open_with(settings, pool, (size, engine), &mut effects));
        self.schedule(1, Item::Ask);
        self.carry_out(effects)
    }

    /// Runs the checks of `osd check` on the stopped store, unless this run has damaged it.
    fn check_image(&mut self) -> Result<(), String> {
        if self.damage.happened || self.objects.as_ref().is_some_and(Objects::was_old) {
            return Ok(());
        }
        let may_be_behind = self.objects.as_ref().is_some_and(Objects::may_be_behind);
        let mut files = self.objects.as_mut().map(Objects::files);
        let engine = files.as_mut().map(|files| files as &mut dyn ReadEngine);
        let disk = &self.disk;
        let mut read = |offset, into: &mut [u8]| {
            disk.peek(offset, into);
            Ok(())
        };
        let mut stopped = StoppedStore::open_with(&mut read, disk.size(), engine)
            .map_err(|why| format!("check after the crash: {why}"))?;
        let report = check_stopped(&mut stopped, CheckOptions { data: true });
        let is_allowed = |text: &str| may_be_behind && text.contains("table row @h,");
        let mut errors = report.findings.iter().filter(|it| it.severity == Severity::Error);
        match errors.find(|finding| !is_allowed(&finding.text)) {
            Some(finding) => Err(format!("check after the crash: {}", finding.text)),
            None => Ok(()),
        }
    }

    /// Checks that exactly the blocks with data use space.
    fn check_space(&self) -> Result<(), String> {
        if self.damage.deep {
            return Ok(());
        }
        let blocks = self.model.blocks.values();
        let written = blocks.filter(|block| block.newest().is_written());
        let expected: u64 = written.map(|block| block.size.bytes()).sum();
        let of_objects = match &self.objects {
            Some(objects) => objects.used_bytes(),
            None => Some(0),
        };
        let Some(of_objects) = of_objects else { return Ok(()) };
        let expected = expected + self.parity_bytes() + of_objects;
        let used = self.store().space().used_bytes;
        if used == expected {
            return Ok(());
        }
        Err(format!("{used} bytes are used, but the blocks with data have {expected}"))
    }
}

/// Installs a new store on a new disk, with a journal of at most this size. Returns its layout.
pub fn install_store(disk: &mut SimDisk, options: &CreateOptions, journal_size: u64) -> Superblock {
    let created = blockstore::create(options).expect("a plan is always possible");
    let mut layout = None;
    for (offset, bytes) in &created.images {
        match Superblock::decode(bytes) {
            Ok(mut superblock) => {
                superblock.journal.size = superblock.journal.size.min(journal_size);
                disk.install(*offset, &superblock.encode());
                layout = Some(superblock);
            }
            Err(_) => disk.install(*offset, bytes),
        }
    }
    layout.expect("a store has a superblock")
}
