//! Replay: follows the journal entry by entry from the root's lsn and does what the table says.

use std::collections::BTreeSet;
use std::ops::Range;

use base::planted::{self, Bug};
use base::{BlockSize, Buffer, Checksum, Lsn, PgId, UNIT_SIZE, Version};
use format::disk::{
    Decision, ENTRY_HEADER_SIZE_MAX, EntryHeader, EntryKind, LOCATION_STEP, UnitSet,
};

use super::survey::{bad_units, inline_data};
use super::{CHUNK_SIZE, Stage};
use crate::decide::{Content, Header, Seen, Verdict, decide};
use crate::disk::Purpose;
use crate::index::BlockInfo;
use crate::store::{Phase, Store};
use crate::write::Change;
use crate::{BlockKey, Effect};

/// Where replay stands.
#[derive(Default)]
pub struct Replay {
    /// The next entry.
    at: Lsn,
    /// Checksum of the entry before.
    previous: Checksum,
    /// Behind a hole the chain cannot be compared.
    is_unchained: bool,
    /// Where the hole began in which the next whole entry is looked for.
    hole: Option<Lsn>,
    /// Journal in memory, and the lsn it begins at.
    chunk: Option<(Lsn, Buffer)>,
    /// The journal ends at a place that cannot be read: behind it.
    unreadable_end: Option<Lsn>,
    /// Behind the last entry, if it records all before it.
    pub idle_end: Option<Lsn>,
    /// Journal that cannot be read.
    lost: Vec<Range<Lsn>>,
    /// Blocks with a dropped entry.
    dropped: BTreeSet<BlockKey>,
    /// What was dropped, now or by an earlier recovery.
    dropped_versions: BTreeSet<(PgId, Version)>,
    /// Places that entries name which no one confirmed.
    places: BTreeSet<(u32, BlockSize)>,
    /// The entry whose out-of-line data is looked at.
    waiting: Option<(EntryHeader, Checksum)>,
    /// Where the journal ends.
    pub end: Lsn,
}

/// What one look at the journal led to.
enum Next {
    /// Look again.
    Again,
    /// The chunk does not reach far enough.
    Fetch,
    /// Out-of-line data must be read first.
    Data,
    /// The journal ends.
    End,
    /// The store cannot be opened; for people.
    Stop(String),
}

impl Store {
    pub(super) fn begin_replay(&mut self, effects: &mut Vec<Effect>) {
        let root = self.parts().root.clone();
        let opening = self.opening();
        opening.replay = Replay { at: root.replay, previous: root.previous, ..Replay::default() };
        self.replay(effects);
    }

    pub(super) fn replay_read(
        &mut self,
        buffer: Buffer,
        lost: &[Range<usize>],
        effects: &mut Vec<Effect>,
    ) {
        let replay = &mut self.opening().replay;
        replay.lost.extend(
            lost.iter().map(|lost| {
                replay.at.advance(lost.start as u64)..replay.at.advance(lost.end as u64)
            }),
        );
        replay.chunk = Some((replay.at, buffer));
        self.replay(effects);
    }

    fn replay(&mut self, effects: &mut Vec<Effect>) {
        loop {
            match self.replay_one() {
                Next::Again => {}
                Next::Fetch => return self.fetch_chunk(effects),
                Next::Data => return self.fetch_data(effects),
                Next::End => return self.end_replay(effects),
                Next::Stop(reason) => return self.stop(reason, effects),
            }
        }
    }

    fn fetch_chunk(&mut self, effects: &mut Vec<Effect>) {
        let journal = self.parts().superblock.journal;
        let opening = self.opening();
        opening.stage = Stage::Replay;
        let position = opening.replay.at.get() % journal.size;
        let size = CHUNK_SIZE.min(journal.size - position);
        opening.survey.bytes += size;
        self.fetch(journal.offset + position, size as usize, effects);
    }

    fn fetch_data(&mut self, effects: &mut Vec<Effect>) {
        let data = self.parts().superblock.data;
        let opening = self.opening();
        opening.stage = Stage::Data;
        let (header, _) = opening.replay.waiting.as_ref().expect("it asks for data");
        let within = header.location as u64 * LOCATION_STEP + header.offset as u64;
        let size = header.length as usize;
        if within + size as u64 > data.size {
            // It is no place at all; zeros match no checksum but those of zeros.
            let zeros = self.pool.take_zeroed(size).freeze();
            return self.data_read(zeros, &[], effects);
        }
        self.fetch(data.offset + within, size, effects);
    }

    /// Out-of-line data that no one confirmed is here: it is compared, and written again.
    pub(super) fn data_read(
        &mut self,
        buffer: Buffer,
        lost: &[Range<usize>],
        effects: &mut Vec<Effect>,
    ) {
        let waiting = self.opening().replay.waiting.take();
        let (header, checksum) = waiting.expect("it asks for data");
        let bad = match planted::on(Bug::StaleDataAccepted) {
            true => UnitSet::EMPTY,
            false => bad_units(&header, &buffer),
        };
        let positions: Vec<u32> = header.data_positions().collect();
        let is_lost = |unit: u32| {
            let range = unit_range(positions[unit as usize]);
            lost.iter().any(|lost| overlaps(lost, &range))
        };
        let data = content(bad, is_lost);
        if data != Content::Bad {
            let place = self.parts().place(header.location) + header.offset as u64;
            self.write_read_again(place, &buffer, lost, effects);
        }
        let contents = (Content::Whole, data);
        match self.judge(header, checksum, bad, contents, &[]) {
            Next::Stop(reason) => self.stop(reason, effects),
            _ => self.replay(effects),
        }
    }

    /// Places that entries beyond the recorded durable lsn name: the power may have gone before
    /// their reservation was durable.
    fn reserve_places(&mut self, effects: &mut Vec<Effect>) {
        if !self.settings.is_sparse {
            return;
        }
        for (location, size) in std::mem::take(&mut self.opening().replay.places) {
            self.opening().writes += 1;
            let place = self.parts().place(location);
            self.disk.reserve(Purpose::RecoveryWrite, place, size.bytes(), effects);
        }
    }

    /// Looks at the place where the next entry should be.
    fn replay_one(&mut self) -> Next {
        let superblock = self.parts().superblock.clone();
        let from = self.parts().root.replay;
        let opening = self.opening();
        let (replay, survey) = (&mut opening.replay, &opening.survey);
        let at = replay.at;
        if at.since(from) >= superblock.journal.size {
            return Next::End;
        }
        let skip = survey.skips.get(&at).copied();
        if let Some((to, is_chained)) = skip
            && !planted::on(Bug::TailReplayedTwice)
        {
            opening.end_hole();
            opening.replay.at = to;
            opening.replay.is_unchained = !is_chained;
            self.count_row('N');
            return Next::Again;
        }
        let Some(bytes) = replay.bytes() else { return Next::Fetch };
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
            return Next::Fetch;
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
                return Next::Again;
            }
            opening.end_hole();
            return Next::Again;
        }
        if state != Header::Next {
            let seen = Seen::without_entry(state, is_acked);
            return self.no_entry(seen, superblock.sector_size);
        }
        let (header, checksum) = whole.expect("a header was seen");
        if header.kind.is_large() && !is_acked && !survey.drops.contains(&at) {
            replay.waiting = Some((header, checksum));
            return Next::Data;
        }
        let data = match header.kind.is_inline() {
            true => inline_data(&header, bytes, superblock.sector_size).to_vec(),
            false => Vec::new(),
        };
        let bad = bad_units(&header, &data);
        let data_lsn = at.advance(u64::from(header.size - header.data_size()));
        let body = content(bad, |unit| replay.is_lost(data_lsn, &unit_range(unit)));
        self.judge(header, checksum, bad, (body, Content::Whole), &data)
    }

    /// There is no next entry here: the journal ends, or a hole begins.
    fn no_entry(&mut self, seen: Seen, sector_size: u32) -> Next {
        let (row, verdict) = decide(seen);
        self.count_row(row);
        let replay = &mut self.opening().replay;
        if verdict == Verdict::Stop {
            if seen.header == Header::Unreadable {
                // Nothing is written over what may be read one day.
                replay.unreadable_end = Some(replay.at.advance(sector_size as u64));
            }
            return Next::End;
        }
        replay.hole = Some(replay.at);
        replay.at = replay.at.advance(sector_size as u64);
        Next::Again
    }

    /// Does what the table says with an entry.
    fn judge(
        &mut self,
        header: EntryHeader,
        checksum: Checksum,
        bad: UnitSet,
        (body, out_of_line): (Content, Content),
        data: &[u8],
    ) -> Next {
        let opening = self.opening();
        let (lsn, key) = (header.lsn, header.key);
        if opening.survey.drops.contains(&lsn) && !planted::on(Bug::TailReplayedTwice) {
            self.count_row('O');
            self.opening().replay.note_dropped(&header);
            self.pass(&header, checksum);
            return Next::Again;
        }
        let (row, verdict) = decide(Seen {
            header: Header::Next,
            body,
            is_block_data: matches!(header.kind, EntryKind::Write | EntryKind::Repair),
            data: out_of_line,
            is_acked: lsn < opening.survey.acked,
            follows_dropped: key.is_some_and(|key| opening.replay.dropped.contains(&key)),
        });
        let was_stated = opening.survey.damaged.contains(&lsn);
        match verdict {
            Verdict::Stop => {
                self.count_row(row);
                return Next::End;
            }
            Verdict::Drop => {
                opening.decisions.push(Decision::Drop(lsn));
                opening.replay.dropped.extend(key);
                opening.replay.note_dropped(&header);
            }
            Verdict::Damaged | Verdict::Lost if !was_stated => {
                opening.decisions.push(Decision::Damaged(lsn));
            }
            _ => {}
        }
        // Damage that was stated before does not make the store suspect once more.
        self.count_row(if was_stated { 'O' } else { row });
        if matches!(verdict, Verdict::Replay | Verdict::Damaged)
            && let Err(reason) = self.replay_entry(&header, bad, data)
        {
            return Next::Stop(reason);
        }
        self.pass(&header, checksum);
        Next::Again
    }

    /// Goes on behind an entry.
    fn pass(&mut self, header: &EntryHeader, checksum: Checksum) {
        let replay = &mut self.opening().replay;
        replay.at = header.lsn.advance(header.size as u64);
        replay.previous = checksum;
        replay.is_unchained = false;
        let is_idle = header.kind == EntryKind::Idle && header.durable == header.lsn;
        replay.idle_end = is_idle.then_some(replay.at);
    }

    fn replay_entry(
        &mut self,
        header: &EntryHeader,
        bad: UnitSet,
        data: &[u8],
    ) -> Result<(), String> {
        let Store { parts, phase: Phase::Opening(opening), .. } = self else {
            unreachable!("entries are replayed before the store opens")
        };
        let parts = parts.as_mut().expect("the superblock is known");
        let old = header.key.and_then(|key| parts.index.get(&key));
        if let (true, Some(block_size), Some(pg)) =
            (header.names_place(), header.block_size, header.pg)
        {
            if header.lsn >= opening.survey.acked {
                opening.replay.places.insert((header.location, block_size));
            }
            if old.is_none_or(|old| old.location != header.location) {
                let info = BlockInfo {
                    version: header.version,
                    pg: pg.number as u16,
                    block_size,
                    location: header.location,
                    tombstone: false,
                };
                parts.occupy(header.location, info)?;
            }
        }
        let data_lsn = header.lsn.advance(u64::from(header.size - header.data_size()));
        parts.change(&Change { header, old, lsn: header.lsn, data_lsn, bad }, data);
        if !bad.is_empty()
            && let Some(key) = header.key
        {
            let mut units = UnitSet::EMPTY;
            let of_data = header.data_units().enumerate();
            of_data
                .filter(|(index, _)| bad.contains(*index as u32))
                .for_each(|(_, unit)| units.insert(unit));
            parts.found_damaged(key, units);
        }
        Ok(())
    }

    /// The journal ends where replay stands; the next entry goes behind all that was ever seen.
    fn end_replay(&mut self, effects: &mut Vec<Effect>) {
        let opening = self.opening();
        let (replay, survey) = (&mut opening.replay, &opening.survey);
        let end = replay.hole.take().unwrap_or(replay.at);
        let tail = end.max(survey.end).max(survey.acked);
        let tail = replay.unreadable_end.map_or(tail, |behind| tail.max(behind));
        let previous = replay.previous;
        self.settle_holes();
        self.reserve_places(effects);
        self.replayed(end, tail, previous, effects);
    }
}

impl Store {
    /// What was dropped is stated, where the PG's last write is of the same epoch: others of the
    /// epoch, before and behind it, are here. Of a later epoch nothing came, of an earlier one the
    /// PG made sure of all before it went on.
    fn settle_holes(&mut self) {
        let dropped = std::mem::take(&mut self.opening().replay.dropped_versions);
        let pgs = &mut self.parts_mut().pgs;
        for (pg, version) in dropped {
            if let Some(record) = pgs.get_mut(&pg)
                && record.last.epoch == version.epoch
            {
                record.hole = Some(record.hole.map_or(version, |hole| hole.min(version)));
            }
        }
    }
}

impl super::Opening {
    /// A hole ends where replay stands.
    fn end_hole(&mut self) {
        if let Some(from) = self.replay.hole.take() {
            self.decisions.push(Decision::Hole { from, to: self.replay.at });
            self.replay.is_unchained = true;
        }
    }
}

impl Seen {
    /// A place without an entry that follows.
    fn without_entry(header: Header, is_acked: bool) -> Seen {
        Seen {
            header,
            body: Content::Bad,
            is_block_data: false,
            data: Content::Bad,
            is_acked,
            follows_dropped: false,
        }
    }
}

/// Where a unit of an entry's data lies, in bytes.
fn unit_range(unit: u32) -> Range<usize> {
    let start = unit as usize * UNIT_SIZE as usize;
    start..start + UNIT_SIZE as usize
}

fn overlaps(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Data of which these units do not match their checksums.
fn content(bad: UnitSet, is_lost: impl Fn(u32) -> bool) -> Content {
    match (bad.is_empty(), bad.iter().all(is_lost)) {
        (true, _) => Content::Whole,
        (false, true) => Content::Unreadable,
        (false, false) => Content::Bad,
    }
}

impl Replay {
    /// A versioned change is dropped; what a repair said nobody counts on.
    fn note_dropped(&mut self, header: &EntryHeader) {
        if let (true, Some(pg)) = (header.kind.is_versioned(), header.pg) {
            self.dropped_versions.insert((pg, header.version));
        }
    }

    /// Whether any of the range of bytes behind `from` cannot be read.
    pub fn is_lost(&self, from: Lsn, range: &Range<usize>) -> bool {
        let (start, end) = (from.advance(range.start as u64), from.advance(range.end as u64));
        self.lost.iter().any(|lost| lost.start < end && start < lost.end)
    }

    /// Whether there may be a header that cannot be read.
    fn header_is_lost(&self, bytes: &[u8], sector_size: u32) -> bool {
        let sector = sector_size as usize;
        let longest = ENTRY_HEADER_SIZE_MAX.next_multiple_of(sector);
        let may_be = self.is_lost(self.at, &(0..sector)) || EntryHeader::may_begin(bytes);
        may_be && self.is_lost(self.at, &(0..longest))
    }

    /// Journal in memory from the next entry on; `None` if there is none.
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
