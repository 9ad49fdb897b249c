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
//! | `change.rs`, `put.rs`, `delete.rs` | changes of objects |
//! | `get.rs`, `list.rs` | reads of objects |
//! | `digests.rs` | digests of bodies |
//! | `users.rs`, `sealer.rs` | users, their keys, and how secrets are encrypted |
//! | `access.rs` | who may do what |
//! | `memory.rs` | an index pool in memory, for tests |
//!
//! `docs/internals/buckets.md` has the formats and the rules.

pub mod access;
mod api;
pub mod buckets;
mod change;
mod core;
mod delete;
mod digests;
mod door;
mod failure;
mod get;
pub mod head;
pub mod list;
#[cfg(any(test, feature = "memory"))]
pub mod memory;
pub mod names;
mod put;
pub mod records;
mod sealer;
mod service;
#[cfg(test)]
mod tests;
mod users;
mod views;
mod waiting;

pub use access::{Action, may};
pub use api::{
    ANSWER_WITHIN, AccessKey, Bucket, ByteRange, CannedAcl, Checksum, ChecksumKind, Client,
    Conditions, ETag, Expected, Found, ListEntry, ListPage, ListRequest, Metadata, NewObject,
    ObjectInfo, SEND_WITHIN, TagCondition, User, Versioning,
};
pub use buckets::{BUCKETS_COUNT_MAX, check_bucket_name};
pub use change::{TRIED_FOR, TRIES_MAX};
pub use core::{READ_SLOW, Result, TASKS_MAX, TASKS_OF_PG_MAX};
pub use door::{Door, DoorError, Executed, ListQuery};
pub use failure::Failure;
pub use names::{
    BucketId, Group, IndexName, KEY_SIZE_MAX, Key, Locator, SPREAD_DEFAULT, SPREAD_MAX, Shards,
    VersionId, VersionStamp, place_of,
};
pub use put::{HEADERS_MAX, INLINE_BODY_MAX, USER_METADATA_MAX, Upload};
pub use sealer::{SealError, Sealer};
pub use service::Buckets;
pub use users::{KEYS_OF_USER_MAX, SECRET_AGE_MAX, check_user_name};
pub use views::{MARK_DEAD, MARK_RENEWED, MARK_WAIT, VIEW_AGE_MAX};
