//! What a look may cost. Members that do not answer in time are left out of it, for writes of the key wait
//! meanwhile; and a key whose look ends epochs is passed.
//!
//! Invariants
//!   1. A key in work is read for [`AWAITED_MAX`] while something waits behind it, and for [`LOOK_MAX`] at
//!      most.
//!   2. Of looks that were given up, at most [`LATE_MAX`] await answers: then no key begins.
//!   3. A key that is looked at in a careful epoch is named by a durable note before.

use base::{Duration, Time, UNIT_SIZE};

use super::note::{Running, Trial};
use super::{Stage, Work};
use crate::face::{Fault, FaultKind};
use crate::{Action, Pg};

/// How long members may read for a key while something waits behind it in its queue.
const AWAITED_MAX: Duration = Duration::from_secs(2);
/// How long they may read for it at all.
const LOOK_MAX: Duration = Duration::from_secs(30);
/// Looks that were given up and await answers.
pub const LATE_MAX: usize = 4;
/// A key is passed when so many careful epochs ended during its look.
const TRIALS_MAX: u32 = 2;

const NOT_COMPARED: Fault = Fault { kind: FaultKind::NotCompared, units: 0 };

impl Pg {
    /// As primary: returns whether members read for a key of a scrub. Then [`Pg::limit_look`] is due now and
    /// then.
    pub fn is_looking(&self) -> bool {
        let work = self.lead.as_ref().and_then(|lead| lead.scrub.work.as_ref());
        let reads = |it: &Work| matches!(it.stage, Stage::Looking { .. } | Stage::Fetching { .. });
        self.is_scrubbing() && work.is_some_and(reads)
    }

    /// As primary: gives up what members read for the key in work, if it takes too long.
    pub fn limit_look(&mut self, now: Time, actions: &mut Vec<Action>) {
        if !self.is_looking() {
            return;
        }
        let work = self.work();
        let (since, slot) = (*work.since.get_or_insert(now), work.slot);
        let is_awaited = slot.is_some_and(|slot| self.queue.is_awaited(slot));
        let most = if is_awaited { AWAITED_MAX } else { LOOK_MAX };
        if now.since(since) >= most {
            self.give_up_look(actions);
        }
    }

    /// Ends the key in work without the members that have not answered.
    fn give_up_look(&mut self, actions: &mut Vec<Action>) {
        let block_bytes = self.shape.block_size.bytes();
        let work = self.work();
        let read = if work.deep { block_bytes } else { UNIT_SIZE };
        let (missing, mut faults): (Vec<usize>, _) = match &work.stage {
            Stage::Looking { seen } => {
                ((0..seen.len()).filter(|index| seen[*index].is_none()).collect(), Vec::new())
            }
            Stage::Fetching { left, .. } => {
                (left.front().map(|(index, _)| *index).into_iter().collect(), work.before.clone())
            }
            Stage::Noting | Stage::Turn | Stage::Mending { .. } => unreachable!("members read"),
        };
        faults.extend(missing.iter().map(|index| (*index, NOT_COMPARED)));
        let look = work.look;
        let scrub = &mut self.lead().scrub;
        scrub.late.insert(look, missing.len());
        scrub.allowance -= read as i64;
        self.end_key(faults, actions);
    }

    /// Numbers what members are asked to read for the key in work.
    pub(super) fn next_look(&mut self) -> u32 {
        let scrub = &mut self.lead().scrub;
        scrub.looks = scrub.looks.wrapping_add(1);
        let look = scrub.looks;
        self.work().look = look;
        look
    }

    /// Returns whether an answer is for a look that was given up.
    pub(super) fn is_late(&mut self, look: u32, actions: &mut Vec<Action>) -> bool {
        let scrub = &mut self.lead().scrub;
        let Some(count) = scrub.late.get_mut(&look) else { return false };
        *count -= 1;
        if *count == 0 {
            scrub.late.remove(&look);
            self.scrub_next(actions);
        }
        true
    }

    /// Names the key in work in the note; its turn begins when that is durable. Passes a key whose look ended
    /// two epochs.
    pub(super) fn note_before_look(&mut self, actions: &mut Vec<Action>) {
        let key = self.work().key;
        self.lead().scrub.careful_left -= 1;
        let Some(running) = &mut self.scrub_note.running else {
            unreachable!("a key is in work");
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
    /// Counts the epoch as one in which the key is looked at. Returns false if enough of them ended.
    fn begin_trial(&mut self, new: Trial) -> bool {
        let Trial { key, epochs } = self.trial.filter(|trial| trial.key == new.key).unwrap_or(new);
        self.trial = Some(Trial { key, epochs: epochs.saturating_add(1) });
        epochs < TRIALS_MAX
    }
}
