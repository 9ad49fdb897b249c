//! Checks fenced sessions: once a PG has served a session that was opened after the fence, it executes
//! nothing for the fenced session.
//!
//! By then, each unanswered write of the fenced session has either taken effect or never will. This holds
//! only for the PG that has served the later session, and only if that session was opened after the fence.
//!
//! ```text
//!   write requested ──▶ fenced ──▶ later session opened ──▶ a PG serves it: write closed in this PG
//!      └── may take effect at any time ─────────────────────┘
//! ```

use std::collections::BTreeSet;
use std::ops::Range;

use base::SessionId;

use super::Volume;
use super::change::Change;
use crate::register::Moment;

impl Volume {
    /// Records that a session was opened. The sessions for which `is_fenced` returns true had been
    /// fenced by then.
    pub fn opened(&mut self, session: SessionId, is_fenced: impl Fn(SessionId) -> bool) {
        let known = self.fences.sessions.keys().copied();
        let fenced = known.filter(|known| is_fenced(*known)).collect();
        self.fences.sessions.insert(session, fenced);
    }

    /// Records that a PG serves a session. Returns the number of changes of fenced sessions that can no
    /// longer take effect in this PG.
    pub fn served(&mut self, pg: u32, session: SessionId, now: Moment) -> u64 {
        if !self.fences.served.insert((session, pg)) {
            return 0;
        }
        let Some(fenced) = self.fences.sessions.get(&session).cloned() else { return 0 };
        let new = fenced.into_iter().filter(|it| !self.fences.over.contains_key(&(*it, pg)));
        let new: BTreeSet<SessionId> = new.collect();
        let changes = self.open.values().filter(|change| new.contains(&change.by));
        let changes: Vec<Change> = changes.cloned().collect();
        let mut closed = 0;
        for change in &changes {
            let registers = Volume::registers_in(&change.pieces);
            let of_pg =
                registers.filter(|it| self.pg_of(*it) == Some(pg) && !change.over_in.contains(it));
            let of_pg = of_pg.collect::<Vec<_>>();
            closed += u64::from(!of_pg.is_empty());
            for register in of_pg {
                let history = self.registers.entry(register).or_default();
                history.failed_write(change.value, change.from, now);
            }
        }
        self.fences.over.extend(new.into_iter().map(|session| ((session, pg), now)));
        closed
    }

    /// Returns whether a request that a session issued at `from` must have been refused by a PG that
    /// contains some of these pieces.
    pub fn is_over(&self, session: SessionId, pieces: &Range<u64>, from: Moment) -> bool {
        let since = |register| self.over_at(session, register);
        Volume::registers_in(pieces).filter_map(since).any(|since| since < from)
    }

    /// Returns whether an unanswered change may still take effect in a register.
    pub(super) fn is_open_at(&self, change: &Change, register: u64) -> bool {
        self.over_at(change.by, register).is_none() && !change.over_in.contains(&register)
    }

    fn over_at(&self, session: SessionId, register: u64) -> Option<Moment> {
        if self.fences.over.is_empty() {
            return None;
        }
        self.fences.over.get(&(session, self.pg_of(register)?)).copied()
    }
}

#[cfg(test)]
mod tests {
    use base::ImageId;

    use super::super::{PIECE_SIZE, Shape};
    use super::*;
    use crate::register::Value;

    const OLD: SessionId = SessionId::new(7);
    const NEXT: SessionId = SessionId::new(9);
    const PIECES: Range<u64> = 64..72;

    /// Returns a volume whose old session received an answer to write 5, but none to write 6. With
    /// `is_fenced`, the next session is opened after the old session was fenced.
    fn volume(is_fenced: bool) -> Volume {
        let mut volume = Volume::new("v".into(), 1, 256, Shape { pg_count: 4, stripe_units: 4 });
        volume.image = ImageId::new(1);
        volume.opened(OLD, |_| false);
        volume.ask(5, OLD, 5, PIECES, 1);
        volume.done(5, 2, false);
        volume.ask(6, OLD, 6, PIECES, 3);
        volume.opened(NEXT, |session| is_fenced && session == OLD);
        volume
    }

    fn pg(volume: &Volume) -> u32 {
        volume.pg_of(PIECES.start).expect("its image is known")
    }

    fn read(volume: &mut Volume, values: &[Value], at: Moment) -> bool {
        for (index, value) in values.iter().enumerate() {
            let mut bytes = vec![0; 8 * PIECE_SIZE as usize];
            volume.fill(PIECES.start, *value, &mut bytes);
            let from = at + 2 * index as Moment;
            volume.read(PIECES.start, &bytes, from, from + 1).expect("its form is good");
        }
        volume.check().is_ok()
    }

    #[test]
    fn a_fenced_write_happens_by_the_next_sessions_first_answer_or_never() {
        for (is_fenced, is_served) in [(true, true), (true, false), (false, true)] {
            let mut volume = volume(is_fenced);
            let pg = pg(&volume);
            let served = if is_served { pg } else { (pg + 1) % 4 };
            volume.served(served, NEXT, 10);
            assert_eq!(read(&mut volume, &[5, 6], 20), !(is_fenced && is_served));
        }
        for value in [5, 6] {
            let mut volume = volume(true);
            let pg = pg(&volume);
            assert_eq!(volume.served(pg, NEXT, 10), 1);
            assert_eq!(volume.served(pg, NEXT, 11), 0);
            assert!(read(&mut volume, &[value, value], 20), "{value}");
        }
    }

    #[test]
    fn a_fenced_write_that_is_answered_late_happened_before() {
        for (value, is_good) in [(5, false), (6, true)] {
            let mut volume = volume(true);
            let pg = pg(&volume);
            volume.served(pg, NEXT, 10);
            volume.done(6, 30, false);
            assert_eq!(read(&mut volume, &[value], 20), is_good, "{value}");
        }
    }

    #[test]
    fn what_is_asked_after_the_end_is_never_done() {
        let mut volume = volume(true);
        let pg = pg(&volume);
        volume.served(pg, NEXT, 10);
        assert!(!volume.is_over(OLD, &PIECES, 3));
        assert!(volume.is_over(OLD, &PIECES, 11));
        assert!(!volume.is_over(NEXT, &PIECES, 11));
        volume.ask(8, OLD, 8, PIECES, 11);
        assert!(!read(&mut volume, &[8], 20));
    }

    #[test]
    fn an_accepted_loss_may_bring_back_what_a_fenced_session_wrote() {
        let mut volume = volume(true);
        let pg = pg(&volume);
        volume.served(pg, NEXT, 10);
        volume.give_up(pg, 12);
        assert!(read(&mut volume, &[6, 6], 20));
    }
}
