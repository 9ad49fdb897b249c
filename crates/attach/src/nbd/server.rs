//! The loop around the hub: one thread and one ring for the sockets of NBD clients and of the cluster.

use base::{Duration, Time, TraceEvent};
use client::{Config, Keeper};
use format::door::{Peer, Role};
use io::{Options, Reactor, Trust};
use volume::Settings;

use super::hub::{Effect, Event, Exports, Hub};

/// How long requests in flight may take to finish during a shutdown.
const SHUTDOWN_TIME_MAX: Duration = Duration::from_secs(5);
/// How long the server may take after that to detach volumes whose OSDs do not answer. The client core itself
/// does not wait longer.
const ABANDON_TIME_MAX: Duration = Duration::from_secs(5);
/// How long a monitor may take after that to confirm the end of the sessions. `ashlar up` waits longer than
/// these three times together.
const PART_TIME_MAX: Duration = Duration::from_secs(2);

/// Maximum number of clients at a time, if the limit on descriptors allows that many.
const CLIENT_COUNT_MAX: u64 = 1024;
/// Minimum interval between two log lines about refused clients.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of an NBD server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerSettings {
    /// Addresses to listen on, `unix:PATH` or `tcp:HOST:PORT`; at least one.
    pub listen: Vec<String>,
    /// The volumes to serve; empty: all.
    pub volumes: Vec<String>,
    /// Whether to refuse writes.
    pub read_only: bool,
    /// Whether to attach volumes without their locks, so that other servers can do so too.
    pub shared: bool,
    /// Maximum number of bytes per volume that may be acknowledged but not yet durable.
    pub unsynced_size_max: u64,
}

/// An NBD server.
pub struct Server {
    reactor: Reactor,
    hub: Hub,
    keeper: Keeper,
    /// The time from which a refused client may be logged again.
    log_at: Time,
    effects: Vec<Effect>,
}

impl Server {
    /// Serves until the process receives SIGTERM or SIGINT.
    ///
    /// Errors: io_uring does not work, or the server cannot listen on an address.
    pub fn run(config: &Config, settings: ServerSettings) -> Result<(), io::Error> {
        let mut reactor = Reactor::new(Options::default())
            .map_err(|error| io::Error::new("io_uring does not work", error))?;
        let peer = Peer { cluster: config.file.cluster, role: Role::Client };
        reactor.set_trust(Trust { key: config.key.clone(), peer });
        let cannot_watch = |error| io::Error::new("cannot set up signal handling", error);
        reactor.watch_signals().map_err(cannot_watch)?;
        let client_count_max = client_count_max(io::raise_descriptor_limit());
        reactor.set_raw_max(client_count_max);
        let mut address = None;
        for listen in &settings.listen {
            let (_, bound) = reactor.listen_raw(listen)?;
            io::log::write(&TraceEvent::info("listening").with("address", &bound));
            address.get_or_insert(bound);
        }
        let ServerSettings { volumes: names, read_only, shared, .. } = settings;
        let exports = Exports { names, read_only, shared };
        let core = Settings {
            monitors: config.file.monitors.clone(),
            client: "nbd".to_string(),
            pid: std::process::id(),
            host: config.host(),
            address,
            retry_for: None,
            unsynced_size_max: settings.unsynced_size_max,
        };
        let hub = Hub::new(exports, core, reactor.pool().clone());
        let keeper = Keeper::new(config, io::log::write);
        Server { reactor, hub, keeper, log_at: Time::ZERO, effects: Vec::new() }.serve()
    }

    fn serve(mut self) -> Result<(), io::Error> {
        let now = self.reactor.now();
        self.tell(now, Event::Started);
        self.serve_until(None, Hub::is_ending)?;
        self.serve_for(SHUTDOWN_TIME_MAX, Hub::is_finished)?;
        let now = self.reactor.now();
        self.tell(now, Event::Abandon);
        self.serve_for(ABANDON_TIME_MAX, Hub::is_finished)?;
        // Wait for the confirmation, so that the next client of a volume does not wait for a session
        // that is over.
        self.serve_for(PART_TIME_MAX, Hub::is_parted)
    }

    fn serve_for(&mut self, span: Duration, is_done: fn(&Hub) -> bool) -> Result<(), io::Error> {
        let end = self.reactor.now() + span;
        self.serve_until(Some(end), is_done)
    }

    /// Serves until `is_done` returns true, or until `end`.
    fn serve_until(
        &mut self,
        end: Option<Time>,
        is_done: fn(&Hub) -> bool,
    ) -> Result<(), io::Error> {
        let mut events = Vec::new();
        while !is_done(&self.hub) && end.is_none_or(|end| self.reactor.now() < end) {
            let deadline = [self.hub.deadline(), end].into_iter().flatten().min();
            self.turn(deadline, &mut events)?;
            let now = self.reactor.now();
            for event in events.drain(..).filter_map(hub_event) {
                self.tell(now, event);
            }
            if self.hub.deadline().is_some_and(|deadline| deadline <= now) {
                self.tell(now, Event::Tick);
            }
            if let Some(addresses) = self.hub.take_monitors() {
                self.keeper.update(addresses);
            }
            self.log_rejected(now);
        }
        Ok(())
    }

    /// Logs the first refused client of each interval.
    fn log_rejected(&mut self, now: Time) {
        if let Some(sentence) = self.reactor.take_rejected().first()
            && self.log_at <= now
        {
            let event = TraceEvent::warn("a client was refused").with("why", sentence);
            io::log::write(&event);
            self.log_at = now + LOG_INTERVAL;
        }
    }

    fn turn(
        &mut self,
        deadline: Option<Time>,
        events: &mut Vec<io::Event>,
    ) -> Result<(), io::Error> {
        let failed = |error| io::Error::new("io_uring failed", error);
        self.reactor.turn(deadline, events).map_err(failed)
    }

    fn tell(&mut self, now: Time, event: Event) {
        self.hub.apply(now, event, &mut self.effects);
        let mut effects = std::mem::take(&mut self.effects);
        for effect in effects.drain(..) {
            self.carry_out(now, effect);
        }
        self.effects.append(&mut effects);
    }

    fn carry_out(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Net(effect) => self.reactor.net(effect),
            Effect::Trace(event) => io::log::write(&event),
            Effect::Send(connection, buffers) => self.reactor.raw_send(connection, buffers),
            Effect::ExpectInto(connection, memory, filled) => {
                self.reactor.raw_expect_into(connection, memory, filled);
            }
            Effect::Pause(connection) => self.reactor.raw_pause(connection),
            Effect::Resume(connection) => self.reactor.raw_resume(connection),
            Effect::Close(connection) => self.reactor.raw_close(connection),
            Effect::AskQueued(connection) => {
                let bytes = self.reactor.raw_queued_bytes(connection);
                self.tell(now, Event::Queued(connection, bytes));
            }
        }
    }
}

/// Returns the maximum number of clients at a time. Reserves a quarter of the descriptors for connections to
/// the cluster and for the server itself.
fn client_count_max(descriptor_limit: u64) -> usize {
    let left = descriptor_limit - descriptor_limit / 4;
    usize::try_from(left.min(CLIENT_COUNT_MAX)).expect("at most 1,024")
}

fn hub_event(event: io::Event) -> Option<Event> {
    Some(match event {
        io::Event::RawAccepted { connection, .. } => Event::Accepted(connection),
        io::Event::RawReceived { connection, data } => Event::Received(connection, data),
        io::Event::RawClosed { connection } => Event::Gone(connection),
        io::Event::Net(event) => Event::Net(event),
        io::Event::Terminate => Event::Shutdown,
        io::Event::Disk(_) | io::Event::Woken => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_of_the_descriptors_is_kept_for_the_cluster() {
        assert_eq!(client_count_max(1024), 768);
        assert_eq!(client_count_max(1 << 20), 1024);
        assert_eq!(client_count_max(u64::MAX), 1024);
    }
}
