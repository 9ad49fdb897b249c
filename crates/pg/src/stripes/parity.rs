//! The parity of a version. If a unit changes in all data parts, the primary encodes its parity. Otherwise
//! each parity member computes it from the old parity and the differences of the data parts.
//!
//! Invariants
//!   1. Each difference is applied once, even if it arrives twice: directly and through the primary.
//!   2. A parity member journals the resulting bytes, never differences.
//!   3. A unit of parity is damaged if any data that it is computed from is lost.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use base::planted::{self, Bug};
use base::{BlockSize, BufferPool, Position, UNIT_SIZE, Version};
use blockstore::BlockKey;
use format::wire::{Content, PartChange};

use super::Stripes;
use super::part::{Part, UnitData, content, has_lost_table, table_of};
use super::patch::Patch;
use super::table::TablePart;
use crate::units::Units;

/// The bytes of a unit without data.
const ZEROS: [u8; UNIT_SIZE as usize] = [0; UNIT_SIZE as usize];

/// Encodes the parity of units that change in all data parts. Returns the units of each parity part.
pub fn encode_rows(
    stripes: &Stripes,
    patch: &Patch,
    rows: Units,
    buffers: &BufferPool,
) -> Vec<BTreeMap<u32, UnitData>> {
    let parity_count = stripes.part_count() - stripes.data_count();
    let mut all = vec![BTreeMap::new(); parity_count];
    for unit in rows.iter() {
        let parts = (0..stripes.data_count()).map(|part| patch.unit(part, unit));
        let parts: Vec<&[u8]> =
            parts.map(|data| data.map_or(&ZEROS[..], |data| &data.data)).collect();
        if (0..stripes.data_count()).all(|part| patch.unit(part, unit).is_none()) {
            continue;
        }
        let mut rows = vec![ZEROS; parity_count];
        let mut places: Vec<&mut [u8]> = rows.iter_mut().map(|row| &mut row[..]).collect();
        stripes.code().encode(&parts, &mut places);
        for (units, row) in all.iter_mut().zip(&rows) {
            units.insert(unit, UnitData::of(row, buffers));
        }
    }
    all
}

/// Returns the difference of a data part in these units: old bytes XOR new bytes, with the version that the
/// part had before. Units whose old bytes are lost are marked damaged.
pub fn difference(
    old: &Part,
    new: impl Fn(u32) -> Option<UnitData>,
    units: Units,
    block_size: BlockSize,
    buffers: &BufferPool,
) -> Content {
    let lost = units.within(&old.damaged);
    let mut written = BTreeMap::new();
    for unit in units.without(&lost).iter() {
        match (old.written.get(&unit), new(unit)) {
            (None, None) => {}
            (Some(data), None) => {
                written.insert(unit, data.clone());
            }
            (None, Some(data)) => {
                written.insert(unit, data);
            }
            (Some(old), Some(new)) => {
                let mut change = [0; UNIT_SIZE as usize];
                erasure::delta(&old.data, &new.data, &mut change);
                written.insert(unit, UnitData::of(&change, buffers));
            }
        }
    }
    content(old.version, block_size, units, lost, &written, Vec::new(), buffers)
}

/// How parity and data contradict each other.
#[derive(Debug)]
pub struct Contradiction {
    /// The data part that is older than the part table says, if that is the contradiction.
    pub behind: Option<Position>,
    pub why: String,
}

impl From<String> for Contradiction {
    fn from(why: String) -> Contradiction {
        Contradiction { behind: None, why }
    }
}

/// A version at a parity member that waits for the old parity and for the differences.
#[derive(Debug)]
pub struct ParityWork {
    pub key: BlockKey,
    version: Version,
    /// The units that the primary encoded.
    rows: Part,
    changes: Vec<PartChange>,
    /// Whether the old parity part is being read, or is known.
    pub is_reading: bool,
    /// This member's parity part before the version; `None`: not known yet.
    old: Option<Part>,
    /// The differences that have arrived, by data part.
    deltas: BTreeMap<usize, Part>,
    /// How long the work has waited for differences.
    wait: Wait,
}

/// How long a version has waited for differences. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wait {
    /// [`ParityWork::overdue_deltas`] was not called yet.
    New,
    /// It was called once.
    Seen,
    /// The missing differences were returned as overdue.
    Overdue,
}

impl ParityWork {
    /// Checks the primary's description of a version. The error says what is wrong with it.
    pub fn new(
        stripes: &Stripes,
        key: BlockKey,
        rows: Part,
        changes: Vec<PartChange>,
        block_size: BlockSize,
    ) -> Result<ParityWork, String> {
        if !changes.is_sorted_by(|one, next| one.part < next.part) || changes.is_empty() {
            return Err("the data parts of a version are missing or out of order".into());
        }
        let encoded = rows.units;
        for change in &changes {
            let sets = [&change.units, &change.written, &change.differences];
            let [units, written, differences] =
                sets.map(|words| Units::from_words(words, block_size));
            let (Some(units), Some(written), Some(differences)) = (units, written, differences)
            else {
                return Err("units beyond the end of a block".into());
            };
            let is_sound = stripes.is_data(change.part)
                && !units.is_empty()
                && written.without(&units).is_empty()
                && differences == units.without(&encoded);
            if !is_sound {
                return Err("the change of a data part is inconsistent".into());
            }
        }
        let version = rows.version;
        let (is_reading, old, deltas, wait) = (false, None, BTreeMap::new(), Wait::New);
        Ok(ParityWork { key, version, rows, changes, is_reading, old, deltas, wait })
    }

    /// Returns the units whose old parity is needed.
    pub fn needed(&self, block_size: BlockSize) -> Units {
        let sets = self.changes.iter().map(|change| {
            Units::from_words(&change.differences, block_size).expect("it was checked")
        });
        sets.fold(Units::default(), |all, units| all.with(&units))
    }

    /// Adds this member's parity part before the version.
    pub fn on_old(&mut self, old: Part) {
        assert!(self.old.is_none());
        self.old = Some(old);
    }

    /// Adds a difference, if it has not arrived before. The error says why it is not an expected one.
    pub fn on_delta(
        &mut self,
        key: BlockKey,
        part: Position,
        delta: Part,
        block_size: BlockSize,
    ) -> Result<(), String> {
        let change = self.changes.iter().find(|change| change.part == part);
        let wanted = change.and_then(|it| Units::from_words(&it.differences, block_size));
        let wanted = wanted.filter(|units| !units.is_empty() && key == self.key);
        let wanted = wanted.ok_or("a difference that was not announced")?;
        if delta.units.with(&delta.damaged) != wanted {
            return Err("a difference has other units than announced".into());
        }
        match self.deltas.entry(part.index()) {
            Entry::Vacant(entry) => drop(entry.insert(delta)),
            // A difference that is applied twice has no effect.
            Entry::Occupied(mut entry) if planted::on(Bug::DeltaUsedTwice) => {
                entry.get_mut().written.clear();
            }
            Entry::Occupied(_) => {}
        }
        Ok(())
    }

    /// Returns the data parts whose differences have not arrived, if this is the second call.
    pub fn overdue_deltas(&mut self) -> Vec<Position> {
        let was = self.wait;
        self.wait = if was == Wait::New { Wait::Seen } else { Wait::Overdue };
        match was {
            Wait::Seen => self.missing().collect(),
            Wait::New | Wait::Overdue => Vec::new(),
        }
    }

    /// Returns the data parts whose differences have not arrived.
    fn missing(&self) -> impl Iterator<Item = Position> + '_ {
        let is_awaited = |change: &&PartChange| {
            let has_any = change.differences.iter().any(|word| *word != 0);
            has_any && !self.deltas.contains_key(&change.part.index())
        };
        self.changes.iter().filter(is_awaited).map(|change| change.part)
    }

    /// Returns whether the old parity and all differences have arrived.
    pub fn is_ready(&self) -> bool {
        self.old.is_some() && self.missing().next().is_none()
    }

    /// Returns the new content of this member's parity part. Requires: [`ParityWork::is_ready`]. The error
    /// says how parity and data contradict each other.
    pub fn content(
        &self,
        stripes: &Stripes,
        parity: usize,
        block_size: BlockSize,
        buffers: &BufferPool,
    ) -> Result<Content, Contradiction> {
        let old = self.old.as_ref().expect("everything has come");
        let data_count = stripes.data_count();
        if has_lost_table(old) {
            return Err("a parity part has lost its part table".to_owned().into());
        }
        let mut table = table_of(old, data_count, block_size)?;
        let mut units = Units::default();
        for change in &self.changes {
            let [changed, written] = [&change.units, &change.written]
                .map(|words| Units::from_words(words, block_size).expect("it was checked"));
            let known = &mut table.parts[change.part.index()];
            if let Some(delta) = self.deltas.get(&change.part.index())
                && delta.version != known.version
            {
                let behind = Some(change.part).filter(|_| delta.version < known.version);
                let why = format!(
                    "parity was computed from version {} of part {}, but the part had version {}",
                    known.version,
                    change.part.get(),
                    delta.version
                );
                return Err(Contradiction { behind, why });
            }
            let written = known.written.without(&changed).with(&written);
            *known = TablePart { version: self.version, written };
            units = units.with(&changed);
        }
        let (holds, mut lost, mut data) = (table.written(), Units::default(), BTreeMap::new());
        for unit in units.iter().filter(|unit| holds.has(*unit)) {
            if self.rows.units.has(unit) {
                let row = self.rows.written.get(&unit).cloned();
                data.insert(unit, row.unwrap_or_else(|| UnitData::of(&ZEROS, buffers)));
            } else if let Some(bytes) = self.sum(stripes, parity, unit, old) {
                data.insert(unit, UnitData::of(&bytes, buffers));
            } else {
                lost.add(unit);
            }
        }
        let table = table.encode(block_size);
        Ok(content(self.version, block_size, units, lost, &data, table, buffers))
    }

    /// Returns a unit of parity, computed from its old bytes and all differences; `None`: some of these are
    /// lost.
    fn sum(&self, stripes: &Stripes, parity: usize, unit: u32, old: &Part) -> Option<Vec<u8>> {
        if !old.units.has(unit) {
            return None;
        }
        let mut bytes = old.bytes(unit).unwrap_or(&ZEROS).to_vec();
        for (part, delta) in &self.deltas {
            if delta.damaged.has(unit) {
                return None;
            }
            if let Some(change) = delta.units.has(unit).then(|| delta.bytes(unit)).flatten() {
                stripes.code().update(parity, *part, change, &mut bytes);
            }
        }
        Some(bytes)
    }
}
