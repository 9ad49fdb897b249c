//! Bodies that do not lie in the index, on their way into containers. `docs/internals/buckets.md`, rules 3, 4 and 5.
//!
//! ```text
//!   first bytes ─▶ u: writing {place} ─▶ data, whole stripes, 3 MiB at once ─▶ commit: k names it, u goes
//!                                        (longer than thought: a further place, in u before it is written to)
//!   failure     ─▶ u: garbage
//! ```
//!
//! Invariants
//!   1. A place is in `u` before it is written to, and every unit of the data is written before the commit.
//!   2. Whatever becomes of the upload, its `u` is garbage once its writes have ended, or the commit has taken it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base::{MIB, Version};
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest as Crc};
use objects::{Name, Operation};

use crate::api::{Bucket, Kept};
use crate::containers::NewPlace;
use crate::core::{Core, Result};
use crate::door::{Door, DoorError, Layout, UNIT};
use crate::failure::Failure;
use crate::large::Extent;
use crate::names::{Key, stray_beside};
use crate::records::{PLACES_MAX, Place};
use crate::strays::{self, Stray, Waste};
use crate::waiting::{Taker, result};

/// How often an upload changes its stray, so that the collector knows that it goes on.
pub(crate) const STRAY_RENEWED: Duration = Duration::from_secs(300);
/// The first place of a body whose length is not known; each further one is twice as long.
const FIRST_PLACE: u64 = 64 * MIB;
/// The most bytes that are written at once, and the least of a write in the middle.
const IN_FLIGHT_MAX: u64 = 3 * MIB;
const PIECE_MIN: u64 = MIB;

/// A body on its way.
pub(crate) struct Storing<D: Door> {
    upload: Option<Uploading<D>>,
}

/// The stray of an upload, as its last change left it.
#[derive(Clone)]
pub(crate) struct OwnStray {
    pub(crate) name: Name,
    pub(crate) version: Version,
    pub(crate) places: Vec<Place>,
    /// A commit was sent that has taken it, or may have.
    is_open: Arc<AtomicBool>,
}

struct Uploading<D: Door> {
    core: Arc<Core<D>>,
    data_pool: String,
    places: Vec<Place>,
    /// What names the places, if it is a stray; else a record of the upload does that this is a part of.
    stray: Option<OwnStray>,
    /// When the stray was changed, on the running clock.
    renewed_us: u64,
    layout: Layout,
    /// The length of the body, if it is known.
    length: Option<u64>,
    /// What has not been written yet, and how much was.
    buffer: Vec<u8>,
    written: u64,
    /// Writes under way, and how many bytes they have.
    in_flight: VecDeque<(u64, Taker<std::result::Result<(), DoorError>>)>,
    checksums: Checksums,
    kept: Kept,
}

/// The CRC-32C of each MiB of a body.
struct Checksums {
    done: Vec<u32>,
    open: Crc,
    left: usize,
    /// Bytes of all of them.
    size: u64,
}

impl Checksums {
    fn new() -> Checksums {
        let (done, open) = (Vec::new(), Crc::new(CrcAlgorithm::Crc32Iscsi));
        Checksums { done, open, left: MIB as usize, size: 0 }
    }

    fn update(&mut self, mut bytes: &[u8]) {
        self.size += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(self.left.min(bytes.len()));
            self.open.update(now);
            self.left -= now.len();
            if self.left == 0 {
                self.close();
            }
            bytes = later;
        }
    }

    fn close(&mut self) {
        let open = std::mem::replace(&mut self.open, Crc::new(CrcAlgorithm::Crc32Iscsi));
        self.done.push(open.finalize() as u32);
        self.left = MIB as usize;
    }

    fn finish(mut self) -> Vec<u32> {
        if self.left < MIB as usize {
            self.close();
        }
        self.done
    }
}

impl<D: Door> Storing<D> {
    /// Takes a place for a part of an upload, and names it with an operation: what it returns for a place. A
    /// part without bytes has no place, and no name.
    pub(crate) async fn begin_part(
        core: Arc<Core<D>>,
        data_pool: String,
        length: u64,
        kept: Kept,
        name: impl FnOnce(&[Place]) -> Operation,
    ) -> Result<Storing<D>> {
        let NewPlace { place, session, layout } = core.new_place(&data_pool, length).await?;
        core.door.execute_over(session, name(&[place])).await?;
        let length = Some(length);
        let upload = Uploading::new(core, data_pool, (vec![place], None), layout, length, kept);
        Ok(Storing { upload: Some(upload) })
    }

    /// Takes a place for a body, and names it with a stray.
    pub(crate) async fn begin(
        core: Arc<Core<D>>,
        bucket: &Bucket,
        key: &Key,
        data_pool: String,
        length: Option<u64>,
        kept: Kept,
    ) -> Result<Storing<D>> {
        let name = stray_beside(&bucket.key_name(key)?, core.new_uuid())?;
        let room = length.unwrap_or(FIRST_PLACE);
        let NewPlace { place, session, layout } = core.new_place(&data_pool, room).await?;
        let stray = Stray::Writing(Waste::Places(vec![place]));
        let operation = Operation { objects: vec![strays::create(&name, &stray)] };
        // If its outcome is unknown there may be a stray with a place that nobody writes to: it is collected.
        let version = core.door.execute_over(session, operation).await?.version;
        let places = vec![place];
        let stray = OwnStray { name, version, places: places.clone(), is_open: Arc::default() };
        let named = (places, Some(stray));
        let upload = Uploading::new(core, data_pool, named, layout, length, kept);
        Ok(Storing { upload: Some(upload) })
    }

    /// Takes the next bytes. Waits while too many are being written.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let upload = self.upload.as_mut().expect("it has not ended");
        upload.write(bytes).await
    }

    /// The body is complete: writes the rest, and waits until all of it is durable.
    /// Returns where it lies, and the stray that names its places until a commit does. From then on it is the
    /// caller who gives that up.
    pub(crate) async fn finish(&mut self) -> Result<(Extent, Option<OwnStray>)> {
        let upload = self.upload.as_mut().expect("it has not ended");
        upload.finish().await?;
        let upload = self.upload.take().expect("it has not ended");
        let places = upload.places_of_data();
        Ok((Extent { places, checksums: upload.checksums.finish() }, upload.stray))
    }
}

impl<D: Door> Drop for Storing<D> {
    /// The upload failed, or its client is gone.
    fn drop(&mut self) {
        let Some(upload) = self.upload.take() else { return };
        let (core, stray, in_flight) = (upload.core, upload.stray, upload.in_flight);
        core.clone().door.spawn(async move {
            for (_, write) in in_flight {
                write.take().await;
            }
            // A part's record stays until the upload is completed or aborted.
            if let Some(stray) = stray {
                core.give_up_stray(&stray).await;
            }
        });
    }
}

impl<D: Door> Core<D> {
    /// Makes an upload's stray garbage, unless a commit has taken it. If this fails the collector does it.
    /// Requires: all writes have ended.
    pub(crate) async fn give_up_stray(&self, stray: &OwnStray) {
        let garbage = Stray::Garbage(Waste::Places(stray.places.clone()));
        let steps = strays::change(&stray.name, stray.version, Some(&garbage));
        let changed = self.door.execute(Operation { objects: vec![steps] }).await;
        let is_changed = matches!(changed, Err(DoorError::Asserted { .. }));
        if !is_changed || stray.is_open.load(Ordering::SeqCst) {
            return;
        }
        // The collector was faster. What was written behind its trim is named by nobody; if this fails it
        // costs space.
        for place in &stray.places {
            let _ = self.trim(place).await;
        }
    }
}

impl<D: Door> Uploading<D> {
    fn new(
        core: Arc<Core<D>>,
        data_pool: String,
        (places, stray): (Vec<Place>, Option<OwnStray>),
        layout: Layout,
        length: Option<u64>,
        kept: Kept,
    ) -> Uploading<D> {
        let renewed_us = core.door.running_us();
        Uploading {
            core,
            data_pool,
            places,
            stray,
            renewed_us,
            layout,
            length,
            buffer: Vec::new(),
            written: 0,
            in_flight: VecDeque::new(),
            checksums: Checksums::new(),
            kept,
        }
    }

    /// Returns how many bytes the places take.
    fn room(&self) -> u64 {
        self.places.iter().map(|place| place.length).sum()
    }

    /// Returns the places, each with the length of the data in it.
    fn places_of_data(&self) -> Vec<Place> {
        let mut left = self.written;
        let mut places = Vec::new();
        for place in &self.places {
            let length = place.length.min(left);
            left -= length;
            if length > 0 {
                places.push(Place { length, ..*place });
            }
        }
        places
    }

    /// Returns how many bytes are written at once: whole stripes.
    fn piece(&self) -> u64 {
        self.layout.stripe.max(PIECE_MIN / self.layout.stripe * self.layout.stripe)
    }

    async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.checksums.update(bytes);
        while !bytes.is_empty() {
            let piece = self.piece() as usize;
            let (now, later) = bytes.split_at((piece - self.buffer.len()).min(bytes.len()));
            if self.buffer.capacity() == 0 {
                let left =
                    self.length.map_or(u64::MAX, |length| length.saturating_sub(self.written));
                let size = left.min(piece as u64).next_multiple_of(UNIT);
                self.buffer.reserve_exact(size as usize);
            }
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == piece {
                self.flush().await?;
            }
        }
        if self.core.since(self.renewed_us) >= STRAY_RENEWED {
            self.change_stray(None).await?;
        }
        Ok(())
    }

    async fn finish(&mut self) -> Result<()> {
        if !self.buffer.is_empty() {
            self.flush().await?;
        }
        while !self.in_flight.is_empty() {
            self.wait_for_one().await?;
        }
        match self.checksums.size == self.written {
            true => Ok(()),
            // A write was dropped in the middle, and the body continued.
            false => Err(Failure::IncompleteBody),
        }
    }

    /// Writes what the buffer has. Requires: it is a whole piece, or the last one.
    async fn flush(&mut self) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.buffer);
        let size = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(UNIT as usize), 0);
        let mut bytes = Bytes::from(bytes);
        if self.written + size > self.room() {
            self.add_place().await?;
        }
        let mut in_flight: u64 = self.in_flight.iter().map(|(size, _)| size).sum();
        while in_flight > 0 && in_flight + size > IN_FLIGHT_MAX {
            in_flight -= self.wait_for_one().await?;
        }
        let (mut at, end) = (self.written, self.written + size);
        self.written = end;
        let mut start = 0;
        for place in self.places.clone() {
            // Pieces are whole units but for the last one, and so are places but for the last one.
            let part = (start + place.length).min(end).saturating_sub(at.max(start));
            if part > 0 {
                let data =
                    bytes.split_to(part.next_multiple_of(UNIT).min(bytes.len() as u64) as usize);
                self.send(place, at - start, data, part);
                at += part;
            }
            start += place.length;
        }
        Ok(())
    }

    fn send(&mut self, place: Place, offset: u64, data: Bytes, size: u64) {
        let (giver, taker) = result();
        let (door, kept) = (self.core.door.clone(), self.kept.clone());
        self.core.door.spawn(async move {
            let written = door.write(place.container(), place.offset + offset, data).await;
            drop(kept);
            giver.give(written);
        });
        self.in_flight.push_back((size, taker));
    }

    /// Waits for the oldest write. Returns how many bytes it had.
    async fn wait_for_one(&mut self) -> Result<u64> {
        // It stays in the queue while it is under way, for who drops this waits for it.
        let Some((size, write)) = self.in_flight.front() else { return Ok(0) };
        let (size, written) = (*size, write.take().await);
        self.in_flight.pop_front();
        written.ok_or_else(|| Failure::Unavailable { why: "the gateway stops".into() })??;
        Ok(size)
    }

    /// Takes a further place.
    async fn add_place(&mut self) -> Result<()> {
        if self.length.is_some() || self.places.len() >= PLACES_MAX {
            return Err(Failure::TooLarge { size_max: self.room() });
        }
        let length = FIRST_PLACE << self.places.len();
        let new = self.core.new_place(&self.data_pool, length).await?;
        self.change_stray(Some(new)).await
    }

    /// Changes the stray: with one more place, or only so that it has another version.
    async fn change_stray(&mut self, new: Option<NewPlace>) -> Result<()> {
        let Some(stray) = &self.stray else { return Ok(()) };
        let mut places = self.places.clone();
        places.extend(new.as_ref().map(|new| new.place));
        let writing = Stray::Writing(Waste::Places(places.clone()));
        let steps = strays::change(&stray.name, stray.version, Some(&writing));
        let operation = Operation { objects: vec![steps] };
        let changed = match new {
            Some(new) => self.core.door.execute_over(new.session, operation).await,
            None => self.core.door.execute(operation).await,
        };
        match changed {
            Ok(done) => {
                let version = done.version;
                let stray = OwnStray { version, places: places.clone(), ..stray.clone() };
                (self.stray, self.places) = (Some(stray), places);
                self.renewed_us = self.core.door.running_us();
                Ok(())
            }
            Err(DoorError::Asserted { .. }) => Err(was_collected()),
            Err(error) => Err(error.into()),
        }
    }
}

impl OwnStray {
    /// Whether this is what it names.
    pub(crate) fn is(&self, waste: &Waste) -> bool {
        matches!(waste, Waste::Places(places) if *places == self.places)
    }

    /// A commit has taken it, or may have: its places are not given back from here any more.
    pub(crate) fn on_open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }
}

/// The collector took an upload for one that nobody continues.
pub(crate) fn was_collected() -> Failure {
    Failure::Unavailable { why: "the upload stood still for too long".into() }
}

#[cfg(test)]
mod tests {
    use base::crc32c;

    use super::*;

    #[test]
    fn each_mib_has_its_checksum_however_it_comes() {
        let bytes: Vec<u8> = (0..5 * MIB / 2).map(|at| (at / 7 % 251) as u8).collect();
        for piece in [1_000, 65_536, 1 << 20, 3 << 20] {
            let mut checksums = Checksums::new();
            bytes.chunks(piece).for_each(|bytes| checksums.update(bytes));
            let expected: Vec<u32> =
                bytes.chunks(MIB as usize).map(|it| crc32c(it).get()).collect();
            assert_eq!(checksums.finish(), expected);
        }
    }
}
