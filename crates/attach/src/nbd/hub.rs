//! The logic of the NBD server: all clients and the volumes they use. Bytes and network events go in, effects
//! come out.
//!
//! ```text
//!   connection ─▶ Session ─▶ Action ─▶ Running ─▶ ClientCore ─▶ answer ─▶ Replies ─▶ connection
//!                    │
//!                    └ LIST, INFO, GO ─▶ Commands (names, sizes), ClientCore (attach)
//! ```
//!
//! Invariants
//!   1. A volume is attached while at least one client uses it. All its clients share one session, so a
//!      flush of one client covers the writes of all.
//!   2. The requests and unsent replies of each client are bounded, and so are the requests of all
//!      clients together; the server stops reading from a client beyond that. A client must choose an
//!      export within a bounded time.
//!   3. Each name has at most one attached volume. The next volume of that name waits until nothing more is
//!      sent for the previous one, so that a client never sees late writes of a client that has left.
//!   4. When a session is over, its clients receive errors until they disconnect; the next client gets a new
//!      session. If the clients were disconnected or moved to the new session instead, they would repeat
//!      their last writes over data that others have written since, and their next flush would wrongly report
//!      that their earlier writes are durable.
//!   5. A session is kept while acknowledged writes are not durable, even if all its clients have left: a
//!      client may reconnect, and its next flush must cover those writes.

mod nbd_client;
mod requests;
mod slow_clients;
mod volumes;

use std::collections::{BTreeMap, BTreeSet};

use base::scheme::STRIPE_BYTES_MAX;
use base::{Buffer, BufferMut, BufferPool, ConnectionId, Duration, Time, TraceEvent, UNIT_SIZE};
use client::Commands;
use cluster::message::{Command as Ask, Failure};
use format::door::{NetEffect, NetEvent};
use serde_json::Value;
use volume::{
    Answer, Attached, ClientCore, Effect as CoreEffect, Event as CoreEvent, Operation, RequestId,
    Settings, VolumeError, VolumeHandle,
};

use self::nbd_client::Client;
use self::requests::{Requests, Running, Wanted};
use self::slow_clients::SlowClients;
use self::volumes::Volumes;
use super::reply::{Replies, piece_length};
use super::session::{Action, Command, Export, RefusalKind, Request, Session};

/// How long a client may take to choose an export, counted from when it connected or was last refused.
const CHOICE_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum number of bytes read ahead from a client while one of its options waits for the cluster's answer.
const EARLY_INPUT_SIZE_MAX: usize = 256 << 10;
/// Maximum length, in bytes, of the range that one reply about extents covers; the client sends another
/// request for the rest.
const EXTENTS_RANGE_MAX: u32 = 128 << 20;
/// First id of the connections that carry commands to monitors; the client core uses far lower ids.
const COMMAND_CONNECTION_BASE: ConnectionId = ConnectionId::new(1 << 62);

/// An event for the hub.
#[derive(Debug)]
pub enum Event {
    /// The server listens; the hub may connect to the cluster.
    Started,
    /// A client connected.
    Accepted(ConnectionId),
    /// Bytes that a client sent; or the memory of [`Effect::ExpectInto`], once it is full.
    Received(ConnectionId, Buffer),
    /// A client disconnected.
    Gone(ConnectionId),
    /// An event of a connection to the cluster.
    Net(NetEvent),
    /// The answer to [`Effect::AskQueued`]: the number of bytes that wait to be sent.
    Queued(ConnectionId, usize),
    /// The time of [`Hub::deadline`] has come.
    Tick,
    /// Shut down: finish the requests in flight, disconnect clients, detach volumes.
    Shutdown,
    /// The time for the shutdown is over: disconnect clients without waiting for answers. Follows `Shutdown`.
    Abandon,
}

/// An action that the hub requests from its owner.
#[derive(Debug)]
pub enum Effect {
    /// An effect on a connection to the cluster.
    Net(NetEffect),
    /// Send these bytes to a client.
    Send(ConnectionId, Vec<Buffer>),
    /// Receive the client's next bytes into this memory, from this offset on.
    ExpectInto(ConnectionId, BufferMut, usize),
    /// Stop reading from the client.
    Pause(ConnectionId),
    /// Start reading from the client again.
    Resume(ConnectionId),
    /// Close the connection once everything has been sent.
    Close(ConnectionId),
    /// Report how many bytes wait to be sent to the client, with [`Event::Queued`].
    AskQueued(ConnectionId),
    /// A line for the log.
    Trace(TraceEvent),
}

/// Which volumes are served, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exports {
    /// The volumes to serve; empty: all.
    pub names: Vec<String>,
    /// Whether to refuse writes.
    pub read_only: bool,
    /// Whether to attach volumes without their locks: other servers can attach them too, and every write
    /// waits until it is durable.
    pub shared: bool,
}

impl Exports {
    /// Returns the properties of a volume that its clients receive. A preferred size that the protocol does
    /// not allow, from a monitor of another version, is replaced by the size of a unit.
    fn export(&self, size: u64, optimal: u64) -> Export {
        let is_valid =
            optimal.is_power_of_two() && (UNIT_SIZE..=STRIPE_BYTES_MAX).contains(&optimal);
        let preferred_size = if is_valid { optimal as u32 } else { UNIT_SIZE as u32 };
        Export { size, preferred_size, read_only: self.read_only }
    }
}

/// The state of the server.
pub struct Hub {
    exports: Exports,
    pool: BufferPool,
    replies: Replies,
    core: ClientCore,
    commands: Commands,
    clients: BTreeMap<ConnectionId, Client>,
    volumes: Volumes,
    requests: Requests,
    /// Commands to a monitor that are not answered yet, each with the client that waits for the answer.
    asking: BTreeMap<u64, (ConnectionId, Question)>,
    slow_clients: SlowClients,
    /// Clients that have not chosen an export, in the order in which their time to choose ends.
    choosing: BTreeSet<(Time, ConnectionId)>,
    is_ending: bool,
    core_effects: Vec<CoreEffect>,
}

/// What a client requested that only a monitor can answer.
enum Question {
    List,
    /// The size of this volume.
    Describe {
        name: String,
    },
    /// The name of the only volume, which is the default export.
    Default {
        attach: bool,
    },
}

impl Hub {
    /// Creates a hub that serves these exports of the cluster in the settings.
    pub fn new(exports: Exports, settings: Settings, pool: BufferPool) -> Hub {
        let commands = Commands::new(settings.monitors.clone(), COMMAND_CONNECTION_BASE);
        Hub {
            exports,
            replies: Replies::new(pool.clone()),
            core: ClientCore::new(settings, pool.clone()),
            pool,
            commands,
            clients: BTreeMap::new(),
            volumes: Volumes::default(),
            requests: Requests::new(),
            asking: BTreeMap::new(),
            slow_clients: SlowClients::default(),
            choosing: BTreeSet::new(),
            is_ending: false,
            core_effects: Vec::new(),
        }
    }

    /// Returns the latest time for the next `Event::Tick`.
    pub fn deadline(&self) -> Option<Time> {
        let choice = self.choosing.first().map(|(until, _)| *until);
        let moments =
            [self.core.deadline(), self.commands.deadline(), self.slow_clients.deadline(), choice];
        moments.into_iter().flatten().min()
    }

    /// Returns the addresses of the monitors, if they have changed since the last call.
    pub fn take_monitors(&mut self) -> Option<Vec<String>> {
        self.core.take_monitors()
    }

    /// Whether the server is shutting down.
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Whether the shutdown is complete.
    pub fn is_finished(&self) -> bool {
        self.is_ending && self.clients.is_empty() && self.volumes.is_empty()
    }

    /// Whether a monitor has confirmed that every session is over, so that others can get the locks.
    pub fn is_parted(&self) -> bool {
        self.core.is_parted()
    }

    /// Handles one event and appends its effects.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Started => self.tell_core(now, CoreEvent::Connect, effects),
            Event::Accepted(connection) => self.on_accepted(now, connection, effects),
            Event::Received(connection, bytes) => {
                if let Some(client) = self.clients.get_mut(&connection) {
                    client.session.received(bytes);
                    self.pump(now, connection, effects);
                }
            }
            Event::Gone(connection) => self.forget_client(now, connection, effects),
            Event::Net(event) => self.on_net(now, event, effects),
            Event::Queued(connection, bytes) => self.on_queued(now, connection, bytes, effects),
            Event::Tick => self.on_tick(now, effects),
            Event::Shutdown => {
                self.is_ending = true;
                for connection in self.clients.keys().copied().collect::<Vec<_>>() {
                    self.leave(now, connection, effects);
                }
                for handle in self.volumes.unused() {
                    self.detach(now, handle, effects);
                }
            }
            Event::Abandon => {
                // A disconnected client retries with another server, but would treat an error as
                // final.
                for connection in self.clients.keys().copied().collect::<Vec<_>>() {
                    effects.push(Effect::Close(connection));
                    self.forget_client(now, connection, effects);
                }
            }
        }
    }

    fn on_tick(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.core.deadline().is_some_and(|deadline| deadline <= now) {
            self.tell_core(now, CoreEvent::Tick, effects);
        }
        let mut net = Vec::new();
        self.commands.tick(now, &mut net);
        effects.extend(net.into_iter().map(Effect::Net));
        effects.extend(self.slow_clients.due(now).map(Effect::AskQueued));
        while let Some((until, connection)) = self.choosing.first().copied()
            && until <= now
        {
            effects.push(Effect::Close(connection));
            self.forget_client(now, connection, effects);
        }
    }

    fn on_net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
        let connection = match &event {
            NetEvent::Accepted { connection, .. }
            | NetEvent::Connected { connection, .. }
            | NetEvent::Received { connection, .. }
            | NetEvent::Closed { connection, .. } => *connection,
        };
        if !self.commands.is(connection) {
            return self.tell_core(now, CoreEvent::Net(event), effects);
        }
        let (mut net, mut answers) = (Vec::new(), Vec::new());
        self.commands.apply(now, event, &mut net, &mut answers);
        effects.extend(net.into_iter().map(Effect::Net));
        for (ask, result) in answers {
            if let Some((connection, question)) = self.asking.remove(&ask) {
                let client =
                    self.clients.get_mut(&connection).expect("a removed client has no command");
                client.ask = None;
                self.on_answer(now, connection, question, result, effects);
            }
        }
    }

    // ---- clients

    fn on_accepted(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        if self.is_ending {
            effects.push(Effect::Close(connection));
            return;
        }
        let client = Client::new(Session::new(self.pool.clone()));
        self.clients.insert(connection, client);
        self.await_choice(connection, Some(now + CHOICE_TIME_MAX));
        self.pump(now, connection, effects);
    }

    /// Handles the client's input until a bound is reached, then continues reading or pauses.
    fn pump(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        loop {
            let Some(client) = self.clients.get_mut(&connection) else { return };
            if client.is_leaving {
                return;
            }
            if client.is_full() {
                self.hold_back(now, connection, effects);
                return;
            }
            if !self.requests.has_room() && client.volume.is_some() {
                pause(client, true, connection, effects);
                if !std::mem::replace(&mut client.is_queued, true) {
                    self.requests.wait(connection);
                }
                return;
            }
            let command = client.session.next();
            self.send_output(connection, effects);
            match command {
                Some(command) => self.on_command(now, connection, command, effects),
                None => break,
            }
        }
        let client = self.clients.get_mut(&connection).expect("the client was found above");
        if let Some((memory, filled)) = client.session.lend() {
            effects.push(Effect::ExpectInto(connection, memory, filled));
        }
        let is_early = client.session.input_size() > EARLY_INPUT_SIZE_MAX;
        pause(client, is_early, connection, effects);
    }

    /// Lets waiting clients continue after requests have ended, while there is room.
    fn admit(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while let Some(connection) = self.requests.next_waiting() {
            if let Some(client) = self.clients.get_mut(&connection) {
                client.is_queued = false;
                self.pump(now, connection, effects);
            }
        }
    }

    /// Sets the end of a client's time to choose an export; `None`: it has chosen.
    fn await_choice(&mut self, connection: ConnectionId, until: Option<Time>) {
        let client = self.clients.get_mut(&connection).expect("the caller found the client");
        if let Some(before) = std::mem::replace(&mut client.choose_until, until) {
            self.choosing.remove(&(before, connection));
        }
        self.choosing.extend(until.map(|until| (until, connection)));
    }

    /// Stops reading from a client that has reached its bounds, until its replies are sent.
    fn hold_back(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let client = self.clients.get_mut(&connection).expect("the client was found above");
        pause(client, true, connection, effects);
        if client.waits_for_sends() {
            self.slow_clients.add(now, connection);
            effects.push(Effect::AskQueued(connection));
        }
    }

    fn on_queued(
        &mut self,
        now: Time,
        connection: ConnectionId,
        bytes: usize,
        effects: &mut Vec<Effect>,
    ) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        client.sent_bytes = bytes;
        if self.slow_clients.contains(connection) && !client.is_full() {
            self.slow_clients.remove(connection);
            self.pump(now, connection, effects);
        }
    }

    fn on_command(
        &mut self,
        now: Time,
        connection: ConnectionId,
        command: Command,
        effects: &mut Vec<Effect>,
    ) {
        match command {
            Command::List => self.ask(connection, Question::List, Ask::VolumeList, effects),
            Command::Describe { name } => self.find(now, connection, name, false, effects),
            Command::Attach { name } => {
                self.await_choice(connection, None);
                self.find(now, connection, name, true, effects);
            }
            Command::Request(request) => self.begin(now, connection, request, effects),
            Command::Close => self.leave(now, connection, effects),
        }
    }

    fn send_output(&mut self, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        if let Some(output) = client.session.take_output() {
            client.sent_bytes += output.len();
            effects.push(Effect::Send(connection, vec![output]));
        }
    }

    /// Disconnects a client once its requests are answered.
    fn leave(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        client.is_leaving = true;
        pause(client, true, connection, effects);
        if client.is_idle() {
            effects.push(Effect::Close(connection));
            self.forget_client(now, connection, effects);
        }
    }

    /// Removes a client; when the last client of a volume is removed, the volume is detached.
    fn forget_client(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.remove(&connection) else { return };
        self.slow_clients.remove(connection);
        if let Some(until) = client.choose_until {
            self.choosing.remove(&(until, connection));
        }
        if let Some(ask) = client.ask {
            self.asking.remove(&ask);
            self.commands.forget(ask);
        }
        let Some(handle) = client.volume else { return };
        if self.volumes.leave(handle, connection) {
            self.detach(now, handle, effects);
        }
    }

    // ---- volumes

    /// Finds the volume whose name a client sent, and attaches or describes it.
    fn find(
        &mut self,
        now: Time,
        connection: ConnectionId,
        name: String,
        attach: bool,
        effects: &mut Vec<Effect>,
    ) {
        let name = match (&name[..], &self.exports.names[..]) {
            ("", [only]) => only.clone(),
            ("", _) => {
                let question = Question::Default { attach };
                return self.ask(connection, question, Ask::VolumeList, effects);
            }
            _ => name,
        };
        if !self.is_exported(&name) {
            let why = format!("this server does not serve volume {name:?}");
            return self.refuse(now, connection, RefusalKind::Unknown, &why, effects);
        }
        if attach {
            self.join(now, connection, name, effects);
        } else {
            let ask = Ask::VolumeInfo { volume: name.clone() };
            self.ask(connection, Question::Describe { name }, ask, effects);
        }
    }

    fn is_exported(&self, name: &str) -> bool {
        self.exports.names.is_empty() || self.exports.names.iter().any(|served| served == name)
    }

    fn ask(
        &mut self,
        connection: ConnectionId,
        question: Question,
        ask: Ask,
        effects: &mut Vec<Effect>,
    ) {
        let mut net = Vec::new();
        let ask = self.commands.ask(ask, &mut net);
        self.asking.insert(ask, (connection, question));
        let client = self.clients.get_mut(&connection).expect("the client is connected");
        client.ask = Some(ask);
        effects.extend(net.into_iter().map(Effect::Net));
    }

    /// Handles a monitor's answer to a command that was sent for a client.
    fn on_answer(
        &mut self,
        now: Time,
        connection: ConnectionId,
        question: Question,
        result: Result<Value, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(client) = self.clients.get_mut(&connection).filter(|client| !client.is_leaving)
        else {
            return;
        };
        let value = match result {
            Ok(value) => value,
            Err(failure) => {
                let kind = refusal_kind(&failure);
                return self.refuse(now, connection, kind, &failure.message, effects);
            }
        };
        match question {
            Question::List => {
                let names = names_of(&value);
                let exported = names.iter().copied().filter(|name| self.is_exported(name));
                let exported: Vec<&str> = exported.collect();
                let client = self.clients.get_mut(&connection).expect("the client was found above");
                client.session.listed(exported);
            }
            Question::Describe { name } => match value["size_bytes"].as_u64() {
                Some(size) => {
                    let optimal = value["optimal_io_size"].as_u64().unwrap_or(UNIT_SIZE);
                    client.session.opened(self.exports.export(size, optimal));
                }
                None => {
                    let why = format!("the monitor did not report the size of volume {name}");
                    return self.refuse(now, connection, RefusalKind::Policy, &why, effects);
                }
            },
            Question::Default { attach } => {
                let names = names_of(&value);
                let mut exported = names.iter().filter(|name| self.is_exported(name));
                let (Some(only), None) = (exported.next(), exported.next()) else {
                    let why = "there is no default export: request a volume by name";
                    return self.refuse(now, connection, RefusalKind::Unknown, why, effects);
                };
                return self.find(now, connection, only.to_string(), attach, effects);
            }
        }
        self.pump(now, connection, effects);
    }

    fn refuse(
        &mut self,
        now: Time,
        connection: ConnectionId,
        kind: RefusalKind,
        why: &str,
        effects: &mut Vec<Effect>,
    ) {
        let client = self.clients.get_mut(&connection).expect("the client waits for an answer");
        client.session.refused(kind, why);
        if client.choose_until.is_none() {
            self.await_choice(connection, Some(now + CHOICE_TIME_MAX));
        }
        self.pump(now, connection, effects);
    }

    /// Adds a client to the volume of this name; attaches the volume first if necessary.
    fn join(
        &mut self,
        now: Time,
        connection: ConnectionId,
        name: String,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(handle) = self.volumes.offered(&name)
            && self.core.is_over(handle)
        {
            self.volumes.withdraw(handle);
        }
        let client = self.clients.get_mut(&connection).expect("the client is connected");
        if let Some(handle) = self.volumes.offered(&name) {
            client.volume = Some(handle);
            if self.volumes.join(handle, connection) {
                self.welcome(now, connection, handle, effects);
            }
            return;
        }
        let handle = self.volumes.add(name, connection);
        client.volume = Some(handle);
        self.open(now, handle, effects);
    }

    /// Attaches a volume if its turn has come.
    fn open(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let turn = self.volumes.take_turn(handle, |other| self.core.is_over(other));
        let Some(name) = turn else { return };
        let (read_only, lock) = (self.exports.read_only, !self.exports.shared);
        let open = CoreEvent::Open { volume: handle, name, read_only, lock };
        self.tell_core(now, open, effects);
    }

    fn on_opened(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        result: Result<Attached, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let failure = match result {
            Ok(attached) => {
                for connection in self.volumes.on_attached(handle, attached) {
                    self.welcome(now, connection, handle, effects);
                }
                return;
            }
            Err(failure) => failure,
        };
        for connection in self.volumes.on_refused(handle) {
            let client = self.clients.get_mut(&connection).expect("its clients are connected");
            client.volume = None;
            if !client.is_leaving {
                let kind = refusal_kind(&failure);
                self.refuse(now, connection, kind, &what_and_hint(&failure), effects);
            }
        }
    }

    fn on_closed(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        if let Some(next) = self.volumes.on_detached(handle) {
            self.open(now, next, effects);
        }
    }

    fn welcome(
        &mut self,
        now: Time,
        connection: ConnectionId,
        handle: VolumeHandle,
        effects: &mut Vec<Effect>,
    ) {
        let size = self.volumes.size(handle);
        let export = self.exports.export(size, self.core.optimal_io_bytes(handle));
        let client = self.clients.get_mut(&connection).expect("its clients are connected");
        if !client.is_leaving {
            client.session.opened(export);
            self.pump(now, connection, effects);
        }
    }

    /// Detaches a volume that has no clients, or whose session is over. The next client of that name
    /// attaches the volume again, with its current properties.
    fn detach(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        self.volumes.withdraw(handle);
        let patient = !self.is_ending;
        self.tell_core(now, CoreEvent::Close { volume: handle, patient }, effects);
    }

    // ---- requests

    fn begin(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        effects: &mut Vec<Effect>,
    ) {
        let client = self.clients.get_mut(&connection).expect("the client is connected");
        let handle = client.volume.expect("only an attached client sends requests");
        let (weight, wanted, operation) = match request.action {
            Action::Read { offset, length, whole } => {
                let operation = Operation::Read { offset, length: length.into() };
                (length as usize, Wanted::Data { offset, length, whole }, operation)
            }
            Action::Write { offset, data, durable } => {
                (data.len(), Wanted::Done, Operation::Write { offset, data, durable })
            }
            Action::Zero { offset, length, durable, is_hint } => {
                let wanted = if is_hint { Wanted::Trimmed } else { Wanted::Done };
                (0, wanted, Operation::Zero { offset, length: length.into(), durable })
            }
            Action::Flush => (0, Wanted::Done, Operation::Flush),
            Action::Extents { offset, length, first_only } => {
                let length = length.min(EXTENTS_RANGE_MAX).into();
                (0, Wanted::Extents { first_only }, Operation::Extents { offset, length })
            }
        };
        client.on_begin(weight);
        let cookie = request.cookie;
        let id = self.requests.begin(Running { connection, cookie, weight, wanted });
        // A disk waits for as long as the session lasts.
        let deadline = None;
        let event = CoreEvent::Request { id, volume: handle, operation, deadline };
        self.tell_core(now, event, effects);
    }

    fn on_done(
        &mut self,
        now: Time,
        id: RequestId,
        result: Result<Answer, VolumeError>,
        effects: &mut Vec<Effect>,
    ) {
        let running = self.requests.end(id);
        self.reply(now, &running, result, effects);
        self.admit(now, effects);
    }

    fn reply(
        &mut self,
        now: Time,
        running: &Running,
        result: Result<Answer, VolumeError>,
        effects: &mut Vec<Effect>,
    ) {
        let connection = running.connection;
        let Some(client) = self.clients.get_mut(&connection) else { return };
        let was_full = client.is_full();
        let structured = client.session.is_structured();
        let buffers = reply(&self.replies, structured, running, result);
        client.on_end(running.weight, buffers.iter().map(|buffer| buffer.len()).sum());
        effects.push(Effect::Send(connection, buffers));
        if client.is_leaving {
            self.leave(now, connection, effects);
        } else if was_full {
            self.pump(now, connection, effects);
        }
    }

    // ---- the client core

    fn tell_core(&mut self, now: Time, event: CoreEvent, effects: &mut Vec<Effect>) {
        let mut core_effects = std::mem::take(&mut self.core_effects);
        self.core.apply(now, event, &mut core_effects);
        for effect in core_effects.drain(..) {
            match effect {
                CoreEffect::Net(effect) => effects.push(Effect::Net(effect)),
                CoreEffect::Trace(event) => effects.push(Effect::Trace(event)),
                CoreEffect::Opened { volume, result } => {
                    self.on_opened(now, volume, result, effects)
                }
                CoreEffect::Closed { volume } => self.on_closed(now, volume, effects),
                CoreEffect::Done { id, result } => self.on_done(now, id, result, effects),
            }
        }
        self.core_effects = core_effects;
    }
}

/// Stops or starts reading from a client.
fn pause(
    client: &mut Client,
    is_paused: bool,
    connection: ConnectionId,
    effects: &mut Vec<Effect>,
) {
    if client.set_paused(is_paused) {
        let effect = if is_paused { Effect::Pause } else { Effect::Resume };
        effects.push(effect(connection));
    }
}

fn reply(
    replies: &Replies,
    structured: bool,
    running: &Running,
    result: Result<Answer, VolumeError>,
) -> Vec<Buffer> {
    let cookie = running.cookie;
    match (running.wanted, result) {
        (Wanted::Data { offset, length, whole }, Ok(Answer::Data(pieces))) => {
            // A reply of another length would misalign everything that follows it on the connection.
            assert!(pieces.iter().map(piece_length).sum::<u64>() == u64::from(length));
            match (structured, whole) {
                (false, _) => replies.simple_data(cookie, pieces),
                (true, true) => replies.whole_data(cookie, offset, pieces),
                (true, false) => replies.chunked_data(cookie, offset, pieces),
            }
        }
        (Wanted::Extents { first_only }, Ok(Answer::Extents(extents))) => {
            replies.extents(cookie, &extents, first_only)
        }
        (Wanted::Done | Wanted::Trimmed, Ok(Answer::Done)) => replies.done(cookie),
        // In a full pool with parity, trimming a part of a stripe may need space. An error would end the
        // client's `fstrim`, which is to make space.
        (Wanted::Trimmed, Err(VolumeError::Full)) => replies.done(cookie),
        (Wanted::Data { .. } | Wanted::Extents { .. }, Err(error)) => {
            replies.error(structured, cookie, &error)
        }
        (Wanted::Done | Wanted::Trimmed, Err(error)) => replies.error(false, cookie, &error),
        (_, Ok(_)) => unreachable!("the answer has the form of the request"),
    }
}

fn refusal_kind(failure: &Failure) -> RefusalKind {
    match &failure.code[..] {
        "not_found" => RefusalKind::Unknown,
        _ => RefusalKind::Policy,
    }
}

/// Returns the error message for a client; client programs show it to users unchanged.
fn what_and_hint(failure: &Failure) -> String {
    match failure.hint.is_empty() {
        true => failure.message.clone(),
        false => format!("{}; {}", failure.message, failure.hint),
    }
}

/// Returns the names in a monitor's list of volumes.
fn names_of(value: &Value) -> Vec<&str> {
    let rows = value.as_array().map_or(&[][..], |rows| rows);
    rows.iter().filter_map(|row| row["name"].as_str()).collect()
}

#[cfg(test)]
mod tests;
