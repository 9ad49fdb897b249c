//! Buckets of objects: what an S3 bucket is among the objects of an index pool. Without HTTP, without threads:
//! each request is an async function over a [`Door`], so that the simulator can run what the gateway runs, and
//! stop it between any two of its effects.
//!
//! | file | what |
//! |---|---|
//! | `api.rs`, `failure.rs` | what is asked, and what is answered |
//! | `door.rs` | what this crate asks of the world |
//! | `service.rs` | [`Buckets`]: all that the gateway calls |
//! | `names.rs`, `head.rs`, `records.rs` | formats: names of objects, heads of keys, their records |
//! | `core.rs` | what all requests share: tasks, limits, retries |
//! | `waiting.rs` | a result that is waited for, a fair queue, the first of two futures |
//! | `buckets.rs`, `views.rs` | buckets: create, look, delete, list; how old a view may be |
//! | `put.rs`, `get.rs`, `delete.rs`, `list.rs` | objects |
//! | `digests.rs` | digests of bodies |
//! | `users.rs`, `sealer.rs` | users, their keys, and how secrets are encrypted |
//! | `access.rs` | who may do what |
//! | `memory.rs` | an index pool in memory, for tests |
//!
//! `docs/internals/buckets.md` has the formats and the rules.

mod api;
mod door;
mod failure;
mod names;
mod service;

pub use api::{
    ANSWER_WITHIN, AccessKey, Bucket, ByteRange, CannedAcl, Checksum, ChecksumKind, Client,
    Conditions, ETag, Expected, Found, ListEntry, ListPage, ListRequest, Metadata, NewObject,
    ObjectInfo, SEND_WITHIN, TagCondition, User, Versioning,
};
pub use door::{Door, DoorError, Executed, ListQuery};
pub use failure::Failure;
pub use names::{
    BucketId, Group, IndexName, KEY_SIZE_MAX, Key, Locator, SPREAD_DEFAULT, SPREAD_MAX, Shards,
    VersionId, VersionStamp, place_of,
};
pub use service::{Buckets, Sealer, Upload};
