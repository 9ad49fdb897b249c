//! Computes a new store: its layout, its superblocks, and the ranges to be zeroed. Pure: the caller does
//! the writes.

use base::{Checksum, ClusterId, GIB, Lsn, MIB, OsdId, TIB};
use format::disk::{Area, EngineId, PAGE_SIZE, Root, SUPERBLOCK_OFFSETS, StreamRef, Superblock};

use crate::pages::ROOT_PAGES;
use crate::{CommitMode, StoreId};

/// Minimum size of a store, in bytes.
pub const STORE_SIZE_MIN: u64 = 128 * MIB;

/// The options that are fixed when a store is created.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The cluster that the store belongs to.
    pub cluster: ClusterId,
    /// The OSD that the store belongs to.
    pub osd: OsdId,
    /// The id of the store, chosen at random.
    pub store: StoreId,
    /// Size of the device, slice or file in bytes.
    pub size: u64,
    /// The device's logical block: 512 or 4096 bytes.
    pub sector_size: u32,
    /// When a write is durable.
    pub commit: CommitMode,
    /// The id of the store's engine, if it is to have one.
    pub engine: Option<EngineId>,
}

/// What the caller does, in this order: zero the ranges, flush, write the images, flush.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// Ranges (offset, length) in bytes to be overwritten completely with zeros. Small writes there are
    /// flushed one by one later, and the file system should not have to allocate space for them.
    pub zero: Vec<(u64, u64)>,
    /// Ranges that must have space allocated and read as zeros; zeros need not be written if the file
    /// system can do this in another way.
    pub clear: Vec<(u64, u64)>,
    /// Images (offset, bytes) to be written after the zeroing, in whole sectors.
    pub images: Vec<(u64, Vec<u8>)>,
}

/// Why no store can be created with these options.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CreateError {
    /// The size is smaller than [`STORE_SIZE_MIN`].
    TooSmall {
        /// The size that was given, in bytes.
        size: u64,
    },
    /// The size is larger than the format can address.
    TooLarge {
        /// The size that was given, in bytes.
        size: u64,
    },
    /// The sector size is neither 512 nor 4096.
    SectorSize(u32),
}

impl std::fmt::Display for CreateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CreateError::TooSmall { size } => {
                write!(f, "{size} bytes is too small for an OSD: use at least 128MiB")
            }
            CreateError::TooLarge { size } => {
                write!(f, "{size} bytes is too large for one OSD: use at most 64TiB")
            }
            CreateError::SectorSize(size) => {
                write!(f, "a logical block of {size} bytes is not supported: only 512 and 4096 are")
            }
        }
    }
}

impl std::error::Error for CreateError {}

/// The chain checksum of the first entry, in place of the checksum of an entry before it.
pub(crate) const CHAIN_START: Checksum = Checksum::new(0);

pub const JOURNAL_SIZE_MIN: u64 = 16 * MIB;
const JOURNAL_SIZE_MAX: u64 = GIB;
/// The checkpoint area takes this fraction (1/n) of the store. It holds the records of a data area full of
/// the smallest blocks, which take about 1/50 (a test computes it), and also notes and tombstones.
const CHECKPOINTS_SHARE: u64 = 48;
const CHECKPOINTS_SIZE_MIN: u64 = 4 * MIB;
/// Maximum size of a store: a location is a 32-bit number of 16 KiB steps.
const STORE_SIZE_MAX: u64 = 63 * TIB;

/// Returns the areas of a store of this size: journal, checkpoints, data.
fn areas(size: u64) -> (Area, Area, Area) {
    let whole = |size: u64| size / MIB * MIB;
    let journal_size = whole((size / 64).clamp(JOURNAL_SIZE_MIN, JOURNAL_SIZE_MAX));
    let checkpoints_size = whole(CHECKPOINTS_SIZE_MIN + size / CHECKPOINTS_SHARE);
    let journal = Area { offset: MIB, size: journal_size };
    let checkpoints = Area { offset: journal.end(), size: checkpoints_size };
    let data = Area { offset: checkpoints.end(), size: whole(size - checkpoints.end()) };
    (journal, checkpoints, data)
}

/// Returns what the caller has to write to create a new store.
pub fn create(options: &CreateOptions) -> Result<Created, CreateError> {
    if options.size < STORE_SIZE_MIN {
        return Err(CreateError::TooSmall { size: options.size });
    }
    if options.size > STORE_SIZE_MAX {
        return Err(CreateError::TooLarge { size: options.size });
    }
    if !matches!(options.sector_size, 512 | 4096) {
        return Err(CreateError::SectorSize(options.sector_size));
    }
    let (journal, checkpoints, data) = areas(options.size);
    let superblock = Superblock {
        sequence: 1,
        store: options.store,
        cluster: options.cluster,
        osd: options.osd,
        sector_size: options.sector_size,
        commit: options.commit,
        size: options.size,
        journal,
        checkpoints,
        data,
        suspect: None,
        engine: options.engine,
    };
    let root = Root {
        sequence: 0,
        until: Lsn::ZERO,
        replay: Lsn::ZERO,
        previous: CHAIN_START,
        directory: StreamRef::EMPTY,
        pgs: StreamRef::EMPTY,
        notes: StreamRef::EMPTY,
        discards: StreamRef::EMPTY,
        families: StreamRef::EMPTY,
    };
    let root_offset = checkpoints.offset + ROOT_PAGES[0] as u64 * PAGE_SIZE as u64;
    let second = Superblock { sequence: 0, ..superblock.clone() };
    Ok(Created {
        zero: vec![(journal.offset, journal.size)],
        clear: vec![(checkpoints.offset, checkpoints.size)],
        images: vec![
            (root_offset, root.encode(options.store.tag())),
            (SUPERBLOCK_OFFSETS[1], second.encode()),
            (SUPERBLOCK_OFFSETS[0], superblock.encode()),
        ],
    })
}

#[cfg(test)]
mod tests {
    use base::BlockSize;

    use super::*;

    fn options(size: u64) -> CreateOptions {
        CreateOptions {
            cluster: ClusterId::new(1),
            osd: OsdId::FIRST,
            store: StoreId::new(2),
            size,
            sector_size: 512,
            commit: CommitMode::Fsync,
            engine: None,
        }
    }

    #[test]
    fn impossible_stores_are_refused() {
        let too_small = options(STORE_SIZE_MIN - 1);
        assert!(matches!(create(&too_small), Err(CreateError::TooSmall { .. })));
        assert!(matches!(create(&options(64 * TIB)), Err(CreateError::TooLarge { .. })));
        let sector = CreateOptions { sector_size: 520, ..options(GIB) };
        assert_eq!(create(&sector), Err(CreateError::SectorSize(520)));
    }

    #[test]
    fn the_layout_fits_at_every_size() {
        for size in [STORE_SIZE_MIN, STORE_SIZE_MIN + 4096, GIB, 10 * GIB + 512, 10 * TIB] {
            let created = create(&options(size)).expect("the size is in range");
            let (_, image) = created.images.last().expect("the superblock is the last");
            let superblock = Superblock::decode(image).expect("it was just made");
            assert!(superblock.data.end() <= size);
            assert!(superblock.data.size > size / 2);
            assert!(superblock.journal.size <= GIB);
        }
    }

    #[test]
    fn a_store_full_of_the_smallest_blocks_has_room_for_their_records() {
        for size in [STORE_SIZE_MIN, GIB / 2, GIB, 10 * GIB, 100 * GIB, TIB, 10 * TIB, 63 * TIB] {
            let (_, checkpoints, data) = areas(size);
            let count = data.size / BlockSize::MIN.bytes();
            let records = count * format::disk::record_size(BlockSize::MIN, true) as u64;
            let room = crate::record_room::record_bytes_sure(checkpoints.size);
            assert!(records <= room, "{records} of {room} bytes in a store of {size}");
            // Besides the records of blocks: the largest possible note, and one tombstone for every 50
            // blocks.
            let others = crate::NOTE_SIZE_MAX as u64
                + count / 50 * format::disk::record_size(BlockSize::MIN, false) as u64;
            assert!(size < GIB / 2 || records + others <= room, "in a store of {size}");
        }
    }
}
