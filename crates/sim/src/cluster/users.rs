//! The users of clients: they attach, read, write, discard, flush and detach. Results are checked against the
//! volume model.

use std::collections::BTreeSet;
use std::ops::Range;

use base::{Duration, PoolId, SessionId, Time, UNIT_SIZE};
use format::disk::BlockKey;
use volume::{
    Answer, Attached, Effect, Event, Operation, Piece, RequestId, VolumeError, VolumeHandle,
};

use super::catalog::OPERATIONS;
use super::client::{Attachment, Handle, Open, Stage, Work};
use super::process::Process;
use super::volume_model::{ChangeId, Life, PIECE_SIZE, Volume};
use super::world::World;
use crate::random::Chance;
use crate::register::Moment;

impl World {
    /// Runs a user's turn: attaches, detaches, or issues an operation.
    pub(super) fn client_turn(&mut self, index: usize) -> Result<(), String> {
        let client = &self.clients[index];
        if client.core.is_none() {
            return Ok(());
        }
        let ready: Vec<VolumeHandle> = client
            .attached
            .iter()
            .filter(|(_, attachment)| matches!(attachment.stage, Stage::Open { .. }))
            .map(|(handle, _)| *handle)
            .collect();
        let draw = self.work.below(1000);
        if ready.is_empty() || draw < 8 {
            return if client.attached.len() < 2 { self.attach(index) } else { Ok(()) };
        }
        let handle = *self.work.pick(&ready);
        if self.must_detach(index, handle) || (draw < 14 && !self.is_cut_off(index)) {
            return self.detach(index, handle);
        }
        if client.open.len() < self.plan.depth_max { self.ask(index, handle) } else { Ok(()) }
    }

    /// Returns whether a client must detach the volume because it will be removed while the cut-off
    /// client has it attached.
    fn must_detach(&self, index: usize, handle: VolumeHandle) -> bool {
        let volume = self.clients[index].attached[&handle].volume;
        self.stale_volume() == Some(volume) && !self.is_cut_off(index)
    }

    fn is_cut_off(&self, index: usize) -> bool {
        self.faults.cut_off.is_some_and(|cut_off| cut_off.client == index)
    }

    fn attach(&mut self, index: usize) -> Result<(), String> {
        let live: Vec<usize> = (0..self.volumes.len())
            .filter(|volume| self.volumes[*volume].life == Life::Live)
            .collect();
        if live.is_empty() {
            return Ok(());
        }
        let volume = *self.work.pick(&live);
        let read_only = self.work.chance(Chance::percent(10));
        let lock = self.work.chance(self.plan.locks);
        self.attach_volume(index, volume, read_only, lock)
    }

    pub(super) fn attach_volume(
        &mut self,
        index: usize,
        volume: usize,
        read_only: bool,
        lock: bool,
    ) -> Result<(), String> {
        self.tally.operations.add("attach", 1);
        let handle = VolumeHandle(self.clients[index].next_name());
        let sure = self.volumes[volume].life == Life::Live;
        let stage = Stage::Opening;
        let session = SessionId::ZERO;
        let (locked, lazy, overruled) = (false, false, false);
        let attachment =
            Attachment { volume, session, read_only, stage, sure, locked, lazy, overruled };
        self.clients[index].attached.insert(handle, attachment);
        let name = self.volumes[volume].name.clone();
        self.apply_client(index, Event::Open { volume: handle, name, read_only, lock })
    }

    pub(super) fn detach(&mut self, index: usize, handle: VolumeHandle) -> Result<(), String> {
        self.tally.operations.add("detach", 1);
        let attachment = self.clients[index].attached.get_mut(&handle).expect("attached");
        attachment.stage = Stage::Closing;
        self.apply_client(index, Event::Close { volume: handle, patient: false })
    }

    /// Writes all of a volume that was just attached, so that backfills of its PGs copy much data.
    pub(super) fn fill_volume(&mut self, index: usize, handle: VolumeHandle) -> Result<(), String> {
        let Some(attachment) = self.clients[index].attached.get(&handle) else { return Ok(()) };
        let Stage::Open { units, .. } = attachment.stage else { return Ok(()) };
        let volume = attachment.volume;
        for first in (0..units).step_by(64) {
            // The client may have died in the meantime.
            if self.clients[index].attached.contains_key(&handle) {
                let pieces = first * 8..(first + 64).min(units) * 8;
                self.ask_write(index, handle, volume, pieces)?;
            }
        }
        Ok(())
    }

    /// Attaches a volume to the first client, if there is a volume. `lock`: whether to request the
    /// lock; `None`: drawn at random.
    pub(super) fn attach_one(&mut self, lock: Option<bool>) -> Result<Option<Handle>, String> {
        let live = |volume: &Volume| volume.life == Life::Live;
        let Some(volume) = self.volumes.iter().position(live) else { return Ok(None) };
        self.attach_for(0, volume, lock)
    }

    /// Attaches a volume to a client. `lock`: whether to request the lock; `None`: drawn at random.
    pub(super) fn attach_for(
        &mut self,
        client: usize,
        volume: usize,
        lock: Option<bool>,
    ) -> Result<Option<Handle>, String> {
        let lock = lock.unwrap_or_else(|| self.work.chance(Chance::percent(50)));
        self.attach_volume(client, volume, false, lock)?;
        self.wait("an attach is never done", |world| world.clients[client].is_settled())?;
        let attached = self.clients[client].attached.iter();
        let attached = attached.into_iter().find_map(|(handle, it)| match it.stage {
            Stage::Open { units, .. } => {
                Some(Handle { client, handle: *handle, volume: it.volume, units })
            }
            Stage::Opening | Stage::Closing => None,
        });
        Ok(attached)
    }

    /// Reads or writes one unit of an attached volume, or flushes.
    pub(super) fn ask_for_drill(&mut self, to: Handle) -> Result<(), String> {
        let unit = self.work.below(to.units);
        let pieces = unit * 8..unit * 8 + 8;
        let (work, operation) = match self.work.weighted(&[5, 2, 1]) {
            0 => return self.ask_write(to.client, to.handle, to.volume, pieces),
            1 => {
                let (offset, length) = (unit * UNIT_SIZE, UNIT_SIZE);
                (Work::Read { pieces }, Operation::Read { offset, length })
            }
            _ => (Work::Flush, Operation::Flush),
        };
        self.request(to.client, to.handle, to.volume, work, operation)
    }

    /// Requests a flush.
    pub(super) fn ask_flush(&mut self, of: Handle) -> Result<(), String> {
        self.request(of.client, of.handle, of.volume, Work::Flush, Operation::Flush)
    }

    /// Returns whether the attachment's client has a pending flush.
    pub(super) fn is_flushing(&self, of: Handle) -> bool {
        self.clients[of.client].open.values().any(|open| matches!(open.work, Work::Flush))
    }

    /// Returns whether writes of an attachment may be acknowledged before they are durable.
    pub(super) fn is_lazy(&self, of: Handle) -> bool {
        self.clients[of.client].attached.get(&of.handle).is_some_and(|attached| attached.lazy)
    }

    /// Writes the first unit of each of these blocks.
    pub(super) fn overwrite(
        &mut self,
        to: Handle,
        blocks: &BTreeSet<BlockKey>,
    ) -> Result<(), String> {
        let all = self.volumes[to.volume].stripes(PoolId::FIRST);
        let chosen = all.filter(|(_, _, key)| blocks.contains(key));
        let firsts: Vec<u64> = chosen.map(|(units, ..)| units.start).collect();
        for first in firsts.into_iter().filter(|first| *first < to.units) {
            self.ask_write(to.client, to.handle, to.volume, first * 8..first * 8 + 8)?;
        }
        Ok(())
    }

    fn ask(&mut self, index: usize, handle: VolumeHandle) -> Result<(), String> {
        let attachment = &self.clients[index].attached[&handle];
        let (volume, read_only) = (attachment.volume, attachment.read_only);
        let Stage::Open { units, .. } = attachment.stage else { unreachable!("chosen as open") };
        let mut kind = self.work.weighted(&self.plan.weights);
        if read_only && matches!(kind, 1..=3) {
            kind = 0;
        }
        self.counts.asked += 1;
        self.tally.operations.add(OPERATIONS[kind], 1);
        let range = self.draw_units(units);
        let pieces = range.start * 8..range.end * 8;
        let (offset, length) = (range.start * UNIT_SIZE, (range.end - range.start) * UNIT_SIZE);
        match kind {
            0 => {
                let operation = Operation::Read { offset, length };
                self.request(index, handle, volume, Work::Read { pieces }, operation)
            }
            1 => self.ask_write(index, handle, volume, pieces),
            2 => {
                let pieces = self.draw_pieces(volume, units);
                self.ask_write(index, handle, volume, pieces)
            }
            3 => self.ask_discard(index, handle, volume, pieces),
            4 => self.request(index, handle, volume, Work::Flush, Operation::Flush),
            _ => {
                let operation = Operation::Extents { offset, length };
                self.request(index, handle, volume, Work::Extents { units: range }, operation)
            }
        }
    }

    fn draw_units(&mut self, units: u64) -> Range<u64> {
        let block_units = u64::from(self.plan.block_size.unit_count());
        // Half of the operations access only the first blocks, so that they conflict.
        let reach = if self.work.chance(Chance::percent(50)) {
            (block_units + 3).min(units)
        } else {
            units
        };
        let longest = match self.work.weighted(&[20, 4, 1]) {
            0 => 4,
            1 => block_units,
            _ => block_units * 3,
        };
        let length = self.work.scale(1..longest.min(reach) + 1);
        let first = self.work.below(reach - length + 1);
        first..first + length
    }

    fn draw_pieces(&mut self, volume: usize, units: u64) -> Range<u64> {
        let fine = self.volumes[volume].fine_pieces();
        let end = fine.end.min(units * 8).max(1);
        let length = self.work.range(1..end.min(16) + 1);
        let first = self.work.below(end - length + 1);
        first..first + length
    }

    pub(super) fn ask_write(
        &mut self,
        index: usize,
        handle: VolumeHandle,
        volume: usize,
        pieces: Range<u64>,
    ) -> Result<(), String> {
        let id = self.next_value();
        let from = self.moment();
        let length = (pieces.end - pieces.start) * PIECE_SIZE;
        let mut data = self.pool.take(length as usize);
        self.volumes[volume].fill(pieces.start, id, &mut data);
        let (offset, data) = (pieces.start * PIECE_SIZE, data.freeze());
        let session = self.clients[index].attached[&handle].session;
        self.volumes[volume].ask(id, session, id, pieces, from);
        let durable = self.must_be_durable(index, handle, volume, id);
        let operation = Operation::Write { offset, data, durable };
        self.request(index, handle, volume, Work::Change { id }, operation)
    }

    fn ask_discard(
        &mut self,
        index: usize,
        handle: VolumeHandle,
        volume: usize,
        pieces: Range<u64>,
    ) -> Result<(), String> {
        let id = self.next_value();
        let from = self.moment();
        let (offset, length) =
            (pieces.start * PIECE_SIZE, (pieces.end - pieces.start) * PIECE_SIZE);
        let session = self.clients[index].attached[&handle].session;
        self.volumes[volume].ask(id, session, 0, pieces, from);
        let durable = self.must_be_durable(index, handle, volume, id);
        let operation = Operation::Zero { offset, length, durable };
        self.request(index, handle, volume, Work::Change { id }, operation)
    }

    /// Frees space on full OSDs: each client discards all blocks of its writable volumes.
    pub(super) fn make_room(&mut self) -> Result<(), String> {
        let mut blocks: Vec<(Handle, Range<u64>)> = Vec::new();
        for (index, client) in self.clients.iter().enumerate() {
            for (handle, it) in client.attached.iter().filter(|(_, it)| !it.read_only) {
                let (Stage::Open { units, .. }, volume) = (it.stage, it.volume) else { continue };
                let to = Handle { client: index, handle: *handle, volume, units };
                let all = self.volumes[volume].stripes(PoolId::FIRST);
                blocks.extend(all.map(|(range, ..)| (to, range.start..range.end.min(units))));
            }
        }
        for (to, range) in blocks.into_iter().filter(|(_, range)| !range.is_empty()) {
            // The attachment may have ended with an earlier answer.
            if self.clients[to.client].attached.contains_key(&to.handle) {
                let pieces = range.start * 8..range.end * 8;
                self.ask_discard(to.client, to.handle, to.volume, pieces)?;
            }
        }
        Ok(())
    }

    /// Draws whether a change must be durable when it is acknowledged. A change of a lazy client that
    /// need not be durable may be lost until a flush covers it.
    fn must_be_durable(
        &mut self,
        index: usize,
        handle: VolumeHandle,
        volume: usize,
        id: ChangeId,
    ) -> bool {
        if !self.clients[index].attached[&handle].lazy {
            return false;
        }
        let durable = self.work.chance(Chance::percent(10));
        if !durable {
            let owner = (index, handle.0);
            self.volumes[volume].asked_lazily(id, owner);
            if self.clients[index].attached[&handle].overruled {
                self.note_left(|other| other == owner);
            }
        }
        durable
    }

    /// Reads the attached volumes of a client completely, in pieces of at most a mebibyte.
    pub(super) fn read_all(&mut self, index: usize) -> Result<(), String> {
        let attached: Vec<(VolumeHandle, usize, u64)> = self.clients[index]
            .attached
            .iter()
            .filter_map(|(handle, attachment)| match attachment.stage {
                Stage::Open { units, .. } => Some((*handle, attachment.volume, units)),
                _ => None,
            })
            .collect();
        for (handle, volume, units) in attached {
            for first in (0..units).step_by(256) {
                let length = (units - first).min(256);
                let work = Work::Read { pieces: first * 8..(first + length) * 8 };
                let operation =
                    Operation::Read { offset: first * UNIT_SIZE, length: length * UNIT_SIZE };
                self.request(index, handle, volume, work, operation)?;
            }
        }
        Ok(())
    }

    /// Reads the blocks of the attached volumes for which `wanted` returns true. Returns their number.
    pub(super) fn read_blocks(
        &mut self,
        index: usize,
        wanted: impl Fn(&World, u32, &BlockKey) -> bool,
    ) -> Result<usize, String> {
        let mut ranges = Vec::new();
        for (handle, attachment) in &self.clients[index].attached {
            let Stage::Open { units, .. } = attachment.stage else { continue };
            for (block, pg, key) in self.volumes[attachment.volume].stripes(PoolId::FIRST) {
                if block.end <= units && wanted(self, pg, &key) {
                    ranges.push((*handle, attachment.volume, block));
                }
            }
        }
        for (handle, volume, block) in &ranges {
            let work = Work::Read { pieces: block.start * 8..block.end * 8 };
            let (offset, length) = (block.start * UNIT_SIZE, (block.end - block.start) * UNIT_SIZE);
            self.request(index, *handle, *volume, work, Operation::Read { offset, length })?;
        }
        Ok(ranges.len())
    }

    fn request(
        &mut self,
        index: usize,
        handle: VolumeHandle,
        volume: usize,
        work: Work,
        operation: Operation,
    ) -> Result<(), String> {
        let id = RequestId(self.clients[index].next_name());
        let from = self.moment();
        self.trace.line(format_args!(
            "{:?} client{index} asks {id:?} of {}: {operation:?}",
            self.now, self.volumes[volume].name
        ));
        let fault_count = self.faults.count;
        let Attachment { session, stage: Stage::Open { units, opened }, .. } =
            self.clients[index].attached[&handle]
        else {
            unreachable!("only open attachments are used");
        };
        let opened = (opened, units);
        let asked_at = self.now;
        let deadline = self.draw_deadline(index);
        let has_deadline = deadline.is_some();
        let open = Open {
            handle,
            volume,
            session,
            opened,
            work,
            from,
            fault_count,
            asked_at,
            has_deadline,
        };
        self.clients[index].open.insert(id, open);
        self.apply_client(index, Event::Request { id, volume: handle, operation, deadline })?;
        // Its future is dropped at once, or it waits.
        match deadline.is_some() && self.work.chance(Chance::percent(1)) {
            true => self.apply_client(index, Event::Cancel { id }),
            false => Ok(()),
        }
    }

    /// Draws until when a client waits for an answer, by its clock.
    pub(super) fn draw_deadline(&mut self, index: usize) -> Option<Time> {
        let patience = self.plan.patience?;
        if !self.work.chance(Chance::percent(70)) {
            return None;
        }
        // Some give up before an answer can come.
        let limit = self.work.scale(1..patience + 1);
        Some(self.local(Process::Client(index)) + Duration::from_millis(limit))
    }

    pub(super) fn client_effect(&mut self, index: usize, effect: Effect) -> Result<(), String> {
        match effect {
            Effect::Net(effect) => self.net_effect(Process::Client(index), effect),
            Effect::Trace(_) => unreachable!("taken by who applied the event"),
            Effect::Opened { volume, result } => {
                match self.objects_opened(index, volume, &result)? {
                    true => Ok(()),
                    false => self.opened(index, volume, result),
                }
            }
            Effect::Closed { volume } if self.objects_closed(index, volume) => Ok(()),
            Effect::Closed { volume } => {
                self.clients[index].attached.remove(&volume);
                self.note_left(|owner| owner == (index, volume.0));
                Ok(())
            }
            Effect::Done { id, result } => {
                if self.objects_answered(index, id, &result)? {
                    return Ok(());
                }
                let open = self.clients[index]
                    .open
                    .remove(&id)
                    .ok_or_else(|| format!("client {index}: {id:?} is answered twice"))?;
                self.trace.line(format_args!(
                    "{:?} client{index} {id:?}: {:?}",
                    self.now,
                    result.as_ref().err()
                ));
                self.done(index, open, result)
            }
        }
    }

    fn opened(
        &mut self,
        index: usize,
        handle: VolumeHandle,
        result: Result<Attached, cluster::message::Failure>,
    ) -> Result<(), String> {
        let opened = self.moment();
        let Some(attachment) = self.clients[index].attached.get_mut(&handle) else {
            return Err(format!("client {index}: {handle:?} is attached, but nobody asked"));
        };
        match result {
            Ok(attached) => {
                self.tally.consequences.add("lock granted to a lazy holder", attached.lazy.into());
                let name = &self.volumes[attachment.volume].name;
                if attached.image().name != *name {
                    return Err(format!("{name} was attached as {}", attached.image().name));
                }
                // Another volume may have been given the name in the meantime.
                let image = Some(attached.image().id);
                let known = self.volumes.iter().position(|volume| volume.image == image);
                let found = known.or_else(|| {
                    let is_new = |volume: &Volume| volume.image.is_none() && volume.name == *name;
                    self.volumes.iter().rposition(is_new)
                });
                attachment.volume = found.ok_or_else(|| format!("{image:?} is unknown"))?;
                attachment.lazy = attached.lazy;
                attachment.locked = attached.locked;
                attachment.session = attached.session;
                self.volumes[attachment.volume].image = image;
                if attachment.stage == Stage::Opening {
                    let units = attached.image().size / UNIT_SIZE;
                    attachment.stage = Stage::Open { units, opened };
                    let volume = &mut self.volumes[attachment.volume];
                    if self.plan.prefills && !attachment.read_only && !volume.is_filled {
                        volume.is_filled = true;
                        self.due.to_fill.push((index, handle));
                    }
                }
                let volume = attachment.volume;
                self.session_opened(volume, attached.session);
                self.note_opened(volume, (index, handle.0));
                if self.is_being_unlocked(volume) {
                    self.note_unlocked(volume);
                }
                Ok(())
            }
            Err(failure) => {
                let volume = &self.volumes[attachment.volume];
                let sure = attachment.sure && volume.life == Life::Live;
                self.clients[index].attached.remove(&handle);
                let for_lock = failure.code == "locked";
                self.tally.consequences.add("attach refused for a lock", for_lock.into());
                if sure && failure.code == "not_found" {
                    return Err(format!("an attach of a volume that is there: {failure:?}"));
                }
                Ok(())
            }
        }
    }

    fn done(
        &mut self,
        index: usize,
        open: Open,
        result: Result<Answer, VolumeError>,
    ) -> Result<(), String> {
        let to = self.moment();
        if let Some(drill) = &mut self.drill {
            drill.note_answer(self.now, open.asked_at);
        }
        let volume = &mut self.volumes[open.volume];
        let (opened, units) = open.opened;
        let goes_out = !matches!(open.work, Work::Flush);
        let is_over = volume.is_fenced(opened, units, open.from)
            || open
                .work
                .pieces(volume)
                .is_some_and(|pieces| volume.is_over(open.session, &pieces, open.from));
        if result.is_ok() && goes_out && is_over {
            return Err(format!("client {index}: a fenced session of {} is served", volume.name));
        }
        match (open.work, result) {
            (Work::Change { id }, Ok(Answer::Done)) => {
                let repeated = open.fault_count != self.faults.count;
                if repeated {
                    self.tally.faults.add("write retried across a failure", 1);
                }
                volume.done(id, to, repeated);
                Ok(())
            }
            (Work::Flush, Ok(Answer::Done)) => {
                // The flush of a read-only attachment covers nothing.
                let attachment = self.clients[index].attached.get(&open.handle);
                if attachment.is_some_and(|attachment| !attachment.read_only) {
                    volume.flushed(open.from, (index, open.handle.0));
                }
                Ok(())
            }
            (Work::Read { pieces }, Ok(Answer::Data(data))) => {
                let bytes = gathered(&data, (pieces.end - pieces.start) * PIECE_SIZE)?;
                volume.read(pieces.start, &bytes, open.from, to)
            }
            (Work::Extents { units }, Ok(Answer::Extents(extents))) => {
                check_extents(volume, units, &extents, open.from, to)
            }
            (work, Err(VolumeError::Unknown | VolumeError::Unavailable { .. }))
                if !open.has_deadline =>
            {
                let what = work.pieces(volume);
                Err(format!("an operation was given up that had no deadline: {what:?}"))
            }
            (work, Err(error)) => self.failed(index, open.handle, open.volume, &work, error, to),
            (_, Ok(answer)) => Err(format!("an answer of another kind: {answer:?}")),
        }
    }

    fn failed(
        &mut self,
        index: usize,
        handle: VolumeHandle,
        volume: usize,
        work: &Work,
        error: VolumeError,
        to: Moment,
    ) -> Result<(), String> {
        // A block may change while its only other copy is away, and some of its units may rot before
        // that copy returns. Backfill then copies these units as damaged: the learner cannot know that
        // its older units are still correct, so it drops them, and their data is lost.
        let image = self.volumes[volume].image;
        let is_lost = image.is_some_and(|image| self.watch.is_damage_given(image));
        match &error {
            // An OSD takes no space of the file system that it shares with an engine which needs it.
            VolumeError::Full if self.plan.may_fill() || self.is_engine_full() => {
                self.tally.faults.add("pool full", 1);
            }
            // With several copies, a good copy remains once all copies exist.
            VolumeError::Damaged
                if self.faults.rot_happened && (!self.faults.must_be_whole || is_lost) =>
            {
                self.tally.faults.add("damaged range met", 1);
            }
            VolumeError::Ended => {
                self.tally.faults.add("session ended", 1);
                let attachment = self.clients[index].attached.get_mut(&handle);
                if let Some(attachment) = attachment.filter(|it| it.stage != Stage::Closing) {
                    // The attachment is closed later, not while this result is being handled.
                    attachment.stage = Stage::Closing;
                    self.due.to_close.push((index, handle));
                }
            }
            VolumeError::Unavailable { .. } => {
                self.tally.faults.add("operation given up before it could happen", 1);
            }
            VolumeError::Unknown if matches!(work, Work::Change { .. }) => {
                self.tally.faults.add("operation given up by its client", 1);
            }
            _ => return Err(format!("an operation failed: {error}")),
        }
        if let Work::Change { id } = work {
            let volume = &mut self.volumes[volume];
            match error {
                // Parts may still be in transit.
                VolumeError::Ended => {}
                VolumeError::Unknown => volume.unknown(*id),
                VolumeError::Unavailable { .. } => volume.never_happens(*id),
                _ => volume.failed(*id, to),
            }
        }
        Ok(())
    }
}

fn gathered(pieces: &[Piece], length: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(length as usize);
    for piece in pieces {
        match piece {
            Piece::Data(data) => bytes.extend_from_slice(data),
            Piece::Hole(count) => bytes.resize(bytes.len() + *count as usize, 0),
        }
    }
    if bytes.len() as u64 == length {
        return Ok(bytes);
    }
    Err(format!("a read of {length} bytes returned {}", bytes.len()))
}

/// Checks that ranges that are reported as unallocated read as zeros.
fn check_extents(
    volume: &mut Volume,
    units: Range<u64>,
    extents: &[volume::Extent],
    from: Moment,
    to: Moment,
) -> Result<(), String> {
    let mut at = units.start * UNIT_SIZE;
    for extent in extents {
        let end = at + extent.length;
        if !extent.allocated {
            let first = at.div_ceil(UNIT_SIZE);
            for unit in first..end / UNIT_SIZE {
                volume.read(unit * 8, &[0; UNIT_SIZE as usize], from, to)?;
            }
        }
        at = end;
    }
    if at == units.end * UNIT_SIZE {
        return Ok(());
    }
    Err(format!("extents of {} end at {at}, not at {}", volume.name, units.end * UNIT_SIZE))
}
