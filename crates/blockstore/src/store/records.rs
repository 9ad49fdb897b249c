//! Reads of records: one request with several queries, answered from one moment: the state after all batches that are
//! journaled when the answer leaves. The engine's answers are older; what is pending is laid over them.

use std::collections::{BTreeMap, VecDeque};

use base::{Lsn, PgId};
use format::engine::{Answer as Found, EngineEffect, EngineError, EngineOp, Query, READ_COUNT_MAX};

use crate::pending::{Pending, ReadNumber, ScanProgress};
use crate::store::Store;
use crate::{Answer, Effect, RequestId, StoreError};

/// Maximum number of reads of the engine under way; some are left for requests of statistics.
const READS_IN_FLIGHT_MAX: usize = READ_COUNT_MAX - 8;

/// The reads of records that are open.
#[derive(Default)]
pub struct RecordReads {
    open: BTreeMap<ReadNumber, OpenRead>,
    newest: ReadNumber,
    /// Requests to the engine under way: the read, and which of its queries each one has.
    asked: BTreeMap<EngineOp, (ReadNumber, Vec<usize>)>,
    /// Reads that wait for others.
    waiting: VecDeque<(ReadNumber, Vec<(usize, Query)>)>,
}

struct OpenRead {
    id: RequestId,
    pg: PgId,
    /// The number of the family that is read.
    family: u64,
    from_memory: bool,
    caches: bool,
    queries: Vec<Progress>,
}

/// A query with what the engine has answered so far.
enum Progress {
    /// What was found, and the lsn up to which it shows all entries.
    Get {
        key: Vec<u8>,
        found: Option<(Lsn, Option<Vec<u8>>)>,
        is_cached: bool,
    },
    Scan(ScanProgress),
}

impl Progress {
    fn new(query: Query) -> Progress {
        match query {
            Query::Get { key } => Progress::Get { key, found: None, is_cached: false },
            scan => Progress::Scan(ScanProgress::new(scan)),
        }
    }

    fn answered(&mut self, contains: Lsn, answer: Found) {
        match (self, answer) {
            (Progress::Get { found, .. }, Found::Value(value)) => *found = Some((contains, value)),
            (Progress::Scan(scan), answer) => scan.answered(contains, answer),
            (Progress::Get { .. }, Found::Records { .. }) => {
                unreachable!("keys have values as answers")
            }
        }
    }

    /// Returns the answer, or what is still to be asked.
    fn finish(&mut self, pg: PgId, pending: &Pending) -> Result<Found, Query> {
        match self {
            Progress::Get { key, found, .. } => {
                let (contains, value) = found.clone().expect("the engine has answered");
                Ok(Found::Value(pending.value(pg.pool, contains, key, value)))
            }
            Progress::Scan(scan) => scan.finish(pg.pool, pending),
        }
    }
}

impl RecordReads {
    /// Returns the numbers of the newest read, and of the oldest one that is open.
    pub fn numbers(&self) -> (ReadNumber, Option<ReadNumber>) {
        (self.newest, self.open.keys().next().copied())
    }
}

impl Store {
    /// Begins a read of records.
    pub(super) fn begin_records(
        &mut self,
        id: RequestId,
        pg: PgId,
        queries: Vec<Query>,
        (from_memory, caches): (bool, bool),
        effects: &mut Vec<Effect>,
    ) {
        let family = self.pending.number(pg.pool).filter(|_| self.pending.has_family(pg.pool));
        let Some(family) = family else {
            return effects.push(Effect::Done { id, result: Err(StoreError::NoFamily) });
        };
        let reads = &mut self.record_reads;
        reads.newest = ReadNumber(reads.newest.0 + 1);
        let number = reads.newest;
        let newest = self.pending.newest(pg.pool);
        let (mut progress, mut asked) = (Vec::with_capacity(queries.len()), Vec::new());
        for (index, query) in queries.into_iter().enumerate() {
            let known = match &query {
                Query::Get { key } => self.value_cache.value(pg.pool, key, caches),
                Query::Scan { .. } | Query::List { .. } => None,
            };
            match (known.map(Option::<&Vec<u8>>::cloned), query) {
                (Some(value), Query::Get { key }) => {
                    let found = Some((newest, value));
                    progress.push(Progress::Get { key, found, is_cached: true });
                }
                (_, query) => {
                    progress.push(Progress::new(query.clone()));
                    asked.push((index, query));
                }
            }
        }
        reads
            .open
            .insert(number, OpenRead { id, pg, family, from_memory, caches, queries: progress });
        match asked.is_empty() {
            true => self.go_on_reading(number, effects),
            false => self.ask_engine(number, asked, effects),
        }
    }

    /// Asks the engine for these queries of a read, or lets them wait for other reads.
    fn ask_engine(
        &mut self,
        number: ReadNumber,
        queries: Vec<(usize, Query)>,
        effects: &mut Vec<Effect>,
    ) {
        let reads = &mut self.record_reads;
        if reads.asked.len() == READS_IN_FLIGHT_MAX {
            return reads.waiting.push_back((number, queries));
        }
        let op = self.pending.next_op();
        let read = &reads.open[&number];
        let (family, from_memory) = (read.pg.pool, read.from_memory);
        let (indexes, queries) = queries.into_iter().unzip();
        reads.asked.insert(op, (number, indexes));
        let effect = EngineEffect::Read { op, family, queries, from_memory };
        effects.push(Effect::Engine(effect));
    }

    pub(super) fn on_records_read(
        &mut self,
        op: EngineOp,
        contains: Lsn,
        result: Result<Vec<Found>, EngineError>,
        effects: &mut Vec<Effect>,
    ) {
        let (number, indexes) = self.record_reads.asked.remove(&op).expect("a read ends once");
        match result {
            Ok(answers) => {
                assert!(answers.len() == indexes.len());
                let read = self.record_reads.open.get_mut(&number).expect("it is asked for");
                for (index, answer) in indexes.into_iter().zip(answers) {
                    read.queries[index].answered(contains, answer);
                }
                self.go_on_reading(number, effects);
            }
            Err(EngineError::Poisoned { text }) => {
                return self.on_engine(format::engine::EngineEvent::Poisoned { text }, effects);
            }
            Err(error) => {
                let error = match error {
                    EngineError::WouldBlock => StoreError::WouldBlock,
                    EngineError::Corrupt { start, end, .. } => {
                        let read = &self.record_reads.open[&number];
                        if self.pending.number(read.pg.pool) == Some(read.family) {
                            self.pending.note_damage(read.pg.pool);
                        }
                        StoreError::RecordsDamaged { start, end }
                    }
                    // Whoever asked tries again, or says so.
                    EngineError::Unread { .. } => {
                        StoreError::RecordsDamaged { start: Vec::new(), end: None }
                    }
                    _ => StoreError::NoFamily,
                };
                self.end_read(number, Err(error), effects);
            }
        }
        if let Some((number, queries)) = self.record_reads.waiting.pop_front() {
            self.ask_engine(number, queries, effects);
        }
    }

    /// Answers the read, or asks the engine for the rest of scans of which nothing is left.
    fn go_on_reading(&mut self, number: ReadNumber, effects: &mut Vec<Effect>) {
        let read = self.record_reads.open.get_mut(&number).expect("the read is open");
        if self.pending.number(read.pg.pool) != Some(read.family) {
            return self.end_read(number, Err(StoreError::NoFamily), effects);
        }
        let mut answers = Vec::with_capacity(read.queries.len());
        let mut rest = Vec::new();
        for (index, query) in read.queries.iter_mut().enumerate() {
            match query.finish(read.pg, &self.pending) {
                Ok(answer) => answers.push(answer),
                Err(query) => rest.push((index, query)),
            }
        }
        if !rest.is_empty() {
            return self.ask_engine(number, rest, effects);
        }
        let read = &self.record_reads.open[&number];
        for (query, answer) in read.queries.iter().zip(&answers).filter(|_| read.caches) {
            if let (Progress::Get { key, is_cached: false, .. }, Found::Value(value)) =
                (query, answer)
            {
                self.value_cache.fill(read.pg.pool, key, value.as_ref());
            }
        }
        let version = self.parts().pgs.get(read.pg).last;
        self.end_read(number, Ok(Answer::Records { version, answers }), effects);
    }

    fn end_read(
        &mut self,
        number: ReadNumber,
        result: Result<Answer, StoreError>,
        effects: &mut Vec<Effect>,
    ) {
        let read = self.record_reads.open.remove(&number).expect("a read ends once");
        effects.push(Effect::Done { id: read.id, result });
        let (_, oldest) = self.record_reads.numbers();
        self.pending.forget(oldest);
    }
}
