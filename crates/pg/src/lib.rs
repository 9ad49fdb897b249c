//! One placement group at its primary: gives writes their versions, orders what touches the same
//! block, and answers when every member of the acting set has done its part.
//!
//! A [`Pg`] is a value. Operations, new entries and the store's answers go in; [`Action`]s come
//! out: requests to the store, and replies. Its node carries them out in order.
//!
//! ```text
//!   entry ──activate──▶ Draining ──▶ Journaling ──note durable──▶ Active
//!                       (started writes end)
//!
//!   Write  ──────────▶ Queued ───────────────▶ Replicate ──all members──▶ Done ──▶ reply
//!   Zero, CAS, Delete ▶ Queued ──▶ Examine ──▶ Replicate ...
//!   Read   ──────────▶ Waiting (behind writes of its units) ──▶ Examine (chains) ──▶ Fetch ──▶ reply
//! ```
//!
//! Invariants
//!   1. Versions are `epoch.counter`; the counter grows by one with each write of the PG, over all
//!      epochs and restarts, and a version is given when its write starts, never before.
//!   2. Writes of one block start in the order they came. Those that must know the block first
//!      (compare-and-set, zero, delete) start when all earlier ones of it have ended.
//!   3. A read starts when no earlier write of its units is unfinished, so it returns only what all
//!      members hold.
//!   4. Nothing is served in an epoch before its entry and activation record are durable.

mod chain;
mod delete;
mod read;
mod record;
mod serving;
mod window;
mod write;

#[cfg(test)]
mod pg_fuzz;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use base::hash::{hash_range_of_pg, stripe_hash};
use base::{
    BlockSize, BufferPool, ImageId, OsdId, PgId, StripeIndex, UNIT_SIZE, Version, checksum,
};
use blockstore::{Answer, BlockKey, PgFacts, Request as StoreRequest, StoreError};
use format::wire::{
    CHAIN_LENGTH_MAX, Member, Op, Outcome, PAYLOAD_SIZE_MAX, PeerBody, Place, Refusal,
};
use slab::Slab;

pub use delete::DELETE_PORTION_MAX;
pub use record::Record;
pub use serving::Serving;

use delete::Deletion;
use read::{Read, Wants};
use window::Window;
use write::{Write, WriteFor, WriteKind};

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
    /// Blocks to delete.
    List(usize),
    /// A client's sync.
    Sync(Ticket),
    /// Entry and activation record.
    Note,
    /// A floor; nobody waits for it.
    Floor,
    /// The operator gave up what the store lost of this PG.
    Absolve,
}

/// The members of an acting set that something waits for, by their index in the entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MemberSet(u32);

impl MemberSet {
    /// The first `count` members. Requires: at most 32.
    fn all(count: usize) -> MemberSet {
        assert!(count <= 32);
        MemberSet(((1u64 << count) - 1) as u32)
    }

    fn remove(&mut self, index: usize) {
        assert!(self.0 & (1 << index) != 0);
        self.0 &= !(1 << index);
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
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
}

/// One placement group at one of its members.
pub struct Pg {
    shape: Shape,
    me: OsdId,
    buffers: BufferPool,
    serving: Serving,
    /// What this OSD last made durable of the PG's entry.
    record: Option<Record>,
    /// A record on its way to the store's journal.
    noting: Option<Record>,
    /// Members of the entry that is served.
    member_count: usize,
    /// The newest version given.
    newest: Version,
    window: Window,
    floor: Version,
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
        let newest = facts.last;
        let newest = record.as_ref().map_or(newest, |record| record.adopted.max(newest));
        Pg {
            shape,
            me,
            buffers,
            serving: Serving::Idle { why: "waits for the map".into() },
            record,
            noting: None,
            member_count: 0,
            newest,
            window: Window::new(newest.counter),
            floor: Version::ZERO,
            has_tombstones: true,
            queue: BTreeMap::new(),
            queued_next: 0,
            writes: Slab::new(),
            reads: Slab::new(),
            deletions: Slab::new(),
            deletion_cursor: None,
            calls: Slab::new(),
        }
    }

    /// Which PG this is.
    pub fn id(&self) -> PgId {
        self.shape.pg
    }

    /// The version up to which all writes have ended, durably on all members.
    pub fn mark(&self) -> Version {
        self.window.mark(self.newest, self.record.as_ref())
    }

    /// Whether it serves nothing and nothing of it is under way: no call to its store will follow.
    pub fn is_quiet(&self) -> bool {
        matches!(self.serving, Serving::Idle { .. })
            && self.open_count() == 0
            && self.calls.is_empty()
    }

    /// Operations that have not been answered.
    pub fn open_count(&self) -> usize {
        self.writes.len() + self.reads.len() + self.deletions.len()
    }

    /// Begins an operation; ends with exactly one [`Action::Reply`]. `full`: the store has no room
    /// for new data, so a write is refused before it gets a version.
    /// Requires: the PG is active, and the operation was sent for its epoch.
    pub fn execute(&mut self, ticket: Ticket, op: Op, full: bool, actions: &mut Vec<Action>) {
        assert!(matches!(self.serving, Serving::Active));
        if let Err(refusal) = self.check(&op) {
            actions.push(Action::Reply { ticket, outcome: Err(refusal) });
            return;
        }
        match op {
            Op::Read { place, offset, length, parents } => {
                let wants = Wants::Data { offset, length };
                self.read(ticket, self.key(place), parents, wants, actions);
            }
            Op::Extents { place, parents } => {
                self.read(ticket, self.key(place), parents, Wants::Allocation, actions);
            }
            Op::Write { .. } if full => {
                actions.push(Action::Reply { ticket, outcome: Err(Refusal::Full) });
            }
            // Durable acknowledgement is always allowed.
            Op::Write { place, offset, checksums, data, expected, lazy: _ } => {
                let kind = WriteKind::Write { offset, checksums, data, expected };
                self.write(WriteFor::Client(ticket), self.key(place), kind, actions);
            }
            Op::Zero { place, offset, length, lazy: _ } => {
                let kind = WriteKind::Zero { offset, length };
                self.write(WriteFor::Client(ticket), self.key(place), kind, actions);
            }
            Op::Sync => self.call(Call::Sync(ticket), StoreRequest::Sync, actions),
            Op::DeleteRange { image, from } => self.delete(ticket, image, from, actions),
        }
    }

    /// The store answered.
    pub fn store_done(
        &mut self,
        call: CallId,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        match self.calls.remove(call.0 as usize) {
            Call::Write(slot) => self.written(slot, result, actions),
            Call::Examine(slot) => self.examined(slot, result, actions),
            Call::Fetch(slot) => self.fetched(slot, result, actions),
            Call::Layer { read, layer } => self.layer_known(read, layer, result, actions),
            Call::Part { read, part } => self.part_fetched(read, part, result, actions),
            Call::Sync(ticket) => {
                let outcome = result.map(|_| Outcome::Synced).map_err(refusal_of);
                actions.push(Action::Reply { ticket, outcome });
            }
            Call::Note => self.noted(result, actions),
            Call::Absolve => actions.push(Action::Absolved),
            Call::Floor => {}
            Call::List(_) => unreachable!("a listing is answered by `listed`"),
        }
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

    /// Lets tombstones up to the mark go: with one member, all members are complete up to it.
    /// Called now and then.
    pub fn raise_floor(&mut self, actions: &mut Vec<Action>) {
        let mark = self.mark();
        if !self.has_tombstones || mark <= self.floor || !matches!(self.serving, Serving::Active) {
            return;
        }
        self.floor = mark;
        self.has_tombstones = self.newest > mark;
        self.call(Call::Floor, StoreRequest::SetFloor { pg: self.shape.pg, floor: mark }, actions);
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
        let call = CallId(self.calls.insert(call) as u32);
        actions.push(Action::Store { call, request });
    }
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
