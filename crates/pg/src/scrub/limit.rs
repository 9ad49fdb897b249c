//! Limits of a look, which is one request to all members for a digest of a key. Members that do not answer in
//! time are left out, because writes to the key wait for the look. A key is skipped if its looks have ended
//! several epochs.
//!
//! Invariants
//!   1. Members read a key for at most [`LOOK_MAX`], and for at most [`AWAITED_MAX`] while an operation waits
//!      for the scrub.
//!   2. At most [`LATE_MAX`] looks that were given up await answers: no new key begins at that number.
//!   3. In a careful epoch, a key is recorded in a durable note before members read it. An epoch is careful
//!      at first if the previous one ended during a scrub.

use base::{Duration, Time, UNIT_SIZE};

use super::note::{Running, Trial};
use super::{Stage, Work};
use crate::face::{Fault, FaultKind};
use crate::{Action, Pg};

/// Maximum time for which members read a key while an operation on the key waits for the scrub.
const AWAITED_MAX: Duration = Duration::from_secs(2);
/// Maximum time for which members read a key if no operation waits.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// Maximum number of looks that were given up and still await answers.
pub const LATE_MAX: usize = 4;
/// A key is skipped after this many careful epochs have ended during its look.
const TRIALS_MAX: u32 = 2;

const NOT_COMPARED: Fault = Fault { kind: FaultKind::NotCompared, units: 0 };

/// Returns for how long members may be looked at. `is_awaited`: an operation waits for the scrub.
pub(crate) fn time_max(is_awaited: bool) -> Duration {
    if is_awaited { AWAITED_MAX } else { LOOK_MAX }
}

impl Work {
    /// Whether members are reading the key.
    fn is_read(&self) -> bool {
        matches!(
            self.stage,
            Stage::Looking { .. } | Stage::Fetching { .. } | Stage::Gathering { .. }
        )
    }
}

impl Pg {
    /// As primary: returns whether members are reading a key for a scrub, or soon will, so that operations
    /// wait in a pool of objects. Meanwhile [`Pg::limit_look`] must be called periodically.
    pub fn is_looking(&self) -> bool {
        let work = self.lead.as_ref().and_then(|lead| lead.scrub.work.as_ref());
        let is_read = work.is_some_and(Work::is_read);
        let waits = self.is_comparing_records() || self.waits_for_scrub_turn();
        self.is_scrubbing() && (is_read || waits)
    }

    /// As primary: gives up the current look, if it takes too long.
    pub fn limit_look(&mut self, now: Time, actions: &mut Vec<Action>) {
        if !self.is_scrubbing() {
            return;
        }
        self.limit_comparison(now, actions);
        let work = self.lead.as_mut().and_then(|lead| lead.scrub.work.as_mut());
        let Some(work) = work.filter(|work| work.is_read()) else { return };
        let (since, slot) = (*work.since.get_or_insert(now), work.slot);
        let is_awaited = match slot {
            Some(slot) => self.queue.is_awaited(slot),
            None => self.has_gated(),
        };
        if now.since(since) >= time_max(is_awaited) {
            self.give_up_look(actions);
        }
    }

    /// Ends the current key without the members that have not answered.
    fn give_up_look(&mut self, actions: &mut Vec<Action>) {
        let block_bytes = self.shape.block_size.bytes();
        let has_parity = self.stripes().is_some();
        let fetched = if has_parity { self.lead().acting.count() as u64 } else { 1 };
        let work = self.work();
        let read = if work.deep { fetched * block_bytes } else { UNIT_SIZE };
        let (missing, mut faults): (Vec<usize>, _) = match &work.stage {
            Stage::Looking { seen } => {
                ((0..seen.len()).filter(|index| seen[*index].is_none()).collect(), Vec::new())
            }
            Stage::Fetching { left, .. } => {
                (left.front().map(|(index, _)| *index).into_iter().collect(), work.before.clone())
            }
            Stage::Gathering { missing, .. } => (missing.iter().collect(), work.before.clone()),
            Stage::Noting | Stage::Turn | Stage::Settling { .. } | Stage::Mending { .. } => {
                unreachable!("members read")
            }
        };
        faults.extend(missing.iter().map(|index| (*index, NOT_COMPARED)));
        let look = work.look;
        self.lead().scrub.late.insert(look, missing.len());
        self.charge(read);
        self.end_key(faults, actions);
    }

    /// Begins a look at the current key; returns its number.
    pub(super) fn next_look(&mut self) -> u32 {
        let look = self.number_look();
        self.work().look = look;
        look
    }

    /// Returns the number of a look that begins.
    pub(crate) fn number_look(&mut self) -> u32 {
        let scrub = &mut self.lead().scrub;
        scrub.looks = scrub.looks.wrapping_add(1);
        scrub.looks
    }

    /// Notes that a look was given up, of which so many answers are missing.
    pub(crate) fn await_late(&mut self, look: u32, count: usize) {
        if count > 0 {
            self.lead().scrub.late.insert(look, count);
        }
    }

    /// Returns whether an answer is for a look that was given up.
    pub(crate) fn is_late(&mut self, look: u32, actions: &mut Vec<Action>) -> bool {
        let scrub = &mut self.lead().scrub;
        let Some(count) = scrub.late.get_mut(&look) else { return false };
        *count -= 1;
        if *count == 0 {
            scrub.late.remove(&look);
            self.scrub_next(actions);
        }
        true
    }

    /// Records the current key in the note; its turn begins when the note is durable. Skips a key whose look
    /// ended [`TRIALS_MAX`] epochs.
    pub(super) fn note_before_look(&mut self, actions: &mut Vec<Action>) {
        let key = self.work().key;
        self.lead().scrub.careful_left -= 1;
        let Some(running) = &mut self.scrub_note.running else {
            unreachable!("a key is being scrubbed");
        };
        if !running.begin_trial(Trial { key, epochs: 0 }) {
            let members = self.lead().acting;
            return self.end_key(members.iter().map(|it| (it, NOT_COMPARED)).collect(), actions);
        }
        self.work().stage = Stage::Noting;
        self.keep_note(actions);
    }
}

impl Running {
    /// Counts this epoch as one in which the key is read. Returns false if [`TRIALS_MAX`] such epochs have
    /// ended already.
    fn begin_trial(&mut self, new: Trial) -> bool {
        let Trial { key, epochs } = self.trial.filter(|trial| trial.key == new.key).unwrap_or(new);
        self.trial = Some(Trial { key, epochs: epochs.saturating_add(1) });
        epochs < TRIALS_MAX
    }
}
