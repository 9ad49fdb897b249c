//! Who may do what, until the crate `bucket` says so.

use bucket::{Bucket, CannedAcl, Failure};

/// What somebody wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Read objects.
    ReadObject,
    /// Put and delete objects.
    WriteObject,
    /// List objects, and learn that the bucket is there.
    ListBucket,
    /// See or change what the bucket is.
    OwnBucket,
}

/// Whether a user may do this.
pub fn access(user: Option<&str>, bucket: &Bucket, action: Action) -> Result<(), Failure> {
    let is_reading = matches!(action, Action::ReadObject | Action::ListBucket);
    match user {
        Some(user) if user == bucket.owner => Ok(()),
        _ if is_reading && bucket.acl == CannedAcl::PublicRead => Ok(()),
        _ => Err(Failure::AccessDenied),
    }
}
