//! What waits to be sent on one socket: small pieces gathered in one place, payloads as handles.
//!
//! Sending is a plain `sendmsg` that does not wait: it nearly always takes all at once, so no
//! memory has to be lent to the kernel and no completion has to be waited for. What the socket's
//! buffer does not take stays here until the ring says that there is room.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use base::Buffer;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// Most pieces in one system call.
const PIECES_MAX: usize = 64;
/// An empty queue keeps at most this much memory for small pieces, in bytes.
const KEPT_SIZE_MAX: usize = 64 << 10;

#[derive(Default)]
pub(crate) struct SendQueue {
    /// The bytes of all small pieces, one after another; those before `small_sent` are gone.
    small: Vec<u8>,
    small_sent: usize,
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are sent already (payloads only).
    front_sent: usize,
    length: usize,
}

enum Piece {
    /// The next `usize` bytes of `small`.
    Small(usize),
    Payload(Buffer),
}

impl SendQueue {
    /// Bytes that wait.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Appends small bytes: `put` writes them to the end of a vector.
    pub(crate) fn push_small<T>(&mut self, put: impl FnOnce(&mut Vec<u8>) -> T) -> T {
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
    pub(crate) fn push_payload(&mut self, payload: Buffer) {
        if !payload.is_empty() {
            self.length += payload.len();
            self.pieces.push_back(Piece::Payload(payload));
        }
    }

    /// Sends as much as the socket takes now. Ends with an empty queue, or with `Errno::AGAIN`
    /// where there is no room, or with the socket's error.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        while self.length > 0 {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = self.gather(&mut slices);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let nothing = &mut SendAncillaryBuffer::default();
            match sendmsg(socket, &slices[..count], nothing, flags) {
                Ok(sent) => self.consume(sent),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn gather<'a>(&'a self, slices: &mut [IoSlice<'a>; PIECES_MAX]) -> usize {
        let mut small = &self.small[self.small_sent..];
        let mut count = 0;
        for (index, piece) in self.pieces.iter().take(PIECES_MAX).enumerate() {
            slices[index] = match piece {
                Piece::Small(length) => {
                    let (piece, rest) = small.split_at(*length);
                    small = rest;
                    IoSlice::new(piece)
                }
                Piece::Payload(payload) if index == 0 => IoSlice::new(&payload[self.front_sent..]),
                Piece::Payload(payload) => IoSlice::new(payload),
            };
            count = index + 1;
        }
        count
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

    /// Gives back the memory of small bytes that are gone.
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

    /// Takes `portion` bytes at a time and returns what a socket would have seen.
    fn drain(queue: &mut SendQueue, portion: usize) -> Vec<u8> {
        let mut seen = Vec::new();
        while queue.length() > 0 {
            let mut slices = [IoSlice::new(&[]); PIECES_MAX];
            let count = queue.gather(&mut slices);
            let offered: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
            let taken = portion.min(offered.len());
            seen.extend_from_slice(&offered[..taken]);
            queue.consume(taken);
        }
        seen
    }

    #[test]
    fn bytes_leave_in_order_whatever_the_socket_takes() {
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
            assert_eq!(queue.length(), expected.len());
            assert_eq!(drain(&mut queue, portion), expected);
            assert!(queue.pieces.is_empty());
            assert!(queue.small.is_empty());
        }
    }

    #[test]
    fn a_queue_that_never_empties_gives_memory_back() {
        let mut queue = SendQueue::default();
        for _ in 0..10_000 {
            queue.push_small(|bytes| bytes.extend_from_slice(&[7; 100]));
            if queue.length() > 1000 {
                queue.consume(100);
            }
        }
        assert!(queue.small.len() < 2 * KEPT_SIZE_MAX);
    }
}
