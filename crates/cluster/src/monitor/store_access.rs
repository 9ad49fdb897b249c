//! Access to the state store: ids for requests and watches, and the store's problems. This is kept from one
//! leadership of this process to the next, unlike the state of a [`Monitor`](super::Monitor).
//!
//! Invariant: no id of a request or a watch is used twice by one process.

use crate::state::{Endpoints, StateRequest, WatchId};

/// This process's view of its state store, apart from the state itself.
#[derive(Clone, Default)]
pub(super) struct StoreAccess {
    request_last: u64,
    watch_last: u64,
    /// Why the store cannot be used, as text for operators; `None`: it can be used.
    trouble: Option<String>,
    /// The addresses at which the store does not answer, or is nearly full.
    endpoints: Endpoints,
}

impl StoreAccess {
    /// Returns an id for the next request.
    pub(super) fn next_request(&mut self) -> StateRequest {
        self.request_last += 1;
        StateRequest(self.request_last)
    }

    /// Returns an id for the next watch.
    pub(super) fn next_watch(&mut self) -> WatchId {
        self.watch_last += 1;
        WatchId(self.watch_last)
    }

    /// Returns why the store cannot be used; `None`: it can be used.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Notes the condition reported by the store.
    pub(super) fn on_condition(&mut self, trouble: Option<String>) {
        self.trouble = trouble;
    }

    /// Returns the problems at the store's addresses.
    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Notes the condition of the store's addresses.
    pub(super) fn on_endpoints(&mut self, found: Endpoints) {
        self.endpoints = found;
    }
}
