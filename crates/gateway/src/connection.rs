//! The stream of a connection, with the times that HTTP libraries do not watch: a header that never ends, and a
//! client that does not take its answer.
//!
//! Invariants
//!   1. A connection without a request is cut `header_time` after the first byte of the next one, unless
//!      the header is complete by then. Without a byte it may be idle: the HTTP library watches that.
//!   2. Bytes that are to be written leave within `write_time`, or the connection is cut.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// What the service tells the stream: how many requests began and ended.
#[derive(Default, Debug)]
pub struct Activity {
    begun: AtomicU64,
    ended: AtomicU64,
}

impl Activity {
    /// The header of a request is complete.
    pub fn begin(&self) {
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    /// The answer of a request is complete.
    pub fn end(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    fn is_idle(&self) -> bool {
        self.begun() == self.ended.load(Ordering::Acquire)
    }
}

/// A stream that is cut when its client is too slow.
pub struct Watched<S> {
    inner: S,
    activity: Arc<Activity>,
    /// `None`: headers are not watched, as several requests share the stream.
    header_time: Option<Duration>,
    write_time: Duration,
    /// Until when the header has to be complete, and how many requests had begun before.
    header_timer: Option<(u64, Pin<Box<Sleep>>)>,
    write_timer: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    /// Watches a stream.
    pub fn new(
        inner: S,
        activity: Arc<Activity>,
        header_time: Option<Duration>,
        write_time: Duration,
    ) -> Watched<S> {
        Watched { inner, activity, header_time, write_time, header_timer: None, write_timer: None }
    }

    fn is_header_late(&mut self, cx: &mut Context<'_>) -> bool {
        let begun = self.activity.begun();
        if self.header_timer.as_ref().is_some_and(|(before, _)| *before != begun) {
            self.header_timer = None;
        }
        let timer = self.header_timer.as_mut();
        timer.is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready())
    }

    /// Watches an attempt to write.
    fn on_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if done.is_ready() {
            self.write_timer = None;
            return done;
        }
        let until = Instant::now() + self.write_time;
        let timer = self.write_timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(late("the client does not take its answer"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn late(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, why)
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.inner).poll_read(cx, buffer);
        let Some(header_time) = this.header_time else { return read };
        if read.is_ready() && buffer.filled().len() > before && this.activity.is_idle() {
            let begun = this.activity.begun();
            if this.header_timer.as_ref().is_none_or(|(before, _)| *before != begun) {
                let timer = Box::pin(sleep_until(Instant::now() + header_time));
                this.header_timer = Some((begun, timer));
            }
        }
        if this.is_header_late(cx) {
            return Poll::Ready(Err(late("the header of a request did not end")));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.inner).poll_write(cx, bytes);
        this.on_write(cx, done)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.inner).poll_flush(cx);
        this.on_write(cx, done)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.on_write(cx, done)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let done = Pin::new(&mut this.inner).poll_write_vectored(cx, slices);
        this.on_write(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn watched(
        header: u64,
        write: u64,
    ) -> (Watched<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
        let (here, there) = tokio::io::duplex(16);
        let times = (Duration::from_secs(header), Duration::from_secs(write));
        (Watched::new(here, Arc::default(), Some(times.0), times.1), there)
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_does_not_end_is_cut_and_an_idle_connection_is_not() {
        let (mut watched, mut client) = watched(20, 60);
        let mut byte = [0];
        let waits = tokio::time::timeout(Duration::from_secs(3600), watched.read_exact(&mut byte));
        assert!(waits.await.is_err(), "nothing has begun");
        client.write_all(b"G").await.expect("open");
        watched.read_exact(&mut byte).await.expect("the first byte");
        let begun = Instant::now();
        let error = watched.read_exact(&mut byte).await.expect_err("too slow");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(begun.elapsed().as_secs(), 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_has_begun_is_not_watched_for_its_header() {
        let (mut watched, mut client) = watched(20, 60);
        let mut byte = [0];
        client.write_all(b"G").await.expect("open");
        watched.read_exact(&mut byte).await.expect("the first byte");
        watched.activity.begin();
        let read = tokio::time::timeout(Duration::from_secs(600), watched.read_exact(&mut byte));
        assert!(read.await.is_err(), "it waits");
        watched.activity.end();
        let read = tokio::time::timeout(Duration::from_secs(600), watched.read_exact(&mut byte));
        assert!(read.await.is_err(), "it is idle");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_cut() {
        let (mut watched, _client) = watched(20, 60);
        let error = watched.write_all(&[0; 100]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
