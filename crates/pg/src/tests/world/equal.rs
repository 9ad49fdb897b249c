//! Checks that what the acting members hold belongs together, whatever happened.

use std::collections::{BTreeMap, BTreeSet};

use base::Version;
use blockstore::BlockKey;

use super::super::model::Block;
use super::super::parity::{Pieces, xor};
use super::super::{BLOCK_SIZE, UNITS};
use super::{World, index_of};
use crate::stripes::{Stripes, table::Table};
use crate::units::Units;

impl World {
    /// Checks that all acting members hold the same blocks, or pieces that belong together.
    pub fn check_equal(&self) {
        if let Some(stripes) = self.shape.face.stripes() {
            return self.check_stripes(stripes);
        }
        if !self.shape.face.is_whole_everywhere() {
            return self.check_pieces();
        }
        let acting: Vec<usize> = self.entry.acting().map(|member| index_of(member.osd)).collect();
        for index in &acting[1..] {
            let (mut one, mut other) = (self.blocks(acting[0]), self.blocks(*index));
            let damaged = |key| {
                let both = one.get(key).into_iter().chain(other.get(key));
                both.fold(0, |damaged, block| damaged | block.damaged)
            };
            // A unit that one of the members cannot read does not count as a difference.
            let damaged: BTreeMap<_, u64> =
                self.blocks(acting[0]).keys().map(|key| (*key, damaged(key))).collect();
            for (key, block) in one.iter_mut().chain(&mut other) {
                let lost = damaged.get(key).copied().unwrap_or(block.damaged);
                block.units.retain(|unit, _| lost & (1 << unit) == 0);
                block.damaged = 0;
            }
            for (key, block) in one {
                assert_eq!(Some(block), other.remove(&key), "members differ in {key:?}");
            }
            assert_eq!(other, BTreeMap::new(), "a member has too much");
        }
    }

    /// Checks that the parts of the acting members form one code word, and that the part tables match the
    /// data parts.
    fn check_stripes(&self, stripes: &Stripes) {
        let all: Vec<(usize, BTreeMap<_, Block>)> = (self.entry.filled())
            .map(|(position, member)| {
                (position.index(), self.osds[index_of(member.osd)].store.now.view())
            })
            .collect();
        let keys: BTreeSet<_> = all.iter().flat_map(|(_, blocks)| blocks.keys().copied()).collect();
        for key in keys {
            let parts: BTreeMap<usize, Block> = (all.iter())
                .map(|(position, blocks)| {
                    (*position, blocks.get(&key).cloned().unwrap_or_default())
                })
                .collect();
            check_code_word(stripes, key, &parts);
        }
    }

    fn check_pieces(&self) {
        let all: Vec<(usize, BTreeMap<_, Block>)> = (self.entry.filled())
            .map(|(position, member)| (position.index(), self.blocks(index_of(member.osd))))
            .collect();
        let mut stripes: BTreeMap<_, BTreeMap<usize, Pieces>> = BTreeMap::new();
        for (position, blocks) in all {
            for (key, block) in blocks {
                let pieces = Pieces::of(block.version, &block.units);
                stripes.entry(key).or_default().insert(position, pieces);
            }
        }
        for (key, pieces) in stripes {
            assert_eq!(pieces.len(), 3, "a piece of {key:?} is missing");
            let versions = [0, 1, 2].map(|position| pieces[&position].version);
            assert_eq!(versions, [versions[0]; 3], "pieces of several versions of {key:?}");
            assert_eq!(xor(&pieces[&0].now, &pieces[&1].now), pieces[&2].now, "{key:?}");
        }
    }
}

fn check_code_word(stripes: &Stripes, key: BlockKey, parts: &BTreeMap<usize, Block>) {
    let data_count = stripes.data_count();
    let value = |part: usize, unit: u32| {
        let value = parts[&part].units.get(&unit).copied().unwrap_or(0);
        let mut bytes = vec![0; 8];
        bytes[..4].copy_from_slice(&value.to_le_bytes());
        bytes
    };
    for (position, block) in parts.range(data_count..) {
        let table = Table::decode(&block.table, data_count, BLOCK_SIZE).expect("it is sound");
        for (index, known) in table.parts.iter().enumerate() {
            let Some(part) = parts.get(&index) else { continue };
            let version = if part.is_tombstone { Version::ZERO } else { part.version };
            assert_eq!(known.version, version, "part {index} of {key:?}, as {position} knows it");
            let written = part.units.keys().fold(Units::default(), |mut units, unit| {
                units.add(*unit);
                units
            });
            assert_eq!(known.written, written, "part {index} of {key:?}, as {position} knows it");
        }
        let written = block.units.keys().fold(Units::default(), |mut units, unit| {
            units.add(*unit);
            units
        });
        assert_eq!(written, table.written(), "parity {position} of {key:?}");
    }
    // The others can be reconstructed from any k parts.
    let present: Vec<usize> = parts.keys().copied().collect();
    for wanted in &present {
        let others: Vec<usize> = present.iter().copied().filter(|it| it != wanted).collect();
        let Ok(decoder) = stripes.code().decoder(&others, &[*wanted]) else { continue };
        for unit in 0..UNITS {
            let sources: Vec<Vec<u8>> =
                decoder.sources().iter().map(|source| value(*source, unit)).collect();
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let mut made = vec![0; 8];
            decoder.decode(&sources, &mut [&mut made]);
            assert_eq!(made, value(*wanted, unit), "unit {unit} of part {wanted} of {key:?}");
        }
    }
}
