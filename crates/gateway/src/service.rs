//! What becomes of each request: it gets an id, is checked, limited, answered and logged.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bucket::Door;
use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request, Response, StatusCode};

use crate::body::{AnswerBody, Finish, RequestBody};
use crate::chunks::Chunks;
use crate::connection::Activity;
use crate::drain::Drained;
use crate::errors::Refusal;
use crate::exchange::{Exchange, Target};
use crate::front;
use crate::limits::{LISTED_SIZE, Limits, Supply};
use crate::memory::RequestMemory;
use crate::percent::Query;
use crate::s3::wire::{AnswerBytes, Wire, refused, response_of};
use crate::s3::{Answer, LISTED_COUNT_MAX};

/// The path that load balancers ask. No bucket has such a name.
const HEALTH: &str = "/-/health";

/// Answers requests.
pub struct Service<D: Door> {
    wire: Wire<D>,
    limits: Arc<Limits>,
    requests: Supply,
    memory: Supply,
    /// Ids of requests: of this process, and of the request.
    process: u32,
    last: AtomicU32,
}

impl<D: Door> Service<D> {
    /// Creates a service.
    pub fn new(wire: Wire<D>, limits: Arc<Limits>) -> Service<D> {
        let (requests, memory) = (Supply::new(limits.requests_max), Supply::new(limits.memory));
        let process = u32::from_le_bytes(io::random_bytes());
        Service { wire, limits, requests, memory, process, last: AtomicU32::new(0) }
    }

    /// Returns the memory that all requests have.
    #[cfg(test)]
    pub fn memory(&self) -> &Supply {
        &self.memory
    }

    /// Answers a request.
    pub async fn answer<B>(
        &self,
        request: Request<B>,
        peer: Option<SocketAddr>,
        activity: &Arc<Activity>,
    ) -> Response<AnswerBody<AnswerBytes>>
    where
        B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
        B::Error: Error + Send + Sync + 'static,
    {
        let (mut parts, body) = request.into_parts();
        let body = Drained::new(body, &parts.headers, activity, self.limits.body_time);
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08X}{number:08X}", self.process);
        let (exchange, understood) = self.exchange(&parts, id, peer);
        let share = self.requests.take(1);
        let has_room = share.is_some();
        let finish = Finish::new(exchange.clone(), activity.clone(), share);
        let response = if exchange.method == Method::GET && exchange.path == HEALTH {
            let mut answer = Answer::new(StatusCode::OK);
            answer.set("content-type", "text/plain");
            answer.body = Bytes::from_static(b"ok\n").into();
            response_of(answer)
        } else if !has_room {
            refused(&Refusal::slow_down("Please reduce your request rate."), &exchange)
        } else {
            let region = &self.wire.shared().region;
            let checked = understood.and_then(|()| front::check(&parts, &exchange.query, region));
            match checked.and_then(|()| self.body(&parts.headers, body, &exchange)) {
                Ok(body) => {
                    parts.extensions.insert(body.memory().clone());
                    self.answer_checked(Request::from_parts(parts, body), &exchange).await
                }
                Err(refusal) => refused(&refusal, &exchange),
            }
        };
        let (mut parts, body) = response.into_parts();
        if let Ok(id) = HeaderValue::from_str(&exchange.id) {
            parts.headers.insert("x-amz-request-id", id);
        }
        let body = AnswerBody::new(body, parts.status, finish);
        Response::from_parts(parts, body)
    }

    /// Answers a request, and holds the memory of its answer if that is a listing.
    async fn answer_checked<B>(
        &self,
        request: Request<B>,
        exchange: &Arc<Exchange>,
    ) -> Response<AnswerBytes>
    where
        B: Body<Data = Bytes> + Send + Sync + 'static,
        B::Error: Error + Send + Sync + 'static,
    {
        if exchange.method != Method::GET || exchange.target.key.is_some() {
            return self.wire.answer(request, exchange).await;
        }
        let too_many = || {
            let message = "Too many listings are on their way. Please reduce your request rate.";
            refused(&Refusal::slow_down(message), exchange)
        };
        let count = exchange.query.get("max-keys").and_then(|text| text.parse().ok());
        let count = count.unwrap_or(LISTED_COUNT_MAX).min(LISTED_COUNT_MAX);
        let Some(mut memory) = self.memory.take(count * LISTED_SIZE) else { return too_many() };
        let response = self.wire.answer(request, exchange).await;
        let size = response.body().size_hint().upper().unwrap_or_default() as usize;
        if !memory.resize(size) {
            return too_many();
        }
        exchange.hold(memory);
        response
    }

    /// Returns what is known of a request, and whether it is understood.
    fn exchange(
        &self,
        parts: &Parts,
        id: String,
        peer: Option<SocketAddr>,
    ) -> (Arc<Exchange>, Result<(), Refusal>) {
        let path = parts.uri.path().to_string();
        let host = match parts.headers.get(HOST) {
            Some(host) => host.to_str().ok(),
            None => parts.uri.authority().map(|authority| authority.as_str()),
        };
        let target = front::target(&self.wire.shared().domains, host, &path);
        let query = Query::parse(parts.uri.query().unwrap_or_default()).ok_or_else(|| {
            let message = "The parameters of the URL are not UTF-8";
            Refusal::new(StatusCode::BAD_REQUEST, "InvalidURI", message)
        });
        let request = (parts.method.clone(), path);
        let (target, query, understood) = match (target, query) {
            (Ok(target), Ok(query)) => (target, query, Ok(())),
            (Err(refusal), _) | (_, Err(refusal)) => {
                (Target::default(), Query::default(), Err(refusal))
            }
        };
        (Exchange::new(id, peer, request, target, query), understood)
    }

    /// Watches the body of a request, and takes the memory for it.
    fn body<B: Body>(
        &self,
        headers: &HeaderMap,
        body: B,
        exchange: &Arc<Exchange>,
    ) -> Result<RequestBody<B>, Refusal> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let is_chunked =
            text("x-amz-content-sha256").is_some_and(|text| text.starts_with("STREAMING-"));
        let declared = text("x-amz-decoded-content-length").and_then(|text| text.parse().ok());
        let chunks = declared.filter(|_| is_chunked).map(Chunks::new);
        let max = self.limits.memory_of_request;
        let size = body.size_hint().upper().map_or(max, |size| max.min(size as usize));
        if body.is_end_stream() {
            exchange.on_last_byte();
        }
        let memory = RequestMemory::take(&self.memory, size).ok_or_else(|| {
            Refusal::slow_down("Too many bodies are on their way. Please reduce your request rate.")
        })?;
        Ok(RequestBody::new(body, exchange.clone(), chunks, self.limits.clone(), memory))
    }
}
