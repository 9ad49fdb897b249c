//! The volumes that clients use, and the clients of each.
//!
//! Invariants
//!   1. At most one volume is offered under a name: the next client of that name joins it.
//!   2. A volume gets its turn to be attached once, and only when no earlier volume of its name can have
//!      writes in flight.

use std::collections::{BTreeMap, BTreeSet};

use base::ConnectionId;
use volume::{Attached, VolumeHandle};

/// All volumes: being attached, attached, or being detached.
#[derive(Default)]
pub(super) struct Volumes {
    offered: BTreeMap<String, VolumeHandle>,
    by_handle: BTreeMap<VolumeHandle, Volume>,
    last: u64,
}

struct Volume {
    name: String,
    /// Whether the volume still waits for its turn to be attached.
    is_waiting: bool,
    attached: Option<Attached>,
    clients: BTreeSet<ConnectionId>,
}

impl Volumes {
    pub(super) fn is_empty(&self) -> bool {
        assert!(self.offered.len() <= self.by_handle.len());
        self.by_handle.is_empty()
    }

    /// The volume that the next client of this name joins.
    pub(super) fn offered(&self, name: &str) -> Option<VolumeHandle> {
        self.offered.get(name).copied()
    }

    /// Adds a volume for its first client, and offers it to the next clients.
    pub(super) fn add(&mut self, name: String, client: ConnectionId) -> VolumeHandle {
        self.last += 1;
        let handle = VolumeHandle(self.last);
        let before = self.offered.insert(name.clone(), handle);
        assert!(before.is_none(), "only one volume is offered under a name");
        let clients = BTreeSet::from([client]);
        let volume = Volume { name, is_waiting: true, attached: None, clients };
        self.by_handle.insert(handle, volume);
        handle
    }

    /// Adds a client to an offered volume. Returns whether the volume is attached.
    pub(super) fn join(&mut self, handle: VolumeHandle, client: ConnectionId) -> bool {
        let volume = self.by_handle.get_mut(&handle).expect("every offered volume exists");
        volume.clients.insert(client);
        volume.attached.is_some()
    }

    /// Removes a client. Returns whether it was the last one of its volume.
    pub(super) fn leave(&mut self, handle: VolumeHandle, client: ConnectionId) -> bool {
        let Some(volume) = self.by_handle.get_mut(&handle) else { return false };
        volume.clients.remove(&client);
        volume.clients.is_empty()
    }

    /// Returns the name to attach, if it is this volume's turn: no other volume of its name has a session
    /// that is still open. Returns the name only once.
    pub(super) fn take_turn(
        &mut self,
        handle: VolumeHandle,
        is_over: impl Fn(VolumeHandle) -> bool,
    ) -> Option<String> {
        let name = &self.by_handle[&handle].name;
        let is_before = |(other, volume): (&VolumeHandle, &Volume)| {
            *other != handle && volume.name == *name && !is_over(*other)
        };
        if self.by_handle.iter().any(is_before) {
            return None;
        }
        let volume = self.by_handle.get_mut(&handle).expect("the volume was found above");
        std::mem::take(&mut volume.is_waiting).then(|| volume.name.clone())
    }

    /// Records that the volume is attached. Returns its clients.
    pub(super) fn on_attached(
        &mut self,
        handle: VolumeHandle,
        attached: Attached,
    ) -> Vec<ConnectionId> {
        let Some(volume) = self.by_handle.get_mut(&handle) else { return Vec::new() };
        assert!(!volume.is_waiting);
        volume.attached = Some(attached);
        volume.clients.iter().copied().collect()
    }

    /// Removes a volume that cannot be attached. Returns its clients.
    pub(super) fn on_refused(&mut self, handle: VolumeHandle) -> Vec<ConnectionId> {
        self.withdraw(handle);
        let volume = self.by_handle.remove(&handle);
        volume.into_iter().flat_map(|volume| volume.clients).collect()
    }

    /// Removes a detached volume. Returns the next volume of its name, whose turn may have come.
    pub(super) fn on_detached(&mut self, handle: VolumeHandle) -> Option<VolumeHandle> {
        let volume = self.by_handle.remove(&handle)?;
        self.offered(&volume.name)
    }

    /// Returns the size of an attached volume in bytes.
    pub(super) fn size(&self, handle: VolumeHandle) -> u64 {
        self.by_handle[&handle].attached.as_ref().expect("the volume is attached").image().size
    }

    /// Stops offering a volume: the next client of its name gets a new one.
    pub(super) fn withdraw(&mut self, handle: VolumeHandle) {
        let Some(volume) = self.by_handle.get(&handle) else { return };
        if self.offered.get(&volume.name) == Some(&handle) {
            self.offered.remove(&volume.name);
        }
    }

    /// Returns the volumes without clients, which wait until all their writes are durable.
    pub(super) fn unused(&self) -> Vec<VolumeHandle> {
        let unused = self.by_handle.iter().filter(|(_, volume)| volume.clients.is_empty());
        unused.map(|(handle, _)| *handle).collect()
    }
}
