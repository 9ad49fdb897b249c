//! The recovery table: what recovery does at each place of the journal, depending on what it finds there.
//!
//! ```text
//!      header     body   data  acked  decision   meaning (acked: an entry records a flush past this lsn)
//! @A   next       whole  ok    _      Replay     the usual case
//! @B   next       bad    _     no     Stop       a torn tail that was never acknowledged
//! @C   next       bad    _     yes    Damaged    durable data is lost: its units become damaged
//! @D   old        _      _     no     Stop       an entry of the last lap: the journal ends here
//! @E   old        _      _     yes    Hole       the disk confirmed a write and lost it: suspect
//! @F   bad        _      _     no     Stop       never written, or a torn header
//! @G   bad        _      _     yes    Hole       a lost sector inside the journal: suspect
//! @H   next       whole  bad   no     Drop       out-of-line data does not match its checksums
//! @I   newer      _      _     no     Stop       a misdirected write, or the newest root is lost: suspect
//! @J   newer      _      _     yes    Hole       the same over an acknowledged entry: suspect
//! @K   unchained  _      _     no     Stop       a leftover of a replaced tail: the journal ends here
//! @L   unchained  _      _     yes    Hole       an entry in between is missing: suspect
//! @M   next       bad    _     yes    Lost       a note or decisions (no block data) are lost: suspect
//! @T   unreadable _     _     no     Stop       a bad sector, which no torn write causes: suspect
//! @U   unreadable _     _     yes    Hole       an acknowledged entry cannot be read: suspect
//! @V   next       lost  ok    no     Damaged    block data that cannot be read: its units become damaged
//! @W   next       lost  ok    no     Lost       a note or decisions (no block data) cannot be read: suspect
//! @X   next       whole lost  no     Damaged    out-of-line data that cannot be read: damaged units
//! @Z   next       bad    bad   no     Damaged    an entry records this version as committed; no copy
//! @N   (decided before)               Skip       an earlier recovery decided on a cut or a hole here
//! @O   (decided before)               Drop       an earlier recovery dropped this entry
//! @P   next       _      _     _      Drop       follows a dropped entry of its block or version of its PG
//! ```
//!
//! Object pools have rows of their own. There *body* is that of a batch or page, *units* is the data behind it, and *lost*
//! means: bad and acked, or unreadable. What is bad and not acked is row B.
//!
//! ```text
//!      body   units  data  acked  decision   meaning
//! @a   lost   _      _     _      Lost       records and blocks of an entry are lost: its PG is suspect, not the store;
//!                                            later starts follow that (O), also if the body can be read again
//! @b   lost   _      _     yes    (pass)     the same, but checkpoint and engine have them: nobody needs the entry
//! @c   whole  lost   _     _      Damaged    data is lost: its units become damaged
//! @d   whole  ok     bad   no     Drop       out-of-line data does not match; also of a move
//! @e   _      _      _     _      Drop       follows a dropped entry of its PG
//! ```
//!
//! If only the note of a settle is lost (M, W), the settle still takes effect: its header contains what it
//! needs.
//!
//! Rows for things outside the journal, each counted every time it applies:
//!
//! ```text
//! @Q   one copy of the superblock is damaged: the other is used and the damaged one is rewritten
//! @R   the newest root's streams are damaged, an older root's are not: it is used; suspect
//! @S   a leaf is damaged: its blocks are lost, and the PGs of its keys are suspect
//! @Y   a slot of the root cannot be read: the other one is used, if the journal holds everything after it
//! ```
//!
//! Rows `h` to `j`, for families of the engine, are in `recover/engine.rs`.

/// The header at a place of the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Header {
    /// The header's sector cannot be read.
    Unreadable,
    /// There is no valid header.
    Bad,
    /// The header of an entry of an earlier lap.
    Old,
    /// The header of an entry of a later lap, which does not belong here.
    Newer,
    /// The entry belongs here, but its checksum chain does not continue from the preceding entry.
    Unchained,
    /// The header of the expected next entry.
    Next,
}

/// The state of an entry's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// All data matches its checksums.
    Whole,
    /// The data that can be read matches its checksums; the rest cannot be read.
    Unreadable,
    /// Some data does not match its checksums.
    Bad,
}

impl Content {
    /// Returns the state of this data and other data together.
    pub fn worse(self, other: Content) -> Content {
        match (self, other) {
            (Content::Bad, _) | (_, Content::Bad) => Content::Bad,
            (Content::Unreadable, _) | (_, Content::Unreadable) => Content::Unreadable,
            _ => Content::Whole,
        }
    }
}

/// What the inline data of an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inline {
    /// Data of a block.
    Block,
    /// The body of a batch or page; behind it is the data of units.
    Body {
        /// That data.
        units: Content,
    },
    /// A note, decisions, marks, or nothing.
    Other,
}

/// What recovery finds at a place of the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// The header.
    pub header: Header,
    /// The inline data, or the body.
    pub body: Content,
    /// What the inline data is.
    pub inline: Inline,
    /// Whether this is a batch or page, or a change of a block in the PG of an object pool.
    pub is_of_objects: bool,
    /// The out-of-line data. It is read only if the entry is not acked.
    pub data: Content,
    /// Whether an entry records that everything up to the end of this place was durable.
    pub is_acked: bool,
    /// Whether an earlier entry of the same block was dropped. For a prepared or skipped version: also
    /// whether an earlier version of its PG is missing. In object pools: whether an earlier entry of its PG
    /// was dropped.
    pub follows_dropped: bool,
    /// Whether this is a prepared version that a later whole entry records as committed.
    pub is_committed: bool,
}

/// What recovery does with an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Apply the entry.
    Replay,
    /// Apply the entry; units whose data is lost become damaged.
    Damaged,
    /// The journal ends here.
    Stop,
    /// Acknowledged entries are lost: search for the next intact one.
    Hole,
    /// Skip the entry as if it had never been written.
    Drop,
    /// Skip the entry: its content is lost. A settle still takes effect, but without its note.
    Lost,
}

/// Returns the row of the table that applies, and its verdict.
pub fn decide(seen: Seen) -> (char, Verdict) {
    use Header::*;
    let counts_as_recorded = seen.is_committed && seen.has_bad();
    match (seen.header, seen.is_acked) {
        (Unreadable, false) => ('T', Verdict::Stop),
        (Unreadable, true) => ('U', Verdict::Hole),
        (Bad, false) => ('F', Verdict::Stop),
        (Bad, true) => ('G', Verdict::Hole),
        (Old, false) => ('D', Verdict::Stop),
        (Old, true) => ('E', Verdict::Hole),
        (Newer, false) => ('I', Verdict::Stop),
        (Newer, true) => ('J', Verdict::Hole),
        (Unchained, false) => ('K', Verdict::Stop),
        (Unchained, true) => ('L', Verdict::Hole),
        (Next, false) if seen.is_torn() && !counts_as_recorded => ('B', Verdict::Stop),
        (Next, _) if seen.follows_dropped && seen.is_of_objects => ('e', Verdict::Drop),
        (Next, _) if seen.follows_dropped => ('P', Verdict::Drop),
        (Next, false) if counts_as_recorded => ('Z', Verdict::Damaged),
        (Next, is_acked) if seen.body != Content::Whole => match (seen.inline, is_acked) {
            (Inline::Block, false) => ('V', Verdict::Damaged),
            (Inline::Block, true) => ('C', Verdict::Damaged),
            (Inline::Other, false) => ('W', Verdict::Lost),
            (Inline::Other, true) => ('M', Verdict::Lost),
            (Inline::Body { .. }, _) => ('a', Verdict::Lost),
        },
        (Next, false) if seen.data == Content::Bad && seen.is_of_objects => ('d', Verdict::Drop),
        (Next, false) if seen.data == Content::Bad => ('H', Verdict::Drop),
        (Next, _) if seen.units() != Content::Whole => ('c', Verdict::Damaged),
        (Next, false) if seen.data == Content::Unreadable => ('X', Verdict::Damaged),
        (Next, _) => ('A', Verdict::Replay),
    }
}

impl Seen {
    fn has_bad(&self) -> bool {
        self.body == Content::Bad || self.data == Content::Bad
    }

    /// Returns the state of the data behind a body.
    fn units(&self) -> Content {
        if let Inline::Body { units } = self.inline { units } else { Content::Whole }
    }

    fn is_torn(&self) -> bool {
        self.body == Content::Bad || self.units() == Content::Bad
    }
}

/// Whether the row makes the whole store suspect.
pub fn is_suspicious(row: char) -> bool {
    matches!(row, 'E' | 'G' | 'I' | 'J' | 'L' | 'M' | 'R' | 'T' | 'U' | 'W')
}
