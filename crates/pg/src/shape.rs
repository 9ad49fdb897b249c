//! What a PG is made with, and the checks that need nothing else: of operations and of blocks.
//!
//! Invariants
//!   1. What passes a check here never makes the store or a buffer panic: ranges lie in their block, and
//!      data has one checksum for each unit.

use base::hash::{hash_range_of_pg, stripe_hash};
use base::{BlockSize, Epoch, PgId, UNIT_SIZE, Version, checksum};
use blockstore::BlockKey;
use format::wire::{CHAIN_LENGTH_MAX, Op, PAYLOAD_SIZE_MAX, Place, Refusal};

use super::{Face, Limits};

/// Highest counter of a version: more writes than any PG ever sees.
const COUNTER_MAX: u64 = u64::MAX / 2;

/// What a PG is made with; all of it outlives epochs.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Which PG.
    pub pg: PgId,
    /// Number of PGs of its pool.
    pub pg_count: u32,
    /// Block size of its pool.
    pub block_size: BlockSize,
    /// How much of everything it holds at once.
    pub limits: Limits,
    /// What its keys hold.
    pub face: &'static dyn Face,
}

impl Shape {
    /// Hashes of the PG's blocks, both ends included.
    pub fn hashes(&self) -> (u32, u32) {
        hash_range_of_pg(self.pg.number, self.pg_count)
    }

    pub(crate) fn key(&self, place: Place) -> BlockKey {
        BlockKey {
            pool: self.pg.pool,
            hash: stripe_hash(place.seed, place.stripe),
            image: place.image,
            stripe: place.stripe,
        }
    }

    /// Checks everything about an operation that its sender could have known to be wrong.
    pub(crate) fn check_op(&self, op: &Op) -> Result<(), Refusal> {
        match op {
            Op::Read { place, offset, length, parents } => {
                self.check_place(place)?;
                check_chain(parents.len())?;
                self.check_range(*offset, u64::from(*length))
            }
            Op::Extents { place, parents } => {
                self.check_place(place)?;
                check_chain(parents.len())
            }
            Op::Write { place, offset, checksums, data, .. } => {
                self.check_place(place)?;
                self.check_range(*offset, data.len() as u64)?;
                if checksums.len() as u64 * UNIT_SIZE != data.len() as u64 {
                    return invalid("a write carries one checksum for each 4 KiB of data");
                }
                match checksum::first_mismatch(data, checksums) {
                    None => Ok(()),
                    Some(_) => Err(Refusal::Corrupted),
                }
            }
            Op::Zero { place, offset, length, .. } => {
                self.check_place(place)?;
                self.check_range(*offset, u64::from(*length))
            }
            Op::Sync | Op::DeleteRange { .. } => Ok(()),
        }
    }

    fn check_place(&self, place: &Place) -> Result<(), Refusal> {
        let (first, last) = self.hashes();
        if (first..=last).contains(&stripe_hash(place.seed, place.stripe)) {
            return Ok(());
        }
        invalid("the stripe's hash does not fall in this PG")
    }

    pub(crate) fn check_range(&self, offset: u32, length: u64) -> Result<(), Refusal> {
        if length == 0 {
            return invalid("a range has at least one unit");
        }
        if !u64::from(offset).is_multiple_of(UNIT_SIZE) || !length.is_multiple_of(UNIT_SIZE) {
            return invalid("offset and length are multiples of 4 KiB");
        }
        if u64::from(offset) + length > self.block_size.bytes() {
            return invalid("the range ends beyond its block");
        }
        assert!(length <= u64::from(PAYLOAD_SIZE_MAX));
        Ok(())
    }

    /// Checks a block that a peer names.
    pub(crate) fn check_key(&self, key: BlockKey) -> Result<(), String> {
        let (first, last) = self.hashes();
        if key.pool == self.pg.pool && (first..=last).contains(&key.hash) {
            return Ok(());
        }
        Err("a block of another PG".into())
    }
}

/// Checks a version that a peer names in an epoch: none is of an epoch to come, and counters do not run
/// out.
pub(crate) fn check_version(version: Version, epoch: Epoch) -> Result<(), String> {
    if version.epoch <= epoch && version.counter <= COUNTER_MAX {
        return Ok(());
    }
    Err(format!("version {version} cannot exist in epoch {epoch}"))
}

fn check_chain(parent_count: usize) -> Result<(), Refusal> {
    if parent_count < CHAIN_LENGTH_MAX {
        return Ok(());
    }
    invalid("a chain has at most 32 layers")
}

fn invalid(why: &str) -> Result<(), Refusal> {
    Err(Refusal::Invalid { why: why.into() })
}
