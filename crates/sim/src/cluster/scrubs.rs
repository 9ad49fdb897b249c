//! Scrubs run all the time, because simulated days pass quickly. At the end of a run, a deep scrub of every
//! PG must find all damage.

use std::collections::BTreeSet;

use base::PgId;
use blockstore::BlockKey;

use super::world::World;

/// The number of seconds of wall-clock time that pass per second of a run: light scrubs are due every
/// few seconds, deep scrubs four times a minute.
const DAY_SPEED: u64 = 2 * 24 * 3600;

/// The wall-clock time at which a run begins, in seconds since 1970.
const FIRST_DAY: u64 = 1_700_000_000;

impl World {
    /// Returns the wall-clock time, in seconds since 1970.
    pub(super) fn day(&self) -> u64 {
        let microseconds = self.now.as_nanos() / 1_000;
        FIRST_DAY + microseconds * DAY_SPEED / 1_000_000
    }

    /// Waits until a new deep scrub has covered every PG. Returns the blocks that are listed as
    /// damaged. Requires: the cluster is whole, and no fault happens.
    pub(super) fn scrub_everything(&mut self) -> Result<BTreeSet<BlockKey>, String> {
        let begun = self.day();
        self.wait("PGs are not scrubbed", |world| {
            let is_scrubbed = |pg: PgId| {
                let notes = world.osds.iter().filter_map(|osd| osd.node.as_ref());
                let mut notes = notes.flat_map(|node| node.scrubs());
                notes.any(|(id, note)| id == pg && note.deep_at >= begun)
            };
            world.watch.entries().all(|entry| is_scrubbed(entry.pg))
        })?;
        let notes = self.osds.iter().filter_map(|osd| osd.node.as_ref());
        let notes = notes.flat_map(|node| node.scrubs());
        Ok(notes.flat_map(|(_, note)| &note.findings).map(|finding| finding.key).collect())
    }
}
