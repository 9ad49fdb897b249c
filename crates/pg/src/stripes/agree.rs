//! Compares what members hold of a stripe, without its data: versions, the units that hold data, and part
//! tables. `docs/internals/scrub.md` has the rules.
//!
//! ```text
//!   part tables ──┐
//!                 ├─▶ what each data part must hold ──▶ which members are wrong as a whole, and in which units
//!   data parts  ──┘
//! ```
//!
//! Invariants
//!   1. What is said about a part counts for nothing if somebody else knows of a newer version. Of the rest
//!      more than half must agree, and no more may be wrong than agree. Otherwise nobody decides, and nothing of
//!      the stripe is repaired.
//!   2. A member is never brought to an older version.
//!   3. A part that was never written and one that was deleted are the same.

use base::{BlockSize, Position, Version};

use super::Stripes;
use super::table::{Table, TablePart};
use crate::MemberSet;
use crate::face::{Fault, FaultKind, Remedy, Seen, SeenKey, UnitSeen, Verdict};
use crate::units::Units;

/// What each member must hold, and which members hold something else. Members are identified by their index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compared {
    /// What the data parts must hold; `None`: it cannot be decided.
    pub table: Option<Table>,
    /// The version that parity parts must have.
    pub parity_version: Version,
    /// The faults of whole parts, by member.
    pub faults: Vec<(usize, Fault)>,
    /// Members whose part must be made anew.
    pub whole: MemberSet,
    /// By member: the units whose data the member lost.
    pub damaged: Vec<Units>,
    /// By member: the units that hold data where they must not, or hold none where they must.
    pub differing: Vec<Units>,
    /// Members that get this tombstone: they missed the deletion of the stripe.
    pub deleted: Option<(Version, MemberSet)>,
}

impl Compared {
    /// Returns the units of a position that must hold data. Requires: the table is decided.
    pub fn written(&self, position: Position) -> Units {
        let table = self.table.as_ref().expect("it is decided what the parts hold");
        let part = table.parts.get(position.index());
        part.map_or_else(|| table.written(), |part| part.written)
    }

    /// Returns the version that a position must have. Requires: the table is decided.
    pub fn version(&self, position: Position) -> Version {
        let table = self.table.as_ref().expect("it is decided what the parts hold");
        table.parts.get(position.index()).map_or(self.parity_version, |part| part.version)
    }

    /// Returns the verdict of a look that reads no data.
    pub fn into_verdict(self) -> Verdict {
        let Compared { mut faults, damaged, differing, deleted, .. } = self;
        add_counts(&mut faults, FaultKind::Damaged, &damaged);
        add_counts(&mut faults, FaultKind::Differs, &differing);
        let remedy = deleted.map(|(version, targets)| Remedy::Tombstone { version, targets });
        Verdict { faults, remedy }
    }
}

/// Adds a fault for each member with units in `units`, which has one entry for each member.
pub fn add_counts(faults: &mut Vec<(usize, Fault)>, kind: FaultKind, units: &[Units]) {
    for (index, units) in units.iter().enumerate().filter(|(_, units)| !units.is_empty()) {
        faults.push((index, Fault { kind, units: units.count() as u32 }));
    }
}

/// What one member holds of a stripe.
struct Member<'a> {
    position: Position,
    seen: &'a Seen,
    /// Units that hold data and can be read.
    written: Units,
    damaged: Units,
    /// What the member knows about the data parts, if it holds parity and can read its table. A tombstone
    /// says that all of them are empty.
    table: Option<Table>,
}

/// What somebody says about a data part.
#[derive(Clone, Copy)]
struct Statement {
    /// Whoever says it has seen what happened to the part up to this version.
    known_upto: Version,
    /// The version of the part; zero: it is empty.
    version: Version,
    written: Units,
    /// Units of which it is not known whether they hold data.
    unsure: Units,
}

impl Statement {
    /// Returns whether another statement names something that happened after this one was made.
    fn is_outdated_by(&self, other: &Statement) -> bool {
        let since = match other.version {
            Version::ZERO => other.known_upto,
            version => version,
        };
        self.version != other.version && self.known_upto < since
    }

    /// Returns whether these units may be the ones that hold data.
    fn agrees_with(&self, written: &Units) -> bool {
        self.written.without(&self.unsure) == written.without(&self.unsure)
    }
}

impl Member<'_> {
    fn of<'a>(
        stripes: &Stripes,
        position: Position,
        seen: &'a Seen,
        size: BlockSize,
    ) -> Member<'a> {
        let (mut written, mut damaged) = (Units::default(), Units::default());
        let data_count = stripes.data_count();
        let mut table = None;
        match &seen.key {
            SeenKey::Gone => {}
            SeenKey::Tombstone(_) => table = Some(Table::empty(data_count)),
            SeenKey::Block { units, table: bytes, .. } => {
                for (unit, seen) in (0..).zip(units) {
                    match seen {
                        UnitSeen::Zero => {}
                        UnitSeen::Data(_) => written.add(unit),
                        UnitSeen::Damaged => damaged.add(unit),
                    }
                }
                let found = Some(bytes).filter(|bytes| !bytes.is_empty());
                table = found.and_then(|bytes| Table::decode(bytes, data_count, size).ok());
            }
        }
        let table = table.filter(|_| !stripes.is_data(position));
        Member { position, seen, written, damaged, table }
    }

    fn version(&self) -> Version {
        self.seen.key.version()
    }

    fn is_block(&self) -> bool {
        matches!(self.seen.key, SeenKey::Block { .. })
    }

    /// Returns what the member says about a data part; `None`: it knows nothing.
    fn statement(&self, part: usize) -> Option<Statement> {
        if let Some(table) = &self.table {
            let TablePart { version, written } = table.parts[part];
            let (known_upto, unsure) = (self.version(), Units::default());
            return Some(Statement { known_upto, version, written, unsure });
        }
        if self.position.index() != part {
            return None;
        }
        let known_upto = self.version();
        let (written, unsure) = (self.written.with(&self.damaged), self.damaged);
        match self.seen.key {
            SeenKey::Gone => None,
            SeenKey::Tombstone(_) => {
                Some(Statement { known_upto, version: Version::ZERO, written, unsure })
            }
            SeenKey::Block { version, .. } => {
                Some(Statement { known_upto, version, written, unsure })
            }
        }
    }
}

/// Compares what members hold of a stripe. `positions`: the position of each member, in order.
pub fn compare(
    stripes: &Stripes,
    positions: &[Position],
    seen: &[Seen],
    block_size: BlockSize,
) -> Compared {
    let members = positions.iter().zip(seen);
    let members: Vec<Member<'_>> =
        members.map(|(at, seen)| Member::of(stripes, *at, seen, block_size)).collect();
    let none = vec![Units::default(); members.len()];
    let mut compared = Compared {
        table: Some(Table::empty(stripes.data_count())),
        parity_version: Version::ZERO,
        faults: Vec::new(),
        whole: MemberSet::default(),
        damaged: none.clone(),
        differing: none,
        deleted: None,
    };
    let blocks = members.iter().filter(|member| member.is_block());
    let Some(newest) = blocks.map(Member::version).max() else { return compared };
    let tombstones = members.iter().filter(|member| !member.is_block());
    let deleted = tombstones.map(Member::version).max().unwrap_or_default();
    if deleted > newest {
        compare_deleted(&members, deleted, &mut compared);
        return compared;
    }
    let parts = (0..stripes.data_count()).map(|part| decide(&members, part));
    compared.table = parts.collect::<Option<Vec<TablePart>>>().map(|parts| Table { parts });
    match compared.table.clone() {
        Some(table) => compare_members(stripes, &members, &table, &mut compared),
        None => compare_undecided(stripes, &members, &mut compared),
    }
    compared
}

/// Compares members of a stripe whose newest version is a deletion.
fn compare_deleted(members: &[Member<'_>], deleted: Version, compared: &mut Compared) {
    let mut targets = MemberSet::default();
    for (index, _) in members.iter().enumerate().filter(|(_, member)| member.is_block()) {
        targets.add(index);
        compared.faults.push((index, Fault { kind: FaultKind::Stale, units: 0 }));
    }
    let know = members.iter().filter(|it| !it.is_block() && it.version() == deleted).count();
    compared.deleted = (know >= targets.count()).then_some((deleted, targets));
    compared.table = compared.table.take().filter(|_| compared.deleted.is_some());
}

/// Decides what a data part must hold; `None`: it cannot be decided.
fn decide(members: &[Member<'_>], part: usize) -> Option<TablePart> {
    let all: Vec<Statement> = members.iter().filter_map(|it| it.statement(part)).collect();
    let is_outdated = |it: &Statement| all.iter().any(|other| it.is_outdated_by(other));
    let valid: Vec<Statement> = all.iter().filter(|it| !is_outdated(it)).copied().collect();
    if valid.is_empty() {
        // Nobody knows of the part. If its member is here, the part was never written.
        let is_here = members.iter().any(|member| member.position.index() == part);
        return is_here.then(TablePart::default);
    }
    let count = |version: Version| valid.iter().filter(|it| it.version == version).count();
    let version = valid.iter().map(|it| it.version).find(|it| count(*it) * 2 > valid.len())?;
    let agreeing: Vec<Statement> = valid.into_iter().filter(|it| it.version == version).collect();
    if all.len() - agreeing.len() > agreeing.len() {
        // Most of those that know the part had to be wrong.
        return None;
    }
    let sure = agreeing.iter().filter(|it| it.unsure.is_empty());
    let votes = |written: &Units| agreeing.iter().filter(|it| it.agrees_with(written)).count();
    let found = sure.map(|it| it.written).find(|written| votes(written) * 2 > agreeing.len());
    let only = agreeing.first().filter(|_| agreeing.len() == 1).map(|it| it.written);
    Some(TablePart { version, written: found.or(only)? })
}

/// Compares each member with what the data parts must hold.
fn compare_members(
    stripes: &Stripes,
    members: &[Member<'_>],
    table: &Table,
    compared: &mut Compared,
) {
    let agrees = |member: &&Member<'_>| member.is_block() && member.table.as_ref() == Some(table);
    let of_parity = members.iter().filter(agrees).map(Member::version).max();
    compared.parity_version = of_parity.unwrap_or_default().max(table.version());
    // Members that must hold something, those of them that do, and whether some of the others may have
    // deleted it rightly: their tombstones are gone.
    let (mut wanted_count, mut right_count, mut is_unproven) = (0, 0, false);
    let mut is_open = false;
    for (index, member) in members.iter().enumerate() {
        let (is_data, wanted) =
            (stripes.is_data(member.position), compared.version(member.position));
        if wanted == Version::ZERO {
            if member.is_block() {
                // It is unknown when the part was deleted.
                compared.faults.push((index, Fault { kind: FaultKind::Stale, units: 0 }));
                is_open = true;
            }
            continue;
        }
        wanted_count += 1;
        let kind = match &member.seen.key {
            SeenKey::Gone => Some(FaultKind::Missing),
            key if key.version() < wanted => Some(FaultKind::Stale),
            key if key.version() > wanted => Some(FaultKind::Differs),
            SeenKey::Tombstone(_) => Some(FaultKind::Differs),
            SeenKey::Block { table: bytes, .. } if !is_data && bytes.is_empty() => {
                Some(FaultKind::Damaged)
            }
            SeenKey::Block { .. } if !is_data && member.table.as_ref() != Some(table) => {
                Some(FaultKind::Differs)
            }
            SeenKey::Block { .. } => None,
        };
        let is_gone = kind == Some(FaultKind::Missing);
        is_unproven |= is_gone && wanted <= member.seen.floor;
        // A repair would take something newer back, or replace a tombstone of the same version.
        let is_block_of_version = member.is_block() && member.version() == wanted;
        is_open |= kind == Some(FaultKind::Differs) && !is_block_of_version;
        let Some(kind) = kind else {
            right_count += 1;
            let written = compared.written(member.position);
            let missing = written.without(&member.written);
            let differing = missing.with(&member.written.without(&written));
            compared.differing[index] = differing.without(&member.damaged);
            compared.damaged[index] = member.damaged;
            continue;
        };
        let units = match kind {
            FaultKind::Damaged => compared.written(member.position).count() as u32,
            _ => 0,
        };
        compared.faults.push((index, Fault { kind, units }));
        compared.whole.add(index);
    }
    if is_open || (is_unproven && right_count * 2 <= wanted_count) {
        compared.table = None;
    }
}

/// Lists the members that contradict each other, if nobody decides what the data parts must hold: those who
/// have a part that a table names otherwise, and those with such a table.
fn compare_undecided(stripes: &Stripes, members: &[Member<'_>], compared: &mut Compared) {
    let mut involved = MemberSet::default();
    for part in 0..stripes.data_count() {
        let said = |member: &Member<'_>| member.statement(part);
        let differs = |one: &Statement, other: &Statement| {
            let unsure = one.unsure.with(&other.unsure);
            let written = [one, other].map(|it| it.written.without(&unsure));
            one.version != other.version || written[0] != written[1]
        };
        for (index, member) in members.iter().enumerate() {
            let mut others = members.iter().filter_map(said);
            if let Some(own) = said(member)
                && others.any(|other| differs(&own, &other))
            {
                involved.add(index);
            }
        }
    }
    if involved.is_empty() {
        // The table is lost everywhere, and a data part has no member.
        (0..members.len())
            .filter(|index| members[*index].is_block())
            .for_each(|it| involved.add(it));
    }
    for index in involved.iter() {
        compared.faults.push((index, Fault { kind: FaultKind::Differs, units: 0 }));
    }
    for (index, member) in members.iter().enumerate() {
        compared.damaged[index] = member.damaged;
    }
}

#[cfg(test)]
mod tests {
    use base::{Checksum, Epoch, Scheme};

    use super::*;
    use crate::face::Face;
    use crate::stripes::face_of;

    const SIZE: BlockSize = BlockSize::MIN;

    fn version(counter: u64) -> Version {
        match counter {
            0 => Version::ZERO,
            counter => Version { epoch: Epoch::new(3), counter },
        }
    }

    fn of_units(units: &str) -> Vec<UnitSeen> {
        let unit = |letter: char| match letter {
            '0' => UnitSeen::Zero,
            'x' => UnitSeen::Damaged,
            other => UnitSeen::Data(Checksum::new(other as u32)),
        };
        units.chars().map(unit).collect()
    }

    /// A data part of four units: `0` stands for zeros, `x` for a damaged unit.
    fn data(counter: u64, units: &str) -> Seen {
        let (version, units, table) = (version(counter), of_units(units), Vec::new());
        Seen { key: SeenKey::Block { version, units, table }, floor: Version::ZERO }
    }

    /// A parity part with a table that names these versions and units of the data parts.
    fn parity(counter: u64, units: &str, parts: &[(u64, &str)]) -> Seen {
        let part = |(counter, units): &(u64, &str)| {
            let mut written = Units::default();
            let is_written = |(_, letter): &(u32, char)| *letter != '0';
            (0..).zip(units.chars()).filter(is_written).for_each(|(unit, _)| written.add(unit));
            TablePart { version: version(*counter), written }
        };
        let table = Table { parts: parts.iter().map(part).collect() }.encode(SIZE);
        let (version, units) = (version(counter), of_units(units));
        Seen { key: SeenKey::Block { version, units, table }, floor: Version::ZERO }
    }

    fn tombstone(counter: u64) -> Seen {
        Seen { key: SeenKey::Tombstone(version(counter)), floor: Version::ZERO }
    }

    fn gone(floor: u64) -> Seen {
        Seen { key: SeenKey::Gone, floor: version(floor) }
    }

    /// Returns the faults of a stripe of two data parts, and who is made anew; `open`: nobody decides.
    fn told(seen: &[Seen]) -> String {
        let parity = seen.len() as u8 - 2;
        let face: &'static dyn Face = face_of(Scheme::ReedSolomon { data: 2, parity });
        let positions: Vec<Position> = Position::all().take(seen.len()).collect();
        let stripes = face.stripes().expect("it has parity");
        let compared = compare(stripes, &positions, seen, SIZE);
        let all = |set: &MemberSet| set.iter().collect::<Vec<usize>>();
        let end = match (&compared.table, &compared.deleted) {
            (None, _) => "open".into(),
            (_, Some((_, targets))) => format!("tombstone to {:?}", all(targets)),
            _ => format!("whole {:?}", all(&compared.whole)),
        };
        let fault = |(index, fault): &(usize, Fault)| match fault.units {
            0 => format!("{index} {:?}", fault.kind),
            units => format!("{index} {:?} {units}", fault.kind),
        };
        let faults: Vec<String> = compared.into_verdict().faults.iter().map(fault).collect();
        format!("{}; {end}", faults.join(", "))
    }

    #[test]
    fn parts_that_were_never_written_or_deleted_at_some_time_are_no_faults() {
        let whole = "; whole []";
        assert_eq!(told(&[gone(0), gone(0), gone(0)]), whole);
        assert_eq!(told(&[tombstone(4), gone(4), gone(0)]), whole);
        let one = [(0, "0000"), (5, "1100")];
        assert_eq!(told(&[gone(0), data(5, "1100"), parity(5, "1100", &one)]), whole);
        assert_eq!(told(&[tombstone(3), data(5, "1100"), parity(5, "1100", &one)]), whole);
        // The version of a tombstone may be that of a later write of another part.
        assert_eq!(told(&[tombstone(5), data(5, "1100"), parity(5, "1100", &one)]), whole);
        let both = [(4, "1000"), (5, "1x00")];
        assert_eq!(
            told(&[data(4, "1000"), data(5, "1x00"), parity(5, "1100", &both)]),
            "1 Damaged 1; whole []"
        );
    }

    #[test]
    fn the_newest_version_counts_unless_most_are_against_it() {
        let (old, new) = ([(4, "1000"), (5, "1100")], [(7, "1000"), (5, "1100")]);
        let (last, first) = (data(5, "1100"), data(7, "1000"));
        let [stale, fresh] = [parity(5, "1100", &old), parity(7, "1100", &new)];
        let (before, gone) = (data(4, "1000"), gone(0));
        let of = |seen: &[&Seen]| told(&seen.iter().map(|it| (*it).clone()).collect::<Vec<_>>());
        assert_eq!(of(&[&before, &last, &fresh]), "0 Stale; whole [0]");
        assert_eq!(of(&[&first, &last, &stale]), "2 Stale; whole [2]");
        assert_eq!(of(&[&gone, &last, &fresh]), "0 Missing; whole [0]");
        assert_eq!(of(&[&first, &last, &gone]), "2 Missing; whole [2]");
        assert_eq!(of(&[&before, &last, &fresh, &fresh]), "0 Stale; whole [0]");
        assert_eq!(of(&[&first, &last, &stale, &fresh]), "2 Stale; whole [2]");
        assert_eq!(of(&[&before, &last, &stale, &fresh]), "0 Differs, 2 Differs, 3 Differs; open");
        assert_eq!(of(&[&first, &last, &stale, &stale]), "0 Differs, 2 Differs, 3 Differs; open");
        assert_eq!(of(&[&first, &last, &gone, &gone]), "2 Missing, 3 Missing; whole [2, 3]");
    }

    #[test]
    fn a_part_is_never_brought_to_an_older_version_or_removed() {
        // Both tables know of version 7, and say that part 0 has version 4.
        let names = [(4, "1000"), (7, "1100")];
        let seen = [data(5, "1000"), data(7, "1100"), parity(7, "1100", &names)];
        assert_eq!(told(&seen), "0 Differs, 2 Differs; open");
        let both = [seen[0].clone(), seen[1].clone(), seen[2].clone(), seen[2].clone()];
        assert_eq!(told(&both), "0 Differs; open");
        let names = [(0, "0000"), (7, "1100")];
        let seen = [data(5, "1000"), data(7, "1100"), parity(7, "1100", &names)];
        assert_eq!(told(&seen), "0 Stale; open");
        // A tombstone, and a table that was made later and does not know of it.
        let names = [(4, "1000"), (7, "1100")];
        let seen = [tombstone(5), data(7, "1100"), parity(7, "1100", &names)];
        assert_eq!(told(&seen), "0 Differs, 2 Differs; open");
    }

    #[test]
    fn a_deletion_is_put_back_by_those_who_know_of_it() {
        let names = [(4, "1000"), (5, "1100")];
        let whole = [data(4, "1000"), data(5, "1100"), parity(5, "1100", &names)];
        let [one, two, three] = &whole;
        let of = |seen: &[&Seen]| told(&seen.iter().map(|it| (*it).clone()).collect::<Vec<_>>());
        let deleted = &tombstone(8);
        assert_eq!(of(&[one, deleted, deleted]), "0 Stale; tombstone to [0]");
        assert_eq!(of(&[deleted, deleted, three]), "2 Stale; tombstone to [2]");
        assert_eq!(of(&[one, deleted, &gone(8)]), "0 Stale; tombstone to [0]");
        assert_eq!(of(&[one, two, deleted]), "0 Stale, 1 Stale; open");
    }

    #[test]
    fn a_key_below_the_floor_of_who_lacks_it_is_restored_by_majority_alone() {
        let names = [(4, "1000"), (5, "1100")];
        let (last, parity_part) = (data(5, "1100"), parity(5, "1100", &names));
        assert_eq!(told(&[gone(6), last, parity_part.clone()]), "0 Missing; whole [0]");
        assert_eq!(told(&[gone(6), gone(6), parity_part]), "0 Missing, 1 Missing; open");
        // Nobody else must have something: it is the word of one against that of another.
        let alone = parity(4, "1000", &[(4, "1000"), (0, "0000")]);
        assert_eq!(told(&[gone(6), gone(6), alone.clone()]), "0 Missing; open");
        assert_eq!(told(&[gone(3), gone(6), alone]), "0 Missing; whole [0]");
    }

    #[test]
    fn tables_and_units_that_differ_within_a_version_are_decided_by_majority() {
        let names = [(4, "1000"), (5, "1100")];
        let right = parity(5, "1100", &names);
        let wrong = parity(5, "1100", &[(4, "1000"), (5, "1000")]);
        let (one, two) = (data(4, "1000"), data(5, "1100"));
        let all = [one.clone(), two.clone(), right.clone(), wrong.clone()];
        assert_eq!(told(&all), "3 Differs; whole [3]");
        assert_eq!(told(&[one.clone(), two, wrong]), "1 Differs, 2 Differs; open");
        let fewer = data(5, "1000");
        let all = [one.clone(), fewer.clone(), right.clone(), right.clone()];
        assert_eq!(told(&all), "1 Differs 1; whole []");
        assert_eq!(told(&[one.clone(), fewer, right]), "1 Differs, 2 Differs; open");
        let units = parity(5, "0110", &names);
        assert_eq!(told(&[one, data(5, "1100"), units]), "2 Differs 2; whole []");
    }

    #[test]
    fn without_a_table_the_data_parts_are_believed_if_all_of_them_are_there() {
        let mut lost = parity(5, "1100", &[(4, "1000"), (5, "1100")]);
        let SeenKey::Block { table, .. } = &mut lost.key else { unreachable!("it is a block") };
        table.clear();
        assert_eq!(
            told(&[data(4, "1000"), data(5, "1100"), lost.clone()]),
            "2 Damaged 2; whole [2]"
        );
        assert_eq!(told(&[gone(0), data(5, "1100"), lost.clone()]), "2 Damaged 2; whole [2]");
        let face: &'static dyn Face = face_of(Scheme::ReedSolomon { data: 2, parity: 1 });
        let positions = [Position::new(1).unwrap(), Position::new(2).unwrap()];
        let stripes = face.stripes().expect("it has parity");
        let compared = compare(stripes, &positions, &[data(5, "1100"), lost], SIZE);
        assert_eq!(compared.table, None, "a part without a member may hold data");
    }
}
