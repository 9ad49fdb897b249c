//! The head of an object: the record of the engine that says which version the object has, how long its data
//! is, and where that lies. `docs/internals/objects.md`, rules 24 and 26.
//!
//! ```text
//!   version (12) | flags (1: 1 tombstone, 2 in blocks, 4 partial) | size (8) | modified (8) | data, or the data id (8)
//! ```
//!
//! Invariants
//!   1. A head has one encoding: whatever decodes, encodes to the same bytes.
//!   2. Data up to [`INLINE_SIZE_MAX`] lies in the head, longer data in blocks.

use base::{ImageId, StripeIndex, Version};
use format::disk::BlockKey;
use format::disk::bytes::{Reader, Writer};
use format::engine::Flags;

use crate::operation::{INLINE_SIZE_MAX, OBJECT_SIZE_MAX};

/// Size of an encoded head, without data or data id, in bytes.
pub(crate) const HEAD_SIZE: usize = FLAGS_AT + 1 + 8 + 8;
/// Where the flags lie in an encoded head.
const FLAGS_AT: usize = 12;

const FLAG_TOMBSTONE: u8 = 1;
const FLAG_IN_BLOCKS: u8 = 2;
pub(crate) const FLAG_PARTIAL: u8 = 4;

/// An encoded head with this flag is a tombstone.
pub(crate) const TOMBSTONE: Flags = Flags { at: FLAGS_AT, mask: FLAG_TOMBSTONE };

/// An encoded head with inline data whose first byte has one of these bits; one with data in blocks may look
/// like it.
pub(crate) fn first_byte_has(mask: u8) -> Flags {
    Flags { at: HEAD_SIZE, mask }
}

/// Names the blocks that hold the data of one object, and of no other: 52 bits, of which the upper 32 are not
/// all zero. An object that is put anew gets another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DataId(u64);

impl DataId {
    /// Creates an id. `None`: it is out of range.
    pub fn new(number: u64) -> Option<DataId> {
        (number >> 20 != 0 && number >> 20 < u64::from(u32::MAX)).then_some(DataId(number))
    }

    /// Returns the number.
    pub fn get(self) -> u64 {
        self.0
    }

    /// Returns the key of a block of an object with this hash. Requires: `block` is below 4,096.
    pub fn block_key(self, pool: base::PoolId, hash: u32, block: u32) -> BlockKey {
        assert!(block < 1 << 12);
        let image = ImageId::new((self.0 >> 20) as u32).expect("the upper bits are not all zero");
        let stripe = StripeIndex::new(((self.0 & 0xf_ffff) as u32) << 12 | block);
        BlockKey { pool, hash, image, stripe }
    }
}

/// The head of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head<D = Vec<u8>> {
    /// The version of the object's last change.
    pub version: Version,
    /// The time of that change at the primary, in milliseconds since 1970.
    pub modified: u64,
    /// Whether a put of several operations is not done. A tombstone is not partial.
    pub is_partial: bool,
    /// The data, or that the object is gone.
    pub content: HeadContent<D>,
}

/// An object, beside its data, attributes and records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stat {
    /// The version of the last change.
    pub version: Version,
    /// The size of the data in bytes.
    pub size: u64,
    /// The time of the last change at the primary, in milliseconds since 1970.
    pub modified: u64,
    /// Whether a put of several operations is not done: what it has not written yet reads as zeros.
    pub is_partial: bool,
}

/// What the head of an object says of its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeadContent<D = Vec<u8>> {
    /// The object is gone.
    Tombstone,
    /// The data.
    Inline(D),
    /// The data lies in blocks.
    Blocks {
        /// Which ones.
        id: DataId,
        /// The size of the data in bytes.
        size: u64,
    },
}

impl Head {
    /// Encodes the head.
    pub fn encode(&self) -> Vec<u8> {
        let (flags, size) = match &self.content {
            HeadContent::Tombstone => (FLAG_TOMBSTONE, 0),
            HeadContent::Inline(data) => (0, data.len() as u64),
            HeadContent::Blocks { size, .. } => (FLAG_IN_BLOCKS, *size),
        };
        let mut to = Writer::default();
        to.version(self.version);
        to.u8(flags | if self.is_partial { FLAG_PARTIAL } else { 0 });
        to.u64(size);
        to.u64(self.modified);
        match &self.content {
            HeadContent::Tombstone => {}
            HeadContent::Inline(data) => to.bytes.extend_from_slice(data),
            HeadContent::Blocks { id, .. } => to.u64(id.0),
        }
        to.bytes
    }

    /// Decodes a head. `None`: the bytes are none.
    pub fn decode(bytes: &[u8]) -> Option<Head> {
        let Head { version, modified, is_partial, content } = Head::borrowed(bytes)?;
        let content = match content {
            HeadContent::Tombstone => HeadContent::Tombstone,
            HeadContent::Inline(data) => HeadContent::Inline(data.to_vec()),
            HeadContent::Blocks { id, size } => HeadContent::Blocks { id, size },
        };
        Some(Head { version, modified, is_partial, content })
    }

    /// Whether an encoded head is a tombstone.
    pub fn is_tombstone(bytes: &[u8]) -> bool {
        bytes.get(FLAGS_AT) == Some(&FLAG_TOMBSTONE)
    }
}

impl<'a> Head<&'a [u8]> {
    /// Decodes a head, whose data stays where it is. `None`: the bytes are none.
    pub fn borrowed(bytes: &'a [u8]) -> Option<Head<&'a [u8]>> {
        let mut from = Reader::new(bytes);
        let (version, flags) = (from.version()?, from.u8()?);
        let (size, modified) = (from.u64()?, from.u64()?);
        let is_partial = flags & FLAG_PARTIAL != 0;
        let content = match flags & !FLAG_PARTIAL {
            FLAG_TOMBSTONE if size == 0 && !is_partial => HeadContent::Tombstone,
            0 if size <= INLINE_SIZE_MAX => HeadContent::Inline(from.take(size as usize)?),
            FLAG_IN_BLOCKS if size > INLINE_SIZE_MAX && size <= OBJECT_SIZE_MAX => {
                HeadContent::Blocks { id: DataId::new(from.u64()?)?, size }
            }
            _ => return None,
        };
        from.is_at_end().then_some(Head { version, modified, is_partial, content })
    }
}

impl<D: AsRef<[u8]>> Head<D> {
    /// Returns what is known of the object beside its data. `None`: the object is gone.
    pub fn stat(&self) -> Option<Stat> {
        let size = match &self.content {
            HeadContent::Tombstone => return None,
            HeadContent::Inline(data) => data.as_ref().len() as u64,
            HeadContent::Blocks { size, .. } => *size,
        };
        let Head { version, modified, is_partial, .. } = *self;
        Some(Stat { version, size, modified, is_partial })
    }
}

#[cfg(test)]
mod tests {
    use base::Epoch;
    use proptest::prelude::*;

    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn heads_are_frozen() {
        let version = Version { epoch: Epoch::new(3), counter: 0x100 };
        let of = |is_partial, content| Head { version, modified: 5, is_partial, content };
        let id = DataId::new(0x12_3456_789a).unwrap();
        let fixed = "030000000001000000000000";
        for (is_partial, content, rest) in [
            (false, HeadContent::Tombstone, "0100000000000000000500000000000000"),
            (false, HeadContent::Inline(b"ab".to_vec()), "00020000000000000005000000000000006162"),
            (
                false,
                HeadContent::Blocks { id, size: 0x8001 },
                "02018000000000000005000000000000009a78563412000000",
            ),
            (
                true,
                HeadContent::Blocks { id, size: 0x8001 },
                "06018000000000000005000000000000009a78563412000000",
            ),
            (true, HeadContent::Inline(b"ab".to_vec()), "04020000000000000005000000000000006162"),
        ] {
            let head = of(is_partial, content);
            assert_eq!(hex(&head.encode()), format!("{fixed}{rest}"));
            assert_eq!(Head::decode(&head.encode()), Some(head));
        }
    }

    #[test]
    fn ids_and_keys_of_blocks_have_their_ranges() {
        assert_eq!((DataId::new(1 << 52), DataId::new(0xf_ffff)), (None, None));
        let id = DataId::new((7 << 20) | 0xf_fffe).unwrap();
        let hash = 0x1234_5678;
        let key = id.block_key(base::PoolId::FIRST, hash, 4095);
        assert_eq!((key.image.get(), key.stripe.get()), (7, 0xffff_efff));
        assert_eq!(key.hash, hash);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn any_bytes_decode_or_are_refused(
            fixed in prop::collection::vec(any::<u8>(), 12),
            flags in 0..8u8,
            size in prop_oneof![0..4u64, 0x7fff..0x8003u64, any::<u64>()],
            rest in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 0..12),
        ) {
            let bytes = [&fixed[..], &[flags], &size.to_le_bytes(), &[0; 8], &rest].concat();
            if let Some(head) = Head::decode(&bytes) {
                prop_assert_eq!(head.encode(), bytes);
            }
        }
    }
}
