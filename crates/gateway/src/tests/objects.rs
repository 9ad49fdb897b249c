//! Operations on objects.

use hyper::StatusCode;
use s3s::crypto::{Checksum as _, Md5};

use super::rig::{Ask, Came, Rig};
use crate::s3::conditions::date_of_ms;

#[tokio::test]
async fn an_object_comes_back_with_all_that_was_put_with_it() {
    let rig = Rig::filled("photos", &[]).await;
    let put = rig
        .ask(
            Ask::new("PUT", "/photos/a")
                .header("content-type", "text/plain")
                .header("cache-control", "no-cache")
                .header("content-encoding", "aws-chunked,gzip")
                .header("expires", "whenever")
                .header("x-amz-meta-colour", "blue")
                .body("hello"),
        )
        .await;
    assert_eq!(put.status, StatusCode::OK, "{put:?}");
    assert_eq!(put.header("etag"), "\"5d41402abc4b2a76b9719d911017c592\"");
    assert_eq!(put.header("x-amz-checksum-type"), "FULL_OBJECT");
    for method in ["GET", "HEAD"] {
        let ask = Ask::new(method, "/photos/a").header("x-amz-checksum-mode", "ENABLED");
        let came = rig.ask(ask).await;
        assert_eq!(came.status, StatusCode::OK);
        for (name, value) in [
            ("etag", put.header("etag")),
            ("content-length", "5"),
            ("content-type", "text/plain"),
            ("cache-control", "no-cache"),
            ("content-encoding", "gzip"),
            ("expires", "whenever"),
            ("x-amz-meta-colour", "blue"),
            ("accept-ranges", "bytes"),
            ("x-amz-checksum-crc64nvme", put.header("x-amz-checksum-crc64nvme")),
        ] {
            assert_eq!(came.header(name), value, "{method} {name}");
        }
        assert!(came.header("last-modified").ends_with(" GMT"));
        assert_eq!(came.text(), if method == "GET" { "hello" } else { "" });
    }
    let other = "/photos/a?response-content-type=image/png&response-expires=never";
    let came = rig.get(other).await;
    assert_eq!((came.header("content-type"), came.header("expires")), ("image/png", "never"));
    let missing = rig.get("/photos/b").await;
    assert_eq!(missing.code(), (404, "NoSuchKey"));
    assert_eq!(missing.element("RequestId"), missing.header("x-amz-request-id"));
    assert_eq!(missing.element("Resource"), "/photos/b");
}

#[tokio::test]
async fn ranges_are_those_of_s3() {
    let rig = Rig::filled("photos", &[]).await;
    let body: Vec<u8> = (0..100).collect();
    rig.put("/photos/a", &body).await;
    rig.put("/photos/empty", b"").await;
    for method in ["GET", "HEAD"] {
        for (range, status, content_range) in [
            ("bytes=invalid", 200, ""),
            ("bytes=0-9,20-29", 200, ""),
            ("bytes=5-4", 200, ""),
            ("bytes=0-9", 206, "bytes 0-9/100"),
            ("bytes=90-", 206, "bytes 90-99/100"),
            ("bytes=90-1000", 206, "bytes 90-99/100"),
            ("bytes=-20", 206, "bytes 80-99/100"),
            ("bytes=-150", 206, "bytes 0-99/100"),
            ("bytes=100-", 416, "bytes */100"),
            ("bytes=-0", 416, "bytes */100"),
        ] {
            let came = rig.ask(Ask::new(method, "/photos/a").header("range", range)).await;
            assert_eq!(came.status.as_u16(), status, "{method} {range}");
            assert_eq!(came.header("content-range"), content_range, "{method} {range}");
            if method == "GET" && status == 206 {
                let text = content_range.trim_start_matches("bytes ").split('/').next();
                let (first, last) = text.and_then(|text| text.split_once('-')).expect("a range");
                let range = first.parse().expect("a number")..=last.parse().expect("a number");
                assert_eq!(came.body, body[range], "{content_range}");
            }
        }
        let came = rig.ask(Ask::new(method, "/photos/empty").header("range", "bytes=0-0")).await;
        assert_eq!(came.status.as_u16(), 416);
        let came = rig.ask(Ask::new(method, "/photos/a?partNumber=1")).await;
        let seen = (came.status.as_u16(), came.header("content-range"));
        assert_eq!(seen, (206, "bytes 0-99/100"));
        let came = rig.ask(Ask::new(method, "/photos/a?partNumber=2")).await;
        assert_eq!(came.status.as_u16(), 416);
    }
}

#[tokio::test]
async fn conditions_are_judged() {
    let rig = Rig::filled("photos", &["a"]).await;
    let tag = rig.get("/photos/a").await.header("etag").to_string();
    let past = "Sun, 06 Nov 1994 08:49:37 GMT";
    let future = &date_of_ms(4_923_000_000_000)[..];
    for (name, value, status) in [
        ("if-match", &tag[..], 200),
        ("if-match", "*", 200),
        ("if-match", "\"x\", W/\"y\"", 412),
        ("if-none-match", &tag[..], 304),
        ("if-none-match", tag.trim_matches('"'), 304),
        ("if-none-match", "\"x\"", 200),
        ("if-modified-since", past, 200),
        ("if-modified-since", future, 304),
        ("if-modified-since", "rubbish", 200),
        ("if-unmodified-since", past, 412),
        ("if-unmodified-since", future, 200),
    ] {
        for method in ["GET", "HEAD"] {
            let came = rig.ask(Ask::new(method, "/photos/a").header(name, value)).await;
            assert_eq!(came.status.as_u16(), status, "{method} {name}: {value}");
            if status == 304 {
                assert_eq!((came.header("etag"), came.body.len()), (&tag[..], 0));
            }
        }
    }
    let put = |path: &str, name: &str, value: &str| {
        rig.ask(Ask::new("PUT", path).header(name, value).body("new"))
    };
    assert_eq!(put("/photos/a", "if-none-match", "*").await.code(), (412, "PreconditionFailed"));
    assert_eq!(put("/photos/b", "if-none-match", "*").await.status, StatusCode::OK);
    assert_eq!(put("/photos/a", "if-match", "\"x\"").await.code(), (412, "PreconditionFailed"));
    assert_eq!(put("/photos/a", "if-match", &tag).await.status, StatusCode::OK);
    assert_eq!(put("/photos/a", "if-match", &tag).await.code(), (412, "PreconditionFailed"));
    assert_eq!(put("/photos/c", "if-match", &tag).await.code(), (404, "NoSuchKey"));
    let delete = |value: &str| rig.ask(Ask::new("DELETE", "/photos/a").header("if-match", value));
    assert_eq!(delete(&tag).await.code(), (412, "PreconditionFailed"));
    assert_eq!(delete("*").await.status, StatusCode::NO_CONTENT);
}

/// Keys with characters that others lose.
const ODD: &[&str] = &[
    " ",
    " a ",
    "%",
    "%41",
    "&amp;",
    "+",
    "..",
    "../a",
    "/a",
    "a",
    "a/",
    "a//b",
    "a=b",
    "a#c",
    "*",
    "<>\"'",
    "\u{1}",
    "\n",
    "photos/photos",
    "\u{e4}\u{1f600}",
];

#[tokio::test]
async fn keys_keep_every_byte() {
    let rig = Rig::filled("photos", ODD).await;
    let long = "k".repeat(1024);
    assert_eq!(rig.put(&format!("/photos/{long}"), b"").await.status, StatusCode::OK);
    let too_long = rig.put(&format!("/photos/{long}x"), b"").await;
    assert_eq!(too_long.code(), (400, "KeyTooLongError"));
    for key in ODD {
        let came = rig.ask(Ask::of_key("GET", "photos", key)).await;
        assert_eq!(came.text(), *key);
        let url = rig.signer.presigned("GET", super::rig::HOST, &format!("/photos/{key}"), 60);
        let (path, query) = url.split_once('?').expect("a query");
        let request = hyper::Request::builder().uri(format!("{path}?{query}"));
        let request = request.header("host", super::rig::HOST).body(Default::default());
        let came = rig.send(request.expect("a request")).await;
        assert_eq!((came.status, came.text()), (StatusCode::OK, *key), "{key:?}");
        let missing = rig.ask(Ask::of_key("GET", "photos", &format!("{key}-missing"))).await;
        assert_eq!(missing.code(), (404, "NoSuchKey"), "{key:?}");
    }
    let mut expected: Vec<String> = ODD.iter().map(ToString::to_string).collect();
    expected.push(long);
    expected.sort();
    let encoded = rig.get("/photos?list-type=2&encoding-type=url").await;
    let decode = |key: &String| crate::percent::decode(key).expect("UTF-8");
    assert_eq!(encoded.elements("Key").iter().map(decode).collect::<Vec<_>>(), expected);
    assert_eq!(encoded.element("EncodingType"), "url");
    let plain = rig.get("/photos?list-type=2").await;
    assert!(plain.text().contains("<Key>&#x1;</Key>") && plain.text().contains("<Key>&#xA;</Key>"));
    assert!(!plain.text().contains('\u{1}'));
    for key in ODD {
        let removed = rig.ask(Ask::of_key("DELETE", "photos", key)).await;
        assert_eq!(removed.status, StatusCode::NO_CONTENT);
    }
    assert_eq!(rig.get("/photos").await.elements("Key").len(), 1);
}

/// Returns all entries of a listing, page by page.
async fn listed(rig: &Rig, version: u32, more: &str, count: usize) -> Vec<String> {
    let (mut all, mut next) = (Vec::new(), String::new());
    for _ in 0..100 {
        let path = match version {
            1 => format!("/photos?max-keys={count}{more}&marker={next}"),
            _ if next.is_empty() => format!("/photos?list-type=2&max-keys={count}{more}"),
            _ => format!("/photos?list-type=2&max-keys={count}{more}&continuation-token={next}"),
        };
        let page = rig.get(&path).await;
        assert_eq!(page.status, StatusCode::OK, "{page:?}");
        let prefixes = page.elements("Prefix").into_iter().skip(1);
        let mut entries: Vec<String> = page.elements("Key").into_iter().chain(prefixes).collect();
        if version == 2 {
            assert_eq!(page.element("KeyCount"), entries.len().to_string());
        }
        assert!(entries.len() <= count);
        entries.sort();
        all.extend(entries);
        if page.element("IsTruncated") == "false" {
            return all;
        }
        let name = if version == 1 { "NextMarker" } else { "NextContinuationToken" };
        next = page.element(name).to_string();
        assert!(!next.is_empty(), "{page:?}");
    }
    panic!("it does not end: {all:?}")
}

#[tokio::test]
async fn pages_of_listings_have_each_key_once() {
    let keys = ["b", "data/a/1", "data/a/2", "data/ab/3", "data/b", "e-1", "e-2", "e_1"];
    let rig = Rig::filled("photos", &keys).await;
    for version in [1, 2] {
        for count in [1, 2, 3, 1000] {
            assert_eq!(listed(&rig, version, "", count).await, keys);
            let inside = listed(&rig, version, "&prefix=data/a", count).await;
            assert_eq!(inside, ["data/a/1", "data/a/2", "data/ab/3"]);
            let folders = listed(&rig, version, "&delimiter=/", count).await;
            assert_eq!(folders, ["b", "data/", "e-1", "e-2", "e_1"]);
            let folders = listed(&rig, version, "&delimiter=/&prefix=data/", count).await;
            assert_eq!(folders, ["data/a/", "data/ab/", "data/b"]);
            let folders = listed(&rig, version, "&delimiter=-", count).await;
            assert_eq!(folders, ["b", "data/a/1", "data/a/2", "data/ab/3", "data/b", "e-", "e_1"]);
        }
    }
    let none = rig.get("/photos?list-type=2&max-keys=0").await;
    assert_eq!((none.element("KeyCount"), none.element("IsTruncated")), ("0", "false"));
    let after = rig.get("/photos?list-type=2&start-after=data/b&fetch-owner=true").await;
    assert_eq!(after.elements("Key"), ["e-1", "e-2", "e_1"]);
    assert_eq!((after.element("StartAfter"), after.element("DisplayName")), ("data/b", "ann"));
    for bad in ["max-keys=x", "max-keys=-1", "encoding-type=x", "list-type=2&continuation-token=!"]
    {
        let came = rig.get(&format!("/photos?{bad}")).await;
        assert_eq!(came.code(), (400, "InvalidArgument"), "{bad}");
    }
}

fn md5(body: &str) -> String {
    base64_simd::STANDARD.encode_to_string(Md5::checksum(body.as_bytes()))
}

/// Deletes many objects.
async fn delete_many(rig: &Rig, document: &str) -> Came {
    let ask = Ask::new("POST", "/photos?delete").header("content-md5", &md5(document));
    rig.ask(ask.body(document)).await
}

fn deletion(keys: &[String], quiet: bool) -> String {
    let objects: String =
        keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>")).collect();
    format!("<Delete>{objects}<Quiet>{quiet}</Quiet></Delete>")
}

#[tokio::test]
async fn many_objects_are_deleted_at_once() {
    let keys: Vec<String> = (0..60).map(|number| format!("k{number}")).collect();
    let names: Vec<&str> = keys.iter().map(|key| &key[..]).collect();
    let rig = Rig::filled("photos", &names).await;
    let some = deletion(&keys[..50], false);
    let came = delete_many(&rig, &some).await;
    assert_eq!((came.status, came.elements("Key")), (StatusCode::OK, keys[..50].to_vec()));
    assert_eq!(rig.get("/photos").await.elements("Key").len(), 10);
    let came = delete_many(&rig, &deletion(&keys[45..], true)).await;
    assert_eq!((came.status, came.elements("Key").len()), (StatusCode::OK, 0), "{came:?}");
    assert!(rig.get("/photos").await.elements("Key").is_empty());
    let all: Vec<String> = (0..1001).map(|number| format!("k{number}")).collect();
    for body in [deletion(&all, false), deletion(&[], false), "<Delete>".to_string()] {
        assert_eq!(delete_many(&rig, &body).await.code(), (400, "MalformedXML"));
    }
}

#[tokio::test]
async fn a_deletion_of_many_objects_needs_a_digest_that_is_right() {
    let rig = Rig::filled("photos", &["a"]).await;
    let document = deletion(&["a".to_string()], false);
    let hash = super::signer::sha256(b"another");
    for (name, value, code) in [
        ("x-amz-meta-none", "x", "InvalidRequest"),
        ("content-md5", &md5("another")[..], "BadDigest"),
        ("content-md5", "rubbish", "InvalidDigest"),
        ("x-amz-checksum-crc32", "AAAAAA==", "BadDigest"),
        ("x-amz-content-sha256", &hash, "XAmzContentSHA256Mismatch"),
    ] {
        let ask = Ask::new("POST", "/photos?delete").header(name, value).body(&document[..]);
        assert_eq!(rig.ask(ask).await.code(), (400, code), "{name}: {value}");
    }
    let anonymous = Ask::new("POST", "/photos?delete").header("content-md5", &md5(&document));
    let came = rig.send(anonymous.body(&document[..]).unsigned()).await;
    assert_eq!(came.code(), (403, "AccessDenied"));
    assert_eq!(rig.get("/photos/a").await.text(), "a");
    let hash = super::signer::sha256(b"another");
    let ask = Ask::new("PUT", "/others").header("x-amz-content-sha256", &hash);
    let came = rig.ask(ask.body("<CreateBucketConfiguration/>")).await;
    assert_eq!(came.code(), (400, "XAmzContentSHA256Mismatch"));
    assert_eq!(rig.ask(Ask::new("HEAD", "/others")).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn each_key_of_a_deletion_has_its_own_result() {
    let rig = Rig::filled("photos", &["a", "b", "\u{1}\u{1f600}"]).await;
    let document = "<Delete>\
        <Object><Key>a</Key><VersionId>null</VersionId></Object>\
        <Object><Key>b</Key><VersionId>x</VersionId></Object>\
        <Object><Key>b</Key><ETag>\"other\"</ETag></Object>\
        <Object><Key><![CDATA[b]]></Key><Size>1</Size></Object>\
        <Object><Key>&#x1;&#x1F600;</Key></Object>\
        <Object><Key>none</Key></Object></Delete>";
    let came = delete_many(&rig, document).await;
    assert_eq!(came.status, StatusCode::OK, "{came:?}");
    let expected = "<Deleted><Key>a</Key><VersionId>null</VersionId></Deleted>\
        <Error><Key>b</Key><VersionId>x</VersionId><Code>InvalidArgument</Code>";
    assert!(came.text().contains(expected), "{came:?}");
    assert_eq!(
        came.elements("Code"),
        ["InvalidArgument", "PreconditionFailed", "NotImplemented"],
        "{came:?}"
    );
    let expected = "<Deleted><Key>&#x1;\u{1f600}</Key></Deleted><Deleted><Key>none</Key></Deleted>";
    assert!(came.text().contains(expected), "{came:?}");
    assert_eq!(rig.get("/photos").await.elements("Key"), ["b"]);
    let bob = Rig::user(&rig.buckets, "bob").await;
    let document = deletion(&["b".to_string()], true);
    let ask = Ask::new("POST", "/photos?delete").header("content-md5", &md5(&document));
    let came = rig.send(ask.body(document).signed_with(&bob).0).await;
    assert_eq!(came.elements("Code"), ["AccessDenied"], "{came:?}");
    assert_eq!(rig.get("/photos/b").await.text(), "b");
}
