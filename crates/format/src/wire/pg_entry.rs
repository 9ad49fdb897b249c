//! The entry of a PG: its members, the positions they hold, and which of them leads.
//!
//! Invariant: an entry that was decoded passes [`PgEntry::check`].

use base::{Epoch, Incarnation, MapRevision, OsdId, PgId, Position};

/// The newest entry of a PG: it remembers and locks the acting set.
///
/// The acting set has fixed slots, its *positions*, as many as the pool wants. Each has a member or
/// is empty, and a change of one does not move the others.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "UncheckedEntry"))]
pub struct PgEntry {
    /// The PG.
    pub pg: PgId,
    /// One more with each activation.
    pub epoch: Epoch,
    /// The revision of the pool's map that brought this entry.
    pub revision: MapRevision,
    /// The position whose member serves it. `None`: no member is up.
    pub primary: Option<Position>,
    /// The members that hold every acknowledged write, each with its incarnation.
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

/// An entry as it was read; not checked yet.
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
