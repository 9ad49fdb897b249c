//! Disks that hang: they complete no operation and report no error. Some hang for long, others only take
//! seconds for an operation. An OSD may report that it is stalled only if its disk hung, and that it has
//! recovered only after the disk has answered for long enough. Nobody relies on a stalled OSD.

use base::Duration;

use super::agenda::Item;
use super::osd::Osd;
use super::process::Process;
use super::world::{WHOLE_FOR, World};
use crate::random::Chance;

impl World {
    /// Makes a disk hang at random. Called after each event.
    pub(super) fn hang_some(&mut self) {
        let Some((index, span)) = self.hangs.next(self.osds.len()) else { return };
        if self.is_running(Process::Osd(index)) {
            self.hang(index, span);
        }
    }

    /// Makes the disk of an OSD complete nothing for this span; a hang in progress that would end
    /// earlier is extended.
    pub(super) fn hang(&mut self, index: usize, span: Duration) {
        let now = self.now;
        self.osds[index].hang.begin(now, span);
        if self.runs.frozen_until(Process::Osd(index)).is_some() {
            self.osds[index].hang.stands_still(now);
        }
        self.trace.line(format_args!("{now:?} the disk of osd {index} hangs for {span:?}"));
        let is_long = self.hangs.note(span);
        self.fault(if is_long { "disk hung" } else { "disk took seconds" });
    }

    /// Ends the hangs of all disks.
    pub(super) fn end_hangs(&mut self) {
        for osd in &mut self.osds {
            osd.hang.end(self.now);
        }
    }

    /// Handles the exit of an OSD that restarts because its disk hung.
    pub(super) fn begins_anew(&mut self, index: usize) -> Result<(), String> {
        let osd = &mut self.osds[index];
        let node = osd.node.as_ref().expect("it says so");
        osd.stalls = Some(node.stalls());
        if osd.in_flight > 0 {
            let count = osd.in_flight;
            return Err(format!(
                "osd {index} opens its store again while {count} operations are under way"
            ));
        }
        self.fault("OSD began anew after its disk hung");
        self.osd_stopped(index);
        // Sometimes the disk hangs again, for long enough that a probe notices it.
        if self.hangs.random.chance(Chance::percent(50)) {
            let after = Duration::from_millis(self.hangs.random.range(6_000..11_000));
            self.schedule(after, Item::Hang(index, Duration::from_millis(3_500)));
        }
        Ok(())
    }

    /// Checks an OSD's report to a monitor about its disk.
    pub(super) fn judge_stall(&mut self, index: usize, text: &str) -> Result<(), String> {
        if !text.contains("\"stalled\":") {
            return Ok(());
        }
        let now = self.now;
        let osd = &mut self.osds[index];
        let is_stalled = text.contains("\"stalled\":true");
        osd.hang.judge(now, is_stalled).map_err(|error| format!("osd {index} {error}"))?;
        if let Some(id) = osd.id {
            self.watch.says_it_is_stalled(id, osd.hang.said_since());
        }
        Ok(())
    }

    /// Makes all disks hang together, or one disk for three seconds, after which no member may have
    /// left its PGs. Or freezes an OSD for long, which must not make it report that its disk hangs.
    /// Returns what the cluster lacks afterwards, or `None`. It may lack something if disks are too
    /// full: when a member leaves its PGs briefly, other members replace it. Requires: the cluster is
    /// whole, and no fault happens.
    pub(super) fn hang_all_disks(&mut self) -> Result<Option<String>, String> {
        if self.hangs.random.chance(Chance::percent(75))
            || self.wait_until_whole_for(WHOLE_FOR)?.is_some()
        {
            return Ok(None);
        }
        let Some(attached) = self.attach_one(None)? else { return Ok(None) };
        self.net.calm_down(50_000);
        let kind = self.hangs.random.index(3);
        let victim = self.hangs.random.index(self.osds.len());
        if self.osds[victim].is_gone {
            return self.detach_all().map(|()| None);
        }
        if self.faults.rot_happened {
            // A member may leave, a frozen one does. Data that rotted unnoticed at other members would have
            // no good copy then, so scrubs repair it first.
            self.scrub_everything()?;
        }
        for _ in 0..20 {
            self.ask_for_drill(attached)?;
        }
        match kind {
            0 => {
                self.fault("all disks hung");
                (0..self.osds.len()).for_each(|index| self.hang(index, Duration::from_secs(8)));
            }
            1 => self.hang(victim, Duration::from_secs(3)),
            _ => self.freeze(Process::Osd(victim), Duration::from_secs(20)),
        }
        let withdrawal_count = self.watch.withdrawal_count;
        self.watch.has_refused_room = false;
        self.watch.has_moved = false;
        let end = self.now + Duration::from_secs(9);
        for _ in 0..300 {
            self.ask_for_drill(attached)?;
        }
        self.pass(Duration::from_millis(300))?;
        // An OSD without disk operations in flight cannot notice that its disk hangs.
        let knows = |osd: &Osd| osd.node.is_none() || osd.in_flight > 0;
        let is_judged = kind == 1 || kind == 0 && self.osds.iter().all(knows);
        while self.now < end {
            self.pass(Duration::from_millis(100))?;
            self.ask_for_drill(attached)?;
        }
        self.wait("an operation is never answered after disks hung", |world| {
            world.clients[0].open.is_empty()
        })?;
        self.pass(Duration::from_secs(2))?;
        // Members may also leave because copies move to other members: an OSD that a PG left while it was
        // stalled begins anew, and its other PGs go on without it. Or because an OSD restarts after a PG had
        // to continue without a learner whose disk was too full.
        let is_judged = is_judged && !self.watch.has_refused_room && !self.watch.has_moved;
        if is_judged && self.watch.withdrawal_count > withdrawal_count {
            return Err("a member left while all disks hung, or one took three seconds".into());
        }
        self.detach_all()?;
        let lack = self.wait_until_whole_for(WHOLE_FOR)?;
        self.faults.must_be_whole &= lack.is_none();
        Ok(lack)
    }
}
