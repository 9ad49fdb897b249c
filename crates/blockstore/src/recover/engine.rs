//! The engine in recovery: what becomes of its families, and what it lost. See rules 10 to 18 of
//! `docs/internals/objects.md`.
//!
//! ```text
//!   survey: what the engine has was durable ─▶ replay notes families, and where entries are that the engine lacks
//!     ─▶ plan: rows h, i, j ─▶ decisions are durable ─▶ the second reading gives the engine what it lacks ─▶ Opened
//! ```
//!
//! Rows, each counted for each family:
//!
//! ```text
//! h   the family has less than the root says, or is missing: the PGs of its pool are suspect, a checkpoint follows
//! i   nobody knows of the family: a removed pool left it
//! j   a compaction met damage in the family: it is not compacted any more
//! ```
//!
//! Invariants
//!   1. The second reading meets the entries that the first one met, and no other.
//!   2. An entry is given to the engine only if its family, as it is found or made, cannot have it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use base::planted::{self, Bug};
use base::{Buffer, Lsn, PgId, PoolId};
use format::disk::{Body, EntryHeader, EntryKind, FamilyRecord};
use format::engine::{Compression, FamilyFound};

use super::{CHUNK_SIZE, Progress, Recovery};
use crate::EngineFound;
use crate::disk::{Io, Purpose};
use crate::parts::Parts;
use crate::pending::{EntryPlace, FamilyStart, Pending};

/// Bytes of entries that wait for the engine at most; beyond that, the second reading waits.
const UNDER_WAY_SIZE_MAX: usize = 8 << 20;

/// Why a store cannot be opened with an engine that knows a journal of another time. For the operator.
const ENGINE_AHEAD: &str = "\
    the engine has entries that this journal cannot have had: one of the two was replaced by a copy \
    of another time. Start the OSD with the engine and the disk that belong together";

/// Why a store cannot be opened without the engine that its superblock names. For the operator.
pub(crate) const ENGINE_NEEDED: &str =
    "this store has object pools, and needs the engine with their records";

/// What becomes of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FamilyPlan {
    pub pool: PoolId,
    /// What the engine has, if that is to stay.
    pub kept: Option<FamilyFound>,
    /// The entry of the creation, if the engine does not have its lsn.
    pub unwritten: Option<EntryPlace>,
    /// Whether what the engine has is removed first.
    pub is_removed: bool,
    /// With which compression the family is created, and its entry, if the journal has one.
    pub created: Option<(Compression, Option<EntryPlace>)>,
    /// Row `h`: records were lost that the journal does not have any more.
    pub is_behind: bool,
    /// Row `i`: neither root nor journal know of it.
    pub is_stray: bool,
    /// Entries up to this lsn are not for it.
    pub lsn: Lsn,
}

/// Decides what becomes of a family. `named`: what the root says of it; `last`: its last creation or removal
/// in the journal.
fn plan_family(
    pool: PoolId,
    found: Option<FamilyFound>,
    named: Option<FamilyRecord>,
    last: Option<(EntryPlace, Option<Compression>)>,
) -> Option<FamilyPlan> {
    let found_lsn = found.map_or(Lsn::ZERO, |found| found.lsn);
    let (compression, from, place) = match (last, named) {
        // Whatever is behind the removal was created by an entry that is lost.
        (Some((place, None)), _) if found_lsn > place.lsn => (found?.compression, Lsn::ZERO, None),
        // It was created anew, too, and the root names it.
        (Some((place, None)), Some(named)) if named.flushed > place.lsn => {
            (named.compression, place.lsn, None)
        }
        (Some((_, None)), _) => {
            found?;
            let lsn = Lsn::new(u64::MAX);
            return Some(FamilyPlan { is_removed: true, lsn, ..FamilyPlan::nothing(pool) });
        }
        (Some((place, Some(compression))), _) => (compression, place.lsn, Some(place)),
        (None, Some(named)) => (named.compression, Lsn::ZERO, None),
        (None, None) => {
            let lsn = Lsn::new(u64::MAX);
            return found.map(|found| FamilyPlan {
                kept: Some(found),
                is_stray: true,
                lsn,
                ..FamilyPlan::nothing(pool)
            });
        }
    };
    // A family with a lsn below its creation is an earlier one of this pool; without batches it has none.
    let is_it = |found: &FamilyFound| {
        found.compression == compression && (found.lsn == Lsn::ZERO || found.lsn >= from)
    };
    let kept = found.filter(is_it);
    let kept_lsn = kept.map_or(Lsn::ZERO, |kept| kept.lsn);
    let flushed = named.map_or(Lsn::ZERO, |named| named.flushed);
    // What the root says of an earlier family of this pool says nothing of this one.
    let is_of_this = named.is_some() && (flushed >= from);
    // While the journal has the creation, it has all that came behind it. (The second reading begins at the
    // first entry that the engine lacks, so it would not meet all for one that is removed, and was further.)
    let has_all = place.is_some() && (kept.is_some() || found_lsn <= from);
    let is_behind = is_of_this && !has_all && (kept.is_none() || kept_lsn < flushed);
    Some(FamilyPlan {
        kept,
        unwritten: place.filter(|place| kept.is_some() && kept_lsn < place.lsn),
        is_removed: found.is_some() && kept.is_none(),
        created: kept.is_none().then_some((compression, place)),
        is_behind: is_behind && !planted::on(Bug::EngineBehindBelieved),
        lsn: kept_lsn.max(from),
        ..FamilyPlan::nothing(pool)
    })
}

/// Whether the engine may need the records of this entry.
pub(super) fn lacks(engine: &Option<EngineFound>, header: &EntryHeader) -> bool {
    let Some(pg) = header.pg.filter(|_| header.kind.has_body()) else { return false };
    let families = engine.iter().flat_map(|engine| &engine.families);
    families.into_iter().all(|found| found.family != pg.pool || header.lsn > found.lsn)
}

impl FamilyPlan {
    fn nothing(pool: PoolId) -> FamilyPlan {
        FamilyPlan {
            pool,
            kept: None,
            unwritten: None,
            is_removed: false,
            created: None,
            is_behind: false,
            is_stray: false,
            lsn: Lsn::ZERO,
        }
    }
}

impl Recovery {
    fn families_found(&self) -> &[FamilyFound] {
        self.engine.as_ref().map_or(&[], |engine| &engine.families)
    }

    fn found(&self, pool: PoolId) -> Option<FamilyFound> {
        self.families_found().iter().find(|found| found.family == pool).copied()
    }

    /// Counts as durable what the engine has: it got only what was.
    pub(super) fn count_engine_as_durable(&mut self) -> Progress {
        let highest = self.families_found().iter().map(|found| found.lsn).max();
        let highest = highest.filter(|lsn| *lsn > Lsn::ZERO);
        let Some(highest) = highest.filter(|_| !planted::on(Bug::EngineNotCountedAsDurable)) else {
            return Ok(());
        };
        let parts = self.parts();
        let behind = highest.advance(u64::from(parts.superblock.sector_size));
        let room = parts.superblock.journal.size - crate::journal::IDLE_RESERVE;
        if behind > parts.root.replay.advance(room) {
            return Err(ENGINE_AHEAD.to_owned());
        }
        self.survey.acked = self.survey.acked.max(behind);
        Ok(())
    }

    /// Whether the entry marks a family that the engine has, or had: see [`EngineReplay::take`].
    fn is_mark(&self, header: &EntryHeader) -> bool {
        let Some(pg) = header.pg.filter(|_| header.kind == EntryKind::Suspect) else {
            return false;
        };
        match self.found(pg.pool) {
            Some(found) => header.lsn > found.lsn,
            None => {
                self.families_named.iter().any(|named| named.family == pg.pool)
                    || self.replay.families.contains_key(&pg.pool)
            }
        }
    }

    /// Returns a PG of each family that is behind and would not be marked, because all its PGs are suspect
    /// already, or the whole store.
    pub(super) fn marks(&self) -> BTreeSet<PgId> {
        let behind = self.families.iter().filter(|family| family.is_behind);
        let unmarked = behind
            .map(|family| family.pool)
            .filter(|pool| self.suspects.iter().all(|pg| pg.pool != *pool));
        let first = |pool| self.parts().pgs_known().filter(|pg| pg.pool == pool).min();
        unmarked.filter_map(first).collect()
    }

    /// Notes what an entry means for the engine, from the first one on that it may lack.
    pub(super) fn note_for_engine(&mut self, header: &EntryHeader) {
        let lacks = lacks(&self.engine, header) || self.is_mark(header);
        let replay = &mut self.replay;
        let end = header.lsn.advance(u64::from(header.size));
        if let (EntryKind::Family, Some(pg)) = (header.kind, header.pg) {
            let place = EntryPlace { lsn: header.lsn, end, previous: header.previous };
            replay.families.insert(pg.pool, (place, header.compression()));
            let parts = self.parts.as_mut().expect("the superblock is known");
            parts.blocks.leave_uncounted(pg.pool);
        }
        match replay.walked.last_mut() {
            Some(walked) if walked.end == header.lsn => walked.end = end,
            None if !lacks => {}
            _ => replay.walked.push(header.lsn..end),
        }
    }

    /// Decides what becomes of all families, when the journal is known.
    pub(super) fn plan_families(&mut self) {
        let named: BTreeMap<PoolId, FamilyRecord> =
            self.families_named.iter().map(|named| (named.family, *named)).collect();
        let found = self.families_found().iter().map(|found| found.family);
        let pools: BTreeSet<PoolId> = found
            .chain(named.keys().copied())
            .chain(self.replay.families.keys().copied())
            .collect();
        let plan = |pool: PoolId| {
            let last = self.replay.families.get(&pool).copied();
            plan_family(pool, self.found(pool), named.get(&pool).copied(), last)
        };
        self.families = pools.into_iter().filter_map(plan).collect();
        for index in 0..self.families.len() {
            let FamilyPlan { is_behind, is_stray, kept, .. } = self.families[index];
            let is_damaged = kept.is_some_and(|kept| kept.is_damaged);
            for (row, _) in [('h', is_behind), ('i', is_stray), ('j', is_damaged)]
                .into_iter()
                .filter(|(_, applies)| *applies)
            {
                self.count_row(row);
            }
            // Its root says what there is, so that the next start does not find the same again.
            self.parts_mut().wants_checkpoint |= is_behind;
        }
    }

    /// Refuses to open a store without its engine, unless that holds nothing: neither root nor journal names
    /// a family, and nothing was lost that may have named one.
    pub(super) fn check_engine(&self) -> Progress {
        let superblock = &self.parts().superblock;
        if superblock.engine.is_none() || self.engine.is_some() {
            return Ok(());
        }
        let is_damaged = superblock.suspect.is_some()
            || self.rows.keys().any(|row| crate::decide::is_suspicious(*row));
        match self.families.is_empty() && !is_damaged {
            true => Ok(()),
            false => Err(ENGINE_NEEDED.to_owned()),
        }
    }

    /// Returns the families, and what the engine gets before the store opens.
    pub(super) fn engine_replay(&mut self, parts: &Parts) -> (Pending, Box<EngineReplay>) {
        let start = |plan: &FamilyPlan| {
            // What is to be removed is there, too.
            let found = plan.kept.or_else(|| self.found(plan.pool).filter(|_| plan.is_removed))?;
            Some(FamilyStart {
                pool: plan.pool,
                compression: found.compression,
                lsn: found.lsn,
                is_named: !plan.is_stray,
                is_damaged: found.is_damaged,
            })
        };
        let mut pending = Pending::open(self.families.iter().filter_map(start));
        for plan in &self.families {
            if plan.is_removed {
                pending.push_removal_found(plan.pool);
            }
            if let Some(place) = plan.unwritten {
                pending.push(plan.pool, place, Vec::new());
            }
            if let Some((compression, place)) = plan.created {
                pending.push_creation(plan.pool, place, compression, None);
            }
        }
        let replay = EngineReplay {
            ranges: std::mem::take(&mut self.replay.walked).into(),
            kept_back: std::mem::take(&mut self.replay.kept_from_engine),
            above: self.families.iter().map(|plan| (plan.pool, plan.lsn)).collect(),
            sector_size: parts.superblock.sector_size,
            store_tag: parts.superblock.store.tag(),
            is_reading: false,
        };
        (pending, Box::new(replay))
    }
}

/// The second reading: gives the engine what it lost.
#[derive(Default)]
pub struct EngineReplay {
    /// What is still to be read: whole entries, one behind the other.
    ranges: VecDeque<Range<Lsn>>,
    /// Entries of which the engine gets nothing: their bodies are lost, or they were dropped.
    kept_back: BTreeSet<Lsn>,
    /// Per family: only later entries are for it.
    above: BTreeMap<PoolId, Lsn>,
    sector_size: u32,
    store_tag: u64,
    is_reading: bool,
}

impl EngineReplay {
    pub fn is_done(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Reads the next chunk, unless the engine has enough to do.
    pub fn advance(&mut self, parts: &Parts, pending: &Pending, io: &mut Io<'_>) -> Progress {
        let Some(range) = self.ranges.front() else { return Ok(()) };
        if self.is_reading || pending.size() >= UNDER_WAY_SIZE_MAX {
            return Ok(());
        }
        let journal = &parts.journal;
        let rest = journal.size() - range.start.get() % journal.size();
        let size = CHUNK_SIZE.min(rest).min(range.end.since(range.start));
        self.is_reading = true;
        io.read(Purpose::RecoveryRead, journal.place(range.start), size as usize);
        Ok(())
    }

    /// Handles a chunk that was read.
    pub fn on_read(&mut self, buffer: Buffer, parts: &Parts, pending: &mut Pending) -> Progress {
        self.is_reading = false;
        let range = self.ranges.pop_front().expect("it is being read");
        let mut at = 0;
        while at < buffer.len() {
            let rest = &buffer[at..];
            let lsn = range.start.advance(at as u64);
            let decoded = EntryHeader::decode(rest, self.store_tag, self.sector_size);
            let Some((header, _)) = decoded.ok().filter(|(header, _)| header.lsn == lsn) else {
                if at > 0 {
                    // The next chunk begins with this entry.
                    break;
                }
                return Err(unreadable());
            };
            let size = header.size as usize;
            let is_whole = header.kind == EntryKind::Pad || size <= rest.len();
            if !is_whole {
                break;
            }
            self.take(&header, rest, pending)?;
            at += size;
        }
        if at == 0 {
            return Err(unreadable());
        }
        let next = range.start.advance(at as u64);
        assert!(next <= range.end && parts.journal.tail() >= range.end);
        if next < range.end {
            self.ranges.push_front(next..range.end);
        }
        Ok(())
    }

    /// Takes what an entry has for the engine. Where a PG was made suspect, its family gets an empty batch
    /// with the lsn of that entry: when that is flushed, the root names a lsn that no other copy of the
    /// engine has, be it older or newer than the one that was found behind.
    fn take(&mut self, header: &EntryHeader, bytes: &[u8], pending: &mut Pending) -> Progress {
        let is_mark = header.kind == EntryKind::Suspect;
        let Some(pg) = header.pg.filter(|_| header.kind.has_body() || is_mark) else {
            return Ok(());
        };
        let is_for_it = self.above.get(&pg.pool).is_some_and(|above| header.lsn > *above);
        if !is_for_it || self.kept_back.contains(&header.lsn) {
            return Ok(());
        }
        let end = header.lsn.advance(u64::from(header.size));
        let place = EntryPlace { lsn: header.lsn, end, previous: header.previous };
        if is_mark {
            pending.push(pg.pool, place, Vec::new());
            return Ok(());
        }
        let Some(body) = Body::decode(header, header.body(bytes)) else { return Err(unreadable()) };
        if !body.records.is_empty() {
            pending.push(pg.pool, place, body.records);
        }
        Ok(())
    }
}

fn unreadable() -> String {
    let reason = "the journal could be read a moment ago and cannot be read now: check the disk, \
                  then start this OSD again";
    reason.to_owned()
}

#[cfg(test)]
mod tests {
    use base::Checksum;

    use super::*;

    /// A pool's family was removed and created anew; the entry of the creation is lost, and so is the engine,
    /// or an older one was put back.
    #[test]
    fn a_family_that_the_root_names_behind_a_removal_is_behind() {
        let (pool, compression) = (PoolId::FIRST, Compression::Lz4);
        let removal =
            EntryPlace { lsn: Lsn::new(30), end: Lsn::new(31), previous: Checksum::ZERO_UNIT };
        let named = |lsn| FamilyRecord { family: pool, compression, flushed: Lsn::new(lsn) };
        let found =
            |lsn| FamilyFound { family: pool, compression, lsn: Lsn::new(lsn), is_damaged: false };
        let plan = |found, named| plan_family(pool, found, named, Some((removal, None)));
        let lost = plan(None, Some(named(50))).expect("it is made anew");
        assert!(lost.is_behind && lost.created.is_some() && lost.lsn >= removal.lsn);
        // What was removed is not taken for it.
        let old = plan(Some(found(20)), Some(named(50))).expect("it is made anew");
        assert!(old.is_behind && old.is_removed && old.kept.is_none());
        assert!(!plan(Some(found(60)), Some(named(50))).expect("it is there").is_behind);
        // The root is older than the removal.
        assert_eq!(plan(None, Some(named(20))), None);
        assert!(plan(Some(found(20)), Some(named(20))).expect("it goes").is_removed);
    }
}
