//! Which operations are prepared together, and which wait: the order of operations on the same objects.
//! `docs/internals/objects.md`, rules 29 to 32 and 38.
//!
//! ```text
//!   object a   in flight: turn 1     queue: 4 5 6 | 7 (a and b) | 8
//!   object b   in flight: -          queue:         7           | 9        7 waits for a; 9 waits for 7
//! ```
//!
//! Invariants
//!   1. Operations on one object have their turns in the order in which they came.
//!   2. While a turn is in flight, no other one of its objects is, except that blind puts may follow each other.
//!   3. An operation on several objects takes its place in the queues of all of them at once, so no two wait for
//!      each other.
//!   4. A turn with several operations is of one object, and each of them changes that object alone.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::keys::Name;
use crate::prepare::RUN_OPERATIONS_MAX;

/// Stands for an operation, as its owner numbers them.
pub type Ticket = u64;

/// Stands for operations that are prepared together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TurnId(u64);

/// Operations that have their turn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Turn {
    /// Names the turn: [`Queue::end`] needs it.
    pub id: TurnId,
    /// The operations, in the order in which they are prepared.
    pub tickets: Vec<Ticket>,
}

/// What an operation concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Footprint {
    /// A blind put of these objects, one at least: nothing is read, so it may follow other ones that are in
    /// flight.
    BlindPut(BTreeSet<Name>),
    /// Changes of these objects, one at least.
    Changes(BTreeSet<Name>),
    /// A read of these objects, one at least, that changes have overtaken too often.
    Read(BTreeSet<Name>),
}

impl Footprint {
    fn names(&self) -> impl Iterator<Item = &Name> {
        let (Footprint::BlindPut(names) | Footprint::Changes(names) | Footprint::Read(names)) =
            self;
        names.iter()
    }

    /// Whether it may share a turn with other operations: it changes one object.
    fn is_shareable(&self) -> bool {
        match self {
            Footprint::BlindPut(names) | Footprint::Changes(names) => names.len() == 1,
            Footprint::Read(_) => false,
        }
    }
}

/// The order of operations in a PG.
#[derive(Default, Debug)]
pub struct Queue {
    lanes: BTreeMap<Name, Lane>,
    /// What operations that wait concern.
    waiting: BTreeMap<Ticket, Footprint>,
    /// The objects of turns in flight.
    turns: BTreeMap<TurnId, Vec<Name>>,
    turns_count: u64,
}

/// The operations on one object.
#[derive(Default, Debug)]
struct Lane {
    /// Number of turns in flight.
    in_flight: usize,
    /// Whether all of them are blind puts.
    is_blind: bool,
    queue: VecDeque<Ticket>,
}

impl Queue {
    /// Creates a queue without operations.
    pub fn new() -> Queue {
        Queue::default()
    }

    /// Returns the number of operations that wait for their turn.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// Takes an operation. Returns its turn if that begins at once. Requires: no other operation that waits
    /// has this ticket.
    pub fn add(&mut self, ticket: Ticket, footprint: Footprint) -> Option<Turn> {
        assert!(footprint.names().next().is_some(), "an operation is of one object at least");
        if self.may_begin(&footprint) {
            let names = footprint.names().cloned().collect();
            let is_blind = matches!(footprint, Footprint::BlindPut(_));
            return Some(self.begin(names, is_blind, vec![ticket]));
        }
        for name in footprint.names() {
            self.lanes.entry(name.clone()).or_default().queue.push_back(ticket);
        }
        let before = self.waiting.insert(ticket, footprint);
        assert!(before.is_none(), "each operation has a ticket of its own");
        None
    }

    /// Ends a turn: its changes are at all members, or it changed nothing. Returns the turns that begin.
    /// Requires: it is in flight.
    pub fn end(&mut self, turn: TurnId) -> Vec<Turn> {
        let names = self.turns.remove(&turn).expect("the turn is in flight");
        for name in &names {
            self.lanes.get_mut(name).expect("the object has a lane").in_flight -= 1;
        }
        names.iter().filter_map(|name| self.next(name)).collect()
    }

    /// Takes the last operations of a turn back, which did not fit its run: they are the next ones of their
    /// object. Requires: the turn is in flight, and is of one object.
    pub fn put_back(&mut self, turn: TurnId, tickets: &[Ticket]) {
        let names = &self.turns[&turn];
        let [name] = &names[..] else {
            panic!("an operation on several objects is a turn of its own")
        };
        let lane = self.lanes.get_mut(name).expect("the object has a lane");
        for ticket in tickets.iter().rev() {
            lane.queue.push_front(*ticket);
            self.waiting.insert(*ticket, Footprint::Changes(BTreeSet::from([name.clone()])));
        }
    }

    /// Whether an operation that comes now has its turn at once.
    fn may_begin(&self, footprint: &Footprint) -> bool {
        let is_blind = matches!(footprint, Footprint::BlindPut(_));
        let mut lanes = footprint.names().filter_map(|name| self.lanes.get(name));
        lanes
            .all(|lane| lane.queue.is_empty() && (lane.in_flight == 0 || is_blind && lane.is_blind))
    }

    fn begin(&mut self, names: Vec<Name>, is_blind: bool, tickets: Vec<Ticket>) -> Turn {
        for name in &names {
            let lane = self.lanes.entry(name.clone()).or_default();
            lane.in_flight += 1;
            lane.is_blind = is_blind;
        }
        self.turns_count += 1;
        let id = TurnId(self.turns_count);
        self.turns.insert(id, names);
        Turn { id, tickets }
    }

    /// Begins the next turn of an object, if it may begin.
    fn next(&mut self, name: &Name) -> Option<Turn> {
        let lane = &self.lanes[name];
        if lane.in_flight > 0 {
            return None;
        }
        let Some(first) = lane.queue.front().copied() else {
            self.lanes.remove(name);
            return None;
        };
        let is_next = |name: &Name| {
            let lane = &self.lanes[name];
            lane.in_flight == 0 && lane.queue.front() == Some(&first)
        };
        let footprint = &self.waiting[&first];
        if !footprint.names().all(is_next) {
            return None;
        }
        let mut tickets = vec![first];
        if footprint.is_shareable() {
            let others = lane.queue.iter().skip(1).copied();
            let others = others.take_while(|ticket| self.waiting[ticket].is_shareable());
            tickets.extend(others.take(RUN_OPERATIONS_MAX as usize - 1));
        }
        let names: Vec<Name> = footprint.names().cloned().collect();
        for ticket in &tickets {
            self.waiting.remove(ticket);
        }
        for name in &names {
            self.lanes.get_mut(name).expect("it has a lane").queue.drain(..tickets.len());
        }
        // Queued blind puts are prepared with the rest: what follows them waits for all.
        Some(self.begin(names, false, tickets))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(number: u8) -> Name {
        Name::new(&[number]).expect("one byte")
    }

    fn changes(numbers: &[u8]) -> Footprint {
        Footprint::Changes(numbers.iter().copied().map(name).collect())
    }

    fn read(numbers: &[u8]) -> Footprint {
        Footprint::Read(numbers.iter().copied().map(name).collect())
    }

    fn tickets(turn: Option<Turn>) -> Vec<Ticket> {
        turn.map(|turn| turn.tickets).unwrap_or_default()
    }

    #[test]
    fn what_waits_for_one_object_is_prepared_together() {
        let mut queue = Queue::new();
        let first = queue.add(1, changes(&[1])).expect("nothing is in flight");
        for ticket in 2..5 {
            assert_eq!(queue.add(ticket, changes(&[1])), None);
        }
        assert_eq!(queue.add(5, read(&[1])), None);
        assert_eq!(queue.add(6, changes(&[1])), None);
        assert_eq!(tickets(queue.add(7, changes(&[2]))), [7], "another object");
        let next = queue.end(first.id);
        assert_eq!(next.len(), 1);
        assert_eq!(next[0].tickets, [2, 3, 4]);
        queue.put_back(next[0].id, &[4]);
        let next = queue.end(next[0].id);
        assert_eq!(next[0].tickets, [4], "it did not fit the run");
        let next = queue.end(next[0].id);
        assert_eq!(next[0].tickets, [5], "a read is alone");
        assert_eq!(queue.end(next[0].id)[0].tickets, [6]);
        assert_eq!(queue.waiting_count(), 0);
    }

    #[test]
    fn operations_on_several_objects_have_their_turn_in_all_queues() {
        let mut queue = Queue::new();
        let one = queue.add(1, changes(&[1])).expect("nothing is in flight");
        assert_eq!(queue.add(2, changes(&[1, 2])), None);
        assert_eq!(queue.add(3, changes(&[2])), None, "it came later than one that waits");
        assert_eq!(queue.add(4, changes(&[2, 3])), None);
        let both = queue.end(one.id);
        assert_eq!((both.len(), &both[0].tickets[..]), (1, &[2][..]));
        let next = queue.end(both[0].id);
        assert_eq!((next.len(), &next[0].tickets[..]), (1, &[3][..]));
        assert_eq!(queue.end(next[0].id)[0].tickets, [4]);
    }

    #[test]
    fn blind_puts_follow_each_other_and_queue_behind_anything_else() {
        let mut queue = Queue::new();
        let blind = || Footprint::BlindPut([name(1)].into());
        let first = queue.add(1, blind()).expect("nothing is in flight");
        let second = queue.add(2, blind()).expect("blind puts are in flight");
        assert_eq!(queue.add(3, changes(&[1])), None);
        assert_eq!(queue.add(4, blind()), None);
        assert_eq!(queue.end(second.id), []);
        let both = queue.end(first.id);
        assert_eq!(both[0].tickets, [3, 4]);
        assert_eq!(queue.add(5, blind()), None, "what is in flight is no blind put");
        assert_eq!(queue.end(both[0].id)[0].tickets, [5]);
    }

    #[test]
    fn blind_puts_of_several_objects_follow_each_other_too() {
        let mut queue = Queue::new();
        let blind =
            |numbers: &[u8]| Footprint::BlindPut(numbers.iter().copied().map(name).collect());
        let first = queue.add(1, blind(&[1, 2])).expect("nothing is in flight");
        let second = queue.add(2, blind(&[2, 3])).expect("blind puts are in flight");
        assert_eq!(queue.add(3, changes(&[3])), None);
        assert_eq!(queue.add(4, blind(&[1, 3])), None);
        let third = queue.add(5, blind(&[2])).expect("nothing else concerns it");
        assert_eq!(queue.end(first.id), []);
        assert_eq!(tickets(queue.end(second.id).pop()), [3]);
        assert_eq!(queue.end(third.id), []);
    }

    fn any_footprint() -> impl Strategy<Value = Footprint> {
        let several = || prop::collection::btree_set((0..4u8).prop_map(name), 1..4);
        prop_oneof![
            several().prop_map(Footprint::BlindPut),
            several().prop_map(Footprint::Changes),
            several().prop_map(Footprint::Read),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn turns_come_in_order_and_all_come(
            footprints in prop::collection::vec(any_footprint(), 1..40),
            ends in prop::collection::vec((any::<prop::sample::Index>(), 0..3usize), 1..80),
        ) {
            let mut queue = Queue::new();
            // By object: the operations whose turn began, in this order; and turns in flight.
            let mut order: BTreeMap<Name, Vec<Ticket>> = BTreeMap::new();
            let mut flying: Vec<(Turn, Vec<Ticket>)> = Vec::new();
            let (mut next, mut ends) = (0, ends.into_iter());
            let footprint = |ticket: &Ticket| &footprints[*ticket as usize];
            let begin = |turn: Turn, flying: &mut Vec<_>, order: &mut BTreeMap<_, Vec<_>>| {
                for name in turn.tickets.iter().flat_map(|ticket| footprint(ticket).names()) {
                    let is_blind = |turn: &Turn| {
                        turn.tickets.iter().all(|it| matches!(footprint(it), Footprint::BlindPut(_)))
                    };
                    for (other, _) in &*flying as &Vec<(Turn, Vec<Ticket>)> {
                        let meets = other.tickets.iter().any(|it| footprint(it).names().any(|n| n == name));
                        assert!(!meets || is_blind(&turn) && is_blind(other), "{turn:?} {other:?}");
                    }
                }
                if turn.tickets.len() > 1 {
                    let names: BTreeSet<_> =
                        turn.tickets.iter().flat_map(|it| footprint(it).names()).collect();
                    assert!(names.len() == 1 && turn.tickets.iter().all(|it| footprint(it).is_shareable()));
                }
                for ticket in &turn.tickets {
                    for name in footprint(ticket).names() {
                        order.entry(name.clone()).or_default().push(*ticket);
                    }
                }
                flying.push((turn.clone(), turn.tickets));
            };
            loop {
                let end = ends.next();
                if next < footprints.len() && end.as_ref().is_none_or(|(at, _)| at.index(3) > 0) {
                    let turn = queue.add(next as Ticket, footprints[next].clone());
                    next += 1;
                    turn.into_iter().for_each(|turn| begin(turn, &mut flying, &mut order));
                } else if flying.is_empty() {
                    if next == footprints.len() {
                        break;
                    }
                } else {
                    let at = end.as_ref().map_or(0, |(at, _)| at.index(flying.len()));
                    let (turn, mut done) = flying.remove(at);
                    let back = end.map_or(0, |(_, back)| back).min(done.len() - 1);
                    let rest = done.split_off(done.len() - back);
                    if !rest.is_empty() {
                        queue.put_back(turn.id, &rest);
                        // They begin again.
                        order.values_mut().for_each(|it| it.retain(|it| !rest.contains(it)));
                    }
                    let begun = queue.end(turn.id).into_iter();
                    begun.for_each(|turn| begin(turn, &mut flying, &mut order));
                }
            }
            prop_assert_eq!(queue.waiting_count(), 0);
            prop_assert!(queue.lanes.is_empty(), "no object is left");
            let count: usize = order.values().map(Vec::len).sum();
            prop_assert_eq!(count, footprints.iter().map(|it| it.names().count()).sum::<usize>());
            for (name, tickets) in order {
                // A blind put that was put back may begin behind one that was in flight beside it.
                let is_blind = |it: &Ticket| matches!(footprints[*it as usize], Footprint::BlindPut(_));
                for pair in tickets.windows(2) {
                    let is_in_order = pair[0] < pair[1] || pair.iter().all(is_blind);
                    prop_assert!(is_in_order, "{:?}: {:?}", name, tickets);
                }
            }
        }
    }
}
