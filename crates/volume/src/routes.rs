//! Decides where to send a part: according to the map, and to newer PG entries that OSDs sent before the map
//! arrived.
//!
//! Invariants
//!   1. An entry from an OSD is kept only while its epoch is higher than the map's.
//!   2. A request carries the revision of the map, never that of an entry from an OSD: such an entry contains
//!      no fences and no entries of other PGs.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::hash::{hash_range_of_pg, pg_of_hash, stripe_hash};
use base::{Epoch, MapRevision, OsdId, PgId, PoolId, Position, SessionId, StripeIndex};
use cluster::map::{ClusterMap, ImageInfo, MapDelta, MapGap, OsdInfo, Pool, PoolMap};
use format::wire::{Member, PgEntry};

use crate::cut::StripeSize;

/// The target of a part; independent of the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The stripe, or the objects, with this hash.
    Hash(u32),
    /// The whole PG with this number.
    Pg(u32),
}

/// The current primary of a PG, or the member that holds a part, and what a request to it must carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    pub(crate) pg: PgId,
    pub(crate) osd: OsdId,
    pub(crate) epoch: Epoch,
    pub(crate) revision: MapRevision,
}

/// The map, and newer PG entries that OSDs sent.
#[derive(Default)]
pub(crate) struct Routes {
    map: ClusterMap,
    told: BTreeMap<PgId, PgEntry>,
}

impl Routes {
    /// Returns the route to `target`; `None` while the target has no known primary.
    pub(crate) fn find(&self, pool: PoolId, target: Target) -> Option<Route> {
        let map = self.map.pools.get(&pool)?;
        let pg = pg_of(map, target);
        let entry = self.entry(map, pg)?;
        let osd = entry.primary_osd().filter(|osd| self.map.osds.contains_key(osd))?;
        Some(Route { pg, osd, epoch: entry.epoch, revision: map.revision })
    }

    /// Returns the route of a direct read of a range, in bytes within the stripe: to the acting member that
    /// holds the data part; `None` if the pool keeps no parity, the range covers several parts, or the member
    /// is the primary or not up.
    pub(crate) fn find_part(
        &self,
        pool: PoolId,
        target: Target,
        range: &Range<u32>,
    ) -> Option<Route> {
        let map = self.map.pools.get(&pool)?;
        let (scheme, block_bytes) = (map.pool.scheme, map.pool.block_size.bytes());
        let part = u64::from(range.start) / block_bytes;
        let is_within = u64::from(range.end) <= (part + 1) * block_bytes;
        if !is_within {
            return None;
        }
        let position = Position::new(u8::try_from(part).ok()?);
        let position = position.filter(|position| scheme.has_data_part(*position))?;
        let pg = pg_of(map, target);
        let entry = self.entry(map, pg)?;
        let member = entry.member_at(position).filter(|member| self.is_up(member))?;
        let is_other = entry.primary_osd().is_some_and(|primary| primary != member.osd);
        let route = Route { pg, osd: member.osd, epoch: entry.epoch, revision: map.revision };
        is_other.then_some(route)
    }

    /// Returns the size in bytes of the data parts of a stripe, if a read of several parts is faster in
    /// pieces, each read where it lies: the pool keeps parity, and all members with data are up. (Where one
    /// is away, the primary reads everything once, for all pieces.)
    pub(crate) fn part_bytes(&self, pool: PoolId, target: Target) -> Option<u64> {
        let map = self.map.pools.get(&pool)?;
        let scheme = map.pool.scheme;
        if scheme.is_whole_everywhere() {
            return None;
        }
        let entry = self.entry(map, pg_of(map, target))?;
        let is_up = |position: Position| {
            entry.member_at(position).is_some_and(|member| self.is_up(&member))
        };
        let mut positions = Position::all().take_while(|position| scheme.has_data(*position));
        positions.all(is_up).then_some(map.pool.block_size.bytes())
    }

    fn is_up(&self, member: &Member) -> bool {
        let osd = self.map.osds.get(&member.osd);
        osd.is_some_and(|osd| osd.up && osd.incarnation == member.incarnation)
    }

    /// Returns the PG of `target`; `None` without a map.
    pub(crate) fn pg(&self, pool: PoolId, target: Target) -> Option<PgId> {
        self.map.pools.get(&pool).map(|map| pg_of(map, target))
    }

    /// Returns the epoch of a PG's newest known entry.
    pub(crate) fn epoch(&self, pg: PgId) -> Option<Epoch> {
        let map = self.map.pools.get(&pg.pool)?;
        self.entry(map, pg).map(|entry| entry.epoch)
    }

    fn entry<'a>(&'a self, map: &'a PoolMap, pg: PgId) -> Option<&'a PgEntry> {
        let known = map.pgs.get(pg.number as usize)?;
        Some(self.told.get(&pg).filter(|told| told.epoch > known.epoch).unwrap_or(known))
    }

    /// Stores the entry that came with a refusal if its epoch is higher than the known one. Returns whether
    /// the entry was stored.
    pub(crate) fn learn(&mut self, entry: PgEntry) -> bool {
        let newer = self.epoch(entry.pg).is_some_and(|known| known < entry.epoch);
        if newer {
            self.told.insert(entry.pg, entry);
        }
        newer
    }

    /// Applies a change to the map, and drops entries from OSDs that the map has caught up with.
    pub(crate) fn apply(&mut self, delta: MapDelta) -> Result<(), MapGap> {
        let result = self.map.apply(delta);
        let map = &self.map;
        self.told.retain(|pg, told| map.pg(*pg).is_some_and(|known| known.epoch < told.epoch));
        result
    }

    /// Returns the known revisions, by pool.
    pub(crate) fn revisions(&self) -> BTreeMap<PoolId, MapRevision> {
        self.map.pools.iter().map(|(id, map)| (*id, map.revision)).collect()
    }

    /// Returns the size of a pool's stripes; `None` without a valid map of the pool.
    pub(crate) fn stripe_size(&self, pool: PoolId) -> Option<StripeSize> {
        StripeSize::of(self.pool(pool)?)
    }

    /// Returns the hashes of the PG that has this one, both ends included; `None` without a map.
    pub(crate) fn hashes_beside(&self, pool: PoolId, hash: u32) -> Option<(u32, u32)> {
        let pg_count = self.map.pools.get(&pool)?.pool.pg_count;
        Some(hash_range_of_pg(pg_of_hash(hash, pg_count), pg_count))
    }

    /// Returns the numbers of all PGs of a pool, those of one primary together, at most so many of them. PGs
    /// without a known primary are apart.
    pub(crate) fn pgs_by_osd(&self, pool: PoolId, pgs_max: usize) -> Vec<Vec<u32>> {
        let Some(map) = self.map.pools.get(&pool) else { return Vec::new() };
        let mut by_osd: BTreeMap<OsdId, Vec<u32>> = BTreeMap::new();
        let mut groups = Vec::new();
        for number in 0..map.pool.pg_count {
            match self.find(pool, Target::Pg(number)) {
                Some(route) => by_osd.entry(route.osd).or_default().push(number),
                None => groups.push(vec![number]),
            }
        }
        groups.extend(by_osd.values().flat_map(|pgs| pgs.chunks(pgs_max).map(<[u32]>::to_vec)));
        groups
    }

    pub(crate) fn pool(&self, pool: PoolId) -> Option<&Pool> {
        self.map.pools.get(&pool).map(|map| &map.pool)
    }

    pub(crate) fn osd(&self, osd: OsdId) -> Option<&OsdInfo> {
        self.map.osds.get(&osd)
    }

    pub(crate) fn is_fenced(&self, pool: PoolId, session: SessionId) -> bool {
        self.map.pools.get(&pool).is_some_and(|map| map.is_fenced(session))
    }

    /// Returns the numbers of all PGs that may hold a stripe of the image; `None` without a map.
    pub(crate) fn pgs_of(&self, image: &ImageInfo) -> Option<BTreeSet<u32>> {
        let map = self.map.pools.get(&image.pool)?;
        let pg_count = map.pool.pg_count;
        let stripe_count = image.size.div_ceil(StripeSize::of(&map.pool)?.bytes());
        if stripe_count >= u64::from(pg_count) * 4 {
            return Some((0..pg_count).collect());
        }
        let pg = |stripe| pg_of_hash(stripe_hash(image.seed, StripeIndex::new(stripe)), pg_count);
        Some((0..stripe_count as u32).map(pg).collect())
    }
}

fn pg_of(map: &PoolMap, target: Target) -> PgId {
    let number = match target {
        Target::Hash(hash) => pg_of_hash(hash, map.pool.pg_count),
        Target::Pg(number) => number,
    };
    PgId { pool: map.pool.id, number }
}
