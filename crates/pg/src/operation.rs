//! What is done to a key in its turn, who waits for it, and what goes on when it ends.

use base::{ImageId, UNIT_SIZE, Version};
use format::wire::Change;

use super::Ticket;
use super::slots::{DeletionSlot, JobSlot, ReadSlot};

/// Who is told that a write ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteFor {
    /// A client.
    Client(Ticket),
    /// A deletion by range.
    Deletion(DeletionSlot),
    /// A copy of the block: it takes its turn, and changes nothing here.
    Job(JobSlot),
}

impl WriteFor {
    /// The client's ticket, if it is a client.
    pub fn ticket(self) -> Option<Ticket> {
        match self {
            WriteFor::Client(ticket) => Some(ticket),
            WriteFor::Deletion(_) | WriteFor::Job(_) => None,
        }
    }
}

/// What waits for the end of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Follower {
    /// A read of the same units.
    Read(ReadSlot),
    /// A deletion of the same image.
    Deletion(DeletionSlot),
}

/// What is done to a key. What changes nothing takes its turn, too.
pub enum WriteKind {
    /// Change the block; with `expected`, only if the block has that version. `lazy`: it may be answered
    /// before it is durable.
    Change { change: Change, expected: Option<Version>, lazy: bool },
    /// Read what no member has alone, and older layers, newest first.
    Read { wants: Wants, parents: Vec<ImageId> },
    /// Change nothing: no other write of the block is under way until it ends.
    Hold,
    /// The members were told what to do.
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
    /// Deletes a block. Never lazily: its tombstone goes when the floor passes it.
    pub const DELETE: WriteKind =
        WriteKind::Change { change: Change::Delete, expected: None, lazy: false };

    /// Whether it may be answered before it is durable.
    pub fn is_lazy(&self) -> bool {
        matches!(self, WriteKind::Change { lazy: true, .. })
    }

    /// Whether its key is as before when it ends.
    pub fn changes_nothing(&self) -> bool {
        matches!(self, WriteKind::Read { .. } | WriteKind::Hold)
    }

    /// Whether it needs room for data in the stores.
    pub fn brings_data(&self) -> bool {
        matches!(self, WriteKind::Change { change: Change::Write { .. }, .. })
    }

    /// The change, as its sender named it.
    pub fn into_change(self) -> Change {
        match self {
            WriteKind::Change { change, .. } => {
                if let Change::Write { checksums, data, .. } = &change {
                    assert!(checksums.len() as u64 * UNIT_SIZE == data.len() as u64);
                }
                change
            }
            WriteKind::Read { .. } | WriteKind::Hold => unreachable!("it changes nothing"),
            WriteKind::HandedOver => unreachable!("a write is handed over once"),
        }
    }
}
