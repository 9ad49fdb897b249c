//! Backfill in pools with parity while so many acting members are lost that the PG cannot serve: learners are
//! filled from the members that are left, if these can rebuild all parts. `docs/internals/stripes.md`, rule 29.
//!
//! ```text
//!   committed of the members that are left   41  43  42     lost members: unknown
//!   learners are filled as of the highest    43             and report: complete up to 43
//! ```
//!
//! Invariants
//!   1. Learners are filled as of a version that a member has committed: every acting member has everything
//!      up to it, so no later epoch takes any of it back.
//!   2. Until the entry in which they are acting members is activated, such learners may lack what was
//!      acknowledged above that version. So it is activated only if `k` others are acting members, too.
//!   3. Nothing is prepared, committed or settled at acting members. Versions above that one stay prepared
//!      there, and the next activation decides about them.

use base::{Epoch, Version};
use format::wire::{Member, MemberState};

use super::Stripes;
use super::peering::{Settled, committed};
use crate::ask::Contact;
use crate::lead::{Absence, Basis, Lead};
use crate::{Action, MemberSet, Need, Pg};

impl Lead {
    /// Returns the acting members that have reported their state.
    fn reported(&self) -> impl Iterator<Item = (usize, &MemberState)> {
        let acting = self.peers[..self.acting.count()].iter().enumerate();
        let known = acting.filter(|(_, peer)| peer.contact == Contact::Known);
        known.filter_map(|(index, peer)| Some((index, peer.state.as_ref()?)))
    }

    /// Decides as of which version learners are filled, and from which members. The error says why that is
    /// not possible.
    fn basis_of_stripes(&self, data_count: usize) -> Result<Basis, String> {
        let states = || self.reported().map(|(_, state)| state);
        let settled = Settled::of(states());
        let is_new = states().all(|state| state.held == Version::ZERO);
        let damaged = self.reported().find(|(_, state)| state.complete < state.had);
        if let Some((index, _)) = damaged {
            // The member's damaged versions may have been acknowledged. That is known only while every
            // acting member states which versions it had, and a new member would state fewer.
            let osd = self.peers[index].member.osd;
            return Err(format!("{osd} has damaged versions that only lost members can restore"));
        }
        let adopted = states().map(committed).max().unwrap_or_default();
        let mut sources = MemberSet::default();
        for (index, state) in self.reported() {
            let is_recorded = state.record_epoch > Epoch::ZERO || is_new;
            if is_recorded && settled.is_held_by(state, adopted) {
                sources.add(index);
            }
        }
        let newest = self.reported().filter(|(index, _)| sources.has(*index));
        let newest = newest.max_by_key(|(_, state)| state.record_epoch);
        let newest = newest.filter(|(_, state)| state.record_epoch > Epoch::ZERO);
        let Some((history_from, _)) = newest.filter(|_| sources.count() >= data_count) else {
            let count = sources.count();
            return Err(format!("{count} members are too few to rebuild the parts of the others"));
        };
        let floor = states().map(|state| state.floor).max().unwrap_or_default().min(adopted);
        let others = Vec::new();
        Ok(Basis { adopted, floor, sources, history_from, others, has_all: false })
    }

    /// Returns the members among these that have everything that was acknowledged, as far as they did not
    /// lose lazy versions: all but those that were filled while others were lost. If `settled` covers such a
    /// member, it got the rest since.
    fn holder_count(&self, indices: impl Iterator<Item = usize>, settled: Settled) -> usize {
        let states = indices.filter_map(|index| self.peers[index].state.as_ref());
        states.filter(|state| !was_filled_short(state) || settled.covers_record(state)).count()
    }
}

/// Returns whether a member's record is of an epoch that was never activated, in which the member was filled.
fn was_filled_short(state: &MemberState) -> bool {
    let newest = state.history.last().map_or(Epoch::ZERO, |newest| newest.epoch);
    newest < state.record_epoch
}

impl Pg {
    /// Returns what learners are filled from while acting members are lost. The error says why that is not
    /// possible.
    pub(crate) fn basis_of_stripes(
        &self,
        stripes: &Stripes,
        is_immediate: bool,
    ) -> Result<Basis, String> {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let basis = lead.basis_of_stripes(stripes.data_count())?;
        // A member that restarted since the newest activation may have lost versions that were answered but
        // not durable. What k members still have is not lost.
        let record = self.local_state.record();
        let is_same_run = |index: &usize| {
            let (peer, state) = (&lead.peers[*index], lead.peers[*index].state.as_ref());
            let record = record.filter(|record| {
                state.is_some_and(|state| state.record_epoch == record.entry.epoch)
            });
            let known = record.and_then(|record| record.entry.acting_member(peer.member.osd));
            known.is_some_and(|known| known == peer.member || *index == lead.me && is_immediate)
        };
        let has_all = basis.sources.iter().filter(is_same_run).count() >= stripes.data_count();
        let settled = Settled::of(lead.reported().map(|(_, state)| state));
        let others = match lead.holder_count(basis.sources.iter(), settled) < stripes.data_count() {
            true => self.holders_left_out(),
            false => Vec::new(),
        };
        Ok(Basis { has_all, others, ..basis })
    }

    /// Returns the acting members of the newest epoch in this OSD's record that are not acting members of the
    /// entry.
    fn holders_left_out(&self) -> Vec<Member> {
        let entry = self.entry.as_ref().expect("an epoch is entered");
        let is_out = |member: &&Member| entry.position_of(member.osd).is_none();
        let record = self.local_state.record();
        record.iter().flat_map(|it| it.entry.acting()).filter(is_out).copied().collect()
    }

    /// Returns whether the epoch must not be activated: some acting members were filled while others were
    /// lost, and too few of the rest are left to rebuild what was acknowledged. Members that were left out
    /// since may have it. Requires: all acting members have reported their state.
    pub(crate) fn lacks_holders(&mut self, stripes: &Stripes, actions: &mut Vec<Action>) -> bool {
        let lead = self.lead();
        let settled = Settled::of(lead.acting_states());
        let count = lead.holder_count(lead.acting.iter(), settled);
        if count >= stripes.data_count() || lead.gave_up_holders {
            return false;
        }
        lead.lacks_holders = true;
        let others: Vec<String> =
            self.holders_left_out().iter().map(|member| member.osd.to_string()).collect();
        let others = others.join(", ");
        self.lead().hindrance = Some(format!(
            "only {count} members have everything that was acknowledged: {others} must come back or be \
             marked out"
        ));
        self.call_back_holder(actions);
        true
    }

    /// Makes a learner an acting member again that was one in the newest activation: nobody has settled any
    /// version without it.
    pub(crate) fn call_back_holder(&mut self, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let is_holder = |state: &&MemberState| {
            state.record_epoch > Epoch::ZERO && !was_filled_short(state) && !state.is_suspect
        };
        let learners = lead.peers[lead.acting.count()..].iter().filter_map(|peer| {
            let state = peer.state.as_ref().filter(|_| peer.contact == Contact::Known);
            let state = state.filter(is_holder).filter(|state| state.filling.is_none());
            Some((peer, state?.record_epoch))
        });
        let acting = lead.acting_states().filter(is_holder).map(|state| state.record_epoch).max();
        let newest = learners.max_by_key(|(_, epoch)| *epoch);
        let found = newest.filter(|(_, epoch)| Some(*epoch) >= acting).map(|(peer, _)| peer);
        if let Some(peer) = found {
            let member = peer.member;
            let why = format!("{} is an acting member again", member.osd);
            self.end_epoch(Need::Complete(member), why, actions);
        }
    }

    /// Goes on without the members that may have acknowledged versions, if they were removed from the cluster
    /// or do not have them any more.
    pub(crate) fn go_on_without_holders(
        &mut self,
        absence: impl Fn(Member) -> Absence,
        actions: &mut Vec<Action>,
    ) {
        let others = self.holders_left_out();
        let lead = self.lead();
        let is_gone = |member: &Member| {
            // Who has stated itself as a learner and was not called back has lost what it had.
            let learner = lead.peers.iter().find(|peer| peer.member.osd == member.osd);
            let is_empty = learner.is_some_and(|peer| peer.contact == Contact::Known);
            is_empty || absence(*member) == Absence::Gone
        };
        if others.iter().all(is_gone) {
            (lead.lacks_holders, lead.gave_up_holders, lead.hindrance) = (false, true, None);
            self.judge_members(actions);
        }
    }
}
