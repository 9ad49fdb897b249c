//! Decides which OSDs count as up, and detects when one is absent.
//!
//! ```text
//!   connected ── silent for osd_silent_ms, or reported by a peer ──▶ probed ── no message for PROBE_SPAN ──▶ down
//!       │                                                              └──── a message ────▶ connected
//!       ├── reports its shutdown ──▶ down
//!       └── connection lost ──▶ awaited for osd_grace_ms ── not back, or a peer finds it not listening ──▶ down
//!                                                      └── back ──▶ connected
//! ```
//!
//! A peer's report alone does not mark an OSD down while this monitor still hears from it: in that
//! case the link between the two is broken, see `entries.rs`.
//!
//! Invariants
//!   1. Only answers to probes sent after an OSD joined count as hearing from it: messages that were in
//!      transit when the OSD failed prove nothing. A probe's number is that of the event that sent it.
//!   2. Each failure is noticed once: from then on the failed OSD's peers must be heard from before a PG
//!      continues without that OSD.

use std::collections::{BTreeMap, BTreeSet};

use base::{ConnectionId, Duration, Incarnation, OsdId, Time, TraceEvent};

use super::job::Job;
use super::{Effect, Monitor};
use crate::message::{FromMonitor, Unreachable};
use crate::settings::Setting;

/// How long an OSD may take to answer a probe.
pub(super) const PROBE_SPAN: Duration = Duration::from_millis(700);
/// A monitor that checks for an answer this long after the deadline was itself suspended; it probes again.
const LATE_SPAN: Duration = Duration::from_millis(300);
/// How long a peer's report that an OSD is not listening remains valid.
const REFUSED_SPAN: Duration = Duration::from_secs(2);
/// After the whole cluster was switched off, all processes start at the same time. For this long after a
/// monitor's start, a report from an OSD that has just started does not mark another OSD down that has not
/// connected yet, so that PGs keep their members across such a start. A report from an OSD whose run
/// continues counts: it proves that the cluster was not switched off.
const TOGETHER_SPAN: Duration = Duration::from_secs(2);
/// If a peer reports for this long that it cannot reach an OSD that this monitor hears from, the
/// link between the two counts as broken.
const LINK_SPAN: Duration = Duration::from_millis(900);
/// For this long after a peer's first report that it cannot reach an OSD, it is not certain whether the peer
/// is right. During this time no PG loses a member that it would need if the peer were right. A peer sends
/// three reports in that time.
const DOUBT_SPAN: Duration = Duration::from_secs(3);
/// A peer that has not repeated its report for this long has reached the OSD: reports are repeated about once
/// a second.
const REPEAT_SPAN: Duration = Duration::from_millis(1500);
/// A peer's report is discarded if it is not repeated for this long.
const SAID_SPAN: Duration = Duration::from_secs(3);
/// How long to wait for more answers before PGs are checked, if some are still missing.
const GATHER_SPAN: Duration = Duration::from_millis(20);
/// How long until an OSD that could not be taken out is considered again.
const OUT_RETRY_SPAN: Duration = Duration::from_secs(60);

/// The failure detector's knowledge about one OSD.
#[derive(Default)]
pub(super) struct Liveness {
    /// The time at which the OSD's last message arrived.
    word: Time,
    /// The newest probe that the OSD has answered over this connection, as the number of the event that
    /// sent it; 0: none.
    pub(super) heard: u64,
    /// The event in which the OSD's newest failure was noticed.
    pub(super) noticed: u64,
    /// The time at which the outstanding probe was sent.
    probed: Option<Time>,
    /// The time until which the OSD counts as up although it is not connected.
    grace_ends: Option<Time>,
    /// Whether the OSD's current run began before this monitor became the leader.
    goes_on: bool,
    /// The time until which reports from peers that have just started do not count: the OSD was up
    /// before this monitor's start and has not connected yet.
    expected_until: Option<Time>,
    /// The time since which this process has known the OSD to be down.
    down_since: Option<Time>,
    /// The time at which a peer found that the OSD is not listening.
    refused: Option<Time>,
    /// Peers that cannot reach the OSD, each with the times of its first and last report.
    said: BTreeMap<OsdId, (Time, Time)>,
    /// The time at which the OSD is checked next.
    check: Option<Time>,
}

impl Liveness {
    /// Whether the OSD counts as up although it is not connected.
    pub(super) fn is_awaited(&self) -> bool {
        self.grace_ends.is_some()
    }

    /// Whether the OSD may have failed, which will be known soon.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.grace_ends.is_some() || self.probed.is_some()
    }
}

/// The OSDs that must be checked or probed, and those whose answers are outstanding.
#[derive(Default)]
pub(super) struct FailureDetector {
    checks: BTreeSet<(Time, OsdId)>,
    /// OSDs that must be probed because a failure was noticed.
    to_ask: BTreeSet<OsdId>,
    /// Failed OSDs whose peers must be probed.
    failed: BTreeSet<OsdId>,
    /// OSDs that were probed and not heard from since.
    asked: BTreeSet<OsdId>,
    /// The time at which this process resumed after a suspension: OSDs may have disconnected meanwhile.
    back_since: Option<Time>,
}

impl FailureDetector {
    /// Notes that this process was suspended and has resumed.
    pub(super) fn note_standstill(&mut self, now: Time) {
        self.back_since = Some(now);
    }
}

impl Monitor {
    /// Begins to watch all OSDs, after the state was read: OSDs that were up have some time to reconnect to
    /// this monitor.
    pub(super) fn begin_detection(&mut self, now: Time) {
        let ends = now + self.span(Setting::OsdReturn);
        let known: Vec<(OsdId, bool)> =
            self.committed.osds().map(|record| (record.info.id, record.info.up)).collect();
        for (osd, up) in known {
            let liveness = &mut self.osds.entry(osd).or_default().liveness;
            liveness.grace_ends = up.then_some(ends);
            liveness.expected_until = up.then_some(now + TOGETHER_SPAN);
            liveness.down_since = (!up).then_some(now);
            self.look_at(osd, if up { ends } else { now });
        }
    }

    /// Begins to watch an OSD that has joined.
    pub(super) fn begin_presence(
        &mut self,
        now: Time,
        osd: OsdId,
        goes_on: bool,
        effects: &mut Vec<Effect>,
    ) {
        let live = self.osds.entry(osd).or_default();
        let noticed = live.liveness.noticed;
        if let Some(check) = live.liveness.check {
            self.failure_detector.checks.remove(&(check, osd));
        }
        live.liveness = Liveness { word: now, noticed, goes_on, ..Liveness::default() };
        self.probe(now, osd, effects);
    }

    /// Begins the grace period of an OSD whose connection is gone.
    pub(super) fn begin_grace(&mut self, now: Time, osd: OsdId) {
        // An OSD that disconnected while this monitor was suspended first tries the other monitors, and
        // then returns.
        let all_return =
            self.failure_detector.back_since.map(|back| back + self.span(Setting::OsdReturn));
        let grace_ends = now + self.span(Setting::OsdGrace);
        let grace_ends = all_return.map_or(grace_ends, |all_return| all_return.max(grace_ends));
        let Some(live) = self.osds.get_mut(&osd) else { return };
        let liveness = &mut live.liveness;
        let is_refused = liveness.refused.is_some_and(|when| now.since(when) < REFUSED_SPAN);
        let ends = if is_refused { now } else { grace_ends };
        liveness.grace_ends = Some(ends);
        (liveness.heard, liveness.probed) = (0, None);
        self.failure_detector.asked.remove(&osd);
        self.notice(osd);
        self.look_at(osd, ends);
    }

    /// Records that a failure of the OSD was noticed: its peers will be probed.
    pub(super) fn notice(&mut self, osd: OsdId) {
        self.osds.entry(osd).or_default().liveness.noticed = self.event_last;
        self.failure_detector.failed.insert(osd);
    }

    /// Queues probes of these OSDs.
    pub(super) fn ask_soon(&mut self, osds: impl IntoIterator<Item = OsdId>) {
        self.failure_detector.to_ask.extend(osds);
    }

    /// Schedules a check of the OSD at this time or earlier.
    pub(super) fn look_at(&mut self, osd: OsdId, at: Time) {
        let Some(live) = self.osds.get_mut(&osd) else { return };
        if live.liveness.check.is_some_and(|check| check <= at) {
            return;
        }
        if let Some(before) = live.liveness.check.replace(at) {
            self.failure_detector.checks.remove(&(before, osd));
        }
        self.failure_detector.checks.insert((at, osd));
    }

    /// Sends a probe to the OSD.
    fn probe(&mut self, now: Time, osd: OsdId, effects: &mut Vec<Effect>) {
        let nonce = self.event_last;
        let Some(live) = self.osds.get_mut(&osd) else { return };
        let Some(connection) = live.connection else { return };
        let since = *live.liveness.probed.get_or_insert(now);
        self.failure_detector.asked.insert(osd);
        self.look_at(osd, since + PROBE_SPAN);
        self.connections.send(connection, &FromMonitor::Probe { nonce }, effects);
    }

    /// Records the arrival time of a message if an OSD has joined over the connection.
    pub(super) fn on_word(&mut self, now: Time, connection: ConnectionId) {
        let osd = self.connections.osd(connection);
        let Some(live) = osd.and_then(|osd| self.osds.get_mut(&osd)) else { return };
        (live.liveness.word, live.liveness.probed) = (now, None);
    }

    /// Handles an OSD's answer to a probe.
    pub(super) fn on_alive(
        &mut self,
        now: Time,
        connection: ConnectionId,
        nonce: u64,
        effects: &mut Vec<Effect>,
    ) {
        if self.confirm_boot(now, connection, nonce, effects) {
            return;
        }
        let Some(osd) = self.connections.osd(connection) else { return };
        let event_last = self.event_last;
        let Some(live) = self.osds.get_mut(&osd) else { return };
        let liveness = &mut live.liveness;
        if nonce > event_last || nonce <= liveness.heard {
            return;
        }
        liveness.heard = nonce;
        let was_asked = self.failure_detector.asked.remove(&osd);
        if was_asked && self.failure_detector.asked.is_empty() {
            self.entries.mark_all();
        } else {
            self.entries.look_at(now + GATHER_SPAN);
        }
    }

    /// Handles an OSD's report that it is shutting down: the OSD is marked down at once.
    pub(super) fn on_leaves(
        &mut self,
        now: Time,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(osd) = self.connections.osd(connection) {
            let event = TraceEvent::info("OSD is shutting down").with("osd", osd);
            effects.push(Effect::Trace(event));
            self.take_down(now, osd, effects);
        }
    }

    /// Handles a peer's report that it cannot reach an OSD.
    pub(super) fn on_unreachable(
        &mut self,
        now: Time,
        connection: ConnectionId,
        osd: OsdId,
        incarnation: Incarnation,
        how: Unreachable,
        effects: &mut Vec<Effect>,
    ) {
        let Some(peer) = self.connections.osd(connection).filter(|peer| *peer != osd) else {
            return;
        };
        let record = self.committed.osd(osd);
        let is_meant = |record: &crate::records::OsdRecord| {
            record.info.up && record.info.incarnation == incarnation
        };
        if !record.is_some_and(is_meant) {
            return;
        }
        let goes_on = self.osds.get(&peer).is_some_and(|live| live.liveness.goes_on);
        let Some(live) = self.osds.get_mut(&osd) else { return };
        let liveness = &mut live.liveness;
        if how == Unreachable::Refused {
            liveness.refused = Some(now);
        }
        if live.connection.is_none() {
            let ends = match how {
                Unreachable::Refused => now,
                Unreachable::Silent => now + PROBE_SPAN,
                // An OSD that has just started cannot have detected an absence.
                Unreachable::Missed if !goes_on => return,
                Unreachable::Missed => now + PROBE_SPAN,
            };
            let expected_until = liveness.expected_until.filter(|_| !goes_on);
            let ends = expected_until.map_or(ends, |until| ends.max(until));
            liveness.grace_ends = liveness.grace_ends.map(|before| before.min(ends));
            self.look_at(osd, ends);
            return;
        }
        if how == Unreachable::Missed {
            // If the link between the two is broken, that is reported by the OSD that requests a lease.
            return self.probe_once(now, osd, effects);
        }
        let (since, last) = liveness.said.entry(peer).or_insert((now, now));
        if now.since(*last) > SAID_SPAN {
            *since = now;
        }
        *last = now;
        let was_heard_since = liveness.word > *since;
        if was_heard_since && now.since(*since) >= LINK_SPAN {
            self.bar_link(now, peer, osd);
        }
        self.probe_once(now, osd, effects);
    }

    /// Sends a probe to the OSD, unless one is outstanding.
    fn probe_once(&mut self, now: Time, osd: OsdId, effects: &mut Vec<Effect>) {
        if self.osds.get(&osd).is_some_and(|live| live.liveness.probed.is_none()) {
            self.probe(now, osd, effects);
        }
    }

    /// Returns the links that one of the two OSDs recently reported as broken.
    pub(super) fn doubted_links(&self, now: Time) -> impl Iterator<Item = (OsdId, OsdId)> {
        self.doubts(now).map(|(pair, _)| pair)
    }

    /// Returns the time at which the first of these doubts ends.
    pub(super) fn doubts_end(&self, now: Time) -> Option<Time> {
        self.doubts(now).map(|(_, end)| end).min()
    }

    fn doubts(&self, now: Time) -> impl Iterator<Item = ((OsdId, OsdId), Time)> {
        let ends = |(since, last): (Time, Time)| (since + DOUBT_SPAN).min(last + REPEAT_SPAN);
        let said = self.osds.iter().flat_map(move |(osd, live)| {
            let said = live.liveness.said.iter();
            said.map(move |(peer, times)| ((*peer, *osd), ends(*times)))
        });
        said.filter(move |(_, end)| *end > now)
    }

    /// Returns the time at which the next OSD must be checked.
    pub(super) fn presence_deadline(&self) -> Option<Time> {
        self.failure_detector.checks.first().map(|(at, _)| *at)
    }

    /// Checks the OSDs that are due, and probes those that must be heard from.
    pub(super) fn watch_osds(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some((at, osd)) = self.failure_detector.checks.first().copied()
            && at <= now
        {
            self.failure_detector.checks.pop_first();
            let Some(live) = self.osds.get_mut(&osd) else { continue };
            live.liveness.check = None;
            if let Some(next) = self.check_presence(now, osd, effects) {
                self.look_at(osd, next);
            }
        }
        for osd in std::mem::take(&mut self.failure_detector.failed) {
            let peers = self.peers_of(osd);
            self.failure_detector.to_ask.extend(peers);
        }
        for osd in std::mem::take(&mut self.failure_detector.to_ask) {
            self.probe(now, osd, effects);
        }
    }

    /// Checks an OSD; returns the time at which it is to be checked again.
    fn check_presence(&mut self, now: Time, osd: OsdId, effects: &mut Vec<Effect>) -> Option<Time> {
        let silent = self.span(Setting::OsdSilent);
        let live = self.osds.get_mut(&osd)?;
        let liveness = &mut live.liveness;
        if live.connection.is_some() {
            let Some(since) = liveness.probed else {
                let due = liveness.word + silent;
                if due > now {
                    return Some(due);
                }
                self.probe(now, osd, effects);
                return Some(now + PROBE_SPAN);
            };
            let due = since + PROBE_SPAN;
            if due > now {
                return Some(due);
            }
            if now.since(due) > LATE_SPAN {
                liveness.probed = None;
                self.probe(now, osd, effects);
                return Some(now + PROBE_SPAN);
            }
            let event = TraceEvent::warn("OSD does not answer").with("osd", osd);
            effects.push(Effect::Trace(event));
            self.take_down(now, osd, effects);
            return None;
        }
        if let Some(ends) = liveness.grace_ends {
            if ends > now {
                return Some(ends);
            }
            liveness.grace_ends = None;
            let was_noticed = liveness.noticed > 0;
            self.push_sync_osd(osd);
            if !was_noticed {
                // The OSD has not connected since this monitor's start, so its absence is noticed only now.
                self.notice(osd);
            }
        }
        self.check_down(now, osd)
    }

    /// Marks an OSD that does not answer, or is shutting down, as down, even if its connection still looks
    /// alive.
    fn take_down(&mut self, now: Time, osd: OsdId, effects: &mut Vec<Effect>) {
        let connection = self.osds.get(&osd).and_then(|live| live.connection);
        if let Some(connection) = connection {
            // What depended on the connection continues without it, and a grace period begins.
            self.close(now, connection, effects);
        }
        let Some(live) = self.osds.get_mut(&osd) else { return };
        live.liveness.grace_ends = Some(now);
        self.look_at(osd, now);
    }

    /// Checks an OSD that is down: after some time its PGs must be planned on other OSDs.
    fn check_down(&mut self, now: Time, osd: OsdId) -> Option<Time> {
        let record = self.committed.osd(osd)?;
        if !record.info.in_cluster || record.info.incarnation == Incarnation::ZERO {
            return None;
        }
        let out_after = self.span(Setting::OsdOutAfter);
        let since = *self.osds.get_mut(&osd)?.liveness.down_since.get_or_insert(now);
        if since + out_after > now {
            return Some(since + out_after);
        }
        self.jobs.push(Job::OutOsd { osd });
        Some(now + OUT_RETRY_SPAN)
    }

    /// Checks all OSDs, because a setting has changed or an OSD was taken in or out.
    pub(super) fn look_at_all(&mut self, now: Time) {
        let osds: Vec<OsdId> = self.osds.keys().copied().collect();
        for osd in osds {
            self.look_at(osd, now);
        }
    }

    /// Whether the OSD is up or joining, so that giving it up would be wrong.
    pub(super) fn is_present(&self, osd: OsdId) -> bool {
        self.osds.get(&osd).is_some_and(|live| live.counts_as_up()) || self.is_joining(osd)
    }

    /// Whether a boot of the OSD is waiting to be handled.
    pub(super) fn is_joining(&self, osd: OsdId) -> bool {
        let mut boots = self.jobs.boots().filter(|boot| boot.osd == osd);
        boots.any(|boot| self.connections.is_here(boot.connection))
    }

    /// Returns the OSDs that share a PG with this one.
    fn peers_of(&self, osd: OsdId) -> BTreeSet<OsdId> {
        let mut peers = BTreeSet::new();
        for pool in self.committed.pools() {
            for entry in self.committed.pgs(pool.pool.id) {
                let members = || entry.members();
                if members().any(|member| member.osd == osd) {
                    peers.extend(members().map(|member| member.osd));
                }
            }
        }
        peers.remove(&osd);
        peers
    }
}
