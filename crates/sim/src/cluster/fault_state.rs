//! Which faults may happen now, and which damage earlier faults left: the checkers accept an error only if a
//! fault can have caused it.

use base::Time;

use super::client::CutOff;
use super::plan::Faults;
use super::truce::Truce;

/// The state of a run's faults.
pub struct FaultState {
    /// The current rates of faults: the rates of the plan, or none.
    pub(super) rates: Faults,
    /// The number of faults so far that may have caused a retransmission.
    pub(super) count: u64,
    /// The current truce, if any: no fault is injected until the cluster is whole.
    pub(super) truce: Option<Truce>,
    /// The number of strikes that have not happened yet.
    pub(super) strikes_open: u64,
    /// The client that is cut off from its monitors, if any.
    pub(super) cut_off: Option<CutOff>,
    /// No process starts before this time.
    pub(super) power_off_until: Time,
    /// With more than one copy, the only failure domain in which data may rot.
    pub(super) rot_domain: usize,
    /// Some data has rotted: reads may report damage.
    pub(super) rot_happened: bool,
    /// The metadata of a store was damaged: PGs may be suspect.
    pub(super) knowledge_rotted: bool,
    /// All copies exist, and no fault happens: any damage is an error.
    pub(super) must_be_whole: bool,
}

impl FaultState {
    /// Returns the state before the first fault.
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

    /// Returns whether the run must still wait for a cut-off client, a strike, or the end of a truce.
    pub fn is_pending(&self) -> bool {
        self.cut_off.is_some() || self.strikes_open > 0 || self.truce.is_some()
    }
}
