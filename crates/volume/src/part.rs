//! One part of a request: one operation on one OSD, and its progress.

use std::ops::Range;

use base::checksum::{checksum_units, first_mismatch};
use base::{
    Buffer, BufferPool, Checksum, Duration, Epoch, OsdId, PgId, StripeIndex, Time, UNIT_SIZE,
    Version,
};
use cluster::map::ImageInfo;
use format::wire::{Op, Payload, Place};

use crate::cut::units_around;
use crate::routes::Target;
use crate::table::RequestKey;
use crate::{Used, VolumeHandle};

/// Minimum delay before a refused part is sent again.
pub(crate) const RETRY_DELAY_MIN: Duration = Duration::from_millis(10);
/// Maximum delay before a refused part is sent again.
pub(crate) const RETRY_DELAY_MAX: Duration = Duration::from_secs(1);
/// After this many answers that do not match their checksums, a read fails as damaged.
pub(crate) const MISMATCH_COUNT_MAX: u32 = 5;

/// A part that has not ended.
pub(crate) struct Part {
    pub(crate) request: RequestKey,
    pub(crate) volume: VolumeHandle,
    /// Index of the part in the request, from 0.
    pub(crate) index: u32,
    pub(crate) pg: PgId,
    pub(crate) target: Target,
    /// The stripe of the part; 0 for a sync, which has no stripe.
    pub(crate) stripe: StripeIndex,
    pub(crate) work: Work,
    pub(crate) stage: Stage,
    /// The next delay before the part is sent again; doubles each time.
    pub(crate) delay: Duration,
    /// Number of answers that did not match their checksums.
    pub(crate) mismatch_count: u32,
    /// Whether the part is a change that was sent at least once without receiving an answer.
    pub(crate) is_astray: bool,
    /// Whether the part is a change that may have happened: it went astray, or its epoch ended.
    pub(crate) may_have_happened: bool,
    /// Whether the part is a mutation whose request was given up while it was sent: looks of its PG wait
    /// until it has ended.
    pub(crate) is_given_up: bool,
    /// Why the part was refused last.
    pub(crate) refusal: Option<String>,
    /// Number of bytes that the part counts toward the bound of its volume.
    pub(crate) weight: u64,
    /// Whether the part is a change that may be acknowledged before it is durable.
    pub(crate) lazy: bool,
    /// Whether the part belongs to a replay; other parts of the PG wait for the replay.
    pub(crate) is_replay: bool,
    /// Whether the part was last sent as a direct read, to the member that holds the data.
    pub(crate) is_direct: bool,
    /// Whether a member refused the part as a direct read, so that it goes to the primary.
    pub(crate) asks_primary: bool,
    /// Whether the part is a discard that may be sent although a replay of the PG waits for space.
    pub(crate) passes_gate: bool,
}

/// The operation of a part. Ranges are bytes within the stripe.
pub(crate) enum Work {
    /// Reads any range; the request to the OSD covers whole units.
    Read { range: Range<u32> },
    /// Writes whole units.
    Write { range: Range<u32>, data: Buffer, checksums: Vec<Checksum> },
    /// Zeroes whole units.
    Zero { range: Range<u32> },
    /// Changes bytes within one unit.
    Patch(Patch),
    /// Requests the extents of any range.
    Extents { range: Range<u32> },
    /// Syncs a whole PG.
    Sync {
        /// The volume's count of undurable acknowledgements when the sync was sent: the sync covers all
        /// acknowledgements up to this count.
        covers: u64,
    },
    /// Carries out an operation on objects.
    Mutate {
        /// Names the operation in its session.
        number: u64,
        /// The lowest number that the session has unanswered in the PG, as last sent.
        lowest: u64,
        /// Whether it was sent before.
        again: bool,
        operation: Payload,
    },
    /// Reads objects.
    Look { reads: Payload, answers_size_max: u64 },
    /// Lists the objects of PGs that one OSD leads: the target, and those beside it, each with its epoch as
    /// last sent.
    List { beside: Vec<(u32, Epoch)>, names: Payload, page_size_max: u64 },
}

/// A change to a part of one unit, by compare-and-set on the block's version.
pub(crate) struct Patch {
    pub(crate) range: Range<u32>,
    /// The new bytes; `None`: write zeros.
    pub(crate) bytes: Option<Buffer>,
    pub(crate) step: PatchStep,
}

/// The steps of a patch, in chronological order; a failed comparison restarts the patch.
pub(crate) enum PatchStep {
    /// Waits for the current content of the unit.
    Read,
    /// Waits for the write of the patched unit, which succeeds only if the block's version is still
    /// `expected`.
    Write { expected: Version, data: Buffer, checksums: Vec<Checksum> },
}

/// The progress of a part. Top to bottom is the order in time; after a refusal or a lost connection the
/// part is `Ready` or `Delayed` again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Waits for this client's earlier writes of the stripe. Only writes wait; in a lazy volume reads wait,
    /// too.
    Held,
    /// Will be routed at the end of this `apply`.
    Ready,
    /// Waits until the map lists a primary for the PG.
    Unrouted,
    /// Waits until this PG has acknowledged again, in its new epoch, everything that it acknowledged in older
    /// epochs.
    Behind(PgId),
    /// Waits for a connection to this OSD.
    Connecting(OsdId),
    /// Waits for the reply to this sequence number.
    Sent { osd: OsdId, pg: PgId, epoch: Epoch, sequence: u64 },
    /// Was refused; waits until this time, or for a newer entry of its PG.
    Delayed { until: Time, pg: PgId, epoch: Epoch },
}

impl Part {
    /// Creates a part that has not been sent.
    pub(crate) fn new(
        request: RequestKey,
        volume: VolumeHandle,
        pg: PgId,
        target: Target,
        stripe: StripeIndex,
        work: Work,
    ) -> Part {
        Part {
            request,
            volume,
            index: 0,
            pg,
            target,
            stripe,
            work,
            stage: Stage::Held,
            delay: RETRY_DELAY_MIN,
            mismatch_count: 0,
            is_astray: false,
            may_have_happened: false,
            is_given_up: false,
            refusal: None,
            weight: 0,
            lazy: false,
            is_replay: false,
            is_direct: false,
            asks_primary: false,
            passes_gate: false,
        }
    }

    /// Whether the part changes its stripe and must therefore be ordered with the other writes of the stripe.
    pub(crate) fn changes_stripe(&self) -> bool {
        matches!(self.work, Work::Write { .. } | Work::Zero { .. } | Work::Patch(_))
    }

    /// Whether the part was sent and has no answer, and what was sent changes something: it may happen at any
    /// time.
    pub(crate) fn may_happen(&self) -> bool {
        let is_sent = matches!(self.stage, Stage::Sent { .. });
        is_sent
            && !matches!(self.work, Work::Patch(Patch { step: PatchStep::Read, .. }))
            && self.changes()
    }

    /// Whether the part changes anything.
    fn changes(&self) -> bool {
        self.changes_stripe() || matches!(self.work, Work::Mutate { .. })
    }

    /// Notes that no answer to what was sent will come. Requires: the part is still in the stage in which it
    /// waited for the answer.
    pub(crate) fn on_answer_lost(&mut self) {
        self.is_astray |= self.may_happen();
        self.may_have_happened |= self.is_astray;
    }

    /// Whether the part only reads its stripe.
    pub(crate) fn reads_stripe(&self) -> bool {
        matches!(self.work, Work::Read { .. } | Work::Extents { .. })
    }

    /// Whether this write must not be in flight at the same time as `other`, a write of the same
    /// stripe.
    pub(crate) fn conflicts(&self, other: &Part) -> bool {
        assert!(self.changes_stripe());
        assert!(other.changes_stripe());
        let (mine, theirs) = (self.work.range(), other.work.range());
        // Any other write of the block would change its version, and then the comparison of a patch would
        // fail.
        self.is_patch() || other.is_patch() || (mine.start < theirs.end && theirs.start < mine.end)
    }

    fn is_patch(&self) -> bool {
        matches!(self.work, Work::Patch(_))
    }

    /// Returns the delay before the next attempt, and doubles the delay for the attempt after it.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.delay = delay.doubled_up_to(RETRY_DELAY_MAX);
        delay
    }

    /// Returns the operation to send to the OSD now.
    pub(crate) fn op(&self, used: &Used) -> Op {
        match (&self.work, used) {
            (Work::Mutate { number, lowest, again, operation }, _) => Op::Mutate {
                number: *number,
                lowest: *lowest,
                again: *again,
                operation: operation.clone(),
            },
            (Work::Look { reads, .. }, _) => Op::Look { reads: reads.clone() },
            (Work::List { beside, names, .. }, _) => {
                Op::List { beside: beside.clone(), names: names.clone() }
            }
            (_, Used::Image(image)) => self.block_op(image),
            (_, Used::Pool(_)) => unreachable!("only operations on objects are cut for a pool"),
        }
    }

    fn block_op(&self, image: &ImageInfo) -> Op {
        let place = Place { image: image.id, seed: image.seed, stripe: self.stripe };
        let parents = || image.parents.clone();
        match &self.work {
            Work::Read { range } if self.is_direct => {
                let Range { start, end } = units_around(range);
                Op::ReadPart { place, offset: start, length: end - start, parents: parents() }
            }
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
            Work::Mutate { .. } | Work::Look { .. } | Work::List { .. } => {
                unreachable!("they need no image")
            }
        }
    }
}

impl Work {
    /// Creates a write of whole units and computes its checksums.
    pub(crate) fn write(range: Range<u32>, data: Buffer) -> Work {
        assert!(data.len() == range.len());
        let checksums = checksums_of(&data);
        Work::Write { range, data, checksums }
    }

    /// Creates a change within one unit; `None` as `bytes` writes zeros.
    pub(crate) fn patch(range: Range<u32>, bytes: Option<Buffer>) -> Work {
        Work::Patch(Patch { range, bytes, step: PatchStep::Read })
    }

    /// Returns the number of bytes that an operation on objects may hold in flight; 0 for parts of volumes.
    pub(crate) fn object_size(&self) -> u64 {
        match self {
            Work::Mutate { operation, .. } => operation.size(),
            Work::Look { reads, answers_size_max } => reads.size() + answers_size_max,
            Work::List { beside, names, page_size_max } => {
                names.size() + page_size_max * (1 + beside.len() as u64)
            }
            _ => 0,
        }
    }

    /// Returns the range in bytes within the stripe; empty for a sync, and for objects.
    pub(crate) fn range(&self) -> Range<u32> {
        match self {
            Work::Read { range }
            | Work::Write { range, .. }
            | Work::Zero { range }
            | Work::Extents { range } => range.clone(),
            Work::Patch(patch) => patch.range.clone(),
            Work::Sync { .. } | Work::Mutate { .. } | Work::Look { .. } | Work::List { .. } => 0..0,
        }
    }
}

/// Returns one checksum for each unit.
pub(crate) fn checksums_of(data: &[u8]) -> Vec<Checksum> {
    let mut checksums = Vec::with_capacity(data.len() / UNIT_SIZE as usize);
    checksum_units(data, &mut checksums);
    checksums
}

fn read_units(place: Place, range: &Range<u32>, parents: Vec<base::ImageId>) -> Op {
    let units = units_around(range);
    Op::Read { place, offset: units.start, length: units.end - units.start, parents }
}

/// Returns the write of the patched unit: `old` (or zeros) overlaid with the bytes of the patch.
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

/// The result of checking the answer to a read.
pub(crate) enum Verdict {
    /// The range was never written.
    Zeros,
    /// The bytes match their checksums.
    Data,
    /// The bytes do not match their checksums: they were damaged in transit, or the OSD is faulty.
    Mismatch,
}

/// Checks the answer to a read of `length` bytes.
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
