//! A member's side of an epoch that another OSD leads: it reports its state, stores what the primary sends,
//! in order, and reports when that is durable.
//!
//! Invariants
//!   1. A member reports its state when no request of an earlier epoch is in flight at its store.
//!   2. Writes arrive in version order without gaps. If the store refuses one, the member's part in the epoch
//!      ends: it accepts no later write.
//!   3. A cursor is recorded when all changes that arrived before it are durable.

use std::ops::Range;

use base::{MapRevision, OsdId, UNIT_SIZE, Version, checksum};
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Activation, Change, Content, Filling, ListedBlock, PeerBody};

use super::change::ChangeHeader;
use super::local_state::RecordFor;
use super::store_calls::{Call, NewerFor};
use super::sync::FlushFor;
use super::units::{Held, Units, units_of};
use super::versions::next_version;
use super::window::Window;
use super::{Action, Pg, Record};

/// A member's state of an epoch that another OSD leads.
pub struct Follow {
    primary: OsdId,
    is_learner: bool,
    stage: FollowStage,
    /// The version of the next write. `None`: the first write to arrive may have any counter.
    next: Option<Version>,
    mark: Version,
    /// Whether a version or a mark of the epoch has come, so that the epoch is active at its primary, too.
    has_served: bool,
    /// The revision of the pool's map whose fences the primary had carried out when it sent the newest mark.
    revision_told: MapRevision,
    /// Changes at the store, in the order of arrival. A lazy change ends when it is written: a note that is
    /// written to the store later cannot become durable before the change.
    taken: Window<()>,
    /// A cursor that waits until all changes that arrived before it have ended.
    progress: Option<Progress>,
}

/// How far this member has got in the epoch. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FollowStage {
    /// The primary has not asked for the state yet.
    Silent,
    /// The primary has asked; requests in flight at the store must end first.
    Asked,
    /// This member has reported its state.
    Stated,
    /// The primary has activated the epoch here.
    Active,
    /// The store refused a request.
    Failed,
}

struct Progress {
    /// All changes before this place in `taken` must end first.
    behind: u64,
    call: u32,
    record: Record,
    floor: Version,
}

impl Follow {
    pub fn new(primary: OsdId, is_learner: bool) -> Follow {
        Follow {
            primary,
            is_learner,
            stage: FollowStage::Silent,
            next: None,
            mark: Version::ZERO,
            has_served: false,
            revision_told: MapRevision::ZERO,
            taken: Window::new(0),
            progress: None,
        }
    }

    /// Returns the version up to which all acting members have everything, as the primary last reported.
    pub fn mark(&self) -> Version {
        self.mark
    }

    /// Returns the OSD that leads the epoch.
    pub fn primary(&self) -> OsdId {
        self.primary
    }

    /// Returns whether the epoch is activated here.
    pub fn is_active(&self) -> bool {
        self.stage == FollowStage::Active
    }

    pub fn is_learner(&self) -> bool {
        self.is_learner
    }

    /// Takes the versions of a batch, if they are the next ones. Returns the place of the change.
    pub fn take_run(
        &mut self,
        first: Version,
        last: Version,
        mark: Version,
    ) -> Result<u64, String> {
        let is_next = self.next.is_none_or(|next| first == next);
        if !is_next || last < first || last.epoch != first.epoch {
            return Err(format!("versions {first} to {last} are out of order"));
        }
        self.next = Some(next_version(last, last.epoch));
        self.mark = self.mark.max(mark);
        Ok(self.taken.begin(()))
    }

    /// Raises the version up to which all acting members have everything.
    pub fn raise_mark(&mut self, mark: Version) {
        self.mark = self.mark.max(mark);
    }

    /// Records that a version or a mark of the epoch has come, from a primary that has carried out the fences
    /// of this revision.
    pub fn serves(&mut self, revision: MapRevision) {
        self.has_served = true;
        self.revision_told = self.revision_told.max(revision);
    }

    /// Returns the newest revision of the pool's map with which a mark of the epoch has come.
    pub fn revision_told(&self) -> MapRevision {
        self.revision_told
    }

    /// Returns whether this OSD is an acting member and the epoch is known to serve: all acting members have
    /// activated it.
    pub fn is_serving(&self) -> bool {
        self.is_acting() && self.has_served
    }

    /// Returns whether this OSD takes part as an acting member.
    pub fn is_acting(&self) -> bool {
        !self.is_learner && self.stage == FollowStage::Active
    }
}

impl Pg {
    pub(crate) fn follow(&mut self) -> &mut Follow {
        self.follow.as_mut().expect("another OSD leads the epoch")
    }

    pub(crate) fn answer(&mut self, body: PeerBody, actions: &mut Vec<Action>) {
        actions.push(Action::Send { to: self.follow().primary, body });
    }

    /// Handles a message from the primary.
    pub(crate) fn on_primary_said(
        &mut self,
        body: PeerBody,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let stage = self.follow().stage;
        match (body, stage) {
            (PeerBody::Stale(_), _) | (_, FollowStage::Failed) => Ok(()),
            (PeerBody::Query { .. }, _) => self.on_query(actions),
            (_, FollowStage::Silent | FollowStage::Asked) => {
                Err("the primary sent a message before its query".into())
            }
            (PeerBody::List { call, newer_than, after }, _) => {
                let what = NewerFor::Peer { call };
                let call = self.calls.begin(Call::ListNewer(what));
                let count_max = self.shape.limits.list_count_max;
                actions.push(Action::ListNewer { call, newer_than, after, count_max });
                Ok(())
            }
            (PeerBody::Fetch { call, key, units, as_of }, _) => {
                self.shape.check_key(key)?;
                Units::from_words(&units, self.shape.block_size)
                    .ok_or("units beyond the end of a block")?;
                let as_of = as_of.map_or(AsOf::View, AsOf::Version);
                let request = StoreRequest::Copy { key, units, as_of };
                self.call(Call::PeerCopy { call }, request, actions);
                Ok(())
            }
            (PeerBody::Repair { call, key, content }, _) => {
                self.on_repair(call, key, content, actions)
            }
            (PeerBody::Drop { call, version }, FollowStage::Stated) => {
                self.on_drop(call, version, actions)
            }
            (PeerBody::Activate { adopted, floor, history, filling }, FollowStage::Stated) => {
                self.on_activate(adopted, floor, history, filling, actions)
            }
            (
                PeerBody::Write { version, mark, key, block_size, lazy, change },
                FollowStage::Active,
            ) => {
                if block_size != self.shape.block_size {
                    return Err("a write with the wrong block size".into());
                }
                if self.stripes().is_some() || self.shape.objects.is_some() {
                    return Err("a write of a block in a pool with parity or of objects".into());
                }
                let (pg, block_size) = (self.shape.pg, self.shape.block_size);
                let header = ChangeHeader { pg, key, block_size, version, lazy };
                self.on_write(header, mark, change, actions)
            }
            (
                body @ (PeerBody::Part { .. } | PeerBody::Parity { .. } | PeerBody::Skip { .. }),
                FollowStage::Active,
            ) => self.on_stripe_version(body, actions),
            (PeerBody::ParityDelta { version, key, part, content }, FollowStage::Active) => {
                self.on_parity_delta(version, key, part, content, actions)
            }
            (PeerBody::Forward { call, key, content, replaces }, FollowStage::Stated) => {
                self.on_forward(call, key, content, replaces, actions)
            }
            (PeerBody::Gather { call, after, version }, FollowStage::Stated) => {
                self.on_gather(call, (after, version), actions)
            }
            (PeerBody::ObjectForward { call, after, version, content }, FollowStage::Stated) => {
                self.on_object_forward(call, (after, version), content, actions)
            }
            (PeerBody::Batch { after, version, mark, content }, FollowStage::Active) => {
                self.on_batch((after, version, mark), content, actions)
            }
            (PeerBody::Page { call, version, part, content }, FollowStage::Active) => {
                self.on_page((call, version), part, content, actions)
            }
            (PeerBody::ListHeads { call, from, before, with }, FollowStage::Active) => {
                self.on_list_heads((call, with), (from, before), actions)
            }
            (PeerBody::Mark { mark, revision }, FollowStage::Active) => {
                self.check_version(mark)?;
                let follow = self.follow();
                follow.serves(revision);
                follow.raise_mark(mark);
                self.commit(mark, actions);
                Ok(())
            }
            (PeerBody::Sync { call }, FollowStage::Active) => {
                self.flush(FlushFor::Peer { call }, actions);
                Ok(())
            }
            (
                body @ (PeerBody::Scrub { .. }
                | PeerBody::Mend { .. }
                | PeerBody::Recall { .. }
                | PeerBody::Keep { .. }),
                FollowStage::Active,
            ) => self.on_scrub_said(body, actions),
            (PeerBody::Progress { call, filling, complete, floor }, FollowStage::Active) => {
                self.on_progress(call, filling, complete, floor, actions)
            }
            _ => Err("the message is not allowed at this stage of the epoch".into()),
        }
    }

    fn on_query(&mut self, actions: &mut Vec<Action>) -> Result<(), String> {
        let follow = self.follow();
        if follow.stage == FollowStage::Active {
            return Err(
                "a second query after the activation: a member takes part in an epoch only once"
                    .into(),
            );
        }
        follow.stage = FollowStage::Asked;
        self.go_on_when_quiet(actions);
        if self.follow().stage == FollowStage::Asked {
            self.answer(PeerBody::Draining, actions);
        }
        Ok(())
    }

    /// Reports this member's state, if the primary asked for it. Requires: no change is in flight at the
    /// store.
    pub(crate) fn state_if_asked(&mut self, actions: &mut Vec<Action>) {
        if self.follow().stage != FollowStage::Asked {
            return;
        }
        let state = self.own_state();
        let follow = self.follow();
        follow.stage = FollowStage::Stated;
        follow.taken = Window::new(0);
        self.answer(PeerBody::State(state), actions);
    }

    /// Records that this member reports no writes from this version on: the primary takes them back.
    fn on_drop(
        &mut self,
        call: u32,
        version: Version,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        self.check_version(version)?;
        let record = self.local_state.record();
        let is_known = record.is_some_and(|record| record.filling.is_none());
        let is_busy = self.local_state.is_recording();
        if self.shape.face.is_whole_everywhere() || !is_known || is_busy {
            return Err("this OSD cannot take back a version now".into());
        }
        self.drop_from(version, RecordFor::Drop { call }, actions);
        Ok(())
    }

    fn on_activate(
        &mut self,
        adopted: Version,
        floor: Version,
        history: Vec<Activation>,
        filling: Option<Filling>,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let entry = self.entry.clone().expect("an epoch is entered");
        let is_sorted = history.is_sorted_by(|older, newer| older.epoch < newer.epoch);
        let is_sound = is_sorted && history.len() <= self.shape.limits.history_count_max;
        let last = Some(&Activation { epoch: entry.epoch, adopted });
        let is_short = filling.is_some()
            && self.histories_adopted_all()
            && history.last().is_none_or(|newest| newest.epoch < entry.epoch);
        if !is_sound || (history.last() != last && !is_short) {
            return Err("the history is invalid or does not end with this epoch".into());
        }
        self.check_version(floor)?;
        for past in &history {
            self.check_version(past.adopted)?;
        }
        if let Some(filling) = &filling {
            self.check_filling(filling)?;
        }
        for key in filling.iter().flat_map(|filling| &filling.whole) {
            self.shape.check_key(*key)?;
        }
        if self.local_state.is_recording() {
            return Err("an activation while this OSD makes a record durable".into());
        }
        let follow = self.follow();
        if follow.is_learner != filling.is_some() {
            return Err(
                "an activation with backfill for a full member, or without backfill for a learner"
                    .into(),
            );
        }
        follow.stage = FollowStage::Active;
        if !follow.is_learner {
            follow.next = Some(next_version(adopted, entry.epoch));
            follow.mark = adopted;
            // All writes begun in earlier epochs have reached all members. A learner cannot know that: it may
            // be filled while some members are lost.
            self.owed.settle();
            self.take_floor(floor, actions);
            if self.shape.objects.is_some() && adopted == Version::ZERO {
                self.begin_log(adopted, entry.epoch, actions);
            }
        } else {
            follow.next = None;
        }
        let record = Record { entry, adopted, history, filling, dropped: None };
        self.keep_record(record, RecordFor::Activation, actions);
        Ok(())
    }

    fn on_write(
        &mut self,
        header: ChangeHeader,
        mark: Version,
        change: Change,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let ChangeHeader { key, version, lazy, .. } = header;
        self.shape.check_key(key)?;
        self.check_version(version)?;
        self.check_version(mark)?;
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        let follow = self.follow();
        let first_epoch = next_version(mark, epoch).epoch;
        if !follow.next.map_or(version.epoch == first_epoch, |next| version == next) {
            return Err(format!("version {version} is out of order: it is not the next one"));
        }
        let units = self.check_change(&change)?;
        let is_delete = change == Change::Delete;
        if is_delete && lazy {
            return Err("a deletion cannot be lazy".into());
        }
        let follow = self.follow();
        follow.next = Some(next_version(version, epoch));
        follow.mark = follow.mark.max(mark);
        let order = follow.taken.begin(());
        assert!(!units.is_empty());
        assert!(units.end <= self.shape.block_size.unit_count());
        self.local_state.on_write(version, key, units, is_delete);
        assert!(self.local_state.held() >= version);
        let request = header.into_store_request(change);
        self.call(Call::Taken { order, first: version, version }, request, actions);
        Ok(())
    }

    /// Checks a change, and returns the units that it touches. The error says what is wrong with the change.
    fn check_change(&self, change: &Change) -> Result<Range<u32>, String> {
        let (offset, length) = match change {
            Change::Write { offset, data, checksums } => {
                if checksums.len() as u64 * UNIT_SIZE != data.len() as u64
                    || checksum::first_mismatch(data, checksums).is_some()
                {
                    return Err("a write whose data does not match its checksums".into());
                }
                (*offset, data.len() as u64)
            }
            Change::Zero { offset, length } => (*offset, u64::from(*length)),
            Change::Delete => return Ok(0..self.shape.block_size.unit_count()),
        };
        if self.shape.check_range(offset, length).is_err() {
            return Err("a write beyond the end of its block".into());
        }
        let (first, end) = units_of(offset, length as u32);
        Ok(first..end)
    }

    fn on_repair(
        &mut self,
        call: u32,
        key: BlockKey,
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        self.shape.check_key(key)?;
        if self.stripes().is_some() {
            return self.on_fill(call, key, content, actions);
        }
        let held = Held::of(content.clone(), self.shape.block_size, true)?;
        let version = held.version();
        self.check_version(version)?;
        let is_delete = matches!(held, Held::Tombstone(_));
        let units = 0..self.shape.block_size.unit_count();
        match self.follow().is_learner {
            true => self.local_state.on_fill(version, is_delete),
            false => self.local_state.on_repair(version, key, units, is_delete),
        }
        let order = self.follow().taken.begin(());
        let request = StoreRequest::Repair { pg: self.shape.pg, key, content };
        self.call(Call::PeerRepair { order, call, adds: false }, request, actions);
        Ok(())
    }

    fn on_progress(
        &mut self,
        call: u32,
        filling: Option<Filling>,
        complete: Version,
        floor: Version,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        self.check_version(complete)?;
        self.check_version(floor)?;
        if let Some(filling) = &filling {
            self.check_filling(filling)?;
        }
        let entry = self.entry.clone().expect("an epoch is entered");
        let epoch = entry.epoch;
        let record = self.local_state.record().filter(|record| record.entry.epoch == epoch);
        let record = record.ok_or("backfill progress before the PG's record is durable")?;
        let is_open = self.follow.as_ref().is_some_and(|follow| follow.progress.is_some());
        if record.filling.is_none() || is_open || self.local_state.is_recording() {
            return Err("backfill progress for a backfill that is not running".into());
        }
        for key in filling.iter().flat_map(|filling| &filling.whole) {
            self.shape.check_key(*key)?;
        }
        let adopted = if filling.is_some() { record.adopted } else { complete };
        let history = record.history.clone();
        let record = Record { entry, adopted, history, filling, dropped: None };
        if record.filling.is_none() && self.shape.objects.is_some() {
            self.raise_reach(complete, actions);
        }
        let follow = self.follow();
        let behind = follow.taken.begun();
        follow.progress = Some(Progress { behind, call, record, floor });
        match self.stripes() {
            Some(_) => self.on_cursor(complete, actions),
            None => self.keep_progress(actions),
        }
        Ok(())
    }

    /// Records a waiting cursor, if all changes that arrived before it have ended.
    fn keep_progress(&mut self, actions: &mut Vec<Action>) {
        let follow = self.follow();
        let ended = follow.taken.ended();
        let is_due = |progress: &Progress| progress.behind <= ended;
        if follow.progress.as_ref().is_some_and(is_due) {
            self.record_progress(actions);
        }
    }

    /// Records a waiting cursor. Requires: all changes that arrived before it have ended.
    pub(crate) fn record_progress(&mut self, actions: &mut Vec<Action>) {
        let follow = self.follow();
        if follow.stage != FollowStage::Active {
            return;
        }
        let Some(progress) = follow.progress.take() else { return };
        let Progress { call, record, floor, .. } = progress;
        if record.filling.is_none() {
            self.take_floor(floor, actions);
        }
        self.keep_record(record, RecordFor::Progress { call }, actions);
    }

    /// Handles the end of a record write: it is durable here, or could not be written.
    pub(crate) fn on_followed_record_kept(
        &mut self,
        what: RecordFor,
        is_durable: bool,
        actions: &mut Vec<Action>,
    ) {
        if !is_durable {
            return self.cannot_follow("the store has no room for a record", actions);
        }
        let record = self.local_state.record();
        let is_filled = record.is_some_and(|record| record.filling.is_none());
        match what {
            RecordFor::Drop { call } => self.answer(PeerBody::Noted { call }, actions),
            RecordFor::Forward { call } => self.answer(PeerBody::Repaired { call }, actions),
            RecordFor::Activation => {
                let adopted = record.map_or(Version::ZERO, |record| record.adopted);
                self.begin_stripes(adopted);
                self.answer(PeerBody::Activated, actions);
            }
            RecordFor::Progress { call } if is_filled && self.local_state.is_suspect() => {
                // The lost data has been restored. The record that says so was made durable before the store
                // forgets the loss.
                let request = StoreRequest::Absolve { pg: self.shape.pg };
                self.call(Call::AbsolveFilled { call }, request, actions);
            }
            RecordFor::Progress { call } => {
                if is_filled {
                    self.local_state.on_filled();
                }
                self.answer(PeerBody::Noted { call }, actions);
            }
            RecordFor::Lead | RecordFor::OwnDrop | RecordFor::OwnForward | RecordFor::Nobody => {
                unreachable!("this OSD does not lead")
            }
        }
    }

    /// Handles the store's answer that it trusts the filled PG again.
    pub(crate) fn on_filled_absolved(&mut self, call: u32, actions: &mut Vec<Action>) {
        self.local_state.absolved();
        self.local_state.on_filled();
        self.answer(PeerBody::Noted { call }, actions);
    }

    /// Handles the store's answer to a write or batch from the primary, with its first version and its last.
    pub(crate) fn on_taken(
        &mut self,
        order: u64,
        (first, version): (Version, Version),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        self.follow().taken.end(order);
        let Ok(answer) = result else {
            self.lacks(first);
            // A learner has not promised room for writes.
            let why = match self.follow().is_learner {
                true => "the store has no room for a copy",
                false => "the store has no room for a write",
            };
            return self.cannot_follow(why, actions);
        };
        if self.follow().stage == FollowStage::Active {
            let durable = answer != Answer::Written;
            self.answer(PeerBody::Written { version, durable }, actions);
            self.keep_progress(actions);
        }
    }

    /// Handles the store's answer to a repair from the primary.
    pub(crate) fn on_peer_repaired(
        &mut self,
        (order, call, adds): (u64, u32, bool),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        self.follow().taken.end(order);
        if result.is_err() {
            return self.cannot_follow("the store has no room for a copy", actions);
        }
        if matches!(self.follow().stage, FollowStage::Stated | FollowStage::Active) {
            match self.holds_fillings && adds {
                true => self.objects.late_pages.push(call),
                false => self.answer(PeerBody::Repaired { call }, actions),
            }
            self.keep_progress(actions);
        }
    }

    /// Says whether pages that add to what this OSD, a learner of a pool of objects, has are answered later,
    /// since its engine has little space left. They are there, so a new epoch waits for nothing.
    pub fn hold_fillings(&mut self, holds: bool, actions: &mut Vec<Action>) {
        self.holds_fillings = holds;
        if !holds {
            for call in std::mem::take(&mut self.objects.late_pages) {
                self.answer(PeerBody::Repaired { call }, actions);
            }
        }
    }

    /// Whether they are.
    pub fn holds_fillings(&self) -> bool {
        self.holds_fillings
    }

    /// Notes that a change is sent to the store; returns its place among those of the epoch.
    pub(crate) fn begin_taken(&mut self) -> u64 {
        self.follow().taken.begin(())
    }

    /// Notes that a change has ended at the store, and answers the primary.
    pub(crate) fn end_taken(&mut self, order: u64, body: PeerBody, actions: &mut Vec<Action>) {
        self.answer(body, actions);
        self.ended_taken(order, actions);
    }

    /// Notes that a change has ended at the store.
    pub(crate) fn ended_taken(&mut self, order: u64, actions: &mut Vec<Action>) {
        self.follow().taken.end(order);
        self.keep_progress(actions);
    }

    /// Reports to the primary that everything it sent before its sync request is durable.
    pub(crate) fn on_peer_synced(&mut self, call: u32, actions: &mut Vec<Action>) {
        if self.follow().stage == FollowStage::Active {
            self.answer(PeerBody::Synced { call }, actions);
        }
    }

    /// Handles a copy from the primary for which the node has no room. Nobody promised room for copies.
    pub fn refuse_copy(&mut self, actions: &mut Vec<Action>) {
        if self.follow.is_some() {
            self.cannot_follow("the store has no room for a copy", actions);
        }
    }

    pub(crate) fn cannot_follow(&mut self, why: &str, actions: &mut Vec<Action>) {
        let follow = self.follow();
        if follow.stage != FollowStage::Failed {
            follow.stage = FollowStage::Failed;
            self.answer(PeerBody::Failed { why: why.into() }, actions);
        }
    }

    /// Sends the primary a block that the store copied for it.
    pub(crate) fn on_peer_copied(
        &mut self,
        call: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Ok(Answer::Copy { content, .. }) = result else {
            unreachable!("the store answers a copy with a copy");
        };
        self.answer(PeerBody::Fetched { call, content }, actions);
    }

    /// Sends the primary a list of blocks that the node made for it.
    pub(crate) fn on_peer_listed(
        &mut self,
        call: u32,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) {
        self.answer(PeerBody::Listed { call, blocks, is_last }, actions);
    }
}
