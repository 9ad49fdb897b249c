//! S3: what its requests mean, on buckets. `wire` verifies signatures and undoes chunks with a library, and calls
//! the rest with plain values.
//!
//! | file | what it has |
//! |---|---|
//! | `wire.rs` | all that names the library: signatures, operations on buckets, XML bodies |
//! | `route.rs` | which requests are answered here instead of by the library |
//! | `put.rs`, `get.rs` | objects: put, get, head, delete |
//! | `delete.rs` | many objects: delete |
//! | `list.rs` | both listings of objects |
//! | `checksums.rs` | digests in headers and trailers |
//! | `conditions.rs` | conditional headers and ranges |
//! | `users.rs` | who signed a request |

pub mod checksums;
pub mod conditions;
mod delete;
mod get;
mod list;
mod put;
pub mod route;
pub mod users;
pub mod wire;

use std::sync::Arc;

use bucket::{Action, Bucket, Buckets, Door, Key, may};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};

use crate::errors::Refusal;
use crate::exchange::Exchange;
use crate::memory::RequestMemory;
pub use list::LISTED_COUNT_MAX;
use users::Users;

/// What all requests of a gateway share.
pub struct Shared<D: Door> {
    /// The logic.
    pub buckets: Arc<Buckets<D>>,
    /// Who has which access key.
    pub users: Users<D>,
    /// The region that signatures name.
    pub region: String,
    /// Hosts below which a bucket's name may stand.
    pub domains: Vec<String>,
}

/// A request whose signature is right, or that has none.
pub struct Asked<'a> {
    /// The request.
    pub exchange: &'a Arc<Exchange>,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// The user who signed it.
    pub user: Option<&'a str>,
    /// The memory that it has.
    pub memory: Arc<RequestMemory>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// Its headers.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Payload,
}

/// The body of an answer.
#[derive(Debug)]
pub enum Payload {
    /// Here it is.
    Bytes(Bytes),
    /// It is read as the client takes it.
    Stored(UnsyncBoxBody<Bytes, bucket::Failure>),
}

impl<B: Into<Bytes>> From<B> for Payload {
    fn from(bytes: B) -> Payload {
        Payload::Bytes(bytes.into())
    }
}

impl Answer {
    /// Creates an answer without a body.
    pub fn new(status: StatusCode) -> Answer {
        Answer { status, headers: HeaderMap::new(), body: Bytes::new().into() }
    }

    /// Creates an answer that is an XML document.
    pub fn xml(status: StatusCode, document: String) -> Answer {
        let mut answer = Answer::new(status);
        answer.set("content-type", "application/xml");
        answer.body = document.into();
        answer
    }

    /// Creates the answer to a request that failed.
    pub fn refusal(refusal: &Refusal, exchange: &Exchange) -> Answer {
        exchange.on_code(refusal.code);
        let mut answer = match refusal.status {
            StatusCode::NOT_MODIFIED => Answer::new(refusal.status),
            _ => {
                let document = refusal.document(&exchange.path, &exchange.id);
                Answer::xml(refusal.status, document)
            }
        };
        for (name, value) in &refusal.headers {
            answer.set(name, value);
        }
        answer
    }

    /// Sets a header. What cannot stand in a header is left out.
    pub fn set(&mut self, name: &str, value: &str) {
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_bytes(value.as_bytes());
        if let (Ok(name), Ok(value)) = (name, value) {
            self.headers.insert(name, value);
        }
    }
}

impl Asked<'_> {
    /// Returns a header as text.
    ///
    /// Errors: `InvalidArgument`, if it is none.
    pub fn header(&self, name: &str) -> Result<Option<&str>, Refusal> {
        let Some(value) = self.headers.get(name) else { return Ok(None) };
        let text = std::str::from_utf8(value.as_bytes());
        text.map(Some).map_err(|_| Refusal::invalid_argument(format!("{name} is not UTF-8")))
    }

    /// Returns the name of the bucket.
    fn bucket(&self) -> Result<&str, Refusal> {
        let bucket = self.exchange.target.bucket.as_deref();
        bucket.ok_or_else(|| Refusal::from(bucket::Failure::InvalidBucketName))
    }

    /// Returns the key.
    fn key(&self) -> Result<Key, Refusal> {
        key_of(self.exchange.target.key.as_deref().unwrap_or_default())
    }
}

/// Returns a key, if it can be one.
pub fn key_of(text: &str) -> Result<Key, Refusal> {
    Ok(Key::new(text)?)
}

impl<D: Door> Shared<D> {
    /// Returns a bucket in which the user may do this.
    ///
    /// Errors: `NoSuchBucket`, `AccessDenied`.
    pub async fn bucket(
        &self,
        user: Option<&str>,
        name: &str,
        action: Action<'_>,
        owner_expected: Option<&str>,
    ) -> Result<Arc<Bucket>, Refusal> {
        let bucket = match self.buckets.bucket(name).await {
            // Who may not see buckets does not learn which ones there are.
            Err(bucket::Failure::NoSuchBucket) if user.is_none() => {
                return Err(Refusal::access_denied());
            }
            found => found?,
        };
        let is_other = owner_expected.is_some_and(|owner| owner != bucket.owner);
        match may(user, &bucket, action) && !is_other {
            true => Ok(bucket),
            false => Err(Refusal::access_denied()),
        }
    }

    async fn bucket_asked(
        &self,
        asked: &Asked<'_>,
        action: Action<'_>,
    ) -> Result<Arc<Bucket>, Refusal> {
        let owner = asked.header("x-amz-expected-bucket-owner")?;
        self.bucket(asked.user, asked.bucket()?, action, owner).await
    }
}

/// Refuses an id of a version, but for that of the only version there is.
fn check_version_id(id: Option<&str>) -> Result<(), Refusal> {
    match id {
        None | Some("null") => Ok(()),
        Some(id) if id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Err(Refusal::from(bucket::Failure::NoSuchVersion))
        }
        Some(_) => Err(Refusal::invalid_argument("Invalid version id specified")),
    }
}
