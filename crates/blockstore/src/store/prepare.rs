//! Requests of pools that keep parity: prepare, skip, commit and settle.
//!
//! ```text
//!   Prepare, Skip ──▶ in the order of the PG's versions; refused at the limit, as if the store were full
//!   Commit ─────────▶ at once, without a write; the PG's next entry records it
//!   Settle ─────────▶ ahead of all waiting requests, because a settle may free room
//! ```
//!
//! Invariants
//!   1. If a PG has committed more than the journal records, a `Marks` entry records it before any entry of
//!      the PG that cannot record commits itself.
//!   2. A version that waits for room is never journaled after a settle of its PG.

use base::planted::{self, Bug};
use base::{BlockSize, PgId, Version};
use format::disk::{
    BlockKey, EntryFlags, EntryHeader, EntryKind, LOCATION_NONE, NoteKey, UnitSet, encode_marks,
};
use format::wire::Content;

use crate::blocks::{Change, replaces_all};
use crate::index::{BlockInfo, location_of};
use crate::journal::{Asker, IDLE_RESERVE, padded, plain_header};
use crate::store::Store;
use crate::store::queue::Line;
use crate::store::repair::{is_whole, needs_place, repair_header, table_of};
use crate::store::write::{Admit, EntryKinds, Plan, WRITE_RESERVE_SHARE, key_of};
use crate::{AsOf, Effect, NOTE_SIZE_MAX, Request, RequestId, StoreError};

/// A request to prepare a version.
struct Asked {
    pg: PgId,
    key: BlockKey,
    version: Version,
    replaces: Option<Version>,
    lazy: bool,
}

impl Store {
    /// Tries to accept a request to prepare a version. Returns the request if it must wait.
    pub(super) fn try_prepare(
        &mut self,
        id: RequestId,
        request: Request,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        let Request::Prepare { pg, key, version, content, replaces, lazy } = request else {
            unreachable!("asked for this kind")
        };
        let asked = Asked { pg, key, version, replaces, lazy };
        // The versions that this one replaces do not count as the block's old state.
        let as_of = replaces.map_or(AsOf::View, AsOf::Version);
        let old = self.parts().blocks.as_of(&key, as_of);
        if let Err(error) = self.check_prepare(&asked, &content, old) {
            effects.push(Effect::Done { id, result: Err(error) });
            return None;
        }
        if let Content::Block { block_size, .. } = &content
            && needs_place(&content)
        {
            self.want_place(*block_size, effects);
        }
        match self.admit_prepare(&asked, &content, old) {
            Admit::Now(plan) => {
                self.accept_prepare(id, asked, content, (plan, old), effects);
                None
            }
            Admit::Wait { checkpoint } => {
                self.wait_for_room(checkpoint);
                Some(Request::Prepare { pg, key, version, content, replaces, lazy })
            }
            Admit::Refuse(error) => {
                self.refuse_version(id, (pg, version), replaces, error, effects);
                None
            }
        }
    }

    /// Refuses a version. Unless peering prepares it, later versions of its epoch are refused too.
    fn refuse_version(
        &mut self,
        id: RequestId,
        (pg, version): (PgId, Version),
        replaces: Option<Version>,
        error: StoreError,
        effects: &mut Vec<Effect>,
    ) {
        if replaces.is_none() {
            self.refused.insert(pg, version.epoch);
        }
        effects.push(Effect::Done { id, result: Err(error) });
    }

    /// Checks that the version follows those of its PG and its block, and that its content is sound. `old`:
    /// the block's state before the version.
    fn check_prepare(
        &self,
        asked: &Asked,
        content: &Content,
        old: Option<BlockInfo>,
    ) -> Result<(), StoreError> {
        let Asked { pg, key, version, replaces, .. } = *asked;
        let is_sound = match content {
            Content::Gone => false,
            Content::Tombstone { version: of } => *of == version,
            Content::Block { version: of, block_size, .. } => {
                let has_place = location_of(old) != LOCATION_NONE;
                let fits = old.is_none_or(|old| !has_place || old.block_size == *block_size);
                *of == version && fits && is_whole(content)
            }
        };
        if !is_sound {
            return Err(StoreError::Corrupted);
        }
        match replaces {
            None if self.is_refused(Some((pg, version))) => return Err(StoreError::Full),
            None => self.check_order(pg, version)?,
            Some(above) => {
                let committed = self.parts().pgs.get(pg).committed;
                if version <= above || version <= committed || above < committed {
                    return Err(StoreError::Unordered);
                }
            }
        }
        let stable = self.parts().blocks.get(&key).map_or(Version::ZERO, |info| info.version);
        let below = old.map_or(Version::ZERO, |old| old.version);
        match below.max(stable) < version {
            true => Ok(()),
            false => Err(StoreError::Unordered),
        }
    }

    /// Checks that the version is the PG's next one.
    fn check_order(&self, pg: PgId, version: Version) -> Result<(), StoreError> {
        let last = self.parts().pgs.get(pg).last;
        let is_gap = version.epoch == last.epoch && version.counter != last.counter + 1;
        let is_gap = is_gap && !planted::on(Bug::GapAccepted);
        match version > last && !is_gap {
            true => Ok(()),
            false => Err(StoreError::Unordered),
        }
    }

    fn admit_prepare(&self, asked: &Asked, content: &Content, old: Option<BlockInfo>) -> Admit {
        let parts = self.parts();
        let (size, units, needs_place, is_all) = match content {
            Content::Block { block_size, units, checksums, .. } => {
                let is_all = replaces_all(old, *block_size, &UnitSet::from_slice(units));
                (*block_size, checksums.len(), needs_place(content), is_all)
            }
            Content::Tombstone { .. } | Content::Gone => (BlockSize::MIN, 0, false, true),
        };
        let kinds = EntryKinds {
            inline: EntryKind::Prepare,
            large: EntryKind::PrepareLarge,
            table_size: table_of(content).len(),
        };
        let record = match content {
            Content::Block { .. } => (!is_all, kinds.table_size_over(old)),
            Content::Tombstone { .. } | Content::Gone => (false, 0),
        };
        let plan = match needs_place {
            true => self.admit_data(old, size, (is_all, units as u64 * base::UNIT_SIZE), kinds),
            false if !parts.has_record_room(old, size, record) => Admit::Refuse(StoreError::Full),
            false => Admit::Now(Plan::Plain),
        };
        let Admit::Now(plan) = plan else { return plan };
        let kind = match plan {
            Plan::Large => kinds.large,
            Plan::Inline => kinds.inline,
            Plan::Plain if matches!(content, Content::Block { .. }) => kinds.inline,
            Plan::Plain => EntryKind::PrepareDelete,
        };
        let entry_size = kinds.size_of(kind, units, self.sector_size());
        let cost = (u64::from(entry_size), (units, kinds.table_size));
        let (is_peering, journal_size) = (asked.replaces.is_some(), parts.journal.size());
        if !parts.blocks.prepared.has_room_for(is_peering, cost, journal_size) {
            return Admit::Refuse(StoreError::Full);
        }
        // Leave room also for a copy of this version and for a pad in front of the copy.
        let reserve = journal_size / WRITE_RESERVE_SHARE + 2 * u64::from(entry_size);
        match parts.has_room_for((kind, entry_size), reserve) {
            true => Admit::Now(plan),
            false => Admit::Wait { checkpoint: true },
        }
    }

    fn accept_prepare(
        &mut self,
        id: RequestId,
        asked: Asked,
        content: Content,
        (plan, old): (Plan, Option<BlockInfo>),
        effects: &mut Vec<Effect>,
    ) {
        self.written_at = self.now;
        let Asked { pg, key, replaces, lazy, .. } = asked;
        let asker = Asker { id, is_lazy: lazy };
        let (mut header, data) = repair_header((pg, key), content);
        header.replaces = replaces;
        let Some(block_size) = header.block_size else {
            header.kind = EntryKind::PrepareDelete;
            header.flags.is_whole = true;
            return self.accept_entry(asker, header, None, old);
        };
        header.kind = EntryKind::Prepare;
        header.flags.is_whole = replaces_all(old, block_size, &header.units);
        let data = data.unwrap_or_else(|| self.pool.take(0).freeze());
        let allocates = match plan {
            Plan::Plain => false,
            Plan::Inline => location_of(old) == LOCATION_NONE,
            Plan::Large => true,
        };
        if allocates {
            let allocator = &mut self.parts_mut().blocks.area.allocator;
            let location = allocator.allocate(block_size);
            header.location = location.expect("admitted only with space");
        }
        match plan {
            Plan::Large => {
                self.accept_repair_large(asker, (header, key), data, old, effects);
            }
            Plan::Plain | Plan::Inline => self.accept_entry(asker, header, Some(data), old),
        }
    }

    /// Tries to accept a skip, which changes no block here. Returns the request if it must wait.
    pub(super) fn try_skip(
        &mut self,
        asker: Asker,
        pg: PgId,
        version: Version,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        let Asker { id, is_lazy: lazy } = asker;
        let refused = self.is_refused(Some((pg, version))).then_some(StoreError::Full);
        if let Some(error) = refused.or(self.check_order(pg, version).err()) {
            effects.push(Effect::Done { id, result: Err(error) });
            return None;
        }
        let reserve = self.parts().journal.size() / WRITE_RESERVE_SHARE;
        if !self.parts().has_room(EntryKind::Skip, 0, reserve) {
            self.wait_for_room(true);
            return Some(Request::Skip { pg, version, lazy });
        }
        self.written_at = self.now;
        let header = EntryHeader { pg: Some(pg), version, ..plain_header(EntryKind::Skip) };
        self.accept_entry(asker, header, None, None);
        None
    }

    /// Accepts a settle ahead of all other waiting requests. If the journal has no room even for a settle,
    /// the settle waits for a checkpoint. The checkpoint does not depend on any waiting request.
    pub(super) fn on_settle(
        &mut self,
        id: RequestId,
        (pg, upto): (PgId, Version),
        note: Option<(NoteKey, Vec<u8>)>,
        effects: &mut Vec<Effect>,
    ) {
        self.end_overtaken(pg, effects);
        self.queue.push(Line::Settles, id, Request::Settle { pg, note, upto });
    }

    /// Fails the PG's requests that a settle overtakes.
    fn end_overtaken(&mut self, pg: PgId, effects: &mut Vec<Effect>) {
        let is_overtaken = |request: &Request| match request {
            Request::Prepare { pg: of, .. } | Request::Skip { pg: of, .. } => *of == pg,
            Request::Note { key, .. } => *key == NoteKey::Pg(pg),
            _ => false,
        };
        let overtaken = self.queue.remove(is_overtaken);
        let unordered = |id| Effect::Done { id, result: Err(StoreError::Unordered) };
        effects.extend(overtaken.into_iter().map(unordered));
    }

    /// Tries to accept a settle. Returns the request if it must wait for a checkpoint.
    pub(super) fn try_settle(
        &mut self,
        id: RequestId,
        (pg, upto): (PgId, Version),
        note: Option<(NoteKey, Vec<u8>)>,
        effects: &mut Vec<Effect>,
    ) -> Option<Request> {
        let parts = self.parts();
        if parts.pgs.get(pg).committed > upto {
            effects.push(Effect::Done { id, result: Err(StoreError::AboveSettled) });
            return None;
        }
        let bytes = note.as_ref().map_or(&[][..], |(_, bytes)| bytes);
        let old = parts.notes.get(&NoteKey::Pg(pg)).map_or(0, |note| note.len()) as u64;
        if note.is_some() && !parts.record_room().can_change(old, bytes.len() as u64) {
            effects.push(Effect::Done { id, result: Err(StoreError::Full) });
            return None;
        }
        let units = bytes.len().div_ceil(base::UNIT_SIZE as usize);
        if !parts.has_room(EntryKind::Settle, units, 2 * IDLE_RESERVE) {
            self.wait_for_room(true);
            return Some(Request::Settle { pg, note, upto });
        }
        assert!(note.as_ref().is_none_or(|(key, _)| *key == NoteKey::Pg(pg)));
        assert!(bytes.len() <= NOTE_SIZE_MAX);
        self.written_at = self.now;
        self.refused.remove(&pg);
        let (data, checksums) = padded(bytes, &self.pool);
        let mut header = EntryHeader {
            pg: Some(pg),
            version: upto,
            length: bytes.len() as u32,
            flags: EntryFlags { has_note: note.is_some(), ..EntryFlags::default() },
            checksums,
            ..plain_header(EntryKind::Settle)
        };
        self.journal_entry(&mut header, Some(data), None);
        // The settled versions must be durable too, including their out-of-line data.
        self.wait_all(id, effects);
        None
    }

    /// Journals up to which version the PG has committed.
    pub(super) fn say_committed(&mut self, pg: PgId) {
        if planted::on(Bug::RepairWithoutMarks) {
            return;
        }
        let committed = self.parts().pgs.get(pg).committed;
        let bytes = encode_marks([(pg, committed)].into_iter());
        let (data, checksums) = padded(&bytes, &self.pool);
        let length = bytes.len() as u32;
        let mut header = EntryHeader { length, checksums, ..plain_header(EntryKind::Marks) };
        let parts = self.parts_mut();
        let (lsn, data_lsn) = parts.journal.append(&mut header, Some(data.clone()));
        let change = Change { header: &header, old: None, lsn, data_lsn, bad: UnitSet::EMPTY };
        parts.apply(&change, &data);
    }

    /// Whether the request's block has prepared versions.
    pub(super) fn has_prepared(&self, request: &Request) -> bool {
        let prepared = &self.parts().blocks.prepared;
        !prepared.is_empty() && key_of(request).is_some_and(|key| !prepared.of_key(&key).is_empty())
    }
}
