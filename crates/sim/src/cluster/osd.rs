//! An OSD's process and its disk.

use std::collections::BTreeSet;

use base::{BufferPool, ClusterId, Incarnation, OsdId, Time};
use blockstore::{CreateOptions, StoreId};
use format::disk::Superblock;
use format::door::{DiskEffect, DiskOp};
use node::Node;
use pg::Limits;

use super::disk_hang::Hang;
use super::engines::OsdEngine;
use super::plan::Plan;
use super::process::{monitor_addresses, osd_address};
use super::slow_disks::Slowness;
use crate::disk::SimDisk;
use crate::register::Moment;
use crate::store::install_store;

/// One OSD.
pub struct Osd {
    /// Its id, once a monitor has assigned one.
    pub id: Option<OsdId>,
    /// The host it runs on.
    pub host: usize,
    /// The host under which the cluster lists it.
    pub tree_host: usize,
    /// Its disk is lost, so it never runs again.
    pub is_gone: bool,
    /// It is a foreign OSD: it runs under the id of another OSD, and must be refused.
    pub is_foreign: bool,
    /// The operator has requested that it stops.
    pub is_stopping: bool,
    /// The operator does not restart it for now.
    pub stays_down: bool,
    /// It is out: no PG may be placed on it.
    pub is_out: bool,
    /// The id of its store.
    pub store: StoreId,
    /// Its disk, once the disk is created.
    pub disk: Option<SimDisk>,
    /// Its engine, once it has one.
    pub(super) engine: OsdEngine,
    /// Its process, while it runs.
    pub node: Option<Node>,
    /// The incarnation of its run, once a monitor has assigned one.
    pub incarnation: Incarnation,
    /// The layout of its disk, once its store is created.
    pub layout: Option<Superblock>,
    /// All writes up to this completion count of the disk are recorded as durable, and the record
    /// itself is durable.
    pub settled: u64,
    /// The value that `settled` gets after the next idle time.
    settling: u64,
    /// Bits that flipped outside the data area.
    pub flips: Vec<Flip>,
    /// Pages of the data area that cannot be read until they are overwritten.
    pub unreadable: BTreeSet<u64>,
    /// The time since which its running process has had no disk operation in flight.
    pub idle_since: Option<Time>,
    /// The number of disk operations in flight.
    pub in_flight: u64,
    /// The hangs of its disk.
    pub(super) hang: Hang,
    /// The slowness of its disk.
    pub(super) slowness: Slowness,
    /// The number of disk operations so far.
    pub operation_count: u64,
    /// What its last run had recorded about hangs of its disk, if that run ended in order to restart.
    pub stalls: Option<node::Stalls>,
    /// The end of a turn of its loop is scheduled.
    pub turn_due: bool,
    /// A write or flush failed: the node must stop.
    pub must_stop: bool,
    /// When it last lost power, and with it all unflushed writes.
    pub power_lost_at: Moment,
}

/// A bit that flipped.
#[derive(Clone, Copy, Debug)]
pub struct Flip {
    /// The offset of the byte on the disk.
    pub offset: u64,
    /// The bit within the byte, as a mask.
    pub mask: u8,
    /// The disk's write count when the page was last written.
    pub age: u64,
}

/// What the simulator records about a disk operation in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiskWork {
    /// A read of `length` bytes at `offset`.
    Read { offset: u64, length: u64 },
    /// A write or flush.
    Change,
    /// A reservation or discard.
    Space,
}

impl DiskWork {
    /// Returns the record for a disk effect.
    pub fn of(effect: &DiskEffect) -> DiskWork {
        match effect {
            DiskEffect::Read { offset, buffer, .. } => {
                DiskWork::Read { offset: *offset, length: buffer.len() as u64 }
            }
            DiskEffect::Write { .. } | DiskEffect::Flush { .. } => DiskWork::Change,
            DiskEffect::Reserve { .. } | DiskEffect::Discard { .. } => DiskWork::Space,
        }
    }
}

impl Osd {
    /// Returns an OSD that has no id yet.
    pub fn new(seed: u64, index: usize, host: usize) -> Osd {
        Osd {
            id: None,
            host,
            tree_host: host,
            is_gone: false,
            is_foreign: false,
            is_stopping: false,
            stays_down: false,
            is_out: false,
            store: StoreId::new((u128::from(seed) << 8) | (index as u128 + 1)),
            disk: None,
            engine: OsdEngine::new(seed, index),
            node: None,
            incarnation: Incarnation::ZERO,
            layout: None,
            settled: 0,
            settling: 0,
            flips: Vec::new(),
            unreadable: BTreeSet::new(),
            idle_since: None,
            in_flight: 0,
            hang: Hang::default(),
            slowness: Slowness::default(),
            operation_count: 0,
            stalls: None,
            turn_due: false,
            must_stop: false,
            power_lost_at: 0,
        }
    }

    /// Creates its store on a new disk.
    pub fn create(&mut self, id: OsdId, cluster: ClusterId, plan: &Plan) {
        let options = CreateOptions {
            cluster,
            osd: id,
            store: self.store,
            size: plan.osd_size,
            sector_size: plan.sector_size,
            commit: plan.commit,
            engine: None,
        };
        let mut disk = SimDisk::new(plan.osd_size, plan.sector_size);
        let layout = install_store(&mut disk, &options, plan.journal_size);
        self.layout = Some(layout);
        self.id = Some(id);
        self.disk = Some(disk);
    }

    /// Returns the settings of its store.
    pub fn store_settings(plan: &Plan) -> blockstore::Settings {
        blockstore::Settings {
            memory_bytes: 8 << 20,
            value_cache_bytes: 16 << 10,
            idle_after: base::Duration::from_millis(50),
            checkpoint_after_bytes: plan.checkpoint_after_bytes,
            is_sparse: plan.is_sparse,
            shares_space_with_engine: true,
            ..blockstore::Settings::default()
        }
    }

    /// Starts a run. `now` is the current time on its host's clock.
    pub fn start(
        &mut self,
        now: Time,
        cluster: ClusterId,
        index: usize,
        plan: &Plan,
        pool: BufferPool,
        effects: &mut Vec<node::Effect>,
    ) {
        let identity = node::Identity {
            cluster,
            osd: self.id.expect("created before it starts"),
            store: self.store.to_string(),
            monitors: monitor_addresses(plan.monitor_count),
            addresses: vec![osd_address(index)],
            peer_addresses: Vec::new(),
            pid: 100 + index as u32,
            path: format!("/sim/osd{index}"),
            host: format!("host{}", self.host),
            supervised: false,
        };
        let pg_limits = if plan.has_small_limits { Limits::SMALL } else { Limits::default() };
        let store = Osd::store_settings(plan);
        let stalls = self.stalls.take();
        self.hang.run_starts(stalls.is_some());
        let stalls = stalls.unwrap_or_default();
        let engine = self.engine.open();
        let settings =
            node::Settings { store, engine, pg_limits, stalls, ..node::Settings::default() };
        let size = self.disk.as_ref().expect("created before it starts").size();
        self.incarnation = Incarnation::ZERO;
        self.turn_due = false;
        self.must_stop = false;
        self.in_flight = 0;
        self.idle_since = None;
        self.is_stopping = false;
        self.node = Some(Node::new(identity, settings, pool, size, now, effects));
    }

    /// Handles the end of its process. From now on, idle time does not count: a store that does not run
    /// writes no journal entries.
    pub fn ends(&mut self) {
        self.node = None;
        self.idle_since = None;
        self.engine.crash();
    }

    /// Submits an operation to the disk.
    pub fn submit(&mut self, now: Time, effect: DiskEffect) -> DiskOp {
        self.note_idle(now);
        self.in_flight += 1;
        self.operation_count += 1;
        self.idle_since = None;
        if let DiskEffect::Write { offset, buffers, .. } = &effect {
            let length: u64 = buffers.iter().map(|buffer| buffer.len() as u64).sum();
            self.unreadable.retain(|page| *page < *offset || *page >= *offset + length);
        }
        self.disk.as_mut().expect("created before it starts").submit(effect)
    }

    /// Records that a disk operation has completed.
    pub fn ended(&mut self, now: Time) {
        self.in_flight -= 1;
        if self.in_flight == 0 {
            self.idle_since = Some(now);
        }
    }

    /// Updates `settled`. After 300 ms without work, the store has written an empty journal entry,
    /// which records everything before it as durable. But damage of that entry itself would look like a
    /// torn write, so the data counts as settled only after the next such entry.
    pub fn note_idle(&mut self, now: Time) {
        let long = base::Duration::from_millis(300);
        let completed = self.disk.as_ref().map_or(0, SimDisk::completed_count);
        let is_idle = self.idle_since.is_some_and(|since| now.since(since) >= long);
        if is_idle && completed > self.settling {
            self.settled = self.settling;
            self.settling = completed;
        }
    }

    /// Returns whether a read covers an unreadable page.
    pub fn is_unreadable(&self, offset: u64, length: u64) -> bool {
        self.unreadable.range(offset..offset + length).next().is_some()
    }

    /// Forgets flips in pages that have been written since.
    pub fn forget_written_flips(&mut self) {
        let Some(disk) = &self.disk else { return };
        self.flips.retain(|flip| disk.written_last(flip.offset) == flip.age);
    }

    /// Forgets the flips in the journal, which the store has handled when it opened. Damage of a
    /// checkpoint that the store does not use remains on the disk.
    pub fn settle_damage(&mut self) {
        let Some(layout) = &self.layout else { return };
        let checkpoints = layout.checkpoints.offset..layout.checkpoints.end();
        self.flips.retain(|flip| checkpoints.contains(&flip.offset));
    }

    /// Reverts the flips outside the data area that have not been overwritten. Returns whether there
    /// were any.
    pub fn heal(&mut self) -> bool {
        self.forget_written_flips();
        let flips = std::mem::take(&mut self.flips);
        let disk = self.disk.as_mut().expect("bits flip on disks");
        flips.iter().for_each(|flip| disk.heal(flip.offset, flip.mask));
        !flips.is_empty()
    }
}
