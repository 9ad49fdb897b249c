//! Bodies in chunks, their signatures and trailers: what lies or ends early stores nothing.

use hyper::StatusCode;
use s3s::crypto::{Checksum as _, Crc32, Crc64Nvme};

use super::rig::{Ask, Came, Rig};

fn base64(bytes: impl AsRef<[u8]>) -> String {
    base64_simd::STANDARD.encode_to_string(bytes.as_ref())
}

/// An upload as the AWS CLI sends it over TLS.
fn unsigned_chunks(body: &str, declared: usize, trailer: &str) -> Ask {
    Ask::new("PUT", "/photos/a")
        .header("content-encoding", "aws-chunked")
        .header("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
        .header("x-amz-decoded-content-length", &declared.to_string())
        .header("x-amz-sdk-checksum-algorithm", "CRC64NVME")
        .header("x-amz-trailer", "x-amz-checksum-crc64nvme")
        .body(format!("{body}{trailer}"))
}

fn crc64_trailer(data: &[u8]) -> String {
    format!("x-amz-checksum-crc64nvme:{}\r\n\r\n", base64(Crc64Nvme::checksum(data)))
}

async fn is_absent(rig: &Rig, came: &Came) {
    assert_eq!(rig.get("/photos/a").await.code(), (404, "NoSuchKey"), "{came:?}");
    assert!(rig.get("/photos").await.elements("Key").is_empty());
}

#[tokio::test]
async fn an_upload_of_the_aws_cli_is_stored_with_its_checksum() {
    let rig = Rig::filled("photos", &[]).await;
    let trailer = crc64_trailer(b"hello world");
    let body = "6\r\nhello \r\n5\r\nworld\r\n0\r\n";
    let put = rig.ask(unsigned_chunks(body, 11, &trailer)).await;
    assert_eq!(put.status, StatusCode::OK, "{put:?}");
    let checksum = base64(Crc64Nvme::checksum(b"hello world"));
    assert_eq!(put.header("x-amz-checksum-crc64nvme"), checksum);
    let get = rig.ask(Ask::new("GET", "/photos/a").header("x-amz-checksum-mode", "ENABLED")).await;
    assert_eq!((get.text(), get.header("content-encoding")), ("hello world", ""));
    assert_eq!(get.header("x-amz-checksum-crc64nvme"), checksum);
}

#[tokio::test]
async fn chunks_that_lie_or_end_early_store_nothing() {
    let rig = Rig::filled("photos", &[]).await;
    let good = crc64_trailer(b"hello");
    let wrong = crc64_trailer(b"hellO");
    let crc32 = format!("x-amz-checksum-crc32:{}\r\n\r\n", base64(Crc32::checksum(b"hello")));
    for (body, declared, trailer, code) in [
        ("5\r\nhello\r\n0\r\n", 6, &good[..], "IncompleteBody"),
        ("5\r\nhello\r\n0\r\n", 4, &good[..], "IncompleteBody"),
        ("5\r\nhello\r\n", 5, "", "IncompleteBody"),
        ("5\r\nhello\r\n", 10, "", "IncompleteBody"),
        ("5\r\nhel", 5, "", "IncompleteBody"),
        ("", 5, "", "IncompleteBody"),
        ("5\r\nhello\r\n0\r\n", 5, &wrong[..], "BadDigest"),
        ("5\r\nhello\r\n0\r\n", 5, "\r\n", "MalformedTrailerError"),
        ("5\r\nhello\r\n0\r\n", 5, &crc32[..], "MalformedTrailerError"),
        ("5\r\nhello\r\n0\r\n", 5, "rubbish\r\n\r\n", "InvalidRequest"),
        ("5\r\nhello!\r\n0\r\n", 5, &good[..], "InvalidRequest"),
        ("hello", 5, "", "InvalidRequest"),
        ("1000001\r\nhello", 5, "", "InvalidRequest"),
        ("ffffffffffffffff\r\nhello", 5, "", "InvalidRequest"),
    ] {
        let came = rig.ask(unsigned_chunks(body, declared, trailer)).await;
        assert_eq!(came.code(), (400, code), "{body:?} {declared} {trailer:?}");
        is_absent(&rig, &came).await;
    }
}

#[tokio::test]
async fn signed_chunks_are_compared() {
    let rig = Rig::filled("photos", &[]).await;
    let ask = |kind: &str, size: usize| {
        Ask::new("PUT", "/photos/a")
            .header("x-amz-content-sha256", kind)
            .header("x-amz-decoded-content-length", &size.to_string())
    };
    let chunks: [&[u8]; 2] = [b"hello ", b"world"];
    let plain = ask("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", 11);
    let (_, seed) = plain.clone().signed_with(&rig.signer);
    let body = rig.signer.chunks(&seed, &chunks, &[]);
    // The third byte of data is another one.
    let mut changed = body.clone();
    let at = body.windows(5).position(|bytes| bytes == b"hello").expect("it is there");
    changed[at + 2] = b'L';
    let came = rig.ask(plain.clone().body(changed)).await;
    assert_eq!(came.code(), (403, "SignatureDoesNotMatch"));
    is_absent(&rig, &came).await;
    // Cut behind the first chunk.
    let cut = body.windows(7).position(|bytes| bytes == b"hello \r").expect("it is there") + 8;
    let came = rig.ask(plain.clone().body(&body[..cut])).await;
    assert_eq!(came.code(), (400, "IncompleteBody"));
    is_absent(&rig, &came).await;
    let came = rig.ask(plain.body(body)).await;
    assert_eq!(came.status, StatusCode::OK, "{came:?}");
    assert_eq!(rig.get("/photos/a").await.text(), "hello world");

    let with_trailer = ask("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", 11)
        .header("x-amz-trailer", "x-amz-checksum-crc32");
    let (_, seed) = with_trailer.clone().signed_with(&rig.signer);
    let crc = base64(Crc32::checksum(b"hello world"));
    let body = rig.signer.chunks(&seed, &chunks, &[("x-amz-checksum-crc32", &crc)]);
    let came = rig.ask(with_trailer.body(body)).await;
    assert_eq!((came.status, came.header("x-amz-checksum-crc32")), (StatusCode::OK, &crc[..]));
}

#[tokio::test]
async fn digests_of_plain_bodies_are_compared() {
    let rig = Rig::filled("photos", &[]).await;
    for (name, value, code) in [
        ("content-md5", "XUFAKrxLKna5cZ2REBfFkQ==", "BadDigest"),
        ("content-md5", "rubbish", "InvalidDigest"),
        ("x-amz-checksum-sha1", "rvTGHdzF6KLavt4PO0gs2a6pQ00=", "BadDigest"),
        ("x-amz-checksum-crc32c", "rubbish", "InvalidRequest"),
    ] {
        let came = rig.ask(Ask::new("PUT", "/photos/a").header(name, value).body("hello")).await;
        assert_eq!(came.code().1, code, "{name}: {came:?}");
    }
    let hash = super::signer::sha256(b"another");
    let came =
        rig.ask(Ask::new("PUT", "/photos/a").header("x-amz-content-sha256", &hash).body("hello"));
    let came = came.await;
    assert_eq!(came.code(), (400, "XAmzContentSHA256Mismatch"));
    is_absent(&rig, &came).await;
    let ask = Ask::new("PUT", "/photos/a").header("content-length", "6").body("hello");
    let came = rig.ask(ask).await;
    assert_eq!(came.code(), (400, "IncompleteBody"));
    is_absent(&rig, &came).await;
    for (name, value) in [
        ("content-md5", "XUFAKrxLKna5cZ2REBfFkg=="),
        ("x-amz-checksum-sha1", "qvTGHdzF6KLavt4PO0gs2a6pQ00="),
        ("x-amz-checksum-crc32c", "mnG7TA=="),
    ] {
        let ask = Ask::new("PUT", "/photos/a").header(name, value);
        let came = rig.ask(ask.body("hello")).await;
        assert_eq!(came.status, StatusCode::OK, "{name}: {came:?}");
    }
}
