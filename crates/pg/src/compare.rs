//! Compares the blocks of the acting members: walks their block lists side by side, page by page.
//!
//! Invariants
//!   1. Up to version `lowest` all acting members hold the same, so only newer blocks are compared. If a
//!      member lacks versions that another's floor has passed, `lowest` is zero: all blocks are compared, and
//!      a block that a member lacks at or below its own floor is deleted on the others.
//!   2. If positions hold different data, a version that too few members have was never acknowledged, and is
//!      dropped. First each member that has it writes a record that it reports nothing from that version on.
//!      So if a member that is away has the version too, that version is beyond the end of its epoch in any
//!      case. Then the members go back to the previous version, and all report their state again, in the
//!      next epoch.

use base::Version;
use blockstore::BlockKey;
use format::wire::ListedBlock;

use super::MemberSet;
use super::page::Page;

/// How far the comparison has got.
#[derive(Default)]
pub struct Compare {
    lowest: Version,
    /// The block list of each acting member.
    pages: Vec<Page>,
    /// Blocks whose newest version is dropped.
    returns: Vec<Return>,
    /// Members that have not yet recorded that they lack the dropped versions.
    undropped: MemberSet,
    /// Some versions were dropped: the members must report their state again.
    has_returned: bool,
}

/// A block whose newest version is dropped by the members that have it.
pub struct Return {
    pub key: BlockKey,
    pub newest: Version,
    pub from: MemberSet,
    /// The index of a member that has the previous version.
    pub like: usize,
}

/// What the comparison does next, given the pages that have arrived.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Wait for pages.
    Pages,
    /// Compare this block.
    Block(BlockKey),
    /// All blocks were compared.
    End,
}

/// How a comparison ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Compared {
    /// The acting members hold the same blocks.
    Same,
    /// These members must first record that they report nothing from the given version on.
    Drop(Vec<(usize, Version)>),
    /// Some members have not recorded yet which versions they drop.
    Dropping,
    /// Versions were taken back: the members must report their state again.
    TakenBack,
}

impl Compare {
    /// Returns a comparison of `count` acting members that all hold the same up to `lowest`.
    pub fn new(count: usize, lowest: Version) -> Compare {
        let pages = (0..count).map(|_| Page::default()).collect();
        Compare { lowest, pages, ..Compare::default() }
    }

    /// Returns the version above which blocks are listed.
    pub fn newer_than(&self) -> Version {
        self.lowest
    }

    /// Returns whether all blocks are listed.
    pub fn compares_all(&self) -> bool {
        self.lowest == Version::ZERO
    }

    /// Returns where a member's next page begins, if that page should be requested now. It then counts as
    /// requested.
    pub fn ask_from(&mut self, index: usize) -> Option<Option<BlockKey>> {
        self.pages[index].ask_from()
    }

    /// Adds a page that a member sent. The error says what is wrong with the page.
    pub fn on_page(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
    ) -> Result<(), String> {
        self.pages[index].on_page(self.lowest, blocks, is_last)
    }

    /// Returns what to do next.
    pub fn next(&self) -> Next {
        if self.pages.iter().any(Page::is_missing) {
            return Next::Pages;
        }
        self.pages.iter().filter_map(Page::next_key).min().map_or(Next::End, Next::Block)
    }

    /// Takes the next block out of all lists and returns each member's version of it; `ZERO`: the member
    /// lists none.
    pub fn take(&mut self, key: BlockKey) -> Vec<Version> {
        self.pages.iter_mut().map(|page| page.take(key)).collect()
    }

    /// Notes that a block's newest version must be dropped, once all blocks are compared.
    pub fn take_back(&mut self, block: Return) {
        self.returns.push(block);
    }

    /// Ends the comparison. Requires: all blocks were compared, and all repairs are durable.
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

    /// Notes that a member has recorded that it lacks the dropped versions. Returns whether it was the last
    /// such member.
    pub fn on_dropped(&mut self, index: usize) -> bool {
        self.undropped.take(index);
        self.undropped.is_empty()
    }

    /// Returns the blocks whose newest version is dropped. Requires: all members that drop versions have
    /// recorded that.
    pub fn begin_returns(&mut self) -> Vec<Return> {
        assert!(self.undropped.is_empty());
        self.has_returned = true;
        std::mem::take(&mut self.returns)
    }
}
