//! Operations on buckets.

use hyper::StatusCode;

use super::rig::{Ask, HOST, Rig};
use super::signer::Signer;

#[tokio::test]
async fn a_bucket_lives_and_dies() {
    let rig = Rig::filled("photos", &["a"]).await;
    let again = rig.put("/photos", b"").await;
    assert_eq!(again.code(), (409, "BucketAlreadyOwnedByYou"));
    let head = rig.ask(Ask::new("HEAD", "/photos")).await;
    assert_eq!(head.status, StatusCode::OK);
    assert_eq!(head.header("x-amz-bucket-region"), "us-east-1");
    let list = rig.get("/").await;
    assert_eq!((list.status, list.elements("Name")), (StatusCode::OK, vec!["photos".to_string()]));
    assert_eq!(list.element("ID"), "ann");
    let location = rig.get("/photos?location").await;
    assert!(location.text().contains("LocationConstraint"), "{location:?}");
    assert!(!location.text().contains("us-east-1"), "{location:?}");
    let versioning = rig.get("/photos?versioning").await;
    assert_eq!(versioning.status, StatusCode::OK);
    assert!(!versioning.text().contains("Status"), "{versioning:?}");
    let full = rig.ask(Ask::new("DELETE", "/photos")).await;
    assert_eq!(full.code(), (409, "BucketNotEmpty"));
    let removed = rig.ask(Ask::new("DELETE", "/photos/a")).await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT);
    let removed = rig.ask(Ask::new("DELETE", "/photos")).await;
    assert_eq!(removed.status, StatusCode::NO_CONTENT, "{removed:?}");
    assert_eq!(rig.get("/photos").await.code(), (404, "NoSuchBucket"));
    assert_eq!(rig.ask(Ask::new("HEAD", "/photos")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_location_must_be_the_region() {
    let rig = Rig::new().await;
    let body = |region: &str| {
        let constraint = format!("<LocationConstraint>{region}</LocationConstraint>");
        format!("<CreateBucketConfiguration>{constraint}</CreateBucketConfiguration>")
    };
    let far = rig.put("/photos", body("eu-west-1").as_bytes()).await;
    assert_eq!(far.code(), (400, "InvalidLocationConstraint"));
    let here = rig.put("/photos", body("us-east-1").as_bytes()).await;
    assert_eq!(here.status, StatusCode::OK, "{here:?}");
    let broken = rig.put("/photos2", b"<CreateBucketConfiguration>").await;
    assert_eq!(broken.code(), (400, "MalformedXML"));
    for name in ["/ab", "/Photos", "/a_b", "/-ab", "/192.168.0.1"] {
        assert_eq!(rig.put(name, b"").await.code(), (400, "InvalidBucketName"), "{name}");
    }
}

#[tokio::test]
async fn a_public_bucket_is_read_by_everybody_and_written_by_its_owner() {
    let rig = Rig::filled("photos", &["a"]).await;
    let anonymous = |method, path: &str| Ask::new(method, path).unsigned();
    assert_eq!(rig.send(anonymous("GET", "/photos/a")).await.code(), (403, "AccessDenied"));
    let set = rig.ask(Ask::new("PUT", "/photos?acl").header("x-amz-acl", "public-read")).await;
    assert_eq!(set.status, StatusCode::OK, "{set:?}");
    let acl = rig.get("/photos?acl").await;
    assert!(acl.text().contains("AllUsers") && acl.text().contains("FULL_CONTROL"), "{acl:?}");
    // Other gateways may use a view that is a second old.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    assert_eq!(rig.send(anonymous("GET", "/photos/a")).await.status, StatusCode::OK);
    assert_eq!(rig.send(anonymous("HEAD", "/photos/a")).await.status, StatusCode::OK);
    assert_eq!(rig.send(anonymous("GET", "/photos")).await.elements("Key"), ["a"]);
    assert_eq!(rig.send(anonymous("PUT", "/photos/a")).await.code(), (403, "AccessDenied"));
    assert_eq!(rig.send(anonymous("DELETE", "/photos/a")).await.code(), (403, "AccessDenied"));
    let bob = Rig::user(&rig.buckets, "bob").await;
    let of_bob = |method, path: &str| Ask::new(method, path).signed_with(&bob).0;
    assert_eq!(rig.send(of_bob("GET", "/photos/a")).await.status, StatusCode::OK);
    assert_eq!(rig.send(of_bob("PUT", "/photos/b")).await.code(), (403, "AccessDenied"));
    assert_eq!(rig.send(of_bob("DELETE", "/photos")).await.code(), (403, "AccessDenied"));
    assert_eq!(rig.send(of_bob("PUT", "/photos")).await.code(), (409, "BucketAlreadyExists"));
    let acl = rig.ask(Ask::new("PUT", "/photos?acl").header("x-amz-acl", "authenticated-read"));
    assert_eq!(acl.await.code(), (501, "NotImplemented"));
}

/// Every operation of S3, as a request.
const OPERATIONS: &[(&str, &str)] = &[
    ("GET", "/"),
    ("PUT", "/photos2"),
    ("HEAD", "/photos"),
    ("DELETE", "/photos"),
    ("GET", "/photos"),
    ("GET", "/photos?list-type=2"),
    ("GET", "/photos?versions"),
    ("GET", "/photos?uploads"),
    ("GET", "/photos?location"),
    ("POST", "/photos?delete"),
    ("GET", "/photos/a"),
    ("HEAD", "/photos/a"),
    ("PUT", "/photos/a"),
    ("DELETE", "/photos/a"),
    ("POST", "/photos/a?uploads"),
    ("PUT", "/photos/a?partNumber=1&uploadId=u"),
    ("GET", "/photos/a?uploadId=u"),
    ("POST", "/photos/a?uploadId=u"),
    ("DELETE", "/photos/a?uploadId=u"),
    ("GET", "/photos/a?attributes"),
    ("GET", "/photos/a?torrent"),
    ("POST", "/photos/a?restore"),
    ("POST", "/photos/a?select&select-type=2"),
];

/// What buckets and objects have beside their data.
const OF_BUCKETS: &[&str] = &[
    "accelerate",
    "acl",
    "analytics&id=x",
    "cors",
    "encryption",
    "intelligent-tiering&id=x",
    "inventory&id=x",
    "lifecycle",
    "logging",
    "metrics&id=x",
    "notification",
    "object-lock",
    "ownershipControls",
    "policy",
    "publicAccessBlock",
    "replication",
    "requestPayment",
    "tagging",
    "versioning",
    "website",
];
const OF_OBJECTS: &[&str] = &["acl", "legal-hold", "retention", "tagging"];

fn operations() -> Vec<(&'static str, String)> {
    let mut all: Vec<(&'static str, String)> =
        OPERATIONS.iter().map(|(method, path)| (*method, (*path).to_string())).collect();
    for method in ["GET", "PUT", "DELETE"] {
        all.extend(OF_BUCKETS.iter().map(|name| (method, format!("/photos?{name}"))));
        all.extend(OF_OBJECTS.iter().map(|name| (method, format!("/photos/a?{name}"))));
    }
    all
}

#[tokio::test]
async fn an_anonymous_request_to_every_operation_is_refused() {
    let rig = Rig::filled("photos", &["a"]).await;
    let nobody = Signer { secret: "wrong".to_string(), ..rig.signer.clone() };
    let unknown = Signer { key: "AKIAIOSFODNN7EXAMPLE".to_string(), ..rig.signer.clone() };
    for (method, path) in operations() {
        let ask = Ask::new(method, &path);
        let came = rig.send(ask.unsigned()).await;
        let is_none = came.status == StatusCode::NOT_IMPLEMENTED;
        // What is no operation of S3 at all is told so, whoever asks.
        let is_refused = came.status == StatusCode::FORBIDDEN
            || is_none && rig.ask(ask.clone()).await.status == StatusCode::NOT_IMPLEMENTED
            || came.status == StatusCode::METHOD_NOT_ALLOWED;
        assert!(is_refused, "{method} {path}: {came:?}");
        let wrong = rig.send(ask.clone().signed_with(&nobody).0).await;
        assert_eq!(wrong.status, StatusCode::FORBIDDEN, "{method} {path}");
        let wrong = rig.send(ask.signed_with(&unknown).0).await;
        assert_eq!(wrong.status, StatusCode::FORBIDDEN, "{method} {path}");
    }
    assert_eq!(rig.get("/photos/a").await.text(), "a");
}

#[tokio::test]
async fn what_is_not_there_says_so_and_changes_nothing() {
    let rig = Rig::filled("photos", &["a"]).await;
    for ask in [
        Ask::new("GET", "/photos?lifecycle"),
        Ask::new("GET", "/photos?policy"),
        Ask::new("GET", "/photos?versions"),
        Ask::new("POST", "/photos/big?uploads"),
        Ask::new("PUT", "/photos/b").header("x-amz-copy-source", "/photos/a"),
        Ask::new("PUT", "/photos/b").header("x-amz-server-side-encryption", "AES256"),
        Ask::new("PUT", "/photos/b").header("x-amz-tagging", "a=b"),
        Ask::new("PUT", "/photos/b").header("x-amz-acl", "public-read"),
        Ask::new("PUT", "/photos/b").header("x-amz-storage-class", "GLACIER"),
        Ask::new("PUT", "/photos/b").header("x-amz-object-lock-mode", "GOVERNANCE"),
    ] {
        let what = format!("{} {} {:?}", ask.method, ask.path, ask.query);
        assert_eq!(rig.ask(ask).await.code(), (501, "NotImplemented"), "{what}");
    }
    assert_eq!(rig.get("/photos").await.elements("Key"), ["a"]);
}

#[tokio::test]
async fn a_bucket_may_stand_in_the_host() {
    let rig = Rig::filled("photos", &["a", "photos/b"]).await;
    let ask = |path: &str| Ask { host: format!("photos.{HOST}"), ..Ask::new("GET", path) };
    assert_eq!(rig.ask(ask("/a")).await.text(), "a");
    assert_eq!(rig.ask(ask("/photos/b")).await.text(), "photos/b");
    assert_eq!(rig.ask(ask("/?list-type=2")).await.elements("Key"), ["a", "photos/b"]);
}

#[tokio::test]
async fn buckets_are_listed_in_pages_of_their_owner() {
    let rig = Rig::new().await;
    for name in ["aaa", "abb", "abc", "bbb"] {
        assert_eq!(rig.put(&format!("/{name}"), b"").await.status, StatusCode::OK);
    }
    let page = rig.get("/?max-buckets=2&prefix=a").await;
    assert_eq!(page.elements("Name"), ["aaa", "abb"]);
    let token = page.element("ContinuationToken");
    let rest = rig.get(&format!("/?max-buckets=2&prefix=a&continuation-token={token}")).await;
    assert_eq!(
        (rest.elements("Name"), rest.element("ContinuationToken")),
        (vec!["abc".into()], "")
    );
    let bob = Rig::user(&rig.buckets, "bob").await;
    let of_bob = rig.send(Ask::new("GET", "/").signed_with(&bob).0).await;
    assert!(of_bob.elements("Name").is_empty());
}
