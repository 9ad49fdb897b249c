//! The requests of all clients that are in flight in the client core, and the bound on their bytes.
//!
//! Invariants
//!   1. `byte_count` is the sum of the weights of all requests in flight.
//!   2. A client is in the queue at most once (the client records whether it is in the queue).

use std::collections::VecDeque;

use base::ConnectionId;
use slab::Slab;
use volume::RequestId;

/// Maximum number of bytes of all clients' requests in flight; the last request may exceed it.
pub(super) const BYTES_MAX: usize = 512 << 20;

/// A request in flight.
pub(super) struct Running {
    pub(super) connection: ConnectionId,
    pub(super) cookie: u64,
    /// Bytes that the request counts toward the bounds.
    pub(super) weight: usize,
    pub(super) wanted: Wanted,
}

/// The form of the answer to a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    Data { offset: u64, length: u32, whole: bool },
    Extents { first_only: bool },
    Done,
    Trimmed,
}

/// All requests in flight.
pub(super) struct Requests {
    running: Slab<Running>,
    byte_count: usize,
    /// Clients that wait until another request may begin, in order; some of them may have disconnected.
    queue: VecDeque<ConnectionId>,
}

impl Requests {
    pub(super) fn new() -> Requests {
        Requests { running: Slab::new(), byte_count: 0, queue: VecDeque::new() }
    }

    /// Whether another request may begin.
    pub(super) fn has_room(&self) -> bool {
        self.byte_count < BYTES_MAX
    }

    pub(super) fn begin(&mut self, request: Running) -> RequestId {
        assert!(self.has_room());
        self.byte_count += request.weight;
        RequestId(self.running.insert(request) as u64)
    }

    /// Ends a request that has begun.
    pub(super) fn end(&mut self, id: RequestId) -> Running {
        let request = self.running.remove(id.0 as usize);
        assert!(request.weight <= self.byte_count);
        self.byte_count -= request.weight;
        request
    }

    /// Puts a client at the end of the queue of clients that wait until another request may begin.
    pub(super) fn wait(&mut self, client: ConnectionId) {
        self.queue.push_back(client);
    }

    /// Takes the first client off the queue, if another request may begin.
    pub(super) fn next_waiting(&mut self) -> Option<ConnectionId> {
        if self.has_room() { self.queue.pop_front() } else { None }
    }
}

#[cfg(test)]
impl Requests {
    pub(super) fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    pub(super) fn byte_count(&self) -> usize {
        self.byte_count
    }

    pub(super) fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }
}
