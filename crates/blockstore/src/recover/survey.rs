//! The survey: one pass over all headers in the ring, before anything is replayed. It finds the lsn up to
//! which entries are known to be durable, where the last entry ends, and what earlier recoveries decided.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::{Lsn, PgId, UNIT_SIZE, Version};
use format::disk::{
    Decision, EntryDecodeError, EntryHeader, EntryKind, Superblock, decode_decisions,
};

/// What the survey found.
#[derive(Default)]
pub struct Survey {
    /// Position in the ring of the next chunk.
    position: u64,
    /// Journal read, in bytes.
    pub bytes: u64,
    /// Everything before this lsn is recorded as durable.
    pub acked: Lsn,
    /// Where the last entry of this lap ends.
    pub end: Lsn,
    /// Whether there are entries of a later lap at their proper places: the journal continued after a newer
    /// root was written.
    pub is_ahead: bool,
    /// Decisions of earlier recoveries, each with the lsn of its entry.
    found: Vec<(Lsn, Vec<Decision>)>,
    /// Those of them that are valid, by the lsn of their entry.
    valid: BTreeMap<Lsn, Vec<Decision>>,
    /// Valid cuts and holes, keyed by where they begin: where they end, and whether the chain continues
    /// there.
    pub skips: BTreeMap<Lsn, (Lsn, bool)>,
    /// Entries that earlier recoveries dropped, each with the lsn of the entry that contains the decision.
    drops: BTreeMap<Lsn, Lsn>,
    /// Per PG, the decisions of earlier recoveries to drop versions: the lowest version that is dropped, and
    /// the lsn of the entry that contains the decision.
    tails: BTreeMap<PgId, Vec<(Version, Lsn)>>,
    /// The same for PGs of object pools: the first entry that is dropped, and the entry with the decision.
    pg_tails: BTreeMap<PgId, Vec<(Lsn, Lsn)>>,
    /// Per PG, the highest version that any entry records as committed, as settled, or as the floor.
    committed: BTreeMap<PgId, Version>,
    /// Entries that an earlier recovery recorded as damaged.
    pub damaged: BTreeSet<Lsn>,
    /// Batches and pages that an earlier recovery recorded as lost.
    pub lost: BTreeSet<Lsn>,
}

/// Returns the lsn of a position in the ring, in the lap that begins at `from`.
pub fn lsn_at(position: u64, from: Lsn, size: u64) -> Lsn {
    let lap = from.get() - from.get() % size;
    let lsn = lap + position;
    Lsn::new(if lsn < from.get() { lsn + size } else { lsn })
}

/// Whether the entry is at its proper place in the ring, but of a later lap than `lsn`.
fn is_later_lap(header: &EntryHeader, lsn: Lsn, size: u64) -> bool {
    header.lsn > lsn && header.lsn.since(lsn).is_multiple_of(size)
}

/// Whether the entry is a prepared or skipped version in the order of its PG. Versions prepared by peering
/// are outside that order.
pub fn is_in_order(header: &EntryHeader) -> bool {
    let is_version = header.kind.is_prepared() || header.kind == EntryKind::Skip;
    is_version && header.replaces.is_none()
}

/// Returns the units of an entry's data that do not match their checksums, counted from the first unit of the
/// data. Empty if `data` is empty.
pub fn bad_units(header: &EntryHeader, data: &[u8]) -> format::disk::UnitSet {
    let mut bad = format::disk::UnitSet::EMPTY;
    if data.is_empty() {
        return bad;
    }
    for (index, (position, checksum)) in header.data_positions().zip(&header.checksums).enumerate()
    {
        let start = position as usize * UNIT_SIZE as usize;
        if base::crc32c(&data[start..start + UNIT_SIZE as usize]) != *checksum {
            bad.insert(index as u32);
        }
    }
    bad
}

/// Returns the inline data of an entry whose bytes begin at `bytes`.
pub fn inline_data<'a>(header: &EntryHeader, bytes: &'a [u8], sector_size: u32) -> &'a [u8] {
    let from = header.header_size(sector_size) as usize;
    &bytes[from..from + header.data_size() as usize]
}

impl Survey {
    /// Returns where in the ring the next chunk begins.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Examines the next chunk of the ring. `from`: where replay will begin.
    pub fn look(&mut self, bytes: &[u8], superblock: &Superblock, from: Lsn) {
        let looked = self.look_at(bytes, superblock, from);
        assert!(looked > 0);
        self.bytes += bytes.len() as u64;
        self.position += looked;
    }

    /// Examines a chunk, and returns how many bytes of it were examined.
    fn look_at(&mut self, bytes: &[u8], superblock: &Superblock, from: Lsn) -> u64 {
        let sector = superblock.sector_size as usize;
        let is_last = self.position + bytes.len() as u64 == superblock.journal.size;
        let mut at = 0;
        while at < bytes.len() {
            let lsn = lsn_at(self.position + at as u64, from, superblock.journal.size);
            let rest = &bytes[at..];
            match EntryHeader::decode(rest, superblock.store.tag(), superblock.sector_size) {
                Ok((header, _)) if header.lsn == lsn => {
                    if header.kind == EntryKind::Recovery && rest.len() < header.size as usize {
                        // The next chunk begins with this entry, and contains all of it.
                        return at as u64;
                    }
                    self.note(&header, rest, superblock.sector_size);
                    at += header.size as usize;
                }
                Ok((header, _)) if is_later_lap(&header, lsn, superblock.journal.size) => {
                    self.is_ahead = true;
                    at += sector;
                }
                Err(EntryDecodeError::NeedMore(_)) if !is_last && at > 0 => return at as u64,
                _ => at += sector,
            }
        }
        at as u64
    }

    fn note(&mut self, header: &EntryHeader, bytes: &[u8], sector_size: u32) {
        self.acked = self.acked.max(header.durable);
        self.end = self.end.max(header.lsn.advance(header.size as u64));
        let committed = match header.kind {
            EntryKind::Settle | EntryKind::Floor => header.version,
            _ => header.committed,
        };
        if let (Some(pg), true) = (header.pg, committed > Version::ZERO) {
            let known = self.committed.entry(pg).or_default();
            *known = committed.max(*known);
        }
        if header.kind != EntryKind::Recovery {
            return;
        }
        let data = inline_data(header, bytes, sector_size);
        if bad_units(header, data).is_empty()
            && let Some(decisions) = decode_decisions(&data[..header.length as usize])
        {
            self.found.push((header.lsn, decisions));
        }
    }

    /// Returns the lsn of the entry with an earlier recovery's decision to drop this entry.
    pub fn dropped_by(&self, header: &EntryHeader) -> Option<Lsn> {
        let of_tail = || {
            let tails = self.tails.get(&header.pg.filter(|_| is_in_order(header))?)?;
            let mut tails = tails.iter();
            let is_it = |(from, by): &&(Version, Lsn)| header.version >= *from && header.lsn < *by;
            tails.find(is_it).map(|(_, by)| *by)
        };
        let of_pg_tail = || {
            let in_order = header.kind.has_body() || header.key.is_some();
            let mut tails = self.pg_tails.get(&header.pg.filter(|_| in_order)?)?.iter();
            let is_it = |(from, by): &&(Lsn, Lsn)| *from <= header.lsn && header.lsn < *by;
            tails.find(is_it).map(|(_, by)| *by)
        };
        self.drops.get(&header.lsn).copied().or_else(of_tail).or_else(of_pg_tail)
    }

    /// Whether the entry is a prepared version that some entry records as committed. A commit holds for all
    /// members, whatever happened to the entry that records it. Not a copy: while that is not durable,
    /// recovery reads the version itself.
    pub fn is_committed(&self, header: &EntryHeader) -> bool {
        let committed = header.pg.and_then(|pg| self.committed.get(&pg));
        let is_first = header.kind.is_prepared() && !header.flags.is_copy;
        is_first && committed.is_some_and(|upto| header.version <= *upto)
    }

    /// Keeps the valid decisions: those in entries that no later recovery cut off. An entry that was cut off
    /// cuts nothing off itself: the recovery that cut it off repeated what it followed.
    pub fn settle(&mut self) {
        let mut found = std::mem::take(&mut self.found);
        found.sort_by_key(|(by, _)| *by);
        let mut cuts: Vec<Range<Lsn>> = Vec::new();
        for (by, decisions) in found.into_iter().rev() {
            if cuts.iter().any(|cut| cut.contains(&by)) {
                continue;
            }
            cuts.extend(decisions.iter().filter_map(|decision| match decision {
                Decision::Cut { from, to } => Some(*from..*to),
                _ => None,
            }));
            self.valid.insert(by, decisions);
        }
        for (by, decisions) in &self.valid {
            for decision in decisions {
                match *decision {
                    Decision::Cut { from, to } => drop(self.skips.insert(from, (to, true))),
                    Decision::Hole { from, to } => drop(self.skips.insert(from, (to, false))),
                    Decision::Drop(lsn) => drop(self.drops.insert(lsn, *by)),
                    Decision::Tail { pg, from } => {
                        self.tails.entry(pg).or_default().push((from, *by));
                    }
                    Decision::Damaged(lsn) => drop(self.damaged.insert(lsn)),
                    Decision::Lost(lsn) => drop(self.lost.insert(lsn)),
                    Decision::PgTail { pg, from } => {
                        self.pg_tails.entry(pg).or_default().push((from, *by));
                    }
                }
            }
        }
    }

    /// Returns decisions that a cut from `from` on makes invalid, although they are about entries before it.
    /// This recovery followed them, so it must repeat them.
    pub fn decisions_lost_by_cut(&self, from: Lsn) -> Vec<Decision> {
        let lost = self.valid.range(from..).flat_map(|(_, decisions)| decisions);
        let concerns_rest = |decision: &&Decision| match **decision {
            Decision::Cut { from: lsn, .. } | Decision::Hole { from: lsn, .. } => lsn < from,
            Decision::Drop(lsn) | Decision::Damaged(lsn) | Decision::Lost(lsn) => lsn < from,
            // The entries of which the tail counts lie before the cut, so the same ones are dropped.
            Decision::Tail { .. } => true,
            Decision::PgTail { from: lsn, .. } => lsn < from,
        };
        lost.filter(concerns_rest).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PG: PgId = PgId { pool: base::PoolId::FIRST, number: 3 };

    fn cut(from: u64, to: u64) -> Decision {
        Decision::Cut { from: Lsn::new(from), to: Lsn::new(to) }
    }

    fn hole(from: u64, to: u64) -> Decision {
        Decision::Hole { from: Lsn::new(from), to: Lsn::new(to) }
    }

    /// Returns a survey that found these entries with decisions, in this order of places.
    fn survey<const N: usize>(found: [(u64, Vec<Decision>); N]) -> Survey {
        let found = found.into_iter().map(|(lsn, decisions)| (Lsn::new(lsn), decisions)).collect();
        let mut survey = Survey { found, ..Survey::default() };
        survey.settle();
        survey
    }

    #[test]
    fn an_entry_that_was_cut_off_cuts_nothing_off() {
        let first = (100, vec![cut(40, 100)]);
        let second = (200, vec![cut(90, 190)]);
        let third = (300, vec![cut(150, 300)]);
        let begins = |survey: Survey| survey.skips.keys().map(|lsn| lsn.get()).collect::<Vec<_>>();
        assert_eq!(begins(survey([second.clone(), first.clone()])), [90]);
        assert_eq!(begins(survey([third, first, second])), [40, 150]);
    }

    #[test]
    fn decisions_about_what_a_cut_keeps_are_repeated() {
        let (below, above) = (Lsn::new(149), Lsn::new(150));
        let version = Version { epoch: base::Epoch::new(2), counter: 7 };
        let kept = [
            cut(30, 60),
            hole(70, 80),
            Decision::Drop(below),
            Decision::Damaged(below),
            Decision::Lost(below),
            Decision::Tail { pg: PG, from: version },
        ];
        let gone = [
            cut(150, 160),
            hole(170, 180),
            Decision::Drop(above),
            Decision::Damaged(above),
            Decision::Lost(above),
        ];
        let earlier = (100, vec![Decision::Drop(Lsn::new(20))]);
        let survey = survey([(200, [&kept[..], &gone[..]].concat()), earlier]);
        assert_eq!(survey.decisions_lost_by_cut(Lsn::new(150)), kept);
        assert_eq!(survey.decisions_lost_by_cut(Lsn::new(201)), []);
    }
}
