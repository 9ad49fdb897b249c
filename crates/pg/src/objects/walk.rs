//! What two members hold, side by side in key order: their lists arrive page by page.
//!
//! ```text
//!   list of keys, as it travels:  for each:  key length (2) | key | version (12) | tombstone (1)
//! ```
//!
//! Invariants
//!   1. Keys of a list are in order, each once.
//!   2. At most one page of a list is requested at a time.

use std::collections::VecDeque;

use ::objects::{Head, Key, Kind, Repeat};
use base::Version;
use format::disk::bytes::{Reader, Writer};
use format::engine::Records;
use format::wire::ListedBlock;

/// What a list says of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed<K> {
    pub key: K,
    /// Zero: it cannot be told.
    pub version: Version,
    pub is_tombstone: bool,
}

/// A list that arrives page by page.
pub struct List<K> {
    found: VecDeque<Listed<K>>,
    /// The last key that has arrived.
    after: Option<K>,
    is_last: bool,
    is_asked: bool,
}

impl<K: Ord + Clone> List<K> {
    /// Returns a list that begins behind this key; `None`: with the first one.
    pub fn behind(after: Option<K>) -> List<K> {
        List { found: VecDeque::new(), after, is_last: false, is_asked: false }
    }

    /// Returns whether a page must arrive before it is known whether there is a next key.
    pub fn is_missing(&self) -> bool {
        self.found.is_empty() && !self.is_last
    }

    /// Returns the key behind which the next page begins, if it should be requested now. It then counts as
    /// requested.
    pub fn ask_behind(&mut self) -> Option<Option<K>> {
        let is_due = self.is_missing() && !self.is_asked;
        self.is_asked |= is_due;
        is_due.then(|| self.after.clone())
    }

    /// Adds a page. The error says what is wrong with it.
    pub fn on_page(&mut self, page: Vec<Listed<K>>, is_last: bool) -> Result<(), String> {
        if page.is_empty() && !is_last {
            return Err("a page of a list is empty but not the last one".into());
        }
        for listed in &page {
            if self.after.as_ref().is_some_and(|after| listed.key <= *after) {
                return Err("the keys of a list are out of order".into());
            }
            self.after = Some(listed.key.clone());
        }
        (self.is_asked, self.is_last) = (false, is_last);
        self.found.extend(page);
        Ok(())
    }

    /// Ends the list before the first key for which this is true.
    pub fn end_before(&mut self, is_behind: impl Fn(&K) -> bool) {
        if let Some(at) = self.found.iter().position(|listed| is_behind(&listed.key)) {
            self.found.truncate(at);
            self.is_last = true;
        }
    }

    /// Takes the next key, if one has arrived.
    pub fn pop(&mut self) -> Option<Listed<K>> {
        self.found.pop_front()
    }
}

/// The primary's list and that of a learner.
pub struct SideBySide<K> {
    pub own: List<K>,
    pub its: List<K>,
}

/// What comes next when two lists are compared.
#[derive(PartialEq, Eq, Debug)]
pub enum Next<K> {
    /// A page must arrive first.
    Pages,
    /// The members may hold different things under this key.
    Different(K),
    End,
}

impl<K: Ord + Clone> SideBySide<K> {
    pub fn behind(after: Option<K>) -> SideBySide<K> {
        SideBySide { own: List::behind(after.clone()), its: List::behind(after) }
    }

    /// Goes on to the next key that differs. `passes`: whether a key of which both lists say this is equal.
    pub fn next(&mut self, passes: impl Fn(&K, Version) -> bool) -> Next<K> {
        loop {
            if self.own.is_missing() || self.its.is_missing() {
                return Next::Pages;
            }
            let firsts = [self.own.found.front(), self.its.found.front()];
            let Some(key) = firsts.into_iter().flatten().map(|listed| listed.key.clone()).min()
            else {
                return Next::End;
            };
            let own = self.own.found.pop_front_if(|listed| listed.key == key);
            let its = self.its.found.pop_front_if(|listed| listed.key == key);
            let is_same = own == its && own.is_some_and(|listed| passes(&key, listed.version));
            if !is_same {
                return Next::Different(key);
            }
        }
    }
}

/// Returns what a member holds, as its list says it.
pub fn list_records(records: &Records) -> Vec<Listed<Vec<u8>>> {
    let listed = |(key, value): (&[u8], &[u8])| {
        let (version, is_tombstone) = match Key::decode(key).map(|key| key.kind) {
            Some(Kind::Head { .. }) => {
                let head = Head::decode(value).map(|head| head.version);
                (head, Head::is_tombstone(value))
            }
            Some(Kind::Repeat { .. }) => (Repeat::decode(value).map(|it| it.version), false),
            Some(Kind::Incomplete { .. }) => (Reader::new(value).version(), false),
            _ => (None, false),
        };
        let version = version.unwrap_or(Version::ZERO);
        Listed { key: key.to_vec(), version, is_tombstone }
    };
    records.iter().map(listed).collect()
}

pub fn list_blocks(blocks: Vec<ListedBlock>) -> Vec<Listed<format::disk::BlockKey>> {
    let listed = |ListedBlock { key, version, is_tombstone }| Listed { key, version, is_tombstone };
    blocks.into_iter().map(listed).collect()
}

/// Encodes a list of keys of the engine.
pub fn encode_list(list: &[Listed<Vec<u8>>]) -> Vec<u8> {
    let mut to = Writer::default();
    for Listed { key, version, is_tombstone } in list {
        to.u16(key.len() as u16);
        to.bytes.extend_from_slice(key);
        to.version(*version);
        to.u8(u8::from(*is_tombstone));
    }
    to.bytes
}

/// Decodes a list of keys. `None`: the bytes are none.
pub fn decode_list(bytes: &[u8]) -> Option<Vec<Listed<Vec<u8>>>> {
    let mut from = Reader::new(bytes);
    let mut list = Vec::new();
    while !from.is_at_end() {
        let size = usize::from(from.u16()?);
        let key = from.take(size)?.to_vec();
        let (version, is_tombstone) = (from.version()?, from.u8()?);
        list.push(Listed { key, version, is_tombstone: is_tombstone == 1 });
    }
    (encode_list(&list) == bytes).then_some(list)
}

#[cfg(test)]
mod tests {
    use base::Epoch;

    use super::*;

    fn listed(key: u8, counter: u64) -> Listed<u8> {
        let version = Version { epoch: Epoch::new(1), counter };
        Listed { key, version, is_tombstone: false }
    }

    #[test]
    fn what_differs_is_found_when_both_lists_have_come() {
        let mut lists = SideBySide::behind(None);
        let passes = |_: &u8, version: Version| version.counter < 10;
        assert_eq!(lists.next(passes), Next::Pages);
        assert_eq!((lists.own.ask_behind(), lists.own.ask_behind()), (Some(None), None));
        lists.own.on_page(vec![listed(1, 1), listed(2, 2)], false).unwrap();
        assert_eq!(lists.next(passes), Next::Pages);
        let its = vec![listed(1, 1), listed(2, 3), listed(3, 1), listed(4, 12)];
        lists.its.on_page(its, true).unwrap();
        assert_eq!(lists.next(passes), Next::Different(2));
        assert_eq!((lists.next(passes), lists.own.ask_behind()), (Next::Pages, Some(Some(2))));
        assert!(lists.own.on_page(vec![listed(2, 1)], false).is_err(), "out of order");
        assert!(lists.own.on_page(vec![], false).is_err());
        lists.own.on_page(vec![listed(4, 12), listed(9, 1)], false).unwrap();
        assert_eq!(lists.next(passes), Next::Different(3));
        assert_eq!(lists.next(passes), Next::Different(4), "it is too new to be believed");
        lists.own.end_before(|key| *key > 8);
        assert_eq!(lists.next(passes), Next::End);
    }

    #[test]
    fn lists_of_keys_come_back() {
        let of = |key: &[u8], is_tombstone| {
            let version = Version { epoch: Epoch::new(3), counter: 7 };
            Listed { key: key.to_vec(), version, is_tombstone }
        };
        let list = vec![of(b"", true), of(b"key", false)];
        let bytes = encode_list(&list);
        assert_eq!(decode_list(&bytes), Some(list));
        assert_eq!(decode_list(&bytes[..bytes.len() - 1]), None);
        let mut changed = bytes;
        *changed.last_mut().unwrap() = 2;
        assert_eq!(decode_list(&changed), None);
    }
}
