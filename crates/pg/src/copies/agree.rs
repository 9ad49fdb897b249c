//! Compares what members hold of a key: finds which members are wrong, and which ones have the data to repair
//! them. All members must hold the same copy. `docs/internals/scrub.md` has the rules.
//!
//! Invariants
//!   1. A remedy never removes data, and never replaces a unit that at least half of its readable copies
//!      hold.
//!   2. If any unit of a key cannot be decided, there is no remedy: repairing the rest could create a wrong
//!      majority.

use base::planted::{self, Bug};
use base::{BlockSize, Version};

use crate::MemberSet;
use crate::face::{Fault, FaultKind, Remedy, Seen, SeenKey, UnitSeen, Verdict};
use crate::units::Units;

/// Compares copies of one key. Members are identified by their index in `seen`.
pub fn agree(seen: &[Seen], block_size: BlockSize) -> Verdict {
    let newest = seen.iter().map(|seen| seen.key.version()).max().unwrap_or_default();
    if newest == Version::ZERO {
        return Verdict::default();
    }
    let holds = |index: &usize| seen[*index].key.version() == newest;
    let holders: Vec<usize> = (0..seen.len()).filter(holds).collect();
    let is_tombstone = |index: &usize| matches!(seen[*index].key, SeenKey::Tombstone(_));
    let tombstones = holders.iter().filter(|index| is_tombstone(index)).count();
    if tombstones == 0 {
        return Blocks { seen, holders, newest, block_size, by: None }.agree();
    }
    let with_data = holders.iter().filter(|index| seen[**index].key.has_units());
    if with_data.clone().count() > 0 {
        // A block and a tombstone have the same version, although one of them was never written.
        let differs = |index: &usize| (*index, Fault { kind: FaultKind::Differs, units: 0 });
        let mut faults: Vec<(usize, Fault)> = holders.iter().map(differs).collect();
        faults.extend(lacking(seen, newest, |_| true));
        return Verdict { faults, remedy: None };
    }
    // A member without the key is right if its floor has passed the tombstone: it dropped the tombstone.
    let faults = lacking(seen, newest, |seen| newest > seen.floor);
    let mut targets = MemberSet::default();
    faults.iter().for_each(|(index, _)| targets.add(*index));
    let remedy = (!faults.is_empty()).then_some(Remedy::Tombstone { version: newest, targets });
    Verdict { faults, remedy }
}

/// What an operator decided. Members are identified by their index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByMember {
    /// What this member can read is right.
    Keep(usize),
    /// In pools with parity: this member's part is wrong.
    Rebuild(usize),
    /// In pools with parity: the data parts are right.
    RebuildParity,
    /// Units that nobody can read become zeros.
    AcceptLoss,
}

/// Returns the repair of a key's copies that an operator decided; the error says why the choice decides
/// nothing.
pub fn by_choice(seen: &[Seen], block_size: BlockSize, by: ByMember) -> Result<Remedy, String> {
    let newest = seen.iter().map(|seen| seen.key.version()).max().unwrap_or_default();
    let has_newest = |index: &usize| seen[*index].key.version() == newest;
    if let ByMember::Keep(kept) = by {
        if !has_newest(&kept) || newest == Version::ZERO {
            return Err("this OSD does not have the newest version of the block".into());
        }
        if matches!(seen[kept].key, SeenKey::Tombstone(_)) {
            let mut targets = MemberSet::default();
            for (index, seen) in seen.iter().enumerate() {
                let lacks = match seen.key {
                    SeenKey::Block { .. } => true,
                    SeenKey::Tombstone(version) => version < newest,
                    SeenKey::Gone => newest > seen.floor,
                };
                if lacks {
                    targets.add(index);
                }
            }
            return Ok(Remedy::Tombstone { version: newest, targets });
        }
    }
    let is_block = |index: &usize| matches!(seen[*index].key, SeenKey::Block { .. });
    let holders: Vec<usize> = (0..seen.len()).filter(has_newest).collect();
    if let ByMember::AcceptLoss = by
        && !holders.iter().all(is_block)
    {
        return Err("it was deleted, or not: decide first which OSD's content to keep".into());
    }
    let holders = holders.into_iter().filter(is_block).collect();
    let blocks = Blocks { seen, holders, newest, block_size, by: Some(by) };
    let has_lost = (0..block_size.unit_count()).any(|unit| blocks.decide(unit) == Decision::Zeroed);
    if by == ByMember::AcceptLoss && !has_lost {
        return Err("nothing of the block is lost at all members".into());
    }
    blocks.agree().remedy.ok_or_else(|| match by {
        ByMember::AcceptLoss => {
            "copies differ, and nobody decides: decide first which OSD's content to keep".into()
        }
        _ => {
            "this OSD cannot read a unit in which the others differ, or there is nothing to change"
                .into()
        }
    })
}

/// Returns the faults of the members without the newest version. `counts`: whether a member that stores
/// nothing under the key counts as faulty.
fn lacking(seen: &[Seen], newest: Version, counts: impl Fn(&Seen) -> bool) -> Vec<(usize, Fault)> {
    let mut faults = Vec::new();
    for (index, seen) in seen.iter().enumerate() {
        let kind = match seen.key {
            SeenKey::Gone if counts(seen) => FaultKind::Missing,
            SeenKey::Gone => continue,
            _ if seen.key.version() < newest => FaultKind::Stale,
            _ => continue,
        };
        faults.push((index, Fault { kind, units: 0 }));
    }
    faults
}

/// The right content of one unit, as far as the copies show it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Decision {
    Right(UnitSeen),
    /// No member can read the unit.
    Lost,
    /// The copies differ, and no content has a majority.
    Open,
    /// No member can read the unit, and an operator accepts that.
    Zeroed,
}

/// The copies of a block, at least one of which has the newest version.
struct Blocks<'a> {
    seen: &'a [Seen],
    holders: Vec<usize>,
    newest: Version,
    block_size: BlockSize,
    /// What an operator decided.
    by: Option<ByMember>,
}

impl Blocks<'_> {
    fn agree(self) -> Verdict {
        let mut faults = lacking(self.seen, self.newest, |_| true);
        let (mut mend, mut lost, mut is_open) = (Units::default(), Units::default(), false);
        let mut zeroed = Units::default();
        let mut targets = MemberSet::default();
        let mut counts = vec![[0u32; 3]; self.seen.len()];
        for unit in 0..self.block_size.unit_count() {
            let decision = self.decide(unit);
            is_open |= decision == Decision::Open;
            if decision == Decision::Lost {
                lost.add(unit);
            }
            if decision == Decision::Zeroed {
                zeroed.add(unit);
            }
            for index in &self.holders {
                let found = self.unit(*index, unit);
                let fault = match decision {
                    Decision::Right(right) if found == right => continue,
                    Decision::Lost | Decision::Zeroed => FaultKind::Lost,
                    _ if found == UnitSeen::Damaged => FaultKind::Damaged,
                    _ => FaultKind::Differs,
                };
                counts[*index][fault as usize] += 1;
                if let Decision::Right(_) | Decision::Zeroed = decision {
                    mend.add_range(unit..unit + 1);
                    targets.add(*index);
                }
            }
        }
        for (index, counts) in counts.iter().enumerate() {
            for kind in [FaultKind::Damaged, FaultKind::Differs, FaultKind::Lost] {
                let units = counts[kind as usize];
                if units > 0 {
                    faults.push((index, Fault { kind, units }));
                }
            }
        }
        let whole = self.whole(&lost);
        let is_decided = !is_open && whole.is_some();
        let whole = whole.unwrap_or_default();
        let remedy = (is_decided && !(whole.is_empty() && targets.is_empty()))
            .then(|| self.remedy((whole, targets), mend, lost, zeroed));
        Verdict { faults, remedy }
    }

    fn unit(&self, index: usize, unit: u32) -> UnitSeen {
        match &self.seen[index].key {
            SeenKey::Block { units, .. } => units[unit as usize],
            SeenKey::Gone | SeenKey::Tombstone(_) => unreachable!("a holder has the block"),
        }
    }

    fn decide(&self, unit: u32) -> Decision {
        if let Some(ByMember::Keep(kept)) = self.by
            && self.unit(kept, unit) != UnitSeen::Damaged
        {
            return Decision::Right(self.unit(kept, unit));
        }
        let votes = self.holders.iter().map(|index| self.unit(*index, unit));
        let votes: Vec<UnitSeen> = votes.filter(|found| *found != UnitSeen::Damaged).collect();
        let Some(first) = votes.first().copied() else {
            let is_accepted = self.by == Some(ByMember::AcceptLoss);
            return if is_accepted { Decision::Zeroed } else { Decision::Lost };
        };
        if votes.iter().all(|vote| *vote == first) || planted::on(Bug::ScrubBelievesFirst) {
            return Decision::Right(first);
        }
        let count = |value: &UnitSeen| votes.iter().filter(|vote| *vote == value).count();
        let winner = votes.iter().find(|vote| count(vote) * 2 > votes.len());
        winner.map_or(Decision::Open, |winner| Decision::Right(*winner))
    }

    /// Returns the members that get the whole block: those that have an older version, and those that do not
    /// have the block. A member is left out if its older version has a readable unit that no member can read
    /// in the newest version: the member would lose that unit. `None`: it cannot be decided whether the key
    /// was lost or deleted.
    fn whole(&self, lost: &Units) -> Option<MemberSet> {
        let mut whole = MemberSet::default();
        let mut unproven = 0;
        for (index, seen) in self.seen.iter().enumerate() {
            let has_more = match &seen.key {
                SeenKey::Gone | SeenKey::Tombstone(_) => false,
                SeenKey::Block { units, .. } => {
                    lost.iter().any(|unit| units[unit as usize] != UnitSeen::Damaged)
                }
            };
            if !self.holders.contains(&index) && !has_more {
                whole.add(index);
            }
            // The member's tombstones up to its floor are gone: it may have deleted the block rightly.
            unproven += usize::from(seen.key == SeenKey::Gone && self.newest <= seen.floor);
        }
        let is_kept = matches!(self.by, Some(ByMember::Keep(_)));
        let is_restored = self.holders.len() * 2 > self.seen.len() || is_kept;
        (unproven == 0 || is_restored).then_some(whole)
    }

    fn remedy(
        &self,
        (whole, units): (MemberSet, MemberSet),
        mend: Units,
        lost: Units,
        zeroed: Units,
    ) -> Remedy {
        let all = Units::from_range(0..self.block_size.unit_count());
        let mut left = if whole.is_empty() { mend } else { all.without(&lost) };
        left = left.without(&zeroed);
        let mut fetch = Vec::new();
        for index in &self.holders {
            let mut from = Units::default();
            for unit in left.iter() {
                if self.decide(unit) == Decision::Right(self.unit(*index, unit)) {
                    from.add_range(unit..unit + 1);
                }
            }
            left = left.without(&from);
            if !from.is_empty() {
                fetch.push((*index, from));
            }
        }
        assert!(left.is_empty(), "right units were seen at a member");
        Remedy::Block { version: self.newest, fetch, whole, units, mend, lost, zeroed }
    }
}

#[cfg(test)]
mod tests {
    use base::{Checksum, Epoch};

    use super::*;

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(3), counter }
    }

    /// Returns a block of four units: `0` stands for zeros, `x` for a damaged unit, and other digits for
    /// different contents.
    fn block(counter: u64, units: &str) -> Seen {
        let unit = |letter: char| match letter {
            '0' => UnitSeen::Zero,
            'x' => UnitSeen::Damaged,
            other => UnitSeen::Data(Checksum::new(other as u32)),
        };
        let units = units.chars().map(unit).collect();
        let key = SeenKey::Block { version: version(counter), units, table: Vec::new() };
        Seen { key, floor: Version::ZERO }
    }

    fn tombstone(counter: u64) -> Seen {
        Seen { key: SeenKey::Tombstone(version(counter)), floor: Version::ZERO }
    }

    fn gone(floor: u64) -> Seen {
        let floor = if floor == 0 { Version::ZERO } else { version(floor) };
        Seen { key: SeenKey::Gone, floor }
    }

    fn judge(seen: &[Seen]) -> Verdict {
        agree(seen, BlockSize::MIN)
    }

    /// Returns the verdict as text: the faults, and the data that each member gets.
    fn told(seen: &[Seen]) -> String {
        let verdict = judge(seen);
        let fault = |(index, fault): &(usize, Fault)| match fault.units {
            0 => format!("{index} {:?}", fault.kind),
            units => format!("{index} {:?} {units}", fault.kind),
        };
        let faults: Vec<String> = verdict.faults.iter().map(fault).collect();
        let all = |set: &MemberSet| set.iter().collect::<Vec<usize>>();
        let remedy = match &verdict.remedy {
            None => "nothing".into(),
            Some(Remedy::Tombstone { targets, .. }) => format!("tombstone to {:?}", all(targets)),
            Some(Remedy::Block { fetch, whole, units, lost, .. }) => {
                let from = fetch.iter().map(|(index, units)| format!("{index}:{}", units.count()));
                let from: Vec<String> = from.collect();
                let (whole, units) = (all(whole), all(units));
                format!("from {from:?} whole {whole:?} units {units:?} lost {}", lost.count())
            }
        };
        format!("{}; {remedy}", faults.join(", "))
    }

    #[test]
    fn equal_copies_need_nothing() {
        assert_eq!(judge(&[gone(0), gone(9), gone(0)]), Verdict::default());
        assert_eq!(judge(&[block(4, "12x0"), block(4, "12x0")]).remedy, None);
        assert_eq!(judge(&[block(4, "1200"), block(4, "1200")]), Verdict::default());
        assert_eq!(judge(&[tombstone(4), tombstone(4), gone(4)]), Verdict::default());
        assert_eq!(judge(&[tombstone(4), block(4, "0000")]), Verdict::default());
        assert_eq!(judge(&[block(1, "1111")]), Verdict::default());
    }

    #[test]
    fn the_newest_version_goes_to_who_lacks_it() {
        let one = [block(4, "1200"), block(5, "1300"), block(5, "1300")];
        assert_eq!(told(&one), r#"0 Stale; from ["1:4"] whole [0] units [] lost 0"#);
        let one = [block(5, "1300"), gone(4)];
        assert_eq!(told(&one), r#"1 Missing; from ["0:4"] whole [1] units [] lost 0"#);
        let one = [block(5, "1300"), tombstone(4)];
        assert_eq!(told(&one), r#"1 Stale; from ["0:4"] whole [1] units [] lost 0"#);
        assert_eq!(told(&[block(4, "1200"), tombstone(5)]), "0 Stale; tombstone to [0]");
        assert_eq!(told(&[tombstone(5), gone(4)]), "1 Missing; tombstone to [1]");
    }

    #[test]
    fn damaged_units_come_from_who_can_read_them() {
        let one = [block(4, "1x34"), block(4, "12x4")];
        let told_of_both = told(&one);
        assert_eq!(
            told_of_both,
            r#"0 Damaged 1, 1 Damaged 1; from ["0:1", "1:1"] whole [] units [0, 1] lost 0"#
        );
        let one = [block(4, "1x34"), block(4, "1x34")];
        assert_eq!(told(&one), "0 Lost 1, 1 Lost 1; nothing");
        let one = [block(4, "1x34"), block(4, "1x3x")];
        assert_eq!(
            told(&one),
            r#"0 Lost 1, 1 Damaged 1, 1 Lost 1; from ["0:1"] whole [] units [1] lost 1"#
        );
        let one = [block(4, "1x34"), gone(0)];
        assert_eq!(told(&one), r#"1 Missing, 0 Lost 1; from ["0:3"] whole [1] units [] lost 1"#);
    }

    #[test]
    fn more_than_half_decide_and_nobody_else() {
        let one = [block(4, "1200"), block(4, "1300"), block(4, "1300")];
        assert_eq!(told(&one), r#"0 Differs 1; from ["1:1"] whole [] units [0] lost 0"#);
        let one = [block(4, "1200"), block(4, "1300")];
        assert_eq!(told(&one), "0 Differs 1, 1 Differs 1; nothing");
        // A damaged copy has no vote, and neither of the two contents is copied.
        let one = [block(4, "1200"), block(4, "1300"), block(4, "1x00")];
        assert_eq!(told(&one), "0 Differs 1, 1 Differs 1, 2 Damaged 1; nothing");
        let one = [block(4, "1200"), block(4, "1300"), block(3, "1200")];
        assert_eq!(told(&one), "2 Stale, 0 Differs 1, 1 Differs 1; nothing");
        let one = [block(4, "1200"), tombstone(4), tombstone(4)];
        assert_eq!(told(&one), "0 Differs, 1 Differs, 2 Differs; nothing");
    }

    #[test]
    fn a_key_below_the_floor_of_who_lacks_it_is_restored_by_majority_alone() {
        let one = [block(4, "1200"), block(4, "1200"), gone(4)];
        assert_eq!(told(&one), r#"2 Missing; from ["0:4"] whole [2] units [] lost 0"#);
        assert_eq!(told(&[block(4, "1200"), gone(4)]), "1 Missing; nothing");
        assert_eq!(told(&[block(4, "1200"), gone(4), gone(5)]), "1 Missing, 2 Missing; nothing");
        // Half of the members are no majority, whatever floors the others have.
        let half = [block(4, "1200"), block(4, "1200"), gone(0), gone(4)];
        assert_eq!(told(&half), "2 Missing, 3 Missing; nothing");
    }

    #[test]
    fn an_older_unit_that_nobody_has_of_the_newest_version_is_kept() {
        let one = [block(5, "1x34"), block(4, "1234"), gone(0)];
        assert_eq!(
            told(&one),
            r#"1 Stale, 2 Missing, 0 Lost 1; from ["0:3"] whole [2] units [] lost 1"#
        );
        let one = [block(5, "1x34"), block(4, "1x34")];
        assert_eq!(told(&one), r#"1 Stale, 0 Lost 1; from ["0:3"] whole [1] units [] lost 1"#);
        assert_eq!(told(&[block(5, "1x34"), block(4, "1034")]), "1 Stale, 0 Lost 1; nothing");
    }
}
