//! The cluster as this OSD sees it: the map, the settings, and this OSD's own run.
//!
//! Invariants
//!   1. If a change to a pool does not follow the known revision, the pool has a gap: its map is
//!      requested from the start.
//!   2. This OSD requests the map at most once between two reports, however many peers have a newer one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use base::hash::PG_COUNT_MAX;
use base::trace::Level;
use base::{Duration, Epoch, Incarnation, MapRevision, OsdId, PgId, PoolId, SessionRange};
use cluster::map::{ClusterMap, MapDelta, MapGap, OsdInfo, PoolMap};
use cluster::settings::{Changed, Setting};
use format::wire::{Member, PgEntry};

/// This OSD's view of the cluster.
pub(crate) struct ClusterView {
    osd: OsdId,
    /// The number of the current run, once the monitor has assigned it.
    incarnation: Option<Incarnation>,
    map: ClusterMap,
    /// Sessions that are over, in order, of pools of objects that have any.
    over: BTreeMap<PoolId, Arc<[SessionRange]>>,
    /// Settings that differ from their defaults.
    settings: Changed,
    gaps: BTreeSet<PoolId>,
    /// Whether the map has been requested since the last report.
    is_asked: bool,
    /// Whether the revisions that this OSD acts on still have to be sent to the monitor.
    is_saw_due: bool,
}

impl ClusterView {
    /// Creates the view of an OSD that has not joined the cluster.
    pub(crate) fn new(osd: OsdId) -> ClusterView {
        ClusterView {
            osd,
            incarnation: None,
            map: ClusterMap::default(),
            over: BTreeMap::new(),
            settings: Changed::new(),
            gaps: BTreeSet::new(),
            is_asked: false,
            is_saw_due: false,
        }
    }

    // ---- this OSD

    /// Returns the number of the current run, once the monitor has assigned it.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// Returns this OSD and its current run, once the monitor has assigned the run its number.
    pub(crate) fn me(&self) -> Option<Member> {
        self.incarnation.map(|incarnation| Member { osd: self.osd, incarnation })
    }

    /// Returns the id of this OSD.
    pub(crate) fn osd_id(&self) -> OsdId {
        self.osd
    }

    /// Stores the incarnation that the monitor assigned to this run. Returns true if it is new.
    pub(crate) fn join(&mut self, incarnation: Incarnation) -> bool {
        self.is_saw_due = true;
        self.incarnation.replace(incarnation) != Some(incarnation)
    }

    /// Returns whether this OSD is an acting member or a learner of the entry's PG.
    pub(crate) fn has_part(&self, entry: &PgEntry) -> bool {
        entry.members().any(|member| member.osd == self.osd)
    }

    /// Returns whether this OSD is the primary of the entry, in any run.
    pub(crate) fn is_primary(&self, entry: &PgEntry) -> bool {
        entry.primary_osd() == Some(self.osd)
    }

    /// Returns whether this OSD is the primary of the entry, in its current run.
    pub(crate) fn leads(&self, entry: &PgEntry) -> bool {
        self.me().is_some_and(|me| entry.primary_member() == Some(me))
    }

    /// Returns the other members of all PGs that this OSD leads in its current run. If entries list
    /// several runs of a member, its newest run is returned.
    pub(crate) fn members_led(&self) -> BTreeMap<OsdId, Incarnation> {
        let mut members = BTreeMap::new();
        for entry in self.entries().filter(|entry| self.leads(entry)) {
            let others = entry.members().filter(|member| member.osd != self.osd);
            others.for_each(|member| add_run(&mut members, member));
        }
        members
    }

    /// Returns the other members of all PGs in which this OSD, in its current run, may answer direct reads:
    /// it needs their leases. If entries list several runs of a member, its newest run is returned.
    pub(crate) fn read_lease_givers(&self) -> BTreeMap<OsdId, Incarnation> {
        let mut givers = BTreeMap::new();
        for entry in self.entries().filter(|entry| self.reads_directly(entry)) {
            let others = entry.members().filter(|member| member.osd != self.osd);
            others.for_each(|member| add_run(&mut givers, member));
        }
        givers
    }

    /// Returns whether this OSD, in its current run, may answer direct reads of the entry's PG: the pool
    /// keeps parity, and this OSD is an acting member with a data part, but not the primary.
    pub(crate) fn reads_directly(&self, entry: &PgEntry) -> bool {
        let Some(known) = self.map.pools.get(&entry.pg.pool) else { return false };
        let me = self.me().and_then(|me| entry.filled().find(|(_, member)| **member == me));
        let has_part = me.is_some_and(|(position, _)| known.pool.scheme.has_data_part(position));
        has_part && !self.is_primary(entry)
    }

    /// Returns the other members that may have served under a grant of this OSD while this entry was current:
    /// the primary; in pools with parity also acting members with a data part, which answer direct reads.
    pub(crate) fn lease_holders(&self, entry: &PgEntry) -> Vec<Member> {
        let scheme = self.map.pools.get(&entry.pg.pool).map(|known| known.pool.scheme);
        let primary = entry.primary_member();
        let holds = |position, member: &Member| {
            primary == Some(*member) || scheme.is_some_and(|scheme| scheme.has_data_part(position))
        };
        let holders = entry.filled().filter(|(position, member)| holds(*position, member));
        holders.map(|(_, member)| *member).filter(|member| member.osd != self.osd).collect()
    }

    /// Returns the acting members with parity to which this OSD, as an acting member with a data part, sends
    /// differences over connections of its own. Leaves out primaries: they open connections themselves. If
    /// entries list several runs of a member, its newest run is returned.
    pub(crate) fn delta_receivers(&self) -> BTreeMap<OsdId, Incarnation> {
        let mut receivers = BTreeMap::new();
        let Some(me) = self.me() else { return receivers };
        for known in self.map.pools.values() {
            let scheme = known.pool.scheme;
            if scheme.is_whole_everywhere() {
                continue;
            }
            let is_data = |entry: &&PgEntry| {
                entry.position_of(me.osd).is_some_and(|position| scheme.has_data(position))
                    && entry.acting().any(|member| *member == me)
            };
            for entry in known.pgs.iter().filter(is_data).filter(|entry| !self.is_primary(entry)) {
                let parity = entry.filled().filter(|(position, _)| !scheme.has_data(*position));
                let others = parity.filter(|(_, member)| entry.primary_osd() != Some(member.osd));
                others.for_each(|(_, member)| add_run(&mut receivers, member));
            }
        }
        receivers
    }

    /// Returns the primaries of all PGs that this OSD is a member of in its current run. Leaves out this OSD
    /// itself and primaries that are down.
    pub(crate) fn primaries_followed(&self) -> Option<BTreeSet<Member>> {
        let me = self.me()?;
        let ours = self.entries().filter(|entry| entry.members().any(|member| *member == me));
        let primaries = ours.filter_map(PgEntry::primary_member);
        Some(primaries.filter(|primary| *primary != me && self.is_up(primary)).collect())
    }

    // ---- the map

    /// Returns the whole map.
    pub(crate) fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// Returns the map of a pool.
    pub(crate) fn pool(&self, id: PoolId) -> Option<&PoolMap> {
        self.map.pools.get(&id)
    }

    /// Returns all pools, by id.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (PoolId, &PoolMap)> {
        self.map.pools.iter().map(|(id, known)| (*id, known))
    }

    /// Returns the entry of a PG.
    pub(crate) fn pg(&self, id: PgId) -> Option<&PgEntry> {
        self.map.pg(id)
    }

    /// Returns whether `epoch` of the PG is newer than the one in this map.
    pub(crate) fn is_behind(&self, id: PgId, epoch: Epoch) -> bool {
        self.pg(id).is_none_or(|entry| entry.epoch < epoch)
    }

    /// Returns the entries of all PGs.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &PgEntry> {
        self.map.pools.values().flat_map(|known| &known.pgs)
    }

    /// Returns an OSD's entry in the map.
    pub(crate) fn osd(&self, id: OsdId) -> Option<&OsdInfo> {
        self.map.osds.get(&id)
    }

    /// Returns all OSDs, by id.
    pub(crate) fn osds(&self) -> impl Iterator<Item = &OsdInfo> {
        self.map.osds.values()
    }

    /// Returns whether the map lists this run of the OSD as up.
    pub(crate) fn is_up(&self, member: &Member) -> bool {
        let info = self.osd(member.osd);
        info.is_some_and(|info| info.up && info.incarnation == member.incarnation)
    }

    /// Returns the map revision of each pool that this OSD acts on.
    pub(crate) fn revisions(&self) -> BTreeMap<PoolId, MapRevision> {
        self.pools().map(|(id, known)| (id, known.revision)).collect()
    }

    /// Applies a change to the map. On an error all pools without a gap are still updated, and the caller
    /// must call [`ClusterView::note_gap`].
    pub(crate) fn apply(&mut self, delta: MapDelta) -> Result<(), MapGap> {
        self.is_saw_due = true;
        let pools: Vec<PoolId> = delta.pools.iter().map(|change| change.pool.id).collect();
        let applied = self.map.apply(delta);
        self.note_over(&pools);
        applied
    }

    /// Returns the sessions that are over in a pool of objects, in order. While nothing changes, it is the
    /// same list.
    pub(crate) fn over(&self, pool: PoolId) -> Option<&Arc<[SessionRange]>> {
        self.over.get(&pool)
    }

    /// Notes which sessions are over in pools whose maps have changed.
    fn note_over(&mut self, changed: &[PoolId]) {
        let map = &self.map;
        self.over.retain(|pool, _| map.pools.contains_key(pool));
        let changed = changed.iter().filter_map(|pool| map.pools.get(pool));
        for known in changed.filter(|known| known.pool.has_objects()) {
            let over = known.fenced_ranges();
            let before = self.over.get(&known.pool.id);
            if before.map_or(!over.is_empty(), |before| **before != *over) {
                self.over.insert(known.pool.id, over.into());
            }
        }
    }

    // ---- requests to the monitor

    /// Records that a pool has a gap. Returns true if this OSD should request the map now.
    pub(crate) fn note_gap(&mut self, gap: &MapGap) -> bool {
        self.gaps.insert(gap.pool);
        self.ask_once()
    }

    /// Handles a peer's newer map. Returns true if this OSD should request it now.
    pub(crate) fn ask_once(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asked, true)
    }

    /// Returns the known revisions, for a subscription. Pools with a gap are left out, so their maps are
    /// sent from the start.
    pub(crate) fn known_for_subscription(&mut self) -> BTreeMap<PoolId, MapRevision> {
        let mut have = self.revisions();
        let gaps = std::mem::take(&mut self.gaps);
        have.retain(|pool, _| !gaps.contains(pool));
        have
    }

    /// Begins a new report interval. Returns true if there are pools with gaps to request.
    pub(crate) fn begin_report(&mut self) -> bool {
        self.is_asked = false;
        !self.gaps.is_empty()
    }

    /// Returns whether the revisions that this OSD acts on still have to be sent to the monitor.
    pub(crate) fn is_saw_due(&self) -> bool {
        self.is_saw_due
    }

    /// Returns the map revisions that this OSD acts on, and records that they have been sent to the monitor.
    pub(crate) fn take_saw(&mut self) -> BTreeMap<PoolId, MapRevision> {
        self.is_saw_due = false;
        self.revisions()
    }

    // ---- settings

    /// Replaces the settings that differ from their defaults.
    pub(crate) fn set_settings(&mut self, changed: Changed) {
        self.settings = changed;
    }

    /// Returns the value of a setting that is a duration.
    pub(crate) fn span(&self, setting: Setting) -> Duration {
        setting.span_in(&self.settings)
    }

    /// Returns the value of a setting.
    pub(crate) fn value(&self, setting: Setting) -> u64 {
        setting.value_in(&self.settings)
    }

    /// Returns the log level, if it is set.
    pub(crate) fn log_level(&self) -> Option<Level> {
        Setting::log_level_in(&self.settings)
    }
}

/// Adds a member to a set of OSDs with the newest of their runs that entries list.
fn add_run(runs: &mut BTreeMap<OsdId, Incarnation>, member: &Member) {
    let newest = runs.entry(member.osd).or_insert(member.incarnation);
    *newest = member.incarnation.max(*newest);
}

/// Returns whether this PG can exist in the pool. The map comes from another process, so it is checked.
pub(crate) fn is_sound(pg: PgId, known: &PoolMap) -> bool {
    let count = known.pool.pg_count;
    let is_count_sound = count.is_power_of_two() && count <= PG_COUNT_MAX;
    is_count_sound && pg.pool == known.pool.id && pg.number < count
}
