//! Records what clients saw, and checks whether that is possible: each unit is a register whose written
//! values are unique, so that its history is linearizable exactly when the zones of its values do not
//! contradict each other (Gibbons and Korach, 1997).
//!
//! A value's zone is between the earliest end and the latest start of the operations that wrote or read it.
//! If the earliest end is before the latest start, the zone is "forward", otherwise "backward". Two forward
//! zones cannot overlap, and a backward zone cannot lie within a forward one.

use std::collections::BTreeMap;

use base::Epoch;
use format::wire::{Outcome, Refusal};

use super::model::values_of;

/// What an operation does.
#[derive(Clone, Debug)]
pub enum Kind {
    Write {
        stripe: u32,
        first: u32,
        values: Vec<u32>,
    },
    Zero {
        stripe: u32,
        first: u32,
        units: u32,
    },
    Read {
        stripe: u32,
        first: u32,
        units: u32,
    },
    /// All units of some stripes become zeros.
    DeleteAll {
        first: u32,
        count: u32,
        units: u32,
    },
    /// Everything that was answered in the epoch of the sync becomes durable.
    Sync,
}

struct Seen {
    kind: Kind,
    /// The epoch of the entry at the OSD that received the operation.
    epoch: Epoch,
    started: u64,
    ended: u64,
    outcome: Option<Result<Outcome, Refusal>>,
}

#[derive(Default)]
pub struct History {
    ops: Vec<Seen>,
    clock: u64,
    value_last: u32,
}

/// The zone of one value of one unit: from the earliest end to the latest start of its operations.
#[derive(Clone, Copy, Debug)]
struct Zone {
    value: u32,
    first_end: u64,
    last_start: u64,
}

impl History {
    pub fn fresh_values(&mut self, count: u32) -> Vec<u32> {
        let first = self.value_last + 1;
        self.value_last += count;
        (first..first + count).collect()
    }

    /// Returns the newest value that was assigned to a write.
    pub fn last_value(&self) -> u32 {
        self.value_last
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn begin(&mut self, kind: Kind, epoch: Epoch) -> usize {
        let started = self.tick();
        self.ops.push(Seen { kind, epoch, started, ended: u64::MAX, outcome: None });
        self.ops.len() - 1
    }

    pub fn end(&mut self, op: usize, outcome: Result<Outcome, Refusal>) {
        assert!(self.ops[op].outcome.is_none());
        // A write that was refused may still take effect.
        if outcome.is_ok() {
            self.ops[op].ended = self.tick();
        }
        self.ops[op].outcome = Some(outcome);
    }

    pub fn outcome(&self, op: usize) -> Option<&Result<Outcome, Refusal>> {
        self.ops[op].outcome.as_ref()
    }

    /// Returns the outcomes of the newest operations.
    pub fn newest(&self, count: usize) -> impl Iterator<Item = Option<&Result<Outcome, Refusal>>> {
        self.ops.iter().rev().take(count).map(|op| op.outcome.as_ref())
    }

    pub fn acknowledged_count(&self) -> usize {
        self.ops.iter().filter(|op| matches!(op.outcome, Some(Ok(Outcome::Written { .. })))).count()
    }

    /// Returns whether an operation was refused for good and had no effect.
    fn never_happened(&self, op: &Seen) -> bool {
        matches!(
            op.outcome,
            Some(Err(Refusal::CompareFailed { .. } | Refusal::Full | Refusal::Invalid { .. }))
        )
    }

    /// Checks that the history of each unit is possible.
    pub fn check(&self) {
        for ((stripe, unit), ops) in self.by_unit() {
            check_unit(stripe, unit, &ops);
        }
    }

    /// Checks that the newest read of each unit shows nothing older than what must be kept: changes that were
    /// answered as durable, or synced since. Meant for schedules in which all members lose everything that
    /// they need not keep.
    pub fn check_kept(&self) {
        for ((stripe, unit), ops) in self.by_unit() {
            self.check_kept_unit(stripe, unit, &ops);
        }
    }

    fn check_kept_unit(&self, stripe: u32, unit: u32, ops: &[&Seen]) {
        let Some(value) = ops.iter().rev().find_map(|op| value_read(op, unit)) else { return };
        // The initial zeros count as written before everything else.
        let mut ends: Vec<u64> = ops.iter().filter_map(|op| end_of_put(op, unit, value)).collect();
        ends.extend((value == 0).then_some(0));
        assert!(!ends.is_empty(), "{stripe}/{unit}: {value} was never put there");
        let is_put = |op: &&&Seen| !matches!(op.kind, Kind::Read { .. });
        let is_hidden =
            |end: &u64| ops.iter().filter(is_put).any(|op| op.started > *end && self.must_stay(op));
        assert!(
            !ends.iter().all(is_hidden),
            "{stripe}/{unit}: {value} is older than what was kept"
        );
    }

    /// Returns whether the client may rely on a change being durable.
    fn must_stay(&self, op: &Seen) -> bool {
        let covers = |sync: &Seen| {
            let is_sync = matches!((&sync.kind, &sync.outcome), (Kind::Sync, Some(Ok(_))));
            is_sync && sync.epoch == op.epoch && sync.started > op.ended
        };
        match &op.outcome {
            Some(Ok(Outcome::Written { durable: false, .. })) => self.ops.iter().any(covers),
            outcome => matches!(outcome, Some(Ok(_))),
        }
    }

    fn by_unit(&self) -> BTreeMap<(u32, u32), Vec<&Seen>> {
        let mut units: BTreeMap<(u32, u32), Vec<&Seen>> = BTreeMap::new();
        for op in self.ops.iter().filter(|op| !self.never_happened(op)) {
            let (stripe, first, count) = match &op.kind {
                Kind::DeleteAll { first, count, units: all } => {
                    for stripe in *first..first + count {
                        for unit in 0..*all {
                            units.entry((stripe, unit)).or_default().push(op);
                        }
                    }
                    continue;
                }
                Kind::Sync => continue,
                Kind::Write { stripe, first, values } => (*stripe, *first, values.len() as u32),
                Kind::Zero { stripe, first, units } | Kind::Read { stripe, first, units } => {
                    (*stripe, *first, *units)
                }
            };
            for unit in first..first + count {
                units.entry((stripe, unit)).or_default().push(op);
            }
        }
        units
    }
}

/// Returns when a change that wrote this value ended; `None` for other operations.
fn end_of_put(op: &Seen, unit: u32, value: u32) -> Option<u64> {
    let put = match &op.kind {
        Kind::Write { first, values, .. } => values[(unit - first) as usize],
        Kind::Zero { .. } | Kind::DeleteAll { .. } => 0,
        Kind::Read { .. } | Kind::Sync => return None,
    };
    (put == value).then_some(op.ended)
}

fn value_read(op: &Seen, unit: u32) -> Option<u32> {
    match (&op.kind, &op.outcome) {
        (Kind::Read { first, units, .. }, Some(Ok(Outcome::Read { data, .. }))) => {
            Some(values_of(data, *units)[(unit - first) as usize])
        }
        _ => None,
    }
}

fn check_unit(stripe: u32, unit: u32, ops: &[&Seen]) {
    let mut zones: BTreeMap<u32, Zone> = BTreeMap::new();
    let mut zeros = Vec::new();
    for op in ops {
        match &op.kind {
            Kind::Write { first, values, .. } => {
                let value = values[(unit - first) as usize];
                let zone = Zone { value, first_end: op.ended, last_start: op.started };
                assert!(zones.insert(value, zone).is_none());
            }
            Kind::Zero { .. } | Kind::DeleteAll { .. } => {
                zeros.push(Zone { value: 0, first_end: op.ended, last_start: op.started });
            }
            Kind::Read { .. } | Kind::Sync => {}
        }
    }
    let mut zero_reads = Vec::new();
    for op in ops {
        match value_read(op, unit) {
            None => {}
            Some(0) => zero_reads.push(op),
            Some(value) => {
                let zone = zones.get_mut(&value);
                let zone =
                    zone.unwrap_or_else(|| panic!("{stripe}/{unit}: {value} was never put there"));
                assert!(zone.last_start < op.ended, "read before it was written");
                zone.first_end = zone.first_end.min(op.ended);
                zone.last_start = zone.last_start.max(op.started);
            }
        }
    }
    let known: Vec<Zone> = zones.into_values().chain(zeros.iter().copied()).collect();
    let known: Vec<Zone> = known.into_iter().filter(|zone| zone.first_end < u64::MAX).collect();
    for (index, one) in known.iter().enumerate() {
        for other in &known[index + 1..] {
            check_pair(stripe, unit, one, other);
        }
    }
    // Zeros are not unique: a read of zeros is explained by the initial zeros or by a change to zeros, unless
    // a known write has certainly replaced them before the read.
    for read in zero_reads {
        let is_hidden = |zero_end: u64| {
            known.iter().any(|zone| {
                zone.value != 0
                    && zone.first_end < read.started
                    && started_after(ops, zone.value, unit, zero_end)
            })
        };
        let is_initial = !is_hidden(0);
        let is_explained =
            zeros.iter().any(|zero| zero.last_start < read.ended && !is_hidden(zero.first_end));
        assert!(is_initial || is_explained, "{stripe}/{unit}: zeros after a write");
    }
}

/// Returns whether the write of a value started after a time.
fn started_after(ops: &[&Seen], value: u32, unit: u32, time: u64) -> bool {
    ops.iter().any(|op| match &op.kind {
        Kind::Write { first, values, .. } => {
            values[(unit - first) as usize] == value && op.started > time
        }
        _ => false,
    })
}

fn check_pair(stripe: u32, unit: u32, one: &Zone, other: &Zone) {
    let is_forward = |zone: &Zone| zone.first_end < zone.last_start;
    let is_bad = match (is_forward(one), is_forward(other)) {
        (true, true) => one.first_end < other.last_start && other.first_end < one.last_start,
        (true, false) => one.first_end < other.last_start && other.first_end < one.last_start,
        (false, true) => other.first_end < one.last_start && one.first_end < other.last_start,
        (false, false) => false,
    };
    assert!(!is_bad, "{stripe}/{unit}: {one:?} and {other:?} contradict each other");
}
