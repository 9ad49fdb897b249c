//! The protocol with one NBD client, without I/O: bytes in, commands out. Fixed newstyle, structured replies.
//!
//! ```text
//!   greeting ──flags──▶ options ──GO, EXPORT_NAME──▶ requests ──DISC──▶ closed
//!                         │ ▲
//!                         ▼ │  LIST, INFO, GO wait for the cluster's answer
//!                        asked
//! ```
//!
//! Invariants
//!   1. A length from the client is checked against a limit before memory is allocated for it.
//!   2. `next` returns one command at a time; the owner stops calling it to slow the client down.
//!   3. In the phase `Asked` no input is parsed before the answer arrives.

use base::{Buffer, BufferMut, BufferPool};

use super::input::Input;
use super::protocol::*;

/// A command of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// List the names of all exports; answered by [`Session::listed`].
    List,
    /// Describe an export; answered by [`Session::opened`] or [`Session::refused`].
    Describe {
        /// The name of the export; empty for the default.
        name: String,
    },
    /// Use an export; answered by [`Session::opened`] or [`Session::refused`].
    Attach {
        /// The name of the export; empty for the default.
        name: String,
    },
    /// A request to the client's export.
    Request(Request),
    /// The client has finished, or violated the protocol: send the output and close the connection.
    Close,
}

/// A request of the transmission phase.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Identifies the reply.
    pub cookie: u64,
    /// The operation.
    pub action: Action,
}

/// The operation of a request. Ranges are within the export and not empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Read a range.
    Read {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// Whether the reply must be one chunk.
        whole: bool,
    },
    /// Write data.
    Write {
        /// Offset in bytes.
        offset: u64,
        /// The data.
        data: Buffer,
        /// Whether the write must be durable before it is answered.
        durable: bool,
    },
    /// Trim or write zeros.
    Zero {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// Whether the zeros must be durable before the request is answered.
        durable: bool,
        /// Whether the request is a hint: the data may also stay as it is.
        is_hint: bool,
    },
    /// Make all changes durable that were acknowledged before.
    Flush,
    /// Report which parts of a range are holes.
    Extents {
        /// Offset in bytes.
        offset: u64,
        /// Length in bytes.
        length: u32,
        /// Whether one extent is enough.
        first_only: bool,
    },
}

/// The properties of an export that clients receive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Export {
    /// Size in bytes.
    pub size: u64,
    /// Preferred size and alignment of requests, in bytes: a power of two.
    pub preferred_size: u32,
    /// Whether writes are refused.
    pub read_only: bool,
}

/// Why an export is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RefusalKind {
    /// There is no export of this name.
    Unknown,
    /// The export exists but cannot be used now.
    Policy,
}

/// The state of the protocol with one client.
pub struct Session {
    pool: BufferPool,
    phase: Phase,
    input: Input,
    output: Vec<u8>,
    no_zeroes: bool,
    fixed: bool,
    structured: bool,
    /// The export for which the client chose `base:allocation`.
    allocation_of: Option<String>,
    export: Option<Export>,
}

/// The phases of a session, in chronological order.
enum Phase {
    /// Waits for the client's flags.
    Greeted,
    /// Waits for an option.
    Options,
    /// Waits for the end of an option that is too long.
    SkipOption { option: u32, left: u64 },
    /// Waits for the cluster's answer to this option.
    Asked(Asked),
    /// Waits for a request.
    Requests,
    /// Waits for the rest of the data of a write.
    Payload { request: Header, data: Payload },
    /// Waits for the end of the data of a refused write.
    SkipPayload { cookie: u64, error: Errno, left: u64 },
    /// Waits for `next` to return `Close`.
    Closing,
    /// No more input is parsed.
    Closed,
}

/// The data of a write that did not arrive together with its request; the variants are in chronological
/// order.
enum Payload {
    /// The first bytes have arrived.
    Begun { memory: BufferMut, filled: usize },
    /// The memory is lent to the reactor, which receives into it.
    Lent,
    /// All bytes have arrived.
    Whole(Buffer),
}

/// An option that the session cannot answer on its own.
enum Asked {
    List,
    /// INFO or GO, with the kinds of information that the client requests.
    Information {
        option: u32,
        name: String,
        name_wanted: bool,
    },
    ExportName {
        name: String,
    },
}

/// A request as received.
struct Header {
    flags: u16,
    command: u16,
    cookie: u64,
    offset: u64,
    length: u32,
}

const REQUEST_SIZE: usize = 28;
const OPTION_HEADER_SIZE: usize = 16;

/// What `next` does after a step: continue, wait for more input, or return a command.
enum Step {
    Again,
    Wait,
    Give(Command),
}

impl Session {
    /// Creates the session of a new client; its first output is the greeting.
    pub fn new(pool: BufferPool) -> Session {
        let mut output = Vec::new();
        output.extend_from_slice(&NBDMAGIC.to_be_bytes());
        output.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        output.extend_from_slice(&(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).to_be_bytes());
        Session {
            pool,
            phase: Phase::Greeted,
            input: Input::default(),
            output,
            no_zeroes: false,
            fixed: false,
            structured: false,
            allocation_of: None,
            export: None,
        }
    }

    /// Accepts bytes from the client: as they arrived, or the full memory of [`Session::lend`].
    pub fn received(&mut self, bytes: Buffer) {
        match &mut self.phase {
            Phase::Payload { request, data: data @ Payload::Lent } => {
                assert!(bytes.len() == request.length as usize);
                *data = Payload::Whole(bytes);
            }
            _ => self.input.push(bytes),
        }
    }

    /// Lends the memory for the rest of the data of a write, and returns the offset of the next bytes in that
    /// memory. Call this when `next` has returned `None`.
    pub fn lend(&mut self) -> Option<(BufferMut, usize)> {
        let Phase::Payload { data, .. } = &mut self.phase else { return None };
        assert!(self.input.len() == 0);
        match std::mem::replace(data, Payload::Lent) {
            Payload::Begun { memory, filled } => Some((memory, filled)),
            Payload::Lent => None,
            Payload::Whole(_) => unreachable!("`next` has returned the write"),
        }
    }

    /// Returns bytes for the client, which must be sent before any reply to a later command.
    pub fn take_output(&mut self) -> Option<Buffer> {
        if self.output.is_empty() {
            return None;
        }
        let bytes = self.pool.copy_of(&self.output);
        self.output.clear();
        Some(bytes)
    }

    /// Whether replies to reads are structured.
    pub fn is_structured(&self) -> bool {
        self.structured
    }

    /// Returns the number of bytes received but not yet parsed.
    pub fn input_size(&self) -> usize {
        self.input.len()
    }

    /// Returns the next command, if there is one.
    pub fn next(&mut self) -> Option<Command> {
        loop {
            match self.step() {
                Step::Again => {}
                Step::Wait => return None,
                Step::Give(command) => return Some(command),
            }
        }
    }

    fn step(&mut self) -> Step {
        match &mut self.phase {
            Phase::Greeted => self.client_flags(),
            Phase::Options => self.option(),
            Phase::SkipOption { option, left } => {
                let option = *option;
                if !skip(&mut self.input, left) {
                    return Step::Wait;
                }
                self.phase = Phase::Options;
                self.refuse_option(option, REP_ERR_TOO_BIG, "the option is too long");
                Step::Again
            }
            Phase::Requests => self.request(),
            Phase::Payload { data: Payload::Whole(_), .. } => {
                let phase = std::mem::replace(&mut self.phase, Phase::Requests);
                let Phase::Payload { request, data: Payload::Whole(data) } = phase else {
                    unreachable!("the phase was matched above")
                };
                Step::Give(write_command(&request, data))
            }
            Phase::Payload { .. } => Step::Wait,
            Phase::SkipPayload { cookie, error, left } => {
                let (cookie, error) = (*cookie, *error);
                if !skip(&mut self.input, left) {
                    return Step::Wait;
                }
                self.phase = Phase::Requests;
                self.simple_error(cookie, error);
                Step::Again
            }
            Phase::Closing => self.close(),
            Phase::Asked(_) | Phase::Closed => Step::Wait,
        }
    }

    fn close(&mut self) -> Step {
        self.phase = Phase::Closed;
        Step::Give(Command::Close)
    }

    // ---- handshake

    fn client_flags(&mut self) -> Step {
        let Some(bytes) = self.input.peek::<4>() else { return Step::Wait };
        self.input.skip(4);
        let flags = u32::from_be_bytes(bytes);
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return self.close();
        }
        self.fixed = flags & u32::from(FLAG_FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        self.phase = Phase::Options;
        Step::Again
    }

    fn option(&mut self) -> Step {
        let Some(header) = self.input.peek::<OPTION_HEADER_SIZE>() else { return Step::Wait };
        let mut fields = Fields(&header);
        let magic = fields.u64().expect("the whole header has arrived");
        let option = fields.u32().expect("the whole header has arrived");
        let length = fields.u32().expect("the whole header has arrived");
        if magic != OPTION_MAGIC || (!self.fixed && option != OPT_EXPORT_NAME) {
            return self.close();
        }
        if length > OPTION_SIZE_MAX {
            if option == OPT_EXPORT_NAME {
                return self.close();
            }
            self.input.skip(OPTION_HEADER_SIZE);
            self.phase = Phase::SkipOption { option, left: length.into() };
            return Step::Again;
        }
        if self.input.len() < OPTION_HEADER_SIZE + length as usize {
            return Step::Wait;
        }
        self.input.skip(OPTION_HEADER_SIZE);
        let data = self.input.take(length as usize, &self.pool);
        self.whole_option(option, &data)
    }

    fn whole_option(&mut self, option: u32, data: &[u8]) -> Step {
        match option {
            OPT_EXPORT_NAME => match name_of(data) {
                Some(name) => {
                    self.ask(Asked::ExportName { name: name.clone() }, Command::Attach { name })
                }
                None => self.close(),
            },
            OPT_ABORT => {
                self.option_reply(option, REP_ACK, &[]);
                self.close()
            }
            OPT_LIST if data.is_empty() => self.ask(Asked::List, Command::List),
            OPT_INFO | OPT_GO => self.information(option, data),
            OPT_STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.option_reply(option, REP_ACK, &[]);
                Step::Again
            }
            OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => {
                self.meta_context(option, data);
                Step::Again
            }
            OPT_LIST | OPT_STRUCTURED_REPLY => {
                self.refuse_option(option, REP_ERR_INVALID, "the option takes no data");
                Step::Again
            }
            OPT_STARTTLS => {
                self.refuse_option(option, REP_ERR_UNSUP, "TLS is not supported");
                Step::Again
            }
            _ => {
                self.refuse_option(option, REP_ERR_UNSUP, "unknown option");
                Step::Again
            }
        }
    }

    fn ask(&mut self, asked: Asked, command: Command) -> Step {
        self.phase = Phase::Asked(asked);
        Step::Give(command)
    }

    fn information(&mut self, option: u32, data: &[u8]) -> Step {
        let Some((name, wanted)) = parse_information(data) else {
            self.refuse_option(option, REP_ERR_INVALID, "the option's lengths are inconsistent");
            return Step::Again;
        };
        let name_wanted = wanted.contains(&INFO_NAME);
        let asked = Asked::Information { option, name: name.clone(), name_wanted };
        if option == OPT_GO {
            self.ask(asked, Command::Attach { name })
        } else {
            self.ask(asked, Command::Describe { name })
        }
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) {
        if !self.structured {
            let why = "metadata contexts require structured replies";
            return self.refuse_option(option, REP_ERR_INVALID, why);
        }
        let Some((name, queries)) = parse_meta_context(data) else {
            return self.refuse_option(
                option,
                REP_ERR_INVALID,
                "the option's lengths are inconsistent",
            );
        };
        let is_list = option == OPT_LIST_META_CONTEXT;
        let matches = |query: &String| query == BASE_ALLOCATION || (is_list && query == "base:");
        let found = queries.iter().any(matches) || (is_list && queries.is_empty());
        if !is_list {
            self.allocation_of = found.then_some(name);
        }
        if found {
            let id = if is_list { 0 } else { BASE_ALLOCATION_ID };
            let mut context = id.to_be_bytes().to_vec();
            context.extend_from_slice(BASE_ALLOCATION.as_bytes());
            self.option_reply(option, REP_META_CONTEXT, &context);
        }
        self.option_reply(option, REP_ACK, &[]);
    }

    fn option_reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.output.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.output.extend_from_slice(&option.to_be_bytes());
        self.output.extend_from_slice(&kind.to_be_bytes());
        self.output.extend_from_slice(&(data.len() as u32).to_be_bytes());
        self.output.extend_from_slice(data);
    }

    fn refuse_option(&mut self, option: u32, kind: u32, why: &str) {
        self.option_reply(option, kind, why.as_bytes());
    }

    fn take_asked(&mut self) -> Asked {
        match std::mem::replace(&mut self.phase, Phase::Options) {
            Phase::Asked(asked) => asked,
            _ => unreachable!("no option waits for an answer"),
        }
    }

    /// Answers [`Command::List`].
    pub fn listed<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        let asked = self.take_asked();
        assert!(matches!(asked, Asked::List));
        for name in names {
            let mut data = (name.len() as u32).to_be_bytes().to_vec();
            data.extend_from_slice(name.as_bytes());
            self.option_reply(OPT_LIST, REP_SERVER, &data);
        }
        self.option_reply(OPT_LIST, REP_ACK, &[]);
    }

    /// Answers [`Command::Describe`] or [`Command::Attach`] with the export.
    pub fn opened(&mut self, export: Export) {
        let flags = export_flags(export, self.structured);
        match self.take_asked() {
            Asked::List => unreachable!("`listed` answers a list option"),
            Asked::ExportName { name } => {
                self.output.extend_from_slice(&export.size.to_be_bytes());
                self.output.extend_from_slice(&flags.to_be_bytes());
                if !self.no_zeroes {
                    self.output.extend_from_slice(&[0; 124]);
                }
                self.begin(name, export);
            }
            Asked::Information { option, name, name_wanted } => {
                let mut data = INFO_EXPORT.to_be_bytes().to_vec();
                data.extend_from_slice(&export.size.to_be_bytes());
                data.extend_from_slice(&flags.to_be_bytes());
                self.option_reply(option, REP_INFO, &data);
                let mut data = INFO_BLOCK_SIZE.to_be_bytes().to_vec();
                for size in [1, export.preferred_size, PAYLOAD_SIZE_MAX] {
                    data.extend_from_slice(&size.to_be_bytes());
                }
                self.option_reply(option, REP_INFO, &data);
                if name_wanted {
                    let mut data = INFO_NAME.to_be_bytes().to_vec();
                    data.extend_from_slice(name.as_bytes());
                    self.option_reply(option, REP_INFO, &data);
                }
                self.option_reply(option, REP_ACK, &[]);
                if option == OPT_GO {
                    self.begin(name, export);
                }
            }
        }
    }

    /// Refuses the option that waits for an answer, if there is one, for this reason.
    pub fn refused(&mut self, kind: RefusalKind, why: &str) {
        let kind = match kind {
            RefusalKind::Unknown => REP_ERR_UNKNOWN,
            RefusalKind::Policy => REP_ERR_POLICY,
        };
        match self.take_asked() {
            Asked::List => self.refuse_option(OPT_LIST, kind, why),
            Asked::Information { option, .. } => self.refuse_option(option, kind, why),
            // The protocol has no error reply for this option.
            Asked::ExportName { .. } => self.phase = Phase::Closing,
        }
    }

    fn begin(&mut self, name: String, export: Export) {
        self.export = Some(export);
        if self.allocation_of.as_ref() != Some(&name) {
            self.allocation_of = None;
        }
        self.phase = Phase::Requests;
    }

    // ---- transmission

    fn request(&mut self) -> Step {
        let Some(bytes) = self.input.peek::<REQUEST_SIZE>() else { return Step::Wait };
        let mut fields = Fields(&bytes);
        let magic = fields.u32().expect("the whole request has arrived");
        let request = Header {
            flags: fields.u16().expect("the whole request has arrived"),
            command: fields.u16().expect("the whole request has arrived"),
            cookie: fields.u64().expect("the whole request has arrived"),
            offset: fields.u64().expect("the whole request has arrived"),
            length: fields.u32().expect("the whole request has arrived"),
        };
        if magic != REQUEST_MAGIC || request.command == CMD_DISC {
            return self.close();
        }
        self.input.skip(REQUEST_SIZE);
        let error = self.check(&request).err();
        if request.command == CMD_WRITE {
            return self.begin_write(request, error);
        }
        if let Some(error) = error {
            self.request_error(&request, error);
            return Step::Again;
        }
        let Header { flags, cookie, offset, length, .. } = request;
        let durable = flags & CMD_FLAG_FUA != 0;
        let action = match request.command {
            CMD_READ => Action::Read { offset, length, whole: flags & CMD_FLAG_DF != 0 },
            CMD_FLUSH => Action::Flush,
            CMD_TRIM => Action::Zero { offset, length, durable, is_hint: true },
            CMD_WRITE_ZEROES => Action::Zero { offset, length, durable, is_hint: false },
            CMD_BLOCK_STATUS => {
                Action::Extents { offset, length, first_only: flags & CMD_FLAG_REQ_ONE != 0 }
            }
            _ => unreachable!("`check` rejects other commands"),
        };
        Step::Give(Command::Request(Request { cookie, action }))
    }

    fn begin_write(&mut self, request: Header, error: Option<Errno>) -> Step {
        let length = request.length as usize;
        if let Some(error) = error {
            let left = length as u64;
            self.phase = Phase::SkipPayload { cookie: request.cookie, error, left };
            return Step::Again;
        }
        if self.input.len() >= length {
            let data = self.input.take(length, &self.pool);
            return Step::Give(write_command(&request, data));
        }
        let mut memory = self.pool.take(length);
        let filled = self.input.fill(&mut memory, 0);
        self.phase = Phase::Payload { request, data: Payload::Begun { memory, filled } };
        Step::Wait
    }

    /// Checks a request against the protocol and the export.
    fn check(&self, request: &Header) -> Result<(), Errno> {
        let export = self.export.expect("requests arrive after an export is chosen");
        let Header { flags, command, offset, length, .. } = *request;
        let known_flags = match command {
            CMD_READ if self.structured => CMD_FLAG_FUA | CMD_FLAG_DF,
            CMD_READ | CMD_WRITE | CMD_FLUSH | CMD_TRIM => CMD_FLAG_FUA,
            CMD_WRITE_ZEROES => CMD_FLAG_FUA | CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
            CMD_BLOCK_STATUS if self.allocation_of.is_some() => CMD_FLAG_FUA | CMD_FLAG_REQ_ONE,
            _ => return Err(Errno::Invalid),
        };
        if flags & !known_flags != 0 {
            return Err(Errno::Invalid);
        }
        let changes = matches!(command, CMD_WRITE | CMD_TRIM | CMD_WRITE_ZEROES);
        if changes && export.read_only {
            return Err(Errno::Permission);
        }
        if matches!(command, CMD_READ | CMD_WRITE) && length > PAYLOAD_SIZE_MAX {
            return Err(Errno::Invalid);
        }
        let is_flush = command == CMD_FLUSH;
        if is_flush != (length == 0) || (is_flush && offset != 0) {
            return Err(Errno::Invalid);
        }
        let end = offset.checked_add(length.into());
        if end.is_none_or(|end| end > export.size) {
            return Err(if changes { Errno::NoSpace } else { Errno::Invalid });
        }
        Ok(())
    }

    /// Answers a rejected request with an error; reads and requests for extents get structured
    /// replies if the client chose them.
    fn request_error(&mut self, request: &Header, error: Errno) {
        let structured = matches!(request.command, CMD_READ | CMD_BLOCK_STATUS);
        if !(structured && self.structured) {
            return self.simple_error(request.cookie, error);
        }
        self.output.extend_from_slice(&CHUNK_MAGIC.to_be_bytes());
        self.output.extend_from_slice(&CHUNK_FLAG_DONE.to_be_bytes());
        self.output.extend_from_slice(&CHUNK_ERROR.to_be_bytes());
        self.output.extend_from_slice(&request.cookie.to_be_bytes());
        self.output.extend_from_slice(&6u32.to_be_bytes());
        self.output.extend_from_slice(&(error as u32).to_be_bytes());
        self.output.extend_from_slice(&0u16.to_be_bytes());
    }

    fn simple_error(&mut self, cookie: u64, error: Errno) {
        self.output.extend_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
        self.output.extend_from_slice(&(error as u32).to_be_bytes());
        self.output.extend_from_slice(&cookie.to_be_bytes());
    }
}

fn write_command(request: &Header, data: Buffer) -> Command {
    assert!(data.len() == request.length as usize);
    let durable = request.flags & CMD_FLAG_FUA != 0;
    let action = Action::Write { offset: request.offset, data, durable };
    Command::Request(Request { cookie: request.cookie, action })
}

/// Drops up to `left` bytes. Returns whether all of these bytes have been dropped.
fn skip(input: &mut Input, left: &mut u64) -> bool {
    let now = (*left).min(input.len() as u64);
    input.skip(now as usize);
    *left -= now;
    *left == 0
}

fn export_flags(export: Export, structured: bool) -> u16 {
    let mut flags = EXPORT_HAS_FLAGS | EXPORT_SEND_FLUSH | EXPORT_SEND_FUA | EXPORT_CAN_MULTI_CONN;
    if export.read_only {
        flags |= EXPORT_READ_ONLY;
    } else {
        flags |= EXPORT_SEND_TRIM | EXPORT_SEND_WRITE_ZEROES | EXPORT_SEND_FAST_ZERO;
    }
    if structured {
        flags |= EXPORT_SEND_DF;
    }
    flags
}

/// Parses the big-endian fields of a message in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.bytes(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.bytes(8)?.try_into().ok()?))
    }

    /// Reads a 32-bit length, and text of that length.
    fn text(&mut self) -> Option<String> {
        let length = self.u32()? as usize;
        name_of(self.bytes(length)?)
    }
}

fn name_of(bytes: &[u8]) -> Option<String> {
    if bytes.len() > NAME_SIZE_MAX {
        return None;
    }
    String::from_utf8(bytes.to_vec()).ok()
}

/// Parses the name of the export and the requested kinds of information.
fn parse_information(data: &[u8]) -> Option<(String, Vec<u16>)> {
    let mut fields = Fields(data);
    let name = fields.text()?;
    let count = fields.u16()?;
    let wanted = (0..count).map(|_| fields.u16()).collect::<Option<Vec<u16>>>()?;
    fields.0.is_empty().then_some((name, wanted))
}

/// Parses the name of the export and the queries.
fn parse_meta_context(data: &[u8]) -> Option<(String, Vec<String>)> {
    let mut fields = Fields(data);
    let name = fields.text()?;
    let count = fields.u32()?;
    // Each query takes at least the 4 bytes of its length, so a wrong count fails at the end of the
    // data.
    let queries = (0..count).map(|_| fields.text()).collect::<Option<Vec<String>>>()?;
    fields.0.is_empty().then_some((name, queries))
}

#[cfg(test)]
mod tests;
