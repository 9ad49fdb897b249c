//! The next entry of a PG: a pure function of the entry, its plan, and what is known of each OSD.
//!
//! | it sees | it does |
//! |---|---|
//! | a learner reported complete in this epoch, in these runs | in the acting set |
//! | an acting member lost: down, barred, or come back with a damaged store | it goes, if minimum size sound ones remain and all of them were heard from since; else the set stays |
//! | an acting member in a new run | the new run, same set |
//! | more acting members than copies | one that is not in the plan goes |
//! | an OSD of the plan that is up and not acting | learner |
//! | all as planned | the plan's first OSD leads |
//!
//! Invariants
//!   1. Nobody gets into the acting set but by a report of the very epoch and runs of the entry.
//!   2. Nobody leaves it unless at least minimum size members that hold everything remain, up and
//!      heard from since.
//!   3. Each change is the next epoch. Where nothing changes there is no next entry; with members that
//!      are all up and complete that is where acting set and plan are the same.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{Incarnation, OsdId};
use format::wire::{Member, PgEntry};

/// How an OSD stands. Moments are numbers of events: they order what comes at one time, too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    /// Its newest run.
    pub(super) incarnation: Incarnation,
    /// Its process counts as running.
    pub(super) up: bool,
    /// This run began with damage that may have cost acknowledged writes.
    pub(super) suspect: bool,
    /// The newest question it has answered was asked then; 0: it is not connected.
    pub(super) heard: u64,
    /// When its newest failure was noticed.
    pub(super) noticed: u64,
}

/// What decides about one PG besides its entry.
pub(super) struct Given<'a> {
    /// Of the pool.
    pub(super) copies: usize,
    /// Of the pool.
    pub(super) min_size: usize,
    /// The plan: one OSD for each copy; the first is to lead.
    pub(super) targets: &'a [OsdId],
    /// All OSDs.
    pub(super) standings: &'a BTreeMap<OsdId, Standing>,
    /// Learners that the primary reported complete, in the entry's epoch.
    pub(super) complete: BTreeSet<Member>,
    /// Members that cannot take part for now, and since when.
    pub(super) barred: BTreeMap<OsdId, u64>,
    /// The primary needs another epoch.
    pub(super) renew: bool,
}

/// How an acting member stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is up and holds everything.
    Sound,
    /// It is up, and its primary cannot work with it.
    Barred,
    /// It is up in a new run that may have lost what it held.
    Suspect,
    /// It is not up.
    Down,
}

impl Given<'_> {
    fn state_of(&self, member: Member) -> State {
        let Some(standing) = self.standings.get(&member.osd) else { return State::Down };
        if !standing.up {
            State::Down
        } else if standing.suspect && member.incarnation < standing.incarnation {
            State::Suspect
        } else if self.barred.contains_key(&member.osd) {
            State::Barred
        } else {
            State::Sound
        }
    }

    /// The OSD in its newest run, if that is up and may take part.
    fn fit(&self, osd: OsdId) -> Option<Member> {
        let standing = self.standings.get(&osd)?;
        let is_fit = standing.up && !self.barred.contains_key(&osd);
        is_fit.then_some(Member { osd, incarnation: standing.incarnation })
    }

    fn heard(&self, osd: OsdId) -> u64 {
        self.standings.get(&osd).map_or(0, |standing| standing.heard)
    }

    /// When it was noticed that a member is lost.
    fn lost_since(&self, member: Member) -> u64 {
        let noticed = self.standings.get(&member.osd).map_or(0, |standing| standing.noticed);
        noticed.max(self.barred.get(&member.osd).copied().unwrap_or(0))
    }

    /// Whether these are enough to go on without others that were lost at `since`.
    fn may_go_on_with(&self, sound: &[Member], counted: usize, since: u64) -> bool {
        let min_size = if planted::on(Bug::MemberRemovedBelowMinimum) { 1 } else { self.min_size };
        let is_there = |member: &Member| {
            let heard = self.heard(member.osd);
            heard > 0 && heard >= since
        };
        !sound.is_empty() && counted >= min_size && sound.iter().all(is_there)
    }
}

/// The entry that follows; `None`: the present one stays. Its map revision is the caller's.
pub(super) fn next_entry(entry: &PgEntry, given: &Given<'_>) -> Option<PgEntry> {
    let mut acting = remaining(with_complete(entry, given), given);
    leave_surplus(&mut acting, entry, given);
    let learners = learners_beside(&acting, entry, given);
    let primary = primary_of(&acting, &learners, entry, given);
    let is_same = acting == entry.acting && learners == entry.learners && primary == entry.primary;
    if is_same && !given.renew {
        return None;
    }
    Some(PgEntry { epoch: entry.epoch.next(), primary, acting, learners, ..entry.clone() })
}

/// The acting members, and learners that hold everything now.
fn with_complete(entry: &PgEntry, given: &Given<'_>) -> Vec<Member> {
    let is_complete = |member: &Member| {
        given.complete.contains(member) || planted::on(Bug::LearnerAddedWithoutReport)
    };
    let joins = |member: &&Member| is_complete(member) && given.fit(member.osd) == Some(**member);
    entry.acting.iter().chain(entry.learners.iter().filter(joins)).copied().collect()
}

/// Those without the lost ones, if that may be; all of them otherwise. In their newest runs.
fn remaining(mut acting: Vec<Member>, given: &Given<'_>) -> Vec<Member> {
    let is_sound = |member: &Member| given.state_of(*member) == State::Sound;
    let sound: Vec<Member> = acting.iter().copied().filter(is_sound).collect();
    let lost = acting.iter().filter(|member| !is_sound(member));
    let since = lost.map(|member| given.lost_since(*member)).max();
    let counted =
        if planted::on(Bug::RemovedMemberStillCounted) { acting.len() } else { sound.len() };
    if since.is_some_and(|since| given.may_go_on_with(&sound, counted, since)) {
        acting = sound;
    }
    // A run that may have lost data is taken into an entry only where every other one may have, too:
    // once it is there it counts as sound, and a whole copy might leave for it.
    let all_suspect = acting.iter().all(|member| given.state_of(*member) == State::Suspect);
    for member in &mut acting {
        let is_taken = match given.state_of(*member) {
            State::Sound | State::Barred => true,
            State::Suspect => all_suspect,
            State::Down => false,
        };
        if is_taken {
            member.incarnation = given.standings[&member.osd].incarnation;
        }
    }
    acting
}

/// Members beyond the number of copies go where the plan does not want them, if all are well.
fn leave_surplus(acting: &mut Vec<Member>, entry: &PgEntry, given: &Given<'_>) {
    let is_sound = |member: &Member| given.state_of(*member) == State::Sound;
    while acting.len() > given.copies && acting.iter().all(is_sound) {
        let is_surplus = |member: &Member| !given.targets.contains(&member.osd);
        let leads = |member: &Member| entry.primary == Some(member.osd);
        let goes = acting.iter().rposition(|member| is_surplus(member) && !leads(member));
        let Some(goes) = goes.or_else(|| acting.iter().rposition(is_surplus)) else { return };
        let mut rest = acting.clone();
        rest.remove(goes);
        if !given.may_go_on_with(&rest, rest.len(), 0) {
            return;
        }
        *acting = rest;
    }
}

/// OSDs of the plan that are to be filled: as many as copies lack, and one where none does, so that a
/// change of the plan does not multiply what is written. Those that are learners already go on.
fn learners_beside(acting: &[Member], entry: &PgEntry, given: &Given<'_>) -> Vec<Member> {
    let is_acting = |osd: &OsdId| acting.iter().any(|member| member.osd == *osd);
    let is_learner = |osd: &OsdId| entry.learners.iter().any(|member| member.osd == *osd);
    let wanted = given.targets.iter().filter(|osd| !is_acting(osd));
    let mut fit: Vec<Member> = wanted.filter_map(|osd| given.fit(*osd)).collect();
    fit.sort_by_key(|member| !is_learner(&member.osd));
    fit.truncate(given.copies.saturating_sub(acting.len()).max(1));
    fit
}

/// Who serves: the plan's first OSD when all is as planned, else the present one if it may stay, else
/// one that is up.
fn primary_of(
    acting: &[Member],
    learners: &[Member],
    entry: &PgEntry,
    given: &Given<'_>,
) -> Option<OsdId> {
    let state = |osd: OsdId| {
        let member = acting.iter().find(|member| member.osd == osd);
        member.map(|member| given.state_of(*member))
    };
    let is_sound = |osd: &OsdId| state(*osd) == Some(State::Sound);
    let planned = given.targets.iter().copied();
    let at_rest = learners.is_empty()
        && acting.len() == given.targets.len()
        && planned.clone().all(|osd| is_sound(&osd));
    if at_rest {
        return given.targets.first().copied();
    }
    let present = entry.primary.filter(|osd| state(*osd).is_some());
    let members = || acting.iter().map(|member| member.osd);
    let is_up = |osd: &OsdId| state(*osd).is_some_and(|state| state != State::Down);
    present
        .filter(is_sound)
        .or_else(|| planned.chain(members()).find(is_sound))
        .or_else(|| present.into_iter().chain(members()).find(is_up))
        .or(present)
        .or_else(|| members().next())
}

#[cfg(test)]
mod tests;
