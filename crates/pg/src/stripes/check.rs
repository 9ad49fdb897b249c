//! Checks whether the parts of a stripe belong together, for callers that compare what members hold.
//!
//! Invariants
//!   1. A unit that a position cannot read is never reported as a contradiction.

use base::{BlockSize, Position, UNIT_SIZE, Version};
use format::wire::Content;

use super::Stripes;
use super::table::Table;
use crate::face::Face;
use crate::units::Units;

/// The part of a stripe that one position holds.
struct Part {
    index: usize,
    /// The part's version; zero: the position holds nothing, or the stripe was deleted.
    version: Version,
    written: Units,
    damaged: Units,
    /// The bytes of the whole part; zeros where it holds no data.
    bytes: Vec<u8>,
    /// The part table, if this is a parity part.
    table: Option<Table>,
}

impl Part {
    fn of(
        stripes: &Stripes,
        position: Position,
        content: &Content,
        block_size: BlockSize,
    ) -> Result<Part, String> {
        let is_data = stripes.is_data(position);
        let mut part = Part {
            index: position.index(),
            version: Version::ZERO,
            written: Units::default(),
            damaged: Units::default(),
            bytes: vec![0; block_size.bytes() as usize],
            table: (!is_data).then(|| Table::empty(stripes.data_count())),
        };
        let Content::Block { version, written, damaged, data, table, .. } = content else {
            return Ok(part);
        };
        let beyond = || format!("part {} has units beyond its end", position.index());
        part.version = *version;
        part.written = Units::from_words(written, block_size).ok_or_else(beyond)?;
        part.damaged = Units::from_words(damaged, block_size).ok_or_else(beyond)?;
        let data: &[u8] = data.as_deref().unwrap_or_default();
        for (unit, bytes) in part.written.iter().zip(data.chunks(UNIT_SIZE as usize)) {
            part.bytes[range_of(unit)].copy_from_slice(bytes);
        }
        if !is_data {
            part.table = Some(Table::decode(table, stripes.data_count(), block_size)?);
        }
        Ok(part)
    }
}

fn range_of(unit: u32) -> std::ops::Range<usize> {
    let start = unit as usize * UNIT_SIZE as usize;
    start..start + UNIT_SIZE as usize
}

/// Checks whether the parts of a stripe belong together. `held`: the whole block of each position, as of one
/// version, each position once. Returns a contradiction; `None`: there is none. Requires: `face` is that of a
/// pool with parity.
pub fn check_stripe(
    face: &dyn Face,
    block_size: BlockSize,
    held: &[(Position, Content)],
) -> Option<String> {
    let stripes = face.stripes().expect("the pool keeps parity");
    let parts = held.iter().map(|(at, content)| Part::of(stripes, *at, content, block_size));
    let parts: Vec<Part> = match parts.collect() {
        Ok(parts) => parts,
        Err(error) => return Some(error),
    };
    let contradictions = parts.iter().filter_map(|parity| tables_differ(parity, &parts));
    contradictions.into_iter().next().or_else(|| bytes_differ(stripes, block_size, &parts))
}

/// Compares the table of a parity part with the data parts, and with the tables of other parity parts.
fn tables_differ(parity: &Part, parts: &[Part]) -> Option<String> {
    let table = parity.table.as_ref()?;
    for part in parts.iter().filter(|part| part.table.is_none()) {
        let known = &table.parts[part.index];
        let (index, at) = (part.index, parity.index);
        if known.version != part.version {
            return Some(format!(
                "part {index} has version {}, but parity at position {at} was computed from version {}",
                part.version, known.version
            ));
        }
        if known.written.without(&part.damaged) != part.written.without(&part.damaged) {
            return Some(format!(
                "part {index} holds other units than those that parity at position {at} was computed from"
            ));
        }
    }
    let others = parts.iter().filter_map(|part| Some((part.index, part.table.as_ref()?)));
    if let Some((other, _)) = others.into_iter().find(|(_, other)| *other != table) {
        return Some(format!(
            "parity at positions {} and {other} was computed from different versions",
            parity.index
        ));
    }
    let made = table.written();
    (made.without(&parity.damaged) != parity.written.without(&parity.damaged)).then(|| {
        format!("parity at position {} has fewer or more units than the data parts", parity.index)
    })
}

/// Reconstructs parts from `k` others, and compares the bytes.
fn bytes_differ(stripes: &Stripes, block_size: BlockSize, parts: &[Part]) -> Option<String> {
    let differ = |units: &[u32]| {
        let is_sound = |part: &&Part| units.iter().all(|unit| !part.damaged.has(*unit));
        let sound: Vec<&Part> = parts.iter().filter(is_sound).collect();
        let (sources, rest) = sound.split_at_checked(stripes.data_count())?;
        let present: Vec<usize> = sources.iter().map(|part| part.index).collect();
        rest.iter().find_map(|wanted| {
            let decoder = stripes.code().decoder(&present, &[wanted.index]).ok()?;
            let bytes_of = |index: usize| {
                let part = sources.iter().find(|part| part.index == index);
                &part.expect("it is one of the sources").bytes
            };
            let sources: Vec<&[u8]> =
                decoder.sources().iter().map(|index| span(bytes_of(*index), units)).collect();
            let expected = span(&wanted.bytes, units);
            let mut made = vec![0; expected.len()];
            decoder.decode(&sources, &mut [&mut made]);
            let is_same = made == expected;
            (!is_same).then(|| {
                format!(
                    "the bytes of part {} differ from those computed from parts {present:?}",
                    wanted.index
                )
            })
        })
    };
    let all: Vec<u32> = (0..block_size.unit_count()).collect();
    match parts.iter().all(|part| part.damaged.is_empty()) {
        true => differ(&all),
        false => all.iter().find_map(|unit| differ(&[*unit])),
    }
}

/// Returns the bytes of consecutive units.
fn span<'a>(bytes: &'a [u8], units: &[u32]) -> &'a [u8] {
    let (first, last) = (units[0], units[units.len() - 1]);
    &bytes[range_of(first).start..range_of(last).end]
}

#[cfg(test)]
mod tests {
    use base::{BufferPool, Epoch, Scheme, checksum};

    use super::*;
    use crate::stripes::face_of;
    use crate::stripes::table::TablePart;

    const SIZE: BlockSize = BlockSize::MIN;

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(1), counter }
    }

    fn content(counter: u64, first: u8, table: Vec<u8>) -> Content {
        let buffers = BufferPool::default();
        let mut data = buffers.take_zeroed(UNIT_SIZE as usize);
        data[0] = first;
        let data = data.freeze();
        let words = |units: Units| units.words(SIZE);
        Content::Block {
            version: version(counter),
            block_size: SIZE,
            units: words(Units::from_range(0..SIZE.unit_count())),
            written: words(Units::from_range(0..1)),
            damaged: words(Units::default()),
            checksums: vec![checksum::crc32c(&data)],
            data: Some(data),
            table,
        }
    }

    /// A stripe of an `xor 2+1` pool in which only the first data part was written.
    fn stripe() -> Vec<(Position, Content)> {
        let mut table = Table::empty(2);
        table.parts[0] = TablePart { version: version(7), written: Units::from_range(0..1) };
        let at = |index| Position::new(index).unwrap();
        vec![
            (at(0), content(7, 9, Vec::new())),
            (at(1), Content::Gone),
            (at(2), content(7, 9, table.encode(SIZE))),
        ]
    }

    fn check(held: &[(Position, Content)]) -> Option<String> {
        check_stripe(face_of(Scheme::Xor { data: 2 }), SIZE, held)
    }

    #[test]
    fn parts_that_belong_together_contradict_nothing() {
        assert_eq!(check(&stripe()), None);
        assert_eq!(check(&stripe()[1..]), None, "without one position");
    }

    #[test]
    fn wrong_bytes_versions_and_units_are_found() {
        let mut held = stripe();
        held[0].1 = content(7, 8, Vec::new());
        assert!(check(&held).unwrap().contains("bytes"));
        held[0].1 = content(8, 9, Vec::new());
        assert!(check(&held).unwrap().contains("version"));
        held[0].1 = Content::Gone;
        assert!(check(&held).is_some());
        let mut held = stripe();
        held[1].1 = Content::Tombstone { version: version(8) };
        assert_eq!(check(&held), None, "deleted and never written are one");
        held[2].1 = Content::Gone;
        assert!(check(&held).is_some(), "parity lacks the stripe");
    }

    #[test]
    fn a_damaged_unit_contradicts_nothing() {
        let mut held = stripe();
        let Content::Block { written, damaged, checksums, data, .. } = &mut held[0].1 else {
            unreachable!("it is a block");
        };
        (*written, *damaged) = (vec![0], vec![1]);
        checksums.clear();
        *data = None;
        assert_eq!(check(&held), None);
    }
}
