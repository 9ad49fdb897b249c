//! Reads of a primary whose own disk is slow, from another acting member.
//!
//! Invariants
//!   1. The member gets the request after all earlier writes to the units have ended, so it holds these
//!      writes: a write ends when all acting members have it. If the connection to the member breaks, the
//!      epoch ends, and the read with it.
//!   2. The member's answer may include later writes, even writes that this OSD does not hold yet. The
//!      block's version shows that: the read is answered when these writes have ended, as after a read of
//!      this OSD's own store.
//!   3. Only data that matches its checksums is used; other data ends the connection, like any malformed
//!      message. If the member lost units, or has no such block, this OSD reads its own store, where damage
//!      is repaired as usual.
//!   4. A read does not wait for a member whose disk does not answer: it is repeated at this OSD's store, and
//!      a late answer of the member is dropped.

use std::collections::BTreeSet;

use base::OsdId;
use base::planted::{self, Bug};
use format::wire::{Content, PeerBody};

use super::chain::BlockSeen;
use super::read::ReadStage;
use crate::ask::{Asked, Contact};
use crate::operation::Wants;
use crate::slots::ReadSlot;
use crate::units::{Held, Units, units_of};
use crate::{Action, Pg};

/// The state of the OSDs' disks, as the monitor last reported it.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct SlowDisks {
    /// OSDs whose disks take many times as long as those of their peers.
    pub slow: BTreeSet<OsdId>,
    /// OSDs whose disks do not answer.
    pub stalled: BTreeSet<OsdId>,
}

impl Pg {
    /// Sets which disks are slow. Later reads of a slow primary go to other members. Reads that wait for a
    /// member whose disk does not answer are repeated at this OSD's store.
    pub fn set_slow_disks(&mut self, disks: &SlowDisks, actions: &mut Vec<Action>) {
        self.slow_disks.clone_from(disks);
        self.give_up_direct_reads(actions);
        let Some(lead) = &self.lead else { return };
        let waits = |(slot, read): (ReadSlot, &super::read::Read)| match read.stage {
            ReadStage::FetchElsewhere { index, call } => {
                let hangs = disks.stalled.contains(&lead.peers[index].member.osd);
                hangs.then_some((slot, call))
            }
            _ => None,
        };
        let waiting: Vec<(ReadSlot, u32)> = self.reads.iter().filter_map(waits).collect();
        for (slot, call) in waiting {
            if self.lead().asks.give_up_read(call, slot) {
                self.fetch_here(slot, actions);
            }
        }
    }

    /// Returns the member to read from if this OSD's disk is slow; `None`: it reads from its own store. The
    /// members whose disks are not slow take turns.
    pub(super) fn quicker_member(&self) -> Option<usize> {
        let lead = self.lead.as_ref()?;
        let SlowDisks { slow, stalled } = &self.slow_disks;
        if !slow.contains(&self.me) {
            return None;
        }
        let is_quick = |index: &usize| {
            let peer = &lead.peers[*index];
            let osd = peer.member.osd;
            peer.contact == Contact::Known && !slow.contains(&osd) && !stalled.contains(&osd)
        };
        let others = || lead.acting_others().chain(self.learners_by_mistake()).filter(is_quick);
        let turn = self.reads_elsewhere.checked_rem(others().count() as u64)?;
        others().nth(turn as usize)
    }

    /// Returns the learners' indices if the bug is planted, else nothing.
    fn learners_by_mistake(&self) -> std::ops::Range<usize> {
        let lead = self.lead.as_ref().filter(|_| planted::on(Bug::ReadElsewhereFromLearner));
        lead.map_or(0..0, |lead| lead.acting.count()..lead.peers.len())
    }

    /// Asks another member for the units of a read.
    pub(super) fn fetch_elsewhere(
        &mut self,
        slot: ReadSlot,
        index: usize,
        actions: &mut Vec<Action>,
    ) {
        let key = self.reads[slot].key();
        let units = Units::from_range(self.units_read(&self.reads[slot]));
        let units = units.words(self.shape.block_size);
        self.reads_elsewhere += 1;
        let call = self.lead().asks.ask(index, Asked::Read { read: slot });
        self.reads[slot].stage = ReadStage::FetchElsewhere { index, call };
        self.send(index, PeerBody::Fetch { call, key, units, as_of: None }, actions);
    }

    /// Handles a member's units for a read.
    pub(crate) fn on_peer_read(
        &mut self,
        slot: ReadSlot,
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let held = Held::of(content, self.shape.block_size, true)?;
        self.check_version(held.version())?;
        let read = &self.reads[slot];
        assert!(matches!(read.stage, ReadStage::FetchElsewhere { .. }));
        let Wants::Data { offset, length } = read.wants() else {
            unreachable!("other members get only reads of data");
        };
        let (first, end) = units_of(offset, length);
        let Held::Copy(copied) = held else {
            self.fetch_here(slot, actions);
            return Ok(());
        };
        let Some((checksums, data)) = copied.range(first..end, &self.buffers) else {
            self.fetch_here(slot, actions);
            return Ok(());
        };
        let outcome = super::read::read_outcome(copied.version, checksums, data);
        let seen = BlockSeen { image: self.reads[slot].key().image, version: copied.version };
        let is_ignored = planted::on(Bug::ReadElsewhereIgnoresWrites);
        let seen = if is_ignored { Vec::new() } else { vec![seen] };
        self.answer_read(slot, outcome, seen, actions);
        Ok(())
    }
}
