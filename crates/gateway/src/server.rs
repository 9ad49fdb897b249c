//! Connections: accepted, limited, encrypted, served, and brought to an end.
//!
//! Invariants
//!   1. No more than `connections_max` are open; who comes too much is told so, and closed.
//!   2. After a stop was asked for, requests that began are finished, for `stop_time` at most.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use base::TraceEvent;
use bucket::Door;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{Duration, Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::connection::{Activity, Patience, Watched};
use crate::limits::{Limits, Supply};
use crate::service::Service;
use crate::tls::Tls;

/// The most bytes of a request's header.
const HEADER_SIZE_MAX: usize = 64 << 10;
/// The most headers of a request.
const HEADERS_MAX: usize = 128;
/// The most requests at once on a connection with HTTP/2.
const STREAMS_MAX: u32 = 64;
/// How often it is asked whether a client with HTTP/2 is still there.
const PING_TIME: Duration = Duration::from_secs(30);
/// After an error of `accept`, such as too many open files, the next attempt is made so much later.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

const TOO_MANY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\ncontent-length: 0\r\n\
                          connection: close\r\n\r\n";

/// What serves connections.
pub struct Server<D: Door> {
    service: Service<D>,
    limits: Arc<Limits>,
    connections: Supply,
    tls: Option<Arc<Tls>>,
    /// True: stop.
    stop: watch::Receiver<bool>,
}

impl<D: Door> Server<D> {
    /// Creates a server, which ends when `stop` says so.
    pub fn new(
        service: Service<D>,
        limits: Arc<Limits>,
        tls: Option<Arc<Tls>>,
        stop: watch::Receiver<bool>,
    ) -> Arc<Server<D>> {
        let connections = Supply::new(limits.connections_max);
        Arc::new(Server { service, limits, connections, tls, stop })
    }

    /// Serves these listeners until the stop; then until all requests are finished.
    pub async fn serve(self: Arc<Self>, listeners: Vec<TcpListener>) {
        let accepting: Vec<_> = listeners
            .into_iter()
            .map(|listener| tokio::spawn(self.clone().accept_all(listener)))
            .collect();
        for task in accepting {
            let _ = task.await;
        }
        let end = Instant::now() + self.limits.stop_time;
        while self.connections.taken() > 0 && Instant::now() < end {
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn accept_all(self: Arc<Self>, listener: TcpListener) {
        let mut stop = self.stop.clone();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stop.wait_for(|stop| *stop) => return,
            };
            match accepted {
                Ok((stream, peer)) => drop(tokio::spawn(self.clone().connection(stream, peer))),
                Err(error) => {
                    let event = TraceEvent::warn("cannot accept a connection");
                    ::io::log::write(&event.with("why", error));
                    sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn connection(self: Arc<Self>, mut stream: TcpStream, peer: SocketAddr) {
        let Some(_share) = self.connections.take(1) else {
            if self.tls.is_none() {
                let _ = timeout(Duration::from_secs(1), stream.write_all(TOO_MANY)).await;
            }
            return;
        };
        // An answer in two parts does not wait for the first one to be acknowledged.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &self.tls else { return self.http1(stream, peer).await };
        let accept = TlsAcceptor::from(tls.config()).accept(stream);
        let Ok(Ok(stream)) = timeout(self.limits.handshake_time, accept).await else { return };
        match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => self.http2(stream, peer).await,
            _ => self.http1(stream, peer).await,
        }
    }

    fn patience(&self, header_time: Option<Duration>) -> Patience {
        let Limits { write_time, idle_time, .. } = *self.limits;
        Patience { header_time, write_time, idle_time }
    }

    async fn http1<S>(&self, stream: S, peer: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let activity = Arc::new(Activity::default());
        let patience = self.patience(Some(self.limits.header_time));
        let stream = Watched::new(stream, activity.clone(), patience);
        let service = service_fn(|request: Request<Incoming>| {
            let activity = &activity;
            async move { Ok::<_, Infallible>(self.service.answer(request, Some(peer), activity).await) }
        });
        let mut builder = http1::Builder::new();
        // The stream watches this.
        builder.timer(TokioTimer::new()).header_read_timeout(None);
        builder.max_buf_size(HEADER_SIZE_MAX).max_headers(HEADERS_MAX);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut stop = self.stop.clone();
        tokio::select! {
            // It ended; why does not matter, as each request was logged.
            _ = connection.as_mut() => return,
            _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }

    async fn http2<S>(self: &Arc<Self>, stream: S, peer: SocketAddr)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let activity = Arc::new(Activity::default());
        let stream = Watched::new(stream, activity.clone(), self.patience(None));
        let server = self.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let (server, activity) = (server.clone(), activity.clone());
            async move {
                let answer = server.service.answer(request, Some(peer), &activity).await;
                Ok::<_, Infallible>(answer)
            }
        });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(PING_TIME);
        builder.max_concurrent_streams(STREAMS_MAX).max_header_list_size(HEADER_SIZE_MAX as u32);
        let mut connection =
            std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut stop = self.stop.clone();
        tokio::select! {
            _ = connection.as_mut() => return,
            _ = stop.wait_for(|stop| *stop) => connection.as_mut().graceful_shutdown(),
        }
        let _ = connection.await;
    }
}

/// Listens on addresses of the form `tcp:HOST:PORT`.
pub async fn listen(places: &[String]) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    for place in places {
        let address = place.strip_prefix("tcp:").unwrap_or(place);
        listeners.push(TcpListener::bind(address).await?);
    }
    Ok(listeners)
}
