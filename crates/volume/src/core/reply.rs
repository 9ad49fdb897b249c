//! Handles replies of OSDs: answers and refusals.
//!
//! Invariants
//!   1. An answer ends a part only if it is in the part's session and arrives over the connection that the
//!      part was last sent on.
//!   2. Bytes that are read reach the user only if they match their checksums.

use base::planted::{self, Bug};
use base::{ConnectionId, Time, UNIT_SIZE};
use format::wire::{Message, Outcome, Refusal, Reply};

use super::ClientCore;
use crate::cut::units_around;
use crate::link::CONNECT_DELAY_MIN;
use crate::part::{MISMATCH_COUNT_MAX, Patch, PatchStep, Stage, Verdict, Work, patched, verify};
use crate::request::{Found, extents_of};
use crate::table::PartKey;
use crate::{Answer, Effect, Piece, VolumeError};

impl ClientCore {
    pub(crate) fn on_osd_message(
        &mut self,
        now: Time,
        connection: ConnectionId,
        message: Message,
        effects: &mut Vec<Effect>,
    ) {
        let Some(osd) = self.links.osd_of(connection) else { return };
        let Message::Reply(reply) = message else {
            self.drop_link(now, osd, connection, effects);
            return;
        };
        let link = &mut self.links[osd];
        link.delay = CONNECT_DELAY_MIN;
        if let Some(key) = link.find(reply.sequence) {
            self.on_reply(now, key, reply, effects);
        }
    }

    fn on_reply(&mut self, now: Time, key: PartKey, reply: Reply, effects: &mut Vec<Effect>) {
        let volume = &self.volumes[&self.parts[key].volume];
        let attached = volume.attached().expect("parts end with the session");
        if reply.session != attached.session {
            return;
        }
        match reply.outcome {
            Ok(outcome) => self.on_outcome(now, key, outcome, effects),
            Err(refusal) => self.on_refusal(now, key, refusal, effects),
        }
    }

    fn on_outcome(&mut self, now: Time, key: PartKey, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Stage::Sent { pg, .. } = self.parts[key].stage else {
            unreachable!("only what was sent is answered")
        };
        let part = &mut self.parts[key];
        let volume = self.volumes.get_mut(&part.volume).expect("it outlives its parts");
        match (&mut part.work, outcome) {
            (Work::Read { range }, Outcome::Read { checksums, data, .. }) => {
                let (units, range) = (units_around(range), range.clone());
                let found = match verify(units.len(), &checksums, &data) {
                    Verdict::Zeros => None,
                    Verdict::Data => Some(data),
                    Verdict::Mismatch => return self.on_mismatch(now, key, effects),
                };
                let skip = (range.start - units.start) as usize;
                let found = match found {
                    None => Piece::Hole(range.len() as u64),
                    Some(data) => Piece::Data(data.slice(skip..skip + range.len())),
                };
                self.end_part(now, key, Found::Piece(found), effects);
            }
            (Work::Patch(patch), Outcome::Read { version, checksums, data })
                if matches!(patch.step, PatchStep::Read) =>
            {
                let old = match verify(UNIT_SIZE as usize, &checksums, &data) {
                    Verdict::Zeros => None,
                    Verdict::Data => Some(data),
                    Verdict::Mismatch => return self.on_mismatch(now, key, effects),
                };
                patch.step = patched(&self.pool, patch, version, old);
                self.send_again(key);
            }
            (
                Work::Write { .. }
                | Work::Zero { .. }
                | Work::Patch(Patch { step: PatchStep::Write { .. }, .. }),
                Outcome::Written { durable, .. },
            ) => {
                self.requests[part.request].has_changed = true;
                if volume.is_lazy() && !part.lazy && !durable {
                    let why = "the OSD did not make the change durable as requested".to_string();
                    return self.end_failed(now, key, VolumeError::Invalid { why }, effects);
                }
                self.on_acknowledged(key, durable);
                self.end_part(now, key, Found::Nothing, effects);
            }
            (Work::Extents { range }, Outcome::Extents { bitmap })
                if bitmap.len() * 64 >= (range.end as usize).div_ceil(UNIT_SIZE as usize) =>
            {
                let extents = extents_of(&bitmap, range.start, range.end);
                self.end_part(now, key, Found::Extents(extents), effects);
            }
            (Work::Sync { covers }, Outcome::Synced) => {
                let is_late = planted::on(Bug::SyncCoversLaterWrites);
                let covers = if is_late { volume.undurable_count } else { *covers };
                let handle = part.volume;
                self.on_synced(handle, pg, covers);
                self.end_part(now, key, Found::Nothing, effects);
            }
            (Work::Mutate { .. }, Outcome::Mutated { version, results }) => {
                let answer = Answer::Mutated { version, results };
                self.end_part(now, key, Found::Objects(answer), effects);
            }
            (Work::Look { .. }, Outcome::Looked { answers }) => match answers.bytes() {
                Some(bytes) => {
                    let answer = Answer::Looked(bytes.to_vec());
                    self.end_part(now, key, Found::Objects(answer), effects);
                }
                None => self.on_mismatch(now, key, effects),
            },
            (Work::List { .. }, Outcome::Listed { refused, pages }) => match pages.bytes() {
                Some(bytes) => {
                    let found = Found::Pages { pages: bytes.to_vec(), refused };
                    self.end_part(now, key, found, effects);
                }
                None => self.on_mismatch(now, key, effects),
            },
            _ => {
                let why = "the reply does not match the request".to_string();
                self.end_failed(now, key, VolumeError::Invalid { why }, effects);
            }
        }
    }

    fn on_refusal(&mut self, now: Time, key: PartKey, refusal: Refusal, effects: &mut Vec<Effect>) {
        let part = &mut self.parts[key];
        let Stage::Sent { pg, .. } = part.stage else {
            unreachable!("only what was sent is refused")
        };
        let is_direct = part.is_direct;
        part.asks_primary |= is_direct;
        // The PG may have carried it out when its epoch ended. All other refusals come before it begins, but
        // for zeros whose primary had no lease any more when they were done: it says *busy*, which tells
        // nothing.
        let is_sure = !matches!(refusal, Refusal::Stale(_) | Refusal::Corrupted);
        if matches!((&refusal, &part.work), (Refusal::Busy, Work::Zero { .. })) {
            part.on_answer_lost();
        }
        part.may_have_happened |= !is_sure && part.may_happen();
        part.refusal = Some(refusal.to_string());
        match refusal {
            Refusal::Stale(told) => {
                let told = told.filter(|entry| entry.pg == pg);
                let is_news = told.map(|entry| self.routes.learn(entry));
                if is_news == Some(false) {
                    // Its epoch goes on: a piece of it may have been carried out, and readers may see that.
                    self.parts[key].on_answer_lost();
                }
                if is_news == Some(true) {
                    self.send_again(key);
                    self.on_map_changed(now, effects);
                } else if is_direct {
                    self.send_again(key);
                } else {
                    self.delay(now, key, effects);
                }
            }
            // Only the primary can say what a direct read ends with.
            Refusal::Busy
            | Refusal::Incomplete { .. }
            | Refusal::Corrupted
            | Refusal::AskPrimary
            | Refusal::Damaged { .. }
                if is_direct =>
            {
                self.send_again(key);
            }
            Refusal::Busy
            | Refusal::Incomplete { .. }
            | Refusal::Corrupted
            | Refusal::AskPrimary => {
                self.delay(now, key, effects);
            }
            Refusal::CompareFailed { .. } => match &mut part.work {
                Work::Patch(patch) => {
                    patch.step = PatchStep::Read;
                    self.send_again(key);
                }
                _ => {
                    let why = "the OSD reported a version mismatch, but the request had no version"
                        .to_string();
                    self.end_failed(now, key, VolumeError::Invalid { why }, effects);
                }
            },
            Refusal::Fenced => {
                let volume = part.volume;
                self.end_session(volume, effects);
            }
            Refusal::Full if part.is_replay => self.on_no_room(now, key, effects),
            Refusal::Full => self.end_failed(now, key, VolumeError::Full, effects),
            Refusal::Damaged { .. } => {
                self.end_failed(now, key, VolumeError::Damaged, effects);
            }
            Refusal::Invalid { why } => {
                self.end_failed(now, key, VolumeError::Invalid { why }, effects);
            }
            Refusal::Asserted { object, step, version } => {
                let error = VolumeError::Asserted { object, step, version };
                self.end_failed(now, key, error, effects);
            }
            Refusal::TooLarge { why } => {
                self.end_failed(now, key, VolumeError::TooLarge { why }, effects);
            }
        }
    }

    /// Handles the answer to a read whose data does not match its checksums.
    fn on_mismatch(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let part = &mut self.parts[key];
        part.mismatch_count += 1;
        part.asks_primary = true;
        if part.mismatch_count < MISMATCH_COUNT_MAX {
            self.delay(now, key, effects);
        } else {
            self.end_failed(now, key, VolumeError::Damaged, effects);
        }
    }

    fn end_failed(
        &mut self,
        now: Time,
        key: PartKey,
        error: VolumeError,
        effects: &mut Vec<Effect>,
    ) {
        let request = self.parts[key].request;
        if self.requests[request].is_own() {
            // Acknowledged changes are never abandoned: the core retries them for as long as the session
            // lasts.
            return self.delay(now, key, effects);
        }
        self.fail(now, request, error, effects);
        self.end_part(now, key, Found::Nothing, effects);
    }
}
