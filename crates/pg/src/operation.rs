//! What is done to a key in its turn, who waits for it, and what goes on when it ends.

use base::{Buffer, Checksum, ImageId, UNIT_SIZE, Version};
use format::wire::Change;

use super::Ticket;

/// Who is told that a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteFor {
    /// A client.
    Client(Ticket),
    /// A deletion by range.
    Deletion(usize),
    /// A copy of the block: it takes its turn, and changes nothing here.
    Job(usize),
}

/// What waits for the end of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follower {
    /// A read of the same units.
    Read(usize),
    /// A deletion of the same image.
    Deletion(usize),
}

/// What is done to a key. What changes nothing takes its turn, too.
pub enum WriteKind {
    /// Put data; with `expected`, only if the block has that version.
    Write {
        offset: u32,
        checksums: Vec<Checksum>,
        data: Buffer,
        expected: Option<Version>,
        lazy: bool,
    },
    /// Make a range read as zeros.
    Zero { offset: u32, length: u32, lazy: bool },
    /// Delete the block.
    Delete,
    /// Read what no member has alone, and older layers, newest first.
    Read { wants: Wants, parents: Vec<ImageId> },
    /// Change nothing: no other write of the block is under way until it ends.
    Hold,
    /// What it does is with the members.
    HandedOver,
}

/// What a read asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wants {
    /// Bytes of a range.
    Data { offset: u32, length: u32 },
    /// Which units of the whole block are written.
    Allocation,
}

impl WriteKind {
    /// Whether it may be answered before it is durable. A deletion never is: its tombstone goes
    /// when the floor passes it.
    pub fn is_lazy(&self) -> bool {
        match self {
            WriteKind::Write { lazy, .. } | WriteKind::Zero { lazy, .. } => *lazy,
            WriteKind::Delete
            | WriteKind::Read { .. }
            | WriteKind::Hold
            | WriteKind::HandedOver => false,
        }
    }

    /// Whether its key is as before when it ends.
    pub fn changes_nothing(&self) -> bool {
        matches!(self, WriteKind::Read { .. } | WriteKind::Hold)
    }

    /// The change that it is, as its sender named it.
    pub fn into_change(self) -> Change {
        match self {
            WriteKind::Write { offset, checksums, data, .. } => {
                assert!(checksums.len() as u64 * UNIT_SIZE == data.len() as u64);
                Change::Write { offset, checksums, data }
            }
            WriteKind::Zero { offset, length, .. } => Change::Zero { offset, length },
            WriteKind::Delete => Change::Delete,
            WriteKind::Read { .. } | WriteKind::Hold => unreachable!("it changes nothing"),
            WriteKind::HandedOver => unreachable!("a write is handed over once"),
        }
    }
}
