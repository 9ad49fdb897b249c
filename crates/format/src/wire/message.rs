//! All messages, and limits for their lengths.

use super::client::{Reply, Request};
use super::peer::{BATCH_UNITS_SIZE_MAX, LeaseMessage, PeerMessage};
use crate::disk;

/// Longest payload of a frame, in bytes; of a peer message: [`PEER_PAYLOAD_SIZE_MAX`].
pub const PAYLOAD_SIZE_MAX: u32 = 4 << 20;
/// Longest payload of a peer message, in bytes: the largest batch of an object pool.
pub const PEER_PAYLOAD_SIZE_MAX: u32 = (disk::BODY_SIZE_MAX + BATCH_UNITS_SIZE_MAX) as u32;
/// Longest body of a data message, in bytes.
pub const BODY_SIZE_MAX: u32 = 64 << 10;
/// Longest text of a control message, in bytes.
pub const CONTROL_SIZE_MAX: u32 = 4 << 20;
/// Longest body of a lease message, in bytes.
pub const LEASE_SIZE_MAX: u32 = 1 << 20;
/// Protocol versions that this program supports, as an inclusive range.
pub const PROTOCOL_VERSIONS: std::ops::RangeInclusive<u16> = 1..=2;
/// The first protocol version whose lease messages have a credit for room beside the one for space.
pub const ROOM_VERSION_MIN: u16 = 2;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// A client's request to an OSD.
    Request(Request),
    /// An OSD's reply to a client.
    Reply(Reply),
    /// JSON text to or from a monitor; see `cluster::message`.
    Control(String),
    /// A message between members of a PG.
    Peer(Box<PeerMessage>),
    /// A message between two OSDs about their lease.
    Lease(Box<LeaseMessage>),
}
