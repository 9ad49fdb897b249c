//! The drill: a member goes while everything else is well, and nobody may wait longer than that
//! takes by design.

use base::{Duration, Time};

use super::Process;
use super::plan::Departure;
use super::users::Handle;
use super::world::{Item, World};

/// Between two writes of the drill.
const WRITE_EVERY: Duration = Duration::from_millis(4);

/// How long it writes before the member goes.
const CALM: Duration = Duration::from_millis(400);

/// How long it goes on then.
const SPAN: Duration = Duration::from_secs(5);

/// A drill under way.
pub struct Drill {
    attached: Handle,
    /// When it ends.
    end: Time,
    /// Whom it takes, how and when.
    pub(super) victim: usize,
    departure: Departure,
    leaves_at: Option<Time>,
    /// The longest answer since the member went took so long.
    longest: Duration,
}

impl Drill {
    /// An operation is answered. One from before the member went says nothing about that: a client
    /// that could not reach an OSD a moment ago may still wait before it calls it again.
    pub(super) fn note_answer(&mut self, now: Time, asked_at: Time) {
        if self.leaves_at.is_none() {
            self.longest = self.longest.max(now.since(asked_at));
        }
    }
}

/// How long an operation may take when a member goes so.
fn longest_of(departure: Departure) -> Duration {
    match departure {
        Departure::Killed => Duration::from_millis(500),
        Departure::Silent => Duration::from_millis(3000),
        Departure::Stopped => Duration::from_millis(200),
    }
}

impl World {
    /// Holds the drill, if there is to be one. Requires: the cluster is whole, and no fault happens.
    pub(super) fn hold_drill(&mut self) -> Result<(), String> {
        let Some(departure) = self.plan.drill else { return Ok(()) };
        // Whoever waits for a while before it calls a monitor again has called by then.
        let end = self.now + Duration::from_secs(2);
        self.wait("time stands still", |world| world.now > end)?;
        self.wait_until_whole()?;
        let members: Vec<usize> = (0..self.osds.len())
            .filter(|index| {
                let id = self.osds[*index].id;
                let leads = |entry: &&format::wire::PgEntry| entry.primary == id && id.is_some();
                self.watch.entries().any(|entry| leads(&entry))
            })
            .collect();
        let Some(attached) = self.attach_for_drill()? else { return Ok(()) };
        if members.is_empty() {
            return Ok(());
        }
        let victim = *self.chaos.pick(&members);
        self.plan.disk_latency = self.plan.disk_latency.min(100_000);
        self.net.calm_down(50_000);
        self.drill = Some(Drill {
            attached,
            end: self.now + CALM + SPAN,
            victim,
            departure,
            leaves_at: Some(self.now + CALM),
            longest: Duration::ZERO,
        });
        self.schedule(WRITE_EVERY, Item::Drill);
        self.wait("an operation of the drill is never answered", |world| {
            let is_over = world.drill.as_ref().is_none_or(|drill| world.now > drill.end);
            is_over && world.clients.iter().all(|client| client.open.is_empty())
        })?;
        let drill = self.drill.take().expect("it is under way");
        let wakes = self.net.heal_all(self.now);
        self.wake(wakes);
        self.osds[drill.victim].stays_down = false;
        if !self.is_running(Process::Osd(drill.victim)) {
            self.schedule(Duration::ZERO, Item::Start(Process::Osd(drill.victim)));
        }
        let most = longest_of(departure);
        self.trace.line(format_args!("{:?} drill: {departure:?} {:?}", self.now, drill.longest));
        if drill.longest > most {
            return Err(format!(
                "osd {} goes ({departure:?}), and an operation takes {:?}, not {most:?} at most",
                drill.victim, drill.longest
            ));
        }
        self.detach_all()?;
        self.wait_until_whole()
    }

    /// A write of the drill; and at its time the member goes.
    pub(super) fn drill_turn(&mut self) -> Result<(), String> {
        let Some(drill) = &mut self.drill else { return Ok(()) };
        if self.now > drill.end {
            return Ok(());
        }
        let (attached, victim, departure) = (drill.attached, drill.victim, drill.departure);
        let leaves = drill.leaves_at.take_if(|at| *at <= self.now).is_some();
        self.schedule(WRITE_EVERY, Item::Drill);
        if leaves {
            self.fault("OSD gone in a drill");
            self.osds[victim].stays_down = true;
            match departure {
                Departure::Killed => self.kill(Process::Osd(victim))?,
                Departure::Stopped => self.stop_osd(victim)?,
                Departure::Silent => self.silence(Process::Osd(victim)),
            }
        }
        self.write_for_drill(attached)
    }

    /// Nothing passes between a process and any other one; no connection breaks by that.
    fn silence(&mut self, process: Process) {
        let osds = (0..self.osds.len()).map(Process::Osd);
        let clients = (0..self.clients.len()).map(Process::Client);
        for other in osds.chain(clients).chain([Process::Monitor]) {
            if other != process {
                self.net.hold_back(process, other, true);
            }
        }
    }
}
