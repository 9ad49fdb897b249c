//! Leases between pairs of OSDs: what this OSD holds, and what it has given.
//!
//! A *holder* leads PGs, a *giver* is a member of them. A primary serves only while all other
//! members grant; a member takes part in a newer epoch only when what it granted to the primary of
//! an earlier one can be used no more. So no two primaries of a PG serve at the same time, whatever
//! the network does. See `docs/internals/pg.md`.
//!
//! ```text
//!   holder                                giver
//!     │── Renew{stamp, revisions} ──────▶ │   counts 5/4 of the span from here
//!     │ ◀── Granted{stamp, span, lost} ── │
//!     counts the span from sending
//! ```
//!
//! Invariants
//!   1. A lease that the holder counts as valid is one that the giver has not counted out, if their
//!      clocks run at most 10 % off either way.
//!   2. What the giver revoked of a PG is named in every later grant until the holder has said that
//!      it acts on the newer entry: so what is revoked runs out.
//!   3. A process that just started assumes that an earlier run gave a lease to every OSD.

use std::collections::{BTreeMap, VecDeque};

use base::planted::{self, Bug};
use base::{Duration, Epoch, MapRevision, OsdId, PgId, PoolId, Time};
use cluster::settings::Setting;
use format::wire::{LOST_COUNT_MAX, Member, PgEntry};

/// The span of a lease unless a setting says otherwise.
pub(crate) const LEASE_DEFAULT: Duration =
    Duration::from_millis(Setting::Lease.definition().default);

/// Renewals without an answer whose times are remembered; an answer to an older one is worth
/// nothing.
const SENT_COUNT_MAX: usize = 16;

/// How long the giver of a lease counts it.
pub fn giver_span(span: Duration) -> Duration {
    // 10 % either way: 1.1 / 0.9 < 5 / 4.
    Duration::from_nanos(span.as_nanos().saturating_add(span.as_nanos() / 4))
}

/// How often a lease of this span is renewed: two renewals may be lost.
pub fn renew_every(span: Duration) -> Duration {
    Duration::from_nanos(span.as_nanos() / 3)
}

/// All leases of an OSD.
pub struct Leases {
    /// What an earlier run of this OSD gave has run out by then.
    earlier_until: Time,
    held: BTreeMap<OsdId, Held>,
    given: BTreeMap<OsdId, Given>,
}

/// What another OSD grants this one.
struct Held {
    giver: Member,
    stamp_next: u64,
    /// Renewals that may still be answered, oldest first: stamp, when it was sent.
    sent: VecDeque<(u64, Time)>,
    valid_until: Option<Time>,
    /// It has run out, which was told: since then.
    out_since: Option<Time>,
    /// PGs that the last grant was not for, and the epoch that the giver knows.
    lost: BTreeMap<PgId, Epoch>,
}

/// What this OSD granted another one.
struct Given {
    holder: Member,
    until: Time,
    revoked: BTreeMap<PgId, Revoked>,
}

/// A PG of which the holder may still act on an epoch before the newest.
#[derive(Clone, Copy)]
struct Revoked {
    /// The newest epoch.
    epoch: Epoch,
    /// The holder acts on it once it has this revision of the pool's map.
    revision: MapRevision,
    /// What was granted for the epoch before has run out by then.
    until: Time,
}

/// What a giver says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// As asked.
    pub stamp: u64,
    /// In whole milliseconds.
    pub valid_ms: u32,
    /// PGs that it is not for.
    pub lost: Vec<(PgId, Epoch)>,
}

impl Leases {
    /// Of a run that begins now. `span_noted`: the longest span that earlier runs gave.
    pub fn new(now: Time, span_noted: Duration) -> Leases {
        Leases {
            earlier_until: now + giver_span(span_noted),
            held: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    /// There is a connection to this giver: answers to what was sent before do not come any more.
    pub fn on_connected(&mut self, giver: Member) {
        let held = self.held.get_mut(&giver.osd).filter(|held| held.giver == giver);
        match held {
            Some(held) => held.sent.clear(),
            None => {
                let held = Held {
                    giver,
                    stamp_next: 1,
                    sent: VecDeque::new(),
                    valid_until: None,
                    out_since: None,
                    lost: BTreeMap::new(),
                };
                self.held.insert(giver.osd, held);
            }
        }
    }

    /// This OSD gives up its lease from this giver.
    pub fn drop_held(&mut self, giver: OsdId) {
        self.held.remove(&giver);
    }

    /// Names the next renewal. Requires: there is a connection to the giver.
    pub fn renew(&mut self, now: Time, giver: OsdId) -> u64 {
        let held = self.held.get_mut(&giver).expect("a connection to it was opened");
        let stamp = held.stamp_next;
        held.stamp_next += 1;
        if held.sent.len() == SENT_COUNT_MAX {
            held.sent.pop_front();
        }
        held.sent.push_back((stamp, now));
        stamp
    }

    /// The giver answered a renewal. True if requests may go on now that had to wait before; the
    /// error says how it breaks the protocol.
    pub fn on_granted(&mut self, now: Time, giver: OsdId, grant: Grant) -> Result<bool, String> {
        let held = self.held.get_mut(&giver).expect("a connection to it was opened");
        if grant.stamp == 0 || grant.stamp >= held.stamp_next {
            return Err("a grant that was not asked for".into());
        }
        while held.sent.front().is_some_and(|(stamp, _)| *stamp < grant.stamp) {
            held.sent.pop_front();
        }
        let Some((_, sent_at)) = held.sent.pop_front_if(|(stamp, _)| *stamp == grant.stamp) else {
            return Ok(false);
        };
        let was_valid = held.valid_until.is_some_and(|until| now < until);
        let until = sent_at + Duration::from_millis(u64::from(grant.valid_ms));
        // A shorter span than before: the giver counts the longer one out, too.
        held.valid_until = held.valid_until.max(Some(until));
        let lost: BTreeMap<PgId, Epoch> = grant.lost.into_iter().collect();
        let was_lost = std::mem::replace(&mut held.lost, lost);
        Ok(!was_valid || was_lost.keys().any(|pg| !held.lost.contains_key(pg)))
    }

    /// Whether this giver grants, now, that this OSD serves the epoch of the PG.
    pub fn holds(&self, now: Time, giver: Member, pg: PgId, epoch: Epoch) -> bool {
        let Some(held) = self.held.get(&giver.osd).filter(|held| held.giver == giver) else {
            return false;
        };
        held.valid_until.is_some_and(|until| now < until)
            && held.lost.get(&pg).is_none_or(|newest| *newest <= epoch)
    }

    /// Leases that ran out since the last call, and for how long those did not hold that do again.
    pub fn take_changes(&mut self, now: Time) -> Vec<(OsdId, Option<Duration>)> {
        let mut changes = Vec::new();
        for (giver, held) in &mut self.held {
            let Some(until) = held.valid_until else { continue };
            match held.out_since {
                None if until <= now => {
                    held.out_since = Some(until);
                    changes.push((*giver, None));
                }
                Some(since) if now < until => {
                    held.out_since = None;
                    changes.push((*giver, Some(now.since(since))));
                }
                _ => {}
            }
        }
        changes
    }

    /// Whether the giver knows a newer epoch of any PG than `epoch_of` tells.
    pub fn knows_newer(&self, giver: OsdId, epoch_of: impl Fn(PgId) -> Option<Epoch>) -> bool {
        let Some(held) = self.held.get(&giver) else { return false };
        held.lost.iter().any(|(pg, newest)| epoch_of(*pg).is_none_or(|epoch| epoch < *newest))
    }

    /// A holder wants a lease and acts on these revisions; `None`: it gets none. Revocations that
    /// it has taken note of are over, see [`Leases::is_revoked_until`].
    pub fn give(
        &mut self,
        now: Time,
        holder: Member,
        stamp: u64,
        revisions: &[(PoolId, MapRevision)],
        span: Duration,
    ) -> Option<Grant> {
        let given = self.given_to(holder)?;
        given.revoked.retain(|pg, revoked| {
            let acts_on = revisions.iter().find(|(pool, _)| *pool == pg.pool);
            acts_on.is_none_or(|(_, revision)| *revision < revoked.revision)
        });
        if given.revoked.len() > LOST_COUNT_MAX {
            return None;
        }
        let until = now + giver_span(span);
        let is_shortened = planted::on(Bug::LeaseShortenedAtOnce);
        given.until = if is_shortened { until } else { given.until.max(until) };
        let lost = match planted::on(Bug::StaleRevisionAccepted) {
            true => Vec::new(),
            false => given.revoked.iter().map(|(pg, revoked)| (*pg, revoked.epoch)).collect(),
        };
        let valid_ms = u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        Some(Grant { stamp, valid_ms, lost })
    }

    /// A holder gives its leases back for good.
    pub fn on_surrender(&mut self, holder: Member) {
        if let Some(given) = self.given_to(holder) {
            given.until = Time::ZERO;
            given.revoked.clear();
        }
    }

    /// An entry with a higher epoch has followed `before`: the primary of that one loses the PG.
    pub fn revoke(&mut self, before: &PgEntry, newest: &PgEntry) {
        if let Some(holder) = before.primary_member() {
            self.revoke_from(holder, newest);
        }
    }

    /// This holder may have led the PG of `newest` before, and has lost it.
    pub fn revoke_from(&mut self, holder: Member, newest: &PgEntry) {
        let Some(given) = self.given_to(holder) else { return };
        let until = given.until;
        let revoked = Revoked { epoch: newest.epoch, revision: newest.revision, until };
        given
            .revoked
            .entry(newest.pg)
            .and_modify(|known| {
                (known.epoch, known.revision) = (revoked.epoch, revoked.revision);
                known.until = known.until.max(until);
            })
            .or_insert(revoked);
    }

    /// A newer run of the OSD is known: grants to earlier runs are void.
    pub fn on_newer_run(&mut self, newest: Member) {
        if self.given.get(&newest.osd).is_some_and(|given| given.holder < newest) {
            self.given.remove(&newest.osd);
        }
    }

    /// Until when an earlier primary of the PG may serve by a grant of this OSD; `None`: none may.
    /// The primary of `entry` itself does not count: in the run that is named there it has left
    /// earlier epochs before it begins this one.
    pub fn is_revoked_until(&self, now: Time, entry: &PgEntry) -> Option<Time> {
        let primary = entry.primary_member();
        let others = self.given.values().filter(|given| Some(given.holder) != primary);
        let untils = others.filter_map(|given| Some(given.revoked.get(&entry.pg)?.until));
        untils.max().filter(|until| now < *until)
    }

    /// A pool is removed: nobody acts on its entries.
    pub fn forget_pool(&mut self, pool: PoolId) {
        for given in self.given.values_mut() {
            given.revoked.retain(|pg, _| pg.pool != pool);
        }
    }

    /// What is known of a holder in its newest run; `None`: this is an earlier one.
    fn given_to(&mut self, holder: Member) -> Option<&mut Given> {
        let new = Given { holder, until: self.earlier_until, revoked: BTreeMap::new() };
        let given = self.given.entry(holder.osd).or_insert_with(|| new);
        if given.holder.incarnation < holder.incarnation {
            *given = Given { holder, until: self.earlier_until, revoked: BTreeMap::new() };
        }
        (given.holder == holder).then_some(given)
    }
}

#[cfg(test)]
mod tests;
