//! A gateway on an index pool and containers in memory, with a user.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bucket::memory::{Pool, Volumes};
use bucket::{
    Buckets, ContainerId, Door, DoorError, Executed, Layout, ListQuery, Piece, Sealer, Session,
    Settings,
};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, Response, StatusCode};
use objects::{Listed, Operation, Page, Read, ReadAnswer};

use super::signer::{Signer, encoded, sha256};
use crate::body::AnswerBody;
use crate::clock;
use crate::connection::Activity;
use crate::limits::Limits;
use crate::s3::Shared;
use crate::s3::users::Users;
use crate::s3::wire::{AnswerBytes, Wire};
use crate::service::Service;

pub const HOST: &str = "s3.example.com";
const DATA_POOL: &str = "data";

/// A pool and containers in memory.
pub struct MemoryDoor {
    pool: Pool,
    pub volumes: Volumes,
    /// How many bytes of containers were read, and how many can be read before all is damaged.
    pub read: AtomicU64,
    pub readable: AtomicU64,
}

impl Default for MemoryDoor {
    fn default() -> MemoryDoor {
        let (pool, volumes) = (Pool::default(), Volumes::default());
        let (read, readable) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
        MemoryDoor { pool, volumes, read, readable }
    }
}

impl Door for MemoryDoor {
    async fn look(&self, reads: Vec<Read>) -> Result<Vec<ReadAnswer>, DoorError> {
        self.pool.look(&reads)
    }

    async fn execute(&self, operation: Operation) -> Result<Executed, DoorError> {
        self.pool.execute(&operation)
    }

    async fn list(&self, query: ListQuery) -> Result<Page<Listed>, DoorError> {
        Ok(self.pool.list_all(&query))
    }

    async fn session(&self) -> Result<Session, DoorError> {
        Ok(Session(1))
    }

    async fn execute_over(
        &self,
        session: Session,
        operation: Operation,
    ) -> Result<Executed, DoorError> {
        assert_eq!(session, Session(1));
        self.pool.execute(&operation)
    }

    async fn layout(&self, data_pool: &str) -> Result<Layout, DoorError> {
        assert_eq!(data_pool, DATA_POOL);
        Ok(Volumes::LAYOUT)
    }

    async fn create_container(
        &self,
        data_pool: &str,
        container: ContainerId,
    ) -> Result<(), DoorError> {
        assert_eq!(data_pool, DATA_POOL);
        self.volumes.create(container)
    }

    async fn write(
        &self,
        container: ContainerId,
        offset: u64,
        data: Bytes,
    ) -> Result<(), DoorError> {
        // As in a cluster, a write does not end at once.
        tokio::task::yield_now().await;
        self.volumes.write(container, offset, &data)
    }

    async fn read(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, DoorError> {
        tokio::task::yield_now().await;
        let read = self.read.fetch_add(length, Ordering::SeqCst) + length;
        match read <= self.readable.load(Ordering::SeqCst) {
            true => self.volumes.read(container, offset, length),
            false => Err(DoorError::Damaged),
        }
    }

    async fn trim(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<(), DoorError> {
        self.volumes.trim(container, offset, length)
    }

    fn wall_us(&self) -> u64 {
        clock::wall_us()
    }

    fn running_us(&self) -> u64 {
        clock::running_us()
    }

    fn random(&self) -> u64 {
        u64::from_le_bytes(io::random_bytes())
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(task);
    }
}

/// A gateway.
pub struct Rig {
    pub door: Arc<MemoryDoor>,
    pub service: Arc<Service<MemoryDoor>>,
    pub buckets: Arc<Buckets<MemoryDoor>>,
    pub signer: Signer,
}

/// An answer that came.
#[derive(Debug)]
pub struct Came {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Came {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("ASCII"))
    }

    /// Returns what stands between the first tags of this name.
    pub fn element(&self, name: &str) -> &str {
        let rest = self.text().split_once(&format!("<{name}>"));
        rest.and_then(|(_, rest)| rest.split_once(&format!("</{name}>")))
            .map_or("", |(text, _)| text)
    }

    /// Returns what stands between all tags of this name.
    pub fn elements(&self, name: &str) -> Vec<String> {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let parts = self.text().split(&open).skip(1);
        parts.map(|part| part.split(&close).next().unwrap_or_default().to_string()).collect()
    }

    /// Returns the status, and the code of an error.
    pub fn code(&self) -> (u16, &str) {
        (self.status.as_u16(), self.element("Code"))
    }
}

/// A request before it is signed.
#[derive(Clone)]
pub struct Ask {
    pub method: &'static str,
    pub host: String,
    pub path: String,
    pub query: Vec<(String, String)>,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Ask {
    /// A request for a path that is not encoded, and `name=value&name` as it is.
    pub fn new(method: &'static str, path: &str) -> Ask {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_string(), value.to_string())
        });
        Ask {
            method,
            host: HOST.to_string(),
            path: path.to_string(),
            query: pairs.collect(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// A request for a key, which may have any character.
    pub fn of_key(method: &'static str, bucket: &str, key: &str) -> Ask {
        Ask { path: format!("/{bucket}/{key}"), ..Ask::new(method, "/") }
    }

    pub fn header(mut self, name: &str, value: &str) -> Ask {
        self.headers.push((name.to_string(), value.to_string()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Ask {
        self.body = body.into();
        self
    }

    /// Returns the request without a signature.
    pub fn unsigned(&self) -> Request<Full<Bytes>> {
        let pair = |(name, value): &(String, String)| match value.is_empty() {
            true => encoded(name, false),
            false => format!("{}={}", encoded(name, false), encoded(value, false)),
        };
        let pairs: Vec<String> = self.query.iter().map(pair).collect();
        let query = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
        let uri = format!("{}{query}", encoded(&self.path, true));
        let mut request =
            Request::builder().method(self.method).uri(uri).header("host", &self.host);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let has_length = self.headers.iter().any(|(name, _)| name == "content-length");
        if !has_length && (!self.body.is_empty() || self.method == "PUT") {
            request = request.header("content-length", self.body.len().to_string());
        }
        request.body(Full::new(self.body.clone().into())).expect("a request")
    }

    /// Returns the request with a signature, and that.
    pub fn signed_with(mut self, signer: &Signer) -> (Request<Full<Bytes>>, String) {
        let has = |ask: &Ask, name: &str| ask.headers.iter().any(|(key, _)| key == name);
        if !has(&self, "x-amz-content-sha256") {
            let hash = sha256(&self.body);
            self = self.header("x-amz-content-sha256", &hash);
        }
        self = self.header("x-amz-date", &signer.date);
        let mut headers = self.headers.clone();
        headers.push(("host".to_string(), self.host.clone()));
        let payload = headers.iter().find(|(name, _)| name == "x-amz-content-sha256");
        let payload = payload.expect("just set").1.clone();
        let (text, signature) =
            signer.header(self.method, &self.path, &self.query, &headers, &payload);
        (self.header("authorization", &text).unsigned(), signature)
    }
}

pub fn date_of(ms: u64) -> String {
    let text = io::log::time_text(ms);
    let digits: String = text[..19].chars().filter(|c| !"-:".contains(*c)).collect();
    format!("{digits}Z")
}

impl Rig {
    pub async fn new() -> Rig {
        Rig::with(Limits::default()).await
    }

    pub async fn with(limits: Limits) -> Rig {
        let door = Arc::new(MemoryDoor::default());
        let settings = Settings { data_pool: Some(DATA_POOL.into()), ..Settings::default() };
        let buckets = Buckets::new(door.clone(), Sealer::new(&[7; 32]), settings);
        let shared = Shared {
            buckets: buckets.clone(),
            users: Users::new(buckets.clone()),
            region: "us-east-1".to_string(),
            domains: vec![HOST.to_string()],
        };
        let service = Service::new(Wire::new(Arc::new(shared)), Arc::new(limits));
        let service = Arc::new(service);
        let signer = Rig::user(&buckets, "ann").await;
        Rig { door, service, buckets, signer }
    }

    /// Creates a user.
    pub async fn user(buckets: &Arc<Buckets<MemoryDoor>>, name: &str) -> Signer {
        buckets.create_user(name).await.expect("created");
        let (key, secret) = buckets.add_key(name).await.expect("added");
        let region = "us-east-1".to_string();
        Signer { key: key.id, secret, region, date: date_of(clock::wall_us() / 1000) }
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> Came {
        let activity = Arc::new(Activity::default());
        came(self.service.answer(request, None, &activity).await).await
    }

    /// Sends a signed request.
    pub async fn ask(&self, ask: Ask) -> Came {
        self.send(ask.signed_with(&self.signer).0).await
    }

    pub async fn get(&self, path: &str) -> Came {
        self.ask(Ask::new("GET", path)).await
    }

    pub async fn put(&self, path: &str, body: &[u8]) -> Came {
        self.ask(Ask::new("PUT", path).body(body)).await
    }

    /// Creates a bucket and objects in it.
    pub async fn filled(bucket: &str, keys: &[&str]) -> Rig {
        Rig::filled_with(Limits::default(), bucket, keys).await
    }

    pub async fn filled_with(limits: Limits, bucket: &str, keys: &[&str]) -> Rig {
        let rig = Rig::with(limits).await;
        let created = rig.put(&format!("/{bucket}"), b"").await;
        assert_eq!(created.status, StatusCode::OK, "{created:?}");
        for key in keys {
            let put = rig.ask(Ask::of_key("PUT", bucket, key).body(key.as_bytes())).await;
            assert_eq!(put.status, StatusCode::OK, "{put:?}");
        }
        rig
    }
}

pub async fn came(response: Response<AnswerBody<AnswerBytes>>) -> Came {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| error.to_string());
    let body = body.expect("it comes").to_bytes();
    Came { status: parts.status, headers: parts.headers, body }
}
