//! Gathers units of a stripe: reads them from the positions that hold them, or reconstructs them from `k`
//! others.
//!
//! Each wanted unit is first requested from its own position. If that position has no member, or lost the
//! unit, the units of the same row are requested from `k` other positions.
//!
//! Invariants
//!   1. Each unit is requested from a source at most once.
//!   2. Parts of two versions are never combined: the part tables of the parity parts that were read record
//!      the version of each data part.

use std::collections::BTreeMap;

use base::{BlockSize, BufferPool, UNIT_SIZE, Version};
use erasure::Decoder;

use super::Stripes;
use super::part::{Part, UnitData, has_lost_table, table_of};
use super::table::{Table, TablePart};
use crate::face::Source;
use crate::units::Units;

/// A gathering of units; see the module.
pub struct Gather {
    stripes: &'static Stripes,
    block_size: BlockSize,
    /// Members that can be asked, by position.
    sources: BTreeMap<usize, Source>,
    /// Wanted units, by position.
    wants: BTreeMap<usize, Units>,
    wants_table: bool,
    asked: BTreeMap<usize, Units>,
    held: BTreeMap<usize, Part>,
    /// Number of answers that are missing.
    missing: usize,
    /// Whether a parity part has lost its part table.
    has_lost_table: bool,
}

/// The result for a wanted unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The unit holds no data.
    Nothing,
    Data(UnitData),
    /// The unit is lost: too few positions could read their units of the row.
    Lost,
}

/// The error that parts of one stripe contradict each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inconsistent;

impl Gather {
    /// Returns a gathering. `sources`: members that hold the stripe in the requested version.
    pub fn new(
        stripes: &'static Stripes,
        block_size: BlockSize,
        sources: impl IntoIterator<Item = Source>,
        wants: BTreeMap<usize, Units>,
        wants_table: bool,
    ) -> Gather {
        let sources = sources.into_iter().map(|source| (source.position.index(), source));
        Gather {
            stripes,
            block_size,
            sources: sources.collect(),
            wants,
            wants_table,
            asked: BTreeMap::new(),
            held: BTreeMap::new(),
            missing: 0,
            has_lost_table: false,
        }
    }

    /// Returns the members to ask now, and the units to request from each. These units then count as
    /// requested.
    pub fn asks(&mut self) -> Vec<(Source, Units)> {
        if self.missing > 0 {
            // Which units are lost is known only when all answers have arrived.
            return Vec::new();
        }
        let mut next: BTreeMap<usize, Units> = BTreeMap::new();
        let mut ask = |position: usize, units: Units| {
            let asked = next.entry(position).or_default();
            *asked = asked.with(&units);
        };
        let mut rows = Units::default();
        for (position, wanted) in &self.wants {
            if self.sources.contains_key(position) {
                ask(*position, *wanted);
                let lost = self.held.get(position).map(|part| part.damaged).unwrap_or_default();
                rows = rows.with(&wanted.within(&lost));
            } else {
                rows = rows.with(wanted);
            }
        }
        for unit in rows.iter() {
            for position in self.row_sources(unit) {
                ask(position, Units::from_range(unit..unit + 1));
            }
        }
        if self.wants_table {
            let all = Units::from_range(0..self.block_size.unit_count());
            for position in self.table_sources() {
                // A parity part sends its table with any unit.
                let is_parity = position >= self.stripes.data_count();
                ask(position, if is_parity { Units::from_range(0..1) } else { all });
            }
        }
        let mut asks = Vec::new();
        for (position, units) in next {
            let asked = self.asked.entry(position).or_default();
            let units = units.without(asked);
            if !units.is_empty() {
                *asked = asked.with(&units);
                asks.push((self.sources[&position], units));
            }
        }
        self.missing = asks.len();
        asks
    }

    /// Returns the `k` positions from which a row of units is reconstructed, or all that have it if they are
    /// fewer. Positions that were asked for the row before come first.
    fn row_sources(&self, unit: u32) -> Vec<usize> {
        let is_lost =
            |position: &usize| self.held.get(position).is_some_and(|part| part.damaged.has(unit));
        let mut positions: Vec<usize> =
            self.sources.keys().copied().filter(|position| !is_lost(position)).collect();
        let is_asked =
            |position: &usize| self.asked.get(position).is_some_and(|units| units.has(unit));
        positions.sort_by_key(|position| (!is_asked(position), *position));
        positions.truncate(self.stripes.data_count());
        positions
    }

    /// Returns the positions that together know what all data parts hold: one position with parity, or all
    /// positions with data.
    fn table_sources(&self) -> Vec<usize> {
        let parity = self.sources.keys().find(|it| **it >= self.stripes.data_count());
        match parity {
            Some(position) => vec![*position],
            None => self.sources.keys().copied().collect(),
        }
    }

    /// Adds the answer of a member; the error says what is wrong with it.
    pub fn take(&mut self, position: usize, part: Part) -> Result<(), String> {
        assert!(self.missing > 0);
        self.missing -= 1;
        if position >= self.stripes.data_count() {
            if has_lost_table(&part) {
                // The member's store lost the page with the table: the part counts as if it were not there.
                self.sources.remove(&position);
                self.has_lost_table = true;
                return Ok(());
            }
            table_of(&part, self.stripes.data_count(), self.block_size)?;
        }
        match self.held.get_mut(&position) {
            None => {
                self.held.insert(position, part);
            }
            Some(held) => {
                if (held.version, held.deleted) != (part.version, part.deleted) {
                    return Err("a part changed while it was read".into());
                }
                held.units = held.units.with(&part.units);
                held.damaged = held.damaged.with(&part.damaged);
                held.written.extend(part.written);
            }
        }
        Ok(())
    }

    /// Returns whether an answer is missing.
    pub fn is_waiting(&self) -> bool {
        self.missing > 0
    }

    /// Returns the part that a position sent; `None`: the position was not asked.
    pub fn held(&self, position: usize) -> Option<&Part> {
        self.held.get(&position)
    }

    /// Returns the newest version in the answers. If the table was wanted, that is the newest version of the
    /// stripe.
    pub fn newest(&self) -> Version {
        let versions = self.held.values().map(|part| part.version.max(part.deleted));
        versions.max().unwrap_or_default()
    }

    /// Returns whether a position has lost some of its part: units, or its part table.
    pub fn has_lost(&self) -> bool {
        self.has_lost_table || self.held.values().any(|part| !part.damaged.is_empty())
    }

    /// Returns all answers, by position.
    pub fn all_held(&self) -> &BTreeMap<usize, Part> {
        &self.held
    }

    /// Returns the positions that were asked.
    pub fn asked_positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.asked.keys().copied()
    }

    /// Restores lost units of data parts from an older version, in which they were lost, too, and were
    /// reconstructed from other parts. No later version changed these units, or they would not be lost.
    /// Parity is left out: a lost unit of parity stays lost when a version changes it.
    pub fn make_good(&mut self, before: &Gather, buffers: &BufferPool) {
        for (position, part) in self.held.range_mut(..self.stripes.data_count()) {
            let was_lost = before.held(*position).map(|old| old.damaged).unwrap_or_default();
            for unit in part.damaged.within(&was_lost).iter() {
                match before.unit(*position, unit, buffers) {
                    Ok(Found::Nothing) => {}
                    Ok(Found::Data(data)) => drop(part.written.insert(unit, data)),
                    Ok(Found::Lost) | Err(Inconsistent) => continue,
                }
                part.units.add(unit);
            }
            part.damaged = part.damaged.without(&part.units);
        }
    }

    /// Returns what is known about all data parts, from a parity part's table or from the data parts
    /// themselves. `None`: no parity part was read, and some data part was not read whole.
    pub fn table(&self) -> Result<Option<Table>, Inconsistent> {
        let data_count = self.stripes.data_count();
        let mut parity = self.held.range(data_count..).map(|(_, part)| {
            let table = table_of(part, data_count, self.block_size).expect("it was checked");
            (part.version, table)
        });
        let Some((version, table)) = parity.next() else {
            let part = |index: usize| {
                let part = self.held.get(&index)?;
                let all = Units::from_range(0..self.block_size.unit_count());
                let known = part.units.with(&part.damaged);
                let written = part.written_units().with(&part.damaged);
                let is_whole = all.without(&known).is_empty();
                is_whole.then_some(TablePart { version: part.version, written })
            };
            let parts: Option<Vec<TablePart>> = (0..data_count).map(part).collect();
            return Ok(parts.map(|parts| Table { parts }));
        };
        let is_same = parity.all(|(its_version, its)| (its_version, &its) == (version, &table));
        let mut data = self.held.range(..data_count);
        let agrees = data.all(|(index, part)| part.version == table.parts[*index].version);
        if is_same && agrees { Ok(Some(table)) } else { Err(Inconsistent) }
    }

    /// Returns what the first parity part that was read says about the data parts.
    pub fn table_of_parity(&self) -> Option<Table> {
        let data_count = self.stripes.data_count();
        let (_, part) = self.held.range(data_count..).next()?;
        Some(table_of(part, data_count, self.block_size).expect("it was checked"))
    }

    /// Returns a unit of a position, read there or reconstructed from others. Requires: no answer is missing;
    /// the unit was wanted.
    pub fn unit(
        &self,
        position: usize,
        unit: u32,
        buffers: &BufferPool,
    ) -> Result<Found, Inconsistent> {
        assert!(!self.is_waiting());
        if let Some(part) = self.held.get(&position).filter(|part| part.units.has(unit)) {
            return Ok(match part.written.get(&unit) {
                Some(data) => Found::Data(data.clone()),
                None => Found::Nothing,
            });
        }
        let table = self.table()?;
        let data_count = self.stripes.data_count();
        let is_written = table.map(|table| match position < data_count {
            true => table.parts[position].written.has(unit),
            false => table.written().has(unit),
        });
        if is_written == Some(false) {
            return Ok(Found::Nothing);
        }
        let readable = self.held.iter().filter(|(_, part)| part.units.has(unit));
        let present: Vec<usize> = readable.map(|(position, _)| *position).collect();
        let Ok(decoder) = self.stripes.code().decoder(&present, &[position]) else {
            return Ok(Found::Lost);
        };
        // Without a table, no parity part was read: the wanted unit is parity, and all sources are data
        // parts. If none of them holds data in this row, there is no parity, either.
        let mut parts = decoder.sources().iter().map(|source| self.held[source].bytes(unit));
        if is_written.is_none() && parts.all(|bytes| bytes.is_none()) {
            return Ok(Found::Nothing);
        }
        Ok(Found::Data(self.decode(&decoder, unit, buffers)))
    }

    fn decode(&self, decoder: &Decoder, unit: u32, buffers: &BufferPool) -> UnitData {
        let zeros = [0; UNIT_SIZE as usize];
        let parts = decoder.sources().iter().map(|source| self.held[source].bytes(unit));
        let parts: Vec<&[u8]> = parts.map(|bytes| bytes.unwrap_or(&zeros)).collect();
        let mut bytes = [0; UNIT_SIZE as usize];
        decoder.decode(&parts, &mut [&mut bytes]);
        UnitData::of(&bytes, buffers)
    }

    /// Returns units of a position as a part, with the given version.
    pub fn part(
        &self,
        position: usize,
        units: Units,
        version: Version,
        buffers: &BufferPool,
    ) -> Result<Part, Inconsistent> {
        let mut part = Part { version, units, ..Part::nothing(self.block_size) };
        for unit in units.iter() {
            match self.unit(position, unit, buffers)? {
                Found::Nothing => {}
                Found::Data(data) => {
                    part.written.insert(unit, data);
                }
                Found::Lost => part.damaged.add(unit),
            }
        }
        part.units = units.without(&part.damaged);
        Ok(part)
    }
}

#[cfg(test)]
mod tests {
    use base::{Epoch, Position, Scheme};

    use super::*;
    use crate::face::Face;
    use crate::stripes::face_of;

    const SIZE: BlockSize = BlockSize::MIN;

    fn stripes() -> &'static Stripes {
        let face: &'static dyn Face = face_of(Scheme::ReedSolomon { data: 3, parity: 2 });
        face.stripes().expect("it has parity")
    }

    fn source(position: usize) -> Source {
        Source { index: position, position: Position::new(position as u8).unwrap() }
    }

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(1), counter }
    }

    /// Returns a stripe in which unit `u` of data part `p` holds `16 * p + u + 1`, with version `p + 1`.
    fn stripe() -> Vec<Part> {
        let buffers = BufferPool::default();
        let all = Units::from_range(0..SIZE.unit_count());
        let bytes =
            |part: usize, unit: u32| [(16 * part as u32 + unit + 1) as u8; UNIT_SIZE as usize];
        let mut table = Table::empty(3);
        let mut parts = Vec::new();
        for index in 0..3 {
            let version = version(index as u64 + 1);
            let mut part = Part { version, ..Part::nothing(SIZE) };
            for unit in all.iter() {
                part.written.insert(unit, UnitData::of(&bytes(index, unit), &buffers));
            }
            table.parts[index] = TablePart { version, written: all };
            parts.push(part);
        }
        for _ in 0..2 {
            let table = table.encode(SIZE);
            parts.push(Part { version: version(3), table, ..Part::nothing(SIZE) });
        }
        for unit in all.iter() {
            let data: Vec<Vec<u8>> =
                (0..3).map(|part| parts[part].bytes(unit).unwrap().to_vec()).collect();
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let mut rows = [[0; UNIT_SIZE as usize]; 2];
            let mut places: Vec<&mut [u8]> = rows.iter_mut().map(|row| &mut row[..]).collect();
            stripes().code().encode(&data, &mut places);
            for (parity, row) in rows.iter().enumerate() {
                parts[3 + parity].written.insert(unit, UnitData::of(row, &buffers));
            }
        }
        parts
    }

    #[test]
    fn a_parity_part_that_lost_its_table_is_not_used() {
        let parts = stripe();
        let buffers = BufferPool::default();
        let wanted = Units::from_range(1..3);
        for wanted_at in 0..5 {
            let mut lossy = parts.clone();
            lossy[3].table.clear();
            lossy[3].units = Units::default();
            lossy[3].damaged = Units::from_range(0..SIZE.unit_count());
            lossy[3].written.clear();
            let wants = BTreeMap::from([(wanted_at, wanted)]);
            let mut gather = Gather::new(stripes(), SIZE, (0..5).map(source), wants, true);
            run(&mut gather, &lossy);
            assert!(matches!(gather.table(), Ok(Some(_))), "another part has the table");
            let expected = parts[wanted_at].written[&2].clone();
            let found = gather.unit(wanted_at, 2, &buffers);
            assert_eq!(found, Ok(Found::Data(expected)), "part {wanted_at} is made of others");
        }
    }

    fn run(gather: &mut Gather, parts: &[Part]) -> usize {
        let mut count = 0;
        loop {
            let asks = gather.asks();
            if asks.is_empty() {
                return count;
            }
            for (source, units) in asks {
                let mut part = parts[source.position.index()].clone();
                part.units = part.units.within(&units);
                part.damaged = part.damaged.within(&units);
                part.written.retain(|unit, _| part.units.has(*unit));
                gather.take(source.position.index(), part).unwrap();
                count += 1;
            }
        }
    }

    #[test]
    fn a_unit_is_read_where_it_is_or_made_of_others() {
        let parts = stripe();
        let (buffers, wanted) = (BufferPool::default(), Units::from_range(1..3));
        for away in 0..5 {
            for lost in 0..5 {
                let mut parts = parts.clone();
                parts[lost].damaged = Units::from_range(2..3);
                parts[lost].units = parts[lost].units.without(&parts[lost].damaged);
                let sources = (0..5).filter(|position| *position != away).map(source);
                for position in 0..5 {
                    let wants = BTreeMap::from([(position, wanted)]);
                    let mut gather = Gather::new(stripes(), SIZE, sources.clone(), wants, false);
                    let asked = run(&mut gather, &parts);
                    if position != away && position != lost {
                        assert_eq!(asked, 1, "it is asked alone");
                    }
                    for unit in wanted.iter() {
                        let found = gather.unit(position, unit, &buffers).unwrap();
                        let expected = stripe()[position].written[&unit].clone();
                        assert_eq!(found, Found::Data(expected));
                    }
                }
            }
        }
    }

    #[test]
    fn too_few_parts_make_nothing() {
        let mut parts = stripe();
        let (buffers, wanted) = (BufferPool::default(), Units::from_range(0..1));
        parts[3].damaged = wanted;
        parts[3].units = parts[3].units.without(&wanted);
        let sources = [1, 2, 3].map(source);
        let mut gather =
            Gather::new(stripes(), SIZE, sources, BTreeMap::from([(0, wanted)]), false);
        run(&mut gather, &parts);
        assert_eq!(gather.unit(0, 0, &buffers), Ok(Found::Lost));
    }

    #[test]
    fn parts_of_two_versions_are_not_combined() {
        let mut parts = stripe();
        parts[1].version = version(9);
        let (buffers, wanted) = (BufferPool::default(), Units::from_range(0..1));
        let sources = [1, 2, 3].map(source);
        let mut gather =
            Gather::new(stripes(), SIZE, sources, BTreeMap::from([(0, wanted)]), false);
        run(&mut gather, &parts);
        assert_eq!(gather.unit(0, 0, &buffers), Err(Inconsistent));
    }

    #[test]
    fn the_table_is_known_without_parity_too() {
        let parts = stripe();
        for present in [vec![0, 1, 2], vec![1, 2, 4]] {
            let sources = present.into_iter().map(source);
            let mut gather = Gather::new(stripes(), SIZE, sources, BTreeMap::new(), true);
            run(&mut gather, &parts);
            let table = gather.table().unwrap().unwrap();
            let versions: Vec<Version> = table.parts.iter().map(|part| part.version).collect();
            assert_eq!(versions, [1, 2, 3].map(version));
            assert_eq!(table.written(), Units::from_range(0..SIZE.unit_count()));
        }
    }
}
