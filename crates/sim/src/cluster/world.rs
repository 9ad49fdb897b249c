//! A simulated cluster: all processes with their disks, network and state store, driven in chronological
//! order.

use base::{BufferPool, ClusterId, Duration, Incarnation, Time, TraceEvent};
use cluster::monitor::{self, Election};
use format::door::{DiskError, DiskOp, NetEffect, NetEvent, Peer, Role};
use format::wire::Message;

use super::agenda::{Agenda, Item};
use super::client::{AttachmentsDue, Client};
use super::clock::{Clock, Clocks, Host};
use super::counters::Counters;
use super::disk_hang::Hangs;
use super::drill::Drill;
use super::fault_state::FaultState;
use super::monitor::MonitorProcess;
use super::net::{EndId, Net, Wake};
use super::object_plan::ObjectPlan;
use super::object_users::ObjectPool;
use super::operator::{Job, Operator};
use super::osd::{DiskWork, Osd};
use super::plan::{Faults, Plan, Pools};
use super::process::{Process, monitor_address, monitor_id, osd_address};
use super::request_watch::RequestWatch;
use super::runs::Runs;
use super::slow_disks::SlowDisks;
use super::state::StateDoor;
use super::volume_model::{Life, Volume};
use super::watch::Watch;
use crate::outcome::Run;
use crate::random::{Chance, Random};
use crate::tally::Tally;
use crate::trace::Trace;

/// A run that has not finished after this many events fails.
const STEP_COUNT_MAX: u64 = 3_000_000;
/// After this many events, no more faults are injected: they might leave too little time for anything
/// else.
const FAULTY_STEP_COUNT_MAX: u64 = STEP_COUNT_MAX / 2;

/// How long the cluster must have been whole: longer than any process waits before it reconnects.
pub const WHOLE_FOR: Duration = Duration::from_secs(2);

/// How long a cluster without faults may take to answer all pending operations.
const PATIENCE: Duration = Duration::from_secs(120);

/// If operations are still pending after this time, users of full OSDs discard their data.
const ROOM_AFTER: Duration = Duration::from_secs(60);

/// After this time without faults, no OSD holds data of a PG that it has left.
const REST: Duration = Duration::from_secs(20);

/// Within this time, an OSD that left a PG has deleted the PG's data: it looks once per report interval,
/// which is at most 3 s here, and deletes what has been superfluous for 5 s.
const CLEARED_WITHIN: Duration = Duration::from_secs(12);

/// One run: the cluster, its faults and its checkers.
pub struct World {
    pub(super) plan: Plan,
    pub(super) seed: u64,
    pub(super) faults: FaultState,
    pub(super) cluster: ClusterId,
    pub(super) work: Random,
    pub(super) chaos: Random,
    pub(super) medium: Random,
    timing: Random,
    pub(super) pool: BufferPool,
    pub(super) net: Net,
    pub(super) state: StateDoor,
    clocks: Clocks,
    pub(super) runs: Runs,
    pub(super) watch: Watch,
    pub(super) drill: Option<Drill>,
    pub(super) hangs: Hangs,
    pub(super) slow_disks: SlowDisks,
    pub(super) monitors: Vec<MonitorProcess>,
    pub(super) osds: Vec<Osd>,
    pub(super) clients: Vec<Client>,
    pub(super) operator: Operator,
    pub(super) volumes: Vec<Volume>,
    pub(super) objects: Option<ObjectPool>,
    pub(super) agenda: Agenda,
    pub(super) now: Time,
    pub(super) stage: Stage,
    pub(super) due: AttachmentsDue,
    pub(super) requests: RequestWatch,
    pub(super) counts: Counters,
    pub(super) tally: Tally,
    pub(super) trace: Trace,
}

/// The stages of a run, in chronological order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The cluster is created.
    Build,
    /// Users work, and faults happen.
    Work,
    /// Faults and users have stopped; scenarios and final checks follow.
    End,
}

impl World {
    /// Returns a cluster before its processes start.
    pub fn new(run: Run, pools: Pools) -> World {
        World::planned(run, pools, |_| {})
    }

    /// Returns a cluster before its processes start, with a plan that `change` has changed.
    pub(super) fn planned(run: Run, pools: Pools, change: impl FnOnce(&mut Plan)) -> World {
        let mut plan = Plan::draw(&mut Random::new(run.seed, "cluster plan"), pools);
        let objects = ObjectPlan::draw(run.seed, pools, &mut plan);
        change(&mut plan);
        let pool = BufferPool::default();
        let mut net = Net::new(Random::new(run.seed, "net"), pool.clone(), plan.weather);
        let mut versions = Random::new(run.seed, "versions");
        if versions.chance(Chance::percent(25)) {
            let osds = (0..plan.osd_count).map(Process::Osd);
            net.old_processes = osds.filter(|_| versions.chance(Chance::percent(50))).collect();
            if pools == Pools::Parity && !net.old_processes.is_empty() {
                plan.with_whole_blocks();
            }
        }
        let hosts = (0..plan.host_count).map(Host::Osds);
        let hosts = hosts
            .chain((0..plan.client_count).map(Host::Client))
            .chain((0..plan.monitor_count).map(Host::Monitor));
        let clocks = Clocks::draw(&mut Random::new(run.seed, "clocks"), plan.clocks_drift, hosts);
        let mut chaos = Random::new(run.seed, "cluster chaos");
        World {
            faults: FaultState::new(chaos.index(plan.domain_count())),
            cluster: ClusterId::new(u128::from(run.seed) + 1),
            work: Random::new(run.seed, "cluster work"),
            chaos,
            seed: run.seed,
            clocks,
            runs: Runs::default(),
            watch: Watch::of(plan.scheme),
            drill: None,
            hangs: Hangs::draw(run.seed),
            slow_disks: SlowDisks::draw(run.seed),
            medium: Random::new(run.seed, "cluster medium"),
            timing: Random::new(run.seed, "cluster timing"),
            net,
            pool,
            state: StateDoor::new(Random::new(run.seed, "state")),
            monitors: (0..plan.monitor_count).map(|_| MonitorProcess::default()).collect(),
            osds: (0..plan.osd_count)
                .map(|index| Osd::new(run.seed, index, plan.host_of(index)))
                .collect(),
            clients: (0..plan.client_count).map(|_| Client::default()).collect(),
            operator: Operator::default(),
            volumes: Vec::new(),
            objects: objects.map(|objects| ObjectPool::new(run.seed, objects, plan.client_count)),
            agenda: Agenda::default(),
            now: Time::from_nanos(1_000_000_000),
            stage: Stage::Build,
            due: AttachmentsDue::default(),
            requests: RequestWatch::default(),
            counts: Counters::default(),
            tally: super::catalog::tally(),
            trace: Trace::new(run.verbose),
            plan,
        }
    }

    /// Returns the hash of the trace, and the tally.
    pub fn into_parts(mut self) -> (u64, Tally) {
        let counts = self.net.counts;
        let faults = &mut self.tally.faults;
        faults.add("payload corrupted", counts.corrupted_payloads);
        faults.add("frame corrupted", counts.corrupted_frames);
        faults.add("message delayed", counts.delayed);
        faults.add("request lost", counts.lost_requests);
        faults.add("reply lost", counts.lost_replies);
        faults.add("control message lost", counts.lost_controls);
        faults.add("peer message lost", counts.lost_peers);
        faults.add("lease message lost", counts.lost_leases);
        faults.add("connection broken within a frame", counts.torn_frames);
        faults.add("connection's bytes arrived late", counts.lingering);
        (self.trace.hash(), self.tally)
    }

    /// Executes the whole run.
    pub fn run(&mut self) -> Result<(), String> {
        self.build()?;
        self.stage = Stage::Work;
        self.faults.rates = self.plan.faults;
        if let Some(after) = self.faults.rates.client_cut_off {
            self.schedule(Duration::from_millis(after), Item::CutOffClient);
        }
        self.plan_strike();
        self.plan_backup();
        if let Some(after) = self.objects.as_ref().and_then(|pool| pool.plan.created_after) {
            self.schedule(after, Item::CreateObjectPool);
        }
        while self.counts.asked < self.plan.operation_count
            || self.tally.faults.sum() < 5
            || self.faults.is_pending()
        {
            self.step()?;
            if self.counts.steps == FAULTY_STEP_COUNT_MAX {
                self.faults.rates = Faults::NONE;
            }
            if self.counts.asked >= self.plan.operation_count && self.tally.faults.sum() < 5 {
                let process = Process::Osd(self.chaos.index(self.osds.len()));
                if self.is_running(process) {
                    self.kill(process)?;
                }
            }
        }
        self.end()
    }

    pub(super) fn build(&mut self) -> Result<(), String> {
        (0..self.monitors.len()).for_each(|index| self.start_monitor(index));
        let osds = (0..self.osds.len()).map(Job::CreateOsd);
        let settings = self.slow_disks.job();
        self.operator.jobs = osds.chain([Job::CreatePool]).chain(settings).collect();
        if self.objects.as_ref().is_some_and(|pool| pool.plan.created_after.is_none()) {
            self.operator.jobs.push_back(Job::CreateObjectPool);
        }
        self.schedule(Duration::ZERO, Item::OperatorTurn);
        self.wait("the cluster is not built", |world| world.operator.jobs.is_empty())?;
        for index in 0..self.clients.len() {
            self.start(Process::Client(index))?;
        }
        Ok(())
    }

    /// Ends all faults. After that, all pending operations must be answered, and all final checks must
    /// pass.
    fn end(&mut self) -> Result<(), String> {
        self.stage = Stage::End;
        self.faults.rates = Faults::NONE;
        self.faults.cut_off = None;
        self.end_hangs();
        self.plan.slow_disk = Chance::NEVER;
        self.net.set_weather(self.plan.weather.calm());
        let wakes = self.net.heal_all(self.now);
        self.wake(wakes);
        self.state.heal();
        let is_answered = |world: &World| {
            world.clients.iter().all(|client| client.core.is_some() && client.open.is_empty())
                && world.objects.as_ref().is_none_or(|pool| !pool.is_asked())
                && world.operator.jobs.is_empty()
        };
        if self.plan.may_fill() {
            let end = self.now + ROOM_AFTER;
            self.wait("time stands still", |world| is_answered(world) || world.now > end)?;
            if !is_answered(self) {
                // Writes that a client retransmits after a power loss may wait for space.
                self.trace.line(format_args!("{:?} users make room", self.now));
                self.make_room()?;
            }
        }
        self.wait("an operation is never answered", is_answered)?;
        self.end_slowness()?;
        self.detach_all()?;
        self.close_all_objects()?;
        self.plan_all_in();
        let lack = self.wait_until_whole()?;
        self.faults.must_be_whole = self.plan.position_count() > 1 && lack.is_none();
        self.run_drill()?;
        self.black_out()?;
        self.run_without_monitors()?;
        let lack = lack.or(self.hang_all_disks()?);
        self.slow_one_disk()?;
        self.change_leases()?;
        self.leave_requests_behind()?;
        self.lose_all_power()?;
        self.return_diverged_member()?;
        self.lose_osds()?;
        self.edit_by_hand()?;
        self.start_foreign_osd()?;
        let lack = lack.or(self.restore_backup()?);
        self.read_everything()?;
        self.read_all_objects()?;
        for volume in &self.volumes {
            volume.check()?;
        }
        self.judge_objects()?;
        // Members may have become too full in the meantime.
        let lack = lack.or(self.wait_until_whole()?);
        if self.plan.position_count() > 1 && lack.is_none() {
            self.rest_and_compare()?;
        }
        self.plan_removal_of_all();
        self.wait("volumes cannot be removed, or leave something behind", |world| {
            world.operator.jobs.is_empty()
        })?;
        self.wait("an object pool leaves something behind", |world| {
            // An OSD that is gone for good is told nothing.
            world.osds.iter().all(|osd| osd.node.is_none() || !osd.engine.has_families())
        })?;
        if lack.is_none() {
            return Ok(());
        }
        // Removing the volumes has freed space for the missing copies.
        self.get_whole(Duration::ZERO)?;
        self.rest_and_compare()
    }

    fn rest_and_compare(&mut self) -> Result<(), String> {
        self.pass(REST)?;
        let listed = self.scrub_everything()?;
        // If a member is too full, the PG tries other OSDs from time to time. OSDs that leave again
        // delete the data that they received.
        let (mut epochs, mut since) = (0, self.now);
        self.wait("PGs change again and again", |world| {
            let present: u64 =
                world.watch.all_entries().map(|entry| u64::from(entry.epoch.get())).sum();
            if present != epochs {
                (epochs, since) = (present, world.now);
            }
            world.now.since(since) > CLEARED_WITHIN
        })?;
        self.compare_members(&listed)
    }

    /// Waits until every PG has all of its copies. If disks are too full for that, returns what the
    /// cluster lacks: each member of a PG may have accepted writes while others were away.
    pub(super) fn wait_until_whole(&mut self) -> Result<Option<String>, String> {
        self.wait_until_whole_for(Duration::ZERO)
    }

    /// Waits until the cluster has been whole for a span. If disks are too full for that, returns what
    /// the cluster lacks.
    pub(super) fn wait_until_whole_for(
        &mut self,
        span: Duration,
    ) -> Result<Option<String>, String> {
        let end = self.now + PATIENCE;
        self.watch.has_refused_room = false;
        let mut since = None;
        loop {
            match self.what_lacks() {
                Some(lack) if self.now > end && self.has_full_member() => {
                    self.trace.line(format_args!("{:?} copies without room", self.now));
                    return Ok(Some(lack));
                }
                Some(lack) if self.now > end => {
                    return Err(format!("the cluster does not get whole: {lack}"));
                }
                Some(_) => since = None,
                None if self.now.since(*since.get_or_insert(self.now)) >= span => return Ok(None),
                None => {}
            }
            self.step()?;
        }
    }

    /// Waits until the cluster has been whole for a span. Fails if it does not become whole.
    pub(super) fn get_whole(&mut self, span: Duration) -> Result<(), String> {
        match self.wait_until_whole_for(span)? {
            Some(lack) => Err(format!("the cluster does not get whole: {lack}")),
            None => Ok(()),
        }
    }

    /// Returns whether a member has recently refused data for lack of space.
    pub(super) fn has_full_member(&self) -> bool {
        self.plan.may_fill() && self.watch.has_refused_room
    }

    pub(super) fn detach_all(&mut self) -> Result<(), String> {
        for index in 0..self.clients.len() {
            for handle in self.clients[index].to_detach() {
                self.detach(index, handle)?;
            }
        }
        self.wait("a detach is never done", |world| {
            world.clients.iter().all(|client| client.attached.is_empty())
        })
    }

    /// Attaches every volume read-only to the first client.
    pub(super) fn attach_all_to_read(&mut self) -> Result<(), String> {
        for volume in 0..self.volumes.len() {
            if self.volumes[volume].life == Life::Live {
                self.attach_volume(0, volume, true, false)?;
            }
        }
        self.wait("an attach is never done", |world| world.clients[0].is_settled())
    }

    /// Reads every byte of every volume through the first client.
    pub(super) fn read_everything(&mut self) -> Result<(), String> {
        self.attach_all_to_read()?;
        self.read_all(0)?;
        self.wait("a read is never answered", |world| world.clients[0].open.is_empty())?;
        self.detach_all()
    }

    /// Runs until a condition holds. Fails after the longest time that this may take in a cluster
    /// without faults.
    pub(super) fn wait(
        &mut self,
        what: &str,
        mut holds: impl FnMut(&World) -> bool,
    ) -> Result<(), String> {
        let end = self.now + PATIENCE;
        while !holds(self) {
            if self.now > end {
                let (last, jobs) = (&self.operator.last, &self.operator.jobs);
                return Err(format!("{what} (last command: {last}, jobs: {jobs:?})"));
            }
            self.step()?;
        }
        Ok(())
    }

    /// Runs for this span of simulated time.
    pub(super) fn pass(&mut self, span: Duration) -> Result<(), String> {
        let end = self.now + span;
        self.wait("time stands still", |world| world.now >= end)
    }

    pub(super) fn stage_is_work(&self) -> bool {
        self.stage == Stage::Work
    }

    pub(super) fn schedule(&mut self, after: Duration, item: Item) {
        self.schedule_at(self.now + after, item);
    }

    pub(super) fn schedule_at(&mut self, at: Time, item: Item) {
        let life = item.owner().map_or(0, |owner| self.life(owner));
        self.agenda.push(at, life, item);
    }

    pub(super) fn life(&self, process: Process) -> u64 {
        self.runs.number(process)
    }

    pub(super) fn wake(&mut self, wakes: impl IntoIterator<Item = Wake>) {
        for (at, end) in wakes {
            self.schedule_at(at, Item::Net(end));
        }
    }

    /// Returns the current time on the clock of a process's host.
    pub(super) fn local(&self, process: Process) -> Time {
        self.clock(process).local(self.now)
    }

    fn clock(&self, process: Process) -> Clock {
        let host = match process {
            Process::Monitor(index) => Host::Monitor(index),
            Process::Client(index) => Host::Client(index),
            Process::Osd(index) => Host::Osds(self.osds[index].host),
            Process::Operator => return Clock::TRUE,
        };
        self.clocks.of(host)
    }

    /// Returns the earliest timer of all processes, in the world's time. The timer of a frozen process
    /// waits until the process thaws.
    fn next_deadline(&self) -> Option<(Time, Process)> {
        let due = |(at, process)| {
            let due = self.clock(process).world(at);
            let thaws = self.runs.frozen_until(process);
            (thaws.map_or(due, |thaws| thaws.max(due)), process)
        };
        let monitors = self.monitors.iter().enumerate().filter_map(|(index, monitor)| {
            let deadline = monitor.election.as_ref().and_then(Election::deadline)?;
            Some((deadline, Process::Monitor(index)))
        });
        let osds =
            self.osds.iter().enumerate().filter_map(|(index, osd)| {
                Some((osd.node.as_ref()?.deadline()?, Process::Osd(index)))
            });
        let clients = self.clients.iter().enumerate().filter_map(|(index, client)| {
            Some((client.core.as_ref()?.deadline()?, Process::Client(index)))
        });
        monitors.chain(osds).chain(clients).map(due).min()
    }

    /// Handles the earliest event.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.counts.steps += 1;
        if self.counts.steps > STEP_COUNT_MAX {
            return Err(format!("it does not come to an end ({:?})", self.stage));
        }
        let agenda = self.agenda.next_at();
        let deadline = self.next_deadline();
        match deadline {
            Some((at, process)) if agenda.is_none_or(|agenda| agenda > at) => {
                self.now = self.now.max(at);
                self.trace.line(format_args!("{:?} {process:?} tick", self.now));
                self.tick(process)?;
            }
            _ => {
                let (at, life, item) = self.agenda.pop().expect("the operator always looks again");
                self.now = self.now.max(at);
                if item.owner().is_none_or(|owner| self.life(owner) == life) {
                    match self.thaws_at(&item) {
                        Some(thaws) => {
                            let (at, item) = self.put_off(item, thaws);
                            self.agenda.push(at, life, item);
                        }
                        None => self.take(item)?,
                    }
                }
            }
        }
        for (client, handle) in std::mem::take(&mut self.due.to_close) {
            if self.clients[client].core.is_some() {
                self.apply_client(client, volume::Event::Close { volume: handle, patient: false })?;
            }
        }
        for (client, handle) in std::mem::take(&mut self.due.to_fill) {
            self.fill_volume(client, handle)?;
        }
        self.inject_faults()
    }

    /// Returns when the process that handles an item will thaw, if that process is frozen.
    fn thaws_at(&mut self, item: &Item) -> Option<Time> {
        self.runs.thaw(self.now);
        let process = match item {
            Item::Net(end) => self.net.processes(*end).0,
            Item::Arrive(end) => self.net.processes(*end).1,
            item => item.owner()?,
        };
        self.runs.frozen_until(process)
    }

    /// Postpones an item of a frozen process. The disk continues to work: an operation that has
    /// completed is not affected by later hangs of the disk.
    fn put_off(&self, item: Item, thaws: Time) -> (Time, Item) {
        let Item::Disk(index, op, work) = item else { return (thaws, item) };
        match self.osds[index].hang.again_at(self.now) {
            Some(again) => (again, Item::Disk(index, op, work)),
            None => (thaws, Item::DiskEnded(index, op, work)),
        }
    }

    fn tick(&mut self, process: Process) -> Result<(), String> {
        match process {
            Process::Monitor(index) => self.apply_monitor(index, monitor::Event::Tick),
            Process::Osd(index) => self.apply_osd(index, node::Event::Tick),
            Process::Client(index) => self.apply_client(index, volume::Event::Tick),
            Process::Operator => Ok(()),
        }
    }

    fn take(&mut self, item: Item) -> Result<(), String> {
        match item {
            Item::Net(end) => self.deliver(end),
            Item::Arrive(end) => {
                self.arrive(end);
                Ok(())
            }
            Item::Disk(index, op, work) => match self.osds[index].hang.again_at(self.now) {
                Some(again) => {
                    self.schedule_at(again, Item::Disk(index, op, work));
                    Ok(())
                }
                None => self.disk_done(index, op, work),
            },
            Item::DiskEnded(index, op, work) => self.disk_done(index, op, work),
            Item::Engine(index) => self.engine_step(index),
            Item::EngineRoom(index) => self.engine_gets_room(index),
            Item::State(step) => self.take_state(step),
            Item::MonitorEnds(index) => {
                self.monitor_stopped(index);
                Ok(())
            }
            Item::OsdTurn(index) => {
                let local = self.local(Process::Osd(index));
                let osd = &mut self.osds[index];
                osd.turn_due = false;
                let mut effects = Vec::new();
                if let Some(node) = &mut osd.node {
                    node.finish_turn(local, &mut effects);
                }
                self.carry_out_osd(index, effects)
            }
            Item::ClientTurn(index) => {
                if self.stage == Stage::End {
                    return Ok(());
                }
                let after = Duration::from_nanos(1 + self.timing.below(self.plan.think * 2));
                let pause = self.timing.chance(Chance::percent(1));
                let after = if pause { Duration::from_millis(500) } else { after };
                // After the planned number of operations, clients issue fewer: the run only waits for a
                // session to end.
                let is_enough = self.counts.asked > self.plan.operation_count;
                let after = if is_enough { Duration::from_millis(200) } else { after };
                self.schedule(after, Item::ClientTurn(index));
                self.client_turn(index)
            }
            Item::ObjectTurn(index) => self.object_turn(index),
            Item::CreateObjectPool => {
                self.operator.jobs.push_back(Job::CreateObjectPool);
                Ok(())
            }
            Item::OperatorTurn => {
                let after = Duration::from_millis(self.timing.range(20..300));
                self.schedule(after, Item::OperatorTurn);
                self.operator_turn()
            }
            Item::Start(process) => self.start(process),
            // At the end of the run, all earlier cuts have been healed. Processes that the drill
            // silenced must stay silent.
            Item::Heal(..) if self.stage == Stage::End => Ok(()),
            Item::Heal(one, other) => {
                let wakes = self.net.heal(self.now, one, other);
                self.wake(wakes);
                Ok(())
            }
            Item::Crash(index) => self.crash(index),
            Item::Strike => {
                self.strike_is_due();
                Ok(())
            }
            Item::Drill => self.drill_turn(),
            Item::CutOffClient => {
                if self.stage == Stage::Work {
                    self.cut_off_client();
                }
                Ok(())
            }
            Item::Backup => {
                self.state.back_up();
                Ok(())
            }
            Item::Hang(index, span) => {
                self.hang(index, span);
                Ok(())
            }
            Item::ReconnectClient => {
                self.faults.cut_off = None;
                Ok(())
            }
        }
    }

    // ---- network

    pub(super) fn net_effect(&mut self, from: Process, effect: NetEffect) -> Result<(), String> {
        match effect {
            NetEffect::Connect { connection, address } => {
                let to = self
                    .process_at(&address)
                    .ok_or_else(|| format!("{from:?} connects to {address}"))?;
                let (at, end) = self.net.connect(self.now, from, connection, to);
                self.schedule_at(at, Item::Arrive(end));
            }
            NetEffect::Send { connection, message } => {
                self.check_rules(from, &message)?;
                if let (Process::Osd(index), Message::Reply(reply)) = (from, &message) {
                    let run = (index, self.life(from));
                    self.requests.on_answered(run, reply)?;
                }
                self.watch_sending(from, connection, &message)?;
                let wake = self.net.send(self.now, from, connection, &message);
                self.wake(wake);
            }
            NetEffect::Close { connection } => {
                let wake = self.net.close(self.now, from, connection);
                self.wake(wake);
            }
        }
        Ok(())
    }

    fn process_at(&self, address: &str) -> Option<Process> {
        let monitor = (0..self.monitors.len()).find(|index| monitor_address(*index) == address);
        let osd = || (0..self.osds.len()).find(|index| osd_address(*index) == address);
        monitor.map(Process::Monitor).or_else(|| osd().map(Process::Osd))
    }

    pub(super) fn is_running(&self, process: Process) -> bool {
        match process {
            Process::Monitor(index) => self.monitors[index].election.is_some(),
            Process::Osd(index) => self.osds[index].node.is_some(),
            Process::Client(index) => self.clients[index].core.is_some(),
            Process::Operator => true,
        }
    }

    fn peer(&self, process: Process) -> Peer {
        let role = match process {
            Process::Monitor(index) => Role::Monitor(monitor_id(index)),
            Process::Osd(index) => {
                let osd = &self.osds[index];
                Role::Osd(osd.id.expect("it runs"), osd.incarnation)
            }
            Process::Client(_) | Process::Operator => Role::Client,
        };
        Peer { cluster: self.cluster, role }
    }

    fn arrive(&mut self, end: EndId) {
        let (from, to) = self.net.processes(end);
        if !self.is_running(from) {
            return;
        }
        let peers = self.is_running(to).then(|| (self.peer(from), self.peer(to)));
        let wakes = self.net.arrive(self.now, end, peers);
        self.wake(wakes);
    }

    fn deliver(&mut self, end: EndId) -> Result<(), String> {
        let (event, again) = self.net.deliver(self.now, end);
        self.wake(again);
        let Some((process, event)) = event else { return Ok(()) };
        let wake = self.net.reset_other(self.now, end);
        self.wake(wake);
        if matches!(event, NetEvent::Closed { .. }) {
            // The process that sees the closed connection may retransmit requests.
            self.faults.count += 1;
        }
        match process {
            Process::Monitor(index) => self.apply_monitor(index, monitor::Event::Net(event)),
            Process::Osd(index) => {
                if let NetEvent::Received { message, .. } = &event {
                    self.watch_arrival(index, end, message);
                }
                self.apply_osd(index, node::Event::Net(event))
            }
            Process::Client(index) => self.apply_client(index, volume::Event::Net(event)),
            Process::Operator => self.operator_event(event),
        }
    }

    /// Draws how many of the effects are executed, and whether the process dies after them.
    pub(super) fn draw_death(&mut self, count: usize, chance: Chance) -> (usize, bool) {
        if self.chaos.chance(chance) { (self.chaos.index(count + 1), true) } else { (count, false) }
    }

    /// Logs the log lines among the effects of a process and removes them, so that the process cannot
    /// die between them.
    pub(super) fn take_lines<E>(
        &self,
        process: Process,
        effects: &mut Vec<E>,
        line_of: fn(&E) -> Option<&TraceEvent>,
    ) {
        effects.retain(|effect| match line_of(effect) {
            Some(event) => {
                self.trace.log(self.now, process, event);
                false
            }
            None => true,
        });
    }

    // ---- OSDs

    pub(super) fn apply_osd(&mut self, index: usize, event: node::Event) -> Result<(), String> {
        let local = self.local(Process::Osd(index));
        let day = self.day();
        let osd = &mut self.osds[index];
        let Some(node) = &mut osd.node else { return Ok(()) };
        node.set_time_of_day(local, day * 1000);
        self.trace.line(format_args!("{:?} osd{index} {}", self.now, name_of(&event)));
        let mut effects = Vec::new();
        node.apply(local, event, &mut effects);
        if self.timing.chance(Chance::percent(60)) {
            node.finish_turn(local, &mut effects);
        } else if !osd.turn_due {
            osd.turn_due = true;
            let after = Duration::from_nanos(self.timing.below(20_000));
            self.schedule(after, Item::OsdTurn(index));
        }
        self.carry_out_osd(index, effects)
    }

    pub(super) fn carry_out_osd(
        &mut self,
        index: usize,
        mut effects: Vec<node::Effect>,
    ) -> Result<(), String> {
        let process = Process::Osd(index);
        self.take_lines(process, &mut effects, |effect| match effect {
            node::Effect::Trace(event) => Some(event),
            _ => None,
        });
        effects.retain(|effect| !matches!(effect, node::Effect::LogLevel(_)));
        let (until, dies) = self.draw_death(effects.len(), self.faults.rates.osd_dies);
        for effect in effects.into_iter().take(until) {
            match effect {
                node::Effect::Disk(effect) => {
                    let work = DiskWork::of(&effect);
                    let op = self.osds[index].submit(self.now, effect);
                    let mut after = 1 + self.timing.below(self.plan.disk_latency * 2);
                    let slowness = self.osds[index].slowness.factor(self.now);
                    if let Some(factor) = slowness {
                        after *= factor;
                    } else if self.timing.chance(self.plan.slow_disk) {
                        after *= 100;
                        self.tally.faults.add("slow disk operation", 1);
                    }
                    self.schedule(Duration::from_nanos(after), Item::Disk(index, op, work));
                }
                node::Effect::Engine(effect) => self.submit_to_engine(index, effect)?,
                node::Effect::Net(effect) => self.net_effect(process, effect)?,
                node::Effect::Joined { .. } if self.osds[index].is_foreign => {
                    return Err(format!("osd {index} is foreign and takes part"));
                }
                node::Effect::Joined { incarnation } => {
                    self.osds[index].incarnation = incarnation;
                    self.osds[index].settle_damage();
                }
                node::Effect::Trace(_) | node::Effect::LogLevel(_) => unreachable!("taken above"),
                node::Effect::Stop(node::StopReason::Stalled) => return self.begins_anew(index),
                node::Effect::Stop(reason) => {
                    let osd = &self.osds[index];
                    let is_asked = reason == node::StopReason::Shutdown && osd.is_stopping;
                    if is_asked || osd.is_foreign {
                        self.osd_stopped(index);
                        return Ok(());
                    }
                    if self.osds[index].must_stop || self.osds[index].heal() {
                        return self.kill(process);
                    }
                    return Err(format!("osd {index} ends: {reason:?}"));
                }
            }
        }
        if dies && self.osds[index].node.is_some() { self.kill(process) } else { Ok(()) }
    }

    fn disk_done(&mut self, index: usize, op: DiskOp, work: DiskWork) -> Result<(), String> {
        let now = self.now;
        let fails = work == DiskWork::Change && self.chaos.chance(self.faults.rates.disk_error);
        let read_fails = self.read_fails(index, work);
        let osd = &mut self.osds[index];
        osd.ended(now);
        let disk = osd.disk.as_mut().expect("its operation ends");
        let event = if read_fails {
            let error = DiskError::Io("simulated read error".into());
            disk.fail(op, error, &mut self.medium)
        } else if fails {
            osd.must_stop = true;
            self.fault("disk write error");
            let error = DiskError::Io("simulated write error".into());
            self.osds[index].disk.as_mut().expect("as above").fail(op, error, &mut self.medium)
        } else {
            disk.complete(op, None, &mut self.medium)
        };
        self.apply_osd(index, node::Event::Disk(event))
    }

    /// Returns whether a read fails, either once or until the unreadable page is written.
    fn read_fails(&mut self, index: usize, work: DiskWork) -> bool {
        let DiskWork::Read { offset, length } = work else { return false };
        let osd = &self.osds[index];
        if osd.is_unreadable(offset, length) {
            return true;
        }
        if !self.chaos.chance(self.faults.rates.read_error) {
            return false;
        }
        let layout = osd.layout.as_ref().expect("its disk is read");
        let is_data = (layout.data.offset..layout.data.end()).contains(&offset);
        let is_copied = self.plan.position_count() > 1;
        let is_open = osd.incarnation != Incarnation::ZERO;
        if is_copied && !(is_data && is_open && self.may_rot(index)) {
            return false;
        }
        self.faults.rot_happened = true;
        self.faults.knowledge_rotted |= !is_data;
        self.fault("disk read error");
        true
    }

    // ---- clients

    pub(super) fn apply_client(
        &mut self,
        index: usize,
        event: volume::Event,
    ) -> Result<(), String> {
        let local = self.local(Process::Client(index));
        let Some(core) = &mut self.clients[index].core else { return Ok(()) };
        let mut effects = Vec::new();
        core.apply(local, event, &mut effects);
        self.take_lines(Process::Client(index), &mut effects, |effect| match effect {
            volume::Effect::Trace(event) => Some(event),
            _ => None,
        });
        let (until, dies) = self.draw_death(effects.len(), self.faults.rates.client_dies);
        for effect in effects.into_iter().take(until) {
            self.client_effect(index, effect)?;
        }
        if dies { self.kill(Process::Client(index)) } else { Ok(()) }
    }
}

fn name_of(event: &node::Event) -> String {
    match event {
        node::Event::Disk(format::door::DiskEvent::Read { op, .. }) => format!("{op:?} read"),
        node::Event::Disk(format::door::DiskEvent::Done { op, result }) => {
            format!("{op:?} done {result:?}")
        }
        node::Event::Net(NetEvent::Received { connection, message }) => match message {
            format::wire::Message::Request(request) => format!(
                "{connection:?} request {} {} {}",
                request.session, request.sequence, request.pg
            ),
            Message::Peer(message) => {
                let text = format!("{:?}", message.body);
                let end = text.char_indices().nth(160).map_or(text.len(), |(at, _)| at);
                let (pg, epoch) = (message.pg, message.epoch);
                format!("{connection:?} {pg} epoch {epoch} {}", &text[..end])
            }
            message => format!("{connection:?} {message:?}"),
        },
        event => format!("{event:?}"),
    }
}
