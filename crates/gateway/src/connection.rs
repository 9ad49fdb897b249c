//! The stream of a connection, with the times that HTTP libraries do not watch: a header that never ends, a
//! client that does not take its answer, and a connection without a request.
//!
//! Invariants
//!   1. A connection without a request is cut `header_time` after the first byte of the next one, unless
//!      the header is complete by then.
//!   2. Bytes that are to be written leave within `write_time`, or the connection is cut.
//!   3. Each answer makes progress within `write_time` while it waits for its client, or the connection is
//!      cut: a client with HTTP/2 can let the connection live and never open the window of an answer.
//!   4. A connection is cut when it had no request for `idle_time`, whatever else came over it.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// What the service tells the stream: which requests there are, and how their answers go on.
#[derive(Debug)]
pub struct Activity(Mutex<Requests>);

#[derive(Debug)]
struct Requests {
    begun: u64,
    ended: u64,
    /// When the last request ended.
    idle_since: Instant,
    /// Answers that began, by the numbers of their requests.
    answers: BTreeMap<u64, Progress>,
}

/// How far an answer is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    /// Pieces that were given to the connection and have not left.
    unsent: usize,
    /// The connection asked for a piece, and there is none yet: it is not the client that makes it wait.
    is_awaited: bool,
    /// When a piece was given or left.
    since: Instant,
}

/// How long a connection waits for its client.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// From the first byte of a request to the end of its header. `None`: headers are not watched, as
    /// several requests share the stream.
    pub header_time: Option<Duration>,
    /// A client takes a piece of each answer at least this often.
    pub write_time: Duration,
    /// For so long there may be no request.
    pub idle_time: Duration,
}

impl Default for Activity {
    fn default() -> Activity {
        let answers = BTreeMap::new();
        Activity(Mutex::new(Requests { begun: 0, ended: 0, idle_since: Instant::now(), answers }))
    }
}

impl Activity {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn update(&self, request: u64, change: impl FnOnce(&mut Progress)) {
        if let Some(progress) = self.requests().answers.get_mut(&request) {
            change(progress);
        }
    }

    /// The header of a request is complete. Returns the number of the request.
    pub fn begin(&self) -> u64 {
        let mut requests = self.requests();
        requests.begun += 1;
        requests.begun
    }

    /// The answer begins: from now on it is the client that makes it wait, unless the answer is awaited.
    pub fn begin_answer(&self, request: u64) {
        let progress = Progress { unsent: 0, is_awaited: false, since: Instant::now() };
        self.requests().answers.insert(request, progress);
    }

    /// The connection has room for more of the answer, and there is nothing yet.
    pub fn await_answer(&self, request: u64) {
        self.update(request, |progress| progress.is_awaited = true);
    }

    /// The connection got a piece of the answer.
    pub fn give_piece(&self, request: u64) {
        self.update(request, |progress| {
            let unsent = progress.unsent + 1;
            *progress = Progress { unsent, is_awaited: false, since: Instant::now() };
        });
    }

    /// A piece of the answer left, or nobody wants it any more.
    pub fn send_piece(&self, request: u64) {
        self.update(request, |progress| {
            progress.unsent -= 1;
            progress.since = Instant::now();
        });
    }

    /// The answer is complete.
    pub fn end(&self, request: u64) {
        let mut requests = self.requests();
        requests.answers.remove(&request);
        requests.ended += 1;
        requests.idle_since = Instant::now();
    }

    fn begun(&self) -> u64 {
        self.requests().begun
    }

    fn is_idle(&self) -> bool {
        self.requests().is_idle()
    }
}

impl Requests {
    fn is_idle(&self) -> bool {
        self.begun == self.ended
    }

    /// Returns when the connection is cut if nothing happens, and why. `None`: it waits for no client.
    fn end_of(&self, patience: &Patience) -> Option<(Instant, &'static str)> {
        if self.is_idle() {
            return Some((self.idle_since + patience.idle_time, "there was no request"));
        }
        let waits = |progress: &&Progress| progress.unsent > 0 || !progress.is_awaited;
        let since = self.answers.values().filter(waits).map(|progress| progress.since).min()?;
        Some((since + patience.write_time, "the client does not take its answer"))
    }
}

/// A stream that is cut when its client is too slow.
pub struct Watched<S> {
    inner: S,
    activity: Arc<Activity>,
    patience: Patience,
    /// Until when the header has to be complete, and how many requests had begun before.
    header_timer: Option<(u64, Pin<Box<Sleep>>)>,
    write_timer: Option<Pin<Box<Sleep>>>,
    /// When invariants 3 and 4 are looked at again.
    alarm: Pin<Box<Sleep>>,
}

impl<S> Watched<S> {
    /// Watches a stream.
    pub fn new(inner: S, activity: Arc<Activity>, patience: Patience) -> Watched<S> {
        let alarm = Box::pin(sleep_until(Instant::now()));
        Watched { inner, activity, patience, header_timer: None, write_timer: None, alarm }
    }

    fn is_header_late(&mut self, cx: &mut Context<'_>) -> bool {
        let begun = self.activity.begun();
        if self.header_timer.as_ref().is_some_and(|(before, _)| *before != begun) {
            self.header_timer = None;
        }
        let timer = self.header_timer.as_mut();
        timer.is_some_and(|(_, timer)| timer.as_mut().poll(cx).is_ready())
    }

    /// Returns why the connection is cut, if it is.
    fn check_progress(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while self.alarm.as_mut().poll(cx).is_ready() {
            let now = Instant::now();
            // An end that is not known yet is no earlier than this.
            let next = now + self.patience.write_time.min(self.patience.idle_time);
            let next = match self.activity.requests().end_of(&self.patience) {
                Some((end, why)) if end <= now => return Err(late(why)),
                Some((end, _)) => end.min(next),
                None => next,
            };
            self.alarm.as_mut().reset(next);
        }
        Ok(())
    }

    /// Watches an attempt to write.
    fn on_write<T>(
        &mut self,
        cx: &mut Context<'_>,
        done: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        self.check_progress(cx)?;
        if done.is_ready() {
            self.write_timer = None;
            return done;
        }
        let until = Instant::now() + self.patience.write_time;
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
        this.check_progress(cx)?;
        let Some(header_time) = this.patience.header_time else { return read };
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

    fn watched(idle: u64) -> (Watched<tokio::io::DuplexStream>, tokio::io::DuplexStream) {
        let (here, there) = tokio::io::duplex(16);
        let patience = Patience {
            header_time: Some(Duration::from_secs(20)),
            write_time: Duration::from_secs(60),
            idle_time: Duration::from_secs(idle),
        };
        (Watched::new(here, Arc::default(), patience), there)
    }

    /// Reads from a stream over which nothing comes. Returns after how many seconds it is cut, if it is
    /// within an hour.
    async fn cut_after(watched: &mut Watched<tokio::io::DuplexStream>) -> Option<u64> {
        let (began, mut byte) = (Instant::now(), [0]);
        let read = watched.read_exact(&mut byte);
        let error = tokio::time::timeout(Duration::from_secs(3600), read).await.ok()?;
        assert_eq!(error.expect_err("nothing comes").kind(), io::ErrorKind::TimedOut);
        Some(began.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_header_that_does_not_end_is_cut() {
        let (mut watched, mut client) = watched(90);
        client.write_all(b"G").await.expect("open");
        watched.read_exact(&mut [0]).await.expect("the first byte");
        assert_eq!(cut_after(&mut watched).await, Some(20));
    }

    #[tokio::test(start_paused = true)]
    async fn an_idle_connection_is_cut_whatever_comes_over_it() {
        let (mut watched, client) = watched(90);
        watched.patience.header_time = None;
        assert_eq!(cut_after(&mut watched).await, Some(90));
        drop(client);
        let (mut watched, mut client) = self::watched(90);
        watched.patience.header_time = None;
        let request = watched.activity.begin();
        tokio::time::sleep(Duration::from_secs(100)).await;
        watched.activity.end(request);
        let began = Instant::now();
        let pings = tokio::spawn(async move {
            while client.write_all(b"p").await.is_ok() {
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
        });
        let mut byte = [0];
        while watched.read_exact(&mut byte).await.is_ok() {}
        assert_eq!(began.elapsed().as_secs(), 90);
        pings.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_its_client_does_not_take_is_cut() {
        let (mut watched, _client) = watched(90);
        let activity = watched.activity.clone();
        let (stuck, busy) = (activity.begin(), activity.begin());
        activity.begin_answer(stuck);
        activity.begin_answer(busy);
        // Another answer on the same connection goes on, which does not help.
        let goes_on = tokio::spawn({
            let activity = activity.clone();
            async move {
                loop {
                    activity.give_piece(busy);
                    tokio::time::sleep(Duration::from_secs(10)).await;
                    activity.send_piece(busy);
                }
            }
        });
        assert_eq!(cut_after(&mut watched).await, Some(60));
        goes_on.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_does_not_leave_is_cut_and_a_piece_that_is_awaited_is_not() {
        let (mut watched, _client) = watched(90);
        let activity = watched.activity.clone();
        let request = activity.begin();
        assert_eq!(cut_after(&mut watched).await, None, "it has no answer yet");
        activity.begin_answer(request);
        activity.await_answer(request);
        assert_eq!(cut_after(&mut watched).await, None, "the client waits for us");
        activity.give_piece(request);
        activity.await_answer(request);
        assert!(cut_after(&mut watched).await.is_some_and(|seconds| seconds <= 120));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_has_begun_is_not_watched_for_its_header() {
        let (mut watched, mut client) = watched(10_000);
        let mut byte = [0];
        client.write_all(b"G").await.expect("open");
        watched.read_exact(&mut byte).await.expect("the first byte");
        let request = watched.activity.begin();
        let read = tokio::time::timeout(Duration::from_secs(600), watched.read_exact(&mut byte));
        assert!(read.await.is_err(), "it waits");
        watched.activity.end(request);
        let read = tokio::time::timeout(Duration::from_secs(600), watched.read_exact(&mut byte));
        assert!(read.await.is_err(), "it is idle");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_cut() {
        let (mut watched, _client) = watched(10_000);
        let error = watched.write_all(&[0; 100]).await.expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
