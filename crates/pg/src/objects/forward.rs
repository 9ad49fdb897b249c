//! Peering in pools of objects: acting members that lack the newest versions get all that they lack as one batch,
//! before the epoch is active. `docs/internals/objects.md`, rules 48 to 53.
//!
//! ```text
//!   primary behind:  Gather ─▶ a member that has all ─▶ Gathered ─▶ own store ─┐
//!                                                                              ▼
//!   other members, one by one:  own log, what it names as it is now ─▶ ObjectForward ─▶ Repaired ─▶ Activate
//! ```
//!
//! Invariants
//!   1. Each member has a prefix of the versions at each moment: a forward is one entry of its journal, with the
//!      record that says so.
//!   2. Content comes from a member that is complete up to the adopted version, and whose store is quiet.

use ::objects::Touched;
use base::Version;
use blockstore::{Answer, AsOf, Batch as StoreBatch, Request as StoreRequest, StoreError};
use format::disk::{EntryKind, NoteKey};
use format::wire::{BatchContent, Gathered, MemberState, PeerBody};

use super::Objects;
use super::batch::{self, Changes};
use super::log::{ReadError, Reading, Step, log_of};
use crate::ask::Asked;
use crate::local_state::RecordFor;
use crate::store_calls::Call;
use crate::{Action, MemberSet, Need, Pg, Record, Serving};

/// Who gets what is being read here.
#[derive(Clone, Copy)]
enum ReadFor {
    /// The member that this OSD, as primary, brings forward.
    Lead,
    /// The primary. `call`: the number of its request.
    Peer { call: u32 },
}

/// What peering does in a pool of objects.
#[derive(Default)]
pub(crate) struct Forwarding {
    /// What is being read here of what another member lacks.
    reading: Option<(ReadFor, Reading)>,
    /// As primary: the member that is being brought forward, and up to which version.
    target: Option<(usize, Version)>,
    /// As primary: members that could not read what another one lacks, and those whose log does not tell what
    /// this one lacks.
    unreadable: MemberSet,
    too_short: MemberSet,
    /// Number of readings that were begun.
    reading_count: u32,
}

impl Forwarding {
    /// Returns what is being read, if it is this.
    fn reading(&mut self, number: u32) -> Option<&mut Reading> {
        let (_, reading) = self.reading.as_mut().filter(|_| number == self.reading_count)?;
        Some(reading)
    }
}

impl Objects {
    /// As primary: returns the member that is being brought forward.
    pub(crate) fn brings_forward(&self) -> Option<usize> {
        self.forwarding.target.map(|(target, _)| target)
    }
}

impl Pg {
    /// As primary: brings the acting members to the highest version up to which one of them is complete, then
    /// activates the epoch. Requires: all have reported their state.
    pub(crate) fn bring_forward(&mut self, actions: &mut Vec<Action>) {
        if let Some(index) = self.has_never_adopted() {
            return self.fail_acting(index, "it has versions that were never adopted", actions);
        }
        let lead = self.lead();
        let adopted = lead.highest_complete();
        lead.adopted = adopted;
        let is_behind = |index: &usize| lead.complete_of(*index) < adopted;
        // This OSD first: then the others get it from here.
        let me = lead.me;
        let Some(target) = [me].into_iter().chain(lead.acting_others()).find(is_behind) else {
            return self.activate(actions);
        };
        let after = lead.complete_of(target);
        self.serving = Serving::Comparing;
        let forwarding = &mut self.objects.forwarding;
        forwarding.target = Some((target, adopted));
        let (unreadable, too_short) = (forwarding.unreadable, forwarding.too_short);
        let lead = self.lead();
        let has_all = |index: &usize| lead.complete_of(*index) == adopted;
        let sources = [me].into_iter().chain(lead.acting_others()).filter(has_all);
        let sources: Vec<usize> = sources.collect();
        let readable =
            sources.iter().copied().find(|index| !unreadable.has(*index) && !too_short.has(*index));
        match readable {
            Some(source) if source == me => {
                self.begin_reading(ReadFor::Lead, after, adopted, actions);
            }
            Some(source) => {
                let call = self.lead().asks.ask(source, Asked::ObjectGather { source });
                self.send(source, PeerBody::Gather { call, after, version: adopted }, actions);
            }
            None if sources.iter().any(|index| too_short.has(*index)) => {
                let why = "the member lacks more than the logs of others tell";
                self.fail_acting(target, why, actions);
            }
            None => {
                let why = "it cannot read what other members lack";
                self.fail_acting(sources[0], why, actions);
            }
        }
    }

    /// Returns an acting member that says it has more than was adopted when the next epoch after its record
    /// began: its store was set back.
    fn has_never_adopted(&mut self) -> Option<usize> {
        let lead = self.lead();
        let newest = lead.acting_states().max_by_key(|state| state.record_epoch)?;
        let is_beyond = |state: &MemberState| {
            let next = newest.history.iter().find(|past| past.epoch > state.record_epoch);
            next.is_some_and(|next| state.complete > next.adopted)
        };
        lead.acting_states().position(is_beyond)
    }

    /// An acting member, perhaps this OSD, cannot take part in the epoch.
    fn fail_acting(&mut self, index: usize, why: &str, actions: &mut Vec<Action>) {
        let lead = self.lead();
        if index != lead.me {
            return self.on_peer_failed(index, why.to_owned(), actions);
        }
        let need = Need::Failed(lead.peers[index].member, why.to_owned());
        self.end_epoch(need, why.to_owned(), actions);
    }

    /// Begins to read what a member lacks.
    fn begin_reading(
        &mut self,
        what: ReadFor,
        after: Version,
        version: Version,
        actions: &mut Vec<Action>,
    ) {
        let reading = Reading::new(self.pool_shape(), self.shard_list(), after, version);
        self.objects.forwarding.reading_count += 1;
        self.objects.forwarding.reading = Some((what, reading));
        self.read_missing(actions);
    }

    fn read_missing(&mut self, actions: &mut Vec<Action>) {
        let number = self.objects.forwarding.reading_count;
        let (_, reading) = self.objects.forwarding.reading.as_mut().expect("it is being read");
        match reading.next() {
            Step::Records(queries) => {
                self.read_records(Call::MissingRecords { reading: number }, queries, actions);
            }
            Step::Blocks(blocks) => {
                let unit_count = self.shape.block_size.unit_count();
                for (index, (key, units)) in blocks.into_iter().enumerate() {
                    let units = units.words(unit_count);
                    let request = StoreRequest::Copy { key, units, as_of: AsOf::View };
                    let call = Call::MissingBlock { reading: number, index };
                    self.call(call, request, actions);
                }
            }
            Step::Done => {
                let (what, reading) =
                    self.objects.forwarding.reading.take().expect("it was just found");
                let version = reading.version();
                let block_size = self.shape.block_size;
                let content = batch::encode_missing(reading.finish(), block_size, &self.buffers);
                self.on_missing_read(what, version, content, actions);
            }
        }
    }

    /// Handles the store's answer to a request for records that a member lacks.
    pub(crate) fn on_missing_records(
        &mut self,
        number: u32,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Some(reading) = self.objects.forwarding.reading(number) else { return };
        let came = match result {
            Ok(Answer::Records { answers, .. }) => reading.supply_records(answers),
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(_) => Err(ReadError::Unreadable),
        };
        match came {
            Ok(()) => self.read_missing(actions),
            Err(error) => self.give_up_reading(error, actions),
        }
    }

    /// Handles the store's answer to a request for units that a member lacks.
    pub(crate) fn on_missing_block(
        &mut self,
        (number, index): (u32, usize),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        // If one of the blocks could not be read, the answers about the others come later.
        let Some(reading) = self.objects.forwarding.reading(number) else { return };
        let came = match result {
            Ok(Answer::Copy { content }) => reading.supply_block(index, content),
            Ok(_) => unreachable!("the store sent another kind of answer"),
            Err(_) => Err(ReadError::Unreadable),
        };
        match came {
            Ok(true) => self.read_missing(actions),
            Ok(false) => {}
            Err(error) => self.give_up_reading(error, actions),
        }
    }

    fn give_up_reading(&mut self, error: ReadError, actions: &mut Vec<Action>) {
        let (what, reading) = self.objects.forwarding.reading.take().expect("it is being read");
        self.on_missing_read(what, reading.version(), Err(error), actions);
    }

    fn on_missing_read(
        &mut self,
        what: ReadFor,
        version: Version,
        content: Result<Option<BatchContent>, ReadError>,
        actions: &mut Vec<Action>,
    ) {
        match what {
            ReadFor::Lead => {
                let me = self.lead().me;
                self.on_source_read(me, version, content, actions);
            }
            ReadFor::Peer { call } => {
                let result = match content {
                    Ok(content) => Gathered::Forward(content),
                    Err(ReadError::TooLarge) => Gathered::TooLarge,
                    Err(ReadError::Unreadable) => Gathered::Unreadable,
                };
                self.answer(PeerBody::Gathered { call, result }, actions);
            }
        }
    }

    /// As primary: continues with what a member that has all read, of what another one lacks.
    fn on_source_read(
        &mut self,
        source: usize,
        version: Version,
        content: Result<Option<BatchContent>, ReadError>,
        actions: &mut Vec<Action>,
    ) {
        if self.serving != Serving::Comparing {
            return;
        }
        let (target, _) = self.objects.forwarding.target.expect("a member is brought forward");
        let content = match content {
            Ok(content) => content,
            Err(ReadError::TooLarge) => {
                self.objects.forwarding.too_short.add(source);
                return self.bring_forward(actions);
            }
            Err(ReadError::Unreadable) => {
                self.objects.forwarding.unreadable.add(source);
                return self.bring_forward(actions);
            }
        };
        self.objects.forwarding.target = Some((target, version));
        let lead = self.lead();
        let after = lead.complete_of(target);
        if target != lead.me {
            let call = lead.asks.ask(target, Asked::ObjectForward);
            let body = PeerBody::ObjectForward { call, after, version, content };
            return self.send(target, body, actions);
        }
        if self.local_state.record().is_none() {
            return self.fail_acting(target, "this OSD has no record of the PG", actions);
        }
        match self.decode_forward(version, content) {
            Ok(changes) => {
                self.take_forward(after, version, changes, RecordFor::OwnForward, actions);
            }
            Err(why) => self.fail_acting(source, &why, actions),
        }
    }

    /// As primary: handles a member's answer to [`PeerBody::Gather`].
    pub(crate) fn on_missing_gathered(
        &mut self,
        source: usize,
        result: Gathered,
        actions: &mut Vec<Action>,
    ) {
        let content = match result {
            Gathered::Forward(content) => Ok(content),
            Gathered::TooLarge => Err(ReadError::TooLarge),
            Gathered::Unreadable => Err(ReadError::Unreadable),
        };
        let version = self.lead().adopted;
        self.on_source_read(source, version, content, actions);
    }

    /// As primary: notes that an acting member, perhaps this OSD, has what it lacked.
    pub(crate) fn on_brought_forward(&mut self, actions: &mut Vec<Action>) {
        if self.serving != Serving::Comparing {
            return;
        }
        self.objects.forwarding.too_short = MemberSet::default();
        let target = self.objects.forwarding.target.take();
        let (target, version) = target.expect("a member is brought forward");
        let state = self.lead().peers[target].state.as_mut();
        state.expect("all have reported").complete = version;
        self.bring_forward(actions);
    }

    /// As primary: handles the end of the forward of this OSD.
    pub(crate) fn on_own_forward(&mut self, is_durable: bool, actions: &mut Vec<Action>) {
        if is_durable {
            return self.on_brought_forward(actions);
        }
        let me = self.lead().me;
        self.fail_acting(me, "the store has no room for what it lacks", actions);
    }

    /// As a member: handles a request for what another member lacks.
    pub(crate) fn on_gather(
        &mut self,
        call: u32,
        (after, version): (Version, Version),
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        self.check_version(after)?;
        self.check_version(version)?;
        let is_complete = self.shape.objects.is_some() && self.own_state().complete == version;
        if !is_complete || after >= version || self.objects.forwarding.reading.is_some() {
            return Err("this OSD cannot tell now what another member lacks".into());
        }
        self.begin_reading(ReadFor::Peer { call }, after, version, actions);
        Ok(())
    }

    /// As a member: takes what it lacks.
    pub(crate) fn on_object_forward(
        &mut self,
        call: u32,
        (after, version): (Version, Version),
        content: Option<BatchContent>,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if self.shape.objects.is_none() || self.follow().is_learner() {
            return Err("a forward for a pool of blocks, or for a learner".into());
        }
        self.check_version(after)?;
        self.check_version(version)?;
        let is_whole = self.local_state.record().is_some_and(|record| record.filling.is_none());
        let is_next = after == self.own_state().complete && after < version;
        if !is_whole || !is_next || self.local_state.is_recording() {
            return Err("a forward that does not begin at what this OSD has".into());
        }
        let changes = self.decode_forward(version, content)?;
        self.take_forward(after, version, changes, RecordFor::Forward { call }, actions);
        Ok(())
    }

    /// Decodes a forward to this version that a peer sent. The error says what is wrong with it.
    fn decode_forward(
        &self,
        version: Version,
        content: Option<BatchContent>,
    ) -> Result<Changes, String> {
        let Some(content) = content else { return Ok(Changes::default()) };
        let changes =
            batch::decode(content, EntryKind::Batch, self.shape.pg, self.shape.block_size)?;
        changes.records.iter().try_for_each(|change| self.check_record(change, None))?;
        for (change, _) in &changes.blocks {
            self.shape.check_key(change.key)?;
            if change.version == Version::ZERO || change.version > version {
                return Err("a block with a version above that of its forward".into());
            }
        }
        Ok(changes)
    }

    /// Gives a forward to this OSD's store: with it a log record, and the record that says that this OSD is
    /// complete up to its version.
    fn take_forward(
        &mut self,
        after: Version,
        version: Version,
        changes: Changes,
        what: RecordFor,
        actions: &mut Vec<Action>,
    ) {
        let (pg, block_size) = (self.shape.pg, self.shape.block_size);
        let Changes { mut records, blocks } = changes;
        let lines = blocks.iter().map(|(change, _)| change);
        let touched = Touched::of_changes(&records, lines, self.pool_shape());
        records.extend(log_of(&touched, version, block_size));
        let known = self.local_state.record().expect("it has activated the PG").clone();
        let note = self.local_state.begin_record(Record { adopted: version, ..known }, what);
        let note = Some((NoteKey::Pg(pg), note));
        let batch = StoreBatch { pg, block_size, after, version, records, blocks, note };
        self.call(Call::ObjectForward { version }, StoreRequest::Batch(batch), actions);
    }

    /// Handles the store's answer to a forward.
    pub(crate) fn on_forward_taken(
        &mut self,
        version: Version,
        is_durable: bool,
        actions: &mut Vec<Action>,
    ) {
        if is_durable {
            self.local_state.on_forward(version);
        }
        self.on_record_kept(is_durable, actions);
    }
}
