//! Encodes and decodes little-endian fields. Reading past the end is an error, never a panic: the bytes
//! come from a disk or a peer.

use base::{Epoch, ImageId, PgId, PoolId, StripeIndex, Version};

use super::key::BlockKey;

/// Appends fields.
#[derive(Default)]
pub struct Writer {
    /// What was appended so far.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// Appends a number.
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    /// Appends a number.
    pub fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a number.
    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a number.
    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a number.
    pub fn u128(&mut self, value: u128) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a version.
    pub fn version(&mut self, version: Version) {
        self.u32(version.epoch.get());
        self.u64(version.counter);
    }

    /// Appends a key. No pool has the number 0, so 0 stands for no key.
    pub fn key(&mut self, key: Option<BlockKey>) {
        match key {
            Some(key) => {
                self.u32(key.pool.get());
                self.u32(key.hash);
                self.u32(key.image.get());
                self.u32(key.stripe.get());
            }
            None => self.u128(0),
        }
    }

    /// Appends a PG. No pool has the number 0, so 0 stands for no PG.
    pub fn pg(&mut self, pg: Option<PgId>) {
        self.u32(pg.map_or(0, |pg| pg.pool.get()));
        self.u32(pg.map_or(0, |pg| pg.number));
    }
}

/// Reads fields. `None`: there are not enough bytes, or a value is out of range.
pub struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Begins at the first byte.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes }
    }

    /// Whether nothing is left.
    pub fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes the next bytes.
    pub fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(size)?;
        self.bytes = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// Reads a number.
    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    /// Reads a number.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    /// Reads a number.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Reads a number.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a number.
    pub fn u128(&mut self) -> Option<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// Reads a version.
    pub fn version(&mut self) -> Option<Version> {
        Some(Version { epoch: Epoch::new(self.u32()?), counter: self.u64()? })
    }

    /// Reads a key; the inner `None`: none.
    pub fn key(&mut self) -> Option<Option<BlockKey>> {
        let (pool, hash, image, stripe) = (self.u32()?, self.u32()?, self.u32()?, self.u32()?);
        let Some(pool) = PoolId::new(pool) else { return Some(None) };
        let image = ImageId::new(image)?;
        Some(Some(BlockKey { pool, hash, image, stripe: StripeIndex::new(stripe) }))
    }

    /// Reads a key without its pool.
    pub fn key_in(&mut self, pool: PoolId) -> Option<BlockKey> {
        let (hash, image, stripe) = (self.u32()?, ImageId::new(self.u32()?)?, self.u32()?);
        Some(BlockKey { pool, hash, image, stripe: StripeIndex::new(stripe) })
    }

    /// Reads a PG; the inner `None`: none.
    pub fn pg(&mut self) -> Option<Option<PgId>> {
        let (pool, number) = (self.u32()?, self.u32()?);
        Some(PoolId::new(pool).map(|pool| PgId { pool, number }))
    }
}
