//! PUT. `docs/internals/buckets.md`, rules 2, 3, 4, 6, 11 and 12. A body comes in pieces; what is small lies in the
//! record `d` beside the head, so one operation writes the object.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::KIB;
use base::planted::{self, Bug};
use bytes::Bytes;
use objects::{Assertion, Field, Name, ObjectChange};

use crate::api::{Bucket, Checksum, Client, Conditions, ETag, Expected, NewObject, ObjectInfo};
use crate::change::{
    Change, Fate, KeyView, Verdict, check_unversioned, is_unchanged, judge_change,
};
use crate::core::{Core, Result};
use crate::digests::{Digests, compare};
use crate::door::Door;
use crate::failure::Failure;
use crate::head::{ChecksumShape, ETagKind, Head, KeyState, Lock, VersionHead};
use crate::names::{BucketId, Key, VersionStamp};
use crate::records::{Content, Meta, RecordKey};
use crate::views::operation;
use crate::waiting::lock;

/// The largest body that lies beside its head, in bytes. Larger ones are not taken yet.
pub const INLINE_BODY_MAX: u64 = 60 * KIB;
/// The most bytes of names and values of user metadata.
pub const USER_METADATA_MAX: usize = 2 << 10;
/// The most bytes of names and values of other headers.
pub const HEADERS_MAX: usize = 8 << 10;
/// So many PUTs of a bucket say whether the next one is of a new key.
const RECENT_PUTS: u32 = 100;
/// The most buckets of which that is remembered.
const RECENT_BUCKETS_MAX: usize = 10_000;

/// The body of a PUT on its way.
pub struct Upload<D: Door> {
    core: Arc<Core<D>>,
    client: Client,
    bucket: Arc<Bucket>,
    key: Key,
    new: NewObject,
    meta: Vec<u8>,
    body: Vec<u8>,
    digests: Digests,
}

/// Which buckets get mostly new keys.
#[derive(Default)]
pub(crate) struct NewKeys(Mutex<BTreeMap<BucketId, Recent>>);

/// The last PUTs of a bucket, a bit each: 1 for a new key.
#[derive(Clone, Copy, Default)]
struct Recent {
    bits: u128,
    count: u32,
}

impl NewKeys {
    /// Whether the next key is probably new. Nothing is known of a bucket at first: then one operation that
    /// fails costs less than a look before each.
    pub(crate) fn are_likely(&self, bucket: BucketId) -> bool {
        let recent = lock(&self.0).get(&bucket).copied().unwrap_or_default();
        2 * recent.bits.count_ones() >= recent.count
    }

    pub(crate) fn add(&self, bucket: BucketId, is_new: bool) {
        let mut buckets = lock(&self.0);
        if buckets.len() >= RECENT_BUCKETS_MAX && !buckets.contains_key(&bucket) {
            buckets.clear();
        }
        let recent = buckets.entry(bucket).or_default();
        recent.bits = (recent.bits << 1 | u128::from(is_new)) & ((1 << RECENT_PUTS) - 1);
        recent.count = RECENT_PUTS.min(recent.count + 1);
    }
}

fn check_metadata(new: &NewObject) -> Result<()> {
    let size = |pairs: &BTreeMap<String, String>| -> usize {
        pairs.iter().map(|(name, value)| name.len() + value.len()).sum()
    };
    for (what, pairs, max) in [
        ("user metadata", &new.metadata.user, USER_METADATA_MAX),
        ("headers of an object", &new.metadata.headers, HEADERS_MAX),
    ] {
        let size = size(pairs);
        if size > max {
            let why = format!("{size} bytes of {what} are more than {max}");
            return Err(Failure::Invalid { why });
        }
    }
    Ok(())
}

impl<D: Door> Upload<D> {
    pub(crate) fn new(
        core: Arc<Core<D>>,
        client: Client,
        bucket: Arc<Bucket>,
        key: Key,
        new: NewObject,
    ) -> Result<Upload<D>> {
        // The key must fit into a name before a body is taken.
        bucket.key_name(&key)?;
        crate::users::check_user_name(&new.owner)?;
        check_metadata(&new)?;
        check_unversioned(&bucket)?;
        if new.length.is_some_and(|length| length > INLINE_BODY_MAX) {
            return Err(Failure::TooLarge { size_max: INLINE_BODY_MAX });
        }
        let meta = Meta { metadata: new.metadata.clone(), ..Meta::default() };
        let meta = meta.encode().expect("the limits are below those of a field");
        let digests = Digests::new(new.checksum);
        Ok(Upload { core, client, bucket, key, new, meta, body: Vec::new(), digests })
    }

    /// Takes the next bytes of the body.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        let size = self.body.len() as u64 + bytes.len() as u64;
        if self.new.length.is_some_and(|length| size > length) {
            return Err(Failure::IncompleteBody);
        }
        if size > INLINE_BODY_MAX {
            return Err(Failure::TooLarge { size_max: INLINE_BODY_MAX });
        }
        self.digests.update(&bytes);
        self.body.extend_from_slice(&bytes);
        Ok(())
    }

    /// The body is complete: puts the object, if what the client says of the body is right.
    pub async fn finish(self, expected: Expected) -> Result<ObjectInfo> {
        let Upload { core, client, bucket, key, new, meta, body, digests } = self;
        if new.length.is_some_and(|length| length != body.len() as u64) {
            return Err(Failure::IncompleteBody);
        }
        let (md5, checksum) = digests.finish();
        compare(&expected, &body, &md5, &checksum)?;
        let name = bucket.key_name(&key)?;
        let put = Put {
            conditions: new.conditions,
            owner: new.owner,
            etag: ETag { md5, parts: 0 },
            checksum,
            size: body.len() as u64,
            meta,
            content: Content::Inline(body.into()).encode(),
            random: core.door.random(),
            judged: None,
        };
        let commit = core.clone().commit(client.clone(), bucket.clone(), key, put);
        core.answer(&client, async {
            let (info, was_new) = core.run(&name, commit).await?;
            core.new_keys.add(bucket.id, was_new);
            if planted::on(Bug::UndoAfterOverwrite) {
                core.undo_if_deleted(&bucket, &name).await?;
            }
            core.confirm_live(&bucket).await?;
            Ok(info)
        })
        .await
    }
}

impl<D: Door> Core<D> {
    /// A planted bug: removes what was put into a bucket that is being deleted, and what was there before.
    async fn undo_if_deleted(&self, bucket: &Bucket, name: &Name) -> Result<()> {
        let found = self.look_at_bucket(&bucket.name).await?.found;
        if found.is_some_and(|(_, record)| record.mark.is_none()) {
            return Ok(());
        }
        self.door.execute(operation(name, [], [ObjectChange::Remove])).await?;
        Err(Failure::NoSuchBucket)
    }
}

/// An object that is put.
struct Put {
    conditions: Conditions,
    owner: String,
    etag: ETag,
    checksum: Checksum,
    size: u64,
    /// The record `m`.
    meta: Vec<u8>,
    /// The record `d`.
    content: Vec<u8>,
    /// The random half of its version.
    random: u64,
    /// The head that was last decided.
    judged: Option<VersionHead>,
}

impl Change for Put {
    type Done = (ObjectInfo, bool);

    fn judge(&mut self, name: &Name, found: &KeyView, wall_us: u64) -> Result<Verdict> {
        judge_change(&self.conditions, found)?;
        let key = found.as_ref().map_or(KeyState::default(), |(_, head)| head.key);
        if key.has_versions
            || key.is_indexed
            || found.as_ref().is_some_and(|it| it.1.current.is_large)
        {
            let what = "a PUT over a key with versions, tags or large data".into();
            return Err(Failure::NotImplemented { what });
        }
        // Clocks may go back: the order of versions does not.
        let stamp = wall_us.max(key.highest_stamp.saturating_add(1));
        let current = VersionHead {
            is_hidden: false,
            is_null: true,
            is_large: false,
            id: VersionStamp { stamp, random: self.random },
            size: self.size,
            modified_ms: wall_us / 1000,
            etag: self.etag,
            etag_kind: ETagKind::Body,
            checksum: Some(self.checksum.clone()),
            checksum_shape: ChecksumShape::Whole,
            storage_class: 0,
            lock: Lock::default(),
            owner: self.owner.clone(),
        };
        self.judged = Some(current.clone());
        let key = KeyState { null_stamp: stamp, highest_stamp: stamp, ..key };
        let assertion = match found {
            Some((version, _)) => Assertion::Version(*version),
            None => Assertion::Absent,
        };
        let set = |key: RecordKey, value: &Vec<u8>| {
            ObjectChange::Set(Field::Record(key.encode()), value.clone())
        };
        let changes = [
            ObjectChange::Put(Head { current, key }.encode()),
            set(RecordKey::NullMeta, &self.meta),
            set(RecordKey::NullData, &self.content),
        ];
        Ok(Verdict::Send(operation(name, [assertion], changes)))
    }

    fn fate(&self, before: &KeyView, now: &KeyView) -> Fate {
        match now {
            Some((_, head)) if head.current.id.random == self.random => Fate::Done,
            _ if is_unchanged(before, now) => Fate::NotDone,
            _ => Fate::Open,
        }
    }

    fn is_conditional(&self) -> bool {
        self.conditions.if_match.is_some() || self.conditions.if_none_match.is_some()
    }

    fn goes_without_look(&self) -> bool {
        self.conditions.if_match.is_none()
    }

    fn done(self, was_new: bool) -> (ObjectInfo, bool) {
        (self.judged.expect("a put is done after it was decided").info(), was_new)
    }
}
