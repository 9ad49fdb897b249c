//! The state store: where the cluster's state outlives every process. Readable JSON under keys.
//!
//! ```text
//!   Monitor ──StateEffect──▶ StateStore ──▶ etcd | one redb file | memory (simulator)
//!           ◀──StateEvent───
//! ```
//!
//! The semantics are those of etcd v3, as far as they are used here:
//!   1. The store has one revision; each transaction that writes adds one, and every key it writes
//!      carries that revision (0: the key does not exist).
//!   2. A transaction happens whole, if all its comparisons hold, or not at all. Its outcome may
//!      stay unknown: then it happened, or not, or will happen later, unless a comparison fails.
//!   3. A range read sees one revision.
//!   4. A watch tells all changes from a revision on, in order, whole revisions; one that asks for
//!      what was compacted is told so.
//!   5. A lease that is not renewed within its time ends, and takes its keys with it.

pub mod conformance;
pub mod memory;

use std::fmt;

use base::{Duration, Time};

/// Most comparisons, and most writes, of a transaction (etcd's default limit).
pub const OPERATION_COUNT_MAX: usize = 128;

/// Longest transaction, in bytes of keys and values: etcd refuses requests above 1.5 MiB, and its
/// framing needs some of that.
pub const TRANSACTION_SIZE_MAX: usize = (3 << 19) - (16 << 10);

/// What the framing of one comparison or write takes, at most, in bytes.
const FRAMING_SIZE_MAX: usize = 32;

/// Longest key, in bytes.
pub const KEY_SIZE_MAX: usize = 512;

/// Most keys of one range read's answer.
pub const RANGE_COUNT_MAX: usize = 1000;

/// The store's counter of transactions; of a key: its value at the key's last change.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateRevision(u64);

impl StateRevision {
    /// Before the first transaction; of a key: it does not exist.
    pub const ZERO: StateRevision = StateRevision(0);

    /// Any number is a valid value.
    pub const fn new(number: u64) -> StateRevision {
        StateRevision(number)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The one after this.
    pub const fn next(self) -> StateRevision {
        StateRevision(self.0.checked_add(1).expect("the counter outlives every cluster"))
    }
}

impl fmt::Display for StateRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for StateRevision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StateRevision({})", self.0)
    }
}

/// Names a request to the store; chosen by the asker, never reused while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StateRequest(pub u64);

/// Names a watch; chosen by the asker, never reused while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WatchId(pub u64);

/// Names a lease; given by the store, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

/// A key and what the store holds under it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// JSON text.
    pub value: String,
    /// The store's revision at the key's last change.
    pub revision: StateRevision,
    /// The lease that the key ends with.
    pub lease: Option<LeaseId>,
}

/// One condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// Of which key.
    pub key: String,
    /// Its revision must be this; `ZERO`: it must not exist.
    pub revision: StateRevision,
}

/// One write of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Store a value under a key.
    Put {
        /// The key.
        key: String,
        /// JSON text.
        value: String,
        /// The lease that it ends with, if any.
        lease: Option<LeaseId>,
    },
    /// Remove a key.
    Delete {
        /// The key.
        key: String,
    },
}

impl Operation {
    /// The key it writes.
    pub fn key(&self) -> &str {
        match self {
            Operation::Put { key, .. } | Operation::Delete { key } => key,
        }
    }

    fn size(&self) -> usize {
        FRAMING_SIZE_MAX
            + match self {
                Operation::Put { key, value, .. } => key.len() + value.len(),
                Operation::Delete { key } => key.len(),
            }
    }
}

/// Writes that happen together, if all comparisons hold. Every key it writes is compared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    compares: Vec<Compare>,
    operations: Vec<Operation>,
    size: usize,
}

impl Transaction {
    /// One that compares nothing and writes nothing yet.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Compares a key that is not written.
    pub fn compare(&mut self, key: impl Into<String>, revision: StateRevision) {
        let key = key.into();
        self.size += key.len() + FRAMING_SIZE_MAX;
        self.compares.push(Compare { key, revision });
    }

    /// Writes a key whose revision must be `revision` until then.
    pub fn write(&mut self, operation: Operation, revision: StateRevision) {
        self.compare(operation.key(), revision);
        self.size += operation.size();
        self.operations.push(operation);
    }

    /// Whether these writes, with their comparisons, keep the limits.
    pub fn has_room_for(&self, operations: &[Operation]) -> bool {
        let more =
            |operation: &Operation| operation.size() + operation.key().len() + FRAMING_SIZE_MAX;
        let size: usize = operations.iter().map(more).sum();
        self.compares.len() + operations.len() <= OPERATION_COUNT_MAX
            && self.size + size <= TRANSACTION_SIZE_MAX
    }

    /// What must hold.
    pub fn compares(&self) -> &[Compare] {
        &self.compares
    }

    /// What is written.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// The rule it breaks, if any: limits, a key written twice.
    pub fn broken_rule(&self) -> Option<&'static str> {
        let mut keys: Vec<&str> = self.operations.iter().map(Operation::key).collect();
        keys.sort_unstable();
        if self.compares.len() > OPERATION_COUNT_MAX || keys.len() > OPERATION_COUNT_MAX {
            return Some("a transaction has at most 128 comparisons and 128 writes");
        }
        if self.size > TRANSACTION_SIZE_MAX {
            return Some("a transaction has less than 1.5 MiB of keys and values");
        }
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Some("a transaction writes each key once");
        }
        if keys.iter().any(|key| key.is_empty() || key.len() > KEY_SIZE_MAX) {
            return Some("a key has 1 to 512 bytes");
        }
        None
    }
}

/// What logic asks of the state store. Every effect but `Unwatch` is answered once. Effects that
/// wait for their answers at the same time may be done in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateEffect {
    /// Read keys in order.
    Range {
        /// Names the answer.
        request: StateRequest,
        /// Keys that begin so.
        prefix: String,
        /// Only keys after this one.
        after: Option<String>,
        /// At most so many; the store gives at most [`RANGE_COUNT_MAX`].
        limit: usize,
    },
    /// Write, if the comparisons hold.
    Transact {
        /// Names the answer.
        request: StateRequest,
        /// What.
        transaction: Transaction,
    },
    /// Tell the changes of keys that begin with `prefix`, from a revision on.
    Watch {
        /// Names the events.
        watch: WatchId,
        /// Keys that begin so.
        prefix: String,
        /// The first revision to tell.
        from: StateRevision,
    },
    /// End a watch.
    Unwatch {
        /// Which.
        watch: WatchId,
    },
    /// Make a lease.
    LeaseGrant {
        /// Names the answer.
        request: StateRequest,
        /// It ends when it was not renewed for so long; whole seconds, at least one.
        time_to_live: Duration,
    },
    /// Renew a lease for its whole time.
    LeaseRenew {
        /// Names the answer.
        request: StateRequest,
        /// Which.
        lease: LeaseId,
    },
    /// End a lease and remove its keys.
    LeaseRevoke {
        /// Names the answer.
        request: StateRequest,
        /// Which.
        lease: LeaseId,
    },
    /// Forget changes up to a revision: watches from there or before are told so.
    Compact {
        /// Names the answer.
        request: StateRequest,
        /// The last revision to forget.
        revision: StateRevision,
    },
}

/// What the state store tells logic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateEvent {
    /// The answer to a range read.
    Range {
        /// As asked.
        request: StateRequest,
        /// The keys, or that the store could not be asked (try again).
        result: Result<RangeAnswer, Unavailable>,
    },
    /// The answer to a transaction.
    Transacted {
        /// As asked.
        request: StateRequest,
        /// What became of it.
        outcome: TransactionOutcome,
    },
    /// Changes of one revision; later ones follow.
    Watched {
        /// Which watch.
        watch: WatchId,
        /// Their revision.
        revision: StateRevision,
        /// Changed keys; `None`: removed.
        changes: Vec<(String, Option<KeyValue>)>,
    },
    /// The watch is over: what it asked for is compacted. Read anew.
    WatchLost {
        /// Which.
        watch: WatchId,
        /// The last revision that was forgotten.
        compacted: StateRevision,
    },
    /// The answer to a lease's grant, renewal or end; `None`: there is no such lease (any more), or
    /// none could be made.
    Lease {
        /// As asked.
        request: StateRequest,
        /// Which.
        lease: Option<LeaseId>,
    },
    /// The answer to a compaction.
    Compacted {
        /// As asked.
        request: StateRequest,
    },
    /// Whether the store can be asked. What is asked meanwhile is answered all the same: reads and
    /// transactions soon, with what is known; the rest when it can be done.
    Condition {
        /// For people: why it cannot be asked, what to do. `None`: it can be asked (again).
        trouble: Option<String>,
    },
    /// What is wrong at addresses of the store, while it can be asked at one of them; told whenever
    /// that changes.
    Endpoints(Endpoints),
    /// The store is lost to this process (its disk failed, its file is damaged): the process ends
    /// and says why. No event follows.
    Failed {
        /// For people: what happened, where, what to do.
        reason: String,
    },
}

/// What is wrong at addresses of the store; nothing, if both lists are empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Endpoints {
    /// It does not answer there.
    pub down: Vec<EndpointDown>,
    /// There is little room left there.
    pub nearly_full: Vec<EndpointRoom>,
}

/// How full the store is at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointRoom {
    /// Where.
    pub endpoint: String,
    /// Percentage in use.
    pub used_percent: u64,
    /// The most that it may use, in bytes.
    pub size_max: u64,
}

/// An address at which the store does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointDown {
    /// Where.
    pub endpoint: String,
    /// For people.
    pub why: String,
}

/// Keys read at one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeAnswer {
    /// The store's revision.
    pub revision: StateRevision,
    /// In order.
    pub entries: Vec<KeyValue>,
    /// Whether keys follow that were left out for the limit.
    pub more: bool,
}

/// The store could not be asked; nothing happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unavailable;

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionOutcome {
    /// It happened, durably.
    Committed {
        /// The store's revision with it.
        revision: StateRevision,
    },
    /// A comparison did not hold, or a lease that it names is over; nothing happened.
    Conflict,
    /// Not known: it happened, or did not, or may still.
    Unknown,
    /// It breaks a rule of the store; nothing happened. Ours is the bug.
    Invalid {
        /// Which rule.
        why: &'static str,
    },
}

/// A state store as its shell drives it. Answers may come with the effect or with a later `poll`.
pub trait StateStore {
    /// Starts an effect; appends answers that are there.
    fn apply(&mut self, now: Time, effect: StateEffect, events: &mut Vec<StateEvent>);

    /// Appends answers and changes that came since, and ends leases whose time is over.
    fn poll(&mut self, now: Time, events: &mut Vec<StateEvent>);

    /// When `poll` is to be called at the latest, if ever.
    fn deadline(&self) -> Option<Time>;
}
