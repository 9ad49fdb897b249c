//! Detects disks that respond, but take many times as long as the disks of their peers.
//!
//! OSDs report the work of their disks: sums of reads, journal writes and flushes. At the end of each
//! interval the leader computes the mean time of each kind of operation, and compares every disk with its
//! *peers*: the OSDs with which it shares a PG.
//!
//! ```text
//!   Well ── slow in one interval ──▶ Doubted ── slow for disk_slower_ms ──▶ Slow
//!    ▲ ◀───────── not slow ────────────┘                                    │
//!    └──── well for disk_slower_ms; or not measured for a long time ◀───────┘
//! ```
//!
//! A disk whose reads were slow is no longer measured, because reads go to other members. After a while it is
//! moved back to `Well` as a trial. If it is slow again, the time until the next trial doubles.
//!
//! Invariants
//!   1. Slow disks affect only speed: a wrong decision costs an epoch and slower reads. So the result is not
//!      kept in the state store.
//!   2. Disks are compared by figures of the same interval and of the same kind.
//!   3. A disk without figures is neither slow nor well: it keeps its stage for a while.
//!   4. A new leader does not make a slow disk's OSD primary again: until the leader has evaluated an
//!      interval, OSDs report what an earlier leader told them, and a PG with a planned member that has not
//!      joined yet keeps its primary.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, OsdId, Time, TraceEvent};

use super::{Effect, Monitor};
use crate::message::{DiskOperations, DiskWork, FromMonitor};
use crate::settings::Setting;

/// A disk is slow if its mean time is at least this many times that of its peers.
const RATIO_SLOW: u64 = 10;
/// A slow disk is well again below this factor. It is lower, so that a disk at the limit does not flap.
const RATIO_WELL: u64 = 5;
/// A mean below this is never slow: clients do not notice the delay.
const MEAN_SLOW_MIN: Duration = Duration::from_millis(2);
/// Minimum number of operations of a kind in an interval for a mean time; fewer suffice if together they took
/// half of the interval.
const COUNT_MIN: u64 = 3;
/// Number of intervals in `disk_slower_ms`.
const INTERVAL_COUNT: u64 = 6;
/// A slow disk that has not been measured for this many times `disk_slower_ms` returns to `Well`, as a trial.
const FORGET_AFTER: u64 = 10;
/// Maximum number of times that the time until the next trial doubles.
const DOUBLINGS_MAX: u32 = 4;

/// A kind of disk operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Reads,
    Writes,
    Flushes,
}

impl Kind {
    /// All kinds. Operations that a slow disk still performs come first; reads go to other members.
    const ALL: [Kind; 3] = [Kind::Flushes, Kind::Writes, Kind::Reads];

    fn of(self, work: &DiskWork) -> DiskOperations {
        match self {
            Kind::Reads => work.reads,
            Kind::Writes => work.writes,
            Kind::Flushes => work.flushes,
        }
    }

    fn rank(self) -> usize {
        Kind::ALL.iter().position(|kind| *kind == self).expect("all kinds")
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Reads => "reads",
            Kind::Writes => "journal writes",
            Kind::Flushes => "flushes",
        }
    }
}

/// Mean times in an interval, by kind; `None`: too few operations.
type Means = [Option<Duration>; Kind::ALL.len()];

/// The comparison of a disk with its peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Comparison {
    kind: Kind,
    /// The mean time of this disk.
    mean: Duration,
    /// The median of the mean times of its peers; of two middle values, the greater one.
    peers: Duration,
}

impl Comparison {
    fn is_above(&self, ratio: u64) -> bool {
        let limit = self.peers.as_nanos().saturating_mul(ratio);
        self.mean >= MEAN_SLOW_MIN && self.mean.as_nanos() >= limit
    }

    /// Describes the comparison: `flushes take 84.2 ms, those of its peers 3.1 ms`.
    pub(super) fn text(&self) -> String {
        let (mean, peers) = (millis_text(self.mean), millis_text(self.peers));
        format!("{} take {mean}, compared with {peers} on its peers", self.kind.name())
    }
}

fn millis_text(span: Duration) -> String {
    let micros = span.as_nanos() / 1000;
    match micros {
        0..10_000 => format!("{}.{:02} ms", micros / 1000, micros % 1000 / 10),
        _ => format!("{} ms", micros / 1000),
    }
}

/// The stages in the diagram at the top of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Well,
    Doubted {
        since: Time,
    },
    Slow {
        /// The last comparison that showed the disk to be slow; `None`: another leader found it slow.
        found: Option<Comparison>,
        /// The time since which the disk has been well, if it is well now.
        well_since: Option<Time>,
        /// The time at which the disk was last measured.
        measured: Time,
    },
}

struct Disk {
    /// The sums of the disk's work at the end of the last interval.
    before: Option<DiskWork>,
    stage: Stage,
    /// The number of trials that began without a measurement since the disk was last found well.
    tries: u32,
}

/// What this leader knows about the disks of all OSDs; lost when this monitor no longer leads.
#[derive(Default)]
pub(super) struct SlowDisks {
    /// The time at which the current interval ends.
    ends: Option<Time>,
    /// Whether an interval has ended. Until then OSDs keep, and report, what an earlier leader told them.
    has_judged: bool,
    disks: BTreeMap<OsdId, Disk>,
    /// The lists that OSDs were sent last.
    told: Told,
}

/// The lists that OSDs are sent.
#[derive(Clone, PartialEq, Eq, Default)]
struct Told {
    /// OSDs whose disks are slow.
    slow: Vec<OsdId>,
    /// OSDs whose disks do not respond: clients read from other members if possible.
    stalled: Vec<OsdId>,
}

/// The last report of an OSD.
struct Reported {
    work: DiskWork,
    /// Whether an earlier leader told the OSD that its disk is slow.
    was_slow: bool,
    peers: BTreeSet<OsdId>,
}

impl SlowDisks {
    /// Whether this OSD's disk is slow; `None`: not known yet. `was_slow`: what an earlier leader told the
    /// OSD, if the OSD has reported that to this leader.
    pub(super) fn is_slow(&self, osd: OsdId, was_slow: Option<bool>) -> Option<bool> {
        if !self.has_judged {
            return was_slow;
        }
        Some(self.disks.get(&osd).is_some_and(|disk| matches!(disk.stage, Stage::Slow { .. })))
    }

    /// Returns the OSDs whose disks are slow, each with the comparison that shows it.
    pub(super) fn slow(&self) -> impl Iterator<Item = (OsdId, Option<Comparison>)> + '_ {
        self.disks.iter().filter_map(|(osd, disk)| match disk.stage {
            Stage::Slow { found, .. } => Some((*osd, found)),
            Stage::Well | Stage::Doubted { .. } => None,
        })
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.ends
    }

    /// Ends an interval: evaluates every disk by its work since the previous interval. `span`: how long a
    /// disk must be slow, or well again. The state of a disk is kept while its OSD is not connected.
    fn judge(&mut self, now: Time, span: Duration, reported: &BTreeMap<OsdId, Reported>) {
        let mut means: BTreeMap<OsdId, Means> = BTreeMap::new();
        for (osd, told) in reported {
            let stage = match told.was_slow {
                true => Stage::Slow { found: None, well_since: None, measured: now },
                false => Stage::Well,
            };
            let disk = self.disks.entry(*osd).or_insert(Disk { before: None, stage, tries: 0 });
            let before = disk.before.replace(told.work);
            let busy = Duration::from_nanos(interval_of(span).as_nanos() / 2);
            let of_interval = |before| means_of(&before, &told.work, busy);
            means.insert(*osd, before.map_or([None; 3], of_interval));
        }
        for (osd, told) in reported {
            let others = told.peers.iter().filter(|peer| *peer != osd);
            let others: Vec<Means> = others.filter_map(|peer| means.get(peer)).copied().collect();
            let found = compare(&means[osd], &others);
            self.disks.get_mut(osd).expect("just inserted").end_interval(now, span, &found);
        }
    }
}

impl Disk {
    /// Moves to the stage that follows from the comparisons of an interval.
    fn end_interval(&mut self, now: Time, span: Duration, found: &[Comparison]) {
        let was_slow = matches!(self.stage, Stage::Slow { .. });
        self.stage = next_stage(self.stage, now, span, found);
        match self.stage {
            Stage::Well if was_slow => self.tries = 0,
            Stage::Slow { measured, .. } => {
                let times = FORGET_AFTER << self.tries.min(DOUBLINGS_MAX);
                if now.since(measured).as_nanos() >= span.as_nanos().saturating_mul(times) {
                    self.tries = self.tries.saturating_add(1);
                    self.stage = Stage::Well;
                }
            }
            Stage::Well | Stage::Doubted { .. } => {}
        }
    }
}

/// Returns the mean times between two reports; none if the store was reopened in between, because its sums
/// then start at zero. `busy`: operations that took at least this long in total have a mean, even if there
/// are few of them.
fn means_of(before: &DiskWork, after: &DiskWork, busy: Duration) -> Means {
    Kind::ALL.map(|kind| {
        let (before, after) = (kind.of(before), kind.of(after));
        let count = after.count.checked_sub(before.count)?;
        let nanos = after.nanos.checked_sub(before.nanos)?;
        let is_enough = count >= COUNT_MIN || (count > 0 && nanos >= busy.as_nanos());
        is_enough.then(|| Duration::from_nanos(nanos / count))
    })
}

/// Compares a disk with its peers, for each kind with figures. With an even number of peers, the greater of
/// the two middle means is used: one fast and one slow peer do not show that the disk is slow.
fn compare(own: &Means, others: &[Means]) -> Vec<Comparison> {
    let of_kind = |(index, kind): (usize, Kind)| {
        let mean = own[index]?;
        let mut peers: Vec<Duration> = others.iter().filter_map(|means| means[index]).collect();
        peers.sort_unstable();
        let median = peers.get(peers.len() / 2)?;
        Some(Comparison { kind, mean, peers: *median })
    };
    Kind::ALL.into_iter().enumerate().filter_map(of_kind).collect()
}

/// Returns the stage that follows from the comparisons of an interval.
fn next_stage(stage: Stage, now: Time, span: Duration, found: &[Comparison]) -> Stage {
    let interval = interval_of(span);
    let began = Time::from_nanos(now.as_nanos().saturating_sub(interval.as_nanos()));
    let slow = found.iter().find(|comparison| comparison.is_above(RATIO_SLOW)).copied();
    match (stage, slow) {
        (Stage::Well, Some(_)) => Stage::Doubted { since: began },
        (Stage::Doubted { since }, Some(found)) if now.since(since) >= span => {
            Stage::Slow { found: Some(found), well_since: None, measured: now }
        }
        (Stage::Doubted { .. }, Some(_)) => stage,
        (Stage::Well | Stage::Doubted { .. }, None) => Stage::Well,
        (Stage::Slow { found: before, .. }, Some(found)) => {
            // The disk is well again once this kind is well: keep the kind that a slow disk still performs.
            let kept = before.filter(|before| before.kind.rank() < found.kind.rank());
            let found = Some(kept.unwrap_or(found));
            Stage::Slow { found, well_since: None, measured: now }
        }
        (Stage::Slow { found: before, well_since, .. }, None) => {
            let is_of_kind =
                |one: &&Comparison| before.is_none_or(|before| before.kind == one.kind);
            let Some(same) = found.iter().find(is_of_kind) else { return stage };
            if same.is_above(RATIO_WELL) {
                return Stage::Slow { found: Some(*same), well_since: None, measured: now };
            }
            let since = well_since.unwrap_or(began);
            match now.since(since) >= span {
                true => Stage::Well,
                false => Stage::Slow { found: before, well_since: Some(since), measured: now },
            }
        }
    }
}

fn interval_of(span: Duration) -> Duration {
    Duration::from_nanos(span.as_nanos() / INTERVAL_COUNT)
}

impl Monitor {
    /// Ends an interval when it is due, and informs OSDs if the set of slow disks has changed.
    pub(super) fn judge_disks(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let span = self.span(Setting::DiskSlower);
        // An interval is long enough for at least two reports.
        let reports = self.span(Setting::OsdReport);
        let next = (now + interval_of(span)).max(now + reports + reports);
        // If the setting was made shorter, that takes effect at once.
        let ends = *self.slow_disks.ends.get_or_insert(next);
        if now < ends {
            self.slow_disks.ends = Some(ends.min(next));
            return;
        }
        self.slow_disks.ends = Some(next);
        let reported = self.reported_work();
        let committed = &self.committed;
        let is_up = |osd: &OsdId| committed.osd(*osd).is_some_and(|record| record.info.up);
        self.slow_disks.disks.retain(|osd, _| is_up(osd));
        self.slow_disks.judge(now, span, &reported);
        let after: Vec<(OsdId, Option<Comparison>)> = self.slow_disks.slow().collect();
        let told = Told {
            slow: after.iter().map(|(osd, _)| *osd).collect(),
            stalled: self.stalled_osds(),
        };
        let is_first = !std::mem::replace(&mut self.slow_disks.has_judged, true);
        let before = std::mem::replace(&mut self.slow_disks.told, told.clone());
        if before == told && !is_first {
            return;
        }
        for (osd, found) in after.iter().filter(|(osd, _)| !before.slow.contains(osd)) {
            let event = TraceEvent::warn("the disk of an OSD is slower than its peers'");
            let why = found.map_or_else(|| "an earlier leader measured it".into(), |it| it.text());
            effects.push(Effect::Trace(event.with("osd", osd).with("why", why)));
        }
        let is_well = |osd: &&OsdId| !told.slow.contains(osd) && reported.contains_key(osd);
        for osd in before.slow.iter().filter(is_well) {
            let event = TraceEvent::info("the disk of an OSD is no longer slower than its peers'");
            effects.push(Effect::Trace(event.with("osd", osd)));
        }
        let joined: Vec<_> = self.osds.values().filter_map(|live| live.connection).collect();
        for connection in joined {
            self.send_slow_disks(connection, effects);
        }
        self.entries.mark_all();
    }

    /// Tells an OSD that has just joined which disks are slow.
    pub(super) fn greet_with_slow_disks(
        &self,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        if self.slow_disks.has_judged {
            self.send_slow_disks(connection, effects);
        }
    }

    fn send_slow_disks(&self, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let Told { slow, stalled } = self.slow_disks.told.clone();
        self.connections.send(connection, &FromMonitor::SlowDisks { osds: slow, stalled }, effects);
    }

    /// Returns the OSDs that last reported that their disks do not respond.
    fn stalled_osds(&self) -> Vec<OsdId> {
        let stalled = self.osds.iter().filter(|(_, live)| live.stall.stalled);
        stalled.map(|(osd, _)| *osd).collect()
    }

    /// Returns the last reports of the connected OSDs, each with the OSD's peers.
    fn reported_work(&self) -> BTreeMap<OsdId, Reported> {
        let reports =
            self.osds.iter().filter_map(|(osd, live)| Some((osd, live.current_report()?)));
        let reported = reports.map(|(osd, report)| {
            let peers = BTreeSet::new();
            (*osd, Reported { work: report.disk, was_slow: report.slow, peers })
        });
        let mut reported: BTreeMap<OsdId, Reported> = reported.collect();
        for entry in self.committed.pools().flat_map(|pool| self.committed.pgs(pool.pool.id)) {
            for member in entry.members() {
                if let Some(told) = reported.get_mut(&member.osd) {
                    told.peers.extend(entry.members().map(|peer| peer.osd));
                }
            }
        }
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_secs(60);
    const BUSY: Duration = Duration::from_secs(5);

    fn osd(number: u32) -> OsdId {
        OsdId::new(number).unwrap()
    }

    fn operations(count: u64, each_ms: u64) -> DiskOperations {
        DiskOperations { count, nanos: count * each_ms * 1_000_000 }
    }

    /// Three OSDs that share all PGs. Each interval adds operations to their sums.
    #[derive(Default)]
    struct Rig {
        disks: SlowDisks,
        now: Time,
        work: BTreeMap<OsdId, DiskWork>,
        was_slow: bool,
    }

    impl Rig {
        /// Ends an interval in which each OSD did 20 flushes of this length each; `None`: it did nothing.
        fn interval(&mut self, each_ms: [Option<u64>; 3]) -> Vec<OsdId> {
            self.now = self.now + interval_of(SPAN);
            let all: BTreeSet<OsdId> = (1..=3).map(osd).collect();
            for (id, each) in all.iter().zip(each_ms) {
                let work = self.work.entry(*id).or_default();
                let more = operations(if each.is_some() { 20 } else { 0 }, each.unwrap_or(0));
                work.flushes.count += more.count;
                work.flushes.nanos += more.nanos;
            }
            let was_slow = self.was_slow;
            let told = |(id, work): (&OsdId, &DiskWork)| {
                let was_slow = was_slow && *id == osd(3);
                (*id, Reported { work: *work, was_slow, peers: all.clone() })
            };
            let reported = self.work.iter().map(told).collect();
            self.disks.judge(self.now, SPAN, &reported);
            self.disks.slow().map(|(id, _)| id).collect()
        }

        fn intervals(&mut self, count: usize, each_ms: [Option<u64>; 3]) -> Vec<OsdId> {
            (0..count).map(|_| self.interval(each_ms)).last().unwrap_or_default()
        }
    }

    const SLOW: [Option<u64>; 3] = [Some(1), Some(1), Some(10)];
    const WELL: [Option<u64>; 3] = [Some(1), Some(1), Some(2)];

    #[test]
    fn a_disk_is_slow_after_a_minute_and_well_again_after_another() {
        let mut rig = Rig::default();
        assert!(rig.interval(SLOW).is_empty(), "the first sums have nothing before them");
        assert!(rig.intervals(5, SLOW).is_empty(), "for 50 s");
        assert_eq!(rig.interval(SLOW), [osd(3)]);
        let (_, found) = rig.disks.slow().next().unwrap();
        assert_eq!(found.unwrap().text(), "flushes take 10 ms, compared with 1.00 ms on its peers");
        assert_eq!(rig.intervals(5, WELL), [osd(3)], "well for 50 s");
        assert!(rig.interval(WELL).is_empty());
    }

    #[test]
    fn one_quick_interval_begins_the_minute_anew() {
        let mut rig = Rig::default();
        rig.intervals(6, SLOW);
        rig.interval(WELL);
        assert!(rig.intervals(5, SLOW).is_empty());
        assert_eq!(rig.interval(SLOW), [osd(3)]);
        rig.intervals(5, WELL);
        rig.interval([Some(1), Some(1), Some(6)]);
        assert_eq!(rig.intervals(5, WELL), [osd(3)], "six times as long is not well yet");
        assert!(rig.interval(WELL).is_empty());
    }

    #[test]
    fn disks_that_are_all_slow_or_all_quick_are_no_finding() {
        let mut rig = Rig::default();
        assert!(rig.intervals(9, [Some(90), Some(70), Some(99)]).is_empty());
        let quick = |nanos| Comparison {
            kind: Kind::Reads,
            mean: Duration::from_nanos(nanos),
            peers: Duration::from_nanos(nanos / 20),
        };
        assert!(!quick(1_900_000).is_above(RATIO_SLOW));
        assert!(quick(2_000_000).is_above(RATIO_SLOW));
    }

    #[test]
    fn a_slow_disk_without_figures_stays_slow_for_a_while() {
        let mut rig = Rig::default();
        rig.intervals(7, SLOW);
        let idle = [Some(1), Some(1), None];
        assert_eq!(rig.intervals(59, idle), [osd(3)]);
        assert!(rig.interval(idle).is_empty(), "after ten minutes it is tried again");
        assert_eq!(rig.intervals(7, SLOW), [osd(3)]);
        assert_eq!(rig.intervals(119, idle), [osd(3)], "the second time after twice as long");
        assert!(rig.interval(idle).is_empty());
        assert_eq!(rig.intervals(7, SLOW), [osd(3)]);
        assert!(rig.intervals(6, WELL).is_empty());
        rig.intervals(7, SLOW);
        assert!(rig.intervals(60, idle).is_empty(), "it was found well since: ten minutes again");
        let mut rig = Rig::default();
        rig.intervals(4, SLOW);
        rig.interval(idle);
        assert!(rig.intervals(5, SLOW).is_empty(), "it was not slow all the time");
    }

    #[test]
    fn a_disk_that_is_no_longer_read_is_well_by_what_it_goes_on_doing() {
        let of = |kind, ms| Comparison {
            kind,
            mean: Duration::from_millis(ms),
            peers: Duration::from_millis(1),
        };
        let at = |second| Time::ZERO + Duration::from_secs(second);
        let mut stage = Stage::Doubted { since: Time::ZERO };
        stage = next_stage(stage, at(60), SPAN, &[of(Kind::Flushes, 20)]);
        // In the last interval in which the disk is slow, only its reads are slow.
        stage = next_stage(stage, at(70), SPAN, &[of(Kind::Flushes, 9), of(Kind::Reads, 11)]);
        for second in [80, 90, 100, 110, 120] {
            stage = next_stage(stage, at(second), SPAN, &[of(Kind::Flushes, 1)]);
            assert!(matches!(stage, Stage::Slow { .. }), "{second} s");
        }
        stage = next_stage(stage, at(130), SPAN, &[of(Kind::Flushes, 1)]);
        assert_eq!(stage, Stage::Well);
    }

    #[test]
    fn a_new_leader_begins_with_what_the_osd_was_told() {
        let mut rig = Rig { was_slow: true, ..Rig::default() };
        assert_eq!(rig.interval(SLOW), [osd(3)]);
        assert_eq!(rig.intervals(5, WELL), [osd(3)]);
        assert!(rig.interval(WELL).is_empty(), "the report is not believed twice");
    }

    #[test]
    fn sums_that_begin_anew_give_no_figures() {
        let before = DiskWork { reads: operations(100, 1), ..DiskWork::default() };
        let after = DiskWork { reads: operations(50, 9), ..DiskWork::default() };
        assert_eq!(means_of(&before, &after, BUSY), [None; 3]);
        let few = DiskWork { reads: operations(102, 1), ..DiskWork::default() };
        assert_eq!(means_of(&before, &few, BUSY), [None; 3]);
    }

    #[test]
    fn a_disk_so_slow_that_it_ends_few_operations_is_measured() {
        let after = DiskWork { flushes: operations(1, 5_000), ..DiskWork::default() };
        let mean = Some(Duration::from_secs(5));
        assert_eq!(means_of(&DiskWork::default(), &after, BUSY), [mean, None, None]);
    }

    #[test]
    fn where_one_of_two_peers_is_as_slow_nothing_is_known() {
        let of = |ms| [Some(Duration::from_millis(ms)), None, None];
        let found = compare(&of(20), &[of(1), of(20)]);
        assert!(!found[0].is_above(RATIO_SLOW), "one quick disk beside two of another kind");
        assert!(compare(&of(20), &[of(1), of(2)])[0].is_above(RATIO_SLOW));
        assert!(compare(&of(20), &[of(1)])[0].is_above(RATIO_SLOW), "a single peer decides");
    }

    #[test]
    fn kinds_are_compared_apart() {
        let (ms, us) = (Duration::from_millis(9), Duration::from_micros(100));
        // The flushes of one disk are not compared with the reads of another.
        assert!(compare(&[None, None, Some(ms)], &[[Some(us), None, None]]).is_empty());
        let found = compare(&[Some(ms), None, Some(us)], &[[Some(us), None, Some(us)]; 2]);
        assert_eq!(found.len(), 2);
        assert!(found[0].is_above(RATIO_SLOW) && !found[1].is_above(RATIO_SLOW));
    }
}
