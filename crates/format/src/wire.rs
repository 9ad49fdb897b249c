//! Messages between the processes of a cluster. See `docs/internals/wire.md`.
//!
//! ```text
//!   client ──Request──▶ OSD      one stripe at a time, named by session and sequence
//!          ◀──Reply───           outcome, or a refusal that carries what the client must learn
//!   anyone ──Control──▶ monitor  JSON text; its types live in `cluster::message`
//!   OSD ◀──Peer──▶ OSD           members of a PG, see `peer.rs`
//!   OSD ◀──Lease──▶ OSD          on a connection of its own
//! ```
//!
//! Invariants
//!   1. A payload is covered by the checksum of each of its 4 KiB units; header and body by their own.
//!   2. A receiver allocates nothing before it has checked the lengths against the limits here.

mod codec;
mod codec_peer;
mod fields;
mod peer;

use base::{
    Buffer, Checksum, Epoch, ImageId, Incarnation, MapRevision, OsdId, PgId, Position, SessionId,
    StripeIndex, Version,
};

pub use codec::{DecodeError, FRAME_HEADER_SIZE, FrameHeader, decode, decode_header, encode};
pub use peer::{
    Activation, Change, Content, Filling, HISTORY_COUNT_MAX, LIST_COUNT_MAX, LOST_COUNT_MAX,
    LeaseMessage, ListedBlock, MemberState, PeerBody, PeerMessage, REVISION_COUNT_MAX,
    WHOLE_COUNT_MAX,
};

/// Longest payload of a frame, in bytes.
pub const PAYLOAD_SIZE_MAX: u32 = 4 << 20;
/// Longest body of a data message, in bytes.
pub const BODY_SIZE_MAX: u32 = 64 << 10;
/// Longest text of a control message, in bytes.
pub const CONTROL_SIZE_MAX: u32 = 4 << 20;
/// Longest body of a lease message, in bytes.
pub const LEASE_SIZE_MAX: u32 = 1 << 20;
/// Most layers a read names.
pub const CHAIN_LENGTH_MAX: usize = 32;
/// Protocol versions this program speaks, both ends included.
pub const PROTOCOL_VERSIONS: std::ops::RangeInclusive<u16> = 1..=1;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// A client asks an OSD.
    Request(Request),
    /// An OSD answers.
    Reply(Reply),
    /// JSON text to or from a monitor; see `cluster::message`.
    Control(String),
    /// Members of a PG talk.
    Peer(Box<PeerMessage>),
    /// Two OSDs talk about their lease.
    Lease(Box<LeaseMessage>),
}

/// What a client asks of the primary of a PG. All of it concerns one stripe or one PG.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Who asks. `SessionId::ZERO` only for operations that need none (monitor's tasks).
    pub session: SessionId,
    /// Names the reply. Grows with each sending of a session, over all its connections: what is
    /// sent again gets a new one. Of what comes with one that is not above the highest seen nothing
    /// happens, and it is not answered: it came late over a connection that its sender has left.
    /// Without a session it grows on each connection.
    pub sequence: u64,
    /// The PG it is for.
    pub pg: PgId,
    /// The PG's epoch the sender acts on.
    pub epoch: Epoch,
    /// The pool's map revision the sender acts on.
    pub revision: MapRevision,
    /// What to do.
    pub op: Op,
}

/// The place of a request: one stripe of one layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The layer written, or the newest layer read.
    pub image: ImageId,
    /// Seed of the stripe's hash: the id of the image the chain began with.
    pub seed: ImageId,
    /// Which block of the image.
    pub stripe: StripeIndex,
}

/// Operations of block pools. Offsets and lengths are bytes within the stripe, multiples of 4 KiB.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read a range.
    Read {
        /// Where.
        place: Place,
        /// From, in bytes within the stripe.
        offset: u32,
        /// How much, in bytes.
        length: u32,
        /// Older layers to look into where newer ones have nothing, newest first.
        parents: Vec<ImageId>,
    },
    /// Write a range.
    Write {
        /// Where.
        place: Place,
        /// From, in bytes within the stripe.
        offset: u32,
        /// One for each 4 KiB of data.
        checksums: Vec<Checksum>,
        /// The data; as many bytes as are written.
        data: Buffer,
        /// Only if the block's version is this (compare-and-set); `ZERO`: only if never written.
        expected: Option<Version>,
        /// May be answered before it is durable: its sender holds the image's lock, keeps the data
        /// and replays it until a `Sync` covers it.
        lazy: bool,
    },
    /// Make a range read as zeros and give its space back (discard and write-zeroes).
    Zero {
        /// Where.
        place: Place,
        /// From, in bytes within the stripe.
        offset: u32,
        /// How much, in bytes.
        length: u32,
        /// As of a write.
        lazy: bool,
    },
    /// Which 4 KiB units of the stripe are written.
    Extents {
        /// Where.
        place: Place,
        /// Older layers, newest first.
        parents: Vec<ImageId>,
    },
    /// Make durable all that was acknowledged in the PG.
    Sync,
    /// Delete an image's blocks in the PG from stripe `from` on; answered in portions.
    DeleteRange {
        /// The layer.
        image: ImageId,
        /// The first stripe to delete.
        from: StripeIndex,
    },
}

/// An OSD's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply {
    /// As asked.
    pub session: SessionId,
    /// As asked.
    pub sequence: u64,
    /// The answer.
    pub outcome: Result<Outcome, Refusal>,
}

/// What was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A read.
    Read {
        /// Version of the newest layer's block; `ZERO` if it was never written.
        version: Version,
        /// One for each 4 KiB of data. Empty: the whole range reads as zeros, and no data is sent.
        checksums: Vec<Checksum>,
        /// The range's bytes, or nothing where all of it is zeros.
        data: Buffer,
    },
    /// A write or zero.
    Written {
        /// The version it got; the block's, if there was nothing to zero.
        version: Version,
        /// Whether it is durable on all members, always so unless it was lazy; if not, a later
        /// `Sync` makes it so.
        durable: bool,
    },
    /// The stripe's allocation: bit `i` of word `i / 64` is set where unit `i` is written.
    Extents {
        /// One bit for each unit of the block.
        bitmap: Vec<u64>,
    },
    /// A sync.
    Synced,
    /// A portion of a deletion.
    Deleted {
        /// Blocks deleted by this portion.
        count: u32,
        /// Whether the image has no further block from that stripe on in the PG.
        complete: bool,
    },
}

/// The newest entry of a PG: the memory and the lock of its acting set.
///
/// Its acting set is fixed slots, its *positions*, as many as the pool wants: each has a member or
/// is empty, and a change of one leaves the others where they are.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "UncheckedEntry"))]
pub struct PgEntry {
    /// The PG.
    pub pg: PgId,
    /// One more with each activation.
    pub epoch: Epoch,
    /// The pool's map revision that brought this entry.
    pub revision: MapRevision,
    /// The position whose member serves it. `None`: no member is up.
    pub primary: Option<Position>,
    /// The members that hold every acknowledged write, with the run each was in.
    pub positions: Vec<Option<Member>>,
    /// Members being filled, each for a position.
    pub learners: Vec<Learner>,
}

/// Most members of an entry, acting or learning.
pub const MEMBERS_MAX: usize = 32;

impl PgEntry {
    /// The entry of a PG that nobody has served yet: a position for each of these, of which the
    /// first leads.
    pub fn new(pg: PgId, acting: impl IntoIterator<Item = Member>) -> PgEntry {
        let positions: Vec<Option<Member>> = acting.into_iter().map(Some).collect();
        PgEntry {
            pg,
            epoch: Epoch::ZERO,
            revision: MapRevision::ZERO,
            primary: (!positions.is_empty()).then_some(Position::FIRST),
            positions,
            learners: Vec::new(),
        }
    }

    /// The same with learners, each for a further position, which is empty.
    pub fn with_learners(mut self, learners: impl IntoIterator<Item = Member>) -> PgEntry {
        for member in learners {
            let position = Position::new(self.positions.len() as u8).expect("few positions");
            self.positions.push(None);
            self.learners.push(Learner { member, position });
        }
        self
    }

    /// The same, led by this OSD, if it is an acting member; else by nobody.
    pub fn led_by(self, osd: OsdId) -> PgEntry {
        PgEntry { primary: self.position_of(osd), ..self }
    }

    /// The acting members, by position.
    pub fn acting(&self) -> impl Iterator<Item = &Member> + Clone {
        self.positions.iter().flatten()
    }

    /// Number of acting members.
    pub fn acting_count(&self) -> usize {
        self.acting().count()
    }

    /// Positions that have a member, and the member.
    pub fn filled(&self) -> impl Iterator<Item = (Position, &Member)> + Clone {
        let all = Position::all().zip(&self.positions);
        all.filter_map(|(position, member)| Some((position, member.as_ref()?)))
    }

    /// Members being filled.
    pub fn learning(&self) -> impl Iterator<Item = &Member> + Clone {
        self.learners.iter().map(|learner| &learner.member)
    }

    /// All members, acting ones first.
    pub fn members(&self) -> impl Iterator<Item = &Member> + Clone {
        self.acting().chain(self.learning())
    }

    /// The member at a position; `None`: it is empty.
    pub fn member_at(&self, position: Position) -> Option<Member> {
        self.positions.get(position.index()).copied().flatten()
    }

    /// The acting member that this OSD is.
    pub fn acting_member(&self, osd: OsdId) -> Option<Member> {
        self.acting().find(|member| member.osd == osd).copied()
    }

    /// The learner that this OSD is.
    pub fn learner(&self, osd: OsdId) -> Option<Learner> {
        self.learners.iter().find(|learner| learner.member.osd == osd).copied()
    }

    /// The position at which this OSD is an acting member.
    pub fn position_of(&self, osd: OsdId) -> Option<Position> {
        self.filled().find(|(_, member)| member.osd == osd).map(|(position, _)| position)
    }

    /// The member that serves it.
    pub fn primary_member(&self) -> Option<Member> {
        self.member_at(self.primary?)
    }

    /// The OSD that serves it.
    pub fn primary_osd(&self) -> Option<OsdId> {
        self.primary_member().map(|member| member.osd)
    }

    /// Whether both name the same primary, acting members and learners.
    pub fn has_same_members(&self, other: &PgEntry) -> bool {
        (self.primary, &self.positions, &self.learners)
            == (other.primary, &other.positions, &other.learners)
    }

    /// The error says which rule the entry breaks, for people.
    pub fn check(&self) -> Result<(), String> {
        let count = self.members().count();
        if self.positions.len() > usize::from(Position::COUNT_MAX) {
            return Err(format!("it has {} positions", self.positions.len()));
        }
        if count > MEMBERS_MAX {
            return Err(format!("it has {count} members"));
        }
        for (nth, member) in self.members().enumerate() {
            if self.members().take(nth).any(|other| other.osd == member.osd) {
                return Err(format!("{} is in it twice", member.osd));
            }
        }
        for (nth, learner) in self.learners.iter().enumerate() {
            let position = learner.position;
            if position.index() >= self.positions.len() {
                return Err(format!(
                    "{} learns for {position}, which it has not",
                    learner.member.osd
                ));
            }
            if self.learners[..nth].iter().any(|other| other.position == position) {
                return Err(format!("two members learn for {position}"));
            }
        }
        match self.primary.filter(|primary| self.member_at(*primary).is_none()) {
            Some(primary) => Err(format!("{primary} leads, and is empty")),
            None => Ok(()),
        }
    }
}

/// An entry as it was read, by whoever wrote it.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct UncheckedEntry {
    pg: PgId,
    epoch: Epoch,
    revision: MapRevision,
    primary: Option<Position>,
    positions: Vec<Option<Member>>,
    learners: Vec<Learner>,
}

#[cfg(feature = "serde")]
impl TryFrom<UncheckedEntry> for PgEntry {
    type Error = String;

    fn try_from(read: UncheckedEntry) -> Result<PgEntry, String> {
        let UncheckedEntry { pg, epoch, revision, primary, positions, learners } = read;
        let entry = PgEntry { pg, epoch, revision, primary, positions, learners };
        match entry.check() {
            Ok(()) => Ok(entry),
            Err(why) => Err(format!("the entry of PG {pg} cannot be: {why}")),
        }
    }
}

/// A member of a PG.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Member {
    /// Which OSD.
    pub osd: OsdId,
    /// In which run of its process.
    pub incarnation: Incarnation,
}

/// A member that is being filled, and what for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Learner {
    /// Who.
    pub member: Member,
    /// The position it takes once it holds everything; that may have a member until then.
    pub position: Position,
}

/// Why a request was not done. Nothing of it happened, except where said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The sender acts on another epoch, or this OSD is not the primary. The refuser's entry,
    /// if it has one; the sender takes it only if its epoch is higher.
    Stale(Option<PgEntry>),
    /// The session is fenced: it is over, for ever.
    Fenced,
    /// The block's version is another one.
    CompareFailed {
        /// The block's version.
        version: Version,
    },
    /// No space left.
    Full,
    /// Stored bytes are damaged and no other copy is left: these units of the stripe (bit `i` of
    /// word `i / 64`) cannot be read until they are rewritten or discarded.
    Damaged {
        /// One bit for each unit of the block.
        units: Vec<u64>,
    },
    /// The PG waits for members, or for the operator.
    Incomplete {
        /// For whom or what, for people.
        why: String,
    },
    /// A queue is full, or it waited too long for the map, its PG or room; try again later. A zero
    /// or a deletion may have happened, if the PG's lease ran out before the answer.
    Busy,
    /// The request breaks a rule: ours is the bug.
    Invalid {
        /// Which rule.
        why: String,
    },
    /// The data does not match its checksums: damaged on the way.
    Corrupted,
}
