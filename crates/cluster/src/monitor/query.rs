//! Read-only commands. They are answered at once, from the committed state.

use std::collections::BTreeMap;

use std::collections::BTreeSet;

use base::{OsdId, PgId, PoolId, Time};
use format::wire::{Member, PgEntry};
use serde_json::{Value, json};

use super::pool::pool_row;
use super::setting::setting_named;
use super::volume::no_volume;
use super::{Monitor, failure};
use crate::message::{Command, Failure, FillingProgress, OsdReport};
use crate::records::OsdRecord;
use crate::stats::Table;

/// Maximum length of the reply to `state ls`, in bytes of JSON; with its framing it fits in a message.
const LIST_SIZE_MAX: usize = 3 << 20;

/// The state of a PG.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PgState {
    /// The PG serves I/O with all copies.
    Active,
    /// The PG serves I/O with all copies, and a learner is being filled.
    Filling,
    /// The PG serves I/O with fewer copies than it should have.
    Degraded,
    /// The PG is peering: its primary has not yet reported that it serves the PG. Contains the reason, if the
    /// primary has reported one.
    Peering(Option<String>),
    /// The primary is up but cannot serve the PG.
    Incomplete(String),
    /// No member is up.
    Down(String),
}

impl PgState {
    fn name(&self) -> &'static str {
        match self {
            PgState::Active => "active",
            PgState::Filling => "filling",
            PgState::Degraded => "degraded",
            PgState::Peering(_) => "peering",
            PgState::Incomplete(_) => "incomplete",
            PgState::Down(_) => "down",
        }
    }

    fn why(&self) -> Option<&str> {
        match self {
            PgState::Active | PgState::Filling | PgState::Degraded => None,
            PgState::Peering(why) => why.as_deref(),
            PgState::Incomplete(why) | PgState::Down(why) => Some(why),
        }
    }

    pub(super) fn serves(&self) -> bool {
        matches!(self, PgState::Active | PgState::Filling | PgState::Degraded)
    }
}

impl Monitor {
    /// Returns a function that checks whether the primary of an entry serves the PG in the entry's epoch.
    pub(super) fn served(&self) -> impl Fn(&PgEntry) -> bool + '_ {
        // A set, built in one pass: each report contains a long list.
        let active: BTreeSet<_> = self
            .osds
            .iter()
            .filter_map(|(osd, live)| Some((osd, live.current_report()?)))
            .flat_map(|(osd, report)| report.active.iter().map(|pg| (*osd, *pg)))
            .collect();
        move |entry| {
            entry.primary_osd().is_some_and(|osd| active.contains(&(osd, entry.pg)))
                && self.is_whole(entry)
                && self.report_of(entry).is_some()
        }
    }

    /// Answers a read-only command; `None`: the command changes the state.
    pub(super) fn query(&self, now: Time, command: &Command) -> Option<Result<Value, Failure>> {
        let committed = &self.committed;
        Some(match command {
            Command::PoolList => {
                Ok(committed.pools().map(|record| pool_row(&record.pool)).collect())
            }
            Command::Table { table, after } => self.table(*table, *after),
            Command::VolumeList => Ok(self.volume_rows()),
            Command::SessionState { session } => {
                Ok(json!({ "over": self.committed.session(*session).is_none() }))
            }
            Command::VolumeInfo { volume } => match committed.image_named(volume) {
                Some(record) => {
                    let mut row = self.volume_row(&record.info);
                    row["tasks"] = self.task_rows(Some(record.info.id));
                    self.add_stats(&mut row, Table::Volume, record.info.id.get());
                    Ok(row)
                }
                None => Err(no_volume(volume)),
            },
            Command::TaskList { image } => Ok(self.task_rows(*image)),
            Command::MonitorList => Ok(self.monitor_rows()),
            Command::OsdList => Ok(self.osd_rows()),
            Command::OsdTree => Ok(self.osd_tree()),
            Command::PgList { pool } => self.pg_rows(pool.as_deref()),
            Command::PgDescribe { pg } => self.describe_pg(*pg),
            Command::Status => Ok(self.status(now, self.store.trouble())),
            Command::StateList { prefix } => self.state_rows(prefix),
            Command::StateGet { key } => self.state_row(key),
            Command::ConfigList => Ok(self.setting_rows()),
            Command::ConfigGet { setting } => {
                setting_named(setting).map(|setting| self.setting_row(setting))
            }
            Command::PoolCreate { .. }
            | Command::VolumeCreate { .. }
            | Command::VolumeResize { .. }
            | Command::VolumeRemove { .. }
            | Command::MonitorCreate
            | Command::MonitorRemove { .. }
            | Command::VolumeUnlock { .. }
            | Command::OsdCreate { .. }
            | Command::OsdOut { .. }
            | Command::OsdIn { .. }
            | Command::OsdRemove { .. }
            | Command::ConfigSet { .. }
            | Command::PoolSet { .. }
            | Command::PoolRemove { .. }
            | Command::StateRecover { .. }
            | Command::StateUndo { .. }
            | Command::StatePut { .. }
            | Command::PgFix { .. }
            | Command::PgScrub { .. }
            | Command::OsdScrub { .. }
            | Command::PoolScrub { .. }
            | Command::PgGiveUp { .. } => return None,
        })
    }

    pub(super) fn task_rows(&self, image: Option<base::ImageId>) -> Value {
        let of_image = |task: &&crate::records::TaskRecord| image.is_none_or(|id| task.image == id);
        let of_images = self.committed.tasks().filter(of_image).map(|task| self.task_row(task));
        let pools = self.committed.removed_pools().filter(|_| image.is_none());
        of_images.chain(pools.map(|record| self.removed_pool_row(record))).collect()
    }

    pub(super) fn osd_rows(&self) -> Value {
        self.committed.osds().map(|record| self.osd_row(record)).collect()
    }

    /// Returns the rows of the OSD tree: the root, its hosts by name, and their OSDs, each row
    /// after its parent. A weight is the size that placement uses; an OSD that is not in the
    /// cluster has none.
    fn osd_tree(&self) -> Value {
        let mut hosts: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        let pg_counts = self.pg_counts();
        for record in self.committed.osds() {
            let mut row = self.osd_row(record);
            row["type"] = json!("osd");
            row["name"] = json!(record.info.id.to_string());
            row["depth"] = json!(2);
            row["weight_bytes"] = json!(if record.info.in_cluster { record.size_bytes } else { 0 });
            row["pgs"] = json!(pg_counts.get(&record.info.id).copied().unwrap_or(0));
            row["host"] = json!(record.tree_host());
            hosts.entry(record.tree_host()).or_default().push(row);
        }
        let all: Vec<&Value> = hosts.values().flatten().collect();
        let mut rows = vec![group_row("root", "default", 0, &all)];
        for (host, osds) in &hosts {
            // An OSD that never ran has not reported its host.
            let name = if host.is_empty() { "(unknown)" } else { host };
            rows.push(group_row("host", name, 1, &osds.iter().collect::<Vec<_>>()));
            rows.extend(osds.iter().cloned());
        }
        Value::Array(rows)
    }

    pub(super) fn osd_row(&self, record: &OsdRecord) -> Value {
        let report = self.osds.get(&record.info.id).and_then(|live| live.report.as_ref());
        json!({
            "id": record.info.id,
            "pid": record.pid,
            "up": record.info.up,
            "in": record.info.in_cluster,
            "out_by": record.out_by,
            "path": record.path,
            "host": record.host,
            "size_bytes": record.size_bytes,
            "used_bytes": report.map_or(0, |(_, report)| report.used_bytes),
            "has_engine": record.engine,
            "engine": report.and_then(|(_, report)| report.engine.as_ref()),
            "turns": report.and_then(|(_, report)| report.turns.value()),
        })
    }

    pub(super) fn pg_state(&self, entry: &PgEntry) -> PgState {
        if let Some(state) = self.waiting_state(entry) {
            return state;
        }
        let Some(report) = self.report_of(entry) else { return PgState::Peering(None) };
        if let Some((_, why)) = report.incomplete.iter().find(|(pg, _)| *pg == entry.pg) {
            return PgState::Incomplete(why.clone());
        }
        if !report.active.contains(&entry.pg) {
            let why = report.peering.iter().find(|(pg, _)| *pg == entry.pg);
            return PgState::Peering(why.map(|(_, why)| why.clone()));
        }
        self.serving_state(entry)
    }

    /// Returns the last report of the PG's primary; `None`: the primary has not reported for this epoch yet.
    pub(super) fn report_of(&self, entry: &PgEntry) -> Option<&OsdReport> {
        let report = self.osds.get(&entry.primary_osd()?)?.current_report()?;
        report.knows(entry).then_some(report)
    }

    /// Returns the state of a PG with absent acting members; `None`: all are present.
    fn waiting_state(&self, entry: &PgEntry) -> Option<PgState> {
        let absence = |member: &Member| self.absence_of(member);
        let absent: Vec<String> = entry.acting().filter_map(absence).collect();
        if absent.is_empty() {
            return None;
        }
        let waits_for = format!("waiting for {}", absent.join(", "));
        let there = entry.acting_count() - absent.len();
        let min_size = self.committed.pool(entry.pg.pool).map_or(1, |record| record.pool.min_size);
        Some(if there == 0 {
            PgState::Down(waits_for)
        } else if there >= min_size as usize {
            // The PG continues without the absent members as soon as the others have reported.
            PgState::Peering(Some(waits_for))
        } else {
            PgState::Incomplete(format!("{waits_for}: fewer than {min_size} members are up"))
        })
    }

    /// Explains why an acting member is absent; `None`: it is present.
    fn absence_of(&self, member: &Member) -> Option<String> {
        let osd = member.osd;
        match self.committed.osd(osd) {
            None => Some(format!("{osd}, which was removed")),
            Some(record) if !record.info.up => Some(format!("{osd}, which is down")),
            Some(record) if record.info.incarnation != member.incarnation => {
                Some(format!("{osd}, which returned with a damaged store"))
            }
            Some(_) => None,
        }
    }

    /// Returns the state of a PG that is served.
    pub(super) fn serving_state(&self, entry: &PgEntry) -> PgState {
        let pool = self.committed.pool(entry.pg.pool);
        let count = pool.map_or(1, |record| record.pool.scheme.position_count());
        if entry.acting_count() < count as usize {
            PgState::Degraded
        } else if entry.learners.is_empty() {
            PgState::Active
        } else {
            PgState::Filling
        }
    }

    fn pg_row(&self, entry: &PgEntry) -> Value {
        let state = self.pg_state(entry);
        let acting: Vec<OsdId> = entry.acting().map(|member| member.osd).collect();
        let learners: Vec<OsdId> = entry.learning().map(|member| member.osd).collect();
        json!({
            "pg": entry.pg.to_string(),
            "pool": entry.pg.pool,
            "number": entry.pg.number,
            "epoch": entry.epoch,
            "primary": entry.primary_osd(),
            "acting": acting,
            "learners": learners,
            "state": state.name(),
            "why": state.why(),
        })
    }

    fn pg_rows(&self, pool: Option<&str>) -> Result<Value, Failure> {
        let pools: Vec<PoolId> = match pool {
            None => self.committed.pools().map(|record| record.pool.id).collect(),
            Some(name) => match self.committed.pool_named(name) {
                Some(record) => vec![record.pool.id],
                None => {
                    let name = super::clipped(name.to_string());
                    let hint = "`ashlar pool ls` lists the pools";
                    return Err(failure("not_found", format!("there is no pool {name}"), hint));
                }
            },
        };
        let entries = pools.into_iter().flat_map(|pool| self.committed.pgs(pool));
        Ok(entries.map(|entry| self.pg_row(entry)).collect())
    }

    fn describe_pg(&self, pg: PgId) -> Result<Value, Failure> {
        let Some(entry) = self.committed.pg(pg) else {
            let hint = "`ashlar pg ls` lists the PGs";
            return Err(failure("not_found", format!("there is no PG {pg}"), hint));
        };
        let mut row = self.pg_row(entry);
        let member = |member: &Member| {
            let record = self.committed.osd(member.osd);
            json!({
                "osd": member.osd,
                "incarnation": member.incarnation,
                "up": record.is_some_and(|record| record.info.up),
                "host": record.map(|record| &record.host),
            })
        };
        let learner = |learner: &Member| {
            let mut row = member(learner);
            let progress = self.filling_of(entry, learner.osd);
            row["done_bytes"] = json!(progress.map(|progress| progress.done_bytes));
            row["left_bytes"] = json!(progress.and_then(|progress| progress.left_bytes));
            row
        };
        row["members"] = entry.acting().map(member).collect();
        row["learning"] = entry.learning().map(learner).collect();
        row["planned"] = json!(self.committed.targets_of(pg));
        let barred = self.barred_from(self.now, entry);
        row["barred"] = barred.map(|(osd, bar)| json!({ "osd": osd, "why": bar.why })).collect();
        row["revision"] = json!(entry.revision);
        row["scrub"] = self.scrub_row(entry);
        Ok(row)
    }

    /// Returns the progress of a learner's backfill, as its primary reported it.
    fn filling_of(&self, entry: &PgEntry, learner: OsdId) -> Option<&FillingProgress> {
        let live = self.osds.get(&entry.primary_osd()?)?;
        let mut filling = live.current_report()?.filling.iter();
        filling.find(|progress| progress.pg == entry.pg && progress.osd == learner)
    }

    fn state_rows(&self, prefix: &str) -> Result<Value, Failure> {
        let mut size = 0;
        let mut rows = Vec::new();
        for (key, (revision, value)) in self.committed.listed(prefix) {
            let row = json!({ "key": key, "revision": revision.get(), "value": value });
            size += row.to_string().len();
            if size > LIST_SIZE_MAX {
                let hint = "give a longer prefix: `ashlar state ls osd/`";
                return Err(failure("too_large", "there are too many keys for one answer", hint));
            }
            rows.push(row);
        }
        Ok(Value::Array(rows))
    }

    fn state_row(&self, key: &str) -> Result<Value, Failure> {
        let found = self.committed.listed(key).remove(key);
        let Some((revision, value)) = found else {
            let key = super::clipped(key.to_string());
            let hint = "`ashlar state ls` lists the keys";
            return Err(failure("not_found", format!("the state store has no key {key}"), hint));
        };
        Ok(json!({ "key": key, "revision": revision.get(), "value": value }))
    }
}

/// Returns the tree row of a group: the totals of the OSDs below it.
fn group_row(kind: &str, name: &str, depth: u32, osds: &[&Value]) -> Value {
    let sum = |key: &str| osds.iter().filter_map(|row| row[key].as_u64()).sum::<u64>();
    let count = |key: &str| osds.iter().filter(|row| row[key] == true).count();
    json!({
        "type": kind,
        "name": name,
        "depth": depth,
        "osds": osds.len(),
        "osds_up": count("up"),
        "osds_in": count("in"),
        "weight_bytes": sum("weight_bytes"),
        "size_bytes": sum("size_bytes"),
        "used_bytes": sum("used_bytes"),
        "pgs": sum("pgs"),
    })
}
