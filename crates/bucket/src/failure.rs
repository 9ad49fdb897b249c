//! Why a request of a bucket failed: one value for each answer of S3's that users tell apart.

use std::fmt;

use crate::parts::PART_SIZE_MIN;

/// Why a request failed. Nothing was changed, unless the variant says otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// There is no such bucket.
    NoSuchBucket,
    /// There is no such object.
    NoSuchKey,
    /// The bucket has no version with this id.
    NoSuchVersion,
    /// There is no such upload: it was completed or aborted, or is one of another key.
    NoSuchUpload,
    /// The completion of an upload names a part that was not put, or with another tag or checksum.
    InvalidPart {
        /// Its number.
        number: u16,
    },
    /// The completion of an upload names its parts in another order than that of their numbers.
    InvalidPartOrder,
    /// A part that is not the last one is too small.
    PartTooSmall {
        /// Its number.
        number: u16,
        /// Its size in bytes.
        size: u64,
    },
    /// The current version is a delete marker.
    Hidden {
        /// The id of the marker, as [`crate::VersionId`] is shown.
        version_id: String,
    },
    /// Somebody else has a bucket of this name.
    BucketTaken,
    /// The user has this bucket.
    BucketOwned,
    /// The bucket has objects.
    BucketNotEmpty,
    /// A condition of the request is not met.
    PreconditionFailed,
    /// The object is as the client has it.
    NotModified,
    /// Others changed the object, again and again: the client may send the request again.
    Conflict,
    /// The range has no byte of the object.
    RangeUnsatisfiable {
        /// The object's size in bytes.
        size: u64,
    },
    /// The request breaks a rule or a limit.
    Invalid {
        /// Which one.
        why: String,
    },
    /// The name of the bucket breaks the rules for names.
    InvalidBucketName,
    /// The key is longer than 1,024 bytes.
    KeyTooLong,
    /// The body has more bytes than an object may have.
    TooLarge {
        /// The most bytes.
        size_max: u64,
    },
    /// The body ended before the announced length, or went on behind it.
    IncompleteBody,
    /// A digest or checksum of the client's is not that of the body.
    BadDigest {
        /// Which one.
        which: &'static str,
    },
    /// The user may not do this.
    AccessDenied,
    /// There is no space left.
    Full,
    /// The cluster did not answer in time, or too much is under way: the client may send it again. A change
    /// may have happened.
    Unavailable {
        /// What was waited for.
        why: String,
    },
    /// Stored data is damaged.
    Damaged {
        /// Where.
        what: String,
    },
    /// What is asked for is not there yet.
    NotImplemented {
        /// What.
        what: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoSuchBucket => f.write_str("there is no such bucket"),
            Failure::NoSuchKey => f.write_str("there is no such object"),
            Failure::NoSuchVersion => f.write_str("the object has no such version"),
            Failure::NoSuchUpload => {
                f.write_str("there is no such upload: it was completed or aborted")
            }
            Failure::InvalidPart { number } => {
                write!(f, "part {number} was not put, or has another tag or checksum")
            }
            Failure::InvalidPartOrder => f.write_str("parts are not in the order of their numbers"),
            Failure::PartTooSmall { number, size } => write!(
                f,
                "part {number} has {size} bytes: each but the last has {PART_SIZE_MIN} at least"
            ),
            Failure::Hidden { .. } => f.write_str("the current version is a delete marker"),
            Failure::BucketTaken => f.write_str("another user has a bucket of this name"),
            Failure::BucketOwned => f.write_str("you have a bucket of this name"),
            Failure::BucketNotEmpty => f.write_str("the bucket has objects: remove them first"),
            Failure::PreconditionFailed => f.write_str("a condition of the request is not met"),
            Failure::NotModified => f.write_str("the object was not modified"),
            Failure::Conflict => {
                f.write_str("others change the object all the time: send the request again")
            }
            Failure::RangeUnsatisfiable { size } => {
                write!(f, "the object has {size} bytes, and none of them is in the range")
            }
            Failure::Invalid { why } => f.write_str(why),
            Failure::InvalidBucketName => f.write_str(
                "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens",
            ),
            Failure::KeyTooLong => f.write_str("a key has at most 1024 bytes"),
            Failure::TooLarge { size_max } => {
                write!(f, "an object that is put at once has at most {size_max} bytes")
            }
            Failure::IncompleteBody => {
                f.write_str("the body does not have the length that was announced")
            }
            Failure::BadDigest { which } => write!(f, "{which} is not that of the body"),
            Failure::AccessDenied => f.write_str("access denied"),
            Failure::Full => f.write_str("no space is left"),
            Failure::Unavailable { why } => write!(f, "unavailable: {why}"),
            Failure::Damaged { what } => write!(f, "stored data is damaged: {what}"),
            Failure::NotImplemented { what } => write!(f, "{what} is not implemented"),
        }
    }
}

impl std::error::Error for Failure {}
