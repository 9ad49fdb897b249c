//! Sends each part to the primary of its PG, over the connection to that OSD. Sends refused and lost parts
//! again. In pools with parity, a read of one data part goes straight to the member that holds it (a direct
//! read), and to the primary if that member refuses it or is not connected.
//!
//! Invariants
//!   1. A part waits for an answer on one connection at a time, and each send uses a new sequence number.
//!   2. A request carries the newest known epoch of its PG.

use base::planted::{self, Bug};
use base::{ConnectionId, Epoch, Incarnation, OsdId, PgId, Time};
use format::door::{NetEffect, Peer, Role};
use format::wire::{Message, Request};

use super::ClientCore;
use crate::Effect;
use crate::link::{CONNECT_DELAY_MIN, LinkState};
use crate::part::{Stage, Work};
use crate::request::Found;
use crate::routes::{Route, Target};
use crate::table::PartKey;
use crate::timers::Timer;

impl ClientCore {
    // ---- sending

    /// Sends a part to the primary of its PG, or queues the part until it can be sent. Requires: the part is
    /// in no list.
    pub(super) fn route(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let part = &mut self.parts[key];
        part.stage = Stage::Held;
        let passes_gate = std::mem::take(&mut part.passes_gate);
        let is_repeated = part.is_astray
            && (planted::on(Bug::UnknownSentAgain)
                || planted::on(Bug::UnknownDiscardSentAgain)
                    && matches!(part.work, Work::Zero { .. })
                || planted::on(Bug::UnknownLazySentAgain) && part.lazy);
        if self.requests[part.request].failure.is_some() && !is_repeated {
            self.end_part(now, key, Found::Nothing, effects);
            return;
        }
        let Some(route) = self.routes.find(part.pg.pool, part.target) else {
            part.stage = Stage::Unrouted;
            self.unrouted.push(key);
            return;
        };
        let is_held_back = !passes_gate && self.is_held_back(now, key, route, effects);
        if is_held_back || self.is_held_read(key) {
            return;
        }
        let direct = self.direct_route(now, key, effects);
        let part = &mut self.parts[key];
        part.is_direct = direct.is_some();
        let route = direct.unwrap_or(route);
        let link = self.links.to(route.osd);
        if let LinkState::Open { connection, .. } = link.state {
            self.send(key, route, connection, effects);
            return;
        }
        part.stage = Stage::Connecting(route.osd);
        link.waiting.push(key);
        if link.state == LinkState::Idle {
            self.connect_link(route.osd, effects);
        }
    }

    /// Returns the route of a part that is sent as a direct read, for which no connection is waited for. If
    /// there is no connection with the member, connects to it, for later reads.
    fn direct_route(
        &mut self,
        now: Time,
        key: PartKey,
        effects: &mut Vec<Effect>,
    ) -> Option<Route> {
        let part = &self.parts[key];
        let Work::Read { range } = &part.work else { return None };
        // A part of a lazy change that is under way may be durable, and seen by a direct read, before another
        // part is refused. The primary makes reads wait.
        let has_changes = || self.stripes.contains_key(&(part.volume, part.stripe));
        if part.asks_primary || self.volumes[&part.volume].is_lazy() && has_changes() {
            return None;
        }
        let route = self.routes.find_part(part.pg.pool, part.target, range)?;
        let link = self.links.to(route.osd);
        match link.state {
            LinkState::Open { .. } => return Some(route),
            LinkState::Idle if link.rests_until <= now => self.connect_link(route.osd, effects),
            _ => {}
        }
        None
    }

    /// Sends a part. Requires: the link of the route is open on `connection`.
    pub(crate) fn send(
        &mut self,
        key: PartKey,
        route: Route,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        let sequence = self.next_sequence();
        let part = &mut self.parts[key];
        let volume = &self.volumes[&part.volume];
        let attached = volume.attached().expect("parts end with the session");
        assert!(route.pg.pool == attached.pool());
        match (&mut part.work, part.target) {
            (Work::Sync { covers }, _) => *covers = volume.undurable_count,
            (Work::Mutate { lowest, .. }, Target::Hash(hash)) => {
                let hashes = self.routes.hashes_beside(part.pg.pool, hash);
                *lowest = volume.lowest_number(hashes.expect("it has a route"));
            }
            (Work::List { beside, .. }, _) => {
                for (number, epoch) in beside {
                    let pg = PgId { pool: part.pg.pool, number: *number };
                    *epoch = self.routes.epoch(pg).unwrap_or(Epoch::ZERO);
                }
            }
            _ => {}
        }
        let request = Request {
            session: attached.session,
            sequence,
            pg: route.pg,
            epoch: route.epoch,
            revision: route.revision,
            op: part.op(&attached.used),
        };
        if let Work::Mutate { again, .. } = &mut part.work {
            *again = true;
        }
        assert!(part.stage == Stage::Held);
        part.stage = Stage::Sent { osd: route.osd, pg: route.pg, epoch: route.epoch, sequence };
        let link = &mut self.links[route.osd];
        link.sent(sequence, key);
        let message = Message::Request(request);
        effects.push(Effect::Net(NetEffect::Send { connection, message }));
    }

    /// Sends a part again without delay.
    pub(super) fn send_again(&mut self, key: PartKey) {
        self.detach(key);
        self.make_ready(key);
    }

    /// Sends a refused part again after a delay, or as soon as its PG has a newer entry.
    pub(super) fn delay(&mut self, now: Time, key: PartKey, effects: &mut Vec<Effect>) {
        let Stage::Sent { pg, epoch, .. } = self.parts[key].stage else {
            unreachable!("only what was sent is refused")
        };
        if self.requests[self.parts[key].request].failure.is_some() {
            self.end_part(now, key, Found::Nothing, effects);
            return;
        }
        self.detach(key);
        let part = &mut self.parts[key];
        let until = now + part.next_delay();
        part.stage = Stage::Delayed { until, pg, epoch };
        self.timers.arm(until, Timer::Part(key));
    }

    // ---- connections

    /// Connects to the next address of an OSD. Requires: the link has no connection and no timer.
    pub(crate) fn connect_link(&mut self, osd: OsdId, effects: &mut Vec<Effect>) {
        let link = &mut self.links[osd];
        assert!(link.in_flight.is_empty());
        let Some(info) = self.routes.osd(osd).filter(|info| !info.addresses.is_empty()) else {
            // The next change to the map may contain an address.
            link.state = LinkState::Idle;
            return;
        };
        let address = info.addresses[link.address % info.addresses.len()].clone();
        link.address = link.address.wrapping_add(1);
        link.revision = info.revision;
        let connection = self.next_connection();
        self.links.connecting(osd, connection);
        effects.push(Effect::Net(NetEffect::Connect { connection, address }));
    }

    pub(crate) fn on_osd_connected(
        &mut self,
        now: Time,
        connection: ConnectionId,
        peer: Peer,
        effects: &mut Vec<Effect>,
    ) {
        let Some(osd) = self.links.osd_of(connection) else { return };
        let incarnation = match peer.role {
            Role::Osd(id, incarnation) if id == osd => incarnation,
            // The OSD is not there: another process listens at its old address.
            _ => {
                self.drop_link(now, osd, connection, effects);
                return;
            }
        };
        let link = &mut self.links[osd];
        assert!(link.state == LinkState::Connecting { connection });
        link.state = LinkState::Open { connection, incarnation };
        for part in std::mem::take(&mut link.waiting) {
            self.make_ready(part);
        }
    }

    /// Handles the loss of a connection: its unanswered parts are sent again over the next one.
    pub(crate) fn on_osd_closed(&mut self, now: Time, osd: OsdId) {
        let link = &mut self.links[osd];
        let until = now + link.next_delay();
        link.state = LinkState::Waiting { until };
        link.rests_until = until;
        self.timers.arm(until, Timer::Link(osd));
        let sent = std::mem::take(&mut link.in_flight);
        for in_flight in sent {
            self.parts[in_flight.part].on_answer_lost();
            self.make_ready(in_flight.part);
        }
        self.links.may_rest(osd);
    }

    pub(super) fn drop_link(
        &mut self,
        now: Time,
        osd: OsdId,
        connection: ConnectionId,
        effects: &mut Vec<Effect>,
    ) {
        self.links.forget(connection);
        effects.push(Effect::Net(NetEffect::Close { connection }));
        self.on_osd_closed(now, osd);
    }

    /// Stops reconnecting a link that no part waits for, until a part needs the link.
    pub(crate) fn rest_link(&mut self, osd: OsdId) {
        let link = &mut self.links[osd];
        if let LinkState::Waiting { until } = link.state
            && link.waiting.is_empty()
        {
            self.timers.disarm(until, Timer::Link(osd));
            link.state = LinkState::Idle;
        }
    }

    // ---- the map

    /// Handles a change to the map: routes again the parts whose primary may have changed.
    pub(crate) fn on_map_changed(&mut self, now: Time, effects: &mut Vec<Effect>) {
        for osd in self.links.osds() {
            self.renew_link(now, osd, effects);
        }
        self.leave_old_gates();
        let (routes, volumes) = (&self.routes, &self.volumes);
        let moved = self.parts_where(|part| match part.stage {
            Stage::Sent { osd, pg, epoch, .. } => {
                // The PG has a new epoch, and the old primary may never answer.
                let route = routes.find(part.pg.pool, part.target);
                let is_newer = routes.epoch(pg).is_some_and(|known| known > epoch);
                // In a lazy volume, a replay may have undone the write that an old answer
                // acknowledges.
                let is_lazy = volumes[&part.volume].is_lazy();
                is_newer && (is_lazy || route.is_some_and(|route| route.osd != osd))
            }
            Stage::Delayed { pg, epoch, .. } => routes.epoch(pg).is_some_and(|known| known > epoch),
            Stage::Unrouted | Stage::Connecting(_) => true,
            Stage::Held | Stage::Ready | Stage::Behind(_) => false,
        });
        for key in moved {
            self.parts[key].on_answer_lost();
            self.send_again(key);
        }
        self.links.all_may_rest();
        self.replay_new_epochs(now, effects);
        self.touch_all();
    }

    /// Connects at once to an OSD whose entry changed, and closes the connection to an earlier
    /// incarnation.
    fn renew_link(&mut self, now: Time, osd: OsdId, effects: &mut Vec<Effect>) {
        let link = &mut self.links[osd];
        let Some(info) = self.routes.osd(osd) else { return };
        match link.state {
            LinkState::Waiting { until } if info.revision != link.revision => {
                self.timers.disarm(until, Timer::Link(osd));
                link.delay = CONNECT_DELAY_MIN;
                self.connect_link(osd, effects);
            }
            LinkState::Open { connection, incarnation }
                if incarnation != Incarnation::ZERO && incarnation < info.incarnation =>
            {
                self.drop_link(now, osd, connection, effects);
            }
            _ => {}
        }
    }
}
