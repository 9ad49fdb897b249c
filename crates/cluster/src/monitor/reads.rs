//! Leases by which a primary lets its PG be read, though too few members are there to serve it: as long
//! as one runs, no other OSD leads the PG.
//!
//! Nobody can serve a PG without its primary while that stays an acting member: an epoch begins when
//! all of those have left the one before. So it is enough that an entry with another primary waits.
//!
//! Invariants
//!   1. A lease is given to the primary of the newest entry alone, in the run that this names; and
//!      while no other entry is on its way to the store.
//!   2. It ends while this monitor leads for sure, if others could lead.
//!   3. What a monitor before this one gave has run out `READ_LEASE_SPAN` after this one came to lead; or
//!      when its holder has subscribed here: a lease ends with the connection that it was given over. A boot
//!      alone tells nothing: its sender may have left that connection, and have joined over another one.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, Epoch, Incarnation, OsdId, PgId, Time};
use format::wire::PgEntry;

use super::{Effect, Monitor};
use crate::message::{FromMonitor, READ_LEASE_SPAN};
use crate::records::{PG_SHARD_SIZE, Record};

/// A shorter lease is given to nobody: it would be over when it comes.
const SPAN_MIN: Duration = Duration::from_millis(50);

/// Who may let which PGs be read.
#[derive(Default)]
pub(super) struct ReadLeases {
    given: BTreeMap<OsdId, BTreeMap<PgId, Given>>,
}

/// A lease of one PG.
struct Given {
    /// The holder's run.
    run: Incarnation,
    until: Time,
    /// It is not given again: another OSD is to lead.
    ends: bool,
}

/// An entry that waits until the primary of the one before cannot let it be read any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeldEntry {
    pg: PgId,
    primary: OsdId,
    until: Time,
}

impl ReadLeases {
    fn given_of(&self, osd: OsdId, pg: PgId) -> Option<&Given> {
        self.given.get(&osd)?.get(&pg)
    }
}

/// How long it takes on our clock, at most, until a span is over on another one's.
fn outlasting(span: Duration) -> Duration {
    // 10 % either way: 1.1 / 0.9 < 5 / 4.
    Duration::from_nanos(span.as_nanos() / 4 * 5)
}

impl Monitor {
    /// An OSD wants to let PGs be read, and no others any more.
    pub(super) fn on_read_lease(
        &mut self,
        now: Time,
        connection: ConnectionId,
        stamp: u64,
        pgs: &[(PgId, Epoch)],
        effects: &mut Vec<Effect>,
    ) {
        let Some(osd) = self.connections[&connection].osd else { return };
        let Some(run) = self.contents.osd(osd).map(|record| record.info.incarnation) else {
            return;
        };
        let before = self.reads.given.remove(&osd).unwrap_or_default();
        let span = self.read_lease_span(now);
        let (mut granted, mut given) = (Vec::new(), BTreeMap::new());
        for (pg, epoch) in pgs {
            let known = before.get(pg).filter(|given| given.run == run);
            let until = known.map(|given| given.until);
            let ends = known.is_some_and(|given| given.ends);
            let new = span.filter(|_| !ends && self.may_give(osd, *pg, *epoch));
            let new_until = new.map(|span| now + outlasting(span));
            granted.extend(new.map(|_| *pg));
            if let Some(until) = until.max(new_until) {
                given.insert(*pg, Given { run, until, ends });
            }
        }
        if !given.is_empty() {
            self.reads.given.insert(osd, given);
        }
        // Who waits for what was handed back need not wait any more.
        for (pg, _) in before.iter().filter(|(_, given)| given.ends) {
            self.entries.mark_pg(*pg);
        }
        let valid = span.map_or(0, Duration::as_millis);
        let valid_ms = u32::try_from(valid).expect("it is short");
        self.send(connection, &FromMonitor::ReadLease { stamp, valid_ms, pgs: granted }, effects);
    }

    /// The OSD has joined over a new connection, and knows it: what it was given over an earlier one is
    /// over.
    pub(super) fn end_read_leases(&mut self, osd: OsdId) {
        for pg in self.reads.given.remove(&osd).unwrap_or_default().into_keys() {
            self.entries.mark_pg(pg);
        }
    }

    /// For how long leases may be given now; `None`: not at all.
    fn read_lease_span(&self, now: Time) -> Option<Duration> {
        if !self.is_ready() || self.is_older() {
            return None;
        }
        let span = match self.lease {
            None => READ_LEASE_SPAN,
            Some(_) => {
                let left = self.leads_until.filter(|until| *until > now)?.since(now);
                let millis = left.as_millis() * 4 / 5;
                READ_LEASE_SPAN.min(Duration::from_millis(millis))
            }
        };
        (span >= SPAN_MIN).then_some(span)
    }

    fn may_give(&self, osd: OsdId, pg: PgId, epoch: Epoch) -> bool {
        let Some(entry) = self.contents.pg(pg) else { return false };
        let is_newest = entry.epoch == epoch && !self.is_being_changed(entry);
        is_newest && entry.primary == Some(osd) && self.leads_in_its_run(entry, osd)
    }

    /// Whether the transaction that is on its way brings another entry.
    fn is_being_changed(&self, entry: &PgEntry) -> bool {
        let pg = entry.pg;
        let shard = self.records_in_flight().find_map(|record| match record {
            Record::PgShard(shard)
                if (shard.pool, shard.shard) == (pg.pool, pg.number / PG_SHARD_SIZE) =>
            {
                Some(shard)
            }
            _ => None,
        });
        let written = shard.and_then(|shard| shard.pgs.get((pg.number % PG_SHARD_SIZE) as usize));
        written.is_some_and(|written| written.epoch != entry.epoch)
    }

    /// Until when the entry that follows has to wait for reads; `None`: it has not.
    pub(super) fn waits_for_reads(&self, entry: &PgEntry, next: &PgEntry) -> Option<HeldEntry> {
        let primary = entry.primary.filter(|primary| next.primary != Some(*primary))?;
        // Its run in the entry is over: nobody reads there.
        let is_same_run = self.leads_in_its_run(entry, primary);
        if !is_same_run {
            return None;
        }
        let pg = entry.pg;
        let run = self.contents.osd(primary)?.info.incarnation;
        let given = self.reads.given_of(primary, pg).filter(|given| given.run == run);
        let has_joined = self.osds.get(&primary).is_some_and(|live| live.knows_connection);
        let earlier = (!has_joined).then(|| self.led_since + outlasting(READ_LEASE_SPAN));
        let until = given.map(|given| given.until).max(earlier)?;
        (self.now < until).then_some(HeldEntry { pg, primary, until })
    }

    /// These entries wait; of others in shards that were looked at nothing waits.
    pub(super) fn hold_entries(&mut self, held: &[HeldEntry]) {
        for entry in held {
            self.entries.look_at(entry.until);
        }
        let (now, entries) = (self.now, &self.entries);
        let held: BTreeSet<(OsdId, PgId)> = held.iter().map(|it| (it.primary, it.pg)).collect();
        for (osd, of_osd) in &mut self.reads.given {
            of_osd.retain(|_, given| given.until > now);
            for (pg, given) in of_osd {
                if entries.is_dirty((pg.pool, pg.number / PG_SHARD_SIZE)) {
                    given.ends = held.contains(&(*osd, *pg));
                }
            }
        }
        self.reads.given.retain(|_, of_osd| !of_osd.is_empty());
    }

    /// Whether the PG's primary may let it be read, though too few members are there.
    pub(super) fn is_read(&self, entry: &PgEntry) -> bool {
        let given = entry.primary.and_then(|osd| self.reads.given_of(osd, entry.pg));
        given.is_some_and(|given| self.now < given.until && !given.ends)
    }
}
