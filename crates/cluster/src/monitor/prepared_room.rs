//! Whether journals have room for what pools with parity prepare in them. Each OSD divides its room by the primaries
//! of its PGs with parity; where not even a change of 4 KiB fits into a share, no write succeeds, although the disk
//! has space.

use std::collections::{BTreeMap, BTreeSet};

use base::OsdId;

use super::status::{Check, Severity};
use super::{Monitor, failure};
use crate::message::Failure;

/// The primaries of an OSD's PGs with parity, by OSD.
type Primaries = BTreeMap<OsdId, BTreeSet<OsdId>>;

impl Monitor {
    /// Refuses a new pool with parity if an OSD would have no room for a change by each primary. `targets`:
    /// the members of its PGs, each time the preferred primary first.
    pub(super) fn check_prepared_room(&self, targets: &[Vec<OsdId>]) -> Result<(), Failure> {
        let mut primaries = self.parity_primaries();
        for set in targets {
            for osd in set {
                primaries.entry(*osd).or_default().extend(set.first());
            }
        }
        let Some((osd, count, most)) = self.without_room(&primaries).next() else { return Ok(()) };
        Err(failure(
            "invalid",
            format!(
                "{osd} would have parts of PGs that {count} OSDs lead, but its journal has room for \
                 changes by only {most}"
            ),
            "use larger OSDs, or fewer in one pool with parity: a store has a 64th of its size as its \
             journal, and at least 16 MiB",
        ))
    }

    /// Reports the OSDs whose journals have no room for a change by each primary.
    pub(super) fn check_rooms(&self, checks: &mut Vec<Check>) {
        let primaries = self.parity_primaries();
        for (osd, count, most) in self.without_room(&primaries) {
            checks.push(Check {
                code: "osd_no_room",
                severity: Severity::Error,
                message: format!(
                    "{osd} has space, but its journal has room for changes by only {most} of the \
                     {count} OSDs that lead its PGs with parity: their writes fail"
                ),
                hint: format!(
                    "`ashlar osd out {}` moves its parts to other OSDs; replace it by a larger one",
                    osd.get()
                )
                .into(),
            });
        }
    }

    fn parity_primaries(&self) -> Primaries {
        let mut primaries = Primaries::new();
        let pools = self.committed.pools().map(|record| &record.pool);
        for pool in pools.filter(|pool| !pool.scheme.is_whole_everywhere()) {
            for entry in self.committed.pgs(pool.id) {
                for member in entry.members() {
                    primaries.entry(member.osd).or_default().extend(entry.primary_osd());
                }
            }
        }
        primaries
    }

    /// Returns the OSDs that have more primaries than room, each with their number and the most there may be.
    fn without_room(&self, primaries: &Primaries) -> impl Iterator<Item = (OsdId, usize, u32)> {
        primaries.iter().filter_map(|(osd, primaries)| {
            let most = self.osds.get(osd)?.current_report()?.parity_primaries_max?;
            (primaries.len() > most as usize).then_some((*osd, primaries.len(), most))
        })
    }
}
