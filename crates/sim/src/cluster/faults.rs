//! Random faults of a cluster: when they happen, and their direct effects.

use base::{Duration, OsdId, UNIT_SIZE};

use super::agenda::Item;
use super::client::CutOff;
use super::net::Wake;
use super::osd::{Flip, Osd};
use super::process::Process;
use super::world::World;
use crate::disk::Crash;
use crate::random::Chance;
use crate::register::Moment;

impl World {
    /// Injects faults at random. Called after each event.
    pub(super) fn inject_faults(&mut self) -> Result<(), String> {
        if let Some(truce) = self.faults.truce {
            return self.keep_truce(truce);
        }
        let faults = self.faults.rates;
        if self.stage_is_work() {
            self.hang_some();
            self.slow_some();
        }
        if self.chaos.chance(faults.connection_breaks)
            && let Some((one, other, wakes)) = self.net.break_any(self.now)
        {
            self.trace.line(format_args!("{:?} {one:?} - {other:?} breaks", self.now));
            self.fault("connection broken");
            self.wake(wakes);
        }
        if self.chaos.chance(faults.partition) {
            let one = self.draw_process();
            let other = self.draw_process();
            if one != other {
                let both = self.chaos.chance(Chance::percent(60));
                self.fault(if both { "partition" } else { "partition one way" });
                let longest = Duration::from_millis(self.chaos.scale(20..4000));
                self.cut(one, other, both, longest);
            }
        }
        if self.net.is_whole() && self.chaos.chance(faults.isolation) {
            self.isolate();
        }
        if self.net.is_whole() && self.chaos.chance(faults.monitor_isolation) {
            self.isolate_from_monitors(None);
        }
        if self.chaos.chance(faults.leader) {
            self.disturb_leader()?;
        }
        if self.chaos.chance(faults.freeze) {
            let process = self.draw_process();
            let span = Duration::from_millis(self.chaos.scale(10..5000));
            self.freeze(process, span);
        }
        if self.chaos.chance(faults.many_die) {
            self.kill_many()?;
        }
        if self.chaos.chance(faults.osd_stops) {
            let index = self.chaos.index(self.osds.len());
            if self.is_running(Process::Osd(index)) {
                self.fault("OSD stopped by its operator");
                self.stop_osd(index)?;
            }
        }
        if self.chaos.chance(faults.rot) {
            self.rot();
        }
        Ok(())
    }

    /// Cuts a client off from its monitors, or stops its process, until its session has ended. While a
    /// process is stopped, its connections remain open.
    pub(super) fn cut_off_client(&mut self) {
        let client = self.chaos.index(self.clients.len());
        let process = Process::Client(client);
        let is_frozen = self.runs.frozen_until(process).is_some();
        let volume = self.clients[client].attached_volumes().next().filter(|_| !is_frozen);
        let Some(volume) = volume else {
            return self.schedule(Duration::from_millis(50), Item::CutOffClient);
        };
        self.faults.cut_off = Some(CutOff { client, volume });
        let span = if self.chaos.chance(Chance::percent(30)) {
            self.fault("client stopped");
            let span = Duration::from_millis(self.chaos.range(14_000..22_000));
            self.freeze(process, span);
            span
        } else {
            self.fault("client cut off its monitor");
            let span = Duration::from_millis(self.chaos.range(12_000..20_000));
            self.cut_off_monitors(process, span);
            span
        };
        self.schedule(span, Item::ReconnectClient);
    }

    fn draw_process(&mut self) -> Process {
        let osds = self.osds.len();
        let clients = self.clients.len();
        let monitors = self.monitors.len();
        match self.chaos.index(monitors + osds + clients) {
            draw if draw < monitors => Process::Monitor(draw),
            draw if draw < monitors + osds => Process::Osd(draw - monitors),
            draw => Process::Client(draw - monitors - osds),
        }
    }

    /// Cuts an OSD off from all processes except clients. Clients that are cut off from the monitors
    /// keep sending requests to this OSD, so its successor must wait until the OSD no longer serves.
    fn isolate(&mut self) {
        self.fault("OSD cut off all but clients");
        let index = self.chaos.index(self.osds.len());
        let span = Duration::from_millis(self.chaos.scale(300..8000));
        let others = (0..self.osds.len()).filter(|other| *other != index).map(Process::Osd);
        for other in others.chain(self.monitor_processes()).collect::<Vec<_>>() {
            self.cut(Process::Osd(index), other, true, span);
        }
        self.cut_off_some_clients(span);
    }

    /// Cuts an OSD off from the monitors only: it keeps its map while other OSDs get a newer one, and
    /// it requests leases from them. `client`, or some random clients, are cut off too, and keep
    /// sending requests to the OSD.
    pub(super) fn isolate_from_monitors(&mut self, client: Option<usize>) {
        self.fault("OSD cut off the monitors only");
        let index = self.chaos.index(self.osds.len());
        let span = Duration::from_millis(self.chaos.scale(1000..10_000));
        self.cut_off_monitors(Process::Osd(index), span);
        match client {
            Some(client) => self.cut_off_monitors(Process::Client(client), span),
            None => self.cut_off_some_clients(span),
        }
    }

    /// Returns whether faults may happen and no two processes are cut off from each other.
    pub(super) fn may_isolate(&self) -> bool {
        self.faults.truce.is_none() && self.net.is_whole()
    }

    fn cut_off_some_clients(&mut self, span: Duration) {
        for client in 0..self.clients.len() {
            if self.chaos.chance(Chance::percent(50)) {
                self.cut_off_monitors(Process::Client(client), span);
            }
        }
    }

    fn cut_off_monitors(&mut self, process: Process, span: Duration) {
        for monitor in self.monitor_processes() {
            self.cut(process, monitor, true, span);
        }
    }

    /// Freezes a process: it handles no event for a while, but its host's clock continues.
    pub(super) fn freeze(&mut self, process: Process, span: Duration) {
        if !self.is_running(process) || self.runs.frozen_until(process).is_some() {
            return;
        }
        self.trace.line(format_args!("{:?} {process:?} stands still for {span:?}", self.now));
        self.fault("process stood still");
        self.runs.freeze(process, self.now + span);
        match process {
            Process::Monitor(_) => self.watch.monitor_stands_still(self.now + span),
            Process::Osd(index) => self.osds[index].hang.stands_still(self.now),
            Process::Client(_) | Process::Operator => {}
        }
    }

    /// Kills several OSDs, or all, at once.
    fn kill_many(&mut self) -> Result<(), String> {
        let runs = |index: &usize| self.is_running(Process::Osd(*index));
        let mut running: Vec<usize> = (0..self.osds.len()).filter(runs).collect();
        if running.len() < 2 {
            return Ok(());
        }
        self.chaos.shuffle(&mut running);
        let count = if self.chaos.chance(Chance::percent(30)) {
            running.len()
        } else {
            2 + self.chaos.index(running.len() - 1)
        };
        let all = count == running.len();
        self.fault(if all { "all OSDs killed at once" } else { "several OSDs killed at once" });
        // The OSDs share a power supply: all or none of them lose power.
        let power = self.chaos.chance(Chance::percent(50));
        running
            .into_iter()
            .take(count)
            .try_for_each(|index| self.kill_by(Process::Osd(index), power.then_some(Crash::Power)))
    }

    /// Stops an OSD, as its operator does.
    pub(super) fn stop_osd(&mut self, index: usize) -> Result<(), String> {
        self.osds[index].is_stopping = true;
        self.apply_osd(index, node::Event::Shutdown)
    }

    /// Handles the clean exit of an OSD's process.
    pub(super) fn osd_stopped(&mut self, index: usize) {
        let process = Process::Osd(index);
        self.trace.line(format_args!("{:?} {process:?} ends", self.now));
        let wakes = self.net.process_left(self.now, process);
        self.end_run(process, wakes);
        self.osds[index].ends();
        let disk = self.osds[index].disk.as_mut().expect("it ran");
        disk.crash(Crash::Process, &mut self.medium);
        self.schedule_start(process);
    }

    pub(super) fn cut(&mut self, one: Process, other: Process, both: bool, span: Duration) {
        let ways = if both { "and" } else { "to" };
        let now = self.now;
        self.trace.line(format_args!("{now:?} {one:?} {ways} {other:?} cut for {span:?}"));
        let wakes = self.net.cut(self.now, one, other, both);
        self.wake(wakes);
        self.schedule(span, Item::Heal(one, other));
    }

    /// Returns the volume that the cut-off client had attached, if a client is cut off.
    pub(super) fn stale_volume(&self) -> Option<usize> {
        self.faults.cut_off.map(|cut_off| cut_off.volume)
    }

    /// Returns whether a client believes that it has the volume attached.
    pub(super) fn is_attached_by_someone(&self, volume: usize) -> bool {
        self.clients.iter().any(|client| client.attached_volumes().any(|held| held == volume))
    }

    /// Flips a bit that was durably written long ago, in any area of a disk, or makes a page of the
    /// data area unreadable.
    fn rot(&mut self) {
        let index = self.chaos.index(self.osds.len());
        let now = self.now;
        let area = self.chaos.weighted(&[9, 4, 6, 4, 1]);
        // With several copies, this function rots only data; `fault_budget.rs` injects all other
        // damage.
        let is_copied = self.plan.position_count() > 1;
        if is_copied && (area >= 2 || !self.may_rot(index)) {
            return;
        }
        let osd = &mut self.osds[index];
        osd.note_idle(now);
        let (Some(layout), settled) = (&osd.layout, osd.settled) else { return };
        let (kind, area) = match area {
            0 => ("rot in the data area", layout.data.offset..layout.data.end()),
            1 => ("unreadable sector", layout.data.offset..layout.data.end()),
            2 => ("rot in the journal", layout.journal.offset..layout.journal.end()),
            3 => {
                ("rot in the checkpoint area", layout.checkpoints.offset..layout.checkpoints.end())
            }
            _ => ("rot in a superblock", 0..UNIT_SIZE),
        };
        let is_data = area.start == layout.data.offset;
        // Only one copy of the store's metadata may rot at a time.
        osd.forget_written_flips();
        if !is_data && osd.flips.iter().any(|flip| area.contains(&flip.offset)) {
            return;
        }
        let Some(disk) = &mut osd.disk else { return };
        let mut pages: Vec<u64> = disk
            .written_pages()
            .filter(|page| area.contains(page) && disk.written_last(*page) <= settled)
            .collect();
        if pages.is_empty() {
            return;
        }
        if !is_data {
            // Damage only the newest pages: most older pages are no longer needed.
            pages.sort_by_key(|page| disk.written_last(*page));
            pages.drain(..pages.len() / 4 * 3);
        }
        let page = *self.chaos.pick(&pages);
        if !disk.is_quiet(page) {
            return;
        }
        self.trace.line(format_args!("{now:?} {kind} at {page} of osd {index}"));
        if kind == "unreadable sector" {
            osd.unreadable.insert(page);
        } else {
            let (offset, mask) = (page + self.chaos.below(UNIT_SIZE), 1 << self.chaos.below(8));
            disk.rot(offset, mask);
            if !is_data {
                osd.flips.push(Flip { offset, mask, age: disk.written_last(page) });
            }
        }
        self.faults.rot_happened = true;
        self.fault(kind);
        if !is_data {
            self.faults.knowledge_rotted = true;
            // The store reads most of its metadata only when it opens, so restart the OSD soon.
            let after = Duration::from_millis(self.chaos.scale(1..100));
            self.schedule(after, Item::Crash(index));
        }
    }

    /// Kills an OSD, if it is running and faults may happen.
    pub(super) fn crash(&mut self, index: usize) -> Result<(), String> {
        let runs = self.osds[index].node.is_some();
        if runs && self.stage_is_work() { self.kill(Process::Osd(index)) } else { Ok(()) }
    }

    /// Kills a process without warning: it sends nothing more.
    pub(super) fn kill(&mut self, process: Process) -> Result<(), String> {
        self.kill_by(process, None)
    }

    /// Kills those of the given processes that are running.
    pub(super) fn kill_all(
        &mut self,
        processes: impl IntoIterator<Item = Process>,
    ) -> Result<(), String> {
        for process in processes {
            if self.is_running(process) {
                self.kill(process)?;
            }
        }
        Ok(())
    }

    /// Kills a process. `crash`: how an OSD crashes; `None`: drawn at random.
    pub(super) fn kill_by(&mut self, process: Process, crash: Option<Crash>) -> Result<(), String> {
        self.trace.line(format_args!("{:?} {process:?} dies", self.now));
        let life = self.life(process);
        let silent = self.chaos.chance(Chance::percent(10)) && self.drill.is_none();
        let wakes = self.net.process_died(self.now, process, silent);
        self.end_run(process, wakes);
        match process {
            Process::Monitor(index) => {
                self.fault("monitor killed");
                self.monitor_died(index, (index, life));
            }
            Process::Osd(index) => self.kill_osd(index, crash),
            Process::Client(index) => {
                self.fault("client killed");
                self.clients[index].die();
                self.object_user_died(index);
                self.note_left(|(client, _)| client == index);
            }
            Process::Operator => return Err("nobody kills the operator".into()),
        }
        self.schedule_start(process);
        Ok(())
    }

    /// Ends the run of a process, and drops all events that were scheduled for it.
    pub(super) fn end_run(&mut self, process: Process, wakes: Vec<Wake>) {
        self.runs.end(process);
        self.wake(wakes);
    }

    pub(super) fn schedule_start(&mut self, process: Process) {
        if matches!(process, Process::Osd(index) if self.osds[index].stays_down) {
            return;
        }
        let pause = Duration::from_nanos(self.chaos.scale(100_000..3_000_000_000));
        self.schedule_at(self.now.max(self.faults.power_off_until) + pause, Item::Start(process));
    }

    fn kill_osd(&mut self, index: usize, crash: Option<Crash>) {
        let is_power = crash == Some(Crash::Power);
        let power = is_power || self.chaos.chance(Chance::percent(50));
        let crash = if power { Crash::Power } else { Crash::Process };
        self.fault(if power { "OSD power cut" } else { "OSD killed" });
        let osd = &mut self.osds[index];
        osd.ends();
        let disk = osd.disk.as_mut().expect("it ran");
        let report = disk.crash(crash, &mut self.medium);
        self.tally.faults.add("unflushed write lost", report.lost);
        self.tally.faults.add("unflushed write torn", report.torn);
        self.tally.faults.add("unflushed writes reordered", report.reordered);
        if power {
            self.note_power_loss(index);
        }
    }

    /// Starts a process.
    pub(super) fn start(&mut self, process: Process) -> Result<(), String> {
        let is_gone = matches!(process, Process::Osd(index) if self.osds[index].is_gone);
        if is_gone || self.is_running(process) {
            return Ok(());
        }
        self.trace.line(format_args!("{:?} {process:?} starts", self.now));
        match process {
            Process::Monitor(index) => {
                self.start_monitor(index);
                Ok(())
            }
            Process::Osd(index) => {
                let mut effects = Vec::new();
                let pool = self.pool.clone();
                let (now, cluster) = (self.local(process), self.cluster);
                self.osds[index].start(now, cluster, index, &self.plan, pool, &mut effects);
                self.carry_out_osd(index, effects)
            }
            Process::Client(index) => {
                let pool = self.pool.clone();
                self.clients[index].start(&self.plan, pool);
                self.schedule(Duration::from_millis(1), Item::ClientTurn(index));
                self.object_user_starts(index);
                Ok(())
            }
            Process::Operator => Ok(()),
        }
    }

    /// Creates the store of an OSD that has received its id, and starts its process.
    pub(super) fn create_osd(&mut self, index: usize, id: OsdId) -> Result<(), String> {
        if self.osds[index].id.is_some() {
            return Err(format!("osd {index} gets a second id: {id}"));
        }
        let osd = &mut self.osds[index];
        osd.create(id, self.cluster, &self.plan);
        if self.objects.is_some() {
            osd.engine.create(osd.store);
        }
        self.start(Process::Osd(index))
    }

    /// Adds an OSD that the operator will create later.
    pub(super) fn add_osd(&mut self, host: usize) {
        let index = self.osds.len();
        self.osds.push(Osd::new(self.seed, index, host));
    }

    /// Counts a fault that may cause a retransmission.
    pub(super) fn fault(&mut self, name: &'static str) {
        self.faults.count += 1;
        self.tally.faults.add(name, 1);
    }

    /// Returns a moment that is later than all moments returned before.
    pub(super) fn moment(&mut self) -> Moment {
        self.counts.next_moment()
    }

    /// Returns a value that has never been written.
    pub(super) fn next_value(&mut self) -> u64 {
        self.counts.next_value()
    }
}
