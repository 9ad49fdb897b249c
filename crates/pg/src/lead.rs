//! What a primary keeps of its epoch and of each member.
//!
//! Invariants
//!   1. Members are named by their index: acting ones by position, then learners. The primary is an acting
//!      member.

use base::{Epoch, OsdId, Position, Version};
use format::wire::{Activation, MEMBERS_MAX, Member, MemberState, PgEntry};

use super::MemberSet;
use super::ask::{Asks, Contact};
use super::compare::Compare;
use super::copy::Job;
use super::face::Source;
use super::fill::Intake;
use super::filler::Filler;
use super::slots::{JobSlot, Slots};

/// What a primary keeps of its epoch.
pub struct Lead {
    /// Acting members by position, then learners.
    pub peers: Vec<Peer>,
    /// This OSD's index.
    pub me: usize,
    /// The acting members.
    pub acting: MemberSet,
    /// Acting members whose records are not durable yet.
    pub unrecorded: MemberSet,
    /// The version that the epoch adopted.
    pub adopted: Version,
    /// Tombstones up to it are gone.
    pub floor: Version,
    /// Activations up to this one.
    pub history: Vec<Activation>,
    pub compare: Compare,
    pub jobs: Slots<JobSlot, Job>,
    /// Questions to members whose answers are missing.
    pub asks: Asks,
    /// So many fills may be under way.
    pub fills_max: usize,
    /// Learners that have everything and are not reported yet.
    pub unreported: MemberSet,
    /// Whose leases this primary needs.
    pub lease_givers: Vec<OsdId>,
    /// The mark that the other acting members were told.
    pub mark_told: Version,
}

/// A member as its primary sees it.
pub struct Peer {
    pub member: Member,
    /// Where it acts, or what for it learns.
    pub position: Position,
    pub contact: Contact,
    pub state: Option<MemberState>,
    /// Of a learner that is being judged.
    pub intake: Option<Intake>,
    /// Of a learner that takes part.
    pub filler: Option<Filler>,
}

/// How an acting member that has not stated itself stands, by the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absence {
    /// It is up, in the run that the entry names.
    Awaited,
    /// It is not.
    Down,
    /// It was removed from the cluster: nothing waits for data that only it may have.
    Gone,
}

/// What follows from the states of all acting members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// This member has no record of a PG that others know.
    Unknown(usize),
    /// All hold the same blocks.
    Same,
    /// Blocks above this version are compared.
    Compare { newer_than: Version },
}

impl Lead {
    /// Requires: `me` is a member of the entry, which has at most [`MEMBERS_MAX`].
    pub fn new(entry: &PgEntry, me: OsdId) -> Lead {
        let acting = entry.filled().map(|(position, member)| Peer::new(*member, position));
        let learners = entry.learners.iter().map(|it| Peer::new(it.member, it.position));
        let peers: Vec<Peer> = acting.chain(learners).collect();
        assert!(peers.len() <= MEMBERS_MAX);
        let me = peers.iter().position(|peer| peer.member.osd == me);
        let me = me.filter(|me| *me < entry.acting_count()).expect("a primary is an acting member");
        let acting = MemberSet::all(entry.acting_count());
        let others = entry.acting().map(|member| member.osd);
        Lead {
            me,
            acting,
            unrecorded: acting,
            adopted: Version::ZERO,
            floor: Version::ZERO,
            history: Vec::new(),
            compare: Compare::default(),
            jobs: Slots::new(),
            asks: Asks::default(),
            fills_max: 0,
            unreported: MemberSet::default(),
            lease_givers: others.filter(|osd| *osd != peers[me].member.osd).collect(),
            mark_told: Version::ZERO,
            peers,
        }
    }

    /// The index of a member that is not this OSD.
    pub fn index_of(&self, osd: OsdId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.member.osd == osd).filter(|index| *index != self.me)
    }

    /// Whether no other member takes part in the epoch.
    pub fn is_alone(&self) -> bool {
        self.peers.len() == 1
    }

    pub fn acting_states(&self) -> impl Iterator<Item = &MemberState> {
        let count = self.acting.count();
        self.peers[..count].iter().map(|peer| peer.state.as_ref().expect("all have answered"))
    }

    /// Whether all acting members have stated themselves.
    pub fn is_known(&self) -> bool {
        self.peers[..self.acting.count()].iter().all(|peer| peer.state.is_some())
    }

    /// Judges the acting members. Requires: all have stated themselves.
    pub fn judge(&self) -> Judgement {
        let states: Vec<&MemberState> = self.acting_states().collect();
        let is_new = states.iter().all(|state| state.held == Version::ZERO);
        let is_recorded = states.iter().any(|state| state.record_epoch > Epoch::ZERO);
        let unknown = states.iter().position(|state| state.record_epoch == Epoch::ZERO);
        if let Some(index) = unknown.filter(|_| is_recorded && !is_new) {
            return Judgement::Unknown(index);
        }
        let (epoch, complete) = (states[0].record_epoch, states[0].complete);
        let is_same = states.iter().all(|state| {
            state.record_epoch == epoch && state.complete == complete && state.held <= complete
        });
        if is_same || states.len() == 1 {
            return Judgement::Same;
        }
        let lowest = states.iter().map(|state| state.complete).min().unwrap_or_default();
        let floor = states.iter().map(|state| state.floor).max().unwrap_or_default();
        // Below a floor deletions are in no list: what lacks them is found only among all blocks.
        let newer_than = if lowest < floor { Version::ZERO } else { lowest };
        Judgement::Compare { newer_than }
    }

    /// The version that the epoch adopts. Requires: all acting members have stated themselves.
    pub fn highest_complete(&self) -> Version {
        let complete = self.acting_states().map(|state| state.complete);
        complete.max().expect("there are acting members")
    }

    /// Up to which version an acting member proves the deletion of what it lacks: tombstones of such
    /// versions are gone there. A disk that lost the block, and not the floor above it, proves nothing.
    pub fn deleted_up_to(&self, index: usize) -> Version {
        let state = self.peers[index].state.as_ref();
        state.map_or(Version::ZERO, |state| state.floor.min(state.complete))
    }

    /// A member as a source of what it holds.
    pub fn source(&self, index: usize) -> Source {
        Source { index, position: self.peers[index].position }
    }

    /// Acting members other than this OSD.
    pub fn acting_others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.acting.count()).filter(move |index| *index != me)
    }
}

impl Peer {
    fn new(member: Member, position: Position) -> Peer {
        let contact = Contact::Away;
        Peer { member, position, contact, state: None, intake: None, filler: None }
    }
}
