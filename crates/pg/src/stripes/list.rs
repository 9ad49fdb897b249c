//! Lists of the keys of a PG in a pool with parity. If only one data part of a key was written, the key is in
//! the index of that part's member and in the indexes of the members with parity. So one member with parity
//! lists all keys; without such a member, all acting members together do.

use base::Version;
use base::planted::{self, Bug};
use blockstore::BlockKey;
use format::wire::{ListedBlock, PeerBody};

use super::Stripes;
use crate::ask::Asked;
use crate::lead::Lead;
use crate::page::Page;
use crate::slots::DeletionSlot;
use crate::store_calls::NewerFor;
use crate::{Action, Listing, Pg};

/// The key lists of several members, walked side by side.
pub struct Pages {
    /// Each member's list, with the member's index.
    pages: Vec<(usize, Page)>,
    newer_than: Version,
}

/// A page to request: the member, and the key after which the page begins.
pub type PageAsk = (usize, Option<BlockKey>);

/// A key that at least one member lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListedKey {
    pub key: BlockKey,
    /// The newest version that any member lists for the key.
    pub version: Version,
    /// Whether every member that lists the key lists a tombstone.
    pub is_tombstone: bool,
}

impl Lead {
    /// Returns the members that together list all keys of the PG. In a pool without parity that is this OSD
    /// alone.
    pub fn listers(&self, stripes: Option<&Stripes>) -> Vec<usize> {
        let stripes = stripes.filter(|_| !planted::on(Bug::FillFromOwnIndex));
        let Some(stripes) = stripes else { return vec![self.me] };
        let has_parity = |index: &usize| !stripes.is_data(self.peers[*index].position);
        let all = self.fill_sources;
        let me = Some(self.me).filter(|me| all.has(*me));
        match me.filter(has_parity).or_else(|| all.iter().find(has_parity)) {
            Some(index) => vec![index],
            None => all.iter().collect(),
        }
    }
}

impl Pages {
    /// Returns a walk over the keys after `after` that these members list with versions above `newer_than`.
    pub fn new(listers: Vec<usize>, newer_than: Version, after: Option<BlockKey>) -> Pages {
        let pages = listers.into_iter().map(|index| (index, Page::behind(after))).collect();
        Pages { pages, newer_than }
    }

    /// Returns the pages to request now. They then count as requested.
    pub fn asks(&mut self) -> Vec<PageAsk> {
        let pages = self.pages.iter_mut();
        pages.filter_map(|(index, page)| Some((*index, page.ask_from()?))).collect()
    }

    /// Adds a page. The error says what is wrong with it.
    pub fn on_page(
        &mut self,
        index: usize,
        blocks: Vec<ListedBlock>,
        is_last: bool,
    ) -> Result<(), String> {
        let page = self.pages.iter_mut().find(|(lister, _)| *lister == index);
        let (_, page) = page.ok_or("a list that was not requested")?;
        page.on_page(self.newer_than, blocks, is_last)
    }

    /// Returns the version above which keys are listed.
    pub fn newer_than(&self) -> Version {
        self.newer_than
    }

    /// Returns whether a page must arrive before the next key is known.
    pub fn is_missing(&self) -> bool {
        self.pages.iter().any(|(_, page)| page.is_missing())
    }

    /// Returns the next key. Requires: no page is missing.
    pub fn next_key(&self) -> Option<BlockKey> {
        self.pages.iter().filter_map(|(_, page)| page.next_key()).min()
    }

    /// Removes and returns the next key. Requires: no page is missing.
    pub fn take(&mut self) -> Option<ListedKey> {
        let key = self.next_key()?;
        let (mut version, mut is_tombstone) = (Version::ZERO, true);
        for (_, page) in &mut self.pages {
            if let Some(block) = page.take_block(key) {
                version = version.max(block.version);
                is_tombstone &= block.is_tombstone;
            }
        }
        Some(ListedKey { key, version, is_tombstone })
    }
}

/// The walk for one portion of a deletion.
pub struct DeletionWalk {
    listing: Listing,
    pages: Pages,
    keys: Vec<BlockKey>,
    /// Whether all keys of the portion are known.
    is_done: bool,
}

impl DeletionWalk {
    /// Removes and returns the keys, if all of them are known.
    pub fn take_keys(&mut self) -> Option<Vec<BlockKey>> {
        self.is_done.then(|| std::mem::take(&mut self.keys))
    }
}

impl Pg {
    /// Lists an image's stripes for a portion of a deletion.
    pub(crate) fn list_stripes(
        &mut self,
        slot: DeletionSlot,
        listing: Listing,
        actions: &mut Vec<Action>,
    ) {
        let stripes = self.stripes();
        let listers = self.lead().listers(stripes);
        let pages = Pages::new(listers, Version::ZERO, listing.after);
        let walk = DeletionWalk { listing, pages, keys: Vec::new(), is_done: false };
        self.deletions.set_walk(slot, Box::new(walk));
        self.deletion_walk_on(slot, actions);
    }

    fn deletion_walk_on(&mut self, slot: DeletionSlot, actions: &mut Vec<Action>) {
        let walk = self.deletions.walk(slot).expect("it waits for its list");
        let Listing { image, from, count_max, .. } = walk.listing;
        while walk.keys.len() < count_max
            && !walk.pages.is_missing()
            && let Some(found) = walk.pages.take()
        {
            let ListedKey { key, is_tombstone, .. } = found;
            if key.image == image && key.stripe >= from && !is_tombstone {
                walk.keys.push(key);
            }
        }
        if walk.keys.len() == count_max || !walk.pages.is_missing() {
            walk.is_done = true;
            // Blocks whose deletes are in flight are no longer listed: the portion waits for these deletes
            // first.
            return self.start_deletion(slot, actions);
        }
        for (index, after) in walk.pages.asks() {
            if index == self.lead().me {
                self.list_own(NewerFor::Deletion { slot }, Version::ZERO, after, actions);
            } else {
                let call = self.lead().asks.ask(index, Asked::DeletionList { slot });
                let body = PeerBody::List { call, newer_than: Version::ZERO, after };
                self.send(index, body, actions);
            }
        }
    }

    /// Adds a member's page of keys. The error says what is wrong with it.
    pub(crate) fn on_deletion_page(
        &mut self,
        slot: DeletionSlot,
        index: usize,
        (blocks, is_last): (Vec<ListedBlock>, bool),
        actions: &mut Vec<Action>,
    ) -> Result<(), String> {
        let walk = self.deletions.walk(slot).ok_or("a list that was not requested")?;
        walk.pages.on_page(index, blocks, is_last)?;
        self.deletion_walk_on(slot, actions);
        Ok(())
    }
}
