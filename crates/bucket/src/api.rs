//! What the gateway asks of buckets, and what it gets: plain data, without HTTP.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::collector::UPLOAD_DEAD;
use crate::door::Door;
use crate::large::DataReader;
use crate::parts::PART_SIZE_MIN;
use crate::put::{INLINE_BODY_DEFAULT, INLINE_BODY_MAX};
use crate::{BucketId, VersionId};

/// After its last byte a client is waited for this long before it is told *unavailable*.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Nothing is sent for a request whose last byte came longer ago than this.
pub const SEND_WITHIN: Duration = Duration::from_secs(60);

/// How a gateway keeps data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The pool of volumes for the data of new buckets, and of buckets without one. `None`: an object has at
    /// most [`INLINE_BODY_MAX`] bytes.
    pub data_pool: Option<String>,
    /// Bodies of up to so many bytes lie in the index, beside their head: at most [`INLINE_BODY_MAX`].
    pub inline_max: u64,
    /// Data that was deleted or replaced is given back after this time, so that who reads it can end. Only
    /// comfort depends on it: who reads data that was given back is told so.
    pub grace: Duration,
    /// An upload that has not changed its stray for so long has ended: its gateway is gone. They change it
    /// every five minutes.
    pub upload_dead: Duration,
    /// The least bytes of a part of an upload that is not the last one.
    pub part_size_min: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            data_pool: None,
            inline_max: INLINE_BODY_DEFAULT,
            grace: Duration::from_secs(300),
            upload_dead: UPLOAD_DEAD,
            part_size_min: PART_SIZE_MIN,
        }
    }
}

impl Settings {
    /// Returns the longest body that lies in the index, for a bucket with or without a data pool.
    pub(crate) fn inline_max(&self, has_data_pool: bool) -> u64 {
        match has_data_pool {
            true => self.inline_max.min(INLINE_BODY_MAX),
            false => INLINE_BODY_MAX,
        }
    }
}

/// What is kept until the library is done with the data of a request, also if the request is given up: a
/// share of the memory that all requests have.
#[derive(Clone, Default)]
pub struct Kept(Option<Arc<dyn Any + Send + Sync>>);

impl Kept {
    /// Keeps this.
    pub fn new(what: Arc<dyn Any + Send + Sync>) -> Kept {
        Kept(Some(what))
    }
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({})", self.0.is_some())
    }
}

/// What a request knows of its client. Who was answered, is gone, or sent its last byte long ago gets nothing
/// sent any more: its body could land on a newer one of the same client.
#[derive(Clone, Default, Debug)]
pub struct Client(Arc<ClientState>);

#[derive(Default, Debug)]
struct ClientState {
    is_over: AtomicBool,
    /// When its last byte came, on the running clock, in microseconds; 0: it has not.
    last_byte_us: AtomicU64,
}

impl Client {
    /// Creates a client that waits.
    pub fn new() -> Client {
        Client::default()
    }

    /// The client was answered, or its connection is gone.
    pub fn is_done_with(&self) {
        self.0.is_over.store(true, Ordering::SeqCst);
    }

    /// The last byte of the request came at this moment of the running clock.
    pub fn sent_last_byte(&self, running_us: u64) {
        self.0.last_byte_us.store(running_us.max(1), Ordering::SeqCst);
    }

    /// Whether something may still be sent for it.
    pub fn may_send(&self, running_us: u64) -> bool {
        let last = self.0.last_byte_us.load(Ordering::SeqCst);
        let waited = running_us.saturating_sub(last);
        !self.0.is_over.load(Ordering::SeqCst)
            && (last == 0 || waited < SEND_WITHIN.as_micros() as u64)
    }
}

/// A bucket, as some look saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// 64 random bits that no other bucket ever has.
    pub id: BucketId,
    /// The user who made it.
    pub owner: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// Who else may do something with it.
    pub acl: CannedAcl,
    /// In how many shards its keys lie: a power of two from 1 to 4,096.
    pub spread: u16,
    /// Whether objects have versions.
    pub versioning: Versioning,
    /// The pool of volumes for data that does not lie in the index. `None`: that of the gateway.
    pub data_pool: Option<String>,
}

/// Who else may read a bucket.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum CannedAcl {
    /// Only the owner.
    #[default]
    Private,
    /// Everybody may read and list.
    PublicRead,
}

/// Whether objects of a bucket have versions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Versioning {
    /// They never had.
    #[default]
    Off,
    /// Each put and delete makes one.
    Enabled,
    /// They had; puts and deletes replace the null version now.
    Suspended,
}

/// Which of the checksums that S3 knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChecksumKind {
    /// 4 bytes.
    Crc32,
    /// 4 bytes.
    Crc32c,
    /// 20 bytes.
    Sha1,
    /// 32 bytes.
    Sha256,
    /// 8 bytes.
    Crc64Nvme,
}

/// A checksum of all bytes of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Checksum {
    /// Which one.
    pub kind: ChecksumKind,
    /// Its bytes, big-endian.
    pub value: Vec<u8>,
}

/// Of what a checksum is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ChecksumShape {
    /// Of all bytes.
    #[default]
    Whole,
    /// Of the checksums of the parts.
    Parts,
}

/// An entity tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ETag {
    /// An MD5 sum: of the body, or of the MD5 sums of the parts.
    pub md5: [u8; 16],
    /// The number of parts. 0: the object was put at once.
    pub parts: u16,
}

impl fmt::Display for ETag {
    /// As clients see it, without quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.md5.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        if self.parts > 0 { write!(f, "-{}", self.parts) } else { Ok(()) }
    }
}

/// Headers of an object that are given back as they came.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Metadata {
    /// Content-Type, Content-Encoding, Content-Disposition, Content-Language, Cache-Control, Expires: by
    /// their names in lower case.
    pub headers: BTreeMap<String, String>,
    /// `x-amz-meta-*`, without that prefix: at most 2 KiB of names and values.
    pub user: BTreeMap<String, String>,
}

/// An object, as some look saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectInfo {
    /// Its size in bytes.
    pub size: u64,
    /// When it was put, in milliseconds since 1970.
    pub modified_ms: u64,
    /// Its tag.
    pub etag: ETag,
    /// The checksum that its client sent, or asked for.
    pub checksum: Option<Checksum>,
    /// Of what the checksum is.
    pub checksum_shape: ChecksumShape,
    /// The user who put it.
    pub owner: String,
    /// Its version.
    pub version: VersionId,
}

/// Conditions of RFC 9110, as the request has them. Tags are without quotes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Conditions {
    /// If-Match.
    pub if_match: Option<TagCondition>,
    /// If-None-Match.
    pub if_none_match: Option<TagCondition>,
    /// If-Modified-Since, in seconds since 1970.
    pub if_modified_since: Option<u64>,
    /// If-Unmodified-Since, in seconds since 1970.
    pub if_unmodified_since: Option<u64>,
}

/// Which tags a condition names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TagCondition {
    /// `*`: any.
    Any,
    /// One of these.
    OneOf(Vec<String>),
}

/// A new object.
#[derive(Clone, Debug)]
pub struct NewObject {
    /// The user who puts it.
    pub owner: String,
    /// Conditions on what is there: If-Match and If-None-Match count.
    pub conditions: Conditions,
    /// What is given back with it.
    pub metadata: Metadata,
    /// The length that was announced. `None`: it is not known before the end.
    pub length: Option<u64>,
    /// The checksum that is computed and kept.
    pub checksum: ChecksumKind,
    /// What is kept until no byte of the body is held any more.
    pub kept: Kept,
}

/// A new upload in parts.
#[derive(Clone, Debug)]
pub struct NewUpload {
    /// The user who begins it.
    pub owner: String,
    /// What is given back with the object.
    pub metadata: Metadata,
    /// The checksum of the object and of its parts.
    pub checksum: ChecksumKind,
    /// Of what the object's checksum is: of all bytes, or of the checksums of the parts.
    pub checksum_shape: ChecksumShape,
}

/// A part that is put.
#[derive(Clone, Debug)]
pub struct NewPart {
    /// Its size in bytes.
    pub length: u64,
    /// The kind of checksum that its client has announced, if it did.
    pub checksum: Option<ChecksumKind>,
    /// What is kept until no byte of the body is held any more.
    pub kept: Kept,
}

/// The id of an upload in parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct UploadId(pub u128);

impl UploadId {
    /// Reads what `Display` writes. `None`: it is no id.
    pub fn parse(text: &str) -> Option<UploadId> {
        let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        let is_id = text.len() == 32 && text.bytes().all(is_hex);
        is_id.then(|| u128::from_str_radix(text, 16).ok().map(UploadId)).flatten()
    }
}

impl fmt::Display for UploadId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A part of an upload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartInfo {
    /// Its number, 1 to 10,000.
    pub number: u16,
    /// Its size in bytes.
    pub size: u64,
    /// The MD5 sum of its bytes.
    pub etag: ETag,
    /// The checksum of its bytes.
    pub checksum: Checksum,
    /// When it was put, in milliseconds since 1970.
    pub modified_ms: u64,
}

/// A part that the completion of an upload names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamedPart {
    /// Its number.
    pub number: u16,
    /// Its tag, without quotes.
    pub etag: String,
    /// Its checksum, if the client says one.
    pub checksum: Option<Checksum>,
}

/// How an upload is completed.
#[derive(Clone, Default, Debug)]
pub struct Completion {
    /// Its parts, in the order of their numbers.
    pub parts: Vec<NamedPart>,
    /// Conditions on what is there: If-Match and If-None-Match count.
    pub conditions: Conditions,
    /// The checksum of the object that the client expects.
    pub checksum: Option<Checksum>,
    /// The size of the object that the client expects.
    pub size: Option<u64>,
}

/// An upload that is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenUpload {
    /// The key.
    pub key: String,
    /// The upload.
    pub id: UploadId,
    /// The user who began it.
    pub owner: String,
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: u64,
    /// The checksum of the object and of its parts.
    pub checksum: ChecksumKind,
    /// Of what the object's checksum is.
    pub checksum_shape: ChecksumShape,
}

/// What a client says of a body: known with the request, or behind the body.
#[derive(Clone, Default, Debug)]
pub struct Expected {
    /// Content-MD5.
    pub md5: Option<[u8; 16]>,
    /// `x-amz-checksum-*`, from a header or a trailer.
    pub checksum: Option<Checksum>,
}

/// Which bytes of an object are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ByteRange {
    /// From the first one up to the last one, which is in it. `None`: to the end.
    From(u64, Option<u64>),
    /// So many at the end.
    Last(u64),
}

/// Which objects are listed.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ListRequest {
    /// Only keys that begin so.
    pub prefix: String,
    /// Keys that have this behind the prefix are told as one common prefix. Empty: none are.
    pub delimiter: String,
    /// Only keys behind this one: `start-after` of version 2, `marker` of version 1, which may be a common
    /// prefix.
    pub after: Option<String>,
    /// The `next` of the page before; counts instead of `after`.
    pub token: Option<Vec<u8>>,
    /// The most entries, 0 to 1,000.
    pub count_max: usize,
}

/// A page of objects.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ListPage {
    /// Objects and common prefixes, in the order of their keys.
    pub entries: Vec<ListEntry>,
    /// Where the next page begins. `None`: there is no more.
    pub next: Option<Vec<u8>>,
}

/// An entry of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListEntry {
    /// An object: its key and what is known of it.
    Object(String, ObjectInfo),
    /// What several keys begin with.
    CommonPrefix(String),
}

/// An object that was found, and the range of its data that was asked for.
#[derive(Debug)]
pub struct Found<D: Door> {
    /// The object.
    pub info: ObjectInfo,
    /// What was put with it.
    pub metadata: Metadata,
    /// The first byte of the range, and the first one behind it.
    pub range: std::ops::Range<u64>,
    /// The bytes.
    pub data: Data<D>,
}

/// Bytes of an object.
#[derive(Debug)]
pub enum Data<D: Door> {
    /// They were not asked for.
    None,
    /// Here they are.
    Inline(Bytes),
    /// They come one piece after the other.
    Stored(DataReader<D>),
}

/// A user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Its name: 1 to 64 letters, digits, `.`, `_`, `-`, `@`.
    pub name: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// An access key of a user. The secret is sealed: see [`crate::Sealer`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessKey {
    /// What is sent in clear: 20 capital letters and digits.
    pub id: String,
    /// The user.
    pub user: String,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
    /// The secret, encrypted.
    pub sealed_secret: Vec<u8>,
}
