//! Constants of the NBD protocol (fixed newstyle), under their names in the specification. All integers on
//! the wire are big-endian.

/// First bytes of the greeting.
pub(crate) const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second word of the greeting, and first word of each option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of a reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of a request.
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Greeting: options are answered.
pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// Greeting: the 124 zeros after `EXPORT_NAME` may be left out.
pub(crate) const FLAG_NO_ZEROES: u16 = 2;

pub(crate) const OPT_EXPORT_NAME: u32 = 1;
pub(crate) const OPT_ABORT: u32 = 2;
pub(crate) const OPT_LIST: u32 = 3;
pub(crate) const OPT_STARTTLS: u32 = 5;
pub(crate) const OPT_INFO: u32 = 6;
pub(crate) const OPT_GO: u32 = 7;
pub(crate) const OPT_STRUCTURED_REPLY: u32 = 8;
pub(crate) const OPT_LIST_META_CONTEXT: u32 = 9;
pub(crate) const OPT_SET_META_CONTEXT: u32 = 10;

pub(crate) const REP_ACK: u32 = 1;
pub(crate) const REP_SERVER: u32 = 2;
pub(crate) const REP_INFO: u32 = 3;
pub(crate) const REP_META_CONTEXT: u32 = 4;
pub(crate) const REP_ERR_UNSUP: u32 = (1 << 31) + 1;
pub(crate) const REP_ERR_POLICY: u32 = (1 << 31) + 2;
pub(crate) const REP_ERR_INVALID: u32 = (1 << 31) + 3;
pub(crate) const REP_ERR_UNKNOWN: u32 = (1 << 31) + 6;
pub(crate) const REP_ERR_TOO_BIG: u32 = (1 << 31) + 9;

pub(crate) const INFO_EXPORT: u16 = 0;
pub(crate) const INFO_NAME: u16 = 1;
pub(crate) const INFO_BLOCK_SIZE: u16 = 3;

pub(crate) const EXPORT_HAS_FLAGS: u16 = 1;
pub(crate) const EXPORT_READ_ONLY: u16 = 1 << 1;
pub(crate) const EXPORT_SEND_FLUSH: u16 = 1 << 2;
pub(crate) const EXPORT_SEND_FUA: u16 = 1 << 3;
pub(crate) const EXPORT_SEND_TRIM: u16 = 1 << 5;
pub(crate) const EXPORT_SEND_WRITE_ZEROES: u16 = 1 << 6;
pub(crate) const EXPORT_SEND_DF: u16 = 1 << 7;
pub(crate) const EXPORT_CAN_MULTI_CONN: u16 = 1 << 8;
pub(crate) const EXPORT_SEND_FAST_ZERO: u16 = 1 << 11;

pub(crate) const CMD_READ: u16 = 0;
pub(crate) const CMD_WRITE: u16 = 1;
pub(crate) const CMD_DISC: u16 = 2;
pub(crate) const CMD_FLUSH: u16 = 3;
pub(crate) const CMD_TRIM: u16 = 4;
pub(crate) const CMD_WRITE_ZEROES: u16 = 6;
pub(crate) const CMD_BLOCK_STATUS: u16 = 7;

/// The change must be durable before it is answered.
pub(crate) const CMD_FLAG_FUA: u16 = 1;
/// Keep the space of the zeroed range allocated.
pub(crate) const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
/// Answer a read in one chunk.
pub(crate) const CMD_FLAG_DF: u16 = 1 << 2;
/// One extent is enough.
pub(crate) const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
/// Fail unless zeroing is fast.
pub(crate) const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

/// The last chunk of a structured reply.
pub(crate) const CHUNK_FLAG_DONE: u16 = 1;
pub(crate) const CHUNK_OFFSET_DATA: u16 = 1;
pub(crate) const CHUNK_OFFSET_HOLE: u16 = 2;
pub(crate) const CHUNK_BLOCK_STATUS: u16 = 5;
pub(crate) const CHUNK_ERROR: u16 = (1 << 15) + 1;

/// The only metadata context: which parts of an export are holes.
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";
/// The id that the server assigns to `base:allocation`.
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;
/// `base:allocation`: the extent takes no space.
pub(crate) const STATE_HOLE: u32 = 1;
/// `base:allocation`: the extent reads as zeros.
pub(crate) const STATE_ZERO: u32 = 2;

/// Maximum payload of a read or write, in bytes.
pub(crate) const PAYLOAD_SIZE_MAX: u32 = 32 << 20;
/// Maximum length of the data of an option, in bytes; a name has at most 4096 bytes.
pub(crate) const OPTION_SIZE_MAX: u32 = 64 << 10;
/// Maximum length of the name of an export, in bytes.
pub(crate) const NAME_SIZE_MAX: usize = 4096;

/// Errors of requests, with the numbers of the protocol, which may differ from those of the operating system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Errno {
    /// EPERM: the export is read-only.
    Permission = 1,
    /// EIO: the data is damaged, or the request timed out.
    Io = 5,
    /// EINVAL: the request violates the protocol.
    Invalid = 22,
    /// ENOSPC: no space is left, or the request is beyond the end of the export.
    NoSpace = 28,
    /// ESHUTDOWN: the export is no longer served.
    Shutdown = 108,
}
