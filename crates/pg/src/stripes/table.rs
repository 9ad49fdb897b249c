//! The part table: what a parity part records about the data parts of its stripe.
//!
//! ```text
//!   for each data part:   epoch u32 | counter u64 | a bit for each unit that holds data (words of u64)
//! ```
//!
//! Invariants
//!   1. A data part that was never written, or was deleted with its stripe, has version zero and no units.
//!   2. The table of the largest stripe fits [`TABLE_SIZE_MAX`].

use base::{BlockSize, Epoch, Version};
use format::wire::TABLE_SIZE_MAX;

use crate::units::Units;

/// A part table; see the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Table {
    /// One entry for each data part, in order.
    pub parts: Vec<TablePart>,
}

/// The entry of one data part.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TablePart {
    /// The part's version.
    pub version: Version,
    /// The units of the part that hold data.
    pub written: Units,
}

impl Table {
    /// Returns the table of a stripe without data.
    pub fn empty(data_count: usize) -> Table {
        Table { parts: vec![TablePart::default(); data_count] }
    }

    /// Returns the units of the parity part that hold data: those that hold data in at least one data part.
    pub fn written(&self) -> Units {
        self.parts.iter().fold(Units::default(), |all, part| all.with(&part.written))
    }

    /// Returns the version of the newest data part.
    pub fn version(&self) -> Version {
        self.parts.iter().map(|part| part.version).max().unwrap_or_default()
    }

    /// Returns the bytes that are stored with the parity part.
    pub fn encode(&self, block_size: BlockSize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.parts.len() * entry_size(block_size));
        for part in &self.parts {
            bytes.extend(part.version.epoch.get().to_le_bytes());
            bytes.extend(part.version.counter.to_le_bytes());
            for word in part.written.words(block_size) {
                bytes.extend(word.to_le_bytes());
            }
        }
        assert!(bytes.len() <= TABLE_SIZE_MAX);
        bytes
    }

    /// Decodes bytes that [`Table::encode`] returned; no bytes stand for an empty table. The error says what
    /// is wrong.
    pub fn decode(bytes: &[u8], data_count: usize, block_size: BlockSize) -> Result<Table, String> {
        if bytes.is_empty() {
            return Ok(Table::empty(data_count));
        }
        let size = entry_size(block_size);
        if bytes.len() != data_count * size {
            return Err(format!(
                "a part table has the wrong size: {} bytes for {data_count} parts",
                bytes.len()
            ));
        }
        let part = |entry: &[u8]| {
            let (epoch, rest) = entry.split_first_chunk::<4>()?;
            let (counter, words) = rest.split_first_chunk::<8>()?;
            let words: Vec<u64> = words
                .chunks_exact(8)
                .map(|word| u64::from_le_bytes(word.try_into().expect("chunks of 8")))
                .collect();
            let epoch = Epoch::new(u32::from_le_bytes(*epoch));
            let version = Version { epoch, counter: u64::from_le_bytes(*counter) };
            Some(TablePart { version, written: Units::from_words(&words, block_size)? })
        };
        let parts: Option<Vec<TablePart>> = bytes.chunks_exact(size).map(part).collect();
        let parts = parts.ok_or("a part table with units beyond the end of a block")?;
        if parts.iter().any(|part| part.version == Version::ZERO && !part.written.is_empty()) {
            return Err("a part table with data of a part that was never written".into());
        }
        Ok(Table { parts })
    }
}

fn entry_size(block_size: BlockSize) -> usize {
    4 + 8 + 8 * block_size.unit_count().div_ceil(64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_as_it_was_written() {
        for size in [BlockSize::MIN, BlockSize::MAX] {
            let mut table = Table::empty(16);
            table.parts[3].version = Version { epoch: Epoch::new(7), counter: 900 };
            table.parts[3].written = Units::from_range(1..size.unit_count());
            let bytes = table.encode(size);
            assert_eq!(Table::decode(&bytes, 16, size), Ok(table.clone()));
            assert!(Table::decode(&bytes[1..], 16, size).is_err());
            assert!(Table::decode(&bytes, 15, size).is_err());
        }
        assert_eq!(Table::decode(&[], 2, BlockSize::MIN), Ok(Table::empty(2)));
    }

    #[test]
    fn tables_that_contradict_themselves_are_refused() {
        let size = BlockSize::MIN;
        let mut table = Table::empty(2);
        table.parts[0].written = Units::from_range(0..1);
        assert!(Table::decode(&table.encode(size), 2, size).is_err());
        let mut bytes = Table::empty(2).encode(size);
        bytes[0] = 1;
        bytes[12 + 7] = 0x80;
        assert!(Table::decode(&bytes, 2, size).is_err(), "a unit beyond the end");
    }
}
