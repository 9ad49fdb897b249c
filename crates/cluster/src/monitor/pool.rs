//! Creating pools.

use std::collections::BTreeMap;

use base::hash::NameHash;
use base::size::Size;
use base::{BlockSize, Epoch, KIB, MapRevision, OsdId, PgId, PoolId, Scheme};
use format::engine::Compression;
use format::wire::{Member, PgEntry};
use placement::{Candidate, PlanError};

use super::committed_state::{Batch, Write};
use super::job::{Done, Plan};
use super::planning::fingerprint;
use super::refusal::names_and_more;
use super::{Monitor, failure};
use crate::map::{FailureDomain, OBJECT_BLOCK_BYTES_MAX, Pool, PoolKind, SHARD_COUNT_MAX};
use crate::message::{Command, Failure, FamilyReport, ObjectOptions};
use crate::records::{
    CounterName, CounterRecord, Key, PG_SHARD_SIZE, PgShardRecord, PoolRecord, Record, Rest,
};
use crate::stats::Table;

const HELP_HINT: &str = "`ashlar pool create --help` lists the valid values";
/// How OSDs get engines.
const ENGINE_HINT: &str = "an OSD on a block device gets one when it is started with --objects DIR, one of \
    an older version when this one starts it; if it has none then, its log says why";
/// Maximum number of OSDs that a message names.
const OSDS_NAMED_MAX: usize = 10;

/// Maximum number of pools in a cluster.
const POOL_COUNT_MAX: usize = 256;
/// Maximum number of shards of objects in a PG.
const PG_SHARD_COUNT_MAX: u32 = 256;
/// Maximum number of PGs in a pool, and maximum total of their members: a pool's whole map fits in one
/// message.
const PG_COUNT_MAX: u32 = 8192;
const PG_MEMBER_COUNT_MAX: u32 = 8 * PG_COUNT_MAX;
/// Number of PG members that a pool has on each OSD, unless the operator sets a PG count.
const PGS_PER_OSD: u32 = 32;
/// Number of shards for each PG of a pool of objects, unless the operator sets one: PGs can be split twice.
const SHARDS_PER_PG: u32 = 4;
/// The compression of a pool of objects, unless the operator sets one.
const COMPRESSION: Compression = Compression::Lz4;
/// The block size of a pool of objects, unless the operator sets one. An object of more than 32 KiB takes
/// whole blocks: with the 128 KiB of other pools, one of 40 KiB would waste two thirds of its space. Smaller
/// blocks would cost large objects more entries of the index, and more places.
const OBJECT_BLOCK_BYTES: u64 = 64 * KIB;

/// Space per PG in an OSD's record area, in bytes: a store of 256 MiB was full at 3,700 PGs.
const PG_RECORD_SIZE: u64 = 1200;

impl Monitor {
    pub(super) fn plan_pool_create(&self, command: &Command) -> Result<Plan, Failure> {
        let Command::PoolCreate {
            pool: name,
            scheme,
            min_size,
            pg_count,
            failure_domain,
            block_size,
            objects,
        } = command
        else {
            unreachable!("the caller matched it");
        };
        let committed = &self.committed;
        check_name("pool", name)?;
        if committed.pool_named(name).is_some() {
            let hint = "`ashlar pool ls` lists the pools";
            return Err(failure("exists", format!("there is already a pool {name}"), hint));
        }
        if committed.pools().count() >= POOL_COUNT_MAX {
            let message = format!("the cluster already has {POOL_COUNT_MAX} pools");
            return Err(failure("invalid", message, "use one of the existing pools"));
        }
        let failure_domain = failure_domain.unwrap_or(FailureDomain::Host);
        let candidates = self.candidates(failure_domain, objects.is_some());
        // Nobody gets fewer copies because engines are missing.
        let copies = Scheme::Copies { count: if self.newly_usable().count() > 1 { 2 } else { 1 } };
        let scheme = scheme.unwrap_or(copies);
        let block_size = block_size.unwrap_or(default_block_size(objects.is_some()));
        let invalid = |why| failure("invalid", why, HELP_HINT);
        scheme.check_block_size(block_size).map_err(invalid)?;
        let min_size = min_size.unwrap_or(scheme.min_size_default());
        check_min_size(scheme, min_size)
            .map_err(|why| failure("invalid", why, "omit --min-size to use the default"))?;
        let pg_count = match *pg_count {
            Some(count) => checked_pg_count(count, scheme)?,
            None => default_pg_count(candidates.len(), scheme),
        };
        let kind = kind_of(*objects, pg_count);
        check_kind(kind, scheme, pg_count, block_size).map_err(invalid)?;
        let current = vec![Vec::new(); pg_count as usize];
        let without_engine = objects.and_then(|_| self.name_without_engine());
        let mut targets = placement::plan(&candidates, scheme.position_count(), &current)
            .map_err(|error| cannot_place(&error, scheme, failure_domain, candidates.len()))
            .map_err(|error| needs_engines(error, without_engine.as_deref()))?;
        if !scheme.is_whole_everywhere() {
            placement::arrange(&mut targets, scheme.data_count() as usize);
        }
        self.check_room(&candidates, &targets)?;
        if !scheme.is_whole_everywhere() {
            self.check_prepared_room(&targets)?;
        }
        let number = committed.next_id(CounterName::Pool)?;
        let id = u32::try_from(number).ok().and_then(PoolId::new).expect("counted from 1");
        let name = name.clone();
        let pool = Pool { id, name, scheme, min_size, pg_count, failure_domain, block_size, kind };
        let planned_for = fingerprint(&pool, &candidates);
        let warning = match without_engine {
            Some(without) => Some(format!("{without}: the pool has no PGs there; {ENGINE_HINT}")),
            None => self.crowded_host(&pool, || targets.iter().cloned()),
        };
        Ok(self.write_new_pool(pool, targets, planned_for, warning))
    }

    /// Says which OSDs could keep no PGs of a new pool of objects; `None`: there is no such OSD.
    fn name_without_engine(&self) -> Option<String> {
        let verb = match self.without_engine().count() {
            0 => return None,
            1 => "has",
            _ => "have",
        };
        let named = names_and_more(self.without_engine(), OSDS_NAMED_MAX);
        Some(format!("{named} {verb} no engine for records of objects"))
    }

    /// Checks that each OSD's store has room for the records of the PGs that it would have.
    fn check_room(&self, candidates: &[Candidate], targets: &[Vec<OsdId>]) -> Result<(), Failure> {
        let mut counts: BTreeMap<OsdId, u64> = BTreeMap::new();
        for osd in targets.iter().flatten() {
            *counts.entry(*osd).or_default() += 1;
        }
        for Candidate { osd, pgs_elsewhere, .. } in candidates {
            let size = self.committed.osd(*osd).map_or(0, |record| record.size_bytes);
            let here = counts.get(osd).copied().unwrap_or(0);
            let (count, room) = (here + u64::from(*pgs_elsewhere), pg_room(size));
            if here > 0 && size > 0 && count > room {
                return Err(failure(
                    "invalid",
                    format!(
                        "{osd} would be a member of {count} PGs, but its {} MiB have room for the \
                         records of only {room}",
                        size >> 20
                    ),
                    "choose a lower PG count with --pgs, or use larger OSDs",
                ));
            }
        }
        Ok(())
    }

    /// Writes the shards of a new pool, as many as fit in one transaction; the last transaction
    /// also writes the pool. Shards of a pool that does not exist have no meaning: if the creation
    /// is interrupted, the next one overwrites its shards or removes them.
    fn write_new_pool(
        &self,
        pool: Pool,
        targets: Vec<Vec<OsdId>>,
        planned_for: u64,
        warning: Option<String>,
    ) -> Plan {
        let committed = &self.committed;
        let revision = MapRevision::ZERO.next();
        let id = pool.id;
        let shards = self.new_shards(id, revision, &targets);
        let is_there = |shard: &PgShardRecord| committed.shards(id).any(|known| known == shard);
        let count = shards.len() as u32;
        let puts = shards.into_iter().filter(|shard| !is_there(shard));
        let puts = puts.map(|shard| Write::Put(Record::PgShard(shard)));
        let left = committed.shards(id).filter(|shard| shard.shard >= count);
        let left = left.map(|shard| Write::Delete(Key::PgShard(id, shard.shard)));
        let mut batch = Batch::new(committed);
        for write in puts.chain(left) {
            if !batch.try_add(committed, vec![write]) {
                return Plan::Write { batch, done: None };
            }
        }
        let mut answer = pool_row(&pool);
        if let Some(warning) = warning {
            answer["warning"] = warning.into();
        }
        let counter =
            CounterRecord { name: CounterName::Pool, last: u64::from(id.get()), rest: Rest::new() };
        let record = PoolRecord { pool, revision, planned_for, rest: Rest::new() };
        let last = vec![Write::Put(Record::Counter(counter)), Write::Put(Record::Pool(record))];
        if !batch.try_add(committed, last) {
            return Plan::Write { batch, done: None };
        }
        Plan::Write { batch, done: Some(Done::Answer(Ok(answer))) }
    }

    fn new_shards(
        &self,
        pool: PoolId,
        revision: MapRevision,
        targets: &[Vec<OsdId>],
    ) -> Vec<PgShardRecord> {
        let entry = |(number, osds): (u32, &Vec<OsdId>)| {
            let acting = osds.iter().map(|osd| self.member(*osd));
            let entry = PgEntry::new(PgId { pool, number }, acting);
            PgEntry { epoch: Epoch::ZERO.next(), revision, ..entry }
        };
        let numbered: Vec<(u32, &Vec<OsdId>)> = (0..).zip(targets).collect();
        let shards = (0..).zip(numbered.chunks(PG_SHARD_SIZE as usize));
        let shard = |(shard, part): (u32, &[(u32, &Vec<OsdId>)])| PgShardRecord {
            pool,
            shard,
            pgs: part.iter().copied().map(entry).collect(),
            targets: part.iter().map(|(_, osds)| (*osds).clone()).collect(),
            rest: Rest::new(),
        };
        shards.map(shard).collect()
    }

    /// Describes a host with so many members of one PG that the PG could not serve I/O without that host.
    /// Checked only for pools with parity whose failure domain is not the host.
    pub(super) fn crowded_host<Sets: Iterator<Item = Vec<OsdId>>>(
        &self,
        pool: &Pool,
        planned: impl FnOnce() -> Sets,
    ) -> Option<String> {
        if pool.scheme.is_whole_everywhere() || pool.failure_domain == FailureDomain::Host {
            return None;
        }
        let spare = pool.scheme.position_count().saturating_sub(pool.min_size);
        let records = self.committed.osds();
        let hosts: BTreeMap<OsdId, &str> =
            records.map(|record| (record.info.id, record.tree_host())).collect();
        let crowded = |set: Vec<OsdId>| {
            let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
            for host in set.iter().filter_map(|osd| hosts.get(osd)) {
                *counts.entry(host).or_default() += 1;
            }
            counts.into_iter().max_by_key(|(_, count)| *count)
        };
        let (host, count) = planned().filter_map(crowded).max_by_key(|(_, count)| *count)?;
        (count > spare).then(|| {
            format!(
                "a PG of pool {} ({}) can lose {spare} of its members and continue, but host {host} \
                 has {count} of them: while that host is down, I/O waits",
                pool.name, pool.scheme
            )
        })
    }

    fn member(&self, osd: OsdId) -> Member {
        let record = self.committed.osd(osd).expect("candidates are OSDs");
        Member { osd, incarnation: record.info.incarnation }
    }

    /// Returns a pool as shown by commands, with its space.
    pub(super) fn pool_row_with(&self, record: &PoolRecord) -> serde_json::Value {
        let mut row = pool_row(&record.pool);
        // Of objects, OSDs report what their records take.
        let used = self.used_bytes(Table::Pool, record.pool.id.get());
        row["used_bytes"] = (!record.pool.has_objects()).then_some(used).into();
        if let Some(records) = self.records_of(record.pool.id) {
            row["records"] = records;
        }
        row["available_bytes"] = record.pool.scheme.usable_bytes(self.free_bytes()).into();
        row
    }

    /// Returns what the records of a pool of objects take in the engines of all OSDs, all copies together.
    fn records_of(&self, pool: PoolId) -> Option<serde_json::Value> {
        let reports = self.osds.values().filter_map(|live| live.current_report()?.engine.as_ref());
        let families = reports.flat_map(|engine| &engine.families);
        let families: Vec<_> = families.filter(|family| family.pool == pool).collect();
        let sum = |of: fn(&FamilyReport) -> u64| {
            families.iter().map(|family| of(family)).fold(0, u64::saturating_add)
        };
        (!families.is_empty()).then(|| {
            serde_json::json!({
                "count": sum(|family| family.records),
                "disk_bytes": sum(|family| family.disk_bytes),
                "compaction_bytes_left": sum(|family| family.compaction_bytes_left),
            })
        })
    }

    /// Returns the free bytes on all OSDs for which PGs are planned, according to their last reports.
    fn free_bytes(&self) -> u64 {
        let is_in = |osd: &OsdId| {
            let record = self.committed.osd(*osd);
            record.is_some_and(|record| record.info.in_cluster && record.info.up)
        };
        let live = self.osds.iter().filter(|(osd, _)| is_in(osd));
        let reports = live.filter_map(|(_, live)| live.current_report());
        reports.map(|report| report.free_bytes).fold(0, u64::saturating_add)
    }

    /// Counts, for each OSD, the PGs of all pools in which it is a member.
    pub(super) fn pg_counts(&self) -> BTreeMap<OsdId, u32> {
        let mut counts = BTreeMap::new();
        for pool in self.committed.pools() {
            for entry in self.committed.pgs(pool.pool.id) {
                for member in entry.members() {
                    *counts.entry(member.osd).or_default() += 1;
                }
            }
        }
        counts
    }
}

/// Checks the rules for every pool, whether it comes from a command, a manual edit or a recovery.
pub(super) fn check_pool(pool: &Pool) -> Result<(), String> {
    pool.scheme.check_block_size(pool.block_size)?;
    check_min_size(pool.scheme, pool.min_size)?;
    check_member_count(pool.pg_count, pool.scheme)?;
    check_kind(pool.kind, pool.scheme, pool.pg_count, pool.block_size)
}

/// Returns what a new pool keeps.
fn kind_of(objects: Option<ObjectOptions>, pg_count: u32) -> PoolKind {
    match objects {
        None => PoolKind::Block,
        Some(ObjectOptions { shards, compression, grouped }) => PoolKind::Object {
            shards: shards.unwrap_or(SHARDS_PER_PG * pg_count),
            names: if grouped { NameHash::Grouped } else { NameHash::Plain },
            compression: compression.unwrap_or(COMPRESSION),
        },
    }
}

fn default_block_size(has_objects: bool) -> BlockSize {
    match has_objects {
        true => BlockSize::new(OBJECT_BLOCK_BYTES).expect("a power of two in range"),
        false => BlockSize::DEFAULT,
    }
}

/// Checks the rules that only pools of objects have.
fn check_kind(
    kind: PoolKind,
    scheme: Scheme,
    pg_count: u32,
    block_size: BlockSize,
) -> Result<(), String> {
    let PoolKind::Object { shards, .. } = kind else { return Ok(()) };
    if !scheme.is_whole_everywhere() {
        return Err(format!("a pool of objects keeps copies; {scheme} is only for volumes"));
    }
    if block_size.bytes() > OBJECT_BLOCK_BYTES_MAX {
        let most = Size(OBJECT_BLOCK_BYTES_MAX);
        return Err(format!(
            "blocks of a pool of objects can have at most {most}, not {block_size}"
        ));
    }
    // One request lists all shards of a PG.
    let most = SHARD_COUNT_MAX.min(pg_count * PG_SHARD_COUNT_MAX);
    if !shards.is_power_of_two() || !(pg_count..=most).contains(&shards) {
        return Err(format!(
            "a pool of objects with {pg_count} PGs cannot have {shards} shards, only a power of two from \
             {pg_count} to {most}"
        ));
    }
    Ok(())
}

/// Checks the minimum size of a pool.
fn check_min_size(scheme: Scheme, min_size: u32) -> Result<(), String> {
    let (fewest, most) = scheme.min_size_limits();
    if (fewest..=most).contains(&min_size) {
        return Ok(());
    }
    Err(format!("min_size with scheme {scheme} must be from {fewest} to {most}, not {min_size}"))
}

/// Returns a pool as commands show it, with the numbers that its scheme implies.
pub(super) fn pool_row(pool: &Pool) -> serde_json::Value {
    let mut row = serde_json::to_value(pool).expect("a pool is plain text and numbers");
    let scheme = pool.scheme;
    row["kind"] = if pool.has_objects() { "object" } else { "block" }.into();
    if let PoolKind::Object { names, .. } = pool.kind {
        row["grouped"] = (names == NameHash::Grouped).into();
    }
    row["scheme"] = scheme.to_string().into();
    row.as_object_mut().expect("a pool has fields").remove("redundancy");
    if scheme.is_whole_everywhere() {
        row["replicas"] = scheme.position_count().into();
    } else {
        row["data_parts"] = scheme.data_count().into();
        row["parity_parts"] = scheme.parity_count().into();
    }
    row["stripe_size"] = pool.stripe_bytes().into();
    row
}

/// Returns the number of PGs whose records fit in a store with a data area of this size. Its record
/// area is larger than a 64th of that size, and has at least 4 MiB; each PG takes `PG_RECORD_SIZE`
/// there, including its share of a checkpoint.
fn pg_room(size_bytes: u64) -> u64 {
    (size_bytes / 64).max(4 << 20) / PG_RECORD_SIZE
}

fn checked_pg_count(count: u32, scheme: Scheme) -> Result<u32, Failure> {
    let most = pg_count_max(scheme);
    if count.is_power_of_two() && count <= most {
        return Ok(count);
    }
    Err(failure(
        "invalid",
        format!("a pool with scheme {scheme} cannot have {count} PGs"),
        format!("use a power of two from 1 to {most}"),
    ))
}

/// Checks that the whole map of a pool fits in one message.
fn check_member_count(pg_count: u32, scheme: Scheme) -> Result<(), String> {
    let most = pg_count_max(scheme);
    if pg_count <= most {
        return Ok(());
    }
    Err(format!("a pool with scheme {scheme} can have at most {most} PGs, not {pg_count}"))
}

/// Returns the largest number of PGs that a pool may have, a power of two.
fn pg_count_max(scheme: Scheme) -> u32 {
    let most = (PG_MEMBER_COUNT_MAX / scheme.position_count().max(1)).min(PG_COUNT_MAX);
    1 << most.ilog2()
}

fn default_pg_count(osd_count: usize, scheme: Scheme) -> u32 {
    let wanted = u32::try_from(osd_count).unwrap_or(u32::MAX).saturating_mul(PGS_PER_OSD);
    (wanted / scheme.position_count()).clamp(1, pg_count_max(scheme)).next_power_of_two()
}

/// Adds to the refusal of a pool of objects which OSDs have no engine.
fn needs_engines(error: Failure, without_engine: Option<&str>) -> Failure {
    let Some(without) = without_engine else { return error };
    let message = format!("{}; {without}", error.message);
    failure(&error.code, message, ENGINE_HINT)
}

pub(super) fn cannot_place(
    error: &PlanError,
    scheme: Scheme,
    failure_domain: FailureDomain,
    osd_count: usize,
) -> Failure {
    match error {
        PlanError::TooFewDomains { needed, found } => {
            let (domain, hint) = match failure_domain {
                FailureDomain::Host if osd_count >= *needed as usize => {
                    ("hosts", "use --failure-domain osd to let the members of a PG share a host")
                }
                FailureDomain::Host => {
                    ("hosts", "start more OSDs: `ashlar osd ls` shows which are up")
                }
                FailureDomain::Osd => {
                    ("OSDs", "start more OSDs: `ashlar osd ls` shows which are up")
                }
            };
            let need =
                if matches!(scheme, Scheme::Copies { count: 2.. }) { "need" } else { "needs" };
            let message = format!(
                "the pool cannot be placed: {scheme} {need} {needed} {domain} that are up, but \
                 there are {found}"
            );
            failure("cannot_place", message, hint)
        }
    }
}

/// Checks the name of a pool or volume.
pub(super) fn check_name(what: &str, name: &str) -> Result<(), Failure> {
    let is_first = |byte: u8| byte.is_ascii_alphanumeric();
    let is_further = |byte: u8| is_first(byte) || b"._-".contains(&byte);
    let bytes = name.as_bytes();
    let is_good = bytes.len() <= 63
        && bytes.first().is_some_and(|byte| is_first(*byte))
        && bytes.iter().all(|byte| is_further(*byte));
    if is_good {
        return Ok(());
    }
    Err(failure(
        "invalid",
        format!("{:?} is not a valid {what} name", super::clipped(name.to_string())),
        "use 1 to 63 letters, digits, '.', '_' and '-', starting with a letter or digit",
    ))
}
