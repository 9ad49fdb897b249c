//! How a change of a key is committed: judged on a look, asserted by its version, judged anew after a conflict.
//! `docs/internals/buckets.md`, rules 4, 6 and 10.
//!
//! Invariants
//!   1. What was judged is asserted: a change that another one overtook is judged again, so conditions are exact
//!      over all gateways.
//!   2. An operation whose outcome is not known is not sent again, unless a later look shows the key unchanged.
//!   3. Writers of one key at this gateway are served in the order in which they came, after the first conflict.

use std::sync::Arc;
use std::time::Duration;

use base::Version;
use bytes::Bytes;
use objects::{Assertion, Field, Name, ObjectChange, Operation, Read, ReadAnswer};

use crate::api::{Bucket, Client, Conditions, ETag, TagCondition, Versioning};
use crate::core::{Core, DATA_SIZE_MAX, RECORDS_SIZE_MAX, Result, encode, not_asked};
use crate::door::{Door, DoorError};
use crate::failure::Failure;
use crate::head::{BadBytes, Head, KeyState, VersionHead};
use crate::names::{IndexName, Key, Locator};
use crate::records::{Content, RecordKey};
use crate::strays::{Stray, Waste};
use crate::views::operation;
use crate::waiting::{First, first_of};

/// How often a change is judged at most.
pub const TRIES_MAX: u32 = 16;
/// For how long a change is judged again.
pub const TRIED_FOR: Duration = Duration::from_secs(5);

/// A key as a look showed it. `None`: there is none.
pub(crate) type KeyView = Option<SeenKey>;

/// What a look showed of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SeenKey {
    pub(crate) version: Version,
    pub(crate) head: Head,
    /// What becomes garbage with the null version. `None`: its data lies beside its head, or it is not the
    /// current one.
    pub(crate) waste: Option<Waste>,
}

/// What a change decides on a look.
pub(crate) enum Verdict {
    /// There is nothing to do.
    Nothing,
    /// This is to be sent.
    Send(Operation),
}

/// What a look tells of a change whose outcome is not known.
pub(crate) enum Fate {
    /// It happened, or what it wanted is true.
    Done,
    /// It did not happen, and will not.
    NotDone,
    /// Others have changed the key since, so nothing tells.
    Open,
}

/// A change of one key.
pub(crate) trait Change: Send + 'static {
    /// What is returned when it is done.
    type Done: Send + 'static;

    /// Decides on a look.
    fn judge(&mut self, name: &Name, found: &KeyView, wall_us: u64) -> Result<Verdict>;

    /// Says what became of the operation that was last decided on `before`, where the key is like this
    /// now, and the stray of [`Change::stray`] like that.
    fn fate(&self, before: &KeyView, now: &KeyView, stray: &StrayView) -> Fate;

    /// Returns the stray of which a look tells more about what happened.
    fn stray(&self) -> Option<&Name> {
        None
    }

    /// An operation of it has happened, or may have.
    fn on_open(&mut self) {}

    /// Returns why the change is given up if an assertion about this object of its operation is not true. The
    /// key is the first one.
    fn refused(&self, _object: usize) -> Option<Failure> {
        None
    }

    /// Returns its conditions.
    fn conditions(&self) -> &Conditions;

    /// Whether it has a condition.
    fn is_conditional(&self) -> bool {
        let conditions = self.conditions();
        conditions.if_match.is_some() || conditions.if_none_match.is_some()
    }

    /// Whether it may be sent without a look if the key is probably new.
    fn goes_without_look(&self) -> bool;

    /// Returns what is returned. `was_new`: whether there was no such key.
    fn done(self, was_new: bool) -> Self::Done;
}

impl Bucket {
    /// Returns the name of a key's object.
    pub(crate) fn key_name(&self, key: &Key) -> Result<Name> {
        let locator = Locator::of_key(&self.name, key, self.spread);
        let name = IndexName::Key { bucket: self.id, key: key.clone(), locator };
        encode(&name).map_err(|_| Failure::KeyTooLong)
    }
}

/// A stray as a look showed it. `None`: there is none.
pub(crate) type StrayView = Option<(Version, Stray)>;

/// What a look showed at one moment.
pub(crate) struct KeyLook {
    /// The head, with the version of the key. `None`: there is no such key.
    pub(crate) head: Option<(Version, Head)>,
    /// The values of the records that were asked for. None, if there is no such key.
    pub(crate) records: Vec<Option<Bytes>>,
    /// The stray, if it was asked for.
    pub(crate) stray: StrayView,
}

impl<D: Door> Core<D> {
    /// Looks at a key, and at a stray of it at the same moment.
    async fn look_at_key(&self, name: &Name, stray: Option<&Name>) -> Result<(KeyView, StrayView)> {
        let has_places = |head: &Head| head.current.is_large && head.current.is_null;
        let mut look = self.look_at_records(name, &[], stray).await?;
        if look.head.as_ref().is_some_and(|(_, head)| has_places(head)) {
            // Where its data lies counts only if it is of the same moment.
            look = self.look_at_records(name, &[RecordKey::NullData], stray).await?;
        }
        let Some((version, head)) = look.head else { return Ok((None, look.stray)) };
        let damaged = |what: String| Failure::Damaged { what: format!("{what} ({name:?})") };
        let content = look.records.first().and_then(Option::as_ref);
        let waste = match has_places(&head) {
            false => None,
            true => match content.map(|content| Content::decode(content)).transpose() {
                Ok(Some(Content::Places { places, .. })) => Some(Waste::Places(places)),
                Ok(Some(Content::Manifest { upload, .. })) => Some(Waste::AllParts(upload)),
                Ok(Some(Content::Inline(_)) | None) => {
                    return Err(damaged("a large object has no places".into()));
                }
                Err(bad) => return Err(damaged(bad.to_string())),
            },
        };
        Ok((Some(SeenKey { version, head, waste }), look.stray))
    }

    /// Looks at the head of a key, at some of its records, and at a stray, all at one moment.
    pub(crate) async fn look_at_records(
        &self,
        name: &Name,
        records: &[RecordKey],
        stray: Option<&Name>,
    ) -> Result<KeyLook> {
        let data =
            |name: &Name| Read::Data { name: name.clone(), offset: 0, length: DATA_SIZE_MAX };
        let mut reads = vec![data(name)];
        reads.extend(stray.map(data));
        if !records.is_empty() {
            let fields = records.iter().map(|key| Field::Record(key.encode())).collect();
            reads.push(Read::Values { name: name.clone(), fields, size_max: RECORDS_SIZE_MAX });
        }
        let mut answers = self.door.look(reads).await?.into_iter();
        let mut next_data = || match answers.next() {
            Some(ReadAnswer::Data(found)) => Ok(found.map(|(stat, data)| (stat.version, data))),
            _ => Err(not_asked()),
        };
        let head = next_data()?.map(|(version, data)| Ok((version, Head::decode(&data)?)));
        let stray = stray.map(|_| next_data()).transpose()?.flatten();
        let stray = stray.map(|(version, data)| Ok((version, Stray::decode(&data)?)));
        let records = match (records.is_empty(), answers.next()) {
            (true, None) => Vec::new(),
            (false, Some(ReadAnswer::Values(values))) => {
                values.into_iter().map(|value| value.map(Into::into)).collect()
            }
            _ => return Err(not_asked()),
        };
        let damaged = |bad: BadBytes| Failure::Damaged { what: format!("{bad} ({name:?})") };
        let (head, stray) = (head.transpose(), stray.transpose());
        Ok(KeyLook { head: head.map_err(damaged)?, records, stray: stray.map_err(damaged)? })
    }

    /// Commits a change.
    pub(crate) async fn commit<C: Change>(
        self: Arc<Self>,
        client: Client,
        bucket: Arc<Bucket>,
        key: Key,
        mut change: C,
    ) -> Result<C::Done> {
        let name = bucket.key_name(&key)?;
        let place = (bucket.id, key);
        let began_us = self.door.running_us();
        let is_probably_new = change.goes_without_look() && self.new_keys.are_likely(bucket.id);
        let mut turn = self.turns.is_busy(&place).then(|| self.turns.enter(place.clone()));
        let mut known: Option<KeyView> = is_probably_new.then_some(None);
        let mut tries = 0;
        loop {
            if let Some(turn) = &turn {
                let left = TRIED_FOR.saturating_sub(self.since(began_us));
                if let First::Other(()) = first_of(turn.wait(), self.door.sleep(left)).await {
                    return Err(too_busy(&change));
                }
            }
            let before = match known.take() {
                Some(found) => found,
                None => self.look_at_key(&name, None).await?.0,
            };
            let operation = match change.judge(&name, &before, self.door.wall_us())? {
                Verdict::Nothing => return Ok(change.done(before.is_none())),
                Verdict::Send(operation) => operation,
            };
            tries += 1;
            let sent = self.send(&client, operation).await;
            if !matches!(sent, Err(DoorError::Asserted { .. } | DoorError::Unavailable { .. })) {
                change.on_open();
            }
            match sent {
                Ok(_) => return Ok(change.done(before.is_none())),
                Err(DoorError::Asserted { object, .. }) => {
                    if let Some(failure) = change.refused(object) {
                        return Err(failure);
                    }
                }
                Err(DoorError::Unknown) => {
                    let (now, stray) = self.look_at_key(&name, change.stray()).await?;
                    match change.fate(&before, &now, &stray) {
                        Fate::Done => return Ok(change.done(before.is_none())),
                        Fate::NotDone => known = Some(now),
                        Fate::Open => return Err(DoorError::Unknown.into()),
                    }
                }
                Err(error) => return Err(error.into()),
            }
            if tries >= TRIES_MAX || self.since(began_us) >= TRIED_FOR {
                return Err(too_busy(&change));
            }
            turn.get_or_insert_with(|| self.turns.enter(place.clone()));
        }
    }
}

fn too_busy<C: Change>(change: &C) -> Failure {
    match change.is_conditional() {
        true => Failure::Conflict,
        false => Failure::Unavailable { why: "others change the object all the time".into() },
    }
}

/// Whether nothing changed a key between two looks. An absent key has no version: nothing tells this of it.
pub(crate) fn is_unchanged(before: &KeyView, now: &KeyView) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => before.version == now.version,
        _ => false,
    }
}

/// Refuses changes in buckets with versions: the version that is there would have to stay.
pub(crate) fn check_unversioned(bucket: &Bucket) -> Result<()> {
    match bucket.versioning {
        Versioning::Off => Ok(()),
        Versioning::Enabled | Versioning::Suspended => {
            Err(Failure::NotImplemented { what: "a change in a bucket with versions".into() })
        }
    }
}

/// Returns what is known of a key whose null version is changed. `what`: what changes it.
pub(crate) fn unversioned_key(found: &KeyView, what: &str) -> Result<KeyState> {
    let key = found.as_ref().map_or(KeyState::default(), |it| it.head.key);
    match key.has_versions || key.is_indexed {
        true => {
            let what = format!("{what} a key with versions or tags");
            Err(Failure::NotImplemented { what })
        }
        false => Ok(key),
    }
}

/// Returns the stamp of the next version of a key: clocks may go back, the order of versions does not.
pub(crate) fn next_stamp(key: KeyState, wall_us: u64) -> u64 {
    wall_us.max(key.highest_stamp.saturating_add(1))
}

/// Returns the operation that makes this the null version of a key, if the key is as it was found.
pub(crate) fn put_null_version(
    name: &Name,
    found: &KeyView,
    (key, current): (KeyState, &VersionHead),
    (meta, content): (&[u8], &[u8]),
) -> Operation {
    let stamp = current.id.stamp;
    let key = KeyState { null_stamp: stamp, highest_stamp: stamp, ..key };
    let assertion = match found {
        Some(seen) => Assertion::Version(seen.version),
        None => Assertion::Absent,
    };
    let set = |key: RecordKey, value: &[u8]| {
        ObjectChange::Set(Field::Record(key.encode()), value.to_vec())
    };
    let changes = [
        ObjectChange::Put(Head { current: current.clone(), key }.encode()),
        set(RecordKey::NullMeta, meta),
        set(RecordKey::NullData, content),
    ];
    operation(name, [assertion], changes)
}

/// Returns what garbage a change leaves: what the current version of a key names.
pub(crate) fn waste_of(found: &KeyView) -> Option<Stray> {
    found.as_ref().and_then(|it| it.waste.clone()).map(Stray::Garbage)
}

/// Judges the conditions of a change, where a hidden object counts as absent.
pub(crate) fn judge_change(conditions: &Conditions, found: &KeyView) -> Result<()> {
    let current = found.as_ref().map(|it| &it.head.current).filter(|it| !it.is_hidden);
    if let Some(condition) = &conditions.if_match {
        let current = current.ok_or(Failure::NoSuchKey)?;
        if !condition.has(&current.etag) {
            return Err(Failure::PreconditionFailed);
        }
    }
    match (&conditions.if_none_match, current) {
        (Some(condition), Some(current)) if condition.has(&current.etag) => {
            Err(Failure::PreconditionFailed)
        }
        _ => Ok(()),
    }
}

/// Judges the conditions of a read, in the order of RFC 9110, section 13.2.2.
pub(crate) fn judge_read(conditions: &Conditions, current: &VersionHead) -> Result<()> {
    // HTTP dates have no parts of seconds.
    let modified = current.modified_ms / 1000;
    let is_met = match (&conditions.if_match, conditions.if_unmodified_since) {
        (Some(condition), _) => condition.has(&current.etag),
        (None, Some(since)) => modified <= since,
        (None, None) => true,
    };
    if !is_met {
        return Err(Failure::PreconditionFailed);
    }
    let is_news = match (&conditions.if_none_match, conditions.if_modified_since) {
        (Some(condition), _) => !condition.has(&current.etag),
        (None, Some(since)) => modified > since,
        (None, None) => true,
    };
    if is_news { Ok(()) } else { Err(Failure::NotModified) }
}

impl TagCondition {
    /// Whether the tag is among those that are named.
    pub fn has(&self, etag: &ETag) -> bool {
        match self {
            TagCondition::Any => true,
            TagCondition::OneOf(tags) => tags.contains(&etag.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use base::Epoch;

    use super::*;
    use crate::names::VersionStamp;

    fn view(counter: u64) -> KeyView {
        let version = Version { epoch: Epoch::new(1), counter };
        let current = VersionHead {
            is_hidden: false,
            is_null: true,
            is_large: false,
            id: VersionStamp { stamp: counter, random: counter },
            size: 0,
            modified_ms: 0,
            etag: ETag { md5: [0; 16], parts: 0 },
            etag_kind: Default::default(),
            checksum: None,
            checksum_shape: Default::default(),
            storage_class: 0,
            lock: Default::default(),
            owner: "ann".into(),
        };
        let head = Head { current, key: KeyState::default() };
        Some(SeenKey { version, head, waste: None })
    }

    /// An operation that happened, and that another one has overtaken since, must not be sent again.
    #[test]
    fn only_the_same_version_says_that_nothing_happened() {
        assert!(is_unchanged(&view(1), &view(1)));
        for (before, now) in [(view(1), view(2)), (None, view(1)), (view(1), None), (None, None)] {
            assert!(!is_unchanged(&before, &now));
        }
    }
}
