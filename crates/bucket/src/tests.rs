//! Tests of requests over a pool in memory. See `memory.rs` for what the world does to them.

mod basics;
mod history;
mod lists;

use std::sync::Arc;

use bytes::Bytes;

use crate::memory::{Faults, MemoryDoor, Pool, Runner};
use crate::{
    Bucket, Buckets, ChecksumKind, Client, Conditions, Expected, Key, Metadata, NewObject,
    ObjectInfo, Result, Sealer, TagCondition,
};

type Gateway = Arc<Buckets<MemoryDoor>>;

/// A pool and gateways, with wall clocks an hour apart.
struct World {
    pool: Arc<Pool>,
    runner: Runner,
    gateways: Vec<Gateway>,
    doors: Vec<Arc<MemoryDoor>>,
}

impl World {
    fn new(seed: u64, gateways: u64, faults: Faults) -> World {
        let (pool, runner) = (Arc::new(Pool::default()), Runner::new(seed));
        let door = |number: u64| {
            let ahead_us = (gateways - number) * 3_600_000_000;
            Arc::new(MemoryDoor::new(pool.clone(), runner.clone(), ahead_us, faults))
        };
        let doors: Vec<_> = (0..gateways).map(door).collect();
        let gateway =
            |door: &Arc<MemoryDoor>| Buckets::new(door.clone(), Sealer::new(b"the cluster's key"));
        let gateways = doors.iter().map(gateway).collect();
        World { pool, runner, gateways, doors }
    }
}

fn key(text: &str) -> Key {
    Key::new(text).expect("a key")
}

fn new_object(conditions: Conditions) -> NewObject {
    NewObject {
        owner: "ann".into(),
        conditions,
        metadata: Metadata::default(),
        length: None,
        checksum: ChecksumKind::Crc64Nvme,
    }
}

async fn put_if(
    gateway: &Gateway,
    bucket: &Arc<Bucket>,
    text: &str,
    body: &str,
    conditions: Conditions,
) -> Result<ObjectInfo> {
    let client = Client::new();
    let new = new_object(conditions);
    let mut upload = gateway.begin_put(client, bucket.clone(), key(text), new).await?;
    upload.write(Bytes::copy_from_slice(body.as_bytes())).await?;
    upload.finish(Expected::default()).await
}

async fn put(gateway: &Gateway, bucket: &Arc<Bucket>, key: &str, body: &str) -> Result<ObjectInfo> {
    put_if(gateway, bucket, key, body, Conditions::default()).await
}

async fn get(gateway: &Gateway, bucket: &Bucket, text: &str) -> Result<String> {
    let found = gateway.get(bucket, &key(text), &Conditions::default(), None).await?;
    let bytes = found.inline.expect("inline");
    Ok(String::from_utf8(bytes.to_vec()).expect("text"))
}

fn if_absent() -> Conditions {
    Conditions { if_none_match: Some(TagCondition::Any), ..Conditions::default() }
}
