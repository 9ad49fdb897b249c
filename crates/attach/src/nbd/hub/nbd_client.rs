//! One NBD client: its session, and the bounds on its requests in flight.

use base::Time;
use volume::VolumeHandle;

use super::super::session::Session;

/// Maximum number of bytes of one client's requests in flight and unsent replies.
pub(super) const CLIENT_BYTES_MAX: usize = 64 << 20;
/// Maximum number of requests of one client in flight.
const CLIENT_REQUEST_COUNT_MAX: usize = 1024;

/// A connected client.
pub(super) struct Client {
    pub(super) session: Session,
    /// When the client's time to choose an export ends.
    pub(super) choose_until: Option<Time>,
    /// The command to a monitor that was sent for this client and is not answered yet.
    pub(super) ask: Option<u64>,
    /// The volume that the client uses or waits for.
    pub(super) volume: Option<VolumeHandle>,
    request_count: usize,
    pub(super) byte_count: usize,
    /// Upper bound of the unsent bytes: those that waited at the last poll, and all bytes sent since then.
    pub(super) sent_bytes: usize,
    is_paused: bool,
    /// Whether the client is in the queue of clients that wait until another request may begin.
    pub(super) is_queued: bool,
    /// Whether the client is leaving: nothing more is read from it, and its connection closes once its
    /// requests are answered.
    pub(super) is_leaving: bool,
}

impl Client {
    pub(super) fn new(session: Session) -> Client {
        Client {
            session,
            choose_until: None,
            ask: None,
            volume: None,
            request_count: 0,
            byte_count: 0,
            sent_bytes: 0,
            is_paused: false,
            is_queued: false,
            is_leaving: false,
        }
    }

    /// Whether the client has reached its bounds.
    pub(super) fn is_full(&self) -> bool {
        self.byte_count + self.sent_bytes >= CLIENT_BYTES_MAX
            || self.request_count >= CLIENT_REQUEST_COUNT_MAX
    }

    /// Whether the client cannot continue because of unsent replies.
    pub(super) fn waits_for_sends(&self) -> bool {
        self.byte_count + self.sent_bytes >= CLIENT_BYTES_MAX && self.sent_bytes > 0
    }

    /// Whether the client has no request in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.request_count == 0
    }

    /// Counts a new request of `weight` bytes.
    pub(super) fn on_begin(&mut self, weight: usize) {
        assert!(self.request_count < CLIENT_REQUEST_COUNT_MAX);
        self.request_count += 1;
        self.byte_count += weight;
    }

    /// Counts the end of a request of `weight` bytes; its reply has `reply_size` bytes.
    pub(super) fn on_end(&mut self, weight: usize, reply_size: usize) {
        assert!(self.request_count > 0);
        assert!(self.byte_count >= weight);
        self.request_count -= 1;
        self.byte_count -= weight;
        self.sent_bytes += reply_size;
    }

    /// Records whether reading from the client is paused. Returns whether that has changed.
    pub(super) fn set_paused(&mut self, is_paused: bool) -> bool {
        std::mem::replace(&mut self.is_paused, is_paused) != is_paused
    }
}
