//! PUT. `docs/internals/buckets.md`, rules 2, 3, 4, 6, 11 and 12. A body comes in pieces; what is short lies in the
//! record `d` beside the head, so one operation writes the object. What is long goes into containers before.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use base::KIB;
use base::planted::{self, Bug};
use bytes::Bytes;
use objects::{Name, ObjectChange};

use crate::api::{
    ANSWER_WITHIN, Bucket, Checksum, ChecksumShape, Client, Conditions, ETag, Expected, Metadata,
    NewObject, ObjectInfo,
};
use crate::change::{
    Change, Fate, KeyView, StrayView, Verdict, check_unversioned, is_unchanged, judge_change,
    next_stamp, put_null_version, unversioned_key, waste_of,
};
use crate::core::{Core, Result};
use crate::digests::{Digests, compare};
use crate::door::Door;
use crate::failure::Failure;
use crate::head::{ETagKind, Lock, VersionHead};
use crate::large::Extent;
use crate::names::{BucketId, Key, VersionStamp, stray_beside};
use crate::records::{Content, Meta};
use crate::storing::{OwnStray, Storing, was_collected};
use crate::strays::{self, Stray};
use crate::views::operation;
use crate::waiting::{First, first_of, lock};

/// The largest body that can lie in the index, beside its head, in bytes.
pub const INLINE_BODY_MAX: u64 = 60 * KIB;
/// The largest body that lies there if nothing else is said.
pub const INLINE_BODY_DEFAULT: u64 = 16 * KIB;
/// The most bytes that are put at once: 5 GiB, as in S3.
pub const BODY_MAX: u64 = 5 << 30;
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
    body: Body<D>,
    /// How many bytes have come.
    size: u64,
    digests: Digests,
}

/// What has come of a body.
enum Body<D: Door> {
    /// It is short, so far.
    Short(Vec<u8>),
    /// It goes into containers.
    Long(Box<Storing<D>>),
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

/// Returns the record of what is put with an object, if it is within its limits.
pub(crate) fn encoded_meta(metadata: &Metadata) -> Result<Vec<u8>> {
    let size = |pairs: &BTreeMap<String, String>| -> usize {
        pairs.iter().map(|(name, value)| name.len() + value.len()).sum()
    };
    for (what, pairs, max) in [
        ("user metadata", &metadata.user, USER_METADATA_MAX),
        ("headers of an object", &metadata.headers, HEADERS_MAX),
    ] {
        let size = size(pairs);
        if size > max {
            let why = format!("{size} bytes of {what} are more than {max}");
            return Err(Failure::Invalid { why });
        }
    }
    let meta = Meta { metadata: metadata.clone(), ..Meta::default() };
    Ok(meta.encode().expect("the limits are below those of a field"))
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
        let meta = encoded_meta(&new.metadata)?;
        check_unversioned(&bucket)?;
        let size_max = core.size_max(&bucket);
        if new.length.is_some_and(|length| length > size_max) {
            return Err(Failure::TooLarge { size_max });
        }
        let digests = Digests::new(new.checksum);
        let body = Body::Short(Vec::new());
        Ok(Upload { core, client, bucket, key, new, meta, body, size: 0, digests })
    }

    /// Takes the next bytes of the body. Waits while too many are on their way.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.size += bytes.len() as u64;
        if self.new.length.is_some_and(|length| self.size > length) {
            return Err(Failure::IncompleteBody);
        }
        let size_max = self.core.size_max(&self.bucket);
        if self.size > size_max {
            return Err(Failure::TooLarge { size_max });
        }
        self.digests.update(&bytes);
        let short = match &mut self.body {
            Body::Long(storing) => return storing.write(&bytes).await,
            Body::Short(body) => body,
        };
        short.extend_from_slice(&bytes);
        let data_pool = self.core.data_pool(&self.bucket);
        let inline_max = self.core.settings.inline_max(data_pool.is_some());
        // What is known to be long does not wait until it is.
        if self.new.length.unwrap_or(self.size) <= inline_max {
            return Ok(());
        }
        let pool = data_pool.expect("more than the most bytes were refused").to_owned();
        let short = std::mem::take(short);
        let mut storing = Box::new(self.begin_storing(pool).await?);
        let written = storing.write(&short).await;
        self.body = Body::Long(storing);
        written
    }

    /// Begins to store the body in containers.
    async fn begin_storing(&self, pool: String) -> Result<Storing<D>> {
        let (core, kept) = (self.core.clone(), self.new.kept.clone());
        let begin = Storing::begin(core, &self.bucket, &self.key, pool, self.new.length, kept);
        match first_of(begin, self.core.door.sleep(ANSWER_WITHIN)).await {
            First::One(storing) => storing,
            First::Other(()) => Err(Failure::Unavailable { why: "the cluster is slow".into() }),
        }
    }

    /// The body is complete: puts the object, if what the client says of the body is right.
    pub async fn finish(self, expected: Expected) -> Result<ObjectInfo> {
        let Upload { core, client, bucket, key, new, meta, body, size, digests } = self;
        if new.length.is_some_and(|length| length != size) {
            return Err(Failure::IncompleteBody);
        }
        let (md5, checksum) = digests.finish();
        compare(&expected, &md5, &checksum)?;
        let name = bucket.key_name(&key)?;
        let work = {
            let (core, client, bucket) = (core.clone(), client.clone(), bucket.clone());
            async move {
                let (content, own) = match body {
                    Body::Short(body) => (Content::Inline(body.into()), None),
                    Body::Long(mut storing) => {
                        let (Extent { places, checksums }, own) = storing.finish().await?;
                        (Content::Places { places, checksums }, own)
                    }
                };
                let put = Put {
                    conditions: new.conditions,
                    owner: new.owner,
                    etag: ETag { md5, parts: 0 },
                    checksum,
                    size,
                    meta,
                    is_large: own.is_some(),
                    content: content.encode(),
                    random: core.door.random(),
                    own: own.clone(),
                    judged: None,
                };
                let committed = core.clone().commit(client, bucket, key, put).await;
                if let Some(own) = own.filter(|_| committed.is_err()) {
                    core.give_up_stray(&own).await;
                }
                committed
            }
        };
        core.answer(&client, async {
            let (info, was_new) = core.run(&name, work).await?;
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
    /// Returns the pool for data of a bucket that does not lie in the index.
    pub(crate) fn data_pool<'a>(&'a self, bucket: &'a Bucket) -> Option<&'a str> {
        bucket.data_pool.as_deref().or(self.settings.data_pool.as_deref())
    }

    /// Returns the most bytes that an object of a bucket has that is put at once.
    fn size_max(&self, bucket: &Bucket) -> u64 {
        if self.data_pool(bucket).is_some() { BODY_MAX } else { INLINE_BODY_MAX }
    }

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
    /// Whether its data lies in containers.
    is_large: bool,
    /// The record `d`.
    content: Vec<u8>,
    /// The random half of its version.
    random: u64,
    /// The stray that names the data until a key does.
    own: Option<OwnStray>,
    /// The head that was last decided.
    judged: Option<VersionHead>,
}

impl Change for Put {
    type Done = (ObjectInfo, bool);

    fn judge(&mut self, name: &Name, found: &KeyView, wall_us: u64) -> Result<Verdict> {
        judge_change(&self.conditions, found)?;
        let key = unversioned_key(found, "a PUT over")?;
        let id = VersionStamp { stamp: next_stamp(key, wall_us), random: self.random };
        let current = VersionHead {
            is_hidden: false,
            is_null: true,
            is_large: self.is_large,
            id,
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
        let records = (&self.meta[..], &self.content[..]);
        let mut commit = put_null_version(name, found, (key, &current), records);
        self.judged = Some(current);
        // What was replaced has a name until it is given back.
        let garbage = waste_of(found).filter(|_| !planted::on(Bug::ReplacedForgotten));
        match (&self.own, garbage) {
            (Some(own), garbage) => {
                let mut steps = strays::change(&own.name, own.version, garbage.as_ref());
                if planted::on(Bug::CommitWithoutStray) {
                    steps.assertions.clear();
                }
                commit.objects.push(steps);
            }
            (None, Some(garbage)) => {
                commit.objects.push(strays::create(&stray_beside(name, id.uuid())?, &garbage));
            }
            (None, None) => {}
        }
        Ok(Verdict::Send(commit))
    }

    fn fate(&self, before: &KeyView, now: &KeyView, stray: &StrayView) -> Fate {
        if now.as_ref().is_some_and(|it| it.head.current.id.random == self.random) {
            return Fate::Done;
        }
        if is_unchanged(before, now) {
            return Fate::NotDone;
        }
        // Somebody has changed the key since. The stray of the upload may still tell.
        match (&self.own, stray) {
            (Some(own), Some((version, _))) if *version == own.version => Fate::NotDone,
            // The commit alone writes other places into it; the collector does not.
            (Some(own), Some((_, Stray::Garbage(waste)))) if !own.is(waste) => Fate::Done,
            _ => Fate::Open,
        }
    }

    fn stray(&self) -> Option<&Name> {
        self.own.as_ref().map(|own| &own.name)
    }

    fn on_open(&mut self) {
        self.own.iter().for_each(OwnStray::on_open);
    }

    fn refused(&self, object: usize) -> Option<Failure> {
        self.own.as_ref().filter(|_| object > 0).map(|_| was_collected())
    }

    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn goes_without_look(&self) -> bool {
        self.conditions.if_match.is_none()
    }

    fn done(self, was_new: bool) -> (ObjectInfo, bool) {
        (self.judged.expect("a put is done after it was decided").info(), was_new)
    }
}
