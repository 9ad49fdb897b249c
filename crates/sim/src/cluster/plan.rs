//! The plan of one seed of `sim cluster`: everything that is drawn before the run starts.

use base::{BlockSize, MIB, Scheme};
use blockstore::CommitMode;
use cluster::map::FailureDomain;

use super::net::Weather;
use crate::random::{Chance, Random};

/// The smallest block size of pools with parity, as a power of two.
const PARITY_SHIFT_MIN: u8 = 16;

/// The kind of pools that are simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pools {
    /// Pools that keep one or more copies.
    Copies,
    /// Pools that keep parity.
    Parity,
}

/// The plan of a run.
pub struct Plan {
    /// The number of OSDs at the beginning.
    pub osd_count: usize,
    /// The number of hosts; OSDs are assigned to them in turn.
    pub host_count: usize,
    /// The number of clients.
    pub client_count: usize,
    /// The size of each OSD's device, in bytes.
    pub osd_size: u64,
    /// The sector size of the devices: 512 or 4096 bytes.
    pub sector_size: u32,
    /// The size of an OSD's journal, in bytes: smaller than in real use, so that it wraps often.
    pub journal_size: u64,
    /// A checkpoint begins when the journal holds this many bytes.
    pub checkpoint_after_bytes: u64,
    /// When a write is durable.
    pub commit: CommitMode,
    /// The block size of the pool.
    pub block_size: BlockSize,
    /// The number of PGs of the pool.
    pub pg_count: u32,
    /// The pool's scheme.
    pub scheme: Scheme,
    /// The pool's minimum size: the number of members needed to serve writes.
    pub min_size: u32,
    /// The failure domain: two copies of a block must not share one.
    pub failure_domain: FailureDomain,
    /// Clocks run fast or slow.
    pub clocks_drift: bool,
    /// The maximum number of volumes at a time.
    pub volume_count: usize,
    /// The largest size of a volume, in units.
    pub volume_units: u64,
    /// A volume is written completely when it is first attached.
    pub prefills: bool,
    /// The number of operations that clients start before faults end.
    pub operation_count: u64,
    /// The maximum number of pending operations of a client.
    pub depth_max: usize,
    /// The mean pause between two operations of a client, in nanoseconds.
    pub think: u64,
    /// The weights of the operations: read, write, unaligned write, discard, flush, extents.
    pub weights: [u32; 6],
    /// How long clients retry an attach, and at most an operation, in milliseconds. `None`: for ever.
    pub patience: Option<u64>,
    /// The mean time of a disk operation, in nanoseconds.
    pub disk_latency: u64,
    /// The chance that a disk operation takes a hundred times as long.
    pub slow_disk: Chance,
    /// How the network treats messages.
    pub weather: Weather,
    /// How often each fault happens.
    pub faults: Faults,
    /// The delay of each strike after the previous one, in milliseconds. In a strike, members lose
    /// data.
    pub strikes: Vec<u64>,
    /// A strike destroys so many members that fewer than the minimum remain.
    pub strikes_deep: bool,
    /// The chance that a job of the operator takes a lock from its holder.
    pub unlocks: Chance,
    /// How the member leaves in the failover drill at the end. `None`: no drill.
    pub drill: Option<Departure>,
    /// At the end, the run loses more members than PGs can spare, for a long time.
    pub loses_osds: bool,
    /// The stores are sparse files.
    pub is_sparse: bool,
    /// The chance that an attach requests the volume's lock.
    pub locks: Chance,
    /// The maximum number of bytes that a lazy client buffers without a sync.
    pub unsynced_size_max: u64,
    /// The limits of PGs are small: lists need many pages, and histories and change lists soon reach
    /// their limits.
    pub has_small_limits: bool,
    /// The number of monitors.
    pub monitor_count: usize,
    /// The state store is a file of the only monitor, which leads without a lease.
    pub is_embedded: bool,
}

/// How a member leaves in the drill.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Departure {
    /// Its process dies, and its host closes the connections.
    Killed,
    /// Its host falls silent.
    Silent,
    /// Its host falls silent, and the leading monitor was on it.
    SilentWithLeader,
    /// Its host falls silent, and a monitor that does not lead was on it: the one that the client is
    /// connected to, if possible.
    SilentWithFollower,
    /// The operator stops it.
    Stopped,
    /// Its disk hangs.
    DiskHangs,
}

/// How often each fault happens.
#[derive(Clone, Copy)]
pub struct Faults {
    /// Chance per turn of an OSD that it dies.
    pub osd_dies: Chance,
    /// Chance per turn of a monitor that it dies.
    pub monitor_dies: Chance,
    /// Chance per turn of a client that it dies.
    pub client_dies: Chance,
    /// Chance per event that several OSDs die at once.
    pub many_die: Chance,
    /// Chance per event that the operator stops an OSD.
    pub osd_stops: Chance,
    /// Chance per event that a process freezes for a while.
    pub freeze: Chance,
    /// Chance per event that a connection breaks.
    pub connection_breaks: Chance,
    /// Chance per event that two processes cannot reach each other for a while, or one cannot reach the
    /// other.
    pub partition: Chance,
    /// Chance per event that an OSD can reach only clients for a while, some of which cannot reach the
    /// monitors.
    pub isolation: Chance,
    /// Chance per event that an OSD and some clients can reach all processes except the monitors for a
    /// while.
    pub monitor_isolation: Chance,
    /// Chance per event that the leading monitor is killed, stopped, frozen or cut off.
    pub leader: Chance,
    /// The time when a client is cut off from the monitors until its session ends, in milliseconds.
    /// `None`: never.
    pub client_cut_off: Option<u64>,
    /// Chance per write or flush of a disk that it fails.
    pub disk_error: Chance,
    /// Chance per event that a bit flips on a disk, or a sector becomes unreadable.
    pub rot: Chance,
    /// Chance per read of a disk that it fails once.
    pub read_error: Chance,
    /// Chance per effect on the state store that the store does not reply, or that the outcome is
    /// unknown.
    pub state: Chance,
    /// Chance per job of the operator that it marks an OSD as out, or brings it back in.
    pub out: Chance,
}

impl Plan {
    /// Returns whether the volumes are larger than the disks.
    pub fn may_fill(&self) -> bool {
        self.volume_units * 4096 > self.osd_size
    }

    /// Returns the host of an OSD, by the OSD's index.
    pub fn host_of(&self, osd: usize) -> usize {
        osd % self.host_count
    }

    /// Returns the number of failure domains of OSDs 0 to `osd_count - 1`.
    pub fn domain_count(&self) -> usize {
        match self.failure_domain {
            FailureDomain::Host => self.host_count,
            FailureDomain::Osd => self.osd_count,
        }
    }

    /// Returns the number of members that each PG should have.
    pub fn position_count(&self) -> u32 {
        self.scheme.position_count()
    }

    /// Returns the number of members that a PG can lose without losing data.
    pub fn loss_count_max(&self) -> u32 {
        self.position_count() - self.scheme.data_count()
    }

    /// Draws a plan.
    pub fn draw(random: &mut Random, pools: Pools) -> Plan {
        let fill = random.chance(Chance::percent(15));
        let mut shape = match pools {
            Pools::Copies => Shape::draw(random, fill),
            Pools::Parity => Shape::draw_parity(random, fill),
        };
        // Makes backfills long: many blocks in few PGs.
        let prefills = shape.is_redundant() && !fill && random.chance(Chance::percent(30));
        if prefills {
            shape.pg_count = shape.pg_count.min(4);
        }
        let shifts = match (fill, prefills) {
            (true, _) => [20; 4],
            (_, true) => [14; 4],
            _ => [14, 16, 17, 18],
        };
        // With parity at least this: in the smallest no primary has room for a whole block of 128 KiB.
        let journal_size_min = if pools == Pools::Parity { 4 * MIB } else { 0 };
        // What PGs that are not active may still bring is kept free for each earlier run of a primary, up to
        // 64 MiB. With parity more primaries meet, and a small store would count as full.
        let osd_size = if pools == Pools::Parity && !fill { 1024 * MIB } else { 128 * MIB };
        let (least, most) = match pools {
            Pools::Copies => (0, u8::MAX),
            Pools::Parity => (PARITY_SHIFT_MIN, 17),
        };
        let shift = (*random.pick(&shifts)).clamp(least, most);
        let block_size = BlockSize::from_shift(shift).expect("in range");
        let volume_units = match (fill, prefills) {
            (true, _) => 220 * MIB / 4096,
            (_, true) => random.range(800..3000),
            _ => random.scale(32..1500),
        };
        let faults = Faults::draw(random, &shape);
        let can_lose_one = shape.min_size < shape.scheme.position_count();
        let strikes_deep =
            shape.is_redundant() && shape.min_size > 1 && random.chance(Chance::percent(30));
        let strike_count = if strikes_deep {
            1
        } else if can_lose_one {
            [0, 0, 1, 1, 2][random.index(5)]
        } else {
            0
        };
        // Rot may already have damaged one copy, so no strike may destroy another.
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
            osd_size,
            sector_size: *random.pick(&[512, 4096]),
            journal_size: (*random.pick(&[2, 4, 16]) * MIB).max(journal_size_min),
            checkpoint_after_bytes: random.scale(64 << 10..16 << 20),
            commit: *random.pick(&[CommitMode::Fsync, CommitMode::Immediate]),
            block_size,
            pg_count: shape.pg_count,
            scheme: shape.scheme,
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

    /// Changes the plan for OSDs of an older version, which carry out no change in pieces: each primary needs
    /// room for a block in every member's journal.
    pub fn with_whole_blocks(&mut self) {
        self.journal_size = self.journal_size.max(16 * MIB);
        if self.osd_count >= 8 {
            self.block_size = BlockSize::from_shift(PARITY_SHIFT_MIN).expect("in range");
        }
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
        // Rot is found only when the data is read: no member may leave permanently, because its copy
        // may be the last good one.
        let rots = self.faults.rot != Chance::NEVER || self.faults.read_error != Chance::NEVER;
        let may_go = self.min_size > 1 && !rots && !self.may_fill();
        self.loses_osds = may_go && random.chance(Chance::percent(90));
        if self.position_count() > 1 {
            self.faults.monitor_isolation = some(random, 40, 400);
        }
        self
    }
}

/// The OSDs, and how the pool is placed on them.
struct Shape {
    osd_count: usize,
    host_count: usize,
    pg_count: u32,
    scheme: Scheme,
    min_size: u32,
    failure_domain: FailureDomain,
}

impl Shape {
    fn draw(random: &mut Random, fill: bool) -> Shape {
        let copies: u8 = [1, 1, 2, 2, 2, 3, 3][random.index(7)];
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
            scheme: Scheme::Copies { count: copies },
            min_size,
            failure_domain: if by_osd { FailureDomain::Osd } else { FailureDomain::Host },
        }
    }
}

impl Shape {
    /// Returns whether a PG survives the loss of a member.
    fn is_redundant(&self) -> bool {
        self.scheme.position_count() > 1
    }

    fn draw_parity(random: &mut Random, fill: bool) -> Shape {
        let scheme = *random.pick(&[
            Scheme::Xor { data: 2 },
            Scheme::ReedSolomon { data: 2, parity: 1 },
            Scheme::ReedSolomon { data: 2, parity: 2 },
            Scheme::ReedSolomon { data: 3, parity: 2 },
            Scheme::ReedSolomon { data: 4, parity: 2 },
        ]);
        let least = u64::from(scheme.position_count());
        let osd_count = random.range(least..least + if fill { 2 } else { 4 });
        let host_count = random.range(least..osd_count + 1);
        let by_osd = host_count < osd_count && random.chance(Chance::percent(50));
        Shape {
            osd_count: osd_count as usize,
            host_count: host_count as usize,
            pg_count: 1 << random.range(0..5),
            scheme,
            min_size: scheme.min_size_default(),
            failure_domain: if by_osd { FailureDomain::Osd } else { FailureDomain::Host },
        }
    }
}

impl Faults {
    /// Faults with all chances at zero.
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
        let is_copied = shape.is_redundant();
        let rot = some(random, 30, 8_000);
        let read_error = some(random, 20, 4_000);
        // A member that leaves permanently may take the last readable copy of rotted data with it.
        let may_go = is_copied && rot == Chance::NEVER && read_error == Chance::NEVER;
        let out = if may_go && random.chance(Chance::percent(40)) { 30 } else { 0 };
        // With copies, OSDs exchange many more messages: a smaller chance gives the same number of
        // faults.
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

/// Returns a chance of up to `most` millionths in `percent` of seeds, and never otherwise.
fn some(random: &mut Random, percent: u32, most: u64) -> Chance {
    if random.chance(Chance::percent(percent)) {
        Chance(random.scale((most / 20).max(1)..most) as u32)
    } else {
        Chance::NEVER
    }
}
