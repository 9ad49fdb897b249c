//! The clients that have too many unsent bytes: the server polls how many are left.

use std::collections::BTreeSet;

use base::{ConnectionId, Duration, Time};

/// Poll interval for the send queues of slow clients.
const POLL_SPAN: Duration = Duration::from_millis(5);

/// Slow clients, and the time of their next poll.
#[derive(Default)]
pub(super) struct SlowClients {
    clients: BTreeSet<ConnectionId>,
    poll_at: Option<Time>,
}

impl SlowClients {
    /// Returns the time at which the clients must be polled.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.poll_at
    }

    pub(super) fn add(&mut self, now: Time, client: ConnectionId) {
        self.clients.insert(client);
        self.poll_at.get_or_insert(now + POLL_SPAN);
    }

    pub(super) fn contains(&self, client: ConnectionId) -> bool {
        self.clients.contains(&client)
    }

    pub(super) fn remove(&mut self, client: ConnectionId) {
        self.clients.remove(&client);
    }

    /// Returns the clients to poll now: all of them at the deadline, none before.
    pub(super) fn due(&mut self, now: Time) -> impl Iterator<Item = ConnectionId> {
        let is_due = self.poll_at.is_some_and(|at| at <= now);
        if is_due {
            self.poll_at = (!self.clients.is_empty()).then_some(now + POLL_SPAN);
        }
        self.clients.iter().copied().filter(move |_| is_due)
    }
}
