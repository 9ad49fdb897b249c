//! Requests that wait, in two lines: what is in the order of an object PG or of a family, and all others. The rules are
//! in `docs/internals/disk.md`.
//!
//! ```text
//!   settles ────────────────────────────────────────────▶ ahead of both lines
//!   objects   4 batch   7 record of its PG   8 its read ──┬▶ the lower number first; while the first of the objects
//!   others    5 write   6 sync   9 write ─────────────────┘  waits for the engine, the others go on without it
//! ```
//!
//! Invariants
//!   1. The requests of a line leave it in the order in which they came.
//!   2. Who is put back, because it lacks room, is the next one to leave: nobody gets room before it.
//!   3. An object request leaves after all others that came before it. The others wait for the objects before them,
//!      unless the first of these waits for the engine.
//!   4. `objects_of` counts the requests among the objects that change a pool: each new request asks for its pool.

use std::collections::{BTreeMap, VecDeque};

use base::{PgId, PoolId};

use crate::{Batch, Page, Request, RequestId};

/// Where a request waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Line {
    /// What may free room: ahead of all.
    Settles,
    /// What is in the order of an object PG or of a family.
    Objects,
    Others,
}

/// A request that waits.
pub(super) struct Waiting {
    line: Line,
    /// One more than that of the request that came before, in whichever line.
    number: u64,
    pub id: RequestId,
    pub request: Request,
}

impl Waiting {
    /// Whether the request is not tried while too many entries wait for the engine.
    fn needs_engine(&self) -> bool {
        matches!(self.request, Request::Batch(_) | Request::Page(_))
    }
}

/// The lines.
#[derive(Default)]
pub(super) struct Queue {
    settles: VecDeque<Waiting>,
    objects: VecDeque<Waiting>,
    others: VecDeque<Waiting>,
    objects_of: BTreeMap<PoolId, usize>,
    number_last: u64,
}

impl Queue {
    /// Adds a request at the end of a line.
    pub fn push(&mut self, line: Line, id: RequestId, request: Request) {
        self.number_last += 1;
        let waiting = Waiting { line, number: self.number_last, id, request };
        self.count_in(&waiting);
        self.line(line).push_back(waiting);
    }

    /// Takes the request that is to be tried next. `engine_takes`: whether the engine is not too far behind.
    pub fn pop(&mut self, engine_takes: bool) -> Option<Waiting> {
        let line = self.next(engine_takes)?;
        let waiting = self.line(line).pop_front()?;
        if line == Line::Objects {
            count_out(&mut self.objects_of, &waiting.request);
        }
        Some(waiting)
    }

    /// Puts a request back that lacks room.
    pub fn put_back(&mut self, waiting: Waiting) {
        self.count_in(&waiting);
        self.line(waiting.line).push_front(waiting);
    }

    fn count_in(&mut self, waiting: &Waiting) {
        if waiting.line == Line::Objects
            && let Some(pool) = pool_of(&waiting.request)
        {
            *self.objects_of.entry(pool).or_default() += 1;
        }
    }

    /// Returns the line of which the first request is tried next.
    fn next(&self, engine_takes: bool) -> Option<Line> {
        if !self.settles.is_empty() {
            return Some(Line::Settles);
        }
        let objects = self.objects.front().filter(|first| engine_takes || !first.needs_engine());
        let first = objects.into_iter().chain(self.others.front()).min_by_key(|one| one.number);
        first.map(|first| first.line)
    }

    fn line(&mut self, line: Line) -> &mut VecDeque<Waiting> {
        match line {
            Line::Settles => &mut self.settles,
            Line::Objects => &mut self.objects,
            Line::Others => &mut self.others,
        }
    }

    /// Whether requests wait for room, and not for the engine alone.
    pub fn lacks_room(&self, engine_takes: bool) -> bool {
        self.next(engine_takes).is_some()
    }

    /// Whether a request of the pool waits among the objects.
    pub fn has_objects_of(&self, pool: PoolId) -> bool {
        self.objects_of.contains_key(&pool)
    }

    /// Returns the line at whose end a read waits for the requests that concern it; `None`: there are none.
    /// Whoever leaves the objects has nothing before it among the others.
    pub fn line_behind(&self, concerns: impl Fn(&Request) -> bool) -> Option<Line> {
        let has = |line: &VecDeque<Waiting>| line.iter().any(|waiting| concerns(&waiting.request));
        match (has(&self.objects), has(&self.others)) {
            (true, _) => Some(Line::Objects),
            (_, true) => Some(Line::Others),
            _ => None,
        }
    }

    /// Removes the requests for which this is true. Returns their ids.
    pub fn remove(&mut self, is_it: impl Fn(&Request) -> bool) -> Vec<RequestId> {
        let mut gone = Vec::new();
        for line in [&mut self.objects, &mut self.others] {
            line.retain(|waiting| {
                let is_it = is_it(&waiting.request);
                if is_it {
                    gone.push(waiting.id);
                    if waiting.line == Line::Objects {
                        count_out(&mut self.objects_of, &waiting.request);
                    }
                }
                !is_it
            });
        }
        gone
    }
}

fn count_out(objects_of: &mut BTreeMap<PoolId, usize>, request: &Request) {
    let Some(pool) = pool_of(request) else { return };
    let count = objects_of.get_mut(&pool).expect("it was counted when it came");
    *count -= 1;
    if *count == 0 {
        objects_of.remove(&pool);
    }
}

/// Returns the pool of a request that changes a PG or a family.
pub(super) fn pool_of(request: &Request) -> Option<PoolId> {
    let pg = match request {
        Request::Family { pool, .. } => return Some(*pool),
        Request::Note { key, .. } => key.pg(),
        Request::Write { pg, .. }
        | Request::Zero { pg, .. }
        | Request::Delete { pg, .. }
        | Request::Prepare { pg, .. }
        | Request::Skip { pg, .. }
        | Request::Commit { pg, .. }
        | Request::Settle { pg, .. }
        | Request::Repair { pg, .. }
        | Request::SetFloor { pg, .. }
        | Request::Absolve { pg }
        | Request::Batch(Batch { pg, .. })
        | Request::Page(Page { pg, .. }) => Some(*pg),
        Request::Read { .. }
        | Request::Extents { .. }
        | Request::Copy { .. }
        | Request::Digest { .. }
        | Request::CheckMetadata { .. }
        | Request::Records { .. }
        | Request::Sync
        | Request::Record => None,
    };
    pg.map(|PgId { pool, .. }| pool)
}

#[cfg(test)]
mod tests {
    use base::BlockSize;
    use base::Version;

    use super::*;
    use crate::harness::Random;

    fn page() -> Request {
        Request::Page(Page {
            pg: PgId { pool: PoolId::FIRST, number: 0 },
            block_size: BlockSize::DEFAULT,
            version: Version::ZERO,
            records: Vec::new(),
            blocks: Vec::new(),
        })
    }

    fn family() -> Request {
        Request::Family { pool: PoolId::FIRST, compression: None }
    }

    fn numbers(line: &VecDeque<Waiting>) -> Vec<u64> {
        line.iter().map(|waiting| waiting.number).collect()
    }

    #[test]
    fn only_a_wait_for_the_engine_lets_others_pass() {
        for seed in 1..300 {
            let mut random = Random::new(seed);
            let mut queue = Queue::default();
            let mut passed_count = 0;
            for _ in 0..200 {
                let of_pool = |waiting: &Waiting| pool_of(&waiting.request).is_some();
                let is_any = queue.objects.iter().any(of_pool);
                assert_eq!(queue.has_objects_of(PoolId::FIRST), is_any, "seed {seed}");
                if random.below(2) == 0 {
                    let (line, request) = match random.below(4) {
                        0 => (Line::Others, Request::Sync),
                        1 => (Line::Objects, family()),
                        _ => (Line::Objects, page()),
                    };
                    queue.push(line, RequestId(1), request);
                    continue;
                }
                let engine_takes = random.below(3) == 0;
                let [objects, others] = [&queue.objects, &queue.others].map(numbers);
                let is_held =
                    queue.objects.front().is_some_and(Waiting::needs_engine) && !engine_takes;
                let Some(waiting) = queue.pop(engine_takes) else {
                    assert!(others.is_empty() && (objects.is_empty() || is_held), "seed {seed}");
                    continue;
                };
                let number = waiting.number;
                let (own, other) = match waiting.line {
                    Line::Objects => (&objects, &others),
                    _ => (&others, &objects),
                };
                assert_eq!(own.first(), Some(&number), "seed {seed}");
                let passes = other.first().is_some_and(|first| *first < number);
                assert!(!passes || waiting.line == Line::Others && is_held, "seed {seed}");
                passed_count += u64::from(passes);
                if random.below(3) == 0 {
                    let line = waiting.line;
                    queue.put_back(waiting);
                    assert!(queue.lacks_room(engine_takes));
                    let again = queue.pop(engine_takes).expect("it is the next one");
                    assert_eq!((again.line, again.number), (line, number), "seed {seed}");
                }
            }
            assert!(passed_count > 0, "seed {seed}");
        }
    }

    #[test]
    fn settles_are_ahead_of_all() {
        let mut queue = Queue::default();
        queue.push(Line::Objects, RequestId(1), page());
        queue.push(Line::Others, RequestId(2), Request::Sync);
        queue.push(Line::Settles, RequestId(3), Request::Sync);
        queue.push(Line::Settles, RequestId(4), Request::Sync);
        let order = std::iter::from_fn(|| queue.pop(true)).map(|waiting| waiting.id.0);
        assert_eq!(order.collect::<Vec<_>>(), [3, 4, 1, 2]);
    }

    #[test]
    fn a_read_waits_behind_the_objects_if_both_lines_concern_it() {
        let mut queue = Queue::default();
        let is_sync = |request: &Request| matches!(request, Request::Sync);
        assert_eq!(queue.line_behind(is_sync), None);
        queue.push(Line::Others, RequestId(1), Request::Sync);
        assert_eq!(queue.line_behind(is_sync), Some(Line::Others));
        queue.push(Line::Objects, RequestId(2), page());
        assert_eq!(queue.line_behind(is_sync), Some(Line::Others));
        assert_eq!(queue.line_behind(|_| true), Some(Line::Objects));
        assert!(queue.has_objects_of(PoolId::FIRST));
        assert_eq!(queue.remove(is_sync), [RequestId(1)]);
    }
}
