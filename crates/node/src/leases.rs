//! Leases between pairs of OSDs: those that this OSD holds, and those that it has given.
//!
//! A *holder* leads PGs, and a *giver* is a member of them. A primary serves only while all other members
//! grant it a lease. A member enters a newer epoch only when its grants to the primary of an earlier
//! epoch have expired. So two primaries of a PG never serve at the same time, whatever the network does.
//! In pools with parity, members with data parts hold leases, too, and answer direct reads while all other
//! members grant them; a member enters a newer epoch only when its grants to all of them have expired.
//! See `docs/internals/pg.md`.
//!
//! ```text
//!   holder                                giver
//!     │── Renew{stamp, revisions} ──────▶ │   counts 5/4 of the span from here
//!     │ ◀── Granted{stamp, span, lost} ── │
//!     counts the span from sending
//! ```
//!
//! Invariants
//!   1. While a lease is valid for the holder, it is also valid for the giver, provided that their clocks
//!      deviate by at most 10 % either way.
//!   2. Every grant lists the PGs that the giver has revoked, until the holder reports that it acts on
//!      the newer entry. So a revoked lease expires.
//!   3. A process that has just started assumes that an earlier run gave a lease to every OSD.

use std::collections::{BTreeMap, VecDeque};

use base::planted::{self, Bug};
use base::{Duration, Epoch, MapRevision, OsdId, PgId, PoolId, Time};
use cluster::settings::Setting;
use format::wire::{LOST_COUNT_MAX, Member, PgEntry};

/// The default span of a lease.
pub(crate) const LEASE_DEFAULT: Duration =
    Duration::from_millis(Setting::Lease.definition().default);

/// Maximum number of unanswered renewals that are remembered. A reply to an older one is ignored.
const SENT_COUNT_MAX: usize = 16;

/// Returns how long the giver must treat a lease of this span as valid.
pub fn giver_span(span: Duration) -> Duration {
    // 10 % either way: 1.1 / 0.9 < 5 / 4.
    Duration::from_nanos(span.as_nanos().saturating_add(span.as_nanos() / 4))
}

/// Returns the interval between renewals of a lease of this span: two in a row may be lost.
pub fn renew_every(span: Duration) -> Duration {
    Duration::from_nanos(span.as_nanos() / 3)
}

/// All leases of an OSD.
pub struct Leases {
    /// When all leases that earlier runs of this OSD gave have expired.
    earlier_until: Time,
    held: BTreeMap<OsdId, Held>,
    given: BTreeMap<OsdId, Given>,
}

/// A lease that another OSD grants to this one.
struct Held {
    giver: Member,
    stamp_next: u64,
    /// Unanswered renewals, oldest first: stamp, and when it was sent.
    sent: VecDeque<(u64, Time)>,
    valid_until: Option<Time>,
    /// When the lease expired, if `take_changes` has reported that it expired.
    out_since: Option<Time>,
    /// PGs that the last grant excluded, with the newest epoch of each as the giver reported it.
    lost: BTreeMap<PgId, Epoch>,
}

/// A lease that this OSD granted to another one.
struct Given {
    holder: Member,
    until: Time,
    revoked: BTreeMap<PgId, Revoked>,
    /// The map revisions that the holder last said it acts on.
    revisions: Vec<(PoolId, MapRevision)>,
}

/// A PG for which the holder may still act on an earlier epoch.
#[derive(Clone, Copy)]
struct Revoked {
    /// The newest epoch.
    epoch: Epoch,
    /// The holder acts on that epoch once it has this revision of the pool's map.
    revision: MapRevision,
    /// When the grant for earlier epochs has expired.
    until: Time,
}

/// A giver's reply to a renewal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Copied from the renewal that this replies to.
    pub stamp: u64,
    /// Span of the lease in milliseconds, from when the renewal was sent.
    pub valid_ms: u32,
    /// PGs that the grant excludes, with the newest epoch of each.
    pub lost: Vec<(PgId, Epoch)>,
}

impl Leases {
    /// Creates the leases of a run that begins now. `span_noted`: the longest span that earlier runs
    /// gave.
    pub fn new(now: Time, span_noted: Duration) -> Leases {
        Leases {
            earlier_until: now + giver_span(span_noted),
            held: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    /// Handles a new connection to this giver: replies to renewals sent over an earlier connection cannot
    /// arrive any more.
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

    /// Drops the lease that this giver granted.
    pub fn drop_held(&mut self, giver: OsdId) {
        self.held.remove(&giver);
    }

    /// Records that a renewal is being sent, and returns its stamp. Requires: there is a connection to
    /// the giver.
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

    /// Handles a grant. Returns true if requests that had to wait may proceed now. The error says how the
    /// grant violates the protocol.
    pub fn on_granted(&mut self, now: Time, giver: OsdId, grant: Grant) -> Result<bool, String> {
        let held = self.held.get_mut(&giver).expect("a connection to it was opened");
        if grant.stamp == 0 || grant.stamp >= held.stamp_next {
            return Err("an unsolicited lease grant".into());
        }
        while held.sent.front().is_some_and(|(stamp, _)| *stamp < grant.stamp) {
            held.sent.pop_front();
        }
        let Some((_, sent_at)) = held.sent.pop_front_if(|(stamp, _)| *stamp == grant.stamp) else {
            return Ok(false);
        };
        let was_valid = held.valid_until.is_some_and(|until| now < until);
        let until = sent_at + Duration::from_millis(u64::from(grant.valid_ms));
        // The new span may be shorter than the one before; the giver still waits for the longer one to
        // expire.
        held.valid_until = held.valid_until.max(Some(until));
        let lost: BTreeMap<PgId, Epoch> = grant.lost.into_iter().collect();
        let was_lost = std::mem::replace(&mut held.lost, lost);
        Ok(!was_valid || was_lost.keys().any(|pg| !held.lost.contains_key(pg)))
    }

    /// Returns whether this OSD now holds a lease from this giver for the epoch of the PG.
    pub fn holds(&self, now: Time, giver: Member, pg: PgId, epoch: Epoch) -> bool {
        let Some(held) = self.held.get(&giver.osd).filter(|held| held.giver == giver) else {
            return false;
        };
        held.valid_until.is_some_and(|until| now < until)
            && held.lost.get(&pg).is_none_or(|newest| *newest <= epoch)
    }

    /// Returns the leases that changed since the last call: with `None` if the lease has expired, or with
    /// the time for which it was invalid if it is valid again.
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

    /// Returns whether the giver has a newer epoch of any PG than `epoch_of` returns.
    pub fn knows_newer(&self, giver: OsdId, epoch_of: impl Fn(PgId) -> Option<Epoch>) -> bool {
        let Some(held) = self.held.get(&giver) else { return false };
        held.lost.iter().any(|(pg, newest)| epoch_of(*pg).is_none_or(|epoch| epoch < *newest))
    }

    /// Handles a renewal by a holder that acts on these map revisions. Returns `None` if the holder gets no
    /// lease. Revocations that those revisions cover end, see [`Leases::is_revoked_until`].
    pub fn give(
        &mut self,
        now: Time,
        holder: Member,
        stamp: u64,
        revisions: &[(PoolId, MapRevision)],
        span: Duration,
    ) -> Option<Grant> {
        let given = self.given_to(holder)?;
        given.revisions.clear();
        given.revisions.extend_from_slice(revisions);
        let Given { revoked, revisions, .. } = given;
        revoked.retain(|pg, revoked| !acts_on(revisions, pg.pool, revoked.revision));
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

    /// Handles a holder's surrender: it returns its leases for good.
    pub fn on_surrender(&mut self, holder: Member) {
        if let Some(given) = self.given_to(holder) {
            given.until = Time::ZERO;
            given.revoked.clear();
        }
    }

    /// Revokes the PG of `newest` from this holder, which may have served it in an earlier epoch.
    pub fn revoke_from(&mut self, holder: Member, newest: &PgEntry) {
        let Some(given) = self.given_to(holder) else { return };
        if acts_on(&given.revisions, newest.pg.pool, newest.revision) {
            return;
        }
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

    /// Drops grants to earlier runs of an OSD: a newer run exists.
    pub fn on_newer_run(&mut self, newest: Member) {
        if self.given.get(&newest.osd).is_some_and(|given| given.holder < newest) {
            self.given.remove(&newest.osd);
        }
    }

    /// Returns until when a holder may serve the PG in an earlier epoch under a grant of this OSD; `None` if
    /// none may. The primary of `entry` itself does not count: the run listed there leaves earlier epochs
    /// before it begins this one.
    pub fn is_revoked_until(&self, now: Time, entry: &PgEntry) -> Option<Time> {
        let primary = entry.primary_member();
        let others = self.given.values().filter(|given| Some(given.holder) != primary);
        let untils = others.filter_map(|given| Some(given.revoked.get(&entry.pg)?.until));
        untils.max().filter(|until| now < *until)
    }

    /// Drops the revocations of a removed pool: nobody acts on its entries.
    pub fn forget_pool(&mut self, pool: PoolId) {
        for given in self.given.values_mut() {
            given.revoked.retain(|pg, _| pg.pool != pool);
        }
    }

    /// Returns the grant to this run of a holder, creating it if needed. Returns `None` if a newer run of
    /// the holder is known.
    fn given_to(&mut self, holder: Member) -> Option<&mut Given> {
        let until = self.earlier_until;
        let new = || Given { holder, until, revoked: BTreeMap::new(), revisions: Vec::new() };
        let given = self.given.entry(holder.osd).or_insert_with(new);
        if given.holder.incarnation < holder.incarnation {
            *given = new();
        }
        (given.holder == holder).then_some(given)
    }
}

/// Returns whether a holder that named these revisions acts on this revision of a pool's map.
fn acts_on(revisions: &[(PoolId, MapRevision)], pool: PoolId, revision: MapRevision) -> bool {
    let known = revisions.iter().find(|(known, _)| *known == pool);
    known.is_some_and(|(_, known)| revision <= *known)
}

#[cfg(test)]
mod tests;
