//! The bytes that wait to be sent on one socket: small pieces are copied into one vector, payloads are kept
//! as handles.
//!
//! A queue is lent to the ring, which sends it in the same system call that waits for the next event. So
//! sending and waiting takes one call, and the scheduler does not run the receiver in between. Such a send
//! never blocks: it nearly always sends everything at once, and then needs no completion. Otherwise the
//! rest stays in the queue until the ring reports that the socket has room.
//!
//! Invariant: bytes are sent in the order in which they were queued, including those queued while the
//! queue is lent.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, RawFd};

use base::Buffer;
use io_uring::{opcode, squeue, types};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// Maximum number of pieces in one system call.
const PIECES_MAX: usize = 64;
/// An empty queue keeps at most this much memory for small pieces, in bytes.
const KEPT_SIZE_MAX: usize = 64 << 10;

/// The queue of one socket, which may be lent to the ring.
#[derive(Default)]
pub(crate) struct Outbox {
    /// The queue if it is not lent; otherwise bytes queued since it was lent. `None` if there are none.
    here: Option<Box<SendQueue>>,
    /// Length of the lent queue in bytes; `None` if it is not lent.
    lent: Option<usize>,
}

impl Outbox {
    /// Returns the number of waiting bytes, including the lent queue.
    pub(crate) fn length(&self) -> usize {
        self.here.as_ref().map_or(0, |queue| queue.length) + self.lent.unwrap_or(0)
    }

    /// Appends small bytes: `put` writes them to the end of a vector.
    pub(crate) fn push_small<T>(&mut self, put: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        self.here.get_or_insert_default().push_small(put)
    }

    /// Appends a payload.
    pub(crate) fn push_payload(&mut self, payload: Buffer) {
        self.here.get_or_insert_default().push_payload(payload);
    }

    /// Lends the queue for a send; `None` if it is empty or already lent. Requires: `put_back` follows.
    pub(crate) fn lend(&mut self) -> Option<Box<SendQueue>> {
        if self.lent.is_some() {
            return None;
        }
        let queue = self.here.take_if(|queue| queue.length > 0)?;
        self.lent = Some(queue.length);
        Some(queue)
    }

    /// Takes the lent queue back, and appends the bytes queued meanwhile.
    pub(crate) fn put_back(&mut self, mut queue: Box<SendQueue>) {
        let lent = self.lent.take().expect("it was lent");
        assert!(queue.length <= lent, "a send only takes bytes away");
        if let Some(later) = self.here.take() {
            queue.append(*later);
        }
        self.here = Some(queue);
    }
}

#[derive(Default)]
pub(crate) struct SendQueue {
    /// The bytes of all small pieces, one after another. The first `small_sent` bytes are already sent.
    small: Vec<u8>,
    small_sent: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are already sent (only if it is a payload).
    front_sent: usize,
    length: usize,
    /// The iovec array that the kernel reads while the queue is lent.
    slices: Vec<libc::iovec>,
    header: Option<libc::msghdr>,
}

enum Piece {
    /// The next `usize` bytes of `small`.
    Small(usize),
    Payload(Buffer),
}

impl SendQueue {
    /// Appends small bytes: `put` writes them to the end of a vector.
    fn push_small<T>(&mut self, put: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let before = self.small.len();
        let result = put(&mut self.small);
        let added = self.small.len() - before;
        self.length += added;
        match self.pieces.back_mut() {
            Some(Piece::Small(length)) => *length += added,
            _ if added == 0 => {}
            _ => self.pieces.push_back(Piece::Small(added)),
        }
        result
    }

    /// Appends a payload.
    fn push_payload(&mut self, payload: Buffer) {
        if !payload.is_empty() {
            self.length += payload.len();
            self.pieces.push_back(Piece::Payload(payload));
        }
    }

    /// Appends all of another queue. Requires: nothing of that queue is sent yet.
    fn append(&mut self, later: SendQueue) {
        assert!(later.small_sent == 0);
        assert!(later.front_sent == 0);
        let length = self.length + later.length;
        let mut small = later.small.as_slice();
        for piece in later.pieces {
            match piece {
                Piece::Small(length) => {
                    let (piece, rest) = small.split_at(length);
                    small = rest;
                    self.push_small(|bytes| bytes.extend_from_slice(piece));
                }
                Piece::Payload(payload) => self.push_payload(payload),
            }
        }
        assert!(self.length == length, "every byte is queued once");
    }

    /// Returns the io_uring entry of a send that sends as much as the socket has room for, and ends during
    /// its submission. The entry points to memory that `self` owns, which must not move or change until
    /// then.
    pub(crate) fn entry(self: &mut Box<Self>, socket: RawFd) -> squeue::Entry {
        let mut slices = std::mem::take(&mut self.slices);
        slices.clear();
        slices.extend(self.front().map(|piece| libc::iovec {
            iov_base: piece.as_ptr().cast_mut().cast(),
            iov_len: piece.len(),
        }));
        self.slices = slices;
        // With MSG_WAITALL a partial send counts as a failure and so posts a completion.
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_WAITALL;
        let fd = types::Fd(socket);
        if let [slice] = self.slices.as_slice() {
            let length = u32::try_from(slice.iov_len).expect("queues are smaller than 4 GiB");
            return opcode::Send::new(fd, slice.iov_base.cast(), length).flags(flags).build();
        }
        // SAFETY: an all-zero header describes a message without address, pieces and control data.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.slices.as_mut_ptr();
        header.msg_iovlen = self.slices.len();
        opcode::SendMsg::new(fd, self.header.insert(header)).flags(flags as u32).build()
    }

    /// Returns the number of bytes that the entry described.
    pub(crate) fn offered_size(&self) -> usize {
        self.slices.iter().map(|slice| slice.iov_len).sum()
    }

    /// Whether the entry described the whole queue.
    pub(crate) fn offers_all(&self) -> bool {
        self.offered_size() == self.length
    }

    /// Handles the result of a send (a number of bytes, or a negative errno). Returns whether the socket
    /// may have more room, or the socket's error.
    pub(crate) fn sent(&mut self, result: i32) -> Result<bool, Errno> {
        const PASSING: i32 = -libc::EINTR;
        const FULL: i32 = -libc::EAGAIN;
        match result {
            PASSING => Ok(true),
            FULL => Ok(false),
            0.. => {
                let (offered, sent) = (self.offered_size(), result as usize);
                self.consume(sent);
                Ok(sent == offered)
            }
            _ => Err(Errno::from_raw_os_error(-result)),
        }
    }

    /// Sends without a ring as much as the socket accepts now. Returns `Ok` when the queue is empty,
    /// `Errno::AGAIN` if the socket has no more room, or the socket's error.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.length > 0 {
            let slices: Vec<IoSlice<'_>> = self.front().map(IoSlice::new).collect();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let nothing = &mut SendAncillaryBuffer::default();
            match sendmsg(socket, &slices, nothing, flags) {
                Ok(sent) => self.consume(sent),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the unsent bytes of the first pieces, as many as one system call accepts.
    fn front(&self) -> impl Iterator<Item = &[u8]> {
        let mut small = &self.small[self.small_sent..];
        self.pieces.iter().take(PIECES_MAX).enumerate().map(move |(index, piece)| match piece {
            Piece::Small(length) => {
                let (piece, rest) = small.split_at(*length);
                small = rest;
                piece
            }
            Piece::Payload(payload) if index == 0 => &payload[self.front_sent..],
            Piece::Payload(payload) => payload,
        })
    }

    fn consume(&mut self, mut sent: usize) {
        assert!(sent <= self.length);
        self.length -= sent;
        while sent > 0 {
            match self.pieces.front_mut().expect("what was sent was queued") {
                Piece::Small(length) => {
                    let part = sent.min(*length);
                    *length -= part;
                    self.small_sent += part;
                    sent -= part;
                    if *length == 0 {
                        self.pieces.pop_front();
                    }
                }
                Piece::Payload(payload) => {
                    let part = sent.min(payload.len() - self.front_sent);
                    self.front_sent += part;
                    sent -= part;
                    if self.front_sent == payload.len() {
                        self.front_sent = 0;
                        self.pieces.pop_front();
                    }
                }
            }
        }
        self.trim();
    }

    /// Releases the memory of small bytes that are sent.
    fn trim(&mut self) {
        if self.small_sent == self.small.len() {
            self.small.clear();
            self.small.shrink_to(KEPT_SIZE_MAX);
            self.small_sent = 0;
        } else if self.small_sent > KEPT_SIZE_MAX {
            self.small.drain(..self.small_sent);
            self.small_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::BufferPool;

    /// Drains the queue in portions of `portion` bytes, and returns the bytes that a socket would have
    /// received.
    fn drain(queue: &mut SendQueue, portion: usize) -> Vec<u8> {
        let mut seen = Vec::new();
        while queue.length > 0 {
            let offered: Vec<u8> = queue.front().flatten().copied().collect();
            let taken = portion.min(offered.len());
            seen.extend_from_slice(&offered[..taken]);
            queue.consume(taken);
        }
        seen
    }

    #[test]
    fn bytes_are_sent_in_order_however_much_the_socket_takes() {
        let pool = BufferPool::default();
        for portion in [1, 3, 100, 4096, 5000, 1 << 20] {
            let mut queue = SendQueue::default();
            let mut expected = Vec::new();
            for round in 0..100u8 {
                queue.push_small(|bytes| bytes.extend_from_slice(&[round; 70]));
                queue.push_small(|_| ());
                expected.extend_from_slice(&[round; 70]);
                let payload = pool.copy_of(&vec![round ^ 0x55; usize::from(round % 3) * 50]);
                expected.extend_from_slice(&payload);
                queue.push_payload(payload);
            }
            assert_eq!(queue.length, expected.len());
            assert_eq!(drain(&mut queue, portion), expected);
            assert!(queue.pieces.is_empty());
            assert!(queue.small.is_empty());
        }
    }

    #[test]
    fn bytes_queued_during_a_send_follow_it() {
        let pool = BufferPool::default();
        let mut outbox = Outbox::default();
        assert!(outbox.lend().is_none());
        outbox.push_small(|bytes| bytes.extend_from_slice(b"first "));
        outbox.push_payload(pool.copy_of(b"payload "));
        let mut queue = outbox.lend().expect("14 bytes wait");
        assert_eq!(outbox.length(), 14);
        outbox.push_small(|bytes| bytes.extend_from_slice(b"second "));
        outbox.push_payload(pool.copy_of(b"payload "));
        outbox.push_small(|bytes| bytes.extend_from_slice(b"end"));
        assert_eq!(outbox.length(), 14 + 18);
        assert!(outbox.lend().is_none(), "one send at a time");
        queue.entry(-1);
        assert_eq!(queue.sent(8), Ok(false), "a part was sent: the socket is full");
        outbox.put_back(queue);
        assert_eq!(outbox.length(), 6 + 18);
        let mut queue = outbox.lend().expect("24 bytes wait");
        assert_eq!(drain(&mut queue, 5), b"yload second payload end");
        outbox.put_back(queue);
        assert_eq!(outbox.length(), 0);
        assert!(outbox.lend().is_none());
    }

    #[test]
    fn outcomes_of_a_send_are_classified() {
        let mut queue = Box::new(SendQueue::default());
        for _ in 0..2 * PIECES_MAX {
            queue.push_small(|bytes| bytes.push(1));
            queue.push_payload(BufferPool::default().copy_of(&[2; 10]));
        }
        queue.entry(-1);
        assert_eq!(queue.slices.len(), PIECES_MAX);
        assert_eq!(queue.sent(-libc::EINTR), Ok(true));
        assert_eq!(queue.sent(-libc::EAGAIN), Ok(false));
        assert_eq!(queue.sent(-libc::EPIPE), Err(Errno::PIPE));
        let all = 11 * PIECES_MAX / 2;
        assert_eq!(queue.length, 4 * all);
        assert_eq!(queue.sent(all as i32), Ok(true), "all that one call takes");
        assert_eq!(queue.length, 3 * all);
    }

    #[test]
    fn a_queue_that_never_empties_gives_memory_back() {
        let mut queue = SendQueue::default();
        for _ in 0..10_000 {
            queue.push_small(|bytes| bytes.extend_from_slice(&[7; 100]));
            if queue.length > 1000 {
                queue.consume(100);
            }
        }
        assert!(queue.small.len() < 2 * KEPT_SIZE_MAX);
    }
}
