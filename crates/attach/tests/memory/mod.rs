//! A cluster in memory for tests: the answers of its one OSD and its monitor.

use std::collections::BTreeMap;

use base::checksum::{checksum_units, first_mismatch};
use base::{
    BlockSize, BufferPool, Epoch, ImageId, Incarnation, MapRevision, OsdId, PgId, PoolId, Scheme,
    SessionId, StripeIndex, UNIT_SIZE, Version,
};
use cluster::map::{FailureDomain, ImageInfo, MapDelta, OsdInfo, Pool, PoolDelta, PoolKind};
use cluster::message::{Command, Failure, FromMonitor, ToMonitor};
use format::wire::{Member, Op, Outcome, PgEntry, Refusal};
use serde_json::json;

const UNIT: usize = UNIT_SIZE as usize;

/// The blocks of one OSD.
#[derive(Default)]
pub struct MemoryOsd {
    units: BTreeMap<(StripeIndex, u32), Vec<u8>>,
    versions: BTreeMap<StripeIndex, Version>,
    /// Number of requests executed, except reads.
    pub counter: u64,
}

impl MemoryOsd {
    /// Executes an operation.
    pub fn execute(&mut self, op: &Op, pool: &BufferPool) -> Result<Outcome, Refusal> {
        match op {
            Op::Read { place, offset, length, .. } => {
                let mut data = Vec::new();
                let mut is_written = false;
                for unit in units(*offset, *length) {
                    match self.units.get(&(place.stripe, unit)) {
                        Some(bytes) => data.extend_from_slice(bytes),
                        None => data.resize(data.len() + UNIT, 0),
                    }
                    is_written |= self.units.contains_key(&(place.stripe, unit));
                }
                data.truncate(if is_written { data.len() } else { 0 });
                let mut checksums = Vec::new();
                checksum_units(&data, &mut checksums);
                let version = self.version(place.stripe);
                Ok(Outcome::Read { version, checksums, data: pool.copy_of(&data) })
            }
            Op::Write { place, offset, checksums, data, expected, lazy } => {
                if first_mismatch(data, checksums).is_some() {
                    return Err(Refusal::Corrupted);
                }
                let version = self.version(place.stripe);
                if expected.is_some_and(|expected| expected != version) {
                    return Err(Refusal::CompareFailed { version });
                }
                for (unit, bytes) in units(*offset, data.len() as u32).zip(data.chunks(UNIT)) {
                    self.units.insert((place.stripe, unit), bytes.to_vec());
                }
                Ok(self.written(place.stripe, *lazy))
            }
            Op::Zero { place, offset, length, lazy, .. } => {
                for unit in units(*offset, *length) {
                    self.units.remove(&(place.stripe, unit));
                }
                Ok(self.written(place.stripe, *lazy))
            }
            Op::Extents { place, .. } => {
                let written = |unit: &u32| self.units.contains_key(&(place.stripe, *unit));
                let bits = (0..32).filter(written).fold(0, |bits, unit| bits | 1 << unit);
                Ok(Outcome::Extents { bitmap: vec![bits] })
            }
            Op::Sync => {
                self.counter += 1;
                Ok(Outcome::Synced)
            }
            Op::ReadPart { .. } => panic!("not of pools with copies"),
            Op::DeleteRange { .. } | Op::Mutate { .. } | Op::Look { .. } | Op::List { .. } => {
                panic!("not of clients of volumes")
            }
        }
    }

    fn version(&self, stripe: StripeIndex) -> Version {
        self.versions.get(&stripe).copied().unwrap_or(Version::ZERO)
    }

    fn written(&mut self, stripe: StripeIndex, lazy: bool) -> Outcome {
        self.counter += 1;
        let version = Version { epoch: Epoch::new(1), counter: self.counter };
        self.versions.insert(stripe, version);
        Outcome::Written { version, durable: !lazy }
    }
}

fn units(offset: u32, length: u32) -> std::ops::Range<u32> {
    assert!(offset.is_multiple_of(UNIT as u32));
    assert!(length.is_multiple_of(UNIT as u32));
    offset / UNIT as u32..(offset + length) / UNIT as u32
}

/// The state of a monitor.
pub struct MemoryMonitor {
    /// Names and sizes of all volumes.
    pub volumes: BTreeMap<String, u64>,
    /// Names of the attached volumes, by session.
    pub sessions: BTreeMap<SessionId, String>,
    /// Closed sessions with a change that may still be in flight.
    pub unanswered: Vec<SessionId>,
    /// Whether the monitor leaves commands unanswered.
    pub is_silent: bool,
    /// Whether another client has the lock of every volume.
    pub is_locked: bool,
    /// Number of sessions ever opened.
    pub opened_count: u64,
    /// Whether locks are granted with lazy acknowledgement.
    pub is_lazy: bool,
    osd_address: String,
}

impl MemoryMonitor {
    /// Creates a monitor with one volume, `disk`, and one OSD.
    pub fn new(size: u64, osd_address: &str) -> MemoryMonitor {
        MemoryMonitor {
            volumes: BTreeMap::from([("disk".to_string(), size)]),
            sessions: BTreeMap::new(),
            unanswered: Vec::new(),
            is_silent: false,
            is_locked: false,
            opened_count: 0,
            is_lazy: false,
            osd_address: osd_address.to_string(),
        }
    }

    /// Returns the answer to a message.
    pub fn answer(&mut self, message: ToMonitor) -> Option<FromMonitor> {
        Some(match message {
            ToMonitor::Subscribe { .. } => FromMonitor::Map(self.map()),
            ToMonitor::Ping => FromMonitor::Pong,
            ToMonitor::OpenSession { request, image, lock, .. } => match self.volumes.get(&image) {
                None => FromMonitor::SessionRefused { request, error: unknown(&image) },
                Some(_) if lock && self.is_locked => {
                    FromMonitor::SessionRefused { request, error: locked(&image) }
                }
                Some(size) => {
                    self.opened_count += 1;
                    let session = SessionId::new(self.opened_count);
                    self.sessions.insert(session, image.clone());
                    let image = image_info(image, *size);
                    let (locked, lazy) = (lock, lock && self.is_lazy);
                    FromMonitor::SessionOpened { request, session, image, locked, lazy, reign: 0 }
                }
            },
            ToMonitor::CloseSession { session, unanswered } => {
                assert!(self.sessions.remove(&session).is_some());
                self.unanswered.extend(unanswered.then_some(session));
                FromMonitor::SessionClosed { session }
            }
            ToMonitor::Command { .. } if self.is_silent => return None,
            ToMonitor::Command { request, command } => {
                let result = match command {
                    Command::VolumeList => {
                        let rows = self.volumes.keys().map(|name| json!({ "name": name }));
                        Ok(rows.collect())
                    }
                    Command::MonitorList => Ok(json!([])),
                    Command::TaskList { .. } => Ok(json!({ "sessions": self.sessions.len() })),
                    Command::VolumeInfo { volume } => match self.volumes.get(&volume) {
                        Some(size) => Ok(json!({ "name": volume, "size_bytes": size })),
                        None => Err(unknown(&volume)),
                    },
                    other => panic!("not asked: {other:?}"),
                };
                FromMonitor::Answer { request, result }
            }
            _ => return None,
        })
    }

    fn map(&self) -> MapDelta {
        let member = Member { osd: OsdId::FIRST, incarnation: Incarnation::new(1) };
        let entry = PgEntry::new(PgId { pool: PoolId::FIRST, number: 0 }, [member]);
        let entry = PgEntry { epoch: Epoch::new(1), revision: MapRevision::new(1), ..entry };
        let osd = OsdInfo {
            id: OsdId::FIRST,
            revision: 1,
            addresses: vec![self.osd_address.clone()],
            peer_addresses: Vec::new(),
            incarnation: Incarnation::new(1),
            up: true,
            in_cluster: true,
        };
        let pool = Pool {
            id: PoolId::FIRST,
            name: "default".to_string(),
            scheme: Scheme::Copies { count: 1 },
            min_size: 1,
            pg_count: 1,
            failure_domain: FailureDomain::Osd,
            block_size: BlockSize::DEFAULT,
            kind: PoolKind::Block,
        };
        let pool = PoolDelta {
            since: MapRevision::ZERO,
            revision: MapRevision::new(1),
            pool,
            pgs: vec![entry],
            fences: Vec::new(),
            fence_ranges: Vec::new(),
        };
        MapDelta { osds: vec![osd], pools: vec![pool], ..MapDelta::default() }
    }
}

fn image_info(name: String, size: u64) -> ImageInfo {
    ImageInfo {
        id: ImageId::FIRST,
        name,
        pool: PoolId::FIRST,
        size,
        seed: ImageId::FIRST,
        parents: Vec::new(),
        gateway: false,
    }
}

fn locked(volume: &str) -> Failure {
    Failure {
        code: "locked".into(),
        message: format!("volume {volume} is locked by session 9 of nbd"),
        hint: "detach it there".into(),
    }
}

fn unknown(name: &str) -> Failure {
    Failure {
        code: "not_found".to_string(),
        message: format!("there is no volume {name}"),
        hint: String::new(),
    }
}
