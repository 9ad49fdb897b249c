//! Making pools.

use std::collections::BTreeMap;

use base::{BlockSize, Epoch, MapRevision, OsdId, PgId, PoolId};
use format::wire::{Member, PgEntry};
use placement::{Candidate, PlanError};

use super::boot::shards_of;
use super::contents::{Batch, Write};
use super::job::{Done, Plan};
use super::{Monitor, failure};
use crate::map::{FailureDomain, Pool};
use crate::message::{Command, Failure};
use crate::records::{CounterName, PoolRecord, Record, Rest};

/// Pools of a cluster.
const POOL_COUNT_MAX: usize = 256;
/// PGs of a pool: all its entries fit the transaction that makes it.
const PG_COUNT_MAX: u32 = 8192;
/// PGs that a pool gets for each OSD, unless told.
const PGS_PER_OSD: u32 = 32;
/// Copies that may be asked for.
const REPLICAS_MAX: u32 = 16;

impl Monitor {
    pub(super) fn plan_pool_create(&self, command: &Command) -> Result<Plan, Failure> {
        let Command::PoolCreate {
            pool: name,
            replicas,
            min_size,
            pg_count,
            failure_domain,
            block_size,
        } = command
        else {
            unreachable!("the caller matched it");
        };
        let contents = &self.contents;
        check_name("pool", name)?;
        if contents.pool_named(name).is_some() {
            let hint = "`ashlar pool ls` lists the pools there are";
            return Err(failure("exists", format!("there is a pool {name} already"), hint));
        }
        if contents.pools().count() >= POOL_COUNT_MAX {
            let message = format!("the cluster has {POOL_COUNT_MAX} pools already");
            return Err(failure("invalid", message, "use one of them"));
        }
        let replicas = replicas.unwrap_or(1);
        let min_size = min_size.unwrap_or(if replicas <= 2 { 1 } else { 2 });
        let failure_domain = failure_domain.unwrap_or(FailureDomain::Host);
        if !(1..=REPLICAS_MAX).contains(&replicas) || !(1..=replicas).contains(&min_size) {
            return Err(failure(
                "invalid",
                format!("{replicas} copies with a minimum of {min_size} cannot be"),
                format!("1 to {REPLICAS_MAX} copies, the minimum between 1 and their number"),
            ));
        }
        if replicas > 1 {
            return Err(failure(
                "unsupported",
                "this version keeps 1 copy: replication is not there yet",
                "leave --replicas out, or say --replicas 1",
            ));
        }
        let candidates = self.candidates(failure_domain);
        let pg_count = match *pg_count {
            Some(count) => checked_pg_count(count)?,
            None => default_pg_count(candidates.len()),
        };
        let current = vec![Vec::new(); pg_count as usize];
        let planned = placement::plan(&candidates, replicas, &current)
            .map_err(|error| cannot_place(&error, failure_domain, candidates.len()))?;

        let mut batch = Batch::new(contents);
        let number = batch.next_id(contents, CounterName::Pool);
        let id = u32::try_from(number).ok().and_then(PoolId::new).expect("counted from 1");
        let block_size = block_size.unwrap_or(BlockSize::DEFAULT);
        let pool = Pool {
            id,
            name: name.clone(),
            replicas,
            min_size,
            pg_count,
            failure_domain,
            block_size,
        };
        let answer = pool_row(&pool);
        let revision = MapRevision::ZERO.next();
        batch.put(contents, Record::Pool(PoolRecord { pool, revision, rest: Rest::new() }));
        let pgs = planned.into_iter().zip(0..).map(|(osds, number)| PgEntry {
            pg: PgId { pool: id, number },
            epoch: Epoch::ZERO.next(),
            revision,
            primary: osds.first().copied(),
            acting: osds.into_iter().map(|osd| self.member(osd)).collect(),
            learners: Vec::new(),
        });
        let shards = shards_of(pgs.collect());
        batch.add(contents, shards.map(|shard| Write::Put(Record::PgShard(shard))).collect());
        Ok(Plan::Write { batch, done: Some(Done::Answer(Ok(answer))) })
    }

    fn member(&self, osd: OsdId) -> Member {
        let record = self.contents.osd(osd).expect("candidates are OSDs");
        Member { osd, incarnation: record.info.incarnation }
    }

    /// OSDs that may get PGs: in the cluster and up. One that has not told its size yet counts as
    /// an average one.
    fn candidates(&self, failure_domain: FailureDomain) -> Vec<Candidate> {
        let usable = |record: &&crate::records::OsdRecord| record.info.up && record.info.in_cluster;
        let usable: Vec<_> = self.contents.osds().filter(usable).collect();
        let sizes: Vec<u64> =
            usable.iter().map(|record| record.size_bytes).filter(|size| *size > 0).collect();
        let sum: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
        let average = sum.checked_div(sizes.len() as u128).unwrap_or(1);
        let average = u64::try_from(average).expect("an average is not above the largest");
        let elsewhere = self.pg_counts();
        let candidate = |record: &crate::records::OsdRecord| {
            let osd = record.info.id;
            Candidate {
                osd,
                domain: match failure_domain {
                    FailureDomain::Host => record.host.clone(),
                    FailureDomain::Osd => osd.to_string(),
                },
                weight: if record.size_bytes > 0 { record.size_bytes } else { average },
                pgs_elsewhere: elsewhere.get(&osd).copied().unwrap_or(0),
            }
        };
        usable.into_iter().map(candidate).collect()
    }

    /// PGs of all pools on each OSD.
    pub(super) fn pg_counts(&self) -> BTreeMap<OsdId, u32> {
        let mut counts = BTreeMap::new();
        for pool in self.contents.pools() {
            for member in self.contents.pgs(pool.pool.id).flat_map(|entry| &entry.acting) {
                *counts.entry(member.osd).or_default() += 1;
            }
        }
        counts
    }
}

/// A pool as commands show it.
pub(super) fn pool_row(pool: &Pool) -> serde_json::Value {
    serde_json::to_value(pool).expect("a pool is plain text and numbers")
}

fn checked_pg_count(count: u32) -> Result<u32, Failure> {
    if count.is_power_of_two() && count <= PG_COUNT_MAX {
        return Ok(count);
    }
    Err(failure(
        "invalid",
        format!("{count} is no number of PGs"),
        format!("a power of two from 1 to {PG_COUNT_MAX}"),
    ))
}

fn default_pg_count(osd_count: usize) -> u32 {
    let wanted = u32::try_from(osd_count).unwrap_or(u32::MAX).saturating_mul(PGS_PER_OSD);
    wanted.clamp(1, PG_COUNT_MAX).next_power_of_two()
}

fn cannot_place(error: &PlanError, failure_domain: FailureDomain, osd_count: usize) -> Failure {
    match error {
        PlanError::TooFewDomains { needed, found } => {
            let (domain, hint) = match failure_domain {
                FailureDomain::Host if osd_count >= *needed as usize => {
                    ("hosts", "say --failure-domain osd to let copies share a host")
                }
                FailureDomain::Host => {
                    ("hosts", "start more OSDs: `ashlar osd ls` shows which are up")
                }
                FailureDomain::Osd => {
                    ("OSDs", "start more OSDs: `ashlar osd ls` shows which are up")
                }
            };
            let message = format!(
                "the pool cannot be placed: {needed} copies need {needed} {domain} that are up, \
                 there are {found}"
            );
            failure("cannot_place", message, hint)
        }
    }
}

/// Names of pools and volumes.
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
        format!("{:?} is no name of a {what}", super::clipped(name.to_string())),
        "1 to 63 letters, digits, '.', '_' and '-', a letter or digit first",
    ))
}
