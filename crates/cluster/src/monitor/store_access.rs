//! How the state store is reached: ids for what it is asked, and what is wrong with it. Goes on from one
//! time of leading to the next, unlike what a [`Monitor`](super::Monitor) knows.
//!
//! Invariant: no id of a request or a watch is used twice by one process.

use crate::state::{Endpoints, StateRequest, WatchId};

/// What this process knows of its state store besides the state.
#[derive(Clone, Default)]
pub(super) struct StoreAccess {
    request_last: u64,
    watch_last: u64,
    /// Why the store cannot be asked, if it cannot; for people.
    trouble: Option<String>,
    /// Where else it does not answer, or is nearly full.
    endpoints: Endpoints,
}

impl StoreAccess {
    /// An id for the next request.
    pub(super) fn next_request(&mut self) -> StateRequest {
        self.request_last += 1;
        StateRequest(self.request_last)
    }

    /// An id for the next watch.
    pub(super) fn next_watch(&mut self) -> WatchId {
        self.watch_last += 1;
        WatchId(self.watch_last)
    }

    /// Why the store cannot be asked, if it cannot.
    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The store says how it is.
    pub(super) fn on_condition(&mut self, trouble: Option<String>) {
        self.trouble = trouble;
    }

    /// What is wrong at its addresses.
    pub(super) fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// The store says how its addresses are.
    pub(super) fn on_endpoints(&mut self, found: Endpoints) {
        self.endpoints = found;
    }
}
