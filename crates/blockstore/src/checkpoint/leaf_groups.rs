//! Leaves that a checkpoint rewrites: adjacent leaves in small groups. Each group is loaded, merged with
//! the frozen overlays, and written to free pages.
//!
//! Invariant: the directory refers to a new leaf only after its page is written; the old page is freed only
//! after the checkpoint is durable.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

use base::Checksum;
use base::planted::{self, Bug};
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

/// Maximum number of groups in progress.
const GROUPS_MAX: usize = 16;
/// Leaves packed together as one group when all leaves are rewritten.
const GROUP_LEAVES_WHEN_SPARSE: usize = 8;

/// The leaves that a checkpoint rewrites.
#[derive(Default)]
pub struct LeafGroups {
    plan: LeafPlan,
    active: BTreeMap<LeafGroupId, Group>,
    id_last: u64,
}

/// Which leaves are rewritten. There may be many, so they are planned one group at a time.
#[derive(Default)]
struct LeafPlan {
    /// Leaves with keys before this one are planned. `None`: no leaf is planned yet.
    from: Option<BlockKey>,
    /// Whether all leaves are rewritten because they are sparse. Otherwise only leaves with frozen blocks
    /// are.
    is_all: bool,
    /// Whether all leaves are planned.
    is_done: bool,
}

/// Adjacent leaves that are rewritten together.
struct Group {
    /// The first key of the group (`None`: no lower bound).
    lower: Option<BlockKey>,
    /// The key after the group (`None`: no upper bound).
    upper: Option<BlockKey>,
    old: Vec<(BlockKey, PageRef)>,
    /// Content of the old leaves, by page; `None`: the leaf is damaged.
    content: BTreeMap<u32, Option<Rc<LeafPage>>>,
    new: Vec<(BlockKey, PageRef, Rc<LeafPage>)>,
    writes: usize,
}

/// A new page of a group, to be written.
pub struct NewPage {
    pub group: LeafGroupId,
    pub number: u32,
    pub leaf: Rc<LeafPage>,
}

/// Blocks and pages that the checkpoint no longer refers to, collected while groups are built.
#[derive(Default)]
pub struct Unnamed {
    pub blocks: Vec<Freed>,
    pub pages: Vec<u32>,
}

/// Error: the checkpoint area has no free page.
pub struct NoPage;

impl LeafGroups {
    /// Creates the plan of a checkpoint. `is_all`: all leaves are rewritten and packed.
    pub fn new(is_all: bool) -> LeafGroups {
        LeafGroups { plan: LeafPlan { is_all, ..LeafPlan::default() }, ..LeafGroups::default() }
    }

    pub fn is_done(&self) -> bool {
        self.plan.is_done && self.active.is_empty()
    }

    /// Whether more groups can begin without waiting for an event.
    pub fn can_advance(&self) -> bool {
        !self.plan.is_done && self.active.len() < GROUPS_MAX
    }

    /// Begins more groups, up to the limit, and builds the groups that are loaded. Returns the pages to
    /// write.
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

    /// Handles a leaf that was read for a group; `None`: the leaf is damaged.
    pub fn on_leaf_read(&mut self, id: LeafGroupId, page: u32, leaf: Option<Rc<LeafPage>>) {
        let group = self.active.get_mut(&id).expect("it waits for the leaf");
        group.content.insert(page, leaf);
    }

    /// Handles a finished write of a group's page.
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
    /// Returns the next leaves to rewrite. Leaves before them may already have been replaced; later leaves
    /// have not.
    fn next_group(&mut self, blocks: &Blocks, pages: &Pages) -> Option<Group> {
        let directory = pages.directory();
        let range = (self.from.map_or(Bound::Unbounded, Bound::Included), Bound::Unbounded);
        // A key before all leaves belongs to the first leaf.
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

    /// Loads the old leaves: takes them from memory, or starts to read them.
    fn load(&mut self, id: LeafGroupId, parts: &mut Parts, io: &mut Io<'_>) {
        for (_, page) in &self.old {
            if let Some(leaf) = parts.leaf(*page, LeafWaiter::Group(id), io) {
                self.content.insert(page.page, Some(leaf));
            }
        }
    }

    /// Builds the new pages of the group. Returns their numbers and contents.
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

    /// Replaces the old leaves by the new ones in the directory, once these are written.
    fn replace_leaves(self, pages: &mut Pages, pages_freed: &mut Vec<u32>) {
        for (first, page) in &self.old {
            pages.set_leaf(*first, None);
            // A page that could not be read is not reused while the store runs.
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

/// Returns records for the blocks of a damaged leaf: their data counts as lost.
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

/// Counts the units that a block lost with its leaf, except units that have been written since.
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

/// Returns the new record of a frozen block: its old record, updated from its overlay.
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
        // A new block has a fresh overlay. This overlay is not fresh, so the block is old and its leaf is
        // lost.
        None if !overlay.is_fresh => record_of(key, info, UnitState::Damaged),
        _ => record_of(key, info, UnitState::Zero),
    };
    let table = merged_table(info, overlay, base);
    if info.location != LOCATION_NONE {
        overlay.iter().for_each(|(unit, state)| set_unit(&mut record, unit, state));
    }
    let is_empty = record.location != LOCATION_NONE && record.written.is_empty();
    // A prepared version of the block will use the block's place.
    let is_prepared = !blocks.prepared.of_key(&key).is_empty();
    if !is_empty || is_prepared || blocks.overlays().live(&key).is_some() {
        return Some(LeafRecord { table, ..record });
    }
    let (info, emptied) = blocks.free_emptied(key, info);
    freed.push(emptied);
    Some(LeafRecord { table, ..record_of(key, info, UnitState::Zero) })
}

/// Returns the part table of a frozen block, from its overlay or else from its old record. Empty: the block
/// has no table, or the table was lost with its leaf.
fn merged_table(info: BlockInfo, overlay: &Overlay, base: Option<StoredRecord<'_>>) -> Vec<u8> {
    let changed = match planted::on(Bug::TableNotWrittenBack) {
        true => None,
        false => overlay.table.as_deref(),
    };
    let stored = || base.as_ref().map(StoredRecord::table);
    match info.table_rows {
        0 => Vec::new(),
        _ => changed.or_else(stored).unwrap_or_default().to_vec(),
    }
}

/// Returns the record of a block whose units are all in one state, without its part table.
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
        table: Vec::new(),
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
    /// Copied from an old leaf.
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

/// Sets the state of a unit in a record. Requires: the record has a location.
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

/// Divides records into leaves of about equal fill.
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
