//! Objects whose data lies in containers: sizes, ranges, what becomes of data that no key names.

use super::*;
use crate::Failure;
use crate::collector::Collector;

async fn put_bytes(
    gateway: &Gateway,
    bucket: &Arc<Bucket>,
    text: &str,
    bytes: &[u8],
    length: Option<u64>,
) -> Result<ObjectInfo> {
    let new = NewObject { length, ..new_object(Conditions::default()) };
    let mut upload = gateway.begin_put(Client::new(), bucket.clone(), key(text), new).await?;
    for piece in bytes.chunks(300_000) {
        upload.write(Bytes::copy_from_slice(piece)).await?;
    }
    upload.finish(Expected::default()).await
}

#[test]
fn what_is_put_is_read_whatever_its_size_and_whether_its_length_is_known() {
    let World { runner, gateways, volumes, .. } = World::new(1, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        for size in [0, 99, 100, 101, 4096, 16_384, 16_385, 1 << 20, (5 << 19) + 77] {
            let bytes = bytes_of(size);
            for length in [None, Some(size as u64)] {
                let info = put_bytes(&gateway, &bucket, "a", &bytes, length).await.expect("put");
                assert_eq!(info.size, size as u64);
                assert_eq!(get_range(&gateway, &bucket, "a", None).await, Ok(bytes.clone()));
                let head = gateway.head(&bucket, &key("a"), &Conditions::default(), None).await;
                let head = head.expect("there");
                assert_eq!(head.info, info);
                assert!(matches!(head.data, Data::None));
            }
        }
        // Only the last one is named.
        let mut collector = Collector::default();
        gateway.collect_once(&mut collector).await.expect("collected");
        let size = (5u64 << 19) + 77;
        assert_eq!(volumes.stored().len() as u64, size.div_ceil(4096));
        let (client, conditions) = (Client::new(), Conditions::default());
        gateway.delete(&client, &bucket, &key("a"), &conditions).await.expect("deleted");
        let collected = gateway.collect_once(&mut collector).await.expect("collected");
        assert_eq!((collected.seen, collected.removed), (1, 1));
        assert_eq!(volumes.stored().len(), 0);
        assert_eq!(gateway.collect_once(&mut collector).await.map(|it| it.seen), Ok(0));
    });
}

#[test]
fn ranges_have_the_bytes_that_were_asked_for() {
    let World { runner, gateways, .. } = World::new(2, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let mut bytes = bytes_of(3 << 20);
        // Zeros that were written are data.
        bytes[8192..40_000].fill(0);
        put_bytes(&gateway, &bucket, "a", &bytes, None).await.expect("put");
        let mib = 1usize << 20;
        for (first, last) in [
            (0, 0),
            (4095, 4096),
            (8192, 8200),
            (10_000, 39_000),
            (mib - 1, mib),
            (mib / 2, 2 * mib + 5),
            (0, 3 * mib - 1),
            (3 * mib - 1, 3 * mib - 1),
        ] {
            let range = Some(ByteRange::From(first as u64, Some(last as u64)));
            let read = get_range(&gateway, &bucket, "a", range).await.expect("read");
            assert!(read == bytes[first..=last], "{first} {last}");
        }
    });
}

#[test]
fn lost_data_that_reads_as_zeros_is_told_however_short_the_range() {
    let World { runner, gateways, volumes, .. } = World::new(3, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        put_bytes(&gateway, &bucket, "a", &bytes_of(100_000), None).await.expect("put");
        // As `pg accept-loss` leaves it: zeros that were written.
        let (container, unit) = *volumes.stored().iter().nth(3).expect("stored");
        let zeros = Bytes::from(vec![0; 4096]);
        volumes.write(container, unit * 4096, &zeros).expect("written");
        let range = Some(ByteRange::From(13_000, Some(13_010)));
        let read = get_range(&gateway, &bucket, "a", range).await;
        assert!(matches!(read, Err(Failure::Damaged { .. })), "{read:?}");
        let other = Some(ByteRange::From(50_000, Some(50_010)));
        assert!(get_range(&gateway, &bucket, "a", other).await.is_ok());
        // A hole in a place that is named is an alarm, and never zeros.
        volumes.trim(container, 0, 32_768).expect("trimmed");
        let read = get_range(&gateway, &bucket, "a", range).await;
        assert!(matches!(read, Err(Failure::Damaged { .. })), "{read:?}");
        volumes.remove(container);
        let read = get_range(&gateway, &bucket, "a", other).await;
        assert!(matches!(read, Err(Failure::Damaged { .. })), "{read:?}");
    });
}

#[test]
fn a_reader_of_an_object_that_is_replaced_is_broken_off() {
    let World { runner, gateways, .. } = World::new(4, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let bytes = bytes_of(9 << 20);
        put_bytes(&gateway, &bucket, "a", &bytes, None).await.expect("put");
        let (conditions, kept) = (Conditions::default(), Kept::default());
        let found = gateway.get(&bucket, &key("a"), &conditions, None, kept).await.expect("found");
        let Data::Stored(mut reader) = found.data else { panic!("it is long") };
        assert!(reader.next().await.is_ok());
        put_bytes(&gateway, &bucket, "a", &bytes, None).await.expect("put");
        gateway.collect_once(&mut Collector::default()).await.expect("collected");
        let mut read = 1 << 20;
        let failure = loop {
            match reader.next().await {
                Ok(bytes) => read += bytes.expect("more is left").len(),
                Err(failure) => break failure,
            }
        };
        assert!(matches!(failure, Failure::Unavailable { .. }), "{failure:?}");
        assert!(read < bytes.len());
    });
}

#[test]
fn what_an_upload_that_fails_wrote_is_given_back() {
    let World { runner, gateways, volumes, pool, .. } = World::new(5, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let names = pool.names().len();
        let bytes = bytes_of(2 << 20);
        // Another digest than the body's.
        let new = new_object(Conditions::default());
        let begun = gateway.begin_put(Client::new(), bucket.clone(), key("a"), new.clone()).await;
        let mut upload = begun.expect("begun");
        upload.write(bytes.clone().into()).await.expect("written");
        let expected = Expected { md5: Some([0; 16]), ..Expected::default() };
        let failed = upload.finish(expected).await;
        assert_eq!(failed, Err(Failure::BadDigest { which: "Content-MD5" }));
        // A condition that is not true.
        let if_match = Some(TagCondition::Any);
        let conditions = Conditions { if_match, ..Conditions::default() };
        let put = put_if(&gateway, &bucket, "a", &"x".repeat(50_000), conditions).await;
        assert_eq!(put, Err(Failure::NoSuchKey));
        // A client that goes away.
        let begun = gateway.begin_put(Client::new(), bucket.clone(), key("a"), new).await;
        let mut upload = begun.expect("begun");
        upload.write(bytes.into()).await.expect("written");
        drop(upload);
        runner.sleep(Duration::from_secs(1)).await;
        assert!(!volumes.stored().is_empty());
        let collected = gateway.collect_once(&mut Collector::default()).await.expect("collected");
        assert_eq!((collected.seen, collected.removed), (3, 3));
        assert!(volumes.stored().is_empty());
        // The container has a name, too.
        assert_eq!(pool.names().len(), names + 1);
    });
}

#[test]
fn an_upload_that_stands_still_is_collected_and_one_that_goes_on_is_not() {
    let World { runner, gateways, pool, .. } = World::new(6, 2, Faults::default());
    let (gateway, other) = (gateways[0].clone(), gateways[1].clone());
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let new = new_object(Conditions::default());
        let begun = gateway.begin_put(Client::new(), bucket.clone(), key("a"), new).await;
        let mut upload = begun.expect("begun");
        upload.write(vec![1; 50_000].into()).await.expect("written");
        let mut collector = Collector::default();
        for (seconds, ended) in [(0, 0), (2, 0), (2, 1)] {
            runner.sleep(Duration::from_secs(seconds)).await;
            let collected = other.collect_once(&mut collector).await.expect("collected");
            assert_eq!((collected.seen, collected.ended), (1, ended));
        }
        let put = upload.finish(Expected::default()).await;
        assert!(matches!(put, Err(Failure::Unavailable { .. })), "{put:?}");
        assert_eq!(get(&gateway, &bucket, "a").await, Err(Failure::NoSuchKey));
        let strays = |pool: &Pool| {
            pool.names().iter().filter(|name| name.bytes().first() == Some(&b'u')).count()
        };
        assert_eq!(strays(&pool), 1);
        other.collect_once(&mut collector).await.expect("collected");
        assert_eq!(strays(&pool), 0);
    });
}

#[test]
fn a_session_that_is_over_gives_out_no_places() {
    let World { runner, gateways, doors, pool, .. } = World::new(7, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let containers = |pool: &Pool| {
            pool.names().iter().filter(|name| name.bytes().first() == Some(&b'c')).count()
        };
        for (number, is_over) in [(1, false), (1, false), (2, true), (2, false)] {
            if is_over {
                doors[0].end_session();
            }
            put_bytes(&gateway, &bucket, "a", &bytes_of(5_000), None).await.expect("put");
            assert_eq!(containers(&pool), number);
        }
    });
}

#[test]
fn without_a_data_pool_only_short_objects_are_taken() {
    let World { runner, doors, .. } = World::new(8, 1, Faults::default());
    let gateway = Buckets::new(doors[0].clone(), Sealer::new(b"key"), Settings::default());
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let bytes = bytes_of(60 << 10);
        assert!(put_bytes(&gateway, &bucket, "a", &bytes, None).await.is_ok());
        let long = bytes_of((60 << 10) + 1);
        let size_max = 60 << 10;
        for length in [None, Some(long.len() as u64)] {
            let put = put_bytes(&gateway, &bucket, "a", &long, length).await;
            assert_eq!(put, Err(Failure::TooLarge { size_max }));
        }
        assert_eq!(get_range(&gateway, &bucket, "a", None).await, Ok(bytes));
    });
}
