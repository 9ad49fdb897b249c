//! The model of pools that keep parity: the prepared and committed versions of each PG, and the content of
//! each block at each of its versions.
//!
//! ```text
//!   requested ─▶ alive ──commit, settle──▶ committed
//!                  └──settle, replaced, crash──▶ gone
//! ```
//!
//! Invariants
//!   1. After a crash, a prefix of a PG's versions remains, which includes all certain versions.
//!   2. The committed version of a PG never falls below the one that a certain journal entry records.

use std::collections::{BTreeMap, BTreeSet};

use base::{BlockSize, Epoch, PgId, Version};
use blockstore::{AsOf, BlockKey, PgFacts};

/// The versions of all PGs.
#[derive(Default)]
pub struct Versions {
    /// The PGs.
    pub pgs: BTreeMap<PgId, Pg>,
    /// The blocks.
    pub keys: BTreeMap<BlockKey, Key>,
}

/// The versions of one PG.
#[derive(Default)]
pub struct Pg {
    /// The last version given.
    pub last: Version,
    /// The highest counter of all versions ever given: no version is given twice, even if it was taken
    /// back.
    given: u64,
    /// The version up to which everything is committed.
    pub committed: Version,
    /// The epoch of new versions.
    pub epoch: Epoch,
    /// Whether a version of the current epoch was refused.
    pub is_refused: bool,
    /// Whether damage made the PG suspect: its content is unknown, and it is only read.
    pub is_given_up: bool,
    /// Whether peering is in progress: versions are being prepared, and a settle follows.
    pub is_peering: bool,
    /// The committed version that the newest certain journal entry records.
    said: Version,
    /// The last version at the time of the last settle or restart.
    start: Version,
    /// The highest floor requested: tombstones up to it may be dropped.
    floor: Version,
    entries: BTreeMap<Version, Entry>,
    settle: Option<Settling>,
    /// The value of the PG's note, once it is certain.
    note: u64,
}

/// One version of a PG.
#[derive(Clone)]
struct Entry {
    key: Option<BlockKey>,
    is_certain: bool,
    /// Whether it was answered as written: then only a power failure may lose it.
    is_written: bool,
    /// The PG's committed version when this version was requested.
    says: Version,
    /// The number of bytes that it uses of the space for prepared versions.
    cost: u64,
    /// Of a version prepared by peering: the versions of the block that it replaced.
    replaced: Option<Vec<(Version, Entry)>>,
}

/// An unanswered settle, with the state before it.
struct Settling {
    upto: Version,
    note: u64,
    last: Version,
    committed: Version,
    removed: Vec<(Version, Entry)>,
}

/// One block.
pub struct Key {
    /// Its PG.
    pub pg: PgId,
    /// Its size.
    pub size: BlockSize,
    alive: BTreeSet<Version>,
    contents: BTreeMap<Version, Held>,
    /// A tombstone over which a version was prepared: it stays as long as such a version.
    pinned: Option<Version>,
}

/// The content of a block at a version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// The value of each unit; 0 stands for zeros.
    pub units: Vec<u64>,
    /// Whether the block is deleted.
    pub is_deleted: bool,
    /// The value of its part table; 0: it has no part table.
    pub table: u64,
}

impl Pg {
    /// Returns whether versions or a settle of the PG are unanswered.
    pub fn is_busy(&self) -> bool {
        self.settle.is_some() || self.entries.values().any(|entry| !entry.is_certain)
    }

    /// Returns whether a settle is unanswered.
    pub fn is_settling(&self) -> bool {
        self.settle.is_some()
    }

    /// Returns the version up to which all versions are certain.
    pub fn certain(&self) -> Version {
        let in_order = self.entries.iter().filter(|(_, entry)| entry.replaced.is_none());
        let certain = in_order.take_while(|(_, entry)| entry.is_certain);
        let last = certain.last().map_or(Version::ZERO, |(version, _)| *version);
        last.max(self.start)
    }

    /// Returns the highest version ever given, in the epoch of the last version.
    pub fn highest(&self) -> Version {
        Version { counter: self.last.counter.max(self.given), ..self.last }
    }

    /// Returns the versions that peering has prepared.
    fn of_peering(&self) -> Vec<Version> {
        let entries = self.entries.iter().filter(|(_, entry)| entry.replaced.is_some());
        entries.map(|(version, _)| *version).collect()
    }
}

impl Key {
    /// Returns the newest version at or below `committed`.
    fn stable(&self, committed: Version) -> Version {
        self.alive.range(..=committed).next_back().copied().unwrap_or_default()
    }

    /// Returns the content of the block at one of its versions.
    pub fn held(&self, version: Version) -> Held {
        let units = vec![0; self.size.unit_count() as usize];
        let nothing = Held { units, is_deleted: false, table: 0 };
        self.contents.get(&version).cloned().unwrap_or(nothing)
    }
}

impl Versions {
    /// Adds a block at its first use.
    pub fn block(&mut self, key: BlockKey, pg: PgId, size: BlockSize) {
        self.pgs.entry(pg).or_insert_with(|| Pg { epoch: Epoch::new(1), ..Pg::default() });
        let (alive, contents) = (BTreeSet::new(), BTreeMap::new());
        self.keys.entry(key).or_insert(Key { pg, size, alive, contents, pinned: None });
    }

    fn pg_mut(&mut self, pg: PgId) -> &mut Pg {
        self.pgs.get_mut(&pg).expect("made with its first block")
    }

    /// Returns the version that a read of the block sees.
    pub fn version_as_of(&self, key: &BlockKey, as_of: AsOf) -> Version {
        let block = &self.keys[key];
        let stable = block.stable(self.pgs[&block.pg].committed);
        let upto = match as_of {
            AsOf::View => return block.alive.last().copied().unwrap_or_default(),
            AsOf::Stable => return stable,
            AsOf::Version(upto) => upto,
        };
        block.alive.range(..=upto).next_back().copied().unwrap_or_default().max(stable)
    }

    /// Returns whether the content of the block is unknown, because damage made its PG suspect.
    pub fn is_given_up(&self, key: &BlockKey) -> bool {
        self.pgs[&self.keys[key].pg].is_given_up
    }

    /// Returns whether the block has uncommitted versions.
    pub fn has_prepared(&self, key: &BlockKey) -> bool {
        let committed = self.pgs[&self.keys[key].pg].committed;
        self.keys[key].alive.last().is_some_and(|last| *last > committed)
    }

    /// Returns the version after the PG's next version; requesting it leaves a gap. `None`: the next
    /// version starts an epoch.
    pub fn behind_gap(&self, pg: PgId) -> Option<Version> {
        let of = &self.pgs[&pg];
        let next = of.last.next_in(of.epoch);
        (of.last.epoch == of.epoch).then(|| next.next_in(of.epoch))
    }

    /// Returns the total cost of the PG's uncommitted versions, in bytes.
    pub fn prepared_bytes(&self, pg: PgId) -> u64 {
        let of = &self.pgs[&pg];
        let entries = of.entries.iter().filter(|(version, _)| **version > of.committed);
        entries.map(|(_, entry)| entry.cost).sum()
    }

    /// Gives the next version of the PG: to a block, whose content it sets to `held`, or to no block.
    /// `cost`: see [`Versions::prepared_bytes`].
    pub fn give(&mut self, pg: PgId, change: Option<(BlockKey, Held)>, cost: u64) -> Version {
        let of = self.pg_mut(pg);
        let version = of.last.next_in(of.epoch);
        of.last = version;
        self.add(pg, version, change, None);
        let entry = self.pg_mut(pg).entries.get_mut(&version).expect("just added");
        entry.cost = cost;
        version
    }

    /// Records that a floor was requested.
    pub fn raise_floor(&mut self, pg: PgId, floor: Version) {
        let of = self.pg_mut(pg);
        of.floor = of.floor.max(floor);
    }

    /// Returns whether a certain journal entry records that the version is committed.
    pub fn is_said(&self, pg: PgId, version: Version) -> bool {
        version <= self.pgs[&pg].said
    }

    /// Returns the block to which a version belongs.
    pub fn key_of(&self, pg: PgId, version: Version) -> Option<BlockKey> {
        self.pgs[&pg].entries.get(&version)?.key
    }

    /// Records the stable version that the store reports for a block with prepared versions. If it is a
    /// tombstone, the tombstone stays as long as the block has a prepared version.
    pub fn pin(&mut self, key: &BlockKey, found: Version) {
        let committed = self.pgs[&self.keys[key].pg].committed;
        let has_prepared = self.has_prepared(key);
        let block = self.keys.get_mut(key).expect("named before");
        let is_it = found == block.stable(committed) && block.held(found).is_deleted;
        block.pinned = Some(found).filter(|_| is_it && has_prepared);
    }

    /// Returns whether the version that the store reports for a block is right: it is the expected
    /// version, or zero where the expected tombstone may have been dropped.
    pub fn is_right(&self, key: &BlockKey, found: Version, expected: Version) -> bool {
        found == expected || (found == Version::ZERO && self.may_be_gone(key, expected))
    }

    fn may_be_gone(&self, key: &BlockKey, version: Version) -> bool {
        let block = &self.keys[key];
        let of = &self.pgs[&block.pg];
        let is_pinned = block.pinned == Some(version) && self.has_prepared(key);
        block.held(version).is_deleted && version <= of.floor.min(of.committed) && !is_pinned
    }

    /// Prepares a version of a block in peering, which replaces all versions of the block above
    /// `above`.
    pub fn replace(
        &mut self,
        pg: PgId,
        version: Version,
        (key, held): (BlockKey, Held),
        above: Version,
    ) {
        let of = self.pgs.get_mut(&pg).expect("made with its first block");
        let block = self.keys.get_mut(&key).expect("named before");
        let mut replaced = Vec::new();
        for number in block.alive.split_off(&Version { counter: above.counter + 1, ..above }) {
            let entry = of.entries.remove(&number).expect("a prepared version has an entry");
            replaced.push((number, entry));
        }
        self.add(pg, version, Some((key, held)), Some(replaced));
    }

    fn add(
        &mut self,
        pg: PgId,
        version: Version,
        change: Option<(BlockKey, Held)>,
        replaced: Option<Vec<(Version, Entry)>>,
    ) {
        let key = change.as_ref().map(|(key, _)| *key);
        if let Some((key, held)) = change {
            let block = self.keys.get_mut(&key).expect("named before");
            block.alive.insert(version);
            block.contents.insert(version, held);
        }
        let of = self.pg_mut(pg);
        of.given = of.given.max(version.counter);
        let says = of.committed;
        let (is_certain, is_written, cost) = (false, false, 0);
        let entry = Entry { key, is_certain, is_written, says, cost, replaced };
        of.entries.insert(version, entry);
    }

    /// Records that a version was answered: as durable (`is_durable`), or only as written.
    pub fn answer(&mut self, pg: PgId, version: Version, is_durable: bool) {
        let of = self.pg_mut(pg);
        let Some(entry) = of.entries.get_mut(&version) else { return };
        entry.is_certain |= is_durable;
        entry.is_written = true;
        if is_durable {
            of.said = of.said.max(entry.says);
        }
    }

    /// Records that a journal entry other than a version is durable; `says` was the committed version
    /// at its request.
    pub fn answer_other(&mut self, pg: PgId, says: Version) {
        let of = self.pg_mut(pg);
        of.said = of.said.max(says);
    }

    /// Removes a version that was refused. Returns false if it had already been removed.
    pub fn refuse(&mut self, pg: PgId, version: Version) -> Result<bool, String> {
        let of = self.pg_mut(pg);
        let Some(entry) = of.entries.get(&version) else { return Ok(false) };
        if entry.is_certain || entry.is_written {
            return Err(format!("{version} of PG {pg} is refused after it was certain"));
        }
        let is_peering = entry.replaced.is_some();
        of.is_refused |= !is_peering;
        self.remove(pg, version);
        if is_peering {
            return Ok(true);
        }
        let of = self.pg_mut(pg);
        let in_order = of.entries.iter().filter(|(_, entry)| entry.replaced.is_none());
        let last = in_order.map(|(version, _)| *version).next_back().unwrap_or_default();
        of.last = last.max(of.start);
        Ok(true)
    }

    /// Removes a version, and restores the versions that it replaced.
    fn remove(&mut self, pg: PgId, version: Version) {
        let of = self.pgs.get_mut(&pg).expect("made with its first block");
        let Some(entry) = of.entries.remove(&version) else { return };
        let Some(key) = entry.key else { return };
        let block = self.keys.get_mut(&key).expect("named before");
        block.alive.remove(&version);
        block.pinned = None;
        for (number, entry) in entry.replaced.unwrap_or_default() {
            block.alive.insert(number);
            of.entries.insert(number, entry);
        }
    }

    /// Commits all versions up to `upto`.
    pub fn commit(&mut self, pg: PgId, upto: Version) {
        let of = self.pg_mut(pg);
        of.committed = of.committed.max(upto);
    }

    /// Records the request of a settle, with a note of this value. Returns the number of versions that
    /// it takes back.
    pub fn settle(&mut self, pg: PgId, upto: Version, note: u64) -> usize {
        let of = self.pgs.get_mut(&pg).expect("made with its first block");
        let mut removed = Vec::new();
        let above: Vec<Version> = of.entries.keys().copied().filter(|of| *of > upto).collect();
        for version in above {
            let entry = of.entries.remove(&version).expect("just seen");
            if let Some(key) = entry.key {
                self.keys.get_mut(&key).expect("named before").alive.remove(&version);
            }
            removed.push((version, entry));
        }
        let (last, committed) = (of.last, of.committed);
        let count = removed.len();
        self.keys.values_mut().filter(|key| key.pg == pg).for_each(|key| key.pinned = None);
        of.settle = Some(Settling { upto, note, last, committed, removed });
        (of.last, of.committed) = (upto, upto);
        count
    }

    /// Records that the settle is durable.
    pub fn settled(&mut self, pg: PgId) {
        let of = self.pg_mut(pg);
        let Some(settle) = of.settle.take() else { return };
        of.note = settle.note;
        of.said = settle.upto;
        of.start = settle.upto;
        of.epoch = of.epoch.next();
        of.entries.retain(|version, _| *version > settle.upto);
        (of.is_refused, of.is_peering) = (false, false);
    }

    /// Records that all versions up to `upto` are durable.
    pub fn synced(&mut self, pg: PgId, upto: Version) {
        let of = self.pg_mut(pg);
        let mut said = of.said;
        for (_, entry) in of.entries.range_mut(..=upto) {
            entry.is_certain = true;
            said = said.max(entry.says);
        }
        of.said = said;
    }

    /// Handles a crash of the store. `keeps_written`: versions that were answered as written survive.
    pub fn crash(&mut self, keeps_written: bool) {
        self.keys.values_mut().for_each(|key| key.pinned = None);
        for of in self.pgs.values_mut() {
            let removed = of.settle.iter_mut().flat_map(|settle| &mut settle.removed);
            let removed = removed.map(|(_, entry)| entry);
            let all = of.entries.values_mut().chain(removed);
            all.for_each(|entry| entry.is_written &= keeps_written);
        }
    }

    /// Gives up a PG: its content is unknown from now on.
    pub fn give_up(&mut self, pg: PgId) {
        let of = self.pg_mut(pg);
        of.is_given_up = true;
        of.entries.clear();
        of.settle = None;
    }

    /// Compares each PG with the restarted store, and adopts the state of the store. `note_of` returns
    /// the value of a PG's note, or 0 if there is no note.
    pub fn resolve(
        &mut self,
        facts_of: impl Fn(PgId) -> PgFacts,
        version_of: impl Fn(&BlockKey, AsOf) -> Version,
        note_of: impl Fn(PgId) -> u64,
    ) -> Result<(), String> {
        let known = self.pgs.iter().filter(|(_, of)| !of.is_given_up);
        let pgs: Vec<PgId> = known.map(|(pg, _)| *pg).collect();
        for pg in pgs {
            self.resolve_pg(pg, facts_of(pg), note_of(pg), &version_of)
                .map_err(|why| format!("PG {pg} after the restart: {why}; {:?}", facts_of(pg)))?;
        }
        for key in self.keys.keys().filter(|key| !self.is_given_up(key)) {
            for as_of in [AsOf::View, AsOf::Stable] {
                let (found, expected) = (version_of(key, as_of), self.version_as_of(key, as_of));
                if !self.is_right(key, found, expected) {
                    return Err(format!("{key:?}, {as_of:?}: {found} instead of {expected}"));
                }
            }
        }
        Ok(())
    }

    fn resolve_pg(
        &mut self,
        pg: PgId,
        facts: PgFacts,
        note: u64,
        version_of: &impl Fn(&BlockKey, AsOf) -> Version,
    ) -> Result<(), String> {
        if facts.is_suspect {
            return Err("it is suspect".into());
        }
        self.resolve_settle(pg, facts, note)?;
        for entry in self.pg_mut(pg).entries.values_mut() {
            entry.is_certain |= entry.is_written;
        }
        // Versions prepared by peering are out of order: the version of the block shows whether one
        // survived.
        for version in self.pgs[&pg].of_peering() {
            let Some(entry) = self.pgs[&pg].entries.get(&version) else { continue };
            let key = entry.key.expect("peering prepares blocks");
            if version_of(&key, AsOf::View) == version {
                continue;
            }
            if entry.is_certain {
                return Err(format!("{version} of {key:?} is lost"));
            }
            self.remove(pg, version);
        }
        let of = &self.pgs[&pg];
        let certain = of.certain();
        if facts.last < certain || facts.last > of.last {
            return Err(format!("its last version is not within {certain}..={}", of.last));
        }
        if facts.committed < of.said || facts.committed > of.committed.min(facts.last) {
            return Err(format!("committed is not within {}..={}", of.said, of.committed));
        }
        let in_order = of.entries.iter().filter(|(_, entry)| entry.replaced.is_none());
        let lost: Vec<Version> =
            in_order.map(|(version, _)| *version).filter(|of| *of > facts.last).collect();
        lost.into_iter().for_each(|version| self.remove(pg, version));
        let of = self.pg_mut(pg);
        of.entries.values_mut().for_each(|entry| entry.is_certain = true);
        (of.last, of.start) = (facts.last, facts.last);
        (of.committed, of.said) = (facts.committed, facts.committed);
        (of.is_refused, of.is_peering) = (false, !of.of_peering().is_empty());
        Ok(())
    }

    /// Determines whether an unanswered settle took effect.
    fn resolve_settle(&mut self, pg: PgId, facts: PgFacts, note: u64) -> Result<(), String> {
        let of = self.pgs.get_mut(&pg).expect("made with its first block");
        if let Some(settle) = of.settle.take() {
            if note == settle.note {
                of.note = note;
                of.said = settle.upto;
                of.start = settle.upto;
                of.entries.retain(|version, _| *version > settle.upto);
                of.epoch = of.epoch.next();
                return match (facts.last, facts.committed) == (settle.upto, settle.upto) {
                    true => Ok(()),
                    false => Err(format!("it was settled at {}", settle.upto)),
                };
            }
            (of.last, of.committed) = (settle.last, settle.committed);
            for (version, entry) in settle.removed {
                if let Some(key) = entry.key {
                    self.keys.get_mut(&key).expect("named before").alive.insert(version);
                }
                of.entries.insert(version, entry);
            }
        }
        match note == of.note {
            true => Ok(()),
            false => Err(format!("its note is {note}, not {}", of.note)),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{ImageId, PoolId, StripeIndex};

    use super::*;

    const PG: PgId = PgId { pool: PoolId::FIRST, number: 0 };
    const KEY: BlockKey = BlockKey {
        pool: PoolId::FIRST,
        hash: 0,
        image: ImageId::FIRST,
        stripe: StripeIndex::new(0),
    };

    fn held(value: u64) -> Held {
        Held { units: vec![value; 4], is_deleted: false, table: 0 }
    }

    /// Returns a model with two versions, the first of which is certain, and these versions.
    fn two() -> (Versions, [Version; 2]) {
        let mut model = Versions::default();
        model.block(KEY, PG, BlockSize::MIN);
        let versions = [1, 2].map(|value| model.give(PG, Some((KEY, held(value))), 0));
        model.answer(PG, versions[0], true);
        (model, versions)
    }

    fn resolve(model: &mut Versions, last: Version, committed: Version, note: u64) -> bool {
        let facts = PgFacts {
            last,
            committed,
            held: last,
            hole: None,
            floor: Version::ZERO,
            is_suspect: false,
        };
        let version_of =
            |_: &BlockKey, as_of: AsOf| if as_of == AsOf::View { last } else { committed };
        model.resolve(|_| facts, version_of, |_| note).is_ok()
    }

    #[test]
    fn a_first_part_with_everything_certain_may_be_left() {
        for (last, committed, is_right) in
            [(2, 0, true), (1, 0, true), (1, 1, true), (0, 0, false), (2, 2, false)]
        {
            let (mut model, versions) = two();
            model.commit(PG, versions[0]);
            model.crash(false);
            let number =
                |index: usize| if index == 0 { Version::ZERO } else { versions[index - 1] };
            assert_eq!(resolve(&mut model, number(last), number(committed), 0), is_right, "{last}");
        }
    }

    #[test]
    fn a_settle_happened_or_not() {
        for (last, committed, note, is_right) in
            [(1, 1, 7, true), (2, 0, 0, true), (2, 1, 7, false), (1, 0, 7, false), (2, 0, 3, false)]
        {
            let (mut model, versions) = two();
            model.settle(PG, versions[0], 7);
            assert_eq!(model.version_as_of(&KEY, AsOf::View), versions[0]);
            model.crash(false);
            let number =
                |index: usize| if index == 0 { Version::ZERO } else { versions[index - 1] };
            assert_eq!(resolve(&mut model, number(last), number(committed), note), is_right);
        }
    }

    #[test]
    fn what_a_certain_entry_says_stays_committed() {
        let (mut model, versions) = two();
        model.commit(PG, versions[0]);
        let third = model.give(PG, None, 0);
        model.answer(PG, versions[1], true);
        model.answer(PG, third, true);
        model.crash(false);
        assert!(!resolve(&mut model, third, Version::ZERO, 0));
    }
}
