//! The operator's commands: create the cluster; create, resize and remove volumes; at the end, remove all
//! volumes and check that nothing is left.

use std::collections::BTreeSet;

use base::{ConnectionId, Duration, ImageId, OsdId, PgId, PoolId, UNIT_SIZE};
use cluster::message::{Command, Failure, FromMonitor, ToMonitor};
use cluster::monitor::is_not_done_yet;
use cluster::settings::Setting;
use format::door::{NetEffect, NetEvent};
use format::wire::{Member, Message, PgEntry};
use serde_json::Value;

use super::object_plan::OBJECT_POOL;
use super::object_users::PoolStage;
use super::operator::Job;
use super::osd::Osd;
use super::process::{Process, monitor_address};
use super::volume_model::{Life, Shape, Volume};
use super::world::World;
use crate::random::Chance;

/// A request that was held back by a partition is executed within this time, or never.
const LATE_MAX: Duration = Duration::from_secs(15);

impl World {
    /// Runs the operator's turn: sends the next command.
    pub(super) fn operator_turn(&mut self) -> Result<(), String> {
        if self.operator.jobs.is_empty() {
            if self.stage_is_work() {
                self.plan_job();
            }
            if self.operator.jobs.is_empty() && !self.faults.knowledge_rotted {
                return Ok(());
            }
        }
        if self.operator.jobs.is_empty() {
            self.operator.jobs.push_back(Job::FindSuspect);
        }
        let Some(connection) = self.operator.connection else {
            self.operator.connection_last += 2;
            let connection = ConnectionId::new(self.operator.connection_last);
            self.operator.connection = Some(connection);
            let address = monitor_address(self.chaos.index(self.monitors.len()));
            let effect = NetEffect::Connect { connection, address };
            return self.net_effect(Process::Operator, effect);
        };
        if !self.operator.is_connected || self.operator.waiting.is_some() {
            return Ok(());
        }
        let waits = matches!(self.operator.jobs[0], Job::AwaitTasks | Job::AwaitEmpty);
        let may_look = self.faults.knowledge_rotted && (waits || self.operator.tries == 0);
        if may_look && self.work.chance(Chance::percent(20)) {
            self.operator.do_first(Job::FindSuspect);
        }
        let job = self.operator.jobs[0].clone();
        if matches!(job, Job::CreateObjectPool) && !self.all_have_joined() {
            if self.osds.iter().any(|osd| osd.id.is_none()) {
                // A job behind it creates that OSD.
                self.operator.jobs.rotate_left(1);
                (self.operator.tries, self.operator.cut_off) = (0, None);
            }
            return Ok(());
        }
        if matches!(job, Job::FindLost) {
            self.operator.finish_job();
            let lost = self.pgs_that_wait_for_lost_members();
            lost.into_iter().for_each(|pg| self.operator.jobs.push_front(Job::GiveUpMembers(pg)));
            return Ok(());
        }
        let Some(command) = self.command_of(&job) else {
            self.operator.finish_job();
            return Ok(());
        };
        self.operator.request_last += 1;
        self.operator.tries += 1;
        let request = self.operator.request_last;
        self.operator.waiting = Some(request);
        self.trace.line(format_args!("{:?} operator: {command:?}", self.now));
        let text = serde_json::to_string(&ToMonitor::Command { request, command })
            .expect("a command is plain data");
        let message = Message::Control(text);
        self.net_effect(Process::Operator, NetEffect::Send { connection, message })
    }

    /// Returns whether the state names all OSDs as up, with their sizes: then the object pool is created.
    fn all_have_joined(&self) -> bool {
        let of_osds = self.state.entries().filter(|entry| entry.key.starts_with("osd/"));
        let values = of_osds.filter_map(|entry| serde_json::from_str::<Value>(&entry.value).ok());
        let is_up = |value: &Value| {
            value["up"] == true && value["size_bytes"].as_u64().is_some_and(|size| size > 0)
        };
        let up = values.filter(is_up).filter_map(|value| value["id"].as_u64());
        let up: BTreeSet<u64> = up.collect();
        let mut there = self.osds.iter().filter(|osd| !osd.is_gone);
        there.all(|osd| osd.id.is_some_and(|id| up.contains(&u64::from(id.get()))))
    }

    /// Plans the next change of a volume, a setting or an OSD.
    fn plan_job(&mut self) {
        let live: Vec<usize> = (0..self.volumes.len())
            .filter(|volume| self.volumes[*volume].life == Life::Live)
            .collect();
        let want = self.work.below(100);
        if self.chaos.chance(self.faults.rates.out) {
            self.plan_out();
        } else if self.chaos.chance(self.plan.unlocks)
            && let Some((client, volume)) = self.locked_by()
        {
            // In most cases the holder of the lock is cut off, together with an OSD that keeps serving
            // it.
            if self.chaos.chance(Chance::percent(60)) && self.may_isolate() {
                self.isolate_from_monitors(Some(client));
            }
            self.operator.jobs.push_back(Job::Unlock(volume));
        } else if live.len() < self.plan.volume_count && (live.is_empty() || want < 30) {
            let units = self.work.range(self.plan.volume_units / 2..self.plan.volume_units + 1);
            let number = self.volumes.len() as u64 + 1;
            // Volume names are reused, ids are not.
            let mut name = format!("v{}", number % 5);
            while self.volumes.iter().any(|other| other.life != Life::Gone && other.name == name) {
                name.push('x');
            }
            let plan = &self.plan;
            let shape = Shape::new(plan.scheme, plan.block_size, plan.pg_count);
            self.volumes.push(Volume::new(name, number, units.max(4), shape));
            self.operator.jobs.push_back(Job::Create(self.volumes.len() - 1));
        } else if let Some(volume) = self.stale_volume().filter(|volume| live.contains(volume)) {
            self.volumes[volume].life = Life::Changing;
            self.operator.jobs.push_back(Job::Remove(volume));
        } else if want == 14 {
            let milliseconds = self.work.range(100..3_000);
            self.operator.jobs.push_back(Job::Set(Setting::OsdReport, milliseconds));
        } else if !live.is_empty() && want < 14 {
            let volume = *self.work.pick(&live);
            let job = match self.work.below(3) {
                0 => Job::Remove(volume),
                _ => Job::Resize(volume, self.draw_size(volume)),
            };
            self.volumes[volume].life = Life::Changing;
            self.operator.jobs.push_back(job);
        }
    }

    /// Returns a client that believes it holds the lock of a live volume, and that volume.
    fn locked_by(&self) -> Option<(usize, usize)> {
        let clients = self.clients.iter().enumerate();
        let mut held = clients
            .flat_map(|(index, client)| client.locked_volumes().map(move |volume| (index, volume)));
        held.find(|(_, volume)| self.volumes[*volume].life == Life::Live)
    }

    /// Returns whether an unlock of the volume is under way.
    pub(super) fn is_being_unlocked(&self, volume: usize) -> bool {
        self.operator.is_unlocking(volume)
    }

    /// Returns the PGs whose remaining acting members are fewer than the minimum because other members
    /// lost their disks.
    fn pgs_that_wait_for_lost_members(&self) -> Vec<PgId> {
        let is_lost = |member: &&Member| {
            self.index_of(member.osd).is_none_or(|index| self.osds[index].is_gone)
        };
        let waits = |entry: &&PgEntry| {
            let lost = entry.acting().filter(is_lost).count();
            lost > 0 && entry.acting_count() - lost < self.watch.min_size(entry.pg.pool)
        };
        self.watch.all_entries().filter(waits).map(|entry| entry.pg).collect()
    }

    /// Plans to mark an OSD as out, or, if one is out, to bring it back in. Enough OSDs stay in to
    /// place all copies.
    fn plan_out(&mut self) {
        let is_there = |osd: &Osd| osd.id.is_some() && !osd.is_gone;
        let out = (0..self.osds.len()).find(|index| {
            let osd = &self.osds[*index];
            is_there(osd) && osd.is_out
        });
        if let Some(index) = out {
            return self.operator.jobs.push_back(Job::SetOut(index, false));
        }
        if self.domain_count_in() > self.plan.position_count() as usize {
            let index = self.chaos.index(self.osds.len());
            if is_there(&self.osds[index]) {
                self.operator.jobs.push_back(Job::SetOut(index, true));
            }
        }
    }

    /// Plans to bring all OSDs back in.
    pub(super) fn plan_all_in(&mut self) {
        for index in 0..self.osds.len() {
            if self.osds[index].is_out && !self.osds[index].is_gone {
                self.operator.jobs.push_back(Job::SetOut(index, false));
            }
        }
    }

    fn draw_size(&mut self, volume: usize) -> u64 {
        let units = self.volumes[volume].units;
        let most = self.plan.volume_units.max(units + 1);
        if self.work.chance(Chance::percent(50)) {
            self.work.range(units..most + 1)
        } else {
            self.work.range(4.min(units)..units + 1)
        }
    }

    /// Returns the command for a job, or `None` if there is nothing to do.
    fn command_of(&mut self, job: &Job) -> Option<Command> {
        let command = match job {
            Job::CreateOsd(index) => {
                Command::OsdCreate { store: self.osds[*index].store.to_string() }
            }
            Job::CreatePool => Command::PoolCreate {
                pool: "default".to_string(),
                scheme: Some(self.plan.scheme),
                min_size: Some(self.plan.min_size),
                pg_count: Some(self.plan.pg_count),
                failure_domain: Some(self.plan.failure_domain),
                block_size: Some(self.plan.block_size),
                objects: None,
            },
            Job::CreateObjectPool => {
                let pool = self.objects.as_mut()?;
                pool.stage = PoolStage::Asked;
                pool.plan.create()
            }
            Job::Create(volume) => Command::VolumeCreate {
                gateway: false,
                volume: self.volumes[*volume].name.clone(),
                size: self.volumes[*volume].units * UNIT_SIZE,
                pool: None,
            },
            Job::Remove(volume) => {
                Command::VolumeRemove { gateway: false, volume: self.volumes[*volume].name.clone() }
            }
            Job::Resize(volume, units) => {
                if self.volumes[*volume].units == *units {
                    return None;
                }
                let shrink = *units < self.volumes[*volume].units;
                if !shrink && self.volumes[*volume].awaits_deletion() {
                    // The monitor refuses it until then. Other jobs go first: the tasks may wait for them.
                    match self.volumes[*volume].life {
                        Life::Gone => {}
                        _ if self.operator.removes_all => {}
                        _ => self.operator.jobs.extend([Job::AwaitTasks, job.clone()]),
                    }
                    return None;
                }
                if !shrink {
                    let now = self.moment();
                    self.volumes[*volume].grows(now);
                }
                let name = self.volumes[*volume].name.clone();
                Command::VolumeResize { volume: name, size: *units * UNIT_SIZE, shrink }
            }
            Job::Unlock(volume) => {
                self.note_unlocked(*volume);
                let volume = self.volumes[*volume].name.clone();
                Command::VolumeUnlock { volume, accepted: true }
            }
            Job::Set(setting, milliseconds) => Command::ConfigSet {
                setting: setting.name().to_string(),
                value: Some(milliseconds.to_string()),
            },
            Job::RemovePool => Command::PoolRemove { pool: "default".to_string(), accepted: false },
            Job::RemoveObjectPool => {
                self.objects.as_mut()?.stage = PoolStage::Gone;
                Command::PoolRemove { pool: OBJECT_POOL.to_string(), accepted: true }
            }
            Job::FindSuspect => Command::PgList { pool: None },
            Job::FindLost => unreachable!("it asks nobody"),
            Job::GiveUpMembers(pg) => {
                self.watch.members_given_up(*pg);
                Command::PgGiveUp { pg: *pg, accepted: true, they_are_off: true, older_copy: false }
            }
            Job::GiveUp(number) => {
                let now = self.moment();
                self.moment();
                for volume in &mut self.volumes {
                    volume.give_up(*number, now);
                }
                self.operator.gave_up = true;
                let pg = PgId { pool: PoolId::FIRST, number: *number };
                Command::PgGiveUp { pg, accepted: true, they_are_off: false, older_copy: false }
            }
            Job::SetOut(index, is_out) => {
                let osd = self.osds[*index].id?;
                if *is_out { Command::OsdOut { osd } } else { Command::OsdIn { osd } }
            }
            Job::RemoveOsd(index) => Command::OsdRemove { osd: self.osds[*index].id? },
            Job::Recover { lost, .. } => {
                Command::StateRecover { they_are_lost: lost.clone(), accepted: true }
            }
            Job::Undo => Command::StateUndo { accepted: true },
            Job::AwaitTasks => Command::TaskList { image: None },
            Job::AwaitEmpty => Command::OsdList,
        };
        Some(command)
    }

    pub(super) fn operator_event(&mut self, event: NetEvent) -> Result<(), String> {
        match event {
            NetEvent::Connected { .. } => {
                self.operator.is_connected = true;
                Ok(())
            }
            NetEvent::Closed { .. } => {
                if self.operator.disconnected(self.now) {
                    self.tally.faults.add("operator's command interrupted", 1);
                }
                Ok(())
            }
            NetEvent::Accepted { .. } => Err("somebody connects to the operator".into()),
            NetEvent::Received { message, .. } => {
                let Message::Control(text) = message else {
                    return Err(format!("the monitor sent {message:?} to the operator"));
                };
                let message: FromMonitor =
                    serde_json::from_str(&text).map_err(|error| format!("{text}: {error}"))?;
                let FromMonitor::Answer { request, result } = message else { return Ok(()) };
                if self.operator.waiting != Some(request) {
                    return Ok(());
                }
                self.operator.waiting = None;
                self.trace.line(format_args!("{:?} operator hears {result:?}", self.now));
                self.operator.last = format!("{result:?}");
                self.heard(result)
            }
        }
    }

    fn heard(&mut self, result: Result<Value, Failure>) -> Result<(), String> {
        let first_try = self.operator.tries == 1;
        let job = self.operator.jobs.front().expect("it waits for a command").clone();
        match (job, result) {
            (Job::CreateOsd(index), Ok(answer)) => {
                let id = answer["id"].as_u64().and_then(|id| OsdId::new(id as u32));
                let id = id.ok_or_else(|| format!("osd create answers {answer}"))?;
                self.create_osd(index, id)?;
            }
            (Job::CreatePool, Ok(_)) => {}
            (Job::CreateObjectPool, Ok(_)) => self.object_pool_created(),
            (Job::CreateObjectPool, Err(failure)) if failure.code == "exists" => {
                self.object_pool_created();
            }
            (Job::RemoveObjectPool, Ok(_)) => {}
            (Job::RemoveObjectPool, Err(failure)) if failure.code == "not_found" && !first_try => {}
            (Job::CreatePool, Err(failure)) if failure.code == "exists" && !first_try => {}
            (Job::Create(volume), result) => match result {
                Ok(answer) => {
                    let id = answer["id"].as_u64().and_then(|id| ImageId::new(id as u32));
                    self.volumes[volume].image = id;
                    self.created(volume);
                }
                Err(failure) if failure.code == "exists" && !first_try => self.created(volume),
                Err(failure) => {
                    let late = self.late_of_that_name(volume).filter(|_| failure.code == "exists");
                    let Some(late) = late else { return self.refused(failure) };
                    self.operator.do_first(Job::Remove(late));
                    return Ok(());
                }
            },
            (Job::Remove(volume), result) => match result {
                Ok(_) => self.removed(volume),
                Err(failure) if failure.code == "not_found" && !first_try => self.removed(volume),
                // Give up only if a live client has the volume attached: the session of a cut-off or
                // dead client will expire, so retry.
                Err(failure)
                    if failure.code == "busy"
                        && !self.operator.removes_all
                        && self.stale_volume().is_none()
                        && self.operator.cut_off.is_none_or(|at| self.now > at + LATE_MAX) =>
                {
                    self.give_up_job(volume);
                }
                Err(failure) => return self.refused(failure),
            },
            (Job::Resize(volume, units), result) => match result {
                Ok(_) => self.resized(volume, units),
                // No earlier attempt succeeded: otherwise this attempt would have found nothing to
                // change.
                Err(failure) if failure.code == "busy" => self.give_up_job(volume),
                Err(failure) => return self.refused(failure),
            },
            (Job::Unlock(volume), Ok(_)) => {
                self.note_unlocked(volume);
                self.tally.operations.add("volume unlock", 1);
            }
            // The holder has released the lock, or an earlier attempt at this command has removed it.
            (Job::Unlock(volume), Err(failure)) if failure.code == "not_locked" => {
                self.note_unlocked(volume);
            }
            (Job::GiveUpMembers(_), Ok(_)) => {
                self.tally.faults.add("members lost below the minimum given up", 1);
            }
            // Three cases: an earlier attempt succeeded; or the PG continues with learners that the
            // remaining member has filled; or the monitor has not noticed the loss yet, and then a
            // later search finds the PG again.
            (Job::GiveUpMembers(_), Err(failure)) if failure.code == "invalid" => {}
            // The only remaining member is restarting: retry.
            (Job::GiveUpMembers(_), Err(failure)) if failure.code == "unavailable" => return Ok(()),
            (Job::SetOut(index, is_out), Ok(_)) => {
                self.osds[index].is_out = is_out;
                self.tally.operations.add(if is_out { "OSD out" } else { "OSD in" }, 1);
            }
            (Job::RemoveOsd(_), Ok(_)) => self.tally.operations.add("OSD removed", 1),
            (Job::RemoveOsd(_), Err(failure)) if failure.code == "not_found" && !first_try => {}
            (Job::RemoveOsd(_), Err(failure)) if failure.code == "busy" => {
                self.operator.do_first(Job::FindLost);
                return Ok(());
            }
            (Job::Set(..), Ok(_)) => self.tally.operations.add("config set", 1),
            (Job::RemovePool, Ok(_)) => self.pool_removed(),
            (Job::RemovePool, Err(failure)) if failure.code == "not_found" && !first_try => {
                self.pool_removed();
            }
            (Job::RemovePool, Err(failure)) if self.came_late(&failure).is_some() => {
                let volume = self.came_late(&failure).expect("just seen");
                self.operator.do_first(Job::Remove(volume));
                return Ok(());
            }
            (Job::FindSuspect, Ok(answer)) => {
                self.operator.finish_job();
                let rows = answer.as_array().ok_or_else(|| format!("pg ls: {answer}"))?;
                let is_of_volumes = |row: &&Value| row["pool"] == PoolId::FIRST.get();
                let waits =
                    |row: &&Value| row["why"].as_str().is_some_and(|why| why.contains("give-up"));
                for number in rows
                    .iter()
                    .filter(is_of_volumes)
                    .filter(waits)
                    .filter_map(|row| row["number"].as_u64())
                {
                    self.operator.jobs.push_front(Job::GiveUp(number as u32));
                }
                return Ok(());
            }
            (Job::GiveUp(_), Ok(_)) => self.tally.faults.add("suspect PG given up", 1),
            // If the PG still waits, a later search will find it again.
            (Job::GiveUp(_), Err(failure))
                if matches!(
                    failure.code.as_str(),
                    "busy" | "invalid" | "unavailable" | "unconfirmed"
                ) => {}
            (Job::Recover { .. }, Ok(_)) => self.tally.operations.add("state recover", 1),
            (Job::Recover { since, mut lost }, Err(failure)) => {
                // The restored state does not contain this OSD: at the time of the backup it was not
                // yet created, or already removed.
                if failure.code == "not_found" {
                    lost.retain(|osd| !failure.message.contains(&osd.to_string()));
                    self.operator.jobs[0] = Job::Recover { since, lost };
                    return Ok(());
                }
                // Retry, unless an earlier attempt succeeded or nothing is missing from the state.
                if failure.code != "invalid" || !self.is_not_older(since) {
                    return Ok(());
                }
            }
            (Job::Undo, Ok(_)) => self.tally.operations.add("state undo", 1),
            // The monitor has not noticed the edit yet, or the edit was undone in another way.
            (Job::Undo, Err(failure)) if failure.code == "invalid" => {
                if self.state.edited().is_some() {
                    return Ok(());
                }
            }
            (Job::AwaitTasks, Ok(answer)) => {
                if answer.as_array().is_none_or(|tasks| !tasks.is_empty()) {
                    // Tasks may wait for PGs that lost members: give up those members first.
                    if self.operator.jobs.iter().any(|job| matches!(job, Job::FindLost)) {
                        self.operator.jobs.push_back(Job::AwaitTasks);
                        self.operator.finish_job();
                    }
                    return Ok(());
                }
                let now = self.moment();
                for volume in &mut self.volumes {
                    volume.tasks_ended();
                    if volume.life == Life::Gone {
                        volume.removed(now);
                    }
                }
            }
            (Job::AwaitEmpty, Ok(answer)) => {
                let rows = answer.as_array().ok_or_else(|| format!("osd ls: {answer}"))?;
                let used = |row: &Value| row["used_bytes"].as_u64() != Some(0);
                if rows.iter().any(used) {
                    return Ok(());
                }
            }
            (Job::FindLost, Ok(_)) => unreachable!("it asks nobody"),
            (_, Err(failure)) => return self.refused(failure),
        }
        self.operator.finish_job();
        Ok(())
    }

    /// Handles a refused command: returns an error, unless a retry may help.
    fn refused(&self, failure: Failure) -> Result<(), String> {
        let code = failure.code.as_str();
        if matches!(code, "busy" | "cannot_place") || is_not_done_yet(code) {
            return Ok(());
        }
        Err(format!("{:?} is refused: {failure:?}", self.operator.jobs[0]))
    }

    /// Returns a removed volume that keeps the pool from being removed: a create command for it was
    /// executed after its removal, and the reply to that command was lost.
    fn came_late(&self, failure: &Failure) -> Option<usize> {
        let names = failure.message.split_once("volumes: ")?.1;
        self.unsure_and_gone(|volume| names.split(", ").any(|name| name == volume.name))
    }

    /// Returns a volume that was created late, as in `came_late`, and now occupies the name of
    /// `volume`.
    fn late_of_that_name(&self, volume: usize) -> Option<usize> {
        let name = &self.volumes[volume].name;
        self.unsure_and_gone(|volume| volume.name == *name)
    }

    fn unsure_and_gone(&self, is_it: impl Fn(&Volume) -> bool) -> Option<usize> {
        let mut unsure = self.operator.unsure.iter().copied();
        unsure.find(|index| {
            let volume = &self.volumes[*index];
            volume.life == Life::Gone && is_it(volume)
        })
    }

    /// Gives up the current job and leaves the volume as it is.
    fn give_up_job(&mut self, volume: usize) {
        self.volumes[volume].life = Life::Live;
    }

    fn created(&mut self, volume: usize) {
        self.tally.operations.add("volume create", 1);
        self.volumes[volume].life = Life::Live;
    }

    fn removed(&mut self, volume: usize) {
        self.tally.operations.add("volume remove", 1);
        if self.is_attached_by_someone(volume) {
            self.tally.faults.add("removal with a stale session", 1);
        }
        self.volumes[volume].life = Life::Gone;
        self.operator.jobs.insert(1, Job::AwaitTasks);
    }

    fn object_pool_created(&mut self) {
        self.tally.operations.add("object pool create", 1);
        if let Some(pool) = &mut self.objects {
            pool.stage = PoolStage::There;
        }
    }

    fn pool_removed(&mut self) {
        self.tally.operations.add("pool remove", 1);
    }

    fn resized(&mut self, volume: usize, units: u64) {
        let volume = &mut self.volumes[volume];
        if units < volume.units {
            self.tally.operations.add("volume shrink", 1);
            volume.shrunk(units);
        } else {
            self.tally.operations.add("volume grow", 1);
            volume.units = units;
        }
        volume.life = Life::Live;
    }

    /// Plans the end of the run: all volumes are removed, and nothing of them may be left.
    pub(super) fn plan_removal_of_all(&mut self) {
        self.operator.removes_all = true;
        for volume in 0..self.volumes.len() {
            if self.volumes[volume].life != Life::Gone {
                self.volumes[volume].life = Life::Changing;
                self.operator.jobs.push_back(Job::Remove(volume));
            }
        }
        // Removing the pool removes everything in the pool. If the pool stays, a PG that was given up
        // may have lost a deletion, and then blocks of removed volumes remain.
        let removes_pool = self.work.chance(Chance::percent(50));
        if removes_pool {
            self.operator.jobs.push_back(Job::RemovePool);
        }
        if self.objects.is_some() {
            self.operator.jobs.push_back(Job::RemoveObjectPool);
        }
        self.operator.jobs.push_back(Job::AwaitTasks);
        if removes_pool || !self.operator.gave_up {
            self.operator.jobs.push_back(Job::AwaitEmpty);
        }
    }
}
