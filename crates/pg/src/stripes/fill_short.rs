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
//!   4. A learner that was a member in the newest activation keeps what it has until the PG is active, for it
//!      may be needed: it is not filled, and gets its position back if too few others have everything.

use base::{Epoch, Position, Version};
use format::wire::{Elsewhere, Member, MemberState};

use super::Stripes;
use super::peering::{Settled, committed};
use crate::ask::Contact;
use crate::lead::{Absence, Basis, Lead, Peer};
use crate::{Action, MemberSet, Need, Pg};

/// Why nobody is given up, and nobody called back, for people.
const HOLDERS_UNKNOWN: &str = "none of these members knows which ones the PG had when it was last active: \
                               start more of its OSDs, or run `ashlar pg give-up`";

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

    /// Returns the newest activation that acting members have reported.
    fn newest_activation(&self) -> Epoch {
        let recorded = self.reported().filter(|(_, state)| state.record_epoch > Epoch::ZERO);
        let newest = recorded.filter_map(|(_, state)| state.history.last());
        newest.map(|newest| newest.epoch).max().unwrap_or_default()
    }

    /// Returns the acting members of the newest activation that acting members have reported. `None`: nobody
    /// that has stated itself has a record of it.
    fn acting_at_newest(&self) -> Option<&[Member]> {
        let newest = self.newest_activation();
        let known = self.peers.iter().filter(|peer| peer.contact == Contact::Known);
        let mut states = known.filter_map(|peer| peer.state.as_ref());
        let found = states.find(|state| state.record_epoch == newest && !was_filled_short(state));
        found.map(|state| &state.acting[..])
    }

    /// Returns the position of which a learner has everything that was acknowledged: it was a member in the
    /// newest activation, or has all versions that acting members have. Who took part in that activation and
    /// has not recorded it has everything, too. Requires: all acting members have reported their state, or
    /// were removed from the cluster.
    fn position_held_by(&self, learner: &Peer) -> Option<Position> {
        // Who is filled meanwhile has lost what it had.
        let is_as_stated = learner.intake.is_none() && learner.filler.is_none();
        let held = holds_at(learner).filter(|_| is_as_stated)?;
        let state = learner.state.as_ref().filter(|state| state.elsewhere.is_none());
        let has_all = state
            .is_some_and(|state| self.reported().all(|(_, acting)| acting.had <= state.complete));
        let newest = self.acting_at_newest().into_iter().flatten();
        let took_part = newest.map(|member| member.osd).any(|osd| osd == learner.member.osd);
        let is_it = has_all || took_part || held.epoch >= self.newest_activation();
        is_it.then_some(held.position)
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
pub(super) fn was_filled_short(state: &MemberState) -> bool {
    let newest = state.history.last().map_or(Epoch::ZERO, |newest| newest.epoch);
    newest < state.record_epoch
}

/// Returns the newest activation at which a member had everything, and the position of what it has.
fn holds_at(peer: &Peer) -> Option<Elsewhere> {
    let state = peer.state.as_ref().filter(|_| peer.contact == Contact::Known)?;
    let is_in_role = state.record_epoch > Epoch::ZERO && !was_filled_short(state);
    let in_role = Elsewhere { epoch: state.record_epoch, position: peer.position };
    let held = state.elsewhere.or(is_in_role.then_some(in_role));
    held.filter(|_| !state.is_suspect && state.filling.is_none())
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
            true => self.holders_left_out().ok_or(HOLDERS_UNKNOWN)?,
            false => Vec::new(),
        };
        Ok(Basis { has_all, others, ..basis })
    }

    /// Returns the acting members of the newest activation that are not acting members of the entry. `None`:
    /// they are not known, since this OSD's record, and that of all others, is of an epoch that was never
    /// active.
    fn holders_left_out(&self) -> Option<Vec<Member>> {
        let entry = self.entry.as_ref().expect("an epoch is entered");
        let is_out = |member: &&Member| entry.position_of(member.osd).is_none();
        let acting = self.lead.as_ref().expect("this OSD leads the epoch").acting_at_newest()?;
        Some(acting.iter().filter(is_out).copied().collect())
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
        self.await_holders(
            &format!("only {count} members have everything that was acknowledged"),
            actions,
        );
        true
    }

    /// Waits for members of the newest activation that are not acting members. `why`: why they are needed.
    fn await_holders(&mut self, why: &str, actions: &mut Vec<Action>) {
        let hindrance = match self.holders_left_out() {
            Some(others) => {
                self.call_back(&others, actions);
                format!("{why}: {} must come back or be marked out", self.names_of_absent(&others))
            }
            None => format!("{why}, and {HOLDERS_UNKNOWN}"),
        };
        let lead = self.lead();
        (lead.lacks_holders, lead.hindrance) = (true, Some(hindrance));
        self.call_back_holder(actions);
    }

    /// Returns the names of those of these members that have not stated themselves, for people.
    fn names_of_absent(&self, members: &[Member]) -> String {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let is_known = |member: &&Member| {
            let mut peers = lead.peers.iter();
            peers.any(|peer| peer.member.osd == member.osd && peer.contact == Contact::Known)
        };
        let absent: Vec<&Member> = members.iter().filter(|member| !is_known(member)).collect();
        let named = if absent.is_empty() { members.iter().collect() } else { absent };
        let names: Vec<String> = named.iter().map(|member| member.osd.to_string()).collect();
        names.join(", ")
    }

    /// Requests that members that were left out become learners: the plan may not have them any more.
    pub(crate) fn call_back(&self, others: &[Member], actions: &mut Vec<Action>) {
        let entry = self.entry.as_ref().expect("an epoch is entered");
        let absent = others.iter().filter(|member| entry.learner(member.osd).is_none());
        actions.extend(absent.map(|member| Action::Need(Need::CallBack(member.osd))));
    }

    /// Returns whether members that were left out are waited for, although enough acting members have
    /// everything: too few of these can be read as of what another one had. Requires: all acting members have
    /// reported their state.
    pub(crate) fn awaits_sources(&mut self, actions: &mut Vec<Action>) -> bool {
        let are_none = self.holders_left_out().is_some_and(|others| others.is_empty());
        let is_awaited = !self.lead().gave_up_holders && !are_none;
        if is_awaited {
            self.await_holders("too few members can be read as of an earlier version", actions);
        }
        is_awaited
    }

    /// Makes a learner an acting member again that was one in the newest activation: nobody has settled any
    /// version without it. Returns whether there was such a learner. Requires: all acting members have
    /// reported their state, or were removed from the cluster.
    pub(crate) fn call_back_holder(&mut self, actions: &mut Vec<Action>) -> bool {
        let lead = self.lead();
        let count = lead.acting.count();
        let has_holder = |position: Position| {
            let acting = lead.peers[..count].iter().find(|peer| peer.position == position);
            acting.is_some_and(|peer| holds_at(peer).is_some())
        };
        let found = lead.peers[count..].iter().find_map(|peer| {
            let position = lead.position_held_by(peer)?;
            (!has_holder(position)).then_some((peer.member, position))
        });
        if let Some((member, position)) = found {
            let why = format!("{} is an acting member again", member.osd);
            self.end_epoch(Need::Return(member, position), why, actions);
        }
        found.is_some()
    }

    /// Returns whether a learner must not be filled: it was a member in the newest activation, so it may have
    /// what too few others have, and the epoch will never be active.
    pub(crate) fn is_kept_as_it_is(&mut self, index: usize) -> bool {
        let lead = self.lead();
        let newest = lead.newest_activation();
        let held = holds_at(&lead.peers[index]);
        let is_kept = lead.keeps_holders && held.is_some_and(|held| held.epoch >= newest);
        if is_kept {
            let osd = lead.peers[index].member.osd;
            lead.hindrance = Some(format!(
                "{osd} keeps what it has: the acting members that are lost must come back or be marked out"
            ));
        }
        is_kept
    }

    /// Fills also learners that were members in the newest activation: the acting members that are lost were
    /// removed from the cluster.
    pub(crate) fn fill_holders(&mut self, actions: &mut Vec<Action>) {
        let lead = self.lead();
        (lead.keeps_holders, lead.hindrance) = (false, None);
        let newest = lead.newest_activation();
        let is_holder =
            |index: &usize| holds_at(&lead.peers[*index]).is_some_and(|held| held.epoch >= newest);
        let learners = lead.acting.count()..lead.peers.len();
        for index in learners.filter(is_holder).collect::<Vec<_>>() {
            self.welcome(index, actions);
        }
    }

    /// Goes on without the members that may have acknowledged versions, if they were removed from the cluster
    /// or do not have them any more.
    pub(crate) fn go_on_without_holders(
        &mut self,
        absence: impl Fn(Member) -> Absence,
        actions: &mut Vec<Action>,
    ) {
        // Where they are not known, only the operator may give up.
        let Some(others) = self.holders_left_out() else { return };
        let lead = self.lead();
        let is_gone = |member: &Member| {
            // Who has stated itself as a learner and has nothing has lost what it had. A store that found
            // damage may still have it.
            let learner = lead.peers.iter().find(|peer| peer.member.osd == member.osd);
            let is_suspect = |peer: &Peer| peer.state.as_ref().is_some_and(|it| it.is_suspect);
            let is_empty = learner.is_some_and(|peer| {
                peer.contact == Contact::Known && holds_at(peer).is_none() && !is_suspect(peer)
            });
            is_empty || absence(*member) == Absence::Gone
        };
        if others.iter().all(is_gone) {
            (lead.lacks_holders, lead.gave_up_holders, lead.hindrance) = (false, true, None);
            self.judge_members(actions);
        }
    }
}
