//! Reads: all queries of a read are answered from one state of the family.
//!
//! ```text
//!   from memory  ── a block is not cached, or too much is deleted, or it takes too long ──▶ WouldBlock
//!   on a thread  ── takes as long as it takes to the next record; then a list may end
//! ```
//!
//! Invariants
//!   1. What is scanned from memory between two calls of `take_events`, so in a turn of the caller's loop, takes
//!      little more than [`MEMORY_TIME`], whatever was deleted.
//!   2. A scan that ends before its range does has a record: where RocksDB stops between records, it does not say
//!      at which key.

use std::sync::Arc;
use std::time::{Duration, Instant};

use base::{Lsn, PoolId};
use rocksdb::{BoundColumnFamily, DBPinnableSlice, ErrorKind, ReadOptions, SnapshotWithThreadMode};

use super::{Database, Shared};
use format::engine::{Answer, EngineError, EngineEvent, EngineOp, Query, Records, Scan, behind};

/// The smallest key of a caller; only the record with the lsn is before it.
pub(super) const KEY_MIN: &[u8] = &[0];

/// How long all scans from memory together may take in a turn of the caller's loop.
const MEMORY_TIME: Duration = Duration::from_millis(4);
/// How many deleted or replaced records a scan from memory passes between two records: they take a fraction
/// of a millisecond.
const MEMORY_SKIPS_MAX: u64 = 1_000;
/// How long a read on a thread goes on before its lists end at the next record: the others wait for it.
const THREAD_TIME: Duration = Duration::from_millis(50);

/// What is left of [`MEMORY_TIME`] in this turn of the caller's loop.
pub(super) struct MemoryTime(Duration);

impl Default for MemoryTime {
    fn default() -> MemoryTime {
        MemoryTime(MEMORY_TIME)
    }
}

impl MemoryTime {
    /// Reads from memory, until too much time was spent on scans.
    pub(super) fn read(
        &mut self,
        shared: &Shared,
        op: EngineOp,
        family: PoolId,
        queries: &[Query],
    ) -> EngineEvent {
        let (begun, left) = (Instant::now(), self.0);
        let event =
            shared.read(op, family, queries, Limits { from_memory: true, until: begun + left });
        if queries.iter().any(|query| query.scan().is_some()) {
            self.0 = left.saturating_sub(begun.elapsed());
        }
        event
    }
}

/// What a read may do.
#[derive(Clone, Copy)]
struct Limits {
    from_memory: bool,
    /// From then on scans from memory end without an answer, and lists with what they have.
    until: Instant,
}

/// One read under way.
struct Reading<'a> {
    database: &'a Database,
    family: PoolId,
    column_family: Arc<BoundColumnFamily<'a>>,
    snapshot: Option<SnapshotWithThreadMode<'a, Database>>,
    limits: Limits,
}

impl Shared {
    /// Reads on one of the engine's threads.
    pub(super) fn read_on_thread(
        &self,
        op: EngineOp,
        family: PoolId,
        queries: &[Query],
    ) -> EngineEvent {
        let limits = Limits { from_memory: false, until: Instant::now() + THREAD_TIME };
        self.read(op, family, queries, limits)
    }

    fn read(&self, op: EngineOp, family: PoolId, queries: &[Query], limits: Limits) -> EngineEvent {
        let mut contains = Lsn::ZERO;
        let mut answers = || {
            self.usable()?;
            let state = self.family(family)?;
            let column_family = self.column_family(&state)?;
            // Before the state that is read is chosen, so it has at least this.
            contains = state.applied();
            // A single query reads one state by itself.
            let snapshot = (queries.len() > 1).then(|| self.database.snapshot());
            let database = &self.database;
            let reading = Reading { database, family, column_family, snapshot, limits };
            let answers = reading.answer_all(queries);
            if let Err(EngineError::Corrupt { .. }) = &answers {
                self.note_damaged_read(&state);
            }
            answers
        };
        let result = answers();
        EngineEvent::Read { op, contains, result }
    }
}

/// Reads with these options look only into memtables and the block cache.
#[allow(unsafe_code, clippy::missing_transmute_annotations)]
fn only_from_memory(options: &mut ReadOptions) {
    const BLOCK_CACHE: i32 = 1;
    // SAFETY: the parameter's type is `ReadTier`, a `#[repr(i32)]` enum whose variants are 0 and 1. The crate
    // does not export it, so this number is the only way to name a variant. The workspace pins the crate's
    // version.
    options.set_read_tier(unsafe { std::mem::transmute::<i32, _>(BLOCK_CACHE) });
}

impl Reading<'_> {
    fn options(&self) -> ReadOptions {
        let mut options = ReadOptions::default();
        if let Some(snapshot) = &self.snapshot {
            options.set_snapshot(snapshot);
        }
        if self.limits.from_memory {
            only_from_memory(&mut options);
            options.set_max_skippable_internal_keys(MEMORY_SKIPS_MAX);
        }
        options
    }

    fn answer_all(&self, queries: &[Query]) -> Result<Vec<Answer>, EngineError> {
        let mut answers = Vec::with_capacity(queries.len());
        let mut rest = queries;
        while let Some(first) = rest.first() {
            if let Some(scan) = first.scan() {
                answers.push(self.scan(&scan)?);
                rest = &rest[1..];
                continue;
            }
            let keys: Vec<&[u8]> = rest
                .iter()
                .map_while(|query| match query {
                    Query::Get { key } => Some(key.as_slice()),
                    Query::Scan { .. } | Query::List { .. } => None,
                })
                .collect();
            rest = &rest[keys.len()..];
            self.get(&keys, &mut answers)?;
        }
        Ok(answers)
    }

    /// Gets keys, several with one call. Such a call of RocksDB 7.8 reads from disk even if it must not, so
    /// reads from memory get one key at a time.
    fn get(&self, keys: &[&[u8]], answers: &mut Vec<Answer>) -> Result<(), EngineError> {
        let (database, options) = (self.database, self.options());
        if self.limits.from_memory || keys.len() == 1 {
            for key in keys {
                let found = database.get_pinned_cf_opt(&self.column_family, key, &options);
                answers.push(self.answer(key, found)?);
            }
            return Ok(());
        }
        let found = database.batched_multi_get_cf_opt(&self.column_family, keys, false, &options);
        for (key, found) in keys.iter().zip(found) {
            answers.push(self.answer(key, found)?);
        }
        Ok(())
    }

    fn answer(
        &self,
        key: &[u8],
        found: Result<Option<DBPinnableSlice<'_>>, rocksdb::Error>,
    ) -> Result<Answer, EngineError> {
        match found {
            Ok(value) => Ok(Answer::Value(value.map(|value| value.to_vec()))),
            Err(error) => Err(self.judge(key, Some(&[key, KEY_MIN].concat()), &error)),
        }
    }

    fn scan(&self, scan: &Scan<'_>) -> Result<Answer, EngineError> {
        let mut records = Records::default();
        if scan.is_empty() {
            return Ok(Answer::Records { records, more: false });
        }
        let mut options = self.options();
        if let Some(end) = scan.end {
            options.set_iterate_upper_bound(end);
        }
        let mut iterator = self.database.raw_iterator_cf_opt(&self.column_family, options);
        // Where it goes on, if not behind the last record.
        let mut target = Some(scan.start.max(KEY_MIN).to_vec());
        loop {
            if self.is_late(scan, &records)? {
                return Ok(Answer::Records { records, more: true });
            }
            match &target {
                Some(key) => iterator.seek(key),
                None => iterator.next(),
            }
            let Some((key, value)) = iterator.item() else { break };
            if scan.is_full(&records) && !records.is_empty() {
                return Ok(Answer::Records { records, more: true });
            }
            records.push(key, value);
            target = match scan.common_prefix(key, value).map(behind) {
                None => None,
                Some(Some(behind)) => Some(behind),
                Some(None) => return Ok(Answer::Records { records, more: false }),
            };
        }
        match iterator.status() {
            Ok(()) => Ok(Answer::Records { records, more: false }),
            Err(error) => {
                let unread = target.or_else(|| Some([records.last_key()?, KEY_MIN].concat()));
                Err(self.judge(&unread.unwrap_or_default(), scan.end, &error))
            }
        }
    }

    /// Whether a list ends with what it has, because the read has taken long. The error: it is read again
    /// on a thread.
    fn is_late(&self, scan: &Scan<'_>, records: &Records) -> Result<bool, EngineError> {
        let Limits { from_memory, until } = self.limits;
        if Instant::now() < until {
            return Ok(false);
        }
        let may_end = scan.folding.is_some() && !records.is_empty();
        if from_memory && !may_end { Err(EngineError::WouldBlock) } else { Ok(may_end) }
    }

    /// What a failed read means. It poisons nothing.
    fn judge(&self, start: &[u8], end: Option<&[u8]>, error: &rocksdb::Error) -> EngineError {
        match error.kind() {
            ErrorKind::Incomplete if self.limits.from_memory => EngineError::WouldBlock,
            ErrorKind::ColumnFamilyDropped => EngineError::NoFamily,
            // From memory nothing is looked for in files: the read comes again, and sees them.
            ErrorKind::Corruption if self.limits.from_memory => EngineError::WouldBlock,
            ErrorKind::Corruption => EngineError::Corrupt {
                family: self.family,
                start: start.to_vec(),
                end: end.map(<[u8]>::to_vec),
                text: error.to_string(),
            },
            _ => EngineError::Unread { text: error.to_string() },
        }
    }
}
