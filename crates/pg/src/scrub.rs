//! Scrub at the primary: walks the keys of the PG and compares what the acting members hold.
//! `docs/internals/scrub.md` has the rules.
//!
//! ```text
//!   recall the note ─▶ pages of keys ─▶ next key ─▶ Turn ─▶ Looking ─▶ agreed ───────────────▶ next key
//!                                                     ▲        └─▶ Fetching ─▶ Mending ─▶ Looking again
//! ```
//!
//! In pools with parity a deep look fetches the parts of the key ([`parts`]).
//!
//! Invariants
//!   1. A key is compared while no change of the key is in flight, and no change begins before the comparison
//!      is done.
//!   2. The cursor passes a key when the faults that were found have been repaired or listed.
//!   3. No comparison begins before the notes of all acting members are known, or after the epoch has ended.
//!   4. The comparison of a key takes a limited time: members that have not answered by then are left out
//!      (`limit`).

pub mod fix;
pub(crate) mod limit;
pub mod member;
pub mod note;
mod parts;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::planted::{self, Bug};
use base::{OsdId, Time, UNIT_SIZE, Version};
use blockstore::{Answer, AsOf, BlockKey, NoteKey, Request as StoreRequest, StoreError};
use format::wire::{Content, ListedBlock, PeerBody};

use self::fix::{Fix, Fixed, Fixes};
use self::member::digest_of;
use self::note::{Finding, Running, ScrubNote};
use super::ask::Asked;
use super::copy::intact_count;
use super::face::{Fault, FaultKind, Remedy, Seen, Verdict};
use super::member_set::MemberSet;
use super::operation::{WriteFor, WriteKind};
use super::page::Page;
use super::slots::WriteSlot;
use super::store_calls::{Call, NewerFor};
use super::stripes::part::Part;
use super::units::{Copied, Held, Units};
use super::{Action, Pg, Serving};

/// The note is made durable after this many keys.
const KEEP_EVERY: u64 = 64;

/// A primary's state of the scrub in its epoch.
#[derive(Default)]
pub struct Scrub {
    /// Whether the notes of all acting members are known.
    stage: RecallStage,
    /// Whether a member's note differs from that of this OSD.
    notes_differ: bool,
    /// The key list of each acting member, by index; empty: no walk is under way.
    pages: Vec<Page>,
    /// The number of the current walk. Answers to requests of earlier walks are ignored.
    walk: u32,
    /// Bytes that may still be read; below zero: more was read than allowed.
    allowance: i64,
    /// Whether faults are repaired if it can be decided how. Otherwise they are only listed.
    repairs: bool,
    /// The current key: the one that is being compared or repaired.
    work: Option<Work>,
    /// Members that have not answered the last note yet, including this OSD.
    keeping: MemberSet,
    /// Whether the note has changed since it was last sent to the members.
    is_unkept: bool,
    /// Number of keys compared since the note was last sent to the members.
    keys_unkept: u64,
    /// The number of the newest look. A look is one request to all members for a digest of the current key;
    /// each answer is matched to its look by this number.
    looks: u32,
    /// Looks that were given up, with the number of answers that are still missing.
    late: BTreeMap<u32, usize>,
    /// Number of keys that still must be recorded in a durable note before members read them: one of these
    /// keys may have caused the end of the previous epoch.
    careful_left: u64,
    /// In pools with parity: keys of which a read or a fill met lost units. They are looked at before the
    /// next key of the walk, whether a scrub is under way or not.
    wanted: BTreeSet<BlockKey>,
    /// What operators decided.
    fixes: Fixes,
}

/// Whether the members' notes are known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
enum RecallStage {
    /// The notes have not been requested.
    #[default]
    Unknown,
    /// These members have not answered.
    Asked(MemberSet),
    Known,
}

/// The current key: the one that is being compared or repaired.
struct Work {
    key: BlockKey,
    /// The walk that reached the key. `None`: a read met damage there, or an operator decided about it.
    walk: Option<u32>,
    /// The scrub's slot in the queue of the key's writes, once the scrub has its turn.
    slot: Option<WriteSlot>,
    /// Whether the look reads data, not only metadata.
    deep: bool,
    /// The faults that were found before the repair.
    before: Vec<(usize, Fault)>,
    /// The number of the current look.
    look: u32,
    /// The time of the first [`Pg::limit_look`] while members read the key; cleared by a repair.
    since: Option<Time>,
    /// What an operator decided about the key.
    fix: Option<Fix>,
    stage: Stage,
}

impl Work {
    /// Returns the work on a key that no walk has reached.
    fn apart(key: BlockKey) -> Work {
        let (before, stage) = (Vec::new(), Stage::Turn);
        let (walk, slot, since, fix) = (None, None, None, None);
        Work { key, walk, slot, deep: true, before, look: 0, since, fix, stage }
    }
}

/// How far a key has got. Top to bottom is the order in time.
enum Stage {
    /// Waits until a note that contains the key is durable.
    Noting,
    /// Waits for its turn.
    Turn,
    /// Waits for the members' digests of the key. `seen`: the digests that have arrived, by member.
    Looking { seen: Vec<Option<Seen>> },
    /// Fetches units from members that have the right content.
    Fetching { remedy: Box<Remedy>, left: VecDeque<(usize, Units)>, copied: Option<Copied> },
    /// In pools with parity: waits for the parts of these members. `seen`: the members' digests.
    Gathering { seen: Vec<Seen>, parts: Vec<Option<Part>>, missing: MemberSet },
    /// In pools with parity: the repairs wait until the mark has passed the newest version of the key.
    Settling { contents: Vec<(usize, Content)>, newest: Version },
    /// Waits until the repairs of these members have ended.
    Mending { missing: MemberSet },
}

/// An event of a scrub, for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ScrubEvent {
    /// A scrub began.
    Began {
        /// Whether the scrub is deep, which means that it reads data.
        deep: bool,
    },
    /// A key was repaired.
    Repaired {
        /// The key.
        key: BlockKey,
        /// The faults that were repaired, by member.
        faults: Vec<(OsdId, Fault)>,
    },
    /// A key is damaged, and was not repaired.
    Found {
        /// The key.
        key: BlockKey,
        /// The faults, by member.
        faults: Vec<(OsdId, Fault)>,
    },
    /// In pools of objects: records of an object were made good.
    RecordsRepaired {
        /// The name of the object, escaped.
        object: String,
        /// By member, how many records were.
        faults: Vec<(OsdId, Fault)>,
    },
    /// In pools of objects: records of an object differ, and were not made good.
    RecordsFound {
        /// The name of the object, escaped.
        object: String,
        /// By member, how many records do.
        faults: Vec<(OsdId, Fault)>,
    },
    /// What an operator decided about a key has ended.
    Fixed(Fixed),
    /// Another member's note cannot be read. It is treated as an empty note.
    NoteUnread {
        /// The member that sent the note.
        osd: OsdId,
        /// What is wrong with the note.
        why: String,
    },
    /// A scrub has compared all keys.
    Ended {
        /// Whether the scrub was deep, which means that it read data.
        deep: bool,
        /// Number of keys that were compared.
        keys: u64,
    },
}

/// Returns the start time of the last completed scrub, once a scrub that began at `since` has completed.
/// `last`: the start time of the one completed before it.
fn later(last: u64, since: u64) -> u64 {
    note::credible(last, since).max(since)
}

impl Scrub {
    /// Ends the walk: drops its pages, and ignores later answers to its requests.
    fn end_walk(&mut self) {
        self.pages.clear();
        self.walk = self.walk.wrapping_add(1);
    }
}

impl Pg {
    /// Sets the note on scrubs that this OSD's store holds. Called before the first entry.
    pub fn know_scrubs(&mut self, note: ScrubNote) {
        self.scrub_note = note;
    }

    /// Returns this OSD's note on the PG's scrubs. At a primary, the note includes what all acting members
    /// know only if [`Pg::knows_scrubs`].
    pub fn scrub_note(&self) -> &ScrubNote {
        &self.scrub_note
    }

    /// Returns whether this OSD, as primary, has received the notes on scrubs of all acting members.
    pub fn knows_scrubs(&self) -> bool {
        let lead = self.lead.as_ref().filter(|_| self.serving == Serving::Active);
        lead.is_some_and(|lead| lead.scrub.stage == RecallStage::Known)
    }

    /// As primary: asks the other acting members for their notes on scrubs, once in an epoch.
    pub fn recall_scrubs(&mut self, actions: &mut Vec<Action>) {
        if self.serving != Serving::Active {
            return;
        }
        let lead = self.lead();
        if lead.scrub.stage != RecallStage::Unknown {
            return;
        }
        let mut missing = lead.acting;
        missing.take(lead.me);
        lead.scrub.stage = RecallStage::Asked(missing);
        if missing.is_empty() {
            return self.on_notes_known(actions);
        }
        for index in missing.iter() {
            let call = self.lead().asks.ask(index, Asked::Recall);
            self.send(index, PeerBody::Recall { call }, actions);
        }
    }

    /// Handles a member's note. A note that cannot be read is treated as an empty one.
    pub(crate) fn on_recalled(&mut self, index: usize, note: &[u8], actions: &mut Vec<Action>) {
        let from = self.lead().peers[index].member.osd;
        let note = self.read_note(from, note, actions).unwrap_or_default();
        self.lead.as_mut().expect("this OSD leads").scrub.notes_differ |= note != self.scrub_note;
        if note.is_newer_than(&self.scrub_note) {
            self.scrub_note = note;
        }
        if let RecallStage::Asked(missing) = &mut self.lead().scrub.stage {
            missing.take(index);
            if missing.is_empty() {
                self.on_notes_known(actions);
            }
        }
    }

    /// Decodes a note that another member sent. `None`: the note is unusable, and the reason is logged.
    pub(crate) fn read_note(
        &self,
        from: OsdId,
        note: &[u8],
        actions: &mut Vec<Action>,
    ) -> Option<ScrubNote> {
        if note.is_empty() {
            return Some(ScrubNote::default());
        }
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        let read = match ScrubNote::decode(self.shape.pg, note) {
            Ok(note) if note.epoch > epoch => Err("the note is from a later epoch".into()),
            read => read,
        };
        match read {
            Ok(mut note) => {
                note.drop_keys_unless(|key| self.shape.check_key(*key).is_ok());
                Some(note)
            }
            Err(why) => {
                actions.push(Action::Scrub(ScrubEvent::NoteUnread { osd: from, why }));
                None
            }
        }
    }

    /// Continues when the notes of all acting members have arrived. If they differ, all members get the
    /// newest one: some members may be new, and those that have the note may leave before the next one is
    /// written.
    fn on_notes_known(&mut self, actions: &mut Vec<Action>) {
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        let is_cut_off = self.scrub_note.running.is_some() && self.scrub_note.epoch < epoch;
        let scrub = &mut self.lead().scrub;
        scrub.stage = RecallStage::Known;
        // The previous epoch may have ended because of one of the keys that are compared first in this one.
        scrub.careful_left = if is_cut_off { KEEP_EVERY } else { 0 };
        if scrub.notes_differ {
            self.keep_note(actions);
        }
        self.begin_wanted(actions);
    }

    /// As primary: begins the schedule of a PG that has no note yet. `now`: seconds since 1970.
    pub fn begin_scrub_schedule(&mut self, now: u64, actions: &mut Vec<Action>) {
        if self.knows_scrubs() && self.scrub_note.born_at == 0 {
            self.scrub_note.born_at = now.max(1);
            self.keep_note(actions);
        }
    }

    /// As primary: begins a scrub, unless one of this depth is under way. If a deep scrub is requested while
    /// a light one is under way, the scrub starts again as a deep one. Returns false if it cannot begin now.
    /// `on_demand`: an operator requested it. `now`: seconds since 1970.
    pub fn begin_scrub(
        &mut self,
        deep: bool,
        on_demand: bool,
        now: u64,
        actions: &mut Vec<Action>,
    ) -> bool {
        if !self.knows_scrubs() {
            return false;
        }
        let now = now.max(1);
        if let Some(running) = self.scrub_note.running.as_mut().filter(|it| it.deep || !deep) {
            running.on_demand |= on_demand;
            return true;
        }
        let running = Running { deep, on_demand, since: now, ..Running::default() };
        self.scrub_note.running = Some(running);
        self.lead().scrub.end_walk();
        actions.push(Action::Scrub(ScrubEvent::Began { deep }));
        self.keep_note(actions);
        true
    }

    /// As primary: ends the scrub that is under way, once the current key is done.
    pub fn cancel_scrub(&mut self, actions: &mut Vec<Action>) {
        if self.knows_scrubs() && self.scrub_note.running.take().is_some() {
            self.lead().scrub.end_walk();
            self.keep_note(actions);
        }
    }

    /// As primary: allows a scrub that is under way to read this many bytes from now on, and no more.
    /// `repairs`: whether faults are repaired if it can be decided how. `now`: seconds since 1970.
    pub fn scrub(&mut self, bytes: u64, repairs: bool, now: u64, actions: &mut Vec<Action>) {
        if !self.knows_scrubs() {
            return;
        }
        self.scrub_now = now;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let scrub = &mut self.lead().scrub;
        scrub.allowance = scrub.allowance.saturating_add(bytes).min(bytes);
        scrub.repairs = repairs;
        self.scrub_next(actions);
    }

    /// Starts the next key, if one may start; requests pages that are missing; ends the scrub after the last
    /// key.
    pub(crate) fn scrub_next(&mut self, actions: &mut Vec<Action>) {
        self.begin_wanted(actions);
        let Some(running) = self.scrub_note.running.clone().filter(|_| self.knows_scrubs()) else {
            return;
        };
        let acting_count = self.lead().acting.count();
        let scrub = &mut self.lead().scrub;
        if scrub.work.is_some() || scrub.allowance <= 0 || scrub.late.len() >= limit::LATE_MAX {
            return;
        }
        let walk = scrub.walk;
        if self.shape.objects.is_some() && self.compare_records(&running, walk, actions) {
            return;
        }
        let scrub = &mut self.lead().scrub;
        if scrub.pages.is_empty() {
            scrub.pages = (0..acting_count).map(|_| Page::behind(running.cursor)).collect();
        }
        self.ask_scrub_pages(actions);
        let scrub = &mut self.lead().scrub;
        if scrub.pages.iter().any(Page::is_missing) {
            return;
        }
        let Some(key) = scrub.pages.iter().filter_map(Page::next_key).min() else {
            return self.end_scrub(running, actions);
        };
        for page in &mut scrub.pages {
            page.take(key);
        }
        let walk = Some(scrub.walk);
        // No member has a key between the cursor and this key any more, so findings for such keys are
        // removed.
        if running.deep && self.scrub_note.strike(running.cursor, Some(key)) {
            self.lead().scrub.is_unkept = true;
        }
        let deep = running.deep || self.scrub_note.finding(&key).is_some();
        self.lead().scrub.work = Some(Work { walk, deep, ..Work::apart(key) });
        match self.lead().scrub.careful_left {
            0 => self.take_scrub_turn(actions),
            _ => self.note_before_look(actions),
        }
    }

    /// Queues the current key for its turn.
    fn take_scrub_turn(&mut self, actions: &mut Vec<Action>) {
        let Work { key, deep, .. } = *self.work();
        self.work().stage = Stage::Turn;
        if planted::on(Bug::ScrubWithoutTurn) {
            return self.look(deep, actions);
        }
        match self.shape.objects.is_some() {
            true => self.pump_objects(actions),
            false => self.write(WriteFor::Scrub, key, WriteKind::Hold, None, actions),
        }
    }

    /// In pools of objects: whether the current key waits until no batch is in flight.
    pub(crate) fn waits_for_scrub_turn(&self) -> bool {
        let is_turn = |work: &Work| matches!(work.stage, Stage::Turn);
        self.scrub_work().is_some_and(is_turn)
    }

    /// In pools of objects: whether the current key has its turn, or waits for it, so that no batch passes.
    pub(crate) fn takes_scrub_turn(&self) -> bool {
        self.scrub_work().is_some_and(|work| !matches!(work.stage, Stage::Noting))
    }

    fn scrub_work(&self) -> Option<&Work> {
        let lead = self.lead.as_ref().filter(|_| self.shape.objects.is_some())?;
        lead.scrub.work.as_ref()
    }

    /// In pools of objects: begins the turn of the current key. Requires: no batch is in flight.
    pub(crate) fn begin_scrub_turn(&mut self, actions: &mut Vec<Action>) {
        let deep = self.work().deep;
        self.look(deep, actions);
    }

    /// Counts bytes that this OSD read of records.
    pub(crate) fn charge_records(&mut self, bytes: u64) {
        if let Some(lead) = &mut self.lead {
            lead.scrub.allowance -= bytes.max(UNIT_SIZE) as i64;
        }
    }

    /// Whether records that differ are made good.
    pub(crate) fn repairs_records(&mut self) -> bool {
        self.lead().scrub.repairs
    }

    /// Counts records of an object that were made good.
    pub(crate) fn note_repaired_records(&mut self) {
        self.scrub_note.repaired = self.scrub_note.repaired.saturating_add(1);
        self.lead().scrub.is_unkept = true;
    }

    /// Lists records that differ. `is_first`: they take the place of what was listed there; else they are
    /// added.
    pub(crate) fn list_records_finding(
        &mut self,
        key: BlockKey,
        mut faults: Vec<(OsdId, Fault)>,
        is_first: bool,
    ) {
        if !is_first && let Some(known) = self.scrub_note.finding(&key) {
            let others =
                known.faults.iter().filter(|(osd, _)| faults.iter().all(|it| it.0 != *osd));
            faults.extend(others.copied().collect::<Vec<_>>());
        }
        let at = self.scrub_now.max(self.scrub_note.born_at);
        if self.scrub_note.list(Finding { key, at, faults }) {
            self.lead().scrub.is_unkept = true;
        }
    }

    /// Returns the number of the walk that is under way.
    pub(crate) fn scrub_walk(&mut self) -> u32 {
        self.lead().scrub.walk
    }

    /// All records of a shard were compared, or are passed.
    pub(crate) fn pass_records_of_shard(&mut self, actions: &mut Vec<Action>) {
        if let Some(running) = &mut self.scrub_note.running {
            running.shards += 1;
            self.keep_note(actions);
        }
    }

    fn ask_scrub_pages(&mut self, actions: &mut Vec<Action>) {
        for index in 0..self.lead().scrub.pages.len() {
            let lead = self.lead();
            let walk = lead.scrub.walk;
            let Some(after) = lead.scrub.pages[index].ask_from() else { continue };
            if index == lead.me {
                self.list_own(NewerFor::Scrub { walk }, Version::ZERO, after, actions);
            } else {
                let call = lead.asks.ask(index, Asked::ScrubList { walk });
                self.send(
                    index,
                    PeerBody::List { call, newer_than: Version::ZERO, after },
                    actions,
                );
            }
        }
    }

    /// Adds a page of a member's keys.
    pub(crate) fn on_scrub_list(
        &mut self,
        index: usize,
        walk: u32,
        (blocks, is_last): (Vec<ListedBlock>, bool),
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let scrub = &mut self.lead().scrub;
        if scrub.walk == walk {
            scrub.pages[index].on_page(Version::ZERO, blocks, is_last)?;
        }
        self.scrub_next(actions);
        Ok(())
    }

    /// Adds a page of this OSD's own keys.
    pub(crate) fn on_own_scrub_list(
        &mut self,
        walk: u32,
        page: (Vec<ListedBlock>, bool),
        actions: &mut Vec<Action>,
    ) {
        let me = self.lead().me;
        let came = self.on_scrub_list(me, walk, page, actions);
        came.expect("the node lists what was requested");
    }

    /// Handles the turn of the current key: no change of the key is in flight.
    pub(crate) fn on_scrub_turn(&mut self, slot: WriteSlot, actions: &mut Vec<Action>) {
        let work = self.work();
        assert!(work.slot.is_none());
        work.slot = Some(slot);
        let deep = work.deep;
        self.look(deep, actions);
    }

    fn work(&mut self) -> &mut Work {
        self.lead().scrub.work.as_mut().expect("a key is being scrubbed")
    }

    /// Counts bytes that members read for the current key. What a read asked for costs the scrub nothing.
    fn charge(&mut self, bytes: u64) {
        if self.work().walk.is_some() {
            self.lead().scrub.allowance -= bytes as i64;
        }
    }

    /// Returns whether faults of the current key are repaired. Damage that a read met always is, as in
    /// replicated pools.
    fn may_repair(&mut self) -> bool {
        self.work().walk.is_none() || self.lead().scrub.repairs
    }

    /// Returns whether the scrub of the current key may continue: the epoch has not ended.
    pub(crate) fn is_scrubbing(&self) -> bool {
        self.serving == Serving::Active
    }

    /// Asks all acting members what they hold of the key.
    fn look(&mut self, deep: bool, actions: &mut Vec<Action>) {
        let (me, others, count) = {
            let lead = self.lead();
            (lead.me, lead.acting_others(), lead.acting.count())
        };
        let look = self.next_look();
        let work = self.work();
        work.deep = deep;
        work.stage = Stage::Looking { seen: vec![None; count] };
        let key = work.key;
        // Parts of stripes are fetched after this look, which compares them with their checksums.
        let deep = deep && self.stripes().is_none();
        for index in others {
            let call = self.lead().asks.ask(index, Asked::Scrub { look });
            self.send(index, PeerBody::Scrub { call, key, deep }, actions);
        }
        assert!(self.lead().acting.has(me));
        self.call(Call::ScrubDigest { look }, StoreRequest::Digest { key, deep }, actions);
    }

    /// Handles the key's digest from this OSD's own store.
    pub(crate) fn on_own_digest(
        &mut self,
        look: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let (floor, me) = (self.local_state.floor(), self.lead().me);
        let seen = Seen::of(digest_of(result), floor, self.shape.block_size);
        self.on_seen((me, look), seen.expect("the store sends valid digests"), actions);
    }

    /// Handles the key's digest from a member.
    pub(crate) fn on_peer_scrubbed(
        &mut self,
        (index, look): (usize, u32),
        seen: Seen,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        self.check_version(seen.key.version())?;
        self.check_version(seen.floor)?;
        self.on_seen((index, look), seen, actions);
        Ok(())
    }

    fn on_seen(&mut self, (index, look): (usize, u32), found: Seen, actions: &mut Vec<Action>) {
        if !self.is_scrubbing() || self.is_late(look, actions) {
            return;
        }
        let Stage::Looking { seen } = &mut self.work().stage else {
            unreachable!("the members' digests are awaited");
        };
        assert!(seen[index].is_none());
        seen[index] = Some(found);
        if seen.iter().any(Option::is_none) {
            return;
        }
        let seen: Vec<Seen> = std::mem::take(seen).into_iter().flatten().collect();
        self.judge(seen, actions);
    }

    /// Compares what all acting members hold of the key, and decides how to continue.
    fn judge(&mut self, seen: Vec<Seen>, actions: &mut Vec<Action>) {
        let (block_size, positions) = (self.shape.block_size, self.acting_positions());
        let verdict = self.shape.face.agree(&positions, &seen, block_size);
        let (me, repairs) = (self.lead().me, self.may_repair());
        let fetches = self.stripes().is_some();
        let deep = self.work().deep;
        let read = if deep && !fetches { seen[me].key.data_bytes() } else { 0 };
        self.charge(read.max(UNIT_SIZE));
        let Verdict { faults, remedy } = verdict;
        if deep && fetches && remedy.is_none() {
            return self.gather_parts(seen, actions);
        }
        if faults.is_empty() || !self.work().before.is_empty() {
            return self.end_key(faults, actions);
        }
        if !deep {
            return self.look(true, actions);
        }
        if self.work().fix.is_some() && !fetches {
            return self.fix_copies(&seen, faults, actions);
        }
        match remedy.filter(|_| repairs) {
            None => self.end_key(faults, actions),
            Some(remedy) => {
                self.work().before = faults;
                self.begin_remedy(remedy, actions);
            }
        }
    }

    fn begin_remedy(&mut self, mut remedy: Remedy, actions: &mut Vec<Action>) {
        match &mut remedy {
            Remedy::Tombstone { version, targets } => {
                let (content, targets) = (Content::Tombstone { version: *version }, *targets);
                if self.stripes().is_some() {
                    let contents = targets.iter().map(|index| (index, content.clone())).collect();
                    return self.settle_key(contents, *version, actions);
                }
                self.begin_mending(targets);
                for index in targets.iter() {
                    self.mend_at(index, content.clone(), actions);
                }
            }
            Remedy::Block { fetch, .. } => {
                let left = std::mem::take(fetch).into();
                let remedy = Box::new(remedy);
                self.work().stage = Stage::Fetching { remedy, left, copied: None };
                self.fetch_right(actions);
            }
        }
    }

    /// Fetches the next units from a member that has the right content; after the last ones, begins the
    /// repair.
    fn fetch_right(&mut self, actions: &mut Vec<Action>) {
        let block_size = self.shape.block_size;
        let work = self.work();
        let key = work.key;
        let Stage::Fetching { left, .. } = &work.stage else {
            unreachable!("units are being fetched");
        };
        let Some((index, units)) = left.front() else { return self.mend_all(actions) };
        let (index, units) = (*index, units.words(block_size));
        let look = self.next_look();
        self.fetch(index, key, units, look, actions);
    }

    /// Reads these units of the current key at a member; no units: the whole key.
    fn fetch(
        &mut self,
        index: usize,
        key: BlockKey,
        units: Vec<u64>,
        look: u32,
        actions: &mut Vec<Action>,
    ) {
        if index == self.lead().me {
            let request = StoreRequest::Copy { key, units, as_of: AsOf::View };
            self.call(Call::ScrubCopy { look }, request, actions);
        } else {
            let call = self.lead().asks.ask(index, Asked::ScrubFetch { look });
            self.send(index, PeerBody::Fetch { call, key, units, as_of: None }, actions);
        }
    }

    /// Handles this OSD's own units for a repair.
    pub(crate) fn on_own_scrub_copy(
        &mut self,
        look: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Ok(Answer::Copy { content, .. }) = result else {
            unreachable!("the store sent another kind of answer");
        };
        let block_size = self.shape.block_size;
        if self.stripes().is_some() {
            let (me, part) = (self.lead().me, Part::of(content, block_size, false));
            let part = part.expect("the content has the right block size");
            return self.on_part_answer(me, look, part, actions);
        }
        let held = Held::of(content, block_size, false);
        self.on_right_units(look, held.expect("the content has the right block size"), actions);
    }

    /// Handles a member's units: for a repair or, in pools with parity, for a deep look.
    pub(crate) fn on_peer_scrub_copy(
        &mut self,
        (index, look): (usize, u32),
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let block_size = self.shape.block_size;
        if self.stripes().is_some() {
            let part = Part::of(content, block_size, true)?;
            self.check_version(part.version.max(part.deleted))?;
            self.on_part_answer(index, look, part, actions);
            return Ok(());
        }
        let held = Held::of(content, block_size, true)?;
        self.on_right_units(look, held, actions);
        Ok(())
    }

    fn on_part_answer(&mut self, index: usize, look: u32, part: Part, actions: &mut Vec<Action>) {
        if self.is_scrubbing() && !self.is_late(look, actions) {
            self.on_part_read(index, part, actions);
        }
    }

    fn on_right_units(&mut self, look: u32, held: Held, actions: &mut Vec<Action>) {
        if !self.is_scrubbing() || self.is_late(look, actions) {
            return;
        }
        let Pg { lead, buffers, .. } = self;
        let lead = lead.as_mut().expect("this OSD leads the epoch");
        let work = lead.scrub.work.as_mut().expect("a key is being scrubbed");
        let Stage::Fetching { remedy, left, copied } = &mut work.stage else {
            unreachable!("units are being fetched");
        };
        let (_, units) = left.pop_front().expect("these units were requested");
        let Remedy::Block { version, .. } = remedy.as_ref() else {
            unreachable!("a tombstone needs no data");
        };
        let more = match held {
            Held::Copy(more) if more.version == *version => more.within(&units, buffers),
            // The member no longer has the version that it reported: the key is listed with the faults that
            // were found.
            _ => return self.give_up_key(actions),
        };
        if !units.without(&more.units).is_empty() {
            // The member has lost some of these units since it sent its digest.
            return self.give_up_key(actions);
        }
        match copied {
            None => *copied = Some(more),
            Some(copied) => copied.complete_with(&more, buffers),
        }
        self.fetch_right(actions);
    }

    /// Sends the fetched units to the members that need them.
    fn mend_all(&mut self, actions: &mut Vec<Action>) {
        let (block_size, buffers) = (self.shape.block_size, self.buffers.clone());
        let work = self.work();
        let stage = std::mem::replace(&mut work.stage, Stage::Turn);
        let Stage::Fetching { remedy, copied, .. } = stage else {
            unreachable!("units were fetched");
        };
        let Remedy::Block { version, whole, units, mend, lost, zeroed, .. } = *remedy else {
            unreachable!("a tombstone needs no data");
        };
        let mut copied = copied.unwrap_or_else(|| Copied::zeros(version, Units::default()));
        if !zeroed.is_empty() {
            copied.complete_with(&Copied::zero_data(version, zeroed, &buffers), &buffers);
        }
        let mut missing = whole;
        units.iter().for_each(|index| missing.add(index));
        self.begin_mending(missing);
        let some = copied.within(&mend, &buffers);
        for index in missing.iter() {
            let content = match whole.has(index) {
                true => copied.clone().into_content(block_size, &lost),
                false => some.clone().into_content(block_size, &Units::default()),
            };
            self.mend_at(index, content, actions);
        }
    }

    /// Begins to repair members. A repair may take as long as a write; the look that follows it has its own
    /// time limit.
    fn begin_mending(&mut self, missing: MemberSet) {
        let work = self.work();
        (work.stage, work.since) = (Stage::Mending { missing }, None);
    }

    fn mend_at(&mut self, index: usize, content: Content, actions: &mut Vec<Action>) {
        let (me, key) = (self.lead().me, self.work().key);
        if index == me {
            let version = match &content {
                Content::Block { version, .. } | Content::Tombstone { version } => *version,
                Content::Gone => unreachable!("a scrub removes nothing"),
            };
            let call = Call::ScrubMend { units: intact_count(&content) as u32 };
            let request = self.own_repair(key, version, content);
            self.call_unpromised(call, request, actions);
        } else {
            let call = self.lead().asks.ask(index, Asked::Mend);
            self.send(index, PeerBody::Mend { call, key, content }, actions);
        }
    }

    /// Handles the end of this OSD's own repair.
    pub(crate) fn on_own_mended(
        &mut self,
        units: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        if result.is_ok() {
            self.mended_units += u64::from(units);
        }
        let me = self.lead().me;
        self.on_mended_at(me, actions);
    }

    /// Handles the end of a member's repair. If the member refused the repair, the next look finds the fault
    /// again.
    pub(crate) fn on_mended_at(&mut self, index: usize, actions: &mut Vec<Action>) {
        if !self.is_scrubbing() {
            return;
        }
        let Stage::Mending { missing } = &mut self.work().stage else {
            unreachable!("members are being repaired");
        };
        missing.take(index);
        if missing.is_empty() {
            self.look(true, actions);
        }
    }

    /// Ends the current key without a repair: the state from which the repair was derived has changed.
    fn give_up_key(&mut self, actions: &mut Vec<Action>) {
        let faults = std::mem::take(&mut self.work().before);
        self.end_key(faults, actions);
    }

    /// Ends the current key: lists the faults that remain, reports those that were repaired, and lets later
    /// writes continue.
    fn end_key(&mut self, faults: Vec<(usize, Fault)>, actions: &mut Vec<Action>) {
        let Some(Work { key, walk, slot, deep, before, fix, .. }) = self.lead().scrub.work.take()
        else {
            unreachable!("a key is being scrubbed");
        };
        let is_repaired = faults.is_empty() && !before.is_empty();
        let mut faults = self.by_osd(faults);
        if faults.iter().any(|(_, fault)| fault.kind == FaultKind::NotCompared) {
            self.scrub_note.keep_listed(&key, &mut faults);
        }
        if let Some(fix) = fix {
            self.report_fix(fix, &faults, !before.is_empty(), actions);
        }
        let mut is_news = is_repaired;
        if !faults.is_empty() {
            actions.push(Action::Scrub(ScrubEvent::Found { key, faults: faults.clone() }));
            let at = self.scrub_now.max(self.scrub_note.born_at);
            let finding = Finding { key, at, faults };
            is_news |= !planted::on(Bug::DamageForgotten) && self.scrub_note.list(finding);
        } else if deep && !self.is_kept_for_later(&key) {
            is_news |= self.scrub_note.strike_key(&key);
        }
        if is_repaired {
            self.scrub_note.repaired = self.scrub_note.repaired.saturating_add(1);
            let faults = self.by_osd(before);
            actions.push(Action::Scrub(ScrubEvent::Repaired { key, faults }));
        }
        if walk == Some(self.lead().scrub.walk)
            && let Some(running) = &mut self.scrub_note.running
            && running.cursor.is_none_or(|cursor| cursor < key)
        {
            running.cursor = Some(key);
            running.keys = running.keys.saturating_add(1);
            // If the next key is not recorded in the note before it is read, the note must be written now
            // without this key.
            is_news |= running.trial.take().is_some() && self.lead().scrub.careful_left == 0;
        }
        let scrub = &mut self.lead().scrub;
        scrub.keys_unkept += 1;
        if is_news || scrub.is_unkept || scrub.keys_unkept >= KEEP_EVERY {
            self.keep_note(actions);
        }
        if let Some(slot) = slot {
            self.release(slot, actions);
        }
        self.pump_objects(actions);
        self.scrub_next(actions);
    }

    /// Returns whether a key stays listed although a look found no fault. In pools with parity a look without
    /// all members sees too little: any `k` units form a code word.
    fn is_kept_for_later(&mut self, key: &BlockKey) -> bool {
        let Some(stripes) = self.stripes() else { return false };
        let is_complete = self.lead().acting.count() == stripes.part_count();
        let differs = |(_, fault): &(OsdId, Fault)| fault.kind == FaultKind::Differs;
        let listed = self.scrub_note.finding(key);
        !is_complete && listed.is_some_and(|listed| listed.faults.iter().any(differs))
    }

    fn by_osd(&mut self, faults: Vec<(usize, Fault)>) -> Vec<(OsdId, Fault)> {
        let peers = &self.lead().peers;
        faults.into_iter().map(|(index, fault)| (peers[index].member.osd, fault)).collect()
    }

    /// Ends a scrub that has compared all keys.
    fn end_scrub(&mut self, running: Running, actions: &mut Vec<Action>) {
        let Running { deep, since, cursor, keys, more, .. } = running;
        let note = &mut self.scrub_note;
        note.running = None;
        note.light_at = later(note.light_at, since);
        if deep {
            note.strike(cursor, None);
            note.more = more;
            note.deep_at = later(note.deep_at, since);
        }
        self.lead().scrub.end_walk();
        actions.push(Action::Scrub(ScrubEvent::Ended { deep, keys }));
        self.keep_note(actions);
    }

    /// Makes the note durable at all acting members. Only one note is in flight at a time; later changes are
    /// sent with the next one.
    fn keep_note(&mut self, actions: &mut Vec<Action>) {
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        let lead = self.lead();
        lead.scrub.is_unkept = !lead.scrub.keeping.is_empty();
        if lead.scrub.is_unkept {
            return;
        }
        lead.scrub.keys_unkept = 0;
        lead.scrub.keeping = lead.acting;
        self.scrub_note.epoch = epoch;
        self.scrub_note.number = self.scrub_note.number.saturating_add(1);
        let note = self.scrub_note.encode();
        for index in self.lead().acting_others() {
            let call = self.lead().asks.ask(index, Asked::Keep);
            self.send(index, PeerBody::Keep { call, note: note.clone() }, actions);
        }
        let request = StoreRequest::Note { key: NoteKey::Scrub(self.shape.pg), bytes: note };
        self.call(Call::ScrubKeep, request, actions);
    }

    /// Handles a member's answer to the note: the note is durable there, or the store had no room for it. A
    /// refused note is not sent again: the next one contains everything that this one does.
    pub(crate) fn on_note_kept(&mut self, index: usize, actions: &mut Vec<Action>) {
        let scrub = &mut self.lead().scrub;
        scrub.keeping.take(index);
        if !scrub.keeping.is_empty() || !self.is_scrubbing() {
            return;
        }
        if self.lead().scrub.is_unkept {
            self.keep_note(actions);
        } else if (self.lead().scrub.work.as_ref())
            .is_some_and(|it| matches!(it.stage, Stage::Noting))
        {
            self.take_scrub_turn(actions);
        }
    }
}
