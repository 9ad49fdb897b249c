//! Decides which PG is scrubbed, and how fast. Clients come first.
//!
//! One PG that this OSD leads is scrubbed at a time: first a scrub that an operator requested and that has
//! begun, then one that was requested, then a scheduled scrub that has begun, then one that is due. Each turn
//! of 100 ms has a limit on the bytes read. While clients send requests, the limit is the size of one block;
//! after each turn without a request it doubles, up to the rate in the settings.
//!
//! While the check of this OSD's own metadata runs, it has the turns; PGs wait. It is short: the metadata is
//! at most a fiftieth of a store. It comes before the deep scrubs that an operator requests with it, so that
//! they repair what it finds lost.
//!
//! Invariants
//!   1. Nothing is scrubbed while the time of day is unknown or while scrubs are paused.
//!   2. Outside the hours in the settings only scrubs that an operator requested run.
//!   3. A PG that is being filled is scrubbed only if an operator requested it.

use std::collections::BTreeMap;

use base::{BlockSize, Duration, MIB, PgId, Time};
use cluster::message::{FixedRow, ScrubRow};
use cluster::settings::Setting;
use pg::{FixOutcome, FixRequest, Fixed, Pg, ScrubNote, Serving};

use crate::cluster_view::ClusterView;
use crate::lines::{depth_name, faults_text};
use crate::metadata_check::{MetadataChecks, Step, is_due};
use crate::pg_table::{PgSlot, PgTable};

/// Length of a turn.
const TURN: Duration = Duration::from_millis(100);
/// Number of turns in a second.
const TURNS: u64 = 10;
/// Maximum number of PGs whose members are asked for their scrub notes in one turn.
const RECALL_COUNT_MAX: usize = 8;
/// Maximum number of PG rows in one report.
const ROW_COUNT_MAX: usize = 128;
/// Maximum number of damaged blocks that a report lists for one PG.
const LISTED_MAX: usize = 16;
const HOUR: u64 = 3600;

/// The schedule of scrubs: which PG is scrubbed, and how fast.
#[derive(Default)]
pub(crate) struct Scrubbing {
    /// When the next turn begins; `None` if there is nothing to do until [`Scrubbing::begin`].
    due: Option<Time>,
    /// The time of day in milliseconds since 1970, and the `now` at which it was set.
    time_of_day: Option<(Time, u64)>,
    /// The PG that is being scrubbed.
    current: Option<PgId>,
    /// Scrubs that operators requested and that have not begun; true for a deep scrub.
    asked: BTreeMap<PgId, bool>,
    /// Whether a client's request has arrived since the turn began.
    is_busy: bool,
    /// The check of this OSD's metadata.
    pub(crate) metadata: MetadataChecks,
    /// Bytes that may be read in a turn.
    bytes: u64,
    /// The rows that were sent to the monitor over this connection.
    told: BTreeMap<PgId, ScrubRow>,
}

/// The work of one turn.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct Turn {
    /// PGs whose members are asked for their scrub notes.
    pub(crate) recall: Vec<PgSlot>,
    /// PGs whose members are reading for a block of a scrub: the time limit for that must be checked.
    pub(crate) looking: Vec<PgSlot>,
    /// PGs that have no scrub schedule yet: their schedules begin now.
    pub(crate) born: Vec<PgSlot>,
    /// The scrub that begins or continues in this turn, if any.
    pub(crate) scrub: Option<Go>,
    /// The next step of the metadata's check, if it runs.
    pub(crate) metadata: Option<Step>,
    /// The time of day.
    pub(crate) day: u64,
}

/// A scrub that begins or continues in a turn.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Go {
    pub(crate) slot: PgSlot,
    /// The scrub to begin; `None` if one is under way.
    pub(crate) begin: Option<Begin>,
    /// Number of bytes that may be read in this turn.
    pub(crate) bytes: u64,
    /// Whether damage is repaired once it is clear what is right.
    pub(crate) repairs: bool,
}

/// A scrub to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Begin {
    pub(crate) deep: bool,
    /// Whether an operator requested the scrub.
    pub(crate) on_demand: bool,
}

impl Scrubbing {
    /// Sets the time of day.
    pub(crate) fn set_time_of_day(&mut self, now: Time, unix_ms: u64) {
        self.time_of_day = Some((now, unix_ms));
    }

    /// Returns the time of day, in milliseconds since 1970.
    pub(crate) fn time_of_day(&self, now: Time) -> Option<u64> {
        self.time_of_day.map(|(told, unix_ms)| unix_ms + now.since(told).as_millis())
    }

    /// Returns the time of day, in seconds since 1970.
    pub(crate) fn day(&self, now: Time) -> Option<u64> {
        self.time_of_day(now).map(|unix_ms| unix_ms / 1000)
    }

    /// Returns when the next turn begins.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// Records that a client's request has arrived.
    pub(crate) fn on_request(&mut self) {
        self.is_busy = true;
    }

    /// Starts the turns, if they are not running: a scrub may be due.
    pub(crate) fn begin(&mut self, now: Time) {
        if self.time_of_day.is_some() {
            self.due.get_or_insert(now);
        }
    }

    /// Stops the turns: the OSD is about to stop.
    pub(crate) fn end(&mut self) {
        self.due = None;
        self.time_of_day = None;
    }

    /// Records that an operator requested a scrub of a PG.
    pub(crate) fn ask(&mut self, pg: PgId, deep: bool) {
        *self.asked.entry(pg).or_default() |= deep;
    }

    /// Records that the scrub that an operator requested has begun.
    pub(crate) fn on_begun(&mut self, pg: PgId) {
        self.asked.remove(&pg);
    }

    /// Begins a turn and returns its work. `checked_at`: when the last check of the metadata ended.
    pub(crate) fn begin_turn(
        &mut self,
        now: Time,
        pgs: &PgTable,
        cluster: &ClusterView,
        checked_at: u64,
    ) -> Turn {
        self.due = None;
        let is_busy = std::mem::take(&mut self.is_busy);
        let Some(day) = self.day(now) else { return Turn::default() };
        let is_led = |pg: &Pg| {
            let entry = pg.entry().filter(|_| *pg.serving() == Serving::Active);
            entry.is_some_and(|entry| cluster.leads(entry))
        };
        // A request outlasts peering: it is kept for as long as this OSD is to lead the PG.
        self.asked.retain(|pg, _| cluster.pg(*pg).is_some_and(|entry| cluster.leads(entry)));
        let looking = pgs.iter().filter(|(_, pg)| pg.is_looking());
        let looking: Vec<PgSlot> = looking.map(|(slot, _)| slot).collect();
        let is_unknown = |pg: &Pg| is_led(pg) && !pg.knows_scrubs();
        let unknown = pgs.iter().filter(|(_, pg)| is_unknown(pg));
        let recall = unknown.map(|(slot, _)| slot).take(RECALL_COUNT_MAX).collect();
        let known = || pgs.iter().filter(|(_, pg)| is_led(pg) && pg.knows_scrubs());
        let born = known().filter(|(_, pg)| pg.scrub_note().born_at == 0);
        let born: Vec<PgSlot> = born.map(|(slot, _)| slot).take(RECALL_COUNT_MAX).collect();
        let wants_metadata = self.wants_metadata(day, checked_at, cluster);
        let next = self.choose(day, known(), cluster).filter(|_| !wants_metadata);
        self.current = next.map(|(slot, _)| pgs[slot].id());
        let scrub = next.map(|(slot, begin)| {
            self.allow(is_busy, pgs[slot].block_size(), cluster);
            let repairs = cluster.value(Setting::ScrubRepair) != 0;
            Go { slot, begin, bytes: self.bytes, repairs }
        });
        let metadata = wants_metadata.then(|| {
            self.allow(is_busy, BlockSize::DEFAULT, cluster);
            self.metadata.step(self.bytes)
        });
        let turn = Turn { recall, looking, born, scrub, metadata, day };
        let has_slots = [&turn.recall, &turn.looking, &turn.born].iter().any(|it| !it.is_empty());
        if has_slots || turn.scrub.is_some() || turn.metadata.is_some() {
            self.due = Some(now + TURN);
        }
        turn
    }

    /// Sets how many bytes may be read in this turn.
    fn allow(&mut self, is_busy: bool, block_size: BlockSize, cluster: &ClusterView) {
        let block_bytes = block_size.bytes();
        let rate = cluster.value(Setting::ScrubRate).saturating_mul(MIB) / TURNS;
        self.bytes = match is_busy {
            true => block_bytes,
            false => self.bytes.saturating_mul(2),
        };
        self.bytes = self.bytes.clamp(block_bytes, rate.max(block_bytes));
    }

    /// Returns whether the check of the metadata runs in this turn.
    fn wants_metadata(&self, day: u64, checked_at: u64, cluster: &ClusterView) -> bool {
        let span_hours = cluster.value(Setting::ScrubDeep);
        cluster.value(Setting::ScrubPaused) == 0
            && self.metadata.wants(
                is_due(cluster.osd_id(), checked_at, span_hours, day),
                may_begin(day, cluster),
            )
    }

    /// Returns the PG to scrub next, and the scrub to begin there; with `None` if one is under way.
    fn choose<'a>(
        &self,
        day: u64,
        known: impl Iterator<Item = (PgSlot, &'a Pg)>,
        cluster: &ClusterView,
    ) -> Option<(PgSlot, Option<Begin>)> {
        if cluster.value(Setting::ScrubPaused) != 0 {
            return None;
        }
        let may_begin = may_begin(day, cluster);
        let spans = [Setting::ScrubLight, Setting::ScrubDeep].map(|span| cluster.value(span));
        let rank = |(slot, pg): (PgSlot, &Pg)| {
            let id = pg.id();
            let running = pg.scrub_note().running.as_ref();
            let is_current = self.current == Some(id);
            // Otherwise the scrubs of a whole pool would all begin before the first one ends.
            if running.is_some_and(|running| running.on_demand) {
                return Some((Rank::Begun(!is_current, id), slot, None));
            }
            if let Some(deep) = self.asked.get(&id).copied() {
                let begin = Some(Begin { deep, on_demand: true });
                return Some((Rank::Asked(id), slot, begin));
            }
            let may_go = may_begin && pg.entry().is_some_and(|entry| entry.learners.is_empty());
            if running.is_some() && may_go {
                return Some((Rank::Running(!is_current, id), slot, None));
            }
            let (late, deep) = due(id, pg.scrub_note(), spans, day).filter(|_| may_go)?;
            let begin = Some(Begin { deep, on_demand: false });
            Some((Rank::Due(std::cmp::Reverse(late), id), slot, begin))
        };
        let all = known.filter_map(rank);
        all.min_by_key(|(rank, ..)| *rank).map(|(_, slot, begin)| (slot, begin))
    }

    /// Handles a new connection to a monitor: this monitor may have none of the rows.
    pub(crate) fn begin_connection(&mut self) {
        self.told.clear();
    }

    /// Returns the rows of PGs that this OSD leads and whose rows have changed since they were last sent.
    pub(crate) fn rows_to_tell(
        &mut self,
        now: Time,
        pgs: &PgTable,
        cluster: &ClusterView,
    ) -> Vec<ScrubRow> {
        let Some(day) = self.day(now) else { return Vec::new() };
        let spans = [Setting::ScrubLight, Setting::ScrubDeep].map(|span| cluster.value(span));
        let mut rows = Vec::new();
        for (_, pg) in pgs.iter() {
            let id = pg.id();
            if !pg.knows_scrubs() {
                self.told.remove(&id);
                continue;
            }
            let row = row_of(pg, spans, day);
            if rows.len() < ROW_COUNT_MAX && self.told.get(&id) != Some(&row) {
                self.told.insert(id, row.clone());
                rows.push(row);
            }
        }
        rows
    }
}

/// The priority of a scrub; the lowest value comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// A scrub that an operator requested and that has begun: whether the PG is not the one scrubbed last,
    /// and the PG.
    Begun(bool, PgId),
    Asked(PgId),
    /// A scheduled scrub that has begun: whether the PG is not the one scrubbed last, and the PG.
    Running(bool, PgId),
    /// How late the scrub is, in thousandths of its interval.
    Due(std::cmp::Reverse<u64>, PgId),
}

/// Returns whether scheduled scrubs may run at this hour.
fn may_begin(day: u64, cluster: &ClusterView) -> bool {
    let hours = [Setting::ScrubFrom, Setting::ScrubTo].map(|hour| cluster.value(hour));
    is_within(day / HOUR % 24, hours)
}

/// Returns whether an hour lies in a range of hours. The range covers the whole day if both ends are equal.
fn is_within(hour: u64, [from, to]: [u64; 2]) -> bool {
    match from.cmp(&to) {
        std::cmp::Ordering::Equal => true,
        std::cmp::Ordering::Less => (from..to).contains(&hour),
        std::cmp::Ordering::Greater => hour >= from || hour < to,
    }
}

/// Returns how late the scrub of a PG is, in thousandths of its interval, and whether it is deep; `None` if
/// no scrub is due. `spans`: the intervals of light and of deep scrubs in hours; 0 means never.
fn due(pg: PgId, note: &ScrubNote, spans: [u64; 2], day: u64) -> Option<(u64, bool)> {
    let late = |span_hours: u64, last: u64| {
        let last = pg::credible(last, day).max(pg::credible(note.born_at, day));
        let span = span_hours * HOUR;
        // PGs that were scrubbed at the same time are spread over the last eighth of the interval.
        let spread = u64::from(jitter(pg)) * (span / 8) / u64::from(u32::MAX);
        let is_due = span > 0 && day >= (last + span).saturating_sub(spread);
        is_due.then(|| day.saturating_sub(last).saturating_mul(1000) / span)
    };
    if note.born_at == 0 {
        return None;
    }
    let deep = late(spans[1], note.deep_at).map(|late| (late, true));
    deep.or_else(|| late(spans[0], note.light_at).map(|late| (late, false)))
}

/// Returns a pseudo-random number for a PG that is always the same for that PG.
fn jitter(pg: PgId) -> u32 {
    (pg.pool.get() ^ pg.number.rotate_left(16)).wrapping_mul(0x9e37_79b9).rotate_left(13)
}

fn row_of(pg: &Pg, spans: [u64; 2], day: u64) -> ScrubRow {
    let note = pg.scrub_note();
    let (first, last) = pg.hashes();
    let done = |running: &pg::Running| {
        let hash = running.cursor.map_or(first, |cursor| cursor.hash);
        let of_blocks = (u64::from(hash - first) * 100 / (u64::from(last - first) + 1)) as u32;
        // Records come before blocks.
        match pg.shard_count() {
            0 => of_blocks,
            count => (running.shards.min(count) * 50 / count) + of_blocks / 2,
        }
    };
    // More than half an interval late: the scrubs do not keep up with the schedule.
    let is_overdue = due(pg.id(), note, spans, day).is_some_and(|(late, _)| late > 1500);
    let blocks = note
        .findings
        .iter()
        .take(LISTED_MAX)
        .map(|finding| (finding.key.image, finding.key.stripe.get(), faults_text(finding)));
    let osds = note.findings.iter().flat_map(|finding| &finding.faults).map(|(osd, _)| *osd);
    let mut osds: Vec<base::OsdId> = osds.collect();
    osds.sort_unstable();
    osds.dedup();
    ScrubRow {
        pg: pg.id(),
        light_at: note.light_at,
        deep_at: note.deep_at,
        running: note.running.as_ref().map(|running| depth_name(running.deep).to_owned()),
        percent: note.running.as_ref().map_or(0, done),
        damaged: note.damaged_count(),
        repaired: note.repaired,
        overdue: is_overdue,
        blocks: blocks.collect(),
        osds,
        fixed: pg.fixed().map(fixed_row),
    }
}

fn fixed_row(fixed: &Fixed) -> FixedRow {
    let (outcome, why) = match &fixed.outcome {
        FixOutcome::Done => ("done", None),
        FixOutcome::DoneInPart => ("partly", None),
        FixOutcome::Refused(why) => ("refused", Some(why.clone())),
    };
    let FixRequest { image, stripe, number, .. } = fixed.request;
    FixedRow { number, image, stripe: stripe.get(), outcome: outcome.into(), why }
}

#[cfg(test)]
mod tests {
    use base::PoolId;

    use super::*;

    const PG: PgId = PgId { pool: PoolId::FIRST, number: 7 };
    const SPANS: [u64; 2] = [168, 720];

    fn note(light_at: u64, deep_at: u64) -> ScrubNote {
        ScrubNote { born_at: 1, light_at, deep_at, ..ScrubNote::default() }
    }

    #[test]
    fn a_scrub_is_due_an_interval_after_the_last_one_or_a_little_earlier() {
        let day = 10_000 * HOUR;
        let at = |hours: u64| day - hours * HOUR;
        assert_eq!(due(PG, &note(at(1), at(1)), SPANS, day), None);
        assert!(matches!(due(PG, &note(at(168), at(168)), SPANS, day), Some((1000, false))));
        assert!(matches!(due(PG, &note(at(1), at(720)), SPANS, day), Some((1000, true))));
        assert_eq!(due(PG, &note(at(146), at(146)), SPANS, day), None, "an eighth is spread");
        assert!(due(PG, &note(0, 0), SPANS, day).is_some_and(|(_, deep)| deep));
        assert_eq!(due(PG, &note(0, 0), [0, 0], day), None, "never");
        let new = ScrubNote { born_at: at(1), ..ScrubNote::default() };
        assert_eq!(due(PG, &new, SPANS, day), None, "there was nothing to scrub before");
        assert_eq!(due(PG, &ScrubNote::default(), SPANS, day), None);
        let pgs = (0..64).map(|number| PgId { number, ..PG });
        let early = pgs.filter(|pg| due(*pg, &note(at(158), at(1)), SPANS, day).is_some());
        assert!((16..48).contains(&early.count()), "half of them");
    }

    #[test]
    fn a_requested_scrub_ends_before_the_next_requested_one_begins() {
        let other = PgId { number: 1, ..PG };
        let due = Rank::Due(std::cmp::Reverse(u64::MAX), other);
        let order = [
            Rank::Begun(false, PG),
            Rank::Begun(true, other),
            Rank::Asked(other),
            Rank::Running(false, other),
            due,
        ];
        assert!(order.is_sorted());
    }

    #[test]
    fn hours_may_cross_midnight() {
        assert!(is_within(3, [0, 0]) && is_within(3, [5, 5]));
        assert!(is_within(3, [1, 6]) && !is_within(6, [1, 6]));
        assert!(is_within(23, [22, 6]) && is_within(5, [22, 6]) && !is_within(6, [22, 6]));
    }

    #[test]
    fn a_clock_that_jumps_back_a_little_makes_nothing_due() {
        let day = 50_000 * HOUR;
        assert_eq!(due(PG, &note(day + 23 * HOUR, day + 23 * HOUR), SPANS, day), None);
        assert_eq!(due(PG, &note(day + 25 * HOUR, day), SPANS, day).map(|it| it.1), Some(false));
    }

    #[test]
    fn a_clock_that_was_far_ahead_once_does_not_end_scrubs() {
        let day = 10_000 * HOUR;
        let ahead = ScrubNote { born_at: u64::MAX, ..note(u64::MAX, u64::MAX) };
        assert!(due(PG, &ahead, SPANS, day).is_some_and(|(_, deep)| deep));
        let done = ScrubNote { born_at: u64::MAX, ..note(day, day) };
        assert_eq!(due(PG, &done, SPANS, day), None);
    }
}
