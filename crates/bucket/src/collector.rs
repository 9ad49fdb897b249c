//! The collector: gives back what no key names any more. `docs/internals/buckets.md`, rule 5.
//!
//! ```text
//!   s "collector"   format (1): 1 | zeros (7) | holder (8)
//! ```
//!
//! Every gateway runs one, and the one with the lease works; two at once do no harm.
//!
//! Invariants
//!   1. Places are trimmed only once a `u` says that they are garbage, which it then says until it is removed.
//!   2. A `u` is removed only by whoever has seen its trims answered, with the version that was trimmed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use base::Version;
use base::planted::{self, Bug};
use format::disk::bytes::{Reader, Writer};
use objects::listing::PAGE_SIZE_MAX;
use objects::{Assertion, Listed, Listing, Name, ObjectChange, Operation, PageEntry};

use crate::core::{Core, Result, encode};
use crate::door::{Door, DoorError, ListQuery};
use crate::failure::Failure;
use crate::head::BadBytes;
use crate::names::{IndexName, Shards, parts_beside};
use crate::parts::{self, PartKey};
use crate::records::Place;
use crate::strays::{self, Stray, Waste};
use crate::views::{operation, steps};
use crate::waiting::{Taker, result};

/// How often the lease is renewed, or looked at.
const LEASE_RENEWED: Duration = Duration::from_secs(10);
/// A lease that does not change for so long is taken over.
const LEASE_DEAD: Duration = Duration::from_secs(60);
/// How often strays are listed.
const PASS_EVERY: Duration = Duration::from_secs(30);
/// An upload that does not change its stray for so long has ended.
pub(crate) const UPLOAD_DEAD: Duration = Duration::from_secs(20 * 60);
/// How many strays one list returns.
const PAGE: usize = 1000;
/// The most uploads that are watched at once.
const WATCHED_MAX: usize = 100_000;
/// How many strays are given back at once.
const AT_ONCE: usize = 16;

const FORMAT: u8 = 1;

/// A collector of this process.
#[derive(Default)]
pub(crate) struct Collector {
    /// Random bits; 0: none were drawn yet.
    holder: u64,
    /// The lease as it was last seen, and since when it is so.
    lease: Option<(Version, u64)>,
    /// When the lease was last renewed.
    renewed_us: Option<u64>,
    /// Uploads under way: the version of their stray, and since when it is so.
    watched: BTreeMap<Name, (Version, u64)>,
}

/// What a pass over all strays did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Collected {
    /// Strays that were seen.
    pub seen: u64,
    /// Uploads that had ended without a word.
    pub ended: u64,
    /// Strays whose places were given back.
    pub removed: u64,
}

impl<D: Door> Core<D> {
    /// Collects for as long as it is polled.
    pub(crate) async fn collect(self: Arc<Self>) {
        let mut collector = Collector::default();
        let mut passed_us = None;
        loop {
            // Errors are those of the cluster: the next round tries again.
            let has_lease = self.renew_lease(&mut collector).await.unwrap_or(false);
            let is_time = passed_us.is_none_or(|at| self.since(at) >= PASS_EVERY);
            if has_lease && is_time {
                passed_us = Some(self.door.running_us());
                let _ = self.collect_once(&mut collector).await;
            }
            self.door.sleep(LEASE_RENEWED).await;
        }
    }

    /// Renews the lease, or takes it if nobody has it. Returns whether this process has it.
    async fn renew_lease(&self, collector: &mut Collector) -> Result<bool> {
        if collector.holder == 0 {
            collector.holder = self.door.random().max(1);
        }
        let name = encode(&IndexName::Lease("collector".into()))?;
        let now_us = self.door.running_us();
        let assertion = match self.read(&name).await? {
            None => Assertion::Absent,
            Some((stat, data)) => {
                let is_dead = match collector.lease {
                    Some((version, since)) if version == stat.version => {
                        self.since(since) >= LEASE_DEAD
                    }
                    _ => {
                        collector.lease = Some((stat.version, now_us));
                        false
                    }
                };
                if read_lease(&data) != Some(collector.holder) && !is_dead {
                    collector.renewed_us = None;
                    return Ok(false);
                }
                Assertion::Version(stat.version)
            }
        };
        let put = ObjectChange::Put(lease(collector.holder));
        let has_lease = self.door.execute(operation(&name, [assertion], [put])).await.is_ok();
        collector.renewed_us = has_lease.then_some(now_us);
        Ok(has_lease)
    }

    /// Goes over all strays once.
    pub(crate) async fn collect_once(
        self: &Arc<Self>,
        collector: &mut Collector,
    ) -> Result<Collected> {
        let mut collected = Collected::default();
        let mut working: VecDeque<Taker<bool>> = VecDeque::new();
        let mut before = std::mem::take(&mut collector.watched);
        let mut from = Vec::new();
        loop {
            let listing = Listing {
                prefix: b"u".to_vec(),
                from,
                count_max: PAGE,
                size_max: PAGE_SIZE_MAX,
                ..Listing::default()
            };
            let query = ListQuery { shards: Shards::All, listing, skip: 0, with_data: true };
            let page = match self.door.list(query).await {
                Ok(page) => page,
                Err(error) => {
                    collector.watched.append(&mut before);
                    return Err(error.into());
                }
            };
            for entry in page.entries {
                let PageEntry::Key(name, listed) = entry else { continue };
                let Some(name) = Name::new(&name) else { continue };
                collected.seen += 1;
                let judged =
                    self.judge_stray(collector, &mut before, &name, listed, &mut collected).await;
                // Errors are those of one stray: the others are collected.
                if let Ok(Some((version, waste))) = judged {
                    if working.len() >= AT_ONCE {
                        collected.removed += ended(working.pop_front()).await;
                    }
                    let (giver, taker) = result();
                    let core = self.clone();
                    self.door.spawn(async move {
                        giver.give(core.give_back(&name, version, waste).await.is_ok());
                    });
                    working.push_back(taker);
                }
                let is_due = |at| self.since(at) >= LEASE_RENEWED;
                if collector.renewed_us.is_some_and(is_due)
                    && !self.renew_lease(collector).await.unwrap_or(false)
                {
                    // What was not seen in this pass is known still.
                    collector.watched.append(&mut before);
                    return Ok(collected);
                }
            }
            let Some(next) = page.next else { break };
            from = next;
        }
        while !working.is_empty() {
            collected.removed += ended(working.pop_front()).await;
        }
        Ok(collected)
    }

    /// Judges a stray. Returns what is to be given back now: its version and what it names.
    async fn judge_stray(
        &self,
        collector: &mut Collector,
        before: &mut BTreeMap<Name, (Version, u64)>,
        name: &Name,
        listed: Listed,
        collected: &mut Collected,
    ) -> Result<Option<(Version, Waste)>> {
        let version = listed.stat.version;
        let Some(Ok(stray)) = listed.data.as_deref().map(Stray::decode) else { return Ok(None) };
        let known = before.remove(name).filter(|(seen, _)| *seen == version);
        let since_us = known.map_or_else(|| self.door.running_us(), |(_, since)| since);
        let stood = self.since(since_us);
        match stray {
            Stray::Writing(waste) if stood >= self.settings.upload_dead => {
                let mut steps = strays::change(name, version, Some(&Stray::Garbage(waste)));
                if planted::on(Bug::CollectedWithoutVersion) {
                    steps.assertions.clear();
                }
                self.door.execute(Operation { objects: vec![steps] }).await?;
                collected.ended += 1;
                return Ok(None);
            }
            Stray::Garbage(waste) => {
                // Either clock will do: a wrong one must not keep garbage for ever.
                let age_ms = self.wall_ms().saturating_sub(listed.stat.modified);
                let age = stood.max(Duration::from_millis(age_ms));
                if age >= self.settings.grace {
                    return Ok(Some((version, waste)));
                }
            }
            Stray::Writing(_) => {}
        }
        if collector.watched.len() < WATCHED_MAX {
            collector.watched.insert(name.clone(), (version, since_us));
        }
        Ok(None)
    }

    /// Gives back what a stray names, and then removes the stray.
    async fn give_back(&self, name: &Name, version: Version, waste: Waste) -> Result<()> {
        match waste {
            Waste::Places(places) => {
                for place in &places {
                    self.trim(place).await?;
                }
                let steps = strays::change(name, version, None);
                self.door.execute(Operation { objects: vec![steps] }).await?;
                Ok(())
            }
            Waste::AllParts(upload) => self.collect_parts((name, version), upload, false).await,
            Waste::OtherParts(upload) => self.collect_parts((name, version), upload, true).await,
        }
    }

    /// Gives back all parts of an upload, and then the upload; or those that its object does not have, whose
    /// records go. The upload is closed, so nobody adds any. The stray goes last.
    async fn collect_parts(
        &self,
        (stray, version): (&Name, Version),
        upload: u128,
        keeps_named: bool,
    ) -> Result<()> {
        let name = parts_beside(stray, upload)?;
        let damaged = |bad: BadBytes| Failure::Damaged { what: format!("{bad} ({name:?})") };
        let table = match keeps_named {
            true => self.value_of(&name, parts::table()).await?,
            false => None,
        };
        let has_table = table.is_some();
        let table = table.map(|table| parts::read_table(&table)).transpose().map_err(damaged)?;
        let named: BTreeSet<u16> = table.into_iter().flatten().map(|(number, _)| number).collect();
        let is_kept = |key: &PartKey| match key {
            PartKey::Part(number) => named.contains(number),
            PartKey::Writing(..) | PartKey::Garbage(..) => false,
        };
        let (mut from, mut parts_version) = (Vec::new(), None);
        loop {
            let page = self.records_of_upload(&name, Vec::new(), from, PAGE).await?;
            let (records, next, seen) = page;
            parts_version = seen.or(parts_version);
            if keeps_named && !has_table && seen.is_some() {
                let what = format!("a complete upload does not say which parts it has ({name:?})");
                return Err(Failure::Damaged { what });
            }
            let mut changes = Vec::new();
            for (key, value) in records.into_iter().filter(|(key, _)| !is_kept(key)) {
                let places = parts::read_places(key, &value).map_err(damaged)?;
                for place in &places {
                    self.trim(place).await?;
                }
                changes.push(ObjectChange::Unset(key.field()));
            }
            if keeps_named && !changes.is_empty() && seen.is_some() {
                let steps = steps(&name, vec![Assertion::Exists], changes);
                self.door.execute(Operation { objects: vec![steps] }).await?;
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        let mut objects = vec![strays::change(stray, version, None)];
        if let (false, Some(version)) = (keeps_named, parts_version) {
            let assertions = vec![Assertion::Version(version)];
            objects.push(steps(&name, assertions, vec![ObjectChange::Remove]));
        }
        self.door.execute(Operation { objects }).await?;
        Ok(())
    }

    /// Gives a place back. It may be done twice; what is in a container that is gone was given back.
    pub(crate) async fn trim(&self, place: &Place) -> Result<()> {
        let units = place.units();
        match self.door.trim(place.container(), units.start, units.end - units.start).await {
            Ok(()) | Err(DoorError::Gone) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Waits for a stray that is given back. Returns how many were.
async fn ended(working: Option<Taker<bool>>) -> u64 {
    match working {
        Some(taker) => u64::from(taker.take().await == Some(true)),
        None => 0,
    }
}

fn lease(holder: u64) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(FORMAT.into());
    out.u64(holder);
    out.bytes
}

/// Reads what [`lease`] wrote. `None`: it is no lease.
fn read_lease(bytes: &[u8]) -> Option<u64> {
    let mut from = Reader::new(bytes);
    let (format, holder) = (from.u64()?, from.u64()?);
    (format == u64::from(FORMAT) && from.is_at_end()).then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_frozen() {
        let hex: String = lease(0x0102).iter().map(|it| format!("{it:02x}")).collect();
        assert_eq!(hex, "01000000000000000201000000000000");
        assert_eq!(read_lease(&lease(7)), Some(7));
        assert_eq!(read_lease(&[1; 15]), None);
        assert_eq!(read_lease(&[2; 16]), None);
    }
}
