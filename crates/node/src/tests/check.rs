//! Tests of the check of records: a node writes objects, and what its disk and its engine have is looked at.

use ::objects::{Head, HeadContent, Key, Kind, Name, Shard};
use base::PoolId;
use blockstore::{CheckOptions, EngineFound, ReadEngine, StoppedStore, check_stopped};
use engine::Twin;

use super::objects::{put_of, serving_clients};
use super::rig::{ENGINE, POOL, Rig};
use super::*;
use crate::check_objects::check_objects;

/// What an engine has in its files.
#[derive(Clone)]
pub(crate) struct Files {
    pub found: EngineFound,
    pub records: Vec<(Vec<u8>, Vec<u8>)>,
}

impl ReadEngine for Files {
    fn found(&self) -> EngineFound {
        self.found.clone()
    }

    fn walk(
        &mut self,
        family: PoolId,
        on_record: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), String> {
        assert_eq!(family, self.found.families[0].family);
        self.records.iter().for_each(|(key, value)| on_record(key, value));
        Ok(())
    }
}

fn files_of(mut engine: Twin) -> Files {
    let families = engine.open(ENGINE).expect("it is its own");
    let records = engine.records(POOL).map(|(key, value)| (key.to_vec(), value.to_vec())).collect();
    Files { found: EngineFound { identity: ENGINE, families }, records }
}

/// Returns what a check finds on the node's disk, with this engine.
fn findings(rig: &Rig, files: &mut Files) -> Vec<String> {
    let (size, disk) = (rig.disk.size(), rig.disk.clone());
    let mut read = |offset: u64, buffer: &mut [u8]| {
        disk.read(offset, buffer);
        Ok(())
    };
    let mut stopped = StoppedStore::open_with(&mut read, size, Some(files)).expect("it opens");
    let mut report = check_stopped(&mut stopped, CheckOptions { data: true });
    check_objects(&mut stopped, &mut report);
    report.findings.into_iter().map(|finding| finding.text).collect()
}

/// Returns a node that has written a small object and one with blocks.
fn written() -> Rig {
    let mut rig = serving_clients();
    for (number, size) in [(1, 9), (2, 200 << 10)] {
        assert!(rig.ask(1, put_of(number, size)).is_ok());
    }
    rig
}

#[test]
fn a_disk_whose_process_died_is_clean_whatever_its_engine_has() {
    let mut rig = written();
    let mut engine = rig.engine.take().expect("it has one");
    // The engine's process has died, too: what it had not flushed comes from the journal.
    engine.crash(&mut |_| 0);
    let mut files = files_of(engine);
    assert_eq!(files.records, []);
    assert_eq!(findings(&rig, &mut files), Vec::<String>::new());
}

#[test]
fn records_and_blocks_that_belong_to_nothing_are_found() {
    let mut rig = written();
    let mut files = files_of(rig.engine.take().expect("it has one"));
    assert!(files.records.len() >= 2);
    assert_eq!(findings(&rig, &mut files), Vec::<String>::new());
    let add = |files: &mut Files, key: Vec<u8>, value: &[u8]| {
        files.records.push((key, value.to_vec()));
        files.records.sort();
    };
    let name = Name::new(b"nobody").expect("sound");
    let key = |kind: Kind| Key { shard: Shard::new(3), kind }.encode();
    let attribute = Kind::Attribute { name: name.clone(), attribute: b"a".to_vec() };
    add(&mut files, key(attribute), b"1");
    let head = Head {
        version: Version::ZERO,
        modified: 0,
        is_partial: false,
        content: HeadContent::Tombstone,
    };
    // A tombstone has nothing.
    add(&mut files, key(Kind::Head { name: name.clone() }), &head.encode());
    add(&mut files, key(Kind::Incomplete { name }), b"");
    add(&mut files, vec![0, 3, 0xff], b"");
    let of_blocks = |(_, value): &(Vec<u8>, Vec<u8>)| {
        matches!(Head::decode(value).map(|it| it.content), Some(HeadContent::Blocks { .. }))
    };
    files.records.retain(|record| !of_blocks(record));
    let found = findings(&rig, &mut files);
    assert_eq!(found.len(), 4, "{found:?}");
    let all = found.join("\n");
    for what in ["none of objects", "1 attributes", "copied whole", "13 blocks that belong"] {
        assert!(all.contains(what), "{what}: {all}");
    }
}
