//! A window of operations that begin in order and end in any order, and the counter up to which all have
//! ended.
//!
//! ```text
//!   counters   ...  41  42 | 43  44  45  46
//!                    ended | no  yes no  yes      ended up to 42, begun up to 46
//! ```
//!
//! A lazy write gives up its slot when it is answered, and ends when it is durable.
//!
//! Invariants
//!   1. `ended` never decreases. The first of `open` has not ended.

use std::collections::VecDeque;

/// The operations in flight. `S`: the slot of an operation.
pub struct Window<S> {
    /// All operations up to this counter have ended.
    ended: u64,
    /// The operations after `ended`, in order. The first has not ended.
    open: VecDeque<Stage<S>>,
    /// How many operations are answered but not durable.
    answered_count: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage<S> {
    /// In flight, with its slot.
    Open(S),
    /// Answered, but not durable.
    Answered,
    Ended,
}

impl<S: Copy + PartialEq> Window<S> {
    /// Returns a window in which all operations up to `ended` have ended.
    pub fn new(ended: u64) -> Window<S> {
        Window { ended, open: VecDeque::new(), answered_count: 0 }
    }

    /// Begins the next operation; returns its counter. [`Window::slot`] returns `slot` for it.
    pub fn begin(&mut self, slot: S) -> u64 {
        self.open.push_back(Stage::Open(slot));
        self.begun()
    }

    /// Ends an operation.
    pub fn end(&mut self, counter: u64) {
        self.leave_slot(counter, Stage::Ended);
        self.advance();
    }

    /// Notes that an operation was answered but is not durable. It ends with [`Window::settle`].
    pub fn answer(&mut self, counter: u64) {
        self.leave_slot(counter, Stage::Answered);
        self.answered_count += 1;
    }

    /// Ends all answered operations up to this counter: they are durable.
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

    /// Returns how many operations are answered but not durable.
    pub fn answered_count(&self) -> usize {
        self.answered_count
    }

    /// Returns whether an operation is answered but not durable.
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

    /// Returns the slot of an operation, if it is in flight and not answered.
    pub fn slot(&self, counter: u64) -> Option<S> {
        match self.stage(counter)? {
            Stage::Open(slot) => Some(slot),
            Stage::Answered | Stage::Ended => None,
        }
    }

    /// Returns the slots of all operations in flight that are not answered.
    pub fn slots(&self) -> impl Iterator<Item = S> + '_ {
        self.open.iter().filter_map(|stage| match stage {
            Stage::Open(slot) => Some(*slot),
            Stage::Answered | Stage::Ended => None,
        })
    }

    /// Returns the counter up to which all operations have ended.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Returns the counter of the newest operation.
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
