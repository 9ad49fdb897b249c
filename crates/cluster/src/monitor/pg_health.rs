//! Problems of PGs, pool by pool: for each a code, a message, and a hint.
//!
//! A PG may have several conditions at once: for example, a PG that lacks a copy may also be misplaced.
//! `docs/health.md` lists all codes; a test compares that list with the sources.

use std::collections::BTreeMap;

use base::{OsdId, PgId, PoolId};
use format::wire::PgEntry;
use serde_json::{Value, json};

use super::Monitor;
use super::query::PgState;
use super::remedy;

/// A problem of a PG. More severe ones come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Condition {
    /// No member is up.
    Down,
    /// The primary is up but cannot serve the PG.
    Incomplete,
    /// The members are peering.
    Peering,
    /// A member's store is damaged in a way that may have cost writes.
    Suspect,
    /// Scrubs found blocks that they could not repair.
    Damaged,
    /// A member is full: writes fail.
    Full,
    /// The PG has fewer members than the pool's minimum size.
    Undersized,
    /// The PG has fewer copies than the pool should keep.
    Degraded,
    /// The PG has all copies, but not on the planned OSDs.
    Misplaced,
}

impl Condition {
    const fn code(self) -> &'static str {
        match self {
            Condition::Down => "pg_down",
            Condition::Incomplete => "pg_incomplete",
            Condition::Peering => "pg_peering",
            Condition::Suspect => "pg_suspect",
            Condition::Damaged => "pg_damaged",
            Condition::Full => "pg_full",
            Condition::Undersized => "pg_undersized",
            Condition::Degraded => "pg_degraded",
            Condition::Misplaced => "pg_misplaced",
        }
    }
}

/// PGs of a pool that share a condition.
struct Group {
    count: u32,
    /// The details of the condition in one of the PGs.
    example: String,
    hint: String,
}

impl Monitor {
    /// Returns the conditions of a pool's PGs, the most severe first: `[{code, count, message, hint}]`.
    /// `served`: see [`Monitor::served`].
    pub(super) fn pg_conditions(&self, pool: PoolId, served: impl Fn(&PgEntry) -> bool) -> Value {
        let mut groups: BTreeMap<Condition, Group> = BTreeMap::new();
        for (entry, targets) in self.committed.pgs(pool).zip(self.targets(pool)) {
            let state = match served(entry) {
                true => self.serving_state(entry),
                false => self.pg_state(entry),
            };
            for (condition, what) in self.conditions_of(entry, &state, &targets) {
                let new = || Group {
                    count: 0,
                    example: format!("{}: {what}", entry.pg),
                    hint: self.hint_for(condition, entry),
                };
                groups.entry(condition).or_insert_with(new).count += 1;
            }
        }
        let row = |(condition, group): (Condition, Group)| {
            json!({
                "code": condition.code(),
                "count": group.count,
                "message": group.example,
                "hint": group.hint,
            })
        };
        groups.into_iter().map(row).collect()
    }

    /// Returns the conditions of a PG, each with the details.
    fn conditions_of(
        &self,
        entry: &PgEntry,
        state: &PgState,
        targets: &[OsdId],
    ) -> Vec<(Condition, String)> {
        let pool = self.committed.pool(entry.pg.pool).map(|record| &record.pool);
        let Some(pool) = pool else { return Vec::new() };
        let (wanted, min_size) = (pool.scheme.position_count() as usize, pool.min_size as usize);
        let acting = || entry.acting().map(|member| member.osd);
        let count = entry.acting_count();
        let mut found = match state {
            PgState::Down(why) => vec![(Condition::Down, why.clone())],
            PgState::Incomplete(why) => vec![(Condition::Incomplete, why.clone())],
            PgState::Peering(why) => {
                let why = why
                    .clone()
                    .unwrap_or_else(|| "its members are agreeing on their state".to_owned());
                vec![(Condition::Peering, why)]
            }
            PgState::Active | PgState::Filling | PgState::Degraded => Vec::new(),
        };
        let report = |osd: &OsdId| self.osds.get(osd).and_then(|live| live.current_report());
        if let Some(osd) = acting().find(|osd| report(osd).is_some_and(|report| report.suspect)) {
            let what =
                format!("the store of {osd} is damaged and may have lost acknowledged writes");
            found.push((Condition::Suspect, what));
        }
        if let Some(row) = self.scrub_of(entry).filter(|row| row.damaged > 0) {
            let what = format!("{} damaged blocks that a scrub could not repair", row.damaged);
            found.push((Condition::Damaged, what));
        }
        if let Some(osd) = acting().find(|osd| report(osd).is_some_and(|report| report.full)) {
            found.push((Condition::Full, format!("{osd} is full: writes fail")));
        }
        if count < min_size {
            let what = format!("{count} members, but each write needs {min_size}");
            found.push((Condition::Undersized, what));
        }
        if count < wanted {
            let noun = if pool.scheme.is_whole_everywhere() { "copies" } else { "parts" };
            found.push((Condition::Degraded, format!("{count} of {wanted} {noun}")));
        } else if let Some(osd) = acting().find(|osd| !targets.contains(osd)) {
            found.push((
                Condition::Misplaced,
                format!("the copy on {osd} is to be moved to another OSD"),
            ));
        }
        found
    }

    fn keeps_objects(&self, pg: PgId) -> bool {
        self.committed.pool(pg.pool).is_some_and(|record| record.pool.has_objects())
    }

    fn hint_for(&self, condition: Condition, entry: &PgEntry) -> String {
        match condition {
            Condition::Down | Condition::Incomplete | Condition::Undersized => {
                self.what_helps(entry.pg)
            }
            Condition::Peering => format!(
                "this takes a second or two; if it takes longer, `ashlar pg describe {}` lists the \
                 OSDs of the PG, and their logs show what they wait for",
                entry.pg
            ),
            Condition::Suspect => {
                "the OSD is filled from other copies where they exist; if there are none, `ashlar \
                 pg give-up` shows what would be lost before it accepts the loss"
                    .to_owned()
            }
            Condition::Damaged if self.keeps_objects(entry.pg) => format!(
                "`ashlar pg describe {}` lists what is damaged; put the objects anew, or remove them: the \
                 log of the PG's primary names them",
                entry.pg
            ),
            Condition::Damaged => format!(
                "`ashlar pg describe {}` lists the damaged blocks; to repair them, rewrite or discard them",
                entry.pg
            ),
            Condition::Full => {
                "remove volumes, discard data that is not needed, or add OSDs".to_owned()
            }
            Condition::Degraded => remedy::bring_back(&self.committed),
            Condition::Misplaced => {
                "nothing: the copies move automatically, and the PG serves clients meanwhile"
                    .to_owned()
            }
        }
    }
}
