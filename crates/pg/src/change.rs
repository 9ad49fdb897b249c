//! A change of a block on its way from the primary to every store: as a message, and as a request.
//!
//! Invariants
//!   1. Version, block and laziness are the same at every member. What is put there is too, unless
//!      positions hold different things.
//!   2. A request that leaves for the store carries one checksum for each unit of data, and a deletion is
//!      never lazy.

use base::{BlockSize, PgId, UNIT_SIZE, Version};
use blockstore::{BlockKey, Request as StoreRequest};
use format::wire::{Change, PeerBody};

/// The part of a change that is the same at every member.
#[derive(Clone, Copy)]
pub struct ChangeHeader {
    pub pg: PgId,
    pub key: BlockKey,
    pub block_size: BlockSize,
    pub version: Version,
    /// It may be answered before it is durable.
    pub lazy: bool,
}

impl ChangeHeader {
    /// The message to a member, with the primary's mark.
    pub fn to_message(self, mark: Version, change: Change) -> PeerBody {
        let ChangeHeader { key, block_size, version, lazy, .. } = self;
        assert!(mark < version);
        PeerBody::Write { version, mark, key, block_size, lazy, change }
    }

    /// As this OSD's store is told. Requires: the change was checked, by [`super::Shape::check_op`] or,
    /// where it came from another member, like it.
    pub fn into_store_request(self, change: Change) -> StoreRequest {
        let ChangeHeader { pg, key, block_size, version, lazy } = self;
        match change {
            Change::Write { offset, checksums, data } => {
                assert!(checksums.len() as u64 * UNIT_SIZE == data.len() as u64);
                assert!(u64::from(offset) + data.len() as u64 <= block_size.bytes());
                StoreRequest::Write { pg, key, block_size, version, offset, checksums, data, lazy }
            }
            Change::Zero { offset, length } => {
                assert!(u64::from(offset) + u64::from(length) <= block_size.bytes());
                StoreRequest::Zero { pg, key, block_size, version, offset, length, lazy }
            }
            Change::Delete => {
                assert!(!lazy);
                StoreRequest::Delete { pg, key, version }
            }
        }
    }
}

/// How much data a change brings.
pub fn data_size_bytes(change: &Change) -> u64 {
    match change {
        Change::Write { data, .. } => data.len() as u64,
        Change::Zero { .. } | Change::Delete => 0,
    }
}
