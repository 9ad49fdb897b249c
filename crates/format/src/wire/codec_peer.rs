//! Encodes and decodes the bodies of peer and lease messages. `docs/internals/wire.md` has the tables.
//!
//! Invariants
//!   1. A message has exactly one encoding.
//!   2. A decoded content is consistent: its bitmaps fit its block size, written units are among its units,
//!      and there is one checksum and 4 KiB of data for each written unit.

use base::{
    BlockSize, Buffer, Checksum, Epoch, MapRevision, PoolId, Position, StripeIndex, UNIT_SIZE,
    Version,
};

use super::decode_error::{DecodeError, wrong};
use super::fields::*;
use super::payload::Payload;
use super::peer::{
    Activation, BatchContent, Change, Content, Digest, Elsewhere, EngineState, Filling, Gathered,
    HISTORY_COUNT_MAX, KeysWith, LIST_COUNT_MAX, LOST_COUNT_MAX, LeaseMessage, ListedBlock,
    MemberState, PART_CHANGE_COUNT_MAX, PagePart, PartChange, PeerBody, PeerMessage,
    RECORD_KEY_SIZE_MAX, REVISION_COUNT_MAX, RoomClaim, RoomOffer, SCRUB_NOTE_SIZE_MAX,
    TABLE_SIZE_MAX, WHOLE_COUNT_MAX,
};
use super::pg_entry::Member;
use crate::disk::BlockKey;

const BODY_QUERY: u8 = 1;
const BODY_STATE: u8 = 2;
const BODY_LIST: u8 = 3;
const BODY_LISTED: u8 = 4;
const BODY_FETCH: u8 = 5;
const BODY_FETCHED: u8 = 6;
const BODY_REPAIR: u8 = 7;
const BODY_REPAIRED: u8 = 8;
const BODY_ACTIVATE: u8 = 9;
const BODY_ACTIVATED: u8 = 10;
const BODY_WRITE: u8 = 11;
const BODY_WRITTEN: u8 = 12;
const BODY_PROGRESS: u8 = 13;
const BODY_NOTED: u8 = 14;
const BODY_FAILED: u8 = 15;
const BODY_STALE: u8 = 16;
const BODY_SYNC: u8 = 17;
const BODY_SYNCED: u8 = 18;
const BODY_MARK: u8 = 19;
const BODY_DROP: u8 = 20;
const BODY_PART: u8 = 21;
const BODY_PARITY: u8 = 22;
const BODY_SKIP: u8 = 23;
const BODY_DELTA: u8 = 24;
const BODY_FORWARD: u8 = 25;
const BODY_PARITY_DELTA: u8 = 26;
const BODY_DELTA_WANTED: u8 = 27;
const BODY_PARITY_LOST: u8 = 28;
const BODY_DRAINING: u8 = 29;
const BODY_SCRUB: u8 = 40;
const BODY_SCRUBBED: u8 = 41;
const BODY_MEND: u8 = 42;
const BODY_RECALL: u8 = 43;
const BODY_RECALLED: u8 = 44;
const BODY_KEEP: u8 = 45;
const BODY_TRIED: u8 = 46;
const BODY_PART_BEHIND: u8 = 47;
const BODY_BATCH: u8 = 50;
const BODY_PAGE: u8 = 51;
const BODY_OBJECT_FORWARD: u8 = 52;
const BODY_GATHER: u8 = 53;
const BODY_GATHERED: u8 = 54;
const BODY_LIST_HEADS: u8 = 57;
const BODY_HEADED: u8 = 58;

const PART_WHOLE: u8 = 0;
const PART_FIRST: u8 = 1;
const PART_MIDDLE: u8 = 2;
const PART_LAST: u8 = 3;

const GATHERED_NOTHING: u8 = 0;
const GATHERED_CONTENT: u8 = 1;
const GATHERED_TOO_LARGE: u8 = 2;
const GATHERED_UNREADABLE: u8 = 3;

const CONTENT_GONE: u8 = 0;
const CONTENT_TOMBSTONE: u8 = 1;
const CONTENT_BLOCK: u8 = 2;
const CONTENT_BLOCK_WITH_TABLE: u8 = 3;

const CHANGE_WRITE: u8 = 1;
const CHANGE_ZERO: u8 = 2;
const CHANGE_DELETE: u8 = 3;

const LEASE_RENEW: u8 = 1;
const LEASE_GRANTED: u8 = 2;
const LEASE_SURRENDER: u8 = 3;

/// Sizes of the elements of lists, in bytes.
const KEY_SIZE: usize = 12;
const LISTED_SIZE: usize = KEY_SIZE + 12 + 1;
/// A position and three bitmaps without words.
const PART_CHANGE_SIZE_MIN: usize = 1 + 3;
const ACTIVATION_SIZE: usize = 4 + 12;
const REVISION_SIZE: usize = 4 + 8;
const LOST_SIZE: usize = 8 + 4;

// ---- members of a PG ------------------------------------------------------------------------

/// Returns the payload that follows a message's body.
pub(super) fn peer_data(message: &PeerMessage) -> Option<Buffer> {
    match &message.body {
        PeerBody::Fetched { content, .. }
        | PeerBody::Repair { content, .. }
        | PeerBody::Mend { content, .. }
        | PeerBody::Part { content, .. }
        | PeerBody::Parity { content, .. }
        | PeerBody::Delta { content, .. }
        | PeerBody::ParityDelta { content, .. }
        | PeerBody::Forward { content, .. } => match content {
            Content::Block { data, .. } => data.clone(),
            Content::Gone | Content::Tombstone { .. } => None,
        },
        PeerBody::Write { change: Change::Write { data, .. }, .. } => Some(data.clone()),
        PeerBody::Headed { heads, .. } => heads.data(),
        PeerBody::Batch { content, .. }
        | PeerBody::Page { content, .. }
        | PeerBody::ObjectForward { content: Some(content), .. }
        | PeerBody::Gathered { result: Gathered::Forward(Some(content)), .. } => {
            Some(content.data.clone())
        }
        _ => None,
    }
}

pub(super) fn encode_peer(message: &PeerMessage, bytes: &mut Vec<u8>) {
    let pool = message.pg.pool;
    put_pg(bytes, message.pg);
    put_u32(bytes, message.epoch.get());
    match &message.body {
        PeerBody::Query { revision } => {
            bytes.push(BODY_QUERY);
            put_u64(bytes, revision.get());
        }
        PeerBody::Draining => bytes.push(BODY_DRAINING),
        PeerBody::State(state) => {
            bytes.push(BODY_STATE);
            put_state(bytes, pool, state);
        }
        PeerBody::List { call, newer_than, after } => {
            put_call(bytes, BODY_LIST, *call);
            put_version(bytes, *newer_than);
            put_optional_key(bytes, pool, *after);
        }
        PeerBody::Listed { call, blocks, is_last } => {
            put_call(bytes, BODY_LISTED, *call);
            put_bool(bytes, *is_last);
            put_listed(bytes, pool, blocks);
        }
        PeerBody::Fetch { call, key, units, as_of } => {
            put_call(bytes, BODY_FETCH, *call);
            put_key(bytes, pool, *key);
            put_bitmap(bytes, units);
            put_bool(bytes, as_of.is_some());
            if let Some(version) = as_of {
                put_version(bytes, *version);
            }
        }
        PeerBody::Fetched { call, content } => {
            put_call(bytes, BODY_FETCHED, *call);
            put_content(bytes, content);
        }
        PeerBody::Repair { call, key, content } => {
            put_call(bytes, BODY_REPAIR, *call);
            put_key(bytes, pool, *key);
            put_content(bytes, content);
        }
        PeerBody::Repaired { call } => put_call(bytes, BODY_REPAIRED, *call),
        PeerBody::Activate { adopted, floor, history, filling } => {
            bytes.push(BODY_ACTIVATE);
            put_version(bytes, *adopted);
            put_version(bytes, *floor);
            put_history(bytes, history);
            put_filling(bytes, pool, filling.as_ref());
        }
        PeerBody::Activated => bytes.push(BODY_ACTIVATED),
        PeerBody::Write { version, mark, key, block_size, lazy, change } => {
            bytes.push(BODY_WRITE);
            put_version(bytes, *version);
            put_version(bytes, *mark);
            put_key(bytes, pool, *key);
            bytes.push(block_size.shift());
            put_bool(bytes, *lazy);
            put_change(bytes, *block_size, change);
        }
        PeerBody::Part { version, mark, revision, key, lazy, content, differences, is_direct } => {
            put_header(bytes, BODY_PART, *version, *mark, *lazy);
            put_u64(bytes, revision.get());
            put_key(bytes, pool, *key);
            put_bitmap(bytes, differences);
            put_bool(bytes, *is_direct);
            put_content(bytes, content);
        }
        PeerBody::Parity { version, mark, key, lazy, content, changes } => {
            put_header(bytes, BODY_PARITY, *version, *mark, *lazy);
            put_key(bytes, pool, *key);
            put_changes(bytes, changes);
            put_content(bytes, content);
        }
        PeerBody::Skip { version, mark, revision, lazy } => {
            put_header(bytes, BODY_SKIP, *version, *mark, *lazy);
            put_u64(bytes, revision.get());
        }
        PeerBody::Delta { version, key, part, content } => {
            put_delta(bytes, BODY_DELTA, pool, (*version, *key, *part), content);
        }
        PeerBody::ParityDelta { version, key, part, content } => {
            put_delta(bytes, BODY_PARITY_DELTA, pool, (*version, *key, *part), content);
        }
        PeerBody::DeltaWanted { version, part } => {
            bytes.push(BODY_DELTA_WANTED);
            put_version(bytes, *version);
            bytes.push(part.get());
        }
        PeerBody::PartBehind { part } => bytes.extend([BODY_PART_BEHIND, part.get()]),
        PeerBody::ParityLost { key } => {
            bytes.push(BODY_PARITY_LOST);
            put_key(bytes, pool, *key);
        }
        PeerBody::Forward { call, key, content, replaces } => {
            put_call(bytes, BODY_FORWARD, *call);
            put_key(bytes, pool, *key);
            put_version(bytes, *replaces);
            put_content(bytes, content);
        }
        PeerBody::Written { version, durable } => {
            bytes.push(BODY_WRITTEN);
            put_version(bytes, *version);
            put_bool(bytes, *durable);
        }
        PeerBody::Sync { call } => put_call(bytes, BODY_SYNC, *call),
        PeerBody::Synced { call } => put_call(bytes, BODY_SYNCED, *call),
        PeerBody::Mark { mark, revision } => {
            bytes.push(BODY_MARK);
            put_version(bytes, *mark);
            put_u64(bytes, revision.get());
        }
        PeerBody::Drop { call, version } => {
            put_call(bytes, BODY_DROP, *call);
            put_version(bytes, *version);
        }
        PeerBody::Progress { call, filling, complete, floor } => {
            put_call(bytes, BODY_PROGRESS, *call);
            put_version(bytes, *complete);
            put_version(bytes, *floor);
            put_filling(bytes, pool, filling.as_ref());
        }
        PeerBody::Noted { call } => put_call(bytes, BODY_NOTED, *call),
        PeerBody::Failed { why } => {
            bytes.push(BODY_FAILED);
            put_text(bytes, why);
        }
        PeerBody::Stale(entry) => {
            bytes.push(BODY_STALE);
            put_entry(bytes, entry);
        }
        PeerBody::Scrub { call, key, deep } => {
            put_call(bytes, BODY_SCRUB, *call);
            put_key(bytes, pool, *key);
            put_bool(bytes, *deep);
        }
        PeerBody::Scrubbed { call, floor, digest } => {
            put_call(bytes, BODY_SCRUBBED, *call);
            put_version(bytes, *floor);
            put_digest(bytes, digest);
        }
        PeerBody::Mend { call, key, content } => {
            put_call(bytes, BODY_MEND, *call);
            put_key(bytes, pool, *key);
            put_content(bytes, content);
        }
        PeerBody::Recall { call } => put_call(bytes, BODY_RECALL, *call),
        PeerBody::Recalled { call, note } => {
            put_call(bytes, BODY_RECALLED, *call);
            put_note(bytes, note);
        }
        PeerBody::Keep { call, note } => {
            put_call(bytes, BODY_KEEP, *call);
            put_note(bytes, note);
        }
        PeerBody::Tried { call, is_done } => {
            put_call(bytes, BODY_TRIED, *call);
            put_bool(bytes, *is_done);
        }
        PeerBody::Batch { after, version, mark, content } => {
            bytes.push(BODY_BATCH);
            for version in [after, version, mark] {
                put_version(bytes, *version);
            }
            put_batch_content(bytes, content);
        }
        PeerBody::Page { call, version, part, content } => {
            put_call(bytes, BODY_PAGE, *call);
            put_version(bytes, *version);
            put_page_part(bytes, part);
            put_batch_content(bytes, content);
        }
        PeerBody::ListHeads { call, from, before, with } => {
            assert!(from < before);
            put_call(bytes, BODY_LIST_HEADS, *call);
            bytes.push(*with as u8);
            put_record_key(bytes, from);
            put_record_key(bytes, before);
        }
        PeerBody::Headed { call, heads, is_last } => {
            put_call(bytes, BODY_HEADED, *call);
            put_bool(bytes, *is_last);
            heads.encode(bytes);
        }
        PeerBody::ObjectForward { call, after, version, content } => {
            put_call(bytes, BODY_OBJECT_FORWARD, *call);
            put_version(bytes, *after);
            put_version(bytes, *version);
            put_bool(bytes, content.is_some());
            content.iter().for_each(|content| put_batch_content(bytes, content));
        }
        PeerBody::Gather { call, after, version } => {
            put_call(bytes, BODY_GATHER, *call);
            put_version(bytes, *after);
            put_version(bytes, *version);
        }
        PeerBody::Gathered { call, result } => {
            put_call(bytes, BODY_GATHERED, *call);
            match result {
                Gathered::Forward(None) => bytes.push(GATHERED_NOTHING),
                Gathered::Forward(Some(content)) => {
                    bytes.push(GATHERED_CONTENT);
                    put_batch_content(bytes, content);
                }
                Gathered::TooLarge => bytes.push(GATHERED_TOO_LARGE),
                Gathered::Unreadable => bytes.push(GATHERED_UNREADABLE),
            }
        }
    }
}

fn put_batch_content(bytes: &mut Vec<u8>, content: &BatchContent) {
    content.check().expect("batches of our own are sound");
    put_u32(bytes, content.body_length);
    put_checksums(bytes, &[content.body_checksum]);
}

fn put_record_key(bytes: &mut Vec<u8>, key: &[u8]) {
    assert!((1..=RECORD_KEY_SIZE_MAX).contains(&key.len()));
    put_u16(bytes, key.len() as u16);
    bytes.extend_from_slice(key);
}

fn put_page_part(bytes: &mut Vec<u8>, part: &PagePart) {
    match part {
        PagePart::Whole => bytes.push(PART_WHOLE),
        PagePart::First { name, version } => {
            bytes.push(PART_FIRST);
            put_record_key(bytes, name);
            put_version(bytes, *version);
        }
        PagePart::Middle => bytes.push(PART_MIDDLE),
        PagePart::Last { name } => {
            bytes.push(PART_LAST);
            put_record_key(bytes, name);
        }
    }
}

pub(super) fn decode_peer(
    reader: &mut Reader<'_>,
    payload: &mut Option<Buffer>,
) -> Result<PeerMessage, DecodeError> {
    let pg = reader.pg()?;
    let epoch = Epoch::new(reader.u32()?);
    let body = decode_body(reader, pg.pool, payload)?;
    Ok(PeerMessage { pg, epoch, body })
}

fn decode_body(
    reader: &mut Reader<'_>,
    pool: PoolId,
    payload: &mut Option<Buffer>,
) -> Result<PeerBody, DecodeError> {
    Ok(match reader.u8()? {
        BODY_QUERY => PeerBody::Query { revision: MapRevision::new(reader.u64()?) },
        BODY_STATE => PeerBody::State(reader.state(pool)?),
        BODY_LIST => PeerBody::List {
            call: reader.u32()?,
            newer_than: reader.version()?,
            after: reader.optional_key(pool)?,
        },
        BODY_LISTED => {
            let (call, is_last) = (reader.u32()?, reader.bool()?);
            PeerBody::Listed { call, is_last, blocks: reader.listed(pool)? }
        }
        BODY_FETCH => PeerBody::Fetch {
            call: reader.u32()?,
            key: reader.key(pool)?,
            units: reader.bitmap()?,
            as_of: reader.bool()?.then(|| reader.version()).transpose()?,
        },
        BODY_FETCHED => {
            PeerBody::Fetched { call: reader.u32()?, content: reader.content(payload)? }
        }
        BODY_REPAIR => PeerBody::Repair {
            call: reader.u32()?,
            key: reader.key(pool)?,
            content: reader.content(payload)?,
        },
        BODY_REPAIRED => PeerBody::Repaired { call: reader.u32()? },
        BODY_ACTIVATE => PeerBody::Activate {
            adopted: reader.version()?,
            floor: reader.version()?,
            history: reader.history()?,
            filling: reader.filling(pool)?,
        },
        BODY_DRAINING => PeerBody::Draining,
        BODY_ACTIVATED => PeerBody::Activated,
        BODY_WRITE => decode_write(reader, pool, payload)?,
        BODY_PART => {
            let (version, mark, lazy) = reader.header()?;
            let revision = MapRevision::new(reader.u64()?);
            let (key, differences) = (reader.key(pool)?, reader.bitmap()?);
            let (is_direct, content) = (reader.bool()?, reader.content(payload)?);
            PeerBody::Part { version, mark, revision, key, lazy, content, differences, is_direct }
        }
        BODY_PARITY => {
            let (version, mark, lazy) = reader.header()?;
            let (key, changes) = (reader.key(pool)?, reader.changes()?);
            let content = reader.content(payload)?;
            PeerBody::Parity { version, mark, key, lazy, content, changes }
        }
        BODY_SKIP => {
            let (version, mark, lazy) = reader.header()?;
            let revision = MapRevision::new(reader.u64()?);
            PeerBody::Skip { version, mark, revision, lazy }
        }
        BODY_DELTA => {
            let (version, key, part) = reader.changed_part(pool)?;
            PeerBody::Delta { version, key, part, content: reader.content(payload)? }
        }
        BODY_PARITY_DELTA => {
            let (version, key, part) = reader.changed_part(pool)?;
            PeerBody::ParityDelta { version, key, part, content: reader.content(payload)? }
        }
        BODY_DELTA_WANTED => {
            PeerBody::DeltaWanted { version: reader.version()?, part: reader.position()? }
        }
        BODY_PART_BEHIND => PeerBody::PartBehind { part: reader.position()? },
        BODY_PARITY_LOST => PeerBody::ParityLost { key: reader.key(pool)? },
        BODY_FORWARD => {
            let (call, key) = (reader.u32()?, reader.key(pool)?);
            let replaces = reader.version()?;
            PeerBody::Forward { call, key, content: reader.content(payload)?, replaces }
        }
        BODY_WRITTEN => PeerBody::Written { version: reader.version()?, durable: reader.bool()? },
        BODY_SYNC => PeerBody::Sync { call: reader.u32()? },
        BODY_SYNCED => PeerBody::Synced { call: reader.u32()? },
        BODY_MARK => {
            let mark = reader.version()?;
            PeerBody::Mark { mark, revision: MapRevision::new(reader.u64()?) }
        }
        BODY_DROP => PeerBody::Drop { call: reader.u32()?, version: reader.version()? },
        BODY_PROGRESS => {
            let call = reader.u32()?;
            let (complete, floor) = (reader.version()?, reader.version()?);
            PeerBody::Progress { call, filling: reader.filling(pool)?, complete, floor }
        }
        BODY_NOTED => PeerBody::Noted { call: reader.u32()? },
        BODY_FAILED => PeerBody::Failed { why: reader.counted_text()? },
        BODY_STALE => PeerBody::Stale(reader.entry()?),
        BODY_SCRUB => {
            PeerBody::Scrub { call: reader.u32()?, key: reader.key(pool)?, deep: reader.bool()? }
        }
        BODY_SCRUBBED => PeerBody::Scrubbed {
            call: reader.u32()?,
            floor: reader.version()?,
            digest: reader.digest()?,
        },
        BODY_MEND => PeerBody::Mend {
            call: reader.u32()?,
            key: reader.key(pool)?,
            content: reader.content(payload)?,
        },
        BODY_RECALL => PeerBody::Recall { call: reader.u32()? },
        BODY_RECALLED => PeerBody::Recalled { call: reader.u32()?, note: reader.note()? },
        BODY_KEEP => PeerBody::Keep { call: reader.u32()?, note: reader.note()? },
        BODY_TRIED => PeerBody::Tried { call: reader.u32()?, is_done: reader.bool()? },
        BODY_BATCH => PeerBody::Batch {
            after: reader.version()?,
            version: reader.version()?,
            mark: reader.version()?,
            content: reader.batch_content(payload)?,
        },
        BODY_PAGE => PeerBody::Page {
            call: reader.u32()?,
            version: reader.version()?,
            part: reader.page_part()?,
            content: reader.batch_content(payload)?,
        },
        BODY_LIST_HEADS => {
            let call = reader.u32()?;
            let with = match reader.u8()? {
                0 => KeysWith::Version,
                1 => KeysWith::Checksum,
                2 => KeysWith::Value,
                other => return wrong(format!("unknown detail {other} of a list of keys")),
            };
            let (from, before) = (reader.record_key()?, reader.record_key()?);
            match from < before {
                true => PeerBody::ListHeads { call, from, before, with },
                false => return wrong("a range of keys that is empty"),
            }
        }
        BODY_HEADED => {
            let (call, is_last) = (reader.u32()?, reader.bool()?);
            PeerBody::Headed { call, heads: Payload::decode(reader, payload)?, is_last }
        }
        BODY_OBJECT_FORWARD => PeerBody::ObjectForward {
            call: reader.u32()?,
            after: reader.version()?,
            version: reader.version()?,
            content: match reader.bool()? {
                true => Some(reader.batch_content(payload)?),
                false => None,
            },
        },
        BODY_GATHER => PeerBody::Gather {
            call: reader.u32()?,
            after: reader.version()?,
            version: reader.version()?,
        },
        BODY_GATHERED => PeerBody::Gathered {
            call: reader.u32()?,
            result: match reader.u8()? {
                GATHERED_NOTHING => Gathered::Forward(None),
                GATHERED_CONTENT => Gathered::Forward(Some(reader.batch_content(payload)?)),
                GATHERED_TOO_LARGE => Gathered::TooLarge,
                GATHERED_UNREADABLE => Gathered::Unreadable,
                tag => return wrong(format!("unknown answer {tag} about what a member lacks")),
            },
        },
        tag => {
            return wrong(format!("unknown peer message type {tag}"));
        }
    })
}

fn decode_write(
    reader: &mut Reader<'_>,
    pool: PoolId,
    payload: &mut Option<Buffer>,
) -> Result<PeerBody, DecodeError> {
    let (version, mark) = (reader.version()?, reader.version()?);
    let key = reader.key(pool)?;
    let (block_size, lazy) = (reader.block_size()?, reader.bool()?);
    let change = match reader.u8()? {
        CHANGE_WRITE => {
            let offset = reader.u32()?;
            let Some(data) = payload.take() else { return wrong("a write came without data") };
            check_range_in(block_size, offset, data.len())?;
            Change::Write { offset, checksums: reader.checksums(data.len())?, data }
        }
        CHANGE_ZERO => {
            let (offset, length) = reader.range()?;
            check_range_in(block_size, offset, length as usize)?;
            Change::Zero { offset, length }
        }
        CHANGE_DELETE => Change::Delete,
        tag => return wrong(format!("unknown type of change {tag} in a peer write")),
    };
    Ok(PeerBody::Write { version, mark, key, block_size, lazy, change })
}

/// Checks that a range consists of whole units, is not empty, and is within a block of this size.
fn check_range_in(block_size: BlockSize, offset: u32, length: usize) -> Result<(), DecodeError> {
    check_range(offset, length as u32)?;
    match offset as usize + length <= block_size.bytes() as usize {
        true => Ok(()),
        false => wrong(format!("a range of {length} bytes at {offset} ends beyond its block")),
    }
}

// ---- fields of members' messages --------------------------------------------------------------

fn put_call(bytes: &mut Vec<u8>, tag: u8, call: u32) {
    bytes.push(tag);
    put_u32(bytes, call);
}

/// Appends the fields that all messages with the next version of a stripe have in common.
fn put_header(bytes: &mut Vec<u8>, tag: u8, version: Version, mark: Version, lazy: bool) {
    bytes.push(tag);
    put_version(bytes, version);
    put_version(bytes, mark);
    put_bool(bytes, lazy);
}

fn put_delta(
    bytes: &mut Vec<u8>,
    tag: u8,
    pool: PoolId,
    (version, key, part): (Version, BlockKey, Position),
    content: &Content,
) {
    bytes.push(tag);
    put_version(bytes, version);
    put_key(bytes, pool, key);
    bytes.push(part.get());
    put_content(bytes, content);
}

fn put_changes(bytes: &mut Vec<u8>, changes: &[PartChange]) {
    put_count(bytes, changes.len(), PART_CHANGE_COUNT_MAX);
    for PartChange { part, units, written, differences } in changes {
        bytes.push(part.get());
        for bitmap in [units, written, differences] {
            put_bitmap(bytes, bitmap);
        }
    }
}

fn put_bool(bytes: &mut Vec<u8>, value: bool) {
    bytes.push(u8::from(value));
}

fn put_key(bytes: &mut Vec<u8>, pool: PoolId, key: BlockKey) {
    assert!(key.pool == pool, "a PG's blocks are of its pool");
    put_u32(bytes, key.hash);
    put_u32(bytes, key.image.get());
    put_u32(bytes, key.stripe.get());
}

fn put_optional_key(bytes: &mut Vec<u8>, pool: PoolId, key: Option<BlockKey>) {
    put_bool(bytes, key.is_some());
    if let Some(key) = key {
        put_key(bytes, pool, key);
    }
}

fn put_listed(bytes: &mut Vec<u8>, pool: PoolId, blocks: &[ListedBlock]) {
    put_count(bytes, blocks.len(), LIST_COUNT_MAX);
    for block in blocks {
        put_key(bytes, pool, block.key);
        put_version(bytes, block.version);
        put_bool(bytes, block.is_tombstone);
    }
}

fn put_state(bytes: &mut Vec<u8>, pool: PoolId, state: &MemberState) {
    put_u32(bytes, state.record_epoch.get());
    put_version(bytes, state.complete);
    put_version(bytes, state.had);
    put_version(bytes, state.committed);
    put_version(bytes, state.held);
    put_version(bytes, state.floor);
    put_bool(bytes, state.is_suspect);
    put_history(bytes, &state.history);
    put_filling(bytes, pool, state.filling.as_ref());
    put_bool(bytes, state.elsewhere.is_some());
    if let Some(Elsewhere { epoch, position }) = state.elsewhere {
        put_u32(bytes, epoch.get());
        bytes.push(position.get());
    }
    put_acting(bytes, &state.acting);
}

fn put_acting(bytes: &mut Vec<u8>, acting: &[Member]) {
    assert!(acting.len() <= usize::from(Position::COUNT_MAX));
    bytes.push(acting.len() as u8);
    for member in acting {
        put_u32(bytes, member.osd.get());
        put_u64(bytes, member.incarnation.get());
    }
}

fn put_history(bytes: &mut Vec<u8>, history: &[Activation]) {
    put_count(bytes, history.len(), HISTORY_COUNT_MAX);
    for activation in history {
        put_u32(bytes, activation.epoch.get());
        put_version(bytes, activation.adopted);
    }
}

fn put_filling(bytes: &mut Vec<u8>, pool: PoolId, filling: Option<&Filling>) {
    put_bool(bytes, filling.is_some());
    let Some(filling) = filling else { return };
    put_version(bytes, filling.complete);
    put_optional_key(bytes, pool, filling.cursor);
    put_version(bytes, filling.since);
    put_bool(bytes, filling.listing);
    put_count(bytes, filling.whole.len(), WHOLE_COUNT_MAX);
    for key in &filling.whole {
        put_key(bytes, pool, *key);
    }
}

fn put_content(bytes: &mut Vec<u8>, content: &Content) {
    match content {
        Content::Gone => bytes.push(CONTENT_GONE),
        Content::Tombstone { version } => {
            bytes.push(CONTENT_TOMBSTONE);
            put_version(bytes, *version);
        }
        Content::Block {
            version, block_size, units, written, damaged, checksums, table, ..
        } => {
            content.check().expect("contents of our own are sound");
            put_block_kind(bytes, table);
            put_version(bytes, *version);
            bytes.push(block_size.shift());
            for word in units.iter().chain(written).chain(damaged) {
                put_u64(bytes, *word);
            }
            put_checksums(bytes, checksums);
        }
    }
}

/// Writes the kind of a block's content, and the block's part table, if it has one.
fn put_block_kind(bytes: &mut Vec<u8>, table: &[u8]) {
    if table.is_empty() {
        return bytes.push(CONTENT_BLOCK);
    }
    bytes.push(CONTENT_BLOCK_WITH_TABLE);
    put_u16(bytes, table.len() as u16);
    bytes.extend_from_slice(table);
}

fn put_digest(bytes: &mut Vec<u8>, digest: &Digest) {
    match digest {
        Digest::Gone => bytes.push(CONTENT_GONE),
        Digest::Tombstone { version } => {
            bytes.push(CONTENT_TOMBSTONE);
            put_version(bytes, *version);
        }
        Digest::Block { version, written, damaged, checksums, table } => {
            let count = written.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            assert!(checksums.len() == count, "one checksum for each written unit");
            put_block_kind(bytes, table);
            put_version(bytes, *version);
            put_bitmap(bytes, written);
            put_bitmap(bytes, damaged);
            put_checksums(bytes, checksums);
        }
    }
}

fn put_note(bytes: &mut Vec<u8>, note: &[u8]) {
    put_count(bytes, note.len(), SCRUB_NOTE_SIZE_MAX);
    bytes.extend_from_slice(note);
}

fn put_change(bytes: &mut Vec<u8>, block_size: BlockSize, change: &Change) {
    match change {
        Change::Write { offset, checksums, data } => {
            assert!(data.len() == checksums.len() * UNIT_SIZE as usize);
            assert!(u64::from(*offset) + data.len() as u64 <= block_size.bytes());
            bytes.push(CHANGE_WRITE);
            put_u32(bytes, *offset);
            put_checksums(bytes, checksums);
        }
        Change::Zero { offset, length } => {
            bytes.push(CHANGE_ZERO);
            put_u32(bytes, *offset);
            put_u32(bytes, *length);
        }
        Change::Delete => bytes.push(CHANGE_DELETE),
    }
}

impl Reader<'_> {
    fn key(&mut self, pool: PoolId) -> Result<BlockKey, DecodeError> {
        Ok(BlockKey {
            pool,
            hash: self.u32()?,
            image: self.image()?,
            stripe: StripeIndex::new(self.u32()?),
        })
    }

    fn header(&mut self) -> Result<(Version, Version, bool), DecodeError> {
        Ok((self.version()?, self.version()?, self.bool()?))
    }

    fn changed_part(&mut self, pool: PoolId) -> Result<(Version, BlockKey, Position), DecodeError> {
        Ok((self.version()?, self.key(pool)?, self.position()?))
    }

    fn changes(&mut self) -> Result<Vec<PartChange>, DecodeError> {
        let count = self.list(PART_CHANGE_COUNT_MAX, PART_CHANGE_SIZE_MIN, "data parts")?;
        let change = |_| {
            Ok(PartChange {
                part: self.position()?,
                units: self.bitmap()?,
                written: self.bitmap()?,
                differences: self.bitmap()?,
            })
        };
        (0..count).map(change).collect()
    }

    fn position(&mut self) -> Result<Position, DecodeError> {
        let number = self.u8()?;
        Position::new(number)
            .ok_or_else(|| DecodeError(format!("position {number} is out of range")))
    }

    fn optional_key(&mut self, pool: PoolId) -> Result<Option<BlockKey>, DecodeError> {
        self.bool()?.then(|| self.key(pool)).transpose()
    }

    fn block_size(&mut self) -> Result<BlockSize, DecodeError> {
        let shift = self.u8()?;
        BlockSize::from_shift(shift)
            .ok_or_else(|| DecodeError(format!("invalid block size: 2^{shift} bytes")))
    }

    fn listed(&mut self, pool: PoolId) -> Result<Vec<ListedBlock>, DecodeError> {
        let count = self.list(LIST_COUNT_MAX, LISTED_SIZE, "blocks")?;
        let block = |_| {
            Ok(ListedBlock {
                key: self.key(pool)?,
                version: self.version()?,
                is_tombstone: self.bool()?,
            })
        };
        (0..count).map(block).collect()
    }

    fn state(&mut self, pool: PoolId) -> Result<MemberState, DecodeError> {
        Ok(MemberState {
            record_epoch: Epoch::new(self.u32()?),
            complete: self.version()?,
            had: self.version()?,
            committed: self.version()?,
            held: self.version()?,
            floor: self.version()?,
            is_suspect: self.bool()?,
            history: self.history()?,
            filling: self.filling(pool)?,
            elsewhere: self.elsewhere()?,
            acting: self.acting()?,
        })
    }

    fn acting(&mut self) -> Result<Vec<Member>, DecodeError> {
        let count = self.count(usize::from(Position::COUNT_MAX), "acting members")?;
        let member = |_| match self.member_or_none()? {
            Some(member) => Ok(member),
            None => wrong("an acting member without an OSD".to_owned()),
        };
        (0..count).map(member).collect()
    }

    fn elsewhere(&mut self) -> Result<Option<Elsewhere>, DecodeError> {
        if !self.bool()? {
            return Ok(None);
        }
        let epoch = Epoch::new(self.u32()?);
        Ok(Some(Elsewhere { epoch, position: self.position()? }))
    }

    fn history(&mut self) -> Result<Vec<Activation>, DecodeError> {
        let count = self.list(HISTORY_COUNT_MAX, ACTIVATION_SIZE, "activations")?;
        let activation =
            |_| Ok(Activation { epoch: Epoch::new(self.u32()?), adopted: self.version()? });
        (0..count).map(activation).collect()
    }

    fn filling(&mut self, pool: PoolId) -> Result<Option<Filling>, DecodeError> {
        if !self.bool()? {
            return Ok(None);
        }
        let complete = self.version()?;
        let cursor = self.optional_key(pool)?;
        let since = self.version()?;
        let listing = self.bool()?;
        let count = self.list(WHOLE_COUNT_MAX, KEY_SIZE, "keys")?;
        let whole = (0..count).map(|_| self.key(pool)).collect::<Result<_, _>>()?;
        Ok(Some(Filling { complete, cursor, since, whole, listing }))
    }

    fn content(&mut self, payload: &mut Option<Buffer>) -> Result<Content, DecodeError> {
        match self.u8()? {
            CONTENT_GONE => Ok(Content::Gone),
            CONTENT_TOMBSTONE => Ok(Content::Tombstone { version: self.version()? }),
            CONTENT_BLOCK => self.block(Vec::new(), payload.take()),
            CONTENT_BLOCK_WITH_TABLE => {
                let table = self.part_table()?;
                self.block(table, payload.take())
            }
            tag => wrong(format!("unknown content kind {tag}")),
        }
    }

    fn batch_content(&mut self, payload: &mut Option<Buffer>) -> Result<BatchContent, DecodeError> {
        let (body_length, body_checksum) = (self.u32()?, Checksum::new(self.u32()?));
        let Some(data) = payload.take() else { return wrong("a batch came without a body") };
        let content = BatchContent { body_length, body_checksum, data };
        match content.check() {
            Ok(()) => Ok(content),
            Err(why) => wrong(why),
        }
    }

    fn record_key(&mut self) -> Result<Vec<u8>, DecodeError> {
        let length = usize::from(self.u16()?);
        match (1..=RECORD_KEY_SIZE_MAX).contains(&length) {
            true => Ok(self.take(length)?.to_vec()),
            false => wrong(format!("a key of {length} bytes")),
        }
    }

    fn page_part(&mut self) -> Result<PagePart, DecodeError> {
        Ok(match self.u8()? {
            PART_WHOLE => PagePart::Whole,
            PART_FIRST => PagePart::First { name: self.record_key()?, version: self.version()? },
            PART_MIDDLE => PagePart::Middle,
            PART_LAST => PagePart::Last { name: self.record_key()? },
            tag => return wrong(format!("unknown part of an object {tag}")),
        })
    }

    fn digest(&mut self) -> Result<Digest, DecodeError> {
        match self.u8()? {
            CONTENT_GONE => Ok(Digest::Gone),
            CONTENT_TOMBSTONE => Ok(Digest::Tombstone { version: self.version()? }),
            CONTENT_BLOCK => self.block_digest(Vec::new()),
            CONTENT_BLOCK_WITH_TABLE => {
                let table = self.part_table()?;
                self.block_digest(table)
            }
            tag => wrong(format!("unknown kind of digest {tag}")),
        }
    }

    fn block_digest(&mut self, table: Vec<u8>) -> Result<Digest, DecodeError> {
        let version = self.version()?;
        let (written, damaged) = (self.bitmap()?, self.bitmap()?);
        if written.iter().zip(&damaged).any(|(written, damaged)| written & damaged != 0) {
            return wrong("a digest marks a unit as both written and damaged");
        }
        let count = written.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        let checksums = self.checksums(count * UNIT_SIZE as usize)?;
        Ok(Digest::Block { version, written, damaged, checksums, table })
    }

    fn part_table(&mut self) -> Result<Vec<u8>, DecodeError> {
        let size = self.u16()? as usize;
        if size == 0 || size > TABLE_SIZE_MAX {
            return wrong(format!("invalid size of a part table: {size} bytes"));
        }
        Ok(self.take(size)?.to_vec())
    }

    fn note(&mut self) -> Result<Vec<u8>, DecodeError> {
        let count = self.list(SCRUB_NOTE_SIZE_MAX, 1, "bytes of a note")?;
        Ok(self.take(count)?.to_vec())
    }

    fn block(&mut self, table: Vec<u8>, data: Option<Buffer>) -> Result<Content, DecodeError> {
        let version = self.version()?;
        let block_size = self.block_size()?;
        let words = block_size.unit_count().div_ceil(64);
        let units = (0..words).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        let written = (0..words).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        let damaged = (0..words).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        let data_length = data.as_ref().map_or(0, |data| data.len());
        let checksums = self.checksums(data_length)?;
        let content =
            Content::Block { version, block_size, units, written, damaged, checksums, data, table };
        match content.check() {
            Ok(()) => Ok(content),
            Err(why) => wrong(why),
        }
    }
}

// ---- leases ---------------------------------------------------------------------------------

/// Number of flags in a grant.
const GRANT_FLAG_COUNT: u32 = 4;

pub(super) fn encode_lease(message: &LeaseMessage, bytes: &mut Vec<u8>) {
    match message {
        LeaseMessage::Renew { stamp, revisions, leads, begun_bytes, owed_bytes, room } => {
            bytes.push(LEASE_RENEW);
            put_u64(bytes, *stamp);
            put_u64(bytes, *begun_bytes);
            put_u64(bytes, *owed_bytes);
            put_bool(bytes, *leads);
            put_count(bytes, revisions.len(), REVISION_COUNT_MAX);
            for (pool, revision) in revisions {
                put_u32(bytes, pool.get());
                put_u64(bytes, revision.get());
            }
            if let Some(RoomClaim { begun_bytes, owed_bytes }) = room {
                put_u64(bytes, *begun_bytes);
                put_u64(bytes, *owed_bytes);
            }
        }
        LeaseMessage::Granted {
            stamp,
            valid_ms,
            lost,
            is_full,
            engine,
            limit_bytes,
            share_bytes,
            largest_bytes,
            room,
        } => {
            bytes.push(LEASE_GRANTED);
            put_u64(bytes, *stamp);
            put_u32(bytes, *valid_ms);
            let flags = [*is_full, engine.is_lagging, engine.is_full, engine.is_low];
            bytes.push(flags.iter().rev().fold(0, |byte, flag| byte << 1 | u8::from(*flag)));
            put_u64(bytes, *limit_bytes);
            put_u64(bytes, *share_bytes);
            put_u64(bytes, *largest_bytes);
            put_count(bytes, lost.len(), LOST_COUNT_MAX);
            for (pg, epoch) in lost {
                put_pg(bytes, *pg);
                put_u32(bytes, epoch.get());
            }
            if let Some(RoomOffer { limit_bytes, share_bytes, largest_bytes }) = room {
                put_u64(bytes, *limit_bytes);
                put_u64(bytes, *share_bytes);
                put_u64(bytes, *largest_bytes);
            }
        }
        LeaseMessage::Surrender => bytes.push(LEASE_SURRENDER),
    }
}

pub(super) fn decode_lease(reader: &mut Reader<'_>) -> Result<LeaseMessage, DecodeError> {
    match reader.u8()? {
        LEASE_RENEW => {
            let (stamp, begun_bytes, owed_bytes) = (reader.u64()?, reader.u64()?, reader.u64()?);
            let leads = reader.bool()?;
            let count = reader.list(REVISION_COUNT_MAX, REVISION_SIZE, "revisions")?;
            let revision = |_| Ok((reader.pool()?, MapRevision::new(reader.u64()?)));
            let revisions = (0..count).map(revision).collect::<Result<_, DecodeError>>()?;
            // An OSD of an older version sends nothing behind the list.
            let room = match reader.bytes.is_empty() {
                true => None,
                false => Some(RoomClaim { begun_bytes: reader.u64()?, owed_bytes: reader.u64()? }),
            };
            Ok(LeaseMessage::Renew { stamp, revisions, leads, begun_bytes, owed_bytes, room })
        }
        LEASE_GRANTED => {
            let (stamp, valid_ms) = (reader.u64()?, reader.u32()?);
            let flags = reader.u8()?;
            if flags >= 1 << GRANT_FLAG_COUNT {
                return wrong(format!("unknown flags {flags} of a lease grant"));
            }
            let [is_full, is_lagging, is_engine_full, is_low] =
                [1, 2, 4, 8].map(|flag| flags & flag != 0);
            let engine = EngineState { is_lagging, is_full: is_engine_full, is_low };
            let (limit_bytes, share_bytes) = (reader.u64()?, reader.u64()?);
            let largest_bytes = reader.u64()?;
            let count = reader.list(LOST_COUNT_MAX, LOST_SIZE, "lost PGs")?;
            let lost = |_| Ok((reader.pg()?, Epoch::new(reader.u32()?)));
            let lost = (0..count).map(lost).collect::<Result<_, DecodeError>>()?;
            let room = match reader.bytes.is_empty() {
                true => None,
                false => Some(RoomOffer {
                    limit_bytes: reader.u64()?,
                    share_bytes: reader.u64()?,
                    largest_bytes: reader.u64()?,
                }),
            };
            Ok(LeaseMessage::Granted {
                stamp,
                valid_ms,
                lost,
                is_full,
                engine,
                limit_bytes,
                share_bytes,
                largest_bytes,
                room,
            })
        }
        LEASE_SURRENDER => Ok(LeaseMessage::Surrender),
        tag => wrong(format!("unknown lease message type {tag}")),
    }
}
