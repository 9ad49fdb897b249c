//! Watches the messages on the network: the entries that monitors publish, and the messages between members.
//! Counts the consequences of faults, and reports messages that must never be sent.
//!
//! Invariants checked
//!   1. A version belongs to one write, in the version's own epoch; every member is sent the same write.
//!   2. An epoch of a PG adopts one version.
//!   3. Members leave the acting set only if the pool's minimum remains, or if the operator gives them up.
//!   4. A member that took part in an epoch reports that it has everything up to the marks of that epoch,
//!      even if its disk has lost data since. Exceptions: the member is suspect, or its journal lost its
//!      tail, which it cannot detect.
//!   5. Tombstones are dropped only in an epoch with all copies of the pool and without learners.
//!   6. An epoch in which learners are filled although acting members are lost is never activated, and
//!      nothing is written in it.
//!   7. After a write of a block was sent to members in an epoch, no older content of the block is sent in
//!      that epoch.
//!   8. An OSD that answers a read has leases from all other acting members.
//!
//! `grants.rs` checks leases.

use std::collections::{BTreeMap, BTreeSet};

use base::{Duration, Epoch, ImageId, OsdId, PgId, PoolId, Scheme, Time, Version};
use cluster::message::{FromMonitor, ToMonitor};
use format::disk::BlockKey;
use format::wire::{
    Change, Content, Filling, LeaseMessage, MemberState, PeerBody, PeerMessage, PgEntry, Request,
};

use super::grants::Grants;
use crate::tally::Counts;

/// Within this time, an OSD's report about its disk has reached the leading monitor, and every earlier
/// entry has been sent.
const STALL_IS_KNOWN: Duration = Duration::from_secs(4);

/// The consequences of faults that a run counts.
pub const CONSEQUENCES: [&str; 29] = [
    "monitor took leadership",
    "monitor came to lead",
    "transaction of a former leader refused",
    "epoch activated",
    "members compared",
    "newest copy fetched from a member",
    "block repaired at a member",
    "block repaired by a scrub",
    "copy refused for lack of space",
    "learner to be filled by versions",
    "learner to be compared by listing",
    "learner with unadopted blocks",
    "learner whose filling goes on",
    "learner interrupted",
    "learner complete",
    "learner to be filled while members are lost",
    "PG that waited for lost members went on with a learner",
    "message of an old epoch",
    "lease granted",
    "lease expired",
    "request met no lease",
    "request of an older session waits",
    "PG lost by a lease's answer",
    "lock granted to a lazy holder",
    "attach refused for a lock",
    "session went on after its time",
    "fenced change without an answer is over",
    "change answered before it was durable",
    "change that no flush covered may be lost",
];

/// Checks the reason for a refusal: a write that was given a version must fit on every acting member,
/// because the version cannot be taken back.
pub fn judge_refusal(text: &str) -> Result<(), String> {
    match text.contains("no room for a write") {
        true => Err("a member had no space for a write that had its version".into()),
        false => Ok(()),
    }
}

/// The state of all checks of this module.
#[derive(Default)]
pub struct Watch {
    /// The newest published entry of each PG.
    entries: BTreeMap<PgId, PgEntry>,
    /// OSDs that report that their disks hang, each with the time of the first such report.
    stalled: BTreeMap<OsdId, Time>,
    /// Until this time, some monitor was frozen: messages to it may have waited.
    monitors_run_from: Time,
    /// When the newest of `entries` was first sent.
    changed_at: Time,
    /// The number of members that PGs of each pool should have, and their minimum.
    pools: BTreeMap<PoolId, (usize, usize)>,
    /// Epochs in which no tombstone may be dropped, each with the floor at its start.
    floors: BTreeMap<(PgId, Epoch), Version>,
    /// All entries and lease grants seen.
    pub(super) grants: Grants,
    /// The last report of each OSD: when it was sent, and the PGs of which the OSD is a serving
    /// primary.
    reports: BTreeMap<usize, (Time, Vec<PgId>)>,
    /// The newest version of each block that was sent to members.
    newest: BTreeMap<(PgId, BlockKey), Version>,
    /// A digest of the write to which each version belongs.
    writes: BTreeMap<(PgId, Version), u32>,
    adopted: BTreeMap<(PgId, Epoch), Version>,
    /// Epochs in which learners are filled although acting members are lost.
    bereft: BTreeSet<(PgId, Epoch)>,
    /// Learners whose backfill was completed in a `bereft` epoch, until the PG is active again.
    filled: BTreeMap<(PgId, usize), Epoch>,
    /// OSDs that were out at any time.
    were_out: BTreeSet<OsdId>,
    /// The highest mark that the primary of each epoch has sent.
    marks: BTreeMap<(PgId, Epoch), Version>,
    /// Learners in backfill. Key: the PG and the learner; value: the epoch in which the backfill began.
    fillings: BTreeMap<(PgId, usize), Epoch>,
    /// OSDs whose journals lost their tails, with the epoch of each PG at that time.
    tails: BTreeMap<(usize, PgId), Epoch>,
    /// PGs whose lost members the operator gave up.
    given_up: BTreeSet<PgId>,
    /// Images for which a learner was sent units marked as damaged.
    damage_given: BTreeSet<ImageId>,
    /// A member has refused data for lack of space.
    pub has_refused_room: bool,
    /// The number of epochs that began with fewer members than the PG had.
    pub withdrawal_count: u64,
    /// A PG that had all its members got a learner: a member is to move.
    pub has_moved: bool,
    /// Lease requests. Key: holder, giver and stamp; value: the time of the request on the holder's
    /// clock.
    renewals: BTreeMap<(usize, usize, u64), Time>,
    /// Leases. Key: holder and giver; value: the end of the lease on the holder's clock.
    leases: BTreeMap<(usize, usize), Time>,
}

impl Watch {
    /// Creates the watch of a cluster with a pool of this scheme.
    pub fn of(scheme: Scheme) -> Watch {
        let mut watch = Watch::default();
        watch.grants.scheme = Some(scheme);
        watch
    }

    /// Returns the newest entry of each PG of the pool of volumes.
    pub fn entries(&self) -> impl Iterator<Item = &PgEntry> {
        self.all_entries().filter(|entry| entry.pg.pool == PoolId::FIRST)
    }

    /// Returns the newest entry of each PG of all pools.
    pub fn all_entries(&self) -> impl Iterator<Item = &PgEntry> {
        self.entries.values()
    }

    /// Returns the number of members that PGs of a pool should have.
    pub fn copies(&self, pool: PoolId) -> usize {
        self.pools.get(&pool).map_or(0, |(copies, _)| *copies)
    }

    /// Returns the minimum size of a pool.
    pub fn min_size(&self, pool: PoolId) -> usize {
        self.pools.get(&pool).map_or(0, |(_, min_size)| *min_size)
    }

    /// Records what an epoch of a PG adopted, as its primary's record says: one that is alone tells nobody.
    pub fn adopts(&mut self, pg: PgId, epoch: Epoch, adopted: Version) -> Result<(), String> {
        match *self.adopted.entry((pg, epoch)).or_insert(adopted) {
            known if known == adopted => Ok(()),
            known => Err(format!("epoch {epoch} of {pg} adopts {adopted} and {known}")),
        }
    }

    /// Returns whether a version of a PG of the object pool was adopted by the epochs that followed its own.
    pub fn is_kept(&self, number: u32, version: Version) -> bool {
        let later = |(pg, epoch): &(PgId, Epoch)| {
            let is_of_pg = pg.pool != PoolId::FIRST && pg.number == number;
            // What learners are filled with while members are lost adopts nothing.
            is_of_pg && *epoch > version.epoch && !self.bereft.contains(&(*pg, *epoch))
        };
        let mut adopted = self.adopted.iter().filter(|(at, _)| later(at));
        adopted.next().is_none_or(|(_, adopted)| version <= *adopted)
    }

    /// Returns whether a learner was sent units of an image marked as damaged, because no acting member
    /// could read them.
    pub fn is_damage_given(&self, image: ImageId) -> bool {
        self.damage_given.contains(&image)
    }

    /// Records that the operator gives up lost members of a PG: the PG may continue with fewer members
    /// than the minimum.
    pub fn members_given_up(&mut self, pg: PgId) {
        self.given_up.insert(pg);
    }

    /// Records an OSD's report about its disk. `since`: when the OSD first reported that the disk
    /// hangs; `None`: the disk does not hang.
    pub fn says_it_is_stalled(&mut self, osd: OsdId, since: Option<Time>) {
        match since {
            Some(since) => self.stalled.insert(osd, since),
            None => self.stalled.remove(&osd),
        };
    }

    /// Records that a monitor is frozen until the given time.
    pub fn monitor_stands_still(&mut self, until: Time) {
        self.monitors_run_from = self.monitors_run_from.max(until);
    }

    /// Checks a message from a monitor. Returns whether the message ends an epoch.
    pub fn monitor_says(&mut self, text: &str, now: Time) -> Result<bool, String> {
        if !text.contains("\"map\"") {
            return Ok(false);
        }
        let Ok(FromMonitor::Map(delta)) = serde_json::from_str(text) else { return Ok(false) };
        let out = delta.osds.iter().filter(|osd| !osd.in_cluster);
        self.were_out.extend(out.map(|osd| osd.id));
        let mut ends_epoch = false;
        for pool in &delta.removed_pools {
            self.entries.retain(|pg, _| pg.pool != *pool);
        }
        for pool in delta.pools {
            let min_size = pool.pool.min_size as usize;
            let copies = pool.pool.scheme.position_count() as usize;
            self.pools.insert(pool.pool.id, (copies, min_size));
            for entry in pool.pgs {
                let known = self.entries.get(&entry.pg);
                let epoch = known.map_or(Epoch::ZERO, |known| known.epoch);
                if entry.epoch < epoch {
                    continue;
                }
                // Of what its store lost the primary goes on alone.
                let is_alone = entry.given_up == entry.epoch && entry.acting_count() == 1;
                let is_given_up =
                    is_alone || self.given_up.contains(&entry.pg) && entry.acting_count() > 0;
                if let Some(known) = known.filter(|known| known.epoch < entry.epoch) {
                    let hangs = |osd: &OsdId| {
                        let since = self.stalled.get(osd);
                        let heard = since.map(|since| self.monitors_run_from.max(*since));
                        heard.is_some_and(|heard| now.since(heard) > STALL_IS_KNOWN)
                    };
                    let is_in = |entry: &PgEntry, osd| entry.acting().any(|m| m.osd == osd);
                    let left = known.acting().any(|member| !is_in(&entry, member.osd));
                    let answering = entry.acting().filter(|member| !hangs(&member.osd)).count();
                    if left && answering < min_size && !is_given_up {
                        return Err(format!(
                            "{answering} members whose disks answer stay: {known:?} {entry:?}"
                        ));
                    }
                }
                let before = known.map_or(0, |known| known.acting_count());
                if entry.acting_count() < before.min(min_size) && !is_given_up {
                    return Err(format!(
                        "fewer than {min_size} of {before} members stay: {entry:?}"
                    ));
                }
                if entry.epoch > epoch {
                    self.grants.entry_told(&entry);
                    ends_epoch = true;
                    self.withdrawal_count += u64::from(entry.acting_count() < before);
                    let is_full = entry.acting_count() >= self.copies(entry.pg.pool);
                    self.has_moved |= is_full && !entry.learners.is_empty();
                    self.changed_at = now;
                }
                self.entries.insert(entry.pg, entry);
            }
        }
        Ok(ends_epoch)
    }

    /// Records a message from an OSD to a monitor.
    pub fn osd_reports(&mut self, index: usize, text: &str, now: Time) {
        if text.contains("\"osd_report\"")
            && let Ok(ToMonitor::OsdReport(report)) = serde_json::from_str(text)
        {
            self.reports.insert(index, (now, report.active));
        }
    }

    /// Returns a description of a PG whose primary has not reported since the last change of entries
    /// that it serves the PG. `index_of` returns the process index of an OSD.
    pub fn what_is_not_served(&self, index_of: impl Fn(OsdId) -> Option<usize>) -> Option<String> {
        let is_served = |entry: &PgEntry| {
            let report =
                entry.primary_osd().and_then(&index_of).and_then(|it| self.reports.get(&it));
            report.is_some_and(|(at, pgs)| *at > self.changed_at && pgs.contains(&entry.pg))
        };
        let entry = self.all_entries().find(|entry| !is_served(entry))?;
        Some(format!("its primary does not report to serve {entry:?}"))
    }

    /// Checks a message about a PG from one OSD to another.
    pub fn peer_says(
        &mut self,
        to: usize,
        message: &PeerMessage,
        consequences: &mut Counts,
    ) -> Result<(), String> {
        let PeerMessage { pg, epoch, body } = message;
        match body {
            PeerBody::Write { version, mark, key, change, .. } => {
                self.judge_write(*pg, *epoch, *version, key, change)?;
                if self.bereft.contains(&(*pg, *epoch)) {
                    return Err(format!("{version} of {pg} is written while members are lost"));
                }
                let newest = self.newest.entry((*pg, *key)).or_default();
                *newest = (*newest).max(*version);
                if mark.epoch == *epoch {
                    let known = self.marks.entry((*pg, *epoch)).or_default();
                    *known = (*known).max(*mark);
                }
            }
            PeerBody::Part { version, mark, .. }
            | PeerBody::Parity { version, mark, .. }
            | PeerBody::Skip { version, mark, .. } => {
                if version.epoch != *epoch {
                    return Err(format!("epoch {epoch} of {pg} writes version {version}"));
                }
                if self.bereft.contains(&(*pg, *epoch)) {
                    return Err(format!("{version} of {pg} is written while members are lost"));
                }
                if mark.epoch == *epoch {
                    let known = self.marks.entry((*pg, *epoch)).or_default();
                    *known = (*known).max(*mark);
                }
            }
            PeerBody::Activate { adopted, floor, filling, .. } => {
                if self.is_short(*pg, *epoch) {
                    self.floors.insert((*pg, *epoch), *floor);
                }
                let known = self.adopted.get(&(*pg, *epoch));
                // If there are other acting members, they are the first to receive this message.
                let entry = self.grants.entry(*pg, *epoch);
                let has_others = entry.is_some_and(|entry| entry.acting_count() > 1);
                let is_bereft = self.bereft.contains(&(*pg, *epoch));
                if known.is_none() && filling.is_some() && has_others {
                    self.bereft.insert((*pg, *epoch));
                    consequences.add("learner to be filled while members are lost", 1);
                } else if is_bereft && filling.is_none() {
                    return Err(format!(
                        "epoch {epoch} of {pg} is activated, though learners were filled in it \
                         while members were lost"
                    ));
                } else if known.is_none() {
                    consequences.add("epoch activated", 1);
                    let went_on = u64::from(self.goes_on_with_learner(*pg, *epoch));
                    consequences
                        .add("PG that waited for lost members went on with a learner", went_on);
                    self.filled.retain(|(filled, _), _| filled != pg);
                }
                if known.is_some_and(|known| known != adopted) {
                    return Err(format!("epoch {epoch} of {pg} adopts {adopted} and {known:?}"));
                }
                self.adopted.insert((*pg, *epoch), *adopted);
                match filling {
                    Some(filling) => self.filling_begins(*pg, *epoch, to, filling, consequences),
                    None => drop(self.fillings.remove(&(*pg, to))),
                }
            }
            PeerBody::Progress { filling: None, .. } => {
                if self.fillings.remove(&(*pg, to)).is_some() {
                    consequences.add("learner complete", 1);
                }
                if self.bereft.contains(&(*pg, *epoch)) {
                    self.filled.insert((*pg, to), *epoch);
                }
            }
            PeerBody::List { .. } => consequences.add("members compared", 1),
            PeerBody::Fetch { .. } => consequences.add("newest copy fetched from a member", 1),
            PeerBody::Repair { key, content, .. } => {
                consequences.add("block repaired at a member", 1);
                self.judge_repair(*pg, *epoch, key, content)?;
                if let Content::Block { damaged, .. } = content
                    && damaged.iter().any(|word| *word != 0)
                    && self.fillings.contains_key(&(*pg, to))
                {
                    self.damage_given.insert(key.image);
                }
            }
            PeerBody::Mend { key, content, .. } => {
                consequences.add("block repaired by a scrub", 1);
                self.judge_repair(*pg, *epoch, key, content)?;
            }
            PeerBody::Stale(_) => consequences.add("message of an old epoch", 1),
            PeerBody::Failed { why } => {
                judge_refusal(why)?;
                if why.contains("no room for a copy") {
                    self.has_refused_room = true;
                    consequences.add("copy refused for lack of space", 1);
                }
            }
            PeerBody::Query { .. }
            | PeerBody::Draining
            | PeerBody::State(_)
            | PeerBody::Listed { .. }
            | PeerBody::Fetched { .. }
            | PeerBody::Repaired { .. }
            | PeerBody::Activated
            | PeerBody::Written { .. }
            | PeerBody::Mark { .. }
            | PeerBody::Drop { .. }
            | PeerBody::Sync { .. }
            | PeerBody::Synced { .. }
            | PeerBody::Progress { .. }
            | PeerBody::Noted { .. }
            | PeerBody::Scrub { .. }
            | PeerBody::Scrubbed { .. }
            | PeerBody::Recall { .. }
            | PeerBody::Recalled { .. }
            | PeerBody::Keep { .. }
            | PeerBody::Tried { .. }
            | PeerBody::Delta { .. }
            | PeerBody::ParityDelta { .. }
            | PeerBody::DeltaWanted { .. }
            | PeerBody::PartBehind { .. }
            | PeerBody::ParityLost { .. }
            | PeerBody::Forward { .. }
            | PeerBody::Batch { .. }
            | PeerBody::Page { .. }
            | PeerBody::ListHeads { .. }
            | PeerBody::Headed { .. }
            | PeerBody::ObjectForward { .. }
            | PeerBody::Gather { .. }
            | PeerBody::Gathered { .. } => {}
        }
        Ok(())
    }

    /// Returns whether a member of an entry was backfilled while other members were lost, since the PG was
    /// last active.
    pub fn was_filled_short(&self, entry: &PgEntry, index: usize) -> bool {
        self.filled.contains_key(&(entry.pg, index))
    }

    /// Returns the OSD that backfilled a member of an entry while other members were lost. Returns it
    /// only if the PG has not been active since, and all of the lost members were marked out: the data
    /// that only they held was given up.
    pub fn filled_by(&self, entry: &PgEntry, index: usize) -> Option<OsdId> {
        let epoch = self.filled.get(&(entry.pg, index))?;
        let before = self.grants.entry(entry.pg, *epoch)?;
        let osds = before.acting().map(|member| member.osd);
        let mut left = osds.filter(|osd| entry.acting().all(|member| member.osd != *osd));
        before.primary_osd().filter(|_| left.all(|osd| self.were_out.contains(&osd)))
    }

    /// Returns whether a learner joined the acting set while members were lost, since the PG was last
    /// active.
    fn goes_on_with_learner(&self, pg: PgId, epoch: Epoch) -> bool {
        let last = self.bereft.range((pg, Epoch::ZERO)..(pg, epoch)).next_back();
        let Some((_, last)) = last else { return false };
        let was_active = self.adopted.range((pg, last.next())..(pg, epoch)).next().is_some();
        let acting = |epoch: Epoch| {
            let entry = self.grants.entry(pg, epoch);
            entry.map_or_else(BTreeSet::new, |entry| {
                entry.acting().map(|member| member.osd).collect()
            })
        };
        !was_active && !acting(epoch).is_subset(&acting(*last))
    }

    /// Returns whether an epoch, if it is the PG's newest, has missing members or learners.
    fn is_short(&self, pg: PgId, epoch: Epoch) -> bool {
        let entry = self.entries.get(&pg).filter(|entry| entry.epoch == epoch);
        let copies = self.copies(pg.pool);
        entry.is_some_and(|entry| entry.acting_count() < copies || !entry.learners.is_empty())
    }

    /// Checks the floor that an OSD reports. If the OSD was an acting member in the epoch of its
    /// record, and no tombstone could be dropped in that epoch, its floor must not have risen.
    pub fn judge_floor(&self, osd: OsdId, pg: PgId, state: &MemberState) -> Result<(), String> {
        let epoch = state.record_epoch;
        let Some(floor) = self.floors.get(&(pg, epoch)) else { return Ok(()) };
        let entry = self.grants.entry(pg, epoch);
        if entry.is_none_or(|entry| entry.acting().all(|member| member.osd != osd)) {
            return Ok(());
        }
        // The floor of a later epoch may be durable even if the record of that epoch is not.
        let is_last = self.adopted.range((pg, epoch)..).nth(1).is_none_or(|((it, _), _)| *it != pg);
        if is_last && state.floor > *floor {
            return Err(format!(
                "in epoch {epoch} of {pg} members lack or are filled, but tombstones go up to {}, \
                 not {floor}",
                state.floor
            ));
        }
        Ok(())
    }

    fn judge_write(
        &mut self,
        pg: PgId,
        epoch: Epoch,
        version: Version,
        key: &BlockKey,
        change: &Change,
    ) -> Result<(), String> {
        if version.epoch != epoch {
            return Err(format!("epoch {epoch} of {pg} writes version {version}"));
        }
        let what = match change {
            Change::Write { offset, checksums, .. } => format!("{key:?} {offset} {checksums:?}"),
            Change::Zero { offset, length } => format!("{key:?} {offset} zero {length}"),
            Change::Delete => format!("{key:?} delete"),
        };
        let digest = base::crc32c(what.as_bytes()).get();
        match self.writes.insert((pg, version), digest) {
            Some(known) if known != digest => {
                Err(format!("version {version} of {pg} is given twice: also to {what}"))
            }
            _ => Ok(()),
        }
    }

    fn judge_repair(
        &self,
        pg: PgId,
        epoch: Epoch,
        key: &BlockKey,
        content: &Content,
    ) -> Result<(), String> {
        let newest = self.newest.get(&(pg, *key)).filter(|newest| newest.epoch == epoch);
        let version = match content {
            Content::Block { version, .. } | Content::Tombstone { version } => *version,
            Content::Gone => return Ok(()),
        };
        match newest.filter(|newest| version < **newest) {
            Some(newest) => Err(format!(
                "in epoch {epoch} of {pg} a member gets {key:?} of version {version}, though {newest} \
                 was sent before"
            )),
            None => Ok(()),
        }
    }

    /// Records that the journal of an OSD lost its tail: for epochs up to the current one, the OSD may
    /// report less than it had.
    pub fn tail_lost(&mut self, index: usize) {
        let epochs = self.entries.values().map(|entry| ((index, entry.pg), entry.epoch));
        self.tails.extend(epochs);
    }

    /// Checks that an OSD reports everything up to the marks of the epoch of its record. A member that
    /// was a learner in that epoch may have some of this without reporting it (docs/internals/pg.md,
    /// rule 20).
    pub fn judge_state(
        &self,
        from: usize,
        osd: OsdId,
        pg: PgId,
        state: &MemberState,
    ) -> Result<(), String> {
        let entry = self.grants.entry(pg, state.record_epoch);
        if entry.is_some_and(|entry| entry.learner(osd).is_some()) {
            return Ok(());
        }
        if self.tails.get(&(from, pg)).is_some_and(|lost| state.record_epoch <= *lost) {
            return Ok(());
        }
        let mark = self.marks.get(&(pg, state.record_epoch)).copied().unwrap_or_default();
        if state.filling.is_some() || state.is_suspect || state.had >= mark {
            return Ok(());
        }
        let MemberState { record_epoch, had, .. } = state;
        Err(format!("a member of epoch {record_epoch} of {pg} had {had}, the mark was {mark}"))
    }

    fn filling_begins(
        &mut self,
        pg: PgId,
        epoch: Epoch,
        to: usize,
        filling: &Filling,
        consequences: &mut Counts,
    ) {
        let how = if filling.listing {
            "learner to be compared by listing"
        } else {
            "learner to be filled by versions"
        };
        consequences.add(how, 1);
        consequences.add("learner with unadopted blocks", u64::from(!filling.whole.is_empty()));
        consequences.add("learner whose filling goes on", u64::from(filling.cursor.is_some()));
        let before = self.fillings.insert((pg, to), epoch);
        let interrupted = before.is_some_and(|before| before < epoch);
        consequences.add("learner interrupted", u64::from(interrupted));
    }

    /// Records that an OSD requests a lease from another OSD; `now` is the holder's clock.
    pub fn lease_asked(&mut self, holder: usize, giver: usize, message: &LeaseMessage, now: Time) {
        if let LeaseMessage::Renew { stamp, .. } = message {
            self.renewals.insert((holder, giver, *stamp), now);
        }
    }

    /// Records that the reply to a lease request reaches the holder; `now` is the holder's clock.
    pub fn lease_answered(
        &mut self,
        holder: usize,
        giver: usize,
        message: &LeaseMessage,
        now: Time,
        consequences: &mut Counts,
    ) {
        let LeaseMessage::Granted { stamp, valid_ms, lost, .. } = message else { return };
        let Some(asked) = self.renewals.remove(&(holder, giver, *stamp)) else { return };
        consequences.add("lease granted", 1);
        consequences.add("PG lost by a lease's answer", lost.len() as u64);
        let until = asked + Duration::from_millis(u64::from(*valid_ms));
        let before = self.leases.insert((holder, giver), until);
        consequences.add("lease expired", u64::from(before.is_some_and(|before| before < now)));
    }

    /// Checks that an OSD that answers a read in an epoch has leases from all other acting members;
    /// `now` is its clock. `index_of` returns the process index of an OSD.
    pub fn judge_read(
        &self,
        holder: usize,
        pg: PgId,
        epoch: Epoch,
        now: Time,
        index_of: impl Fn(OsdId) -> Option<usize>,
    ) -> Result<(), String> {
        let Some(entry) = self.grants.entry(pg, epoch) else { return Ok(()) };
        for giver in entry.acting().filter_map(|member| index_of(member.osd)) {
            let until = self.leases.get(&(holder, giver)).copied().unwrap_or_default();
            // The OSD checked its leases earlier in this turn of its event loop, so the reply may be
            // slightly late.
            if giver != holder && until + Duration::from_millis(1) < now {
                return Err(format!(
                    "osd {holder} answers a read of {pg} in epoch {epoch} without a lease of osd \
                     {giver}: that ran out at {until:?}, and it is {now:?} there"
                ));
            }
        }
        Ok(())
    }

    /// Returns whether the OSD that receives a client's request has leases from all other acting
    /// members. Also returns true if the OSD is not the primary. `now` is the OSD's clock; `index_of`
    /// returns the process index of an OSD.
    pub fn request_arrives(
        &self,
        holder: usize,
        request: &Request,
        now: Time,
        index_of: impl Fn(OsdId) -> Option<usize>,
    ) -> bool {
        let Some(entry) = self.entries.get(&request.pg) else { return true };
        if entry.primary_osd().and_then(&index_of) != Some(holder) {
            return true;
        }
        let has_lease = |giver: usize| {
            giver == holder || self.leases.get(&(holder, giver)).is_some_and(|until| *until >= now)
        };
        entry.acting().filter_map(|member| index_of(member.osd)).all(has_lease)
    }
}

#[cfg(test)]
mod tests {
    use base::{BlockSize, Incarnation, MapRevision, Scheme, StripeIndex};
    use cluster::map::{FailureDomain, MapDelta, Pool, PoolDelta, PoolKind};
    use format::wire::Member;

    use super::*;

    fn pg() -> PgId {
        PgId { pool: PoolId::FIRST, number: 3 }
    }

    #[test]
    fn a_member_that_lacks_what_the_mark_promised_is_found() {
        let mut consequences = Counts::new(&CONSEQUENCES);
        let mut watch = Watch::default();
        let version = |counter| Version { epoch: Epoch::new(2), counter };
        let mut told = write(2, (2, 9), 0);
        if let PeerBody::Write { mark, .. } = &mut told.body {
            *mark = version(7);
        }
        assert_eq!(watch.peer_says(1, &told, &mut consequences), Ok(()));
        let states = |watch: &Watch, from, record_epoch, counter, is_suspect| {
            let state = MemberState {
                record_epoch: Epoch::new(record_epoch),
                complete: version(counter),
                had: version(counter),
                committed: version(counter),
                held: version(9),
                floor: Version::ZERO,
                is_suspect,
                history: Vec::new(),
                filling: None,
                elsewhere: None,
                acting: Vec::new(),
            };
            let osd = OsdId::new(from as u32 + 1).expect("not 0");
            watch.judge_state(from, osd, pg(), &state)
        };
        assert_eq!(states(&watch, 0, 2, 7, false), Ok(()));
        assert!(states(&watch, 0, 2, 6, false).is_err());
        assert_eq!(states(&watch, 0, 2, 6, true), Ok(()));
        assert_eq!(states(&watch, 0, 3, 6, false), Ok(()));
        // Only an OSD whose journal lost its tail may report less, and only for epochs up to then.
        watch.monitor_says(&map(2, 3), Time::ZERO).expect("an entry");
        watch.tail_lost(0);
        assert_eq!(states(&watch, 0, 2, 6, false), Ok(()));
        assert!(states(&watch, 1, 2, 6, false).is_err());
        let mut told = write(3, (3, 10), 0);
        if let PeerBody::Write { mark, .. } = &mut told.body {
            *mark = Version { epoch: Epoch::new(3), counter: 9 };
        }
        assert_eq!(watch.peer_says(1, &told, &mut consequences), Ok(()));
        assert!(states(&watch, 0, 3, 6, false).is_err());
        // A member that was a learner in that epoch need not report everything up to the mark.
        let learner = r#",null],"learners":[{"member":{"osd":3,"incarnation":1},"position":2}]"#;
        let filled = map(4, 2).replace(r#"],"learners":[]"#, learner);
        assert_eq!(watch.monitor_says(&filled, Time::ZERO), Ok(true));
        let mut told = write(4, (4, 11), 0);
        if let PeerBody::Write { mark, .. } = &mut told.body {
            *mark = Version { epoch: Epoch::new(4), counter: 10 };
        }
        assert_eq!(watch.peer_says(1, &told, &mut consequences), Ok(()));
        assert!(states(&watch, 1, 4, 9, false).is_err());
        assert_eq!(states(&watch, 2, 4, 9, false), Ok(()));
    }

    fn write(epoch: u32, version: (u32, u64), offset: u32) -> PeerMessage {
        let hash = 7;
        let (pool, image) = (PoolId::FIRST, ImageId::FIRST);
        let key = BlockKey { pool, hash, image, stripe: StripeIndex::new(0) };
        let version = Version { epoch: Epoch::new(version.0), counter: version.1 };
        let body = PeerBody::Write {
            version,
            mark: Version::ZERO,
            key,
            block_size: BlockSize::DEFAULT,
            lazy: false,
            change: Change::Zero { offset, length: 4096 },
        };
        PeerMessage { pg: pg(), epoch: Epoch::new(epoch), body }
    }

    #[test]
    fn a_version_that_names_two_writes_is_found() {
        let mut consequences = Counts::new(&CONSEQUENCES);
        let mut watch = Watch::default();
        let mut say = |message: &PeerMessage| watch.peer_says(1, message, &mut consequences);
        assert_eq!(say(&write(2, (2, 9), 0)), Ok(()));
        assert_eq!(say(&write(2, (2, 9), 0)), Ok(()));
        assert_eq!(say(&write(2, (2, 10), 4096)), Ok(()));
        assert!(say(&write(2, (2, 9), 4096)).is_err());
        assert!(say(&write(3, (2, 11), 0)).is_err());
    }

    #[test]
    fn a_copy_that_is_older_than_a_write_sent_before_it_is_found() {
        let mut consequences = Counts::new(&CONSEQUENCES);
        let mut watch = Watch::default();
        let written = write(2, (2, 9), 0);
        let PeerBody::Write { key, .. } = written.body else { unreachable!("it is a write") };
        assert_eq!(watch.peer_says(1, &written, &mut consequences), Ok(()));
        let mut repair = |epoch: u32, counter: u64| {
            let version = Version { epoch: Epoch::new(epoch.min(2)), counter };
            let body = PeerBody::Repair { call: 0, key, content: Content::Tombstone { version } };
            let message = PeerMessage { pg: pg(), epoch: Epoch::new(epoch), body };
            watch.peer_says(1, &message, &mut consequences)
        };
        assert_eq!(repair(2, 9), Ok(()));
        assert!(repair(2, 8).is_err());
        assert_eq!(repair(3, 8), Ok(()), "the write may not have been adopted");
    }

    #[test]
    fn an_epoch_that_adopts_two_versions_is_found() {
        let mut consequences = Counts::new(&CONSEQUENCES);
        let mut watch = Watch::default();
        let mut activate = |epoch: u32, counter: u64| {
            let adopted = Version { epoch: Epoch::new(1), counter };
            let body = PeerBody::Activate {
                adopted,
                floor: Version::ZERO,
                history: Vec::new(),
                filling: None,
            };
            let message = PeerMessage { pg: pg(), epoch: Epoch::new(epoch), body };
            watch.peer_says(1, &message, &mut consequences)
        };
        assert_eq!(activate(2, 5), Ok(()));
        assert_eq!(activate(2, 5), Ok(()));
        assert_eq!(activate(3, 6), Ok(()));
        assert!(activate(2, 6).is_err());
        assert_eq!(consequences.get("epoch activated"), 2);
    }

    fn map(epoch: u32, member_count: u64) -> String {
        let pool = Pool {
            id: PoolId::FIRST,
            name: "default".into(),
            scheme: Scheme::Copies { count: 3 },
            min_size: 2,
            pg_count: 8,
            failure_domain: FailureDomain::Osd,
            block_size: BlockSize::DEFAULT,
            kind: PoolKind::Block,
        };
        let member = |number| Member {
            osd: OsdId::new(number).expect("not 0"),
            incarnation: Incarnation::new(1),
        };
        let (number, revision) = (Epoch::new(epoch), MapRevision::new(u64::from(epoch)));
        let acting = (1..).map(member).take(member_count as usize);
        let entry = PgEntry { epoch: number, revision, ..PgEntry::new(pg(), acting) };
        let delta = PoolDelta {
            since: MapRevision::ZERO,
            revision: entry.revision,
            pool,
            pgs: vec![entry],
            fences: Vec::new(),
            fence_ranges: Vec::new(),
        };
        let map = FromMonitor::Map(MapDelta { pools: vec![delta], ..MapDelta::default() });
        serde_json::to_string(&map).expect("a map has a text")
    }

    #[test]
    fn members_that_leave_though_the_minimum_does_not_stay_are_found() {
        let mut watch = Watch::default();
        assert_eq!(watch.monitor_says(&map(1, 3), Time::ZERO), Ok(true));
        assert_eq!(watch.monitor_says(&map(2, 2), Time::ZERO), Ok(true));
        assert_eq!(watch.monitor_says(&map(2, 2), Time::ZERO), Ok(false));
        assert!(watch.monitor_says(&map(3, 1), Time::ZERO).is_err());
        // A pool may start with fewer members than the minimum.
        let mut watch = Watch::default();
        assert_eq!(watch.monitor_says(&map(1, 1), Time::ZERO), Ok(true));
        assert_eq!(watch.monitor_says(&map(2, 1), Time::ZERO), Ok(true));
        // The operator may give up members that will never return.
        let mut watch = Watch::default();
        assert_eq!(watch.monitor_says(&map(1, 3), Time::ZERO), Ok(true));
        watch.members_given_up(pg());
        assert_eq!(watch.monitor_says(&map(2, 1), Time::ZERO), Ok(true));
        assert!(watch.monitor_says(&map(3, 0), Time::ZERO).is_err());
    }

    #[test]
    fn tombstones_that_go_while_members_lack_are_found() {
        let mut consequences = Counts::new(&CONSEQUENCES);
        let mut watch = Watch::default();
        let version = |counter| Version { epoch: Epoch::new(1), counter };
        // The first epoch has two of three copies, the second has all three.
        for (epoch, member_count) in [(2, 2), (3, 3)] {
            assert_eq!(watch.monitor_says(&map(epoch, member_count), Time::ZERO), Ok(true));
            let (history, filling) = (Vec::new(), None);
            let (adopted, floor) = (version(u64::from(epoch)), version(5));
            let body = PeerBody::Activate { adopted, floor, history, filling };
            let message = PeerMessage { pg: pg(), epoch: Epoch::new(epoch), body };
            assert_eq!(watch.peer_says(1, &message, &mut consequences), Ok(()));
            if epoch == 2 {
                let osd = |number| OsdId::new(number).expect("not 0");
                let state = |floor| MemberState {
                    record_epoch: Epoch::new(2),
                    complete: version(9),
                    had: version(9),
                    committed: version(9),
                    held: version(9),
                    floor: version(floor),
                    is_suspect: false,
                    history: Vec::new(),
                    filling: None,
                    elsewhere: None,
                    acting: Vec::new(),
                };
                assert_eq!(watch.judge_floor(osd(1), pg(), &state(5)), Ok(()));
                assert!(watch.judge_floor(osd(1), pg(), &state(6)).is_err());
                assert_eq!(watch.judge_floor(osd(3), pg(), &state(6)), Ok(()), "it lacked");
            }
        }
        assert!(watch.floors.contains_key(&(pg(), Epoch::new(2))));
        assert!(!watch.floors.contains_key(&(pg(), Epoch::new(3))));
    }

    #[test]
    fn an_epoch_that_goes_on_though_learners_were_filled_without_its_members_is_found() {
        let mut consequences = Counts::new(&CONSEQUENCES);
        let mut watch = Watch::default();
        let activate = |is_learner: bool| {
            let zero = Version::ZERO;
            let (since, whole) = (zero, Vec::new());
            let filling = Filling { complete: zero, cursor: None, since, whole, listing: false };
            let (floor, history, filling) = (zero, Vec::new(), is_learner.then_some(filling));
            PeerBody::Activate { adopted: zero, floor, history, filling }
        };
        let mut says = |watch: &mut Watch, epoch: u32, body: PeerBody| {
            let message = PeerMessage { pg: pg(), epoch: Epoch::new(epoch), body };
            watch.peer_says(1, &message, &mut consequences)
        };
        watch.monitor_says(&map(2, 3), Time::ZERO).expect("an entry");
        assert_eq!(says(&mut watch, 2, activate(true)), Ok(()));
        assert!(says(&mut watch, 2, activate(false)).is_err());
        assert!(says(&mut watch, 2, write(2, (2, 9), 0).body).is_err());
        watch.monitor_says(&map(3, 3), Time::ZERO).expect("an entry");
        for is_learner in [false, true] {
            assert_eq!(says(&mut watch, 3, activate(is_learner)), Ok(()));
        }
        assert_eq!(says(&mut watch, 3, write(3, (3, 9), 0).body), Ok(()));
        assert_eq!(consequences.get("learner to be filled while members are lost"), 1);
    }

    #[test]
    fn a_pg_is_served_when_its_primary_reports_so_after_the_last_change() {
        let mut watch = Watch::default();
        let at = |milliseconds| Time::ZERO + Duration::from_millis(milliseconds);
        let report = |active: Vec<PgId>| {
            let report = cluster::message::OsdReport { active, ..Default::default() };
            serde_json::to_string(&ToMonitor::OsdReport(report)).expect("plain data")
        };
        let index_of = |osd: OsdId| Some(osd.get() as usize);
        watch.monitor_says(&map(1, 3), at(10)).expect("an entry");
        watch.osd_reports(1, &report(vec![pg()]), at(5));
        assert!(watch.what_is_not_served(index_of).is_some(), "it was before");
        watch.osd_reports(2, &report(vec![pg()]), at(20));
        assert!(watch.what_is_not_served(index_of).is_some(), "it is not the primary");
        watch.osd_reports(1, &report(Vec::new()), at(20));
        assert!(watch.what_is_not_served(index_of).is_some(), "it does not serve");
        watch.osd_reports(1, &report(vec![pg()]), at(30));
        assert_eq!(watch.what_is_not_served(index_of), None);
    }

    #[test]
    fn only_a_learner_that_is_given_damage_loses_it() {
        let mut consequences = Counts::new(&CONSEQUENCES);
        let mut watch = Watch::default();
        let mut says = |watch: &mut Watch, body: PeerBody| {
            let message = PeerMessage { pg: pg(), epoch: Epoch::new(2), body };
            assert_eq!(watch.peer_says(1, &message, &mut consequences), Ok(()));
        };
        let repair = |damaged: u64| {
            let (pool, image, stripe) = (PoolId::FIRST, ImageId::FIRST, StripeIndex::new(0));
            let content = Content::Block {
                version: Version { epoch: Epoch::new(1), counter: 5 },
                block_size: BlockSize::DEFAULT,
                units: vec![3],
                written: Vec::new(),
                damaged: vec![damaged],
                checksums: Vec::new(),
                data: None,
                table: Vec::new(),
            };
            PeerBody::Repair { call: 0, key: BlockKey { pool, hash: 7, image, stripe }, content }
        };
        says(&mut watch, repair(1));
        assert!(!watch.is_damage_given(ImageId::FIRST), "it is an acting member");
        let zero = Version::ZERO;
        let (since, whole) = (zero, Vec::new());
        let filling = Filling { complete: zero, cursor: None, since, whole, listing: false };
        let (floor, history, filling) = (zero, Vec::new(), Some(filling));
        says(&mut watch, PeerBody::Activate { adopted: zero, floor, history, filling });
        says(&mut watch, repair(0));
        assert!(!watch.is_damage_given(ImageId::FIRST), "nothing is damaged");
        says(&mut watch, repair(1));
        assert!(watch.is_damage_given(ImageId::FIRST));
    }

    #[test]
    fn a_lease_runs_out_on_its_holders_clock() {
        let mut consequences = Counts::new(&CONSEQUENCES);
        let mut watch = Watch::default();
        let at = |milliseconds| Time::ZERO + Duration::from_millis(milliseconds);
        for (asked, answered, stamp) in [(0, 10, 1), (100, 110, 2), (500, 520, 3)] {
            let renew = LeaseMessage::Renew {
                stamp,
                revisions: Vec::new(),
                leads: true,
                begun_bytes: 0,
                owed_bytes: 0,
                room: None,
            };
            watch.lease_asked(0, 1, &renew, at(asked));
            let granted = LeaseMessage::Granted {
                stamp,
                valid_ms: 300,
                lost: Vec::new(),
                is_full: false,
                engine: format::wire::EngineState::default(),
                limit_bytes: 1,
                share_bytes: 1,
                largest_bytes: 1,
                room: None,
            };
            watch.lease_answered(0, 1, &granted, at(answered), &mut consequences);
            watch.lease_answered(0, 1, &granted, at(answered), &mut consequences);
        }
        assert_eq!(consequences.get("lease granted"), 3);
        assert_eq!(consequences.get("lease expired"), 1);
        watch.monitor_says(&map(1, 2), Time::ZERO).expect("an entry");
        let index_of = |osd: OsdId| Some(osd.get() as usize - 1);
        let judge = |now| watch.judge_read(0, pg(), Epoch::new(1), at(now), index_of);
        assert_eq!(judge(800), Ok(()));
        assert!(judge(802).is_err());
        assert!(watch.judge_read(1, pg(), Epoch::new(1), at(800), index_of).is_err());
    }
}
