//! Prepared versions: versions of blocks above the stable one, which may still be taken back.
//!
//! ```text
//!   Prepare ──▶ of_key: oldest first ──Commit, Settle──▶ stable: `Blocks::commit_one`, the only way there
//!               of_pg, by_lsn          ──Settle, replaces──▶ gone: `Blocks::drop_one`
//! ```
//!
//! Stripes need them: `docs/internals/stripes.md`. In replicated pools nothing is prepared.
//!
//! Invariants
//!   1. `of_key`, `of_pg` and `by_lsn` list the same versions; the sums are sums over them.
//!   2. A version names a place only if it allocated it. The place of any other version is found when it is
//!      committed: it is the one that the block has then.
//!   3. The journal's head does not pass the lsn of a prepared version.
//!   4. A PG is in `unsaid` if more of it is committed than the journal says. It is in `pgs`, too.

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

/// Prepared versions take at most this fraction (1/n) of the journal. Versions that peering prepares have
/// this share once more, for themselves: they must not take what primaries were promised.
const JOURNAL_SHARE: u64 = 8;
/// A primary lets the versions of one PG take at most this fraction (1/n) of that.
const PG_SHARE: u64 = 4;
/// The largest sector of a disk, in bytes: headers take whole sectors.
const SECTOR_SIZE_MAX: u32 = 4096;
/// Maximum size of an entry, in bytes: a header and the data of the largest block.
const ENTRY_SIZE_MAX: u64 = (1 << 20) + (8 << 10);
/// Maximum number of marks in one entry: its data is as long as that of the largest block.
pub const MARKS_MAX: usize = (1 << 20) / MARK_SIZE;

// The share holds the largest entry, even in the smallest journal that `create` makes.
const _: () = assert!(ENTRY_SIZE_MAX <= JOURNAL_SIZE_MIN / JOURNAL_SHARE);

/// One prepared version of a block.
pub struct PreparedVersion {
    /// As journaled, or as last copied. `location` is a place that this version allocated.
    pub header: EntryHeader,
    /// The lsn where its inline data begins.
    pub data_lsn: Lsn,
    /// Units whose data is lost, counted from the first unit of the data.
    pub bad: UnitSet,
    /// Its units, over what is below.
    pub overlay: Overlay,
    /// Whether its place, if it has one, is allocated. Not yet while recovery collects versions.
    has_place: bool,
    /// Bytes by which records may grow when it is committed.
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

    /// Where the block is after this version, if it was at `below` before.
    fn location_over(&self, below: u32) -> u32 {
        match () {
            () if self.header.location != LOCATION_NONE => self.header.location,
            () if self.header.flags.is_whole && !needs_place(&self.header) => LOCATION_NONE,
            () => below,
        }
    }

    /// Returns what is known about the block after this version.
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

    /// What it counts for against the limits, in bytes: journal or memory, whichever is more.
    fn charge(&self) -> u64 {
        let counts = (self.header.checksums.len(), self.header.table.len());
        charge(u64::from(self.header.size), counts)
    }

    /// Whether peering prepared it.
    fn is_of_peering(&self) -> bool {
        self.header.replaces.is_some()
    }

    /// Whether data that came with it is lost. Units that were prepared as damaged do not count.
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

/// What a prepared version with this many units of data, and bytes of its part table, counts for, in bytes.
fn charge(entry_size: u64, (unit_count, table_size): (usize, usize)) -> u64 {
    // The header and the overlay have the table.
    let memory = size_of::<PreparedVersion>() + 24 * unit_count + 2 * table_size;
    entry_size.max(memory as u64)
}

/// Whether the block has units that need a place after this version.
pub fn needs_place(header: &EntryHeader) -> bool {
    !(header.written.is_empty() && header.damaged.is_empty())
}

/// Room for prepared versions of all PGs, in bytes, without those of peering. What is there and all that
/// primaries were promised fits into it: who promises room counts that.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct PreparedRoom {
    /// What all versions and promises may take.
    pub bytes_max: u64,
    /// What all versions take now.
    pub used_bytes: u64,
    /// What a primary lets the versions of one PG take, so that one PG does not hold up the others. The store
    /// does not compare: it may hear later than the primary what is committed.
    pub pg_bytes_max: u64,
}

impl PreparedRoom {
    /// Returns the most bytes that a version with data for this many units takes, in any store, with or
    /// without a part table.
    pub fn cost_of(unit_count: u32) -> u64 {
        let counts = (unit_count as usize, table_size(BlockSize::MAX, TABLE_ROWS_MAX as u8));
        let size = EntryHeader::size_with_table(EntryKind::Prepare, counts, SECTOR_SIZE_MAX);
        charge(u64::from(size), counts)
    }

    /// Returns how many bytes more versions and promises may take.
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
    /// Bytes of the journal that their entries take.
    ring_bytes: u64,
    charge: u64,
    /// The charge of what peering prepared; `charge` does not contain it.
    peering_charge: u64,
    growth: u64,
    unsaid: BTreeSet<PgId>,
    /// PGs that ever had an entry here which says what is committed: they may become unsaid at any time.
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

    /// Returns the prepared versions of the block that a read sees.
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

    /// Returns a prepared version. Requires: it is there.
    pub fn get(&self, key: &BlockKey, version: Version) -> &PreparedVersion {
        let mut versions = self.of_key(key).iter();
        versions.find(|of| of.header.version == version).expect("invariant 1")
    }

    /// Returns the PG's oldest prepared version up to `upto`.
    pub fn first_of(&self, pg: PgId, upto: Version) -> Option<(BlockKey, Version)> {
        let (version, key) = self.of_pg.get(&pg)?.first_key_value()?;
        (*version <= upto).then_some((*key, *version))
    }

    /// Returns the PG's oldest prepared version that has lost data. What peering prepared does not count.
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

    /// Whether the PG has this version prepared.
    fn key_of(&self, pg: PgId, version: Version) -> Option<BlockKey> {
        self.of_pg.get(&pg)?.get(&version).copied()
    }

    fn insert(&mut self, version: PreparedVersion) {
        let (key, number) = (version.key(), version.header.version);
        self.pgs.insert(version.pg());
        self.of_pg.entry(version.pg()).or_default().insert(number, key);
        match version.is_of_peering() {
            true => self.peering_charge += version.charge(),
            false => self.charge += version.charge(),
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
            false => self.charge -= version.charge(),
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

    /// Records that a copy of the version lies at another place in the journal.
    pub fn relocate(&mut self, change: &Change<'_>, key: &BlockKey) {
        let PreparedVersion { has_place, growth, .. } = self.remove(key, change.header.version);
        let copy = PreparedVersion::new(change, None, has_place);
        self.insert(PreparedVersion { growth, ..copy });
    }

    /// Returns the bytes by which records may grow when everything is committed.
    pub fn growth(&self) -> u64 {
        self.growth
    }

    /// Returns the bytes of the journal that are kept for one set of copies of all prepared versions, with
    /// the pad in front of one of them, and for the marks of all PGs. A commit does not change it. Zero in
    /// a store without PGs that keep parity.
    pub fn kept_bytes(&self, sector_size: u32) -> u64 {
        let pad = self.ring_bytes.min(ENTRY_SIZE_MAX);
        self.ring_bytes + pad + self.marks_bytes(sector_size)
    }

    /// Returns the bytes of the journal that marks of all PGs take: once for all, with a pad, and once for
    /// one of them.
    pub fn marks_bytes(&self, sector_size: u32) -> u64 {
        let entries = self.pgs.len().div_ceil(MARKS_MAX) as u64;
        let header = u64::from(EntryHeader::size_of(EntryKind::Marks, 0, sector_size));
        let data = (self.pgs.len() * MARK_SIZE) as u64;
        3 * entries * (header + data.next_multiple_of(base::UNIT_SIZE))
    }

    /// Returns the room for prepared versions.
    pub fn room(&self, journal_size: u64) -> PreparedRoom {
        let bytes_max = journal_size / JOURNAL_SHARE;
        PreparedRoom {
            bytes_max,
            used_bytes: self.charge,
            pg_bytes_max: (bytes_max / PG_SHARE).max(ENTRY_SIZE_MAX.min(bytes_max)),
        }
    }

    /// Whether there is room for one more version. `is_peering`: it belongs to peering. `counts`: units of
    /// data, bytes of the part table.
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

    /// Records that the PG has committed more than the journal says.
    pub fn note_unsaid(&mut self, pg: PgId) {
        self.unsaid.insert(pg);
        self.pgs.insert(pg);
    }

    /// Records that an entry says what the PG has committed.
    pub fn note_said(&mut self, pg: PgId) {
        self.unsaid.remove(&pg);
        self.pgs.insert(pg);
    }

    /// Whether the PG has committed more than the journal says.
    pub fn is_unsaid(&self, pg: PgId) -> bool {
        !self.unsaid.is_empty() && self.unsaid.contains(&pg)
    }

    /// Returns the PGs that have committed more than the journal says.
    pub fn unsaid(&self) -> impl Iterator<Item = PgId> + '_ {
        self.unsaid.iter().copied()
    }
}

/// Methods for prepared versions.
impl Blocks {
    /// Returns what is known about the block as of a state.
    pub fn as_of(&self, key: &BlockKey, as_of: AsOf) -> Option<BlockInfo> {
        let stable = self.get(key);
        let versions = self.prepared.as_of(key, as_of);
        versions.iter().fold(stable, |below, version| Some(version.info_over(below)))
    }

    /// Whether the entry is a copy of a version that is there.
    pub fn is_known_copy(&self, header: &EntryHeader) -> bool {
        if planted::on(Bug::CopyTreatedAsNew) {
            return false;
        }
        let known = header.pg.and_then(|pg| self.prepared.key_of(pg, header.version));
        header.flags.is_copy && known.is_some() && known == header.key
    }

    /// Whether the copy has lost data that the version which is there still has. Recovery then keeps the
    /// older entry: what could not be read when the copy was made could be read now.
    pub fn is_worse_copy(&self, header: &EntryHeader, bad: &UnitSet) -> bool {
        let Some(key) = header.key.filter(|_| self.is_known_copy(header)) else { return false };
        let known = self.prepared.get(&key, header.version);
        let known_count = known.header.damaged.count() + known.bad.count();
        !bad.is_empty() || header.damaged.count() > known_count
    }

    /// Adds a prepared version, or only moves the version if this is a copy of one that is there.
    /// `has_place`: a place that the entry names is allocated. Requires: what it replaces was removed.
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

    /// Removes what a prepared version of peering replaces. A copy replaces nothing.
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

    /// Removes a prepared version. The place that it allocated is used again after a checkpoint that begins
    /// later.
    fn drop_one(&mut self, key: &BlockKey, number: Version) {
        let version = self.prepared.remove(key, number);
        if planted::on(Bug::RolledBackTableKept) {
            self.keep_table(key, &version);
        }
        if self.prepared.of_key(key).is_empty() && self.get(key).is_some() {
            // If it kept the place of an empty block, or a tombstone, the next checkpoint drops that.
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

    /// A planted bug: the part table of a version that is taken back replaces that of the stable one.
    fn keep_table(&mut self, key: &BlockKey, version: &PreparedVersion) {
        if let (Some(info), Some(table)) = (self.get(key), version.overlay.table.clone())
            && info.table_rows > 0
        {
            self.look_again(*key);
            self.set_table(*key, table);
        }
    }

    /// Makes a prepared version stable: the only way to [`Blocks::apply`] for it.
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

    /// Whether the version needs a place that the block does not have: what it was prepared over is lost.
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

    /// Ends the collection of prepared versions by recovery: takes the places that they allocated. A
    /// version whose place is in use, or that lacks what it was prepared over, cannot be one that was there
    /// when the checkpoint began: entries between are lost, and the store is suspect. It is dropped, with
    /// the versions of its block above it.
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
