//! What the logic of buckets asks of the cluster, by the client library.
//!
//! Invariants
//!   1. An operation is sent once. If the session ended before it was answered, its outcome is unknown.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base::hash::pg_of_hash;
use bucket::{ContainerId, Door, DoorError, Executed, Layout, ListQuery, Piece, Session};
use bytes::Bytes;
use client::objects::{Listed, ObjectError, ObjectPool, Operation, Page};
use client::{Client, Config};
use cluster::message::Failure;
use objects::{Name, NameHash, Read, ReadAnswer};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::clock;
use crate::containers::Containers;

/// What is not sent by then is never sent.
const REQUEST_TIME: Duration = Duration::from_secs(30);
/// For so long a pool is waited for.
const OPEN_TIME: Duration = Duration::from_secs(25);
/// How often a read is sent again over a new session.
const SESSIONS_MAX: u32 = 3;

/// An index pool of a cluster, and containers beside it.
pub struct ClusterDoor {
    client: Client,
    pool: String,
    runtime: Handle,
    /// The number of the pool's PGs, once it was opened; 0: not yet.
    pg_count: AtomicU32,
    /// The open pool, and how many were opened before it.
    open: tokio::sync::Mutex<(u64, Option<ObjectPool>)>,
    containers: Arc<Containers>,
}

impl ClusterDoor {
    /// Knows the pool, which is opened at the first request.
    ///
    /// Errors: `io_uring` (it does not work on this system).
    pub fn new(config: &Config, pool: String, runtime: Handle) -> Result<ClusterDoor, Failure> {
        let client = Client::start(config)?;
        let (pg_count, open) = (AtomicU32::new(0), tokio::sync::Mutex::new((0, None)));
        let containers = Containers::new(config, &runtime);
        Ok(ClusterDoor { client, pool, runtime, pg_count, open, containers })
    }

    /// Returns the open pool, and its number.
    async fn pool(&self) -> Result<(u64, ObjectPool), DoorError> {
        let opened = timeout(OPEN_TIME, async {
            let mut open = self.open.lock().await;
            if let (number, Some(pool)) = &*open {
                return Ok((*number, pool.clone()));
            }
            let pool = self.client.open_pool(&self.pool).await?.within(REQUEST_TIME);
            if !pool.has_grouped_names() {
                return Err(not_grouped(&self.pool));
            }
            self.pg_count.store(pool.pool().pg_count, Ordering::Relaxed);
            *open = (open.0 + 1, Some(pool.clone()));
            Ok((open.0, pool))
        });
        let unavailable = |why: String| DoorError::Unavailable { why };
        match opened.await {
            Ok(Ok(pool)) => Ok(pool),
            Ok(Err(failure)) => {
                Err(unavailable(format!("pool {}: {}", self.pool, failure.message)))
            }
            Err(_) => Err(unavailable(format!("no monitor opens pool {}", self.pool))),
        }
    }

    /// Carries out an operation over the session of this pool.
    async fn execute_in(
        &self,
        (number, pool): (u64, ObjectPool),
        operation: &Operation,
    ) -> Result<Executed, DoorError> {
        match pool.execute(operation).await {
            Ok(done) => Ok(Executed { version: done.version, results: done.results }),
            Err(error) => {
                if error == ObjectError::Ended {
                    self.forget(number).await;
                }
                Err(error_of(error))
            }
        }
    }

    /// The session of this pool is over: the next request opens it anew.
    async fn forget(&self, number: u64) {
        let mut open = self.open.lock().await;
        if open.0 == number {
            open.1 = None;
        }
    }
}

fn session_of(pool: &ObjectPool) -> Session {
    Session(pool.session().get())
}

/// A list would ask for keys at the wrong places.
fn not_grouped(pool: &str) -> Failure {
    Failure {
        code: "invalid".into(),
        message: format!("the names of pool {pool} are not grouped"),
        hint: "create the index of a gateway with: ashlar pool create NAME --kind object \
               --grouped --shards 4096"
            .into(),
    }
}

/// Returns what a failed request means. `Ended` is handled before.
fn error_of(error: ObjectError) -> DoorError {
    match error {
        ObjectError::Asserted { object, step, version } => {
            DoorError::Asserted { object, step, version }
        }
        ObjectError::Invalid { why } => DoorError::Invalid { why },
        ObjectError::Full => DoorError::Full,
        ObjectError::Damaged => DoorError::Damaged,
        ObjectError::Unavailable { why } => DoorError::Unavailable { why },
        ObjectError::Ended | ObjectError::Unknown => DoorError::Unknown,
        ObjectError::Absent | ObjectError::Changed => DoorError::Invalid { why: error.to_string() },
    }
}

/// Returns what a failed read means: it has changed nothing.
fn read_error_of(error: ObjectError) -> DoorError {
    match error {
        ObjectError::Unknown | ObjectError::Ended => {
            DoorError::Unavailable { why: error.to_string() }
        }
        error => error_of(error),
    }
}

impl Door for ClusterDoor {
    async fn look(&self, reads: Vec<Read>) -> Result<Vec<ReadAnswer>, DoorError> {
        let mut sessions = 0;
        loop {
            let (number, pool) = self.pool().await?;
            sessions += 1;
            match pool.look(reads.clone()).await {
                Err(ObjectError::Ended) if sessions < SESSIONS_MAX => self.forget(number).await,
                Err(error) => return Err(read_error_of(error)),
                Ok(answers) => return Ok(answers),
            }
        }
    }

    async fn execute(&self, operation: Operation) -> Result<Executed, DoorError> {
        let open = self.pool().await?;
        self.execute_in(open, &operation).await
    }

    async fn list(&self, query: ListQuery) -> Result<Page<Listed>, DoorError> {
        let mut sessions = 0;
        loop {
            let (number, pool) = self.pool().await?;
            sessions += 1;
            let ListQuery { shards, listing, skip, with_data } = &query;
            let listed = match shards.names() {
                Some(names) => {
                    let shards = names.iter().map(|name| pool.shard_of(name));
                    pool.list_shards(shards, listing, *with_data, *skip).await
                }
                None => pool.list(listing, *with_data).await,
            };
            match listed {
                Err(ObjectError::Ended) if sessions < SESSIONS_MAX => self.forget(number).await,
                Err(error) => return Err(read_error_of(error)),
                Ok(page) => return Ok(page),
            }
        }
    }

    async fn session(&self) -> Result<Session, DoorError> {
        let (_, pool) = self.pool().await?;
        Ok(session_of(&pool))
    }

    async fn execute_over(
        &self,
        session: Session,
        operation: Operation,
    ) -> Result<Executed, DoorError> {
        let open = self.pool().await?;
        if session_of(&open.1) != session {
            let why = format!("the session with pool {} is over", self.pool);
            return Err(DoorError::Unavailable { why });
        }
        self.execute_in(open, &operation).await
    }

    async fn layout(&self, data_pool: &str) -> Result<Layout, DoorError> {
        self.containers.layout(data_pool).await
    }

    async fn create_container(
        &self,
        data_pool: &str,
        container: ContainerId,
    ) -> Result<(), DoorError> {
        self.containers.create(data_pool, container).await
    }

    async fn write(
        &self,
        container: ContainerId,
        offset: u64,
        data: Bytes,
    ) -> Result<(), DoorError> {
        self.containers.write(container, offset, data).await
    }

    async fn read(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, DoorError> {
        self.containers.read(container, offset, length).await
    }

    async fn trim(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> Result<(), DoorError> {
        self.containers.trim(container, offset, length).await
    }

    fn pg_of(&self, name: &Name) -> u64 {
        match self.pg_count.load(Ordering::Relaxed) {
            0 => 0,
            count => pg_of_hash(name.hash(NameHash::Grouped), count).into(),
        }
    }

    fn wall_us(&self) -> u64 {
        clock::wall_us()
    }

    fn running_us(&self) -> u64 {
        clock::running_us()
    }

    fn random(&self) -> u64 {
        u64::from_le_bytes(io::random_bytes())
    }

    async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_whose_session_ended_is_unknown_and_a_read_is_not() {
        assert_eq!(error_of(ObjectError::Ended), DoorError::Unknown);
        assert!(matches!(read_error_of(ObjectError::Ended), DoorError::Unavailable { .. }));
        assert!(matches!(read_error_of(ObjectError::Unknown), DoorError::Unavailable { .. }));
        assert_eq!(read_error_of(ObjectError::Full), DoorError::Full);
    }
}
