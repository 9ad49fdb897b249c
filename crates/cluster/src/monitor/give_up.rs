//! `pg give-up`: the operator accepts what an incomplete PG lost, and is informed once the PG is served.
//!
//! For data lost to damage, the next entry says so ([`PgEntry::given_up`]). Its primary, if it was to lead the PG
//! before in the same run, accepts its loss, and records that in its store. An operator who gets no answer in
//! time checks the PG's state and, if it is still needed, runs the command again.
//!
//! If fewer than `min_size` members are up, the members that are down can be given up (`they_are_off`): the
//! next entry does not contain them. Only the operator's confirmation prevents two halves of a PG from
//! serving at the same time: each given-up member must stay off until it has the new map. A member that has
//! returned in a new run that may have lost data is given up with them, if another member is left.
//!
//! If no acting member is left in a pool in which each member holds the whole PG, the PG can continue with an
//! older copy (`older_copy`): that of an OSD that was a member before, is up, and has everything up to some
//! version. Of several the newest is taken: that with the highest epoch in its record, then with the highest
//! version. So everything that was acknowledged while its OSD was a member is there, and nothing that was
//! acknowledged since. The next entry has no other member and names its epoch as `given_up`: all others,
//! also those given up, are compared with it in full when they come back, and never believed. A copy that
//! was being filled is refused: its blocks are of different times. Of parts that are of different times
//! (parity) nothing can be made.
//!
//! The PG may continue with few members for a long time, so none of them may be one that has just died
//! without being noticed: the command waits until each acting member is down, or has answered a probe sent
//! after the command arrived.

use std::cmp::Reverse;
use std::collections::VecDeque;

use base::{ConnectionId, Duration, OsdId, PgId, Position, Time};
use serde_json::json;

use format::wire::{Member, PgEntry};

use super::committed_state::Batch;
use super::job::{Done, Job, Plan};
use super::osd::OsdLive;
use super::refusal::{first_names, names_and_more};
use super::{Effect, Monitor, busy, failure, remedy};
use crate::message::{Failure, OlderCopy, OsdReport};
use crate::records::{PG_SHARD_SIZE, PgShardRecord, PoolRecord, Record};

/// How long the OSD may take to serve the PG before the operator is told that the outcome is unknown.
pub(super) const GIVE_UP_SPAN: Duration = Duration::from_secs(10);
/// Maximum number of waiting operators.
const GIVE_UP_COUNT_MAX: usize = 1_000;
/// Maximum number of volumes that are listed as affected.
const NAMED_COUNT_MAX: usize = 5;

/// An operator who waits for the result.
pub(super) struct GiveUp {
    pub(super) pg: PgId,
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    pub(super) ends: Time,
}

/// A command that gives up members, while it waits until each acting member is known to be up or down.
#[derive(Debug)]
pub(super) struct MembersGiveUp {
    pub(super) connection: ConnectionId,
    pub(super) request: u64,
    pub(super) pg: PgId,
    pub(super) accepted: bool,
    /// Whether the PG may continue with an older copy.
    pub(super) older_copy: bool,
    /// The time at which the command arrived: earlier reports of older copies do not count.
    pub(super) arrived: Time,
    /// The event in which the command arrived: answers to earlier probes do not count.
    pub(super) since: u64,
}

/// Waiting commands that give up members, each with the time at which it is refused; the oldest first.
#[derive(Default)]
pub(super) struct MembersGiveUps(VecDeque<(Time, MembersGiveUp)>);

impl MembersGiveUps {
    /// Returns the time at which the first waiting command is refused.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.0.front().map(|(ends, _)| *ends)
    }

    /// Drops the commands of a closed connection.
    pub(super) fn forget(&mut self, gone: ConnectionId) {
        self.0.retain(|(_, waits)| waits.connection != gone);
    }
}

impl Monitor {
    /// Begins to give up members of a PG that are off: probes its acting members.
    pub(super) fn ask_before_give_up(
        &mut self,
        now: Time,
        asked: MembersGiveUp,
    ) -> Result<(), Failure> {
        let acting = self.committed.pg(asked.pg).into_iter().flat_map(PgEntry::acting);
        let acting: Vec<OsdId> = acting.map(|member| member.osd).collect();
        if self.members_give_ups.0.len() >= GIVE_UP_COUNT_MAX {
            return Err(busy());
        }
        self.ask_soon(acting);
        self.members_give_ups.0.push_back((now + GIVE_UP_SPAN, asked));
        Ok(())
    }

    /// Queues the commands whose members are all known to be up or down, and those that have waited for
    /// too long.
    pub(super) fn continue_give_ups(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for (ends, waits) in std::mem::take(&mut self.members_give_ups.0) {
            let entry = self.committed.pg(waits.pg);
            let is_unclear = entry.is_some_and(|entry| {
                self.unclear(entry, waits.since).is_some()
                    || waits.older_copy && self.unheard_of_copies(entry, waits.arrived).is_some()
            });
            if is_unclear && now < ends {
                self.members_give_ups.0.push_back((ends, waits));
                continue;
            }
            let (connection, request) = (waits.connection, waits.request);
            if let Err(error) = self.try_push_asked(Job::GiveUpMembers(waits)) {
                self.connections.answer(connection, request, Err(error), effects);
            }
        }
    }

    /// Returns an acting member that is neither known to be up nor known to be down: it counts as up or is
    /// joining, and has not answered a probe sent in the event `since` or later.
    fn unclear(&self, entry: &PgEntry, since: u64) -> Option<OsdId> {
        let is_unclear = |osd: &OsdId| {
            let is_heard = self
                .osds
                .get(osd)
                .is_some_and(|live| live.connection.is_some() && live.liveness.heard >= since);
            match self.present(*osd) {
                Some(_) => !is_heard,
                None => self.is_present(*osd),
            }
        };
        entry.acting().map(|member| member.osd).find(is_unclear)
    }

    /// Returns an OSD that is up and has not reported since `arrived` what it has of a PG of which no acting
    /// member is left; `None` also if the PG cannot continue with an older copy.
    fn unheard_of_copies(&self, entry: &PgEntry, arrived: Time) -> Option<OsdId> {
        if !self.is_whole_everywhere(entry.pg) || !self.members_left(entry).is_empty() {
            return None;
        }
        let is_heard = |osd: &OsdId| {
            let live = self.osds.get(osd).filter(|live| live.connection.is_some());
            let report = live.and_then(|live| live.report.as_ref());
            report.is_some_and(|(at, report)| {
                *at > arrived && report.knows(entry) && report.older_copies.is_some()
            })
        };
        let up = self.committed.osds().filter(|record| record.info.up);
        up.map(|record| record.info.id).find(|osd| !is_heard(osd))
    }

    /// Returns what OSDs that are up have of a PG of which no acting member is up.
    fn older_copies(&self, pg: PgId) -> impl Iterator<Item = (Member, &OlderCopy)> {
        self.osds.iter().filter_map(move |(osd, live)| {
            let copies = live.current_report()?.older_copies.as_ref()?;
            let copy = copies.iter().find(|copy| copy.pg == pg)?;
            Some((self.present(*osd)?, copy))
        })
    }

    /// Returns the newest older copy with which the PG can continue. Who has the record of a later epoch was
    /// a member for longer; of two members of the same epoch, who has the higher version has all that the
    /// other one has.
    fn newest_older_copy(&self, entry: &PgEntry) -> Option<(Member, &OlderCopy)> {
        let is_other = |osd: OsdId| entry.acting_member(osd).is_none();
        let fit = self.older_copies(entry.pg).filter(|(member, copy)| {
            self.is_whole_everywhere(entry.pg) && copy.unfit.is_none() && is_other(member.osd)
        });
        fit.max_by_key(|(member, copy)| (copy.epoch, copy.complete, Reverse(member.osd)))
    }

    fn is_whole_everywhere(&self, pg: PgId) -> bool {
        self.committed.pool(pg.pool).is_some_and(|it| it.pool.scheme.is_whole_everywhere())
    }

    /// Returns the OSDs that are down, besides the acting members of a PG: they may have older copies.
    fn others_down(&self, entry: &PgEntry) -> Vec<String> {
        let down = self.committed.osds().filter(|record| !record.info.up);
        let others = down.filter(|record| entry.acting_member(record.info.id).is_none());
        others.map(|record| record.info.id.to_string()).collect()
    }

    /// Explains how to make a PG serve again.
    pub(super) fn what_helps(&self, pg: PgId) -> String {
        remedy::what_helps(&self.committed, pg, |entry| self.when_lost(entry))
    }

    /// Explains what to do for a PG whose absent members are lost for good, as the end of a sentence.
    pub(super) fn when_lost(&self, entry: &PgEntry) -> String {
        let pg = entry.pg;
        let scheme = self.committed.pool(pg.pool).expect("a PG has a pool").pool.scheme;
        if self.members_left(entry).len() >= scheme.data_count() as usize {
            return format!(
                "`ashlar pg give-up {pg} --they-are-off` shows what would be lost; add `--yes` to \
                 accept the loss"
            );
        }
        if let Some((member, _)) = self.newest_older_copy(entry) {
            return format!(
                "`ashlar pg give-up {pg} --they-are-off --older-copy` shows what would be lost if \
                 the PG continued with the older copy of {}; add `--yes` to accept the loss",
                member.osd
            );
        }
        self.without_copies(entry)
    }

    /// Explains what to do if no OSD that is up has a copy with which the PG could continue.
    fn without_copies(&self, entry: &PgEntry) -> String {
        let down = self.others_down(entry);
        if down.is_empty() || !self.is_whole_everywhere(entry.pg) {
            return "restore its volumes from a backup into a new pool".to_owned();
        }
        format!(
            "start the other OSDs that are down, which may have an older copy of the PG: {}. If none has, \
             restore its volumes from a backup into a new pool",
            first_names(&down)
        )
    }

    /// Plans `pg give-up` of an incomplete PG: the next entry tells its primary that the operator accepts the
    /// loss. The operator is answered after the primary's report. If not `accepted`, returns an error that
    /// describes what would be lost.
    pub(super) fn plan_give_up(&self, pg: PgId, accepted: bool) -> Result<Plan, Failure> {
        let entry = self.pg_to_give_up(pg)?;
        let osd = entry.primary_osd().filter(|osd| {
            let live = self.osds.get(osd);
            live.is_some_and(|live| live.connection.is_some())
        });
        let Some(osd) = osd else {
            return Err(failure(
                "unavailable",
                format!("no OSD that has PG {pg} is up, so there is nothing to serve it from"),
                "start one of its OSDs, on its disk or on a copy of it. If there is neither, this \
                 version cannot serve the PG again: restore its volumes from a backup into a new \
                 pool",
            ));
        };
        // While members are missing, the primary also reports the PG as incomplete, but has nothing to give
        // up.
        if self.members_left(entry).len() < entry.acting_count() {
            return Err(failure(
                "invalid",
                format!("PG {pg} waits for members that are down or returned with a damaged store"),
                format!(
                    "start them. If their copies are lost: `ashlar pg give-up {pg} --they-are-off`"
                ),
            ));
        }
        let Some(report) = self.report_of(entry) else {
            return Err(failure(
                "busy",
                format!("{osd} has not reported yet since the members of PG {pg} changed"),
                "try again in a few seconds",
            ));
        };
        let why = report.incomplete.iter().find(|(id, _)| *id == pg);
        let Some((_, why)) = why else { return Err(not_incomplete(pg)) };
        if !report.suspect_pgs.contains(&pg) {
            return Err(failure(
                "invalid",
                format!("PG {pg} is incomplete, but not because {osd} lost something: {why}"),
                "there is nothing to give up: see to what it waits for",
            ));
        }
        if !accepted {
            return Err(self.what_would_be_lost(entry, (osd, report), why));
        }
        if self.give_ups.len() >= GIVE_UP_COUNT_MAX {
            return Err(busy());
        }
        let epoch = entry.epoch.next();
        let mut next = PgEntry { epoch, given_up: epoch, ..entry.clone() };
        let pool = self.committed.pool(pg.pool).expect("a PG has a pool");
        if pool.pool.scheme.is_whole_everywhere() {
            // The others may be damaged, too, or have more: they come back as learners.
            let leads = self.present(osd);
            let alone =
                |member: &Option<Member>| leads.filter(|_| member.map(|it| it.osd) == Some(osd));
            next.positions = entry.positions.iter().map(alone).collect();
        }
        let batch = self.batch_of_entry(next);
        Ok(Plan::Write { batch, done: Some(Done::GivenUp(pg)) })
    }

    /// The entry is written that tells the primary what the operator gave up: the operator waits for the
    /// result.
    pub(super) fn await_given_up(
        &mut self,
        now: Time,
        (connection, request): (ConnectionId, u64),
        pg: PgId,
    ) {
        let ends = now + GIVE_UP_SPAN;
        self.give_ups.push(GiveUp { pg, connection, request, ends });
    }

    fn pg_to_give_up(&self, pg: PgId) -> Result<&PgEntry, Failure> {
        self.committed.pg(pg).ok_or_else(|| {
            let hint = "`ashlar pg ls` lists the PGs";
            failure("not_found", format!("there is no PG {pg}"), hint)
        })
    }

    /// Plans `pg give-up --they-are-off`: the PG continues with the acting members that are up, without those
    /// that returned damaged, unless all of them did.
    pub(super) fn plan_give_up_members(&self, asked: &MembersGiveUp) -> Result<Plan, Failure> {
        let pg = asked.pg;
        let entry = self.pg_to_give_up(pg)?;
        if let Some(osd) = self.unclear(entry, asked.since) {
            return Err(failure(
                "busy",
                format!(
                    "it is not known yet whether {osd} is off: it counts as up, but does not answer"
                ),
                "try again in a few seconds: by then it has answered or is marked down. If you \
                 want to give it up, make sure that it is off",
            ));
        }
        let left = self.members_left(entry);
        let is_left = |osd: &OsdId| left.iter().any(|member| member.osd == *osd);
        let acting = entry.acting().map(|member| member.osd);
        let off: Vec<OsdId> = acting.filter(|osd| !is_left(osd)).collect();
        if off.is_empty() {
            return Err(not_incomplete(pg));
        }
        let named: Vec<String> = off.iter().map(OsdId::to_string).collect();
        let named = named.join(", ");
        if left.is_empty() {
            return self.plan_older_copy(entry, asked, &off, &named);
        }
        let scheme = self.committed.pool(pg.pool).expect("a PG has a pool").pool.scheme;
        let needed = scheme.data_count() as usize;
        if left.len() < needed {
            return Err(failure(
                "unavailable",
                format!(
                    "only {} of the OSDs that have PG {pg} are up: with {scheme}, at least \
                     {needed} are needed to read its data",
                    left.len()
                ),
                "start more of them, on their disks or on copies of them. If there are none, restore \
                 the volumes from a backup into a new pool",
            ));
        }
        if !asked.accepted {
            // Every acting member holds every acknowledged write. In pools with parity, one that was filled
            // while too few others were left does so only once the PG was active with it.
            let sound = left.iter().filter(|member| self.is_sound(member)).take(needed);
            let sound: Vec<Member> = sound.copied().collect();
            let lost = match &sound[..] {
                [Member { osd, .. }] if needed == 1 => {
                    format!("No acknowledged write is lost: {osd} has all of them, undamaged")
                }
                some if some.len() == needed => {
                    format!(
                        "No acknowledged write is lost if the PG was active with {}; if not, \
                         `ashlar pg describe {pg}` names the OSDs that have more",
                        list_of(some)
                    )
                }
                _ => format!(
                    "Data that is damaged on the remaining OSDs is lost if only the OSDs given up \
                     have an undamaged copy of it: {}",
                    self.concerned(pg)
                ),
            };
            let message = format!(
                "giving up {named} cannot be undone: PG {pg} continues with the data of {}, and \
                 the data of {named} is discarded when they return. {lost}. The OSDs given up must \
                 be off, and must not serve clients again before they have the new map: writes \
                 that they accept until then would be lost",
                list_of(&left),
            );
            let hint = format!("to accept this: `ashlar pg give-up {pg} --they-are-off --yes`");
            return Err(failure("not_accepted", message, hint));
        }
        let leads = entry.primary_osd();
        let leads = left.iter().find(|member| leads == Some(member.osd)).or(left.first());
        let leads = leads.expect("one is left").osd;
        let newest = |member: &Member| left.iter().find(|newest| newest.osd == member.osd).copied();
        let positions = entry.positions.iter().map(|member| newest(member.as_ref()?)).collect();
        let (epoch, learners) = (entry.epoch.next(), Vec::new());
        let next = PgEntry { epoch, positions, learners, ..entry.clone() }.led_by(leads);
        let answer = json!({ "pg": pg.to_string(), "osd": next.primary_osd(), "given_up": off });
        let batch = self.batch_of_entry(next);
        Ok(Plan::Write { batch, done: Some(Done::Answer(Ok(answer))) })
    }

    /// Plans `pg give-up --they-are-off` of a PG of which no acting member is left.
    fn plan_older_copy(
        &self,
        entry: &PgEntry,
        asked: &MembersGiveUp,
        off: &[OsdId],
        named: &str,
    ) -> Result<Plan, Failure> {
        let pg = entry.pg;
        let nothing_left = format!("no OSD that has everything of PG {pg} is up ({named})");
        let start = "start one of them, on its disk or on a copy of it.";
        let unheard = self.unheard_of_copies(entry, asked.arrived);
        if let Some(osd) = unheard.filter(|_| asked.older_copy) {
            return Err(failure(
                "busy",
                format!("{nothing_left}, and {osd} has not told yet whether it has an older copy"),
                format!(
                    "{start} If they are lost for good, try again in a few seconds: by then {osd} \
                     has told it, or is marked down, or see its log"
                ),
            ));
        }
        let Some((member, copy)) = self.newest_older_copy(entry) else {
            let unfit = self.older_copies(pg).filter_map(|(member, copy)| {
                Some(format!("{} has an older copy, but {}", member.osd, copy.unfit.as_ref()?))
            });
            let unfit: Vec<String> = unfit.collect();
            let why = match unfit.is_empty() {
                true => "without them none of its data is left".to_owned(),
                false => unfit.join("; "),
            };
            let hint = format!("{start} If they are lost for good: {}", self.without_copies(entry));
            return Err(failure("unavailable", format!("{nothing_left}: {why}"), hint));
        };
        let (osd, epoch) = (member.osd, copy.epoch);
        let command = format!("ashlar pg give-up {pg} --they-are-off --older-copy");
        if !asked.older_copy {
            return Err(failure(
                "unavailable",
                format!("{nothing_left}: {osd} has an older copy, of epoch {epoch}"),
                format!("{start} If they are lost for good: `{command}` shows what would be lost"),
            ));
        }
        if !asked.accepted {
            let down = self.others_down(entry);
            let others = match down.is_empty() {
                true => String::new(),
                false => format!(
                    " OSDs that are down may have newer copies, so start them first: {}.",
                    first_names(&down)
                ),
            };
            let message = format!(
                "giving up {named} cannot be undone: PG {pg} continues with the copy of {osd}, which has \
                 everything that was acknowledged while {osd} was a member, up to epoch {epoch}. \
                 Everything that was acknowledged since is lost: {}. The data of {named} is discarded \
                 when they return.{others} The OSDs given up must be off, and must not serve clients \
                 again before they have the new map: writes that they accept until then would be lost",
                self.concerned(pg),
            );
            return Err(failure(
                "not_accepted",
                message,
                format!("to accept this: `{command} --yes`"),
            ));
        }
        let position = entry.learner(osd).map_or(Position::FIRST, |learner| learner.position);
        let mut positions = vec![None; entry.positions.len()];
        positions[position.index()] = Some(member);
        let (next, learners) = (entry.epoch.next(), Vec::new());
        let next = PgEntry { epoch: next, given_up: next, positions, learners, ..entry.clone() };
        let next = next.led_by(osd);
        let answer =
            json!({ "pg": pg.to_string(), "osd": osd, "given_up": off, "older_copy": true });
        let batch = self.batch_of_entry(next);
        Ok(Plan::Write { batch, done: Some(Done::Answer(Ok(answer))) })
    }

    /// Returns the acting members that are up, in their newest runs, without members whose new run is
    /// suspect. If all are suspect, returns all of them.
    fn members_left(&self, entry: &PgEntry) -> Vec<Member> {
        let up = || entry.acting().filter_map(|named| Some((named, self.present(named.osd)?)));
        let is_suspect = |named: &Member, newest: &Member| {
            let record = self.committed.osd(named.osd);
            named.incarnation < newest.incarnation && record.is_some_and(|r| r.suspect)
        };
        let others = up().filter(|(named, newest)| !is_suspect(named, newest));
        let others: Vec<Member> = others.map(|(_, newest)| newest).collect();
        if others.is_empty() {
            return up().map(|(_, newest)| newest).collect();
        }
        others
    }

    /// Whether the member's OSD is connected and reports an undamaged store, and the monitor has no record
    /// that the store is suspect.
    fn is_sound(&self, member: &Member) -> bool {
        let is_suspect = self.committed.osd(member.osd).is_none_or(|record| record.suspect);
        let report = self.osds.get(&member.osd).and_then(OsdLive::current_report);
        let is_damaged = |report: &OsdReport| report.suspect || report.damaged_units > 0;
        !is_suspect && report.is_some_and(|report| !is_damaged(report))
    }

    /// Returns the OSD in its newest run, if it is up.
    fn present(&self, osd: OsdId) -> Option<Member> {
        let record = self.committed.osd(osd).filter(|record| record.info.up)?;
        Some(Member { osd, incarnation: record.info.incarnation })
    }

    /// Returns a batch that writes one entry, with the next revision of its pool's map.
    fn batch_of_entry(&self, entry: PgEntry) -> Batch {
        let committed = &self.committed;
        let pg = entry.pg;
        let pool = committed.pool(pg.pool).expect("a PG has a pool");
        let revision = pool.revision.next();
        let shards = &mut committed.shards(pg.pool);
        let shard = shards.find(|shard| shard.shard == pg.number / PG_SHARD_SIZE);
        let mut shard: PgShardRecord = shard.expect("a PG has a shard").clone();
        shard.pgs[(pg.number % PG_SHARD_SIZE) as usize] = PgEntry { revision, ..entry };
        let pool = PoolRecord { revision, ..pool.clone() };
        let mut batch = Batch::new(committed);
        batch.put(committed, Record::PgShard(shard));
        batch.put(committed, Record::Pool(pool));
        batch
    }

    /// Describes the data that is affected if a PG loses something.
    fn concerned(&self, pg: PgId) -> String {
        let pool = self.committed.pool(pg.pool).expect("a PG has a pool");
        if pool.pool.has_objects() {
            return format!(
                "the affected objects are unknown: this PG holds 1/{} of the objects of pool {}, and any \
                 acknowledged change in it may be lost",
                pool.pool.pg_count, pool.pool.name
            );
        }
        let images = self.committed.images().filter(|image| image.info.pool == pg.pool);
        let names = images.map(|image| image.info.name.as_str());
        format!(
            "the affected blocks are unknown: this PG holds 1/{} of each volume of pool {} \
             ({}), and any acknowledged write in it may read as older data or as zeros",
            pool.pool.pg_count,
            pool.pool.name,
            names_and_more(names, NAMED_COUNT_MAX),
        )
    }

    /// Returns the refusal for an operator who has not accepted the loss yet.
    fn what_would_be_lost(
        &self,
        entry: &PgEntry,
        (osd, report): (OsdId, &OsdReport),
        why: &str,
    ) -> Failure {
        let (pg, damaged) = (entry.pg, report.damaged_units);
        let others: Vec<Member> = entry.acting().filter(|it| it.osd != osd).copied().collect();
        let replaced = match others.is_empty() {
            true => "copies that come back later".to_owned(),
            false => format!("the copies of {} and those that come back later", list_of(&others)),
        };
        let message = format!(
            "giving up PG {pg} cannot be undone. {why}: {}. It continues with what {osd} has, which \
             replaces {replaced}. {osd} has recorded {damaged} damaged 4 KiB units; reads of them will \
             still fail",
            self.concerned(pg),
        );
        let hint = format!("to accept this: `ashlar pg give-up {pg} --yes`");
        failure("not_accepted", message, hint)
    }

    /// Handles a report from the OSD: informs the operators who wait for PGs that it now serves.
    pub(super) fn confirm_give_ups(&mut self, osd: OsdId, effects: &mut Vec<Effect>) {
        if self.give_ups.is_empty() {
            return;
        }
        for waits in std::mem::take(&mut self.give_ups) {
            let entry =
                self.committed.pg(waits.pg).filter(|entry| entry.primary_osd() == Some(osd));
            if !entry.is_some_and(|entry| self.pg_state(entry).serves()) {
                self.give_ups.push(waits);
                continue;
            }
            let value = json!({ "pg": waits.pg.to_string(), "osd": osd });
            self.connections.answer(waits.connection, waits.request, Ok(value), effects);
        }
    }

    /// Informs operators who have waited too long that the outcome is unknown.
    pub(super) fn end_give_ups(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while self.give_ups.first().is_some_and(|waits| waits.ends <= now) {
            let GiveUp { pg, connection, request, .. } = self.give_ups.remove(0);
            let error = failure(
                "unconfirmed",
                format!(
                    "PG {pg} is still not served {:.0} seconds after its primary was asked to give \
                     up the lost data",
                    GIVE_UP_SPAN.as_secs_f64()
                ),
                format!("`ashlar pg describe {pg}` shows its state; if nothing changes, try again"),
            );
            self.connections.answer(connection, request, Err(error), effects);
        }
    }
}

fn not_incomplete(pg: PgId) -> Failure {
    failure("invalid", format!("PG {pg} is not incomplete"), "there is nothing to give up")
}

fn list_of(members: &[Member]) -> String {
    let osds: Vec<String> = members.iter().map(|member| member.osd.to_string()).collect();
    osds.join(", ")
}
