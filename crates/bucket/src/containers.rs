//! Containers: hidden volumes in which data has its places. `docs/internals/buckets.md`, rule 3.
//!
//! ```text
//!   c   format (1): 1 | zeros (7) | session (8) | name of the data pool
//! ```
//!
//! Invariants
//!   1. A container belongs to one session of the index pool, which its `c` names before its first place. Only the
//!      process with that session gives out places in it, from memory: ascending, none twice.
//!   2. A place is named (in `u`) over that session before it is written to. So once the session is over, whoever
//!      reads all names knows all places.
//!   3. A place takes whole units. Up to a block it crosses no border of blocks; a longer one begins at such a
//!      border, and from a stripe on at one of stripes.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use format::disk::bytes::Writer;
use objects::listing::PAGE_SIZE_MAX;
use objects::{Assertion, Listing, ObjectChange};

use crate::core::{Core, Result, encode};
use crate::door::{ContainerId, Door, Layout, ListQuery, Session, UNIT};
use crate::failure::Failure;
use crate::names::{Group, IndexName, Shards, front};
use crate::records::Place;
use crate::views::operation;
use crate::waiting::{Turns, lock};

/// With so many containers no more are made: large objects cannot be put then.
pub const CONTAINERS_MAX: usize = 4096;
/// Who waits for a container that could not be made is told so for this time.
const FAILURE_KEPT: Duration = Duration::from_secs(1);
/// How many containers are counted in one list.
const PAGE: usize = 1000;

const FORMAT: u8 = 1;

/// In which container of each data pool this process gives out places.
#[derive(Default)]
pub(crate) struct Containers {
    open: Mutex<BTreeMap<String, Open>>,
    /// One is made at a time.
    turns: Turns<String>,
    /// What making one has come to: who waits does not try again at once.
    making: Mutex<BTreeMap<String, Making>>,
}

/// A container that could not be made yet.
struct Making {
    /// Its `c` is there.
    named: Option<(ContainerId, Session)>,
    failure: Failure,
    failed_us: u64,
}

#[derive(Clone, Copy)]
struct Open {
    id: ContainerId,
    session: Session,
    layout: Layout,
    /// Where the next place begins, at the earliest.
    next: u64,
}

impl Open {
    /// Gives out a place. `None`: the container is full.
    fn give(&mut self, length: u64) -> Option<Place> {
        let Layout { block, stripe, container_size } = self.layout;
        let size = length.max(1).checked_next_multiple_of(UNIT)?;
        let is_in_one_block = self.next / block == (self.next + size - 1) / block;
        let border = match size {
            _ if size >= stripe => stripe,
            _ if size > block || !is_in_one_block => block,
            _ => UNIT,
        };
        let offset = self.next.checked_next_multiple_of(border)?;
        let end = offset.checked_add(size).filter(|end| *end <= container_size)?;
        self.next = end;
        Some(Place { container: self.id.0, offset, length })
    }
}

/// A place that was just given out.
pub(crate) struct NewPlace {
    pub(crate) place: Place,
    /// Over this session it is to be named.
    pub(crate) session: Session,
    pub(crate) layout: Layout,
}

impl Place {
    /// Returns the range of whole units that the place takes.
    pub(crate) fn units(&self) -> std::ops::Range<u64> {
        self.offset..self.offset + self.length.max(1).next_multiple_of(UNIT)
    }

    pub(crate) fn container(&self) -> ContainerId {
        ContainerId(self.container)
    }
}

impl<D: Door> Core<D> {
    /// Gives out a place in a container of a data pool.
    pub(crate) async fn new_place(&self, data_pool: &str, length: u64) -> Result<NewPlace> {
        let session = self.door.session().await?;
        if let Some(place) = self.containers.give(data_pool, session, length) {
            return Ok(place);
        }
        let turn = self.containers.turns.enter(data_pool.to_owned());
        turn.wait().await;
        let session = self.door.session().await?;
        if let Some(place) = self.containers.give(data_pool, session, length) {
            return Ok(place);
        }
        let mut named = None;
        if let Some(making) = lock(&self.containers.making).get(data_pool) {
            if self.since(making.failed_us) < FAILURE_KEPT {
                return Err(making.failure.clone());
            }
            named = making.named.filter(|(_, of)| *of == session);
        }
        let open = match self.new_container(data_pool, session, &mut named).await {
            Ok(open) => {
                lock(&self.containers.making).remove(data_pool);
                open
            }
            Err(failure) => {
                let failed_us = self.door.running_us();
                let making = Making { named, failure: failure.clone(), failed_us };
                lock(&self.containers.making).insert(data_pool.to_owned(), making);
                return Err(failure);
            }
        };
        lock(&self.containers.open).insert(data_pool.to_owned(), open);
        let place = self.containers.give(data_pool, session, length);
        place.ok_or_else(|| Failure::Invalid { why: "it is longer than a container".into() })
    }

    /// Makes a container. `named`: the one whose `c` is there already. If this fails it is left behind,
    /// empty, for the next try.
    async fn new_container(
        &self,
        data_pool: &str,
        session: Session,
        named: &mut Option<(ContainerId, Session)>,
    ) -> Result<Open> {
        let layout = self.door.layout(data_pool).await?;
        let id = match named {
            Some((id, _)) => *id,
            None => {
                if self.count_containers().await? >= CONTAINERS_MAX {
                    let why = format!("there are {CONTAINERS_MAX} containers already");
                    return Err(Failure::Unavailable { why });
                }
                let random = [self.door.random(), self.door.random()].map(u128::from);
                let id = ContainerId(random[0] << 64 | random[1]);
                let name = encode(&IndexName::Container(id.0))?;
                let put = ObjectChange::Put(record(session, data_pool));
                let create = operation(&name, [Assertion::Absent], [put]);
                self.door.execute_over(session, create).await?;
                *named = Some((id, session));
                id
            }
        };
        self.door.create_container(data_pool, id).await?;
        Ok(Open { id, session, layout, next: 0 })
    }

    /// Returns how many containers there are, up to [`CONTAINERS_MAX`].
    async fn count_containers(&self) -> Result<usize> {
        let group = Group::of(b"c");
        let mut listing = Listing {
            prefix: front(b'c', group),
            count_max: PAGE,
            size_max: PAGE_SIZE_MAX,
            ..Listing::default()
        };
        let (mut count, shards) = (0, Shards::Of { group, spread: 1 });
        loop {
            let query = ListQuery {
                shards: shards.clone(),
                listing: listing.clone(),
                skip: 0,
                with_data: false,
            };
            let page = self.door.list(query).await?;
            count += page.entries.len();
            match page.next {
                Some(next) if count < CONTAINERS_MAX => listing.from = next,
                _ => return Ok(count),
            }
        }
    }
}

impl Containers {
    fn give(&self, data_pool: &str, session: Session, length: u64) -> Option<NewPlace> {
        let mut all = lock(&self.open);
        let open = all.get_mut(data_pool).filter(|open| open.session == session)?;
        let place = open.give(length)?;
        Some(NewPlace { place, session, layout: open.layout })
    }
}

fn record(session: Session, data_pool: &str) -> Vec<u8> {
    let mut out = Writer::default();
    out.u64(FORMAT.into());
    out.u64(session.0);
    out.bytes.extend_from_slice(data_pool.as_bytes());
    out.bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;

    fn open() -> Open {
        let layout = Layout { block: 128 * KIB, stripe: 256 * KIB, container_size: 2048 * KIB };
        Open { id: ContainerId(1), session: Session(1), layout, next: 0 }
    }

    #[test]
    fn places_ascend_and_begin_where_their_size_says() {
        let mut open = open();
        let mut give = |length| open.give(length).map(|place| (place.units(), place.length));
        assert_eq!(give(1), Some((0..4 * KIB, 1)));
        assert_eq!(give(100 * KIB), Some((4 * KIB..104 * KIB, 100 * KIB)));
        // It would cross a border of blocks.
        assert_eq!(give(28 * KIB), Some((128 * KIB..156 * KIB, 28 * KIB)));
        assert_eq!(give(128 * KIB), Some((256 * KIB..384 * KIB, 128 * KIB)));
        assert_eq!(give(129 * KIB), Some((384 * KIB..516 * KIB, 129 * KIB)));
        assert_eq!(give(256 * KIB), Some((768 * KIB..1024 * KIB, 256 * KIB)));
        assert_eq!(give(300 * KIB + 1), Some((1024 * KIB..1328 * KIB, 300 * KIB + 1)));
        assert_eq!(give(1024 * KIB), None);
        assert_eq!(give(512 * KIB), Some((1536 * KIB..2048 * KIB, 512 * KIB)));
        assert_eq!(give(1), None);
        assert_eq!(give(u64::MAX), None);
    }

    #[test]
    fn records_of_containers_are_frozen() {
        let hex: String =
            record(Session(0x0102), "fast").iter().map(|it| format!("{it:02x}")).collect();
        assert_eq!(hex, "0100000000000000020100000000000066617374");
    }
}
