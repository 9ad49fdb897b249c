//! Which faults may happen now, and what those of before leave behind: the checkers accept an error only where it
//! can follow from a fault.

use base::Time;

use super::client::CutOff;
use super::plan::Faults;
use super::truce::Truce;

/// The faults of a run.
pub struct FaultState {
    /// How often faults happen now: those of the plan, or none.
    pub(super) rates: Faults,
    /// Faults so far that may have made somebody send something again.
    pub(super) count: u64,
    /// While faults rest until the cluster is whole.
    pub(super) truce: Option<Truce>,
    /// Strikes that are still to come.
    pub(super) strikes_open: u64,
    /// A client that is cut off its monitors.
    pub(super) cut_off: Option<CutOff>,
    /// Until then no process starts.
    pub(super) power_off_until: Time,
    /// The failure domain where data may rot, if there is more than one copy.
    pub(super) rot_domain: usize,
    /// Something rotted: reads may be answered as damaged.
    pub(super) rot_happened: bool,
    /// What a store knows of itself was damaged: PGs may be suspect.
    pub(super) knowledge_rotted: bool,
    /// All copies are there, and no fault happens: nothing may be damaged.
    pub(super) must_be_whole: bool,
}

impl FaultState {
    /// No faults yet.
    pub fn new(rot_domain: usize) -> FaultState {
        FaultState {
            rates: Faults::NONE,
            count: 0,
            truce: None,
            strikes_open: 0,
            cut_off: None,
            power_off_until: Time::ZERO,
            rot_domain,
            rot_happened: false,
            knowledge_rotted: false,
            must_be_whole: false,
        }
    }

    /// Whether something is still to come that the run waits for.
    pub fn is_pending(&self) -> bool {
        self.cut_off.is_some() || self.strikes_open > 0 || self.truce.is_some()
    }
}
