//! How operations travel: in the payload of a client's request. `docs/internals/objects.md`, *messages*.
//!
//! ```text
//!   count of objects (2), for each:  name* | count of assertions (2), each | count of changes (2), each
//!   assertion   1 exists | 2 absent | 3 version (12) | 4 equals, 5 differs: field, value | 6 has, 7 lacks: field
//!   change      1 put bytes | 2 write offset (8), bytes | 3 append bytes | 4 truncate size (8)
//!               | 5 zero offset (8), length (8) | 6 remove | 7 set field, value | 8 unset field
//!               | 9 remove records from*, 0 or 1 and before* | 10 add field, amount (8) | 11 partial 0 or 1
//!   field       1 attribute, 2 record | key*        value, bytes: length (4) | ...        *: length (2) | ...
//! ```
//!
//! Invariants
//!   1. An operation has one encoding: whatever decodes, encodes to the same bytes.
//!   2. What decodes has passed [`Operation::check`]; nothing is allocated beyond the bytes that are there.

use format::disk::bytes::{Reader, Writer};
use format::wire::PAYLOAD_SIZE_MAX;

use crate::keys::Name;
use crate::operation::{
    Assertion, Field, OPERATION_OBJECTS_MAX, ObjectChange, ObjectSteps, Operation, check_steps,
};

impl Operation {
    /// Encodes the operation. Requires: [`Operation::check`] accepts it.
    pub fn encode(&self) -> Vec<u8> {
        let mut to = Writer::default();
        to.u16(self.objects.len() as u16);
        for ObjectSteps { name, assertions, changes } in &self.objects {
            put_short(&mut to, name.bytes());
            to.u16(assertions.len() as u16);
            assertions.iter().for_each(|assertion| put_assertion(&mut to, assertion));
            to.u16(changes.len() as u16);
            changes.iter().for_each(|change| put_change(&mut to, change));
        }
        to.bytes
    }

    /// Encodes the operation for a request. The error says what is wrong with it, for people.
    pub fn payload(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        self.check_ranges()?;
        let bytes = self.encode();
        match bytes.len() <= PAYLOAD_SIZE_MAX as usize {
            true => Ok(bytes),
            false => Err(format!(
                "{} bytes are more than {PAYLOAD_SIZE_MAX}, the largest request",
                bytes.len()
            )),
        }
    }

    /// Decodes an operation. The error says what is wrong, for people.
    pub fn decode(bytes: &[u8]) -> Result<Operation, String> {
        let (mut from, mut steps) = (Reader::new(bytes), 0);
        let operation = take_operation(&mut from, &mut steps).filter(|_| from.is_at_end());
        check_steps(steps)?;
        let operation = operation.ok_or("the bytes are no operation on objects")?;
        operation.check()?;
        Ok(operation)
    }
}

/// Takes an operation. `steps` counts those of all its objects, before they are taken: each may be one byte.
fn take_operation(from: &mut Reader<'_>, steps: &mut usize) -> Option<Operation> {
    let count = usize::from(from.u16()?);
    let mut objects = Vec::new();
    for _ in 0..(count <= OPERATION_OBJECTS_MAX).then_some(count)? {
        let name = Name::new(take_short(from)?)?;
        let assertions = take_steps(from, steps, take_assertion)?;
        let changes = take_steps(from, steps, take_change)?;
        objects.push(ObjectSteps { name, assertions, changes });
    }
    Some(Operation { objects })
}

fn take_steps<T>(
    from: &mut Reader<'_>,
    steps: &mut usize,
    take: impl Fn(&mut Reader<'_>) -> Option<T>,
) -> Option<Vec<T>> {
    let count = usize::from(from.u16()?);
    *steps += count;
    check_steps(*steps).ok()?;
    (0..count).map(|_| take(from)).collect()
}

fn put_assertion(to: &mut Writer, assertion: &Assertion) {
    let number = match assertion {
        Assertion::Exists => 1,
        Assertion::Absent => 2,
        Assertion::Version(_) => 3,
        Assertion::Equals(..) => 4,
        Assertion::Differs(..) => 5,
        Assertion::Has(_) => 6,
        Assertion::Lacks(_) => 7,
    };
    to.u8(number);
    match assertion {
        Assertion::Exists | Assertion::Absent => {}
        Assertion::Version(version) => to.version(*version),
        Assertion::Equals(field, value) | Assertion::Differs(field, value) => {
            put_field(to, field);
            put_long(to, value);
        }
        Assertion::Has(field) | Assertion::Lacks(field) => put_field(to, field),
    }
}

fn take_assertion(from: &mut Reader<'_>) -> Option<Assertion> {
    Some(match from.u8()? {
        1 => Assertion::Exists,
        2 => Assertion::Absent,
        3 => Assertion::Version(from.version()?),
        4 => Assertion::Equals(take_field(from)?, take_long(from)?),
        5 => Assertion::Differs(take_field(from)?, take_long(from)?),
        6 => Assertion::Has(take_field(from)?),
        7 => Assertion::Lacks(take_field(from)?),
        _ => return None,
    })
}

fn put_change(to: &mut Writer, change: &ObjectChange) {
    match change {
        ObjectChange::Put(bytes) => {
            to.u8(1);
            put_long(to, bytes);
        }
        ObjectChange::Write { offset, bytes } => {
            to.u8(2);
            to.u64(*offset);
            put_long(to, bytes);
        }
        ObjectChange::Append(bytes) => {
            to.u8(3);
            put_long(to, bytes);
        }
        ObjectChange::Truncate(size) => {
            to.u8(4);
            to.u64(*size);
        }
        ObjectChange::Zero { offset, length } => {
            to.u8(5);
            to.u64(*offset);
            to.u64(*length);
        }
        ObjectChange::Remove => to.u8(6),
        ObjectChange::Set(field, value) => {
            to.u8(7);
            put_field(to, field);
            put_long(to, value);
        }
        ObjectChange::Unset(field) => {
            to.u8(8);
            put_field(to, field);
        }
        ObjectChange::RemoveRecords { from, before } => {
            to.u8(9);
            put_short(to, from);
            to.u8(u8::from(before.is_some()));
            before.iter().for_each(|before| put_short(to, before));
        }
        ObjectChange::Add(field, amount) => {
            to.u8(10);
            put_field(to, field);
            to.u64(amount.cast_unsigned());
        }
        ObjectChange::Partial(is_partial) => {
            to.u8(11);
            to.u8(u8::from(*is_partial));
        }
    }
}

fn take_change(from: &mut Reader<'_>) -> Option<ObjectChange> {
    Some(match from.u8()? {
        1 => ObjectChange::Put(take_long(from)?),
        2 => ObjectChange::Write { offset: from.u64()?, bytes: take_long(from)? },
        3 => ObjectChange::Append(take_long(from)?),
        4 => ObjectChange::Truncate(from.u64()?),
        5 => ObjectChange::Zero { offset: from.u64()?, length: from.u64()? },
        6 => ObjectChange::Remove,
        7 => ObjectChange::Set(take_field(from)?, take_long(from)?),
        8 => ObjectChange::Unset(take_field(from)?),
        9 => {
            let first = take_short(from)?.to_vec();
            let before = match from.u8()? {
                0 => None,
                1 => Some(take_short(from)?.to_vec()),
                _ => return None,
            };
            ObjectChange::RemoveRecords { from: first, before }
        }
        10 => ObjectChange::Add(take_field(from)?, from.u64()?.cast_signed()),
        11 => match from.u8()? {
            0 => ObjectChange::Partial(false),
            1 => ObjectChange::Partial(true),
            _ => return None,
        },
        _ => return None,
    })
}

pub(crate) fn put_field(to: &mut Writer, field: &Field) {
    to.u8(match field {
        Field::Attribute(_) => 1,
        Field::Record(_) => 2,
    });
    put_short(to, field.key());
}

pub(crate) fn take_field(from: &mut Reader<'_>) -> Option<Field> {
    match from.u8()? {
        1 => Some(Field::Attribute(take_short(from)?.to_vec())),
        2 => Some(Field::Record(take_short(from)?.to_vec())),
        _ => None,
    }
}

/// Appends bytes of which the length takes 2 bytes: names and keys.
pub(crate) fn put_short(to: &mut Writer, bytes: &[u8]) {
    to.u16(u16::try_from(bytes.len()).expect("names and keys are short"));
    to.bytes.extend_from_slice(bytes);
}

pub(crate) fn take_short<'a>(from: &mut Reader<'a>) -> Option<&'a [u8]> {
    let size = usize::from(from.u16()?);
    from.take(size)
}

/// Appends bytes of which the length takes 4 bytes: values and data.
pub(crate) fn put_long(to: &mut Writer, bytes: &[u8]) {
    to.u32(u32::try_from(bytes.len()).expect("an operation has less data"));
    to.bytes.extend_from_slice(bytes);
}

pub(crate) fn take_long(from: &mut Reader<'_>) -> Option<Vec<u8>> {
    let size = from.u32()? as usize;
    from.take(size).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use base::{Epoch, Version};
    use proptest::prelude::*;

    use super::*;
    use crate::tests::any_operation;

    #[test]
    fn operations_are_frozen() {
        let (attribute, record) = (Field::Attribute(b"a".to_vec()), Field::Record(b"r".to_vec()));
        let version = Version { epoch: Epoch::new(2), counter: 3 };
        let steps = |name: &[u8], assertions, changes| ObjectSteps {
            name: Name::new(name).unwrap(),
            assertions,
            changes,
        };
        let first = steps(
            b"x",
            vec![
                Assertion::Exists,
                Assertion::Version(version),
                Assertion::Equals(attribute.clone(), b"v".to_vec()),
                Assertion::Differs(record.clone(), vec![]),
                Assertion::Has(attribute.clone()),
            ],
            vec![
                ObjectChange::Put(b"p".to_vec()),
                ObjectChange::Write { offset: 1, bytes: b"w".to_vec() },
                ObjectChange::Set(record.clone(), b"s".to_vec()),
                ObjectChange::Unset(attribute.clone()),
                ObjectChange::RemoveRecords { from: vec![], before: Some(b"b".to_vec()) },
                ObjectChange::RemoveRecords { from: b"f".to_vec(), before: None },
                ObjectChange::Add(record.clone(), -1),
                ObjectChange::Remove,
            ],
        );
        let second = steps(
            b"y",
            vec![Assertion::Absent, Assertion::Lacks(record)],
            vec![
                ObjectChange::Append(vec![]),
                ObjectChange::Truncate(5),
                ObjectChange::Partial(true),
            ],
        );
        let third = steps(b"z", vec![], vec![ObjectChange::Zero { offset: 6, length: 7 }]);
        let operation = Operation { objects: vec![first, second, third] };
        let bytes = operation.encode();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "0300\
             0100780500010302000000030000000000000004010100610100000076050201007200000000060101006108\
             000101000000700201000000000000000100000077070201007201000000730801010061090000010100620901\
             0066000a02010072ffffffffffffffff06\
             0100790200020702010072030003000000000405000000000000000b01\
             01007a00000100050600000000000000\
             0700000000000000"
        );
        assert_eq!(Operation::decode(&bytes), Ok(operation));
        assert!(Operation::decode(&bytes[..bytes.len() - 1]).is_err());
        assert!(Operation::decode(&[&bytes[..], &[0]].concat()).is_err());
        assert!(Operation::decode(&[0, 0]).unwrap_err().contains("1 to 1000 objects"));
    }

    #[test]
    fn an_operation_that_fits_no_request_is_refused() {
        let of = |count: u8| {
            let field = |number: u8| Field::Record(vec![number]);
            let equals = |number| Assertion::Equals(field(number), vec![0; 64 << 10]);
            let assertions = (0..count).map(equals).collect();
            let name = Name::new(b"a").unwrap();
            let steps = ObjectSteps { name, assertions, changes: vec![ObjectChange::Remove] };
            Operation { objects: vec![steps] }
        };
        assert_eq!(of(63).payload(), Ok(of(63).encode()));
        assert_eq!(of(64).check(), Ok(()));
        assert!(of(64).payload().unwrap_err().contains("the largest request"));
        assert!(Operation { objects: vec![] }.payload().is_err());
    }

    #[test]
    fn steps_are_counted_over_all_objects_before_they_are_decoded() {
        let exists = |name: u8, count| ObjectSteps {
            name: Name::new(&[name]).unwrap(),
            assertions: vec![Assertion::Exists; count],
            changes: vec![],
        };
        let operation = |counts: &[usize]| {
            let objects = counts.iter().zip(1..).map(|(count, name)| exists(name, *count));
            Operation { objects: objects.collect() }
        };
        let most = operation(&[2000, 2000, 96]);
        assert_eq!(Operation::decode(&most.encode()), Ok(most));
        // Those of the last object are not even counted.
        let why = Operation::decode(&operation(&[2000, 2000, 97, 4000]).encode());
        assert_eq!(why, Err("4097 steps are more than 4096".into()));
    }

    #[test]
    fn an_operation_with_too_many_ranges_is_decoded_but_not_sent() {
        let of = |count: u8| {
            let range =
                |at| ObjectChange::RemoveRecords { from: vec![at], before: Some(vec![at, 1]) };
            let changes = (0..count).map(range).collect();
            let steps = ObjectSteps { name: Name::new(b"a").unwrap(), assertions: vec![], changes };
            Operation { objects: vec![steps] }
        };
        assert_eq!(of(16).payload(), Ok(of(16).encode()));
        assert_eq!(Operation::decode(&of(17).encode()), Ok(of(17)), "perhaps it was executed");
        assert!(of(17).payload().unwrap_err().contains("16 ranges"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        #[test]
        fn operations_come_back(operation in any_operation()) {
            prop_assert_eq!(Operation::decode(&operation.encode()), Ok(operation));
        }

        #[test]
        fn changed_operations_decode_or_are_refused(
            operation in any_operation(),
            at in any::<prop::sample::Index>(),
            byte in prop_oneof![0..12u8, any::<u8>()],
        ) {
            let mut bytes = operation.encode();
            let size = bytes.len().min(200);
            bytes[at.index(size)] = byte;
            if let Ok(operation) = Operation::decode(&bytes) {
                prop_assert_eq!(operation.encode(), bytes);
            }
        }

        #[test]
        fn any_bytes_decode_or_are_refused(
            bytes in prop::collection::vec(prop_oneof![0..3u8, any::<u8>()], 0..60),
        ) {
            if let Ok(operation) = Operation::decode(&bytes) {
                prop_assert_eq!(operation.encode(), bytes);
            }
        }
    }
}
