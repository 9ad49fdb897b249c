//! The next entry of a PG: a pure function of the entry, its plan, and what is known of each OSD.
//!
//! | it sees | it does |
//! |---|---|
//! | a learner reported complete in this epoch, in these runs | it takes its position if that is empty or its member goes with this change; else it waits, bound |
//! | an acting member lost: down, barred, or come back with a damaged store | it goes, if minimum size sound ones remain and all of them were heard from since; else the set stays |
//! | an acting member in a new run | the new run, same set |
//! | such a learner, and members that are all well | it takes the position of a member that is not in the plan |
//! | an OSD of the plan that is up and not acting | learner, for the position that needs it most |
//! | all as planned | the plan's first OSD leads, if it reaches them, as soon as it may |
//! | an OSD that rests after many starts | it is no learner, and goes in its next run, if minimum size others remain |
//! | an acting member or learner whose disk hangs | it goes if minimum size others have disks that answer and were heard from since; else the entry stays |
//! | members that the primary cannot reach | they go, as lost ones do; where too few would be left, one leads that reaches enough, and the others go |
//!
//! Invariants
//!   1. Nobody gets into the acting set but by a report of the very epoch and runs of the entry.
//!   2. Nobody leaves it unless at least minimum size members that hold everything remain, up and
//!      heard from since.
//!   3. Members stay at their positions.
//!   4. Each change is the next epoch. Where nothing changes there is no next entry; with members that
//!      are all up and complete that is where acting set and plan are the same.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{Incarnation, OsdId, Position, Time};
use format::wire::{Learner, MEMBERS_MAX, Member, PgEntry};

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
    /// It started again and again, and rests: this run is taken in only where it is needed.
    pub(super) rests: bool,
    /// What it says of its disk.
    pub(super) disk: DiskStanding,
}

/// How the disk of an OSD does.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct DiskStanding {
    /// It hangs, or has not shown since that it answers.
    pub(super) stalled: bool,
    /// When that changed last.
    pub(super) since: Time,
    /// That was a moment ago: more of the kind may be on its way.
    pub(super) is_new: bool,
    /// When its oldest operation began, if that takes long.
    pub(super) oldest: Option<Time>,
}

/// What decides about one PG besides its entry.
pub(super) struct Given<'a> {
    /// Of the pool.
    pub(super) min_size: usize,
    /// The plan: one OSD for each copy; the first is to lead.
    pub(super) targets: &'a [OsdId],
    /// All OSDs.
    pub(super) standings: &'a BTreeMap<OsdId, Standing>,
    /// Learners that the primary reported complete, in the entry's epoch.
    pub(super) complete: BTreeSet<Member>,
    /// OSDs that cannot take part for now, and since when: they failed.
    pub(super) barred: BTreeMap<OsdId, u64>,
    /// Who cannot reach whom.
    pub(super) links: &'a Links,
    /// The primary needs another epoch.
    pub(super) renew: bool,
}

/// Links between OSDs that are all there.
#[derive(Clone, Default, Debug)]
pub(super) struct Links {
    /// Broken ones, and since when: the first OSD cannot reach the second.
    pub(super) broken: BTreeMap<(OsdId, OsdId), u64>,
    /// Links reported as broken, but not confirmed yet; a decision follows soon.
    pub(super) doubted: BTreeSet<(OsdId, OsdId)>,
}

impl Links {
    fn is_broken(&self, from: OsdId, to: OsdId) -> bool {
        self.broken.contains_key(&(from, to))
    }

    /// Whether the one says nothing against the other, nor the other against the one.
    fn is_whole(&self, one: OsdId, other: OsdId) -> bool {
        let pairs = [(one, other), (other, one)];
        pairs.iter().all(|pair| !self.broken.contains_key(pair) && !self.doubted.contains(pair))
    }

    /// Since when the two are known to be parted.
    fn since(&self, one: OsdId, other: OsdId) -> Option<u64> {
        let pairs = [(one, other), (other, one)];
        pairs.iter().filter_map(|pair| self.broken.get(pair).copied()).max()
    }

    /// Those that one cannot reach.
    fn from(&self, one: OsdId) -> impl Iterator<Item = (OsdId, u64)> {
        let links = self.broken.range((one, OsdId::FIRST)..);
        let links = links.take_while(move |((from, _), _)| *from == one);
        links.map(|((_, to), since)| (*to, *since))
    }
}

/// How an acting member stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is up and holds everything.
    Sound,
    /// It is up, and the primary cannot work with it; or it rests.
    Barred,
    /// It is up, and its disk hangs: it counts towards no minimum.
    Stalled,
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
        } else if self.barred.contains_key(&member.osd) || self.is_to_rest(member) {
            State::Barred
        } else if standing.disk.stalled {
            State::Stalled
        } else {
            State::Sound
        }
    }

    /// Whether its newest run is not taken in yet, and rests.
    fn is_to_rest(&self, member: Member) -> bool {
        let standing = &self.standings[&member.osd];
        standing.rests && member.incarnation < standing.incarnation
    }

    /// The OSD in its newest run, if that is up and may take part.
    fn fit(&self, osd: OsdId) -> Option<Member> {
        let standing = self.standings.get(&osd)?;
        let is_fit = standing.up && !self.barred.contains_key(&osd);
        is_fit.then_some(Member { osd, incarnation: standing.incarnation })
    }

    fn is_stalled(&self, osd: OsdId) -> bool {
        self.standings.get(&osd).is_some_and(|standing| standing.disk.stalled)
    }

    /// Whether those whose disks hang go: minimum size others have disks that answer. One that has not
    /// ended yet what it began before the first hung may be about to hang as well.
    fn stalled_go(&self, entry: &PgEntry) -> bool {
        let disk = |member: &Member| self.standings.get(&member.osd).map(|standing| standing.disk);
        if planted::on(Bug::StallsJudgedOneByOne) {
            return true;
        }
        if entry.members().filter_map(disk).any(|disk| disk.is_new) {
            return false;
        }
        let stalled = entry.members().filter_map(disk).filter(|disk| disk.stalled);
        let since = stalled.map(|disk| disk.since).min().unwrap_or_default();
        let answers = |member: &&Member| {
            let oldest = disk(member).and_then(|disk| disk.oldest);
            self.state_of(**member) == State::Sound && oldest.is_none_or(|began| began >= since)
        };
        entry.acting().filter(answers).count() >= self.min_size
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
pub(super) fn next_entry(entry: &PgEntry, mut given: Given<'_>) -> Option<PgEntry> {
    let leader = leader_by_links(entry, &mut given);
    let given = &given;
    let stalled_go = given.stalled_go(entry);
    let ready = ready_learners(entry, given);
    let mut positions = entry.positions.clone();
    let waiting = replace_lost(&mut positions, ready, stalled_go, given);
    let waiting = replace_surplus(&mut positions, waiting, leader, given);
    take_new_runs(&mut positions, !waiting.is_empty(), given);
    let acting: Vec<Member> = positions.iter().flatten().copied().collect();
    let learners = learners_beside(&positions, leader, entry, stalled_go, given);
    let primary = primary_of(&acting, &learners, leader, given);
    let epoch = entry.epoch.next();
    let next = PgEntry { epoch, positions, learners, primary: None, ..entry.clone() };
    let next = primary.map_or(next.clone(), |osd| next.led_by(osd));
    (given.renew || !next.has_same_members(entry)).then_some(next)
}

/// Chooses the leader by the known links: the present primary, or, if it reaches too few members, one
/// that reaches enough. Bars the members that the leader cannot reach.
fn leader_by_links(entry: &PgEntry, given: &mut Given<'_>) -> Option<OsdId> {
    let links = given.links;
    let primary = entry.primary_osd()?;
    let is_sound = |member: &&Member| given.state_of(**member) == State::Sound;
    let sound: Vec<Member> = entry.acting().filter(is_sound).copied().collect();
    let cut = sound.iter().filter(|member| links.is_broken(primary, member.osd)).count();
    if cut == 0 || !sound.iter().any(|member| member.osd == primary) {
        bar(given, links.from(primary));
        return Some(primary);
    }
    let is_doubted = |member: &&Member| links.doubted.contains(&(primary, member.osd));
    let left = sound.len() - cut;
    if left >= given.min_size {
        // If more links of the primary break now it may be the one that is cut off.
        if left - sound.iter().filter(is_doubted).count() >= given.min_size {
            bar(given, links.from(primary));
        } else {
            bar_others(given, primary, entry);
        }
        return Some(primary);
    }
    let reached_by = |from: OsdId| -> Vec<Member> {
        let is_reached = |m: &&Member| m.osd == from || links.is_whole(from, m.osd);
        sound.iter().filter(is_reached).copied().collect()
    };
    let planned = given.targets.iter().copied().filter(|osd| sound.iter().any(|m| m.osd == *osd));
    let leaders = planned.chain(sound.iter().map(|member| member.osd));
    let (leader, reached) = leaders
        .map(|osd| (osd, reached_by(osd)))
        .reduce(|best, next| if next.1.len() > best.1.len() { next } else { best })?;
    let gone = entry.acting().filter(|member| !reached.contains(member));
    let gone_since = gone.map(|member| {
        let lost = (!sound.contains(member)).then(|| given.lost_since(*member));
        // A link that is only doubted does not separate members yet.
        Some((member.osd, links.since(leader, member.osd).max(lost)?))
    });
    let gone_since: Option<Vec<(OsdId, u64)>> = gone_since.collect();
    let may_lead = |gone: &Vec<(OsdId, u64)>| {
        let since = gone.iter().map(|(_, since)| *since).max();
        since.is_none_or(|since| given.may_go_on_with(&reached, reached.len(), since))
    };
    match gone_since.filter(may_lead).filter(|_| reached.len() >= given.min_size) {
        Some(gone) => {
            bar(given, gone.into_iter());
            bar_others(given, leader, entry);
            Some(leader)
        }
        None => {
            bar(given, links.from(primary));
            Some(primary)
        }
    }
}

fn bar(given: &mut Given<'_>, osds: impl Iterator<Item = (OsdId, u64)>) {
    for (osd, since) in osds {
        let known = given.barred.entry(osd).or_insert(since);
        *known = since.max(*known);
    }
}

/// Bars those that a leader cannot reach and that are no acting members.
fn bar_others(given: &mut Given<'_>, leader: OsdId, entry: &PgEntry) {
    let is_other = |osd: &OsdId| entry.position_of(*osd).is_none();
    let links = given.links;
    bar(given, links.from(leader).filter(|(osd, _)| is_other(osd)));
}

/// Learners that hold everything now, and may take their positions.
fn ready_learners(entry: &PgEntry, given: &Given<'_>) -> Vec<Learner> {
    let is_complete = |member: &Member| {
        given.complete.contains(member) || planted::on(Bug::LearnerAddedWithoutReport)
    };
    let is_fit = |member: &Member| given.fit(member.osd) == Some(*member);
    let is_ready = |learner: &&Learner| {
        let member = &learner.member;
        is_complete(member) && is_fit(member) && !given.is_stalled(member.osd)
    };
    entry.learners.iter().filter(is_ready).copied().collect()
}

/// Lost members go, if that may be, and learners that are ready take positions that are empty. Those
/// that are ready and find none are returned: they stay bound.
fn replace_lost(
    positions: &mut [Option<Member>],
    ready: Vec<Learner>,
    stalled_go: bool,
    given: &Given<'_>,
) -> Vec<Learner> {
    let goes = |member: &Member| match given.state_of(*member) {
        State::Sound => false,
        State::Stalled => stalled_go,
        State::Barred | State::Suspect | State::Down => true,
    };
    let acting = || positions.iter().flatten();
    let lost_count = acting().filter(|member| goes(member)).count();
    let open_count = positions.len() - acting().count() + lost_count;
    let joining = ready.iter().take(open_count).map(|learner| learner.member);
    let is_sound = |member: &Member| given.state_of(*member) == State::Sound;
    let sound = acting().copied().filter(is_sound);
    let sound: Vec<Member> = sound.chain(joining.clone()).collect();
    let counted = if planted::on(Bug::RemovedMemberStillCounted) {
        acting().count() + joining.count()
    } else if planted::on(Bug::StalledMemberCounted) {
        acting().filter(|member| !goes(member)).count() + joining.count()
    } else {
        sound.len()
    };
    let since = acting().filter(|member| goes(member)).map(|member| given.lost_since(*member));
    if since.max().is_some_and(|since| given.may_go_on_with(&sound, counted, since)) {
        for slot in positions.iter_mut() {
            *slot = slot.filter(|member| !goes(member));
        }
    }
    let mut waiting = Vec::new();
    for learner in ready {
        let own = learner.position.index();
        let all = std::iter::once(own).chain(0..positions.len());
        match all.into_iter().find(|index| positions[*index].is_none()) {
            Some(open) => positions[open] = Some(learner.member),
            None => waiting.push(learner),
        }
    }
    waiting
}

/// Learners that are ready take the positions of members that the plan does not want, if all are well.
/// Those that wait on are returned.
fn replace_surplus(
    positions: &mut [Option<Member>],
    ready: Vec<Learner>,
    leader: Option<OsdId>,
    given: &Given<'_>,
) -> Vec<Learner> {
    let mut waiting = Vec::new();
    for learner in ready {
        let is_sound = |member: &Member| given.state_of(*member) == State::Sound;
        let all_sound = positions.iter().flatten().all(is_sound);
        let surplus = surplus_position(positions, learner.position.index(), leader, given);
        let Some(goes) = surplus.filter(|_| all_sound) else {
            waiting.push(learner);
            continue;
        };
        let mut after = positions.to_vec();
        after[goes] = Some(learner.member);
        let rest: Vec<Member> = after.iter().flatten().copied().collect();
        if given.may_go_on_with(&rest, rest.len(), 0) {
            positions[goes] = Some(learner.member);
        } else {
            waiting.push(learner);
        }
    }
    waiting
}

/// The position of a member that the plan does not want: this one if it may be, and that of the leader
/// last of all.
fn surplus_position(
    positions: &[Option<Member>],
    wanted: usize,
    leader: Option<OsdId>,
    given: &Given<'_>,
) -> Option<usize> {
    let surplus = |index: &usize| {
        positions[*index].is_some_and(|member| !given.targets.contains(&member.osd))
    };
    let leads = |index: &usize| positions[*index].map(|member| member.osd) == leader;
    let all = || std::iter::once(wanted).chain((0..positions.len()).rev()).filter(surplus);
    all().find(|index| !leads(index)).or_else(|| all().next())
}

/// Takes members in their newest runs. A member that may have lost data is taken only if every other one
/// may have lost data too: once taken it counts as sound, and a complete copy might be dropped in its
/// favor.
fn take_new_runs(positions: &mut [Option<Member>], others_are_ready: bool, given: &Given<'_>) {
    let is_suspect = |member: &Member| given.state_of(*member) == State::Suspect;
    let all_suspect = !others_are_ready && positions.iter().flatten().all(is_suspect);
    for member in positions.iter_mut().flatten() {
        let is_taken = match given.state_of(*member) {
            State::Sound | State::Barred | State::Stalled => true,
            State::Suspect => all_suspect,
            State::Down => false,
        };
        if is_taken {
            member.incarnation = given.standings[&member.osd].incarnation;
        }
    }
}

/// Chooses OSDs of the plan to fill: as many as there are positions without a sound member, or one if
/// all are sound, so that a change of the plan does not multiply the writes. Present learners continue;
/// an OSD that cannot reach the leader does not begin.
fn learners_beside(
    positions: &[Option<Member>],
    leader: Option<OsdId>,
    entry: &PgEntry,
    stalled_go: bool,
    given: &Given<'_>,
) -> Vec<Learner> {
    let acting = || positions.iter().flatten();
    let is_acting = |osd: &OsdId| acting().any(|member| member.osd == *osd);
    let is_learner = |osd: &OsdId| entry.learner(*osd).is_some();
    let reaches = |osd: &OsdId| leader.is_none_or(|leader| !given.links.is_broken(*osd, leader));
    let is_learner_now =
        |osd: OsdId| entry.learner(osd).is_some_and(|it| given.fit(osd) == Some(it.member));
    let is_enough = acting().count() >= given.min_size;
    let rests = |osd: &OsdId| given.standings.get(osd).is_some_and(|s| s.rests);
    let may_rest = |osd: &OsdId| is_enough && rests(osd) && !is_learner_now(*osd);
    let hangs = |osd: &OsdId| given.is_stalled(*osd) && (stalled_go || !is_learner_now(*osd));
    let is_kept_away = |osd: &OsdId| may_rest(osd) || hangs(osd);
    let may_learn =
        |osd: &&OsdId| !is_acting(osd) && !is_kept_away(osd) && (is_learner(osd) || reaches(osd));
    let wanted = given.targets.iter().filter(may_learn);
    let mut fit: Vec<Member> = wanted.filter_map(|osd| given.fit(*osd)).collect();
    fit.sort_by_key(|member| !is_learner(&member.osd));
    let is_well = |member: &&Member| given.state_of(**member) == State::Sound;
    let lacking = positions.len() - acting().filter(is_well).count();
    fit.truncate(lacking.max(1).min(MEMBERS_MAX - acting().count()));
    let mut learners: Vec<Learner> = Vec::new();
    for member in fit {
        let known = entry.learner(member.osd).map(|learner| learner.position);
        let position = position_to_learn(positions, &learners, known, leader, given);
        learners.extend(position.map(|position| Learner { member, position }));
    }
    learners
}

/// Chooses the position that an OSD is filled for: an empty one first, then one whose member is lost,
/// then one whose member the plan does not want. Among equals, the position it is already filled for
/// comes first.
fn position_to_learn(
    positions: &[Option<Member>],
    others: &[Learner],
    known: Option<Position>,
    leader: Option<OsdId>,
    given: &Given<'_>,
) -> Option<Position> {
    let is_free = |position: &Position| others.iter().all(|other| other.position != *position);
    let urgency = |position: &Position| match positions[position.index()] {
        None => 0,
        Some(member) if given.state_of(member) != State::Sound => 1,
        Some(member) if given.targets.contains(&member.osd) => 4,
        Some(member) if leader == Some(member.osd) => 3,
        Some(_) => 2,
    };
    let all = Position::all().take(positions.len()).filter(is_free);
    all.min_by_key(|position| (urgency(position), known != Some(*position), *position))
}

/// Who serves: the plan's first OSD when all is as planned, else the leader if it may stay, else one
/// that is up.
fn primary_of(
    acting: &[Member],
    learners: &[Learner],
    leader: Option<OsdId>,
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
    let reaches_all =
        |from: &OsdId| acting.iter().all(|member| !given.links.is_broken(*from, member.osd));
    let first = given.targets.first().copied();
    if at_rest && first.is_some_and(|first| reaches_all(&first)) {
        return first;
    }
    // One whose disk hangs and that cannot go leads on: no epoch begins for it.
    let may_stay = |osd: &OsdId| is_sound(osd) || state(*osd) == Some(State::Stalled);
    let present = leader.filter(|osd| state(*osd).is_some());
    let members = || acting.iter().map(|member| member.osd);
    let is_up = |osd: &OsdId| state(*osd).is_some_and(|state| state != State::Down);
    present
        .filter(may_stay)
        .or_else(|| planned.chain(members()).find(is_sound))
        .or_else(|| present.into_iter().chain(members()).find(is_up))
        .or(present)
        .or_else(|| members().next())
}

#[cfg(test)]
mod tests;
