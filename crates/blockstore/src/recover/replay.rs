//! Replay: follows the journal entry by entry from the root's lsn, and acts according to the table in
//! `decide.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use base::planted::{self, Bug};
use base::{Buffer, Checksum, Lsn, PgId, PoolId, UNIT_SIZE, Version};
use format::disk::{
    Body, Decision, ENTRY_HEADER_SIZE_MAX, EntryHeader, EntryKind, LOCATION_STEP, UnitSet,
};
use format::engine::Compression;

use super::batches::BatchFound;
use super::engine;
use super::survey::{bad_units, inline_data, is_in_order};
use super::{CHUNK_SIZE, Progress, Recovery, Stage, is_emptied};
use crate::BlockKey;
use crate::allocator::Place;
use crate::blocks::Change;
use crate::decide::{Content, Header, Inline, Seen, Verdict, decide};
use crate::disk::{Io, Purpose};
use crate::index::location_of;
use crate::pending::EntryPlace;

/// The state of the replay.
#[derive(Default)]
pub struct Replay {
    /// Lsn of the next entry.
    at: Lsn,
    /// Checksum of the preceding entry.
    previous: Checksum,
    /// Whether the next entry follows a hole, where the chain cannot be checked.
    is_unchained: bool,
    /// Where the current hole began, while the next intact entry is searched for.
    hole: Option<Lsn>,
    /// The part of the journal in memory, and the lsn where it begins.
    chunk: Option<(Lsn, Buffer)>,
    /// The end of the unreadable sector, if the journal ends at one.
    unreadable_end: Option<Lsn>,
    /// The end of the last entry, if this entry records that everything before it is durable.
    pub idle_end: Option<Lsn>,
    /// Parts of the journal that cannot be read.
    lost: Vec<Range<Lsn>>,
    /// Parts of the journal that were skipped because an earlier recovery decided on a cut or a hole there.
    skipped: Vec<Range<Lsn>>,
    /// Whether the entries before the root's `until` have been passed.
    has_collected: bool,
    /// PGs with a dropped prepared version: the lowest version that is dropped, and the lsn from which
    /// versions are accepted again.
    dropped_pgs: BTreeMap<PgId, (Version, Lsn)>,
    /// PGs of object pools with a dropped entry: that entry, and the lsn from which entries count again.
    pub dropped_objects: BTreeMap<PgId, (Lsn, Lsn)>,
    /// Blocks with a dropped entry.
    dropped: BTreeSet<BlockKey>,
    /// Versions dropped by this recovery or by an earlier one.
    dropped_versions: BTreeSet<(PgId, Version)>,
    /// Places in entries that are not recorded as durable.
    pub places: BTreeSet<Place>,
    /// The entry whose out-of-line data is being read.
    waiting: Option<Found>,
    /// Where the journal ends.
    pub end: Lsn,
    /// The last creation or removal of each family.
    pub families: BTreeMap<PoolId, (EntryPlace, Option<Compression>)>,
    /// Parts of the journal with entries that the engine may lack: only whole entries, one behind the other.
    pub walked: Vec<Range<Lsn>>,
    /// Entries of which the engine gets nothing: only the header is left, or they were dropped.
    pub kept_from_engine: BTreeSet<Lsn>,
    /// PGs of object pools of which an entry is lost: the last such entry.
    pub lost_batches: BTreeMap<PgId, Lsn>,
}

/// The next entry, and what the disk has of it.
pub struct Found {
    pub header: EntryHeader,
    checksum: Checksum,
    /// The inline data, or the body.
    body: Content,
    /// Out-of-line data, as far as it was compared.
    pub data: Content,
    /// Units whose data is lost, counted from the first unit of the entry's data.
    bad: UnitSet,
    /// The inline data.
    inline: Vec<u8>,
    /// What is known of a batch or page.
    pub batch: Option<BatchFound>,
}

impl Found {
    fn inline(&self) -> Inline {
        let units = self.batch.as_ref().map_or(Content::Whole, |batch| batch.units);
        match self.header.kind {
            kind if kind.has_body() => Inline::Body { units },
            kind if kind.has_block_data() => Inline::Block,
            _ => Inline::Other,
        }
    }
}

/// How the replay continues after a step.
enum Next {
    /// The next step is possible at once.
    Again,
    /// The next chunk must be read.
    Fetch,
    /// Out-of-line data must be read first.
    Data,
    /// The journal ends.
    End,
}

impl Recovery {
    pub(super) fn begin_replay(&mut self, io: &mut Io<'_>) -> Progress {
        let root = self.parts().root.clone();
        self.replay = Replay { at: root.replay, previous: root.previous, ..Replay::default() };
        self.replay(io)
    }

    pub(super) fn on_replay_read(
        &mut self,
        buffer: Buffer,
        lost: &[Range<usize>],
        io: &mut Io<'_>,
    ) -> Progress {
        let replay = &mut self.replay;
        replay.lost.extend(
            lost.iter().map(|lost| {
                replay.at.advance(lost.start as u64)..replay.at.advance(lost.end as u64)
            }),
        );
        replay.chunk = Some((replay.at, buffer));
        self.replay(io)
    }

    fn replay(&mut self, io: &mut Io<'_>) -> Progress {
        loop {
            match self.replay_one()? {
                Next::Again => {}
                Next::Fetch => {
                    self.fetch_chunk(io);
                    return Ok(());
                }
                Next::Data => {
                    if self.fetch_data(io)? {
                        return Ok(());
                    }
                }
                Next::End => return self.end_replay(io),
            }
        }
    }

    fn fetch_chunk(&mut self, io: &mut Io<'_>) {
        let journal = self.parts().superblock.journal;
        self.stage = Stage::Replay;
        let position = self.replay.at.get() % journal.size;
        let size = CHUNK_SIZE.min(journal.size - position);
        self.survey.bytes += size;
        self.fetch(journal.offset + position, size as usize, io);
    }

    /// Reads the next out-of-line data of the entry. Returns false if none is left to be read, and the entry
    /// is judged: of a place outside the data area nothing is read, and no such data matches.
    fn fetch_data(&mut self, io: &mut Io<'_>) -> Result<bool, String> {
        let data = self.parts().superblock.data;
        self.stage = Stage::Data;
        let found = self.replay.waiting.as_mut().expect("it asks for data");
        let header = &found.header;
        let (location, offset, length) = match &found.batch {
            Some(batch) => batch.next_place().expect("it asks for data"),
            None => (header.location, header.offset, header.length),
        };
        let within = u64::from(location) * LOCATION_STEP + u64::from(offset);
        if within + u64::from(length) <= data.size {
            self.fetch(data.offset + within, length as usize, io);
            return Ok(true);
        }
        found.data = Content::Bad;
        found.bad = UnitSet::first(found.header.checksums.len() as u32);
        let found = self.replay.waiting.take().expect("it asks for data");
        self.judge(found)?;
        Ok(false)
    }

    /// Handles out-of-line data that is not recorded as durable: verifies it, and writes it again.
    pub(super) fn on_data_read(
        &mut self,
        buffer: Buffer,
        lost: &[Range<usize>],
        io: &mut Io<'_>,
    ) -> Progress {
        let mut found = self.replay.waiting.take().expect("it asks for data");
        let is_lost = |position: u32| {
            let range = unit_range(position);
            lost.iter().any(|lost| overlaps(lost, &range))
        };
        let (data, location, offset) = match &mut found.batch {
            Some(batch) => batch.on_place_read(&buffer, is_lost),
            None => {
                let header = &found.header;
                if !planted::on(Bug::StaleDataAccepted) {
                    found.bad = bad_units(header, &buffer);
                }
                let positions: Vec<u32> = header.data_positions().collect();
                let data = content(found.bad, |unit| is_lost(positions[unit as usize]));
                (data, header.location, header.offset)
            }
        };
        if data != Content::Bad {
            let place = self.parts().place(location) + u64::from(offset);
            self.write_read_again(place, &buffer, lost, io);
        }
        found.data = found.data.worse(data);
        if found.batch.as_ref().is_some_and(|batch| batch.next_place().is_some()) {
            self.replay.waiting = Some(found);
            if self.fetch_data(io)? {
                return Ok(());
            }
        } else {
            self.judge(found)?;
        }
        self.replay(io)
    }

    /// Reserves the places in entries beyond the recorded durable lsn: power may have failed before their
    /// reservation was durable.
    fn reserve_places(&mut self, io: &mut Io<'_>) {
        if !self.settings.is_sparse {
            return;
        }
        for Place { location, block_size } in std::mem::take(&mut self.replay.places) {
            self.writes += 1;
            let place = self.parts().place(location);
            io.reserve(Purpose::RecoveryWrite, place, block_size.bytes());
        }
    }

    /// Examines the place where the next entry should be.
    fn replay_one(&mut self) -> Result<Next, String> {
        let superblock = self.parts().superblock.clone();
        let from = self.parts().root.replay;
        let at = self.replay.at;
        if at.since(from) >= superblock.journal.size {
            return Ok(Next::End);
        }
        if at >= self.parts().root.until {
            self.end_collection();
        }
        let (replay, survey) = (&mut self.replay, &self.survey);
        let skip = survey.skips.get(&at).copied();
        if let Some((to, is_chained)) = skip
            && !planted::on(Bug::TailReplayedTwice)
        {
            self.end_hole();
            self.replay.skipped.push(at..to);
            self.replay.at = to;
            self.replay.is_unchained = !is_chained;
            self.count_row('N');
            return Ok(Next::Again);
        }
        let Some(bytes) = replay.bytes() else { return Ok(Next::Fetch) };
        let tag = superblock.store.tag();
        let decoded = EntryHeader::decode(bytes, tag, superblock.sector_size);
        let reaches_end =
            at.get() % superblock.journal.size + bytes.len() as u64 == superblock.journal.size;
        let size = match &decoded {
            Ok((header, _)) if header.kind != EntryKind::Pad => header.size as usize,
            Err(format::disk::EntryDecodeError::NeedMore(size)) => *size,
            _ => 0,
        };
        if size > bytes.len() && !reaches_end && !replay.chunk_begins_here() {
            return Ok(Next::Fetch);
        }
        let is_acked = at < survey.acked;
        let whole = decoded.ok().filter(|(header, _)| {
            header.kind == EntryKind::Pad || header.size as usize <= bytes.len()
        });
        let state = match whole.is_none() && replay.header_is_lost(bytes, superblock.sector_size) {
            true => Header::Unreadable,
            false => replay.header_state(&whole),
        };
        if replay.hole.is_some() {
            let found = matches!(state, Header::Next | Header::Unchained);
            if !found {
                replay.at = at.advance(superblock.sector_size as u64);
                return Ok(Next::Again);
            }
            self.end_hole();
            return Ok(Next::Again);
        }
        if state != Header::Next {
            let seen = Seen::without_entry(state, is_acked);
            return Ok(self.no_entry(seen, superblock.sector_size));
        }
        let (header, checksum) = whole.expect("a header was seen");
        let parts = self.parts.as_ref().expect("the superblock is known");
        // The engine must not get what was dropped or lost, also when a checkpoint has passed it.
        let was_lost = survey.lost.contains(&at) && header.kind.has_body();
        let is_dropped = header.kind.has_body() && survey.dropped_by(&header).is_some();
        let is_held_back = is_dropped || was_lost;
        let is_kept = at >= parts.root.until || parts.is_collected(&header) || is_held_back;
        // Records that the engine lacks are needed, although the checkpoint has the rest.
        let has_lost = || Body::decode(&header, header.body(bytes)).is_none();
        let is_lost = !is_kept && header.kind.has_body() && has_lost();
        let is_missed = is_lost && engine::lacks(&self.engine, &header);
        if !is_kept && !is_missed {
            if is_lost {
                self.count_row('b');
            }
            self.pass(&header, checksum);
            return Ok(Next::Again);
        }
        // A copy of a version that is already prepared needs no comparison with its out-of-line data.
        let is_decided =
            survey.dropped_by(&header).is_some() || parts.blocks.is_known_copy(&header);
        let (body, data) = (Content::Whole, Content::Whole);
        let (bad, inline) = (UnitSet::EMPTY, Vec::new());
        let mut found = Found { header, checksum, body, data, bad, inline, batch: None };
        let header = &found.header;
        if header.kind.is_large() && !is_acked && !is_decided {
            replay.waiting = Some(found);
            return Ok(Next::Data);
        }
        let data_lsn = at.advance(u64::from(header.size - header.data_size()));
        if header.kind.has_body() {
            let is_lost = |range: Range<usize>| replay.is_lost(at, &range);
            let sizes = (superblock.sector_size, at < parts.root.until);
            found.batch = match was_lost {
                true => None,
                false => BatchFound::of(header, bytes, sizes, is_lost),
            };
            found.body = match &found.batch {
                Some(_) => Content::Whole,
                // Whatever can be read by now.
                None if was_lost => Content::Unreadable,
                None if is_lost(0..header.size as usize) => Content::Unreadable,
                None => Content::Bad,
            };
            let is_behind = replay.is_behind_dropped(header);
            let reads = found.batch.as_mut().is_some_and(|batch| {
                batch.ends_without_places(is_acked || is_decided || is_behind);
                batch.next_place().is_some()
            });
            if reads {
                replay.waiting = Some(found);
                return Ok(Next::Data);
            }
            return self.judge(found);
        }
        if header.kind.is_inline() {
            found.inline = inline_data(header, bytes, superblock.sector_size).to_vec();
        }
        // The checkpoint already contains the note of an earlier settle.
        if header.kind != EntryKind::Settle || at >= parts.root.until {
            found.bad = bad_units(header, &found.inline);
        }
        found.body = content(found.bad, |unit| replay.is_lost(data_lsn, &unit_range(unit)));
        self.judge(found)
    }

    /// Handles a place without a next entry: the journal ends, or a hole begins.
    fn no_entry(&mut self, seen: Seen, sector_size: u32) -> Next {
        let (row, verdict) = decide(seen);
        self.count_row(row);
        let replay = &mut self.replay;
        if verdict == Verdict::Stop {
            if seen.header == Header::Unreadable {
                // The sector may become readable later, so it is not overwritten.
                replay.unreadable_end = Some(replay.at.advance(sector_size as u64));
            }
            return Next::End;
        }
        replay.hole = Some(replay.at);
        replay.at = replay.at.advance(sector_size as u64);
        Next::Again
    }

    /// Acts on an entry according to the table.
    fn judge(&mut self, found: Found) -> Result<Next, String> {
        let (header, checksum) = (&found.header, found.checksum);
        let (lsn, key) = (header.lsn, header.key);
        if let Some(by) = self.survey.dropped_by(header)
            && !planted::on(Bug::TailReplayedTwice)
        {
            self.count_row('O');
            self.drop_entry(header, by);
            self.pass(header, checksum);
            return Ok(Next::Again);
        }
        let is_of_objects = self.is_of_objects(header);
        let follows_dropped = match is_of_objects {
            true => self.replay.is_behind_dropped(header),
            false => {
                key.is_some_and(|key| self.replay.dropped.contains(&key))
                    || self.follows_hole(header)
            }
        };
        let (row, verdict) = decide(Seen {
            header: Header::Next,
            body: found.body,
            inline: found.inline(),
            is_of_objects,
            data: found.data,
            is_acked: lsn < self.survey.acked,
            follows_dropped,
            is_committed: self.survey.is_committed(header),
        });
        let was_stated = self.survey.damaged.contains(&lsn) || self.survey.lost.contains(&lsn);
        match verdict {
            Verdict::Stop => {
                self.count_row(row);
                return Ok(Next::End);
            }
            Verdict::Drop => {
                // A dropped version also drops later versions of its PG; they need no decisions of their own.
                if !self.replay.is_behind_dropped(header) {
                    self.decisions.push(match header.pg.filter(|_| is_of_objects) {
                        Some(pg) => Decision::PgTail { pg, from: lsn },
                        None => Decision::Drop(lsn),
                    });
                }
                self.drop_entry(header, Lsn::new(u64::MAX));
            }
            Verdict::Lost if !was_stated && header.kind.has_body() => {
                self.decisions.push(Decision::Lost(lsn));
            }
            Verdict::Damaged | Verdict::Lost if !was_stated => {
                self.decisions.push(Decision::Damaged(lsn));
            }
            _ => {}
        }
        // Damage that an earlier recovery recorded does not make the store suspect again.
        self.count_row(if was_stated { 'O' } else { row });
        let is_settle = header.kind == EntryKind::Settle;
        match (verdict, &found.batch) {
            (Verdict::Replay | Verdict::Damaged, Some(batch)) => {
                self.replay_batch(header, batch)?
            }
            (Verdict::Replay | Verdict::Damaged, None) => {
                self.replay_entry(header, found.bad, &found.inline)?;
            }
            // Only the note is lost: the header still contains the version to settle.
            (Verdict::Lost, _) if is_settle && !planted::on(Bug::SettleForgotten) => {
                let mut settle = header.clone();
                settle.flags.has_note = false;
                self.replay_entry(&settle, UnitSet::EMPTY, &[])?;
            }
            (Verdict::Lost, _) if header.kind.has_body() => self.lose_batch(header),
            _ => {}
        }
        self.pass(header, checksum);
        Ok(Next::Again)
    }

    /// Drops an entry, and with it what must follow it: up to the entry at `until`, which has the decision.
    fn drop_entry(&mut self, header: &EntryHeader, until: Lsn) {
        let is_of_objects = self.is_of_objects(header);
        let replay = &mut self.replay;
        match header.pg.filter(|_| is_of_objects) {
            Some(pg) => {
                if !replay.is_behind_dropped(header) {
                    replay.dropped_objects.insert(pg, (header.lsn, until));
                }
            }
            None => {
                let is_new = until == Lsn::new(u64::MAX) && !is_in_order(header);
                replay.dropped.extend(header.key.filter(|_| is_new));
                replay.note_dropped(header, until);
            }
        }
        if !planted::on(Bug::BatchHalfDropped) {
            replay.kept_from_engine.insert(header.lsn);
        }
        self.note_committed(header);
    }

    /// Commits the versions that a dropped entry records as committed. They were committed, whatever becomes
    /// of the entry, and later entries rely on it.
    fn note_committed(&mut self, header: &EntryHeader) {
        if planted::on(Bug::DroppedEntrySaysNothing) {
            return;
        }
        let parts = self.parts_mut();
        if let (true, Some(pg)) = (header.lsn >= parts.root.until, header.pg) {
            parts.commit(pg, header.committed);
            parts.blocks.prepared.note_said(pg);
        }
    }

    /// Moves on to the end of an entry.
    fn pass(&mut self, header: &EntryHeader, checksum: Checksum) {
        self.note_for_engine(header);
        let replay = &mut self.replay;
        replay.at = header.lsn.advance(header.size as u64);
        replay.previous = checksum;
        replay.is_unchained = false;
        let is_idle = header.kind == EntryKind::Idle && header.durable == header.lsn;
        replay.idle_end = is_idle.then_some(replay.at);
    }

    /// Ends the collection of prepared versions from entries before the root's `until`. Later entries take
    /// full effect.
    fn end_collection(&mut self) {
        if !std::mem::replace(&mut self.replay.has_collected, true) {
            self.parts_mut().blocks.take_places();
        }
    }

    /// Whether a prepared or skipped version must be dropped because an earlier version of its PG is missing:
    /// that version was dropped, there is a gap, or the place that this version shares with it does not
    /// exist.
    fn follows_hole(&self, header: &EntryHeader) -> bool {
        let Some(pg) = header.pg.filter(|_| header.kind.carries_committed()) else { return false };
        if self.replay.is_behind_dropped(header) {
            return true;
        }
        let parts = self.parts();
        if header.lsn < parts.root.until || parts.blocks.is_known_copy(header) {
            return false;
        }
        let lacks_base = header.key.is_some_and(|key| parts.blocks.lacks_base(header, &key));
        if header.flags.is_copy {
            return lacks_base;
        }
        let last = parts.pgs.get(pg).last;
        let is_gap = is_in_order(header)
            && header.version.epoch == last.epoch
            && header.version.counter > last.counter + 1;
        is_gap || lacks_base
    }

    fn replay_entry(&mut self, header: &EntryHeader, bad: UnitSet, data: &[u8]) -> Progress {
        let until = self.parts().root.until;
        let parts = self.parts.as_mut().expect("the superblock is known");
        let old = header.key.and_then(|key| parts.blocks.get(&key));
        let data_lsn = header.lsn.advance(u64::from(header.size - header.data_size()));
        if let (EntryKind::Settle, Some(pg)) = (header.kind, header.pg) {
            self.replay.dropped_pgs.remove(&pg);
        }
        if parts.blocks.is_worse_copy(header, &bad) {
            self.note_committed(header);
            return Ok(());
        }
        if header.lsn < until {
            parts.collect(&Change { header, old, lsn: header.lsn, data_lsn, bad });
            return Ok(());
        }
        if let (true, Some(block_size)) = (header.names_place(), header.block_size) {
            if header.lsn >= self.survey.acked {
                let place = Place { location: header.location, block_size };
                self.replay.places.insert(place);
            }
            if location_of(old) != header.location && !parts.blocks.is_known_copy(header) {
                let pages = &mut parts.pages;
                parts.blocks.occupy(header.location, block_size, |overlay, key, info| {
                    is_emptied(pages, overlay, &key, info)
                })?;
            }
        }
        parts.apply(&Change { header, old, lsn: header.lsn, data_lsn, bad }, data);
        // Damage of a prepared version is recorded when the version becomes stable.
        if !bad.is_empty()
            && !header.kind.is_prepared()
            && let Some(key) = header.key
        {
            let mut units = UnitSet::EMPTY;
            let of_data = header.data_units().enumerate();
            of_data
                .filter(|(index, _)| bad.contains(*index as u32))
                .for_each(|(_, unit)| units.insert(unit));
            parts.blocks.damage.found(key, units);
        }
        Ok(())
    }

    /// Ends the replay where the journal ends. The next entry will be written after everything that was ever
    /// written in this lap.
    fn end_replay(&mut self, io: &mut Io<'_>) -> Progress {
        self.end_collection();
        self.decide_tails();
        let (replay, survey) = (&mut self.replay, &self.survey);
        let end = replay.hole.take().unwrap_or(replay.at);
        let tail = end.max(survey.end).max(survey.acked);
        let tail = replay.unreadable_end.map_or(tail, |behind| tail.max(behind));
        let previous = replay.previous;
        self.plan_families();
        self.check_engine()?;
        self.settle_holes();
        self.reserve_places(io);
        self.on_replayed(end, tail, previous, io)
    }

    /// For PGs with a dropped version and no later settle, decides that all later versions are dropped too: a
    /// later recovery may begin after the dropped version.
    fn decide_tails(&mut self) {
        let tails = self.replay.dropped_pgs.iter();
        let new = tails.filter(|(_, (_, until))| *until == Lsn::new(u64::MAX));
        let tails = new.map(|(pg, (from, _))| Decision::Tail { pg: *pg, from: *from });
        self.decisions.extend(tails);
    }

    /// Records the holes that dropped entries left.
    fn settle_holes(&mut self) {
        let dropped = std::mem::take(&mut self.replay.dropped_versions);
        let pgs = &mut self.parts_mut().pgs;
        dropped.into_iter().for_each(|(pg, version)| pgs.note_dropped(pg, version));
    }

    /// Ends a hole, if there is one, at the current lsn.
    fn end_hole(&mut self) {
        if let Some(from) = self.replay.hole.take() {
            self.decisions.push(Decision::Hole { from, to: self.replay.at });
            self.replay.is_unchained = true;
        }
    }
}

impl Seen {
    /// Returns what recovery finds at a place without a next entry.
    fn without_entry(header: Header, is_acked: bool) -> Seen {
        Seen {
            header,
            body: Content::Bad,
            inline: Inline::Other,
            is_of_objects: false,
            data: Content::Bad,
            is_acked,
            follows_dropped: false,
            is_committed: false,
        }
    }
}

/// Returns the byte range of a unit within an entry's data.
pub fn unit_range(unit: u32) -> Range<usize> {
    let start = unit as usize * UNIT_SIZE as usize;
    start..start + UNIT_SIZE as usize
}

fn overlaps(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Returns the state of data in which the units `bad` do not match their checksums.
pub fn content(bad: UnitSet, is_lost: impl Fn(u32) -> bool) -> Content {
    match (bad.is_empty(), bad.iter().all(is_lost)) {
        (true, _) => Content::Whole,
        (false, true) => Content::Unreadable,
        (false, false) => Content::Bad,
    }
}

impl Replay {
    /// Records that an entry is dropped. Only a versioned entry can leave a hole, because nothing relies on a
    /// repair. A dropped version also drops later prepared and skipped versions of its PG, up to the entry at
    /// `until`, which contains the decision.
    fn note_dropped(&mut self, header: &EntryHeader, until: Lsn) {
        if let (true, Some(pg)) = (is_in_order(header), header.pg)
            && !self.is_behind_dropped(header)
        {
            self.dropped_pgs.insert(pg, (header.version, until));
        }
        if let (true, Some(pg)) = (header.kind.is_versioned(), header.pg) {
            self.dropped_versions.insert((pg, header.version));
        }
    }

    /// Whether the entry is dropped because it follows a dropped version of its PG.
    pub fn is_behind_dropped(&self, header: &EntryHeader) -> bool {
        let of_objects = header.pg.and_then(|pg| self.dropped_objects.get(&pg));
        if let Some((from, until)) = of_objects
            && (header.kind.has_body() || header.key.is_some())
        {
            return (*from..*until).contains(&header.lsn);
        }
        let dropped = header.pg.and_then(|pg| self.dropped_pgs.get(&pg));
        is_in_order(header)
            && dropped.is_some_and(|(from, until)| header.version >= *from && header.lsn < *until)
    }

    /// Whether any byte in the range, counted from `from`, cannot be read.
    pub fn is_lost(&self, from: Lsn, range: &Range<usize>) -> bool {
        let (start, end) = (from.advance(range.start as u64), from.advance(range.end as u64));
        self.lost.iter().any(|lost| lost.start < end && start < lost.end)
    }

    /// Whether the range, counted from `from`, was skipped, so that nothing in it matters.
    pub fn is_skipped(&self, from: Lsn, range: &Range<usize>) -> bool {
        let (start, end) = (from.advance(range.start as u64), from.advance(range.end as u64));
        self.skipped.iter().any(|skipped| skipped.start <= start && end <= skipped.end)
    }

    /// Whether a header may begin here but cannot be read.
    fn header_is_lost(&self, bytes: &[u8], sector_size: u32) -> bool {
        let sector = sector_size as usize;
        let longest = ENTRY_HEADER_SIZE_MAX.next_multiple_of(sector);
        let may_be = self.is_lost(self.at, &(0..sector)) || EntryHeader::may_begin(bytes);
        may_be && self.is_lost(self.at, &(0..longest))
    }

    /// Returns the journal in memory from the next entry on; `None` if there is none.
    fn bytes(&self) -> Option<&[u8]> {
        let (start, chunk) = self.chunk.as_ref()?;
        let from = (*start <= self.at).then(|| self.at.since(*start))?;
        (from < chunk.len() as u64).then(|| &chunk[from as usize..])
    }

    fn chunk_begins_here(&self) -> bool {
        self.chunk.as_ref().is_some_and(|(start, _)| *start == self.at)
    }

    fn header_state(&self, whole: &Option<(EntryHeader, Checksum)>) -> Header {
        let Some((header, _)) = whole else { return Header::Bad };
        match header.lsn.cmp(&self.at) {
            std::cmp::Ordering::Less => Header::Old,
            std::cmp::Ordering::Greater => Header::Newer,
            std::cmp::Ordering::Equal => {
                let is_next = self.is_unchained || header.previous == self.previous;
                if is_next { Header::Next } else { Header::Unchained }
            }
        }
    }
}
