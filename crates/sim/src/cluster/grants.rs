//! Checks leases by the messages on the network. No member may take part in an epoch while an earlier primary
//! of the PG may still serve under its lease, or in pools with parity an earlier member with a data part. A primary
//! that renews a lease must report all credit that its writes have used.
//!
//! The checker knows more than any process: which maps each process has received, what its clock shows, and
//! each grant that was sent, even if it never arrived.

use std::collections::{BTreeMap, BTreeSet};

use base::{BlockSize, Duration, Epoch, MapRevision, PgId, Position, Scheme, Time};
use format::wire::{LeaseMessage, Member, PgEntry};

/// How many grants are kept for each holder and giver: more than are ever in use at once.
const GRANT_COUNT_MAX: usize = 16;

/// The lease messages seen so far, and the PG entries that they depend on.
#[derive(Default)]
pub struct Grants {
    /// The pool's scheme. In pools with parity, members with data parts serve, too, under leases of their
    /// own.
    pub scheme: Option<Scheme>,
    /// Entries of each PG, oldest first.
    entries: BTreeMap<PgId, Vec<PgEntry>>,
    /// Members that have begun to take part in an epoch.
    activated: BTreeSet<(PgId, Epoch, usize)>,
    /// Requests for leases. Key: holder, giver and stamp; value: the holder's run, and the time of the
    /// request on its clock.
    asked: BTreeMap<(usize, usize, u64), (u64, Time)>,
    /// Grants by holder and giver, oldest first.
    given: BTreeMap<(usize, usize), Vec<Grant>>,
    /// Runs that have surrendered their leases.
    surrendered: BTreeSet<(usize, u64)>,
    /// The credit that each run of a primary needs at each run of a member.
    used: BTreeMap<Pair, Used>,
}

/// A run of a primary and a run of another member, each as its OSD's index and its run number.
pub type Pair = [(usize, u64); 2];

/// Space for which a primary needs credit from a member.
#[derive(Default)]
struct Used {
    /// Bytes of data writes sent: one block for each.
    sent_bytes: u64,
    /// The part of `sent_bytes` that was sent before this pair's first claim.
    earlier_bytes: Option<u64>,
}

struct Grant {
    run: u64,
    /// The end of the lease, on the holder's clock.
    until: Time,
    lost: Vec<(PgId, Epoch)>,
}

/// An OSD that may hold a lease.
pub struct Holder {
    /// The index of its process.
    pub index: usize,
    /// The number of its run.
    pub run: u64,
    /// The member, as entries list it.
    pub member: Member,
    /// The newest map revision that was sent to it.
    pub told: MapRevision,
    /// The current time on its clock.
    pub now: Time,
}

impl Grants {
    /// Records a PG entry when it is first sent to any process.
    pub fn entry_told(&mut self, entry: &PgEntry) {
        self.entries.entry(entry.pg).or_default().push(entry.clone());
    }

    /// Returns the newest entry of an epoch.
    pub fn entry(&self, pg: PgId, epoch: Epoch) -> Option<&PgEntry> {
        self.entries.get(&pg)?.iter().rfind(|entry| entry.epoch == epoch)
    }

    /// Records a member's report that it has begun to take part in an epoch.
    pub fn activated(&mut self, pg: PgId, epoch: Epoch, member: usize) {
        self.activated.insert((pg, epoch, member));
    }

    /// Records a lease message from a run of an OSD to another OSD; `now` is the sender's clock.
    pub fn asked(&mut self, holder: (usize, u64), giver: usize, message: &LeaseMessage, now: Time) {
        let (holder, run) = holder;
        match message {
            LeaseMessage::Renew { stamp, .. } => {
                self.asked.insert((holder, giver, *stamp), (run, now));
                let last = stamp.saturating_sub(GRANT_COUNT_MAX as u64);
                self.asked.remove(&(holder, giver, last));
            }
            LeaseMessage::Surrender => {
                self.surrendered.insert((holder, run));
            }
            LeaseMessage::Granted { .. } => {}
        }
    }

    /// Records that a primary sends a data write to an acting member.
    pub fn write_sent(&mut self, pair: Pair, block_size: BlockSize) {
        self.used.entry(pair).or_default().sent_bytes += block_size.bytes();
    }

    /// Checks the amount of credit that a primary reports as used: it must cover all writes that the
    /// pair has sent since the primary's first report.
    pub fn claimed(&mut self, pair: Pair, begun_bytes: u64) -> Result<(), String> {
        let used = self.used.entry(pair).or_default();
        let needed = used.sent_bytes - *used.earlier_bytes.get_or_insert(used.sent_bytes);
        if begun_bytes >= needed {
            return Ok(());
        }
        let [(holder, _), (giver, _)] = pair;
        Err(format!(
            "osd {holder} has sent writes of {needed} bytes to osd {giver}, and counts {begun_bytes} bytes \
             of credit as used"
        ))
    }

    /// Records that an OSD grants a lease.
    pub fn granted(&mut self, giver: usize, holder: usize, message: &LeaseMessage) {
        let LeaseMessage::Granted { stamp, valid_ms, lost, .. } = message else { return };
        let Some((run, asked)) = self.asked.get(&(holder, giver, *stamp)) else { return };
        let until = *asked + Duration::from_millis(u64::from(*valid_ms));
        let given = self.given.entry((holder, giver)).or_default();
        if given.len() == GRANT_COUNT_MAX {
            given.remove(0);
        }
        given.push(Grant { run: *run, until, lost: lost.clone() });
    }

    /// Checks that a member may take part in an epoch, as its primary or as another member.
    pub fn judge(
        &self,
        member: usize,
        pg: PgId,
        epoch: Epoch,
        holders: &[Holder],
    ) -> Result<(), String> {
        let Some(entry) = self.entry(pg, epoch) else { return Ok(()) };
        let entries = &self.entries[&pg];
        for holder in holders {
            let known = entries.iter().rfind(|known| known.revision <= holder.told);
            let Some(known) = known.filter(|known| known.epoch < epoch) else { continue };
            let osd = holder.member.osd;
            let reads = |(position, member): (Position, &Member)| {
                *member == holder.member && self.scheme.is_some_and(|it| it.has_data_part(position))
            };
            let may_serve =
                known.primary_member() == Some(holder.member) || known.filled().any(reads);
            let has_left = entry.primary_osd() == Some(osd)
                || self.surrendered.contains(&(holder.index, holder.run))
                || !self.activated.contains(&(pg, known.epoch, member));
            if !may_serve || has_left {
                continue;
            }
            let serves = |grant: &&Grant| {
                let is_lost = |(lost, newest): &(PgId, Epoch)| *lost == pg && *newest > known.epoch;
                grant.run == holder.run
                    && holder.now < grant.until
                    && !grant.lost.iter().any(is_lost)
            };
            let given = self.given.get(&(holder.index, member));
            if let Some(grant) = given.into_iter().flatten().find(serves) {
                return Err(format!(
                    "osd {member} takes part in epoch {epoch} of {pg}, but osd {} serves in epoch {} by \
                     its lease until {:?}, and it is {:?} there",
                    holder.index, known.epoch, grant.until, holder.now
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use base::{Incarnation, OsdId, PoolId};

    use super::*;

    const PG: PgId = PgId { pool: PoolId::FIRST, number: 0 };

    fn member(index: usize) -> Member {
        let osd = OsdId::new(index as u32 + 1).expect("not 0");
        Member { osd, incarnation: Incarnation::new(1) }
    }

    fn entry(epoch: u32, primary: usize) -> PgEntry {
        let (number, revision) = (Epoch::new(epoch), MapRevision::new(u64::from(epoch)));
        let entry = PgEntry::new(PG, (0..3).map(member)).led_by(member(primary).osd);
        PgEntry { epoch: number, revision, ..entry }
    }

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    /// OSD 0 is the primary of epoch 1 under a lease from OSD 1, which it requested at 100 ms. OSD 2 is
    /// the primary of the next epoch.
    fn granted(lost: Vec<(PgId, Epoch)>) -> Grants {
        let mut grants = Grants::default();
        grants.entry_told(&entry(1, 0));
        grants.activated(PG, Epoch::new(1), 1);
        let renew = LeaseMessage::Renew {
            stamp: 1,
            revisions: Vec::new(),
            leads: true,
            begun_bytes: 0,
            owed_bytes: 0,
            room: None,
        };
        grants.asked((0, 7), 1, &renew, at(100));
        let grant = LeaseMessage::Granted {
            stamp: 1,
            valid_ms: 300,
            lost,
            is_full: false,
            engine: format::wire::EngineState::default(),
            limit_bytes: 1,
            share_bytes: 1,
            largest_bytes: 1,
            room: None,
        };
        grants.granted(1, 0, &grant);
        grants.entry_told(&entry(2, 2));
        grants
    }

    fn holder(run: u64, told: u64, now: u64) -> Holder {
        Holder { index: 0, run, member: member(0), told: MapRevision::new(told), now: at(now) }
    }

    #[test]
    fn a_part_that_begins_before_a_lease_has_run_out_is_found() {
        let judge = |grants: &Grants, holder: Holder| grants.judge(1, PG, Epoch::new(2), &[holder]);
        let grants = granted(Vec::new());
        assert!(judge(&grants, holder(7, 1, 399)).is_err());
        assert_eq!(judge(&grants, holder(7, 1, 400)), Ok(()), "it has run out");
        assert_eq!(judge(&grants, holder(7, 2, 300)), Ok(()), "it knows the new entry");
        assert_eq!(judge(&grants, holder(8, 1, 300)), Ok(()), "it is another run");
        let gone = Holder { member: member(2), ..holder(7, 1, 300) };
        assert_eq!(judge(&grants, gone), Ok(()), "it led nothing");
        let named = granted(vec![(PG, Epoch::new(2))]);
        assert_eq!(judge(&named, holder(7, 1, 300)), Ok(()), "the grant was not for the PG");
        let other = PgId { number: 1, ..PG };
        assert!(judge(&granted(vec![(other, Epoch::new(2))]), holder(7, 1, 300)).is_err());
        let mut left = granted(Vec::new());
        left.asked((0, 7), 1, &LeaseMessage::Surrender, at(200));
        assert_eq!(judge(&left, holder(7, 1, 300)), Ok(()), "it has handed its leases back");
        assert_eq!(grants.judge(2, PG, Epoch::new(2), &[holder(7, 1, 300)]), Ok(()));
    }

    #[test]
    fn credit_that_writes_used_must_be_counted() {
        let block = BlockSize::DEFAULT;
        let pair = [(0, 7), (1, 3)];
        let mut grants = Grants::default();
        grants.write_sent(pair, block);
        assert_eq!(grants.claimed(pair, 0), Ok(()), "it was sent before");
        grants.write_sent(pair, block);
        assert!(grants.claimed(pair, block.bytes() - 1).is_err());
        assert_eq!(grants.claimed(pair, block.bytes()), Ok(()));
        assert_eq!(grants.claimed([(0, 7), (1, 4)], 0), Ok(()), "another run begins anew");
    }
}
