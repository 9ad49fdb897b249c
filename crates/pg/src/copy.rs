//! Copies blocks between members: to make acting members equal at the beginning of an epoch, to fill
//! learners, and to restore damaged units.
//!
//! ```text
//!   (its turn in the block's queue) ──▶ the copy of the first source ──▶ the units that this copy lacks,
//!   from the next sources ──▶ repairs
//! ```
//!
//! Invariants
//!   1. In an active epoch a block is copied while no write to it is in flight, and later writes wait until
//!      the copy has been sent. So all acting members hold the same block.
//!   2. Units that no source could read are sent as damaged, so that no member keeps older data there.
//!   3. A version stands for one content: if units of an older copy replace lost units, the block gets a
//!      version of the new epoch.

use base::Version;
use base::planted::{self, Bug};
use blockstore::{Answer, AsOf, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Content, PeerBody};

use super::ask::{Asked, Contact};
use super::face::{FaultKind, Gathering, Source, Wanted, WantedFor};
use super::operation::{Follower, WriteFor, WriteKind};
use super::scrub::note::Finding;
use super::slots::{JobSlot, ReadSlot, WriteSlot};
use super::store_calls::Call;
use super::units::{Held, Units};
use super::{Action, MemberSet, Need, Pg};

/// A copy of one block in progress.
pub struct Job {
    key: BlockKey,
    stage: JobStage,
    /// The job's slot in the queue of the block's writes, once the job has its turn.
    hold: Option<WriteSlot>,
    purpose: Purpose,
}

/// How far a job has got. Top to bottom is the order in time.
enum JobStage {
    /// Waits for its turn, or for the list of units that this OSD lost. Contains the members that can be
    /// asked for copies afterwards.
    Waiting(Vec<Source>),
    /// Members are being asked for their copies.
    Gathering(Box<dyn Gathering>),
    /// The gathered content is being sent to members.
    Giving,
}

/// What a job is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The acting members `targets` get the block in this version; `ZERO`: it is removed from them.
    Adopt { version: Version, targets: MemberSet },
    /// The acting members `targets` go back to the previous version.
    Return { targets: MemberSet },
    /// A learner receives these units of the block; `None`: all of it.
    Fill { learner: usize, units: Option<Units> },
    /// Units that this OSD lost are restored.
    Mend,
    /// The operation in this slot needs the block's content.
    Operation { slot: WriteSlot },
}

impl Job {
    pub fn new(key: BlockKey, sources: Vec<Source>, purpose: Purpose) -> Job {
        Job { key, stage: JobStage::Waiting(sources), hold: None, purpose }
    }
}

impl Pg {
    /// Begins a job that needs no turn in its block's queue, because no write has begun in the epoch yet or
    /// because the job's operation has the turn.
    pub(crate) fn begin_job(&mut self, job: Job, actions: &mut Vec<Action>) {
        let wanted_for = match job.purpose {
            Purpose::Adopt { .. } => WantedFor::Adoption,
            Purpose::Return { .. } => WantedFor::Return,
            Purpose::Operation { .. } => WantedFor::Operation,
            Purpose::Fill { units, .. } => WantedFor::Learner(units),
            Purpose::Mend => unreachable!("the lost units must be known first"),
        };
        let job = self.lead().jobs.insert(job);
        self.gather_for(job, wanted_for, actions);
    }

    /// Removes a deleted block from the acting members that still have it.
    pub(crate) fn remove_from(
        &mut self,
        key: BlockKey,
        targets: MemberSet,
        actions: &mut Vec<Action>,
    ) {
        let purpose = Purpose::Adopt { version: Version::ZERO, targets };
        let stage = JobStage::Giving;
        let job = self.lead().jobs.insert(Job { stage, ..Job::new(key, Vec::new(), purpose) });
        for index in targets.iter() {
            self.give(job, index, Version::ZERO, Content::Gone, actions);
        }
    }

    /// Returns the acting members that have reported their state in this epoch, as sources. With `with_me`,
    /// this OSD comes first.
    pub(crate) fn sources(&self, with_me: bool) -> Vec<Source> {
        let lead = self.lead.as_ref().expect("this OSD leads the epoch");
        let others = lead.acting_others();
        let others = others.filter(|index| lead.peers[*index].contact == Contact::Known);
        let me = Some(lead.me).filter(|_| with_me);
        let all = me.into_iter().chain(others);
        all.map(|index| lead.source(index)).collect()
    }

    /// Queues a job with the writes of its block; it begins at its turn. `follower` continues when it ends.
    pub(crate) fn queue_job(
        &mut self,
        job: Job,
        follower: Option<Follower>,
        actions: &mut Vec<Action>,
    ) {
        let key = job.key;
        let job = self.lead().jobs.insert(job);
        if planted::on(Bug::FillOvertakesWrite) && follower.is_none() {
            let Purpose::Fill { units, .. } = self.lead().jobs[job].purpose else { return };
            return self.gather_for(job, WantedFor::Learner(units), actions);
        }
        self.write(WriteFor::Job(job), key, WriteKind::Hold, follower, actions);
    }

    /// Begins a queued job at its turn: no write to its block is in flight, and none begins before
    /// [`Pg::end_job`].
    pub(crate) fn on_hold(&mut self, job: JobSlot, slot: WriteSlot, actions: &mut Vec<Action>) {
        let found = &mut self.lead().jobs[job];
        assert!(found.hold.is_none());
        found.hold = Some(slot);
        let (key, purpose) = (found.key, found.purpose);
        let has_parity = self.stripes().is_some();
        match purpose {
            Purpose::Fill { learner, .. } if has_parity => {
                self.begin_stripe_fill(job, learner, key, actions);
            }
            Purpose::Mend => {
                let request = StoreRequest::Extents { key, as_of: AsOf::View };
                self.call(Call::FindLost(job), request, actions);
            }
            Purpose::Fill { units, .. } => {
                self.gather_for(job, WantedFor::Learner(units), actions);
            }
            Purpose::Adopt { .. } | Purpose::Return { .. } | Purpose::Operation { .. } => {
                unreachable!("such a job is not queued")
            }
        }
    }

    /// Handles the store's answer about which units of a block this OSD lost.
    pub(crate) fn on_lost_units(
        &mut self,
        job: JobSlot,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Ok(Answer::Extents { version, damaged, .. }) = result else {
            unreachable!("the store sent another kind of answer");
        };
        let lost = Units::from_words(&damaged, self.shape.block_size);
        let lost = lost.expect("the content has the right block size");
        let differs = |finding: &Finding| {
            finding.faults.iter().any(|(_, fault)| fault.kind == FaultKind::Differs)
        };
        let key = self.lead().jobs[job].key;
        if self.scrub_note.finding(&key).is_some_and(differs) {
            // The members' copies differ, and no content has a majority: copying one of them could give it a
            // majority.
            return self.end_job(job, actions);
        }
        if lost.is_empty() {
            // Another job mended the units, or a write replaced them.
            return self.end_job(job, actions);
        }
        self.gather_for(job, WantedFor::Mending(version, lost), actions);
    }

    /// Begins to request the members' copies.
    fn gather_for(&mut self, job: JobSlot, purpose: WantedFor, actions: &mut Vec<Action>) {
        let (block_size, face) = (self.shape.block_size, self.shape.face);
        let found = &mut self.lead().jobs[job];
        let stage = std::mem::replace(&mut found.stage, JobStage::Giving);
        let JobStage::Waiting(sources) = stage else {
            unreachable!("a job asks members once");
        };
        let wanted = Wanted { purpose, sources, block_size };
        found.stage = JobStage::Gathering(face.gather(wanted));
        self.gather(job, actions);
    }

    /// Asks the next source for the units that are missing.
    fn gather(&mut self, job: JobSlot, actions: &mut Vec<Action>) {
        let me = self.lead().me;
        let found = &mut self.lead().jobs[job];
        let key = found.key;
        let JobStage::Gathering(gathering) = &mut found.stage else {
            unreachable!("members are being asked");
        };
        let Some((source, units)) = gathering.next() else { return self.on_gathered(job, actions) };
        if source == me {
            self.call(
                Call::Copy(job),
                StoreRequest::Copy { key, units, as_of: AsOf::View },
                actions,
            );
        } else {
            let call = self.lead().asks.ask(source, Asked::Fetch { job });
            self.send(source, PeerBody::Fetch { call, key, units, as_of: None }, actions);
        }
    }

    /// Adds this OSD's own copy to the gathering.
    pub(crate) fn on_own_copy(
        &mut self,
        job: JobSlot,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Ok(Answer::Copy { content, .. }) = result else {
            unreachable!("the store sent another kind of answer");
        };
        let held = Held::of(content, self.shape.block_size, false);
        let held = held.expect("the content has the right block size");
        let me = self.lead().me;
        self.on_source(me, job, held, actions);
    }

    /// Adds a member's copy to the gathering.
    pub(crate) fn on_peer_copy(
        &mut self,
        index: usize,
        job: JobSlot,
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let held = Held::of(content, self.shape.block_size, true)?;
        self.check_version(held.version())?;
        self.on_source(index, job, held, actions);
        Ok(())
    }

    fn on_source(&mut self, index: usize, job: JobSlot, held: Held, actions: &mut Vec<Action>) {
        let found = &mut self.lead.as_mut().expect("only a primary has jobs").jobs[job];
        let JobStage::Gathering(gathering) = &mut found.stage else {
            unreachable!("members are being asked");
        };
        gathering.take(index, held, &self.buffers);
        self.gather(job, actions);
    }

    /// Handles the end of gathering: no source has anything more to add.
    fn on_gathered(&mut self, job: JobSlot, actions: &mut Vec<Action>) {
        let found = &mut self.lead().jobs[job];
        let (key, purpose) = (found.key, found.purpose);
        let stage = std::mem::replace(&mut found.stage, JobStage::Giving);
        let JobStage::Gathering(gathering) = stage else {
            unreachable!("members were asked");
        };
        match purpose {
            Purpose::Adopt { version, targets } if gathering.version() == version => {
                // Units that came from another copy are also sent to members that have the newest version.
                let targets = if gathering.is_mixed() { self.lead().acting } else { targets };
                let given = match gathering.is_older() {
                    true => self.version_of_this_epoch(),
                    false => version,
                };
                if given < version {
                    // The reported version is of this epoch, which has assigned none yet. The versions of the
                    // next epoch will be above it.
                    self.lead().jobs.remove(job);
                    let why = format!(
                        "a member has a block with version {version}, which was never assigned"
                    );
                    return self.end_epoch(Need::NewEpoch, why, actions);
                }
                self.adopt(job, targets, given, gathering.as_ref(), actions);
            }
            Purpose::Adopt { .. } => {
                // The member reported another version. It is checked again in the next epoch.
                self.lead().jobs.remove(job);
                let why = "a member's block differs from its listing".to_owned();
                self.end_epoch(Need::NewEpoch, why, actions);
            }
            Purpose::Return { targets } => {
                self.adopt(job, targets, gathering.version(), gathering.as_ref(), actions);
            }
            Purpose::Fill { learner, .. } => {
                let position = self.lead().peers[learner].position;
                let content = gathering.content_at(position, gathering.version());
                self.send_fill(learner, key, content, actions);
                self.end_job(job, actions);
            }
            Purpose::Mend => {
                let me = self.lead().me;
                let position = self.lead().peers[me].position;
                let content = gathering.content_at(position, gathering.version());
                let units = intact_count(&content);
                if units == 0 && matches!(content, Content::Block { .. }) {
                    return self.end_job(job, actions);
                }
                let request = StoreRequest::Repair { pg: self.shape.pg, key, content };
                self.call(Call::Mend { job, units }, request, actions);
            }
            Purpose::Operation { slot } => {
                self.lead().jobs.remove(job);
                self.on_pieces(slot, gathering.as_ref(), actions);
            }
        }
    }

    /// Handles the end of a repair of units that this OSD lost.
    pub(crate) fn on_mended(
        &mut self,
        job: JobSlot,
        units: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        // If the store had no room, the units stay damaged and the read reports that.
        if result.is_ok() {
            self.mended_units += units as u64;
        }
        self.end_job(job, actions);
    }

    /// Ends a job: later writes to its block continue.
    pub(crate) fn end_job(&mut self, job: JobSlot, actions: &mut Vec<Action>) {
        let job = self.lead().jobs.remove(job);
        if let Some(slot) = job.hold {
            self.release(slot, actions);
        }
    }

    /// Returns the version for a block that was put together from copies of several versions. A member that
    /// is away may hold the newest version with its original content. The new content differs, so that member
    /// must get it and the block needs a new version. No write has this version: the counter of the epoch's
    /// first write is one higher.
    fn version_of_this_epoch(&mut self) -> Version {
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        Version { epoch, counter: self.lead().highest_complete().counter }
    }

    /// Sends the gathered content to the acting members that have other content.
    fn adopt(
        &mut self,
        job: JobSlot,
        targets: MemberSet,
        version: Version,
        gathering: &dyn Gathering,
        actions: &mut Vec<Action>,
    ) {
        assert!(version >= gathering.version());
        self.lead().jobs[job].purpose = Purpose::Adopt { version, targets };
        for index in targets.iter() {
            let content = gathering.content_at(self.lead().peers[index].position, version);
            self.give(job, index, version, content, actions);
        }
    }

    fn give(
        &mut self,
        job: JobSlot,
        index: usize,
        version: Version,
        content: Content,
        actions: &mut Vec<Action>,
    ) {
        let lead = self.lead();
        let (me, key) = (lead.me, lead.jobs[job].key);
        if index == me {
            let request = self.own_repair(key, version, content);
            self.call(Call::Adopt(job), request, actions);
        } else {
            let call = self.lead().asks.ask(index, Asked::Adopt { job });
            self.send(index, PeerBody::Repair { call, key, content }, actions);
        }
    }

    /// Begins a repair of this OSD's own store. Returns the request for the store.
    pub(crate) fn own_repair(
        &mut self,
        key: BlockKey,
        version: Version,
        content: Content,
    ) -> StoreRequest {
        let is_delete = matches!(content, Content::Tombstone { .. });
        let units = 0..self.shape.block_size.unit_count();
        self.local_state.on_repair(version, key, units, is_delete);
        StoreRequest::Repair { pg: self.shape.pg, key, content }
    }

    /// Handles the end of this OSD's own repair at the beginning of an epoch.
    pub(crate) fn on_adopted_here(
        &mut self,
        job: JobSlot,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let me = self.lead().me;
        match result {
            Ok(_) => self.on_adopted_by(me, job, actions),
            Err(_) => {
                let why = "the store is full".to_owned();
                let need = Need::Failed(self.lead().peers[me].member, why.clone());
                self.end_epoch(need, why, actions);
            }
        }
    }

    /// Notes that the newest copy is durable at a member.
    pub(crate) fn on_adopted_by(&mut self, index: usize, job: JobSlot, actions: &mut Vec<Action>) {
        let found = &mut self.lead().jobs[job];
        let Purpose::Adopt { targets, .. } = &mut found.purpose else {
            unreachable!("only an adoption sends the newest copy");
        };
        assert!(targets.has(index));
        targets.take(index);
        if targets.is_empty() {
            self.lead().jobs.remove(job);
            self.compare_on(actions);
        }
    }

    /// Makes a read wait until units that this OSD lost have been restored from other members. Returns false
    /// if there is no other member.
    pub(crate) fn mend(
        &mut self,
        key: BlockKey,
        read: ReadSlot,
        actions: &mut Vec<Action>,
    ) -> bool {
        if self.lead.is_none() || !self.may_copy() {
            return false;
        }
        let sources = self.sources(false);
        if sources.is_empty() {
            return false;
        }
        let job = Job::new(key, sources, Purpose::Mend);
        self.queue_job(job, Some(Follower::Read(read)), actions);
        true
    }
}

/// Returns how many units in the content of a block could be read.
pub(crate) fn intact_count(content: &Content) -> usize {
    let count = |words: &[u64]| words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
    match content {
        Content::Block { units, damaged, .. } => count(units) - count(damaged),
        Content::Gone | Content::Tombstone { .. } => 0,
    }
}
