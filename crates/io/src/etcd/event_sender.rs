//! Sends events from tasks to the owner of the store: through a channel, followed by a call that wakes the
//! owner.

use std::cell::RefCell;
use std::sync::mpsc::Sender;

use cluster::state::StateEvent;

/// Sends events to the owner of the store.
pub(super) struct EventSender {
    sender: Sender<StateEvent>,
    wake: Box<dyn Fn()>,
    /// Why etcd cannot be used, as last reported; `None` if it can.
    trouble: RefCell<Option<String>>,
}

impl EventSender {
    /// Creates a sender that calls `wake` after each event.
    pub(super) fn new(sender: Sender<StateEvent>, wake: impl Fn() + 'static) -> EventSender {
        EventSender { sender, wake: Box::new(wake), trouble: RefCell::new(None) }
    }

    pub(super) fn send(&self, event: StateEvent) {
        // Sending fails only if the owner is gone; then this thread is about to end.
        let _ = self.sender.send(event);
        (self.wake)();
    }

    /// Reports why etcd cannot be used (`None`: it can), but only if that has changed since the last
    /// report.
    pub(super) fn report_condition(&self, trouble: Option<String>) {
        if *self.trouble.borrow() != trouble {
            *self.trouble.borrow_mut() = trouble.clone();
            self.send(StateEvent::Condition { trouble });
        }
    }
}

impl Drop for EventSender {
    fn drop(&mut self) {
        // After a panic this makes the owner poll and notice that the thread has ended.
        (self.wake)();
    }
}
