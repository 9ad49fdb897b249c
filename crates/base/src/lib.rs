//! Basic types that all crates share: ids, sizes, time, checksums, buffers, histograms, trace events, and
//! assertions weaker than `assert!`.
//!
//! Nothing here opens a file, reads a clock or draws a random number. The only dependency computes CRC-32C; a
//! test pins its results.

pub mod assertions;
pub mod buffer;
pub mod checksum;
pub mod choice;
pub mod hash;
pub mod histogram;
pub mod ids;
pub mod planted;
pub mod scheme;
pub mod seeds;
pub mod size;
pub mod time;
pub mod trace;

pub use assertions::never_count;
pub use buffer::{Buffer, BufferMut, BufferPool};
pub use checksum::{Checksum, crc32c};
pub use choice::Choice;
pub use ids::{
    ClusterId, ConnectionId, Epoch, ImageId, Incarnation, Lsn, MapRevision, MonitorId, OsdId, PgId,
    PoolId, Position, RECORDS_IMAGE, SessionId, SessionRange, StripeIndex, Version,
    range_of_session,
};
pub use scheme::Scheme;
pub use seeds::seeds;
pub use size::{BlockSize, GIB, KIB, MIB, TIB, UNIT_SIZE};
pub use time::{Duration, Time};
pub use trace::TraceEvent;
