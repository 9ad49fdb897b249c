//! The engine's door: the requests by which the logic uses an engine, and the events that it receives from it.
//!
//! `engine::Rocks` implements the door on threads; `engine::Twin` implements it in memory, for the simulator. Both
//! give the guarantees of `docs/internals/engine.md`, whose rules are quoted here by number.

use std::fmt;
use std::sync::Arc;

use base::{Lsn, PoolId};

mod folding;
mod records;

pub use folding::{Flags, Folding, behind, common_prefix};
pub use records::Records;

/// The longest key, in bytes.
pub const KEY_SIZE_MAX: usize = 4352;
/// The largest value, in bytes.
pub const VALUE_SIZE_MAX: usize = 4 << 20;
/// The largest batch: the sum of its keys and values, in bytes.
pub const BATCH_SIZE_MAX: usize = 8 << 20;
/// The largest number of queries in a read.
pub const QUERY_COUNT_MAX: usize = 1024;
/// The largest number of writes, creations and removals under way.
pub const WRITE_COUNT_MAX: usize = 256;
/// The largest number of reads and requests for statistics under way.
pub const READ_COUNT_MAX: usize = 256;
/// The largest number of flushes under way.
pub const FLUSH_COUNT_MAX: usize = 64;

/// Identifies a request. The issuer chooses the id, and never reuses it while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct EngineOp(pub u64);

/// Who an engine is, and whose: its directory and the superblock of its store name each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Drawn at random when the engine is created.
    pub engine: u128,
    /// The identity of the store.
    pub store: u128,
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "engine {:032x} of store {:032x}", self.engine, self.store)
    }
}

/// How the blocks of a family are compressed on disk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Compression {
    /// Not at all.
    None,
    /// Snappy.
    Snappy,
    /// LZ4: the fastest that is worth it.
    Lz4,
    /// LZ4, slower to write and smaller; as fast to read.
    Lz4High,
    /// Zstandard, at its default level.
    Zstd,
    /// zlib, at its default level.
    Zlib,
    /// zlib, at its best level.
    ZlibBest,
    /// bzip2.
    Bzip2,
}

impl Compression {
    /// All of them.
    pub const ALL: [Compression; 8] = [
        Compression::None,
        Compression::Snappy,
        Compression::Lz4,
        Compression::Lz4High,
        Compression::Zstd,
        Compression::Zlib,
        Compression::ZlibBest,
        Compression::Bzip2,
    ];

    /// Returns the name that is written to disk; it never changes.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Snappy => "snappy",
            Compression::Lz4 => "lz4",
            Compression::Lz4High => "lz4hc",
            Compression::Zstd => "zstd",
            Compression::Zlib => "zlib",
            Compression::ZlibBest => "zlib-best",
            Compression::Bzip2 => "bzip2",
        }
    }

    /// Returns the number that is written to disk, from 1; it never changes.
    pub const fn number(self) -> u8 {
        match self {
            Compression::None => 1,
            Compression::Snappy => 2,
            Compression::Lz4 => 3,
            Compression::Lz4High => 4,
            Compression::Zstd => 5,
            Compression::Zlib => 6,
            Compression::ZlibBest => 7,
            Compression::Bzip2 => 8,
        }
    }

    /// Returns the compression with this number.
    pub fn from_number(number: u8) -> Option<Compression> {
        Compression::ALL.into_iter().find(|compression| compression.number() == number)
    }

    /// Returns the compression with this name.
    pub fn from_name(name: &str) -> Option<Compression> {
        Compression::ALL.into_iter().find(|compression| compression.name() == name)
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A compression is serialized as its name.
#[cfg(feature = "serde")]
impl serde::Serialize for Compression {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.name())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Compression {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Compression, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = Compression;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a compression: ")?;
                f.write_str(&Compression::ALL.map(Compression::name).join(", "))
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Compression, E> {
                let unknown = || E::invalid_value(serde::de::Unexpected::Str(text), &self);
                Compression::from_name(text).ok_or_else(unknown)
            }
        }
        from.deserialize_str(Visitor)
    }
}

/// A change of one family. Keys are not empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The key has this value.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value; may be empty.
        value: Vec<u8>,
    },
    /// The key is absent.
    Delete {
        /// The key.
        key: Vec<u8>,
    },
    /// All keys of the range are absent. Requires: `start < end`.
    DeleteRange {
        /// The first key of the range.
        start: Vec<u8>,
        /// The first key behind it.
        end: Vec<u8>,
    },
}

impl Change {
    /// Returns the bytes of its keys and its value.
    pub fn size(&self) -> usize {
        match self {
            Change::Put { key, value } => key.len() + value.len(),
            Change::Delete { key } => key.len(),
            Change::DeleteRange { start, end } => start.len() + end.len(),
        }
    }

    /// Whether the change is within the limits.
    pub fn is_sound(&self) -> bool {
        let key_fits = |key: &[u8]| (1..=KEY_SIZE_MAX).contains(&key.len());
        match self {
            Change::Put { key, value } => key_fits(key) && value.len() <= VALUE_SIZE_MAX,
            Change::Delete { key } => key_fits(key),
            Change::DeleteRange { start, end } => key_fits(start) && key_fits(end) && start < end,
        }
    }
}

/// A question to one family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Query {
    /// The value of a key.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// The records of a range, in the order of their keys.
    Scan {
        /// The first key of the range. Empty: from the first key of the family.
        start: Vec<u8>,
        /// The first key behind the range. `None`: to the end of the family.
        end: Option<Vec<u8>>,
        /// At most so many records. Requires: not 0.
        count_max: usize,
        /// No further record once keys and values have so many bytes.
        size_max: usize,
    },
    /// What a page shows of a range. It is a scan that passes what common prefixes stand for, and may end
    /// before its limits, with a record (rules 13 and 19).
    List {
        /// The first key of the range. Empty: from the first key of the family.
        start: Vec<u8>,
        /// The first key behind the range. `None`: to the end of the family.
        end: Option<Vec<u8>>,
        /// At most so many records. Requires: not 0.
        count_max: usize,
        /// No further record once keys and values have so many bytes.
        size_max: usize,
        /// Which records stand for others.
        folding: Folding,
    },
}

/// A scan or a list, as engines carry it out.
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// The first key of the range.
    pub start: &'a [u8],
    /// The first key behind the range. `None`: to the end of the family.
    pub end: Option<&'a [u8]>,
    /// At most so many records.
    pub count_max: usize,
    /// No further record once keys and values have so many bytes.
    pub size_max: usize,
    /// Which records stand for others. `None`: it is no list, and ends at its limits only.
    pub folding: Option<&'a Folding>,
}

impl Scan<'_> {
    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        self.end.is_some_and(|end| end <= self.start)
    }

    /// Whether so many records are all that the limits allow.
    pub fn is_full(&self, records: &Records) -> bool {
        records.count() >= self.count_max || records.size() >= self.size_max
    }

    /// Returns what a record stands for beside itself: keys that begin like this are passed.
    pub fn common_prefix<'k>(&self, key: &'k [u8], value: &[u8]) -> Option<&'k [u8]> {
        self.folding?.common_prefix(key, value)
    }
}

impl Query {
    /// Returns the scan or list. `None`: it gets a key.
    pub fn scan(&self) -> Option<Scan<'_>> {
        let (start, end, &count_max, &size_max, folding) = match self {
            Query::Get { .. } => return None,
            Query::Scan { start, end, count_max, size_max } => {
                (start, end, count_max, size_max, None)
            }
            Query::List { start, end, count_max, size_max, folding } => {
                (start, end, count_max, size_max, Some(folding))
            }
        };
        Some(Scan { start, end: end.as_deref(), count_max, size_max, folding })
    }

    /// Returns the same scan or list from a later key on. Requires: it is one.
    pub fn from(&self, from: Vec<u8>) -> Query {
        let mut query = self.clone();
        match &mut query {
            Query::Get { .. } => unreachable!("it gets a key"),
            Query::Scan { start, .. } | Query::List { start, .. } => *start = from,
        }
        query
    }

    /// Panics unless the query is within the limits.
    pub fn verify(&self) {
        if let Query::Get { key } = self {
            assert!((1..=KEY_SIZE_MAX).contains(&key.len()));
        }
        if let Some(Scan { start, end, count_max, folding, .. }) = self.scan() {
            assert!(start.len() <= KEY_SIZE_MAX);
            assert!(folding.is_none_or(|folding| folding.delimiter.len() <= KEY_SIZE_MAX));
            assert!(end.is_none_or(|end| !end.is_empty()));
            assert!(count_max > 0);
        }
    }
}

/// The answer to a query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The value of the key; `None` if it is absent.
    Value(Option<Vec<u8>>),
    /// Records of the range, from its start.
    Records {
        /// The records.
        records: Records,
        /// Whether the range has further records.
        more: bool,
    },
}

/// A request to an engine.
#[derive(Debug)]
pub enum EngineEffect {
    /// Create a family. Ends with `Done` (rule 2).
    Create {
        /// Identifies the request in its event.
        op: EngineOp,
        /// The pool whose records it will hold.
        family: PoolId,
        /// How it is compressed.
        compression: Compression,
    },
    /// Remove a family with all its records. Ends with `Done` (rule 2).
    Remove {
        /// Identifies the request in its event.
        op: EngineOp,
        /// The family.
        family: PoolId,
    },
    /// Apply a batch. Ends with `Done` (rules 4 to 8).
    Write {
        /// Identifies the request in its event.
        op: EngineOp,
        /// The family.
        family: PoolId,
        /// The journal entry that the batch comes from.
        lsn: Lsn,
        /// The batch, in order. It stays with the caller until the write ends, and is not copied for the
        /// engine.
        changes: Arc<[Change]>,
    },
    /// Make durable what the family holds. Ends with `Done` (rule 10).
    Flush {
        /// Identifies the request in its event.
        op: EngineOp,
        /// The family.
        family: PoolId,
    },
    /// Answer queries. Ends with `Read` (rules 12 to 14).
    Read {
        /// Identifies the request in its event.
        op: EngineOp,
        /// The family.
        family: PoolId,
        /// The queries.
        queries: Vec<Query>,
        /// Whether to look only into memory, at once.
        from_memory: bool,
    },
    /// Report figures. Ends with `Statistics`.
    Statistics {
        /// Identifies the request in its event.
        op: EngineOp,
    },
}

impl EngineEffect {
    /// Panics unless the request is within the limits: breaking them is a mistake of the caller.
    pub fn verify(&self) {
        match self {
            EngineEffect::Write { changes, .. } => {
                assert!(changes.iter().all(Change::is_sound));
                assert!(changes.iter().map(Change::size).sum::<usize>() <= BATCH_SIZE_MAX);
            }
            EngineEffect::Read { queries, .. } => {
                assert!(queries.len() <= QUERY_COUNT_MAX);
                queries.iter().for_each(Query::verify);
            }
            EngineEffect::Create { .. }
            | EngineEffect::Remove { .. }
            | EngineEffect::Flush { .. }
            | EngineEffect::Statistics { .. } => {}
        }
    }
}

/// An event from an engine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineEvent {
    /// A write, creation, removal or flush ended.
    Done {
        /// The id from the request.
        op: EngineOp,
        /// Whether it was done.
        result: Result<(), EngineError>,
    },
    /// A read ended.
    Read {
        /// The id from the request.
        op: EngineOp,
        /// All batches of the family up to this lsn are in what was read; perhaps later ones, too.
        contains: Lsn,
        /// One answer for each query.
        result: Result<Vec<Answer>, EngineError>,
    },
    /// All batches of the family up to this lsn are durable (rules 10, 11).
    Flushed {
        /// The family.
        family: PoolId,
        /// The lsn.
        lsn: Lsn,
    },
    /// Whether little space is left in the engine's file system. Comes when that changes; at first it is not.
    Space {
        /// Whether little is left.
        is_low: bool,
    },
    /// Nothing is known any more: all requests end with this error from now on. Comes once.
    Poisoned {
        /// What failed.
        text: String,
    },
    /// Figures of the engine.
    Statistics {
        /// The id from the request.
        op: EngineOp,
        /// The figures.
        statistics: Statistics,
    },
}

/// Why a request failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EngineError {
    /// The file system has no space. Nothing was changed.
    Full,
    /// The range cannot be read.
    Corrupt {
        /// The family.
        family: PoolId,
        /// The first key that may be concerned.
        start: Vec<u8>,
        /// The first key behind; `None`: to the end of the family.
        end: Option<Vec<u8>>,
        /// What the engine says.
        text: String,
    },
    /// A read failed, and not because of damage: it may succeed the next time.
    Unread {
        /// What the engine says.
        text: String,
    },
    /// Nothing is known any more.
    Poisoned {
        /// What failed first.
        text: String,
    },
    /// There is no such family.
    NoFamily,
    /// The family is there, with another compression.
    OtherCompression {
        /// The one it has.
        found: Compression,
    },
    /// The answer is not in memory.
    WouldBlock,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineError::Full => f.write_str("no space left for the engine"),
            EngineError::Corrupt { family, start, end, text } => {
                write!(f, "records of pool {family} from \"{}\"", start.escape_ascii())?;
                match end {
                    Some(end) => write!(f, " to before \"{}\"", end.escape_ascii())?,
                    None => f.write_str(" to the end")?,
                }
                write!(f, " cannot be read: {text}")
            }
            EngineError::Unread { text } => write!(f, "records cannot be read now: {text}"),
            EngineError::Poisoned { text } => write!(f, "the engine has failed: {text}"),
            EngineError::NoFamily => f.write_str("the engine has no records of this pool"),
            EngineError::OtherCompression { found } => {
                write!(f, "the pool's records are compressed with {found}")
            }
            EngineError::WouldBlock => f.write_str("not in memory"),
        }
    }
}

impl std::error::Error for EngineError {}

/// A family as it was found when the engine was opened. All of it is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FamilyFound {
    /// The family.
    pub family: PoolId,
    /// How it is compressed.
    pub compression: Compression,
    /// All batches up to this lsn are there, and none above. Zero: none was ever flushed.
    pub lsn: Lsn,
    /// A compaction met damage in it, so it is not compacted any more (rule 17).
    pub is_damaged: bool,
}

/// Why an engine cannot be opened, created or destroyed. Each is a sentence for the operator.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OpenError {
    /// There is no engine in the directory.
    Missing(String),
    /// The directory has another engine, or another store's.
    Foreign(String),
    /// An engine cannot be created, because the directory has something else.
    Occupied(String),
    /// Another process has it open.
    InUse(String),
    /// A newer program made it.
    TooNew(String),
    /// It is damaged.
    Corrupt(String),
    /// The file system has no space.
    Full(String),
    /// The system reported an error.
    Io(String),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Missing(text)
            | OpenError::Foreign(text)
            | OpenError::Occupied(text)
            | OpenError::InUse(text)
            | OpenError::TooNew(text)
            | OpenError::Corrupt(text)
            | OpenError::Full(text)
            | OpenError::Io(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for OpenError {}

/// Figures of an engine.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Statistics {
    /// Each family.
    pub families: Vec<FamilyStatistics>,
    /// Capacity of the block cache in bytes.
    pub cache_size: u64,
    /// What of it is used, in bytes.
    pub cache_used: u64,
    /// Blocks found in the block cache since the engine was opened.
    pub cache_hit_count: u64,
    /// Blocks not found there.
    pub cache_miss_count: u64,
    /// Whether writes are slowed or stopped, so that flushes and compactions can catch up.
    pub stall: Stall,
    /// Flushes and compactions that failed.
    pub background_error_count: u64,
}

/// Figures of one family.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FamilyStatistics {
    /// The family.
    pub family: PoolId,
    /// How it is compressed.
    pub compression: Compression,
    /// The lsn of its last batch.
    pub lsn: Lsn,
    /// The lsn that was last told as flushed.
    pub flushed_lsn: Lsn,
    /// The lsn of the oldest batch that may not be flushed. `None`: all are.
    pub unflushed_lsn: Option<Lsn>,
    /// A compaction met damage in it, so it is not compacted any more (rule 17).
    pub is_damaged: bool,
    /// Bytes on disk.
    pub disk_size: u64,
    /// Bytes in memtables.
    pub memtable_size: u64,
    /// About how many records it has.
    pub record_count_estimate: u64,
    /// About how many bytes compactions have yet to rewrite.
    pub compaction_size_pending: u64,
}

/// Whether an engine holds writes back.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Stall {
    /// It does not.
    #[default]
    None,
    /// Writes are slowed to so many bytes per second.
    Slowed(u64),
    /// Writes wait.
    Stopped,
}
