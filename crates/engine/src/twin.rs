//! The twin of an engine: the same door, in memory, without threads. Whatever a real engine may do in either of two
//! orders, or lose in a crash, is chosen by the caller's random numbers.
//!
//! ```text
//!   submit ─▶ waiting ──step: take effect──▶ ended ──step: tell──▶ events
//! ```
//!
//! Invariants
//!   1. `current` of a family is `durable` with the batches of `unflushed` applied, in order.
//!   2. Lsns in `unflushed` ascend, and all are above `durable_lsn`. A crash keeps a prefix.
//!   3. Writes, creations and removals take effect, and are told, in the order of their requests. Everything else comes
//!      in any order.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use base::{Lsn, PoolId};

use crate::inflight::{Finished, Inflight, Lane};
use format::engine::Records;
use format::engine::{
    Answer, Change, Compression, EngineEffect, EngineError, EngineEvent, EngineOp, FamilyFound,
    FamilyStatistics, Identity, OpenError, Query, Scan, Statistics,
};

/// Returns a number below its argument, which is not 0: the simulator's random numbers.
pub type Choose<'a> = &'a mut dyn FnMut(u64) -> u64;

/// What is said of a record that was damaged.
const DAMAGED: &str = "the twin was told to damage it";

/// The records of a family. `None`: the record was damaged, and not written since.
type Content = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// An engine in memory. It stands for the directory, too: it outlives the crashes of its process.
pub struct Twin {
    identity: Identity,
    families: BTreeMap<PoolId, Family>,
    inflight: Inflight,
    /// Writes, creations and removals that have not taken effect.
    writes: VecDeque<EngineEffect>,
    /// Other requests that have not taken effect. Of a flush, the lsn of its family when it was requested.
    others: Vec<(EngineEffect, Lsn)>,
    ended_writes: VecDeque<EngineEvent>,
    ended_others: Vec<Finished>,
    events: Vec<Finished>,
    is_full: bool,
    is_low: bool,
    /// What was told of little space.
    is_low_told: bool,
    poison: Option<String>,
}

struct Family {
    compression: Compression,
    durable: Content,
    durable_lsn: Lsn,
    unflushed: VecDeque<(Lsn, Vec<Change>)>,
    current: Content,
    /// The lsn of the write that failed, until it is repeated.
    failed: Option<Lsn>,
    /// A compaction would meet damage.
    has_damage: bool,
    /// A compaction met it.
    is_damaged: bool,
}

impl Family {
    fn new(compression: Compression) -> Family {
        Family {
            compression,
            durable: Content::new(),
            durable_lsn: Lsn::ZERO,
            unflushed: VecDeque::new(),
            current: Content::new(),
            failed: None,
            has_damage: false,
            is_damaged: false,
        }
    }

    fn copy(&self) -> Family {
        Family {
            durable: self.durable.clone(),
            durable_lsn: self.durable_lsn,
            current: self.current.clone(),
            has_damage: self.has_damage,
            is_damaged: self.is_damaged,
            ..Family::new(self.compression)
        }
    }

    fn lsn(&self) -> Lsn {
        self.unflushed.back().map_or(self.durable_lsn, |(lsn, _)| *lsn)
    }

    /// Makes the first `count` unflushed batches durable.
    fn flush(&mut self, count: usize) {
        for (lsn, changes) in self.unflushed.drain(..count) {
            changes.iter().for_each(|change| apply(&mut self.durable, change));
            self.durable_lsn = lsn;
        }
    }

    /// Restores the first invariant after `durable` or `unflushed` lost something.
    fn rebuild(&mut self) {
        self.current = self.durable.clone();
        for (_, changes) in &self.unflushed {
            changes.iter().for_each(|change| apply(&mut self.current, change));
        }
    }

    /// Answers a query. Of a list, at most so many records.
    fn answer(
        &self,
        family: PoolId,
        query: &Query,
        listed_max: usize,
    ) -> Result<Answer, EngineError> {
        if let Some(scan) = query.scan() {
            return self.scan(family, &scan, listed_max);
        }
        let Query::Get { key } = query else { unreachable!("all others scan") };
        match self.current.get(key) {
            Some(None) => {
                let (start, end) = (key.clone(), Some(key_after(key)));
                Err(EngineError::Corrupt { family, start, end, text: DAMAGED.to_owned() })
            }
            found => Ok(Answer::Value(found.cloned().flatten())),
        }
    }

    fn scan(
        &self,
        family: PoolId,
        scan: &Scan<'_>,
        listed_max: usize,
    ) -> Result<Answer, EngineError> {
        let (mut records, mut from) = (Records::default(), scan.start.to_vec());
        let behind = scan.end.map_or(Bound::Unbounded, Bound::Excluded);
        while scan.end.is_none_or(|end| &from[..] < end)
            && let range = (Bound::Included(&from[..]), behind)
            && let Some((key, value)) = self.current.range::<[u8], _>(range).next()
        {
            let Some(value) = value else {
                let (start, end) = (key.clone(), scan.end.map(<[u8]>::to_vec));
                return Err(EngineError::Corrupt { family, start, end, text: DAMAGED.to_owned() });
            };
            let is_cut = scan.folding.is_some() && records.count() >= listed_max;
            if (is_cut || scan.is_full(&records)) && !records.is_empty() {
                return Ok(Answer::Records { records, more: true });
            }
            records.push(key, value);
            from = match scan.common_prefix(key, value).map(format::engine::behind) {
                None => key_after(key),
                Some(Some(behind)) => behind,
                Some(None) => break,
            };
        }
        Ok(Answer::Records { records, more: false })
    }
}

fn key_after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

fn apply(content: &mut Content, change: &Change) {
    match change {
        Change::Put { key, value } => {
            content.insert(key.clone(), Some(value.clone()));
        }
        Change::Delete { key } => {
            content.remove(key);
        }
        Change::DeleteRange { start, end } => {
            let is_in = |key: &&Vec<u8>| *key < end;
            let from = (Bound::Included(&start[..]), Bound::Unbounded);
            let found = content.range::<[u8], _>(from).map(|(key, _)| key).take_while(is_in);
            for key in found.cloned().collect::<Vec<_>>() {
                content.remove(&key);
            }
        }
    }
}

impl Twin {
    /// Creates an engine without families.
    pub fn create(identity: Identity) -> Twin {
        Twin {
            identity,
            families: BTreeMap::new(),
            inflight: Inflight::default(),
            writes: VecDeque::new(),
            others: Vec::new(),
            ended_writes: VecDeque::new(),
            ended_others: Vec::new(),
            events: Vec::new(),
            is_full: false,
            is_low: false,
            is_low_told: false,
            poison: None,
        }
    }

    /// Opens the engine after its creation, or after a crash.
    pub fn open(&mut self, identity: Identity) -> Result<Vec<FamilyFound>, OpenError> {
        if identity != self.identity {
            let found = self.identity;
            return Err(OpenError::Foreign(format!("expected {identity}, found {found}")));
        }
        let families = self.families.iter();
        let found = families.map(|(family, state)| FamilyFound {
            family: *family,
            compression: state.compression,
            lsn: state.lsn(),
            is_damaged: state.is_damaged,
        });
        Ok(found.collect())
    }

    /// Returns what its directory holds. Requires: its process has died.
    pub fn copy(&self) -> Twin {
        let mut copy = Twin::create(self.identity);
        for (pool, family) in &self.families {
            assert!(family.unflushed.is_empty(), "a crash forgets it");
            copy.families.insert(*pool, family.copy());
        }
        copy
    }

    /// Returns the families that there are.
    pub fn families(&self) -> impl Iterator<Item = PoolId> {
        self.families.keys().copied()
    }

    /// Returns the records of a family as reads see them, without the damaged ones; none if there is no such
    /// family.
    pub fn records(&self, family: PoolId) -> impl Iterator<Item = (&[u8], &[u8])> {
        let records = self.families.get(&family).into_iter().flat_map(|state| &state.current);
        records.filter_map(|(key, value)| Some((&key[..], value.as_deref()?)))
    }

    /// Accepts a request. Panics if it breaks the limits of the door.
    pub fn submit(&mut self, effect: EngineEffect, choose: Choose<'_>) {
        effect.verify();
        let lane = Lane::of(&effect);
        self.inflight.begin(lane);
        match &effect {
            EngineEffect::Read { op, from_memory: true, .. } => {
                let event = if choose(3) == 0 && self.poison.is_none() {
                    let result = Err(EngineError::WouldBlock);
                    EngineEvent::Read { op: *op, contains: Lsn::ZERO, result }
                } else {
                    self.take_effect(effect, Lsn::ZERO, choose)
                };
                self.events.push((Some(lane), event));
            }
            EngineEffect::Flush { family, .. } => {
                let lsn = self.families.get(family).map_or(Lsn::ZERO, Family::lsn);
                self.others.push((effect, lsn));
            }
            _ if lane == Lane::Write => self.writes.push_back(effect),
            _ => self.others.push((effect, Lsn::ZERO)),
        }
    }

    /// Lets one thing happen, chosen at random: a request takes effect, or its event is told. Returns false
    /// if there is nothing left to happen.
    pub fn step(&mut self, choose: Choose<'_>) -> bool {
        let waiting = [
            usize::from(!self.writes.is_empty()),
            self.others.len(),
            usize::from(!self.ended_writes.is_empty()),
            self.ended_others.len(),
        ];
        let count: usize = waiting.iter().sum();
        if count == 0 {
            return false;
        }
        let mut index = choose(count as u64) as usize;
        let mut kind = 0;
        while index >= waiting[kind] {
            index -= waiting[kind];
            kind += 1;
        }
        match kind {
            0 => {
                let effect = self.writes.pop_front().expect("it was counted");
                let event = self.take_effect(effect, Lsn::ZERO, choose);
                self.ended_writes.push_back(event);
            }
            1 => {
                let (effect, lsn) = self.others.swap_remove(index);
                let lane = Lane::of(&effect);
                let event = self.take_effect(effect, lsn, choose);
                self.ended_others.push((Some(lane), event));
            }
            2 => {
                let event = self.ended_writes.pop_front().expect("it was counted");
                self.events.push((Some(Lane::Write), event));
            }
            _ => {
                let ended = self.ended_others.swap_remove(index);
                self.events.push(ended);
            }
        }
        true
    }

    /// Adds the events that were told since the last call.
    pub fn take_events(&mut self, events: &mut Vec<EngineEvent>) {
        for (lane, event) in self.events.drain(..) {
            if let Some(lane) = lane {
                self.inflight.end(lane);
            }
            events.push(event);
        }
    }

    /// The engine flushes some batches of some family by itself. Returns whether there were any.
    pub fn flush_some(&mut self, choose: Choose<'_>) -> bool {
        if self.is_full || self.poison.is_some() {
            return false;
        }
        let mut unflushed: Vec<_> =
            self.families.iter_mut().filter(|(_, state)| !state.unflushed.is_empty()).collect();
        if unflushed.is_empty() {
            return false;
        }
        let index = choose(unflushed.len() as u64) as usize;
        let (family, state) = &mut unflushed[index];
        let count = 1 + choose(state.unflushed.len() as u64) as usize;
        state.flush(count);
        let event = EngineEvent::Flushed { family: **family, lsn: state.durable_lsn };
        self.events.push((None, event));
        true
    }

    /// The process dies: requests and events are gone, and each family keeps a random number of its unflushed
    /// batches.
    pub fn crash(&mut self, choose: Choose<'_>) {
        self.inflight = Inflight::default();
        self.writes.clear();
        self.others.clear();
        self.ended_writes.clear();
        self.ended_others.clear();
        self.events.clear();
        self.is_low_told = false;
        self.tell_low();
        self.poison = None;
        for state in self.families.values_mut() {
            let kept = choose(state.unflushed.len() as u64 + 1) as usize;
            state.flush(kept);
            state.unflushed.clear();
            state.failed = None;
            state.rebuild();
        }
    }

    /// The file system under the engine has no space from now on, or has some again.
    pub fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
    }

    /// Little space is left from now on, or no longer.
    pub fn set_low(&mut self, is_low: bool) {
        self.is_low = is_low;
        self.tell_low();
    }

    /// Tells whether little space is left, if that has changed. Without families it needs none.
    fn tell_low(&mut self) {
        let is_low = self.is_low && !self.families.is_empty();
        if std::mem::replace(&mut self.is_low_told, is_low) != is_low {
            self.events.push((None, EngineEvent::Space { is_low }));
        }
    }

    /// Work in the background fails: the engine is poisoned.
    pub fn fail(&mut self, text: &str) {
        if self.poison.is_none() {
            self.poison = Some(text.to_owned());
            self.events.push((None, EngineEvent::Poisoned { text: text.to_owned() }));
        }
    }

    /// Damages the durable records of a range. Reads of them fail until they are written again. Compactions
    /// meet the damage as long as the family is there. Returns how many records there are.
    pub fn corrupt(&mut self, family: PoolId, start: &[u8], end: &[u8]) -> usize {
        let Some(state) = self.families.get_mut(&family) else { return 0 };
        let range = (Bound::Included(start), Bound::Excluded(end));
        let mut count = 0;
        for (_, value) in state.durable.range_mut::<[u8], _>(range) {
            *value = None;
            count += 1;
        }
        state.has_damage |= count > 0;
        state.rebuild();
        count
    }

    /// The engine compacts a family with damage, if there is one that it still compacts: the engine is
    /// poisoned. Returns whether there was one.
    pub fn compact_damage(&mut self, choose: Choose<'_>) -> bool {
        if self.poison.is_some() {
            return false;
        }
        let mut met: Vec<_> = self
            .families
            .iter_mut()
            .filter(|(_, state)| state.has_damage && !state.is_damaged)
            .collect();
        if met.is_empty() {
            return false;
        }
        let index = choose(met.len() as u64) as usize;
        let (family, state) = &mut met[index];
        state.is_damaged = true;
        let text = format!("a compaction of pool {family} met damage");
        self.fail(&text);
        true
    }

    /// Carries out a request, and returns its event.
    fn take_effect(&mut self, effect: EngineEffect, lsn: Lsn, choose: Choose<'_>) -> EngineEvent {
        match effect {
            EngineEffect::Create { op, family, compression } => {
                EngineEvent::Done { op, result: self.create_family(family, compression) }
            }
            EngineEffect::Remove { op, family } => {
                EngineEvent::Done { op, result: self.remove_family(family) }
            }
            EngineEffect::Write { op, family, lsn, changes } => {
                EngineEvent::Done { op, result: self.write(family, lsn, changes.to_vec()) }
            }
            EngineEffect::Flush { op, family } => {
                EngineEvent::Done { op, result: self.flush(family, lsn, choose) }
            }
            EngineEffect::Read { op, family, queries, .. } => {
                self.read(op, family, &queries, choose)
            }
            EngineEffect::Statistics { op } => {
                EngineEvent::Statistics { op, statistics: self.statistics() }
            }
        }
    }

    fn usable(&self) -> Result<(), EngineError> {
        match &self.poison {
            Some(text) => Err(EngineError::Poisoned { text: text.clone() }),
            None => Ok(()),
        }
    }

    fn writable(&self) -> Result<(), EngineError> {
        self.usable()?;
        if self.is_full { Err(EngineError::Full) } else { Ok(()) }
    }

    fn create_family(&mut self, family: PoolId, wanted: Compression) -> Result<(), EngineError> {
        self.usable()?;
        if let Some(state) = self.families.get(&family) {
            let found = state.compression;
            let is_same = found == wanted;
            return if is_same { Ok(()) } else { Err(EngineError::OtherCompression { found }) };
        }
        self.writable()?;
        self.families.insert(family, Family::new(wanted));
        self.tell_low();
        Ok(())
    }

    fn remove_family(&mut self, family: PoolId) -> Result<(), EngineError> {
        self.usable()?;
        if self.families.contains_key(&family) {
            self.writable()?;
            self.families.remove(&family);
            self.tell_low();
        }
        Ok(())
    }

    fn write(&mut self, family: PoolId, lsn: Lsn, changes: Vec<Change>) -> Result<(), EngineError> {
        self.usable()?;
        let state = self.families.get_mut(&family).ok_or(EngineError::NoFamily)?;
        if lsn <= state.lsn() {
            return Ok(());
        }
        if self.is_full || state.failed.is_some_and(|failed| failed < lsn) {
            state.failed.get_or_insert(lsn);
            return Err(EngineError::Full);
        }
        state.failed = state.failed.filter(|failed| *failed > lsn);
        changes.iter().for_each(|change| apply(&mut state.current, change));
        state.unflushed.push_back((lsn, changes));
        Ok(())
    }

    /// Makes the batches up to `requested` durable, and perhaps more.
    fn flush(
        &mut self,
        family: PoolId,
        requested: Lsn,
        choose: Choose<'_>,
    ) -> Result<(), EngineError> {
        self.writable()?;
        let state = self.families.get_mut(&family).ok_or(EngineError::NoFamily)?;
        let least = state.unflushed.iter().take_while(|(lsn, _)| *lsn <= requested).count();
        let count = least + choose((state.unflushed.len() - least) as u64 + 1) as usize;
        if count > 0 {
            state.flush(count);
            let event = EngineEvent::Flushed { family, lsn: state.durable_lsn };
            self.events.push((None, event));
        }
        Ok(())
    }

    fn read(
        &self,
        op: EngineOp,
        family: PoolId,
        queries: &[Query],
        choose: Choose<'_>,
    ) -> EngineEvent {
        // A list may end early.
        let mut listed_max = |query: &Query| match query {
            Query::List { .. } if choose(4) == 0 => 1 + choose(4) as usize,
            _ => usize::MAX,
        };
        let state = self.families.get(&family);
        let contains = state.map_or(Lsn::ZERO, Family::lsn);
        let mut answers = || {
            self.usable()?;
            let state = state.ok_or(EngineError::NoFamily)?;
            let answer = |query: &Query| state.answer(family, query, listed_max(query));
            queries.iter().map(answer).collect()
        };
        EngineEvent::Read { op, contains, result: answers() }
    }

    fn statistics(&self) -> Statistics {
        let size = |content: &Content| -> u64 {
            let value_size = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
            content.iter().map(|(key, value)| (key.len() + value_size(value)) as u64).sum()
        };
        let families = self.families.iter().map(|(family, state)| FamilyStatistics {
            family: *family,
            compression: state.compression,
            lsn: state.lsn(),
            flushed_lsn: state.durable_lsn,
            unflushed_lsn: state.unflushed.front().map(|(lsn, _)| *lsn),
            is_damaged: state.is_damaged,
            disk_size: size(&state.durable),
            memtable_size: state
                .unflushed
                .iter()
                .flat_map(|(_, changes)| changes)
                .map(|change| change.size() as u64)
                .sum(),
            record_count_estimate: state.current.len() as u64,
            compaction_size_pending: 0,
        });
        Statistics { families: families.collect(), ..Statistics::default() }
    }
}
