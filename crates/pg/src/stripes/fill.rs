//! Backfill of learners in pools with parity, at the primary: a learner's part of each stripe is
//! reconstructed from the parts of acting members.
//!
//! ```text
//!   its turn ──▶ k other parts ──▶ the mark passes the newest version ──▶ mark and part sent ──▶ next turn
//! ```
//!
//! Invariants
//!   1. A learner's part is gathered at the stripe's turn, and sent when the mark has passed the stripe's
//!      newest version: what is sent is stable and is never taken back.
//!      While acting members are lost, it is gathered as of a version that all of them have.
//!   2. A parity learner receives a version of a stripe if it has the stripe as it was before that version;
//!      otherwise it receives a skip. Stripes that were skipped are backfilled.

use std::collections::BTreeMap;

use base::Version;
use base::planted::{self, Bug};
use blockstore::BlockKey;
use format::wire::Content;

use super::gather::{Gather, Inconsistent};
use super::part::Part;
use super::replicate::{GatherFor, GatherJob};
use crate::peering::mark_message;
use crate::slots::JobSlot;
use crate::units::Units;
use crate::{Action, Pg, Serving};

/// A fill whose content is known, and which waits until the mark passes the stripe's newest version.
pub struct LateFill {
    job: JobSlot,
    learner: usize,
    key: BlockKey,
    newest: Version,
    content: Content,
}

impl Pg {
    /// Begins to fill a learner's part of a stripe, at its turn.
    pub(crate) fn begin_stripe_fill(
        &mut self,
        job: JobSlot,
        learner: usize,
        key: BlockKey,
        actions: &mut Vec<Action>,
    ) {
        let stripes = self.stripes().expect("the pool has parity");
        let block_size = self.shape.block_size;
        let all = Units::from_range(0..block_size.unit_count());
        let position = self.lead().peers[learner].position.index();
        let wants = BTreeMap::from([(position, all)]);
        let is_short = self.serving == Serving::Filling && !planted::on(Bug::FilledAsOfView);
        let lead = self.lead();
        let as_of = is_short.then_some(lead.adopted);
        let sources = lead.fill_sources.iter().map(|index| lead.source(index));
        let gather = Gather::new(stripes, block_size, sources, wants, true);
        let purpose = GatherFor::Fill { job, learner };
        self.begin_gather(GatherJob { key, gather, as_of, purpose }, actions);
    }

    /// Continues a fill when its stripe has been gathered.
    pub(crate) fn on_fill_gathered(
        &mut self,
        (job, learner): (JobSlot, usize),
        key: BlockKey,
        gather: &Gather,
        actions: &mut Vec<Action>,
    ) {
        if !self.may_copy() {
            return;
        }
        let newest = gather.newest();
        let content = self.part_of_learner(learner, newest, gather);
        let content = content.unwrap_or_else(|Inconsistent| {
            // The parts contradict each other, so the learner's part is unknown: it is sent as damaged.
            let block_size = self.shape.block_size;
            let all = Units::from_range(0..block_size.unit_count());
            let nothing = Part::nothing(block_size);
            let lost = Part { version: newest, units: Units::default(), damaged: all, ..nothing };
            lost.into_content(block_size, &self.buffers)
        });
        self.lead().late_fills.push(LateFill { job, learner, key, newest, content });
        self.fill_up_to_mark(actions);
    }

    /// Returns the learner's part of a gathered stripe.
    fn part_of_learner(
        &mut self,
        learner: usize,
        newest: Version,
        gather: &Gather,
    ) -> Result<Content, Inconsistent> {
        let stripes = self.stripes().expect("the pool has parity");
        let (block_size, buffers) = (self.shape.block_size, self.buffers.clone());
        let position = self.lead().peers[learner].position.index();
        let table = gather.table()?.ok_or(Inconsistent)?;
        let is_data = position < stripes.data_count();
        let version = if is_data { table.parts[position].version } else { table.version() };
        if version == Version::ZERO {
            // The learner needs the tombstone, too: the members that saw the deletion may all leave.
            let is_deleted = table.version() == Version::ZERO && newest > Version::ZERO;
            return Ok(match is_deleted {
                true => Content::Tombstone { version: newest },
                false => Content::Gone,
            });
        }
        let all = Units::from_range(0..block_size.unit_count());
        let version = if is_data { version } else { newest };
        let mut part = gather.part(position, all, version, &buffers)?;
        if !is_data {
            part.table = table.encode(block_size);
        }
        Ok(part.into_content(block_size, &buffers))
    }

    /// Sends the fills whose newest version the mark has passed. Begins a sync if other fills wait for lazy
    /// versions.
    fn fill_up_to_mark(&mut self, actions: &mut Vec<Action>) {
        let mark = self.mark();
        let late = &mut self.lead().late_fills;
        let (due, late): (Vec<LateFill>, Vec<LateFill>) =
            std::mem::take(late).into_iter().partition(|fill| fill.newest <= mark);
        let must_sync = late.iter().any(|fill| self.versions.is_undurable(fill.newest));
        self.lead().late_fills = late;
        for LateFill { job, learner, key, content, .. } in due {
            if self.filler(learner).is_some_and(|filler| filler.is_begun()) {
                self.send(learner, mark_message(mark), actions);
                self.send_fill(learner, key, content, actions);
            }
            self.end_job(job, actions);
        }
        if must_sync {
            self.begin_sync(actions);
        }
    }

    /// Handles a possible rise of the mark: commits versions, and sends the fills that waited for it.
    pub(crate) fn on_mark_moved(&mut self, actions: &mut Vec<Action>) {
        let mark = self.mark();
        self.commit(mark, actions);
        if self.serving == Serving::Active {
            self.fill_up_to_mark(actions);
            self.mend_settled(actions);
        }
    }
}
