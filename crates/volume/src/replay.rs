//! How far the replay of a PG is: what it acknowledged and did not make durable is written again.

use base::{Duration, PgId, StripeIndex};

use crate::part::RETRY_DELAY_MIN;

/// How far a replay is. It goes in passes over what is kept; one is enough, where there is room.
pub(crate) struct Replay {
    pub(crate) pg: PgId,
    /// Where the pass goes on.
    pub(crate) place: (StripeIndex, u32),
    /// Some piece found no room in this pass: of the rest only zeros are sent.
    pub(crate) is_refused: bool,
    /// The pause before the next pass.
    pub(crate) delay: Duration,
    /// The sync after it was sent.
    pub(crate) is_synced: bool,
}

impl Replay {
    /// A replay that has not begun.
    pub(crate) fn of(pg: PgId) -> Replay {
        Replay {
            pg,
            place: (StripeIndex::ZERO, 0),
            is_refused: false,
            delay: RETRY_DELAY_MIN,
            is_synced: false,
        }
    }
}
