//! What this OSD has seen of the cluster. This is sent with each boot message, so that a monitor whose state
//! store went back in time notices it before the monitor changes anything. A monitor that recovers the state
//! store receives everything that this OSD has recorded.

use base::Duration;
use blockstore::Store;
use cluster::copy::{Activated, KnownState, PoolSeen, Seen, StateCopy, in_parts};
use format::wire::PgEntry;

use crate::cluster_view::ClusterView;
use crate::notes::{Notes, raise, records};

/// Maximum number of entries in one message: even with the longest entries the message stays below its size
/// limit.
const ENTRY_COUNT_MAX: usize = 2000;
/// Timeout for a recovery of the state store. After it, this OSD reconnects and sends everything again.
pub(crate) const RECOVERY_SPAN: Duration = Duration::from_secs(60);

/// Returns what this OSD has seen: the state store of this cluster must contain all of it.
pub(crate) fn seen(cluster: &ClusterView, notes: &Notes, copy: &StateCopy) -> Seen {
    let mut seen = Seen { change: copy.change, reign: copy.reign, ..notes.recorded().clone() };
    seen.incarnation = seen.incarnation.max(cluster.incarnation().unwrap_or_default());
    let noted = notes.pools().map(|(id, noted)| (id, noted.revision));
    let known = cluster.pools().map(|(id, known)| (id, known.revision));
    for (pool, revision) in noted.chain(known) {
        raise(&mut seen, pool, revision);
    }
    seen
}

/// Returns everything that this OSD has recorded, in parts that fit into a message. Each part carries the
/// change number of the copy.
pub(crate) fn known_state(
    store: &Store,
    cluster: &ClusterView,
    notes: &Notes,
    copy: &StateCopy,
) -> Vec<KnownState> {
    let mut entries: Vec<PgEntry> = records(store).map(|record| record.entry).collect();
    entries.extend(cluster.entries().filter(|entry| cluster.has_part(entry)).cloned());
    let osd_revision = cluster.osds().map(|osd| osd.revision).max().unwrap_or(0);
    let StateCopy { change, reign, records: copied } = copy;
    let bare = || KnownState {
        osd_revision,
        copy: StateCopy { change: *change, reign: *reign, ..StateCopy::default() },
        ..KnownState::default()
    };
    let part_of = |entries: &[PgEntry]| KnownState { entries: entries.to_vec(), ..bare() };
    let mut parts: Vec<KnownState> = entries.chunks(ENTRY_COUNT_MAX).map(part_of).collect();
    // A learner still lacks data, so its epochs do not count as activated.
    let whole = records(store).filter(|record| record.filling.is_none());
    let activated = whole.map(|record| Activated {
        pg: record.entry.pg,
        epochs: record.history.iter().map(|activation| activation.epoch).collect(),
    });
    let activated: Vec<Activated> = activated.collect();
    let activated = activated.chunks(ENTRY_COUNT_MAX);
    parts.extend(activated.map(|some| KnownState { activated: some.to_vec(), ..bare() }));
    let pools = pools_seen(cluster, notes);
    parts.extend(pools.map(|pool| KnownState { pools: vec![pool], ..bare() }));
    let copied = copied.iter().map(|(key, value)| (key.clone(), value.clone()));
    parts.extend(in_parts(copied).into_iter().map(|records| {
        let mut part = bare();
        part.copy.records = records;
        part
    }));
    parts
}

/// Returns the pools in the map, followed by the pools that earlier runs noted.
fn pools_seen<'a>(
    cluster: &'a ClusterView,
    notes: &'a Notes,
) -> impl Iterator<Item = PoolSeen> + 'a {
    let known = cluster.pools().map(|(_, known)| PoolSeen {
        pool: known.pool.clone(),
        revision: known.revision,
        fences: known.fences.iter().copied().collect(),
        fence_ranges: known.fence_ranges.clone(),
    });
    let noted = notes.pools().map(|(_, noted)| PoolSeen {
        pool: noted.pool.clone(),
        revision: noted.revision,
        fences: Vec::new(),
        fence_ranges: Vec::new(),
    });
    known.chain(noted)
}
