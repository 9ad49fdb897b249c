//! One request and its answer: what all parts of the gateway know of it, and the line of the access log.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use base::TraceEvent;
use bucket::Client;
use hyper::{Method, StatusCode};

use crate::clock::running_us;
use crate::errors::Refusal;
use crate::limits::Share;
use crate::percent::Query;

/// What a request is about, as its host and path say.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Target {
    /// The bucket. `None`: the service as a whole.
    pub bucket: Option<String>,
    /// The key. `None`: the bucket as a whole.
    pub key: Option<String>,
}

/// Why a body did not come as it should.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyFault {
    /// It paused for too long.
    Slow,
    /// It ended too early or too late, or the connection broke.
    Incomplete,
    /// It does not have the form that its header declares.
    Malformed,
    /// A chunk is too long.
    ChunkTooLong,
    /// There is no memory left for it.
    NoMemory,
}

/// A request.
#[derive(Debug)]
pub struct Exchange {
    /// Its id, in the answer and in the log.
    pub id: String,
    /// Who sent it.
    pub peer: Option<SocketAddr>,
    /// Its method.
    pub method: Method,
    /// Its path, as it came.
    pub path: String,
    /// What it is about.
    pub target: Target,
    /// The parameters of its URL.
    pub query: Query,
    /// What the logic of buckets knows of it.
    pub client: Client,
    began: Instant,
    received: AtomicU64,
    notes: Mutex<Notes>,
    /// The memory of its answer.
    answer_memory: Mutex<Option<Share>>,
}

/// What becomes known on the way.
#[derive(Clone, Default, Debug)]
struct Notes {
    fault: Option<BodyFault>,
    user: Option<String>,
    code: Option<String>,
}

impl Exchange {
    /// A request came.
    pub fn new(
        id: String,
        peer: Option<SocketAddr>,
        (method, path): (Method, String),
        target: Target,
        query: Query,
    ) -> Arc<Exchange> {
        let (client, began) = (Client::new(), Instant::now());
        let (received, notes) = (AtomicU64::new(0), Mutex::default());
        let answer_memory = Mutex::default();
        Arc::new(Exchange {
            id,
            peer,
            method,
            path,
            target,
            query,
            client,
            began,
            received,
            notes,
            answer_memory,
        })
    }

    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds memory until the request is over.
    pub fn hold(&self, memory: Share) {
        *self.answer_memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(memory);
    }

    /// Bytes of the body came.
    pub fn on_bytes(&self, count: usize) {
        self.received.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// The last byte of the request came.
    pub fn on_last_byte(&self) {
        self.client.sent_last_byte(running_us());
    }

    /// The body failed. The first reason counts.
    pub fn on_fault(&self, fault: BodyFault) {
        self.notes().fault.get_or_insert(fault);
    }

    /// Returns why the body failed.
    pub fn fault(&self) -> Option<BodyFault> {
        self.notes().fault
    }

    /// The request is signed by a user.
    pub fn on_user(&self, user: &str) {
        self.notes().user = Some(user.to_string());
    }

    /// The request is answered with this code.
    pub fn on_code(&self, code: &str) {
        self.notes().code = Some(code.to_string());
    }

    /// Writes the line of the access log. Without an answer, as the client was gone, the status is 0.
    pub fn log(&self, status: Option<StatusCode>, sent: u64, is_whole: bool) {
        let notes = self.notes().clone();
        let mut event = TraceEvent::info("request")
            .with("request", &self.id)
            .with("method", &self.method)
            .with("path", &self.path)
            .number("status", status.map_or(0, |status| status.as_u16()))
            .number("received_bytes", self.received.load(Ordering::Relaxed))
            .number("sent_bytes", sent)
            .number("time_us", self.began.elapsed().as_micros() as u64);
        if let Some(peer) = self.peer {
            event = event.with("peer", peer);
        }
        if let Some(user) = notes.user {
            event = event.with("user", user);
        }
        if let Some(code) = notes.code {
            event = event.with("code", code);
        }
        if !is_whole {
            event = event.with("cut", "yes");
        }
        io::log::write(&event);
    }
}

impl From<BodyFault> for Refusal {
    fn from(fault: BodyFault) -> Refusal {
        let bad = |code, message: &str| Refusal::new(StatusCode::BAD_REQUEST, code, message);
        match fault {
            BodyFault::Slow => bad("RequestTimeout", "The body of the request paused for too long"),
            BodyFault::Incomplete => {
                bad("IncompleteBody", "The body does not have the length that its headers declare")
            }
            BodyFault::Malformed => {
                bad("InvalidRequest", "The body does not have the form that its headers declare")
            }
            BodyFault::ChunkTooLong => bad("InvalidRequest", "A chunk has more than 16 MiB"),
            BodyFault::NoMemory => Refusal::slow_down("Too many bodies are on their way"),
        }
    }
}
