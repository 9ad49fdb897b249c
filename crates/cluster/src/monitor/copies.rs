//! Telling OSDs what they keep of the state store: all of it when they join, then each change.

use base::ConnectionId;

use super::committed_state::Write;
use super::{Effect, Monitor};
use crate::copy::{CopyPart, in_parts, is_copied};
use crate::message::FromMonitor;
use crate::records::{Key, Record};

impl Monitor {
    /// Tells an OSD that has joined the whole copy.
    pub(super) fn send_copy(&self, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let change = self.committed.change();
        let copied = self.committed.all().filter(|(key, _)| is_copied(key));
        let copied = copied.map(|(key, record)| (key.to_string(), record.to_json()));
        let reigns = (Key::Change.to_string(), Record::Change(change.clone()).to_json());
        let parts = in_parts(copied.chain([reigns]));
        let reign = change.reign_of(change.last).unwrap_or(0);
        let count = parts.len();
        for (index, put) in parts.into_iter().enumerate() {
            let change = (index + 1 == count).then_some((change.last, reign));
            let part = CopyPart { begins: index == 0, change, put, gone: Vec::new() };
            self.connections.send(connection, &FromMonitor::StateCopy(part), effects);
        }
    }

    /// Tells OSDs what a transaction that happened has changed of their copies.
    pub(super) fn tell_copies(&self, writes: &[Write], effects: &mut Vec<Effect>) {
        let mut part = CopyPart::default();
        for write in writes {
            match write {
                Write::Put(Record::Change(record)) => {
                    part.change = Some((record.last, record.reign_of(record.last).unwrap_or(0)));
                }
                Write::Put(record) if is_copied(&record.key()) => {
                    part.put.insert(record.key().to_string(), record.to_json());
                }
                Write::Delete(key) if is_copied(key) => part.gone.push(key.to_string()),
                Write::Put(_) | Write::Delete(_) => {}
            }
        }
        if part.put.is_empty() && part.gone.is_empty() {
            return;
        }
        let text = super::connections::to_text(&FromMonitor::StateCopy(part));
        for connection in self.osds.values().filter_map(|live| live.connection) {
            self.connections.send_text(connection, text.clone(), effects);
        }
    }
}
