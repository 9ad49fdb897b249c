//! The wire encoding: golden files that freeze it, round trips, and decoding of arbitrary bytes.
//!
//! `UPDATE=1 cargo test -p format --test wire` rewrites the golden files.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

use std::path::PathBuf;

use base::checksum::checksum_units;
use base::{
    Buffer, BufferPool, Epoch, ImageId, Incarnation, MapRevision, OsdId, PgId, PoolId, Position,
    SessionId, StripeIndex, UNIT_SIZE, Version,
};
use format::wire::{
    CHAIN_LENGTH_MAX, DecodeError, FRAME_HEADER_SIZE, Learner, MEMBERS_MAX, Member, Message, Op,
    Outcome, PAYLOAD_SIZE_MAX, Payload, PgEntry, Place, RESULTS_SIZE_MAX, Refusal, Reply, Request,
    decode, decode_header, encode,
};

#[path = "wire/peer.rs"]
mod peer;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const UNIT: usize = UNIT_SIZE as usize;

fn frame(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    let payload = encode(message, &mut bytes);
    bytes.extend_from_slice(payload.as_deref().unwrap_or_default());
    bytes
}

/// Decodes the frame at the front of `bytes` as a receiver does, and ignores the bytes after it.
fn parse(bytes: &[u8]) -> Result<Message, DecodeError> {
    let short = || DecodeError("short".into());
    let header = bytes.first_chunk::<FRAME_HEADER_SIZE>().ok_or_else(short)?;
    let header = decode_header(header)?;
    let body_end = FRAME_HEADER_SIZE + header.body_length as usize;
    let body = bytes.get(FRAME_HEADER_SIZE..body_end).ok_or_else(short)?;
    let payload_end = body_end + header.payload_length as usize;
    let payload = bytes.get(body_end..payload_end).ok_or_else(short)?;
    let pool = BufferPool::default();
    let payload = (!payload.is_empty()).then(|| pool.copy_of(payload));
    decode(&header, body, payload, &pool)
}

// ---- examples, one of each kind ---------------------------------------------------------------

fn image(number: u32) -> ImageId {
    ImageId::new(number).unwrap()
}

fn place() -> Place {
    Place { image: image(7), seed: image(5), stripe: StripeIndex::new(0x1234) }
}

fn version() -> Version {
    Version { epoch: Epoch::new(3), counter: 0x0102_0304_0506 }
}

fn data(units: usize) -> Buffer {
    let bytes: Vec<u8> = (0..units * UNIT).map(|i| (i / UNIT + i) as u8).collect();
    BufferPool::default().copy_of(&bytes)
}

fn checksums(data: &Buffer) -> Vec<base::Checksum> {
    let mut checksums = Vec::new();
    checksum_units(data, &mut checksums);
    checksums
}

fn entry() -> PgEntry {
    let member = |osd, incarnation| Member {
        osd: OsdId::new(osd).unwrap(),
        incarnation: Incarnation::new(incarnation),
    };
    let position = |number| Position::new(number).unwrap();
    PgEntry {
        pg: PgId { pool: PoolId::new(2).unwrap(), number: 0x1f },
        epoch: Epoch::new(9),
        revision: MapRevision::new(77),
        primary: Some(position(2)),
        positions: vec![Some(member(1, 10)), None, Some(member(2, 20))],
        learners: vec![Learner { member: member(3, 30), position: position(1) }],
        given_up: Epoch::new(8),
    }
}

fn payload(length: usize) -> Payload {
    let bytes: Vec<u8> = (0..length).map(|at| (at / 7) as u8).collect();
    Payload::new(&bytes, &BufferPool::default())
}

fn mutate(length: usize) -> Op {
    Op::Mutate { number: 17, lowest: 15, again: true, operation: payload(length) }
}

fn request(op: Op) -> Message {
    Message::Request(Request {
        session: SessionId::new(0x1122_3344_5566_7788),
        sequence: 42,
        pg: PgId { pool: PoolId::new(2).unwrap(), number: 0x1f },
        epoch: Epoch::new(9),
        revision: MapRevision::new(77),
        op,
    })
}

fn reply(outcome: Result<Outcome, Refusal>) -> Message {
    Message::Reply(Reply { session: SessionId::new(0x1122_3344_5566_7788), sequence: 42, outcome })
}

fn examples() -> Vec<(&'static str, Message)> {
    let mut examples = client_examples();
    examples.extend(peer::examples());
    examples
}

fn zero(length: u32, lazy: bool) -> Op {
    Op::Zero { place: place(), offset: 0, length, lazy }
}

fn client_examples() -> Vec<(&'static str, Message)> {
    let data = data(2);
    let checksums = checksums(&data);
    let empty = BufferPool::default().take(0).freeze();
    let why = || "waits for osd.3".to_string();
    let write = |expected, lazy| Op::Write {
        place: place(),
        offset: 8192,
        checksums: checksums.clone(),
        data: data.clone(),
        expected,
        lazy,
    };
    let read =
        Op::Read { place: place(), offset: 4096, length: 12288, parents: vec![image(6), image(5)] };
    vec![
        ("request-read", request(read)),
        ("request-write", request(write(None, false))),
        ("request-write-lazy", request(write(None, true))),
        ("request-write-expected", request(write(Some(version()), false))),
        ("request-write-expected-lazy", request(write(Some(version()), true))),
        ("request-zero", request(zero(131072, false))),
        ("request-zero-lazy", request(zero(131072, true))),
        ("request-extents", request(Op::Extents { place: place(), parents: vec![image(6)] })),
        ("request-sync", request(Op::Sync)),
        (
            "request-delete-range",
            request(Op::DeleteRange { image: image(7), from: StripeIndex::new(5) }),
        ),
        (
            "reply-read",
            reply(Ok(Outcome::Read {
                version: version(),
                checksums: checksums.clone(),
                data: data.clone(),
            })),
        ),
        (
            "reply-read-zeros",
            reply(Ok(Outcome::Read { version: Version::ZERO, checksums: vec![], data: empty })),
        ),
        ("reply-written", reply(Ok(Outcome::Written { version: version(), durable: true }))),
        ("reply-extents", reply(Ok(Outcome::Extents { bitmap: vec![0xff00_0000_0000_000f] }))),
        ("reply-synced", reply(Ok(Outcome::Synced))),
        ("reply-deleted", reply(Ok(Outcome::Deleted { count: 9, complete: false }))),
        ("refusal-stale", reply(Err(Refusal::Stale(Some(entry()))))),
        ("refusal-stale-unknown", reply(Err(Refusal::Stale(None)))),
        ("refusal-fenced", reply(Err(Refusal::Fenced))),
        ("refusal-compare-failed", reply(Err(Refusal::CompareFailed { version: version() }))),
        ("refusal-full", reply(Err(Refusal::Full))),
        ("refusal-damaged", reply(Err(Refusal::Damaged { units: vec![1, 0, 0, 1 << 63] }))),
        ("refusal-incomplete", reply(Err(Refusal::Incomplete { why: why() }))),
        ("refusal-busy", reply(Err(Refusal::Busy))),
        ("refusal-invalid", reply(Err(Refusal::Invalid { why: why() }))),
        ("refusal-corrupted", reply(Err(Refusal::Corrupted))),
        ("refusal-ask-primary", reply(Err(Refusal::AskPrimary))),
        (
            "request-read-part",
            request(Op::ReadPart {
                place: place(),
                offset: 4096,
                length: 12288,
                parents: vec![image(6)],
            }),
        ),
        ("request-mutate", request(mutate(5000))),
        ("request-look", request(Op::Look { reads: payload(20) })),
        (
            "request-list",
            request(Op::List {
                beside: vec![(7, Epoch::new(3)), (9, Epoch::new(1 << 20))],
                names: payload(20),
            }),
        ),
        ("reply-listed", reply(Ok(Outcome::Listed { refused: vec![9], pages: payload(4097) }))),
        (
            "reply-mutated",
            reply(Ok(Outcome::Mutated { version: version(), results: vec![3, 5, 0, 0] })),
        ),
        (
            "reply-mutated-nothing",
            reply(Ok(Outcome::Mutated { version: Version::ZERO, results: vec![] })),
        ),
        ("reply-looked", reply(Ok(Outcome::Looked { answers: payload(4097) }))),
        ("reply-looked-nothing", reply(Ok(Outcome::Looked { answers: payload(0) }))),
        (
            "refusal-asserted",
            reply(Err(Refusal::Asserted { object: 999, step: 4095, version: version() })),
        ),
        ("refusal-too-large", reply(Err(Refusal::TooLarge { why: why() }))),
        ("control", Message::Control("{\"type\":\"subscribe\",\"have\":{}}".into())),
    ]
}

// ---- golden files -----------------------------------------------------------------------------

/// Returns header and body as rows of 16 bytes in hexadecimal. The payload is not part of the format.
fn dump(message: &Message) -> String {
    let mut bytes = Vec::new();
    encode(message, &mut bytes);
    let mut text = String::new();
    for row in bytes.chunks(16) {
        let row: Vec<String> = row.iter().map(|byte| format!("{byte:02x}")).collect();
        text.push_str(&row.join(" "));
        text.push('\n');
    }
    text
}

#[test]
fn bytes_are_those_of_the_golden_files() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/wire");
    for (name, message) in examples() {
        let path = folder.join(format!("{name}.hex"));
        let text = dump(&message);
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(text, golden, "{}: if meant, rerun with UPDATE=1", path.display());
    }
}

// ---- round trips; other bytes are refused -----------------------------------------------------

fn any_version() -> impl Strategy<Value = Version> {
    (any::<u32>(), any::<u64>())
        .prop_map(|(epoch, counter)| Version { epoch: Epoch::new(epoch), counter })
}

fn any_image() -> impl Strategy<Value = ImageId> {
    (1..=u32::MAX).prop_map(image)
}

fn any_pg() -> impl Strategy<Value = PgId> {
    (1..=u32::MAX, any::<u32>())
        .prop_map(|(pool, number)| PgId { pool: PoolId::new(pool).unwrap(), number })
}

fn any_place() -> impl Strategy<Value = Place> {
    (any_image(), any_image(), any::<u32>()).prop_map(|(image, seed, stripe)| Place {
        image,
        seed,
        stripe: StripeIndex::new(stripe),
    })
}

/// Generates offset and length of a range within the largest block, in bytes.
fn any_range(units_max: u32) -> impl Strategy<Value = (u32, u32)> {
    (1..=units_max)
        .prop_flat_map(|length| (0..=256 - length, Just(length)))
        .prop_map(|(offset, length)| (offset * UNIT as u32, length * UNIT as u32))
}

fn any_chain() -> impl Strategy<Value = Vec<ImageId>> {
    vec(any_image(), 0..=CHAIN_LENGTH_MAX)
}

fn any_data(units: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = Buffer> {
    (units, any::<u8>()).prop_map(|(units, salt)| {
        let bytes: Vec<u8> = (0..units * UNIT).map(|i| (i as u8).wrapping_mul(salt)).collect();
        BufferPool::default().copy_of(&bytes)
    })
}

fn any_payload() -> impl Strategy<Value = Payload> {
    prop_oneof![0..10usize, 4090..4100usize, 0..20_000usize].prop_map(payload)
}

fn any_op() -> impl Strategy<Value = Op> {
    let conditions = (proptest::option::of(any_version()), any::<bool>());
    let write = (any_place(), 0u32..128, any_data(1..=9), conditions).prop_map(
        |(place, unit, data, (expected, lazy))| Op::Write {
            place,
            offset: unit * UNIT as u32,
            checksums: checksums(&data),
            data,
            expected,
            lazy,
        },
    );
    prop_oneof![
        (any_place(), any_range(256), any_chain()).prop_map(
            |(place, (offset, length), parents)| Op::Read { place, offset, length, parents }
        ),
        (any_place(), any_range(256), any_chain()).prop_map(
            |(place, (offset, length), parents)| Op::ReadPart { place, offset, length, parents }
        ),
        write,
        (any_place(), any_range(256), any::<bool>())
            .prop_map(|(place, (offset, length), lazy)| Op::Zero { place, offset, length, lazy }),
        (any_place(), any_chain()).prop_map(|(place, parents)| Op::Extents { place, parents }),
        Just(Op::Sync),
        (any::<[u64; 2]>(), any::<bool>(), any_payload()).prop_map(
            |([number, lowest], again, operation)| Op::Mutate { number, lowest, again, operation }
        ),
        any_payload().prop_map(|reads| Op::Look { reads }),
        (vec(any::<(u32, u32)>(), 0..256), any_payload()).prop_map(|(beside, names)| Op::List {
            beside: beside.into_iter().map(|(pg, epoch)| (pg, Epoch::new(epoch))).collect(),
            names,
        }),
        (any_image(), any::<u32>())
            .prop_map(|(image, from)| Op::DeleteRange { image, from: StripeIndex::new(from) }),
    ]
}

/// Generates a valid entry: members that would break a rule are left out.
fn any_entry() -> impl Strategy<Value = PgEntry> {
    let member = (1..=u32::MAX, any::<u64>()).prop_map(|(osd, incarnation)| Member {
        osd: OsdId::new(osd).unwrap(),
        incarnation: Incarnation::new(incarnation),
    });
    let position = || (0..Position::COUNT_MAX).prop_map(|number| Position::new(number).unwrap());
    let positions = vec(option::of(member.clone()), 0..=usize::from(Position::COUNT_MAX));
    let learners = vec((member, position()), 0..=12);
    let rest = (option::of(position()), positions, learners, any::<u32>());
    (any_pg(), any::<u32>(), any::<u64>(), rest).prop_map(|(pg, epoch, revision, rest)| {
        let (primary, positions, learners, given_up) = rest;
        let given_up = Epoch::new(given_up.min(epoch));
        let (epoch, revision) = (Epoch::new(epoch), MapRevision::new(revision));
        let mut entry = PgEntry { epoch, revision, positions, given_up, ..PgEntry::new(pg, []) };
        for (member, position) in learners {
            entry.learners.push(Learner { member, position });
            if entry.check().is_err() {
                entry.learners.pop();
            }
        }
        entry.primary = primary.filter(|primary| entry.member_at(*primary).is_some());
        entry
    })
}

fn any_outcome() -> impl Strategy<Value = Result<Outcome, Refusal>> {
    let bitmap = || vec(any::<u64>(), 0..=4);
    prop_oneof![
        (any_version(), any_data(0..=5)).prop_map(|(version, data)| Ok(Outcome::Read {
            version,
            checksums: checksums(&data),
            data
        })),
        (any_version(), any::<bool>())
            .prop_map(|(version, durable)| Ok(Outcome::Written { version, durable })),
        bitmap().prop_map(|bitmap| Ok(Outcome::Extents { bitmap })),
        Just(Ok(Outcome::Synced)),
        (any::<u32>(), any::<bool>())
            .prop_map(|(count, complete)| Ok(Outcome::Deleted { count, complete })),
        proptest::option::of(any_entry()).prop_map(|entry| Err(Refusal::Stale(entry))),
        Just(Err(Refusal::Fenced)),
        any_version().prop_map(|version| Err(Refusal::CompareFailed { version })),
        Just(Err(Refusal::Full)),
        bitmap().prop_map(|units| Err(Refusal::Damaged { units })),
        ".{0,40}".prop_map(|why| Err(Refusal::Incomplete { why })),
        Just(Err(Refusal::Busy)),
        ".{0,40}".prop_map(|why| Err(Refusal::Invalid { why })),
        Just(Err(Refusal::Corrupted)),
        Just(Err(Refusal::AskPrimary)),
        (any_version(), vec(any::<u8>(), 0..100))
            .prop_map(|(version, results)| Ok(Outcome::Mutated { version, results })),
        any_payload().prop_map(|answers| Ok(Outcome::Looked { answers })),
        (vec(any::<u32>(), 0..=256), any_payload())
            .prop_map(|(refused, pages)| Ok(Outcome::Listed { refused, pages })),
        (any::<[u16; 2]>(), any_version())
            .prop_map(|([object, step], version)| Err(Refusal::Asserted { object, step, version })),
        ".{0,40}".prop_map(|why| Err(Refusal::TooLarge { why })),
    ]
}

fn any_message() -> impl Strategy<Value = Message> {
    let request = (any::<u64>(), any::<u64>(), any_pg(), any::<u32>(), any::<u64>(), any_op());
    prop_oneof![
        request.prop_map(|(session, sequence, pg, epoch, revision, op)| Message::Request(
            Request {
                session: SessionId::new(session),
                sequence,
                pg,
                epoch: Epoch::new(epoch),
                revision: MapRevision::new(revision),
                op,
            }
        )),
        (any::<u64>(), any::<u64>(), any_outcome()).prop_map(|(session, sequence, outcome)| {
            Message::Reply(Reply { session: SessionId::new(session), sequence, outcome })
        }),
        ".{0,200}".prop_map(Message::Control),
        peer::any_peer(),
        peer::any_lease(),
    ]
}

/// Recomputes the checksums of a frame, whatever values its fields have.
fn reseal(bytes: &mut [u8]) {
    let body_length = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    if let Some(body) = bytes.get(32..32 + body_length) {
        let checksum = base::crc32c(body).get();
        bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
    }
    let checksum = base::crc32c(&bytes[4..32]).get();
    bytes[..4].copy_from_slice(&checksum.to_le_bytes());
}

proptest! {
    #[test]
    fn every_message_comes_back(message in any_message()) {
        prop_assert_eq!(parse(&frame(&message)), Ok(message));
    }

    #[test]
    fn a_frame_that_ends_early_is_no_message(message in any_message(), at in any::<prop::sample::Index>()) {
        let bytes = frame(&message);
        prop_assert!(parse(&bytes[..at.index(bytes.len())]).is_err());
    }

    #[test]
    fn a_forged_body_is_an_error_or_has_one_encoding(
        message in any_message(),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        let mut bytes = frame(&message);
        let at = 4 + at.index(bytes.len() - 4);
        bytes[at] = value;
        reseal(&mut bytes);
        if let Ok(message) = parse(&bytes) {
            // A forged length may end the frame earlier; the bytes after the end belong to another frame.
            let again = frame(&message);
            prop_assert_eq!(&again[..], &bytes[..again.len()]);
        }
    }

    #[test]
    fn rubbish_between_right_checksums_never_panics(
        kind in 0u16..7,
        body in vec(any::<u8>(), 0..200),
        payload_units in 0usize..3,
    ) {
        let mut bytes = vec![0; 32];
        encode(&Message::Control(String::new()), &mut bytes);
        bytes.drain(..32);
        bytes[8..10].copy_from_slice(&kind.to_le_bytes());
        bytes[12..16].copy_from_slice(&(body.len() as u32).to_le_bytes());
        bytes[16..20].copy_from_slice(&((payload_units * UNIT) as u32).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes.resize(bytes.len() + payload_units * UNIT, 7);
        reseal(&mut bytes);
        if let Ok(message) = parse(&bytes) {
            prop_assert_eq!(frame(&message), bytes);
        }
    }
}

#[test]
fn every_truncation_is_no_message() {
    for (name, message) in examples() {
        let bytes = frame(&message);
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length]).is_err(), "{name} cut to {length} bytes");
        }
    }
}

#[test]
fn every_bit_flip_outside_the_payload_is_no_message() {
    for (name, message) in examples() {
        let mut bytes = Vec::new();
        let payload = encode(&message, &mut bytes);
        let protected = bytes.len();
        bytes.extend_from_slice(payload.as_deref().unwrap_or_default());
        for bit in 0..protected * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(parse(&bytes).is_err(), "{name}: bit {bit} flipped");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn the_longest_messages_about_objects_fit_their_frames() {
    let longest = PAYLOAD_SIZE_MAX as usize;
    for message in [
        request(mutate(longest)),
        reply(Ok(Outcome::Looked { answers: payload(longest) })),
        reply(Ok(Outcome::Mutated { version: version(), results: vec![1; RESULTS_SIZE_MAX] })),
    ] {
        assert_eq!(parse(&frame(&message)), Ok(message));
    }
}

#[test]
fn a_payload_is_as_long_as_its_bytes_and_says_whether_they_are_whole() {
    let message = request(mutate(5000));
    let mut bytes = frame(&message);
    *bytes.last_mut().unwrap() ^= 1;
    let operation = |message| match message {
        Message::Request(Request { op: Op::Mutate { operation, .. }, .. }) => operation,
        _ => unreachable!(),
    };
    assert_eq!(operation(parse(&bytes).unwrap()).bytes(), None);
    assert_eq!(operation(message).bytes().unwrap().len(), 5000);
    assert_eq!(payload(0).bytes(), Some(&[][..]));
    // Number, lowest and again lie between the operation's tag and the length.
    let at = FRAME_HEADER_SIZE + 37 + 17;
    for (length, is_right) in [(4096u32, false), (4097, true), (8192, true), (8193, false)] {
        let mut bytes = frame(&request(mutate(5000)));
        bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
        reseal(&mut bytes);
        assert_eq!(parse(&bytes).is_ok(), is_right, "{length}");
    }
}

#[test]
fn a_flip_in_the_payload_breaks_its_checksum() {
    let Message::Request(request) = request(Op::Write {
        place: place(),
        offset: 0,
        checksums: checksums(&data(1)),
        data: data(1),
        expected: None,
        lazy: false,
    }) else {
        unreachable!()
    };
    let mut bytes = frame(&Message::Request(request));
    *bytes.last_mut().unwrap() ^= 0x10;
    let Ok(Message::Request(Request { op: Op::Write { checksums, data, .. }, .. })) = parse(&bytes)
    else {
        panic!("the payload is not the decoder's to check")
    };
    assert_eq!(base::checksum::first_mismatch(&data, &checksums), Some(0));
}

/// Decodes a frame with one field changed and its checksums recomputed.
fn forged(message: &Message, at: usize, field: &[u8]) -> Result<Message, DecodeError> {
    let mut bytes = frame(message);
    bytes[at..at + field.len()].copy_from_slice(field);
    reseal(&mut bytes);
    parse(&bytes)
}

#[test]
fn lengths_beyond_the_limits_are_refused_before_anything_is_read() {
    let control = Message::Control("{}".into());
    let sync = request(Op::Sync);
    let too_long = |at: usize, message: &Message, length: u32| {
        let mut header = frame(message)[..FRAME_HEADER_SIZE].to_vec();
        header[at..at + 4].copy_from_slice(&length.to_le_bytes());
        let checksum = base::crc32c(&header[4..]).get();
        header[..4].copy_from_slice(&checksum.to_le_bytes());
        decode_header(header.first_chunk().unwrap()).expect_err("beyond the limit").0
    };
    assert_eq!(too_long(12, &control, (4 << 20) + 1), "invalid frame body length: 4194305 bytes");
    assert_eq!(too_long(12, &sync, (64 << 10) + 1), "invalid frame body length: 65537 bytes");
    assert_eq!(too_long(16, &control, 4096), "invalid frame payload length: 4096 bytes");
    assert_eq!(too_long(16, &sync, u32::MAX), "invalid frame payload length: 4294967295 bytes");
    assert_eq!(too_long(16, &sync, 4095), "invalid frame payload length: 4095 bytes");
    assert_eq!(
        too_long(16, &sync, (4 << 20) + 4096),
        "invalid frame payload length: 4198400 bytes"
    );
}

#[test]
fn absurd_fields_are_refused() {
    let body = FRAME_HEADER_SIZE;
    let zero = request(zero(4096, false));
    let (pool, op) = (body + 24, body + 36);
    let (image, offset, length) = (op + 1, op + 13, op + 17);
    assert!(forged(&zero, pool, &[0; 4]).is_err());
    assert!(forged(&zero, op, &[99]).is_err());
    assert!(forged(&zero, image, &[0; 4]).is_err());
    assert!(forged(&zero, image + 4, &[0; 4]).is_err());
    assert!(forged(&zero, offset, &1u32.to_le_bytes()).is_err());
    assert!(forged(&zero, offset, &(1u32 << 22).to_le_bytes()).is_err());
    assert!(forged(&zero, offset, &(u32::MAX - 4095).to_le_bytes()).is_err());
    assert!(forged(&zero, length, &[0; 4]).is_err());
    assert!(forged(&zero, length, &4097u32.to_le_bytes()).is_err());
    assert!(forged(&zero, length, &(1u32 << 20).to_le_bytes()).is_ok());

    let extents = request(Op::Extents { place: place(), parents: vec![] });
    let too_many = forged(&extents, op + 13, &[CHAIN_LENGTH_MAX as u8 + 1]).unwrap_err();
    assert!(too_many.0.contains("at most 32 are allowed"), "{too_many}");

    let write = examples().swap_remove(1).1;
    assert!(forged(&write, op + 17, &[4]).is_err());
    assert!(forged(&zero, op + 21, &[1]).is_err(), "a zero compares nothing");
    assert!(forged(&write, offset, &1u32.to_le_bytes()).is_err());
    assert!(forged(&write, offset, &((1u32 << 22) - 4096).to_le_bytes()).is_err());
    let read = examples().swap_remove(10).1;
    assert!(forged(&read, 8, &1u16.to_le_bytes()).is_err());

    let stale = reply(Err(Refusal::Stale(Some(entry()))));
    let primary = body + 17 + 1 + 8 + 4 + 8;
    let positions = primary + 1;
    let learners = positions + 1 + 3 * 12;
    assert!(forged(&stale, primary, &[0]).is_ok());
    assert!(forged(&stale, primary, &[1]).is_err(), "an empty position leads");
    assert!(forged(&stale, primary, &[Position::COUNT_MAX]).is_err());
    assert!(forged(&stale, positions, &[Position::COUNT_MAX + 1]).is_err());
    assert!(forged(&stale, positions + 1, &[2, 0, 0, 0]).is_err(), "a member twice");
    assert!(forged(&stale, learners, &[MEMBERS_MAX as u8 + 1]).is_err());
    assert!(forged(&stale, learners + 1, &[3]).is_err(), "no such position");
    assert!(forged(&stale, learners + 2, &[0; 4]).is_err(), "a learner that is nobody");
    assert!(forged(&stale, learners + 2, &[1, 0, 0, 0]).is_err(), "an acting member learns");
}

#[test]
fn a_payload_that_fits_no_checksums_is_refused() {
    let pool = BufferPool::default();
    let mut bytes = Vec::new();
    encode(&examples().swap_remove(1).1, &mut bytes);
    bytes[16..20].copy_from_slice(&4096u32.to_le_bytes());
    reseal(&mut bytes);
    let header = decode_header(bytes.first_chunk().unwrap()).unwrap();
    assert!(decode(&header, &bytes[32..], Some(data(1)), &pool).is_err());

    // Add a payload to a message of a kind that has none.
    let mut bytes = Vec::new();
    encode(&request(Op::Sync), &mut bytes);
    bytes[16..20].copy_from_slice(&4096u32.to_le_bytes());
    reseal(&mut bytes);
    let header = decode_header(bytes.first_chunk().unwrap()).unwrap();
    assert!(decode(&header, &bytes[32..], Some(data(1)), &pool).is_err());
}

#[test]
fn texts_for_people_are_cut_at_a_letter() {
    let why = "ü".repeat(5000);
    let long = reply(Err(Refusal::Invalid { why: why.clone() }));
    let Ok(Message::Reply(Reply { outcome: Err(Refusal::Invalid { why: cut }), .. })) =
        parse(&frame(&long))
    else {
        panic!("a long text is cut, not refused")
    };
    assert_eq!(cut.len(), 4096);
    assert!(why.starts_with(&cut));
}
