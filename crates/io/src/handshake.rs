//! Proof of the cluster key on every connection. A pure state machine: bytes in, bytes out, no I/O.
//!
//! ```text
//!   initiator                                            responder
//!     hello:   preamble (48) | Noise message 1 (48)  ──▶   checks key and cluster, or refuses
//!     ◀──  answer:  status, length (8) | Noise message 2 with the responder's preamble (112)
//!                                      | or the reason for the refusal
//!     confirm: Noise transport message, empty (16)   ──▶   the hello was no replay
//!     frames                                         ◀─▶   frames
//! ```
//!
//! The pattern is `Noise_NNpsk0_25519_ChaChaPoly_SHA256`. The pre-shared key is the cluster key. The
//! prologue is the initiator's preamble, so any change to the preamble in transit makes the handshake fail.
//!
//! Invariants
//!   1. `Established` is returned only after the peer has proven in this exchange that it has the key.
//!   2. No byte after the handshake is consumed.
//!   3. At most one message, the expected one, is buffered.

use base::{ClusterId, Incarnation, MonitorId, OsdId};
use format::door::{Peer, Role};
use format::wire::PROTOCOL_VERSIONS;
use snow::{HandshakeState, TransportState};

use crate::key::ClusterKey;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";
const MAGIC: [u8; 8] = *b"ashlar\r\n";
const PREAMBLE_SIZE: usize = 48;
/// Sizes: ephemeral key (32), tag (16).
const NOISE_HELLO_SIZE: usize = 48;
const HELLO_SIZE: usize = PREAMBLE_SIZE + NOISE_HELLO_SIZE;
/// Status (1), zeros (3), length (4).
const ANSWER_HEAD_SIZE: usize = 8;
/// Ephemeral key (32), preamble, tag (16).
const NOISE_ANSWER_SIZE: usize = 32 + PREAMBLE_SIZE + 16;
/// A tag (16), without payload.
const CONFIRM_SIZE: usize = 16;
/// Longest message of a refusal, in bytes.
const REFUSAL_SIZE_MAX: usize = 512;

const STATUS_GO_ON: u8 = 0;
const STATUS_REFUSED: u8 = 1;

/// The key that a process proves to its peers, and its identity.
#[derive(Clone, Debug)]
pub struct Trust {
    /// The cluster's key.
    pub key: ClusterKey,
    /// The cluster and role of this process.
    pub peer: Peer,
}

/// The result of a completed handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Established {
    /// The identity of the peer.
    pub peer: Peer,
    /// The protocol version that both sides use from now on.
    pub version: u16,
}

/// The result of [`Handshake::receive`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HandshakeStep {
    /// All input was consumed; more input is needed.
    Wait,
    /// The handshake is complete; the input after the first `consumed` bytes consists of frames.
    Done {
        /// How much of this input belonged to the handshake, in bytes.
        consumed: usize,
        /// The peer.
        established: Established,
    },
}

/// One side of a handshake.
pub struct Handshake {
    trust: Trust,
    stage: Stage,
    input: Vec<u8>,
}

/// The stages of both sides, in the order in which they occur.
enum Stage {
    /// The responder waits for the hello.
    Hello,
    /// The initiator waits for the answer's head.
    AnswerHead(Box<HandshakeState>),
    /// The initiator waits for the rest of the answer.
    Answer(Box<HandshakeState>),
    /// The initiator waits for the text of a refusal.
    Refusal { length: usize },
    /// The responder waits for the proof that the hello was not a replay.
    Confirm(Box<TransportState>, Established),
    /// Nothing more is accepted.
    Ended,
}

impl Handshake {
    /// Starts the initiator's side (which connected); appends the hello to `output`.
    pub fn initiate(trust: &Trust, output: &mut Vec<u8>) -> Handshake {
        let preamble = encode_preamble(&trust.peer, PROTOCOL_VERSIONS);
        let mut noise = builder(&trust.key, &preamble)
            .build_initiator()
            .expect("the pattern needs nothing but the key");
        let mut message = [0; NOISE_HELLO_SIZE];
        let length = noise.write_message(&[], &mut message).expect("the message has its size");
        assert!(length == NOISE_HELLO_SIZE);
        output.extend_from_slice(&preamble);
        output.extend_from_slice(&message);
        let stage = Stage::AnswerHead(Box::new(noise));
        Handshake { trust: trust.clone(), stage, input: Vec::new() }
    }

    /// Starts the responder's side (which accepted the connection).
    pub fn respond(trust: &Trust) -> Handshake {
        Handshake { trust: trust.clone(), stage: Stage::Hello, input: Vec::new() }
    }

    /// Handles bytes from the peer, and appends the bytes to send to `output`. After an error `output` must
    /// be sent too: it gives the peer the reason. An error is a human-readable sentence and ends the
    /// connection.
    pub fn receive(
        &mut self,
        mut bytes: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<HandshakeStep, String> {
        let offered = bytes.len();
        loop {
            let wanted = self.stage.length();
            let (taken, rest) = bytes.split_at(bytes.len().min(wanted - self.input.len()));
            self.input.extend_from_slice(taken);
            bytes = rest;
            self.check_early(output)?;
            if self.input.len() < wanted {
                return Ok(HandshakeStep::Wait);
            }
            let input = std::mem::take(&mut self.input);
            if let Some(established) = self.advance(&input, output)? {
                let consumed = offered - bytes.len();
                return Ok(HandshakeStep::Done { consumed, established });
            }
        }
    }

    /// Refuses a foreign protocol at the first wrong byte, without waiting for a complete hello.
    fn check_early(&mut self, output: &mut Vec<u8>) -> Result<(), String> {
        let length = self.input.len().min(MAGIC.len());
        if matches!(self.stage, Stage::Hello) && self.input[..length] != MAGIC[..length] {
            return self.refuse(
                output,
                "the connecting process does not speak the Ashlar protocol".into(),
            );
        }
        Ok(())
    }

    fn advance(
        &mut self,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Option<Established>, String> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Hello => self.take_hello(input, output).map(|()| None),
            Stage::AnswerHead(noise) => self.take_answer_head(input, noise).map(|()| None),
            Stage::Answer(noise) => self.take_answer(input, *noise, output).map(Some),
            Stage::Refusal { .. } => {
                let sentence = String::from_utf8_lossy(input);
                let sentence: String = sentence.chars().filter(|c| !c.is_control()).collect();
                Err(format!("the peer refused the connection: {sentence}"))
            }
            Stage::Confirm(mut noise, established) => match noise.read_message(input, &mut []) {
                Ok(_) => Ok(Some(established)),
                Err(_) => {
                    let why = "the peer did not prove that it has the key: its hello was a replay";
                    Err(why.into())
                }
            },
            Stage::Ended => Err("received data after the end of the handshake".into()),
        }
    }

    /// Ends the handshake with an error, and appends a refusal with the reason to `output`.
    fn refuse<T>(&mut self, output: &mut Vec<u8>, sentence: String) -> Result<T, String> {
        self.stage = Stage::Ended;
        let text = &sentence[..sentence.floor_char_boundary(REFUSAL_SIZE_MAX)];
        put_answer_head(output, STATUS_REFUSED, text.len());
        output.extend_from_slice(text.as_bytes());
        Err(format!("a connection was refused: {sentence}"))
    }

    fn take_hello(&mut self, input: &[u8], output: &mut Vec<u8>) -> Result<(), String> {
        let (preamble, message) = input.split_at(PREAMBLE_SIZE);
        let hello = match decode_preamble(preamble) {
            Ok(hello) => hello,
            Err(sentence) => return self.refuse(output, sentence),
        };
        let ours = PROTOCOL_VERSIONS;
        let version = *ours.end().min(&hello.version_max);
        if version < *ours.start() || version < hello.version_min {
            let sentence = format!(
                "the connecting process supports protocol versions {} to {}, the listening one {} \
                 to {}: one of them must be updated",
                hello.version_min,
                hello.version_max,
                ours.start(),
                ours.end()
            );
            return self.refuse(output, sentence);
        }
        if hello.peer.cluster != self.trust.peer.cluster {
            let sentence = format!(
                "the connecting process belongs to cluster {}, the listening one to cluster {}",
                hello.peer.cluster, self.trust.peer.cluster
            );
            return self.refuse(output, sentence);
        }
        let mut noise = builder(&self.trust.key, preamble)
            .build_responder()
            .expect("the pattern needs nothing but the key");
        if noise.read_message(message, &mut []).is_err() {
            return self
                .refuse(output, "the connecting process has a different cluster key".into());
        }
        let answer = encode_preamble(&self.trust.peer, version..=version);
        let mut message = [0; NOISE_ANSWER_SIZE];
        let length = noise.write_message(&answer, &mut message).expect("the message has its size");
        assert!(length == NOISE_ANSWER_SIZE);
        put_answer_head(output, STATUS_GO_ON, message.len());
        output.extend_from_slice(&message);
        let noise = noise.into_transport_mode().expect("both messages were exchanged");
        let established = Established { peer: hello.peer, version };
        self.stage = Stage::Confirm(Box::new(noise), established);
        Ok(())
    }

    fn take_answer_head(&mut self, input: &[u8], noise: Box<HandshakeState>) -> Result<(), String> {
        let length = u32::from_le_bytes(input[4..8].try_into().expect("4 bytes")) as usize;
        self.stage = match input[0] {
            _ if input[1..4] != [0; 3] => return Err(not_ours()),
            STATUS_GO_ON if length == NOISE_ANSWER_SIZE => Stage::Answer(noise),
            STATUS_REFUSED if (1..=REFUSAL_SIZE_MAX).contains(&length) => Stage::Refusal { length },
            _ => return Err(not_ours()),
        };
        Ok(())
    }

    fn take_answer(
        &mut self,
        input: &[u8],
        mut noise: HandshakeState,
        output: &mut Vec<u8>,
    ) -> Result<Established, String> {
        let mut answer = [0; PREAMBLE_SIZE];
        let length = noise.read_message(input, &mut answer);
        if length != Ok(PREAMBLE_SIZE) {
            return Err("the peer has a different cluster key".into());
        }
        let answer = decode_preamble(&answer)?;
        if answer.peer.cluster != self.trust.peer.cluster {
            return Err(format!("the peer belongs to cluster {}", answer.peer.cluster));
        }
        let version = answer.version_min;
        if version != answer.version_max || !PROTOCOL_VERSIONS.contains(&version) {
            return Err(format!(
                "the peer chose protocol version {version}, which was not offered"
            ));
        }
        let mut noise = noise.into_transport_mode().expect("both messages were exchanged");
        let mut confirm = [0; CONFIRM_SIZE];
        let length = noise.write_message(&[], &mut confirm).expect("the message has its size");
        assert!(length == CONFIRM_SIZE);
        output.extend_from_slice(&confirm);
        Ok(Established { peer: answer.peer, version })
    }
}

impl Stage {
    /// Returns the number of bytes that this stage waits for; never 0.
    fn length(&self) -> usize {
        match self {
            Stage::Hello => HELLO_SIZE,
            Stage::AnswerHead(_) => ANSWER_HEAD_SIZE,
            Stage::Answer(_) => NOISE_ANSWER_SIZE,
            Stage::Refusal { length } => *length,
            Stage::Confirm(..) => CONFIRM_SIZE,
            Stage::Ended => 1,
        }
    }
}

fn not_ours() -> String {
    "the peer does not speak the Ashlar protocol".into()
}

fn builder<'a>(key: &'a ClusterKey, prologue: &'a [u8]) -> snow::Builder<'a> {
    let pattern = PATTERN.parse().expect("the pattern is known to the library");
    snow::Builder::new(pattern)
        .psk(0, key.bytes())
        .and_then(|builder| builder.prologue(prologue))
        .expect("each is set once")
}

fn put_answer_head(output: &mut Vec<u8>, status: u8, length: usize) {
    output.extend_from_slice(&[status, 0, 0, 0]);
    output.extend_from_slice(&(length as u32).to_le_bytes());
}

// ---- preamble -------------------------------------------------------------------------------

const ROLE_CLIENT: u8 = 1;
const ROLE_OSD: u8 = 2;
const ROLE_MONITOR: u8 = 3;

struct Preamble {
    version_min: u16,
    version_max: u16,
    peer: Peer,
}

fn encode_preamble(peer: &Peer, versions: std::ops::RangeInclusive<u16>) -> [u8; PREAMBLE_SIZE] {
    let (role, id, incarnation) = match peer.role {
        Role::Client => (ROLE_CLIENT, 0, 0),
        Role::Osd(osd, incarnation) => (ROLE_OSD, osd.get(), incarnation.get()),
        Role::Monitor(monitor) => (ROLE_MONITOR, monitor.get(), 0),
    };
    let mut bytes = [0; PREAMBLE_SIZE];
    bytes[0..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&versions.start().to_le_bytes());
    bytes[10..12].copy_from_slice(&versions.end().to_le_bytes());
    bytes[12] = role;
    bytes[16..32].copy_from_slice(&peer.cluster.get().to_le_bytes());
    bytes[32..36].copy_from_slice(&id.to_le_bytes());
    bytes[40..48].copy_from_slice(&incarnation.to_le_bytes());
    bytes
}

fn decode_preamble(bytes: &[u8]) -> Result<Preamble, String> {
    let bytes: &[u8; PREAMBLE_SIZE] = bytes.try_into().expect("its size was waited for");
    let field = |at: usize| [bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]];
    let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    if bytes[0..8] != MAGIC {
        return Err("the connecting process does not speak the Ashlar protocol".into());
    }
    let id = u32::from_le_bytes(field(32));
    let incarnation = u64::from_le_bytes(bytes[40..48].try_into().expect("8 bytes"));
    let role = match (bytes[12], incarnation) {
        (ROLE_CLIENT, 0) if id == 0 => Some(Role::Client),
        (ROLE_OSD, _) => OsdId::new(id).map(|osd| Role::Osd(osd, Incarnation::new(incarnation))),
        (ROLE_MONITOR, 0) => MonitorId::new(id).map(Role::Monitor),
        _ => None,
    };
    let Some(role) = role else {
        return Err("the role of the connecting process is unknown to this version".into());
    };
    let cluster = u128::from_le_bytes(bytes[16..32].try_into().expect("16 bytes"));
    Ok(Preamble {
        version_min: half(8),
        version_max: half(10),
        peer: Peer { cluster: ClusterId::new(cluster), role },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(key: u8, cluster: u128, role: Role) -> Trust {
        let key = ClusterKey::from_bytes([key; 32]);
        Trust { key, peer: Peer { cluster: ClusterId::new(cluster), role } }
    }

    fn osd() -> Role {
        Role::Osd(OsdId::new(3).expect("not 0"), Incarnation::new(7))
    }

    fn monitor() -> Role {
        Role::Monitor(MonitorId::FIRST)
    }

    /// Runs both sides against each other, `portion` bytes at a time.
    fn run(initiator: &Trust, responder: &Trust, portion: usize) -> [Result<Peer, String>; 2] {
        let (mut to_responder, mut to_initiator) = (Vec::new(), Vec::new());
        let mut sides =
            [Handshake::initiate(initiator, &mut to_responder), Handshake::respond(responder)];
        let mut results = [None, None];
        while results.iter().any(Option::is_none) {
            for side in 0..2 {
                let (input, output) = if side == 0 {
                    (&mut to_initiator, &mut to_responder)
                } else {
                    (&mut to_responder, &mut to_initiator)
                };
                let portion: Vec<u8> = input.drain(..input.len().min(portion)).collect();
                if results[side].is_some() {
                    assert!(
                        portion.is_empty()
                            || results[side]
                                .as_ref()
                                .is_some_and(|r: &Result<Peer, String>| r.is_err())
                    );
                    continue;
                }
                if portion.is_empty() && results[1 - side].as_ref().is_some_and(|r| r.is_err()) {
                    results[side] = Some(Err("the peer is gone".into()));
                    continue;
                }
                match sides[side].receive(&portion, output) {
                    Ok(HandshakeStep::Wait) => {}
                    Ok(HandshakeStep::Done { consumed, established }) => {
                        assert_eq!(consumed, portion.len());
                        assert_eq!(established.version, *PROTOCOL_VERSIONS.end());
                        results[side] = Some(Ok(established.peer));
                    }
                    Err(sentence) => results[side] = Some(Err(sentence)),
                }
            }
        }
        results.map(|result| result.expect("the loop ended"))
    }

    #[test]
    fn each_side_learns_who_the_other_is() {
        let (client, osd) = (trust(1, 9, Role::Client), trust(1, 9, osd()));
        for portion in [1, 7, 47, 48, 1000] {
            assert_eq!(run(&client, &osd, portion), [Ok(osd.peer), Ok(client.peer)]);
            assert_eq!(run(&osd, &client, portion), [Ok(client.peer), Ok(osd.peer)]);
        }
    }

    #[test]
    fn another_key_is_refused_and_both_sides_say_so() {
        let [initiator, responder] = run(&trust(1, 9, osd()), &trust(2, 9, monitor()), 1000);
        let sentence = "the connecting process has a different cluster key";
        assert_eq!(initiator, Err(format!("the peer refused the connection: {sentence}")));
        assert_eq!(responder, Err(format!("a connection was refused: {sentence}")));
    }

    #[test]
    fn another_cluster_is_refused_and_both_sides_say_so() {
        for side in run(&trust(1, 9, osd()), &trust(1, 8, monitor()), 1000) {
            let sentence = side.expect_err("another cluster");
            assert!(sentence.contains("to cluster 00000000000000000000000000000009"), "{sentence}");
            assert!(sentence.contains("to cluster 00000000000000000000000000000008"), "{sentence}");
        }
    }

    #[test]
    fn no_common_version_is_refused_with_both_ranges() {
        let ours = trust(1, 9, monitor());
        let (oldest, newest) = (*PROTOCOL_VERSIONS.start(), *PROTOCOL_VERSIONS.end());
        for versions in [newest + 1..=newest + 2, 0..=0] {
            let mut hello = encode_preamble(&ours.peer, versions.clone()).to_vec();
            hello.resize(HELLO_SIZE, 0);
            let mut output = Vec::new();
            let error = Handshake::respond(&ours).receive(&hello, &mut output);
            let error = error.expect_err("no common version");
            let range = format!(
                "versions {} to {}, the listening one {oldest} to {newest}",
                versions.start(),
                versions.end()
            );
            assert!(error.contains(&range), "{error}");
            assert_eq!(output[0], STATUS_REFUSED);
            assert!(String::from_utf8_lossy(&output).contains(&range));
        }
    }

    #[test]
    fn a_replayed_hello_is_not_established() {
        let (client, osd) = (trust(1, 9, Role::Client), trust(1, 9, osd()));
        let mut hello = Vec::new();
        let mut honest = Handshake::initiate(&client, &mut hello);
        let mut answer = Vec::new();
        let mut responder = Handshake::respond(&osd);
        assert_eq!(responder.receive(&hello, &mut answer), Ok(HandshakeStep::Wait));
        let mut confirm = Vec::new();
        honest.receive(&answer, &mut confirm).expect("the keys agree");
        // The same bytes again, to a responder that chose another ephemeral key.
        let mut replayed = Handshake::respond(&osd);
        assert_eq!(replayed.receive(&hello, &mut Vec::new()), Ok(HandshakeStep::Wait));
        assert!(replayed.receive(&confirm, &mut Vec::new()).is_err());
        assert!(matches!(
            responder.receive(&confirm, &mut Vec::new()),
            Ok(HandshakeStep::Done { .. })
        ));
    }

    #[test]
    fn frames_behind_the_handshake_are_not_consumed() {
        let (client, osd) = (trust(1, 9, Role::Client), trust(1, 9, osd()));
        let (mut hello, mut answer, mut confirm) = (Vec::new(), Vec::new(), Vec::new());
        let mut initiator = Handshake::initiate(&client, &mut hello);
        let mut responder = Handshake::respond(&osd);
        responder.receive(&hello, &mut answer).expect("the keys agree");
        initiator.receive(&answer, &mut confirm).expect("the keys agree");
        confirm.extend_from_slice(b"a frame");
        let step = responder.receive(&confirm, &mut Vec::new()).expect("the keys agree");
        assert!(matches!(step, HandshakeStep::Done { consumed: CONFIRM_SIZE, .. }));
    }

    #[test]
    fn any_changed_bit_of_the_exchange_ends_it() {
        let (client, osd) = (trust(1, 9, Role::Client), trust(1, 9, osd()));
        let mut hello = Vec::new();
        Handshake::initiate(&client, &mut hello);
        // Flip only every 13th bit: the cryptography is slow without optimisation.
        for bit in (0..hello.len() * 8).step_by(13) {
            let mut changed = hello.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let result = Handshake::respond(&osd).receive(&changed, &mut Vec::new());
            assert!(result.is_err(), "bit {bit} of the hello");
        }
        let mut initiator = Handshake::initiate(&client, &mut Vec::new());
        let mut again = Vec::new();
        let mut answer = Vec::new();
        for bit in (0..(ANSWER_HEAD_SIZE + NOISE_ANSWER_SIZE) * 8).step_by(37) {
            again.clear();
            answer.clear();
            initiator = Handshake::initiate(&client, &mut again);
            Handshake::respond(&osd).receive(&again, &mut answer).expect("the keys agree");
            answer[bit / 8] ^= 1 << (bit % 8);
            let result = initiator.receive(&answer, &mut Vec::new());
            assert!(!matches!(result, Ok(HandshakeStep::Done { .. })), "bit {bit} of the answer");
        }
        assert!(initiator.receive(&[0; 200], &mut Vec::new()).is_err());
    }

    #[test]
    fn another_protocol_is_refused_at_its_first_bytes() {
        let ours = trust(1, 9, monitor());
        let mut output = Vec::new();
        let error = Handshake::respond(&ours).receive(b"GET / HTTP/1.1\r\n", &mut output);
        assert!(error.expect_err("not ours").contains("does not speak the Ashlar protocol"));
        let error = Handshake::initiate(&ours, &mut Vec::new())
            .receive(b"HTTP/1.1 400 Bad Request\r\n", &mut output);
        assert!(error.expect_err("not ours").contains("does not speak the Ashlar protocol"));
    }

    #[test]
    fn a_truncated_exchange_waits_and_keeps_little() {
        let ours = trust(1, 9, monitor());
        let mut hello = Vec::new();
        Handshake::initiate(&ours, &mut hello);
        for length in 0..hello.len() {
            let mut responder = Handshake::respond(&ours);
            let step = responder.receive(&hello[..length], &mut Vec::new());
            assert_eq!(step, Ok(HandshakeStep::Wait));
            assert_eq!(responder.input.len(), length);
        }
    }
}
