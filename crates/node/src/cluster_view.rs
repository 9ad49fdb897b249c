//! The cluster as this OSD knows it: the map, the settings, and its own run in them.
//!
//! Invariants
//!   1. A pool whose change does not follow what is known has a gap: it is asked for from the start.
//!   2. Between two reports the map is asked for at most once, however many others know more.

use std::collections::{BTreeMap, BTreeSet};

use base::hash::PG_COUNT_MAX;
use base::trace::Level;
use base::{Duration, Epoch, Incarnation, MapRevision, OsdId, PgId, PoolId};
use cluster::map::{ClusterMap, MapDelta, MapGap, OsdInfo, PoolMap};
use cluster::settings::{Changed, Setting};
use format::wire::{Member, PgEntry};

/// What this OSD knows of the cluster.
pub(crate) struct ClusterView {
    osd: OsdId,
    /// This run's number, once the monitor has given it.
    incarnation: Option<Incarnation>,
    map: ClusterMap,
    /// Settings that differ from their defaults.
    settings: Changed,
    gaps: BTreeSet<PoolId>,
    /// The map was asked for since the last report.
    is_asked: bool,
    /// The monitor does not know which revisions this OSD acts on.
    is_saw_due: bool,
}

impl ClusterView {
    /// Of an OSD that has not joined.
    pub(crate) fn new(osd: OsdId) -> ClusterView {
        ClusterView {
            osd,
            incarnation: None,
            map: ClusterMap::default(),
            settings: Changed::new(),
            gaps: BTreeSet::new(),
            is_asked: false,
            is_saw_due: false,
        }
    }

    // ---- this OSD

    /// This run's number, once the monitor has given it.
    pub(crate) fn incarnation(&self) -> Option<Incarnation> {
        self.incarnation
    }

    /// This OSD in this run, once the monitor has given the run its number.
    pub(crate) fn me(&self) -> Option<Member> {
        self.incarnation.map(|incarnation| Member { osd: self.osd, incarnation })
    }

    /// The monitor knows this run. True if its number is new.
    pub(crate) fn join(&mut self, incarnation: Incarnation) -> bool {
        self.is_saw_due = true;
        self.incarnation.replace(incarnation) != Some(incarnation)
    }

    /// Whether this OSD is an acting member or a learner.
    pub(crate) fn has_part(&self, entry: &PgEntry) -> bool {
        entry.members().any(|member| member.osd == self.osd)
    }

    /// Whether the entry names this OSD as the primary, in whichever run.
    pub(crate) fn is_primary(&self, entry: &PgEntry) -> bool {
        entry.primary_osd() == Some(self.osd)
    }

    /// Whether this OSD is the primary of the entry in its present run.
    pub(crate) fn leads(&self, entry: &PgEntry) -> bool {
        self.me().is_some_and(|me| entry.primary_member() == Some(me))
    }

    /// All other members of PGs that this OSD leads in its present run, in their newest runs.
    pub(crate) fn members_led(&self) -> BTreeMap<OsdId, Incarnation> {
        let mut members = BTreeMap::new();
        for entry in self.entries().filter(|entry| self.leads(entry)) {
            for member in entry.members().filter(|member| member.osd != self.osd) {
                let newest = members.entry(member.osd).or_insert(member.incarnation);
                *newest = member.incarnation.max(*newest);
            }
        }
        members
    }

    /// Who leads PGs of which this OSD is a member in its present run, and counts as up.
    pub(crate) fn primaries_followed(&self) -> Option<BTreeSet<Member>> {
        let me = self.me()?;
        let ours = self.entries().filter(|entry| entry.members().any(|member| *member == me));
        let primaries = ours.filter_map(PgEntry::primary_member);
        Some(primaries.filter(|primary| *primary != me && self.is_up(primary)).collect())
    }

    // ---- the map

    /// The map itself.
    pub(crate) fn map(&self) -> &ClusterMap {
        &self.map
    }

    /// A pool.
    pub(crate) fn pool(&self, id: PoolId) -> Option<&PoolMap> {
        self.map.pools.get(&id)
    }

    /// All pools, by id.
    pub(crate) fn pools(&self) -> impl Iterator<Item = (PoolId, &PoolMap)> {
        self.map.pools.iter().map(|(id, known)| (*id, known))
    }

    /// The entry of a PG.
    pub(crate) fn pg(&self, id: PgId) -> Option<&PgEntry> {
        self.map.pg(id)
    }

    /// Whether somebody acts on an epoch of the PG that this map does not have.
    pub(crate) fn is_behind(&self, id: PgId, epoch: Epoch) -> bool {
        self.pg(id).is_none_or(|entry| entry.epoch < epoch)
    }

    /// All entries.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &PgEntry> {
        self.map.pools.values().flat_map(|known| &known.pgs)
    }

    /// An OSD.
    pub(crate) fn osd(&self, id: OsdId) -> Option<&OsdInfo> {
        self.map.osds.get(&id)
    }

    /// All OSDs, by id.
    pub(crate) fn osds(&self) -> impl Iterator<Item = &OsdInfo> {
        self.map.osds.values()
    }

    /// Whether the map says that this run of the OSD is there.
    pub(crate) fn is_up(&self, member: &Member) -> bool {
        let info = self.osd(member.osd);
        info.is_some_and(|info| info.up && info.incarnation == member.incarnation)
    }

    /// The revision that this OSD acts on of each pool.
    pub(crate) fn revisions(&self) -> BTreeMap<PoolId, MapRevision> {
        self.pools().map(|(id, known)| (id, known.revision)).collect()
    }

    /// Applies a change of the map. After an error the rest of it is applied, and the caller notes
    /// the gap.
    pub(crate) fn apply(&mut self, delta: MapDelta) -> Result<(), MapGap> {
        self.is_saw_due = true;
        self.map.apply(delta)
    }

    // ---- asking the monitor

    /// A pool has a gap. True if the map is to be asked for now.
    pub(crate) fn note_gap(&mut self, gap: &MapGap) -> bool {
        self.gaps.insert(gap.pool);
        self.ask_once()
    }

    /// A peer has a newer map. Returns true if this OSD should ask for it now.
    pub(crate) fn ask_once(&mut self) -> bool {
        !std::mem::replace(&mut self.is_asked, true)
    }

    /// The known revisions, for a subscription; pools with a gap are left out.
    pub(crate) fn known_for_subscription(&mut self) -> BTreeMap<PoolId, MapRevision> {
        let mut have = self.revisions();
        let gaps = std::mem::take(&mut self.gaps);
        have.retain(|pool, _| !gaps.contains(pool));
        have
    }

    /// Begins the time to the next report. True if there are gaps to be asked about.
    pub(crate) fn begin_report(&mut self) -> bool {
        self.is_asked = false;
        !self.gaps.is_empty()
    }

    /// Whether the monitor is to be told which revisions this OSD acts on.
    pub(crate) fn is_saw_due(&self) -> bool {
        self.is_saw_due
    }

    /// The same, for the monitor: it knows then.
    pub(crate) fn take_saw(&mut self) -> BTreeMap<PoolId, MapRevision> {
        self.is_saw_due = false;
        self.revisions()
    }

    // ---- settings

    /// Takes the settings that differ from their defaults.
    pub(crate) fn set_settings(&mut self, changed: Changed) {
        self.settings = changed;
    }

    /// A span of time that operators may set.
    pub(crate) fn span(&self, setting: Setting) -> Duration {
        setting.span_in(&self.settings)
    }

    /// The level of the log, if it is set.
    pub(crate) fn log_level(&self) -> Option<Level> {
        Setting::log_level_in(&self.settings)
    }
}

/// Whether an entry names a PG that its pool can have: the map is text from another process.
pub(crate) fn is_sound(pg: PgId, known: &PoolMap) -> bool {
    let count = known.pool.pg_count;
    let is_count_sound = count.is_power_of_two() && count <= PG_COUNT_MAX;
    is_count_sound && pg.pool == known.pool.id && pg.number < count
}
