//! Batches of object pools: admitted in the order of their PG, journaled, seen by reads at once, given to the engine
//! when they are durable. See `docs/internals/objects.md`.

use base::{BlockSize, Lsn, PgId, Version};
use format::disk::{Body, EntryHeader, EntryKind};
use format::engine::{Change, EngineEvent};

use crate::journal::{Asker, plain_header};
use crate::store::Store;
use crate::store::write::WRITE_RESERVE_SHARE;
use crate::{Effect, Request, RequestId, StoreError};

/// Pending records of at most so many bytes; beyond that, batches wait for the engine.
const PENDING_SIZE_MAX: usize = 64 << 20;

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
        if self.parts().journal.tail() == Lsn::ZERO {
            // The engine would skip a batch with lsn 0: a family without batches has this lsn, too.
            self.parts_mut().journal.append_idle();
        }
        let lsn = self.journal_entry_with(&mut header, &encoded, None, None);
        let journal = &mut self.parts_mut().journal;
        journal.wait(Asker::plain(id), lsn, None);
        let end = journal.tail();
        if !body.records.is_empty() {
            self.pending.push(pg.pool, (lsn, end), body.records);
        }
        None
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
        effects.extend(writes.into_iter().map(Effect::Engine));
    }

    pub(super) fn on_engine(&mut self, event: EngineEvent, effects: &mut Vec<Effect>) {
        let ended = match event {
            EngineEvent::Done { op, result } => {
                let reads = self.record_reads.numbers();
                self.pending.on_done(op, result, self.now, reads)
            }
            EngineEvent::Read { op, contains, result } => {
                return self.on_records_read(op, contains, result, effects);
            }
            EngineEvent::Poisoned { text } => Err(text),
            // Nothing is trimmed by it yet.
            EngineEvent::Flushed { .. } => Ok(()),
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
