//! The workload of a store: random requests of its users.

use std::ops::Range;

use base::hash::{pg_of_hash, stripe_hash};
use base::{BlockSize, Epoch, ImageId, PgId, PoolId, StripeIndex, UNIT_SIZE, Version, checksum};
use blockstore::{AsOf, BlockKey, NoteKey, Request};
use format::disk::UnitSet;
use format::wire::Content;

use super::asked::{Asked, Todo};
use super::catalog::OPERATIONS;
use super::model::{ChangeKind, UNKNOWN};
use super::parity::ParityAsk;
use super::part_tables::set_of;
use super::world::World;
use crate::pattern;
use crate::random::Chance;

/// The block that a request is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    pub key: BlockKey,
    pub pg: PgId,
    pub size: BlockSize,
}

/// Indexes of some operations in `OPERATIONS`.
const WRITE: usize = 0;
const DELETE: usize = 2;
/// A write of a whole block; it is counted as a write.
const WHOLE_WRITE: usize = OPERATIONS.len();

/// Returns the request that a kind of operation makes in a pool that keeps parity.
fn parity_ask(kind: usize) -> ParityAsk {
    match kind {
        WHOLE_WRITE => ParityAsk::Write { is_whole: true },
        WRITE => ParityAsk::Write { is_whole: false },
        1 => ParityAsk::Zero,
        DELETE => ParityAsk::Delete,
        3 => ParityAsk::Read,
        4 => ParityAsk::Extents,
        5 => ParityAsk::Settle,
        7 => ParityAsk::Floor,
        8 => ParityAsk::Copy,
        _ => ParityAsk::Mend,
    }
}

/// Returns a number that is different for each unit of each block.
pub(super) fn place_of(key: BlockKey, unit: u32) -> u64 {
    let stripe = u64::from(key.stripe.get());
    (u64::from(key.pool.get()) << 48) ^ (stripe << 16) ^ u64::from(unit)
}

impl World {
    /// Draws one operation and sends the request.
    pub(super) fn ask_something(&mut self) -> Result<(), String> {
        let is_checking = self.asked.values().any(|asked| matches!(asked, Asked::Metadata));
        if !is_checking && self.checks.chance(self.plan.checks_metadata) {
            let page_count = self.checks.range(1..300) as u32;
            return self.ask_metadata(page_count);
        }
        let (kind, target) = match self.draw_mixed() {
            Some(mixed) => mixed,
            None => (self.work.weighted(&self.plan.weights), self.draw_target()),
        };
        let changes = matches!(kind, WRITE..=DELETE | 5 | 9 | WHOLE_WRITE);
        if changes && self.store().is_congested() {
            return Ok(());
        }
        if matches!(kind, WRITE | 9 | WHOLE_WRITE)
            && self.store().space().full
            && self.work.chance(Chance::percent(90))
        {
            self.tally.faults.add("store full", 1);
            return Ok(());
        }
        if self.plan.polite && matches!(kind, 3 | 4 | 8) && self.is_changing(target.key) {
            return Ok(());
        }
        if self.plan.polite
            && matches!(kind, WRITE..=DELETE | 9 | WHOLE_WRITE)
            && self.is_read(target.key)
        {
            return Ok(());
        }
        self.asked_count += 1;
        self.tally.operations.add(OPERATIONS[kind % WHOLE_WRITE], 1);
        if kind != 6 && self.keeps_parity(target.key) {
            return self.ask_parity(parity_ask(kind), target);
        }
        match kind {
            WHOLE_WRITE => self.ask_write(target, 0..target.size.unit_count()),
            WRITE => {
                let units = self.draw_units(target.size);
                self.ask_write(target, units)
            }
            1 => self.ask_zero(target),
            DELETE => self.ask_delete(target),
            3 => {
                let units = self.draw_units(target.size);
                self.ask_read(target.key, units)
            }
            4 => {
                let order = self.model.ask_read(target.key);
                let asked = Asked::Extents { key: target.key, order };
                self.request(asked, Request::Extents { key: target.key, as_of: AsOf::View })
            }
            5 => self.ask_note(target.pg),
            6 => {
                let order = self.model.next_order();
                let lasts = self.parity_lasts();
                self.request(Asked::Sync { order, lasts }, Request::Sync)
            }
            7 => self.ask_floor(target.pg),
            8 => self.ask_copy(target),
            _ => self.ask_repair(target),
        }
    }

    /// Checks the next portion of the store's metadata.
    pub(super) fn ask_metadata(&mut self, page_count: u32) -> Result<(), String> {
        let after = self.metadata_next;
        self.request(Asked::Metadata, Request::CheckMetadata { after, page_count })
    }

    fn is_changing(&self, of: BlockKey) -> bool {
        self.asked.values().any(|asked| matches!(asked, Asked::Change { key, .. } if *key == of))
    }

    fn is_read(&self, of: BlockKey) -> bool {
        let reads = |asked: &Asked| match asked {
            Asked::Read { key, .. } | Asked::Extents { key, .. } | Asked::Copy { key, .. } => {
                *key == of
            }
            _ => false,
        };
        self.asked.values().any(reads)
    }

    /// In a run that mixes block sizes: first fills the store with blocks of the first size. Then
    /// deletes most of these at random, writes blocks of the second size, and changes blocks of the
    /// first size while the store moves them.
    fn draw_mixed(&mut self) -> Option<(usize, Target)> {
        if !self.plan.is_mixed || self.work.chance(Chance::percent(15)) {
            return None;
        }
        let count = u64::from(self.plan.pools[0].stripe_count);
        if self.asked_count < count {
            return Some((WHOLE_WRITE, self.target(0, self.asked_count as u32)));
        }
        let thins = self.asked_count < count * 3;
        let stripe = self.work.below(count) as u32;
        match self.work.weighted(&[if thins { 40 } else { 10 }, 30, 30]) {
            0 => Some((DELETE, self.target(0, stripe))),
            1 => Some((WRITE, self.target(0, stripe))),
            _ => {
                let stripe = self.work.below(u64::from(self.plan.pools[1].stripe_count)) as u32;
                Some((WHOLE_WRITE, self.target(1, stripe)))
            }
        }
    }

    fn draw_target(&mut self) -> Target {
        let index = self.work.index(self.plan.pools.len());
        // Half of the operations access a few blocks, so that they conflict.
        let hot = self.work.chance(Chance::percent(50));
        let most = self.plan.pools[index].stripe_count;
        let count = if hot { most.min(6) } else { most };
        let stripe = self.work.below(u64::from(count)) as u32;
        self.target(index, stripe)
    }

    fn target(&mut self, index: usize, stripe: u32) -> Target {
        let pool = &self.plan.pools[index];
        let (size, pg_count) = (pool.block_size, pool.pg_count);
        let stripe = StripeIndex::new(stripe);
        let image = ImageId::FIRST;
        let hash = stripe_hash(image, stripe);
        let pool = PoolId::new(index as u32 + 1).expect("not 0");
        let key = BlockKey { pool, hash, image, stripe };
        let pg = PgId { pool, number: pg_of_hash(hash, pg_count) };
        match self.keeps_parity(key) {
            true => self.versions.block(key, pg, size),
            false => drop(self.model.block(key, pg, size)),
        }
        Target { key, pg, size }
    }

    pub(super) fn draw_units(&mut self, size: BlockSize) -> Range<u32> {
        let unit_count = u64::from(size.unit_count());
        let large = (64 * base::KIB / UNIT_SIZE).min(unit_count);
        let length = match self.work.weighted(&self.plan.write_weights) {
            0 => self.work.range(1..5).min(unit_count),
            1 => self.work.range(1..unit_count + 1),
            2 => self.work.range(large..unit_count + 1),
            _ => unit_count,
        };
        let first = self.work.below(unit_count - length + 1);
        first as u32..(first + length) as u32
    }

    fn next_version(&mut self, pg: PgId) -> Version {
        self.model.pgs[&pg].given.next_in(self.epoch)
    }

    fn ask_write(&mut self, target: Target, units: Range<u32>) -> Result<(), String> {
        let Target { key, pg, size } = target;
        let length = u64::from(units.end - units.start) * UNIT_SIZE;
        let version = self.next_version(pg);
        let large = length >= 64 * base::KIB || length == size.bytes();
        let kind = ChangeKind::Write(units.clone());
        let order = self.note_change(target, version, kind, large);
        self.damage.written.insert(order, (key, units.clone()));
        let mut data = self.pool.take(length as usize);
        for (unit, bytes) in units.clone().zip(data.chunks_exact_mut(UNIT_SIZE as usize)) {
            pattern::fill(bytes, order, place_of(key, unit));
        }
        let mut checksums = Vec::new();
        checksum::checksum_units(&data, &mut checksums);
        let request = Request::Write {
            pg,
            key,
            block_size: size,
            version,
            offset: units.start * UNIT_SIZE as u32,
            checksums,
            data: data.freeze(),
            lazy: self.work.chance(self.plan.lazy),
        };
        self.request(Asked::Change { key, order }, request)
    }

    fn ask_zero(&mut self, target: Target) -> Result<(), String> {
        let Target { key, pg, size } = target;
        let units = self.draw_units(size);
        let version = self.next_version(pg);
        let order = self.note_change(target, version, ChangeKind::Zero(units.clone()), false);
        let request = Request::Zero {
            pg,
            key,
            block_size: size,
            version,
            offset: units.start * UNIT_SIZE as u32,
            length: (units.end - units.start) * UNIT_SIZE as u32,
            lazy: self.work.chance(self.plan.lazy),
        };
        self.request(Asked::Change { key, order }, request)
    }

    fn ask_delete(&mut self, target: Target) -> Result<(), String> {
        let Target { key, pg, .. } = target;
        let version = self.next_version(pg);
        let order = self.note_change(target, version, ChangeKind::Delete, false);
        self.request(Asked::Change { key, order }, Request::Delete { pg, key, version })
    }

    /// Records a change of a block in the model and in the trace. Returns the change's order.
    fn note_change(
        &mut self,
        target: Target,
        version: Version,
        kind: ChangeKind,
        large: bool,
    ) -> u64 {
        let (pg, stripe) = (target.pg, target.key.stripe);
        self.trace.line(format_args!("  {version} in {pg}, stripe {stripe}: {kind:?}"));
        self.model.ask(target.key, version, kind, large)
    }

    pub(super) fn ask_read(&mut self, key: BlockKey, units: Range<u32>) -> Result<(), String> {
        let order = self.model.ask_read(key);
        let request = Request::Read {
            key,
            offset: units.start * UNIT_SIZE as u32,
            length: (units.end - units.start) * UNIT_SIZE as u32,
            as_of: AsOf::View,
        };
        self.request(Asked::Read { key, order, units }, request)
    }

    /// Draws a set of units of a block; each unit is in the set with probability `share`.
    pub(super) fn draw_set(&mut self, size: BlockSize, share: Chance) -> UnitSet {
        let mut set = UnitSet::EMPTY;
        for unit in 0..size.unit_count() {
            if self.work.chance(share) {
                set.insert(unit);
            }
        }
        set
    }

    fn ask_copy(&mut self, target: Target) -> Result<(), String> {
        let Target { key, size, .. } = target;
        let all = UnitSet::first(size.unit_count());
        let some = self.draw_set(size, Chance::percent(30));
        let is_all = some.is_empty() || self.work.chance(Chance::percent(50));
        let units = if is_all { all } else { some };
        let words = if is_all { Vec::new() } else { units.words(size.unit_count()) };
        let order = self.model.ask_read(key);
        self.request(
            Asked::Copy { key, order, units },
            Request::Copy { key, units: words, as_of: AsOf::View },
        )
    }

    fn ask_repair(&mut self, target: Target) -> Result<(), String> {
        if self.work.chance(Chance::percent(25)) {
            return self.ask_mend(target);
        }
        let Target { key, pg, size } = target;
        let kind = self.work.weighted(&[6, 6, 2, 2]);
        if kind == 3 {
            let order = self.note_change(target, Version::ZERO, ChangeKind::RepairGone, false);
            let request = Request::Repair { pg, key, content: Content::Gone };
            return self.request(Asked::Change { key, order }, request);
        }
        let Some(version) = self.repair_version(target) else { return Ok(()) };
        if kind == 2 {
            let order = self.note_change(target, version, ChangeKind::RepairTombstone, false);
            let content = Content::Tombstone { version };
            let request = Request::Repair { pg, key, content };
            return self.request(Asked::Change { key, order }, request);
        }
        let units = match kind {
            0 => UnitSet::first(size.unit_count()),
            _ => self.draw_set(size, Chance::percent(20)),
        };
        let share = *self.work.pick(&[0, 20, 90, 100]);
        let written = self.draw_set(size, Chance::percent(share)).within(&units);
        let length = u64::from(written.count()) * UNIT_SIZE;
        let large = length >= 64 * base::KIB || length == size.bytes();
        let zeros = units.iter().filter(|unit| !written.contains(*unit)).collect();
        let kind = ChangeKind::Repair { written: written.iter().collect(), zeros };
        let order = self.note_change(target, version, kind, large);
        self.damage.written.insert(order, (key, 0..size.unit_count()));
        let values: Vec<u64> = (0..size.unit_count())
            .map(|unit| if written.contains(unit) { order } else { 0 })
            .collect();
        let content = self.content(target, version, units, &values);
        self.request(Asked::Change { key, order }, Request::Repair { pg, key, content })
    }

    /// Draws a version for a repair: an older version, or the next version of the PG, but none that
    /// another change of the block has.
    fn repair_version(&mut self, target: Target) -> Option<Version> {
        let next = self.next_version(target.pg);
        let version = match self.work.chance(Chance::percent(30)) {
            true => next,
            false => Version {
                epoch: Epoch::new(1 + self.work.below(u64::from(self.epoch.get())) as u32),
                counter: 1 + self.work.below(next.counter),
            },
        };
        if version >= next {
            self.model.pgs.get_mut(&target.pg).expect("made with its first block").given = next;
            return Some(next);
        }
        self.model.blocks[&target.key].is_distinct(version).then_some(version)
    }

    /// Requests a repair that rewrites some units with their current content and the block's current
    /// version.
    fn ask_mend(&mut self, target: Target) -> Result<(), String> {
        let Target { key, pg, size } = target;
        let Some(state) = self.model.blocks[&key].settled_state() else { return Ok(()) };
        let (Some(version), false) = (state.version, state.deleted) else { return Ok(()) };
        if version == Version::ZERO || self.store().version_of(&key) != version {
            return Ok(());
        }
        let values = state.units.clone();
        let mut units = self.draw_set(size, Chance::percent(40));
        for (unit, value) in (0..).zip(&values) {
            if *value == UNKNOWN {
                units.remove(unit);
            }
        }
        let content = self.content(target, version, units, &values);
        self.request(Asked::Mend, Request::Repair { pg, key, content })
    }

    /// Builds a block content that encodes these values.
    pub(super) fn content(
        &mut self,
        target: Target,
        version: Version,
        units: UnitSet,
        values: &[u64],
    ) -> Content {
        let Target { key, size, .. } = target;
        let mut written = units;
        units
            .iter()
            .filter(|unit| values[*unit as usize] == 0)
            .for_each(|unit| written.remove(unit));
        let mut data = self.pool.take(written.count() as usize * UNIT_SIZE as usize);
        for (unit, bytes) in written.iter().zip(data.chunks_exact_mut(UNIT_SIZE as usize)) {
            pattern::fill(bytes, values[unit as usize], place_of(key, unit));
        }
        let mut checksums = Vec::new();
        checksum::checksum_units(&data, &mut checksums);
        let count = size.unit_count();
        Content::Block {
            version,
            block_size: size,
            units: units.words(count),
            written: written.words(count),
            damaged: UnitSet::EMPTY.words(count),
            checksums,
            data: (!written.is_empty()).then(|| data.freeze()),
            table: Vec::new(),
        }
    }

    fn ask_note(&mut self, pg: PgId) -> Result<(), String> {
        let key = match self.work.below(10) {
            0 => NoteKey::Cluster,
            1 => NoteKey::State(1 + self.work.below(3) as u32),
            _ => NoteKey::Pg(pg),
        };
        let remove = self.work.chance(Chance::percent(15));
        let (order, content) = self.model.ask_note(key, remove);
        let length = if remove { 0 } else { self.work.scale(16..20_000) as usize };
        let mut bytes = vec![0; length];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = content.to_le_bytes()[index % 8];
        }
        self.request(Asked::Note { key, order }, Request::Note { key, bytes })
    }

    /// Requests a floor: a version up to which all changes have been answered.
    fn ask_floor(&mut self, pg: PgId) -> Result<(), String> {
        let model = self.model.pgs.get_mut(&pg).expect("made with its first block");
        let below_open =
            model.open.first().map(|open| Version { epoch: open.epoch, counter: open.counter - 1 });
        let floor = below_open.unwrap_or(model.certain).min(model.certain).max(model.floor);
        model.floor = floor;
        self.trace.line(format_args!("  floor {floor} in {pg}"));
        self.request(Asked::Floor, Request::SetFloor { pg, floor })
    }

    /// Sends a request that takes precedence over random requests.
    pub(super) fn ask_todo(&mut self, todo: Todo) -> Result<(), String> {
        match todo {
            Todo::Read(key, units) => self.ask_read(key, units),
            Todo::ParityRead(key, as_of, units) => self.ask_parity_range(key, as_of, units),
            Todo::ParityWrite(_) | Todo::ParityMend(_) if self.store().is_congested() => Ok(()),
            Todo::ParityTakeBack { pg, tries } => self.take_back(pg, tries),
            Todo::ParityMend(target) => self.ask_parity(ParityAsk::Mend, target),
            Todo::ParityWrite(target) => {
                self.ask_parity(ParityAsk::Write { is_whole: true }, target)
            }
            Todo::ParityCopy(key, as_of, units) => self.ask_parity_copy(key, as_of, set_of(units)),
            Todo::Absolve(pg) => self.request(Asked::Absolve { pg }, Request::Absolve { pg }),
        }
    }

    /// Lists every block in pools that keep parity, with its number of units.
    pub(super) fn parity_audit_list(&self) -> Vec<(BlockKey, u32)> {
        self.versions.keys.iter().map(|(key, of)| (*key, of.size.unit_count())).collect()
    }

    /// Lists every block in the other pools, with its number of units.
    pub(super) fn audit_list(&self) -> Vec<(BlockKey, u32)> {
        self.model.blocks.iter().map(|(key, block)| (*key, block.size.unit_count())).collect()
    }
}
