//! Digests of a body while it comes: its MD5 sum, which is the tag, and the checksum that its client asked for.

use crc_fast::{CrcAlgorithm, Digest as Crc};
use md5::{Digest, Md5};
use sha1::Sha1;
use sha2::Sha256;

use crate::api::{Checksum, ChecksumKind, Expected};
use crate::core::Result;
use crate::failure::Failure;

/// Computes both.
pub(crate) struct Digests {
    md5: Md5,
    kind: ChecksumKind,
    sum: Sum,
}

enum Sum {
    Crc(Crc),
    Sha1(Sha1),
    Sha256(Sha256),
}

impl Digests {
    /// Begins.
    pub(crate) fn new(kind: ChecksumKind) -> Digests {
        let sum = match kind {
            ChecksumKind::Crc32 => Sum::Crc(Crc::new(CrcAlgorithm::Crc32IsoHdlc)),
            ChecksumKind::Crc32c => Sum::Crc(Crc::new(CrcAlgorithm::Crc32Iscsi)),
            ChecksumKind::Crc64Nvme => Sum::Crc(Crc::new(CrcAlgorithm::Crc64Nvme)),
            ChecksumKind::Sha1 => Sum::Sha1(Sha1::new()),
            ChecksumKind::Sha256 => Sum::Sha256(Sha256::new()),
        };
        Digests { md5: Md5::new(), kind, sum }
    }

    /// Adds the next bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.md5.update(bytes);
        match &mut self.sum {
            Sum::Crc(sum) => sum.update(bytes),
            Sum::Sha1(sum) => sum.update(bytes),
            Sum::Sha256(sum) => sum.update(bytes),
        }
    }

    /// Returns the MD5 sum and the checksum.
    pub(crate) fn finish(self) -> ([u8; 16], Checksum) {
        let size = self.kind.size();
        let value = match self.sum {
            Sum::Crc(sum) => {
                let value = sum.finalize().swap_bytes().to_le_bytes();
                value[8 - size..].to_vec()
            }
            Sum::Sha1(sum) => sum.finalize().to_vec(),
            Sum::Sha256(sum) => sum.finalize().to_vec(),
        };
        (self.md5.finalize().into(), Checksum { kind: self.kind, value })
    }
}

/// Returns the checksum of two bodies, one behind the other; `size`: that of the second one.
pub(crate) fn combined(one: &Checksum, other: &Checksum, size: u64) -> Result<Checksum> {
    let algorithm = match one.kind {
        ChecksumKind::Crc32 => CrcAlgorithm::Crc32IsoHdlc,
        ChecksumKind::Crc32c => CrcAlgorithm::Crc32Iscsi,
        ChecksumKind::Crc64Nvme => CrcAlgorithm::Crc64Nvme,
        ChecksumKind::Sha1 | ChecksumKind::Sha256 => {
            let why = "checksums of this kind cannot be combined".into();
            return Err(Failure::Invalid { why });
        }
    };
    let number = |checksum: &Checksum| {
        checksum.value.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
    };
    let sum = crc_fast::checksum_combine(algorithm, number(one), number(other), size);
    let value = sum.swap_bytes().to_le_bytes()[8 - one.kind.size()..].to_vec();
    Ok(Checksum { kind: one.kind, value })
}

/// Compares what a client says of a body with what it is.
pub(crate) fn compare(expected: &Expected, md5: &[u8; 16], checksum: &Checksum) -> Result<()> {
    let bad = |which| Err(Failure::BadDigest { which });
    if expected.md5.is_some_and(|it| it != *md5) {
        return bad("Content-MD5");
    }
    let Some(sent) = &expected.checksum else { return Ok(()) };
    if sent.kind != checksum.kind {
        let why = "the checksum is of another kind than was announced".into();
        return Err(Failure::Invalid { why });
    }
    match sent == checksum {
        true => Ok(()),
        false => bad(match sent.kind {
            ChecksumKind::Crc32 => "x-amz-checksum-crc32",
            ChecksumKind::Crc32c => "x-amz-checksum-crc32c",
            ChecksumKind::Sha1 => "x-amz-checksum-sha1",
            ChecksumKind::Sha256 => "x-amz-checksum-sha256",
            ChecksumKind::Crc64Nvme => "x-amz-checksum-crc64nvme",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn values_are_those_of_the_standards() {
        let of = |kind| {
            let mut digests = Digests::new(kind);
            digests.update(b"1234");
            digests.update(b"56789");
            let (md5, checksum) = digests.finish();
            assert_eq!(hex(&md5), "25f9e794323b453885f5181f1b624d0b");
            assert_eq!(checksum.value.len(), kind.size());
            hex(&checksum.value)
        };
        // The check values of the catalogue of CRCs; `printf 123456789 | sha1sum` and `sha256sum`.
        assert_eq!(of(ChecksumKind::Crc32), "cbf43926");
        assert_eq!(of(ChecksumKind::Crc32c), "e3069283");
        assert_eq!(of(ChecksumKind::Crc64Nvme), "ae8b14860a799888");
        assert_eq!(of(ChecksumKind::Sha1), "f7c3bc1d808e04732adf679965ccc34ca7ae3441");
        let sha256 = "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225";
        assert_eq!(of(ChecksumKind::Sha256), sha256);
    }

    #[test]
    fn checksums_of_parts_make_that_of_the_whole() {
        for kind in [ChecksumKind::Crc32, ChecksumKind::Crc32c, ChecksumKind::Crc64Nvme] {
            let of = |bytes: &[u8]| {
                let mut digests = Digests::new(kind);
                digests.update(bytes);
                digests.finish().1
            };
            assert_eq!(combined(&of(b"1234"), &of(b"56789"), 5), Ok(of(b"123456789")));
            assert_eq!(combined(&of(b"1234"), &of(b""), 0), Ok(of(b"1234")));
        }
        let sha = Checksum { kind: ChecksumKind::Sha1, value: vec![0; 20] };
        assert!(combined(&sha, &sha, 1).is_err());
    }

    #[test]
    fn what_the_client_says_is_compared() {
        let mut digests = Digests::new(ChecksumKind::Crc32);
        digests.update(b"body");
        let (md5, checksum) = digests.finish();
        let good = Expected { md5: Some(md5), checksum: Some(checksum.clone()) };
        let compare = |expected: &Expected| compare(expected, &md5, &checksum);
        assert_eq!(compare(&good), Ok(()));
        assert_eq!(compare(&Expected::default()), Ok(()));
        let bad = |which| Err(Failure::BadDigest { which });
        assert_eq!(compare(&Expected { md5: Some([0; 16]), ..good.clone() }), bad("Content-MD5"));
        let wrong = Checksum { kind: ChecksumKind::Crc32, value: vec![0; 4] };
        let wrong = Expected { checksum: Some(wrong), ..good.clone() };
        assert_eq!(compare(&wrong), bad("x-amz-checksum-crc32"));
        let other = Checksum { kind: ChecksumKind::Crc32c, value: vec![0; 4] };
        let other = Expected { checksum: Some(other), ..good };
        assert!(matches!(compare(&other), Err(Failure::Invalid { .. })));
    }
}
