//! What an OSD notes of the map: by it a map that is older than what this OSD has seen (a state store
//! restored from a backup) is recognised.
//!
//! PG entries are kept apart, one note a PG: see `pg::Record`. The records of the state store, too: see
//! `state_log.rs`.

use std::collections::BTreeMap;

use base::{ClusterId, Duration, MapRevision, PoolId};
use cluster::map::{ClusterMap, Pool};
use serde::{Deserialize, Serialize};

use crate::node::LEASE_DEFAULT;

/// The note under `NoteKey::Cluster`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClusterNote {
    /// Which cluster.
    pub cluster: ClusterId,
    /// All pools.
    pub pools: Vec<PoolNote>,
    /// The longest span of a lease that any run has given, in milliseconds; left out where it is
    /// the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
}

/// A pool without its entries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolNote {
    /// Its rules.
    pub pool: Pool,
    /// The revision seen.
    pub revision: MapRevision,
}

impl ClusterNote {
    /// Keeps what was noted of pools of which this note's map is older than that, or has none: the
    /// map of a state store that went back in time does not erase what proves it.
    pub fn keep_newer(&mut self, noted: &BTreeMap<PoolId, PoolNote>) {
        let mut pools = noted.clone();
        for pool in std::mem::take(&mut self.pools) {
            let is_older =
                pools.get(&pool.pool.id).is_some_and(|noted| noted.revision > pool.revision);
            if !is_older {
                pools.insert(pool.pool.id, pool);
            }
        }
        self.pools = pools.into_values().collect();
    }

    /// What is worth keeping of a map.
    pub fn of(cluster: ClusterId, map: &ClusterMap, lease: Duration) -> ClusterNote {
        let pools = map.pools.values();
        let pools = pools
            .map(|known| PoolNote { pool: known.pool.clone(), revision: known.revision })
            .collect();
        let lease_ms = (lease > LEASE_DEFAULT).then_some(lease.as_millis());
        ClusterNote { cluster, pools, lease_ms }
    }

    /// The note's bytes. Limits on pools keep them far below those of a note.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data with text keys")
    }

    /// Reads what [`ClusterNote::encode`] wrote; the error says what is wrong.
    pub fn decode(bytes: &[u8]) -> Result<ClusterNote, String> {
        serde_json::from_slice(bytes).map_err(|error| error.to_string())
    }

    /// The longest span of a lease that any run has given.
    pub fn lease(&self) -> Duration {
        self.lease_ms.map_or(LEASE_DEFAULT, Duration::from_millis)
    }

    /// The pools by id.
    pub fn pools_by_id(self) -> BTreeMap<PoolId, PoolNote> {
        self.pools.into_iter().map(|pool| (pool.pool.id, pool)).collect()
    }
}
