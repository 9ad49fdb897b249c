//! Writers, readers and deleters of keys and of their bucket, at gateways whose clocks are an hour apart, with long
//! pauses between any two effects and operations of unknown outcome. Each history must be one that a single map
//! could have shown, one request after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use base::planted::{Bug, fails};
use base::seeds;

use super::*;
use crate::memory::Dice;
use crate::waiting::lock;
use crate::{BucketId, CannedAcl, Failure, IndexName};

/// What a request of one key asked, and what it was told. Bodies are numbers, each put once; 0: no object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// The object is put.
    Put(u64, Condition),
    /// The condition of a change was not met.
    Refused(Condition),
    /// The object is deleted.
    Delete(Condition),
    /// This was read.
    Get(u64),
    /// The bucket was deleted: no acknowledged object was in it.
    BucketDeleted,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Condition {
    None,
    Absent,
    Is(u64),
}

impl Condition {
    fn holds(self, state: u64) -> bool {
        match self {
            Condition::None => true,
            Condition::Absent => state == 0,
            Condition::Is(body) => state == body,
        }
    }
}

/// A request between two moments. `is_sure`: it was acknowledged; else it may have happened, at any time.
#[derive(Clone, Copy, Debug)]
struct Event {
    act: Act,
    begin: u64,
    end: u64,
    is_sure: bool,
}

/// The bucket is gone.
const DEAD: u64 = u64::MAX;

/// Whether a map could have done this, one after the other.
fn is_possible(events: &[Event]) -> bool {
    assert!(events.len() <= 128);
    let all = (0..events.len()).filter(|at| events[*at].is_sure);
    let sure: u128 = all.map(|at| 1 << at).sum();
    let mut seen: BTreeSet<(u128, u64)> = BTreeSet::new();
    let mut open = vec![(0u128, 0u64)];
    while let Some((done, state)) = open.pop() {
        if done & sure == sure {
            return true;
        }
        if !seen.insert((done, state)) {
            continue;
        }
        let left = (0..events.len()).filter(|at| done & (1 << at) == 0);
        let first_end =
            left.clone().filter(|at| events[*at].is_sure).map(|at| events[at].end).min();
        for at in left.filter(|at| first_end.is_none_or(|end| events[*at].begin < end)) {
            let next = match events[at].act {
                // Names of a dead bucket are nobody's.
                Act::Get(_) if state == DEAD => DEAD,
                _ if state == DEAD => continue,
                Act::Put(body, condition) if condition.holds(state) => body,
                Act::Refused(condition) if !condition.holds(state) => state,
                Act::Delete(condition) if condition.holds(state) => 0,
                Act::Get(body) if body == state => state,
                Act::BucketDeleted if state == 0 => DEAD,
                _ => continue,
            };
            open.push((done | 1 << at, next));
        }
    }
    false
}

type Events = Arc<Mutex<BTreeMap<(BucketId, String), Vec<Event>>>>;

struct Writer {
    runner: Runner,
    gateway: Gateway,
    events: Events,
    bodies: Arc<Mutex<u64>>,
    dice: Dice,
}

const KEYS: &[&str] = &["a", "b/c"];

impl Writer {
    async fn go(mut self, count: u64) {
        for _ in 0..count {
            let Ok(bucket) = self.gateway.bucket("photos").await else {
                self.runner.sleep(std::time::Duration::from_millis(300)).await;
                continue;
            };
            let text = KEYS[self.dice.below(KEYS.len() as u64) as usize];
            let begin = self.runner.moment();
            let event = self.act(&bucket, text).await;
            let Some((act, is_sure)) = event else { continue };
            let end = self.runner.moment();
            let event = Event { act, begin, end, is_sure };
            let mut events = lock(&self.events);
            events.entry((bucket.id, text.into())).or_default().push(event);
        }
    }

    /// Returns the condition that the object is what it is now.
    async fn what_is_there(&self, bucket: &Bucket, text: &str) -> Condition {
        match get(&self.gateway, bucket, text).await {
            Ok(body) => Condition::Is(body.parse().expect("a number")),
            Err(_) => Condition::None,
        }
    }

    /// Makes one request. Returns what it tells; `None`: nothing.
    async fn act(&mut self, bucket: &Arc<Bucket>, text: &str) -> Option<(Act, bool)> {
        let may_have = |failure: &Failure| {
            matches!(failure, Failure::Unavailable { .. } | Failure::NoSuchBucket)
        };
        match self.dice.below(10) {
            way @ 0..2 => {
                let condition = match way {
                    0 => self.what_is_there(bucket, text).await,
                    _ => Condition::None,
                };
                let conditions = conditions_of(condition);
                let client = Client::new();
                match self.gateway.delete(&client, bucket, &key(text), &conditions).await {
                    Ok(()) => Some((Act::Delete(condition), true)),
                    Err(Failure::PreconditionFailed | Failure::NoSuchKey) => {
                        Some((Act::Refused(condition), true))
                    }
                    Err(it) => may_have(&it).then_some((Act::Delete(condition), false)),
                }
            }
            2..5 => match get(&self.gateway, bucket, text).await {
                Ok(body) => Some((Act::Get(body.parse().expect("a number")), true)),
                Err(Failure::NoSuchKey) => Some((Act::Get(0), true)),
                Err(_) => None,
            },
            way => {
                let body = {
                    let mut bodies = lock(&self.bodies);
                    *bodies += 1;
                    *bodies
                };
                let condition = match way {
                    5 => Condition::Absent,
                    6 => self.what_is_there(bucket, text).await,
                    _ => Condition::None,
                };
                let conditions = conditions_of(condition);
                let told = body.to_string();
                match put_if(&self.gateway, bucket, text, &told, conditions).await {
                    Ok(_) => Some((Act::Put(body, condition), true)),
                    Err(Failure::PreconditionFailed | Failure::NoSuchKey) => {
                        Some((Act::Refused(condition), true))
                    }
                    Err(it) => may_have(&it).then_some((Act::Put(body, condition), false)),
                }
            }
        }
    }
}

fn conditions_of(condition: Condition) -> Conditions {
    match condition {
        Condition::None => Conditions::default(),
        Condition::Absent => if_absent(),
        Condition::Is(body) => Conditions {
            if_match: Some(TagCondition::OneOf(vec![etag_of(body)])),
            ..Conditions::default()
        },
    }
}

fn etag_of(body: u64) -> String {
    use md5::Digest;
    let md5 = md5::Md5::digest(body.to_string().as_bytes()).into();
    crate::ETag { md5, parts: 0 }.to_string()
}

/// Deletes the bucket again and again, and creates it anew when it is gone.
async fn delete_bucket(
    runner: Runner,
    gateway: Gateway,
    events: Events,
    mut dice: Dice,
    is_eager: bool,
) {
    for _ in 0..3 {
        let wait_ms = dice.below(if is_eager { 1_000 } else { 6_000 });
        runner.sleep(std::time::Duration::from_millis(wait_ms)).await;
        let Ok(bucket) = gateway.bucket("photos").await else { continue };
        let begin = runner.moment();
        if gateway.delete_bucket(&Client::new(), "photos").await.is_err() {
            continue;
        }
        let end = runner.moment();
        for key in KEYS {
            // The view may have been older than the bucket that was deleted: then this says less.
            let event = Event { act: Act::BucketDeleted, begin, end, is_sure: true };
            let mut events = lock(&events);
            events.entry((bucket.id, (*key).into())).or_default().push(event);
        }
        let private = CannedAcl::Private;
        let _ = gateway.create_bucket(&Client::new(), "photos", "ann", private, Some(2)).await;
    }
}

/// How many requests of all histories were acknowledged, by what they did.
type Counts = BTreeMap<&'static str, u64>;

fn histories_are_possible(seed: u64, faults: Faults) -> Counts {
    let world = World::new(seed, 3, faults);
    let World { runner, gateways, .. } = world;
    let events = Events::default();
    let (bodies, mut dice) = (Arc::new(Mutex::new(0)), Dice::new(seed ^ 0xd1ce));
    let recorded = events.clone();
    runner.clone().run(async move {
        let client = Client::new();
        let private = CannedAcl::Private;
        while gateways[0].create_bucket(&client, "photos", "ann", private, Some(2)).await.is_err() {
        }
        let mut ended = Vec::new();
        for number in 0..6usize {
            let (giver, taker) = crate::waiting::result();
            let writer = Writer {
                runner: runner.clone(),
                gateway: gateways[number % 3].clone(),
                events: events.clone(),
                bodies: bodies.clone(),
                dice: Dice::new(dice.bits()),
            };
            let count = 3 + dice.below(8);
            runner.spawn(async move {
                writer.go(count).await;
                giver.give(());
            });
            ended.push(taker);
        }
        let deleter = delete_bucket(
            runner.clone(),
            gateways[dice.below(3) as usize].clone(),
            events.clone(),
            Dice::new(dice.bits()),
            seed.is_multiple_of(2),
        );
        deleter.await;
        for taker in ended {
            taker.take().await;
        }
        // What is there in the end was read.
        for _ in 0..20 {
            let Ok(bucket) = gateways[1].bucket("photos").await else { continue };
            for text in KEYS {
                let begin = runner.moment();
                let act = match get(&gateways[1], &bucket, text).await {
                    Ok(body) => Act::Get(body.parse().expect("a number")),
                    Err(Failure::NoSuchKey) => Act::Get(0),
                    Err(_) => continue,
                };
                let end = runner.moment();
                let event = Event { act, begin, end, is_sure: true };
                let mut events = lock(&events);
                events.entry((bucket.id, (*text).into())).or_default().push(event);
            }
            break;
        }
    });
    let events = lock(&recorded);
    let mut counts = Counts::new();
    for ((bucket, key), events) in &*events {
        assert!(is_possible(events), "{bucket} {key}: {events:#?}");
        for event in events {
            let what = match (event.act, event.is_sure) {
                (_, false) => "unsure",
                (Act::Put(_, Condition::None), _) => "put",
                (Act::Put(..), _) => "conditional put",
                (Act::Refused(_), _) => "refused",
                (Act::Delete(_), _) => "delete",
                (Act::Get(_), _) => "get",
                (Act::BucketDeleted, _) => "bucket deleted",
            };
            *counts.entry(what).or_default() += 1;
        }
    }
    drop(events);
    counts
}

const ROUGH: Faults = Faults { long_pauses: 20, unknown: 30, unavailable: 5 };
/// Nothing fails: so all that was asked is acknowledged.
const SLOW: Faults = Faults { long_pauses: 60, unknown: 0, unavailable: 0 };

#[test]
fn acknowledged_writes_are_there_and_conditions_are_exact() {
    let mut counts = Counts::new();
    for seed in seeds(1..=400) {
        println!("SEEDS={seed}..{seed}");
        let faults = if seed % 3 == 0 { SLOW } else { ROUGH };
        for (what, count) in histories_are_possible(seed, faults) {
            *counts.entry(what).or_default() += count;
        }
    }
    println!("{counts:?}");
    if std::env::var("SEEDS").is_err() {
        assert!(counts.len() == 7, "{counts:?}");
    }
}

#[test]
fn a_view_that_is_judged_before_the_write_alone_loses_writes() {
    let test = || (1..=400).for_each(|seed| drop(histories_are_possible(seed, SLOW)));
    assert!(fails(Bug::ViewJudgedBeforeOnly, test));
}

#[test]
fn a_write_that_is_undone_takes_the_older_one_with_it() {
    let test = || (1..=400).for_each(|seed| drop(histories_are_possible(seed, SLOW)));
    assert!(fails(Bug::UndoAfterOverwrite, test));
}

#[test]
fn of_32_conditional_writers_one_wins() {
    for seed in seeds(1..=100) {
        println!("SEEDS={seed}..{seed}");
        let world = World::new(seed, 3, Faults { long_pauses: 2, ..Faults::default() });
        let World { runner, gateways, .. } = world;
        let results = runner.clone().run(async move {
            let client = Client::new();
            let bucket =
                gateways[0].create_bucket(&client, "photos", "ann", CannedAcl::Private, None);
            let bucket = bucket.await.expect("created");
            let mut writers = Vec::new();
            for number in 0..32usize {
                let (giver, taker) = crate::waiting::result();
                let (gateway, bucket) = (gateways[number % 3].clone(), bucket.clone());
                runner.spawn(async move {
                    let body = number.to_string();
                    giver.give(put_if(&gateway, &bucket, "a", &body, if_absent()).await);
                });
                writers.push(taker);
            }
            let mut winners = Vec::new();
            for (number, writer) in writers.into_iter().enumerate() {
                match writer.take().await.expect("an answer") {
                    Ok(_) => winners.push(number),
                    Err(failure) => assert_eq!(failure, Failure::PreconditionFailed),
                }
            }
            let body = get(&gateways[0], &bucket, "a").await;
            (winners, body)
        });
        assert_eq!(results.0.len(), 1, "{results:?}");
        assert_eq!(results.1, Ok(results.0[0].to_string()));
    }
}

#[test]
fn versions_grow_whatever_clocks_say() {
    let world = World::new(1, 3, Faults::default());
    let World { runner, gateways, pool, .. } = world;
    runner.run(async move {
        let client = Client::new();
        let bucket = gateways[0].create_bucket(&client, "photos", "ann", CannedAcl::Private, None);
        let bucket = bucket.await.expect("created");
        let mut last = 0;
        // The first gateway's clock is hours ahead of the last one's.
        for gateway in gateways.iter().cycle().take(9) {
            put(gateway, &bucket, "a", "x").await.expect("put");
            let name = bucket.key_name(&key("a")).expect("a name");
            let read = objects::Read::Data { name, offset: 0, length: 256 };
            let mut answers = pool.look(&[read]).expect("read");
            let Some(objects::ReadAnswer::Data(Some((_, head)))) = answers.pop() else { panic!() };
            let head = crate::head::Head::decode(&head).expect("a head");
            assert!(head.current.id.stamp > last);
            assert_eq!(head.key.highest_stamp, head.current.id.stamp);
            last = head.current.id.stamp;
        }
    });
}

#[test]
fn writers_of_one_key_at_one_gateway_all_get_their_turn() {
    let world = World::new(3, 1, Faults::default());
    let World { runner, gateways, .. } = world;
    runner.clone().run(async move {
        let client = Client::new();
        let bucket = gateways[0].create_bucket(&client, "photos", "ann", CannedAcl::Private, None);
        let bucket = bucket.await.expect("created");
        let mut writers = Vec::new();
        for number in 0..120 {
            let (giver, taker) = crate::waiting::result();
            let (gateway, bucket) = (gateways[0].clone(), bucket.clone());
            runner.spawn(async move {
                giver.give(put(&gateway, &bucket, "a", &number.to_string()).await);
            });
            writers.push(taker);
        }
        for writer in writers {
            assert!(writer.take().await.expect("an answer").is_ok());
        }
    });
}

/// A gateway that deletes a bucket is stopped for 20 s before its n-th effect; another one puts an object.
fn a_deleter_is_stopped(effect: u64) -> (bool, bool) {
    let world = World::new(effect, 2, Faults::default());
    let World { runner, gateways, doors, pool } = world;
    runner.clone().run(async move {
        let client = Client::new();
        let private = CannedAcl::Private;
        let created = gateways[0].create_bucket(&client, "photos", "ann", private, Some(1)).await;
        let bucket = created.expect("created");
        doors[0].stall_at(effect, std::time::Duration::from_secs(20));
        let (giver, taker) = crate::waiting::result();
        let deleter = gateways[0].clone();
        runner.spawn(async move {
            giver.give(deleter.delete_bucket(&Client::new(), "photos").await.is_ok());
        });
        runner.sleep(std::time::Duration::from_secs(4)).await;
        let is_put = put(&gateways[1], &bucket, "a", "x").await.is_ok();
        let is_deleted = taker.take().await.expect("an answer");
        runner.sleep(std::time::Duration::from_secs(2)).await;
        if is_put {
            assert!(!is_deleted);
            assert_eq!(get(&gateways[1], &bucket, "a").await, Ok("x".into()));
            assert_eq!(gateways[1].bucket("photos").await.map(|it| it.id), Ok(bucket.id));
            // Its id is live.
            let name = IndexName::Id(bucket.id).encode().expect("a name");
            let read = objects::Read::Data { name, offset: 0, length: 256 };
            let mut answers = pool.look(&[read]).expect("read");
            let Some(objects::ReadAnswer::Data(Some((_, data)))) = answers.pop() else { panic!() };
            assert_eq!(data[1], 0);
        }
        (is_put, is_deleted)
    })
}

#[test]
fn a_deleter_that_was_taken_for_dead_deletes_nothing() {
    let outcomes: BTreeSet<(bool, bool)> = (1..=40).map(a_deleter_is_stopped).collect();
    assert!(outcomes.contains(&(true, false)));
    assert!(outcomes.contains(&(false, true)));
}
