//! Makes what is wrong with a stripe as an operator decided. `docs/internals/scrub.md` has the rules.
//!
//! Invariants
//!   1. No unit is lost that can be read, or made, without the choice.
//!   2. While zeros replace lost units, old parity and new parity of a row are never `k` units together with
//!      its data.

use std::collections::BTreeMap;

use super::{CodeWord, Compared, Made, UnitData, ZEROS};
use crate::MemberSet;
use crate::copies::agree::ByMember;
use crate::face::{Seen, SeenKey};
use crate::stripes::agree::compare;
use crate::units::Units;
use base::{UNIT_SIZE, Version};
use format::wire::Content;

const CONTRADICT: &str = "the other parts of the stripe contradict each other without it";
const WOULD_LOSE: &str = "a unit would be lost that can be read or made now";

/// What members get because an operator decided it.
pub struct Chosen {
    pub contents: Vec<(usize, Content)>,
    /// The newest version of the stripe.
    pub newest: Version,
    /// Whether this is only the parity that must be replaced before the rest: then the stripe must be looked
    /// at again.
    pub is_first: bool,
}

impl CodeWord<'_> {
    /// Returns what members get; the error says why the choice decides nothing. `seen`: what was read of each
    /// member.
    pub fn choose(&self, by: ByMember, seen: &[Seen]) -> Result<Chosen, String> {
        let is_parity = |index: &usize| !self.stripes.is_data(self.positions[*index]);
        let all = 0..self.positions.len();
        match by {
            ByMember::Keep(_) => unreachable!("it was refused"),
            ByMember::AcceptLoss => self.accept_loss(seen),
            ByMember::RebuildParity => self.rebuild(all.filter(is_parity).collect(), seen),
            ByMember::Rebuild(index) => self.rebuild(vec![index], seen),
        }
    }

    /// Makes the parts of these members of the others.
    fn rebuild(&self, wrong: Vec<usize>, seen: &[Seen]) -> Result<Chosen, String> {
        let was = self.compare(seen);
        let was = was.table.is_some().then(|| self.make(&was));
        let (mut others, mut parts) = (seen.to_vec(), self.parts.to_vec());
        for index in &wrong {
            others[*index] = Seen { key: SeenKey::Gone, floor: Version::ZERO };
            parts[*index] = None;
        }
        let without = CodeWord { parts: &parts, ..*self };
        let mut compared = without.compare(&others);
        if compared.table.is_none() {
            return Err(CONTRADICT.into());
        }
        let is_parity = |index: &usize| !self.stripes.is_data(self.positions[*index]);
        let version = |index: usize| seen[index].key.version();
        let newest = (0..seen.len()).filter(|it| !wrong.contains(it) || is_parity(it)).map(version);
        let newest = newest.max().unwrap_or_default();
        if (0..seen.len()).filter(is_parity).all(|index| wrong.contains(&index)) {
            // Parity may be newer than all data, if a part was deleted.
            let parity = wrong.iter().map(|index| version(*index)).max().unwrap_or_default();
            compared.parity_version = compared.parity_version.max(parity);
        }
        let made = without.make(&compared);
        if !made.is_decided() {
            return Err(CONTRADICT.into());
        }
        for (index, lost) in made.lost.iter().enumerate() {
            let before = match &was {
                Some(was) => was.lost[index],
                None => self.parts[index].as_ref().map_or(Units::default(), |part| part.damaged),
            };
            if !lost.without(&before).is_empty() {
                return Err(WOULD_LOSE.into());
            }
        }
        let contents = without.remedy(&compared, made);
        let is_made = |index: &usize| contents.iter().any(|(made, _)| made == index);
        let is_held = |index: &usize| matches!(seen[*index].key, SeenKey::Block { .. });
        if !wrong.iter().filter(|it| is_held(it)).all(is_made) || contents.is_empty() {
            return Err("by the other parts it holds nothing, and a fix removes no data".into());
        }
        Ok(Chosen { contents, newest, is_first: false })
    }

    /// Makes zeros of the units that are lost, and parity of them.
    fn accept_loss(&self, seen: &[Seen]) -> Result<Chosen, String> {
        let mut compared = self.compare(seen);
        let undecided = "parts differ, and nobody decides: decide first which one is made anew";
        if compared.table.is_none() {
            return Err(undecided.into());
        }
        let mut made = self.make(&compared);
        if made.is_open {
            return Err(undecided.into());
        }
        for (lost, unmatched) in made.lost.iter_mut().zip(&made.unmatched) {
            *lost = lost.with(unmatched);
        }
        let rows = made.lost.iter().fold(Units::default(), |all, lost| all.with(lost));
        if rows.is_empty() {
            return Err("nothing of the block is lost".into());
        }
        let newest = seen.iter().map(|seen| seen.key.version()).max().unwrap_or_default();
        let mut first = vec![BTreeMap::new(); self.positions.len()];
        for unit in rows.iter() {
            self.zero_row(unit, &compared, &mut made, &mut first);
        }
        let is_first = first.iter().any(|units| !units.is_empty());
        if is_first {
            compared.whole = MemberSet::default();
            made.units = first;
        }
        made.lost = vec![Units::default(); self.positions.len()];
        let contents = self.remedy(&compared, made);
        Ok(Chosen { contents, newest, is_first })
    }

    /// Makes zeros of the lost data units of a row, and parity of its data. `first`: parity that can be read
    /// now, and must be replaced before the rest.
    fn zero_row(
        &self,
        unit: u32,
        compared: &Compared,
        made: &mut Made,
        first: &mut [BTreeMap<u32, Option<UnitData>>],
    ) {
        let readable = self.readable(compared, unit);
        let (data_count, count) = (self.stripes.data_count(), self.stripes.part_count());
        let mut data = vec![&ZEROS[..]; data_count];
        for index in readable.iter().copied() {
            if let Some(place) = data.get_mut(self.positions[index].index()) {
                *place = self.bytes(index, unit);
            }
        }
        let mut parity = vec![vec![0; UNIT_SIZE as usize]; count - data_count];
        let mut rows: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        self.stripes.code().encode(&data, &mut rows);
        for (index, position) in self.positions.iter().enumerate() {
            let is_readable = readable.contains(&index);
            let bytes = match position.index().checked_sub(data_count) {
                None if is_readable || !made.lost[index].has(unit) => continue,
                None => &ZEROS[..],
                Some(number) => &parity[number][..],
            };
            let data = || Some(UnitData::of(bytes, self.buffers));
            if !is_readable {
                made.units[index].insert(unit, data());
            } else if self.bytes(index, unit) != bytes {
                first[index].insert(unit, data());
            }
        }
    }

    fn compare(&self, seen: &[Seen]) -> Compared {
        compare(self.stripes, self.positions, seen, self.block_size)
    }
}
