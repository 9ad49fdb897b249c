//! Watches a body in `aws-chunked` form while it passes: the S3 library accepts a stream that ends too early,
//! and holds a chunk of any size in memory.
//!
//! ```text
//!   SIZE[;chunk-signature=S] CRLF  SIZE bytes  CRLF  ...  0[;...] CRLF  trailers
//! ```
//!
//! Invariants
//!   1. A stream that passes has its last chunk, and as many bytes of data as its header declares.
//!   2. No chunk that passes is longer than [`CHUNK_SIZE_MAX`].

use crate::limits::CHUNK_SIZE_MAX;

/// The longest line before the data of a chunk.
const LINE_SIZE_MAX: usize = 1024;

/// What is wrong with a stream of chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChunkFault {
    /// It does not have this form.
    Malformed,
    /// A chunk is longer than [`CHUNK_SIZE_MAX`].
    TooLong,
    /// It has fewer or more bytes than it declares.
    Length,
}

/// Where in the stream the next byte is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// In the line before the data: so many bytes of it came.
    Line { size: u64, digits: u32, length: usize, is_digits: bool, was_return: bool },
    /// In data.
    Data { left: u64 },
    /// Behind data: so many bytes of the line's end came.
    Behind { came: u8 },
    /// Behind the last chunk.
    Trailers,
}

const LINE: Place =
    Place::Line { size: 0, digits: 0, length: 0, is_digits: true, was_return: false };

/// Watches one stream.
#[derive(Debug)]
pub struct Chunks {
    declared: u64,
    came: u64,
    place: Place,
    longest: u64,
}

impl Chunks {
    /// Watches a stream that declares so many bytes of data.
    pub fn new(declared: u64) -> Chunks {
        Chunks { declared, came: 0, place: LINE, longest: 0 }
    }

    /// Returns the size of the longest chunk so far.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// The next bytes of the stream came.
    pub fn on_bytes(&mut self, mut bytes: &[u8]) -> Result<(), ChunkFault> {
        while let Some(byte) = bytes.first() {
            let mut used = 1;
            self.place = match self.place {
                Place::Trailers => return Ok(()),
                Place::Line { size, was_return: true, .. } => match (byte, size) {
                    (b'\n', 0) => Place::Trailers,
                    (b'\n', size) => {
                        self.begin_data(size)?;
                        Place::Data { left: size }
                    }
                    _ => return Err(ChunkFault::Malformed),
                },
                Place::Line { .. } => self.line(*byte)?,
                Place::Data { left } => {
                    used = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    match left - used as u64 {
                        0 => Place::Behind { came: 0 },
                        left => Place::Data { left },
                    }
                }
                Place::Behind { came } => match (came, byte) {
                    (0, b'\r') => Place::Behind { came: 1 },
                    (1, b'\n') => LINE,
                    _ => return Err(ChunkFault::Malformed),
                },
            };
            bytes = &bytes[used..];
        }
        Ok(())
    }

    fn line(&self, byte: u8) -> Result<Place, ChunkFault> {
        let Place::Line { mut size, mut digits, length, mut is_digits, .. } = self.place else {
            unreachable!("only called within a line")
        };
        if length >= LINE_SIZE_MAX {
            return Err(ChunkFault::Malformed);
        }
        match (byte, is_digits, char::from(byte).to_digit(16)) {
            (b'\r', ..) if digits > 0 => {
                return Ok(Place::Line { size, digits, length, is_digits, was_return: true });
            }
            (b';', true, _) if digits > 0 => is_digits = false,
            (_, true, Some(digit)) => {
                size = size.checked_mul(16).ok_or(ChunkFault::TooLong)? + u64::from(digit);
                digits += 1;
            }
            (b'\n' | b'\r', ..) | (_, true, None) => return Err(ChunkFault::Malformed),
            (_, false, _) => {}
        }
        if size > CHUNK_SIZE_MAX {
            return Err(ChunkFault::TooLong);
        }
        Ok(Place::Line { size, digits, length: length + 1, is_digits, was_return: false })
    }

    fn begin_data(&mut self, size: u64) -> Result<(), ChunkFault> {
        self.longest = self.longest.max(size);
        self.came += size;
        match self.came <= self.declared {
            true => Ok(()),
            false => Err(ChunkFault::Length),
        }
    }

    /// The stream ended.
    pub fn finish(&self) -> Result<(), ChunkFault> {
        match self.place == Place::Trailers && self.came == self.declared {
            true => Ok(()),
            false => Err(ChunkFault::Length),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Passes a stream in pieces of each size, which must make no difference.
    fn passed(stream: &[u8], declared: u64) -> Result<(), ChunkFault> {
        let results = (1..=stream.len().max(1)).map(|size| {
            let mut chunks = Chunks::new(declared);
            let all = stream.chunks(size).try_for_each(|piece| chunks.on_bytes(piece));
            all.and_then(|()| chunks.finish())
        });
        let results: Vec<_> = results.collect();
        assert!(results.iter().all(|result| *result == results[0]), "{results:?}");
        results[0]
    }

    #[test]
    fn streams_with_and_without_signatures_and_trailers_pass() {
        assert_eq!(passed(b"5\r\nhello\r\n0\r\n\r\n", 5), Ok(()));
        assert_eq!(passed(b"0\r\n\r\n", 0), Ok(()));
        let signed = b"5;chunk-signature=ab\r\nhello\r\nA;chunk-signature=cd\r\n0123456789\r\n\
                       0;chunk-signature=ef\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n";
        assert_eq!(passed(signed, 15), Ok(()));
    }

    #[test]
    fn a_stream_that_ends_early_or_lies_does_not_pass() {
        for (stream, declared) in [
            (&b""[..], 0),
            (b"5\r\nhello\r\n", 5),
            (b"5\r\nhel", 5),
            (b"5\r\nhello\r\n0\r\n\r\n", 6),
            (b"5\r\nhello\r\n0\r\n\r\n", 4),
        ] {
            assert_eq!(passed(stream, declared), Err(ChunkFault::Length), "{stream:?}");
        }
        for stream in [
            &b"hello"[..],
            b"\r\n",
            b"5\nhello",
            b"5\r\nhello!!",
            b";x\r\n",
            b"5;a\rb\r\n",
            b"-5\r\n",
        ] {
            assert_eq!(passed(stream, 5), Err(ChunkFault::Malformed), "{stream:?}");
        }
    }

    #[test]
    fn a_chunk_of_16_mib_passes_and_a_longer_one_does_not() {
        let mut chunks = Chunks::new(1 << 40);
        assert_eq!(chunks.on_bytes(b"1000000\r\n"), Ok(()));
        assert_eq!(chunks.longest(), CHUNK_SIZE_MAX);
        for line in [&b"1000001"[..], b"ffffffff", b"fffffffffffffffffffffff"] {
            assert_eq!(Chunks::new(1 << 40).on_bytes(line), Err(ChunkFault::TooLong));
        }
    }
}
