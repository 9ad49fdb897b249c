//! The workload of pools that keep parity: versions are prepared, skipped, committed and settled, and blocks
//! are read as of a version.

use std::ops::Range;

use base::{Duration, Epoch, PgId, UNIT_SIZE, Version, checksum};
use blockstore::{Answer, AsOf, BlockKey, NoteKey, PreparedRoom, Request, StoreError};
use format::disk::UnitSet;
use format::wire::Content;

use super::asked::{Asked, Todo};
use super::asks::{Target, place_of};
use super::versions::Held;
use super::world::{Stage, World};
use crate::pattern;
use crate::random::Chance;

/// The maximum number of turns that a settle which takes versions back waits for them to become
/// certain.
const TAKE_BACK_TRIES: u32 = 20;

/// An unanswered request of a pool that keeps parity.
#[derive(Debug)]
pub(super) enum ParityAsked {
    Version {
        pg: PgId,
        version: Version,
    },
    /// A version after a gap: its predecessor was never given.
    Gap,
    /// A repair or a floor. `says`: the committed version when it was requested.
    Mend {
        pg: PgId,
        says: Version,
    },
    Settle {
        pg: PgId,
    },
    Read {
        key: BlockKey,
        as_of: AsOf,
        units: Range<u32>,
        seen: Vec<Version>,
    },
    Extents {
        key: BlockKey,
        as_of: AsOf,
        seen: Vec<Version>,
    },
    Copy {
        key: BlockKey,
        as_of: AsOf,
        units: UnitSet,
        seen: Vec<Version>,
    },
}

/// The kinds of requests for a block.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ParityAsk {
    Write { is_whole: bool },
    Zero,
    Delete,
    Read,
    Extents,
    Copy,
    Settle,
    Floor,
    Mend,
}

impl World {
    /// Returns whether the pool of this block keeps parity.
    pub(super) fn keeps_parity(&self, key: BlockKey) -> bool {
        self.plan.pools[key.pool.get() as usize - 1].keeps_parity
    }

    /// Sends a request for a block in a pool that keeps parity.
    pub(super) fn ask_parity(&mut self, ask: ParityAsk, target: Target) -> Result<(), String> {
        let Target { key, pg, .. } = target;
        if self.work.chance(self.plan.commits) {
            self.ask_commit(pg)?;
        }
        // The commit may have stopped the store.
        if self.stage != Stage::Open {
            return Ok(());
        }
        let is_read = matches!(ask, ParityAsk::Read | ParityAsk::Extents | ParityAsk::Copy);
        match ask {
            _ if self.versions.pgs[&pg].is_given_up && !is_read => Ok(()),
            ParityAsk::Write { .. } | ParityAsk::Zero | ParityAsk::Delete => {
                self.ask_version(ask, target)
            }
            // A settle may wait for a checkpoint. Reads would not wait for the settle, so none are sent
            // meanwhile.
            _ if self.versions.pgs[&pg].is_settling() => Ok(()),
            ParityAsk::Read | ParityAsk::Extents | ParityAsk::Copy => {
                let as_of = self.draw_as_of(key);
                self.ask_parity_read(ask, target, as_of)
            }
            ParityAsk::Settle => self.ask_settle(pg),
            ParityAsk::Floor => self.ask_parity_floor(pg),
            ParityAsk::Mend => self.ask_parity_mend(target),
        }
    }

    /// Returns whether the PG waits for members that never return: it commits nothing during half of
    /// the run.
    fn is_stuck(&self, pg: PgId) -> bool {
        self.plan.has_stuck
            && pg.number.is_multiple_of(2)
            && self.asked_count * 2 < self.plan.operation_count
    }

    fn draw_as_of(&mut self, key: BlockKey) -> AsOf {
        match self.work.below(10) {
            0..5 => AsOf::View,
            5..8 => AsOf::Stable,
            _ => {
                let view = self.versions.version_as_of(&key, AsOf::View);
                let back = self.work.below(6);
                AsOf::Version(Version { counter: view.counter.saturating_sub(back), ..view })
            }
        }
    }

    fn ask_version(&mut self, ask: ParityAsk, target: Target) -> Result<(), String> {
        let Target { key, pg, size } = target;
        let of = &self.versions.pgs[&pg];
        if of.is_peering {
            return self.go_on_with_peering(pg);
        }
        if of.is_settling() {
            return Ok(());
        }
        if of.is_refused {
            return self.ask_settle(pg);
        }
        let lazy = self.work.chance(self.plan.lazy);
        if self.work.chance(Chance::percent(2))
            && let Some(version) = self.versions.behind_gap(pg)
        {
            let request = Request::Skip { pg, version, lazy };
            return self.request(Asked::Parity(ParityAsked::Gap), request);
        }
        if self.work.chance(Chance::percent(15)) {
            let version = self.versions.give(pg, None, 0);
            self.tally.consequences.add("version skipped", 1);
            self.trace.line(format_args!("  {version} in {pg}: skipped"));
            let request = Request::Skip { pg, version, lazy };
            return self.request(Asked::Parity(ParityAsked::Version { pg, version }), request);
        }
        let below = self.versions.version_as_of(&key, AsOf::View);
        let order = self.model.next_order();
        let mut held = self.versions.keys[&key].held(below);
        let stays = held.table;
        let change = match ask {
            ParityAsk::Delete => None,
            ParityAsk::Zero => Some((self.draw_units(size), 0)),
            ParityAsk::Write { is_whole: true } => Some((0..size.unit_count(), order)),
            _ => Some((self.draw_units(size), order)),
        };
        let changed = self.change(&mut held, change);
        self.draw_table(key, &mut held, order);
        let cost = PreparedRoom::cost_of(changed.count());
        if self.is_too_much(pg, cost) {
            return self.ask_commit(pg);
        }
        let version = self.versions.give(pg, Some((key, held.clone())), cost);
        self.tally.consequences.add("version prepared", 1);
        self.trace.line(format_args!("  {version} in {pg}, stripe {}: {changed:?}", key.stripe));
        let content = self.content_of(target, version, changed, (&held, stays));
        let request = Request::Prepare { pg, key, version, content, replaces: None, lazy };
        self.note_seen();
        self.request(Asked::Parity(ParityAsked::Version { pg, version }), request)
    }

    /// Returns whether a primary would hold back a version of this cost, by its own accounting.
    /// Sometimes returns false all the same.
    fn is_too_much(&mut self, pg: PgId, cost: u64) -> bool {
        let most = (self.store().prepared_room().bytes_max / 4).max(cost);
        self.versions.prepared_bytes(pg) + cost > most && self.work.chance(Chance::percent(90))
    }

    /// Changes the content in `held`: writes a value to a range, with some zeros in it, or deletes the
    /// block. Returns the set of changed units.
    fn change(&mut self, held: &mut Held, change: Option<(Range<u32>, u64)>) -> UnitSet {
        let mut units = UnitSet::EMPTY;
        held.is_deleted = change.is_none();
        let Some((range, value)) = change else {
            held.units.fill(0);
            return units;
        };
        let has_zeros = self.work.chance(Chance::percent(20));
        for unit in range {
            units.insert(unit);
            let is_zero = has_zeros && self.work.chance(Chance::percent(50));
            held.units[unit as usize] = if is_zero { 0 } else { value };
        }
        units
    }

    fn content_of(
        &mut self,
        target: Target,
        version: Version,
        units: UnitSet,
        (held, table_stays): (&Held, u64),
    ) -> Content {
        if held.is_deleted {
            return Content::Tombstone { version };
        }
        let mut content = self.content(target, version, units, &held.units);
        self.add_table(target.key, &mut content, held, table_stays);
        content
    }

    /// Commits versions that are certain.
    fn ask_commit(&mut self, pg: PgId) -> Result<(), String> {
        let of = &self.versions.pgs[&pg];
        let certain = of.certain();
        if of.is_given_up
            || self.is_stuck(pg)
            || of.is_settling()
            || of.is_peering
            || certain <= of.committed
        {
            return Ok(());
        }
        let back = self.work.below(4).min(certain.counter - 1);
        let upto = Version { counter: certain.counter - back, ..certain };
        if upto <= of.committed {
            return Ok(());
        }
        self.trace.line(format_args!("  commit {upto} in {pg}"));
        self.versions.commit(pg, upto);
        self.tally.consequences.add("commit", 1);
        self.note_seen();
        self.request(Asked::Commit, Request::Commit { pg, upto })?;
        if self.stage == Stage::Open && self.work.chance(self.plan.mends_behind_commit) {
            self.mend_behind(pg);
        }
        match self.stage == Stage::Open && self.work.chance(Chance::percent(15)) {
            true => self.ask_parity_floor(pg),
            false => Ok(()),
        }
    }

    /// Schedules a write of a whole block of the PG, then a repair of another block, and perhaps a
    /// power failure. Recovery may drop the write, although its journal entry is the only one that
    /// records the commit on which the repair relies.
    fn mend_behind(&mut self, pg: PgId) {
        let of_pg = self.versions.keys.iter().filter(|(_, of)| of.pg == pg);
        let of_pg: Vec<Target> =
            of_pg.map(|(key, of)| Target { key: *key, pg, size: of.size }).collect();
        let is_stable = |block: &&Target| {
            let version = self.versions.version_as_of(&block.key, AsOf::Stable);
            !self.versions.is_said(pg, version) && !self.versions.has_prepared(&block.key)
        };
        let stable: Vec<Target> = of_pg.iter().filter(is_stable).copied().collect();
        if stable.is_empty() {
            return;
        }
        let (written, mended) = (*self.work.pick(&of_pg), *self.work.pick(&stable));
        self.todo.push_back(Todo::ParityWrite(written));
        self.todo.push_back(Todo::ParityMend(mended));
        self.risky_until = self.now + Duration::from_nanos(8 * self.plan.latency);
    }

    /// Requests a floor, so that tombstones up to the committed version may be dropped.
    fn ask_parity_floor(&mut self, pg: PgId) -> Result<(), String> {
        let of = &self.versions.pgs[&pg];
        if of.is_given_up || of.is_settling() {
            return Ok(());
        }
        let floor = of.committed;
        self.versions.raise_floor(pg, floor);
        self.tally.consequences.add("floor where parity is kept", 1);
        self.trace.line(format_args!("  floor {floor} in {pg}"));
        let asked = Asked::Parity(ParityAsked::Mend { pg, says: floor });
        self.request(asked, Request::SetFloor { pg, floor })
    }

    /// Settles a PG at a certain version, or starts peering.
    fn ask_settle(&mut self, pg: PgId) -> Result<(), String> {
        let of = &self.versions.pgs[&pg];
        if of.is_peering {
            return self.go_on_with_peering(pg);
        }
        if self.is_stuck(pg) || of.is_settling() {
            return Ok(());
        }
        let (committed, certain) = (of.committed, of.certain());
        if self.todo.is_empty() && self.work.chance(self.plan.takes_back) {
            return self.plan_to_take_back(pg);
        }
        if !of.is_busy() && self.work.chance(Chance::percent(40)) {
            return self.begin_peering(pg);
        }
        let is_all = self.work.chance(Chance::percent(50));
        let upto = if is_all || committed.epoch != certain.epoch {
            certain
        } else {
            let count = certain.counter - committed.counter + 1;
            Version { counter: committed.counter + self.work.below(count), ..committed }
        };
        self.settle(pg, upto.max(committed))
    }

    fn settle(&mut self, pg: PgId, upto: Version) -> Result<(), String> {
        let note = self.model.next_order();
        self.trace.line(format_args!("  settle {upto} in {pg}, note {note}"));
        let taken_back = self.versions.settle(pg, upto, note);
        self.tally.consequences.add("settle of a PG", 1);
        self.tally.consequences.add("version taken back", taken_back as u64);
        self.note_seen();
        let note = Some((NoteKey::Pg(pg), note.to_le_bytes().to_vec()));
        let asked = Asked::Parity(ParityAsked::Settle { pg });
        self.request(asked, Request::Settle { pg, note, upto })
    }

    /// Schedules writes of whole blocks of the PG, and a settle that takes them back once they are
    /// certain.
    fn plan_to_take_back(&mut self, pg: PgId) -> Result<(), String> {
        let of_pg = self.versions.keys.iter().filter(|(_, of)| of.pg == pg);
        let of_pg: Vec<Target> =
            of_pg.map(|(key, of)| Target { key: *key, pg, size: of.size }).collect();
        for _ in 0..3 {
            let target = *self.work.pick(&of_pg);
            self.todo.push_back(Todo::ParityWrite(target));
        }
        self.todo.push_back(Todo::ParityTakeBack { pg, tries: TAKE_BACK_TRIES });
        Ok(())
    }

    /// Takes back all uncommitted versions of the PG once they are certain. Then writes whole blocks of
    /// other PGs at once, perhaps with a power failure: until the settle is durable, nothing may reuse
    /// the space that it frees.
    pub(super) fn take_back(&mut self, pg: PgId, tries: u32) -> Result<(), String> {
        let of = &self.versions.pgs[&pg];
        if of.is_given_up || of.is_settling() || of.is_peering || self.is_stuck(pg) {
            return Ok(());
        }
        if of.is_busy() && tries > 0 {
            self.todo.push_back(Todo::ParityTakeBack { pg, tries: tries - 1 });
            return Ok(());
        }
        let committed = of.committed;
        let others =
            self.versions.keys.iter().filter(|(_, of)| of.pg.pool == pg.pool && of.pg != pg);
        let others: Vec<Target> =
            others.map(|(key, of)| Target { key: *key, pg: of.pg, size: of.size }).collect();
        for _ in 0..4.min(others.len()) {
            let target = *self.work.pick(&others);
            self.todo.push_back(Todo::ParityWrite(target));
        }
        self.risky_until = self.now + Duration::from_nanos(8 * self.plan.latency);
        self.settle(pg, committed)
    }

    /// Starts peering: for some blocks, prepares versions that this member missed. They replace the
    /// member's own versions above the version up to which it is complete.
    fn begin_peering(&mut self, pg: PgId) -> Result<(), String> {
        let of = &self.versions.pgs[&pg];
        let (committed, last) = (of.committed, of.last);
        if last == Version::ZERO {
            return Ok(());
        }
        let is_complete = last.epoch != committed.epoch || self.work.chance(Chance::percent(50));
        let above = match is_complete {
            true => last,
            false => {
                let count = last.counter - committed.counter + 1;
                Version { counter: committed.counter + self.work.below(count), ..last }
            }
        };
        let highest = of.highest();
        let of_pg = self.versions.keys.iter().filter(|(_, block)| block.pg == pg);
        let mut blocks: Vec<Target> =
            of_pg.map(|(key, block)| Target { key: *key, pg, size: block.size }).collect();
        // Prefer blocks that have versions to replace.
        if blocks.iter().any(|block| self.versions.has_prepared(&block.key))
            && self.work.chance(Chance::percent(70))
        {
            blocks.retain(|block| self.versions.has_prepared(&block.key));
        }
        self.versions.pgs.get_mut(&pg).expect("it has blocks").is_peering = true;
        for index in 1..=self.work.range(1..4).min(blocks.len() as u64) {
            let target = blocks[(self.work.index(blocks.len()) + index as usize) % blocks.len()];
            let Target { key, size, .. } = target;
            let version = Version { counter: highest.counter + index, ..last };
            let below = self.versions.version_as_of(&key, AsOf::Version(above));
            if below > above || self.versions.version_as_of(&key, AsOf::View) > last {
                continue;
            }
            let order = self.model.next_order();
            let mut held = self.versions.keys[&key].held(below);
            let stays = held.table;
            let units = self.draw_units(size);
            let is_deleted = self.work.chance(Chance::percent(10));
            let changed = self.change(&mut held, (!is_deleted).then_some((units, order)));
            self.draw_table(key, &mut held, order);
            self.trace.line(format_args!("  {version} in {pg} replaces {above}: {changed:?}"));
            self.versions.replace(pg, version, (key, held.clone()), above);
            self.note_seen();
            let content = self.content_of(target, version, changed, (&held, stays));
            let (replaces, lazy) = (Some(above), false);
            let request = Request::Prepare { pg, key, version, content, replaces, lazy };
            self.request(Asked::Parity(ParityAsked::Version { pg, version }), request)?;
            if self.stage != Stage::Open {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Continues peering: settles a PG once all versions are prepared.
    fn go_on_with_peering(&mut self, pg: PgId) -> Result<(), String> {
        let of = &self.versions.pgs[&pg];
        if of.is_busy() || self.work.chance(self.plan.peering_pause) {
            return Ok(());
        }
        let upto = of.highest();
        self.settle(pg, upto)
    }

    /// Repairs a block that has no prepared versions, by rewriting its current content.
    fn ask_parity_mend(&mut self, target: Target) -> Result<(), String> {
        let Target { key, pg, size } = target;
        let version = self.versions.version_as_of(&key, AsOf::Stable);
        let held = self.versions.keys[&key].held(version);
        let is_settling = self.versions.pgs[&pg].is_settling();
        if version == Version::ZERO
            || held.is_deleted
            || is_settling
            || self.versions.has_prepared(&key)
        {
            return Ok(());
        }
        let units = self.draw_set(size, Chance::percent(40));
        // The repair either contains the part table, or leaves the existing table in place.
        let stays = if self.work.chance(Chance::percent(50)) { held.table } else { 0 };
        let content = self.content_of(target, version, units, (&held, stays));
        let says = self.versions.pgs[&pg].committed;
        let asked = Asked::Parity(ParityAsked::Mend { pg, says });
        self.request(asked, Request::Repair { pg, key, content })
    }

    pub(super) fn ask_parity_read(
        &mut self,
        ask: ParityAsk,
        target: Target,
        as_of: AsOf,
    ) -> Result<(), String> {
        let Target { key, size, .. } = target;
        match ask {
            ParityAsk::Extents => {
                let seen = vec![self.versions.version_as_of(&key, as_of)];
                let asked = Asked::Parity(ParityAsked::Extents { key, as_of, seen });
                self.request(asked, Request::Extents { key, as_of })
            }
            ParityAsk::Copy => {
                let all = UnitSet::first(size.unit_count());
                let some = self.draw_set(size, Chance::percent(30));
                let units = if some.is_empty() { all } else { some };
                self.ask_parity_copy(key, as_of, units)
            }
            _ => {
                let units = self.draw_units(size);
                self.ask_parity_range(key, as_of, units)
            }
        }
    }

    pub(super) fn ask_parity_copy(
        &mut self,
        key: BlockKey,
        as_of: AsOf,
        units: UnitSet,
    ) -> Result<(), String> {
        let seen = vec![self.versions.version_as_of(&key, as_of)];
        let words = units.words(self.versions.keys[&key].size.unit_count());
        let asked = Asked::Parity(ParityAsked::Copy { key, as_of, units, seen });
        self.request(asked, Request::Copy { key, units: words, as_of })
    }

    pub(super) fn ask_parity_range(
        &mut self,
        key: BlockKey,
        as_of: AsOf,
        units: Range<u32>,
    ) -> Result<(), String> {
        let seen = vec![self.versions.version_as_of(&key, as_of)];
        let request = Request::Read {
            key,
            offset: units.start * UNIT_SIZE as u32,
            length: (units.end - units.start) * UNIT_SIZE as u32,
            as_of,
        };
        self.request(Asked::Parity(ParityAsked::Read { key, as_of, units, seen }), request)
    }

    /// Adds to each pending read the version that it would see now, because a read may be overtaken.
    fn note_seen(&mut self) {
        for asked in self.asked.values_mut() {
            let Asked::Parity(
                ParityAsked::Read { key, as_of, seen, .. }
                | ParityAsked::Extents { key, as_of, seen }
                | ParityAsked::Copy { key, as_of, seen, .. },
            ) = asked
            else {
                continue;
            };
            let now = self.versions.version_as_of(key, *as_of);
            if seen.last() != Some(&now) {
                seen.push(now);
            }
        }
    }

    /// Handles the answer to a request for a pool that keeps parity.
    pub(super) fn parity_answered(
        &mut self,
        asked: ParityAsked,
        result: Result<Answer, StoreError>,
    ) -> Result<(), String> {
        match (asked, result) {
            (
                ParityAsked::Read { key, .. }
                | ParityAsked::Extents { key, .. }
                | ParityAsked::Copy { key, .. },
                Ok(_) | Err(StoreError::Damaged { .. }),
            ) if self.versions.is_given_up(&key) => {}
            (ParityAsked::Version { pg, version }, Ok(Answer::Durable)) => {
                self.versions.answer(pg, version, true);
                if let Some(key) = self.versions.key_of(pg, version) {
                    let found = self.store().version_as_of(&key, AsOf::Stable);
                    self.versions.pin(&key, found);
                }
                self.damage.answered(self.asked.is_empty(), self.disk.completed_count());
            }
            (ParityAsked::Version { pg, version }, Ok(Answer::Written)) => {
                self.tally.faults.add("lazily answered", 1);
                self.versions.answer(pg, version, false);
            }
            (ParityAsked::Version { pg, version }, Err(StoreError::Full)) => {
                self.tally.faults.add("store full", 1);
                self.versions.refuse(pg, version)?;
                self.note_seen();
            }
            // A settle that was requested later has overtaken this version.
            (ParityAsked::Version { pg, version }, Err(StoreError::Unordered)) => {
                if self.versions.refuse(pg, version)? {
                    return Err(format!("{version} of PG {pg} is refused without a reason"));
                }
            }
            (ParityAsked::Gap, Err(StoreError::Unordered | StoreError::Full)) => {
                self.tally.consequences.add("gap refused", 1);
            }
            (ParityAsked::Mend { pg, says }, Ok(Answer::Durable)) => {
                self.versions.answer_other(pg, says);
            }
            (ParityAsked::Mend { .. }, Err(StoreError::Full)) => {
                self.tally.faults.add("store full", 1);
            }
            (ParityAsked::Settle { pg }, Ok(Answer::Durable)) => self.versions.settled(pg),
            (
                ParityAsked::Read { key, units, seen, .. },
                Ok(Answer::Read { version, checksums, data }),
            ) => {
                let values = super::answers::values_of(key, &units, &checksums, &data)?;
                let held = self.held_at(key, &seen, version)?;
                for (unit, value) in units.zip(values) {
                    let wanted = held.units[unit as usize];
                    if value != Some(wanted) {
                        return Err(format!(
                            "unit {unit} of {key:?} (version {version}) holds {value:?} instead of \
                             {wanted} (0: zeros)"
                        ));
                    }
                }
            }
            (ParityAsked::Read { key, .. }, Err(StoreError::Damaged { units })) => {
                self.tally.consequences.add("damage read where parity is kept", 1);
                self.damage.met(key, &units)?;
            }
            (
                ParityAsked::Extents { key, seen, .. },
                Ok(Answer::Extents { version, written, damaged }),
            ) => {
                let held = self.held_at(key, &seen, version)?;
                let is_right =
                    held.units.iter().enumerate().all(|(unit, value)| {
                        super::answers::has_bit(&written, unit) == (*value != 0)
                    });
                self.damage.met(key, &damaged)?;
                if !is_right {
                    return Err(format!("{key:?} (version {version}) has wrong extents"));
                }
            }
            (ParityAsked::Copy { key, units, seen, .. }, Ok(Answer::Copy { content })) => {
                self.check_parity_copy(key, units, &seen, &content)?;
            }
            (asked, result) => return Err(format!("{asked:?} is answered with {result:?}")),
        }
        Ok(())
    }

    /// Returns the content of the block at the version in an answer. Fails if the version is not in
    /// `seen`.
    fn held_at(&self, key: BlockKey, seen: &[Version], version: Version) -> Result<Held, String> {
        match seen.iter().any(|seen| self.versions.is_right(&key, version, *seen)) {
            true => Ok(self.versions.keys[&key].held(version)),
            false => Err(format!("{key:?} has version {version} instead of one of {seen:?}")),
        }
    }

    fn check_parity_copy(
        &mut self,
        key: BlockKey,
        mut asked: UnitSet,
        seen: &[Version],
        content: &Content,
    ) -> Result<(), String> {
        content.check().map_err(|why| format!("a copy of {key:?}: {why}"))?;
        let mut values = vec![0; self.versions.keys[&key].size.unit_count() as usize];
        let (version, is_deleted) = match content {
            Content::Gone => (Version::ZERO, false),
            Content::Tombstone { version } => (*version, true),
            Content::Block { version, written, damaged, checksums, data, .. } => {
                let data = data.as_deref().unwrap_or_default();
                if checksum::first_mismatch(data, checksums).is_some() {
                    return Err(format!("a copy of {key:?} does not match its checksums"));
                }
                self.damage.met(key, damaged)?;
                UnitSet::from_slice(damaged).iter().for_each(|unit| asked.remove(unit));
                let written = UnitSet::from_slice(written);
                for (unit, bytes) in written.iter().zip(data.chunks_exact(UNIT_SIZE as usize)) {
                    let value = pattern::value_of(bytes, place_of(key, unit));
                    values[unit as usize] = value.ok_or("bytes that were never written there")?;
                }
                (*version, false)
            }
        };
        let held = self.held_at(key, seen, version)?;
        self.check_table(key, content, &held)?;
        let is_right = |unit: u32| values[unit as usize] == held.units[unit as usize];
        match is_deleted == held.is_deleted && asked.iter().all(is_right) {
            true => Ok(()),
            false => Err(format!("a copy of {key:?} (version {version}) is wrong")),
        }
    }

    /// Handles a completed sync: all versions requested before it are certain.
    pub(super) fn parity_synced(&mut self, upto: &[(PgId, Version)]) {
        for (pg, version) in upto {
            self.versions.synced(*pg, *version);
        }
    }

    /// Compares the PGs with the restarted store.
    pub(super) fn parity_opened(&mut self) -> Result<(), String> {
        let Some(store) = &self.store else { unreachable!("it just opened") };
        if self.damage.deep {
            let pgs = self.versions.pgs.keys().copied();
            let suspect: Vec<PgId> = pgs.filter(|pg| store.is_suspect(*pg)).collect();
            self.tally.faults.add("suspect PG", suspect.len() as u64);
            suspect.into_iter().for_each(|pg| self.versions.give_up(pg));
        }
        self.versions.resolve(
            |pg| store.facts(pg),
            |key, as_of| store.version_as_of(key, as_of),
            |pg| {
                let note = store.note(NoteKey::Pg(pg)).and_then(|note| note.try_into().ok());
                note.map_or(0, u64::from_le_bytes)
            },
        )?;
        let keys: Vec<BlockKey> = self.versions.keys.keys().copied().collect();
        for key in keys {
            self.versions.pin(&key, store.version_as_of(&key, AsOf::Stable));
        }
        if !self.versions.pgs.is_empty() && self.work.chance(Chance::percent(50)) {
            for of in self.versions.pgs.values_mut() {
                of.epoch = Epoch::new(of.epoch.get() + 1);
            }
        }
        let listed: Vec<(BlockKey, Version)> = (1..=self.plan.pools.len() as u32)
            .filter_map(base::PoolId::new)
            .flat_map(|pool| store.blocks(pool, 0, u32::MAX, None))
            .map(|(key, version, _)| (key, version))
            .collect();
        for (key, version) in &listed {
            let is_known = self.versions.keys.contains_key(key) && !self.versions.is_given_up(key);
            if is_known && self.versions.version_as_of(key, AsOf::View) != *version {
                return Err(format!("{key:?} is listed with version {version}"));
            }
        }
        for key in self.versions.keys.keys() {
            let version = self.versions.version_as_of(key, AsOf::View);
            let is_there = !self.versions.is_given_up(key)
                && !self.versions.is_right(key, Version::ZERO, version);
            if is_there && !listed.iter().any(|(of, _)| of == key) {
                return Err(format!("{key:?} is not listed"));
            }
        }
        Ok(())
    }

    /// Settles all PGs, so that no prepared version remains.
    pub(super) fn settle_all(&mut self) -> Result<(), String> {
        let known = self.versions.pgs.iter().filter(|(_, of)| !of.is_given_up);
        let pgs: Vec<PgId> = known.map(|(pg, _)| *pg).collect();
        for pg in pgs {
            let of = &self.versions.pgs[&pg];
            if of.is_settling() {
                return Err(format!("PG {pg} is never settled"));
            }
            let upto = if of.is_peering { of.highest() } else { of.certain() };
            let committed = of.committed;
            self.settle(pg, upto.max(committed))?;
        }
        Ok(())
    }

    /// Returns the number of bytes that blocks with data occupy.
    pub(super) fn parity_bytes(&self) -> u64 {
        let keys = self.versions.keys.iter();
        let is_written = |key: &BlockKey| {
            let version = self.versions.version_as_of(key, AsOf::Stable);
            self.versions.keys[key].held(version).units.iter().any(|value| *value != 0)
        };
        keys.filter(|(key, _)| is_written(key)).map(|(_, block)| block.size.bytes()).sum()
    }

    /// Returns the newest version that was requested for each PG.
    pub(super) fn parity_lasts(&self) -> Vec<(PgId, Version)> {
        self.versions.pgs.iter().map(|(pg, of)| (*pg, of.last)).collect()
    }
}
