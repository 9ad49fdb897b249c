//! How tasks wait for one another: a result, a turn, the first of two futures. All without a clock or a runtime.
//!
//! Invariants
//!   1. Turns of a key are had in the order in which they were asked for; who is dropped passes its turn on.

use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// Locks. A task that panicked leaves values of ours as they were between two of its steps.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Which of two futures ended first.
pub(crate) enum First<A, B> {
    /// The first one, also if both have.
    One(A),
    /// The second one.
    Other(B),
}

/// Waits for the first of two futures, and drops the other.
pub(crate) async fn first_of<A, B>(
    one: impl Future<Output = A>,
    other: impl Future<Output = B>,
) -> First<A, B> {
    let (mut one, mut other) = (pin!(one), pin!(other));
    poll_fn(|context| {
        if let Poll::Ready(value) = one.as_mut().poll(context) {
            return Poll::Ready(First::One(value));
        }
        other.as_mut().poll(context).map(First::Other)
    })
    .await
}

struct Slot<T> {
    value: Option<T>,
    is_over: bool,
    waker: Option<Waker>,
}

/// Gives a result to who waits for it.
pub(crate) struct Giver<T>(Arc<Mutex<Slot<T>>>);

/// Waits for a result.
pub(crate) struct Taker<T>(Arc<Mutex<Slot<T>>>);

/// Creates both ends of a result.
pub(crate) fn result<T>() -> (Giver<T>, Taker<T>) {
    let slot = Arc::new(Mutex::new(Slot { value: None, is_over: false, waker: None }));
    (Giver(slot.clone()), Taker(slot))
}

impl<T> Giver<T> {
    /// Gives it.
    pub(crate) fn give(self, value: T) {
        lock(&self.0).value = Some(value);
    }
}

impl<T> Drop for Giver<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.is_over = true;
        let waker = slot.waker.take();
        drop(slot);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl<T> Taker<T> {
    /// Waits for it. `None`: nobody gives it any more, or it was taken.
    pub(crate) async fn take(&self) -> Option<T> {
        poll_fn(|context| {
            let mut slot = lock(&self.0);
            if slot.is_over {
                return Poll::Ready(slot.value.take());
            }
            slot.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// Fair queues, one for each key that has any.
pub(crate) struct Turns<K: Ord> {
    queues: Mutex<Queues<K>>,
}

struct Queues<K> {
    next: u64,
    by_key: BTreeMap<K, VecDeque<(u64, Option<Waker>)>>,
}

/// A place in a queue.
pub(crate) struct Turn<'a, K: Ord> {
    turns: &'a Turns<K>,
    key: K,
    number: u64,
}

impl<K: Ord> Default for Turns<K> {
    fn default() -> Turns<K> {
        Turns { queues: Mutex::new(Queues { next: 0, by_key: BTreeMap::new() }) }
    }
}

impl<K: Ord + Clone> Turns<K> {
    /// Whether somebody has a place in the queue of the key.
    pub(crate) fn is_busy(&self, key: &K) -> bool {
        lock(&self.queues).by_key.contains_key(key)
    }

    /// Takes the last place in the queue of the key.
    pub(crate) fn enter(&self, key: K) -> Turn<'_, K> {
        let mut queues = lock(&self.queues);
        queues.next += 1;
        let number = queues.next;
        queues.by_key.entry(key.clone()).or_default().push_back((number, None));
        Turn { turns: self, key, number }
    }
}

impl<K: Ord> Turn<'_, K> {
    /// Waits until it is the first one.
    pub(crate) async fn wait(&self) {
        poll_fn(|context| {
            let mut queues = lock(&self.turns.queues);
            let queue = queues.by_key.get_mut(&self.key).expect("this place is in it");
            let at = queue.iter().position(|(number, _)| *number == self.number);
            match at.expect("this place is in it") {
                0 => Poll::Ready(()),
                at => {
                    queue[at].1 = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await;
    }
}

impl<K: Ord> Drop for Turn<'_, K> {
    fn drop(&mut self) {
        let mut queues = lock(&self.turns.queues);
        let Some(queue) = queues.by_key.get_mut(&self.key) else { return };
        queue.retain(|(number, _)| *number != self.number);
        let waker = queue.front_mut().and_then(|(_, waker)| waker.take());
        if queue.is_empty() {
            queues.by_key.remove(&self.key);
        }
        drop(queues);
        waker.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::memory::Runner;

    #[test]
    fn turns_come_in_the_order_in_which_they_were_asked_for() {
        let runner = Runner::new(1);
        let (turns, told) = (Arc::new(Turns::default()), Arc::new(Mutex::new(Vec::new())));
        for number in 0..20u64 {
            let (runner, turns, told) = (runner.clone(), turns.clone(), told.clone());
            runner.clone().spawn(async move {
                runner.sleep(Duration::from_millis(number)).await;
                let turn = turns.enter("key");
                // Every third one goes away before its turn.
                if number % 3 == 2 {
                    return runner.sleep(Duration::from_millis(7)).await;
                }
                turn.wait().await;
                runner.sleep(Duration::from_millis(50)).await;
                lock(&told).push(number);
            });
        }
        runner.clone().run(async move { runner.sleep(Duration::from_secs(2)).await });
        let expected: Vec<u64> = (0..20).filter(|number| number % 3 != 2).collect();
        assert_eq!(*lock(&told), expected);
        assert!(!turns.is_busy(&"key"));
    }
}
