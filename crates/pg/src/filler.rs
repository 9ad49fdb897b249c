//! What a learner lacks, block by block, and how far its backfill has got.
//!
//! Invariants
//!   1. Each block of which the learner may lack changes, or hold changes that were never adopted, is copied:
//!      those after the cursor with versions above `complete`, those up to the cursor with versions above
//!      `since`, and those in `whole`.
//!   2. The cursor passes a block once the block is durable at the learner.
//!   3. A key leaves `whole` once its block is durable at the learner.

use std::collections::{BTreeMap, BTreeSet};

use base::Version;
use base::planted::{self, Bug};
use blockstore::BlockKey;
use format::wire::{Activation, Filling, ListedBlock, MemberState};

use super::page::Page;
use super::stripes::list::{PageAsk, Pages};
use super::units::Units;

/// How far a learner's backfill has got.
pub struct Filler {
    /// The progress of the backfill. The list `whole` in it is empty: the field `whole` of this struct holds
    /// those keys.
    filling: Filling,
    /// Blocks that are still to be copied whole.
    whole: BTreeSet<BlockKey>,
    /// Blocks of writes that were in flight when the learner was admitted. The learner did not receive those
    /// writes.
    crossing: BTreeSet<BlockKey>,
    /// The learner's record is durable: the backfill may begin.
    is_begun: bool,
    phase: Phase,
    source: Source,
    /// The last block that the phase has found.
    cursor: Option<BlockKey>,
    /// No more blocks follow the cursor.
    is_listed: bool,
    /// Blocks to copy, with the units to copy; `None`: the whole block.
    todo: BTreeMap<BlockKey, Option<Units>>,
    /// Blocks that are being copied, in key order. `true`: durable at the learner.
    started: BTreeMap<BlockKey, bool>,
    /// The blocks in `started` whose content was sent.
    sent: BTreeSet<BlockKey>,
    /// Members whose block indexes together contain all blocks of the PG.
    listers: Vec<usize>,
    /// Whether every member stores all of a block, so that copies of a block can be compared by version.
    is_whole: bool,
    /// Number of blocks filled since the cursor was last recorded.
    filled_count: usize,
    progress_is_open: bool,
    is_bound: bool,
    /// The place in the order of writes at which the learner was bound. Writes before that place may have
    /// been begun before the learner promised room for them.
    bound_at: u64,
    done_bytes: u64,
    unanswered: Unanswered,
}

/// Writes that were sent to a learner and that it has not answered.
#[derive(Default)]
struct Unanswered {
    /// Bytes of data, by the counter of the write's version.
    writes: BTreeMap<u64, u64>,
    bytes: u64,
    /// There are too many unanswered bytes: clients wait for this learner.
    is_awaited: bool,
    /// The learner has answered none of these writes since the last call of [`Filler::is_stuck`].
    is_stuck: bool,
}

/// Which blocks are being filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Blocks up to the cursor, which lack only versions above `since`.
    Before,
    /// Blocks after the cursor.
    Behind,
}

/// Pages to request: where each begins. Outer `None`: that page is not requested.
#[derive(Default)]
pub struct PageAsks {
    /// Pages of the blocks of acting members.
    pub own: Vec<PageAsk>,
    /// Only blocks of the acting members with versions above this one are listed.
    pub own_newer_than: Version,
    /// The page of the learner's blocks; all of its blocks are listed.
    pub learner: Option<Option<BlockKey>>,
}

/// What the primary does next for a learner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Nothing: more copies, or an answer of the learner, must come first.
    Wait,
    /// Make the learner's cursor durable.
    Progress,
    /// Go on to the blocks after the cursor. If there is a cursor, also make durable at the learner that the
    /// blocks up to the cursor are done.
    GoBehind { has_cursor: bool },
    /// Bind the learner: it has everything.
    Bind,
}

/// Where the blocks to fill are found.
enum Source {
    /// All blocks to fill are known.
    Known,
    /// The block lists of acting members, page by page.
    Index(Pages),
    /// The block lists of acting members, side by side with that of the learner.
    Both { own: Pages, learner: Page },
}

impl Filler {
    pub fn new(
        filling: Filling,
        crossing: BTreeSet<BlockKey>,
        listers: Vec<usize>,
        is_whole: bool,
    ) -> Filler {
        Filler {
            sent: BTreeSet::new(),
            listers,
            is_whole,
            whole: filling.whole.iter().copied().collect(),
            filling: Filling { whole: Vec::new(), ..filling },
            crossing,
            is_begun: false,
            phase: Phase::Before,
            source: Source::Known,
            cursor: None,
            is_listed: false,
            todo: BTreeMap::new(),
            started: BTreeMap::new(),
            filled_count: 0,
            progress_is_open: false,
            is_bound: false,
            bound_at: 0,
            done_bytes: 0,
            unanswered: Unanswered::default(),
        }
    }

    /// Begins the backfill: the learner's record is durable. Returns an error if it had begun before.
    pub fn begin(&mut self) -> Result<(), String> {
        if self.is_begun {
            return Err("the same activation was recorded twice".into());
        }
        self.is_begun = true;
        Ok(())
    }

    pub fn is_begun(&self) -> bool {
        self.is_begun
    }

    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Returns whether blocks are copied to the learner.
    pub fn is_filling(&self) -> bool {
        self.is_begun && !self.is_bound
    }

    /// Returns how far the filling has got, without the keys that are copied whole.
    pub fn filling(&self) -> &Filling {
        &self.filling
    }

    /// Notes that all up to a key is at the learner, which has everything up to a version there.
    pub fn pass(&mut self, cursor: Option<BlockKey>, since: Version) {
        (self.filling.cursor, self.filling.since) = (cursor, since);
    }

    /// The learner is compared as a whole from now on.
    pub fn list(&mut self) {
        list_all(&mut self.filling);
    }

    /// Returns whether the learner is making its progress durable.
    pub fn is_progressing(&self) -> bool {
        self.progress_is_open
    }

    /// Notes that so many bytes are durable at the learner.
    pub fn on_copied(&mut self, bytes: u64) {
        self.done_bytes += bytes;
    }

    /// Clients wait until the learner has answered what was sent to it.
    pub fn await_answers(&mut self) {
        let unanswered = &mut self.unanswered;
        if !unanswered.is_awaited && !unanswered.writes.is_empty() {
            (unanswered.is_awaited, unanswered.is_stuck) = (true, false);
        }
    }

    /// Returns the bytes copied in this epoch.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    /// Returns whether a block belongs to the present phase.
    fn has_in_phase(&self, key: BlockKey) -> bool {
        let is_before = self.filling.cursor.is_some_and(|cursor| key <= cursor);
        is_before == (self.phase == Phase::Before)
    }

    /// Returns the version above which blocks of the present phase must be copied.
    fn threshold(&self) -> Version {
        match self.phase {
            Phase::Before => self.filling.since,
            Phase::Behind => self.filling.complete,
        }
    }

    /// Notes that a write was sent to the learner. Returns true if clients must wait for the learner from now
    /// on: otherwise a learner that answers more slowly than clients write would use ever more memory here.
    pub fn on_sent(&mut self, version: Version, bytes: u64, bytes_max: u64) -> bool {
        let unanswered = &mut self.unanswered;
        unanswered.writes.insert(version.counter, bytes);
        unanswered.bytes += bytes;
        let is_over = unanswered.bytes > bytes_max && !unanswered.is_awaited;
        if is_over {
            (unanswered.is_awaited, unanswered.is_stuck) = (true, false);
        }
        is_over
    }

    /// Notes that the learner has a write. Returns true if clients need not wait for the learner any more.
    pub fn on_wrote(&mut self, version: Version, bytes_max: u64) -> bool {
        let bytes = self.unanswered.writes.remove(&version.counter).unwrap_or(0);
        self.unanswered.bytes -= bytes;
        self.caught_up(bytes_max)
    }

    /// Notes that the learner has all writes up to a version. Returns true if clients need not wait for the
    /// learner any more.
    pub fn on_wrote_upto(&mut self, version: Version, bytes_max: u64) -> bool {
        let later = self.unanswered.writes.split_off(&(version.counter + 1));
        let answered = std::mem::replace(&mut self.unanswered.writes, later);
        self.unanswered.bytes -= answered.values().sum::<u64>();
        self.caught_up(bytes_max)
    }

    fn caught_up(&mut self, bytes_max: u64) -> bool {
        let unanswered = &mut self.unanswered;
        unanswered.is_stuck = false;
        let has_caught_up = unanswered.is_awaited && unanswered.bytes <= bytes_max / 2;
        if has_caught_up {
            unanswered.is_awaited = false;
        }
        has_caught_up && !self.is_bound
    }

    /// Returns whether clients wait for the learner and it has answered no write since the last call.
    pub fn is_stuck(&mut self) -> bool {
        let was_stuck = std::mem::replace(&mut self.unanswered.is_stuck, true);
        self.unanswered.is_awaited && was_stuck
    }

    /// Returns how many writes were sent to the learner and have not been answered.
    pub fn unanswered_count(&self) -> usize {
        self.unanswered.writes.len()
    }

    /// Returns how many blocks are on their way to the learner.
    pub fn open_count(&self) -> usize {
        self.started.values().filter(|is_done| !**is_done).count()
    }

    /// Begins a phase. `changed` returns the blocks that changed above a version and which of their units to
    /// copy, or `None` if this OSD would have to list its blocks to know that.
    pub fn begin_phase(
        &mut self,
        phase: Phase,
        changed: impl FnOnce(Version) -> Option<BTreeMap<BlockKey, Option<Units>>>,
    ) {
        self.phase = phase;
        self.todo.clear();
        self.is_listed = false;
        self.cursor = match phase {
            Phase::Before => None,
            Phase::Behind => self.filling.cursor,
        };
        let is_trusted = phase == Phase::Before && planted::on(Bug::CursorTrusted);
        let is_both = phase == Phase::Behind && self.filling.listing;
        let changed = if is_both { None } else { changed(self.threshold()) };
        if is_both {
            let own = Pages::new(self.listers.clone(), Version::ZERO, self.cursor);
            let learner = Page::behind(self.cursor);
            self.source = Source::Both { own, learner };
        } else if let Some(mut changed) = changed {
            changed.retain(|key, _| self.has_in_phase(*key));
            self.todo = changed;
            self.is_listed = true;
        } else {
            let newer_than = self.threshold();
            self.source = Source::Index(Pages::new(self.listers.clone(), newer_than, self.cursor));
        }
        let whole: Vec<BlockKey> = self.whole.union(&self.crossing).copied().collect();
        for key in whole {
            if self.has_in_phase(key) {
                self.todo.insert(key, None);
            }
        }
        if is_trusted || (phase == Phase::Before && self.filling.cursor.is_none()) {
            self.todo.clear();
            self.is_listed = true;
        }
    }

    /// Returns the next block to copy, if one is known. The block then counts as on its way.
    pub fn start_next(&mut self) -> Option<(BlockKey, Option<Units>)> {
        let (key, _) = self.todo.first_key_value()?;
        let is_found = self.is_listed || Some(*key) <= self.cursor;
        if !is_found {
            return None;
        }
        let (key, units) = self.todo.pop_first()?;
        self.started.insert(key, false);
        Some((key, units))
    }

    /// Returns whether all blocks to copy in this phase have been found.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Returns which pages to request now.
    pub fn ask_pages(&mut self) -> PageAsks {
        let (own, learner) = match &mut self.source {
            Source::Known => return PageAsks::default(),
            Source::Index(own) => (own, None),
            Source::Both { own, learner } => (own, learner.ask_from()),
        };
        PageAsks { own: own.asks(), own_newer_than: own.newer_than(), learner }
    }

    /// Adds a page of the blocks of an acting member.
    pub fn on_own_page(
        &mut self,
        lister: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
    ) -> Result<(), String> {
        match &mut self.source {
            Source::Index(own) | Source::Both { own, .. } => own.on_page(lister, blocks, is_last),
            Source::Known => Ok(()),
        }
    }

    /// Adds a page of the learner's blocks.
    pub fn on_learner_page(
        &mut self,
        blocks: Vec<ListedBlock>,
        is_last: bool,
    ) -> Result<(), String> {
        match &mut self.source {
            Source::Both { learner, .. } => learner.on_page(Version::ZERO, blocks, is_last),
            Source::Known | Source::Index(_) => Ok(()),
        }
    }

    /// Adds blocks of writes that the learner did not receive.
    pub fn cross(&mut self, keys: BTreeSet<BlockKey>) {
        self.crossing.extend(keys);
    }

    /// Returns whether the learner has the current state of a block, or will have it when the block's next
    /// write arrives there. That is so if the backfill found that the learner lacks nothing of the block, or
    /// if the block's content was sent.
    pub fn has(&self, key: BlockKey) -> bool {
        let is_before = self.filling.cursor.is_some_and(|cursor| key <= cursor);
        let is_found = self.is_listed || Some(key) <= self.cursor;
        let is_passed = match self.phase {
            Phase::Before => is_before && is_found,
            Phase::Behind => is_before || is_found,
        };
        let is_queued = self.started.get(&key) == Some(&false) && !self.sent.contains(&key);
        self.is_begun && is_passed && !self.todo.contains_key(&key) && !is_queued
    }

    /// Notes that the learner did not receive a write, because it does not have the block yet. The block must
    /// be filled, even if the backfill has found it before.
    pub fn skip(&mut self, key: BlockKey) {
        if self.started.get(&key) == Some(&false) {
            // The block's content is read at its turn, so it will include the write.
            return;
        }
        match self.has_in_phase(key) {
            true => drop(self.todo.insert(key, None)),
            false => drop(self.crossing.insert(key)),
        }
    }

    /// Notes that a block's content was sent.
    pub fn on_fill_sent(&mut self, key: BlockKey) {
        assert!(self.is_started(key));
        self.sent.insert(key);
    }

    /// Returns whether this block is on its way to the learner.
    pub fn is_started(&self, key: BlockKey) -> bool {
        self.started.get(&key) == Some(&false)
    }

    /// Notes that a block is durable at the learner.
    pub fn on_filled(&mut self, key: BlockKey, bytes: u64) {
        let before = self.started.insert(key, true);
        assert!(before == Some(false));
        self.done_bytes += bytes;
        self.sent.remove(&key);
        self.whole.remove(&key);
        self.crossing.remove(&key);
        self.move_cursor();
    }

    /// Returns what to do next, when more blocks may have become durable at the learner. `mark`: the version
    /// up to which all members are durable. `progress_every`: number of filled blocks after which the cursor
    /// is made durable.
    pub fn step(&mut self, mark: Version, progress_every: usize) -> Step {
        if self.progress_is_open {
            return Step::Wait;
        }
        let is_done = self.is_phase_done();
        match self.phase {
            _ if planted::on(Bug::LearnerCountedAsMember) => Step::Bind,
            Phase::Behind if is_done => Step::Bind,
            Phase::Behind if self.filled_count >= progress_every => {
                self.filling.since = mark;
                Step::Progress
            }
            Phase::Before if is_done => {
                self.filling.since = mark;
                Step::GoBehind { has_cursor: self.filling.cursor.is_some() }
            }
            Phase::Behind | Phase::Before => Step::Wait,
        }
    }

    /// Returns the progress that the learner must make durable; `None`: the learner lacks nothing.
    pub fn begin_progress(&mut self) -> Option<Filling> {
        self.filled_count = 0;
        self.progress_is_open = true;
        Some(self.to_keep()).filter(|_| !self.is_bound)
    }

    /// Notes that the learner's progress is durable.
    pub fn end_progress(&mut self) {
        self.progress_is_open = false;
    }

    /// Binds the learner: from now on no write is acknowledged without it. `order`: the place of the next
    /// write.
    pub fn bind(&mut self, order: u64) {
        assert!(self.is_begun);
        (self.is_bound, self.bound_at) = (true, order);
    }

    /// Returns the place in the order of writes at which the learner was bound. Earlier writes may have been
    /// begun before it promised room for them. Requires: it is bound.
    pub fn bound_at(&self) -> u64 {
        self.bound_at
    }

    /// Moves the cursor past the blocks that are done.
    fn move_cursor(&mut self) {
        while let Some(first) = self.started.first_entry()
            && *first.get()
        {
            let key = first.remove_entry().0;
            self.filled_count += 1;
            if self.phase == Phase::Behind {
                self.filling.cursor = self.filling.cursor.max(Some(key));
            }
        }
    }

    /// Returns the progress that the learner must record.
    fn to_keep(&self) -> Filling {
        let whole = self.whole.iter().copied().filter(|_| !planted::on(Bug::WholeNotKept));
        let filling = Filling { whole: whole.collect(), ..self.filling.clone() };
        match planted::on(Bug::CompleteWithCursor) {
            true => Filling { complete: filling.since, ..filling },
            false => filling,
        }
    }

    /// Returns whether all blocks of the phase are durable at the learner.
    fn is_phase_done(&self) -> bool {
        self.is_listed && self.todo.is_empty() && self.started.is_empty()
    }

    /// Returns an estimate of the bytes still to be compared or copied; `None`: not known yet.
    pub fn left_bytes(&self, block_bytes: u64, hashes: (u32, u32)) -> Option<u64> {
        let open = (self.todo.len() + self.open_count()) as u64;
        let known = open * block_bytes;
        let first = u64::from(hashes.0);
        let seen = self.cursor.map_or(0, |cursor| u64::from(cursor.hash).saturating_sub(first));
        if self.is_listed {
            return Some(known);
        }
        if seen == 0 {
            return None;
        }
        // Hashes are spread evenly, so the rest of the hash range needs as many bytes per hash as the part
        // seen so far.
        let unseen = u64::from(hashes.1).saturating_sub(first + seen);
        let more = u128::from(self.done_bytes + known) * u128::from(unseen) / u128::from(seen);
        Some(known.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)))
    }
}

/// Returns where the backfill of a learner must begin, and the version above which the learner's data was
/// never adopted (`None`: all of its data is of this epoch). `may_have_more`: its record is older than what
/// the operator gave up, so it may have that, under versions that others have, too.
pub fn judge(
    history: &[Activation],
    state: &MemberState,
    floor: Version,
    may_have_more: bool,
) -> (Filling, Option<Version>) {
    let is_known = !may_have_more && history.iter().any(|past| past.epoch <= state.record_epoch);
    let next = history.iter().find(|next| next.epoch > state.record_epoch);
    let end = next.map(|next| next.adopted);
    let is_cut = is_known || may_have_more;
    let cap = |version: Version| end.filter(|_| is_cut).map_or(version, |end| version.min(end));
    let complete = cap(state.complete);
    let known = state.filling.clone().filter(|_| is_known);
    let (cursor, since) = match &known {
        Some(filling) if cap(filling.since) >= floor => (filling.cursor, cap(filling.since)),
        _ => (None, Version::ZERO),
    };
    let is_listed = known.as_ref().is_some_and(|filling| filling.listing);
    let listing = !is_known || is_listed || complete < floor;
    let since = if cursor.is_some() { since } else { Version::ZERO };
    let known = known.filter(|_| !planted::on(Bug::WholeForgotten));
    let whole = known.map(|filling| filling.whole).unwrap_or_default();
    (Filling { complete, cursor, since, whole, listing }, end)
}

/// Makes the backfill compare all blocks, from the first one.
pub fn list_all(filling: &mut Filling) {
    filling.listing = true;
    filling.cursor = None;
    filling.since = Version::ZERO;
    filling.whole.clear();
}

impl Filler {
    /// Takes blocks to fill from the pages that have arrived. Returns false if more pages must arrive first.
    pub fn find_listed(&mut self) -> bool {
        let threshold = self.threshold();
        let upto = self.filling.cursor.filter(|_| self.phase == Phase::Before);
        loop {
            let (own, its) = match &mut self.source {
                Source::Known => return false,
                Source::Index(own) => (own, None),
                Source::Both { own, learner } => (own, Some(learner)),
            };
            if own.is_missing() || its.as_ref().is_some_and(|its| its.is_missing()) {
                return !self.todo.is_empty() && self.cursor >= self.todo.keys().next().copied();
            }
            let (own_key, its_key) = (own.next_key(), its.as_ref().and_then(|its| its.next_key()));
            let key = own_key.into_iter().chain(its_key).min();
            let Some(key) = key.filter(|key| upto.is_none_or(|upto| *key <= upto)) else {
                self.is_listed = true;
                self.source = Source::Known;
                return true;
            };
            let listed = if own_key == Some(key) { own.take() } else { None };
            let version = listed.map_or(Version::ZERO, |listed| listed.version);
            let is_below = version <= threshold || planted::on(Bug::EqualVersionBelieved);
            let is_same = its.is_some_and(|its| its.take(key) == version && is_below);
            let is_same = is_same && self.is_whole;
            self.cursor = Some(key);
            if !is_same {
                self.todo.insert(key, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Epoch;

    use super::*;
    use crate::tests::state;

    /// What a learner has that may have more than the others is listed. It shares with them at most what they
    /// had adopted when its epoch was over.
    #[test]
    fn who_may_have_more_is_listed_up_to_the_end_of_its_epoch() {
        let version = |epoch, counter| Version { epoch: Epoch::new(epoch), counter };
        let history = [
            Activation { epoch: Epoch::new(1), adopted: Version::ZERO },
            Activation { epoch: Epoch::new(5), adopted: version(1, 4) },
        ];
        let (record_epoch, complete) = (Epoch::new(1), version(1, 9));
        let state = MemberState { record_epoch, complete, held: complete, ..state() };
        for may_have_more in [false, true] {
            let (filling, end) = judge(&history, &state, Version::ZERO, may_have_more);
            assert_eq!((filling.complete, end), (version(1, 4), Some(version(1, 4))));
            assert_eq!((filling.listing, filling.cursor), (may_have_more, None));
        }
    }
}
