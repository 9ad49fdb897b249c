//! How much of everything. Tests and the simulator have smaller limits, so that they reach them.

use format::wire;

/// Limits that a PG is made with. None may be above its default.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks of one page of a list.
    pub list_count_max: usize,
    /// Activations of a history.
    pub history_count_max: usize,
    /// Blocks that a filling remembers one by one.
    pub whole_count_max: usize,
    /// Changes of the change list.
    pub change_count_max: usize,
    /// So many filled blocks make a learner's cursor durable.
    pub progress_every: usize,
    /// Lazy writes that were answered and are not durable; half of it begins a sync.
    pub unsynced_count_max: usize,
    /// So many bytes of writes that a learner has not answered, and clients wait for it. Half of it:
    /// no more.
    pub learner_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            list_count_max: wire::LIST_COUNT_MAX,
            history_count_max: wire::HISTORY_COUNT_MAX,
            whole_count_max: wire::WHOLE_COUNT_MAX,
            change_count_max: 4096,
            progress_every: 64,
            unsynced_count_max: 1 << 16,
            learner_bytes_max: 64 << 20,
        }
    }
}

impl Limits {
    /// So small that a few blocks and epochs reach them.
    pub const SMALL: Limits = Limits {
        list_count_max: 3,
        history_count_max: 6,
        whole_count_max: 4,
        change_count_max: 12,
        progress_every: 2,
        unsynced_count_max: 8,
        learner_bytes_max: 16 << 10,
    };
}

/// Most blocks that are brought to the acting members at once.
pub const ADOPTIONS_MAX: usize = 8;
