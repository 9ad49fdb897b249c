//! The cluster map: the description of the cluster that OSDs and clients hold, and how deltas update it.
//!
//! Invariants
//!   1. A pool's revision grows by one with each change of that pool's map; a revision determines the whole
//!      map of the pool.
//!   2. A receiver applies whole deltas in order; if one does not follow its map, it asks for a snapshot.
//!   3. An OSD table entry is replaced only by one with a higher `revision`.

use std::collections::{BTreeMap, BTreeSet};

use base::hash::NameHash;
use base::planted::{self, Bug};
use base::{
    BlockSize, ClusterId, ImageId, Incarnation, KIB, MapRevision, OsdId, PgId, PoolId, Scheme,
    SessionId, SessionRange, UNIT_SIZE, range_of_session,
};
use format::engine::Compression;
use format::wire::PgEntry;
use serde::{Deserialize, Serialize};

/// The description of the cluster that an OSD or a client holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ClusterMap {
    /// The OSDs, with their addresses.
    pub osds: BTreeMap<OsdId, OsdInfo>,
    /// One map per pool.
    pub pools: BTreeMap<PoolId, PoolMap>,
}

/// Maximum number of addresses that a daemon may announce, in each of its lists.
pub const ADDRESS_COUNT_MAX: usize = 8;
/// Maximum length of an address, in bytes: enough for any IP address with its port, and any socket path.
const ADDRESS_SIZE_MAX: usize = 128;

/// Whether a daemon may announce this list of addresses. The rules bound the length of messages that list
/// many daemons.
pub fn may_announce(addresses: &[String]) -> bool {
    let is_plain = |letter: char| !letter.is_control() && !matches!(letter, '"' | '\\');
    let fits = |text: &String| text.len() <= ADDRESS_SIZE_MAX && text.chars().all(is_plain);
    addresses.len() <= ADDRESS_COUNT_MAX && addresses.iter().all(fits)
}

/// The public description of an OSD.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OsdInfo {
    /// The OSD's id.
    pub id: OsdId,
    /// Grows with each change of this entry.
    pub revision: u64,
    /// Addresses where the OSD listens: `tcp:HOST:PORT` or `unix:PATH`; one or more for each network.
    pub addresses: Vec<String>,
    /// Addresses where other OSDs reach this OSD, if OSDs have a network of their own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peer_addresses: Vec<String>,
    /// The incarnation of the OSD's newest process.
    pub incarnation: Incarnation,
    /// Whether the OSD's process is connected to the monitor.
    pub up: bool,
    /// Whether the planner assigns PGs to the OSD.
    #[serde(rename = "in")]
    pub in_cluster: bool,
}

impl OsdInfo {
    /// Returns the addresses at which other OSDs try to reach this OSD, in this order: the network between
    /// OSDs first.
    pub fn addresses_for_peers(&self) -> Vec<&String> {
        self.peer_addresses.iter().chain(&self.addresses).collect()
    }

    /// Returns the index of the address that the OSD `from` tries first, so that pairs of OSDs are spread
    /// over networks of equal preference.
    pub fn first_address_from(&self, from: OsdId) -> usize {
        let preferred = match self.peer_addresses.len() {
            0 => self.addresses.len(),
            count => count,
        };
        (self.id.get() as usize + from.get() as usize) % preferred.max(1)
    }
}

/// A pool: redundancy and placement rules.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "PoolFields", into = "PoolFields")]
pub struct Pool {
    /// The pool's id; never reused.
    pub id: PoolId,
    /// The pool's name, unique in the cluster.
    pub name: String,
    /// How the pool survives the loss of members.
    pub scheme: Scheme,
    /// Minimum number of members for a PG to acknowledge writes.
    pub min_size: u32,
    /// Number of PGs: a power of two.
    pub pg_count: u32,
    /// The failure domain: two members of a PG must not share one.
    pub failure_domain: FailureDomain,
    /// Size of the block that each member stores of a stripe; cannot be changed later.
    pub block_size: BlockSize,
    /// What the pool keeps; cannot be changed later.
    pub kind: PoolKind,
}

/// What a pool keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PoolKind {
    /// Blocks of volumes.
    Block,
    /// Objects: see `docs/internals/objects.md`.
    Object {
        /// The number of shards, by the top bits of the objects' hashes: a power of two, at least `pg_count`
        /// and at most [`SHARD_COUNT_MAX`].
        shards: u32,
        /// How the names of its objects become hashes.
        names: NameHash,
        /// How each OSD compresses the pool's records.
        compression: Compression,
    },
}

/// The largest number of shards of a pool: a shard has two bytes in the keys of its records.
pub const SHARD_COUNT_MAX: u32 = 65_536;
/// The largest block of a pool of objects, in bytes: a journal entry has up to four blocks in parts.
pub const OBJECT_BLOCK_BYTES_MAX: u64 = 128 * KIB;

impl Pool {
    /// Whether the pool keeps objects, and no volumes.
    pub fn has_objects(&self) -> bool {
        matches!(self.kind, PoolKind::Object { .. })
    }

    /// Returns the number of bytes of data in a stripe: the maximum that one client operation may cover.
    pub fn stripe_bytes(&self) -> u64 {
        self.scheme.stripe_bytes(self.block_size)
    }

    /// Returns the preferred size and alignment of operations, a power of two. With copies: one unit. With
    /// parity: a stripe, because a write of a whole stripe reads no old data, or a block if the stripe size
    /// is not a power of two.
    pub fn optimal_io_bytes(&self) -> u64 {
        let stripe = self.stripe_bytes();
        match (self.scheme.is_whole_everywhere(), stripe.is_power_of_two()) {
            (true, _) => UNIT_SIZE,
            (false, true) => stripe,
            (false, false) => self.block_size.bytes(),
        }
    }
}

/// The fields of a pool as they are written. Those of a pool of blocks are the ones that there were before
/// pools of objects. A pool of objects has no `scheme`, but a `redundancy`: older programs need a scheme, so
/// they refuse it, instead of taking it for a pool of blocks.
#[derive(Serialize, Deserialize)]
struct PoolFields {
    id: PoolId,
    name: String,
    /// Earlier versions wrote the number of copies as `replicas`.
    #[serde(default, alias = "replicas", skip_serializing_if = "Option::is_none")]
    scheme: Option<Scheme>,
    min_size: u32,
    pg_count: u32,
    failure_domain: FailureDomain,
    block_size: BlockSize,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kind: Option<Kind>,
    /// Of a pool of objects: its scheme.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    redundancy: Option<Scheme>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shards: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    compression: Option<Compression>,
}

/// The name of a pool's kind.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Block,
    Object,
    /// Objects with grouped names. Programs that do not know these refuse the pool: they would look for its
    /// objects at other places.
    Grouped,
}

impl TryFrom<PoolFields> for Pool {
    type Error = String;

    fn try_from(fields: PoolFields) -> Result<Pool, String> {
        let missing = |name: &str| format!("missing field `{name}`");
        let (scheme, kind) = match fields.kind {
            None | Some(Kind::Block) => {
                (fields.scheme.ok_or_else(|| missing("scheme"))?, PoolKind::Block)
            }
            Some(kind @ (Kind::Object | Kind::Grouped)) => {
                let scheme = fields.redundancy.ok_or_else(|| missing("redundancy"))?;
                let shards = fields.shards.ok_or_else(|| missing("shards"))?;
                let compression = fields.compression.ok_or_else(|| missing("compression"))?;
                let names = match kind {
                    Kind::Grouped => NameHash::Grouped,
                    Kind::Block | Kind::Object => NameHash::Plain,
                };
                (scheme, PoolKind::Object { shards, names, compression })
            }
        };
        let PoolFields { id, name, min_size, pg_count, failure_domain, block_size, .. } = fields;
        Ok(Pool { id, name, scheme, min_size, pg_count, failure_domain, block_size, kind })
    }
}

impl From<Pool> for PoolFields {
    fn from(pool: Pool) -> PoolFields {
        let Pool { id, name, scheme, min_size, pg_count, failure_domain, block_size, kind } = pool;
        let fields = PoolFields {
            id,
            name,
            scheme: None,
            min_size,
            pg_count,
            failure_domain,
            block_size,
            kind: None,
            redundancy: None,
            shards: None,
            compression: None,
        };
        match kind {
            PoolKind::Block => PoolFields { scheme: Some(scheme), ..fields },
            PoolKind::Object { shards, names, compression } => PoolFields {
                kind: Some(match names {
                    NameHash::Plain => Kind::Object,
                    NameHash::Grouped => Kind::Grouped,
                }),
                redundancy: Some(scheme),
                shards: Some(shards),
                compression: Some(compression),
                ..fields
            },
        }
    }
}

/// What the members of a PG must not share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureDomain {
    /// A host.
    Host,
    /// An OSD.
    Osd,
}

/// One pool's map at one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PoolMap {
    /// The pool's rules.
    pub pool: Pool,
    /// Incremented with each change of this map.
    pub revision: MapRevision,
    /// One entry per PG, by number.
    pub pgs: Vec<PgEntry>,
    /// Sessions that are permanently refused.
    pub fences: BTreeSet<SessionId>,
    /// Ranges of sessions that are permanently refused, in order.
    pub fence_ranges: Vec<SessionRange>,
}

impl PoolMap {
    /// Whether a session is permanently refused.
    pub fn is_fenced(&self, session: SessionId) -> bool {
        self.fences.contains(&session) || is_in_ranges(&self.fence_ranges, session)
    }

    /// Returns all sessions that are permanently refused, in order.
    pub fn fenced_ranges(&self) -> Vec<SessionRange> {
        let single = self.fences.iter().filter(|it| !is_in_ranges(&self.fence_ranges, **it));
        let single = single.map(|session| (*session, *session));
        let mut ranges: Vec<SessionRange> =
            single.chain(self.fence_ranges.iter().copied()).collect();
        ranges.sort_unstable();
        ranges
    }
}

/// Whether a session is in one of these ranges, which are in order.
pub fn is_in_ranges(ranges: &[SessionRange], session: SessionId) -> bool {
    range_of_session(ranges, session).is_some()
}

/// A change of the map: everything in it is committed, and nothing before it is missing.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct MapDelta {
    /// Changed OSD entries, each complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub osds: Vec<OsdInfo>,
    /// OSDs that were removed, including ones removed long ago.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_osds: Vec<OsdId>,
    /// Changed pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolDelta>,
    /// Removed pools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed_pools: Vec<PoolId>,
}

/// A change of one pool's map.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolDelta {
    /// The revision that this change applies to; 0: a snapshot, which needs no earlier map.
    pub since: MapRevision,
    /// The revision of the map after this change.
    pub revision: MapRevision,
    /// The pool's rules, complete.
    pub pool: Pool,
    /// Changed entries; in a snapshot all of them.
    pub pgs: Vec<PgEntry>,
    /// Added fences; in a snapshot all of them.
    pub fences: Vec<SessionId>,
    /// All ranges of fences, if one was added; each earlier range lies in one of them. Otherwise empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fence_ranges: Vec<SessionRange>,
}

/// A delta does not apply to the receiver's map: the receiver must ask for a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MapGap {
    /// The pool.
    pub pool: PoolId,
}

/// The description of an image that its clients receive.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ImageInfo {
    /// The image's id; never reused.
    pub id: ImageId,
    /// The image's name.
    pub name: String,
    /// The pool that holds the image's blocks.
    pub pool: PoolId,
    /// Size in bytes; a multiple of 4 KiB.
    pub size: u64,
    /// The seed of the hash of the image's stripes.
    pub seed: ImageId,
    /// Older layers, newest first.
    #[serde(default)]
    pub parents: Vec<ImageId>,
    /// Whether it holds data of a gateway's objects: only gateways remove it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gateway: bool,
}

impl ClusterMap {
    /// Returns the entry of a PG, if its pool is in the map.
    pub fn pg(&self, pg: PgId) -> Option<&PgEntry> {
        self.pools.get(&pg.pool)?.pgs.get(pg.number as usize)
    }

    /// Applies a delta; a pool whose delta does not apply is skipped and returned as the error.
    pub fn apply(&mut self, delta: MapDelta) -> Result<(), MapGap> {
        for osd in delta.osds {
            if self.osds.get(&osd.id).is_none_or(|known| known.revision < osd.revision) {
                self.osds.insert(osd.id, osd);
            }
        }
        for osd in delta.removed_osds {
            self.osds.remove(&osd);
        }
        for pool in delta.removed_pools {
            self.pools.remove(&pool);
        }
        let mut result = Ok(());
        for change in delta.pools {
            if let Err(gap) = self.apply_pool(change) {
                result = Err(gap);
            }
        }
        result
    }

    fn apply_pool(&mut self, delta: PoolDelta) -> Result<(), MapGap> {
        let id = delta.pool.id;
        let known = self.pools.get(&id).map_or(MapRevision::ZERO, |map| map.revision);
        if delta.revision <= known {
            return Ok(());
        }
        if delta.since == MapRevision::ZERO {
            if delta.pgs.len() != delta.pool.pg_count as usize {
                return Err(MapGap { pool: id });
            }
            let (fences, fence_ranges) = match planted::on(Bug::FencesLostByRestart) {
                true => (BTreeSet::new(), Vec::new()),
                false => (delta.fences.into_iter().collect(), delta.fence_ranges),
            };
            let (pool, revision, pgs) = (delta.pool, delta.revision, delta.pgs);
            let map = PoolMap { pool, revision, pgs, fences, fence_ranges };
            self.pools.insert(id, map);
            return Ok(());
        }
        let Some(map) = self.pools.get_mut(&id).filter(|map| map.revision == delta.since) else {
            return Err(MapGap { pool: id });
        };
        if delta.pgs.iter().any(|entry| entry.pg.number as usize >= map.pgs.len()) {
            return Err(MapGap { pool: id });
        }
        map.pool = delta.pool;
        map.revision = delta.revision;
        for entry in delta.pgs {
            let slot = entry.pg.number as usize;
            map.pgs[slot] = entry;
        }
        map.fences.extend(delta.fences);
        if !delta.fence_ranges.is_empty() {
            map.fence_ranges = delta.fence_ranges;
            let PoolMap { fences, fence_ranges, .. } = map;
            fences.retain(|session| !is_in_ranges(fence_ranges, *session));
        }
        Ok(())
    }
}

/// The cluster's identity and how to reach its monitors: `cluster.toml`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterFile {
    /// The cluster's id.
    pub cluster: ClusterId,
    /// Addresses of the monitors.
    pub monitors: Vec<String>,
    /// Where the monitors keep the state: in etcd (`etcd:URL,URL`), or in a file of the only
    /// monitor (`embedded`, the default).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Networks on which daemons listen, such as `10.0.0.0/8` or `fd00::/8`; connections are spread over
    /// them. Empty: on this machine only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<String>,
    /// Networks between OSDs, tried before the others. Empty: the same as `networks`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub osd_networks: Vec<String>,
    /// This host's name in the OSD tree; OSDs with the same host name share a failure domain.
    /// `None`: the name that the system reports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pools as they are written. A change here is a change of what older programs can read.
    const BLOCK_POOL: &str = concat!(
        r#"{"id":1,"name":"p","scheme":"ec 4+2","min_size":5,"pg_count":64,"failure_domain":"host","#,
        r#""block_size":131072}"#
    );
    const OBJECT_POOL: &str = concat!(
        r#"{"id":2,"name":"kv","min_size":2,"pg_count":64,"failure_domain":"osd","block_size":65536,"#,
        r#""kind":"object","redundancy":"3 copies","shards":256,"compression":"lz4hc"}"#
    );

    fn pool(text: &str) -> Result<Pool, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    #[test]
    fn pools_are_written_as_ever_and_read_back() {
        let blocks = pool(BLOCK_POOL).unwrap();
        assert_eq!((blocks.kind, blocks.has_objects()), (PoolKind::Block, false));
        assert_eq!(serde_json::to_string(&blocks).unwrap(), BLOCK_POOL);
        let objects = pool(OBJECT_POOL).unwrap();
        let kind = PoolKind::Object {
            shards: 256,
            names: NameHash::Plain,
            compression: Compression::Lz4High,
        };
        assert_eq!((objects.kind, objects.scheme), (kind, Scheme::Copies { count: 3 }));
        assert_eq!(serde_json::to_string(&objects).unwrap(), OBJECT_POOL);
        let text = OBJECT_POOL.replace(r#""kind":"object""#, r#""kind":"grouped""#);
        let grouped = pool(&text).unwrap();
        assert!(matches!(grouped.kind, PoolKind::Object { names: NameHash::Grouped, .. }));
        assert_eq!(serde_json::to_string(&grouped).unwrap(), text);
        let old = BLOCK_POOL.replace(r#""scheme":"ec 4+2""#, r#""replicas":3"#);
        assert_eq!(pool(&old).unwrap().scheme, Scheme::Copies { count: 3 });
    }

    #[test]
    fn fenced_ranges_are_in_order_and_apart() {
        let session = SessionId::new;
        let mut map = PoolMap {
            pool: pool(OBJECT_POOL).unwrap(),
            revision: MapRevision::new(1),
            pgs: Vec::new(),
            fences: [2, 5, 9, 20].map(session).into(),
            fence_ranges: vec![(session(4), session(7)), (session(11), session(12))],
        };
        let fenced = [(2, 2), (4, 7), (9, 9), (11, 12), (20, 20)];
        assert_eq!(
            map.fenced_ranges(),
            fenced.map(|(first, last)| (session(first), session(last)))
        );
        for number in 1..=21 {
            let is_in = is_in_ranges(&map.fenced_ranges(), session(number));
            assert_eq!(is_in, map.is_fenced(session(number)), "{number}");
        }
        (map.fences, map.fence_ranges) = Default::default();
        assert_eq!(map.fenced_ranges(), []);
    }

    /// A pool as programs read it that know no pools of objects.
    #[derive(Debug, Deserialize)]
    struct EarlierPool {
        #[serde(alias = "replicas")]
        scheme: Scheme,
    }

    #[test]
    fn a_program_that_knows_no_objects_refuses_a_pool_of_them() {
        let read = |text| serde_json::from_str::<EarlierPool>(text);
        assert_eq!(read(BLOCK_POOL).unwrap().scheme, pool(BLOCK_POOL).unwrap().scheme);
        assert!(read(OBJECT_POOL).unwrap_err().to_string().contains("missing field `scheme`"));
    }

    #[test]
    fn a_pool_of_objects_needs_all_its_fields() {
        for field in
            [r#""redundancy":"3 copies","#, r#""shards":256,"#, r#","compression":"lz4hc""#]
        {
            let why = pool(&OBJECT_POOL.replace(field, "")).unwrap_err();
            assert!(why.starts_with("missing field"), "{field}: {why}");
        }
        for (right, wrong) in [("object", "file"), ("lz4hc", "gzip"), ("256", "-1")] {
            assert!(pool(&OBJECT_POOL.replace(right, wrong)).is_err(), "{wrong}");
        }
        assert!(pool(&OBJECT_POOL.replace(r#""kind":"object","#, "")).is_err());
    }

    fn osd(number: u32, addresses: &[&str], peer_addresses: &[&str]) -> OsdInfo {
        let texts = |list: &[&str]| list.iter().map(|text| (*text).to_string()).collect();
        OsdInfo {
            id: OsdId::new(number).expect("not 0"),
            revision: 1,
            addresses: texts(addresses),
            peer_addresses: texts(peer_addresses),
            incarnation: Incarnation::new(1),
            up: true,
            in_cluster: true,
        }
    }

    #[test]
    fn pairs_of_osds_spread_over_networks_that_are_alike() {
        let first = |info: &OsdInfo| {
            [2, 3, 4, 5].map(|from| {
                let index = info.first_address_from(OsdId::new(from).expect("not 0"));
                info.addresses_for_peers()[index].clone()
            })
        };
        assert_eq!(first(&osd(1, &["a", "b"], &[])), ["b", "a", "b", "a"]);
        assert_eq!(first(&osd(2, &["a", "b"], &[])), ["a", "b", "a", "b"]);
        // A network between OSDs comes before all others.
        assert_eq!(first(&osd(1, &["a", "b"], &["p"])), ["p"; 4]);
        assert_eq!(first(&osd(1, &["a"], &["p", "q"])), ["q", "p", "q", "p"]);
    }
}
