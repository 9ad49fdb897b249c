//! Builds replies to requests: headers in one small buffer, data in the buffers in which it arrived.

use base::{Buffer, BufferPool};
use volume::{Extent, Piece, VolumeError};

use super::protocol::*;

/// Maximum number of extents in one reply; the client sends another request for the rest.
const EXTENT_COUNT_MAX: usize = 4096;

/// Builds the replies of one connection.
pub struct Replies {
    pool: BufferPool,
    zeros: Buffer,
}

/// Size in bytes of the buffer that all zeros are sent from.
const ZEROS_SIZE: usize = 64 << 10;

impl Replies {
    /// Creates a writer that allocates headers from this pool.
    pub fn new(pool: BufferPool) -> Replies {
        let zeros = pool.take_zeroed(ZEROS_SIZE).freeze();
        Replies { pool, zeros }
    }

    /// Returns the reply to a write, trim, zero or flush that succeeded.
    pub fn done(&self, cookie: u64) -> Vec<Buffer> {
        vec![self.pool.copy_of(&simple_header(cookie, 0))]
    }

    /// Returns the reply to a request that failed. `structured`: the client chose structured replies, and the
    /// request is a read or asks for extents.
    pub fn error(&self, structured: bool, cookie: u64, error: &VolumeError) -> Vec<Buffer> {
        let number = errno_of(error) as u32;
        if !structured {
            return vec![self.pool.copy_of(&simple_header(cookie, number))];
        }
        let why = error.to_string();
        let mut bytes = Vec::with_capacity(128);
        let length = 6 + why.len() as u32;
        push_chunk(&mut bytes, CHUNK_FLAG_DONE, CHUNK_ERROR, cookie, length);
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&(why.len() as u16).to_be_bytes());
        bytes.extend_from_slice(why.as_bytes());
        vec![self.pool.copy_of(&bytes)]
    }

    /// Returns the data of a read, for a client without structured replies.
    pub fn simple_data(&self, cookie: u64, pieces: Vec<Piece>) -> Vec<Buffer> {
        let mut buffers = vec![self.pool.copy_of(&simple_header(cookie, 0))];
        self.push_pieces(&mut buffers, pieces);
        buffers
    }

    /// Returns the data of a read at `offset`, in one chunk.
    pub fn whole_data(&self, cookie: u64, offset: u64, pieces: Vec<Piece>) -> Vec<Buffer> {
        let length: u64 = pieces.iter().map(piece_length).sum();
        let mut header = Vec::with_capacity(28);
        push_data_chunk(&mut header, CHUNK_FLAG_DONE, cookie, offset, length);
        let mut buffers = vec![self.pool.copy_of(&header)];
        self.push_pieces(&mut buffers, pieces);
        buffers
    }

    /// Returns the data of a read at `offset`: one chunk for each run of data and one for each hole.
    pub fn chunked_data(&self, cookie: u64, offset: u64, pieces: Vec<Piece>) -> Vec<Buffer> {
        let chunks = chunks_of(pieces);
        let mut headers = Vec::with_capacity(chunks.len() * 32);
        let mut ends = Vec::with_capacity(chunks.len());
        let mut at = offset;
        for (index, chunk) in chunks.iter().enumerate() {
            let is_last = index + 1 == chunks.len();
            let flags = if is_last { CHUNK_FLAG_DONE } else { 0 };
            match chunk {
                Chunk::Data { length, .. } => {
                    push_data_chunk(&mut headers, flags, cookie, at, *length);
                    at += length;
                }
                Chunk::Hole(length) => {
                    push_chunk(&mut headers, flags, CHUNK_OFFSET_HOLE, cookie, 12);
                    headers.extend_from_slice(&at.to_be_bytes());
                    headers.extend_from_slice(&(*length as u32).to_be_bytes());
                    at += length;
                }
            }
            ends.push(headers.len());
        }
        let headers = self.pool.copy_of(&headers);
        let mut buffers = Vec::with_capacity(chunks.len() * 2);
        let mut start = 0;
        for (chunk, end) in chunks.into_iter().zip(ends) {
            buffers.push(headers.slice(start..end));
            start = end;
            if let Chunk::Data { buffers: data, .. } = chunk {
                buffers.extend(data);
            }
        }
        buffers
    }

    /// Returns the extents of a range; with `first_only` just the first one.
    pub fn extents(&self, cookie: u64, extents: &[Extent], first_only: bool) -> Vec<Buffer> {
        let count = if first_only { 1 } else { EXTENT_COUNT_MAX };
        let told = &extents[..extents.len().min(count)];
        let mut bytes = Vec::with_capacity(24 + told.len() * 8);
        let length = 4 + told.len() as u32 * 8;
        push_chunk(&mut bytes, CHUNK_FLAG_DONE, CHUNK_BLOCK_STATUS, cookie, length);
        bytes.extend_from_slice(&BASE_ALLOCATION_ID.to_be_bytes());
        for extent in told {
            let state = if extent.allocated { 0 } else { STATE_HOLE | STATE_ZERO };
            bytes.extend_from_slice(&(extent.length as u32).to_be_bytes());
            bytes.extend_from_slice(&state.to_be_bytes());
        }
        vec![self.pool.copy_of(&bytes)]
    }

    fn push_pieces(&self, buffers: &mut Vec<Buffer>, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Data(data) => buffers.push(data),
                Piece::Hole(mut length) => {
                    while length > 0 {
                        let now = length.min(ZEROS_SIZE as u64);
                        buffers.push(self.zeros.slice(0..now as usize));
                        length -= now;
                    }
                }
            }
        }
    }
}

/// Returns the protocol's number for an error.
fn errno_of(error: &VolumeError) -> Errno {
    match error {
        VolumeError::Full => Errno::NoSpace,
        VolumeError::Damaged
        | VolumeError::Unavailable { .. }
        | VolumeError::Unknown
        | VolumeError::Invalid { .. }
        | VolumeError::Asserted { .. }
        | VolumeError::TooLarge { .. } => Errno::Io,
        VolumeError::ReadOnly => Errno::Permission,
        VolumeError::OutOfRange => Errno::Invalid,
        VolumeError::Ended => Errno::Shutdown,
    }
}

fn simple_header(cookie: u64, error: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

fn push_chunk(bytes: &mut Vec<u8>, flags: u16, kind: u16, cookie: u64, length: u32) {
    bytes.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
}

fn push_data_chunk(bytes: &mut Vec<u8>, flags: u16, cookie: u64, offset: u64, length: u64) {
    push_chunk(bytes, flags, CHUNK_OFFSET_DATA, cookie, 8 + length as u32);
    bytes.extend_from_slice(&offset.to_be_bytes());
}

/// One chunk of a structured reply to a read.
enum Chunk {
    Data { buffers: Vec<Buffer>, length: u64 },
    Hole(u64),
}

/// Cuts the pieces into chunks; adjacent data goes into one chunk.
fn chunks_of(pieces: Vec<Piece>) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match (piece, chunks.last_mut()) {
            (Piece::Data(data), Some(Chunk::Data { buffers, length })) => {
                *length += data.len() as u64;
                buffers.push(data);
            }
            (Piece::Data(data), _) => {
                let length = data.len() as u64;
                chunks.push(Chunk::Data { buffers: vec![data], length });
            }
            (Piece::Hole(length), _) => chunks.push(Chunk::Hole(length)),
        }
    }
    chunks
}

pub(crate) fn piece_length(piece: &Piece) -> u64 {
    match piece {
        Piece::Data(data) => data.len() as u64,
        Piece::Hole(length) => *length,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(buffers: &[Buffer]) -> Vec<u8> {
        buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
    }

    fn replies() -> (Replies, BufferPool) {
        let pool = BufferPool::default();
        (Replies::new(pool.clone()), pool)
    }

    #[test]
    fn a_structured_read_has_a_chunk_for_each_run_and_hole() {
        let (replies, pool) = replies();
        let data = |bytes: &[u8]| Piece::Data(pool.copy_of(bytes));
        let pieces = vec![data(b"ab"), data(b"c"), Piece::Hole(5), data(b"d")];
        let bytes = bytes_of(&replies.chunked_data(7, 100, pieces));
        let mut wanted = Vec::new();
        push_data_chunk(&mut wanted, 0, 7, 100, 3);
        wanted.extend_from_slice(b"abc");
        push_chunk(&mut wanted, 0, CHUNK_OFFSET_HOLE, 7, 12);
        wanted.extend_from_slice(&103u64.to_be_bytes());
        wanted.extend_from_slice(&5u32.to_be_bytes());
        push_data_chunk(&mut wanted, CHUNK_FLAG_DONE, 7, 108, 1);
        wanted.push(b'd');
        assert_eq!(bytes, wanted);
    }

    #[test]
    fn holes_become_zeros_where_holes_are_not_allowed() {
        let (replies, pool) = replies();
        let pieces = || vec![Piece::Hole(70_000), Piece::Data(pool.copy_of(b"x"))];
        let bytes = bytes_of(&replies.simple_data(7, pieces()));
        assert_eq!(bytes.len(), 16 + 70_001);
        assert!(bytes[16..70_016].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[70_016], b'x');
        let bytes = bytes_of(&replies.whole_data(7, 9, pieces()));
        assert_eq!(bytes.len(), 28 + 70_001);
        assert_eq!(bytes[16..20], 70_009u32.to_be_bytes());
        assert_eq!(bytes[20..28], 9u64.to_be_bytes());
    }

    #[test]
    fn errors_carry_the_numbers_and_messages_of_the_protocol() {
        let (replies, _) = replies();
        let numbers = [
            (VolumeError::Full, 28),
            (VolumeError::Damaged, 5),
            (VolumeError::ReadOnly, 1),
            (VolumeError::OutOfRange, 22),
            (VolumeError::Ended, 108),
            (VolumeError::Unavailable { why: "PG 1.3 has no primary".to_string() }, 5),
            (VolumeError::Unknown, 5),
        ];
        for (error, number) in numbers {
            let bytes = bytes_of(&replies.error(false, 7, &error));
            assert_eq!(bytes, simple_header(7, number));
            let bytes = bytes_of(&replies.error(true, 7, &error));
            assert_eq!(bytes[20..24], u32::to_be_bytes(number));
            assert_eq!(bytes[26..], *error.to_string().as_bytes());
        }
    }

    #[test]
    fn one_extent_is_sent_where_one_is_enough() {
        let (replies, _) = replies();
        let extents =
            [Extent { length: 4096, allocated: true }, Extent { length: 8192, allocated: false }];
        assert_eq!(bytes_of(&replies.extents(7, &extents, true)).len(), 20 + 4 + 8);
        let bytes = bytes_of(&replies.extents(7, &extents, false));
        assert_eq!(bytes.len(), 20 + 4 + 16);
        assert_eq!(bytes[36..40], (STATE_HOLE | STATE_ZERO).to_be_bytes());
    }
}
