//! One placement group at one of its members. `docs/internals/pg.md` is the protocol.
//!
//! A [`Pg`] is a value. Entries, operations, messages of peers and answers of the store go in;
//! [`Action`]s come out: requests to the store, messages to peers, replies. The node carries them out in
//! order.
//!
//! | question | files |
//! |---|---|
//! | what the PG is, how it is called, who owns what | `lib`, `shape`, `limits` |
//! | how an epoch begins at its primary | `peering`, with `lead`, `ask`, `compare`, `page` |
//! | what a member does in an epoch of another primary | `member` |
//! | what a member has and states | `local_state`, `record`, `changes` |
//! | how a write gets to all members | `write`, with `write_queue`, `versions`, `window`, `write_targets`, `sync`, `owed`, `change` |
//! | how a block is copied between members, and a learner filled | `copy`, `fill`, `filler` |
//! | what a key holds, by kind of pool | `face`, `copies`, `units`, `operation` |
//! | calls of the store | `store_calls`, `slots` |
//!
//! ```text
//!   primary  enter ──▶ Draining ──▶ Asking ──▶ Comparing ──▶ Journaling ──▶ Active ──▶ Ended
//!                                     └──▶ Filling ────────────────────────────────────▶┘
//!   other    enter ──▶ Draining ──▶ Following
//!
//!   Write  ──────────▶ Queued ───────────────▶ Replicate ──all members──▶ Done ──▶ reply
//!   Zero, CAS, Delete ▶ Queued ──▶ Examine ──▶ Replicate ...
//!   Read   ──────────▶ Waiting (behind writes of its units) ──▶ Examine (chains) ──▶ Fetch ──▶ reply
//! ```
//!
//! Invariants
//!   1. Versions are `epoch.counter`; the counter goes on from what the epoch adopted, one more
//!      with each write, and a version is given when its write leaves for all members.
//!   2. Writes of one block start in the order they came. Those that must know the block first
//!      (compare-and-set, zero, delete) start when all earlier ones of it have ended.
//!   3. A read starts when no earlier write of its units is unfinished, so it returns only what all
//!      members hold.
//!   4. Nothing is served in an epoch before every acting member has the same blocks and a durable
//!      record of it.
//!   5. Operations that are open when a new entry comes are answered [`Refusal::Stale`]: each may have
//!      been carried out, or may not.

mod ask;
mod change;
mod changes;
mod compare;
mod copies;
mod copy;
mod face;
mod fill;
mod filler;
mod lead;
mod limits;
mod local_state;
mod member;
mod member_set;
mod operation;
mod owed;
mod page;
mod peering;
mod record;
mod shape;
mod slots;
mod store_calls;
mod sync;
mod units;
mod versions;
mod window;
mod write;
mod write_queue;
mod write_targets;

#[cfg(test)]
mod pg_fuzz;
#[cfg(test)]
mod tests;

use base::planted::{self, Bug};
use base::{BlockSize, BufferPool, Epoch, ImageId, OsdId, PgId, StripeIndex, Version};
use blockstore::{Answer, BlockKey, NoteKey, PgFacts, Request as StoreRequest, StoreError};
use format::wire::{
    Change, Filling, ListedBlock, Member, MemberState, Op, Outcome, PeerBody, PgEntry, Refusal,
};

pub use copies::Copies;
pub use copies::delete::DELETE_PORTION_MAX;
pub use face::Face;
pub use lead::Absence;
pub use limits::Limits;
pub use record::Record;
pub use shape::Shape;

use copies::delete::Deletions;
use copies::read::Read;
use lead::Lead;
use local_state::{LocalState, RecordFor};
use member::Follow;
use member_set::MemberSet;
use operation::{Wants, WriteFor, WriteKind};
use owed::Owed;
use slots::{ReadSlot, Slots};
use store_calls::{Call, NewerFor, StoreCalls};
use sync::{FlushFor, Syncs, Unflushed};
use versions::Versions;
use write_queue::WriteQueue;
use write_targets::WriteTargets;

/// Names an operation; the node's choice, not reused before its reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u32);

/// Names a request to the store; the PG's choice, not reused before its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallId(pub u32);

/// What a PG asks of its node, which carries actions out in order.
#[derive(Debug)]
pub enum Action {
    /// Ask the store; answered by [`Pg::store_done`].
    Store {
        /// Names the answer.
        call: CallId,
        /// What.
        request: StoreRequest,
    },
    /// List an image's blocks in the PG's hash range; answered by [`Pg::listed`].
    List {
        /// Names the answer.
        call: CallId,
        /// Which blocks.
        listing: Listing,
    },
    /// An operation ended.
    Reply {
        /// As given.
        ticket: Ticket,
        /// The answer.
        outcome: Result<Outcome, Refusal>,
    },
    /// The PG serves its newest entry from now on: operations that waited for it may come.
    Activated,
    /// The operator gave up what the store lost of the PG, and the store knows: the PG may be activated.
    Absolved,
    /// List all blocks in the PG's hash range with versions above one, tombstones included;
    /// answered at once by [`Pg::listed_newer`].
    ListNewer {
        /// Names the answer.
        call: CallId,
        /// Zero: all.
        newer_than: Version,
        /// Only blocks behind this one.
        after: Option<BlockKey>,
        /// At most so many blocks are wanted.
        count_max: usize,
    },
    /// Tell a member of the entry, with the entry's epoch. Dropped where there is no connection.
    Send {
        /// Whom.
        to: OsdId,
        /// What.
        body: PeerBody,
    },
    /// The PG needs another entry. The node tells the monitor until the epoch is over.
    Need(Need),
}

/// Why a primary needs another entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// Another epoch with the same members: a connection broke.
    NewEpoch,
    /// This learner has everything; until the epoch ends nothing is acknowledged without it.
    Complete(Member),
    /// This member cannot go on; why, for people.
    Failed(Member, String),
}

/// Which blocks of an image to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Hashes of the PG, both ends included.
    pub hashes: (u32, u32),
    /// The layer.
    pub image: ImageId,
    /// The first stripe that counts.
    pub from: StripeIndex,
    /// Only blocks behind this one.
    pub after: Option<BlockKey>,
    /// At most so many blocks are wanted.
    pub count_max: usize,
}

/// How far a PG is in its newest entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Serving {
    /// It takes part in nothing.
    Idle {
        /// For people: what it waits for.
        why: String,
    },
    /// Waits until what it gave to its store in the epochs before has ended.
    Draining,
    /// Another OSD leads.
    Following,
    /// As primary: waits until all acting members have stated themselves.
    Asking,
    /// As primary: brings the acting members to the same blocks.
    Comparing,
    /// As primary: waits until every acting member has a durable record.
    Journaling,
    /// As primary: serves.
    Active,
    /// As primary: acting members are lost, and the others are too few to serve. Learners are filled
    /// meanwhile and nothing is served. The epoch is never activated.
    Filling,
    /// As primary: the epoch cannot go on; the monitor was asked for the next one.
    Ended {
        /// For people.
        why: String,
    },
}

/// One placement group at one of its members.
pub struct Pg {
    shape: Shape,
    me: OsdId,
    buffers: BufferPool,
    serving: Serving,
    /// The entry it takes part in.
    entry: Option<PgEntry>,
    /// Of the pool, when the entry came.
    copies: u32,
    /// The epoch, as its primary.
    lead: Option<Box<Lead>>,
    /// The epoch, where another OSD leads.
    follow: Option<Follow>,
    // What outlives epochs.
    local_state: LocalState,
    calls: StoreCalls,
    unflushed: Unflushed,
    owed: Owed,
    /// Units of this OSD's store that were written again from another copy.
    mended_units: u64,
    // As primary: writes on their way to all members.
    write_targets: WriteTargets,
    versions: Versions,
    syncs: Syncs,
    // As primary: operations that are not answered.
    queue: WriteQueue,
    reads: Slots<ReadSlot, Read>,
    deletions: Deletions,
}

impl Pg {
    /// A PG that serves nothing yet. `facts` is what the store knows of it, `record` what
    /// [`Record::decode`] found in the store's note.
    pub fn new(
        shape: Shape,
        me: OsdId,
        facts: PgFacts,
        record: Option<Record>,
        buffers: BufferPool,
    ) -> Pg {
        assert!(shape.pg.number < shape.pg_count);
        Pg {
            shape,
            me,
            buffers,
            serving: Serving::Idle { why: "waits for the map".into() },
            entry: None,
            copies: 1,
            lead: None,
            follow: None,
            local_state: LocalState::new(facts, record, shape.limits.change_count_max),
            calls: StoreCalls::default(),
            unflushed: Unflushed::default(),
            owed: Owed::default(),
            mended_units: 0,
            write_targets: WriteTargets::default(),
            versions: Versions::new(),
            syncs: Syncs::default(),
            queue: WriteQueue::new(),
            reads: Slots::new(),
            deletions: Deletions::new(),
        }
    }

    /// Which PG this is.
    pub fn id(&self) -> PgId {
        self.shape.pg
    }

    /// Pieces of 4 KiB that this OSD lost and that were written again from another copy, in this run.
    pub fn mended_units(&self) -> u64 {
        self.mended_units
    }

    /// How far it is in its newest entry.
    pub fn serving(&self) -> &Serving {
        &self.serving
    }

    /// The entry it takes part in.
    pub fn entry(&self) -> Option<&PgEntry> {
        self.entry.as_ref()
    }

    /// The newest record that is durable here.
    pub fn record(&self) -> Option<&Record> {
        self.local_state.record()
    }

    /// Whose grants must be valid when an operation starts: the other acting members, and learners
    /// that are bound.
    pub fn lease_givers(&self) -> &[OsdId] {
        self.lead.as_ref().map_or(&[], |lead| &lead.lease_givers)
    }

    /// The highest epoch that was begun here: an entry is entered only if its epoch is above it.
    pub fn epoch_floor(&self) -> Epoch {
        self.local_state.epoch_floor()
    }

    /// Takes part in `entry`; as its primary it ends with [`Action::Activated`]. All that is open
    /// is answered [`Refusal::Stale`]; connections are told by [`Pg::peer_ready`] again.
    /// Requires: this OSD is an acting member or learner of it in its present run; its epoch is
    /// above [`Pg::epoch_floor`]; as primary, grants that were given to earlier ones ran out.
    /// `copies`: of the pool.
    pub fn enter(&mut self, entry: PgEntry, copies: u32, actions: &mut Vec<Action>) {
        assert!(entry.epoch > self.epoch_floor());
        assert!(entry.pg == self.shape.pg);
        self.abandon(actions);
        let is_acting = entry.position_of(self.me).is_some();
        let has_part = is_acting || entry.learner(self.me).is_some();
        let is_sound = has_part && entry.check().is_ok();
        let primary = entry.primary_osd().filter(|_| is_sound);
        let leads = primary == Some(self.me);
        match primary {
            Some(_) if leads => self.lead = Some(Box::new(Lead::new(&entry, self.me))),
            Some(primary) => self.follow = Some(Follow::new(primary, !is_acting)),
            None => {
                let why = "the map's entry cannot be served".into();
                self.serving = Serving::Idle { why };
                return;
            }
        }
        self.entry = Some(entry);
        self.copies = copies;
        self.serving = Serving::Draining;
        self.go_on_when_quiet(actions);
    }

    /// Takes part in nothing until the next entry. All that is open is answered
    /// [`Refusal::Stale`].
    pub fn halt(&mut self, why: String, actions: &mut Vec<Action>) {
        self.abandon(actions);
        self.serving = Serving::Idle { why };
    }

    /// Whether this OSD may have lost acknowledged writes of the PG, and was neither filled nor absolved
    /// since.
    pub fn is_suspect(&self) -> bool {
        self.local_state.is_suspect()
    }

    /// Tells the store that the operator gave up what it lost of this PG; ends with
    /// [`Action::Absolved`].
    pub fn absolve(&mut self, actions: &mut Vec<Action>) {
        self.call(Call::Absolve, StoreRequest::Absolve { pg: self.shape.pg }, actions);
    }

    /// A message of another member in this epoch. Requires: the sender's run is the one in the entry. The
    /// error says how it violates the protocol: the node closes the connection.
    pub fn peer_said(
        &mut self,
        from: OsdId,
        body: PeerBody,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if let Some(lead) = &self.lead {
            let index = lead.index_of(from).ok_or("the sender is no member")?;
            return self.on_member_said(index, body, actions);
        }
        match &self.entry {
            Some(entry) if entry.primary_osd() == Some(from) => self.on_primary_said(body, actions),
            _ => Err("the sender is not the primary".into()),
        }
    }

    /// The node answers [`Action::ListNewer`], in key order; with fewer blocks than asked for only
    /// if there are no more.
    pub fn listed_newer(
        &mut self,
        call: CallId,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) {
        match self.calls.end(call) {
            Call::ListNewer(NewerFor::Peer { call }) => {
                self.on_peer_listed(call, blocks, is_last, actions);
            }
            Call::ListNewer(NewerFor::Compare) => {
                let me = self.lead().me;
                let came = self.on_compare_list(me, blocks, is_last, actions);
                came.expect("the node lists what was asked");
            }
            Call::ListNewer(NewerFor::Fill { learner }) => {
                self.on_own_list(learner, blocks, is_last, actions);
            }
            Call::Dropped => {}
            _ => unreachable!("only a list of newer blocks is answered by `listed_newer`"),
        }
    }

    /// What this OSD states in its newest entry. Where positions differ, what it holds is that of the
    /// position that its record names: a member with another one has nothing.
    fn own_state(&self) -> MemberState {
        let position = |entry: &PgEntry| {
            let learner = entry.learner(self.me).map(|learner| learner.position);
            entry.position_of(self.me).or(learner)
        };
        let now = self.entry.as_ref().and_then(position);
        let recorded = self.local_state.record().and_then(|record| position(&record.entry));
        let is_in_role = self.shape.face.is_whole_everywhere() || now == recorded;
        self.local_state.state(is_in_role)
    }

    /// Answers all that is open, and forgets the epoch. What is at the store ends, and is not
    /// answered to anyone.
    fn abandon(&mut self, actions: &mut Vec<Action>) {
        let mut open: Vec<Ticket> = self.reads.iter().map(|(_, read)| read.ticket).collect();
        open.extend(self.deletions.tickets());
        open.extend(self.syncs.tickets());
        open.extend(self.queue.tickets());
        for ticket in open {
            actions.push(Action::Reply { ticket, outcome: Err(Refusal::Stale(None)) });
        }
        self.calls.abandon(&self.queue);
        let peers = self.lead.iter().flat_map(|lead| lead.peers.iter().enumerate());
        let owed = peers.map(|(index, peer)| (peer.member.osd, self.owed_in_epoch(index, false)));
        for (osd, bytes) in owed.collect::<Vec<_>>() {
            self.owed.add(osd, bytes);
        }
        self.reads.clear();
        self.deletions.clear();
        self.queue.clear();
        self.local_state.abandon();
        self.lead = None;
        self.follow = None;
        self.entry = None;
        self.write_targets = WriteTargets::default();
        // Its slots are those of writes that are forgotten.
        self.versions.abandon();
        self.syncs = Syncs::default();
    }

    /// As primary: bytes of new data that this member may still have to store, counted in whole blocks: of
    /// writes that were begun and that it has not answered, in this epoch and in earlier ones since the last
    /// epoch that was active here.
    pub fn owed_by(&self, osd: OsdId) -> u64 {
        let index = self.lead.as_ref().and_then(|lead| lead.index_of(osd));
        self.owed.by(osd) + index.map_or(0, |index| self.owed_in_epoch(index, true))
    }

    fn owed_in_epoch(&self, index: usize, counts_begun: bool) -> u64 {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let late = lead.peers[index].filler.as_ref().map_or(0, |filler| filler.unanswered_count());
        let writes = self.queue.iter().map(|(_, write)| write);
        let count = match late {
            // A learner's are counted where they are sent.
            _ if lead.acting.has(index) => writes.filter(|write| write.is_missing(index)).count(),
            late => late,
        };
        let begun = self.queue.iter().filter(|(_, write)| counts_begun && write.may_bring_data());
        (count + begun.count()) as u64 * self.shape.block_size.bytes()
    }

    /// Whether the newest entry that it entered is active here: every write that was begun in earlier
    /// epochs has come, or never will.
    pub fn is_activated(&self) -> bool {
        match (&self.lead, &self.follow) {
            (Some(_), _) => self.serving == Serving::Active,
            (None, Some(follow)) => follow.is_active(),
            (None, None) => false,
        }
    }

    /// This OSD has no part in the PG: other members settle what it began, and after some calls it forgets
    /// what they owed. Called now and then.
    pub fn forget_lost(&mut self) {
        self.owed.forget_later();
    }

    /// Enters the epoch, or states what this OSD has, once nothing is under way at the store.
    fn go_on_when_quiet(&mut self, actions: &mut Vec<Action>) {
        if self.calls.has_changes() {
            return;
        }
        let is_draining = self.serving == Serving::Draining;
        if is_draining && !self.unflushed.is_empty() {
            return self.flush(FlushFor::Epoch, actions);
        }
        if self.lead.is_some() && is_draining {
            self.ask_members(actions);
        } else if self.follow.is_some() {
            self.serving = Serving::Following;
            self.state_if_asked(actions);
        }
    }

    /// Keeps a record; [`Pg::on_record_kept`] tells that it is durable.
    fn keep_record(&mut self, record: Record, what: RecordFor, actions: &mut Vec<Action>) {
        let bytes = self.local_state.begin_record(record, what);
        let key = NoteKey::Pg(self.shape.pg);
        self.call(Call::Record, StoreRequest::Note { key, bytes }, actions);
    }

    /// A record is durable, or was refused.
    fn on_record_kept(&mut self, is_durable: bool, actions: &mut Vec<Action>) {
        match self.local_state.end_record(is_durable) {
            RecordFor::Nobody => {}
            RecordFor::Lead => self.on_own_record_kept(is_durable, actions),
            RecordFor::OwnDrop => self.on_own_drop_recorded(is_durable, actions),
            what
            @ (RecordFor::Activation | RecordFor::Progress { .. } | RecordFor::Drop { .. }) => {
                self.on_followed_record_kept(what, is_durable, actions);
            }
        }
    }

    /// The PG's tombstones up to this version may go here.
    fn take_floor(&mut self, floor: Version, actions: &mut Vec<Action>) {
        if self.local_state.raise_floor(floor) {
            self.call(Call::Floor, StoreRequest::SetFloor { pg: self.shape.pg, floor }, actions);
        }
    }

    /// Makes durable what this OSD's store took before.
    fn flush(&mut self, what: FlushFor, actions: &mut Vec<Action>) {
        let covers = self.unflushed.written();
        self.call(Call::Flush { covers, what }, StoreRequest::Sync, actions);
    }

    /// What the store answered so far is durable.
    fn on_flushed(&mut self, covers: u64, what: FlushFor, actions: &mut Vec<Action>) {
        self.unflushed.flushed(covers);
        match what {
            FlushFor::Lead => {
                let me = self.lead().me;
                self.on_member_synced(me, actions);
            }
            FlushFor::Peer { call } => self.on_peer_synced(call, actions),
            FlushFor::Epoch => {}
        }
    }

    /// Whether blocks are copied, and writes of the epoch go on: active, or below the minimum size while
    /// learners are filled.
    fn may_copy(&self) -> bool {
        matches!(self.serving, Serving::Active | Serving::Filling)
    }

    /// The version up to which all acting members have everything, durably. While learners are filled
    /// without all of them: up to which this OSD has everything.
    pub fn mark(&self) -> Version {
        let ended = self.versions.ended();
        match (&self.lead, &self.follow) {
            (Some(lead), _)
                if self.write_targets.is_empty() || ended.counter == lead.adopted.counter =>
            {
                lead.adopted
            }
            (Some(_), _) => ended,
            (None, Some(follow)) => follow.mark(),
            (None, None) => Version::ZERO,
        }
    }

    /// Whether it serves nothing and nothing of it is under way: no call to its store will follow.
    pub fn is_quiet(&self) -> bool {
        matches!(self.serving, Serving::Idle { .. })
            && self.open_count() == 0
            && self.calls.is_empty()
    }

    /// Operations that have not been answered.
    pub fn open_count(&self) -> usize {
        let syncs = self.syncs.tickets().count();
        self.queue.len() + self.reads.len() + self.deletions.len() + syncs
    }

    /// Begins an operation; ends with exactly one [`Action::Reply`].
    /// Requires: the PG is active; the operation was sent for its epoch;
    /// this OSD and all of [`Pg::lease_givers`] have room for a whole block, if it writes data.
    pub fn execute(&mut self, ticket: Ticket, op: Op, actions: &mut Vec<Action>) {
        assert!(self.serving == Serving::Active);
        if let Err(refusal) = self.shape.check_op(&op) {
            actions.push(Action::Reply { ticket, outcome: Err(refusal) });
            return;
        }
        match op {
            Op::Read { place, offset, length, parents } => {
                let wants = Wants::Data { offset, length };
                self.begin_read(ticket, self.shape.key(place), parents, wants, actions);
            }
            Op::Extents { place, parents } => {
                let wants = Wants::Allocation;
                self.begin_read(ticket, self.shape.key(place), parents, wants, actions);
            }
            Op::Write { place, offset, checksums, data, expected, lazy } => {
                let lazy = lazy && self.may_be_lazy();
                let change = Change::Write { offset, checksums, data };
                let kind = WriteKind::Change { change, expected, lazy };
                self.write(WriteFor::Client(ticket), self.shape.key(place), kind, None, actions);
            }
            Op::Zero { place, offset, length, lazy } => {
                let lazy = lazy && self.may_be_lazy();
                let change = Change::Zero { offset, length };
                let kind = WriteKind::Change { change, expected: None, lazy };
                self.write(WriteFor::Client(ticket), self.shape.key(place), kind, None, actions);
            }
            Op::Sync => self.sync(ticket, actions),
            Op::DeleteRange { image, from } => self.delete(ticket, image, from, actions),
        }
    }

    fn begin_read(
        &mut self,
        ticket: Ticket,
        key: BlockKey,
        parents: Vec<ImageId>,
        wants: Wants,
        actions: &mut Vec<Action>,
    ) {
        if self.shape.face.is_whole_everywhere() {
            return self.read(ticket, key, parents, wants, actions);
        }
        // It takes its turn: pieces of two versions do not make a stripe.
        let kind = WriteKind::Read { wants, parents };
        self.write(WriteFor::Client(ticket), key, kind, None, actions);
    }

    /// The store answered.
    pub fn store_done(
        &mut self,
        call: CallId,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let call = self.calls.end(call);
        if let Ok(Answer::Written) = result {
            self.unflushed.wrote();
        }
        match call {
            Call::Write(slot) => self.on_own_written(slot, result, actions),
            Call::Examine(slot) => self.on_examined(slot, result, actions),
            Call::Fetch(slot) => self.on_fetched(slot, result, actions),
            Call::Layer { read, layer } => self.on_layer(read, layer, result, actions),
            Call::Part { read, part } => self.on_part(read, part, result, actions),
            Call::Flush { covers, what } => {
                assert!(result.is_ok(), "a sync needs no room and reads nothing");
                self.on_flushed(covers, what, actions);
            }
            Call::Record => self.on_record_kept(result.is_ok(), actions),
            Call::Copy(job) => self.on_own_copy(job, result, actions),
            Call::FindLost(job) => self.on_lost_units(job, result, actions),
            Call::Mend { job, units } => self.on_mended(job, units, result, actions),
            Call::Adopt(job) => self.on_adopted_here(job, result, actions),
            Call::Taken { order, version } => self.on_taken(order, version, result, actions),
            Call::PeerRepair { order, call } => self.on_peer_repaired(order, call, result, actions),
            Call::PeerCopy { call } => self.on_peer_copied(call, result, actions),
            Call::AbsolveFilled { call } => self.on_filled_absolved(call, actions),
            Call::Absolve => {
                self.local_state.absolved();
                actions.push(Action::Absolved);
            }
            Call::Ending(Some(version)) if result.is_err() => self.local_state.lacks(version),
            Call::Floor | Call::Ending(_) | Call::Dropped => {}
            Call::ListDeletion(_) | Call::ListNewer(_) => {
                unreachable!("a list is answered by `listed` or `listed_newer`")
            }
        }
        self.go_on_when_quiet(actions);
    }

    /// Refuses operations that have not started and that `judge` refuses: the epoch or fences changed while
    /// they waited.
    pub fn refuse_waiting(
        &mut self,
        mut judge: impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        self.refuse_waiting_reads(&mut judge, actions);
        self.refuse_waiting_deletions(&mut judge, actions);
        self.refuse_queued_writes(&mut judge, actions);
    }

    /// Drops tombstones up to the mark while all copies of the pool have everything up to it; syncs lazy
    /// writes that nobody synced; tells the mark. Called now and then.
    pub fn raise_floor(&mut self, actions: &mut Vec<Action>) {
        self.sync_old(actions);
        self.tell_mark(actions);
        let Some(entry) = &self.entry else { return };
        let is_full = entry.acting_count() >= self.copies as usize && entry.learners.is_empty();
        let takes_part = self.follow.as_ref().map_or(self.serving == Serving::Active, |follow| {
            follow.is_acting() && self.serving == Serving::Following
        });
        let mark = self.mark();
        let is_allowed = is_full || planted::on(Bug::TombstoneDroppedEarly);
        if takes_part && is_allowed && self.local_state.pass_tombstones(mark) {
            self.take_floor(mark, actions);
        }
    }

    /// Checks a version that a peer names.
    fn check_version(&self, version: Version) -> Result<(), String> {
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        shape::check_version(version, epoch)
    }

    /// Checks the versions of a filling that a peer names.
    fn check_filling(&self, filling: &Filling) -> Result<(), String> {
        self.check_version(filling.complete)?;
        self.check_version(filling.since)
    }

    /// Block size of its pool.
    pub fn block_size(&self) -> BlockSize {
        self.shape.block_size
    }

    /// Hashes of its blocks, both ends included.
    pub fn hashes(&self) -> (u32, u32) {
        self.shape.hashes()
    }

    fn call(&mut self, call: Call, request: StoreRequest, actions: &mut Vec<Action>) {
        let call = self.calls.begin(call);
        actions.push(Action::Store { call, request });
    }
}

fn refusal_of(error: StoreError) -> Refusal {
    match error {
        StoreError::Full => Refusal::Full,
        StoreError::Corrupted => Refusal::Corrupted,
        StoreError::Damaged { units } => Refusal::Damaged { units },
    }
}
