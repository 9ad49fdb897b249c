//! Messages between the processes of a cluster. See `docs/internals/wire.md`.
//!
//! ```text
//!   client ──Request──▶ OSD      one stripe at a time, identified by session and sequence
//!          ◀──Reply───           the result, or why the request was refused
//!   anyone ──Control──▶ monitor  JSON text; its types live in `cluster::message`
//!   OSD ◀──Peer──▶ OSD           members of a PG, see `peer.rs`
//!   OSD ◀──Lease──▶ OSD          on a separate connection
//! ```
//!
//! Invariants
//!   1. A payload is covered by one checksum for each of its 4 KiB units; header and body each have their
//!      own checksum.
//!   2. A receiver allocates nothing before it has checked the lengths against the limits here.

mod client;
mod codec;
mod codec_peer;
mod decode_error;
mod fields;
mod message;
mod payload;
mod peer;
mod pg_entry;

pub use client::{
    CHAIN_LENGTH_MAX, LIST_PGS_MAX, Op, Outcome, Place, RESULTS_SIZE_MAX, Refusal, Reply, Request,
};
pub use codec::{FRAME_HEADER_SIZE, FrameHeader, decode, decode_header, encode};
pub use decode_error::DecodeError;
pub use message::{
    BODY_SIZE_MAX, CONTROL_SIZE_MAX, LEASE_SIZE_MAX, Message, PAYLOAD_SIZE_MAX,
    PEER_PAYLOAD_SIZE_MAX, PROTOCOL_VERSIONS, ROOM_VERSION_MIN,
};
pub use payload::Payload;
pub use peer::{
    Activation, BATCH_UNITS_SIZE_MAX, BatchContent, Change, Content, Digest, Elsewhere,
    EngineState, Filling, Gathered, HISTORY_COUNT_MAX, KeysWith, LIST_COUNT_MAX, LOST_COUNT_MAX,
    LeaseMessage, ListedBlock, MemberState, PART_CHANGE_COUNT_MAX, PagePart, PartChange, PeerBody,
    PeerMessage, RECORD_KEY_SIZE_MAX, REVISION_COUNT_MAX, RoomClaim, RoomOffer,
    SCRUB_NOTE_SIZE_MAX, TABLE_SIZE_MAX, WHOLE_COUNT_MAX,
};
pub use pg_entry::{Learner, MEMBERS_MAX, Member, PgEntry};
