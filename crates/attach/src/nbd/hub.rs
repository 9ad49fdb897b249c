//! All NBD clients and the volumes they use, as a value: bytes and net events in, effects out.
//!
//! ```text
//!   connection ─▶ Session ─▶ Action ─▶ Running ─▶ ClientCore ─▶ answer ─▶ Replies ─▶ connection
//!                    │
//!                    └ LIST, INFO, GO ─▶ Commands (names, sizes), ClientCore (attach)
//! ```
//!
//! Invariants
//!   1. A volume is attached while a client uses it: from the first that opens it to the last that
//!      leaves. All its clients share one session, so a flush of one covers the writes of all.
//!   2. A client's requests and unsent replies are bounded, and the requests of all together;
//!      beyond that it is not read. Until it uses an export it has a bounded time.
//!   3. Of a name one volume at a time is attached: the next one waits until nothing more is sent
//!      for the one before, so that a client never meets late writes of one that has left.
//!   4. When a session is over its clients get errors to the end of their connections, and the next
//!      to connect gets a new session. One that was cut off, or served by the new session, would
//!      send its last writes again, over what another has written since, and be told by its next
//!      flush that what it wrote before is durable.
//!   5. While what was done lazily is not durable its session is kept although its clients have left:
//!      one may come back, and its next flush speaks of that, too.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::{Buffer, BufferMut, BufferPool, ConnectionId, Duration, Time, TraceEvent};
use client::Commands;
use cluster::message::{Command as Ask, Failure};
use format::door::{NetEffect, NetEvent};
use serde_json::Value;
use slab::Slab;
use volume::{
    Answer, Attached, ClientCore, Effect as CoreEffect, Event as CoreEvent, Operation, RequestId,
    Settings, VolumeError, VolumeHandle,
};

use super::reply::Replies;
use super::session::{Action, Command, Export, RefusalKind, Request, Session};

/// Most bytes of one client's requests under way and of replies it has not taken.
const CLIENT_BYTES_MAX: usize = 64 << 20;
/// Most bytes of all clients' requests under way; the last one may go beyond.
const BYTES_MAX: usize = 512 << 20;
/// So long a client may take to choose an export, from its connect or its last refusal.
const CHOICE_TIME_MAX: Duration = Duration::from_secs(30);
/// Most requests of one client under way.
const CLIENT_REQUEST_COUNT_MAX: usize = 1024;
/// A client that talks on while its question is open is not read beyond this, in bytes.
const EARLY_INPUT_SIZE_MAX: usize = 256 << 10;
/// A question for extents is answered for at most this many bytes; the client asks on.
const EXTENTS_RANGE_MAX: u32 = 128 << 20;
/// How often it is looked whether a slow client has taken its replies.
const QUEUE_POLL_DELAY: Duration = Duration::from_millis(5);
/// The commands' connections are numbered far from the client core's.
const COMMAND_CONNECTION_BASE: ConnectionId = ConnectionId::new(1 << 62);

/// What the hub is told.
#[derive(Debug)]
pub enum Event {
    /// The server listens: the cluster may know of it.
    Started,
    /// A client connected.
    Accepted(ConnectionId),
    /// Bytes came: as they arrived, or the lent memory, full.
    Received(ConnectionId, Buffer),
    /// A client is gone.
    Gone(ConnectionId),
    /// From the cluster.
    Net(NetEvent),
    /// The answer to [`Effect::AskQueued`]: so many bytes wait to be sent.
    Queued(ConnectionId, usize),
    /// The moment of [`Hub::deadline`] came.
    Tick,
    /// End: what was begun is finished, clients are let go, volumes detached.
    Shutdown,
    /// Its time is over: clients are let go without the answers that they wait for. Follows `Shutdown`.
    Abandon,
}

/// What the hub asks.
#[derive(Debug)]
pub enum Effect {
    /// Of the network inside the cluster.
    Net(NetEffect),
    /// Send to a client.
    Send(ConnectionId, Vec<Buffer>),
    /// The client's next bytes go to this memory from there on.
    ExpectInto(ConnectionId, BufferMut, usize),
    /// Do not read from the client.
    Pause(ConnectionId),
    /// Read from the client again.
    Resume(ConnectionId),
    /// Close when everything is sent.
    Close(ConnectionId),
    /// How many bytes wait to be sent to the client? Answered by [`Event::Queued`].
    AskQueued(ConnectionId),
    /// Something happened that is worth a line of the log.
    Trace(TraceEvent),
}

/// Which volumes are served, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exports {
    /// Only these; all if there are none here.
    pub names: Vec<String>,
    /// Writes are refused.
    pub read_only: bool,
    /// Volumes are attached without their locks: others may have them attached, too, and every
    /// write waits until it is durable.
    pub shared: bool,
}

/// The server as a value.
pub struct Hub {
    exports: Exports,
    pool: BufferPool,
    replies: Replies,
    core: ClientCore,
    commands: Commands,
    clients: BTreeMap<ConnectionId, Client>,
    /// The volume that the next client of a name joins: attached, or to be.
    volumes_by_name: BTreeMap<String, VolumeHandle>,
    volumes: BTreeMap<VolumeHandle, Volume>,
    last_volume: u64,
    running: Slab<Running>,
    /// Who waits for the answer to a command.
    asking: BTreeMap<u64, (ConnectionId, Question)>,
    /// Clients with too many unsent bytes.
    stalled: BTreeSet<ConnectionId>,
    /// Bytes of all requests under way.
    byte_count: usize,
    /// Clients that wait for others' requests to end, in the order they came; some are gone.
    queued: VecDeque<ConnectionId>,
    /// Clients that have not chosen an export, by the end of their time.
    choosing: BTreeSet<(Time, ConnectionId)>,
    poll_at: Option<Time>,
    is_ending: bool,
    core_effects: Vec<CoreEffect>,
}

struct Client {
    session: Session,
    /// When it must have chosen an export.
    choose_until: Option<Time>,
    /// Its question to a monitor that is not answered.
    ask: Option<u64>,
    /// The volume it uses or waits for.
    volume: Option<VolumeHandle>,
    request_count: usize,
    byte_count: usize,
    /// Bytes sent since it was last known how many wait.
    sent_bytes: usize,
    is_paused: bool,
    /// It stands in the list of those that wait for others.
    is_queued: bool,
    /// Nothing more is read; it is closed when its requests are answered.
    is_leaving: bool,
}

struct Volume {
    name: String,
    /// It is not asked for yet: the one of its name before is still being detached.
    is_waiting: bool,
    attached: Option<Attached>,
    clients: BTreeSet<ConnectionId>,
}

/// A request of a client that the client core works on.
struct Running {
    connection: ConnectionId,
    cookie: u64,
    weight: usize,
    wanted: Wanted,
}

/// How a request is answered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Data { offset: u64, whole: bool },
    Extents { first_only: bool },
    Done,
}

/// A question of a client that a monitor answers.
enum Question {
    List,
    /// The size of this volume.
    Describe {
        name: String,
    },
    /// The name of the only volume.
    Default {
        attach: bool,
    },
}

impl Hub {
    /// Serves these exports of the cluster that the settings name.
    pub fn new(exports: Exports, settings: Settings, pool: BufferPool) -> Hub {
        let commands = Commands::new(settings.monitors.clone(), COMMAND_CONNECTION_BASE);
        Hub {
            exports,
            replies: Replies::new(pool.clone()),
            core: ClientCore::new(settings, pool.clone()),
            pool,
            commands,
            clients: BTreeMap::new(),
            volumes_by_name: BTreeMap::new(),
            volumes: BTreeMap::new(),
            last_volume: 0,
            running: Slab::new(),
            asking: BTreeMap::new(),
            stalled: BTreeSet::new(),
            byte_count: 0,
            queued: VecDeque::new(),
            choosing: BTreeSet::new(),
            poll_at: None,
            is_ending: false,
            core_effects: Vec::new(),
        }
    }

    /// When `Event::Tick` is wanted at the latest.
    pub fn deadline(&self) -> Option<Time> {
        let choice = self.choosing.first().map(|(until, _)| *until);
        let moments = [self.core.deadline(), self.commands.deadline(), self.poll_at, choice];
        moments.into_iter().flatten().min()
    }

    /// Where monitors listen, if one of them said so and it is another list than the one taken before.
    pub fn take_monitors(&mut self) -> Option<Vec<String>> {
        self.core.take_monitors()
    }

    /// Whether it was told to end.
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// After a shutdown: whether everything has ended.
    pub fn is_finished(&self) -> bool {
        self.is_ending && self.clients.is_empty() && self.volumes.is_empty()
    }

    /// Whether a monitor is known to have heard of every volume that was detached: others may have
    /// their locks.
    pub fn is_parted(&self) -> bool {
        self.core.is_parted()
    }

    /// Takes one event and appends what follows from it.
    pub fn apply(&mut self, now: Time, event: Event, effects: &mut Vec<Effect>) {
        match event {
            Event::Started => self.tell_core(now, CoreEvent::Connect, effects),
            Event::Accepted(connection) => self.accepted(now, connection, effects),
            Event::Received(connection, bytes) => {
                if let Some(client) = self.clients.get_mut(&connection) {
                    client.session.received(bytes);
                    self.pump(now, connection, effects);
                }
            }
            Event::Gone(connection) => self.forget_client(now, connection, effects),
            Event::Net(event) => self.apply_net(now, event, effects),
            Event::Queued(connection, bytes) => self.queued(now, connection, bytes, effects),
            Event::Tick => self.tick(now, effects),
            Event::Shutdown => {
                self.is_ending = true;
                for connection in self.clients.keys().copied().collect::<Vec<_>>() {
                    self.leave(now, connection, effects);
                }
                let unused = self.volumes.iter().filter(|(_, volume)| volume.clients.is_empty());
                for handle in unused.map(|(handle, _)| *handle).collect::<Vec<_>>() {
                    self.detach(now, handle, effects);
                }
            }
            Event::Abandon => {
                // A client that is cut off asks another server again; an error it would believe.
                for connection in self.clients.keys().copied().collect::<Vec<_>>() {
                    effects.push(Effect::Close(connection));
                    self.forget_client(now, connection, effects);
                }
            }
        }
    }

    fn tick(&mut self, now: Time, effects: &mut Vec<Effect>) {
        if self.core.deadline().is_some_and(|deadline| deadline <= now) {
            self.tell_core(now, CoreEvent::Tick, effects);
        }
        let mut net = Vec::new();
        self.commands.tick(now, &mut net);
        effects.extend(net.into_iter().map(Effect::Net));
        if self.poll_at.is_some_and(|at| at <= now) {
            self.poll_at = (!self.stalled.is_empty()).then_some(now + QUEUE_POLL_DELAY);
            effects.extend(self.stalled.iter().copied().map(Effect::AskQueued));
        }
        while let Some((until, connection)) = self.choosing.first().copied()
            && until <= now
        {
            effects.push(Effect::Close(connection));
            self.forget_client(now, connection, effects);
        }
    }

    fn apply_net(&mut self, now: Time, event: NetEvent, effects: &mut Vec<Effect>) {
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
                let client = self.clients.get_mut(&connection).expect("its asks go with it");
                client.ask = None;
                self.answered(now, connection, question, result, effects);
            }
        }
    }

    // ---- clients

    fn accepted(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        if self.is_ending {
            effects.push(Effect::Close(connection));
            return;
        }
        let client = Client {
            session: Session::new(self.pool.clone()),
            choose_until: None,
            ask: None,
            volume: None,
            request_count: 0,
            byte_count: 0,
            sent_bytes: 0,
            is_paused: false,
            is_queued: false,
            is_leaving: false,
        };
        self.clients.insert(connection, client);
        self.await_choice(connection, Some(now + CHOICE_TIME_MAX));
        self.pump(now, connection, effects);
    }

    /// Does what the client has asked, as far as its bounds allow; reads on or does not.
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
            if self.byte_count >= BYTES_MAX && client.volume.is_some() {
                client.pause(true, connection, effects);
                if !std::mem::replace(&mut client.is_queued, true) {
                    self.queued.push_back(connection);
                }
                return;
            }
            let command = client.session.next();
            self.send_output(connection, effects);
            match command {
                Some(command) => self.command(now, connection, command, effects),
                None => break,
            }
        }
        let client = self.clients.get_mut(&connection).expect("looked at just now");
        if let Some((memory, filled)) = client.session.lend() {
            effects.push(Effect::ExpectInto(connection, memory, filled));
        }
        let is_early = client.session.input_size() > EARLY_INPUT_SIZE_MAX;
        client.pause(is_early, connection, effects);
    }

    /// Requests have ended: clients that waited for that go on, as far as there is room now.
    fn admit(&mut self, now: Time, effects: &mut Vec<Effect>) {
        while self.byte_count < BYTES_MAX
            && let Some(connection) = self.queued.pop_front()
        {
            if let Some(client) = self.clients.get_mut(&connection) {
                client.is_queued = false;
                self.pump(now, connection, effects);
            }
        }
    }

    /// Sets until when a client must have chosen an export; `None`: it has.
    fn await_choice(&mut self, connection: ConnectionId, until: Option<Time>) {
        let client = self.clients.get_mut(&connection).expect("the caller knows it");
        if let Some(before) = std::mem::replace(&mut client.choose_until, until) {
            self.choosing.remove(&(before, connection));
        }
        self.choosing.extend(until.map(|until| (until, connection)));
    }

    /// The client's bounds are reached: it is not read until replies have left.
    fn hold_back(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let client = self.clients.get_mut(&connection).expect("looked at just now");
        client.pause(true, connection, effects);
        if client.byte_count + client.sent_bytes >= CLIENT_BYTES_MAX && client.sent_bytes > 0 {
            self.stalled.insert(connection);
            self.poll_at.get_or_insert(now + QUEUE_POLL_DELAY);
            effects.push(Effect::AskQueued(connection));
        }
    }

    fn queued(
        &mut self,
        now: Time,
        connection: ConnectionId,
        bytes: usize,
        effects: &mut Vec<Effect>,
    ) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        client.sent_bytes = bytes;
        if self.stalled.contains(&connection) && !client.is_full() {
            self.stalled.remove(&connection);
            self.pump(now, connection, effects);
        }
    }

    fn command(
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

    /// Lets a client go once its requests are answered.
    fn leave(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.get_mut(&connection) else { return };
        client.is_leaving = true;
        client.pause(true, connection, effects);
        if client.request_count == 0 {
            effects.push(Effect::Close(connection));
            self.forget_client(now, connection, effects);
        }
    }

    /// A client is gone; the last one of a volume detaches it.
    fn forget_client(&mut self, now: Time, connection: ConnectionId, effects: &mut Vec<Effect>) {
        let Some(client) = self.clients.remove(&connection) else { return };
        self.stalled.remove(&connection);
        if let Some(until) = client.choose_until {
            self.choosing.remove(&(until, connection));
        }
        if let Some(ask) = client.ask {
            self.asking.remove(&ask);
            self.commands.forget(ask);
        }
        let Some(handle) = client.volume else { return };
        let Some(volume) = self.volumes.get_mut(&handle) else { return };
        volume.clients.remove(&connection);
        if volume.clients.is_empty() {
            self.detach(now, handle, effects);
        }
    }

    // ---- volumes

    /// Finds the volume a client names, and attaches or describes it.
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
            let why = format!("volume {name:?} is not served here");
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
        let client = self.clients.get_mut(&connection).expect("it asks");
        client.ask = Some(ask);
        effects.extend(net.into_iter().map(Effect::Net));
    }

    /// A monitor answered a client's question.
    fn answered(
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
                let client = self.clients.get_mut(&connection).expect("looked at above");
                client.session.listed(exported);
            }
            Question::Describe { name } => match value["size_bytes"].as_u64() {
                Some(size) => {
                    client.session.opened(Export { size, read_only: self.exports.read_only });
                }
                None => {
                    let why = format!("the monitor does not tell the size of volume {name}");
                    return self.refuse(now, connection, RefusalKind::Policy, &why, effects);
                }
            },
            Question::Default { attach } => {
                let names = names_of(&value);
                let mut exported = names.iter().filter(|name| self.is_exported(name));
                let (Some(only), None) = (exported.next(), exported.next()) else {
                    let why = "there is no default export: name a volume";
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
        let client = self.clients.get_mut(&connection).expect("its question is open");
        client.session.refused(kind, why);
        if client.choose_until.is_none() {
            self.await_choice(connection, Some(now + CHOICE_TIME_MAX));
        }
        self.pump(now, connection, effects);
    }

    /// A client uses a volume: attached already, or to be attached for it.
    fn join(
        &mut self,
        now: Time,
        connection: ConnectionId,
        name: String,
        effects: &mut Vec<Effect>,
    ) {
        if let Some(handle) = self.volumes_by_name.get(&name).copied()
            && self.core.is_over(handle)
        {
            self.forget_name(handle);
        }
        let client = self.clients.get_mut(&connection).expect("it asks");
        if let Some(handle) = self.volumes_by_name.get(&name).copied() {
            client.volume = Some(handle);
            let volume = self.volumes.get_mut(&handle).expect("listed by its name");
            volume.clients.insert(connection);
            if volume.attached.is_some() {
                self.welcome(now, connection, handle, effects);
            }
            return;
        }
        self.last_volume += 1;
        let handle = VolumeHandle(self.last_volume);
        client.volume = Some(handle);
        let clients = BTreeSet::from([connection]);
        self.volumes_by_name.insert(name.clone(), handle);
        let volume = Volume { name, is_waiting: true, attached: None, clients };
        self.volumes.insert(handle, volume);
        self.open(now, handle, effects);
    }

    /// Attaches a volume that waits, once it is the only one of its name.
    fn open(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let name = self.volumes[&handle].name.clone();
        let is_before = |(other, volume): (&VolumeHandle, &Volume)| {
            *other != handle && volume.name == name && !self.core.is_over(*other)
        };
        if self.volumes.iter().any(is_before) {
            return;
        }
        let volume = self.volumes.get_mut(&handle).expect("looked at above");
        if std::mem::take(&mut volume.is_waiting) {
            let (read_only, lock) = (self.exports.read_only, !self.exports.shared);
            let open = CoreEvent::Open { volume: handle, name, read_only, lock };
            self.tell_core(now, open, effects);
        }
    }

    /// A volume is detached: the next of its name may be attached.
    fn closed(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        let Some(volume) = self.volumes.remove(&handle) else { return };
        if let Some(next) = self.volumes_by_name.get(&volume.name).copied() {
            self.open(now, next, effects);
        }
    }

    fn opened(
        &mut self,
        now: Time,
        handle: VolumeHandle,
        result: Result<Attached, Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(volume) = self.volumes.get_mut(&handle) else { return };
        let clients: Vec<ConnectionId> = volume.clients.iter().copied().collect();
        match result {
            Ok(attached) => {
                volume.attached = Some(attached);
                for connection in clients {
                    self.welcome(now, connection, handle, effects);
                }
            }
            Err(failure) => {
                self.forget_name(handle);
                self.volumes.remove(&handle);
                for connection in clients {
                    let client = self.clients.get_mut(&connection).expect("it uses the volume");
                    client.volume = None;
                    if !client.is_leaving {
                        let kind = refusal_kind(&failure);
                        self.refuse(now, connection, kind, &what_and_hint(&failure), effects);
                    }
                }
            }
        }
    }

    fn welcome(
        &mut self,
        now: Time,
        connection: ConnectionId,
        handle: VolumeHandle,
        effects: &mut Vec<Effect>,
    ) {
        let attached = self.volumes[&handle].attached.as_ref().expect("it is attached");
        let export = Export { size: attached.image.size, read_only: self.exports.read_only };
        let client = self.clients.get_mut(&connection).expect("it uses the volume");
        if !client.is_leaving {
            client.session.opened(export);
            self.pump(now, connection, effects);
        }
    }

    /// Nobody uses the volume any more, or its session is over. The next client of its name gets
    /// a new attach, which sees the volume as it is then.
    fn detach(&mut self, now: Time, handle: VolumeHandle, effects: &mut Vec<Effect>) {
        self.forget_name(handle);
        let patient = !self.is_ending;
        self.tell_core(now, CoreEvent::Close { volume: handle, patient }, effects);
    }

    fn forget_name(&mut self, handle: VolumeHandle) {
        let Some(volume) = self.volumes.get(&handle) else { return };
        if self.volumes_by_name.get(&volume.name) == Some(&handle) {
            self.volumes_by_name.remove(&volume.name);
        }
    }

    // ---- requests

    fn begin(
        &mut self,
        now: Time,
        connection: ConnectionId,
        request: Request,
        effects: &mut Vec<Effect>,
    ) {
        let client = self.clients.get_mut(&connection).expect("it asks");
        let handle = client.volume.expect("requests follow an attach");
        let (weight, wanted, operation) = match request.action {
            Action::Read { offset, length, whole } => {
                let operation = Operation::Read { offset, length: length.into() };
                (length as usize, Wanted::Data { offset, whole }, operation)
            }
            Action::Write { offset, data, durable } => {
                (data.len(), Wanted::Done, Operation::Write { offset, data, durable })
            }
            Action::Zero { offset, length, durable } => {
                (0, Wanted::Done, Operation::Zero { offset, length: length.into(), durable })
            }
            Action::Flush => (0, Wanted::Done, Operation::Flush),
            Action::Extents { offset, length, first_only } => {
                let length = length.min(EXTENTS_RANGE_MAX).into();
                (0, Wanted::Extents { first_only }, Operation::Extents { offset, length })
            }
        };
        client.request_count += 1;
        client.byte_count += weight;
        self.byte_count += weight;
        let cookie = request.cookie;
        let running = Running { connection, cookie, weight, wanted };
        let id = RequestId(self.running.insert(running) as u64);
        self.tell_core(now, CoreEvent::Request { id, volume: handle, operation }, effects);
    }

    fn done(
        &mut self,
        now: Time,
        id: RequestId,
        result: Result<Answer, VolumeError>,
        effects: &mut Vec<Effect>,
    ) {
        let key = id.0 as usize;
        let running = self.running.remove(key);
        self.byte_count -= running.weight;
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
        client.request_count -= 1;
        client.byte_count -= running.weight;
        client.sent_bytes += buffers.iter().map(|buffer| buffer.len()).sum::<usize>();
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
                CoreEffect::Opened { volume, result } => self.opened(now, volume, result, effects),
                CoreEffect::Closed { volume } => self.closed(now, volume, effects),
                CoreEffect::Done { id, result } => self.done(now, id, result, effects),
            }
        }
        self.core_effects = core_effects;
    }
}

impl Client {
    fn is_full(&self) -> bool {
        self.byte_count + self.sent_bytes >= CLIENT_BYTES_MAX
            || self.request_count >= CLIENT_REQUEST_COUNT_MAX
    }

    fn pause(&mut self, wanted: bool, connection: ConnectionId, effects: &mut Vec<Effect>) {
        if self.is_paused != wanted {
            self.is_paused = wanted;
            let effect = if wanted { Effect::Pause } else { Effect::Resume };
            effects.push(effect(connection));
        }
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
        (Wanted::Data { offset, whole }, Ok(Answer::Data(pieces))) => match (structured, whole) {
            (false, _) => replies.simple_data(cookie, pieces),
            (true, true) => replies.whole_data(cookie, offset, pieces),
            (true, false) => replies.chunked_data(cookie, offset, pieces),
        },
        (Wanted::Extents { first_only }, Ok(Answer::Extents(extents))) => {
            replies.extents(cookie, &extents, first_only)
        }
        (Wanted::Done, Ok(Answer::Done)) => replies.done(cookie),
        (Wanted::Data { .. } | Wanted::Extents { .. }, Err(error)) => {
            replies.error(structured, cookie, &error)
        }
        (Wanted::Done, Err(error)) => replies.error(false, cookie, &error),
        (_, Ok(_)) => unreachable!("the client core answers what is asked"),
    }
}

fn refusal_kind(failure: &Failure) -> RefusalKind {
    match &failure.code[..] {
        "not_found" => RefusalKind::Unknown,
        _ => RefusalKind::Policy,
    }
}

/// What a client is told: programs show it to people as it is.
fn what_and_hint(failure: &Failure) -> String {
    match failure.hint.is_empty() {
        true => failure.message.clone(),
        false => format!("{}; {}", failure.message, failure.hint),
    }
}

/// The names in a monitor's list of volumes.
fn names_of(value: &Value) -> Vec<&str> {
    let rows = value.as_array().map_or(&[][..], |rows| rows);
    rows.iter().filter_map(|row| row["name"].as_str()).collect()
}

#[cfg(test)]
mod tests;
