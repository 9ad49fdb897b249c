//! Object pools for async programs: objects with data, attributes and records, and pages of them.
//!
//! ```text
//!   ObjectPool ──execute──▶ one operation, in one PG, all or nothing
//!              ──look─────▶ reads in one PG, of one moment
//!              ──list─────▶ a page of names in order, of all PGs, merged
//! ```
//!
//! Invariants
//!   1. What is read in several parts is of one version, or the read fails with [`ObjectError::Changed`].
//!   2. The pages of a list have each name that was there throughout exactly once, in order.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base::hash::{NameHash, pg_of_hash};
use base::{SessionId, Version};
use cluster::map::{Pool, PoolKind};
use objects::listing::{PAGE_COUNT_MAX, PAGE_SIZE_MAX};
use objects::look::{ANSWERS_SIZE_MAX, LOOK_FIELDS_MAX, LOOK_SHARDS_MAX, READ_VALUES_MAX};
use objects::operation::OPERATION_DATA_MAX;
use objects::{
    LongGet, LongPut, Look, NameQuery, Read, ReadAnswer, Shard, Sharding, decode_answers,
    decode_pages, decode_results, group_operations, merge_pages,
};
use volume::{Place, VolumeError};

pub use objects::look::READ_DATA_MAX;
pub use objects::{
    Assertion, Bytes, Field, Listed, Listing, Name, ObjectChange, ObjectSteps, Operation, Page,
    PageEntry, Stat, StepResult,
};

use crate::asynchronous::{Asked, Found, Hold, Reached, Wish};

/// How often a read of several parts begins again when the object was changed meanwhile.
const READ_AGAIN_MAX: u32 = 8;

/// So many attributes or records are copied in one operation, at most.
const COPY_COUNT_MAX: usize = 100;
/// So many bytes of attributes or records are copied in one operation, at most.
const COPY_SIZE_MAX: usize = 256 << 10;

/// The fewest bytes of a PG's page of a scan.
const SCAN_SIZE_MIN: usize = 16 << 10;
/// What the answer of a PG has besides the keys and values of its page, about, in bytes.
const SCAN_FRAME_SIZE: usize = 10 * PAGE_COUNT_MAX;

/// An open object pool; dropping it and all its clones closes it.
///
/// A request waits for as long as the session lasts, unless it has a time limit ([`ObjectPool::within`]).
/// Dropping the future of a request gives it up: what was not sent is never sent, and what was sent may
/// happen.
#[derive(Clone)]
pub struct ObjectPool {
    hold: Arc<Hold>,
    pool: Arc<Pool>,
    session: SessionId,
    sharding: Sharding,
    within: Option<Duration>,
}

/// What an operation did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Executed {
    /// The operation's version: that of all objects which it changed. `ZERO`: it changed nothing.
    pub version: Version,
    /// The results of its changes that have one, in order.
    pub results: Vec<StepResult>,
}

/// Why a request to an object pool failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ObjectError {
    /// There is no such object.
    Absent,
    /// The object was changed again and again while it was read in several parts.
    Changed,
    /// An assertion is not true, or a number cannot be added to. Nothing changed.
    Asserted {
        /// Which of the operation's objects.
        object: usize,
        /// Which of the object's steps: first its assertions are counted, then its changes.
        step: usize,
        /// The object's version; `None`: it does not exist.
        version: Option<Version>,
    },
    /// The request breaks a rule or a limit, or its objects are in several PGs. Nothing changed.
    Invalid {
        /// Which one.
        why: String,
    },
    /// No space is left in the pool.
    Full,
    /// Stored data is damaged, and no good copy is left.
    Damaged,
    /// The session is over: the pool was removed, or this client was away for too long. Changes that were not
    /// answered may have happened.
    Ended,
    /// Not answered within the time limit. Nothing has happened, and nothing will.
    Unavailable {
        /// What was waited for.
        why: String,
    },
    /// Not answered within the time limit, and sent: the change may have happened, or may happen while its
    /// PG has not answered. It is not sent again.
    Unknown,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ObjectError::Absent => f.write_str("there is no such object"),
            ObjectError::Changed => f.write_str("the object is being changed all the time"),
            ObjectError::Asserted { version: None, .. } => {
                f.write_str("the object does not exist, or lacks what the operation asserts")
            }
            ObjectError::Asserted { version: Some(version), .. } => {
                write!(f, "the object, now of version {version}, is not as the operation asserts")
            }
            ObjectError::Invalid { why } => f.write_str(why),
            ObjectError::Full => f.write_str("no space is left in the pool"),
            ObjectError::Damaged => f.write_str("stored data is damaged and no good copy is left"),
            ObjectError::Ended => f.write_str("the session is over: open the pool again"),
            ObjectError::Unavailable { why } => write!(f, "unavailable: {why}"),
            ObjectError::Unknown => f.write_str("outcome unknown: the change may have happened"),
        }
    }
}

impl std::error::Error for ObjectError {}

impl From<VolumeError> for ObjectError {
    fn from(error: VolumeError) -> ObjectError {
        match error {
            VolumeError::Full => ObjectError::Full,
            VolumeError::Damaged => ObjectError::Damaged,
            VolumeError::Ended => ObjectError::Ended,
            VolumeError::Unavailable { why } => ObjectError::Unavailable { why },
            VolumeError::Unknown => ObjectError::Unknown,
            VolumeError::Invalid { why } | VolumeError::TooLarge { why } => {
                ObjectError::Invalid { why }
            }
            VolumeError::Asserted { object, step, version } => ObjectError::Asserted {
                object: object.into(),
                step: step.into(),
                version: Some(version).filter(|version| *version > Version::ZERO),
            },
            VolumeError::ReadOnly | VolumeError::OutOfRange => {
                ObjectError::Invalid { why: error.to_string() }
            }
        }
    }
}

impl ObjectPool {
    pub(crate) fn new(hold: Hold, pool: Pool, session: SessionId) -> ObjectPool {
        let PoolKind::Object { shards, names, .. } = pool.kind else {
            unreachable!("the monitor opens only pools of objects")
        };
        let (hold, pool) = (Arc::new(hold), Arc::new(pool));
        let sharding = Sharding { shard_count: shards, names };
        ObjectPool { hold, pool, session, sharding, within: None }
    }

    /// Returns the same pool, each of whose requests has a time limit; a method that sends several gives it
    /// to each. A request that is not answered by then fails with [`ObjectError::Unavailable`] if nothing
    /// has happened and nothing will, and otherwise with [`ObjectError::Unknown`].
    pub fn within(&self, limit: Duration) -> ObjectPool {
        ObjectPool { within: Some(limit), ..self.clone() }
    }

    /// Returns the session over which the pool is open.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Returns the pool, as it was when it was opened.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the number of the PG that has an object. Only objects of one PG can be changed together.
    pub fn pg_of(&self, name: &Name) -> u32 {
        pg_of_hash(self.sharding.hash(name), self.pool.pg_count)
    }

    /// Carries out an operation: all of it, durably at all copies, or nothing.
    ///
    /// Errors: `Asserted`, `Invalid`, `Full`, `Damaged`, `Ended`, `Unavailable`, `Unknown`.
    pub async fn execute(&self, operation: &Operation) -> Result<Executed, ObjectError> {
        executed(self.begin(operation)?.await)
    }

    /// Sends an operation.
    fn begin(&self, operation: &Operation) -> Result<Asked, ObjectError> {
        let invalid = |why| ObjectError::Invalid { why };
        operation.check().map_err(invalid)?;
        let first = &operation.objects[0].name;
        let is_apart = |steps: &&ObjectSteps| self.pg_of(&steps.name) != self.pg_of(first);
        if let Some(other) = operation.objects.iter().find(is_apart) {
            return Err(invalid(format!(
                "{first:?} and {:?} are in different PGs: change them one after the other",
                other.name
            )));
        }
        let wish = Wish::Mutate { hash: self.sharding.hash(first), operation: operation.encode() };
        Ok(self.hold.begin(wish, self.within))
    }

    /// Reads objects of one PG, all at one moment.
    ///
    /// Errors: `Invalid`, `Damaged`, `Ended`.
    pub async fn look(&self, reads: Vec<Read>) -> Result<Vec<ReadAnswer>, ObjectError> {
        let count = reads.len();
        let answers = answered(self.begin_look(reads)?.await)?;
        match answers.len() == count {
            true => Ok(answers),
            false => Err(strange_answer()),
        }
    }

    fn begin_look(&self, reads: Vec<Read>) -> Result<Asked, ObjectError> {
        let look = Look { reads };
        look.check().map_err(|why| ObjectError::Invalid { why })?;
        let pgs: Vec<u32> =
            look.shards(self.sharding).into_iter().map(|it| self.pg_of_shard(it)).collect();
        if pgs.iter().any(|pg| *pg != pgs[0]) {
            let why = "the objects are in different PGs: read them one after the other".to_string();
            return Err(ObjectError::Invalid { why });
        }
        let answers_size_max = look.answers_size_max() as u64;
        let (at, reads) = (Place::Pg(pgs[0]), look.encode());
        Ok(self.hold.begin(Wish::Look { at, reads, answers_size_max }, self.within))
    }

    /// Shards and PGs are both top bits of the hash.
    fn pg_of_shard(&self, shard: Shard) -> u32 {
        u32::from(shard.get()) / (self.sharding.shard_count / self.pool.pg_count)
    }

    fn shards_of_pg(&self, pg: u32) -> Vec<Shard> {
        let count = self.sharding.shard_count / self.pool.pg_count;
        let shards = pg * count..(pg + 1) * count;
        shards.map(|number| Shard::new(number as u16)).collect()
    }

    async fn look_one(&self, read: Read) -> Result<ReadAnswer, ObjectError> {
        Ok(self.look(vec![read]).await?.remove(0))
    }

    /// Returns version, size and time of an object; `None`: there is none.
    pub async fn stat(&self, name: &Name) -> Result<Option<Stat>, ObjectError> {
        match self.look_one(Read::Stat { name: name.clone() }).await? {
            ReadAnswer::Stat(stat) => Ok(stat),
            _ => Err(strange_answer()),
        }
    }

    /// Reads all of an object's data: all of one version. `None`: there is no object.
    ///
    /// Errors: `Changed`, `Damaged`, `Ended`.
    pub async fn get(&self, name: &Name) -> Result<Option<(Stat, Vec<u8>)>, ObjectError> {
        self.get_with(name, |_, _| {}).await
    }

    /// Reads as [`ObjectPool::get`] does. `progress` is told how many bytes came, and of how many.
    pub async fn get_with(
        &self,
        name: &Name,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Option<(Stat, Vec<u8>)>, ObjectError> {
        let mut get = LongGet::new(name.clone());
        while let Some(read) = get.read() {
            if let Some((came, size)) = get.progress() {
                progress(came, size);
            }
            if get.changed_count() > READ_AGAIN_MAX {
                return Err(ObjectError::Changed);
            }
            match self.look_one(read).await? {
                ReadAnswer::Data(found) => get.on_answer(found).map_err(|_| strange_answer())?,
                _ => return Err(strange_answer()),
            }
        }
        Ok(get.finish())
    }

    /// Reads a range of an object's data: at most [`READ_DATA_MAX`] bytes, and less if the object ends
    /// before.
    /// `None`: there is no object.
    pub async fn read(
        &self,
        name: &Name,
        offset: u64,
        length: u32,
    ) -> Result<Option<(Stat, Vec<u8>)>, ObjectError> {
        match self.look_one(Read::Data { name: name.clone(), offset, length }).await? {
            ReadAnswer::Data(found) => Ok(found),
            _ => Err(strange_answer()),
        }
    }

    /// Changes one object, without assertions.
    pub async fn change(
        &self,
        name: &Name,
        changes: Vec<ObjectChange>,
    ) -> Result<Executed, ObjectError> {
        self.change_if(name, Vec::new(), changes).await
    }

    /// Changes one object if what is asserted of it is true.
    ///
    /// Errors: `Asserted`, as the assertions say; as those of [`ObjectPool::execute`].
    pub async fn change_if(
        &self,
        name: &Name,
        assertions: Vec<Assertion>,
        changes: Vec<ObjectChange>,
    ) -> Result<Executed, ObjectError> {
        let steps = ObjectSteps { name: name.clone(), assertions, changes };
        self.execute(&Operation { objects: vec![steps] }).await
    }

    /// Puts data of any size: it replaces all of the object's data, and keeps attributes and records. Returns
    /// the object's version.
    ///
    /// Up to 3 MiB it is one operation. More data is written in parts; meanwhile, and if this client dies,
    /// the
    /// object is marked as partial ([`Stat::is_partial`]). `progress` is told how many bytes are there.
    ///
    /// Errors: `Asserted`, as the assertions say; `Changed`: somebody else changed the object between two
    /// parts, and the object has what that left; `Invalid`: more than 64 MiB.
    pub async fn put(
        &self,
        name: &Name,
        assertions: Vec<Assertion>,
        data: Vec<u8>,
        mut progress: impl FnMut(u64),
    ) -> Result<Version, ObjectError> {
        let put = LongPut::new(name.clone(), data, assertions);
        let mut put = put.map_err(|why| ObjectError::Invalid { why })?;
        let mut version = Version::ZERO;
        while let Some(operation) = put.operation() {
            let executed = match self.execute(&operation).await {
                Err(ObjectError::Asserted { .. }) if put.has_begun() => {
                    return Err(ObjectError::Changed);
                }
                executed => executed?,
            };
            version = executed.version;
            put.on_done(version);
            progress(put.written());
        }
        Ok(version)
    }

    /// Copies an object with its attributes and records; what was under the new name goes. It is several
    /// operations, so the copy is marked as partial ([`Stat::is_partial`]) until it has everything, also if
    /// this client dies. Returns the version of the copy. `progress` is told how many bytes of data are
    /// there, and of how many.
    ///
    /// Errors: `Absent`; `Invalid`: the object is partial itself; `Changed`: somebody changed the object, or
    /// the copy, meanwhile; as those of [`ObjectPool::execute`].
    pub async fn copy(
        &self,
        from: &Name,
        to: &Name,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Version, ObjectError> {
        let (stat, data) = self.get(from).await?.ok_or(ObjectError::Absent)?;
        if stat.is_partial {
            let why = "it is partial: put it again first".to_string();
            return Err(ObjectError::Invalid { why });
        }
        if from == to {
            return Ok(stat.version);
        }
        // What else the new name had goes with the mark.
        let everything = ObjectChange::RemoveRecords { from: Vec::new(), before: None };
        let changes = vec![ObjectChange::Put(Vec::new()), everything, ObjectChange::Partial(true)];
        let mut version = self.change(to, changes).await?.version;
        let few = || Listing { count_max: COPY_COUNT_MAX, size_max: COPY_SIZE_MAX, ..all() };
        loop {
            let keys = match self.attributes(to, few()).await {
                // Somebody removed the copy.
                Err(ObjectError::Absent) => return Err(ObjectError::Changed),
                keys => keys?.entries,
            };
            let keys = keys.iter().map(|entry| Field::Attribute(entry.key().to_vec()));
            let changes: Vec<_> = keys.map(ObjectChange::Unset).collect();
            if changes.is_empty() {
                break;
            }
            version = self.change_at(to, version, changes).await?;
        }
        let mut written = 0;
        for part in data.chunks(OPERATION_DATA_MAX as usize) {
            let write = ObjectChange::Write { offset: written, bytes: part.to_vec() };
            version = self.change_at(to, version, vec![write]).await?;
            written += part.len() as u64;
            progress(written, data.len() as u64);
        }
        for of_records in [false, true] {
            let mut listing = few();
            loop {
                let page = match of_records {
                    false => self.attributes(from, listing.clone()).await?,
                    true => self.records(from, listing.clone()).await?,
                };
                let entries = page.entries.into_iter();
                let changes: Vec<ObjectChange> = entries
                    .filter_map(|entry| {
                        let PageEntry::Key(key, value) = entry else { return None };
                        let kind = if of_records { Field::Record } else { Field::Attribute };
                        Some(ObjectChange::Set(kind(key.to_vec()), value.to_vec()))
                    })
                    .collect();
                if !changes.is_empty() {
                    version = self.change_at(to, version, changes).await?;
                }
                match page.next {
                    Some(next) => listing.from = next,
                    None => break,
                }
            }
        }
        match self.stat(from).await? {
            Some(now) if now.version == stat.version => {
                self.change_at(to, version, vec![ObjectChange::Partial(false)]).await
            }
            _ => Err(ObjectError::Changed),
        }
    }

    /// Changes an object that has this version. Returns its new one.
    async fn change_at(
        &self,
        name: &Name,
        version: Version,
        changes: Vec<ObjectChange>,
    ) -> Result<Version, ObjectError> {
        match self.change_if(name, vec![Assertion::Version(version)], changes).await {
            Ok(executed) if executed.version > Version::ZERO => Ok(executed.version),
            // It changed nothing.
            Ok(_) => Ok(version),
            Err(ObjectError::Asserted { .. }) => Err(ObjectError::Changed),
            Err(error) => Err(error),
        }
    }

    /// Carries out many operations, each on one object. Those of one PG go together, as many as fit one
    /// request (1,000 objects, 1 MiB), and happen together, unless what one of the objects has makes the
    /// request too large: then they happen one by one. Operations on the same object should not be in one
    /// call: they may happen in any order. Returns how many happened and, if some did not, why.
    pub async fn bulk(&self, operations: Vec<ObjectSteps>) -> (usize, Result<(), ObjectError>) {
        let (mut alone, mut result) = (VecDeque::new(), Ok(()));
        let sound = operations.into_iter().filter(|steps| {
            let operation = Operation { objects: vec![steps.clone()] };
            let checked = operation.check();
            let is_sound = checked.is_ok();
            if let Err(why) = checked {
                result = Err(ObjectError::Invalid { why });
            }
            is_sound
        });
        let grouped = group_operations(sound, |name| self.pg_of(name));
        let asked: Vec<_> = grouped
            .into_iter()
            .map(|group| (self.begin(&group.request), group.request.objects))
            .collect();
        let mut done = 0;
        for (slot, objects) in asked {
            let reached = match slot {
                Ok(slot) => executed(slot.await),
                Err(error) => Err(error),
            };
            match reached {
                Ok(_) => done += objects.len(),
                // What one object has made it too large for all of them.
                Err(ObjectError::Invalid { .. }) if objects.len() > 1 => alone.extend(objects),
                Err(error) => result = Err(error),
            }
        }
        while let Some(steps) = alone.pop_front() {
            match self.execute(&Operation { objects: vec![steps] }).await {
                Ok(_) => done += 1,
                Err(error) => result = Err(error),
            }
        }
        (done, result)
    }

    /// Removes an object with everything that it has. Returns whether there was one.
    ///
    /// Errors: `Asserted`, as the assertions say; as those of [`ObjectPool::execute`].
    pub async fn remove(
        &self,
        name: &Name,
        assertions: Vec<Assertion>,
    ) -> Result<bool, ObjectError> {
        let executed = self.change_if(name, assertions, vec![ObjectChange::Remove]).await?;
        Ok(executed.results == [StepResult::Removed(true)])
    }

    /// Returns the values of attributes and records, in the same order; `None`: there is none.
    pub async fn values(
        &self,
        name: &Name,
        fields: &[Field],
    ) -> Result<Vec<Option<Vec<u8>>>, ObjectError> {
        let mut values = Vec::new();
        while values.len() < fields.len() {
            let rest = &fields[values.len()..];
            let fields = rest[..rest.len().min(LOOK_FIELDS_MAX)].to_vec();
            let size_max = READ_VALUES_MAX;
            let read = Read::Values { name: name.clone(), fields, size_max };
            match self.look_one(read).await? {
                ReadAnswer::Values(more) if !more.is_empty() => values.extend(more),
                _ => return Err(strange_answer()),
            }
        }
        Ok(values)
    }

    /// Returns a page of the attributes of an object, in the order of their names.
    pub async fn attributes(
        &self,
        name: &Name,
        listing: Listing,
    ) -> Result<Page<Bytes>, ObjectError> {
        self.fields(Read::Attributes { name: name.clone(), listing }).await
    }

    /// Returns a page of the records of an object, in the order of their keys.
    pub async fn records(&self, name: &Name, listing: Listing) -> Result<Page<Bytes>, ObjectError> {
        self.fields(Read::Records { name: name.clone(), listing }).await
    }

    async fn fields(&self, read: Read) -> Result<Page<Bytes>, ObjectError> {
        match self.look_one(read).await? {
            ReadAnswer::Fields(page) => Ok(page),
            _ => Err(strange_answer()),
        }
    }

    /// Returns a page of the pool's objects in the order of their names. The next page begins at
    /// [`Page::next`]; pages together have each object that was there throughout exactly once. `with_data`:
    /// with data of up to 32 KiB.
    ///
    /// Errors: `Invalid`, `Damaged`, `Ended`.
    pub async fn list(
        &self,
        listing: &Listing,
        with_data: bool,
    ) -> Result<Page<Listed>, ObjectError> {
        listing.check().map_err(|why| ObjectError::Invalid { why })?;
        let pg_count = self.pool.pg_count;
        // Each PG has about its share of a page; where one has more, the page ends earlier.
        let share = listing.count_max.div_ceil(pg_count as usize);
        let count_max = (share + share / 4 + 8).min(listing.count_max);
        let share = listing.size_max.div_ceil(pg_count as usize);
        let size_max = (share + share / 4 + 4096).min(listing.size_max);
        let each = Listing { count_max, size_max, ..listing.clone() };
        let pages = self.pages_of_all(NameQuery { listing: each, with_data }).await?;
        Ok(merge_pages(pages, listing.count_max, listing.size_max))
    }

    /// Returns a page as [`ObjectPool::list`] does, of as many objects as one message of each OSD tells of:
    /// up to some MiB. The limits of the listing do not count.
    ///
    /// Errors: `Invalid`, `Damaged`, `Ended`.
    pub async fn scan(
        &self,
        listing: &Listing,
        with_data: bool,
    ) -> Result<Page<Listed>, ObjectError> {
        let share = ANSWERS_SIZE_MAX / self.pool.pg_count as usize;
        let size_max = share.saturating_sub(SCAN_FRAME_SIZE).clamp(SCAN_SIZE_MIN, PAGE_SIZE_MAX);
        let each = Listing { count_max: PAGE_COUNT_MAX, size_max, ..listing.clone() };
        let pages = self.pages_of_all(NameQuery { listing: each, with_data }).await?;
        Ok(merge_pages(pages, usize::MAX, usize::MAX))
    }

    /// Returns a page of the names in these shards, in order, each at most once. Objects of which the
    /// first byte
    /// of data has a bit of `skip` are passed like those that are gone, also by common prefixes.
    ///
    /// Errors: `Invalid`, `Damaged`, `Ended`.
    pub async fn list_shards(
        &self,
        shards: impl IntoIterator<Item = Shard>,
        listing: &Listing,
        with_data: bool,
        skip: u8,
    ) -> Result<Page<Listed>, ObjectError> {
        listing.check().map_err(|why| ObjectError::Invalid { why })?;
        let mut by_pg: BTreeMap<u32, BTreeSet<Shard>> = BTreeMap::new();
        let mut shards_count = 0;
        for shard in shards {
            shards_count +=
                usize::from(by_pg.entry(self.pg_of_shard(shard)).or_default().insert(shard));
        }
        // Each has about its share, but all may have the same common prefixes.
        let share = |most: usize, of_pg: usize, least: usize| match listing.delimiter.is_empty() {
            true => {
                let share = (most * of_pg).div_ceil(shards_count.max(1));
                (share + share / 4 + least).min(most)
            }
            false => most,
        };
        let by_pg: Vec<Vec<Shard>> =
            by_pg.into_values().map(|shards| shards.into_iter().collect()).collect();
        // A PG may have more of them than one request may name.
        let asked: Vec<_> = by_pg
            .iter()
            .flat_map(|shards| shards.chunks(LOOK_SHARDS_MAX))
            .map(|shards| {
                let count_max = share(listing.count_max, shards.len(), 8);
                let size_max = (listing.size_max * shards.len()).div_ceil(shards_count.max(1));
                let size_max = (size_max + size_max / 4).max(SCAN_SIZE_MIN).min(listing.size_max);
                let listing = Listing { count_max, size_max, ..listing.clone() };
                let shards = shards.to_vec();
                self.begin_look(vec![Read::List { shards, listing, with_data, skip }])
            })
            .collect::<Result<_, _>>()?;
        let mut pages = Vec::with_capacity(asked.len());
        for slot in asked {
            match answered(slot.await)?.pop() {
                Some(ReadAnswer::List(page)) => pages.push(page),
                _ => return Err(strange_answer()),
            }
        }
        Ok(merge_pages(pages, listing.count_max, listing.size_max))
    }

    /// Whether the pool's names have a group and a locator, by which they are placed.
    pub fn has_grouped_names(&self) -> bool {
        self.sharding.names == NameHash::Grouped
    }

    /// Returns the shard of an object.
    pub fn shard_of(&self, name: &Name) -> Shard {
        self.sharding.shard(name)
    }

    /// Asks all PGs for their pages: each OSD at once for those that it leads.
    async fn pages_of_all(&self, query: NameQuery) -> Result<Vec<Page<Listed>>, ObjectError> {
        query.check().map_err(|why| ObjectError::Invalid { why })?;
        let wish = Wish::List {
            names: query.encode(),
            page_size_max: query.answer_size_max() as u64,
            pgs_max: query.pgs_max(),
        };
        let listed = self.hold.begin(wish, self.within).await?;
        let Found::Listed { pages: answers, refused } = listed else {
            unreachable!("a list has pages")
        };
        let alone: Vec<_> = refused
            .into_iter()
            .map(|pg| self.begin_look(query.look(self.shards_of_pg(pg)).reads))
            .collect::<Result<_, _>>()?;
        let mut pages = Vec::with_capacity(self.pool.pg_count as usize);
        for bytes in answers {
            pages.extend(decode_pages(&bytes.into()).ok_or_else(strange_answer)?);
        }
        for slot in alone {
            match answered(slot.await)?.pop() {
                Some(ReadAnswer::List(page)) => pages.push(page),
                _ => return Err(strange_answer()),
            }
        }
        match pages.len() == self.pool.pg_count as usize {
            true => Ok(pages),
            false => Err(strange_answer()),
        }
    }
}

/// Returns a listing of everything, in the largest pages.
pub fn all() -> Listing {
    Listing { count_max: PAGE_COUNT_MAX, size_max: PAGE_SIZE_MAX, ..Listing::default() }
}

fn executed(reached: Reached) -> Result<Executed, ObjectError> {
    match reached? {
        Found::Mutated { version, results } => match decode_results(&results) {
            Some(results) => Ok(Executed { version, results }),
            None => Err(strange_answer()),
        },
        _ => unreachable!("an operation has results"),
    }
}

fn answered(reached: Reached) -> Result<Vec<ReadAnswer>, ObjectError> {
    match reached? {
        Found::Looked(answers) => decode_answers(&answers.into()).ok_or_else(strange_answer),
        _ => unreachable!("a look has answers"),
    }
}

fn strange_answer() -> ObjectError {
    let why = "an OSD answered what was not asked: is it of another version of Ashlar?";
    ObjectError::Invalid { why: why.to_string() }
}
