//! Pages at their primary: what a range of a learner becomes is read here, when no batch in flight touches it,
//! and sent before any later one. `docs/internals/objects.md`, rules 58 and 59.
//!
//! ```text
//!   what differs ─▶ footprint ─▶ batches that touch it have ended ─▶ read ─▶ sent, footprint freed ─▶ Repaired
//! ```
//!
//! Invariants
//!   1. From the moment a page has its footprint until it is sent, no batch that touches it gets a version. It
//!      is read when those before have ended. So its content is of one moment, and behind it on the connection
//!      come all batches that it does not show.
//!   2. An object that needs several pages is incomplete at the learner from the first one to the last one.
//!   3. A learner has one page under way.

use std::collections::BTreeSet;

use ::objects::keys::{attributes_range, object_of, records_range, shared_range};
use ::objects::{Head, Key, Kind, Name, NameHash, Shard, Sharding};
use base::planted::{self, Bug};
use base::{Checksum, Version};
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::disk::{BlockAction, BlockChange, LOCATION_NONE, UnitSet};
use format::engine::{Answer as Found, Change, Query, Records};
use format::wire::{Content, PagePart, PeerBody};

use super::batch;
use super::fill::{Due, name_of};
use crate::ask::Asked;
use crate::store_calls::Call;
use crate::{Action, Pg};

/// A change of a record takes so many bytes in an entry, beside its key and value.
const RECORD_OVERHEAD: usize = 7;
/// At most so many records are read for a page.
const RECORD_COUNT_MAX: usize = 8192;

/// What a batch changes, or a page has as its footprint: objects, by their hashes, and repeats, by shards. An
/// object's records and blocks are under its hash alone.
#[derive(Clone, Default, Debug)]
pub struct Footprint {
    pub hashes: BTreeSet<u32>,
    pub repeats: BTreeSet<Shard>,
}

impl Footprint {
    pub fn meets(&self, other: &Footprint) -> bool {
        !self.hashes.is_disjoint(&other.hashes) || !self.repeats.is_disjoint(&other.repeats)
    }

    /// Adds a key of the engine.
    fn add_key(&mut self, key: &[u8], names: NameHash) {
        match object_of(key) {
            Some(name) => _ = self.hashes.insert(name.hash(names)),
            None => _ = self.repeats.insert(Shard::of_key(key)),
        }
    }
}

/// What a page brings.
#[derive(Clone, Debug)]
pub enum What {
    /// Nothing: the learner has none of the shared keys of the shard afterwards.
    Nothing(Shard),
    /// Whole objects beside their blocks, as many of them as there is room for.
    Objects(Vec<Name>),
    /// The next part of an object.
    Part(Long),
    /// Some keys: those of no object, or what a log names.
    Keys(Vec<Vec<u8>>),
    /// What lies in a range of keys of one object, or of none, as much of it as there is room for.
    Range(Vec<u8>, Vec<u8>),
    Blocks(Vec<BlockKey>),
}

/// An object that needs several pages, and how far it has been copied.
#[derive(Clone, Debug)]
pub struct Long {
    pub name: Name,
    /// Where the next part begins. `None`: with the head, and the attributes.
    pub from: Option<Vec<u8>>,
}

/// A page that is not sent yet.
pub struct InHand {
    what: What,
    footprint: Footprint,
    is_reading: bool,
    /// Blocks that have been read.
    blocks: Vec<Option<Content>>,
}

/// What follows when the records of a page have been read.
pub enum Made {
    /// It is this. `left`: what there was no room for.
    Page { records: Vec<Change>, part: PagePart, left: Vec<Due>, next: Option<Long> },
    /// The first object is copied alone, or in parts: it is larger than was read.
    TooLong,
}

impl What {
    fn footprint(&self, hash: NameHash) -> Footprint {
        let mut of = Footprint::default();
        match self {
            What::Nothing(_) => {}
            What::Objects(names) => of.hashes.extend(names.iter().map(|name| name.hash(hash))),
            What::Part(long) => _ = of.hashes.insert(long.name.hash(hash)),
            What::Blocks(keys) => of.hashes.extend(keys.iter().map(|key| key.hash)),
            What::Keys(keys) => keys.iter().for_each(|key| of.add_key(key, hash)),
            What::Range(start, _) => of.add_key(start, hash),
        }
        of
    }
}

impl InHand {
    pub fn new(what: What, names: NameHash) -> InHand {
        let count = if let What::Blocks(keys) = &what { keys.len() } else { 0 };
        let footprint = what.footprint(names);
        InHand { what, footprint, is_reading: false, blocks: vec![None; count] }
    }

    /// Gives the page up; returns the objects that it was to bring.
    pub fn into_names(self) -> Vec<Name> {
        match self.what {
            What::Objects(names) => names,
            _ => unreachable!("only objects are larger than was read"),
        }
    }

    /// Whether a batch must wait until the page is sent.
    pub fn stops(&self, touched: &Footprint) -> bool {
        self.footprint.meets(touched) && !planted::on(Bug::PageOvertakesMutation)
    }
}

impl Pg {
    /// Reads what the page in hand brings to a learner, if no batch in flight touches it.
    pub(super) fn read_page(&mut self, learner: usize, actions: &mut Vec<Action>) {
        let size_max = self.shape.limits.page_size_max;
        let in_flight = &self.objects.in_flight;
        let fill = self.objects.fills.get_mut(&learner).expect("the learner is filled");
        let hand = fill.hand.as_mut().expect("it has a page in hand");
        let is_held = in_flight.iter().any(|batch| batch.footprint.meets(&hand.footprint));
        if hand.is_reading || is_held && !planted::on(Bug::PageOvertakesMutation) {
            return;
        }
        hand.is_reading = true;
        let what = hand.what.clone();
        let sharding = self.pool_shape().sharding;
        let queries = match &what {
            What::Nothing(shard) => {
                let (start, end) = shared_range(*shard);
                let records = vec![Change::DeleteRange { start, end }];
                return self.send_page(learner, PagePart::Whole, records, Vec::new(), actions);
            }
            What::Objects(names) => {
                let size_max = size_max / names.len();
                names.iter().flat_map(|name| of_object(name, sharding, size_max)).collect()
            }
            What::Part(long) => long.queries(sharding, size_max),
            What::Keys(keys) => keys.iter().map(|key| Query::Get { key: key.clone() }).collect(),
            What::Range(start, end) => {
                let head = object_of(start).map(|name| ranges_of(&name, sharding).0);
                let head = head.map(|key| Query::Get { key });
                let range = scan((start.clone(), end.clone()), size_max);
                head.into_iter().chain([range]).collect()
            }
            What::Blocks(keys) => {
                for (at, key) in keys.iter().enumerate() {
                    let units = UnitSet::first(self.shape.block_size.unit_count());
                    let units = units.words(self.shape.block_size.unit_count());
                    let request = StoreRequest::Copy { key: *key, units, as_of: AsOf::View };
                    self.call(Call::PageBlock { learner, at }, request, actions);
                }
                return;
            }
        };
        self.read_records(Call::PageRecords { learner }, queries, actions);
    }

    /// Handles the records that a page brings.
    pub(crate) fn on_page_records(
        &mut self,
        learner: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let sharding = self.pool_shape().sharding;
        let size_max = self.shape.limits.page_size_max;
        if !self.objects.fills.contains_key(&learner) {
            return;
        }
        let with_ranges = !self.has_only_batches(learner);
        let fill = self.objects.fills.get_mut(&learner).expect("it was just found");
        // The filling may have been given up meanwhile.
        let Some(hand) = fill.hand.as_ref() else { return };
        let Ok(Answer::Records { answers, .. }) = result else {
            return self.cannot_fill(learner, "this OSD cannot read what it must copy", actions);
        };
        let made = match &hand.what {
            What::Objects(names) => objects_page(names, answers, with_ranges, sharding, size_max),
            What::Part(long) => long.page(answers, with_ranges, sharding, size_max),
            What::Keys(keys) => keys_page(keys, answers, sharding, size_max),
            What::Range(start, end) => range_page((start, end), answers, sharding, size_max),
            What::Nothing(_) | What::Blocks(_) => unreachable!("no records are read"),
        };
        match made {
            Made::Page { records, part, left, next } => {
                fill.put_back(left, next);
                self.send_page(learner, part, records, Vec::new(), actions);
            }
            Made::TooLong => {
                fill.split_front();
                self.pump_objects(actions);
            }
        }
    }

    /// Handles a block that a page brings.
    pub(crate) fn on_page_block(
        &mut self,
        learner: usize,
        at: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let version = self.mark();
        let Some(fill) = self.objects.fills.get_mut(&learner) else { return };
        let Some(hand) = fill.hand.as_mut() else { return };
        let Ok(Answer::Copy { content }) = result else {
            return self.cannot_fill(learner, "this OSD cannot read what it must copy", actions);
        };
        hand.blocks[at] = Some(content);
        let What::Blocks(keys) = &hand.what else { unreachable!("it has blocks") };
        if hand.blocks.iter().any(Option::is_none) {
            return;
        }
        let contents = hand.blocks.iter().flatten();
        let lines =
            keys.iter().zip(contents).flat_map(|(key, content)| lines_of(*key, content, version));
        let blocks = lines.collect();
        self.send_page(learner, PagePart::Whole, Vec::new(), blocks, actions);
    }

    /// Sends the page in hand, and frees its footprint.
    fn send_page(
        &mut self,
        learner: usize,
        part: PagePart,
        records: Vec<Change>,
        blocks: Vec<(BlockChange, Vec<u8>)>,
        actions: &mut Vec<Action>,
    ) {
        let (version, block_size) = (self.mark(), self.shape.block_size);
        let content = batch::content_of(records, blocks, block_size, &self.buffers);
        let bytes = content.data.len() as u64;
        let fill = self.objects.fills.get_mut(&learner).expect("the learner is filled");
        (fill.hand, fill.is_sent) = (None, true);
        let call = self.lead().asks.ask(learner, Asked::Page { bytes });
        self.send(learner, PeerBody::Page { call, version, part, content }, actions);
        self.pump_objects(actions);
    }
}

/// A range of keys: the first one, and the first one behind it.
type Range = (Vec<u8>, Vec<u8>);

/// Returns the key of an object's head, and the ranges of its attributes and records.
fn ranges_of(name: &Name, sharding: Sharding) -> (Vec<u8>, Range, Range) {
    let shard = sharding.shard(name);
    let head = Key { shard, kind: Kind::Head { name: name.clone() } }.encode();
    (head, attributes_range(shard, name), records_range(shard, name, &[], None))
}

/// Returns the changes that remove all of an object but its blocks, whatever a learner has of it: once its
/// head is gone, nothing would tell of the rest.
pub(super) fn removal_of(name: &Name, sharding: Sharding) -> Vec<Change> {
    let (key, attributes, records) = ranges_of(name, sharding);
    let ranges = [attributes, records].map(|(start, end)| Change::DeleteRange { start, end });
    [Change::Delete { key }].into_iter().chain(ranges).collect()
}

fn scan((start, end): Range, size_max: usize) -> Query {
    Query::Scan { start, end: Some(end), count_max: RECORD_COUNT_MAX, size_max }
}

fn of_object(name: &Name, sharding: Sharding, size_max: usize) -> [Query; 3] {
    let (key, attributes, records) = ranges_of(name, sharding);
    [Query::Get { key }, scan(attributes, size_max), scan(records, size_max)]
}

fn put_or_delete(key: Vec<u8>, value: Option<Vec<u8>>) -> Change {
    match value {
        Some(value) => Change::Put { key, value },
        None => Change::Delete { key },
    }
}

fn put((key, value): (&[u8], &[u8])) -> Change {
    Change::Put { key: key.to_vec(), value: value.to_vec() }
}

pub(super) fn size_of(change: &Change) -> usize {
    change.size() + RECORD_OVERHEAD
}

fn value(answer: Option<Found>) -> Option<Vec<u8>> {
    match answer {
        Some(Found::Value(value)) => value,
        _ => unreachable!("a key has a value as answer"),
    }
}

fn records(answer: Option<Found>) -> (Records, bool) {
    match answer {
        Some(Found::Records { records, more }) => (records, more),
        _ => unreachable!("a scan has records as answer"),
    }
}

/// Makes the page of whole objects: of as many as fit. `with_ranges`: the learner may have more of them than
/// there is here.
fn objects_page(
    names: &[Name],
    answers: Vec<Found>,
    with_ranges: bool,
    sharding: Sharding,
    size_max: usize,
) -> Made {
    let mut answers = answers.into_iter();
    let (mut changes, mut size) = (Vec::new(), 0);
    for (at, name) in names.iter().enumerate() {
        let (key, attributes, fields) = ranges_of(name, sharding);
        let mut of_this = vec![put_or_delete(key, value(answers.next()))];
        let mut is_cut = false;
        for (start, end) in [attributes, fields] {
            let (found, more) = records(answers.next());
            of_this.extend(with_ranges.then_some(Change::DeleteRange { start, end }));
            of_this.extend(found.iter().map(put));
            is_cut |= more;
        }
        let this_size: usize = of_this.iter().map(size_of).sum();
        if is_cut || size + this_size > size_max {
            // An object that was read whole and does not fit alone has little more than fits.
            return match at {
                0 => Made::TooLong,
                _ => {
                    let left = names[at..].iter().cloned().map(Due::Object).collect();
                    Made::Page { records: changes, part: PagePart::Whole, left, next: None }
                }
            };
        }
        size += this_size;
        changes.extend(of_this);
    }
    Made::Page { records: changes, part: PagePart::Whole, left: Vec::new(), next: None }
}

/// Makes the page of some keys: of as many as fit, and of one at least.
fn keys_page(keys: &[Vec<u8>], answers: Vec<Found>, sharding: Sharding, size_max: usize) -> Made {
    let (mut changes, mut size): (Vec<Change>, usize) = (Vec::new(), 0);
    for (at, (key, answer)) in keys.iter().zip(answers).enumerate() {
        let of_this = match value(Some(answer)) {
            Some(value) => vec![Change::Put { key: key.clone(), value }],
            // Without its head, nothing would tell of what the learner has of an object.
            None => match name_of(key) {
                Some(name) => removal_of(&name, sharding),
                None => vec![Change::Delete { key: key.clone() }],
            },
        };
        size += of_this.iter().map(size_of).sum::<usize>();
        if at > 0 && size > size_max {
            let left = keys[at..].iter().cloned().map(Due::Key).collect();
            return Made::Page { records: changes, part: PagePart::Whole, left, next: None };
        }
        changes.extend(of_this);
    }
    Made::Page { records: changes, part: PagePart::Whole, left: Vec::new(), next: None }
}

/// Makes the page of a range: as much of it as fits, and one record at least, if there is one. The head of
/// its object comes along: without it nothing would tell of what the learner has then.
fn range_page(
    (start, end): (&[u8], &[u8]),
    answers: Vec<Found>,
    sharding: Sharding,
    size_max: usize,
) -> Made {
    let mut answers = answers.into_iter();
    let mut changes = match object_of(start) {
        Some(name) => match value(answers.next()) {
            Some(value) => vec![Change::Put { key: ranges_of(&name, sharding).0, value }],
            None => removal_of(&name, sharding),
        },
        None => Vec::new(),
    };
    let (found, more) = records(answers.next());
    let size = changes.iter().map(size_of).sum();
    let (puts, behind) = fitting(&found, more, size, size_max);
    let left = behind.iter().map(|behind| Due::Range(behind.clone(), end.to_vec())).collect();
    let end = behind.unwrap_or_else(|| end.to_vec());
    changes.push(Change::DeleteRange { start: start.to_vec(), end });
    changes.extend(puts);
    Made::Page { records: changes, part: PagePart::Whole, left, next: None }
}

/// Returns those of the records that fit beside so many bytes, one at least, and where the rest begins.
fn fitting(
    found: &Records,
    more: bool,
    beside: usize,
    size_max: usize,
) -> (Vec<Change>, Option<Vec<u8>>) {
    let (mut size, mut is_cut) = (beside, more);
    let (mut puts, mut last) = (Vec::new(), None);
    for (key, value) in found.iter() {
        let change = put((key, value));
        if !puts.is_empty() && size + size_of(&change) > size_max {
            is_cut = true;
            break;
        }
        size += size_of(&change);
        last = Some(key);
        puts.push(change);
    }
    (puts, last.filter(|_| is_cut).map(|last| [last, &[0]].concat()))
}

impl Long {
    fn queries(&self, sharding: Sharding, size_max: usize) -> Vec<Query> {
        let (key, attributes, fields) = ranges_of(&self.name, sharding);
        match &self.from {
            None => vec![Query::Get { key }, scan(attributes, size_max)],
            Some(from) if *from < attributes.1 => {
                vec![scan((from.clone(), attributes.1), size_max)]
            }
            Some(from) => vec![scan((from.clone(), fields.1), size_max)],
        }
    }

    /// Makes the next page. It has one record at least, if there is one. `with_ranges`: the learner may have
    /// more than there is here.
    fn page(
        &self,
        answers: Vec<Found>,
        with_ranges: bool,
        sharding: Sharding,
        size_max: usize,
    ) -> Made {
        let (key, attributes, fields) = ranges_of(&self.name, sharding);
        let mut answers = answers.into_iter();
        let mut changes = Vec::new();
        let mut part = PagePart::Middle;
        if self.from.is_none() {
            let head = value(answers.next());
            let version = head.as_deref().and_then(Head::decode).map(|head| head.version);
            let version = version.unwrap_or(Version::ZERO);
            part = PagePart::First { name: self.name.bytes().to_vec(), version };
            changes.push(put_or_delete(key, head));
        }
        let start = self.from.clone().unwrap_or_else(|| attributes.0.clone());
        let is_of_records = start >= attributes.1;
        let end = if is_of_records { &fields.1 } else { &attributes.1 };
        let (found, more) = records(answers.next());
        let size: usize = changes.iter().map(size_of).sum();
        let (puts, behind) = fitting(&found, more, size, size_max);
        let (more, behind) = (behind.is_some(), behind.unwrap_or_else(|| end.clone()));
        let next = match (more, is_of_records) {
            (true, _) => Some(behind.clone()),
            (false, false) => Some(fields.0),
            (false, true) => None,
        };
        if next.is_none() {
            part = PagePart::Last { name: self.name.bytes().to_vec() };
        }
        // A page has something: where nothing is left of the object, the deletion that finds nothing.
        if with_ranges || changes.is_empty() && puts.is_empty() {
            changes.push(Change::DeleteRange { start, end: behind });
        }
        changes.extend(puts);
        let next = next.map(|from| Long { name: self.name.clone(), from: Some(from) });
        Made::Page { records: changes, part, left: Vec::new(), next }
    }
}

/// Returns the lines by which the units of a block that the content covers become this. `version`: that of a
/// line that removes it.
pub(super) fn lines_of(
    key: BlockKey,
    content: &Content,
    version: Version,
) -> Vec<(BlockChange, Vec<u8>)> {
    let line = |action, version, units: UnitSet, checksums: &[Checksum]| BlockChange {
        action,
        key,
        version,
        location: LOCATION_NONE,
        units,
        checksums: checksums.to_vec(),
    };
    let Content::Block { version, units, written, damaged, checksums, data, .. } = content else {
        let gone = line(BlockAction::Gone, version, UnitSet::EMPTY, &[]);
        return vec![(gone, Vec::new())];
    };
    let (version, mut zeros) = (*version, UnitSet::from_slice(units));
    let (written, damaged) = (UnitSet::from_slice(written), UnitSet::from_slice(damaged));
    written.iter().chain(damaged.iter()).for_each(|unit| zeros.remove(unit));
    let data = data.as_ref().map(|data| data.to_vec()).unwrap_or_default();
    let lines = [
        (line(BlockAction::Units, version, written, checksums), data),
        (line(BlockAction::Zeros, version, zeros, &[]), Vec::new()),
        (line(BlockAction::Damaged, version, damaged, &[]), Vec::new()),
    ];
    lines.into_iter().filter(|(line, _)| !line.units.is_empty()).collect()
}
