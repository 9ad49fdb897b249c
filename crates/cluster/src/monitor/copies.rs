//! Telling OSDs what they keep of the state store: all of it when they join, then each change.

use std::collections::BTreeMap;

use base::ConnectionId;
use serde_json::Value;

use super::contents::Write;
use super::{Effect, Monitor};
use crate::copy::{CopyPart, is_copied};
use crate::message::FromMonitor;
use crate::records::{Key, Record};

/// Text of records in one message, in bytes.
const PART_SIZE_MAX: usize = 1 << 20;

impl Monitor {
    /// Tells an OSD that has joined the whole copy.
    pub(super) fn send_copy(&self, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let change = self.contents.change();
        let copied = self.contents.all().filter(|(key, _)| is_copied(key));
        let copied = copied.map(|(key, record)| (key.to_string(), record.to_json()));
        let reigns = (Key::Change.to_string(), Record::Change(change.clone()).to_json());
        let mut parts = parts_of(copied.chain([reigns]));
        let reign = change.reign_of(change.last).unwrap_or(0);
        let count = parts.len();
        for (index, part) in parts.iter_mut().enumerate() {
            part.begins = index == 0;
            part.change = (index + 1 == count).then_some((change.last, reign));
        }
        for part in parts {
            self.send(connection, &FromMonitor::StateCopy(part), effects);
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
        let text = super::to_text(&FromMonitor::StateCopy(part));
        for connection in self.osds.values().filter_map(|live| live.connection) {
            self.send_text(connection, text.clone(), effects);
        }
    }
}

/// Records in parts, each short enough for a message; at least one.
fn parts_of(records: impl Iterator<Item = (String, Value)>) -> Vec<CopyPart> {
    let mut parts = vec![CopyPart::default()];
    let mut size = 0;
    for (key, value) in records {
        size += key.len() + value.to_string().len();
        if size > PART_SIZE_MAX {
            size = 0;
            parts.push(CopyPart::default());
        }
        let last: &mut BTreeMap<String, Value> = &mut parts.last_mut().expect("one at least").put;
        last.insert(key, value);
    }
    parts
}
