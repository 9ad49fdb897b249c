//! Large objects: their data lies in containers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::MIB;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Request, StatusCode};
use s3s::crypto::{Checksum as _, Crc64Nvme, Md5};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::rig::{Ask, Rig};
use super::signer::hex;
use crate::connection::Activity;
use crate::limits::Limits;
use crate::server::{Server, listen};

/// Bytes of which no two parts are equal.
fn bytes_of(size: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let words = (0..size.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(size).collect()
}

const SIZE: usize = (5 << 20) + 12_345;

/// Waits until all memory is given back.
async fn is_given_back(rig: &Rig) {
    let given_back = async {
        while rig.service.memory().taken() > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(10), given_back).await.expect("memory is given back");
}

#[tokio::test]
async fn a_large_object_comes_back_whole_and_in_parts() {
    let rig = Rig::filled("photos", &[]).await;
    let body = bytes_of(SIZE);
    let ask = Ask::new("PUT", "/photos/a")
        .header("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
        .header("x-amz-decoded-content-length", &SIZE.to_string());
    let (_, seed) = ask.clone().signed_with(&rig.signer);
    let chunks: Vec<&[u8]> = body.chunks(300_001).collect();
    let put = rig.ask(ask.body(rig.signer.chunks(&seed, &chunks, &[]))).await;
    assert_eq!(put.status, StatusCode::OK, "{put:?}");
    let etag = format!("\"{}\"", hex(&Md5::checksum(&body)));
    assert_eq!(put.header("etag"), etag);
    assert!(!rig.door.volumes.stored().is_empty(), "it lies in a container");
    is_given_back(&rig).await;

    let read = || rig.door.read.load(Ordering::SeqCst);
    let head = rig.ask(Ask::new("HEAD", "/photos/a")).await;
    let seen = (head.header("content-length").to_string(), head.header("etag").to_string());
    assert_eq!(seen, (SIZE.to_string(), etag.clone()));
    let head = rig.ask(Ask::new("HEAD", "/photos/a").header("range", "bytes=1-2")).await;
    assert_eq!((head.status.as_u16(), head.header("content-length")), (206, "2"));
    assert_eq!(read(), 0, "HEAD reads no data");

    let get = rig.ask(Ask::new("GET", "/photos/a").header("x-amz-checksum-mode", "ENABLED")).await;
    assert_eq!(get.header("content-length"), SIZE.to_string());
    assert!(get.body == body, "the body is another one");
    let checksum = base64_simd::STANDARD.encode_to_string(Crc64Nvme::checksum(&body));
    assert_eq!(get.header("x-amz-checksum-crc64nvme"), checksum);

    let mib = MIB as usize;
    for (range, first, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=1048575-1048576", mib - 1, mib + 1),
        ("bytes=1048576-2097151", mib, 2 * mib),
        ("bytes=1000000-4500000", 1_000_000, 4_500_001),
        ("bytes=4097-", 4097, SIZE),
        ("bytes=-1", SIZE - 1, SIZE),
        ("bytes=-3000000", SIZE - 3_000_000, SIZE),
        ("bytes=5242880-99999999", 5 * mib, SIZE),
    ] {
        for (if_range, is_part) in [("", true), (&etag[..], true), ("\"other\"", false)] {
            let mut ask = Ask::new("GET", "/photos/a").header("range", range);
            if !if_range.is_empty() {
                ask = ask.header("if-range", if_range);
            }
            let came = rig.ask(ask).await;
            let (status, part) = if is_part { (206, &body[first..end]) } else { (200, &body[..]) };
            assert_eq!(came.status.as_u16(), status, "{range} {if_range}");
            assert!(came.body == part, "{range} {if_range}");
        }
    }
    is_given_back(&rig).await;
}

#[tokio::test]
async fn a_body_that_lies_or_ends_early_stores_no_large_object() {
    let rig = Rig::filled("photos", &[]).await;
    let body = bytes_of(2 << 20);
    let ask = || Ask::new("PUT", "/photos/a");
    let longer = (body.len() + 1).to_string();
    for (ask, code) in [
        (ask().header("content-md5", "XUFAKrxLKna5cZ2REBfFkg==").body(&body[..]), "BadDigest"),
        (ask().header("content-length", &longer).body(&body[..]), "IncompleteBody"),
        (ask().header("content-length", "5368709121").body(&body[..]), "EntityTooLarge"),
    ] {
        assert_eq!(rig.ask(ask).await.code(), (400, code));
        assert_eq!(rig.get("/photos/a").await.code(), (404, "NoSuchKey"));
    }
    is_given_back(&rig).await;
}

#[tokio::test]
async fn reads_of_large_objects_wait_for_their_clients_and_share_the_memory() {
    let limits = Limits { memory: 7 << 20, ..Limits::default() };
    let rig = Rig::filled_with(limits, "photos", &["small"]).await;
    let body = bytes_of(9 << 20);
    assert_eq!(rig.put("/photos/a", &body).await.status, StatusCode::OK);
    assert_eq!(rig.put("/photos/b", &body[..100_000]).await.status, StatusCode::OK);
    is_given_back(&rig).await;
    let (request, _) = Ask::new("GET", "/photos/a").signed_with(&rig.signer);
    let activity = Arc::new(Activity::default());
    let mut slow = rig.service.answer(request, None, &activity).await.into_body();
    let first = slow.frame().await.expect("a frame").expect("bytes");
    sleep(Duration::from_millis(50)).await;
    let read = rig.door.read.load(Ordering::SeqCst);
    assert!(read <= 6 * MIB, "{read} bytes are read before the client takes them");
    assert_eq!(rig.service.memory().taken(), 4 << 20);
    assert_eq!(rig.get("/photos/a").await.code(), (503, "SlowDown"));
    assert!(rig.get("/photos/b").await.body == body[..100_000]);
    assert_eq!(rig.get("/photos/small").await.text(), "small");
    assert_eq!(rig.ask(Ask::new("HEAD", "/photos/a")).await.status, StatusCode::OK);
    let mut came = first.into_data().expect("bytes").to_vec();
    came.extend(slow.collect().await.expect("it comes").to_bytes());
    assert!(came == body);
    is_given_back(&rig).await;
    // A client that leaves.
    let (request, _) = Ask::new("GET", "/photos/a").signed_with(&rig.signer);
    let mut left = rig.service.answer(request, None, &activity).await.into_body();
    assert!(left.frame().await.is_some_and(|frame| frame.is_ok()));
    drop(left);
    is_given_back(&rig).await;
}

/// Returns a request as it goes over a connection.
fn written(request: Request<Full<Bytes>>) -> Vec<u8> {
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method(), request.uri());
    for (name, value) in request.headers() {
        text += &format!("{name}: {}\r\n", value.to_str().expect("ASCII"));
    }
    (text + "\r\n").into_bytes()
}

#[tokio::test]
async fn damage_in_the_middle_breaks_the_connection_off() {
    let rig = Rig::filled("photos", &[]).await;
    let body = bytes_of(12 << 20);
    assert_eq!(rig.put("/photos/a", &body).await.status, StatusCode::OK);
    rig.door.readable.store(7 * MIB, Ordering::SeqCst);
    let (request, _) = Ask::new("GET", "/photos/a").signed_with(&rig.signer);
    let request = written(request);
    let Rig { door, service, .. } = rig;
    let service = Arc::into_inner(service).expect("nobody else has it");
    let (_stop, stopped) = watch::channel(false);
    let listeners = listen(&["tcp:127.0.0.1:0".to_string()]).await.expect("a free port");
    let address = listeners[0].local_addr().expect("it listens");
    let server = Server::new(service, Arc::new(Limits::default()), None, stopped);
    tokio::spawn(server.serve(listeners));
    let get = || async {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(&request).await.expect("open");
        let mut came = Vec::new();
        // It may be reset, too.
        let closed = timeout(Duration::from_secs(10), stream.read_to_end(&mut came)).await;
        assert!(closed.is_ok(), "the connection stays open");
        let end = came.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a header");
        (String::from_utf8_lossy(&came[..end]).into_owned(), came[end + 4..].to_vec())
    };
    let (header, part) = get().await;
    assert!(header.starts_with("HTTP/1.1 200"), "{header}");
    assert!(header.contains(&format!("content-length: {}", body.len())), "{header}");
    assert!(part.len() < body.len() && body.starts_with(&part), "{}", part.len());

    // Before the first byte, the answer says so, and the connection is of use.
    door.readable.store(0, Ordering::SeqCst);
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    for _ in 0..2 {
        stream.write_all(&request).await.expect("open");
        let mut came = Vec::new();
        while !came.ends_with(b"</Error>") {
            assert!(stream.read_buf(&mut came).await.expect("open") > 0, "it was closed");
        }
        assert!(came.starts_with(b"HTTP/1.1 500"), "{}", String::from_utf8_lossy(&came));
    }
}
