//! Checks answers to syncs by the messages on the network. If a write was acknowledged before it was durable,
//! a sync in the same epoch may be acknowledged only after the primary has asked each acting member to flush.
//!
//! This catches a missing flush directly: otherwise it would show only after a rare combination of power
//! losses.

use std::collections::BTreeSet;

use base::{Epoch, OsdId, PgId};
use format::wire::PgEntry;

/// What was seen in each epoch of each PG.
#[derive(Default)]
pub struct Syncs {
    /// Epochs in which a write was acknowledged before it was durable.
    lazy: BTreeSet<(PgId, Epoch)>,
    /// Members that were asked to flush, by the indexes of their processes.
    asked: BTreeSet<(PgId, Epoch, usize)>,
}

impl Syncs {
    /// Records that a client's write was acknowledged before it was durable.
    pub fn answered_lazily(&mut self, pg: PgId, epoch: Epoch) {
        self.lazy.insert((pg, epoch));
    }

    /// Records that a primary asks a member to flush.
    pub fn asked(&mut self, pg: PgId, epoch: Epoch, member: usize) {
        self.asked.insert((pg, epoch, member));
    }

    /// Checks a successful answer to a sync from the primary with process index `index`: every acting
    /// member must have been asked to flush, if that was necessary.
    pub fn judge(
        &self,
        index: usize,
        entry: &PgEntry,
        index_of: impl Fn(OsdId) -> Option<usize>,
    ) -> Result<(), String> {
        let (pg, epoch) = (entry.pg, entry.epoch);
        if !self.lazy.contains(&(pg, epoch)) {
            return Ok(());
        }
        let was_asked = |osd| match index_of(osd) {
            Some(member) => member == index || self.asked.contains(&(pg, epoch, member)),
            None => false,
        };
        match entry.acting().find(|member| !was_asked(member.osd)) {
            Some(member) => Err(format!(
                "osd {index} answers a sync of {pg} in epoch {epoch} that {} was not asked for",
                member.osd
            )),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::{Incarnation, MapRevision, PoolId};
    use format::wire::Member;

    use super::*;

    #[test]
    fn a_sync_that_a_member_was_not_asked_for_is_found() {
        let member = |number: u32| {
            let osd = OsdId::new(number).unwrap();
            Member { osd, incarnation: Incarnation::new(1) }
        };
        let pg = PgId { pool: PoolId::FIRST, number: 0 };
        let (epoch, revision) = (Epoch::new(3), MapRevision::new(1));
        let entry = PgEntry { epoch, revision, ..PgEntry::new(pg, [member(1), member(2)]) };
        let index_of = |osd: OsdId| Some(osd.get() as usize - 1);
        let mut syncs = Syncs::default();
        assert!(syncs.judge(0, &entry, index_of).is_ok(), "all was durable when it was answered");
        syncs.answered_lazily(entry.pg, entry.epoch);
        assert!(syncs.judge(0, &entry, index_of).is_err());
        syncs.asked(entry.pg, Epoch::new(2), 1);
        assert!(syncs.judge(0, &entry, index_of).is_err());
        syncs.asked(entry.pg, entry.epoch, 1);
        assert!(syncs.judge(0, &entry, index_of).is_ok());
    }
}
