//! Repeats: results that are kept in the store, so that an operation that is sent again is answered and not
//! executed. `docs/internals/objects.md`, rules 40 to 43.
//!
//! ```text
//!   first sending   ─▶ executed: the batch has its changes, and the repeat (session, number) ─▶ result
//!   sent again      ─▶ in its turn: is there a repeat? ── yes ─▶ its result
//!                                                      └─ no ──▶ executed
//! ```
//!
//! Invariants
//!   1. The repeat of an operation is in the batch that has its changes. An operation without changes has none:
//!      whoever sends it again finds what is there then.
//!   2. An operation is looked for in its turn: all batches of its objects have ended then.
//!   3. No number below the lowest that its session has named is executed, and only repeats below it go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::objects::{Key, Kind, Repeat, Shard, StepResult};
use base::planted::{self, Bug};
use base::{SessionId, SessionRange, Version, range_of_session};
use format::engine::Change;
use format::wire::Refusal;

/// The most mutations of a session in a PG that have not been answered.
const OPEN_MAX: usize = 256;
/// A session begins no mutation while so many that are younger than its oldest open one have repeats.
const KEPT_MAX: usize = 1024;
/// Closed repeats of a session in a shard are deleted when there are so many.
const CLOSED_MAX: usize = 64;
/// The most deletions of closed repeats in one batch: an entry has room for that many.
const SWEEPS_MAX: usize = 32;
/// Of so many sessions, those without an open mutation are forgotten.
const SESSIONS_MAX: usize = 4096;

/// Who sent a mutation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sender {
    pub session: SessionId,
    /// Names the operation in its session.
    pub number: u64,
    /// The lowest number that the session has unanswered in the PG.
    pub lowest: u64,
    /// Whether it may have been sent before.
    pub again: bool,
}

impl Sender {
    /// Returns the key of the repeat. `shard`: that of the operation's first object.
    pub fn key(&self, shard: Shard) -> Vec<u8> {
        let Sender { session, number, .. } = *self;
        Key { shard, kind: Kind::Repeat { session, number } }.encode()
    }

    /// Returns the record that keeps a result.
    pub fn repeat(&self, shard: Shard, version: Version, results: Vec<StepResult>) -> Change {
        Change::Put { key: self.key(shard), value: Repeat { version, results }.encode() }
    }
}

/// What a primary knows of the sessions of this epoch.
#[derive(Default)]
pub(super) struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    /// Sessions that are over, in order.
    over: Arc<[SessionRange]>,
}

#[derive(Default)]
struct Session {
    /// The lowest number that it has named as unanswered.
    lowest: u64,
    /// Mutations that have not been answered.
    open: BTreeSet<u64>,
    /// Repeats of this epoch that are not closed, and where they are.
    kept: BTreeMap<u64, Shard>,
    /// By shard: what is closed since the last deletion.
    closed: BTreeMap<Shard, Closed>,
}

/// Closed repeats of a session in a shard that are not deleted.
struct Closed {
    count: usize,
    /// Where the next deletion begins: at these, or where the last one ended.
    from: u64,
}

impl Sessions {
    /// Takes a mutation, unless it must not begin.
    pub fn begin(&mut self, sender: Sender) -> Result<(), Refusal> {
        let Sender { session, number, lowest, .. } = sender;
        let invalid = |why: &str| Err(Refusal::Invalid { why: why.to_owned() });
        if session == SessionId::ZERO {
            return invalid("an operation on objects needs a session");
        }
        if range_of_session(&self.over, session).is_some() {
            // Its repeats may have been deleted.
            return Err(Refusal::Fenced);
        }
        if lowest > number {
            return invalid("an operation has a number below the lowest one that is open");
        }
        if self.by_id.len() >= SESSIONS_MAX && !self.by_id.contains_key(&session) {
            self.by_id.retain(|_, session| !session.open.is_empty());
        }
        let known = self.by_id.entry(session).or_default();
        if number < known.lowest {
            return invalid("the operation was answered before: it came late");
        }
        known.close_below(lowest);
        let is_held = known.open.len() >= OPEN_MAX || known.kept.len() >= KEPT_MAX + OPEN_MAX;
        // What was sent again over the same connection was answered before; else it is still being executed.
        match is_held || !known.open.insert(number) {
            true => Err(Refusal::Busy),
            false => Ok(()),
        }
    }

    /// Notes which sessions are over.
    pub fn note_over(&mut self, over: &Arc<[SessionRange]>) {
        self.over = over.clone();
    }

    /// Returns the sessions that are over.
    pub fn over(&self) -> &Arc<[SessionRange]> {
        &self.over
    }

    /// Whether a session that is over has a mutation that has not been answered.
    pub fn has_open_over(&self) -> bool {
        let mut open = self.by_id.iter().filter(|(_, known)| !known.open.is_empty());
        open.any(|(session, _)| range_of_session(&self.over, *session).is_some())
            && !planted::on(Bug::RepeatOfOpenDeleted)
    }

    /// Notes that a mutation is answered.
    pub fn end(&mut self, sender: Sender) {
        if let Some(known) = self.by_id.get_mut(&sender.session) {
            known.open.remove(&sender.number);
        }
    }

    /// Notes that a batch has the repeat of a mutation.
    pub fn keep(&mut self, sender: Sender, shard: Shard) {
        if let Some(known) = self.by_id.get_mut(&sender.session) {
            known.kept.insert(sender.number, shard);
        }
    }

    /// Returns the deletions of closed repeats that a batch takes along, which brings repeats of these
    /// senders to these shards. Those that are left from earlier epochs go with the first one.
    pub fn sweep(&mut self, senders: impl Iterator<Item = (Sender, Shard)>) -> Vec<Change> {
        let mut changes = Vec::new();
        for (Sender { session, .. }, shard) in senders {
            let Some(known) = self.by_id.get_mut(&session) else { continue };
            let closed = known.closed.get(&shard);
            let is_due = closed.is_none_or(|closed| closed.count >= CLOSED_MAX);
            if !is_due || known.lowest <= 1 || changes.len() == SWEEPS_MAX {
                continue;
            }
            // The engine would pass all that went before once more.
            let from = closed.map_or(0, |closed| closed.from);
            known.closed.insert(shard, Closed { count: 0, from: known.lowest });
            let key = |number| Key { shard, kind: Kind::Repeat { session, number } }.encode();
            let below = match planted::on(Bug::RepeatClosedEarly) {
                true => known.lowest + OPEN_MAX as u64,
                false => known.lowest,
            };
            changes.push(Change::DeleteRange { start: key(from), end: key(below) });
        }
        changes
    }
}

impl Session {
    /// The session has answers to all mutations of the PG below this number.
    fn close_below(&mut self, lowest: u64) {
        self.lowest = self.lowest.max(lowest);
        let open = self.kept.split_off(&self.lowest);
        for (number, shard) in std::mem::replace(&mut self.kept, open) {
            if let Some(closed) = self.closed.get_mut(&shard) {
                closed.count += 1;
                // One that waited while its session named a higher number came behind the last deletion.
                closed.from = closed.from.min(number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender(number: u64, lowest: u64) -> Sender {
        Sender { session: SessionId::new(7), number, lowest, again: false }
    }

    #[test]
    fn a_session_has_a_window() {
        let mut sessions = Sessions::default();
        for number in 1..=256 {
            assert_eq!(sessions.begin(sender(number, 1)), Ok(()));
            sessions.keep(sender(number, 1), Shard::new(0));
        }
        assert_eq!(sessions.begin(sender(257, 1)), Err(Refusal::Busy));
        // All but the oldest one are answered.
        for number in 2..=1280 {
            let began = sessions.begin(sender(number, 1));
            assert_eq!(began.is_ok(), number > 256, "{number}");
            sessions.keep(sender(number, 1), Shard::new(0));
            sessions.end(sender(number, 1));
        }
        assert_eq!(sessions.begin(sender(1281, 1)), Err(Refusal::Busy));
        sessions.end(sender(1, 1));
        assert_eq!(sessions.begin(sender(1281, 1281)), Ok(()));
        assert!(matches!(sessions.begin(sender(1280, 1)), Err(Refusal::Invalid { .. })));
        assert_eq!(sessions.begin(sender(1281, 1281)), Err(Refusal::Busy), "it is open");
        let nobody = Sender { session: SessionId::ZERO, ..sender(1, 1) };
        assert!(matches!(sessions.begin(nobody), Err(Refusal::Invalid { .. })));
        assert!(matches!(sessions.begin(sender(1300, 1301)), Err(Refusal::Invalid { .. })));
    }

    #[test]
    fn closed_repeats_are_deleted_in_portions() {
        let mut sessions = Sessions::default();
        let shard = Shard::new(3);
        let mut sweeps = Vec::new();
        for number in 1..=200 {
            let sender = sender(number, number);
            sessions.begin(sender).expect("it is next");
            let changes = sessions.sweep([(sender, shard)].into_iter());
            sessions.keep(sender, shard);
            sessions.end(sender);
            sweeps.extend(changes.into_iter().map(|change| (number, change)));
        }
        let key = |number| sender(number, 0).key(shard);
        let deleted = |from, below| Change::DeleteRange { start: key(from), end: key(below) };
        let expected = [(0, 2), (2, 66), (66, 130), (130, 194)];
        let expected: Vec<_> = expected.map(|(from, below)| (below, deleted(from, below))).into();
        assert_eq!(sweeps, expected);
    }

    /// A client that breaks the rules names a higher number while others wait.
    #[test]
    fn a_repeat_that_came_late_is_deleted() {
        let mut sessions = Sessions::default();
        let shard = Shard::new(3);
        let late: Vec<Sender> = (1..=70).map(|number| sender(number, 1)).collect();
        late.iter().for_each(|sender| sessions.begin(*sender).expect("it is next"));
        let mut sweep = |number, kept: &[Sender]| {
            kept.iter().for_each(|sender| sessions.keep(*sender, shard));
            let sender = sender(number, number);
            sessions.begin(sender).expect("it is next");
            sessions.sweep([(sender, shard)].into_iter())
        };
        let deleted = |from: u64, below: u64| {
            let key = |number| sender(number, 0).key(shard);
            vec![Change::DeleteRange { start: key(from), end: key(below) }]
        };
        assert_eq!(sweep(100, &[]), deleted(0, 100));
        assert_eq!(sweep(101, &late), deleted(1, 101));
        assert_eq!(sweep(102, &[]), vec![]);
    }
}
