//! `pg fix`: an operator decides what is right of a block that a scrub listed as damaged. The PG's primary
//! decides whether it can be done, and does it; the monitor passes the decision on, with what its report
//! listed, and shows the result that the primary reports.
//!
//! Invariants
//!   1. A decision that is passed on names the epoch, and the damage as the operator could see it.

use base::{Choice, ImageId, OsdId, PgId, RECORDS_IMAGE};
use format::wire::PgEntry;
use serde_json::{Value, json};

use super::{Effect, Monitor, failure};
use crate::message::{Failure, FromMonitor};

/// A `pg fix` command.
pub(super) struct FixAsked {
    pub(super) pg: PgId,
    pub(super) image: ImageId,
    pub(super) stripe: u32,
    pub(super) choice: Choice,
    pub(super) number: u64,
    pub(super) accepted: bool,
}

impl Monitor {
    /// Passes an operator's decision about a damaged block on to the primary of its PG. If it is not
    /// accepted, returns an error that describes what would be done.
    pub(super) fn fix(&self, asked: FixAsked, effects: &mut Vec<Effect>) -> Result<Value, Failure> {
        let FixAsked { pg, image, stripe, choice, number, accepted } = asked;
        let Some(entry) = self.committed.pg(pg) else {
            let hint = "`ashlar pg ls` lists the PGs";
            return Err(failure("not_found", format!("there is no PG {pg}"), hint));
        };
        let listed = self.scrub_of(entry).and_then(|row| {
            row.blocks.iter().find(|(of, number, _)| (*of, *number) == (image, stripe))
        });
        let Some((.., wrong)) = listed else {
            let message = format!("PG {pg} lists no damage of block {}/{stripe}", image.get());
            let hint = format!(
                "`ashlar pg describe {pg}` lists its damaged blocks, `ashlar pg scrub {pg} --deep` \
                 looks for more"
            );
            return Err(failure("not_found", message, hint));
        };
        if image == RECORDS_IMAGE {
            return Err(failure(
                "invalid",
                "what differs there are records of objects, which no OSD can decide as a block",
                format!(
                    "put the object anew, or remove it: the log of the primary of PG {pg} names it (\"scrub \
                     found records that differ\")"
                ),
            ));
        }
        self.check_fix(entry, choice)?;
        if !accepted {
            return Err(what_would_be_done(pg, (image, stripe, wrong), choice));
        }
        let primary = entry.primary_osd().and_then(|osd| self.osds.get(&osd)?.connection);
        let connection = primary.expect("its report is only shown while it is connected");
        let wrong = wrong.clone();
        let message =
            FromMonitor::Fix { pg, epoch: entry.epoch, image, stripe, choice, number, wrong };
        self.connections.send(connection, &message, effects);
        Ok(json!({ "pg": pg.to_string(), "number": number }))
    }

    /// Checks that the choice suits the pool, and that the PG has all its members.
    fn check_fix(&self, entry: &PgEntry, choice: Choice) -> Result<(), Failure> {
        let pg = entry.pg;
        let scheme = self.committed.pool(pg.pool).expect("a PG has a pool").pool.scheme;
        let has_parity = !scheme.is_whole_everywhere();
        let is_acting = |osd: OsdId| entry.acting().any(|member| member.osd == osd);
        match choice {
            Choice::Keep(_) if has_parity => Err(failure(
                "invalid",
                "the pool has parity: each OSD has another part, so none can be kept for all",
                "`--rebuild OSD` makes the part of an OSD of the others, `--rebuild-parity` all parity",
            )),
            Choice::Rebuild(_) | Choice::RebuildParity if !has_parity => Err(failure(
                "invalid",
                "the pool keeps copies, not parity: there is nothing to make a copy of but another one",
                "`--keep OSD` names the copy that is right",
            )),
            _ if choice.osd().is_some_and(|osd| !is_acting(osd)) => Err(failure(
                "invalid",
                format!("{} is no acting member of PG {pg}", choice.osd().expect("just seen")),
                format!("`ashlar pg describe {pg}` shows its members"),
            )),
            _ if entry.acting_count() < scheme.position_count() as usize
                || !entry.learners.is_empty() =>
            {
                Err(failure(
                    "busy",
                    format!(
                        "PG {pg} does not have all its members, and one that is away would keep what \
                         is decided against"
                    ),
                    "wait until `ashlar status` shows no missing members and no backfill",
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the refusal for an operator who has not confirmed the decision yet.
fn what_would_be_done(
    pg: PgId,
    (image, stripe, wrong): (ImageId, u32, &str),
    choice: Choice,
) -> Failure {
    let block = format!("{}/{stripe}", image.get());
    let (done, option) = match choice {
        Choice::Keep(osd) => (
            format!("what {osd} can read of the block replaces what the other copies have"),
            format!("--keep {}", osd.get()),
        ),
        Choice::Rebuild(osd) => (
            format!("the part on {osd} counts for nothing, and is made of the other parts"),
            format!("--rebuild {}", osd.get()),
        ),
        Choice::RebuildParity => (
            "all parity of the block is replaced by parity of the data parts as they are"
                .to_owned(),
            "--rebuild-parity".to_owned(),
        ),
        Choice::AcceptLoss => (
            "its 4 KiB units that nobody can read or make become zeros: their data is lost, and \
             reads of them no longer fail"
                .to_owned(),
            "--accept-loss".to_owned(),
        ),
    };
    let message = format!("block {block} is listed with {wrong}. This cannot be undone: {done}");
    failure(
        "not_accepted",
        message,
        format!("to do this: `ashlar pg fix {pg} {block} {option} --yes`"),
    )
}
