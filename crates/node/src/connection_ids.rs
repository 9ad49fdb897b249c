//! Ids of the connections that this OSD opens.

use base::ConnectionId;

/// Generates even ids, each once. The network gives odd ids to incoming connections.
#[derive(Default)]
pub(crate) struct ConnectionIds(u64);

impl ConnectionIds {
    /// Returns an id that no connection has had before.
    pub(crate) fn next(&mut self) -> ConnectionId {
        self.0 += 2;
        ConnectionId::new(self.0)
    }
}
