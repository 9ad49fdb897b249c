//! Splits a byte stream into frames, without I/O: the inbox lends memory to receive into, and delivers
//! messages when the filled memory is returned.
//!
//! ```text
//!   buffer: | frame | frame | part of a frame | room |      small payloads are slices of it
//!   payload of 64 KiB or more: received straight into a buffer of its own
//! ```
//!
//! Invariants
//!   1. The first `filled` bytes of `buffer` were received, and belong to a frame that is not delivered yet.
//!   2. The lent memory always has room for at least one more byte.
//!   3. Memory is allocated only for lengths that `decode_header` has checked.

use base::{Buffer, BufferMut, BufferPool};
use format::wire::{DecodeError, FRAME_HEADER_SIZE, FrameHeader, Message, decode, decode_header};

/// Buffer of an idle connection, in bytes; small, because a daemon has thousands of idle connections.
const RECEIVE_SIZE_MIN: usize = 16 << 10;
/// Buffer of a busy connection, in bytes.
const RECEIVE_SIZE_MAX: usize = 256 << 10;
/// Payloads of at least this size, in bytes, get their own buffer.
const LARGE_PAYLOAD_SIZE: usize = 64 << 10;

pub(crate) struct Inbox {
    pool: BufferPool,
    /// Size of the next buffer: grows while buffers come back full, and shrinks when they come back nearly
    /// empty.
    receive_size: usize,
    stage: Stage,
}

enum Stage {
    /// Waits for frames.
    Frames { buffer: BufferMut, filled: usize },
    /// Waits for the rest of a large payload, whose header and body have arrived.
    Payload { header: FrameHeader, body: Vec<u8>, payload: BufferMut, filled: usize },
    /// The memory is lent to the reactor to receive into.
    Lent(Lent),
}

enum Lent {
    Frames,
    Payload { header: FrameHeader, body: Vec<u8> },
}

impl Inbox {
    pub(crate) fn new(pool: &BufferPool) -> Inbox {
        let buffer = pool.take(RECEIVE_SIZE_MIN);
        let stage = Stage::Frames { buffer, filled: 0 };
        Inbox { pool: pool.clone(), receive_size: RECEIVE_SIZE_MIN, stage }
    }

    /// Lends the memory for the next bytes, and returns the offset to receive them at. Requires: `put_back`
    /// follows.
    pub(crate) fn lend(&mut self) -> (BufferMut, usize) {
        let lent = Stage::Lent(Lent::Frames);
        match std::mem::replace(&mut self.stage, lent) {
            Stage::Frames { buffer, filled } => (buffer, filled),
            Stage::Payload { header, body, payload, filled } => {
                self.stage = Stage::Lent(Lent::Payload { header, body });
                (payload, filled)
            }
            Stage::Lent(_) => unreachable!("one receive at a time"),
        }
    }

    /// Whether the lent memory is the buffer of a large payload, which should be filled completely.
    pub(crate) fn lent_payload(&self) -> bool {
        matches!(self.stage, Stage::Lent(Lent::Payload { .. }))
    }

    /// Takes back the memory, whose first `filled` bytes are received, and passes complete messages to
    /// `deliver`. After an error the stream is unusable.
    pub(crate) fn put_back(
        &mut self,
        buffer: BufferMut,
        filled: usize,
        deliver: &mut impl FnMut(Message),
    ) -> Result<(), DecodeError> {
        assert!(filled <= buffer.len());
        let lent = Stage::Lent(Lent::Frames);
        match std::mem::replace(&mut self.stage, lent) {
            Stage::Lent(Lent::Frames) => {
                self.adapt(filled, buffer.len());
                self.take_frames(buffer, filled, deliver)
            }
            Stage::Lent(Lent::Payload { header, body }) if filled < buffer.len() => {
                self.stage = Stage::Payload { header, body, payload: buffer, filled };
                Ok(())
            }
            Stage::Lent(Lent::Payload { header, body }) => {
                assert!(filled == header.payload_length as usize);
                deliver(decode(&header, &body, Some(buffer.freeze()), &self.pool)?);
                let buffer = self.pool.take(self.receive_size);
                self.stage = Stage::Frames { buffer, filled: 0 };
                Ok(())
            }
            _ => unreachable!("it was lent"),
        }
    }

    /// Handles bytes that arrived before the first `lend` (together with the end of the handshake).
    pub(crate) fn put_bytes(
        &mut self,
        mut bytes: &[u8],
        deliver: &mut impl FnMut(Message),
    ) -> Result<(), DecodeError> {
        while !bytes.is_empty() {
            let (mut buffer, filled) = self.lend();
            let (now, later) = bytes.split_at(bytes.len().min(buffer.len() - filled));
            buffer[filled..filled + now.len()].copy_from_slice(now);
            self.put_back(buffer, filled + now.len(), deliver)?;
            bytes = later;
        }
        Ok(())
    }

    fn take_frames(
        &mut self,
        buffer: BufferMut,
        filled: usize,
        deliver: &mut impl FnMut(Message),
    ) -> Result<(), DecodeError> {
        let mut memory = Memory::Own(buffer);
        let mut start = 0;
        loop {
            let bytes = &memory.bytes()[start..filled];
            let Some(header) = bytes.first_chunk::<FRAME_HEADER_SIZE>() else {
                self.keep(memory, start..filled, FRAME_HEADER_SIZE);
                return Ok(());
            };
            let header = decode_header(header)?;
            let body_end = FRAME_HEADER_SIZE + header.body_length as usize;
            let payload_length = header.payload_length as usize;
            if bytes.len() >= body_end && payload_length >= LARGE_PAYLOAD_SIZE {
                return self.begin_payload(header, &bytes[FRAME_HEADER_SIZE..], deliver);
            }
            let wanted = match payload_length {
                LARGE_PAYLOAD_SIZE.. => body_end,
                _ => body_end + payload_length,
            };
            if bytes.len() < wanted {
                self.keep(memory, start..filled, wanted);
                return Ok(());
            }
            if payload_length > 0 {
                memory = memory.share();
            }
            let payload = memory.slice(start + body_end..start + wanted);
            let body = &memory.bytes()[start + FRAME_HEADER_SIZE..start + body_end];
            deliver(decode(&header, body, payload, &self.pool)?);
            start += wanted;
        }
    }

    /// Starts a large payload. `bytes` holds the body and the beginning of the payload. (If the buffer was
    /// enlarged for a long body, `bytes` may also hold the end of the payload and further frames.)
    fn begin_payload(
        &mut self,
        header: FrameHeader,
        bytes: &[u8],
        deliver: &mut impl FnMut(Message),
    ) -> Result<(), DecodeError> {
        // A small buffer, so that in a series of large payloads little of the next one must be copied here.
        self.receive_size = RECEIVE_SIZE_MIN;
        let (body, rest) = bytes.split_at(header.body_length as usize);
        let mut payload = self.pool.take(header.payload_length as usize);
        let (now, later) = rest.split_at(rest.len().min(payload.len()));
        payload[..now.len()].copy_from_slice(now);
        self.stage = Stage::Lent(Lent::Payload { header, body: body.to_vec() });
        self.put_back(payload, now.len(), deliver)?;
        self.put_bytes(later, deliver)
    }

    /// Chooses the size of the next buffer: larger if this one came back full, the minimum if less than a
    /// quarter.
    fn adapt(&mut self, filled: usize, size: usize) {
        if filled == size {
            self.receive_size = (self.receive_size * 4).min(RECEIVE_SIZE_MAX);
        } else if filled < size / 4 {
            self.receive_size = RECEIVE_SIZE_MIN;
        }
    }

    /// Keeps the bytes in `range`, the beginning of a frame of `wanted` bytes, in a buffer with room for
    /// the rest.
    fn keep(&mut self, memory: Memory, range: std::ops::Range<usize>, wanted: usize) {
        let filled = range.len();
        assert!(filled < wanted);
        let size = self.receive_size.max(wanted);
        let moved = |bytes: &[u8]| {
            let mut buffer = self.pool.take(size);
            buffer[..bytes.len()].copy_from_slice(bytes);
            buffer
        };
        let buffer = match memory.own() {
            Ok(mut buffer) if buffer.len() == size => {
                buffer.copy_within(range, 0);
                buffer
            }
            Ok(other_size) => moved(&other_size[range]),
            Err(in_use) => moved(&in_use[range]),
        };
        self.stage = Stage::Frames { buffer, filled };
    }
}

/// A receive buffer; it becomes shared when the first payload is sliced from it.
enum Memory {
    Own(BufferMut),
    Shared(Buffer),
}

impl Memory {
    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Own(buffer) => buffer,
            Memory::Shared(buffer) => buffer,
        }
    }

    fn share(self) -> Memory {
        match self {
            Memory::Own(buffer) => Memory::Shared(buffer.freeze()),
            shared => shared,
        }
    }

    /// Slices a payload from the buffer; `None` if the range is empty.
    fn slice(&self, range: std::ops::Range<usize>) -> Option<Buffer> {
        match self {
            Memory::Shared(buffer) if !range.is_empty() => Some(buffer.slice(range)),
            _ => None,
        }
    }

    /// Makes the buffer writable again, unless payloads sliced from it are still in use.
    fn own(self) -> Result<BufferMut, Buffer> {
        match self {
            Memory::Own(buffer) => Ok(buffer),
            Memory::Shared(buffer) => buffer.try_unfreeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::checksum::checksum_units;
    use base::{Epoch, ImageId, MapRevision, PgId, PoolId, SessionId, StripeIndex};
    use format::wire::{Op, Place, Request, encode};

    fn request(sequence: u64, op: Op) -> Message {
        let pg = PgId { pool: PoolId::FIRST, number: 3 };
        let (session, epoch) = (SessionId::new(5), Epoch::new(1));
        Message::Request(Request { session, sequence, pg, epoch, revision: MapRevision::ZERO, op })
    }

    fn write(sequence: u64, units: usize) -> Message {
        let bytes: Vec<u8> = (0..units * 4096).map(|i| (i / 7) as u8 ^ sequence as u8).collect();
        let mut checksums = Vec::new();
        checksum_units(&bytes, &mut checksums);
        let data = BufferPool::default().copy_of(&bytes);
        let stripe = StripeIndex::new(1);
        let place = Place { image: ImageId::FIRST, seed: ImageId::FIRST, stripe };
        request(
            sequence,
            Op::Write { place, offset: 0, checksums, data, expected: None, lazy: false },
        )
    }

    fn messages() -> Vec<Message> {
        vec![
            write(1, 1),
            request(2, Op::Sync),
            write(3, 16),
            write(4, 15),
            Message::Control("x".repeat(300_000)),
            write(5, 256),
            Message::Control(String::new()),
            write(6, 1),
            request(7, Op::Sync),
            write(8, 17),
            write(9, 1),
        ]
    }

    fn stream(messages: &[Message]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            let payload = encode(message, &mut bytes);
            bytes.extend_from_slice(payload.as_deref().unwrap_or_default());
        }
        bytes
    }

    /// Receives `bytes`, at most `portion` at a time. `keep`: keep every message alive until the end.
    fn receive(bytes: &[u8], portion: usize, keep: bool) -> Result<Vec<Message>, DecodeError> {
        let pool = BufferPool::default();
        let mut inbox = Inbox::new(&pool);
        let mut messages = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let (mut buffer, filled) = inbox.lend();
            let room = buffer.len() - filled;
            assert!(room > 0);
            let (now, later) = rest.split_at(rest.len().min(portion).min(room));
            buffer[filled..filled + now.len()].copy_from_slice(now);
            rest = later;
            inbox.put_back(buffer, filled + now.len(), &mut |message| {
                if !keep {
                    messages.clear();
                }
                messages.push(message);
            })?;
        }
        Ok(messages)
    }

    #[test]
    fn frames_are_complete_however_the_stream_is_split() {
        let sent = messages();
        let bytes = stream(&sent);
        for portion in [1000, 4096, 65_536, 100_000, usize::MAX] {
            assert_eq!(receive(&bytes, portion, true), Ok(messages()), "{portion}");
            let last = receive(&bytes, portion, false).expect("the same bytes");
            assert_eq!(last.as_slice(), &sent[sent.len() - 1..]);
        }
        let small = &sent[..2];
        assert_eq!(receive(&stream(small), 1, true).as_deref(), Ok(small));
    }

    #[test]
    fn bytes_behind_a_handshake_are_not_lost() {
        let mut inbox = Inbox::new(&BufferPool::default());
        let mut received = Vec::new();
        let bytes = stream(&messages());
        inbox.put_bytes(&bytes, &mut |message| received.push(message)).expect("our frames");
        assert_eq!(received, messages());
    }

    #[test]
    fn large_payloads_are_aligned_and_small_ones_share_the_buffer() {
        let received = receive(&stream(&messages()), usize::MAX, true).expect("our frames");
        for message in received {
            let Message::Request(Request { op: Op::Write { data, .. }, .. }) = message else {
                continue;
            };
            assert!(data.len() < LARGE_PAYLOAD_SIZE || data.is_aligned_to(4096));
        }
    }

    #[test]
    fn buffers_grow_with_what_arrives_and_shrink_again() {
        let mut inbox = Inbox::new(&BufferPool::default());
        let (buffer, _) = inbox.lend();
        assert_eq!(buffer.len(), RECEIVE_SIZE_MIN);
        inbox.put_back(buffer, 0, &mut |_| ()).expect("nothing");
        let small: Vec<Message> = (0..2000).map(|number| write(number, 1)).collect();
        inbox.put_bytes(&stream(&small), &mut |_| ()).expect("our frames");
        let (buffer, filled) = inbox.lend();
        assert_eq!(buffer.len(), RECEIVE_SIZE_MAX);
        inbox.put_back(buffer, filled, &mut |_| ()).expect("nothing");
        inbox.put_bytes(&stream(&small[..1]), &mut |_| ()).expect("our frames");
        inbox.put_bytes(&stream(&small[..1]), &mut |_| ()).expect("our frames");
        assert_eq!(inbox.lend().0.len(), RECEIVE_SIZE_MIN);
    }

    #[test]
    fn a_large_buffer_does_not_stay() {
        let mut inbox = Inbox::new(&BufferPool::default());
        let bytes = stream(&[Message::Control("x".repeat(1 << 20)), request(1, Op::Sync)]);
        inbox.put_bytes(&bytes, &mut |_| ()).expect("our frames");
        inbox.put_bytes(&bytes[..10], &mut |_| ()).expect("a part of a frame");
        assert_eq!(inbox.lend().0.len(), RECEIVE_SIZE_MIN);
    }

    #[test]
    fn garbage_ends_the_stream() {
        let mut bytes = stream(&messages());
        bytes[40] ^= 1;
        assert!(receive(&bytes, usize::MAX, true).is_err());
        assert!(receive(&[0x55; 100], usize::MAX, true).is_err());
    }
}
