//! The state store: keeps the cluster's state while no process is running, as readable JSON under keys.
//!
//! ```text
//!   Monitor ──StateEffect──▶ StateStore ──▶ etcd | one redb file | memory (simulator)
//!           ◀──StateEvent───
//! ```
//!
//! The semantics are those of etcd v3, as far as Ashlar uses them:
//!   1. The store has one revision; each transaction that writes increments it, and every key it
//!      writes receives that revision (0: the key does not exist).
//!   2. A transaction is atomic: it is applied if all its comparisons hold, otherwise not at all. Its outcome
//!      may be unknown: it was applied, or was not, or will be applied later if its comparisons still hold.
//!   3. A range read sees one revision.
//!   4. A watch delivers all changes from a revision on, in order, whole revisions at a time; a
//!      watch from a compacted revision ends with an event that reports this.
//!   5. A lease that is not renewed within its time to live ends, and its keys are deleted.

pub mod conformance;
pub mod memory;

use std::fmt;

use base::{Duration, Time};

/// Maximum number of comparisons, and of writes, in a transaction (etcd's default limit).
pub const OPERATION_COUNT_MAX: usize = 128;

/// Maximum length of a transaction, in bytes of keys and values: etcd refuses requests above 1.5 MiB, and
/// part of that is needed for framing.
pub const TRANSACTION_SIZE_MAX: usize = (3 << 19) - (16 << 10);

/// Maximum number of bytes of framing per comparison or write.
const FRAMING_SIZE_MAX: usize = 32;

/// Maximum length of a key, in bytes.
pub const KEY_SIZE_MAX: usize = 512;

/// Maximum number of keys in the answer to a range read.
pub const RANGE_COUNT_MAX: usize = 1000;

/// The store's counter of transactions; for a key: the counter's value at the key's last change.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateRevision(u64);

impl StateRevision {
    /// The revision before the first transaction; for a key: the key does not exist.
    pub const ZERO: StateRevision = StateRevision(0);

    /// Returns the revision with this number; any number is valid.
    pub const fn new(number: u64) -> StateRevision {
        StateRevision(number)
    }

    /// Returns the number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the next revision.
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

/// Id of a request to the store; chosen by the requester, never reused while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StateRequest(pub u64);

/// Id of a watch; chosen by the requester, never reused while the process lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WatchId(pub u64);

/// Id of a lease; assigned by the store, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub u64);

/// A key and its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyValue {
    /// The key.
    pub key: String,
    /// The value, as JSON text.
    pub value: String,
    /// The store's revision at the key's last change.
    pub revision: StateRevision,
    /// The lease with which the key is deleted, if it has one.
    pub lease: Option<LeaseId>,
}

/// One condition of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compare {
    /// The key.
    pub key: String,
    /// The revision that the key must have; `ZERO`: the key must not exist.
    pub revision: StateRevision,
}

/// One write of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Store a value under a key.
    Put {
        /// The key.
        key: String,
        /// The value, as JSON text.
        value: String,
        /// The lease with which the key is deleted, if it has one.
        lease: Option<LeaseId>,
    },
    /// Remove a key.
    Delete {
        /// The key.
        key: String,
    },
}

impl Operation {
    /// Returns the key that this operation writes.
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

/// Writes that are applied together, if all comparisons hold. Every key that is written is also compared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Transaction {
    compares: Vec<Compare>,
    operations: Vec<Operation>,
    size: usize,
}

impl Transaction {
    /// Returns a transaction that compares and writes nothing yet.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Adds a comparison of a key that is not written.
    pub fn compare(&mut self, key: impl Into<String>, revision: StateRevision) {
        let key = key.into();
        self.size += key.len() + FRAMING_SIZE_MAX;
        self.compares.push(Compare { key, revision });
    }

    /// Adds a write of a key, whose revision must still be `revision`.
    pub fn write(&mut self, operation: Operation, revision: StateRevision) {
        self.compare(operation.key(), revision);
        self.size += operation.size();
        self.operations.push(operation);
    }

    /// Whether the transaction stays within the limits with these writes and their comparisons.
    pub fn has_room_for(&self, operations: &[Operation]) -> bool {
        let more =
            |operation: &Operation| operation.size() + operation.key().len() + FRAMING_SIZE_MAX;
        let size: usize = operations.iter().map(more).sum();
        self.compares.len() + operations.len() <= OPERATION_COUNT_MAX
            && self.size + size <= TRANSACTION_SIZE_MAX
    }

    /// Returns the comparisons.
    pub fn compares(&self) -> &[Compare] {
        &self.compares
    }

    /// Returns the writes.
    pub fn operations(&self) -> &[Operation] {
        &self.operations
    }

    /// Returns the rule that the transaction breaks, if any: a limit, or a key written twice.
    pub fn broken_rule(&self) -> Option<&'static str> {
        let mut keys: Vec<&str> = self.operations.iter().map(Operation::key).collect();
        keys.sort_unstable();
        if self.compares.len() > OPERATION_COUNT_MAX || keys.len() > OPERATION_COUNT_MAX {
            return Some("the transaction has more than 128 comparisons or more than 128 writes");
        }
        if self.size > TRANSACTION_SIZE_MAX {
            return Some(
                "the transaction's keys and values are too large: less than 1.5 MiB is allowed",
            );
        }
        if keys.windows(2).any(|pair| pair[0] == pair[1]) {
            return Some("the transaction writes a key twice");
        }
        if keys.iter().any(|key| key.is_empty() || key.len() > KEY_SIZE_MAX) {
            return Some("the transaction has an invalid key: a key must have 1 to 512 bytes");
        }
        None
    }
}

/// Requests from the monitor's logic to the state store. Every effect except `Unwatch` is answered once.
/// Effects in flight at the same time may be carried out in any order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateEffect {
    /// Read keys in order.
    Range {
        /// Copied into the answer, to match it to this request.
        request: StateRequest,
        /// The prefix of the keys.
        prefix: String,
        /// Only keys after this one.
        after: Option<String>,
        /// Maximum number of keys to return; the store returns at most [`RANGE_COUNT_MAX`].
        limit: usize,
    },
    /// Write, if the comparisons hold.
    Transact {
        /// Copied into the answer, to match it to this request.
        request: StateRequest,
        /// The transaction.
        transaction: Transaction,
    },
    /// Deliver the changes of keys that begin with `prefix`, from a revision on.
    Watch {
        /// Copied into the events of this watch.
        watch: WatchId,
        /// The prefix of the keys.
        prefix: String,
        /// The first revision to deliver.
        from: StateRevision,
    },
    /// End a watch.
    Unwatch {
        /// The watch.
        watch: WatchId,
    },
    /// Grant a lease.
    LeaseGrant {
        /// Copied into the answer, to match it to this request.
        request: StateRequest,
        /// The lease ends if it is not renewed for this long; whole seconds, at least one.
        time_to_live: Duration,
    },
    /// Renew a lease for its full time to live.
    LeaseRenew {
        /// Copied into the answer, to match it to this request.
        request: StateRequest,
        /// The lease.
        lease: LeaseId,
    },
    /// End a lease and remove its keys.
    LeaseRevoke {
        /// Copied into the answer, to match it to this request.
        request: StateRequest,
        /// The lease.
        lease: LeaseId,
    },
    /// Discard changes up to a revision: watches from that revision or earlier are lost.
    Compact {
        /// Copied into the answer, to match it to this request.
        request: StateRequest,
        /// The last revision to discard.
        revision: StateRevision,
    },
}

/// Answers and events from the state store to the monitor's logic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateEvent {
    /// The answer to a range read.
    Range {
        /// Copied from the request.
        request: StateRequest,
        /// The keys, or an error if the store could not be reached (then try again).
        result: Result<RangeAnswer, Unavailable>,
    },
    /// The answer to a transaction.
    Transacted {
        /// Copied from the request.
        request: StateRequest,
        /// The outcome of the transaction.
        outcome: TransactionOutcome,
    },
    /// Changes of one revision of a watch; further events deliver later revisions.
    Watched {
        /// The watch.
        watch: WatchId,
        /// The revision of the changes.
        revision: StateRevision,
        /// Changed keys; `None`: the key was removed.
        changes: Vec<(String, Option<KeyValue>)>,
    },
    /// The watch has ended: the revisions that it requested have been compacted. The watcher must read
    /// everything again.
    WatchLost {
        /// The watch.
        watch: WatchId,
        /// The last revision that was discarded.
        compacted: StateRevision,
    },
    /// The answer to the grant, renewal or revocation of a lease; `None`: the lease does not exist (any
    /// more), or could not be granted.
    Lease {
        /// Copied from the request.
        request: StateRequest,
        /// The lease.
        lease: Option<LeaseId>,
    },
    /// The answer to a compaction.
    Compacted {
        /// Copied from the request.
        request: StateRequest,
    },
    /// Reports whether the store can be reached. Requests made while it cannot are still answered: reads and
    /// transactions soon, with an error or an unknown outcome if necessary; others when they can be carried
    /// out.
    Condition {
        /// Why the store cannot be reached, and what to do, as text for operators. `None`: the store can be
        /// reached (again).
        trouble: Option<String>,
    },
    /// Problems at addresses of the store, while it can be reached at one of them; sent whenever
    /// they change.
    Endpoints(Endpoints),
    /// The store is lost for this process (its disk failed, or its file is damaged): the process
    /// ends and reports why. No event follows.
    Failed {
        /// What happened, where, and what to do, as text for operators.
        reason: String,
    },
}

/// Problems at addresses of the store; if there are none, both lists are empty.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Endpoints {
    /// Addresses where the store does not answer.
    pub down: Vec<EndpointDown>,
    /// Addresses where the store is nearly full.
    pub nearly_full: Vec<EndpointRoom>,
}

/// How full the store is at an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointRoom {
    /// The address.
    pub endpoint: String,
    /// Percentage in use.
    pub used_percent: u64,
    /// Maximum number of bytes that the store may use.
    pub size_max: u64,
}

/// An address at which the store does not answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndpointDown {
    /// The address.
    pub endpoint: String,
    /// Why the store does not answer, as text for operators.
    pub why: String,
}

/// Keys read at one revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeAnswer {
    /// The store's revision.
    pub revision: StateRevision,
    /// The keys with their values, in order.
    pub entries: Vec<KeyValue>,
    /// Whether there are more keys beyond the limit.
    pub more: bool,
}

/// An error: the store could not be reached; nothing was done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unavailable;

/// Outcome of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionOutcome {
    /// The transaction was applied, durably.
    Committed {
        /// The store's revision with this transaction.
        revision: StateRevision,
    },
    /// A comparison did not hold, or a lease that the transaction uses has ended; nothing was applied.
    Conflict,
    /// The outcome is unknown: the transaction was applied, or was not, or may still be applied.
    Unknown,
    /// The transaction breaks a rule of the store; nothing was applied. This is a bug in Ashlar.
    Invalid {
        /// The rule that was broken.
        why: &'static str,
    },
}

/// A state store. The process that runs it calls these functions; answers may be appended at once, or by a
/// later `poll`.
pub trait StateStore {
    /// Starts an effect; appends the answers that are available.
    fn apply(&mut self, now: Time, effect: StateEffect, events: &mut Vec<StateEvent>);

    /// Appends answers and changes that have arrived since the last call, and ends leases that have expired.
    fn poll(&mut self, now: Time, events: &mut Vec<StateEvent>);

    /// Returns the latest time at which `poll` must be called, if ever.
    fn deadline(&self) -> Option<Time>;
}
