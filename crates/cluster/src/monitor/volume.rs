//! Creating, resizing and removing volumes.
//!
//! Removing or shrinking a volume first fences the sessions that had the image attached and were not closed
//! cleanly, in as many transactions as needed; then one transaction changes the image and records the task
//! that deletes its blocks. Until that last transaction the volume is unchanged. An attach also fences such
//! sessions.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{
    ImageId, MIB, MapRevision, PoolId, SessionId, SessionRange, StripeIndex, TIB, UNIT_SIZE,
};
use serde_json::{Value, json};

use super::committed_state::Batch;
use super::job::{Done, Plan};
use super::pool::check_name;
use super::{Monitor, busy, failure};
use crate::map::{ImageInfo, Pool, is_in_ranges};
use crate::message::Failure;
use crate::records::{
    CounterName, Fence, FenceRecord, ImageNameRecord, ImageRecord, Key, PoolRecord, Record, Rest,
    SessionRecord, TaskId, TaskKind, TaskRecord, Used, ZeroRange,
};

/// Maximum number of volumes in a cluster: their list fits in one message.
const IMAGE_COUNT_MAX: usize = 16_384;
/// Largest volume, in bytes; with small blocks the limit is lower: 2^32 - 1 blocks.
const VOLUME_SIZE_MAX: u64 = 1024 * TIB;
/// Maximum number of single fences in a pool: their record fits in a transaction.
pub(super) const FENCE_COUNT_MAX: usize = 25_000;
/// Maximum number of ranges of fenced sessions in a pool.
pub(super) const FENCE_RANGE_COUNT_MAX: usize = 8_192;
/// If a pool has more single fences than this, and more single fences than ranges, the single ones are joined
/// into ranges, and every receiver of the map receives all ranges.
const FENCES_APART_MAX: usize = 16;
/// In a pool of objects, at most so many sessions that follow each other are over without a fence.
const CLOSED_APART_MAX: u64 = 64;
/// Maximum number of sessions fenced by one transaction.
const FENCES_PER_TRANSACTION: usize = 100;
/// Maximum number of recorded tasks at one time.
const TASK_COUNT_MAX: usize = 256;

/// Removing it, or cutting it, would take data of objects.
fn of_gateway(name: &str) -> Failure {
    failure(
        "invalid",
        format!("volume {name} holds data of a gateway's objects"),
        "remove the objects: the gateway removes the volume when it is empty",
    )
}

pub(super) fn no_volume(name: &str) -> Failure {
    let name = super::clipped(name.to_string());
    failure(
        "not_found",
        format!("there is no volume {name}"),
        "`ashlar volume ls` lists the volumes",
    )
}

impl Monitor {
    pub(super) fn plan_volume_create(
        &self,
        name: &str,
        size: u64,
        pool: Option<&str>,
        gateway: bool,
    ) -> Result<Plan, Failure> {
        let committed = &self.committed;
        check_name("volume", name)?;
        if committed.image_named(name).is_some() {
            let hint = "choose another name, or remove that volume";
            return Err(failure("exists", format!("there is already a volume {name}"), hint));
        }
        let pool = self.chosen_pool(pool)?;
        check_size(size, pool)?;
        if committed.images().count() >= IMAGE_COUNT_MAX {
            let message = format!("the cluster already has {IMAGE_COUNT_MAX} volumes");
            return Err(failure("invalid", message, "remove volumes that are not needed"));
        }
        let mut batch = Batch::new(committed);
        let number = batch.next_id(committed, CounterName::Image)?;
        let id = u32::try_from(number).ok().and_then(ImageId::new).expect("counted from 1");
        let info = ImageInfo {
            id,
            name: name.to_string(),
            pool: pool.pool.id,
            size,
            seed: id,
            parents: Vec::new(),
            gateway,
        };
        let answer = self.volume_row(&info);
        let named = ImageNameRecord { name: name.to_string(), image: id, rest: Rest::new() };
        batch.put(committed, Record::Image(ImageRecord { info, rest: Rest::new() }));
        batch.put(committed, Record::ImageName(named));
        Ok(Plan::Write { batch, done: Some(Done::Answer(Ok(answer))) })
    }

    /// Returns the pool for a new volume: the named one, or the only one that volumes can be in.
    fn chosen_pool(&self, name: Option<&str>) -> Result<&PoolRecord, Failure> {
        let hint = "`ashlar pool ls` lists the pools; `ashlar pool create` creates one";
        if let Some(name) = name {
            let named = self.committed.pool_named(name);
            let name = super::clipped(name.to_string());
            return match named {
                None => Err(failure("not_found", format!("there is no pool {name}"), hint)),
                Some(pool) if pool.pool.has_objects() => Err(failure(
                    "invalid",
                    format!("pool {name} keeps objects, and no volumes"),
                    "choose a pool of kind block: `ashlar pool ls` lists the pools",
                )),
                Some(pool) => Ok(pool),
            };
        }
        let mut pools = self.committed.pools().filter(|record| !record.pool.has_objects());
        match (pools.next(), pools.next()) {
            (Some(only), None) => Ok(only),
            (None, _) => Err(failure("not_found", "there is no pool for volumes yet", hint)),
            _ => Err(failure("invalid", "there are several pools", "choose one with --pool")),
        }
    }

    pub(super) fn plan_volume_remove(&self, name: &str, gateway: bool) -> Result<Plan, Failure> {
        let committed = &self.committed;
        let image = committed.image_named(name).ok_or_else(|| no_volume(name))?;
        if image.info.gateway && !gateway {
            return Err(of_gateway(name));
        }
        self.check_not_attached(image)?;
        if let Some(fencing) =
            self.fence_ended_sessions(Used::Image(image.info.id), image.info.pool)?
        {
            return Ok(fencing);
        }
        let mut batch = Batch::new(committed);
        let task = self.record_task(&mut batch, TaskKind::Remove, image, 0)?;
        batch.delete(committed, Key::ImageName(image.info.name.clone()));
        batch.delete(committed, Key::Image(image.info.id));
        let answer = json!({ "id": image.info.id, "name": image.info.name, "task": task.0 });
        Ok(Plan::Write { batch, done: Some(Done::Answer(Ok(answer))) })
    }

    pub(super) fn plan_volume_resize(
        &self,
        name: &str,
        size: u64,
        shrink: bool,
    ) -> Result<Plan, Failure> {
        let committed = &self.committed;
        let image = committed.image_named(name).ok_or_else(|| no_volume(name))?;
        if image.info.gateway {
            return Err(of_gateway(name));
        }
        let pool = committed.pool(image.info.pool).expect("pools with images stay");
        check_size(size, pool)?;
        let answer = |task: Option<TaskId>| {
            let mut row = self.volume_row(&ImageInfo { size, ..image.info.clone() });
            row["task"] = json!(task);
            Done::Answer(Ok(row))
        };
        if size == image.info.size {
            return Ok(Plan::Done(answer(None)));
        }
        if committed.tasks().any(|task| task.image == image.info.id) {
            return Err(failure(
                "busy",
                format!("volume {name} is still being made smaller"),
                "try again when its task is done; `ashlar volume info` shows it",
            ));
        }
        let mut changed = image.clone();
        changed.info.size = size;
        let mut batch = Batch::new(committed);
        if size > image.info.size {
            batch.put(committed, Record::Image(changed));
            return Ok(Plan::Write { batch, done: Some(answer(None)) });
        }
        if !shrink {
            return Err(failure(
                "invalid",
                format!(
                    "volume {name} has {} bytes; resizing it to {size} would delete the data beyond",
                    image.info.size
                ),
                "confirm with --shrink that data beyond the new end may be deleted",
            ));
        }
        self.check_not_attached(image)?;
        if let Some(fencing) =
            self.fence_ended_sessions(Used::Image(image.info.id), image.info.pool)?
        {
            return Ok(fencing);
        }
        let task = self.record_task(&mut batch, TaskKind::Shrink, image, size)?;
        batch.put(committed, Record::Image(changed));
        Ok(Plan::Write { batch, done: Some(answer(Some(task))) })
    }

    fn check_not_attached(&self, image: &ImageRecord) -> Result<(), Failure> {
        let name = &image.info.name;
        let used = Used::Image(image.info.id);
        let mut sessions = self.committed.sessions_of(used).filter(|record| !record.ended);
        let Some(session) = sessions.next() else { return Ok(()) };
        Err(failure(
            "busy",
            format!("volume {name} is attached: session {} of {}", session.id, session.client),
            "detach it first; a client that is gone or hangs counts as detached after 10 seconds",
        ))
    }

    /// Returns the next transaction that fences sessions of this image or pool that were not closed cleanly,
    /// if any are left. `pool`: the pool, or that of the image.
    pub(super) fn fence_ended_sessions(
        &self,
        used: Used,
        pool: PoolId,
    ) -> Result<Option<Plan>, Failure> {
        let ended = self.committed.sessions_of(used).filter(|record| record.ended);
        let ended = ended.take(FENCES_PER_TRANSACTION);
        let sessions: Vec<_> = ended.map(|record| record.id).collect();
        if sessions.is_empty() || planted::on(Bug::EndedSessionNotFenced) {
            return Ok(None);
        }
        self.fence_sessions(pool, sessions, None).map(Some)
    }

    /// Returns the transaction that fences these sessions of the pool, and removes their records and the lock
    /// that one of them may hold.
    pub(super) fn fence_sessions(
        &self,
        pool: PoolId,
        sessions: Vec<SessionId>,
        done: Option<Done>,
    ) -> Result<Plan, Failure> {
        let committed = &self.committed;
        let pool = committed.pool(pool).expect("pools with sessions stay");
        let revision = pool.revision.next();
        let mut record = committed.fences(pool.pool.id).cloned().unwrap_or(FenceRecord {
            pool: pool.pool.id,
            fences: Vec::new(),
            ranges: Vec::new(),
            ranges_revision: MapRevision::ZERO,
            rest: Rest::new(),
        });
        // What OSDs keep of sessions of objects stays until a fence names them, closed ones, too.
        let has_closed = pool.pool.has_objects();
        let newest = sessions.iter().max().copied().unwrap_or_default();
        let is_far = has_closed && is_far_behind(record.joined(), newest);
        record.fences.extend(sessions.iter().map(|session| Fence { session: *session, revision }));
        if is_far || record.fences.len() > FENCES_APART_MAX.max(record.ranges.len()) {
            self.join_fences(&mut record, &sessions, has_closed, revision);
        }
        if record.count() > FENCE_COUNT_MAX {
            return Err(failure(
                "too_many_fences",
                format!("pool {} already has {FENCE_COUNT_MAX} fences", pool.pool.name),
                "let other clients of the pool end: then its fences take less space",
            ));
        }
        let mut batch = Batch::new(committed);
        batch.put(committed, Record::Pool(PoolRecord { revision, ..pool.clone() }));
        // The fence record may be long: the limit on fences keeps it below the maximum size of a transaction.
        batch.put(committed, Record::Fence(record));
        for session in sessions {
            batch.add(committed, self.removal_of(session));
        }
        Ok(Plan::Write { batch, done })
    }

    /// Replaces single fences by ranges, so that their number stays bounded. Ids are issued in ascending
    /// order. A session with an id up to the last fence but without a record was fenced, was closed by a
    /// client with no request in flight, or belongs to another pool. `ends`: sessions whose records this
    /// transaction removes. `has_closed`: all that were closed get a fence, those between open ones, too.
    fn join_fences(
        &self,
        record: &mut FenceRecord,
        ends: &[SessionId],
        has_closed: bool,
        revision: MapRevision,
    ) {
        let committed = &self.committed;
        let single = record.fences.iter().map(|fence| fence.session);
        let ranged = record.ranges.iter().flat_map(|(first, last)| [*first, *last]);
        let fenced: BTreeSet<SessionId> = single.chain(ranged).collect();
        let Some(last) = fenced.last().copied() else { return };
        let is_of_other = |used| committed.pool_used(used).is_some_and(|pool| pool != record.pool);
        // A fenced session stays fenced, even if it still has a record.
        let is_fenced =
            |session: SessionId| fenced.contains(&session) || is_in_ranges(&record.ranges, session);
        let open = committed.sessions().filter(|session| session.id <= last);
        let open = open.filter(|session| !is_fenced(session.id));
        let open = open.filter(|session| !is_of_other(session.used) && !ends.contains(&session.id));
        let mut ranges = ranges_beside(open.map(|session| session.id), last);
        ranges.retain(|(first, last)| has_closed || fenced.range(first..=last).next().is_some());
        // Beyond the limit on ranges, fences remain single, up to their own limit.
        if ranges.len() <= FENCE_RANGE_COUNT_MAX {
            record.fences.clear();
            (record.ranges, record.ranges_revision) = (ranges, revision);
        }
    }

    /// Records the task that deletes the blocks beyond `size`.
    fn record_task(
        &self,
        batch: &mut Batch,
        kind: TaskKind,
        image: &ImageRecord,
        size: u64,
    ) -> Result<TaskId, Failure> {
        let committed = &self.committed;
        if committed.tasks().count() >= TASK_COUNT_MAX {
            return Err(busy());
        }
        let pool = committed.pool(image.info.pool).expect("pools with images stay");
        let id = TaskId(batch.next_id(committed, CounterName::Task)?);
        let (from, zero) = cut(size, pool.pool.stripe_bytes());
        let record = TaskRecord {
            id,
            kind,
            image: image.info.id,
            name: image.info.name.clone(),
            seed: image.info.seed,
            pool: pool.pool.id,
            block_size: pool.pool.block_size,
            from,
            zero,
            fence_revision: committed.fence_revision(pool.pool.id),
            pgs_done: 0,
            rest: Rest::new(),
        };
        batch.put(committed, Record::Task(record));
        Ok(id)
    }

    /// Returns a volume as shown by commands.
    pub(super) fn volume_row(&self, info: &ImageInfo) -> Value {
        let sessions = self.committed.sessions_of(Used::Image(info.id));
        let sessions = sessions.filter(|record| !record.ended);
        self.volume_row_with(info, sessions.map(|record| self.session_details(record)).collect())
    }

    /// Returns a session and, while it is connected, the process that uses it.
    fn session_details(&self, record: &SessionRecord) -> Value {
        let process = self.process_of_session(record.id);
        let mut row = session_row(record);
        row["pid"] = json!(process.map(|process| process.pid));
        row["host"] = json!(process.map(|process| &process.host));
        row["address"] = json!(process.and_then(|process| process.address.as_ref()));
        row
    }

    /// Returns all volumes as shown by commands.
    pub(super) fn volume_rows(&self) -> Value {
        let shown = self.volume_rows_after(0).filter(|(_, row)| row["gateway"] != true);
        shown.map(|(_, row)| row).collect()
    }

    /// Returns the volumes with ids above `after`, in the order of their ids.
    pub(super) fn volume_rows_after(&self, after: u32) -> impl Iterator<Item = (ImageId, Value)> {
        let mut sessions: BTreeMap<ImageId, Vec<Value>> = BTreeMap::new();
        for record in self.committed.sessions().filter(|record| !record.ended) {
            if let Some(image) = record.used.image() {
                sessions.entry(image).or_default().push(session_row(record));
            }
        }
        let row = move |record: &ImageRecord| {
            let attached = sessions.remove(&record.info.id).unwrap_or_default();
            (record.info.id, self.volume_row_with(&record.info, attached))
        };
        self.committed.images().filter(move |record| record.info.id.get() > after).map(row)
    }

    fn volume_row_with(&self, info: &ImageInfo, sessions: Vec<Value>) -> Value {
        let pool = self.committed.pool(info.pool).map(|record| &record.pool);
        json!({
            "name": info.name,
            "id": info.id,
            "gateway": info.gateway,
            "pool": pool.map(|pool| &pool.name),
            "size_bytes": info.size,
            "optimal_io_size": pool.map(Pool::optimal_io_bytes),
            "attached": sessions.len(),
            "lock": self.lock_row(info),
            "sessions": sessions,
        })
    }
}

fn session_row(record: &SessionRecord) -> Value {
    json!({ "id": record.id, "client": record.client, "read_only": record.read_only })
}

/// Whether a session of a pool of objects comes so far behind the last one of all ranges that those between
/// them are joined with it.
pub(super) fn is_far_behind(joined: SessionId, session: SessionId) -> bool {
    session.get() >= joined.get() + CLOSED_APART_MAX
}

/// Returns the ranges of all ids from the first one to `last` except the ids of these sessions, which are
/// sorted.
pub(super) fn ranges_beside(
    sessions: impl IntoIterator<Item = SessionId>,
    last: SessionId,
) -> Vec<SessionRange> {
    let mut ranges = Vec::new();
    let mut next = 1;
    for session in sessions.into_iter().map(SessionId::get).chain([last.get() + 1]) {
        if next < session {
            ranges.push((SessionId::new(next), SessionId::new(session - 1)));
        }
        next = session + 1;
    }
    ranges
}

/// Returns the first stripe beyond `size`, and the range to zero in the stripe that `size` cuts, if any.
fn cut(size: u64, stripe_bytes: u64) -> (StripeIndex, Option<ZeroRange>) {
    let stripe = |number: u64| {
        StripeIndex::new(u32::try_from(number).expect("sizes are checked against 2^32 stripes"))
    };
    let from = stripe(size.div_ceil(stripe_bytes));
    let offset = size % stripe_bytes;
    let zero = (offset > 0).then(|| ZeroRange {
        stripe: stripe(size / stripe_bytes),
        offset: u32::try_from(offset).expect("a stripe is at most 4 MiB"),
        length: u32::try_from(stripe_bytes - offset).expect("a stripe is at most 4 MiB"),
    });
    (from, zero)
}

fn check_size(size: u64, pool: &PoolRecord) -> Result<(), Failure> {
    let max = VOLUME_SIZE_MAX.min(pool.pool.stripe_bytes() * u64::from(u32::MAX));
    if size > 0 && size.is_multiple_of(UNIT_SIZE) && size <= max {
        return Ok(());
    }
    let message = match size {
        1..MIB => format!("{size} bytes is too small; did you mean {size}GiB?"),
        _ => format!("{size} bytes is not a valid volume size"),
    };
    Err(failure(
        "invalid",
        message,
        format!("use a multiple of 4 KiB, from 4 KiB to {}", base::size::Size(max)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_stripe_is_zeroed_and_the_next_is_deleted() {
        let block = 128 << 10;
        assert_eq!(cut(0, block), (StripeIndex::new(0), None));
        assert_eq!(cut(2 * block, block), (StripeIndex::new(2), None));
        let zero = ZeroRange { stripe: StripeIndex::new(2), offset: 4096, length: 124 << 10 };
        assert_eq!(cut(2 * block + 4096, block), (StripeIndex::new(3), Some(zero)));
        let stripe = 3 * block;
        let zero = ZeroRange { stripe: StripeIndex::new(0), offset: 256 << 10, length: 128 << 10 };
        assert_eq!(cut(2 * block, stripe), (StripeIndex::new(1), Some(zero)));
    }
}
