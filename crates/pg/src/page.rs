//! Lists of blocks that arrive page by page, and a walk over such a list.
//!
//! Invariants
//!   1. Blocks arrive in key order, each once, with versions above the requested one.
//!   2. At most one page is requested at a time.

use std::collections::VecDeque;

use base::Version;
use blockstore::BlockKey;
use format::wire::ListedBlock;

/// A walk over a list of blocks in key order.
#[derive(Default)]
pub struct Page {
    blocks: VecDeque<ListedBlock>,
    /// The last block that has arrived.
    after: Option<BlockKey>,
    is_last: bool,
    is_asked: bool,
}

impl Page {
    /// Returns a walk that begins after a block; `None`: at the first block.
    pub fn behind(after: Option<BlockKey>) -> Page {
        Page { after, ..Page::default() }
    }

    /// Returns whether a page must arrive before it is known whether there is a next block.
    pub fn is_missing(&self) -> bool {
        self.blocks.is_empty() && !self.is_last
    }

    /// Returns where the next page begins, if it should be requested now. It then counts as requested.
    pub fn ask_from(&mut self) -> Option<Option<BlockKey>> {
        let is_due = self.is_missing() && !self.is_asked;
        self.is_asked |= is_due;
        is_due.then_some(self.after)
    }

    /// Adds a page. The error says what is wrong with the page.
    pub fn on_page(
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

    /// Returns the key of the next block.
    pub fn next_key(&self) -> Option<BlockKey> {
        self.blocks.front().map(|block| block.key)
    }

    /// Takes a block out of the list and returns its version; `ZERO`: it is not in the list. Requires: the
    /// key is after all keys taken before.
    pub fn take(&mut self, key: BlockKey) -> Version {
        self.take_block(key).map_or(Version::ZERO, |block| block.version)
    }

    /// Takes a block out of the list; `None`: it is not in the list. Requires: as for [`Page::take`].
    pub fn take_block(&mut self, key: BlockKey) -> Option<ListedBlock> {
        self.blocks.pop_front_if(|block| block.key == key)
    }
}

/// Checks a page: keys must be in order and after `after`, and versions above `newer_than`.
pub fn check_list(
    newer_than: Version,
    after: Option<BlockKey>,
    blocks: &[ListedBlock],
    is_last: bool,
) -> Result<(), String> {
    let mut before = after;
    for block in blocks {
        if before.is_some_and(|before| block.key <= before) {
            return Err("the blocks of a list are out of order".into());
        }
        if block.version <= newer_than {
            return Err("a list contains older blocks than requested".into());
        }
        before = Some(block.key);
    }
    if blocks.is_empty() && !is_last {
        return Err("a page of a list is empty but not the last one".into());
    }
    Ok(())
}
