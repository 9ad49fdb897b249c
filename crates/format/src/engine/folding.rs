//! Common prefixes: which record of a list stands for others, so that these are not read.
//!
//! ```text
//!   key      prefix_size bytes | directory/ | name
//!            ──────── common prefix ──────── ┆ what is behind the delimiter
//! ```
//!
//! Invariants
//!   1. Only a record that counts stands for others: else what it hides could never be told.
//!   2. Engines, and whoever lays changes over their answers, decide it with the same functions.

/// Which records of a list stand for others. By default none does.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Folding {
    /// How many bytes of a key lie before those in which the delimiter is looked for. Requires: each key of
    /// the range has them.
    pub prefix_size: usize,
    /// A record that counts stands for all keys that begin like its own, up to the end of these bytes. Empty:
    /// it stands for itself.
    pub delimiter: Vec<u8>,
    /// A record with one of these flags does not count: it is in the answer, and what follows it is, too.
    pub passed: Vec<Flags>,
}

/// Flags of a value, in one of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flags {
    /// Where the byte lies in the value.
    pub at: usize,
    /// Its bits that are flags.
    pub mask: u8,
}

impl Folding {
    /// Whether a record with this value counts.
    pub fn counts(&self, value: &[u8]) -> bool {
        let has = |flags: &Flags| value.get(flags.at).is_some_and(|byte| byte & flags.mask != 0);
        !self.passed.iter().any(has)
    }

    /// Returns what the keys begin with for which a record stands. `None`: it stands for itself.
    pub fn common_prefix<'a>(&self, key: &'a [u8], value: &[u8]) -> Option<&'a [u8]> {
        common_prefix(key, self.prefix_size, &self.delimiter).filter(|_| self.counts(value))
    }
}

/// Returns a key up to the end of the first delimiter behind its first bytes. `None`: there is none, or the
/// delimiter is empty. Requires: the key has so many bytes.
pub fn common_prefix<'a>(key: &'a [u8], prefix_size: usize, delimiter: &[u8]) -> Option<&'a [u8]> {
    if delimiter.is_empty() {
        return None;
    }
    let at = key[prefix_size..].windows(delimiter.len()).position(|bytes| bytes == delimiter)?;
    Some(&key[..prefix_size + at + delimiter.len()])
}

/// Returns the first sequence of bytes behind all that begin with these. `None`: there is none.
pub fn behind(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|byte| *byte < u8::MAX)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_counts_stands_for_its_common_prefix() {
        let passed = vec![Flags { at: 1, mask: 5 }];
        let folding = Folding { prefix_size: 2, delimiter: b"//".to_vec(), passed };
        assert_eq!(folding.common_prefix(b"//a/b//c", b""), Some(&b"//a/b//"[..]));
        assert_eq!(folding.common_prefix(b"//a/b//c", b"\x05\x02"), Some(&b"//a/b//"[..]));
        assert_eq!(folding.common_prefix(b"//a/b//c", b"\x00\x04"), None);
        assert_eq!(folding.common_prefix(b"///", b""), None);
        assert_eq!(Folding::default().common_prefix(b"a", b""), None);
    }

    #[test]
    fn what_is_behind_a_prefix_begins_otherwise() {
        let found = (behind(b"a\xff"), behind(b"\xff"), behind(b""));
        assert_eq!(found, (Some(b"b".to_vec()), None, None));
    }
}
