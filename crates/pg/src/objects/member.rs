//! Batches at a member.
//!
//! Invariants
//!   1. A member takes exactly the next batch, and only with keys and blocks of the PG.

use ::objects::keys::{is_log, is_own};
use ::objects::{Key, Kind, LogKey, Shard};
use base::Version;
use blockstore::{Batch as StoreBatch, Request as StoreRequest};
use format::engine::Change;
use format::wire::BatchContent;

use super::batch;
use crate::store_calls::Call;
use crate::versions::next_version;
use crate::{Action, Pg};

/// Size of what all keys of one kind in one shard begin with, in bytes.
const KIND_PREFIX_SIZE: usize = 3;

impl Pg {
    /// Handles a batch from the primary, with the version before its first and its last one.
    pub(crate) fn on_batch(
        &mut self,
        (after, version, mark): (Version, Version, Version),
        content: BatchContent,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if self.shape.objects.is_none() {
            return Err("a batch in a pool of blocks".into());
        }
        for version in [after, version, mark] {
            self.check_version(version)?;
        }
        let (pg, block_size) = (self.shape.pg, self.shape.block_size);
        let first = next_version(after, self.epoch());
        let changes = batch::decode(content, pg, block_size)?;
        changes.records.iter().try_for_each(|change| self.check_record(change, Some(version)))?;
        for (change, _) in &changes.blocks {
            self.shape.check_key(change.key)?;
            if !(first..=version).contains(&change.version) {
                return Err("a block with a version that is not the batch's".into());
            }
        }
        let order = self.follow().take_run(first, version, mark)?;
        self.local_state.on_batch(version);
        let batch::Changes { records, blocks } = changes;
        let batch = StoreBatch { pg, block_size, after, version, records, blocks, note: None };
        self.call(Call::Taken { order, first, version }, StoreRequest::Batch(batch), actions);
        Ok(())
    }

    /// Checks that a change of records is one of this PG, and none of what is a member's own, except that a
    /// batch has records of the log. `batch`: the version of the batch; `None`: it is in a forward.
    pub(super) fn check_record(
        &self,
        change: &Change,
        batch: Option<Version>,
    ) -> Result<(), String> {
        let shards = self.shards();
        let is_of_log = |log: &LogKey| {
            let is_put = matches!(change, Change::Put { .. });
            let is_its = |version| *log == LogKey { version, page: None };
            is_put && batch.is_some_and(|version| is_its(version) || *log == LogKey::REACH)
        };
        let is_of_pg = match change {
            Change::Put { key, .. } | Change::Delete { key } => {
                Key::decode(key).is_some_and(|key| {
                    let is_shared = match &key.kind {
                        Kind::Incomplete { .. } | Kind::Lost { .. } => false,
                        Kind::Log(log) => is_of_log(log),
                        _ => true,
                    };
                    shards.contains(&key.shard) && is_shared
                })
            }
            Change::DeleteRange { start, end } => {
                start.len() >= KIND_PREFIX_SIZE
                    && shards.contains(&Shard::of_key(start))
                    && end.starts_with(&start[..KIND_PREFIX_SIZE])
                    && (!is_own(start) || is_log(start) && batch.is_some())
            }
        };
        match is_of_pg {
            true => Ok(()),
            false => Err("a batch with a record that is not the PG's".into()),
        }
    }
}
