//! GET and HEAD. `docs/internals/buckets.md`, rules 7 and 9: one look at the key shows head, metadata and data, or
//! where the data is, so conditions, range and bytes are of one moment.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use objects::Name;

use crate::api::{Bucket, ByteRange, Conditions, Data, Found, Kept, Metadata};
use crate::change::judge_read;
use crate::core::{Core, Result};
use crate::door::Door;
use crate::failure::Failure;
use crate::head::{Head, VersionHead};
use crate::large::DataReader;
use crate::names::{Key, VersionStamp};
use crate::records::{Content, Meta, RecordKey};

/// How often a GET begins anew because the object was replaced before the first byte.
const BEGUN_MAX: u32 = 8;

/// An object as a look showed it.
struct SeenObject {
    name: Name,
    current: VersionHead,
    metadata: Metadata,
    range: Range<u64>,
    content: Content,
}

impl<D: Door> Core<D> {
    pub(crate) async fn get(
        self: Arc<Self>,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
        range: Option<ByteRange>,
        kept: Kept,
    ) -> Result<Found<D>> {
        for _ in 0..BEGUN_MAX {
            let seen = self.look_at_object(bucket, key, conditions, range).await?;
            let SeenObject { name, current, metadata, range, content } = seen;
            let data = match content {
                Content::Inline(bytes) => {
                    Data::Inline(bytes.slice(range.start as usize..range.end as usize))
                }
                // An upload may have had one part without bytes.
                _ if range.is_empty() => Data::Inline(Bytes::new()),
                content => {
                    let (core, kept) = (self.clone(), kept.clone());
                    let of = (name, &current);
                    match DataReader::begin(core, of, content, range.clone(), kept).await? {
                        Some(reader) => Data::Stored(reader),
                        None => continue,
                    }
                }
            };
            return Ok(Found { info: current.info(), metadata, range, data });
        }
        Err(Failure::Unavailable { why: "others replace the object all the time".into() })
    }

    pub(crate) async fn head(
        &self,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
        range: Option<ByteRange>,
    ) -> Result<Found<D>> {
        let seen = self.look_at_object(bucket, key, conditions, range).await?;
        let SeenObject { current, metadata, range, .. } = seen;
        Ok(Found { info: current.info(), metadata, range, data: Data::None })
    }

    /// Looks at a key, and judges all of a request on that moment.
    async fn look_at_object(
        &self,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
        range: Option<ByteRange>,
    ) -> Result<SeenObject> {
        let name = bucket.key_name(key)?;
        let damaged = |what: String| Failure::Damaged { what: format!("{what} (key {key})") };
        let records = [RecordKey::NullMeta, RecordKey::NullData];
        let look = self.look_at_records(&name, &records, None).await?;
        let (_, Head { current, .. }) = look.head.ok_or(Failure::NoSuchKey)?;
        if current.is_hidden {
            return Err(Failure::Hidden { version_id: current.version_id().to_string() });
        }
        judge_read(conditions, &current)?;
        let range = bytes_of(range, current.size)?;
        if !current.is_null {
            return Err(not_yet("a GET of a key with versions"));
        }
        let [Some(meta), Some(content)] = &look.records[..] else {
            return Err(damaged("records of the current version are not there".into()));
        };
        let meta = Meta::decode(meta).map_err(|bad| damaged(bad.to_string()))?;
        if meta.encryption.is_some() || meta.acl.is_some() {
            return Err(not_yet("a GET of an object with encryption or an ACL of its own"));
        }
        let content = Content::decode(content).map_err(|bad| damaged(bad.to_string()))?;
        let size = match &content {
            Content::Inline(bytes) => bytes.len() as u64,
            Content::Places { places, .. } => places.iter().map(|place| place.length).sum(),
            Content::Manifest { .. } => current.size,
        };
        if size != current.size || current.is_large == matches!(content, Content::Inline(_)) {
            return Err(damaged("the data has another size than its head says".into()));
        }
        Ok(SeenObject { name, current, metadata: meta.metadata, range, content })
    }

    /// Returns where the data of a version is now. `None`: it is not the current one any more.
    pub(crate) async fn content_of(
        &self,
        name: &Name,
        version: VersionStamp,
    ) -> Result<Option<Content>> {
        let look = self.look_at_records(name, &[RecordKey::NullData], None).await?;
        let current = look.head.map(|(_, head)| head.current);
        let Some(current) = current.filter(|current| current.id == version) else {
            return Ok(None);
        };
        let content = look.records.first().and_then(Option::as_ref).map(|it| Content::decode(it));
        match content {
            Some(Ok(content)) if current.is_large => Ok(Some(content)),
            _ => Err(Failure::Damaged { what: format!("a large object has no places ({name:?})") }),
        }
    }
}

fn not_yet(what: &str) -> Failure {
    Failure::NotImplemented { what: what.into() }
}

/// Returns which bytes of an object are wanted.
fn bytes_of(range: Option<ByteRange>, size: u64) -> Result<std::ops::Range<u64>> {
    let range = match range {
        None => return Ok(0..size),
        Some(ByteRange::From(first, last)) => {
            first..last.map_or(size, |last| last.saturating_add(1).min(size))
        }
        Some(ByteRange::Last(count)) => size.saturating_sub(count)..size,
    };
    match range.start < range.end {
        true => Ok(range),
        false => Err(Failure::RangeUnsatisfiable { size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_http() {
        let bytes = |range, size| bytes_of(range, size).ok();
        assert_eq!(bytes(None, 0), Some(0..0));
        assert_eq!(bytes(Some(ByteRange::From(2, Some(4))), 10), Some(2..5));
        assert_eq!(bytes(Some(ByteRange::From(2, Some(40))), 10), Some(2..10));
        assert_eq!(bytes(Some(ByteRange::From(2, Some(u64::MAX))), 10), Some(2..10));
        assert_eq!(bytes(Some(ByteRange::From(9, None)), 10), Some(9..10));
        assert_eq!(bytes(Some(ByteRange::From(10, None)), 10), None);
        assert_eq!(bytes(Some(ByteRange::Last(3)), 10), Some(7..10));
        assert_eq!(bytes(Some(ByteRange::Last(30)), 10), Some(0..10));
        assert_eq!(bytes(Some(ByteRange::Last(0)), 10), None);
        assert_eq!(bytes(Some(ByteRange::Last(1)), 0), None);
    }
}
