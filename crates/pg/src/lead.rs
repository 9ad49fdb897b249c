//! A primary's state of its epoch and of each member.
//!
//! Invariants
//!   1. Members are identified by their index: acting ones by position, then learners. The primary is an
//!      acting member.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::{Epoch, OsdId, Position, Version};
use format::wire::{Activation, MEMBERS_MAX, Member, MemberState, PgEntry};

use super::MemberSet;
use super::ask::{Asks, Contact};
use super::compare::Compare;
use super::copy::Job;
use super::face::Source;
use super::fill::Intake;
use super::filler::Filler;
use super::scrub::Scrub;
use super::slots::{ForwardSlot, GatherSlot, JobSlot, Slots};
use super::stripes::fill::LateFill;
use super::stripes::peering::Settled;
use super::stripes::replicate::{DeltaRoute, GatherJob};

/// A primary's state of its epoch.
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
    /// Tombstones up to this version are gone.
    pub floor: Version,
    /// The PG's activations, up to that of this epoch.
    pub history: Vec<Activation>,
    pub compare: Compare,
    pub jobs: Slots<JobSlot, Job>,
    /// In pools with parity: units of stripes that are being gathered.
    pub gathers: Slots<GatherSlot, GatherJob>,
    /// In pools with parity: keys that are being brought to the adopted version, with the members that have
    /// not prepared them yet.
    pub forwards: Slots<ForwardSlot, MemberSet>,
    /// In pools with parity: versions for which some differences of data parts have not been passed on, and
    /// the members that get these differences.
    pub deltas: BTreeMap<Version, DeltaRoute>,
    /// In pools with parity: number of versions whose differences still go through this OSD, because one that
    /// a data member sent straight to a member with parity did not arrive.
    pub detours_left: u32,
    /// In pools with parity: fills that wait for the mark.
    pub late_fills: Vec<LateFill>,
    /// Acting members that lack versions up to the adopted one.
    pub behind: MemberSet,
    /// In pools with parity: what members' records call settled.
    pub settled: Settled,
    /// Acting members from which learners are filled.
    pub fill_sources: MemberSet,
    /// Why learners, or one of them, are not filled although acting members are lost, or why the epoch is not
    /// activated although all members have reported their state; for people.
    pub hindrance: Option<String>,
    /// In pools with parity: members that are not in the entry may have acknowledged versions that too few of
    /// the acting members have.
    pub lacks_holders: bool,
    /// In pools with parity: these members were removed from the cluster, so what only they have is given up.
    pub gave_up_holders: bool,
    /// In pools with parity, while learners are filled below minimum size: those that were members in the
    /// newest activation are not filled.
    pub keeps_holders: bool,
    /// In pools with parity: a member records that it lacks a version that was made of a part with a lost
    /// write. Then the next epoch begins.
    pub drops_lost_write: bool,
    /// Requests to members that have not been answered.
    pub asks: Asks,
    /// Maximum number of fills in flight.
    pub fills_max: usize,
    /// Learners that are complete and have not been reported yet.
    pub unreported: MemberSet,
    /// The OSDs whose leases this primary needs.
    pub lease_givers: Arc<[OsdId]>,
    /// The newest mark that was sent to the other acting members.
    pub mark_told: Version,
    /// The comparison of members while the PG serves.
    pub scrub: Scrub,
}

/// A member as its primary sees it.
pub struct Peer {
    pub member: Member,
    /// The member's position in the acting set; for a learner, the position for which it learns.
    pub position: Position,
    pub contact: Contact,
    pub state: Option<MemberState>,
    /// Set while a learner's data is checked before it is admitted.
    pub intake: Option<Intake>,
    /// Set while a learner takes part in the epoch.
    pub filler: Option<Filler>,
}

/// The status, according to the map, of an acting member that has not reported its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Absence {
    /// The member is up, in the incarnation that the entry lists.
    Awaited,
    /// The member is not up in that incarnation.
    Down,
    /// The member was removed from the cluster: data that only this member may have is given up.
    Gone,
}

/// What learners are filled from while acting members are lost.
pub struct Basis {
    /// Learners are filled as of this version: what they then have, all acting members are known to have.
    pub adopted: Version,
    /// Tombstones up to this version may be gone.
    pub floor: Version,
    /// Members that have everything up to `adopted`.
    pub sources: MemberSet,
    /// The member whose history of activations learners are compared with.
    pub history_from: usize,
    /// Members that are not in the entry and may have acknowledged versions that the sources lack.
    pub others: Vec<Member>,
    /// Whether the sources have everything that was answered, also what was not durable: lost members that
    /// are still in the cluster cannot have more of it.
    pub has_all: bool,
}

/// What follows from the states of all acting members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// This member has no record of the PG, although others have one.
    Unknown(usize),
    /// All members hold the same blocks.
    Same,
    /// Blocks above this version are compared.
    Compare { newer_than: Version },
}

impl Lead {
    /// Returns the state at the beginning of an epoch. Requires: `me` is a member of the entry, which has at
    /// most [`MEMBERS_MAX`].
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
            gathers: Slots::new(),
            forwards: Slots::new(),
            deltas: BTreeMap::new(),
            detours_left: 0,
            late_fills: Vec::new(),
            behind: MemberSet::default(),
            settled: Settled::default(),
            fill_sources: acting,
            hindrance: None,
            lacks_holders: false,
            gave_up_holders: false,
            keeps_holders: false,
            drops_lost_write: false,
            asks: Asks::default(),
            fills_max: 0,
            unreported: MemberSet::default(),
            lease_givers: others.filter(|osd| *osd != peers[me].member.osd).collect(),
            mark_told: Version::ZERO,
            scrub: Scrub::default(),
            peers,
        }
    }

    /// Returns the index of a member other than this OSD.
    pub fn index_of(&self, osd: OsdId) -> Option<usize> {
        self.peers.iter().position(|peer| peer.member.osd == osd).filter(|index| *index != self.me)
    }

    /// Returns how many keys are being brought to acting members.
    pub fn adoption_count(&self) -> usize {
        self.jobs.len() + self.gathers.len() + self.forwards.len()
    }

    /// Returns whether the entry has no member but this OSD.
    pub fn is_alone(&self) -> bool {
        self.peers.len() == 1
    }

    pub fn acting_states(&self) -> impl Iterator<Item = &MemberState> {
        let count = self.acting.count();
        self.peers[..count].iter().map(|peer| peer.state.as_ref().expect("all have answered"))
    }

    /// Returns whether all acting members have reported their state.
    pub fn is_known(&self) -> bool {
        self.peers[..self.acting.count()].iter().all(|peer| peer.state.is_some())
    }

    /// Decides what follows from the states of the acting members. Requires: all have reported their state.
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
        // Deletions at or below a floor are no longer listed: a member that missed one is found only by
        // comparing all blocks.
        let newer_than = if lowest < floor { Version::ZERO } else { lowest };
        Judgement::Compare { newer_than }
    }

    /// Returns the version that the epoch adopts. Requires: all acting members have reported their state.
    pub fn highest_complete(&self) -> Version {
        let complete = self.acting_states().map(|state| state.complete);
        complete.max().expect("there are acting members")
    }

    /// Returns the version up to which an acting member is complete. Requires: it has reported its state.
    pub fn complete_of(&self, index: usize) -> Version {
        self.peers[index].state.as_ref().expect("it has reported").complete
    }

    /// Returns the version up to which an acting member proves that a block it lacks was deleted: its
    /// tombstones up to there are gone. The member proves nothing above the version up to which it is
    /// complete: a disk may have lost the block and kept the floor above it.
    pub fn deleted_up_to(&self, index: usize) -> Version {
        let state = self.peers[index].state.as_ref();
        state.map_or(Version::ZERO, |state| state.floor.min(state.complete))
    }

    /// Returns a member as a source of the data that it holds.
    pub fn source(&self, index: usize) -> Source {
        Source { index, position: self.peers[index].position }
    }

    /// Returns the indices of the acting members other than this OSD.
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
