//! Batches of object pools: admitted in the order of their PG, journaled, seen by reads at once, given to the engine
//! when they are durable. See `docs/internals/objects.md`.

use base::{BlockSize, Lsn, PgId, PoolId, Version};
use format::disk::{Body, EntryHeader, EntryKind};
use format::engine::{Change, Compression, EngineEvent};

use crate::journal::{Asker, plain_header};
use crate::pending::{EntryPlace, FamilyStage};
use crate::store::Store;
use crate::store::write::{Admit, WRITE_RESERVE_SHARE};
use crate::{Answer, Effect, Request, RequestId, StoreError};

/// Pending records of at most so many bytes; beyond that, batches wait for the engine.
const PENDING_SIZE_MAX: usize = 64 << 20;
/// A family is flushed when its low lies this fraction (1/n) of what makes a checkpoint due behind the tail.
/// So the checkpoint that follows usually trims what it contains.
const FLUSH_SHARE: u64 = 2;

impl Store {
    /// Tries to accept a batch. Returns the request if it must wait.
    pub(super) fn try_batch(
        &mut self,
        id: RequestId,
        (pg, block_size): (PgId, BlockSize),
        (after, version): (Version, Version),
        records: Vec<Change>,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        let mut header = EntryHeader {
            pg: Some(pg),
            block_size: Some(block_size),
            version,
            after,
            ..plain_header(EntryKind::Batch)
        };
        let body = Body { records, ..Body::default() };
        if let Err(error) = self.judge_batch(&header, &body) {
            effects.push(Effect::Done { id, result: Err(error) });
            return None;
        }
        let wait = |checkpoint, body: Body, store: &mut Store| {
            store.wait_for_room(checkpoint);
            Some(Request::Batch { pg, block_size, after, version, records: body.records })
        };
        if self.pending.size() >= PENDING_SIZE_MAX {
            return wait(false, body, self);
        }
        let encoded = body.encode(&mut header);
        let entry_size = header.entry_size(self.sector_size());
        let reserve = self.parts().journal.size() / WRITE_RESERVE_SHARE;
        if !self.parts().has_room_for((EntryKind::Batch, entry_size), reserve) {
            return wait(true, body, self);
        }
        self.written_at = self.now;
        let lsn = self.journal_entry_with(&mut header, &encoded, None, None);
        let journal = &mut self.parts_mut().journal;
        journal.wait(Asker::plain(id), lsn, None);
        let place = EntryPlace { lsn, end: journal.tail(), previous: header.previous };
        if !body.records.is_empty() {
            self.pending.push(pg.pool, place, body.records);
        }
        None
    }

    /// Tries to accept the creation or removal of a family. Returns the request if it must wait.
    pub(super) fn try_family(
        &mut self,
        id: RequestId,
        pool: PoolId,
        compression: Option<Compression>,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        let found = self.pending.stage(pool);
        let result = match (found, compression) {
            _ if self.parts().superblock.engine.is_none() => Err(StoreError::NoFamily),
            (Some(FamilyStage::Creating(_) | FamilyStage::Removing(_)), _) => {
                Err(StoreError::Unordered)
            }
            (None, None) => Ok(Answer::Durable),
            (Some(FamilyStage::There), Some(_)) => {
                match self.pending.compression(pool) == compression {
                    true => Ok(Answer::Durable),
                    false => Err(StoreError::OtherCompression),
                }
            }
            _ => {
                if let Admit::Wait { checkpoint } = self.admit_plain(EntryKind::Family) {
                    self.wait_for_room(checkpoint);
                    return Some(Request::Family { pool, compression });
                }
                self.accept_family(id, pool, compression);
                return None;
            }
        };
        effects.push(Effect::Done { id, result });
        None
    }

    /// Journals the creation or removal of a family. One that was left from a removed pool is removed first.
    fn accept_family(&mut self, id: RequestId, pool: PoolId, compression: Option<Compression>) {
        self.written_at = self.now;
        let asker = Some(id);
        match compression {
            None => {
                let place = self.append_family(pool, None);
                self.pending.push_removal(pool, place, asker);
            }
            Some(compression) => {
                if self.pending.stage(pool).is_some() {
                    let place = self.append_family(pool, None);
                    self.pending.push_removal(pool, place, None);
                }
                let place = self.append_family(pool, Some(compression));
                self.pending.push_creation(pool, Some(place), compression, asker);
            }
        }
        self.parts_mut().journal.want_all();
    }

    fn append_family(&mut self, pool: PoolId, compression: Option<Compression>) -> EntryPlace {
        let journal = &mut self.parts_mut().journal;
        if journal.tail() == Lsn::ZERO {
            // A family without batches has lsn 0, so no entry of a family may have it.
            journal.append_idle();
        }
        let mut header = EntryHeader {
            pg: Some(PgId { pool, number: 0 }),
            offset: compression.map_or(0, |compression| u32::from(compression.number())),
            ..plain_header(EntryKind::Family)
        };
        let lsn = self.journal_entry(&mut header, None, None);
        let end = self.parts().journal.tail();
        EntryPlace { lsn, end, previous: header.previous }
    }

    /// Whether the batch is one that this store can have, and the next one of its PG.
    fn judge_batch(&self, header: &EntryHeader, body: &Body) -> Result<(), StoreError> {
        let (pg, block_size) = header.pg.zip(header.block_size).expect("a batch has both");
        let (after, version) = (header.after, header.version);
        if self.is_refused(Some((pg, version))) {
            return Err(StoreError::Full);
        }
        if !self.pending.has_family(pg.pool) {
            return Err(StoreError::NoFamily);
        }
        if !body.is_sound(EntryKind::Batch, pg, block_size) {
            return Err(StoreError::Corrupted);
        }
        let last = self.parts().pgs.get(pg).last;
        // The first one in an epoch may follow any version: a learner has more than its batches.
        let follows = after == last || last.epoch < version.epoch;
        if after < version && last < version && follows {
            return Ok(());
        }
        Err(StoreError::Unordered)
    }

    /// Gives the engine the batches that have become durable.
    pub(super) fn enter_engine(&mut self, effects: &mut Vec<Effect>) {
        let mut writes = Vec::new();
        let durable = self.parts().journal.durable();
        self.pending.enter(durable, self.now, &mut writes);
        if self.is_open() {
            let span = match std::mem::take(&mut self.wants_engine_flush) {
                true => 0,
                false => self.journal_size_max() / FLUSH_SHARE,
            };
            self.pending.flush((self.parts().journal.tail(), span), self.now, &mut writes);
        }
        effects.extend(writes.into_iter().map(Effect::Engine));
    }

    pub(super) fn on_engine(&mut self, event: EngineEvent, effects: &mut Vec<Effect>) {
        let ended = match event {
            EngineEvent::Done { op, result } => {
                let reads = self.record_reads.numbers();
                let ended = self.pending.on_done(op, result, self.now, reads);
                ended.map(|id| {
                    let done = |id| Effect::Done { id, result: Ok(Answer::Durable) };
                    effects.extend(id.map(done));
                })
            }
            EngineEvent::Read { op, contains, result } => {
                return self.on_records_read(op, contains, result, effects);
            }
            EngineEvent::Poisoned { text } => Err(text),
            EngineEvent::Flushed { family, lsn } => {
                self.pending.on_flushed(family, lsn);
                Ok(())
            }
            EngineEvent::Statistics { .. } => unreachable!("the store asks for none"),
        };
        if let Err(text) = ended {
            let reason = format!(
                "the engine failed ({text}): what it has is unknown. Check the kernel log and the \
                 disk's health, then start the OSD again: it recovers from its journal"
            );
            self.stop(reason, effects);
        }
    }
}
