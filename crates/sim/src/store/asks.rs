//! What the users of a store ask, and in which order: the workload.

use std::ops::Range;

use base::hash::{pg_of_hash, stripe_hash};
use base::{BlockSize, ImageId, PgId, PoolId, StripeIndex, UNIT_SIZE, Version, checksum};
use blockstore::{BlockKey, NoteKey, Request};

use super::model::ChangeKind;
use super::world::World;
use crate::pattern;
use crate::random::Chance;

/// An open request, and what its answer is compared with.
#[derive(Debug)]
pub(super) enum Asked {
    Change { key: BlockKey, order: u64 },
    Read { key: BlockKey, order: u64, units: Range<u32> },
    Extents { key: BlockKey, order: u64 },
    Note { key: NoteKey, order: u64 },
    Sync { order: u64 },
    Floor,
    Absolve { pg: PgId },
}

/// What a restart wants asked.
#[derive(Debug)]
pub(super) enum Todo {
    Read(BlockKey, Range<u32>),
    Absolve(PgId),
}

/// A block that the workload names.
#[derive(Clone, Copy)]
struct Target {
    key: BlockKey,
    pg: PgId,
    size: BlockSize,
}

/// What tells a unit's bytes from those of every other place.
pub(super) fn place_of(key: BlockKey, unit: u32) -> u64 {
    let stripe = u64::from(key.stripe.get());
    (u64::from(key.pool.get()) << 48) ^ (stripe << 16) ^ u64::from(unit)
}

impl World {
    /// Draws one operation and asks it.
    pub(super) fn ask_something(&mut self) -> Result<(), String> {
        let kind = self.work.weighted(&self.plan.weights);
        let changes = matches!(kind, 0..=2 | 5);
        if changes && self.store().is_congested() {
            return Ok(());
        }
        if kind == 0 && self.store().space().full && self.work.chance(Chance::percent(90)) {
            self.tally.faults.add("store full", 1);
            return Ok(());
        }
        let target = self.draw_target();
        if self.plan.polite && matches!(kind, 3 | 4) && self.is_changing(target.key) {
            return Ok(());
        }
        if self.plan.polite && matches!(kind, 0..=2) && self.is_read(target.key) {
            return Ok(());
        }
        self.asked_count += 1;
        self.tally.operations.add(super::OPERATIONS[kind], 1);
        match kind {
            0 => self.ask_write(target),
            1 => self.ask_zero(target),
            2 => self.ask_delete(target),
            3 => {
                let units = self.draw_units(target.size);
                self.ask_read(target.key, units)
            }
            4 => {
                let order = self.model.ask_read(target.key);
                let asked = Asked::Extents { key: target.key, order };
                self.request(asked, Request::Extents { key: target.key })
            }
            5 => self.ask_note(target.pg),
            6 => {
                let order = self.model.next_order();
                self.request(Asked::Sync { order }, Request::Sync)
            }
            _ => self.ask_floor(target.pg),
        }
    }

    fn is_changing(&self, of: BlockKey) -> bool {
        self.asked.values().any(|asked| matches!(asked, Asked::Change { key, .. } if *key == of))
    }

    fn is_read(&self, of: BlockKey) -> bool {
        let reads = |asked: &Asked| match asked {
            Asked::Read { key, .. } | Asked::Extents { key, .. } => *key == of,
            _ => false,
        };
        self.asked.values().any(reads)
    }

    fn draw_target(&mut self) -> Target {
        let index = self.work.index(self.plan.pools.len());
        let pool = &self.plan.pools[index];
        let (size, pg_count) = (pool.block_size, pool.pg_count);
        // Half of it goes to a few blocks, so that operations meet.
        let hot = self.work.chance(Chance::percent(50));
        let count = if hot { pool.stripe_count.min(6) } else { pool.stripe_count };
        let stripe = StripeIndex::new(self.work.below(u64::from(count)) as u32);
        let image = ImageId::FIRST;
        let hash = stripe_hash(image, stripe);
        let pool = PoolId::new(index as u32 + 1).expect("not 0");
        let key = BlockKey { pool, hash, image, stripe };
        let pg = PgId { pool, number: pg_of_hash(hash, pg_count) };
        self.model.block(key, pg, size);
        Target { key, pg, size }
    }

    fn draw_units(&mut self, size: BlockSize) -> Range<u32> {
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

    fn ask_write(&mut self, target: Target) -> Result<(), String> {
        let Target { key, pg, size } = target;
        let units = self.draw_units(size);
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
        };
        self.request(Asked::Change { key, order }, request)
    }

    fn ask_delete(&mut self, target: Target) -> Result<(), String> {
        let Target { key, pg, .. } = target;
        let version = self.next_version(pg);
        let order = self.note_change(target, version, ChangeKind::Delete, false);
        self.request(Asked::Change { key, order }, Request::Delete { pg, key, version })
    }

    /// A change of a block, as the model and the trace know it. Returns its order.
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
        };
        self.request(Asked::Read { key, order, units }, request)
    }

    fn ask_note(&mut self, pg: PgId) -> Result<(), String> {
        let cluster = self.work.chance(Chance::percent(20));
        let key = if cluster { NoteKey::Cluster } else { NoteKey::Pg(pg) };
        let remove = self.work.chance(Chance::percent(15));
        let (order, content) = self.model.ask_note(key, remove);
        let length = if remove { 0 } else { self.work.scale(16..20_000) as usize };
        let mut bytes = vec![0; length];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = content.to_le_bytes()[index % 8];
        }
        self.request(Asked::Note { key, order }, Request::Note { key, bytes })
    }

    /// A floor up to which every change is answered.
    fn ask_floor(&mut self, pg: PgId) -> Result<(), String> {
        let model = self.model.pgs.get_mut(&pg).expect("made with its first block");
        let below_open =
            model.open.first().map(|open| Version { epoch: open.epoch, counter: open.counter - 1 });
        let floor = below_open.unwrap_or(model.certain).min(model.certain).max(model.floor);
        model.floor = floor;
        self.trace.line(format_args!("  floor {floor} in {pg}"));
        self.request(Asked::Floor, Request::SetFloor { pg, floor })
    }

    /// Asks what a restart wants asked.
    pub(super) fn ask_todo(&mut self, todo: Todo) -> Result<(), String> {
        match todo {
            Todo::Read(key, units) => self.ask_read(key, units),
            Todo::Absolve(pg) => self.request(Asked::Absolve { pg }, Request::Absolve { pg }),
        }
    }

    /// Every block of the run and its number of units.
    pub(super) fn audit_list(&self) -> Vec<(BlockKey, u32)> {
        self.model.blocks.iter().map(|(key, block)| (*key, block.size.unit_count())).collect()
    }
}
