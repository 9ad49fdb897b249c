//! GET and HEAD. `docs/internals/buckets.md`, rule 9: one look at the key shows head, metadata and data, so
//! conditions, range and bytes are of one moment.

use objects::{Field, Read, ReadAnswer};

use crate::api::{Bucket, ByteRange, Conditions, Found};
use crate::change::judge_read;
use crate::core::{Core, DATA_SIZE_MAX, Result, not_asked};
use crate::door::Door;
use crate::failure::Failure;
use crate::head::Head;
use crate::names::Key;
use crate::records::{Content, Meta, RecordKey};

/// The most bytes of records in the answer of a look.
const RECORDS_SIZE_MAX: usize = 160 << 10;

impl<D: Door> Core<D> {
    pub(crate) async fn get(
        &self,
        bucket: &Bucket,
        key: &Key,
        conditions: &Conditions,
        range: Option<ByteRange>,
    ) -> Result<Found> {
        let name = bucket.key_name(key)?;
        let fields = [RecordKey::NullMeta, RecordKey::NullData];
        let fields = fields.map(|key| Field::Record(key.encode())).to_vec();
        let reads = vec![
            Read::Data { name: name.clone(), offset: 0, length: DATA_SIZE_MAX },
            Read::Values { name, fields, size_max: RECORDS_SIZE_MAX },
        ];
        let mut answers = self.door.look(reads).await?.into_iter();
        let (found, values) = match (answers.next(), answers.next(), answers.next()) {
            (Some(ReadAnswer::Data(found)), Some(ReadAnswer::Values(values)), None) => {
                (found, values)
            }
            _ => return Err(not_asked()),
        };
        let damaged = |what: String| Failure::Damaged { what: format!("{what} (key {key})") };
        let (_, data) = found.ok_or(Failure::NoSuchKey)?;
        let Head { current, .. } = Head::decode(&data).map_err(|bad| damaged(bad.to_string()))?;
        if current.is_hidden {
            return Err(Failure::Hidden { version_id: current.version_id().to_string() });
        }
        judge_read(conditions, &current)?;
        let range = bytes_of(range, current.size)?;
        if !current.is_null {
            return Err(Failure::NotImplemented { what: "a GET of a key with versions".into() });
        }
        let mut values = values.into_iter();
        let (Some(Some(meta)), Some(Some(content))) = (values.next(), values.next()) else {
            return Err(damaged("records of the current version are not there".into()));
        };
        let meta = Meta::decode(&meta).map_err(|bad| damaged(bad.to_string()))?;
        if meta.encryption.is_some() || meta.acl.is_some() {
            let what = "a GET of an object with encryption or an ACL of its own".into();
            return Err(Failure::NotImplemented { what });
        }
        let content = Content::decode(&content).map_err(|bad| damaged(bad.to_string()))?;
        let Content::Inline(bytes) = content else {
            return Err(Failure::NotImplemented { what: "a GET of large data".into() });
        };
        if bytes.len() as u64 != current.size {
            return Err(damaged("the data has another size than its head says".into()));
        }
        let inline = Some(bytes.slice(range.start as usize..range.end as usize));
        Ok(Found { info: current.info(), metadata: meta.metadata, range, inline })
    }
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
