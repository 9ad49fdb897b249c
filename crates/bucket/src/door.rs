//! What the logic of buckets asks of the world. The gateway implements it with the client library; the simulator
//! implements it with a cluster of its own, and may let any time pass between two calls.
//!
//! Invariants
//!   1. An operation that was sent happens at most once, also if its outcome is unknown: it is never sent again.
//!   2. A look at the objects of an operation whose outcome is unknown waits until the operation has happened, or
//!      never will: what the look shows is final.
//!   3. Data that was written is durable once [`Door::write`] returns. A trim empties what it covers of a stripe
//!      at once, and a read of a part of one stripe shows it at one moment.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use base::Version;
use bytes::Bytes;
use objects::{Name, Operation, Read, ReadAnswer, StepResult};

use crate::names::Shards;

/// The index pool, containers, the clock and random numbers.
///
/// All objects of an operation, and all reads of a look, are in one placement group: names with the same
/// group and locator always are.
pub trait Door: Send + Sync + 'static {
    /// Reads objects, all at one moment.
    fn look(
        &self,
        reads: Vec<Read>,
    ) -> impl Future<Output = Result<Vec<ReadAnswer>, DoorError>> + Send;

    /// Carries out an operation: all of it, durably, or nothing.
    fn execute(
        &self,
        operation: Operation,
    ) -> impl Future<Output = Result<Executed, DoorError>> + Send;

    /// Returns a page of names in the order of their bytes, of all shards that `query` names, merged.
    fn list(
        &self,
        query: ListQuery,
    ) -> impl Future<Output = Result<objects::Page<objects::Listed>, DoorError>> + Send;

    /// Returns the session of the index pool over which operations are sent now.
    fn session(&self) -> impl Future<Output = Result<Session, DoorError>> + Send;

    /// As [`Door::execute`], but over this session alone: it is *unavailable* if that session is over.
    fn execute_over(
        &self,
        session: Session,
        operation: Operation,
    ) -> impl Future<Output = Result<Executed, DoorError>> + Send;

    /// Returns how data lies in the containers of a data pool.
    fn layout(&self, data_pool: &str) -> impl Future<Output = Result<Layout, DoorError>> + Send;

    /// Creates a container: an empty hidden volume of [`Layout::container_size`] bytes.
    fn create_container(
        &self,
        data_pool: &str,
        container: ContainerId,
    ) -> impl Future<Output = Result<(), DoorError>> + Send;

    /// Writes whole units into a container.
    fn write(
        &self,
        container: ContainerId,
        offset: u64,
        data: Bytes,
    ) -> impl Future<Output = Result<(), DoorError>> + Send;

    /// Reads whole units of a container. Each stripe is read at one moment; neighbours may be told as one.
    fn read(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = Result<Vec<Piece>, DoorError>> + Send;

    /// Gives whole units of a container back. It may be asked for twice.
    fn trim(
        &self,
        container: ContainerId,
        offset: u64,
        length: u64,
    ) -> impl Future<Output = Result<(), DoorError>> + Send;

    /// Returns which PG has an object, for limits alone: a PG that is down must not stop all others.
    fn pg_of(&self, name: &Name) -> u64 {
        u64::from(crate::names::ring_position(name.bytes()) >> 4)
    }

    /// Returns the wall clock: microseconds since 1970. It may be wrong: nothing depends on it for safety.
    fn wall_us(&self) -> u64;

    /// Returns a clock that only runs forward, also while the machine sleeps: microseconds since some moment.
    fn running_us(&self) -> u64;

    /// Returns 64 random bits that nobody can foresee.
    fn random(&self) -> u64;

    /// Ends after this time.
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send;

    /// Runs a future to its end, whatever becomes of the caller.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static);
}

/// Which names are listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListQuery {
    /// Of which groups and locators.
    pub shards: Shards,
    /// Which names, and how many.
    pub listing: objects::Listing,
    /// Names whose first byte of data has one of these bits are passed, below common prefixes too.
    pub skip: u8,
    /// Whether the data is wanted.
    pub with_data: bool,
}

/// A session of the index pool.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Session(pub u64);

/// The name of a container: 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId(pub u128);

impl fmt::Display for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for ContainerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How data lies in the containers of a pool. All sizes are in bytes and multiples of [`UNIT`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// What an OSD gives out and gets back as a whole.
    pub block: u64,
    /// What is read and trimmed at one moment: a whole number of blocks.
    pub stripe: u64,
    /// The size of a new container: a whole number of stripes.
    pub container_size: u64,
}

/// The smallest part of a container that is written, told as a hole, and trimmed: 4 KiB.
pub const UNIT: u64 = 4096;

/// A piece of a range of a container.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// Bytes of which at least one unit was written.
    Data(Bytes),
    /// So many bytes of which nothing is stored: never written, or trimmed.
    Hole(u64),
}

/// What an operation did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Executed {
    /// Its version. `ZERO`: it changed nothing.
    pub version: Version,
    /// The results of the changes that have one, in order.
    pub results: Vec<StepResult>,
}

/// Why a request to the cluster failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DoorError {
    /// An assertion is not true. Nothing changed.
    Asserted {
        /// Which of the operation's objects.
        object: usize,
        /// Which of the object's assertions.
        step: usize,
        /// The object's version. `None`: it does not exist.
        version: Option<Version>,
    },
    /// It breaks a limit of the pool. Nothing changed.
    Invalid {
        /// Which one.
        why: String,
    },
    /// No space is left. Nothing changed.
    Full,
    /// Stored data is damaged, and no good copy is left.
    Damaged,
    /// There is no such container, any more or yet.
    Gone,
    /// Not answered in time. Nothing has happened, and nothing will.
    Unavailable {
        /// What was waited for.
        why: String,
    },
    /// Sent and not answered: it may have happened, or may still happen. It is not sent again.
    Unknown,
}

impl fmt::Display for DoorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DoorError::Asserted { object, step, .. } => {
                write!(f, "assertion {step} of object {object} is not true")
            }
            DoorError::Invalid { why } => write!(f, "refused: {why}"),
            DoorError::Full => f.write_str("no space is left"),
            DoorError::Damaged => f.write_str("stored data is damaged and no good copy is left"),
            DoorError::Gone => f.write_str("there is no such container"),
            DoorError::Unavailable { why } => write!(f, "unavailable: {why}"),
            DoorError::Unknown => f.write_str("outcome unknown"),
        }
    }
}

impl std::error::Error for DoorError {}
