//! How looks and their answers travel: in the payloads of a client's request and of the reply.
//! `docs/internals/objects.md`, *messages*.
//!
//! ```text
//!   look      count of reads (2), for each:
//!               1 stat name* | 2 data name*, offset (8), length (4)
//!               | 3 values name*, size (4), count (2), each: field
//!               | 4 attributes name*, listing | 5 records name*, listing
//!               | 6 list 0 or 1 (with data), count (2), each: shard (2), then listing
//!               | 7 list that skips: mask (1, not 0), then as 6
//!   listing   prefix*, first key*, 0 or 1 and end*, delimiter*, count (2), size (4)
//!   answers   count (2), for each:
//!               1 stat 0, or 1 and stat | 2 data 0, or 1 and stat, bytes
//!               | 3 values count (2), each: 0, or 1 and value | 4 fields page | 5 list page
//!   page      count (2), each: 1 key*, value | 2 common prefix*; then 0, or 1 and first key of the next page*
//!   stat      version (12), flags (1: 4 partial), size (8), modified (8)
//!   value     bytes; in a list: stat, then 0, or 1 and bytes
//!   names     0 or 1 (with data), then listing            pages  for each PG: length (4), answers
//!   field     1 attribute, 2 record | key*        bytes: length (4) | ...        *: length (2) | ...
//! ```
//!
//! Invariants
//!   1. A look has one encoding, and so have answers: whatever decodes, encodes to the same bytes.
//!   2. A look that decodes has passed [`Look::check`]; nothing is allocated beyond the bytes that are there.

use bytes::Bytes;
use format::disk::bytes::{Reader, Writer};

use crate::codec::{put_field, put_long, put_short, take_field, take_long, take_short};
use crate::head::{FLAG_PARTIAL, Stat};
use crate::keys::{Name, Shard};
use crate::listing::{Listing, PAGE_COUNT_MAX, Page, PageEntry};
use crate::look::{
    LOOK_FIELDS_MAX, LOOK_SHARDS_MAX, Listed, Look, NameQuery, READS_MAX, Read, ReadAnswer,
};

impl Look {
    /// Encodes the look. Requires: names, keys and counts are within their limits.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u16(self.reads.len() as u16);
        self.reads.iter().for_each(|read| put_read(&mut to, read));
        to.bytes
    }

    /// Decodes a look. The error says what is wrong, for people.
    pub fn decode(bytes: &[u8]) -> Result<Look, String> {
        let mut from = Reader::new(bytes);
        let reads = take_list(&mut from, READS_MAX, take_read).filter(|_| from.is_at_end());
        let look = Look { reads: reads.ok_or("the bytes are no reads of objects")? };
        look.check()?;
        Ok(look)
    }
}

impl NameQuery {
    /// Encodes the query. Requires: it is within its limits.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u8(u8::from(self.with_data));
        put_listing(&mut to, &self.listing);
        to.bytes
    }

    /// Decodes a query. The error says what is wrong, for people.
    pub fn decode(bytes: &[u8]) -> Result<NameQuery, String> {
        let mut from = Reader::new(bytes);
        let mut take = || {
            let with_data = take_option(&mut from, |_| Some(()))?.is_some();
            Some(NameQuery { with_data, listing: take_listing(&mut from)? })
        };
        let query = take().filter(|_| from.is_at_end());
        let query = query.ok_or("the bytes do not say which names to list")?;
        query.check()?;
        Ok(query)
    }
}

/// Returns what stands before the encoded answers for a PG where those for several are joined.
pub fn page_prefix(answers: &[u8]) -> [u8; 4] {
    (answers.len() as u32).to_le_bytes()
}

/// Decodes joined answers of [`NameQuery`]s. `None`: the bytes are none.
pub fn decode_pages(bytes: &Bytes) -> Option<Vec<Page<Listed>>> {
    let (mut from, mut pages) = (Reader::new(bytes), Vec::new());
    while !from.is_at_end() {
        match decode_answers(&take_shared(&mut from, bytes)?)?.pop() {
            Some(ReadAnswer::List(page)) => pages.push(page),
            _ => return None,
        }
    }
    Some(pages)
}

/// Encodes the answers of a look.
pub fn encode_answers(answers: &[ReadAnswer]) -> Vec<u8> {
    let size_of = |answer: &ReadAnswer| match answer {
        ReadAnswer::Fields(page) => page.size(),
        ReadAnswer::List(page) => page.size(),
        ReadAnswer::Stat(_) | ReadAnswer::Data(_) | ReadAnswer::Values(_) => 0,
    };
    let mut to = Writer::default();
    // Pages are long: their memory is taken at once.
    to.bytes.reserve(answers.iter().map(size_of).sum());
    to.u16(answers.len() as u16);
    answers.iter().for_each(|answer| put_answer(&mut to, answer));
    to.bytes
}

/// Decodes the answers of a look: pages share the memory of the bytes. `None`: the bytes are none.
pub fn decode_answers(bytes: &Bytes) -> Option<Vec<ReadAnswer>> {
    let mut from = Reader::new(bytes);
    let take = |from: &mut Reader<'_>| take_answer(from, bytes);
    take_list(&mut from, READS_MAX, take).filter(|_| from.is_at_end())
}

/// Takes a list of so many things at most, each of one byte at least.
fn take_list<T>(
    from: &mut Reader<'_>,
    max: usize,
    take: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::from(from.u16()?);
    (0..(count <= max).then_some(count)?).map(|_| take(from)).collect()
}

/// Appends 0, or 1 and what there is.
fn put_option<T>(to: &mut Writer, value: Option<T>, put: impl Fn(&mut Writer, T)) {
    to.u8(u8::from(value.is_some()));
    value.into_iter().for_each(|value| put(to, value));
}

fn take_option<T>(
    from: &mut Reader<'_>,
    take: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Option<Option<T>> {
    match from.u8()? {
        0 => Some(None),
        1 => Some(Some(take(from)?)),
        _ => None,
    }
}

fn put_read(to: &mut Writer, read: &Read) {
    to.u8(match read {
        Read::Stat { .. } => 1,
        Read::Data { .. } => 2,
        Read::Values { .. } => 3,
        Read::Attributes { .. } => 4,
        Read::Records { .. } => 5,
        Read::List { skip: 0, .. } => 6,
        Read::List { .. } => 7,
    });
    read.name().into_iter().for_each(|name| put_short(to, name.bytes()));
    match read {
        Read::Stat { .. } => {}
        Read::Data { offset, length, .. } => {
            to.u64(*offset);
            to.u32(*length);
        }
        Read::Values { fields, size_max, .. } => {
            to.u32(*size_max as u32);
            to.u16(fields.len() as u16);
            fields.iter().for_each(|field| put_field(to, field));
        }
        Read::Attributes { listing, .. } | Read::Records { listing, .. } => {
            put_listing(to, listing);
        }
        Read::List { shards, listing, with_data, skip } => {
            if *skip > 0 {
                to.u8(*skip);
            }
            to.u8(u8::from(*with_data));
            to.u16(shards.len() as u16);
            shards.iter().for_each(|shard| to.u16(shard.get()));
            put_listing(to, listing);
        }
    }
}

fn take_read(from: &mut Reader<'_>) -> Option<Read> {
    let take_name = |from: &mut Reader<'_>| Name::new(take_short(from)?);
    Some(match from.u8()? {
        1 => Read::Stat { name: take_name(from)? },
        2 => Read::Data { name: take_name(from)?, offset: from.u64()?, length: from.u32()? },
        3 => {
            let (name, size_max) = (take_name(from)?, from.u32()? as usize);
            Read::Values { name, size_max, fields: take_list(from, LOOK_FIELDS_MAX, take_field)? }
        }
        4 => Read::Attributes { name: take_name(from)?, listing: take_listing(from)? },
        5 => Read::Records { name: take_name(from)?, listing: take_listing(from)? },
        kind @ (6 | 7) => {
            let skip = if kind == 7 { from.u8().filter(|skip| *skip > 0)? } else { 0 };
            let with_data = take_option(from, |_| Some(()))?.is_some();
            let take_shard = |from: &mut Reader<'_>| from.u16().map(Shard::new);
            let shards = take_list(from, LOOK_SHARDS_MAX, take_shard)?;
            Read::List { shards, listing: take_listing(from)?, with_data, skip }
        }
        _ => return None,
    })
}

fn put_listing(to: &mut Writer, listing: &Listing) {
    let Listing { prefix, from, before, delimiter, count_max, size_max } = listing;
    put_short(to, prefix);
    put_short(to, from);
    put_option(to, before.as_deref(), put_short);
    put_short(to, delimiter);
    to.u16(*count_max as u16);
    to.u32(*size_max as u32);
}

fn take_listing(from: &mut Reader<'_>) -> Option<Listing> {
    Some(Listing {
        prefix: take_key(from)?,
        from: take_key(from)?,
        before: take_option(from, take_key)?,
        delimiter: take_key(from)?,
        count_max: usize::from(from.u16()?),
        size_max: from.u32()? as usize,
    })
}

fn take_key(from: &mut Reader<'_>) -> Option<Vec<u8>> {
    take_short(from).map(<[u8]>::to_vec)
}

fn put_answer(to: &mut Writer, answer: &ReadAnswer) {
    to.u8(match answer {
        ReadAnswer::Stat(_) => 1,
        ReadAnswer::Data(_) => 2,
        ReadAnswer::Values(_) => 3,
        ReadAnswer::Fields(_) => 4,
        ReadAnswer::List(_) => 5,
    });
    match answer {
        ReadAnswer::Stat(stat) => put_option(to, stat.as_ref(), put_stat),
        ReadAnswer::Data(found) => put_option(to, found.as_ref(), |to, (stat, bytes)| {
            put_stat(to, stat);
            put_long(to, bytes);
        }),
        ReadAnswer::Values(values) => {
            to.u16(values.len() as u16);
            values.iter().for_each(|value| put_option(to, value.as_deref(), put_long));
        }
        ReadAnswer::Fields(page) => put_page(to, page, |to, value| put_long(to, value)),
        ReadAnswer::List(page) => put_page(to, page, |to, listed| {
            put_stat(to, &listed.stat);
            put_option(to, listed.data.as_deref(), put_long);
        }),
    }
}

/// Takes what [`put_long`] has put, which lies in these bytes, and shares their memory.
fn take_shared(from: &mut Reader<'_>, bytes: &Bytes) -> Option<Bytes> {
    let size = from.u32()? as usize;
    from.take(size).map(|taken| bytes.slice_ref(taken))
}

/// Takes an answer, which lies in these bytes.
fn take_answer(from: &mut Reader<'_>, bytes: &Bytes) -> Option<ReadAnswer> {
    let take_value = |from: &mut Reader<'_>| take_shared(from, bytes);
    Some(match from.u8()? {
        1 => ReadAnswer::Stat(take_option(from, take_stat)?),
        2 => {
            let take = |from: &mut Reader<'_>| Some((take_stat(from)?, take_long(from)?));
            ReadAnswer::Data(take_option(from, take)?)
        }
        3 => {
            let take = |from: &mut Reader<'_>| take_option(from, take_long);
            ReadAnswer::Values(take_list(from, LOOK_FIELDS_MAX, take)?)
        }
        4 => ReadAnswer::Fields(take_page(from, bytes, take_value)?),
        5 => ReadAnswer::List(take_page(from, bytes, |from| {
            Some(Listed { stat: take_stat(from)?, data: take_option(from, take_value)? })
        })?),
        _ => return None,
    })
}

fn put_page<V>(to: &mut Writer, page: &Page<V>, put: impl Fn(&mut Writer, &V)) {
    to.u16(page.entries.len() as u16);
    for entry in &page.entries {
        match entry {
            PageEntry::Key(key, value) => {
                to.u8(1);
                put_short(to, key);
                put(to, value);
            }
            PageEntry::CommonPrefix(prefix) => {
                to.u8(2);
                put_short(to, prefix);
            }
        }
    }
    put_option(to, page.next.as_deref(), put_short);
}

fn take_page<V>(
    from: &mut Reader<'_>,
    bytes: &Bytes,
    take: impl Fn(&mut Reader<'_>) -> Option<V>,
) -> Option<Page<V>> {
    let take_key_in = |from: &mut Reader<'_>| take_short(from).map(|key| bytes.slice_ref(key));
    let take_entry = |from: &mut Reader<'_>| {
        Some(match from.u8()? {
            1 => PageEntry::Key(take_key_in(from)?, take(from)?),
            2 => PageEntry::CommonPrefix(take_key_in(from)?),
            _ => return None,
        })
    };
    let entries = take_list(from, PAGE_COUNT_MAX, take_entry)?;
    Some(Page { entries, next: take_option(from, take_key)? })
}

fn put_stat(to: &mut Writer, stat: &Stat) {
    to.version(stat.version);
    to.u8(if stat.is_partial { FLAG_PARTIAL } else { 0 });
    to.u64(stat.size);
    to.u64(stat.modified);
}

fn take_stat(from: &mut Reader<'_>) -> Option<Stat> {
    let version = from.version()?;
    let is_partial = match from.u8()? {
        0 => false,
        FLAG_PARTIAL => true,
        _ => return None,
    };
    Some(Stat { version, size: from.u64()?, modified: from.u64()?, is_partial })
}

#[cfg(test)]
mod tests {
    use base::{Epoch, Version};
    use proptest::prelude::*;

    use super::*;
    use crate::Field;
    use crate::tests::reads::any_look;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn looks_are_frozen() {
        let name = || Name::new(b"n").unwrap();
        let whole = Listing { count_max: 2, size_max: 3, ..Listing::default() };
        let part = Listing {
            prefix: b"p".to_vec(),
            from: b"pa".to_vec(),
            before: Some(b"pb".to_vec()),
            delimiter: b"/".to_vec(),
            ..whole.clone()
        };
        let fields = vec![Field::Attribute(b"a".to_vec()), Field::Record(b"r".to_vec())];
        let shards = vec![Shard::new(1), Shard::new(0x203)];
        let reads = vec![
            Read::Stat { name: name() },
            Read::Data { name: name(), offset: 5, length: 6 },
            Read::Values { name: name(), fields, size_max: 7 },
            Read::Attributes { name: name(), listing: whole.clone() },
            Read::Records { name: name(), listing: part },
            Read::List { shards: shards.clone(), listing: whole.clone(), with_data: true, skip: 0 },
            Read::List { shards, listing: whole, with_data: false, skip: 0x81 },
        ];
        let (look, bytes) = (Look { reads: reads.clone() }, Look { reads }.encode());
        assert_eq!(
            hex(&bytes),
            "0700\
             0101006e\
             0201006e050000000000000006000000\
             0301006e0700000002000101006102010072\
             0401006e0000000000000002000300000005\
             01006e0100700200706101020070620100\
             2f020003000000060102000100030200000000000000020003000000\
             07810002000100030200000000000000020003000000"
        );
        assert_eq!(Look::decode(&bytes), Ok(look));
        let no_mask = [&[1, 0, 7, 0][..], &bytes[bytes.len() - 20..]].concat();
        assert!(Look::decode(&no_mask).is_err());
        assert!(Look::decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(Look::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(Look::decode(&[0, 0]).unwrap_err().contains("reads something"));
    }

    #[test]
    fn queries_for_names_are_frozen_and_pages_are_joined() {
        let listing = Listing {
            prefix: b"p".to_vec(),
            from: b"pa".to_vec(),
            before: Some(b"pb".to_vec()),
            delimiter: b"/".to_vec(),
            count_max: 2,
            size_max: 3,
        };
        let query = NameQuery { listing, with_data: true };
        let bytes = query.encode();
        assert_eq!(hex(&bytes), "0101007002007061010200706201002f020003000000");
        assert_eq!(NameQuery::decode(&bytes), Ok(query.clone()));
        assert!(NameQuery::decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(NameQuery::decode(&[&bytes[..], &[0]].concat()).is_err());
        let none = Listing { count_max: 0, ..query.listing.clone() };
        let none = NameQuery { listing: none, with_data: false };
        assert!(NameQuery::decode(&none.encode()).is_err());
        // The pages of as many PGs as one request may ask fit its answer.
        assert!(query.pgs_max() * query.answer_size_max() <= crate::look::ANSWERS_SIZE_MAX);
        let page = |next: &[u8]| Page { entries: vec![], next: Some(next.to_vec()) };
        let answers = |next: &[u8]| encode_answers(&[ReadAnswer::List(page(next))]);
        let (one, other) = (answers(b"a"), answers(b"b"));
        let joined = [&one, &other].map(|page| [&page_prefix(page)[..], page].concat()).concat();
        let joined = Bytes::from(joined);
        assert_eq!(decode_pages(&joined), Some(vec![page(b"a"), page(b"b")]));
        assert_eq!(decode_pages(&joined.slice(..joined.len() - 1)), None);
        assert_eq!(decode_pages(&Bytes::new()), Some(vec![]));
    }

    fn stat(size: u64) -> Stat {
        let version = Version { epoch: Epoch::new(2), counter: 3 };
        Stat { version, size, modified: 4, is_partial: size == 6 }
    }

    #[test]
    fn answers_are_frozen() {
        let key =
            |key: &'static [u8], value: &'static [u8]| PageEntry::Key(key.into(), value.into());
        let common = PageEntry::CommonPrefix(Bytes::from_static(b"c/"));
        let fields = Page { entries: vec![key(b"k", b"v"), common], next: Some(b"n".to_vec()) };
        let listed =
            |key: &'static [u8], data| PageEntry::Key(key.into(), Listed { stat: stat(1), data });
        let entries = vec![listed(b"x", Some(Bytes::from_static(b"d"))), listed(b"y", None)];
        let answers = vec![
            ReadAnswer::Stat(None),
            ReadAnswer::Stat(Some(stat(5))),
            ReadAnswer::Data(None),
            ReadAnswer::Data(Some((stat(6), b"data".to_vec()))),
            ReadAnswer::Values(vec![Some(b"v".to_vec()), None]),
            ReadAnswer::Fields(fields),
            ReadAnswer::List(Page { entries, next: None }),
        ];
        let bytes = encode_answers(&answers);
        assert_eq!(
            hex(&bytes),
            "0700\
             0100\
             01010200000003000000000000000005000000000000000400000000000000\
             0200\
             02010200000003000000000000000406000000000000000400000000000000\
             0400000064617461\
             0302000101000000760004020001\
             01006b0100000076020200632f0101006e\
             05020001010078020000000300000000000000000100000000000000040000000000000001010000006401010079\
             02000000030000000000000000010000000000000004000000000000000000"
        );
        let decoded = |bytes: &[u8]| decode_answers(&Bytes::copy_from_slice(bytes));
        assert_eq!(decoded(&bytes), Some(answers));
        assert_eq!(decoded(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decoded(&[&bytes[..], &[0]].concat()), None);
    }

    fn any_stat() -> impl Strategy<Value = Stat> {
        (0..9u64).prop_map(stat)
    }

    fn any_page<V: std::fmt::Debug>(
        value: impl Strategy<Value = V>,
    ) -> impl Strategy<Value = Page<V>> {
        let key = || prop::collection::vec(any::<u8>(), 0..4);
        let entry = prop_oneof![
            (key(), value).prop_map(|(key, value)| PageEntry::Key(key.into(), value)),
            key().prop_map(|key| PageEntry::CommonPrefix(key.into())),
        ];
        (prop::collection::vec(entry, 0..4), prop::option::of(key()))
            .prop_map(|(entries, next)| Page { entries, next })
    }

    fn any_answers() -> impl Strategy<Value = Vec<ReadAnswer>> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..4);
        let shared = || bytes().prop_map(Bytes::from);
        let listed =
            (any_stat(), prop::option::of(shared())).prop_map(|(stat, data)| Listed { stat, data });
        let answer = prop_oneof![
            prop::option::of(any_stat()).prop_map(ReadAnswer::Stat),
            prop::option::of((any_stat(), bytes())).prop_map(ReadAnswer::Data),
            prop::collection::vec(prop::option::of(bytes()), 0..4).prop_map(ReadAnswer::Values),
            any_page(shared()).prop_map(ReadAnswer::Fields),
            any_page(listed).prop_map(ReadAnswer::List),
        ];
        prop::collection::vec(answer, 0..4)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn looks_come_back(look in any_look()) {
            prop_assert_eq!(Look::decode(&look.encode()), Ok(look));
        }

        #[test]
        fn answers_come_back(answers in any_answers()) {
            prop_assert_eq!(decode_answers(&encode_answers(&answers).into()), Some(answers));
        }

        #[test]
        fn changed_looks_decode_or_are_refused(
            look in any_look(),
            at in any::<prop::sample::Index>(),
            byte in prop_oneof![0..8u8, any::<u8>()],
        ) {
            let mut bytes = look.encode();
            let size = bytes.len();
            bytes[at.index(size)] = byte;
            if let Ok(look) = Look::decode(&bytes) {
                prop_assert_eq!(look.encode(), bytes);
            }
        }

        #[test]
        fn changed_answers_decode_or_are_refused(
            answers in any_answers(),
            at in any::<prop::sample::Index>(),
            byte in prop_oneof![0..8u8, any::<u8>()],
        ) {
            let mut bytes = encode_answers(&answers);
            let size = bytes.len();
            bytes[at.index(size)] = byte;
            let bytes = Bytes::from(bytes);
            if let Some(answers) = decode_answers(&bytes) {
                prop_assert_eq!(encode_answers(&answers), bytes);
            }
        }

        #[test]
        fn any_bytes_decode_or_are_refused(
            bytes in prop::collection::vec(prop_oneof![0..3u8, any::<u8>()], 0..60),
        ) {
            if let Ok(look) = Look::decode(&bytes) {
                prop_assert_eq!(look.encode(), &bytes[..]);
            }
            let bytes = Bytes::from(bytes);
            if let Some(answers) = decode_answers(&bytes) {
                prop_assert_eq!(encode_answers(&answers), bytes);
            }
        }
    }
}
