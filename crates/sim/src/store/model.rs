//! The model of a store: the content of each block after its changes, certain or not, and thus the set of
//! correct answers.
//!
//! ```text
//!   change requested ─▶ later (in order) ──answered──▶ base
//!                         └──crash──▶ a prefix of them happened: the version of the block shows which
//! ```
//!
//! Invariants
//!   1. `base` includes the changes that are certain. `later` lists, in order, changes that are not certain
//!      yet or that a pending read must not see.
//!   2. A change that was lost in a crash never reappears: it is removed from the model.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

use base::{BlockSize, PgId, Version};
use blockstore::{BlockKey, NoteKey};

/// The value of a unit that may have lost any of its changes to damage: the unit holds one of its
/// earlier values.
pub const UNKNOWN: u64 = u64::MAX;

/// The expected content of a store.
#[derive(Default)]
pub struct Model {
    /// Blocks by key, including blocks that were never written or are deleted.
    pub blocks: BTreeMap<BlockKey, Block>,
    /// Notes by key.
    pub notes: BTreeMap<NoteKey, Note>,
    /// The versions of each PG.
    pub pgs: BTreeMap<PgId, Pg>,
    order_last: u64,
    /// Journal entries up to this order can no longer be lost, because a later entry was answered.
    entries_certain: u64,
    /// Whether the store may move blocks. If a crash loses the data of a move, it also loses later
    /// changes of the block that had not been answered (docs/internals/disk.md: row H).
    moves_blocks: bool,
}

/// The versions of one PG.
#[derive(Default)]
pub struct Pg {
    /// The last version given to a change.
    pub given: Version,
    /// The newest version of a certain change.
    pub certain: Version,
    /// Versions of unanswered changes.
    pub open: BTreeSet<Version>,
    /// The highest floor that was requested.
    pub floor: Version,
    /// Versions of certain changes.
    certain_all: BTreeSet<Version>,
    /// The highest version that some block certainly had.
    pub held_certain: Version,
    /// The highest version that some block may have had.
    pub held_given: Version,
}

impl Pg {
    /// Records that a change is certain.
    fn settled(&mut self, change: &Change) {
        self.held_certain = self.held_certain.max(change.version);
        if change.kind.is_versioned() {
            self.certain = self.certain.max(change.version);
            self.certain_all.insert(change.version);
            self.open.remove(&change.version);
        }
    }

    /// Returns whether the change with this version is certain.
    pub fn is_certain(&self, version: Version) -> bool {
        self.certain_all.contains(&version)
    }
}

/// One block.
pub struct Block {
    /// Its PG.
    pub pg: PgId,
    /// Its size.
    pub size: BlockSize,
    base: State,
    /// Whether damage may have destroyed some of its changes.
    was_forgotten: bool,
    /// Units whose values are known only from reads after damage.
    learned: BTreeSet<u32>,
    later: VecDeque<Change>,
    open_reads: BTreeSet<u64>,
}

/// The state of a block at one version.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    /// The version of its newest change; `None`: unknown because of damage.
    pub version: Option<Version>,
    /// Whether its newest change was a deletion.
    pub deleted: bool,
    /// The value of each unit: 0, or the order of the change that wrote it, or [`UNKNOWN`].
    pub units: Vec<u64>,
}

/// One change of a block.
#[derive(Clone, Debug)]
pub struct Change {
    order: u64,
    version: Version,
    kind: ChangeKind,
    /// Whether its data may be stored outside the journal, so that a crash may lose the data.
    large: bool,
    answered: bool,
    /// Whether it was answered as written: then only a power failure may lose it.
    written: bool,
}

/// The effect of a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ChangeKind {
    /// The units get the change's order as their value.
    Write(Range<u32>),
    /// The units read as zeros.
    Zero(Range<u32>),
    /// All units read as zeros, and the block is deleted.
    Delete,
    /// A repair, which applies to any previous version: the `written` units get the change's order as
    /// their value, and the `zeros` units read as zeros.
    Repair { written: Vec<u32>, zeros: Vec<u32> },
    /// A repair that makes the block a tombstone.
    RepairTombstone,
    /// A repair that removes the block without a tombstone, as if it had never existed.
    RepairGone,
}

impl ChangeKind {
    /// Returns whether a change of this kind determines the content of the unit.
    fn touches(&self, unit: u32) -> bool {
        match self {
            ChangeKind::Write(range) | ChangeKind::Zero(range) => range.contains(&unit),
            ChangeKind::Repair { written, zeros } => {
                written.contains(&unit) || zeros.contains(&unit)
            }
            ChangeKind::Delete | ChangeKind::RepairTombstone | ChangeKind::RepairGone => true,
        }
    }

    /// Returns whether a change of this kind uses the next version of its PG.
    fn is_versioned(&self) -> bool {
        matches!(self, ChangeKind::Write(_) | ChangeKind::Zero(_) | ChangeKind::Delete)
    }
}

/// The possible results of a read.
#[derive(Debug)]
pub struct Expected {
    /// The state after all changes requested before the read.
    pub state: State,
    /// Other possible states, because an unanswered write may still be refused.
    pub others: Vec<State>,
    /// The state after each change that was requested later, with the order of the change. A read that
    /// was overtaken may return one of these states; the change is then certain.
    pub later: Vec<(u64, State)>,
}

/// One note. Its content is the order of the request that wrote it, or 0 if there is no note.
#[derive(Default, Debug)]
pub struct Note {
    base: u64,
    /// (order, content) of unanswered requests.
    later: VecDeque<(u64, u64)>,
}

impl State {
    fn apply(&mut self, change: &Change) {
        self.version = Some(change.version);
        self.deleted = matches!(change.kind, ChangeKind::Delete | ChangeKind::RepairTombstone);
        let (range, value) = match &change.kind {
            ChangeKind::Write(range) => (range.clone(), change.order),
            ChangeKind::Zero(range) => (range.clone(), 0),
            ChangeKind::Delete | ChangeKind::RepairTombstone | ChangeKind::RepairGone => {
                (0..self.units.len() as u32, 0)
            }
            ChangeKind::Repair { written, zeros } => {
                written.iter().for_each(|unit| self.units[*unit as usize] = change.order);
                zeros.iter().for_each(|unit| self.units[*unit as usize] = 0);
                return;
            }
        };
        self.units[range.start as usize..range.end as usize].fill(value);
    }

    /// Returns whether any unit may hold data.
    pub fn is_written(&self) -> bool {
        self.units.iter().any(|value| *value != 0)
    }

    /// Returns whether any unit is known to hold data.
    pub fn is_surely_written(&self) -> bool {
        self.units.iter().any(|value| *value != 0 && *value != UNKNOWN)
    }
}

impl Change {
    fn may_be_refused(&self) -> bool {
        !self.answered && !self.written
    }
}

impl Block {
    fn new(pg: PgId, size: BlockSize) -> Block {
        let units = vec![0; size.unit_count() as usize];
        let base = State { version: Some(Version::ZERO), deleted: false, units };
        Block {
            pg,
            size,
            base,
            was_forgotten: false,
            learned: BTreeSet::new(),
            later: VecDeque::new(),
            open_reads: BTreeSet::new(),
        }
    }

    /// Returns the newest state, including unanswered changes.
    pub fn newest(&self) -> State {
        self.state_before(u64::MAX)
    }

    /// Returns whether no change of the block has this version.
    pub fn is_distinct(&self, version: Version) -> bool {
        self.base.version != Some(version) && self.later.iter().all(|of| of.version != version)
    }

    /// Returns the certain state, if no change is pending.
    pub fn settled_state(&self) -> Option<&State> {
        self.later.is_empty().then_some(&self.base)
    }

    fn state_before(&self, order: u64) -> State {
        let mut state = self.base.clone();
        for change in self.later.iter().take_while(|change| change.order < order) {
            state.apply(change);
        }
        state
    }

    /// Moves certain changes to `base`, unless a pending read must be checked without them.
    fn settle(&mut self, pg: &mut Pg) {
        let Some(last) = self.later.iter().rposition(|change| change.answered) else { return };
        let limit = self.open_reads.first().copied().unwrap_or(u64::MAX);
        for _ in 0..=last {
            // An answer covers all earlier changes of its block.
            let Some(change) = self.later.pop_front_if(|change| change.order < limit) else {
                break;
            };
            pg.settled(&change);
            self.apply(&change);
        }
    }
}

impl Model {
    /// Creates the model of a new store. `moves_blocks`: see the field of that name.
    pub fn new(moves_blocks: bool) -> Model {
        Model { moves_blocks, ..Model::default() }
    }

    /// Returns a block, and creates it at first use.
    pub fn block(&mut self, key: BlockKey, pg: PgId, size: BlockSize) -> &mut Block {
        self.pgs.entry(pg).or_default();
        self.blocks.entry(key).or_insert_with(|| Block::new(pg, size))
    }

    /// Returns the order of a new operation.
    pub fn next_order(&mut self) -> u64 {
        self.order_last += 1;
        self.order_last
    }

    /// Records the request of a change. Returns its order, which is the value that a write must put
    /// into its units.
    pub fn ask(&mut self, key: BlockKey, version: Version, kind: ChangeKind, large: bool) -> u64 {
        let order = self.next_order();
        let block = self.blocks.get_mut(&key).expect("the block was named");
        let pg = self.pgs.get_mut(&block.pg).expect("made with its first block");
        pg.held_given = pg.held_given.max(version);
        if kind.is_versioned() {
            pg.given = version;
            pg.open.insert(version);
        }
        block.later.push_back(Change {
            order,
            version,
            kind,
            large,
            answered: false,
            written: false,
        });
        order
    }

    /// Records that a change is durable, and with it all earlier changes of the block.
    pub fn answer(&mut self, key: BlockKey, order: u64) {
        self.entries_certain = self.entries_certain.max(order);
        let block = self.blocks.get_mut(&key).expect("the block was named");
        let pg = self.pgs.get_mut(&block.pg).expect("made with its first block");
        // The change is no longer in `later` if a sync or a later change of the block was answered
        // first.
        if let Some(change) = block.later.iter_mut().find(|change| change.order == order) {
            change.answered = true;
            pg.settled(change);
        }
        block.settle(pg);
    }

    /// Records that a change was answered as written, and with it all earlier changes of the block.
    pub fn written(&mut self, key: BlockKey, order: u64) {
        let block = self.blocks.get_mut(&key).expect("the block was named");
        block.later.iter_mut().filter(|of| of.order <= order).for_each(|of| of.written = true);
    }

    /// Handles a power failure: changes that were only answered as written may be lost from now on.
    pub fn lose_power(&mut self) {
        for block in self.blocks.values_mut() {
            block.later.iter_mut().for_each(|change| change.written = false);
        }
    }

    /// Removes a change that was refused, and therefore never took effect.
    pub fn refuse(&mut self, key: BlockKey, order: u64) -> Result<(), String> {
        let block = self.blocks.get_mut(&key).expect("the block was named");
        let pg = self.pgs.get_mut(&block.pg).expect("made with its first block");
        let Some(index) = block.later.iter().position(|change| change.order == order) else {
            return Err(format!("{key:?}: change {order} is refused after it was certain"));
        };
        let change = block.later.remove(index).expect("found just now");
        if block.later.iter().skip(index).any(|change| change.answered) {
            return Err(format!("{key:?}: change {order} is refused after a later one was done"));
        }
        if change.kind.is_versioned() {
            pg.open.remove(&change.version);
        }
        Ok(())
    }

    /// Records a request to write or remove a note. Returns the request's order, and the note's
    /// content: the same number, or 0 for a removal.
    pub fn ask_note(&mut self, key: NoteKey, remove: bool) -> (u64, u64) {
        let order = self.next_order();
        let content = if remove { 0 } else { order };
        self.notes.entry(key).or_default().later.push_back((order, content));
        (order, content)
    }

    /// Records that a change of a note is durable, and with it all earlier changes of that note.
    pub fn answer_note(&mut self, key: NoteKey, order: u64) {
        self.entries_certain = self.entries_certain.max(order);
        self.notes.entry(key).or_default().settle(order);
    }

    /// Removes a change of a note that was refused, and therefore never took effect.
    pub fn refuse_note(&mut self, key: NoteKey, order: u64) {
        self.notes.entry(key).or_default().later.retain(|later| later.0 != order);
    }

    /// Compares each note with the restarted store. `content_of` returns the note's content in the
    /// store, or 0 if there is no note.
    pub fn resolve_notes(&mut self, content_of: impl Fn(&NoteKey) -> u64) -> Result<(), String> {
        for (key, note) in &mut self.notes {
            note.settle(self.entries_certain);
            let found = content_of(key);
            if found != note.base && note.later.iter().all(|later| later.1 != found) {
                return Err(format!("{key:?}: found content {found} instead of {note:?}"));
            }
            note.base = found;
            note.later.clear();
        }
        Ok(())
    }

    /// Records that all changes requested before `order` are certain.
    pub fn synced(&mut self, order: u64) {
        self.entries_certain = self.entries_certain.max(order);
        for block in self.blocks.values_mut() {
            if block.later.is_empty() {
                continue;
            }
            let pg = self.pgs.get_mut(&block.pg).expect("made with its first block");
            for change in block.later.iter_mut().take_while(|change| change.order < order) {
                change.answered = true;
                pg.settled(change);
            }
            block.settle(pg);
        }
    }

    /// Records a read request. Until the read is checked, later changes are not moved to `base`.
    /// Returns the read's order.
    pub fn ask_read(&mut self, key: BlockKey) -> u64 {
        let order = self.next_order();
        let block = self.blocks.get_mut(&key).expect("the block was named");
        block.open_reads.insert(order);
        order
    }

    /// Returns the results that the read requested at `order` may return. With `may_refuse`, unanswered
    /// changes may still be refused. Must be called exactly once per read.
    pub fn expected(&mut self, key: BlockKey, order: u64, may_refuse: bool) -> Expected {
        let block = self.blocks.get_mut(&key).expect("the block was named");
        let state = block.state_before(order);
        let mut others = Vec::new();
        let open = block.later.iter().any(|change| change.order < order && change.may_be_refused());
        if may_refuse && open {
            // Each of them may be refused, independently of later changes of the block.
            let changes: Vec<&Change> =
                block.later.iter().take_while(|change| change.order < order).collect();
            let open_count = changes.iter().filter(|change| change.may_be_refused()).count().min(6);
            for mask in 0..(1u32 << open_count) {
                let mut other = block.base.clone();
                let mut bit = 0;
                for change in &changes {
                    let is_open = change.may_be_refused();
                    let left_out = is_open && bit < open_count && mask & (1 << bit) != 0;
                    bit += usize::from(is_open);
                    if !left_out {
                        other.apply(change);
                    }
                }
                others.push(other);
            }
        }
        let mut newer = state.clone();
        let later = block.later.iter().filter(|change| change.order > order);
        let later = later.map(|change| {
            newer.apply(change);
            (change.order, newer.clone())
        });
        let later = later.collect();
        block.open_reads.remove(&order);
        let pg = self.pgs.get_mut(&block.pg).expect("made with its first block");
        block.settle(pg);
        Expected { state, others, later }
    }

    /// Records that a read returned the state after the change with this order: the change is now
    /// certain.
    pub fn seen(&mut self, key: BlockKey, order: u64) {
        let block = self.blocks.get_mut(&key).expect("the block was named");
        let pg = self.pgs.get_mut(&block.pg).expect("made with its first block");
        for change in block.later.iter_mut().filter(|change| change.order <= order) {
            change.answered = true;
        }
        block.settle(pg);
    }

    /// Handles a crash of the store, which drops all pending requests. Marks the changes that can no
    /// longer be lost as certain: recovery never cuts the journal before an answered entry, although
    /// the large data of earlier entries may be missing.
    pub fn crash(&mut self) {
        for block in self.blocks.values_mut() {
            block.open_reads.clear();
            if block.later.is_empty() {
                continue;
            }
            let pg = self.pgs.get_mut(&block.pg).expect("made with its first block");
            for change in &mut block.later {
                let may_lack_data = change.large || self.moves_blocks;
                if may_lack_data && !change.answered || change.order > self.entries_certain {
                    break;
                }
                change.answered = true;
                pg.settled(change);
            }
            block.settle(pg);
        }
        for pg in self.pgs.values_mut() {
            pg.open.clear();
        }
    }

    /// Compares each block with the restarted store, which must hold a prefix of the pending changes.
    /// Returns the versions of the lost changes.
    pub fn resolve(
        &mut self,
        version_of: impl Fn(&BlockKey) -> Version,
    ) -> Result<Vec<(PgId, Version)>, String> {
        let mut lost = Vec::new();
        for (key, block) in &mut self.blocks {
            let pg = self.pgs.get_mut(&block.pg).expect("made with its first block");
            let found = version_of(key);
            let of_block = block.resolve(found, pg).map_err(|expected| {
                format!("{key:?}: after the restart it has version {found}, not {expected}")
            })?;
            lost.extend(of_block.into_iter().map(|version| (block.pg, version)));
        }
        Ok(lost)
    }

    /// Forgets the content of a PG that may have lost any of its changes to damage: all content is
    /// unknown until it is read.
    pub fn forget(&mut self, pg: PgId) {
        for block in self.blocks.values_mut().filter(|block| block.pg == pg) {
            block.later.clear();
            block.forget();
        }
        let pg = self.pgs.get_mut(&pg).expect("made with its first block");
        pg.certain = Version::ZERO;
        pg.held_certain = Version::ZERO;
        pg.certain_all.clear();
    }

    /// Records the value that a read returned for an unknown unit.
    pub fn learn(&mut self, key: BlockKey, unit: u32, value: u64) {
        let block = self.blocks.get_mut(&key).expect("the block was named");
        let slot = &mut block.base.units[unit as usize];
        if *slot == UNKNOWN {
            *slot = value;
            block.learned.insert(unit);
        }
    }

    /// Handles possible damage to the newest root. With an older root, the content of a lost leaf may
    /// reappear. So units that were read while the leaf was lost, and not changed since, are unknown
    /// again.
    pub fn unlearn(&mut self) {
        for block in self.blocks.values_mut() {
            for unit in std::mem::take(&mut block.learned) {
                block.base.units[unit as usize] = UNKNOWN;
            }
        }
    }

    /// Records the version of a block whose version was unknown.
    pub fn learn_version(&mut self, key: BlockKey, version: Version, deleted: bool) {
        let block = self.blocks.get_mut(&key).expect("the block was named");
        if block.base.version.is_none() {
            block.base.version = Some(version);
            block.base.deleted = deleted;
        }
    }
}

impl Note {
    fn settle(&mut self, order: u64) {
        while let Some((_, content)) = self.later.pop_front_if(|later| later.0 <= order) {
            self.base = content;
        }
    }
}

impl Block {
    fn apply(&mut self, change: &Change) {
        self.base.apply(change);
        self.learned.retain(|unit| !change.kind.touches(*unit));
    }

    fn forget(&mut self) {
        self.was_forgotten = true;
        self.base.version = None;
        self.base.deleted = false;
        self.base.units.fill(UNKNOWN);
        self.learned.clear();
    }

    /// Determines from the version after a restart which pending changes took effect. Returns the
    /// versions of the others. `Err`: a list of the versions that were expected.
    fn resolve(&mut self, found: Version, pg: &mut Pg) -> Result<Vec<Version>, String> {
        let Some(certain) = self.base.version else {
            self.later.clear();
            return Ok(Vec::new());
        };
        let is_dropped =
            |deleted, version| deleted && version <= pg.floor && found == Version::ZERO;
        let is_it = |change: &Change| {
            let deleted = change.kind == ChangeKind::RepairTombstone;
            change.version == found || is_dropped(deleted, change.version)
        };
        let is_base = found == certain || is_dropped(self.base.deleted, certain);
        let first = self.later.iter().position(is_it).map(|at| at + 1);
        let last = self.later.iter().rposition(is_it).map_or(0, |at| at + 1);
        let happened = match (is_base, first) {
            (true, _) => 0,
            (false, Some(first)) => first,
            (false, None) => {
                if self.was_forgotten && certain == Version::ZERO && !self.base.is_surely_written()
                {
                    // Damage destroyed the root that recorded a tombstone as dropped, or a leaf as
                    // lost: with an older root, the tombstone or the block reappears.
                    self.later.clear();
                    self.forget();
                    return Ok(Vec::new());
                }
                let open: Vec<String> =
                    self.later.iter().map(|change| format!(" or {}", change.version)).collect();
                return Err(format!("{certain}{}", open.concat()));
            }
        };
        // If the store does not have the block, several states match, because the block may have
        // existed in between: it is unknown which changes took effect.
        let lost = self.later.split_off(last.max(happened));
        self.later.truncate(happened);
        if let Some(kept) = lost.iter().find(|change| change.written) {
            return Err(format!("{}, which was answered as written", kept.version));
        }
        for change in std::mem::take(&mut self.later) {
            self.apply(&change);
            pg.settled(&change);
        }
        let versioned = lost.into_iter().filter(|change| change.kind.is_versioned());
        Ok(versioned.map(|change| change.version).collect())
    }
}

#[cfg(test)]
mod tests {
    use base::{Epoch, ImageId, PoolId, StripeIndex};

    use super::*;

    const PG: PgId = PgId { pool: PoolId::FIRST, number: 0 };
    const KEY: BlockKey = BlockKey {
        pool: PoolId::FIRST,
        hash: 0,
        image: ImageId::FIRST,
        stripe: StripeIndex::new(0),
    };

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(1), counter }
    }

    fn model() -> Model {
        let mut model = Model::default();
        model.block(KEY, PG, BlockSize::MIN);
        model
    }

    #[test]
    fn a_read_sees_what_was_asked_before_it() {
        let mut model = model();
        let first = model.ask(KEY, version(1), ChangeKind::Write(0..2), false);
        let read = model.ask_read(KEY);
        let second = model.ask(KEY, version(2), ChangeKind::Write(1..3), false);
        model.answer(KEY, first);
        model.answer(KEY, second);
        let expected = model.expected(KEY, read, false);
        assert_eq!(expected.state.units, [first, first, 0, 0]);
        assert_eq!(expected.state.version, Some(version(1)));
        assert_eq!(model.blocks[&KEY].newest().units, [first, second, second, 0]);
        assert!(model.blocks[&KEY].later.is_empty());
    }

    #[test]
    fn after_a_crash_a_first_part_of_the_open_changes_is_accepted() {
        for happened in 1..=3 {
            let mut model = model();
            let first = model.ask(KEY, version(1), ChangeKind::Write(0..1), false);
            model.answer(KEY, first);
            model.ask(KEY, version(2), ChangeKind::Write(0..1), false);
            model.ask(KEY, version(3), ChangeKind::Delete, false);
            model.crash();
            model.resolve(|_| version(happened)).expect("possible");
            let state = model.blocks[&KEY].newest();
            assert_eq!(state.version, Some(version(happened)));
            assert_eq!(state.deleted, happened == 3);
            assert!(model.resolve(|_| version(2)).is_err() || happened == 2);
        }
    }

    #[test]
    fn what_a_lost_leaf_hid_may_be_there_again_with_an_older_root_but_nothing_else() {
        let mut model = model();
        let ask = |model: &mut Model, counter, kind| {
            let order = model.ask(KEY, version(counter), kind, false);
            model.answer(KEY, order);
            order
        };
        let hidden = ask(&mut model, 1, ChangeKind::Write(0..2));
        model.forget(PG);
        model.learn_version(KEY, version(1), false);
        for unit in 0..4 {
            model.learn(KEY, unit, 0);
        }
        let later = ask(&mut model, 2, ChangeKind::Write(1..3));
        model.crash();
        model.resolve(|_| version(2)).expect("nothing is lost");
        assert_eq!(model.blocks[&KEY].newest().units, [0, later, later, 0]);
        model.unlearn();
        let unknown = [UNKNOWN, later, later, UNKNOWN];
        assert_eq!(model.blocks[&KEY].newest().units, unknown, "it was changed since");
        assert_eq!(model.blocks[&KEY].newest().version, Some(version(2)));
        model.learn(KEY, 0, hidden);
        assert_eq!(model.blocks[&KEY].newest().units[0], hidden);
    }

    #[test]
    fn an_answered_change_that_a_crash_lost_is_found() {
        let mut model = model();
        let first = model.ask(KEY, version(1), ChangeKind::Write(0..1), false);
        model.answer(KEY, first);
        model.crash();
        assert!(model.resolve(|_| Version::ZERO).is_err());
    }

    #[test]
    fn an_answer_makes_earlier_entries_certain_but_not_large_data_of_other_blocks() {
        let other = BlockKey { stripe: StripeIndex::new(1), ..KEY };
        for large in [false, true] {
            let mut model = model();
            model.block(other, PG, BlockSize::MIN);
            model.ask(KEY, version(1), ChangeKind::Write(0..4), large);
            let second = model.ask(other, version(2), ChangeKind::Write(0..1), false);
            model.answer(other, second);
            model.crash();
            let lost = model.resolve(|key| if *key == KEY { Version::ZERO } else { version(2) });
            assert_eq!(lost.is_ok(), large);
            assert!(lost.is_err() || lost == Ok(vec![(PG, version(1))]));
        }
    }

    #[test]
    fn a_repair_to_an_older_version_happened_or_not() {
        let repair = ChangeKind::Repair { written: vec![0, 2], zeros: vec![1] };
        for (found, units) in [(5, [1, 1, 0, 0]), (2, [2, 0, 2, 0]), (0, [0; 4])] {
            let mut model = model();
            let first = model.ask(KEY, version(5), ChangeKind::Write(0..2), false);
            model.answer(KEY, first);
            model.ask(KEY, version(2), repair.clone(), false);
            model.ask(KEY, Version::ZERO, ChangeKind::RepairGone, false);
            model.crash();
            let of_found = if found == 0 { Version::ZERO } else { version(found) };
            assert_eq!(model.resolve(|_| of_found), Ok(vec![]));
            assert_eq!(model.blocks[&KEY].newest().units, units);
            assert_eq!(model.pgs[&PG].certain, version(5));
        }
    }

    #[test]
    fn a_refused_change_never_happened() {
        let mut model = model();
        let first = model.ask(KEY, version(1), ChangeKind::Write(0..1), false);
        let read = model.ask_read(KEY);
        assert_eq!(model.expected(KEY, read, true).others.len(), 2);
        model.refuse(KEY, first).expect("nothing later");
        assert!(!model.blocks[&KEY].newest().is_written());
        assert!(model.refuse(KEY, first).is_err());
    }
}
