//! How long the turns of an OSD's loop take, and what the long ones did.
//!
//! Nothing else happens on an OSD during a turn: no read is answered, no lease renewed. So each is counted, without
//! its wait for events, and a long one is logged.

use std::collections::VecDeque;

use base::{Duration, Time, TraceEvent};
use format::door::NetEvent;
use format::wire::{Message, Op};
use io::Event;

/// A turn that takes longer is logged.
const LONG: Duration = Duration::from_millis(50);

/// When the answers of the engine have taken so long in a turn, the others are for the next turn: what
/// else comes
/// is looked at between them, and what they began is on its way. Removals of objects in batches bring a
/// hundred
/// answers at a time, each of which prepares a batch.
pub const ANSWERS_TIME_MAX: Duration = Duration::from_millis(5);

/// Handles what waits until that has taken so long, but at least one. `handle` returns the time when it is
/// done.
pub fn handle_for<T>(
    span_max: Duration,
    begun: Time,
    waiting: &mut VecDeque<T>,
    mut handle: impl FnMut(T) -> Time,
) {
    while let Some(next) = waiting.pop_front() {
        if handle(next).since(begun) >= span_max {
            return;
        }
    }
}

/// The turn that goes on, and what it has done.
pub struct Turns {
    /// Up to when all time was counted.
    at: Time,
    /// The wait since then, in nanoseconds like all below.
    waited: u64,
    time: u64,
    /// What was done in this turn: how often, and how long all of it took. Its memory stays from turn to
    /// turn.
    done: Vec<(&'static str, u32, u64)>,
    /// What took longest at a time.
    longest: (u64, &'static str),
}

impl Turns {
    pub fn new(now: Time) -> Turns {
        Turns { at: now, waited: 0, time: 0, done: Vec::new(), longest: (0, "") }
    }

    /// Notes that the loop has waited for events.
    pub fn waited(&mut self, span: Duration) {
        self.waited += span.as_nanos();
    }

    /// Notes what was done since the last call.
    pub fn did(&mut self, what: &'static str, now: Time) {
        let span = now.since(self.at).as_nanos().saturating_sub(self.waited);
        (self.at, self.waited) = (now, 0);
        self.time += span;
        match self.done.iter_mut().find(|(known, ..)| *known == what) {
            Some((_, count, sum)) => (*count, *sum) = (*count + 1, *sum + span),
            None => self.done.push((what, 1, span)),
        }
        self.longest = self.longest.max((span, what));
    }

    /// Ends a turn. Returns how long it took, and if that is long, what it did, for the log.
    pub fn end(&mut self) -> (Duration, Option<TraceEvent>) {
        let time = Duration::from_nanos(std::mem::take(&mut self.time));
        let (span, what) = std::mem::take(&mut self.longest);
        if time <= LONG {
            self.done.clear();
            return (time, None);
        }
        self.done.sort_by_key(|(.., sum)| std::cmp::Reverse(*sum));
        let done = self
            .done
            .drain(..)
            .map(|(what, count, sum)| format!("{what}: {} ms, {count} times", sum / 1_000_000));
        let event =
            TraceEvent::warn("a turn of the loop took long: nothing else was done meanwhile");
        let event = event.number("turn_ms", time.as_millis());
        let event = event.with("longest", what).number("longest_ms", span / 1_000_000);
        (time, Some(event.list("did", done)))
    }
}

/// Returns what is done when this event is handled.
pub fn doing(event: &Event) -> &'static str {
    match event {
        Event::Net(NetEvent::Received { message, .. }) => match message {
            Message::Request(request) => match request.op {
                Op::Read { .. } | Op::ReadPart { .. } => "read",
                Op::Write { .. } => "write",
                Op::Zero { .. } => "zero",
                Op::Sync => "sync",
                Op::Extents { .. } => "extents",
                Op::DeleteRange { .. } => "delete range",
                Op::Mutate { .. } => "change of objects",
                Op::Look { .. } => "read of objects",
                Op::List { .. } => "list of objects",
            },
            Message::Peer(_) => "message of an OSD",
            Message::Control(_) => "message of a monitor",
            Message::Reply(_) => "reply",
            Message::Lease(_) => "lease",
        },
        Event::Net(_) => "connection",
        Event::Disk(_) => "answer of the disk",
        _ => "signal",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_takes_too_long_is_left_for_the_next_turn_but_for_one() {
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let (mut waiting, mut now, mut handled) =
            (VecDeque::from([2, 2, 9, 1, 1]), 100, Vec::new());
        for expected in [&[2, 2, 9][..], &[1, 1], &[]] {
            handle_for(ANSWERS_TIME_MAX, at(now), &mut waiting, |millis| {
                (now, _) = (now + millis, handled.push(millis));
                at(now)
            });
            assert_eq!(std::mem::take(&mut handled), expected);
        }
        waiting.extend([9, 9]);
        handle_for(ANSWERS_TIME_MAX, at(now), &mut waiting, |millis| at(now + millis));
        assert_eq!(waiting.len(), 1);
    }

    #[test]
    fn a_long_turn_says_what_it_did_and_a_wait_does_not_count() {
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let mut turns = Turns::new(at(0));
        turns.waited(Duration::from_millis(900));
        turns.did("sending and receiving", at(901));
        turns.did("write", at(911));
        assert_eq!(turns.end(), (Duration::from_millis(11), None));
        turns.did("write", at(931));
        turns.did("change of objects", at(961));
        turns.did("write", at(981));
        let (time, line) = turns.end();
        assert_eq!(time, Duration::from_millis(70));
        let line = format!("{:?}", line.expect("it is long"));
        assert!(
            line.contains("write: 40 ms, 2 times") && line.contains("change of objects"),
            "{line}"
        );
        turns.did("write", at(982));
        assert_eq!(turns.end(), (Duration::from_millis(1), None));
    }
}
