//! Reads: find where each unit's content is, fetch all of it in parallel, compare, answer.
//!
//! ```text
//!   overlays ─┬─▶ place: one read of the span         ─┐
//!             ├─▶ journal: from memory, or read        ├─▶ compare each unit ─▶ answer
//!             └─▶ leaf: from the cache, or fetched    ─┘        │ changed meanwhile: again
//! ```
//!
//! A copy for another member is a read of the whole block, or of some units, whose answer names what
//! is damaged.
//!
//! Invariants
//!   1. Nothing is answered as data whose checksum does not match.
//!   2. A mismatch counts as damage only if the block did not change and no checkpoint ended while
//!      the read was under way; else the places may have been reused, and it is done again.

use std::rc::Rc;

use base::{Buffer, Checksum, UNIT_SIZE, Version};
use format::disk::{LOCATION_NONE, LeafPage, PAGE_SIZE, StoredRecord, StoredUnit, UnitSet};
use format::wire::Content;

use crate::dirty::{Layers, UnitState};
use crate::disk::Purpose;
use crate::index::BlockInfo;
use crate::pages::LeafWaiter;
use crate::store::{Parts, Store};
use crate::{Answer, BlockKey, Effect, RequestId, StoreError};

const UNIT: usize = UNIT_SIZE as usize;
/// A read that was overtaken so often by changes is answered as damaged: it is never endless.
const ATTEMPT_COUNT_MAX: u32 = 64;

/// Which part of a read an operation fetches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadPart {
    /// The span in the block's place.
    Place,
    /// Journal data, from this unit of the range on.
    Journal(u32),
}

/// What is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The range's data.
    Data,
    /// Only the states of the units.
    Extents,
    /// These units of the block, for another member.
    Copy(UnitSet),
}

/// What a read was planned on.
#[derive(PartialEq, Eq, Clone, Copy)]
pub struct Stamp {
    pub info: BlockInfo,
    checkpoint: u64,
    /// Repairs since the last checkpoint: they may leave the version as it was.
    repair_count: u32,
}

/// A read under way. Units are counted within its range.
pub struct Read {
    key: BlockKey,
    offset: u32,
    length: u32,
    kind: Kind,
    attempt: u32,
    stamp: Stamp,
    /// Where each unit is; `None`: the leaf says.
    states: Vec<Option<UnitState>>,
    leaf: Option<Rc<LeafPage>>,
    /// First unit of the span that is read from the block's place.
    place_first: u32,
    place: Option<Buffer>,
    journal: Vec<(u32, Buffer)>,
    outstanding: u32,
}

impl Store {
    /// Begins to read a range.
    pub(crate) fn read_begin(
        &mut self,
        id: RequestId,
        key: BlockKey,
        offset: u32,
        length: u32,
        effects: &mut Vec<Effect>,
    ) {
        assert!((offset as u64).is_multiple_of(UNIT_SIZE));
        assert!((length as u64).is_multiple_of(UNIT_SIZE));
        let info = self.parts().index.get(&key);
        let Some(info) = info.filter(|info| info.location != LOCATION_NONE) else {
            let version = info.map_or(Version::ZERO, |info| info.version);
            return effects.push(self.zeros(id, version));
        };
        assert!(offset as u64 + length as u64 <= info.block_size.bytes());
        self.plan(id, (key, offset, length), info, 0, Kind::Data, effects);
    }

    /// Begins to find out which units are written and damaged.
    pub(crate) fn extents_begin(
        &mut self,
        id: RequestId,
        key: BlockKey,
        effects: &mut Vec<Effect>,
    ) {
        let info = self.parts().index.get(&key);
        let Some(info) = info.filter(|info| info.location != LOCATION_NONE) else {
            let words = info.map_or(0, |info| info.block_size.unit_count());
            let none = UnitSet::EMPTY.words(words);
            let answer = Answer::Extents {
                version: info.map_or(Version::ZERO, |info| info.version),
                written: none.clone(),
                damaged: none,
            };
            return effects.push(Effect::Done { id, result: Ok(answer) });
        };
        let length = info.block_size.bytes() as u32;
        self.plan(id, (key, 0, length), info, 0, Kind::Extents, effects);
    }

    /// Begins to copy units of a block; `units`: bits, none for all.
    pub(crate) fn copy_begin(
        &mut self,
        id: RequestId,
        key: BlockKey,
        units: &[u64],
        effects: &mut Vec<Effect>,
    ) {
        let info = self.parts().index.get(&key);
        let asked = UnitSet::from_slice(units);
        self.copy(id, key, info, asked, 0, effects);
    }

    fn copy(
        &mut self,
        id: RequestId,
        key: BlockKey,
        info: Option<BlockInfo>,
        asked: UnitSet,
        attempt: u32,
        effects: &mut Vec<Effect>,
    ) {
        let nothing = |content| Effect::Done { id, result: Ok(Answer::Copy { content }) };
        let Some(info) = info else { return effects.push(nothing(Content::Gone)) };
        let BlockInfo { version, block_size, .. } = info;
        let count = block_size.unit_count();
        if info.tombstone {
            return effects.push(nothing(Content::Tombstone { version }));
        }
        let all = UnitSet::first(count);
        let units = if asked.is_empty() { all } else { asked.within(&all) };
        if info.location == LOCATION_NONE || units.is_empty() {
            let content = Content::Block {
                version,
                block_size,
                units: units.words(count),
                written: UnitSet::EMPTY.words(count),
                damaged: UnitSet::EMPTY.words(count),
                checksums: Vec::new(),
                data: None,
            };
            return effects.push(nothing(content));
        }
        let (offset, length) = units.span();
        self.plan(id, (key, offset, length), info, attempt, Kind::Copy(units), effects);
    }

    fn zeros(&self, id: RequestId, version: Version) -> Effect {
        let data = self.pool.take(0).freeze();
        Effect::Done { id, result: Ok(Answer::Read { version, checksums: Vec::new(), data }) }
    }

    fn plan(
        &mut self,
        id: RequestId,
        (key, offset, length): (BlockKey, u32, u32),
        info: BlockInfo,
        attempt: u32,
        kind: Kind,
        effects: &mut Vec<Effect>,
    ) {
        let parts = self.parts.as_ref().expect("requests come after Opened");
        let first = offset / UNIT as u32;
        let count = length / UNIT as u32;
        let layers = parts.layers(&key);
        let state = |unit: u32| match kind {
            // Between those that are copied: nothing is fetched for it.
            Kind::Copy(units) if !units.contains(unit) => Some(UnitState::Zero),
            _ => layers.get(unit),
        };
        let states: Vec<Option<UnitState>> = (first..first + count).map(state).collect();
        let mut read = Read {
            key,
            offset,
            length,
            kind,
            attempt,
            stamp: parts.stamp(layers, info),
            states,
            leaf: None,
            place_first: 0,
            place: None,
            journal: Vec::new(),
            outstanding: 0,
        };
        if kind != Kind::Extents {
            self.fetch_place(id, &mut read, effects);
            self.fetch_journal(id, &mut read, effects);
        }
        self.fetch_leaf(id, &mut read, effects);
        if read.outstanding > 0 {
            let before = self.reads.insert(id, read);
            assert!(before.is_none(), "a request's id is not reused while it is open");
        } else {
            self.read_end(id, read, effects);
        }
    }

    /// Reads the span of units that are, or may be, in the block's place.
    fn fetch_place(&mut self, id: RequestId, read: &mut Read, effects: &mut Vec<Effect>) {
        let may_be = |state: &Option<UnitState>| matches!(state, None | Some(UnitState::Place(_)));
        let Some(first) = read.states.iter().position(may_be) else { return };
        let last = read.states.iter().rposition(may_be).expect("there is a first");
        let size = (last + 1 - first) * UNIT;
        read.place_first = first as u32;
        let parts = self.parts.as_ref().expect("requests come after Opened");
        let location = read.stamp.info.location;
        let from = read.offset + (first * UNIT) as u32;
        if let Some((start, data)) = parts.journal.large_data(&read.key, location) {
            // Before a checkpoint only this data can be in the new place.
            let at = (from - start) as usize;
            read.place = Some(data.slice(at..at + size));
            return;
        }
        let offset = parts.place(location) + from as u64;
        read.outstanding += 1;
        let purpose = Purpose::Read(id, ReadPart::Place);
        self.disk.read(&self.pool, purpose, offset, size, effects);
    }

    /// Gets units whose data is in the journal: from memory, else in runs from the disk.
    fn fetch_journal(&mut self, id: RequestId, read: &mut Read, effects: &mut Vec<Effect>) {
        let parts = self.parts.as_ref().expect("requests come after Opened");
        let mut unit = 0;
        while unit < read.states.len() {
            let Some(UnitState::Journal(_, lsn)) = read.states[unit] else {
                unit += 1;
                continue;
            };
            if let Some(data) = parts.journal.data(lsn, UNIT) {
                read.journal.push((unit as u32, data));
                unit += 1;
                continue;
            }
            let follows = |(index, state): &(usize, &Option<UnitState>)| {
                let expected = lsn.advance((index * UNIT) as u64);
                matches!(state, Some(UnitState::Journal(_, lsn)) if *lsn == expected)
            };
            let run = read.states[unit..].iter().enumerate().take_while(follows).count();
            read.outstanding += 1;
            let purpose = Purpose::Read(id, ReadPart::Journal(unit as u32));
            self.disk.read(&self.pool, purpose, parts.journal.place(lsn), run * UNIT, effects);
            unit += run;
        }
    }

    /// Gets the leaf if a unit's state is only there.
    fn fetch_leaf(&mut self, id: RequestId, read: &mut Read, effects: &mut Vec<Effect>) {
        if read.states.iter().all(Option::is_some) {
            return;
        }
        let parts = self.parts.as_mut().expect("requests come after Opened");
        let Some((_, page)) = parts.pages.leaf_of(&read.key) else { return };
        read.leaf = parts.pages.cached(page);
        if read.leaf.is_none() {
            read.outstanding += 1;
            if parts.pages.wait(page, LeafWaiter::Read(id)) {
                let purpose = Purpose::Leaf { page: page.page, checksum: page.checksum };
                let offset = parts.page_place(page.page);
                self.disk.read(&self.pool, purpose, offset, PAGE_SIZE, effects);
            }
        }
    }

    /// An operation of a read ended.
    pub(crate) fn read_part(
        &mut self,
        id: RequestId,
        part: ReadPart,
        bytes: Buffer,
        effects: &mut Vec<Effect>,
    ) {
        let read = self.reads.get_mut(&id).expect("its operation was outstanding");
        match part {
            ReadPart::Place => read.place = Some(bytes),
            ReadPart::Journal(first) => {
                let units = bytes.len() / UNIT;
                let unit = |index: usize| bytes.slice(index * UNIT..(index + 1) * UNIT);
                read.journal.extend((0..units).map(|index| (first + index as u32, unit(index))));
            }
        }
        self.read_arrived(id, effects);
    }

    /// A leaf was read, for whoever waits for it.
    pub(crate) fn leaf_read(
        &mut self,
        page: u32,
        checksum: Checksum,
        bytes: &[u8],
        effects: &mut Vec<Effect>,
    ) {
        let parts = self.parts.as_mut().expect("requests come after Opened");
        let named = format::disk::PageRef { page, checksum, used: 0 };
        let tag = parts.superblock.store.tag();
        let leaf = LeafPage::decode(bytes, tag, named).ok().map(Rc::new);
        if let Some(leaf) = &leaf {
            parts.pages.keep(named, leaf.clone());
        }
        for waiter in parts.pages.end_wait(page, checksum) {
            match waiter {
                LeafWaiter::Read(id) => {
                    let read = self.reads.get_mut(&id).expect("it waits for the leaf");
                    read.leaf = leaf.clone();
                    self.read_arrived(id, effects);
                }
                LeafWaiter::Group(group) => self.leaf_loaded(group, page, leaf.clone(), effects),
            }
        }
    }

    fn read_arrived(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let read = self.reads.get_mut(&id).expect("an operation of it was outstanding");
        read.outstanding -= 1;
        if read.outstanding == 0 {
            let read = self.reads.remove(&id).expect("it was just seen");
            self.read_end(id, read, effects);
        }
    }

    /// Everything is here: compares and answers, or begins again.
    fn read_end(&mut self, id: RequestId, read: Read, effects: &mut Vec<Effect>) {
        let parts = self.parts.as_mut().expect("requests come after Opened");
        let states = read.resolve();
        let damaged = match read.kind {
            Kind::Extents => UnitSet::EMPTY,
            Kind::Data | Kind::Copy(_) => read.mismatches(&states),
        };
        let unresolved = states.contains(&UnitState::Damaged);
        if (!damaged.is_empty() || unresolved) && read.is_overtaken(parts) {
            return self.read_again(id, read, effects);
        }
        let first = read.offset / UNIT as u32;
        let mut units = UnitSet::EMPTY;
        damaged.iter().for_each(|unit| units.insert(first + unit));
        if !units.is_empty() {
            parts.found_damaged(read.key, units);
        }
        let result = match read.kind {
            Kind::Extents => Ok(read.extents(&states, parts)),
            Kind::Copy(asked) => Ok(read.copied(asked, units, &states, &self.pool)),
            Kind::Data if damaged.is_empty() => Ok(read.answer(&states, &self.pool)),
            Kind::Data => {
                let count = read.stamp.info.block_size.unit_count();
                Err(StoreError::Damaged { units: units.words(count) })
            }
        };
        let answer = Effect::Done { id, result };
        match read.attempt {
            0 => effects.push(answer),
            _ => self.hold(vec![answer]),
        }
    }

    /// Answers that wait until everything so far is durable.
    fn hold(&mut self, answers: Vec<Effect>) {
        let journal = &mut self.parts_mut().journal;
        journal.want_all();
        let tail = journal.tail();
        self.held.extend(answers.into_iter().map(|answer| (tail, answer)));
    }

    fn read_again(&mut self, id: RequestId, read: Read, effects: &mut Vec<Effect>) {
        let info = self.parts().index.get(&read.key);
        let range = (read.key, read.offset, read.length);
        let attempt = read.attempt + 1;
        let placed = info.filter(|info| info.location != LOCATION_NONE);
        let mut answers = Vec::new();
        match (read.kind, placed) {
            (Kind::Copy(units), Some(_)) => {
                return self.copy(id, read.key, info, units, attempt, effects);
            }
            (kind, Some(info)) => return self.plan(id, range, info, attempt, kind, effects),
            (Kind::Copy(units), None) => {
                self.copy(id, read.key, info, units, attempt, &mut answers);
            }
            (Kind::Extents, None) => self.extents_begin(id, read.key, &mut answers),
            (Kind::Data, None) => {
                self.read_begin(id, read.key, read.offset, read.length, &mut answers);
            }
        }
        self.hold(answers);
    }
}

impl Parts {
    /// What a read of the block is planned on now.
    pub(crate) fn stamp(&self, layers: Layers<'_>, info: BlockInfo) -> Stamp {
        let repair_count = layers.repair_count();
        Stamp { info, checkpoint: self.root.sequence, repair_count }
    }

    /// Remembers units that cannot be read.
    pub(crate) fn found_damaged(&mut self, key: BlockKey, units: UnitSet) {
        let known = self.rotten.entry(key).or_default();
        for unit in units.iter() {
            self.damaged_units += !known.contains(unit) as u64;
            known.insert(unit);
        }
    }
}

impl Read {
    fn is_overtaken(&self, parts: &Parts) -> bool {
        let stamp =
            parts.index.get(&self.key).map(|info| parts.stamp(parts.layers(&self.key), info));
        stamp != Some(self.stamp) && self.attempt < ATTEMPT_COUNT_MAX
    }

    /// Where each unit is, with what the leaf says.
    fn resolve(&self) -> Vec<UnitState> {
        let record = self.leaf.as_ref().and_then(|leaf| leaf.find(&self.key));
        let first = self.offset / UNIT as u32;
        let resolve = |(index, state): (usize, &Option<UnitState>)| match (state, record) {
            (Some(state), _) => *state,
            (None, Some(record)) => state_in(record, first + index as u32),
            (None, None) => UnitState::Damaged,
        };
        self.states.iter().enumerate().map(resolve).collect()
    }

    /// The content of a unit that is not zeros; `None`: it could not be had.
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

    /// Units of the range whose content is not what was written.
    fn mismatches(&self, states: &[UnitState]) -> UnitSet {
        let mut wrong = UnitSet::EMPTY;
        for (index, state) in states.iter().enumerate() {
            let is_right = match *state {
                UnitState::Zero => true,
                UnitState::Damaged => false,
                UnitState::Place(checksum) | UnitState::Journal(checksum, _) => self
                    .unit(index as u32, *state)
                    .is_some_and(|data| Parts::matches(data, checksum)),
            };
            if !is_right {
                wrong.insert(index as u32);
            }
        }
        wrong
    }

    /// Requires: no mismatch.
    fn answer(&self, states: &[UnitState], pool: &base::BufferPool) -> Answer {
        let version = self.stamp.info.version;
        if states.iter().all(|state| *state == UnitState::Zero) {
            return Answer::Read { version, checksums: Vec::new(), data: pool.take(0).freeze() };
        }
        let checksums = states
            .iter()
            .map(|state| match state {
                UnitState::Place(checksum) | UnitState::Journal(checksum, _) => *checksum,
                UnitState::Zero | UnitState::Damaged => Checksum::ZERO_UNIT,
            })
            .collect();
        let data = match &self.place {
            // The usual case: all of it came in one read, and goes on as it is.
            Some(place)
                if place.len() == self.length as usize
                    && states.iter().all(|state| matches!(state, UnitState::Place(_))) =>
            {
                place.clone()
            }
            _ => self.assemble(states, pool),
        };
        Answer::Read { version, checksums, data }
    }

    /// The units asked for.
    fn copied(
        &self,
        asked: UnitSet,
        damaged: UnitSet,
        states: &[UnitState],
        pool: &base::BufferPool,
    ) -> Answer {
        let BlockInfo { version, block_size, .. } = self.stamp.info;
        let first = self.offset / UNIT as u32;
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
        let content = Content::Block {
            version,
            block_size,
            units: asked.words(count),
            written: written.words(count),
            damaged: damaged.words(count),
            data: (!checksums.is_empty()).then(|| self.gather(&written, states, pool)),
            checksums,
        };
        Answer::Copy { content }
    }

    /// The data of these units, one after another.
    fn gather(&self, units: &UnitSet, states: &[UnitState], pool: &base::BufferPool) -> Buffer {
        let (offset, length) = units.span();
        let size = units.count() as usize * UNIT;
        let first = self.offset / UNIT as u32;
        let state = |unit: u32| states[(unit - first) as usize];
        let is_in_place = |unit| matches!(state(unit), UnitState::Place(_));
        if size == length as usize && units.iter().all(is_in_place) {
            // The usual case: all of it came in one read, and goes on as it is.
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

    fn assemble(&self, states: &[UnitState], pool: &base::BufferPool) -> Buffer {
        let mut data = pool.take(self.length as usize);
        for (index, state) in states.iter().enumerate() {
            let to = &mut data[index * UNIT..(index + 1) * UNIT];
            match self.unit(index as u32, *state) {
                Some(from) => to.copy_from_slice(from),
                None => to.fill(0),
            }
        }
        data.freeze()
    }

    fn extents(&self, states: &[UnitState], parts: &Parts) -> Answer {
        let mut written = UnitSet::EMPTY;
        let mut damaged = parts.rotten.get(&self.key).copied().unwrap_or_default();
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

/// What a record says of a unit.
fn state_in(record: StoredRecord<'_>, unit: u32) -> UnitState {
    match record.unit(unit) {
        None => UnitState::Zero,
        Some(StoredUnit::Whole(checksum)) => UnitState::Place(checksum),
        Some(StoredUnit::Damaged) => UnitState::Damaged,
    }
}
