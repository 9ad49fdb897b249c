//! The decisions of a recovery, stored as inline data of its journal entry: 24 bytes each.

use base::{Epoch, Lsn, PgId, PoolId, Version};

use super::bytes::{Reader, Writer};

/// One decision. It is final: every later recovery follows it without checking again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// The journal ended at `from` and continues at `to`; everything between is invalid.
    Cut {
        /// Where the journal ended.
        from: Lsn,
        /// Where the journal continues. The checksum chain continues from the entry before `from`.
        to: Lsn,
    },
    /// Acknowledged entries from `from` on are lost; the next intact one is at `to`.
    Hole {
        /// The lsn of the first lost entry.
        from: Lsn,
        /// The lsn of the next intact entry. Its chain checksum cannot be checked.
        to: Lsn,
    },
    /// The entry is dropped, as if it had never been written.
    Drop(Lsn),
    /// Versions of the PG from `from` on are dropped if they were prepared or skipped before the entry with
    /// this decision, because an earlier version is missing.
    Tail {
        /// The PG.
        pg: PgId,
        /// The lowest version that is dropped.
        from: Version,
    },
    /// Batches and pages of the PG, and moves of its blocks, from `from` on are dropped if they lie before
    /// the entry with this decision, because an earlier one is missing.
    PgTail {
        /// The PG, of an object pool.
        pg: PgId,
        /// The lsn of the first entry that is dropped.
        from: Lsn,
    },
    /// Data of the acknowledged entry is lost. Later recoveries do not report it again.
    Damaged(Lsn),
    /// The batch or page is lost, also if its body can be read again later: what came behind it may have its
    /// places.
    Lost(Lsn),
}

/// The kind of a [`Decision::Tail`]. The upper half of the kind's word holds the epoch; the other two words
/// hold the PG and the counter.
const KIND_TAIL: u64 = 5;

/// The kind of a [`Decision::PgTail`]. The other two words hold the PG and the lsn.
const KIND_PG_TAIL: u64 = 6;

/// The kind of a [`Decision::Lost`].
const KIND_LOST: u64 = 7;

/// Size of an encoded decision, in bytes.
pub const DECISION_SIZE: usize = 24;

/// Encodes the decisions.
pub fn encode_decisions(decisions: &[Decision]) -> Vec<u8> {
    let mut to = Writer::default();
    for decision in decisions {
        let (kind, first, second) = match *decision {
            Decision::Cut { from, to } => (1, from, to),
            Decision::Hole { from, to } => (2, from, to),
            Decision::Drop(lsn) => (3, lsn, Lsn::ZERO),
            Decision::Damaged(lsn) => (4, lsn, Lsn::ZERO),
            Decision::Tail { pg, from } => {
                let kind = KIND_TAIL | u64::from(from.epoch.get()) << 32;
                (kind, word_of(pg), Lsn::new(from.counter))
            }
            Decision::PgTail { pg, from } => (KIND_PG_TAIL, word_of(pg), from),
            Decision::Lost(lsn) => (KIND_LOST, lsn, Lsn::ZERO),
        };
        to.u64(kind);
        to.u64(first.get());
        to.u64(second.get());
    }
    to.bytes
}

/// Decodes decisions. Returns `None` if the bytes are not valid decisions.
pub fn decode_decisions(bytes: &[u8]) -> Option<Vec<Decision>> {
    let mut from = Reader::new(bytes);
    let mut decisions = Vec::new();
    while !from.is_at_end() {
        let (kind, first, second) = (from.u64()?, Lsn::new(from.u64()?), Lsn::new(from.u64()?));
        decisions.push(match kind {
            1 if first < second => Decision::Cut { from: first, to: second },
            2 if first < second => Decision::Hole { from: first, to: second },
            3 => Decision::Drop(first),
            4 => Decision::Damaged(first),
            kind if kind as u32 == KIND_TAIL as u32 => {
                let pg = pg_of(first)?;
                let epoch = Epoch::new((kind >> 32) as u32);
                Decision::Tail { pg, from: Version { epoch, counter: second.get() } }
            }
            KIND_PG_TAIL => Decision::PgTail { pg: pg_of(first)?, from: second },
            KIND_LOST => Decision::Lost(first),
            _ => return None,
        });
    }
    Some(decisions)
}

/// Returns the word that stands for a PG.
fn word_of(pg: PgId) -> Lsn {
    Lsn::new(u64::from(pg.pool.get()) << 32 | u64::from(pg.number))
}

fn pg_of(word: Lsn) -> Option<PgId> {
    let pool = PoolId::new((word.get() >> 32) as u32)?;
    Some(PgId { pool, number: word.get() as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_frozen() {
        let (from, to) = (Lsn::new(512), Lsn::new(4096));
        let decisions = vec![
            Decision::Cut { from, to },
            Decision::Hole { from, to },
            Decision::Drop(to),
            Decision::Damaged(from),
            Decision::Tail {
                pg: PgId { pool: PoolId::FIRST, number: 7 },
                from: Version { epoch: Epoch::new(3), counter: 9 },
            },
        ];
        let bytes = encode_decisions(&decisions);
        super::super::golden("decisions.4", &bytes);
        assert_eq!(decode_decisions(&bytes), Some(decisions));
        assert_eq!(decode_decisions(&bytes[1..]), None);
        assert_eq!(decode_decisions(&[9; 24]), None);
    }

    #[test]
    fn bytes_of_a_lost_entry_are_frozen() {
        let decisions = vec![Decision::Lost(Lsn::new(4096)), Decision::Damaged(Lsn::new(512))];
        let bytes = encode_decisions(&decisions);
        super::super::golden("decisions-lost.5", &bytes);
        assert_eq!(decode_decisions(&bytes), Some(decisions));
    }

    #[test]
    fn bytes_of_a_pgs_tail_are_frozen() {
        let pg = PgId { pool: PoolId::FIRST, number: 7 };
        let decisions = vec![Decision::PgTail { pg, from: Lsn::new(4096) }];
        let bytes = encode_decisions(&decisions);
        super::super::golden("decisions.5", &bytes);
        assert_eq!(decode_decisions(&bytes), Some(decisions));
        // A kind that no program has written, and no pool.
        assert_eq!(decode_decisions(&[&bytes[..4], &[1], &bytes[5..]].concat()), None);
        assert_eq!(decode_decisions(&[&bytes[..8], &[0; 8], &bytes[16..]].concat()), None);
    }
}
