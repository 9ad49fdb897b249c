//! Gives up requests: at their deadline, or when nobody waits for the answer. The rules are in
//! `docs/internals/client.md`.
//!
//! Invariants
//!   1. Unsent parts are dropped. Sent parts stay in flight, in the queue of their stripe and in the window of their
//!      PG, until they have ended; nothing of the request is sent again.
//!   2. `Unavailable` is answered only if no part changed anything or may do so.

use base::Time;
use base::planted::{self, Bug};

use super::ClientCore;
use crate::part::{Part, Stage};
use crate::queue::{Line, Waits};
use crate::request::Found;
use crate::table::RequestKey;
use crate::{Effect, RequestId, VolumeError};

impl ClientCore {
    pub(super) fn on_cancel(&mut self, now: Time, id: RequestId, effects: &mut Vec<Effect>) {
        let Some(key) = self.requests_by_id.get(&id).copied() else { return };
        if let Some(at) = self.requests[key].deadline.take() {
            self.timers.disarm(at, crate::timers::Timer::Request(key));
        }
        self.give_up_request(now, key, effects);
    }

    /// Answers a request of the user that has not ended. Requires: its timer is not armed.
    pub(super) fn give_up_request(
        &mut self,
        now: Time,
        key: RequestKey,
        effects: &mut Vec<Effect>,
    ) {
        let request = &self.requests[key];
        let may_happen = |part: &Part| part.may_have_happened || part.may_happen();
        let is_unknown =
            request.has_changed || request.open.iter().any(|part| may_happen(&self.parts[*part]));
        let error = match is_unknown {
            true => VolumeError::Unknown,
            false => VolumeError::Unavailable { why: self.what_is_awaited(key) },
        };
        self.answer(key, Err(error.clone()), effects);
        self.fail(now, key, error, effects);
        if planted::on(Bug::SyncBeforeUnknownEnded) {
            for part in self.parts_where(|part| part.request == key && part.may_happen()) {
                self.parts[part].on_answer_lost();
                self.end_part(now, part, Found::Nothing, effects);
            }
        }
    }

    /// Returns what a request waits for, for the user.
    fn what_is_awaited(&self, key: RequestKey) -> String {
        let request = &self.requests[key];
        if let Some(part) = request.open.first() {
            return self.what_part_awaits(&self.parts[*part]);
        }
        let volume = &self.volumes[&request.volume];
        match volume.queue.waits(request.turn) {
            Some(Waits::Lines(lines)) => match lines[0] {
                Line::Room(pg) => format!("PG {pg} has not answered earlier requests"),
                Line::Keeping(pg) => format!("earlier writes of PG {pg} are not durable yet"),
            },
            Some(Waits::Older(_)) => "an earlier change of the same range waits".to_string(),
            Some(Waits::Turn) | None => "there are too many requests in flight".to_string(),
        }
    }

    fn what_part_awaits(&self, part: &Part) -> String {
        let pg = part.pg;
        if let Some(refusal) = &part.refusal {
            return format!("PG {pg} refused: {refusal}");
        }
        match part.stage {
            Stage::Held => "an earlier change of the same range has not ended".to_string(),
            Stage::Unrouted | Stage::Ready => format!("PG {pg} has no primary"),
            Stage::Behind(_) => format!("PG {pg} lacks writes that were not durable"),
            Stage::Connecting(osd) => format!("{osd} is not connected, the primary of PG {pg}"),
            Stage::Sent { osd, .. } => format!("{osd} has not answered for PG {pg}"),
            Stage::Delayed { .. } => format!("PG {pg} cannot answer now"),
        }
    }
}
