//! Housekeeping: logs are cut, and tombstones that they name go, and so do repeats of sessions that are over, as
//! batches of their own. `docs/internals/objects.md`, rules 41, 45 and 46.
//!
//! ```text
//!   log of a shard up to the floor ─▶ tombstones that it names ─▶ turn of their objects: are they still there?
//!        ▲                                                                             │
//!        └── next part, next shard ◀── batch: log cut, reach raised, tombstones gone ◀─┤
//!                   │                                                                  │
//!                   └─▶ repeats of a shard ─▶ those of sessions that are over ─────────┘
//! ```
//!
//! Invariants
//!   1. A log is cut only up to a version that all members have that may ever need it, or the PG has so many
//!      versions that who lacks them is listed; and only together with its reach.
//!   2. What cuts logs and changes nothing else has no log record: else cleaning would never end.
//!   3. One batch of housekeeping is in flight at a time.
//!   4. Repeats of a session go when it is over, and none of its operations is open here: whoever leads refuses what
//!      it sends, now and in each later epoch.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ::objects::keys::{log_range, repeats_range};
use ::objects::queue::{self, TurnId};
use ::objects::{Head, HeadContent, Key, Kind, LogKey, Name, Shard, Touched};
use base::planted::{self, Bug};
use base::{Epoch, SessionId, SessionRange, Version, range_of_session};
use blockstore::{Answer, StoreError};
use format::engine::{Answer as Found, Change, Query, Records};

use super::Objects;
use super::fill::name_of;
use super::log::reach_of;
use super::page::{Footprint, removal_of};
use super::replicate::{Gated, Planned};
use crate::store_calls::Call;
use crate::{Action, Pg, Serving};

/// Logs are cut when so many are there, or a tombstone, and nothing was changed for a while.
const IDLE_COUNT: usize = 16;
/// The PG was idle if nothing was changed between so many calls of [`Pg::raise_floor`].
const IDLE_CALLS: u32 = 3;
/// The most log records of one batch, and their size in bytes.
const CUT_COUNT_MAX: usize = 1024;
const CUT_SIZE_MAX: usize = 64 << 10;
/// The most repeats that are read at once, and their size in bytes.
const REPEAT_COUNT_MAX: usize = 256;
const REPEAT_SIZE_MAX: usize = 64 << 10;
/// The most heads that are read at once.
const HEADS_AT_ONCE: usize = 64;

/// Housekeeping of an epoch, at its primary.
pub(crate) struct Cleaning {
    /// Number of log records since the logs were cut last. What earlier epochs left is not counted.
    log_count: usize,
    has_tombstone: bool,
    /// The newest version, as last seen, and how often it was still the newest.
    newest: Version,
    idle_count: u32,
    /// The logs are cut up to this version, and tombstones go up to this one.
    upto: Version,
    floor: Version,
    /// Whether nothing was cut in this epoch yet.
    is_first: bool,
    /// Sessions that are over, and whose repeats were deleted, or are being deleted.
    swept: Arc<[SessionRange]>,
    /// What is still to be done.
    work: VecDeque<Work>,
    stage: Stage,
}

/// What is to be done in a shard.
enum Work {
    /// Its log is to be cut.
    Log(Shard),
    /// Repeats from this key on are to be looked at.
    Repeats(Shard, Vec<u8>),
}

/// Top to bottom is the order in time.
enum Stage {
    Idle,
    /// The log of a shard is being read.
    Log(Shard),
    /// Repeats of a shard are being read.
    Repeats(Shard),
    /// Objects whose tombstones may go wait for their turn. The number is that in the queue.
    Queued(u64, Cut),
    /// They have it, and their heads are being read.
    Heads(TurnId, Cut),
    /// The batch waits at the gate, or is in flight. It leaves this to do in its shard.
    Batch(Option<Work>),
}

/// A part of the log of a shard that goes.
struct Cut {
    shard: Shard,
    upto: Version,
    /// Whether the log has more that goes.
    has_more: bool,
    /// Heads that were tombstones, by their keys, and those of them that are being read.
    heads: BTreeSet<Vec<u8>>,
    asked: Vec<Vec<u8>>,
    /// What changes beside the log.
    deletions: Vec<Change>,
}

impl Default for Cleaning {
    fn default() -> Cleaning {
        Cleaning {
            log_count: IDLE_COUNT,
            has_tombstone: false,
            newest: Version::ZERO,
            idle_count: 0,
            upto: Version::ZERO,
            floor: Version::ZERO,
            is_first: true,
            swept: Arc::default(),
            work: VecDeque::new(),
            stage: Stage::Idle,
        }
    }
}

impl Cleaning {
    /// Notes what a batch touches.
    pub fn note<'a>(&mut self, touched: impl Iterator<Item = &'a Touched>) {
        for touched in touched {
            self.log_count += 1;
            self.has_tombstone |= touched.keys.values().any(|is_tombstone| *is_tombstone);
        }
    }

    /// Whether this is the number of housekeeping in the queue.
    pub fn waits_as(&self, number: u64) -> bool {
        matches!(self.stage, Stage::Queued(queued, _) if queued == number)
    }

    /// Whether it is prepared on what this OSD has: it has read heads, or waits at the gate.
    pub fn is_prepared(&self) -> bool {
        matches!(self.stage, Stage::Heads(..) | Stage::Batch(_))
    }

    fn is_due(&self, count: usize) -> bool {
        let is_idle = self.idle_count >= IDLE_CALLS;
        self.log_count >= count || is_idle && (self.log_count >= IDLE_COUNT || self.has_tombstone)
    }
}

impl Cut {
    /// Takes the part of a log that was read.
    fn of(shard: Shard, upto: Version, records: &Records, more: bool, pg: &Pg) -> Option<Cut> {
        let (pool, block_size) = (pg.shape.pg.pool, pg.shape.block_size);
        let mut cut = Cut {
            shard,
            upto,
            has_more: more,
            heads: BTreeSet::new(),
            asked: Vec::new(),
            deletions: Vec::new(),
        };
        let mut last = None;
        for (key, value) in records.iter() {
            let Some(Key { kind: Kind::Log(LogKey { version, .. }), .. }) = Key::decode(key) else {
                return None;
            };
            let touched = Touched::decode(value, pool, block_size)?;
            last = Some(version);
            let tombstones = touched.keys.into_iter().filter(|(_, is_tombstone)| *is_tombstone);
            cut.heads.extend(tombstones.map(|(key, _)| key));
        }
        if more {
            cut.upto = last?;
        }
        Some(cut)
    }

    fn names(&self) -> Option<BTreeSet<Name>> {
        self.heads.iter().map(|key| name_of(key)).collect()
    }

    /// Returns the changes of the log.
    fn log_changes(&self) -> Vec<Change> {
        let (start, _) = log_range(self.shard, Version::ZERO);
        let (end, _) = log_range(self.shard, self.upto);
        let mut changes = vec![Change::DeleteRange { start, end }];
        if !planted::on(Bug::LogCutWithoutReach) {
            changes.extend(reach_of(self.shard, self.upto));
        }
        changes
    }
}

impl Pg {
    /// As primary: begins housekeeping if it is due. Called periodically.
    pub(crate) fn clean_if_due(&mut self, actions: &mut Vec<Action>) {
        if self.serving != Serving::Active || self.shape.objects.is_none() {
            return;
        }
        let newest = self.versions.newest();
        let mark = self.mark();
        let (floor, capped) = (self.local_state.floor().min(mark), self.capped(newest).min(mark));
        let count = self.shape.limits.log_count_due;
        let cleaning = &mut self.objects.cleaning;
        cleaning.idle_count = if cleaning.newest == newest { cleaning.idle_count + 1 } else { 0 };
        cleaning.newest = newest;
        if !matches!(cleaning.stage, Stage::Idle) {
            return;
        }
        let upto = floor.max(capped);
        if (cleaning.is_due(count) || capped > floor) && upto > cleaning.upto {
            if newest <= upto {
                (cleaning.log_count, cleaning.has_tombstone) = (0, false);
            }
            cleaning.log_count = cleaning.log_count.min(IDLE_COUNT);
            (cleaning.upto, cleaning.floor) = (upto, floor);
            let logs = self.shard_list().map(Work::Log);
            self.objects.cleaning.work.extend(logs);
        }
        let Objects { sessions, cleaning, .. } = &mut self.objects;
        if cleaning.swept != *sessions.over() && !sessions.has_open_over() {
            cleaning.swept = sessions.over().clone();
            let repeats =
                self.shard_list().map(|shard| Work::Repeats(shard, repeats_range(shard).0));
            self.objects.cleaning.work.extend(repeats);
        }
        self.clean_on(actions);
    }

    /// Returns the version up to which logs go although members may need them: there are too many versions
    /// above the floor.
    fn capped(&self, newest: Version) -> Version {
        let (floor, versions_max) = (self.local_state.floor(), self.shape.limits.log_versions_max);
        if newest.counter - floor.counter.min(newest.counter) <= versions_max {
            return Version::ZERO;
        }
        // Steps, so that not each new version cuts again.
        let half = versions_max / 2;
        let counter = (newest.counter / half - 1) * half;
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let before = lead.history.iter().rev().find(|past| past.adopted.counter < counter);
        // Of what the history has forgotten, nobody knows the epochs.
        let epoch = before.map_or(Epoch::ZERO, |past| past.epoch);
        if epoch == Epoch::ZERO { Version::ZERO } else { Version { epoch, counter } }
    }

    /// Continues with the next part of a log, or of the repeats of a shard.
    fn clean_on(&mut self, actions: &mut Vec<Action>) {
        let cleaning = &mut self.objects.cleaning;
        let query = match cleaning.work.pop_front() {
            None => {
                cleaning.stage = Stage::Idle;
                // The logs were cut with the rest, unless they were not due.
                cleaning.is_first &= cleaning.upto == Version::ZERO;
                return;
            }
            Some(Work::Log(shard)) => {
                cleaning.stage = Stage::Log(shard);
                let (start, _) = log_range(shard, Version::ZERO);
                let end = Some(log_range(shard, cleaning.upto).0);
                Query::Scan { start, end, count_max: CUT_COUNT_MAX, size_max: CUT_SIZE_MAX }
            }
            Some(Work::Repeats(shard, start)) => {
                cleaning.stage = Stage::Repeats(shard);
                let end = Some(repeats_range(shard).1);
                Query::Scan { start, end, count_max: REPEAT_COUNT_MAX, size_max: REPEAT_SIZE_MAX }
            }
        };
        self.read_records(Call::CleaningRecords, vec![query], actions);
    }

    /// Handles the store's answer to a request of housekeeping.
    pub(crate) fn on_cleaning_records(
        &mut self,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let answers = match result {
            Ok(Answer::Records { answers, .. }) => answers,
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(_) if matches!(self.objects.cleaning.stage, Stage::Repeats(_)) => {
                return self.clean_on(actions);
            }
            Err(_) => return self.give_up_cleaning(actions),
        };
        match std::mem::replace(&mut self.objects.cleaning.stage, Stage::Idle) {
            Stage::Repeats(shard) => {
                let (records, more) = scanned(&answers);
                match deletions_of(shard, records, &self.objects.cleaning.swept) {
                    Some((deletions, behind)) => {
                        let left = behind.filter(|_| more).map(|next| Work::Repeats(shard, next));
                        self.delete_repeats(shard, deletions, left, actions);
                    }
                    // What cannot be read stays, until the next epoch or fence.
                    None => self.clean_on(actions),
                }
            }
            Stage::Log(shard) => {
                let (records, more) = scanned(&answers);
                // Other members may have records that this one, which was filled, does not have.
                if records.is_empty() && !self.objects.cleaning.is_first {
                    return self.clean_on(actions);
                }
                let upto = self.objects.cleaning.upto;
                // What cannot be read stays.
                match Cut::of(shard, upto, records, more, self) {
                    Some(cut) => self.begin_cut(cut, actions),
                    None => self.give_up_cleaning(actions),
                }
            }
            Stage::Heads(turn, mut cut) => {
                let asked = std::mem::take(&mut cut.asked);
                let sharding = self.pool_shape().sharding;
                for (key, answer) in asked.into_iter().zip(answers) {
                    let Found::Value(value) = answer else {
                        unreachable!("keys have values as answers")
                    };
                    let head = value.as_deref().and_then(Head::decode);
                    let floor = self.objects.cleaning.floor;
                    let is_over = |head: Head| {
                        head.content == HeadContent::Tombstone && head.version <= floor
                    };
                    if head.is_some_and(is_over) {
                        // A learner may have the object still.
                        let name = name_of(&key).expect("it was looked at");
                        cut.deletions.extend(removal_of(&name, sharding));
                    }
                }
                self.look_at_heads(turn, cut, actions);
            }
            _ => unreachable!("nothing was asked for"),
        }
    }

    fn begin_cut(&mut self, cut: Cut, actions: &mut Vec<Action>) {
        let Some(names) = cut.names() else { return self.give_up_cleaning(actions) };
        if names.is_empty() {
            return self.gate_cut(None, cut, actions);
        }
        let number = self.objects.next_number();
        self.objects.cleaning.stage = Stage::Queued(number, cut);
        // No turn with others, and none of its objects beside it.
        if let Some(turn) = self.objects.queue.add(number, queue::Footprint::Read(names)) {
            self.begin_cleaning_turn(turn.id, actions);
        }
    }

    /// Goes on: no change of the objects is in flight, and none begins.
    pub(super) fn begin_cleaning_turn(&mut self, turn: TurnId, actions: &mut Vec<Action>) {
        match std::mem::replace(&mut self.objects.cleaning.stage, Stage::Idle) {
            Stage::Queued(_, cut) => self.look_at_heads(turn, cut, actions),
            _ => unreachable!("it waits for its turn"),
        }
    }

    /// Reads the heads that were tombstones, then gives the batch to the gate.
    fn look_at_heads(&mut self, turn: TurnId, mut cut: Cut, actions: &mut Vec<Action>) {
        if cut.heads.is_empty() {
            return self.gate_cut(Some(turn), cut, actions);
        }
        let next = std::iter::from_fn(|| cut.heads.pop_first());
        cut.asked = next.take(HEADS_AT_ONCE).collect();
        let queries = cut.asked.iter().map(|key| Query::Get { key: key.clone() }).collect();
        self.objects.cleaning.stage = Stage::Heads(turn, cut);
        self.read_records(Call::CleaningRecords, queries, actions);
    }

    fn gate_cut(&mut self, turn: Option<TurnId>, mut cut: Cut, actions: &mut Vec<Action>) {
        let records = std::mem::take(&mut cut.deletions);
        let keys = records.iter().filter_map(|change| match change {
            Change::Delete { key } => Some(key),
            _ => None,
        });
        let hashes = keys.filter_map(|key| name_of(key)).map(|name| self.hash_of(&name)).collect();
        let footprint = Footprint { hashes, ..Footprint::default() };
        let planned = Planned::Cleaning { records, log: cut.log_changes() };
        self.objects.cleaning.stage = Stage::Batch(cut.has_more.then_some(Work::Log(cut.shard)));
        self.objects.gate.push_back(Gated { turn, planned, done: Vec::new(), footprint });
        self.pump_objects(actions);
    }

    /// Gives the batch that deletes repeats to the gate, if there are any.
    fn delete_repeats(
        &mut self,
        shard: Shard,
        records: Vec<Change>,
        left: Option<Work>,
        actions: &mut Vec<Action>,
    ) {
        if records.is_empty() {
            self.objects.cleaning.work.extend(left);
            return self.clean_on(actions);
        }
        self.objects.cleaning.stage = Stage::Batch(left);
        let footprint = Footprint { repeats: [shard].into(), ..Footprint::default() };
        let planned = Planned::Cleaning { records, log: Vec::new() };
        self.objects.gate.push_back(Gated { turn: None, planned, done: Vec::new(), footprint });
        self.pump_objects(actions);
    }

    /// Goes on when the batch has ended.
    pub(super) fn on_cleaned(&mut self, actions: &mut Vec<Action>) {
        let cleaning = &mut self.objects.cleaning;
        let Stage::Batch(left) = std::mem::replace(&mut cleaning.stage, Stage::Idle) else {
            unreachable!("its batch was in flight")
        };
        left.into_iter().for_each(|left| cleaning.work.push_front(left));
        if self.serving == Serving::Active {
            self.clean_on(actions);
        }
    }

    /// Something cannot be read: the logs stay until the next time, and the rest goes on.
    fn give_up_cleaning(&mut self, actions: &mut Vec<Action>) {
        let stage = std::mem::replace(&mut self.objects.cleaning.stage, Stage::Idle);
        let cleaning = &mut self.objects.cleaning;
        cleaning.work.retain(|work| matches!(work, Work::Repeats(..)));
        (cleaning.upto, cleaning.idle_count) = (Version::ZERO, 0);
        cleaning.log_count = cleaning.log_count.max(IDLE_COUNT);
        if let Stage::Heads(turn, _) = stage {
            self.end_turn(turn, actions);
            self.pump_objects(actions);
        }
    }
}

/// Returns what a scan has found, and whether there is more.
fn scanned(answers: &[Found]) -> (&Records, bool) {
    match answers.first() {
        Some(Found::Records { records, more }) => (records, *more),
        _ => unreachable!("a scan has records as its answer"),
    }
}

/// Returns the deletions of those of these repeats whose sessions are over, and the key behind all that were
/// looked at, or are deleted. `None`: something else lies among them.
fn deletions_of(
    shard: Shard,
    repeats: &Records,
    over: &[SessionRange],
) -> Option<(Vec<Change>, Option<Vec<u8>>)> {
    let first_of = |session| Key { shard, kind: Kind::Repeat { session, number: 0 } }.encode();
    let (mut deletions, mut behind) = (Vec::new(), None);
    for (key, _) in repeats.iter() {
        if behind.as_deref().is_some_and(|behind| key < behind) {
            // It lies in the range that is deleted already.
            continue;
        }
        let Some(Key { kind: Kind::Repeat { session, .. }, .. }) = Key::decode(key) else {
            return None;
        };
        behind = match range_of_session(over, session) {
            Some((_, last)) => {
                let end = first_of(SessionId::new(last.get().saturating_add(1)));
                let start = first_of(session);
                deletions.push(Change::DeleteRange { start, end: end.clone() });
                Some(end)
            }
            None => Some([key, &[0]].concat()),
        };
    }
    Some((deletions, behind))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(session: u64, number: u64) -> Vec<u8> {
        let session = SessionId::new(session);
        Key { shard: Shard::new(3), kind: Kind::Repeat { session, number } }.encode()
    }

    #[test]
    fn repeats_go_by_sessions_and_others_are_passed() {
        let over = [(2, 4), (6, 6), (9, u64::MAX)];
        let over = over.map(|(first, last)| (SessionId::new(first), SessionId::new(last)));
        let deletions = |keys: &[(u64, u64)]| {
            let mut records = Records::default();
            keys.iter().for_each(|(session, number)| records.push(&key(*session, *number), b"x"));
            deletions_of(Shard::new(3), &records, &over).expect("they are repeats")
        };
        let range = |first, end| Change::DeleteRange { start: key(first, 0), end: key(end, 0) };
        assert_eq!(deletions(&[]), (vec![], None));
        assert_eq!(deletions(&[(1, 7), (5, 8)]), (vec![], Some([&key(5, 8)[..], &[0]].concat())));
        // What lies between two that are deleted goes with them.
        let keys = [(1, 1), (3, 1), (3, 9), (4, 1), (5, 1), (6, 2), (6, 3), (7, 1), (8, 1)];
        let (changes, behind) = deletions(&keys);
        assert_eq!(changes, [range(3, 5), range(6, 7)]);
        assert_eq!(behind, Some([&key(8, 1)[..], &[0]].concat()));
        assert_eq!(deletions(&[(2, 1), (2, 2)]), (vec![range(2, 5)], Some(key(5, 0))));
        assert_eq!(deletions(&[(10, 1)]), (vec![range(10, u64::MAX)], Some(key(u64::MAX, 0))));
        let mut wrong = Records::default();
        wrong.push(b"no repeat", b"x");
        assert_eq!(deletions_of(Shard::new(3), &wrong, &over), None);
    }
}
