//! Encodes and decodes fields of message bodies. Reading past the end, a count beyond its limit, or a
//! value out of range is an error, never a panic: the bytes come from a peer.
//!
//! Invariants
//!   1. A list is read only after its count was checked against its limit and against the remaining bytes.
//!      So no count makes a reader allocate more than a small multiple of the body.

use base::{
    Checksum, Epoch, ImageId, Incarnation, MapRevision, OsdId, PgId, PoolId, Position, StripeIndex,
    UNIT_SIZE, Version,
};

use base::scheme::STRIPE_BYTES_MAX;

use super::client::{CHAIN_LENGTH_MAX, Place};
use super::decode_error::{DecodeError, wrong};
use super::pg_entry::{Learner, MEMBERS_MAX, Member, PgEntry};

/// Stands for no position.
const NO_POSITION: u8 = u8::MAX;
/// Maximum number of words in a unit bitmap: the words for the largest stripe.
const BITMAP_WORDS_MAX: usize = STRIPE_BYTES_MAX as usize / UNIT_SIZE as usize / 64;
/// Longest text for the operator in a message, in bytes. Longer text is truncated.
const TEXT_SIZE_MAX: usize = 4096;

pub(super) fn put_u16(bytes: &mut Vec<u8>, value: u16) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u32(bytes: &mut Vec<u8>, value: u32) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_u64(bytes: &mut Vec<u8>, value: u64) {
    bytes.extend_from_slice(&value.to_le_bytes());
}

pub(super) fn put_pg(bytes: &mut Vec<u8>, pg: PgId) {
    put_u32(bytes, pg.pool.get());
    put_u32(bytes, pg.number);
}

pub(super) fn put_place(bytes: &mut Vec<u8>, place: &Place) {
    put_u32(bytes, place.image.get());
    put_u32(bytes, place.seed.get());
    put_u32(bytes, place.stripe.get());
}

pub(super) fn put_version(bytes: &mut Vec<u8>, version: Version) {
    put_u32(bytes, version.epoch.get());
    put_u64(bytes, version.counter);
}

pub(super) fn put_chain(bytes: &mut Vec<u8>, parents: &[ImageId]) {
    assert!(parents.len() <= CHAIN_LENGTH_MAX);
    bytes.push(parents.len() as u8);
    for parent in parents {
        put_u32(bytes, parent.get());
    }
}

/// Appends checksums. Their count is not encoded, because it follows from the payload's length.
pub(super) fn put_checksums(bytes: &mut Vec<u8>, checksums: &[Checksum]) {
    for checksum in checksums {
        put_u32(bytes, checksum.get());
    }
}

pub(super) fn put_bitmap(bytes: &mut Vec<u8>, words: &[u64]) {
    assert!(words.len() <= BITMAP_WORDS_MAX);
    bytes.push(words.len() as u8);
    for word in words {
        put_u64(bytes, *word);
    }
}

/// Appends the count of a list whose limit does not fit into a byte. Requires: `count` is within the limit.
pub(super) fn put_count(bytes: &mut Vec<u8>, count: usize, max: usize) {
    assert!(count <= max);
    put_u32(bytes, count as u32);
}

pub(super) fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_SIZE_MAX)];
    put_u16(bytes, text.len() as u16);
    bytes.extend_from_slice(text.as_bytes());
}

pub(super) fn put_entry(bytes: &mut Vec<u8>, entry: &PgEntry) {
    put_pg(bytes, entry.pg);
    put_u32(bytes, entry.epoch.get());
    put_u64(bytes, entry.revision.get());
    assert!(entry.check().is_ok(), "{:?}: {entry:?}", entry.check());
    bytes.push(entry.primary.map_or(NO_POSITION, Position::get));
    bytes.push(entry.positions.len() as u8);
    for member in &entry.positions {
        put_u32(bytes, member.map_or(0, |member| member.osd.get()));
        put_u64(bytes, member.map_or(0, |member| member.incarnation.get()));
    }
    bytes.push(entry.learners.len() as u8);
    for Learner { member, position } in &entry.learners {
        bytes.push(position.get());
        put_u32(bytes, member.osd.get());
        put_u64(bytes, member.incarnation.get());
    }
    put_u32(bytes, entry.given_up.get());
}

fn position(number: u8) -> Result<Position, DecodeError> {
    match Position::new(number) {
        Some(position) => Ok(position),
        None => wrong(format!("invalid position {number}")),
    }
}

/// Checks a range within a stripe: whole units, not empty, not beyond the largest stripe.
pub(super) fn check_range(offset: u32, length: u32) -> Result<(), DecodeError> {
    let unit = UNIT_SIZE as u32;
    let end = u64::from(offset) + u64::from(length);
    if !offset.is_multiple_of(unit) || !length.is_multiple_of(unit) || length == 0 {
        return wrong(format!(
            "a range of {length} bytes at {offset} is empty or not aligned to 4 KiB"
        ));
    }
    if end > STRIPE_BYTES_MAX {
        return wrong(format!(
            "a range of {length} bytes at {offset} ends beyond the largest possible stripe"
        ));
    }
    Ok(())
}

/// The remaining bytes of a body that is being decoded.
pub(super) struct Reader<'a> {
    pub bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn take(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let Some((taken, rest)) = self.bytes.split_at_checked(length) else {
            return wrong("a frame's body is shorter than its message");
        };
        self.bytes = rest;
        Ok(taken)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.take(N)?.try_into().expect("take gives as many as asked"))
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn bool(&mut self) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => wrong(format!("invalid boolean {value}: expected 0 or 1")),
        }
    }

    pub fn pool(&mut self) -> Result<PoolId, DecodeError> {
        PoolId::new(self.u32()?).ok_or_else(|| DecodeError("pool id 0 is not valid".into()))
    }

    pub fn image(&mut self) -> Result<ImageId, DecodeError> {
        ImageId::new(self.u32()?).ok_or_else(|| DecodeError("image id 0 is not valid".into()))
    }

    pub fn pg(&mut self) -> Result<PgId, DecodeError> {
        Ok(PgId { pool: self.pool()?, number: self.u32()? })
    }

    pub fn place(&mut self) -> Result<Place, DecodeError> {
        let (image, seed) = (self.image()?, self.image()?);
        Ok(Place { image, seed, stripe: StripeIndex::new(self.u32()?) })
    }

    pub fn version(&mut self) -> Result<Version, DecodeError> {
        Ok(Version { epoch: Epoch::new(self.u32()?), counter: self.u64()? })
    }

    pub fn range(&mut self) -> Result<(u32, u32), DecodeError> {
        let (offset, length) = (self.u32()?, self.u32()?);
        check_range(offset, length)?;
        Ok((offset, length))
    }

    pub fn count(&mut self, max: usize, of: &str) -> Result<usize, DecodeError> {
        let count = usize::from(self.u8()?);
        if count > max {
            return wrong(format!("too many {of}: {count}, at most {max} are allowed"));
        }
        Ok(count)
    }

    /// Reads the count of a list whose elements have `size` bytes each.
    pub fn list(&mut self, max: usize, size: usize, of: &str) -> Result<usize, DecodeError> {
        let count = self.u32()? as usize;
        if count > max {
            return wrong(format!("too many {of}: {count}, at most {max} are allowed"));
        }
        match count * size <= self.bytes.len() {
            true => Ok(count),
            false => wrong(format!("a list of {count} {of} ends beyond the frame's body")),
        }
    }

    pub fn chain(&mut self) -> Result<Vec<ImageId>, DecodeError> {
        let count = self.count(CHAIN_LENGTH_MAX, "layers")?;
        (0..count).map(|_| self.image()).collect()
    }

    pub fn checksums(&mut self, data_length: usize) -> Result<Vec<Checksum>, DecodeError> {
        let words = self.take(data_length / UNIT_SIZE as usize * 4)?;
        let words = words.chunks_exact(4).map(|word| word.try_into().expect("chunks of 4"));
        Ok(words.map(|word| Checksum::new(u32::from_le_bytes(word))).collect())
    }

    pub fn bitmap(&mut self) -> Result<Vec<u64>, DecodeError> {
        let count = self.count(BITMAP_WORDS_MAX, "words of a bitmap")?;
        (0..count).map(|_| self.u64()).collect()
    }

    pub fn entry(&mut self) -> Result<PgEntry, DecodeError> {
        let pg = self.pg()?;
        let epoch = Epoch::new(self.u32()?);
        let revision = MapRevision::new(self.u64()?);
        let primary = match self.u8()? {
            NO_POSITION => None,
            number => Some(position(number)?),
        };
        let count = self.count(usize::from(Position::COUNT_MAX), "positions")?;
        let positions = (0..count).map(|_| self.member_or_none()).collect::<Result<_, _>>()?;
        let count = self.count(MEMBERS_MAX, "learners")?;
        let learner = |_| {
            let position = position(self.u8()?)?;
            match self.member_or_none()? {
                Some(member) => Ok(Learner { member, position }),
                None => wrong(format!("the learner for {position} has no OSD")),
            }
        };
        let learners = (0..count).map(learner).collect::<Result<_, _>>()?;
        let given_up = Epoch::new(self.u32()?);
        let entry = PgEntry { pg, epoch, revision, primary, positions, learners, given_up };
        match entry.check() {
            Ok(()) => Ok(entry),
            Err(why) => wrong(format!("the entry of PG {pg} is invalid: {why}")),
        }
    }

    pub fn member_or_none(&mut self) -> Result<Option<Member>, DecodeError> {
        let osd = OsdId::new(self.u32()?);
        let incarnation = Incarnation::new(self.u64()?);
        if osd.is_none() && incarnation != Incarnation::new(0) {
            return wrong("a position without an OSD has an incarnation".to_owned());
        }
        Ok(osd.map(|osd| Member { osd, incarnation }))
    }

    pub fn counted_text(&mut self) -> Result<String, DecodeError> {
        let length = usize::from(self.u16()?);
        if length > TEXT_SIZE_MAX {
            return wrong(format!("a string of {length} bytes is too long"));
        }
        self.text(length)
    }

    pub fn text(&mut self, length: usize) -> Result<String, DecodeError> {
        match std::str::from_utf8(self.take(length)?) {
            Ok(text) => Ok(text.to_string()),
            Err(_) => wrong("a string is not valid UTF-8"),
        }
    }
}
