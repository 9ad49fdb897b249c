//! Many operations, and many reads, in few requests: those of one PG go together, as many as one request takes.
//!
//! Invariants
//!   1. Requests to one PG have the operations of each object in the order in which they were given.
//!   2. What goes together is refused for what one of its objects has only if that does not fit: because an
//!      object's data lies in blocks, or because of data in heads that are written anew. Then nothing of it is
//!      done, and the operations are sent alone.
//!   3. Each request is within the limits.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use crate::entry_size::{delete_size, head_size, put_size, range_size};
use crate::keys::{Name, part_prefix_size};
use crate::look::{ANSWERS_SIZE_MAX, LOOK_FIELDS_MAX, LOOK_SIZE_MAX, Look, READS_MAX, Read};
use crate::operation::{
    Field, INLINE_SIZE_MAX, OPERATION_OBJECTS_MAX, OPERATION_RECORDS_MAX, OPERATION_STEPS_MAX,
    ObjectChange, ObjectSteps, Operation, RESULTS_SIZE_MAX,
};

/// How much data each of many reads may ask for, so that as many as a look may have fit one. The rest of a
/// longer object is read alone.
pub const BULK_DATA_MAX: u32 = (ANSWERS_SIZE_MAX / READS_MAX) as u32 - 64;

/// The most that the repeat of an operation takes in an entry, in bytes.
const REPEAT_SIZE_MAX: usize = 2 * RESULTS_SIZE_MAX;

/// A request for one PG.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grouped<T> {
    /// The number of the PG.
    pub pg: u32,
    /// The request.
    pub request: T,
    /// Which of the given operations or reads it has, in its order.
    pub members: Vec<usize>,
}

/// Puts operations on one object each together. Requires: alone, [`Operation::check`] accepts each.
/// `pg_of`: the PG of an object.
pub fn group_operations(
    operations: impl IntoIterator<Item = ObjectSteps>,
    pg_of: impl Fn(&Name) -> u32,
) -> Vec<Grouped<Operation>> {
    let mut groups: Groups<ObjectSteps, OperationSize> = Groups::new();
    // What the last group of each PG has.
    let mut names: BTreeMap<u32, BTreeSet<Name>> = BTreeMap::new();
    for steps in operations {
        let (name, size) = (steps.name.clone(), OperationSize::of(&steps));
        let pg = pg_of(&name);
        let names = names.entry(pg).or_default();
        let fits = |sum: OperationSize| sum.has_room_for(size) && !names.contains(&name);
        if groups.add(pg, steps, size, fits) {
            names.clear();
        }
        names.insert(name);
    }
    groups.finish(|objects| Operation { objects })
}

/// Puts reads together, none of which lists names. Requires: alone, [`Look::check`] accepts each.
/// `pg_of`: the PG of an object.
pub fn group_reads(
    reads: impl IntoIterator<Item = Read>,
    pg_of: impl Fn(&Name) -> u32,
) -> Vec<Grouped<Look>> {
    let mut groups: Groups<Read, LookSize> = Groups::new();
    for read in reads {
        let pg = pg_of(read.name().expect("the read is of an object"));
        let size = LookSize::of(&read);
        groups.add(pg, read, size, |sum| sum.has_room_for(size));
    }
    groups.finish(|reads| Look { reads })
}

/// Requests that are being put together.
struct Groups<T, S> {
    groups: Vec<(Grouped<Vec<T>>, S)>,
    /// The last group of each PG.
    last: BTreeMap<u32, usize>,
    members_count: usize,
}

impl<T, S: AddAssign + Copy> Groups<T, S> {
    fn new() -> Groups<T, S> {
        Groups { groups: Vec::new(), last: BTreeMap::new(), members_count: 0 }
    }

    /// Adds a member to the last group of its PG, or to a new one. Returns whether that is new. `fits`:
    /// whether it fits beside what takes so much.
    fn add(&mut self, pg: u32, item: T, size: S, fits: impl Fn(S) -> bool) -> bool {
        let member = self.members_count;
        self.members_count += 1;
        let last = self.last.get(&pg).map(|last| &mut self.groups[*last]);
        if let Some((group, sum)) = last.filter(|(_, sum)| fits(*sum)) {
            group.request.push(item);
            group.members.push(member);
            *sum += size;
            return false;
        }
        self.last.insert(pg, self.groups.len());
        self.groups.push((Grouped { pg, request: vec![item], members: vec![member] }, size));
        true
    }

    fn finish<R>(self, request_of: impl Fn(Vec<T>) -> R) -> Vec<Grouped<R>> {
        let groups = self.groups.into_iter().map(|(Grouped { pg, request, members }, _)| Grouped {
            pg,
            request: request_of(request),
            members,
        });
        groups.collect()
    }
}

/// What operations take of the limits of one.
#[derive(Clone, Copy)]
struct OperationSize {
    objects: usize,
    steps: usize,
    results: usize,
    /// Changes of records, data included, in bytes.
    records: usize,
    is_alone: bool,
}

impl OperationSize {
    fn of(steps: &ObjectSteps) -> OperationSize {
        let prefix_size = part_prefix_size(&steps.name);
        let key_size = |field: &Field| prefix_size + field.key().len();
        let mut size = OperationSize {
            objects: 1,
            steps: steps.changes.len(),
            results: steps.changes.iter().map(ObjectChange::result_size).sum(),
            records: head_size(&steps.name, 0),
            // What is not true of one object would refuse the operations on all others.
            is_alone: !steps.assertions.is_empty(),
        };
        for change in &steps.changes {
            size.records += change.data_size() as usize;
            size.records += match change {
                ObjectChange::Set(field, value) => put_size(key_size(field), value.len()),
                ObjectChange::Unset(field) => delete_size(key_size(field)),
                ObjectChange::RemoveRecords { from, before } => {
                    let before_size = before.as_ref().map_or(0, Vec::len);
                    range_size(prefix_size + from.len(), prefix_size + before_size)
                }
                ObjectChange::Remove => 2 * range_size(prefix_size, prefix_size),
                _ => 0,
            };
            size.is_alone |= match change {
                ObjectChange::Add(..) => true,
                ObjectChange::Write { offset, bytes } => {
                    offset + bytes.len() as u64 > INLINE_SIZE_MAX
                }
                ObjectChange::Put(bytes) | ObjectChange::Append(bytes) => {
                    bytes.len() as u64 > INLINE_SIZE_MAX
                }
                ObjectChange::Truncate(size) => *size > INLINE_SIZE_MAX,
                _ => false,
            };
        }
        size
    }

    fn has_room_for(mut self, other: OperationSize) -> bool {
        self += other;
        !self.is_alone
            && self.objects <= OPERATION_OBJECTS_MAX
            && self.steps <= OPERATION_STEPS_MAX
            && self.results <= RESULTS_SIZE_MAX
            && self.records + REPEAT_SIZE_MAX <= OPERATION_RECORDS_MAX
    }
}

impl AddAssign for OperationSize {
    fn add_assign(&mut self, other: OperationSize) {
        self.objects += other.objects;
        self.steps += other.steps;
        self.results += other.results;
        self.records += other.records;
        self.is_alone |= other.is_alone;
    }
}

/// What reads take of the limits of a look.
#[derive(Clone, Copy)]
struct LookSize {
    reads: usize,
    fields: usize,
    /// Encoded, in bytes.
    request: usize,
    /// What the answers take at most, in bytes.
    answers: usize,
}

impl LookSize {
    fn of(read: &Read) -> LookSize {
        let fields = match read {
            Read::Values { fields, .. } => fields.len(),
            _ => 0,
        };
        let request = Look { reads: vec![read.clone()] }.encode().len();
        LookSize { reads: 1, fields, request, answers: read.answer_size_max() }
    }

    fn has_room_for(mut self, other: LookSize) -> bool {
        self += other;
        self.reads <= READS_MAX
            && self.fields <= LOOK_FIELDS_MAX
            && self.request <= LOOK_SIZE_MAX
            && 2 + self.answers <= ANSWERS_SIZE_MAX
    }
}

impl AddAssign for LookSize {
    fn add_assign(&mut self, other: LookSize) {
        self.reads += other.reads;
        self.fields += other.fields;
        self.request += other.request;
        self.answers += other.answers;
    }
}

#[cfg(test)]
mod tests {
    use base::hash::{NameHash, pg_of_hash};
    use base::{BlockSize, PoolId};
    use proptest::prelude::*;

    use super::*;
    use crate::look::Look;
    use crate::tests::any_steps;
    use crate::tests::reads::any_object_read;
    use crate::{DataId, OperationRefusal, PoolShape, Run, Sharding, Stop};

    const PG_COUNT: u32 = 4;
    const SHARDING: Sharding = Sharding { shard_count: 16, names: NameHash::Plain };

    fn pg_of(name: &Name) -> u32 {
        pg_of_hash(SHARDING.hash(name), PG_COUNT)
    }

    fn put(number: usize, size: usize) -> ObjectSteps {
        let name = Name::new(format!("object {number}").as_bytes()).unwrap();
        let changes = vec![ObjectChange::Put(vec![1; size])];
        ObjectSteps { name, assertions: vec![], changes }
    }

    /// Checks that each member is in one request, that of its PG, in order.
    fn verify<T, M: PartialEq + std::fmt::Debug>(
        groups: &[Grouped<T>],
        given: &[M],
        members_of: impl Fn(&T) -> &[M],
        name_of: impl Fn(&M) -> &Name,
    ) {
        let mut seen: BTreeMap<&Name, usize> = BTreeMap::new();
        let mut count = 0;
        for group in groups {
            let members = members_of(&group.request);
            assert_eq!(members.len(), group.members.len());
            for (item, member) in members.iter().zip(&group.members) {
                assert_eq!(item, &given[*member]);
                assert_eq!(pg_of(name_of(item)), group.pg);
                let before = seen.insert(name_of(item), *member);
                assert!(before.is_none_or(|before| before < *member), "in order");
                count += 1;
            }
        }
        assert_eq!(count, given.len());
    }

    #[test]
    fn small_puts_share_requests_up_to_the_limits() {
        let puts: Vec<_> = (0..10_000).map(|number| put(number, 100)).collect();
        let groups = group_operations(puts.clone(), pg_of);
        verify(&groups, &puts, |it: &Operation| &it.objects, |it| &it.name);
        assert!(groups.len() <= 3 * PG_COUNT as usize, "{}", groups.len());
        let large: Vec<_> = (0..8).map(|number| put(number, 40_000)).collect();
        assert_eq!(group_operations(large, pg_of).len(), 8);
        let same = vec![put(1, 1), put(2, 2), put(1, 3)];
        assert_eq!(
            group_operations(same, |_| 0).iter().map(|it| &it.members[..]).collect::<Vec<_>>(),
            [&[0, 1][..], &[2]]
        );
        let reads = puts.iter().take(1000).map(|it| Read::Data {
            name: it.name.clone(),
            offset: 0,
            length: BULK_DATA_MAX,
        });
        let groups = group_reads(reads.collect::<Vec<_>>(), |_| 0);
        assert_eq!(
            groups.iter().map(|it| it.members.len()).collect::<Vec<_>>(),
            [256, 256, 256, 232]
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn what_goes_together_fits_one_request(
            given in prop::collection::vec(any_steps(), 1..40),
            puts in prop::collection::vec(0..40_000usize, 0..60),
        ) {
            let puts = puts.into_iter().enumerate().map(|(number, size)| put(number, size));
            let given: Vec<_> = given.into_iter().chain(puts).collect();
            let alone = |it: &ObjectSteps| Operation { objects: vec![it.clone()] };
            prop_assume!(given.iter().all(|it| alone(it).check().is_ok()));
            let groups = group_operations(given.clone(), pg_of);
            verify(&groups, &given, |it: &Operation| &it.objects, |it| &it.name);
            for group in groups.iter().filter(|group| group.members.len() > 1) {
                prop_assert_eq!(group.request.check(), Ok(()));
                let shape =
                    PoolShape { pool: PoolId::FIRST, sharding: SHARDING, block_size: BlockSize::MIN };
                let mut run = Run::new(shape);
                for steps in &group.request.objects {
                    run.supply_head(steps.name.clone(), None);
                }
                let mut draw = || DataId::new(1 << 20).unwrap();
                let result = run.apply(&group.request, 0, &mut draw);
                let is_grown = matches!(
                    &result,
                    Err(Stop::Refused(OperationRefusal::TooLarge { why })) if why.contains("alone")
                );
                prop_assert!(result.is_ok() || is_grown, "{:?}", result);
            }
        }

        #[test]
        fn reads_that_go_together_fit_one_request(
            given in prop::collection::vec(any_object_read(), 1..100),
        ) {
            let groups = group_reads(given.clone(), pg_of);
            verify(&groups, &given, |it: &Look| &it.reads, |it| it.name().unwrap());
            for group in groups {
                prop_assert_eq!(group.request.check(), Ok(()));
            }
        }
    }
}
