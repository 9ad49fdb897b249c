//! What engines say to mutations of objects: those of this OSD, and of the members that give it leases. See rules
//! 14 and 20 of `docs/internals/objects.md`.
//!
//! Invariants
//!   1. What a giver said holds until it says something else, which it does with each grant.

use std::collections::BTreeMap;

use base::OsdId;
use format::wire::EngineState;

/// What all of these engines said last.
#[derive(Default)]
pub struct EngineLag {
    own: EngineState,
    /// Givers that lag, are full, or have little space left.
    givers: BTreeMap<OsdId, EngineState>,
    /// Whether something has changed since the last call of [`EngineLag::take_change`].
    has_changed: bool,
}

impl EngineLag {
    /// Notes what this OSD's own store says.
    pub fn on_own(&mut self, state: EngineState) {
        self.has_changed |= std::mem::replace(&mut self.own, state) != state;
    }

    /// Notes what a giver says.
    pub fn on_giver(&mut self, giver: OsdId, state: EngineState) {
        let before = match state == EngineState::default() {
            true => self.givers.remove(&giver),
            false => self.givers.insert(giver, state),
        };
        self.has_changed |= before.unwrap_or_default() != state;
    }

    /// Returns what this OSD's own store said.
    pub fn own(&self) -> EngineState {
        self.own
    }

    /// Whether nothing lags, and nothing is full.
    pub fn is_calm(&self) -> bool {
        self.own == EngineState::default() && self.givers.is_empty()
    }

    /// Returns what holds for a PG with these givers: the worst of all.
    pub fn of<'a>(&self, givers: impl IntoIterator<Item = &'a OsdId>) -> EngineState {
        let of_givers = givers.into_iter().filter_map(|osd| self.givers.get(osd));
        of_givers.fold(self.own, |all, one| EngineState {
            is_lagging: all.is_lagging || one.is_lagging,
            is_full: all.is_full || one.is_full,
            is_low: all.is_low || one.is_low,
        })
    }

    /// Whether something has changed since the last call.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.has_changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_of_all_counts_until_it_says_something_else() {
        let calm = EngineState::default();
        let lagging = EngineState { is_lagging: true, ..calm };
        let full = EngineState { is_full: true, is_low: true, ..calm };
        let [one, other] = [1, 2].map(|id| OsdId::new(id).expect("in range"));
        let mut lag = EngineLag::default();
        assert!(lag.is_calm() && !lag.take_change());
        lag.on_giver(one, lagging);
        lag.on_giver(one, lagging);
        assert!(lag.take_change() && !lag.take_change() && !lag.is_calm());
        assert_eq!(lag.of([&other]), EngineState::default());
        lag.on_own(full);
        assert_eq!(lag.of([&one, &other]), EngineState { is_lagging: true, ..full });
        lag.on_own(EngineState::default());
        assert_eq!(lag.of([&one]), lagging);
        assert!(lag.take_change());
        lag.on_giver(one, EngineState::default());
        assert!(lag.is_calm() && lag.take_change());
    }
}
