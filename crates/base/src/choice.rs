//! An operator's decision about a damaged block of which nothing else tells what is right.

use crate::OsdId;

/// What an operator decides about a damaged block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
pub enum Choice {
    /// In pools with copies: what this OSD can read of its copy is right.
    Keep(OsdId),
    /// In pools with parity: the part on this OSD is wrong; it is made of the others.
    Rebuild(OsdId),
    /// In pools with parity: the data parts are right; parity is computed from them.
    RebuildParity,
    /// Units that can neither be read nor made become zeros.
    AcceptLoss,
}

impl Choice {
    /// Returns the OSD that the choice names.
    pub fn osd(self) -> Option<OsdId> {
        match self {
            Choice::Keep(osd) | Choice::Rebuild(osd) => Some(osd),
            Choice::RebuildParity | Choice::AcceptLoss => None,
        }
    }
}
