//! Counters of this OSD's work, and how they are sent to the monitor.
//!
//! ```text
//!   requests, store ──▶ counting ──each stats_interval_ms──▶ kept periods ──once per connection──▶ monitor
//!                                                                 └── dropped once saved by the monitor
//! ```
//!
//! Invariants
//!   1. A kept period does not change, and periods are sent in order. Periods that the monitor has not saved
//!      are sent again over the next connection, in one message.
//!   2. Kept periods use at most `PERIODS_SIZE_MAX` bytes as text. While there is no room for another period,
//!      counting continues in the current one.
//!   3. At most `ROW_COUNT_MAX` images are counted individually at a time; operations of further images are
//!      counted for their pool.

use std::collections::{BTreeMap, VecDeque};

use base::{Buffer, ImageId, PgId, PoolId, Time};
use blockstore::{Batch, Page, Request as StoreRequest};
use cluster::stats::{
    Counters, ImageCounters, ImageSpace, Io, OsdStats, PERIODS_SIZE_MAX, Period, ROW_COUNT_MAX,
    SPACE_COUNT_MAX,
};
use format::disk::BlockChange;
use format::engine::Change;
use format::wire::{Content, Op, Outcome, Refusal};

use crate::cluster_view::ClusterView;
use crate::local_store::LocalStore;
use crate::pg_table::PgTable;

/// Size reserved for the text of a period other than its rows, in bytes.
const PERIOD_FRAME_SIZE: usize = 4 << 10;

/// All counters, and which of them have been sent to the monitor.
pub struct Stats {
    counting: BTreeMap<(PoolId, Option<ImageId>), Counters>,
    /// Periods that the monitor has not saved, with the size of their text.
    kept: VecDeque<(usize, Period)>,
    sequence_last: u64,
    /// The newest period that was sent over this connection.
    sequence_told: u64,
    /// Read errors, damaged units and mended units that earlier periods already include.
    read_errors: u64,
    damaged_units: u64,
    mended_units: u64,
    /// Used space of images in bytes, as last sent over this connection.
    space_told: BTreeMap<ImageId, u64>,
    /// PGs that this OSD led when it last sent counters.
    led: Vec<PgId>,
    /// Whether nothing has been sent over this connection yet.
    is_new_connection: bool,
    /// When counters are sent next.
    pub at: Time,
}

/// The kinds of counted operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Counter {
    Read,
    Write,
    Trim,
    Flush,
}

/// What to count for an operation when it finishes.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    kind: Counter,
    pool: PoolId,
    image: Option<ImageId>,
    bytes: u32,
    since: Time,
}

impl Work {
    /// Creates the work of a client's operation that arrived at `since`; `None` if the operation is not
    /// counted.
    pub fn of(pool: PoolId, op: &Op, since: Time) -> Option<Work> {
        let (kind, image, bytes) = match op {
            Op::Read { place, length, .. } | Op::ReadPart { place, length, .. } => {
                (Counter::Read, Some(place.image), *length)
            }
            Op::Write { place, data, .. } => (Counter::Write, Some(place.image), data.len() as u32),
            Op::Zero { place, length, .. } => (Counter::Trim, Some(place.image), *length),
            Op::Sync => (Counter::Flush, None, 0),
            Op::Mutate { operation, .. } => (Counter::Write, None, operation.length()),
            // What they read is known in the end.
            Op::Look { .. } | Op::List { .. } => (Counter::Read, None, 0),
            Op::Extents { .. } | Op::DeleteRange { .. } => return None,
        };
        Some(Work { kind, pool, image, bytes, since })
    }
}

/// Returns the bytes of these changes of an object pool.
fn size_of(records: &[Change], blocks: &[(BlockChange, Buffer)]) -> u64 {
    let records = records.iter().map(Change::size);
    let blocks = blocks.iter().map(|(_, data)| data.len());
    records.chain(blocks).sum::<usize>() as u64
}

impl Stats {
    pub fn new(now: Time) -> Stats {
        Stats {
            counting: BTreeMap::new(),
            kept: VecDeque::new(),
            sequence_last: 0,
            sequence_told: 0,
            read_errors: 0,
            damaged_units: 0,
            mended_units: 0,
            space_told: BTreeMap::new(),
            led: Vec::new(),
            is_new_connection: true,
            at: now,
        }
    }

    fn counters(&mut self, pool: PoolId, image: Option<ImageId>) -> &mut Counters {
        let has_room = self.counting.len() < ROW_COUNT_MAX;
        let row = match has_room || self.counting.contains_key(&(pool, image)) {
            true => (pool, image),
            false => (pool, None),
        };
        self.counting.entry(row).or_default()
    }

    /// Counts an operation that has finished or was refused.
    pub fn on_ended(&mut self, now: Time, work: Work, outcome: Result<&Outcome, &Refusal>) {
        let Work { kind, pool, image, bytes, since } = work;
        match outcome {
            Ok(outcome) => {
                let bytes = match outcome {
                    Outcome::Looked { answers } => answers.length(),
                    _ => bytes,
                };
                let counters = self.counters(pool, image);
                let io: &mut Io = match kind {
                    Counter::Read => &mut counters.read,
                    Counter::Write => &mut counters.write,
                    Counter::Trim => &mut counters.trim,
                    Counter::Flush => &mut counters.flush,
                };
                io.record(u64::from(bytes), now.since(since));
            }
            Err(Refusal::Damaged { .. }) => self.counters(pool, image).failed += 1,
            Err(Refusal::Full) => self.counters(pool, image).refused_full += 1,
            Err(_) => {}
        }
    }

    /// Counts a request that is sent to the store.
    pub fn on_asked(&mut self, request: &StoreRequest) {
        match request {
            StoreRequest::Write { key, data, .. } => {
                self.counters(key.pool, Some(key.image)).stored.count(data.len() as u64);
            }
            StoreRequest::Repair { key, content: Content::Block { data, .. }, .. } => {
                let bytes = data.as_ref().map_or(0, |data| data.len() as u64);
                self.counters(key.pool, Some(key.image)).recovered.count(bytes);
            }
            StoreRequest::Batch(Batch { pg, records, blocks, note: None, .. }) => {
                self.counters(pg.pool, None).stored.count(size_of(records, blocks));
            }
            StoreRequest::Batch(Batch { pg, records, blocks, .. })
            | StoreRequest::Page(Page { pg, records, blocks, .. }) => {
                self.counters(pg.pool, None).recovered.count(size_of(records, blocks));
            }
            _ => {}
        }
    }

    /// Handles a new connection to a monitor: this monitor may have none of the counters.
    pub fn begin_connection(&mut self, now: Time) {
        self.sequence_told = 0;
        self.space_told.clear();
        self.is_new_connection = true;
        self.at = now;
    }

    /// Drops all periods up to this one: the monitor has saved them.
    pub fn on_saved(&mut self, sequence: u64) {
        self.kept.retain(|(_, period)| period.sequence > sequence);
    }

    /// Ends the current period, if something was counted and there is room for it.
    fn end_period(&mut self, read_errors: u64, damaged_units: u64, mended_units: u64) {
        let own = Counters {
            read_errors: read_errors.saturating_sub(self.read_errors),
            damaged_units: damaged_units.saturating_sub(self.damaged_units),
            repaired_units: mended_units.saturating_sub(self.mended_units),
            ..Counters::default()
        };
        let kept_size: usize = self.kept.iter().map(|(size, _)| size).sum();
        let mut size = PERIOD_FRAME_SIZE;
        let mut rows = Vec::new();
        while let Some(((pool, image), counters)) = self.counting.pop_first() {
            let row = ImageCounters { pool, image, counters };
            let text = serde_json::to_string(&row).expect("plain data");
            // The extra byte is for a comma.
            if kept_size + size + text.len() + 1 > PERIODS_SIZE_MAX {
                self.counting.insert((pool, image), row.counters);
                break;
            }
            size += text.len() + 1;
            rows.push(row);
        }
        if rows.is_empty() && (own.is_zero() || kept_size + size > PERIODS_SIZE_MAX) {
            return;
        }
        (self.damaged_units, self.mended_units) = (damaged_units, mended_units);
        self.read_errors = read_errors;
        self.sequence_last += 1;
        self.kept.push_back((size, Period { sequence: self.sequence_last, rows, own }));
    }

    /// Returns the periods that were not sent over this connection.
    fn untold(&mut self) -> Vec<Period> {
        let told = std::mem::replace(&mut self.sequence_told, self.sequence_last);
        let untold = self.kept.iter().filter(|(_, period)| period.sequence > told);
        untold.map(|(_, period)| period.clone()).collect()
    }

    /// Returns messages with the counters since the last call; none if nothing has changed.
    pub(crate) fn take_untold(
        &mut self,
        store: &mut LocalStore,
        pgs: &PgTable,
        cluster: &ClusterView,
    ) -> Vec<OsdStats> {
        let mended = pgs.iter().map(|(_, pg)| pg.mended_units()).sum();
        let read_errors = store.disk_figures().read_errors;
        self.end_period(read_errors, store.damaged_units_count(), mended);
        let mut space = self.space_to_tell(store, pgs, cluster);
        let mut periods = self.untold();
        let is_new = std::mem::take(&mut self.is_new_connection);
        let mut messages = Vec::new();
        if periods.is_empty() && space.is_empty() && !is_new {
            return messages;
        }
        loop {
            let rest = space.split_off(space.len().min(SPACE_COUNT_MAX));
            let is_last = rest.is_empty();
            messages.push(OsdStats {
                periods: std::mem::take(&mut periods),
                space: std::mem::replace(&mut space, rest),
                space_is_whole: is_last && is_new,
            });
            if is_last {
                return messages;
            }
        }
    }

    /// Returns the images whose used space in the PGs that this OSD leads has changed since it was last sent
    /// to the monitor.
    fn space_to_tell(
        &mut self,
        store: &mut LocalStore,
        pgs: &PgTable,
        cluster: &ClusterView,
    ) -> Vec<ImageSpace> {
        let leads = |pg: &PgId| cluster.pg(*pg).is_some_and(|entry| cluster.is_primary(entry));
        let led: Vec<PgId> = pgs.ids().filter(leads).collect();
        let mut images = store.take_images_changed();
        if self.is_new_connection || led != self.led {
            images = store.images();
            images.extend(self.space_told.keys());
        }
        let mut told = Vec::new();
        for image in images {
            let of_led = store.space_of(image).filter(|(pg, _)| led.binary_search(pg).is_ok());
            let bytes = of_led.map(|(_, bytes)| bytes).sum();
            let before = match bytes {
                0 => self.space_told.remove(&image),
                _ => self.space_told.insert(image, bytes),
            };
            if before.unwrap_or(0) != bytes {
                told.push(ImageSpace { image, bytes });
            }
        }
        self.led = led;
        told
    }
}
