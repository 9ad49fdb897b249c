//! Notes: small durable facts that the layers above keep in a store.
//!
//! Invariant: `bytes` is the sum of the lengths of all notes; none is empty.

use std::collections::BTreeMap;
use std::rc::Rc;

use format::disk::{EntryHeader, NoteKey};

/// All notes. A checkpoint shares their bytes with the store.
pub type NoteMap = BTreeMap<NoteKey, Rc<[u8]>>;

/// The notes of a store.
#[derive(Default)]
pub struct Notes {
    notes: NoteMap,
    bytes: u64,
}

impl Notes {
    /// Loads the notes from a checkpoint.
    pub fn load(notes: Vec<(NoteKey, Vec<u8>)>) -> Notes {
        let bytes = notes.iter().map(|(_, note)| note.len() as u64).sum();
        Notes { notes: notes.into_iter().map(|(key, note)| (key, note.into())).collect(), bytes }
    }

    /// Returns the total size of all notes, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn count(&self) -> u64 {
        self.notes.len() as u64
    }

    pub fn get(&self, key: &NoteKey) -> Option<&[u8]> {
        self.notes.get(key).map(|note| &note[..])
    }

    /// Returns all notes in order.
    pub fn iter(&self) -> impl Iterator<Item = (NoteKey, &[u8])> {
        self.notes.iter().map(|(key, note)| (*key, &note[..]))
    }

    /// Returns a copy of the map of notes, for a checkpoint.
    pub fn snapshot(&self) -> NoteMap {
        self.notes.clone()
    }

    /// Applies an entry. `data`: its inline data, including padding. An empty note is removed.
    pub fn apply(&mut self, header: &EntryHeader, data: &[u8]) {
        let key = NoteKey::of_parts(header.pg, header.offset);
        self.set(key, &data[..header.length as usize]);
    }

    /// Stores a note. An empty one is removed.
    pub fn set(&mut self, key: NoteKey, bytes: &[u8]) {
        let old = match bytes.is_empty() {
            true => self.notes.remove(&key),
            false => self.notes.insert(key, bytes.into()),
        };
        self.bytes += bytes.len() as u64;
        self.bytes -= old.map_or(0, |old| old.len() as u64);
    }
}
