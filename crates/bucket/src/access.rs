//! Who may do what with a bucket: its owner everything, others what its canned ACL says.

use crate::api::{Bucket, CannedAcl};
use crate::names::Key;

/// What somebody wants to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    /// GET or HEAD an object.
    ReadObject(&'a Key),
    /// PUT an object.
    WriteObject(&'a Key),
    /// DELETE an object.
    DeleteObject(&'a Key),
    /// List the objects, or see whether the bucket is there.
    ListBucket,
    /// Read or set ACL and settings, or delete the bucket.
    Administer,
}

/// Returns whether the user may do this. `None`: a request without a signature.
pub fn may(user: Option<&str>, bucket: &Bucket, action: Action<'_>) -> bool {
    if user == Some(bucket.owner.as_str()) {
        return true;
    }
    match action {
        Action::ReadObject(_) | Action::ListBucket => bucket.acl == CannedAcl::PublicRead,
        Action::WriteObject(_) | Action::DeleteObject(_) | Action::Administer => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Versioning;
    use crate::names::BucketId;

    #[test]
    fn others_may_read_what_is_public_and_change_nothing() {
        let mut bucket = Bucket {
            name: "photos".into(),
            id: BucketId::new(1),
            owner: "ann".into(),
            created_ms: 0,
            acl: CannedAcl::Private,
            spread: 1,
            versioning: Versioning::Off,
            data_pool: None,
        };
        let key = Key::new("a").expect("a key");
        let reads = [Action::ReadObject(&key), Action::ListBucket];
        let writes = [Action::WriteObject(&key), Action::DeleteObject(&key), Action::Administer];
        for (acl, public) in [(CannedAcl::Private, false), (CannedAcl::PublicRead, true)] {
            bucket.acl = acl;
            for action in reads {
                assert!(may(Some("ann"), &bucket, action));
                assert_eq!(may(Some("bob"), &bucket, action), public);
                assert_eq!(may(None, &bucket, action), public);
            }
            for action in writes {
                assert!(may(Some("ann"), &bucket, action));
                assert!(!may(Some("bob"), &bucket, action));
                assert!(!may(None, &bucket, action));
            }
        }
    }
}
