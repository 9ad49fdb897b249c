//! The cache of values: what clients' reads found by point lookups of the engine, absent keys too, in the memory that
//! it may take. Changes of objects look into it, and leave it as it is.
//!
//! Which values stay is decided by S3-FIFO (Yang et al., *FIFO queues are all you need for cache eviction*, SOSP
//! 2023): most values are asked for once, so a value must be asked for again before it can displace others. A hit
//! moves nothing.
//!
//! ```text
//!   fill ──▶ small (a tenth) ──asked for twice──▶ main ──not asked for──▶ gone
//!     │            └──────else──▶ ghost (hashes)   ▲ └──else: again──┘
//!     └───────────known to ghost───────────────────┘
//! ```
//!
//! Invariants
//!   1. A value is that of its key after all entries that are journaled: an entry replaces or removes what it
//!      touches, in the event that journals it (rule 7 of `docs/internals/objects.md`).
//!   2. All values with their keys, and what they cost beside, take at most `size_max` bytes. No queue has more
//!      places without a value than with one, but for a few.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use base::PoolId;
use base::hash::object_hash;
use base::planted::{self, Bug};
use format::engine::Change;

/// What an entry takes beside its key (twice) and its value: its places in the map and in the queues.
const ENTRY_COST: usize = 128;
/// The small queue has this part of the cache: one in so many.
const SMALL_SHARE: usize = 10;
/// A value of more than one in so many parts of the cache is not kept.
const LARGEST_SHARE: usize = 8;
/// How often a value was asked for is counted up to this number.
const ASKED_MAX: u8 = 3;
/// A value leaves the small queue for the main one if it was asked for so often.
const ASKED_AGAIN: u8 = 2;
/// A queue may have so many places without a value, whatever it has.
const EMPTY_PLACES: usize = 16;

/// How often the cache had what was asked for, and what it has.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct ValueCacheFigures {
    /// Lookups of clients' reads that it answered.
    pub hit_count: u64,
    /// Lookups of clients' reads that went to the engine.
    pub miss_count: u64,
    /// Bytes that it takes.
    pub used_bytes: u64,
    /// Bytes that it may take.
    pub size_bytes: u64,
}

/// The cache of values.
#[derive(Default)]
pub struct ValueCache {
    size_max: usize,
    families: BTreeMap<PoolId, BTreeMap<Vec<u8>, usize>>,
    /// By place. `None`: free.
    places: Vec<Option<Place>>,
    free: Vec<usize>,
    small: Queue,
    main: Queue,
    /// Hashes of keys that left the small queue, oldest first.
    ghosts: VecDeque<u64>,
    is_ghost: BTreeSet<u64>,
    hit_count: u64,
    miss_count: u64,
}

/// A place of a queue.
struct Place {
    family: PoolId,
    /// `None`: the value was removed, or is to be.
    entry: Option<Entry>,
    is_main: bool,
}

struct Entry {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    asked: u8,
}

#[derive(Default)]
struct Queue {
    places: VecDeque<usize>,
    /// What its values take, in bytes.
    size: usize,
    /// Number of its places that have no value any more.
    empty_count: usize,
}

impl Entry {
    fn size(&self) -> usize {
        2 * self.key.len() + self.value.as_ref().map_or(0, Vec::len) + ENTRY_COST
    }
}

impl ValueCache {
    /// Creates a cache that may take so many bytes; 0: it keeps nothing.
    pub fn new(size_max: u64) -> ValueCache {
        ValueCache { size_max: size_max as usize, ..ValueCache::default() }
    }

    /// Returns how often it had what was asked for, and what it has.
    pub fn figures(&self) -> ValueCacheFigures {
        ValueCacheFigures {
            hit_count: self.hit_count,
            miss_count: self.miss_count,
            used_bytes: self.size() as u64,
            size_bytes: self.size_max as u64,
        }
    }

    fn size(&self) -> usize {
        self.small.size + self.main.size
    }

    /// Returns the value of a key. The inner `None`: the key is absent; the outer one: it is not known.
    /// `counts`: whether this tells what should stay.
    pub fn value(&mut self, family: PoolId, key: &[u8], counts: bool) -> Option<Option<&Vec<u8>>> {
        let place = *self.families.get(&family)?.get(key)?;
        let entry = self.places[place].as_mut()?.entry.as_mut()?;
        if counts {
            entry.asked = ASKED_MAX.min(entry.asked + 1);
            self.hit_count += 1;
        }
        Some(entry.value.as_ref())
    }

    /// Takes the value of a key, which the engine was asked for, as it is after all journaled entries.
    pub fn fill(&mut self, family: PoolId, key: &[u8], value: Option<&Vec<u8>>) {
        self.miss_count += 1;
        let entry = Entry { key: key.to_vec(), value: value.cloned(), asked: 0 };
        if entry.size() > self.size_max / LARGEST_SHARE {
            return;
        }
        let keys = self.families.entry(family).or_default();
        if keys.contains_key(key) {
            // Two reads asked for it at a time.
            return;
        }
        let is_main = self.is_ghost.contains(&ghost_of(family, key));
        let place = self.free.pop().unwrap_or(self.places.len());
        keys.insert(entry.key.clone(), place);
        if place == self.places.len() {
            self.places.push(None);
        }
        let queue = if is_main { &mut self.main } else { &mut self.small };
        queue.size += entry.size();
        queue.places.push_back(place);
        self.places[place] = Some(Place { family, entry: Some(entry), is_main });
        self.shrink();
    }

    /// Takes in what an entry changes that was just journaled: what is known of its keys.
    pub fn touch(&mut self, family: PoolId, changes: &[Change]) {
        if planted::on(Bug::CachedValueKept) || !self.families.contains_key(&family) {
            return;
        }
        for change in changes {
            match change {
                Change::Put { key, value } => self.replace(family, key, value),
                Change::Delete { key } => self.remove(family, key),
                Change::DeleteRange { start, end } => {
                    let keys = self.families.get(&family).into_iter();
                    let range = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
                    let keys = keys.flat_map(|keys| keys.range::<[u8], _>(range));
                    let keys: Vec<Vec<u8>> = keys.map(|(key, _)| key.clone()).collect();
                    keys.iter().for_each(|key| self.remove(family, key));
                }
            }
        }
    }

    /// Forgets all of a family.
    pub fn forget(&mut self, family: PoolId) {
        let keys = self.families.remove(&family).unwrap_or_default();
        keys.into_values().for_each(|place| self.empty(place));
        self.drop_empty();
    }

    /// Replaces a value that is known.
    fn replace(&mut self, family: PoolId, key: &[u8], value: &[u8]) {
        let Some(place) = self.families.get(&family).and_then(|keys| keys.get(key)) else { return };
        let place = self.places[*place].as_mut().expect("it is in a queue");
        let queue = if place.is_main { &mut self.main } else { &mut self.small };
        let entry = place.entry.as_mut().expect("its key is known");
        queue.size -= entry.size();
        entry.value = Some(value.to_vec());
        queue.size += entry.size();
        match entry.size() > self.size_max / LARGEST_SHARE {
            true => self.remove(family, key),
            false => self.shrink(),
        }
    }

    fn remove(&mut self, family: PoolId, key: &[u8]) {
        if let Some(place) = self.families.get_mut(&family).and_then(|keys| keys.remove(key)) {
            self.empty(place);
            self.drop_empty();
        }
    }

    /// Takes the value from a place whose key is not known any more.
    fn empty(&mut self, place: usize) {
        let place = self.places[place].as_mut().expect("it is in a queue");
        let queue = if place.is_main { &mut self.main } else { &mut self.small };
        queue.size -= place.entry.take().expect("its key was known").size();
        queue.empty_count += 1;
    }

    /// Removes places without a value from queues that have more of them than of others.
    fn drop_empty(&mut self) {
        let ValueCache { small, main, places, free, .. } = self;
        for queue in [small, main] {
            if queue.empty_count <= EMPTY_PLACES + queue.places.len() / 2 {
                continue;
            }
            queue.empty_count = 0;
            queue.places.retain(|place| {
                let has_value = places[*place].as_ref().is_some_and(|it| it.entry.is_some());
                if !has_value {
                    places[*place] = None;
                    free.push(*place);
                }
                has_value
            });
        }
    }

    /// Makes room until all fits.
    fn shrink(&mut self) {
        while self.size() > self.size_max {
            let is_small_full = self.small.size > self.size_max / SMALL_SHARE;
            match is_small_full || self.main.size == 0 {
                true => self.evict_small(),
                false => self.evict_main(),
            }
        }
    }

    /// Moves the oldest value of the small queue into the main one, or forgets it.
    fn evict_small(&mut self) {
        let Some(at) = self.small.places.pop_front() else { return };
        let place = self.places[at].as_mut().expect("it is in a queue");
        let Some(entry) = &mut place.entry else {
            self.small.empty_count -= 1;
            return self.give_back(at);
        };
        self.small.size -= entry.size();
        if entry.asked >= ASKED_AGAIN {
            entry.asked = 0;
            place.is_main = true;
            self.main.size += entry.size();
            return self.main.places.push_back(at);
        }
        let (family, key) = (place.family, std::mem::take(&mut entry.key));
        self.note_ghost(ghost_of(family, &key));
        self.drop_key(family, &key);
        self.give_back(at);
    }

    /// Forgets the oldest value of the main queue, unless it was asked for.
    fn evict_main(&mut self) {
        let Some(at) = self.main.places.pop_front() else { return };
        let place = self.places[at].as_mut().expect("it is in a queue");
        let Some(entry) = &mut place.entry else {
            self.main.empty_count -= 1;
            return self.give_back(at);
        };
        if entry.asked > 0 {
            entry.asked -= 1;
            return self.main.places.push_back(at);
        }
        self.main.size -= entry.size();
        let (family, key) = (place.family, std::mem::take(&mut entry.key));
        self.drop_key(family, &key);
        self.give_back(at);
    }

    fn drop_key(&mut self, family: PoolId, key: &[u8]) {
        let keys = self.families.get_mut(&family).expect("it has this key");
        keys.remove(key).expect("it is known");
    }

    fn give_back(&mut self, at: usize) {
        self.places[at] = None;
        self.free.push(at);
    }

    /// Notes a key that left the small queue; as many are known as the main queue has places.
    fn note_ghost(&mut self, ghost: u64) {
        if self.is_ghost.insert(ghost) {
            self.ghosts.push_back(ghost);
        }
        while self.ghosts.len() > self.main.places.len().max(self.small.places.len()) {
            let oldest = self.ghosts.pop_front().expect("it is longer than nothing");
            self.is_ghost.remove(&oldest);
        }
    }
}

fn ghost_of(family: PoolId, key: &[u8]) -> u64 {
    object_hash(key) ^ u64::from(family.get()).rotate_left(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers from a seed (an LCG is enough here).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 33) % end
        }
    }

    impl ValueCache {
        /// Checks the invariants.
        fn verify(&self) {
            assert!(self.size() <= self.size_max, "{} bytes", self.size());
            let mut live = 0;
            for (queue, is_main) in [(&self.small, false), (&self.main, true)] {
                let places = queue.places.iter().map(|place| {
                    let place = self.places[*place].as_ref().expect("it is in a queue");
                    assert_eq!(place.is_main, is_main);
                    place
                });
                let entries: Vec<_> = places.filter_map(|it| it.entry.as_ref()).collect();
                assert_eq!(entries.iter().map(|it| it.size()).sum::<usize>(), queue.size);
                assert_eq!(queue.places.len() - entries.len(), queue.empty_count);
                assert!(queue.empty_count <= EMPTY_PLACES + 1 + queue.places.len() / 2);
                live += entries.len();
            }
            assert_eq!(self.families.values().map(BTreeMap::len).sum::<usize>(), live);
            let used = self.small.places.len() + self.main.places.len();
            assert_eq!(self.places.len(), used + self.free.len());
            assert_eq!(self.ghosts.len(), self.is_ghost.len());
        }
    }

    #[test]
    fn it_has_what_is_there_and_no_more_than_it_may() {
        let (mut hits, mut gone) = (0, 0);
        for seed in 1..200 {
            let mut numbers = Numbers(seed);
            let mut cache = ValueCache::new(numbers.below(3) * 4000);
            let mut content: BTreeMap<(PoolId, Vec<u8>), Vec<u8>> = BTreeMap::new();
            for step in 0..600_u64 {
                let family = PoolId::new(1 + numbers.below(2) as u32).expect("it is in range");
                let mut key = || vec![numbers.below(6) as u8, numbers.below(1 + step % 7) as u8];
                let (key, other) = (key(), key());
                let change = match numbers.below(12) {
                    0..3 => {
                        let value = vec![step as u8; numbers.below(700) as usize];
                        content.insert((family, key.clone()), value.clone());
                        Change::Put { key, value }
                    }
                    3 => {
                        content.remove(&(family, key.clone()));
                        Change::Delete { key }
                    }
                    4 if key < other => {
                        content.retain(|(of, it), _| *of != family || *it < key || *it >= other);
                        Change::DeleteRange { start: key, end: other }
                    }
                    5 if numbers.below(8) == 0 => {
                        content.retain(|(of, _), _| *of != family);
                        cache.forget(family);
                        continue;
                    }
                    _ => {
                        let there = content.get(&(family, key.clone()));
                        match cache.value(family, &key, true) {
                            Some(known) => {
                                assert_eq!(known, there, "seed {seed}, step {step}");
                                hits += 1;
                            }
                            None => cache.fill(family, &key, there),
                        }
                        cache.verify();
                        continue;
                    }
                };
                let before = cache.size();
                cache.touch(family, &[change]);
                gone += u64::from(cache.size() < before);
                cache.verify();
            }
        }
        assert!(hits > 10_000 && gone > 1_000, "{hits} hits, {gone} times something left");
    }

    #[test]
    fn a_scan_does_not_displace_what_is_asked_for_again() {
        let (family, value) = (PoolId::FIRST, vec![7; 100]);
        let mut cache = ValueCache::new(64 << 10);
        let ask = |cache: &mut ValueCache, number: u32| {
            let key = number.to_le_bytes();
            let is_known = cache.value(family, &key, true).is_some();
            if !is_known {
                cache.fill(family, &key, Some(&value));
            }
            is_known
        };
        for _ in 0..3 {
            (0..100).filter(|number| ask(&mut cache, *number)).count();
        }
        assert!(!(1_000..5_000).any(|number| ask(&mut cache, number)));
        let kept = (0..100).filter(|number| ask(&mut cache, *number)).count();
        assert!(kept > 90, "{kept} of 100");
        cache.verify();
    }

    #[test]
    fn places_of_removed_values_do_not_pile_up() {
        let mut cache = ValueCache::new(64 << 10);
        for number in 0..10_000_u32 {
            let key = number.to_le_bytes().to_vec();
            cache.fill(PoolId::FIRST, &key, None);
            cache.touch(PoolId::FIRST, &[Change::Delete { key }]);
        }
        assert!(cache.places.len() < 100, "{} places", cache.places.len());
    }

    #[test]
    fn a_cache_of_no_size_keeps_nothing() {
        let mut cache = ValueCache::new(0);
        cache.fill(PoolId::FIRST, b"key", None);
        assert_eq!(cache.value(PoolId::FIRST, b"key", true), None);
        assert_eq!(cache.figures().miss_count, 1);
    }
}
