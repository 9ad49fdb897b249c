//! The engine of a store that is not running. What the second reading of recovery gives it stays in memory.
//!
//! Invariant: nothing is written to the engine.

use std::collections::{BTreeMap, BTreeSet};

use base::PoolId;
use format::engine::{Change, EngineEffect, EngineEvent};

use crate::EngineFound;

/// An engine that is only read.
pub trait ReadEngine {
    /// Returns its identity and families.
    fn found(&self) -> EngineFound;

    /// Calls `on_record` with each record of a family, in the order of keys. All that is read is compared
    /// with its checksums; the error says what cannot be read.
    fn walk(
        &mut self,
        family: PoolId,
        on_record: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), String>;
}

/// What a family has besides its files.
#[derive(Default)]
struct Later {
    /// Whether what the files have is gone.
    is_new: bool,
    /// Ranges that were deleted: first key, first key behind.
    deleted: Vec<(Vec<u8>, Vec<u8>)>,
    /// Records that were put or deleted.
    records: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

/// An engine, overlaid with what recovery gave it.
#[derive(Default)]
pub(crate) struct ScratchEngine<'a> {
    engine: Option<&'a mut dyn ReadEngine>,
    /// Families that are there.
    families: BTreeSet<PoolId>,
    later: BTreeMap<PoolId, Later>,
}

impl Later {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Put { key, value } => drop(self.records.insert(key, Some(value))),
            Change::Delete { key } => drop(self.records.insert(key, None)),
            Change::DeleteRange { start, end } => {
                self.records.retain(|key, _| *key < start || end <= *key);
                self.deleted.push((start, end));
            }
        }
    }

    fn is_deleted(&self, key: &[u8]) -> bool {
        self.deleted.iter().any(|(start, end)| &start[..] <= key && key < &end[..])
    }
}

impl<'a> ScratchEngine<'a> {
    pub fn new(engine: Option<&'a mut dyn ReadEngine>) -> ScratchEngine<'a> {
        let found = engine.iter().flat_map(|engine| engine.found().families);
        let families = found.map(|found| found.family).collect();
        ScratchEngine { engine, families, later: BTreeMap::new() }
    }

    pub fn found(&self) -> Option<EngineFound> {
        self.engine.as_ref().map(|engine| engine.found())
    }

    /// Carries out a request.
    pub fn done(&mut self, effect: EngineEffect) -> EngineEvent {
        let op = match effect {
            EngineEffect::Create { op, family, .. } => {
                self.families.insert(family);
                op
            }
            EngineEffect::Remove { op, family } => {
                self.families.remove(&family);
                self.later.insert(family, Later { is_new: true, ..Later::default() });
                op
            }
            EngineEffect::Write { op, family, changes, .. } => {
                let later = self.later.entry(family).or_default();
                changes.iter().for_each(|change| later.apply(change.clone()));
                op
            }
            EngineEffect::Flush { op, .. } => op,
            EngineEffect::Read { .. } | EngineEffect::Statistics { .. } => {
                unreachable!("nobody asks a store that is not running for records")
            }
        };
        EngineEvent::Done { op, result: Ok(()) }
    }

    pub fn families(&self) -> Vec<PoolId> {
        self.families.iter().copied().collect()
    }

    /// Calls `on_record` with each record of a family, as a start would find it.
    pub fn walk(
        &mut self,
        family: PoolId,
        on_record: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), String> {
        let none = Later::default();
        let later = self.later.get(&family).unwrap_or(&none);
        let mut records = later.records.iter().peekable();
        let Some(engine) = self.engine.as_mut().filter(|_| !later.is_new) else {
            for (key, value) in records.filter_map(|(key, value)| Some((key, value.as_ref()?))) {
                on_record(key, value);
            }
            return Ok(());
        };
        engine.walk(family, &mut |key, value| {
            while let Some((before, put)) = records.next_if(|(before, _)| &before[..] < key) {
                put.iter().for_each(|value| on_record(before, value));
            }
            match records.next_if(|(same, _)| same[..] == *key) {
                Some((_, put)) => put.iter().for_each(|value| on_record(key, value)),
                None if later.is_deleted(key) => {}
                None => on_record(key, value),
            }
        })?;
        for (key, put) in records {
            put.iter().for_each(|value| on_record(key, value));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use base::Lsn;
    use format::engine::{Compression, EngineOp, FamilyFound, Identity};

    use super::*;

    const POOL: PoolId = PoolId::FIRST;

    struct Files(Vec<(&'static [u8], &'static [u8])>);

    impl ReadEngine for Files {
        fn found(&self) -> EngineFound {
            let compression = Compression::None;
            let family =
                FamilyFound { family: POOL, compression, lsn: Lsn::ZERO, is_damaged: false };
            EngineFound { identity: Identity { engine: 1, store: 1 }, families: vec![family] }
        }

        fn walk(
            &mut self,
            _: PoolId,
            on_record: &mut dyn FnMut(&[u8], &[u8]),
        ) -> Result<(), String> {
            self.0.iter().for_each(|(key, value)| on_record(key, value));
            Ok(())
        }
    }

    fn records(scratch: &mut ScratchEngine<'_>) -> String {
        let mut seen = String::new();
        let walked = scratch.walk(POOL, &mut |key, value| {
            seen += &format!("{}={} ", key.escape_ascii(), value.escape_ascii());
        });
        assert_eq!(walked, Ok(()));
        seen
    }

    #[test]
    fn what_recovery_gives_is_laid_over_what_the_files_have() {
        let mut files = Files(vec![(b"b", b"1"), (b"c", b"1"), (b"e", b"1"), (b"f", b"1")]);
        let mut scratch = ScratchEngine::new(Some(&mut files));
        assert_eq!(records(&mut scratch), "b=1 c=1 e=1 f=1 ");
        let put =
            |key: &[u8], value: &[u8]| Change::Put { key: key.to_vec(), value: value.to_vec() };
        let range = Change::DeleteRange { start: b"c".to_vec(), end: b"f".to_vec() };
        let changes = Arc::from([
            put(b"d", b"2"),
            range,
            put(b"e", b"3"),
            put(b"a", b"3"),
            put(b"g", b"3"),
            Change::Delete { key: b"b".to_vec() },
        ]);
        let lsn = Lsn::new(512);
        scratch.done(EngineEffect::Write { op: EngineOp(1), family: POOL, lsn, changes });
        assert_eq!(records(&mut scratch), "a=3 e=3 f=1 g=3 ");
        scratch.done(EngineEffect::Remove { op: EngineOp(2), family: POOL });
        assert_eq!((records(&mut scratch), scratch.families()), (String::new(), vec![]));
        let compression = Compression::None;
        scratch.done(EngineEffect::Create { op: EngineOp(3), family: POOL, compression });
        let changes = Arc::from([put(b"z", b"4")]);
        scratch.done(EngineEffect::Write { op: EngineOp(4), family: POOL, lsn, changes });
        assert_eq!((records(&mut scratch), scratch.families()), ("z=4 ".to_owned(), vec![POOL]));
    }
}
