//! The entry of a PG: its members, their positions, and which of them is the primary.
//!
//! Invariant: every decoded entry passes [`PgEntry::check`].

use base::{Epoch, Incarnation, MapRevision, OsdId, PgId, Position};

/// The newest entry of a PG: it records and fixes the acting set.
///
/// The acting set has fixed slots, its *positions*, as many as the pool specifies. Each position has a member
/// or is empty, and a change to one position does not move the others.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "UncheckedEntry"))]
pub struct PgEntry {
    /// The PG.
    pub pg: PgId,
    /// The epoch, which increases by one with each activation.
    pub epoch: Epoch,
    /// The revision of the pool's map that introduced this entry.
    pub revision: MapRevision,
    /// The position of the primary. `None`: no member is up.
    pub primary: Option<Position>,
    /// The members that hold every acknowledged write, each with its incarnation.
    pub positions: Vec<Option<Member>>,
    /// Learners, each for a position.
    pub learners: Vec<Learner>,
    /// The newest epoch at whose beginning the operator gave up what the primary's store had lost; zero:
    /// none. The primary of that epoch serves what is left. In replicated pools learners whose records are
    /// older may have more.
    #[cfg_attr(feature = "serde", serde(skip_serializing_if = "is_zero"))]
    pub given_up: Epoch,
}

#[cfg(feature = "serde")]
fn is_zero(epoch: &Epoch) -> bool {
    *epoch == Epoch::ZERO
}

/// Maximum number of members in an entry, acting and learning ones together.
pub const MEMBERS_MAX: usize = 32;

impl PgEntry {
    /// Returns the entry of a PG that was never served: one position for each of these members. The first
    /// member is the primary.
    pub fn new(pg: PgId, acting: impl IntoIterator<Item = Member>) -> PgEntry {
        let positions: Vec<Option<Member>> = acting.into_iter().map(Some).collect();
        PgEntry {
            pg,
            epoch: Epoch::ZERO,
            revision: MapRevision::ZERO,
            primary: (!positions.is_empty()).then_some(Position::FIRST),
            positions,
            learners: Vec::new(),
            given_up: Epoch::ZERO,
        }
    }

    /// Returns the same entry with learners added, each for a further, empty position.
    pub fn with_learners(mut self, learners: impl IntoIterator<Item = Member>) -> PgEntry {
        for member in learners {
            let position = Position::new(self.positions.len() as u8).expect("few positions");
            self.positions.push(None);
            self.learners.push(Learner { member, position });
        }
        self
    }

    /// Returns the same entry with this OSD as primary; without a primary if the OSD is not an acting
    /// member.
    pub fn led_by(self, osd: OsdId) -> PgEntry {
        PgEntry { primary: self.position_of(osd), ..self }
    }

    /// Returns the acting members, in the order of positions.
    pub fn acting(&self) -> impl Iterator<Item = &Member> + Clone {
        self.positions.iter().flatten()
    }

    /// Returns the number of acting members.
    pub fn acting_count(&self) -> usize {
        self.acting().count()
    }

    /// Returns the positions that have a member, each with its member.
    pub fn filled(&self) -> impl Iterator<Item = (Position, &Member)> + Clone {
        let all = Position::all().zip(&self.positions);
        all.filter_map(|(position, member)| Some((position, member.as_ref()?)))
    }

    /// Returns the learners.
    pub fn learning(&self) -> impl Iterator<Item = &Member> + Clone {
        self.learners.iter().map(|learner| &learner.member)
    }

    /// Returns all members, acting members first.
    pub fn members(&self) -> impl Iterator<Item = &Member> + Clone {
        self.acting().chain(self.learning())
    }

    /// Returns the member at a position; `None` if the position is empty.
    pub fn member_at(&self, position: Position) -> Option<Member> {
        self.positions.get(position.index()).copied().flatten()
    }

    /// Returns this OSD as an acting member; `None` if it is not one.
    pub fn acting_member(&self, osd: OsdId) -> Option<Member> {
        self.acting().find(|member| member.osd == osd).copied()
    }

    /// Returns this OSD as a learner; `None` if it is not one.
    pub fn learner(&self, osd: OsdId) -> Option<Learner> {
        self.learners.iter().find(|learner| learner.member.osd == osd).copied()
    }

    /// Returns the position at which this OSD is an acting member.
    pub fn position_of(&self, osd: OsdId) -> Option<Position> {
        self.filled().find(|(_, member)| member.osd == osd).map(|(position, _)| position)
    }

    /// Returns the primary.
    pub fn primary_member(&self) -> Option<Member> {
        self.member_at(self.primary?)
    }

    /// Returns the OSD of the primary.
    pub fn primary_osd(&self) -> Option<OsdId> {
        self.primary_member().map(|member| member.osd)
    }

    /// Whether both entries have the same primary, acting members and learners.
    pub fn has_same_members(&self, other: &PgEntry) -> bool {
        (self.primary, &self.positions, &self.learners)
            == (other.primary, &other.positions, &other.learners)
    }

    /// Checks the entry. The error tells the operator which rule the entry breaks.
    pub fn check(&self) -> Result<(), String> {
        let count = self.members().count();
        if self.positions.len() > usize::from(Position::COUNT_MAX) {
            return Err(format!("too many positions: {}", self.positions.len()));
        }
        if count > MEMBERS_MAX {
            return Err(format!("too many members: {count}"));
        }
        for (nth, member) in self.members().enumerate() {
            if self.members().take(nth).any(|other| other.osd == member.osd) {
                return Err(format!("{} appears twice among the members", member.osd));
            }
        }
        for (nth, learner) in self.learners.iter().enumerate() {
            let position = learner.position;
            if position.index() >= self.positions.len() {
                return Err(format!(
                    "{} is a learner for {position}, which does not exist",
                    learner.member.osd
                ));
            }
            if self.learners[..nth].iter().any(|other| other.position == position) {
                return Err(format!("two members are learners for {position}"));
            }
        }
        if self.given_up > self.epoch {
            return Err(format!(
                "lost data is given up in epoch {}, which is to come",
                self.given_up
            ));
        }
        match self.primary.filter(|primary| self.member_at(*primary).is_none()) {
            Some(primary) => Err(format!("the primary's {primary} is empty")),
            None => Ok(()),
        }
    }
}

/// An entry as it was read, before it is checked.
#[cfg(feature = "serde")]
#[derive(serde::Deserialize)]
struct UncheckedEntry {
    pg: PgId,
    epoch: Epoch,
    revision: MapRevision,
    primary: Option<Position>,
    positions: Vec<Option<Member>>,
    learners: Vec<Learner>,
    #[serde(default)]
    given_up: Epoch,
}

#[cfg(feature = "serde")]
impl TryFrom<UncheckedEntry> for PgEntry {
    type Error = String;

    fn try_from(read: UncheckedEntry) -> Result<PgEntry, String> {
        let UncheckedEntry { pg, epoch, revision, primary, positions, learners, given_up } = read;
        let entry = PgEntry { pg, epoch, revision, primary, positions, learners, given_up };
        match entry.check() {
            Ok(()) => Ok(entry),
            Err(why) => Err(format!("the entry of PG {pg} is invalid: {why}")),
        }
    }
}

/// A member of a PG.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Member {
    /// The OSD.
    pub osd: OsdId,
    /// The incarnation of the OSD.
    pub incarnation: Incarnation,
}

/// A learner, and the position it will take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Learner {
    /// The member.
    pub member: Member,
    /// The position that the learner takes once it holds everything. The position may have another member
    /// until then.
    pub position: Position,
}
