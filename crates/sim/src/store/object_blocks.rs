//! Blocks of the object pool: what batches change of them, and what reads of them may show.
//!
//! A unit has one value for each batch that wrote it. So a read tells which batch it shows, and whether records and
//! blocks are of one state: the state of a PG has both, and a store has it whole.

use std::collections::BTreeMap;
use std::ops::Range;

use base::{BlockSize, Buffer, ImageId, PgId, PoolId, StripeIndex, UNIT_SIZE, Version, checksum};
use blockstore::{Answer, AsOf, BlockKey, Request, Store, StoreError};
use format::disk::{BlockAction, BlockChange, LOCATION_NONE, UnitSet};

use super::answers::values_of;
use super::asked::Asked;
use super::asks::place_of;
use super::world::World;
use crate::pattern;
use crate::random::{Chance, Random};

/// Most units of a batch that may lie in the journal: the smallest journal has room for them, beside records
/// and what other requests need.
const UNITS_HERE_MAX: u32 = 64;

/// The blocks that a PG of the object pool uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct BlocksPlan {
    pub block_size: BlockSize,
    /// The number of blocks in a PG.
    pub block_count: u32,
    /// Probability that a batch changes blocks.
    pub changes: Chance,
    /// Probability that a block is written as a whole, if it is changed.
    pub whole: Chance,
}

impl BlocksPlan {
    pub fn draw(random: &mut Random) -> BlocksPlan {
        let shift = *random.pick(&[14, 16, 17, 17]);
        BlocksPlan {
            block_size: BlockSize::from_shift(shift).expect("in range"),
            block_count: random.range(1..9) as u32,
            changes: Chance::percent(*random.pick(&[20, 60, 90])),
            whole: Chance::percent(*random.pick(&[10, 30, 60])),
        }
    }
}

/// A block: `None` stands for what is not known after damage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct BlockState {
    /// The version; `ZERO`: there is no block.
    pub version: Option<Version>,
    /// The value of each unit; 0: zeros.
    units: Vec<Option<u64>>,
}

impl BlockState {
    fn new(size: BlockSize) -> BlockState {
        let units = vec![Some(0); size.unit_count() as usize];
        BlockState { version: Some(Version::ZERO), units }
    }

    fn apply(&mut self, line: &BlockChange, value: u64) {
        self.version = Some(line.version);
        let value = if line.action == BlockAction::Units { value } else { 0 };
        line.units.iter().for_each(|unit| self.units[unit as usize] = Some(value));
        if line.action == BlockAction::Gone {
            self.version = Some(Version::ZERO);
            self.units.fill(Some(0));
        }
    }

    fn forget(&mut self) {
        self.version = None;
        self.units.fill(None);
    }

    /// Whether the block may look like this.
    fn allows(&self, version: Version, units: &Range<u32>, values: &[Option<u64>]) -> bool {
        let same = |(unit, found): (u32, &Option<u64>)| {
            let wanted = self.units[unit as usize];
            wanted.is_none() || found.is_none() || wanted == *found
        };
        self.version.is_none_or(|of| of == version) && units.clone().zip(values).all(same)
    }

    /// Whether the block has data; `None`: it is not known.
    fn is_written(&self) -> Option<bool> {
        let is_known = self.units.iter().all(Option::is_some);
        let is_written = self.units.iter().any(|value| value.is_some_and(|value| value != 0));
        (is_known || is_written).then_some(is_written)
    }
}

/// The blocks of a PG.
pub(super) type BlockStates = BTreeMap<BlockKey, BlockState>;

/// Returns the blocks of a PG of which nothing was written.
pub(super) fn no_blocks(pg: PgId, plan: &BlocksPlan) -> BlockStates {
    let key = |number: u32| BlockKey {
        pool: pg.pool,
        hash: pg.number << 28 | number,
        image: ImageId::FIRST,
        stripe: StripeIndex::new(pg.number * plan.block_count + number),
    };
    (0..plan.block_count).map(|number| (key(number), BlockState::new(plan.block_size))).collect()
}

/// Makes all blocks unknown.
pub(super) fn forget(blocks: &mut BlockStates) {
    blocks.values_mut().for_each(BlockState::forget);
}

/// Applies lines. `value`: that of the units that they write.
pub(super) fn apply_lines(blocks: &mut BlockStates, lines: &[BlockChange], value: u64) {
    for line in lines {
        blocks.get_mut(&line.key).expect("a block of the PG").apply(line, value);
    }
}

/// Draws lines for blocks of a PG, whose units get `value`. The versions of the blocks are above `after`, up
/// to `version`.
pub(super) fn draw_lines(
    random: &mut Random,
    plan: &BlocksPlan,
    (after, version): (Version, Version),
    (blocks, value): (&BlockStates, u64),
) -> Vec<(BlockChange, Buffer)> {
    let mut lines = Vec::new();
    if !random.chance(plan.changes) {
        return lines;
    }
    let unit_count = plan.block_size.unit_count();
    let mut here = 0;
    let count = random.range(1..5);
    let keys: Vec<BlockKey> = blocks.keys().copied().collect();
    for key in keys {
        if random.below(keys_share(plan.block_count, count)) > 0 {
            continue;
        }
        let mut counter = version.counter;
        if after.epoch == version.epoch {
            counter -= random.below(version.counter - after.counter);
        }
        let line = |action, units| BlockChange {
            action,
            key,
            version: Version { counter, ..version },
            location: LOCATION_NONE,
            units,
            checksums: Vec::new(),
        };
        let draw_units = |random: &mut Random| {
            let from = random.below(u64::from(unit_count)) as u32;
            let to = from + 1 + random.below(u64::from((unit_count - from).min(20))) as u32;
            let mut units = UnitSet::EMPTY;
            (from..to).filter(|_| random.chance(Chance::percent(90))).for_each(|u| units.insert(u));
            units
        };
        let mut of_block = Vec::new();
        if random.chance(Chance::percent(10)) {
            of_block.push(line(BlockAction::Gone, UnitSet::EMPTY));
        } else {
            let mut units = match random.chance(plan.whole) {
                true => UnitSet::first(unit_count),
                false => draw_units(random),
            };
            if units.count() < unit_count {
                here += units.count();
            }
            if here > UNITS_HERE_MAX || random.chance(Chance::percent(10)) {
                units = UnitSet::EMPTY;
            }
            let mut zeros = UnitSet::EMPTY;
            if random.chance(Chance::percent(30)) {
                let drawn = draw_units(random);
                drawn.iter().filter(|unit| !units.contains(*unit)).for_each(|u| zeros.insert(u));
            }
            of_block.push(line(BlockAction::Units, units));
            of_block.push(line(BlockAction::Zeros, zeros));
            of_block.retain(|line| !line.units.is_empty());
        }
        for mut line in of_block {
            let mut bytes = Vec::new();
            if line.action == BlockAction::Units {
                bytes.resize(line.units.count() as usize * UNIT_SIZE as usize, 0);
                let pieces = bytes.chunks_exact_mut(UNIT_SIZE as usize);
                for (piece, unit) in pieces.zip(line.units.iter()) {
                    pattern::fill(piece, value, place_of(key, unit));
                }
                checksum::checksum_units(&bytes, &mut line.checksums);
            }
            lines.push((line, base::BufferPool::default().copy_of(&bytes)));
        }
    }
    lines
}

/// Each block changes with a probability of 1 in this number, so that about `count` of them change.
fn keys_share(block_count: u32, count: u64) -> u64 {
    (u64::from(block_count) / count).max(1)
}

/// A read of a block, with what is needed to check its answer.
#[derive(Debug)]
pub(super) struct BlockAsked {
    pg: PgId,
    key: BlockKey,
    units: Range<u32>,
    /// The newest version of the PG that was journaled when the read was requested.
    least: Version,
}

/// Compares the blocks of a restarted store with what it must have.
pub(super) fn check_blocks(store: &Store, blocks: &BlockStates) -> Result<(), String> {
    for (key, block) in blocks {
        let found = store.version_of(key);
        if block.version.is_some_and(|version| version != found) {
            return Err(format!("but its block {key:?} {found}, not {block:?}"));
        }
        if store.is_tombstone(key) {
            return Err(format!("{key:?} of an object pool is a tombstone"));
        }
    }
    Ok(())
}

/// Compares the listing of the pool with the blocks that it may have.
pub(super) fn check_list(
    store: &Store,
    pool: PoolId,
    known: impl Fn(&BlockKey) -> bool,
) -> Result<(), String> {
    match store.blocks(pool, 0, u32::MAX, None).find(|(key, ..)| !known(key)) {
        Some(found) => Err(format!("{found:?} is listed, but was never written")),
        None => Ok(()),
    }
}

/// Returns the bytes of the places of blocks; `None`: it is not known.
pub(super) fn used_bytes<'a>(
    plan: &BlocksPlan,
    mut blocks: impl Iterator<Item = &'a BlockState>,
) -> Option<u64> {
    blocks.try_fold(0, |sum, block| {
        Some(sum + if block.is_written()? { plan.block_size.bytes() } else { 0 })
    })
}

impl World {
    /// Reads units of a block.
    pub(super) fn ask_object_block(
        &mut self,
        pg: PgId,
        key: BlockKey,
        units: Range<u32>,
    ) -> Result<(), String> {
        self.tally.operations.add("object block read", 1);
        let least = self.store().last_version(pg);
        let unit = UNIT_SIZE as u32;
        let (offset, length) = (units.start * unit, (units.end - units.start) * unit);
        let asked = BlockAsked { pg, key, units, least };
        let request = Request::Read { key, offset, length, as_of: AsOf::View };
        self.request(Asked::ObjectBlock(asked), request)
    }

    /// Compares the answer with the states of the PG that the read may show.
    pub(super) fn object_block_answered(
        &mut self,
        asked: &BlockAsked,
        result: Result<Answer, StoreError>,
    ) -> Result<(), String> {
        let BlockAsked { pg, key, units, least } = asked;
        let (version, values) = match result {
            Ok(Answer::Read { version, checksums, data }) => {
                (version, values_of(*key, units, &checksums, &data)?)
            }
            Err(StoreError::Damaged { units }) => return self.damage.met(*key, &units),
            result => return Err(format!("{asked:?} is answered with {result:?}")),
        };
        let objects = self.objects.as_ref().expect("it was asked for");
        let may_show = objects.block_states(*pg, *least, key);
        let mut expected = Vec::new();
        for state in may_show {
            if state.allows(version, units, &values) {
                return Ok(());
            }
            expected.push(state);
        }
        let newest = expected.last();
        Err(format!(
            "a read of {key:?} of PG {pg}, at {least} or later, shows {version} and {values:?}, \
             which no state has; the newest is {newest:?}"
        ))
    }
}
