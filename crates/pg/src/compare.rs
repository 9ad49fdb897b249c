//! Comparing the blocks of acting members: their lists are walked side by side, page by page.
//!
//! Invariants
//!   1. Up to `lowest` all acting members hold the same; only what is newer is compared. Where one
//!      lacks what another's floor has passed, `lowest` is zero: all is compared, and what a member
//!      lacks at or below its floor is deleted.
//!   2. A version that too few have was never acknowledged, and goes (pools of pieces alone). First whoever
//!      has it keeps a record by which it states nothing from that version on: whoever is away and has it
//!      too is then beyond the end of its epoch, whatever happens. Then they get the version before, and
//!      all state themselves anew, in the next epoch.

use base::Version;
use blockstore::BlockKey;
use format::wire::ListedBlock;

use super::MemberSet;
use super::page::Page;

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
pub struct Return {
    pub key: BlockKey,
    pub newest: Version,
    pub from: MemberSet,
    /// One that has the version before.
    pub like: usize,
}

/// What follows, as far as pages came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Pages must come first.
    Pages,
    /// This block is compared.
    Block(BlockKey),
    /// All blocks were compared.
    End,
}

/// How a comparison ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compared {
    /// The acting members hold the same blocks.
    Same,
    /// These members must first record that they state nothing from a version on.
    Drop(Vec<(usize, Version)>),
    /// Some of them have not recorded that yet.
    Dropping,
    /// Versions were taken back: the members are to state themselves anew.
    TakenBack,
}

impl Compare {
    /// So many acting members, who all hold the same up to `lowest`.
    pub fn new(count: usize, lowest: Version) -> Compare {
        let pages = (0..count).map(|_| Page::default()).collect();
        Compare { lowest, pages, ..Compare::default() }
    }

    /// Only blocks above this version are listed.
    pub fn newer_than(&self) -> Version {
        self.lowest
    }

    /// Whether all blocks are listed.
    pub fn compares_all(&self) -> bool {
        self.lowest == Version::ZERO
    }

    /// Where a member's next page begins, if it is to be asked for now.
    pub fn ask_from(&mut self, index: usize) -> Option<Option<BlockKey>> {
        self.pages[index].ask_from()
    }

    /// A page of a member came. The error says what is wrong with it.
    pub fn on_page(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
    ) -> Result<(), String> {
        self.pages[index].on_page(self.lowest, blocks, is_last)
    }

    /// What follows.
    pub fn next(&self) -> Next {
        if self.pages.iter().any(Page::is_missing) {
            return Next::Pages;
        }
        self.pages.iter().filter_map(Page::next_key).min().map_or(Next::End, Next::Block)
    }

    /// The versions that the members have of the next block; `ZERO`: none.
    pub fn take(&mut self, key: BlockKey) -> Vec<Version> {
        self.pages.iter_mut().map(|page| page.take(key)).collect()
    }

    /// The newest version of a block goes, once all blocks are compared.
    pub fn take_back(&mut self, block: Return) {
        self.returns.push(block);
    }

    /// All blocks were compared, and all repairs are durable.
    pub fn end(&mut self) -> Compared {
        if self.has_returned {
            return Compared::TakenBack;
        }
        if self.returns.is_empty() {
            return Compared::Same;
        }
        if !self.undropped.is_empty() {
            return Compared::Dropping;
        }
        let lowest_of = |index: usize| {
            let its = self.returns.iter().filter(|it| it.from.has(index));
            Some((index, its.map(|it| it.newest).min()?))
        };
        let drops: Vec<(usize, Version)> = (0..self.pages.len()).filter_map(lowest_of).collect();
        for (index, _) in &drops {
            self.undropped.add(*index);
        }
        Compared::Drop(drops)
    }

    /// A member's record says that it lacks what goes. True: it was the last one.
    pub fn on_dropped(&mut self, index: usize) -> bool {
        self.undropped.take(index);
        self.undropped.is_empty()
    }

    /// What goes, now that every record says so.
    pub fn begin_returns(&mut self) -> Vec<Return> {
        assert!(self.undropped.is_empty());
        self.has_returned = true;
        std::mem::take(&mut self.returns)
    }
}
