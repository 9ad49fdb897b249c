//! What one seed of `sim cluster` draws before it starts.

use base::{BlockSize, MIB};
use blockstore::CommitMode;
use cluster::map::FailureDomain;

use super::net::Weather;
use crate::random::{Chance, Random};

/// Everything that is fixed for a run.
pub struct Plan {
    /// OSDs at the beginning.
    pub osd_count: usize,
    /// Hosts, over which the OSDs lie in turn.
    pub host_count: usize,
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
    /// Of the pool: copies of each block.
    pub copies: u32,
    /// Of the pool: fewest members for a write.
    pub min_size: u32,
    /// Of the pool: what copies must not share.
    pub failure_domain: FailureDomain,
    /// Clocks run fast or slow.
    pub clocks_drift: bool,
    /// Volumes that exist at a time, at most.
    pub volume_count: usize,
    /// Of a volume, at most, in units.
    pub volume_units: u64,
    /// A volume is written whole when it is attached for the first time.
    pub prefills: bool,
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
    /// How often, during a run, members lose data, and when, in milliseconds.
    pub strikes: Vec<u64>,
    /// These take more members than may go: fewer than the minimum are left.
    pub strikes_deep: bool,
    /// Of the operator's jobs: a lock is taken from its holder.
    pub unlocks: Chance,
    /// At the end a member goes while everything else is well, and how long writes stand still is
    /// measured.
    pub drill: Option<Departure>,
    /// At the end more members go for long than PGs can spare, and others take their place.
    pub loses_osds: bool,
    /// The stores are sparse files.
    pub is_sparse: bool,
    /// Of attaches: the volume's lock is wanted.
    pub locks: Chance,
    /// Most bytes that the lock's holder keeps without a sync.
    pub unsynced_size_max: u64,
    /// PGs hold little at once: lists have many pages, histories and change lists end soon.
    pub has_small_limits: bool,
    /// Monitors over one store.
    pub monitor_count: usize,
    /// The state store is the only monitor's own file: it leads without a lease.
    pub is_embedded: bool,
}

/// How a member goes in the drill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// Its process dies; its host tells so.
    Killed,
    /// Nothing comes from its host any more.
    Silent,
    /// Nor from the host of the leading monitor: it was the same one.
    SilentWithLeader,
    /// Nor from the host of a monitor that does not lead: that of the client, if it has one of these.
    SilentWithFollower,
    /// It is stopped by its operator.
    Stopped,
    /// Its disk hangs.
    DiskHangs,
}

/// How often faults happen.
#[derive(Clone, Copy)]
pub struct Faults {
    /// A process dies after one of its turns: OSD, monitor, client.
    pub osd_dies: Chance,
    /// See above.
    pub monitor_dies: Chance,
    /// See above.
    pub client_dies: Chance,
    /// Of events: several OSDs die at once.
    pub many_die: Chance,
    /// Of events: an OSD is stopped as its operator stops it.
    pub osd_stops: Chance,
    /// Of events: a process stands still for a while.
    pub freeze: Chance,
    /// Of events: a connection breaks.
    pub connection_breaks: Chance,
    /// Of events: two processes are cut off each other for a while, or one does not hear the other.
    pub partition: Chance,
    /// Of events: an OSD reaches nobody but clients for a while, and some of these do not reach the
    /// monitor.
    pub isolation: Chance,
    /// Of events: an OSD does not reach the monitors for a while, but everybody else; and some
    /// clients do not reach them either.
    pub monitor_isolation: Chance,
    /// Of events: something happens to the leading monitor.
    pub leader: Chance,
    /// A client is cut off its monitor long enough for its session to end: when, in milliseconds.
    pub client_cut_off: Option<u64>,
    /// A write or flush of a disk fails.
    pub disk_error: Chance,
    /// Of events: a bit flips on a disk, or a sector cannot be read any more.
    pub rot: Chance,
    /// A read of a disk fails, once.
    pub read_error: Chance,
    /// Of effects on the state store: the answer is that it could not be asked, or that the
    /// outcome is unknown.
    pub state: Chance,
    /// Of the operator's jobs: an OSD goes out of the cluster, or comes in again; percent.
    pub out: Chance,
}

impl Plan {
    /// Whether the volumes are larger than the disks.
    pub fn may_fill(&self) -> bool {
        self.volume_units * 4096 > self.osd_size
    }

    /// The host of the OSD with an index.
    pub fn host_of(&self, osd: usize) -> usize {
        osd % self.host_count
    }

    /// Failure domains of OSDs 0 to `osd_count - 1`.
    pub fn domain_count(&self) -> usize {
        match self.failure_domain {
            FailureDomain::Host => self.host_count,
            FailureDomain::Osd => self.osd_count,
        }
    }

    /// Draws one.
    pub fn draw(random: &mut Random) -> Plan {
        let fill = random.chance(Chance::percent(15));
        let mut shape = Shape::draw(random, fill);
        // Fillings that take long: many blocks in few PGs.
        let prefills = shape.copies > 1 && !fill && random.chance(Chance::percent(30));
        if prefills {
            shape.pg_count = shape.pg_count.min(4);
        }
        let shifts = match (fill, prefills) {
            (true, _) => [20; 4],
            (_, true) => [14; 4],
            _ => [14, 16, 17, 18],
        };
        let block_size = BlockSize::from_shift(*random.pick(&shifts)).expect("in range");
        let volume_units = match (fill, prefills) {
            (true, _) => 220 * MIB / 4096,
            (_, true) => random.range(800..3000),
            _ => random.scale(32..1500),
        };
        let faults = Faults::draw(random, &shape);
        let can_lose_one = shape.min_size < shape.copies;
        let strikes_deep =
            shape.copies > 1 && shape.min_size > 1 && random.chance(Chance::percent(30));
        let strike_count = if strikes_deep {
            1
        } else if can_lose_one {
            [0, 0, 1, 1, 2][random.index(5)]
        } else {
            0
        };
        // What rots is on one disk; so nothing else may be taken from it.
        let may_strike = faults.rot == Chance::NEVER && faults.read_error == Chance::NEVER;
        let strikes = (0..if may_strike { strike_count } else { 0 })
            .map(|_| random.scale(50..3000))
            .collect();
        let departures = [Departure::Killed, Departure::Silent, Departure::Stopped];
        let drill = (can_lose_one && !fill && random.chance(Chance::percent(30)))
            .then(|| *random.pick(&departures));
        Plan {
            osd_count: shape.osd_count,
            host_count: shape.host_count,
            client_count: random.range(2..5) as usize,
            osd_size: 128 * MIB,
            sector_size: *random.pick(&[512, 4096]),
            journal_size: *random.pick(&[2, 4, 16]) * MIB,
            checkpoint_after_bytes: random.scale(64 << 10..16 << 20),
            commit: *random.pick(&[CommitMode::Fsync, CommitMode::Immediate]),
            block_size,
            pg_count: shape.pg_count,
            copies: shape.copies,
            min_size: shape.min_size,
            failure_domain: shape.failure_domain,
            clocks_drift: random.chance(Chance::percent(60)),
            volume_count: random.range(1..4) as usize,
            volume_units,
            prefills,
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
            faults,
            strikes,
            strikes_deep,
            unlocks: Chance::percent(*random.pick(&[0, 4, 12])),
            drill,
            loses_osds: false,
            is_sparse: random.chance(Chance::percent(50)),
            locks: Chance::percent(*random.pick(&[0, 0, 10, 50, 90])),
            unsynced_size_max: *random.pick(&[1, 1, 2, 64]) * MIB,
            has_small_limits: false,
            monitor_count: 1,
            is_embedded: true,
        }
        .with_monitors(random)
    }

    fn with_monitors(mut self, random: &mut Random) -> Plan {
        self.has_small_limits = random.chance(Chance::percent(60));
        self.monitor_count = *random.pick(&[1, 1, 1, 2, 3, 3]);
        self.is_embedded = self.monitor_count == 1 && random.chance(Chance::percent(70));
        if !self.is_embedded {
            self.faults.leader = some(random, 80, 400);
        }
        if self.drill.is_some() && self.monitor_count > 1 && random.chance(Chance::percent(70)) {
            let departures = [Departure::SilentWithLeader, Departure::SilentWithFollower];
            self.drill = Some(*random.pick(&departures));
        }
        // What rotted is found only when it is read: nobody may go for good.
        let rots = self.faults.rot != Chance::NEVER || self.faults.read_error != Chance::NEVER;
        let may_go = self.min_size > 1 && !rots && !self.may_fill();
        self.loses_osds = may_go && random.chance(Chance::percent(90));
        if self.copies > 1 {
            self.faults.monitor_isolation = some(random, 40, 400);
        }
        self
    }
}

/// OSDs and how the pool lies on them.
struct Shape {
    osd_count: usize,
    host_count: usize,
    pg_count: u32,
    copies: u32,
    min_size: u32,
    failure_domain: FailureDomain,
}

impl Shape {
    fn draw(random: &mut Random, fill: bool) -> Shape {
        let copies = [1, 1, 2, 2, 2, 3, 3][random.index(7)];
        let least = u64::from(copies);
        let osd_count = random.range(least..if fill { least + 3 } else { 7 });
        let host_count = random.range(least..osd_count + 1);
        let by_osd = host_count < osd_count && random.chance(Chance::percent(50));
        let min_size = match copies {
            1 => 1,
            2 if random.chance(Chance::percent(80)) => 1,
            3 if random.chance(Chance::percent(20)) => 1,
            _ => 2,
        };
        Shape {
            osd_count: osd_count as usize,
            host_count: host_count as usize,
            pg_count: 1 << random.range(0..if copies > 1 { 6 } else { 4 }),
            copies,
            min_size,
            failure_domain: if by_osd { FailureDomain::Osd } else { FailureDomain::Host },
        }
    }
}

impl Faults {
    /// No fault happens.
    pub const NONE: Faults = Faults {
        osd_dies: Chance::NEVER,
        monitor_dies: Chance::NEVER,
        client_dies: Chance::NEVER,
        many_die: Chance::NEVER,
        osd_stops: Chance::NEVER,
        freeze: Chance::NEVER,
        connection_breaks: Chance::NEVER,
        partition: Chance::NEVER,
        isolation: Chance::NEVER,
        monitor_isolation: Chance::NEVER,
        leader: Chance::NEVER,
        client_cut_off: None,
        disk_error: Chance::NEVER,
        rot: Chance::NEVER,
        read_error: Chance::NEVER,
        state: Chance::NEVER,
        out: Chance::NEVER,
    };

    fn draw(random: &mut Random, shape: &Shape) -> Faults {
        let is_copied = shape.copies > 1;
        let rot = some(random, 30, 8_000);
        let read_error = some(random, 20, 4_000);
        // A member that goes for good takes what only it can still read.
        let may_go = is_copied && rot == Chance::NEVER && read_error == Chance::NEVER;
        let out = if may_go && random.chance(Chance::percent(40)) { 30 } else { 0 };
        // Messages between OSDs are many: as many faults are fewer of each.
        let scale = if is_copied { 2 } else { 1 };
        Faults {
            osd_dies: some(random, 80, 2_000 / scale),
            monitor_dies: some(random, 60, 10_000),
            client_dies: some(random, 40, 1_000),
            many_die: some(random, 30, 400 / scale),
            osd_stops: some(random, 40, 400 / scale),
            freeze: some(random, 40, 1_000 / scale),
            connection_breaks: some(random, 80, 4_000 / scale),
            partition: some(random, 50, 1_000 / scale),
            isolation: if is_copied { some(random, 50, 600) } else { Chance::NEVER },
            monitor_isolation: Chance::NEVER,
            leader: Chance::NEVER,
            client_cut_off: random.chance(Chance::percent(40)).then(|| random.range(100..3000)),
            disk_error: some(random, 20, 1_000),
            rot,
            read_error,
            state: some(random, 40, 100_000),
            out: Chance::percent(out),
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
