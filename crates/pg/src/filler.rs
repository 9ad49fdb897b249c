//! What a learner lacks, block by block, and how far its backfill is.
//!
//! Invariants
//!   1. A block of which the learner may lack or have too much is copied: what is behind the
//!      cursor by versions above `complete`, what is before it above `since`, and `whole`.
//!   2. The cursor passes a block once that is durable at the learner.
//!   3. A key leaves `whole` once its block is durable at the learner.

use std::collections::{BTreeMap, BTreeSet};

use base::Version;
use base::planted::{self, Bug};
use blockstore::BlockKey;
use format::wire::{Activation, Filling, ListedBlock, MemberState};

use super::page::Page;
use super::units::Units;

/// How far a learner's filling is.
pub struct Filler {
    /// From where it is filled, as of now; `whole` is kept apart.
    filling: Filling,
    /// Blocks that are to be copied whole and are not yet.
    whole: BTreeSet<BlockKey>,
    /// Blocks of writes that were under way when it was admitted: it did not get those.
    crossing: BTreeSet<BlockKey>,
    /// Its record is durable: the filling may begin.
    is_begun: bool,
    phase: Phase,
    source: Source,
    /// The last block that the phase has found.
    cursor: Option<BlockKey>,
    /// No block follows the cursor.
    is_listed: bool,
    /// Blocks to be copied; `None`: whole.
    todo: BTreeMap<BlockKey, Option<Units>>,
    /// Blocks on their way, in key order; true: durable at the learner.
    started: BTreeMap<BlockKey, bool>,
    /// Blocks filled since the cursor was last kept.
    filled_count: usize,
    progress_is_open: bool,
    is_bound: bool,
    /// Once it is bound: writes before this one may have been begun without room promised by it.
    bound_at: u64,
    done_bytes: u64,
    unanswered: Unanswered,
}

/// Writes that a learner was sent and has not answered.
#[derive(Default)]
struct Unanswered {
    /// By the counters of their versions: bytes of data.
    writes: BTreeMap<u64, u64>,
    bytes: u64,
    /// There are too many: clients wait for this learner.
    is_awaited: bool,
    /// It answered none of them since the last call of [`Filler::is_stuck`].
    is_stuck: bool,
}

/// Which blocks are being filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Those up to the cursor, which lack only what is newer than `since`.
    Before,
    /// Those behind it.
    Behind,
}

/// Pages to ask for: where each begins.
pub struct PageAsks {
    /// Of this OSD's own blocks.
    pub own: Option<Option<BlockKey>>,
    /// Of its own blocks, only those with newer versions.
    pub own_newer_than: Version,
    /// Of the learner's blocks, all of them.
    pub learner: Option<Option<BlockKey>>,
}

/// What follows for a learner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// More blocks, or an answer of the learner, must come first.
    Wait,
    /// The learner is to keep its cursor.
    Progress,
    /// Blocks behind the cursor are filled from now on. If there is a cursor, the learner is to keep that
    /// those before it are done.
    GoBehind { has_cursor: bool },
    /// It has everything.
    Bind,
}

/// Where the blocks to fill are found.
enum Source {
    /// All are known.
    Known,
    /// This OSD's own index, page by page.
    Index(Page),
    /// Its index beside the learner's.
    Both { own: Page, learner: Page },
}

impl Filler {
    pub fn new(filling: Filling, crossing: BTreeSet<BlockKey>) -> Filler {
        Filler {
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

    /// Its record is durable: the backfill begins. The error: it did before.
    pub fn begin(&mut self) -> Result<(), String> {
        if self.is_begun {
            return Err("a second record of the same activation".into());
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

    /// Whether blocks are copied to it.
    pub fn is_filling(&self) -> bool {
        self.is_begun && !self.is_bound
    }

    /// Bytes copied in this epoch.
    pub fn done_bytes(&self) -> u64 {
        self.done_bytes
    }

    /// Whether a block belongs to the phase.
    fn has_in_phase(&self, key: BlockKey) -> bool {
        let is_before = self.filling.cursor.is_some_and(|cursor| key <= cursor);
        is_before == (self.phase == Phase::Before)
    }

    /// Above this version blocks of the phase are to be copied.
    fn threshold(&self) -> Version {
        match self.phase {
            Phase::Before => self.filling.since,
            Phase::Behind => self.filling.complete,
        }
    }

    /// A write was sent to it. True: clients must wait for it from now on, for a learner that answers more
    /// slowly than clients write would take ever more memory here.
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

    /// It has a write. True: clients need not wait for it any more.
    pub fn on_wrote(&mut self, version: Version, bytes_max: u64) -> bool {
        let unanswered = &mut self.unanswered;
        unanswered.bytes -= unanswered.writes.remove(&version.counter).unwrap_or(0);
        unanswered.is_stuck = false;
        let has_caught_up = unanswered.is_awaited && unanswered.bytes <= bytes_max / 2;
        if has_caught_up {
            unanswered.is_awaited = false;
        }
        has_caught_up && !self.is_bound
    }

    /// Whether clients wait for it and it answered nothing since this was called last.
    pub fn is_stuck(&mut self) -> bool {
        let was_stuck = std::mem::replace(&mut self.unanswered.is_stuck, true);
        self.unanswered.is_awaited && was_stuck
    }

    /// Writes that it was sent and has not answered.
    pub fn unanswered_count(&self) -> usize {
        self.unanswered.writes.len()
    }

    /// Blocks that are on their way to it.
    pub fn open_count(&self) -> usize {
        self.started.values().filter(|is_done| !**is_done).count()
    }

    /// Begins a phase. `changed`: which blocks changed above a version, and what of them is copied, if
    /// this OSD knows that without listing its blocks.
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
            let (own, learner) = (Page::behind(self.cursor), Page::behind(self.cursor));
            self.source = Source::Both { own, learner };
        } else if let Some(mut changed) = changed {
            changed.retain(|key, _| self.has_in_phase(*key));
            self.todo = changed;
            self.is_listed = true;
        } else {
            self.source = Source::Index(Page::behind(self.cursor));
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

    /// The next block to copy, if it is known; it counts as on its way.
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

    /// Whether no more blocks are to be found in this phase.
    pub fn is_listed(&self) -> bool {
        self.is_listed
    }

    /// Which pages are to be asked for now.
    pub fn ask_pages(&mut self) -> PageAsks {
        let own_newer_than = self.own_newer_than();
        let (own, learner) = match &mut self.source {
            Source::Known => (None, None),
            Source::Index(own) => (own.ask_from(), None),
            Source::Both { own, learner } => (own.ask_from(), learner.ask_from()),
        };
        PageAsks { own, own_newer_than, learner }
    }

    /// What of this OSD's own blocks is listed.
    fn own_newer_than(&self) -> Version {
        match self.source {
            Source::Both { .. } => Version::ZERO,
            Source::Known | Source::Index(_) => self.threshold(),
        }
    }

    /// A page of this OSD's own blocks came.
    pub fn on_own_page(&mut self, blocks: Vec<ListedBlock>, is_last: bool) -> Result<(), String> {
        let newer_than = self.own_newer_than();
        match &mut self.source {
            Source::Index(own) | Source::Both { own, .. } => {
                own.on_page(newer_than, blocks, is_last)
            }
            Source::Known => Ok(()),
        }
    }

    /// A page of the learner's blocks came.
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

    /// Whether this block is on its way.
    pub fn is_started(&self, key: BlockKey) -> bool {
        self.started.get(&key) == Some(&false)
    }

    /// A block is durable at the learner.
    pub fn on_filled(&mut self, key: BlockKey, bytes: u64) {
        let before = self.started.insert(key, true);
        assert!(before == Some(false));
        self.done_bytes += bytes;
        self.whole.remove(&key);
        self.crossing.remove(&key);
        self.move_cursor();
    }

    /// What follows, now that more blocks are durable at the learner. `mark`: what is durable at all
    /// members; `progress_every`: so many blocks make the cursor durable.
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

    /// The learner is to keep how far it is; `None`: it lacks nothing.
    pub fn begin_progress(&mut self) -> Option<Filling> {
        self.filled_count = 0;
        self.progress_is_open = true;
        Some(self.to_keep()).filter(|_| !self.is_bound)
    }

    /// The learner kept how far it is.
    pub fn end_progress(&mut self) {
        self.progress_is_open = false;
    }

    /// From now on nothing is acknowledged without it. `order`: the place of the next write.
    pub fn bind(&mut self, order: u64) {
        assert!(self.is_begun);
        (self.is_bound, self.bound_at) = (true, order);
    }

    /// Writes before this place may have been begun without room promised by it. Requires: it is bound.
    pub fn bound_at(&self) -> u64 {
        self.bound_at
    }

    /// Moves the cursor behind all blocks that are done.
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

    /// What the learner is to keep.
    fn to_keep(&self) -> Filling {
        let whole = self.whole.iter().copied().filter(|_| !planted::on(Bug::WholeNotKept));
        let filling = Filling { whole: whole.collect(), ..self.filling.clone() };
        match planted::on(Bug::CompleteWithCursor) {
            true => Filling { complete: filling.since, ..filling },
            false => filling,
        }
    }

    /// Whether all blocks of the phase are at the learner.
    fn is_phase_done(&self) -> bool {
        self.is_listed && self.todo.is_empty() && self.started.is_empty()
    }

    /// About how many bytes are still to be compared or copied; `None`: not known yet.
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
        // Hashes are spread evenly: as much as was copied for those seen follows for the others.
        let unseen = u64::from(hashes.1).saturating_sub(first + seen);
        let more = u128::from(self.done_bytes + known) * u128::from(unseen) / u128::from(seen);
        Some(known.saturating_add(u64::try_from(more).unwrap_or(u64::MAX)))
    }
}

/// From where a learner is to be filled, and the version beyond which what it holds was never
/// adopted (`None`: what it holds is this epoch's).
pub fn judge(
    history: &[Activation],
    state: &MemberState,
    floor: Version,
) -> (Filling, Option<Version>) {
    let is_known = history.iter().any(|past| past.epoch <= state.record_epoch);
    let next = history.iter().find(|next| next.epoch > state.record_epoch);
    let end = next.map(|next| next.adopted);
    let cap = |version: Version| end.filter(|_| is_known).map_or(version, |end| version.min(end));
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

/// Everything is compared, from the beginning.
pub fn list_all(filling: &mut Filling) {
    filling.listing = true;
    filling.cursor = None;
    filling.since = Version::ZERO;
    filling.whole.clear();
}

impl Filler {
    /// Takes blocks to fill from the pages that came; false: more pages must come first.
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
            let its_key = its.as_ref().and_then(|its| its.next_key());
            let key = own.next_key().into_iter().chain(its_key).min();
            let Some(key) = key.filter(|key| upto.is_none_or(|upto| *key <= upto)) else {
                self.is_listed = true;
                self.source = Source::Known;
                return true;
            };
            let version = own.take(key);
            let is_below = version <= threshold || planted::on(Bug::EqualVersionBelieved);
            let is_same = its.is_some_and(|its| its.take(key) == version && is_below);
            self.cursor = Some(key);
            if !is_same {
                self.todo.insert(key, None);
            }
        }
    }
}
