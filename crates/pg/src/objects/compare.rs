//! Scrub of records: what the acting members hold in a range of keys is compared page by page, and a key of which
//! most have the same goes to the others. `docs/internals/objects.md`, rule 64.
//!
//! ```text
//!   gate stands still ─▶ batches in flight have ended ─▶ each lists keys with checksums ─▶ all the same ─▶ next page
//!                                                           ▲       └─▶ values from one who is right ─▶ pages ─┐
//!                                                           └────────────────────────────────────────────────┘
//! ```
//!
//! Invariants
//!   1. No batch gets a version between the first list of a page and its end. So all lists are of one state.
//!   2. The gate stands still for a limited time: members that have not answered by then are left out, and what
//!      is left of the shard is listed as not compared.
//!   3. A key goes from a member only if it is a tombstone or a repeat there: data is never removed because most
//!      members lack it. A head is never replaced by an older one.
//!   4. An object's head is made good after its attributes and records. So a member that lacks them lacks the head,
//!      or has another one, until it has all: a filling copies the object whole.

use std::collections::{BTreeMap, BTreeSet};

use ::objects::keys::{heads_range, object_of, shared_range};
use ::objects::{Head, Key, Kind, Shard};
use base::hash::hash_range_of_pg;
use base::planted::{self, Bug};
use base::{Checksum, OsdId, RECORDS_IMAGE, StripeIndex, Time, Version, checksum};
use blockstore::{Answer, BlockKey, Page, Request as StoreRequest, StoreError};
use format::disk::bytes::{Reader, Writer};
use format::engine::{Answer as Found, Change, Query, Records};
use format::wire::{KeysWith, PagePart, Payload, PeerBody};

use super::batch;
use super::mutate::Preparing;
use super::page::size_of;
use crate::ask::Asked;
use crate::face::{Fault, FaultKind};
use crate::scrub::limit::time_max;
use crate::scrub::note::{Finding, Running};
use crate::store_calls::Call;
use crate::{Action, MemberSet, Pg, ScrubEvent};

/// A page of a list is read from at most so many bytes of records.
const PAGE_SIZE_MAX: usize = 256 << 10;
/// So many keys are made good at once.
const MENDED_AT_ONCE: usize = 64;
/// At most so many characters of a name are told.
const NAME_SHOWN_MAX: usize = 200;

/// Begins an answer that lists keys, and one that says that they cannot be read.
const READ: u8 = 0;
const UNREADABLE: u8 = 1;

/// Where the comparison of a shard goes on.
pub(crate) struct Compared {
    /// The walk of the scrub.
    walk: u32,
    shard: Shard,
    /// Whether all its keys are compared, not heads alone.
    deep: bool,
    /// The range of keys that is being compared, and what is left of it.
    part: Part,
    from: Vec<u8>,
    /// Whether all members could be compared so far.
    is_whole: bool,
    /// What was listed.
    listed: BTreeSet<BlockKey>,
}

/// Ranges of a shard, in the order in which they are compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Attributes, records, and keys of no object.
    Fields,
    Heads,
}

impl Part {
    fn range(self, shard: Shard) -> (Vec<u8>, Vec<u8>) {
        let (heads, all) = (heads_range(shard), shared_range(shard));
        match self {
            Part::Fields => (heads.1, all.1),
            Part::Heads => heads,
        }
    }
}

impl Compared {
    fn begin(walk: u32, shard: Shard, deep: bool) -> Compared {
        let part = if deep { Part::Fields } else { Part::Heads };
        let (from, listed) = (part.range(shard).0, BTreeSet::new());
        Compared { walk, shard, deep, part, from, is_whole: true, listed }
    }
}

/// A page that is being compared.
pub(crate) struct Comparing {
    at: Compared,
    /// The first key behind the page. Until keys of it are made good it may go to the end of the range.
    before: Vec<u8>,
    look: u32,
    /// When [`Pg::limit_look`] saw it first.
    since: Option<Time>,
    /// Keys that were made good.
    repaired: Vec<(Vec<u8>, MemberSet)>,
    /// Keys that differed at the last look.
    differing: Vec<(Vec<u8>, MemberSet)>,
    /// How many of them could be made good at the look before.
    fixable_before: usize,
    /// Keys whose values cannot be had from who should have them.
    unread: BTreeSet<Vec<u8>>,
    stage: Stage,
}

/// Top to bottom is the order in time.
enum Stage {
    /// Batches in flight have not ended.
    Gate,
    Looking {
        seen: Vec<Option<Seen>>,
    },
    /// Values of keys that are to be made good.
    Fetching {
        fixes: Vec<Fix>,
        values: BTreeMap<Vec<u8>, Vec<u8>>,
        missing: usize,
    },
    Mending {
        missing: MemberSet,
    },
}

/// What a member holds in the range.
struct Seen {
    /// `None`: it cannot be read there.
    keys: Option<Vec<ListedKey>>,
    is_last: bool,
}

/// What a member says of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ListedKey {
    key: Vec<u8>,
    sum: Checksum,
    /// The version of a head; zero for others.
    version: Version,
    /// Whether it may go if most members lack it.
    may_go: bool,
}

/// A key of which most members have the same.
struct Fix {
    key: Vec<u8>,
    /// The checksum of its value. `None`: it goes.
    sum: Option<Checksum>,
    /// One that has it.
    source: usize,
    wrong: MemberSet,
}

/// What a comparison of a page finds.
#[derive(Default)]
struct Verdict {
    fixes: Vec<Fix>,
    /// Keys that nobody decides, with the members that differ from the first one.
    undecided: Vec<(Vec<u8>, MemberSet)>,
    /// Up to here all was compared; `None`: to the end of the range.
    upto: Option<Vec<u8>>,
}

impl Comparing {
    /// Whether members read or write for it.
    fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Gate)
    }
}

/// Compares what members hold. Requires: one of them can be read.
fn agree(seen: &[Seen]) -> Verdict {
    let readable = || seen.iter().enumerate().filter_map(|(at, it)| Some((at, it.keys.as_ref()?)));
    let stops = readable().filter(|(at, _)| !seen[*at].is_last);
    let upto = stops.filter_map(|(_, keys)| keys.last()).map(|last| last.key.clone()).min();
    let mut by_key: BTreeMap<&[u8], Vec<(usize, &ListedKey)>> = BTreeMap::new();
    for (at, keys) in readable() {
        let is_within = |it: &&ListedKey| upto.as_ref().is_none_or(|upto| it.key <= *upto);
        for listed in keys.iter().take_while(is_within) {
            by_key.entry(&listed.key).or_default().push((at, listed));
        }
    }
    let members: Vec<usize> = readable().map(|(at, _)| at).collect();
    let mut verdict = Verdict { upto, ..Verdict::default() };
    for (key, have) in by_key {
        let says = |member: usize| have.iter().find(|(at, _)| *at == member).map(|(_, it)| it.sum);
        let first = says(members[0]);
        if members.iter().all(|member| says(*member) == first) {
            continue;
        }
        let votes = |sum: Option<Checksum>| members.iter().filter(|it| says(**it) == sum).count();
        let most = members.iter().copied().max_by_key(|member| votes(says(*member)));
        let most = most.expect("one can be read");
        let sum = says(most);
        let differs = |from: Option<Checksum>| {
            let mut wrong = MemberSet::default();
            members.iter().filter(|it| says(**it) != from).for_each(|it| wrong.add(*it));
            wrong
        };
        let may_go = || have.iter().all(|(_, it)| it.may_go);
        // An older head is never put in the place of a newer one, whoever has it.
        let version = have.iter().find(|(at, _)| *at == most).map(|(_, it)| it.version);
        let is_newest = have.iter().all(|(_, it)| version.is_none_or(|most| it.version <= most));
        let is_decided = votes(sum) * 2 > seen.len() && is_newest && (sum.is_some() || may_go());
        match is_decided {
            true => {
                let wrong = differs(sum);
                verdict.fixes.push(Fix { key: key.to_vec(), sum, source: most, wrong });
            }
            false => verdict.undecided.push((key.to_vec(), differs(first))),
        }
    }
    verdict
}

/// Returns the key behind this one.
fn behind(mut key: Vec<u8>) -> Vec<u8> {
    key.push(0);
    key
}

pub(super) fn sums_query(from: Vec<u8>, before: Vec<u8>, count_max: usize) -> Query {
    Query::Scan { start: from, end: Some(before), count_max, size_max: PAGE_SIZE_MAX }
}

/// Encodes what a member says of keys: each with its checksum, or its value.
pub(super) fn encode_keys(records: Option<&Records>, with: KeysWith) -> Vec<u8> {
    let mut to = Writer::default();
    let Some(records) = records else {
        to.u8(UNREADABLE);
        return to.bytes;
    };
    to.u8(READ);
    for (key, value) in records.iter() {
        to.u16(key.len() as u16);
        to.bytes.extend_from_slice(key);
        match with {
            KeysWith::Value => {
                to.u32(value.len() as u32);
                to.bytes.extend_from_slice(value);
            }
            _ => {
                let listed = listed_key(key, value);
                to.u32(listed.sum.get());
                to.version(listed.version);
                to.u8(u8::from(listed.may_go));
            }
        }
    }
    to.bytes
}

fn listed_key(key: &[u8], value: &[u8]) -> ListedKey {
    let (version, may_go) = match Key::decode(key).map(|key| key.kind) {
        Some(Kind::Head { .. }) => {
            let version = Head::decode(value).map(|head| head.version);
            (version.unwrap_or(Version::ZERO), Head::is_tombstone(value))
        }
        Some(Kind::Repeat { .. }) => (Version::ZERO, true),
        _ => (Version::ZERO, false),
    };
    ListedKey { key: key.to_vec(), sum: checksum::crc32c(value), version, may_go }
}

fn list_keys(records: &Records) -> Vec<ListedKey> {
    records.iter().map(|(key, value)| listed_key(key, value)).collect()
}

/// Decodes keys with their checksums. `None`: the bytes are none. `Some(None)`: they cannot be read there.
fn decode_keys(bytes: &[u8]) -> Option<Option<Vec<ListedKey>>> {
    let mut from = Reader::new(bytes);
    if from.u8()? == UNREADABLE {
        return from.is_at_end().then_some(None);
    }
    let mut keys: Vec<ListedKey> = Vec::new();
    while !from.is_at_end() {
        let size = usize::from(from.u16()?);
        let key = from.take(size)?.to_vec();
        let (sum, version) = (Checksum::new(from.u32()?), from.version()?);
        let may_go = from.u8()? == 1;
        let is_in_order = keys.last().is_none_or(|last| last.key < key);
        if !is_in_order || Key::decode(&key).is_none() {
            return None;
        }
        keys.push(ListedKey { key, sum, version, may_go });
    }
    Some(Some(keys))
}

/// Decodes at most one key with its value.
fn decode_value(bytes: &[u8]) -> Option<Option<(Vec<u8>, Vec<u8>)>> {
    let mut from = Reader::new(bytes);
    if from.u8()? == UNREADABLE || from.is_at_end() {
        return Some(None);
    }
    let size = usize::from(from.u16()?);
    let key = from.take(size)?.to_vec();
    let size = usize::try_from(from.u32()?).ok()?;
    let value = from.take(size)?.to_vec();
    from.is_at_end().then_some(Some((key, value)))
}

impl Pg {
    /// Whether a scrub lets no batch pass: members are being compared.
    pub(super) fn is_gate_held_by_scrub(&self) -> bool {
        self.objects.comparing.is_some() || self.takes_scrub_turn()
    }

    /// Whether operations wait for the gate.
    pub(crate) fn has_gated(&self) -> bool {
        !self.objects.gate.is_empty()
    }

    /// Goes on with what waited until no batch is in flight.
    pub(super) fn pump_scrub(&mut self, actions: &mut Vec<Action>) {
        let is_quiet = self.objects.in_flight.is_empty();
        if !self.is_scrubbing() || !is_quiet && !planted::on(Bug::ScrubWithoutTurn) {
            return;
        }
        if self.waits_for_scrub_turn() {
            self.begin_scrub_turn(actions);
        }
        match self.objects.comparing.as_ref().map(|it| &it.stage) {
            Some(Stage::Gate) => self.look_at_records(actions),
            // It waited for turns of this OSD.
            Some(Stage::Fetching { missing: 0, .. }) => self.mend_records(actions),
            _ => {}
        }
    }

    /// Begins with the next page of records of the scrub that is under way. Returns false if all were
    /// compared.
    pub(crate) fn compare_records(
        &mut self,
        running: &Running,
        walk: u32,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(shard) = self.shard_list().nth(running.shards as usize) else { return false };
        if self.objects.comparing.is_some() {
            return true;
        }
        let known = self.objects.compared.take();
        let known = known.filter(|it| it.walk == walk && it.shard == shard);
        let at = known.unwrap_or_else(|| Compared::begin(walk, shard, running.deep));
        let before = at.part.range(shard).1;
        self.objects.comparing = Some(Comparing {
            at,
            before,
            look: 0,
            since: None,
            repaired: Vec::new(),
            differing: Vec::new(),
            fixable_before: usize::MAX,
            unread: BTreeSet::new(),
            stage: Stage::Gate,
        });
        self.pump_objects(actions);
        true
    }

    /// Returns the work on the page that is being compared, if this answer belongs to it.
    fn comparing(&mut self, look: u32) -> Option<&mut Comparing> {
        self.objects.comparing.as_mut().filter(|it| it.look == look)
    }

    /// Asks all acting members what they hold.
    fn look_at_records(&mut self, actions: &mut Vec<Action>) {
        let (others, count) = {
            let lead = self.lead();
            (lead.acting_others(), lead.acting.count())
        };
        let look = self.number_look();
        let comparing = self.objects.comparing.as_mut().expect("a page is being compared");
        comparing.look = look;
        comparing.stage = Stage::Looking { seen: (0..count).map(|_| None).collect() };
        let (from, before) = (comparing.at.from.clone(), comparing.before.clone());
        for index in others {
            let call = self.lead().asks.ask(index, Asked::Keys { look });
            let (from, before) = (from.clone(), before.clone());
            let body = PeerBody::ListHeads { call, from, before, with: KeysWith::Checksum };
            self.send(index, body, actions);
        }
        let query = sums_query(from, before, self.shape.limits.list_count_max);
        self.read_records(Call::CompareKeys { look }, vec![query], actions);
    }

    /// Handles what this OSD holds in the range.
    pub(crate) fn on_own_keys(
        &mut self,
        look: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let found = match result {
            Ok(Answer::Records { answers, .. }) => answers.into_iter().next(),
            _ => None,
        };
        let seen = match found {
            Some(Found::Records { records, more }) => {
                let bytes: usize = records.iter().map(|(key, value)| key.len() + value.len()).sum();
                self.charge_records(bytes as u64);
                Seen { keys: Some(list_keys(&records)), is_last: !more }
            }
            _ => {
                self.charge_records(0);
                Seen { keys: None, is_last: true }
            }
        };
        let Some(lead) = self.lead.as_ref().filter(|_| self.is_scrubbing()) else { return };
        self.on_keys_seen((lead.me, look), seen, actions);
    }

    /// Handles what a member holds in the range.
    pub(crate) fn on_peer_keys(
        &mut self,
        (index, look): (usize, u32),
        keys: &Payload,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let keys = keys.bytes().ok_or("a list of keys that does not match its checksums")?;
        let keys = decode_keys(keys).ok_or("a list of keys that is none")?;
        if let Some(comparing) = self.comparing(look) {
            let (from, before) = (&comparing.at.from, &comparing.before);
            let is_within = |it: &ListedKey| *from <= it.key && it.key < *before;
            if !keys.iter().flatten().all(is_within) {
                return Err("a key that is not in the range that was asked for".into());
            }
            if keys.as_ref().is_some_and(Vec::is_empty) && !is_last {
                return Err("a page of a list is empty but not the last one".into());
            }
        }
        self.on_keys_seen((index, look), Seen { keys, is_last }, actions);
        Ok(())
    }

    fn on_keys_seen(
        &mut self,
        (index, look): (usize, u32),
        found: Seen,
        actions: &mut Vec<Action>,
    ) {
        if !self.is_scrubbing() || self.is_late(look, actions) {
            return;
        }
        let Some(comparing) = self.comparing(look) else { return };
        let Stage::Looking { seen } = &mut comparing.stage else { return };
        seen[index] = Some(found);
        if seen.iter().any(Option::is_none) {
            return;
        }
        let seen: Vec<Seen> = std::mem::take(seen).into_iter().flatten().collect();
        self.judge_records(&seen, actions);
    }

    /// Compares what all acting members hold, and decides how to go on.
    fn judge_records(&mut self, seen: &[Seen], actions: &mut Vec<Action>) {
        let may_repair = self.repairs_records() && self.mark() > Version::ZERO;
        let comparing = self.objects.comparing.as_mut().expect("a page is being compared");
        // What cannot be read is reported as damage of the pool by its OSD.
        comparing.at.is_whole &= seen.iter().all(|it| it.keys.is_some());
        if seen.iter().all(|it| it.keys.is_none()) {
            return self.end_page(true, actions);
        }
        let Verdict { mut fixes, undecided, upto } = agree(seen);
        let wrong = fixes.iter().map(|fix| (fix.key.clone(), fix.wrong));
        comparing.differing = undecided.into_iter().chain(wrong).collect();
        if !comparing.differing.is_empty() && !comparing.at.deep {
            // Heads alone are not made good: all of the shard is looked at.
            comparing.at = Compared::begin(comparing.at.walk, comparing.at.shard, true);
            comparing.differing.clear();
            return self.end_page(false, actions);
        }
        fixes.retain(|fix| !comparing.unread.contains(&fix.key));
        // Each round makes a key good, or finds that it cannot.
        let has_less = fixes.len() < comparing.fixable_before;
        if !fixes.is_empty() && may_repair && has_less {
            comparing.fixable_before = fixes.len();
            // The next look is at the same page, whatever was made good.
            if let Some(upto) = upto {
                comparing.before = behind(upto);
            }
            return self.fetch_values(fixes, actions);
        }
        comparing.at.from = upto.map_or_else(|| comparing.before.clone(), behind);
        self.end_page(false, actions);
    }

    /// Reads the values of keys that are to be made good, from one member that has them.
    fn fetch_values(&mut self, mut fixes: Vec<Fix>, actions: &mut Vec<Action>) {
        let me = self.lead().me;
        let source = fixes[0].source;
        fixes.retain(|fix| fix.source == source);
        fixes.truncate(MENDED_AT_ONCE);
        let comparing = self.objects.comparing.as_mut().expect("a page is being compared");
        let look = comparing.look;
        let keys: Vec<Vec<u8>> =
            fixes.iter().filter(|fix| fix.sum.is_some()).map(|fix| fix.key.clone()).collect();
        let missing = if source == me { keys.len().min(1) } else { keys.len() };
        comparing.stage = Stage::Fetching { fixes, values: BTreeMap::new(), missing };
        if keys.is_empty() {
            return self.mend_records(actions);
        }
        if source == me {
            let queries = keys.into_iter().map(|key| Query::Get { key }).collect();
            return self.read_records(Call::CompareValues { look }, queries, actions);
        }
        for key in keys {
            let call = self.lead().asks.ask(source, Asked::Value { look });
            let before = behind(key.clone());
            let body = PeerBody::ListHeads { call, from: key, before, with: KeysWith::Value };
            self.send(source, body, actions);
        }
    }

    /// Handles values of this OSD.
    pub(crate) fn on_own_values(
        &mut self,
        look: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        if !self.is_scrubbing() || self.is_late(look, actions) {
            return;
        }
        let Some(comparing) = self.comparing(look) else { return };
        let Stage::Fetching { fixes, values, missing } = &mut comparing.stage else { return };
        if let Ok(Answer::Records { answers, .. }) = result {
            let asked = fixes.iter().filter(|fix| fix.sum.is_some());
            for (fix, answer) in asked.zip(answers) {
                if let Found::Value(Some(value)) = answer {
                    values.insert(fix.key.clone(), value);
                }
            }
        }
        *missing = 0;
        self.mend_records(actions);
    }

    /// Handles a value of a member.
    pub(crate) fn on_peer_value(
        &mut self,
        look: u32,
        value: &Payload,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let value = value.bytes().ok_or("a value that does not match its checksums")?;
        let value = decode_value(value).ok_or("a value that is none")?;
        if !self.is_scrubbing() || self.is_late(look, actions) {
            return Ok(());
        }
        let Some(comparing) = self.comparing(look) else { return Ok(()) };
        let Stage::Fetching { values, missing, .. } = &mut comparing.stage else { return Ok(()) };
        values.extend(value);
        *missing -= 1;
        if *missing == 0 {
            self.mend_records(actions);
        }
        Ok(())
    }

    /// Sends each member what it lacks, as far as it fits a page, then looks again.
    fn mend_records(&mut self, actions: &mut Vec<Action>) {
        let (me, mark, size_max) = (self.lead().me, self.mark(), self.shape.limits.page_size_max);
        let (pg, block_size) = (self.shape.pg, self.shape.block_size);
        let Some(may_mend_own) = self.may_mend_own(actions) else { return };
        let comparing = self.objects.comparing.as_mut().expect("a page is being compared");
        let stage = std::mem::replace(&mut comparing.stage, Stage::Gate);
        let Stage::Fetching { fixes, mut values, .. } = stage else {
            unreachable!("values were read")
        };
        let mut pages: BTreeMap<usize, Vec<Change>> = BTreeMap::new();
        let mut size = 0;
        for Fix { key, sum, wrong, .. } in fixes {
            let change = match sum {
                None => Change::Delete { key: key.clone() },
                Some(sum) => match values.remove(&key) {
                    Some(value) if checksum::crc32c(&value) == sum => {
                        Change::Put { key: key.clone(), value }
                    }
                    // It is another one by now, or cannot be read.
                    _ => {
                        comparing.unread.insert(key);
                        continue;
                    }
                },
            };
            if wrong.has(me) && !may_mend_own {
                comparing.unread.insert(key);
                continue;
            }
            size += size_of(&change);
            if size > size_max && !pages.is_empty() {
                break;
            }
            wrong.iter().for_each(|index| pages.entry(index).or_default().push(change.clone()));
            comparing.repaired.push((key, wrong));
        }
        let mut missing = MemberSet::default();
        pages.keys().for_each(|index| missing.add(*index));
        (comparing.stage, comparing.since) = (Stage::Mending { missing }, None);
        let look = comparing.look;
        if pages.is_empty() {
            return self.look_at_records(actions);
        }
        for (index, records) in pages {
            if index == me {
                let page = Page { pg, block_size, version: mark, records, blocks: Vec::new() };
                self.call(Call::CompareMend { look }, StoreRequest::Page(page), actions);
                continue;
            }
            let content = batch::content_of(records, Vec::new(), block_size, &self.buffers);
            let call = self.lead().asks.ask(index, Asked::MendRecords { look });
            let (version, part) = (mark, PagePart::Whole);
            self.send(index, PeerBody::Page { call, version, part, content }, actions);
        }
    }

    /// Handles the end of this OSD's own page.
    pub(crate) fn on_own_records_mended(&mut self, look: u32, actions: &mut Vec<Action>) {
        let Some(lead) = self.lead.as_ref().filter(|_| self.is_scrubbing()) else { return };
        self.on_records_mended((lead.me, look), actions);
    }

    /// Returns whether what this OSD has may be made good now: nothing is prepared on what it has. What waits
    /// for its versions is answered as *busy* for that. `None`: a turn is being prepared, and must reach the
    /// gate first.
    fn may_mend_own(&mut self, actions: &mut Vec<Action>) -> Option<bool> {
        let me = self.lead().me;
        let comparing = self.objects.comparing.as_ref().expect("a page is being compared");
        let Stage::Fetching { fixes, .. } = &comparing.stage else { return Some(false) };
        if !fixes.iter().any(|fix| fix.wrong.has(me)) {
            return Some(true);
        }
        // Housekeeping waits at the gate: the next scrub finds the same.
        if self.objects.cleaning.is_prepared() {
            return Some(false);
        }
        // A turn that has read nothing yet will see what is made good.
        let is_fresh = |turn: &Preparing| turn.done.is_empty() && turn.wanted.is_none();
        if !self.objects.turns.values().all(is_fresh) {
            return None;
        }
        self.refuse_gated(actions);
        Some(true)
    }

    /// Handles the end of a member's page. If the member refused it, the next look finds the same again.
    pub(crate) fn on_records_mended(
        &mut self,
        (index, look): (usize, u32),
        actions: &mut Vec<Action>,
    ) {
        if !self.is_scrubbing() || self.is_late(look, actions) {
            return;
        }
        let Some(comparing) = self.comparing(look) else { return };
        let Stage::Mending { missing } = &mut comparing.stage else { return };
        missing.take(index);
        if missing.is_empty() {
            self.look_at_records(actions);
        }
    }

    /// Whether a page of records is being compared, or waits for that.
    pub(crate) fn is_comparing_records(&self) -> bool {
        self.objects.comparing.is_some()
    }

    /// Gives up the page that is being compared, if that takes too long, and the rest of its shard.
    pub(crate) fn limit_comparison(&mut self, now: Time, actions: &mut Vec<Action>) {
        let most = time_max(self.has_gated());
        let Some(comparing) = self.objects.comparing.as_mut().filter(|it| it.is_under_way()) else {
            return;
        };
        if now.since(*comparing.since.get_or_insert(now)) < most {
            return;
        }
        let mut late = MemberSet::default();
        let count = match &comparing.stage {
            Stage::Looking { seen } => {
                let missing = (0..seen.len()).filter(|index| seen[*index].is_none());
                missing.for_each(|index| late.add(index));
                late.count()
            }
            Stage::Fetching { fixes, missing, .. } => {
                late.add(fixes[0].source);
                *missing
            }
            Stage::Mending { missing } => {
                late = *missing;
                late.count()
            }
            Stage::Gate => unreachable!("it is under way"),
        };
        comparing.at.is_whole = false;
        let (look, shard) = (comparing.look, comparing.at.shard);
        self.await_late(look, count);
        let place = self.place_of_shard(shard);
        let late = vec![(place, "(a shard)".to_owned(), late)];
        self.tell_records(late, false, FaultKind::NotCompared, actions);
        self.end_page(true, actions);
    }

    /// Lists, or reports as repaired, what differs: the place, what the log calls it, and the members that
    /// differ.
    fn tell_records(
        &mut self,
        found: Vec<(BlockKey, String, MemberSet)>,
        is_repaired: bool,
        kind: FaultKind,
        actions: &mut Vec<Action>,
    ) {
        let mut by_object: BTreeMap<BlockKey, (String, BTreeMap<OsdId, u32>)> = BTreeMap::new();
        for (place, object, wrong) in found {
            let (_, faults) = by_object.entry(place).or_insert((object, BTreeMap::new()));
            let peers = &self.lead.as_ref().expect("this OSD leads").peers;
            wrong.iter().for_each(|index| *faults.entry(peers[index].member.osd).or_default() += 1);
        }
        for (key, (object, faults)) in by_object {
            let faults = faults.into_iter();
            let faults: Vec<_> = faults.map(|(osd, units)| (osd, Fault { kind, units })).collect();
            if is_repaired {
                self.note_repaired_records();
                actions.push(Action::Scrub(ScrubEvent::RecordsRepaired { object, faults }));
                continue;
            }
            let comparing = self.objects.comparing.as_mut().expect("a page is being compared");
            let is_first = comparing.at.listed.insert(key);
            self.list_records_finding(key, faults.clone(), is_first);
            actions.push(Action::Scrub(ScrubEvent::RecordsFound { object, faults }));
        }
    }

    /// Returns the key under which the note lists damaged records of an object, or of a shard.
    fn place_of(&self, key: &[u8]) -> BlockKey {
        let (shard, sharding) = (Shard::of_key(key), self.pool_shape().sharding);
        let name = object_of(key).filter(|name| sharding.shard(name) == shard);
        let hash = name.map(|name| sharding.hash(&name));
        let place = self.place_of_shard(shard);
        BlockKey { hash: hash.unwrap_or(place.hash), ..place }
    }

    fn place_of_shard(&self, shard: Shard) -> BlockKey {
        let (hash, _) =
            hash_range_of_pg(shard.get().into(), self.pool_shape().sharding.shard_count);
        let (image, stripe) = (RECORDS_IMAGE, StripeIndex::new(0));
        BlockKey { pool: self.shape.pg.pool, hash, image, stripe }
    }

    /// Ends the page, and tells what was found. `gives_up`: the rest of the shard is passed.
    fn end_page(&mut self, gives_up: bool, actions: &mut Vec<Action>) {
        let comparing = self.objects.comparing.as_mut().expect("a page is being compared");
        let repaired = std::mem::take(&mut comparing.repaired);
        let differing = std::mem::take(&mut comparing.differing);
        let left: BTreeSet<&Vec<u8>> = differing.iter().map(|(key, _)| key).collect();
        let repaired = repaired.into_iter().filter(|(key, _)| !left.contains(key)).collect();
        let told = |pg: &Pg, keys: Vec<(Vec<u8>, MemberSet)>| -> Vec<_> {
            let told = keys.into_iter().map(|(key, wrong)| (pg.place_of(&key), shown(&key), wrong));
            told.collect()
        };
        let (repaired, differing) = (told(self, repaired), told(self, differing));
        self.tell_records(repaired, true, FaultKind::Differs, actions);
        self.tell_records(differing, false, FaultKind::Differs, actions);
        let Comparing { mut at, .. } = self.objects.comparing.take().expect("just seen");
        let is_at_end = at.from >= at.part.range(at.shard).1;
        if gives_up || is_at_end && at.part == Part::Heads {
            self.pass_scrubbed_shard(&at, actions);
        } else {
            if is_at_end {
                at.part = Part::Heads;
                at.from = at.part.range(at.shard).0;
            }
            self.objects.compared = Some(at);
        }
        self.pump_objects(actions);
        self.scrub_next(actions);
    }

    /// All records of a shard were compared, or are passed.
    fn pass_scrubbed_shard(&mut self, at: &Compared, actions: &mut Vec<Action>) {
        if at.walk != self.scrub_walk() {
            return;
        }
        if at.is_whole {
            let (first, last) =
                hash_range_of_pg(at.shard.get().into(), self.pool_shape().sharding.shard_count);
            // A light look that found nothing was of heads alone.
            let is_struck = |finding: &Finding| {
                let is_late = |(_, fault): &(OsdId, Fault)| fault.kind == FaultKind::NotCompared;
                finding.key.image == RECORDS_IMAGE
                    && (first..=last).contains(&finding.key.hash)
                    && !at.listed.contains(&finding.key)
                    && (at.deep || finding.faults.iter().all(is_late))
            };
            self.scrub_note.strike_if(is_struck);
        }
        self.pass_records_of_shard(actions);
    }
}

/// Returns what the log calls a key: the name of its object.
fn shown(key: &[u8]) -> String {
    let name = object_of(key).map(|name| name.bytes().escape_ascii().to_string());
    let mut name = name.unwrap_or_else(|| "(repeats)".into());
    name.truncate(NAME_SHOWN_MAX);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(key: u8, sum: u32, may_go: bool) -> ListedKey {
        ListedKey { key: vec![key], sum: Checksum::new(sum), version: Version::ZERO, may_go }
    }

    fn seen(keys: Vec<ListedKey>, is_last: bool) -> Seen {
        Seen { keys: Some(keys), is_last }
    }

    type Brief = (Vec<(u8, Option<u32>, Vec<usize>)>, Vec<u8>, Option<u8>);

    fn brief(seen: &[Seen]) -> Brief {
        let Verdict { fixes, undecided, upto } = agree(seen);
        let fix = |fix: &Fix| {
            (fix.key[0], fix.sum.map(Checksum::get), fix.wrong.iter().collect::<Vec<_>>())
        };
        (
            fixes.iter().map(fix).collect(),
            undecided.iter().map(|(key, _)| key[0]).collect(),
            upto.map(|key| key[0]),
        )
    }

    #[test]
    fn most_members_decide_and_no_data_goes() {
        let all = || vec![listed(1, 10, false), listed(2, 20, false), listed(5, 50, true)];
        assert_eq!(brief(&[seen(all(), true), seen(all(), true)]), (vec![], vec![], None));
        // One has another value of 1, lacks 2, and has a tombstone that the others do not have.
        let other = vec![listed(1, 11, false), listed(4, 1, true), listed(5, 50, true)];
        let three = [seen(all(), true), seen(other, true), seen(all(), true)];
        let fixes = vec![(1, Some(10), vec![1]), (2, Some(20), vec![1]), (4, None, vec![1])];
        assert_eq!(brief(&three), (fixes, vec![], None));
        // What most lack stays, and is listed; so is what two members say differently.
        let more = [all(), vec![listed(9, 1, false)]].concat();
        let three = [seen(all(), true), seen(more, true), seen(all(), true)];
        assert_eq!(brief(&three), (vec![], vec![9], None));
        let two = [seen(vec![listed(1, 1, false)], true), seen(vec![listed(1, 2, false)], true)];
        assert_eq!(brief(&two), (vec![], vec![1], None));
        // Who cannot be read does not vote, and counts as a member.
        let unread = || Seen { keys: None, is_last: true };
        let three = [seen(all(), true), unread(), seen(vec![], true)];
        assert_eq!(brief(&three), (vec![], vec![1, 2, 5], None));
    }

    #[test]
    fn only_what_all_pages_cover_is_compared() {
        let long = vec![listed(1, 1, false), listed(2, 2, false), listed(3, 3, false)];
        let short = vec![listed(1, 1, false), listed(2, 2, false)];
        assert_eq!(
            brief(&[seen(long.clone(), true), seen(short.clone(), false)]),
            (vec![], vec![], Some(2))
        );
        assert_eq!(brief(&[seen(long, true), seen(short, true)]).1, [3]);
    }

    #[test]
    fn most_do_not_decide_for_an_older_head() {
        let head = |sum, counter| {
            let version = Version { counter, ..Version::ZERO };
            seen(vec![ListedKey { version, ..listed(1, sum, false) }], true)
        };
        let three = [head(1, 7), head(2, 9), head(1, 7)];
        assert_eq!(brief(&three), (vec![], vec![1], None));
        let three = [head(1, 7), head(2, 5), head(1, 7)];
        assert_eq!(brief(&three), (vec![(1, Some(1), vec![1])], vec![], None));
    }

    #[test]
    fn keys_travel_with_checksums_and_values() {
        let key = |byte: u8| [&[0, 1, 0x10], &[byte][..]].concat();
        let mut records = Records::default();
        records.push(&key(b'a'), b"one");
        records.push(&key(b'b'), b"");
        let bytes = encode_keys(Some(&records), KeysWith::Checksum);
        assert_eq!(decode_keys(&bytes), Some(Some(list_keys(&records))));
        assert_eq!(decode_keys(&encode_keys(None, KeysWith::Checksum)), Some(None));
        for wrong in [&[][..], &[READ, 1], &[UNREADABLE, 1], &bytes[..bytes.len() - 1]] {
            assert_eq!(decode_keys(wrong), None);
        }
        let mut none = Records::default();
        none.push(&[1, 2], b"no key of objects");
        assert_eq!(decode_keys(&encode_keys(Some(&none), KeysWith::Checksum)), None);
        let mut one = Records::default();
        one.push(b"a", b"one");
        let bytes = encode_keys(Some(&one), KeysWith::Value);
        assert_eq!(decode_value(&bytes), Some(Some((b"a".to_vec(), b"one".to_vec()))));
        assert_eq!(decode_value(&bytes[..bytes.len() - 1]), None);
        assert_eq!(decode_value(&encode_keys(None, KeysWith::Value)), Some(None));
        assert_eq!(decode_value(&[READ]), Some(None));
    }
}
