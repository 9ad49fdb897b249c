//! One connection: its socket, its send queue, and how its next bytes are interpreted.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use base::{Buffer, BufferMut, BufferPool, ConnectionId, Time};
use format::door::CloseReason;

use crate::address::Address;
use crate::handshake::Handshake;
use crate::inbox::Inbox;
use crate::ring::OpKey;
use crate::send_queue::Outbox;

/// Receive size of a byte stream whose reader expects no particular number of bytes, in bytes.
const RAW_RECEIVE_SIZE: usize = 64 << 10;

pub(crate) struct Stream {
    pub(crate) id: ConnectionId,
    /// `None` until the address of the peer is resolved. Operations hold a reference too, so that the
    /// descriptor is not closed, and its number not reused, while an operation uses it.
    pub(crate) socket: Option<Rc<OwnedFd>>,
    pub(crate) stage: Stage,
    pub(crate) queue: Outbox,
    /// The receive in flight.
    pub(crate) receiving: Option<OpKey>,
    /// The operation that waits for room to send, or for the end of the connect.
    pub(crate) waiting: Option<OpKey>,
    /// Whether the socket had more bytes at the last receive.
    pub(crate) more_expected: bool,
    /// Whether the stream is in the reactor's list of streams to handle before the next wait.
    pub(crate) dirty: bool,
    /// Deadline of the current stage (connects, handshakes and lingering have one).
    pub(crate) deadline: Option<Time>,
    /// The peer's address, for messages; empty for incoming connections.
    pub(crate) address: String,
    /// Whether this is an incoming byte stream, which counts towards `raw_max`.
    pub(crate) counted: bool,
}

/// The stages of a connection, in the order in which they occur.
pub(crate) enum Stage {
    /// Waits for the lookup of a host name.
    Resolve,
    /// Waits for the next turn to start the connect.
    Resolved { address: Result<Address, CloseReason> },
    /// Waits until the connect has finished.
    Connect,
    /// Waits for the peer's messages of the handshake.
    Handshake { handshake: Box<Handshake>, incoming: bool },
    /// Frames in both directions.
    Frames(Inbox),
    /// Bytes in both directions.
    Raw(RawInbox),
    /// Waits until its queue is sent; no longer receives.
    Linger,
}

impl Stream {
    pub(crate) fn new(id: ConnectionId, socket: Option<OwnedFd>, stage: Stage) -> Stream {
        Stream {
            id,
            socket: socket.map(Rc::new),
            stage,
            queue: Outbox::default(),
            receiving: None,
            waiting: None,
            more_expected: false,
            dirty: false,
            deadline: None,
            address: String::new(),
            counted: false,
        }
    }
}

/// Received bytes of a byte stream, and the portions in which its reader wants them.
///
/// Invariant: one portion is delivered at a time, so that the reader can request the next one in between.
pub(crate) struct RawInbox {
    pool: BufferPool,
    /// The buffer that the reader waits for, if any.
    expected: Option<Expected>,
    /// Bytes that were received but not delivered yet.
    pending: VecDeque<Buffer>,
    /// Whether the lent memory belongs to `expected`.
    lent_expected: bool,
    pub(crate) paused: bool,
}

enum Expected {
    Here {
        buffer: BufferMut,
        filled: usize,
    },
    /// The buffer is lent to the reactor to receive into.
    Lent,
}

impl RawInbox {
    pub(crate) fn new(pool: &BufferPool) -> RawInbox {
        RawInbox {
            pool: pool.clone(),
            expected: None,
            pending: VecDeque::new(),
            lent_expected: false,
            paused: false,
        }
    }

    /// Receives the next bytes into `buffer[filled..]`, and delivers the buffer once it is full.
    pub(crate) fn expect(&mut self, buffer: BufferMut, filled: usize) {
        assert!(filled < buffer.len());
        assert!(self.expected.is_none(), "one expectation at a time");
        self.expected = Some(Expected::Here { buffer, filled });
    }

    /// Whether bytes should be received now.
    pub(crate) fn wants_bytes(&self) -> bool {
        !self.paused && self.pending.is_empty()
    }

    /// Lends the memory for the next bytes, and returns the offset to receive them at.
    pub(crate) fn lend(&mut self) -> (BufferMut, usize) {
        match self.expected.take() {
            Some(Expected::Here { buffer, filled }) => {
                self.expected = Some(Expected::Lent);
                self.lent_expected = true;
                (buffer, filled)
            }
            Some(Expected::Lent) => unreachable!("one receive at a time"),
            None => (self.pool.take(RAW_RECEIVE_SIZE), 0),
        }
    }

    /// Whether the lent memory is the reader's expected buffer, which should be filled completely.
    pub(crate) fn lent_expected(&self) -> bool {
        self.lent_expected
    }

    /// Takes back the lent memory, whose first `filled` bytes are received.
    pub(crate) fn put_back(&mut self, mut buffer: BufferMut, filled: usize) {
        if std::mem::take(&mut self.lent_expected) {
            self.expected = Some(Expected::Here { buffer, filled });
        } else if filled > 0 {
            buffer.truncate(filled);
            self.pending.push_back(buffer.freeze());
        }
    }

    /// Returns the next portion for the reader, if one is complete and the reader is not paused.
    pub(crate) fn deliver(&mut self) -> Option<Buffer> {
        if self.paused {
            return None;
        }
        match self.expected.take() {
            None => self.pending.pop_front(),
            Some(Expected::Lent) => {
                self.expected = Some(Expected::Lent);
                None
            }
            Some(Expected::Here { mut buffer, mut filled }) => {
                while let Some(bytes) = self.pending.pop_front() {
                    let (room, length) = (buffer.len() - filled, bytes.len());
                    let taken = room.min(length);
                    buffer[filled..filled + taken].copy_from_slice(&bytes[..taken]);
                    filled += taken;
                    if taken < length {
                        self.pending.push_front(bytes.slice(taken..length));
                        break;
                    }
                }
                if filled == buffer.len() {
                    return Some(buffer.freeze());
                }
                self.expected = Some(Expected::Here { buffer, filled });
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrive(inbox: &mut RawInbox, bytes: &[u8]) {
        let (mut buffer, filled) = inbox.lend();
        buffer[filled..filled + bytes.len()].copy_from_slice(bytes);
        inbox.put_back(buffer, filled + bytes.len());
    }

    #[test]
    fn bytes_come_as_they_arrive_unless_expected() {
        let pool = BufferPool::default();
        let mut inbox = RawInbox::new(&pool);
        arrive(&mut inbox, b"head");
        assert_eq!(inbox.deliver().as_deref(), Some(b"head".as_slice()));
        assert!(inbox.deliver().is_none());
        inbox.expect(pool.take(6), 0);
        arrive(&mut inbox, b"pay");
        assert!(inbox.deliver().is_none());
        arrive(&mut inbox, b"lo");
        assert!(inbox.deliver().is_none());
        arrive(&mut inbox, b"a");
        let payload = inbox.deliver().expect("six bytes are there");
        assert_eq!(&payload[..], b"payloa");
        assert!(payload.is_aligned_to(4096));
        arrive(&mut inbox, b"d");
        assert_eq!(inbox.deliver().as_deref(), Some(b"d".as_slice()));
    }

    #[test]
    fn bytes_that_came_before_they_were_expected_are_cut_to_measure() {
        let pool = BufferPool::default();
        let mut inbox = RawInbox::new(&pool);
        let (mut buffer, _) = inbox.lend();
        inbox.expect(pool.take(4), 0);
        buffer[..9].copy_from_slice(b"abcdefghi");
        inbox.put_back(buffer, 9);
        assert_eq!(inbox.deliver().as_deref(), Some(b"abcd".as_slice()));
        let mut begun = pool.take(5);
        begun[..2].copy_from_slice(b"XY");
        inbox.expect(begun, 2);
        assert!(!inbox.wants_bytes());
        assert_eq!(inbox.deliver().as_deref(), Some(b"XYefg".as_slice()));
        assert_eq!(inbox.deliver().as_deref(), Some(b"hi".as_slice()));
        assert!(inbox.wants_bytes());
    }

    #[test]
    fn a_paused_stream_keeps_what_arrived() {
        let pool = BufferPool::default();
        let mut inbox = RawInbox::new(&pool);
        let (mut buffer, _) = inbox.lend();
        inbox.paused = true;
        buffer[..2].copy_from_slice(b"ab");
        inbox.put_back(buffer, 2);
        assert!(inbox.deliver().is_none());
        assert!(!inbox.wants_bytes());
        inbox.paused = false;
        assert_eq!(inbox.deliver().as_deref(), Some(b"ab".as_slice()));
    }
}
