//! A batch on its way: as a message to a member, and as a request to a store.
//!
//! Invariants
//!   1. What a member gives its store is what the primary gives its own.
//!   2. A decoded batch is sound, and its data matches its checksums.

use ::objects::Prepared;
use base::{BlockSize, Buffer, BufferPool, PgId, UNIT_SIZE, checksum, crc32c};
use format::disk::{BlockChange, Body, EntryKind};
use format::engine::Change;
use format::wire::BatchContent;

use super::log::{Missing, ReadError};

/// What a batch changes, as a store gets it.
#[derive(Default)]
pub struct Changes {
    pub records: Vec<Change>,
    /// Each with the data of its units.
    pub blocks: Vec<(BlockChange, Buffer)>,
}

/// Returns what was prepared, as it travels and as a store gets it.
pub fn encode(
    prepared: Prepared,
    block_size: BlockSize,
    buffers: &BufferPool,
) -> (BatchContent, Changes) {
    let Prepared { records, blocks, .. } = prepared;
    let (blocks, units): (Vec<BlockChange>, Vec<Vec<u8>>) = blocks.into_iter().unzip();
    let body = Body { records, blocks, note: None };
    let content = pack(&body, &units, block_size, buffers);
    let units_from = (content.body_length as usize).next_multiple_of(UNIT_SIZE as usize);
    let changes = split(body, &content.data, units_from);
    (content, changes)
}

/// Returns a page as it travels: changes of records, and of blocks with the data of their units.
pub fn content_of(
    records: Vec<Change>,
    blocks: Vec<(BlockChange, Vec<u8>)>,
    block_size: BlockSize,
    buffers: &BufferPool,
) -> BatchContent {
    let (blocks, units): (Vec<BlockChange>, Vec<Vec<u8>>) = blocks.into_iter().unzip();
    pack(&Body { records, blocks, note: None }, &units, block_size, buffers)
}

/// Returns what a member lacks, as it travels. `None`: nothing. The error: it is too large for that.
pub fn encode_missing(
    missing: Missing,
    block_size: BlockSize,
    buffers: &BufferPool,
) -> Result<Option<BatchContent>, ReadError> {
    let Missing { records, blocks, .. } = missing;
    if records.is_empty() && blocks.is_empty() {
        return Ok(None);
    }
    let content = content_of(records, blocks, block_size, buffers);
    content.check().map_err(|_| ReadError::TooLarge)?;
    Ok(Some(content))
}

/// Returns a body with the data of its blocks as they travel.
fn pack(
    body: &Body,
    units: &[Vec<u8>],
    block_size: BlockSize,
    buffers: &BufferPool,
) -> BatchContent {
    let bytes = body.to_bytes(block_size);
    let units_from = bytes.len().next_multiple_of(UNIT_SIZE as usize);
    let mut data = buffers.take_zeroed(units_from + units.iter().map(Vec::len).sum::<usize>());
    data[..bytes.len()].copy_from_slice(&bytes);
    let mut at = units_from;
    for units in units {
        data[at..at + units.len()].copy_from_slice(units);
        at += units.len();
    }
    let (body_length, body_checksum) = (bytes.len() as u32, crc32c(&bytes));
    BatchContent { body_length, body_checksum, data: data.freeze() }
}

/// Returns what a batch or page of this PG that a peer sent changes; the error says what is wrong with it.
pub fn decode(
    content: BatchContent,
    kind: EntryKind,
    pg: PgId,
    block_size: BlockSize,
) -> Result<Changes, String> {
    let BatchContent { body_length, body_checksum, data } = content;
    let bytes = &data[..body_length as usize];
    if crc32c(bytes) != body_checksum {
        return Err("a batch whose body does not match its checksum".into());
    }
    let body = Body::of_bytes(bytes, pg, block_size);
    let body = body.filter(|body| body.is_sendable(kind, pg, block_size));
    let body = body.ok_or("a batch whose body is none that a batch can have")?;
    let units_from = bytes.len().next_multiple_of(UNIT_SIZE as usize);
    if data.len() != units_from + body.units_size() {
        return Err("a batch with more or less data than its body names".into());
    }
    let changes = split(body, &data, units_from);
    let is_damaged = |(change, data): &(BlockChange, Buffer)| {
        checksum::first_mismatch(data, &change.checksums).is_some()
    };
    match changes.blocks.iter().any(is_damaged) {
        false => Ok(changes),
        true => Err("a batch whose data does not match its checksums".into()),
    }
}

/// Gives each change of a block its data, which begins at this offset.
fn split(body: Body, data: &Buffer, units_from: usize) -> Changes {
    let mut at = units_from;
    let block = |change: BlockChange| {
        let end = at + change.checksums.len() * UNIT_SIZE as usize;
        let data = data.slice(at..end);
        at = end;
        (change, data)
    };
    let blocks = body.blocks.into_iter().map(block).collect();
    Changes { records: body.records, blocks }
}
