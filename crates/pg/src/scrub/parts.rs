//! Scrub of pools with parity: a deep look fetches all parts of the stripe and compares them as a code word.
//!
//! ```text
//!   Looking (digests) ─▶ Gathering (all parts) ─▶ judged ─▶ Settling (the mark passes the stripe) ─▶ Mending
//! ```
//!
//! Invariants
//!   1. Parts are read at the stripe's turn, so all of them are of the same state of the stripe.
//!   2. A repair is sent when the mark has passed the stripe's newest version: no member holds a prepared
//!      version of the key, and the repair is never taken back.

use base::planted::{self, Bug};
use base::{Position, UNIT_SIZE, Version};
use blockstore::BlockKey;
use format::wire::Content;

use super::{Stage, Work, limit};
use crate::face::{Fault, Seen, SeenKey, UnitSeen};
use crate::peering::mark_message;
use crate::stripes::agree::compare;
use crate::stripes::code_word::{Chosen, CodeWord, Judged};
use crate::stripes::part::Part;
use crate::{Action, MemberSet, Pg, Serving};

/// Maximum number of keys that wait for a look because a read met damage there.
const WANTED_MAX: usize = 64;

impl Pg {
    /// Asks for a deep look at a key of which a read or a fill met lost units: they are made good at the
    /// members that lost them. A key that is listed is left to scrubs, which could not repair it.
    pub(crate) fn want_look(&mut self, key: BlockKey, actions: &mut Vec<Action>) {
        let is_listed = self.scrub_note.finding(&key).is_some();
        if self.serving != Serving::Active || is_listed || planted::on(Bug::DamageNotWrittenBack) {
            return;
        }
        let wanted = &mut self.lead().scrub.wanted;
        if wanted.len() < WANTED_MAX {
            wanted.insert(key);
        }
        self.begin_wanted(actions);
    }

    /// Begins with the next key that an operator decided or that somebody asked for, if no other key is in
    /// work.
    pub(super) fn begin_wanted(&mut self, actions: &mut Vec<Action>) {
        if !self.knows_scrubs() {
            return;
        }
        let scrub = &mut self.lead().scrub;
        if scrub.work.is_some() || scrub.late.len() >= limit::LATE_MAX {
            return;
        }
        if self.begin_fix(actions) {
            return;
        }
        let scrub = &mut self.lead().scrub;
        let Some(key) = scrub.wanted.pop_first() else { return };
        scrub.work = Some(Work::apart(key));
        self.take_scrub_turn(actions);
    }

    /// Returns the positions of the acting members, in order.
    pub(super) fn acting_positions(&mut self) -> Vec<Position> {
        let lead = self.lead();
        lead.acting.iter().map(|index| lead.peers[index].position).collect()
    }

    /// Fetches the parts of the current key from all members that hold one. `seen`: the members' digests.
    pub(super) fn gather_parts(&mut self, seen: Vec<Seen>, actions: &mut Vec<Action>) {
        let holds = |seen: &Seen| matches!(seen.key, SeenKey::Block { .. });
        let mut missing = MemberSet::default();
        (0..seen.len()).filter(|index| holds(&seen[*index])).for_each(|it| missing.add(it));
        let parts = vec![None; seen.len()];
        let look = self.next_look();
        let work = self.work();
        let key = work.key;
        work.stage = Stage::Gathering { seen, parts, missing };
        if missing.is_empty() {
            return self.judge_parts(actions);
        }
        for index in missing.iter() {
            self.fetch(index, key, Vec::new(), look, actions);
        }
    }

    /// Adds a member's part of the current key.
    pub(super) fn on_part_read(&mut self, index: usize, part: Part, actions: &mut Vec<Action>) {
        let Stage::Gathering { parts, missing, .. } = &mut self.work().stage else {
            unreachable!("parts are being read");
        };
        assert!(missing.has(index));
        missing.take(index);
        parts[index] = Some(part).filter(|part| part.version > Version::ZERO);
        if missing.is_empty() {
            self.judge_parts(actions);
        }
    }

    /// Compares the parts of the current key, which have all been read, and decides how to continue.
    fn judge_parts(&mut self, actions: &mut Vec<Action>) {
        let stripes = self.stripes().expect("the pool has parity");
        let positions = self.acting_positions();
        let (block_size, buffers) = (self.shape.block_size, self.buffers.clone());
        let stage = std::mem::replace(&mut self.work().stage, Stage::Turn);
        let Stage::Gathering { seen, parts, .. } = stage else {
            unreachable!("parts were read");
        };
        let count = |part: &Part| part.written.len() as u64;
        let read: u64 = parts.iter().flatten().map(count).sum();
        self.charge(read * UNIT_SIZE);
        let read_seen = seen.iter().zip(&parts).map(|(seen, part)| match part {
            Some(part) => Seen { key: seen_of(part), floor: seen.floor },
            // The member said that it has the part, and then that it does not: the part counts as missing.
            None if matches!(seen.key, SeenKey::Block { .. }) => {
                Seen { key: SeenKey::Gone, floor: seen.floor }
            }
            None => seen.clone(),
        });
        let read_seen: Vec<Seen> = read_seen.collect();
        let compared = compare(stripes, &positions, &read_seen, block_size);
        let code_word = CodeWord {
            stripes,
            positions: &positions,
            seen: &seen,
            parts: &parts,
            block_size,
            buffers: &buffers,
        };
        let Judged { faults, remedy } = code_word.judge(compared);
        if self.work().fix.is_some() && self.work().before.is_empty() && !faults.is_empty() {
            let chosen = self.fix_of_parts(&faults).and_then(|by| code_word.choose(by, &read_seen));
            return self.fix_parts(chosen, faults, actions);
        }
        let repairs = self.may_repair();
        if faults.is_empty() || !self.work().before.is_empty() {
            return self.end_key(faults, actions);
        }
        match remedy.filter(|_| repairs) {
            None => self.end_key(faults, actions),
            Some(contents) => {
                let newest = read_seen.iter().map(|seen| seen.key.version()).max();
                self.work().before = faults;
                self.settle_key(contents, newest.unwrap_or_default(), actions);
            }
        }
    }

    /// Repairs members as an operator decided. `chosen`: what they get, or why nobody gets anything.
    fn fix_parts(
        &mut self,
        chosen: Result<Chosen, String>,
        faults: Vec<(usize, Fault)>,
        actions: &mut Vec<Action>,
    ) {
        let fix = self.work().fix.as_mut().expect("an operator decided it");
        let is_second = std::mem::replace(&mut fix.is_second, true);
        match chosen {
            Err(why) => self.refuse_fix(why, faults, actions),
            Ok(Chosen { is_first: true, .. }) if is_second => {
                self.refuse_fix("a member has no room for it".into(), faults, actions);
            }
            Ok(Chosen { contents, newest, is_first }) => {
                if !is_first {
                    self.work().before = faults;
                }
                self.settle_key(contents, newest, actions);
            }
        }
    }

    /// Repairs members when the mark has passed the newest version of the current key.
    pub(super) fn settle_key(
        &mut self,
        contents: Vec<(usize, Content)>,
        newest: Version,
        actions: &mut Vec<Action>,
    ) {
        if newest > self.versions.newest() {
            // Nobody gave this version: the mark never passes it.
            return self.give_up_key(actions);
        }
        let work = self.work();
        (work.stage, work.since) = (Stage::Settling { contents, newest }, None);
        self.mend_settled(actions);
    }

    /// Sends the repairs that wait for the mark, if it has passed the newest version of their key. Begins a
    /// sync if that version is lazy.
    pub(crate) fn mend_settled(&mut self, actions: &mut Vec<Action>) {
        let mark = self.mark();
        let lead = self.lead.as_mut().filter(|_| self.serving == Serving::Active);
        let work = lead.and_then(|lead| lead.scrub.work.as_mut());
        let Some(Work { stage: Stage::Settling { contents, newest }, .. }) = work else { return };
        if *newest > mark {
            let newest = *newest;
            if self.versions.is_undurable(newest) {
                self.begin_sync(actions);
            }
            return;
        }
        let contents = std::mem::take(contents);
        self.commit(mark, actions);
        let mut missing = MemberSet::default();
        contents.iter().for_each(|(index, _)| missing.add(*index));
        self.begin_mending(missing);
        let me = self.lead().me;
        for (index, content) in contents {
            if index != me {
                self.send(index, mark_message(mark), actions);
            }
            self.mend_at(index, content, actions);
        }
    }
}

/// Returns what a member holds, according to what was read of its part.
fn seen_of(part: &Part) -> SeenKey {
    let unit = |unit: u32| match part.written.get(&unit) {
        Some(data) => UnitSeen::Data(data.checksum),
        None if part.damaged.has(unit) => UnitSeen::Damaged,
        None => UnitSeen::Zero,
    };
    let count = part.units.with(&part.damaged).count() as u32;
    let (version, table) = (part.version, part.table.clone());
    SeenKey::Block { version, units: (0..count).map(unit).collect(), table }
}
