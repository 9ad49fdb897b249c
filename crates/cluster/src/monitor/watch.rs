//! `state watch`: sends every change of the store, in order, to the connections that requested it.

use base::ConnectionId;
use format::wire::CONTROL_SIZE_MAX;
use serde_json::Value;

use super::connections::{Connections, to_text};
use super::edit::Change;
use super::{Effect, clipped};
use crate::message::FromMonitor;
use crate::state::StateRevision;

impl Connections {
    /// Starts sending the connection each change of keys with this prefix.
    pub(super) fn begin_state_watch(
        &mut self,
        connection: ConnectionId,
        prefix: String,
        effects: &mut Vec<Effect>,
    ) {
        self.watch_state(connection, prefix);
        self.send(connection, &FromMonitor::StateWatched, effects);
    }

    /// Sends each watcher the changes of its keys.
    pub(super) fn tell_state_watchers(
        &self,
        revision: StateRevision,
        changes: &[Change],
        effects: &mut Vec<Effect>,
    ) {
        for (connection, prefix) in self.state_watchers() {
            for (key, entry) in changes.iter().filter(|(key, _)| key.starts_with(prefix)) {
                let value = entry.as_ref().map(|entry| value_of(&entry.value));
                let key = key.clone();
                let change = FromMonitor::StateChanged { revision: revision.get(), key, value };
                self.send(connection, &change, effects);
            }
        }
    }

    /// Informs watchers that changes were lost: they must read everything again.
    pub(super) fn lose_state_watches(&mut self, effects: &mut Vec<Effect>) {
        for connection in self.end_state_watches() {
            self.send(connection, &FromMonitor::StateWatchLost, effects);
        }
    }
}

/// Returns a value for display; a text that is not JSON, or is too long for a message, is shortened.
fn value_of(text: &str) -> Value {
    let cut = || Value::String(clipped(text.to_string()));
    let Ok(value) = serde_json::from_str::<Value>(text) else { return cut() };
    let probe = FromMonitor::StateChanged { revision: 0, key: String::new(), value: Some(value) };
    // Leave room for the longest key and revision.
    if to_text(&probe).len() + 8192 > CONTROL_SIZE_MAX as usize {
        return cut();
    }
    let FromMonitor::StateChanged { value: Some(value), .. } = probe else {
        unreachable!("just made")
    };
    value
}
