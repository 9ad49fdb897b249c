//! Puts and gets of data that takes several requests.
//!
//! ```text
//!   put  1   asserts what the caller asserts   puts the first 3 MiB, truncates to the whole size: partial
//!        2   asserts the version of 1          writes the next 3 MiB
//!        n   asserts the version of n - 1      writes the rest: whole
//!   get  1   reads the first 128 KiB: version, size
//!        n   reads the next 3 MiB of the same version, or all begins again
//! ```
//!
//! Invariants
//!   1. From its first operation on, a put has replaced all data: who reads sees the new size, zeros where data is
//!      still to come, and that the object is partial. It is until the last operation is done, or for good if the
//!      client dies: then whoever puts or removes the object mends it.
//!   2. Nobody else changes the object between two operations of a put: if somebody does, the next one is refused.
//!   3. A get shows one version, or that there is no object.

use base::Version;

use crate::head::Stat;
use crate::keys::Name;
use crate::look::{READ_DATA_MAX, Read};
use crate::operation::{
    Assertion, OBJECT_SIZE_MAX, OPERATION_DATA_MAX, ObjectChange, ObjectSteps, Operation,
};

/// How much a get reads first, in bytes.
const FIRST_READ_SIZE: u32 = 128 << 10;

/// A put of data of any length.
pub struct LongPut {
    name: Name,
    data: Vec<u8>,
    assertions: Vec<Assertion>,
    /// How much of the data is written.
    written: usize,
    /// The version of the last operation that was done.
    version: Option<Version>,
}

/// A get of data of any length.
pub struct LongGet {
    name: Name,
    found: Option<(Stat, Vec<u8>)>,
    is_done: bool,
    changed_count: u32,
}

impl LongPut {
    /// Begins a put. `assertions`: what must be true of the object before it. The error says what is wrong,
    /// for people.
    pub fn new(name: Name, data: Vec<u8>, assertions: Vec<Assertion>) -> Result<LongPut, String> {
        match data.len() as u64 <= OBJECT_SIZE_MAX {
            true => Ok(LongPut { name, data, assertions, written: 0, version: None }),
            false => Err(format!(
                "{} bytes are more than {OBJECT_SIZE_MAX}, the largest object",
                data.len()
            )),
        }
    }

    /// Returns the next operation, which may leave when the one before it is done. `None`: all are.
    pub fn operation(&self) -> Option<Operation> {
        let rest = &self.data[self.written..];
        let bytes = rest[..rest.len().min(OPERATION_DATA_MAX as usize)].to_vec();
        let is_last = bytes.len() == rest.len();
        let (assertions, changes) = match self.version {
            None if is_last => (self.assertions.clone(), vec![ObjectChange::Put(bytes)]),
            None => {
                let size = self.data.len() as u64;
                let whole = ObjectChange::Truncate(size);
                let changes = vec![ObjectChange::Put(bytes), whole, ObjectChange::Partial(true)];
                (self.assertions.clone(), changes)
            }
            Some(_) if rest.is_empty() => return None,
            Some(version) => {
                let write = ObjectChange::Write { offset: self.written as u64, bytes };
                let whole = is_last.then_some(ObjectChange::Partial(false));
                (vec![Assertion::Version(version)], std::iter::once(write).chain(whole).collect())
            }
        };
        let name = self.name.clone();
        Some(Operation { objects: vec![ObjectSteps { name, assertions, changes }] })
    }

    /// The operation that [`LongPut::operation`] returned is done, and has this version.
    pub fn on_done(&mut self, version: Version) {
        self.written = self.data.len().min(self.written + OPERATION_DATA_MAX as usize);
        self.version = Some(version);
    }

    /// Begins again from the first operation: the object was changed by somebody else, so that an operation
    /// after the first one was refused.
    pub fn begin_again(&mut self) {
        (self.written, self.version) = (0, None);
    }

    /// Returns how many bytes of the data are written.
    pub fn written(&self) -> u64 {
        self.written as u64
    }

    /// Whether an operation was done: from then on the object's old data is gone.
    pub fn has_begun(&self) -> bool {
        self.version.is_some()
    }
}

impl LongGet {
    /// Begins a get.
    pub fn new(name: Name) -> LongGet {
        LongGet { name, found: None, is_done: false, changed_count: 0 }
    }

    /// Returns the next read, which may leave when the one before it is answered. `None`: all are.
    pub fn read(&self) -> Option<Read> {
        let offset = self.found.as_ref().map_or(0, |(_, data)| data.len() as u64);
        // Most objects are short, and OSDs make room for all that is asked for.
        let length = if self.found.is_none() { FIRST_READ_SIZE } else { READ_DATA_MAX };
        (!self.is_done).then(|| Read::Data { name: self.name.clone(), offset, length })
    }

    /// Returns how many bytes came, and of how many. `None`: nothing came yet.
    pub fn progress(&self) -> Option<(u64, u64)> {
        self.found.as_ref().map(|(stat, data)| (data.len() as u64, stat.size))
    }

    /// Takes the answer to the read that [`LongGet::read`] returned. The error: it does not fit the question.
    pub fn on_answer(&mut self, answer: Option<(Stat, Vec<u8>)>) -> Result<(), String> {
        let Some(Read::Data { offset, length: asked, .. }) = self.read() else {
            return Err("nothing was asked for".to_string());
        };
        let before = self.found.take();
        let Some((stat, bytes)) = answer else {
            self.is_done = true;
            return Ok(());
        };
        let data = match before {
            Some((known, _)) if known.version != stat.version => {
                self.changed_count += 1;
                return Ok(());
            }
            Some((_, mut data)) => {
                data.extend_from_slice(&bytes);
                data
            }
            None => bytes,
        };
        let size = data.len() as u64;
        let asked = offset + u64::from(asked);
        if size > stat.size || size != stat.size.min(asked) {
            return Err(format!("a read of {:?} ends at {size} of {}", self.name, stat.size));
        }
        self.is_done = size == stat.size;
        self.found = Some((stat, data));
        Ok(())
    }

    /// Returns how often the object changed meanwhile, so that all began again.
    pub fn changed_count(&self) -> u32 {
        self.changed_count
    }

    /// Returns the object and its data; `None`: there is none. Requires: all reads are answered.
    pub fn finish(self) -> Option<(Stat, Vec<u8>)> {
        assert!(self.is_done);
        self.found
    }
}

#[cfg(test)]
mod tests {
    use base::{Epoch, MIB};

    use super::*;

    const NAME: &[u8] = b"long";

    fn version(counter: u64) -> Version {
        Version { epoch: Epoch::new(1), counter }
    }

    fn data(size: u64) -> Vec<u8> {
        (0..size).map(|at| (at / 1000) as u8).collect()
    }

    fn put(size: u64) -> LongPut {
        LongPut::new(Name::new(NAME).unwrap(), data(size), vec![Assertion::Absent]).unwrap()
    }

    fn stat(counter: u64, size: u64) -> Stat {
        Stat { version: version(counter), size, modified: 0, is_partial: false }
    }

    #[test]
    fn short_data_is_one_put() {
        for size in [0, 1, OPERATION_DATA_MAX] {
            let mut put = put(size);
            let operation = put.operation().unwrap();
            assert_eq!(operation.check(), Ok(()));
            assert_eq!(operation.objects[0].assertions, [Assertion::Absent]);
            assert_eq!(operation.objects[0].changes, [ObjectChange::Put(data(size))]);
            assert!(!put.has_begun());
            put.on_done(version(1));
            assert!(put.has_begun() && put.operation().is_none());
        }
    }

    #[test]
    fn long_data_is_partial_until_its_last_operation() {
        let size = 7 * MIB + 1;
        let mut put = put(size);
        let (mut written, mut is_partial) = (vec![9; 3], false);
        let mut counts = Vec::new();
        for counter in 1..=4 {
            let Some(operation) = put.operation() else { break };
            assert_eq!(operation.check(), Ok(()));
            let [ObjectSteps { assertions, changes, .. }] = &operation.objects[..] else {
                panic!("one object")
            };
            let expected = match counter {
                1 => Assertion::Absent,
                _ => Assertion::Version(version(counter - 1)),
            };
            assert_eq!(assertions, &[expected]);
            for change in changes {
                match change {
                    ObjectChange::Put(bytes) => (written, is_partial) = (bytes.clone(), false),
                    ObjectChange::Truncate(size) => written.resize(*size as usize, 0),
                    ObjectChange::Write { offset, bytes } => {
                        let range = *offset as usize..*offset as usize + bytes.len();
                        written[range].copy_from_slice(bytes);
                    }
                    ObjectChange::Partial(now) => is_partial = *now,
                    change => panic!("{change:?}"),
                }
            }
            counts.push(is_partial);
            assert_eq!(written.len() as u64, size);
            put.on_done(version(counter));
        }
        assert_eq!((counts, written), (vec![true, true, false], data(size)));
        put.begin_again();
        assert_eq!(put.operation().unwrap().objects[0].assertions, [Assertion::Absent]);
        let too_long = LongPut::new(Name::new(NAME).unwrap(), data(OBJECT_SIZE_MAX + 1), vec![]);
        assert!(too_long.err().unwrap().contains("largest object"));
    }

    /// Answers the next read of an object with this data.
    fn answer(get: &mut LongGet, counter: u64, data: &[u8]) {
        let Some(Read::Data { offset, length, .. }) = get.read() else { panic!("a read of data") };
        let rest = &data[offset as usize..];
        let bytes = rest[..rest.len().min(length as usize)].to_vec();
        get.on_answer(Some((stat(counter, data.len() as u64), bytes))).unwrap();
    }

    #[test]
    fn a_get_shows_one_version() {
        let (first, second) = (data(7 * MIB + 1), vec![5; 4 << 20]);
        let mut get = LongGet::new(Name::new(NAME).unwrap());
        answer(&mut get, 1, &first);
        answer(&mut get, 1, &first);
        answer(&mut get, 2, &[5; 7 << 20]);
        assert_eq!(get.changed_count(), 1);
        for _ in 0..3 {
            answer(&mut get, 3, &second);
        }
        assert_eq!(get.read(), None);
        assert!(get.finish() == Some((stat(3, second.len() as u64), second)));
        let first = u64::from(FIRST_READ_SIZE);
        let rest = u64::from(READ_DATA_MAX);
        for (size, count) in [(0, 1), (1, 1), (first, 1), (first + 1, 2), (first + rest, 2)] {
            let mut get = LongGet::new(Name::new(NAME).unwrap());
            for _ in 0..count {
                answer(&mut get, 1, &data(size));
            }
            assert_eq!(get.read(), None);
            assert!(get.finish() == Some((stat(1, size), data(size))));
        }
    }

    #[test]
    fn an_object_that_goes_is_not_there() {
        let mut get = LongGet::new(Name::new(NAME).unwrap());
        answer(&mut get, 1, &data(4 * MIB));
        get.on_answer(None).unwrap();
        assert_eq!((get.read(), get.finish()), (None, None));
    }

    #[test]
    fn an_answer_that_does_not_fit_is_an_error() {
        for (size, bytes) in [(4 * MIB, 5), (5, 6), (4 * MIB, 0)] {
            let mut get = LongGet::new(Name::new(NAME).unwrap());
            assert!(get.on_answer(Some((stat(1, size), data(bytes)))).is_err());
        }
    }
}
