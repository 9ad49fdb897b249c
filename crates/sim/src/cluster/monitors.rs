//! Starts, runs and stops monitors. One monitor leads by its lease; the others relay their connections to it.

use base::Duration;
use cluster::monitor;
use cluster::state::StateEvent;

use super::agenda::Item;
use super::monitor::MonitorProcess;
use super::process::Process;
use super::state::{MonitorRun, StateStep, Step};
use super::world::World;
use crate::random::Chance;

/// How long a monitor that is being stopped tries to release its lease.
const RETIRE_TIME_MAX: Duration = Duration::from_secs(1);

impl World {
    /// Returns all monitors.
    pub(super) fn monitor_processes(&self) -> impl Iterator<Item = Process> + use<> {
        (0..self.monitors.len()).map(Process::Monitor)
    }

    pub(super) fn start_monitor(&mut self, index: usize) {
        let (count, is_embedded) = (self.monitors.len(), self.plan.is_embedded);
        self.monitors[index] =
            MonitorProcess::start(index, count, self.cluster, self.now, is_embedded);
    }

    /// Returns the monitors that believe they lead.
    fn leaders(&self) -> Vec<usize> {
        let leads = |index: &usize| self.monitors[*index].follows(*index);
        (0..self.monitors.len()).filter(leads).collect()
    }

    /// Returns the leader, if all monitors run and agree on it.
    pub(super) fn agreed_leader(&self) -> Option<usize> {
        let [leader] = self.leaders()[..] else { return None };
        self.monitors.iter().all(|monitor| monitor.follows(leader)).then_some(leader)
    }

    pub(super) fn apply_monitor(
        &mut self,
        index: usize,
        event: monitor::Event,
    ) -> Result<(), String> {
        let local = self.local(Process::Monitor(index));
        let Some(election) = &mut self.monitors[index].election else { return Ok(()) };
        self.trace.line(format_args!("{:?} monitor {index} {event:?}", self.now));
        let mut effects = Vec::new();
        election.apply(local, event, &mut effects);
        self.carry_out_monitor(index, effects)
    }

    fn carry_out_monitor(
        &mut self,
        index: usize,
        mut effects: Vec<monitor::Effect>,
    ) -> Result<(), String> {
        let process = Process::Monitor(index);
        self.take_lines(process, &mut effects, |effect| match effect {
            monitor::Effect::Trace(event) => Some(event),
            _ => None,
        });
        effects.retain(|effect| !matches!(effect, monitor::Effect::LogLevel(_)));
        let run = (index, self.life(process));
        let (until, dies) = self.draw_death(effects.len(), self.faults.rates.monitor_dies);
        for effect in effects.into_iter().take(until) {
            match effect {
                monitor::Effect::Net(effect) => self.net_effect(process, effect)?,
                monitor::Effect::State(effect) => {
                    let faults = self.faults.rates.state;
                    let steps = self.state.apply(self.now, run, effect, faults, &mut self.tally)?;
                    self.schedule_state(steps);
                }
                monitor::Effect::Ready => self.tally.consequences.add("monitor came to lead", 1),
                monitor::Effect::Trace(_) | monitor::Effect::LogLevel(_) => {
                    unreachable!("taken above")
                }
                monitor::Effect::Stop(reason) => {
                    return Err(format!("monitor {index} ends: {reason:?}"));
                }
            }
        }
        if dies {
            return self.kill(process);
        }
        if self.monitors[index].has_retired() {
            self.monitor_stopped(index);
        }
        Ok(())
    }

    pub(super) fn schedule_state(&mut self, steps: Vec<Step>) {
        for Step { at, what } in steps {
            // A monitor run that has ended receives no replies.
            if let StateStep::Tell((index, life), _) = &what
                && self.life(Process::Monitor(*index)) != *life
            {
                continue;
            }
            self.schedule_at(at, Item::State(what));
        }
    }

    /// Executes a step of the state store.
    pub(super) fn take_state(&mut self, step: StateStep) -> Result<(), String> {
        let steps = match step {
            StateStep::Tell((index, _), event) => {
                return self.apply_monitor(index, monitor::Event::State(event));
            }
            StateStep::Reach { run, effect, is_told } => {
                self.trace.line(format_args!("{:?} {effect:?} of {run:?} comes late", self.now));
                self.state.reach(self.now, run, effect, is_told, &mut self.tally)?
            }
            StateStep::EndLeases => self.state.end_leases(self.now),
        };
        self.schedule_state(steps);
        Ok(())
    }

    /// Handles the end of a monitor's process.
    pub(super) fn monitor_died(&mut self, index: usize, run: MonitorRun) {
        self.monitors[index] = MonitorProcess::default();
        self.state.run_ended(self.now, run);
    }

    /// Stops a monitor, as its operator does.
    fn stop_monitor(&mut self, index: usize) -> Result<(), String> {
        let monitor = &mut self.monitors[index];
        let Some(election) = &mut monitor.election else { return Ok(()) };
        monitor.is_stopping = true;
        let mut effects = Vec::new();
        election.retire(&mut effects);
        self.schedule(RETIRE_TIME_MAX, Item::MonitorEnds(index));
        self.carry_out_monitor(index, effects)
    }

    /// Ends a monitor that is being stopped, whether or not it has released its lease.
    pub(super) fn monitor_stopped(&mut self, index: usize) {
        let process = Process::Monitor(index);
        self.trace.line(format_args!("{:?} {process:?} ends", self.now));
        let run = (index, self.life(process));
        let wakes = self.net.process_left(self.now, process);
        self.end_run(process, wakes);
        self.monitor_died(index, run);
        self.schedule_start(process);
    }

    /// Disturbs a monitor that leads, or believes that it leads.
    pub(super) fn disturb_leader(&mut self) -> Result<(), String> {
        let leaders = self.leaders();
        if leaders.is_empty() {
            return Ok(());
        }
        let index = *self.chaos.pick(&leaders);
        let process = Process::Monitor(index);
        let span = Duration::from_millis(self.chaos.scale(50..6000));
        match self.chaos.below(5) {
            0 => {
                self.fault("leading monitor killed");
                self.kill(process)?;
            }
            1 => {
                self.fault("leading monitor stood still");
                self.freeze(process, span);
            }
            2 => {
                self.fault("leading monitor cut off the state store");
                self.cut_off_state(index, span);
            }
            3 => {
                self.fault("leading monitor cut off the others");
                let others = self.monitor_processes().filter(|other| *other != process);
                let osds = (0..self.osds.len()).map(Process::Osd);
                for other in others.chain(osds).collect::<Vec<_>>() {
                    let is_osd = matches!(other, Process::Osd(_));
                    if !is_osd || self.chaos.chance(Chance::percent(50)) {
                        self.cut(process, other, true, span);
                    }
                }
            }
            _ => {
                self.fault("leading monitor stopped by its operator");
                self.stop_monitor(index)?;
            }
        }
        Ok(())
    }

    /// Cuts a monitor off from the state store for a span. The monitor notices only if the span is long
    /// enough.
    pub(super) fn cut_off_state(&mut self, index: usize, span: Duration) {
        let until = self.now + span;
        self.trace.line(format_args!("{:?} monitor {index} cut off the store", self.now));
        self.state.cut_off(index, until);
        let run = (index, self.life(Process::Monitor(index)));
        let noticed = self.now + Duration::from_millis(self.chaos.range(1..2000));
        let tell = |at, trouble: Option<&str>| {
            let trouble = trouble.map(str::to_string);
            Step { at, what: StateStep::Tell(run, StateEvent::Condition { trouble }) }
        };
        if noticed < until {
            self.schedule_state(vec![
                tell(noticed, Some("the store does not answer")),
                tell(until, None),
            ]);
        }
    }
}
