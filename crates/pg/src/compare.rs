//! Brings the acting members to the same blocks. Their lists are walked side by side, page by page; which
//! version of a block wins is the face's answer.
//!
//! Invariants
//!   1. Up to `lowest` all acting members hold the same; only what is newer is compared. Where one
//!      lacks what another's floor has passed, `lowest` is zero: all is compared, and what a member
//!      lacks at or below its floor is deleted.
//!   2. It ends when every repair is durable on every acting member.
//!   3. A version that too few have was never acknowledged, and goes (pools of pieces alone). First whoever
//!      has it keeps a record by which it states nothing from that version on: whoever is away and has it
//!      too is then beyond the end of its epoch, whatever happens. Then they get the version before, and
//!      all state themselves anew, in the next epoch.

use base::Version;
use blockstore::BlockKey;
use format::wire::{ListedBlock, PeerBody};

use super::ask::Asked;
use super::copy::{Job, Purpose};
use super::face::{Adoption, Statement};
use super::limits::ADOPTIONS_MAX;
use super::local_state::RecordFor;
use super::page::Page;
use super::store_calls::{Call, NewerFor};
use super::{Action, MemberSet, Need, Pg, Serving};

/// How far the comparison is.
#[derive(Default)]
pub struct Compare {
    lowest: Version,
    /// Of each acting member.
    pages: Vec<Page>,
    /// Blocks whose newest version goes.
    returns: Vec<Return>,
    /// Members whose records do not say yet that they lack it.
    undropped: MemberSet,
    /// Some versions went: the members are to state themselves anew.
    has_returned: bool,
}

/// A block whose newest version goes from those who have it.
struct Return {
    key: BlockKey,
    newest: Version,
    from: MemberSet,
    /// One that has the version before.
    like: usize,
}

impl Compare {
    pub fn new(count: usize, lowest: Version) -> Compare {
        let pages = (0..count).map(|_| Page::default()).collect();
        Compare { lowest, pages, ..Compare::default() }
    }
}

impl Pg {
    /// Goes on comparing until pages or repairs must be waited for.
    pub(crate) fn compare_on(&mut self, actions: &mut Vec<Action>) {
        while self.serving == Serving::Comparing && self.lead().jobs.len() < ADOPTIONS_MAX {
            self.ask_pages(actions);
            let pages = &self.lead().compare.pages;
            if pages.iter().any(Page::is_missing) {
                return;
            }
            match pages.iter().filter_map(Page::next_key).min() {
                Some(key) => self.compare_block(key, actions),
                None if self.lead().jobs.is_empty() => return self.compared(actions),
                None => return,
            }
        }
    }

    /// All blocks were compared, and all repairs are durable.
    fn compared(&mut self, actions: &mut Vec<Action>) {
        let compare = &self.lead().compare;
        if compare.has_returned {
            let why = "writes that too few members have were taken back".to_owned();
            return self.end_epoch(Need::NewEpoch, why, actions);
        }
        if compare.returns.is_empty() {
            return self.journal(actions);
        }
        if !compare.undropped.is_empty() {
            return;
        }
        for index in 0..self.lead().acting.count() {
            let lead = self.lead();
            let me = lead.me;
            let its = lead.compare.returns.iter().filter(|it| it.from.has(index));
            let Some(version) = its.map(|it| it.newest).min() else { continue };
            lead.compare.undropped.add(index);
            if index == me {
                self.drop_from(version, RecordFor::OwnDrop, actions);
            } else {
                let call = self.lead().asks.ask(index, Asked::Drop);
                self.send(index, PeerBody::Drop { call, version }, actions);
            }
        }
    }

    /// Keeps a record by which this OSD states nothing from a version on.
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

    /// Likewise this OSD's own.
    pub(crate) fn on_own_drop_recorded(&mut self, is_durable: bool, actions: &mut Vec<Action>) {
        let me = self.lead().me;
        if is_durable {
            return self.on_dropped(me, actions);
        }
        let why = "its store has no room for a record".to_owned();
        let need = Need::Failed(self.lead().peers[me].member, why.clone());
        self.end_epoch(need, why, actions);
    }

    /// A member's record says that it lacks what goes.
    pub(crate) fn on_dropped(&mut self, index: usize, actions: &mut Vec<Action>) {
        let compare = &mut self.lead().compare;
        compare.undropped.take(index);
        if !compare.undropped.is_empty() || self.serving != Serving::Comparing {
            return;
        }
        let compare = &mut self.lead().compare;
        compare.has_returned = true;
        for Return { key, from, like, .. } in std::mem::take(&mut compare.returns) {
            let lead = self.lead();
            let sources = std::iter::once(like).chain(from.iter());
            let sources = sources.map(|index| lead.source(index)).collect();
            let purpose = Purpose::Return { targets: from };
            self.begin_job(Job::new(key, sources, purpose), actions);
        }
    }

    fn ask_pages(&mut self, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let (me, newer_than) = (lead.me, lead.compare.lowest);
        for index in 0..lead.acting.count() {
            let Some(after) = self.lead().compare.pages[index].ask_from() else { continue };
            if index == me {
                self.list_own(NewerFor::Compare, newer_than, after, actions);
            } else {
                let call = self.lead().asks.ask(index, Asked::Compare);
                self.send(index, PeerBody::List { call, newer_than, after }, actions);
            }
        }
    }

    /// A page of an acting member came.
    pub(crate) fn on_compare_list(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let compare = &mut self.lead().compare;
        compare.pages[index].came(compare.lowest, blocks, is_last)?;
        self.compare_on(actions);
        Ok(())
    }

    fn compare_block(&mut self, key: BlockKey, actions: &mut Vec<Action>) {
        let lead = self.lead();
        let versions: Vec<Version> =
            lead.compare.pages.iter_mut().map(|page| page.take(key)).collect();
        let compares_all = lead.compare.lowest == Version::ZERO;
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
                self.lead().compare.returns.push(Return { key, newest, from, like });
            }
        }
    }

    /// Asks this OSD's own store for blocks with versions above one.
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
}
