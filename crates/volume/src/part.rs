//! One part of a request: one operation of one OSD, and how far it has come.

use std::ops::Range;

use base::checksum::{checksum_units, first_mismatch};
use base::{
    Buffer, BufferPool, Checksum, Duration, Epoch, OsdId, PgId, PoolId, StripeIndex, Time,
    UNIT_SIZE, Version,
};
use cluster::map::ImageInfo;
use format::wire::{Op, Place};

use crate::VolumeHandle;
use crate::cut::units_around;
use crate::routes::Target;
use crate::table::RequestKey;

/// First delay before a refused part is sent again.
pub(crate) const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
/// Longest delay before a refused part is sent again.
pub(crate) const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// Answers that do not match their checksums until a read fails as damaged.
pub(crate) const MISMATCH_COUNT_MAX: u32 = 5;

/// A part that is not done.
pub(crate) struct Part {
    pub(crate) request: RequestKey,
    pub(crate) volume: VolumeHandle,
    /// Its place in the request, from 0.
    pub(crate) index: u32,
    pub(crate) pool: PoolId,
    pub(crate) target: Target,
    /// Stripe 0 for a sync, which has none.
    pub(crate) stripe: StripeIndex,
    pub(crate) work: Work,
    pub(crate) stage: Stage,
    /// The last delay; the next one is twice as long.
    pub(crate) delay: Duration,
    /// Answers that did not match their checksums.
    pub(crate) mismatch_count: u32,
    /// It is a change that was sent at least once without an answer.
    pub(crate) is_astray: bool,
    /// Bytes that it counts for in the bound of its volume.
    pub(crate) weight: u64,
    /// A change that may be answered before it is durable.
    pub(crate) lazy: bool,
    /// It belongs to a replay; other parts of the PG wait for that.
    pub(crate) is_replay: bool,
    /// A discard that may overtake a replay which waits for space.
    pub(crate) passes_gate: bool,
}

/// What a part does. Ranges are bytes within the stripe.
pub(crate) enum Work {
    /// Any range; whole units are asked for.
    Read { range: Range<u32> },
    /// Whole units.
    Write { range: Range<u32>, data: Buffer, checksums: Vec<Checksum> },
    /// Whole units.
    Zero { range: Range<u32> },
    /// Bytes within one unit.
    Patch(Patch),
    /// Any range.
    Extents { range: Range<u32> },
    /// A whole PG.
    Sync {
        /// The volume's count of acknowledgements when it was sent: it covers those.
        covers: u64,
    },
}

/// Changes a part of one unit, by compare-and-set on the block's version.
pub(crate) struct Patch {
    pub(crate) range: Range<u32>,
    /// The new bytes; `None`: zeros.
    pub(crate) bytes: Option<Buffer>,
    pub(crate) step: PatchStep,
}

/// Top to bottom is the order in time; a failed comparison goes back to the start.
pub(crate) enum PatchStep {
    /// Waits for the present content of the unit.
    Read,
    /// Waits until the patched unit is written, if the block is still at `expected`.
    Write { expected: Version, data: Buffer, checksums: Vec<Checksum> },
}

/// How far a part has come. Top to bottom is the order in time; after a refusal or a lost connection it is
/// `Ready` or `Delayed` again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Waits for earlier own writes of its stripe; of a lazy volume also a read.
    Held,
    /// Waits for the end of this `apply`.
    Ready,
    /// Waits for the map to name the PG's primary.
    Unrouted,
    /// Waits until this PG has again what it acknowledged in older epochs.
    Behind(PgId),
    /// Waits for a connection to this OSD.
    Connecting(OsdId),
    /// Waits for the reply to this sequence.
    Sent { osd: OsdId, pg: PgId, epoch: Epoch, sequence: u64 },
    /// Was refused; waits for this moment, or for a newer entry of its PG.
    Delayed { until: Time, pg: PgId, epoch: Epoch },
}

impl Part {
    /// Whether it changes its stripe, so that it takes its turn among the writes of the stripe.
    pub(crate) fn changes_stripe(&self) -> bool {
        matches!(self.work, Work::Write { .. } | Work::Zero { .. } | Work::Patch(_))
    }

    /// Whether it only reads its stripe.
    pub(crate) fn reads_stripe(&self) -> bool {
        matches!(self.work, Work::Read { .. } | Work::Extents { .. })
    }

    /// Whether this write must not be under way together with `other`, of the same stripe.
    pub(crate) fn conflicts(&self, other: &Part) -> bool {
        assert!(self.changes_stripe());
        assert!(other.changes_stripe());
        let (mine, theirs) = (self.work.range(), other.work.range());
        // Any other write of the block changes its version, and the comparison would fail.
        self.is_patch() || other.is_patch() || (mine.start < theirs.end && theirs.start < mine.end)
    }

    fn is_patch(&self) -> bool {
        matches!(self.work, Work::Patch(_))
    }

    /// The delay before the next attempt; each is twice the one before.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.delay = delay.doubled_up_to(RETRY_DELAY_MAX);
        delay
    }

    /// What the OSD is asked now.
    pub(crate) fn op(&self, image: &ImageInfo) -> Op {
        let place = Place { image: image.id, seed: image.seed, stripe: self.stripe };
        let parents = || image.parents.clone();
        match &self.work {
            Work::Read { range } => read_units(place, range, parents()),
            Work::Write { range, data, checksums } => Op::Write {
                place,
                offset: range.start,
                checksums: checksums.clone(),
                data: data.clone(),
                expected: None,
                lazy: self.lazy,
            },
            Work::Zero { range } => {
                let length = range.end - range.start;
                Op::Zero { place, offset: range.start, length, lazy: self.lazy }
            }
            Work::Patch(patch) => match &patch.step {
                PatchStep::Read => read_units(place, &patch.range, parents()),
                PatchStep::Write { expected, data, checksums } => Op::Write {
                    place,
                    offset: units_around(&patch.range).start,
                    checksums: checksums.clone(),
                    data: data.clone(),
                    expected: Some(*expected),
                    lazy: self.lazy,
                },
            },
            Work::Extents { .. } => Op::Extents { place, parents: parents() },
            Work::Sync { .. } => Op::Sync,
        }
    }
}

impl Work {
    /// A write of whole units, with its checksums.
    pub(crate) fn write(range: Range<u32>, data: Buffer) -> Work {
        assert!(data.len() == range.len());
        let checksums = checksums_of(&data);
        Work::Write { range, data, checksums }
    }

    /// A change within one unit; `None`: to zeros.
    pub(crate) fn patch(range: Range<u32>, bytes: Option<Buffer>) -> Work {
        Work::Patch(Patch { range, bytes, step: PatchStep::Read })
    }

    /// Bytes within the stripe; empty for a sync.
    pub(crate) fn range(&self) -> Range<u32> {
        match self {
            Work::Read { range }
            | Work::Write { range, .. }
            | Work::Zero { range }
            | Work::Extents { range } => range.clone(),
            Work::Patch(patch) => patch.range.clone(),
            Work::Sync { .. } => 0..0,
        }
    }
}

/// One checksum for each unit.
pub(crate) fn checksums_of(data: &[u8]) -> Vec<Checksum> {
    let mut checksums = Vec::with_capacity(data.len() / UNIT_SIZE as usize);
    checksum_units(data, &mut checksums);
    checksums
}

fn read_units(place: Place, range: &Range<u32>, parents: Vec<base::ImageId>) -> Op {
    let units = units_around(range);
    Op::Read { place, offset: units.start, length: units.end - units.start, parents }
}

/// The patched unit: `old` (or zeros) with the bytes of the patch in it.
pub(crate) fn patched(
    pool: &BufferPool,
    patch: &Patch,
    expected: Version,
    old: Option<Buffer>,
) -> PatchStep {
    let mut unit = match old {
        None => pool.take_zeroed(UNIT_SIZE as usize),
        Some(old) => {
            let mut unit = pool.take(UNIT_SIZE as usize);
            unit.copy_from_slice(&old);
            unit
        }
    };
    let skip = patch.range.start as usize % UNIT_SIZE as usize;
    let target = &mut unit[skip..skip + patch.range.len()];
    match &patch.bytes {
        Some(bytes) => target.copy_from_slice(bytes),
        None => target.fill(0),
    }
    let data = unit.freeze();
    let checksums = checksums_of(&data);
    PatchStep::Write { expected, data, checksums }
}

/// What the answer of a read is worth.
pub(crate) enum Verdict {
    /// Nothing was written there.
    Zeros,
    /// The bytes are those of their checksums.
    Data,
    /// The bytes and their checksums differ: they were damaged on the way, or the OSD is faulty.
    Mismatch,
}

/// Judges the answer of a read of `length` bytes.
pub(crate) fn verify(length: usize, checksums: &[Checksum], data: &Buffer) -> Verdict {
    if checksums.is_empty() && data.is_empty() {
        return Verdict::Zeros;
    }
    let fits = data.len() == length && checksums.len() == length / UNIT_SIZE as usize;
    if fits && first_mismatch(data, checksums).is_none() {
        Verdict::Data
    } else {
        Verdict::Mismatch
    }
}
