//! Tests of requests over a pool in memory. See `memory.rs` for what the world does to them.

mod basics;
mod history;
mod large;
mod lists;
mod multipart;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::memory::{Faults, MemoryDoor, Pool, Runner, Volumes};
use crate::{
    Bucket, Buckets, ByteRange, CannedAcl, ChecksumKind, ChecksumShape, Client, Completion,
    Conditions, Data, Expected, Kept, Key, Metadata, NamedPart, NewObject, NewPart, NewUpload,
    ObjectInfo, PartInfo, Result, Sealer, Settings, TagCondition, UploadId,
};

type Gateway = Arc<Buckets<MemoryDoor>>;

/// A pool and gateways, with wall clocks an hour apart.
struct World {
    pool: Arc<Pool>,
    runner: Runner,
    gateways: Vec<Gateway>,
    doors: Vec<Arc<MemoryDoor>>,
    volumes: Arc<Volumes>,
}

/// Longer bodies lie in containers.
const INLINE_MAX: u64 = 100;

impl World {
    fn new(seed: u64, gateways: u64, faults: Faults) -> World {
        let (pool, runner) = (Arc::new(Pool::default()), Runner::new(seed));
        let volumes = Arc::new(Volumes::default());
        let settings = Settings {
            data_pool: Some("data".into()),
            inline_max: INLINE_MAX,
            grace: Duration::ZERO,
            upload_dead: Duration::from_secs(3),
            part_size_min: 1000,
        };
        let door = |number: u64| {
            let ahead_us = (gateways - number) * 3_600_000_000;
            let door = MemoryDoor::new(pool.clone(), runner.clone(), ahead_us, faults);
            Arc::new(door.with_volumes(volumes.clone()))
        };
        let doors: Vec<_> = (0..gateways).map(door).collect();
        let gateway = |door: &Arc<MemoryDoor>| {
            Buckets::new(door.clone(), Sealer::new(b"the cluster's key"), settings.clone())
        };
        let gateways = doors.iter().map(gateway).collect();
        World { pool, runner, gateways, doors, volumes }
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
        kept: Kept::default(),
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
    let new = NewObject { length: Some(body.len() as u64), ..new_object(conditions) };
    let mut upload = gateway.begin_put(client, bucket.clone(), key(text), new).await?;
    upload.write(Bytes::copy_from_slice(body.as_bytes())).await?;
    upload.finish(Expected::default()).await
}

async fn new_bucket(gateway: &Gateway) -> Arc<Bucket> {
    let (client, private) = (Client::new(), CannedAcl::Private);
    let created = gateway.create_bucket(&client, "photos", "ann", private, Some(2)).await;
    created.expect("created")
}

/// Bytes that differ from unit to unit, and of which no unit has only zeros.
fn bytes_of(size: usize) -> Vec<u8> {
    (0..size).map(|at| (at / 4096 + at) as u8 | 1).collect()
}

async fn begin_upload(
    gateway: &Gateway,
    bucket: &Bucket,
    text: &str,
    (checksum, checksum_shape): (ChecksumKind, ChecksumShape),
) -> Result<UploadId> {
    let (owner, metadata) = ("ann".into(), Metadata::default());
    let new = NewUpload { owner, metadata, checksum, checksum_shape };
    gateway.begin_upload(&Client::new(), bucket, &key(text), new).await
}

/// The checksum of an upload of which nothing else is asked.
const OF_WHOLE: (ChecksumKind, ChecksumShape) = (ChecksumKind::Crc64Nvme, ChecksumShape::Whole);

/// Puts an object in parts, which are cut at these sizes.
async fn put_in_parts(
    gateway: &Gateway,
    bucket: &Bucket,
    text: &str,
    body: &[u8],
    part_size: usize,
    conditions: Conditions,
) -> Result<ObjectInfo> {
    let upload = begin_upload(gateway, bucket, text, OF_WHOLE).await?;
    let mut parts = Vec::new();
    for (at, bytes) in body.chunks(part_size).enumerate() {
        let number = at as u16 + 1;
        let part = put_part(gateway, bucket, text, (upload, number), bytes).await?;
        parts.push(NamedPart { number, etag: part.etag.to_string(), checksum: None });
    }
    let completion = Completion { parts, conditions, ..Completion::default() };
    gateway.complete_upload(&Client::new(), bucket, &key(text), upload, completion).await
}

async fn put_part(
    gateway: &Gateway,
    bucket: &Bucket,
    text: &str,
    part: (UploadId, u16),
    bytes: &[u8],
) -> Result<PartInfo> {
    let (size, kept) = (bytes.len() as u64, Kept::default());
    let new = NewPart { length: size, checksum: None, kept };
    let begun = gateway.begin_part(Client::new(), bucket, &key(text), part, new).await;
    let mut upload = begun?;
    upload.write(Bytes::copy_from_slice(bytes)).await?;
    upload.finish(Expected::default()).await
}

async fn put(gateway: &Gateway, bucket: &Arc<Bucket>, key: &str, body: &str) -> Result<ObjectInfo> {
    put_if(gateway, bucket, key, body, Conditions::default()).await
}

async fn get(gateway: &Gateway, bucket: &Bucket, text: &str) -> Result<String> {
    let bytes = get_range(gateway, bucket, text, None).await?;
    Ok(String::from_utf8(bytes).expect("text"))
}

async fn get_range(
    gateway: &Gateway,
    bucket: &Bucket,
    text: &str,
    range: Option<ByteRange>,
) -> Result<Vec<u8>> {
    let (conditions, kept) = (Conditions::default(), Kept::default());
    let found = gateway.get(bucket, &key(text), &conditions, range, kept).await?;
    match found.data {
        Data::None => panic!("the bytes were asked for"),
        Data::Inline(bytes) => Ok(bytes.to_vec()),
        Data::Stored(mut reader) => {
            let mut all = Vec::new();
            while let Some(bytes) = reader.next().await? {
                all.extend_from_slice(&bytes);
            }
            assert_eq!(all.len() as u64, found.range.end - found.range.start);
            Ok(all)
        }
    }
}

fn if_absent() -> Conditions {
    Conditions { if_none_match: Some(TagCondition::Any), ..Conditions::default() }
}
