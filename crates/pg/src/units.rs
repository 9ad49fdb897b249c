//! Sets of units of a block, and block contents put together from several members' copies.
//!
//! Invariants
//!   1. Bit `i` of word `i / 64` is unit `i`; a block has at most 256 units.

use std::ops::Range;

use base::{BlockSize, Buffer, BufferPool, Checksum, UNIT_SIZE, Version, checksum};
use format::wire::Content;

/// Number of words of a set: the largest block has 256 units.
const WORDS: usize = 4;

/// A set of units.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Units([u64; WORDS]);

impl Units {
    pub fn from_range(units: Range<u32>) -> Units {
        let mut set = Units::default();
        set.add_range(units);
        set
    }

    /// Returns the units of a bitmap; `None` if it has units beyond the end of a block of this size.
    pub fn from_words(words: &[u64], block_size: BlockSize) -> Option<Units> {
        let mut set = Units::default();
        for (index, word) in words.iter().enumerate().filter(|(_, word)| **word != 0) {
            *set.0.get_mut(index)? = *word;
        }
        let all = Units::from_range(0..block_size.unit_count());
        set.without(&all).is_empty().then_some(set)
    }

    /// Returns the set as a bitmap of a block of this size.
    pub fn words(&self, block_size: BlockSize) -> Vec<u64> {
        self.0[..block_size.unit_count().div_ceil(64) as usize].to_vec()
    }

    pub fn add_range(&mut self, units: Range<u32>) {
        for unit in units {
            self.0[unit as usize / 64] |= 1 << (unit % 64);
        }
    }

    pub fn has(&self, unit: u32) -> bool {
        self.0[unit as usize / 64] & (1 << (unit % 64)) != 0
    }

    pub fn with(&self, other: &Units) -> Units {
        Units(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    pub fn without(&self, other: &Units) -> Units {
        Units(std::array::from_fn(|word| self.0[word] & !other.0[word]))
    }

    pub fn is_empty(&self) -> bool {
        *self == Units::default()
    }

    pub fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the units that are in both sets.
    pub fn within(&self, other: &Units) -> Units {
        Units(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    pub fn add(&mut self, unit: u32) {
        self.add_range(unit..unit + 1);
    }

    /// Returns all units of the set in order.
    pub fn iter(self) -> impl Iterator<Item = u32> {
        (0..WORDS as u32 * 64).filter(move |unit| self.has(*unit))
    }
}

/// Units of a block, with data from one or several members.
#[derive(Clone, Debug)]
pub struct Copied {
    pub version: Version,
    /// Units that could be read.
    pub units: Units,
    /// The readable units that hold data; the others are zeros.
    written: Units,
    checksums: Vec<Checksum>,
    data: Option<Buffer>,
}

impl Copied {
    /// Adds from another copy the units that this one lacks.
    pub fn complete_with(&mut self, other: &Copied, buffers: &BufferPool) {
        let mut merged = Copied {
            version: self.version,
            units: self.units.with(&other.units),
            written: self.written.with(&other.written.without(&self.units)),
            checksums: Vec::new(),
            data: None,
        };
        let mut bytes = buffers.take_zeroed(merged.written.count() * UNIT_SIZE as usize);
        let places = bytes.chunks_mut(UNIT_SIZE as usize);
        for (unit, place) in merged.written.iter().zip(places) {
            let from = if self.units.has(unit) { &*self } else { other };
            let index = from.written.iter().take_while(|written| *written < unit).count();
            let start = index * UNIT_SIZE as usize;
            let data = from.data.as_ref().expect("a copy with written units has data");
            place.copy_from_slice(&data[start..start + UNIT_SIZE as usize]);
            merged.checksums.push(from.checksums[index]);
        }
        merged.data = Some(bytes.freeze()).filter(|data| !data.is_empty());
        *self = merged;
    }

    /// Returns a copy that is restricted to the units in `units`.
    pub fn within(&self, units: &Units, buffers: &BufferPool) -> Copied {
        let all = Units::from_range(0..WORDS as u32 * 64);
        let none = all.without(units);
        let mut within = Copied::zeros(self.version, self.units.without(&none));
        within.written = self.written.without(&none);
        let mut bytes = buffers.take_zeroed(within.written.count() * UNIT_SIZE as usize);
        for (unit, place) in within.written.iter().zip(bytes.chunks_mut(UNIT_SIZE as usize)) {
            let index = self.written.iter().take_while(|written| *written < unit).count();
            let start = index * UNIT_SIZE as usize;
            let data = self.data.as_ref().expect("a copy with written units has data");
            place.copy_from_slice(&data[start..start + UNIT_SIZE as usize]);
            within.checksums.push(self.checksums[index]);
        }
        within.data = Some(bytes.freeze()).filter(|data| !data.is_empty());
        within
    }

    /// Returns the data of a range of units, with a checksum for each; `None`: some unit could not be read.
    pub fn range(
        &self,
        units: Range<u32>,
        buffers: &BufferPool,
    ) -> Option<(Vec<Checksum>, Buffer)> {
        let wanted = Units::from_range(units.clone());
        if !wanted.without(&self.units).is_empty() {
            return None;
        }
        if let Some(data) = &self.data
            && self.written == wanted
        {
            return Some((self.checksums.clone(), data.clone()));
        }
        let unit_size = UNIT_SIZE as usize;
        let mut checksums = vec![Checksum::ZERO_UNIT; units.len()];
        let mut bytes = buffers.take_zeroed(units.len() * unit_size);
        for (index, unit) in self.written.iter().enumerate().filter(|(_, it)| wanted.has(*it)) {
            let data = self.data.as_ref().expect("a copy with written units has data");
            let place = (unit - units.start) as usize;
            bytes[place * unit_size..][..unit_size]
                .copy_from_slice(&data[index * unit_size..][..unit_size]);
            checksums[place] = self.checksums[index];
        }
        Some((checksums, bytes.freeze()))
    }

    /// Returns a copy whose units all read as zeros.
    pub fn zeros(version: Version, units: Units) -> Copied {
        let written = Units::default();
        Copied { version, units, written, checksums: Vec::new(), data: None }
    }

    /// Returns a copy whose units hold zeros as data: unlike units that were never written, they hide what
    /// an older layer has there.
    pub fn zero_data(version: Version, units: Units, buffers: &BufferPool) -> Copied {
        let data = buffers.take_zeroed(units.count() * UNIT_SIZE as usize).freeze();
        let checksums = vec![Checksum::ZERO_UNIT; units.count()];
        let data = Some(data).filter(|data| !data.is_empty());
        Copied { version, units, written: units, checksums, data }
    }

    /// Returns the written units in order, each with its checksum and bytes.
    pub fn into_written(self) -> impl Iterator<Item = (u32, Checksum, Buffer)> {
        let Copied { written, checksums, data, .. } = self;
        written.iter().zip(checksums).enumerate().map(move |(index, (unit, checksum))| {
            let start = index * UNIT_SIZE as usize;
            let data = data.as_ref().expect("a copy with written units has data");
            (unit, checksum, data.slice(start..start + UNIT_SIZE as usize))
        })
    }

    /// Returns how many bytes of data the copy holds.
    pub fn size_bytes(&self) -> u64 {
        self.written.count() as u64 * UNIT_SIZE
    }

    /// Converts the content to the form that messages and store requests carry. `lost`: units that no member
    /// could read.
    pub fn into_content(self, block_size: BlockSize, lost: &Units) -> Content {
        Content::Block {
            version: self.version,
            block_size,
            units: self.units.with(lost).words(block_size),
            written: self.written.words(block_size),
            damaged: lost.without(&self.units).words(block_size),
            checksums: self.checksums,
            data: self.data,
            table: Vec::new(),
        }
    }
}

/// What a member holds of a block.
#[derive(Clone, Debug)]
pub enum Held {
    Gone,
    Tombstone(Version),
    Copy(Copied),
}

impl Held {
    /// Returns the block's version; `ZERO`: there is no block.
    pub fn version(&self) -> Version {
        match self {
            Held::Gone => Version::ZERO,
            Held::Tombstone(version) => *version,
            Held::Copy(copied) => copied.version,
        }
    }

    /// Checks the content of a block and returns it; the error says what is wrong with it. With `checks_data`
    /// the data is compared with its checksums.
    pub fn of(content: Content, size: BlockSize, checks_data: bool) -> Result<Held, String> {
        let (version, block_size, bitmaps, checksums, data) = match content {
            Content::Gone => return Ok(Held::Gone),
            Content::Tombstone { version } if version > Version::ZERO => {
                return Ok(Held::Tombstone(version));
            }
            Content::Tombstone { .. } => return Err("a tombstone without a version".into()),
            Content::Block {
                version,
                block_size,
                units,
                written,
                damaged,
                checksums,
                data,
                ..
            } => (version, block_size, [units, written, damaged], checksums, data),
        };
        if block_size != size {
            return Err("the content of a block has the wrong block size".into());
        }
        let [units, written, damaged] = bitmaps.map(|words| Units::from_words(&words, size));
        let (Some(units), Some(written), Some(damaged)) = (units, written, damaged) else {
            return Err("units beyond the end of a block".into());
        };
        if !written.with(&damaged).without(&units).is_empty() {
            return Err(
                "the content of a block marks units as written or damaged that it does not cover"
                    .into(),
            );
        }
        let units = units.without(&damaged);
        if !written.without(&units).is_empty() {
            return Err("the content of a block has data for damaged units".into());
        }
        let length = data.as_ref().map_or(0, |data| data.len() as u64);
        if checksums.len() != written.count() || length != written.count() as u64 * UNIT_SIZE {
            return Err(
                "the content of a block does not have one checksum and 4 KiB of data for each \
                 written unit"
                    .into(),
            );
        }
        if checks_data
            && let Some(data) = &data
            && checksum::first_mismatch(data, &checksums).is_some()
        {
            return Err("the data in the content of a block does not match its checksums".into());
        }
        let data = data.filter(|data| !data.is_empty());
        Ok(Held::Copy(Copied { version, units, written, checksums, data }))
    }

    /// Converts the content to the form that messages and store requests carry. `lost`: units that no member
    /// could read.
    pub fn into_content(self, block_size: BlockSize, lost: &Units) -> Content {
        match self {
            Held::Gone => Content::Gone,
            Held::Tombstone(version) => Content::Tombstone { version },
            Held::Copy(copied) => copied.into_content(block_size, lost),
        }
    }
}

/// Returns the 4 KiB units of a byte range, as (first, one past the last).
pub fn units_of(offset: u32, length: u32) -> (u32, u32) {
    let unit = UNIT_SIZE as u32;
    (offset / unit, (offset + length) / unit)
}

/// Returns whether a bitmap, of any length, has a unit.
pub fn has_unit(bitmap: &[u64], unit: u32) -> bool {
    bitmap.get(unit as usize / 64).is_some_and(|word| word & (1 << (unit % 64)) != 0)
}

/// Adds the bits of `other` to `bitmap`.
pub fn merge_bitmaps(bitmap: &mut Vec<u64>, other: &[u64]) {
    if bitmap.len() < other.len() {
        bitmap.resize(other.len(), 0);
    }
    for (word, more) in bitmap.iter_mut().zip(other) {
        *word |= more;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied(units: Range<u32>, byte: u8) -> Copied {
        let size = units.len() * UNIT_SIZE as usize;
        let data = BufferPool::default().copy_of(&vec![byte; size]);
        let mut checksums = Vec::new();
        checksum::checksum_units(&data, &mut checksums);
        let units = Units::from_range(units);
        Copied { version: Version::ZERO, units, written: units, checksums, data: Some(data) }
    }

    #[test]
    fn a_copy_takes_only_what_it_lacks() {
        let mut copy = copied(1..3, 7);
        copy.complete_with(&copied(0..4, 9), &BufferPool::default());
        assert_eq!(copy.units, Units::from_range(0..4));
        let data = copy.data.clone().unwrap();
        let bytes: Vec<u8> = data.chunks(UNIT_SIZE as usize).map(|unit| unit[0]).collect();
        assert_eq!(bytes, [9, 7, 7, 9]);
        assert_eq!(checksum::first_mismatch(&data, &copy.checksums), None);
        copy.complete_with(
            &Copied::zeros(Version::ZERO, Units::from_range(3..5)),
            &BufferPool::default(),
        );
        assert_eq!(copy.written, Units::from_range(0..4), "zeros replace nothing");
        assert_eq!(copy.units, Units::from_range(0..5));
    }

    #[test]
    fn contents_that_contradict_themselves_are_refused() {
        let size = BlockSize::MIN;
        let good = || copied(0..2, 1).into_content(size, &Units::default());
        assert!(Held::of(good(), size, true).is_ok());
        assert!(Held::of(good(), BlockSize::DEFAULT, true).is_err());
        let lost = copied(0..2, 1).into_content(size, &Units::from_range(1..3));
        let Ok(Held::Copy(copy)) = Held::of(lost, size, true) else { panic!("it is sound") };
        assert_eq!(copy.units, Units::from_range(0..2), "what is lost could not be read");
        let with = |change: fn(&mut Vec<u64>, &mut Vec<u64>, &mut Vec<Checksum>)| {
            let mut content = good();
            if let Content::Block { units, written, checksums, .. } = &mut content {
                change(units, written, checksums);
            }
            Held::of(content, size, true)
        };
        assert!(with(|units, _, _| units[0] = 1 << 40).is_err());
        assert!(with(|units, _, _| units[0] = 1).is_err());
        assert!(with(|_, written, _| written[0] = 1).is_err());
        assert!(with(|_, _, checksums| checksums.truncate(1)).is_err());
        assert!(with(|_, _, checksums| checksums[1] = Checksum::ZERO_UNIT).is_err());
    }
}
