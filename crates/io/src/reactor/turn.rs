//! One turn of the loop: the work before the wait, and the handling of completions.

use std::os::fd::FromRawFd;
use std::rc::Rc;

use format::door::Role;

use super::*;

/// Longest wait in one system call, if there is no deadline.
const WAIT_MAX: Duration = Duration::from_secs(3600);

impl Reactor {
    /// Submits the started operations, then waits for at least one event or until `deadline` (`None`: no
    /// deadline). Appends the events to `events`.
    pub fn turn(&mut self, deadline: Option<Time>, events: &mut Vec<Event>) -> io::Result<()> {
        let before = events.len();
        loop {
            self.attend_dirty(events);
            let is_idle = events.len() == before && self.dirty.is_empty();
            let waits = is_idle.then(|| (self.wake_at(deadline), clock::now()));
            self.ring.enter(waits.map(|(until, _)| until))?;
            if let Some((_, since)) = waits {
                let waited = clock::now().since(since).as_nanos();
                self.waited = Duration::from_nanos(self.waited.as_nanos() + waited);
            }
            while let Some(completion) = self.ring.next() {
                self.complete(completion, events);
            }
            self.expire(events);
            let late = || deadline.is_some_and(|deadline| clock::now() >= deadline);
            if events.len() > before || late() {
                return Ok(());
            }
        }
    }

    fn wake_at(&self, deadline: Option<Time>) -> Time {
        let own = self.deadlines.first().map(|(time, _)| *time);
        let retry = self.listeners.iter().filter_map(|listener| listener.retry_at).min();
        let first = [deadline, own, retry].into_iter().flatten().min();
        first.unwrap_or_else(|| clock::now() + WAIT_MAX)
    }

    /// Closes connections whose deadline has passed, and restarts accepts that were paused.
    fn expire(&mut self, events: &mut Vec<Event>) {
        let retry = self.listeners.iter().any(|listener| listener.retry_at.is_some());
        if self.deadlines.is_empty() && !retry {
            return;
        }
        let now = clock::now();
        while let Some((_, connection)) = self.deadlines.first().filter(|(time, _)| *time <= now) {
            let index = self.indexes[connection];
            if let Stage::Handshake { incoming: true, .. } = self.streams[index].stage {
                self.reject("a connection was refused: its handshake timed out".into());
            }
            self.end(index, CloseReason::TimedOut, events);
        }
        for (index, listener) in self.listeners.iter_mut().enumerate() {
            if listener.retry_at.is_some_and(|time| time <= now) {
                listener.retry_at = None;
                self.ring.accept(index, listener.socket.as_raw_fd());
            }
        }
    }

    // ---- before the wait --------------------------------------------------------------------

    fn attend_dirty(&mut self, events: &mut Vec<Event>) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            // Another connection may use this index by now; handling that one is harmless.
            let Some(stream) = self.streams.get_mut(index) else { continue };
            stream.dirty = false;
            let connection = stream.id;
            if let Stage::Resolved { .. } = stream.stage {
                self.begin_connect(index, events);
            }
            self.flush(index, connection, events);
            self.receive(index, connection, events);
        }
        // Reuse the memory of the list; entries added in the loop above are for the next turn.
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    /// Whether the table still holds this connection at `index`.
    fn is_at(&self, index: usize, connection: ConnectionId) -> bool {
        self.streams.get(index).is_some_and(|stream| stream.id == connection)
    }

    fn begin_connect(&mut self, index: usize, events: &mut Vec<Event>) {
        let stream = &mut self.streams[index];
        let Stage::Resolved { address } = std::mem::replace(&mut stream.stage, Stage::Connect)
        else {
            unreachable!("the caller looked")
        };
        let address = match address {
            Ok(address) => address,
            Err(reason) => return self.end(index, reason, events),
        };
        match socket::connect(&address) {
            Ok((socket, finished)) => {
                let socket = Rc::new(socket);
                stream.socket = Some(socket.clone());
                if finished {
                    self.begin_handshake(index);
                } else {
                    stream.waiting = Some(self.ring.writable(socket, (stream.id, index)));
                }
            }
            Err(error) => self.end(index, socket::close_reason(error), events),
        }
    }

    fn begin_handshake(&mut self, index: usize) {
        let trust = self.trust.as_ref().expect("set before the connect");
        let stream = &mut self.streams[index];
        let handshake = stream.queue.push_small(|output| Handshake::initiate(trust, output));
        stream.stage = Stage::Handshake { handshake: Box::new(handshake), incoming: false };
        self.mark_dirty(index);
    }

    /// Starts sending the queue of a connection.
    fn flush(&mut self, index: usize, connection: ConnectionId, events: &mut Vec<Event>) {
        if !self.is_at(index, connection) {
            return;
        }
        let stream = &mut self.streams[index];
        if stream.queue.length() == 0 {
            if matches!(stream.stage, Stage::Linger) {
                self.remove(index);
            }
            return;
        }
        if stream.waiting.is_some() {
            if stream.queue.length() > SEND_QUEUE_SIZE_MAX {
                let reason = "the peer does not read its replies".into();
                self.end(index, CloseReason::Protocol(reason), events);
            }
            return;
        }
        let Some(socket) = stream.socket.clone() else { return };
        // A lingering connection is removed once its last bytes are sent, so its last send must post a
        // completion.
        let is_last = matches!(stream.stage, Stage::Linger);
        if let Some(queue) = stream.queue.lend() {
            self.ring.send(socket, (connection, index), queue, is_last);
        }
    }

    /// Delivers data to a raw reader, or starts a receive if more bytes are wanted.
    fn receive(&mut self, index: usize, connection: ConnectionId, events: &mut Vec<Event>) {
        if !self.is_at(index, connection) {
            return;
        }
        let stream = &mut self.streams[index];
        if let Stage::Raw(inbox) = &mut stream.stage
            && let Some(data) = inbox.deliver()
        {
            events.push(Event::RawReceived { connection, data });
            self.mark_dirty(index);
            return;
        }
        if stream.receiving.is_some() {
            return;
        }
        let ((buffer, from), whole) = match &mut stream.stage {
            Stage::Handshake { .. } => ((self.pool.take(HANDSHAKE_BUFFER_SIZE), 0), false),
            Stage::Frames(inbox) => (inbox.lend(), inbox.lent_payload()),
            Stage::Raw(inbox) if inbox.wants_bytes() => (inbox.lend(), inbox.lent_expected()),
            _ => return,
        };
        let socket = stream.socket.clone().expect("a stage that receives has a socket");
        let (at, how) = ((connection, index), (!stream.more_expected, whole));
        stream.receiving = Some(self.ring.receive(socket, at, buffer, from, how));
    }

    // ---- completions ------------------------------------------------------------------------

    pub(super) fn complete(&mut self, completion: Completion, events: &mut Vec<Event>) {
        if let Some(listener) = completion.accepting {
            self.accepted(listener, completion.result, completion.op.is_some(), events);
            return;
        }
        let op = completion.op.expect("only accepts complete more than once");
        match op {
            Op::Accept { .. } => unreachable!("handled above"),
            Op::Writable { connection, index, .. } => {
                if self.is_at(index, connection) {
                    self.became_writable(index, events);
                }
            }
            Op::Send { connection, index, queue, .. } => {
                if self.is_at(index, connection) {
                    self.sent(index, queue, completion.result, events);
                }
            }
            Op::Receive { connection, index, buffer, from, .. } => {
                if self.is_at(index, connection) {
                    let stream = &mut self.streams[index];
                    stream.receiving = None;
                    stream.more_expected = completion.socket_nonempty;
                    self.received(index, buffer, from, completion.result, events);
                }
            }
            Op::Wake => self.bell_rang(events),
            Op::Signal => self.signal_came(events),
            Op::Disk(job) => match job.advance(completion.result) {
                Progress::More(job) => {
                    self.ring.disk(job);
                }
                Progress::Done(event) => events.push(Event::Disk(event)),
            },
            Op::Alarm { .. } => unreachable!("the ring keeps it to itself"),
            Op::Cancel => {}
        }
    }

    /// Handles a new connection to a listener, or an accept error. `ended`: the accept must be started
    /// again.
    fn accepted(&mut self, index: usize, result: i32, ended: bool, events: &mut Vec<Event>) {
        let listener = &mut self.listeners[index];
        if ended && result < 0 {
            listener.retry_at = Some(clock::now() + ACCEPT_RETRY_DELAY);
        } else if ended {
            self.ring.accept(index, listener.socket.as_raw_fd());
        }
        if result < 0 {
            return;
        }
        // SAFETY: the kernel has just opened this descriptor for us; no other code has it.
        let socket = unsafe { OwnedFd::from_raw_fd(result) };
        if listener.tcp {
            socket::tune_tcp(&socket);
        }
        let raw = listener.raw;
        if raw && self.raw_count >= self.raw_max {
            self.reject(format!(
                "a client was refused: there are already {} clients",
                self.raw_count
            ));
            return;
        }
        let id = ConnectionId::new(2 * self.accepted_count + 1);
        self.accepted_count += 1;
        if raw {
            let stage = Stage::Raw(RawInbox::new(&self.pool));
            let at = self.insert(Stream::new(id, Some(socket), stage));
            self.streams[at].counted = true;
            self.raw_count += 1;
            self.mark_dirty(at);
            events.push(Event::RawAccepted { listener: ListenerId(index), connection: id });
            return;
        }
        if self.unproven_count == UNPROVEN_COUNT_MAX {
            self.drop_oldest_unproven(events);
        }
        self.unproven_count += 1;
        let trust = self.trust.as_ref().expect("set before the listen");
        let handshake = Box::new(Handshake::respond(trust));
        let stage = Stage::Handshake { handshake, incoming: true };
        let at = self.insert(Stream::new(id, Some(socket), stage));
        self.set_deadline(at, Some(clock::now() + HANDSHAKE_TIME_MAX));
        self.mark_dirty(at);
    }

    fn drop_oldest_unproven(&mut self, events: &mut Vec<Event>) {
        let unproven = |connection: &&(Time, ConnectionId)| {
            let stage = &self.streams[self.indexes[&connection.1]].stage;
            matches!(stage, Stage::Handshake { incoming: true, .. })
        };
        let oldest = self.deadlines.iter().find(unproven);
        let (_, connection) = *oldest.expect("each unproven connection has a deadline");
        self.reject("a connection was refused: too many handshakes are in progress".into());
        self.end(self.indexes[&connection], CloseReason::TimedOut, events);
    }

    fn became_writable(&mut self, index: usize, events: &mut Vec<Event>) {
        let stream = &mut self.streams[index];
        stream.waiting = None;
        if !matches!(stream.stage, Stage::Connect) {
            self.mark_dirty(index);
            return;
        }
        let socket = stream.socket.as_ref().expect("it is connecting");
        match rustix::net::sockopt::socket_error(socket) {
            Ok(Ok(())) => self.begin_handshake(index),
            Ok(Err(error)) | Err(error) => self.end(index, socket::close_reason(error), events),
        }
    }

    fn sent(
        &mut self,
        index: usize,
        mut queue: Box<SendQueue>,
        result: i32,
        events: &mut Vec<Event>,
    ) {
        let stream = &mut self.streams[index];
        let has_room = queue.sent(result);
        stream.queue.put_back(queue);
        match has_room {
            Err(error) => self.end(index, socket::close_reason(error), events),
            Ok(_) if stream.queue.length() == 0 => {
                if matches!(stream.stage, Stage::Linger) {
                    self.remove(index);
                }
            }
            Ok(true) => self.mark_dirty(index),
            Ok(false) => {
                let socket = stream.socket.clone().expect("it was sent to");
                stream.waiting = Some(self.ring.writable(socket, (stream.id, index)));
            }
        }
    }

    fn received(
        &mut self,
        index: usize,
        buffer: BufferMut,
        from: usize,
        result: i32,
        events: &mut Vec<Event>,
    ) {
        let connection = self.streams[index].id;
        let retry = [-libc::EINTR, -libc::EAGAIN].contains(&result);
        let (count, ended) = match result {
            1.. => (result as usize, None),
            0 => (0, Some(CloseReason::Reset)),
            _ if retry => (0, None),
            _ => (0, Some(socket::close_reason(Errno::from_raw_os_error(-result)))),
        };
        self.mark_dirty(index);
        match &mut self.streams[index].stage {
            Stage::Handshake { .. } if ended.is_none() => {
                self.handshake_received(index, &buffer[..count], events);
            }
            Stage::Frames(inbox) if ended.is_none() => {
                let mut deliver = |message| events.push(received_event(connection, message));
                let result = inbox.put_back(buffer, from + count, &mut deliver);
                if let Err(error) = result {
                    self.end(index, CloseReason::Protocol(error.0), events);
                }
            }
            Stage::Raw(inbox) if ended.is_none() => {
                inbox.put_back(buffer, from + count);
                if let Some(data) = inbox.deliver() {
                    events.push(Event::RawReceived { connection, data });
                }
            }
            Stage::Linger => {}
            _ => self.end(index, ended.expect("other stages receive nothing"), events),
        }
    }

    fn handshake_received(&mut self, index: usize, bytes: &[u8], events: &mut Vec<Event>) {
        let stream = &mut self.streams[index];
        let connection = stream.id;
        let Stage::Handshake { handshake, incoming } = &mut stream.stage else {
            unreachable!("the caller looked")
        };
        let incoming = *incoming;
        match stream.queue.push_small(|output| handshake.receive(bytes, output)) {
            Ok(HandshakeStep::Wait) => {}
            Ok(HandshakeStep::Done { consumed, established }) => {
                let (peer, version) = (established.peer, established.version);
                let ours = self.trust.as_ref().map(|trust| trust.peer.role);
                let is_monitor = |role| matches!(role, Role::Monitor(_));
                if is_monitor(peer.role) || ours.is_some_and(is_monitor) {
                    socket::notice_silence_soon(stream.socket.as_ref().expect("it is connected"));
                }
                self.unproven_count -= usize::from(incoming);
                stream.stage = Stage::Frames(Inbox::new(&self.pool));
                self.set_deadline(index, None);
                events.push(Event::Net(match incoming {
                    true => NetEvent::Accepted { connection, peer },
                    false => NetEvent::Connected { connection, peer, version },
                }));
                let Stage::Frames(inbox) = &mut self.streams[index].stage else {
                    unreachable!("just set")
                };
                let mut deliver = |message| events.push(received_event(connection, message));
                let result = inbox.put_bytes(&bytes[consumed..], &mut deliver);
                if let Err(error) = result {
                    self.end(index, CloseReason::Protocol(error.0), events);
                }
            }
            Err(sentence) if incoming => {
                self.reject(sentence);
                self.linger(index);
            }
            Err(sentence) => {
                let sentence = format!("{}: {sentence}", stream.address);
                self.end(index, CloseReason::Untrusted(sentence), events);
            }
        }
    }

    fn bell_rang(&mut self, events: &mut Vec<Event>) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.shared.bell, &mut count);
        self.ring.readable(self.shared.bell.as_raw_fd(), Op::Wake);
        if self.shared.woken.swap(false, Ordering::Acquire) {
            events.push(Event::Woken);
        }
        let found = std::mem::take(&mut *self.shared.resolved.lock().expect("no holder panics"));
        for (connection, address) in found {
            self.resolved(connection, address);
        }
    }

    fn signal_came(&mut self, events: &mut Vec<Event>) {
        let signals = self.signals.as_ref().expect("it is watched");
        let mut info = [0; size_of::<libc::signalfd_siginfo>()];
        if rustix::io::read(signals, &mut info).is_ok() {
            events.push(Event::Terminate);
        }
        self.ring.readable(signals.as_raw_fd(), Op::Signal);
    }

    // ---- the end of a connection ------------------------------------------------------------

    fn reject(&mut self, sentence: String) {
        if self.rejected.len() < REJECTED_COUNT_MAX {
            self.rejected.push(sentence);
        }
    }

    /// Ends a connection, with an event if the program has been informed of the connection.
    fn end(&mut self, index: usize, reason: CloseReason, events: &mut Vec<Event>) {
        let connection = self.streams[index].id;
        match &self.streams[index].stage {
            Stage::Linger | Stage::Handshake { incoming: true, .. } => {}
            Stage::Raw(_) => events.push(Event::RawClosed { connection }),
            _ => events.push(Event::Net(NetEvent::Closed { connection, reason })),
        }
        self.remove(index);
    }

    /// Sends the rest of the queue, then ends the connection without an event.
    pub(super) fn linger(&mut self, index: usize) {
        let stream = &mut self.streams[index];
        if stream.queue.length() == 0 || stream.socket.is_none() {
            return self.remove(index);
        }
        if let Some(key) = stream.receiving {
            self.ring.cancel(key);
        }
        self.leave_stage(index, Stage::Linger);
        self.set_deadline(index, Some(clock::now() + LINGER_TIME_MAX));
        self.mark_dirty(index);
    }

    fn leave_stage(&mut self, index: usize, next: Stage) {
        let stage = std::mem::replace(&mut self.streams[index].stage, next);
        if let Stage::Handshake { incoming: true, .. } = stage {
            self.unproven_count -= 1;
        }
    }

    /// Removes a connection from the table and cancels its operations, which end later.
    fn remove(&mut self, index: usize) {
        self.leave_stage(index, Stage::Linger);
        self.set_deadline(index, None);
        let stream = self.streams.remove(index);
        self.raw_count -= usize::from(stream.counted);
        self.indexes.remove(&stream.id);
        if let Some(socket) = &stream.socket {
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
        for key in [stream.receiving, stream.waiting].into_iter().flatten() {
            self.ring.cancel(key);
        }
    }
}

fn received_event(connection: ConnectionId, message: Message) -> Event {
    Event::Net(NetEvent::Received { connection, message })
}
