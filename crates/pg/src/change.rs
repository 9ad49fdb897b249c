//! A change to a block on its way from the primary to every store: as a message to a member, and as a request
//! to a store.
//!
//! Invariants
//!   1. Version, block and laziness are the same at every member. The data is the same too, unless positions
//!      hold different data.
//!   2. A request to the store carries one checksum for each unit of data. A deletion is never lazy.

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
    /// The change may be answered before it is durable.
    pub lazy: bool,
}

impl ChangeHeader {
    /// Returns the message to a member, with the primary's mark.
    pub fn to_message(self, mark: Version, change: Change) -> PeerBody {
        let ChangeHeader { key, block_size, version, lazy, .. } = self;
        assert!(mark < version);
        PeerBody::Write { version, mark, key, block_size, lazy, change }
    }

    /// Returns the request to this OSD's store. Requires: the change was checked by
    /// [`super::Shape::check_op`] or, if it came from another member, in the same way.
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

/// Returns how many bytes of data a change carries.
pub fn data_size_bytes(change: &Change) -> u64 {
    match change {
        Change::Write { data, .. } => data.len() as u64,
        Change::Zero { .. } | Change::Delete => 0,
    }
}
