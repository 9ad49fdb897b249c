//! The frozen hashes that map a stripe or an object to its PG.
//!
//! They are part of the disk format and of the protocol: index order, PG ranges and routing all depend on
//! them. The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), applied twice to a
//! stripe, and once for each 8 bytes of an object's name.

use crate::ids::{ImageId, StripeIndex};

/// Maximum number of PGs in a pool: 2^16. The PG number is the top bits of a 32-bit hash.
pub const PG_COUNT_MAX: u32 = 1 << 16;

/// Returns the hash of one stripe of an image whose seed is `seed`. Frozen: see the golden values in the
/// test.
pub const fn stripe_hash(seed: ImageId, stripe: StripeIndex) -> u32 {
    let key = ((seed.get() as u64) << 32) | stripe.get() as u64;
    (mix(mix(key)) >> 32) as u32
}

/// Returns the hash of an object. Its top 32 bits are what PGs, shards and keys of blocks are made of.
/// Frozen: see the golden values in the test.
pub const fn object_hash(name: &[u8]) -> u64 {
    let mut hash = mix(name.len() as u64);
    let mut at = 0;
    while at < name.len() {
        // The last word is filled up with zeros; the length tells such names apart.
        let mut word = 0;
        let mut byte = 0;
        while byte < 8 && at + byte < name.len() {
            word |= (name[at + byte] as u64) << (8 * byte);
            byte += 1;
        }
        hash = mix(hash ^ word);
        at += 8;
    }
    hash
}

/// How the name of an object becomes its hash: frozen for each pool when it is created.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum NameHash {
    /// All bytes of the name decide.
    #[default]
    Plain,
    /// Names with the same group and locator lie in one shard, whatever else they have, and the locators of a
    /// group lie evenly around the ring:
    ///
    /// ```text
    ///   type (1) | group (8) | ... | locator (2: the low six bits of each byte)
    /// ```
    Grouped,
}

/// Size of the type and the group in front of a name, in bytes.
const GROUP_END: usize = 9;
/// Size of the locator behind a name, in bytes.
const LOCATOR_SIZE: usize = 2;
/// The number of bits of a locator.
const LOCATOR_BITS: u32 = 12;

impl NameHash {
    /// Returns the hash by which shards, PGs and keys of blocks are chosen. Frozen: see the golden values in
    /// the test.
    pub const fn of(self, name: &[u8]) -> u32 {
        let plain = (object_hash(name) >> 32) as u32;
        match self {
            NameHash::Plain => plain,
            // Too short to have a group and a locator.
            NameHash::Grouped if name.len() < GROUP_END + LOCATOR_SIZE => plain,
            NameHash::Grouped => {
                let (_, behind_type) = name.split_at(1);
                let (group, _) = behind_type.split_at(GROUP_END - 1);
                let upper = (name[name.len() - 2] & 0x3f) as u16;
                let lower = (name[name.len() - 1] & 0x3f) as u16;
                // Reversed, the first 2^n locators divide the ring evenly, for each n.
                let turned = (upper << 6 | lower).reverse_bits() >> (u16::BITS - LOCATOR_BITS);
                let place = ((object_hash(group) >> 48) as u16).wrapping_add(turned << 4);
                // Names of one shard still differ in what is below it.
                (place as u32) << 16 | plain & 0xffff
            }
        }
    }
}

/// Returns the PG number of a hash. Requires: `pg_count` is a power of two up to [`PG_COUNT_MAX`].
pub const fn pg_of_hash(hash: u32, pg_count: u32) -> u32 {
    assert!(pg_count.is_power_of_two());
    assert!(pg_count <= PG_COUNT_MAX);
    // With one PG a 32-bit shift would be by 32 bits, which is invalid; 64-bit arithmetic needs no
    // special case.
    ((hash as u64 * pg_count as u64) >> 32) as u32
}

/// Returns the range of the hashes of one PG, both ends included.
pub const fn hash_range_of_pg(number: u32, pg_count: u32) -> (u32, u32) {
    assert!(number < pg_count);
    assert!(pg_count.is_power_of_two());
    let width = (1u64 << 32) / pg_count as u64;
    let first = number as u64 * width;
    (first as u32, (first + width - 1) as u32)
}

const fn mix(input: u64) -> u64 {
    let mut z = input.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_frozen() {
        let seed = ImageId::FIRST;
        let golden: Vec<u32> =
            (0..4).map(|stripe| stripe_hash(seed, StripeIndex::new(stripe))).collect();
        assert_eq!(golden, GOLDEN);
    }
    const GOLDEN: [u32; 4] = [3_220_505_974, 2_072_392_704, 1_440_198_900, 3_786_498_298];

    #[test]
    fn object_hash_is_frozen() {
        let names: [&[u8]; 7] =
            [b"a", b"b", b"\0", b"\0\0", b"photos/2026/07/31.jpeg", &[255; 8], &[0; 1024]];
        assert_eq!(names.map(object_hash), GOLDEN_OF_OBJECTS);
    }
    const GOLDEN_OF_OBJECTS: [u64; 7] = [
        0x5e02_5f9a_de9e_af3e,
        0x3660_084f_17fd_793a,
        0x5e41_ab08_7439_611e,
        0x6468_4c4f_0fd7_84b4,
        0xf7c3_cdba_670f_0684,
        0xed0f_9663_aaf3_af91,
        0x59d1_0d33_008d_f1a3,
    ];

    /// A name of this group.
    fn grouped(group: u64, middle: &[u8], locator: u16) -> Vec<u8> {
        let locator = [0x80 | (locator >> 6) as u8, 0x80 | (locator & 0x3f) as u8];
        [&b"k"[..], &group.to_le_bytes(), middle, &locator].concat()
    }

    #[test]
    fn hashes_of_grouped_names_are_frozen() {
        let hash = |name: &[u8]| NameHash::Grouped.of(name);
        let golden = [(1, 0), (1, 1), (1, 0xfff), (u64::MAX, 0x800)]
            .map(|(group, locator)| hash(&grouped(group, b"photo\0", locator)));
        assert_eq!(golden, [0x0623_a51b, 0x8623_6504, 0x0613_6a48, 0xed1f_fb88]);
        // The upper two bits of a locator's bytes do not count for the shard.
        let (one, other) = (hash(b"kGGGGGGGG\x41\x41"), hash(b"kGGGGGGGG\x81\xc1"));
        assert_eq!(one >> 16, other >> 16);
        assert_ne!(one, other);
        assert_eq!(hash(b"kGGGGGGGGL"), NameHash::Plain.of(b"kGGGGGGGGL"));
    }

    #[test]
    fn locators_divide_the_ring_evenly() {
        for bits in 0..=12 {
            let count = 1u32 << bits;
            let shards: std::collections::BTreeSet<u32> = (0..count as u16)
                .map(|locator| pg_of_hash(NameHash::Grouped.of(&grouped(7, b"", locator)), count))
                .collect();
            assert_eq!(shards.len() as u32, count);
        }
        // Whatever the type and the middle.
        let place = |name: &[u8]| NameHash::Grouped.of(name) >> 16;
        let names = [b"a".as_slice(), b"b", b"bcd"].map(|middle| grouped(7, middle, 5));
        assert!(names.iter().all(|name| place(name) == place(&grouped(7, b"", 5))));
        assert_eq!(place(&[&b"u"[..], &grouped(7, b"", 5)[1..]].concat()), place(&names[0]));
    }

    #[test]
    fn objects_spread_evenly() {
        let mut counts = [0u32; 16];
        let mut shards = [0u32; 64];
        for number in 0..16_000 {
            let hash = (object_hash(format!("bucket/object-{number}").as_bytes()) >> 32) as u32;
            counts[pg_of_hash(hash, 16) as usize] += 1;
            shards[pg_of_hash(hash, 64) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert!(shards.iter().all(|count| (175..325).contains(count)), "{shards:?}");
    }

    #[test]
    fn ranges_and_pgs_agree() {
        for count in [1, 2, 16, PG_COUNT_MAX] {
            for number in [0, count / 2, count - 1] {
                let (first, last) = hash_range_of_pg(number, count);
                assert_eq!(pg_of_hash(first, count), number);
                assert_eq!(pg_of_hash(last, count), number);
            }
        }
        assert_eq!(hash_range_of_pg(0, 1), (0, u32::MAX));
    }

    #[test]
    fn stripes_spread_evenly() {
        let mut counts = [0u32; 16];
        for stripe in 0..16_000 {
            let hash = stripe_hash(ImageId::FIRST, StripeIndex::new(stripe));
            counts[pg_of_hash(hash, 16) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
