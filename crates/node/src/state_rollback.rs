//! What this OSD has seen of the cluster: told with each boot, so that a state store that went back in
//! time is recognised before it changes anything, and told whole where that is restored.

use base::{ConnectionId, Duration, MapRevision, PoolId, Time};
use blockstore::NoteKey;
use cluster::copy::{Activated, KnownState, PoolSeen, Seen, StateCopy, in_parts};
use cluster::message::ToMonitor;
use format::wire::PgEntry;
use pg::Record;

use crate::Effect;
use crate::node::Node;

/// Entries in one message: the longest ones stay below its limit.
const ENTRY_COUNT_MAX: usize = 2000;
/// So long a monitor may keep the connection until the state is recovered; then it is told again.
const RECOVERY_SPAN: Duration = Duration::from_secs(60);

impl Node {
    /// What none of its monitors may have forgotten.
    pub(crate) fn seen(&self) -> Seen {
        let copy = self.state.copy();
        let mut seen = Seen { change: copy.change, reign: copy.reign, ..self.recorded.clone() };
        seen.incarnation = seen.incarnation.max(self.incarnation.unwrap_or_default());
        let noted = self.pools_noted.iter().map(|(id, noted)| (*id, noted.revision));
        let known = self.map.pools.iter().map(|(id, known)| (*id, known.revision));
        for (pool, revision) in noted.chain(known) {
            raise(&mut seen, pool, revision);
        }
        seen
    }

    /// The same, from the records of its PGs: they may be newer than its note.
    pub(crate) fn seen_in_records(&self) -> Seen {
        let mut seen = Seen::default();
        for entry in self.entries_recorded() {
            raise(&mut seen, entry.pg.pool, entry.revision);
            let ours = entry.members().filter(|member| member.osd == self.identity.osd);
            let run = ours.map(|member| member.incarnation).max().unwrap_or_default();
            seen.incarnation = seen.incarnation.max(run);
        }
        seen
    }

    /// Records that cannot be read say nothing; their PGs wait for an operator.
    fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.store.notes().filter_map(|(key, bytes)| match key {
            NoteKey::Pg(_) => Record::decode(bytes).ok(),
            NoteKey::Cluster | NoteKey::State(_) => None,
        })
    }

    fn entries_recorded(&self) -> impl Iterator<Item = PgEntry> + '_ {
        self.records().map(|record| record.entry)
    }

    /// A recovery of the state begins with what OSDs know.
    pub(crate) fn tell_all(
        &mut self,
        now: Time,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        if self.link.connection() != Some(connection) || self.link.joined().is_some() {
            return;
        }
        self.link.booting(connection, now + RECOVERY_SPAN);
        let mut parts = self.known_state();
        let last = parts.pop();
        for part in parts {
            self.tell_monitor(&ToMonitor::OsdTells { part, more: true }, effects);
        }
        let part = last.unwrap_or_default();
        self.tell_monitor(&ToMonitor::OsdTells { part, more: false }, effects);
    }

    /// All this OSD knows, in parts that are short enough for a message. Each names the change of the
    /// copy.
    fn known_state(&self) -> Vec<KnownState> {
        let mut entries: Vec<PgEntry> = self.entries_recorded().collect();
        let known = self.map.pools.values().flat_map(|known| &known.pgs);
        entries.extend(known.filter(|entry| self.has_part(entry)).cloned());
        let osd_revision = self.map.osds.values().map(|osd| osd.revision).max().unwrap_or(0);
        let StateCopy { change, reign, records } = self.state.copy();
        let bare = || KnownState {
            osd_revision,
            copy: StateCopy { change: *change, reign: *reign, ..StateCopy::default() },
            ..KnownState::default()
        };
        let part_of = |entries: &[PgEntry]| KnownState { entries: entries.to_vec(), ..bare() };
        let mut parts: Vec<KnownState> = entries.chunks(ENTRY_COUNT_MAX).map(part_of).collect();
        // What a learner still lacks it has not activated.
        let whole = self.records().filter(|record| record.filling.is_none());
        let activated = whole.map(|record| Activated {
            pg: record.entry.pg,
            epochs: record.history.iter().map(|activation| activation.epoch).collect(),
        });
        let activated: Vec<Activated> = activated.collect();
        let activated = activated.chunks(ENTRY_COUNT_MAX);
        parts.extend(activated.map(|some| KnownState { activated: some.to_vec(), ..bare() }));
        let pools = self.pools_seen().into_iter();
        parts.extend(pools.map(|pool| KnownState { pools: vec![pool], ..bare() }));
        let records = records.iter().map(|(key, value)| (key.clone(), value.clone()));
        parts.extend(in_parts(records).into_iter().map(|records| {
            let mut part = bare();
            part.copy.records = records;
            part
        }));
        parts
    }

    /// Its pools, as the map has them, or as it has noted them in an earlier run.
    fn pools_seen(&self) -> Vec<PoolSeen> {
        let known = self.map.pools.values().map(|known| PoolSeen {
            pool: known.pool.clone(),
            revision: known.revision,
            fences: known.fences.iter().copied().collect(),
            fence_ranges: known.fence_ranges.clone(),
        });
        let noted = self.pools_noted.values().map(|noted| PoolSeen {
            pool: noted.pool.clone(),
            revision: noted.revision,
            fences: Vec::new(),
            fence_ranges: Vec::new(),
        });
        known.chain(noted).collect()
    }
}

fn raise(seen: &mut Seen, pool: PoolId, revision: MapRevision) {
    let known = seen.pools.entry(pool).or_default();
    *known = (*known).max(revision);
}
