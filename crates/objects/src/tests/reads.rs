//! Looks, read from a store in rounds, with batches between the rounds, and the same looks on the plain model:
//! the answers must be those of one version.

use std::fmt::Debug;

use format::engine::{Answer, Query, Records};

use super::*;
use crate::listing::behind;
use crate::look::{ANSWERS_SIZE_MAX, LOOK_FIELDS_MAX, READ_DATA_MAX};
use crate::model::{all, is_answer, listed};

impl Store {
    /// Answers a query; a scan stops after so many records at most.
    fn answer(&self, query: &Query, portion: usize) -> Answer {
        query.verify();
        let Some(scan) = query.scan() else {
            let Query::Get { key } = query else { unreachable!("all others scan") };
            return Answer::Value(self.records.get(key).cloned());
        };
        let end = scan.end.expect("a read has an end");
        assert!(scan.start < end);
        let (mut records, mut from) = (Records::default(), scan.start.to_vec());
        loop {
            let mut rest = self.records.range(from..).filter(|(key, _)| &key[..] < end);
            let Some((key, value)) = rest.next() else {
                return Answer::Records { records, more: false };
            };
            let is_full = records.count() == portion || scan.is_full(&records);
            if is_full && !records.is_empty() {
                return Answer::Records { records, more: true };
            }
            records.push(key, value);
            let common = scan.common_prefix(key, value);
            from = common.map_or_else(
                || [&key[..], &[0]].concat(),
                |common| behind(common).expect("kinds are below the highest byte"),
            );
        }
    }

    /// Returns the content of a part of a block; empty: zeros.
    fn block(&self, range: BlockRange) -> Vec<u8> {
        let BlockRange { key, offset, length } = range;
        assert!(length > 0 && u64::from(offset + length) <= SHAPE.block_size.bytes());
        let Some(block) = self.blocks.get(&key) else { return Vec::new() };
        let units = u64::from(offset) / UNIT_SIZE..u64::from(offset + length) / UNIT_SIZE;
        let unit = |unit: u64| block.get(&(unit as u32)).cloned();
        units.flat_map(|it| unit(it).unwrap_or_else(|| vec![0; UNIT_SIZE as usize])).collect()
    }
}

fn all_shards() -> Vec<Shard> {
    (0..SHAPE.sharding.shard_count as u16).map(Shard::new).collect()
}

/// A store to which operations come while it is read.
struct Bench {
    store: Store,
    operations: std::vec::IntoIter<Operation>,
    /// A batch that has a version, and is not in the store yet.
    in_flight: Option<(Version, BTreeMap<Shard, Touched>, Prepared)>,
    next: u64,
    /// The objects after each version.
    history: Vec<(Version, Models)>,
}

impl Bench {
    fn new(operations: Vec<Operation>) -> Bench {
        Bench {
            store: Store::default(),
            operations: operations.into_iter(),
            in_flight: None,
            next: 1,
            history: vec![(Version::ZERO, Models::new())],
        }
    }

    /// The batch in flight arrives in the store.
    fn arrive(&mut self) {
        if let Some((version, _, prepared)) = self.in_flight.take() {
            self.store.apply(prepared);
            self.history.push((version, self.store.objects()));
        }
    }

    /// Gives a version to the next operation. Returns whether there was one.
    fn begin(&mut self) -> bool {
        self.arrive();
        let Some(operation) = self.operations.next() else { return false };
        let mut run = Run::new(SHAPE);
        if self.store.prepare(&mut run, &operation).is_ok() && run.count() > 0 {
            let prepared = run.finish(version(self.next));
            self.next += 1;
            self.in_flight = Some((prepared.version, Touched::of(&prepared, SHAPE), prepared));
        }
        true
    }

    fn note(&self, reading: &mut Reading) {
        if let Some((version, shards, _)) = &self.in_flight {
            shards.values().for_each(|touched| reading.note_batch(*version, touched));
        }
    }

    /// What may happen at any time. 0, 1: nothing.
    fn happen(&mut self, what: u8, reading: &mut Reading) {
        match what {
            2 => self.arrive(),
            3 => {
                self.begin();
                self.note(reading);
            }
            _ => {}
        }
    }

    /// Reads a look, with what happens meanwhile; returns the answers, and the versions of which they may be.
    fn read(
        &mut self,
        look: &Look,
        portion: usize,
        mut happens: impl Iterator<Item = u8>,
    ) -> (Vec<ReadAnswer>, u32) {
        let mut reading = Reading::new(look.clone(), SHAPE);
        for _ in 0..1000 {
            let Some(need) = reading.needs() else {
                let count = reading.overtaken_count();
                return (reading.finish(), count);
            };
            self.happen(happens.next().unwrap_or(2), &mut reading);
            match need {
                Need::Records(queries) => {
                    assert!(queries.len() <= format::engine::QUERY_COUNT_MAX);
                    let answer = |query| self.store.answer(query, portion);
                    let answers = queries.iter().map(answer).collect();
                    let (version, _) = self.history.last().expect("there is a first version");
                    reading.supply_records(*version, answers).expect("records are sound");
                    self.note(&mut reading);
                }
                Need::Blocks(blocks) => {
                    let mut contents = Vec::new();
                    for range in blocks {
                        contents.push(self.store.block(range));
                        self.happen(happens.next().unwrap_or(2), &mut reading);
                    }
                    reading.supply_blocks(contents.iter().map(|content| &content[..]));
                }
            }
        }
        panic!("it reads for ever: {look:?}");
    }

    fn is_of_one_version(&self, look: &Look, answers: &[ReadAnswer]) -> bool {
        assert_eq!(look.reads.len(), answers.len());
        let is_all = |models: &Models| {
            let mut pairs = look.reads.iter().zip(answers);
            pairs.all(|(read, answer)| is_answer(read, answer, models))
        };
        self.history.iter().any(|(_, models)| is_all(models))
    }
}

fn any_listing(keys: Vec<&'static [u8]>) -> impl Strategy<Value = Listing> {
    let key = move || {
        let key = prop::sample::select(keys.clone());
        prop_oneof![3 => Just(&b""[..]), 1 => key].prop_map(<[u8]>::to_vec)
    };
    let before = prop::option::weighted(0.2, key());
    (key(), key(), before, key(), 1..5usize, 0..50usize).prop_map(
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

/// Listings of the fields that [`any_field`] has.
fn any_field_listing() -> impl Strategy<Value = Listing> {
    any_listing(vec![b"\0", b"\x01", b"\0\x01", b"\xff", b"\0\0"])
}

/// Listings of the names that [`any_name`] has.
fn any_name_listing() -> impl Strategy<Value = Listing> {
    any_listing(vec![b"a", b"\0", b"a\0", b"\x01", b"a\0\0", b"b"])
}

pub(crate) fn any_object_read() -> impl Strategy<Value = Read> {
    let fields = prop::collection::vec(any_field(), 0..5);
    prop_oneof![
        1 => any_name().prop_map(|name| Read::Stat { name }),
        4 => (any_name(), any_size(SIZE_MAX), any_size(2 * SIZE_MAX)).prop_map(
            |(name, offset, length)| Read::Data { name, offset, length: length as u32 }
        ),
        1 => (any_name(), fields, 0..20usize)
            .prop_map(|(name, fields, size_max)| Read::Values { name, fields, size_max }),
        1 => (any_name(), any_field_listing())
            .prop_map(|(name, listing)| Read::Attributes { name, listing }),
        2 => (any_name(), any_field_listing())
            .prop_map(|(name, listing)| Read::Records { name, listing }),
    ]
}

fn any_list() -> impl Strategy<Value = Read> {
    let skip = prop_oneof![3 => Just(0), 1 => any::<u8>()];
    (any_name_listing(), any::<bool>(), skip).prop_map(|(listing, with_data, skip)| Read::List {
        shards: all_shards(),
        listing,
        with_data,
        skip,
    })
}

/// A look that is well formed.
pub(crate) fn any_look() -> impl Strategy<Value = Look> {
    let read = prop_oneof![3 => any_object_read(), 1 => any_list()];
    prop::collection::vec(read, 1..4).prop_map(|reads| Look { reads })
}

/// Operations that change the same few things of two objects over and over.
fn any_busy_operations() -> impl Strategy<Value = Vec<Operation>> {
    let put = (any::<u8>(), 33_000..70_000usize)
        .prop_map(|(byte, size)| ObjectChange::Put(vec![byte; size]));
    let write = (any::<u8>(), 0..3u64).prop_map(|(byte, block)| ObjectChange::Write {
        offset: block * 16_384,
        bytes: vec![byte; 4096],
    });
    let set = (any_field(), any::<u8>())
        .prop_map(|(field, byte)| ObjectChange::Set(field, vec![byte; 3]));
    let change = prop_oneof![
        2 => put,
        3 => write,
        8 => set,
        1 => any_field().prop_map(ObjectChange::Unset),
        1 => Just(ObjectChange::Remove),
    ];
    let operation = (prop::sample::select(vec![b"a", b"\0"]), change)
        .prop_map(|(name, change)| one(name, vec![], vec![change]));
    prop::collection::vec(operation, 10..40)
}

/// Looks that take several rounds, at what these operations change.
fn any_busy_look() -> impl Strategy<Value = Look> {
    let name = || prop::sample::select(vec![name(b"a"), name(b"\0")]);
    let listing = || Listing { count_max: 100, size_max: 1000, ..Listing::default() };
    let read = prop_oneof![
        1 => name().prop_map(|name| Read::Stat { name }),
        1 => name().prop_map(|name| Read::Data { name, offset: 5, length: 70_000 }),
        1 => (name(), any_field())
            .prop_map(|(name, field)| Read::Values { name, fields: vec![field], size_max: 0 }),
        2 => name().prop_map(move |name| Read::Attributes { name, listing: listing() }),
        2 => name().prop_map(move |name| Read::Records { name, listing: listing() }),
    ];
    prop::collection::vec(read, 1..4).prop_map(|reads| Look { reads })
}

/// Operations that change small things of objects, and large ones.
fn any_operations(count: usize) -> impl Strategy<Value = Vec<Operation>> {
    prop::collection::vec(any_operation(), 1..count)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn reads_show_what_the_model_has(
        operations in any_operations(16),
        looks in prop::collection::vec((any_look(), 1..4usize), 1..12),
    ) {
        let mut bench = Bench::new(operations);
        while bench.begin() {}
        let (_, models) = bench.history.last().expect("there is a first version").clone();
        for (look, portion) in looks {
            prop_assert_eq!(look.check(), Ok(()));
            let (answers, again) = bench.read(&look, portion, std::iter::empty());
            prop_assert_eq!(again, 0);
            for (read, answer) in look.reads.iter().zip(&answers) {
                prop_assert!(is_answer(read, answer, &models), "{:?}: {:?}", read, answer);
            }
            let size: usize = look.reads.iter().map(Read::answer_size_max).sum();
            let bytes = encode_answers(&answers);
            prop_assert!(bytes.len() <= 2 + size);
            prop_assert_eq!(decode_answers(&bytes.into()), Some(answers));
        }
    }

    #[test]
    fn reads_of_objects_show_one_moment(
        operations in any_busy_operations(),
        look in any_busy_look(),
        portion in 1..3usize,
        happens in prop::collection::vec(0..4u8, 0..60),
    ) {
        let mut bench = Bench::new(operations);
        for _ in 0..8 {
            bench.begin();
        }
        let (answers, _) = bench.read(&look, portion, happens.into_iter());
        bench.arrive();
        prop_assert!(bench.is_of_one_version(&look, &answers), "{:?}: {:?}", look, answers);
    }

    #[test]
    fn what_a_batch_changes_of_an_answer_it_meets(
        operations in prop_oneof![any_operations(12), any_busy_operations()],
        look in prop_oneof![any_look(), any_busy_look()],
        portion in 1..3usize,
    ) {
        let mut bench = Bench::new(operations);
        for _ in 0..9 {
            bench.begin();
        }
        let mut reading = Reading::new(look.clone(), SHAPE);
        let (version, _) = *bench.history.last().expect("there is a first version");
        while let Some(need) = reading.needs() {
            match need {
                Need::Records(queries) => {
                    let answers = queries.iter().map(|it| bench.store.answer(it, portion)).collect();
                    reading.supply_records(version, answers).expect("records are sound");
                }
                Need::Blocks(blocks) => {
                    let contents: Vec<_> = blocks.iter().map(|it| bench.store.block(*it)).collect();
                    reading.supply_blocks(contents.iter().map(|content| &content[..]));
                }
            }
        }
        let touched = bench.in_flight.as_ref().map(|(_, shards, _)| shards.clone());
        let is_met = touched.unwrap_or_default().values().any(|it| reading.is_met_by(it));
        let answers = reading.finish();
        prop_assert!(bench.is_of_one_version(&look, &answers));
        bench.arrive();
        bench.history.drain(..bench.history.len() - 1);
        prop_assert!(is_met || bench.is_of_one_version(&look, &answers));
    }

    #[test]
    fn pages_of_names_have_what_is_there_throughout_exactly_once(
        operations in any_operations(30),
        list in any_list(),
        portion in 1..3usize,
        before in 0..12usize,
        happens in prop::collection::vec(0..4u8, 0..60),
    ) {
        let mut bench = Bench::new(operations);
        for _ in 0..before {
            bench.begin();
        }
        let (first, mut happens) = (bench.history.len() - 1, happens.into_iter());
        let Read::List { listing: whole, .. } = &list else { unreachable!("a list") };
        let (whole, mut list, mut told) = (whole.clone(), list.clone(), Vec::new());
        loop {
            let look = Look { reads: vec![list.clone()] };
            let (answers, _) = bench.read(&look, portion, &mut happens);
            let [ReadAnswer::List(page)] = &answers[..] else { panic!("{answers:?}") };
            let keys = page.entries.iter().map(|entry| match entry {
                PageEntry::Key(key, _) | PageEntry::CommonPrefix(key) => key.to_vec(),
            });
            told.extend(keys);
            let Read::List { listing, .. } = &mut list else { unreachable!("a list") };
            prop_assert!(page.next.is_none() || !page.entries.is_empty());
            let Some(next) = page.next.clone() else { break };
            prop_assert!(next > listing.from);
            listing.from = next;
        }
        prop_assert!(told.is_sorted_by(|one, next| one < next), "{:?}", told);
        bench.arrive();
        let Read::List { skip, .. } = list else { unreachable!("a list") };
        let keys_of = |models: &Models| -> BTreeSet<Vec<u8>> {
            let entries = all(&listed(models, false, skip), &whole);
            let key = |entry| match entry {
                PageEntry::Key(key, _) | PageEntry::CommonPrefix(key) => key.to_vec(),
            };
            entries.into_iter().map(key).collect()
        };
        let states: Vec<_> = bench.history[first..].iter().map(|(_, it)| keys_of(it)).collect();
        for key in &told {
            prop_assert!(states.iter().any(|keys| keys.contains(key)), "{:?} was never there", key);
        }
        for key in &states[0] {
            let is_throughout = states.iter().all(|keys| keys.contains(key));
            prop_assert!(!is_throughout || told.contains(key), "{:?} is not told", key);
        }
    }
}

fn is_refused<T: Debug>(result: Result<T, String>, part: &str) {
    let why = result.expect_err(part);
    assert!(why.contains(part), "{why}");
}

#[test]
fn looks_beyond_the_limits_are_refused_with_a_reason() {
    let page = |count_max, size_max| Listing { count_max, size_max, ..Listing::default() };
    let records = |listing| Read::Records { name: name(b"a"), listing };
    let list = |shards: &[u16]| Read::List {
        shards: shards.iter().copied().map(Shard::new).collect(),
        listing: page(1, 1),
        with_data: false,
        skip: 0,
    };
    let data = |length| Read::Data { name: name(b"a"), offset: u64::MAX, length };
    let values = |key: &[u8], count: usize, size_max| Read::Values {
        name: name(b"a"),
        fields: vec![Field::Record(key.to_vec()); count],
        size_max,
    };
    let look = |reads: &[Read]| Look { reads: reads.to_vec() };
    let stat = Read::Stat { name: name(b"a") };
    let long = |prefix: usize, from: usize| Listing {
        prefix: vec![1; prefix],
        from: vec![1; from],
        ..page(1, 1)
    };
    for (look, part) in [
        (look(&[]), "reads something"),
        (look(&vec![stat.clone(); 257]), "257 reads"),
        (look(&[data(READ_DATA_MAX + 1)]), "in parts"),
        (look(&[data(READ_DATA_MAX), data(READ_DATA_MAX)]), "bytes of answers"),
        (look(&[values(b"", 1, 0)]), "0 bytes; 1 to 2048"),
        (look(&[values(b"k", 1, (1 << 20) + 1)]), "up to 1048576 bytes at once"),
        (look(&[values(b"k", 600, 0), values(b"k", 401, 0)]), "1001 attributes and records"),
        (look(&[values(&[1; 2048], 600, 0)]), "bytes of names and keys"),
        (look(&[records(page(0, 1))]), "1 to 1000 entries"),
        (look(&[records(page(1, (1 << 20) + 1))]), "at most 1048576 bytes"),
        (look(&[records(long(2049, 0))]), "the prefix of a page has 2049 bytes"),
        (look(&[records(long(0, 2050))]), "the first key of a page has 2050 bytes"),
        (look(&[Read::Attributes { name: name(b"a"), listing: long(256, 0) }]), "up to 255"),
        (look(&[list(&[])]), "in order, each once"),
        (look(&[list(&[1, 1])]), "in order, each once"),
        (
            look(&[list(&(0..200).collect::<Vec<_>>()), list(&(0..57).collect::<Vec<_>>())]),
            "257 shards",
        ),
    ] {
        is_refused(look.check(), part);
    }
    let largest =
        [data(READ_DATA_MAX), records(Listing { before: Some(vec![]), ..long(2048, 2049) })];
    assert_eq!(look(&largest).check(), Ok(()));
    assert_eq!(look(&[values(b"k", LOOK_FIELDS_MAX, 1 << 20)]).check(), Ok(()));
    assert_eq!(look(&vec![stat; 256]).check(), Ok(()));
    let shards = look(&[list(&[1, 3]), data(1)]).shards(SHAPE.sharding);
    let of_name = SHAPE.sharding.shard(&name(b"a"));
    assert_eq!(shards, BTreeSet::from([Shard::new(1), Shard::new(3), of_name]));
}

/// Makes batches of an object's records, each of which an entry can have.
fn fill(store: &mut Store, name_of: &[u8], fields: impl Iterator<Item = (Field, Vec<u8>)>) {
    for (at, (field, value)) in fields.enumerate() {
        let mut run = Run::new(SHAPE);
        let set = one(name_of, vec![], vec![ObjectChange::Set(field, value)]);
        store.prepare(&mut run, &set).expect("it fits");
        store.apply(run.finish(version(at as u64 + 1)));
    }
}

#[test]
fn the_largest_answers_fit_a_payload() {
    let mut bench = Bench::new(vec![]);
    let key = |number: u16| [&number.to_le_bytes()[..], &[0xff; 2046]].concat();
    let fields = (0..20).map(|number| (Field::Record(key(number)), vec![5; 64 << 10]));
    fill(&mut bench.store, b"a", fields);
    let mut run = Run::new(SHAPE);
    let put = one(b"b", vec![], vec![ObjectChange::Put(vec![7; 3 << 20])]);
    bench.store.prepare(&mut run, &put).expect("it fits");
    bench.store.apply(run.finish(version(100)));
    let listing = Listing { count_max: 16, size_max: 980 << 10, ..Listing::default() };
    let data = Read::Data { name: name(b"b"), offset: 0, length: READ_DATA_MAX };
    let reads = vec![data, Read::Records { name: name(b"a"), listing }];
    let look = Look { reads };
    assert_eq!(look.check(), Ok(()));
    let (answers, _) = bench.read(&look, 1000, std::iter::empty());
    let ReadAnswer::Fields(page) = &answers[1] else { panic!("records") };
    assert_eq!((page.entries.len(), page.next.is_some()), (14, true));
    let size = encode_answers(&answers).len();
    assert!(size <= ANSWERS_SIZE_MAX && size > ANSWERS_SIZE_MAX - (128 << 10), "{size}");
}

#[test]
fn values_are_read_in_portions_and_those_that_do_not_fit_are_left() {
    let mut bench = Bench::new(vec![]);
    let fields: Vec<Field> =
        (0..300u16).map(|it| Field::Record(it.to_le_bytes().to_vec())).collect();
    fill(&mut bench.store, b"a", fields.iter().map(|field| (field.clone(), vec![1; 1000])));
    let look = |size_max| Look {
        reads: vec![Read::Values { name: name(b"a"), fields: fields.clone(), size_max }],
    };
    for (size_max, expected) in [(0, 1), (999, 1), (2000, 2), (299_999, 299), (300_000, 300)] {
        let (answers, _) = bench.read(&look(size_max), 1000, std::iter::empty());
        let [ReadAnswer::Values(values)] = &answers[..] else { panic!("values") };
        assert_eq!(values.len(), expected);
    }
}

#[test]
fn a_page_reads_what_it_shows_in_few_rounds() {
    let mut bench = Bench::new(vec![]);
    for number in 0..1200u16 {
        let name = format!("{}/{number}", number % 3);
        let mut run = Run::new(SHAPE);
        let put = one(name.as_bytes(), vec![], vec![ObjectChange::Put(vec![1; 10])]);
        bench.store.prepare(&mut run, &put).expect("it fits");
        bench.store.apply(run.finish(version(u64::from(number) + 1)));
    }
    fill(
        &mut bench.store,
        b"z",
        (0..1500u16).map(|it| (Field::Record(it.to_le_bytes().to_vec()), vec![])),
    );
    let rounds = |read: Read| {
        let (mut reading, mut rounds, mut keys) =
            (Reading::new(Look { reads: vec![read] }, SHAPE), 0, 0);
        while let Some(Need::Records(queries)) = reading.needs() {
            let answers: Vec<Answer> =
                queries.iter().map(|it| bench.store.answer(it, 5000)).collect();
            keys += answers
                .iter()
                .map(|it| match it {
                    Answer::Records { records, .. } => records.count(),
                    Answer::Value(_) => 1,
                })
                .sum::<usize>();
            reading.supply_records(version(5000), answers).expect("records are sound");
            rounds += 1;
        }
        let entries = match &reading.finish()[..] {
            [ReadAnswer::Fields(page)] => page.entries.len(),
            [ReadAnswer::List(page)] => page.entries.len(),
            answers => panic!("{answers:?}"),
        };
        (entries, rounds, keys)
    };
    let page = |delimiter: &[u8], count_max| Listing {
        delimiter: delimiter.to_vec(),
        count_max,
        size_max: 1 << 20,
        ..Listing::default()
    };
    let records = Read::Records { name: name(b"z"), listing: page(b"", 1000) };
    assert_eq!(rounds(records), (1000, 1, 1001));
    let list = |listing| Read::List { shards: all_shards(), listing, with_data: true, skip: 0 };
    let (entries, rounds_count, keys) = rounds(list(page(b"", 1000)));
    assert!(entries == 1000 && rounds_count <= 3 && keys < 1700, "{rounds_count} {keys}");
    let (entries, rounds_count, keys) = rounds(list(page(b"/", 1000)));
    assert!(entries == 4 && rounds_count <= 4 && keys < 900, "{rounds_count} {keys}");
}

#[test]
fn a_record_that_cannot_be_one_is_named() {
    let look = Look { reads: vec![Read::Stat { name: name(b"a") }] };
    let mut reading = Reading::new(look, SHAPE);
    let bad = reading.supply_records(version(1), vec![Answer::Value(Some(vec![1]))]);
    let key = key_of(&name(b"a"), Kind::Head { name: name(b"a") });
    assert_eq!(bad, Err(BadRecord { key }));
}

#[test]
fn a_long_put_is_partial_until_it_is_done() {
    let data: Vec<u8> = (0..(7u32 << 20) + 5).map(|at| (at / 999 + 1) as u8).collect();
    let mut bench = Bench::new(vec![]);
    let mut get = |store: &Store| {
        bench.store =
            Store { records: store.records.clone(), blocks: store.blocks.clone(), drawn: 0 };
        let mut get = LongGet::new(name(b"a"));
        while let Some(read) = get.read() {
            let look = Look { reads: vec![read] };
            let (mut answers, _) = bench.read(&look, 1, std::iter::empty());
            let Some(ReadAnswer::Data(found)) = answers.pop() else { panic!("data") };
            get.on_answer(found).expect("it fits");
        }
        get.finish()
    };
    let mut store = Store::default();
    fill(&mut store, b"a", [(Field::Attribute(b"x".to_vec()), vec![1])].into_iter());
    let mut put = LongPut::new(name(b"a"), data.clone(), vec![Assertion::Exists]).expect("it fits");
    let mut counter = 1;
    while let Some(operation) = put.operation() {
        let mut run = Run::new(SHAPE);
        store.prepare(&mut run, &operation).expect("nobody else changes it");
        counter += 1;
        store.apply(run.finish(version(counter)));
        put.on_done(version(counter));
        let (stat, found) = get(&store).expect("it is there");
        let written = data.len().min((counter as usize - 1) * OPERATION_DATA_MAX as usize);
        assert_eq!((stat.version, stat.size), (version(counter), data.len() as u64));
        assert_eq!(stat.is_partial, written < data.len());
        assert!(found[..written] == data[..written] && found[written..].iter().all(|it| *it == 0));
    }
    assert_eq!((counter, store.objects()[&name(b"a")].1.attributes.len()), (4, 1));
}

#[test]
fn data_that_is_overtaken_is_read_again() {
    let put = |byte: u8| one(b"a", vec![], vec![ObjectChange::Put(vec![byte; 50_000])]);
    let mut bench = Bench::new(vec![put(1), put(2), put(3)]);
    bench.begin();
    bench.arrive();
    let look = Look { reads: vec![Read::Data { name: name(b"a"), offset: 1, length: 10 }] };
    let (answers, again) = bench.read(&look, 1, [0, 3, 2].into_iter());
    let [ReadAnswer::Data(Some((stat, data)))] = &answers[..] else { panic!("{answers:?}") };
    assert_eq!((stat.version, &data[..], again), (version(2), &[2; 10][..], 1));
}
