//! Uploads in parts.

use super::*;
use crate::collector::Collector;
use crate::{Checksum, Failure, UploadsRequest};

async fn begin(gateway: &Gateway, bucket: &Bucket, text: &str) -> UploadId {
    let of_parts = (ChecksumKind::Sha256, ChecksumShape::Parts);
    begin_upload(gateway, bucket, text, of_parts).await.expect("begun")
}

fn named(parts: &[PartInfo]) -> Vec<NamedPart> {
    let named = |part: &PartInfo| NamedPart {
        number: part.number,
        etag: part.etag.to_string(),
        checksum: Some(part.checksum.clone()),
    };
    parts.iter().map(named).collect()
}

async fn complete(
    gateway: &Gateway,
    bucket: &Bucket,
    text: &str,
    upload: UploadId,
    parts: Vec<NamedPart>,
) -> Result<ObjectInfo> {
    let completion = Completion { parts, ..Completion::default() };
    gateway.complete_upload(&Client::new(), bucket, &key(text), upload, completion).await
}

#[test]
fn an_object_in_parts_is_read_as_one() {
    let World { runner, gateways, volumes, .. } = World::new(1, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let bytes = bytes_of(5_500_000);
        let none = Conditions::default();
        let put = put_in_parts(&gateway, &bucket, "a", &bytes, 1_200_000, none.clone()).await;
        let info = put.expect("put");
        assert_eq!((info.size, info.etag.parts), (bytes.len() as u64, 5));
        let mut whole = crate::digests::Digests::new(ChecksumKind::Crc64Nvme);
        whole.update(&bytes);
        assert_eq!(info.checksum, Some(whole.finish().1));
        assert!(get_range(&gateway, &bucket, "a", None).await == Ok(bytes.clone()));
        for (first, last) in [(0, 0), (1_199_999, 1_200_000), (1_100_000, 4_900_000)] {
            let range = Some(ByteRange::From(first as u64, Some(last as u64)));
            let read = get_range(&gateway, &bucket, "a", range).await.expect("read");
            assert!(read == bytes[first..=last], "{first} {last}");
        }
        // It is replaced by one in other parts, and that one by a short one.
        let bytes = bytes_of(3_000);
        let put = put_in_parts(&gateway, &bucket, "a", &bytes, 1_000, none).await;
        assert_eq!(put.map(|info| info.size), Ok(3_000));
        let mut collector = Collector::default();
        gateway.collect_once(&mut collector).await.expect("collected");
        assert_eq!(volumes.stored().len(), 3);
        assert!(super::put(&gateway, &bucket, "a", "x").await.is_ok());
        gateway.collect_once(&mut collector).await.expect("collected");
        assert_eq!(volumes.stored().len(), 0);
        assert_eq!(get(&gateway, &bucket, "a").await, Ok("x".into()));
    });
}

#[test]
fn a_completion_names_parts_that_were_put() {
    let World { runner, gateways, volumes, .. } = World::new(2, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let upload = begin(&gateway, &bucket, "a").await;
        let bytes = bytes_of(10_000);
        let mut parts = Vec::new();
        for (number, size) in [(1, 2_000), (2, 10), (3, 5_000), (7, 1), (9, 0)] {
            let part = put_part(&gateway, &bucket, "a", (upload, number), &bytes[..size]).await;
            parts.push(part.expect("put"));
        }
        let all = named(&parts);
        let of = |at: &[usize]| at.iter().map(|at| all[*at].clone()).collect::<Vec<_>>();
        let try_complete = async |parts| complete(&gateway, &bucket, "a", upload, parts).await;
        assert_eq!(try_complete(of(&[2, 0])).await, Err(Failure::InvalidPartOrder));
        assert_eq!(try_complete(of(&[0, 0])).await, Err(Failure::InvalidPartOrder));
        assert!(matches!(try_complete(vec![]).await, Err(Failure::Invalid { .. })));
        let small = Err(Failure::PartTooSmall { number: 2, size: 10 });
        assert_eq!(try_complete(of(&[0, 1, 2])).await, small);
        let invalid = |number| Err(Failure::InvalidPart { number });
        for number in [4, 8, 10] {
            let missing = NamedPart { number, etag: all[0].etag.clone(), checksum: None };
            let mut parts = [of(&[0, 2]), vec![missing]].concat();
            parts.sort_by_key(|part| part.number);
            assert_eq!(try_complete(parts).await, invalid(number));
        }
        let mut wrong = of(&[0, 2]);
        wrong[1].etag = all[0].etag.clone();
        assert_eq!(try_complete(wrong).await, invalid(3));
        let mut wrong = of(&[0, 2]);
        let value = vec![0; 32];
        wrong[1].checksum = Some(Checksum { kind: ChecksumKind::Sha256, value });
        assert_eq!(try_complete(wrong).await, invalid(3));
        let put = put_part(&gateway, &bucket, "a", (upload, 0), b"x").await;
        assert!(matches!(put, Err(Failure::Invalid { .. })));
        let put = put_part(&gateway, &bucket, "b", (upload, 1), b"x").await;
        assert_eq!(put, Err(Failure::NoSuchUpload));
        // One that was replaced does not count, and its data is given back with those that are not named.
        let part = put_part(&gateway, &bucket, "a", (upload, 3), &bytes[..6_000]).await;
        let new = named(&[part.expect("put")]);
        assert_eq!(try_complete(of(&[0, 2])).await, invalid(3));
        let parts = [of(&[0]), new, of(&[4])].concat();
        let info = try_complete(parts.clone()).await.expect("complete");
        assert_eq!((info.size, info.etag.parts), (8_000, 3));
        assert_eq!(info.checksum_shape, ChecksumShape::Parts);
        let expected = [&bytes[..2_000], &bytes[..6_000]].concat();
        assert!(get_range(&gateway, &bucket, "a", None).await == Ok(expected.clone()));
        // Again: the same answer, also when the object is another one by now.
        assert_eq!(try_complete(parts.clone()).await, Ok(info.clone()));
        assert_eq!(try_complete(of(&[0])).await, Err(Failure::NoSuchUpload));
        let put = put_part(&gateway, &bucket, "a", (upload, 1), b"x").await;
        assert_eq!(put, Err(Failure::NoSuchUpload));
        let abort = gateway.abort_upload(&Client::new(), &bucket, &key("a"), upload).await;
        assert_eq!(abort, Err(Failure::NoSuchUpload));
        let collected = gateway.collect_once(&mut Collector::default()).await.expect("collected");
        assert_eq!((collected.seen, collected.removed), (1, 1));
        assert_eq!(volumes.stored().len(), 3);
        assert!(get_range(&gateway, &bucket, "a", None).await == Ok(expected));
        assert_eq!(try_complete(parts).await, Ok(info));
    });
}

#[test]
fn an_upload_that_is_aborted_is_given_back() {
    let World { runner, gateways, volumes, pool, .. } = World::new(3, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let upload = begin(&gateway, &bucket, "a").await;
        let names = pool.names().len();
        for number in [1, 1, 2] {
            let part = put_part(&gateway, &bucket, "a", (upload, number), &bytes_of(9_000)).await;
            assert!(part.is_ok());
        }
        assert_eq!(volumes.stored().len(), 9);
        let abort = async || gateway.abort_upload(&Client::new(), &bucket, &key("a"), upload).await;
        assert_eq!(abort().await, Ok(()));
        assert_eq!(abort().await, Err(Failure::NoSuchUpload));
        let parts = gateway.parts(&bucket, &key("a"), upload, 0, 10).await;
        assert_eq!(parts, Err(Failure::NoSuchUpload));
        gateway.collect_once(&mut Collector::default()).await.expect("collected");
        assert_eq!(volumes.stored().len(), 0);
        // The container has come, marker and parts are gone.
        assert_eq!(pool.names().len(), names - 1);
        assert_eq!(get(&gateway, &bucket, "a").await, Err(Failure::NoSuchKey));
    });
}

#[test]
fn uploads_and_parts_are_listed_in_pages() {
    let World { runner, gateways, volumes, .. } = World::new(4, 1, Faults::default());
    let gateway = gateways[0].clone();
    runner.clone().run(async move {
        let bucket = new_bucket(&gateway).await;
        let mut begun = Vec::new();
        for text in ["a/1", "a/2", "b", "b", "b", "c/d", "c/d"] {
            begun.push((text.to_owned(), begin(&gateway, &bucket, text).await));
            runner.sleep(Duration::from_millis(1)).await;
        }
        for count_max in [1, 2, 3, 10] {
            let mut request = UploadsRequest { count_max, ..UploadsRequest::default() };
            let mut listed = Vec::new();
            loop {
                let page = gateway.uploads(&bucket, &request).await.expect("listed");
                assert!(page.uploads.len() <= count_max);
                listed.extend(page.uploads.into_iter().map(|upload| (upload.key, upload.id)));
                let Some(next) = page.next else { break };
                request.after = Some(next);
            }
            assert_eq!(listed, begun, "{count_max}");
            let delimiter = "/".to_owned();
            let mut request = UploadsRequest { count_max, delimiter, ..UploadsRequest::default() };
            let (mut listed, mut prefixes) = (Vec::new(), Vec::new());
            loop {
                let page = gateway.uploads(&bucket, &request).await.expect("listed");
                listed.extend(page.uploads.into_iter().map(|upload| upload.key));
                prefixes.extend(page.common_prefixes);
                let Some(next) = page.next else { break };
                request.after = Some(next);
            }
            assert_eq!((listed.join(" "), prefixes.join(" ")), ("b b b".into(), "a/ c/".into()));
        }
        let upload = begun[2].1;
        for number in [1, 3, 5, 10_000] {
            let part = put_part(&gateway, &bucket, "b", (upload, number), b"x").await;
            assert!(part.is_ok());
        }
        let (mut after, mut numbers) = (0, Vec::new());
        loop {
            let page = gateway.parts(&bucket, &key("b"), upload, after, 2).await;
            let (open, parts, next) = page.expect("listed");
            assert_eq!((open.owner.as_str(), open.checksum), ("ann", ChecksumKind::Sha256));
            numbers.extend(parts.iter().map(|part| part.number));
            let Some(next) = next else { break };
            after = next;
        }
        assert_eq!(numbers, [1, 3, 5, 10_000]);
        // With the bucket they go.
        assert_eq!(gateway.delete_bucket(&Client::new(), "photos").await, Ok(()));
        gateway.collect_once(&mut Collector::default()).await.expect("collected");
        assert_eq!(volumes.stored().len(), 0);
    });
}
