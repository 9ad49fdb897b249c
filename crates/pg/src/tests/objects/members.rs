//! Members of a PG of objects come, go, die and are filled, in epochs that follow each other.
//!
//! When an epoch ends, members have any prefix of its batches. Acting members that have less than others become
//! learners.

use base::{BufferPool, Incarnation, Version};
use format::wire::{Member, PgEntry, Refusal};

use super::super::world::osd_id;
use super::any_operation;
use super::world::{Kind, World, index_of};
use crate::{Absence, Pg, Record, Serving, Ticket};

impl World {
    pub fn acting(&self) -> Vec<usize> {
        self.entry.acting().map(|member| index_of(member.osd)).collect()
    }

    pub fn learners(&self) -> Vec<usize> {
        self.entry.learning().map(|member| index_of(member.osd)).collect()
    }

    /// Returns the OSDs that are no members.
    pub fn outs(&self) -> Vec<usize> {
        let members = [self.acting(), self.learners()].concat();
        (0..self.osds.len()).filter(|index| !members.contains(index)).collect()
    }

    /// Makes these the members of the next entry; the first one is its primary.
    pub fn set_members(&mut self, acting: &[usize], learners: &[usize]) {
        let starts = self.starts.clone();
        let member = |index: &usize| Member {
            osd: osd_id(*index),
            incarnation: Incarnation::new(starts[*index]),
        };
        let entry = PgEntry::new(self.shape.pg, acting.iter().map(member));
        let entry = entry.with_learners(learners.iter().map(member));
        let PgEntry { epoch, revision, given_up, .. } = self.entry;
        self.entry = PgEntry { epoch, revision, given_up, ..entry };
    }

    /// Returns one of these.
    fn any_of(&mut self, indices: &[usize]) -> Option<usize> {
        (!indices.is_empty()).then(|| indices[self.random.below(indices.len())])
    }

    /// Delivers so many of the messages from the primary to a member.
    fn deliver_some(&mut self, to: usize, count_max: usize) {
        let from = self.primary();
        for _ in 0..count_max {
            if self.links.get(&(from, to)).is_none_or(|queue| queue.is_empty()) {
                return;
            }
            self.deliver(from, to);
        }
    }

    /// The epoch ends for these, which have all that the primary sent, or not; learners have a part of it.
    fn settle(&mut self, staying: &[usize]) {
        let primary = self.primary();
        if self.serves() && self.random.below(2) == 0 {
            // Some batches are on their way.
            for _ in 0..3 {
                let known = self.some_version();
                let operation = any_operation(&mut self.random, known);
                self.begin(Kind::Mutate(operation));
            }
            for _ in 0..20 {
                self.happen_at_primary();
            }
        }
        if !staying.contains(&primary) && staying.len() == 1 {
            // Whatever the only one has is adopted.
            let count = self.random.below(4);
            self.deliver_some(staying[0], count);
        } else {
            for to in staying.iter().filter(|to| **to != primary) {
                let count =
                    if self.random.below(3) == 0 { self.random.below(4) } else { usize::MAX };
                self.deliver_some(*to, count);
            }
        }
        for to in self.learners() {
            let count = self.random.below(8);
            self.deliver_some(to, count);
            let is_incomplete = self.osds[to].store.incomplete_count() > 0;
            self.incomplete_count += usize::from(is_incomplete);
        }
    }

    /// The process of an OSD dies, and starts anew. Its store keeps what was answered, and perhaps more.
    pub fn restart(&mut self, index: usize) {
        if index == self.primary() {
            for number in 0..self.ops.len() {
                if self.ops[number].answered.is_none() {
                    self.answered(Ticket(number as u32), Err(Refusal::Stale(None)));
                }
            }
        }
        let count = self.osds[index].store.change_count();
        let stay = self.random.below(count + 1);
        let (shape, osd) = (self.shape, &mut self.osds[index]);
        osd.store.crash(stay);
        osd.store.durable = osd.store.last;
        let record = osd.store.note.as_deref().map(|note| Record::decode(note).expect("a record"));
        let buffers = BufferPool::default();
        osd.pg = Pg::new(shape, osd_id(index), osd.store.facts(), record, buffers);
        self.starts[index] += 1;
    }

    /// The epoch is active: what was not adopted never happened.
    pub fn on_activated(&mut self, adopted: Version) {
        let epoch = self.entry.epoch;
        let is_there = |version: &Version| *version <= adopted || version.epoch == epoch;
        self.versions.retain(|version, _| is_there(version));
        self.cleanings.retain(is_there);
    }

    /// Begins an epoch with other members, or after one of them has died.
    pub fn change_members(&mut self) {
        let (mut acting, mut learners, outs) = (self.acting(), self.learners(), self.outs());
        if let Some(absent) = self.absent {
            return self.end_absence(absent);
        }
        if !self.failed.is_empty() {
            let complete = self.complete.first().copied();
            return match (complete, self.random.below(3)) {
                (Some(index), 0) => self.join(index),
                (None, 0) => {}
                _ => self.drop_failed(),
            };
        }
        match self.random.below(8) {
            0 | 1 => {
                let Some(index) = self.any_of(&learners) else { return };
                self.settle(&acting);
                self.restart(index);
            }
            2 | 3 if acting.len() > 1 => {
                let index = self.any_of(&acting).expect("there are some");
                acting.retain(|other| *other != index);
                self.settle(&acting);
                self.restart(index);
                if self.random.below(2) == 0 {
                    learners.push(index);
                }
            }
            4 => {
                let Some(index) = self.any_of(&outs) else { return };
                self.settle(&acting);
                learners.push(index);
            }
            // The one that is left is known to have everything.
            5 if acting.len() == 2 && self.serves() => return self.lose(acting, learners),
            6 => {
                self.settle(&acting);
            }
            _ => {
                let complete: Vec<usize> = self.complete.iter().copied().collect();
                let Some(index) = self.any_of(&complete) else { return };
                return self.join(index);
            }
        }
        self.go_on_with(acting, &learners);
    }

    /// The members that the primary cannot go on with become learners.
    fn drop_failed(&mut self) {
        let (mut acting, mut learners) = (self.acting(), self.learners());
        acting.retain(|index| !self.failed.contains(index));
        learners.extend(&self.failed);
        self.settle(&acting);
        self.go_on_with(acting, &learners);
    }

    /// A complete learner joins.
    fn join(&mut self, index: usize) {
        let (mut acting, mut learners) = (self.acting(), self.learners());
        acting.push(index);
        learners.retain(|other| *other != index);
        self.settle(&acting);
        self.go_on_with(acting, &learners);
    }

    /// Begins the next epoch, perhaps with another primary.
    fn go_on_with(&mut self, mut acting: Vec<usize>, learners: &[usize]) {
        let count = acting.len();
        acting.rotate_left(self.random.below(count));
        self.set_members(&acting, learners);
        self.enter();
    }

    /// One of two acting members is lost, and the entry cannot do without it.
    fn lose(&mut self, acting: Vec<usize>, mut learners: Vec<usize>) {
        learners.extend(self.outs());
        if learners.is_empty() {
            return;
        }
        let at = self.random.below(2);
        let (lost, left) = (acting[at], acting[1 - at]);
        self.settle(&[left]);
        self.restart(lost);
        self.set_members(&[left, lost], &learners);
        self.absent = Some(lost);
        self.enter();
    }

    /// As time goes by, the primary finds that a member is lost.
    pub fn wait(&mut self) {
        let primary = self.primary();
        if self.absent.is_some() || !self.failed.is_empty() {
            self.with(primary, |pg, actions| {
                pg.fill_meanwhile(|_| Absence::Down, false, actions);
                pg.fill(2, actions);
            });
        }
    }

    /// A learner takes the place of the lost member, if one is complete; or the epoch ends before.
    fn end_absence(&mut self, lost: usize) {
        let left = self.primary();
        let complete: Vec<usize> = self.complete.iter().copied().collect();
        let mut learners = self.learners();
        if let Some(index) = self.any_of(&complete) {
            self.settle(&[left, index]);
            learners.retain(|other| *other != index);
            learners.push(lost);
            self.absent = None;
            return self.go_on_with(vec![left, index], &learners);
        }
        self.settle(&[left]);
        if let Some(index) = self.any_of(&learners)
            && self.random.below(2) == 0
        {
            self.restart(index);
        }
        self.set_members(&[left, lost], &learners);
        self.enter();
    }

    /// Lets everything end until all OSDs are acting members and all operations are answered.
    pub fn fill_all(&mut self) {
        for _ in 0..100 {
            while self.happen() {}
            self.wait();
            while self.happen() {}
            let complete = self.complete.first().copied();
            if self.absent.is_none() && !self.failed.is_empty() {
                self.drop_failed();
                continue;
            }
            match (self.absent, complete) {
                (Some(lost), Some(_)) => self.end_absence(lost),
                (None, Some(index)) => self.join(index),
                (None, None) if !self.outs().is_empty() => {
                    let (acting, outs) = (self.acting(), self.outs());
                    let learners = [self.learners(), outs].concat();
                    self.settle(&acting);
                    self.go_on_with(acting, &learners);
                }
                (None, None) if self.learners().is_empty() => return self.end_all(),
                (None, None) if !self.is_served() => self.change_members(),
                _ => panic!("no learner is filled: {:?}", self.hindrance()),
            }
        }
        panic!("the filling does not end");
    }

    fn is_served(&self) -> bool {
        *self.osds[self.primary()].pg.serving() == Serving::Active
    }
}
