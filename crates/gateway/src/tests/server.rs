//! Whole connections: keep-alive, slow clients, TLS and the stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::rig::Rig;
use crate::limits::Limits;
use crate::server::{Server, listen};
use crate::tls::{Tls, TlsFiles};

struct Running {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    server: JoinHandle<()>,
}

async fn running(limits: Limits, tls: Option<Arc<Tls>>) -> Running {
    let service = Rig::with(limits.clone()).await.service;
    let service = Arc::into_inner(service).expect("nobody else has it");
    let (stop, stopped) = watch::channel(false);
    let listeners = listen(&["tcp:127.0.0.1:0".to_string()]).await.expect("a free port");
    let address = listeners[0].local_addr().expect("it listens");
    let server = Server::new(service, Arc::new(limits), tls, stopped);
    Running { address, stop, server: tokio::spawn(server.serve(listeners)) }
}

/// Reads an answer with a short body.
async fn answer(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    while !text.ends_with(b"ok\n") {
        let count = stream.read(&mut buffer).await.expect("open");
        if count == 0 {
            break;
        }
        text.extend(&buffer[..count]);
    }
    String::from_utf8(text).expect("ASCII")
}

const HEALTH: &[u8] = b"GET /-/health HTTP/1.1\r\nhost: h\r\n\r\n";

#[tokio::test]
async fn a_connection_serves_many_requests_and_ends_with_the_stop() {
    let Running { address, stop, server } = running(Limits::default(), None).await;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    for _ in 0..3 {
        stream.write_all(HEALTH).await.expect("open");
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200"));
    }
    stop.send(true).expect("it runs");
    timeout(Duration::from_secs(5), server).await.expect("it stops").expect("in order");
    assert_eq!(answer(&mut stream).await, "", "an idle connection is closed");
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test]
async fn slow_headers_are_cut_and_idle_connections_live_longer() {
    let limits = Limits {
        header_time: Duration::from_millis(300),
        idle_time: Duration::from_secs(5),
        ..Limits::default()
    };
    let gateway = running(limits, None).await;
    let address = gateway.address;
    let mut idle = TcpStream::connect(address).await.expect("it listens");
    idle.write_all(HEALTH).await.expect("open");
    answer(&mut idle).await;
    let mut slow = TcpStream::connect(address).await.expect("it listens");
    slow.write_all(b"GET / HTT").await.expect("open");
    let cut = timeout(Duration::from_secs(3), answer(&mut slow)).await.expect("it is cut");
    assert!(!cut.contains("200"));
    idle.write_all(HEALTH).await.expect("open");
    assert!(answer(&mut idle).await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_slow_body_is_cut_with_an_answer() {
    let limits = Limits { body_time: Duration::from_millis(300), ..Limits::default() };
    let gateway = running(limits, None).await;
    let address = gateway.address;
    let mut slow = TcpStream::connect(address).await.expect("it listens");
    slow.write_all(b"POST /photos?delete HTTP/1.1\r\nhost: h\r\ncontent-length: 9\r\n\r\n<Del")
        .await
        .expect("open");
    let cut = timeout(Duration::from_secs(3), answer(&mut slow)).await.expect("it is cut");
    assert!(cut.starts_with("HTTP/1.1 400") && cut.contains("RequestTimeout"), "{cut}");
}

#[tokio::test]
async fn a_refusal_comes_before_the_body_and_the_connection_stays() {
    let gateway = running(Limits::default(), None).await;
    let mut stream = TcpStream::connect(gateway.address).await.expect("it listens");
    for _ in 0..2 {
        let size = 1 << 20;
        let request =
            format!("PUT /photos/a HTTP/1.1\r\nhost: h\r\ncontent-length: {size}\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("open");
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.write_all(&vec![7; size]).await.expect("open");
        let mut text = String::new();
        while !text.ends_with("</Error>") {
            let mut buffer = [0; 4096];
            let count = stream.read(&mut buffer).await.expect("open");
            assert!(count > 0, "{text}");
            text.push_str(std::str::from_utf8(&buffer[..count]).expect("UTF-8"));
        }
        assert!(text.contains("AccessDenied"), "{text}");
    }
    stream.write_all(HEALTH).await.expect("open");
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200"));
    let large = b"PUT /photos/a HTTP/1.1\r\nhost: h\r\ncontent-length: 1048577\r\n\r\n";
    stream.write_all(large).await.expect("open");
    let refused = timeout(Duration::from_secs(5), answer(&mut stream)).await.expect("it ends");
    assert!(refused.contains("AccessDenied"), "{refused}");
}

#[tokio::test]
async fn too_long_headers_and_too_many_connections_are_refused() {
    let limits = Limits { connections_max: 1, ..Limits::default() };
    let gateway = running(limits, None).await;
    let address = gateway.address;
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream.write_all(HEALTH).await.expect("open");
    answer(&mut stream).await;
    let mut second = TcpStream::connect(address).await.expect("it listens");
    assert!(answer(&mut second).await.starts_with("HTTP/1.1 503"));
    let header = "y".repeat(20_000);
    let long = format!("GET / HTTP/1.1\r\nhost: h\r\nconnection: close\r\nx: {header}\r\n\r\n");
    stream.write_all(long.as_bytes()).await.expect("open");
    let refused = timeout(Duration::from_secs(5), answer(&mut stream)).await.expect("it ends");
    assert!(refused.contains("RequestHeaderSectionTooLarge"), "{refused}");
}

fn certificate(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/tls").join(name)
}

/// Connects, trusting a certificate, and speaking this protocol.
async fn tls_stream(
    address: SocketAddr,
    trusted: &str,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let path = certificate(trusted);
    roots.add(CertificateDer::from_pem_file(path).expect("PEM")).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config =
        ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.expect("versions").with_root_certificates(roots);
    let mut config = config.with_no_client_auth();
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// Connects, trusting a certificate, and asks for the health.
async fn over_tls(address: SocketAddr, trusted: &str) -> std::io::Result<String> {
    get_over_tls(address, trusted, "/-/health").await
}

async fn get_over_tls(address: SocketAddr, trusted: &str, path: &str) -> std::io::Result<String> {
    let mut stream = tls_stream(address, trusted, "http/1.1").await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

/// How a connection with HTTP/2 begins whose client takes no byte of any answer: the preface, and the setting
/// that windows begin with 0 bytes.
const CLOSED_WINDOWS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\
                                \0\0\x06\x04\0\0\0\0\0\0\x04\0\0\0\0";

/// The frame of a GET for the health, over https, on this stream.
fn health_frame(stream: u8) -> Vec<u8> {
    let fields = [b"\x82\x87\x04\x09", &b"/-/health"[..], b"\x01\x01h"].concat();
    [&[0, 0, fields.len() as u8, 1, 5, 0, 0, 0, stream], &fields[..]].concat()
}

/// Reads until the connection is closed, and tells after how long it was.
async fn closed_after(stream: &mut TlsStream<TcpStream>) -> Duration {
    let began = std::time::Instant::now();
    let mut buffer = [0; 4096];
    let closed = async { while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {} };
    timeout(Duration::from_secs(5), closed).await.expect("it is cut");
    began.elapsed()
}

fn tls() -> Arc<Tls> {
    let files = TlsFiles { certificate: certificate("one.pem"), key: certificate("one.key") };
    Arc::new(Tls::new(files).expect("a certificate and its key"))
}

#[tokio::test]
async fn a_client_with_closed_windows_does_not_keep_its_requests() {
    let limits =
        Limits { requests_max: 2, write_time: Duration::from_millis(500), ..Limits::default() };
    let gateway = running(limits, Some(tls())).await;
    let address = gateway.address;
    let mut stream = tls_stream(address, "one.pem", "h2").await.expect("trusted");
    let requests = [CLOSED_WINDOWS, &health_frame(1), &health_frame(3)].concat();
    stream.write_all(&requests).await.expect("open");
    tokio::time::sleep(Duration::from_millis(200)).await;
    let refused = get_over_tls(address, "one.pem", "/photos/k").await.expect("trusted");
    assert!(refused.contains("SlowDown"), "both requests are under way: {refused}");
    closed_after(&mut stream).await;
    let answer = get_over_tls(address, "one.pem", "/photos/k").await.expect("trusted");
    assert!(answer.contains("AccessDenied"), "{answer}");
}

#[tokio::test]
async fn connections_with_http2_are_cut_when_they_have_no_request() {
    let limits = Limits { idle_time: Duration::from_millis(500), ..Limits::default() };
    let gateway = running(limits, Some(tls())).await;
    let address = gateway.address;
    for begin in [&b""[..], CLOSED_WINDOWS] {
        let mut stream = tls_stream(address, "one.pem", "h2").await.expect("trusted");
        stream.write_all(begin).await.expect("open");
        let closed = closed_after(&mut stream).await;
        assert!(closed >= Duration::from_millis(300), "{closed:?}");
    }
    let mut stream = tls_stream(address, "one.pem", "http/1.1").await.expect("trusted");
    closed_after(&mut stream).await;
}

#[tokio::test]
async fn a_certificate_is_read_again() {
    let here = std::env::temp_dir().join(format!("ashlar-gateway-tls-{}", std::process::id()));
    std::fs::create_dir_all(&here).expect("writable");
    let files = TlsFiles { certificate: here.join("cert.pem"), key: here.join("key.pem") };
    let copy = |from: &str, to: &Path| {
        std::fs::copy(certificate(from), to).expect("writable");
    };
    copy("one.pem", &files.certificate);
    copy("one.key", &files.key);
    let tls = Arc::new(Tls::new(files.clone()).expect("a certificate and its key"));
    let gateway = running(Limits::default(), Some(tls.clone())).await;
    let address = gateway.address;
    assert!(over_tls(address, "one.pem").await.expect("trusted").starts_with("HTTP/1.1 200"));
    assert!(over_tls(address, "two.pem").await.is_err());
    copy("two.pem", &files.certificate);
    assert!(tls.read_again().is_err(), "the key is that of the other one");
    assert!(over_tls(address, "one.pem").await.is_ok());
    copy("two.key", &files.key);
    tls.read_again().expect("a certificate and its key");
    assert!(over_tls(address, "two.pem").await.is_ok());
    let _ = std::fs::remove_dir_all(here);
}
