//! Uploads in parts: begin, parts, lists, abort. `docs/internals/buckets.md`, rule 8. Completion: `complete.rs`.
//!
//! ```text
//!   begin     m and p (open; its key), one operation
//!   part      p: record i = {place}  ─▶ data ─▶ p: i goes, P = {place, size, digests}; what it replaces becomes g
//!   complete  p closes, m goes, k names p: one operation
//!   abort     p closes, m goes, u = garbage {p}: one operation
//! ```
//!
//! Invariants
//!   1. Parts come into an open `p` alone, each by one operation that asserts it is open.
//!   2. Of the completion and the abort of an upload at most one happens: both assert that it is open.

use std::sync::Arc;

use base::Version;
use base::planted::{self, Bug};
use bytes::Bytes;
use objects::listing::PAGE_SIZE_MAX;
use objects::{Assertion, Listing, Name, ObjectChange, Operation, PageEntry, Read, ReadAnswer};

use crate::api::{Bucket, Client, Expected, NewPart, NewUpload, OpenUpload, PartInfo, UploadId};
use crate::change::check_unversioned;
use crate::core::{Core, DATA_SIZE_MAX, RECORDS_SIZE_MAX, Result, encode, not_asked};
use crate::digests::{Digests, compare};
use crate::door::{Door, DoorError, ListQuery};
use crate::failure::Failure;
use crate::head::BadBytes;
use crate::large::Extent;
use crate::names::{IndexName, Key, Locator, Shards, front, stray_beside};
use crate::parts::{self, Done, OpenRecord, Part, PartKey};
use crate::put::{BODY_MAX, encoded_meta};
use crate::records::{PARTS_MAX, Place};
use crate::storing::Storing;
use crate::strays::{self, Stray, Waste};
use crate::views::steps;

/// How often a part is judged again, while others put the same part.
const TRIES_MAX: u32 = 16;
/// The most parts of a page.
pub const PARTS_PAGE_MAX: usize = 1000;

/// The objects of an upload.
#[derive(Clone, Debug)]
pub(crate) struct UploadNames {
    pub(crate) marker: Name,
    pub(crate) parts: Name,
}

/// An upload as a look showed it.
pub(crate) struct SeenUpload {
    /// The version of `p`.
    pub(crate) version: Version,
    pub(crate) is_open: bool,
    pub(crate) done: Option<Done>,
    /// What `m` has, while it is there.
    pub(crate) open: Option<OpenRecord>,
}

/// The body of a part on its way.
pub struct PartUpload<D: Door> {
    core: Arc<Core<D>>,
    client: Client,
    names: UploadNames,
    number: u16,
    random: u64,
    length: u64,
    size: u64,
    storing: Option<Storing<D>>,
    digests: Digests,
}

/// A page of uploads.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UploadPage {
    /// Uploads, in the order of their keys, those of a key in the order of their begin.
    pub uploads: Vec<OpenUpload>,
    /// What several keys begin with.
    pub common_prefixes: Vec<String>,
    /// Where the next page begins: a key, and an upload of it; without one: behind all of the key, or behind
    /// the common prefix. `None`: there is no more.
    pub next: Option<(String, Option<UploadId>)>,
}

/// Which uploads are listed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UploadsRequest {
    /// Only keys that begin so.
    pub prefix: String,
    /// Keys that have this behind the prefix are told as one common prefix. Empty: none are.
    pub delimiter: String,
    /// Only uploads behind this key, or behind this upload of it.
    pub after: Option<(String, Option<UploadId>)>,
    /// The most entries, 0 to 1,000.
    pub count_max: usize,
}

impl Bucket {
    /// Returns the objects of an upload.
    pub(crate) fn upload_names(&self, key: &Key, upload: UploadId) -> Result<UploadNames> {
        let locator = Locator::of_key(&self.name, key, self.spread);
        let (bucket, uuid) = (self.id, upload.0);
        let marker = IndexName::OpenUpload { bucket, key: key.clone(), uuid, locator };
        let parts = IndexName::Parts { bucket, uuid, locator };
        Ok(UploadNames { marker: encode(&marker)?, parts: encode(&parts)? })
    }
}

impl<D: Door> Core<D> {
    pub(crate) async fn begin_upload(
        self: &Arc<Self>,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        new: NewUpload,
    ) -> Result<UploadId> {
        bucket.key_name(key)?;
        crate::users::check_user_name(&new.owner)?;
        check_unversioned(bucket)?;
        if self.data_pool(bucket).is_none() {
            let what = "an upload in parts without a data pool".into();
            return Err(Failure::NotImplemented { what });
        }
        let meta = encoded_meta(&new.metadata)?;
        let id = UploadId(self.new_uuid());
        let names = bucket.upload_names(key, id)?;
        let record = OpenRecord {
            checksum: new.checksum,
            checksum_shape: new.checksum_shape,
            created_ms: self.wall_ms(),
            owner: new.owner,
            meta,
        };
        let open = ObjectChange::Set(parts::open(), Vec::new());
        let of_key = ObjectChange::Put(parts::of_key(key.as_str()));
        let begin = Operation {
            objects: vec![
                steps(&names.parts, vec![Assertion::Absent], vec![of_key, open]),
                steps(
                    &names.marker,
                    vec![Assertion::Absent],
                    vec![ObjectChange::Put(record.encode())],
                ),
            ],
        };
        let (core, of_client, bucket) = (self.clone(), client.clone(), bucket.clone());
        self.answer(client, async {
            let task = async move { Ok(core.send(&of_client, begin).await?) };
            self.run(&names.parts, task).await?;
            self.confirm_live(&bucket).await?;
            Ok(id)
        })
        .await
    }

    /// Looks at an upload. `None`: there is none of this key.
    pub(crate) async fn look_at_upload(
        &self,
        names: &UploadNames,
        key: &Key,
    ) -> Result<Option<SeenUpload>> {
        let data =
            |name: &Name| Read::Data { name: name.clone(), offset: 0, length: DATA_SIZE_MAX };
        let fields = vec![parts::open(), parts::done()];
        let name = names.parts.clone();
        let values = Read::Values { name, fields, size_max: RECORDS_SIZE_MAX };
        let reads = vec![data(&names.parts), data(&names.marker), values];
        let mut answers = self.door.look(reads).await?.into_iter();
        let answers = (answers.next(), answers.next(), answers.next());
        let (
            Some(ReadAnswer::Data(found)),
            Some(ReadAnswer::Data(marker)),
            Some(ReadAnswer::Values(values)),
        ) = answers
        else {
            return Err(not_asked());
        };
        let Some((stat, data)) = found else { return Ok(None) };
        if parts::key_of(&data) != Some(key.as_str()) {
            return Ok(None);
        }
        let [is_open, done] = &values[..] else { return Err(not_asked()) };
        let damaged = |bad: BadBytes| Failure::Damaged { what: format!("{bad} (key {key})") };
        let done = done.as_ref().map(|done| Done::decode(done)).transpose().map_err(damaged)?;
        let open = marker.map(|(_, data)| OpenRecord::decode(&data));
        let open = open.transpose().map_err(damaged)?;
        Ok(Some(SeenUpload { version: stat.version, is_open: is_open.is_some(), done, open }))
    }

    /// Looks at an upload that must be open.
    pub(crate) async fn open_upload(
        &self,
        names: &UploadNames,
        key: &Key,
    ) -> Result<(SeenUpload, OpenRecord)> {
        let mut seen = self.look_at_upload(names, key).await?.ok_or(Failure::NoSuchUpload)?;
        match (seen.is_open, seen.open.take()) {
            (true, Some(open)) => Ok((seen, open)),
            (true, None) => {
                Err(Failure::Damaged { what: format!("an open upload has no marker (key {key})") })
            }
            (false, _) => Err(Failure::NoSuchUpload),
        }
    }

    pub(crate) async fn abort_upload(
        self: &Arc<Self>,
        client: &Client,
        bucket: &Bucket,
        key: &Key,
        upload: UploadId,
    ) -> Result<()> {
        let names = bucket.upload_names(key, upload)?;
        let (core, client, bucket) = (self.clone(), client.clone(), bucket.clone());
        let (of_client, of_task, key) = (client.clone(), names.clone(), key.clone());
        let task =
            async move { core.abort(Some(&of_client), &bucket, &key, &of_task, upload).await };
        self.answer(&client, self.run(&names.parts, task)).await
    }

    /// Aborts an upload. Without a client this is done for whoever deletes the bucket.
    pub(crate) async fn abort(
        &self,
        client: Option<&Client>,
        bucket: &Bucket,
        key: &Key,
        names: &UploadNames,
        upload: UploadId,
    ) -> Result<()> {
        self.open_upload(names, key).await?;
        let garbage = Stray::Garbage(Waste::AllParts(upload.0));
        let stray = stray_beside(&bucket.key_name(key)?, self.new_uuid())?;
        let is_open = match planted::on(Bug::AbortWithoutOpen) {
            true => Assertion::Exists,
            false => Assertion::Has(parts::open()),
        };
        let abort = Operation {
            objects: vec![
                steps(&names.parts, vec![is_open], vec![ObjectChange::Unset(parts::open())]),
                steps(&names.marker, vec![], vec![ObjectChange::Remove]),
                strays::create(&stray, &garbage),
            ],
        };
        let sent = match client {
            Some(client) => self.send(client, abort).await,
            None => self.door.execute(abort).await,
        };
        match sent {
            Ok(_) => Ok(()),
            Err(DoorError::Asserted { .. }) => Err(Failure::NoSuchUpload),
            Err(DoorError::Unknown) => match self.look_at_upload(names, key).await? {
                Some(seen) if seen.is_open => Err(DoorError::Unknown.into()),
                Some(SeenUpload { done: Some(_), .. }) => Err(Failure::NoSuchUpload),
                // Closed and not complete: aborted, by whomever.
                _ => Ok(()),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Returns a page of the parts of an open upload: those behind a number. The second value is the number
    /// behind which the next page begins.
    pub(crate) async fn list_parts(
        &self,
        bucket: &Bucket,
        key: &Key,
        upload: UploadId,
        after: u16,
        count_max: usize,
    ) -> Result<(OpenUpload, Vec<PartInfo>, Option<u16>)> {
        let names = bucket.upload_names(key, upload)?;
        let (_, open) = self.open_upload(&names, key).await?;
        let upload = open.of(key.as_str(), upload);
        let count_max = count_max.min(PARTS_PAGE_MAX);
        let mut infos = Vec::new();
        if count_max == 0 {
            return Ok((upload, infos, None));
        }
        let Some(first) = after.checked_add(1) else { return Ok((upload, infos, None)) };
        let mut from = PartKey::Part(first).encode();
        loop {
            let count = count_max + 1 - infos.len();
            let page = self.records_of_upload(&names.parts, b"P".to_vec(), from, count).await?;
            let (records, next, _) = page;
            for (key, value) in records {
                let PartKey::Part(number) = key else { continue };
                let part = Part::decode(&value)
                    .map_err(|bad| Failure::Damaged { what: format!("{bad} (part {number})") })?;
                if infos.len() == count_max {
                    let last = infos.last().map(|info: &PartInfo| info.number);
                    return Ok((upload, infos, last));
                }
                infos.push(part.info(number));
            }
            match next {
                Some(next) => from = next,
                None => return Ok((upload, infos, None)),
            }
        }
    }

    /// Returns a page of records of `p`, where the next one begins, and the version of `p`; `None`: it is
    /// gone.
    pub(crate) async fn records_of_upload(
        &self,
        name: &Name,
        prefix: Vec<u8>,
        from: Vec<u8>,
        count_max: usize,
    ) -> Result<(Vec<(PartKey, Bytes)>, Option<Vec<u8>>, Option<Version>)> {
        let listing = Listing {
            prefix,
            from,
            count_max: count_max.clamp(1, objects::listing::PAGE_COUNT_MAX),
            size_max: PAGE_SIZE_MAX,
            ..Listing::default()
        };
        let reads =
            vec![Read::Stat { name: name.clone() }, Read::Records { name: name.clone(), listing }];
        let mut answers = self.door.look(reads).await?.into_iter();
        let (Some(ReadAnswer::Stat(stat)), Some(ReadAnswer::Fields(page))) =
            (answers.next(), answers.next())
        else {
            return Err(not_asked());
        };
        let mut records = Vec::new();
        for entry in page.entries {
            let PageEntry::Key(key, value) = entry else { continue };
            let Some(part) = PartKey::decode(&key) else {
                return Err(Failure::Damaged { what: format!("a record of an upload ({name:?})") });
            };
            records.push((part, value));
        }
        Ok((records, page.next, stat.map(|stat| stat.version)))
    }

    /// Lists the open uploads of a bucket.
    pub(crate) async fn list_uploads(
        &self,
        bucket: &Bucket,
        request: &UploadsRequest,
    ) -> Result<UploadPage> {
        crate::list::check_text("a prefix", &request.prefix)?;
        crate::list::check_text("a delimiter", &request.delimiter)?;
        let count_max = request.count_max.min(1000);
        let mut found = UploadPage::default();
        if count_max == 0 {
            return Ok(found);
        }
        let group = bucket.id.group();
        let front = front(b'm', group);
        let mut from = match &request.after {
            None => front.clone(),
            Some((key, upload)) => {
                crate::list::check_text("a marker", key)?;
                let of_key = [&front[..], key.as_bytes()].concat();
                let is_prefix = !request.delimiter.is_empty() && key.ends_with(&request.delimiter);
                match upload {
                    None if is_prefix => [&of_key[..], &[0xff]].concat(),
                    None => [&of_key[..], &[0, 0xff]].concat(),
                    Some(upload) => {
                        let id = crate::names::six_of(upload.0);
                        [&of_key[..], &[0], &id, &[0xff]].concat()
                    }
                }
            }
        };
        let mut count = 0;
        loop {
            let listing = Listing {
                prefix: [&front[..], request.prefix.as_bytes()].concat(),
                from,
                before: None,
                delimiter: request.delimiter.as_bytes().to_vec(),
                count_max: count_max - count,
                size_max: PAGE_SIZE_MAX,
            };
            let shards = Shards::Of { group, spread: bucket.spread };
            let query = ListQuery { shards, listing, skip: 0, with_data: true };
            let page = self.door.list(query).await?;
            let mut last = None;
            for entry in page.entries {
                count += 1;
                match entry {
                    PageEntry::CommonPrefix(prefix) => {
                        let text =
                            prefix.get(front.len()..).map(|it| String::from_utf8(it.to_vec()));
                        let Some(Ok(text)) = text else { return Err(not_asked()) };
                        last = Some((text.clone(), None));
                        found.common_prefixes.push(text);
                    }
                    PageEntry::Key(name, listed) => {
                        let record = listed.data.as_deref().map(OpenRecord::decode);
                        let (Some(IndexName::OpenUpload { key, uuid, .. }), Some(Ok(record))) =
                            (IndexName::decode(&name), record)
                        else {
                            let what = format!("an upload (\"{}\")", name.escape_ascii());
                            return Err(Failure::Damaged { what });
                        };
                        last = Some((key.as_str().to_owned(), Some(UploadId(uuid))));
                        found.uploads.push(record.of(key.as_str(), UploadId(uuid)));
                    }
                }
            }
            let Some(next) = page.next else { return Ok(found) };
            if count >= count_max {
                found.next = last;
                return Ok(found);
            }
            from = next;
        }
    }

    /// Aborts all open uploads of a bucket that is deleted.
    pub(crate) async fn abort_all(&self, bucket: &Bucket) -> Result<()> {
        let mut request = UploadsRequest { count_max: 1000, ..UploadsRequest::default() };
        loop {
            let page = self.list_uploads(bucket, &request).await?;
            for upload in &page.uploads {
                let key = Key::new(&upload.key)?;
                let names = bucket.upload_names(&key, upload.id)?;
                match self.abort(None, bucket, &key, &names, upload.id).await {
                    Ok(()) | Err(Failure::NoSuchUpload) => {}
                    Err(failure) => return Err(failure),
                }
            }
            match page.next {
                Some(next) => request.after = Some(next),
                None => return Ok(()),
            }
        }
    }

    pub(crate) async fn begin_part(
        self: &Arc<Self>,
        client: Client,
        bucket: &Bucket,
        key: &Key,
        (upload, number): (UploadId, u16),
        new: NewPart,
    ) -> Result<PartUpload<D>> {
        let NewPart { length, checksum, kept } = new;
        if !(1..=PARTS_MAX).contains(&u32::from(number)) {
            let why = format!("a part's number is 1 to {PARTS_MAX}");
            return Err(Failure::Invalid { why });
        }
        if length > BODY_MAX {
            return Err(Failure::TooLarge { size_max: BODY_MAX });
        }
        let names = bucket.upload_names(key, upload)?;
        let (_, open) = self.open_upload(&names, key).await?;
        if checksum.is_some_and(|kind| kind != open.checksum) {
            let why = "the upload was begun with another kind of checksum".into();
            return Err(Failure::Invalid { why });
        }
        let Some(data_pool) = self.data_pool(bucket).map(str::to_owned) else {
            return Err(Failure::NotImplemented { what: "a part without a data pool".into() });
        };
        let random = self.door.random();
        let storing = match length {
            0 => None,
            _ => {
                let writing = PartKey::Writing(number, random).field();
                let name = |places: &[Place]| Operation {
                    objects: vec![steps(
                        &names.parts,
                        vec![Assertion::Has(parts::open())],
                        vec![ObjectChange::Set(writing, parts::places(places))],
                    )],
                };
                let core = self.clone();
                let begun = Storing::begin_part(core, data_pool, length, kept, name).await;
                Some(begun.map_err(|failure| match failure {
                    Failure::Conflict => Failure::NoSuchUpload,
                    failure => failure,
                })?)
            }
        };
        let (core, digests) = (self.clone(), Digests::new(open.checksum));
        let size = 0;
        Ok(PartUpload { core, client, names, number, random, length, size, storing, digests })
    }

    /// Puts a part that was written, in place of the one that was there.
    async fn commit_part(
        &self,
        client: &Client,
        names: &UploadNames,
        (number, random): (u16, u64),
        part: &Part,
    ) -> Result<()> {
        let (key, value) = (PartKey::Part(number).field(), part.encode());
        let writing = (part.size > 0).then(|| PartKey::Writing(number, random).field());
        let mut before: Option<Vec<u8>> = None;
        for _ in 0..TRIES_MAX {
            let mut assertions = vec![Assertion::Has(parts::open())];
            let mut changes = vec![ObjectChange::Set(key.clone(), value.clone())];
            if let Some(writing) = &writing {
                assertions.push(Assertion::Has(writing.clone()));
                changes.push(ObjectChange::Unset(writing.clone()));
            }
            assertions.push(match &before {
                None => Assertion::Lacks(key.clone()),
                Some(before) => Assertion::Equals(key.clone(), before.clone()),
            });
            if let Some(before) = &before {
                let places = parts::read_places(PartKey::Part(number), before)
                    .map_err(|bad| Failure::Damaged { what: bad.to_string() })?;
                if !places.is_empty() {
                    let garbage = PartKey::Garbage(number, self.door.random()).field();
                    changes.push(ObjectChange::Set(garbage, parts::places(&places)));
                }
            }
            let judged = assertions.len() - 1;
            let commit = Operation { objects: vec![steps(&names.parts, assertions, changes)] };
            let is_unknown = match self.send(client, commit).await {
                Ok(_) => return Ok(()),
                Err(DoorError::Asserted { step, .. }) if step < judged => {
                    return Err(Failure::NoSuchUpload);
                }
                Err(DoorError::Asserted { .. }) => false,
                Err(DoorError::Unknown) => true,
                Err(error) => return Err(error.into()),
            };
            let mut fields = vec![key.clone()];
            fields.extend(writing.clone());
            let name = names.parts.clone();
            let read = Read::Values { name, fields, size_max: RECORDS_SIZE_MAX };
            let answer = self.door.look(vec![read]).await?.pop();
            let Some(ReadAnswer::Values(values)) = answer else { return Err(not_asked()) };
            let now = values.first().cloned().flatten().map(|value| value.to_vec());
            if is_unknown {
                if now.as_ref() == Some(&value) {
                    return Ok(());
                }
                // Only this commit, or the collector behind the end of the upload, takes the record away.
                let is_writing = values.get(1).is_some_and(Option::is_some);
                if writing.is_none() || !is_writing {
                    return Err(DoorError::Unknown.into());
                }
            }
            before = now;
        }
        Err(Failure::Unavailable { why: "others put the part all the time".into() })
    }
}

impl OpenRecord {
    fn of(&self, key: &str, id: UploadId) -> OpenUpload {
        OpenUpload {
            key: key.into(),
            id,
            owner: self.owner.clone(),
            created_ms: self.created_ms,
            checksum: self.checksum,
            checksum_shape: self.checksum_shape,
        }
    }
}

impl<D: Door> PartUpload<D> {
    /// Takes the next bytes of the body. Waits while too many are on their way.
    pub async fn write(&mut self, bytes: Bytes) -> Result<()> {
        self.size += bytes.len() as u64;
        if self.size > self.length {
            return Err(Failure::IncompleteBody);
        }
        self.digests.update(&bytes);
        match &mut self.storing {
            Some(storing) => storing.write(&bytes).await,
            None => Ok(()),
        }
    }

    /// The body is complete: puts the part, if what the client says of the body is right.
    pub async fn finish(self, expected: Expected) -> Result<PartInfo> {
        let PartUpload { core, client, names, number, random, length, size, storing, digests } =
            self;
        if size != length {
            return Err(Failure::IncompleteBody);
        }
        let (md5, checksum) = digests.finish();
        compare(&expected, &md5, &checksum)?;
        let (task_core, of_client, of_task) = (core.clone(), client.clone(), names.clone());
        let work = async move {
            let extent = match storing {
                None => Extent { places: Vec::new(), checksums: Vec::new() },
                Some(mut storing) => storing.finish().await?.0,
            };
            let modified_ms = task_core.wall_ms();
            let part = Part { size, md5, checksum, modified_ms, extent };
            let put = (number, random);
            let committed = task_core.commit_part(&of_client, &of_task, put, &part).await;
            if committed == Err(Failure::NoSuchUpload) {
                // It was aborted or completed: what was written behind the collector's trim is nobody's.
                for place in &part.extent.places {
                    let _ = task_core.trim(place).await;
                }
            }
            committed.map(|()| part.info(number))
        };
        core.answer(&client, core.run(&names.parts, work)).await
    }
}
