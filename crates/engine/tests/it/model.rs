//! Properties: after any requests and crashes an engine has what a sorted map has.

use std::collections::BTreeMap;

use engine::{Change, Compression};
use proptest::prelude::*;

use crate::subject::{Client, Engine, RealEngine, TwinEngine, delete, delete_range, put, scan};

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const FAMILIES: [u32; 2] = [1, 2];

#[derive(Clone, Debug)]
enum Step {
    Write { family: u32, changes: Vec<Change> },
    Flush { family: u32 },
    Scan { family: u32, start: Vec<u8>, end: Option<Vec<u8>>, count_max: usize, size_max: usize },
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
    prop_oneof![
        12 => write,
        3 => scan,
        1 => family().prop_map(|family| Step::Flush { family }),
        1 => Just(Step::Crash),
    ]
}

fn apply(model: &mut Model, changes: &[Change]) {
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
struct Written {
    batches: Vec<(u64, Vec<Change>)>,
    flushed: u64,
}

impl Written {
    fn model(&self) -> Model {
        let mut model = Model::new();
        self.batches.iter().for_each(|(_, changes)| apply(&mut model, changes));
        model
    }
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
                written.flushed = client.take_flushed(family).unwrap_or(0).max(written.flushed);
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
            Step::Crash => {
                for (family, written) in &mut written {
                    written.flushed =
                        client.take_flushed(*family).unwrap_or(0).max(written.flushed);
                }
                let (after, found) = client.crash();
                client = after;
                for found in found {
                    let family = found.family.get();
                    let written = written.get_mut(&family).expect("a family");
                    let kept = found.lsn.get();
                    assert!(kept >= written.flushed, "a flushed batch is gone");
                    assert!(kept == 0 || written.batches.iter().any(|(lsn, _)| *lsn == kept));
                    written.flushed = kept;
                    let model = {
                        let mut known = Written::default();
                        let batches = written.batches.iter();
                        known.batches.extend(batches.filter(|(lsn, _)| *lsn <= kept).cloned());
                        known.model()
                    };
                    assert!(client.all(family).into_iter().eq(model), "after a crash");
                    // Replay, from before what is there.
                    let from = written.batches.len().saturating_sub(20);
                    let first_lost = written.batches.iter().position(|(lsn, _)| *lsn > kept);
                    let from = first_lost.unwrap_or(from).min(from);
                    for (lsn, changes) in &written.batches[from..] {
                        client.write(family, *lsn, changes.clone()).expect("written");
                    }
                }
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
