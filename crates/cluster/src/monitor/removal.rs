//! Changing and removing pools.
//!
//! One transaction removes a pool, its entries and its fences, and records which OSDs may still hold data of
//! the pool: the name can be reused at once, and the id is never reused. Each of these OSDs is asked to clear
//! the pool whenever it connects, until it reports that it holds nothing of the pool. The record is deleted
//! when the last OSD has reported.

use base::{ConnectionId, Incarnation, OsdId, PoolId, Time};
use serde_json::{Value, json};

use super::committed_state::{Batch, CommittedState, Write};
use super::job::{Done, Job, Plan};
use super::pool::pool_row;
use super::{Effect, Monitor, clipped, failure};
use crate::message::{Command, Failure, FromMonitor};
use crate::records::{Key, PoolRecord, Record, RemovedPoolRecord, Rest, Used};

/// Maximum number of volumes listed in a refusal.
const NAMED_COUNT_MAX: usize = 3;
/// Maximum number of task records removed by one transaction.
const TASKS_PER_TRANSACTION: usize = 100;

impl Monitor {
    pub(super) fn pool_to_change(&self, name: &str) -> Result<&PoolRecord, Failure> {
        self.committed.pool_named(name).ok_or_else(|| {
            let name = clipped(name.to_string());
            let hint = "`ashlar pool ls` lists the pools";
            failure("not_found", format!("there is no pool {name}"), hint)
        })
    }

    pub(super) fn plan_pool_set(&self, command: &Command) -> Result<Plan, Failure> {
        let Command::PoolSet { pool: name, rename, scheme, min_size, failure_domain } = command
        else {
            unreachable!("the caller matched it");
        };
        let known = self.pool_to_change(name)?;
        let mut wanted = known.clone();
        if let Some(name) = rename {
            wanted.pool.name.clone_from(name);
        }
        wanted.pool.scheme = scheme.unwrap_or(known.pool.scheme);
        wanted.pool.min_size = min_size.unwrap_or(known.pool.min_size);
        wanted.pool.failure_domain = failure_domain.unwrap_or(known.pool.failure_domain);
        let answer = Done::Answer(Ok(pool_row(&wanted.pool)));
        if wanted.pool == known.pool {
            return Ok(Plan::Done(answer));
        }
        // Check the change itself first: if it is invalid, adding OSDs would not help.
        let record = self.changed_pool(wanted).map_err(|why| {
            failure("invalid", clipped(why), "`ashlar pool ls` shows the pool's current values")
        })?;
        self.check_placeable(&record.pool)?;
        let mut batch = Batch::new(&self.committed);
        batch.put(&self.committed, Record::Pool(record));
        Ok(Plan::Write { batch, done: Some(answer) })
    }

    pub(super) fn plan_pool_remove(&self, name: &str, accepted: bool) -> Result<Plan, Failure> {
        let committed = &self.committed;
        let pool = self.pool_to_change(name)?;
        let id = pool.pool.id;
        let count = committed.images().filter(|image| image.info.pool == id).count();
        if count > 0 {
            let images = committed.images().filter(|image| image.info.pool == id);
            let names: Vec<&str> =
                images.take(NAMED_COUNT_MAX).map(|image| &image.info.name[..]).collect();
            let more = if count > names.len() { ", ..." } else { "" };
            return Err(failure(
                "busy",
                format!("pool {name} has {count} volumes: {}{more}", names.join(", ")),
                "remove them first: `ashlar volume rm NAME`",
            ));
        }
        let used = Used::Pool(id);
        if let Some(session) = committed.sessions_of(used).find(|record| !record.ended) {
            return Err(failure(
                "busy",
                format!("pool {name} is open: session {} of {}", session.id, session.client),
                "end its clients first; a client that is gone or hangs counts as ended after 10 seconds",
            ));
        }
        if pool.pool.has_objects() && !accepted {
            return Err(failure(
                "not_confirmed",
                format!("removing pool {name} removes all objects that are in it"),
                "there is no way back: confirm with --yes",
            ));
        }
        if let Some(fencing) = self.fence_ended_sessions(used, id)? {
            return Ok(fencing);
        }
        let ran = committed.osds().filter(|osd| osd.info.incarnation > Incarnation::ZERO);
        let record = RemovedPoolRecord {
            pool: id,
            name: name.to_string(),
            pg_count: pool.pool.pg_count,
            osds: ran.map(|osd| osd.info.id).collect(),
            rest: Rest::new(),
        };
        let mut batch = Batch::new(committed);
        batch.delete(committed, Key::Pool(id));
        let shards = committed.shards(id).map(|shard| Write::Delete(Key::PgShard(id, shard.shard)));
        batch.add(committed, shards.collect());
        if committed.fences(id).is_some() {
            batch.delete(committed, Key::Fence(id));
        }
        batch.put(committed, Record::RemovedPool(record));
        let answer = json!({ "id": id, "name": name });
        Ok(Plan::Write { batch, done: Some(Done::Answer(Ok(answer))) })
    }

    /// Asks every connected OSD that has not been asked over its current connection to clear the removed
    /// pools.
    pub(super) fn ask_to_clear_pools(&mut self, effects: &mut Vec<Effect>) {
        let mut asks = Vec::new();
        for record in self.committed.removed_pools() {
            for osd in &record.osds {
                let Some(live) = self.osds.get_mut(osd) else { continue };
                if let Some(connection) = live.connection
                    && !live.clearing.contains_key(&record.pool)
                {
                    live.clearing.insert(record.pool, false);
                    let (pool, pg_count) = (record.pool, record.pg_count);
                    asks.push((connection, FromMonitor::ClearPool { pool, pg_count }));
                }
            }
        }
        for (connection, ask) in asks {
            self.connections.send(connection, &ask, effects);
        }
    }

    /// Handles an OSD's report that it has cleared a pool. Only the first report after each request counts.
    /// If the job queue is full, the connection is closed: the OSD reconnects and is asked again.
    pub(super) fn on_pool_cleared(
        &mut self,
        now: Time,
        connection: ConnectionId,
        pool: PoolId,
        effects: &mut Vec<Effect>,
    ) {
        let Some(osd) = self.connections.osd(connection) else { return };
        let is_awaited = self.committed.removed_pool(pool).is_some_and(|r| r.osds.contains(&osd));
        let asked = self.osds.get_mut(&osd).and_then(|live| live.clearing.get_mut(&pool));
        let is_new = asked.is_some_and(|has_said| !std::mem::replace(has_said, true));
        if is_awaited && is_new && !self.try_push_job(Job::PoolCleared { pool, osd }) {
            self.close(now, connection, effects);
        }
    }

    /// Returns a pool removal as commands show it.
    pub(super) fn removed_pool_row(&self, record: &RemovedPoolRecord) -> Value {
        json!({
            "kind": "remove_pool",
            "name": record.name,
            "pool_id": record.pool,
            "state": "clearing",
            "osds_left": record.osds,
            "waits_for": self.removal_waits_for(record),
        })
    }

    /// Describes the first OSD that is down and may still hold data of the pool, if there is one.
    pub(super) fn removal_waits_for(&self, record: &RemovedPoolRecord) -> Option<String> {
        let is_away =
            |osd: &&OsdId| self.osds.get(osd).is_none_or(|live| live.connection.is_none());
        record.osds.iter().find(is_away).map(|osd| format!("{osd}, which is down"))
    }
}

/// Plans the transaction that records that an OSD no longer holds anything of a removed pool.
pub(super) fn plan_pool_cleared(committed: &CommittedState, pool: PoolId, osd: OsdId) -> Plan {
    let Some(record) = committed.removed_pool(pool) else { return Plan::Done(Done::Silent) };
    let mut record = record.clone();
    if !record.osds.remove(&osd) {
        return Plan::Done(Done::Silent);
    }
    let mut batch = Batch::new(committed);
    if !record.osds.is_empty() {
        batch.put(committed, Record::RemovedPool(record));
        return Plan::Write { batch, done: Some(Done::Silent) };
    }
    // Tasks that delete blocks of the pool have nothing left to do.
    let tasks = committed.tasks().filter(|task| task.pool == pool);
    let tasks = tasks.take(TASKS_PER_TRANSACTION).map(|task| Write::Delete(Key::Task(task.id)));
    let tasks: Vec<Write> = tasks.collect();
    if !tasks.is_empty() {
        batch.add(committed, tasks);
        return Plan::Write { batch, done: None };
    }
    batch.delete(committed, Key::RemovedPool(pool));
    Plan::Write { batch, done: Some(Done::Silent) }
}
