//! Keys and values as etcd stores them: bytes, with a prefix before each key.

use cluster::state::{KeyValue, LeaseId, OPERATION_COUNT_MAX, StateRevision, TRANSACTION_SIZE_MAX};

/// Longest prefix that [`EtcdPlace`](super::EtcdPlace) accepts, in bytes.
pub const PREFIX_SIZE_MAX: usize = 47;

/// Largest request that etcd accepts with its default settings, in bytes.
const REQUEST_SIZE_MAX: usize = 3 << 19;

// The largest transaction fits into a request, with the prefix before the key of each comparison and each
// write.
const _: () = assert!(
    TRANSACTION_SIZE_MAX + 2 * OPERATION_COUNT_MAX * (PREFIX_SIZE_MAX + 1) + 1024
        <= REQUEST_SIZE_MAX
);

/// Maps the keys of a store to keys in etcd and back.
#[derive(Clone)]
pub(super) struct Keys {
    /// Ends with `/`.
    prefix: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Keys {
        Keys { prefix: format!("{prefix}/") }
    }

    /// Returns the name under which etcd stores this key.
    pub(super) fn outer(&self, key: &str) -> Vec<u8> {
        [self.prefix.as_bytes(), key.as_bytes()].concat()
    }

    /// Returns the range in etcd of all keys that begin with `prefix`: the first key, and the first key
    /// after the range.
    pub(super) fn range(&self, prefix: &str) -> (Vec<u8>, Vec<u8>) {
        let begin = self.outer(prefix);
        let mut end = begin.clone();
        while end.last() == Some(&u8::MAX) {
            end.pop();
        }
        *end.last_mut().expect("our own prefix ends with a slash") += 1;
        (begin, end)
    }

    /// Returns the store's key for a key in etcd. `None` if the key in etcd lacks the prefix or is not valid
    /// UTF-8.
    pub(super) fn inner(&self, key: &[u8]) -> Option<String> {
        let key = key.strip_prefix(self.prefix.as_bytes())?;
        String::from_utf8(key.to_vec()).ok()
    }

    pub(super) fn entry(&self, found: &etcd_client::KeyValue) -> Option<KeyValue> {
        Some(KeyValue {
            key: self.inner(found.key())?,
            // A value that is not valid UTF-8 is not valid JSON either: the reader of the value reports
            // that.
            value: String::from_utf8_lossy(found.value()).into_owned(),
            revision: revision(found.mod_revision()),
            lease: (found.lease() != 0).then_some(LeaseId(found.lease().cast_unsigned())),
        })
    }
}

pub(super) fn revision(number: i64) -> StateRevision {
    // etcd's revisions start at 1, so a negative number does not occur.
    StateRevision::new(u64::try_from(number).unwrap_or(0))
}

pub(super) fn number(revision: StateRevision) -> i64 {
    i64::try_from(revision.get()).unwrap_or(i64::MAX)
}
