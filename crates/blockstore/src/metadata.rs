//! A check of the store's own metadata while it runs: both superblocks, the root, the streams and the leaves
//! are read from the disk and compared with their checksums and with memory. Otherwise damage there would be
//! found by the next start, when memory no longer has what was lost.
//!
//! ```text
//!   Superblock ×2 ─▶ Root ─▶ Stream pages ─▶ Leaf pages       in portions: one request reads a bounded number
//!        │             └─────────┴───────────────┴─ damaged: the next checkpoint writes it to another place
//!        └─ damaged: written again, one copy after the other
//! ```
//!
//! Invariants
//!   1. A page counts as damaged only if the newest durable root, or the directory in memory, still refers to
//!      it when its read ends. Pages that a checkpoint replaced meanwhile may hold anything.
//!   2. A damaged page is never written again in place; a damaged superblock is written only while no other
//!      copy is being written.

use std::ops::{Bound, Range};

use base::Buffer;
use format::disk::{
    LOCATION_NONE, LeafPage, PAGE_SIZE, PageRef, Root, SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE,
    StreamPage, StreamRef, Superblock,
};

use crate::blocks::info_of;
use crate::disk::{Io, Purpose};
use crate::index::{BlockInfo, KEY_FIRST};
use crate::parts::Parts;
use crate::{Answer, BlockKey, RequestId};

/// Maximum number of pages that one request reads: 1 MiB.
const PAGE_COUNT_MAX: u32 = 256;
/// Maximum number of reads in flight. Few, so that clients' reads do not wait for them.
const READS_MAX: usize = 8;

/// Where the next portion of a check begins. Remains valid over checkpoints, but not over a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MetadataPosition(Place);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Superblock(usize),
    Root,
    /// A number of pages of the streams precede it. After a checkpoint the check continues at the same number
    /// in the new streams: the pages before it are new, and were just written.
    Stream(usize),
    /// After the leaf with this first key.
    Leaf(Option<BlockKey>),
}

/// What one portion of a check found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetadataReport {
    /// Number of bytes read.
    pub bytes: u64,
    /// Where the next portion begins; `None`: everything was read.
    pub next: Option<MetadataPosition>,
    /// What is damaged.
    pub findings: Vec<MetadataFinding>,
}

/// A damaged piece of the metadata.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetadataFinding {
    /// What the piece is.
    pub part: MetadataPart,
    /// Where it is on the device, in bytes.
    pub offset: u64,
    /// What is wrong with it.
    pub fault: MetadataFault,
    /// What is done about it.
    pub repair: MetadataRepair,
}

/// The kinds of metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetadataPart {
    /// A copy of the superblock.
    Superblock,
    /// The root of the newest checkpoint.
    Root,
    /// A page of the directory, of the PG table, of the notes or of the discards.
    Stream,
    /// A page of the index.
    Leaf,
}

/// What is wrong with a piece of the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetadataFault {
    /// The disk cannot read it.
    Unreadable,
    /// It is not what was written there.
    Damaged,
    /// It is as it was written, but differs from memory: a bug, or memory that lies.
    Differs,
}

/// What is done about a damaged piece of the metadata.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MetadataRepair {
    /// It was written again, and is durable.
    Rewritten,
    /// Memory has it whole. The next checkpoint, which was requested, writes it to another place.
    Checkpoint,
    /// Only the versions of its blocks are in memory, not the checksums of their units. Unless the next
    /// checkpoint can read the leaf after all, it writes a leaf in which these units count as damaged.
    DataLost {
        /// Number of blocks with data or a part table in the leaf.
        blocks: u64,
    },
    /// Nothing: it is not known which of the two is right.
    Nothing,
}

/// A piece of the metadata to read.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    Superblock(usize),
    Root { sequence: u64 },
    Stream { at: StreamRef, sequence: u64 },
    Leaf { first: BlockKey, page: PageRef },
}

impl Target {
    fn offset(&self, parts: &Parts) -> u64 {
        match self {
            Target::Superblock(copy) => SUPERBLOCK_OFFSETS[*copy],
            Target::Root { sequence } => parts.root_place(*sequence),
            Target::Stream { at, .. } => parts.page_place(at.page),
            Target::Leaf { page, .. } => parts.page_place(page.page),
        }
    }

    fn part(&self) -> MetadataPart {
        match self {
            Target::Superblock(_) => MetadataPart::Superblock,
            Target::Root { .. } => MetadataPart::Root,
            Target::Stream { .. } => MetadataPart::Stream,
            Target::Leaf { .. } => MetadataPart::Leaf,
        }
    }

    /// Whether the piece is still what the check meant to read.
    fn is_current(&self, parts: &Parts) -> bool {
        match self {
            Target::Superblock(_) => true,
            Target::Root { sequence } | Target::Stream { sequence, .. } => {
                parts.root.sequence == *sequence
            }
            Target::Leaf { first, page } => parts.pages.directory().get(first) == Some(page),
        }
    }

    /// Returns what is wrong with the bytes of the piece.
    fn fault(&self, bytes: &[u8], parts: &Parts) -> Option<MetadataFault> {
        let tag = parts.superblock.store.tag();
        let is_whole = match self {
            Target::Superblock(_) => Superblock::decode(bytes).is_ok_and(|copy| {
                Superblock { sequence: parts.superblock.sequence, ..copy } == parts.superblock
            }),
            Target::Root { .. } => Root::decode(bytes, tag).as_ref() == Ok(&parts.root),
            Target::Stream { at, .. } => {
                StreamPage::decode(bytes, tag, *at, &mut Vec::new()).is_ok()
            }
            Target::Leaf { first, page } => match LeafPage::decode(bytes, tag, *page) {
                Ok(leaf) if !agrees(&leaf, *first, parts) => return Some(MetadataFault::Differs),
                leaf => leaf.is_ok(),
            },
        };
        (!is_whole).then_some(MetadataFault::Damaged)
    }
}

/// The check of a store's metadata, if a portion of one is being read.
#[derive(Default)]
pub struct MetadataCheck(Option<Portion>);

/// A portion being read, or repaired.
struct Portion {
    id: RequestId,
    next: Option<Place>,
    pages_left: u32,
    reads: usize,
    report: MetadataReport,
    /// Copies of the superblock to write, the first one last.
    superblocks: Vec<usize>,
}

impl MetadataCheck {
    /// Begins to read the portion after a position; `None`: the first one. Requires: no portion is being
    /// read.
    pub fn begin(
        &mut self,
        id: RequestId,
        after: Option<MetadataPosition>,
        page_count: u32,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        assert!(self.0.is_none(), "one portion at a time");
        let portion = self.0.insert(Portion {
            id,
            next: Some(after.map_or(Place::Superblock(0), |after| after.0)),
            pages_left: page_count.clamp(1, PAGE_COUNT_MAX),
            reads: 0,
            report: MetadataReport { bytes: 0, next: None, findings: Vec::new() },
            superblocks: Vec::new(),
        });
        portion.read(parts, io);
        self.go_on(parts, io);
    }

    /// Handles a piece that was read. `lost`: ranges that the disk could not read.
    pub fn on_read(
        &mut self,
        target: Target,
        bytes: &Buffer,
        lost: &[Range<usize>],
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let portion = self.0.as_mut().expect("it asked for the piece");
        portion.reads -= 1;
        portion.report.bytes += bytes.len() as u64;
        portion.compare(target, bytes, !lost.is_empty(), parts);
        portion.read(parts, io);
        self.go_on(parts, io);
    }

    /// Handles a copy of the superblock that was written.
    pub fn on_superblock_written(&mut self, io: &mut Io<'_>) {
        io.flush(Purpose::SuperblockFlush);
    }

    /// Handles the flush after a copy of the superblock was written.
    pub fn on_superblock_flushed(&mut self, parts: &mut Parts, io: &mut Io<'_>) {
        self.go_on(parts, io);
    }

    /// Once everything is read: writes the next damaged superblock, or answers.
    fn go_on(&mut self, parts: &mut Parts, io: &mut Io<'_>) {
        let Some(portion) = self.0.as_mut().filter(|portion| portion.reads == 0) else { return };
        if let Some(copy) = portion.superblocks.pop() {
            parts.superblock.sequence += 1;
            let bytes = io.pool.copy_of(&parts.superblock.encode());
            let offset = SUPERBLOCK_OFFSETS[copy];
            return io.write(Purpose::SuperblockWrite, offset, vec![bytes], true);
        }
        if let Some(Portion { id, next, report, .. }) = self.0.take() {
            let report = MetadataReport { next: next.map(MetadataPosition), ..report };
            io.done(id, Ok(Answer::Metadata(report)));
        }
    }
}

impl Portion {
    /// Begins more reads, up to the limits.
    fn read(&mut self, parts: &Parts, io: &mut Io<'_>) {
        while self.reads < READS_MAX && self.pages_left > 0 {
            let Some(target) = self.next_target(parts) else { return };
            self.pages_left -= 1;
            self.reads += 1;
            const { assert!(SUPERBLOCK_SIZE == PAGE_SIZE) };
            io.read(Purpose::Metadata(target), target.offset(parts), PAGE_SIZE);
        }
    }

    /// Returns the next piece to read, and moves on behind it.
    fn next_target(&mut self, parts: &Parts) -> Option<Target> {
        let sequence = parts.root.sequence;
        let leaf = |after: Option<BlockKey>| {
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            let next = parts.pages.directory().range((from, Bound::Unbounded)).next();
            let target = next.map(|(first, page)| Target::Leaf { first: *first, page: *page });
            (next.map(|(first, _)| Place::Leaf(Some(*first))), target)
        };
        let (next, target) = match self.next? {
            Place::Superblock(copy) => {
                let next = match copy + 1 < SUPERBLOCK_OFFSETS.len() {
                    true => Place::Superblock(copy + 1),
                    false => Place::Root,
                };
                (Some(next), Some(Target::Superblock(copy)))
            }
            Place::Root => (Some(Place::Stream(0)), Some(Target::Root { sequence })),
            Place::Stream(index) => match parts.stream_pages.get(index) {
                Some(at) => {
                    (Some(Place::Stream(index + 1)), Some(Target::Stream { at: *at, sequence }))
                }
                None => leaf(None),
            },
            Place::Leaf(after) => leaf(after),
        };
        self.next = next;
        target
    }

    /// Compares a piece with its checksum and with memory, and arranges its repair.
    fn compare(&mut self, target: Target, bytes: &[u8], is_lost: bool, parts: &mut Parts) {
        if !target.is_current(parts) {
            return;
        }
        let Some(fault) = target.fault(bytes, parts) else { return };
        let fault = if is_lost { MetadataFault::Unreadable } else { fault };
        let (is_new, repair) = match target {
            Target::Superblock(copy) => {
                self.superblocks.insert(0, copy);
                (true, MetadataRepair::Rewritten)
            }
            Target::Leaf { .. } if fault == MetadataFault::Differs => {
                (true, MetadataRepair::Nothing)
            }
            Target::Leaf { first, page } => write_leaf_again(first, page, parts),
            Target::Root { .. } => {
                parts.wants_checkpoint = true;
                (true, MetadataRepair::Checkpoint)
            }
            Target::Stream { at, .. } => {
                parts.wants_checkpoint = true;
                (parts.pages.set_damaged(at.page), MetadataRepair::Checkpoint)
            }
        };
        parts.metadata_damage_count += u64::from(is_new);
        let (part, offset) = (target.part(), target.offset(parts));
        self.report.findings.push(MetadataFinding { part, offset, fault, repair });
    }
}

/// Makes the next checkpoint write a damaged leaf to another page. Returns whether its page was not known as
/// damaged, and what that checkpoint can do.
fn write_leaf_again(first: BlockKey, page: PageRef, parts: &mut Parts) -> (bool, MetadataRepair) {
    let is_in_memory = parts.pages.cached(page).is_some();
    let is_new = parts.pages.set_damaged(page.page);
    let (mut some_key, mut blocks) = (None, 0);
    for (key, info) in blocks_of_leaf(first, parts) {
        some_key.get_or_insert(key);
        let overlay = parts.blocks.overlays().layers(&key);
        let is_fresh = [overlay.live, overlay.frozen].into_iter().flatten().any(|of| of.is_fresh);
        let has_more = info.location != LOCATION_NONE || info.table_rows > 0;
        blocks += u64::from(has_more && !is_fresh);
    }
    // Without a block in the index all blocks of the leaf have changed, and so the leaf is written anyway.
    if let Some(key) = some_key {
        parts.blocks.look_again(key);
    }
    parts.wants_checkpoint = true;
    match is_in_memory || blocks == 0 {
        true => (is_new, MetadataRepair::Checkpoint),
        false => (is_new, MetadataRepair::DataLost { blocks }),
    }
}

/// Returns the blocks in the index that belong to the leaf with this first key.
fn blocks_of_leaf(
    first: BlockKey,
    parts: &Parts,
) -> impl Iterator<Item = (BlockKey, BlockInfo)> + '_ {
    let directory = parts.pages.directory();
    // A key before all leaves belongs to the first leaf.
    let is_first = directory.first_key_value().is_some_and(|(key, _)| *key == first);
    let from = if is_first { KEY_FIRST } else { first };
    let next = directory.range((Bound::Excluded(first), Bound::Unbounded)).next();
    let next = next.map(|(next, _)| *next);
    let blocks = parts.blocks.index().iter_from(from);
    blocks.take_while(move |(key, _)| next.is_none_or(|next| *key < next))
}

/// Whether a leaf says the same as the index about all blocks that have not changed since it was written.
fn agrees(leaf: &LeafPage, first: BlockKey, parts: &Parts) -> bool {
    let has_changed = |key: &BlockKey| {
        let layers = parts.blocks.overlays().layers(key);
        layers.live.is_some() || layers.frozen.is_some()
    };
    let mut records = leaf
        .records()
        .map(|record| (record.key(), info_of(record)))
        .filter(|(key, _)| !has_changed(key));
    let mut blocks = blocks_of_leaf(first, parts).filter(|(key, _)| !has_changed(key));
    let starts_right = leaf.records().next().is_some_and(|record| record.key() == first);
    starts_right && records.by_ref().eq(blocks.by_ref())
}
