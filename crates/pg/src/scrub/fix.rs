//! What an operator decides about a damaged key that nobody else decides. `docs/internals/scrub.md` has the
//! rules.
//!
//! ```text
//!   asked ─▶ waits ─▶ Turn ─▶ deep look ─▶ still as listed? ─▶ decided by the choice ─▶ Mending ─▶ Looking again
//! ```
//!
//! Invariants
//!   1. A choice is carried out only if the look finds the faults that were listed when it was made.
//!   2. A choice ends with the epoch: nothing of it is remembered.

use base::{Choice, ImageId, OsdId, RECORDS_IMAGE, StripeIndex};

use super::note::Finding;
use super::{Work, limit};
use crate::copies::agree::{ByMember, by_choice};
use crate::face::{Fault, FaultKind, Seen};
use crate::{Action, Pg, ScrubEvent, Serving};

/// Maximum number of choices that wait.
const WAITING_MAX: usize = 16;

const NOT_LISTED: &str = "the block is not listed as damaged, or not as it was when this was decided: \
                          look at the PG again";
const OF_RECORDS: &str = "what differs are records of objects: put the object anew, or remove it";
const CHANGED: &str = "a new look finds other damage than what was listed: look at the PG again";

/// An operator's request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FixRequest {
    /// The image of the damaged block.
    pub image: ImageId,
    /// The block's number in the image.
    pub stripe: StripeIndex,
    /// What the operator decides.
    pub choice: Choice,
    /// The number of the request. The result names it.
    pub number: u64,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fixed {
    /// The request.
    pub request: FixRequest,
    /// The result.
    pub outcome: FixOutcome,
}

/// The result of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FixOutcome {
    /// The block is not damaged any more.
    Done,
    /// It was done as the operator decided; other damage of the block is left.
    DoneInPart,
    /// Nothing was decided, for this reason.
    Refused(String),
}

/// A choice in work.
pub struct Fix {
    request: FixRequest,
    /// The key and its faults, as they were listed.
    listed: Finding,
    /// Whether parity that could be read has been replaced, and the key was looked at again.
    pub is_second: bool,
    /// Why nothing is done.
    refused: Option<String>,
}

/// Choices at a primary, in its epoch.
#[derive(Default)]
pub struct Fixes {
    waiting: Vec<Fix>,
    last: Option<Fixed>,
}

impl Pg {
    /// As primary: carries out an operator's choice when it is the key's turn. [`Pg::fixed`] has the result.
    /// `is_as_seen`: returns whether the faults of the key are those that the operator saw.
    pub fn fix(
        &mut self,
        request: FixRequest,
        is_as_seen: impl Fn(&Finding) -> bool,
        actions: &mut Vec<Action>,
    ) {
        if self.serving != Serving::Active || self.is_fixing(request) {
            return;
        }
        let is_meant = |finding: &&Finding| {
            (finding.key.image, finding.key.stripe) == (request.image, request.stripe)
        };
        let refused = match self.scrub_note.findings.iter().find(is_meant) {
            _ if !self.knows_scrubs() => "the PG has just begun to serve: try again in a moment",
            Some(finding) if finding.key.image == RECORDS_IMAGE => OF_RECORDS,
            Some(finding) if is_as_seen(finding) => {
                let listed = finding.clone();
                match self.why_not(request.choice) {
                    Some(why) => why,
                    None => {
                        let fix = Fix { request, listed, is_second: false, refused: None };
                        self.lead().scrub.fixes.waiting.push(fix);
                        return self.begin_wanted(actions);
                    }
                }
            }
            _ => NOT_LISTED,
        };
        self.end_fix(Fixed { request, outcome: FixOutcome::Refused(refused.into()) }, actions);
    }

    /// As primary: returns the result of the last choice that ended in this epoch.
    pub fn fixed(&self) -> Option<&Fixed> {
        let lead = self.lead.as_ref().filter(|_| self.serving == Serving::Active);
        lead.and_then(|lead| lead.scrub.fixes.last.as_ref())
    }

    /// Returns whether this request waits, is in work, or was the last to end.
    fn is_fixing(&mut self, request: FixRequest) -> bool {
        let scrub = &self.lead().scrub;
        let in_work = scrub.work.as_ref().and_then(|work| work.fix.as_ref());
        let mut all = scrub.fixes.waiting.iter().chain(in_work).map(|fix| fix.request);
        all.any(|it| it == request)
            || scrub.fixes.last.as_ref().is_some_and(|last| last.request == request)
    }

    fn why_not(&mut self, choice: Choice) -> Option<&'static str> {
        let (has_parity, is_full) =
            (self.stripes().is_some(), self.lead().scrub.fixes.waiting.len() >= WAITING_MAX);
        let osd = choice.osd();
        let lead = self.lead();
        let is_acting =
            |osd: OsdId| lead.acting.iter().any(|index| lead.peers[index].member.osd == osd);
        match choice {
            Choice::Keep(_) if has_parity => {
                Some("the pool has parity: each OSD has another part, so none can be kept for all")
            }
            Choice::Rebuild(_) | Choice::RebuildParity if !has_parity => {
                Some("the pool has copies: decide which one to keep")
            }
            _ if osd.is_some_and(|osd| !is_acting(osd)) => {
                Some("this OSD is no acting member of the PG")
            }
            _ if is_full => Some("too many decisions wait: try again in a moment"),
            _ => None,
        }
    }

    /// Begins with the next choice that waits. Returns false if none does. Requires: no key is in work.
    pub(super) fn begin_fix(&mut self, actions: &mut Vec<Action>) -> bool {
        let scrub = &mut self.lead().scrub;
        if scrub.fixes.waiting.is_empty() || scrub.late.len() >= limit::LATE_MAX {
            return false;
        }
        let fix = scrub.fixes.waiting.remove(0);
        let key = fix.listed.key;
        scrub.work = Some(Work { fix: Some(fix), ..Work::apart(key) });
        self.take_scrub_turn(actions);
        true
    }

    fn fix_in_work(&mut self) -> &mut Fix {
        self.work().fix.as_mut().expect("an operator decided it")
    }

    /// Returns whether a look found what was listed. A second look finds less.
    fn is_as_listed(&mut self, faults: &[(usize, Fault)]) -> bool {
        let mut found = self.by_osd(faults.to_vec());
        found.truncate(super::note::FAULTS_MAX);
        let fix = self.fix_in_work();
        fix.is_second || fix.listed.faults == found
    }

    /// Ends the choice in work without changing anything.
    pub(super) fn refuse_fix(
        &mut self,
        why: String,
        faults: Vec<(usize, Fault)>,
        actions: &mut Vec<Action>,
    ) {
        self.fix_in_work().refused = Some(why);
        self.end_key(faults, actions);
    }

    /// In pools with copies: decides by the choice. `faults`: what the look found.
    pub(super) fn fix_copies(
        &mut self,
        seen: &[Seen],
        faults: Vec<(usize, Fault)>,
        actions: &mut Vec<Action>,
    ) {
        let by = self.by_member();
        let remedy = match self.is_as_listed(&faults) {
            true => by_choice(seen, self.shape.block_size, by),
            false => Err(CHANGED.into()),
        };
        match remedy {
            Err(why) => self.refuse_fix(why, faults, actions),
            Ok(remedy) => {
                self.work().before = faults;
                self.begin_remedy(remedy, actions);
            }
        }
    }

    /// In pools with parity: returns the choice by member, if the look found what was listed.
    pub(super) fn fix_of_parts(&mut self, faults: &[(usize, Fault)]) -> Result<ByMember, String> {
        match self.is_as_listed(faults) {
            true => Ok(self.by_member()),
            false => Err(CHANGED.into()),
        }
    }

    fn by_member(&mut self) -> ByMember {
        let choice = self.fix_in_work().request.choice;
        let lead = self.lead();
        let index_of = |osd: OsdId| {
            let mut acting = lead.acting.iter();
            let found = acting.find(|index| lead.peers[*index].member.osd == osd);
            found.expect("acting members stay in an epoch")
        };
        match choice {
            Choice::Keep(osd) => ByMember::Keep(index_of(osd)),
            Choice::Rebuild(osd) => ByMember::Rebuild(index_of(osd)),
            Choice::RebuildParity => ByMember::RebuildParity,
            Choice::AcceptLoss => ByMember::AcceptLoss,
        }
    }

    /// Reports what became of a choice whose key has ended. `faults`: what is wrong now; `is_mended`: repairs
    /// were sent.
    pub(super) fn report_fix(
        &mut self,
        fix: Fix,
        faults: &[(OsdId, Fault)],
        is_mended: bool,
        actions: &mut Vec<Action>,
    ) {
        let Fix { request, refused, .. } = fix;
        let is_silent = faults.iter().any(|(_, fault)| fault.kind == FaultKind::NotCompared);
        let outcome = match refused {
            Some(why) => FixOutcome::Refused(why),
            None if faults.is_empty() => FixOutcome::Done,
            None if is_silent => FixOutcome::Refused("members did not answer in time".into()),
            None if is_mended => FixOutcome::DoneInPart,
            None => FixOutcome::Refused("what members hold changed meanwhile".into()),
        };
        self.end_fix(Fixed { request, outcome }, actions);
    }

    fn end_fix(&mut self, fixed: Fixed, actions: &mut Vec<Action>) {
        self.lead().scrub.fixes.last = Some(fixed.clone());
        actions.push(Action::Scrub(ScrubEvent::Fixed(fixed)));
    }
}
