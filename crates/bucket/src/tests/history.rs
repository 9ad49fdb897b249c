//! Writers, readers and deleters of keys and of their bucket, at gateways whose clocks are an hour apart, with long
//! pauses between any two effects and operations of unknown outcome. Each history must be one that a single map
//! could have shown, one request after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::task::Poll;

use base::planted::{Bug, fails};
use base::seeds;

use objects::Field;

use super::*;
use crate::collector::Collector;
use crate::memory::Dice;
use crate::parts::{self, PartKey};
use crate::records::{Content, Place, RecordKey};
use crate::strays::Stray;
use crate::waiting::{First, first_of, lock};
use crate::{BucketId, ContainerId, Failure, IndexName, UNIT};

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
                Act::Get(_) | Act::Refused(_) if state == DEAD => DEAD,
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
                self.runner.sleep(Duration::from_millis(300)).await;
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
    async fn what_is_there(&mut self, bucket: &Bucket, text: &str) -> Condition {
        match read(&self.gateway, bucket, text, &mut self.dice).await {
            Ok(body) if body > 0 => Condition::Is(body),
            _ => Condition::None,
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
            2..5 => {
                let body = read(&self.gateway, bucket, text, &mut self.dice).await;
                body.ok().map(|body| (Act::Get(body), true))
            }
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
                let told = body_of(body);
                let gone_ms = self.dice.below(if way == 9 { 100 } else { 100_000 });
                let (gateway, dice) = (&self.gateway, &mut self.dice);
                let put = put_by_number(gateway, bucket, text, (body, &told), conditions, dice);
                let gone = self.runner.sleep(Duration::from_millis(gone_ms));
                let First::One(answer) = first_of(put, gone).await else {
                    return Some((Act::Put(body, condition), false));
                };
                match answer {
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

/// Whether the body of a number is put in parts.
fn is_in_parts(number: u64) -> bool {
    number % 8 >= 6
}

const PART_SIZE: usize = 30_000;

/// Puts the body of a number: at once, or in parts, some of them beside others that are not named or
/// replaced.
async fn put_by_number(
    gateway: &Gateway,
    bucket: &Arc<Bucket>,
    text: &str,
    (number, body): (u64, &str),
    conditions: Conditions,
    dice: &mut Dice,
) -> Result<ObjectInfo> {
    if !is_in_parts(number) {
        return put_if(gateway, bucket, text, body, conditions).await;
    }
    let (client, key) = (Client::new(), key(text));
    let upload = begin_upload(gateway, bucket, text, OF_WHOLE).await?;
    let mut parts = Vec::new();
    for (at, bytes) in body.as_bytes().chunks(PART_SIZE).enumerate() {
        let number = 2 * at as u16 + 2;
        // One that is not named, and one that is replaced.
        for (other, bytes) in [(number - 1, &bytes[..500]), (number, &bytes[..2_000])] {
            if dice.below(3) == 0 {
                let _ = put_part(gateway, bucket, text, (upload, other), bytes).await;
            }
        }
        let part = put_part(gateway, bucket, text, (upload, number), bytes).await?;
        parts.push(NamedPart { number, etag: part.etag.to_string(), checksum: None });
    }
    let completion = Completion { parts, conditions, ..Completion::default() };
    let complete = async |gateway: &Gateway| {
        let (client, completion) = (Client::new(), completion.clone());
        gateway.complete_upload(&client, bucket, &key, upload, completion).await
    };
    match dice.below(5) {
        4 => {
            // A part is put again beside it. Either it comes too late, or the named one is gone.
            let part = put_part(gateway, bucket, text, (upload, 2), b"other");
            let (completed, part) = both(complete(gateway), part).await;
            if completed.is_ok() {
                assert!(part.is_err(), "a part came into a complete upload");
            }
            completed
        }
        0 => {
            // Somebody aborts it at the same time.
            let abort = gateway.abort_upload(&client, bucket, &key, upload);
            let (completed, aborted) = both(complete(gateway), abort).await;
            if completed.is_ok() {
                assert!(aborted.is_err(), "complete and aborted");
            }
            completed
        }
        1 => {
            // It is sent twice.
            let (completed, again) = both(complete(gateway), complete(gateway)).await;
            if let (Ok(one), Ok(other)) = (&completed, &again) {
                assert_eq!(one, other);
            }
            completed.or(again)
        }
        _ => complete(gateway).await,
    }
}

/// Waits for two futures.
async fn both<A, B>(one: impl Future<Output = A>, other: impl Future<Output = B>) -> (A, B) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|context| {
        if first.is_none()
            && let Poll::Ready(value) = one.as_mut().poll(context)
        {
            first = Some(value);
        }
        if second.is_none()
            && let Poll::Ready(value) = other.as_mut().poll(context)
        {
            second = Some(value);
        }
        match first.is_some() && second.is_some() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    (first.expect("it has ended"), second.expect("it has ended"))
}

/// Returns the body of a number: a few bytes, or some that take one or more blocks and stripes.
fn body_of(number: u64) -> String {
    let size = match number % 8 {
        0..3 => 0,
        3 => 4_096,
        4 => 5_000,
        5 => 20_000,
        6 => 32_768,
        _ => 70_000,
    };
    let text = number.to_string();
    let count = 1 + size / text.len();
    vec![text; count].join(" ")
}

/// Reads an object, or a part of it. Returns its number; 0: there is none.
async fn read(gateway: &Gateway, bucket: &Bucket, text: &str, dice: &mut Dice) -> Result<u64> {
    let whole = dice.below(3) > 0;
    let first = if whole { 0 } else { dice.below(40_000) };
    let last = first + dice.below(5_000);
    let range = (!whole).then_some(ByteRange::From(first, Some(last)));
    let (conditions, kept) = (Conditions::default(), Kept::default());
    let found = gateway.get(bucket, &key(text), &conditions, range, kept).await;
    let (etag, range, data) = match found {
        Ok(found) => (found.info.etag, found.range, found.data),
        Err(Failure::NoSuchKey) => return Ok(0),
        Err(Failure::Damaged { what }) => panic!("damaged: {what}"),
        Err(failure) => return Err(failure),
    };
    let mut bytes = Vec::new();
    match data {
        Data::None => panic!("the bytes were asked for"),
        Data::Inline(all) => bytes.extend_from_slice(&all),
        Data::Stored(mut reader) => loop {
            match reader.next().await {
                Ok(Some(more)) => bytes.extend_from_slice(&more),
                Ok(None) => break,
                Err(Failure::Damaged { what }) => panic!("damaged: {what}"),
                Err(failure) => return Err(failure),
            }
        },
    }
    // The tag says which body this must be.
    let number = (1..1000).find(|number| etag_of(*number) == etag.to_string());
    let number = number.expect("some body has this tag");
    let body = body_of(number);
    assert_eq!(bytes, &body.as_bytes()[range.start as usize..range.end as usize]);
    Ok(number)
}

/// Goes over strays again and again, with a grace of zero.
async fn collect(runner: Runner, gateway: Gateway, mut dice: Dice) {
    let mut collector = Collector::default();
    loop {
        let _ = gateway.collect_once(&mut collector).await;
        runner.sleep(Duration::from_millis(dice.below(3_000))).await;
    }
}

type Units = BTreeSet<(ContainerId, u64)>;

/// Returns the units of all places that keys and parts name, those of parts on their way, and all strays.
fn named(pool: &Pool) -> (Units, Units, Vec<Stray>) {
    let (mut units, mut writing, mut strays) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
    let mut add = |places: Vec<Place>, is_writing: bool| {
        for place in places {
            let of = place.units().step_by(UNIT as usize).map(|at| at / UNIT);
            for unit in of {
                let unit = (place.container(), unit);
                let is_new = !units.contains(&unit) && !writing.contains(&unit);
                assert!(is_new, "one place has two names");
                if is_writing {
                    writing.insert(unit)
                } else {
                    units.insert(unit)
                };
            }
        }
    };
    for name in pool.names() {
        match IndexName::decode(name.bytes()) {
            Some(IndexName::Key { .. }) => {}
            // Of uploads that are open, too.
            Some(IndexName::Parts { .. }) => {
                let listing = objects::Listing {
                    count_max: 1000,
                    size_max: 1 << 20,
                    ..objects::Listing::default()
                };
                let read = objects::Read::Records { name, listing };
                let mut answers = pool.look(&[read]).expect("read");
                let Some(objects::ReadAnswer::Fields(page)) = answers.pop() else { panic!() };
                for entry in page.entries {
                    let objects::PageEntry::Key(key, value) = entry else { panic!() };
                    let key = PartKey::decode(&key).expect("the key of a part");
                    let is_writing = matches!(key, PartKey::Writing(..));
                    add(parts::read_places(key, &value).expect("places"), is_writing);
                }
                continue;
            }
            Some(IndexName::Stray { .. }) => {
                let read = objects::Read::Data { name, offset: 0, length: u32::MAX };
                let mut answers = pool.look(&[read]).expect("read");
                let Some(objects::ReadAnswer::Data(Some((_, data)))) = answers.pop() else {
                    panic!()
                };
                strays.push(Stray::decode(&data).expect("a stray"));
                continue;
            }
            _ => continue,
        }
        let fields = vec![Field::Record(RecordKey::NullData.encode())];
        let read = objects::Read::Values { name, fields, size_max: usize::MAX };
        let mut answers = pool.look(&[read]).expect("read");
        let Some(objects::ReadAnswer::Values(values)) = answers.pop() else { panic!() };
        let Some(content) = &values[0] else { panic!("a key without data") };
        let Ok(Content::Places { places, .. }) = Content::decode(content) else { continue };
        add(places, false);
    }
    (units, writing, strays)
}

fn etag_of(body: u64) -> String {
    use md5::Digest;
    let bytes = body_of(body).into_bytes();
    if !is_in_parts(body) {
        let md5 = md5::Md5::digest(&bytes).into();
        return crate::ETag { md5, parts: 0 }.to_string();
    }
    let (mut md5, mut parts) = (md5::Md5::new(), 0);
    for part in bytes.chunks(PART_SIZE) {
        md5.update(md5::Md5::digest(part));
        parts += 1;
    }
    crate::ETag { md5: md5.finalize().into(), parts }.to_string()
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
        runner.sleep(Duration::from_millis(wait_ms)).await;
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
    let World { runner, gateways, pool, volumes, .. } = world;
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
        for gateway in &gateways[..2] {
            let dice = Dice::new(dice.bits());
            runner.spawn(collect(runner.clone(), gateway.clone(), dice));
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
        // Whatever is still under way ends, and all that no key names is given back.
        runner.sleep(Duration::from_secs(120)).await;
        let (units, writing, strays) = named(&pool);
        assert!(strays.is_empty(), "strays are left: {strays:?}");
        let stored = volumes.stored();
        let gone: Vec<_> = units.difference(&stored).collect();
        assert!(gone.is_empty(), "data is gone: {gone:?}");
        // What was written late, behind a trim, costs space if it cannot be trimmed again.
        if faults.late == 0 && faults.unavailable == 0 {
            let lost: Vec<_> = stored.difference(&(&units | &writing)).cloned().collect();
            assert!(lost.is_empty(), "space is lost: {lost:?}");
        }
        // What is there in the end was read.
        for _ in 0..20 {
            let Ok(bucket) = gateways[1].bucket("photos").await else { continue };
            for text in KEYS {
                let begin = runner.moment();
                let act = match read(&gateways[1], &bucket, text, &mut dice).await {
                    Ok(body) => Act::Get(body),
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

const ROUGH: Faults =
    Faults { long_pauses: 20, unknown: 30, unavailable: 5, sessions: 50, late: 0 };
/// Writes and trims happen late, too.
const LATE: Faults = Faults { late: 20, ..ROUGH };
/// Outcomes are unknown and sessions end, and no space may be lost by that.
const UNSURE: Faults = Faults { unavailable: 0, ..ROUGH };
/// Nothing fails: so all that was asked is acknowledged.
const SLOW: Faults = Faults { long_pauses: 60, unknown: 0, unavailable: 0, sessions: 0, late: 0 };

#[test]
fn acknowledged_writes_are_there_and_conditions_are_exact() {
    let mut counts = Counts::new();
    for seed in seeds(1..=150) {
        println!("SEEDS={seed}..{seed}");
        let faults = [SLOW, ROUGH, LATE, UNSURE][(seed % 4) as usize];
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
fn bugs_in_how_data_is_named_and_given_back_are_found() {
    for bug in [
        Bug::HoleIsZeros,
        Bug::CollectedWithoutVersion,
        Bug::CommitWithoutStray,
        Bug::CompletedWithoutVersion,
        Bug::AbortWithoutOpen,
        Bug::ReplacedForgotten,
    ] {
        let test = || (1..=400).for_each(|seed| drop(histories_are_possible(seed, SLOW)));
        assert!(fails(bug, test), "{bug:?}");
    }
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
    let World { runner, gateways, doors, pool, .. } = world;
    runner.clone().run(async move {
        let client = Client::new();
        let private = CannedAcl::Private;
        let created = gateways[0].create_bucket(&client, "photos", "ann", private, Some(1)).await;
        let bucket = created.expect("created");
        doors[0].stall_at(effect, Duration::from_secs(20));
        let (giver, taker) = crate::waiting::result();
        let deleter = gateways[0].clone();
        runner.spawn(async move {
            giver.give(deleter.delete_bucket(&Client::new(), "photos").await.is_ok());
        });
        runner.sleep(Duration::from_secs(4)).await;
        let is_put = put(&gateways[1], &bucket, "a", "x").await.is_ok();
        let is_deleted = taker.take().await.expect("an answer");
        runner.sleep(Duration::from_secs(2)).await;
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
