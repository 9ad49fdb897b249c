//! Batches and pages at a member, and what it says of its keys.
//!
//! Invariants
//!   1. A member takes exactly the next batch, and only with keys and blocks of the PG.
//!   2. Learners take pages, and acting members those by which a scrub makes records good. What is a member's own
//!      is in no page: it makes the mark of an incomplete object itself, in the same entry.

use ::objects::keys::{is_log, is_own, log_range, shards_range, shared_range};
use ::objects::{Key, Kind, LogKey, Name, Shard};
use base::planted::{self, Bug};
use base::{Epoch, Version};
use blockstore::{Answer, Batch as StoreBatch, Page, Request as StoreRequest, StoreError};
use format::disk::EntryKind;
use format::disk::bytes::Writer;
use format::engine::{Answer as Found, Change};
use format::wire::{BatchContent, KeysWith, PagePart, Payload, PeerBody};

use super::batch;
use super::compare::{encode_keys, sums_query};
use super::fill::heads_query;
use super::log::reach_of;
use super::walk::{encode_list, list_records};
use crate::store_calls::Call;
use crate::versions::next_version;
use crate::{Action, Pg};

/// Size of what all keys of one kind in one shard begin with, in bytes.
const KIND_PREFIX_SIZE: usize = 3;
/// The reaches of so many shards are raised by one entry.
const REACHES_AT_ONCE: usize = 4096;

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
        let changes = batch::decode(content, EntryKind::Batch, pg, block_size)?;
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

    /// Handles a page from the primary, for this learner.
    pub(crate) fn on_page(
        &mut self,
        (call, version): (u32, Version),
        part: PagePart,
        content: BatchContent,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if self.shape.objects.is_none() {
            return Err("a page in a pool of blocks".into());
        }
        let is_learner = self.follow().is_learner();
        if !is_learner && (part != PagePart::Whole || version == Version::ZERO) {
            return Err("a page for a learner came to an acting member".into());
        }
        self.check_version(version)?;
        let (pg, block_size) = (self.shape.pg, self.shape.block_size);
        let changes = batch::decode(content, EntryKind::Page, pg, block_size)?;
        let batch::Changes { mut records, blocks } = changes;
        records.iter().try_for_each(|change| self.check_page_record(change))?;
        for (change, _) in &blocks {
            self.shape.check_key(change.key)?;
            self.check_version(change.version)?;
        }
        let is_put = |change: &Change| matches!(change, Change::Put { .. });
        let adds = !blocks.is_empty() || records.iter().any(is_put);
        records.extend(self.incomplete_mark(part)?);
        self.local_state.on_fill(version, false);
        let order = self.begin_taken();
        let page = Page { pg, block_size, version, records, blocks };
        let page = StoreRequest::Page(page);
        match is_learner {
            true => self.call(Call::PeerRepair { order, call, adds }, page, actions),
            false => self.call(Call::PeerMend { order, call, units: 0 }, page, actions),
        }
        Ok(())
    }

    /// Notes that the log of this OSD, which was filled, says nothing of what is up to this version. What it
    /// says of earlier epochs goes: some of it was perhaps never adopted.
    pub(crate) fn raise_reach(&mut self, version: Version, actions: &mut Vec<Action>) {
        self.local_state.on_fill(version, false);
        let (reach, epoch) = match planted::on(Bug::ListedLogBelieved) {
            true => (Version::ZERO, Epoch::ZERO),
            false => (version, self.epoch()),
        };
        for page in self.reach_pages(reach, epoch) {
            let order = Some(self.begin_taken());
            self.call(Call::Reach { order }, page, actions);
        }
    }

    /// The log of this acting member begins here, or anew: what it says of earlier epochs than this goes. As
    /// long as it does not say where it begins, it is not believed, so nobody waits for that.
    pub(crate) fn begin_log(&mut self, version: Version, epoch: Epoch, actions: &mut Vec<Action>) {
        for page in self.reach_pages(version, epoch) {
            self.call(Call::Reach { order: None }, page, actions);
        }
    }

    /// Returns what raises the reaches of all shards, and empties their logs up to there, and those of epochs
    /// before this one.
    fn reach_pages(&self, version: Version, epoch: Epoch) -> Vec<StoreRequest> {
        let (pg, block_size) = (self.shape.pg, self.shape.block_size);
        let begin = Version { epoch: epoch.max(Epoch::new(1)), counter: 0 };
        let changes = |shard: Shard| {
            let start = log_range(shard, Version::ZERO).0;
            let kind = Kind::Log(LogKey { version: begin, page: None });
            let end = log_range(shard, version).0.max(Key { shard, kind }.encode());
            let cut = (start < end).then_some(Change::DeleteRange { start, end });
            cut.into_iter().chain(reach_of(shard, version))
        };
        let shards: Vec<Shard> = self.shard_list().collect();
        let page = |shards: &[Shard]| {
            let records = shards.iter().copied().flat_map(changes).collect();
            StoreRequest::Page(Page { pg, block_size, version, records, blocks: Vec::new() })
        };
        shards.chunks(REACHES_AT_ONCE).map(page).collect()
    }

    /// Handles the store's answer about the reach.
    pub(crate) fn on_reach_raised(
        &mut self,
        order: Option<u64>,
        is_durable: bool,
        actions: &mut Vec<Action>,
    ) {
        let Some(order) = order else { return };
        if !is_durable {
            return self.cannot_follow("the store has no room for how far its log goes", actions);
        }
        self.ended_taken(order, actions);
    }

    /// Returns the change of this member's own records that goes with a page.
    fn incomplete_mark(&self, part: PagePart) -> Result<Option<Change>, String> {
        let key = |name: &[u8]| {
            let name = Name::new(name).ok_or("an object whose name is too long")?;
            let shard = self.pool_shape().sharding.shard(&name);
            match self.shards().contains(&shard) {
                true => Ok(Key { shard, kind: Kind::Incomplete { name } }.encode()),
                false => Err("an object that is not the PG's".to_owned()),
            }
        };
        Ok(match part {
            PagePart::Whole | PagePart::Middle => None,
            PagePart::First { .. } if planted::on(Bug::HalfCopiedObjectServed) => None,
            PagePart::First { name, version } => {
                let mut value = Writer::default();
                value.version(version);
                Some(Change::Put { key: key(&name)?, value: value.bytes })
            }
            PagePart::Last { name } => Some(Change::Delete { key: key(&name)? }),
        })
    }

    /// Checks that a change of records by a page is one of this PG, and none of what is a member's own.
    fn check_page_record(&self, change: &Change) -> Result<(), String> {
        let Change::DeleteRange { start, end } = change else {
            return self.check_record(change, None);
        };
        let is_of_pg = start.len() >= KIND_PREFIX_SIZE && {
            let shard = Shard::of_key(start);
            let shared = shared_range(shard);
            self.shards().contains(&shard) && shared.0 <= *start && *end <= shared.1
        };
        match is_of_pg {
            true => Ok(()),
            false => Err("a page with a range that is not the PG's".into()),
        }
    }

    /// Handles the primary's request for a list of keys.
    pub(crate) fn on_list_heads(
        &mut self,
        (call, with): (u32, KeysWith),
        (from, before): (Vec<u8>, Vec<u8>),
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if self.shape.objects.is_none() {
            return Err("a list of keys in a pool of blocks".into());
        }
        let shards = self.shards();
        let all = shards_range(*shards.start(), *shards.end());
        if from.len() < KIND_PREFIX_SIZE || from < all.0 || before > all.1 {
            return Err("a list of keys that are not the PG's".into());
        }
        let count_max = self.shape.limits.list_count_max;
        let query = match with {
            KeysWith::Version => heads_query(from, before, count_max),
            KeysWith::Checksum | KeysWith::Value => sums_query(from, before, count_max),
        };
        self.read_records(Call::PeerHeads { call, with }, vec![query], actions);
        Ok(())
    }

    /// Sends the primary a list of keys.
    pub(crate) fn on_peer_heads(
        &mut self,
        (call, with): (u32, KeysWith),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let found = match result {
            Ok(Answer::Records { answers, .. }) => answers.into_iter().next(),
            _ => None,
        };
        let (keys, is_last) = match (found, with) {
            (Some(Found::Records { records, more }), KeysWith::Version) => {
                (encode_list(&list_records(&records)), !more)
            }
            (Some(Found::Records { records, more }), _) => {
                (encode_keys(Some(&records), with), !more)
            }
            (_, KeysWith::Version) => {
                return self.cannot_follow("the store cannot read its records", actions);
            }
            _ => (encode_keys(None, with), true),
        };
        let heads = Payload::new(&keys, &self.buffers);
        self.answer(PeerBody::Headed { call, heads, is_last }, actions);
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
            is_put && batch.is_some_and(is_its)
        };
        let is_of_pg = match change {
            Change::Put { key, .. } | Change::Delete { key } => {
                Key::decode(key).is_some_and(|key| {
                    let is_shared = match &key.kind {
                        Kind::Incomplete { .. } | Kind::Lost { .. } => false,
                        Kind::Log(log) => is_of_log(log),
                        Kind::Reach(_) => batch.is_some(),
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
