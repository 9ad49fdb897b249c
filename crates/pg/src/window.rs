//! What is in flight and began in order, and up to which counter all of it has ended.
//!
//! ```text
//!   counters   ...  41  42 | 43  44  45  46
//!                    ended | no  yes no  yes      ended up to 42, begun up to 46
//! ```
//!
//! A lazy write that was answered has given up its slot, and ends when it is durable.
//!
//! Invariants
//!   1. `ended` never goes back. The first of `open` has not ended.

use std::collections::VecDeque;

/// Those in flight. `S` names one that is under way.
pub struct Window<S> {
    /// Counter of the newest one up to which all have ended.
    ended: u64,
    /// Those after it, in order. The first has not ended.
    open: VecDeque<Stage<S>>,
    /// How many were answered and are not durable.
    answered_count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage<S> {
    /// It is under way, and has a slot.
    Open(S),
    /// It was answered, and is not durable.
    Answered,
    Ended,
}

impl<S: Copy + PartialEq> Window<S> {
    /// All up to `ended` have ended.
    pub fn new(ended: u64) -> Window<S> {
        Window { ended, open: VecDeque::new(), answered_count: 0 }
    }

    /// The next one begins; returns its counter. `slot` is what [`Window::slot`] returns.
    pub fn begin(&mut self, slot: S) -> u64 {
        self.open.push_back(Stage::Open(slot));
        self.begun()
    }

    /// One ended.
    pub fn end(&mut self, counter: u64) {
        self.leave_slot(counter, Stage::Ended);
        self.advance();
    }

    /// One was answered, and is not durable: it ends with [`Window::settle`].
    pub fn answer(&mut self, counter: u64) {
        self.leave_slot(counter, Stage::Answered);
        self.answered_count += 1;
    }

    /// What was answered up to this counter is durable.
    pub fn settle(&mut self, upto: u64) {
        let count = upto.saturating_sub(self.ended) as usize;
        for stage in self.open.iter_mut().take(count) {
            if *stage == Stage::Answered {
                *stage = Stage::Ended;
                self.answered_count -= 1;
            }
        }
        self.advance();
    }

    /// How many were answered and are not durable.
    pub fn answered_count(&self) -> usize {
        self.answered_count
    }

    /// Whether one was answered and is not durable.
    pub fn is_answered(&self, counter: u64) -> bool {
        self.stage(counter) == Some(Stage::Answered)
    }

    fn stage(&self, counter: u64) -> Option<Stage<S>> {
        let index = counter.checked_sub(self.ended + 1)?;
        self.open.get(usize::try_from(index).ok()?).copied()
    }

    fn leave_slot(&mut self, counter: u64, stage: Stage<S>) {
        assert!(matches!(self.stage(counter), Some(Stage::Open(_))));
        self.open[(counter - self.ended - 1) as usize] = stage;
    }

    fn advance(&mut self) {
        while self.open.front() == Some(&Stage::Ended) {
            self.open.pop_front();
            self.ended += 1;
        }
    }

    /// The slot of one that is under way.
    pub fn slot(&self, counter: u64) -> Option<S> {
        match self.stage(counter)? {
            Stage::Open(slot) => Some(slot),
            Stage::Answered | Stage::Ended => None,
        }
    }

    /// Slots of all that are under way.
    pub fn slots(&self) -> impl Iterator<Item = S> + '_ {
        self.open.iter().filter_map(|stage| match stage {
            Stage::Open(slot) => Some(*slot),
            Stage::Answered | Stage::Ended => None,
        })
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
        for slot in 0..3usize {
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

    #[test]
    fn what_was_answered_ends_when_it_is_durable() {
        let mut window = Window::new(0);
        for slot in 0..4usize {
            window.begin(slot);
        }
        window.answer(1);
        window.end(2);
        window.answer(4);
        assert_eq!((window.ended(), window.answered_count()), (0, 2));
        assert_eq!([window.slot(1), window.slot(3)], [None, Some(2)]);
        assert_eq!(
            [1, 2, 3, 4, 5].map(|at| window.is_answered(at)),
            [true, false, false, true, false]
        );
        window.settle(3);
        assert_eq!((window.ended(), window.answered_count()), (2, 1), "one is open, one too new");
        window.end(3);
        window.settle(4);
        assert_eq!((window.ended(), window.answered_count()), (4, 0));
        window.settle(2);
        assert_eq!(window.ended(), 4);
    }
}
