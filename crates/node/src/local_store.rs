//! This OSD's store, and which caller each of its requests belongs to.
//!
//! Invariants
//!   1. Every effect of the store is handled once, in the order in which it was produced.
//!   2. A result carries the id of the call that it belongs to: a call of a PG, or one of the node's own.

use std::collections::BTreeSet;
use std::ops::Deref;

use base::{BlockSize, BufferPool, ImageId, PoolId, Time};
use blockstore::{Effect, EngineFound, Event, Request, RequestId, Settings, Store};
use pg::CallId;

use crate::pg_table::PgSlot;

/// The caller of a store request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum StoreCall {
    /// Writes the note about the cluster.
    ClusterNote,
    /// The last flush of a run.
    LastSync,
    /// The last record of a run.
    LastRecord,
    /// Removal of data that is no longer needed. Only the number of results matters.
    Reclaim,
    /// A durable rewrite of existing data, which shows that the disk responds.
    Probe,
    /// Part of the log of the state store. Only the number of results matters.
    StateNote,
    /// A portion of the check of the metadata.
    Metadata,
    /// The creation of a family of the engine.
    Family(PoolId),
    /// A call of the PG in this slot.
    Pg(PgSlot, CallId),
}

/// The id of a PG's call contains its slot, shifted by this many bits. Ids of the node's own calls are
/// smaller.
const SLOT_SHIFT: u32 = 32;
/// The id of a creation of a family has this bit, which no slot is large enough for, and the pool.
const FAMILY: u64 = 1 << 61;

impl StoreCall {
    fn id(self) -> RequestId {
        RequestId(match self {
            StoreCall::ClusterNote => 1,
            StoreCall::LastSync => 2,
            StoreCall::LastRecord => 3,
            StoreCall::Reclaim => 4,
            StoreCall::Probe => 5,
            StoreCall::StateNote => 6,
            StoreCall::Metadata => 7,
            StoreCall::Family(pool) => FAMILY | u64::from(pool.get()),
            StoreCall::Pg(slot, call) => {
                (slot.index() as u64 + 1) << SLOT_SHIFT | u64::from(call.0)
            }
        })
    }

    /// The inverse of [`StoreCall::id`].
    pub(crate) fn of(id: RequestId) -> StoreCall {
        match id.0 {
            1 => StoreCall::ClusterNote,
            2 => StoreCall::LastSync,
            3 => StoreCall::LastRecord,
            4 => StoreCall::Reclaim,
            5 => StoreCall::Probe,
            6 => StoreCall::StateNote,
            7 => StoreCall::Metadata,
            number if number & FAMILY != 0 => {
                StoreCall::Family(PoolId::new(number as u32).expect("an id of a call"))
            }
            number => {
                let place = (number >> SLOT_SHIFT).checked_sub(1).expect("an id of a call");
                StoreCall::Pg(PgSlot::new(place as usize), CallId(number as u32))
            }
        }
    }
}

/// The store. It is read as a [`Store`], and changed only through the methods here.
pub(crate) struct LocalStore {
    store: Store,
    effects: Vec<Effect>,
    /// An empty list with spare capacity, so that taking a batch allocates nothing.
    spare: Vec<Effect>,
}

impl LocalStore {
    /// Opens the store on a device of `size_bytes` bytes, with its engine if it has one.
    pub(crate) fn open(
        settings: Settings,
        pool: BufferPool,
        size_bytes: u64,
        engine: Option<EngineFound>,
    ) -> LocalStore {
        let mut effects = Vec::new();
        let store = Store::open_with(settings, pool, (size_bytes, engine), &mut effects);
        LocalStore { store, effects, spare: Vec::new() }
    }

    /// Passes an event to the store.
    pub(crate) fn apply(&mut self, now: Time, event: Event) {
        self.store.apply(now, event, &mut self.effects);
    }

    /// Sends a request to the store. The result comes as [`Effect::Done`], for some requests at once.
    pub(crate) fn ask(&mut self, now: Time, call: StoreCall, request: Request) {
        let id = call.id();
        assert!(StoreCall::of(id) == call);
        self.apply(now, Event::Request { id, request });
    }

    /// Submits everything written since the last call to the disk, as one journal write.
    pub(crate) fn submit(&mut self) {
        self.store.submit(&mut self.effects);
    }

    /// Informs the store that the event loop is running: the store measures the age of disk operations in the
    /// loop's running time.
    pub(crate) fn runs(&mut self, now: Time) {
        self.store.runs(now);
    }

    /// Informs the store that writes wait until this many bytes are ready.
    pub(crate) fn want_bytes(&mut self, now: Time, bytes: u64) {
        if self.store.want_bytes(bytes) {
            self.apply(now, Event::Tick);
        }
    }

    /// Informs the store which block sizes its PGs may write.
    pub(crate) fn expect_blocks(&mut self, sizes: impl Iterator<Item = BlockSize>) {
        self.store.expect_blocks(sizes);
    }

    /// Returns the images whose used space has changed since the last call.
    pub(crate) fn take_images_changed(&mut self) -> BTreeSet<ImageId> {
        self.store.take_images_changed()
    }

    /// Returns whether the store has effects that were not taken yet.
    pub(crate) fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// Returns the store's effects, in order. Give the list back to [`LocalStore::give_back`].
    pub(crate) fn take_effects(&mut self) -> Vec<Effect> {
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.effects, spare)
    }

    /// Keeps the memory of a list whose effects have been carried out, for reuse.
    pub(crate) fn give_back(&mut self, carried_out: Vec<Effect>) {
        assert!(carried_out.is_empty());
        self.spare = carried_out;
    }
}

impl Deref for LocalStore {
    type Target = Store;

    fn deref(&self) -> &Store {
        &self.store
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_recognised_by_its_id() {
        let own = [
            StoreCall::ClusterNote,
            StoreCall::LastSync,
            StoreCall::LastRecord,
            StoreCall::Reclaim,
            StoreCall::Probe,
            StoreCall::StateNote,
            StoreCall::Metadata,
            StoreCall::Family(PoolId::FIRST),
            StoreCall::Family(PoolId::new(77).expect("it is in range")),
        ];
        let slots = [0, 1, 4095].map(PgSlot::new);
        let of_pgs = slots
            .into_iter()
            .flat_map(|slot| [0, 1, u32::MAX].map(|call| StoreCall::Pg(slot, CallId(call))));
        for call in own.into_iter().chain(of_pgs) {
            assert_eq!(StoreCall::of(call.id()), call);
        }
    }
}
