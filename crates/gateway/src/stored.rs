//! Bodies of answers whose bytes lie in containers: they are read as the client takes them.
//!
//! Invariants
//!   1. A body has the length that was announced, or ends with an error, which breaks the connection or its
//!      stream off: a client never takes a part for the whole.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use base::TraceEvent;
use bucket::{DataReader, Door, Failure};
use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};

use crate::errors::Refusal;
use crate::exchange::Exchange;

/// Bytes that come one piece after the other.
pub trait Pieces: Send + 'static {
    /// Returns the next bytes. `None`: that was all.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, Failure>> + Send;
}

impl<D: Door> Pieces for DataReader<D> {
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        DataReader::next(self).await
    }
}

/// Pieces that are being read, and what is read.
type Reading<P> = Pin<Box<dyn Future<Output = (P, Result<Option<Bytes>, Failure>)> + Send>>;

enum State<P> {
    /// The bytes were read before somebody asked for them.
    Read(P, Bytes),
    Idle(P),
    Reading(Reading<P>),
    Over,
}

/// The body of an answer.
pub struct StoredBody<P> {
    state: State<P>,
    /// How many bytes have not been given out.
    left: u64,
    exchange: Arc<Exchange>,
}

impl<P> fmt::Debug for StoredBody<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoredBody({} bytes left)", self.left)
    }
}

fn damaged(what: &str) -> Failure {
    Failure::Damaged { what: what.to_string() }
}

impl<P: Pieces> StoredBody<P> {
    /// Reads the first piece: if that fails, the client gets an answer that says so.
    pub async fn begin(
        mut pieces: P,
        length: u64,
        exchange: Arc<Exchange>,
    ) -> Result<StoredBody<P>, Failure> {
        if length == 0 {
            return Ok(StoredBody { state: State::Over, left: 0, exchange });
        }
        let first = pieces.next().await?.ok_or_else(|| damaged("an object has no data"))?;
        Ok(StoredBody { state: State::Read(pieces, first), left: length, exchange })
    }

    /// Gives out what was read.
    fn give(&mut self, pieces: P, read: Result<Option<Bytes>, Failure>) -> Result<Bytes, Failure> {
        let bytes = read?.ok_or_else(|| damaged("an object has less data than its head says"))?;
        self.left = self
            .left
            .checked_sub(bytes.len() as u64)
            .ok_or_else(|| damaged("an object has more data than its head says"))?;
        if self.left > 0 {
            self.state = State::Idle(pieces);
        }
        Ok(bytes)
    }

    fn fail(&mut self, failure: Failure) -> Failure {
        let event = TraceEvent::error("an answer is broken off");
        let event = event.with("request", &self.exchange.id).with("why", &failure);
        io::log::write(&event);
        self.exchange.on_code(Refusal::from(failure.clone()).code);
        failure
    }
}

impl<P: Pieces + Unpin> Body for StoredBody<P> {
    type Data = Bytes;
    type Error = Failure;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Failure>>> {
        let this = self.get_mut();
        let (pieces, read) = match std::mem::replace(&mut this.state, State::Over) {
            State::Over => return Poll::Ready(None),
            State::Read(pieces, bytes) => (pieces, Ok(Some(bytes))),
            State::Idle(mut pieces) => {
                this.state = State::Reading(Box::pin(async move {
                    let read = pieces.next().await;
                    (pieces, read)
                }));
                return Pin::new(this).poll_frame(cx);
            }
            State::Reading(mut reading) => match reading.as_mut().poll(cx) {
                Poll::Ready(read) => read,
                Poll::Pending => {
                    this.state = State::Reading(reading);
                    return Poll::Pending;
                }
            },
        };
        let given = this.give(pieces, read).map_err(|failure| this.fail(failure));
        Poll::Ready(Some(given.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::convert::Infallible;

    use http_body_util::{BodyExt, Empty};
    use hyper::service::service_fn;
    use hyper::{Method, Request, Response};
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    /// Pieces of so many bytes; then all is damaged, or there is no more.
    struct Fake {
        sizes: VecDeque<usize>,
        is_damaged: bool,
    }

    impl Pieces for Fake {
        async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
            tokio::task::yield_now().await;
            match self.sizes.pop_front() {
                Some(size) => Ok(Some(vec![7; size].into())),
                None if self.is_damaged => Err(damaged("a disk")),
                None => Ok(None),
            }
        }
    }

    fn exchange() -> Arc<Exchange> {
        let request = (Method::GET, "/b/k".to_string());
        Exchange::new("1".to_string(), None, request, Default::default(), Default::default())
    }

    async fn body(
        length: u64,
        sizes: &[usize],
        is_damaged: bool,
    ) -> Result<StoredBody<Fake>, Failure> {
        let pieces = Fake { sizes: sizes.iter().copied().collect(), is_damaged };
        StoredBody::begin(pieces, length, exchange()).await
    }

    #[tokio::test]
    async fn a_body_has_the_length_that_was_announced_or_fails() {
        for (length, sizes, is_whole) in [
            (7, &[3, 4][..], true),
            (7, &[7, 5], true),
            (0, &[], true),
            (8, &[3, 4], false),
            (6, &[3, 4], false),
            (2, &[3], false),
        ] {
            let body = body(length, sizes, false).await.expect("there is a first piece");
            assert_eq!(body.size_hint().exact(), Some(length));
            let came = body.collect().await.map(|all| all.to_bytes().len() as u64);
            assert_eq!(came.ok(), Some(length).filter(|_| is_whole), "{length} {sizes:?}");
        }
        let mut failing = body(9, &[3], true).await.expect("there is a first piece");
        assert!(failing.frame().await.is_some_and(|frame| frame.is_ok()));
        assert!(failing.frame().await.is_some_and(|frame| frame.is_err()));
        assert!(failing.frame().await.is_none());
    }

    #[tokio::test]
    async fn what_fails_before_the_first_byte_is_no_body() {
        assert!(body(9, &[], true).await.is_err());
        assert!(body(9, &[], false).await.is_err());
    }

    const LENGTH: u64 = 3_000_000;

    async fn answer(is_damaged: bool) -> Result<Response<StoredBody<Fake>>, Infallible> {
        let sizes = if is_damaged { &[1_000_000; 2][..] } else { &[1_000_000; 3] };
        let body = body(LENGTH, sizes, is_damaged).await.expect("there is a first piece");
        let response = Response::builder().header("content-length", LENGTH.to_string());
        Ok(response.body(body).expect("a response"))
    }

    /// Returns what comes over a connection until it is closed.
    async fn over_http1(is_damaged: bool) -> Vec<u8> {
        let (server, mut client) = duplex(64 << 10);
        let service = service_fn(move |_: Request<_>| answer(is_damaged));
        let builder = hyper::server::conn::http1::Builder::new();
        let connection = builder.serve_connection(TokioIo::new(server), service);
        tokio::spawn(async move { connection.await.is_ok() });
        let close = if is_damaged { "" } else { "connection: close\r\n" };
        let request = format!("GET / HTTP/1.1\r\nhost: h\r\n{close}\r\n");
        client.write_all(request.as_bytes()).await.expect("open");
        let mut came = Vec::new();
        client.read_to_end(&mut came).await.expect("closed");
        came
    }

    async fn over_http2(is_damaged: bool) -> Result<usize, hyper::Error> {
        let (server, client): (DuplexStream, DuplexStream) = duplex(64 << 10);
        let service = service_fn(move |_: Request<_>| answer(is_damaged));
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let connection = builder.serve_connection(TokioIo::new(server), service);
        tokio::spawn(async move { connection.await.is_ok() });
        let client = TokioIo::new(client);
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), client).await?;
        tokio::spawn(async move { connection.await.is_ok() });
        let request = Request::get("https://h/").body(Empty::<Bytes>::new()).expect("a request");
        let response = sender.send_request(request).await?;
        assert_eq!(response.status(), 200);
        Ok(response.into_body().collect().await?.to_bytes().len())
    }

    #[tokio::test]
    async fn a_failure_in_the_middle_breaks_the_connection_off() {
        let body_of = |came: Vec<u8>| {
            let end = came.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a header");
            (came.starts_with(b"HTTP/1.1 200"), (came.len() - end - 4) as u64)
        };
        assert_eq!(body_of(over_http1(false).await), (true, LENGTH));
        let (has_begun, length) = body_of(over_http1(true).await);
        assert!(has_begun && length < LENGTH, "{length}");
        assert_eq!(over_http2(false).await.expect("whole"), LENGTH as usize);
        assert!(over_http2(true).await.is_err());
    }
}
