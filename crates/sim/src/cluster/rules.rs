//! Passes every message to the checkers, once when it is sent and once when it arrives.

use base::{ConnectionId, PgId, SessionId};
use cluster::message::{FromMonitor, ToMonitor};
use format::wire::{
    Change, LeaseMessage, Member, Message, Op, Outcome, PeerBody, PeerMessage, Request,
};

use super::grants::{Holder, Pair};
use super::net::EndId;
use super::process::Process;
use super::world::World;

impl World {
    /// Passes a message to the checkers when it is sent.
    pub(super) fn watch_sending(
        &mut self,
        from: Process,
        connection: ConnectionId,
        message: &Message,
    ) -> Result<(), String> {
        let to = self.net.peer_of(from, connection);
        match (from, message) {
            (Process::Monitor(_), Message::Control(text)) => {
                // Clients resend operations of the previous epoch, which may then take effect twice.
                self.note_slow_disks(text);
                let ends_epoch = self.watch.monitor_says(text, self.now)?;
                self.faults.count += u64::from(ends_epoch);
                if ends_epoch {
                    self.judge_power_losses();
                }
            }
            (Process::Client(_), Message::Control(text)) => {
                let told = text.contains("close_session").then(|| serde_json::from_str(text));
                if let Some(Ok(ToMonitor::CloseSession { session, unanswered: false })) = told {
                    self.state.session_closed(session);
                }
            }
            (Process::Osd(index), Message::Control(text)) => {
                super::watch::judge_refusal(text)?;
                self.judge_stall(index, text)?;
                self.watch.osd_reports(index, text, self.now);
            }
            (Process::Osd(from), Message::Peer(message)) => {
                if let Some(Process::Osd(to)) = to {
                    if let PeerBody::Sync { .. } = message.body {
                        self.requests.syncs.asked(message.pg, message.epoch, to);
                    }
                    self.judge_part(from, message)?;
                    self.note_write((from, connection), to, message);
                    self.judge_fetch(to, message)?;
                    return self.watch.peer_says(to, message, &mut self.tally.consequences);
                }
            }
            (Process::Osd(holder), Message::Lease(message)) => {
                if let Some(Process::Osd(giver)) = to {
                    let (now, run) = (self.local(from), self.life(from));
                    self.watch.lease_asked(holder, giver, message, now);
                    self.watch.grants.asked((holder, run), giver, message, now);
                    // A grant travels from the giver to the holder, so its sender is the giver.
                    self.watch.grants.granted(holder, giver, message);
                    if let LeaseMessage::Renew { begun_bytes, .. } = &**message
                        && let Some(pair) = self.pair((holder, connection), giver)
                    {
                        self.watch.grants.claimed(pair, *begun_bytes)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Passes a message to the checkers when it reaches an OSD.
    pub(super) fn watch_arrival(&mut self, index: usize, end: EndId, message: &Message) {
        let process = Process::Osd(index);
        let now = self.local(process);
        match message {
            Message::Request(request) if request.session != SessionId::ZERO => {
                let run = (index, self.life(process));
                let is_held = self.requests.on_arrived(run, request, &mut self.tally.faults);
                self.tally
                    .consequences
                    .add("request of an older session waits", u64::from(is_held));
                let index_of = |id| self.index_of(id);
                let meets_lease = self.watch.request_arrives(index, request, now, index_of);
                self.tally.consequences.add("request met no lease", u64::from(!meets_lease));
            }
            Message::Lease(message) => {
                if let (_, Process::Osd(giver)) = self.net.processes(end) {
                    let consequences = &mut self.tally.consequences;
                    self.watch.lease_answered(index, giver, message, now, consequences);
                }
            }
            Message::Control(text) => {
                self.note_map(index, text);
            }
            Message::Request(_) | Message::Reply(_) | Message::Peer(_) => {}
        }
    }

    /// Returns the runs at both ends of a connection, or `None` if one of them has ended.
    fn pair(&self, (holder, connection): (usize, ConnectionId), giver: usize) -> Option<Pair> {
        let run = |index| (index, self.life(Process::Osd(index)));
        let is_open = self.net.is_open(Process::Osd(holder), connection);
        is_open.then(|| [run(holder), run(giver)])
    }

    /// Records a write for which its primary needs credit: each write of data to an acting member.
    fn note_write(&mut self, from: (usize, ConnectionId), to: usize, message: &PeerMessage) {
        let PeerBody::Write { block_size, change: Change::Write { .. }, .. } = &message.body else {
            return;
        };
        let entry = self.watch.grants.entry(message.pg, message.epoch);
        let is_acting = entry
            .is_some_and(|entry| entry.acting().any(|member| Some(member.osd) == self.osds[to].id));
        if is_acting && let Some(pair) = self.pair(from, to) {
            self.watch.grants.write_sent(pair, *block_size);
        }
    }

    /// Checks that blocks are fetched only from acting members: a learner may not have them yet.
    fn judge_fetch(&self, to: usize, message: &PeerMessage) -> Result<(), String> {
        let PeerBody::Fetch { key, .. } = &message.body else { return Ok(()) };
        let Some(entry) = self.watch.grants.entry(message.pg, message.epoch) else { return Ok(()) };
        match entry.acting().any(|member| Some(member.osd) == self.osds[to].id) {
            true => Ok(()),
            false => Err(format!("a member that is not acting was asked for {key:?}")),
        }
    }

    /// Checks that a member takes part in an epoch only if no lease that it granted to an earlier
    /// primary is still valid.
    fn judge_part(&mut self, from: usize, message: &PeerMessage) -> Result<(), String> {
        let (pg, epoch) = (message.pg, message.epoch);
        match message.body {
            PeerBody::Activated => self.watch.grants.activated(pg, epoch, from),
            PeerBody::State(_) | PeerBody::Query { .. } => {
                if let (PeerBody::State(state), Some(osd)) = (&message.body, self.osds[from].id) {
                    self.watch.judge_state(from, osd, pg, state)?;
                    self.watch.judge_floor(osd, pg, state)?;
                }
                let holders = (0..self.osds.len()).filter(|index| *index != from);
                let holders: Vec<Holder> = holders.filter_map(|index| self.holder(index)).collect();
                return self.watch.grants.judge(from, pg, epoch, &holders);
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns the member, map revision and clock of an OSD, if it runs.
    fn holder(&self, index: usize) -> Option<Holder> {
        let process = Process::Osd(index);
        let run = self.life(process);
        let osd = &self.osds[index];
        osd.node.as_ref()?;
        Some(Holder {
            index,
            run,
            member: Member { osd: osd.id?, incarnation: osd.incarnation },
            told: self.requests.told((index, run)),
            now: self.local(process),
        })
    }

    /// Checks that no change is sent whose client was told that its outcome is unknown. Kept changes may be,
    /// if a PG acknowledged them. So may patched units, which have bytes of several writes.
    fn judge_sending(&self, request: &Request) -> Result<(), String> {
        let volume = self.requests.volume_of(request.session).map(|index| &self.volumes[index]);
        let Some(volume) = volume else { return Ok(()) };
        let (place, is_unknown) = match &request.op {
            Op::Write { place, offset, data, expected: None, lazy, .. } => {
                (place, volume.is_unknown(place.stripe, *offset, data, *lazy))
            }
            Op::Zero { place, offset, length, lazy } => {
                let range = (*offset, *length);
                let by = request.session;
                (place, volume.is_unknown_discard(by, place.stripe, range, *lazy))
            }
            _ => return Ok(()),
        };
        match is_unknown {
            true => Err(format!("a change is sent whose outcome was told as unknown: {place:?}")),
            false => Ok(()),
        }
    }

    /// Checks that no request is executed in an epoch other than its own, or by an OSD whose map is
    /// older than the client's.
    pub(super) fn check_rules(&mut self, from: Process, message: &Message) -> Result<(), String> {
        let reply = match message {
            Message::Request(request) => {
                self.requests.on_sent(request);
                self.judge_sending(request)?;
                return self.note_mutation(request);
            }
            Message::Reply(reply) => reply,
            Message::Control(_) | Message::Peer(_) | Message::Lease(_) => return Ok(()),
        };
        let Process::Osd(index) = from else { return Ok(()) };
        let named = self.requests.take_named(reply);
        let (Some(named), Ok(outcome)) = (named, &reply.outcome) else { return Ok(()) };
        if let (Some(sent), Some(volume)) = (&named.sent, self.requests.volume_of(reply.session)) {
            self.volumes[volume].acknowledged(reply.session, sent);
        }
        let (pg, epoch) = (named.pg, named.epoch);
        if let Outcome::Listed { pages, .. } = outcome
            && pages.size() == 0
        {
            // All PGs are refused.
            return Ok(());
        }
        self.session_served(pg, reply.session);
        // Pages of a list are of moments before its answer, when the lease was there.
        if let Outcome::Read { .. } | Outcome::Looked { .. } = outcome {
            let (now, index_of) = (self.local(from), |osd| self.index_of(osd));
            self.watch.judge_read(index, pg, epoch, now, index_of)?;
        }
        let is_lazy = matches!(outcome, Outcome::Written { durable: false, .. });
        self.tally.consequences.add("change answered before it was durable", is_lazy.into());
        if is_lazy {
            self.requests.syncs.answered_lazily(pg, epoch);
        }
        if let (Outcome::Synced, Some(entry)) = (outcome, self.watch.grants.entry(pg, epoch)) {
            self.requests.syncs.judge(index, entry, |osd| self.index_of(osd))?;
        }
        self.requests.judge((index, self.life(from)), reply, named, outcome)
    }

    /// Records that a volume was attached.
    pub(super) fn session_opened(&mut self, volume: usize, session: SessionId) {
        self.requests.on_opened(session, volume);
        let state = &self.state;
        self.volumes[volume].opened(session, |older| {
            state.is_fenced_for(session, older) || !state.has_session(older)
        });
    }

    /// Records that a PG serves a session: from now on, the PG must refuse all sessions that were
    /// fenced before that session was opened.
    fn session_served(&mut self, pg: PgId, session: SessionId) {
        let Some(volume) = self.requests.volume_of(session) else { return };
        let now = self.moment();
        let closed = self.volumes[volume].served(pg.number, session, now);
        self.tally.consequences.add("fenced change without an answer is over", closed);
    }

    /// Records that a map is sent to an OSD.
    fn note_map(&mut self, index: usize, text: &str) {
        let Ok(FromMonitor::Map(delta)) = serde_json::from_str(text) else { return };
        let Some(newest) = delta.pools.iter().map(|pool| pool.revision).max() else { return };
        let run = (index, self.life(Process::Osd(index)));
        self.requests.on_map(run, newest);
    }
}
