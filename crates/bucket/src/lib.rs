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
//! | `get.rs`, `large.rs`, `list.rs` | reads of objects |
//! | `multipart.rs`, `complete.rs`, `parts.rs` | uploads in parts |
//! | `containers.rs`, `storing.rs`, `strays.rs` | data that does not lie in the index: its places, and their names |
//! | `collector.rs` | what gives back data that no key names |
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
mod collector;
mod complete;
mod containers;
mod core;
mod delete;
mod digests;
mod door;
mod failure;
mod get;
pub mod head;
mod large;
pub mod list;
#[cfg(any(test, feature = "memory"))]
pub mod memory;
mod multipart;
pub mod names;
mod parts;
mod put;
pub mod records;
mod sealer;
mod service;
mod storing;
mod strays;
#[cfg(test)]
mod tests;
mod users;
mod views;
mod waiting;

pub use access::{Action, may};
pub use api::{
    ANSWER_WITHIN, AccessKey, Bucket, ByteRange, CannedAcl, Checksum, ChecksumKind, ChecksumShape,
    Client, Completion, Conditions, Data, ETag, Expected, Found, Kept, ListEntry, ListPage,
    ListRequest, Metadata, NamedPart, NewObject, NewPart, NewUpload, ObjectInfo, OpenUpload,
    PartInfo, SEND_WITHIN, Settings, TagCondition, UploadId, User, Versioning,
};
pub use buckets::{BUCKETS_COUNT_MAX, check_bucket_name};
pub use change::{TRIED_FOR, TRIES_MAX};
pub use core::{READ_SLOW, Result, TASKS_MAX, TASKS_OF_PG_MAX};
pub use door::{ContainerId, Door, DoorError, Executed, Layout, ListQuery, Piece, Session, UNIT};
pub use failure::Failure;
pub use large::DataReader;
pub use multipart::{PARTS_PAGE_MAX, PartUpload, UploadPage, UploadsRequest};
pub use names::{
    BucketId, Group, IndexName, KEY_SIZE_MAX, Key, Locator, SPREAD_DEFAULT, SPREAD_MAX, Shards,
    VersionId, VersionStamp, place_of,
};
pub use parts::{PART_SIZE_MIN, PARTS_SIZE_MAX};
pub use put::{
    BODY_MAX, HEADERS_MAX, INLINE_BODY_DEFAULT, INLINE_BODY_MAX, USER_METADATA_MAX, Upload,
};
pub use sealer::{SealError, Sealer};
pub use service::Buckets;
pub use users::{KEYS_OF_USER_MAX, SECRET_AGE_MAX, check_user_name};
pub use views::{MARK_DEAD, MARK_RENEWED, MARK_WAIT, VIEW_AGE_MAX};
