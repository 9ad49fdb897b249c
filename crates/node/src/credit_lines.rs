//! Who waits for credit, in the order of arrival: one line for each giver and kind of credit.
//!
//! ```text
//!   osd.2, space:  request 5 ─ 7 ─ 9        5 is the first in both of its lines: it is judged when credit comes.
//!   osd.3, room:   request 5 ─ 7            7 and 9 are not judged before 5 is served or gone.
//! ```
//!
//! Invariants
//!   1. A request has a place in each line in which it lacked credit or stood behind another one, until it is
//!      served or gone. So it holds more and more of what it needs, and does not starve.
//!   2. All lines have one order, that of arrival. So the oldest request is the first in all of its lines, and
//!      no two wait for each other.

use std::collections::{BTreeMap, BTreeSet};

use base::OsdId;
use base::planted::{self, Bug};

/// The kinds of credit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Space for data: places in the data area.
    Space,
    /// Room for prepared versions in the journal.
    Room,
}

/// Where credit was lacking: at this giver, or in this OSD's own store if `None`.
pub type Place = (Option<OsdId>, Kind);

/// All lines. Requests are known by the number of their arrival.
#[derive(Default)]
pub struct CreditLines {
    /// In each line, what each request needs there.
    lines: BTreeMap<Place, BTreeMap<u64, u64>>,
    places: BTreeMap<u64, Vec<Place>>,
}

impl CreditLines {
    /// Returns whether no request waits for credit.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns whether a request waits for this kind of credit.
    pub fn has(&self, kind: Kind) -> bool {
        self.lines.keys().any(|(_, of)| *of == kind)
    }

    /// Returns whether a request that arrived earlier has a place in the line.
    pub fn is_behind(&self, place: Place, arrival: u64) -> bool {
        let first = self.lines.get(&place).and_then(BTreeMap::first_key_value);
        first.is_some_and(|(first, _)| *first < arrival) && !planted::on(Bug::SmallWritePasses)
    }

    /// Returns what the first request of the line needs; 0: none waits there.
    pub fn need(&self, place: Place) -> u64 {
        let first = self.lines.get(&place).and_then(BTreeMap::first_key_value);
        first.map_or(0, |(_, bytes)| *bytes)
    }

    /// Gives the request, which needs this much, a place in the line, if it has none there.
    pub fn join(&mut self, place: Place, arrival: u64, bytes: u64) {
        if self.lines.entry(place).or_default().insert(arrival, bytes).is_none() {
            self.places.entry(arrival).or_default().push(place);
        }
    }

    /// Removes the request from all lines: it is served or gone.
    pub fn leave(&mut self, arrival: u64) {
        for place in self.places.remove(&arrival).unwrap_or_default() {
            let line = self.lines.get_mut(&place).expect("it has a place there");
            line.remove(&arrival);
            if line.is_empty() {
                self.lines.remove(&place);
            }
        }
    }

    /// Returns the oldest request that is the first of a line and not among these.
    pub fn first(&self, judged: &BTreeSet<u64>) -> Option<u64> {
        let firsts = self.lines.values().filter_map(|line| line.keys().next());
        firsts.filter(|arrival| !judged.contains(arrival)).min().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn osd(number: u32) -> Option<OsdId> {
        OsdId::new(number)
    }

    #[test]
    fn a_place_is_kept_until_the_request_is_served_or_gone() {
        let (mut lines, none) = (CreditLines::default(), BTreeSet::new());
        let (space, room) = ((osd(2), Kind::Space), (osd(3), Kind::Room));
        lines.join(space, 7, 100);
        assert!(lines.is_behind(space, 8));
        assert_eq!((lines.need(space), lines.need(room)), (100, 0));
        assert!(!lines.is_behind(space, 5), "what arrived earlier goes first");
        assert!(!lines.is_behind((osd(2), Kind::Room), 8), "another kind");
        assert!(!lines.is_behind((osd(3), Kind::Space), 8), "another giver");
        lines.join(room, 7, 10);
        lines.join(space, 8, 200);
        assert!(lines.is_behind(space, 8), "it lacked there once");
        assert_eq!(lines.first(&none), Some(7));
        assert_eq!(lines.first(&BTreeSet::from([7])), None, "8 is not judged before 7 is gone");
        assert_eq!(lines.need(space), 100, "what the first one needs");
        lines.leave(7);
        assert_eq!((lines.first(&none), lines.need(space)), (Some(8), 200));
        assert!(!lines.has(Kind::Room));
        lines.leave(8);
        assert!(lines.is_empty());
    }

    #[test]
    fn an_older_request_goes_before_one_that_lacked_earlier() {
        let mut lines = CreditLines::default();
        let (here, there) = ((osd(2), Kind::Room), (osd(3), Kind::Room));
        lines.join(here, 1, 1);
        lines.join(there, 2, 1);
        // Each of them needs both: the younger one waits behind the older one, never the other way round.
        assert!(lines.is_behind(here, 2));
        lines.join(here, 2, 1);
        assert!(!lines.is_behind(there, 1));
        lines.join(there, 1, 1);
        assert_eq!(lines.first(&BTreeSet::new()), Some(1));
        assert_eq!(lines.first(&BTreeSet::from([1])), None);
    }
}
