//! The model of a PG of the object pool: its states, one after each batch, forward and page.
//!
//! Invariants
//!   1. A store has one of the states, as a whole: records, blocks and note. It is not older than any that was
//!      answered.
//!   2. A batch that was refused never was, and all batches behind it will be refused. Forwards and pages have no
//!      order: each is refused by itself, and what is behind it changes what is there without it.

use std::collections::{BTreeMap, BTreeSet};

use base::Version;
use engine::Change;
use format::disk::BlockChange;

use super::object_blocks::{BlockStates, apply_lines};

/// Records by key.
pub(super) type Content = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a PG has.
#[derive(Clone, Default)]
pub(super) struct State {
    pub records: Content,
    pub blocks: BlockStates,
    pub note: Vec<u8>,
}

/// What a batch, forward or page changes.
#[derive(Clone, Default)]
pub(super) struct Changes {
    pub records: Vec<Change>,
    pub lines: Vec<BlockChange>,
    /// The value of the units that it writes.
    pub value: u64,
    pub note: Option<Vec<u8>>,
}

impl State {
    pub fn apply(&mut self, changes: &Changes) {
        changes.records.iter().for_each(|change| apply_record(&mut self.records, change));
        apply_lines(&mut self.blocks, &changes.lines, changes.value);
        if let Some(note) = &changes.note {
            self.note.clone_from(note);
        }
    }
}

fn apply_record(content: &mut Content, change: &Change) {
    match change {
        Change::Put { key, value } => drop(content.insert(key.clone(), value.clone())),
        Change::Delete { key } => drop(content.remove(key)),
        Change::DeleteRange { start, end } => {
            let mut behind = content.split_off(start);
            content.append(&mut behind.split_off(end));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Batch,
    Forward,
    Page,
}

/// A change that a store may have.
struct Entry {
    number: u64,
    kind: Kind,
    /// The PG's last version after it.
    version: Version,
    changes: Changes,
    after: State,
    is_answered: bool,
}

/// What a PG may contain.
#[derive(Default)]
pub(super) struct PgModel {
    /// The version and content at the last start.
    version: Version,
    pub base: State,
    /// Changes since then, in order.
    entries: Vec<Entry>,
    /// Batches that will be refused, since one before them was.
    doomed: BTreeSet<u64>,
}

impl PgModel {
    pub fn newest(&self) -> Version {
        self.entries.last().map_or(self.version, |entry| entry.version)
    }

    pub fn current(&self) -> &State {
        self.entries.last().map_or(&self.base, |entry| &entry.after)
    }

    /// Begins anew with this state.
    pub fn restart(&mut self, version: Version, base: State) {
        *self = PgModel { version, base, ..PgModel::default() };
    }

    /// Returns all states with their versions.
    pub fn states(&self) -> impl Iterator<Item = (Version, &State)> {
        let entries = self.entries.iter().map(|entry| (entry.version, &entry.after));
        std::iter::once((self.version, &self.base)).chain(entries)
    }

    /// Returns the states that a store may have, with their versions.
    pub fn possible(&self) -> impl Iterator<Item = (Version, &State)> {
        let answered = self.entries.iter().rposition(|entry| entry.is_answered);
        self.states().skip(answered.map_or(0, |answered| answered + 1))
    }

    /// Whether all changes are answered.
    pub fn is_settled(&self) -> bool {
        self.doomed.is_empty() && self.entries.iter().all(|entry| entry.is_answered)
    }

    /// Adds a change. `version`: the PG's last version after it.
    pub fn push(&mut self, number: u64, kind: Kind, version: Version, changes: Changes) {
        let mut after = self.current().clone();
        after.apply(&changes);
        self.entries.push(Entry { number, kind, version, changes, after, is_answered: false });
    }

    pub fn answered(&mut self, number: u64) -> Result<(), String> {
        let entry = self.entries.iter_mut().find(|entry| entry.number == number);
        let entry = entry.ok_or_else(|| format!("{number} came after a refused one"))?;
        entry.is_answered = true;
        Ok(())
    }

    /// Takes back a change that was refused. Returns what it was; `None`: a batch behind a refused one.
    pub fn refused(&mut self, number: u64) -> Result<Option<Kind>, String> {
        if self.doomed.remove(&number) {
            return Ok(None);
        }
        let at = self.entries.iter().position(|entry| entry.number == number);
        let at = at.expect("a change of this run of the store");
        let refused = self.entries.remove(at);
        if refused.kind == Kind::Batch {
            let behind = self.entries.extract_if(at.., |entry| entry.kind == Kind::Batch);
            for entry in behind {
                if entry.is_answered {
                    return Err(format!("{number} is refused, {} behind it is not", entry.number));
                }
                self.doomed.insert(entry.number);
            }
        }
        let (mut version, mut state) = match at.checked_sub(1) {
            Some(before) => (self.entries[before].version, self.entries[before].after.clone()),
            None => (self.version, self.base.clone()),
        };
        for entry in &mut self.entries[at..] {
            state.apply(&entry.changes);
            entry.after = state.clone();
            if entry.kind == Kind::Page {
                entry.version = version;
            }
            version = entry.version;
        }
        Ok(Some(refused.kind))
    }
}
