//! The completion of an upload in parts. `docs/internals/buckets.md`, rule 8: what was read of the parts is asserted
//! by the version of `p`, so the object has the parts that were compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::Version;
use base::planted::{self, Bug};
use md5::Md5;
use objects::{Assertion, Name, ObjectChange};
use sha2::{Digest, Sha256};

use crate::api::{
    Bucket, Checksum, ChecksumShape, Client, Completion, Conditions, ETag, NamedPart, ObjectInfo,
    UploadId,
};
use crate::change::{
    Change, Fate, KeyView, StrayView, Verdict, check_unversioned, is_unchanged, judge_change,
    next_stamp, put_null_version, unversioned_key, waste_of,
};
use crate::core::{Core, Result};
use crate::digests::{Digests, combined};
use crate::door::Door;
use crate::failure::Failure;
use crate::head::{ETagKind, Lock, VersionHead};
use crate::multipart::{SeenUpload, UploadNames};
use crate::names::{Key, VersionStamp, stray_beside};
use crate::parts::{self, Done, OpenRecord, PARTS_SIZE_MAX, Part, PartKey};
use crate::records::{Content, PARTS_MAX};
use crate::strays::{self, Stray, Waste};
use crate::views::steps;

/// How often parts are read again because one was put beside the completion.
const READ_MAX: u32 = 8;

/// What the parts of an object are together.
struct Whole {
    size: u64,
    etag: ETag,
    checksum: Checksum,
    /// Number and size of each part.
    table: Vec<(u16, u64)>,
    /// Whether the upload has parts, or places of parts, that the object does not name.
    has_others: bool,
}

impl<D: Door> Core<D> {
    pub(crate) async fn complete_upload(
        self: &Arc<Self>,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        upload: UploadId,
        completion: Completion,
    ) -> Result<ObjectInfo> {
        check_order(&completion.parts)?;
        check_unversioned(bucket)?;
        let name = bucket.key_name(key)?;
        let names = bucket.upload_names(key, upload)?;
        let bucket = Arc::new(bucket.clone());
        let work = {
            let (core, client) = (self.clone(), client.clone());
            let (bucket, key) = (bucket.clone(), key.clone());
            async move { core.complete(client, bucket, key, names, upload, completion).await }
        };
        self.answer(client, async {
            let info = self.run(&name, work).await?;
            self.confirm_live(&bucket).await?;
            Ok(info)
        })
        .await
    }

    async fn complete(
        self: Arc<Self>,
        client: Client,
        bucket: Arc<Bucket>,
        key: Key,
        names: UploadNames,
        upload: UploadId,
        completion: Completion,
    ) -> Result<ObjectInfo> {
        let digest = digest_of(&completion);
        let random = self.door.random();
        for _ in 0..READ_MAX {
            let seen = self.look_at_upload(&names, &key).await?.ok_or(Failure::NoSuchUpload)?;
            let SeenUpload { version, is_open, done, open } = seen;
            match (is_open, done) {
                (_, Some(done)) if done.digest == digest => return Ok(done.head.info()),
                (true, None) => {}
                _ => return Err(Failure::NoSuchUpload),
            }
            let open = open.ok_or_else(|| Failure::Damaged {
                what: format!("an open upload has no marker (key {key})"),
            })?;
            let whole = self.compare_parts(&names, version, &open, &completion).await;
            let Some(whole) = whole? else { continue };
            let is_overtaken = Arc::new(AtomicBool::new(false));
            let complete = Complete {
                conditions: completion.conditions.clone(),
                names: names.clone(),
                version,
                upload,
                open,
                whole,
                digest,
                random,
                is_overtaken: is_overtaken.clone(),
                judged: None,
            };
            let commit = self.clone().commit(client.clone(), bucket.clone(), key.clone(), complete);
            match commit.await {
                Ok(info) => return Ok(info),
                Err(_) if is_overtaken.load(Ordering::SeqCst) => {}
                // If the key tells nothing, the upload may.
                Err(failure @ Failure::Unavailable { .. }) => {
                    let seen = self.look_at_upload(&names, &key).await?;
                    return match seen.and_then(|seen| seen.done) {
                        Some(done) if done.version.random == random => Ok(done.head.info()),
                        _ => Err(failure),
                    };
                }
                Err(failure) => return Err(failure),
            }
        }
        Err(Failure::Conflict)
    }

    /// Compares the parts that were put with those that are named. `None`: one was put meanwhile.
    async fn compare_parts(
        &self,
        names: &UploadNames,
        version: Version,
        open: &OpenRecord,
        completion: &Completion,
    ) -> Result<Option<Whole>> {
        let mut whole = Joining::new(open, &completion.parts, self.settings.part_size_min);
        let mut from = Vec::new();
        loop {
            let page = self.records_of_upload(&names.parts, Vec::new(), from, 1000).await?;
            let (records, next, seen) = page;
            if seen != Some(version) {
                return Ok(None);
            }
            for (key, value) in records {
                let PartKey::Part(number) = key else {
                    whole.has_others = true;
                    continue;
                };
                let part = Part::decode(&value)
                    .map_err(|bad| Failure::Damaged { what: format!("{bad} (part {number})") })?;
                whole.add(number, &part)?;
            }
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        let whole = whole.finish(open)?;
        if completion.size.is_some_and(|size| size != whole.size) {
            let why = "the object has another size than the client expects".into();
            return Err(Failure::Invalid { why });
        }
        match &completion.checksum {
            Some(expected) if *expected != whole.checksum => {
                Err(Failure::BadDigest { which: "the checksum of the object" })
            }
            _ => Ok(Some(whole)),
        }
    }
}

fn check_order(named: &[NamedPart]) -> Result<()> {
    if named.is_empty() || named.len() > PARTS_MAX as usize {
        let why = format!("an upload is completed with 1 to {PARTS_MAX} parts");
        return Err(Failure::Invalid { why });
    }
    match named.is_sorted_by(|one, other| one.number < other.number) {
        true => Ok(()),
        false => Err(Failure::InvalidPartOrder),
    }
}

/// Returns what tells two completions apart.
fn digest_of(completion: &Completion) -> [u8; 32] {
    let mut digest = Sha256::new();
    for part in &completion.parts {
        digest.update(part.number.to_le_bytes());
        digest.update((part.etag.len() as u64).to_le_bytes());
        digest.update(part.etag.as_bytes());
    }
    digest.finalize().into()
}

/// Parts on their way to an object.
struct Joining<'a> {
    named: std::iter::Peekable<std::slice::Iter<'a, NamedPart>>,
    count: usize,
    part_size_min: u64,
    md5: Md5,
    shape: ChecksumShape,
    of_parts: Digests,
    whole: Option<Checksum>,
    size: u64,
    table: Vec<(u16, u64)>,
    has_others: bool,
}

impl<'a> Joining<'a> {
    fn new(open: &OpenRecord, named: &'a [NamedPart], part_size_min: u64) -> Joining<'a> {
        Joining {
            part_size_min,
            named: named.iter().peekable(),
            count: named.len(),
            md5: Md5::new(),
            shape: open.checksum_shape,
            of_parts: Digests::new(open.checksum),
            whole: None,
            size: 0,
            table: Vec::new(),
            has_others: false,
        }
    }

    /// Adds a part that was put, in the order of their numbers, if it is named.
    fn add(&mut self, number: u16, part: &Part) -> Result<()> {
        let Some(named) = self.named.next_if(|named| named.number <= number) else {
            self.has_others = true;
            return Ok(());
        };
        let invalid = Err(Failure::InvalidPart { number: named.number });
        let etag = ETag { md5: part.md5, parts: 0 };
        if named.number != number || named.etag != etag.to_string() {
            return invalid;
        }
        if named.checksum.as_ref().is_some_and(|checksum| *checksum != part.checksum) {
            return invalid;
        }
        let is_last = self.named.peek().is_none();
        if part.size < self.part_size_min && !is_last {
            return Err(Failure::PartTooSmall { number, size: part.size });
        }
        self.md5.update(part.md5);
        self.of_parts.update(&part.checksum.value);
        self.size += part.size;
        self.table.push((number, part.size));
        self.whole = Some(match self.whole.take() {
            None => part.checksum.clone(),
            Some(before) => match self.shape {
                ChecksumShape::Whole => combined(&before, &part.checksum, part.size)?,
                ChecksumShape::Parts => before,
            },
        });
        Ok(())
    }

    fn finish(mut self, open: &OpenRecord) -> Result<Whole> {
        if let Some(named) = self.named.next() {
            return Err(Failure::InvalidPart { number: named.number });
        }
        if self.size > PARTS_SIZE_MAX {
            return Err(Failure::TooLarge { size_max: PARTS_SIZE_MAX });
        }
        let etag = ETag { md5: self.md5.finalize().into(), parts: self.count as u16 };
        let checksum = match open.checksum_shape {
            ChecksumShape::Parts => self.of_parts.finish().1,
            ChecksumShape::Whole => self.whole.expect("one part is named"),
        };
        let (size, table, has_others) = (self.size, self.table, self.has_others);
        Ok(Whole { size, etag, checksum, table, has_others })
    }
}

struct Complete {
    conditions: Conditions,
    names: UploadNames,
    /// The version of `p` whose parts were compared.
    version: Version,
    upload: UploadId,
    open: OpenRecord,
    whole: Whole,
    digest: [u8; 32],
    random: u64,
    /// A part was put, or the upload was completed or aborted, since the parts were compared.
    is_overtaken: Arc<AtomicBool>,
    judged: Option<VersionHead>,
}

impl Change for Complete {
    type Done = ObjectInfo;

    fn judge(&mut self, name: &Name, found: &KeyView, wall_us: u64) -> Result<Verdict> {
        judge_change(&self.conditions, found)?;
        let key = unversioned_key(found, "the completion of an upload over")?;
        let id = VersionStamp { stamp: next_stamp(key, wall_us), random: self.random };
        let current = VersionHead {
            is_hidden: false,
            is_null: true,
            is_large: true,
            id,
            size: self.whole.size,
            modified_ms: wall_us / 1000,
            etag: self.whole.etag,
            etag_kind: ETagKind::Parts,
            checksum: Some(self.whole.checksum.clone()),
            checksum_shape: self.open.checksum_shape,
            storage_class: 0,
            lock: Lock::default(),
            owner: self.open.owner.clone(),
        };
        let content = Content::Manifest {
            upload: self.upload.0,
            count: self.whole.table.len() as u32,
            part_size: 0,
        };
        let records = (&self.open.meta[..], &content.encode()[..]);
        let mut commit = put_null_version(name, found, (key, &current), records);
        let done = Done { version: id, digest: self.digest, head: current.clone() };
        self.judged = Some(current);
        let assertions = match planted::on(Bug::CompletedWithoutVersion) {
            true => vec![Assertion::Has(parts::open())],
            false => vec![Assertion::Version(self.version), Assertion::Has(parts::open())],
        };
        let changes = vec![
            ObjectChange::Unset(parts::open()),
            ObjectChange::Set(parts::table(), parts::write_table(&self.whole.table)),
            ObjectChange::Set(parts::done(), done.encode()),
        ];
        commit.objects.push(steps(&self.names.parts, assertions, changes));
        commit.objects.push(steps(&self.names.marker, vec![], vec![ObjectChange::Remove]));
        if let Some(garbage) = waste_of(found) {
            commit.objects.push(strays::create(&stray_beside(name, id.uuid())?, &garbage));
        }
        if self.whole.has_others {
            let others = Stray::Garbage(Waste::OtherParts(self.upload.0));
            commit.objects.push(strays::create(&stray_beside(name, self.upload.0)?, &others));
        }
        Ok(Verdict::Send(commit))
    }

    fn fate(&self, before: &KeyView, now: &KeyView, _stray: &StrayView) -> Fate {
        match now {
            Some(seen) if seen.head.current.id.random == self.random => Fate::Done,
            _ if is_unchanged(before, now) => Fate::NotDone,
            _ => Fate::Open,
        }
    }

    fn refused(&self, object: usize) -> Option<Failure> {
        if object != 1 {
            return None;
        }
        self.is_overtaken.store(true, Ordering::SeqCst);
        Some(Failure::Conflict)
    }

    fn conditions(&self) -> &Conditions {
        &self.conditions
    }

    fn goes_without_look(&self) -> bool {
        false
    }

    fn done(self, _was_new: bool) -> ObjectInfo {
        self.judged.expect("it is done after it was decided").info()
    }
}
