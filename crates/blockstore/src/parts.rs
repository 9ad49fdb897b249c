//! The parts of an open store: everything that needs the superblock, connected in one place.
//!
//! Each part owns its state and guards its own invariants. [`Parts::apply`] applies an entry to all of them,
//! [`Parts::apply_batch`] one of an object pool.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::planted::{self, Bug};
use base::{BlockSize, Checksum, Lsn, PgId, Version};
use format::disk::{
    BlockChange, BlockKey, Body, EntryHeader, EntryKind, LeafPage, PAGE_SIZE, PageRef, Root,
    StreamRef, Superblock, UnitSet, decode_marks, record_size,
};

use crate::Settings;
use crate::blocks::{BlockLines, Blocks, Change};
use crate::disk::{Io, Purpose};
use crate::index::BlockInfo;
use crate::journal::Journal;
use crate::notes::Notes;
use crate::pages::{LeafWaiter, Pages, ROOT_PAGES};
use crate::pg_records::PgRecords;
use crate::record_room::RecordRoom;

/// An entry that changes records and blocks of an object pool.
pub struct BatchChange<'a> {
    pub header: &'a EntryHeader,
    pub body: &'a Body,
    pub lsn: Lsn,
    /// The lsn where the data of its units begins.
    pub data_lsn: Lsn,
    /// Units whose data is lost.
    pub bad: &'a BTreeMap<BlockKey, UnitSet>,
}

/// The parts of an open store.
pub struct Parts {
    pub superblock: Superblock,
    pub journal: Journal,
    pub blocks: Blocks,
    pub pgs: PgRecords,
    pub notes: Notes,
    pub pages: Pages,
    /// The newest durable root.
    pub root: Root,
    /// Pages of the root's streams: each one refers to the rest of its stream.
    pub stream_pages: Vec<StreamRef>,
    /// Pages of leaves that recovery could not read. The next checkpoint no longer refers to them.
    pub lost_leaf_pages: Vec<u32>,
    /// Number of pieces of the metadata that a check found damaged since the start.
    pub metadata_damage_count: u64,
    /// Whether the next checkpoint should begin as soon as none is running.
    pub wants_checkpoint: bool,
}

impl Parts {
    /// Creates the parts of an empty store.
    pub fn new(superblock: Superblock, settings: &Settings) -> Parts {
        let root = Root {
            sequence: 0,
            until: Lsn::ZERO,
            replay: Lsn::ZERO,
            previous: crate::create::CHAIN_START,
            directory: StreamRef::EMPTY,
            pgs: StreamRef::EMPTY,
            notes: StreamRef::EMPTY,
            discards: StreamRef::EMPTY,
            families: StreamRef::EMPTY,
        };
        let journal =
            Journal::new(&superblock, (Lsn::ZERO, Lsn::ZERO, Lsn::ZERO), root.previous, 0);
        Parts {
            journal,
            blocks: Blocks::new(&superblock, settings.is_sparse),
            pgs: PgRecords::default(),
            notes: Notes::default(),
            pages: Pages::new(superblock.checkpoints.size, settings.memory_bytes / 4),
            root,
            stream_pages: Vec::new(),
            lost_leaf_pages: Vec::new(),
            metadata_damage_count: 0,
            wants_checkpoint: false,
            superblock,
        }
    }

    /// Returns the position of a block's place on the device, in bytes.
    pub fn place(&self, location: u32) -> u64 {
        self.blocks.area.place(location)
    }

    /// Returns the position of a checkpoint page on the device, in bytes.
    pub fn page_place(&self, page: u32) -> u64 {
        self.superblock.checkpoints.offset + page as u64 * PAGE_SIZE as u64
    }

    /// Returns the position of the checkpoint's root on the device, in bytes.
    pub fn root_place(&self, sequence: u64) -> u64 {
        self.page_place(ROOT_PAGES[(sequence % 2) as usize])
    }

    /// Returns the room for records and notes.
    pub fn record_room(&self) -> RecordRoom {
        let used_bytes =
            self.blocks.index().record_bytes() + self.blocks.prepared.growth() + self.notes.bytes();
        RecordRoom::new(used_bytes, self.superblock.checkpoints.size)
    }

    /// Whether there is room to replace a block's record by one with a part table of `table_size` bytes, with
    /// or without a place (`has_place`). The reserve counts as room.
    pub fn has_record_room(
        &self,
        old: Option<BlockInfo>,
        block_size: BlockSize,
        (has_place, table_size): (bool, usize),
    ) -> bool {
        let old_bytes = old.map_or(0, |old| old.record_size());
        let new_bytes = (record_size(block_size, has_place) + table_size) as u64;
        self.record_room().can_change(old_bytes, new_bytes)
    }

    /// Whether the journal has room for an entry in addition to `reserve` bytes and the space kept for copies
    /// of prepared versions.
    pub fn has_room(&self, kind: EntryKind, checksum_count: usize, reserve: u64) -> bool {
        let sector_size = self.superblock.sector_size;
        let size = EntryHeader::size_of(kind, checksum_count, sector_size);
        self.has_room_for((kind, size), reserve)
    }

    /// Whether the journal has room for an entry of this kind and size, under the same conditions.
    pub fn has_room_for(&self, (kind, size): (EntryKind, u32), reserve: u64) -> bool {
        let kept = match self.blocks.prepared.kept_bytes(self.superblock.sector_size) {
            kept if kept == 0 || kind.carries_committed() => kept,
            // Marks may be journaled before this entry, which then may no longer fit before the end of the
            // ring.
            kept => kept + u64::from(size),
        };
        self.journal.has_room_for(size, reserve + kept)
    }

    /// Whether damage may have destroyed acknowledged writes of the PG.
    pub fn is_suspect(&self, pg: PgId) -> bool {
        self.pgs.is_suspect(pg, self.superblock.suspect)
    }

    /// Returns the PGs that have a record or a note. Some appear twice.
    pub fn pgs_known(&self) -> impl Iterator<Item = PgId> + '_ {
        let noted = self.notes.iter().filter_map(|(key, _)| key.pg());
        self.pgs.keys().chain(noted)
    }

    /// Returns the leaf if it is in memory. `None`: the leaf is being read, and the waiter is notified
    /// later.
    pub fn leaf(
        &mut self,
        page: PageRef,
        waiter: LeafWaiter,
        io: &mut Io<'_>,
    ) -> Option<Rc<LeafPage>> {
        let cached = self.pages.cached(page);
        if cached.is_none() && self.pages.wait(page, waiter) {
            let purpose = Purpose::Leaf { page: page.page, checksum: page.checksum };
            io.read(purpose, self.page_place(page.page), PAGE_SIZE);
        }
        cached
    }

    /// Handles a leaf that was read. Returns the decoded leaf, if it is intact, and the waiters for it.
    pub fn on_leaf_read(
        &mut self,
        page: u32,
        checksum: Checksum,
        bytes: &[u8],
    ) -> (Option<Rc<LeafPage>>, Vec<LeafWaiter>) {
        let named = PageRef { page, checksum, used: 0 };
        let tag = self.superblock.store.tag();
        let leaf = LeafPage::decode(bytes, tag, named).ok().map(Rc::new);
        if let Some(leaf) = &leaf {
            self.pages.keep(named, leaf.clone());
        }
        (leaf, self.pages.end_wait(page, checksum))
    }

    /// Makes the PG's prepared versions up to `upto` stable, in order. Nothing is written: the PG's next
    /// entry records it.
    pub fn commit(&mut self, pg: PgId, upto: Version) {
        let Some(upto) = self.pgs.commit(pg, upto) else { return };
        self.blocks.prepared.note_unsaid(pg);
        self.commit_prepared(pg, upto);
    }

    fn commit_prepared(&mut self, pg: PgId, upto: Version) {
        while let Some((key, version)) = self.blocks.prepared.first_of(pg, upto) {
            self.blocks.commit_one(key, version);
        }
    }

    /// Applies an entry of a pool that keeps parity. `data`: the inline data, unless it belongs to a block.
    fn apply_prepared(&mut self, change: &Change<'_>, data: &[u8]) {
        let header = change.header;
        let pg = header.pg.expect("the format demands it");
        self.commit(pg, header.committed);
        self.pgs.apply(header, pg, change.lsn);
        match (header.kind, header.key) {
            (EntryKind::Settle, _) => {
                self.commit_prepared(pg, header.version);
                self.blocks.roll_back(pg, header.version);
                self.pgs.settle(pg, header.version);
                if header.flags.has_note {
                    self.notes.apply(header, data);
                }
            }
            (kind, Some(key)) if kind.is_prepared() => {
                self.blocks.replace(header, &key);
                self.blocks.prepare(change, pg, key, true);
            }
            _ => {}
        }
        self.blocks.prepared.note_said(pg);
    }

    /// Applies an entry that records the commits of several PGs.
    fn apply_marks(&mut self, header: &EntryHeader, data: &[u8]) {
        let marks = data.get(..header.length as usize).and_then(decode_marks);
        for (pg, committed) in marks.unwrap_or_default() {
            self.commit(pg, committed);
            self.blocks.prepared.note_said(pg);
        }
    }

    /// Applies an entry before the root's `until`. The checkpoint already contains its effect, with two
    /// exceptions: a version that was prepared and not committed when the checkpoint began, and a settle or
    /// replacement that removes such a version.
    pub fn collect(&mut self, change: &Change<'_>) {
        let header = change.header;
        match (header.kind, header.pg, header.key) {
            (EntryKind::Settle, Some(pg), _) if !planted::on(Bug::SettleForgotten) => {
                self.blocks.roll_back(pg, header.version);
            }
            (kind, Some(pg), Some(key)) if kind.is_prepared() && self.is_collected(header) => {
                if !planted::on(Bug::ReplacedVersionsKept) {
                    self.blocks.replace(header, &key);
                }
                self.blocks.prepare(change, pg, key, false);
            }
            _ => {}
        }
    }

    /// Whether an entry before the root's `until` must still be applied to the prepared versions.
    pub fn is_collected(&self, header: &EntryHeader) -> bool {
        let committed = header.pg.map_or(Version::ZERO, |pg| self.pgs.get(pg).committed);
        let is_above = header.kind.is_prepared() && header.version > committed;
        is_above || header.kind == EntryKind::Settle
    }

    /// Applies an entry, in the same way for a request and for recovery. `note`: the inline data, unless it
    /// belongs to a block.
    pub fn apply(&mut self, change: &Change<'_>, note: &[u8]) {
        let header = change.header;
        if header.kind.carries_committed() {
            return self.apply_prepared(change, note);
        }
        // The entry of a family belongs to a pool, not to a PG.
        if let Some(pg) = header.pg.filter(|_| header.kind != EntryKind::Family) {
            self.pgs.apply(header, pg, change.lsn);
        }
        match (header.kind, header.key, header.pg) {
            (EntryKind::Note, ..) => self.notes.apply(header, note),
            (EntryKind::Marks, ..) => self.apply_marks(header, note),
            (EntryKind::Floor, _, Some(pg)) => self.blocks.on_floor(pg, self.pgs.get(pg).floor),
            (_, Some(key), _) => self.blocks.apply(change, key),
            _ => {}
        }
    }

    /// Applies the blocks, note and version of a batch or page, in the same way for a request and for
    /// recovery; its records are the engine's. Returns the blocks that could not be changed: see
    /// [`Blocks::apply_lines`].
    pub fn apply_batch(&mut self, change: &BatchChange<'_>) -> Vec<BlockKey> {
        let header = change.header;
        let (pg, block_size) = header.pg.zip(header.block_size).expect("the format demands both");
        self.pgs.apply(header, pg, change.lsn);
        let mut data_lsn = change.data_lsn;
        let mut left_out = Vec::new();
        for lines in change.body.by_block() {
            let bad = change.bad.get(&lines[0].key).copied().unwrap_or(UnitSet::EMPTY);
            if !self.blocks.apply_lines(&BlockLines { pg, block_size, lines, data_lsn, bad }) {
                left_out.push(lines[0].key);
            }
            let size: usize = lines.iter().map(BlockChange::size_here).sum();
            data_lsn = data_lsn.advance(size as u64);
        }
        if let Some((key, note)) = &change.body.note {
            self.notes.set(*key, note);
        }
        left_out
    }
}
