//! Statistics in the leader: counters reported by OSDs are summed by OSD, pool and volume. The sums are
//! written to the state store, a bounded number of bytes at a time, however many volumes there are.
//!
//! ```text
//!   Period ──▶ rows in memory ──each stats_interval_ms──▶ Job::Stats: the next dirty shards
//!                                                            │ committed
//!   OSD ◀──StatsSaved── all shards that a period touched ◀───┘
//! ```
//!
//! Invariants
//!   1. Each period of an OSD is counted in a row exactly once, even if the leader changes: a shard records
//!      the newest period that had been received from each OSD when the shard was written, and its rows
//!      include that period and all earlier ones. An OSD keeps a period until every shard that counts part
//!      of it has been written.
//!   2. A row stays in its shard; the value of a shard always fits in a transaction.
//!   3. Nothing else depends on statistics: errors in them cannot harm data.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{ConnectionId, Duration, ImageId, OsdId, PoolId, Time};
use serde_json::{Value, json};

use super::committed_state::{Batch, CommittedState, Write};
use super::job::{Done, Job, Plan};
use super::{Effect, Monitor};
use crate::message::{Failure, FromMonitor};
use crate::records::{Key, Record, Rest, StatsRecord};
use crate::settings::Setting;
use crate::stats::{
    Counters, ImageSpace, Io, NewestPeriods, OsdStats, Period, PeriodId, Rows, Sums, Table,
};

/// Maximum number of rows in a shard.
const SHARD_ROW_COUNT_MAX: usize = 256;
/// Number of intervals over which rates are averaged.
const INTERVAL_COUNT: usize = 3;
/// Approximate maximum size of one write of statistics, in bytes: even with the shortest interval, an etcd
/// with default limits can hold hours of history.
const SAVE_SIZE_MAX: usize = 128 << 10;
/// Approximate sizes of a row and of a period's id as JSON text, in bytes.
const ROW_SIZE: usize = 400;
const NEWEST_SIZE: usize = 50;
/// Maximum number of (image, OSD) pairs whose space is tracked; beyond it, the space of volumes is
/// no longer updated.
const SPACE_COUNT_MAX: usize = 1 << 20;
/// Maximum length of a reply with rows of a table, in bytes; a message has room for this and one more row.
const TABLE_SIZE_MAX: usize = 3 << 20;

/// Statistics of all OSDs, volumes and pools. When this process ends, only the saved sums remain.
#[derive(Default)]
pub(super) struct Stats {
    rows: BTreeMap<(Table, u32), Row>,
    shards: BTreeMap<(Table, u32), Shard>,
    /// The newest period that this leader has received from each OSD.
    received: NewestPeriods,
    /// For each OSD, the newest period that this leader has reported to it as saved.
    told: NewestPeriods,
    space: Space,
    /// The time at which the next interval ends.
    tick_at: Option<Time>,
    ticked_at: Time,
    /// Whether a [`Job::Stats`] is in the job queue.
    is_queued: bool,
    /// The shard written last; the next write continues after it.
    cursor: Option<(Table, u32)>,
}

struct Row {
    shard: u32,
    /// The sums that are written to the store.
    sums: Sums,
    /// Whether the row was in the store when this leader began: then it already counts the newest periods
    /// recorded in its shard, and all earlier ones.
    is_kept: bool,
    /// Counts of the current interval.
    recent: Counters,
    /// Counts of the previous intervals, the newest last.
    intervals: VecDeque<(Duration, Counters)>,
}

#[derive(Default)]
struct Shard {
    ids: BTreeSet<u32>,
    /// The newest period of each OSD that the stored shard included when this leader loaded it.
    newest: NewestPeriods,
    /// For each OSD, the first and the last period that the rows in memory include and the stored shard does
    /// not.
    unsaved: BTreeMap<OsdId, (PeriodId, PeriodId)>,
    is_dirty: bool,
}

/// Space of images, as reported by the primaries of their PGs.
#[derive(Default)]
struct Space {
    /// Bytes by image and OSD, each with the sequence number of the connection that reported them.
    images: BTreeMap<ImageId, BTreeMap<OsdId, (u64, u64)>>,
    count: usize,
    /// OSDs that have reported the space of all images since this leader began.
    whole: BTreeSet<OsdId>,
    /// The OSDs in `whole` that were down at the last check.
    down: BTreeSet<OsdId>,
}

impl Space {
    fn told(&mut self, osd: OsdId, order: u64, told: &[ImageSpace], is_whole: bool) {
        for ImageSpace { image, bytes } in told {
            let of_image = self.images.entry(*image).or_default();
            let is_new = !of_image.contains_key(&osd);
            if *bytes == 0 {
                self.count -= usize::from(of_image.remove(&osd).is_some());
            } else if !is_new || self.count < SPACE_COUNT_MAX {
                self.count += usize::from(is_new);
                of_image.insert(osd, (*bytes, order));
            }
        }
        if is_whole {
            self.whole.insert(osd);
            self.forget(|of, told| of == osd && told != order);
        }
    }

    /// Drops the reported space for which `is_forgotten` returns true, given the OSD and the sequence number
    /// of the connection.
    fn forget(&mut self, is_forgotten: impl Fn(OsdId, u64) -> bool) {
        for of_image in self.images.values_mut() {
            of_image.retain(|osd, (_, order)| !is_forgotten(*osd, *order));
        }
        self.images.retain(|_, of_image| !of_image.is_empty());
        self.count = self.images.values().map(BTreeMap::len).sum();
    }

    /// Updates which OSDs are up. When an OSD goes down, its report counts for one more interval: other OSDs
    /// soon become primaries of its PGs.
    fn look(&mut self, committed: &CommittedState) {
        let is_up = |osd: &OsdId| committed.osd(*osd).is_some_and(|record| record.info.up);
        let down: BTreeSet<OsdId> = self.whole.iter().copied().filter(|osd| !is_up(osd)).collect();
        let gone: BTreeSet<OsdId> = down.intersection(&self.down).copied().collect();
        if !gone.is_empty() {
            self.whole.retain(|osd| !gone.contains(osd));
            self.forget(|osd, _| gone.contains(&osd));
        }
        self.down = &down - &gone;
    }

    /// Whether all OSDs that are up have reported the space of all images.
    fn is_known(&self, committed: &CommittedState) -> bool {
        let mut up = committed.osds().filter(|record| record.info.up);
        up.all(|record| self.whole.contains(&record.info.id)) && self.count < SPACE_COUNT_MAX
    }

    fn of(&self, image: ImageId) -> u64 {
        let told = self.images.get(&image).into_iter().flatten();
        told.fold(0, |sum, (_, (bytes, _))| sum.saturating_add(*bytes))
    }
}

impl Stats {
    /// Returns a row; a new row is assigned to a shard.
    fn row(&mut self, table: Table, id: u32) -> &mut Row {
        let Stats { rows, shards, .. } = self;
        rows.entry((table, id)).or_insert_with(|| {
            let has_room = |number: &u32| {
                let shard = shards.get(&(table, *number));
                shard.is_none_or(|shard| shard.ids.len() < SHARD_ROW_COUNT_MAX)
            };
            let shard = (0..).find(has_room).expect("there is always one more");
            shards.entry((table, shard)).or_default().ids.insert(id);
            Row::new(shard, Sums::default(), false)
        })
    }

    /// Adds an OSD's counts of a period, unless the row already includes them.
    fn add(
        &mut self,
        (table, id): (Table, u32),
        (osd, period): (OsdId, PeriodId),
        counters: &Counters,
    ) {
        let row = self.row(table, id);
        let (shard, is_kept) = (row.shard, row.is_kept);
        let shard = self.shards.get_mut(&(table, shard)).expect("invariant 2");
        if is_kept && shard.newest.get(&osd).is_some_and(|kept| *kept >= period) {
            return;
        }
        shard.unsaved.entry(osd).or_insert((period, period)).1 = period;
        shard.is_dirty = true;
        let row = self.rows.get_mut(&(table, id)).expect("just made");
        row.sums.counters.add(&counters.clone().without_latencies());
        row.recent.add(counters);
    }

    /// Sets the name and the space in use of a row; neither is a sum.
    fn set(&mut self, table: Table, id: u32, name: &str, used_bytes: Option<u64>) {
        let is_new = !self.rows.contains_key(&(table, id));
        if is_new && used_bytes.unwrap_or(0) == 0 {
            return;
        }
        let row = self.row(table, id);
        let used_bytes = used_bytes.unwrap_or(row.sums.used_bytes);
        if row.sums.name != name || row.sums.used_bytes != used_bytes {
            (row.sums.name, row.sums.used_bytes) = (name.to_string(), used_bytes);
            let shard = row.shard;
            self.shards.get_mut(&(table, shard)).expect("invariant 2").is_dirty = true;
        }
    }

    fn remove(&mut self, table: Table, id: u32) {
        let Some(row) = self.rows.remove(&(table, id)) else { return };
        let shard = self.shards.get_mut(&(table, row.shard)).expect("invariant 2");
        shard.ids.remove(&id);
        shard.is_dirty = true;
    }

    /// Returns the rows of a shard as they are written to the store.
    fn rows_of(&self, table: Table, ids: &BTreeSet<u32>) -> Rows {
        ids.iter().map(|id| (*id, self.rows[&(table, *id)].sums.clone())).collect()
    }

    /// Notes that a shard was written.
    pub(super) fn saved(&mut self, record: &StatsRecord) {
        let place = (record.table, record.shard);
        self.cursor = Some(place);
        let Some(shard) = self.shards.get(&place) else { return };
        let is_dirty = self.rows_of(record.table, &shard.ids) != record.rows;
        let shard = self.shards.get_mut(&place).expect("just found");
        shard.is_dirty = is_dirty;
        shard.unsaved.retain(|osd, (first, last)| {
            let Some(saved) = record.newest.get(osd).filter(|saved| **saved >= *first) else {
                return true;
            };
            *first = PeriodId { sequence: saved.sequence + 1, ..*saved };
            *last > *saved
        });
    }

    /// Notes that a shard without rows was removed.
    pub(super) fn removed(&mut self, table: Table, shard: u32) {
        self.cursor = Some((table, shard));
        let is_empty = |shard: &Shard| shard.ids.is_empty();
        if self.shards.get(&(table, shard)).is_some_and(is_empty) {
            self.shards.remove(&(table, shard));
        }
    }

    /// Returns the dirty shards, starting with the one that has waited longest.
    fn dirty(&self) -> impl Iterator<Item = ((Table, u32), &Shard)> {
        let is_behind = |place: &(Table, u32)| self.cursor.is_none_or(|cursor| *place > cursor);
        let all = || self.shards.iter().filter(|(_, shard)| shard.is_dirty);
        let behind = all().filter(move |(place, _)| is_behind(place));
        let before = all().filter(move |(place, _)| !is_behind(place));
        behind.chain(before).map(|(place, shard)| (*place, shard))
    }

    /// Starts an interval if none is running.
    fn wake(&mut self, now: Time, interval: Duration) {
        if self.tick_at.is_none() {
            (self.ticked_at, self.tick_at) = (now, Some(now + interval));
        }
    }

    /// Returns the time at which rates must be computed and sums written.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.tick_at
    }

    pub(super) fn job_ended(&mut self) {
        self.is_queued = false;
    }
}

impl Row {
    fn new(shard: u32, sums: Sums, is_kept: bool) -> Row {
        let (recent, intervals) = (Counters::default(), VecDeque::new());
        Row { shard, sums, is_kept, recent, intervals }
    }

    /// Ends an interval.
    fn end_interval(&mut self, span: Duration) {
        let recent = std::mem::take(&mut self.recent);
        if self.intervals.is_empty() && recent.is_zero() {
            return;
        }
        self.intervals.push_back((span, recent));
        if self.intervals.len() > INTERVAL_COUNT {
            self.intervals.pop_front();
        }
        if self.intervals.iter().all(|(_, counters)| counters.is_zero()) {
            self.intervals.clear();
        }
    }

    /// Returns the total length of the recent intervals, and the sum of their counts.
    fn lately(&self) -> (Duration, Counters) {
        let mut sum = (Duration::ZERO, Counters::default());
        for (span, counters) in &self.intervals {
            sum.0 = Duration::from_nanos(sum.0.as_nanos().saturating_add(span.as_nanos()));
            sum.1.add(counters);
        }
        sum
    }
}

impl Monitor {
    /// Loads the statistics that the previous leader stored.
    pub(super) fn begin_stats(&mut self) {
        let mut stats = Stats::default();
        for record in self.committed.stats() {
            let place = (record.table, record.shard);
            let mut shard = Shard { newest: record.newest.clone(), ..Shard::default() };
            for (id, sums) in &record.rows {
                if stats.rows.contains_key(&(record.table, *id)) {
                    // A manual edit has copied this row to another shard: only the first copy counts.
                    shard.is_dirty = true;
                    continue;
                }
                shard.ids.insert(*id);
                stats.rows.insert((record.table, *id), Row::new(record.shard, sums.clone(), true));
            }
            stats.shards.insert(place, shard);
        }
        self.stats = stats;
    }

    /// Handles an OSD's statistics. Requires: they are valid.
    pub(super) fn on_stats(
        &mut self,
        now: Time,
        connection: ConnectionId,
        told: &OsdStats,
        effects: &mut Vec<Effect>,
    ) {
        let Some(osd) = self.connections.osd(connection) else { return };
        let Some(record) = self.committed.osd(osd) else { return };
        let incarnation = record.info.incarnation;
        for period in &told.periods {
            let id = PeriodId { incarnation, sequence: period.sequence };
            if self.stats.received.get(&osd).is_some_and(|received| *received >= id) {
                // This period has been received before. If it is already saved, the OSD missed the message
                // about that, which is now sent again.
                self.stats.told.remove(&osd);
                continue;
            }
            self.add_period((osd, id), period);
            self.stats.received.insert(osd, id);
        }
        let order = self.osds.get(&osd).map_or(0, |live| live.joined_order);
        self.stats.space.told(osd, order, &told.space, told.space_is_whole);
        self.stats.wake(now, self.span(Setting::StatsInterval));
        self.tell_stats_saved(effects);
    }

    fn add_period(&mut self, source: (OsdId, PeriodId), period: &Period) {
        let Monitor { stats, committed, .. } = self;
        let mut of_osd = period.own.clone();
        let mut of_pools: BTreeMap<PoolId, Counters> = BTreeMap::new();
        for row in &period.rows {
            of_osd.add(&row.counters);
            of_pools.entry(row.pool).or_default().add(&row.counters);
            let is_of_pool = |image: &ImageId| {
                committed.image(*image).is_some_and(|record| record.info.pool == row.pool)
            };
            if let Some(image) = row.image.filter(is_of_pool) {
                stats.add((Table::Volume, image.get()), source, &row.counters);
            }
        }
        for (pool, counters) in of_pools {
            if committed.pool(pool).is_some() {
                stats.add((Table::Pool, pool.get()), source, &counters);
            }
        }
        stats.add((Table::Osd, source.0.get()), source, &of_osd);
    }

    /// Computes rates, and queues the write of sums.
    pub(super) fn tick_stats(&mut self, now: Time) {
        if self.stats.tick_at.is_none_or(|at| at > now) {
            return;
        }
        let span = now.since(self.stats.ticked_at);
        self.stats.ticked_at = now;
        self.forget_stats_of_gone();
        self.look_at_space();
        self.stats.rows.values_mut().for_each(|row| row.end_interval(span));
        let committed = &self.committed;
        let is_stored =
            |place: &(Table, u32)| committed.record(&Key::Stats(place.0, place.1)).is_some();
        self.stats.shards.retain(|place, shard| !shard.ids.is_empty() || is_stored(place));
        let is_dirty = self.stats.shards.values().any(|shard| shard.is_dirty);
        if is_dirty && !self.stats.is_queued && !self.is_older() {
            self.stats.is_queued = self.try_push_job(Job::Stats);
        }
        let is_moving = self.stats.rows.values().any(|row| !row.intervals.is_empty());
        let goes_on = is_dirty || is_moving || !self.stats.space.down.is_empty();
        self.stats.tick_at = goes_on.then(|| now + self.span(Setting::StatsInterval));
    }

    /// Drops the rows of OSDs, pools and volumes that were removed.
    fn forget_stats_of_gone(&mut self) {
        let committed = &self.committed;
        let is_there = |(table, id): &(Table, u32)| match table {
            Table::Osd => OsdId::new(*id).is_some_and(|id| committed.osd(id).is_some()),
            Table::Pool => PoolId::new(*id).is_some_and(|id| committed.pool(id).is_some()),
            Table::Volume => ImageId::new(*id).is_some_and(|id| committed.image(id).is_some()),
        };
        let gone: Vec<(Table, u32)> =
            self.stats.rows.keys().filter(|place| !is_there(place)).copied().collect();
        for (table, id) in gone {
            self.stats.remove(table, id);
        }
        let is_osd = |osd: &OsdId| committed.osd(*osd).is_some();
        self.stats.received.retain(|osd, _| is_osd(osd));
        self.stats.told.retain(|osd, _| is_osd(osd));
    }

    /// Updates the names in the rows, and the space of volumes and pools whose total is known.
    fn look_at_space(&mut self) {
        let Monitor { stats, committed, .. } = self;
        stats.space.look(committed);
        let is_known = stats.space.is_known(committed);
        let mut of_pools: BTreeMap<PoolId, u64> = BTreeMap::new();
        for record in committed.images() {
            // A primary reports only what it stores itself: with parity, that is one part of each stripe.
            let pool = committed.pool(record.info.pool);
            let parts = pool.map_or(1, |pool| u64::from(pool.pool.scheme.data_count()));
            let used = is_known.then(|| stats.space.of(record.info.id).saturating_mul(parts));
            let of_pool = of_pools.entry(record.info.pool).or_default();
            *of_pool = of_pool.saturating_add(used.unwrap_or(0));
            stats.set(Table::Volume, record.info.id.get(), &record.info.name, used);
        }
        for record in committed.pools() {
            let id = record.pool.id;
            let used = is_known.then(|| of_pools.get(&id).copied().unwrap_or(0));
            stats.set(Table::Pool, id.get(), &record.pool.name, used);
        }
        for record in committed.osds() {
            stats.set(Table::Osd, record.info.id.get(), &record.info.id.to_string(), None);
        }
    }

    /// Plans the write of the dirty shards that have waited longest, as many as fit in one write.
    pub(super) fn plan_stats(&self) -> Plan {
        let mut batch = Batch::new(&self.committed);
        let mut size = 0;
        for ((table, shard), found) in self.stats.dirty() {
            let key = Key::Stats(table, shard);
            let write = if found.ids.is_empty() {
                if self.committed.record(&key).is_none() {
                    continue;
                }
                Write::Delete(key)
            } else {
                let record = self.stats_record(table, shard, found);
                size += record.rows.len() * ROW_SIZE + record.newest.len() * NEWEST_SIZE;
                Write::Put(Record::Stats(record))
            };
            if size > SAVE_SIZE_MAX && !batch.is_empty() {
                break;
            }
            if !batch.try_add(&self.committed, vec![write]) {
                break;
            }
        }
        if batch.is_empty() {
            return Plan::Done(Done::Silent);
        }
        Plan::Write { batch, done: Some(Done::Silent) }
    }

    fn stats_record(&self, table: Table, shard: u32, found: &Shard) -> StatsRecord {
        let is_there = |osd: &OsdId| self.committed.osd(*osd).is_some();
        let mut newest = found.newest.clone();
        for (osd, id) in &self.stats.received {
            let kept = newest.entry(*osd).or_default();
            *kept = (*kept).max(*id);
        }
        newest.retain(|osd, _| is_there(osd));
        let rest = match self.committed.record(&Key::Stats(table, shard)) {
            Some(Record::Stats(record)) => record.rest.clone(),
            _ => Rest::new(),
        };
        let rows = self.stats.rows_of(table, &found.ids);
        StatsRecord { table, shard, rows, newest, rest }
    }

    /// Tells OSDs which of their periods they may drop.
    pub(super) fn tell_stats_saved(&mut self, effects: &mut Vec<Effect>) {
        let mut open: BTreeMap<OsdId, PeriodId> = BTreeMap::new();
        for shard in self.stats.shards.values() {
            for (osd, (first, _)) in &shard.unsaved {
                let oldest = open.entry(*osd).or_insert(*first);
                *oldest = (*oldest).min(*first);
            }
        }
        let mut saved: Vec<(OsdId, PeriodId)> = Vec::new();
        for (osd, received) in &self.stats.received {
            let sequence = match open.get(osd) {
                None => received.sequence,
                Some(oldest) if oldest.incarnation == received.incarnation => oldest.sequence - 1,
                // The oldest unsaved period belongs to an earlier run, so no period of this run is known to
                // be saved.
                Some(_) => 0,
            };
            let id = PeriodId { sequence, ..*received };
            if sequence > 0 && self.stats.told.get(osd).is_none_or(|told| *told < id) {
                saved.push((*osd, id));
            }
        }
        for (osd, id) in saved {
            let is_run = |id: &PeriodId| {
                let record = self.committed.osd(osd);
                record.is_some_and(|record| record.info.incarnation == id.incarnation)
            };
            let connection = self.osds.get(&osd).and_then(|live| live.connection);
            if let Some(connection) = connection.filter(|_| is_run(&id)) {
                let sequence = id.sequence;
                self.connections.send(connection, &FromMonitor::StatsSaved { sequence }, effects);
                self.stats.told.insert(osd, id);
            }
        }
    }

    /// Returns the sums and rates of an OSD, a pool or a volume, for people and programs.
    fn stats_of(&self, table: Table, id: u32) -> Value {
        let Some(row) = self.stats.rows.get(&(table, id)) else {
            return io_value(&Counters::default(), Duration::ZERO, &Counters::default());
        };
        let (span, recent) = row.lately();
        io_value(&row.sums.counters, span, &recent)
    }

    /// Adds to a row the result of [`Monitor::stats_of`], and the space in use.
    pub(super) fn add_stats(&self, row: &mut Value, table: Table, id: u32) {
        row["io"] = self.stats_of(table, id);
        if table == Table::Volume {
            row["used_bytes"] = json!(self.used_bytes(table, id));
        }
    }

    /// Returns the bytes of user data in use, without additional copies and parity, as far as known.
    pub(super) fn used_bytes(&self, table: Table, id: u32) -> u64 {
        self.stats.rows.get(&(table, id)).map_or(0, |row| row.sums.used_bytes)
    }

    /// Returns the current client rates of the whole cluster.
    pub(super) fn cluster_rates(&self) -> Value {
        rates_of_rows(self.stats.rows.range((Table::Pool, 0)..(Table::Volume, 0)))
    }

    /// Returns the current client rates of one row.
    pub(super) fn rates_of(&self, table: Table, id: u32) -> Value {
        rates_of_rows(self.stats.rows.range((table, id)..=(table, id)))
    }

    /// Returns the rows of a table with ids above `after`, as many as fit in one reply.
    pub(super) fn table(&self, table: Table, after: u32) -> Result<Value, Failure> {
        let committed = &self.committed;
        let mut rows = Vec::new();
        let mut size = 0;
        let mut add = |mut row: Value, id: u32| {
            self.add_stats(&mut row, table, id);
            size += row.to_string().len();
            rows.push(row);
            size < TABLE_SIZE_MAX
        };
        let more = match table {
            Table::Osd => {
                let mut rest = committed.osds().filter(|record| record.info.id.get() > after);
                !rest.all(|record| add(self.osd_row(record), record.info.id.get()))
            }
            Table::Pool => {
                let mut rest = committed.pools().filter(|record| record.pool.id.get() > after);
                !rest.all(|record| add(self.pool_row_with(record), record.pool.id.get()))
            }
            Table::Volume => {
                !self.volume_rows_after(after).all(|(image, row)| add(row, image.get()))
            }
        };
        Ok(json!({ "rows": rows, "more": more }))
    }
}

/// Returns the current client rates, summed over these rows.
fn rates_of_rows<'a>(rows: impl Iterator<Item = (&'a (Table, u32), &'a Row)>) -> Value {
    let mut longest = Duration::ZERO;
    let mut sum = Counters::default();
    for (_, row) in rows {
        let (span, recent) = row.lately();
        longest = longest.max(span);
        sum.add(&recent);
    }
    json!({
        "read": rates_value(longest, &sum.read),
        "write": rates_value(longest, &sum.write),
        "trim": rates_value(longest, &sum.trim),
    })
}

fn io_value(sums: &Counters, span: Duration, recent: &Counters) -> Value {
    let with_sums = |sums: &Io, recent: &Io| {
        let mut value = rates_value(span, recent);
        value["ops"] = json!(sums.ops);
        value["bytes"] = json!(sums.bytes);
        value
    };
    let uncounted = |sums: &Io, recent: &Io| {
        let mut value = with_sums(sums, recent);
        let fields = value.as_object_mut().expect("just made");
        fields.retain(|name, _| !name.starts_with("latency"));
        value
    };
    json!({
        "read": with_sums(&sums.read, &recent.read),
        "write": with_sums(&sums.write, &recent.write),
        "trim": with_sums(&sums.trim, &recent.trim),
        "flush": with_sums(&sums.flush, &recent.flush),
        "stored": uncounted(&sums.stored, &recent.stored),
        "recovered": uncounted(&sums.recovered, &recent.recovered),
        "failed": sums.failed,
        "refused_full": sums.refused_full,
        "read_errors": sums.read_errors,
        "damaged_units": sums.damaged_units,
        "repaired_units": sums.repaired_units,
    })
}

/// Returns the rates over a recent span, and the latencies in it; `null` where there were no
/// operations.
fn rates_value(span: Duration, recent: &Io) -> Value {
    let micros = |nanos: u64| nanos / 1000;
    let mean = recent.nanos.checked_div(recent.ops);
    json!({
        "ops_per_second": per_second(recent.ops, span),
        "bytes_per_second": per_second(recent.bytes, span),
        "latency_mean_us": mean.map(micros),
        "latency_p99_us": recent.latencies.percentile(99).map(|p99| micros(p99.as_nanos())),
    })
}

fn per_second(count: u64, span: Duration) -> u64 {
    let nanos = u128::from(span.as_nanos());
    let rounded = (u128::from(count) * 1_000_000_000 + nanos / 2).checked_div(nanos);
    rounded.map_or(0, |rate| u64::try_from(rate).unwrap_or(u64::MAX))
}
