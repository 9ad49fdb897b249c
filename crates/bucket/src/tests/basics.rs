//! What each request does, without faults.

use std::time::Duration;

use objects::{Assertion, Field, ObjectChange};

use super::*;
use crate::views::operation;
use crate::{
    ByteRange, CannedAcl, Door as _, Failure, IndexName, KEYS_OF_USER_MAX, ListEntry, ListRequest,
    TASKS_OF_PG_MAX, VersionId,
};

fn world() -> (World, Gateway) {
    let world = World::new(1, 2, Faults::default());
    let gateway = world.gateways[0].clone();
    (world, gateway)
}

#[test]
fn an_object_is_put_read_and_deleted() {
    let (world, gateway) = world();
    world.runner.run(async move {
        let client = Client::new();
        let private = CannedAcl::Private;
        let bucket = gateway.create_bucket(&client, "photos", "ann", private, None).await;
        let bucket = bucket.expect("created");
        assert_eq!(gateway.bucket("photos").await, Ok(bucket.clone()));
        assert_eq!(get(&gateway, &bucket, "a").await, Err(Failure::NoSuchKey));
        let mut new = new_object(Conditions::default());
        new.metadata.user.insert("who".into(), "ann".into());
        new.metadata.headers.insert("content-type".into(), "text/plain".into());
        new.length = Some(5);
        let metadata = new.metadata.clone();
        let begun = gateway.begin_put(client.clone(), bucket.clone(), key("a"), new.clone()).await;
        let mut upload = begun.expect("begun");
        for part in ["he", "llo"] {
            upload.write(Bytes::from_static(part.as_bytes())).await.expect("written");
        }
        let info = upload.finish(Expected::default()).await.expect("put");
        assert_eq!(info.etag.to_string(), "5d41402abc4b2a76b9719d911017c592");
        assert_eq!((info.size, info.version), (5, VersionId::Null));
        let no = Conditions::default();
        let found = gateway.head(&bucket, &key("a"), &no, None).await.expect("found");
        assert_eq!((found.info, found.metadata), (info.clone(), metadata));
        assert_eq!(get(&gateway, &bucket, "a").await, Ok("hello".into()));
        let range = Some(ByteRange::From(1, Some(2)));
        let part = get_range(&gateway, &bucket, "a", range).await;
        assert_eq!(part, Ok(b"el".to_vec()));
        // Too short, and too long.
        let mut short =
            gateway.begin_put(client.clone(), bucket.clone(), key("b"), new).await.expect("begun");
        short.write(Bytes::from_static(b"hell")).await.expect("written");
        let long = short.write(Bytes::from_static(b"!!")).await;
        assert_eq!(long, Err(Failure::IncompleteBody));
        let short = short.finish(Expected::default()).await;
        assert_eq!(short, Err(Failure::IncompleteBody));
        assert!(put(&gateway, &bucket, "b", "x").await.is_ok());
        let not_empty = gateway.delete_bucket(&client, "photos").await;
        assert_eq!(not_empty, Err(Failure::BucketNotEmpty));
        for name in ["a", "b", "b"] {
            assert_eq!(gateway.delete(&client, &bucket, &key(name), &no).await, Ok(()));
        }
        assert_eq!(get(&gateway, &bucket, "a").await, Err(Failure::NoSuchKey));
        assert_eq!(gateway.delete_bucket(&client, "photos").await, Ok(()));
        assert_eq!(gateway.bucket("photos").await, Err(Failure::NoSuchBucket));
        assert_eq!(put(&gateway, &bucket, "a", "x").await, Err(Failure::NoSuchBucket));
    });
}

#[test]
fn conditions_are_judged() {
    let (world, gateway) = world();
    world.runner.run(async move {
        let client = Client::new();
        let bucket = gateway.create_bucket(&client, "photos", "ann", CannedAcl::Private, Some(1));
        let bucket = bucket.await.expect("created");
        let tag = |tag: &str| Some(TagCondition::OneOf(vec![tag.into()]));
        let if_match = |it: &str| Conditions { if_match: tag(it), ..Conditions::default() };
        let no_key = put_if(&gateway, &bucket, "a", "1", if_match("1")).await;
        assert_eq!(no_key, Err(Failure::NoSuchKey));
        let first = put_if(&gateway, &bucket, "a", "1", if_absent()).await.expect("absent");
        let etag = first.etag.to_string();
        let failed = Err(Failure::PreconditionFailed);
        assert_eq!(put_if(&gateway, &bucket, "a", "2", if_absent()).await, failed.clone());
        assert_eq!(put_if(&gateway, &bucket, "a", "2", if_match("no")).await, failed.clone());
        let second = put_if(&gateway, &bucket, "a", "2", if_match(&etag)).await.expect("matches");
        let delete = gateway.delete(&client, &bucket, &key("a"), &if_match(&etag)).await;
        assert_eq!(delete, Err(Failure::PreconditionFailed));
        let get = async |conditions: Conditions| {
            let found = gateway.head(&bucket, &key("a"), &conditions, None).await;
            found.map(|found| found.info)
        };
        let etag = second.etag.to_string();
        assert_eq!(get(if_match(&etag)).await, Ok(second.clone()));
        assert_eq!(get(if_match("no")).await, Err(Failure::PreconditionFailed));
        let seconds = second.modified_ms / 1000;
        let none_match = Conditions { if_none_match: tag(&etag), ..Conditions::default() };
        assert_eq!(get(none_match.clone()).await, Err(Failure::NotModified));
        // If-None-Match counts more than If-Modified-Since, If-Match more than If-Unmodified-Since.
        let since = Conditions { if_modified_since: Some(seconds), ..Conditions::default() };
        assert_eq!(get(since.clone()).await, Err(Failure::NotModified));
        let both = Conditions { if_none_match: tag("no"), ..since };
        assert_eq!(get(both).await, Ok(second.clone()));
        let old = Conditions { if_unmodified_since: Some(seconds - 1), ..Conditions::default() };
        assert_eq!(get(old.clone()).await, Err(Failure::PreconditionFailed));
        assert_eq!(get(Conditions { if_match: tag(&etag), ..old }).await, Ok(second));
        let delete = gateway.delete(&client, &bucket, &key("a"), &if_match(&etag)).await;
        assert_eq!(delete, Ok(()));
    });
}

#[test]
fn buckets_belong_to_users() {
    let (world, one) = world();
    let other = world.gateways[1].clone();
    world.runner.run(async move {
        let client = Client::new();
        let private = CannedAcl::Private;
        for name in ["bbb", "aaa", "abc"] {
            assert!(one.create_bucket(&client, name, "ann", private, None).await.is_ok());
        }
        let own = other.create_bucket(&client, "aaa", "ann", private, None).await;
        assert_eq!(own, Err(Failure::BucketOwned));
        let taken = other.create_bucket(&client, "aaa", "bob", private, None).await;
        assert_eq!(taken, Err(Failure::BucketTaken));
        let names = async |prefix: &str, after: Option<&str>, count: usize| {
            let page = other.list_buckets("ann", prefix, after, count).await.expect("listed");
            (page.0.iter().map(|it| it.name.clone()).collect::<Vec<_>>().join(" "), page.1)
        };
        assert_eq!(names("", None, 10).await, ("aaa abc bbb".into(), None));
        assert_eq!(names("", None, 2).await, ("aaa abc".into(), Some("abc".into())));
        assert_eq!(names("", Some("abc"), 2).await, ("bbb".into(), None));
        assert_eq!(names("a", Some("aaa"), 2).await, ("abc".into(), None));
        let of_bob = other.list_buckets("bob", "", None, 10).await;
        assert_eq!(of_bob, Ok((vec![], None)));
        assert_eq!(one.set_acl(&client, "aaa", CannedAcl::PublicRead).await, Ok(()));
        assert_eq!(one.bucket("aaa").await.map(|it| it.acl), Ok(CannedAcl::PublicRead));
        assert_eq!(one.set_acl(&client, "zzz", private).await, Err(Failure::NoSuchBucket));
        assert_eq!(one.delete_bucket(&client, "zzz").await, Err(Failure::NoSuchBucket));
        assert_eq!(one.bucket("A").await, Err(Failure::InvalidBucketName));
    });
}

#[test]
fn users_have_keys_with_secrets() {
    let (world, gateway) = world();
    world.runner.run(async move {
        let invalid = |result: Result<()>| assert!(matches!(result, Err(Failure::Invalid { .. })));
        for name in ["carl", "ann", "bob"] {
            assert!(gateway.create_user(name).await.is_ok());
        }
        invalid(gateway.create_user("ann").await.map(drop));
        invalid(gateway.add_key("nobody").await.map(drop));
        let (users, next) = gateway.users(None, 2).await.expect("listed");
        let names: Vec<&str> = users.iter().map(|user| user.name.as_str()).collect();
        assert_eq!((names, next.as_deref()), (vec!["ann", "bob"], Some("bob")));
        let (users, next) = gateway.users(next.as_deref(), 2).await.expect("listed");
        assert_eq!((users[0].name.as_str(), users.len(), next), ("carl", 1, None));
        let (access, secret) = gateway.add_key("ann").await.expect("added");
        assert_eq!((access.id.len(), secret.len()), (20, 40));
        let found = gateway.secret_of(&access.id).await.expect("looked up").expect("there");
        assert_eq!((found.0.name.as_str(), &found.1), ("ann", &secret));
        assert_eq!(gateway.secret_of("AK0123456789ABCDEFGH").await, Ok(None));
        assert_eq!(gateway.secret_of("../\0").await, Ok(None));
        assert_eq!(gateway.keys("ann").await, Ok(vec![access.clone()]));
        invalid(gateway.remove_user("ann").await);
        assert_eq!(gateway.remove_key(&access.id).await, Ok(()));
        assert_eq!(gateway.secret_of(&access.id).await, Ok(None));
        let client = Client::new();
        let bucket = gateway.create_bucket(&client, "photos", "ann", CannedAcl::Private, None);
        assert!(bucket.await.is_ok());
        invalid(gateway.remove_user("ann").await);
        assert_eq!(gateway.delete_bucket(&client, "photos").await, Ok(()));
        assert_eq!(gateway.remove_user("ann").await, Ok(()));
        invalid(gateway.remove_user("ann").await);
    });
}

#[test]
fn nothing_is_sent_for_a_client_that_is_gone() {
    let (world, gateway) = world();
    let pool = world.pool.clone();
    world.runner.clone().run(async move {
        let client = Client::new();
        let bucket = gateway.create_bucket(&client, "photos", "ann", CannedAcl::Private, Some(1));
        let bucket = bucket.await.expect("created");
        let names = pool.names();
        let gone = Client::new();
        gone.is_done_with();
        let late = Client::new();
        late.sent_last_byte(1);
        world.runner.sleep(Duration::from_secs(60)).await;
        for client in [gone, late] {
            let new = new_object(Conditions::default());
            let begun = gateway.begin_put(client, bucket.clone(), key("a"), new).await;
            let put = begun.expect("begun").finish(Expected::default()).await;
            assert!(matches!(put, Err(Failure::Unavailable { .. })));
        }
        // Who drops a request is gone.
        let client = Client::new();
        let new = new_object(Conditions::default());
        let begun = gateway.begin_put(client.clone(), bucket.clone(), key("a"), new).await;
        let mut put = Box::pin(begun.expect("begun").finish(Expected::default()));
        let polled = std::future::poll_fn(|context| {
            std::task::Poll::Ready(put.as_mut().poll(context).is_ready())
        });
        assert!(!polled.await);
        drop(put);
        assert!(!client.may_send(world.runner.now_us()));
        world.runner.sleep(Duration::from_secs(60)).await;
        assert_eq!(pool.names(), names);
    });
}

#[test]
fn a_pg_gets_an_eighth_of_all_tasks() {
    let (world, gateway) = world();
    let runner = world.runner.clone();
    runner.clone().run(async move {
        let client = Client::new();
        let bucket = gateway.create_bucket(&client, "photos", "ann", CannedAcl::Private, Some(1));
        let bucket = bucket.await.expect("created");
        let results = Arc::new(std::sync::Mutex::new(Vec::new()));
        for number in 0..8 * TASKS_OF_PG_MAX {
            let (gateway, bucket, results) = (gateway.clone(), bucket.clone(), results.clone());
            runner.spawn(async move {
                let put = put(&gateway, &bucket, &format!("{number}"), "x").await;
                crate::waiting::lock(&results).push(put.is_ok());
            });
        }
        runner.sleep(Duration::from_secs(60)).await;
        let results = crate::waiting::lock(&results).clone();
        assert_eq!(results.len(), 8 * TASKS_OF_PG_MAX);
        let refused = results.iter().filter(|is_ok| !**is_ok).count();
        assert!((1..=7 * TASKS_OF_PG_MAX).contains(&refused), "{refused}");
        assert!(put(&gateway, &bucket, "later", "x").await.is_ok());
    });
}

#[test]
fn keys_that_were_never_made_do_not_use_up_those_of_a_user() {
    let (world, gateway) = world();
    let pool = world.pool.clone();
    world.runner.run(async move {
        gateway.create_user("ann").await.expect("created");
        let (first, secret) = gateway.add_key("ann").await.expect("added");
        let object = |name: IndexName| name.encode().expect("short");
        let user = object(IndexName::User("ann".into()));
        let ids: Vec<String> = (1..KEYS_OF_USER_MAX).map(|at| format!("AK{at:018}")).collect();
        for id in &ids {
            let note = ObjectChange::Set(Field::Record(id.clone().into_bytes()), Vec::new());
            pool.execute(&operation(&user, [Assertion::Exists], [note])).expect("it is there");
        }
        let (second, _) = gateway.add_key("ann").await.expect("only one key was made");
        let mut keys = gateway.keys("ann").await.expect("read");
        keys.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        let mut expected = vec![first.clone(), second];
        expected.sort_by(|a, b| (a.created_ms, &a.id).cmp(&(b.created_ms, &b.id)));
        assert_eq!(keys, expected);
        let found = gateway.secret_of(&first.id).await.expect("read").expect("it signs");
        assert_eq!(found.1, secret);
        // Whoever began to make one of them, and is late, does not.
        let late = object(IndexName::AccessKey(ids[0].clone()));
        let put = operation(&late, [Assertion::Absent], [ObjectChange::Put(vec![1])]);
        assert!(pool.execute(&put).is_err());
        for _ in 2..KEYS_OF_USER_MAX {
            gateway.add_key("ann").await.expect("there is room");
        }
        assert!(matches!(gateway.add_key("ann").await, Err(Failure::Invalid { .. })));
    });
}

#[test]
fn a_pg_that_is_down_holds_an_eighth_of_all_reads() {
    let (world, gateway) = world();
    let (runner, door) = (world.runner.clone(), world.doors[0].clone());
    runner.clone().run(async move {
        let client = Client::new();
        let bucket = gateway.create_bucket(&client, "photos", "ann", CannedAcl::Private, None);
        let bucket = bucket.await.expect("created");
        let name = bucket.key_name(&key("down")).expect("short");
        let is_elsewhere = |text: &String| {
            let other = bucket.key_name(&key(text)).expect("short");
            door.pg_of(&other) != door.pg_of(&name)
        };
        let other = (0..100).map(|number| format!("up-{number}")).find(is_elsewhere);
        let other = other.expect("a bucket has several PGs");
        for key in ["down", &other] {
            put(&gateway, &bucket, key, "x").await.expect("put");
        }
        door.set_down(Some(&name));
        let ended = Arc::new(std::sync::Mutex::new(Vec::new()));
        for number in 0..4 * TASKS_OF_PG_MAX {
            let (gateway, bucket) = (gateway.clone(), bucket.clone());
            let (runner, ended) = (runner.clone(), ended.clone());
            runner.clone().spawn(async move {
                let is_ok = match number % 2 {
                    0 => get(&gateway, &bucket, "down").await.is_ok(),
                    _ => {
                        let request = ListRequest { count_max: 10, ..ListRequest::default() };
                        gateway.list(&bucket, &request).await.is_ok()
                    }
                };
                assert!(!is_ok);
                crate::waiting::lock(&ended).push((number % 2, runner.now_us()));
            });
        }
        let began_us = runner.now_us();
        runner.sleep(Duration::from_secs(2)).await;
        assert_eq!(get(&gateway, &bucket, &other).await, Ok("x".into()));
        let refused = crate::waiting::lock(&ended).clone();
        for kind in [0, 1] {
            let refused = refused.iter().filter(|(it, _)| *it == kind).count();
            assert_eq!(refused, TASKS_OF_PG_MAX, "an eighth of them waits on");
        }
        assert!(refused.iter().all(|(_, at_us)| at_us - began_us < 1_100_000));
        runner.sleep(Duration::from_secs(30)).await;
        assert_eq!(crate::waiting::lock(&ended).len(), 4 * TASKS_OF_PG_MAX);
        door.set_down(None);
        assert_eq!(get(&gateway, &bucket, "down").await, Ok("x".into()));
    });
}

#[test]
fn max_keys_0_is_an_empty_page() {
    let (world, gateway) = world();
    world.runner.run(async move {
        let client = Client::new();
        let bucket = gateway.create_bucket(&client, "photos", "ann", CannedAcl::Private, None);
        let bucket = bucket.await.expect("created");
        assert!(put(&gateway, &bucket, "a", "x").await.is_ok());
        let page = gateway.list(&bucket, &ListRequest::default()).await.expect("listed");
        assert_eq!((page.entries.len(), page.next), (0, None));
        let request = ListRequest { count_max: 10, ..ListRequest::default() };
        let page = gateway.list(&bucket, &request).await.expect("listed");
        assert!(matches!(&page.entries[..], [ListEntry::Object(key, info)]
            if key == "a" && info.size == 1));
        assert_eq!(page.next, None);
    });
}
