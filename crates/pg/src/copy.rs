//! Copies of blocks between members: for equal blocks at the beginning of an epoch, for learners,
//! and for units that were damaged.
//!
//! ```text
//!   (hold: its turn in the block's queue) ──▶ the first source's copy ──▶ units it lost, from the
//!   next sources ──▶ repairs
//! ```
//!
//! Invariants
//!   1. In an active epoch a block is copied while no write of it is under way, and later ones wait
//!      until the copy is on its way. So all acting members hold the same.
//!   2. Units that no source could read are sent as damaged: nobody keeps older data there.
//!   3. A version stands for one content: where units of an older copy took the place of lost ones, the
//!      block gets a version of the new epoch.

use std::collections::VecDeque;

use base::Version;
use base::planted::{self, Bug};
use blockstore::{Answer, BlockKey, Request as StoreRequest, StoreError};
use format::wire::{Content, PeerBody};

use super::face::Gathering;
use super::lead::{Ask, Asked, Contact};
use super::units::{Held, Units};
use super::write::{Follower, WriteFor, WriteKind};
use super::{Action, Call, MemberSet, Need, Pg, face};

/// The copy of one block.
pub struct Job {
    key: BlockKey,
    gathering: Gathering,
    /// Members to ask, in order.
    sources: VecDeque<usize>,
    /// Its place in the queue of the block's writes, once it has its turn.
    hold: Option<usize>,
    purpose: Purpose,
}

/// What a copy is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The acting members `targets` get the block in its newest version.
    Adopt { newest: Version, targets: MemberSet },
    /// A learner gets it.
    Fill { learner: usize },
    /// Units that this OSD lost come back.
    Mend,
}

impl Job {
    pub fn new(key: BlockKey, wants: Option<Units>, sources: Vec<usize>, purpose: Purpose) -> Job {
        Job { key, gathering: Gathering::of(wants), sources: sources.into(), hold: None, purpose }
    }

    /// A block that is deleted goes from acting members that still have it.
    pub fn removal(key: BlockKey, targets: MemberSet) -> Job {
        let purpose = Purpose::Adopt { newest: Version::ZERO, targets };
        Job { gathering: Gathering::of_nothing(), ..Job::new(key, None, Vec::new(), purpose) }
    }
}

impl Pg {
    /// Begins a job that needs no turn in its block's queue: nothing is written in the epoch yet.
    pub(crate) fn begin_job(&mut self, job: Job, actions: &mut Vec<Action>) {
        let job = self.lead().jobs.insert(job);
        self.gather(job, actions);
    }

    /// Begins a job at its turn among the writes of its block. `follower` goes on when it ends.
    pub(crate) fn queue_job(
        &mut self,
        job: Job,
        follower: Option<Follower>,
        actions: &mut Vec<Action>,
    ) {
        let key = job.key;
        let job = self.lead().jobs.insert(job);
        if planted::on(Bug::FillOvertakesWrite) && follower.is_none() {
            return self.gather(job, actions);
        }
        self.write(WriteFor::Job(job), key, WriteKind::Hold, follower, actions);
    }

    /// No write of the job's block is under way, and none begins before [`Pg::end_job`].
    pub(crate) fn on_hold(&mut self, job: usize, slot: usize, actions: &mut Vec<Action>) {
        let found = &mut self.lead().jobs[job];
        found.hold = Some(slot);
        let key = found.key;
        match found.purpose {
            Purpose::Mend => self.call(Call::MendLook(job), StoreRequest::Extents { key }, actions),
            _ => self.gather(job, actions),
        }
    }

    /// What this OSD lost of a block is known.
    pub(crate) fn on_lost_units(
        &mut self,
        job: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Ok(Answer::Extents { version, damaged, .. }) = result else {
            unreachable!("the store answers extents with extents");
        };
        let lost = Units::from_words(&damaged, self.shape.block_size);
        let lost = lost.expect("the store knows the size of its blocks");
        if lost.is_empty() {
            // Somebody mended it meanwhile, or wrote it anew.
            return self.end_job(job, actions);
        }
        self.lead().jobs[job].gathering = Gathering::of_lost(version, lost);
        self.gather(job, actions);
    }

    /// Asks the next source for what is missing.
    fn gather(&mut self, job: usize, actions: &mut Vec<Action>) {
        let block_size = self.shape.block_size;
        let me = self.lead().me;
        let found = &mut self.lead().jobs[job];
        let (key, gathering) = (found.key, &found.gathering);
        let is_done = gathering.is_done(block_size);
        let units = match gathering.wants_whole() {
            true => Vec::new(),
            false => gathering.missing(block_size).words(block_size),
        };
        let source = found.sources.pop_front().filter(|_| !is_done);
        let Some(source) = source else { return self.gathered(job, actions) };
        if source == me {
            self.call(Call::Copy(job), StoreRequest::Copy { key, units }, actions);
        } else {
            let call = self.ask(Ask { peer: source, what: Asked::Fetch { job } });
            self.send(source, PeerBody::Fetch { call, key, units }, actions);
        }
    }

    /// This OSD's own copy.
    pub(crate) fn on_own_copy(
        &mut self,
        job: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let Ok(Answer::Copy { content, .. }) = result else {
            unreachable!("the store answers a copy with a copy");
        };
        let held = Held::of(content, self.shape.block_size, false);
        let held = held.expect("the store knows the size of its blocks");
        self.on_source(job, held, actions);
    }

    /// A member's copy.
    pub(crate) fn on_peer_copy(
        &mut self,
        job: usize,
        content: Content,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let held = Held::of(content, self.shape.block_size, true)?;
        self.check_version(held.version())?;
        self.on_source(job, held, actions);
        Ok(())
    }

    fn on_source(&mut self, job: usize, held: Held, actions: &mut Vec<Action>) {
        let block_size = self.shape.block_size;
        let found = &mut self.lead.as_mut().expect("jobs are the primary's").jobs[job];
        // In an active epoch all acting members hold the same version.
        let takes_older = matches!(found.purpose, Purpose::Adopt { .. });
        found.gathering.take(held, takes_older, block_size, &self.buffers);
        self.gather(job, actions);
    }

    /// No source has more.
    fn gathered(&mut self, job: usize, actions: &mut Vec<Action>) {
        let block_size = self.shape.block_size;
        let found = &mut self.lead().jobs[job];
        let (key, purpose) = (found.key, found.purpose);
        let gathering = std::mem::replace(&mut found.gathering, Gathering::of_nothing());
        let lost = gathering.missing(block_size);
        let (is_mixed, is_older) = (gathering.is_mixed, gathering.is_older);
        let held = gathering.into_held();
        match purpose {
            Purpose::Adopt { newest, targets } if held.version() == newest => {
                let held = if is_older { self.as_of_this_epoch(held) } else { held };
                // Units that came from another copy go to those of the newest version as well.
                let targets = if is_mixed { self.lead().acting } else { targets };
                self.adopt(job, targets, held, &lost, actions);
            }
            Purpose::Adopt { .. } => {
                // It stated another version: it will be judged anew.
                self.lead().jobs.remove(job);
                let why = "a member's block is not as it was listed".to_owned();
                self.end_epoch(Need::NewEpoch, why, actions);
            }
            Purpose::Fill { learner } => {
                self.send_fill(learner, key, held, &lost, actions);
                self.end_job(job, actions);
            }
            Purpose::Mend => {
                let is_empty = matches!(&held, Held::Copy(copied) if copied.units.is_empty());
                if is_empty {
                    return self.end_job(job, actions);
                }
                let units = match &held {
                    Held::Copy(copied) => copied.units.count(),
                    Held::Gone | Held::Tombstone(_) => 0,
                };
                let content = held.into_content(self.shape.block_size, &Units::default());
                let request = StoreRequest::Repair { pg: self.shape.pg, key, content };
                self.call(Call::Mend { job, units }, request, actions);
            }
        }
    }

    /// What this OSD lost is durable here again.
    pub(crate) fn on_mended(
        &mut self,
        (job, units): (usize, usize),
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        // Without room for it the units stay damaged, and the read says so.
        if result.is_ok() {
            self.mended_units += units as u64;
        }
        self.end_job(job, actions);
    }

    /// A job ended: later writes of its block go on.
    fn end_job(&mut self, job: usize, actions: &mut Vec<Action>) {
        let job = self.lead().jobs.remove(job);
        if let Some(slot) = job.hold {
            self.release(slot, actions);
        }
    }

    /// A block made of several versions. A member that is away may hold the newest one as it was written:
    /// this is another content, and it must get it. No write has the version that it gets: the first
    /// one's counter is one more.
    fn as_of_this_epoch(&mut self, mut held: Held) -> Held {
        let epoch = self.entry.as_ref().expect("an epoch is entered").epoch;
        if let Held::Copy(copied) = &mut held {
            copied.version = Version { epoch, counter: self.lead().highest_complete().counter };
        }
        held
    }

    /// Gives what was gathered to acting members that have something else.
    fn adopt(
        &mut self,
        job: usize,
        targets: MemberSet,
        held: Held,
        lost: &Units,
        actions: &mut Vec<Action>,
    ) {
        let newest = held.version();
        let lead = self.lead();
        let (me, key) = (lead.me, lead.jobs[job].key);
        lead.jobs[job].purpose = Purpose::Adopt { newest, targets };
        let content = held.into_content(self.shape.block_size, lost);
        for index in targets.iter() {
            let content = content.clone();
            if index == me {
                self.repair_own(key, newest, content, Call::Adopt(job), actions);
            } else {
                let call = self.ask(Ask { peer: index, what: Asked::Adopt { job } });
                self.send(index, PeerBody::Repair { call, key, content }, actions);
            }
        }
    }

    fn repair_own(
        &mut self,
        key: BlockKey,
        version: Version,
        content: Content,
        call: Call,
        actions: &mut Vec<Action>,
    ) {
        self.local_state.held = self.local_state.held.max(version);
        self.has_tombstones |= matches!(content, Content::Tombstone { .. });
        self.changes.add(version, key, 0..self.shape.block_size.unit_count());
        self.call(call, StoreRequest::Repair { pg: self.shape.pg, key, content }, actions);
    }

    /// This OSD's own repair for equal blocks ended.
    pub(crate) fn on_adopted_here(
        &mut self,
        job: usize,
        result: Result<Answer, StoreError>,
        actions: &mut Vec<Action>,
    ) {
        let me = self.lead().me;
        match result {
            Ok(_) => self.on_adopted_by(me, job, actions),
            Err(_) => {
                let why = "its store is full".to_owned();
                let need = Need::Failed(self.lead().peers[me].member, why.clone());
                self.end_epoch(need, why, actions);
            }
        }
    }

    /// A member has the newest copy durably.
    pub(crate) fn on_adopted_by(&mut self, index: usize, job: usize, actions: &mut Vec<Action>) {
        let found = &mut self.lead().jobs[job];
        let Purpose::Adopt { targets, .. } = &mut found.purpose else {
            unreachable!("the job gives the newest copy to all");
        };
        targets.take(index);
        if targets.is_empty() {
            self.lead().jobs.remove(job);
            self.compare_on(actions);
        }
    }

    /// Lets a read wait until units that this OSD lost were fetched from other members; false
    /// where there is nobody else.
    pub(crate) fn mend(&mut self, key: BlockKey, read: usize, actions: &mut Vec<Action>) -> bool {
        let Some(lead) = self.lead.as_ref().filter(|_| self.may_copy()) else { return false };
        let others = lead.acting_others();
        let others = others.filter(|index| lead.peers[*index].contact == Contact::Known);
        let sources = face::sources(others);
        if sources.is_empty() {
            return false;
        }
        let job = Job::new(key, None, sources, Purpose::Mend);
        self.queue_job(job, Some(Follower::Read(read)), actions);
        true
    }
}
