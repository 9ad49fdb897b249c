//! Things in flight that began in order: tells up to which one all have ended.
//!
//! ```text
//!   counters   ...  41  42 | 43  44  45  46
//!                    ended | no  yes no  yes      ended up to 42, begun up to 46
//! ```

use std::collections::VecDeque;

pub struct Window {
    /// Counter of the newest one up to which all have ended.
    ended: u64,
    /// The slots of those after it, in order; `None`: it has ended. The first has not.
    open: VecDeque<Option<usize>>,
}

impl Window {
    /// All up to `ended` have ended.
    pub fn new(ended: u64) -> Window {
        Window { ended, open: VecDeque::new() }
    }

    /// The next one begins; returns its counter. `slot` is what [`Window::slot`] returns.
    pub fn begin(&mut self, slot: usize) -> u64 {
        self.open.push_back(Some(slot));
        self.begun()
    }

    /// One ended.
    pub fn end(&mut self, counter: u64) {
        assert!(counter > self.ended);
        let index = (counter - self.ended - 1) as usize;
        assert!(self.open[index].is_some());
        self.open[index] = None;
        while self.open.front() == Some(&None) {
            self.open.pop_front();
            self.ended += 1;
        }
    }

    /// The slot of one that has not ended.
    pub fn slot(&self, counter: u64) -> Option<usize> {
        let index = counter.checked_sub(self.ended + 1)?;
        self.open.get(usize::try_from(index).ok()?).copied().flatten()
    }

    /// Slots of all that have not ended.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.open.iter().copied().flatten()
    }

    /// Up to this counter all have ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// The counter of the newest one.
    pub fn begun(&self) -> u64 {
        self.ended + self.open.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_stops_before_the_oldest_that_is_open() {
        let mut window = Window::new(7);
        for slot in 0..3 {
            assert_eq!(window.begin(slot), 8 + slot as u64);
        }
        window.end(9);
        assert_eq!(window.ended(), 7);
        assert_eq!([window.slot(7), window.slot(8), window.slot(9)], [None, Some(0), None]);
        window.end(8);
        assert_eq!(window.ended(), 9);
        window.end(10);
        assert_eq!(window.ended(), 10);
        assert_eq!(window.slots().count(), 0);
        assert_eq!(window.slot(11), None);
    }
}
