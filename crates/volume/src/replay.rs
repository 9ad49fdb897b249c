//! Progress of the replay of a PG: the client writes again what the PG acknowledged but did not make durable.

use base::{Duration, PgId, StripeIndex};

use crate::part::RETRY_DELAY_MIN;

/// Progress of a replay. The replay makes passes over the kept writes; one pass is enough if the PG has space
/// for all of them.
pub(crate) struct Replay {
    pub(crate) pg: PgId,
    /// The position at which the pass continues: stripe, and byte within the stripe.
    pub(crate) place: (StripeIndex, u32),
    /// Whether the PG had no space for a piece in this pass; then, of the remaining pieces, only zeros are
    /// sent.
    pub(crate) is_refused: bool,
    /// The pause before the next pass.
    pub(crate) delay: Duration,
    /// Whether the sync after the last pass was sent.
    pub(crate) is_synced: bool,
}

impl Replay {
    /// Creates a replay that has not begun.
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
