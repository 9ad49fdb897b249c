//! Buckets: create, delete, list, settings. `docs/internals/buckets.md`, rule 15.
//!
//! ```text
//!   create   i = {name, live}  ->  y = id  ->  b, if absent
//!   delete   b: mark  ->  wait  ->  list one k  ->  i = dead  ->  remove b, with the mark's version  ->  y
//!
//!   i   format (1): 1 | state (1): 0 live, 1 dead | time (8), in ms | name
//!   y   format (1): 1 | id (8)
//! ```
//!
//! Invariants
//!   1. `b` is removed only while it has the mark of who listed its keys behind that mark.
//!   2. `i` says *dead* before `b` is removed; who cannot remove it says *live* again.

use std::sync::Arc;

use base::Version;
use format::disk::bytes::{Reader, Writer};
use objects::{Assertion, Listing, Name, ObjectChange, PageEntry};

use crate::api::{Bucket, CannedAcl, Client, Versioning};
use crate::core::{Core, Result, encode};
use crate::door::{Door, DoorError, ListQuery};
use crate::failure::Failure;
use crate::names::{BucketId, Group, IndexName, SPREAD_DEFAULT, SPREAD_MAX, Shards, front};
use crate::views::{BucketRecord, MARK_RENEWED, MARK_WAIT, VIEW_AGE_MAX, View, operation};

/// The most buckets of a page.
pub const BUCKETS_COUNT_MAX: usize = 1000;

const FORMAT: u8 = 1;

/// Checks the name of a bucket: AWS's rules.
pub fn check_bucket_name(name: &str) -> Result<()> {
    let is_edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    let is_valid = (3..=63).contains(&bytes.len())
        && bytes.iter().all(|byte| is_edge(byte) || matches!(byte, b'.' | b'-'))
        && bytes.first().is_some_and(is_edge)
        && bytes.last().is_some_and(is_edge)
        && !name.contains("..")
        && !is_address(name)
        && !["xn--", "sthree-", "amzn-s3-demo-"].iter().any(|it| name.starts_with(it))
        && !["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"]
            .iter()
            .any(|it| name.ends_with(it));
    if is_valid { Ok(()) } else { Err(Failure::InvalidBucketName) }
}

/// Whether a name has the form of an IPv4 address.
fn is_address(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|it| it.is_ascii_digit());
    parts.len() == 4 && parts.iter().all(is_number)
}

fn id_record(name: &str, is_dead: bool, time_ms: u64) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(FORMAT);
    out.u8(is_dead.into());
    out.u64(time_ms);
    out.bytes.extend_from_slice(name.as_bytes());
    out.bytes
}

fn owned_record(id: BucketId) -> Vec<u8> {
    let mut out = Writer::default();
    out.u8(FORMAT);
    out.u64(id.get());
    out.bytes
}

fn read_owned(bytes: &[u8]) -> Option<BucketId> {
    let mut from = Reader::new(bytes);
    let format = from.u8()?;
    let id = BucketId::new(from.u64()?);
    (format == FORMAT && from.is_at_end()).then_some(id)
}

/// A mark of ours.
struct Mark {
    record: BucketRecord,
    /// That of `b` with the mark.
    version: Version,
    /// When it was set or renewed, on the running clock: not later than that.
    set_us: u64,
}

impl<D: Door> Core<D> {
    pub(crate) async fn create_bucket(
        &self,
        client: &Client,
        name: &str,
        owner: &str,
        acl: CannedAcl,
        spread: Option<u16>,
    ) -> Result<Arc<Bucket>> {
        check_bucket_name(name)?;
        crate::users::check_user_name(owner)?;
        let spread = spread.unwrap_or(SPREAD_DEFAULT);
        if !spread.is_power_of_two() || spread > SPREAD_MAX {
            let why = format!("a bucket has a power of two of shards, up to {SPREAD_MAX}");
            return Err(Failure::Invalid { why });
        }
        let taken = |other: &Bucket| match other.owner == owner {
            true => Failure::BucketOwned,
            false => Failure::BucketTaken,
        };
        if let Some((_, record)) = self.settled_bucket(client, name).await? {
            return Err(taken(&record.bucket));
        }
        let id = BucketId::new(self.door.random());
        let bucket = Arc::new(Bucket {
            name: name.into(),
            id,
            owner: owner.into(),
            created_ms: self.wall_ms(),
            acl,
            spread,
            versioning: Versioning::Off,
            data_pool: self.settings.data_pool.clone(),
        });
        let id_name = encode(&IndexName::Id(id))?;
        let live = ObjectChange::Put(id_record(name, false, self.wall_ms()));
        let made = self.send(client, operation(&id_name, [Assertion::Absent], [live])).await?;
        let owned = encode(&IndexName::Owned { owner: owner.into(), bucket: name.into() })?;
        let put = ObjectChange::Put(owned_record(id));
        if let Err(error) = self.send(client, operation(&owned, [], [put])).await {
            self.remove_id(&id_name, made.version).await;
            return Err(error.into());
        }
        let record = BucketRecord { bucket: bucket.clone(), mark: None, others: Vec::new() };
        let object = encode(&IndexName::Bucket(name.into()))?;
        let put = ObjectChange::Put(record.encode());
        let sent_us = self.door.running_us();
        let error = match self.send(client, operation(&object, [Assertion::Absent], [put])).await {
            Ok(executed) => {
                let found = Some((executed.version, record));
                self.keep_view(name, View { sent_us, found });
                return Ok(bucket);
            }
            Err(error) => error,
        };
        let failure = match error {
            DoorError::Asserted { .. } | DoorError::Unknown => {
                match self.look_at_bucket(name).await?.found {
                    Some((_, record)) if record.bucket.id == id => return Ok(bucket),
                    Some((_, record)) => taken(&record.bucket),
                    None => Failure::Unavailable { why: "the outcome is unknown".into() },
                }
            }
            error => error.into(),
        };
        // Nobody has the id: the bucket was not created, or it was and its deletion has changed this object.
        self.remove_id(&id_name, made.version).await;
        Err(failure)
    }

    /// Removes the record of an id that no bucket has. If that fails it stays: it harms nobody.
    async fn remove_id(&self, id_name: &Name, version: Version) {
        let mine = Assertion::Version(version);
        let _ = self.door.execute(operation(id_name, [mine], [ObjectChange::Remove])).await;
    }

    pub(crate) async fn set_acl(&self, client: &Client, name: &str, acl: CannedAcl) -> Result<()> {
        let object = encode(&IndexName::Bucket(name.into()))?;
        for _ in 0..16 {
            let found = self.settled_bucket(client, name).await?;
            let (version, record) = found.ok_or(Failure::NoSuchBucket)?;
            let bucket = Arc::new(Bucket { acl, ..(*record.bucket).clone() });
            let put = ObjectChange::Put(BucketRecord { bucket, ..record }.encode());
            let set = operation(&object, [Assertion::Version(version)], [put]);
            let outcome = self.send(client, set).await;
            self.forget_view(name);
            match outcome {
                Ok(_) => return Ok(()),
                Err(DoorError::Asserted { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Failure::Conflict)
    }

    pub(crate) async fn delete_bucket(&self, client: &Client, name: &str) -> Result<()> {
        let mut mark = self.mark(client, name).await?;
        match self.delete_marked(client, &mut mark).await {
            Ok(()) => Ok(()),
            Err(failure) => {
                // If the mark is not ours any more, this fails. It is sent even if the client is gone: else
                // others wait until the mark is dead.
                let live = BucketRecord { mark: None, ..mark.record.clone() };
                let _ = self.put_bucket(None, &live, mark.version).await;
                self.forget_view(name);
                Err(failure)
            }
        }
    }

    /// Marks a bucket: from now on no write to it is acknowledged.
    async fn mark(&self, client: &Client, name: &str) -> Result<Mark> {
        loop {
            let found = self.settled_bucket(client, name).await?;
            let (version, record) = found.ok_or(Failure::NoSuchBucket)?;
            let random = self.door.random().max(1);
            let record = BucketRecord { mark: Some(random), ..record };
            match self.put_bucket(Some(client), &record, version).await {
                Ok(version) => {
                    self.forget_view(name);
                    // The wait counts from the answer on.
                    let set_us = self.door.running_us();
                    return Ok(Mark { record, version, set_us });
                }
                Err(DoorError::Asserted { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Puts `b`. Its outcome is known, unless looks fail too: marks are random, and the record has it.
    /// `client`: for whom, if that counts.
    async fn put_bucket(
        &self,
        client: Option<&Client>,
        record: &BucketRecord,
        version: Version,
    ) -> std::result::Result<Version, DoorError> {
        let object = encode(&IndexName::Bucket(record.bucket.name.clone()));
        let object = object.map_err(|failure| DoorError::Invalid { why: failure.to_string() })?;
        let put = ObjectChange::Put(record.encode());
        let put = operation(&object, [Assertion::Version(version)], [put]);
        let outcome = match client {
            Some(client) => self.send(client, put).await,
            None => self.door.execute(put).await,
        };
        match outcome {
            Ok(executed) => Ok(executed.version),
            Err(DoorError::Unknown) => {
                let view = self.look_at_bucket(&record.bucket.name).await;
                match view.map_err(|_| DoorError::Unknown)?.found {
                    // A renewed mark is told apart by its version.
                    Some((found, it)) if found != version && it == *record => Ok(found),
                    _ => Err(DoorError::Unknown),
                }
            }
            Err(error) => Err(error),
        }
    }

    async fn renew(&self, client: &Client, mark: &mut Mark) -> Result<()> {
        if self.since(mark.set_us) < MARK_RENEWED {
            return Ok(());
        }
        let set_us = self.door.running_us();
        let version = self.put_bucket(Some(client), &mark.record, mark.version).await;
        mark.version = version.map_err(|error| match error {
            // Others took it for dead.
            DoorError::Asserted { .. } => Failure::Conflict,
            error => error.into(),
        })?;
        mark.set_us = set_us;
        Ok(())
    }

    async fn delete_marked(&self, client: &Client, mark: &mut Mark) -> Result<()> {
        let bucket = mark.record.bucket.clone();
        let marked_us = mark.set_us;
        while self.since(marked_us) < MARK_WAIT {
            self.door.sleep(MARK_WAIT - self.since(marked_us)).await;
        }
        self.check_empty(client, mark).await?;
        self.renew(client, mark).await?;
        let id_name = encode(&IndexName::Id(bucket.id))?;
        let set_id = |is_dead| {
            let put = ObjectChange::Put(id_record(&bucket.name, is_dead, self.wall_ms()));
            operation(&id_name, [Assertion::Exists], [put])
        };
        match self.send(client, set_id(true)).await {
            Ok(_) => {}
            // The bucket is long gone: the removal below tells.
            Err(DoorError::Asserted { .. }) => {}
            Err(DoorError::Unknown) => {
                self.revive(&bucket).await;
                return Err(DoorError::Unknown.into());
            }
            Err(error) => return Err(error.into()),
        }
        let object = encode(&IndexName::Bucket(bucket.name.clone()))?;
        let mine = Assertion::Version(mark.version);
        let remove = operation(&object, [mine], [ObjectChange::Remove]);
        match self.send(client, remove).await {
            Ok(_) => {}
            Err(error) => {
                let view = self.look_at_bucket(&bucket.name).await?;
                let is_there = |record: &BucketRecord| record.bucket.id == bucket.id;
                if view.found.is_some_and(|(_, record)| is_there(&record)) {
                    self.revive(&bucket).await;
                    return Err(match error {
                        DoorError::Asserted { .. } => Failure::Conflict,
                        error => error.into(),
                    });
                }
            }
        }
        self.forget_view(&bucket.name);
        self.remove_owned(&bucket).await;
        Ok(())
    }

    /// Says that an id is live, if its bucket is there.
    async fn revive(&self, bucket: &Bucket) {
        let Ok(id_name) = encode(&IndexName::Id(bucket.id)) else { return };
        let set = async |is_dead| {
            let put = ObjectChange::Put(id_record(&bucket.name, is_dead, self.wall_ms()));
            let _ = self.door.execute(operation(&id_name, [Assertion::Exists], [put])).await;
        };
        // If the look fails it stays dead: that counts for nothing while `b` names it.
        if self.names_id(bucket).await == Some(true) {
            set(false).await;
            // Meanwhile another one may have said that it is dead, and removed `b`.
            if self.names_id(bucket).await == Some(false) {
                set(true).await;
            }
        }
    }

    /// Whether `b` has the id of this bucket. `None`: the look failed.
    async fn names_id(&self, bucket: &Bucket) -> Option<bool> {
        let view = self.look_at_bucket(&bucket.name).await.ok()?;
        Some(view.found.is_some_and(|(_, record)| record.bucket.id == bucket.id))
    }

    /// Removes `y`, if it is still of this bucket. If that fails, what stays harms nobody: it counts only
    /// if `b` names the owner.
    async fn remove_owned(&self, bucket: &Bucket) {
        let (owner, name) = (bucket.owner.clone(), bucket.name.clone());
        let Ok(owned) = encode(&IndexName::Owned { owner, bucket: name }) else { return };
        if let Ok(Some((stat, data))) = self.read(&owned).await
            && read_owned(&data) == Some(bucket.id)
        {
            let mine = Assertion::Version(stat.version);
            let remove = operation(&owned, [mine], [ObjectChange::Remove]);
            let _ = self.door.execute(remove).await;
        }
    }

    /// Fails if the bucket has a key, hidden ones too. If it has none, its open uploads are aborted.
    async fn check_empty(&self, client: &Client, mark: &mut Mark) -> Result<()> {
        let bucket = mark.record.bucket.clone();
        let mut from = Vec::new();
        loop {
            let listing = Listing {
                prefix: front(b'k', bucket.id.group()),
                from,
                count_max: 1,
                size_max: 4096,
                ..Listing::default()
            };
            let shards = Shards::Of { group: bucket.id.group(), spread: bucket.spread };
            let page = self.door.list(ListQuery { shards, listing, skip: 0, with_data: false });
            let page = page.await?;
            if !page.entries.is_empty() {
                return Err(Failure::BucketNotEmpty);
            }
            let Some(next) = page.next else { break };
            from = next;
            self.renew(client, mark).await?;
        }
        // Nobody completes an upload any more, but its parts would stay.
        self.abort_all(&bucket).await?;
        self.renew(client, mark).await
    }

    pub(crate) async fn list_buckets(
        &self,
        owner: &str,
        prefix: &str,
        after: Option<&str>,
        count_max: usize,
    ) -> Result<(Vec<Arc<Bucket>>, Option<String>)> {
        crate::users::check_user_name(owner)?;
        let group = Group::of(owner.as_bytes());
        let of_owner = [&front(b'y', group)[..], owner.as_bytes(), &[0]].concat();
        let mut from = match after {
            Some(after) => [&of_owner[..], after.as_bytes(), &[0, 0xff]].concat(),
            None => Vec::new(),
        };
        let count_max = count_max.min(BUCKETS_COUNT_MAX);
        let mut buckets: Vec<Arc<Bucket>> = Vec::new();
        if count_max == 0 {
            return Ok((buckets, None));
        }
        loop {
            let listing = Listing {
                prefix: [&of_owner[..], prefix.as_bytes()].concat(),
                from,
                count_max: count_max + 1 - buckets.len(),
                size_max: objects::listing::PAGE_SIZE_MAX,
                ..Listing::default()
            };
            let listing = Listing { count_max: listing.count_max.min(1000), ..listing };
            let shards = Shards::Of { group, spread: 1 };
            let query = ListQuery { shards, listing, skip: 0, with_data: false };
            let page = self.door.list(query).await?;
            for entry in &page.entries {
                let PageEntry::Key(name, _) = entry else { continue };
                let Some(IndexName::Owned { bucket, .. }) = IndexName::decode(name) else {
                    continue;
                };
                let view = self.view(&bucket, VIEW_AGE_MAX).await?;
                // A name of which `b` knows nothing is left over from a creation that lost.
                let Some((_, record)) = view.found.filter(|(_, it)| it.bucket.owner == owner)
                else {
                    continue;
                };
                if buckets.len() == count_max {
                    let last = buckets.last().map(|bucket| bucket.name.clone());
                    return Ok((buckets, last));
                }
                buckets.push(record.bucket);
            }
            let Some(next) = page.next else { return Ok((buckets, None)) };
            from = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_buckets_have_awss_rules() {
        for name in ["abc", "a.b-c", "0a0", "123.4.5", &"a".repeat(63)] {
            assert_eq!(check_bucket_name(name), Ok(()), "{name}");
        }
        let long = "a".repeat(64);
        for name in [
            "",
            "ab",
            &long,
            "Abc",
            "a_b",
            "-ab",
            "ab-",
            ".ab",
            "ab.",
            "a..b",
            "1.2.3.4",
            "a b",
            "xn--ab",
            "ab-s3alias",
            "äbc",
        ] {
            assert_eq!(check_bucket_name(name), Err(Failure::InvalidBucketName), "{name}");
        }
    }

    #[test]
    fn records_of_ids_and_owners_are_frozen() {
        let hex =
            |bytes: Vec<u8>| -> String { bytes.iter().map(|it| format!("{it:02x}")).collect() };
        assert_eq!(hex(id_record("abc", true, 0x0102)), "01010201000000000000616263");
        let owned = owned_record(BucketId::new(0x0102));
        assert_eq!(read_owned(&owned), Some(BucketId::new(0x0102)));
        assert_eq!(hex(owned), "010201000000000000");
        assert_eq!(read_owned(&[1, 2]), None);
    }
}
