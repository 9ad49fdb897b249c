//! The face of pools that keep parity. Each position holds one part of every stripe; a stripe has `k` data
//! parts and `m` parity parts. `docs/internals/stripes.md` has the rules.
//!
//! | question | files |
//! |---|---|
//! | what a position holds, and what a parity part records about the data parts | [`part`], [`table`] |
//! | what a write changes in each part | [`patch`], [`parity`] |
//! | how units are read, or reconstructed from `k` others | [`gather`], [`read`], without the primary [`direct`] |
//! | which keys exist | [`list`] |
//! | how a version reaches all members | [`replicate`], [`pipeline`], [`member`], [`early`] |
//! | how an epoch begins | [`peering`] |
//! | how a learner is filled | [`fill`], and while acting members are lost [`fill_short`] |
//! | what a scrub finds | [`agree`], [`code_word`] |
//!
//! Invariants
//!   1. Every version of the PG is sent to every acting member, and each member passes the versions of an
//!      epoch to its store in order. So a member always holds a prefix of the versions.
//!   2. At most one version of a stripe is in flight at a time.

pub mod agree;
pub mod check;
pub mod code_word;
pub mod direct;
pub mod early;
pub mod fill;
pub mod fill_short;
pub mod gather;
pub mod list;
pub mod member;
pub mod parity;
pub mod part;
pub mod patch;
pub mod peering;
pub mod pipeline;
pub mod read;
pub mod replicate;
pub mod table;

use std::ops::Range;
use std::sync::OnceLock;

use base::planted::{self, Bug};
use base::scheme::{DATA_COUNT_MAX, PARITY_COUNT_MAX};
use base::{BlockSize, Position, Scheme};
use erasure::Code;

use crate::copies::Copies;
use crate::face::{Adoption, Face, Gathering, Needs, Seen, Statement, Verdict, Wanted};
use crate::operation::{Wants, WriteKind};
use crate::units::{Units, units_of};
use format::wire::Change;

/// The face of one scheme with parity.
#[derive(Debug)]
pub struct Stripes {
    code: Code,
}

impl Stripes {
    fn new(scheme: Scheme) -> Stripes {
        let data = scheme.data_count() as usize;
        let code = match scheme {
            Scheme::Copies { .. } => unreachable!("replicated pools have no erasure code"),
            Scheme::Xor { .. } => Code::xor(data),
            Scheme::ReedSolomon { parity, .. } => Code::reed_solomon(data, parity.into()),
        };
        Stripes { code: code.expect("a scheme that was checked is within the code's limits") }
    }

    pub fn code(&self) -> &Code {
        &self.code
    }

    /// Returns the number of data parts, `k`.
    pub fn data_count(&self) -> usize {
        self.code.shape().data_count()
    }

    /// Returns the number of parts, data and parity together.
    pub fn part_count(&self) -> usize {
        self.code.shape().part_count()
    }

    /// Returns whether a position holds a data part.
    pub fn is_data(&self, position: Position) -> bool {
        position.index() < self.data_count()
    }

    /// Returns the index of the parity part that a position holds, counted from zero; `None`: it holds a data
    /// part.
    pub fn parity_index(&self, position: Position) -> Option<usize> {
        position.index().checked_sub(self.data_count())
    }

    /// Returns the data parts that a range of units of the stripe covers, each with its units in that range.
    pub fn split(
        &self,
        units: Range<u32>,
        block_size: BlockSize,
    ) -> impl Iterator<Item = (usize, Range<u32>)> + use<> {
        let count = block_size.unit_count();
        let parts = units.start / count..units.end.div_ceil(count);
        parts.map(move |part| {
            let first = part * count;
            let start = units.start.max(first) - first;
            let end = units.end.min(first + count) - first;
            (part as usize, start..end)
        })
    }
}

/// Returns the face of pools with this scheme. Requires: [`Scheme::check`] accepts the scheme.
pub fn face_of(scheme: Scheme) -> &'static dyn Face {
    // One face for each scheme; each lives as long as the process.
    const KINDS: usize = 1 + PARITY_COUNT_MAX as usize;
    static FACES: [OnceLock<Stripes>; (DATA_COUNT_MAX as usize + 1) * KINDS] =
        [const { OnceLock::new() }; (DATA_COUNT_MAX as usize + 1) * KINDS];
    assert!(scheme.check().is_ok());
    let (data, kind) = match scheme {
        Scheme::Copies { .. } => return &Copies,
        Scheme::Xor { data } => (data, 0),
        Scheme::ReedSolomon { data, parity } => (data, parity),
    };
    FACES[data as usize * KINDS + kind as usize].get_or_init(|| Stripes::new(scheme))
}

impl Face for Stripes {
    fn is_whole_everywhere(&self) -> bool {
        false
    }

    fn stripes(&self) -> Option<&Stripes> {
        Some(self)
    }

    fn data_count(&self) -> u32 {
        self.code.shape().data_count() as u32
    }

    fn footprint(&self, kind: &WriteKind, block_size: BlockSize) -> Range<u32> {
        match kind {
            WriteKind::Change { change: Change::Write { offset, data, .. }, .. } => {
                let (first, end) = units_of(*offset, data.len() as u32);
                first..end
            }
            WriteKind::Change { change: Change::Zero { offset, length }, .. }
            | WriteKind::Read { wants: Wants::Data { offset, length }, .. } => {
                let (first, end) = units_of(*offset, *length);
                first..end
            }
            WriteKind::Change { change: Change::Delete, .. }
            | WriteKind::Read { wants: Wants::Allocation, .. }
            | WriteKind::HandedOver => 0..block_size.unit_count() * self.data_count() as u32,
            WriteKind::Hold => 0..0,
        }
    }

    fn needs(&self, kind: &WriteKind) -> Needs {
        match kind {
            WriteKind::Read { .. } if planted::on(Bug::ReadBesideSibling) => Needs::Nothing,
            _ => Needs::Pieces,
        }
    }

    fn adopt(&self, _stated: &[Statement]) -> Adoption {
        unreachable!("a prefix of the PG's versions is adopted, not versions of keys")
    }

    fn units_to_fill(&self, changed: Units) -> Option<Units> {
        Some(changed)
    }

    fn agree(&self, positions: &[Position], seen: &[Seen], block_size: BlockSize) -> Verdict {
        agree::compare(self, positions, seen, block_size).into_verdict()
    }

    fn gather(&self, _wanted: Wanted) -> Box<dyn Gathering> {
        unreachable!("parts of stripes are gathered by `stripes::gather`")
    }
}
