//! What the gateway asks of buckets, and what it gets: plain data, without HTTP.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;

use crate::{BucketId, VersionId};

/// After its last byte a client is waited for this long before it is told *unavailable*.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Nothing is sent for a request whose last byte came longer ago than this.
pub const SEND_WITHIN: Duration = Duration::from_secs(60);

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
}

/// What a client says of a body: known with the request, or behind the body.
#[derive(Clone, Default, Debug)]
pub struct Expected {
    /// Content-MD5.
    pub md5: Option<[u8; 16]>,
    /// SHA-256 of the body, as a signature has it.
    pub sha256: Option<[u8; 32]>,
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
#[derive(Clone, Debug)]
pub struct Found {
    /// The object.
    pub info: ObjectInfo,
    /// What was put with it.
    pub metadata: Metadata,
    /// The first byte of the range, and the first one behind it.
    pub range: std::ops::Range<u64>,
    /// The bytes, if they lie in the index.
    pub inline: Option<Bytes>,
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
