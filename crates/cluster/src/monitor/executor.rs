//! Runs jobs one at a time: each job is planned from the committed state and written, and planned again until
//! it is done.

use std::collections::BTreeMap;

use base::{Time, TraceEvent};

use super::committed_state::{Batch, Write};
use super::connections::to_text;
use super::copies::change_of_copy;
use super::give_up::MembersGiveUp;
use super::job::{Done, Found, Job, Opened, Plan};
use super::job_queue::InFlight;
use super::lines::trace_writes;
use super::osd_change::{plan_osd_remove, plan_osd_set_in};
use super::removal::plan_pool_cleared;
use super::{Effect, Monitor, busy};
use crate::message::{Command, FromMonitor};
use crate::records::{ClusterRecord, Key, Record, Rest, STATE_FORMAT};
use crate::state::{KeyValue, StateEffect, StateRevision};

impl Monitor {
    /// Plans and starts jobs until one waits for the store.
    pub(super) fn run_jobs(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some(job) = self.jobs.next() {
            if self.settling.holds(&job) {
                self.settling.hold(job);
                continue;
            }
            if self.leave_silent_clients(now, &job, effects) {
                // The job comes again, behind the ends of the sessions that were in its way.
                self.jobs.push(job);
                continue;
            }
            match self.plan(now, &job) {
                Plan::Done(done) => self.finish(now, job, done, effects),
                Plan::Write { batch, done } => self.start(job, batch, done, effects),
            }
        }
    }

    fn plan(&self, now: Time, job: &Job) -> Plan {
        if self.is_older()
            && let Some(done) = self.left_undone(job)
        {
            return Plan::Done(done);
        }
        match job {
            Job::Restore(written) => self.plan_restore(written),
            Job::MarkEdited => self.plan_mark_edited(),
            Job::CreateCluster => self.plan_create_cluster(),
            Job::Boot(boot) => self.plan_boot(boot),
            Job::SyncOsd { osd } => self.plan_sync_osd(*osd),
            Job::OpenSession { connection, wants, client, .. } => {
                self.plan_open_session(now, *connection, wants, client)
            }
            Job::CloseSession { session, unanswered, .. } => {
                self.plan_close_session(*session, *unanswered)
            }
            Job::EndSession { session } => self.plan_end_session(*session),
            Job::ResumeSession { session, .. } => self.plan_resume_session(*session),
            Job::Command { command, .. } => self.plan_command(command),
            Job::GiveUpMembers(asked) => self
                .plan_give_up_members(asked)
                .unwrap_or_else(|error| Plan::Done(Done::Answer(Err(error)))),
            Job::Edit { key } => self.plan_edit(key),
            Job::PoolCleared { pool, osd } => plan_pool_cleared(&self.committed, *pool, *osd),
            Job::TaskProgress { task, pgs_done } => self.plan_task_progress(*task, *pgs_done),
            Job::TaskEnd { task } => self.plan_task_end(*task),
            Job::Entries => self.plan_entries(),
            Job::Replan { pool, planned } => self.plan_replan(*pool, planned),
            Job::OutOsd { osd } => self.plan_out_osd(*osd),
            Job::Stats => self.plan_stats(),
            Job::MonitorHere(record) => self.plan_monitor_here(record),
        }
    }

    fn plan_create_cluster(&self) -> Plan {
        if self.committed.cluster().is_some() {
            return Plan::Done(Done::Silent);
        }
        let record =
            ClusterRecord { id: self.identity.cluster, format: STATE_FORMAT, rest: Rest::new() };
        let mut batch = Batch::new(&self.committed);
        batch.put(&self.committed, Record::Cluster(record));
        Plan::Write { batch, done: Some(Done::Silent) }
    }

    fn plan_command(&self, command: &Command) -> Plan {
        let planned = match command {
            Command::PoolCreate { .. } => self.plan_pool_create(command),
            Command::VolumeCreate { volume, size, pool, gateway } => {
                self.plan_volume_create(volume, *size, pool.as_deref(), *gateway)
            }
            Command::VolumeResize { volume, size, shrink } => {
                self.plan_volume_resize(volume, *size, *shrink)
            }
            Command::VolumeRemove { volume, gateway } => self.plan_volume_remove(volume, *gateway),
            Command::VolumeUnlock { volume, accepted } => {
                self.plan_volume_unlock(volume, *accepted)
            }
            Command::OsdCreate { store } => self.plan_osd_create(store),
            Command::OsdOut { osd } => plan_osd_set_in(&self.committed, *osd, false),
            Command::OsdIn { osd } => plan_osd_set_in(&self.committed, *osd, true),
            Command::OsdRemove { osd } => plan_osd_remove(&self.committed, *osd),
            Command::PoolSet { .. } => self.plan_pool_set(command),
            Command::PoolRemove { pool, accepted } => self.plan_pool_remove(pool, *accepted),
            Command::StateRecover { .. } => unreachable!("it has a job of its own"),
            Command::StateUndo { accepted } => self.plan_state_undo(*accepted),
            Command::StatePut { key, value, force } => self.plan_state_put(key, value, *force),
            Command::PgGiveUp { they_are_off: true, .. } => {
                unreachable!("it has a job of its own")
            }
            Command::PgGiveUp { pg, accepted, .. } => self.plan_give_up(*pg, *accepted),
            Command::ConfigSet { setting, value } => {
                self.plan_config_set(setting, value.as_deref())
            }
            Command::MonitorCreate => self.plan_monitor_create(),
            Command::MonitorRemove { monitor } => self.plan_monitor_remove(*monitor),
            Command::PoolList
            | Command::MonitorList
            | Command::VolumeList
            | Command::SessionState { .. }
            | Command::VolumeInfo { .. }
            | Command::OsdList
            | Command::Table { .. }
            | Command::OsdTree
            | Command::PgList { .. }
            | Command::PgDescribe { .. }
            | Command::Status
            | Command::StateList { .. }
            | Command::StateGet { .. }
            | Command::ConfigList
            | Command::ConfigGet { .. }
            | Command::TaskList { .. } => unreachable!("queries change nothing"),
            Command::PgFix { .. } => unreachable!("it changes nothing of the state"),
            Command::PgScrub { .. } | Command::OsdScrub { .. } | Command::PoolScrub { .. } => {
                unreachable!("a scrub changes nothing of the state")
            }
        };
        planned.unwrap_or_else(|error| Plan::Done(Done::Answer(Err(error))))
    }

    fn start(&mut self, job: Job, batch: Batch, done: Option<Done>, effects: &mut Vec<Effect>) {
        let is_number_alone = matches!(job, Job::Edit { key: Key::Change });
        assert!(!batch.is_empty() || is_number_alone, "a plan that writes nothing is done");
        assert!(self.is_ready(), "only a leader that knows the state writes");
        let (transaction, writes) = batch.into_parts();
        let request = self.store.next_request();
        self.jobs.start(request, job, writes, done);
        effects.push(Effect::State(StateEffect::Transact { request, transaction }));
    }

    /// Handles the commit of the transaction in flight.
    pub(super) fn commit(
        &mut self,
        now: Time,
        in_flight: InFlight,
        revision: StateRevision,
        effects: &mut Vec<Effect>,
    ) {
        let InFlight { job, writes, done, .. } = in_flight;
        self.wrote_at(revision);
        self.take_writes(&job, writes, revision, effects);
        self.go_on(now, job, done, effects);
    }

    /// Applies the writes of a committed transaction.
    fn take_writes(
        &mut self,
        job: &Job,
        writes: Vec<Write>,
        revision: StateRevision,
        effects: &mut Vec<Effect>,
    ) {
        if matches!(job, Job::Command { .. } | Job::GiveUpMembers(_)) {
            for key in writes.iter().map(Write::key).filter(|key| *key != Key::Change) {
                self.watching.undone.forget(&key);
            }
        }
        let changes_map = writes.iter().any(Write::changes_map);
        let changes_settings = writes.iter().any(Write::changes_settings);
        let saves_stats = writes.iter().any(Write::saves_stats);
        trace_writes(&self.committed, &writes, effects);
        writes.iter().for_each(|write| self.foresee(write));
        if let Some(change) = change_of_copy(&writes) {
            let text = to_text(&change);
            for connection in self.osds.values().filter_map(|live| live.connection) {
                self.connections.send_text(connection, text.clone(), effects);
            }
        }
        self.committed.commit(writes, revision);
        self.on_entries_written();
        if changes_map {
            self.publish(effects);
        }
        if changes_settings {
            self.on_settings_changed(effects);
        }
        if saves_stats {
            self.tell_stats_saved(effects);
        }
    }

    /// Marks the follow-up work that a committed write may require.
    fn foresee(&mut self, write: &Write) {
        match write {
            Write::Put(Record::Osd(_)) | Write::Delete(Key::Osd(_)) => {
                self.entries.mark_all();
                self.planning.is_due = true;
                let Key::Osd(osd) = write.key() else { unreachable!("just matched") };
                self.look_at(osd, self.now);
            }
            Write::Put(Record::Pool(record)) => {
                let known = self.committed.pool(record.pool.id);
                if known.is_none_or(|known| known.pool != record.pool) {
                    self.entries.mark_all();
                    self.planning.is_due = true;
                }
            }
            Write::Put(Record::PgShard(record)) => self.entries.mark(record.pool, record.shard),
            Write::Put(Record::Stats(record)) => self.stats.saved(record),
            Write::Delete(Key::Stats(table, shard)) => self.stats.removed(*table, *shard),
            _ => {}
        }
    }

    /// Finds out, after everything was read again, whether the transaction in flight was committed, by the
    /// keys that it writes. If it was not committed, it never will be, because leadership has been taken
    /// since.
    pub(super) fn settle_in_flight(
        &mut self,
        now: Time,
        store: &BTreeMap<String, KeyValue>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(InFlight { job, writes, done, .. }) = self.jobs.take_in_flight() else { return };
        match self.happened_at(&writes, store) {
            Some(revision) => {
                self.take_writes(&job, writes, revision, effects);
                self.go_on(now, job, done, effects);
            }
            None => self.jobs.push_first(job),
        }
    }

    /// Returns the revision of the transaction with these writes, if it was committed. Some of its keys may
    /// have been edited by hand since, so one key with this monitor's value is sufficient. If the transaction
    /// put nothing, one deleted key is sufficient, whoever deleted it.
    fn happened_at(
        &self,
        writes: &[Write],
        store: &BTreeMap<String, KeyValue>,
    ) -> Option<StateRevision> {
        let before = |key: &Key| self.committed.revision(key);
        let mut puts = writes.iter().filter_map(|write| match write {
            Write::Put(record) => Some(record),
            Write::Delete(_) => None,
        });
        let has_puts = puts.clone().next().is_some();
        let put = puts.find_map(|record| {
            let entry = store.get(&record.key().to_string())?;
            let is_new = entry.revision > before(&record.key());
            let ours = record.to_json().to_string();
            (is_new && entry.value == ours).then_some(entry.revision)
        });
        let deleted = || {
            let is_gone = |write: &Write| {
                let key = write.key();
                before(&key) > StateRevision::ZERO && !store.contains_key(&key.to_string())
            };
            // The revision is unknown; zero is a revision that no key has.
            writes.iter().any(is_gone).then_some(StateRevision::ZERO)
        };
        if has_puts { put } else { deleted() }
    }

    /// Continues a job whose transaction has been applied to `committed`.
    fn go_on(&mut self, now: Time, job: Job, done: Option<Done>, effects: &mut Vec<Effect>) {
        let job = match job {
            Job::Boot(boot) => Job::Boot(self.on_boot_written(now, boot, effects)),
            other => other,
        };
        self.track_tasks();
        match done {
            Some(done) => self.finish(now, job, done, effects),
            None => self.jobs.push_first(job),
        }
    }

    fn finish(&mut self, now: Time, job: Job, done: Done, effects: &mut Vec<Effect>) {
        match (job, done) {
            (
                Job::Command { connection, request, .. }
                | Job::GiveUpMembers(MembersGiveUp { connection, request, .. }),
                Done::Answer(result),
            ) => {
                self.connections.answer(connection, request, result, effects);
            }
            (Job::Boot(boot), Done::Booted(incarnation)) => {
                self.finish_boot(now, &boot, incarnation, effects);
            }
            (Job::Boot(boot), Done::BootRefused(error)) => {
                let event = TraceEvent::warn("OSD is refused").with("osd", boot.osd);
                let event = event.with("code", &error.code).with("why", &error.message);
                effects.push(Effect::Trace(event.with("host", &boot.host)));
                self.connections.send(boot.connection, &FromMonitor::OsdRefused { error }, effects);
                self.push_sync_known_osd(boot.osd);
            }
            (Job::Boot(boot), Done::BootOutdated) => {
                self.close(now, boot.connection, effects);
                self.push_sync_known_osd(boot.osd);
            }
            (Job::Boot(boot), Done::BootFromFuture) => self.ask_all(boot, effects),
            (Job::Restore(written), Done::Restored(answer)) => {
                self.finish_restore(&written, answer, effects);
            }
            (Job::Command { connection, request, .. }, Done::Restored(answer)) => {
                self.on_restored(connection, request, answer, effects);
            }
            (Job::Command { connection, request, .. }, Done::GivenUp(pg)) => {
                self.await_given_up(now, (connection, request), pg);
            }
            (Job::MarkEdited, Done::PutBack) => self.put_back(),
            (Job::Boot(boot), Done::Silent) => self.push_sync_known_osd(boot.osd),
            (Job::OpenSession { connection, request, .. }, Done::SessionOpened(opened)) => {
                let Opened { session, found } = opened;
                let event = TraceEvent::debug("session begins").with("session", session);
                self.connect_session(now, session, connection);
                let reign = self.committed.session(session).map_or(0, |record| record.reign);
                let (event, answer) = match found {
                    Found::Image { image, locked, lazy } => {
                        if locked {
                            self.sessions.note_lock(now, session);
                        }
                        let event = event.with("volume", &image.name);
                        (
                            event,
                            FromMonitor::SessionOpened {
                                request,
                                session,
                                image,
                                locked,
                                lazy,
                                reign,
                            },
                        )
                    }
                    Found::Pool(pool) => {
                        let event = event.with("pool", &pool.name);
                        (event, FromMonitor::PoolOpened { request, session, pool, reign })
                    }
                };
                effects.push(Effect::Trace(event));
                self.connections.send(connection, &answer, effects);
            }
            (job @ Job::OpenSession { connection, request, .. }, Done::SessionWaits(holder)) => {
                if !self.sessions.wait(holder, job) {
                    let refused = FromMonitor::SessionRefused { request, error: busy() };
                    self.connections.send(connection, &refused, effects);
                }
            }
            (Job::OpenSession { connection, request, .. }, Done::SessionRefused(error)) => {
                let refused = FromMonitor::SessionRefused { request, error };
                self.connections.send(connection, &refused, effects);
            }
            (job, Done::SessionClosed(session)) => {
                let event = TraceEvent::debug("session is closed").with("session", session);
                effects.push(Effect::Trace(event));
                if let Job::CloseSession { connection, .. } = job {
                    self.connections.send(
                        connection,
                        &FromMonitor::SessionClosed { session },
                        effects,
                    );
                }
                self.forget_session(session);
            }
            (_, Done::SessionSilent(session)) => self.on_session_silent(session),
            (Job::ResumeSession { connection, .. }, Done::SessionResumed(session)) => {
                self.connect_session(now, session, connection);
            }
            (Job::ResumeSession { connection, .. }, Done::SessionEnded(session)) => {
                self.connections.send(connection, &FromMonitor::SessionEnded { session }, effects);
                self.forget_session(session);
            }
            (Job::Command { connection, request, .. }, Done::Unlocked(session, answer)) => {
                self.on_session_ended(session, effects);
                self.connections.answer(connection, request, Ok(answer), effects);
            }
            (Job::Edit { key }, Done::Edited(verdict)) => {
                self.finish_edit(now, key, verdict, effects);
            }
            (Job::SyncOsd { osd }, Done::Silent) => self.on_osd_synced(osd),
            (Job::Stats, _) => self.stats.job_ended(),
            (Job::Entries, Done::EntriesSettled) => self.on_entries_settled(),
            (Job::Replan { pool, .. }, Done::Replanned(failed)) => {
                self.finish_replan(pool, failed);
            }
            (Job::TaskProgress { task, .. }, Done::Silent) => self.tasks.on_progress_recorded(task),
            (_, Done::MonitorsChanged) => self.on_monitors_changed(effects),
            (_, Done::Silent) => {}
            (job, done) => unreachable!("{job:?} cannot end as {done:?}"),
        }
    }
}
