//! The copy of the state store that OSDs keep: sent whole when an OSD joins, then change by change.

use super::committed_state::{CommittedState, Write};
use crate::copy::{CopyPart, in_parts, is_copied};
use crate::message::FromMonitor;
use crate::records::{Key, Record};

/// Returns the messages, in order, that send the whole copy to an OSD that has joined.
pub(super) fn whole_copy(committed: &CommittedState) -> impl Iterator<Item = FromMonitor> {
    let change = committed.change();
    let copied = committed.all().filter(|(key, _)| is_copied(key));
    let copied = copied.map(|(key, record)| (key.to_string(), record.to_json()));
    let reigns = (Key::Change.to_string(), Record::Change(change.clone()).to_json());
    let parts = in_parts(copied.chain([reigns]));
    let last = (change.last, change.reign_of(change.last).unwrap_or(0));
    let count = parts.len();
    parts.into_iter().enumerate().map(move |(index, put)| {
        let change = (index + 1 == count).then_some(last);
        FromMonitor::StateCopy(CopyPart { begins: index == 0, change, put, gone: Vec::new() })
    })
}

/// Returns the message that updates the OSDs' copies after a transaction; `None`: nothing changed in them.
pub(super) fn change_of_copy(writes: &[Write]) -> Option<FromMonitor> {
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
    let is_changed = !part.put.is_empty() || !part.gone.is_empty();
    is_changed.then_some(FromMonitor::StateCopy(part))
}
