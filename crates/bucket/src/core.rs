//! What all requests share: sending, tasks that no client cancels, and how long a client waits.
//!
//! Invariants
//!   1. Nothing is sent for a client that was answered, is gone, or sent its last byte long ago.
//!   2. At most [`TASKS_MAX`] tasks are under way, and an eighth of them in one PG.
//!   3. At most as many reads wait for longer than [`READ_SLOW`]; an eighth of them in one PG, or for lists,
//!      which ask many. So a PG that is down does not hold all requests.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use objects::{Name, Operation, Read, ReadAnswer, Stat};

use crate::api::{ANSWER_WITHIN, Client, Settings};
use crate::containers::Containers;
use crate::door::{Door, DoorError, Executed};
use crate::failure::Failure;
use crate::names::{BucketId, IndexName, Key};
use crate::put::NewKeys;
use crate::sealer::Sealer;
use crate::users::Secrets;
use crate::views::Views;
use crate::waiting::{First, Turns, first_of, lock, result};

/// What every request returns.
pub type Result<T> = std::result::Result<T, Failure>;

/// The most tasks under way.
pub const TASKS_MAX: usize = 1000;
/// The most tasks under way in one PG.
pub const TASKS_OF_PG_MAX: usize = TASKS_MAX / 8;
/// A read that takes longer needs a place among the slow ones.
pub const READ_SLOW: Duration = Duration::from_secs(1);
/// While something is under way for a client, this often it is looked whether the client still waits.
const CLIENT_LOOKED_AT: Duration = Duration::from_millis(100);
/// The most bytes of a head, a bucket or a user that one look reads.
pub(crate) const DATA_SIZE_MAX: u32 = 32 << 10;
/// The most bytes of records in the answer of a look.
pub(crate) const RECORDS_SIZE_MAX: usize = 160 << 10;

/// What all requests share.
pub(crate) struct Core<D: Door> {
    pub(crate) door: Arc<D>,
    pub(crate) sealer: Sealer,
    pub(crate) settings: Settings,
    pub(crate) containers: Containers,
    pub(crate) views: Views,
    pub(crate) secrets: Secrets,
    pub(crate) new_keys: NewKeys,
    /// Writers of one key, after a conflict.
    pub(crate) turns: Turns<(BucketId, Key)>,
    tasks: Arc<Mutex<Tasks>>,
    slow_reads: Arc<Mutex<Tasks>>,
}

#[derive(Default)]
struct Tasks {
    count: usize,
    /// By PG. `None`: what asks many PGs.
    by_pg: BTreeMap<Option<u64>, usize>,
}

/// Counts a task while it lives.
struct Task {
    tasks: Arc<Mutex<Tasks>>,
    pg: Option<u64>,
}

/// Nothing more is sent for the client when this is dropped.
struct Waits<'a>(Option<&'a Client>);

impl<D: Door> Core<D> {
    pub(crate) fn new(door: Arc<D>, sealer: Sealer, settings: Settings) -> Core<D> {
        Core {
            door,
            sealer,
            settings,
            containers: Containers::default(),
            views: Views::default(),
            secrets: Secrets::default(),
            new_keys: NewKeys::default(),
            turns: Turns::default(),
            tasks: Arc::default(),
            slow_reads: Arc::default(),
        }
    }

    /// Returns how long ago this was, on the running clock.
    pub(crate) fn since(&self, running_us: u64) -> Duration {
        Duration::from_micros(self.door.running_us().saturating_sub(running_us))
    }

    /// Returns an id that nothing else has, and that sorts by the time: a stamp and random bits.
    pub(crate) fn new_uuid(&self) -> u128 {
        u128::from(self.door.wall_us()) << 64 | u128::from(self.door.random())
    }

    /// Returns the wall clock in milliseconds.
    pub(crate) fn wall_ms(&self) -> u64 {
        self.door.wall_us() / 1000
    }

    /// Sends an operation for a client. That it may not be sent is told as [`DoorError::Unavailable`]:
    /// nothing has happened, and nothing will. If the client goes away, or is answered, while it is under
    /// way,
    /// its outcome is unknown.
    pub(crate) async fn send(
        &self,
        client: &Client,
        operation: Operation,
    ) -> std::result::Result<Executed, DoorError> {
        if !client.may_send(self.door.running_us()) {
            return Err(DoorError::Unavailable { why: "the client waits no longer".into() });
        }
        // It may wait for its PG before it is sent. Dropped, it is not sent any more.
        let mut sent = pin!(self.door.execute(operation));
        loop {
            match first_of(sent.as_mut(), self.door.sleep(CLIENT_LOOKED_AT)).await {
                First::One(outcome) => return outcome,
                First::Other(()) if client.may_send(self.door.running_us()) => {}
                First::Other(()) => return Err(DoorError::Unknown),
            }
        }
    }

    /// Returns the data of an object, of which no more than [`DATA_SIZE_MAX`] is expected.
    pub(crate) async fn read(&self, name: &Name) -> Result<Option<(Stat, Vec<u8>)>> {
        let read = Read::Data { name: name.clone(), offset: 0, length: DATA_SIZE_MAX };
        let mut answers = self.door.look(vec![read]).await?.into_iter();
        match (answers.next(), answers.next()) {
            (Some(ReadAnswer::Data(found)), None) => Ok(found),
            _ => Err(not_asked()),
        }
    }

    /// Runs a task to its end, whatever becomes of the caller. `name` says in which PG.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        name: &Name,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = begin_task(&self.tasks, Some(self.door.pg_of(name)))?;
        let (giver, taker) = result();
        self.door.spawn(async move {
            let value = work.await;
            drop(task);
            giver.give(value);
        });
        let gone = || Err(Failure::Unavailable { why: "the gateway stops".into() });
        taker.take().await.unwrap_or_else(gone)
    }

    /// Waits for an answer for a client, but not for ever. Then, or if the caller goes away, nothing more is
    /// sent for the client.
    pub(crate) async fn answer<T>(
        &self,
        client: &Client,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut waits = Waits(Some(client));
        match first_of(work, self.door.sleep(ANSWER_WITHIN)).await {
            First::One(answer) => {
                waits.0 = None;
                answer
            }
            First::Other(()) => Err(Failure::Unavailable { why: "the cluster is slow".into() }),
        }
    }

    /// Waits for the answer to a read, but not for ever. `name` says in which PG; `None`: in many.
    pub(crate) async fn read_within<T>(
        &self,
        name: Option<&Name>,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let limited = async {
            let mut work = pin!(work);
            match first_of(work.as_mut(), self.door.sleep(READ_SLOW)).await {
                First::One(answer) => answer,
                First::Other(()) => {
                    let pg = name.map(|name| self.door.pg_of(name));
                    let _task = begin_task(&self.slow_reads, pg)?;
                    work.await
                }
            }
        };
        self.answer(&Client::new(), limited).await
    }
}

/// Counts one more, if there may be more.
fn begin_task(tasks: &Arc<Mutex<Tasks>>, pg: Option<u64>) -> Result<Task> {
    let mut counts = lock(tasks);
    let of_pg = counts.by_pg.get(&pg).copied().unwrap_or(0);
    if counts.count >= TASKS_MAX || of_pg >= TASKS_OF_PG_MAX {
        return Err(Failure::Unavailable { why: "too many requests wait for the cluster".into() });
    }
    counts.count += 1;
    counts.by_pg.insert(pg, of_pg + 1);
    Ok(Task { tasks: tasks.clone(), pg })
}

impl Drop for Task {
    fn drop(&mut self) {
        let mut tasks = lock(&self.tasks);
        tasks.count -= 1;
        if let Some(count) = tasks.by_pg.get_mut(&self.pg) {
            *count -= 1;
            if *count == 0 {
                tasks.by_pg.remove(&self.pg);
            }
        }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(client) = self.0 {
            client.is_done_with();
        }
    }
}

/// Returns the object of a name. The error: no object can have it.
pub(crate) fn encode(name: &IndexName) -> Result<Name> {
    name.encode().ok_or_else(|| Failure::Invalid { why: "a name is empty or too long".into() })
}

/// The answer is none to what was asked.
pub(crate) fn not_asked() -> Failure {
    Failure::Damaged { what: "the answer does not fit the request".into() }
}

impl From<DoorError> for Failure {
    fn from(error: DoorError) -> Failure {
        match error {
            // Who asserts something judges this itself.
            DoorError::Asserted { .. } => Failure::Conflict,
            DoorError::Invalid { why } => Failure::Invalid { why },
            DoorError::Full => Failure::Full,
            DoorError::Damaged => Failure::Damaged { what: "no good copy is left".into() },
            DoorError::Gone => Failure::Damaged { what: "a container is gone".into() },
            DoorError::Unavailable { why } => Failure::Unavailable { why },
            DoorError::Unknown => Failure::Unavailable { why: "the outcome is unknown".into() },
        }
    }
}
