//! A member's side of the versions of a pool with parity: what each version changes in its part, the
//! differences that a data member sends, and the parity that is computed from them. The primary is a member,
//! too.
//!
//! A data member sends the difference straight to the members with parity, if the primary says so. It does not
//! matter whether such a message arrives late, twice or not at all: a parity member that waits for a difference
//! asks the primary for it.
//!
//! Invariants
//!   1. Old units are read as of the version before, so it does not matter whether the store has the new ones
//!      already.
//!   2. Prepared versions are committed only up to the mark: all acting members have them durably.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{MapRevision, OsdId, Position, Version};
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Content, PeerBody};

use super::direct::UnsettledUnits;
use super::early::{EarlyDelta, EarlyDeltas};
use super::parity::{Contradiction, ParityWork, difference};
use super::part::{Part, has_lost_units, table_of};
use super::pipeline::{Arrival, Arrived, Fill, Next, Pipeline};
use crate::store_calls::Call;
use crate::sync::FlushFor;
use crate::units::Units;
use crate::{Action, Delta, Need, Pg, shape};

/// A member's state of the versions of an epoch.
pub struct StripeMember {
    pub pipeline: Pipeline,
    /// Differences that wait for old units, by version.
    differences: BTreeMap<Version, Difference>,
    /// Differences of other members that arrived before their versions.
    early: EarlyDeltas,
    /// What versions above the mark change here.
    pub unsettled: UnsettledUnits,
}

struct Difference {
    key: BlockKey,
    new: Part,
    units: Units,
    /// Whether this member sends the difference to the members with parity itself.
    is_direct: bool,
}

/// The fields that all messages with a version have in common.
#[derive(Clone, Copy)]
struct Header {
    version: Version,
    mark: Version,
    lazy: bool,
}

impl StripeMember {
    fn new(pipeline: Pipeline) -> StripeMember {
        StripeMember {
            pipeline,
            differences: BTreeMap::new(),
            early: EarlyDeltas::default(),
            unsettled: UnsettledUnits::default(),
        }
    }
}

impl Pg {
    fn stripe_member(&mut self) -> &mut StripeMember {
        self.stripe_member.as_mut().expect("the epoch is active here")
    }

    /// Begins to accept versions: the epoch is settled here.
    pub(crate) fn begin_stripes(&mut self, adopted: Version) {
        let entry = self.entry.as_ref().expect("an epoch is entered");
        let pipeline = match entry.position_of(self.me) {
            Some(_) => Pipeline::new(adopted, entry.epoch),
            None => Pipeline::joining(entry.epoch),
        };
        self.stripe_member = self.stripes().map(|_| StripeMember::new(pipeline));
    }

    fn is_learner(&self) -> bool {
        self.follow.as_ref().is_some_and(|follow| follow.is_learner())
    }

    pub(crate) fn own_position(&self) -> Position {
        let entry = self.entry.as_ref().expect("an epoch is entered");
        let learner = entry.learner(self.me).map(|learner| learner.position);
        entry.position_of(self.me).or(learner).expect("this OSD has a part in the epoch")
    }

    /// Returns the most room in the journal that a version from the primary takes here. A parity part has the
    /// units that the primary encoded and those that come as differences.
    pub fn room_for(&self, body: &PeerBody) -> u64 {
        let (content, changes) = match body {
            PeerBody::Part { content, .. } => (content, &[][..]),
            PeerBody::Parity { content, changes, .. } => (content, &changes[..]),
            _ => return 0,
        };
        let encoded = match content {
            Content::Block { checksums, .. } => checksums.len(),
            Content::Gone | Content::Tombstone { .. } => 0,
        };
        let block_size = self.shape.block_size;
        let changed = changes.iter().filter_map(|it| Units::from_words(&it.units, block_size));
        let changed = changed.fold(Units::default(), |all, units| all.with(&units));
        self.room_of(changed.count().max(encoded) as u32)
    }

    /// Handles a version from the primary. The error says how the message violates the protocol.
    pub(crate) fn on_stripe_version(
        &mut self,
        body: PeerBody,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let stripes = self.shape.face.stripes().ok_or("the pool has no parity")?;
        if self.stripe_member.is_none() {
            return Err("a version was sent to a member that is not active".into());
        }
        let position = self.own_position();
        let (header, what) = match body {
            PeerBody::Skip { version, mark, lazy, .. } => {
                let header = Header { version, mark, lazy };
                self.check_next(header)?;
                (header, Arrived::Skip)
            }
            PeerBody::Part {
                version, mark, key, lazy, content, differences, is_direct, ..
            } => {
                if !stripes.is_data(position) {
                    return Err("a data part was sent to a member that holds parity".into());
                }
                self.check_stripe_content(key, version, &content)?;
                let units = Units::from_words(&differences, self.shape.block_size);
                let units = units.ok_or("units beyond the end of a block")?;
                if self.is_learner() && !units.is_empty() {
                    return Err(
                        "differences were requested from a learner, which cannot compute them"
                            .into(),
                    );
                }
                let header = Header { version, mark, lazy };
                self.check_next(header)?;
                self.read_old_units(header, key, &content, (units, is_direct), actions)?;
                (header, Arrived::Ready(key, content))
            }
            PeerBody::Parity { version, mark, key, lazy, content, changes } => {
                if stripes.is_data(position) {
                    return Err("a parity part was sent to a member that holds data".into());
                }
                self.check_stripe_content(key, version, &content)?;
                let header = Header { version, mark, lazy };
                self.check_next(header)?;
                if matches!(content, Content::Tombstone { .. }) {
                    (header, Arrived::Ready(key, content))
                } else {
                    let size = self.shape.block_size;
                    let rows = Part::of(content, size, true)?;
                    let work = ParityWork::new(stripes, key, rows, changes, size)?;
                    (header, Arrived::Parity(Box::new(work)))
                }
            }
            _ => unreachable!("it is a version"),
        };
        let Header { version, mark, lazy } = header;
        let changed = match &what {
            Arrived::Ready(key, content) => Some((*key, self.changed_units(content)?)),
            Arrived::Skip | Arrived::Parity(_) => None,
        };
        let member = self.stripe_member();
        member.pipeline.arrive(Arrival { version, lazy, what })?;
        member.unsettled.settle(mark);
        if let Some((key, units)) = changed {
            member.unsettled.add(version, key, units);
        }
        let early = member.early.take(version);
        self.add_early_deltas(version, early);
        if let Some(follow) = &mut self.follow {
            follow.serves(MapRevision::ZERO);
            follow.raise_mark(mark);
        }
        self.commit(mark, actions);
        self.read_old_parity(actions);
        self.give_ready(actions);
        Ok(())
    }

    fn check_next(&self, header: Header) -> Result<(), String> {
        self.check_version(header.version)?;
        self.check_version(header.mark)?;
        if header.mark >= header.version {
            return Err("the version of a write is not above its mark".into());
        }
        let member =
            self.stripe_member.as_ref().ok_or("a version was sent before the activation")?;
        member.pipeline.check_next(header.version)
    }

    fn check_stripe_content(
        &self,
        key: BlockKey,
        version: Version,
        content: &Content,
    ) -> Result<(), String> {
        self.shape.check_key(key)?;
        let part = Part::of(content.clone(), self.shape.block_size, true)?;
        let is_sound = part.damaged.is_empty() && part.table.is_empty();
        match part.version.max(part.deleted) == version && is_sound {
            true => Ok(()),
            false => Err("the content of a part does not match the version of its message".into()),
        }
    }

    /// Returns the units of its part that a version changes: a tombstone changes all of them.
    fn changed_units(&self, content: &Content) -> Result<Units, String> {
        let block_size = self.shape.block_size;
        match content {
            Content::Block { units, .. } => Units::from_words(units, block_size)
                .ok_or_else(|| "units beyond the end of a block".into()),
            Content::Gone | Content::Tombstone { .. } => {
                Ok(Units::from_range(0..block_size.unit_count()))
            }
        }
    }

    /// Returns an upper bound of all versions before this one.
    fn before(version: Version) -> Version {
        Version { counter: version.counter - 1, ..version }
    }

    /// Reads the old units whose difference the parity members need.
    fn read_old_units(
        &mut self,
        header: Header,
        key: BlockKey,
        content: &Content,
        (units, is_direct): (Units, bool),
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if units.is_empty() {
            return Ok(());
        }
        let block_size = self.shape.block_size;
        let new = Part::of(content.clone(), block_size, false)?;
        if new.version != header.version || !units.without(&new.units).is_empty() {
            return Err("differences were requested for units that do not change".into());
        }
        let difference = Difference { key, new, units, is_direct };
        self.stripe_member().differences.insert(header.version, difference);
        let as_of = AsOf::Version(Pg::before(header.version));
        let request = StoreRequest::Copy { key, units: units.words(block_size), as_of };
        self.call(Call::OldUnits { version: header.version }, request, actions);
        Ok(())
    }

    /// Handles the old units of this member's data part: sends the difference to the members with parity, or
    /// to the primary. If some old units are lost, the primary makes them from other parts.
    pub(crate) fn on_old_units(
        &mut self,
        version: Version,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let mut old = self.part_of_copy(result);
        if planted::on(Bug::ParityFromStaleData) {
            old.written.clear();
        }
        let block_size = self.shape.block_size;
        let found = self.stripe_member().differences.remove(&version);
        let Difference { key, new, units, is_direct } = found.expect("it waits for old units");
        let new = |unit: u32| new.written.get(&unit).cloned();
        let content = difference(&old, new, units, block_size, &self.buffers);
        let part = self.own_position();
        if self.lead.is_some() {
            return self.complete_delta(version, key, part, content, actions);
        }
        let delta = Delta { version, key, part, content };
        if is_direct && units.within(&old.damaged).is_empty() {
            let (to, delta) = (self.parity_members(), Box::new(delta));
            return actions.push(Action::SendDelta { to, delta });
        }
        self.answer(delta.to_primary(), actions);
    }

    /// Returns the acting members with parity.
    fn parity_members(&self) -> Vec<OsdId> {
        let stripes = self.stripes().expect("the pool has parity");
        let entry = self.entry.as_ref().expect("an epoch is entered");
        let parity = entry.filled().filter(|(position, _)| !stripes.is_data(*position));
        parity.map(|(_, member)| member.osd).collect()
    }

    pub(crate) fn part_of_copy(&self, result: Result<Answer, StoreError>) -> Part {
        let Ok(Answer::Copy { content }) = result else {
            unreachable!("the store answers a copy with a copy");
        };
        let part = Part::of(content, self.shape.block_size, false);
        part.expect("the store knows the size of its blocks")
    }

    /// Reads this member's old parity for versions that have arrived.
    fn read_old_parity(&mut self, actions: &mut Vec<Action>) {
        let block_size = self.shape.block_size;
        for version in self.stripe_member().pipeline.start_reads() {
            let work = self.stripe_member().pipeline.parity(version);
            let work = work.expect("it waits for old parity");
            let (key, needed) = (work.key, work.needed(block_size));
            // The store returns the part table with any unit.
            let units = if needed.is_empty() { Units::from_range(0..1) } else { needed };
            let as_of = AsOf::Version(Pg::before(version));
            let request = StoreRequest::Copy { key, units: units.words(block_size), as_of };
            self.call(Call::OldParity { version }, request, actions);
        }
    }

    /// Handles this member's parity part as it was before a version.
    pub(crate) fn on_old_parity(
        &mut self,
        version: Version,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let old = self.part_of_copy(result);
        let work = self.stripe_member().pipeline.parity(version);
        work.expect("it waits for old parity").on_old(old);
        self.make_parity(version, actions);
    }

    /// Handles a difference for this member's parity part. It may arrive before its version, and twice.
    pub(crate) fn on_parity_delta(
        &mut self,
        version: Version,
        key: BlockKey,
        part: Position,
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let block_size = self.shape.block_size;
        let stripes = self.stripes().ok_or("the pool has no parity")?;
        if stripes.is_data(self.own_position()) {
            return Err("a difference was sent to a member that holds data".into());
        }
        self.check_version(version)?;
        let delta = Part::of(content, block_size, true)?;
        let member =
            self.stripe_member.as_mut().ok_or("a difference was sent before the activation")?;
        if version > member.pipeline.newest() {
            member.early.hold(version, EarlyDelta { key, part, delta }, block_size);
            return Ok(());
        }
        // If nothing waits for it, it has arrived before.
        if let Some(work) = member.pipeline.parity(version) {
            work.on_delta(key, part, delta, block_size)?;
            self.make_parity(version, actions);
        }
        Ok(())
    }

    /// Handles a difference that came straight from a data member.
    pub(crate) fn on_direct_delta(
        &mut self,
        from: OsdId,
        body: PeerBody,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let PeerBody::ParityDelta { version, key, part, content } = body else {
            return Err("only a primary may send this message".into());
        };
        let entry = self.entry.as_ref().expect("an epoch is entered");
        if entry.member_at(part).is_none_or(|member| member.osd != from) {
            return Err("the sender is not the acting member with the data part".into());
        }
        if self.stripe_member.is_none() {
            // The store refused a version: this member's part in the epoch has ended.
            return Ok(());
        }
        self.on_parity_delta(version, key, part, content, actions)
    }

    /// Adds differences that arrived before their version, which has arrived now. One that does not match the
    /// version is dropped, so that this member asks for the right one.
    fn add_early_deltas(&mut self, version: Version, early: Vec<EarlyDelta>) {
        let block_size = self.shape.block_size;
        for EarlyDelta { key, part, delta } in early {
            if let Some(work) = self.stripe_member().pipeline.parity(version) {
                let _ = work.on_delta(key, part, delta, block_size);
            }
        }
    }

    /// Asks the primary for differences that have been missing for one to two intervals between the calls.
    /// Called periodically.
    pub fn ask_for_deltas(&mut self, actions: &mut Vec<Action>) {
        let is_acting = self.follow.as_ref().is_some_and(|follow| follow.is_acting());
        // Nothing is lost on the way to a learner or to the primary: the loss of that connection ends the
        // member's part in the epoch.
        if !is_acting || planted::on(Bug::LostDeltaNotAskedFor) {
            return;
        }
        let Some(member) = &mut self.stripe_member else { return };
        for (version, part) in member.pipeline.overdue_deltas() {
            self.answer(PeerBody::DeltaWanted { version, part }, actions);
        }
    }

    /// Computes the parity of a version, if the old parity and all differences have arrived.
    fn make_parity(&mut self, version: Version, actions: &mut Vec<Action>) {
        let stripes = self.shape.face.stripes().expect("the pool has parity");
        let parity = stripes.parity_index(self.own_position()).expect("this member has parity");
        let (block_size, buffers) = (self.shape.block_size, self.buffers.clone());
        let pipeline = &mut self.stripe_member().pipeline;
        let work = pipeline.parity(version).expect("it waits for what it is made of");
        if !work.is_ready() {
            return;
        }
        match work.content(stripes, parity, block_size, &buffers) {
            Ok(content) => {
                let key = work.key;
                let is_damaged = has_lost_units(&content);
                pipeline.ready(version, content);
                if is_damaged {
                    self.tell_lost_parity(key, actions);
                }
                self.give_ready(actions);
            }
            Err(contradiction) => self.on_contradiction(contradiction, actions),
        }
    }

    /// Ends the epoch, because a version cannot be applied to this member's parity part. If a data part is
    /// older than the part table says, it is the member with that part that cannot continue: it is filled
    /// from the others, which have what it lost. Otherwise it is this member.
    fn on_contradiction(&mut self, contradiction: Contradiction, actions: &mut Vec<Action>) {
        let Contradiction { behind, why } = contradiction;
        let is_acting = self.follow.as_ref().is_none_or(|follow| follow.is_acting());
        match behind.filter(|_| is_acting) {
            None => self.cannot_store(why, actions),
            Some(part) if self.follow.is_some() => {
                self.answer(PeerBody::PartBehind { part }, actions);
            }
            Some(part) => {
                let me = self.lead().me;
                self.on_part_behind(me, part, actions);
            }
        }
    }

    /// As primary: handles a data part that is older than a member with parity knows. If the part has no
    /// acting member, its difference was made of others: then the member with parity cannot continue.
    pub(crate) fn on_part_behind(
        &mut self,
        teller: usize,
        part: Position,
        actions: &mut Vec<Action>,
    ) {
        let lead = self.lead();
        let found = lead.acting.iter().find(|index| lead.peers[*index].position == part);
        let (index, me) = (found.unwrap_or(teller), lead.me);
        let why = "parity was computed from a later version of a part".to_owned();
        match index == me {
            true => {
                let member = lead.peers[me].member;
                self.end_epoch(Need::Failed(member, why.clone()), why, actions);
            }
            false => self.on_peer_failed(index, why, actions),
        }
    }

    /// Lets the primary look at a stripe whose parity stays lost here.
    fn tell_lost_parity(&mut self, key: BlockKey, actions: &mut Vec<Action>) {
        if self.lead.is_some() {
            return self.want_look(key, actions);
        }
        if self.follow.as_ref().is_some_and(|follow| follow.is_acting()) {
            self.answer(PeerBody::ParityLost { key }, actions);
        }
    }

    /// As primary: handles a parity member's report that units of its part are lost.
    pub(crate) fn on_parity_lost(
        &mut self,
        index: usize,
        key: BlockKey,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        self.shape.check_key(key)?;
        let stripes = self.stripes().ok_or("the pool has no parity")?;
        let lead = self.lead();
        if !lead.acting.has(index) || stripes.is_data(lead.peers[index].position) {
            return Err("parity is lost at a member that has none".into());
        }
        self.want_look(key, actions);
        Ok(())
    }

    /// Sends the versions that are ready to the store, in order, and begins the syncs behind them.
    pub(crate) fn give_ready(&mut self, actions: &mut Vec<Action>) {
        while let Some(next) = self.stripe_member().pipeline.give() {
            let arrival = match next {
                Next::Version(arrival) => arrival,
                Next::Fill(fill) => {
                    self.store_fill(fill, actions);
                    continue;
                }
                Next::Cursor => {
                    self.record_progress(actions);
                    continue;
                }
            };
            let (pg, Arrival { version, lazy, what }) = (self.shape.pg, arrival);
            let request = match what {
                Arrived::Skip => {
                    self.local_state.on_version(version);
                    StoreRequest::Skip { pg, version, lazy }
                }
                Arrived::Ready(key, content) => {
                    let is_delete = matches!(content, Content::Tombstone { .. });
                    let units = 0..self.shape.block_size.unit_count();
                    self.local_state.on_write(version, key, units, is_delete);
                    StoreRequest::Prepare { pg, key, version, content, replaces: None, lazy }
                }
                Arrived::Parity(_) => unreachable!("it is not ready"),
            };
            self.call(Call::Prepared { version }, request, actions);
        }
        while let Some((what, upto)) = self.stripe_member().pipeline.begin_sync() {
            self.flush_upto(what, upto, actions);
        }
    }

    /// Handles the store's answer to a version.
    pub(crate) fn on_prepared(
        &mut self,
        version: Version,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        match result {
            Ok(answer) => {
                let is_durable = answer != Answer::Written;
                self.stripe_member().pipeline.on_stored(version, is_durable);
                self.read_old_parity(actions);
                self.report_stored(actions);
            }
            Err(_) => {
                self.local_state.lacks(version);
                self.cannot_store("the store has no room for a write".to_owned(), actions);
            }
        }
    }

    /// Ends this member's part in the epoch, because it cannot store a version.
    fn cannot_store(&mut self, why: String, actions: &mut Vec<Action>) {
        if self.follow.is_some() {
            return self.cannot_follow(&why, actions);
        }
        let lead = self.lead();
        let (member, is_alone) = (lead.peers[lead.me].member, lead.is_alone());
        assert!(!is_alone, "a stripe has several parts");
        self.end_epoch(Need::Failed(member, why.clone()), why, actions);
    }

    /// Handles the end of a sync of the store.
    pub(crate) fn on_pipeline_synced(
        &mut self,
        what: FlushFor,
        upto: Version,
        actions: &mut Vec<Action>,
    ) {
        if let Some(member) = &mut self.stripe_member {
            member.pipeline.on_synced(what, upto);
            self.report_stored(actions);
        }
    }

    /// Reports to the primary which versions are stored here.
    fn report_stored(&mut self, actions: &mut Vec<Action>) {
        let reports = self.stripe_member().pipeline.report();
        for report in reports {
            if self.follow.is_none() {
                let me = self.lead().me;
                self.on_member_has(me, report.upto, report.durable, actions);
            } else if self.follow().is_active() {
                let (version, durable) = (report.upto, report.durable);
                self.answer(PeerBody::Written { version, durable }, actions);
            }
        }
        if let Some(follow) = &self.follow {
            self.commit(follow.mark(), actions);
        }
        self.give_ready(actions);
    }

    /// Makes prepared versions up to the mark stable, as far as they are durable here. At a learner the mark
    /// may be ahead of the versions that are durable.
    pub(crate) fn commit(&mut self, mark: Version, actions: &mut Vec<Action>) {
        let Some(member) = &mut self.stripe_member else { return };
        let durable_upto = member.pipeline.durable_upto();
        let is_early = planted::on(Bug::CommitBeforeAllHaveIt);
        let upto = if is_early { durable_upto } else { mark.min(durable_upto) };
        if upto > self.local_state.committed() {
            self.local_state.on_commit(upto);
            let request = StoreRequest::Commit { pg: self.shape.pg, upto };
            self.call(Call::Commit, request, actions);
        }
    }

    /// Handles a backfilled part for this learner. The error says how the message violates the protocol.
    pub(crate) fn on_fill(
        &mut self,
        call: u32,
        key: BlockKey,
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let stripes = self.stripes().ok_or("the pool has no parity")?;
        let (is_learner, mark) = (self.is_learner(), self.mark());
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        let member = self.stripe_member.as_mut().filter(|_| is_learner);
        let member =
            member.ok_or("a backfilled part was sent to a member that is not a learner")?;
        let part = Part::of(content.clone(), self.shape.block_size, true)?;
        let _ = table_of(&part, stripes.data_count(), self.shape.block_size)?;
        shape::check_version(part.version.max(part.deleted), epoch)?;
        member.pipeline.fill(Fill { call, key, content }, mark);
        self.give_ready(actions);
        Ok(())
    }

    /// Sends a backfilled part to this learner's store.
    fn store_fill(&mut self, fill: Fill, actions: &mut Vec<Action>) {
        let Fill { call, key, content } = fill;
        let (version, is_delete) = match &content {
            Content::Block { version, .. } => (*version, false),
            Content::Tombstone { version } => (*version, true),
            Content::Gone => (Version::ZERO, false),
        };
        self.local_state.on_fill(version, is_delete);
        let request = StoreRequest::Repair { pg: self.shape.pg, key, content };
        self.call(Call::Filled { call, key }, request, actions);
    }

    /// Handles the store's answer to a backfilled part.
    pub(crate) fn on_fill_stored(
        &mut self,
        (call, key): (u32, BlockKey),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        if result.is_err() {
            return self.cannot_follow("the store has no room for a copy", actions);
        }
        self.stripe_member().pipeline.filled(key);
        self.answer(PeerBody::Repaired { call }, actions);
        self.read_old_parity(actions);
        self.give_ready(actions);
    }

    /// Handles a cursor of this learner's backfill. The cursor is recorded when everything that arrived
    /// before it is durable.
    pub(crate) fn on_cursor(&mut self, mark: Version, actions: &mut Vec<Action>) {
        self.follow().raise_mark(mark);
        self.commit(mark, actions);
        self.stripe_member().pipeline.cursor();
        self.give_ready(actions);
    }
}
