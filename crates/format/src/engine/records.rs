//! Records in the order of their keys, in one piece of memory: a page of a scan.
//!
//! ```text
//!   bytes   key value key value ...
//!   ends    (end of key, end of value) of each record
//! ```

use bytes::Bytes;

/// Some records, in the order of their keys.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Records {
    bytes: Vec<u8>,
    ends: Vec<(usize, usize)>,
}

impl Records {
    /// Adds a record. Requires: its key is above all others.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        debug_assert!(self.last_key().is_none_or(|last| last < key));
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key_end, self.bytes.len()));
    }

    /// Returns the number of records.
    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the bytes of all keys and values.
    pub fn size(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the records as pairs of key and value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|(_, end)| *end));
        starts.zip(&self.ends).map(|(start, (key_end, end))| {
            (&self.bytes[start..*key_end], &self.bytes[*key_end..*end])
        })
    }

    /// Returns the records as pairs of key and value, which share the memory of all.
    pub fn into_shared(self) -> impl Iterator<Item = (Bytes, Bytes)> {
        let (bytes, mut start) = (Bytes::from(self.bytes), 0);
        self.ends.into_iter().map(move |(key_end, end)| {
            let pair = (bytes.slice(start..key_end), bytes.slice(key_end..end));
            start = end;
            pair
        })
    }

    /// Forgets all but the first records.
    pub fn truncate(&mut self, count: usize) {
        self.ends.truncate(count);
        self.bytes.truncate(self.ends.last().map_or(0, |(_, end)| *end));
    }

    /// Returns the last key.
    pub fn last_key(&self) -> Option<&[u8]> {
        let (key_end, _) = *self.ends.last()?;
        let start = self.ends.len().checked_sub(2).map_or(0, |before| self.ends[before].1);
        Some(&self.bytes[start..key_end])
    }
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(key, value)| {
                (key.escape_ascii().to_string(), value.escape_ascii().to_string())
            }))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Records;

    #[test]
    fn records_come_back_in_order() {
        let mut records = Records::default();
        assert_eq!(records.last_key(), None);
        records.push(b"a", b"");
        assert_eq!(records.last_key(), Some(&b"a"[..]));
        records.push(b"bc", b"value");
        records.push(b"d", b"x");
        let expected: [(&[u8], &[u8]); 3] = [(b"a", b""), (b"bc", b"value"), (b"d", b"x")];
        assert!(records.iter().eq(expected));
        assert_eq!(records.last_key(), Some(&b"d"[..]));
        assert_eq!((records.count(), records.size()), (3, 10));
        records.truncate(1);
        assert!(records.iter().eq(expected.into_iter().take(1)));
        records.truncate(0);
        assert_eq!((records.last_key(), records.size()), (None, 0));
    }
}
