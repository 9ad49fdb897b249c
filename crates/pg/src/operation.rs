//! Operations on a key: what each does at its turn, who waits for it, and what continues when it ends.

use std::ops::Range;

use base::{ImageId, UNIT_SIZE, Version};
use format::wire::Change;

use super::Ticket;
use super::slots::{DeletionSlot, JobSlot, ReadSlot, WriteSlot};

/// Who requested a write, and is informed when the write ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WriteFor {
    /// A client.
    Client(Ticket),
    /// A deletion by range.
    Deletion(DeletionSlot),
    /// A job that copies the block. The job takes its turn in the block's queue, but changes nothing on this
    /// OSD.
    Job(JobSlot),
    /// The current key of a scrub. The scrub takes its turn in the key's queue, too, and changes nothing.
    Scrub,
    /// In pools with parity: the read of a newer layer, in slot `above`. The newer layer holds no data in the
    /// units from `first` on.
    Layer { above: WriteSlot, first: u32 },
}

impl WriteFor {
    /// Returns the ticket, if the write is for a client.
    pub fn ticket(self) -> Option<Ticket> {
        match self {
            WriteFor::Client(ticket) => Some(ticket),
            WriteFor::Deletion(_) | WriteFor::Job(_) | WriteFor::Scrub | WriteFor::Layer { .. } => {
                None
            }
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

/// What an operation does to a key. Operations that change nothing take turns, too.
pub enum WriteKind {
    /// Change the block; with `expected`, only if the block has that version. `lazy`: the change may be
    /// answered before it is durable. `columns`, only with parity: in each block of the stripe, only these
    /// units are changed; others of the change come as changes of their own.
    Change { change: Change, expected: Option<Version>, lazy: bool, columns: Option<Range<u32>> },
    /// Read data that no single member has. `parents`: older layers, newest first.
    Read { wants: Wants, parents: Vec<ImageId> },
    /// Change nothing, but let no other write to the block be in flight until this operation ends.
    Hold,
    /// The change has been handed to the members.
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
    /// Deletes a block. Never lazy: the tombstone is dropped when the floor passes it.
    pub const DELETE: WriteKind =
        WriteKind::Change { change: Change::Delete, expected: None, lazy: false, columns: None };

    /// Returns whether the operation may be answered before it is durable.
    pub fn is_lazy(&self) -> bool {
        matches!(self, WriteKind::Change { lazy: true, .. })
    }

    /// Returns whether the operation leaves its key unchanged.
    pub fn changes_nothing(&self) -> bool {
        matches!(self, WriteKind::Read { .. } | WriteKind::Hold)
    }

    /// Returns whether the operation needs room for data in the stores.
    pub fn brings_data(&self) -> bool {
        matches!(self, WriteKind::Change { change: Change::Write { .. }, .. })
    }

    /// Returns for how many units of a block the operation was charged room, and whether it was charged
    /// space. `units`: those that it changes. In a pool of copies zeros are charged nothing, but counted.
    pub fn charged(&self, units: &Range<u32>) -> (u32, bool) {
        match self {
            WriteKind::Change { change: Change::Delete, .. } => (0, false),
            WriteKind::Change { columns, .. } => {
                let most = columns.as_ref().map_or(u32::MAX, |columns| columns.end - columns.start);
                (most.min(units.end - units.start), true)
            }
            WriteKind::Read { .. } | WriteKind::Hold | WriteKind::HandedOver => (0, false),
        }
    }

    /// Returns the change that the sender requested.
    pub fn into_change(self) -> Change {
        match self {
            WriteKind::Change { change, .. } => {
                if let Change::Write { checksums, data, .. } = &change {
                    assert!(checksums.len() as u64 * UNIT_SIZE == data.len() as u64);
                }
                change
            }
            WriteKind::Read { .. } | WriteKind::Hold => unreachable!("it makes no change"),
            WriteKind::HandedOver => unreachable!("a write is handed over once"),
        }
    }
}
