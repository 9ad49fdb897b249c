//! Learners at their primary: where the backfill of each one begins, and the backfill itself, in key order.
//!
//! ```text
//!   State ──▶ list of its blocks that were never adopted ──▶ Activate ──▶ blocks up to its cursor
//!   ──▶ blocks after it, with Progress at intervals ──▶ bound ──▶ last Progress ──▶ Complete
//! ```
//!
//! Invariants
//!   1. From its activation on, a learner receives every write, in version order.
//!   2. Blocks of which a learner may lack changes, or hold changes that the PG never adopted, are copied one
//!      by one. [`Filler`] tracks those blocks.
//!   3. A learner is bound before it is reported complete: from then on no write is acknowledged without it.

use std::collections::BTreeSet;

use base::planted::{self, Bug};
use base::{Epoch, OsdId, Version};
use blockstore::BlockKey;
use format::wire::{Content, Filling, ListedBlock, PeerBody};

use super::ask::{Asked, Contact};
use super::copy::{Job, Purpose};
use super::filler::{Filler, Phase, Step, judge, list_all};
use super::page::check_list;
use super::store_calls::NewerFor;
use super::{Action, MemberSet, Need, Pg, Serving};

/// A learner before it is admitted: its blocks with versions beyond the end of its epoch are being listed.
pub struct Intake {
    end: Version,
    filling: Filling,
    after: Option<BlockKey>,
}

impl Pg {
    /// Begins to fill a learner, if it has reported its state and the PG may fill learners now.
    pub(crate) fn welcome(&mut self, index: usize, actions: &mut Vec<Action>) {
        let (floor, stripes) = (self.floor_of_fills(), self.stripes());
        let is_of_objects = self.shape.objects.is_some();
        let is_filling = self.may_copy();
        let is_short = stripes.is_some() && self.serving == Serving::Filling;
        let lead = self.lead();
        let peer = &lead.peers[index];
        let Some(state) = peer.state.as_ref().filter(|_| peer.contact == Contact::Known) else {
            return;
        };
        if !is_filling {
            return;
        }
        if is_short && state.committed > lead.adopted {
            // Its store could not prepare again what peering brings it later.
            let osd = peer.member.osd;
            let why =
                format!("{osd} has stable versions that the members do not know to be stable");
            return self.lead().hindrance = Some(why);
        }
        if is_short && self.is_kept_as_it_is(index) {
            return;
        }
        let given_up = self.entry.as_ref().map_or(Epoch::ZERO, |entry| entry.given_up);
        let lead = self.lead();
        let state = lead.peers[index].state.as_ref().expect("the member has reported its state");
        let may_have_more = stripes.is_none() && state.record_epoch < given_up;
        let (mut filling, end) = judge(&lead.history, state, floor, may_have_more);
        if is_of_objects {
            let is_beyond = end.is_some_and(|end| state.held > end);
            let filling = self.object_filling(filling, is_beyond, may_have_more);
            return self.admit(index, filling, actions);
        }
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

    /// Whether peering takes each epoch of a history for one that adopted a version. An epoch in which
    /// learners are filled while members are lost is never activated: it is in no history of these pools.
    pub(crate) fn histories_adopted_all(&self) -> bool {
        self.stripes().is_some() || self.shape.objects.is_some()
    }

    /// Returns the floor that learners are compared with, and take over when they are complete.
    fn floor_of_fills(&self) -> Version {
        match (&self.lead, &self.serving) {
            (Some(lead), Serving::Filling) => lead.floor,
            _ => self.local_state.floor(),
        }
    }

    fn list_intake(&mut self, index: usize, actions: &mut Vec<Action>) {
        let intake = self.lead().peers[index].intake.as_ref().expect("the learner is being judged");
        let (newer_than, after) = (intake.end, intake.after);
        let call = self.lead().asks.ask(index, Asked::Intake);
        self.send(index, PeerBody::List { call, newer_than, after }, actions);
    }

    /// Handles a learner's list of blocks with versions beyond the end of its epoch. They will be copied
    /// whole.
    pub(crate) fn on_intake_list(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let whole_count_max = self.shape.limits.whole_count_max;
        let peer = &mut self.lead().peers[index];
        let intake = peer.intake.as_mut().expect("the learner is being judged");
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

    /// Makes a learner take part from now on.
    fn admit(&mut self, index: usize, mut filling: Filling, actions: &mut Vec<Action>) {
        if filling.whole.len() > self.shape.limits.whole_count_max {
            list_all(&mut filling);
        }
        let (crossing, stripes) = (self.keys_under_way(), self.stripes());
        if filling.listing && stripes.is_some() {
            // The learner's prepared versions up to this one become stable. If it is unknown where the
            // learner's epoch ended, some of them may never have been adopted.
            filling.complete = Version::ZERO;
        }
        let is_short = self.histories_adopted_all() && self.serving == Serving::Filling;
        let lead = self.lead();
        let listers = lead.listers(stripes);
        let mut history = lead.history.clone();
        if is_short && !planted::on(Bug::FilledCountedAsHolder) {
            // The epoch is never activated. A record without it says that its owner was filled meanwhile.
            history.pop();
        }
        let body = PeerBody::Activate {
            adopted: lead.adopted,
            floor: lead.floor,
            history,
            filling: Some(filling.clone()),
        };
        let filler = Filler::new(filling, crossing, listers, stripes.is_none());
        lead.peers[index].filler = Some(filler);
        if self.shape.objects.is_some() {
            self.begin_object_fill(index);
        }
        if stripes.is_none() {
            self.write_targets.add_learner(index);
        }
        self.send(index, body, actions);
    }

    /// Returns the blocks of writes that have a version and have not ended.
    fn keys_under_way(&self) -> BTreeSet<BlockKey> {
        self.versions.slots().map(|slot| self.queue[slot].key).collect()
    }

    /// Drops a learner whose connection is lost or that cannot continue.
    pub(crate) fn forget_learner(&mut self, index: usize, actions: &mut Vec<Action>) {
        self.write_targets.remove_learner(index);
        self.forget_object_fill(index);
        let lead = self.lead();
        lead.asks.forget(index);
        let peer = &mut lead.peers[index];
        let osd = peer.member.osd;
        peer.state = None;
        peer.intake = None;
        let Some(filler) = peer.filler.take() else { return };
        if !filler.is_bound() {
            self.await_no_more(index, actions);
        }
        let peer = &mut self.lead().peers[index];
        let is_failed = std::mem::replace(&mut peer.contact, Contact::Out) == Contact::Out;
        if filler.is_bound() {
            self.end_epoch(
                Need::NewEpoch,
                format!("lost contact with {osd}, a complete learner"),
                actions,
            );
        } else {
            // A learner takes part only once in an epoch, so a new epoch is needed.
            if !is_failed {
                actions.push(Action::Need(Need::NewEpoch));
            }
            self.pump(actions);
        }
    }

    /// Notes that a write was sent to a learner.
    pub(crate) fn on_sent_to_learner(&mut self, index: usize, version: Version, bytes: u64) {
        let bytes_max = self.shape.limits.learner_bytes_max;
        let Some(filler) = self.filler(index) else { return };
        if filler.on_sent(version, bytes, bytes_max) {
            self.write_targets.require(index);
        }
    }

    /// Notes that a learner has all writes up to a version.
    pub(crate) fn on_learner_has(
        &mut self,
        index: usize,
        version: Version,
        actions: &mut Vec<Action>,
    ) {
        let bytes_max = self.shape.limits.learner_bytes_max;
        let Some(filler) = self.filler(index) else { return };
        if filler.on_wrote_upto(version, bytes_max) {
            self.await_no_more(index, actions);
        }
    }

    /// Notes that a learner has a write.
    pub(crate) fn on_learner_wrote(
        &mut self,
        index: usize,
        version: Version,
        actions: &mut Vec<Action>,
    ) {
        let bytes_max = self.shape.limits.learner_bytes_max;
        let Some(filler) = self.filler(index) else { return };
        if filler.on_wrote(version, bytes_max) {
            self.await_no_more(index, actions);
        }
    }

    /// Returns the acting members and bound learners. Other learners are left out, even if clients wait for
    /// them: they may still be dropped, and their copies do not count until they are bound.
    pub(crate) fn keepers(&self) -> MemberSet {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let mut keepers = self.write_targets.ack_required();
        for (index, peer) in lead.peers.iter().enumerate() {
            if peer.filler.as_ref().is_some_and(|filler| !filler.is_bound()) {
                keepers.take(index);
            }
        }
        keepers
    }

    /// Drops learners that delay clients and have answered no write since the last call. Called periodically;
    /// a learner has the time between two calls to answer.
    pub fn drop_stuck_learners(&mut self, actions: &mut Vec<Action>) {
        let Some(lead) = &mut self.lead else { return };
        for index in lead.acting.count()..lead.peers.len() {
            let filler = self.filler(index).filter(|filler| !filler.is_bound());
            if filler.is_some_and(Filler::is_stuck) {
                self.on_peer_failed(index, "the store cannot keep up with writes".into(), actions);
            }
        }
    }

    /// Begins a learner's backfill: its record of the activation is durable.
    pub(crate) fn on_learner_recorded(
        &mut self,
        index: usize,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let (crossing, has_parity) = (self.keys_under_way(), self.stripes().is_some());
        let filler = self.lead().peers[index].filler.as_mut();
        let filler = filler.ok_or("the learner was not activated")?;
        filler.begin()?;
        if has_parity {
            // The learner accepts versions from now on: those that it had prepared are settled.
            filler.cross(crossing);
            self.write_targets.add_learner(index);
        }
        if self.shape.objects.is_none() {
            self.begin_phase(index, Phase::Before);
        }
        self.pump(actions);
        Ok(())
    }

    /// As primary: sets how many repairs of learners may be in flight for this PG, and starts as many.
    pub fn fill(&mut self, count_max: usize, actions: &mut Vec<Action>) {
        let Some(lead) = &mut self.lead else { return };
        lead.fills_max = count_max;
        self.pump(actions);
    }

    /// Returns, for each learner being filled, the bytes copied in this epoch and the bytes still to be
    /// compared or copied, as far as known.
    pub fn filling(&self) -> impl Iterator<Item = (OsdId, u64, Option<u64>)> + '_ {
        let hashes = self.shape.hashes();
        let block_bytes = self.shape.block_size.bytes();
        let peers = self.lead.iter().flat_map(|lead| &lead.peers);
        peers.filter_map(move |peer| {
            let filler = peer.filler.as_ref()?;
            let left = filler.left_bytes(block_bytes, hashes);
            Some((peer.member.osd, filler.done_bytes(), left))
        })
    }

    pub(crate) fn filler(&mut self, index: usize) -> Option<&mut Filler> {
        self.lead.as_mut()?.peers[index].filler.as_mut()
    }

    fn begin_phase(&mut self, index: usize, phase: Phase) {
        let Pg { lead, local_state, shape, .. } = self;
        let lead = lead.as_mut().expect("this OSD leads the epoch");
        let filler = lead.peers[index].filler.as_mut().expect("the learner takes part");
        let has_parity = shape.face.stripes().is_some();
        filler.begin_phase(phase, |version| {
            if has_parity {
                // This OSD does not know of changes that do not touch its part.
                return None;
            }
            let changed = local_state.changes_since(version)?.into_iter();
            Some(changed.map(|(key, units)| (key, shape.face.units_to_fill(units))).collect())
        });
    }

    /// Starts as many fills as are allowed, and moves learners to their next step.
    pub(crate) fn pump(&mut self, actions: &mut Vec<Action>) {
        if !self.may_copy() {
            return;
        }
        if self.shape.objects.is_some() {
            return self.pump_objects(actions);
        }
        let lead = self.lead();
        for index in lead.acting.count()..lead.peers.len() {
            if self.filler(index).is_some_and(|filler| filler.is_filling()) {
                self.pump_learner(index, actions);
            }
        }
    }

    fn pump_learner(&mut self, index: usize, actions: &mut Vec<Action>) {
        while self.may_copy() && self.may_fill() {
            let Some(filler) = self.filler(index) else { return };
            if let Some((key, units)) = filler.start_next() {
                let purpose = Purpose::Fill { learner: index, units };
                let job = Job::new(key, self.sources(true), purpose);
                self.queue_job(job, None, actions);
            } else if filler.is_listed() || !self.find_more(index, actions) {
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

    /// Finds more blocks to fill. Returns false if pages must arrive first.
    fn find_more(&mut self, index: usize, actions: &mut Vec<Action>) -> bool {
        let Some(filler) = self.filler(index) else { return false };
        let asks = filler.ask_pages();
        for (lister, after) in asks.own {
            let newer_than = asks.own_newer_than;
            if lister == self.lead().me {
                let what = NewerFor::Fill { learner: index };
                self.list_own(what, newer_than, after, actions);
            } else {
                let call = self.lead().asks.ask(lister, Asked::FillList { learner: index });
                self.send(lister, PeerBody::List { call, newer_than, after }, actions);
            }
        }
        if let Some(after) = asks.learner {
            let call = self.lead().asks.ask(index, Asked::Listing);
            let newer_than = Version::ZERO;
            self.send(index, PeerBody::List { call, newer_than, after }, actions);
        }
        self.filler(index).is_some_and(Filler::find_listed)
    }

    /// Adds a page of an acting member's blocks.
    pub(crate) fn on_fill_list(
        &mut self,
        index: usize,
        lister: usize,
        (blocks, is_last): (Vec<ListedBlock>, bool),
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if self.shape.objects.is_some() {
            return self.on_object_blocks(index, true, (blocks, is_last), actions);
        }
        let Some(filler) = self.filler(index) else { return Ok(()) };
        filler.on_own_page(lister, blocks, is_last)?;
        self.pump(actions);
        Ok(())
    }

    /// Adds a page of a learner's blocks.
    pub(crate) fn on_learner_list(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if self.shape.objects.is_some() {
            return self.on_object_blocks(index, false, (blocks, is_last), actions);
        }
        let Some(filler) = self.filler(index) else { return Ok(()) };
        filler.on_learner_page(blocks, is_last)?;
        self.pump(actions);
        Ok(())
    }

    /// Sends a copy of a block to a learner, unless the learner was dropped meanwhile.
    pub(crate) fn send_fill(
        &mut self,
        index: usize,
        key: BlockKey,
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        let Some(filler) = self.filler(index).filter(|filler| filler.is_begun()) else { return };
        filler.on_fill_sent(key);
        let bytes = match &content {
            Content::Block { data, .. } => data.as_ref().map_or(0, |data| data.len() as u64),
            Content::Gone | Content::Tombstone { .. } => 0,
        };
        let call = self.lead().asks.ask(index, Asked::Fill { key, bytes });
        self.send(index, PeerBody::Repair { call, key, content }, actions);
    }

    /// Notes that a block is durable at a learner.
    pub(crate) fn on_filled(
        &mut self,
        index: usize,
        key: BlockKey,
        bytes: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(filler) = self.filler(index) else { return };
        filler.on_filled(key, bytes);
        self.pump(actions);
    }

    /// Makes the learner's cursor durable when that is due, and moves the learner to the next phase or binds
    /// it.
    fn keep_cursor(&mut self, index: usize, actions: &mut Vec<Action>) {
        let mark = self.mark();
        let progress_every = self.shape.limits.progress_every;
        let Some(filler) = self.filler(index) else { return };
        match filler.step(mark, progress_every) {
            Step::Wait => {}
            Step::Bind => self.bind(index, actions),
            Step::Progress => self.send_progress(index, mark, actions),
            Step::GoBehind { has_cursor } => {
                self.begin_phase(index, Phase::Behind);
                if has_cursor {
                    self.send_progress(index, mark, actions);
                }
                self.pump(actions);
            }
        }
    }

    pub(crate) fn send_progress(
        &mut self,
        index: usize,
        complete: Version,
        actions: &mut Vec<Action>,
    ) {
        let floor = self.floor_of_fills();
        let Some(filler) = self.filler(index) else { return };
        let filling = filler.begin_progress();
        let call = self.lead().asks.ask(index, Asked::Progress);
        self.send(index, PeerBody::Progress { call, filling, complete, floor }, actions);
    }

    /// Binds a learner that has everything: from now on no write is acknowledged without it.
    pub(crate) fn bind(&mut self, index: usize, actions: &mut Vec<Action>) {
        let order = match self.shape.objects {
            Some(_) => self.objects.order_next(),
            None => self.queue.order_next(),
        };
        let Some(filler) = self.filler(index) else { return };
        filler.bind(order);
        if !planted::on(Bug::MarkWithoutBoundLearner) {
            self.write_targets.require(index);
        }
        let lead = self.lead();
        let bound = lead.peers[index].member.osd;
        lead.lease_givers = lead.lease_givers.iter().copied().chain([bound]).collect();
        // Everything up to the mark was acknowledged, and the learner got it as a write or by backfill.
        let mark = self.mark();
        self.send_progress(index, mark, actions);
    }

    /// Notes that a learner's progress record is durable.
    pub(crate) fn on_progress_noted(&mut self, index: usize, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let Some(filler) = &mut lead.peers[index].filler else { return };
        filler.end_progress();
        if filler.is_bound() {
            lead.unreported.add(index);
            self.report_complete(actions);
        } else {
            self.pump(actions);
        }
    }

    /// Reports complete learners, once all writes that were begun before they were bound have ended: nobody
    /// checked whether the learner had room for those writes.
    pub(crate) fn report_complete(&mut self, actions: &mut Vec<Action>) {
        let Pg { lead, queue, serving, objects, .. } = self;
        let is_filling = matches!(serving, Serving::Active | Serving::Filling);
        let Some(lead) = lead.as_mut().filter(|_| is_filling) else { return };
        for index in lead.unreported.iter() {
            let peer = &lead.peers[index];
            let Some(filler) = &peer.filler else { continue };
            let order = filler.bound_at();
            if !queue.has_change_before(order) && !objects.has_open_before(order) {
                actions.push(Action::Need(Need::Complete(peer.member)));
                lead.unreported.take(index);
            }
        }
    }
}
