//! The state store in etcd v3, for clusters with several monitors: one connection, on its own thread.
//!
//! ```text
//!   reactor's thread                     thread "etcd"
//!   apply ── effect ──▶ channel ──▶ a task for each request and each watch ──▶ the link: one
//!   poll  ◀─ events ─── channel ◀── event, then wake                           endpoint at a time
//! ```
//!
//! Invariants
//!   1. A transaction is sent at most once. If its answer is lost, its outcome is `Unknown`.
//!   2. A watch reports complete revisions, each once: a broken stream is reopened after the last reported
//!      revision.
//!   3. Every endpoint in use belongs to the same etcd cluster and has a leader. The other endpoints are
//!      checked periodically, and reported if they do not answer.
//!
//! `docs/internals/state.md` says how etcd must be set up and how keys are stored in it.

mod context;
mod event_sender;
mod keys;
mod link;
mod place;
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
use context::Context;
use event_sender::EventSender;
use keys::Keys;

pub use keys::PREFIX_SIZE_MAX;
pub use place::EtcdPlace;

/// A state store in etcd.
pub struct EtcdState {
    /// `None` once the thread must end.
    effects: Option<UnboundedSender<StateEffect>>,
    events: Receiver<StateEvent>,
    watches: BTreeSet<WatchId>,
    has_failed: bool,
    thread: Option<JoinHandle<()>>,
}

impl EtcdState {
    /// Starts to connect. `wake` is called on another thread whenever `poll` may have events.
    ///
    /// If etcd does not answer, the thread retries until it does; a `Condition` event gives the reason.
    pub fn connect(place: EtcdPlace, wake: impl Fn() + Send + 'static) -> Result<EtcdState, Error> {
        let cannot = |error: std::io::Error| Error::new("cannot start the thread for etcd", error);
        // The single blocking thread resolves host names.
        let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        let runtime = runtime.map_err(cannot)?;
        let (effects, to_do) = tokio::sync::mpsc::unbounded_channel();
        let (sender, events) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("etcd".to_string());
        let thread =
            thread.spawn(move || run(runtime, place, to_do, sender, wake)).map_err(cannot)?;
        Ok(EtcdState {
            effects: Some(effects),
            events,
            watches: BTreeSet::new(),
            has_failed: false,
            thread: Some(thread),
        })
    }

    /// Returns whether the owner still expects this event.
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
        let effects = self.effects.as_ref().expect("only drop ends the thread");
        // If the thread has died, sending fails, and `poll` reports that.
        let _ = effects.send(effect);
    }

    fn poll(&mut self, _now: Time, events: &mut Vec<StateEvent>) {
        while !self.has_failed {
            match self.events.try_recv() {
                Ok(event) if self.is_awaited(&event) => events.push(event),
                Ok(_) => {}
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.has_failed = true;
                    let reason =
                        "the thread that talks to etcd has died, which is a bug; see the log"
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
            // If the thread panicked, the panic is already in the log.
            let _ = thread.join();
        }
    }
}

fn run(
    runtime: Runtime,
    place: EtcdPlace,
    effects: UnboundedReceiver<StateEffect>,
    sender: Sender<StateEvent>,
    wake: impl Fn() + 'static,
) {
    let events = Rc::new(EventSender::new(sender, wake));
    LocalSet::new().block_on(&runtime, serve(place, effects, events));
    // Do not wait for a name lookup that is still running.
    runtime.shutdown_background();
}

/// Starts a task for each effect, until the owner is gone.
async fn serve(
    place: EtcdPlace,
    mut effects: UnboundedReceiver<StateEffect>,
    events: Rc<EventSender>,
) {
    let (publish, links) = link::links();
    let mut tasks = JoinSet::new();
    let keys = Keys::new(place.prefix());
    let place = Rc::new(place);
    let cluster = link::FirstCluster::default();
    let survey = survey::survey(place.clone(), keys.clone(), cluster.clone(), events.clone());
    tasks.spawn_local(survey);
    tasks.spawn_local(link::keep(place, keys.clone(), cluster, publish, events.clone()));
    let context = Rc::new(Context { keys, links, events });
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
    fn a_store_whose_thread_died_has_failed() {
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
        // No event follows after `Failed`.
        events.clear();
        let request = cluster::state::StateRequest(1);
        let time_to_live = base::Duration::from_secs(1);
        state.apply(Time::ZERO, StateEffect::LeaseGrant { request, time_to_live }, &mut events);
        state.poll(Time::ZERO, &mut events);
        assert_eq!(events, []);
    }
}
