//! Commands that only ask. Answered at once, from what is committed.

use std::collections::BTreeMap;

use base::{OsdId, PgId, PoolId, Time};
use format::wire::PgEntry;
use serde_json::{Value, json};

use super::osd::OsdLive;
use super::pool::pool_row;
use super::setting::setting_named;
use super::volume::no_volume;
use super::{Monitor, failure};
use crate::message::{Command, Failure};
use crate::records::OsdRecord;

/// Longest answer to `state ls`, in bytes of JSON; messages have room for it and their frame.
const LIST_SIZE_MAX: usize = 3 << 20;

/// What a PG does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum PgState {
    /// Its primary serves it.
    Active,
    /// Its primary is up and has not said yet that it serves it.
    Starting,
    /// Its primary is up and cannot serve it.
    Incomplete(String),
    /// No member is up.
    Down(String),
}

impl PgState {
    fn name(&self) -> &'static str {
        match self {
            PgState::Active => "active",
            PgState::Starting => "starting",
            PgState::Incomplete(_) => "incomplete",
            PgState::Down(_) => "down",
        }
    }

    fn why(&self) -> Option<&str> {
        match self {
            PgState::Active | PgState::Starting => None,
            PgState::Incomplete(why) | PgState::Down(why) => Some(why),
        }
    }
}

impl Monitor {
    /// The answer to a command that only asks; `None`: it changes the state.
    pub(super) fn query(&self, now: Time, command: &Command) -> Option<Result<Value, Failure>> {
        let contents = &self.contents;
        Some(match command {
            Command::PoolList => {
                Ok(contents.pools().map(|record| pool_row(&record.pool)).collect())
            }
            Command::VolumeList => Ok(self.volume_rows()),
            Command::VolumeInfo { volume } => match contents.image_named(volume) {
                Some(record) => {
                    let mut row = self.volume_row(&record.info);
                    row["tasks"] = self.task_rows(Some(record.info.id));
                    Ok(row)
                }
                None => Err(no_volume(volume)),
            },
            Command::TaskList { image } => Ok(self.task_rows(*image)),
            Command::OsdList => Ok(self.osd_rows()),
            Command::OsdTree => Ok(self.osd_tree()),
            Command::PgList { pool } => self.pg_rows(pool.as_deref()),
            Command::PgDescribe { pg } => self.describe_pg(*pg),
            Command::Status => Ok(self.status(now)),
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
            | Command::OsdCreate { .. }
            | Command::OsdOut { .. }
            | Command::OsdIn { .. }
            | Command::OsdRemove { .. }
            | Command::ConfigSet { .. }
            | Command::PoolSet { .. }
            | Command::PoolRemove { .. }
            | Command::StatePut { .. }
            | Command::PgGiveUp { .. } => return None,
        })
    }

    fn task_rows(&self, image: Option<base::ImageId>) -> Value {
        let of_image = |task: &&crate::records::TaskRecord| image.is_none_or(|id| task.image == id);
        let of_images = self.contents.tasks().filter(of_image).map(|task| self.task_row(task));
        let pools = self.contents.removed_pools().filter(|_| image.is_none());
        of_images.chain(pools.map(|record| self.removed_pool_row(record))).collect()
    }

    pub(super) fn osd_rows(&self) -> Value {
        self.contents.osds().map(|record| self.osd_row(record)).collect()
    }

    /// The root, its hosts by name, and their OSDs, each row after the one it lies in. A weight is
    /// the size that placement counts; what is not in the cluster has none.
    fn osd_tree(&self) -> Value {
        let mut hosts: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
        let pg_counts = self.pg_counts();
        for record in self.contents.osds() {
            let mut row = self.osd_row(record);
            row["type"] = json!("osd");
            row["name"] = json!(record.info.id.to_string());
            row["depth"] = json!(2);
            row["weight_bytes"] = json!(if record.info.in_cluster { record.size_bytes } else { 0 });
            row["pgs"] = json!(pg_counts.get(&record.info.id).copied().unwrap_or(0));
            hosts.entry(&record.host).or_default().push(row);
        }
        let all: Vec<&Value> = hosts.values().flatten().collect();
        let mut rows = vec![group_row("root", "default", 0, &all)];
        for (host, osds) in &hosts {
            // An OSD that never ran has not told where it is.
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
            "path": record.path,
            "host": record.host,
            "size_bytes": record.size_bytes,
            "used_bytes": report.map_or(0, |(_, report)| report.used_bytes),
        })
    }

    pub(super) fn pg_state(&self, entry: &PgEntry) -> PgState {
        let Some(osd) = entry.primary else {
            return PgState::Down("no member is up".to_string());
        };
        if !self.contents.osd(osd).is_some_and(|record| record.info.up) {
            return PgState::Down(format!("{osd} is down, and no other OSD has a copy"));
        }
        let report = self.osds.get(&osd).and_then(OsdLive::current_report);
        let Some(report) = report else { return PgState::Starting };
        if let Some((_, why)) = report.incomplete.iter().find(|(pg, _)| *pg == entry.pg) {
            return PgState::Incomplete(why.clone());
        }
        if report.active.contains(&entry.pg) { PgState::Active } else { PgState::Starting }
    }

    fn pg_row(&self, entry: &PgEntry) -> Value {
        let state = self.pg_state(entry);
        let members = |members: &[format::wire::Member]| -> Vec<OsdId> {
            members.iter().map(|member| member.osd).collect()
        };
        json!({
            "pg": entry.pg.to_string(),
            "pool": entry.pg.pool,
            "number": entry.pg.number,
            "epoch": entry.epoch,
            "primary": entry.primary,
            "acting": members(&entry.acting),
            "learners": members(&entry.learners),
            "state": state.name(),
            "why": state.why(),
        })
    }

    fn pg_rows(&self, pool: Option<&str>) -> Result<Value, Failure> {
        let pools: Vec<PoolId> = match pool {
            None => self.contents.pools().map(|record| record.pool.id).collect(),
            Some(name) => match self.contents.pool_named(name) {
                Some(record) => vec![record.pool.id],
                None => {
                    let name = super::clipped(name.to_string());
                    let hint = "`ashlar pool ls` lists the pools there are";
                    return Err(failure("not_found", format!("there is no pool {name}"), hint));
                }
            },
        };
        let entries = pools.into_iter().flat_map(|pool| self.contents.pgs(pool));
        Ok(entries.map(|entry| self.pg_row(entry)).collect())
    }

    fn describe_pg(&self, pg: PgId) -> Result<Value, Failure> {
        let Some(entry) = self.contents.pg(pg) else {
            let hint = "`ashlar pg ls` lists the PGs there are";
            return Err(failure("not_found", format!("there is no PG {pg}"), hint));
        };
        let mut row = self.pg_row(entry);
        let member = |member: &format::wire::Member| {
            let record = self.contents.osd(member.osd);
            json!({
                "osd": member.osd,
                "incarnation": member.incarnation,
                "up": record.is_some_and(|record| record.info.up),
                "host": record.map(|record| &record.host),
            })
        };
        row["members"] = entry.acting.iter().map(member).collect();
        row["revision"] = json!(entry.revision);
        Ok(row)
    }

    fn state_rows(&self, prefix: &str) -> Result<Value, Failure> {
        let mut size = 0;
        let mut rows = Vec::new();
        for (key, (revision, value)) in self.contents.listed(prefix) {
            let row = json!({ "key": key, "revision": revision.get(), "value": value });
            size += row.to_string().len();
            if size > LIST_SIZE_MAX {
                let hint = "name a longer prefix: `ashlar state ls osd/`";
                return Err(failure(
                    "too_large",
                    "there are more keys than one answer holds",
                    hint,
                ));
            }
            rows.push(row);
        }
        Ok(Value::Array(rows))
    }

    fn state_row(&self, key: &str) -> Result<Value, Failure> {
        let found = self.contents.listed(key).remove(key);
        let Some((revision, value)) = found else {
            let key = super::clipped(key.to_string());
            let hint = "`ashlar state ls` lists the keys there are";
            return Err(failure("not_found", format!("the state store has no key {key}"), hint));
        };
        Ok(json!({ "key": key, "revision": revision.get(), "value": value }))
    }
}

/// A row of the tree that stands for the OSDs below it.
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
