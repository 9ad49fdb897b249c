//! Pages of sorted keys: records of an object, or names of objects, with prefix and delimiter.
//!
//! A [`Lister`] asks for ranges of keys, and makes a page of what is there. Keys that go on behind the
//! delimiter are told as one common prefix, and what else begins with that is not read.
//!
//! ```text
//!   prefix "a/", delimiter "/":   a/1   a/b/1   a/b/2 ... a/b/9   a/c
//!                                 key   ──── common prefix a/b/ ──   key
//! ```
//!
//! Invariants
//!   1. Pages that follow one another, each from where the one before ended, have each key and each common
//!      prefix that was there throughout exactly once, in order.
//!   2. A page has one entry at least, unless there is none left, or [`Lister::stop`] ended it.

use bytes::Bytes;
pub use format::engine::behind;
use format::engine::common_prefix;

/// The most entries of a page.
pub const PAGE_COUNT_MAX: usize = 1000;
/// The most bytes of keys and values of a page, unless one entry alone has more.
pub const PAGE_SIZE_MAX: usize = 1 << 20;

/// Which keys are listed, and how many.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Only keys that begin with these bytes.
    pub prefix: Vec<u8>,
    /// Only keys from this one on. The next page begins at [`Page::next`] of the one before.
    pub from: Vec<u8>,
    /// Only keys below this one. `None`: to the last key.
    pub before: Option<Vec<u8>>,
    /// Keys that have these bytes behind the prefix are told as one common prefix, which ends with them.
    /// Empty: none are.
    pub delimiter: Vec<u8>,
    /// The most entries, at most [`PAGE_COUNT_MAX`].
    pub count_max: usize,
    /// The most bytes of keys and values, at most [`PAGE_SIZE_MAX`]; one entry may have more.
    pub size_max: usize,
}

/// A key with its value, or what several keys have in common. Keys share the memory of what was read or
/// received.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PageEntry<V> {
    /// A key.
    Key(Bytes, V),
    /// What several keys begin with, up to a delimiter.
    CommonPrefix(Bytes),
}

/// What a page has for a key.
pub trait PageValue {
    /// Returns how much of the page's size it takes, in bytes.
    fn size(&self) -> usize;
}

impl PageValue for Bytes {
    fn size(&self) -> usize {
        self.len()
    }
}

impl<V: PageValue> PageEntry<V> {
    /// Returns the key, or the common prefix.
    pub fn key(&self) -> &[u8] {
        match self {
            PageEntry::Key(key, _) | PageEntry::CommonPrefix(key) => key,
        }
    }

    /// Returns how much of the page's size it takes, in bytes.
    fn size(&self) -> usize {
        match self {
            PageEntry::Key(key, value) => key.len() + value.size(),
            PageEntry::CommonPrefix(prefix) => prefix.len(),
        }
    }
}

/// A page of a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<V> {
    /// The entries, in order.
    pub entries: Vec<PageEntry<V>>,
    /// Where the next page begins. `None`: there is no more.
    pub next: Option<Vec<u8>>,
}

impl<V: PageValue> Page<V> {
    /// Returns about how many bytes it takes.
    pub fn size(&self) -> usize {
        // What stands beside keys and values: lengths, and whether there are any.
        let of_entry = |entry: &PageEntry<V>| entry.size() + 10;
        self.entries.iter().map(of_entry).sum()
    }
}

/// Makes a page of a listing.
#[derive(Clone, Debug)]
pub struct Lister<V> {
    listing: Listing,
    /// The first key behind the listing. `None`: there is none.
    end: Option<Vec<u8>>,
    /// Where to read on.
    start: Vec<u8>,
    /// Whether nothing more has to be read.
    is_done: bool,
    size: usize,
    page: Page<V>,
}

impl Listing {
    /// Returns the first key that may be listed.
    fn first(&self) -> Vec<u8> {
        Ord::max(&self.from, &self.prefix).clone()
    }

    /// Checks the limits; the error says what is wrong, for people.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=PAGE_COUNT_MAX).contains(&self.count_max) {
            return Err(format!(
                "a page has 1 to {PAGE_COUNT_MAX} entries, not {}",
                self.count_max
            ));
        }
        match self.size_max <= PAGE_SIZE_MAX {
            true => Ok(()),
            false => {
                Err(format!("a page has at most {PAGE_SIZE_MAX} bytes, not {}", self.size_max))
            }
        }
    }
}

impl<V: PageValue> Lister<V> {
    /// Begins a page. Requires: [`Listing::check`] accepts it.
    pub fn new(listing: Listing) -> Lister<V> {
        debug_assert_eq!(listing.check(), Ok(()));
        let ends = [behind(&listing.prefix), listing.before.clone()];
        let end = ends.into_iter().flatten().min();
        let start = listing.first();
        let is_done = end.as_ref().is_some_and(|end| start >= *end);
        let page = Page { entries: Vec::new(), next: None };
        Lister { listing, end, start, is_done, size: 0, page }
    }

    /// Returns what is listed.
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Returns the range of keys to read next: the first key, and the first one behind. `None`: the page is
    /// complete.
    pub fn range(&self) -> Option<(&[u8], Option<&[u8]>)> {
        (!self.is_done).then_some((&self.start[..], self.end.as_deref()))
    }

    /// Takes the next keys of the range, in order; a key without a value is passed over. `is_last`: the range
    /// has no more. Requires: the page is not complete.
    pub fn add(&mut self, keys: impl IntoIterator<Item = (Bytes, Option<V>)>, is_last: bool) {
        assert!(!self.is_done);
        for (key, value) in keys {
            // A common prefix may have passed it.
            if key < self.start[..] {
                continue;
            }
            let Some(value) = value else {
                self.pass(&key);
                continue;
            };
            let common = self.common_prefix(&key);
            let size = common.map_or(key.len() + value.size(), <[u8]>::len);
            let is_full = self.page.entries.len() == self.listing.count_max
                || self.size + size > self.listing.size_max && !self.page.entries.is_empty();
            if is_full {
                return self.stop();
            }
            self.size += size;
            match common {
                Some(common) => {
                    let next = behind(common);
                    self.page.entries.push(PageEntry::CommonPrefix(Bytes::copy_from_slice(common)));
                    match next {
                        Some(next) => self.go_to(next),
                        None => self.is_done = true,
                    }
                    if self.is_done {
                        return;
                    }
                }
                None => {
                    self.pass(&key);
                    self.page.entries.push(PageEntry::Key(key, value));
                }
            }
        }
        self.is_done |= is_last;
    }

    /// Ends the page where it is: the next one begins at the first key that was not added. Requires: the page
    /// is not complete.
    pub fn stop(&mut self) {
        assert!(!self.is_done);
        self.page.next = Some(self.start.clone());
        self.is_done = true;
    }

    /// Returns how many entries more the page may have, and how many bytes.
    pub fn room(&self) -> (usize, usize) {
        let Listing { count_max, size_max, .. } = self.listing;
        (count_max - self.page.entries.len(), size_max.saturating_sub(self.size))
    }

    /// Returns which keys the page tells of so far: from the first one up to the second, which is not among
    /// them. `None`: to the last key there can be.
    pub fn told(&self) -> (Vec<u8>, Option<&[u8]>) {
        let first = self.listing.first();
        let is_whole = self.is_done && self.page.next.is_none();
        (first, if is_whole { self.end.as_deref() } else { Some(&self.start) })
    }

    /// Returns the page. Requires: it is complete.
    pub fn finish(self) -> Page<V> {
        assert!(self.is_done);
        self.page
    }

    /// Returns the common prefix that a key is told as; `None`: it is told itself.
    fn common_prefix<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        common_prefix(key, self.listing.prefix.len(), &self.listing.delimiter)
    }

    /// Goes on behind a key.
    fn pass(&mut self, key: &[u8]) {
        // Its memory is used again: this is done for each key.
        let mut start = std::mem::take(&mut self.start);
        start.clear();
        start.extend_from_slice(key);
        start.push(0);
        self.go_to(start);
    }

    fn go_to(&mut self, start: Vec<u8>) {
        self.is_done = self.end.as_ref().is_some_and(|end| start >= *end);
        self.start = start;
    }
}

/// Makes one page of pages of the same listing, from places of which each has other keys. Requires: all begin
/// at the same key; the limits are those of [`Listing`].
///
/// It tells of no key that some place did not come to. Whether a place came to the end of a common prefix
/// that another one tells of does not matter.
pub fn merge_pages<V: PageValue>(
    pages: impl IntoIterator<Item = Page<V>>,
    count_max: usize,
    size_max: usize,
) -> Page<V> {
    let mut entries: Vec<PageEntry<V>> = Vec::new();
    // Where places that have more go on.
    let mut nexts: Vec<Vec<u8>> = Vec::new();
    for page in pages {
        nexts.extend(page.next);
        entries.extend(page.entries);
    }
    // Each page is sorted: this merges them.
    entries.sort_by(|one, other| one.key().cmp(other.key()));
    entries.dedup_by(|one, other| one.key() == other.key());
    let mut known = nexts.iter().min().cloned();
    let (mut page, mut size) = (Page { entries: Vec::new(), next: None }, 0);
    for entry in entries {
        let is_known = known.as_deref().is_none_or(|known| match &entry {
            PageEntry::Key(key, _) => key < known,
            PageEntry::CommonPrefix(prefix) => prefix <= known,
        });
        size += entry.size();
        if page.entries.len() == count_max || size > size_max && !page.entries.is_empty() {
            known = known.into_iter().chain([entry.key().to_vec()]).min();
            break;
        }
        if !is_known {
            break;
        }
        if let PageEntry::CommonPrefix(prefix) = &entry {
            let behind = behind(prefix);
            let moved = nexts.into_iter().filter_map(|next| match next.starts_with(prefix) {
                true => behind.clone(),
                false => Some(next),
            });
            nexts = moved.collect();
            known = nexts.iter().min().cloned();
        }
        page.entries.push(entry);
    }
    page.next = known;
    page
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    type Keys = BTreeMap<Vec<u8>, Option<Bytes>>;

    /// Reads a page, so many keys at a time; returns it with the number of reads.
    fn page(keys: &Keys, listing: Listing, portion: usize) -> (Page<Bytes>, usize) {
        let (mut lister, mut reads) = (Lister::new(listing), 0);
        while let Some((start, end)) = lister.range() {
            reads += 1;
            let in_range = keys.iter().filter(|(key, _)| &key[..] >= start);
            let in_range = in_range.filter(|(key, _)| end.is_none_or(|end| &key[..] < end));
            let mut found: Vec<_> =
                in_range.map(|(key, value)| (key.clone().into(), value.clone())).collect();
            let is_last = found.len() <= portion;
            found.truncate(portion);
            lister.add(found, is_last);
        }
        (lister.finish(), reads)
    }

    /// What all pages together must have.
    fn expected(keys: &Keys, listing: &Listing) -> Vec<PageEntry<Bytes>> {
        let (mut entries, mut seen) = (Vec::new(), BTreeSet::new());
        for (key, value) in keys {
            let is_in = key.starts_with(&listing.prefix)
                && *key >= listing.from
                && listing.before.as_ref().is_none_or(|before| key < before);
            let Some(value) = value.as_ref().filter(|_| is_in) else { continue };
            let (delimiter, rest) = (&listing.delimiter, &key[listing.prefix.len()..]);
            let at = (0..rest.len())
                .find(|at| !delimiter.is_empty() && rest[*at..].starts_with(delimiter));
            match at {
                Some(at) => {
                    let common = key[..listing.prefix.len() + at + delimiter.len()].to_vec();
                    if seen.insert(common.clone()) {
                        entries.push(PageEntry::CommonPrefix(common.into()));
                    }
                }
                None => entries.push(PageEntry::Key(key.clone().into(), value.clone())),
            }
        }
        entries
    }

    fn any_bytes(size: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop_oneof![Just(b'/'), Just(0), Just(1), Just(0xff)], size)
    }

    fn any_value() -> impl Strategy<Value = Bytes> {
        prop::collection::vec(any::<u8>(), 0..9).prop_map(Bytes::from)
    }

    fn any_listing() -> impl Strategy<Value = Listing> {
        let before = prop::option::of(any_bytes(0..4));
        (any_bytes(0..3), any_bytes(0..4), before, any_bytes(0..3), 1..4usize, 0..20usize).prop_map(
            |(prefix, from, before, delimiter, count_max, size_max)| Listing {
                prefix,
                from,
                before,
                delimiter,
                count_max,
                size_max,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn pages_have_each_key_and_common_prefix_once(
            keys in prop::collection::btree_map(
                any_bytes(1..5),
                prop::option::weighted(0.9, any_value()),
                0..30,
            ),
            listing in any_listing(),
            portion in 1..9usize,
        ) {
            let mut listing = listing;
            let expected = expected(&keys, &listing);
            let mut entries = Vec::new();
            loop {
                let (page, _) = page(&keys, listing.clone(), portion);
                prop_assert!(page.entries.len() <= listing.count_max);
                prop_assert!(page.next.is_none() || !page.entries.is_empty());
                entries.extend(page.entries);
                let Some(next) = page.next else { break };
                prop_assert!(next > listing.from);
                listing.from = next;
            }
            prop_assert_eq!(entries, expected);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn merged_pages_have_each_key_and_common_prefix_once(
            places in prop::collection::vec(
                prop::collection::btree_map(
                    any_bytes(1..5),
                    prop::option::weighted(0.7, any_value()),
                    0..15,
                ),
                1..4,
            ),
            listing in any_listing(),
            stops in prop::collection::vec(0..6usize, 0..100),
        ) {
            let (mut listing, mut places) = (listing, places);
            // Each key is in one place.
            for place in 1..places.len() {
                let (before, rest) = places.split_at_mut(place);
                rest[0].retain(|key, _| before.iter().all(|keys| !keys.contains_key(key)));
            }
            let all: Keys = places.iter().flatten().map(|(key, it)| (key.clone(), it.clone())).collect();
            let expected = expected(&all, &listing);
            let (mut entries, mut stops) = (Vec::new(), stops.into_iter());
            loop {
                let pages = places.iter().map(|keys| {
                    let mut lister = Lister::new(listing.clone());
                    // Some end before they must, but not before a key was passed.
                    let mut stop = stops.next().filter(|stop| *stop > 0).unwrap_or(100);
                    while let Some((start, end)) = lister.range() {
                        let first = keys.range(start.to_vec()..);
                        let mut first = first.filter(|(key, _)| end.is_none_or(|end| &key[..] < end));
                        let (found, rest) = (first.next(), first.next());
                        let found = found.map(|(key, value)| (key.clone().into(), value.clone()));
                        lister.add(found, rest.is_none());
                        stop -= 1;
                        if stop == 0 && lister.range().is_some() {
                            lister.stop();
                        }
                    }
                    lister.finish()
                });
                let pages: Vec<_> = pages.collect();
                let page = merge_pages(pages, listing.count_max, listing.size_max);
                prop_assert!(page.entries.len() <= listing.count_max);
                entries.extend(page.entries);
                let Some(next) = page.next else {
                    break;
                };
                prop_assert!(next > listing.from);
                listing.from = next;
            }
            prop_assert_eq!(entries, expected);
        }
    }

    #[test]
    fn what_a_common_prefix_stands_for_is_not_read() {
        let keys = (0..1000u16).map(|number| {
            let name = format!("a/{:02}/{number:04}", number / 500);
            (name.into_bytes(), Some(Bytes::new()))
        });
        let keys: Keys = keys.collect();
        let (prefix, delimiter) = (b"a/".to_vec(), b"/".to_vec());
        let listing =
            Listing { prefix, delimiter, count_max: 10, size_max: 100, ..Listing::default() };
        let (page, reads) = page(&keys, listing, 10);
        let common = |text: &str| PageEntry::CommonPrefix(Bytes::copy_from_slice(text.as_bytes()));
        assert_eq!(page.entries, [common("a/00/"), common("a/01/")]);
        assert_eq!((page.next, reads), (None, 3));
    }

    #[test]
    fn limits_are_checked() {
        let listing = |count_max, size_max| Listing { count_max, size_max, ..Listing::default() };
        assert!(listing(0, 1).check().is_err());
        assert!(listing(1001, 1).check().is_err());
        assert!(listing(1000, PAGE_SIZE_MAX + 1).check().is_err());
        assert_eq!(listing(1000, PAGE_SIZE_MAX).check(), Ok(()));
    }
}
