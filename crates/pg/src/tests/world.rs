//! Members of one PG, the connections between them, a monitor that changes entries, and clients.
//!
//! Everything that may happen is an event that the caller chooses: a message arrives, a store makes progress
//! or answers, a process dies, a connection breaks, the map arrives, a lease expires.

mod equal;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{
    BufferPool, Duration, Epoch, Incarnation, MapRevision, OsdId, Position, Scheme, SessionId, Time,
};
use blockstore::StoreError;
use format::wire::{Learner, Member, Op, Outcome, PeerBody, PgEntry};

use super::history::{History, Kind};
use super::model::{Block, Store, data_of, values_of};
use super::parity::Parity;
use super::{UNIT, UNITS, place_in, shape};
use crate::stripes::face_of;
use crate::{
    Absence, Action, Limits, Need, Pg, Record, ScrubEvent, ScrubNote, Serving, Shape, Ticket,
};

/// A small random number generator; every failure prints its seed.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % bound
    }
}

/// One OSD.
pub struct Osd {
    pub pg: Option<Pg>,
    pub store: Store,
    pub incarnation: u64,
    /// The newest epoch that the OSD read in the map and acted on.
    seen: Epoch,
    /// Whether all space is promised to writes.
    pub lacks_room: bool,
}

/// A message in transit.
struct Letter {
    epoch: Epoch,
    body: PeerBody,
}

/// A connection from a primary to a member, or from a data member to a member with parity.
#[derive(Default)]
struct Link {
    to_member: VecDeque<Letter>,
    to_primary: VecDeque<Letter>,
}

pub struct World {
    pub osds: Vec<Osd>,
    /// Connections by (primary, member), or by (data member, member with parity).
    links: BTreeMap<(usize, usize), Link>,
    /// Pairs that cannot connect.
    pub cut: Vec<(usize, usize)>,
    /// (giver, holder): the holder may count on the giver's grant of this epoch.
    leases: BTreeMap<(usize, usize), Epoch>,
    pub entry: PgEntry,
    shape: Shape,
    scheme: Scheme,
    pub copies: usize,
    /// Minimum number of members that may serve.
    pub minimum: usize,
    /// Whether members that are not up count as removed from the cluster, if no write is lazy.
    pub gives_up_lost: bool,
    /// The OSDs that must have the copies.
    pub plan: Vec<usize>,
    /// OSDs that are learners whatever the plan says, until the PG is active.
    called_back: BTreeSet<usize>,
    needs: Vec<(Epoch, Need)>,
    pub history: History,
    /// Operations by (OSD, ticket).
    open: BTreeMap<(usize, Ticket), usize>,
    ticket_next: u32,
    pub random: Random,
    /// Percentage of entries whose data is out of line.
    pub large_percent: usize,
    /// Percentage of writes and zeroes that are lazy.
    pub lazy_percent: usize,
    /// Whether a part may be older than parity knows.
    pub may_contradict: bool,
    /// What members sent, for scenarios: (from, to, message).
    pub sent: Vec<(usize, usize, PeerBody)>,
    /// How often a learner was reported complete while too few members were left to serve.
    pub short_fill_count: usize,
    /// Events that scrubs reported: (primary, event).
    pub scrub_events: Vec<(usize, ScrubEvent)>,
    /// The time of day.
    day_time: u64,
    /// The time, for the limits on looks of scrubs.
    now: Time,
    is_traced: bool,
}

pub fn osd_id(index: usize) -> OsdId {
    OsdId::new(index as u32 + 1).unwrap()
}

fn index_of(osd: OsdId) -> usize {
    osd.get() as usize - 1
}

impl World {
    /// A pool of copies.
    pub fn new(seed: u64, osds: usize, copies: usize) -> World {
        World::of(seed, osds, copies, shape())
    }

    /// A pool with the face of `parity`: two pieces and their XOR.
    pub fn of_pieces(seed: u64, osds: usize) -> World {
        World::of(seed, osds, 3, Shape { face: &Parity, ..shape() })
    }

    /// A pool of a scheme with parity.
    pub fn of_scheme(seed: u64, osds: usize, scheme: Scheme) -> World {
        World::of_limits(seed, osds, scheme, shape().limits)
    }

    /// A pool of a scheme with parity, with other limits.
    pub fn of_limits(seed: u64, osds: usize, scheme: Scheme, limits: Limits) -> World {
        let shape = Shape { face: face_of(scheme), limits, ..shape() };
        let mut world = World::of(seed, osds, scheme.position_count() as usize, shape);
        world.minimum = scheme.min_size_default() as usize;
        world.scheme = scheme;
        world
    }

    /// Adds parity to the pool, as `pool set --ec` does: the next entry has positions for it. The first OSDs
    /// are to be the members.
    pub fn set_scheme(&mut self, scheme: Scheme) {
        self.scheme = scheme;
        self.shape.face = face_of(scheme);
        self.copies = scheme.position_count() as usize;
        self.plan = (0..self.copies).collect();
    }

    pub fn has_parity(&self) -> bool {
        self.shape.face.stripes().is_some()
    }

    /// Returns the number of data parts of a stripe.
    pub fn data_count(&self) -> usize {
        self.shape.face.data_count() as usize
    }

    /// Returns the number of units that an operation can reach under one key.
    pub fn units(&self) -> u32 {
        self.shape.face.data_count() * UNITS
    }

    fn of(seed: u64, osds: usize, copies: usize, shape: Shape) -> World {
        let plan: Vec<usize> = (0..copies).collect();
        let called_back = BTreeSet::new();
        let mut world = World {
            osds: Vec::new(),
            links: BTreeMap::new(),
            cut: Vec::new(),
            leases: BTreeMap::new(),
            entry: PgEntry::new(shape.pg, []),
            shape,
            scheme: Scheme::Copies { count: copies as u8 },
            copies,
            minimum: if copies <= 2 { 1 } else { 2 },
            gives_up_lost: true,
            plan,
            called_back,
            needs: Vec::new(),
            history: History::default(),
            open: BTreeMap::new(),
            ticket_next: 0,
            random: Random::new(seed),
            large_percent: 20,
            lazy_percent: 0,
            may_contradict: false,
            sent: Vec::new(),
            short_fill_count: 0,
            scrub_events: Vec::new(),
            day_time: 1_000,
            now: Time::ZERO,
            is_traced: std::env::var_os("TRACE").is_some(),
        };
        for _ in 0..osds {
            let store = Store::default();
            let (incarnation, seen) = (0, Epoch::ZERO);
            world.osds.push(Osd { pg: None, store, incarnation, seen, lacks_room: false });
        }
        for index in 0..osds {
            world.start(index);
        }
        let entry = PgEntry::new(shape.pg, world.plan.iter().map(|index| world.member(*index)));
        let (epoch, revision) = (Epoch::new(1), MapRevision::new(1));
        world.entry = PgEntry { epoch, revision, ..entry };
        world
    }

    /// Acting members of the newest entry, by OSD.
    pub fn acting(&self) -> Vec<Member> {
        let mut acting: Vec<Member> = self.entry.acting().copied().collect();
        acting.sort_unstable();
        acting
    }

    pub fn member(&self, index: usize) -> Member {
        let incarnation = Incarnation::new(self.osds[index].incarnation);
        Member { osd: osd_id(index), incarnation }
    }

    pub fn is_up(&self, index: usize) -> bool {
        self.osds[index].pg.is_some()
    }

    pub fn serving(&self, index: usize) -> &Serving {
        self.osds[index].pg.as_ref().expect("it is up").serving()
    }

    /// The members whose grants a primary needs.
    pub fn lease_givers(&self, index: usize) -> Vec<usize> {
        let pg = self.osds[index].pg.as_ref().expect("it is up");
        pg.lease_givers().iter().map(|giver| index_of(*giver)).collect()
    }

    /// The epoch of a member's durable record.
    pub fn recorded(&self, index: usize) -> Epoch {
        let note = self.osds[index].store.now.note.as_ref().expect("there is a record");
        Record::decode(note).unwrap().entry.epoch
    }

    /// Expires all grants.
    pub fn leases_end(&mut self) {
        self.leases.clear();
    }

    /// Starts an OSD's process.
    pub fn start(&mut self, index: usize) {
        assert!(!self.is_up(index));
        let osd = &mut self.osds[index];
        osd.incarnation += 1;
        osd.seen = Epoch::ZERO;
        let note = osd.store.now.note.as_ref();
        let record = note.map(|bytes| Record::decode(bytes).unwrap());
        let facts = osd.store.facts();
        if self.is_traced {
            println!("{index} starts: {facts:?} {record:?}");
        }
        let note = osd.store.now.scrub_note.as_ref();
        let note = note.and_then(|bytes| ScrubNote::decode(self.shape.pg, bytes).ok());
        let mut pg = Pg::new(self.shape, osd_id(index), facts, record, BufferPool::default());
        pg.know_scrubs(note.unwrap_or_default());
        osd.pg = Some(pg);
    }

    /// Cuts the power; the store keeps `more` entries beyond what is durable.
    pub fn crash(&mut self, index: usize, more: usize) {
        self.trace(|_| format!("{index} loses power"));
        self.osds[index].store.crash(more);
        self.gone(index);
    }

    /// Kills an OSD's process; its store keeps what is written.
    pub fn kill(&mut self, index: usize) {
        self.trace(|_| format!("{index} dies"));
        self.osds[index].store.end();
        self.gone(index);
    }

    fn gone(&mut self, index: usize) {
        self.osds[index].pg = None;
        self.open.retain(|(osd, _), _| *osd != index);
        let pairs: Vec<(usize, usize)> = self.links.keys().copied().collect();
        for (primary, member) in pairs {
            if primary == index || member == index {
                self.disconnect(primary, member);
            }
        }
    }

    /// Breaks a connection; the messages in transit are lost.
    pub fn disconnect(&mut self, primary: usize, member: usize) {
        if self.links.remove(&(primary, member)).is_some() && self.is_up(primary) {
            self.with(primary, |pg, actions| pg.peer_lost(osd_id(member), actions));
        }
    }

    /// Breaks all connections between members that do not lead.
    pub fn disconnect_data_members(&mut self) {
        let links: Vec<(usize, usize)> = self.links.keys().copied().collect();
        for (from, to) in links {
            if self.osds[from].pg.as_ref().is_none_or(|pg| !leads(pg, from)) {
                self.disconnect(from, to);
            }
        }
    }

    /// Opens all connections that primaries need and that are not cut.
    pub fn connect(&mut self) {
        for primary in 0..self.osds.len() {
            let Some(entry) = self.osds[primary].pg.as_ref().and_then(Pg::entry) else { continue };
            let leads = entry.primary_osd() == Some(osd_id(primary));
            let members: Vec<Member> = match leads {
                true => entry.members().copied().collect(),
                false => self.delta_receivers(primary, entry),
            };
            for member in members {
                let index = index_of(member.osd);
                let is_cut =
                    self.cut.contains(&(primary, index)) || self.cut.contains(&(index, primary));
                let is_there = self.is_up(index) && self.member(index) == member && !is_cut;
                if index != primary && is_there && !self.links.contains_key(&(primary, index)) {
                    self.links.insert((primary, index), Link::default());
                    if leads {
                        self.with(primary, |pg, actions| pg.peer_ready(member.osd, actions));
                    }
                }
            }
        }
    }

    /// Returns the members to which an OSD sends differences straight, over connections of its own.
    fn delta_receivers(&self, index: usize, entry: &PgEntry) -> Vec<Member> {
        let Some(stripes) = self.shape.face.stripes() else { return Vec::new() };
        let position = entry.position_of(osd_id(index));
        if position.is_none_or(|position| !stripes.is_data(position)) {
            return Vec::new();
        }
        let parity = entry.filled().filter(|(position, member)| {
            !stripes.is_data(*position) && entry.primary_osd() != Some(member.osd)
        });
        parity.map(|(_, member)| *member).collect()
    }

    /// Prints an event if TRACE is set.
    fn trace(&self, what: impl Fn(&World) -> String) {
        if self.is_traced {
            println!("{}", what(self));
        }
    }

    /// The monitor tells an OSD which disks are slow.
    pub fn hears_of_disks(&mut self, index: usize, disks: &crate::SlowDisks) {
        if self.is_up(index) {
            self.with(index, |pg, actions| pg.set_slow_disks(disks, actions));
        }
    }

    /// Calls a PG and carries out the actions that it returns.
    pub fn with(&mut self, index: usize, call: impl FnOnce(&mut Pg, &mut Vec<Action>)) {
        let mut actions = Vec::new();
        call(self.osds[index].pg.as_mut().expect("it is up"), &mut actions);
        while !actions.is_empty() {
            for action in std::mem::take(&mut actions) {
                self.carry_out(index, action, &mut actions);
            }
        }
    }

    fn carry_out(&mut self, index: usize, action: Action, next: &mut Vec<Action>) {
        let osd = &mut self.osds[index];
        let pg = osd.pg.as_mut().expect("it is up");
        match action {
            Action::Store { call, request } => {
                let is_large = self.random.below(100) < self.large_percent;
                osd.store.ask(call, request, is_large);
            }
            Action::StoreUnpromised { call, .. } if osd.lacks_room => {
                pg.store_done(call, Err(StoreError::Full), next);
            }
            Action::StoreUnpromised { call, request } => osd.store.ask(call, request, false),
            Action::List { call, listing } => {
                let keys = osd.store.now.blocks.iter().filter(|(key, block)| {
                    key.image == listing.image
                        && key.stripe >= listing.from
                        && listing.after.is_none_or(|after| **key > after)
                        && !block.is_tombstone
                });
                let keys = keys.map(|(key, _)| *key).take(listing.count_max).collect();
                pg.listed(call, keys, next);
            }
            Action::ListNewer { call, newer_than, after, count_max } => {
                let (blocks, is_last) = osd.store.list(newer_than, after, count_max);
                pg.listed_newer(call, blocks, is_last, next);
            }
            Action::Send { to, body } => {
                let epoch = pg.entry().expect("it takes part").epoch;
                self.post(index, index_of(to), Letter { epoch, body });
            }
            Action::SendDelta { to, delta } => {
                let entry = pg.entry().expect("it takes part");
                let (epoch, primary) = (entry.epoch, entry.primary_osd().expect("it is led"));
                let is_reached = |to: &OsdId| match *to == primary {
                    true => self.links.contains_key(&(index_of(primary), index)),
                    false => self.links.contains_key(&(index, index_of(*to))),
                };
                if !to.iter().all(is_reached) {
                    let body = delta.to_primary();
                    return self.post(index, index_of(primary), Letter { epoch, body });
                }
                for to in to {
                    let body = delta.clone().to_member();
                    self.post(index, index_of(to), Letter { epoch, body });
                }
            }
            Action::Need(need) => {
                if let Need::Failed(member, why) = &need {
                    let is_contradiction = why.contains("parity was computed from");
                    assert!(!is_contradiction || self.may_contradict, "{member:?}: {why}");
                }
                let is_filled = matches!(need, Need::Complete(_));
                self.short_fill_count +=
                    usize::from(is_filled && *pg.serving() == Serving::Filling);
                let epoch = pg.entry().expect("it takes part").epoch;
                self.needs.push((epoch, need));
            }
            Action::Reply { ticket, outcome } => {
                let op = self.open.remove(&(index, ticket)).expect("answered once");
                self.trace(|_| format!("{index} answers {op}: {}", brief(&outcome)));
                self.history.end(op, outcome);
            }
            Action::Activated => {}
            Action::Scrub(event) => self.scrub_events.push((index, event)),
            Action::Absolved => panic!("nobody gave anything up"),
        }
    }

    fn post(&mut self, from: usize, to: usize, letter: Letter) {
        self.trace(|_| format!("{from} to {to} ({}): {}", letter.epoch, brief(&letter.body)));
        self.sent.push((from, to, letter.body.clone()));
        if let PeerBody::Write { mark, .. }
        | PeerBody::Part { mark, .. }
        | PeerBody::Parity { mark, .. }
        | PeerBody::Skip { mark, .. } = letter.body
        {
            self.check_mark(from, mark);
        }
        if let PeerBody::State(_) = letter.body {
            let lost = self.osds[from].store.undurable().next();
            assert_eq!(lost, None, "{from} states itself, and may lose it");
        }
        let pg = self.osds[from].pg.as_ref();
        let entry = pg.and_then(Pg::entry).expect("it takes part");
        let primary = entry.primary_osd();
        let is_straight = matches!(letter.body, PeerBody::ParityDelta { .. });
        let is_forward =
            primary == Some(osd_id(from)) || is_straight && primary != Some(osd_id(to));
        if let Some(link) = self.links.get_mut(&(from, to))
            && is_forward
        {
            link.to_member.push_back(letter);
        } else if let Some(link) = self.links.get_mut(&(to, from)) {
            link.to_primary.push_back(letter);
        }
    }

    /// Checks that no acting member can lose a version up to this mark.
    fn check_mark(&self, primary: usize, mark: base::Version) {
        let entry = self.osds[primary].pg.as_ref().and_then(|pg| pg.entry()).expect("it leads");
        for member in entry.acting() {
            let store = &self.osds[index_of(member.osd)].store;
            let lost = store.undurable().find(|version| *version <= mark);
            assert_eq!(lost, None, "{} may lose it, and the mark is {mark}", member.osd);
        }
    }

    /// Connections with a message in transit: (primary, member, to the member).
    pub fn mail(&self) -> Vec<(usize, usize, bool)> {
        let mut mail = Vec::new();
        for ((primary, member), link) in &self.links {
            if !link.to_member.is_empty() {
                mail.push((*primary, *member, true));
            }
            if !link.to_primary.is_empty() {
                mail.push((*primary, *member, false));
            }
        }
        mail
    }

    /// Delivers the next message of a connection. A message of a higher epoch waits for the map.
    pub fn deliver(&mut self, primary: usize, member: usize, is_to_member: bool) {
        let (from, to) = if is_to_member { (primary, member) } else { (member, primary) };
        let letter = self.queue(primary, member, is_to_member).front();
        let letter = letter.expect("there is something on it");
        let (epoch, is_query) = (letter.epoch, matches!(letter.body, PeerBody::Query { .. }));
        let entered = self.osds[to].pg.as_ref().and_then(|pg| pg.entry().map(|entry| entry.epoch));
        let newest = entered.unwrap_or(Epoch::ZERO).max(self.osds[to].seen);
        if epoch > newest {
            return self.learn(to);
        }
        if entered == Some(epoch) && is_query && self.has_granted(to, from, epoch) {
            return;
        }
        let letter = self.queue(primary, member, is_to_member).pop_front();
        let letter = letter.expect("there is something on it");
        if entered != Some(epoch) {
            return;
        }
        let mut verdict = Ok(());
        self.with(to, |pg, actions| verdict = pg.peer_said(osd_id(from), letter.body, actions));
        verdict.unwrap_or_else(|why| panic!("{from} to {to}: {why}"));
    }

    fn queue(
        &mut self,
        primary: usize,
        member: usize,
        is_to_member: bool,
    ) -> &mut VecDeque<Letter> {
        let link = self.links.get_mut(&(primary, member)).expect("there is a connection");
        if is_to_member { &mut link.to_member } else { &mut link.to_primary }
    }

    /// Returns whether a grant of an OSD to an earlier primary may still be valid.
    fn has_granted(&self, giver: usize, primary: usize, epoch: Epoch) -> bool {
        // A holder that acts on the new entry has said so, and one that lives learns of it at last.
        let acts_on_it = |holder: usize| {
            let entered =
                self.osds[holder].pg.as_ref().and_then(|pg| pg.entry()).map(|it| it.epoch);
            self.has_parity() && entered.max(Some(self.osds[holder].seen)) >= Some(epoch)
        };
        self.leases.iter().any(|((from, holder), granted)| {
            let is_other = *from == giver && *holder != primary;
            is_other && *granted < epoch && !acts_on_it(*holder)
        })
    }

    /// Returns the members that may answer direct reads: other members with data parts, which hold the grants
    /// of all others, learners too. Each with its position.
    pub fn readers(&self) -> Vec<(usize, u32)> {
        let reader = |index: usize| {
            let pg = self.osds[index].pg.as_ref()?;
            let entry = pg.entry()?;
            let position = entry.position_of(osd_id(index))?.index();
            let is_granted = |member: &Member| {
                let pair = (index_of(member.osd), index);
                pair.0 == index || self.leases.get(&pair) == Some(&entry.epoch)
            };
            let may_read = !leads(pg, index)
                && position < self.data_count()
                && entry.members().all(is_granted);
            may_read.then_some((index, position as u32))
        };
        let all = 0..self.osds.len();
        if self.has_parity() { all.filter_map(reader).collect() } else { Vec::new() }
    }

    /// Expires a grant.
    pub fn expire(&mut self, choice: usize) {
        let count = self.leases.len();
        if count > 0 {
            let pair = *self.leases.keys().nth(choice % count).unwrap();
            self.leases.remove(&pair);
        }
    }

    /// Lets members renew their grants to the primary whose epoch they are in.
    pub fn renew(&mut self) {
        let links: Vec<(usize, usize)> = self.links.keys().copied().collect();
        for (primary, member) in links {
            if self.osds[primary].pg.as_ref().is_none_or(|pg| !leads(pg, primary)) {
                continue;
            }
            let epoch = |index: usize| {
                self.osds[index].pg.as_ref().and_then(|pg| pg.entry().map(|entry| entry.epoch))
            };
            if let Some(epoch) = epoch(primary).filter(|found| epoch(member) == Some(*found)) {
                self.leases.insert((member, primary), epoch);
            }
        }
        if self.has_parity() {
            self.renew_for_reads();
        }
    }

    /// Lets members renew their grants to other members, which answer direct reads.
    fn renew_for_reads(&mut self) {
        let entered = |index: usize| self.osds[index].pg.as_ref().and_then(|pg| pg.entry());
        let count = self.osds.len();
        let pairs = (0..count).flat_map(|giver| (0..count).map(move |holder| (giver, holder)));
        let granted: Vec<_> = pairs
            .filter(|(giver, holder)| giver != holder && !self.cut.contains(&(*giver, *holder)))
            .filter_map(|(giver, holder)| {
                let (entry, held) = (entered(giver)?, entered(holder)?);
                let grants =
                    entry.epoch == held.epoch && !leads(self.osds[holder].pg.as_ref()?, holder);
                grants.then_some(((giver, holder), entry.epoch))
            })
            .collect();
        self.leases.extend(granted);
    }

    /// An OSD reads the map and acts on its newest entry.
    pub fn learn(&mut self, index: usize) {
        if !self.is_up(index) {
            return;
        }
        let entry = self.entry.clone();
        let me = self.member(index);
        let pg = self.osds[index].pg.as_ref().expect("it is up");
        if pg.entry().is_some_and(|entered| entered.epoch == entry.epoch) {
            return;
        }
        let takes_part = entry.members().any(|member| *member == me);
        if !takes_part || entry.epoch <= pg.epoch_floor() || entry.primary.is_none() {
            self.osds[index].seen = entry.epoch;
            return self.with(index, |pg, actions| pg.halt("no part".into(), actions));
        }
        let leads = entry.primary_osd() == Some(me.osd);
        if leads && self.has_granted(index, index, entry.epoch) {
            return self.with(index, |pg, actions| pg.halt("grants".into(), actions));
        }
        self.osds[index].seen = entry.epoch;
        let scheme = self.scheme;
        let first_lost = self.osds[index].store.first_lost();
        self.with(index, |pg, actions| pg.enter(entry, scheme, first_lost, actions));
        // Connections of earlier epochs stay open: their members are asked for their state again.
        let peers: Vec<usize> =
            self.links.keys().filter(|(primary, _)| *primary == index).map(|(_, to)| *to).collect();
        for peer in peers {
            self.with(index, |pg, actions| pg.peer_ready(osd_id(peer), actions));
        }
    }

    /// Returns how many learners are reported complete and not in the acting set yet.
    pub fn needs_complete(&self) -> usize {
        let now = self.entry.epoch;
        let mut complete: Vec<&Member> = (self.needs.iter())
            .filter_map(|(epoch, need)| match need {
                Need::Complete(member) if *epoch == now => Some(member),
                _ => None,
            })
            .collect();
        complete.sort_unstable();
        complete.dedup();
        complete.len()
    }

    /// The monitor checks what it sees, and makes the next entry if there is a reason.
    pub fn monitor(&mut self) {
        let now = self.entry.epoch;
        let needs: Vec<Need> =
            self.needs.drain(..).filter(|(epoch, _)| *epoch == now).map(|(_, need)| need).collect();
        let mut entry = self.entry.clone();
        let mut is_new = needs.contains(&Need::NewEpoch);
        if entry.positions.len() < self.copies {
            entry.positions.resize(self.copies, None);
            is_new = true;
        }
        // A restarted member stays in the set.
        let learning = entry.learners.iter_mut().map(|learner| &mut learner.member);
        for member in entry.positions.iter_mut().flatten().chain(learning) {
            let index = index_of(member.osd);
            let found = Member {
                osd: member.osd,
                incarnation: Incarnation::new(self.osds[index].incarnation),
            };
            if self.osds[index].pg.is_some() && *member != found {
                *member = found;
                is_new = true;
            }
        }
        let failed = |member: &Member| {
            needs
                .iter()
                .any(|need| matches!(need, Need::Failed(found, _) if found.osd == member.osd))
        };
        let returning = needs.iter().filter_map(|need| match need {
            Need::Return(member, position) => Some((*member, *position)),
            _ => None,
        });
        let returning: Vec<(Member, Position)> =
            returning.filter(|(member, _)| self.member(index_of(member.osd)) == *member).collect();
        let is_good = |member: &Member| {
            let osd = &self.osds[index_of(member.osd)];
            osd.pg.is_some() && !osd.store.now.is_suspect && !failed(member)
        };
        // Complete learners get positions, and lost members are removed, in one change.
        let is_whole = self.shape.face.is_whole_everywhere();
        let is_ready = |learner: &&Learner| needs.contains(&Need::Complete(learner.member));
        let mut ready: Vec<Learner> = entry.learners.iter().filter(is_ready).copied().collect();
        let good = entry.acting().filter(|member| is_good(member)).count();
        // A piece is useful only at its own position.
        let fits = |learner: &&Learner| {
            let member = entry.positions[learner.position.index()];
            is_whole || !member.is_some_and(|member| is_good(&member))
        };
        let joining = ready.iter().filter(fits).count().min(entry.positions.len() - good);
        if good < entry.acting_count() && good + joining >= self.minimum {
            for slot in &mut entry.positions {
                *slot = slot.filter(|member| is_good(member));
            }
            is_new = true;
        } else if entry.acting().any(failed) {
            is_new = true;
        }
        ready.retain(|learner| {
            let own = learner.position.index();
            let mut all = std::iter::once(own).chain(0..entry.positions.len());
            let open =
                all.find(|index| entry.positions[*index].is_none() && (is_whole || *index == own));
            if let Some(open) = open {
                entry.positions[open] = Some(learner.member);
                is_new = true;
            }
            open.is_none()
        });
        // A ready learner may also take the position of a member that is not in the plan, if all members are
        // good.
        let is_planned = |member: &Member| self.plan.contains(&index_of(member.osd));
        for (member, position) in returning {
            entry.positions[position.index()] = Some(member);
            is_new = true;
        }
        for learner in ready {
            let slot = &mut entry.positions[learner.position.index()];
            if good == self.copies && slot.is_some_and(|member| !is_planned(&member)) {
                *slot = Some(learner.member);
                is_new = true;
            }
        }
        for need in &needs {
            if let Need::CallBack(osd) = need {
                self.called_back.insert(index_of(*osd));
            }
        }
        if self.serves() {
            self.called_back.clear();
        }
        let called = self.called_back.iter().filter(|index| !self.plan.contains(index));
        let wanted: Vec<Member> = (self.plan.iter().chain(called).copied())
            .filter(|index| self.is_up(*index))
            .map(|index| self.member(index))
            .filter(|member| entry.position_of(member.osd).is_none() && !failed(member))
            .collect();
        let mut learners: Vec<Learner> = Vec::new();
        for member in wanted {
            let known = entry.learner(member.osd).map(|learner| learner.position);
            let is_free = |position: &Position| learners.iter().all(|it| it.position != *position);
            let urgency = |position: &Position| match entry.member_at(*position) {
                None => 0,
                Some(member) if !is_good(&member) => 1,
                Some(member) => 2 + u32::from(is_planned(&member)),
            };
            let all = Position::all().take(entry.positions.len()).filter(is_free);
            let position = all.min_by_key(|it| (urgency(it), known != Some(*it), *it));
            learners.extend(position.map(|position| Learner { member, position }));
        }
        is_new |= learners != entry.learners;
        entry.learners = learners;
        let is_up = |osd: &OsdId| {
            let member = self.member(index_of(*osd));
            entry.acting().any(|acting| *acting == member) && self.is_up(index_of(*osd))
        };
        let primary = entry.primary_osd().filter(is_up);
        let primary = primary.or_else(|| entry.acting().map(|member| member.osd).find(is_up));
        let primary = primary.and_then(|osd| entry.position_of(osd));
        is_new |= primary != entry.primary;
        entry.primary = primary;
        if is_new {
            entry.epoch = now.next();
            self.trace(|_| format!("{needs:?}: {}", brief(&entry)));
            self.entry = entry;
        }
    }

    /// Returns whether the PG is active in the newest epoch.
    fn serves(&self) -> bool {
        let is_it = |pg: &Pg| {
            *pg.serving() == Serving::Active
                && pg.entry().is_some_and(|entry| entry.epoch == self.entry.epoch)
        };
        self.osds.iter().filter_map(|osd| osd.pg.as_ref()).any(is_it)
    }

    /// Returns the OSD that serves: the primary, if it has all the grants that it needs.
    pub fn server(&self) -> Option<usize> {
        (0..self.osds.len()).find(|index| {
            let Some(pg) = &self.osds[*index].pg else { return false };
            let epoch = pg.entry().map(|entry| entry.epoch);
            let is_granted =
                |giver: &OsdId| self.leases.get(&(index_of(*giver), *index)).copied() == epoch;
            *pg.serving() == Serving::Active && pg.lease_givers().iter().all(is_granted)
        })
    }

    /// Returns all OSDs that believe they may serve.
    pub fn servers(&self) -> Vec<usize> {
        (0..self.osds.len())
            .filter(|index| {
                let Some(pg) = &self.osds[*index].pg else { return false };
                let epoch = pg.entry().map(|entry| entry.epoch);
                let is_granted =
                    |giver: &OsdId| self.leases.get(&(index_of(*giver), *index)).copied() == epoch;
                *pg.serving() == Serving::Active && pg.lease_givers().iter().all(is_granted)
            })
            .collect()
    }

    /// Begins an operation; returns its number.
    pub fn begin(&mut self, at: usize, op: Op, kind: Kind) -> usize {
        self.ticket_next += 1;
        let ticket = Ticket(self.ticket_next);
        let text = brief(&kind);
        let epoch = self.osds[at].pg.as_ref().and_then(|pg| pg.entry()).map(|entry| entry.epoch);
        let number = self.history.begin(kind, epoch.expect("it serves"));
        self.trace(|_| format!("{at} begins {number}: {text}"));
        self.open.insert((at, ticket), number);
        self.with(at, |pg, actions| pg.execute(ticket, SessionId::ZERO, op, actions));
        number
    }

    pub fn write(&mut self, at: usize, stripe: u32, first: u32, units: u32) -> usize {
        let values = self.history.fresh_values(units);
        let (checksums, data) = data_of(&values);
        let (place, lazy) = (place_in(1, stripe), self.is_lazy());
        let op = Op::Write { place, offset: first * UNIT, checksums, data, expected: None, lazy };
        self.begin(at, op, Kind::Write { stripe, first, values })
    }

    pub fn zero(&mut self, at: usize, stripe: u32, first: u32, units: u32) -> usize {
        let (offset, length) = (first * UNIT, units * UNIT);
        let lazy = self.is_lazy();
        let op = Op::Zero { place: place_in(1, stripe), offset, length, lazy };
        self.begin(at, op, Kind::Zero { stripe, first, units })
    }

    fn is_lazy(&mut self) -> bool {
        self.lazy_percent > 0 && self.random.below(100) < self.lazy_percent
    }

    pub fn sync(&mut self, at: usize) -> usize {
        self.begin(at, Op::Sync, Kind::Sync)
    }

    /// Begins a direct read of units of one part.
    pub fn read_part(&mut self, at: usize, stripe: u32, first: u32, units: u32) -> usize {
        let (offset, length) = (first * UNIT, units * UNIT);
        let op = Op::ReadPart { place: place_in(1, stripe), offset, length, parents: Vec::new() };
        self.begin(at, op, Kind::Read { stripe, first, units })
    }

    pub fn read(&mut self, at: usize, stripe: u32, first: u32, units: u32) -> usize {
        let (offset, length) = (first * UNIT, units * UNIT);
        let op = Op::Read { place: place_in(1, stripe), offset, length, parents: Vec::new() };
        self.begin(at, op, Kind::Read { stripe, first, units })
    }

    /// Delivers all answers that stores can give.
    pub fn stores_go_on(&mut self) {
        for index in 0..self.osds.len() {
            self.store_goes_on(index);
        }
    }

    /// Delivers all answers that one store can give.
    pub fn store_goes_on(&mut self, index: usize) {
        while self.is_up(index) {
            self.osds[index].store.write(64, 0);
            for entry in 0..64 {
                self.osds[index].store.write(64, entry);
                self.osds[index].store.advance(64, entry);
            }
            if self.osds[index].store.ready() == 0 {
                break;
            }
            let (call, result) = self.osds[index].store.take(0);
            self.with(index, |pg, actions| pg.store_done(call, result, actions));
        }
    }

    /// Delivers all messages in transit.
    pub fn deliver_all(&mut self) {
        for (primary, member, is_to_member) in self.mail() {
            if self.mail().contains(&(primary, member, is_to_member)) {
                self.deliver(primary, member, is_to_member);
            }
        }
    }

    /// Lets stores and messages make progress, and nothing else: no housekeeping, no new entry.
    pub fn exchange(&mut self) {
        self.stores_go_on();
        self.deliver_all();
    }

    /// Lets everything make progress without a fault until nothing happens any more.
    pub fn settle(&mut self) {
        // A lost difference is asked for in the second round.
        let rounds = if self.has_parity() { 3 } else { 1 };
        let mut quiet_rounds = 0;
        for _ in 0..2000 {
            let before = (self.sent.len(), self.entry.epoch);
            self.round();
            let is_quiet = before == (self.sent.len(), self.entry.epoch) && self.is_quiet();
            quiet_rounds = if is_quiet { quiet_rounds + 1 } else { 0 };
            if quiet_rounds == rounds {
                return;
            }
        }
        panic!("it does not come to rest: {:?}", self.entry);
    }

    /// Lets everything that can happen without a fault happen once.
    pub fn round(&mut self) {
        self.monitor();
        self.leases.clear();
        for index in 0..self.osds.len() {
            self.learn(index);
        }
        self.connect();
        self.renew();
        self.exchange();
        self.renew();
        for index in 0..self.osds.len() {
            self.keep_house(index);
        }
    }

    /// The periodic work of a node.
    pub fn keep_house(&mut self, index: usize) {
        if !self.is_up(index) {
            return;
        }
        let up: Vec<bool> = (0..self.osds.len()).map(|index| self.is_up(index)).collect();
        // If no write is lazy, lost members count as removed: data that only they may have is given up.
        let is_given_up = self.gives_up_lost && self.lazy_percent == 0;
        let how = if is_given_up { Absence::Gone } else { Absence::Down };
        let absence = |member: Member| match up[index_of(member.osd)] {
            true => Absence::Awaited,
            false => how,
        };
        let is_immediate = self.osds[index].store.is_immediate;
        self.with(index, |pg, actions| {
            pg.fill_meanwhile(absence, is_immediate, actions);
            pg.fill(2, actions);
            pg.raise_floor(actions);
            pg.ask_for_deltas(actions);
        });
    }

    /// Does a node's work for the scrub of a PG that it leads. `begins`: a scrub is due; true: a deep one.
    pub fn scrub_on(&mut self, index: usize, begins: Option<bool>, bytes: u64, repairs: bool) {
        if !self.is_up(index) {
            return;
        }
        self.day_time += 1;
        let now = self.day_time;
        self.with(index, |pg, actions| {
            pg.recall_scrubs(actions);
            if let Some(deep) = begins {
                pg.begin_scrub(deep, false, now, actions);
            }
            pg.scrub(bytes, repairs, now, actions);
        });
    }

    /// Replaces the note in the next message of a member to its primary, if the message has one.
    pub fn spoil_note(&mut self, primary: usize, member: usize, bytes: &[u8]) {
        let link = self.links.get_mut(&(primary, member));
        let letter = link.and_then(|link| link.to_primary.front_mut());
        if let Some(Letter { body: PeerBody::Recalled { note, .. }, .. }) = letter {
            *note = bytes.to_vec();
        }
    }

    /// Lets time pass while members read a key for a scrub, as a node does.
    pub fn limit_look(&mut self, index: usize, span: Duration) {
        self.now = self.now + span;
        let now = self.now;
        if self.is_up(index) {
            self.with(index, |pg, actions| pg.limit_look(now, actions));
        }
    }

    /// Runs a scrub to its end: the one that is under way if it has this depth, otherwise a new one.
    pub fn scrub_all(&mut self, deep: bool, repairs: bool) {
        let count = |world: &World| {
            let events = world.scrub_events.iter().map(|(_, event)| event);
            let ends = events.filter_map(|event| match event {
                ScrubEvent::Ended { deep, .. } => Some(*deep),
                _ => None,
            });
            ends.filter(|ended| *ended == deep).count()
        };
        let ended = count(self);
        for _ in 0..4000 {
            let at = self.server().expect("somebody serves");
            let note = self.osds[at].pg.as_ref().unwrap().scrub_note();
            let is_under_way = note.running.as_ref().is_some_and(|running| running.deep || !deep);
            self.scrub_on(at, Some(deep).filter(|_| !is_under_way), 1 << 20, repairs);
            self.round();
            if count(self) > ended {
                return self.settle();
            }
        }
        panic!("the scrub does not end");
    }

    /// Returns the note on scrubs that an OSD keeps.
    pub fn scrub_note(&self, index: usize) -> ScrubNote {
        self.osds[index].pg.as_ref().expect("it is up").scrub_note().clone()
    }

    fn is_quiet(&self) -> bool {
        self.mail().is_empty()
            && self.needs.is_empty()
            && self.osds.iter().all(|osd| osd.pg.is_none() || osd.store.is_idle())
    }

    /// Returns whether the acting members are those of the plan, and the PG is served.
    pub fn is_whole(&self) -> bool {
        let acting = self.entry.acting().map(|member| index_of(member.osd));
        let mut acting: Vec<usize> = acting.collect();
        acting.sort_unstable();
        let mut plan = self.plan.clone();
        plan.sort_unstable();
        acting == plan && self.entry.learners.is_empty() && self.server().is_some()
    }

    /// Returns the blocks of a member, with the tombstones that no floor has passed.
    pub fn blocks(&self, index: usize) -> BTreeMap<blockstore::BlockKey, Block> {
        let acting = self.entry.acting().map(|member| index_of(member.osd));
        let floor = acting.map(|index| self.osds[index].store.now.floor).max().unwrap_or_default();
        let blocks = self.osds[index].store.now.blocks.clone().into_iter();
        blocks.filter(|(_, block)| !block.is_tombstone || block.version > floor).collect()
    }

    /// The value of a unit, as the primary reads it.
    pub fn value(&mut self, stripe: u32, unit: u32) -> u32 {
        let at = self.server().expect("somebody serves");
        let number = self.read(at, stripe, unit, 1);
        self.settle();
        match self.history.outcome(number) {
            Some(Ok(Outcome::Read { data, .. })) => values_of(data, 1)[0],
            other => panic!("{other:?}"),
        }
    }
}

/// Returns the start of a value as text, without its data.
fn brief(what: &impl std::fmt::Debug) -> String {
    let mut text = format!("{what:?}");
    text.truncate(400);
    text
}

fn leads(pg: &Pg, index: usize) -> bool {
    pg.entry().is_some_and(|entry| entry.primary_osd() == Some(osd_id(index)))
}
