//! Limits on the sizes of lists and queues. Tests and the simulator use smaller limits, so that they reach
//! them.

use format::wire;

/// The limits with which a PG is created. None may be above its default.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of blocks in one page of a list.
    pub list_count_max: usize,
    /// Maximum number of activations in a history.
    pub history_count_max: usize,
    /// Maximum number of blocks that a filling lists one by one.
    pub whole_count_max: usize,
    /// Maximum number of changes in the change list.
    pub change_count_max: usize,
    /// A learner's cursor is made durable after this many filled blocks.
    pub progress_every: usize,
    /// Maximum number of lazy writes that are answered but not durable. A sync begins at half of this number.
    pub unsynced_count_max: usize,
    /// Clients wait for a learner that has more than this many bytes of writes unanswered, until half as many
    /// are left.
    pub learner_bytes_max: u64,
    /// In pools of objects: the most bytes of records in a page, beside the first record of a part.
    pub page_size_max: usize,
    /// In pools of objects: logs are cut when so many log records are there.
    pub log_count_due: usize,
    /// In pools of objects: logs have at most so many versions. Beyond that the older half goes, whoever
    /// needs it, but what all acting members have.
    pub log_versions_max: u64,
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
            page_size_max: 1 << 20,
            log_count_due: 1024,
            log_versions_max: 1 << 18,
        }
    }
}

impl Limits {
    /// Limits so small that a few blocks and epochs reach them.
    pub const SMALL: Limits = Limits {
        list_count_max: 3,
        history_count_max: 6,
        whole_count_max: 4,
        change_count_max: 12,
        progress_every: 2,
        unsynced_count_max: 8,
        learner_bytes_max: 16 << 10,
        page_size_max: 2 << 10,
        log_count_due: 20,
        log_versions_max: 64,
    };
}

/// Maximum number of blocks that are copied to acting members at once when an epoch begins.
pub const ADOPTIONS_MAX: usize = 8;
