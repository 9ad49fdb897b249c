//! Restores, at the end of a run, a backup of the state store that was taken at a random time. OSDs have
//! newer state, so monitors refuse the store until the operator recovers it. After that, no acknowledged data
//! may be missing.

use base::{Duration, Time};

use super::agenda::Item;
use super::operator::Job;
use super::process::Process;
use super::world::World;
use crate::random::{Chance, Random};

/// Range for the time of the backup, in milliseconds from the start of the work.
const TAKEN_AFTER: std::ops::Range<u64> = 1..20_000;

/// How long the cluster must have been whole before the backup is restored. By then, OSDs have stored
/// their copies of the state.
const WHOLE_FOR: Duration = Duration::from_secs(3);

/// If no OSD reports within this time that the store is too old, the store contains everything that
/// OSDs have recorded.
const PROVEN_WITHIN: Duration = Duration::from_secs(15);

impl World {
    /// Draws whether and when the backup is taken.
    pub(super) fn plan_backup(&mut self) {
        let mut random = Random::new(self.seed, "backup");
        if random.chance(Chance::percent(30)) {
            let after = Duration::from_millis(random.scale(TAKEN_AFTER));
            self.schedule(after, Item::Backup);
        }
    }

    /// Restores the backup, if one was taken. Returns what the cluster still lacks afterwards, or
    /// `None`. It may lack something if disks are too full: a member that the placement no longer wants
    /// may leave briefly, and its successor may have no space. Requires: no fault happens.
    pub(super) fn restore_backup(&mut self) -> Result<Option<String>, String> {
        if !self.state.has_backup() || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(None);
        }
        self.fault("backup of the state put back");
        self.kill_all(self.monitor_processes())?;
        let count = self.osds.len();
        // Restarted OSDs have only the state that they had stored.
        let all = self.chaos.chance(Chance::percent(30));
        for process in (0..count).map(Process::Osd) {
            if self.is_running(process) && (all || self.chaos.chance(Chance::percent(20))) {
                self.kill(process)?;
            }
        }
        self.state.restore();
        let gone = self.osds.iter().filter(|osd| osd.is_gone);
        let lost = gone.filter_map(|osd| osd.id).collect();
        self.operator.jobs.push_back(Job::Recover { since: self.now, lost });
        self.wait("the state is never recovered", |world| world.operator.jobs.is_empty())?;
        // An OSD that is marked down in the backup may be dropped from its PGs as soon as the first OSD
        // is back.
        let lack = self.wait_until_whole_for(WHOLE_FOR)?;
        self.faults.must_be_whole &= lack.is_none();
        Ok(lack)
    }

    /// Returns whether enough time has passed since `since` to prove that the store is not too old.
    pub(super) fn is_not_older(&self, since: Time) -> bool {
        self.now.since(since) > PROVEN_WITHIN
    }
}
