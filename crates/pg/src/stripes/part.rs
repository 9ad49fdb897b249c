//! The part of a stripe that one position holds, unit by unit.
//!
//! Invariants
//!   1. `written` is a subset of `units`, and `units` contains no damaged unit.

use std::collections::BTreeMap;

use base::{BlockSize, Buffer, BufferPool, Checksum, UNIT_SIZE, Version, checksum};
use format::wire::Content;

use super::table::Table;
use crate::units::{Held, Units};

/// The bytes of one unit, with their checksum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitData {
    pub checksum: Checksum,
    pub data: Buffer,
}

impl UnitData {
    /// Returns a unit with a copy of these bytes, and computes its checksum.
    pub fn of(bytes: &[u8], buffers: &BufferPool) -> UnitData {
        assert!(bytes.len() as u64 == UNIT_SIZE);
        UnitData { checksum: checksum::crc32c(bytes), data: buffers.copy_of(bytes) }
    }
}

/// Units of a part, decoded from a [`Content`].
#[derive(Clone, Debug)]
pub struct Part {
    /// The part's version; zero: the part holds nothing.
    pub version: Version,
    /// The version of the part's tombstone; zero: there is no tombstone.
    pub deleted: Version,
    /// Units that could be read.
    pub units: Units,
    /// Units whose data is lost.
    pub damaged: Units,
    /// The units that hold data; other readable units read as zeros.
    pub written: BTreeMap<u32, UnitData>,
    /// The bytes of the part table, if this is a parity part.
    pub table: Vec<u8>,
}

impl Part {
    /// Returns a part that holds nothing.
    pub fn nothing(block_size: BlockSize) -> Part {
        Part {
            version: Version::ZERO,
            deleted: Version::ZERO,
            units: Units::from_range(0..block_size.unit_count()),
            damaged: Units::default(),
            written: BTreeMap::new(),
            table: Vec::new(),
        }
    }

    /// Checks a [`Content`] and converts it to a part; the error says what is wrong with it. With
    /// `checks_data` the data is compared with its checksums.
    pub fn of(content: Content, block_size: BlockSize, checks_data: bool) -> Result<Part, String> {
        let (lost, table) = match &content {
            Content::Block { damaged, table, .. } => {
                (Units::from_words(damaged, block_size), table.clone())
            }
            Content::Gone | Content::Tombstone { .. } => (Some(Units::default()), Vec::new()),
        };
        let damaged = lost.ok_or("units beyond the end of a block")?;
        Ok(match Held::of(content, block_size, checks_data)? {
            Held::Gone => Part::nothing(block_size),
            Held::Tombstone(deleted) => Part { deleted, ..Part::nothing(block_size) },
            Held::Copy(copied) => {
                let (version, units) = (copied.version, copied.units);
                let written = copied
                    .into_written()
                    .map(|(unit, checksum, data)| (unit, UnitData { checksum, data }));
                let written = written.collect();
                Part { version, deleted: Version::ZERO, units, damaged, written, table }
            }
        })
    }

    /// Returns the units that hold data.
    pub fn written_units(&self) -> Units {
        let mut units = Units::default();
        self.written.keys().for_each(|unit| units.add(*unit));
        units
    }

    /// Returns the bytes of a unit; `None`: the unit reads as zeros. Requires: the unit could be read.
    pub fn bytes(&self, unit: u32) -> Option<&[u8]> {
        assert!(self.units.has(unit));
        self.written.get(&unit).map(|unit| &unit.data[..])
    }

    /// Converts the part to the form that messages and store requests carry.
    pub fn into_content(self, block_size: BlockSize, buffers: &BufferPool) -> Content {
        if self.version == Version::ZERO {
            return match self.deleted {
                Version::ZERO => Content::Gone,
                version => Content::Tombstone { version },
            };
        }
        content(
            self.version,
            block_size,
            self.units,
            self.damaged,
            &self.written,
            self.table,
            buffers,
        )
    }
}

/// Returns a [`Content`] with these units.
pub fn content(
    version: Version,
    block_size: BlockSize,
    units: Units,
    damaged: Units,
    written: &BTreeMap<u32, UnitData>,
    table: Vec<u8>,
    buffers: &BufferPool,
) -> Content {
    let mut set = Units::default();
    written.keys().for_each(|unit| set.add(*unit));
    assert!(set.within(&damaged).is_empty());
    Content::Block {
        version,
        block_size,
        units: units.with(&damaged).with(&set).words(block_size),
        written: set.words(block_size),
        damaged: damaged.words(block_size),
        checksums: written.values().map(|unit| unit.checksum).collect(),
        data: join(written, buffers),
        table,
    }
}

/// Returns the bytes of all units, one after another; `None`: there are no units.
fn join(written: &BTreeMap<u32, UnitData>, buffers: &BufferPool) -> Option<Buffer> {
    let mut units = written.values();
    let first = &units.next()?.data;
    if written.len() == 1 {
        return Some(first.clone());
    }
    let unit = UNIT_SIZE as usize;
    let mut bytes = buffers.take(written.len() * unit);
    for (from, to) in written.values().zip(bytes.chunks_exact_mut(unit)) {
        to.copy_from_slice(&from.data);
    }
    Some(bytes.freeze())
}

/// Returns whether data of some units is lost.
pub fn has_lost_units(content: &Content) -> bool {
    matches!(content, Content::Block { damaged, .. } if damaged.iter().any(|word| *word != 0))
}

/// Returns whether a parity part has lost its part table: what it holds cannot be used.
pub fn has_lost_table(part: &Part) -> bool {
    part.version != Version::ZERO && part.table.is_empty()
}

/// Returns the table of a parity part.
pub fn table_of(part: &Part, data_count: usize, block_size: BlockSize) -> Result<Table, String> {
    Table::decode(&part.table, data_count, block_size)
}
