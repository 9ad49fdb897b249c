//! The plan of one seed of `sim store`, drawn before the run starts: the shape of the store, the mix of
//! operations, and the faults. Each seed leaves out most kinds of faults and has many faults of the other
//! kinds.

use base::{BlockSize, Duration, MIB};
use blockstore::CommitMode;

use crate::random::{Chance, Random};

/// The plan of a run.
pub struct Plan {
    /// The size of the device, in bytes.
    pub size: u64,
    /// The sector size: 512 or 4096 bytes.
    pub sector_size: u32,
    /// Whether a write is durable at once, or only after a flush.
    pub commit: CommitMode,
    /// Memory for the store's caches, in bytes.
    pub memory_bytes: u64,
    /// How long the store must be idle before it records everything as durable.
    pub idle_after: Duration,
    /// A checkpoint begins when the journal holds this many bytes.
    pub checkpoint_after_bytes: u64,
    /// The size of the journal, in bytes: smaller than in real use, so that it wraps often.
    pub journal_size: u64,
    /// The number of operations that are requested before the end of the run.
    pub operation_count: u64,
    /// The maximum number of operations in flight.
    pub depth_max: usize,
    /// Whether reads wait for pending changes of their block, as in a PG.
    pub polite: bool,
    /// The weights of the operations on blocks, in the order of [`super::OPERATIONS`].
    pub weights: [u32; 10],
    /// Probability that a write or zero is lazy.
    pub lazy: Chance,
    /// The weights of the sizes of writes: a few units, any size, at least 64 KiB, a whole block.
    pub write_weights: [u32; 4],
    /// The pools.
    pub pools: Vec<PoolPlan>,
    /// The usual time of a disk operation, in nanoseconds.
    pub latency: u64,
    /// Probability that a disk operation takes a hundred times as long.
    pub slow: Chance,
    /// Probability of the same for reads and flushes, if higher.
    pub slow_read: Chance,
    /// How often each fault happens.
    pub faults: Faults,
    /// Whether the store is a sparse file.
    pub is_sparse: bool,
    /// The free bytes of the sparse file's file system, if that may run out of space.
    pub host_bytes: Option<u64>,
    /// Whether blocks of the first pool fill the store and are then mostly deleted, to make room for
    /// the second pool.
    pub is_mixed: bool,
    /// Probability that versions are committed before an operation of a pool that keeps parity.
    pub commits: Chance,
    /// Whether half of the PGs commit nothing for half of the run.
    pub has_stuck: bool,
    /// Probability, at each opportunity, that a PG is not settled yet although peering has prepared
    /// everything.
    pub peering_pause: Chance,
    /// Probability that instead of a plain settle, whole blocks are written, then taken back, and
    /// others written.
    pub takes_back: Chance,
    /// Probability that a commit is followed by a write of a whole block and a repair of another block.
    pub mends_behind_commit: Chance,
    /// Probability per event that the power fails shortly after a settle that takes versions back, or a
    /// commit that is followed by a repair.
    pub power_then: Chance,
    /// The user checks the next portion of the store's metadata.
    pub checks_metadata: Chance,
}

/// The plan of one pool.
pub struct PoolPlan {
    /// Its block size.
    pub block_size: BlockSize,
    /// The number of PGs, a power of two.
    pub pg_count: u32,
    /// The number of blocks used, all in one image.
    pub stripe_count: u32,
    /// Whether its versions are prepared before they become stable.
    pub keeps_parity: bool,
    /// The number of rows in part tables, if its blocks are parity parts. 0: they are data parts.
    pub table_rows: u8,
}

/// How often faults happen, as a chance per event or per disk operation.
pub struct Faults {
    /// The power fails while the store is open.
    pub power: Chance,
    /// The process dies while the store is open.
    pub kill: Chance,
    /// The power fails or the process dies while the store opens.
    pub opening: Chance,
    /// A write or a flush fails.
    pub write_error: Chance,
    /// A read fails; a retry succeeds.
    pub read_error: Chance,
    /// A sector becomes unreadable.
    pub unreadable: Chance,
    /// A sector becomes unreadable at a crash.
    pub unreadable_at_crash: Chance,
    /// A write of data, or a reservation, fails because the file system is full.
    pub no_space: Chance,
    /// Other users of the file system take or free space.
    pub host_use: Chance,
    /// A write of data is reported as done, but is lost or goes to another position.
    pub lying: Chance,
    /// Bits flip in the data area.
    pub rot_data: Chance,
    /// Bits flip in the journal.
    pub rot_journal: Chance,
    /// Bits flip in the checkpoint area or in one superblock.
    pub rot_checkpoint: Chance,
}

impl Plan {
    /// Draws a plan.
    pub fn draw(random: &mut Random) -> Plan {
        let fill = random.chance(Chance::percent(15));
        let pool_count = random.range(1..4);
        let block_sizes = [14, 16, 17, 17, 18, 20];
        let pools = (0..pool_count).map(|_| {
            let block_size = BlockSize::from_shift(*random.pick(&block_sizes)).expect("in range");
            let most = if fill { 200 * MIB / block_size.bytes() } else { 120 };
            PoolPlan {
                block_size,
                pg_count: 1 << random.below(4),
                stripe_count: random.scale(if fill { most / 2 } else { 2 }..most + 1) as u32,
                keeps_parity: false,
                table_rows: 0,
            }
        });
        let pools = pools.collect();
        let mut plan = Plan {
            size: if fill { 128 * MIB } else { *random.pick(&[128, 160, 256]) * MIB },
            sector_size: *random.pick(&[512, 4096]),
            commit: *random.pick(&[CommitMode::Fsync, CommitMode::Immediate]),
            memory_bytes: *random.pick(&[4, 16, 64]) * MIB,
            idle_after: Duration::from_millis(random.scale(1..200)),
            checkpoint_after_bytes: random.scale(64 << 10..16 << 20),
            journal_size: *random.pick(&[2, 3, 4, 16]) * MIB,
            operation_count: random.range(1000..1400),
            depth_max: random.scale(1..64) as usize,
            polite: random.chance(Chance::percent(60)),
            weights: [
                random.range(20..60) as u32,
                random.range(0..10) as u32,
                random.range(0..8) as u32,
                random.range(10..40) as u32,
                random.range(1..5) as u32,
                random.range(0..6) as u32,
                random.range(0..3) as u32,
                random.range(0..3) as u32,
                random.range(0..8) as u32,
                random.range(0..20) as u32,
            ],
            lazy: if random.chance(Chance::percent(50)) {
                Chance::percent(random.range(5..100) as u32)
            } else {
                Chance::NEVER
            },
            write_weights: [
                20,
                random.range(1..8) as u32,
                random.range(0..6) as u32,
                random.range(if fill { 4 } else { 0 }..8) as u32,
            ],
            pools,
            latency: random.scale(5_000..500_000),
            slow: some(random, 30, 20_000),
            slow_read: Chance::NEVER,
            faults: Faults::draw(random),
            is_sparse: random.chance(Chance::percent(50)),
            host_bytes: None,
            is_mixed: false,
            commits: Chance::NEVER,
            has_stuck: false,
            peering_pause: Chance::NEVER,
            takes_back: Chance::NEVER,
            mends_behind_commit: Chance::NEVER,
            power_then: Chance::NEVER,
            checks_metadata: Chance::NEVER,
        };
        if random.chance(Chance::percent(15)) {
            plan.mix(random);
        }
        if plan.is_sparse && random.chance(Chance::percent(40)) {
            plan.host_bytes = Some(random.scale(1..64) * MIB);
            plan.faults.host_use = Chance(random.scale(100..5_000) as u32);
        }
        if random.chance(Chance::percent(20)) {
            plan.faults.unreadable = Chance(random.scale(50..1_000) as u32);
            plan.faults.unreadable_at_crash = Chance::percent(random.range(5..20) as u32);
        }
        plan
    }

    /// Makes pools keep parity, in a third of the seeds. In a quarter of these seeds the medium rots;
    /// in the others nothing is damaged.
    pub fn add_parity(&mut self, random: &mut Random) {
        if !random.chance(Chance::percent(35)) {
            return;
        }
        for pool in &mut self.pools {
            pool.keeps_parity = random.chance(Chance::percent(70));
        }
        self.pools[0].keeps_parity = true;
        for pool in self.pools.iter_mut().filter(|pool| pool.keeps_parity) {
            pool.table_rows = *random.pick(&[0, 1, 4, 4, 16, 16]);
        }
        self.commits = Chance::percent(*random.pick(&[5, 30, 80]));
        self.has_stuck = random.chance(Chance::percent(50));
        self.peering_pause = Chance::percent(*random.pick(&[30, 30, 95]));
        self.takes_back = Chance::percent(*random.pick(&[10, 40, 80]));
        self.mends_behind_commit = Chance::percent(*random.pick(&[0, 5, 20]));
        self.power_then = Chance::percent(*random.pick(&[2, 5, 10]));
        // With a small journal, each PG's share would have no room for a single entry.
        self.journal_size = self.journal_size.max(4 * MIB);
        let faults = &mut self.faults;
        (faults.unreadable, faults.unreadable_at_crash) = (Chance::NEVER, Chance::NEVER);
        (faults.lying, faults.rot_data) = (Chance::NEVER, Chance::NEVER);
        (faults.rot_journal, faults.rot_checkpoint) = (Chance::NEVER, Chance::NEVER);
        if !random.chance(Chance::percent(25)) {
            return;
        }
        faults.rot_data = Chance(random.scale(100..3_000) as u32);
        faults.rot_journal = some(random, 50, 2_000);
        faults.rot_checkpoint = some(random, 20, 1_000);
        if random.chance(Chance::percent(30)) {
            faults.unreadable = Chance(random.scale(50..1_000) as u32);
            faults.unreadable_at_crash = Chance::percent(random.range(5..20) as u32);
        }
    }

    /// Makes the user check the store's metadata, in half of the seeds.
    pub fn add_checks(&mut self, random: &mut Random) {
        if random.chance(Chance::percent(50)) {
            self.checks_metadata = Chance::percent(*random.pick(&[2, 10, 30]));
        }
    }

    /// Makes this a plan with two block sizes, where blocks of the first size occupy nearly all
    /// segments for a while.
    fn mix(&mut self, random: &mut Random) {
        self.is_mixed = true;
        self.size = 128 * MIB;
        let first = *random.pick(&[17, 17, 18]);
        let others: Vec<u8> =
            [14, 16, 17, 20].into_iter().filter(|shift| *shift != first).collect();
        let pool = |shift: u8, bytes: u64| {
            let block_size = BlockSize::from_shift(shift).expect("in range");
            let stripe_count = (bytes / block_size.bytes()) as u32;
            PoolPlan { block_size, pg_count: 2, stripe_count, keeps_parity: false, table_rows: 0 }
        };
        let second = pool(*random.pick(&others), 64 * MIB);
        self.pools = vec![pool(first, 100 * MIB), second];
        self.operation_count += 3 * u64::from(self.pools[0].stripe_count);
        // Fewer crashes: the run takes long, and each restart reads the whole store.
        self.faults.power.0 = self.faults.power.0.min(800);
        self.faults.kill.0 = self.faults.kill.0.min(400);
        self.depth_max = self.depth_max.max(16);
        // Reads and flushes are slow, so that blocks change while they are being moved, and space is
        // reused before a flush.
        self.slow_read = Chance::percent(random.range(5..40) as u32);
    }
}

impl Faults {
    fn draw(random: &mut Random) -> Faults {
        Faults {
            power: Chance(random.scale(300..3_000) as u32),
            kill: some(random, 50, 2_000),
            opening: some(random, 60, 50_000),
            write_error: some(random, 30, 3_000),
            read_error: some(random, 20, 20_000),
            no_space: some(random, 20, 20_000),
            host_use: Chance::NEVER,
            unreadable: Chance::NEVER,
            unreadable_at_crash: Chance::NEVER,
            lying: some(random, 25, 60_000),
            rot_data: some(random, 15, 3_000),
            rot_journal: some(random, 20, 2_000),
            rot_checkpoint: some(random, 20, 2_000),
        }
    }
}

/// Draws a chance of up to `most` millionths in `percent` of the seeds, and never otherwise.
fn some(random: &mut Random, percent: u32, most: u64) -> Chance {
    if random.chance(Chance::percent(percent)) {
        Chance(random.scale((most / 20).max(1)..most) as u32)
    } else {
        Chance::NEVER
    }
}
