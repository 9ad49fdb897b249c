//! Checks whether a PG was served in two versions: one after a backup of the state was made, and another
//! after that backup was restored and the cluster continued from it for a while.
//!
//! The newest entry of each PG must continue every epoch that was served. Otherwise writes that were
//! acknowledged in an epoch that it does not continue would be lost silently.
//!
//! Two facts show a fork. First, each member's record lists the epochs that it continues: a served epoch that
//! no member of the newest entry continues belongs to another branch. That alone is not sufficient, because
//! both branches number their epochs from the backup on, and old epochs are dropped from the records. Second,
//! each OSD's copy of the state shows which branch of the state the OSD has seen. If members of one branch
//! served a PG without any member of the other branch, and vice versa, the PG was forked.

use std::collections::{BTreeMap, BTreeSet};

use base::{Epoch, OsdId, PgId};
use format::wire::PgEntry;

use super::failure;
use super::refusal::first_names;
use crate::copy::KnownState;
use crate::message::Failure;

/// The advice for PGs that were served in two versions.
const FORKED_HINT: &str = "restore the backup again, start all OSDs except those whose writes you \
                           give up, and declare those lost: --they-are-lost ID";

/// An OSD that has sent all its records.
pub(super) struct Teller<'a> {
    /// Whether the OSD has seen the branch of the state that the restore keeps, or nothing since the
    /// branches parted.
    pub(super) is_kept: bool,
    pub(super) known: &'a KnownState,
}

/// A member of a PG, according to its record. It holds every write that was acknowledged up to the record's
/// last epoch.
struct Whole<'a> {
    is_kept: bool,
    /// The epochs that the record continues, with the record's own epoch as the last.
    epochs: &'a [Epoch],
    last: Epoch,
    entry: &'a PgEntry,
}

impl Whole<'_> {
    /// Whether the record continues this epoch. Epochs before the first one in the record are unknown and
    /// count as continued.
    fn goes_on(&self, epoch: Epoch) -> bool {
        self.epochs.contains(&epoch) || self.epochs.iter().all(|known| *known > epoch)
    }
}

type Members<'a> = BTreeMap<OsdId, Whole<'a>>;

/// Returns an error if a PG was served in two versions.
pub(super) fn check(
    tellers: &BTreeMap<OsdId, Teller<'_>>,
    newest: &BTreeMap<PgId, PgEntry>,
) -> Result<(), Failure> {
    let mut pgs: BTreeMap<PgId, Members<'_>> = BTreeMap::new();
    for (osd, Teller { is_kept, known }) in tellers {
        let mut entries: BTreeMap<(PgId, Epoch), &PgEntry> = BTreeMap::new();
        entries.extend(known.entries.iter().map(|entry| ((entry.pg, entry.epoch), entry)));
        for of_pg in &known.activated {
            let Some(last) = of_pg.epochs.last().copied() else { continue };
            let Some(entry) = entries.get(&(of_pg.pg, last)).copied() else { continue };
            let whole = Whole { is_kept: *is_kept, epochs: &of_pg.epochs, last, entry };
            pgs.entry(of_pg.pg).or_default().insert(*osd, whole);
        }
    }
    let mut forked = Vec::new();
    let mut osds: BTreeSet<OsdId> = BTreeSet::new();
    for (pg, members) in &pgs {
        let Some(winner) = newest.get(pg) else { continue };
        let mut of_ways = served_apart(members);
        if of_ways.is_empty() {
            of_ways = left_behind(members, winner);
        }
        if !of_ways.is_empty() {
            forked.push(pg.to_string());
            osds.extend(of_ways);
        }
    }
    if forked.is_empty() {
        return Ok(());
    }
    let osds: Vec<String> = osds.iter().map(OsdId::to_string).collect();
    Err(failure(
        "forked",
        format!(
            "{} PGs have diverged since the backup ({}): {} served them in two versions, and each \
             version may have acknowledged writes that the other lacks",
            forked.len(),
            first_names(&forked),
            first_names(&osds)
        ),
        FORKED_HINT,
    ))
}

/// Returns the acting members of an entry that have reported a record of the PG.
fn acting<'a>(members: &'a Members<'_>, entry: &PgEntry) -> Vec<(OsdId, &'a Whole<'a>)> {
    let acting = entry.acting().map(|member| member.osd);
    acting.filter_map(|osd| Some((osd, members.get(&osd)?))).collect()
}

/// Returns the acting members of this member's last epoch, if that epoch was served: then every acting member
/// has activated it. An interrupted epoch acknowledged nothing. A member that removed its record together
/// with a surplus copy is unknown. On the branch that is kept, epochs follow each other and a served epoch is
/// never skipped, so an epoch with an unknown member counts as not served; on the other branch it counts as
/// served.
fn served<'a>(members: &'a Members<'_>, by: &Whole<'_>) -> Vec<(OsdId, &'a Whole<'a>)> {
    let all = acting(members, by.entry);
    let is_known = all.len() == by.entry.acting_count() || !by.is_kept;
    let is_served = is_known && all.iter().all(|(_, whole)| whole.goes_on(by.last));
    if is_served { all } else { Vec::new() }
}

/// Returns the members of both branches of the state, if each branch served the PG without any member of
/// the other. A hand-over before the branches parted is no fork: it happened in an epoch with acting
/// members of both.
fn served_apart(members: &Members<'_>) -> Vec<OsdId> {
    let served_by = |is_kept: bool| {
        let of_way = members.values().filter(|whole| whole.is_kept == is_kept);
        let all = of_way.max_by_key(|whole| whole.last).map(|newest| served(members, newest));
        all.filter(|all| all.iter().all(|(_, whole)| whole.is_kept == is_kept)).unwrap_or_default()
    };
    let (kept, other) = (served_by(true), served_by(false));
    if kept.is_empty() || other.is_empty() {
        return Vec::new();
    }
    kept.into_iter().chain(other).map(|(osd, _)| osd).collect()
}

/// Returns the members whose served epochs are not continued by the newest entry, and that entry's acting
/// members; empty if all served epochs are continued. One acting member that continues all of them is enough:
/// it brings the others up to date.
fn left_behind(members: &Members<'_>, winner: &PgEntry) -> Vec<OsdId> {
    let ends = acting(members, winner);
    let served = members.iter().filter(|(_, whole)| !served(members, whole).is_empty());
    let served: Vec<(OsdId, Epoch)> = served.map(|(osd, whole)| (*osd, whole.last)).collect();
    let is_whole =
        |(_, end): &(OsdId, &Whole<'_>)| served.iter().all(|(_, epoch)| end.goes_on(*epoch));
    if ends.is_empty() || ends.iter().any(is_whole) {
        return Vec::new();
    }
    let is_lost = |epoch: Epoch| ends.iter().any(|(_, end)| !end.goes_on(epoch));
    let lost = served.into_iter().filter(|(_, epoch)| is_lost(*epoch)).map(|(osd, _)| osd);
    lost.chain(winner.acting().map(|member| member.osd)).collect()
}

/// Returns the error for two different entries with the same epoch: it is unknown which one was served.
pub(super) fn two_ways(one: &PgEntry, other: &PgEntry) -> Failure {
    let acting = |entry: &PgEntry| {
        let osds = entry.acting().map(|member| member.osd.to_string());
        first_names(&osds.collect::<Vec<_>>())
    };
    failure(
        "forked",
        format!(
            "epoch {} of PG {} exists in two versions, one with the members {} and one with {}: \
             the cluster continued after a backup was restored",
            one.epoch,
            one.pg,
            acting(one),
            acting(other)
        ),
        FORKED_HINT,
    )
}

#[cfg(test)]
mod tests {
    use base::{Incarnation, PoolId};
    use format::wire::Member;

    use super::*;
    use crate::copy::Activated;

    const PG: PgId = PgId { pool: PoolId::FIRST, number: 0 };

    fn osd(number: u32) -> OsdId {
        OsdId::new(number).expect("not 0")
    }

    fn entry(epoch: u32, acting: &[u32]) -> PgEntry {
        let member = |number: &u32| Member { osd: osd(*number), incarnation: Incarnation::ZERO };
        PgEntry { epoch: Epoch::new(epoch), ..PgEntry::new(PG, acting.iter().map(member)) }
    }

    /// One OSD's report: the OSD, the entry in its record, the epochs that the record continues, and whether
    /// the OSD has seen the branch that is kept.
    type Spoken<'a> = (u32, PgEntry, &'a [u32], bool);

    fn judged(members: &[Spoken<'_>], newest: PgEntry) -> Result<(), Failure> {
        let told = |(number, entry, epochs, is_kept): &Spoken<'_>| {
            let epochs = epochs.iter().map(|epoch| Epoch::new(*epoch)).collect();
            let (entries, activated) = (vec![entry.clone()], vec![Activated { pg: PG, epochs }]);
            (osd(*number), *is_kept, KnownState { entries, activated, ..KnownState::default() })
        };
        let told: Vec<(OsdId, bool, KnownState)> = members.iter().map(told).collect();
        let mut tellers = BTreeMap::new();
        for (osd, is_kept, known) in &told {
            tellers.insert(*osd, Teller { is_kept: *is_kept, known });
        }
        check(&tellers, &[(PG, newest)].into_iter().collect())
    }

    #[test]
    fn one_that_went_on_alone_is_not_dropped_for_another_that_did() {
        let alone = (1, entry(5, &[1]), &[3, 4, 5][..], true);
        let other = (3, entry(6, &[3]), &[3, 4, 6][..], true);
        let error = judged(&[alone.clone(), other], entry(6, &[3])).unwrap_err();
        assert_eq!(error.code, "forked");
        assert!(error.message.contains("osd.1, osd.3 served them"), "{}", error.message);
        // Nobody has activated the newest entry yet.
        let waits = (3, entry(4, &[1, 3]), &[3, 4][..], true);
        judged(&[alone.clone(), waits.clone()], entry(6, &[3])).unwrap_err();
        judged(&[alone, waits], entry(6, &[1, 3])).unwrap();
    }

    #[test]
    fn two_ways_with_the_same_numbers_and_with_forgotten_ones_are_two() {
        // osd.3's epoch 5 differs from the epoch 5 that osd.1's record continues, or no longer lists.
        for epochs in [&[3, 4, 5, 6][..], &[6], &[8, 9]] {
            let end = epochs[epochs.len() - 1];
            for (one, other) in [(true, false), (false, true)] {
                let alone = (1, entry(end, &[1]), epochs, one);
                let apart = (3, entry(5, &[3]), &[3, 4, 5][..], other);
                let error = judged(&[alone, apart], entry(end, &[1])).unwrap_err();
                assert!(error.message.contains("osd.1, osd.3 served them"), "{}", error.message);
            }
        }
    }

    #[test]
    fn members_of_two_ways_that_one_of_them_served_are_no_fork() {
        let alone = (1, entry(6, &[1]), &[4, 5, 6][..], true);
        // The other branch has not served the PG: its record is from before the branches parted.
        let waits = (3, entry(4, &[1, 3]), &[3, 4][..], false);
        judged(&[alone.clone(), waits], entry(6, &[1])).unwrap();
        // The other branch began to serve, and was interrupted.
        let apart = (3, entry(5, &[2, 3]), &[3, 4, 5][..], false);
        let waits = (2, entry(4, &[2, 3]), &[3, 4][..], false);
        judged(&[alone, apart, waits], entry(6, &[1])).unwrap();
    }

    #[test]
    fn what_was_cut_short_or_is_long_ago_is_no_fork() {
        // osd.3 had activated epoch 5 when it died, and osd.1 had not.
        let died = (3, entry(5, &[1, 3]), &[4, 5][..], true);
        let went_on = (1, entry(6, &[1]), &[3, 4, 6][..], true);
        judged(&[died, went_on.clone()], entry(6, &[1])).unwrap();
        // osd.2 left before the history of osd.1 begins.
        let left = (2, entry(2, &[2]), &[1, 2][..], true);
        judged(&[left, went_on.clone()], entry(6, &[1])).unwrap();
        // osd.4, which had not activated epoch 5 either, has since handed over and dropped its copy.
        let cut = (3, entry(5, &[3, 4]), &[3, 4, 5][..], true);
        judged(&[cut.clone(), went_on.clone()], entry(6, &[1])).unwrap();
        // On a branch that is not kept, epoch 5 may have been served.
        let other = (cut.0, cut.1, cut.2, false);
        judged(&[other, went_on.clone()], entry(6, &[1])).unwrap_err();
        // osd.2 is merely behind the newest entry.
        let behind = (2, entry(4, &[1, 2]), &[3, 4][..], true);
        judged(&[behind, went_on], entry(7, &[1, 2])).unwrap();
    }
}
