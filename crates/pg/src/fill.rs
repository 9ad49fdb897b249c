//! Learners at their primary: from where each is filled, and its filling in key order.
//!
//! ```text
//!   State ──▶ what it holds that was never adopted ──▶ Activate ──▶ blocks up to its cursor
//!   ──▶ blocks behind it, with Progress now and then ──▶ bound ──▶ last Progress ──▶ Complete
//! ```
//!
//! Invariants
//!   1. From its activation on a learner gets every write, in version order.
//!   2. A block of which the learner may lack or have too much is copied: what is behind the
//!      cursor by versions above `complete`, what is before it above `since`, and `whole`.
//!   3. Before it is reported complete a learner is bound: nothing is acknowledged without it.

use std::collections::{BTreeMap, BTreeSet};

use base::hash::hash_range_of_pg;
use base::planted::{self, Bug};
use base::{OsdId, Version};
use blockstore::BlockKey;
use format::wire::{Activation, Content, Filling, ListedBlock, MemberState, PeerBody};

use super::ask::{Ask, Asked, Contact};
use super::compare::{Page, check_list};
use super::copy::{Job, Purpose};
use super::units::Units;
use super::write::Write;
use super::{Action, MemberSet, Need, NewerFor, Pg, Serving};

/// A learner whose blocks beyond the end of its epoch are being listed.
pub struct Intake {
    end: Version,
    filling: Filling,
    after: Option<BlockKey>,
}

/// How far a learner's filling is.
pub struct Filler {
    /// What is true of it now, but for `whole`.
    filling: Filling,
    /// Blocks that are to be copied whole and are not yet.
    whole: BTreeSet<BlockKey>,
    /// Blocks of writes that were under way when it came.
    crossing: BTreeSet<BlockKey>,
    /// Its record is durable: the filling may begin.
    is_begun: bool,
    phase: Phase,
    source: Source,
    /// The last block that was found by the phase.
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
    /// They are too many: clients wait for this learner.
    is_awaited: bool,
    /// It answered none of them since it was looked at last.
    is_stuck: bool,
}

/// Which blocks are being filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Those up to the cursor, which lack only what is newer than `since`.
    Before,
    /// Those behind it.
    Behind,
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
    fn new(filling: Filling, crossing: BTreeSet<BlockKey>) -> Filler {
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

    /// Writes that it was sent and has not answered.
    pub fn unanswered_count(&self) -> usize {
        self.unanswered.writes.len()
    }

    fn open_count(&self) -> usize {
        self.started.values().filter(|is_done| !**is_done).count()
    }

    /// The next block to copy, if it is known.
    fn next(&mut self) -> Option<(BlockKey, Option<Units>)> {
        let (key, _) = self.todo.first_key_value()?;
        let is_found = self.is_listed || Some(*key) <= self.cursor;
        if is_found { self.todo.pop_first() } else { None }
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

    /// Bytes that are still to be compared or copied, about; `None`: nothing is known of that yet.
    fn left_bytes(&self, block_bytes: u64, hashes: (u32, u32)) -> Option<u64> {
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
fn judge(
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
fn list_all(filling: &mut Filling) {
    filling.listing = true;
    filling.cursor = None;
    filling.since = Version::ZERO;
    filling.whole.clear();
}

impl Pg {
    /// A learner is known, or learners are filled from now on: begins to fill it.
    pub(crate) fn welcome(&mut self, index: usize, actions: &mut Vec<Action>) {
        let floor = self.local_state.floor;
        let is_filling = self.may_copy();
        let lead = self.lead();
        let peer = &lead.peers[index];
        let Some(state) = peer.state.as_ref().filter(|_| peer.contact == Contact::Known) else {
            return;
        };
        if !is_filling {
            return;
        }
        let (mut filling, end) = judge(&lead.history, state, floor);
        if filling.listing && filling.cursor.is_none() {
            list_all(&mut filling);
        }
        let beyond = end.filter(|end| state.held > *end && !planted::on(Bug::DivergenceKept));
        match beyond {
            Some(end) if !filling.listing || filling.cursor.is_some() => {
                self.lead().peers[index].intake = Some(Intake { end, filling, after: None });
                self.list_intake(index, actions);
            }
            _ => self.admit(index, filling, actions),
        }
    }

    fn list_intake(&mut self, index: usize, actions: &mut Vec<Action>) {
        let intake = self.lead().peers[index].intake.as_ref().expect("it is being judged");
        let (newer_than, after) = (intake.end, intake.after);
        let call = self.ask(Ask { peer: index, what: Asked::Intake });
        self.send(index, PeerBody::List { call, newer_than, after }, actions);
    }

    /// A learner listed blocks beyond the end of its epoch: they are to be copied whole.
    pub(crate) fn on_intake_list(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let whole_count_max = self.shape.limits.whole_count_max;
        let peer = &mut self.lead().peers[index];
        let intake = peer.intake.as_mut().expect("it is being judged");
        check_list(intake.end, intake.after, &blocks, is_last)?;
        intake.after = blocks.last().map(|block| block.key).or(intake.after);
        let keys = blocks.iter().map(|block| block.key);
        let whole: BTreeSet<BlockKey> = intake.filling.whole.drain(..).chain(keys).collect();
        let is_over = whole.len() > whole_count_max;
        intake.filling.whole = whole.into_iter().collect();
        if !is_over && !is_last {
            self.list_intake(index, actions);
        } else if let Some(intake) = peer.intake.take() {
            self.admit(index, intake.filling, actions);
        }
        Ok(())
    }

    /// A learner takes part from now on.
    fn admit(&mut self, index: usize, mut filling: Filling, actions: &mut Vec<Action>) {
        if filling.whole.len() > self.shape.limits.whole_count_max {
            list_all(&mut filling);
        }
        let open = self.window.slots();
        let crossing = open.map(|slot| self.writes[slot].key).collect();
        let lead = self.lead();
        let body = PeerBody::Activate {
            adopted: lead.adopted,
            floor: lead.floor,
            history: lead.history.clone(),
            filling: Some(filling.clone()),
        };
        lead.peers[index].filler = Some(Filler::new(filling, crossing));
        self.write_targets.add(index);
        self.send(index, body, actions);
    }

    /// The connection to a learner is gone, or it cannot go on.
    pub(crate) fn forget_learner(&mut self, index: usize, actions: &mut Vec<Action>) {
        self.write_targets.take(index);
        let lead = self.lead();
        lead.asks.retain(|_, ask| ask.peer != index);
        let peer = &mut lead.peers[index];
        let osd = peer.member.osd;
        peer.state = None;
        peer.intake = None;
        let Some(filler) = peer.filler.take() else { return };
        if !filler.is_bound {
            self.await_no_more(index, actions);
        }
        let peer = &mut self.lead().peers[index];
        let is_failed = std::mem::replace(&mut peer.contact, Contact::Out) == Contact::Out;
        if filler.is_bound {
            self.end_epoch(Need::NewEpoch, format!("lost {osd}, which was complete"), actions);
        } else {
            // It takes part once in an epoch.
            if !is_failed {
                actions.push(Action::Need(Need::NewEpoch));
            }
            self.pump(actions);
        }
    }

    /// A learner is sent a write. One that answers more slowly than clients write would take ever
    /// more memory here: from a bound on it is awaited as a member is.
    pub(crate) fn learner_sent(&mut self, index: usize, version: Version, bytes: u64) {
        let bytes_max = self.shape.limits.learner_bytes_max;
        let Some(filler) = self.filler(index) else { return };
        let unanswered = &mut filler.unanswered;
        unanswered.writes.insert(version.counter, bytes);
        unanswered.bytes += bytes;
        if unanswered.bytes > bytes_max && !unanswered.is_awaited {
            (unanswered.is_awaited, unanswered.is_stuck) = (true, false);
            self.ack_required.add(index);
        }
    }

    /// A learner has a write durably.
    pub(crate) fn on_learner_wrote(
        &mut self,
        index: usize,
        version: Version,
        actions: &mut Vec<Action>,
    ) {
        let bytes_max = self.shape.limits.learner_bytes_max;
        let Some(filler) = self.filler(index) else { return };
        let is_bound = filler.is_bound;
        let unanswered = &mut filler.unanswered;
        unanswered.bytes -= unanswered.writes.remove(&version.counter).unwrap_or(0);
        unanswered.is_stuck = false;
        let has_caught_up = unanswered.bytes <= bytes_max / 2;
        if unanswered.is_awaited && has_caught_up {
            unanswered.is_awaited = false;
            if !is_bound {
                self.await_no_more(index, actions);
            }
        }
    }

    /// Acting members and bound learners: not those that are only awaited, which may yet lose their
    /// part, and whose copies count for nothing before.
    pub(crate) fn keepers(&self) -> MemberSet {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let mut keepers = self.ack_required;
        for (index, peer) in lead.peers.iter().enumerate() {
            if peer.filler.as_ref().is_some_and(|filler| !filler.is_bound) {
                keepers.take(index);
            }
        }
        keepers
    }

    /// Ends the part of learners that keep clients waiting and get on with nothing. Called now and
    /// then: a learner has the time between two calls.
    pub fn drop_stuck_learners(&mut self, actions: &mut Vec<Action>) {
        let Some(lead) = &mut self.lead else { return };
        for index in lead.acting.count()..lead.peers.len() {
            let Some(filler) = self.filler(index).filter(|filler| !filler.is_bound) else {
                continue;
            };
            let unanswered = &mut filler.unanswered;
            let was_stuck = std::mem::replace(&mut unanswered.is_stuck, true);
            if unanswered.is_awaited && was_stuck {
                self.peer_failed(index, "its store does not get on with writes".into(), actions);
            }
        }
    }

    /// A learner's record is durable.
    pub(crate) fn on_learner_recorded(
        &mut self,
        index: usize,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let filler = self.lead().peers[index].filler.as_mut();
        let filler = filler.filter(|filler| !filler.is_begun).ok_or("it was not activated")?;
        filler.is_begun = true;
        self.begin_phase(index, Phase::Before);
        self.pump(actions);
        Ok(())
    }

    /// As primary: so many repairs of learners may be under way for this PG.
    pub fn fill(&mut self, count_max: usize, actions: &mut Vec<Action>) {
        let Some(lead) = &mut self.lead else { return };
        lead.fills_max = count_max;
        self.pump(actions);
    }

    /// Learners being filled: bytes copied in this epoch, and bytes still to be compared or copied
    /// as far as is known.
    pub fn filling(&self) -> impl Iterator<Item = (OsdId, u64, Option<u64>)> + '_ {
        let hashes = hash_range_of_pg(self.shape.pg.number, self.shape.pg_count);
        let block_bytes = self.shape.block_size.bytes();
        let peers = self.lead.iter().flat_map(|lead| &lead.peers);
        peers.filter_map(move |peer| {
            let filler = peer.filler.as_ref()?;
            let left = filler.left_bytes(block_bytes, hashes);
            Some((peer.member.osd, filler.done_bytes, left))
        })
    }

    fn filler(&mut self, index: usize) -> Option<&mut Filler> {
        self.lead.as_mut()?.peers[index].filler.as_mut()
    }

    fn begin_phase(&mut self, index: usize, phase: Phase) {
        let Pg { lead, changes, shape, .. } = self;
        let lead = lead.as_mut().expect("this OSD leads the epoch");
        let filler = lead.peers[index].filler.as_mut().expect("the learner takes part");
        filler.phase = phase;
        filler.todo.clear();
        filler.is_listed = false;
        filler.cursor = match phase {
            Phase::Before => None,
            Phase::Behind => filler.filling.cursor,
        };
        let is_trusted = phase == Phase::Before && planted::on(Bug::CursorTrusted);
        let is_both = phase == Phase::Behind && filler.filling.listing;
        let changed = changes.since(filler.threshold()).filter(|_| !is_both);
        let whole: Vec<BlockKey> = filler.whole.union(&filler.crossing).copied().collect();
        if is_both {
            let (own, learner) = (Page::behind(filler.cursor), Page::behind(filler.cursor));
            filler.source = Source::Both { own, learner };
        } else if let Some(changed) = changed {
            let blocks = changed.into_iter().filter(|(key, _)| filler.has_in_phase(*key));
            let blocks: Vec<_> =
                blocks.map(|(key, units)| (key, shape.face.units_to_fill(units))).collect();
            filler.todo.extend(blocks);
            filler.is_listed = true;
        } else {
            filler.source = Source::Index(Page::behind(filler.cursor));
        }
        for key in whole {
            if filler.has_in_phase(key) {
                filler.todo.insert(key, None);
            }
        }
        if is_trusted || (phase == Phase::Before && filler.filling.cursor.is_none()) {
            filler.todo.clear();
            filler.is_listed = true;
        }
    }

    /// Starts fills while there is room, and finishes what is done.
    pub(crate) fn pump(&mut self, actions: &mut Vec<Action>) {
        if !self.may_copy() {
            return;
        }
        let lead = self.lead();
        for index in lead.acting.count()..lead.peers.len() {
            if self.filler(index).is_some_and(|filler| filler.is_begun && !filler.is_bound) {
                self.pump_learner(index, actions);
            }
        }
    }

    fn pump_learner(&mut self, index: usize, actions: &mut Vec<Action>) {
        while self.may_copy() && self.may_fill() {
            let Some(filler) = self.filler(index) else { return };
            if let Some((key, units)) = filler.next() {
                filler.started.insert(key, false);
                let purpose = Purpose::Fill { learner: index, units };
                let job = Job::new(key, self.sources(true), purpose);
                self.queue_job(job, None, actions);
            } else if filler.is_listed || !self.find_more(index, actions) {
                break;
            }
        }
        self.keep_cursor(index, actions);
    }

    fn may_fill(&mut self) -> bool {
        let lead = self.lead();
        let fillers = lead.peers.iter().filter_map(|peer| peer.filler.as_ref());
        fillers.map(Filler::open_count).sum::<usize>() < lead.fills_max
    }

    /// Finds more blocks to fill; false: pages must be waited for.
    fn find_more(&mut self, index: usize, actions: &mut Vec<Action>) -> bool {
        let Some(filler) = self.filler(index) else { return false };
        let (threshold, cursor) = (filler.threshold(), filler.filling.cursor);
        let own_newer_than = match filler.source {
            Source::Both { .. } => Version::ZERO,
            _ => threshold,
        };
        let (own, its) = match &mut filler.source {
            Source::Known => return false,
            Source::Index(own) => (own, None),
            Source::Both { own, learner } => (own, Some(learner)),
        };
        let own_ask = own.ask_from();
        let its_ask = its.and_then(Page::ask_from);
        if let Some(after) = own_ask {
            self.list_own(NewerFor::Fill(index), own_newer_than, after, actions);
        }
        if let Some(after) = its_ask {
            let call = self.ask(Ask { peer: index, what: Asked::Listing });
            let newer_than = Version::ZERO;
            self.send(index, PeerBody::List { call, newer_than, after }, actions);
        }
        let Some(filler) = self.filler(index) else { return false };
        let upto = cursor.filter(|_| filler.phase == Phase::Before);
        filler.find_listed(threshold, upto)
    }

    /// A page of this OSD's own blocks came.
    pub(crate) fn on_own_list(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(filler) = self.filler(index) else { return };
        let newer_than = match filler.source {
            Source::Both { .. } => Version::ZERO,
            _ => filler.threshold(),
        };
        if let Source::Index(own) | Source::Both { own, .. } = &mut filler.source {
            own.came(newer_than, blocks, is_last).expect("the node lists what was asked");
        }
        self.pump(actions);
    }

    /// A page of a learner's blocks came.
    pub(crate) fn on_learner_list(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let Some(filler) = self.filler(index) else { return Ok(()) };
        if let Source::Both { learner, .. } = &mut filler.source {
            learner.came(Version::ZERO, blocks, is_last)?;
        }
        self.pump(actions);
        Ok(())
    }

    /// A copy of a block is ready for a learner. It may have gone meanwhile.
    pub(crate) fn send_fill(
        &mut self,
        index: usize,
        key: BlockKey,
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        let Some(filler) = self.filler(index).filter(|filler| filler.is_begun) else { return };
        assert!(filler.started.get(&key) == Some(&false));
        let bytes = match &content {
            Content::Block { data, .. } => data.as_ref().map_or(0, |data| data.len() as u64),
            Content::Gone | Content::Tombstone { .. } => 0,
        };
        let call = self.ask(Ask { peer: index, what: Asked::Fill { key, bytes } });
        self.send(index, PeerBody::Repair { call, key, content }, actions);
    }

    /// A block is durable at a learner.
    pub(crate) fn on_filled(
        &mut self,
        index: usize,
        key: BlockKey,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(filler) = self.filler(index) else { return };
        filler.started.insert(key, true);
        filler.done_bytes += bytes;
        filler.whole.remove(&key);
        filler.crossing.remove(&key);
        filler.move_cursor();
        self.pump(actions);
    }

    /// Lets the learner keep how far it is, where it is time; goes on to the next phase.
    fn keep_cursor(&mut self, index: usize, actions: &mut Vec<Action>) {
        let mark = self.mark();
        let floor = self.local_state.floor;
        let progress_every = self.shape.limits.progress_every;
        let Some(filler) = self.filler(index).filter(|filler| !filler.progress_is_open) else {
            return;
        };
        let is_done = filler.is_phase_done();
        let is_planted = planted::on(Bug::LearnerCountedAsMember);
        let is_complete = filler.phase == Phase::Behind && is_done;
        let is_due = filler.phase == Phase::Behind && filler.filled_count >= progress_every;
        if is_complete || is_planted {
            return self.bind(index, actions);
        }
        if filler.phase == Phase::Before && is_done {
            filler.filling.since = mark;
            let has_cursor = filler.filling.cursor.is_some();
            self.begin_phase(index, Phase::Behind);
            if has_cursor {
                self.send_progress(index, floor, mark, actions);
            }
            return self.pump(actions);
        }
        if is_due {
            filler.filling.since = mark;
            self.send_progress(index, floor, mark, actions);
        }
    }

    fn send_progress(
        &mut self,
        index: usize,
        floor: Version,
        complete: Version,
        actions: &mut Vec<Action>,
    ) {
        let Some(filler) = self.filler(index) else { return };
        filler.filled_count = 0;
        filler.progress_is_open = true;
        let filling = Some(filler.to_keep()).filter(|_| !filler.is_bound);
        let call = self.ask(Ask { peer: index, what: Asked::Progress });
        self.send(index, PeerBody::Progress { call, filling, complete, floor }, actions);
    }

    /// The learner has everything: from now on nothing is acknowledged without it.
    fn bind(&mut self, index: usize, actions: &mut Vec<Action>) {
        let bound_at = self.queued_next;
        let Some(filler) = self.filler(index) else { return };
        (filler.is_bound, filler.bound_at) = (true, bound_at);
        self.ack_required.add(index);
        let lead = self.lead();
        lead.lease_givers.push(lead.peers[index].member.osd);
        // Everything up to the mark was acknowledged, and sent to the learner or filled.
        let (floor, mark) = (self.local_state.floor, self.mark());
        self.send_progress(index, floor, mark, actions);
    }

    /// A learner keeps its progress durably.
    pub(crate) fn on_progress_noted(&mut self, index: usize, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let peer = &mut lead.peers[index];
        let Some(filler) = &mut peer.filler else { return };
        filler.progress_is_open = false;
        if filler.is_bound {
            lead.unreported.add(index);
            self.report_complete(actions);
        } else {
            self.pump(actions);
        }
    }

    /// Reports learners that have everything, once all writes that were begun before they were bound
    /// have ended: those were begun without knowing whether there is room for them.
    pub(crate) fn report_complete(&mut self, actions: &mut Vec<Action>) {
        let Pg { lead, writes, serving, .. } = self;
        let is_filling = matches!(serving, Serving::Active | Serving::Filling);
        let Some(lead) = lead.as_mut().filter(|_| is_filling) else { return };
        for index in lead.unreported.iter() {
            let peer = &lead.peers[index];
            let Some(filler) = &peer.filler else { continue };
            let is_before =
                |write: &Write| write.order < filler.bound_at && !write.changes_nothing();
            if !writes.iter().any(|(_, write)| is_before(write)) {
                actions.push(Action::Need(Need::Complete(peer.member)));
                lead.unreported.take(index);
            }
        }
    }
}

impl Filler {
    /// Takes blocks to fill from the pages that came, as far as `upto`; false: more pages must come
    /// first.
    fn find_listed(&mut self, threshold: Version, upto: Option<BlockKey>) -> bool {
        loop {
            let (own, its) = match &mut self.source {
                Source::Known => return true,
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
