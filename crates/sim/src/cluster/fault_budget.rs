//! How much data faults may destroy on disks, and when: the limits within which nothing may be lost.
//!
//! With one copy, `faults.rs` decides which data may rot. With more copies:
//! - Data rots, and reads of data fail, in one failure domain only, so on at most one member of any PG, and
//!   only while the acting set of each such PG has another member, whose copy is good. Runs with these faults
//!   have no other damage to disks, because rot is found only when the data is read.
//! - A *deep strike* destroys the disks of so many members that fewer than the minimum remain; in each PG,
//!   one member that has everything remains. The operator, who knows that the lost members will not return,
//!   lets the PGs continue without them.
//! - A *strike* does so much damage that the member counts as lost: it destroys the whole disk, or metadata
//!   of the store. The strike waits for a truce, during which no fault is injected: it lasts until every PG
//!   has all of its copies and no transaction is in progress that might change this. The strike leaves each
//!   PG its minimum of members. Then faults resume. If the disk itself cannot detect the loss (the tail of
//!   the journal), the truce continues until all copies exist again.

use std::collections::BTreeSet;

use base::{Duration, Incarnation, OsdId};
use cluster::map::FailureDomain;

use super::agenda::Item;
use super::operator::Job;
use super::osd::{Flip, Osd};
use super::plan::Faults;
use super::process::Process;
use super::truce::Truce;
use super::world::World;
use crate::random::Chance;

impl World {
    /// Handles a strike that is due: suspends faults until the cluster is whole.
    pub(super) fn strike_is_due(&mut self) {
        self.faults.strikes_open -= 1;
        if self.stage_is_work() {
            self.begin_truce(true);
        }
    }

    fn begin_truce(&mut self, strikes: bool) {
        self.trace.line(format_args!("{:?} truce", self.now));
        self.faults.rates = Faults::NONE;
        // A damaged frame ends an epoch, and the next epoch may not begin until 5 s later.
        self.net.set_weather(self.plan.weather.calm());
        self.watch.has_refused_room = false;
        self.faults.truce = Some(Truce::begin(self.now, strikes));
    }

    /// Checks after an event whether the truce is over.
    pub(super) fn keep_truce(&mut self, truce: Truce) -> Result<(), String> {
        if !truce.is_looked_at(self.now) {
            return Ok(());
        }
        let lack = self.what_members_lack();
        let is_late = truce.is_late(self.now);
        if is_late && lack.is_some() && self.has_full_member() {
            // Some copies cannot be made for lack of space: the strike must not destroy the existing
            // copies.
            self.trace.line(format_args!("{:?} copies without room", self.now));
            self.faults.truce = None;
            self.faults.rates = self.plan.faults;
            return Ok(());
        }
        if let Some(lack) = lack.as_ref().filter(|_| is_late) {
            return Err(format!("without faults the cluster does not get whole: {lack}"));
        }
        let truce = truce.seen(self.now, lack.is_none());
        // Statistics are recorded at any time, so transactions may be in progress during the truce, but
        // not when the truce ends.
        if !truce.may_end(self.now) || !self.monitors_rest() {
            self.faults.truce = Some(truce);
            return Ok(());
        }
        self.faults.truce = None;
        self.faults.rates = self.plan.faults;
        self.net.set_weather(self.plan.weather);
        if truce.strikes { self.strike() } else { Ok(()) }
    }

    /// Returns why the cluster is not whole. `None`: every PG has all of its copies on running OSDs,
    /// its primary reports that it serves, and nothing is in progress that could change this.
    pub(super) fn what_lacks(&self) -> Option<String> {
        let works = || (!self.monitors_rest()).then(|| "monitors have not ended their work".into());
        self.what_members_lack().or_else(works)
    }

    /// Returns whether the state store works and no transaction is in progress that may change the map.
    /// Other transactions do not count: scrubs find bad places repeatedly, so counts of read errors are
    /// written all the time.
    fn monitors_rest(&self) -> bool {
        let changes = |step| self.state.may_change_map(step);
        self.state.is_reached(self.now) && !self.agenda.transactions().any(changes)
    }

    /// Returns why the cluster is not whole, regardless of transactions.
    fn what_members_lack(&self) -> Option<String> {
        if !self.net.is_whole() {
            return Some("processes are cut off each other".to_string());
        }
        if let Some(process) = self.runs.any_frozen() {
            return Some(format!("{process:?} stands still"));
        }
        let starts = |osd: &&Osd| {
            !osd.is_gone && (osd.node.is_none() || osd.incarnation == Incarnation::ZERO)
        };
        if let Some(osd) = self.osds.iter().find(starts) {
            return Some(format!("{:?} has not joined", osd.id));
        }
        if self.agreed_leader().is_none() {
            return Some("monitors do not agree on who leads".to_string());
        }
        let lack = self.watch.all_entries().find_map(|entry| {
            let runs = |member: &format::wire::Member| {
                let index = self.index_of(member.osd);
                index.is_some_and(|index| self.osds[index].incarnation == member.incarnation)
            };
            let is_whole = entry.acting_count() == self.watch.copies(entry.pg.pool)
                && entry.learners.is_empty()
                && entry.primary.is_some()
                && entry.acting().all(runs);
            (!is_whole).then(|| format!("{entry:?}"))
        });
        let not_served = || self.watch.what_is_not_served(|osd| self.index_of(osd));
        let unsettled = || {
            (!self.net.is_settled())
                .then(|| "somebody has not heard that a connection broke".into())
        };
        lack.or_else(not_served).or_else(unsettled)
    }

    /// Returns the index of the process of an OSD.
    pub(super) fn index_of(&self, id: OsdId) -> Option<usize> {
        self.osds.iter().position(|osd| osd.id == Some(id))
    }

    /// Returns the failure domain of an OSD.
    fn domain_of(&self, index: usize) -> usize {
        match self.plan.failure_domain {
            FailureDomain::Host => self.osds[index].tree_host,
            FailureDomain::Osd => index,
        }
    }

    /// Returns the number of failure domains that have an OSD which may get PGs.
    pub(super) fn domain_count_in(&self) -> usize {
        self.domain_count_without(&[])
    }

    /// Returns the number of failure domains that would have such an OSD if the OSDs in `lost` were
    /// out.
    pub(super) fn domain_count_without(&self, lost: &[usize]) -> usize {
        let is_in = |index: &usize| {
            let osd = &self.osds[*index];
            !osd.is_gone && !osd.is_out && !lost.contains(index)
        };
        let domains = (0..self.osds.len()).filter(is_in).map(|index| self.domain_of(index));
        domains.collect::<BTreeSet<usize>>().len()
    }

    /// Returns whether data on an OSD's disk may rot now.
    pub(super) fn may_rot(&self, index: usize) -> bool {
        if self.plan.position_count() == 1 {
            return true;
        }
        let Some(id) = self.osds[index].id else { return false };
        self.domain_of(index) == self.faults.rot_domain
            && self.watch.all_entries().all(|entry| {
                let members = entry.members();
                let concerns = members.clone().any(|member| member.osd == id);
                let others = entry.acting().filter(|member| member.osd != id).count();
                !concerns || others >= self.plan.scheme.data_count() as usize
            })
    }

    /// Damages members so severely that they count as lost.
    fn strike(&mut self) -> Result<(), String> {
        if self.plan.strikes_deep {
            return self.strike_deep();
        }
        let spare = self.plan.position_count() - self.plan.min_size.max(1);
        let count = 1 + self.chaos.index(spare as usize);
        let mut hit: Vec<usize> =
            (0..self.osds.len()).filter(|index| !self.osds[*index].is_gone).collect();
        self.chaos.shuffle(&mut hit);
        hit.truncate(count);
        for index in hit {
            match self.chaos.below(5) {
                0 | 1 => self.lose_disks(&[index])?,
                2 | 3 => self.rot_knowledge(index, false)?,
                _ => {
                    // A member cannot detect that the tail of its journal is lost: no other member may
                    // be lost until this member has everything again.
                    self.rot_knowledge(index, true)?;
                    self.begin_truce(false);
                }
            }
        }
        Ok(())
    }

    /// Destroys the disks of more members than a PG can spare.
    fn strike_deep(&mut self) -> Result<(), String> {
        let is_there = |index: &usize| !self.osds[*index].is_gone;
        let mut hit: Vec<usize> = (0..self.osds.len()).filter(is_there).collect();
        self.chaos.shuffle(&mut hit);
        hit.truncate(self.plan.loss_count_max() as usize);
        self.lose_disks(&hit)
    }

    /// Destroys disks permanently. The operator creates new OSDs on their hosts.
    fn lose_disks(&mut self, hit: &[usize]) -> Result<(), String> {
        let mut next = Vec::new();
        for index in hit {
            next.push(self.lose_disk(*index)?);
            self.operator.jobs.push_back(Job::SetOut(*index, true));
        }
        // If the operator gives up the lost members first, PGs are served at once; otherwise only after
        // their successors have been filled.
        if self.chaos.chance(Chance::percent(50)) {
            self.operator.jobs.push_back(Job::FindLost);
        }
        self.operator.jobs.extend(next.into_iter().map(Job::CreateOsd));
        self.operator.jobs.push_back(Job::FindLost);
        self.operator.jobs.extend(hit.iter().map(|index| Job::RemoveOsd(*index)));
        Ok(())
    }

    /// Destroys the disk of an OSD. Returns the index of the OSD that will replace it.
    fn lose_disk(&mut self, index: usize) -> Result<usize, String> {
        self.trace.line(format_args!("{:?} osd {index} loses its disk", self.now));
        self.kill(Process::Osd(index))?;
        self.fault("disk lost");
        let osd = &mut self.osds[index];
        osd.is_gone = true;
        osd.disk = None;
        let host = osd.host;
        self.note_power_loss(index);
        let next = self.osds.len();
        self.add_osd(host);
        Ok(next)
    }

    /// Kills an OSD and damages the metadata of its store: old journal entries or checkpoint pages, or,
    /// with `tail`, the tail of the journal.
    fn rot_knowledge(&mut self, index: usize, tail: bool) -> Result<(), String> {
        let now = self.now;
        self.osds[index].note_idle(now);
        self.kill(Process::Osd(index))?;
        // The OSD counts as lost, so its unflushed writes count as lost, too.
        self.note_power_loss(index);
        let osd = &mut self.osds[index];
        let (Some(layout), Some(disk)) = (&osd.layout, &mut osd.disk) else { return Ok(()) };
        let is_journal = tail || self.chaos.chance(Chance::percent(60));
        let (kind, area) = if is_journal {
            ("journal", layout.journal)
        } else {
            ("checkpoint area", layout.checkpoints)
        };
        let settled = osd.settled;
        let mut pages: Vec<u64> = disk
            .written_pages()
            .filter(|page| (area.offset..area.end()).contains(page))
            .filter(|page| tail || disk.written_last(*page) <= settled)
            .collect();
        pages.sort_by_key(|page| disk.written_last(*page));
        // Damage only the newest pages: most older pages are no longer needed.
        let kept = pages.len().min(if tail { 4 } else { 12 });
        pages.drain(..pages.len() - kept);
        if pages.is_empty() {
            return Ok(());
        }
        let page = *self.chaos.pick(&pages);
        let (offset, mask) = (page + self.chaos.below(base::UNIT_SIZE), 1 << self.chaos.below(8));
        disk.rot(offset, mask);
        if tail {
            self.watch.tail_lost(index);
        }
        osd.flips.push(Flip { offset, mask, age: disk.written_last(page) });
        self.trace.line(format_args!("{now:?} rot in the {kind} at {page} of osd {index}"));
        self.fault(match (tail, is_journal) {
            (true, _) => "rot in the journal's tail",
            (false, true) => "rot in the journal",
            (false, false) => "rot in the checkpoint area",
        });
        Ok(())
    }

    /// Schedules the next strike, if the plan has one.
    pub(super) fn plan_strike(&mut self) {
        if let Some(after) = self.plan.strikes.pop() {
            self.faults.strikes_open += 1;
            self.schedule(Duration::from_millis(after), Item::Strike);
        }
    }
}
