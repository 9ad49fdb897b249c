//! Manual edits: keys that somebody changed directly in the store, not through the monitor.
//!
//! ```text
//!   store ──Watched──▶ waits (a transaction is in flight) ──▶ CommittedState::edits ─┬▶ Job::Edit: checked
//!         ──read again, compared with committed ─────────────▶                  └▶ guarded: damaged
//! ```
//!
//! An edit of a key that people may write is checked by the rules of `state put`: it is in force at
//! once, or it is undone and listed in `status`. A key that only monitors write is *guarded*: after
//! an edit the store counts as damaged, nothing else is changed, and the operator restores the last
//! good value with `state undo`.
//!
//! Invariant: while a guarded key has an unauthorized value, nothing is written except the list of such keys
//! (`recovery`) and keys that people may write. So the next leader also knows which keys it must not trust.

use std::collections::{BTreeMap, VecDeque};

use base::{Duration, Time, TraceEvent};
use serde_json::json;

use super::committed_state::{Batch, Write, check_size};
use super::job::{Done, Job, Plan};
use super::pool::{cannot_place, check_name, check_pool};
use super::{Effect, Monitor, clipped, failure};
use crate::map::Pool;
use crate::message::Failure;
use crate::records::{Key, OsdRecord, OutBy, PoolRecord, Record, RecoveryRecord, SettingRecord};
use crate::settings::Setting;
use crate::state::{KeyValue, StateRevision, WatchId};

/// Maximum number of queued changes that the store has reported; beyond it, the whole store is read again.
const WATCHED_COUNT_MAX: usize = 10_000;
/// Maximum number of undone edits that are kept for `status`.
const UNDONE_COUNT_MAX: usize = 100;
/// How long `status` lists an undone edit, unless its key is written correctly sooner.
const UNDONE_SPAN: Duration = Duration::from_secs(24 * 3600);

/// Changes that the store reported, and what is needed to distinguish manual edits from this
/// monitor's own writes.
#[derive(Default)]
pub(super) struct Watching {
    /// The watch on all keys; it begins when this monitor becomes the leader.
    pub(super) watch: Option<WatchId>,
    /// Changes that have not been compared yet.
    waiting: VecDeque<(StateRevision, Vec<Change>)>,
    /// Revisions of this monitor's own transactions that the watch has not reported yet, in order. The
    /// watch may report a put after the key was removed again: in that case the key's record does
    /// not show who wrote it.
    ours: VecDeque<StateRevision>,
    /// The revision at which everything was last read. Watch events up to it contain nothing new.
    pub(super) read_at: StateRevision,
    pub(super) undone: UndoneEdits,
}

/// A key and its current value.
pub(super) type Change = (String, Option<KeyValue>);

/// Edits that were undone recently, for `status`.
#[derive(Default)]
pub(super) struct UndoneEdits(BTreeMap<Key, Undone>);

/// An edit that was undone.
struct Undone {
    when: Time,
    why: String,
}

impl UndoneEdits {
    /// Notes that the edit of a key was undone.
    pub(super) fn note(&mut self, when: Time, key: Key, why: String) {
        self.0.insert(key, Undone { when, why: clipped(why) });
        while self.0.len() > UNDONE_COUNT_MAX {
            let oldest = self.0.iter().min_by_key(|(_, undone)| undone.when);
            let oldest = oldest.map(|(key, _)| key.clone()).expect("it has more than none");
            self.0.remove(&oldest);
        }
    }

    /// Notes that the leader's key was edited by hand, or removed.
    pub(super) fn note_leader(&mut self, when: Time) {
        let why = protected_because(&Key::Leader).expect("it is protected");
        self.note(when, Key::Leader, why.to_string());
    }

    /// Drops an undone edit: the key has been written correctly since, so `status` no longer lists it.
    pub(super) fn forget(&mut self, key: &Key) {
        self.0.remove(key);
    }

    /// Returns the undone edits that are still listed, and why each was undone.
    pub(super) fn recent(&self, now: Time) -> impl Iterator<Item = (&Key, &str)> {
        let recent = move |(_, undone): &(&Key, &Undone)| now.since(undone.when) < UNDONE_SPAN;
        self.0.iter().filter(recent).map(|(key, undone)| (key, &undone.why[..]))
    }
}

/// Returns the reason why people may not write a key; `None` if they may.
fn protected_because(key: &Key) -> Option<&'static str> {
    match key {
        Key::Setting(_) | Key::Pool(_) | Key::Osd(_) => None,
        Key::Cluster => Some("this key identifies the cluster"),
        Key::Leader => Some("only the leading monitor writes this key"),
        Key::Monitor(_) => Some("monitors are added and removed with `ashlar mon`"),
        Key::Counter(_) => Some("an id that is issued twice would mix the data of two objects"),
        Key::PgShard(..) => Some("PG entries keep two OSDs from serving the same data"),
        Key::Fence(_) => Some("fences keep ended sessions from writing"),
        Key::Image(_) | Key::ImageName(_) => Some("volumes are changed with `ashlar volume`"),
        Key::Lock(_) => Some("a lock keeps out other writers; `ashlar volume unlock` frees it"),
        Key::Session(_) => Some("sessions begin and end with their clients"),
        Key::Stats(..) => Some("this key holds the leading monitor's sums of the OSDs' statistics"),
        Key::Change | Key::Recovery => {
            Some("this key shows whether the store was restored from a backup")
        }
        Key::Task(_) | Key::RemovedPool(_) => Some("tasks delete data: only commands start them"),
    }
}

/// Whether the store counts as damaged after a manual edit of the key.
fn is_guarded(key: &Key) -> bool {
    // The next transaction restores `change`, a lost `leader` key ends the leadership, and nothing
    // depends on statistics.
    let is_judged = matches!(key, Key::Leader | Key::Change | Key::Stats(..));
    protected_because(key).is_some() && !is_judged
}

/// The advice for guarded keys that were edited by hand.
pub(super) const EDITED_HINT: &str =
    "`ashlar state undo` writes the last good values back; until then failover waits";

/// Whether a key's value is trusted only if a monitor wrote it: the safety of data depends on it,
/// and people have no reason to write it.
pub(super) fn is_never_edited(key: &Key) -> bool {
    // The values of these keys are checked by other means, or nothing depends on them.
    let is_judged =
        matches!(key, Key::Cluster | Key::Leader | Key::Change | Key::Recovery | Key::Stats(..));
    protected_because(key).is_some() && !is_judged
}

impl Watching {
    /// Whether this monitor wrote the change at this revision, or has included it when it last read
    /// everything.
    fn is_known(&mut self, told: StateRevision) -> bool {
        while self.ours.front().is_some_and(|revision| *revision < told) {
            self.ours.pop_front();
        }
        told <= self.read_at || self.ours.front() == Some(&told)
    }
}

impl Monitor {
    pub(super) fn plan_state_put(
        &self,
        text: &str,
        value: &str,
        force: bool,
    ) -> Result<Plan, Failure> {
        let shown = clipped(text.to_string());
        let Some(key) = Key::parse(text) else {
            let hint = "only config/NAME, pool/ID and osd/ID may be written; `ashlar state ls` \
                        lists all keys";
            return Err(failure("not_found", format!("{shown} is not a known key"), hint));
        };
        if let Some(why) = protected_because(&key) {
            let hint = "only config/NAME, pool/ID and osd/ID may be written";
            return Err(failure("protected", format!("{shown} may not be written: {why}"), hint));
        }
        let record = self.judged(&key, value).map_err(|why| {
            let hint = "`ashlar state get` shows the current value: edit a copy of it";
            failure("invalid", format!("{shown}: {}", clipped(why)), hint)
        })?;
        if let Some(field) = self.new_field(&record).filter(|_| !force) {
            let field = clipped(field.to_owned());
            return Err(failure(
                "unknown_field",
                format!("{shown} has no field {field}: it would have no effect"),
                "check its spelling. To add a field of your own, which nothing reads: --force",
            ));
        }
        let mut batch = Batch::new(&self.committed);
        let answer = json!({ "key": text, "value": record.to_json() });
        batch.put(&self.committed, record);
        Ok(Plan::Write { batch, done: Some(Done::Answer(Ok(answer))) })
    }

    /// Returns a field that this version does not recognize and that the key does not have yet. Fields that
    /// are there were written by a newer version, or added on purpose.
    fn new_field<'a>(&self, record: &'a Record) -> Option<&'a str> {
        let (rest, known) = match record {
            Record::Setting(record) => {
                (&record.rest, self.committed.setting(&record.name).map(|known| &known.rest))
            }
            Record::Pool(record) => {
                (&record.rest, self.committed.pool(record.pool.id).map(|known| &known.rest))
            }
            Record::Osd(record) => {
                (&record.rest, self.committed.osd(record.info.id).map(|known| &known.rest))
            }
            _ => return None,
        };
        let is_new = |field: &&String| known.is_none_or(|known| !known.contains_key(*field));
        rest.keys().find(is_new).map(String::as_str)
    }

    /// Parses and checks a value for a key that people may write. An error explains why it cannot
    /// take effect.
    pub(super) fn judged(&self, key: &Key, text: &str) -> Result<Record, String> {
        if let Some(why) = protected_because(key) {
            return Err(why.to_string());
        }
        check_size(key, text)?;
        match Record::parse(key, text)? {
            Record::Setting(record) => self.judged_setting(record),
            Record::Pool(record) => self.judged_pool(record),
            Record::Osd(record) => self.judged_osd(record),
            _ => unreachable!("all others are protected"),
        }
    }

    fn judged_setting(&self, record: SettingRecord) -> Result<Record, String> {
        let setting = Setting::named(&record.name).ok_or("there is no such setting")?;
        setting.check(record.value)?;
        Ok(Record::Setting(record))
    }

    fn judged_pool(&self, wanted: PoolRecord) -> Result<Record, String> {
        let record = self.changed_pool(wanted)?;
        self.check_placeable(&record.pool).map_err(|error| error.message)?;
        Ok(Record::Pool(record))
    }

    /// Checks a changed pool: the name, the minimum size and the failure domain may change, and parity may be
    /// added; fields that determine where data lies may not change. Returns the record to write, provided
    /// that [`Monitor::check_placeable`] also accepts the pool.
    pub(super) fn changed_pool(&self, wanted: PoolRecord) -> Result<PoolRecord, String> {
        let known = self.committed.pool(wanted.pool.id);
        let known = known.ok_or("there is no such pool: `ashlar pool create` creates one")?;
        let mut frozen = wanted.pool.clone();
        frozen.name.clone_from(&known.pool.name);
        frozen.scheme = known.pool.scheme;
        frozen.min_size = known.pool.min_size;
        frozen.failure_domain = known.pool.failure_domain;
        if frozen != known.pool {
            let why = "the kind of a pool, its pg_count, block_size, shards and compression cannot change";
            return Err(why.to_string());
        }
        known.pool.scheme.check_change(wanted.pool.scheme)?;
        check_name("pool", &wanted.pool.name).map_err(|error| error.message)?;
        let named = self.committed.pool_named(&wanted.pool.name);
        if named.is_some_and(|other| other.pool.id != wanted.pool.id) {
            return Err(format!("there is already a pool {}", wanted.pool.name));
        }
        check_pool(&wanted.pool)?;
        let (revision, planned_for) = (known.revision.next(), known.planned_for);
        Ok(PoolRecord { revision, planned_for, ..wanted })
    }

    /// Checks that a pool's members could follow a change of its failure domain, and that new positions would
    /// get members. Requires: the pool exists.
    pub(super) fn check_placeable(&self, wanted: &Pool) -> Result<(), Failure> {
        let known = self.committed.pool(wanted.id).expect("the caller has found it");
        let (scheme, failure_domain) = (wanted.scheme, wanted.failure_domain);
        if (scheme, failure_domain) == (known.pool.scheme, known.pool.failure_domain) {
            return Ok(());
        }
        let candidates = self.candidates(failure_domain, known.pool.has_objects());
        let current = vec![Vec::new(); known.pool.pg_count as usize];
        let planned = placement::plan(&candidates, scheme.position_count(), &current);
        planned.map_err(|error| cannot_place(&error, scheme, failure_domain, candidates.len()))?;
        Ok(())
    }

    /// Checks an edited OSD record. The edit may change only whether the planner uses the OSD, the OSD's
    /// place in the tree, and fields that this version does not recognize.
    fn judged_osd(&self, wanted: OsdRecord) -> Result<Record, String> {
        let known = self.committed.osd(wanted.info.id);
        let known = known.ok_or("there is no such OSD: `ashlar osd create` creates one")?;
        let mut changed = known.clone();
        changed.set_in(wanted.info.in_cluster, OutBy::Operator);
        let out_by = changed.out_by;
        if let Some(place) = &wanted.tree {
            check_name("host", &place.host)
                .map_err(|error| format!("tree: {}; {}", error.message, error.hint))?;
        }
        changed.tree.clone_from(&wanted.tree);
        changed.rest.clone_from(&wanted.rest);
        changed.info.revision = wanted.info.revision;
        changed.out_by = wanted.out_by;
        if changed != wanted {
            let why =
                "in an OSD's record, only `in`, `tree` and fields that you added may be changed";
            return Err(why.to_string());
        }
        changed.out_by = out_by;
        changed.info.revision = self.committed.osd_revision_max() + 1;
        Ok(Record::Osd(changed))
    }

    /// Handles changes reported by the store: this monitor's own transactions, or manual edits.
    pub(super) fn on_watched(
        &mut self,
        watch: WatchId,
        revision: StateRevision,
        changes: Vec<Change>,
        effects: &mut Vec<Effect>,
    ) {
        if self.watching.watch != Some(watch) {
            return;
        }
        self.connections.tell_state_watchers(revision, &changes, effects);
        self.watching.waiting.push_back((revision, changes));
        if self.watching.waiting.len() > WATCHED_COUNT_MAX && self.is_ready() {
            self.watching.waiting.clear();
            self.read_leader(effects);
        }
    }

    /// Notes the revision of this monitor's own committed transaction.
    pub(super) fn wrote_at(&mut self, revision: StateRevision) {
        if self.watching.watch.is_some() {
            self.watching.ours.push_back(revision);
        }
    }

    /// Compares reported changes with the known records. Requires: no transaction is in flight, so that
    /// any difference is a manual edit.
    pub(super) fn compare_watched(&mut self, effects: &mut Vec<Effect>) {
        while self.is_ready() && !self.jobs.is_writing() {
            if self.watching.ours.len() > WATCHED_COUNT_MAX {
                self.watching.ours.clear();
                self.watching.waiting.clear();
                return self.read_leader(effects);
            }
            let Some((revision, changes)) = self.watching.waiting.pop_front() else { return };
            if self.watching.is_known(revision) {
                continue;
            }
            for (key, entry) in changes {
                let known = self.committed.revision_of(&key);
                let is_ours = match &entry {
                    Some(entry) => entry.revision <= known,
                    None => known == StateRevision::ZERO || known > revision,
                };
                if is_ours {
                    continue;
                }
                if Key::parse(&key) == Some(Key::Leader) {
                    // Another monitor leads, or somebody edited the key. In either case nothing is
                    // written until leadership is taken again.
                    self.read_leader(effects);
                    break;
                }
                self.take_edit(key, revision, entry.map(|entry| entry.value), effects);
            }
        }
    }

    /// Handles a manual edit of a key. If this version recognizes the key, the edit is checked before other
    /// jobs run.
    pub(super) fn take_edit(
        &mut self,
        key: String,
        revision: StateRevision,
        text: Option<String>,
        effects: &mut Vec<Effect>,
    ) {
        if self.committed.is_damaged() && !self.committed.is_edited() && Key::parse(&key).is_some()
        {
            // The edit may have repaired the store.
            return self.on_mended_by_hand();
        }
        match self.committed.note_edit(key, revision, text) {
            Some(key) if is_guarded(&key) => {
                let name = key.to_string();
                self.committed.note_guarded_edit(key);
                let event = match self.committed.is_damaged() {
                    true => TraceEvent::error("a key that only monitors write was edited by hand"),
                    false => {
                        TraceEvent::info("a key edited by hand has been restored to its old value")
                    }
                };
                effects.push(Effect::Trace(event.with("key", name)));
                self.jobs.push_first(Job::MarkEdited);
            }
            Some(key) => self.queue_edit(key),
            None => {}
        }
    }

    /// Plans the transaction that records, for the next leader, which guarded keys were edited.
    pub(super) fn plan_mark_edited(&self) -> Plan {
        let committed = &self.committed;
        let marked = match committed.record(&Key::Recovery) {
            Some(Record::Recovery(record)) => Some(record),
            _ => None,
        };
        let is_changed = committed.edit(&Key::Recovery).is_some();
        let edited: Vec<String> = self.edited_keys().map(Key::to_string).collect();
        let mut batch = Batch::new(committed);
        match marked {
            Some(record) if record.edited.is_empty() => {
                // A restore is in progress: the records here are not trusted anyway.
                if !is_changed {
                    return Plan::Done(Done::Silent);
                }
                batch.put(committed, Record::Recovery(record.clone()));
            }
            Some(_) if edited.is_empty() => {
                batch.delete(committed, Key::Recovery);
                return Plan::Write { batch, done: Some(Done::PutBack) };
            }
            None if edited.is_empty() => {
                if !is_changed {
                    return Plan::Done(Done::Silent);
                }
                batch.delete(committed, Key::Recovery);
            }
            Some(record) if record.edited == edited && !is_changed => {
                return Plan::Done(Done::Silent);
            }
            _ => {
                let record = RecoveryRecord { edited, ..RecoveryRecord::of(self.identity.monitor) };
                batch.put(committed, Record::Recovery(record));
            }
        }
        Plan::Write { batch, done: Some(Done::Silent) }
    }

    /// Returns the guarded keys that were edited by hand while this monitor led, without `recovery`, which
    /// lists them.
    fn edited_keys(&self) -> impl Iterator<Item = &Key> {
        self.committed.damaged_keys().filter(|key| **key != Key::Recovery)
    }

    /// Plans the transaction that restores the last good values of guarded keys.
    pub(super) fn plan_state_undo(&self, accepted: bool) -> Result<Plan, Failure> {
        let committed = &self.committed;
        if !committed.is_edited() || self.edited_keys().next().is_none() {
            let message =
                "this monitor has no record of a key that was edited by hand while it led";
            return Err(failure("invalid", message, "`ashlar status` lists the damage"));
        }
        let good = |key: &Key| match committed.record(key) {
            Some(record) => record.to_json(),
            None => serde_json::Value::Null,
        };
        let keys: BTreeMap<String, serde_json::Value> =
            self.edited_keys().map(|key| (key.to_string(), good(key))).collect();
        if !accepted {
            let named =
                keys.iter().map(|(key, value)| format!("{key}: {}", clipped(value.to_string())));
            let message = format!(
                "these last good values would be written back: {}",
                named.collect::<Vec<_>>().join(", ")
            );
            return Err(failure(
                "not_accepted",
                clipped(message),
                "to confirm: `ashlar state undo --yes`",
            ));
        }
        let mut batch = Batch::new(committed);
        for key in self.edited_keys() {
            let write = match committed.record(key) {
                Some(record) => Write::Put(record.clone()),
                None => Write::Delete(key.clone()),
            };
            if !batch.try_add(committed, vec![write]) {
                return Ok(Plan::Write { batch, done: None });
            }
        }
        // Remove the `recovery` record if it lists edited keys, but not that of an interrupted restore.
        let is_mark =
            |record: &Record| matches!(record, Record::Recovery(it) if !it.edited.is_empty());
        let mark = committed.record(&Key::Recovery).filter(|record| is_mark(record));
        let mark = mark.map(|_| Write::Delete(Key::Recovery)).into_iter().collect();
        if !batch.try_add(committed, mark) {
            return Ok(Plan::Write { batch, done: None });
        }
        let answer = json!({ "written": keys.keys().collect::<Vec<_>>() });
        Ok(Plan::Write { batch, done: Some(Done::Restored(answer)) })
    }

    /// Queues the check of a manual edit.
    pub(super) fn queue_edit(&mut self, key: Key) {
        if key == Key::Change {
            // The next transaction of any job writes its number to this key, after comparing the key's
            // revision: the edit may be overwritten before it is checked.
            let why = protected_because(&key).expect("it is protected");
            self.watching.undone.note(self.now, key.clone(), why.to_string());
        }
        self.jobs.push_first(Job::Edit { key });
    }

    pub(super) fn plan_edit(&self, key: &Key) -> Plan {
        let committed = &self.committed;
        // There is nothing to check: a later edit was checked instead, or a transaction has overwritten the
        // key.
        let Some(edit) = committed.edit(key) else { return Plan::Done(Done::Silent) };
        let mut batch = Batch::new(committed);
        let why = match (&edit.text, key) {
            (None, Key::Setting(_)) => return Plan::Done(Done::Edited(Ok(()))),
            (None, _) if committed.record(key).is_none() => {
                return Plan::Done(Done::Edited(Ok(())));
            }
            (None, _) => {
                protected_because(key).unwrap_or("only commands remove this key").to_string()
            }
            (Some(text), _) => match self.judged(key, text) {
                Ok(record) => {
                    batch.put(committed, record);
                    return Plan::Write { batch, done: Some(Done::Edited(Ok(()))) };
                }
                Err(why) => why,
            },
        };
        if *key == Key::Change {
            // The batch overwrites this key anyway, with its own transaction number, which continues the
            // valid one.
            return Plan::Write { batch, done: Some(Done::Edited(Err(why))) };
        }
        let before = match committed.record(key) {
            Some(record) => Write::Put(record.clone()),
            None => Write::Delete(key.clone()),
        };
        batch.add(committed, vec![before]);
        Plan::Write { batch, done: Some(Done::Edited(Err(why))) }
    }

    pub(super) fn finish_edit(
        &mut self,
        now: Time,
        key: Key,
        verdict: Result<(), String>,
        effects: &mut Vec<Effect>,
    ) {
        self.committed.settle_edit(&key);
        if matches!(key, Key::Setting(_)) {
            self.on_settings_changed(effects);
        }
        let name = key.to_string();
        let event = match verdict {
            Ok(()) => {
                self.watching.undone.forget(&key);
                TraceEvent::info("a manual edit has taken effect")
            }
            Err(why) => {
                let event = TraceEvent::warn("a manual edit was undone");
                let event = event.with("why", &why);
                self.watching.undone.note(now, key, why);
                event
            }
        };
        effects.push(Effect::Trace(event.with("key", name)));
    }
}
