//! CRC-32C (Castagnoli, reflected, as in RFC 3720 appendix B.4) over 4 KiB units and headers.

use std::fmt;

use crate::size::UNIT_SIZE;

/// A CRC-32C value.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Checksum(u32);

impl Checksum {
    /// The checksum of a 4 KiB unit of zeros.
    pub const ZERO_UNIT: Checksum = Checksum(0x98f9_4189);

    /// Creates a checksum from a value read from disk or network.
    pub const fn new(value: u32) -> Checksum {
        Checksum(value)
    }

    /// Returns the value to store or send.
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({:08x})", self.0)
    }
}

/// Computes the CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> Checksum {
    Checksum(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32)
}

/// Appends the checksum of each 4 KiB unit of `data`. Requires: whole units.
pub fn checksum_units(data: &[u8], checksums: &mut Vec<Checksum>) {
    assert!(data.len().is_multiple_of(UNIT_SIZE as usize));
    checksums.extend(data.chunks_exact(UNIT_SIZE as usize).map(crc32c));
}

/// Returns the index of the first 4 KiB unit whose data does not match, or `None` if all match. Requires: one
/// checksum for each unit.
pub fn first_mismatch(data: &[u8], checksums: &[Checksum]) -> Option<usize> {
    assert!(data.len() == checksums.len() * UNIT_SIZE as usize);
    data.chunks_exact(UNIT_SIZE as usize)
        .zip(checksums)
        .position(|(unit, checksum)| crc32c(unit) != *checksum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_frozen() {
        // RFC 3720 B.4: 32 bytes of zeros, of ones, and the check value of "123456789".
        assert_eq!(crc32c(&[0; 32]).get(), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]).get(), 0x62a8_ab43);
        assert_eq!(crc32c(b"123456789").get(), 0xe306_9283);
        assert_eq!(crc32c(&[0; UNIT_SIZE as usize]), Checksum::ZERO_UNIT);
    }

    #[test]
    fn a_changed_unit_is_named() {
        let mut data = vec![7; 3 * UNIT_SIZE as usize];
        let mut checksums = Vec::new();
        checksum_units(&data, &mut checksums);
        assert_eq!(first_mismatch(&data, &checksums), None);
        data[UNIT_SIZE as usize + 5] ^= 1;
        assert_eq!(first_mismatch(&data, &checksums), Some(1));
    }
}
