//! One watch: a stream from etcd that is reopened after it breaks.
//!
//! Invariants
//!   1. Every revision before `next` has been reported; `next` and later revisions have not.
//!   2. A revision is reported only once it is complete: etcd sends a large revision in fragments.

use std::rc::Rc;

use cluster::state::{KeyValue, StateEvent, StateRevision, WatchId};
use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};

use super::context::Context;
use super::keys::{number, revision};
use super::link::{ANSWER_SIZE_MAX, Link, Refusal, text_of};

/// Reports the changes to keys with this prefix until the task is aborted or the watch is lost.
pub(super) async fn follow(
    context: Rc<Context>,
    watch: WatchId,
    prefix: String,
    from: StateRevision,
) {
    let next = from.max(StateRevision::ZERO.next());
    let mut follower = Follower { context, watch, prefix, next, gathered: Vec::new() };
    loop {
        let link = follower.context.links.next().await;
        let ended = tokio::select! {
            ended = follower.read(&link) => ended,
            _ = link.left() => continue,
        };
        match ended {
            Ended::Lost { compacted } => {
                follower.context.events.send(StateEvent::WatchLost { watch, compacted });
                return;
            }
            Ended::Broken(why) => link.leave(why),
        }
    }
}

/// The reason why a stream ended.
enum Ended {
    Lost { compacted: StateRevision },
    Broken(String),
}

type Change = (String, Option<KeyValue>);

struct Follower {
    context: Rc<Context>,
    watch: WatchId,
    prefix: String,
    /// The first revision that is not reported yet.
    next: StateRevision,
    /// Received revisions that are not reported yet; the last one may be incomplete.
    gathered: Vec<(StateRevision, Vec<Change>)>,
}

impl Follower {
    async fn read(&mut self, link: &Link) -> Ended {
        self.gathered.clear();
        let mut stream = match self.open(link).await {
            Ok(stream) => stream,
            Err(refusal) => return Ended::Broken(format!("etcd refused a watch: {refusal:?}")),
        };
        loop {
            let message = match stream.message().await {
                Ok(Some(message)) => message,
                Ok(None) => return Ended::Broken("etcd ended a watch".to_string()),
                Err(error) => return Ended::Broken(text_of(&error)),
            };
            if message.compact_revision() > 0 {
                return Ended::Lost { compacted: revision(message.compact_revision()) };
            }
            if message.canceled() {
                let why = message.cancel_reason();
                return Ended::Broken(format!("etcd canceled a watch: {why}"));
            }
            if !self.gather(&message) {
                return Ended::Broken("etcd sent watch events out of order".to_string());
            }
            self.tell(message.0.fragment);
        }
    }

    /// Opens the stream one revision early. Reason: etcd accepts a watch that starts at the last compacted
    /// revision, although it has dropped some changes of that revision.
    async fn open(&self, link: &Link) -> Result<WatchStream, Refusal> {
        let start = number(self.next).saturating_sub(1).max(1);
        let (begin, end) = self.context.keys.range(&self.prefix);
        let options =
            WatchOptions::new().with_range(end).with_start_revision(start).with_fragment();
        let client = link.client().watch_client();
        let mut client = client.max_decoding_message_size(ANSWER_SIZE_MAX);
        link.ask(client.watch(begin, Some(options))).await
    }

    /// Collects the changes of a message. Returns `false` if they are out of order.
    fn gather(&mut self, message: &WatchResponse) -> bool {
        for event in message.events() {
            let Some(found) = event.kv() else { continue };
            let revision = revision(found.mod_revision());
            let Some(key) = self.context.keys.inner(found.key()) else { continue };
            if revision < self.next {
                continue;
            }
            let value = match event.event_type() {
                EventType::Put => self.context.keys.entry(found),
                EventType::Delete => None,
            };
            match self.gathered.last_mut() {
                Some((last, changes)) if *last == revision => changes.push((key, value)),
                Some((last, _)) if *last > revision => return false,
                _ => self.gathered.push((revision, vec![(key, value)])),
            }
        }
        true
    }

    /// Reports complete revisions.
    fn tell(&mut self, more_follows: bool) {
        let complete = self.gathered.len() - usize::from(more_follows).min(self.gathered.len());
        for (revision, changes) in self.gathered.drain(..complete) {
            assert!(self.next <= revision);
            self.next = revision.next();
            let event = StateEvent::Watched { watch: self.watch, revision, changes };
            self.context.events.send(event);
        }
    }
}
