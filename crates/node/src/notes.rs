//! The copy of the cluster's state that an OSD keeps in its store: by it a map that is older than
//! what this OSD has seen (a state store restored from a backup) is recognised.
//!
//! PG entries are kept apart, one note a PG: see `pg::Record`.

use std::collections::{BTreeMap, BTreeSet};

use base::{ClusterId, Duration, MapRevision, PoolId, SessionId};
use blockstore::NOTE_SIZE_MAX;
use cluster::copy::StateCopy;
use cluster::map::{ClusterMap, FenceRange, OsdInfo, Pool};
use serde::{Deserialize, Serialize};

use crate::node::LEASE_DEFAULT;

/// The note under `NoteKey::Cluster`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ClusterNote {
    /// Which cluster.
    pub cluster: ClusterId,
    /// All pools.
    pub pools: Vec<PoolNote>,
    /// All OSDs; left out where the note would grow too long.
    #[serde(default)]
    pub osds: Vec<OsdInfo>,
    /// The longest span of a lease that any run has given, in milliseconds; left out where it is
    /// the usual one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lease_ms: Option<u64>,
    /// What else the cluster remembers, as the monitor told; a part of it is left out where the note
    /// would grow too long, and that is noted.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub state: StateCopy,
}

fn is_empty(copy: &StateCopy) -> bool {
    copy.change == 0
}

/// What is left out of a long note, in this order: first what ends by itself.
const LEFT_OUT: [&str; 3] = ["session/", "image/", ""];

/// A pool without its entries.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolNote {
    /// Its rules.
    pub pool: Pool,
    /// The revision seen.
    pub revision: MapRevision,
    /// Sessions that are refused for ever; left out where the note would grow too long.
    #[serde(default)]
    pub fences: BTreeSet<SessionId>,
    /// And whole ranges of them; left out with those.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fence_ranges: Vec<FenceRange>,
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
        let pools = map.pools.values().map(|known| PoolNote {
            pool: known.pool.clone(),
            revision: known.revision,
            fences: known.fences.clone(),
            fence_ranges: known.fence_ranges.clone(),
        });
        let lease_ms = (lease > LEASE_DEFAULT).then_some(lease.as_millis());
        let osds = map.osds.values().cloned().collect();
        let state = StateCopy::default();
        ClusterNote { cluster, pools: pools.collect(), osds, lease_ms, state }
    }

    /// The note's bytes, at most [`NOTE_SIZE_MAX`]: what is least needed is left out first.
    pub fn encode(mut self) -> Vec<u8> {
        let mut bytes = self.to_json();
        if bytes.len() > NOTE_SIZE_MAX {
            self.osds.clear();
            bytes = self.to_json();
        }
        for kind in LEFT_OUT {
            if bytes.len() > NOTE_SIZE_MAX && self.state.change > 0 {
                self.state.leave_out(kind);
                bytes = self.to_json();
            }
        }
        if bytes.len() > NOTE_SIZE_MAX {
            for pool in &mut self.pools {
                pool.fences.clear();
                pool.fence_ranges.clear();
            }
            bytes = self.to_json();
        }
        while bytes.len() > NOTE_SIZE_MAX {
            self.pools.pop().expect("an empty note is short");
            bytes = self.to_json();
        }
        bytes
    }

    fn to_json(&self) -> Vec<u8> {
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
