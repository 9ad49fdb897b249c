//! Bytes whose structure the wire does not know: operations on objects, and what reads of objects answer.
//!
//! Invariants
//!   1. The data is the bytes, padded with zeros to whole units, and there is one checksum for each unit.

use base::checksum::{checksum_units, first_mismatch};
use base::{Buffer, BufferPool, Checksum, UNIT_SIZE};

use super::decode_error::{DecodeError, wrong};
use super::fields::{Reader, put_checksums, put_u32};
use super::message::PAYLOAD_SIZE_MAX;

/// Bytes that travel as the payload of a message. At most [`PAYLOAD_SIZE_MAX`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Payload {
    /// Number of bytes, without the padding.
    length: u32,
    checksums: Vec<Checksum>,
    /// The bytes and the padding. `None`: there are no bytes.
    data: Option<Buffer>,
}

impl Payload {
    /// Creates the payload. Requires: at most [`PAYLOAD_SIZE_MAX`] bytes.
    pub fn new(bytes: &[u8], pool: &BufferPool) -> Payload {
        Payload::joined([bytes], pool)
    }

    /// Creates a payload of several parts, one behind the other. Requires: at most [`PAYLOAD_SIZE_MAX`]
    /// bytes.
    pub fn joined<'a>(
        parts: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
        pool: &BufferPool,
    ) -> Payload {
        let parts = parts.into_iter();
        let size = parts.clone().map(<[u8]>::len).sum::<usize>();
        assert!(size <= PAYLOAD_SIZE_MAX as usize);
        let length = size as u32;
        if size == 0 {
            return Payload { length, checksums: Vec::new(), data: None };
        }
        let mut data = pool.take(padded(length));
        let mut end = 0;
        for part in parts {
            data[end..end + part.len()].copy_from_slice(part);
            end += part.len();
        }
        data[end..].fill(0);
        let mut checksums = Vec::new();
        checksum_units(&data, &mut checksums);
        Payload { length, checksums, data: Some(data.freeze()) }
    }

    /// Returns the bytes. `None`: they were damaged on the way.
    pub fn bytes(&self) -> Option<&[u8]> {
        let data = self.data.as_deref().unwrap_or_default();
        first_mismatch(data, &self.checksums).is_none().then(|| &data[..self.length as usize])
    }

    /// Returns the number of bytes, without the padding.
    pub fn length(&self) -> u32 {
        self.length
    }

    /// Returns the number of bytes that the payload takes on the wire.
    pub fn size(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.len() as u64)
    }
}

impl Payload {
    /// Returns the padded bytes, if there are any.
    pub(super) fn data(&self) -> Option<Buffer> {
        self.data.clone()
    }

    /// Appends what the body of a message says of the payload.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        put_u32(bytes, self.length);
        put_checksums(bytes, &self.checksums);
    }

    /// Decodes what the body of a message says of its payload.
    pub(super) fn decode(
        reader: &mut Reader<'_>,
        payload: &mut Option<Buffer>,
    ) -> Result<Payload, DecodeError> {
        let (length, data) = (reader.u32()?, payload.take());
        let size = data.as_ref().map_or(0, |data| data.len());
        if padded(length) != size {
            return wrong(format!("a payload of {size} bytes cannot hold just {length}"));
        }
        Ok(Payload { length, checksums: reader.checksums(size)?, data })
    }
}

/// Returns the size of the units that so many bytes take.
pub fn padded(length: u32) -> usize {
    (length as usize).next_multiple_of(UNIT_SIZE as usize)
}
