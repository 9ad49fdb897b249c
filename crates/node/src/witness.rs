//! What this OSD has seen of the cluster: told with each boot, so that a state store that went back in
//! time is recognised before it changes anything, and told whole where it is recovered from that.

use base::{ConnectionId, Duration, MapRevision, PoolId, Time};
use blockstore::NoteKey;
use cluster::copy::{Activated, PoolSeen, Seen, StateCopy, Testimony, in_parts};
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
        let copy = self.state_copy.copy();
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
            NoteKey::Cluster => None,
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
        let mut parts = self.testimony();
        let last = parts.pop();
        for part in parts {
            self.tell_monitor(&ToMonitor::OsdTells { part, more: true }, effects);
        }
        let part = last.unwrap_or_default();
        self.tell_monitor(&ToMonitor::OsdTells { part, more: false }, effects);
    }

    /// All this OSD knows, in parts that are short enough for a message. Each names the change of the
    /// copy.
    fn testimony(&self) -> Vec<Testimony> {
        let mut entries: Vec<PgEntry> = self.entries_recorded().collect();
        let known = self.map.pools.values().flat_map(|known| &known.pgs);
        entries.extend(known.filter(|entry| self.has_part(entry)).cloned());
        let osd_revision = self.map.osds.values().map(|osd| osd.revision).max().unwrap_or(0);
        let StateCopy { change, reign, records, left_out } = self.state_copy.copy();
        let bare = || Testimony {
            osd_revision,
            copy: StateCopy {
                change: *change,
                reign: *reign,
                left_out: left_out.clone(),
                ..StateCopy::default()
            },
            ..Testimony::default()
        };
        let part_of = |entries: &[PgEntry]| Testimony { entries: entries.to_vec(), ..bare() };
        let mut parts: Vec<Testimony> = entries.chunks(ENTRY_COUNT_MAX).map(part_of).collect();
        // What a learner still lacks it has not activated.
        let whole = self.records().filter(|record| record.filling.is_none());
        let activated = whole.map(|record| Activated {
            pg: record.entry.pg,
            epochs: record.history.iter().map(|activation| activation.epoch).collect(),
        });
        let activated: Vec<Activated> = activated.collect();
        let activated = activated.chunks(ENTRY_COUNT_MAX);
        parts.extend(activated.map(|some| Testimony { activated: some.to_vec(), ..bare() }));
        let pools = self.pools_seen().into_iter();
        parts.extend(pools.map(|pool| Testimony { pools: vec![pool], ..bare() }));
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
        let mut pools: Vec<PoolSeen> = Vec::new();
        for known in self.map.pools.values() {
            let noted = self.pools_noted.get(&known.pool.id);
            let mut fences = known.fences.clone();
            fences.extend(noted.into_iter().flat_map(|noted| &noted.fences));
            let newest = noted.filter(|noted| noted.revision > known.revision);
            let pool = newest.map_or(&known.pool, |noted| &noted.pool).clone();
            let revision = newest.map_or(known.revision, |noted| noted.revision);
            let mut fence_ranges = known.fence_ranges.clone();
            fence_ranges.extend(noted.into_iter().flat_map(|noted| &noted.fence_ranges));
            let fences = fences.into_iter().collect();
            pools.push(PoolSeen { pool, revision, fences, fence_ranges });
        }
        for noted in self.pools_noted.values() {
            if !self.map.pools.contains_key(&noted.pool.id) {
                let fences = noted.fences.iter().copied().collect();
                let (pool, revision) = (noted.pool.clone(), noted.revision);
                let fence_ranges = noted.fence_ranges.clone();
                pools.push(PoolSeen { pool, revision, fences, fence_ranges });
            }
        }
        pools
    }
}

fn raise(seen: &mut Seen, pool: PoolId, revision: MapRevision) {
    let known = seen.pools.entry(pool).or_default();
    *known = (*known).max(revision);
}
