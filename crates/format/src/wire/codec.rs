//! Encodes and decodes frames. `docs/internals/wire.md` has the tables.
//!
//! ```text
//!   header (32 bytes) | body | payload
//!   offset  size  field
//!        0     4  checksum of bytes 4..32
//!        4     4  magic
//!        8     2  kind
//!       10     2  flags (0)
//!       12     4  body length
//!       16     4  payload length
//!       20     4  checksum of the body
//!       24     8  zero
//! ```
//!
//! Invariants
//!   1. A message has exactly one encoding: bytes that can be decoded are encoded to the same bytes again.
//!   2. `decode` allocates only what lengths checked against the limits allow.

use base::{Buffer, BufferPool, Epoch, MapRevision, SessionId, StripeIndex, UNIT_SIZE, crc32c};

use super::client::{LIST_PGS_MAX, Op, Outcome, RESULTS_SIZE_MAX, Refusal, Reply, Request};
use super::codec_peer::{decode_lease, decode_peer, encode_lease, encode_peer, peer_data};
use super::decode_error::{DecodeError, wrong};
use super::fields::*;
use super::message::{
    BODY_SIZE_MAX, CONTROL_SIZE_MAX, LEASE_SIZE_MAX, Message, PAYLOAD_SIZE_MAX,
    PEER_PAYLOAD_SIZE_MAX,
};
use super::payload::Payload;

/// Size of a frame's header in bytes.
pub const FRAME_HEADER_SIZE: usize = 32;

/// First field after the header's checksum: `ASHM` in ASCII.
const MAGIC: u32 = u32::from_le_bytes(*b"ASHM");

const KIND_REQUEST: u16 = 1;
const KIND_REPLY: u16 = 2;
const KIND_CONTROL: u16 = 3;
const KIND_PEER: u16 = 4;
const KIND_LEASE: u16 = 5;

/// A decoded frame header, whose lengths have been checked against the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Kind of the message.
    pub kind: u16,
    /// Bytes of body after the header.
    pub body_length: u32,
    /// Bytes of payload after the body.
    pub payload_length: u32,
    /// Checksum of the body.
    pub body_checksum: u32,
}

/// Appends the header and body of a message to `bytes`, and returns its payload, if any, which follows on
/// the wire unchanged. Allocates only if `bytes` must grow.
///
/// Requires: lengths within the limits of this module, one checksum for each 4 KiB of data, and the rules
/// of [`super::Content`] and [`super::PeerMessage`].
pub fn encode(message: &Message, bytes: &mut Vec<u8>) -> Option<Buffer> {
    let start = bytes.len();
    bytes.extend_from_slice(&[0; FRAME_HEADER_SIZE]);
    let (kind, body_max, payload) = match message {
        Message::Request(request) => {
            encode_request(request, bytes);
            (KIND_REQUEST, BODY_SIZE_MAX, request_data(request))
        }
        Message::Reply(reply) => {
            encode_reply(reply, bytes);
            (KIND_REPLY, BODY_SIZE_MAX, reply_data(reply))
        }
        Message::Control(text) => {
            bytes.extend_from_slice(text.as_bytes());
            (KIND_CONTROL, CONTROL_SIZE_MAX, None)
        }
        Message::Peer(message) => {
            encode_peer(message, bytes);
            (KIND_PEER, BODY_SIZE_MAX, peer_data(message))
        }
        Message::Lease(message) => {
            encode_lease(message, bytes);
            (KIND_LEASE, LEASE_SIZE_MAX, None)
        }
    };
    let (header, body) = bytes[start..].split_at_mut(FRAME_HEADER_SIZE);
    let payload_length = payload.as_ref().map_or(0, |payload| payload.len());
    assert!(body.len() <= body_max as usize);
    assert!(payload_length <= payload_size_max(kind) as usize);
    header[4..8].copy_from_slice(&MAGIC.to_le_bytes());
    header[8..10].copy_from_slice(&kind.to_le_bytes());
    header[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[16..20].copy_from_slice(&(payload_length as u32).to_le_bytes());
    header[20..24].copy_from_slice(&crc32c(body).get().to_le_bytes());
    let checksum = crc32c(&header[4..]).get();
    header[..4].copy_from_slice(&checksum.to_le_bytes());
    payload
}

/// Checks a header: its checksum, and every length against its limit.
pub fn decode_header(bytes: &[u8; FRAME_HEADER_SIZE]) -> Result<FrameHeader, DecodeError> {
    let mut reader = Reader { bytes };
    let checksum = reader.u32()?;
    if checksum != crc32c(&bytes[4..]).get() {
        return wrong("the checksum of a frame's header does not match");
    }
    if reader.u32()? != MAGIC {
        return wrong("a frame does not begin with the protocol's magic number");
    }
    let kind = reader.u16()?;
    let flags = reader.u16()?;
    let header = FrameHeader {
        kind,
        body_length: reader.u32()?,
        payload_length: reader.u32()?,
        body_checksum: reader.u32()?,
    };
    if flags != 0 || reader.u64()? != 0 {
        return wrong("unknown bits are set in a frame header");
    }
    let body_max = match kind {
        KIND_REQUEST | KIND_REPLY | KIND_PEER => BODY_SIZE_MAX,
        KIND_CONTROL => CONTROL_SIZE_MAX,
        KIND_LEASE => LEASE_SIZE_MAX,
        _ => return wrong(format!("unknown frame kind {kind}")),
    };
    if header.body_length > body_max {
        return wrong(format!("invalid frame body length: {} bytes", header.body_length));
    }
    if header.payload_length > payload_size_max(kind)
        || !header.payload_length.is_multiple_of(UNIT_SIZE as u32)
    {
        return wrong(format!("invalid frame payload length: {} bytes", header.payload_length));
    }
    Ok(header)
}

/// Returns the size of the longest payload of messages of this kind, in bytes.
fn payload_size_max(kind: u16) -> u32 {
    match kind {
        KIND_REQUEST | KIND_REPLY => PAYLOAD_SIZE_MAX,
        KIND_PEER => PEER_PAYLOAD_SIZE_MAX,
        _ => 0,
    }
}

/// Decodes a message from header, body and payload. The payload is not verified here: the user of the data
/// must verify its checksums.
///
/// Requires: body and payload have the lengths in the header (`None` for no payload).
pub fn decode(
    header: &FrameHeader,
    body: &[u8],
    payload: Option<Buffer>,
    pool: &BufferPool,
) -> Result<Message, DecodeError> {
    assert!(body.len() == header.body_length as usize);
    assert!(payload.as_ref().map_or(0, |payload| payload.len()) == header.payload_length as usize);
    if crc32c(body).get() != header.body_checksum {
        return wrong("the checksum of a frame's body does not match");
    }
    let mut reader = Reader { bytes: body };
    let mut payload = payload.filter(|payload| !payload.is_empty());
    let message = match header.kind {
        KIND_REQUEST => Message::Request(decode_request(&mut reader, &mut payload)?),
        KIND_REPLY => Message::Reply(decode_reply(&mut reader, &mut payload, pool)?),
        KIND_CONTROL => Message::Control(reader.text(body.len())?),
        KIND_PEER => Message::Peer(Box::new(decode_peer(&mut reader, &mut payload)?)),
        KIND_LEASE => Message::Lease(Box::new(decode_lease(&mut reader)?)),
        kind => {
            return wrong(format!("unknown frame kind {kind}"));
        }
    };
    if !reader.bytes.is_empty() {
        return wrong("a frame's body is longer than its message");
    }
    if payload.is_some() {
        return wrong("a message that cannot carry data has a payload");
    }
    Ok(message)
}

// ---- requests -------------------------------------------------------------------------------

const OP_READ: u8 = 1;
const OP_WRITE: u8 = 2;
const OP_ZERO: u8 = 3;
const OP_EXTENTS: u8 = 4;
const OP_SYNC: u8 = 5;
const OP_DELETE_RANGE: u8 = 6;
const OP_READ_PART: u8 = 7;
const OP_MUTATE: u8 = 8;
const OP_LOOK: u8 = 9;
const OP_LIST: u8 = 10;
/// Flag of a write: an expected version follows.
const WRITE_COMPARES: u8 = 1;
/// Flag of a write or zero: the request may be answered before it is durable.
const WRITE_LAZY: u8 = 2;

fn request_data(request: &Request) -> Option<Buffer> {
    match &request.op {
        Op::Write { data, .. } => Some(data.clone()),
        Op::Mutate { operation, .. } => operation.data(),
        Op::Look { reads } => reads.data(),
        Op::List { names, .. } => names.data(),
        _ => None,
    }
}

fn encode_request(request: &Request, bytes: &mut Vec<u8>) {
    put_u64(bytes, request.session.get());
    put_u64(bytes, request.sequence);
    put_u64(bytes, request.revision.get());
    put_pg(bytes, request.pg);
    put_u32(bytes, request.epoch.get());
    match &request.op {
        Op::Read { place, offset, length, parents }
        | Op::ReadPart { place, offset, length, parents } => {
            let is_direct = matches!(request.op, Op::ReadPart { .. });
            bytes.push(if is_direct { OP_READ_PART } else { OP_READ });
            put_place(bytes, place);
            put_u32(bytes, *offset);
            put_u32(bytes, *length);
            put_chain(bytes, parents);
        }
        Op::Write { place, offset, checksums, data, expected, lazy } => {
            assert!(data.len() == checksums.len() * UNIT_SIZE as usize);
            bytes.push(OP_WRITE);
            put_place(bytes, place);
            put_u32(bytes, *offset);
            let compares = if expected.is_some() { WRITE_COMPARES } else { 0 };
            bytes.push(compares | if *lazy { WRITE_LAZY } else { 0 });
            if let Some(version) = expected {
                put_version(bytes, *version);
            }
            put_checksums(bytes, checksums);
        }
        Op::Zero { place, offset, length, lazy } => {
            bytes.push(OP_ZERO);
            put_place(bytes, place);
            put_u32(bytes, *offset);
            put_u32(bytes, *length);
            bytes.push(if *lazy { WRITE_LAZY } else { 0 });
        }
        Op::Extents { place, parents } => {
            bytes.push(OP_EXTENTS);
            put_place(bytes, place);
            put_chain(bytes, parents);
        }
        Op::Sync => bytes.push(OP_SYNC),
        Op::DeleteRange { image, from } => {
            bytes.push(OP_DELETE_RANGE);
            put_u32(bytes, image.get());
            put_u32(bytes, from.get());
        }
        Op::Mutate { number, lowest, again, operation } => {
            bytes.push(OP_MUTATE);
            put_u64(bytes, *number);
            put_u64(bytes, *lowest);
            bytes.push(u8::from(*again));
            operation.encode(bytes);
        }
        Op::Look { reads } => {
            bytes.push(OP_LOOK);
            reads.encode(bytes);
        }
        Op::List { beside, names } => {
            bytes.push(OP_LIST);
            put_count(bytes, beside.len(), LIST_PGS_MAX - 1);
            for (pg, epoch) in beside {
                put_u32(bytes, *pg);
                put_u32(bytes, epoch.get());
            }
            names.encode(bytes);
        }
    }
}

fn decode_request(
    reader: &mut Reader<'_>,
    payload: &mut Option<Buffer>,
) -> Result<Request, DecodeError> {
    let session = SessionId::new(reader.u64()?);
    let sequence = reader.u64()?;
    let revision = MapRevision::new(reader.u64()?);
    let pg = reader.pg()?;
    let epoch = Epoch::new(reader.u32()?);
    let op = match reader.u8()? {
        OP_READ => {
            let (place, (offset, length)) = (reader.place()?, reader.range()?);
            Op::Read { place, offset, length, parents: reader.chain()? }
        }
        OP_READ_PART => {
            let (place, (offset, length)) = (reader.place()?, reader.range()?);
            Op::ReadPart { place, offset, length, parents: reader.chain()? }
        }
        OP_WRITE => decode_write(reader, payload)?,
        OP_ZERO => {
            let (place, (offset, length)) = (reader.place()?, reader.range()?);
            let flags = write_flags(reader, WRITE_LAZY)?;
            Op::Zero { place, offset, length, lazy: flags & WRITE_LAZY != 0 }
        }
        OP_EXTENTS => Op::Extents { place: reader.place()?, parents: reader.chain()? },
        OP_SYNC => Op::Sync,
        OP_DELETE_RANGE => {
            Op::DeleteRange { image: reader.image()?, from: StripeIndex::new(reader.u32()?) }
        }
        OP_MUTATE => Op::Mutate {
            number: reader.u64()?,
            lowest: reader.u64()?,
            again: reader.bool()?,
            operation: Payload::decode(reader, payload)?,
        },
        OP_LOOK => Op::Look { reads: Payload::decode(reader, payload)? },
        OP_LIST => {
            let count = reader.list(LIST_PGS_MAX - 1, 8, "PGs to list")?;
            let pg = |_| Ok((reader.u32()?, Epoch::new(reader.u32()?)));
            let beside = (0..count).map(pg).collect::<Result<_, DecodeError>>()?;
            Op::List { beside, names: Payload::decode(reader, payload)? }
        }
        tag => {
            return wrong(format!("unknown request operation {tag}"));
        }
    };
    Ok(Request { session, sequence, pg, epoch, revision, op })
}

fn decode_write(reader: &mut Reader<'_>, payload: &mut Option<Buffer>) -> Result<Op, DecodeError> {
    let place = reader.place()?;
    let offset = reader.u32()?;
    let flags = write_flags(reader, WRITE_COMPARES | WRITE_LAZY)?;
    let expected = if flags & WRITE_COMPARES == 0 { None } else { Some(reader.version()?) };
    let lazy = flags & WRITE_LAZY != 0;
    let Some(data) = payload.take() else { return wrong("a write came without data") };
    check_range(offset, data.len() as u32)?;
    let checksums = reader.checksums(data.len())?;
    Ok(Op::Write { place, offset, checksums, data, expected, lazy })
}

fn write_flags(reader: &mut Reader<'_>, known: u8) -> Result<u8, DecodeError> {
    let flags = reader.u8()?;
    if flags & !known == 0 { Ok(flags) } else { wrong(format!("unknown write flags {flags:#x}")) }
}

// ---- replies --------------------------------------------------------------------------------

const OUTCOME_READ: u8 = 1;
const OUTCOME_WRITTEN: u8 = 2;
const OUTCOME_EXTENTS: u8 = 3;
const OUTCOME_SYNCED: u8 = 4;
const OUTCOME_DELETED: u8 = 5;
const OUTCOME_MUTATED: u8 = 6;
const OUTCOME_LOOKED: u8 = 7;
const OUTCOME_LISTED: u8 = 8;
const REFUSAL_STALE: u8 = 128;
const REFUSAL_FENCED: u8 = 129;
const REFUSAL_COMPARE_FAILED: u8 = 130;
const REFUSAL_FULL: u8 = 131;
const REFUSAL_DAMAGED: u8 = 132;
const REFUSAL_INCOMPLETE: u8 = 133;
const REFUSAL_BUSY: u8 = 134;
const REFUSAL_INVALID: u8 = 135;
const REFUSAL_CORRUPTED: u8 = 136;
const REFUSAL_ASK_PRIMARY: u8 = 137;
const REFUSAL_ASSERTED: u8 = 138;
const REFUSAL_TOO_LARGE: u8 = 139;

fn reply_data(reply: &Reply) -> Option<Buffer> {
    match &reply.outcome {
        Ok(Outcome::Read { data, .. }) if !data.is_empty() => Some(data.clone()),
        Ok(Outcome::Looked { answers }) => answers.data(),
        Ok(Outcome::Listed { pages, .. }) => pages.data(),
        _ => None,
    }
}

fn encode_reply(reply: &Reply, bytes: &mut Vec<u8>) {
    put_u64(bytes, reply.session.get());
    put_u64(bytes, reply.sequence);
    match &reply.outcome {
        Ok(outcome) => encode_outcome(outcome, bytes),
        Err(refusal) => encode_refusal(refusal, bytes),
    }
}

fn encode_outcome(outcome: &Outcome, bytes: &mut Vec<u8>) {
    match outcome {
        Outcome::Read { version, checksums, data } => {
            assert!(data.len() == checksums.len() * UNIT_SIZE as usize);
            bytes.push(OUTCOME_READ);
            put_version(bytes, *version);
            put_checksums(bytes, checksums);
        }
        Outcome::Written { version, durable } => {
            bytes.push(OUTCOME_WRITTEN);
            put_version(bytes, *version);
            bytes.push(u8::from(*durable));
        }
        Outcome::Extents { bitmap } => {
            bytes.push(OUTCOME_EXTENTS);
            put_bitmap(bytes, bitmap);
        }
        Outcome::Synced => bytes.push(OUTCOME_SYNCED),
        Outcome::Deleted { count, complete } => {
            bytes.push(OUTCOME_DELETED);
            put_u32(bytes, *count);
            bytes.push(u8::from(*complete));
        }
        Outcome::Mutated { version, results } => {
            bytes.push(OUTCOME_MUTATED);
            put_version(bytes, *version);
            put_count(bytes, results.len(), RESULTS_SIZE_MAX);
            bytes.extend_from_slice(results);
        }
        Outcome::Looked { answers } => {
            bytes.push(OUTCOME_LOOKED);
            answers.encode(bytes);
        }
        Outcome::Listed { refused, pages } => {
            bytes.push(OUTCOME_LISTED);
            put_count(bytes, refused.len(), LIST_PGS_MAX);
            refused.iter().for_each(|pg| put_u32(bytes, *pg));
            pages.encode(bytes);
        }
    }
}

fn encode_refusal(refusal: &Refusal, bytes: &mut Vec<u8>) {
    match refusal {
        Refusal::Stale(entry) => {
            bytes.push(REFUSAL_STALE);
            bytes.push(u8::from(entry.is_some()));
            if let Some(entry) = entry {
                put_entry(bytes, entry);
            }
        }
        Refusal::Fenced => bytes.push(REFUSAL_FENCED),
        Refusal::CompareFailed { version } => {
            bytes.push(REFUSAL_COMPARE_FAILED);
            put_version(bytes, *version);
        }
        Refusal::Full => bytes.push(REFUSAL_FULL),
        Refusal::Damaged { units } => {
            bytes.push(REFUSAL_DAMAGED);
            put_bitmap(bytes, units);
        }
        Refusal::Incomplete { why } => {
            bytes.push(REFUSAL_INCOMPLETE);
            put_text(bytes, why);
        }
        Refusal::Busy => bytes.push(REFUSAL_BUSY),
        Refusal::Invalid { why } => {
            bytes.push(REFUSAL_INVALID);
            put_text(bytes, why);
        }
        Refusal::Corrupted => bytes.push(REFUSAL_CORRUPTED),
        Refusal::AskPrimary => bytes.push(REFUSAL_ASK_PRIMARY),
        Refusal::Asserted { object, step, version } => {
            bytes.push(REFUSAL_ASSERTED);
            put_u16(bytes, *object);
            put_u16(bytes, *step);
            put_version(bytes, *version);
        }
        Refusal::TooLarge { why } => {
            bytes.push(REFUSAL_TOO_LARGE);
            put_text(bytes, why);
        }
    }
}

fn decode_reply(
    reader: &mut Reader<'_>,
    payload: &mut Option<Buffer>,
    pool: &BufferPool,
) -> Result<Reply, DecodeError> {
    let session = SessionId::new(reader.u64()?);
    let sequence = reader.u64()?;
    let outcome = match reader.u8()? {
        OUTCOME_READ => {
            let version = reader.version()?;
            let data = payload.take().unwrap_or_else(|| pool.take(0).freeze());
            let checksums = reader.checksums(data.len())?;
            Ok(Outcome::Read { version, checksums, data })
        }
        OUTCOME_WRITTEN => {
            Ok(Outcome::Written { version: reader.version()?, durable: reader.bool()? })
        }
        OUTCOME_EXTENTS => Ok(Outcome::Extents { bitmap: reader.bitmap()? }),
        OUTCOME_SYNCED => Ok(Outcome::Synced),
        OUTCOME_DELETED => Ok(Outcome::Deleted { count: reader.u32()?, complete: reader.bool()? }),
        OUTCOME_MUTATED => {
            let version = reader.version()?;
            let count = reader.list(RESULTS_SIZE_MAX, 1, "bytes of results")?;
            Ok(Outcome::Mutated { version, results: reader.take(count)?.to_vec() })
        }
        OUTCOME_LOOKED => Ok(Outcome::Looked { answers: Payload::decode(reader, payload)? }),
        OUTCOME_LISTED => {
            let count = reader.list(LIST_PGS_MAX, 4, "refused PGs")?;
            let refused = (0..count).map(|_| reader.u32()).collect::<Result<_, _>>()?;
            Ok(Outcome::Listed { refused, pages: Payload::decode(reader, payload)? })
        }
        tag => Err(decode_refusal(tag, reader)?),
    };
    Ok(Reply { session, sequence, outcome })
}

fn decode_refusal(tag: u8, reader: &mut Reader<'_>) -> Result<Refusal, DecodeError> {
    Ok(match tag {
        REFUSAL_STALE if reader.bool()? => Refusal::Stale(Some(reader.entry()?)),
        REFUSAL_STALE => Refusal::Stale(None),
        REFUSAL_FENCED => Refusal::Fenced,
        REFUSAL_COMPARE_FAILED => Refusal::CompareFailed { version: reader.version()? },
        REFUSAL_FULL => Refusal::Full,
        REFUSAL_DAMAGED => Refusal::Damaged { units: reader.bitmap()? },
        REFUSAL_INCOMPLETE => Refusal::Incomplete { why: reader.counted_text()? },
        REFUSAL_BUSY => Refusal::Busy,
        REFUSAL_INVALID => Refusal::Invalid { why: reader.counted_text()? },
        REFUSAL_CORRUPTED => Refusal::Corrupted,
        REFUSAL_ASK_PRIMARY => Refusal::AskPrimary,
        REFUSAL_ASSERTED => Refusal::Asserted {
            object: reader.u16()?,
            step: reader.u16()?,
            version: reader.version()?,
        },
        REFUSAL_TOO_LARGE => Refusal::TooLarge { why: reader.counted_text()? },
        tag => {
            return wrong(format!("unknown reply outcome {tag}"));
        }
    })
}
