//! Brings the acting members to the same blocks. Their lists are walked side by side, page by page; which
//! version of a block wins is the face's answer.
//!
//! Invariants
//!   1. Up to `lowest` all acting members hold the same; only what is newer is compared. Where one
//!      lacks what another's floor has passed, `lowest` is zero: all is compared, and what a member
//!      lacks at or below its floor is deleted.
//!   2. It ends when every repair is durable on every acting member.

use std::collections::VecDeque;

use base::Version;
use blockstore::BlockKey;
use format::wire::{ListedBlock, PeerBody};

use super::copy::{Job, Purpose};
use super::face::{Adoption, Statement};
use super::lead::{Ask, Asked, Lead};
use super::limits::ADOPTIONS_MAX;
use super::{Action, Call, CallId, NewerFor, Pg, Serving, face};

/// How far the comparison is.
#[derive(Default)]
pub struct Compare {
    lowest: Version,
    /// Of each acting member.
    pages: Vec<Page>,
}

/// A walk over a list of blocks in key order.
#[derive(Default)]
pub struct Page {
    blocks: VecDeque<ListedBlock>,
    /// The last block that came.
    after: Option<BlockKey>,
    is_last: bool,
    is_asked: bool,
}

impl Page {
    /// A walk that begins behind a block.
    pub fn behind(after: Option<BlockKey>) -> Page {
        Page { after, ..Page::default() }
    }

    /// Whether the next block is not known, and neither that there is none.
    pub fn is_missing(&self) -> bool {
        self.blocks.is_empty() && !self.is_last
    }

    /// Where the next page begins, if it is to be asked for now.
    pub fn ask_from(&mut self) -> Option<Option<BlockKey>> {
        let is_due = self.is_missing() && !self.is_asked;
        self.is_asked |= is_due;
        is_due.then_some(self.after)
    }

    /// A page came. The error says what is wrong with it.
    pub fn came(
        &mut self,
        newer_than: Version,
        blocks: Vec<ListedBlock>,
        is_last: bool,
    ) -> Result<(), String> {
        check_list(newer_than, self.after, &blocks, is_last)?;
        self.is_asked = false;
        self.is_last = is_last;
        self.after = blocks.last().map(|block| block.key).or(self.after);
        self.blocks.extend(blocks);
        Ok(())
    }

    /// The next block's key.
    pub fn next_key(&self) -> Option<BlockKey> {
        self.blocks.front().map(|block| block.key)
    }

    /// The version of a block, which is behind all that were taken; `ZERO`: it is not in the list.
    pub fn take(&mut self, key: BlockKey) -> Version {
        match self.blocks.front() {
            Some(block) if block.key == key => {
                let version = block.version;
                self.blocks.pop_front();
                version
            }
            _ => Version::ZERO,
        }
    }
}

/// Checks a page: in key order behind `after`, and of newer blocks only.
pub fn check_list(
    newer_than: Version,
    after: Option<BlockKey>,
    blocks: &[ListedBlock],
    is_last: bool,
) -> Result<(), String> {
    let mut before = after;
    for block in blocks {
        if before.is_some_and(|before| block.key <= before) {
            return Err("a list out of order".into());
        }
        if block.version <= newer_than {
            return Err("a list with older blocks than asked for".into());
        }
        before = Some(block.key);
    }
    if blocks.is_empty() && !is_last {
        return Err("an empty list that is not the last".into());
    }
    Ok(())
}

impl Compare {
    pub fn new(count: usize, lowest: Version) -> Compare {
        Compare { lowest, pages: (0..count).map(|_| Page::default()).collect() }
    }
}

impl Lead {
    /// Up to which version an acting member proves the deletion of what it lacks: tombstones of such
    /// versions are gone there, and it has lost nothing up to them.
    fn deleted_up_to(&self, index: usize) -> Version {
        if self.compare.lowest > Version::ZERO {
            return Version::ZERO;
        }
        let state = self.peers[index].state.as_ref();
        // A disk that lost the block, and not the floor above it, proves no deletion.
        state.map_or(Version::ZERO, |state| state.floor.min(state.complete))
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
                None if self.lead().jobs.is_empty() => return self.journal(actions),
                None => return,
            }
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
                let call = self.ask(Ask { peer: index, what: Asked::Compare });
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
        let statement = |(index, version): (usize, &Version)| Statement {
            version: *version,
            deleted_up_to: lead.deleted_up_to(index),
        };
        let stated: Vec<Statement> = versions.iter().enumerate().map(statement).collect();
        match face::adopt(&stated) {
            Adoption::Same => {}
            Adoption::Remove { from } => self.begin_job(Job::removal(key, from), actions),
            Adoption::Copy { newest, sources, to } => {
                let purpose = Purpose::Adopt { newest, targets: to };
                self.begin_job(Job::new(key, None, sources, purpose), actions);
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
        let call = CallId(self.calls.insert(Call::Newer(what)) as u32);
        let count_max = self.shape.limits.list_count_max;
        actions.push(Action::ListNewer { call, newer_than, after, count_max });
    }

    /// Names a question to a member.
    pub(crate) fn ask(&mut self, ask: Ask) -> u32 {
        self.lead().asks.insert(ask) as u32
    }
}
