//! Bodies on their way: those of requests are counted, watched and limited; those of answers go out in
//! pieces that are known to have left.
//!
//! Invariants
//!   1. Whoever reads a body of a request to its end has all of it: what is cut, slow, or not of the declared
//!      form ends with an error, and [`Exchange::fault`] says which.
//!   2. A request is not over while the connection has bytes of its answer.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::StatusCode;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::chunks::{ChunkFault, Chunks};
use crate::connection::Activity;
use crate::exchange::{BodyFault, Exchange};
use crate::limits::{Limits, PIECE_SIZE_MAX, Share};
use crate::memory::RequestMemory;

/// The error of a body of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BodyError(BodyFault);

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the body of the request failed: {:?}", self.0)
    }
}

impl std::error::Error for BodyError {}

/// The body of a request.
pub struct RequestBody<B> {
    inner: B,
    exchange: Arc<Exchange>,
    chunks: Option<Chunks>,
    limits: Arc<Limits>,
    memory: Arc<RequestMemory>,
    /// When enough must have come, and how much has come since the last time.
    timer: Option<Pin<Box<Sleep>>>,
    came: u64,
    /// When the last frame was given on: until the next one is asked for, it is not the client that is slow.
    given: Option<Instant>,
}

impl<B> RequestBody<B> {
    /// Watches a body. `chunks`: it has the form `aws-chunked`.
    pub fn new(
        inner: B,
        exchange: Arc<Exchange>,
        chunks: Option<Chunks>,
        limits: Arc<Limits>,
        memory: Arc<RequestMemory>,
    ) -> RequestBody<B> {
        let (timer, given) = (None, None);
        RequestBody { inner, exchange, chunks, limits, memory, timer, came: 0, given }
    }

    /// Returns the memory that the request has.
    pub fn memory(&self) -> &Arc<RequestMemory> {
        &self.memory
    }

    fn fail(&mut self, fault: BodyFault) -> BodyError {
        self.exchange.on_fault(fault);
        BodyError(fault)
    }

    fn on_bytes(&mut self, bytes: &Bytes) -> Result<(), BodyError> {
        self.exchange.on_bytes(bytes.len());
        self.came += bytes.len() as u64;
        let Some(chunks) = &mut self.chunks else { return Ok(()) };
        let result = chunks.on_bytes(bytes);
        let longest = chunks.longest() as usize;
        if let Err(fault) = result {
            return Err(self.fail(fault.into()));
        }
        match self.memory.grow_to(longest) {
            true => Ok(()),
            false => Err(self.fail(BodyFault::NoMemory)),
        }
    }

    fn on_end(&mut self) -> Result<(), BodyError> {
        if let Some(Err(fault)) = self.chunks.as_ref().map(Chunks::finish) {
            return Err(self.fail(fault.into()));
        }
        self.exchange.on_last_byte();
        Ok(())
    }

    /// The next frame is asked for.
    fn on_asked(&mut self) {
        if let (Some(given), Some(timer)) = (self.given.take(), &mut self.timer) {
            let until = timer.deadline() + given.elapsed();
            timer.as_mut().reset(until);
        }
    }

    /// Whether too little came for too long.
    fn is_late(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let until = Instant::now() + self.limits.body_time;
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
            if timer.as_mut().poll(cx).is_pending() {
                return false;
            }
            if self.came < self.limits.body_size_min {
                return true;
            }
            self.came = 0;
            self.timer = None;
        }
    }
}

impl From<ChunkFault> for BodyFault {
    fn from(fault: ChunkFault) -> BodyFault {
        match fault {
            ChunkFault::Malformed => BodyFault::Malformed,
            ChunkFault::TooLong => BodyFault::ChunkTooLong,
            ChunkFault::Length => BodyFault::Incomplete,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for RequestBody<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        this.on_asked();
        match Pin::new(&mut this.inner).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                this.given = Some(Instant::now());
                let result = frame.data_ref().map_or(Ok(()), |bytes| this.on_bytes(bytes));
                Poll::Ready(Some(result.map(|()| frame)))
            }
            Poll::Ready(Some(Err(_))) => Poll::Ready(Some(Err(this.fail(BodyFault::Incomplete)))),
            Poll::Ready(None) => Poll::Ready(this.on_end().err().map(Err)),
            Poll::Pending if this.is_late(cx) => Poll::Ready(Some(Err(this.fail(BodyFault::Slow)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// The body of an answer. When it is dropped, and all its pieces have left, the request is over.
pub struct AnswerBody<B> {
    inner: B,
    /// What is left of the last frame.
    rest: Bytes,
    finish: Arc<Finish>,
}

/// What is left to do when a request is over, answered or not. Dropping this does it.
pub struct Finish {
    exchange: Arc<Exchange>,
    activity: Arc<Activity>,
    /// The number of the request on its connection.
    request: u64,
    status: Option<StatusCode>,
    sent: AtomicU64,
    is_whole: AtomicBool,
    _share: Option<Share>,
}

impl Finish {
    /// A request began. `share`: what it holds until it is over.
    pub fn new(exchange: Arc<Exchange>, activity: Arc<Activity>, share: Option<Share>) -> Finish {
        let request = activity.begin();
        let (sent, is_whole) = (AtomicU64::new(0), AtomicBool::new(false));
        Finish { exchange, activity, request, status: None, sent, is_whole, _share: share }
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        self.exchange.client.is_done_with();
        self.exchange.log(self.status, *self.sent.get_mut(), *self.is_whole.get_mut());
        self.activity.end(self.request);
    }
}

/// Bytes that the connection has until they are written, and with them its request.
struct Piece {
    bytes: Bytes,
    finish: Arc<Finish>,
}

impl Piece {
    fn give(bytes: Bytes, finish: &Arc<Finish>) -> Bytes {
        finish.sent.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        finish.activity.give_piece(finish.request);
        Bytes::from_owner(Piece { bytes, finish: finish.clone() })
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.finish.activity.send_piece(self.finish.request);
    }
}

impl<B: Body> AnswerBody<B> {
    /// Watches the body of an answer.
    pub fn new(inner: B, status: StatusCode, mut finish: Finish) -> AnswerBody<B> {
        finish.status = Some(status);
        let is_whole = inner.is_end_stream() || finish.exchange.method == hyper::Method::HEAD;
        *finish.is_whole.get_mut() = is_whole;
        finish.activity.begin_answer(finish.request);
        AnswerBody { inner, rest: Bytes::new(), finish: Arc::new(finish) }
    }
}

impl<B> Drop for AnswerBody<B> {
    fn drop(&mut self) {
        self.finish.exchange.client.is_done_with();
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnswerBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            let frame = match Pin::new(&mut this.inner).poll_frame(cx) {
                Poll::Pending => {
                    this.finish.activity.await_answer(this.finish.request);
                    return Poll::Pending;
                }
                Poll::Ready(None) => {
                    this.finish.is_whole.store(true, Ordering::Relaxed);
                    return Poll::Ready(None);
                }
                Poll::Ready(Some(frame)) => frame.map(Frame::into_data),
            };
            match frame {
                Ok(Ok(bytes)) => this.rest = bytes,
                Ok(Err(other)) => return Poll::Ready(Some(Ok(other))),
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        let bytes = this.rest.split_to(this.rest.len().min(PIECE_SIZE_MAX));
        if this.is_end_stream() {
            this.finish.is_whole.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Some(Ok(Frame::data(Piece::give(bytes, &this.finish)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::time::Duration;

    use http_body_util::BodyExt;
    use hyper::Method;

    use super::*;
    use crate::exchange::Target;
    use crate::limits::Supply;
    use crate::percent::Query;

    /// A body of pieces, each after a pause of some seconds.
    struct Pieces(VecDeque<(u64, &'static [u8])>, Option<Pin<Box<Sleep>>>);

    impl Pieces {
        fn new(pieces: &[(u64, &'static [u8])]) -> Pieces {
            Pieces(pieces.iter().copied().collect(), None)
        }
    }

    impl Body for Pieces {
        type Data = Bytes;
        type Error = std::io::Error;

        fn poll_frame(
            self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            let this = self.get_mut();
            let Some((pause, piece)) = this.0.front().copied() else { return Poll::Ready(None) };
            let until = Instant::now() + Duration::from_secs(pause);
            let timer = this.1.get_or_insert_with(|| Box::pin(sleep_until(until)));
            std::task::ready!(timer.as_mut().poll(cx));
            this.1 = None;
            this.0.pop_front();
            Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(piece)))))
        }
    }

    fn body(
        pieces: &[(u64, &'static [u8])],
        declared: Option<u64>,
        memory: usize,
    ) -> (RequestBody<Pieces>, Arc<Exchange>) {
        let request = (Method::PUT, "/b/k".to_string());
        let (target, query) = (Target::default(), Query::default());
        let exchange = Exchange::new("1".to_string(), None, request, target, query);
        let limits = Arc::new(Limits::default());
        let memory = RequestMemory::take(&Supply::new(4 + memory), 4).expect("there is more");
        let chunks = declared.map(Chunks::new);
        let pieces = Pieces::new(pieces);
        (RequestBody::new(pieces, exchange.clone(), chunks, limits, memory), exchange)
    }

    async fn collected(
        pieces: &[(u64, &'static [u8])],
        declared: Option<u64>,
        memory: usize,
    ) -> Result<Bytes, Option<BodyFault>> {
        let (body, exchange) = body(pieces, declared, memory);
        match body.collect().await {
            Ok(all) => Ok(all.to_bytes()),
            Err(_) => Err(exchange.fault()),
        }
    }

    const LONG: &[u8] = &[b'x'; 5000];

    #[tokio::test(start_paused = true)]
    async fn a_body_that_pauses_or_trickles_is_cut() {
        assert!(collected(&[(29, b"a"), (0, b"b")], None, 0).await.is_ok());
        let paused = collected(&[(1, LONG), (70, b"b")], None, 0).await;
        assert_eq!(paused, Err(Some(BodyFault::Slow)));
        let trickle: Vec<(u64, &'static [u8])> = (0..60).map(|_| (1, &b"x"[..])).collect();
        assert_eq!(collected(&trickle, None, 0).await, Err(Some(BodyFault::Slow)));
        let steady: Vec<(u64, &'static [u8])> = (0..60).map(|_| (20, LONG)).collect();
        assert!(collected(&steady, None, 0).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_waits_for_the_cluster_is_not_late() {
        let pieces: Vec<(u64, &'static [u8])> = vec![(1, b"x"); 20];
        let (mut body, _) = body(&pieces, None, 0);
        for _ in &pieces {
            let frame = body.frame().await.expect("a frame");
            assert!(frame.is_ok(), "the client is not slow");
            tokio::time::sleep(Duration::from_secs(40)).await;
        }
        assert!(body.frame().await.is_none());
    }

    #[tokio::test]
    async fn chunks_are_watched_and_long_ones_need_memory() {
        let stream = &[(0, &b"5\r\nhello\r\n0\r\n\r\n"[..])];
        assert!(collected(stream, Some(5), 1).await.is_ok());
        assert_eq!(collected(stream, Some(5), 0).await, Err(Some(BodyFault::NoMemory)));
        assert_eq!(collected(stream, Some(6), 1).await, Err(Some(BodyFault::Incomplete)));
        let cut = &[(0, &b"5\r\nhello\r\n"[..])];
        assert_eq!(collected(cut, Some(5), 1).await, Err(Some(BodyFault::Incomplete)));
    }

    /// Returns an answer with this body, and the requests of its connection.
    fn answer(pieces: &[(u64, &'static [u8])]) -> (AnswerBody<Pieces>, Supply) {
        let request = (Method::GET, "/b/k".to_string());
        let (target, query) = (Target::default(), Query::default());
        let exchange = Exchange::new("1".to_string(), None, request, target, query);
        let requests = Supply::new(1);
        let finish = Finish::new(exchange, Arc::default(), requests.take(1));
        (AnswerBody::new(Pieces::new(pieces), StatusCode::OK, finish), requests)
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_over_when_the_last_piece_of_its_answer_has_left() {
        static BODY: [u8; 3 * PIECE_SIZE_MAX / 2] = [7; 3 * PIECE_SIZE_MAX / 2];
        let (mut answer, requests) = answer(&[(1, b"first"), (0, &BODY)]);
        let mut sizes = Vec::new();
        let mut kept = Vec::new();
        while let Some(frame) = answer.frame().await {
            let bytes = frame.expect("no error").into_data().expect("bytes");
            sizes.push(bytes.len());
            kept.push(bytes);
        }
        assert_eq!(sizes, [5, PIECE_SIZE_MAX, PIECE_SIZE_MAX / 2]);
        drop(answer);
        let last = kept.pop();
        drop(kept);
        assert_eq!(requests.taken(), 1);
        drop(last);
        assert_eq!(requests.taken(), 0);
    }
}
