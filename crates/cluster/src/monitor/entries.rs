//! Which PGs need a new entry, and why: because a primary requested one, or because an OSD changed.
//! `acting.rs` computes the entries; this file writes them, as many at a time as fit in a transaction.
//!
//! Requests from primaries are kept only in memory: primaries repeat them until the epoch has ended.
//!
//! Invariants
//!   1. A primary's request is valid for one epoch of one entry and for the runs of that entry.
//!   2. A member that its primary cannot work with is barred for a while, longer each time, and
//!      returns as a learner, so that an entry does not flap.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, Epoch, Incarnation, OsdId, PgId, PoolId, Position, Time};
use format::wire::{Member, PgEntry};

use super::acting::{DiskStanding, Given, Links, Standing, next_entry};
use super::committed_state::{Batch, Write};
use super::job::{Done, Job, Plan};
use super::osd::{OsdLive, STALL_GATHER};
use super::{Monitor, clipped};
use crate::message::{Need, PgNeed};
use crate::records::{PG_SHARD_SIZE, PgShardRecord, PoolRecord, Record};

/// How long the next epoch of a PG is delayed after its primary requested it: related failures are usually
/// detected within that time.
const RENEW_DELAY: Duration = Duration::from_millis(10);
/// The shortest span between two epochs that a primary requested; it doubles each time.
const RENEW_SPAN_MIN: Duration = Duration::from_millis(100);
/// The longest span between two epochs that a primary requested.
const RENEW_SPAN_MAX: Duration = Duration::from_secs(5);
/// The shortest span between two epochs started because of a failed member that cannot be removed.
const FAILED_SPAN_MIN: Duration = Duration::from_secs(1);
/// How long a member is barred the first time; the span doubles each time.
const BAR_SPAN_MIN: Duration = Duration::from_secs(5);
/// The longest time for which a member is barred; also the longest span between two epochs started because of
/// a failed member that cannot be removed.
const BAR_SPAN_MAX: Duration = Duration::from_secs(60);

/// A shard of PG entries.
type ShardId = (PoolId, u32);

/// The state of PGs beyond their entries: which ones may need new entries, and why.
#[derive(Default)]
pub(super) struct Entries {
    /// Shards that may need new entries.
    dirty: BTreeSet<ShardId>,
    /// Whether all shards may need new entries.
    all_dirty: bool,
    /// The time at which all PGs are checked again.
    check: Option<Time>,
    pub(super) is_job_queued: bool,
    /// The requests of primaries.
    asked: BTreeMap<PgId, Asked>,
    /// OSDs that become learners whatever the plan says, until the PG is active.
    called_back: BTreeMap<PgId, BTreeSet<OsdId>>,
    /// Epochs that primaries requested recently.
    renewals: BTreeMap<PgId, Renewal>,
    /// Members that their primaries could not work with.
    bars: BTreeMap<(PgId, OsdId), Bar>,
    /// Pairs of OSDs of which the first cannot reach the second, although this monitor hears from both.
    links: BTreeMap<(OsdId, OsdId), Bar>,
}

/// The requests of a primary in one epoch.
struct Asked {
    epoch: Epoch,
    complete: BTreeSet<Member>,
    /// Learners that get the positions back that they had when the PG was last active.
    returning: BTreeMap<Position, Member>,
    /// The next epoch, if the primary requested one.
    renew: Option<Renewal>,
}

/// An epoch that a primary requested: when it begins, and how long the next one is delayed.
#[derive(Clone, Copy)]
struct Renewal {
    at: Time,
    span: Duration,
}

/// A bar on a member or a link: for how long, and why.
pub(super) struct Bar {
    /// The run of the OSD that is barred; other runs are not.
    incarnation: Incarnation,
    /// The event in which the failure was noticed.
    since: u64,
    until: Time,
    span: Duration,
    /// The reason, for people.
    pub(super) why: String,
}

impl Entries {
    pub(super) fn mark_all(&mut self) {
        self.all_dirty = true;
    }

    pub(super) fn mark(&mut self, pool: PoolId, shard: u32) {
        self.dirty.insert((pool, shard));
    }

    pub(super) fn mark_pg(&mut self, pg: PgId) {
        self.mark(pg.pool, pg.number / PG_SHARD_SIZE);
    }

    /// Schedules a check of all PGs at this time or earlier.
    pub(super) fn look_at(&mut self, at: Time) {
        self.check = Some(self.check.map_or(at, |check| check.min(at)));
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.check
    }

    pub(super) fn is_dirty(&self, shard: ShardId) -> bool {
        self.all_dirty || self.dirty.contains(&shard)
    }

    /// Returns the time at which the next bar ends or the next delayed epoch may begin.
    fn next_end(&self, now: Time) -> Option<Time> {
        let bars = self.bars.values().chain(self.links.values()).map(|bar| bar.until);
        let renews = self.asked.values().filter_map(|asked| asked.renew).map(|renew| renew.at);
        bars.chain(renews).filter(|at| *at > now).min()
    }
}

impl Renewal {
    /// Returns the renewal for a request that arrives now.
    fn after(before: Option<&Renewal>, now: Time, min: Duration, max: Duration) -> Renewal {
        let soonest = now + RENEW_DELAY;
        let Some(before) = before.filter(|before| !before.is_over(now)) else {
            return Renewal { at: soonest, span: min };
        };
        let double = Duration::from_nanos(before.span.as_nanos().saturating_mul(2));
        // The earlier span may exceed the maximum of this request.
        let at = soonest.max(before.at + before.span.min(max));
        Renewal { at, span: double.max(min).min(max) }
    }

    fn is_over(&self, now: Time) -> bool {
        self.at + self.span + self.span <= now
    }
}

impl Bar {
    /// Creates or renews a bar: it lasts twice as long if the previous one ended recently.
    fn raised(
        before: Option<&Bar>,
        now: Time,
        event: u64,
        incarnation: Incarnation,
        why: String,
    ) -> Bar {
        let before = before.filter(|bar| bar.incarnation == incarnation);
        let (span, since) = match before {
            Some(bar) if now < bar.until => (bar.span, bar.since),
            Some(bar) if now < bar.until + bar.span => {
                let double = bar.span.as_nanos().saturating_mul(2);
                (Duration::from_nanos(double).min(BAR_SPAN_MAX), event)
            }
            _ => (BAR_SPAN_MIN, event),
        };
        Bar { incarnation, since, until: now + span, span, why }
    }

    fn is_over(&self, now: Time) -> bool {
        self.until + self.span <= now
    }
}

impl Monitor {
    /// Handles a primary's report of what its PGs need.
    pub(super) fn on_needs(&mut self, now: Time, connection: ConnectionId, needs: Vec<PgNeed>) {
        let Some(osd) = self.connections.osd(connection) else { return };
        for need in needs {
            self.on_need(now, osd, need);
        }
    }

    fn on_need(&mut self, now: Time, from: OsdId, need: PgNeed) {
        let pg = need.pg;
        let Some(entry) = self.committed.pg(pg) else { return };
        if entry.epoch != need.epoch
            || entry.primary_osd() != Some(from)
            || !self.leads_in_its_run(entry, from)
        {
            return;
        }
        let is_member = |member: &Member| entry.members().any(|known| known == member);
        match need.what {
            Need::NewEpoch => {}
            Need::Complete(member) | Need::Return(member, _)
                if !entry.learning().any(|learner| *learner == member) =>
            {
                return;
            }
            Need::CallBack(osd) if entry.acting_member(osd).is_some() => return,
            Need::CallBack(osd) => {
                if self.entries.called_back.entry(pg).or_default().insert(osd) {
                    self.entries.mark_pg(pg);
                }
                return;
            }
            Need::Complete(_) | Need::Return(..) => {}
            Need::Failed(member, _) if !is_member(&member) => return,
            Need::Failed(..) => {}
        }
        let epoch = entry.epoch;
        let others: Vec<OsdId> = entry.acting().map(|member| member.osd).collect();
        let asked = self.entries.asked.entry(pg).or_insert(Asked {
            epoch,
            complete: BTreeSet::new(),
            returning: BTreeMap::new(),
            renew: None,
        });
        if asked.epoch != epoch {
            let (complete, returning) = (BTreeSet::new(), BTreeMap::new());
            *asked = Asked { epoch, complete, returning, renew: None };
        }
        let before = self.entries.renewals.get(&pg);
        match need.what {
            Need::Complete(member) => {
                let is_new = asked.complete.insert(member);
                let is_up = |osd: &OsdId| self.committed.osd(*osd).is_some_and(|it| it.info.up);
                if is_new && !others.iter().all(is_up) {
                    // The PG may continue without its lost members once all of these OSDs have answered a
                    // probe.
                    self.ask_soon(others.into_iter().chain([member.osd]));
                }
            }
            Need::Return(member, position) => {
                asked.returning.insert(position, member);
            }
            Need::CallBack(_) => unreachable!("handled above"),
            Need::NewEpoch => {
                let next = || Renewal::after(before, now, RENEW_SPAN_MIN, RENEW_SPAN_MAX);
                let at = asked.renew.get_or_insert_with(next).at;
                self.entries.look_at(at);
            }
            Need::Failed(member, why) => {
                let next = || Renewal::after(before, now, FAILED_SPAN_MIN, BAR_SPAN_MAX);
                let at = asked.renew.get_or_insert_with(next).at;
                self.entries.look_at(at);
                self.bar(now, pg, member, clipped(why));
                self.ask_soon(others.into_iter().filter(|osd| *osd != member.osd));
            }
        }
        self.entries.mark_pg(pg);
    }

    /// Handles a report of `osd`: PGs that are active do not need members that were left out.
    pub(super) fn end_call_backs(&mut self, osd: OsdId) {
        if self.entries.called_back.is_empty() {
            return;
        }
        let is_over = |pg: &&PgId| match self.committed.pg(**pg) {
            Some(entry) => entry.primary_osd() == Some(osd) && self.pg_state(entry).serves(),
            None => true,
        };
        let over: Vec<PgId> = self.entries.called_back.keys().filter(is_over).copied().collect();
        for pg in over {
            self.entries.called_back.remove(&pg);
            self.entries.mark_pg(pg);
        }
    }

    /// Whether the entry contains the current run of `osd`, its primary.
    pub(super) fn leads_in_its_run(&self, entry: &PgEntry, osd: OsdId) -> bool {
        let run = self.committed.osd(osd).map(|record| record.info.incarnation);
        entry.acting_member(osd).map(|member| member.incarnation) == run
    }

    fn bar(&mut self, now: Time, pg: PgId, member: Member, why: String) {
        let key = (pg, member.osd);
        let before = self.entries.bars.get(&key);
        let bar = Bar::raised(before, now, self.event_last, member.incarnation, why);
        self.entries.look_at(bar.until);
        self.entries.bars.insert(key, bar);
    }

    /// Bars a link: `from` cannot reach `to`, although this monitor hears from both. In PGs that `from`
    /// leads, `to` cannot take part; if `from` can reach too few members, another member leads.
    pub(super) fn bar_link(&mut self, now: Time, from: OsdId, to: OsdId) {
        let Some(record) = self.committed.osd(to) else { return };
        let key = (from, to);
        let before = self.entries.links.get(&key);
        let is_new = before.is_none_or(|bar| bar.until <= now);
        let why = format!("{from} cannot reach this OSD");
        let run = record.info.incarnation;
        let bar = Bar::raised(before, now, self.event_last, run, why);
        self.entries.look_at(bar.until);
        self.entries.links.insert(key, bar);
        // Repeated for every report: `from` may lead new entries by now, with members that were not probed
        // yet.
        self.notice_link(from);
        if is_new {
            self.entries.mark_all();
        }
    }

    /// Probes the members of PGs that `from` leads: if a link of `from` is broken, these PGs have to continue
    /// without `from` or without the OSD at the other end of the link.
    fn notice_link(&mut self, from: OsdId) {
        let mut others = BTreeSet::new();
        for pool in self.committed.pools() {
            let led =
                self.committed.pgs(pool.pool.id).filter(|entry| entry.primary_osd() == Some(from));
            others.extend(led.flat_map(|entry| entry.acting()).map(|member| member.osd));
        }
        self.ask_soon(others);
    }

    /// Returns the broken links as pairs (from, to).
    pub(super) fn broken_links(&self, now: Time) -> impl Iterator<Item = (OsdId, OsdId)> {
        let links = self.entries.links.iter();
        links.filter(move |(_, bar)| bar.until > now).map(|(pair, _)| *pair)
    }

    /// Returns the members that their primaries currently cannot work with.
    pub(super) fn failing_members(&self, now: Time) -> impl Iterator<Item = (OsdId, &Bar)> {
        let bars = self.entries.bars.iter().filter(move |(_, bar)| bar.until > now);
        bars.map(|((_, osd), bar)| (*osd, bar))
    }

    /// Returns the members that are currently barred from a PG, and why.
    pub(super) fn barred_from(
        &self,
        now: Time,
        entry: &PgEntry,
    ) -> impl Iterator<Item = (OsdId, &Bar)> {
        let from = entry.primary_osd().into_iter();
        let links = from.flat_map(move |from| {
            let links = self.entries.links.range((from, OsdId::FIRST)..);
            links.take_while(move |((id, _), _)| *id == from).map(|((_, osd), bar)| (*osd, bar))
        });
        let links = links.filter(move |(osd, bar)| self.holds(now, *osd, bar));
        self.failed_in(now, entry.pg).chain(links)
    }

    /// Returns the OSDs that are barred from the PG in their current runs, each with its bar.
    fn failed_in(&self, now: Time, pg: PgId) -> impl Iterator<Item = (OsdId, &Bar)> {
        let bars = self.entries.bars.range((pg, OsdId::FIRST)..);
        let bars = bars.take_while(move |((id, _), _)| *id == pg);
        let bars = bars.map(|((_, osd), bar)| (*osd, bar));
        bars.filter(move |(osd, bar)| self.holds(now, *osd, bar))
    }

    fn holds(&self, now: Time, osd: OsdId, bar: &Bar) -> bool {
        let run = self.committed.osd(osd).map(|record| record.info.incarnation);
        bar.until > now && run == Some(bar.incarnation)
    }

    /// Returns the broken links, and the links that are only reported as broken so far.
    fn links(&self) -> Links {
        let now = self.now;
        let links = self.entries.links.iter();
        let broken = links.filter(|((_, to), bar)| self.holds(now, *to, bar));
        let broken: BTreeMap<(OsdId, OsdId), u64> =
            broken.map(|(pair, bar)| (*pair, bar.since)).collect();
        let is_new = |pair: &(OsdId, OsdId)| !broken.contains_key(pair);
        let doubted = self.doubted_links(now).filter(is_new).collect();
        Links { broken, doubted }
    }

    /// Queues the job that writes entries, if some may be needed; returns whether it did.
    pub(super) fn queue_entries(&mut self, now: Time) -> bool {
        if self.is_older() {
            // Nothing is written while the store is older; all shards are checked when this monitor starts
            // over.
            self.entries.check = None;
            return false;
        }
        if self.entries.check.is_some_and(|check| check <= now) {
            self.entries.check = None;
            self.entries.mark_all();
        }
        let is_dirty = self.entries.all_dirty || !self.entries.dirty.is_empty();
        let is_new = is_dirty && !self.entries.is_job_queued;
        if is_new {
            self.entries.is_job_queued = true;
            self.jobs.push_urgent(Job::Entries);
        }
        is_new
    }

    pub(super) fn plan_entries(&self) -> Plan {
        match self.entries_batch(false) {
            Some(batch) => Plan::Write { batch, done: None },
            None => Plan::Done(Done::EntriesSettled),
        }
    }

    /// Handles the end of the job that writes entries: no entry needs to change for now.
    pub(super) fn on_entries_settled(&mut self) {
        let now = self.now;
        let entries = &mut self.entries;
        entries.is_job_queued = false;
        entries.all_dirty = false;
        entries.dirty.clear();
        entries.bars.retain(|_, bar| !bar.is_over(now));
        entries.links.retain(|_, bar| !bar.is_over(now));
        entries.renewals.retain(|_, renewal| !renewal.is_over(now));
        if let Some(end) = entries.next_end(now) {
            entries.look_at(end);
        }
        let doubts_end = self.doubts_end(now).filter(|_| !self.entries.links.is_empty());
        let rests_end = self.osds.values().filter_map(|live| live.starts.rest(now)).min();
        for end in doubts_end.into_iter().chain(rests_end).chain(self.stalls_settle(now)) {
            self.entries.look_at(end);
        }
    }

    /// Builds new entries for PGs that need them, as many as fit: for all PGs, or only for those in dirty
    /// shards. `None`: no entry needs to change, or the store was set back to an older state.
    pub(super) fn entries_batch(&self, of_all: bool) -> Option<Batch> {
        if self.is_older() {
            return None;
        }
        let committed = &self.committed;
        let (standings, links) = (self.standings(), self.links());
        let mut batch = Batch::new(committed);
        for pool in committed.pools() {
            let revision = pool.revision.next();
            let mut is_pool_written = false;
            for shard in committed.shards(pool.pool.id) {
                if !of_all && !self.entries.is_dirty((shard.pool, shard.shard)) {
                    continue;
                }
                let next = self.next_entries(pool, shard, (&standings, &links));
                let Some(pgs) = next else { continue };
                let mut writes =
                    vec![Write::Put(Record::PgShard(PgShardRecord { pgs, ..shard.clone() }))];
                if !is_pool_written {
                    let record = PoolRecord { revision, ..pool.clone() };
                    writes.push(Write::Put(Record::Pool(record)));
                }
                if !batch.try_add(committed, writes) {
                    assert!(!batch.is_empty(), "one shard and its pool fit a transaction");
                    return Some(batch);
                }
                is_pool_written = true;
            }
        }
        (!batch.is_empty()).then_some(batch)
    }

    /// Returns a shard's entries after all changes; `None`: no entry changes.
    fn next_entries(
        &self,
        pool: &PoolRecord,
        shard: &PgShardRecord,
        (standings, links): (&BTreeMap<OsdId, Standing>, &Links),
    ) -> Option<Vec<PgEntry>> {
        let next = |(index, entry): (usize, &PgEntry)| {
            let targets = shard.targets_of(index);
            next_entry(entry, self.given(pool, entry, &targets, standings, links))
        };
        let next: Vec<Option<PgEntry>> = shard.pgs.iter().enumerate().map(next).collect();
        next.iter().any(Option::is_some).then(|| {
            let both = next.into_iter().zip(&shard.pgs);
            let revision = pool.revision.next();
            let newest = |(next, entry): (Option<PgEntry>, &PgEntry)| match next {
                Some(next) => {
                    assert!(next.epoch > entry.epoch, "each change is a new epoch");
                    assert!(next.positions.len() >= entry.positions.len(), "positions stay");
                    PgEntry { revision, ..next }
                }
                None => entry.clone(),
            };
            both.map(newest).collect()
        })
    }

    fn given<'a>(
        &self,
        pool: &PoolRecord,
        entry: &PgEntry,
        targets: &'a [OsdId],
        standings: &'a BTreeMap<OsdId, Standing>,
        links: &'a Links,
    ) -> Given<'a> {
        let asked = self.entries.asked.get(&entry.pg);
        let asked = asked.filter(|asked| asked.epoch == entry.epoch);
        let is_time = asked.and_then(|asked| asked.renew).is_some_and(|renew| renew.at <= self.now);
        Given {
            scheme: pool.pool.scheme,
            min_size: pool.pool.min_size as usize,
            targets,
            standings,
            damaged: self.damaged_in(pool.pool.id),
            complete: asked.map(|asked| asked.complete.clone()).unwrap_or_default(),
            returning: asked.map(|asked| asked.returning.clone()).unwrap_or_default(),
            called_back: self.entries.called_back.get(&entry.pg).cloned().unwrap_or_default(),
            barred: self.failed_in(self.now, entry.pg).map(|(osd, b)| (osd, b.since)).collect(),
            links,
            renew: is_time && !self.is_in_doubt(entry),
        }
    }

    /// Returns the OSDs in whose records of a pool damage was met.
    fn damaged_in(&self, pool: PoolId) -> BTreeSet<OsdId> {
        let damaged = self.osds.iter().filter(|(_, live)| live.damaged_pools.contains(&pool));
        damaged.map(|(osd, _)| *osd).collect()
    }

    /// Whether a member may soon be found to be down. A requested epoch then waits, so that one epoch serves
    /// both purposes.
    fn is_in_doubt(&self, entry: &PgEntry) -> bool {
        let mut members = entry.members();
        members.any(|member| {
            let live = self.osds.get(&member.osd);
            let is_up = self.committed.osd(member.osd).is_some_and(|record| record.info.up);
            is_up && live.is_some_and(|live| live.liveness.is_in_doubt())
        })
    }

    fn standings(&self) -> BTreeMap<OsdId, Standing> {
        let standing = |record: &crate::records::OsdRecord| {
            let osd = record.info.id;
            let live = self.osds.get(&osd);
            let liveness = live.map(|live| &live.liveness);
            let standing = Standing {
                incarnation: record.info.incarnation,
                up: record.info.up,
                suspect: record.suspect,
                heard: liveness.map_or(0, |liveness| liveness.heard),
                noticed: liveness.map_or(0, |liveness| liveness.noticed),
                rests: live.is_some_and(|live| live.starts.rest(self.now).is_some()),
                disk: self.disk_of(osd, live),
            };
            (osd, standing)
        };
        self.committed.osds().map(standing).collect()
    }

    fn disk_of(&self, osd: OsdId, live: Option<&OsdLive>) -> DiskStanding {
        let slow = self.slow_disks.is_slow(osd, live.and_then(|live| live.was_slow));
        let unjudged = slow.is_none();
        let Some(OsdLive { stall, .. }) = live else {
            return DiskStanding { unjudged, ..DiskStanding::default() };
        };
        DiskStanding {
            stalled: stall.stalled,
            since: stall.since.unwrap_or_default(),
            is_new: stall.since.is_some_and(|since| self.now < since + STALL_GATHER),
            oldest: stall.oldest,
            slow: slow == Some(true),
            unjudged,
        }
    }

    /// Drops requests that belong to earlier epochs, after new entries were written.
    pub(super) fn on_entries_written(&mut self) {
        let committed = &self.committed;
        let entries = &mut self.entries;
        let is_over = |pg: &PgId, asked: &mut Asked| {
            committed.pg(*pg).is_none_or(|entry| entry.epoch != asked.epoch)
        };
        for (pg, asked) in entries.asked.extract_if(.., is_over) {
            if let Some(renew) = asked.renew {
                entries.renewals.insert(pg, Renewal { at: self.now, ..renew });
            }
        }
    }
}
