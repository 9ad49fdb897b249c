//! Compares the bytes of a stripe's parts, unit by unit, and makes the units that are wrong.
//!
//! ```text
//!   row of units ──▶ those that can be read form a code word? ──yes──▶ the others are made of k of them
//!                                                              └──no──▶ the one without which they do, if it is
//!                                                                       parity; else nobody decides
//! ```
//!
//! Invariants
//!   1. A unit is made only of units that form a code word, as far as that shows.
//!   2. If one row cannot be decided, nothing of the stripe is made.
//!   3. A unit of data that matches its checksum is never replaced: all parity parts get the same differences, so
//!      one wrong difference makes all of them say that the data is wrong.

mod choice;

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{BlockSize, BufferPool, Checksum, Position, UNIT_SIZE};
use erasure::{Decoder, Verdict};
use format::wire::Content;

use super::Stripes;
use super::agree::{Compared, add_counts};
use super::part::{Part, UnitData};
use crate::face::{Fault, FaultKind, Seen, SeenKey, UnitSeen};
use crate::units::Units;

pub use self::choice::Chosen;

const ZEROS: [u8; UNIT_SIZE as usize] = [0; UNIT_SIZE as usize];

/// What is wrong with a stripe, and what repairs it.
pub struct Judged {
    /// The faults, by member.
    pub faults: Vec<(usize, Fault)>,
    /// What members get. `None`: it cannot be decided which content is right.
    pub remedy: Option<Vec<(usize, Content)>>,
}

/// A stripe whose parts were read.
pub struct CodeWord<'a> {
    pub stripes: &'a Stripes,
    /// The position of each member, in order.
    pub positions: &'a [Position],
    /// What each member said it holds, before its data was read.
    pub seen: &'a [Seen],
    /// What was read of each member; `None`: it holds nothing.
    pub parts: &'a [Option<Part>],
    pub block_size: BlockSize,
    pub buffers: &'a BufferPool,
}

/// The state of one row of units.
enum Row {
    /// The units that can be read belong together, except those of `wrong`.
    Sound { sources: Vec<usize>, wrong: Option<usize> },
    /// The units contradict each other, and nobody decides which of the suspects are wrong.
    Open { suspects: Vec<usize> },
}

/// The units that must be made, and those that cannot, by member.
struct Made {
    units: Vec<BTreeMap<u32, Option<UnitData>>>,
    differing: Vec<Units>,
    damaged: Vec<Units>,
    lost: Vec<Units>,
    /// Lost units that the others make with another checksum than their member named.
    unmatched: Vec<Units>,
    /// Whether the units of a row contradict each other.
    is_open: bool,
}

impl Made {
    /// Returns whether it is decided what every unit must hold.
    fn is_decided(&self) -> bool {
        !self.is_open && self.unmatched.iter().all(Units::is_empty)
    }
}

impl CodeWord<'_> {
    /// Judges the stripe. `compared`: the comparison of what was read, without its data.
    pub fn judge(&self, compared: Compared) -> Judged {
        let mut faults = compared.faults.clone();
        if compared.table.is_none() {
            add_counts(&mut faults, FaultKind::Damaged, &compared.damaged);
            return Judged { faults, remedy: None };
        }
        let made = self.make(&compared);
        add_counts(&mut faults, FaultKind::Damaged, &made.damaged);
        add_counts(&mut faults, FaultKind::Differs, &made.differing);
        add_counts(&mut faults, FaultKind::Lost, &made.lost);
        let remedy = made.is_decided().then(|| self.remedy(&compared, made));
        Judged { faults, remedy: remedy.filter(|contents| !contents.is_empty()) }
    }

    /// Returns the bytes of a member's unit. Requires: it was read there, or the member holds nothing.
    fn bytes(&self, index: usize, unit: u32) -> &[u8] {
        let part = self.parts[index].as_ref();
        part.and_then(|part| part.bytes(unit)).unwrap_or(&ZEROS)
    }

    /// Returns the members whose unit can be used, unless it does not fit the others.
    fn readable(&self, compared: &Compared, unit: u32) -> Vec<usize> {
        let is_readable = |index: &usize| {
            let wrong = compared.damaged[*index].with(&compared.differing[*index]);
            let takes_stale = planted::on(Bug::PartMadeOfStale) && self.parts[*index].is_some();
            let has_part = (!compared.whole.has(*index) || takes_stale) && !wrong.has(unit);
            // A member whose part was never written holds zeros.
            has_part && self.parts[*index].as_ref().is_none_or(|part| part.units.has(unit))
        };
        (0..self.positions.len()).filter(is_readable).collect()
    }

    /// Returns what the members hold of a row of units.
    fn row(&self, members: Vec<usize>, unit: u32, decoders: &mut Decoders) -> Row {
        let bytes = |index: usize| self.bytes(index, unit);
        let data_count = self.stripes.data_count();
        if members.len() <= data_count {
            return Row::Sound { sources: members, wrong: None };
        }
        if members.len() == self.stripes.part_count() {
            let mut parts: Vec<(Position, &[u8])> =
                members.iter().map(|index| (self.positions[*index], bytes(*index))).collect();
            parts.sort_unstable_by_key(|(position, _)| *position);
            let parts: Vec<&[u8]> = parts.into_iter().map(|(_, bytes)| bytes).collect();
            let wrong = match self.stripes.code().find_wrong(&parts) {
                Verdict::Consistent => None,
                Verdict::Wrong { part } if !planted::on(Bug::WrongPartNotSearched) => Some(part),
                Verdict::Wrong { .. } | Verdict::Undecided => {
                    return Row::Open { suspects: members };
                }
            };
            let is_wrong = |index: &usize| Some(self.positions[*index].index()) == wrong;
            let wrong = members.iter().copied().find(is_wrong);
            return match wrong {
                Some(wrong) => self.row_without(members, wrong),
                None => Row::Sound { sources: members, wrong: None },
            };
        }
        let is_code_word = |members: &[usize], decoders: &mut Decoders| {
            let (sources, others) = members.split_at(data_count);
            others
                .iter()
                .all(|wanted| self.decode(sources, *wanted, unit, decoders) == bytes(*wanted))
        };
        if is_code_word(&members, decoders) {
            return Row::Sound { sources: members, wrong: None };
        }
        let without = |wrong: usize| -> Vec<usize> {
            members.iter().copied().filter(|index| *index != wrong).collect()
        };
        // Any `k` units form a code word: that says nothing.
        let is_told = members.len() > data_count + 1 && !planted::on(Bug::WrongPartNotSearched);
        let mut candidates = members.iter().copied().filter(|_| is_told);
        let mut fits = candidates.by_ref().filter(|it| is_code_word(&without(*it), decoders));
        match (fits.next(), fits.next()) {
            (Some(wrong), None) => self.row_without(members, wrong),
            _ => Row::Open { suspects: members },
        }
    }

    /// Returns the state of a row that is a code word without this member's unit. If that unit is data, all
    /// parity may be wrong instead.
    fn row_without(&self, mut members: Vec<usize>, wrong: usize) -> Row {
        let is_data = |index: usize| self.stripes.is_data(self.positions[index]);
        if is_data(wrong) {
            members.retain(|index| *index == wrong || !is_data(*index));
            return Row::Open { suspects: members };
        }
        members.retain(|index| *index != wrong);
        Row::Sound { sources: members, wrong: Some(wrong) }
    }

    /// Returns a unit of a member, made of those of others, at least `k`.
    fn decode(
        &self,
        sources: &[usize],
        wanted: usize,
        unit: u32,
        decoders: &mut Decoders,
    ) -> Vec<u8> {
        let positions = sources.iter().map(|index| self.positions[*index].index());
        let positions: Vec<usize> = positions.collect();
        let decoder = decoders.get(self.stripes, positions, self.positions[wanted].index());
        let parts = decoder.sources().iter().map(|position| {
            let is_source = |index: &&usize| self.positions[**index].index() == *position;
            let index = sources.iter().find(is_source).expect("it is one of the sources");
            self.bytes(*index, unit)
        });
        let parts: Vec<&[u8]> = parts.collect();
        let mut bytes = vec![0; UNIT_SIZE as usize];
        decoder.decode(&parts, &mut [&mut bytes]);
        bytes
    }

    /// Judges all rows, and makes the units that are wrong.
    fn make(&self, compared: &Compared) -> Made {
        let count = self.positions.len();
        let none = vec![Units::default(); count];
        let mut made = Made {
            units: vec![BTreeMap::new(); count],
            differing: compared.differing.clone(),
            damaged: compared.damaged.clone(),
            lost: none.clone(),
            unmatched: none,
            is_open: false,
        };
        let mut decoders = Decoders::default();
        for unit in 0..self.block_size.unit_count() {
            let members = self.readable(compared, unit);
            let is_wrong = |index: &usize| !members.contains(index);
            let mut wrong: Vec<usize> = (0..count).filter(is_wrong).collect();
            let written = |index: usize| compared.written(self.positions[index]).has(unit);
            let is_written = (0..count).any(written);
            if !is_written && wrong.is_empty() {
                continue;
            }
            let sources = match self.row(members, unit, &mut decoders) {
                Row::Sound { sources, wrong: found } => {
                    wrong.extend(found);
                    found.into_iter().for_each(|index| made.differing[index].add(unit));
                    sources
                }
                Row::Open { suspects } => {
                    made.is_open = true;
                    suspects.into_iter().for_each(|index| made.differing[index].add(unit));
                    continue;
                }
            };
            for index in wrong {
                if !written(index) {
                    let is_told = sources.len() >= self.stripes.data_count();
                    if !is_told && !compared.whole.has(index) && self.has_data(index, unit) {
                        // Only tables say that there is no data. What can be read is kept.
                        continue;
                    }
                    if is_told
                        && self.has_or_lost(index, unit)
                        && self.decode(&sources, index, unit, &mut decoders) != ZEROS
                    {
                        // The tables are wrong: parity was computed from data there.
                        made.is_open = true;
                        sources.iter().for_each(|index| made.differing[*index].add(unit));
                    }
                    made.units[index].insert(unit, None);
                } else if sources.len() < self.stripes.data_count() {
                    made.lost[index].add(unit);
                    made.damaged[index] = made.damaged[index].without(&made.lost[index]);
                } else {
                    let is_confused = planted::on(Bug::PartOfAnotherRole);
                    let wanted = if is_confused { sources[0] } else { index };
                    let bytes = self.decode(&sources, wanted, unit, &mut decoders);
                    let data = UnitData::of(&bytes, self.buffers);
                    if self
                        .known_checksum(compared, index, unit)
                        .is_some_and(|it| it != data.checksum)
                    {
                        // A source is wrong, too: what was lost had another checksum.
                        made.unmatched[index].add(unit);
                        sources.iter().for_each(|index| made.differing[*index].add(unit));
                    }
                    made.units[index].insert(unit, Some(data));
                }
            }
        }
        made
    }

    /// Returns whether a member holds data in a unit, and can read it.
    fn has_data(&self, index: usize, unit: u32) -> bool {
        self.parts[index].as_ref().is_some_and(|part| part.written.contains_key(&unit))
    }

    /// Returns whether a member holds data in a unit, or has lost it.
    fn has_or_lost(&self, index: usize, unit: u32) -> bool {
        let part = self.parts[index].as_ref();
        self.has_data(index, unit) || part.is_some_and(|part| part.damaged.has(unit))
    }

    /// Returns the checksum that the member knew of a unit that it cannot read. What another version or
    /// another table says counts for nothing.
    fn known_checksum(&self, compared: &Compared, index: usize, unit: u32) -> Option<Checksum> {
        let SeenKey::Block { version, units, table } = &self.seen[index].key else { return None };
        let position = self.positions[index];
        let has_lost_table = !self.stripes.is_data(position) && table.is_empty();
        let is_other = compared.whole.has(index) && !has_lost_table;
        if is_other || *version != compared.version(position) {
            return None;
        }
        let part = self.parts[index].as_ref().filter(|part| part.version == *version)?;
        match units[unit as usize] {
            UnitSeen::Data(checksum) if part.damaged.has(unit) => Some(checksum),
            _ => None,
        }
    }

    /// Returns what members get.
    fn remedy(&self, compared: &Compared, made: Made) -> Vec<(usize, Content)> {
        let Made { units, lost, .. } = made;
        let mut contents = Vec::new();
        for (index, found) in units.into_iter().enumerate() {
            let (position, is_whole) = (self.positions[index], compared.whole.has(index));
            // An older unit that can be read is kept, if it cannot be made of the newest version.
            let keeps_older = is_whole
                && self.parts[index]
                    .as_ref()
                    .is_some_and(|part| !part.units.within(&lost[index]).is_empty());
            if (found.is_empty() && !is_whole) || keeps_older {
                continue;
            }
            let version = compared.version(position);
            let mut part =
                Part { version, units: Units::default(), ..Part::nothing(self.block_size) };
            if is_whole {
                part.damaged = lost[index];
            }
            for (unit, data) in found {
                part.units.add(unit);
                part.written.extend(data.map(|data| (unit, data)));
            }
            if !self.stripes.is_data(position) {
                let table = compared.table.as_ref().expect("it is decided what the parts hold");
                part.table = table.encode(self.block_size);
                let old = self.parts[index].as_ref().filter(|_| planted::on(Bug::PartTableKept));
                part.table = old.map_or(part.table, |old| old.table.clone());
            }
            contents.push((index, part.into_content(self.block_size, self.buffers)));
        }
        contents
    }
}

/// Decoders, by the positions that they read and the one that they make.
#[derive(Default)]
struct Decoders {
    known: BTreeMap<(Vec<usize>, usize), Decoder>,
}

impl Decoders {
    fn get(&mut self, stripes: &Stripes, present: Vec<usize>, wanted: usize) -> &Decoder {
        self.known.entry((present, wanted)).or_insert_with_key(|(present, wanted)| {
            let decoder = stripes.code().decoder(present, &[*wanted]);
            decoder.expect("there are enough sources")
        })
    }
}
