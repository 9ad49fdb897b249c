//! Names of the connections that this OSD opens.

use base::ConnectionId;

/// Gives even numbers, each once. The network gives odd numbers to the connections that others open.
#[derive(Default)]
pub(crate) struct ConnectionIds(u64);

impl ConnectionIds {
    /// A number that no connection had before.
    pub(crate) fn next(&mut self) -> ConnectionId {
        self.0 += 2;
        ConnectionId::new(self.0)
    }
}
