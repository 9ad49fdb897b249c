//! An OSD's copy of the records of the state store. Its own store keeps the copy as a log of differences, one
//! in each note.
//!
//! ```text
//!   StateCopy ──▶ CopyKeeper ──▶ difference ──▶ note N+1     [whole copy][difference][difference]...
//!                                                             N-2         N-1         N
//! ```
//!
//! Invariants
//!   1. The notes are numbered without a gap, and the first note begins a whole copy. Reading the notes in
//!      order gives the copy. An incomplete whole copy or difference is ignored.
//!   2. The note of a difference is written before anything else that results from the same message of a
//!      monitor. So everything that this OSD writes because of a new map is in the journal after the
//!      difference that came with that map.
//!   3. Notes before a whole copy are removed once the whole copy is durable.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use blockstore::{NoteKey, Request as StoreRequest};
use cluster::copy::{CopyKeeper, CopyPart, StateCopy, in_parts};
use serde_json::Value;

/// Maximum number of deleted records in one note; if there are more, the copy is written whole.
const GONE_COUNT_MAX: usize = 2000;
/// The log is rewritten as a whole copy when it is longer than this many bytes and longer than twice the
/// copy.
const LOG_SIZE_MIN: u64 = 256 << 10;

/// The copy, and the log that stores it.
#[derive(Default)]
pub(crate) struct StateLog {
    keeper: CopyKeeper,
    /// The numbers of the first note that may exist, and of the next one to be written.
    first: u32,
    next: u32,
    /// Size of all notes, and of the whole copy at their beginning, in bytes.
    size: u64,
    whole_size: u64,
    /// Number of note writes that have not completed.
    open_count: usize,
    /// Notes before this one are removed once no write of a note is under way.
    whole_at: Option<u32>,
    /// Whether a note is lost, so that the copy must be written whole.
    is_broken: bool,
}

impl StateLog {
    /// Reads the notes of earlier runs.
    pub(crate) fn read<'a>(notes: impl Iterator<Item = (NoteKey, &'a [u8])>) -> StateLog {
        let mut log = StateLog { first: 1, next: 1, ..StateLog::default() };
        for (key, bytes) in notes {
            let NoteKey::State(number) = key else { continue };
            if log.size == 0 {
                log.first = number;
            } else {
                log.is_broken |= number != log.next;
            }
            log.next = number + 1;
            log.size += bytes.len() as u64;
            match serde_json::from_slice::<CopyPart>(bytes) {
                Ok(part) => {
                    log.is_broken &= !part.begins;
                    if !log.is_broken {
                        log.keeper.take(part);
                    }
                }
                Err(_) => log.is_broken = true,
            }
        }
        log.is_broken |= log.keeper.is_taking();
        let records = log.copy().records.iter();
        log.whole_size =
            records.map(|(key, value)| (key.len() + value.to_string().len()) as u64).sum();
        log
    }

    /// Returns the newest complete copy.
    pub(crate) fn copy(&self) -> &StateCopy {
        self.keeper.copy()
    }

    /// Handles a part of the copy, or a difference, from a monitor. Returns the notes to write.
    pub(crate) fn take(&mut self, part: CopyPart) -> Vec<StoreRequest> {
        let Some(difference) = self.keeper.take(part) else { return Vec::new() };
        self.is_broken |= difference.gone.len() > GONE_COUNT_MAX;
        if self.is_broken || self.size == 0 || planted::on(Bug::StateDifferenceLost) {
            return self.tidy();
        }
        self.notes_of(difference.put, difference.gone, false)
    }

    /// Returns the notes that write the copy whole, if a note is lost or the log is too long. Once those
    /// notes are durable, returns the removals of the notes before them.
    pub(crate) fn tidy(&mut self) -> Vec<StoreRequest> {
        if self.open_count > 0 {
            return Vec::new();
        }
        if let Some(whole_at) = self.whole_at.take().filter(|_| !self.is_broken) {
            let old = std::mem::replace(&mut self.first, whole_at)..whole_at;
            return old.map(|number| self.note(number, Vec::new())).collect();
        }
        let is_long = self.size > LOG_SIZE_MIN.max(2 * self.whole_size);
        if self.copy().change == 0 || !(self.is_broken || self.size == 0 || is_long) {
            return Vec::new();
        }
        self.is_broken = false;
        self.whole_at = Some(self.next);
        self.size = 0;
        let records = self.copy().records.clone();
        let notes = self.notes_of(records, Vec::new(), true);
        self.whole_size = self.size;
        notes
    }

    /// Handles the end of a note's write; `is_done` is false if it failed.
    pub(crate) fn on_noted(&mut self, is_done: bool) {
        self.open_count -= 1;
        self.is_broken |= !is_done;
    }

    fn notes_of(
        &mut self,
        put: BTreeMap<String, Value>,
        mut gone: Vec<String>,
        begins: bool,
    ) -> Vec<StoreRequest> {
        let StateCopy { change, reign, .. } = *self.copy();
        let parts = in_parts(put);
        let count = parts.len();
        let of_part = |(index, put)| {
            let change = (index + 1 == count).then_some((change, reign));
            let gone = std::mem::take(&mut gone);
            let part = CopyPart { begins: begins && index == 0, change, put, gone };
            serde_json::to_vec(&part).expect("plain data with text keys")
        };
        let notes: Vec<Vec<u8>> = parts.into_iter().enumerate().map(of_part).collect();
        let mut requests = Vec::new();
        for bytes in notes {
            self.size += bytes.len() as u64;
            requests.push(self.note(self.next, bytes));
            self.next += 1;
        }
        requests
    }

    fn note(&mut self, number: u32, bytes: Vec<u8>) -> StoreRequest {
        self.open_count += 1;
        StoreRequest::Note { key: NoteKey::State(number), bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contents of the store: notes by number.
    #[derive(Clone, Default)]
    struct Notes(BTreeMap<NoteKey, Vec<u8>>);

    impl Notes {
        /// Writes the first `count` of these notes, and reports all of them as done.
        fn write(&mut self, log: &mut StateLog, requests: Vec<StoreRequest>, count: usize) {
            let all = requests.len();
            for request in requests.into_iter().take(count) {
                let StoreRequest::Note { key, bytes } = request else { panic!("{request:?}") };
                match bytes.is_empty() {
                    true => self.0.remove(&key),
                    false => self.0.insert(key, bytes),
                };
            }
            (0..all).for_each(|_| log.on_noted(true));
        }

        fn read(&self) -> StateLog {
            StateLog::read(self.0.iter().map(|(key, bytes)| (*key, &bytes[..])))
        }

        fn take(&mut self, log: &mut StateLog, part: CopyPart) {
            let requests = log.take(part);
            self.write(log, requests, usize::MAX);
            let requests = log.tidy();
            self.write(log, requests, usize::MAX);
        }
    }

    fn part(begins: bool, change: u64, put: &[(&str, u64)], gone: &[&str]) -> CopyPart {
        let put = put.iter().map(|(key, value)| (key.to_string(), Value::from(*value))).collect();
        let gone = gone.iter().map(|key| key.to_string()).collect();
        CopyPart { begins, change: Some((change, 7)), put, gone }
    }

    /// A store with a whole copy and two differences.
    fn written() -> (Notes, StateLog) {
        let (mut notes, mut log) = (Notes::default(), Notes::default().read());
        notes.take(&mut log, part(true, 1, &[("a", 1), ("b", 1)], &[]));
        notes.take(&mut log, part(false, 2, &[("a", 2)], &[]));
        notes.take(&mut log, part(false, 3, &[("c", 3)], &["b"]));
        (notes, log)
    }

    fn numbers(notes: &Notes) -> Vec<NoteKey> {
        notes.0.keys().copied().collect()
    }

    #[test]
    fn differences_are_noted_one_by_one_and_read_in_order() {
        let (mut notes, mut log) = written();
        assert_eq!(numbers(&notes), [1, 2, 3].map(NoteKey::State));
        assert_eq!(notes.read().copy(), log.copy());
        // A whole copy that changes no record adds only its change number to the log.
        notes.take(&mut log, part(true, 4, &[("a", 2), ("c", 3)], &[]));
        let noted = String::from_utf8_lossy(&notes.0[&NoteKey::State(4)]).into_owned();
        assert!(!noted.contains("put\":{\"") && noted.len() < 80, "{noted}");
        assert_eq!((notes.read().copy(), notes.read().copy().change), (log.copy(), 4));
    }

    #[test]
    fn a_log_cut_at_any_note_gives_the_copy_of_before() {
        let (notes, _) = written();
        for (count, change) in [(0, 0), (1, 1), (2, 2), (3, 3)] {
            let mut cut = notes.clone();
            cut.0 = cut.0.into_iter().take(count).collect();
            let mut log = cut.read();
            assert_eq!(log.copy().change, change);
            cut.take(&mut log, part(true, 9, &[("z", 1)], &[]));
            assert_eq!(cut.read().copy(), log.copy(), "it goes on behind it");
        }
        // A note in the middle is lost: those after it are not applied, and the next message makes the copy
        // whole.
        let mut torn = notes;
        torn.0.remove(&NoteKey::State(2));
        let mut log = torn.read();
        assert_eq!((log.copy().change, log.copy().records.len()), (1, 2));
        torn.take(&mut log, part(true, 9, &[("z", 1)], &[]));
        assert_eq!(torn.read().copy(), log.copy());
        assert_eq!(numbers(&torn), [NoteKey::State(4)]);
    }

    #[test]
    fn a_long_log_is_written_whole_and_a_crash_on_the_way_loses_nothing() {
        let (mut notes, mut log) = written();
        let text = "x".repeat(60 << 10);
        let long = |change: u64, count: u64| {
            let put = (0..count).map(|n| (format!("v{n}"), Value::from(text.clone()))).collect();
            CopyPart { begins: false, change: Some((change, 7)), put, gone: Vec::new() }
        };
        // Each difference replaces the same records, so the log grows but the copy does not.
        let mut before = log.copy().clone();
        let mut change = 4;
        let whole = loop {
            let requests = log.take(long(change, 10));
            notes.write(&mut log, requests, usize::MAX);
            let requests = log.tidy();
            if !requests.is_empty() {
                break requests;
            }
            before = log.copy().clone();
            change += 1;
        };
        assert!(change < 12 && before.change + 1 == change);
        for count in 0..whole.len() {
            let (mut cut, mut writer) = (notes.clone(), notes.read());
            let again = log.copy().records.iter().map(|(key, value)| (key.clone(), value.clone()));
            assert!(again.count() >= 10);
            let requests = {
                writer.is_broken = true;
                writer.tidy()
            };
            assert_eq!(requests.len(), whole.len());
            cut.write(&mut writer, requests, count);
            let mut log = cut.read();
            assert_eq!(log.copy(), writer.copy(), "cut after {count}");
            // The next process does not mistake a difference for the end of that whole copy.
            cut.take(&mut log, part(false, change + 1, &[("d", 4)], &[]));
            assert_eq!(cut.read().copy(), log.copy(), "cut after {count}");
        }
        notes.write(&mut log, whole, usize::MAX);
        let gone = log.tidy();
        for count in 0..=gone.len() {
            let (mut cut, requests) = (notes.clone(), gone.iter());
            let some = requests.take(count).map(|request| match request {
                StoreRequest::Note { key, .. } => *key,
                other => panic!("{other:?}"),
            });
            some.for_each(|key| drop(cut.0.remove(&key)));
            assert_eq!(cut.read().copy(), log.copy(), "{count} removed");
        }
    }

    #[test]
    fn a_refused_note_is_replaced_by_a_whole_copy() {
        let (mut notes, mut log) = written();
        assert_eq!(log.take(part(false, 4, &[("d", 4)], &[])).len(), 1);
        log.on_noted(false);
        let requests = log.tidy();
        assert_eq!(requests.len(), 1, "the copy, whole");
        notes.write(&mut log, requests, usize::MAX);
        let requests = log.tidy();
        notes.write(&mut log, requests, usize::MAX);
        assert_eq!(notes.read().copy(), log.copy());
        assert_eq!(numbers(&notes), [NoteKey::State(5)]);
    }
}
