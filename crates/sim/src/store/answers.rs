//! Compares the answers of the store with the model.

use std::ops::Range;

use base::{BlockSize, Buffer, Checksum, UNIT_SIZE, Version, checksum};
use blockstore::{Answer, AsOf, BlockKey, CommitMode, MetadataFault, MetadataReport, StoreError};
use format::disk::{SUPERBLOCK_OFFSETS, SUPERBLOCK_SIZE, Superblock, UnitSet};
use format::wire::Content;

use super::asked::{Asked, Todo};
use super::asks::place_of;
use super::model::{Expected, State, UNKNOWN};
use super::objects::Objects;
use super::world::{Stage, World};
use crate::pattern;
use crate::random::Chance;

impl World {
    pub(super) fn answered(
        &mut self,
        asked: Asked,
        result: Result<Answer, StoreError>,
    ) -> Result<(), String> {
        match (asked, result) {
            (Asked::Change { key, order }, Ok(Answer::Durable)) => {
                self.model.answer(key, order);
                self.damage.answered(self.asked.is_empty(), self.disk.completed_count());
            }
            (Asked::Change { key, order }, Ok(Answer::Written))
                if self.plan.commit == CommitMode::Fsync =>
            {
                self.tally.faults.add("lazily answered", 1);
                self.model.written(key, order);
            }
            (Asked::Change { key, order }, Err(StoreError::Full)) => {
                self.tally.faults.add("store full", 1);
                self.model.refuse(key, order)?;
                // The PG continues in a new epoch: it accepts no write in the old epoch after the
                // refused one.
                self.epoch = self.epoch.next();
            }
            (Asked::Note { key, order }, Ok(Answer::Durable)) => {
                self.model.answer_note(key, order);
            }
            (Asked::Note { key, order }, Err(StoreError::Full)) => {
                self.model.refuse_note(key, order);
            }
            (Asked::Sync { order, lasts }, Ok(Answer::Durable)) => {
                self.model.synced(order);
                self.parity_synced(&lasts);
            }
            (Asked::Commit, Ok(Answer::Committed)) => {}
            (Asked::Metadata, Ok(Answer::Metadata(report))) => self.metadata_checked(report)?,
            (Asked::Batch { pg, number }, Ok(Answer::Durable)) => {
                self.batch_answered(pg, number)?;
                self.damage.answered(self.asked.is_empty(), self.disk.completed_count());
            }
            (Asked::Batch { pg, number }, Err(StoreError::Full)) => {
                self.tally.consequences.add("batch refused", 1);
                self.batch_refused(pg, number)?;
            }
            // Behind a refused batch.
            (Asked::Unordered, Err(StoreError::Full)) => {}
            (Asked::Family { creates }, Ok(Answer::Durable)) => self.family_answered(creates),
            (Asked::Unordered, Err(StoreError::Unordered)) => {
                self.tally.consequences.add("gap refused", 1);
            }
            (Asked::Records(asked), result) => self.records_answered(&asked, result)?,
            (Asked::ObjectBlock(asked), result) => self.object_block_answered(&asked, result)?,
            (Asked::Parity(asked), result) => self.parity_answered(asked, result)?,
            (Asked::Floor | Asked::Mend, Ok(Answer::Durable)) => {}
            (Asked::Mend, Err(StoreError::Full)) => self.tally.faults.add("store full", 1),
            (Asked::Copy { key, order, units }, Ok(Answer::Copy { content })) => {
                let expected = self.model.expected(key, order, self.may_refuse());
                self.check_copy(key, units, &expected, &content)?;
            }
            (Asked::Absolve { pg }, Ok(Answer::Durable)) => {
                if self.store().is_suspect(pg) {
                    return Err(format!("PG {pg} is suspect after it was absolved"));
                }
                self.objects_absolved(pg);
            }
            (Asked::Read { key, order, units }, Ok(Answer::Read { version, checksums, data })) => {
                let expected = self.model.expected(key, order, self.may_refuse());
                let values = values_of(key, &units, &checksums, &data)?;
                self.check_read(key, units, &expected, version, &values)?;
            }
            (Asked::Extents { key, order }, Ok(Answer::Extents { version, written, damaged })) => {
                let expected = self.model.expected(key, order, self.may_refuse());
                self.check_extents(key, &expected, version, &written, &damaged)?;
            }
            (Asked::Read { key, order, .. }, Err(StoreError::Damaged { units })) => {
                self.model.expected(key, order, self.may_refuse());
                self.damage.met(key, &units)?;
            }
            (asked, result) => return Err(format!("{asked:?} is answered with {result:?}")),
        }
        Ok(())
    }

    /// Checks what a portion of a check of the metadata found.
    fn metadata_checked(&mut self, report: MetadataReport) -> Result<(), String> {
        self.tally.consequences.add("metadata portion checked", 1);
        self.tally.consequences.add("damaged metadata found", report.findings.len() as u64);
        self.metadata_next = report.next;
        self.metadata_found += report.findings.len();
        for finding in report.findings {
            self.trace.line(format_args!("{:?} {finding:?}", self.now));
            if !self.damage.deep || finding.fault == MetadataFault::Differs {
                return Err(format!("a check of whole metadata found {finding:?}"));
            }
        }
        Ok(())
    }

    /// Checks all metadata twice: what the first check finds, the second one finds repaired.
    pub(super) fn check_metadata_twice(&mut self) -> Result<(), String> {
        for _ in 0..2 {
            (self.metadata_next, self.metadata_found) = (None, 0);
            loop {
                self.ask_metadata(256)?;
                self.drain()?;
                if self.metadata_next.is_none() {
                    break;
                }
            }
            self.settle_down()?;
        }
        match self.metadata_found {
            0 => Ok(()),
            count => Err(format!("{count} damaged pieces of the metadata are not repaired")),
        }
    }

    fn may_refuse(&self) -> bool {
        self.plan.faults.no_space != Chance::NEVER
            || self.plan.host_bytes.is_some()
            || self.store().space().full
    }

    /// Checks the version and values that a read returned. `values` has one item per unit; `None`: the
    /// unit is not checked.
    fn check_read(
        &mut self,
        key: BlockKey,
        units: Range<u32>,
        expected: &Expected,
        version: Version,
        values: &[Option<u64>],
    ) -> Result<(), String> {
        let possible = std::iter::once(&expected.state).chain(&expected.others);
        let mut error = None;
        for state in possible {
            match self.compare(key, &units, state, version, values) {
                Ok(()) => {
                    self.learn(key, units, state, version, values);
                    return Ok(());
                }
                Err(text) => error = error.or(Some(text)),
            }
        }
        for (order, state) in &expected.later {
            if self.compare(key, &units, state, version, values).is_ok() {
                self.model.seen(key, *order);
                return Ok(());
            }
        }
        Err(error.expect("one state is always possible"))
    }

    fn check_copy(
        &mut self,
        key: BlockKey,
        asked: UnitSet,
        expected: &Expected,
        content: &Content,
    ) -> Result<(), String> {
        content.check().map_err(|why| format!("a copy of {key:?}: {why}"))?;
        let size = self.model.blocks[&key].size;
        let mut values: Vec<Option<u64>> =
            (0..size.unit_count()).map(|unit| asked.contains(unit).then_some(0)).collect();
        let version = match content {
            Content::Gone => Version::ZERO,
            Content::Tombstone { version } => *version,
            Content::Block {
                version,
                block_size,
                units,
                written,
                damaged,
                checksums,
                data,
                ..
            } => {
                if *block_size != size || UnitSet::from_slice(units) != asked {
                    return Err(format!("a copy of {key:?} has other units than were asked for"));
                }
                self.damage.met(key, damaged)?;
                let damaged = UnitSet::from_slice(damaged);
                damaged.iter().for_each(|unit| values[unit as usize] = None);
                let data = data.as_deref().unwrap_or_default();
                if checksum::first_mismatch(data, checksums).is_some() {
                    return Err(format!("a copy of {key:?} does not match its checksums"));
                }
                let written = UnitSet::from_slice(written);
                for (unit, bytes) in written.iter().zip(data.chunks_exact(UNIT_SIZE as usize)) {
                    values[unit as usize] = Some(value_of(key, unit, bytes)?);
                }
                *version
            }
        };
        self.check_read(key, 0..size.unit_count(), expected, version, &values)
    }

    /// Records values that were unknown to the model, unless a later change has replaced them.
    fn learn(
        &mut self,
        key: BlockKey,
        units: Range<u32>,
        state: &State,
        version: Version,
        values: &[Option<u64>],
    ) {
        if state.version.is_none() {
            // A checkpoint may have dropped the tombstone in the same event that answered the read.
            let is_dropped = self.store().version_of(&key) == Version::ZERO;
            let deleted = is_dropped || self.store().is_tombstone(&key);
            self.model.learn_version(key, version, deleted);
        }
        for (unit, value) in units.zip(values) {
            if let Some(value) = value
                && state.units[unit as usize] == UNKNOWN
            {
                self.model.learn(key, unit, *value);
            }
        }
    }

    fn compare(
        &self,
        key: BlockKey,
        units: &Range<u32>,
        state: &State,
        version: Version,
        values: &[Option<u64>],
    ) -> Result<(), String> {
        self.compare_version(key, state, version)?;
        for (unit, found) in units.clone().zip(values) {
            let Some(found) = found else { continue };
            let wanted = state.units[unit as usize];
            let good = match wanted {
                UNKNOWN => self.damage.was_written(key, unit, *found),
                wanted => *found == wanted,
            };
            if !good {
                return Err(format!(
                    "unit {unit} of {key:?} (version {version}) holds the value of change \
                     {found} instead of {wanted} (0: zeros)"
                ));
            }
        }
        Ok(())
    }

    fn compare_version(&self, key: BlockKey, state: &State, found: Version) -> Result<(), String> {
        let Some(wanted) = state.version else { return Ok(()) };
        let pg = &self.model.pgs[&self.model.blocks[&key].pg];
        let gone = state.deleted && wanted <= pg.floor && found == Version::ZERO;
        if found == wanted || gone {
            return Ok(());
        }
        Err(format!("{key:?} has version {found} instead of {wanted}"))
    }

    fn check_extents(
        &mut self,
        key: BlockKey,
        expected: &Expected,
        version: Version,
        written: &[u64],
        damaged: &[u64],
    ) -> Result<(), String> {
        if damaged.iter().any(|word| *word != 0) {
            self.damage.met(key, damaged)?;
        }
        let certain = std::iter::once(&expected.state).chain(&expected.others);
        let mut error = None;
        for state in certain {
            match self.compare_extents(key, state, version, written, damaged) {
                Ok(()) => return Ok(()),
                Err(text) => error = error.or(Some(text)),
            }
        }
        for (order, state) in &expected.later {
            if self.compare_extents(key, state, version, written, damaged).is_ok() {
                self.model.seen(key, *order);
                return Ok(());
            }
        }
        Err(error.expect("one state is always possible"))
    }

    fn compare_extents(
        &self,
        key: BlockKey,
        state: &State,
        version: Version,
        written: &[u64],
        damaged: &[u64],
    ) -> Result<(), String> {
        self.compare_version(key, state, version)?;
        let wrong = state.units.iter().enumerate().find(|(unit, value)| {
            !has_bit(damaged, *unit)
                && **value != UNKNOWN
                && has_bit(written, *unit) != (**value != 0)
        });
        let Some((unit, value)) = wrong else { return Ok(()) };
        let is = if *value == 0 { "not written" } else { "written" };
        Err(format!("unit {unit} of {key:?} is {is}; its extents say otherwise"))
    }

    /// Handles the opening of the store, which must have kept all certain changes.
    pub(super) fn opened(&mut self) -> Result<(), String> {
        let report = self.store().recovery_report();
        self.trace.line(format_args!("{:?} opened: {report:?}", self.now));
        if self.stage != Stage::Opening {
            return Err("the store opened twice".into());
        }
        if self.is_foreign {
            return Err("the store opened with an engine that is not its own".into());
        }
        self.stage = Stage::Open;
        self.opening_crashes = 0;
        let sizes = self.plan.pools.iter().map(|pool| pool.block_size);
        let of_objects = self.objects.iter().map(Objects::block_size);
        let sizes: Vec<BlockSize> = sizes.chain(of_objects).collect();
        self.store.as_mut().expect("it just opened").expect_blocks(sizes.into_iter());
        self.epoch = self.epoch.next();
        self.check_superblocks()?;
        let may_lack_root = self.damage.may_lack_root;
        self.damage.opened(self.disk.completed_count(), self.disk.unreadable_count());
        let suspects = self.suspects()?;
        for pg in &suspects {
            self.model.forget(*pg);
        }
        let Some(store) = &self.store else { unreachable!("it just opened") };
        let lost = self.model.resolve(|key| store.version_of(key))?;
        if may_lack_root {
            self.model.unlearn();
        }
        if !self.damage.deep {
            self.model.resolve_notes(|key| store.note(*key).map_or(0, note_content))?;
        }
        self.parity_opened()?;
        self.objects_opened()?;
        self.check_facts(&lost)?;
        self.check_versions()?;
        self.check_listing()?;
        self.todo.extend(suspects.into_iter().map(Todo::Absolve));
        self.plan_audit();
        Ok(())
    }

    /// Checks that both copies of the superblock say the same, so that one of them suffices.
    fn check_superblocks(&self) -> Result<(), String> {
        let copies = SUPERBLOCK_OFFSETS.map(|offset| {
            let mut bytes = vec![0; SUPERBLOCK_SIZE];
            self.disk.peek_done(offset, &mut bytes);
            Superblock::decode(&bytes).map(|copy| Superblock { sequence: 0, ..copy })
        });
        match &copies {
            [Ok(first), Ok(second)] if first == second => Ok(()),
            copies => Err(format!("the copies of the superblock differ: {copies:?}")),
        }
    }

    /// Returns the PGs that the store reports as suspect. Only damage can make a PG suspect.
    fn suspects(&mut self) -> Result<Vec<base::PgId>, String> {
        let pgs: Vec<base::PgId> = self.model.pgs.keys().copied().collect();
        let suspects: Vec<base::PgId> =
            pgs.into_iter().filter(|pg| self.store().is_suspect(*pg)).collect();
        if !suspects.is_empty() && !self.damage.deep {
            return Err(format!("{suspects:?} are suspect, but nothing was damaged"));
        }
        self.tally.faults.add("suspect PG", suspects.len() as u64);
        Ok(suspects)
    }

    /// Checks that recovery dropped only versions at the tail of each PG, or at or after the hole that
    /// the store reports.
    fn check_facts(&self, lost: &[(base::PgId, Version)]) -> Result<(), String> {
        for (pg, model) in &self.model.pgs {
            let facts = self.store().facts(*pg);
            if facts.is_suspect {
                continue;
            }
            let is_wrong = |hole: Version| hole.epoch != facts.last.epoch || model.is_certain(hole);
            if facts.hole.is_some_and(is_wrong) {
                return Err(format!("{facts:?} of PG {pg}: what it says to lack was certain"));
            }
            let held = model.held_certain..=model.held_given;
            if !held.contains(&facts.held) || facts.held < facts.last {
                return Err(format!("{facts:?} of PG {pg}: held is not within {held:?}"));
            }
        }
        for (pg, version) in lost {
            let facts = self.store().facts(*pg);
            let is_stated = facts.hole.is_some_and(|hole| hole <= *version);
            let is_inside = version.epoch == facts.last.epoch && *version < facts.last;
            if is_inside && !is_stated && !facts.is_suspect {
                return Err(format!("{facts:?} of PG {pg}: {version} is lost and not stated"));
            }
        }
        Ok(())
    }

    /// Checks the last version that the store reports for each PG: it must cover all certain changes,
    /// and must not be above the last version given.
    fn check_versions(&mut self) -> Result<(), String> {
        let Some(store) = &self.store else { unreachable!("it just opened") };
        for (pg, model) in &mut self.model.pgs {
            let found = store.last_version(*pg);
            // If damage destroyed the record of an earlier cut of the journal, entries that were cut
            // off may reappear.
            let is_above = found > model.given && !store.is_suspect(*pg);
            if found < model.certain || is_above {
                return Err(format!(
                    "the last version of PG {pg} is {found}: not between {} and {}",
                    model.certain, model.given
                ));
            }
            model.given = found;
        }
        Ok(())
    }

    /// Checks that the listing contains every block with data, with the right version, and no block
    /// that was never written.
    fn check_listing(&self) -> Result<(), String> {
        for index in 0..self.plan.pools.len() {
            let pool = base::PoolId::new(index as u32 + 1).expect("not 0");
            let listed: std::collections::BTreeMap<BlockKey, (Version, bool)> = self
                .store()
                .blocks(pool, 0, u32::MAX, None)
                .map(|(key, version, tombstone)| (key, (version, tombstone)))
                .collect();
            for (key, block) in self.model.blocks.iter().filter(|(key, _)| key.pool == pool) {
                let state = block.newest();
                let found = listed.get(key);
                let version = found.map_or(Version::ZERO, |(version, _)| *version);
                self.compare_version(*key, &state, version)?;
                let tombstone = found.is_some_and(|(_, tombstone)| *tombstone);
                let known = state.version.is_some();
                if known && state.is_surely_written() && (found.is_none() || tombstone) {
                    return Err(format!("{key:?} holds data but is listed as {found:?}"));
                }
            }
            let is_known = |key: &BlockKey| {
                self.model.blocks.contains_key(key) || self.versions.keys.contains_key(key)
            };
            if let Some(key) = listed.keys().find(|key| !is_known(key)) {
                return Err(format!("{key:?} is listed but was never written"));
            }
        }
        Ok(())
    }

    /// Chooses the blocks to read first: some or all of the blocks, and all blocks whose content is
    /// unknown.
    fn plan_audit(&mut self) {
        let share = Chance::percent(*self.work.pick(&[5, 30, 100]));
        for (key, units) in self.audit_list() {
            let unknown = self.model.blocks[&key].newest().units.contains(&UNKNOWN);
            if self.work.chance(share) || unknown {
                self.todo.push_back(Todo::Read(key, 0..units));
            }
        }
        for (key, units) in self.parity_audit_list() {
            for as_of in [AsOf::View, AsOf::Stable] {
                if self.work.chance(share) {
                    self.todo.push_back(Todo::ParityRead(key, as_of, 0..units));
                }
                if self.table_rows(key) > 0 && self.work.chance(share) {
                    self.todo.push_back(Todo::ParityCopy(key, as_of, 0..units));
                }
            }
        }
    }
}

pub(super) fn has_bit(words: &[u64], bit: usize) -> bool {
    words.get(bit / 64).is_some_and(|word| word & (1 << (bit % 64)) != 0)
}

/// Returns the values that the data encodes, after checking the format of the data.
pub(super) fn values_of(
    key: BlockKey,
    units: &Range<u32>,
    checksums: &[Checksum],
    data: &Buffer,
) -> Result<Vec<Option<u64>>, String> {
    let unit_count = (units.end - units.start) as usize;
    if data.is_empty() {
        if !checksums.is_empty() {
            return Err(format!("a read of {key:?} has checksums but no data"));
        }
        return Ok(vec![Some(0); unit_count]);
    }
    if data.len() != unit_count * UNIT_SIZE as usize || checksums.len() != unit_count {
        return Err(format!("a read of {key:?} returned {} bytes", data.len()));
    }
    if let Some(unit) = checksum::first_mismatch(data, checksums) {
        return Err(format!("unit {unit} of a read of {key:?} does not match its checksum"));
    }
    let bytes = data.chunks_exact(UNIT_SIZE as usize);
    units.clone().zip(bytes).map(|(unit, bytes)| value_of(key, unit, bytes).map(Some)).collect()
}

fn value_of(key: BlockKey, unit: u32, bytes: &[u8]) -> Result<u64, String> {
    pattern::value_of(bytes, place_of(key, unit))
        .ok_or_else(|| format!("unit {unit} of {key:?} holds bytes that were never written there"))
}

/// Returns the content number that the bytes of a note encode.
fn note_content(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let Some(first) = words.first() else { return u64::MAX };
    let same = words.iter().all(|word| word == first) && *rest == first[..rest.len()];
    if same { u64::from_le_bytes(*first) } else { u64::MAX }
}
