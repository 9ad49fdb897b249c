//! One placement group at one of its members. `docs/internals/pg.md` is the protocol.
//!
//! A [`Pg`] is a value. Entries, operations, what peers say and the store's answers go in;
//! [`Action`]s come out: requests to the store, messages to peers, replies. Its node carries them
//! out in order.
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
//!   5. What is open when a new entry comes is answered [`Refusal::Stale`]: it may have happened.

mod ask;
mod changes;
mod compare;
mod copies;
mod copy;
mod face;
mod fill;
mod lead;
mod limits;
mod local_state;
mod member;
mod member_set;
mod operation;
mod record;
mod sync;
mod units;
mod window;
mod write;

#[cfg(test)]
mod pg_fuzz;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use base::hash::{hash_range_of_pg, stripe_hash};
use base::planted::{self, Bug};
use base::{
    BlockSize, BufferPool, Epoch, ImageId, OsdId, PgId, StripeIndex, UNIT_SIZE, Version, checksum,
};
use blockstore::{Answer, BlockKey, PgFacts, Request as StoreRequest, StoreError};
use format::wire::{
    CHAIN_LENGTH_MAX, Filling, ListedBlock, Member, MemberState, Op, Outcome, PAYLOAD_SIZE_MAX,
    PeerBody, PgEntry, Place, Refusal,
};
use slab::Slab;

pub use copies::Copies;
pub use copies::delete::DELETE_PORTION_MAX;
pub use face::Face;
pub use lead::Absence;
pub use limits::Limits;
pub use record::Record;

use changes::Changes;
use copies::delete::Deletion;
use copies::read::Read;
use lead::Lead;
use limits::{COUNTER_MAX, LOST_LOOKS_MAX};
use local_state::LocalState;
use member::Follow;
use member_set::MemberSet;
use operation::{Wants, WriteFor, WriteKind};
use sync::{FlushFor, Syncs, Unflushed};
use window::Window;
use write::Write;

/// Names an operation; the node's choice, not reused before its reply.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(pub u32);

/// Names a request to the store; the PG's choice, not reused before its answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct CallId(pub u32);

/// What a PG asks of its node. Actions are carried out in order.
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
    /// What the store lost of the PG is given up: it may be activated.
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
    /// The PG needs another entry. The monitor is told again and again until the epoch is over.
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

/// What an answer of the store belongs to.
#[derive(Clone, Copy, Debug)]
enum Call {
    /// A write, zero or delete of the local member.
    Write(usize),
    /// Version and allocation of a block that is about to change.
    Examine(usize),
    /// All data of a read without older layers.
    Fetch(usize),
    /// Allocation of one layer of a chain.
    Layer { read: usize, layer: usize },
    /// Data of one part of a chain.
    Part { read: usize, part: usize },
    /// This OSD's copy of a block.
    Copy(usize),
    /// What this OSD lost of a block.
    MendLook(usize),
    /// What it lost, written again.
    Mend { job: usize, units: usize },
    /// The newest version of a block, for this OSD as an acting member.
    Adopt(usize),
    /// Blocks newer than some version.
    Newer(NewerFor),
    /// A write that the primary sent.
    Taken { order: u64, version: Version },
    /// A repair that the primary sent.
    PeerRepair { order: u64, call: u32 },
    /// A block that the primary asked for.
    PeerCopy { call: u32 },
    /// Blocks to delete.
    List(usize),
    /// Everything so far, durably: so many changes that were answered before they were durable.
    Flush { covers: u64, what: FlushFor },
    /// A record.
    Note,
    /// A floor; nobody waits for it.
    Floor,
    /// The operator gave up what the store lost of this PG.
    Absolve,
    /// A filling ended: what the store lost is here again.
    AbsolveFilled { call: u32 },
    /// A change of an epoch that is over; its version, if it has one.
    Ending(Option<Version>),
    /// Nobody waits for it any more.
    Dropped,
}

impl Call {
    /// Whether it changes what the member states when the next epoch begins.
    fn is_change(&self) -> bool {
        match self {
            Call::Write(_)
            | Call::Mend { .. }
            | Call::Adopt(_)
            | Call::Taken { .. }
            | Call::PeerRepair { .. }
            | Call::AbsolveFilled { .. }
            | Call::Note
            | Call::Flush { .. }
            | Call::Ending(_) => true,
            Call::Examine(_)
            | Call::Fetch(_)
            | Call::Layer { .. }
            | Call::Part { .. }
            | Call::Copy(_)
            | Call::MendLook(_)
            | Call::Newer(_)
            | Call::PeerCopy { .. }
            | Call::List(_)
            | Call::Floor
            | Call::Absolve
            | Call::Dropped => false,
        }
    }
}

/// Who wants a list of newer blocks.
#[derive(Clone, Copy, Debug)]
enum NewerFor {
    /// The primary.
    Peer { call: u32 },
    /// The comparison of the acting members.
    Compare,
    /// The filling of a learner.
    Fill(usize),
}

/// Who waits for a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NoteFor {
    /// This OSD as primary.
    Lead,
    /// The primary that activates the epoch.
    Activation,
    /// The primary that fills this learner.
    Progress { call: u32 },
    /// This OSD as primary, which takes something back.
    OwnDrop,
    /// The primary, which takes something back.
    Drop { call: u32 },
    /// The epoch is over, or the connection is gone.
    Nobody,
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
    /// As primary: acting members are lost, and those left are too few to serve. Learners are filled
    /// meanwhile, and nothing is served; the epoch is never activated.
    Filling,
    /// As primary: the epoch cannot go on, the next one is asked for.
    Ended {
        /// For people.
        why: String,
    },
}

/// What a PG is made with; all of it outlives epochs.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Which PG.
    pub pg: PgId,
    /// Number of PGs of its pool.
    pub pg_count: u32,
    /// Block size of its pool.
    pub block_size: BlockSize,
    /// How much of everything it holds at once.
    pub limits: Limits,
    /// What its keys hold.
    pub face: &'static dyn Face,
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
    /// The highest epoch that other members may have recorded for this OSD.
    epoch_promised: Epoch,
    local_state: LocalState,
    /// The newest record that is durable here.
    record: Option<Record>,
    /// A record on its way to the store's journal.
    noting: Option<(Record, NoteFor)>,
    /// Changes at the store whose answers are missing.
    changing: usize,
    changes: Changes,
    lead: Option<Box<Lead>>,
    follow: Option<Follow>,
    /// Bytes of writes that members may lack, since the last epoch that was active here.
    lost: BTreeMap<OsdId, u64>,
    lost_looks: u32,
    /// Members that get every write.
    write_targets: MemberSet,
    /// Members without whose copies nothing is acknowledged.
    ack_required: MemberSet,
    /// As primary: the newest version given.
    newest: Version,
    /// As primary: writes in flight.
    window: Window,
    syncs: Syncs,
    unflushed: Unflushed,
    /// Whether a tombstone was made that the floor has not passed.
    has_tombstones: bool,
    /// Unfinished writes, by block and then by age.
    queue: BTreeMap<(BlockKey, u64), usize>,
    queued_next: u64,
    writes: Slab<Write>,
    reads: Slab<Read>,
    deletions: Slab<Deletion>,
    /// Where the last portion of a deletion ended: (image, from, its last block).
    deletion_cursor: Option<(ImageId, StripeIndex, BlockKey)>,
    calls: Slab<Call>,
    /// Units of this OSD's store that were written again from another copy.
    mended_units: u64,
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
        let local_state = LocalState::new(facts);
        let reach =
            record.as_ref().map_or(local_state.held, |record| record.adopted.max(local_state.held));
        Pg {
            shape,
            me,
            buffers,
            serving: Serving::Idle { why: "waits for the map".into() },
            entry: None,
            copies: 1,
            epoch_promised: Epoch::ZERO,
            local_state,
            record,
            noting: None,
            changing: 0,
            changes: Changes::new(reach, shape.limits.change_count_max),
            lead: None,
            follow: None,
            lost: BTreeMap::new(),
            lost_looks: 0,
            write_targets: MemberSet::default(),
            ack_required: MemberSet::default(),
            newest: Version::ZERO,
            window: Window::new(0),
            syncs: Syncs::default(),
            unflushed: Unflushed::default(),
            has_tombstones: true,
            queue: BTreeMap::new(),
            queued_next: 0,
            writes: Slab::new(),
            reads: Slab::new(),
            deletions: Slab::new(),
            deletion_cursor: None,
            calls: Slab::new(),
            mended_units: 0,
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
        self.record.as_ref()
    }

    /// Whose grants must be valid when an operation starts: the other acting members, and learners
    /// that are bound.
    pub fn lease_givers(&self) -> &[OsdId] {
        self.lead.as_ref().map_or(&[], |lead| &lead.lease_givers)
    }

    /// The highest epoch that was begun here: an entry is entered only if its epoch is above it.
    pub fn epoch_floor(&self) -> Epoch {
        let noting = self.noting.iter().map(|(record, _)| record);
        let records = self.record.iter().chain(noting);
        let recorded = records.map(|record| record.entry.epoch).max().unwrap_or(Epoch::ZERO);
        recorded.max(self.local_state.held.epoch).max(self.epoch_promised)
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
                let why = "the map's entry is not one that can be served".into();
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

    /// Whether what is here may lack acknowledged writes, and nobody has settled that.
    pub fn is_suspect(&self) -> bool {
        self.local_state.is_suspect
    }

    /// Tells the store that the operator gave up what it lost of this PG; ends with
    /// [`Action::Absolved`].
    pub fn absolve(&mut self, actions: &mut Vec<Action>) {
        self.call(Call::Absolve, StoreRequest::Absolve { pg: self.shape.pg }, actions);
    }

    /// Another member said this, in this epoch; the sender's run was compared with the entry. The
    /// error says what no member of ours says: its connection ends.
    pub fn peer_said(
        &mut self,
        from: OsdId,
        body: PeerBody,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if let Some(lead) = &self.lead {
            let index = lead.index_of(from).ok_or("it is no member")?;
            return self.member_said(index, body, actions);
        }
        match &self.entry {
            Some(entry) if entry.primary_osd() == Some(from) => self.primary_said(body, actions),
            _ => Err("it is not the primary".into()),
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
        match self.calls.remove(call.0 as usize) {
            Call::Newer(NewerFor::Peer { call }) => {
                self.listed_for_peer(call, blocks, is_last, actions);
            }
            Call::Newer(NewerFor::Compare) => {
                let me = self.lead().me;
                let came = self.on_compare_list(me, blocks, is_last, actions);
                came.expect("the node lists what was asked");
            }
            Call::Newer(NewerFor::Fill(index)) => self.on_own_list(index, blocks, is_last, actions),
            Call::Dropped => {}
            _ => unreachable!("only a list of newer blocks is answered so"),
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
        let recorded = self.record.as_ref().and_then(|record| position(&record.entry));
        let is_in_role = self.shape.face.is_whole_everywhere() || now == recorded;
        self.local_state.state(self.record.as_ref(), is_in_role)
    }

    /// Answers all that is open, and forgets the epoch. What is at the store ends, and is not
    /// answered to anyone.
    fn abandon(&mut self, actions: &mut Vec<Action>) {
        let mut open: Vec<Ticket> = self.reads.iter().map(|(_, read)| read.ticket).collect();
        open.extend(self.deletions.iter().map(|(_, deletion)| deletion.ticket));
        open.extend(self.syncs.tickets());
        open.extend(self.writes.iter().filter_map(|(_, write)| match write.issuer {
            WriteFor::Client(ticket) => Some(ticket),
            WriteFor::Deletion(_) | WriteFor::Job(_) => None,
        }));
        for ticket in open {
            actions.push(Action::Reply { ticket, outcome: Err(Refusal::Stale(None)) });
        }
        for (_, call) in &mut self.calls {
            *call = match *call {
                Call::Note | Call::Floor | Call::Absolve | Call::Ending(_) => *call,
                Call::Flush { covers, .. } => Call::Flush { covers, what: FlushFor::Epoch },
                Call::Write(slot) => Call::Ending(self.writes[slot].version()),
                Call::Taken { version, .. } => Call::Ending(Some(version)),
                call if call.is_change() => Call::Ending(None),
                _ => Call::Dropped,
            };
        }
        let peers = self.lead.iter().flat_map(|lead| lead.peers.iter().enumerate());
        let owed = peers.map(|(index, peer)| (peer.member.osd, self.owed_in_epoch(index, false)));
        for (osd, bytes) in owed.filter(|(_, bytes)| *bytes > 0).collect::<Vec<_>>() {
            *self.lost.entry(osd).or_default() += bytes;
            self.lost_looks = 0;
        }
        self.reads.clear();
        self.deletions.clear();
        self.writes.clear();
        self.queue.clear();
        if let Some((_, what)) = &mut self.noting {
            *what = NoteFor::Nobody;
        }
        self.lead = None;
        self.follow = None;
        self.entry = None;
        self.write_targets = MemberSet::default();
        self.ack_required = MemberSet::default();
        // Its slots are those of writes that are forgotten.
        self.window = Window::new(0);
        self.syncs = Syncs::default();
    }

    /// As primary: bytes of new data, whole blocks, that this member may still have to store: of
    /// writes that were begun and that it has not answered, in this epoch or, where none was activated
    /// since, in earlier ones.
    pub fn owed_by(&self, osd: OsdId) -> u64 {
        let lost = self.lost.get(&osd).copied().unwrap_or(0);
        let index = self.lead.as_ref().and_then(|lead| lead.index_of(osd));
        lost + index.map_or(0, |index| self.owed_in_epoch(index, true))
    }

    fn owed_in_epoch(&self, index: usize, counts_begun: bool) -> u64 {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let late = lead.peers[index].filler.as_ref().map_or(0, |filler| filler.unanswered_count());
        let writes = self.writes.iter().map(|(_, write)| write);
        let count = match late {
            // A learner's are counted where they are sent.
            _ if lead.acting.has(index) => writes.filter(|write| write.is_missing(index)).count(),
            late => late,
        };
        let begun = self.writes.iter().filter(|(_, write)| counts_begun && write.may_bring_data());
        (count + begun.count()) as u64 * self.shape.block_size.bytes()
    }

    /// Whether the newest entry that it entered is active here: every write that was begun in earlier
    /// epochs has come, or will not.
    pub fn is_activated(&self) -> bool {
        match (&self.lead, &self.follow) {
            (Some(_), _) => self.serving == Serving::Active,
            (None, Some(follow)) => follow.is_active(),
            (None, None) => false,
        }
    }

    /// This OSD has no part in the PG. What it began there is settled by others: that takes no
    /// longer than some of these calls, which come now and then.
    pub fn forget_lost(&mut self) {
        self.lost_looks += 1;
        if self.lost_looks > LOST_LOOKS_MAX {
            self.lost.clear();
        }
    }

    /// Goes on with what waits until nothing is under way at the store.
    fn go_on_when_quiet(&mut self, actions: &mut Vec<Action>) {
        if self.changing > 0 {
            return;
        }
        let is_draining = self.serving == Serving::Draining;
        if is_draining && self.has_unflushed() {
            return self.flush(FlushFor::Epoch, actions);
        }
        if self.lead.is_some() && is_draining {
            self.ask_members(actions);
        } else if self.follow.is_some() {
            self.serving = Serving::Following;
            self.state_if_asked(actions);
        }
    }

    /// A record is durable, or was refused.
    fn noted(&mut self, result: Result<Answer, StoreError>, actions: &mut Vec<Action>) {
        let (record, what) = self.noting.take().expect("one record at a time, until its answer");
        let is_durable = result.is_ok();
        if is_durable {
            self.record = Some(record);
            self.local_state.recorded();
        }
        match what {
            NoteFor::Nobody => {}
            NoteFor::Lead => self.on_own_record_noted(is_durable, actions),
            NoteFor::OwnDrop => self.on_own_drop_noted(is_durable, actions),
            NoteFor::Activation | NoteFor::Progress { .. } | NoteFor::Drop { .. } => {
                self.followed_record_noted(what, is_durable, actions);
            }
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
        let ended = self.window.ended();
        match (&self.lead, &self.follow) {
            (Some(lead), _) if self.write_targets.is_empty() || ended == lead.adopted.counter => {
                lead.adopted
            }
            (Some(_), _) => Version { epoch: self.newest.epoch, counter: ended },
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
        self.writes.len() + self.reads.len() + self.deletions.len() + syncs
    }

    /// Begins an operation; ends with exactly one [`Action::Reply`].
    /// Requires: the PG is active; the operation was sent for its epoch;
    /// this OSD and all of [`Pg::lease_givers`] have room for a whole block, if it writes data.
    pub fn execute(&mut self, ticket: Ticket, op: Op, actions: &mut Vec<Action>) {
        assert!(self.serving == Serving::Active);
        if let Err(refusal) = self.check(&op) {
            actions.push(Action::Reply { ticket, outcome: Err(refusal) });
            return;
        }
        match op {
            Op::Read { place, offset, length, parents } => {
                let wants = Wants::Data { offset, length };
                self.begin_read(ticket, self.key(place), parents, wants, actions);
            }
            Op::Extents { place, parents } => {
                let wants = Wants::Allocation;
                self.begin_read(ticket, self.key(place), parents, wants, actions);
            }
            Op::Write { place, offset, checksums, data, expected, lazy } => {
                let lazy = lazy && self.may_be_lazy();
                let kind = WriteKind::Write { offset, checksums, data, expected, lazy };
                self.write(WriteFor::Client(ticket), self.key(place), kind, None, actions);
            }
            Op::Zero { place, offset, length, lazy } => {
                let lazy = lazy && self.may_be_lazy();
                let kind = WriteKind::Zero { offset, length, lazy };
                self.write(WriteFor::Client(ticket), self.key(place), kind, None, actions);
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
        // It takes its turn: pieces of two versions make no stripe.
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
        let call = self.calls.remove(call.0 as usize);
        if call.is_change() {
            self.changing -= 1;
        }
        if let Ok(Answer::Written) = result {
            self.unflushed.wrote();
        }
        match call {
            Call::Write(slot) => self.on_own_written(slot, result, actions),
            Call::Examine(slot) => self.on_examined(slot, result, actions),
            Call::Fetch(slot) => self.on_fetched(slot, result, actions),
            Call::Layer { read, layer } => self.on_layer(read, layer, result, actions),
            Call::Part { read, part } => self.on_part(read, part, result, actions),
            Call::Flush { covers, what } => self.flushed(covers, what, &result, actions),
            Call::Note => self.noted(result, actions),
            Call::Copy(job) => self.on_own_copy(job, result, actions),
            Call::MendLook(job) => self.on_lost_units(job, result, actions),
            Call::Mend { job, units } => self.on_mended((job, units), result, actions),
            Call::Adopt(job) => self.on_adopted_here(job, result, actions),
            Call::Taken { order, version } => self.on_taken(order, version, result, actions),
            Call::PeerRepair { order, call } => self.repaired(order, call, result, actions),
            Call::PeerCopy { call } => self.copied_for_peer(call, result, actions),
            Call::AbsolveFilled { call } => self.filled_absolved(call, actions),
            Call::Absolve => {
                self.local_state.absolved();
                actions.push(Action::Absolved);
            }
            Call::Ending(Some(version)) if result.is_err() => self.local_state.lacks(version),
            Call::Floor | Call::Ending(_) | Call::Dropped => {}
            Call::List(_) | Call::Newer(_) => unreachable!("a list is answered by its own door"),
        }
        self.go_on_when_quiet(actions);
    }

    /// Refuses what has not started yet and what `judge` has an answer for: epoch or fences
    /// changed while it waited here.
    pub fn refuse_waiting(
        &mut self,
        mut judge: impl FnMut(Ticket) -> Option<Refusal>,
        actions: &mut Vec<Action>,
    ) {
        self.refuse_waiting_reads(&mut judge, actions);
        self.refuse_waiting_deletions(&mut judge, actions);
        self.refuse_queued_writes(&mut judge, actions);
    }

    /// Lets tombstones up to the mark go, while all copies of the pool are up to it; syncs lazy
    /// writes that nobody asked to be synced; tells the mark. Called now and then.
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
        if takes_part && is_allowed && self.has_tombstones {
            self.has_tombstones = self.local_state.held > mark;
            self.take_floor(mark, actions);
        }
    }

    /// Checks everything about an operation that its sender could have known to be wrong.
    fn check(&self, op: &Op) -> Result<(), Refusal> {
        match op {
            Op::Read { place, offset, length, parents } => {
                self.check_place(place)?;
                self.check_parents(parents)?;
                self.check_range(*offset, u64::from(*length))
            }
            Op::Extents { place, parents } => {
                self.check_place(place)?;
                self.check_parents(parents)
            }
            Op::Write { place, offset, checksums, data, .. } => {
                self.check_place(place)?;
                self.check_range(*offset, data.len() as u64)?;
                if checksums.len() as u64 * UNIT_SIZE != data.len() as u64 {
                    return invalid("a write carries one checksum for each 4 KiB of data");
                }
                match checksum::first_mismatch(data, checksums) {
                    None => Ok(()),
                    Some(_) => Err(Refusal::Corrupted),
                }
            }
            Op::Zero { place, offset, length, .. } => {
                self.check_place(place)?;
                self.check_range(*offset, u64::from(*length))
            }
            Op::Sync | Op::DeleteRange { .. } => Ok(()),
        }
    }

    fn check_place(&self, place: &Place) -> Result<(), Refusal> {
        let (first, last) = self.hashes();
        if (first..=last).contains(&stripe_hash(place.seed, place.stripe)) {
            return Ok(());
        }
        invalid("the stripe's hash does not fall in this PG")
    }

    fn check_range(&self, offset: u32, length: u64) -> Result<(), Refusal> {
        if length == 0 {
            return invalid("a range has at least one unit");
        }
        if !u64::from(offset).is_multiple_of(UNIT_SIZE) || !length.is_multiple_of(UNIT_SIZE) {
            return invalid("offset and length are multiples of 4 KiB");
        }
        if u64::from(offset) + length > self.shape.block_size.bytes() {
            return invalid("the range ends behind its block");
        }
        assert!(length <= u64::from(PAYLOAD_SIZE_MAX));
        Ok(())
    }

    fn check_parents(&self, parents: &[ImageId]) -> Result<(), Refusal> {
        if parents.len() < CHAIN_LENGTH_MAX {
            return Ok(());
        }
        invalid("a chain has at most 32 layers")
    }

    /// Checks a block that a peer names.
    fn check_key(&self, key: BlockKey) -> Result<(), String> {
        let (first, last) = self.hashes();
        if key.pool == self.shape.pg.pool && (first..=last).contains(&key.hash) {
            return Ok(());
        }
        Err("a block of another PG".into())
    }

    /// Checks a version that a peer names: none is of an epoch to come, and counters do not run out.
    fn check_version(&self, version: Version) -> Result<(), String> {
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        if version.epoch <= epoch && version.counter <= COUNTER_MAX {
            return Ok(());
        }
        Err(format!("version {version}, which nobody can have given in epoch {epoch}"))
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
        hash_range_of_pg(self.shape.pg.number, self.shape.pg_count)
    }

    fn key(&self, place: Place) -> BlockKey {
        BlockKey {
            pool: self.shape.pg.pool,
            hash: stripe_hash(place.seed, place.stripe),
            image: place.image,
            stripe: place.stripe,
        }
    }

    fn call(&mut self, call: Call, request: StoreRequest, actions: &mut Vec<Action>) {
        if call.is_change() {
            self.changing += 1;
        }
        let call = CallId(self.calls.insert(call) as u32);
        actions.push(Action::Store { call, request });
    }
}

/// The version behind another one in an epoch.
fn next_version(before: Version, epoch: Epoch) -> Version {
    let is_reused = planted::on(Bug::CounterReusedAfterRestart) && before.epoch > Epoch::ZERO;
    before.next_in(if is_reused { before.epoch } else { epoch })
}

fn invalid(why: &str) -> Result<(), Refusal> {
    Err(Refusal::Invalid { why: why.into() })
}

fn refusal_of(error: StoreError) -> Refusal {
    match error {
        StoreError::Full => Refusal::Full,
        StoreError::Corrupted => Refusal::Corrupted,
        StoreError::Damaged { units } => Refusal::Damaged { units },
    }
}

/// The 4 KiB units of a range, as (first, behind the last).
fn units_of(offset: u32, length: u32) -> (u32, u32) {
    let unit = UNIT_SIZE as u32;
    (offset / unit, (offset + length) / unit)
}

fn has_unit(bitmap: &[u64], unit: u32) -> bool {
    bitmap.get(unit as usize / 64).is_some_and(|word| word & (1 << (unit % 64)) != 0)
}
