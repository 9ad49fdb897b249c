//! Prepared versions: versions of blocks above the stable one, which may still be rolled back.
//!
//! ```text
//!   Prepare ──▶ of_key: oldest first ──Commit, Settle──▶ stable, only through `Blocks::commit_one`
//!               of_pg, by_lsn          ──Settle, replaces──▶ removed: `Blocks::drop_one`
//! ```
//!
//! Pools that keep parity need prepared versions: `docs/internals/stripes.md`. Replicated pools have none.
//!
//! Invariants
//!   1. `of_key`, `of_pg` and `by_lsn` list the same versions. `ring_bytes`, `growth`, `charge`, `charge_of`
//!      and `peering_charge` are sums over these versions.
//!   2. The header of a version contains a location only if the version allocated that place. Any other
//!      version uses the place that the block has when the version is committed.
//!   3. The journal's head does not pass the lsn of a prepared version.
//!   4. A PG is in `unsaid` if it has committed more versions than the journal records. Such a PG is also in
//!      `pgs`.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{BlockSize, Lsn, PgId, Version};
use format::disk::{
    BlockKey, EntryHeader, EntryKind, LOCATION_NONE, MARK_SIZE, TABLE_ROWS_MAX, UnitSet,
    record_size, table_size,
};

use crate::AsOf;
use crate::blocks::{Blocks, Change, lay, table_rows_over};
use crate::create::JOURNAL_SIZE_MIN;
use crate::index::{BlockInfo, location_of};
use crate::overlay::Overlay;

/// Prepared versions take at most this fraction (1/n) of the journal. Versions prepared by peering have a
/// separate limit of the same size, so that they do not use up the room that was promised to primaries.
const JOURNAL_SHARE: u64 = 8;
/// Maximum sector size of a disk, in bytes. A header takes whole sectors.
const SECTOR_SIZE_MAX: u32 = 4096;
/// Maximum size of an entry, in bytes: a header and the data of the largest block.
const ENTRY_SIZE_MAX: u64 = (1 << 20) + (8 << 10);
/// Maximum number of marks in one entry. Like block data, they take at most the size of the largest block.
pub const MARKS_MAX: usize = (1 << 20) / MARK_SIZE;

// Even in the smallest journal that `create` makes, the share has room for the largest entry.
const _: () = assert!(ENTRY_SIZE_MAX <= JOURNAL_SIZE_MIN / JOURNAL_SHARE);

/// One prepared version of a block.
pub struct PreparedVersion {
    /// The header as journaled, or as in the newest copy. `location` is a place that this version allocated.
    pub header: EntryHeader,
    /// The lsn where the version's inline data begins.
    pub data_lsn: Lsn,
    /// Units whose data is lost, counted from the first unit of the data.
    pub bad: UnitSet,
    /// The units that this version changes. They hide the units of older versions.
    pub overlay: Overlay,
    /// Whether the version's place, if it has one, is allocated. False while recovery collects versions.
    has_place: bool,
    /// Bytes by which the block's record may grow when the version is committed.
    growth: u64,
}

impl PreparedVersion {
    fn new(change: &Change<'_>, below: Option<BlockInfo>, has_place: bool) -> PreparedVersion {
        let header = change.header.clone();
        let mut overlay = Overlay::default();
        lay(&mut overlay, change, header.flags.is_whole);
        let mut version = PreparedVersion {
            header,
            data_lsn: change.data_lsn,
            bad: change.bad,
            overlay,
            has_place,
            growth: 0,
        };
        let old = below.map_or(0, |below| below.record_size());
        let size = version.header.block_size.unwrap_or(BlockSize::MIN);
        let new = record_size(size, version.header.kind != EntryKind::PrepareDelete)
            + table_size(size, table_rows_over(&version.header, below));
        version.growth = (new as u64).saturating_sub(old);
        version
    }

    pub fn key(&self) -> BlockKey {
        self.header.key.expect("the format demands it")
    }

    pub fn pg(&self) -> PgId {
        self.header.pg.expect("the format demands it")
    }

    /// Returns the block's location after this version. `below`: its location before this version.
    fn location_over(&self, below: u32) -> u32 {
        match () {
            () if self.header.location != LOCATION_NONE => self.header.location,
            () if self.header.flags.is_whole && !needs_place(&self.header) => LOCATION_NONE,
            () => below,
        }
    }

    /// Returns the index entry that the block would have after this version. `below`: its entry before it.
    fn info_over(&self, below: Option<BlockInfo>) -> BlockInfo {
        let old_size = below.map(|below| below.block_size);
        BlockInfo {
            version: self.header.version,
            pg: self.pg().number as u16,
            block_size: self.header.block_size.or(old_size).unwrap_or(BlockSize::MIN),
            location: self.location_over(location_of(below)),
            tombstone: self.header.kind == EntryKind::PrepareDelete,
            table_rows: table_rows_over(&self.header, below),
        }
    }

    /// Returns the bytes that the version counts against the limits: its journal size or its memory size,
    /// whichever is larger.
    fn charge(&self) -> u64 {
        let counts = (self.header.checksums.len(), self.header.table.len());
        charge(u64::from(self.header.size), counts)
    }

    /// Whether the version was prepared by peering.
    fn is_of_peering(&self) -> bool {
        self.header.replaces.is_some()
    }

    /// Whether data that arrived with the version is lost. Units that were prepared as damaged do not count.
    fn has_lost(&self) -> bool {
        self.header.flags.has_lost || !self.bad.is_empty()
    }

    /// Returns the units whose data is lost.
    pub fn lost_units(&self) -> UnitSet {
        let mut lost = UnitSet::EMPTY;
        let of_data = self.header.data_units().enumerate();
        of_data
            .filter(|(index, _)| self.bad.contains(*index as u32))
            .for_each(|(_, unit)| lost.insert(unit));
        lost
    }
}

/// Returns the bytes that a prepared version counts against the limits. `unit_count`: units of data.
/// `table_size`: bytes of its part table.
fn charge(entry_size: u64, (unit_count, table_size): (usize, usize)) -> u64 {
    // The part table is in memory twice: in the header and in the overlay.
    let memory = size_of::<PreparedVersion>() + 24 * unit_count + 2 * table_size;
    entry_size.max(memory as u64)
}

/// Whether the block has units that need a place after this version.
pub fn needs_place(header: &EntryHeader) -> bool {
    !(header.written.is_empty() && header.damaged.is_empty())
}

/// Room for prepared versions of all PGs, in bytes. Versions prepared by peering are not included. The stored
/// versions and all promises to primaries together must fit; the code that promises room must count the
/// promises.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PreparedRoom {
    /// Maximum for all stored versions and promises together.
    pub bytes_max: u64,
    /// Bytes taken by all stored versions.
    pub used_bytes: u64,
}

impl PreparedRoom {
    /// Returns the maximum bytes that a version with data for this many units takes, in any store, with or
    /// without a part table.
    pub fn cost_of(unit_count: u32) -> u64 {
        let counts = (unit_count as usize, table_size(BlockSize::MAX, TABLE_ROWS_MAX as u8));
        let size = EntryHeader::size_with_table(EntryKind::Prepare, counts, SECTOR_SIZE_MAX);
        charge(u64::from(size), counts)
    }

    /// Returns the bytes that further versions and promises may take.
    pub fn free_bytes(&self) -> u64 {
        self.bytes_max.saturating_sub(self.used_bytes)
    }
}

/// The prepared versions of a store.
#[derive(Default)]
pub struct Prepared {
    of_key: BTreeMap<BlockKey, Vec<PreparedVersion>>,
    of_pg: BTreeMap<PgId, BTreeMap<Version, BlockKey>>,
    by_lsn: BTreeMap<Lsn, (BlockKey, Version)>,
    /// Journal bytes taken by the entries of these versions.
    ring_bytes: u64,
    charge: u64,
    /// `charge` by PG.
    charge_of: BTreeMap<PgId, u64>,
    /// The charge of versions prepared by peering. `charge` does not include it.
    peering_charge: u64,
    growth: u64,
    unsaid: BTreeSet<PgId>,
    /// PGs of which this store has ever had an entry that records commits. Each may become unsaid at any
    /// time.
    pgs: BTreeSet<PgId>,
}

impl Prepared {
    pub fn is_empty(&self) -> bool {
        self.of_key.is_empty()
    }

    /// Returns the PGs that have prepared versions, ascending.
    pub fn pgs_with_versions(&self) -> impl Iterator<Item = PgId> + '_ {
        self.of_pg.keys().copied()
    }

    /// Returns the number of prepared versions.
    pub fn count(&self) -> u64 {
        self.by_lsn.len() as u64
    }

    /// Returns the prepared versions of the block, oldest first.
    pub fn of_key(&self, key: &BlockKey) -> &[PreparedVersion] {
        if self.of_key.is_empty() {
            return &[];
        }
        self.of_key.get(key).map_or(&[], |versions| versions)
    }

    /// Returns the blocks with prepared versions, from `first` on.
    pub fn keys_from(&self, first: BlockKey) -> impl Iterator<Item = BlockKey> + '_ {
        self.of_key.range(first..).map(|(key, _)| *key)
    }

    /// Returns the prepared versions of the block that a read with this `as_of` sees.
    pub fn as_of(&self, key: &BlockKey, as_of: AsOf) -> &[PreparedVersion] {
        let versions = self.of_key(key);
        match as_of {
            AsOf::View => versions,
            AsOf::Stable => &[],
            AsOf::Version(upto) => {
                let count = versions.partition_point(|version| version.header.version <= upto);
                &versions[..count]
            }
        }
    }

    /// Returns the prepared version whose entry is the oldest in the journal.
    pub fn oldest(&self) -> Option<&PreparedVersion> {
        self.in_journal_order().next()
    }

    /// Returns all prepared versions in the order of their entries.
    pub fn in_journal_order(&self) -> impl Iterator<Item = &PreparedVersion> {
        self.by_lsn.values().map(|(key, version)| self.get(key, *version))
    }

    /// Returns a prepared version. Requires: the version is prepared.
    pub fn get(&self, key: &BlockKey, version: Version) -> &PreparedVersion {
        let mut versions = self.of_key(key).iter();
        versions.find(|of| of.header.version == version).expect("invariant 1")
    }

    /// Returns the PG's oldest prepared version, if it is at or below `upto`.
    pub fn first_of(&self, pg: PgId, upto: Version) -> Option<(BlockKey, Version)> {
        let (version, key) = self.of_pg.get(&pg)?.first_key_value()?;
        (*version <= upto).then_some((*key, *version))
    }

    /// Returns the PG's oldest prepared version that has lost data. Versions prepared by peering do not
    /// count.
    pub fn first_lost(&self, pg: PgId) -> Option<Version> {
        let versions = self.of_pg.get(&pg)?.iter();
        let mut versions = versions.map(|(version, key)| self.get(key, *version));
        let first = versions.find(|of| of.has_lost() && !of.is_of_peering())?;
        Some(first.header.version)
    }

    /// Returns the PG's newest prepared version, if it is above `version`.
    fn last_above(&self, pg: PgId, version: Version) -> Option<(BlockKey, Version)> {
        let (last, key) = self.of_pg.get(&pg)?.last_key_value()?;
        (*last > version).then_some((*key, *last))
    }

    /// Returns the block of the PG's prepared version `version`.
    fn key_of(&self, pg: PgId, version: Version) -> Option<BlockKey> {
        self.of_pg.get(&pg)?.get(&version).copied()
    }

    fn insert(&mut self, version: PreparedVersion) {
        let (key, number) = (version.key(), version.header.version);
        self.pgs.insert(version.pg());
        self.of_pg.entry(version.pg()).or_default().insert(number, key);
        match version.is_of_peering() {
            true => self.peering_charge += version.charge(),
            false => {
                self.charge += version.charge();
                *self.charge_of.entry(version.pg()).or_default() += version.charge();
            }
        }
        self.growth += version.growth;
        self.ring_bytes += u64::from(version.header.size);
        self.by_lsn.insert(version.header.lsn, (key, number));
        let versions = self.of_key.entry(key).or_default();
        let at = versions.partition_point(|of| of.header.version < number);
        versions.insert(at, version);
    }

    fn remove(&mut self, key: &BlockKey, number: Version) -> PreparedVersion {
        let versions = self.of_key.get_mut(key).expect("invariant 1");
        let at = versions.iter().position(|of| of.header.version == number);
        let version = versions.remove(at.expect("invariant 1"));
        if versions.is_empty() {
            self.of_key.remove(key);
        }
        let of_pg = self.of_pg.get_mut(&version.pg()).expect("invariant 1");
        match version.is_of_peering() {
            true => self.peering_charge -= version.charge(),
            false => {
                self.charge -= version.charge();
                let charge = self.charge_of.get_mut(&version.pg()).expect("invariant 1");
                *charge -= version.charge();
                if *charge == 0 {
                    self.charge_of.remove(&version.pg());
                }
            }
        }
        of_pg.remove(&number);
        if of_pg.is_empty() {
            self.of_pg.remove(&version.pg());
        }
        self.growth -= version.growth;
        self.ring_bytes -= u64::from(version.header.size);
        self.by_lsn.remove(&version.header.lsn);
        version
    }

    /// Records that a version's entry is now a copy at another place in the journal.
    pub fn relocate(&mut self, change: &Change<'_>, key: &BlockKey) {
        let PreparedVersion { has_place, growth, .. } = self.remove(key, change.header.version);
        let copy = PreparedVersion::new(change, None, has_place);
        self.insert(PreparedVersion { growth, ..copy });
    }

    /// Returns the bytes by which records may grow when all prepared versions are committed.
    pub fn growth(&self) -> u64 {
        self.growth
    }

    /// Returns the journal bytes that are kept free for one copy of each prepared version, a pad in front of
    /// one of the copies, and the marks of all PGs. A commit never raises the value. Zero in a store without
    /// PGs that keep parity.
    pub fn kept_bytes(&self, sector_size: u32) -> u64 {
        let pad = self.ring_bytes.min(ENTRY_SIZE_MAX);
        self.ring_bytes + pad + self.marks_bytes(sector_size)
    }

    /// Returns the journal bytes that are kept free for marks: for the marks of all PGs, for a pad, and once
    /// more for the marks of a single PG.
    pub fn marks_bytes(&self, sector_size: u32) -> u64 {
        let entries = self.pgs.len().div_ceil(MARKS_MAX) as u64;
        let header = u64::from(EntryHeader::size_of(EntryKind::Marks, 0, sector_size));
        let data = (self.pgs.len() * MARK_SIZE) as u64;
        3 * entries * (header + data.next_multiple_of(base::UNIT_SIZE))
    }

    /// Returns the room for prepared versions.
    pub fn room(&self, journal_size: u64) -> PreparedRoom {
        let bytes_max = journal_size / JOURNAL_SHARE;
        PreparedRoom { bytes_max, used_bytes: self.charge }
    }

    /// Returns how much of the room the PG's versions take, in bytes.
    pub fn room_used_by(&self, pg: PgId) -> u64 {
        self.charge_of.get(&pg).copied().unwrap_or(0)
    }

    /// Whether there is room for one more version. `is_peering`: the version is prepared by peering.
    /// `counts`: units of data, and bytes of the part table.
    pub fn has_room_for(
        &self,
        is_peering: bool,
        (entry_size, counts): (u64, (usize, usize)),
        journal_size: u64,
    ) -> bool {
        let room = self.room(journal_size);
        let charge = charge(entry_size, counts);
        match is_peering {
            true => self.peering_charge + charge <= room.bytes_max,
            false => charge <= room.free_bytes(),
        }
    }

    /// Records that the PG has committed more than the journal records.
    pub fn note_unsaid(&mut self, pg: PgId) {
        self.unsaid.insert(pg);
        self.pgs.insert(pg);
    }

    /// Records that the journal now contains all commits of the PG.
    pub fn note_said(&mut self, pg: PgId) {
        self.unsaid.remove(&pg);
        self.pgs.insert(pg);
    }

    /// Whether the PG has committed more than the journal records.
    pub fn is_unsaid(&self, pg: PgId) -> bool {
        !self.unsaid.is_empty() && self.unsaid.contains(&pg)
    }

    /// Returns the PGs that have committed more than the journal records.
    pub fn unsaid(&self) -> impl Iterator<Item = PgId> + '_ {
        self.unsaid.iter().copied()
    }
}

/// Methods for prepared versions.
impl Blocks {
    /// Returns the index entry that the block has in the state selected by `as_of`.
    pub fn as_of(&self, key: &BlockKey, as_of: AsOf) -> Option<BlockInfo> {
        let stable = self.get(key);
        let versions = self.prepared.as_of(key, as_of);
        versions.iter().fold(stable, |below, version| Some(version.info_over(below)))
    }

    /// Whether the entry is a copy of a version that is already prepared here.
    pub fn is_known_copy(&self, header: &EntryHeader) -> bool {
        if planted::on(Bug::CopyTreatedAsNew) {
            return false;
        }
        let known = header.pg.and_then(|pg| self.prepared.key_of(pg, header.version));
        header.flags.is_copy && known.is_some() && known == header.key
    }

    /// Whether the copy has lost data that the older entry of the same version still has. Recovery then keeps
    /// the older entry: data that was unreadable when the copy was made may be readable now.
    pub fn is_worse_copy(&self, header: &EntryHeader, bad: &UnitSet) -> bool {
        let Some(key) = header.key.filter(|_| self.is_known_copy(header)) else { return false };
        let known = self.prepared.get(&key, header.version);
        let known_count = known.header.damaged.count() + known.bad.count();
        !bad.is_empty() || header.damaged.count() > known_count
    }

    /// Adds a prepared version. If the entry is a copy of a version that is already prepared, only the
    /// version's position in the journal changes. `has_place`: the place in the header is allocated.
    /// Requires: the versions that it replaces have been removed.
    pub fn prepare(&mut self, change: &Change<'_>, pg: PgId, key: BlockKey, has_place: bool) {
        let header = change.header;
        if self.is_known_copy(header) {
            return self.prepared.relocate(change, &key);
        }
        if let Some(other) = self.prepared.key_of(pg, header.version) {
            self.drop_one(&other, header.version);
        }
        let below = self.as_of(&key, AsOf::Version(header.version));
        self.prepared.insert(PreparedVersion::new(change, below, has_place));
    }

    /// Removes the prepared versions that `header` replaces, in peering. A copy replaces nothing.
    pub fn replace(&mut self, header: &EntryHeader, key: &BlockKey) {
        if let (Some(above), false) = (header.replaces, header.flags.is_copy) {
            self.drop_above(key, above);
        }
    }

    /// Removes the prepared versions of the block above `version`, newest first.
    fn drop_above(&mut self, key: &BlockKey, version: Version) {
        while let Some(last) = self.prepared.of_key(key).last()
            && last.header.version > version
        {
            let number = last.header.version;
            self.drop_one(key, number);
        }
    }

    /// Removes the PG's prepared versions above `version`, newest first.
    pub fn roll_back(&mut self, pg: PgId, version: Version) {
        while let Some((key, number)) = self.prepared.last_above(pg, version) {
            self.drop_one(&key, number);
        }
    }

    /// Removes a prepared version. The place that it allocated can be reused after the next checkpoint that
    /// begins.
    fn drop_one(&mut self, key: &BlockKey, number: Version) {
        let version = self.prepared.remove(key, number);
        if planted::on(Bug::RolledBackTableKept) {
            self.keep_table(key, &version);
        }
        if self.prepared.of_key(key).is_empty() && self.get(key).is_some() {
            // If only this version kept a tombstone, or the place of an empty block, the next checkpoint
            // drops it.
            self.look_again(*key);
        }
        let location = version.header.location;
        if location == LOCATION_NONE || !version.has_place {
            return;
        }
        let block_size = version.header.block_size.expect("the format demands it");
        if planted::on(Bug::RolledBackPlaceReusedEarly) {
            return self.area.allocator.release(location, block_size, false);
        }
        self.gives_back_place(location, block_size);
    }

    /// A planted bug: the part table of a rolled-back version replaces the table of the stable version.
    fn keep_table(&mut self, key: &BlockKey, version: &PreparedVersion) {
        if let (Some(info), Some(table)) = (self.get(key), version.overlay.table.clone())
            && info.table_rows > 0
        {
            self.look_again(*key);
            self.set_table(*key, table);
        }
    }

    /// Makes a prepared version stable. Nothing else calls [`Blocks::apply`] for a prepared version.
    pub fn commit_one(&mut self, key: BlockKey, number: Version) {
        let version = self.prepared.remove(&key, number);
        let old = self.get(&key);
        let lost = version.lost_units();
        let location = version.location_over(location_of(old));
        let PreparedVersion { mut header, data_lsn, bad, .. } = version;
        header.location = location;
        self.apply(&Change { header: &header, old, lsn: header.lsn, data_lsn, bad }, key);
        if !lost.is_empty() {
            self.damage.found(key, lost);
        }
    }

    /// Whether the version needs a place that the block does not have, because older changes are lost.
    pub fn lacks_base(&self, header: &EntryHeader, key: &BlockKey) -> bool {
        let upto = match (header.replaces, header.version.counter.checked_sub(1)) {
            (Some(above), _) => above,
            (None, Some(counter)) => Version { counter, ..header.version },
            (None, None) => Version::ZERO,
        };
        let below = self.as_of(key, AsOf::Version(upto));
        header.kind == EntryKind::Prepare
            && header.location == LOCATION_NONE
            && needs_place(header)
            && location_of(below) == LOCATION_NONE
    }

    /// Ends recovery's collection of prepared versions: allocates the places that their headers contain. If a
    /// place is already in use, or the place that a version was to share with older changes does not exist,
    /// the version cannot have been prepared when the checkpoint began: entries in between are lost, and the
    /// store is suspect. Such a version is dropped, together with the newer prepared versions of its block.
    pub fn take_places(&mut self) {
        let keys: Vec<BlockKey> = self.prepared.of_key.keys().copied().collect();
        for key in keys {
            let numbers: Vec<Version> =
                self.prepared.of_key(&key).iter().map(|version| version.header.version).collect();
            for number in numbers {
                let header = &self.prepared.get(&key, number).header;
                let (location, size) = (header.location, header.block_size);
                let is_taken = match (location, size) {
                    (LOCATION_NONE, _) => !self.lacks_base(&header.clone(), &key),
                    (_, Some(_)) if planted::on(Bug::PreparedPlaceNotTaken) => continue,
                    (_, Some(size)) => self.area.allocator.take(location, size),
                    (_, None) => false,
                };
                if !is_taken {
                    let below = Version { counter: number.counter.saturating_sub(1), ..number };
                    self.drop_above(&key, below);
                    break;
                }
                let versions = self.prepared.of_key.get_mut(&key).expect("invariant 1");
                let of_number = |version: &&mut PreparedVersion| version.header.version == number;
                if let Some(version) = versions.iter_mut().find(of_number) {
                    version.has_place = true;
                }
            }
        }
    }
}
