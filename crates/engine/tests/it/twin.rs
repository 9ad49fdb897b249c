//! What only the twin can be told to do, and what its random numbers choose.

use std::collections::BTreeSet;

use base::Lsn;
use engine::{
    Compression, EngineEffect, EngineError, EngineEvent, EngineOp, Identity, OpenError, Twin,
};

use crate::subject::{Client, Engine, IDENTITY, Random, TwinEngine, get, pool, put};

fn with_family() -> Client<TwinEngine> {
    let mut client = Client::<TwinEngine>::create();
    client.create_family(1, Compression::Lz4).expect("new");
    client
}

#[test]
fn a_foreign_twin_is_refused() {
    let mut twin = Twin::create(IDENTITY);
    let opened = twin.open(Identity { store: 9, ..IDENTITY });
    assert!(matches!(opened, Err(OpenError::Foreign(_))), "{opened:?}");
}

/// A write fails because there is no space; those behind it fail, too, although there is space again.
#[test]
fn after_a_failed_write_later_ones_fail_until_it_is_repeated() {
    let mut client = with_family();
    client.write(1, 10, vec![put("a", "1")]).expect("written");
    client.engine.twin.set_full(true);
    assert_eq!(client.write(1, 20, vec![put("b", "1")]), Err(EngineError::Full));
    assert_eq!(client.flush(1), Err(EngineError::Full));
    assert_eq!(client.create_family(2, Compression::None), Err(EngineError::Full));
    client.engine.twin.set_full(false);
    assert_eq!(client.write(1, 30, vec![put("c", "1")]), Err(EngineError::Full));
    // Skipped ones change nothing, and let nothing through.
    assert_eq!(client.write(1, 10, vec![put("x", "1")]), Ok(()));
    assert_eq!(client.write(1, 30, vec![put("c", "1")]), Err(EngineError::Full));
    let first = client.begin_write(1, 20, vec![put("b", "1")]);
    let second = client.begin_write(1, 30, vec![put("c", "1")]);
    assert_eq!(client.wait_done(first), Ok(()));
    assert_eq!(client.wait_done(second), Ok(()));
    assert_eq!(client.all(1).len(), 3);
}

#[test]
fn a_failure_poisons_everything_until_the_next_opening() {
    let mut client = with_family();
    client.write(1, 10, vec![put("a", "1")]).expect("written");
    client.flush(1).expect("flushed");
    let waiting = client.begin_write(1, 20, vec![put("b", "1")]);
    client.engine.twin.fail("the disk is on fire");
    client.engine.twin.fail("again");
    let poisoned = EngineError::Poisoned { text: "the disk is on fire".to_owned() };
    assert_eq!(client.wait_done(waiting), Err(poisoned.clone()));
    assert_eq!(client.get(1, "a"), Err(poisoned.clone()));
    assert_eq!(client.flush(1), Err(poisoned));
    let told = client.events.iter().filter(|e| matches!(e, EngineEvent::Poisoned { .. }));
    assert_eq!(told.count(), 1);
    let (mut client, found) = client.crash();
    assert_eq!(found[0].lsn, Lsn::new(10));
    assert_eq!(client.get(1, "a"), Ok(Some(b"1".to_vec())));
}

/// Over many seeds, a crash keeps every possible prefix of each family, on its own.
#[test]
fn a_crash_keeps_any_prefix_of_each_family() {
    let mut kept = BTreeSet::new();
    for seed in 1..=300 {
        let mut client = with_family();
        client.create_family(2, Compression::Lz4).expect("new");
        client.engine.random = Random::new(seed);
        for lsn in 1..=3 {
            client.write(1, lsn, vec![put("a", "1")]).expect("written");
            client.write(2, lsn, vec![put("a", "1")]).expect("written");
        }
        let (_, found) = client.crash();
        kept.insert((found[0].lsn.get(), found[1].lsn.get()));
    }
    assert_eq!(kept.len(), 16, "{kept:?}");
}

/// Over many seeds, a read and a write under way at the same time are seen in both orders.
#[test]
fn requests_are_carried_out_and_told_in_different_orders() {
    let mut seen = BTreeSet::new();
    for seed in 1..=200 {
        let mut client = with_family();
        client.engine.random = Random::new(seed);
        let write = client.begin_write(1, 1, vec![put("a", "1")]);
        let read = client.begin_read(1, vec![get("a")], false);
        let mut order = Vec::new();
        let mut found = false;
        while order.len() < 2 {
            match client.wait_for(|event| !matches!(event, EngineEvent::Flushed { .. })) {
                EngineEvent::Done { op, .. } => order.push(op),
                EngineEvent::Read { op, contains, result } => {
                    order.push(op);
                    found = contains == Lsn::new(1);
                    let answers = result.expect("readable");
                    assert_eq!(answers == [engine::Answer::Value(None)], !found);
                }
                event => unreachable!("{event:?}"),
            }
        }
        assert!(order.contains(&write));
        seen.insert((order[0] == read, found));
    }
    // Also the one that surprises: the write was told first, and the read does not have it.
    assert_eq!(seen.len(), 4, "{seen:?}");
}

/// The same requests and the same random numbers give the same events.
#[test]
fn a_run_repeats() {
    let run = |seed: u64| {
        let mut engine = TwinEngine::create();
        engine.random = Random::new(seed);
        let mut ops = (1..).map(EngineOp);
        let mut op = || ops.next().expect("endless");
        let (family, compression) = (pool(1), Compression::None);
        engine.submit(EngineEffect::Create { op: op(), family, compression });
        for lsn in 1..=30 {
            let changes = [put(format!("{}", lsn % 7), "x")].into();
            let lsn = Lsn::new(lsn);
            engine.submit(EngineEffect::Write { op: op(), family, lsn, changes });
            let queries = vec![get("3")];
            engine.submit(EngineEffect::Read { op: op(), family, queries, from_memory: false });
            engine.submit(EngineEffect::Flush { op: op(), family });
        }
        let mut events = Vec::new();
        while engine.twin.step(&mut |end| engine.random.below(end)) {
            engine.twin.take_events(&mut events);
        }
        events
    };
    assert_eq!(run(5), run(5));
    assert_ne!(run(5), run(6));
}
