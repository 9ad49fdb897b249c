//! Peering, the primary's side of an epoch: it asks the members for their state, brings the acting members to
//! the same blocks, makes the epoch durable on all of them, and ends the epoch when one of them is lost.
//!
//! ```text
//!   Draining ──▶ Asking ──▶ Comparing ──▶ Journaling ──▶ Active ──▶ Ended
//!   (own work)  (states)   (repairs)     (records)                   ▲
//!                  └──▶ Filling ─────────────────────────────────────┘
//! ```
//!
//! Invariants
//!   1. No operation is served until every acting member has the same blocks and a durable record.
//!   2. Once an acting member has reported its state, the loss of its connection ends the epoch. So does the
//!      loss of a bound learner's connection.
//!   3. An epoch that has ended serves no more operations; those already started may still end.
//!   4. An epoch in which learners are filled although acting members are lost is never activated: its
//!      learners are filled from this OSD's state, not from the state that the PG adopts. In pools with
//!      parity: from the state as of a version that all acting members are known to have.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{Epoch, MapRevision, OsdId, Version};
use blockstore::BlockKey;
use format::wire::{Activation, ListedBlock, Member, MemberState, PeerBody};

use super::ask::{Asked, Contact};
use super::compare::{Compare, Compared, Next, Return};
use super::copy::{Job, Purpose};
use super::face::{Adoption, Seen, Statement};
use super::lead::{Absence, Basis, Judgement, Lead, Peer};
use super::limits::ADOPTIONS_MAX;
use super::local_state::RecordFor;
use super::store_calls::{Call, NewerFor};
use super::sync::Syncs;
use super::write_targets::WriteTargets;
use super::{Action, Need, Pg, Record, Serving};

impl Pg {
    pub(crate) fn lead(&mut self) -> &mut Lead {
        self.lead.as_mut().expect("this OSD leads the epoch")
    }

    /// As primary: handles a new connection to a member.
    pub fn peer_ready(&mut self, osd: OsdId, actions: &mut Vec<Action>) {
        let (Some(entry), Some(lead)) = (&self.entry, &mut self.lead) else { return };
        let Some(index) = lead.index_of(osd) else { return };
        let peer = &mut lead.peers[index];
        if matches!(self.serving, Serving::Ended { .. }) || peer.contact != Contact::Away {
            return;
        }
        peer.contact = Contact::Asked;
        let body = PeerBody::Query { revision: entry.revision };
        actions.push(Action::Send { to: osd, body });
    }

    /// As primary: handles the loss of the connection to a member.
    pub fn peer_lost(&mut self, osd: OsdId, actions: &mut Vec<Action>) {
        let Some(lead) = &mut self.lead else { return };
        let Some(index) = lead.index_of(osd) else { return };
        let (acting, peer) = (lead.acting, &mut lead.peers[index]);
        if matches!(peer.contact, Contact::Away | Contact::Out) {
            return;
        }
        let was_known = peer.contact == Contact::Known;
        peer.contact = Contact::Away;
        if acting.has(index) {
            if was_known {
                self.end_epoch(Need::NewEpoch, format!("lost contact with {osd}"), actions);
            }
        } else {
            self.forget_learner(index, actions);
        }
    }

    /// Ends the epoch, which cannot continue. Operations that it started are answered when the next epoch
    /// begins.
    pub(crate) fn end_epoch(&mut self, need: Need, why: String, actions: &mut Vec<Action>) {
        if !matches!(self.serving, Serving::Ended { .. }) {
            self.serving = Serving::Ended { why };
            actions.push(Action::Need(need));
        }
    }

    /// Handles a member that cannot continue: it reported that, or the primary found out.
    pub(crate) fn on_peer_failed(&mut self, index: usize, why: String, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let member = lead.peers[index].member;
        if lead.peers[index].contact == Contact::Out {
            return;
        }
        lead.peers[index].contact = Contact::Out;
        let need = Need::Failed(member, why);
        if lead.acting.has(index) {
            return self.end_epoch(need, format!("{} cannot continue", member.osd), actions);
        }
        actions.push(Action::Need(need));
        self.forget_learner(index, actions);
    }

    /// Returns the members that the epoch waits for before it can be active; for people.
    pub fn waits_for(&self) -> Vec<OsdId> {
        let Some(lead) = &self.lead else { return Vec::new() };
        let others = lead.acting_others().map(|index| &lead.peers[index]);
        match self.serving {
            Serving::Draining | Serving::Asking | Serving::Filling => {
                let silent = others.filter(|peer| peer.contact != Contact::Known);
                silent.map(|peer| peer.member.osd).collect()
            }
            Serving::Comparing if let Some(target) = self.objects.brings_forward() => {
                vec![lead.peers[target].member.osd]
            }
            Serving::Journaling => {
                let missing = lead.acting_others().filter(|index| lead.unrecorded.has(*index));
                missing.map(|index| lead.peers[index].member.osd).collect()
            }
            _ => Vec::new(),
        }
    }

    /// As primary: returns whether a member is finishing operations of an earlier epoch before it states
    /// itself.
    pub fn is_draining(&self, osd: OsdId) -> bool {
        let peers = self.lead.iter().flat_map(|lead| &lead.peers);
        peers.filter(|peer| peer.member.osd == osd).any(|peer| peer.contact == Contact::Draining)
    }

    /// Begins to collect the members' states, this OSD's own first. Requires: no request of an earlier epoch
    /// is in flight here.
    pub(crate) fn ask_members(&mut self, actions: &mut Vec<Action>) {
        let state = self.own_state();
        self.serving = Serving::Asking;
        let lead = self.lead();
        let me = lead.me;
        lead.peers[me].contact = Contact::Known;
        self.on_known(me, state, actions);
    }

    /// Handles the state that a member reported.
    pub(crate) fn on_state(
        &mut self,
        index: usize,
        state: MemberState,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        for version in [state.complete, state.had, state.committed, state.held, state.floor] {
            self.check_version(version)?;
        }
        for past in &state.history {
            self.check_version(past.adopted)?;
        }
        if let Some(filling) = &state.filling {
            self.check_filling(filling)?;
        }
        let has_ended = matches!(self.serving, Serving::Ended { .. });
        let peer = &mut self.lead().peers[index];
        match peer.contact {
            Contact::Asked | Contact::Draining => {}
            // The answer to a query over an earlier connection arrived first, and is just as good.
            Contact::Known => return Ok(()),
            // The epoch ended while there was no connection. Nothing is requested over the next connection,
            // but the old answer may still arrive. Closing that connection would end other PGs' epochs.
            Contact::Away if has_ended => return Ok(()),
            Contact::Away | Contact::Out => return Err("an unsolicited state report".into()),
        }
        if !state.history.is_sorted_by(|older, newer| older.epoch < newer.epoch) {
            return Err("a history out of order".into());
        }
        peer.contact = Contact::Known;
        self.on_known(index, state, actions);
        Ok(())
    }

    fn on_known(&mut self, index: usize, state: MemberState, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let member = lead.peers[index].member;
        if !lead.acting.has(index) {
            lead.peers[index].state = Some(state);
            if lead.lacks_holders {
                self.call_back_holder(actions);
                return;
            }
            return self.welcome(index, actions);
        }
        let is_whole = !state.is_suspect && state.filling.is_none();
        lead.peers[index].state = Some(state);
        if !is_whole {
            let why = "the member may lack acknowledged writes".to_owned();
            let need = Need::Failed(member, why);
            return self.end_epoch(need, format!("{} may lack writes", member.osd), actions);
        }
        self.judge_members(actions);
    }

    /// Decides how to continue, once all acting members have reported their state.
    pub(crate) fn judge_members(&mut self, actions: &mut Vec<Action>) {
        let is_known = self.lead().is_known();
        if self.serving == Serving::Filling && is_known {
            if !planted::on(Bug::FilledEpochActivated) {
                // Learners were filled from this OSD's state instead of the adopted one, so this epoch cannot
                // be activated; the next one can.
                let why =
                    "all members have reported now: only a new epoch can be activated".to_owned();
                return self.end_epoch(Need::NewEpoch, why, actions);
            }
            self.serving = Serving::Asking;
        }
        if self.serving != Serving::Asking || !is_known {
            return;
        }
        match self.lead().judge() {
            Judgement::Unknown(index) => {
                self.on_peer_failed(
                    index,
                    "the member has no record of the PG".to_owned(),
                    actions,
                );
            }
            _ if let Some(stripes) = self.stripes() => self.judge_stripes(stripes, actions),
            _ if self.shape.objects.is_some() => self.bring_forward(actions),
            Judgement::Same => self.activate(actions),
            Judgement::Compare { newer_than } => {
                let lead = self.lead();
                lead.compare = Compare::new(lead.acting.count(), newer_than);
                self.serving = Serving::Comparing;
                self.compare_on(actions);
            }
        }
    }

    /// As primary in [`Serving::Asking`]: fills learners meanwhile, if all acting members that have not
    /// reported their state are lost. This OSD, as an acting member, has everything that was acknowledged, so
    /// a learner that has the same may take a lost member's place. In pools with parity, enough members
    /// together have everything. `absence`: returns the status of a member that has not reported its state;
    /// `is_immediate`: this OSD's store answers nothing before it is durable. Called periodically.
    pub fn fill_meanwhile(
        &mut self,
        absence: impl Fn(Member) -> Absence,
        is_immediate: bool,
        actions: &mut Vec<Action>,
    ) {
        if !matches!(self.serving, Serving::Asking | Serving::Filling) {
            return;
        }
        let (Some(entry), Some(lead)) = (&self.entry, &self.lead) else { return };
        let (count, epoch) = (lead.acting.count(), entry.epoch);
        if lead.lacks_holders {
            return self.go_on_without_holders(absence, actions);
        }
        if lead.peers.len() == count {
            return;
        }
        let is_met = |peer: &Peer, is_lost: fn(Absence) -> bool| match peer.contact {
            Contact::Known => true,
            Contact::Away | Contact::Asked | Contact::Draining => is_lost(absence(peer.member)),
            Contact::Out => false,
        };
        let acting = || lead.peers[..count].iter();
        let are_gone = acting().all(|peer| is_met(peer, |absence| absence == Absence::Gone));
        let are_lost = acting().all(|peer| is_met(peer, |absence| absence != Absence::Awaited));
        // Who was an acting member in the newest activation needs no fill. While lost members may come back,
        // they may know of a newer one.
        let (is_short, keeps_holders) = (are_gone && !lead.is_known(), lead.keeps_holders);
        if is_short && self.stripes().is_some() && self.call_back_holder(actions) {
            return;
        }
        if self.serving == Serving::Filling {
            if keeps_holders && are_gone {
                self.fill_holders(actions);
            }
            return;
        }
        let basis = match self.stripes() {
            Some(stripes) => self.basis_of_stripes(stripes, is_immediate),
            None if self.shape.face.is_whole_everywhere() => self.own_basis(is_immediate),
            None => return,
        };
        let is_gone = |member: &Member| absence(*member) == Absence::Gone;
        let basis = basis.and_then(|basis| {
            match basis.has_all || are_gone && basis.others.iter().all(is_gone) {
                true => Ok(basis),
                false if are_lost && !basis.others.is_empty() => {
                    self.call_back(&basis.others, actions);
                    Err("members that were left out may have what lost members have: either must \
                         come back or be marked out"
                        .to_owned())
                }
                false => Err("members that restarted may lack writes that lost members have: \
                          these must come back or be marked out"
                    .to_owned()),
            }
        });
        if !are_lost {
            self.lead().hindrance = None;
            return;
        }
        let Basis { adopted, floor, sources, history_from, .. } = match basis {
            Ok(basis) => basis,
            Err(why) => return self.lead().hindrance = Some(why),
        };
        self.lead().hindrance = None;
        let has_parity = self.stripes().is_some();
        let history_count_max = self.shape.limits.history_count_max;
        let state = self.lead().peers[history_from].state.as_ref().expect("it has reported");
        let history = history_of(state, adopted, floor, epoch, history_count_max);
        // Learners may record this epoch from now on.
        self.local_state.promise(epoch);
        let lead = self.lead();
        (lead.adopted, lead.floor, lead.history) = (adopted, floor, history);
        (lead.fill_sources, lead.keeps_holders) = (sources, has_parity && !are_gone);
        self.versions.go_on_from(adopted);
        self.syncs = Syncs::new(adopted.counter);
        self.serving = Serving::Filling;
        self.welcome_learners(actions);
    }

    /// Returns what learners are filled from while acting members are lost, in a replicated pool: this OSD's
    /// own state. The error says why that is not possible.
    fn own_basis(&self, is_immediate: bool) -> Result<Basis, String> {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let member = lead.peers[lead.me].member;
        // If this OSD restarted after it wrote the record, it may have lost writes that were answered but not
        // durable. A record written as a learner proves nothing: it may come from a primary that had lost
        // some writes.
        let recorded = self.local_state.record().and_then(|it| it.entry.acting_member(member.osd));
        // A batch of objects is answered only when it is durable.
        let is_immediate = is_immediate || self.shape.objects.is_some();
        let has_all = recorded.is_some_and(|known| is_immediate || known == member);
        let state = lead.peers[lead.me].state.as_ref();
        // An OSD that never activated the PG, or lost its record, has no record of what was acknowledged.
        let state = state.filter(|state| state.record_epoch > Epoch::ZERO);
        let state = state.ok_or("this OSD has no record of the PG")?;
        let (adopted, floor, sources) = (state.complete, state.floor, lead.acting);
        let others = Vec::new();
        Ok(Basis { adopted, floor, sources, history_from: lead.me, others, has_all })
    }

    /// Returns why learners are not filled although the acting members that have not reported their state are
    /// lost, or why one of the learners is not filled; for people.
    pub fn fill_hindrance(&self) -> Option<&str> {
        let is_short = matches!(self.serving, Serving::Asking | Serving::Filling);
        let is_stuck = self.serving == Serving::Active && self.shape.objects.is_some();
        let lead = self.lead.as_ref().filter(|_| is_short || is_stuck)?;
        lead.hindrance.as_deref()
    }

    /// Sends the mark to the other acting members, if no write has carried it. Called periodically.
    pub fn tell_mark(&mut self, actions: &mut Vec<Action>) {
        let mark = self.mark();
        if self.serving != Serving::Active {
            return;
        }
        if self.stripes().is_some() {
            self.on_mark_moved(actions);
        }
        if self.lead().mark_told < mark {
            self.send_mark(mark, actions);
        }
    }

    /// Tells the other acting members of a PG with parity that this OSD has a newer map. The node names its
    /// revision only if no change of a session that the map fences is open here: then each of them that has a
    /// version was sent before.
    pub fn tell_revision(&mut self, actions: &mut Vec<Action>) {
        if self.serving == Serving::Active && self.stripes().is_some() {
            let mark = self.mark();
            self.send_mark(mark, actions);
        }
    }

    fn send_mark(&mut self, mark: Version, actions: &mut Vec<Action>) {
        self.lead().mark_told = mark;
        for index in self.lead().acting_others() {
            self.send(index, mark_message(mark), actions);
        }
    }

    /// Continues the comparison until it must wait for pages or repairs.
    pub(crate) fn compare_on(&mut self, actions: &mut Vec<Action>) {
        while self.serving == Serving::Comparing
            && !self.lead().drops_lost_write
            && self.lead().adoption_count() < ADOPTIONS_MAX
        {
            self.ask_pages(actions);
            match self.lead().compare.next() {
                Next::Pages => return,
                Next::Block(key) => match self.stripes() {
                    Some(stripes) => self.forward_key(key, stripes, actions),
                    None => self.compare_block(key, actions),
                },
                Next::End if self.lead().adoption_count() == 0 => return self.on_compared(actions),
                Next::End => return,
            }
        }
    }

    /// Handles the end of the comparison. Requires: all blocks were compared, and all repairs are durable.
    fn on_compared(&mut self, actions: &mut Vec<Action>) {
        match self.lead().compare.end() {
            Compared::Same => self.activate(actions),
            Compared::TakenBack => {
                let why = "writes that too few members had journaled were taken back".to_owned();
                self.end_epoch(Need::NewEpoch, why, actions);
            }
            Compared::Dropping => {}
            Compared::Drop(drops) => {
                for (index, version) in drops {
                    self.drop_at(index, version, actions);
                }
            }
        }
    }

    /// Makes an acting member record that it reports nothing from a version on.
    pub(crate) fn drop_at(&mut self, index: usize, version: Version, actions: &mut Vec<Action>) {
        if index == self.lead().me {
            return self.drop_from(version, RecordFor::OwnDrop, actions);
        }
        let call = self.lead().asks.ask(index, Asked::Drop);
        self.send(index, PeerBody::Drop { call, version }, actions);
    }

    /// Writes a record by which this OSD reports nothing from a version on.
    pub(crate) fn drop_from(
        &mut self,
        version: Version,
        what: RecordFor,
        actions: &mut Vec<Action>,
    ) {
        let mut record = self.local_state.record().cloned().expect("who was active has a record");
        record.dropped = Some(record.dropped.map_or(version, |known| known.min(version)));
        self.keep_record(record, what, actions);
    }

    /// Handles the end of this OSD's own record about dropped versions.
    pub(crate) fn on_own_drop_recorded(&mut self, is_durable: bool, actions: &mut Vec<Action>) {
        let me = self.lead().me;
        if is_durable {
            return self.on_dropped(me, actions);
        }
        let why = "the store has no room for a record".to_owned();
        let need = Need::Failed(self.lead().peers[me].member, why.clone());
        self.end_epoch(need, why, actions);
    }

    /// Notes that a member has recorded that it lacks the dropped versions. Begins the returns when all
    /// members have.
    pub(crate) fn on_dropped(&mut self, index: usize, actions: &mut Vec<Action>) {
        if self.lead().drops_lost_write {
            let why =
                "a version that was made of a part with a lost write is taken back".to_owned();
            return self.end_epoch(Need::NewEpoch, why, actions);
        }
        let is_last = self.lead().compare.on_dropped(index);
        if !is_last || self.serving != Serving::Comparing {
            return;
        }
        for Return { key, from, like, .. } in self.lead().compare.begin_returns() {
            let lead = self.lead();
            let sources = std::iter::once(like).chain(from.iter());
            let sources = sources.map(|index| lead.source(index)).collect();
            let purpose = Purpose::Return { targets: from };
            self.begin_job(Job::new(key, sources, purpose), actions);
        }
    }

    fn ask_pages(&mut self, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let (me, newer_than) = (lead.me, lead.compare.newer_than());
        for index in 0..lead.acting.count() {
            let Some(after) = self.lead().compare.ask_from(index) else { continue };
            if index == me {
                self.list_own(NewerFor::Compare, newer_than, after, actions);
            } else {
                let call = self.lead().asks.ask(index, Asked::Compare);
                self.send(index, PeerBody::List { call, newer_than, after }, actions);
            }
        }
    }

    /// Handles a page of an acting member's block list.
    pub(crate) fn on_compare_list(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        self.lead().compare.on_page(index, blocks, is_last)?;
        self.compare_on(actions);
        Ok(())
    }

    fn compare_block(&mut self, key: BlockKey, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let versions = lead.compare.take(key);
        let compares_all = lead.compare.compares_all();
        let statement = |(index, version): (usize, &Version)| Statement {
            version: *version,
            deleted_up_to: if compares_all { lead.deleted_up_to(index) } else { Version::ZERO },
        };
        let stated: Vec<Statement> = versions.iter().enumerate().map(statement).collect();
        match self.shape.face.adopt(&stated) {
            Adoption::Same => {}
            Adoption::Remove { from } => self.remove_from(key, from, actions),
            Adoption::Forward { newest, sources, to } => {
                let lead = self.lead();
                let sources = sources.into_iter().map(|index| lead.source(index)).collect();
                let purpose = Purpose::Adopt { version: newest, targets: to };
                self.begin_job(Job::new(key, sources, purpose), actions);
            }
            Adoption::Back { newest, from, like } => {
                self.lead().compare.take_back(Return { key, newest, from, like });
            }
        }
    }

    /// Requests a list of this OSD's own blocks with versions above `newer_than`.
    pub(crate) fn list_own(
        &mut self,
        what: NewerFor,
        newer_than: Version,
        after: Option<BlockKey>,
        actions: &mut Vec<Action>,
    ) {
        let call = self.calls.begin(Call::ListNewer(what));
        let count_max = self.shape.limits.list_count_max;
        actions.push(Action::ListNewer { call, newer_than, after, count_max });
    }

    /// Makes the epoch durable on all acting members. Requires: they hold the same blocks.
    pub(crate) fn activate(&mut self, actions: &mut Vec<Action>) {
        let entry = self.entry.clone().expect("an epoch is entered");
        let history_count_max = self.shape.limits.history_count_max;
        let is_prefix = self.stripes().is_some();
        let lead = self.lead();
        let floor = lead.acting_states().map(|state| state.floor).max();
        let floor = floor.expect("there are acting members");
        let adopted = if is_prefix { lead.adopted } else { lead.highest_complete() };
        let newest = lead.acting_states().max_by_key(|state| state.record_epoch);
        let newest = newest.expect("there are acting members");
        lead.history = history_of(newest, adopted, floor, entry.epoch, history_count_max);
        (lead.adopted, lead.floor) = (adopted, floor);
        lead.unrecorded = lead.acting;
        let (adopted, floor, history) = (lead.adopted, lead.floor, lead.history.clone());
        if !lead.is_alone() {
            // From now on other members may record the epoch, even if this OSD fails to.
            self.local_state.promise(entry.epoch);
        }
        self.serving = Serving::Journaling;
        for index in self.lead().acting_others() {
            let body =
                PeerBody::Activate { adopted, floor, history: history.clone(), filling: None };
            self.send(index, body, actions);
        }
        self.take_floor(floor, actions);
        if self.shape.objects.is_some() && adopted == Version::ZERO {
            self.begin_log(adopted, entry.epoch, actions);
        }
        let record = Record { entry, adopted, history, filling: None, dropped: None };
        self.keep_record(record, RecordFor::Lead, actions);
    }

    /// Handles the end of this OSD's own record write: it is durable, or could not be written.
    pub(crate) fn on_own_record_kept(&mut self, is_durable: bool, actions: &mut Vec<Action>) {
        let me = self.lead().me;
        if is_durable {
            return self.on_recorded(me, actions);
        }
        let why = "the activation could not be journaled: the store is full".to_owned();
        if self.lead().is_alone() {
            self.serving = Serving::Idle { why };
            self.lead = None;
            self.entry = None;
        } else {
            let need = Need::Failed(self.lead().peers[me].member, why.clone());
            self.end_epoch(need, why, actions);
        }
    }

    /// Notes that an acting member's record is durable. Begins to serve when all are.
    pub(crate) fn on_recorded(&mut self, index: usize, actions: &mut Vec<Action>) {
        let lead = self.lead();
        lead.unrecorded.take(index);
        if lead.unrecorded.is_empty() && self.serving == Serving::Journaling {
            self.begin_serving(actions);
        }
    }

    fn begin_serving(&mut self, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let (adopted, acting) = (lead.adopted, lead.acting);
        self.versions.go_on_from(adopted);
        self.syncs = Syncs::new(adopted.counter);
        self.write_targets = WriteTargets::of_acting(acting);
        self.serving = Serving::Active;
        let lead = self.lead();
        (lead.mark_told, lead.hindrance) = (adopted, None);
        self.begin_stripes(adopted);
        self.owed.settle();
        actions.push(Action::Activated);
        if self.stripes().is_some() {
            // Members serve direct reads once they know that the epoch is active everywhere.
            for index in self.lead().acting_others() {
                self.send(index, mark_message(adopted), actions);
            }
        }
        for key in std::mem::take(&mut self.lost_writes) {
            self.want_look(key, actions);
        }
        self.welcome_learners(actions);
    }

    fn welcome_learners(&mut self, actions: &mut Vec<Action>) {
        let lead = self.lead();
        for index in lead.acting.count()..lead.peers.len() {
            self.welcome(index, actions);
        }
    }

    /// Handles a message from a member to this OSD, its primary.
    pub(crate) fn on_member_said(
        &mut self,
        index: usize,
        body: PeerBody,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        if self.lead().peers[index].contact == Contact::Out {
            // The member may still send, over a new connection, answers to requests from before it was lost.
            return Ok(());
        }
        match body {
            PeerBody::Draining => {
                let contact = &mut self.lead().peers[index].contact;
                // An answer to a query over an earlier connection says no more than one over this connection.
                if *contact == Contact::Asked {
                    *contact = Contact::Draining;
                }
                Ok(())
            }
            PeerBody::State(state) => self.on_state(index, state, actions),
            PeerBody::Written { version, durable } => {
                self.on_member_wrote(index, version, durable, actions)
            }
            PeerBody::Synced { call } => match self.lead().asks.answered(index, call)? {
                Asked::Sync => {
                    self.on_member_synced(index, actions);
                    Ok(())
                }
                _ => Err("an unsolicited sync".into()),
            },
            PeerBody::Activated => self.on_member_activated(index, actions),
            PeerBody::Failed { why } => {
                self.on_peer_failed(index, why, actions);
                Ok(())
            }
            PeerBody::Listed { call, blocks, is_last } => {
                for block in &blocks {
                    self.shape.check_key(block.key)?;
                    self.check_version(block.version)?;
                }
                match self.lead().asks.answered(index, call)? {
                    Asked::Compare => self.on_compare_list(index, blocks, is_last, actions),
                    Asked::Intake => self.on_intake_list(index, blocks, is_last, actions),
                    Asked::Listing => self.on_learner_list(index, blocks, is_last, actions),
                    Asked::FillList { learner } => {
                        self.on_fill_list(learner, index, (blocks, is_last), actions)
                    }
                    Asked::DeletionList { slot } => {
                        self.on_deletion_page(slot, index, (blocks, is_last), actions)
                    }
                    Asked::ScrubList { walk } => {
                        self.on_scrub_list(index, walk, (blocks, is_last), actions)
                    }
                    _ => Err("a list that was not requested".into()),
                }
            }
            PeerBody::Fetched { call, content } => match self.lead().asks.answered(index, call)? {
                Asked::Fetch { job } => self.on_peer_copy(index, job, content, actions),
                Asked::ScrubFetch { look } => {
                    self.on_peer_scrub_copy((index, look), content, actions)
                }
                Asked::Read { read } => self.on_peer_read(read, content, actions),
                Asked::GivenUpRead => Ok(()),
                Asked::Gather { slot, position } => {
                    self.on_peer_part((slot, position), content, actions)
                }
                _ => Err("a block that was not requested".into()),
            },
            PeerBody::Repaired { call } => {
                match self.lead().asks.answered(index, call)? {
                    Asked::Adopt { job } => self.on_adopted_by(index, job, actions),
                    Asked::Forward { slot } => self.on_forwarded_by(index, slot, actions),
                    Asked::ObjectForward => self.on_brought_forward(actions),
                    Asked::Fill { key, bytes } => self.on_filled(index, key, bytes, actions),
                    Asked::Page { bytes } => self.on_page_kept(index, bytes, actions),
                    _ => return Err("an unsolicited repair".into()),
                }
                Ok(())
            }
            PeerBody::Headed { call, heads, is_last } => {
                match self.lead().asks.answered(index, call)? {
                    Asked::Heads => self.on_headed(index, &heads, is_last, actions),
                    Asked::Keys { look } => {
                        self.on_peer_keys((index, look), &heads, is_last, actions)
                    }
                    Asked::Value { look } => self.on_peer_value(look, &heads, actions),
                    _ => Err("a list of keys that was not requested".into()),
                }
            }
            PeerBody::Gathered { call, result } => {
                match self.lead().asks.answered(index, call)? {
                    Asked::ObjectGather { source } => {
                        self.on_missing_gathered(source, result, actions)
                    }
                    _ => return Err("content that was not requested".into()),
                }
                Ok(())
            }
            PeerBody::Noted { call } => match self.lead().asks.answered(index, call)? {
                Asked::Progress => {
                    self.on_progress_noted(index, actions);
                    Ok(())
                }
                Asked::Drop => {
                    self.on_dropped(index, actions);
                    Ok(())
                }
                _ => Err("an unsolicited note".into()),
            },
            PeerBody::Scrubbed { call, floor, digest } => {
                match self.lead().asks.answered(index, call)? {
                    Asked::Scrub { look } => {
                        let seen = Seen::of(digest, floor, self.shape.block_size)?;
                        self.on_peer_scrubbed((index, look), seen, actions)
                    }
                    _ => Err("a digest that was not requested".into()),
                }
            }
            PeerBody::Recalled { call, note } => match self.lead().asks.answered(index, call)? {
                Asked::Recall => {
                    self.on_recalled(index, &note, actions);
                    Ok(())
                }
                _ => Err("a scrub note that was not requested".into()),
            },
            PeerBody::Tried { call, .. } => {
                match self.lead().asks.answered(index, call)? {
                    Asked::Mend => self.on_mended_at(index, actions),
                    Asked::MendRecords { look } => self.on_records_mended((index, look), actions),
                    Asked::Keep => self.on_note_kept(index, actions),
                    _ => return Err("the result of a repair that was not requested".into()),
                }
                Ok(())
            }
            PeerBody::Delta { version, key, part, content } => {
                self.on_delta(index, (version, key, part), content, actions)
            }
            PeerBody::ParityDelta { .. } => {
                let from = self.lead().peers[index].member.osd;
                self.on_direct_delta(from, body, actions)
            }
            PeerBody::DeltaWanted { version, part } => {
                self.on_delta_wanted(index, (version, part), actions)
            }
            PeerBody::PartBehind { part } => {
                let stripes = self.stripes().ok_or("the pool has no parity")?;
                let lead = self.lead();
                if !lead.acting.has(index) || stripes.is_data(lead.peers[index].position) {
                    return Err("only an acting member with parity may send this message".into());
                }
                self.on_part_behind(index, part, actions);
                Ok(())
            }
            PeerBody::ParityLost { key } => self.on_parity_lost(index, key, actions),
            PeerBody::Stale(_) => Ok(()),
            _ => Err("only a primary may send this message".into()),
        }
    }

    fn on_member_activated(
        &mut self,
        index: usize,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let lead = self.lead();
        if !lead.acting.has(index) {
            return self.on_learner_recorded(index, actions);
        }
        if !lead.unrecorded.has(index) || lead.history.is_empty() {
            return Err("an unsolicited activation".into());
        }
        self.on_recorded(index, actions);
        Ok(())
    }

    pub(crate) fn send(&mut self, index: usize, body: PeerBody, actions: &mut Vec<Action>) {
        let lead = self.lead();
        assert!(index != lead.me);
        actions.push(Action::Send { to: lead.peers[index].member.osd, body });
    }
}

/// Returns the activations that a member has recorded, and this one: as many as learners above the floor may
/// need, at most `count_max`.
fn history_of(
    state: &MemberState,
    adopted: Version,
    floor: Version,
    epoch: Epoch,
    count_max: usize,
) -> Vec<Activation> {
    let known = state.history.iter();
    let mut all: BTreeMap<Epoch, Version> =
        known.map(|activation| (activation.epoch, activation.adopted)).collect();
    all.insert(epoch, adopted);
    // A learner above the floor has a record of the floor's epoch or of a later one.
    let old = all.keys().filter(|epoch| **epoch <= floor.epoch).count().saturating_sub(1);
    let skipped = old.max(all.len().saturating_sub(count_max));
    let kept = all.into_iter().skip(skipped);
    kept.map(|(epoch, adopted)| Activation { epoch, adopted }).collect()
}

/// Returns the message that tells the mark. The node adds the map's revision.
pub fn mark_message(mark: Version) -> PeerBody {
    PeerBody::Mark { mark, revision: MapRevision::ZERO }
}
