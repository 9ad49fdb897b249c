//! Reads: find where the content of each unit is, read all of it in parallel, verify it, answer.
//!
//! ```text
//!   overlays ─┬─▶ place: one read of the span         ─┐
//!             ├─▶ journal: from memory, or read        ├─▶ compare each unit ─▶ answer
//!             └─▶ leaf: from the cache, or fetched    ─┘        │ changed meanwhile: again
//! ```
//!
//! A copy for another member is a read of a block, or of some of its units. Its answer lists the damaged
//! units and contains the part table of a parity part. A digest is such an answer without the data; unless
//! the digest is deep, no data is read.
//!
//! Invariants
//!   1. Data whose checksum does not match is never returned.
//!   2. A mismatch counts as damage only if the block did not change and no checkpoint ended while the read
//!      was in flight. Otherwise its place may have been reused, and the read is repeated.

use std::collections::BTreeMap;
use std::rc::Rc;

use base::{Buffer, BufferPool, Checksum, Lsn, UNIT_SIZE, Version};
use format::disk::{BlockKey, LOCATION_NONE, LeafPage, StoredRecord, StoredUnit, UnitSet};
use format::wire::{Content, Digest};

use crate::blocks::matches;
use crate::disk::{Io, Purpose, ReadPart};
use crate::index::BlockInfo;
use crate::overlay::{Layers, UnitState};
use crate::pages::LeafWaiter;
use crate::parts::Parts;
use crate::{Answer, AsOf, Effect, RequestId, StoreError};

const UNIT: usize = UNIT_SIZE as usize;
/// A read that still fails after this many repeats is answered as damaged, so that no read is repeated
/// forever.
const ATTEMPT_COUNT_MAX: u32 = 64;

/// A range of a block, in bytes and in whole units.
#[derive(Clone, Copy)]
pub struct BlockRange {
    pub key: BlockKey,
    pub offset: u32,
    pub length: u32,
    pub as_of: AsOf,
}

/// What a read returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The range's data.
    Data,
    /// Only the states of the units.
    Extents,
    /// These units of the block, for another member.
    Copy(UnitSet),
    /// What the block holds, without its data.
    Digest {
        /// Whether the data is read and verified.
        deep: bool,
    },
}

impl Kind {
    /// Returns whether the data is read, and compared with its checksums.
    fn reads_data(self) -> bool {
        !matches!(self, Kind::Extents | Kind::Digest { deep: false })
    }

    /// Returns whether the answer contains the part table.
    fn reads_table(self) -> bool {
        matches!(self, Kind::Copy(_) | Kind::Digest { .. })
    }
}

/// A read to be done, and how many attempts were made before.
struct Query {
    range: BlockRange,
    kind: Kind,
    attempt: u32,
}

/// The state of a block when a read was planned. If it is the same when the read ends, the read saw the
/// data that it was planned for.
#[derive(PartialEq, Eq, Clone, Copy)]
pub struct Stamp {
    pub info: BlockInfo,
    checkpoint: u64,
    /// Number of repairs since the last checkpoint: a repair can change the block without changing its
    /// version.
    repair_count: u32,
}

impl Stamp {
    /// Returns the current state.
    pub fn of(parts: &Parts, layers: Layers<'_>, info: BlockInfo) -> Stamp {
        Stamp { info, checkpoint: parts.root.sequence, repair_count: layers.repair_count() }
    }

    /// Returns the current state of the block, if it exists.
    pub fn of_block(parts: &Parts, key: &BlockKey, as_of: AsOf) -> Option<Stamp> {
        let info = parts.blocks.as_of(key, as_of)?;
        Some(Stamp::of(parts, parts.blocks.layers(key, as_of), info))
    }
}

/// The reads of a store.
#[derive(Default)]
pub struct Reads {
    under_way: BTreeMap<RequestId, Read>,
    /// Answers of repeated reads. They may include data of later requests, so each waits until everything
    /// before its lsn is durable: a power loss must not undo what was read.
    held: Vec<(Lsn, Effect)>,
}

/// A read in flight. Units are counted from the start of its range.
struct Read {
    range: BlockRange,
    kind: Kind,
    attempt: u32,
    stamp: Stamp,
    /// Where each unit is; `None`: the leaf determines it.
    states: Vec<Option<UnitState>>,
    /// The part table; empty if it is not part of the answer; `None`: the leaf contains it.
    table: Option<Vec<u8>>,
    leaf: Option<Rc<LeafPage>>,
    /// First unit of the span that is read from the block's place.
    place_first: u32,
    place: Option<Buffer>,
    journal: Vec<(u32, Buffer)>,
    outstanding: u32,
}

impl Reads {
    /// Begins to read a range.
    pub fn begin(&mut self, id: RequestId, range: BlockRange, parts: &mut Parts, io: &mut Io<'_>) {
        assert!((range.offset as u64).is_multiple_of(UNIT_SIZE));
        assert!((range.length as u64).is_multiple_of(UNIT_SIZE));
        let info = parts.blocks.as_of(&range.key, range.as_of);
        let Some(info) = info.filter(|info| info.location != LOCATION_NONE) else {
            let version = info.map_or(Version::ZERO, |info| info.version);
            let data = io.pool.take(0).freeze();
            return io.done(id, Ok(Answer::Read { version, checksums: Vec::new(), data }));
        };
        assert!(range.offset as u64 + range.length as u64 <= info.block_size.bytes());
        self.plan(id, Query { range, kind: Kind::Data, attempt: 0 }, info, parts, io);
    }

    /// Begins to determine which units are written and which are damaged.
    pub fn begin_extents(
        &mut self,
        id: RequestId,
        (key, as_of): (BlockKey, AsOf),
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let info = parts.blocks.as_of(&key, as_of);
        let Some(info) = info.filter(|info| info.location != LOCATION_NONE) else {
            let words = info.map_or(0, |info| info.block_size.unit_count());
            let none = UnitSet::EMPTY.words(words);
            let answer = Answer::Extents {
                version: info.map_or(Version::ZERO, |info| info.version),
                written: none.clone(),
                damaged: none,
            };
            return io.done(id, Ok(answer));
        };
        let length = info.block_size.bytes() as u32;
        let range = BlockRange { key, offset: 0, length, as_of };
        self.plan(id, Query { range, kind: Kind::Extents, attempt: 0 }, info, parts, io);
    }

    /// Begins to copy units of a block. `units`: a bit for each unit; empty means all.
    pub fn begin_copy(
        &mut self,
        id: RequestId,
        (key, as_of): (BlockKey, AsOf),
        units: &[u64],
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        self.copy(id, (key, as_of), UnitSet::from_slice(units), 0, parts, io);
    }

    /// Begins to determine what a block holds. With `deep`, its data is read and verified.
    pub fn begin_digest(
        &mut self,
        id: RequestId,
        key: BlockKey,
        deep: bool,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        self.digest(id, key, (deep, 0), parts, io);
    }

    fn digest(
        &mut self,
        id: RequestId,
        key: BlockKey,
        (deep, attempt): (bool, u32),
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let digest = match parts.blocks.as_of(&key, AsOf::View) {
            None => Digest::Gone,
            Some(BlockInfo { version, tombstone: true, .. }) => Digest::Tombstone { version },
            Some(info) if info.location == LOCATION_NONE && info.table_rows == 0 => {
                let none = UnitSet::EMPTY.words(info.block_size.unit_count());
                let (version, written, damaged) = (info.version, none.clone(), none);
                let (checksums, table) = (Vec::new(), Vec::new());
                Digest::Block { version, written, damaged, checksums, table }
            }
            Some(info) => {
                // Without data, only the part table is read.
                let has_data = info.location != LOCATION_NONE;
                let length = if has_data { info.block_size.bytes() as u32 } else { 0 };
                let range = BlockRange { key, offset: 0, length, as_of: AsOf::View };
                let kind = Kind::Digest { deep };
                return self.plan(id, Query { range, kind, attempt }, info, parts, io);
            }
        };
        io.done(id, Ok(Answer::Digest(digest)));
    }

    fn copy(
        &mut self,
        id: RequestId,
        (key, as_of): (BlockKey, AsOf),
        asked: UnitSet,
        attempt: u32,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let nothing = |content| Ok(Answer::Copy { content });
        let Some(info) = parts.blocks.as_of(&key, as_of) else {
            return io.done(id, nothing(Content::Gone));
        };
        let BlockInfo { version, block_size, .. } = info;
        let count = block_size.unit_count();
        if info.tombstone {
            return io.done(id, nothing(Content::Tombstone { version }));
        }
        let all = UnitSet::first(count);
        let units = if asked.is_empty() { all } else { asked.within(&all) };
        let has_data = info.location != LOCATION_NONE && !units.is_empty();
        if !has_data && info.table_rows == 0 {
            let content = Content::Block {
                version,
                block_size,
                units: units.words(count),
                written: UnitSet::EMPTY.words(count),
                damaged: UnitSet::EMPTY.words(count),
                checksums: Vec::new(),
                data: None,
                table: Vec::new(),
            };
            return io.done(id, nothing(content));
        }
        // Without data, only the part table is read.
        let (offset, length) = if has_data { units.span() } else { (0, 0) };
        let range = BlockRange { key, offset, length, as_of };
        self.plan(id, Query { range, kind: Kind::Copy(units), attempt }, info, parts, io);
    }

    fn plan(
        &mut self,
        id: RequestId,
        query: Query,
        info: BlockInfo,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let Query { range, kind, attempt } = query;
        let first = range.offset / UNIT as u32;
        let count = range.length / UNIT as u32;
        let layers = parts.blocks.layers(&range.key, range.as_of);
        let state = |unit: u32| match kind {
            // This unit lies between the units to copy, and is not read.
            Kind::Copy(units) if !units.contains(unit) => Some(UnitState::Zero),
            _ => layers.get(unit),
        };
        let states: Vec<Option<UnitState>> = (first..first + count).map(state).collect();
        let table = match kind {
            _ if kind.reads_table() && info.table_rows > 0 => layers.table().map(<[u8]>::to_vec),
            _ => Some(Vec::new()),
        };
        let mut read = Read {
            range,
            kind,
            attempt,
            stamp: Stamp::of(parts, layers, info),
            states,
            table,
            leaf: None,
            place_first: 0,
            place: None,
            journal: Vec::new(),
            outstanding: 0,
        };
        if kind.reads_data() {
            read.fetch_place(id, parts, io);
            read.fetch_journal(id, parts, io);
        }
        read.fetch_leaf(id, parts, io);
        if read.outstanding > 0 {
            let before = self.under_way.insert(id, read);
            assert!(before.is_none(), "a request's id is not reused while it is open");
        } else {
            self.end(id, read, parts, io);
        }
    }

    /// Handles data that arrived for a read.
    pub fn on_part_read(
        &mut self,
        id: RequestId,
        part: ReadPart,
        bytes: Buffer,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let read = self.under_way.get_mut(&id).expect("its operation was outstanding");
        match part {
            ReadPart::Place => {
                assert!(bytes.len() <= read.range.length as usize);
                assert!(bytes.len().is_multiple_of(UNIT));
                read.place = Some(bytes);
            }
            ReadPart::Journal(first) => {
                let units = bytes.len() / UNIT;
                let unit = |index: usize| bytes.slice(index * UNIT..(index + 1) * UNIT);
                read.journal.extend((0..units).map(|index| (first + index as u32, unit(index))));
            }
        }
        self.on_arrived(id, parts, io);
    }

    /// Handles the leaf that a read waits for; `None`: the leaf is damaged.
    pub fn on_leaf_read(
        &mut self,
        id: RequestId,
        leaf: Option<Rc<LeafPage>>,
        parts: &mut Parts,
        io: &mut Io<'_>,
    ) {
        let read = self.under_way.get_mut(&id).expect("it waits for the leaf");
        read.leaf = leaf;
        self.on_arrived(id, parts, io);
    }

    fn on_arrived(&mut self, id: RequestId, parts: &mut Parts, io: &mut Io<'_>) {
        let read = self.under_way.get_mut(&id).expect("an operation of it was outstanding");
        assert!(read.outstanding > 0);
        read.outstanding -= 1;
        if read.outstanding == 0 {
            let read = self.under_way.remove(&id).expect("it was just seen");
            self.end(id, read, parts, io);
        }
    }

    /// Ends a read whose parts have all arrived: verifies and answers it, or repeats it.
    fn end(&mut self, id: RequestId, read: Read, parts: &mut Parts, io: &mut Io<'_>) {
        let states = read.resolve();
        let damaged = match read.kind.reads_data() {
            false => UnitSet::EMPTY,
            true => read.mismatches(&states),
        };
        let unresolved = states.contains(&UnitState::Damaged) || read.table().is_none();
        if (!damaged.is_empty() || unresolved) && read.is_overtaken(parts) {
            return self.again(id, read, parts, io);
        }
        let first = read.range.offset / UNIT as u32;
        let mut units = UnitSet::EMPTY;
        damaged.iter().for_each(|unit| units.insert(first + unit));
        // Damage is recorded only for the stable content.
        if !units.is_empty() && read.is_stable(parts) {
            parts.blocks.damage.found(read.range.key, units);
        }
        let result = match read.kind {
            Kind::Extents => Ok(read.extents(&states, parts)),
            Kind::Copy(asked) => Ok(read.copied(asked, units, &states, io.pool)),
            Kind::Digest { deep } => Ok(read.digest(deep, units, &states, parts)),
            Kind::Data if damaged.is_empty() => Ok(read.answer(&states, io.pool)),
            Kind::Data => {
                let count = read.stamp.info.block_size.unit_count();
                Err(StoreError::Damaged { units: units.words(count) })
            }
        };
        match read.attempt {
            0 => io.done(id, result),
            _ => self.hold(vec![Effect::Done { id, result }], parts),
        }
    }

    /// Holds answers until everything so far is durable.
    fn hold(&mut self, answers: Vec<Effect>, parts: &mut Parts) {
        parts.journal.want_all();
        let tail = parts.journal.tail();
        self.held.extend(answers.into_iter().map(|answer| (tail, answer)));
    }

    /// Releases the answers that waited for everything before `durable` to be durable.
    pub fn on_durable(&mut self, durable: Lsn, effects: &mut Vec<Effect>) {
        effects.extend(self.held.extract_if(.., |(lsn, _)| *lsn <= durable).map(|(_, held)| held));
    }

    fn again(&mut self, id: RequestId, read: Read, parts: &mut Parts, io: &mut Io<'_>) {
        let Read { range, kind, .. } = read;
        let attempt = read.attempt + 1;
        let info = parts.blocks.as_of(&range.key, range.as_of);
        let reads_table = |info: &BlockInfo| kind.reads_table() && info.table_rows > 0;
        let info = info.filter(|info| info.location != LOCATION_NONE || reads_table(info));
        let of_block = (range.key, range.as_of);
        if let Some(info) = info {
            return match kind {
                Kind::Copy(units) => self.copy(id, of_block, units, attempt, parts, io),
                Kind::Digest { deep } => self.digest(id, range.key, (deep, attempt), parts, io),
                Kind::Data | Kind::Extents => {
                    self.plan(id, Query { range, kind, attempt }, info, parts, io);
                }
            };
        }
        // The block no longer has a place: the read is answered at once.
        let mut answers = Vec::new();
        let held = &mut Io { disk: &mut *io.disk, pool: io.pool, effects: &mut answers };
        match kind {
            Kind::Copy(units) => self.copy(id, of_block, units, attempt, parts, held),
            Kind::Extents => self.begin_extents(id, of_block, parts, held),
            Kind::Digest { deep } => self.digest(id, range.key, (deep, attempt), parts, held),
            Kind::Data => self.begin(id, range, parts, held),
        }
        self.hold(answers, parts);
    }
}

impl Read {
    /// Reads from the block's place the span of units that are, or may be, there.
    fn fetch_place(&mut self, id: RequestId, parts: &Parts, io: &mut Io<'_>) {
        let may_be = |state: &Option<UnitState>| matches!(state, None | Some(UnitState::Place(_)));
        let Some(first) = self.states.iter().position(may_be) else { return };
        let last = self.states.iter().rposition(may_be).expect("there is a first");
        let size = (last + 1 - first) * UNIT;
        self.place_first = first as u32;
        let location = self.stamp.info.location;
        let from = self.range.offset + (first * UNIT) as u32;
        if let Some((start, data)) = parts.journal.large_data(&self.range.key, location) {
            // Until a checkpoint, the new place can hold only this data.
            let at = (from - start) as usize;
            self.place = Some(data.slice(at..at + size));
            return;
        }
        let offset = parts.place(location) + from as u64;
        self.outstanding += 1;
        let purpose = Purpose::Read(id, ReadPart::Place);
        io.read(purpose, offset, size);
    }

    /// Gets units whose data is in the journal: from memory if possible, otherwise in runs from the disk.
    fn fetch_journal(&mut self, id: RequestId, parts: &Parts, io: &mut Io<'_>) {
        let mut unit = 0;
        while unit < self.states.len() {
            let Some(UnitState::Journal(_, lsn)) = self.states[unit] else {
                unit += 1;
                continue;
            };
            if let Some(data) = parts.journal.data(lsn, UNIT) {
                self.journal.push((unit as u32, data));
                unit += 1;
                continue;
            }
            let follows = |(index, state): &(usize, &Option<UnitState>)| {
                let expected = lsn.advance((index * UNIT) as u64);
                matches!(state, Some(UnitState::Journal(_, lsn)) if *lsn == expected)
            };
            let run = self.states[unit..].iter().enumerate().take_while(follows).count();
            self.outstanding += 1;
            let purpose = Purpose::Read(id, ReadPart::Journal(unit as u32));
            io.read(purpose, parts.journal.place(lsn), run * UNIT);
            unit += run;
        }
    }

    /// Gets the leaf, if it is needed for the state of a unit or for the part table.
    fn fetch_leaf(&mut self, id: RequestId, parts: &mut Parts, io: &mut Io<'_>) {
        if self.states.iter().all(Option::is_some) && self.table.is_some() {
            return;
        }
        let Some((_, page)) = parts.pages.leaf_of(&self.range.key) else { return };
        self.leaf = parts.leaf(page, LeafWaiter::Read(id), io);
        self.outstanding += u32::from(self.leaf.is_none());
    }

    /// Whether the read sees no prepared version.
    fn is_stable(&self, parts: &Parts) -> bool {
        parts.blocks.prepared.as_of(&self.range.key, self.range.as_of).is_empty()
    }

    fn is_overtaken(&self, parts: &Parts) -> bool {
        let now = Stamp::of_block(parts, &self.range.key, self.range.as_of);
        now != Some(self.stamp) && self.attempt < ATTEMPT_COUNT_MAX
    }

    /// Returns the part table, empty if the block has none; `None` if it is lost.
    fn table(&self) -> Option<&[u8]> {
        let stored = || {
            let record = self.leaf.as_ref()?.find(&self.range.key)?;
            Some(record.table()).filter(|table| !table.is_empty())
        };
        self.table.as_deref().or_else(stored)
    }

    /// Returns where each unit is, using the leaf for units without a state.
    fn resolve(&self) -> Vec<UnitState> {
        let record = self.leaf.as_ref().and_then(|leaf| leaf.find(&self.range.key));
        let first = self.range.offset / UNIT as u32;
        let resolve = |(index, state): (usize, &Option<UnitState>)| match (state, record) {
            (Some(state), _) => *state,
            (None, Some(record)) => state_in(record, first + index as u32),
            (None, None) => UnitState::Damaged,
        };
        self.states.iter().enumerate().map(resolve).collect()
    }

    /// Returns the content of a unit that is not zeros; `None` if it could not be read.
    fn unit(&self, index: u32, state: UnitState) -> Option<&[u8]> {
        match state {
            UnitState::Journal(..) => {
                let piece = self.journal.iter().find(|(unit, _)| *unit == index)?;
                Some(&piece.1[..])
            }
            UnitState::Place(_) => {
                let at = (index.checked_sub(self.place_first)?) as usize * UNIT;
                self.place.as_ref()?.get(at..at + UNIT)
            }
            UnitState::Zero | UnitState::Damaged => None,
        }
    }

    /// Returns the units of the range whose content does not match its checksum.
    fn mismatches(&self, states: &[UnitState]) -> UnitSet {
        let mut wrong = UnitSet::EMPTY;
        for (index, state) in states.iter().enumerate() {
            let is_right = match *state {
                UnitState::Zero => true,
                UnitState::Damaged => false,
                UnitState::Place(checksum) | UnitState::Journal(checksum, _) => {
                    self.unit(index as u32, *state).is_some_and(|data| matches(data, checksum))
                }
            };
            if !is_right {
                wrong.insert(index as u32);
            }
        }
        wrong
    }

    /// Builds the answer of a read. Requires: no unit mismatches.
    fn answer(&self, states: &[UnitState], pool: &BufferPool) -> Answer {
        let version = self.stamp.info.version;
        if states.iter().all(|state| *state == UnitState::Zero) {
            return Answer::Read { version, checksums: Vec::new(), data: pool.take(0).freeze() };
        }
        let checksums: Vec<Checksum> = states
            .iter()
            .map(|state| match state {
                UnitState::Place(checksum) | UnitState::Journal(checksum, _) => *checksum,
                UnitState::Zero | UnitState::Damaged => Checksum::ZERO_UNIT,
            })
            .collect();
        let data = match &self.place {
            // The usual case: a single read fetched everything, and nothing is copied.
            Some(place)
                if place.len() == self.range.length as usize
                    && states.iter().all(|state| matches!(state, UnitState::Place(_))) =>
            {
                place.clone()
            }
            _ => self.assemble(states, pool),
        };
        assert!(data.len() == self.range.length as usize);
        assert!(data.len() == checksums.len() * UNIT);
        Answer::Read { version, checksums, data }
    }

    /// Builds the answer of a copy: the requested units.
    fn copied(
        &self,
        asked: UnitSet,
        damaged: UnitSet,
        states: &[UnitState],
        pool: &BufferPool,
    ) -> Answer {
        let BlockInfo { version, block_size, .. } = self.stamp.info;
        let first = self.range.offset / UNIT as u32;
        let mut written = UnitSet::EMPTY;
        let mut checksums = Vec::new();
        for (unit, state) in (first..).zip(states) {
            if let UnitState::Place(checksum) | UnitState::Journal(checksum, _) = state
                && !damaged.contains(unit)
            {
                written.insert(unit);
                checksums.push(*checksum);
            }
        }
        let count = block_size.unit_count();
        assert!(written.is_within(&asked));
        let content = Content::Block {
            version,
            block_size,
            units: asked.words(count),
            written: written.words(count),
            damaged: damaged.words(count),
            data: (!checksums.is_empty()).then(|| self.gather(&written, states, pool)),
            checksums,
            table: self.table().map_or_else(Vec::new, <[u8]>::to_vec),
        };
        Answer::Copy { content }
    }

    /// Returns the data of these units, one after another.
    fn gather(&self, units: &UnitSet, states: &[UnitState], pool: &BufferPool) -> Buffer {
        let (offset, length) = units.span();
        let size = units.count() as usize * UNIT;
        let first = self.range.offset / UNIT as u32;
        let state = |unit: u32| states[(unit - first) as usize];
        let is_in_place = |unit| matches!(state(unit), UnitState::Place(_));
        if size == length as usize && units.iter().all(is_in_place) {
            // The usual case: a single read fetched everything, and nothing is copied.
            let place = self.place.as_ref().expect("its units are compared");
            let at = (offset / UNIT as u32 - first - self.place_first) as usize * UNIT;
            return place.slice(at..at + size);
        }
        let mut data = pool.take(size);
        for (to, unit) in data.chunks_exact_mut(UNIT).zip(units.iter()) {
            to.copy_from_slice(self.unit(unit - first, state(unit)).expect("it is compared"));
        }
        data.freeze()
    }

    fn assemble(&self, states: &[UnitState], pool: &BufferPool) -> Buffer {
        let mut data = pool.take(self.range.length as usize);
        for (index, state) in states.iter().enumerate() {
            let to = &mut data[index * UNIT..(index + 1) * UNIT];
            match self.unit(index as u32, *state) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0),
            }
        }
        data.freeze()
    }

    /// Builds the answer of a digest. `damaged`: units whose data was read and found damaged. If no data was
    /// read, the units already known as damaged are used instead.
    fn digest(
        &self,
        deep: bool,
        mut damaged: UnitSet,
        states: &[UnitState],
        parts: &Parts,
    ) -> Answer {
        if !deep && self.is_stable(parts) {
            damaged = parts.blocks.damage.of(&self.range.key);
        }
        let mut written = UnitSet::EMPTY;
        let mut checksums = Vec::new();
        for (unit, state) in (0..).zip(states) {
            match state {
                UnitState::Zero => {}
                UnitState::Damaged => damaged.insert(unit),
                UnitState::Place(_) | UnitState::Journal(..) if damaged.contains(unit) => {}
                UnitState::Place(checksum) | UnitState::Journal(checksum, _) => {
                    written.insert(unit);
                    checksums.push(*checksum);
                }
            }
        }
        let BlockInfo { version, block_size, .. } = self.stamp.info;
        let count = block_size.unit_count();
        let (written, damaged) = (written.words(count), damaged.words(count));
        let table = self.table().map_or_else(Vec::new, <[u8]>::to_vec);
        Answer::Digest(Digest::Block { version, written, damaged, checksums, table })
    }

    fn extents(&self, states: &[UnitState], parts: &Parts) -> Answer {
        let mut written = UnitSet::EMPTY;
        let mut damaged = match self.is_stable(parts) {
            true => parts.blocks.damage.of(&self.range.key),
            false => UnitSet::EMPTY,
        };
        for (unit, state) in states.iter().enumerate() {
            match state {
                UnitState::Zero => continue,
                UnitState::Damaged => damaged.insert(unit as u32),
                UnitState::Place(_) | UnitState::Journal(..) => {}
            }
            written.insert(unit as u32);
        }
        let count = self.stamp.info.block_size.unit_count();
        Answer::Extents {
            version: self.stamp.info.version,
            written: written.words(count),
            damaged: damaged.words(count),
        }
    }
}

/// Returns the state of a unit according to its record.
fn state_in(record: StoredRecord<'_>, unit: u32) -> UnitState {
    match record.unit(unit) {
        None => UnitState::Zero,
        Some(StoredUnit::Whole(checksum)) => UnitState::Place(checksum),
        Some(StoredUnit::Damaged) => UnitState::Damaged,
    }
}
