//! One placement group at one of its members. `docs/internals/pg.md` describes the protocol.
//!
//! A [`Pg`] is a value that does no I/O. Its inputs are map entries, client operations, messages from peers
//! and answers from the store. Its outputs are [`Action`]s: requests to the store, messages to peers, and
//! replies. The node carries them out in order.
//!
//! | question | files |
//! |---|---|
//! | what a PG consists of, its interface and its limits | `lib`, `shape`, `limits` |
//! | how an epoch begins at its primary | `peering`, with `lead`, `ask`, `compare`, `page` |
//! | what a member does in an epoch of another primary | `member` |
//! | what a member has, and what it reports | `local_state`, `record`, `changes` |
//! | how a write reaches all members | `write`, with `write_queue`, `versions`, `window`, `write_targets`, `sync`, `owed`, `change` |
//! | how a block is copied between members, and a learner filled | `copy`, `fill`, `filler` |
//! | what a key holds, by kind of pool | `face`, `copies`, `units`, `operation` |
//! | how members are compared while the PG serves | `scrub` |
//! | operations on objects, and their batches | `objects` |
//! | calls to the store | `store_calls`, `slots` |
//!
//! ```text
//!   primary  enter ──▶ Draining ──▶ Asking ──▶ Comparing ──▶ Journaling ──▶ Active ──▶ Ended
//!                                     └──▶ Filling ────────────────────────────────────▶┘
//!   other    enter ──▶ Draining ──▶ Following
//!
//!   Write  ──────────▶ Queued ───────────────▶ Replicate ──all members──▶ Done ──▶ reply
//!   Zero, CAS, Delete ▶ Queued ──▶ Examine ──▶ Replicate ...
//!   Read   ──────────▶ Waiting (for writes to its units) ──▶ Examine (chains) ──▶ Fetch ──▶ reply
//! ```
//!
//! Invariants
//!   1. Versions are `epoch.counter`. The counter continues from the version that the epoch adopted and rises
//!      by one with each write. A write gets its version when it is sent to all members.
//!   2. Writes to one block start in the order in which they arrived. A write that must examine the block
//!      first (compare-and-set, zero, delete) starts when all earlier writes to the block have ended.
//!   3. A read starts when no earlier write to its units is unfinished, so it returns only data that all
//!      members hold.
//!   4. No operation is served in an epoch until every acting member has the same blocks and a durable record
//!      of the epoch.
//!   5. Operations that are open when a new entry arrives are answered [`Refusal::Stale`]: each of them may
//!      or may not have been carried out.

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
mod objects;
mod operation;
mod owed;
mod page;
mod peering;
mod record;
mod scrub;
mod shape;
mod slots;
mod store_calls;
mod stripes;
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

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use base::planted::{self, Bug};
use base::{
    BlockSize, BufferPool, Epoch, ImageId, MapRevision, OsdId, PgId, Position, Scheme, SessionId,
    StripeIndex, Version,
};
use blockstore::{
    Answer, BlockKey, NoteKey, PgFacts, PreparedRoom, Request as StoreRequest, StoreError,
};
use format::wire::{
    Change, Content, Elsewhere, Filling, ListedBlock, Member, MemberState, Op, Outcome, PeerBody,
    PgEntry, Refusal,
};

pub use copies::Copies;
pub use copies::delete::DELETE_PORTION_MAX;
pub use copies::read_elsewhere::SlowDisks;
pub use face::{Face, Fault, FaultKind};
pub use lead::Absence;
pub use limits::Limits;
pub use owed::Charge;
pub use record::Record;
pub use scrub::ScrubEvent;
pub use scrub::fix::{FixOutcome, FixRequest, Fixed};
pub use scrub::note::{Finding, Running, ScrubNote, Trial, credible};
pub use shape::Shape;
pub use stripes::check::check_stripe;
pub use stripes::face_of;

use self::objects::Objects;
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
use stripes::direct::DirectReads;
use stripes::member::StripeMember;
use sync::{FlushFor, Syncs, Unflushed};
use versions::Versions;
use write_queue::WriteQueue;
use write_targets::WriteTargets;

/// Identifies an operation. The node chooses the number and does not reuse it before the reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u32);

/// Identifies a request to the store. The PG chooses the number and does not reuse it before the answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallId(pub u32);

/// What a PG tells its node to do. The node carries actions out in order.
#[derive(Debug)]
pub enum Action {
    /// Send a request to the store. The node passes the answer to [`Pg::store_done`].
    Store {
        /// Passed back with the answer, to match it to this request.
        call: CallId,
        /// The request.
        request: StoreRequest,
    },
    /// Send a repair to the store, for which no space was promised. If it needs space that was promised to
    /// writes, the node answers [`StoreError::Full`] in the store's place.
    StoreUnpromised {
        /// Passed back with the answer, to match it to this request.
        call: CallId,
        /// The request.
        request: StoreRequest,
    },
    /// List an image's blocks in the PG's hash range. The node passes the list to [`Pg::listed`].
    List {
        /// Passed back with the answer, to match it to this request.
        call: CallId,
        /// Which blocks to list.
        listing: Listing,
    },
    /// Answer an operation, which has ended.
    Reply {
        /// The ticket that [`Pg::execute`] was given.
        ticket: Ticket,
        /// The result, or why the operation was refused.
        outcome: Result<Outcome, Refusal>,
    },
    /// The PG serves its newest entry from now on: the node may pass it the operations that waited for this.
    Activated,
    /// The store has recorded that the operator gave up the data that the store lost. The PG may be
    /// activated.
    Absolved,
    /// List all blocks in the PG's hash range with versions above `newer_than`, tombstones included. The node
    /// passes the list to [`Pg::listed_newer`] at once.
    ListNewer {
        /// Passed back with the answer, to match it to this request.
        call: CallId,
        /// Only blocks with versions above this one. `ZERO`: all blocks.
        newer_than: Version,
        /// Only blocks after this one in key order. `None`: from the start.
        after: Option<BlockKey>,
        /// Maximum number of blocks to return.
        count_max: usize,
    },
    /// Send a message to a member of the entry, with the entry's epoch. The node drops it if there is no
    /// connection.
    Send {
        /// The receiver.
        to: OsdId,
        /// The message.
        body: PeerBody,
    },
    /// Send a difference as [`PeerBody::ParityDelta`] to each of these members, which are acting members with
    /// parity. If there is no connection with one of them, the node sends it only to the primary, as
    /// [`PeerBody::Delta`].
    SendDelta {
        /// The receivers.
        to: Vec<OsdId>,
        /// The difference.
        delta: Box<Delta>,
    },
    /// An event of a scrub, for the log.
    Scrub(ScrubEvent),
    /// The PG needs another entry. The node repeats this to the monitor until the epoch is over.
    Need(Need),
}

/// The change that a version makes in a data part. The fields are those of [`PeerBody::ParityDelta`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delta {
    /// The version.
    pub version: Version,
    /// The stripe.
    pub key: BlockKey,
    /// The data part that changes.
    pub part: Position,
    /// The differences.
    pub content: Content,
}

impl Delta {
    /// Returns the message to a member with parity.
    pub fn to_member(self) -> PeerBody {
        let Delta { version, key, part, content } = self;
        PeerBody::ParityDelta { version, key, part, content }
    }

    /// Returns the message to the primary, which passes the difference on.
    pub fn to_primary(self) -> PeerBody {
        let Delta { version, key, part, content } = self;
        PeerBody::Delta { version, key, part, content }
    }
}

/// Why a primary needs another entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// Another epoch with the same members, for instance because a connection broke.
    NewEpoch,
    /// This learner is complete. Until the epoch ends, no write is acknowledged without it.
    Complete(Member),
    /// This member cannot continue. The text says why, for people.
    Failed(Member, String),
    /// In pools with parity: this learner had this position in the newest activation, and gets it back. Who
    /// has the position now was filled since, and may lack what was acknowledged.
    Return(Member, Position),
    /// In pools with parity: this OSD as a learner, whether or not the plan has it. It was left out of the
    /// entry, and may have acknowledged versions that too few acting members have.
    CallBack(OsdId),
}

/// Which blocks of an image to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listing {
    /// The PG's hash range, both ends included.
    pub hashes: (u32, u32),
    /// The image, which is one layer.
    pub image: ImageId,
    /// The first stripe to list.
    pub from: StripeIndex,
    /// Only blocks after this one in key order. `None`: from the start.
    pub after: Option<BlockKey>,
    /// Maximum number of blocks to return.
    pub count_max: usize,
}

/// How far a PG has got in its newest entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Serving {
    /// The PG takes no part in any epoch.
    Idle {
        /// What the PG waits for, as text for people.
        why: String,
    },
    /// Waits until the store has completed the requests of earlier epochs.
    Draining,
    /// Another OSD is primary.
    Following,
    /// As primary: waits until all acting members have reported their state.
    Asking,
    /// As primary: brings the acting members to the same blocks.
    Comparing,
    /// As primary: waits until every acting member has a durable record.
    Journaling,
    /// As primary: serves.
    Active,
    /// As primary: acting members are lost, and too few are left to serve. Meanwhile learners are filled, and
    /// no operation is served. This epoch is never activated.
    Filling,
    /// As primary: the epoch cannot continue. The monitor was asked for the next one.
    Ended {
        /// The reason, as text for people.
        why: String,
    },
}

/// One placement group at one of its members.
pub struct Pg {
    shape: Shape,
    me: OsdId,
    buffers: BufferPool,
    serving: Serving,
    /// The entry that this OSD takes part in.
    entry: Option<PgEntry>,
    /// Number of copies that the pool had when the entry arrived.
    copies: u32,
    /// State of the epoch, if this OSD is its primary.
    lead: Option<Box<Lead>>,
    /// State of the epoch, if another OSD is its primary.
    follow: Option<Follow>,
    /// In pools with parity: the versions of the epoch at this member, while it is active here.
    stripe_member: Option<StripeMember>,
    /// In pools with parity: reads that this member answers without the primary.
    directs: DirectReads,
    // State that outlives epochs.
    local_state: LocalState,
    /// Whether the store is being told that the operator gave up what it lost.
    is_absolving: bool,
    calls: StoreCalls,
    unflushed: Unflushed,
    owed: Owed,
    /// Units that this OSD's store lost and that were restored from another copy.
    mended_units: u64,
    /// In pools with parity: stripes of which peering took a version back because a member had lost a write
    /// before. They are looked at when the PG is active.
    lost_writes: BTreeSet<BlockKey>,
    /// The note on scrubs that the acting members keep, as far as this OSD knows it.
    scrub_note: ScrubNote,
    /// The time of day, in seconds since 1970, when the node last called [`Pg::scrub`].
    scrub_now: u64,
    /// The OSDs whose disks are slow or do not answer. Reads avoid them if they can.
    slow_disks: SlowDisks,
    /// Number of reads that were sent to other members because this OSD's disk was slow.
    reads_elsewhere: u64,
    // As primary: writes that are being replicated.
    write_targets: WriteTargets,
    versions: Versions,
    syncs: Syncs,
    // As primary: operations that have not been answered.
    queue: WriteQueue,
    reads: Slots<ReadSlot, Read>,
    deletions: Deletions,
    /// In pools of objects: the operations of the epoch.
    objects: Objects,
    /// In pools of objects: whether nothing gets a version, since a store that must take it lags.
    holds_versions: bool,
    /// Whether pages of a filling are answered later.
    holds_fillings: bool,
    /// In pools of objects: the time of day, in milliseconds since 1970, as the node last said.
    time_of_day_ms: u64,
}

/// Returns the most room in a member's journal that a prepared version of this many units takes, in the steps
/// in which room is charged.
pub fn room_of_version(unit_count: u32) -> u64 {
    PreparedRoom::cost_of(unit_count).next_multiple_of(base::UNIT_SIZE)
}

impl Pg {
    /// Returns a PG that serves nothing yet. `facts`: what the store has recorded about the PG. `record`:
    /// what [`Record::decode`] read from the store's note.
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
            serving: Serving::Idle { why: "waiting for the map".into() },
            entry: None,
            copies: 1,
            lead: None,
            follow: None,
            stripe_member: None,
            directs: DirectReads::default(),
            local_state: LocalState::new(facts, record, shape.limits.change_count_max),
            is_absolving: false,
            calls: StoreCalls::default(),
            unflushed: Unflushed::default(),
            owed: Owed::default(),
            mended_units: 0,
            lost_writes: BTreeSet::new(),
            scrub_note: ScrubNote::default(),
            scrub_now: 0,
            slow_disks: SlowDisks::default(),
            reads_elsewhere: 0,
            write_targets: WriteTargets::default(),
            versions: Versions::new(),
            syncs: Syncs::default(),
            queue: WriteQueue::new(),
            reads: Slots::new(),
            deletions: Deletions::new(),
            objects: Objects::default(),
            holds_versions: false,
            holds_fillings: false,
            time_of_day_ms: 0,
        }
    }

    /// Returns the PG's id.
    pub fn id(&self) -> PgId {
        self.shape.pg
    }

    /// Returns how many 4 KiB units this OSD lost and restored from another copy since the process started.
    pub fn mended_units(&self) -> u64 {
        self.mended_units
    }

    /// Returns how far the PG has got in its newest entry.
    pub fn serving(&self) -> &Serving {
        &self.serving
    }

    /// Returns the entry that this OSD takes part in.
    pub fn entry(&self) -> Option<&PgEntry> {
        self.entry.as_ref()
    }

    /// Returns the newest record that is durable on this OSD.
    pub fn record(&self) -> Option<&Record> {
        self.local_state.record()
    }

    /// Returns the OSDs whose leases must be valid when an operation starts: the other acting members, and
    /// bound learners.
    pub fn lease_givers(&self) -> Arc<[OsdId]> {
        self.lead.as_ref().map_or_else(Arc::default, |lead| Arc::clone(&lead.lease_givers))
    }

    /// Returns the highest epoch that was begun on this OSD. [`Pg::enter`] accepts only entries with a higher
    /// epoch.
    pub fn epoch_floor(&self) -> Epoch {
        self.local_state.epoch_floor()
    }

    /// Takes part in `entry`. If this OSD is its primary, this ends with [`Action::Activated`]. All open
    /// operations are answered [`Refusal::Stale`]. The node must report its connections again, with
    /// [`Pg::peer_ready`]. Requires: this OSD, in its present run, is an acting member or learner of the
    /// entry; the entry's epoch is above [`Pg::epoch_floor`]; if this OSD is primary, the leases given to
    /// earlier primaries have expired. `scheme`: that of the pool. Parity may have been added to it since the
    /// last entry. `first_lost`: the oldest prepared version of the PG that lost data in the store.
    pub fn enter(
        &mut self,
        entry: PgEntry,
        scheme: Scheme,
        first_lost: Option<Version>,
        actions: &mut Vec<Action>,
    ) {
        assert!(entry.epoch > self.epoch_floor());
        assert!(entry.pg == self.shape.pg);
        self.local_state.on_first_lost(first_lost);
        self.abandon(actions);
        if self.stripes().is_some() {
            self.shape.face = face_of(scheme);
        }
        let is_acting = entry.position_of(self.me).is_some();
        let has_part = is_acting || entry.learner(self.me).is_some();
        let is_sound = has_part && entry.check().is_ok();
        let primary = entry.primary_osd().filter(|_| is_sound);
        let leads = primary == Some(self.me);
        match primary {
            Some(_) if leads => self.lead = Some(Box::new(Lead::new(&entry, self.me))),
            Some(primary) => self.follow = Some(Follow::new(primary, !is_acting)),
            None => {
                let why =
                    "the PG's map entry is invalid, has no primary or does not include this OSD"
                        .into();
                self.serving = Serving::Idle { why };
                return;
            }
        }
        self.entry = Some(entry);
        self.copies = scheme.position_count();
        self.serving = Serving::Draining;
        self.go_on_when_quiet(actions);
    }

    /// Takes no part in any epoch until the next entry. All open operations are answered [`Refusal::Stale`].
    pub fn halt(&mut self, why: String, actions: &mut Vec<Action>) {
        self.abandon(actions);
        self.serving = Serving::Idle { why };
    }

    /// Returns whether this OSD may have lost acknowledged writes of the PG and has not been filled or
    /// absolved since.
    pub fn is_suspect(&self) -> bool {
        self.local_state.is_suspect()
    }

    /// Returns the epoch of this OSD's record, the version up to which it has everything, and whether it is
    /// being filled, so that it has some blocks of a later time. `None`: it has no record that can be
    /// trusted.
    pub fn recorded(&self) -> Option<(Epoch, Version, bool)> {
        self.local_state.recorded()
    }

    /// Tells the store that the operator gave up the data of this PG that the store lost. Ends with
    /// [`Action::Absolved`], unless the store cannot record it: then it may be asked again.
    pub fn absolve(&mut self, actions: &mut Vec<Action>) {
        if std::mem::replace(&mut self.is_absolving, true) {
            return;
        }
        if self.shape.objects.is_some() {
            // The log has holes where batches were lost.
            self.begin_log(self.local_state.held(), Epoch::ZERO, actions);
        }
        self.call(Call::Absolve, StoreRequest::Absolve { pg: self.shape.pg }, actions);
    }

    /// Handles a message from another member in this epoch. Requires: the sender's incarnation is the one in
    /// the entry. On an error, which says how the message violates the protocol, the node closes the
    /// connection.
    pub fn peer_said(
        &mut self,
        from: OsdId,
        body: PeerBody,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if let Some(lead) = &self.lead {
            let index = lead.index_of(from).ok_or("the sender is not a member")?;
            return self.on_member_said(index, body, actions);
        }
        match &self.entry {
            Some(entry) if entry.primary_osd() == Some(from) => self.on_primary_said(body, actions),
            Some(_) if matches!(body, PeerBody::ParityDelta { .. }) => {
                self.on_direct_delta(from, body, actions)
            }
            _ => Err("the sender is not the primary".into()),
        }
    }

    /// Handles the node's answer to [`Action::ListNewer`]. Requires: `blocks` is in key order, and shorter
    /// than `count_max` only if there are no more blocks.
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
                came.expect("the node lists what was requested");
            }
            Call::ListNewer(NewerFor::Fill { learner }) => {
                let me = self.lead().me;
                let came = self.on_fill_list(learner, me, (blocks, is_last), actions);
                came.expect("the node lists what was requested");
            }
            Call::ListNewer(NewerFor::Deletion { slot }) => {
                let me = self.lead().me;
                let came = self.on_deletion_page(slot, me, (blocks, is_last), actions);
                came.expect("the node lists what was requested");
            }
            Call::ListNewer(NewerFor::Put { number, object }) => {
                self.on_put_looked((number, object), &blocks, actions);
            }
            Call::ListNewer(NewerFor::Drawn { turn, first }) => {
                self.on_drawn_looked(turn, first, &blocks, actions);
            }
            Call::ListNewer(NewerFor::Scrub { walk }) => {
                self.on_own_scrub_list(walk, (blocks, is_last), actions);
            }
            Call::Dropped => {}
            _ => unreachable!("only a list of newer blocks is answered by `listed_newer`"),
        }
    }

    /// Returns the state that this OSD reports in its newest entry. In a pool where positions hold different
    /// data, this OSD holds the data of the position in its record. If it now has another position, it
    /// reports that it has nothing there, and of which position it has everything.
    fn own_state(&self) -> MemberState {
        let position = |entry: &PgEntry| {
            let learner = entry.learner(self.me).map(|learner| learner.position);
            entry.position_of(self.me).or(learner)
        };
        let now = self.entry.as_ref().and_then(position);
        let recorded = self.local_state.record().and_then(|record| position(&record.entry));
        let is_whole = self.shape.face.is_whole_everywhere() || planted::on(Bug::RoleContentKept);
        let is_in_role = is_whole || now == recorded;
        let state = self.local_state.state(is_in_role);
        let epoch = self.local_state.activated().filter(|_| !is_in_role);
        let elsewhere = epoch.zip(recorded);
        let elsewhere = elsewhere.map(|(epoch, position)| Elsewhere { epoch, position });
        let record = self.local_state.record().filter(|record| {
            !self.shape.face.is_whole_everywhere() && record.entry.epoch == state.record_epoch
        });
        let acting = record.map(|record| record.entry.acting().copied().collect());
        MemberState { elsewhere, acting: acting.unwrap_or_default(), ..state }
    }

    /// Answers all open operations and forgets the epoch. Requests at the store still complete, but nobody is
    /// notified.
    fn abandon(&mut self, actions: &mut Vec<Action>) {
        let mut open: Vec<Ticket> = self.reads.iter().map(|(_, read)| read.ticket).collect();
        open.extend(self.directs.tickets());
        open.extend(self.deletions.tickets());
        open.extend(self.syncs.tickets());
        open.extend(self.queue.tickets());
        open.extend(self.objects.tickets());
        for ticket in open {
            actions.push(Action::Reply { ticket, outcome: Err(Refusal::Stale(None)) });
        }
        self.calls.abandon(&self.queue);
        let peers = self.lead.iter().flat_map(|lead| lead.peers.iter().enumerate());
        let owed = peers.map(|(index, peer)| (peer.member.osd, self.owed_in_epoch(index)));
        for (osd, charge) in owed.collect::<Vec<_>>() {
            self.owed.add(osd, charge);
        }
        self.reads.clear();
        self.directs.clear();
        self.deletions.clear();
        self.queue.clear();
        self.objects = Objects::default();
        self.local_state.abandon();
        self.lead = None;
        self.follow = None;
        self.stripe_member = None;
        self.entry = None;
        self.write_targets = WriteTargets::default();
        // The slots in `versions` refer to writes that no longer exist.
        self.versions.abandon();
        self.syncs = Syncs::default();
    }

    /// As primary: returns what this member may still have to store of changes that got a version in epochs
    /// that ended here since the last one that was active on this OSD. What was begun in the epoch now is not
    /// included: its request is open.
    pub fn owed_by(&self, osd: OsdId) -> Charge {
        self.owed.by(osd)
    }

    /// Returns what a member has not answered in the epoch that ends. A learner that is bound may be an
    /// acting member of the next one.
    fn owed_in_epoch(&self, index: usize) -> Charge {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let mut owed = Charge::default();
        let block_bytes = self.shape.block_size.bytes();
        if !lead.acting.has(index) {
            let filler = lead.peers[index].filler.as_ref();
            let late = filler.map_or(0, |filler| filler.unanswered_count() as u64);
            let room_bytes = late * self.room_of(u32::MAX);
            let bytes = late * block_bytes;
            return Charge { space_bytes: bytes, room_bytes, whole_bytes: bytes };
        }
        let writes = self.queue.iter().map(|(_, write)| write);
        for write in writes.filter(|write| write.is_missing(index)) {
            let whole_bytes = if write.brings || self.keeps_parity() { block_bytes } else { 0 };
            let space_bytes = if write.brings { block_bytes } else { 0 };
            let room_bytes = self.room_of(write.changed_units);
            owed += Charge { space_bytes, room_bytes, whole_bytes };
        }
        let bytes = self.objects.missing_blocks(index) as u64 * block_bytes;
        owed += Charge { space_bytes: bytes, room_bytes: 0, whole_bytes: bytes };
        owed
    }

    /// Returns the most room in a member's journal that a version takes which changes this many units: all of
    /// it until the version is committed. In pools of copies versions take none.
    pub fn room_of(&self, unit_count: u32) -> u64 {
        if !self.keeps_parity() && !planted::on(Bug::RoomCountedForCopies) {
            return 0;
        }
        room_of_version(unit_count.min(self.shape.block_size.unit_count()))
    }

    /// Returns whether the newest entry that the PG entered is active on this OSD. Then every write that was
    /// begun in an earlier epoch has arrived, or never will arrive.
    pub fn is_activated(&self) -> bool {
        match (&self.lead, &self.follow) {
            (Some(_), _) => self.serving == Serving::Active,
            (None, Some(follow)) => follow.is_active(),
            (None, None) => false,
        }
    }

    /// Called periodically while this OSD has no part in the PG. Other members settle the writes that this
    /// OSD began. After several calls this OSD no longer counts those writes against the room of members.
    pub fn forget_lost(&mut self) {
        self.owed.forget_later();
    }

    /// Enters the epoch, or reports this OSD's state, once no request is in flight at the store.
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

    /// Writes a record to the store. [`Pg::on_record_kept`] is called when it is durable or was refused.
    fn keep_record(&mut self, record: Record, what: RecordFor, actions: &mut Vec<Action>) {
        // An activation settles the prepared versions: those above the adopted version are dropped. Stable
        // versions cannot be dropped. If this OSD settled an epoch that the others did not settle, and then
        // missed that they went back, backfill has brought it to their state.
        let is_activation = matches!(what, RecordFor::Lead | RecordFor::Activation);
        let upto = record.filling.as_ref().map_or(record.adopted, |filling| filling.complete);
        let upto = upto.max(self.local_state.committed());
        let settled = Some(upto).filter(|_| is_activation && self.stripes().is_some());
        let bytes = self.local_state.begin_record(record, what);
        if let Some(upto) = settled {
            self.local_state.settle(upto);
        }
        let (pg, key) = (self.shape.pg, NoteKey::Pg(self.shape.pg));
        let request = match settled {
            Some(upto) => StoreRequest::Settle { pg, note: Some((key, bytes)), upto },
            None => StoreRequest::Note { key, bytes },
        };
        self.call(Call::Record, request, actions);
    }

    /// Handles the end of a record write: it is durable, or the store refused it.
    fn on_record_kept(&mut self, is_durable: bool, actions: &mut Vec<Action>) {
        match self.local_state.end_record(is_durable) {
            RecordFor::Nobody => {}
            RecordFor::Lead => self.on_own_record_kept(is_durable, actions),
            RecordFor::OwnDrop => self.on_own_drop_recorded(is_durable, actions),
            RecordFor::OwnForward => self.on_own_forward(is_durable, actions),
            what @ (RecordFor::Activation
            | RecordFor::Progress { .. }
            | RecordFor::Drop { .. }
            | RecordFor::Forward { .. }) => {
                self.on_followed_record_kept(what, is_durable, actions);
            }
        }
    }

    /// Lets this OSD's store drop the PG's tombstones up to this version.
    fn take_floor(&mut self, floor: Version, actions: &mut Vec<Action>) {
        if self.local_state.raise_floor(floor) {
            self.call(Call::Floor, StoreRequest::SetFloor { pg: self.shape.pg, floor }, actions);
        }
    }

    /// Makes durable all changes that this OSD's store has accepted.
    fn flush(&mut self, what: FlushFor, actions: &mut Vec<Action>) {
        if let Some(member) = &mut self.stripe_member
            && what != FlushFor::Epoch
        {
            member.pipeline.sync(what);
            return self.give_ready(actions);
        }
        self.flush_upto(what, Version::ZERO, actions);
    }

    /// Makes durable all changes that this OSD's store has accepted. In pools with parity the flush also
    /// covers versions up to `upto`.
    fn flush_upto(&mut self, what: FlushFor, upto: Version, actions: &mut Vec<Action>) {
        let covers = self.unflushed.written();
        self.call(Call::Flush { covers, upto, what }, StoreRequest::Sync, actions);
    }

    /// Handles the end of a flush. Of the changes that the store answered before they were durable, the first
    /// `covers` are durable now.
    fn on_flushed(
        &mut self,
        covers: u64,
        upto: Version,
        what: FlushFor,
        actions: &mut Vec<Action>,
    ) {
        self.unflushed.flushed(covers);
        if what != FlushFor::Epoch {
            self.on_pipeline_synced(what, upto, actions);
        }
        match what {
            FlushFor::Lead => {
                let me = self.lead().me;
                self.on_member_synced(me, actions);
            }
            FlushFor::Peer { call } => self.on_peer_synced(call, actions),
            FlushFor::Prefix | FlushFor::Epoch => {}
        }
    }

    /// Returns whether blocks may be copied and writes of the epoch may proceed: the PG is active, or it has
    /// too few members to serve and is filling learners.
    fn may_copy(&self) -> bool {
        matches!(self.serving, Serving::Active | Serving::Filling)
    }

    /// Returns the version up to which all acting members are durably complete. While learners are filled and
    /// acting members are lost: the version up to which this OSD is complete.
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

    /// Returns whether the PG is idle and has nothing in flight. Then it makes no more requests to its store.
    pub fn is_quiet(&self) -> bool {
        matches!(self.serving, Serving::Idle { .. })
            && self.open_count() == 0
            && self.calls.is_empty()
    }

    /// Returns the newest revision of the pool's map whose fences the primary of this epoch had carried out
    /// when it sent a mark that has come here; zero if none has.
    pub fn revision_told(&self) -> MapRevision {
        self.follow.as_ref().map_or(MapRevision::ZERO, Follow::revision_told)
    }

    /// Returns the number of operations that have not been answered.
    pub fn open_count(&self) -> usize {
        let syncs = self.syncs.tickets().count();
        let reads = self.reads.len() + self.directs.len();
        let objects = self.objects.tickets().count();
        self.queue.open_count() + objects + reads + self.deletions.len() + syncs
    }

    /// Answers an operation on objects if it was executed before. Otherwise it is refused: there is no
    /// room to execute it. Requires: the PG has objects, and is active.
    pub fn answer_repeat(
        &mut self,
        ticket: Ticket,
        session: SessionId,
        op: Op,
        actions: &mut Vec<Action>,
    ) {
        assert!(self.serving == Serving::Active);
        self.execute_on_objects(ticket, session, (op, false), actions);
    }

    /// Begins an operation; ends with exactly one [`Action::Reply`]. Requires: the PG is active, or the
    /// operation is a direct read, for which the leases of all other members are valid; the
    /// operation was sent for its epoch; if the operation writes data, this OSD and all of
    /// [`Pg::lease_givers`] have space for a whole block; with parity also if it writes zeros, unless these
    /// are a whole stripe; with parity there is room for its versions ([`Pg::room_of`]).
    /// `session`: that of the sender; a mutation of objects is known by it and its number.
    pub fn execute(
        &mut self,
        ticket: Ticket,
        session: SessionId,
        op: Op,
        actions: &mut Vec<Action>,
    ) {
        assert!(self.serving == Serving::Active || matches!(op, Op::ReadPart { .. }));
        if self.shape.objects.is_some() {
            return self.execute_on_objects(ticket, session, (op, true), actions);
        }
        if let Err(refusal) = self.shape.check_op(&op) {
            actions.push(Action::Reply { ticket, outcome: Err(refusal) });
            return;
        }
        match op {
            Op::Read { place, offset, length, parents } => {
                let wants = Wants::Data { offset, length };
                self.begin_read(ticket, self.shape.key(place), parents, wants, actions);
            }
            Op::ReadPart { place, offset, length, parents } => {
                self.read_direct(ticket, place, (offset, length), &parents, actions);
            }
            Op::Extents { place, parents } => {
                let wants = Wants::Allocation;
                self.begin_read(ticket, self.shape.key(place), parents, wants, actions);
            }
            Op::Write { .. } | Op::Zero { .. } => self.change_block(ticket, op, None, actions),
            Op::Sync => self.sync(ticket, actions),
            Op::DeleteRange { image, from } => self.delete(ticket, image, from, actions),
            Op::Mutate { .. } | Op::Look { .. } | Op::List { .. } => {
                unreachable!("a pool of blocks refuses them")
            }
        }
    }

    /// Executes a piece of a change: in each block of its stripe, of the units that it changes only those in
    /// `columns`. The first piece checks all of the change. Requires: as for [`Pg::execute`]; the pool has
    /// parity, and the change compares nothing and has a unit in these columns.
    pub fn execute_piece(
        &mut self,
        ticket: Ticket,
        op: Op,
        (columns, is_first): (Range<u32>, bool),
        actions: &mut Vec<Action>,
    ) {
        assert!(self.serving == Serving::Active && self.stripes().is_some());
        match if is_first { self.shape.check_op(&op) } else { Ok(()) } {
            Ok(()) => self.change_block(ticket, op, Some(columns), actions),
            Err(refusal) => actions.push(Action::Reply { ticket, outcome: Err(refusal) }),
        }
    }

    /// Queues a client's write or zero of a block or stripe.
    fn change_block(
        &mut self,
        ticket: Ticket,
        op: Op,
        columns: Option<Range<u32>>,
        actions: &mut Vec<Action>,
    ) {
        let (place, change, expected, lazy) = match op {
            Op::Write { place, offset, checksums, data, expected, lazy } => {
                (place, Change::Write { offset, checksums, data }, expected, lazy)
            }
            Op::Zero { place, offset, length, lazy } => {
                (place, Change::Zero { offset, length }, None, lazy)
            }
            _ => unreachable!("only these change a block"),
        };
        let lazy = lazy && self.may_be_lazy();
        let kind = WriteKind::Change { change, expected, lazy, columns };
        self.write(WriteFor::Client(ticket), self.shape.key(place), kind, None, actions);
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
        if has_twice(key.image, &parents) {
            // Such a read would wait for itself, and would block all other operations.
            let why = "an image appears twice in the chain of layers".to_owned();
            return actions.push(Action::Reply { ticket, outcome: Err(Refusal::Invalid { why }) });
        }
        // The read is queued with the writes: a stripe cannot be put together from parts of two versions.
        let kind = WriteKind::Read { wants, parents };
        self.write(WriteFor::Client(ticket), key, kind, None, actions);
    }

    /// In a pool of objects: says what time it is, in milliseconds since 1970. The node calls this before it
    /// begins an operation: objects tell when they were changed last.
    pub fn set_time_of_day(&mut self, unix_ms: u64) {
        self.time_of_day_ms = unix_ms;
    }

    /// Handles the store's answer to a request.
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
            Call::Batch { first, version } => self.on_own_batch((first, version), result, actions),
            Call::WantedRecords { turn, from } => {
                self.on_wanted_records(turn, from, result, actions);
            }
            Call::LookRecords { number } => self.on_look_records(number, result, actions),
            Call::LookBlock { number, index } => {
                self.on_look_block(number, index, result, actions);
            }
            Call::WantedUnits { turn, index } => {
                self.on_wanted_units(turn, index, result, actions);
            }
            Call::FillHeads { learner } => self.on_fill_heads(learner, result, actions),
            Call::FillLog { learner } => self.on_fill_log(learner, result, actions),
            Call::PageRecords { learner } => self.on_page_records(learner, result, actions),
            Call::PageBlock { learner, at } => self.on_page_block(learner, at, result, actions),
            Call::PeerHeads { call, with } => self.on_peer_heads((call, with), result, actions),
            Call::CompareKeys { look } => self.on_own_keys(look, result, actions),
            Call::CompareValues { look } => self.on_own_values(look, result, actions),
            Call::CompareMend { look } => self.on_own_records_mended(look, actions),
            Call::CleaningRecords => self.on_cleaning_records(result, actions),
            Call::MissingRecords { reading } => self.on_missing_records(reading, result, actions),
            Call::MissingBlock { reading, index } => {
                self.on_missing_block((reading, index), result, actions);
            }
            Call::ObjectForward { version } => {
                self.on_forward_taken(version, result.is_ok(), actions);
            }
            Call::Reach { order } => self.on_reach_raised(order, result.is_ok(), actions),
            Call::Examine(slot) => self.on_examined(slot, result, actions),
            Call::Fetch(slot) => self.on_fetched(slot, result, actions),
            Call::Layer { read, layer } => self.on_layer(read, layer, result, actions),
            Call::Part { read, part } => self.on_part(read, part, result, actions),
            Call::Flush { covers, upto, what } => {
                assert!(result.is_ok(), "a flush needs no room and reads nothing");
                self.on_flushed(covers, upto, what, actions);
            }
            Call::Record => self.on_record_kept(result.is_ok(), actions),
            Call::Copy(job) => self.on_own_copy(job, result, actions),
            Call::FindLost(job) => self.on_lost_units(job, result, actions),
            Call::Mend { job, units } => self.on_mended(job, units, result, actions),
            Call::Adopt(job) => self.on_adopted_here(job, result, actions),
            Call::Taken { order, first, version } => {
                self.on_taken(order, (first, version), result, actions);
            }
            Call::PeerRepair { order, call, adds } => {
                self.on_peer_repaired((order, call, adds), result, actions);
            }
            Call::PeerCopy { call } => self.on_peer_copied(call, result, actions),
            Call::Direct(id) => self.on_direct_read(id, result, actions),
            Call::AbsolveFilled { call } => self.on_filled_absolved(call, actions),
            Call::Absolve => {
                self.is_absolving = false;
                if result.is_ok() {
                    self.local_state.absolved();
                    actions.push(Action::Absolved);
                }
            }
            Call::Prepared { version } => self.on_prepared(version, result, actions),
            Call::OldUnits { version } => self.on_old_units(version, result, actions),
            Call::OldParity { version } => self.on_old_parity(version, result, actions),
            Call::Gather { slot, position } => self.on_own_part((slot, position), result, actions),
            Call::Filled { call, key } => self.on_fill_stored((call, key), result, actions),
            Call::Forwarded { call } => self.on_forwarded(call, result, actions),
            Call::ForwardHere(slot) => self.on_forwarded_here(slot, result, actions),
            Call::Ending(Some(version)) if result.is_err() => self.lacks(version),
            Call::ScrubDigest { look } => self.on_own_digest(look, result, actions),
            Call::ScrubCopy { look } => self.on_own_scrub_copy(look, result, actions),
            Call::ScrubMend { units } => self.on_own_mended(units, result, actions),
            Call::ScrubKeep => {
                let me = self.lead().me;
                self.on_note_kept(me, actions);
            }
            Call::PeerDigest { call } => self.on_peer_digest(call, result, actions),
            Call::PeerMend { order, call, units } => {
                self.on_peer_mended((order, call, units), result, actions);
            }
            Call::PeerKeep { call } => self.on_peer_kept(call, result, actions),
            Call::Floor | Call::Commit | Call::Ending(_) | Call::Dropped => {}
            Call::ListDeletion(_) | Call::ListNewer(_) => {
                unreachable!("a list is answered by `listed` or `listed_newer`")
            }
        }
        self.go_on_when_quiet(actions);
    }

    /// Refuses the operations that have not started and for which `judge` returns a refusal. Called when the
    /// epoch or the fences changed while operations waited.
    pub fn refuse_waiting(
        &mut self,
        mut judge: impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        self.refuse_waiting_reads(&mut judge, actions);
        self.refuse_waiting_deletions(&mut judge, actions);
        self.refuse_queued_writes(&mut judge, actions);
        self.refuse_waiting_mutations(&mut judge, actions);
    }

    /// Called periodically. Syncs old lazy writes that nobody has synced, and sends the mark to the other
    /// acting members. Drops tombstones up to the mark, if all copies that the pool wants are acting members
    /// and there are no learners.
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
        self.clean_if_due(actions);
    }

    /// Checks a version that a peer sent.
    fn check_version(&self, version: Version) -> Result<(), String> {
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        shape::check_version(version, epoch)
    }

    /// Checks the versions in a filling that a peer sent.
    fn check_filling(&self, filling: &Filling) -> Result<(), String> {
        self.check_version(filling.complete)?;
        self.check_version(filling.since)
    }

    /// Returns whether the PG's pool keeps parity.
    pub fn keeps_parity(&self) -> bool {
        self.stripes().is_some()
    }

    /// Returns the block size of the PG's pool.
    pub fn block_size(&self) -> BlockSize {
        self.shape.block_size
    }

    /// Returns the hash range of the PG's blocks, both ends included.
    pub fn hashes(&self) -> (u32, u32) {
        self.shape.hashes()
    }

    fn call(&mut self, call: Call, request: StoreRequest, actions: &mut Vec<Action>) {
        let call = self.calls.begin(call);
        actions.push(Action::Store { call, request });
    }

    /// Notes that the store refused a write, or a batch that begins with this version.
    fn lacks(&mut self, first: Version) {
        match self.shape.objects {
            Some(_) => self.local_state.lacks_batch(first),
            None => self.local_state.lacks(first),
        }
    }

    /// Like [`Pg::call`], for a repair for which no space was promised.
    fn call_unpromised(&mut self, call: Call, request: StoreRequest, actions: &mut Vec<Action>) {
        let call = self.calls.begin(call);
        actions.push(Action::StoreUnpromised { call, request });
    }
}

/// Returns whether a chain of layers has an image more than once. Chains are short.
fn has_twice(image: ImageId, parents: &[ImageId]) -> bool {
    let is_known =
        |(index, parent): (usize, &ImageId)| *parent == image || parents[..index].contains(parent);
    parents.iter().enumerate().any(is_known)
}

fn refusal_of(error: StoreError) -> Refusal {
    match error {
        StoreError::Full => Refusal::Full,
        StoreError::Corrupted => Refusal::Corrupted,
        StoreError::Damaged { units } => Refusal::Damaged { units },
        StoreError::Unordered | StoreError::AboveSettled => Refusal::Invalid {
            why: "the version of the write does not directly follow the PG's last version"
                .to_owned(),
        },
        StoreError::RecordsDamaged { .. } => Refusal::Damaged { units: Vec::new() },
        StoreError::NoFamily => {
            Refusal::Incomplete { why: "the store has no records of the pool yet".into() }
        }
        StoreError::OtherCompression | StoreError::WouldBlock => {
            unreachable!("nobody asks for what ends so")
        }
    }
}
