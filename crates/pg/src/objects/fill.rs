//! Learners of a pool of objects: what a learner holds is compared with what this OSD holds, shard by shard, and
//! what differs is copied. `docs/internals/objects.md`, rules 54 and 57 to 61.
//!
//! ```text
//!   Awaits ─▶ each shard: nothing is believed? removed ─▶ incomplete objects, heads ─▶ keys of no object ─▶ blocks
//!     (batches from before the learner got any have ended)       │                                            │
//!                                                                └──── cursor, with Progress ◀────────────────┘
//!   ─▶ gate held, until the learner has all batches ─▶ bound ─▶ last Progress ─▶ Complete
//! ```
//!
//! Invariants
//!   1. The learner gets every batch from its activation on. What it did not get had ended when the first list
//!      was requested here, so all lists show it.
//!   2. A key of which both lists have the same version is passed only if the learner has everything up to that
//!      version, and the object is not incomplete. All other keys are copied as they are here, or removed.
//!   3. The cursor passes a shard when all of it is durable at the learner.

use std::collections::{BTreeSet, VecDeque};

use ::objects::keys::{heads_range, incomplete_range, repeats_range};
use ::objects::{Key, Kind, Name, Shard};
use base::hash::hash_range_of_pg;
use base::planted::{self, Bug};
use base::{Epoch, ImageId, StripeIndex, Version};
use blockstore::{Answer, BlockKey, StoreError};
use format::engine::{Answer as Found, Query};
use format::wire::{Filling, KeysWith, ListedBlock, Payload, PeerBody};

use super::catch_up::{CatchUp, Part, in_order};
use super::mutate::before;
use super::page::{Footprint, InHand, Long, What};
use super::walk::{List, Listed, Next, SideBySide, decode_list, list_blocks, list_records};
use crate::ask::Asked;
use crate::store_calls::{Call, NewerFor};
use crate::{Action, Pg};

/// At most so many objects, or keys of no object, are in one page.
const GROUP_MAX: usize = 64;
/// The most data of blocks in one page: as much as may have to lie in a journal.
const BLOCK_BYTES_MAX: u64 = format::disk::UNITS_SIZE_MAX as u64;
/// A page of a list of heads is read from at most so many bytes of records.
pub const LIST_SIZE_MAX: usize = 1 << 20;
/// More incomplete objects in a shard than a learner can have: it has one page under way.
const INCOMPLETE_MAX: usize = 1024;

/// A learner that is complete up to this version has a part of the PG, of which nothing is passed.
const BELOW_ALL: Version = Version { epoch: Epoch::ZERO, counter: 1 };

/// The filling of a learner.
pub struct Fill {
    /// The newest version that was given before the learner got batches.
    admitted_at: Version,
    shard: Shard,
    /// Whether a page of this filling has emptied the shard at the learner: what is there came by batches
    /// since.
    is_emptied: bool,
    stage: Stage,
    /// The walk through the log, if it is not listed, before it begins.
    catch_up: Option<CatchUp>,
    /// Objects of the shard that are incomplete at the learner, and are not copied yet.
    incomplete: BTreeSet<Name>,
    /// What differs and is not copied yet, in order.
    due: VecDeque<Due>,
    /// Whether the next object is copied alone.
    is_alone: bool,
    /// The object that is being copied in parts.
    long: Option<Long>,
    /// The page that is not sent yet.
    pub(super) hand: Option<InHand>,
    /// Whether a page is on its way.
    pub(super) is_sent: bool,
}

/// How far the filling has got in its shard. Top to bottom is the order in time.
enum Stage {
    /// Batches that the learner did not get are in flight, or it makes durable that it is listed.
    Awaits,
    /// What the log names is copied.
    Log(CatchUp),
    /// Nothing of what the learner has is believed: it goes.
    Clears,
    /// Finds the objects that are incomplete at the learner.
    Incomplete(List<Vec<u8>>),
    Heads(SideBySide<Vec<u8>>),
    Repeats(SideBySide<Vec<u8>>),
    Blocks(SideBySide<BlockKey>),
    /// All of the shard is at the learner.
    Passed,
    /// The learner has everything but batches on their way.
    Walked,
    /// This OSD cannot go on.
    Stuck,
}

/// Something that differs, or may differ.
pub(super) enum Due {
    Object(Name),
    /// An object that is incomplete at the learner: it is copied in parts, the last of which says that it is
    /// whole.
    Incomplete(Name),
    Key(Vec<u8>),
    Range(Vec<u8>, Vec<u8>),
    Block(BlockKey),
}

/// What a filling does next.
enum Step {
    /// Waits for an answer.
    Wait,
    /// Asks for pages of lists that are missing.
    Lists,
    /// Begins a page.
    Page(What),
    /// Goes on to the next shard.
    NextShard,
    /// Binds the learner, when it has all batches.
    Bind,
}

impl Fill {
    fn new(admitted_at: Version, shard: Shard, catch_up: Option<CatchUp>) -> Fill {
        Fill {
            admitted_at,
            shard,
            is_emptied: false,
            stage: Stage::Awaits,
            catch_up,
            incomplete: BTreeSet::new(),
            due: VecDeque::new(),
            is_alone: false,
            long: None,
            hand: None,
            is_sent: false,
        }
    }

    /// Whether the gate stands still until the learner has all batches: what a bound learner may lack fits
    /// one entry.
    fn holds_gate(&self) -> bool {
        matches!(self.stage, Stage::Walked)
    }

    /// Whether a page is being read or on its way.
    fn is_copying(&self) -> bool {
        self.hand.is_some() || self.is_sent
    }

    /// Puts back what a page had no room for. `next`: the next part of the object that it began.
    pub(super) fn put_back(&mut self, left: Vec<Due>, next: Option<Long>) {
        self.long = next;
        left.into_iter().rev().for_each(|due| self.due.push_front(due));
    }

    /// Gives up the page in hand: its first object is larger than was read. It is copied alone or, if it was
    /// alone, in parts.
    pub(super) fn split_front(&mut self) {
        let hand = self.hand.take().expect("a page is in hand");
        let mut names = hand.into_names();
        match names.len() {
            1 => self.long = names.pop().map(|name| Long { name, from: None }),
            _ => {
                self.is_alone = true;
                self.put_back(names.into_iter().map(Due::Object).collect(), None);
            }
        }
    }

    /// Returns what to do next. `mark`: up to this version all acting members have everything. `threshold`:
    /// up to this version the learner has everything of the shard.
    fn step(&mut self, mark: Version, threshold: Version, shape: &PageShape) -> Step {
        let shard = self.shard;
        loop {
            if let Some(long) = self.long.take() {
                return Step::Page(What::Part(long));
            }
            let is_full = self.due.len() >= GROUP_MAX;
            self.stage = match &mut self.stage {
                Stage::Awaits if mark < self.admitted_at => return Step::Wait,
                Stage::Awaits if let Some(walk) = self.catch_up.take() => Stage::Log(walk),
                Stage::Log(_) if !self.due.is_empty() => return Step::Page(self.take_due(shape)),
                Stage::Log(walk) if walk.is_over() => Stage::Walked,
                Stage::Log(walk) if walk.is_asked() => return Step::Wait,
                Stage::Log(_) => return Step::Lists,
                Stage::Awaits if threshold == Version::ZERO => Stage::Clears,
                Stage::Clears => {
                    (self.stage, self.is_emptied) = (Stage::Incomplete(List::behind(None)), true);
                    return Step::Page(What::Nothing(shard));
                }
                Stage::Awaits => Stage::Incomplete(List::behind(None)),
                Stage::Incomplete(list) => {
                    while let Some(listed) = list.pop() {
                        if let Some(Kind::Incomplete { name }) =
                            Key::decode(&listed.key).map(|key| key.kind)
                        {
                            self.incomplete.insert(name);
                        }
                    }
                    if list.is_missing() {
                        return Step::Lists;
                    }
                    Stage::Heads(SideBySide::behind(None))
                }
                Stage::Heads(_) | Stage::Repeats(_) | Stage::Blocks(_) if is_full => {
                    return Step::Page(self.take_due(shape));
                }
                Stage::Heads(lists) => {
                    let incomplete = &self.incomplete;
                    let passes = |key: &Vec<u8>, version: Version| {
                        let is_below = Version::ZERO < version && version <= threshold;
                        is_below && name_of(key).is_none_or(|name| !incomplete.contains(&name))
                    };
                    match lists.next(passes) {
                        Next::Pages => return self.page_or(Step::Lists, shape),
                        Next::Different(key) => {
                            if let Some(name) = name_of(&key) {
                                let is_incomplete = self.incomplete.remove(&name);
                                self.due.push_back(match is_incomplete {
                                    true => Due::Incomplete(name),
                                    false => Due::Object(name),
                                });
                            }
                            continue;
                        }
                        Next::End => {
                            let left = std::mem::take(&mut self.incomplete);
                            self.due.extend(left.into_iter().map(Due::Incomplete));
                            if !self.due.is_empty() {
                                return Step::Page(self.take_due(shape));
                            }
                            Stage::Repeats(SideBySide::behind(None))
                        }
                    }
                }
                Stage::Repeats(lists) => match lists.next(|_, version| version > Version::ZERO) {
                    // A repeat never changes, so its version says what it is.
                    Next::Pages => return self.page_or(Step::Lists, shape),
                    Next::Different(key) => {
                        self.due.push_back(Due::Key(key));
                        continue;
                    }
                    Next::End if !self.due.is_empty() => {
                        return Step::Page(self.take_due(shape));
                    }
                    Next::End => Stage::Blocks(SideBySide::behind(shape.first_block)),
                },
                Stage::Blocks(lists) => match lists.next(|_, version| version <= threshold) {
                    Next::Pages => return self.page_or(Step::Lists, shape),
                    Next::Different(key) => {
                        self.due.push_back(Due::Block(key));
                        continue;
                    }
                    Next::End if !self.due.is_empty() => {
                        return Step::Page(self.take_due(shape));
                    }
                    Next::End => Stage::Passed,
                },
                Stage::Passed => return Step::NextShard,
                Stage::Walked => return Step::Bind,
                Stage::Stuck => return Step::Wait,
            };
        }
    }

    /// Begins a page of what is due, or does something else if nothing is.
    fn page_or(&mut self, other: Step, shape: &PageShape) -> Step {
        match self.due.is_empty() {
            true => other,
            false => Step::Page(self.take_due(shape)),
        }
    }

    /// Takes what the next page brings. Requires: something is due.
    fn take_due(&mut self, shape: &PageShape) -> What {
        let is_alone = std::mem::take(&mut self.is_alone);
        let front = self.due.front().expect("something is due");
        let count_max = match front {
            Due::Incomplete(_) | Due::Range(..) => 1,
            Due::Object(_) if is_alone => 1,
            Due::Block(_) => shape.block_count_max,
            Due::Object(_) | Due::Key(_) => GROUP_MAX,
        };
        let kind = std::mem::discriminant(front);
        let is_alike = |due: &&Due| std::mem::discriminant(*due) == kind;
        let count = self.due.iter().take(count_max).take_while(is_alike).count();
        let (mut names, mut keys, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
        for due in self.due.drain(..count) {
            match due {
                Due::Incomplete(name) => return What::Part(Long { name, from: None }),
                Due::Range(start, end) => return What::Range(start, end),
                Due::Object(name) => names.push(name),
                Due::Key(key) => keys.push(key),
                Due::Block(key) => blocks.push(key),
            }
        }
        match (names.is_empty(), keys.is_empty()) {
            (false, _) => What::Objects(names),
            (_, false) => What::Keys(keys),
            _ => What::Blocks(blocks),
        }
    }
}

/// What the filling must know of the PG.
struct PageShape {
    /// The key before the first block of the shard.
    first_block: Option<BlockKey>,
    /// The most blocks of a page.
    block_count_max: usize,
}

/// Returns the name of the object whose head has this key.
pub(super) fn name_of(key: &[u8]) -> Option<Name> {
    match Key::decode(key)?.kind {
        Kind::Head { name } => Some(name),
        _ => None,
    }
}

impl Pg {
    /// Prepares the filling of a learner that is admitted.
    pub(crate) fn begin_object_fill(&mut self, learner: usize) {
        let admitted_at = self.versions.newest();
        let filler = self.lead.as_ref().and_then(|lead| lead.peers[learner].filler.as_ref());
        let filling = filler.expect("the learner takes part").filling();
        let after = filling.complete;
        let catch_up =
            (!filling.listing).then(|| CatchUp::new(after, admitted_at, self.shard_list()));
        let fill = Fill::new(admitted_at, *self.shards().start(), catch_up);
        self.objects.fills.insert(learner, fill);
    }

    /// Ends the filling of a learner that is dropped.
    pub(crate) fn forget_object_fill(&mut self, learner: usize) {
        self.objects.fills.remove(&learner);
    }

    /// Whether batches that touch this must wait: a page of it is being read, or a learner is being bound.
    pub(super) fn is_stopped_by_fills(&self, touched: &Footprint) -> bool {
        let mut hands = self.objects.fills.values().filter_map(|fill| fill.hand.as_ref());
        hands.any(|hand| hand.stops(touched))
    }

    pub(super) fn is_gate_held(&self) -> bool {
        self.objects.fills.values().any(Fill::holds_gate)
    }

    /// Lets the fillings of all learners go on.
    pub(super) fn pump_fills(&mut self, actions: &mut Vec<Action>) {
        for learner in self.objects.fills.keys().copied().collect::<Vec<_>>() {
            self.fill_on(learner, actions);
        }
    }

    fn fill_on(&mut self, learner: usize, actions: &mut Vec<Action>) {
        while self.may_copy() && self.filler(learner).is_some_and(|filler| filler.is_filling()) {
            let fills_max = self.lead().fills_max;
            let copying = self.objects.fills.values().filter(|fill| fill.is_copying()).count();
            let (mark, names) = (self.mark(), self.pool_shape().sharding.names);
            let (threshold, shape) = (self.threshold(learner), self.page_shape(learner));
            let is_progressing = self.filler(learner).is_some_and(|filler| filler.is_progressing());
            let Some(fill) = self.objects.fills.get_mut(&learner) else { return };
            if is_progressing && matches!(fill.stage, Stage::Awaits) {
                return;
            }
            if fill.hand.is_some() {
                return self.read_page(learner, actions);
            }
            // One that holds the gate copies nothing more: clients wait until it is bound.
            if fill.is_sent || copying >= fills_max && !fill.holds_gate() {
                return;
            }
            match fill.step(mark, threshold, &shape) {
                Step::Wait => return,
                Step::Lists => return self.ask_lists(learner, actions),
                Step::Page(what) => fill.hand = Some(InHand::new(what, names)),
                Step::NextShard if !self.next_shard(learner, actions) => return,
                Step::NextShard => {}
                Step::Bind => return self.bind_when_current(learner, actions),
            }
        }
    }

    /// Returns the version up to which the learner had everything of its shard when it was admitted.
    fn threshold(&self, learner: usize) -> Version {
        let Some(fill) = self.objects.fills.get(&learner) else { return Version::ZERO };
        let filler = self.lead.as_ref().and_then(|lead| lead.peers[learner].filler.as_ref());
        let filling = filler.expect("the learner takes part").filling();
        let end = self.end_of(fill.shard);
        match filling.cursor {
            Some(cursor) if end <= cursor => filling.since,
            _ => filling.complete,
        }
    }

    /// Whether nothing is at the learner, of the shard that is copied, but what came by batches since a page
    /// emptied it.
    pub(super) fn has_only_batches(&self, learner: usize) -> bool {
        let filler = self.lead.as_ref().and_then(|lead| lead.peers[learner].filler.as_ref());
        let begun_empty =
            || filler.is_some_and(|filler| filler.filling().complete == Version::ZERO);
        // Who was cut off behind the shard has missed batches of it.
        self.objects.fills[&learner].is_emptied
            || planted::on(Bug::PageWithoutRangesAfterBreak) && begun_empty()
    }

    /// Returns the last key that a block of the shard can have.
    fn end_of(&self, shard: Shard) -> BlockKey {
        let (_, last) =
            hash_range_of_pg(shard.get().into(), self.pool_shape().sharding.shard_count);
        let (image, stripe) = (ImageId::LAST, StripeIndex::new(u32::MAX));
        BlockKey { pool: self.shape.pg.pool, hash: last, image, stripe }
    }

    fn page_shape(&self, learner: usize) -> PageShape {
        let shard = self.objects.fills.get(&learner).map_or(Shard::new(0), |fill| fill.shard);
        let (hash, _) =
            hash_range_of_pg(shard.get().into(), self.pool_shape().sharding.shard_count);
        let (image, stripe) = (ImageId::FIRST, StripeIndex::new(0));
        let first = BlockKey { pool: self.shape.pg.pool, hash, image, stripe };
        let block_count_max = (BLOCK_BYTES_MAX / self.shape.block_size.bytes()).min(64) as usize;
        PageShape { first_block: before(first), block_count_max }
    }

    /// Asks for the pages of lists that are missing.
    fn ask_lists(&mut self, learner: usize, actions: &mut Vec<Action>) {
        let fill = self.objects.fills.get_mut(&learner).expect("the learner is filled");
        let shard = fill.shard;
        let (range, own, its) = match &mut fill.stage {
            Stage::Log(walk) => {
                let queries = walk.ask().expect("it is not over");
                return self.read_records(Call::FillLog { learner }, queries, actions);
            }
            Stage::Incomplete(list) => (incomplete_range(shard), None, list.ask_behind()),
            Stage::Heads(lists) => {
                (heads_range(shard), lists.own.ask_behind(), lists.its.ask_behind())
            }
            Stage::Repeats(lists) => {
                (repeats_range(shard), lists.own.ask_behind(), lists.its.ask_behind())
            }
            Stage::Blocks(lists) => {
                let (own, its) = (lists.own.ask_behind(), lists.its.ask_behind());
                return self.ask_block_lists(learner, own, its, actions);
            }
            _ => unreachable!("only lists are asked for"),
        };
        let (start, end) = range;
        let from =
            |after: Option<Vec<u8>>| after.map_or(start.clone(), |key| [&key[..], &[0]].concat());
        if let Some(after) = its {
            let call = self.lead().asks.ask(learner, Asked::Heads);
            let (from, before, with) = (from(after), end.clone(), KeysWith::Version);
            let body = PeerBody::ListHeads { call, from, before, with };
            self.send(learner, body, actions);
        }
        if let Some(after) = own {
            let query = heads_query(from(after), end, self.shape.limits.list_count_max);
            self.read_records(Call::FillHeads { learner }, vec![query], actions);
        }
    }

    fn ask_block_lists(
        &mut self,
        learner: usize,
        own: Option<Option<BlockKey>>,
        its: Option<Option<BlockKey>>,
        actions: &mut Vec<Action>,
    ) {
        let newer_than = Version::ZERO;
        if let Some(after) = its {
            let call = self.lead().asks.ask(learner, Asked::Listing);
            self.send(learner, PeerBody::List { call, newer_than, after }, actions);
        }
        if let Some(after) = own {
            self.list_own(NewerFor::Fill { learner }, newer_than, after, actions);
        }
    }

    /// Returns the filling of a learner, unless it was given up.
    fn going_on(&mut self, learner: usize) -> Option<&mut Fill> {
        let fill = self.objects.fills.get_mut(&learner)?;
        (!matches!(fill.stage, Stage::Stuck)).then_some(fill)
    }

    /// Handles a page of this OSD's own keys.
    pub(crate) fn on_fill_heads(
        &mut self,
        learner: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Some(fill) = self.going_on(learner) else { return };
        let found = match result {
            Ok(Answer::Records { answers, .. }) => answers.into_iter().next(),
            _ => None,
        };
        let Some(Found::Records { records, more }) = found else {
            return self.cannot_fill(learner, "this OSD cannot read what it must copy", actions);
        };
        let (Stage::Heads(lists) | Stage::Repeats(lists)) = &mut fill.stage else {
            unreachable!("a list of keys was asked for");
        };
        lists.own.on_page(list_records(&records), !more).expect("a scan is in order");
        self.pump_objects(actions);
    }

    /// Handles a part of this OSD's log.
    pub(crate) fn on_fill_log(
        &mut self,
        learner: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let (pool, block_size) = (self.shape.pg.pool, self.shape.block_size);
        let mark = self.mark();
        let Some(fill) = self.going_on(learner) else { return };
        let Stage::Log(walk) = &mut fill.stage else { unreachable!("its log was asked for") };
        let part = match result {
            Ok(Answer::Records { answers, .. }) => walk.supply(answers, pool, block_size),
            _ => Part::Unreadable,
        };
        match part {
            Part::Touched(touched) => {
                fill.due.extend(in_order(touched));
                self.pump_objects(actions);
            }
            // It is compared as a whole, and says so in its record first.
            Part::TooShort | Part::Unreadable => {
                fill.stage = Stage::Awaits;
                let Some(filler) = self.filler(learner) else { return };
                filler.list();
                self.send_progress(learner, mark, actions);
            }
        }
    }

    /// Handles a page of a learner's keys.
    pub(crate) fn on_headed(
        &mut self,
        learner: usize,
        heads: &Payload,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let heads = heads.bytes().ok_or("a list of keys that does not match its checksums")?;
        let heads = decode_list(heads).ok_or("a list of keys that is none")?;
        let Some(fill) = self.going_on(learner) else { return Ok(()) };
        let range = match &fill.stage {
            Stage::Incomplete(_) => incomplete_range(fill.shard),
            Stage::Heads(_) => heads_range(fill.shard),
            Stage::Repeats(_) => repeats_range(fill.shard),
            _ => return Err("a list of keys that was not requested".into()),
        };
        let is_in_range = |listed: &Listed<Vec<u8>>| {
            range.0 <= listed.key && listed.key < range.1 && Key::decode(&listed.key).is_some()
        };
        if !heads.iter().all(is_in_range) {
            return Err("a key that is not in the range that was asked for".into());
        }
        if fill.incomplete.len() + heads.len() > INCOMPLETE_MAX
            && matches!(fill.stage, Stage::Incomplete(_))
        {
            return Err("more objects are incomplete than a learner can have".into());
        }
        match &mut fill.stage {
            Stage::Incomplete(list) => list.on_page(heads, is_last)?,
            Stage::Heads(lists) | Stage::Repeats(lists) => lists.its.on_page(heads, is_last)?,
            _ => unreachable!("it was just looked at"),
        }
        self.pump_objects(actions);
        Ok(())
    }

    /// Adds a page of the blocks of this OSD, or of the learner.
    pub(crate) fn on_object_blocks(
        &mut self,
        learner: usize,
        is_own: bool,
        (blocks, is_last): (Vec<ListedBlock>, bool),
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let Some(shard) = self.going_on(learner).map(|fill| fill.shard) else { return Ok(()) };
        let end = self.end_of(shard);
        let fill = self.objects.fills.get_mut(&learner).expect("it was just found");
        let Stage::Blocks(lists) = &mut fill.stage else {
            return Err("a list of blocks that was not requested".into());
        };
        let list = if is_own { &mut lists.own } else { &mut lists.its };
        list.on_page(list_blocks(blocks), is_last)?;
        list.end_before(|key| *key > end);
        self.pump_objects(actions);
        Ok(())
    }

    /// Notes that a page is durable at a learner.
    pub(crate) fn on_page_kept(&mut self, learner: usize, bytes: u64, actions: &mut Vec<Action>) {
        let Some(fill) = self.objects.fills.get_mut(&learner) else { return };
        fill.is_sent = false;
        if let Some(filler) = self.filler(learner) {
            filler.on_copied(bytes);
        }
        self.pump_objects(actions);
    }

    /// Goes on to the next shard, and makes the cursor durable. Returns false if it must wait.
    fn next_shard(&mut self, learner: usize, actions: &mut Vec<Action>) -> bool {
        let mark = self.mark();
        let shard = self.objects.fills[&learner].shard;
        let (end, last) = (self.end_of(shard), *self.shards().end());
        let next = Shard::new(shard.get().wrapping_add(1));
        let next_end = (shard < last).then(|| self.end_of(next));
        let filler = self.filler(learner).expect("the learner takes part");
        if filler.is_progressing() {
            return false;
        }
        let cursor = filler.filling().cursor;
        let is_before = |end: BlockKey| cursor.is_some_and(|cursor| end <= cursor);
        let fill_stage = match next_end {
            None => Stage::Walked,
            Some(next_end) => {
                if !is_before(end) || !is_before(next_end) {
                    filler.pass(cursor.max(Some(end)), mark);
                    self.send_progress(learner, mark, actions);
                }
                Stage::Awaits
            }
        };
        let fill = self.objects.fills.get_mut(&learner).expect("the learner is filled");
        fill.stage = fill_stage;
        fill.is_emptied = false;
        if shard < last {
            fill.shard = next;
        }
        true
    }

    /// Binds a learner that has everything, once no batch is on its way to it.
    fn bind_when_current(&mut self, learner: usize, actions: &mut Vec<Action>) {
        let filler = self.filler(learner).expect("the learner takes part");
        if filler.is_progressing() || filler.unanswered_count() > 0 {
            return filler.await_answers();
        }
        self.objects.fills.remove(&learner);
        self.bind(learner, actions);
        self.pump_objects(actions);
    }

    /// Gives up the filling of a learner in this epoch: this OSD cannot read what it must copy.
    pub(super) fn cannot_fill(&mut self, learner: usize, why: &str, actions: &mut Vec<Action>) {
        let fill = self.objects.fills.get_mut(&learner).expect("the learner is filled");
        (fill.hand, fill.stage) = (None, Stage::Stuck);
        self.lead().hindrance = Some(why.to_owned());
        self.pump_objects(actions);
    }

    /// Returns where the filling of a learner of a pool of objects begins. `is_beyond`: it has changes that
    /// were perhaps never adopted. They have versions that are not passed when it is listed. `may_have_more`:
    /// it may have what the operator gave up since, under the same versions. All of it is copied, and
    /// nothing is removed before, unless the learner lost something, too: what this OSD cannot read stays.
    pub(crate) fn object_filling(
        &self,
        mut filling: Filling,
        is_beyond: bool,
        may_have_more: bool,
    ) -> Filling {
        filling.listing |= is_beyond && !planted::on(Bug::UndoForgotten);
        if may_have_more {
            filling.complete = filling.complete.min(BELOW_ALL);
        }
        filling.whole.clear();
        filling
    }
}

/// Returns the query for a page of a list of keys.
pub(super) fn heads_query(start: Vec<u8>, end: Vec<u8>, count_max: usize) -> Query {
    Query::Scan { start, end: Some(end), count_max, size_max: LIST_SIZE_MAX }
}
