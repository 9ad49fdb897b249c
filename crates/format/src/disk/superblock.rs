//! The superblock: the identity of a store, and where its areas are. There are two copies. The newer valid
//! copy is used, and the two are never written at the same time.

use std::fmt;
use std::num::NonZeroU128;

use base::{ClusterId, Lsn, OsdId, crc32c};

use super::bytes::{Reader, Writer};

/// Where the two copies are on the device, in bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 64 << 10];
/// Size of a copy in bytes.
pub const SUPERBLOCK_SIZE: usize = 4096;
/// The newest version of the store format that this program knows. Only stores with an engine have it:
/// programs that know no engine must not open them.
pub const FORMAT_VERSION: u32 = 5;
/// Version of the format of a store without an engine.
pub const FORMAT_VERSION_WITHOUT_ENGINE: u32 = 4;

const MAGIC: [u8; 8] = *b"ASHLAR\x0d\x0a";
/// Where the checksum ends. It covers everything after it.
const CHECKSUM_END: usize = 12;

/// The id of a store, chosen at random when the store is created; printed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(u128);

impl StoreId {
    /// Creates an id. Every number is valid.
    pub const fn new(number: u128) -> StoreId {
        StoreId(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u128 {
        self.0
    }
}

impl StoreId {
    /// Returns the tag that journal entries and checkpoint pages carry to identify the store.
    pub const fn tag(self) -> u64 {
        (self.0 ^ (self.0 >> 64)) as u64
    }
}

/// The id of an engine, chosen at random when the engine is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EngineId(NonZeroU128);

impl EngineId {
    /// Creates an id. `None`: 0 stands for no engine.
    pub const fn new(number: u128) -> Option<EngineId> {
        match NonZeroU128::new(number) {
            Some(number) => Some(EngineId(number)),
            None => None,
        }
    }

    /// Returns the number.
    pub const fn get(self) -> u128 {
        self.0.get()
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreId({self})")
    }
}

/// When a write is durable. Fixed when the store is created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CommitMode {
    /// Writes are made durable by a flush of the device's cache, which covers a group of them.
    Fsync,
    /// Each write is durable when it completes (RWF_DSYNC).
    Immediate,
}

impl fmt::Display for CommitMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CommitMode::Fsync => "fsync",
            CommitMode::Immediate => "immediate",
        })
    }
}

/// A range of the device in bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Area {
    /// Where the area begins.
    pub offset: u64,
    /// Size of the area.
    pub size: u64,
}

impl Area {
    /// Returns where the area ends.
    pub const fn end(self) -> u64 {
        self.offset + self.size
    }
}

/// What is fixed when a store is created, and whether the store is suspect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// Increases with each write of a copy.
    pub sequence: u64,
    /// The id of the store.
    pub store: StoreId,
    /// The cluster that the store belongs to.
    pub cluster: ClusterId,
    /// The OSD that the store belongs to.
    pub osd: OsdId,
    /// The device's logical block in bytes: 512 or 4096.
    pub sector_size: u32,
    /// When a write is durable.
    pub commit: CommitMode,
    /// Size of the store on its device, in bytes.
    pub size: u64,
    /// The journal ring.
    pub journal: Area,
    /// The checkpoint area: roots and pages.
    pub checkpoints: Area,
    /// The data area: blocks.
    pub data: Area,
    /// Where the journal ended when damage was found. PGs absolved after this lsn are not suspect.
    pub suspect: Option<Lsn>,
    /// The id of the store's engine; `None`: it has none.
    pub engine: Option<EngineId>,
}

/// Why bytes are not a usable superblock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SuperblockError {
    /// The bytes are not a superblock.
    NotOurs,
    /// The checksum or the fields of the superblock are wrong.
    Damaged,
    /// The superblock was written by a newer program. Contains its format version.
    Newer(u32),
    /// The superblock was written by a program from before the first release. Contains its format version.
    Older(u32),
    /// The store uses something that this program does not support. Says what.
    Unsupported(&'static str),
}

impl Superblock {
    /// Encodes a copy.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u32(match self.engine {
            Some(_) => FORMAT_VERSION,
            None => FORMAT_VERSION_WITHOUT_ENGINE,
        });
        to.u64(self.sequence);
        to.u128(self.store.get());
        to.u128(self.cluster.get());
        to.u32(self.osd.get());
        to.u32(self.sector_size);
        to.u64(match self.commit {
            CommitMode::Fsync => 0,
            CommitMode::Immediate => 1,
        });
        to.u64(self.size);
        for area in [self.journal, self.checkpoints, self.data] {
            to.u64(area.offset);
            to.u64(area.size);
        }
        // Reserved for the store that holds the journal, and for the slice of a shared drive.
        to.u128(0);
        to.u64(0);
        to.u64(0);
        to.u64(self.suspect.is_some() as u64);
        to.u64(self.suspect.map_or(0, Lsn::get));
        to.u128(self.engine.map_or(0, EngineId::get));

        let mut bytes = MAGIC.to_vec();
        bytes.resize(CHECKSUM_END, 0);
        bytes.extend_from_slice(&to.bytes);
        bytes.resize(SUPERBLOCK_SIZE, 0);
        let checksum = crc32c(&bytes[CHECKSUM_END..]).get();
        bytes[MAGIC.len()..CHECKSUM_END].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes a copy.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        if bytes.len() < SUPERBLOCK_SIZE || bytes[..MAGIC.len()] != MAGIC {
            return Err(SuperblockError::NotOurs);
        }
        let mut checksum = Reader::new(&bytes[MAGIC.len()..CHECKSUM_END]);
        let body = &bytes[CHECKSUM_END..SUPERBLOCK_SIZE];
        if checksum.u32() != Some(crc32c(body).get()) {
            return Err(SuperblockError::Damaged);
        }
        let mut from = Reader::new(body);
        let version = from.u32();
        match version {
            Some(FORMAT_VERSION | FORMAT_VERSION_WITHOUT_ENGINE) => {}
            Some(version) if version > FORMAT_VERSION => {
                return Err(SuperblockError::Newer(version));
            }
            Some(version) => return Err(SuperblockError::Older(version)),
            None => return Err(SuperblockError::Damaged),
        }
        let superblock = decode_fields(&mut from).ok_or(SuperblockError::Damaged)?;
        let journal_elsewhere = from.u128().ok_or(SuperblockError::Damaged)? != 0;
        let slice = (from.u64(), from.u64());
        let suspect = (from.u64(), from.u64());
        if journal_elsewhere {
            return Err(SuperblockError::Unsupported("the journal is on another device"));
        }
        if slice != (Some(0), Some(0)) {
            return Err(SuperblockError::Unsupported("the store is a slice of a shared drive"));
        }
        let suspect = match suspect {
            (Some(0), _) => None,
            (_, Some(lsn)) => Some(Lsn::new(lsn)),
            _ => return Err(SuperblockError::Damaged),
        };
        let engine = EngineId::new(from.u128().ok_or(SuperblockError::Damaged)?);
        let superblock = Superblock { suspect, engine, ..superblock };
        if !superblock.is_sound() || engine.is_some() != (version == Some(FORMAT_VERSION)) {
            return Err(SuperblockError::Damaged);
        }
        Ok(superblock)
    }

    /// Whether the areas are in order, do not overlap, and lie within the store.
    fn is_sound(&self) -> bool {
        let areas = [self.journal, self.checkpoints, self.data];
        let aligned = areas.iter().all(|area| {
            area.size > 0
                && area.offset.is_multiple_of(1 << 20)
                && area.size.is_multiple_of(1 << 20)
                && area.size <= self.size
                && area.offset <= self.size
        });
        aligned
            && matches!(self.sector_size, 512 | 4096)
            && self.journal.offset >= 1 << 20
            && self.journal.end() <= self.checkpoints.offset
            && self.checkpoints.end() <= self.data.offset
            && self.data.end() <= self.size
    }
}

fn decode_fields(from: &mut Reader) -> Option<Superblock> {
    Some(Superblock {
        sequence: from.u64()?,
        store: StoreId::new(from.u128()?),
        cluster: ClusterId::new(from.u128()?),
        osd: OsdId::new(from.u32()?)?,
        sector_size: from.u32()?,
        commit: match from.u64()? {
            0 => CommitMode::Fsync,
            1 => CommitMode::Immediate,
            _ => return None,
        },
        size: from.u64()?,
        journal: Area { offset: from.u64()?, size: from.u64()? },
        checkpoints: Area { offset: from.u64()?, size: from.u64()? },
        data: Area { offset: from.u64()?, size: from.u64()? },
        suspect: None,
        engine: None,
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn sample() -> Superblock {
        Superblock {
            sequence: 7,
            store: StoreId::new(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10),
            cluster: ClusterId::new(0xabc),
            osd: OsdId::new(3).expect("3 is in range"),
            sector_size: 512,
            commit: CommitMode::Immediate,
            size: 128 << 20,
            journal: Area { offset: 1 << 20, size: 16 << 20 },
            checkpoints: Area { offset: 17 << 20, size: 4 << 20 },
            data: Area { offset: 21 << 20, size: 107 << 20 },
            suspect: Some(Lsn::new(4096)),
            engine: None,
        }
    }

    fn with_engine() -> Superblock {
        Superblock { engine: EngineId::new(0x55aa), ..sample() }
    }

    #[test]
    fn bytes_are_frozen() {
        super::super::golden("superblock.4", &sample().encode());
        super::super::golden("superblock.5", &with_engine().encode());
    }

    #[test]
    fn encoding_and_decoding_are_inverse() {
        assert_eq!(Superblock::decode(&sample().encode()), Ok(sample()));
        assert_eq!(Superblock::decode(&with_engine().encode()), Ok(with_engine()));
    }

    #[test]
    fn each_wrong_superblock_says_what_is_wrong() {
        let good = sample().encode();
        let mut other = good.clone();
        other[0] ^= 1;
        assert_eq!(Superblock::decode(&other), Err(SuperblockError::NotOurs));
        assert_eq!(Superblock::decode(&[]), Err(SuperblockError::NotOurs));
        let mut damaged = good.clone();
        damaged[100] ^= 1;
        assert_eq!(Superblock::decode(&damaged), Err(SuperblockError::Damaged));
        let of_version = |of: &Superblock, version: u8| {
            let mut other = of.encode();
            other[12] = version;
            let checksum = crc32c(&other[12..]).get().to_le_bytes();
            other[8..12].copy_from_slice(&checksum);
            Superblock::decode(&other)
        };
        assert_eq!(of_version(&sample(), 6), Err(SuperblockError::Newer(6)));
        assert_eq!(of_version(&sample(), 1), Err(SuperblockError::Older(1)));
        // The version says whether there is an engine.
        assert_eq!(of_version(&sample(), 5), Err(SuperblockError::Damaged));
        assert_eq!(of_version(&with_engine(), 4), Err(SuperblockError::Damaged));
        let mut slice = good;
        slice[12 + 132] = 1;
        let checksum = crc32c(&slice[12..]).get().to_le_bytes();
        slice[8..12].copy_from_slice(&checksum);
        assert!(matches!(Superblock::decode(&slice), Err(SuperblockError::Unsupported(_))));
    }
}
