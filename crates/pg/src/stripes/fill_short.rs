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
//!   2. Nothing is prepared, committed or settled at acting members. Versions above that one stay prepared
//!      there, and the next activation decides about them.

use base::{Epoch, Version};
use format::wire::MemberState;

use super::Stripes;
use super::peering::{Settled, committed};
use crate::ask::Contact;
use crate::lead::{Basis, Lead};
use crate::{MemberSet, Pg};

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
        Ok(Basis { adopted, floor, sources, history_from, has_all: false })
    }
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
        Ok(Basis { has_all, ..basis })
    }
}
