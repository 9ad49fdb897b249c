//! The users of an object pool: each client opens it, changes and reads objects beside its volumes, and closes
//! it now and then. `object_history.rs` judges what they are answered.

pub mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use base::{Duration, PgId, SessionId, Time};
use cluster::message::Failure;
use format::engine::{Change, EngineEffect};
use format::wire::{Op, Request};
use objects::{Key, Kind, Look, NameQuery, Operation, Repeat, Shard, decode_answers, decode_pages};
use volume::{Answer, Attached, Event, Place, RequestId, Used, VolumeError, VolumeHandle};

use super::agenda::Item;
use super::object_history::ObjectHistory;
use super::object_plan::{
    OBJECT_POOL, ObjectPlan, any_look, any_operation, any_query, names, whole,
};
use super::world::World;
use crate::random::{Chance, Random};
use crate::register::Moment;

/// The object pool of a run.
pub struct ObjectPool {
    pub(super) plan: ObjectPlan,
    pub(super) history: ObjectHistory,
    random: Random,
    users: Vec<User>,
    request_count: u64,
    pub(super) stage: PoolStage,
    /// Until then changes may be refused, since the file system of an engine had no space.
    pub(super) engines_full_until: Time,
}

/// Whether the pool is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum PoolStage {
    Planned,
    Asked,
    There,
    Gone,
}

/// What a client does with the object pool.
#[derive(Default)]
struct User {
    pool: Option<(VolumeHandle, UserStage)>,
    /// Requests without an answer.
    open: BTreeMap<RequestId, Asked>,
}

/// A request.
struct Asked {
    of: AskedOf,
    /// Whether it has a deadline: others are never given up.
    has_deadline: bool,
}

/// What was asked, by its number in the history.
enum AskedOf {
    /// A change, or a look at one PG.
    One(usize),
    /// A list of the whole pool: the looks at each PG.
    List(Vec<usize>),
}

/// How far a client has come with the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UserStage {
    Opening,
    Open(SessionId),
    Closing,
}

impl Asked {
    fn into_numbers(self) -> Vec<usize> {
        match self.of {
            AskedOf::One(number) => vec![number],
            AskedOf::List(numbers) => numbers,
        }
    }
}

impl ObjectPool {
    /// Returns the pool before it is created.
    pub fn new(seed: u64, plan: ObjectPlan, client_count: usize) -> ObjectPool {
        ObjectPool {
            history: ObjectHistory::new(plan.pg_count, plan.shard_count),
            random: Random::new(seed, "object work"),
            users: (0..client_count).map(|_| User::default()).collect(),
            request_count: 0,
            stage: PoolStage::Planned,
            engines_full_until: Time::ZERO,
            plan,
        }
    }

    /// Returns whether a client waits for an answer.
    pub fn is_asked(&self) -> bool {
        self.users.iter().any(|user| !user.open.is_empty())
    }

    fn is_open(&self) -> bool {
        self.users.iter().any(|user| user.pool.is_some())
    }
}

impl World {
    /// Lets users of the object pool of this client begin to work, if the run has one.
    pub(super) fn object_user_starts(&mut self, client: usize) {
        if self.objects.is_some() {
            self.schedule(Duration::from_millis(1), Item::ObjectTurn(client));
        }
    }

    /// Forgets what a client that died waited for: it may be carried out or not.
    pub(super) fn object_user_died(&mut self, client: usize) {
        let to = self.objects.is_some().then(|| self.moment());
        let (Some(pool), Some(to)) = (&mut self.objects, to) else { return };
        let user = std::mem::take(&mut pool.users[client]);
        for number in user.open.into_values().flat_map(Asked::into_numbers) {
            pool.history.given_up(number, to);
        }
    }

    /// Runs a turn of the pool's users at a client.
    pub(super) fn object_turn(&mut self, client: usize) -> Result<(), String> {
        if !self.stage_is_work() || self.clients[client].core.is_none() {
            return Ok(());
        }
        let Some(pool) = &mut self.objects else { return Ok(()) };
        let after = Duration::from_nanos(1 + pool.random.below(pool.plan.think * 2));
        let pause = pool.random.chance(Chance::percent(1));
        let draw = pool.random.below(1000);
        let is_enough = pool.request_count >= pool.plan.request_count_max;
        let user = &pool.users[client];
        let (stage, depth) = (user.pool, user.open.len());
        let may_ask = depth < pool.plan.depth_max && !is_enough;
        let is_there = pool.stage == PoolStage::There;
        let after = if pause || is_enough { Duration::from_millis(500) } else { after };
        self.schedule(after, Item::ObjectTurn(client));
        match stage {
            None if is_there => self.open_objects(client),
            Some((handle, UserStage::Open(_))) if draw < 5 => self.close_objects(client, handle),
            Some((handle, UserStage::Open(session))) if may_ask => {
                self.ask_objects(client, handle, session, draw >= 350)
            }
            _ => Ok(()),
        }
    }

    fn open_objects(&mut self, client: usize) -> Result<(), String> {
        let handle = VolumeHandle(self.clients[client].next_name());
        let pool = self.objects.as_mut().expect("its users work");
        pool.users[client].pool = Some((handle, UserStage::Opening));
        self.apply_client(client, Event::OpenPool { pool: handle, name: OBJECT_POOL.to_string() })
    }

    fn close_objects(&mut self, client: usize, handle: VolumeHandle) -> Result<(), String> {
        let pool = self.objects.as_mut().expect("its users work");
        pool.users[client].pool = Some((handle, UserStage::Closing));
        self.apply_client(client, Event::Close { volume: handle, patient: false })
    }

    fn ask_objects(
        &mut self,
        client: usize,
        handle: VolumeHandle,
        session: SessionId,
        changes: bool,
    ) -> Result<(), String> {
        let pool = self.objects.as_mut().expect("its users work");
        pool.request_count += 1;
        if changes {
            let operation = any_operation(&mut pool.random, &pool.history);
            return self.ask_change(client, handle, session, operation);
        }
        if pool.random.chance(Chance::percent(5)) {
            let query = any_query(&mut pool.random);
            return self.ask_list(client, (handle, session), query);
        }
        let (pg, look) = any_look(&mut pool.random, &pool.history);
        self.ask_look(client, (handle, session), pg, look)
    }

    /// Counts and traces a request of this kind. Returns its name, and when it begins.
    fn begin_request(
        &mut self,
        client: usize,
        kind: &'static str,
        what: &impl Debug,
    ) -> (RequestId, Moment) {
        self.tally.operations.add(kind, 1);
        let (id, from) = (RequestId(self.clients[client].next_name()), self.moment());
        self.trace
            .line(format_args!("{:?} client{client} asks {id:?} of objects: {what:?}", self.now));
        (id, from)
    }

    fn ask_change(
        &mut self,
        client: usize,
        handle: VolumeHandle,
        session: SessionId,
        operation: Operation,
    ) -> Result<(), String> {
        let (id, from) = self.begin_request(client, "object change", &operation);
        let pool = self.objects.as_mut().expect("its users work");
        let hash = operation.objects[0].name.hash(objects::NameHash::Plain);
        let (number, bytes) = pool.history.ask_change(session, operation, from);
        let operation = volume::Operation::Mutate { hash, operation: bytes };
        self.request_objects(client, handle, id, AskedOf::One(number), operation)
    }

    fn ask_look(
        &mut self,
        client: usize,
        (handle, session): (VolumeHandle, SessionId),
        pg: u32,
        look: Look,
    ) -> Result<(), String> {
        let (id, from) = self.begin_request(client, "object read", &look);
        let at = match look.names().first() {
            Some(name) => Place::Hash(name.hash(objects::NameHash::Plain)),
            None => Place::Pg(pg),
        };
        let (reads, answers_size_max) = (look.encode(), look.answers_size_max() as u64);
        let pool = self.objects.as_mut().expect("its users work");
        let number = pool.history.ask_look(session, pg, look, from);
        let operation = volume::Operation::Look { at, reads, answers_size_max };
        self.request_objects(client, handle, id, AskedOf::One(number), operation)
    }

    fn ask_list(
        &mut self,
        client: usize,
        (handle, session): (VolumeHandle, SessionId),
        query: NameQuery,
    ) -> Result<(), String> {
        let (id, from) = self.begin_request(client, "object list", &query);
        let pool = self.objects.as_mut().expect("its users work");
        let looks = (0..pool.plan.pg_count).map(|pg| {
            let look = query.look(pool.history.shards_of(pg));
            pool.history.ask_look(session, pg, look, from)
        });
        let looks = looks.collect();
        let operation = volume::Operation::List {
            names: query.encode(),
            page_size_max: query.answer_size_max() as u64,
            pgs_max: pool.random.range(1..query.pgs_max() as u64 + 1) as usize,
        };
        self.request_objects(client, handle, id, AskedOf::List(looks), operation)
    }

    fn request_objects(
        &mut self,
        client: usize,
        handle: VolumeHandle,
        id: RequestId,
        of: AskedOf,
        operation: volume::Operation,
    ) -> Result<(), String> {
        let deadline = self.draw_deadline(client);
        let asked = Asked { of, has_deadline: deadline.is_some() };
        let pool = self.objects.as_mut().expect("its users work");
        pool.users[client].open.insert(id, asked);
        self.apply_client(client, Event::Request { id, volume: handle, operation, deadline })
    }

    /// Handles the answer to the opening of a pool. Returns whether it was the object pool.
    pub(super) fn objects_opened(
        &mut self,
        client: usize,
        handle: VolumeHandle,
        result: &Result<Attached, Failure>,
    ) -> Result<bool, String> {
        let Some(pool) = &mut self.objects else { return Ok(false) };
        let user = &mut pool.users[client];
        let Some((_, stage)) = user.pool.filter(|(own, _)| *own == handle) else {
            return Ok(false);
        };
        match result {
            Ok(attached) if stage == UserStage::Opening => {
                let Used::Pool(of) = &attached.used else {
                    return Err(format!("a volume was opened as a pool: {attached:?}"));
                };
                if of.name != OBJECT_POOL {
                    return Err(format!("{OBJECT_POOL} was opened as {}", of.name));
                }
                user.pool = Some((handle, UserStage::Open(attached.session)));
            }
            Ok(_) => {}
            Err(failure) => {
                user.pool = None;
                if failure.code == "not_found" && pool.stage == PoolStage::There {
                    return Err(format!("an object pool is not found that is there: {failure:?}"));
                }
            }
        }
        Ok(true)
    }

    /// Handles the end of a session with the object pool. Returns whether it was one.
    pub(super) fn objects_closed(&mut self, client: usize, handle: VolumeHandle) -> bool {
        let Some(pool) = &mut self.objects else { return false };
        let user = &mut pool.users[client];
        let is_own = user.pool.is_some_and(|(own, _)| own == handle);
        if is_own {
            user.pool = None;
        }
        is_own
    }

    /// Handles the answer to a request, if it was one of objects.
    pub(super) fn objects_answered(
        &mut self,
        client: usize,
        id: RequestId,
        result: &Result<Answer, VolumeError>,
    ) -> Result<bool, String> {
        let Some(pool) = &mut self.objects else { return Ok(false) };
        let Some(asked) = pool.users[client].open.remove(&id) else { return Ok(false) };
        self.trace.line(format_args!(
            "{:?} client{client} {id:?}: {:?}",
            self.now,
            told(result.as_ref())
        ));
        let to = self.moment();
        match result {
            Err(VolumeError::Full) if self.plan.may_fill() || self.is_engine_full() => {
                self.tally.faults.add("pool full", 1);
            }
            Err(VolumeError::Full) => return Err("an object pool is full that has room".into()),
            Err(VolumeError::Unknown) if asked.has_deadline => {
                self.tally.faults.add("operation given up by its client", 1);
            }
            Err(VolumeError::Unavailable { .. }) if asked.has_deadline => {
                self.tally.faults.add("operation given up before it could happen", 1);
            }
            Err(VolumeError::Unknown | VolumeError::Unavailable { .. }) => {
                return Err("an operation on objects was given up that had no deadline".into());
            }
            Err(VolumeError::Ended) => {
                self.tally.faults.add("session ended", 1);
                let pool = self.objects.as_mut().expect("it was asked");
                if let Some((handle, UserStage::Open(_))) = pool.users[client].pool {
                    pool.users[client].pool = Some((handle, UserStage::Closing));
                    // It is closed later, not while this result is being handled.
                    self.due.to_close.push((client, handle));
                }
            }
            _ => {}
        }
        let history = &mut self.objects.as_mut().expect("it was asked").history;
        match asked.of {
            AskedOf::One(number) => history.answered(number, result.clone(), to)?,
            AskedOf::List(looks) => {
                let refused = history.listed(&looks, result, to)?;
                self.tally.faults.add("PG left out of a list", refused as u64);
            }
        }
        Ok(true)
    }

    /// Records that a client sends an operation on objects.
    pub(super) fn note_mutation(&mut self, request: &Request) -> Result<(), String> {
        let (Some(pool), Op::Mutate { number, operation, .. }) = (&mut self.objects, &request.op)
        else {
            return Ok(());
        };
        let bytes = operation.bytes().ok_or("a client sends an operation that is damaged")?;
        let is_again = pool.history.sent(request.session, *number, bytes)?;
        self.tally.operations.add("object change sent again", is_again.into());
        Ok(())
    }

    /// Records the operations whose repeats enter the engine of an OSD, and what their epochs adopted.
    pub(super) fn note_executed(
        &mut self,
        index: usize,
        effect: &EngineEffect,
    ) -> Result<(), String> {
        let (Some(pool), EngineEffect::Write { family, changes, .. }) = (&mut self.objects, effect)
        else {
            return Ok(());
        };
        let mut numbers = BTreeSet::new();
        for change in changes.iter() {
            let (Change::Put { key, .. } | Change::Delete { key }) = change else {
                continue;
            };
            numbers.insert(pool.history.pg_of_shard(Shard::of_key(key)));
            let Change::Put { key, value } = change else { continue };
            let Some(Key { shard, kind: Kind::Repeat { session, number } }) = Key::decode(key)
            else {
                continue;
            };
            let repeat = Repeat::decode(value).ok_or("a repeat cannot be decoded")?;
            pool.history.executed(shard, (session, number), repeat)?;
        }
        // Housekeeping gives versions, too.
        for number in numbers {
            let pg = PgId { pool: *family, number };
            let activation = self.osds[index].node.as_ref().and_then(|node| node.activation(pg));
            if let Some(activation) = activation {
                self.watch.adopts(pg, activation.epoch, activation.adopted)?;
            }
        }
        Ok(())
    }

    /// Closes the object pool at all clients.
    pub(super) fn close_all_objects(&mut self) -> Result<(), String> {
        for client in 0..self.clients.len() {
            let Some(pool) = &self.objects else { return Ok(()) };
            if let Some((handle, UserStage::Open(_) | UserStage::Opening)) = pool.users[client].pool
            {
                self.close_objects(client, handle)?;
            }
        }
        self.wait("an object pool is never closed", |world| {
            world.objects.as_ref().is_none_or(|pool| !pool.is_open())
        })
    }

    /// Reads all objects through the first client. If nothing is under way, counters are what was added.
    pub(super) fn read_all_objects(&mut self) -> Result<(), String> {
        let is_there = |pool: &ObjectPool| pool.stage == PoolStage::There;
        if !self.objects.as_ref().is_some_and(is_there) {
            return Ok(());
        }
        self.open_objects(0)?;
        self.wait("an object pool is never opened", |world| {
            let pool = world.objects.as_ref().expect("as before");
            !matches!(pool.users[0].pool, Some((_, UserStage::Opening)))
        })?;
        let pool = self.objects.as_ref().expect("as before");
        let Some((handle, UserStage::Open(session))) = pool.users[0].pool else {
            return Err("an object pool cannot be opened".into());
        };
        for name in names() {
            let pg = self.objects.as_ref().expect("as before").history.pg_of(&name);
            self.ask_look(0, (handle, session), pg, whole(&name))?;
        }
        self.wait("a read of objects is never answered", |world| {
            world.objects.as_ref().is_none_or(|pool| !pool.is_asked())
        })?;
        self.close_all_objects()
    }

    /// Checks all that is known of the object pool. Requires: nothing is under way.
    pub(super) fn judge_objects(&self) -> Result<(), String> {
        let Some(pool) = &self.objects else { return Ok(()) };
        pool.history.judge(|pg, version| self.watch.is_kept(pg, version))
    }
}

/// Returns what an answer says, for the trace.
fn told(result: Result<&Answer, &VolumeError>) -> String {
    let text = match result {
        Ok(Answer::Looked(bytes)) => format!("{:?}", decode_answers(&bytes.clone().into())),
        Ok(Answer::Listed { pages, refused }) => {
            let pages = pages.iter().map(|bytes| decode_pages(&bytes.clone().into()));
            format!("{refused:?} {:?}", pages.collect::<Vec<_>>())
        }
        result => return format!("{result:?}"),
    };
    text.chars().take(400).collect()
}
