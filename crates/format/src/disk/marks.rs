//! Marks: the versions up to which a store has committed PGs of pools that keep parity. Stored as inline data
//! of a journal entry: PG and version, 20 bytes each.

use base::{PgId, Version};

use super::bytes::{Reader, Writer};

/// Size of an encoded mark, in bytes.
pub const MARK_SIZE: usize = 20;

/// Encodes marks. All versions of a PG up to its mark are stable.
pub fn encode_marks(marks: impl Iterator<Item = (PgId, Version)>) -> Vec<u8> {
    let mut to = Writer::default();
    for (pg, committed) in marks {
        to.pg(Some(pg));
        to.version(committed);
    }
    to.bytes
}

/// Decodes marks. Returns `None` if the bytes are not valid marks.
pub fn decode_marks(bytes: &[u8]) -> Option<Vec<(PgId, Version)>> {
    let mut from = Reader::new(bytes);
    let mut marks = Vec::with_capacity(bytes.len() / MARK_SIZE);
    while !from.is_at_end() {
        marks.push((from.pg()??, from.version()?));
    }
    Some(marks)
}

#[cfg(test)]
mod tests {
    use base::{Epoch, PoolId};

    use super::*;

    #[test]
    fn bytes_are_frozen() {
        let pg = |number| PgId { pool: PoolId::FIRST, number };
        let version = |counter| Version { epoch: Epoch::new(7), counter };
        let marks = vec![(pg(3), version(5)), (pg(4), version(9))];
        let bytes = encode_marks(marks.iter().copied());
        assert_eq!(bytes.len(), 2 * MARK_SIZE);
        super::super::golden("marks.4", &bytes);
        assert_eq!(decode_marks(&bytes), Some(marks));
        assert_eq!(decode_marks(&bytes[1..]), None);
    }
}
