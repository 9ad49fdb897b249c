//! What is refused before anything is done: times, signatures, and too much at once.

use hyper::{Request, StatusCode};

use super::rig::{Ask, HOST, Rig, date_of};
use super::signer::Signer;
use crate::clock;
use crate::limits::Limits;

/// The signer, so many seconds away from now.
fn at(signer: &Signer, seconds: i64) -> Signer {
    let now = (clock::wall_us() / 1000) as i64;
    Signer { date: date_of((now + seconds * 1000) as u64), ..signer.clone() }
}

#[tokio::test]
async fn a_signature_lives_for_a_quarter_of_an_hour() {
    let rig = Rig::filled("photos", &["a"]).await;
    for (seconds, is_good) in
        [(-14 * 60, true), (14 * 60, true), (-20 * 60, false), (20 * 60, false)]
    {
        let signer = at(&rig.signer, seconds);
        let came = rig.send(Ask::new("GET", "/photos/a").signed_with(&signer).0).await;
        if is_good {
            assert_eq!(came.text(), "a");
            continue;
        }
        assert_eq!(came.code(), (403, "RequestTimeTooSkewed"));
        assert_eq!(came.element("RequestTime"), signer.date);
        assert_eq!(came.element("MaxAllowedSkewMilliseconds"), "900000");
        assert!(came.element("ServerTime").ends_with('Z'));
        assert_eq!(came.element("RequestId"), came.header("x-amz-request-id"));
    }
}

#[tokio::test]
async fn a_presigned_url_lives_as_long_as_it_says() {
    let rig = Rig::filled("photos", &["a"]).await;
    for (seconds, expires, status) in [
        (0, 3600, 200),
        (-1800, 3600, 200),
        (-3660, 3600, 403),
        (1200, 3600, 403),
        (0, 604_800, 200),
        (0, 604_801, 400),
    ] {
        let uri = at(&rig.signer, seconds).presigned("GET", HOST, "/photos/a", expires);
        let request = Request::builder().uri(&uri).header("host", HOST).body(Default::default());
        let came = rig.send(request.expect("a request")).await;
        assert_eq!(came.status.as_u16(), status, "{seconds} {expires}: {came:?}");
        if status == 200 {
            let longer = uri.replace(&format!("Expires={expires}"), "Expires=7200");
            let request = Request::builder().uri(longer).header("host", HOST);
            let came = rig.send(request.body(Default::default()).expect("a request")).await;
            assert_eq!(came.code(), (403, "SignatureDoesNotMatch"));
        }
    }
}

#[tokio::test]
async fn a_removed_key_signs_nothing_a_second_later() {
    let rig = Rig::filled("photos", &["a"]).await;
    assert_eq!(rig.get("/photos/a").await.status, StatusCode::OK);
    rig.buckets.remove_key(&rig.signer.key).await.expect("removed");
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    assert_eq!(rig.get("/photos/a").await.code(), (403, "InvalidAccessKeyId"));
}

#[tokio::test]
async fn requests_are_refused_before_they_are_read() {
    let rig = Rig::filled("photos", &["a"]).await;
    let far = Signer { region: "eu-west-1".to_string(), ..rig.signer.clone() };
    let came = rig.send(Ask::new("GET", "/photos/a").signed_with(&far).0).await;
    assert_eq!(came.code(), (400, "AuthorizationHeaderMalformed"));
    assert_eq!(came.element("Region"), "us-east-1");
    let old = Ask::new("GET", "/photos/a").header("authorization", "AWS AKID:x").unsigned();
    assert_eq!(rig.send(old).await.code(), (400, "InvalidRequest"));
    let form =
        Ask::new("POST", "/photos").header("content-type", "multipart/form-data; boundary=x");
    assert_eq!(rig.send(form.body("--x--").unsigned()).await.code(), (501, "NotImplemented"));
    let (mut twice, _) = Ask::new("GET", "/photos/a").signed_with(&rig.signer);
    twice.headers_mut().append("host", "other".parse().expect("a value"));
    assert_eq!(rig.send(twice).await.code(), (400, "InvalidRequest"));
    let (mut more, _) = Ask::new("PUT", "/photos/b").signed_with(&rig.signer);
    more.headers_mut().append("x-amz-acl", "private".parse().expect("a value"));
    assert_eq!(rig.send(more).await.code(), (403, "AccessDenied"));
    let long = Ask::new("PUT", "/photos/b").header("content-length", "5368709121");
    assert_eq!(rig.ask(long).await.code(), (400, "EntityTooLarge"));
    let no_path = Request::builder().uri("/photos/%FF").header("host", HOST);
    let came = rig.send(no_path.body(Default::default()).expect("a request")).await;
    assert_eq!(came.code(), (400, "InvalidURI"));
}

#[tokio::test]
async fn too_much_at_once_is_told_to_come_back() {
    let rig = Rig::with(Limits { requests_max: 0, ..Limits::default() }).await;
    let came = rig.get("/").await;
    assert_eq!((came.code(), came.header("retry-after")), ((503, "SlowDown"), "1"));
    let rig = Rig::with(Limits { memory: 2, ..Limits::default() }).await;
    assert_eq!(rig.put("/photos", b"long").await.code(), (503, "SlowDown"));
    assert_eq!(rig.put("/photos", b"").await.status, StatusCode::OK);
}

#[tokio::test]
async fn listings_take_memory_until_they_have_left() {
    let rig = Rig::with(Limits { memory: 6000, ..Limits::default() }).await;
    rig.put("/photos", b"").await;
    for number in 0..4 {
        let key = format!("{number}{}", "k".repeat(1000));
        assert_eq!(rig.put(&format!("/photos/{key}"), b"").await.status, StatusCode::OK);
    }
    let ask = || Ask::new("GET", "/photos?max-keys=5").signed_with(&rig.signer).0;
    let activity = Default::default();
    let first = rig.service.answer(ask(), None, &activity).await;
    assert_eq!(first.status(), StatusCode::OK);
    assert_eq!(rig.send(ask()).await.code(), (503, "SlowDown"));
    drop(first);
    assert_eq!(rig.send(ask()).await.status, StatusCode::OK);
    let all = rig.get("/photos?max-keys=1000").await;
    assert_eq!(all.code(), (503, "SlowDown"));
}

#[tokio::test]
async fn health_needs_no_signature() {
    let rig = Rig::new().await;
    let came = rig.send(Ask::new("GET", "/-/health").unsigned()).await;
    assert_eq!((came.status, came.text()), (StatusCode::OK, "ok\n"));
    assert_eq!(came.header("x-amz-request-id").len(), 16);
}

#[tokio::test]
async fn what_the_library_does_not_know_of_a_bucket_never_deletes_or_creates_it() {
    let rig = Rig::filled("photos", &[]).await;
    for path in
        ["/photos?metadataConfiguration", "/photos?versioning", "/photos?acl", "/photos?abac"]
    {
        let came = rig.ask(Ask::new("DELETE", path)).await;
        assert_eq!(came.status, StatusCode::NOT_IMPLEMENTED, "{path}: {came:?}");
    }
    let came = rig.ask(Ask::new("PUT", "/others?abac")).await;
    assert_eq!(came.status, StatusCode::NOT_IMPLEMENTED, "{came:?}");
    assert_eq!(rig.ask(Ask::new("HEAD", "/photos")).await.status, StatusCode::OK);
    assert_eq!(rig.ask(Ask::new("HEAD", "/others")).await.status, StatusCode::NOT_FOUND);
    let part = rig.ask(Ask::new("PUT", "/photos/a?partNumber=3")).await;
    assert_eq!(part.status, StatusCode::BAD_REQUEST, "{part:?}");
}

#[tokio::test]
async fn a_range_of_another_object_than_the_client_has_is_the_whole_object() {
    let rig = Rig::filled("photos", &["a"]).await;
    let whole = rig.ask(Ask::new("GET", "/photos/a")).await;
    let tag = whole.header("etag").to_string();
    let part = |condition: &str| {
        Ask::new("GET", "/photos/a").header("range", "bytes=0-0").header("if-range", condition)
    };
    assert_eq!(rig.ask(part(&tag)).await.status, StatusCode::PARTIAL_CONTENT);
    assert_eq!(rig.ask(part("\"other\"")).await.status, StatusCode::OK);
}
