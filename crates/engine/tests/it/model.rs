//! Properties: after any requests and crashes an engine has what a sorted map has. And the model for them.

use std::collections::BTreeMap;

use engine::{Change, Compression, Flags, Folding};
use proptest::prelude::*;

use crate::subject::{
    Client, Engine, RealEngine, TwinEngine, behind_listed, delete, delete_range, list, put, scan,
};

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const FAMILIES: [u32; 2] = [1, 2];

#[derive(Clone, Debug)]
enum Step {
    Write {
        family: u32,
        changes: Vec<Change>,
    },
    Flush {
        family: u32,
    },
    Scan {
        family: u32,
        start: Vec<u8>,
        end: Option<Vec<u8>>,
        count_max: usize,
        size_max: usize,
    },
    /// Page by page, from this key on.
    List {
        family: u32,
        start: Vec<u8>,
        count_max: usize,
        folding: Folding,
    },
    Crash,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => prop::collection::vec(97..101u8, 1..4),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ]
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        6 => (key(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(k, v)| put(k, v)),
        2 => key().prop_map(delete),
        1 => (key(), key()).prop_filter_map("empty", |(a, b)| {
            (a != b).then(|| delete_range(a.clone().min(b.clone()), a.max(b)))
        }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let family = || prop::sample::select(FAMILIES.to_vec());
    let write = (family(), prop::collection::vec(change(), 0..8))
        .prop_map(|(family, changes)| Step::Write { family, changes });
    let scan = (family(), key(), prop::option::of(key()), 1..20usize, 0..400usize).prop_map(
        |(family, start, end, count_max, size_max)| Step::Scan {
            family,
            start,
            end,
            count_max,
            size_max,
        },
    );
    let delimiter = prop::sample::select(vec![&b""[..], b"a", b"b", b"bc"]);
    let list = (family(), key(), 1..20usize, (0..2usize, delimiter, 0..4u8)).prop_map(
        |(family, start, count_max, (prefix_size, delimiter, mask))| {
            let (delimiter, passed) = (delimiter.to_vec(), vec![Flags { at: 0, mask }]);
            let folding = Folding { prefix_size, delimiter, passed };
            Step::List { family, start, count_max, folding }
        },
    );
    prop_oneof![
        12 => write,
        3 => scan,
        3 => list,
        1 => family().prop_map(|family| Step::Flush { family }),
        1 => Just(Step::Crash),
    ]
}

pub fn apply(model: &mut Model, changes: &[Change]) {
    for change in changes {
        match change {
            Change::Put { key, value } => {
                model.insert(key.clone(), value.clone());
            }
            Change::Delete { key } => {
                model.remove(key);
            }
            Change::DeleteRange { start, end } => {
                model.retain(|key, _| !(start..end).contains(&key));
            }
        }
    }
}

/// What a family was given, and what of it must survive.
#[derive(Default)]
pub struct Written {
    pub batches: Vec<(u64, Vec<Change>)>,
    flushed: u64,
}

impl Written {
    /// Returns what the family has after the batches up to a lsn.
    fn model_upto(&self, lsn: u64) -> Model {
        let mut model = Model::new();
        let batches = self.batches.iter().take_while(|(of, _)| *of <= lsn);
        batches.for_each(|(_, changes)| apply(&mut model, changes));
        model
    }

    pub fn model(&self) -> Model {
        self.model_upto(u64::MAX)
    }

    fn note_flushed<E: Engine>(&mut self, client: &mut Client<E>, family: u32) {
        self.flushed = client.take_flushed(family).unwrap_or(0).max(self.flushed);
    }
}

/// The process dies and the engine is opened again: it has a prefix of each family's batches. It gets the
/// rest anew, from before what is there.
pub fn crash<E: Engine>(mut client: Client<E>, written: &mut BTreeMap<u32, Written>) -> Client<E> {
    for (family, written) in written.iter_mut() {
        written.note_flushed(&mut client, *family);
    }
    let (mut client, found) = client.crash();
    for found in found {
        let family = found.family.get();
        let written = written.get_mut(&family).expect("a family");
        let kept = found.lsn.get();
        assert!(kept >= written.flushed, "a flushed batch is gone");
        assert!(kept == 0 || written.batches.iter().any(|(lsn, _)| *lsn == kept));
        written.flushed = kept;
        assert!(client.all(family).into_iter().eq(written.model_upto(kept)), "after a crash");
        let from = written.batches.len().saturating_sub(20);
        let first_lost = written.batches.iter().position(|(lsn, _)| *lsn > kept);
        let from = first_lost.unwrap_or(from).min(from);
        for some in written.batches[from..].chunks(100) {
            let begin = |(lsn, changes): &(u64, Vec<Change>)| {
                client.begin_write(family, *lsn, changes.clone())
            };
            let ops: Vec<_> = some.iter().map(begin).collect();
            for op in ops {
                client.wait_done(op).expect("written");
            }
        }
    }
    client
}

fn run<E: Engine>(steps: Vec<Step>) {
    let mut client = Client::<E>::create();
    let mut written: BTreeMap<u32, Written> = BTreeMap::new();
    for family in FAMILIES {
        client.create_family(family, Compression::Snappy).expect("new");
        written.insert(family, Written::default());
    }
    let mut lsn = 0;
    for step in steps {
        match step {
            Step::Write { family, changes } => {
                lsn += 512;
                client.write(family, lsn, changes.clone()).expect("written");
                let written = written.get_mut(&family).expect("a family");
                written.batches.push((lsn, changes));
            }
            Step::Flush { family } => {
                client.flush(family).expect("flushed");
                let written = written.get_mut(&family).expect("a family");
                let last = written.batches.last().map_or(0, |(lsn, _)| *lsn);
                written.note_flushed(&mut client, family);
                assert_eq!(written.flushed, last, "a flush covers all that had ended");
            }
            Step::Scan { family, start, end, count_max, size_max } => {
                let query = scan(&start, end.as_deref(), count_max, size_max);
                let (records, more) = client.scan(family, query).expect("readable");
                let model = written[&family].model();
                let in_range = |key: &[u8]| {
                    key >= start.as_slice() && end.as_deref().is_none_or(|end| key < end)
                };
                let wanted: Vec<_> = model.iter().filter(|(key, _)| in_range(key)).collect();
                let found: Vec<_> = records.iter().collect();
                assert!(
                    found.iter().zip(&wanted).all(|((k, v), (wk, wv))| k == wk && v == wv),
                    "{found:?} {wanted:?}"
                );
                assert_eq!(more, found.len() < wanted.len());
                let size: usize = found.iter().map(|(k, v)| k.len() + v.len()).sum();
                let last = found.last().map_or(0, |(k, v)| k.len() + v.len());
                assert!(found.len() <= count_max);
                assert!(found.len() <= 1 || size - last < size_max);
                let is_full = found.len() == count_max || size >= size_max;
                assert!(!more || is_full, "it stopped before its limits");
            }
            Step::List { family, start, count_max, folding } => {
                let model = written[&family].model();
                let mut expected = model.range(start.clone()..);
                let mut from = start;
                loop {
                    let query = list(&from, Some(b"\xff\xff\xff\xff\xff\xff"), count_max, &folding);
                    let (records, more) = client.scan(family, query).expect("readable");
                    assert!(records.count() <= count_max && (!more || !records.is_empty()));
                    let mut passed: Option<&[u8]> = None;
                    for found in records.iter() {
                        let is_passed = |key: &[u8]| passed.is_some_and(|it| key.starts_with(it));
                        let next = expected.find(|(key, _)| !is_passed(key));
                        assert_eq!(next.map(|(key, value)| (&key[..], &value[..])), Some(found));
                        passed = folding.common_prefix(found.0, found.1);
                    }
                    if !more {
                        let is_passed = |key: &[u8]| passed.is_some_and(|it| key.starts_with(it));
                        assert_eq!(expected.find(|(key, _)| !is_passed(key)), None);
                        break;
                    }
                    from = behind_listed(&records, &folding);
                    expected = model.range(from.clone()..);
                }
            }
            Step::Crash => {
                client = crash(client, &mut written);
            }
        }
    }
    for family in FAMILIES {
        assert!(client.all(family).into_iter().eq(written[&family].model()), "at the end");
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn the_twin_has_what_a_sorted_map_has(steps in steps()) {
        run::<TwinEngine>(steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(24) })]

    #[test]
    fn rocksdb_has_what_a_sorted_map_has(steps in steps()) {
        run::<RealEngine>(steps);
    }
}
