//! Object pools for async programs: objects with data, attributes and records, and lists of them.
//!
//! ```text
//!   ObjectPool ──execute──▶ one operation, in one PG, all or nothing
//!              ──look─────▶ reads in one PG, of one moment
//!              ──list─────▶ List: pages of names in order, of all PGs, merged
//! ```
//!
//! Invariants
//!   1. What is read in several parts is of one version, or the read fails with [`ObjectError::Changed`].
//!   2. A list has each name that was there throughout exactly once, in order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use base::Version;
use base::hash::pg_of_hash;
use cluster::map::{Pool, PoolKind};
use objects::listing::{PAGE_COUNT_MAX, PAGE_SIZE_MAX};
use objects::look::{LOOK_FIELDS_MAX, READ_DATA_MAX, READ_VALUES_MAX};
use objects::operation::{OPERATION_DATA_MAX, OPERATION_OBJECTS_MAX, OPERATION_RECORDS_MAX};
use objects::{Look, Operation, Read, ReadAnswer, Shard, decode_answers, decode_results};
use volume::{Place, VolumeError};

pub use objects::{
    Assertion, Field, Listed, Listing, Name, ObjectChange, ObjectSteps, Page, PageEntry, Stat,
    StepResult,
};

use crate::asynchronous::{Found, Hold, Reached, Slot, Wish};

/// How often a read of several parts begins again when the object was changed meanwhile.
const READ_AGAIN_MAX: usize = 8;
/// What a head and its key take at most, beside name and data, in bytes.
const HEAD_SIZE: usize = 64;

/// An open object pool; dropping it closes it.
pub struct ObjectPool {
    hold: Hold,
    pool: Pool,
    shard_count: u32,
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
    /// No answer in the time that was set. A change may still happen.
    TimedOut,
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
            ObjectError::TimedOut => f.write_str("timed out; a change may still happen"),
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
            VolumeError::TimedOut => ObjectError::TimedOut,
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
    pub(crate) fn new(hold: Hold, pool: Pool) -> ObjectPool {
        let PoolKind::Object { shards, .. } = pool.kind else {
            unreachable!("the monitor opens only pools of objects")
        };
        ObjectPool { hold, pool, shard_count: shards }
    }

    /// Returns the pool, as it was when it was opened.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns the number of the PG that has an object. Only objects of one PG can be changed together.
    pub fn pg_of(&self, name: &Name) -> u32 {
        pg_of_hash(name.hash(), self.pool.pg_count)
    }

    /// Carries out an operation: all of it, durably at all copies, or nothing.
    ///
    /// Errors: `Asserted`, `Invalid`, `Full`, `Damaged`, `Ended`.
    pub async fn execute(&self, operation: &Operation) -> Result<Executed, ObjectError> {
        executed(self.begin(operation)?.await)
    }

    /// Sends an operation. It happens even if the answer is not waited for.
    fn begin(&self, operation: &Operation) -> Result<Slot<Reached>, ObjectError> {
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
        let wish = Wish::Mutate { hash: first.hash(), operation: operation.encode() };
        Ok(self.hold.begin(wish))
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

    fn begin_look(&self, reads: Vec<Read>) -> Result<Slot<Reached>, ObjectError> {
        let look = Look { reads };
        look.check().map_err(|why| ObjectError::Invalid { why })?;
        let pgs: Vec<u32> =
            look.shards(self.shard_count).into_iter().map(|it| self.pg_of_shard(it)).collect();
        if pgs.iter().any(|pg| *pg != pgs[0]) {
            let why = "the objects are in different PGs: read them one after the other".to_string();
            return Err(ObjectError::Invalid { why });
        }
        Ok(self.hold.begin(Wish::Look { at: Place::Pg(pgs[0]), reads: look.encode() }))
    }

    /// Shards and PGs are both top bits of the hash.
    fn pg_of_shard(&self, shard: Shard) -> u32 {
        u32::from(shard.get()) / (self.shard_count / self.pool.pg_count)
    }

    fn shards_of_pg(&self, pg: u32) -> Vec<Shard> {
        let count = self.shard_count / self.pool.pg_count;
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

    /// Reads a range of an object's data, in bytes: less, if the object ends before. All of it is of one
    /// version. `None`: there is no object.
    pub async fn read(
        &self,
        name: &Name,
        offset: u64,
        length: u64,
    ) -> Result<Option<(Stat, Vec<u8>)>, ObjectError> {
        for _ in 0..READ_AGAIN_MAX {
            let Some((stat, mut data)) = self.read_part(name, offset, length).await? else {
                return Ok(None);
            };
            let end = stat.size.clamp(offset, offset.saturating_add(length));
            while offset + (data.len() as u64) < end {
                let from = offset + data.len() as u64;
                match self.read_part(name, from, end - from).await? {
                    Some((now, more)) if now.version == stat.version && !more.is_empty() => {
                        data.extend(more);
                    }
                    _ => break,
                }
            }
            if offset + data.len() as u64 == end {
                return Ok(Some((stat, data)));
            }
        }
        Err(ObjectError::Changed)
    }

    /// Reads as much of a range as one request can.
    pub(crate) async fn read_part(
        &self,
        name: &Name,
        offset: u64,
        length: u64,
    ) -> Result<Option<(Stat, Vec<u8>)>, ObjectError> {
        let length = length.min(READ_DATA_MAX.into()) as u32;
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
        let steps = ObjectSteps { name: name.clone(), assertions: Vec::new(), changes };
        self.execute(&Operation { objects: vec![steps] }).await
    }

    /// Puts data of any size: it replaces all of the object's data, and keeps attributes and records. Returns
    /// the object's version.
    ///
    /// Up to [`OPERATION_DATA_MAX`] bytes it is one operation. More data is written in parts, one after the
    /// other, each only if nobody else has changed the object since the one before: until the last one, readers
    /// find the first part of the data. `progress` is told how many bytes are there.
    ///
    /// Errors: `Asserted`, as the assertions say; `Changed`: somebody else changed the object between two
    /// parts, and the object has what that left.
    pub async fn put(
        &self,
        name: &Name,
        assertions: Vec<Assertion>,
        data: &[u8],
        mut progress: impl FnMut(u64),
    ) -> Result<Version, ObjectError> {
        let (first, mut rest) = data.split_at(data.len().min(OPERATION_DATA_MAX as usize));
        let step = |assertions, change| {
            let (name, changes) = (name.clone(), vec![change]);
            Operation { objects: vec![ObjectSteps { name, assertions, changes }] }
        };
        let first = self.execute(&step(assertions, ObjectChange::Put(first.to_vec()))).await?;
        let mut version = first.version;
        while !rest.is_empty() {
            let offset = (data.len() - rest.len()) as u64;
            progress(offset);
            let (part, more) = rest.split_at(rest.len().min(OPERATION_DATA_MAX as usize));
            let change = ObjectChange::Write { offset, bytes: part.to_vec() };
            let written = self.execute(&step(vec![Assertion::Version(version)], change)).await;
            version = match written {
                Ok(written) => written.version,
                Err(ObjectError::Asserted { .. }) => return Err(ObjectError::Changed),
                Err(error) => return Err(error),
            };
            rest = more;
        }
        progress(data.len() as u64);
        Ok(version)
    }

    /// Puts data of up to 32 KiB under each of these names, or removes the object (`None`). Those of one PG go
    /// together, as many as fit an operation, and each operation happens as a whole. Returns how many changes
    /// happened and, if some did not, why.
    pub async fn bulk(
        &self,
        changes: BTreeMap<Name, Option<Vec<u8>>>,
    ) -> (usize, Result<(), ObjectError>) {
        let mut by_pg: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for (name, value) in changes {
            by_pg.entry(self.pg_of(&name)).or_default().push((name, value));
        }
        let operations = by_pg.into_values().flat_map(operations_of);
        let asked: Vec<_> =
            operations.map(|operation| (operation.objects.len(), self.begin(&operation))).collect();
        let (mut done, mut result) = (0, Ok(()));
        for (count, slot) in asked {
            let reached = match slot {
                Ok(slot) => executed(slot.await),
                Err(error) => Err(error),
            };
            match reached {
                Ok(_) => done += count,
                Err(error) => result = Err(error),
            }
        }
        (done, result)
    }

    /// Removes an object with everything that it has. Returns whether there was one.
    pub async fn remove(&self, name: &Name) -> Result<bool, ObjectError> {
        let executed = self.change(name, vec![ObjectChange::Remove]).await?;
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
    ) -> Result<Page<Vec<u8>>, ObjectError> {
        self.fields(Read::Attributes { name: name.clone(), listing }).await
    }

    /// Returns a page of the records of an object, in the order of their keys.
    pub async fn records(
        &self,
        name: &Name,
        listing: Listing,
    ) -> Result<Page<Vec<u8>>, ObjectError> {
        self.fields(Read::Records { name: name.clone(), listing }).await
    }

    async fn fields(&self, read: Read) -> Result<Page<Vec<u8>>, ObjectError> {
        match self.look_one(read).await? {
            ReadAnswer::Fields(page) => Ok(page),
            _ => Err(strange_answer()),
        }
    }

    /// Begins a list of the pool's objects. The limits of the listing are those of a page; see
    /// [`Listing::check`]. `with_data`: with data of up to 32 KiB.
    ///
    /// Errors: `Invalid`.
    pub fn list(&self, listing: Listing, with_data: bool) -> Result<List<'_>, ObjectError> {
        listing.check().map_err(|why| ObjectError::Invalid { why })?;
        let pgs = (0..self.pool.pg_count).map(|pg| PgList {
            shards: self.shards_of_pg(pg),
            next: Some(listing.from.clone()),
            entries: VecDeque::new(),
        });
        Ok(List { pool: self, pgs: pgs.collect(), listing, with_data })
    }
}

/// Returns a listing of everything, in the largest pages.
pub fn all() -> Listing {
    Listing { count_max: PAGE_COUNT_MAX, size_max: PAGE_SIZE_MAX, ..Listing::default() }
}

/// A list of a pool's objects, page by page.
pub struct List<'a> {
    pool: &'a ObjectPool,
    pgs: Vec<PgList>,
    listing: Listing,
    with_data: bool,
}

/// What is known of one PG's part of a list.
struct PgList {
    shards: Vec<Shard>,
    /// Where its next page begins. `None`: all of it came.
    next: Option<Vec<u8>>,
    /// Entries that came and were not told yet, in order.
    entries: VecDeque<PageEntry<Listed>>,
}

fn key_of<V>(entry: &PageEntry<V>) -> &[u8] {
    match entry {
        PageEntry::Key(key, _) | PageEntry::CommonPrefix(key) => key,
    }
}

impl List<'_> {
    /// Returns the next page: entries in order, none if there are no more. Later pages need not be asked for.
    pub async fn next_page(&mut self) -> Result<Vec<PageEntry<Listed>>, ObjectError> {
        let mut page = Vec::new();
        while page.len() < self.listing.count_max {
            self.fetch().await?;
            let pgs = self.pgs.iter_mut().filter(|pg| !pg.entries.is_empty());
            let Some(pg) =
                pgs.min_by(|one, other| key_of(&one.entries[0]).cmp(key_of(&other.entries[0])))
            else {
                break;
            };
            let entry = pg.entries.pop_front().expect("it has one");
            if let PageEntry::CommonPrefix(prefix) = &entry {
                // Other PGs have names with this prefix, too.
                for pg in &mut self.pgs {
                    let is_same = |entry: &PageEntry<Listed>| key_of(entry) == prefix;
                    pg.entries.pop_front_if(|entry| is_same(entry));
                }
            }
            page.push(entry);
        }
        Ok(page)
    }

    /// Asks the PGs of which nothing more is known, all at the same time.
    async fn fetch(&mut self) -> Result<(), ObjectError> {
        loop {
            let lacks = |pg: &PgList| pg.entries.is_empty() && pg.next.is_some();
            let mut asked = Vec::new();
            for (index, pg) in self.pgs.iter().enumerate().filter(|(_, pg)| lacks(pg)) {
                let listing = Listing {
                    from: pg.next.clone().expect("looked at just now"),
                    count_max: self.page_count(),
                    ..self.listing.clone()
                };
                let (shards, with_data) = (pg.shards.clone(), self.with_data);
                let read = Read::List { shards, listing, with_data };
                asked.push((index, self.pool.begin_look(vec![read])?));
            }
            if asked.is_empty() {
                return Ok(());
            }
            for (index, slot) in asked {
                let Some(ReadAnswer::List(page)) = answered(slot.await)?.pop() else {
                    return Err(strange_answer());
                };
                let pg = &mut self.pgs[index];
                if page.next.is_some() && page.next <= pg.next {
                    return Err(strange_answer());
                }
                pg.next = page.next;
                pg.entries = page.entries.into();
            }
        }
    }

    /// How many entries to ask each PG for: its share of a page, and some more.
    fn page_count(&self) -> usize {
        let share = self.listing.count_max.div_ceil(self.pgs.len());
        (share + share / 4 + 4).min(self.listing.count_max)
    }
}

/// Groups changes of objects in the same PG into operations within the limits.
fn operations_of(changes: Vec<(Name, Option<Vec<u8>>)>) -> Vec<Operation> {
    let mut operations: Vec<Operation> = Vec::new();
    let mut size = 0;
    for (name, value) in changes {
        // Keys count twice, with up to two bytes for each of the name, and a head has more than the value.
        let takes = 4 * name.bytes().len() + value.as_ref().map_or(0, Vec::len) + HEAD_SIZE;
        let has_room = |operation: &Operation| {
            size + takes <= OPERATION_RECORDS_MAX && operation.objects.len() < OPERATION_OBJECTS_MAX
        };
        if !operations.last().is_some_and(has_room) {
            operations.push(Operation { objects: Vec::new() });
            size = 0;
        }
        size += takes;
        let change = value.map_or(ObjectChange::Remove, ObjectChange::Put);
        let steps = ObjectSteps { name, assertions: Vec::new(), changes: vec![change] };
        operations.last_mut().expect("there is one").objects.push(steps);
    }
    operations
}

fn executed(reached: Option<Reached>) -> Result<Executed, ObjectError> {
    match reached.unwrap_or(Err(VolumeError::Ended))? {
        Found::Mutated { version, results } => match decode_results(&results) {
            Some(results) => Ok(Executed { version, results }),
            None => Err(strange_answer()),
        },
        _ => unreachable!("an operation has results"),
    }
}

fn answered(reached: Option<Reached>) -> Result<Vec<ReadAnswer>, ObjectError> {
    match reached.unwrap_or(Err(VolumeError::Ended))? {
        Found::Looked(answers) => decode_answers(&answers).ok_or_else(strange_answer),
        _ => unreachable!("a look has answers"),
    }
}

fn strange_answer() -> ObjectError {
    let why = "an OSD answered what was not asked: is it of another version of Ashlar?";
    ObjectError::Invalid { why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_pg_go_together_within_the_limits() {
        let name = |number: usize| Name::new(format!("key {number:05}").as_bytes()).expect("short");
        let value = |number: usize| (number % 3 > 0).then(|| vec![7; number % 2000]);
        let changes: Vec<_> = (0..5000).map(|number| (name(number), value(number))).collect();
        let operations = operations_of(changes.clone());
        let largest = operations.iter().map(|operation| operation.objects.len()).max();
        assert!(operations.len() > 5 && largest == Some(OPERATION_OBJECTS_MAX));
        for operation in &operations {
            assert_eq!(operation.check(), Ok(()));
        }
        let objects = operations.into_iter().flat_map(|operation| operation.objects);
        let found = objects.map(|mut steps| match (steps.changes.remove(0), steps.name) {
            (ObjectChange::Put(bytes), name) => (name, Some(bytes)),
            (ObjectChange::Remove, name) => (name, None),
            other => panic!("{other:?}"),
        });
        assert!(found.eq(changes));
    }

    #[test]
    fn large_values_fill_an_operation_by_their_size() {
        let name = |number: u8| Name::new(&[number; 1024]).expect("the longest");
        let changes = (0..100).map(|number| (name(number), Some(vec![1; 32 << 10]))).collect();
        let counts: Vec<usize> =
            operations_of(changes).iter().map(|operation| operation.objects.len()).collect();
        assert_eq!(counts, [28, 28, 28, 16]);
    }
}
