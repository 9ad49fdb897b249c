//! The failover drill: a member leaves while everything else works. No operation may take longer than a
//! failover of this kind takes by design.

use base::Duration;

use super::agenda::Item;
use super::drill::Drill;
use super::plan::Departure;
use super::process::Process;
use super::world::World;

/// The interval between operations of the drill.
const ASK_EVERY: Duration = Duration::from_millis(4);

/// How long the cluster must be calm before the drill. Longer than elsewhere, because a process that
/// left a silent monitor allows the next monitor more time.
const CALM_FOR: Duration = Duration::from_secs(6);

/// How long the disk hangs: to the end of the drill.
const HANGS_FOR: Duration = Duration::from_secs(12);

/// How long a connection with a monitor may be silent before it is closed.
const TIME_OUT: Duration = Duration::from_secs(2);

impl World {
    /// Runs the drill, if the plan has one. Requires: the cluster is whole, and no fault happens.
    pub(super) fn run_drill(&mut self) -> Result<(), String> {
        let Some(mut departure) = self.plan.drill else { return Ok(()) };
        if self.hangs.takes_drill() {
            departure = Departure::DiskHangs;
        }
        if self.wait_until_whole_for(CALM_FOR)?.is_some() {
            return Ok(());
        }
        let members: Vec<usize> = (0..self.osds.len())
            .filter(|index| {
                let id = self.osds[*index].id;
                let leads =
                    |entry: &&format::wire::PgEntry| id.is_some() && entry.primary_osd() == id;
                self.watch.entries().any(|entry| leads(&entry))
            })
            .collect();
        let Some(attached) = self.attach_one(None)? else { return Ok(()) };
        if members.is_empty() {
            return Ok(());
        }
        let victim = *self.chaos.pick(&members);
        self.plan.disk_latency = self.plan.disk_latency.min(100_000);
        self.net.calm_down(50_000);
        self.drill = Some(Drill::new(self.now, attached, victim, departure));
        self.schedule(ASK_EVERY, Item::Drill);
        // Data that rotted unnoticed at other members has no good copy while the member is away.
        let must_be_whole = std::mem::replace(&mut self.faults.must_be_whole, false);
        self.wait("an operation of the drill is never answered", |world| {
            let is_over = world.drill.as_ref().is_none_or(|drill| drill.is_over(world.now));
            is_over && world.clients.iter().all(|client| client.open.is_empty())
        })?;
        let drill = self.drill.take().expect("it is under way");
        let wakes = self.net.heal_all(self.now);
        self.wake(wakes);
        self.state.heal();
        self.end_hangs();
        self.osds[drill.victim].stays_down = false;
        if !self.is_running(Process::Osd(drill.victim)) {
            self.schedule(Duration::ZERO, Item::Start(Process::Osd(drill.victim)));
        }
        let (longest_calm, longest) = drill.longest();
        self.trace
            .line(format_args!("{:?} drill: {departure:?} {longest_calm:?} {longest:?}", self.now));
        drill.judge()?;
        self.detach_all()?;
        self.wait_until_whole()?;
        self.faults.must_be_whole = must_be_whole;
        Ok(())
    }

    /// Runs one turn of the drill: issues an operation and, at its time, makes the member leave.
    pub(super) fn drill_turn(&mut self) -> Result<(), String> {
        let Some(drill) = &mut self.drill else { return Ok(()) };
        if drill.is_over(self.now) {
            return Ok(());
        }
        let (attached, victim, departure) = (drill.attached, drill.victim, drill.departure);
        let leaves = drill.leaves_now(self.now);
        let silent_until = drill.silent_until(self.now);
        self.schedule(ASK_EVERY, Item::Drill);
        if leaves {
            self.fault("OSD gone in a drill");
            self.osds[victim].stays_down = departure != Departure::DiskHangs;
            match departure {
                Departure::DiskHangs => self.hang(victim, HANGS_FOR),
                Departure::Killed => self.kill(Process::Osd(victim))?,
                Departure::Stopped => self.stop_osd(victim)?,
                Departure::Silent => self.silence(Process::Osd(victim)),
                Departure::SilentWithLeader => {
                    self.fault("leading monitor gone in a drill");
                    self.silence(Process::Osd(victim));
                    let leader = self.agreed_leader().expect("all has been well");
                    self.silence(Process::Monitor(leader));
                    let wakes = self.net.time_out(self.now, Process::Monitor(leader), TIME_OUT);
                    self.wake(wakes);
                    self.state.cut_off(leader, silent_until);
                }
                Departure::SilentWithFollower => {
                    self.fault("following monitor gone in a drill");
                    self.silence(Process::Osd(victim));
                    let follower = self.follower_of(Process::Client(attached.client));
                    self.silence(Process::Monitor(follower));
                    self.state.cut_off(follower, silent_until);
                }
            }
        }
        self.ask_for_drill(attached)
    }

    /// Returns a monitor that does not lead, preferably the one that this process is connected to.
    fn follower_of(&self, process: Process) -> usize {
        let leader = self.agreed_leader().expect("all has been well");
        let followers = || (0..self.monitors.len()).filter(|index| *index != leader);
        let is_of = |index: &usize| self.net.has_connection(process, Process::Monitor(*index));
        followers().find(is_of).or_else(|| followers().next()).expect("there are several monitors")
    }

    /// Holds back all messages between a process and all others, without breaking a connection.
    pub(super) fn silence(&mut self, process: Process) {
        self.silence_servers(process);
        for client in 0..self.clients.len() {
            self.net.hold_back(process, Process::Client(client), true);
        }
    }

    /// Like `silence`, but lets messages to and from clients through.
    pub(super) fn silence_servers(&mut self, process: Process) {
        let osds = (0..self.osds.len()).map(Process::Osd);
        for other in osds.chain(self.monitor_processes()).filter(|other| *other != process) {
            self.net.hold_back(process, other, true);
        }
    }
}
