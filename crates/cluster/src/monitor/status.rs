//! `status` answers three questions: is my data safe, what is happening, and when will it be done?

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use base::size::Size;
use base::{Duration, OsdId, PgId, Scheme, Time};
use format::wire::PgEntry;
use serde_json::{Value, json};

use super::Monitor;
use super::engine_health::{engine_checks, engine_missing};
use super::query::PgState;
use super::remedy::{self, start_hint};
use super::scrub::ScrubTally;
use super::session::SESSION_COUNT_MAX;
use super::volume::FENCE_COUNT_MAX;
use crate::message::{MediaErrors, OsdReport};
use crate::records::{OsdRecord, OutBy, PoolRecord};
use crate::settings::Setting;
use crate::stats::Table;

/// How long the other monitors may take to connect to a new leader.
const MONITOR_RETURN_SPAN: Duration = Duration::from_secs(3);
/// A disk with this many media errors since its OSD started should be replaced. A single bad spot causes one
/// or two errors, and is repaired.
const MEDIA_ERRORS_WARN: u64 = 10;

/// The severity of a check; later variants are worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Severity {
    Info,
    Warn,
    Error,
}

impl Severity {
    fn name(self) -> &'static str {
        match self {
            Severity::Info => "info",
            Severity::Warn => "warn",
            Severity::Error => "error",
        }
    }
}

/// A finding that an operator should know.
pub(super) struct Check {
    pub(super) code: &'static str,
    pub(super) severity: Severity,
    pub(super) message: String,
    pub(super) hint: Cow<'static, str>,
}

/// Whether a list has reached four fifths of its limit, so that the operator should act.
const fn is_near(count: usize, count_max: usize) -> bool {
    count * 5 >= count_max * 4
}

/// Counts of PGs by state.
#[derive(Default)]
struct PgTally {
    total: u32,
    /// PGs that serve.
    active: u32,
    /// PGs that serve with all copies and have no learner.
    clean: u32,
    degraded: u32,
    /// Degraded PGs with only one copy left or, with parity, without any spare part.
    last_copy: u32,
    filling: u32,
    peering: u32,
    down: u32,
    incomplete: u32,
    /// PGs that have been peering for so long that the operator is informed.
    stuck: u32,
    /// One degraded PG, as an example.
    degraded_example: Option<String>,
    /// One incomplete PG, and why it is incomplete.
    incomplete_example: Option<(PgId, String)>,
    /// One PG that is down, and why.
    down_example: Option<(PgId, String)>,
    /// One PG that has been peering for too long, and why.
    stuck_example: Option<(PgId, String)>,
}

impl PgTally {
    fn add(&mut self, entry: &PgEntry, scheme: Scheme, state: PgState, is_lasting: bool) {
        self.active += u32::from(state.serves());
        match state {
            PgState::Active => self.clean += 1,
            PgState::Filling => self.filling += 1,
            PgState::Degraded => {
                self.degraded += 1;
                self.last_copy += u32::from(entry.acting_count() <= scheme.data_count() as usize);
                self.filling += u32::from(!entry.learners.is_empty());
                let osds: Vec<String> = entry.acting().map(|m| m.osd.to_string()).collect();
                let example = || format!("{} is on {} only", entry.pg, osds.join(", "));
                self.degraded_example.get_or_insert_with(example);
            }
            PgState::Peering(why) => {
                self.peering += 1;
                if is_lasting {
                    self.stuck += 1;
                    let why = why.unwrap_or_else(|| "the primary reports no reason".to_owned());
                    self.stuck_example.get_or_insert((entry.pg, why));
                }
            }
            PgState::Incomplete(why) => {
                self.incomplete += 1;
                self.incomplete_example.get_or_insert((entry.pg, why));
            }
            PgState::Down(why) => {
                self.down += 1;
                self.down_example.get_or_insert((entry.pg, why));
            }
        }
    }
}

/// Checks for damage that scrubs found and did not repair, and for scrubs that are late.
fn check_scrubs(tally: &ScrubTally, checks: &mut Vec<Check>) {
    if let Some((pg, wrong)) = &tally.damaged_example {
        checks.push(Check {
            code: "pg_damaged",
            severity: Severity::Error,
            message: format!(
                "{} blocks in {} PGs are damaged, and a scrub could not repair them ({pg}: {wrong})",
                tally.damaged_blocks, tally.damaged_pgs
            ),
            hint: format!(
                "`ashlar pg describe {pg}` lists the blocks. `ashlar pg fix` decides which \
                 content is right; blocks that are rewritten or discarded are right after `ashlar pg \
                 scrub {pg} --deep`"
            )
            .into(),
        });
    }
    if let Some(pg) = tally.overdue_example {
        checks.push(Check {
            code: "scrub_overdue",
            severity: Severity::Warn,
            message: format!("{} PGs are overdue for a scrub, such as {pg}", tally.overdue),
            hint:
                "scrubs run only at certain hours, at a limited rate, and give way to clients: see \
                 the settings that begin with `scrub` in `ashlar config ls`, or request one: \
                 `ashlar pg scrub`"
                    .into(),
        });
    }
}

impl Monitor {
    pub(super) fn status(&self, now: Time, trouble: Option<&str>) -> Value {
        let tally = self.tally(now);
        let mut checks = Vec::new();
        self.check_pools(&mut checks);
        self.check_removed_pools(&mut checks);
        self.check_pgs(&tally, &mut checks);
        let scrubs = self.scrub_tally();
        check_scrubs(&scrubs, &mut checks);
        self.check_osds(now, &mut checks);
        self.check_rooms(&mut checks);
        self.check_slow_disks(&mut checks);
        self.check_waiting(&mut checks);
        self.check_links(now, &mut checks);
        self.check_limits(&mut checks);
        self.check_edits(now, &mut checks);
        self.check_monitors(now, &mut checks);
        self.check_monitor(trouble, &mut checks);
        checks.sort_by_key(|check| std::cmp::Reverse(check.severity));
        let worst = checks.iter().map(|check| check.severity).max();
        let health = match worst {
            Some(Severity::Error) => "error",
            Some(Severity::Warn) => "warn",
            Some(Severity::Info) | None => "ok",
        };
        let (damaged_osds, damaged_pools) = self.damage_rows();
        let check = |check: Check| {
            json!({
                "code": check.code,
                "severity": check.severity.name(),
                "message": check.message,
                "hint": check.hint,
            })
        };
        let served = self.served();
        let summary = |record| self.pool_summary(record, &served);
        json!({
            "health": health,
            "checks": checks.into_iter().map(check).collect::<Vec<Value>>(),
            "osds": self.osd_rows(),
            "pgs": {
                "total": tally.total,
                "active": tally.active,
                "clean": tally.clean,
                "degraded": tally.degraded,
                "filling": tally.filling,
                "peering": tally.peering,
                "incomplete": tally.incomplete,
                "down": tally.down,
            },
            "recovery": self.recovery(),
            "scrub": {
                "running": scrubs.running,
                "overdue": scrubs.overdue,
                "damaged_blocks": scrubs.damaged_blocks,
                "repaired_blocks": scrubs.repaired,
                "damaged_osds": damaged_osds,
                "damaged_pools": damaged_pools,
            },
            "tasks": self.task_rows(None),
            "io": self.cluster_rates(),
            "pools": self.committed.pools().map(summary).collect::<Vec<Value>>(),
            "processes": self.processes(),
        })
    }

    /// Returns a summary of a pool: its space and its client rates.
    fn pool_summary(&self, record: &PoolRecord, served: impl Fn(&PgEntry) -> bool) -> Value {
        let row = self.pool_row_with(record);
        json!({
            "name": row["name"],
            "id": row["id"],
            "kind": row["kind"],
            "used_bytes": row["used_bytes"],
            "available_bytes": row["available_bytes"],
            "conditions": self.pg_conditions(record.pool.id, served),
            "io": self.rates_of(Table::Pool, record.pool.id.get()),
        })
    }

    fn tally(&self, now: Time) -> PgTally {
        let mut tally = PgTally::default();
        let committed = &self.committed;
        let served = self.served();
        let of_pool = |record: &'_ PoolRecord| (record.pool.id, record.pool.scheme);
        let pools = committed.pools().map(of_pool);
        for (entry, scheme) in
            pools.flat_map(|(id, scheme)| committed.pgs(id).map(move |entry| (entry, scheme)))
        {
            tally.total += 1;
            let state = match served(entry) {
                true => self.serving_state(entry),
                false => self.pg_state(entry),
            };
            tally.add(entry, scheme, state, self.unserved.waits_for_long(now, entry.pg));
        }
        tally
    }

    /// Whether all acting members are up in the incarnations of the entry.
    pub(super) fn is_whole(&self, entry: &PgEntry) -> bool {
        entry.acting().all(|member| {
            let info = self.committed.osd(member.osd).map(|record| &record.info);
            info.is_some_and(|info| info.up && info.incarnation == member.incarnation)
        })
    }

    /// Returns the progress of backfill: how much is left, its rate, and the time left.
    fn recovery(&self) -> Value {
        let reports = || self.osds.values().filter_map(|live| Some((live, live.current_report()?)));
        let left = reports().flat_map(|(_, report)| &report.filling).map(|fill| fill.left_bytes);
        let is_known = left.clone().all(|left| left.is_some());
        let left: u64 = left.flatten().fold(0, u64::saturating_add);
        let rate: u64 = reports().fold(0, |sum, (live, _)| sum.saturating_add(live.fill_rate));
        let eta = if left == 0 { Some(0) } else { left.checked_div(rate) }.filter(|_| is_known);
        json!({
            "bytes_left": left,
            "bytes_per_second": rate,
            "eta_seconds": eta,
            "waits_for": self.awaited_osds(),
        })
    }

    /// Returns the OSDs that are down and whose absence leaves PGs short of a copy: no other OSD is being
    /// filled in their place.
    fn awaited_osds(&self) -> BTreeSet<OsdId> {
        let is_away = |osd: &OsdId| self.committed.osd(*osd).is_some_and(|record| !record.info.up);
        let mut awaited = BTreeSet::new();
        for record in self.committed.pools() {
            let count = record.pool.scheme.position_count() as usize;
            let entries = self.committed.pgs(record.pool.id).zip(self.targets(record.pool.id));
            for (entry, targets) in entries {
                awaited.extend(entry.acting().map(|member| member.osd).filter(is_away));
                if entry.acting_count() < count {
                    awaited.extend(targets.into_iter().filter(is_away));
                }
            }
        }
        awaited
    }

    fn check_pools(&self, checks: &mut Vec<Check>) {
        for pool in self.committed.pools().filter(|record| record.pool.scheme.position_count() == 1)
        {
            checks.push(Check {
                code: "single_copy",
                severity: Severity::Info,
                message: format!(
                    "pool {} keeps only 1 copy: if a disk fails, its data is lost",
                    pool.pool.name
                ),
                hint: "keep backups, or use a pool with copies: `ashlar pool create --replicas 2`"
                    .into(),
            });
        }
        for record in self.committed.pools() {
            let planned = || self.targets(record.pool.id);
            if let Some(message) = self.crowded_host(&record.pool, planned) {
                checks.push(Check {
                    code: "host_loss_stops_pool",
                    severity: Severity::Info,
                    message,
                    hint: "add OSDs on more hosts: `ashlar osd tree` shows the present ones".into(),
                });
            }
        }
        for (pool, error) in self.unplaced_pools() {
            checks.push(Check {
                code: "pool_unplaced",
                severity: Severity::Warn,
                message: format!(
                    "pool {} cannot be placed on the OSDs that are in: {error}",
                    pool.name
                ),
                hint: "its data stays where it is. To place the pool, add OSDs, bring some back \
                       with `ashlar osd in ID`, or let the members of a PG share a host: `ashlar \
                       pool set POOL --failure-domain osd`"
                    .into(),
            });
        }
        for task in self.committed.tasks() {
            if let Some(waits_for) = self.tasks.waits_for(task.id) {
                checks.push(Check {
                    code: "task_waits",
                    severity: Severity::Info,
                    message: format!("deleting blocks of {} waits for {waits_for}", task.name),
                    hint: remedy::deletion_hint(&self.committed).into(),
                });
            }
        }
    }

    /// Checks for removed pools of which a down OSD may still hold data.
    fn check_removed_pools(&self, checks: &mut Vec<Check>) {
        for record in self.committed.removed_pools() {
            if let Some(waits_for) = self.removal_waits_for(record) {
                checks.push(Check {
                    code: "task_waits",
                    severity: Severity::Info,
                    message: format!(
                        "removing the remaining data of pool {} waits for {waits_for}",
                        record.name
                    ),
                    hint: remedy::deletion_hint(&self.committed).into(),
                });
            }
        }
    }

    fn check_pgs(&self, tally: &PgTally, checks: &mut Vec<Check>) {
        let mut add = |code, severity, message, hint: Cow<'static, str>| {
            checks.push(Check { code, severity, message, hint });
        };
        if let Some((pg, why)) = &tally.incomplete_example {
            add(
                "pg_incomplete",
                Severity::Error,
                format!("{} PGs cannot serve: their I/O waits ({pg}: {why})", tally.incomplete),
                self.what_helps(*pg).into(),
            );
        }
        if let Some((pg, why)) = &tally.down_example {
            add(
                "pg_down",
                Severity::Error,
                format!("{} PGs have no OSD that is up: their I/O waits ({pg}: {why})", tally.down),
                self.what_helps(*pg).into(),
            );
        }
        if let Some((pg, why)) = &tally.stuck_example {
            add(
                "pg_peering",
                Severity::Error,
                format!("{} PGs have been inactive for too long ({pg}: {why})", tally.stuck),
                format!(
                    "`ashlar pg describe {pg}` lists its OSDs: their logs show what they wait for"
                )
                .into(),
            );
        }
        if tally.peering > tally.stuck {
            add(
                "pg_peering",
                Severity::Warn,
                format!("{} PGs are not active yet", tally.peering - tally.stuck),
                "peering is running: this takes a second or two".into(),
            );
        }
        if tally.last_copy > 0 {
            add(
                "pg_last_copy",
                Severity::Warn,
                format!(
                    "{} PGs have only one copy left, or no spare part: another disk failure loses data",
                    tally.last_copy
                ),
                remedy::bring_back(&self.committed).into(),
            );
        }
        if tally.degraded > 0 {
            let example = tally.degraded_example.as_deref().unwrap_or_default();
            add(
                "pg_degraded",
                Severity::Warn,
                format!("{} PGs have fewer members than they should ({example})", tally.degraded),
                remedy::bring_back(&self.committed).into(),
            );
        }
    }

    fn check_osds(&self, now: Time, checks: &mut Vec<Check>) {
        let silent_span = self.span(Setting::OsdReport).as_nanos().saturating_mul(5);
        let has_objects = self.committed.pools().any(|record| record.pool.has_objects());
        for record in self.committed.osds() {
            let osd = record.info.id;
            if !record.info.in_cluster {
                checks.push(self.out_check(record));
            }
            if !record.info.up {
                checks.push(self.down_check(now, record));
                continue;
            }
            if has_objects && record.engine == Some(false) {
                checks.push(engine_missing(osd));
            }
            let Some(live) = self.osds.get(&osd).filter(|live| live.connection.is_some()) else {
                continue;
            };
            let heard = live.report.as_ref().map_or(live.since, |(time, _)| *time);
            if now.since(heard).as_nanos() > silent_span {
                checks.push(Check {
                    code: "osd_silent",
                    severity: Severity::Warn,
                    message: format!(
                        "{osd} has not reported for {:.0} seconds",
                        now.since(heard).as_secs_f64()
                    ),
                    hint: "the disk may be hanging: check the host's kernel log".into(),
                });
            }
            if let Some(report) = live.current_report() {
                self.check_report(osd, report, checks);
                checks.extend(engine_checks(osd, report));
                self.check_disk(osd, report, now.since(heard), checks);
            }
        }
    }

    fn out_check(&self, record: &OsdRecord) -> Check {
        let osd = record.info.id;
        let left = self.pg_counts().get(&osd).copied().unwrap_or(0);
        let (severity, message) = match record.out_by {
            Some(OutBy::Monitor) => {
                (Severity::Warn, format!("{osd} was down for too long: its PGs move elsewhere"))
            }
            _ if left > 0 => {
                (Severity::Info, format!("{osd} is out: {left} PGs still have to move"))
            }
            _ => (Severity::Info, format!("{osd} is out, and has no PGs")),
        };
        Check {
            code: "osd_out",
            severity,
            message,
            hint: match record.info.up {
                true => format!("`ashlar osd in {0}` puts it back in the cluster", osd.get()),
                false => format!(
                    "`ashlar osd in {0}` puts it back in the cluster. Once it has no PGs, it can \
                     be removed: `ashlar osd rm {0}`",
                    osd.get()
                ),
            }
            .into(),
        }
    }

    fn down_check(&self, now: Time, record: &OsdRecord) -> Check {
        let osd = record.info.id;
        let entries = || {
            let pools = self.committed.pools();
            pools.flat_map(|pool| self.committed.pgs(pool.pool.id))
        };
        let needs = |entry: &&PgEntry| entry.acting().any(|member| member.osd == osd);
        let needed = entries().filter(needs).count();
        let waits = |entry: &PgEntry| {
            let state = self.pg_state(entry);
            let is_passing = matches!(state, PgState::Peering(_)) || state.serves();
            !is_passing || self.unserved.waits_for_long(now, entry.pg)
        };
        let is_waited_for = entries().filter(needs).any(waits);
        let planned = self.committed.pools().flat_map(|pool| self.targets(pool.pool.id));
        let lacking = planned.filter(|targets| targets.contains(&osd)).count();
        let never_ran = record.info.incarnation == base::Incarnation::ZERO;
        let start = start_hint(record);
        let (severity, message, hint) = match (needed, lacking) {
            (0, _) if never_ran => (
                Severity::Info,
                format!("{osd} has never run"),
                "start it: `ashlar osd run` with the path it was created at; if its creation was \
                 interrupted, it holds no data and can be ignored"
                    .to_owned(),
            ),
            (0, 0) => (Severity::Warn, format!("{osd} is down; it has no PGs"), start),
            (0, _) => (
                Severity::Warn,
                match self.why_it_stays_in(osd) {
                    Some(why) => format!(
                        "{osd} is down: {lacking} PGs lack a copy; it is not rebuilt elsewhere \
                         because {why}"
                    ),
                    None => format!("{osd} is down: {lacking} PGs lack a copy"),
                },
                format!("{start}. {}", remedy::replace_hint(&self.committed, record)),
            ),
            _ if !is_waited_for => (
                Severity::Warn,
                format!("{osd} is down: {needed} PGs have not continued without it yet"),
                start,
            ),
            _ => (
                Severity::Error,
                format!("{osd} is down: {needed} PGs wait for it"),
                format!(
                    "{start}. It holds data that no running OSD has: keep its disk, or a copy of it"
                ),
            ),
        };
        Check { code: "osd_down", severity, message, hint: hint.into() }
    }

    /// Checks for volumes whose clients must repeat writes that a full pool may have lost.
    fn check_waiting(&self, checks: &mut Vec<Check>) {
        for (session, waiting_bytes) in self.waiting_sessions() {
            let image = session.used.image().and_then(|image| self.committed.image(image));
            let Some(image) = image else { continue };
            let name = &image.info.name;
            checks.push(Check {
                code: "volume_waits_for_room",
                severity: Severity::Warn,
                message: format!(
                    "{} of volume {name} must be written again, but the pool is full: these writes \
                     were not flushed when OSDs lost power. Reads and flushes of the volume wait",
                    Size(waiting_bytes)
                ),
                hint: "keep the client of the volume running: it holds this data. Discard data \
                       that is not needed, in this volume or others, remove volumes, or add OSDs"
                    .into(),
            });
        }
    }

    /// Checks for OSDs that cannot reach each other although both are up, that restart repeatedly, or
    /// that cannot serve some of their PGs.
    fn check_links(&self, now: Time, checks: &mut Vec<Check>) {
        for (from, to) in self.broken_links(now) {
            checks.push(Check {
                code: "link_broken",
                severity: Severity::Warn,
                message: format!("{from} cannot reach {to}, though both reach the monitor"),
                hint: "check the network between their hosts, and firewalls".into(),
            });
        }
        let resting = self.osds.iter().filter_map(|(osd, live)| {
            let end = live.starts.rest(now)?;
            Some((*osd, live.starts.soon_count(), end.since(now)))
        });
        for (osd, count, left) in resting {
            checks.push(Check {
                code: "osd_restarting",
                severity: Severity::Warn,
                message: format!(
                    "{osd} has started {count} times in quick succession; PGs that can do \
                     without it will not use it for another {:.0} s",
                    left.as_secs_f64()
                ),
                hint:
                    "its log shows why it exits; once that is fixed, PGs use it again automatically"
                        .into(),
            });
        }
        let mut failing: BTreeMap<OsdId, (u32, &str)> = BTreeMap::new();
        for (osd, bar) in self.failing_members(now) {
            failing.entry(osd).or_insert((0, &bar.why)).0 += 1;
        }
        for (osd, (count, why)) in failing {
            checks.push(Check {
                code: "osd_failing",
                severity: Severity::Warn,
                message: format!("{osd} cannot serve {count} of its PGs for now: {why}"),
                hint: format!(
                    "the cluster retries automatically; the OSD's log shows what its disk lacks: \
                     space for data, or space for the OSD's records. `ashlar osd out {}` moves its \
                     copies elsewhere",
                    osd.get()
                )
                .into(),
            });
        }
    }

    fn check_report(&self, osd: OsdId, report: &OsdReport, checks: &mut Vec<Check>) {
        if report.suspect {
            let path = self.committed.osd(osd).map_or("its path", |record| &record.path);
            checks.push(Check {
                code: "osd_suspect",
                severity: Severity::Error,
                message: format!("{osd} found damage in its store that is not repaired yet"),
                hint: format!(
                    "the OSD is filled from other copies where they exist; `ashlar pg ls` shows \
                     the affected PGs; `ashlar osd check {path}` shows details while the OSD is \
                     stopped"
                )
                .into(),
            });
        }
        let mut add = |code, severity, message, hint: &'static str| {
            checks.push(Check { code, severity, message, hint: hint.into() });
        };
        if report.damaged_units > 0 {
            add(
                "damaged_units",
                Severity::Error,
                format!(
                    "{osd} has {} damaged 4 KiB units: reads of them need another copy",
                    report.damaged_units
                ),
                "if there is no other copy, rewrite them from a backup or discard them; replace \
                 the disk if the number grows daily",
            );
        }
        let MediaErrors { read_errors, units } = report.media;
        if read_errors.saturating_add(units) >= MEDIA_ERRORS_WARN {
            add(
                "osd_media_errors",
                Severity::Warn,
                format!(
                    "since {osd} started, {read_errors} reads of its disk failed with an error, \
                     and {units} units of 4 KiB could not be read or did not contain what was \
                     written"
                ),
                "replace the disk before it loses more data: `ashlar osd out` moves its copies \
                 elsewhere. Check its health (SMART), its cable and its host's kernel log; `ashlar \
                 osd ls --json` has the totals over all runs of the OSD",
            );
        }
        let limit = self.setting(Setting::NearlyFull);
        let used_percent = u128::from(report.used_bytes) * 100;
        if report.full {
            add(
                "osd_full",
                Severity::Error,
                format!("{osd} is full: writes to its PGs fail"),
                "remove volumes, discard data that is not needed, or add OSDs: some of its PGs \
                 then move there",
            );
        } else if report.size_bytes > 0
            && used_percent > u128::from(report.size_bytes) * u128::from(limit)
        {
            add(
                "osd_nearly_full",
                Severity::Warn,
                format!("{osd} is {} % full", used_percent / u128::from(report.size_bytes)),
                "remove volumes or discard data that is not needed before it is full",
            );
        }
        if report.buffered {
            add(
                "osd_buffered",
                Severity::Info,
                format!(
                    "{osd} is on a file system that does not support O_DIRECT: its writes are buffered"
                ),
                "safe, but slower: use a disk, or a file system that supports O_DIRECT",
            );
        }
    }

    /// Checks whether an OSD's disk is slow or hangs, based on a report of age `ago`.
    fn check_disk(&self, osd: OsdId, report: &OsdReport, ago: Duration, checks: &mut Vec<Check>) {
        let is_slow = report.oldest_operation_ms > self.setting(Setting::DiskSlow);
        let age_ms = report.oldest_operation_ms + ago.as_millis();
        let entries = self.committed.pools().flat_map(|pool| self.committed.pgs(pool.pool.id));
        let is_acting = |entry: &&PgEntry| entry.acting().any(|member| member.osd == osd);
        let needed = if report.stalled { entries.filter(is_acting).count() } else { 0 };
        let age = format!("for {:.1} s", age_ms as f64 / 1000.0);
        let (code, severity, message) = match (report.stalled, is_slow) {
            (false, false) => return,
            (false, true) => {
                let message = format!("a disk operation of {osd} has been running {age}");
                ("disk_slow", Severity::Warn, message)
            }
            (true, true) if needed > 0 => {
                let message =
                    format!("the disk of {osd} has not answered {age}: {needed} PGs wait for it");
                ("osd_stalled", Severity::Error, message)
            }
            (true, true) => {
                let message =
                    format!("the disk of {osd} has not answered {age}: PGs continue without it");
                ("osd_stalled", Severity::Warn, message)
            }
            (true, false) => {
                let message = format!(
                    "the disk of {osd} hung, but answers again: PGs use the OSD again once the \
                     disk has answered for a while"
                );
                ("osd_stalled", Severity::Warn, message)
            }
        };
        let hint = format!(
            "check the disk's health and its host's kernel log. `ashlar osd out {osd}` moves its \
             copies elsewhere",
            osd = osd.get()
        );
        checks.push(Check { code, severity, message, hint: hint.into() });
    }

    /// Checks for disks that respond, but take many times as long as the disks of their peers.
    fn check_slow_disks(&self, checks: &mut Vec<Check>) {
        for (osd, found) in self.slow_disks.slow() {
            let figures = found
                .map_or_else(|| "an earlier leader measured it".to_owned(), |found| found.text());
            checks.push(Check {
                code: "osd_slow",
                severity: Severity::Warn,
                message: format!(
                    "the disk of {osd} is slow: {figures}. PGs read from other members where they can"
                ),
                hint: format!(
                    "check the disk's health (SMART), its host's kernel log and what else uses the \
                     disk. Writes to its PGs wait for it: `ashlar osd out {}` moves its copies \
                     elsewhere",
                    osd.get()
                )
                .into(),
            });
        }
    }

    /// Checks lists that have a limit, beyond which requests are refused.
    fn check_limits(&self, checks: &mut Vec<Check>) {
        let sessions = self.committed.sessions().count();
        if is_near(sessions, SESSION_COUNT_MAX) {
            checks.push(Check {
                code: "sessions_near_limit",
                severity: Severity::Warn,
                message: format!(
                    "{sessions} of {SESSION_COUNT_MAX} sessions are in use, including those of \
                     vanished clients: at the limit no volume can be attached"
                ),
                hint: "detach volumes; removing a volume, or making it smaller, ends its sessions"
                    .into(),
            });
        }
        for pool in self.committed.pools() {
            let fences = self.committed.fences(pool.pool.id).map_or(0, |record| record.count());
            if is_near(fences, FENCE_COUNT_MAX) {
                checks.push(Check {
                    code: "fences_near_limit",
                    severity: Severity::Warn,
                    message: format!(
                        "pool {} has {fences} of at most {FENCE_COUNT_MAX} fences: at the limit \
                         volumes with ended sessions can be neither attached, removed nor made \
                         smaller, and no lock can be taken away",
                        pool.pool.name
                    ),
                    hint: "detach volumes of the pool: fences between open sessions are kept as \
                           one range, so the next fence leaves fewer of them"
                        .into(),
                });
            }
        }
    }

    /// Checks for manual edits of the state store.
    fn check_edits(&self, now: Time, checks: &mut Vec<Check>) {
        for (key, why) in self.watching.undone.recent(now) {
            checks.push(Check {
                code: "state_edit_undone",
                severity: Severity::Warn,
                message: format!("a manual edit of {key} was undone: {why}"),
                hint: "write a valid value with `ashlar state put`, or do nothing: the previous \
                       value is in force"
                    .into(),
            });
        }
        for name in self.committed.changed_settings().keys() {
            if Setting::named(name).is_none() {
                checks.push(Check {
                    code: "setting_unknown",
                    severity: Severity::Info,
                    message: format!("config/{name} is not a known setting"),
                    hint:
                        "the setting belongs to another version or is misspelled: `ashlar config \
                         ls` lists the settings"
                            .into(),
                });
            }
        }
    }

    /// Checks for monitors that are not connected: without them the cluster tolerates fewer failures.
    fn check_monitors(&self, now: Time, checks: &mut Vec<Check>) {
        // After a change of leader the other monitors still need time to connect to it.
        if now.since(self.leadership.led_since()) < MONITOR_RETURN_SPAN {
            return;
        }
        for record in self.committed.monitors().filter(|record| !self.is_monitor_up(record.id)) {
            let id = record.id;
            let (severity, message) = match record.addresses.is_empty() {
                true => (Severity::Info, format!("{id} has never run")),
                false => {
                    let at = record.addresses.join(", ");
                    (
                        Severity::Warn,
                        format!("{id} ({at}) is not running, or cannot reach the leader"),
                    )
                }
            };
            checks.push(Check {
                code: "monitor_down",
                severity,
                message,
                hint: format!(
                    "run the monitor on its host: `ashlar mon run PATH`. If it is gone for good: \
                     `ashlar mon rm {}`",
                    record.id.get()
                )
                .into(),
            });
        }
    }

    fn check_monitor(&self, trouble: Option<&str>, checks: &mut Vec<Check>) {
        if let Some(trouble) = trouble {
            checks.push(Check {
                code: "state_unavailable",
                // A monitor that has led has the state of the PGs. A monitor that has not led yet knows
                // nothing about the data.
                severity: if self.leadership.has_led() { Severity::Warn } else { Severity::Error },
                message: trouble.to_string(),
                hint:
                    "I/O continues; changes, starts and failover wait for the state store: check \
                       that etcd is running and that this host can reach it, or check the disk \
                       under the monitor's directory"
                        .into(),
            });
        }
        // If the store is unreachable at all of its addresses, the check above is enough.
        for down in self.store.endpoints().down.iter().filter(|_| trouble.is_none()) {
            checks.push(Check {
                code: "state_endpoint_down",
                severity: Severity::Warn,
                message: format!(
                    "the state store does not answer at {}: {}",
                    down.endpoint, down.why
                ),
                hint: "start that etcd member before another one is lost, or correct `state` in \
                     cluster.toml on the monitors' hosts and restart the monitors"
                    .into(),
            });
        }
        for room in self.store.endpoints().nearly_full.iter().filter(|_| trouble.is_none()) {
            checks.push(Check {
                code: "state_store_nearly_full",
                severity: Severity::Warn,
                message: format!(
                    "the state store uses {} % of {} at {}: once it is full, it accepts no changes",
                    room.used_percent,
                    base::size::Size(room.size_max),
                    room.endpoint
                ),
                hint: "compact etcd's history (`etcdctl compact REVISION`, automatically with \
                       `--auto-compaction-mode revision --auto-compaction-retention 10000`), then \
                       free the space: `etcdctl defrag --cluster`; or raise its \
                       `--quota-backend-bytes`"
                    .into(),
            });
        }
        if self.is_older() {
            let (code, hint) = self.older_code();
            let message = self.older_text();
            checks.push(Check { code, severity: Severity::Error, message, hint: hint.into() });
        }
        if self.connections.protocol_errors() > 0 {
            checks.push(Check {
                code: "protocol_errors",
                severity: Severity::Info,
                message: format!(
                    "{} connections were closed for protocol violations",
                    self.connections.protocol_errors()
                ),
                hint: "look for processes that run another version".into(),
            });
        }
    }

    fn processes(&self) -> Value {
        let identity = &self.identity;
        let mut rows = vec![json!({
            "role": "mon",
            "id": identity.monitor,
            "pid": identity.pid,
            "address": identity.addresses.first(),
            "host": identity.host,
        })];
        let others = self.committed.monitors().filter(|record| record.id != identity.monitor);
        for record in others.filter(|record| self.is_monitor_up(record.id)) {
            rows.push(json!({
                "role": "mon",
                "id": record.id,
                "pid": record.pid,
                "address": record.addresses.first(),
                "host": record.host,
            }));
        }
        for record in self.committed.osds().filter(|record| record.info.up) {
            rows.push(json!({
                "role": "osd",
                "id": record.info.id,
                "pid": record.pid,
                "address": record.info.addresses.first(),
                "host": record.tree_host(),
            }));
        }
        let introduced = self.connections.all_introduced();
        // These processes have no ids of their own, so they are numbered by role, in the order in which they
        // connected.
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for process in introduced {
            let count = counts.entry(&process.role).or_default();
            *count += 1;
            rows.push(json!({
                "role": process.role,
                "id": *count,
                "pid": process.pid,
                "address": process.address,
                "host": process.host,
            }));
        }
        Value::Array(rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_near_from_four_fifths_on() {
        assert!(!is_near(0, FENCE_COUNT_MAX));
        assert!(!is_near(19_999, FENCE_COUNT_MAX));
        assert!(is_near(20_000, FENCE_COUNT_MAX));
        assert!(is_near(SESSION_COUNT_MAX, SESSION_COUNT_MAX));
    }
}
