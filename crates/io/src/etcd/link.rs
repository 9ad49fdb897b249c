//! The connection to etcd: one endpoint at a time. If an endpoint fails or stops answering, the next one is
//! used.
//!
//! ```text
//!   keep:  open ─▶ in use ─probe every 500 ms──▶ gone ─▶ the next endpoint
//!                    │ ▲                           ▲
//!   tasks:           └─ask─── error, no answer ────┘
//! ```
//!
//! The probe is a read through etcd's consensus, so it also fails on a member that is cut off from the
//! others. HTTP/2 pings are no alternative: etcd closes connections that ping more often than every 5 s
//! (`--grpc-keepalive-min-time`).

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions, Error, KvClient};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::event_sender::EventSender;
use super::keys::Keys;
use super::place::EtcdPlace;

/// How long an endpoint may take to answer a probe.
const PROBE_TIME_MAX: Duration = Duration::from_millis(1_400);
/// Interval between probes.
const PROBE_SPAN: Duration = Duration::from_millis(500);
/// A silent endpoint is abandoned within 2 s.
const _: () = assert!(PROBE_TIME_MAX.as_millis() + PROBE_SPAN.as_millis() < 2_000);
/// How long a request may take. Longer than a probe, because requests may be slow on a slow disk or network
/// while probes are still answered; etcd itself gives up after 7 s.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(8);
/// Pause after all endpoints have been tried.
const REST_SPAN: Duration = Duration::from_millis(200);
/// Longest answer that is accepted, in bytes.
pub(super) const ANSWER_SIZE_MAX: usize = 16 << 20;

/// Why etcd did not carry out a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Refusal {
    /// The link was abandoned: the request may or may not have been carried out, or may be carried out
    /// later.
    Gone,
    /// The lease does not exist.
    LeaseNotFound,
    /// The revision is compacted.
    Compacted,
    /// The revision does not exist yet.
    FutureRevision,
    /// The answer is longer than [`ANSWER_SIZE_MAX`].
    AnswerTooLong,
    /// etcd accepts no writes; holds etcd's message.
    NoSpace(String),
    /// The request is larger than etcd's settings allow; holds etcd's message.
    TooLarge(String),
}

impl Refusal {
    /// Classifies an error. Returns `None` if it is a failure of the endpoint, not an answer from etcd.
    fn of(error: &Error) -> Option<Refusal> {
        let status = match error {
            Error::GRpcStatus(status) => status,
            Error::LeaseKeepAliveError(text) if text == "lease not found" => {
                return Some(Refusal::LeaseNotFound);
            }
            _ => return None,
        };
        let message = status.message();
        let says = |text: &str| message.contains(text);
        if says("requested lease not found") {
            Some(Refusal::LeaseNotFound)
        } else if says("required revision has been compacted") {
            Some(Refusal::Compacted)
        } else if says("required revision is a future revision") {
            Some(Refusal::FutureRevision)
        } else if says("decoded message length too large") {
            Some(Refusal::AnswerTooLong)
        } else if says("database space exceeded") {
            Some(Refusal::NoSpace(message.to_string()))
        } else if says("request is too large") || says("too many operations") {
            Some(Refusal::TooLarge(message.to_string()))
        } else {
            None
        }
    }
}

/// A connection to one endpoint.
pub(super) struct Link {
    client: Client,
    /// Why the link was abandoned; `None` until then.
    left: watch::Sender<Option<String>>,
}

impl Link {
    async fn open(endpoint: &str) -> Result<Link, Error> {
        let options =
            ConnectOptions::new().with_require_leader(true).with_connect_timeout(PROBE_TIME_MAX);
        let client = Client::connect([endpoint], Some(options)).await?;
        Ok(Link { client, left: watch::channel(None).0 })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn kv(&self) -> KvClient {
        self.client.kv_client().max_decoding_message_size(ANSWER_SIZE_MAX)
    }

    /// Abandons the link: requests on it end with `Gone`, and the next endpoint is tried.
    pub(super) fn leave(&self, why: String) {
        self.left.send_if_modified(|left| {
            let is_first = left.is_none();
            left.get_or_insert(why);
            is_first
        });
    }

    fn has_left(&self) -> bool {
        self.left.borrow().is_some()
    }

    /// Waits until the link is abandoned; returns the reason.
    pub(super) async fn left(&self) -> String {
        let mut left = self.left.subscribe();
        let why = left.wait_for(Option::is_some).await.expect("this link holds the sender");
        why.clone().expect("just seen")
    }

    /// Waits for the answer to a call. A failure of the endpoint abandons the link.
    pub(super) async fn ask<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Refusal> {
        self.ask_within(REQUEST_TIME_MAX, call).await
    }

    async fn ask_within<T>(
        &self,
        time_max: Duration,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Refusal> {
        let answer = tokio::select! {
            biased;
            answer = timeout(time_max, call) => answer,
            _ = self.left() => return Err(Refusal::Gone),
        };
        let why = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => match Refusal::of(&error) {
                Some(refusal) => return Err(refusal),
                None => text_of(&error),
            },
            Err(_) => format!("no answer within {} ms", time_max.as_millis()),
        };
        self.leave(why);
        Err(Refusal::Gone)
    }

    /// Reads through etcd's consensus. Returns the id of the etcd cluster, or `None` if the peer is not
    /// etcd.
    async fn probe(&self, keys: &Keys) -> Result<Option<u64>, Refusal> {
        let key = keys.outer("");
        let answer = self.ask_within(PROBE_TIME_MAX, self.kv().get(key, None)).await?;
        Ok(answer.header().map(etcd_client::ResponseHeader::cluster_id))
    }
}

/// Returns the innermost message of an error.
pub(super) fn text_of(error: &Error) -> String {
    let Error::GRpcStatus(status) = error else { return error.to_string() };
    let mut source = std::error::Error::source(status);
    let mut text = status.message().to_string();
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

type Publish = watch::Sender<Option<Rc<Link>>>;

/// Gives tasks access to the link in use.
pub(super) struct Links(watch::Receiver<Option<Rc<Link>>>);

/// Creates both ends of the channel that publishes the link.
pub(super) fn links() -> (Publish, Links) {
    let (publish, links) = watch::channel(None);
    (publish, Links(links))
}

impl Links {
    /// Waits until a link is in use.
    pub(super) async fn next(&self) -> Rc<Link> {
        let is_there = |link: &Option<Rc<Link>>| link.as_ref().is_some_and(|link| !link.has_left());
        let mut links = self.0.clone();
        let found = links.wait_for(is_there).await.expect("the keeper lives as long as its tasks");
        found.clone().expect("just seen")
    }

    /// Waits for a link, at most [`PROBE_TIME_MAX`].
    pub(super) async fn soon(&self) -> Option<Rc<Link>> {
        timeout(PROBE_TIME_MAX, self.next()).await.ok()
    }
}

/// The id of the etcd cluster that answered first; `None` until then.
pub(super) type FirstCluster = Rc<Cell<Option<u64>>>;

/// Connects to an endpoint and probes it. An error is a human-readable message.
pub(super) async fn meet(
    endpoint: &str,
    keys: &Keys,
    cluster: &FirstCluster,
) -> Result<Link, String> {
    let link = match timeout(PROBE_TIME_MAX, Link::open(endpoint)).await {
        Ok(Ok(link)) => link,
        Ok(Err(error)) => return Err(text_of(&error)),
        Err(_) => return Err("no connection".to_string()),
    };
    match link.probe(keys).await {
        Ok(None) => Err("this is not etcd".to_string()),
        Ok(Some(found)) => {
            let first = cluster.get().unwrap_or(found);
            cluster.set(Some(first));
            let is_ours = found == first;
            let foreign =
                || "this endpoint belongs to a different etcd cluster than the others".to_string();
            is_ours.then_some(link).ok_or_else(foreign)
        }
        Err(Refusal::Gone) => Err(link.left().await),
        Err(refusal) => Err(format!("this endpoint refused a read: {refusal:?}")),
    }
}

/// Publishes a link, and a new one whenever the current link is abandoned. Never returns.
pub(super) async fn keep(
    place: Rc<EtcdPlace>,
    keys: Keys,
    cluster: FirstCluster,
    publish: Publish,
    events: Rc<EventSender>,
) {
    let mut keeper = Keeper { keys, publish, events, cluster, failures: BTreeMap::new() };
    loop {
        for endpoint in place.endpoints() {
            let why = keeper.use_endpoint(endpoint).await;
            keeper.failures.insert(endpoint.clone(), why);
            if keeper.failures.len() == place.endpoints().len() {
                keeper.events.report_condition(Some(keeper.trouble()));
            }
        }
        sleep(REST_SPAN).await;
    }
}

struct Keeper {
    keys: Keys,
    publish: Publish,
    events: Rc<EventSender>,
    cluster: FirstCluster,
    /// The latest failure of each endpoint that was tried since the last working link.
    failures: BTreeMap<String, String>,
}

impl Keeper {
    /// Uses an endpoint as long as it answers; returns why it did not answer, or stopped answering.
    async fn use_endpoint(&mut self, endpoint: &str) -> String {
        let link = match meet(endpoint, &self.keys, &self.cluster).await {
            Ok(link) => Rc::new(link),
            Err(why) => return why,
        };
        self.failures.clear();
        self.events.report_condition(None);
        self.publish.send_replace(Some(link.clone()));
        while timeout(PROBE_SPAN, link.left()).await.is_err() {
            // A failed probe abandons the link.
            let _ = link.probe(&self.keys).await;
        }
        self.publish.send_replace(None);
        link.left().await
    }

    fn trouble(&self) -> String {
        let failures = self.failures.iter().map(|(endpoint, why)| format!("{endpoint} ({why})"));
        let failures: Vec<String> = failures.collect();
        format!(
            "etcd cannot be reached at {}: start it, or correct `state` in cluster.toml",
            failures.join(", ")
        )
    }
}
