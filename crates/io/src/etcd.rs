//! The state store in etcd v3, for several monitors: one connection, on a thread of its own.
//!
//! ```text
//!   reactor's thread                     thread "etcd"
//!   apply ── effect ──▶ channel ──▶ a task for each request and each watch ──▶ the link: one
//!   poll  ◀─ events ─── channel ◀── event, then wake                           endpoint at a time
//! ```
//!
//! Invariants
//!   1. A transaction is sent at most once. Where its answer is lost, its outcome is `Unknown`.
//!   2. A watch tells whole revisions, each once: a stream that broke is opened again after the last
//!      revision that was told.
//!   3. All endpoints that are used belong to one etcd cluster, and each has a leader. The others are
//!      looked at now and then, and told of where they do not answer.
//!
//! What etcd needs and how keys lie in it: `docs/internals/state.md`.

mod keys;
mod link;
mod request;
mod survey;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;

use base::Time;
use cluster::state::{StateEffect, StateEvent, StateStore, TransactionOutcome, WatchId};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::{AbortHandle, JoinSet, LocalSet};

use crate::Error;
use keys::Keys;
use link::Links;

pub use keys::PREFIX_SIZE_MAX;

/// Where the state lies in etcd.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EtcdPlace {
    endpoints: Vec<String>,
    prefix: String,
}

impl EtcdPlace {
    /// Reads `http://HOST:PORT[,http://HOST:PORT]...[/PREFIX]`; without a prefix, `prefix` is it.
    /// An error is a sentence for people.
    pub fn parse(text: &str, prefix: &str) -> Result<EtcdPlace, Error> {
        let wrong = |why: &str| {
            Error::new(
                format!("{text:?} names no etcd"),
                format!("{why}; write http://HOST:PORT,http://HOST:PORT[/PREFIX]"),
            )
        };
        let last = text.rsplit("://").next().unwrap_or(text);
        let (urls, prefix) = match last.split_once('/') {
            Some((_, path)) => (&text[..text.len() - path.len() - 1], path.trim_matches('/')),
            None => (text, prefix),
        };
        let mut endpoints = Vec::new();
        for url in urls.split(',') {
            let Some(address) = url.strip_prefix("http://") else {
                let is_tls = url.starts_with("https://");
                return Err(wrong(if is_tls {
                    "TLS to etcd is not part of this program"
                } else {
                    "an endpoint begins with http://"
                }));
            };
            let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty());
            if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) || address.contains('/') {
                return Err(wrong("an endpoint has a host and a port"));
            }
            if endpoints.iter().any(|endpoint| endpoint == url) {
                return Err(wrong("an endpoint is named once"));
            }
            endpoints.push(url.to_string());
        }
        if prefix.is_empty() || prefix.len() > PREFIX_SIZE_MAX {
            return Err(wrong(&format!("a prefix has 1 to {PREFIX_SIZE_MAX} bytes")));
        }
        Ok(EtcdPlace { endpoints, prefix: prefix.to_string() })
    }

    /// Addresses of members of one etcd cluster.
    pub fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Every key lies below `PREFIX/`.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// A state store in etcd.
pub struct EtcdState {
    /// `None` once the thread is told to end.
    effects: Option<UnboundedSender<StateEffect>>,
    told: Receiver<StateEvent>,
    watches: BTreeSet<WatchId>,
    has_failed: bool,
    thread: Option<JoinHandle<()>>,
}

impl EtcdState {
    /// Starts to connect; `wake` is called, on another thread, whenever `poll` has news.
    ///
    /// An etcd that is not there is no error: it is tried until it is, and `Condition` says why it
    /// cannot be asked.
    pub fn connect(place: EtcdPlace, wake: impl Fn() + Send + 'static) -> Result<EtcdState, Error> {
        let cannot = |error: std::io::Error| Error::new("the thread for etcd", error);
        // Names are looked up by the one blocking thread.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let runtime = runtime.map_err(cannot)?;
        let (effects, to_do) = tokio::sync::mpsc::unbounded_channel();
        let (news, told) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("etcd".to_string());
        let thread =
            thread.spawn(move || run(runtime, place, to_do, news, wake)).map_err(cannot)?;
        Ok(EtcdState {
            effects: Some(effects),
            told,
            watches: BTreeSet::new(),
            has_failed: false,
            thread: Some(thread),
        })
    }

    /// Whether an event still concerns who asked.
    fn is_awaited(&mut self, event: &StateEvent) -> bool {
        match event {
            StateEvent::Watched { watch, .. } => self.watches.contains(watch),
            StateEvent::WatchLost { watch, .. } => self.watches.remove(watch),
            _ => true,
        }
    }
}

impl StateStore for EtcdState {
    fn apply(&mut self, _now: Time, effect: StateEffect, events: &mut Vec<StateEvent>) {
        if self.has_failed {
            return;
        }
        match &effect {
            StateEffect::Transact { request, transaction } => {
                if let Some(why) = transaction.broken_rule() {
                    let outcome = TransactionOutcome::Invalid { why };
                    events.push(StateEvent::Transacted { request: *request, outcome });
                    return;
                }
            }
            StateEffect::Watch { watch, .. } => drop(self.watches.insert(*watch)),
            StateEffect::Unwatch { watch } => drop(self.watches.remove(watch)),
            _ => {}
        }
        let effects = self.effects.as_ref().expect("the thread is told to end by drop alone");
        // A thread that has ended is noticed by `poll`.
        let _ = effects.send(effect);
    }

    fn poll(&mut self, _now: Time, events: &mut Vec<StateEvent>) {
        while !self.has_failed {
            match self.told.try_recv() {
                Ok(event) if self.is_awaited(&event) => events.push(event),
                Ok(_) => {}
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.has_failed = true;
                    let reason = "the thread that talks to etcd has ended, which is a bug; its \
                                  last words are in the log"
                        .to_string();
                    events.push(StateEvent::Failed { reason });
                }
            }
        }
    }

    fn deadline(&self) -> Option<Time> {
        None
    }
}

impl Drop for EtcdState {
    fn drop(&mut self) {
        self.effects = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Where tasks tell events.
struct Told {
    news: Sender<StateEvent>,
    wake: Box<dyn Fn()>,
    trouble: std::cell::RefCell<Option<String>>,
}

impl Told {
    fn tell(&self, event: StateEvent) {
        // The store's owner may be gone: this thread is about to end.
        let _ = self.news.send(event);
        (self.wake)();
    }

    /// Tells whether etcd can be asked, if that is news.
    fn condition(&self, trouble: Option<String>) {
        if *self.trouble.borrow() != trouble {
            *self.trouble.borrow_mut() = trouble.clone();
            self.tell(StateEvent::Condition { trouble });
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        // After a panic: who polls sees that the thread has ended.
        (self.wake)();
    }
}

/// What every task has.
struct Context {
    keys: Keys,
    links: Links,
    told: Rc<Told>,
}

fn run(
    runtime: Runtime,
    place: EtcdPlace,
    effects: UnboundedReceiver<StateEffect>,
    news: Sender<StateEvent>,
    wake: impl Fn() + 'static,
) {
    let told = Told { news, wake: Box::new(wake), trouble: None.into() };
    LocalSet::new().block_on(&runtime, serve(place, effects, Rc::new(told)));
    // A name that is being looked up is not waited for.
    runtime.shutdown_background();
}

/// Starts a task for each effect, until there is nobody who asks.
async fn serve(place: EtcdPlace, mut effects: UnboundedReceiver<StateEffect>, told: Rc<Told>) {
    let (publish, links) = link::links();
    let mut tasks = JoinSet::new();
    let keys = Keys::new(&place.prefix);
    let place = Rc::new(place);
    let cluster = link::FirstCluster::default();
    let survey = survey::survey(place.clone(), keys.clone(), cluster.clone(), told.clone());
    tasks.spawn_local(survey);
    tasks.spawn_local(link::keep(place, keys.clone(), cluster, publish, told.clone()));
    let context = Rc::new(Context { keys, links, told });
    let mut watches: BTreeMap<WatchId, AbortHandle> = BTreeMap::new();
    loop {
        tokio::select! {
            effect = effects.recv() => match effect {
                None => return,
                Some(StateEffect::Watch { watch, prefix, from }) => {
                    let task = watch::follow(context.clone(), watch, prefix, from);
                    watches.insert(watch, tasks.spawn_local(task));
                }
                Some(StateEffect::Unwatch { watch }) => {
                    if let Some(task) = watches.remove(&watch) {
                        task.abort();
                    }
                }
                Some(effect) => {
                    tasks.spawn_local(request::answer(context.clone(), effect));
                }
            },
            Some(ended) = tasks.join_next() => {
                if let Err(error) = ended && error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
                watches.retain(|_, task| !task.is_finished());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_thread_that_has_ended_is_a_failed_store() {
        let (sender, bell) = std::sync::mpsc::channel();
        let has_panicked = AtomicBool::new(false);
        let wake = move || {
            assert!(has_panicked.swap(true, Ordering::Relaxed), "a bug, for this test");
            let _ = sender.send(());
        };
        let place = EtcdPlace::parse("http://127.0.0.1:1", "x").unwrap();
        let mut state = EtcdState::connect(place, wake).unwrap();
        bell.recv_timeout(std::time::Duration::from_secs(20)).unwrap();
        let mut events = Vec::new();
        while !state.has_failed {
            state.poll(Time::ZERO, &mut events);
        }
        assert!(matches!(events.last(), Some(StateEvent::Failed { .. })), "{events:?}");
        // And nothing after it.
        events.clear();
        let request = cluster::state::StateRequest(1);
        let time_to_live = base::Duration::from_secs(1);
        state.apply(Time::ZERO, StateEffect::LeaseGrant { request, time_to_live }, &mut events);
        state.poll(Time::ZERO, &mut events);
        assert_eq!(events, []);
    }

    #[test]
    fn a_place_names_endpoints_and_a_prefix() {
        let parse = |text: &str| EtcdPlace::parse(text, "ashlar/x");
        let place = parse("http://10.0.0.1:2379,http://[::1]:2,http://host:3").unwrap();
        assert_eq!(place.endpoints(), ["http://10.0.0.1:2379", "http://[::1]:2", "http://host:3"]);
        assert_eq!(place.prefix(), "ashlar/x");
        let place = parse("http://a:1,http://b:2/clusters/east/").unwrap();
        assert_eq!(place.endpoints(), ["http://a:1", "http://b:2"]);
        assert_eq!(place.prefix(), "clusters/east");
        let long = format!("http://a:1/{}", "p".repeat(PREFIX_SIZE_MAX + 1));
        for wrong in
            ["", "a:1", "http://a", "http://a:x", "http://:1", "http://a:1,", "http://a:1/", &long]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let error = parse("http://a:1,http://b:1,http://a:1").unwrap_err();
        assert!(error.0.contains("once"), "{error}");
        let error = parse("https://a:1").unwrap_err();
        assert!(error.0.contains("TLS"), "{error}");
        let error = parse("http://a:1/b,http://c:1").unwrap_err();
        assert!(error.0.contains("host and a port"), "{error}");
    }
}
