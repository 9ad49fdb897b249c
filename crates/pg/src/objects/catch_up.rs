//! The log of the primary above what a learner has: what it names is copied to the learner, and nothing else is
//! compared. `docs/internals/objects.md`, rule 56.
//!
//! ```text
//!   each shard: part of the log ─▶ ranges, then keys, then blocks that it names ─▶ pages ─▶ next part
//!                     └── the log does not go back so far ─▶ the learner is listed
//! ```
//!
//! Invariants
//!   1. Only what happened before the learner got batches is read, when all of it has ended: the rest comes as
//!      batches.
//!   2. A learner has no records of an object without its head: a range brings the head along, and a head that is
//!      gone takes all along.

use std::collections::VecDeque;

use ::objects::keys::log_range;
use ::objects::{Shard, Touched};
use base::{BlockSize, PoolId, Version};
use format::engine::{Answer as Found, Query};

use super::fill::Due;
use super::log::{reach_in, reach_query};

/// The most log records that are read at once, and their size in bytes: what they name is kept meanwhile.
const RECORDS_AT_ONCE: usize = 4096;
const SIZE_AT_ONCE: usize = 256 << 10;

/// The walk through the logs of all shards.
pub struct CatchUp {
    /// The learner has everything up to this version, and gets batches above that one.
    after: Version,
    upto: Version,
    shards: VecDeque<Shard>,
    /// Where the next part of the first shard's log begins.
    from: Option<Vec<u8>>,
    is_asked: bool,
}

/// What comes of a part of a log.
pub enum Part {
    /// This is to be copied.
    Touched(Touched),
    /// The log does not go back so far.
    TooShort,
    /// It cannot be read.
    Unreadable,
}

impl CatchUp {
    pub fn new(after: Version, upto: Version, shards: impl IntoIterator<Item = Shard>) -> CatchUp {
        CatchUp { after, upto, shards: shards.into_iter().collect(), from: None, is_asked: false }
    }

    /// Whether all has been read.
    pub fn is_over(&self) -> bool {
        self.shards.is_empty()
    }

    /// Whether a part is being read.
    pub fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Returns what to read: how far back the log goes, and its next part. Both are of one moment.
    pub fn ask(&mut self) -> Option<Vec<Query>> {
        let shard = *self.shards.front()?;
        self.is_asked = true;
        let start = self.from.clone().unwrap_or_else(|| log_range(shard, self.after).0);
        let end = log_range(shard, self.upto).0;
        let (count_max, size_max) = (RECORDS_AT_ONCE, SIZE_AT_ONCE);
        let mut queries = vec![reach_query(shard)];
        if start < end {
            queries.push(Query::Scan { start, end: Some(end), count_max, size_max });
        }
        Some(queries)
    }

    /// Takes what was read.
    pub fn supply(&mut self, answers: Vec<Found>, pool: PoolId, block_size: BlockSize) -> Part {
        self.is_asked = false;
        let mut answers = answers.into_iter();
        let reach = answers.next().as_ref().and_then(reach_in);
        if reach.is_none_or(|reach| reach > self.after) {
            return Part::TooShort;
        }
        let mut touched = Touched::default();
        self.from = None;
        if let Some(Found::Records { records, more }) = answers.next() {
            for (key, value) in records.iter() {
                let Some(of_record) = Touched::decode(value, pool, block_size) else {
                    return Part::Unreadable;
                };
                touched.add(&of_record);
                self.from = more.then(|| [key, &[0]].concat());
            }
        }
        if self.from.is_none() {
            self.shards.pop_front();
        }
        Part::Touched(touched)
    }
}

/// Returns what is to be copied of what is touched, in order. Keys that lie in its ranges come with these.
pub fn in_order(touched: Touched) -> impl Iterator<Item = Due> {
    let Touched { keys, ranges, blocks } = touched;
    let mut merged: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (start, end) in ranges {
        match merged.last_mut().filter(|last| start <= last.1) {
            Some(last) => last.1 = end.max(std::mem::take(&mut last.1)),
            None => merged.push((start, end)),
        }
    }
    let mut keys: Vec<Vec<u8>> = keys.into_keys().collect();
    keys.retain(|key| {
        let behind = merged.partition_point(|(start, _)| start <= key);
        merged[..behind].last().is_none_or(|(_, end)| key >= end)
    });
    let ranges = merged.into_iter().map(|(start, end)| Due::Range(start, end));
    let keys = keys.into_iter().map(Due::Key);
    ranges.chain(keys).chain(blocks.into_keys().map(Due::Block))
}
