//! A backup of the state store, taken at any time, is restored at the end. OSDs know newer state, so the
//! store is refused until the operator recovers it; after that, nothing that was acknowledged may be missing.

use base::{Duration, Time};

use super::agenda::Item;
use super::operator::Job;
use super::process::Process;
use super::world::World;
use crate::random::{Chance, Random};

/// When the backup is taken, in milliseconds from the start of the work.
const TAKEN_AFTER: std::ops::Range<u64> = 1..20_000;

/// How long the cluster must have been whole before the backup is restored: by then, OSDs have
/// stored their copies of the state.
const WHOLE_FOR: Duration = Duration::from_secs(3);

/// If no OSD has reported within this time that the store is too old, the store lacks nothing that
/// OSDs know.
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

    /// Restores the backup, if one was taken. Returns what the cluster still lacks afterwards,
    /// which happens if disks are too full: a member that the placement no longer wants may leave
    /// briefly, and its successor may have no space. Requires: no fault happens.
    pub(super) fn restore_backup(&mut self) -> Result<Option<String>, String> {
        if !self.state.has_backup() || self.wait_until_whole_for(WHOLE_FOR)?.is_some() {
            return Ok(None);
        }
        self.fault("backup of the state put back");
        self.kill_all(self.monitor_processes())?;
        let count = self.osds.len();
        // After a restart, OSDs know only what they have stored.
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
        // An OSD that is down in the backup may leave its PGs as soon as the first OSD is back.
        let lack = self.wait_until_whole_for(WHOLE_FOR)?;
        self.faults.must_be_whole &= lack.is_none();
        Ok(lack)
    }

    /// Returns whether enough time has passed since `since` to prove that the store is not too old.
    pub(super) fn is_not_older(&self, since: Time) -> bool {
        self.now.since(since) > PROVEN_WITHIN
    }
}
