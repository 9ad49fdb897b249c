//! Versions of an epoch at one member, from their arrival to the report that they are stored.
//!
//! ```text
//!   arrived ──▶ ready (a parity part: old units and differences have come) ──▶ at the store ──▶ stored
//!           waiting                                                given             written, durable
//! ```
//!
//! At a learner, backfilled parts and cursors to record are queued among the versions.
//!
//! Invariants
//!   1. Versions arrive in order without gaps, and are sent to the store in that order: a version that is
//!      ready early waits. The first version of a learner may have any counter.
//!   2. The versions reported as written, and those reported as durable, are a prefix of all versions.
//!   3. A sync of the store begins when all versions that arrived before it have been sent to the store.
//!   4. The old parity for a version is read when the store has answered everything that arrived before the
//!      version for its key.
//!   5. A fill is sent to the store when the versions that the mark had passed at the fill's arrival are
//!      durable here. Then they can be committed, and the store holds no prepared version of the fill's key.

use std::collections::{BTreeSet, VecDeque};

use base::{Epoch, Position, Version};
use blockstore::BlockKey;
use format::wire::Content;

use super::parity::ParityWork;
use crate::sync::FlushFor;
use crate::versions::next_version;

/// The versions of an epoch at a member; see the module.
pub struct Pipeline {
    epoch: Epoch,
    /// Whether this member is a learner at which no version has arrived yet.
    is_joining: bool,
    /// The newest version that arrived.
    newest: Version,
    waiting: VecDeque<Waiting>,
    /// Keys of the fills that the store has not answered.
    fills: Vec<BlockKey>,
    /// Number of versions in `waiting` whose old parity is still to be read.
    unread_count: usize,
    /// Versions that were sent to the store and have not been reported as durable, oldest first.
    given: VecDeque<Given>,
    /// The newest version that was sent to the store.
    given_upto: Version,
    /// A sync has covered versions up to this one: they are durable once the store has answered them.
    synced_upto: Version,
    /// Whether a sync that this pipeline itself requested is queued or in flight.
    is_syncing: bool,
    written_upto: Version,
    durable_upto: Version,
    /// Queued syncs. Each begins when versions up to the given one have been sent to the store.
    syncs: VecDeque<(Version, FlushFor)>,
}

/// A version that has arrived.
pub struct Arrival {
    pub version: Version,
    pub lazy: bool,
    pub what: Arrived,
}

/// What a version does at this member.
pub enum Arrived {
    /// The version changes nothing here.
    Skip,
    /// The version changes a key, and the content is known.
    Ready(BlockKey, Content),
    /// The version changes a parity part, which waits for the old parity or for differences.
    Parity(Box<ParityWork>),
}

/// A backfilled part for this learner.
pub struct Fill {
    /// The number of the primary's request.
    pub call: u32,
    pub key: BlockKey,
    pub content: Content,
}

/// What is sent to the store next.
pub enum Next {
    Version(Arrival),
    Fill(Fill),
    /// The waiting cursor may be recorded now.
    Cursor,
}

enum Waiting {
    Version(Arrival),
    /// A fill that waits until versions up to `behind` are durable.
    Fill {
        fill: Fill,
        behind: Version,
    },
    Cursor,
}

impl Waiting {
    fn key(&self) -> Option<BlockKey> {
        match self {
            Waiting::Version(arrival) => arrival.key(),
            Waiting::Fill { fill, .. } => Some(fill.key),
            Waiting::Cursor => None,
        }
    }

    fn is(&self, version: Version) -> bool {
        matches!(self, Waiting::Version(arrival) if arrival.version == version)
    }
}

impl Arrival {
    fn key(&self) -> Option<BlockKey> {
        match &self.what {
            Arrived::Skip => None,
            Arrived::Ready(key, _) => Some(*key),
            Arrived::Parity(work) => Some(work.key),
        }
    }
}

struct Given {
    version: Version,
    key: Option<BlockKey>,
    lazy: bool,
    stored: Stored,
}

/// How far a version has got at the store. Top to bottom is the order in time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stored {
    Open,
    Written,
    Durable,
}

/// A member's report that it has all versions up to this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    pub upto: Version,
    pub durable: bool,
}

impl Pipeline {
    /// Returns a pipeline for an epoch that adopted this version.
    pub fn new(adopted: Version, epoch: Epoch) -> Pipeline {
        Pipeline {
            epoch,
            is_joining: false,
            newest: adopted,
            waiting: VecDeque::new(),
            fills: Vec::new(),
            unread_count: 0,
            given: VecDeque::new(),
            given_upto: adopted,
            synced_upto: adopted,
            is_syncing: false,
            written_upto: adopted,
            durable_upto: adopted,
            syncs: VecDeque::new(),
        }
    }

    /// Returns the pipeline of a learner. A learner joins while versions are in flight, so its first version
    /// may have any counter.
    pub fn joining(epoch: Epoch) -> Pipeline {
        Pipeline { is_joining: true, ..Pipeline::new(Version::ZERO, epoch) }
    }

    /// Checks that a version is the next one; returns an error if it is not.
    pub fn check_next(&self, version: Version) -> Result<(), String> {
        let next = next_version(self.newest, self.epoch);
        let may_join = self.is_joining && version.epoch == self.epoch && version.counter > 0;
        match may_join || version == next {
            true => Ok(()),
            false => Err(format!("version {version} arrived instead of {next}")),
        }
    }

    /// Adds a version. Returns an error if it is not the next one.
    pub fn arrive(&mut self, arrival: Arrival) -> Result<(), String> {
        let version = arrival.version;
        self.check_next(version)?;
        if self.is_joining {
            self.is_joining = false;
            let before = Version { counter: version.counter - 1, ..version };
            (self.newest, self.given_upto, self.synced_upto) = (before, before, before);
            (self.written_upto, self.durable_upto) = (before, before);
        }
        self.newest = version;
        self.unread_count += usize::from(matches!(arrival.what, Arrived::Parity(_)));
        self.waiting.push_back(Waiting::Version(arrival));
        Ok(())
    }

    /// Adds a backfilled part. `mark`: the version up to which all acting members have everything.
    pub fn fill(&mut self, fill: Fill, mark: Version) {
        let behind = mark.min(self.newest);
        self.waiting.push_back(Waiting::Fill { fill, behind });
    }

    /// Adds a cursor, which may be recorded when everything that arrived before it is durable.
    pub fn cursor(&mut self) {
        self.waiting.push_back(Waiting::Cursor);
    }

    /// Notes the store's answer to a fill.
    pub fn filled(&mut self, key: BlockKey) {
        let place = self.fills.iter().position(|it| *it == key).expect("it is at the store");
        self.fills.swap_remove(place);
    }

    /// Returns the version up to which everything is durable.
    pub fn durable_upto(&self) -> Version {
        self.durable_upto
    }

    /// Returns the newest version that arrived.
    pub fn newest(&self) -> Version {
        self.newest
    }

    /// Returns the differences that have been missing since an earlier call and have not been returned yet.
    pub fn overdue_deltas(&mut self) -> Vec<(Version, Position)> {
        let mut overdue = Vec::new();
        for waiting in &mut self.waiting {
            if let Waiting::Version(Arrival { version, what: Arrived::Parity(work), .. }) = waiting
            {
                let missing = work.overdue_deltas();
                overdue.extend(missing.into_iter().map(|part| (*version, part)));
            }
        }
        overdue
    }

    /// Returns the versions whose old parity may be read now. They then count as read.
    pub fn start_reads(&mut self) -> Vec<Version> {
        let mut ready = Vec::new();
        if self.unread_count == 0 {
            return ready;
        }
        let open = self.given.iter().filter(|given| given.stored == Stored::Open);
        let open = open.filter_map(|given| given.key);
        let mut before: BTreeSet<BlockKey> = open.chain(self.fills.iter().copied()).collect();
        for waiting in &mut self.waiting {
            let key = waiting.key();
            if let Waiting::Version(Arrival { version, what: Arrived::Parity(work), .. }) = waiting
                && !work.is_reading
                && !before.contains(&work.key)
            {
                work.is_reading = true;
                self.unread_count -= 1;
                ready.push(*version);
            }
            before.extend(key);
        }
        ready
    }

    /// Returns the work on a version's parity part, if it still waits for the old parity or for differences.
    pub fn parity(&mut self, version: Version) -> Option<&mut ParityWork> {
        let found = self.waiting.iter_mut().find(|waiting| waiting.is(version))?;
        match found {
            Waiting::Version(Arrival { what: Arrived::Parity(work), .. }) => Some(work),
            _ => None,
        }
    }

    /// Sets the content of a version's parity part, which has been computed.
    pub fn ready(&mut self, version: Version, content: Content) {
        let found = self.waiting.iter_mut().find(|waiting| waiting.is(version));
        let Some(Waiting::Version(Arrival { what, .. })) = found else {
            unreachable!("it waits for what it is made of");
        };
        let Arrived::Parity(work) = what else { unreachable!("parity is made once") };
        *what = Arrived::Ready(work.key, content);
    }

    /// Removes and returns what is sent to the store next; `None`: it is not ready, or nothing waits.
    pub fn give(&mut self) -> Option<Next> {
        let is_ready = match self.waiting.front()? {
            Waiting::Version(arrival) => !matches!(arrival.what, Arrived::Parity(_)),
            Waiting::Fill { behind, .. } => *behind <= self.durable_upto,
            Waiting::Cursor => self.given.is_empty() && self.fills.is_empty(),
        };
        let is_version = matches!(self.waiting.front(), Some(Waiting::Version(_)));
        if !is_ready {
            if !is_version {
                self.want_durable();
            }
            return None;
        }
        Some(match self.waiting.pop_front()? {
            Waiting::Cursor => Next::Cursor,
            Waiting::Fill { fill, .. } => {
                self.fills.push(fill.key);
                Next::Fill(fill)
            }
            Waiting::Version(next) => {
                let (version, lazy, key) = (next.version, next.lazy, next.key());
                assert!(version > self.given_upto);
                self.given_upto = version;
                self.given.push_back(Given { version, key, lazy, stored: Stored::Open });
                Next::Version(next)
            }
        })
    }

    /// Queues a sync, if versions are written at the store but not durable.
    fn want_durable(&mut self) {
        let is_written = |given: &Given| given.stored == Stored::Written;
        if !self.is_syncing && self.given.iter().any(is_written) {
            self.is_syncing = true;
            // This sync goes first: a queued sync may wait for versions that wait for this one.
            self.syncs.push_front((Version::ZERO, FlushFor::Prefix));
        }
    }

    /// Notes the store's answer to a version.
    pub fn on_stored(&mut self, version: Version, is_durable: bool) {
        let is_durable = is_durable || version <= self.synced_upto;
        let found = self.given.iter_mut().find(|given| given.version == version);
        let found = found.expect("it is at the store");
        assert!(found.stored == Stored::Open);
        assert!(is_durable || found.lazy);
        found.stored = if is_durable { Stored::Durable } else { Stored::Written };
    }

    /// Queues a sync behind all versions that have arrived.
    pub fn sync(&mut self, what: FlushFor) {
        self.syncs.push_back((self.newest, what));
    }

    /// Removes and returns the next sync that may begin: who waits for it, and up to which version it covers.
    pub fn begin_sync(&mut self) -> Option<(FlushFor, Version)> {
        let upto = self.given_upto;
        let (_, what) = self.syncs.pop_front_if(|(behind, _)| *behind <= upto)?;
        Some((what, upto))
    }

    /// Notes the end of a sync that covered versions up to the given one.
    pub fn on_synced(&mut self, what: FlushFor, upto: Version) {
        self.is_syncing &= what != FlushFor::Prefix;
        self.synced_upto = self.synced_upto.max(upto);
        let covered = self.given.iter_mut().take_while(|given| given.version <= upto);
        for given in covered.filter(|given| given.stored == Stored::Written) {
            given.stored = Stored::Durable;
        }
    }

    /// Returns the reports that are due. If a durable version follows one that is only written, queues a
    /// sync: a version is reported as durable only when everything before it is durable.
    pub fn report(&mut self) -> Vec<Report> {
        let (written, durable) = (self.written_upto, self.durable_upto);
        for given in &self.given {
            match given.stored {
                Stored::Open => break,
                Stored::Written => self.written_upto = self.written_upto.max(given.version),
                Stored::Durable => {
                    let is_next = self.durable_upto.counter + 1 == given.version.counter;
                    if is_next {
                        self.durable_upto = given.version;
                    } else if !given.lazy && !self.is_syncing {
                        self.is_syncing = true;
                        self.syncs.push_back((Version::ZERO, FlushFor::Prefix));
                    }
                    self.written_upto = self.written_upto.max(given.version);
                }
            }
        }
        let durable_upto = self.durable_upto;
        while self.given.pop_front_if(|given| given.version <= durable_upto).is_some() {}
        let mut reports = Vec::new();
        if self.durable_upto > durable {
            reports.push(Report { upto: self.durable_upto, durable: true });
        }
        if self.written_upto > written && self.written_upto > self.durable_upto {
            reports.push(Report { upto: self.written_upto, durable: false });
        }
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(3), counter }
    }

    fn pipeline(laziness: &[bool]) -> Pipeline {
        let mut pipeline = Pipeline::new(version(10), Epoch::new(3));
        for (index, lazy) in laziness.iter().enumerate() {
            let (version, what) = (version(11 + index as u64), Arrived::Skip);
            pipeline.arrive(Arrival { version, lazy: *lazy, what }).unwrap();
        }
        pipeline
    }

    fn durable(counter: u64) -> Report {
        Report { upto: version(counter), durable: true }
    }

    fn written(counter: u64) -> Report {
        Report { upto: version(counter), durable: false }
    }

    #[test]
    fn a_gap_is_refused() {
        let mut pipeline = pipeline(&[false]);
        let arrival =
            |counter| Arrival { version: version(counter), lazy: false, what: Arrived::Skip };
        assert!(pipeline.arrive(arrival(13)).is_err());
        assert!(pipeline.arrive(arrival(12)).is_ok());
    }

    #[test]
    fn a_prefix_is_reported() {
        let mut pipeline = pipeline(&[false; 3]);
        while pipeline.give().is_some() {}
        pipeline.on_stored(version(12), true);
        assert_eq!(pipeline.report(), []);
        pipeline.on_stored(version(11), true);
        assert_eq!(pipeline.report(), [durable(12)]);
        pipeline.on_stored(version(13), true);
        assert_eq!(pipeline.report(), [durable(13)]);
        assert_eq!(pipeline.report(), []);
    }

    #[test]
    fn a_durable_version_behind_a_lazy_one_waits_for_a_sync() {
        let mut pipeline = pipeline(&[true, false]);
        while pipeline.give().is_some() {}
        pipeline.on_stored(version(11), false);
        assert_eq!(pipeline.report(), [written(11)]);
        pipeline.on_stored(version(12), true);
        assert_eq!(pipeline.report(), [written(12)]);
        let (what, upto) = pipeline.begin_sync().unwrap();
        assert_eq!((what, upto), (FlushFor::Prefix, version(12)));
        assert_eq!(pipeline.report(), []);
        assert!(pipeline.begin_sync().is_none(), "one is enough");
        pipeline.on_synced(what, upto);
        assert_eq!(pipeline.report(), [durable(12)]);
    }

    #[test]
    fn a_cursor_waits_until_what_came_before_is_durable_and_delays_no_sync_for_ever() {
        let mut pipeline = pipeline(&[true]);
        pipeline.cursor();
        let (version, what) = (version(12), Arrived::Skip);
        pipeline.arrive(Arrival { version, lazy: true, what }).unwrap();
        let call = FlushFor::Peer { call: 7 };
        pipeline.sync(call);
        assert!(matches!(pipeline.give(), Some(Next::Version(_))));
        assert!(pipeline.give().is_none());
        pipeline.on_stored(self::version(11), false);
        assert_eq!(pipeline.report(), [written(11)]);
        assert!(pipeline.give().is_none());
        let (what, upto) = pipeline.begin_sync().unwrap();
        assert_eq!((what, upto), (FlushFor::Prefix, self::version(11)));
        pipeline.on_synced(what, upto);
        assert_eq!(pipeline.report(), [durable(11)]);
        assert!(matches!(pipeline.give(), Some(Next::Cursor)));
        assert!(matches!(pipeline.give(), Some(Next::Version(_))));
        assert_eq!(pipeline.begin_sync(), Some((call, version)));
    }

    #[test]
    fn a_sync_begins_when_what_came_before_is_at_the_store() {
        let mut pipeline = pipeline(&[true]);
        let call = FlushFor::Peer { call: 7 };
        pipeline.sync(call);
        assert!(pipeline.begin_sync().is_none());
        pipeline.give().unwrap();
        assert_eq!(pipeline.begin_sync(), Some((call, version(11))));
        pipeline.on_synced(call, version(11));
        pipeline.on_stored(version(11), false);
        assert_eq!(pipeline.report(), [durable(11)], "the sync covered it");
    }
}
