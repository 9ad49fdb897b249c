//! What one seed of `sim cluster` draws before it starts.

use base::{BlockSize, MIB};
use blockstore::CommitMode;

use super::net::Weather;
use crate::random::{Chance, Random};

/// Everything that is fixed for a run.
pub struct Plan {
    /// OSDs.
    pub osd_count: usize,
    /// Clients.
    pub client_count: usize,
    /// Of each OSD's device, in bytes.
    pub osd_size: u64,
    /// 512 or 4096, by OSD.
    pub sector_size: u32,
    /// Of an OSD's journal: smaller than a user's, so that it goes round often.
    pub journal_size: u64,
    /// A checkpoint begins when the journal holds so many bytes.
    pub checkpoint_after_bytes: u64,
    /// When a write is durable.
    pub commit: CommitMode,
    /// Of the pool.
    pub block_size: BlockSize,
    /// Of the pool.
    pub pg_count: u32,
    /// Volumes that exist at a time, at most.
    pub volume_count: usize,
    /// Of a volume, at most, in units.
    pub volume_units: u64,
    /// Operations of clients before the end.
    pub operation_count: u64,
    /// Open operations of a client, at most.
    pub depth_max: usize,
    /// Between a client's operations, usually; in nanoseconds.
    pub think: u64,
    /// Of operations: read, write, unaligned write, discard, flush, extents.
    pub weights: [u32; 6],
    /// How long clients try, in milliseconds; `None`: for ever.
    pub patience: Option<u64>,
    /// How long an operation on a disk takes, usually; in nanoseconds.
    pub disk_latency: u64,
    /// An operation of a disk takes a hundred times as long.
    pub slow_disk: Chance,
    /// Of messages.
    pub weather: Weather,
    /// Faults.
    pub faults: Faults,
    /// The stores are sparse files.
    pub is_sparse: bool,
}

/// How often faults happen.
#[derive(Clone, Copy)]
pub struct Faults {
    /// A process dies after an effect: OSD, monitor, client.
    pub osd_dies: Chance,
    /// See above.
    pub monitor_dies: Chance,
    /// See above.
    pub client_dies: Chance,
    /// Of events: a connection breaks.
    pub connection_breaks: Chance,
    /// Of events: two processes are cut off each other for a while.
    pub partition: Chance,
    /// A client is cut off its monitor long enough for its session to end: when, in milliseconds.
    pub divorce: Option<u64>,
    /// A write or flush of a disk fails.
    pub disk_error: Chance,
    /// Of events: a bit flips on a disk, or a sector cannot be read any more.
    pub rot: Chance,
    /// A read of a disk fails, once.
    pub read_error: Chance,
    /// Of effects on the state store: the answer is that it could not be asked, or that the
    /// outcome is unknown.
    pub state: Chance,
}

impl Plan {
    /// Whether the volumes are larger than the disks.
    pub fn may_fill(&self) -> bool {
        self.volume_units * 4096 > self.osd_size
    }

    /// Draws one.
    pub fn draw(random: &mut Random) -> Plan {
        let fill = random.chance(Chance::percent(10));
        let shifts = if fill { [20; 4] } else { [14, 16, 17, 18] };
        let block_size = BlockSize::from_shift(*random.pick(&shifts)).expect("in range");
        let volume_units = if fill { 220 * MIB / 4096 } else { random.scale(32..1500) };
        Plan {
            osd_count: if fill { 1 } else { random.range(1..4) as usize },
            client_count: random.range(2..5) as usize,
            osd_size: 128 * MIB,
            sector_size: *random.pick(&[512, 4096]),
            journal_size: *random.pick(&[2, 4, 16]) * MIB,
            checkpoint_after_bytes: random.scale(64 << 10..16 << 20),
            commit: *random.pick(&[CommitMode::Fsync, CommitMode::Immediate]),
            block_size,
            pg_count: 1 << random.range(0..4),
            volume_count: random.range(1..4) as usize,
            volume_units,
            operation_count: random.range(1000..1300),
            depth_max: random.scale(1..24) as usize,
            think: random.scale(1_000_000..30_000_000),
            weights: [
                random.range(10..30) as u32,
                random.range(20..40) as u32,
                random.range(0..15) as u32,
                random.range(0..10) as u32,
                random.range(0..5) as u32,
                random.range(0..4) as u32,
            ],
            disk_latency: random.scale(5_000..2_000_000),
            patience: random.chance(Chance::percent(25)).then(|| random.scale(200..20_000)),
            slow_disk: some(random, 30, 20_000),
            weather: Weather {
                latency: random.scale(10_000..2_000_000),
                delay: some(random, 50, 20_000),
                corrupt_payload: some(random, 20, 10_000),
                corrupt_frame: some(random, 20, 5_000),
            },
            faults: Faults::draw(random),
            is_sparse: random.chance(Chance::percent(50)),
        }
    }
}

impl Faults {
    /// No fault happens.
    pub const NONE: Faults = Faults {
        osd_dies: Chance::NEVER,
        monitor_dies: Chance::NEVER,
        client_dies: Chance::NEVER,
        connection_breaks: Chance::NEVER,
        partition: Chance::NEVER,
        divorce: None,
        disk_error: Chance::NEVER,
        rot: Chance::NEVER,
        read_error: Chance::NEVER,
        state: Chance::NEVER,
    };

    fn draw(random: &mut Random) -> Faults {
        Faults {
            osd_dies: some(random, 80, 2_000),
            monitor_dies: some(random, 60, 10_000),
            client_dies: some(random, 40, 1_000),
            connection_breaks: some(random, 80, 4_000),
            partition: some(random, 50, 1_000),
            divorce: random.chance(Chance::percent(40)).then(|| random.range(100..3000)),
            disk_error: some(random, 20, 1_000),
            rot: some(random, 30, 8_000),
            read_error: some(random, 20, 4_000),
            state: some(random, 40, 100_000),
        }
    }
}

/// In so many percent of seeds up to so many of a million; else never.
fn some(random: &mut Random, percent: u32, most: u64) -> Chance {
    if random.chance(Chance::percent(percent)) {
        Chance(random.scale((most / 20).max(1)..most) as u32)
    } else {
        Chance::NEVER
    }
}
