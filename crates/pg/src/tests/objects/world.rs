//! Members of a PG of objects, the connections between them, and clients. What happens next is chosen at random.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ::objects::model::MODIFIED;
use ::objects::{Look, NameHash, Operation, PoolShape, Sharding};
use base::{BufferPool, Epoch, MapRevision, PoolId, Position, SessionId, SessionRange, Version};
use format::wire::{Op, Outcome, PagePart, Payload, PeerBody, PgEntry, Refusal};

use super::super::world::{Random, osd_id};
use super::super::{BLOCK_SIZE, shape};
use super::store::Store;
use crate::{Action, Need, Pg, Record, ScrubEvent, Serving, Shape, Ticket};

#[derive(Debug)]
pub enum Kind {
    Mutate(Operation),
    Look(Look),
}

/// An operation of a client.
#[derive(Debug)]
pub struct Open {
    /// The operation that this one is, sent again: its own number if it was not sent before.
    pub original: usize,
    pub session: SessionId,
    pub kind: Kind,
    pub begun: Begun,
    pub answered: Option<Answered>,
}

#[derive(Debug)]
pub struct Begun {
    /// The highest version that had been answered: the operation comes after it.
    pub lowest: Version,
}

#[derive(Debug)]
pub struct Answered {
    pub outcome: Result<Outcome, Refusal>,
    /// The version up to which all acting members had everything durably.
    pub at_all: Version,
}

pub struct Osd {
    pub pg: Pg,
    pub store: Store,
}

pub struct World {
    pub osds: Vec<Osd>,
    /// Messages by (from, to).
    pub(super) links: BTreeMap<(usize, usize), VecDeque<(Epoch, PeerBody)>>,
    pub(super) entry: PgEntry,
    pub ops: Vec<Open>,
    /// Operations by their versions.
    pub versions: BTreeMap<Version, usize>,
    /// Versions of housekeeping.
    pub cleanings: BTreeSet<Version>,
    highest_answered: Version,
    /// The session of all clients. All before it are over; OSDs hear of it later.
    pub session: SessionId,
    /// Operations that their client has no answer to. If a sending was answered *stale*, it is sent again.
    unanswered: BTreeSet<usize>,
    /// Those of them that no primary has now.
    stale: Vec<usize>,
    pub batch_count: usize,
    /// Pages that were sent to learners, and those of them that were parts of objects.
    pub page_counts: (usize, usize),
    /// Learners that began to be filled by the log, and lists of heads that were asked for.
    pub by_log_counts: (usize, usize),
    /// How often an epoch ended while an object was incomplete at a learner.
    pub incomplete_count: usize,
    /// Whether a read that was overtaken too often took its turn.
    pub had_read_in_turn: bool,
    /// Percentage of batches that have to wait for room in a store.
    pub waits_percent: usize,
    /// The answer to what was asked beside the operations.
    told: Option<Result<Outcome, Refusal>>,
    /// Learners of the epoch that are reported complete.
    pub complete: BTreeSet<usize>,
    /// Acting members that the primary cannot go on with.
    pub failed: BTreeSet<usize>,
    /// How often the primary found that members lack versions.
    pub failed_count: usize,
    /// Whether the epoch cannot go on.
    pub needs_epoch: bool,
    /// What scrubs said, without their beginnings and ends, and how many ended.
    pub scrub_events: Vec<ScrubEvent>,
    pub scrub_count: usize,
    pub(super) shape: Shape,
    /// The number of copies that the pool wants.
    copies: u8,
    /// The acting member that is lost in this epoch, which has too few others to serve.
    pub absent: Option<usize>,
    /// How often each OSD has started.
    pub(super) starts: Vec<u64>,
    pub random: Random,
}

/// The time of the first scrub, in seconds since 1970. Each later one begins a second later.
const SCRUBBED_AT: u64 = 9;

/// The first session of the clients.
const FIRST_SESSION: SessionId = SessionId::new(7);

/// The ticket of what is asked beside the operations.
const ASIDE: Ticket = Ticket(u32::MAX);

pub fn index_of(osd: base::OsdId) -> usize {
    osd.get() as usize - 1
}

impl Osd {
    fn new(shape: Shape, index: usize) -> Osd {
        let (store, buffers) = (Store::default(), BufferPool::default());
        Osd { pg: Pg::new(shape, osd_id(index), store.facts(), None, buffers), store }
    }

    /// Returns the version up to which it has everything durably, as an acting member.
    fn durable(&self) -> Version {
        let filled = self.pg.record().filter(|record| record.filling.is_none());
        filled.map_or(self.store.durable, |record| record.adopted.max(self.store.durable))
    }
}

impl World {
    /// Creates members that begin their first epoch.
    pub fn new(seed: u64, members: usize) -> World {
        World::of(seed, members, 1)
    }

    /// Creates members of the first half of a pool, whose first epoch is active.
    pub fn of_half(members: usize) -> World {
        let mut world = World::of(1, members, 2);
        world.end_all();
        world
    }

    /// Creates OSDs, of which some are the members of the first epoch.
    pub fn with_others(seed: u64, osds: usize, members: usize) -> World {
        let mut world = World::of(seed, 0, 1);
        // Many objects take several pages.
        world.shape.limits.page_size_max = [40, 100, 2000][seed as usize % 3];
        world.osds = (0..osds).map(|index| Osd::new(world.shape, index)).collect();
        world.starts = vec![1; osds];
        world.copies = 2;
        let acting: Vec<usize> = (0..members).collect();
        world.set_members(&acting, &[]);
        world.osds.iter_mut().for_each(|osd| osd.store.is_fragile = true);
        world.enter();
        world
    }

    fn of(seed: u64, members: usize, pg_count: u32) -> World {
        let sharding = Sharding { shard_count: 4, names: NameHash::Plain };
        let objects = PoolShape { pool: PoolId::FIRST, sharding, block_size: BLOCK_SIZE };
        let shape = Shape { objects: Some(objects), pg_count, ..shape() };
        let member = |index| format::wire::Member {
            osd: osd_id(index),
            incarnation: base::Incarnation::new(1),
        };
        let mut world = World {
            osds: (0..members).map(|index| Osd::new(shape, index)).collect(),
            links: BTreeMap::new(),
            entry: PgEntry::new(shape.pg, (0..members).map(member)),
            ops: Vec::new(),
            versions: BTreeMap::new(),
            cleanings: BTreeSet::new(),
            highest_answered: Version::ZERO,
            session: FIRST_SESSION,
            unanswered: BTreeSet::new(),
            stale: Vec::new(),
            batch_count: 0,
            page_counts: (0, 0),
            by_log_counts: (0, 0),
            incomplete_count: 0,
            had_read_in_turn: false,
            waits_percent: 0,
            told: None,
            complete: BTreeSet::new(),
            failed: BTreeSet::new(),
            failed_count: 0,
            needs_epoch: false,
            scrub_events: Vec::new(),
            scrub_count: 0,
            shape,
            copies: members as u8,
            absent: None,
            starts: vec![1; members],
            random: Random::new(seed),
        };
        if members > 0 {
            world.enter();
        }
        world
    }

    /// Creates members whose first epoch is active.
    pub fn active(members: usize) -> World {
        let mut world = World::new(1, members);
        world.end_all();
        world
    }

    /// Begins the next epoch, perhaps with another primary. What was on its way is lost.
    pub fn next_epoch(&mut self) {
        let primary = self.random.below(self.entry.acting_count());
        self.entry.primary = Position::new(primary as u8);
        self.osds.iter_mut().for_each(|osd| osd.store.is_full = false);
        self.enter();
    }

    /// Begins the next epoch with this primary. What was on its way is lost.
    pub fn next_epoch_led_by(&mut self, primary: usize) {
        let at = self.acting().iter().position(|index| *index == primary);
        self.entry.primary = Position::new(at.expect("it is acting") as u8);
        self.enter();
    }

    /// What the primary sent to a member arrives there.
    pub fn deliver_to(&mut self, to: usize) {
        let from = self.primary();
        while self.links.get(&(from, to)).is_some_and(|queue| !queue.is_empty()) {
            self.deliver(from, to);
        }
    }

    /// Lets the store of a member answer. Returns false if it has nothing to answer.
    pub fn happen_at(&mut self, index: usize) -> bool {
        let is_open = self.osds[index].store.open_count() > 0;
        if is_open {
            self.answer(index);
        }
        is_open
    }

    /// A member, perhaps the primary, takes no part any more. Returns false if it is the last one.
    pub fn lose_member(&mut self, index: usize) -> bool {
        let mut members = self.acting();
        members.retain(|member| *member != index);
        if members.is_empty() || members.len() == self.entry.acting_count() {
            return false;
        }
        self.set_members(&members, &[]);
        self.next_epoch();
        true
    }

    /// A member, not the primary, starts again with another store, and the next epoch begins with the same
    /// primary.
    pub fn restart_with(&mut self, index: usize, store: Store) {
        assert!(index != self.primary());
        let record = store.note.as_ref().map(|note| Record::decode(note).expect("a record"));
        let buffers = BufferPool::default();
        let pg = Pg::new(self.shape, osd_id(index), store.facts(), record, buffers);
        self.osds[index] = Osd { pg, store };
        self.enter();
    }

    /// The clients begin with another session: the one that they had is over, whatever of it is under way.
    /// Nobody waits for answers to it.
    pub fn change_session(&mut self) {
        self.session = SessionId::new(self.session.get() + 1);
    }

    /// Returns the sessions that are over.
    fn over(&self) -> Arc<[SessionRange]> {
        let last = SessionId::new(self.session.get() - 1);
        (FIRST_SESSION <= last).then_some((FIRST_SESSION, last)).into_iter().collect()
    }

    /// Returns how many repeats of sessions that are over a member has.
    pub fn count_over(&self, index: usize) -> usize {
        self.osds[index].store.repeats().filter(|session| *session < self.session).count()
    }

    /// Nothing is under way: what is over is deleted.
    pub fn delete_over(&mut self) {
        self.osds.iter_mut().for_each(|osd| osd.store.is_full = false);
        for _ in 0..2 {
            self.tick();
            self.end_all();
        }
        let counts: Vec<usize> =
            self.acting().iter().map(|index| self.count_over(*index)).collect();
        assert!(
            counts.iter().all(|count| *count == 0),
            "repeats of sessions that are over: {counts:?}"
        );
    }

    /// Some time passes: members raise their floors, hear which sessions are over, and the primary cleans up.
    pub fn tick(&mut self) {
        let over = self.over();
        for index in self.acting() {
            self.osds[index].pg.note_over(&over);
            self.with(index, |pg, actions| pg.raise_floor(actions));
        }
    }

    pub(super) fn enter(&mut self) {
        self.entry.epoch = Epoch::new(self.entry.epoch.get() + 1);
        self.entry.revision = MapRevision::new(self.entry.epoch.get().into());
        self.links.clear();
        self.complete.clear();
        self.failed.clear();
        self.needs_epoch = false;
        let entry = self.entry.clone();
        let scheme = base::Scheme::Copies { count: self.copies };
        // Members first: none of them meets a message of an epoch that it has not entered.
        let primary = self.primary();
        let members: Vec<usize> = entry.members().map(|member| index_of(member.osd)).collect();
        for index in (0..self.osds.len()).filter(|index| *index != primary).chain([primary]) {
            let entry = entry.clone();
            let over = self.over();
            self.with(index, |pg, actions| match members.contains(&index) {
                true => {
                    pg.enter(entry, scheme, None, actions);
                    // What is over is in the map that begins the epoch.
                    pg.note_over(&over);
                }
                false => pg.halt("it is no member".into(), actions),
            });
        }
        for index in members {
            if index != primary && self.absent != Some(index) {
                self.with(primary, |pg, actions| pg.peer_ready(osd_id(index), actions));
            }
        }
    }

    pub(super) fn primary(&self) -> usize {
        index_of(self.entry.primary_osd().unwrap())
    }

    /// The primary scrubs for a while, and begins a scrub if none is under way.
    pub fn scrub(&mut self, deep: bool) {
        let now = SCRUBBED_AT + self.scrub_count as u64;
        self.with(self.primary(), |pg, actions| {
            pg.recall_scrubs(actions);
            if pg.scrub_note().running.is_none() {
                pg.begin_scrub(deep, false, now, actions);
            }
            pg.scrub(1 << 20, true, now, actions);
        });
    }

    /// All of the PG is scrubbed, and nothing else happens.
    pub fn scrub_all(&mut self, deep: bool) {
        let count = self.scrub_count;
        for _ in 0..10_000 {
            self.scrub(deep);
            while self.happen() {}
            if self.scrub_count > count {
                return;
            }
        }
        panic!("a scrub never ends");
    }

    pub fn serves(&self) -> bool {
        *self.osds[self.primary()].pg.serving() == Serving::Active
    }

    /// Returns a version that some object may have.
    pub fn some_version(&mut self) -> Version {
        let back = self.random.below(4);
        self.versions.keys().rev().nth(back).copied().unwrap_or(Version::ZERO)
    }

    /// Begins an operation; returns its number.
    pub fn begin(&mut self, kind: Kind) -> usize {
        self.send(kind, self.ops.len())
    }

    /// The answer to an operation does not reach its client.
    pub fn lose_answer(&mut self, number: usize) {
        self.unanswered.insert(number);
        self.stale.push(number);
    }

    /// Sends an operation again that was answered *stale*, if there is one.
    pub fn send_again(&mut self) {
        if self.stale.is_empty() {
            return;
        }
        let at = self.random.below(self.stale.len());
        let original = self.stale.swap_remove(at);
        let Kind::Mutate(operation) = &self.ops[original].kind else { unreachable!("no read") };
        self.send(Kind::Mutate(operation.clone()), original);
    }

    fn send(&mut self, kind: Kind, original: usize) -> usize {
        let session = self.ops.get(original).map_or(self.session, |op| op.session);
        let pool = BufferPool::default();
        let op = match &kind {
            Kind::Mutate(operation) => {
                self.unanswered.insert(original);
                let of_session =
                    |number: &&usize| self.ops.get(**number).is_none_or(|op| op.session == session);
                let lowest = *self.unanswered.iter().find(of_session).expect("this one") as u64 + 1;
                Op::Mutate {
                    number: original as u64 + 1,
                    lowest,
                    again: original < self.ops.len(),
                    operation: Payload::new(&operation.encode(), &pool),
                }
            }
            Kind::Look(look) => Op::Look { reads: Payload::new(&look.encode(), &pool) },
        };
        let number = self.ops.len();
        let begun = Begun { lowest: self.highest_answered };
        self.ops.push(Open { original, session, kind, begun, answered: None });
        let ticket = Ticket(number as u32);
        self.with(self.primary(), |pg, actions| {
            pg.set_time_of_day(MODIFIED);
            pg.execute(ticket, session, op, actions);
        });
        number
    }

    pub fn outcome(&self, number: usize) -> &Result<Outcome, Refusal> {
        &self.ops[number].answered.as_ref().expect("it was answered").outcome
    }

    /// Asks the primary for what is answered at once, or when its store has answered.
    pub fn ask(&mut self, op: Op) -> Result<Outcome, Refusal> {
        let session = self.session;
        self.with(self.primary(), |pg, actions| pg.execute(ASIDE, session, op, actions));
        while self.told.is_none() {
            assert!(self.happen());
        }
        self.told.take().unwrap()
    }

    /// The primary refuses this operation, if it is not prepared yet.
    pub fn refuse_waiting(&mut self, number: usize) {
        let judge = |ticket: Ticket| (ticket.0 as usize == number).then_some(Refusal::Fenced);
        self.with(self.primary(), |pg, actions| pg.refuse_waiting(judge, actions));
    }

    /// Lets the primary give no versions, or give them again.
    pub fn hold(&mut self, holds: bool) {
        self.with(self.primary(), |pg, actions| pg.hold_versions(holds, actions));
    }

    /// The primary refuses this operation, if it has no version.
    pub fn refuse_held(&mut self, number: usize) {
        let is_overdue = |ticket: Ticket| ticket.0 as usize == number;
        self.with(self.primary(), |pg, actions| pg.refuse_held(is_overdue, actions));
    }

    /// Lets the store of the primary answer. Returns false if it has nothing to answer.
    pub fn happen_at_primary(&mut self) -> bool {
        let primary = self.primary();
        let is_open = self.osds[primary].store.open_count() > 0;
        if is_open {
            self.answer(primary);
        }
        is_open
    }

    /// Loses all messages in transit.
    pub fn lose_messages(&mut self) {
        self.links.clear();
    }

    pub fn hindrance(&self) -> Option<&str> {
        self.osds[self.primary()].pg.fill_hindrance()
    }

    /// Takes the next message from the primary to the other member, which is a batch.
    pub fn batch_on_its_way(&mut self) -> PeerBody {
        let (_, body) = self.links.get_mut(&(0, 1)).unwrap().pop_front().unwrap();
        assert!(matches!(body, PeerBody::Batch { .. }));
        body
    }

    /// The primary says something to the other member.
    pub fn say_to_member(&mut self, body: PeerBody) -> Result<(), String> {
        self.say(0, 1, body)
    }

    /// A member says something to another one.
    pub fn say(&mut self, from: usize, to: usize, body: PeerBody) -> Result<(), String> {
        let mut said = Ok(());
        self.with(to, |pg, actions| said = pg.peer_said(osd_id(from), body, actions));
        said
    }

    /// Lets a message arrive, or a store answer. Returns false if nothing can happen.
    pub fn happen(&mut self) -> bool {
        let mut choices: Vec<(Option<(usize, usize)>, usize)> = Vec::new();
        let mail = self.links.iter().filter(|(_, queue)| !queue.is_empty());
        choices.extend(mail.map(|(pair, _)| (Some(*pair), 0)));
        let is_open = |store: &Store| store.open_count() > 0 || store.has_waiting();
        let stores = self.osds.iter().enumerate().filter(|(_, osd)| is_open(&osd.store));
        choices.extend(stores.map(|(index, _)| (None, index)));
        if choices.is_empty() {
            return false;
        }
        match choices[self.random.below(choices.len())] {
            (Some((from, to)), _) => self.deliver(from, to),
            (None, index) => self.answer(index),
        }
        true
    }

    /// Lets a store answer, or take a batch that waits for room.
    fn answer(&mut self, index: usize) {
        let store = &mut self.osds[index].store;
        if (store.open_count() == 0 || self.random.below(3) == 0) && store.make_room() {
            return;
        }
        let at = self.random.below(self.osds[index].store.open_count());
        let is_cold = self.random.below(3) == 0;
        let (call, result) = self.osds[index].store.answer(at, is_cold);
        self.with(index, |pg, actions| pg.store_done(call, result, actions));
    }

    /// Lets everything happen until all operations are answered and nothing is under way.
    pub fn end_all(&mut self) {
        while self.happen() {}
        let first = self.entry.epoch.get();
        while self.needs_epoch {
            assert!(self.entry.epoch.get() < first + 100, "no epoch goes on: {:?}", self.failed);
            self.next_epoch();
            while self.happen() {}
        }
        assert!(self.serves(), "{:?}", self.hindrance());
        assert_eq!(self.osds[self.primary()].pg.open_count(), 0);
        let is_open = |op: &&Open| op.answered.is_none();
        assert_eq!(self.ops.iter().filter(is_open).count(), 0, "each is answered");
    }

    pub(super) fn deliver(&mut self, from: usize, to: usize) {
        let (epoch, body) = self.links.get_mut(&(from, to)).unwrap().pop_front().unwrap();
        assert_eq!(epoch, self.entry.epoch, "connections break with the epoch");
        let said = |pg: &mut Pg, actions: &mut Vec<Action>| {
            pg.peer_said(osd_id(from), body, actions).unwrap_or_else(|why| panic!("{why}"));
        };
        self.with(to, said);
    }

    pub(super) fn with(&mut self, index: usize, call: impl FnOnce(&mut Pg, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        call(&mut self.osds[index].pg, &mut actions);
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                self.carry_out(index, action, &mut actions);
            }
        }
        self.had_read_in_turn |= self.osds[index].pg.objects.reads_in_turn() > 0;
        self.cleanings.extend(self.osds[index].pg.cleanings_in_flight());
        for (version, ticket) in self.osds[index].pg.objects_in_flight() {
            let number = ticket.0 as usize;
            let known = *self.versions.entry(version).or_insert(number);
            assert_eq!(known, number, "{version} is given once");
        }
    }

    fn carry_out(&mut self, index: usize, action: Action, next: &mut Vec<Action>) {
        let Osd { pg, store } = &mut self.osds[index];
        match action {
            Action::Store { call, request } => {
                let is_batch = matches!(request, blockstore::Request::Batch(_));
                self.batch_count += usize::from(is_batch && index == index_of_primary(&self.entry));
                let has_room = self.random.below(100) >= self.waits_percent;
                store.ask(call, request, has_room);
            }
            Action::ListNewer { call, after, count_max, .. } => {
                let blocks = store.blocks_after(after, count_max);
                let is_last = blocks.len() < count_max;
                pg.listed_newer(call, blocks, is_last, next);
            }
            Action::Send { to, body } => {
                let epoch = pg.entry().unwrap().epoch;
                match &body {
                    PeerBody::Page { part, .. } => {
                        self.page_counts.0 += 1;
                        self.page_counts.1 += usize::from(*part != PagePart::Whole);
                    }
                    PeerBody::Activate { filling: Some(filling), .. } => {
                        self.by_log_counts.0 += usize::from(!filling.listing);
                    }
                    PeerBody::ListHeads { .. } => self.by_log_counts.1 += 1,
                    _ => {}
                }
                self.links.entry((index, index_of(to))).or_default().push_back((epoch, body));
            }
            Action::Reply { ticket, outcome } => self.answered(ticket, outcome),
            Action::Activated => {
                let adopted = pg.lead.as_ref().expect("it leads").adopted;
                pg.fill(2, next);
                self.on_activated(adopted);
            }
            Action::Need(Need::Complete(member)) if self.entry.learner(member.osd).is_some() => {
                self.complete.insert(index_of(member.osd));
            }
            Action::Need(Need::Failed(member, _))
                if self.entry.acting_member(member.osd).is_some() =>
            {
                self.failed.insert(index_of(member.osd));
                self.failed_count += 1;
                self.needs_epoch = true;
            }
            Action::Need(_) => self.needs_epoch = true,
            Action::StoreUnpromised { call, request } => store.ask(call, request, true),
            Action::Scrub(ScrubEvent::Began { .. }) => {}
            Action::Scrub(ScrubEvent::Ended { .. }) => self.scrub_count += 1,
            Action::Scrub(event) => self.scrub_events.push(event),
            Action::Absolved => {}
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn answered(&mut self, ticket: Ticket, outcome: Result<Outcome, Refusal>) {
        if ticket == ASIDE {
            return self.told = Some(outcome);
        }
        let acting = self.entry.acting().map(|member| index_of(member.osd));
        let at_all = acting.map(|index| self.osds[index].durable()).min().unwrap();
        if let Ok(Outcome::Mutated { version, .. }) = &outcome {
            self.highest_answered = self.highest_answered.max(*version);
        }
        let op = &mut self.ops[ticket.0 as usize];
        match (&op.kind, &outcome) {
            (Kind::Look(_), _) => {}
            (Kind::Mutate(_), Err(Refusal::Stale(_))) => self.stale.push(op.original),
            // Whether it was executed is not known.
            (Kind::Mutate(_), Err(Refusal::Fenced)) => {}
            (Kind::Mutate(_), _) => _ = self.unanswered.remove(&op.original),
        }
        let before = op.answered.replace(Answered { outcome, at_all });
        assert!(before.is_none(), "it is answered once");
    }
}

fn index_of_primary(entry: &PgEntry) -> usize {
    index_of(entry.primary_osd().unwrap())
}
