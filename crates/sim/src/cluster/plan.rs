//! The plan of one seed of `sim cluster`: everything that is drawn before the run starts.

use base::{BlockSize, MIB, Scheme};
use blockstore::CommitMode;
use cluster::map::FailureDomain;

use super::net::Weather;
use crate::random::{Chance, Random};

/// Blocks of pools with parity have at least so many bytes, as a power of two.
const PARITY_SHIFT_MIN: u8 = 16;

/// The kind of pools that are simulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pools {
    /// They keep one or several copies.
    Copies,
    /// They keep parity.
    Parity,
}

/// The plan of a run.
pub struct Plan {
    /// The number of OSDs at the beginning.
    pub osd_count: usize,
    /// How many hosts the OSDs are spread over, in turn.
    pub host_count: usize,
    /// How many clients there are.
    pub client_count: usize,
    /// The size of each OSD's device, in bytes.
    pub osd_size: u64,
    /// The sector size of the devices: 512 or 4096 bytes.
    pub sector_size: u32,
    /// The size of an OSD's journal: smaller than in real use, so that it wraps often.
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
    /// The pool's minimum size: the fewest members that may serve writes.
    pub min_size: u32,
    /// What two copies of a block must not share.
    pub failure_domain: FailureDomain,
    /// Clocks run fast or slow.
    pub clocks_drift: bool,
    /// The maximum number of volumes at a time.
    pub volume_count: usize,
    /// The largest size of a volume, in units.
    pub volume_units: u64,
    /// A volume is written completely when it is attached for the first time.
    pub prefills: bool,
    /// How many operations clients start before faults end.
    pub operation_count: u64,
    /// The maximum number of open operations of a client.
    pub depth_max: usize,
    /// The mean pause between two operations of a client, in nanoseconds.
    pub think: u64,
    /// The weights by which operations are drawn: read, write, unaligned write, discard, flush,
    /// extents.
    pub weights: [u32; 6],
    /// How long clients retry, in milliseconds. `None`: for ever.
    pub patience: Option<u64>,
    /// The mean time of a disk operation, in nanoseconds.
    pub disk_latency: u64,
    /// How often a disk operation takes a hundred times as long.
    pub slow_disk: Chance,
    /// How the network treats messages.
    pub weather: Weather,
    /// How often faults happen.
    pub faults: Faults,
    /// The strikes, in which members lose data: the delay of each after the previous one, in
    /// milliseconds.
    pub strikes: Vec<u64>,
    /// A strike takes so many members that fewer than the minimum remain.
    pub strikes_deep: bool,
    /// How often the operator's job is to take a lock from its holder.
    pub unlocks: Chance,
    /// The failover drill at the end, by how the member leaves. `None`: no drill.
    pub drill: Option<Departure>,
    /// At the end, run the scenario in which more members than PGs can spare are lost for a long
    /// time.
    pub loses_osds: bool,
    /// The stores are sparse files.
    pub is_sparse: bool,
    /// How often an attach requests the volume's lock.
    pub locks: Chance,
    /// The maximum number of bytes that a lazy client keeps without a sync.
    pub unsynced_size_max: u64,
    /// The limits of PGs are small: lists have many pages, and histories and change lists soon
    /// reach their ends.
    pub has_small_limits: bool,
    /// How many monitors there are.
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
    /// Its host falls silent, and a monitor that does not lead was on it: the client's, if possible.
    SilentWithFollower,
    /// The operator stops it.
    Stopped,
    /// Its disk hangs.
    DiskHangs,
}

/// How often each fault happens.
#[derive(Clone, Copy)]
pub struct Faults {
    /// Per turn of an OSD: it dies.
    pub osd_dies: Chance,
    /// Per turn of a monitor: it dies.
    pub monitor_dies: Chance,
    /// Per turn of a client: it dies.
    pub client_dies: Chance,
    /// Per event: several OSDs die at once.
    pub many_die: Chance,
    /// Per event: the operator stops an OSD.
    pub osd_stops: Chance,
    /// Per event: a process freezes for a while.
    pub freeze: Chance,
    /// Per event: a connection breaks.
    pub connection_breaks: Chance,
    /// Per event: two processes cannot reach each other for a while, or one cannot reach the other.
    pub partition: Chance,
    /// Per event: for a while an OSD reaches only clients, some of which do not reach the monitor.
    pub isolation: Chance,
    /// Per event: for a while an OSD and some clients reach everybody except the monitors.
    pub monitor_isolation: Chance,
    /// Per event: the leading monitor is killed, stopped, frozen or cut off.
    pub leader: Chance,
    /// When a client is cut off from the monitors until its session ends, in milliseconds. `None`:
    /// never.
    pub client_cut_off: Option<u64>,
    /// Per write or flush of a disk: it fails.
    pub disk_error: Chance,
    /// Per event: a bit flips on a disk, or a sector becomes unreadable.
    pub rot: Chance,
    /// Per read of a disk: it fails once.
    pub read_error: Chance,
    /// Per effect on the state store: the store does not answer, or the outcome is unknown.
    pub state: Chance,
    /// Per job of the operator: it takes an OSD out, or in again.
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

    /// Returns how many members each PG is to have.
    pub fn position_count(&self) -> u32 {
        self.scheme.position_count()
    }

    /// Returns how many members of a PG can be lost without losing data.
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
        // Long backfills: many blocks in few PGs.
        let prefills = shape.is_redundant() && !fill && random.chance(Chance::percent(30));
        if prefills {
            shape.pg_count = shape.pg_count.min(4);
        }
        let shifts = match (fill, prefills) {
            (true, _) => [20; 4],
            (_, true) => [14; 4],
            _ => [14, 16, 17, 18],
        };
        // The largest version must fit into the part of the journal that is for prepared versions.
        let journal_size_min = if pools == Pools::Parity { 16 * MIB } else { 0 };
        let least = if pools == Pools::Parity { PARITY_SHIFT_MIN } else { 0 };
        let shift = (*random.pick(&shifts)).max(least);
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
        // Rot may already have damaged one copy, so nothing else may damage another.
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
        // Rot is found only when the data is read: no member may leave for good.
        let rots = self.faults.rot != Chance::NEVER || self.faults.read_error != Chance::NEVER;
        // Learners of pools with parity are not filled while too few members are there.
        let is_filled = self.scheme.is_whole_everywhere();
        let may_go = self.min_size > 1 && is_filled && !rots && !self.may_fill();
        self.loses_osds = may_go && random.chance(Chance::percent(90));
        if self.position_count() > 1 {
            self.faults.monitor_isolation = some(random, 40, 400);
        }
        self
    }
}

/// The OSDs, and how the pool is spread over them.
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
        let is_copied = shape.is_redundant();
        let rot = some(random, 30, 8_000);
        let read_error = some(random, 20, 4_000);
        // A member that leaves for good would take data that only it can still read.
        let may_go = is_copied && rot == Chance::NEVER && read_error == Chance::NEVER;
        let out = if may_go && random.chance(Chance::percent(40)) { 30 } else { 0 };
        // There are many messages between OSDs: the same number of faults needs a smaller chance.
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
