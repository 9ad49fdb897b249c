//! Making a store: the layout, the superblocks, and what must be zeros. Pure: the shell writes.

use base::{ClusterId, MIB, OsdId};

use crate::{CommitMode, StoreId};

/// Smallest store, in bytes.
pub const STORE_SIZE_MIN: u64 = 128 * MIB;

/// What is frozen with a store.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The OSD it belongs to.
    pub osd: OsdId,
    /// Its own identity, drawn at random.
    pub store: StoreId,
    /// Size of the device, slice or file in bytes.
    pub size: u64,
    /// The device's logical block: 512 or 4096 bytes.
    pub sector_size: u32,
    /// When a write is durable.
    pub commit: CommitMode,
}

/// What the shell does, in this order: zero the ranges end to end, flush, write the images, flush.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Created {
    /// Ranges (offset, length) in bytes to be written with zeros from end to end.
    pub zero: Vec<(u64, u64)>,
    /// Images (offset, bytes) to be written after that; whole sectors.
    pub images: Vec<(u64, Vec<u8>)>,
}

/// Why no store can be made so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CreateError {
    /// Smaller than [`STORE_SIZE_MIN`].
    TooSmall {
        /// As given, in bytes.
        size: u64,
    },
    /// Larger than the format can address.
    TooLarge {
        /// As given, in bytes.
        size: u64,
    },
    /// Neither 512 nor 4096.
    SectorSize(u32),
}

impl std::fmt::Display for CreateError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CreateError::TooSmall { size } => {
                write!(f, "{size} bytes are too small for an OSD: give it at least 128MiB")
            }
            CreateError::TooLarge { size } => {
                write!(f, "{size} bytes are too large for one OSD: give it at most 64TiB")
            }
            CreateError::SectorSize(size) => {
                write!(f, "a logical block of {size} bytes is not supported: only 512 and 4096 are")
            }
        }
    }
}

impl std::error::Error for CreateError {}

/// The layout of a new store.
pub fn create(options: &CreateOptions) -> Result<Created, CreateError> {
    if options.size < STORE_SIZE_MIN {
        return Err(CreateError::TooSmall { size: options.size });
    }
    Ok(Created { zero: Vec::new(), images: Vec::new() })
}
