//! A queue between the caller's thread and those of the engine. Its bound is the door's limit of requests under way.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::lock;

pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    is_closed: bool,
}

/// What `pop_within` found.
pub(super) enum Popped<T> {
    Item(T),
    /// Nothing came in time.
    Nothing,
    Closed,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Queue<T> {
        let state = State { items: VecDeque::new(), is_closed: false };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn push(&self, item: T) {
        lock(&self.state).items.push_back(item);
        self.changed.notify_one();
    }

    /// Nothing comes out any more.
    pub(super) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    /// Waits for an item. `None`: the queue is closed.
    pub(super) fn pop(&self) -> Option<T> {
        let state = self.changed.wait_while(lock(&self.state), State::must_wait);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed { None } else { state.items.pop_front() }
    }

    /// Waits for items, and takes all of them. `None`: the queue is closed.
    pub(super) fn pop_all(&self) -> Option<VecDeque<T>> {
        let state = self.changed.wait_while(lock(&self.state), State::must_wait);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed { None } else { Some(std::mem::take(&mut state.items)) }
    }

    /// Waits for an item for some time.
    pub(super) fn pop_within(&self, time: Duration) -> Popped<T> {
        let waited = self.changed.wait_timeout_while(lock(&self.state), time, State::must_wait);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.is_closed {
            return Popped::Closed;
        }
        state.items.pop_front().map_or(Popped::Nothing, Popped::Item)
    }
}

impl<T> State<T> {
    fn must_wait(&mut self) -> bool {
        self.items.is_empty() && !self.is_closed
    }
}
