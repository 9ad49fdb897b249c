//! How much of everything. Tests have small limits, so that they reach them.

use format::wire;

/// Blocks of one page of a list.
pub const LIST_COUNT_MAX: usize = if cfg!(test) { 3 } else { wire::LIST_COUNT_MAX };
/// Activations of a history.
pub const HISTORY_COUNT_MAX: usize = if cfg!(test) { 6 } else { wire::HISTORY_COUNT_MAX };
/// Blocks that a filling remembers one by one.
pub const WHOLE_COUNT_MAX: usize = if cfg!(test) { 4 } else { wire::WHOLE_COUNT_MAX };
/// Changes of the change list.
pub const CHANGES_MAX: usize = if cfg!(test) { 12 } else { 4096 };
/// So many filled blocks make a learner's position durable.
pub const PROGRESS_EVERY: usize = if cfg!(test) { 2 } else { 64 };
/// Lazy writes that were answered and are not durable; half of it begins a sync.
pub const UNSYNCED_COUNT_MAX: usize = if cfg!(test) { 8 } else { 1 << 16 };
/// So many bytes of writes that a learner has not answered, and clients wait for it. Half of it: no more.
pub const LEARNER_BYTES_MAX: u64 = if cfg!(test) { 16 << 10 } else { 64 << 20 };
/// Most blocks that are brought to the acting members at once.
pub const ADOPTIONS_MAX: usize = 8;
/// Highest counter of a version: more writes than any PG ever sees.
pub const COUNTER_MAX: u64 = u64::MAX / 2;
