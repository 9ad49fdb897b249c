//! Decides when writes that were acknowledged before they were durable may be lost. `volume_model::lazy` uses
//! the result.
//!
//! A PG *has lost power* since a given moment if so many of its current members lost power after that moment
//! that the others cannot make what these had: each of them where all hold whole copies, else more than the
//! PG has beyond the number of data parts. It then serves without the writes that those had not flushed. The
//! members are taken from the newest entry that the monitor published. A member that was backfilled has only
//! what its source had, so a power loss of the source counts for it as well. In pools with parity, a member
//! that was backfilled while others were lost has nothing that was not durable.

use base::OsdId;
use format::wire::PgEntry;

use std::collections::BTreeSet;

use volume::VolumeHandle;

use super::volume_model::Owner;
use super::world::World;
use crate::register::Moment;

impl World {
    /// Records that an OSD lost all unflushed writes of its disk.
    pub(super) fn note_power_loss(&mut self, index: usize) {
        self.osds[index].power_lost_at = self.moment();
        self.judge_power_losses();
    }

    /// Finds the PGs that have lost power. Called after an OSD lost power or an entry changed.
    pub(super) fn judge_power_losses(&mut self) {
        let now = self.two_moments();
        let power_lost_at = |osd: Option<OsdId>| {
            let index = osd.and_then(|osd| self.index_of(osd));
            index.map_or(0, |index| self.osds[index].power_lost_at)
        };
        let suffice = self.plan.scheme.data_count() as usize;
        let has_parity = !self.plan.scheme.is_whole_everywhere();
        let since = |entry: &PgEntry| {
            let lost_power = entry.acting().map(|member| {
                let index = self.index_of(member.osd);
                let is_short = |index: usize| self.watch.was_filled_short(entry, index);
                if has_parity && index.is_some_and(is_short) {
                    return now;
                }
                let source = index.and_then(|index| self.watch.filled_by(entry, index));
                power_lost_at(Some(member.osd)).max(power_lost_at(source))
            });
            let mut lost_power: Vec<Moment> = lost_power.collect();
            lost_power.sort_unstable();
            // As many members as `suffice` to make the writes keep them if they lost no power since then.
            let since = lost_power.get(suffice - 1).or(lost_power.last()).copied();
            since.filter(|since| *since > 0).map(|since| (entry.pg.number, since))
        };
        let lost_power: Vec<_> = self.watch.entries().filter_map(since).collect();
        if lost_power.is_empty() {
            return;
        }
        let mut lost = 0;
        for volume in &mut self.volumes {
            for (pg, since) in &lost_power {
                lost += u64::from(volume.lost_power(*pg, *since, now));
            }
        }
        self.tally.consequences.add("change that no flush covered may be lost", lost);
    }

    /// Records that attachments have ended: they can no longer retransmit their writes.
    pub(super) fn note_left(&mut self, is_gone: impl Fn(Owner) -> bool) {
        let now = self.two_moments();
        let volumes = self.volumes.iter_mut();
        let lost = volumes.filter_map(|volume| volume.left_by(&is_gone, now).then_some(())).count();
        self.tally.consequences.add("change that no flush covered may be lost", lost as u64);
    }

    /// Records that the lock of a volume was taken from its holder, or is about to be: any attachment
    /// of the volume may have ended, whether its client knows this or not.
    pub(super) fn note_unlocked(&mut self, volume: usize) {
        let clients = self.clients.iter_mut().enumerate();
        let over: BTreeSet<Owner> = clients
            .flat_map(|(index, client)| {
                client.overrule(volume).into_iter().map(move |handle| (index, handle.0))
            })
            .collect();
        self.note_left(|owner| over.contains(&owner));
    }

    /// Records that a volume was attached: all other lazy attachments of it have ended, whether their
    /// clients know this or not.
    pub(super) fn note_opened(&mut self, volume: usize, by: Owner) {
        for (index, client) in self.clients.iter_mut().enumerate() {
            client.overrule_lazy(volume, (index == by.0).then_some(VolumeHandle(by.1)));
        }
        let now = self.two_moments();
        let lost = self.volumes[volume].left_by(|owner| owner != by, now);
        self.tally.consequences.add("change that no flush covered may be lost", lost.into());
    }

    /// Returns a moment such that nothing takes effect at that moment or at the next one.
    fn two_moments(&mut self) -> crate::register::Moment {
        let now = self.moment();
        self.moment();
        now
    }
}
