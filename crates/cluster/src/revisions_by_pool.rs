//! Encodes revisions by pool in a message as a list of pairs. In a JSON object the keys would be text, which
//! serde does not convert back to numbers inside a tagged enum.

use std::collections::BTreeMap;

use base::{MapRevision, PoolId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) fn serialize<S: Serializer>(
    revisions: &BTreeMap<PoolId, MapRevision>,
    to: S,
) -> Result<S::Ok, S::Error> {
    revisions.iter().collect::<Vec<_>>().serialize(to)
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<BTreeMap<PoolId, MapRevision>, D::Error> {
    Ok(Vec::<(PoolId, MapRevision)>::deserialize(from)?.into_iter().collect())
}
