//! Bytes of objects that lie in containers, on their way out. `docs/internals/buckets.md`, rules 7 and 9.
//!
//! Invariants
//!   1. A hole in a place is never data: what was given back is told apart from zeros that were written.
//!   2. Each whole MiB is compared with its checksum. Of a part of one the store has compared each unit; if one of
//!      them has only zeros, the whole MiB is read and compared: what was given up as lost reads as zeros, too.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use base::MIB;
use base::checksum::crc32c;
use base::planted::{self, Bug};
use bytes::Bytes;
use objects::{Field, Name, Read, ReadAnswer};

use crate::api::Kept;
use crate::core::{Core, RECORDS_SIZE_MAX, Result, not_asked};
use crate::door::{Door, DoorError, Piece, UNIT};
use crate::failure::Failure;
use crate::head::VersionHead;
use crate::names::{VersionStamp, parts_beside};
use crate::parts::{self, Part, PartKey};
use crate::records::{Content, Place};
use crate::waiting::{Taker, result};

/// How many pieces are read ahead of the one that is delivered.
const AHEAD: usize = 3;

/// Where the bytes of an object lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Extent {
    pub(crate) places: Vec<Place>,
    pub(crate) checksums: Vec<u32>,
}

/// Where all of an object's data is.
#[derive(Clone)]
enum Source {
    Places(Arc<Extent>),
    Parts(Arc<Parts>),
}

/// The parts of an object.
struct Parts {
    name: Name,
    /// Number and size of each.
    table: Vec<(u16, u64)>,
}

impl Source {
    fn size(&self) -> u64 {
        match self {
            Source::Places(extent) => extent.size(),
            Source::Parts(parts) => parts.table.iter().map(|(_, size)| size).sum(),
        }
    }
}

/// What a read of a piece found.
pub(crate) enum Fetched {
    /// The bytes.
    Bytes(Bytes),
    /// Some of it was given back.
    Hole,
    /// It is not what was put: it was given back in part, or is damaged.
    Wrong,
}

type Fetching = Taker<Result<Fetched>>;

/// The bytes of an object that lie in containers, one piece after the other.
pub struct DataReader<D: Door> {
    core: Arc<Core<D>>,
    /// The key, and which version of it is read.
    name: Name,
    version: VersionStamp,
    size: u64,
    source: Source,
    /// The part that is read now, and where it begins. All of an object that was put at once is one part.
    extent: Option<(Arc<Extent>, u64)>,
    kept: Kept,
    /// What has not been delivered yet, and from where on nothing is read yet.
    left: Range<u64>,
    next: u64,
    ahead: VecDeque<Fetching>,
    /// How many pieces may be read ahead: one before the first was delivered, for memory is taken then.
    ahead_max: usize,
    /// The first piece, which was read before anything was answered.
    first: Option<Bytes>,
}

impl<D: Door> fmt::Debug for DataReader<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataReader").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Extent {
    /// Returns where a range of the object lies: places, where each begins in the object, and whole units
    /// of it.
    fn units(&self, range: Range<u64>) -> Vec<(Place, u64, Range<u64>)> {
        let mut parts = Vec::new();
        let mut start = 0;
        for place in &self.places {
            let end = start + place.length;
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                let from = (from - start) / UNIT * UNIT;
                parts.push((*place, start, from..(to - start).next_multiple_of(UNIT)));
            }
            start = end;
        }
        parts
    }

    fn size(&self) -> u64 {
        self.places.iter().map(|place| place.length).sum()
    }
}

/// Whether a unit of these has only zeros.
fn has_zero_unit(bytes: &[u8]) -> bool {
    bytes.chunks(UNIT as usize).any(|unit| unit.iter().all(|byte| *byte == 0))
}

impl<D: Door> Core<D> {
    /// Reads a range of an object that lies within one MiB of it.
    async fn fetch(&self, extent: &Extent, range: Range<u64>) -> Result<Fetched> {
        let whole = range.start / MIB * MIB..(range.start / MIB + 1) * MIB;
        let whole = whole.start..whole.end.min(extent.size());
        if range != whole
            && let Some(fetched) = self.fetch_units(extent, range.clone(), true).await?
        {
            return Ok(fetched);
        }
        let bytes = match self.fetch_units(extent, whole.clone(), false).await? {
            Some(Fetched::Bytes(bytes)) => bytes,
            _ => return Ok(Fetched::Hole),
        };
        let expected = extent.checksums.get((whole.start / MIB) as usize);
        if expected != Some(&crc32c(&bytes).get()) && !planted::on(Bug::HoleIsZeros) {
            return Ok(Fetched::Wrong);
        }
        let part = (range.start - whole.start) as usize..(range.end - whole.start) as usize;
        Ok(Fetched::Bytes(bytes.slice(part)))
    }

    /// Reads a range of an object. `None`: a unit has only zeros, and that is to be told.
    async fn fetch_units(
        &self,
        extent: &Extent,
        range: Range<u64>,
        tells_zeros: bool,
    ) -> Result<Option<Fetched>> {
        let mut all = Vec::with_capacity((range.end - range.start) as usize);
        for (place, start, units) in extent.units(range.clone()) {
            let at = place.offset + units.start;
            let length = units.end - units.start;
            let pieces = match self.door.read(place.container(), at, length).await {
                Ok(pieces) => pieces,
                Err(DoorError::Gone) => return Ok(Some(Fetched::Hole)),
                Err(error) => return Err(error.into()),
            };
            let bytes = match joined(pieces, length)? {
                Some(bytes) => bytes,
                None => return Ok(Some(Fetched::Hole)),
            };
            if tells_zeros && has_zero_unit(&bytes) {
                return Ok(None);
            }
            // Of the first and the last unit a part may not be asked for, or not belong to the object.
            let start = start + units.start;
            let from = range.start.saturating_sub(start);
            let to = (range.end - start).min(place.length - units.start);
            if all.is_empty() && to - from == range.end - range.start {
                return Ok(Some(Fetched::Bytes(bytes.slice(from as usize..to as usize))));
            }
            all.extend_from_slice(&bytes[from as usize..to as usize]);
        }
        Ok(Some(Fetched::Bytes(all.into())))
    }
}

/// Joins the pieces of a read. `None`: one of them is a hole.
fn joined(mut pieces: Vec<Piece>, length: u64) -> Result<Option<Bytes>> {
    let is_hole = |piece: &Piece| matches!(piece, Piece::Hole(_));
    if pieces.iter().any(is_hole) && !planted::on(Bug::HoleIsZeros) {
        return Ok(None);
    }
    let bytes = match &mut pieces[..] {
        [Piece::Data(bytes)] => std::mem::take(bytes),
        _ => {
            let mut all = Vec::with_capacity(length as usize);
            for piece in pieces {
                match piece {
                    Piece::Data(bytes) => all.extend_from_slice(&bytes),
                    Piece::Hole(length) => all.resize(all.len() + length as usize, 0),
                }
            }
            all.into()
        }
    };
    match bytes.len() as u64 == length {
        true => Ok(Some(bytes)),
        false => Err(not_asked()),
    }
}

impl<D: Door> Core<D> {
    /// Returns where the data of a version is. `None`: its parts are gone.
    async fn source_of(&self, name: &Name, content: Content, size: u64) -> Result<Option<Source>> {
        let damaged = |what: &str| Failure::Damaged { what: format!("{what} ({name:?})") };
        let source = match content {
            Content::Inline(_) => return Err(damaged("a large object has no places")),
            Content::Places { places, checksums } => {
                Source::Places(Arc::new(Extent { places, checksums }))
            }
            Content::Manifest { upload, .. } => {
                let parts = parts_beside(name, upload)?;
                let Some(table) = self.value_of(&parts, parts::table()).await? else {
                    return Ok(None);
                };
                let table = parts::read_table(&table).map_err(|bad| damaged(&bad.to_string()))?;
                Source::Parts(Arc::new(Parts { name: parts, table }))
            }
        };
        match source.size() == size {
            true => Ok(Some(source)),
            false => Err(damaged("the data has another size than its head says")),
        }
    }

    /// Returns the value of one field of an object.
    pub(crate) async fn value_of(&self, name: &Name, field: Field) -> Result<Option<Bytes>> {
        let (name, fields) = (name.clone(), vec![field]);
        let read = Read::Values { name, fields, size_max: RECORDS_SIZE_MAX };
        match self.door.look(vec![read]).await?.pop() {
            Some(ReadAnswer::Values(values)) => {
                Ok(values.into_iter().next().flatten().map(Into::into))
            }
            _ => Err(not_asked()),
        }
    }

    /// Returns where the part of the object is that has this byte, and where it begins. `None`: it is gone.
    async fn extent_at(&self, source: &Source, at: u64) -> Result<Option<(Arc<Extent>, u64)>> {
        let parts = match source {
            Source::Places(extent) => return Ok(Some((extent.clone(), 0))),
            Source::Parts(parts) => parts,
        };
        let mut base = 0;
        for (number, size) in &parts.table {
            if at < base + size {
                let field = PartKey::Part(*number).field();
                let Some(value) = self.value_of(&parts.name, field).await? else {
                    return Ok(None);
                };
                let part = Part::decode(&value).map_err(|bad| Failure::Damaged {
                    what: format!("{bad} (part {number} of {:?})", parts.name),
                })?;
                if part.size != *size {
                    let what = format!("part {number} has another size ({:?})", parts.name);
                    return Err(Failure::Damaged { what });
                }
                return Ok(Some((Arc::new(part.extent), base)));
            }
            base += size;
        }
        Ok(None)
    }
}

impl<D: Door> DataReader<D> {
    /// Creates a reader of a range, which is not empty, and reads its first piece. `None`: the version is
    /// gone.
    pub(crate) async fn begin(
        core: Arc<Core<D>>,
        (name, version): (Name, &VersionHead),
        content: Content,
        range: Range<u64>,
        kept: Kept,
    ) -> Result<Option<DataReader<D>>> {
        let Some(source) = core.source_of(&name, content, version.size).await? else {
            return match core.content_of(&name, version.id).await? {
                None => Ok(None),
                Some(_) => Err(Failure::Damaged { what: format!("parts are gone ({name:?})") }),
            };
        };
        let mut reader = DataReader {
            core,
            name,
            version: version.id,
            size: version.size,
            source,
            extent: None,
            kept,
            next: range.start,
            left: range,
            ahead: VecDeque::new(),
            ahead_max: 1,
            first: None,
        };
        reader.first = reader.piece().await?;
        reader.ahead_max = AHEAD;
        Ok(reader.first.is_some().then_some(reader))
    }

    /// Returns the next bytes: at most a MiB. `None`: that was all. After an error nothing more comes; the
    /// connection is broken off then, for the client has a part of the object.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        let bytes = match self.first.take() {
            Some(bytes) => {
                self.read_ahead();
                bytes
            }
            None if self.left.is_empty() => return Ok(None),
            None => match self.piece().await? {
                Some(bytes) => bytes,
                None => {
                    let why = "the object was replaced while it was read".into();
                    return Err(Failure::Unavailable { why });
                }
            },
        };
        self.left.start += bytes.len() as u64;
        Ok(Some(bytes))
    }

    /// Returns the next piece. `None`: the version that is read is gone.
    async fn piece(&mut self) -> Result<Option<Bytes>> {
        loop {
            self.read_ahead();
            let Some(fetching) = self.ahead.pop_front() else {
                // The next part of the object begins, or the first one.
                self.extent = self.core.extent_at(&self.source, self.next).await?;
                let what = "a part of an object is not there";
                if self.extent.is_none() && !self.look_again(None, what).await? {
                    return Ok(None);
                }
                continue;
            };
            let gone = || Failure::Unavailable { why: "the gateway stops".into() };
            match fetching.take().await.ok_or_else(gone)?? {
                Fetched::Bytes(bytes) => {
                    if self.ahead_max > 1 {
                        self.read_ahead();
                    }
                    return Ok(Some(bytes));
                }
                fetched => {
                    let extent = self.extent.take();
                    let what = match fetched {
                        Fetched::Wrong => "a checksum is not that of the data",
                        Fetched::Bytes(_) | Fetched::Hole => "a place of an object is empty",
                    };
                    if !self.look_again(extent, what).await? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Something of the object is not where it was: it is looked where it is now. Returns whether the version
    /// is still there.
    async fn look_again(&mut self, before: Option<(Arc<Extent>, u64)>, what: &str) -> Result<bool> {
        let Some(content) = self.core.content_of(&self.name, self.version).await? else {
            return Ok(false);
        };
        let empty = || Failure::Damaged { what: format!("{what} ({:?})", self.name) };
        let source =
            self.core.source_of(&self.name, content, self.size).await?.ok_or_else(empty)?;
        let at = self.left.start;
        let now = self.core.extent_at(&source, at).await?.ok_or_else(empty)?;
        if before.is_none_or(|before| before == now) {
            return Err(empty());
        }
        // It was moved.
        (self.source, self.extent) = (source, Some(now));
        self.ahead.clear();
        self.next = at;
        Ok(true)
    }

    /// Begins to read further pieces, each within a MiB of a part of the object.
    fn read_ahead(&mut self) {
        let Some((extent, base)) = &self.extent else { return };
        let last = self.left.end.min(base + extent.size());
        while self.ahead.len() < self.ahead_max && self.next < last {
            let end = (base + ((self.next - base) / MIB + 1) * MIB).min(last);
            let range = self.next - base..end - base;
            self.next = end;
            let (giver, taker) = result();
            let (core, extent) = (self.core.clone(), extent.clone());
            let kept = self.kept.clone();
            self.core.door.spawn(async move {
                let fetched = core.fetch(&extent, range).await;
                drop(kept);
                giver.give(fetched);
            });
            self.ahead.push_back(taker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_an_object_are_whole_units_of_its_places() {
        let place = |container, offset, length| Place { container, offset, length };
        let (one, other) = (place(1, 4096, 8192), place(2, 0, 5000));
        let extent = Extent { places: vec![one, other], checksums: vec![0] };
        assert_eq!(extent.size(), 13_192);
        assert_eq!(extent.units(0..1), vec![(one, 0, 0..4096)]);
        assert_eq!(extent.units(4095..4097), vec![(one, 0, 0..8192)]);
        let both = vec![(one, 0, 4096..8192), (other, 8192, 0..4096)];
        assert_eq!(extent.units(8000..8193), both);
        assert_eq!(extent.units(13_000..13_192), vec![(other, 8192, 4096..8192)]);
    }

    #[test]
    fn a_unit_of_zeros_is_found() {
        let mut bytes = vec![1; 3 * UNIT as usize];
        assert!(!has_zero_unit(&bytes));
        bytes[UNIT as usize + 1..2 * UNIT as usize].fill(0);
        assert!(!has_zero_unit(&bytes));
        bytes[UNIT as usize] = 0;
        assert!(has_zero_unit(&bytes));
    }
}
