//! Scrubs, as operators see and request them. Primaries run scrubs by the schedule in the settings and keep
//! the results; the monitor shows the primaries' reports and forwards requests.
//!
//! Invariants
//!   1. A reported row is valid only while the OSD that reported it leads the PG and stays connected.

use base::{OsdId, PgId};
use format::wire::PgEntry;
use serde_json::{Value, json};

use super::osd::OsdLive;
use super::{Effect, Monitor, failure};
use crate::message::{Command, Failure, FromMonitor, ScrubRow};
use crate::settings::Setting;

/// Maximum number of PGs in one scrub request.
const ASKED_COUNT_MAX: usize = 4096;

/// Totals of the reported scrubs of all PGs.
#[derive(Default)]
pub(super) struct ScrubTally {
    /// Scrubs in progress.
    pub(super) running: u32,
    /// PGs whose next scrub is overdue.
    pub(super) overdue: u32,
    /// One PG whose next scrub is overdue, as an example.
    pub(super) overdue_example: Option<PgId>,
    /// PGs with damage.
    pub(super) damaged_pgs: u32,
    /// Blocks with damage.
    pub(super) damaged_blocks: u64,
    /// One damaged block, as an example: its PG, and what is wrong.
    pub(super) damaged_example: Option<(PgId, String)>,
    /// Blocks that scrubs repaired.
    pub(super) repaired: u64,
}

impl Monitor {
    /// Records an OSD's reports about scrubs of PGs that it leads.
    pub(super) fn note_scrubs(&mut self, osd: OsdId, rows: Vec<ScrubRow>) {
        for row in rows {
            let entry = self.committed.pg(row.pg);
            let leads = entry.is_some_and(|entry| entry.primary_osd() == Some(osd));
            if let Some(live) = self.osds.get_mut(&osd).filter(|_| leads) {
                live.scrubs.insert(row.pg, row);
            }
        }
    }

    pub(super) fn scrub_of(&self, entry: &PgEntry) -> Option<&ScrubRow> {
        let live = self.osds.get(&entry.primary_osd()?)?;
        live.connection?;
        live.scrubs.get(&entry.pg)
    }

    /// Requests a scrub from the primaries of the PGs that a command selects.
    pub(super) fn scrub(
        &self,
        command: &Command,
        effects: &mut Vec<Effect>,
    ) -> Result<Value, Failure> {
        let (entries, deep) = self.meant_by(command)?;
        let paused = Setting::ScrubPaused.value_in(self.committed.changed_settings()) != 0;
        if paused {
            let hint = "`ashlar config set scrub_paused off` resumes them";
            return Err(failure("paused", "scrubs are paused".to_owned(), hint));
        }
        let mut unreachable = Vec::new();
        let mut count = 0;
        let connected = |live: &OsdLive| live.connection;
        let checks_metadata = match command {
            Command::OsdScrub { osd, deep: true } => {
                let connection = self.osds.get(osd).and_then(connected);
                if let Some(connection) = connection {
                    let message = FromMonitor::Scrub { pgs: vec![], deep, metadata: true };
                    self.connections.send(connection, &message, effects);
                }
                connection.is_some()
            }
            _ => false,
        };
        for (osd, live) in &self.osds {
            let led = entries.iter().filter(|entry| entry.primary_osd() == Some(*osd));
            let pgs: Vec<PgId> = led.map(|entry| entry.pg).collect();
            let Some(connection) = connected(live) else { continue };
            for pgs in pgs.chunks(ASKED_COUNT_MAX) {
                count += pgs.len();
                let message = FromMonitor::Scrub { pgs: pgs.to_vec(), deep, metadata: false };
                self.connections.send(connection, &message, effects);
            }
        }
        for entry in &entries {
            let live = entry.primary_osd().and_then(|osd| self.osds.get(&osd));
            if live.and_then(connected).is_none() {
                unreachable.push(entry.pg.to_string());
            }
        }
        if count == 0 && !unreachable.is_empty() {
            let message =
                format!("no primary of these PGs can be reached: {}", unreachable.join(", "));
            let hint = "`ashlar status` shows which OSDs are down";
            return Err(failure("unavailable", message, hint));
        }
        Ok(json!({
            "asked": count,
            "deep": deep,
            "metadata": checks_metadata,
            "unavailable": unreachable,
        }))
    }

    /// Returns the PGs that a command selects, and whether it requests a deep scrub, which reads all data.
    fn meant_by(&self, command: &Command) -> Result<(Vec<&PgEntry>, bool), Failure> {
        let committed = &self.committed;
        let all = || committed.pools().flat_map(|pool| committed.pgs(pool.pool.id));
        match command {
            Command::PgScrub { pg, deep } => match committed.pg(*pg) {
                Some(entry) => Ok((vec![entry], *deep)),
                None => {
                    let hint = "`ashlar pg ls` lists the PGs";
                    Err(failure("not_found", format!("there is no PG {pg}"), hint))
                }
            },
            Command::OsdScrub { osd, deep } => match committed.osd(*osd) {
                Some(_) => {
                    let is_there = |entry: &&PgEntry| entry.position_of(*osd).is_some();
                    Ok((all().filter(is_there).collect(), *deep))
                }
                None => {
                    let hint = "`ashlar osd ls` lists the OSDs";
                    Err(failure("not_found", format!("there is no {osd}"), hint))
                }
            },
            Command::PoolScrub { pool, deep } => match committed.pool_named(pool) {
                Some(record) => Ok((committed.pgs(record.pool.id).collect(), *deep)),
                None => {
                    let name = super::clipped(pool.clone());
                    let hint = "`ashlar pool ls` lists the pools";
                    Err(failure("not_found", format!("there is no pool {name}"), hint))
                }
            },
            _ => unreachable!("the command asks for a scrub"),
        }
    }

    /// Returns the reported state of a PG's scrubs; null if its primary has not reported any yet.
    pub(super) fn scrub_row(&self, entry: &PgEntry) -> Value {
        let Some(row) = self.scrub_of(entry) else { return Value::Null };
        let block = |(image, stripe, wrong): &(base::ImageId, u32, String)| {
            let record = self.committed.image(*image);
            let volume = record.map(|record| record.info.name.as_str());
            let key = format!("{}/{stripe}", image.get());
            json!({ "image": image, "volume": volume, "stripe": stripe, "key": key, "wrong": wrong })
        };
        json!({
            "state": state_text(row),
            "running": row.running,
            "percent": row.percent,
            "light_at": row.light_at,
            "deep_at": row.deep_at,
            "overdue": row.overdue,
            "damaged_blocks": row.damaged,
            "repaired_blocks": row.repaired,
            "blocks": row.blocks.iter().map(block).collect::<Vec<Value>>(),
            "fixed": row.fixed,
        })
    }

    /// Sums up the reported scrubs of all PGs.
    pub(super) fn scrub_tally(&self) -> ScrubTally {
        let committed = &self.committed;
        let mut tally = ScrubTally::default();
        let entries = committed.pools().flat_map(|pool| committed.pgs(pool.pool.id));
        for row in entries.filter_map(|entry| self.scrub_of(entry)) {
            tally.running += u32::from(row.running.is_some());
            tally.repaired = tally.repaired.saturating_add(row.repaired);
            if row.overdue {
                tally.overdue += 1;
                tally.overdue_example.get_or_insert(row.pg);
            }
            if row.damaged > 0 {
                tally.damaged_pgs += 1;
                tally.damaged_blocks = tally.damaged_blocks.saturating_add(row.damaged);
                let wrong = row.blocks.first().map_or("", |(.., wrong)| wrong.as_str());
                tally.damaged_example.get_or_insert((row.pg, wrong.to_owned()));
            }
        }
        tally
    }

    /// Returns the number of PGs with damage on each OSD, and the number of damaged blocks in each pool.
    pub(super) fn damage_rows(&self) -> (Value, Value) {
        let committed = &self.committed;
        let mut osds = std::collections::BTreeMap::<OsdId, u64>::new();
        let mut pools = std::collections::BTreeMap::<&str, u64>::new();
        for pool in committed.pools() {
            for row in committed.pgs(pool.pool.id).filter_map(|entry| self.scrub_of(entry)) {
                if row.damaged > 0 {
                    let count = pools.entry(&pool.pool.name).or_default();
                    *count = count.saturating_add(row.damaged);
                }
                for osd in &row.osds {
                    *osds.entry(*osd).or_default() += 1;
                }
            }
        }
        let osds = osds.into_iter().map(|(osd, pgs)| json!({ "osd": osd, "pgs": pgs }));
        let pools =
            pools.into_iter().map(|(pool, blocks)| json!({ "pool": pool, "blocks": blocks }));
        (osds.collect(), pools.collect())
    }
}

/// Describes the state of a PG's scrubs for operators.
fn state_text(row: &ScrubRow) -> String {
    let mut text = match &row.running {
        Some(depth) => format!("{depth} scrub at {} %", row.percent),
        None if row.overdue => "overdue".to_owned(),
        None if row.light_at == 0 => "not scrubbed yet".to_owned(),
        None => "idle".to_owned(),
    };
    if row.damaged > 0 {
        text.push_str(&format!(", {} damaged blocks", row.damaged));
    }
    if row.repaired > 0 {
        text.push_str(&format!(", {} repaired so far", row.repaired));
    }
    text
}
