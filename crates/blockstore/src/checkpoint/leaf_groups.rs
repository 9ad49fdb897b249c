//! Leaves that a checkpoint writes anew: neighbours in small groups, each loaded, merged with the frozen
//! overlays, and written to free pages.
//!
//! Invariant: the directory names a new leaf only after its page is written; the old page is free only
//! after the checkpoint is durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

use base::Checksum;
use format::disk::{
    BlockKey, LEAF_CAPACITY, LOCATION_NONE, LeafPage, LeafRecord, LeafWriter, PageRef,
    StoredRecord, UnitSet,
};

use crate::blocks::Blocks;
use crate::data_area::Freed;
use crate::disk::Io;
use crate::index::BlockInfo;
use crate::overlay::{Overlay, UnitState};
use crate::pages::{LeafGroupId, LeafWaiter, Pages};
use crate::parts::Parts;

/// Groups made at once.
const GROUPS_MAX: usize = 16;
/// Leaves that are packed together when all are written anew.
const GROUP_LEAVES_WHEN_SPARSE: usize = 8;

/// The leaves to be written anew.
#[derive(Default)]
pub struct LeafGroups {
    plan: LeafPlan,
    active: BTreeMap<LeafGroupId, Group>,
    id_last: u64,
}

/// Which leaves are written anew. There may be many, so groups of them are planned one by one.
#[derive(Default)]
struct LeafPlan {
    /// Leaves of keys before it are planned, if any are.
    from: Option<BlockKey>,
    /// All leaves: they are sparse. Else those with frozen blocks.
    is_all: bool,
    /// All are planned.
    is_done: bool,
}

/// Neighbouring leaves that are written anew together.
struct Group {
    /// Keys from here (`None`: from the first) ...
    lower: Option<BlockKey>,
    /// ... to before here (`None`: to the last).
    upper: Option<BlockKey>,
    old: Vec<(BlockKey, PageRef)>,
    /// Content of the old leaves; `None` inside: damaged.
    content: BTreeMap<u32, Option<Rc<LeafPage>>>,
    new: Vec<(BlockKey, PageRef, Rc<LeafPage>)>,
    writes: usize,
}

/// A page of a group, to be written.
pub struct NewPage {
    pub group: LeafGroupId,
    pub number: u32,
    pub leaf: Rc<LeafPage>,
}

/// What a checkpoint no longer names, as groups find out.
#[derive(Default)]
pub struct Unnamed {
    pub blocks: Vec<Freed>,
    pub pages: Vec<u32>,
}

/// The checkpoint area has no free page.
pub struct NoPage;

impl LeafGroups {
    /// `is_all`: all leaves are written anew, packed.
    pub fn new(is_all: bool) -> LeafGroups {
        LeafGroups { plan: LeafPlan { is_all, ..LeafPlan::default() }, ..LeafGroups::default() }
    }

    pub fn is_done(&self) -> bool {
        self.plan.is_done && self.active.is_empty()
    }

    /// Whether more groups can begin without an event.
    pub fn can_advance(&self) -> bool {
        !self.plan.is_done && self.active.len() < GROUPS_MAX
    }

    /// Begins with more groups, while few are under way, and builds those that are loaded. Returns
    /// their pages.
    pub fn advance(
        &mut self,
        sequence: u64,
        unnamed: &mut Unnamed,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) -> Result<Vec<NewPage>, NoPage> {
        while self.active.len() < GROUPS_MAX {
            let Some(mut group) = self.plan.next_group(&parts.blocks, &parts.pages) else { break };
            self.id_last += 1;
            let id = LeafGroupId(self.id_last);
            group.load(id, parts, io);
            self.active.insert(id, group);
        }
        let is_ready = |(_, group): &(&LeafGroupId, &Group)| group.is_loaded() && group.writes == 0;
        let ready: Vec<LeafGroupId> =
            self.active.iter().filter(is_ready).map(|(id, _)| *id).collect();
        let mut new = Vec::new();
        for id in ready {
            let group = self.active.get_mut(&id).expect("it is active");
            let pages = group.build(sequence, &mut unnamed.blocks, parts)?;
            group.writes = pages.len();
            if pages.is_empty() {
                let group = self.active.remove(&id).expect("it is active");
                group.replace_leaves(&mut parts.pages, &mut unnamed.pages);
            }
            let pages = pages.into_iter();
            new.extend(pages.map(|(number, leaf)| NewPage { group: id, number, leaf }));
        }
        Ok(new)
    }

    /// A leaf that a group waits for was read; `None`: it is damaged.
    pub fn on_leaf_read(&mut self, id: LeafGroupId, page: u32, leaf: Option<Rc<LeafPage>>) {
        let group = self.active.get_mut(&id).expect("it waits for the leaf");
        group.content.insert(page, leaf);
    }

    /// A page of a group was written.
    pub fn on_written(&mut self, id: LeafGroupId, unnamed: &mut Unnamed, pages: &mut Pages) {
        let group = self.active.get_mut(&id).expect("its page was written");
        assert!(group.writes > 0);
        group.writes -= 1;
        if group.writes == 0 {
            let group = self.active.remove(&id).expect("it was just seen");
            group.replace_leaves(pages, &mut unnamed.pages);
        }
    }
}

impl LeafPlan {
    /// The next leaves to be written anew. Those before them may have been replaced meanwhile, and
    /// none behind.
    fn next_group(&mut self, blocks: &Blocks, pages: &Pages) -> Option<Group> {
        let directory = pages.directory();
        let range = (self.from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        // A key before all leaves belongs to the first.
        let mut first = directory.range(range).next().map(|(first, _)| *first);
        if !self.is_all {
            let frozen = blocks.overlays().frozen_in(range).next().map(|(key, _)| *key);
            self.is_done = self.is_done || frozen.is_none();
            let leaf = frozen.and_then(|key| pages.leaf_of(&key));
            first = leaf.map(|(first, _)| first).or(first);
        }
        if self.is_done {
            return None;
        }
        let count = if self.is_all { GROUP_LEAVES_WHEN_SPARSE } else { 1 };
        let mut leaves = first.into_iter().flat_map(|first| directory.range(first..));
        let old = leaves.by_ref().take(count).map(|(first, page)| (*first, *page)).collect();
        let lower = self.from;
        self.from = leaves.next().map(|(next, _)| *next);
        self.is_done = self.from.is_none();
        Some(Group {
            lower,
            upper: self.from,
            old,
            content: BTreeMap::new(),
            new: Vec::new(),
            writes: 0,
        })
    }
}

impl Group {
    fn is_loaded(&self) -> bool {
        self.content.len() == self.old.len()
    }

    fn range(&self) -> (Bound<BlockKey>, Bound<BlockKey>) {
        (
            self.lower.map_or(Bound::Unbounded, Bound::Included),
            self.upper.map_or(Bound::Unbounded, Bound::Excluded),
        )
    }

    /// Gets the old leaves: from memory, else they are read.
    fn load(&mut self, id: LeafGroupId, parts: &mut Parts, io: &mut Io<'_>) {
        for (_, page) in &self.old {
            if let Some(leaf) = parts.leaf(*page, LeafWaiter::Group(id), io) {
                self.content.insert(page.page, Some(leaf));
            }
        }
    }

    /// The new pages: number and content.
    fn build(
        &mut self,
        sequence: u64,
        freed: &mut Vec<Freed>,
        parts: &mut Parts,
    ) -> Result<Vec<(u32, Rc<LeafPage>)>, NoPage> {
        let blocks = &mut parts.blocks;
        let mut lost = BTreeMap::new();
        for (index, (first, page)) in self.old.iter().enumerate() {
            if self.content[&page.page].is_none() {
                let next = self.old.get(index + 1).map(|(next, _)| *next).or(self.upper);
                lost.insert(page.page, records_of_lost_leaf(blocks, *first, next));
            }
        }
        let lost_keys: BTreeSet<BlockKey> =
            lost.values().flatten().map(|record| record.key).collect();
        let mut frozen: VecDeque<BlockKey> =
            blocks.overlays().frozen_in(self.range()).map(|(key, _)| *key).collect();
        let mut records: Vec<NewRecord<'_>> = Vec::new();
        let old = self.old.iter().flat_map(|(_, page)| {
            let kept = self.content[&page.page].iter();
            let kept = kept.flat_map(|leaf| leaf.records().map(NewRecord::Kept));
            kept.chain(lost.remove(&page.page).unwrap_or_default().into_iter().map(NewRecord::Made))
        });
        for record in old {
            let key = record.key();
            while let Some(new) = frozen.pop_front_if(|frozen| *frozen < key) {
                records.extend(merge(blocks, new, None, freed).map(NewRecord::Made));
            }
            match frozen.pop_front_if(|frozen| *frozen == key) {
                Some(_) => {
                    let merged = merge(blocks, key, record.kept(), freed);
                    records.extend(merged.map(NewRecord::Made));
                }
                None => records.push(record),
            }
        }
        for new in frozen {
            records.extend(merge(blocks, new, None, freed).map(NewRecord::Made));
        }
        for record in &records {
            if let NewRecord::Made(record) = record
                && lost_keys.contains(&record.key)
            {
                count_lost(blocks, record);
            }
        }
        let tag = parts.superblock.store.tag();
        let mut pages = Vec::new();
        for records in pack(&records) {
            let page = parts.pages.allocate().ok_or(NoPage)?;
            let mut writer = LeafWriter::new(tag, sequence, page);
            for record in records {
                match record {
                    NewRecord::Kept(record) => writer.keep(*record),
                    NewRecord::Made(record) => writer.put(record),
                }
            }
            let (leaf, named) = writer.finish();
            let leaf = Rc::new(leaf);
            pages.push((page, leaf.clone()));
            self.new.push((records[0].key(), named, leaf));
        }
        Ok(pages)
    }

    /// The new leaves are on the disk: the directory names them.
    fn replace_leaves(self, pages: &mut Pages, pages_freed: &mut Vec<u32>) {
        for (first, page) in &self.old {
            pages.set_leaf(*first, None);
            // What could not be read is not used again while the store runs.
            if self.content[&page.page].is_some() {
                pages_freed.push(page.page);
            }
        }
        for (first, page, leaf) in self.new {
            pages.set_leaf(first, Some(page));
            pages.keep(page, leaf);
        }
    }
}

/// What can be said of the blocks of a leaf that is damaged: their data is lost.
fn records_of_lost_leaf(
    blocks: &Blocks,
    first: BlockKey,
    next: Option<BlockKey>,
) -> Vec<LeafRecord> {
    let is_fresh = |key: &BlockKey| {
        let overlay = blocks.overlays().live(key);
        overlay.is_some_and(|overlay| overlay.is_fresh)
    };
    blocks
        .index()
        .iter_from(first)
        .take_while(|(key, _)| next.is_none_or(|next| *key < next))
        .filter(|(key, _)| !is_fresh(key))
        .map(|(key, info)| record_of(key, info, UnitState::Damaged))
        .collect()
}

/// The record of a block says what its lost leaf cost; what was written since is not lost.
fn count_lost(blocks: &mut Blocks, record: &LeafRecord) {
    let mut lost = record.damaged;
    if let Some(live) = blocks.overlays().live(&record.key) {
        record.damaged.iter().filter(|unit| live.get(*unit).is_some()).for_each(|unit| {
            lost.remove(unit);
        });
    }
    if !lost.is_empty() {
        blocks.damage.found(record.key, lost);
    }
}

/// The record of a frozen block: what its leaf said, changed by its overlay.
fn merge(
    blocks: &mut Blocks,
    key: BlockKey,
    base: Option<StoredRecord<'_>>,
    freed: &mut Vec<Freed>,
) -> Option<LeafRecord> {
    let info = blocks.frozen_info(&key)?;
    let overlay: &Overlay = blocks.overlays().frozen(&key).expect("it is frozen");
    let mut record = match base {
        Some(base) if !overlay.is_fresh && info.location != LOCATION_NONE => LeafRecord {
            pg: info.pg,
            version: info.version,
            tombstone: info.tombstone,
            location: info.location,
            ..LeafRecord::from(base)
        },
        // A new block's overlay is fresh: this one's leaf is lost.
        None if !overlay.is_fresh => record_of(key, info, UnitState::Damaged),
        _ => record_of(key, info, UnitState::Zero),
    };
    if info.location != LOCATION_NONE {
        overlay.iter().for_each(|(unit, state)| set_unit(&mut record, unit, state));
    }
    let is_empty = record.location != LOCATION_NONE && record.written.is_empty();
    if !is_empty || blocks.overlays().live(&key).is_some() {
        return Some(record);
    }
    let (info, emptied) = blocks.free_emptied(key, info);
    freed.push(emptied);
    Some(record_of(key, info, UnitState::Zero))
}

/// The record of a block whose units are all in one state.
fn record_of(key: BlockKey, info: BlockInfo, state: UnitState) -> LeafRecord {
    let mut record = LeafRecord {
        key,
        pg: info.pg,
        version: info.version,
        block_size: info.block_size,
        tombstone: info.tombstone,
        location: info.location,
        written: UnitSet::EMPTY,
        damaged: UnitSet::EMPTY,
        checksums: Vec::new(),
    };
    if info.location != LOCATION_NONE {
        let units = info.block_size.unit_count();
        record.checksums = vec![Checksum::new(0); units as usize];
        (0..units).for_each(|unit| set_unit(&mut record, unit, state));
    }
    record
}

/// A record of a new leaf.
enum NewRecord<'a> {
    /// As an old leaf says.
    Kept(StoredRecord<'a>),
    /// Changed or new.
    Made(LeafRecord),
}

impl<'a> NewRecord<'a> {
    fn key(&self) -> BlockKey {
        match self {
            NewRecord::Kept(record) => record.key(),
            NewRecord::Made(record) => record.key,
        }
    }

    fn size(&self) -> usize {
        match self {
            NewRecord::Kept(record) => record.size(),
            NewRecord::Made(record) => record.size(),
        }
    }

    fn kept(self) -> Option<StoredRecord<'a>> {
        match self {
            NewRecord::Kept(record) => Some(record),
            NewRecord::Made(_) => None,
        }
    }
}

/// Changes what a record says of a unit. Requires: the record has a location.
fn set_unit(record: &mut LeafRecord, unit: u32, state: UnitState) {
    record.written.insert(unit);
    record.damaged.remove(unit);
    match state {
        UnitState::Zero => record.written.remove(unit),
        UnitState::Place(checksum) | UnitState::Journal(checksum, _) => {
            record.checksums[unit as usize] = checksum;
        }
        UnitState::Damaged => record.damaged.insert(unit),
    }
}

/// Cuts records into leaves of about equal fill.
fn pack<'a, 'b>(records: &'b [NewRecord<'a>]) -> Vec<&'b [NewRecord<'a>]> {
    let total: usize = records.iter().map(NewRecord::size).sum();
    let count = total.div_ceil(LEAF_CAPACITY).max(1);
    let wanted = total.div_ceil(count);
    let mut leaves = Vec::new();
    let (mut start, mut filled) = (0, 0);
    for (index, record) in records.iter().enumerate() {
        if index > start && (filled + record.size() > LEAF_CAPACITY || filled >= wanted) {
            leaves.push(&records[start..index]);
            (start, filled) = (index, 0);
        }
        filled += record.size();
    }
    if start < records.len() {
        leaves.push(&records[start..]);
    }
    leaves
}
