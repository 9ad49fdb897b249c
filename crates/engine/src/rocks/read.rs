//! Reads: all queries of a read are answered from one state of the family.

use std::sync::Arc;

use base::{Lsn, PoolId};
use rocksdb::{BoundColumnFamily, DBPinnableSlice, ErrorKind, ReadOptions, SnapshotWithThreadMode};

use super::{Database, Shared};
use format::engine::Records;
use format::engine::{Answer, EngineError, EngineEvent, EngineOp, Query};

/// The smallest key of a caller; only the record with the lsn is before it.
pub(super) const KEY_MIN: &[u8] = &[0];

/// One read under way.
struct Reading<'a> {
    database: &'a Database,
    family: PoolId,
    column_family: Arc<BoundColumnFamily<'a>>,
    snapshot: Option<SnapshotWithThreadMode<'a, Database>>,
    from_memory: bool,
}

impl Shared {
    pub(super) fn read(
        &self,
        op: EngineOp,
        family: PoolId,
        queries: &[Query],
        from_memory: bool,
    ) -> EngineEvent {
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
            let reading = Reading { database, family, column_family, snapshot, from_memory };
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
        if self.from_memory {
            only_from_memory(&mut options);
        }
        options
    }

    fn answer_all(&self, queries: &[Query]) -> Result<Vec<Answer>, EngineError> {
        let mut answers = Vec::with_capacity(queries.len());
        let mut rest = queries;
        while let Some(first) = rest.first() {
            if let Query::Scan { start, end, count_max, size_max } = first {
                answers.push(self.scan(start, end.as_deref(), *count_max, *size_max)?);
                rest = &rest[1..];
                continue;
            }
            let keys: Vec<&[u8]> = rest
                .iter()
                .map_while(|query| match query {
                    Query::Get { key } => Some(key.as_slice()),
                    Query::Scan { .. } => None,
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
        if self.from_memory || keys.len() == 1 {
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

    fn scan(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        count_max: usize,
        size_max: usize,
    ) -> Result<Answer, EngineError> {
        let mut records = Records::default();
        if end.is_some_and(|end| end <= start) {
            return Ok(Answer::Records { records, more: false });
        }
        let mut options = self.options();
        if let Some(end) = end {
            options.set_iterate_upper_bound(end);
        }
        let mut iterator = self.database.raw_iterator_cf_opt(&self.column_family, options);
        iterator.seek(if start.is_empty() { KEY_MIN } else { start });
        while let Some((key, value)) = iterator.item() {
            let is_last = records.count() == count_max || records.size() >= size_max;
            if is_last && !records.is_empty() {
                return Ok(Answer::Records { records, more: true });
            }
            records.push(key, value);
            iterator.next();
        }
        match iterator.status() {
            Ok(()) => Ok(Answer::Records { records, more: false }),
            Err(error) => {
                let unread = match records.last_key() {
                    Some(last) => [last, KEY_MIN].concat(),
                    None => start.to_vec(),
                };
                Err(self.judge(&unread, end, &error))
            }
        }
    }

    /// What a failed read means. It poisons nothing.
    fn judge(&self, start: &[u8], end: Option<&[u8]>, error: &rocksdb::Error) -> EngineError {
        match error.kind() {
            ErrorKind::Incomplete if self.from_memory => EngineError::WouldBlock,
            ErrorKind::ColumnFamilyDropped => EngineError::NoFamily,
            // From memory nothing is looked for in files: the read comes again, and sees them.
            ErrorKind::Corruption if self.from_memory => EngineError::WouldBlock,
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
