//! Lists beside changes: each key that was there throughout is told exactly once, whatever the pages are.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use base::planted::{Bug, fails};
use base::seeds;
use objects::{Assertion, ObjectChange};

use super::*;
use crate::head::{Head, VersionHead};
use crate::memory::Dice;
use crate::names::IndexName;
use crate::views::operation;
use crate::{CannedAcl, ListEntry, ListRequest, Locator};

/// Parts of keys: separators at every place, and text that sorts around them.
const PARTS: &[&str] = &["a", "b", "/", "//", "0", "é", "\u{1}", "\u{10ffff}", "a/"];

fn any_key(dice: &mut Dice) -> String {
    let count = 1 + dice.below(4);
    (0..count).map(|_| PARTS[dice.below(PARTS.len() as u64) as usize]).collect()
}

/// Puts a delete marker, as buckets with versions will have them.
fn hide(pool: &Pool, bucket: &Bucket, text: &str, like: &Head) {
    let key = key(text);
    let locator = Locator::of_key(&bucket.name, &key, bucket.spread);
    let name = IndexName::Key { bucket: bucket.id, key, locator }.encode().expect("a name");
    let current = VersionHead { is_hidden: true, is_null: false, ..like.current.clone() };
    let head = Head { current, key: like.key };
    let put = ObjectChange::Put(head.encode());
    pool.execute(&operation(&name, [Assertion::Absent], [put])).expect("absent");
}

/// What all pages must tell of these keys.
fn expected(keys: &BTreeSet<String>, request: &ListRequest) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for key in keys {
        let Some(rest) = key.strip_prefix(&request.prefix) else { continue };
        let end = match request.delimiter.is_empty() {
            true => None,
            false => rest.find(&request.delimiter).map(|at| at + request.delimiter.len()),
        };
        let text = match end {
            Some(end) => format!("{}{}", request.prefix, &rest[..end]),
            None => key.clone(),
        };
        let is_behind = |after: &String| match end {
            Some(_) => key > after && text != *after,
            None => key > after,
        };
        if request.after.as_ref().is_none_or(is_behind) && told.last() != Some(&text) {
            told.push(text);
        }
    }
    told
}

fn text_of(entry: &ListEntry) -> &str {
    match entry {
        ListEntry::Object(key, _) => key,
        ListEntry::CommonPrefix(prefix) => prefix,
    }
}

/// Lists with all kinds of requests beside a writer of other keys.
fn lists_are_complete(seed: u64) {
    let world = World::new(seed, 2, Faults { long_pauses: 5, ..Faults::default() });
    let World { pool, runner, gateways, .. } = world;
    runner.clone().run(async move {
        let mut dice = Dice::new(seed ^ 0x5eed);
        let (client, spread) = (Client::new(), 1 << dice.below(4));
        let gateway = gateways[0].clone();
        let bucket =
            gateway.create_bucket(&client, "photos", "ann", CannedAcl::Private, Some(spread));
        let bucket = bucket.await.expect("created");
        let all: BTreeSet<String> = (0..30).map(|_| any_key(&mut dice)).collect();
        // Some stay, some come and go, some have delete markers.
        let mut kept: [BTreeSet<String>; 3] = Default::default();
        all.into_iter().for_each(|key| {
            kept[dice.below(3) as usize].insert(key);
        });
        let [stable, moving, hidden] = kept;
        let mut like = None;
        for key in &stable {
            put(&gateway, &bucket, key, "x").await.expect("put");
            let name = bucket.key_name(&super::key(key)).expect("a name");
            let read = objects::Read::Data { name, offset: 0, length: 256 };
            let mut answers = pool.look(&[read]).expect("read");
            let Some(objects::ReadAnswer::Data(Some((_, head)))) = answers.pop() else { panic!() };
            like = Some(Head::decode(&head).expect("a head"));
        }
        let Some(like) = like else { return };
        hidden.iter().for_each(|key| hide(&pool, &bucket, key, &like));
        let is_over = Arc::new(AtomicBool::new(false));
        let writer = {
            let (gateway, bucket, is_over) = (gateways[1].clone(), bucket.clone(), is_over.clone());
            let (moving, mut dice) = (moving.iter().cloned().collect::<Vec<_>>(), dice.clone());
            async move {
                while !is_over.load(Ordering::SeqCst) && !moving.is_empty() {
                    let text = &moving[dice.below(moving.len() as u64) as usize];
                    match dice.below(2) {
                        0 => drop(put(&gateway, &bucket, text, "y").await),
                        _ => {
                            let no = Conditions::default();
                            let _ = gateway.delete(&Client::new(), &bucket, &key(text), &no).await;
                        }
                    }
                }
            }
        };
        runner.spawn(writer);
        for _ in 0..6 {
            let mut request =
                ListRequest { count_max: 1 + dice.below(4) as usize, ..Default::default() };
            if dice.below(2) == 0 {
                request.delimiter = ["/", "a", "//"][dice.below(3) as usize].into();
            }
            if dice.below(3) == 0 {
                request.prefix = any_key(&mut dice);
            }
            if dice.below(3) == 0 {
                request.after = Some(any_key(&mut dice));
            }
            check_list(&gateway, &bucket, request, &stable, &moving, dice.below(2) == 0).await;
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

/// Reads all pages. `by_marker`: each page begins at the last entry of the one before, as in version 1.
async fn check_list(
    gateway: &Gateway,
    bucket: &Bucket,
    request: ListRequest,
    stable: &BTreeSet<String>,
    moving: &BTreeSet<String>,
    by_marker: bool,
) {
    let (mut told, mut page_of): (Vec<String>, _) = (Vec::new(), request.clone());
    for pages in 0.. {
        assert!(pages < 1_000, "the list has no end: {request:?}");
        let page = gateway.list(bucket, &page_of).await.expect("listed");
        assert!(page.entries.len() <= request.count_max);
        told.extend(page.entries.iter().map(|entry| text_of(entry).to_owned()));
        let Some(next) = page.next else { break };
        match page.entries.last() {
            Some(last) if by_marker => page_of.after = Some(text_of(last).to_owned()),
            _ => page_of.token = Some(next),
        }
        if by_marker && !page.entries.is_empty() {
            page_of.token = None;
        }
    }
    assert!(told.is_sorted_by(|one, next| one < next), "{request:?}: {told:?}");
    let all: BTreeSet<String> = stable.union(moving).cloned().collect();
    let (least, most) = (expected(stable, &request), expected(&all, &request));
    for text in &least {
        assert!(told.contains(text), "{request:?}: {text:?} is not in {told:?}");
    }
    for text in &told {
        assert!(most.contains(text), "{request:?}: {text:?} is not among {most:?}");
    }
}

#[test]
fn each_key_that_stays_is_listed_once() {
    for seed in seeds(1..=150) {
        println!("SEEDS={seed}..{seed}");
        lists_are_complete(seed);
    }
}

#[test]
fn a_prefix_that_has_only_hidden_keys_does_not_show() {
    assert!(fails(Bug::HiddenUnderPrefix, || (1..=150).for_each(lists_are_complete)));
}
