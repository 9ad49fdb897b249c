//! Leases of the leading monitor, by which PGs are read while too few of their members are there.
//!
//! The other members cannot grant anything then. So it is the entry that must stay: as long as the
//! lease runs, the monitor lets no other OSD lead the PG. See `docs/internals/pg.md`.
//!
//! Invariants
//!   1. A lease is of one connection to the monitor, and counts from when it was asked for.
//!   2. What a question does not name any more is handed back: no answer to an earlier one counts.

use std::collections::BTreeMap;

use base::planted::{self, Bug};
use base::{ConnectionId, Duration, Epoch, PgId, Time};
use cluster::message::{READ_LEASE_PG_COUNT_MAX, READ_LEASE_SPAN, ToMonitor};

use crate::Effect;
use crate::node::Node;

/// How often the lease is renewed.
const RENEW_SPAN: Duration = Duration::from_millis(200);

/// The lease of the leading monitor.
#[derive(Default)]
pub struct Reads {
    /// Over which it was asked for.
    connection: Option<ConnectionId>,
    stamp_last: u64,
    /// What was asked for last.
    wanted: BTreeMap<PgId, Epoch>,
    /// A question without an answer: its stamp, and when it was sent.
    asked: Option<(u64, Time)>,
    /// What it is for.
    held: BTreeMap<PgId, Epoch>,
    until: Time,
    /// When it is asked for again.
    due: Option<Time>,
}

impl Reads {
    /// When it is asked for again.
    pub fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// Whether PGs may be read in these epochs, over this connection to the monitor.
    fn holds(&self, now: Time, connection: Option<ConnectionId>, pg: PgId, epoch: Epoch) -> bool {
        let is_ours = connection.is_some() && connection == self.connection;
        is_ours && now < self.until && self.held.get(&pg) == Some(&epoch)
    }

    /// These are to be read; the question to send, if one is due.
    fn want(
        &mut self,
        now: Time,
        connection: ConnectionId,
        wanted: BTreeMap<PgId, Epoch>,
    ) -> Option<ToMonitor> {
        if self.connection != Some(connection) {
            let stamp_last = self.stamp_last;
            *self = Reads { connection: Some(connection), stamp_last, ..Reads::default() };
        }
        let is_same = wanted == self.wanted;
        if wanted.is_empty() && is_same {
            self.due = None;
            return None;
        }
        let is_due = self.due.is_none_or(|due| due <= now);
        if is_same && !is_due {
            return None;
        }
        self.due = Some(now + RENEW_SPAN);
        let is_awaited = self.asked.is_some_and(|(_, sent_at)| now < sent_at + READ_LEASE_SPAN);
        if is_same && is_awaited {
            return None;
        }
        self.held.retain(|pg, epoch| wanted.get(pg) == Some(epoch));
        self.wanted = wanted;
        self.stamp_last += 1;
        self.asked = Some((self.stamp_last, now));
        let pgs = self.wanted.iter().map(|(pg, epoch)| (*pg, *epoch)).collect();
        Some(ToMonitor::ReadLease { stamp: self.stamp_last, pgs })
    }

    /// The monitor answered. True if requests may go on now that had to wait before.
    fn granted(&mut self, now: Time, stamp: u64, valid: Duration, pgs: &[PgId]) -> bool {
        let Some((_, sent_at)) = self.asked.take_if(|(asked, _)| *asked == stamp) else {
            return false;
        };
        let was_valid = now < self.until;
        let named = pgs.iter().filter_map(|pg| Some((*pg, *self.wanted.get(pg)?)));
        let before = std::mem::replace(&mut self.held, named.collect());
        self.until = sent_at + valid;
        !was_valid || self.held.iter().any(|(pg, epoch)| before.get(pg) != Some(epoch))
    }
}

impl Node {
    /// Asks for the lease where PGs are to be read by it, and hands back what is needed no more.
    pub(crate) fn renew_reads(&mut self, now: Time, effects: &mut Vec<Effect>) {
        let Some(connection) = self.link.joined() else {
            self.reads.due = None;
            return;
        };
        let readable = self.pgs.iter().filter(|pg| pg.reads_up_to().is_some());
        let wanted = readable.filter_map(|pg| Some((pg.id(), pg.entry()?.epoch)));
        let wanted = wanted.take(READ_LEASE_PG_COUNT_MAX).collect();
        if let Some(question) = self.reads.want(now, connection, wanted) {
            self.tell_monitor(&question, effects);
        }
    }

    /// The monitor answered.
    pub(crate) fn reads_granted(&mut self, now: Time, stamp: u64, valid_ms: u32, pgs: &[PgId]) {
        let valid = Duration::from_millis(u64::from(valid_ms));
        self.recheck |= self.reads.granted(now, stamp, valid, pgs);
    }

    /// Whether the leading monitor lets no other OSD lead the PG, now, while it is in this epoch.
    pub(crate) fn may_be_read(&self, now: Time, pg: PgId, epoch: Epoch) -> bool {
        self.reads.holds(now, self.link.joined(), pg, epoch)
            || planted::on(Bug::ReadBelowMinimumWithoutLease)
    }
}

#[cfg(test)]
mod tests {
    use base::PoolId;

    use super::*;

    const LINK: ConnectionId = ConnectionId::new(2);

    fn at(milliseconds: u64) -> Time {
        Time::ZERO + Duration::from_millis(milliseconds)
    }

    fn pg(number: u32) -> PgId {
        PgId { pool: PoolId::FIRST, number }
    }

    fn wanted(numbers: &[u32]) -> BTreeMap<PgId, Epoch> {
        numbers.iter().map(|number| (pg(*number), Epoch::new(7))).collect()
    }

    fn ask(reads: &mut Reads, now: u64, numbers: &[u32]) -> Option<u64> {
        match reads.want(at(now), LINK, wanted(numbers))? {
            ToMonitor::ReadLease { stamp, pgs } => {
                assert!(pgs.into_iter().eq(wanted(numbers)));
                Some(stamp)
            }
            other => panic!("{other:?} is no question"),
        }
    }

    fn holds(reads: &Reads, now: u64, number: u32) -> bool {
        reads.holds(at(now), Some(LINK), pg(number), Epoch::new(7))
    }

    const SPAN: Duration = Duration::from_millis(600);

    #[test]
    fn a_lease_counts_from_the_question_and_is_asked_for_again() {
        let mut reads = Reads::default();
        assert_eq!(ask(&mut reads, 0, &[]), None);
        assert_eq!(reads.deadline(), None, "nothing is to be read");
        assert_eq!(ask(&mut reads, 1000, &[1, 2]), Some(1));
        assert!(reads.granted(at(1100), 1, SPAN, &[pg(1)]), "what waits may go on");
        assert!(holds(&reads, 1599, 1));
        assert!(!holds(&reads, 1600, 1), "it has run out");
        assert!(!holds(&reads, 1200, 2), "the monitor did not name it");
        assert!(!reads.holds(at(1200), Some(LINK), pg(1), Epoch::new(8)), "another epoch");
        assert!(!reads.holds(at(1200), Some(ConnectionId::new(4)), pg(1), Epoch::new(7)));
        assert!(!reads.holds(at(1200), None, pg(1), Epoch::new(7)), "the connection is gone");
        assert_eq!(ask(&mut reads, 1199, &[1, 2]), None, "it is not due");
        assert_eq!(ask(&mut reads, 1200, &[1, 2]), Some(2));
        assert!(!reads.granted(at(1201), 1, SPAN, &[pg(1), pg(2)]), "an answer that came before");
        assert!(!reads.granted(at(1300), 2, SPAN, &[pg(1)]), "nothing is new");
        assert!(holds(&reads, 1799, 1));
        // One that is not answered is asked again when its lease would be over.
        assert_eq!(ask(&mut reads, 1400, &[1, 2]), Some(3));
        for now in [1600, 1800] {
            assert_eq!(ask(&mut reads, now, &[1, 2]), None);
        }
        assert_eq!(ask(&mut reads, 2000, &[1, 2]), Some(4));
        assert!(reads.granted(at(2010), 4, SPAN, &[pg(1), pg(2)]));
        // Over another connection everything begins anew.
        let other = ConnectionId::new(4);
        assert!(reads.want(at(2020), other, wanted(&[1])).is_some());
        assert!(!reads.holds(at(2020), Some(other), pg(1), Epoch::new(7)));
    }

    #[test]
    fn what_is_handed_back_is_not_read_by_an_answer_that_was_on_its_way() {
        let mut reads = Reads::default();
        assert_eq!(ask(&mut reads, 0, &[1, 2]), Some(1));
        assert!(reads.granted(at(10), 1, SPAN, &[pg(1), pg(2)]));
        assert_eq!(ask(&mut reads, 200, &[1, 2]), Some(2));
        assert_eq!(ask(&mut reads, 210, &[1]), Some(3), "it is said at once");
        assert!(!holds(&reads, 211, 2) && holds(&reads, 211, 1));
        assert!(!reads.granted(at(220), 2, SPAN, &[pg(1), pg(2)]));
        assert_eq!(ask(&mut reads, 230, &[1, 2]), Some(4));
        assert!(!holds(&reads, 231, 2), "it is to be granted anew");
        assert_eq!(ask(&mut reads, 240, &[]), Some(5), "the last one is handed back, too");
        assert_eq!(ask(&mut reads, 440, &[]), None);
        assert_eq!(reads.deadline(), None);
        assert!(!reads.granted(at(450), 5, SPAN, &[pg(1)]), "nobody wants it");
        assert!(!holds(&reads, 451, 1));
    }
}
