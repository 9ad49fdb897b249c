//! Where PGs should be: each pool's plan, stored in its shards, so that a monitor's restart moves no data.
//!
//! A pool is planned again when the OSDs that may hold it change: an OSD joins, is taken out or put
//! back in, or changes its size; or when the pool's failure domain changes. An OSD that goes down
//! stays in the plan: either it returns, or it is taken out after `osd_out_after_ms`. The plan is a
//! target; `acting.rs` reaches it through learners.
//!
//! Invariants
//!   1. `pool.planned_for` is the fingerprint of the input for which all shards were planned; if
//!      that input has changed, the pool is planned again, starting from the targets in its shards.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use base::{Incarnation, OsdId, PgId, PoolId, Position};
use placement::{Candidate, PlanError};

use super::Monitor;
use super::committed_state::{Batch, Write};
use super::job::{Done, Job, Plan, Planned};
use crate::map::{FailureDomain, Pool};
use crate::records::{OsdRecord, OutBy, PG_SHARD_SIZE, PgShardRecord, PoolRecord, Record};

/// The state of planning: what is due, queued, or failed.
#[derive(Default)]
pub(super) struct Planning {
    /// Whether pools may have to be planned again.
    pub(super) is_due: bool,
    /// Pools without a valid plan: the fingerprint of the input for which planning failed, and why it failed.
    failed: BTreeMap<PoolId, (u64, PlanError)>,
    queued: BTreeSet<PoolId>,
}

impl Monitor {
    /// Queues plans that are due; returns whether there were any.
    pub(super) fn queue_plans(&mut self) -> bool {
        if self.is_older() || !std::mem::take(&mut self.planning.is_due) {
            return false;
        }
        let before = self.jobs.len();
        let committed = &self.committed;
        let planning = &mut self.planning;
        planning.failed.retain(|pool, _| committed.pool(*pool).is_some());
        let pools: Vec<(PoolId, u64)> =
            committed.pools().map(|record| (record.pool.id, record.planned_for)).collect();
        for (pool, planned_for) in pools {
            let fingerprint = self.fingerprint_of(pool);
            let is_known = planned_for == fingerprint;
            let failed = self.planning.failed.get(&pool);
            if is_known {
                self.planning.failed.remove(&pool);
            } else if failed.is_none_or(|(tried, _)| *tried != fingerprint)
                && self.planning.queued.insert(pool)
            {
                self.jobs.push(Job::Replan { pool, planned: RefCell::default() });
            }
        }
        self.jobs.len() > before
    }

    pub(super) fn plan_replan(&self, pool: PoolId, planned: &RefCell<Option<Planned>>) -> Plan {
        let committed = &self.committed;
        let Some(record) = committed.pool(pool) else { return Plan::Done(Done::Replanned(None)) };
        let candidates = self.candidates_for(record);
        let fingerprint = fingerprint(&record.pool, &candidates);
        if record.planned_for == fingerprint {
            return Plan::Done(Done::Replanned(None));
        }
        let mut planned = planned.borrow_mut();
        if planned.as_ref().is_none_or(|planned| planned.fingerprint != fingerprint) {
            let current: Vec<Vec<OsdId>> = self.targets(pool).collect();
            let count = record.pool.scheme.position_count();
            let leaders = |number: usize, set: &[OsdId]| self.leaders_of(&record.pool, number, set);
            match placement::plan_led(&candidates, count, &current, leaders) {
                Ok(targets) => *planned = Some(Planned { fingerprint, targets }),
                Err(error) => return Plan::Done(Done::Replanned(Some((fingerprint, error)))),
            }
        }
        let planned = planned.as_ref().expect("just made");
        let mut batch = Batch::new(committed);
        for shard in committed.shards(pool) {
            let first = (shard.shard * PG_SHARD_SIZE) as usize;
            let targets = &planned.targets[first..first + shard.pgs.len()];
            if shard.targets == targets {
                continue;
            }
            let shard = PgShardRecord { targets: targets.to_vec(), ..shard.clone() };
            if !batch.try_add(committed, vec![Write::Put(Record::PgShard(shard))]) {
                return Plan::Write { batch, done: None };
            }
        }
        let record = PoolRecord { planned_for: fingerprint, ..record.clone() };
        if !batch.try_add(committed, vec![Write::Put(Record::Pool(record))]) {
            return Plan::Write { batch, done: None };
        }
        Plan::Write { batch, done: Some(Done::Replanned(None)) }
    }

    pub(super) fn finish_replan(&mut self, pool: PoolId, failed: Option<(u64, PlanError)>) {
        self.planning.queued.remove(&pool);
        // The OSDs or the pool may have changed in the meantime.
        self.planning.is_due = true;
        match failed {
            Some(failed) => {
                self.planning.failed.insert(pool, failed);
            }
            None => {
                self.planning.failed.remove(&pool);
            }
        }
    }

    /// Returns the pools that cannot be placed on the existing OSDs, and why.
    pub(super) fn unplaced_pools(&self) -> impl Iterator<Item = (&Pool, &PlanError)> {
        let failed = self.planning.failed.iter();
        failed.filter_map(|(pool, (_, error))| Some((&self.committed.pool(*pool)?.pool, error)))
    }

    /// Returns the planned OSDs of each PG of a pool.
    pub(super) fn targets(&self, pool: PoolId) -> impl Iterator<Item = Vec<OsdId>> {
        let shards = self.committed.shards(pool);
        shards.flat_map(|shard| (0..shard.pgs.len()).map(|index| shard.targets_of(index)))
    }

    /// Returns the planned OSDs of a PG that may become its primary: with parity, only those that hold data
    /// or will replace a member that holds data.
    fn leaders_of(&self, pool: &Pool, number: usize, planned: &[OsdId]) -> Vec<OsdId> {
        if pool.scheme.is_whole_everywhere() {
            return planned.to_vec();
        }
        let pg = PgId { pool: pool.id, number: number as u32 };
        let Some(entry) = self.committed.pg(pg) else { return planned.to_vec() };
        let is_open = |position: Position| {
            let member = entry.member_at(position);
            member.is_none_or(|member| !planned.contains(&member.osd))
        };
        let has_open = Position::all().any(|at| {
            at.index() < entry.positions.len() && pool.scheme.has_data(at) && is_open(at)
        });
        let may_lead = |osd: &OsdId| match entry.position_of(*osd) {
            Some(position) => pool.scheme.has_data(position),
            None => has_open,
        };
        planned.iter().copied().filter(may_lead).collect()
    }

    fn fingerprint_of(&self, pool: PoolId) -> u64 {
        let record = self.committed.pool(pool).expect("the caller has found it");
        fingerprint(&record.pool, &self.candidates_for(record))
    }

    /// Returns the OSDs that may hold PGs of an existing pool.
    fn candidates_for(&self, record: &PoolRecord) -> Vec<Candidate> {
        let planned = self.planned_on(record.pool.id);
        let usable = |osd: &&OsdRecord| {
            let is_known = osd.info.up && osd.size_bytes > 0;
            let is_planned = planned.contains(&osd.info.id);
            is_usable(osd)
                && (is_known || is_planned)
                && osd.may_keep(record.pool.has_objects(), is_planned)
        };
        let usable: Vec<&OsdRecord> = self.committed.osds().filter(usable).collect();
        self.candidates_of(&usable, record.pool.failure_domain, Some(record.pool.id))
    }

    /// Returns the OSDs that may hold PGs of a pool that is being created, with objects or without.
    pub(super) fn candidates(
        &self,
        failure_domain: FailureDomain,
        has_objects: bool,
    ) -> Vec<Candidate> {
        let usable = self.newly_usable().filter(|osd| osd.may_keep(has_objects, false));
        let usable: Vec<&OsdRecord> = usable.collect();
        self.candidates_of(&usable, failure_domain, None)
    }

    /// Returns those that may hold no PGs of a new pool of objects: they have no engine, or do not say.
    pub(super) fn without_engine(&self) -> impl Iterator<Item = OsdId> {
        self.newly_usable().filter(|osd| !osd.may_keep(true, false)).map(|osd| osd.info.id)
    }

    /// Returns the OSDs that may hold PGs of a new pool of volumes.
    pub(super) fn newly_usable(&self) -> impl Iterator<Item = &OsdRecord> {
        self.committed.osds().filter(|osd| is_usable(osd) && osd.info.up)
    }

    /// Returns the OSDs on which PGs of a pool are planned.
    fn planned_on(&self, pool: PoolId) -> BTreeSet<OsdId> {
        self.targets(pool).flatten().collect()
    }

    /// Returns the candidates; an OSD that has not reported its size yet counts as one of average size.
    fn candidates_of(
        &self,
        usable: &[&OsdRecord],
        failure_domain: FailureDomain,
        pool: Option<PoolId>,
    ) -> Vec<Candidate> {
        let sizes: Vec<u64> =
            usable.iter().map(|record| record.size_bytes).filter(|size| *size > 0).collect();
        let sum: u128 = sizes.iter().map(|size| u128::from(*size)).sum();
        let average = sum.checked_div(sizes.len() as u128).unwrap_or(1);
        let average = u64::try_from(average).expect("an average is not above the largest");
        let elsewhere = self.planned_counts(pool);
        let candidate = |record: &&OsdRecord| {
            let osd = record.info.id;
            Candidate {
                osd,
                domain: domain_of(record, failure_domain),
                weight: if record.size_bytes > 0 { record.size_bytes } else { average },
                pgs_elsewhere: elsewhere.get(&osd).copied().unwrap_or(0),
            }
        };
        usable.iter().map(candidate).collect()
    }

    /// Counts the PG copies planned on each OSD, over all pools except the pool `but`.
    fn planned_counts(&self, but: Option<PoolId>) -> BTreeMap<OsdId, u32> {
        let mut counts = BTreeMap::new();
        for pool in self.committed.pools().filter(|pool| Some(pool.pool.id) != but) {
            for osd in self.targets(pool.pool.id).flatten() {
                *counts.entry(osd).or_default() += 1;
            }
        }
        counts
    }

    /// Plans to take out an OSD that has been down for `osd_out_after_ms`, if the remaining OSDs suffice.
    pub(super) fn plan_out_osd(&self, osd: OsdId) -> Plan {
        let Some(record) = self.committed.osd(osd) else { return Plan::Done(Done::Silent) };
        let is_back = record.info.up || self.is_present(osd);
        if is_back || !record.info.in_cluster || self.is_older() {
            return Plan::Done(Done::Silent);
        }
        if self.why_it_stays_in(osd).is_some() {
            return Plan::Done(Done::Silent);
        }
        let mut record = record.clone();
        record.set_in(false, OutBy::Monitor);
        record.info.revision = self.committed.osd_revision_max() + 1;
        let mut batch = Batch::new(&self.committed);
        batch.put(&self.committed, Record::Osd(record));
        Plan::Write { batch, done: Some(Done::Silent) }
    }

    /// Explains why an OSD is not taken out, however long it stays down; `None`: it may be taken out.
    pub(super) fn why_it_stays_in(&self, osd: OsdId) -> Option<String> {
        let ran = || {
            let ran = self.committed.osds();
            ran.filter(|record| record.info.incarnation > Incarnation::ZERO)
        };
        let left = ran().filter(|record| record.info.in_cluster && record.info.id != osd).count();
        if left * 2 < ran().count() {
            return Some("fewer than half of the OSDs would remain in the cluster".to_string());
        }
        let lacks = |pool: &&PoolRecord| {
            let planned = self.planned_on(pool.pool.id);
            let may_keep = |other: &OsdRecord| {
                other.may_keep(pool.pool.has_objects(), planned.contains(&other.info.id))
            };
            let others = ran().filter(|r| r.info.in_cluster && r.info.id != osd && may_keep(r));
            let domains: BTreeSet<String> =
                others.map(|record| domain_of(record, pool.pool.failure_domain)).collect();
            domains.len() < pool.pool.scheme.position_count() as usize
        };
        let lacking = self.committed.pools().find(lacks)?;
        Some(format!("pool {} could not be placed without this OSD", lacking.pool.name))
    }
}

/// Whether the planner may use the OSD: it is in, and has run.
fn is_usable(record: &OsdRecord) -> bool {
    record.info.in_cluster && record.info.incarnation > Incarnation::ZERO
}

/// Returns the failure domain of the OSD: two copies of a PG must not share it.
pub(super) fn domain_of(record: &OsdRecord, failure_domain: FailureDomain) -> String {
    match failure_domain {
        FailureDomain::Host => record.tree_host().to_string(),
        FailureDomain::Osd => record.info.id.to_string(),
    }
}

/// Returns a hash of everything that a plan depends on (64-bit FNV-1a). If two inputs collide by chance, the
/// plan stays as it is until the next change; safety does not depend on this value.
pub(super) fn fingerprint(pool: &Pool, candidates: &[Candidate]) -> u64 {
    let mut text = format!("{} {:?}", pool.scheme, pool.failure_domain);
    for candidate in candidates {
        let Candidate { osd, domain, weight, .. } = candidate;
        text.push_str(&format!("\n{} {weight} {domain:?}", osd.get()));
    }
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
