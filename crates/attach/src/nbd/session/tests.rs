//! Tests valid and invalid input from clients, and the answers to it.

use proptest::prelude::*;

use super::*;

const EXPORT: Export = Export { size: 1 << 20, preferred_size: 4096, read_only: false };

struct Client {
    session: Session,
    pool: BufferPool,
}

impl Client {
    /// Returns a client after the greeting, which sent these flags.
    fn greeted(flags: u16) -> Client {
        let pool = BufferPool::default();
        let mut client = Client { session: Session::new(pool.clone()), pool };
        let greeting = client.output();
        assert_eq!(greeting[..8], *b"NBDMAGIC");
        assert_eq!(greeting[8..16], *b"IHAVEOPT");
        assert_eq!(greeting[16..], [0, 3]);
        client.send(&u32::from(flags).to_be_bytes());
        client
    }

    fn new() -> Client {
        Client::greeted(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES)
    }

    /// Returns a client in the transmission phase.
    fn serving(export: Export, structured: bool) -> Client {
        let mut client = Client::new();
        if structured {
            client.option(OPT_STRUCTURED_REPLY, &[]);
            let mut data = text("disk");
            data.extend_from_slice(&1u32.to_be_bytes());
            data.extend(text(BASE_ALLOCATION));
            client.option(OPT_SET_META_CONTEXT, &data);
        }
        client.option(OPT_GO, &information("disk", &[]));
        assert_eq!(client.next(), Some(Command::Attach { name: "disk".to_string() }));
        client.session.opened(export);
        client.output();
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        let bytes = self.pool.copy_of(bytes);
        self.session.received(bytes);
    }

    fn option(&mut self, option: u32, data: &[u8]) {
        self.option_header(option, data.len() as u32);
        self.send(data);
    }

    fn option_header(&mut self, option: u32, length: u32) {
        self.send(&OPTION_MAGIC.to_be_bytes());
        self.send(&option.to_be_bytes());
        self.send(&length.to_be_bytes());
    }

    fn request(&mut self, command: u16, flags: u16, offset: u64, length: u32) {
        self.send(&request_bytes(command, flags, offset, length));
    }

    fn next(&mut self) -> Option<Command> {
        self.session.next()
    }

    fn output(&mut self) -> Vec<u8> {
        self.session.take_output().map_or(Vec::new(), |output| output.to_vec())
    }

    /// Returns the next answers to options: option, kind, data.
    fn answers(&mut self) -> Vec<(u32, u32, Vec<u8>)> {
        let output = self.output();
        let mut fields = Fields(&output);
        let mut answers = Vec::new();
        while let Some(magic) = fields.u64() {
            assert_eq!(magic, OPTION_REPLY_MAGIC);
            let option = fields.u32().expect("whole");
            let kind = fields.u32().expect("whole");
            let length = fields.u32().expect("whole");
            let data = fields.bytes(length as usize).expect("whole");
            answers.push((option, kind, data.to_vec()));
        }
        assert!(fields.0.is_empty());
        answers
    }

    fn kinds(&mut self) -> Vec<u32> {
        assert_eq!(self.next(), None);
        self.answers().into_iter().map(|(_, kind, _)| kind).collect()
    }

    /// Returns the error in the simple reply to a request.
    fn simple_error(&mut self) -> u32 {
        assert_eq!(self.next(), None);
        let output = self.output();
        assert_eq!(output.len(), 16);
        assert_eq!(output[..4], SIMPLE_REPLY_MAGIC.to_be_bytes());
        assert_eq!(output[8..], COOKIE.to_be_bytes());
        u32::from_be_bytes(output[4..8].try_into().expect("4 bytes"))
    }
}

const COOKIE: u64 = 0x1122_3344_5566_7788;

fn request_bytes(command: u16, flags: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&COOKIE.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

fn text(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes
}

fn information(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = text(name);
    data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    for kind in kinds {
        data.extend_from_slice(&kind.to_be_bytes());
    }
    data
}

#[test]
fn go_reports_size_flags_and_block_sizes_and_begins() {
    let mut client = Client::new();
    client.option(OPT_GO, &information("disk", &[INFO_NAME]));
    assert_eq!(client.next(), Some(Command::Attach { name: "disk".to_string() }));
    assert_eq!(client.next(), None, "it waits for the answer");
    client.session.opened(EXPORT);
    let answers = client.answers();
    let kinds: Vec<u32> = answers.iter().map(|(_, kind, _)| *kind).collect();
    assert_eq!(kinds, [REP_INFO, REP_INFO, REP_INFO, REP_ACK]);
    let mut fields = Fields(&answers[0].2);
    assert_eq!(fields.u16(), Some(INFO_EXPORT));
    assert_eq!(fields.u64(), Some(EXPORT.size));
    let flags = fields.u16().expect("flags");
    let wanted = EXPORT_CAN_MULTI_CONN | EXPORT_SEND_FUA | EXPORT_SEND_TRIM;
    assert_eq!(flags & wanted, wanted);
    assert_eq!(flags & (EXPORT_READ_ONLY | EXPORT_SEND_DF), 0);
    assert_eq!(answers[1].2, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!(answers[2].2[2..], *b"disk");
    client.request(CMD_FLUSH, 0, 0, 0);
    assert!(matches!(client.next(), Some(Command::Request(_))));
}

#[test]
fn info_reports_the_same_and_stays_with_options() {
    let mut client = Client::new();
    client.option(OPT_INFO, &information("disk", &[]));
    assert_eq!(client.next(), Some(Command::Describe { name: "disk".to_string() }));
    client.session.opened(Export { read_only: true, ..EXPORT });
    let answers = client.answers();
    let flags = u16::from_be_bytes(answers[0].2[10..].try_into().expect("2 bytes"));
    assert_eq!(flags & EXPORT_READ_ONLY, EXPORT_READ_ONLY);
    assert_eq!(flags & EXPORT_SEND_TRIM, 0);
    client.option(OPT_LIST, &[]);
    assert_eq!(client.next(), Some(Command::List));
    client.session.listed(["a", "disk"]);
    let answers = client.answers();
    assert_eq!(answers[1], (OPT_LIST, REP_SERVER, text("disk")));
    assert_eq!(answers[2].1, REP_ACK);
}

#[test]
fn export_name_sends_zeros_unless_they_are_declined() {
    for (flags, size) in [(FLAG_FIXED_NEWSTYLE, 134), (FLAG_NO_ZEROES, 10), (0, 134)] {
        let mut client = Client::greeted(flags);
        client.option(OPT_EXPORT_NAME, b"disk");
        assert_eq!(client.next(), Some(Command::Attach { name: "disk".to_string() }));
        client.session.opened(EXPORT);
        let output = client.output();
        assert_eq!(output.len(), size);
        assert_eq!(output[..8], EXPORT.size.to_be_bytes());
    }
}

#[test]
fn an_unknown_export_is_refused_or_with_export_name_disconnected() {
    let mut client = Client::new();
    client.option(OPT_GO, &information("none", &[]));
    client.next();
    client.session.refused(RefusalKind::Unknown, "no volume none");
    let answers = client.answers();
    assert_eq!(answers, [(OPT_GO, REP_ERR_UNKNOWN, b"no volume none".to_vec())]);
    client.option(OPT_EXPORT_NAME, b"none");
    client.next();
    client.session.refused(RefusalKind::Policy, "busy");
    assert_eq!(client.next(), Some(Command::Close));
    assert_eq!(client.next(), None);
}

#[test]
fn abort_is_acknowledged() {
    let mut client = Client::new();
    client.option(OPT_ABORT, &[]);
    assert_eq!(client.next(), Some(Command::Close));
    assert_eq!(client.answers()[0].1, REP_ACK);
}

#[test]
fn options_not_offered_are_refused_politely() {
    let mut client = Client::new();
    client.option(OPT_STARTTLS, &[]);
    assert_eq!(client.kinds(), [REP_ERR_UNSUP]);
    client.option(77, b"something new");
    assert_eq!(client.kinds(), [REP_ERR_UNSUP]);
    client.option(OPT_LIST, b"?");
    assert_eq!(client.kinds(), [REP_ERR_INVALID]);
}

#[test]
fn metadata_contexts_are_listed_and_chosen() {
    let queries = |queries: &[&str]| {
        let mut data = text("disk");
        data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| data.extend(text(query)));
        data
    };
    let mut client = Client::new();
    client.option(OPT_LIST_META_CONTEXT, &queries(&[]));
    assert_eq!(client.kinds(), [REP_ERR_INVALID], "structured replies come first");
    client.option(OPT_STRUCTURED_REPLY, &[]);
    assert_eq!(client.kinds(), [REP_ACK]);
    for list in [&[][..], &["base:"], &["qemu:x", "base:allocation"]] {
        client.option(OPT_LIST_META_CONTEXT, &queries(list));
        assert_eq!(client.kinds(), [REP_META_CONTEXT, REP_ACK]);
    }
    client.option(OPT_SET_META_CONTEXT, &queries(&["base:"]));
    assert_eq!(client.kinds(), [REP_ACK]);
    assert_eq!(client.session.allocation_of, None);
    client.option(OPT_SET_META_CONTEXT, &queries(&["base:allocation"]));
    assert_eq!(client.kinds(), [REP_META_CONTEXT, REP_ACK]);
    client.option(OPT_GO, &information("other", &[]));
    client.next();
    client.session.opened(EXPORT);
    client.output();
    client.request(CMD_BLOCK_STATUS, 0, 0, 4096);
    assert_eq!(client.next(), None, "it was chosen for another export");
    assert!(!client.output().is_empty());
}

#[test]
fn requests_become_actions() {
    let mut client = Client::serving(EXPORT, true);
    let (offset, length) = (4096, 512);
    for (command, flags, action) in [
        (CMD_READ, CMD_FLAG_DF, Action::Read { offset, length, whole: true }),
        (CMD_TRIM, 0, Action::Zero { offset, length, durable: false, is_hint: true }),
        (
            CMD_WRITE_ZEROES,
            CMD_FLAG_FUA | CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO,
            Action::Zero { offset, length, durable: true, is_hint: false },
        ),
        (CMD_BLOCK_STATUS, CMD_FLAG_REQ_ONE, Action::Extents { offset, length, first_only: true }),
    ] {
        client.request(command, flags, offset, length);
        let request = Request { cookie: COOKIE, action };
        assert_eq!(client.next(), Some(Command::Request(request)));
    }
}

#[test]
fn a_short_write_uses_the_received_buffer() {
    let mut client = Client::serving(EXPORT, false);
    let mut bytes = request_bytes(CMD_WRITE, CMD_FLAG_FUA, 7, 5);
    bytes.extend_from_slice(b"stone");
    bytes.extend(request_bytes(CMD_FLUSH, 0, 0, 0));
    client.send(&bytes);
    let Some(Command::Request(request)) = client.next() else { panic!("a write") };
    let data = client.pool.copy_of(b"stone");
    assert_eq!(request.action, Action::Write { offset: 7, data, durable: true });
    assert!(matches!(client.next(), Some(Command::Request(Request { action: Action::Flush, .. }))));
    assert!(client.session.lend().is_none());
}

#[test]
fn the_rest_of_a_long_write_is_received_in_place() {
    let mut client = Client::serving(EXPORT, false);
    let mut bytes = request_bytes(CMD_WRITE, 0, 0, 10);
    bytes.extend_from_slice(b"abc");
    client.send(&bytes);
    assert_eq!(client.next(), None);
    let (mut memory, filled) = client.session.lend().expect("data is missing");
    assert_eq!(filled, 3);
    assert!(client.session.lend().is_none(), "it is out");
    assert_eq!(client.next(), None);
    memory[3..].copy_from_slice(b"defghij");
    client.session.received(memory.freeze());
    let Some(Command::Request(request)) = client.next() else { panic!("a write") };
    let data = client.pool.copy_of(b"abcdefghij");
    assert_eq!(request.action, Action::Write { offset: 0, data, durable: false });
}

#[test]
fn wrong_requests_are_answered_with_an_error_and_the_next_is_served() {
    let size = EXPORT.size;
    for (command, flags, offset, length, error) in [
        (CMD_READ, 0, size, 1, Errno::Invalid),
        (CMD_READ, 0, u64::MAX, 2, Errno::Invalid),
        (CMD_READ, 0, 0, 0, Errno::Invalid),
        (CMD_READ, 0, 0, PAYLOAD_SIZE_MAX + 1, Errno::Invalid),
        (CMD_READ, CMD_FLAG_DF, 0, 1, Errno::Invalid),
        (CMD_TRIM, 0, size - 1, 2, Errno::NoSpace),
        (CMD_WRITE_ZEROES, 1 << 9, 0, 1, Errno::Invalid),
        (CMD_FLUSH, 0, 1, 0, Errno::Invalid),
        (CMD_BLOCK_STATUS, 0, 0, 1, Errno::Invalid),
        (99, 0, 0, 0, Errno::Invalid),
    ] {
        let mut client = Client::serving(EXPORT, false);
        client.request(command, flags, offset, length);
        assert_eq!(client.simple_error(), error as u32, "command {command} at {offset}");
        client.request(CMD_FLUSH, 0, 0, 0);
        assert!(matches!(client.next(), Some(Command::Request(_))));
    }
}

#[test]
fn the_data_of_a_refused_write_is_skipped() {
    let mut client = Client::serving(EXPORT, false);
    for (offset, length, error) in
        [(EXPORT.size, 100_000, Errno::NoSpace), (0, PAYLOAD_SIZE_MAX + 5, Errno::Invalid)]
    {
        client.request(CMD_WRITE, 0, offset, length);
        assert_eq!(client.next(), None);
        let mut left = length as usize;
        while left > 0 {
            let now = left.min(1 << 20);
            client.send(&vec![0x25; now]);
            left -= now;
            if left > 0 {
                assert_eq!(client.next(), None);
                assert!(client.session.input_size() == 0);
            }
        }
        assert_eq!(client.simple_error(), error as u32);
    }
    client.request(CMD_FLUSH, 0, 0, 0);
    assert!(matches!(client.next(), Some(Command::Request(_))));
}

#[test]
fn a_read_only_export_refuses_changes() {
    let mut client = Client::serving(Export { read_only: true, ..EXPORT }, false);
    client.request(CMD_TRIM, 0, 0, 1);
    assert_eq!(client.simple_error(), Errno::Permission as u32);
    client.request(CMD_WRITE, 0, 0, 1);
    client.send(b"x");
    assert_eq!(client.simple_error(), Errno::Permission as u32);
}

#[test]
fn a_wrong_read_of_a_structured_client_gets_an_error_chunk() {
    let mut client = Client::serving(EXPORT, true);
    client.request(CMD_READ, 0, EXPORT.size, 1);
    assert_eq!(client.next(), None);
    let output = client.output();
    assert_eq!(output[..4], CHUNK_MAGIC.to_be_bytes());
    assert_eq!(output[4..8], [0, 1, 0x80, 1]);
    assert_eq!(output[20..24], [0, 0, 0, 22]);
}

#[test]
fn an_endless_option_is_skipped_without_memory() {
    let mut client = Client::new();
    client.option_header(OPT_GO, 300 << 20);
    for _ in 0..300 {
        assert_eq!(client.next(), None);
        assert!(client.session.input_size() <= 1 << 20);
        client.send(&vec![0; 1 << 20]);
    }
    assert_eq!(client.kinds(), [REP_ERR_TOO_BIG]);
}

#[test]
fn wrong_lengths_inside_options_are_invalid() {
    let mut lie = 1000u32.to_be_bytes().to_vec();
    lie.extend_from_slice(b"disk\0\0");
    let mut client = Client::new();
    client.option(OPT_STRUCTURED_REPLY, &[]);
    client.kinds();
    for option in [OPT_GO, OPT_INFO, OPT_SET_META_CONTEXT] {
        client.option(option, &lie);
        assert_eq!(client.kinds(), [REP_ERR_INVALID]);
    }
    let mut many = text("disk");
    many.extend_from_slice(&u32::MAX.to_be_bytes());
    client.option(OPT_SET_META_CONTEXT, &many);
    assert_eq!(client.kinds(), [REP_ERR_INVALID]);
    client.option(OPT_GO, &information(&"x".repeat(5000), &[]));
    assert_eq!(client.kinds(), [REP_ERR_INVALID]);
}

#[test]
fn garbage_ends_the_connection() {
    let mut client = Client::greeted(0x8000);
    assert_eq!(client.next(), Some(Command::Close));
    let mut client = Client::new();
    client.send(&[7; 16]);
    assert_eq!(client.next(), Some(Command::Close));
    let mut client = Client::greeted(0);
    client.option(OPT_LIST, &[]);
    assert_eq!(client.next(), Some(Command::Close), "only the old way in without the flag");
    let mut client = Client::serving(EXPORT, false);
    client.send(&[7; 28]);
    assert_eq!(client.next(), Some(Command::Close));
}

#[test]
fn a_client_can_disconnect() {
    let mut client = Client::serving(EXPORT, false);
    client.request(CMD_DISC, 0, 0, 0);
    client.request(CMD_FLUSH, 0, 0, 0);
    assert_eq!(client.next(), Some(Command::Close));
    assert_eq!(client.next(), None);
}

/// Returns everything that the session outputs for these bytes, which arrive cut at these positions.
fn run(bytes: &[u8], cuts: &[usize]) -> (Vec<Command>, Vec<u8>) {
    let pool = BufferPool::default();
    let mut session = Session::new(pool.clone());
    let (mut commands, mut output) = (Vec::new(), Vec::new());
    let mut start = 0;
    for end in cuts.iter().copied().chain([bytes.len()]) {
        let end = end.clamp(start, bytes.len());
        if end > start {
            session.received(pool.copy_of(&bytes[start..end]));
        }
        start = end;
        while let Some(command) = session.next() {
            output.extend(session.take_output().iter().flat_map(|out| out.to_vec()));
            match &command {
                Command::List => session.listed(["disk"]),
                Command::Describe { .. } | Command::Attach { .. } => session.opened(EXPORT),
                Command::Request(_) | Command::Close => {}
            }
            commands.push(command);
        }
        output.extend(session.take_output().iter().flat_map(|out| out.to_vec()));
    }
    (commands, output)
}

fn some_option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        Just(Vec::new()),
        Just(information("disk", &[INFO_NAME])),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    (1..12u32, data).prop_map(|(option, data)| {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend(data);
        bytes
    })
}

fn some_request() -> impl Strategy<Value = Vec<u8>> {
    (0..9u16, 0..32u16, 0..2_000_000u64, 0..300u32).prop_map(|(command, flags, offset, length)| {
        let mut bytes = request_bytes(command, flags, offset, length);
        if command == CMD_WRITE {
            bytes.extend(vec![0x5a; length as usize]);
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_result_does_not_depend_on_how_bytes_are_split(
        options in prop::collection::vec(some_option(), 0..6),
        requests in prop::collection::vec(some_request(), 0..12),
        mut cuts in prop::collection::vec(0..4000usize, 0..12),
    ) {
        let mut bytes = 3u32.to_be_bytes().to_vec();
        options.iter().for_each(|option| bytes.extend(option));
        bytes.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        bytes.extend_from_slice(&OPT_EXPORT_NAME.to_be_bytes());
        bytes.extend(text("disk"));
        requests.iter().for_each(|request| bytes.extend(request));
        cuts.sort_unstable();
        // Write data arrives whole if memory is lent for it, so input is cut only where no memory is lent.
        let whole = run(&bytes, &[]);
        let cut = run_lending(&bytes, &cuts);
        prop_assert_eq!(whole, cut);
    }

    #[test]
    fn no_bytes_break_the_session(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        run(&bytes, &[]);
        let mut greeted = 3u32.to_be_bytes().to_vec();
        greeted.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        greeted.extend_from_slice(&bytes);
        run(&greeted, &[]);
    }
}

/// Like [`run`], but returns lent memory as a reactor does: full, and before any later bytes arrive.
fn run_lending(bytes: &[u8], cuts: &[usize]) -> (Vec<Command>, Vec<u8>) {
    let pool = BufferPool::default();
    let mut session = Session::new(pool.clone());
    let (mut commands, mut output) = (Vec::new(), Vec::new());
    let mut start = 0;
    let mut cuts = cuts.iter().copied().chain([bytes.len()]);
    loop {
        while let Some(command) = session.next() {
            output.extend(session.take_output().iter().flat_map(|out| out.to_vec()));
            match &command {
                Command::List => session.listed(["disk"]),
                Command::Describe { .. } | Command::Attach { .. } => session.opened(EXPORT),
                Command::Request(_) | Command::Close => {}
            }
            commands.push(command);
        }
        output.extend(session.take_output().iter().flat_map(|out| out.to_vec()));
        if let Some((mut memory, filled)) = session.lend() {
            let missing = memory.len() - filled;
            if bytes.len() - start < missing {
                return (commands, output);
            }
            memory[filled..].copy_from_slice(&bytes[start..start + missing]);
            start += missing;
            session.received(memory.freeze());
            continue;
        }
        let Some(end) = cuts.next() else { return (commands, output) };
        let end = end.clamp(start, bytes.len());
        if end > start {
            session.received(pool.copy_of(&bytes[start..end]));
        }
        start = end;
    }
}
