//! The next entry of a PG: a pure function of the entry, its plan, and what is known of each OSD.
//!
//! | situation | action |
//! |---|---|
//! | a learner was reported complete in this epoch, in these runs | it takes its position if that is empty or its member is removed by this change; otherwise it waits, bound |
//! | an acting member is lost: down, barred, or back with a damaged store | it is removed if at least minimum size sound members remain, all heard from since; otherwise the set stays |
//! | an acting member is up in a new run | the entry gets the new run; the set stays as it is |
//! | a learner had a position when the PG with parity was last active, and its primary needs it there | it takes that position; its present member, which was filled since, leaves |
//! | a learner is complete as above, and all members are sound | the learner takes the position of a member that is not in the plan |
//! | an OSD of the plan is up and not acting | it becomes a learner for the position that needs it most |
//! | an OSD was left out, and the primary of the PG with parity calls it back | it becomes a learner, too, until the PG is active |
//! | everything is as planned | the plan's first OSD whose disk is not slow (if all are slow, the first) becomes primary as soon as it may, if it reaches all members |
//! | an OSD rests after many starts | it does not become a learner; if it is a member, it is removed in its next run, provided that at least `min_size` others remain |
//! | the disk of an acting member or learner hangs | it is removed if at least `min_size` others have disks that respond and have been heard from since; otherwise the entry stays as it is |
//! | an acting member has damaged records of the pool | it is removed like one whose disk hangs; if it stays, another member leads, if one is sound |
//! | a pool with parity has more positions than the entry | the entry gets the missing positions, empty |
//! | the primary cannot reach some members | they are removed like lost members; if too few would remain, a member that reaches enough others becomes primary, and those out of its reach are removed |
//!
//! Invariants
//!   1. An OSD joins the acting set only after it was reported complete in exactly this epoch and these runs
//!      of the entry, or to have everything that its member has and more.
//!   2. A member leaves the acting set only if at least `min_size` members that hold everything remain, are
//!      up, and have been heard from since.
//!   3. Members stay at their positions. Where positions are roles (parity), a learner gets only the position
//!      that it was filled for, and keeps it while that position needs a new member.
//!   4. Each change starts the next epoch. If nothing changes, there is no next entry. If all members are up
//!      and complete, changes end once the acting set equals the plan.

use std::collections::{BTreeMap, BTreeSet};

use base::planted::{self, Bug};
use base::{Incarnation, OsdId, Position, Scheme, Time};
use format::wire::{Learner, MEMBERS_MAX, Member, PgEntry};

/// The condition of an OSD. Times are event numbers, which also order events of the same instant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Standing {
    /// The OSD's newest run.
    pub(super) incarnation: Incarnation,
    /// Whether the OSD's process counts as running.
    pub(super) up: bool,
    /// Whether this run began with damage that may have cost acknowledged writes.
    pub(super) suspect: bool,
    /// The event in which the newest probe that the OSD has answered was sent; 0: the OSD is not connected.
    pub(super) heard: u64,
    /// The event in which the OSD's newest failure was noticed.
    pub(super) noticed: u64,
    /// Whether the OSD rests after repeated restarts: its newest run is admitted only where it is needed.
    pub(super) rests: bool,
    /// What the OSD reports about its disk.
    pub(super) disk: DiskStanding,
}

/// The condition of an OSD's disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct DiskStanding {
    /// Whether the disk hangs, or hung and has not completed an operation since then.
    pub(super) stalled: bool,
    /// The time at which `stalled` last changed.
    pub(super) since: Time,
    /// Whether that change was a moment ago: other disks may be about to report the same.
    pub(super) is_new: bool,
    /// The time at which the disk's oldest pending operation began, if that operation is slow.
    pub(super) oldest: Option<Time>,
    /// Whether the disk responds, but many times slower than the disks of its peers.
    pub(super) slow: bool,
    /// Whether `slow` is not known yet: the leader is new, and the OSD has not joined it yet.
    pub(super) unjudged: bool,
}

/// The inputs that determine the next entry of a PG, in addition to its present entry.
pub(super) struct Given<'a> {
    /// The pool's scheme.
    pub(super) scheme: Scheme,
    /// The pool's minimum size.
    pub(super) min_size: usize,
    /// The plan: one OSD per position. The order does not assign positions, but the first OSD should be
    /// primary.
    pub(super) targets: &'a [OsdId],
    /// The condition of all OSDs.
    pub(super) standings: &'a BTreeMap<OsdId, Standing>,
    /// OSDs in whose records of the pool damage was met: they count as if their disks hung.
    pub(super) damaged: BTreeSet<OsdId>,
    /// Learners that the primary has reported complete in the entry's epoch.
    pub(super) complete: BTreeSet<Member>,
    /// Learners that the primary wants back at positions that they had when the PG was last active. They have
    /// more than the present members there.
    pub(super) returning: BTreeMap<Position, Member>,
    /// OSDs that the primary wants as learners whatever the plan says: they may have acknowledged versions
    /// that too few members have.
    pub(super) called_back: BTreeSet<OsdId>,
    /// OSDs that cannot take part at present because they failed, with the event of the failure.
    pub(super) barred: BTreeMap<OsdId, u64>,
    /// The broken and the suspected links between OSDs.
    pub(super) links: &'a Links,
    /// Whether the primary needs another epoch.
    pub(super) renew: bool,
}

/// Links between OSDs that are all up.
#[derive(Clone, Default, Debug)]
pub(super) struct Links {
    /// Broken links, with the event in which each was noticed: the first OSD cannot reach the second.
    pub(super) broken: BTreeMap<(OsdId, OsdId), u64>,
    /// Links reported as broken but not confirmed yet; the decision follows soon.
    pub(super) doubted: BTreeSet<(OsdId, OsdId)>,
}

impl Links {
    fn is_broken(&self, from: OsdId, to: OsdId) -> bool {
        self.broken.contains_key(&(from, to))
    }

    /// Whether neither of the two reports that it cannot reach the other.
    fn is_whole(&self, one: OsdId, other: OsdId) -> bool {
        let pairs = [(one, other), (other, one)];
        pairs.iter().all(|pair| !self.broken.contains_key(pair) && !self.doubted.contains(pair))
    }

    /// Returns the event in which the link between the two OSDs was found to be broken.
    fn since(&self, one: OsdId, other: OsdId) -> Option<u64> {
        let pairs = [(one, other), (other, one)];
        pairs.iter().filter_map(|pair| self.broken.get(pair).copied()).max()
    }

    /// Returns the OSDs that `one` cannot reach, each with the event in which the broken link was noticed.
    fn from(&self, one: OsdId) -> impl Iterator<Item = (OsdId, u64)> {
        let links = self.broken.range((one, OsdId::FIRST)..);
        let links = links.take_while(move |((from, _), _)| *from == one);
        links.map(|((_, to), since)| (*to, *since))
    }
}

/// The condition of an acting member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// It is up and holds everything.
    Sound,
    /// It is up, but the primary cannot work with it, or it rests.
    Barred,
    /// It is up, but its disk hangs, or has damaged records of the pool: it does not count towards the
    /// minimum size.
    Stalled,
    /// It is up in a new run that may have lost data.
    Suspect,
    /// It is not up.
    Down,
}

impl Given<'_> {
    /// Whether each position has its own data, so that members and learners cannot change their positions.
    fn positions_are_roles(&self) -> bool {
        !self.scheme.is_whole_everywhere()
    }

    /// Whether the OSD is at one of these positions and can serve reads there from its own data.
    fn has_data(&self, positions: &[Option<Member>], osd: OsdId) -> bool {
        let is_it = |member: &Option<Member>| member.is_some_and(|member| member.osd == osd);
        let at = Position::all().zip(positions).find(|(_, member)| is_it(member));
        self.scheme.is_whole_everywhere() || at.is_some_and(|(at, _)| self.scheme.has_data(at))
    }

    fn state_of(&self, member: Member) -> State {
        let Some(standing) = self.standings.get(&member.osd) else { return State::Down };
        if !standing.up {
            State::Down
        } else if standing.suspect && member.incarnation < standing.incarnation {
            State::Suspect
        } else if self.barred.contains_key(&member.osd) || self.is_to_rest(member) {
            State::Barred
        } else if self.is_stalled(member.osd) {
            State::Stalled
        } else {
            State::Sound
        }
    }

    /// Whether the OSD rests and its newest run is not in the entry yet.
    fn is_to_rest(&self, member: Member) -> bool {
        let standing = &self.standings[&member.osd];
        standing.rests && member.incarnation < standing.incarnation
    }

    /// Returns the OSD in its newest run, if it is up and may take part.
    fn fit(&self, osd: OsdId) -> Option<Member> {
        let standing = self.standings.get(&osd)?;
        let is_fit = standing.up && !self.barred.contains_key(&osd);
        is_fit.then_some(Member { osd, incarnation: standing.incarnation })
    }

    fn hangs(&self, osd: OsdId) -> bool {
        self.standings.get(&osd).is_some_and(|standing| standing.disk.stalled)
    }

    fn is_stalled(&self, osd: OsdId) -> bool {
        self.hangs(osd) || self.damaged.contains(&osd)
    }

    /// Whether members whose disks hang may be removed: at least `min_size` members must have disks that
    /// respond. A disk with a pending operation that began before the first disk hung does not count, because
    /// it may be about to hang too.
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

    /// Returns the number of the event in which the loss of a member was noticed.
    fn lost_since(&self, member: Member) -> u64 {
        let noticed = self.standings.get(&member.osd).map_or(0, |standing| standing.noticed);
        noticed.max(self.barred.get(&member.osd).copied().unwrap_or(0))
    }

    /// Whether the sound members may continue without the other members, whose loss was noticed in event
    /// `since`.
    fn may_go_on_with(&self, sound: &[Member], counted: usize, since: u64) -> bool {
        let min_size = if planted::on(Bug::MemberRemovedBelowMinimum) { 1 } else { self.min_size };
        let is_there = |member: &Member| {
            let heard = self.heard(member.osd);
            heard > 0 && heard >= since
        };
        !sound.is_empty() && counted >= min_size && sound.iter().all(is_there)
    }
}

/// Returns the next entry of the PG; `None`: the present entry stays. The caller sets its map revision.
pub(super) fn next_entry(entry: &PgEntry, mut given: Given<'_>) -> Option<PgEntry> {
    let leader = leader_by_links(entry, &mut given);
    let given = &given;
    let stalled_go = given.stalled_go(entry);
    let ready = ready_learners(entry, given);
    let mut positions = entry.positions.clone();
    let count = given.scheme.position_count() as usize;
    if given.positions_are_roles() && positions.len() < count {
        positions.resize(count, None);
    }
    give_back(&mut positions, given);
    let waiting = replace_lost(&mut positions, ready, stalled_go, given);
    let waiting = replace_surplus(&mut positions, waiting, leader, given);
    take_new_runs(&mut positions, !waiting.is_empty(), given);
    let learners = learners_beside(&positions, leader, entry, stalled_go, given);
    let primary = primary_of(&positions, &learners, leader, given);
    let epoch = entry.epoch.next();
    let next = PgEntry { epoch, positions, learners, primary: None, ..entry.clone() };
    let next = primary.map_or(next.clone(), |osd| next.led_by(osd));
    (given.renew || !next.has_same_members(entry)).then_some(next)
}

/// Chooses the OSD that leads the PG, according to the broken links: the present primary, or, if it can reach
/// too few members, a member that can reach enough. Bars the members that the chosen OSD cannot reach.
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
        // If the doubtful links are broken too, the primary itself may be the one that is cut off.
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
        // A link that is only suspected to be broken is no reason to remove a member yet.
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

/// Gives learners back the positions that they had when the PG was last active.
fn give_back(positions: &mut [Option<Member>], given: &Given<'_>) {
    for (position, member) in &given.returning {
        let is_fit = given.positions_are_roles() && given.fit(member.osd) == Some(*member);
        if let Some(slot) = positions.get_mut(position.index()).filter(|_| is_fit) {
            *slot = Some(*member);
        }
    }
}

fn bar(given: &mut Given<'_>, osds: impl Iterator<Item = (OsdId, u64)>) {
    for (osd, since) in osds {
        let known = given.barred.entry(osd).or_insert(since);
        *known = since.max(*known);
    }
}

/// Bars OSDs that `leader` cannot reach and that are not acting members.
fn bar_others(given: &mut Given<'_>, leader: OsdId, entry: &PgEntry) {
    let is_other = |osd: &OsdId| entry.position_of(*osd).is_none();
    let links = given.links;
    bar(given, links.from(leader).filter(|(osd, _)| is_other(osd)));
}

/// Returns the learners that are complete and may take their positions.
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

/// Removes lost members, if that is allowed, and puts ready learners into empty positions. Returns
/// the ready learners whose positions are not empty: they wait, and no write is acknowledged without them.
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
    let has_place = |learner: &&Learner| {
        let own = positions[learner.position.index()];
        !given.positions_are_roles() || own.is_none_or(|member| goes(&member))
    };
    let joining: Vec<Member> =
        (ready.iter().filter(has_place).take(open_count)).map(|learner| learner.member).collect();
    let is_sound = |member: &Member| given.state_of(*member) == State::Sound;
    let sound = acting().copied().filter(is_sound);
    let sound: Vec<Member> = sound.chain(joining.iter().copied()).collect();
    let counted = if planted::on(Bug::RemovedMemberStillCounted) {
        acting().count() + joining.len()
    } else if planted::on(Bug::StalledMemberCounted) {
        acting().filter(|member| !goes(member)).count() + joining.len()
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
        let others = if given.positions_are_roles() { 0..0 } else { 0..positions.len() };
        let all = std::iter::once(own).chain(others);
        match all.into_iter().find(|index| positions[*index].is_none()) {
            Some(open) => positions[open] = Some(learner.member),
            None => waiting.push(learner),
        }
    }
    waiting
}

/// Puts ready learners into the positions of members that are not in the plan, if all members are sound.
/// Returns the learners that still wait.
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

/// Returns the position of a member that is not in the plan: preferably `wanted`, and the position of
/// `leader` only as the last choice. Where positions are roles, only `wanted` is possible.
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
    let others = if given.positions_are_roles() { 0..0 } else { 0..positions.len() };
    let all = || std::iter::once(wanted).chain(others.clone().rev()).filter(surplus);
    all().find(|index| !leads(index)).or_else(|| all().next())
}

/// Updates members to their newest runs. A member that may have lost data is updated only if every other
/// member may have lost data too: after the update it counts as sound, and a complete copy might be dropped
/// in its favor.
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

/// Chooses OSDs of the plan to become learners: one for each position without a sound member, or one in total
/// if all members are sound, so that a change of the plan does not multiply the writes. Present learners
/// continue; an OSD that cannot reach `leader` does not become a new learner.
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
    let may_learn =
        |osd: &&OsdId| !is_acting(osd) && !hangs(osd) && (is_learner(osd) || reaches(osd));
    let wanted = given.targets.iter().filter(may_learn).filter(|osd| !may_rest(osd));
    let mut fit: Vec<Member> = wanted.filter_map(|osd| given.fit(*osd)).collect();
    fit.sort_by_key(|member| !is_learner(&member.osd));
    if given.positions_are_roles() {
        let mut learners = learners_for_roles(positions, fit, entry, leader, given);
        let is_planned = |osd: &&OsdId| learners.iter().any(|it| it.member.osd == **osd);
        let called = given.called_back.iter().filter(may_learn).filter(|osd| !is_planned(osd));
        let called: Vec<Member> = called.filter_map(|osd| given.fit(*osd)).collect();
        add_called_back(&mut learners, &called, positions.len(), entry);
        learners.truncate(MEMBERS_MAX - acting().count());
        return learners;
    }
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

/// How urgently a position needs a learner, from the most to the least urgent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    /// The position is empty.
    Empty,
    /// The position's member is lost.
    Lost,
    /// The position's member is not in the plan.
    Surplus,
    /// The position's member is not in the plan, and is the primary.
    SurplusLeader,
    /// The position's member is as planned.
    Nothing,
}

fn need_of(
    position: Position,
    positions: &[Option<Member>],
    leader: Option<OsdId>,
    given: &Given<'_>,
) -> Need {
    match positions[position.index()] {
        None => Need::Empty,
        Some(member) if given.state_of(member) != State::Sound => Need::Lost,
        Some(member) if given.targets.contains(&member.osd) => Need::Nothing,
        Some(member) if leader == Some(member.osd) => Need::SurplusLeader,
        Some(_) => Need::Surplus,
    }
}

/// Chooses the position that an OSD is filled for: an empty one first, then one whose member is lost,
/// then one whose member is not in the plan. Among equals, the position it is already filled for
/// comes first.
fn position_to_learn(
    positions: &[Option<Member>],
    others: &[Learner],
    known: Option<Position>,
    leader: Option<OsdId>,
    given: &Given<'_>,
) -> Option<Position> {
    let is_free = |position: &Position| others.iter().all(|other| other.position != *position);
    let need = |position: &Position| need_of(*position, positions, leader, given);
    let all = Position::all().take(positions.len()).filter(is_free);
    all.min_by_key(|position| (need(position), known != Some(*position), *position))
}

/// Chooses positions for OSDs of the plan that may become learners, where positions are roles. A learner
/// keeps its position while that needs a new member: for another role, everything it was filled with would be
/// useless. Every position without a sound member gets a new learner. If there is no such position and no
/// learner, one position whose member is not in the plan gets a learner.
fn learners_for_roles(
    positions: &[Option<Member>],
    fit: Vec<Member>,
    entry: &PgEntry,
    leader: Option<OsdId>,
    given: &Given<'_>,
) -> Vec<Learner> {
    let need = |position: Position| need_of(position, positions, leader, given);
    let mut learners: Vec<Learner> = Vec::new();
    let mut new: Vec<Member> = Vec::new();
    for member in fit {
        match entry.learner(member.osd).map(|known| known.position) {
            Some(position) if need(position) < Need::Nothing => {
                learners.push(Learner { member, position });
            }
            _ => new.push(member),
        }
    }
    for member in new {
        let is_free = |position: &Position| learners.iter().all(|it| it.position != *position);
        // Positions with data come first, and `fit` begins with the OSD that should be primary.
        let all = Position::all().take(positions.len()).filter(is_free);
        let Some(position) = all.min_by_key(|at| (need(*at), *at)) else { break };
        if need(position) < Need::Surplus || (learners.is_empty() && need(position) < Need::Nothing)
        {
            learners.push(Learner { member, position });
        }
    }
    learners
}

/// Makes OSDs that are called back learners. Their positions do not matter, as they are not filled: a present
/// learner keeps its position, others get the first one that has no learner. If all have one, they replace
/// learners of the plan, which are not filled before those that are called back are there.
fn add_called_back(learners: &mut Vec<Learner>, called: &[Member], count: usize, entry: &PgEntry) {
    for member in called {
        let known = entry.learner(member.osd).map(|learner| learner.position);
        let is_free = |position: &Position| learners.iter().all(|it| it.position != *position);
        let mut all = known.into_iter().chain(Position::all().take(count));
        let position = all.find(is_free).or_else(|| {
            let index = learners.iter().rposition(|it| !called.contains(&it.member))?;
            Some(learners.remove(index).position)
        });
        learners.extend(position.map(|position| Learner { member: *member, position }));
    }
}

/// Chooses the primary: the plan's first OSD if everything is as planned, otherwise the present primary if it
/// may stay, otherwise a member that is up. A planned member with data is preferred to one with parity.
fn primary_of(
    positions: &[Option<Member>],
    learners: &[Learner],
    leader: Option<OsdId>,
    given: &Given<'_>,
) -> Option<OsdId> {
    let acting: Vec<Member> = positions.iter().flatten().copied().collect();
    let state = |osd: OsdId| {
        let member = acting.iter().find(|member| member.osd == osd);
        member.map(|member| given.state_of(*member))
    };
    let is_sound = |osd: &OsdId| state(*osd) == Some(State::Sound);
    let is_slow = |osd: &OsdId| given.standings.get(osd).is_some_and(|it| it.disk.slow);
    let mut planned: Vec<OsdId> = given.targets.to_vec();
    planned.sort_by_key(|osd| (!given.has_data(positions, *osd), is_slow(osd)));
    let first = planned.first().copied();
    let planned = planned.into_iter();
    let is_judged = |osd: OsdId| given.standings.get(&osd).is_none_or(|it| !it.disk.unjudged);
    let at_rest = learners.is_empty()
        && planned.clone().all(is_judged)
        && acting.len() == given.targets.len()
        && planned.clone().all(|osd| is_sound(&osd));
    let reaches_all =
        |from: &OsdId| acting.iter().all(|member| !given.links.is_broken(*from, member.osd));
    if at_rest && first.is_some_and(|first| reaches_all(&first)) {
        return first;
    }
    // A primary whose disk hangs and that cannot be removed remains primary: the hang alone does not start an
    // epoch. One that cannot read some of its records hands over to one that can.
    let hangs = |osd: &OsdId| state(*osd) == Some(State::Stalled) && given.hangs(*osd);
    let may_stay = |osd: &OsdId| is_sound(osd) || hangs(osd);
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
