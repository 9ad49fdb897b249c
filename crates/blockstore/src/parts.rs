//! The parts of an open store: everything that needs the superblock, connected in one place.
//!
//! Each part owns its state and guards its own invariants; an entry reaches all of them through
//! [`Parts::apply`].

use std::rc::Rc;

use base::{BlockSize, Checksum, Lsn, PgId};
use format::disk::{
    EntryKind, LeafPage, PAGE_SIZE, PageRef, Root, StreamRef, Superblock, record_size,
};

use crate::Settings;
use crate::blocks::{Blocks, Change};
use crate::disk::{Io, Purpose};
use crate::index::BlockInfo;
use crate::journal::Journal;
use crate::notes::Notes;
use crate::pages::{LeafWaiter, Pages, ROOT_PAGES};
use crate::pg_records::PgRecords;
use crate::record_room::RecordRoom;

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
    /// Pages of the root's streams.
    pub stream_pages: Vec<u32>,
    /// Whether the next checkpoint should begin as soon as none is running.
    pub wants_checkpoint: bool,
}

impl Parts {
    /// An empty store.
    pub fn new(superblock: Superblock, settings: &Settings) -> Parts {
        let root = Root {
            sequence: 0,
            replay: Lsn::ZERO,
            previous: crate::create::CHAIN_START,
            directory: StreamRef::EMPTY,
            pgs: StreamRef::EMPTY,
            notes: StreamRef::EMPTY,
            discards: StreamRef::EMPTY,
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
            wants_checkpoint: false,
            superblock,
        }
    }

    /// Position of a block's place on the device, in bytes.
    pub fn place(&self, location: u32) -> u64 {
        self.blocks.area.place(location)
    }

    /// Position of a checkpoint page on the device, in bytes.
    pub fn page_place(&self, page: u32) -> u64 {
        self.superblock.checkpoints.offset + page as u64 * PAGE_SIZE as u64
    }

    /// Position of the checkpoint's root on the device, in bytes.
    pub fn root_place(&self, sequence: u64) -> u64 {
        self.page_place(ROOT_PAGES[(sequence % 2) as usize])
    }

    /// Room for records and notes.
    pub fn record_room(&self) -> RecordRoom {
        let used_bytes = self.blocks.index().record_bytes() + self.notes.bytes();
        RecordRoom::new(used_bytes, self.superblock.checkpoints.size)
    }

    /// Whether there is room to replace a block's record with one that has a place (`has_place`) or has
    /// none. The reserve counts as room.
    pub fn has_record_room(
        &self,
        old: Option<BlockInfo>,
        block_size: BlockSize,
        has_place: bool,
    ) -> bool {
        let old_bytes = old.map_or(0, |old| old.record_size());
        let new_bytes = record_size(block_size, has_place) as u64;
        self.record_room().can_change(old_bytes, new_bytes)
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

    /// Applies an entry, in the same way for a request and for recovery. `note`: the inline data of a note.
    pub fn apply(&mut self, change: &Change<'_>, note: &[u8]) {
        let header = change.header;
        if let Some(pg) = header.pg {
            self.pgs.apply(header, pg, change.lsn);
        }
        match (header.kind, header.key, header.pg) {
            (EntryKind::Note, ..) => self.notes.apply(header, note),
            (EntryKind::Floor, _, Some(pg)) => self.blocks.on_floor(pg, self.pgs.get(pg).floor),
            (_, Some(key), _) => self.blocks.apply(change, key),
            _ => {}
        }
    }
}
