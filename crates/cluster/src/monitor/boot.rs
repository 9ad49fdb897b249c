//! How an OSD joins, and what changes in its PGs when a new run begins.
//!
//! A new run gets its incarnation from the counter in the OSD's record, and ends the epoch of every PG that
//! has this OSD as a member: new entries with the next epoch and the new incarnation are written in batches.
//! If the monitor stops between batches, some entries have an older incarnation than the OSD's record. Those
//! PGs are not served, because the OSD has not received its incarnation yet, and its next boot refreshes
//! them.
//!
//! A boot message may arrive late, over a connection that its sender has already left, because another
//! monitor may have delayed it. So a boot that would end a run waits until its sender has confirmed it over
//! the same connection. A process that is gone, or has moved to another connection, does not confirm it.

use base::{ConnectionId, Incarnation, OsdId, Time};
use format::door::Role;
use format::wire::Member;

use super::committed_state::Batch;
use super::copies::whole_copy;
use super::job::{Boot, Done, Job, Plan};
use super::{Effect, Monitor, busy, clipped, failure};
use crate::message::{Failure, FromMonitor, ToMonitor};
use crate::records::{CounterName, OsdRecord, OutBy, Record};

/// Maximum number of OSDs in a cluster.
const OSD_COUNT_MAX: usize = 10_000;

impl Monitor {
    pub(super) fn on_boot(
        &mut self,
        now: Time,
        connection: ConnectionId,
        message: ToMonitor,
        effects: &mut Vec<Effect>,
    ) {
        let ToMonitor::OsdBoot {
            osd,
            store,
            addresses,
            peer_addresses,
            pid,
            path,
            host,
            supervised,
            incarnation,
            suspect,
            stalled,
            damaged_pools,
            slow,
            seen,
            engine,
        } = message
        else {
            unreachable!("the caller matched it");
        };
        let boot = Boot {
            connection,
            osd,
            run: incarnation,
            store,
            addresses,
            peer_addresses,
            pid,
            path: clipped(path),
            host: clipped(host),
            supervised,
            suspect,
            stalled,
            damaged_pools,
            slow,
            seen,
            engine,
            given: None,
        };
        let ends_a_run =
            boot.run.is_none() && self.admitted(&boot).is_ok() && !self.has_newer_connection(&boot);
        if !ends_a_run {
            return self.push_boot(now, boot, effects);
        }
        let nonce = self.event_last;
        let boots = &mut self.osds.entry(osd).or_default().boots;
        boots.retain(|connection, _| self.connections.is_here(*connection));
        boots.insert(connection, (nonce, boot));
        self.connections.send(connection, &FromMonitor::Probe { nonce }, effects);
    }

    /// Handles an OSD's answer to a probe; returns true if the probe asked the OSD to confirm its boot.
    pub(super) fn confirm_boot(
        &mut self,
        now: Time,
        connection: ConnectionId,
        nonce: u64,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let Role::Osd(osd, _) = self.connections.role(connection) else { return false };
        let Some(live) = self.osds.get_mut(&osd) else { return false };
        if live.boots.get(&connection).is_none_or(|(asked, _)| *asked != nonce) {
            return false;
        }
        let (_, boot) = live.boots.remove(&connection).expect("just seen");
        self.push_boot(now, boot, effects);
        true
    }

    fn push_boot(&mut self, now: Time, boot: Boot, effects: &mut Vec<Effect>) {
        let connection = boot.connection;
        // What the OSD has seen may be enough to show that the store is up to date.
        let has_seen = self.settling.is_on() && boot.seen.change > 0;
        if has_seen && self.admitted(&boot).is_ok() && self.why_older_than(&boot).is_none() {
            self.jobs.extend(self.settling.end());
        }
        if !self.try_push_job(Job::Boot(boot)) {
            // The OSD reconnects and tries again.
            self.close(now, connection, effects);
        }
    }

    pub(super) fn plan_boot(&self, boot: &Boot) -> Plan {
        if self.is_older() || self.why_older_than(boot).is_some() {
            return match self.connections.is_here(boot.connection) {
                true if !self.has_newer_connection(boot) => Plan::Done(Done::BootFromFuture),
                true => Plan::Done(Done::BootOutdated),
                false => Plan::Done(Done::Silent),
            };
        }
        if let Some(incarnation) = boot.given {
            return match self.entries_batch(true) {
                Some(batch) => Plan::Write { batch, done: None },
                None => Plan::Done(Done::Booted(incarnation)),
            };
        }
        if !self.connections.is_here(boot.connection) {
            return Plan::Done(Done::Silent);
        }
        if self.has_newer_connection(boot) {
            return Plan::Done(Done::BootOutdated);
        }
        let record = match self.admitted(boot) {
            Ok(record) => record,
            Err(error) => return Plan::Done(Done::BootRefused(error)),
        };
        let incarnation = boot.run.unwrap_or_else(|| record.info.incarnation.next());
        let mut changed = record.clone();
        // An OSD that a recovery found only in PG entries has no store id yet.
        changed.store.clone_from(&boot.store);
        changed.info.addresses = boot.addresses.clone();
        changed.info.peer_addresses = boot.peer_addresses.clone();
        changed.info.incarnation = incarnation;
        changed.info.up = true;
        if boot.run.is_none() {
            changed.suspect = boot.suspect || self.is_still_suspect(record);
        }
        if changed.out_by == Some(OutBy::Monitor) {
            changed.set_in(true, OutBy::Monitor);
        }
        changed.pid = boot.pid;
        changed.path = boot.path.clone();
        changed.host = boot.host.clone();
        changed.supervised = boot.supervised;
        changed.engine = boot.engine;
        if changed == *record {
            return Plan::Done(Done::Booted(incarnation));
        }
        changed.info.revision = self.committed.osd_revision_max() + 1;
        let mut batch = Batch::new(&self.committed);
        batch.put(&self.committed, Record::Osd(changed));
        Plan::Write { batch, done: None }
    }

    /// Whether the OSD's last run was suspect and a PG's entry still contains an older run of the OSD: its
    /// copy of that PG has not been refilled since. A store can report only the damage that it has detected.
    fn is_still_suspect(&self, record: &OsdRecord) -> bool {
        let osd = record.info.id;
        let is_older = |m: &Member| m.osd == osd && m.incarnation < record.info.incarnation;
        let pools = self.committed.pools();
        let mut entries = pools.flat_map(|pool| self.committed.pgs(pool.pool.id));
        record.suspect && entries.any(|entry| entry.acting().any(is_older))
    }

    /// Returns the OSD's record, if the OSD may join.
    pub(super) fn admitted(&self, boot: &Boot) -> Result<&OsdRecord, Failure> {
        let osd = boot.osd;
        let Some(record) = self.committed.osd(osd) else {
            return Err(failure(
                "not_found",
                format!("this cluster has no {osd}"),
                "create it with `ashlar osd create`",
            ));
        };
        if !record.store.is_empty() && record.store != boot.store {
            return Err(failure(
                "other_store",
                format!(
                    "{osd} is registered with store {}, but this disk has store {}",
                    record.store, boot.store
                ),
                "this disk belongs to another OSD, or was formatted again: `ashlar osd create` \
                 makes it a new OSD with its own id",
            ));
        }
        if boot.run.is_some_and(|run| run != record.info.incarnation) {
            return Err(stale_run(osd));
        }
        let live = self.osds.get(&osd).and_then(|live| live.connection);
        let elsewhere = record.host != boot.host || record.path != boot.path;
        if live.is_some_and(|connection| connection != boot.connection) && elsewhere {
            return Err(failure(
                "running",
                format!(
                    "{osd} is already running: process {} on {}, {}",
                    record.pid, record.host, record.path
                ),
                "stop one of the two; never run a copy of a store",
            ));
        }
        Ok(record)
    }

    /// Whether the OSD has joined over a connection that is newer than this one: then the message is
    /// outdated and must not end the newer run.
    fn has_newer_connection(&self, boot: &Boot) -> bool {
        let joined = self.osds.get(&boot.osd).map_or(0, |live| live.joined_order);
        self.connections.order(boot.connection).is_some_and(|order| joined > order)
    }

    /// Handles a committed transaction of a boot job.
    pub(super) fn on_boot_written(
        &mut self,
        now: Time,
        mut boot: Boot,
        effects: &mut Vec<Effect>,
    ) -> Boot {
        if boot.given.is_none() {
            self.note_stall(now, boot.osd, boot.stalled, None, effects);
            self.note_damaged_pools(boot.osd, boot.damaged_pools.clone(), effects);
            self.note_slowness(boot.osd, boot.slow);
            let record = self.committed.osd(boot.osd).expect("its record was just written");
            boot.given = Some(record.info.incarnation);
            if record.suspect && boot.run.is_none() {
                self.notice(boot.osd);
            }
            if let Some(order) = self.connections.order(boot.connection) {
                self.osds.entry(boot.osd).or_default().joined_order = order;
            }
            if boot.run.is_none() {
                let starts = &mut self.osds.entry(boot.osd).or_default().starts;
                if let Some(end) = starts.note(now) {
                    self.entries.look_at(end);
                }
            }
            // The previous run is over, even if its connection still looks alive.
            let live = self.osds.get(&boot.osd).and_then(|live| live.connection);
            if let Some(old) = live.filter(|old| *old != boot.connection) {
                self.close(now, old, effects);
            }
        }
        boot
    }

    pub(super) fn finish_boot(
        &mut self,
        now: Time,
        boot: &Boot,
        incarnation: Incarnation,
        effects: &mut Vec<Effect>,
    ) {
        if !self.connections.is_here(boot.connection) {
            // The OSD disconnected while its PGs were refreshed, but its record still marks it as up.
            self.push_sync_osd(boot.osd);
            return;
        }
        self.note_stall(now, boot.osd, boot.stalled, None, effects);
        self.note_damaged_pools(boot.osd, boot.damaged_pools.clone(), effects);
        self.note_slowness(boot.osd, boot.slow);
        self.register_osd(now, boot.osd, boot.connection, boot.run.is_some(), effects);
        // While the boot was in progress, a job may have marked the OSD as down in its record.
        self.push_sync_osd(boot.osd);
        self.connections.send(boot.connection, &FromMonitor::OsdBooted { incarnation }, effects);
        self.send_settings(boot.connection, effects);
        self.greet_with_slow_disks(boot.connection, effects);
        for part in whole_copy(&self.committed) {
            self.connections.send(boot.connection, &part, effects);
        }
    }

    pub(super) fn plan_osd_create(&self, store: &str) -> Result<Plan, Failure> {
        let committed = &self.committed;
        if store.len() != 32 || !store.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(failure(
                "invalid",
                "the id of a store must have 32 hexadecimal digits",
                "create the OSD with `ashlar osd create`",
            ));
        }
        let store = store.to_ascii_lowercase();
        let answer = |id: u32| Done::Answer(Ok(serde_json::json!({ "id": id })));
        if let Some(known) = committed.osds().find(|record| record.store == store) {
            return Ok(Plan::Done(answer(known.info.id.get())));
        }
        if committed.osds().count() >= OSD_COUNT_MAX {
            return Err(busy());
        }
        let mut batch = Batch::new(committed);
        let number = batch.next_id(committed, CounterName::Osd)?;
        let id = u32::try_from(number).ok().and_then(OsdId::new).expect("counted from 1");
        let revision = committed.osd_revision_max() + 1;
        batch.put(committed, Record::Osd(OsdRecord::new(id, store, revision)));
        Ok(Plan::Write { batch, done: Some(answer(id.get())) })
    }
}

fn stale_run(osd: OsdId) -> Failure {
    failure(
        "stale_run",
        format!("a later run of {osd} has joined the cluster"),
        "this process will exit; if you did not start the other one, check whether a copy of this \
         OSD's disk runs elsewhere",
    )
}
