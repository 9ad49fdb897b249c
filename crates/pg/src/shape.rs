//! The properties of a PG that outlive epochs, and the checks of operations and blocks that need nothing else.
//!
//! Invariants
//!   1. A request that passed these checks never makes the store or a buffer panic: its range lies in its
//!      block, and its data has one checksum for each unit.

use ::objects::PoolShape;
use base::hash::{hash_range_of_pg, stripe_hash};
use base::{BlockSize, Epoch, PgId, UNIT_SIZE, Version, checksum};
use blockstore::BlockKey;
use format::wire::{CHAIN_LENGTH_MAX, Op, PAYLOAD_SIZE_MAX, Place, Refusal};

use super::{Face, Limits};

/// Maximum counter of a version: more writes than any PG ever gets.
const COUNTER_MAX: u64 = u64::MAX / 2;

/// The properties of a PG that outlive epochs. Only the face may change: parity may be added.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The PG's id.
    pub pg: PgId,
    /// Number of PGs of the PG's pool.
    pub pg_count: u32,
    /// Block size of the PG's pool.
    pub block_size: BlockSize,
    /// The limits of the PG's lists and queues.
    pub limits: Limits,
    /// The face of the PG's pool: what the PG's keys hold.
    pub face: &'static dyn Face,
    /// Of a pool of objects: its shape. Its blocks are replicated.
    pub objects: Option<PoolShape>,
}

impl Shape {
    /// Returns the hash range of the PG's blocks, both ends included.
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

    /// Checks an operation for every error that its sender could have avoided.
    pub(crate) fn check_op(&self, op: &Op) -> Result<(), Refusal> {
        match op {
            Op::Read { place, offset, length, parents }
            | Op::ReadPart { place, offset, length, parents } => {
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
                    return invalid("a write must carry one checksum for each 4 KiB of data");
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
            Op::Mutate { .. } | Op::Look { .. } | Op::List { .. } => {
                invalid("the pool has blocks, not objects")
            }
        }
    }

    fn check_place(&self, place: &Place) -> Result<(), Refusal> {
        let (first, last) = self.hashes();
        if (first..=last).contains(&stripe_hash(place.seed, place.stripe)) {
            return Ok(());
        }
        invalid("the stripe does not belong to this PG")
    }

    pub(crate) fn check_range(&self, offset: u32, length: u64) -> Result<(), Refusal> {
        if length == 0 {
            return invalid("the range is empty");
        }
        if !u64::from(offset).is_multiple_of(UNIT_SIZE) || !length.is_multiple_of(UNIT_SIZE) {
            return invalid("offset and length must be multiples of 4 KiB");
        }
        if u64::from(offset) + length > self.block_size.bytes() * u64::from(self.face.data_count())
        {
            return invalid("the range ends beyond its block");
        }
        assert!(length <= u64::from(PAYLOAD_SIZE_MAX));
        Ok(())
    }

    /// Checks the key of a block that a peer sent.
    pub(crate) fn check_key(&self, key: BlockKey) -> Result<(), String> {
        let (first, last) = self.hashes();
        if key.pool == self.pg.pool && (first..=last).contains(&key.hash) {
            return Ok(());
        }
        Err("the block belongs to another PG".into())
    }
}

/// Checks a version that a peer sent: its epoch must not be above `epoch`, nor its counter above
/// `COUNTER_MAX`, so that counters never run out.
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
    invalid("the chain has more than 32 layers")
}

fn invalid(why: &str) -> Result<(), Refusal> {
    Err(Refusal::Invalid { why: why.into() })
}
