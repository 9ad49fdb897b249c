//! Frames to bytes and back.

use base::{Buffer, BufferPool};

use super::Message;

/// Size of a frame's header in bytes.
pub const FRAME_HEADER_SIZE: usize = 32;

/// The lengths a frame's header announces, checked against the limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameHeader {
    /// Kind of the message.
    pub kind: u16,
    /// Bytes of body after the header.
    pub body_length: u32,
    /// Bytes of payload after the body.
    pub payload_length: u32,
    /// Checksum of the body.
    pub body_checksum: u32,
}

/// Bytes that are no message of ours.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DecodeError(pub String);

/// The header and body of a message, appended to `bytes`; the payload, if any, follows on the
/// wire as it is.
pub fn encode(_message: &Message, _bytes: &mut Vec<u8>) -> Option<Buffer> {
    None
}

/// Checks a header.
pub fn decode_header(_bytes: &[u8; FRAME_HEADER_SIZE]) -> Result<FrameHeader, DecodeError> {
    Err(DecodeError(String::new()))
}

/// The message of a header, body and payload. The payload is not checked here: who uses data
/// compares its checksums.
pub fn decode(
    _header: &FrameHeader,
    _body: &[u8],
    _payload: Option<Buffer>,
    _pool: &BufferPool,
) -> Result<Message, DecodeError> {
    Err(DecodeError(String::new()))
}
