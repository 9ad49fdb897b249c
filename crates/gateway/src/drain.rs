//! What is left of a body when a request was answered before all of it came.
//!
//! A connection with HTTP/1.1 that is closed while bytes come in is reset, and the client may lose the
//! answer, a refusal mostly. So a small rest is read and thrown away, and the connection stays.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::connection::Activity;

/// The most bytes that are thrown away.
const DRAINED_SIZE_MAX: u64 = 1 << 20;

/// A body whose rest is thrown away when this is dropped, if the rest is small.
pub struct Drained<B: Body<Data = Bytes> + Send + Unpin + 'static> {
    /// `None`: it has ended.
    inner: Option<B>,
    activity: Arc<Activity>,
    time: Duration,
    is_awaited: bool,
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drained<B> {
    /// Watches a body. `time`: its rest comes within this time, or the connection is closed.
    pub fn new(
        inner: B,
        headers: &HeaderMap,
        activity: &Arc<Activity>,
        time: Duration,
    ) -> Drained<B> {
        // A client that waits for a go-ahead sends nothing once it has its answer.
        let is_awaited = !headers.contains_key("expect");
        Drained { inner: Some(inner), activity: activity.clone(), time, is_awaited }
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Body for Drained<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        // A client that waits for a go-ahead gets it now.
        this.is_awaited = true;
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        let frame = Pin::new(inner).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = frame {
            this.inner = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint)
    }
}

impl<B: Body<Data = Bytes> + Send + Unpin + 'static> Drop for Drained<B> {
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        if inner.is_end_stream() || inner.size_hint().lower() > DRAINED_SIZE_MAX || !self.is_awaited
        {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        // The connection is not idle meanwhile.
        let (activity, request, time) = (self.activity.clone(), self.activity.begin(), self.time);
        runtime.spawn(async move {
            let rest = async {
                let mut size = 0;
                while let Some(Ok(frame)) = inner.frame().await {
                    size += frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
                    if size > DRAINED_SIZE_MAX {
                        return;
                    }
                }
            };
            let _ = timeout(time, rest).await;
            activity.end(request);
        });
    }
}
