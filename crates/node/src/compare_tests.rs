//! Tests of the comparison: stores that differ in one way, and the findings that are reported.

use std::collections::{BTreeMap, VecDeque};

use base::checksum::checksum_units;
use base::hash::stripe_hash;
use base::{
    BlockSize, BufferPool, ClusterId, Epoch, ImageId, Incarnation, Lsn, MapRevision, OsdId, PgId,
    PoolId, Scheme, StripeIndex, Time, UNIT_SIZE, Version,
};
use blockstore::{
    Batch, BlockKey, CommitMode, CreateOptions, Effect, EngineFound, Event, NoteKey, ReadEngine,
    Request, RequestId, STORE_SIZE_MIN, Settings, Severity, StoppedStore, Store, StoreId,
};
use cluster::map::{FailureDomain, Pool, PoolKind};
use format::disk::EngineId;
use format::door::{DiskEffect, DiskEvent};
use format::engine::{Change, Compression, EngineEffect, EngineEvent, FamilyFound, Identity};
use format::wire::{Member, PgEntry};
use objects::{Key, Kind, Name, Shard};
use pg::Record;

use crate::notes::{ClusterNote, PoolNote};
use crate::tests::check::Files;
use crate::{Comparison, compare};

const PG: PgId = PgId { pool: PoolId::FIRST, number: 0 };
const SECTOR: u64 = 512;

/// A running store in memory. Its engine says that it does what it is asked for; the journal has all of that,
/// too.
struct Osd {
    sectors: BTreeMap<u64, Vec<u8>>,
    /// What the engine has in its files, if there is one.
    files: Option<Files>,
    store: Store,
    effects: VecDeque<Effect>,
    requests: u64,
}

fn write(sectors: &mut BTreeMap<u64, Vec<u8>>, offset: u64, bytes: &[u8]) {
    for (index, sector) in bytes.chunks(SECTOR as usize).enumerate() {
        sectors.insert(offset / SECTOR + index as u64, sector.to_vec());
    }
}

fn read(sectors: &BTreeMap<u64, Vec<u8>>, offset: u64, buffer: &mut [u8]) {
    for (index, part) in buffer.chunks_mut(SECTOR as usize).enumerate() {
        match sectors.get(&(offset / SECTOR + index as u64)) {
            Some(sector) => part.copy_from_slice(sector),
            None => part.fill(0),
        }
    }
}

fn osd(number: u32) -> OsdId {
    OsdId::new(number).unwrap()
}

fn version(counter: u64) -> Version {
    Version { epoch: Epoch::new(1), counter }
}

fn key(stripe: u32) -> BlockKey {
    let stripe = StripeIndex::new(stripe);
    let hash = stripe_hash(ImageId::FIRST, stripe);
    BlockKey { pool: PG.pool, hash, image: ImageId::FIRST, stripe }
}

fn pool() -> Pool {
    Pool {
        id: PG.pool,
        name: "default".into(),
        scheme: Scheme::Copies { count: 2 },
        min_size: 1,
        pg_count: 1,
        failure_domain: FailureDomain::Osd,
        block_size: BlockSize::DEFAULT,
        kind: PoolKind::Block,
    }
}

impl Osd {
    /// Creates an OSD whose records list one pool with one PG, with the members `acting`.
    fn new(number: u32, acting: &[u32]) -> Osd {
        Osd::of(pool(), number, acting)
    }

    fn of(pool: Pool, number: u32, acting: &[u32]) -> Osd {
        let files = pool.has_objects().then(|| {
            let identity = Identity { engine: 7, store: u128::from(number) };
            let family = FamilyFound {
                family: pool.id,
                compression: Compression::None,
                lsn: Lsn::ZERO,
                is_damaged: false,
            };
            Files { found: EngineFound { identity, families: vec![family] }, records: Vec::new() }
        });
        // The journal has the creation of the family.
        let found = files.as_ref().map(|files| files.found.identity);
        let found = found.map(|identity| EngineFound { identity, families: Vec::new() });
        let options = CreateOptions {
            cluster: ClusterId::new(7),
            osd: osd(number),
            store: StoreId::new(u128::from(number)),
            size: STORE_SIZE_MIN,
            sector_size: 4096,
            commit: CommitMode::Immediate,
            engine: files.as_ref().and_then(|files| EngineId::new(files.found.identity.engine)),
        };
        let mut sectors = BTreeMap::new();
        for (offset, bytes) in blockstore::create(&options).unwrap().images {
            write(&mut sectors, offset, &bytes);
        }
        let mut effects = Vec::new();
        let pool_of_buffers = BufferPool::default();
        let engine = (STORE_SIZE_MIN, found);
        let store = Store::open_with(Settings::default(), pool_of_buffers, engine, &mut effects);
        let mut osd = Osd { sectors, files, store, effects: effects.into(), requests: 0 };
        assert!(matches!(osd.run(), Some(Effect::Opened)));
        osd.note_cluster(vec![pool]);
        osd.note_record(acting);
        if osd.files.is_some() {
            osd.ask(Request::Family { pool: PG.pool, compression: Some(Compression::None) });
        }
        osd
    }

    fn note_cluster(&mut self, pools: Vec<Pool>) {
        let revision = MapRevision::new(1);
        let pools = pools.into_iter().map(|pool| PoolNote { pool, revision }).collect();
        let cluster = ClusterId::new(7);
        let note = ClusterNote { cluster, pools, lease_ms: None, metadata_checked_at: None };
        self.ask(Request::Note { key: NoteKey::Cluster, bytes: note.encode() });
    }

    fn note_record(&mut self, acting: &[u32]) {
        let incarnation = Incarnation::new(1);
        let member = |number: &u32| Member { osd: osd(*number), incarnation };
        let (epoch, revision) = (Epoch::new(1), MapRevision::new(1));
        let entry = PgEntry { epoch, revision, ..PgEntry::new(PG, acting.iter().map(member)) };
        let (adopted, history) = (Version::ZERO, Vec::new());
        let record = Record { entry, adopted, history, filling: None, dropped: None };
        self.ask(Request::Note { key: NoteKey::Pg(PG), bytes: record.encode() });
    }

    fn run(&mut self) -> Option<Effect> {
        while let Some(effect) = self.effects.pop_front() {
            let effect = match effect {
                Effect::Disk(effect) => effect,
                Effect::Engine(
                    EngineEffect::Create { op, .. } | EngineEffect::Write { op, .. },
                ) => {
                    self.apply(Event::Engine(EngineEvent::Done { op, result: Ok(()) }));
                    continue;
                }
                effect => return Some(effect),
            };
            let event = match effect {
                DiskEffect::Read { op, offset, mut buffer } => {
                    read(&self.sectors, offset, &mut buffer);
                    DiskEvent::Read { op, buffer, result: Ok(()) }
                }
                DiskEffect::Write { op, mut offset, buffers, .. } => {
                    for buffer in buffers {
                        write(&mut self.sectors, offset, &buffer);
                        offset += buffer.len() as u64;
                    }
                    DiskEvent::Done { op, result: Ok(()) }
                }
                DiskEffect::Flush { op }
                | DiskEffect::Reserve { op, .. }
                | DiskEffect::Discard { op, .. } => DiskEvent::Done { op, result: Ok(()) },
            };
            self.apply(Event::Disk(event));
        }
        None
    }

    fn apply(&mut self, event: Event) {
        let mut effects = Vec::new();
        self.store.apply(Time::ZERO, event, &mut effects);
        self.store.submit(&mut effects);
        self.effects.extend(effects);
    }

    fn ask(&mut self, request: Request) {
        self.requests += 1;
        self.apply(Event::Request { id: RequestId(self.requests), request });
        let done = self.run();
        assert!(matches!(done, Some(Effect::Done { result: Ok(_), .. })), "{done:?}");
    }

    fn write(&mut self, stripe: u32, counter: u64, byte: u8) {
        let data = BufferPool::default().copy_of(&[byte; 2 * UNIT_SIZE as usize]);
        let mut checksums = Vec::new();
        checksum_units(&data, &mut checksums);
        self.ask(Request::Write {
            pg: PG,
            key: key(stripe),
            block_size: BlockSize::DEFAULT,
            version: version(counter),
            offset: 0,
            checksums,
            data,
            lazy: false,
        });
    }

    /// Puts a record of an object.
    fn put(&mut self, counter: u64, key: u8, value: u8) {
        self.ask(Request::Batch(Batch {
            pg: PG,
            block_size: BlockSize::DEFAULT,
            after: Version { counter: counter - 1, ..version(counter) },
            version: version(counter),
            records: vec![Change::Put { key: record(key), value: vec![value; 5] }],
            blocks: Vec::new(),
            note: None,
        }));
    }

    fn delete(&mut self, stripe: u32, counter: u64) {
        self.ask(Request::Delete { pg: PG, key: key(stripe), version: version(counter) });
    }
}

/// Returns the key of a record of an object in shard 1.
fn record(key: u8) -> Vec<u8> {
    let name = Name::new(b"object").unwrap();
    Key { shard: Shard::new(1), kind: Kind::Record { name, key: vec![key] } }.encode()
}

fn compared(osds: &[&Osd]) -> Comparison {
    let mut files: Vec<Option<Files>> = osds.iter().map(|osd| osd.files.clone()).collect();
    let mut readers: Vec<_> = osds
        .iter()
        .map(|osd| {
            |offset: u64, buffer: &mut [u8]| {
                read(&osd.sectors, offset, buffer);
                Ok(())
            }
        })
        .collect();
    let mut stores: Vec<StoppedStore<'_>> = Vec::new();
    for (reader, files) in readers.iter_mut().zip(&mut files) {
        let engine = files.as_mut().map(|files| files as &mut dyn ReadEngine);
        stores.push(StoppedStore::open_with(reader, STORE_SIZE_MIN, engine).unwrap());
    }
    compare(&mut stores, &mut |done, total| assert!(done <= total))
}

/// Returns two members with the same writes and deletions.
fn twins() -> (Osd, Osd) {
    let make = |number| {
        let mut osd = Osd::new(number, &[1, 2]);
        osd.write(0, 1, 0x11);
        osd.write(1, 2, 0x22);
        osd.delete(1, 3);
        osd.write(2, 4, 0x33);
        osd
    };
    (make(1), make(2))
}

/// Returns two members of a pool of objects with the same records.
fn twins_of_objects() -> (Osd, Osd) {
    let make = |number| {
        let kind = PoolKind::Object {
            shards: 4,
            names: base::hash::NameHash::Plain,
            compression: Compression::None,
        };
        let mut osd = Osd::of(Pool { kind, ..pool() }, number, &[1, 2]);
        osd.files.as_mut().unwrap().records = vec![(record(5), vec![9])];
        osd.put(1, 1, 0x11);
        osd.put(2, 2, 0x22);
        osd
    };
    (make(1), make(2))
}

/// Asserts that there is exactly one finding, of this severity and with these words in its text.
fn says(found: &Comparison, severity: Severity, words: &[&str]) {
    let [finding] = &found.findings[..] else { panic!("{found:#?}") };
    assert_eq!(finding.severity, severity, "{}", finding.text);
    for word in words {
        assert!(finding.text.contains(word), "{word} is missing in {}", finding.text);
    }
}

#[test]
fn copies_that_are_the_same_are_clean() {
    let (one, two) = twins();
    let found = compared(&[&one, &two]);
    assert_eq!(found.findings, []);
    assert_eq!((found.pgs, found.blocks), (1, 2));
    assert_eq!(found.bytes, 2 * BlockSize::DEFAULT.bytes());
}

#[test]
fn records_that_are_the_same_are_clean_and_others_an_error() {
    let (one, mut other) = twins_of_objects();
    let found = compared(&[&one, &other]);
    assert_eq!((found.findings, found.records), (vec![], 3));
    let is_found = |other: &Osd, records: &str| {
        let found = compared(&[&one, other]);
        says(
            &found,
            Severity::Error,
            &["osd.1 and osd.2", "different records of shard 1", records],
        );
        assert_eq!(found.records, 0);
    };
    let files = |other: &mut Osd, records| other.files.as_mut().unwrap().records = records;
    files(&mut other, vec![]);
    is_found(&other, "3 and 2");
    files(&mut other, vec![(record(5), vec![8])]);
    is_found(&other, "3 and 3");
    files(&mut other, vec![(record(6), vec![9])]);
    is_found(&other, "3 and 3");
    // What a member keeps for itself may differ.
    let log = ::objects::keys::log_range(Shard::new(1), Version::ZERO).0;
    files(&mut other, vec![(record(5), vec![9]), (log, vec![1])]);
    assert_eq!(compared(&[&one, &other]).findings, []);
}

#[test]
fn records_of_members_with_different_versions_are_not_compared() {
    let (mut one, other) = twins_of_objects();
    one.put(3, 3, 0x33);
    let found = compared(&[&one, &other]);
    says(&found, Severity::Warning, &["different versions", "not compared"]);
    assert_eq!(found.records, 0);
}

#[test]
fn a_byte_that_differs_is_an_error() {
    let (mut one, mut two) = twins();
    one.write(3, 5, 0x44);
    two.write(3, 5, 0x45);
    let found = compared(&[&one, &two]);
    says(&found, Severity::Error, &["block 3 of image 1", "osd.1 and osd.2", "different bytes"]);
    assert_eq!(found.different, 1);
}

#[test]
fn a_version_that_differs_is_an_error_where_it_was_acknowledged_and_else_a_write_under_way() {
    let (mut one, mut two) = twins();
    one.write(2, 5, 0x55);
    let found = compared(&[&one, &two]);
    says(&found, Severity::Warning, &["osd.1 has 1.5", "osd.2 has 1.4", "in progress"]);
    assert_eq!((found.under_way, found.different), (1, 0));
    // A later write on both members shows that the earlier one was acknowledged or adopted.
    one.write(0, 6, 0x66);
    two.write(0, 6, 0x66);
    let found = compared(&[&one, &two]);
    says(&found, Severity::Error, &["osd.1 has 1.5", "osd.2 has 1.4"]);
    assert_eq!((found.under_way, found.different), (0, 1));
}

#[test]
fn a_lost_deletion_is_an_error_above_the_floor_and_nothing_below() {
    let (mut one, mut two) = twins();
    one.delete(0, 5);
    one.write(3, 6, 1);
    two.write(3, 6, 1);
    let found = compared(&[&one, &two]);
    says(&found, Severity::Error, &["osd.1 has deleted it in version 1.5", "osd.2 has 1.1"]);
    let (mut one, two) = twins();
    one.ask(Request::SetFloor { pg: PG, floor: version(3) });
    one.ask(Request::Sync);
    assert_eq!(
        compared(&[&one, &two]).findings,
        [],
        "one dropped its tombstone, the other not yet"
    );
}

#[test]
fn damage_is_an_error() {
    let (one, mut two) = twins();
    let found = one.sectors.iter().filter(|(_, bytes)| bytes.iter().all(|byte| *byte == 0x33));
    let places: Vec<u64> = found.map(|(number, _)| *number).collect();
    assert!(!places.is_empty());
    // Recovery would treat a bad entry at the end of the journal as a torn write; followed by another entry,
    // it counts as damage.
    two.ask(Request::Record);
    for place in places {
        two.sectors.get_mut(&place).unwrap()[7] ^= 1;
    }
    let found = compared(&[&one, &two]);
    assert!(found.findings.iter().any(|finding| finding.severity == Severity::Error), "{found:#?}");
}

#[test]
fn copies_at_osds_that_are_no_members_are_strays() {
    let (mut one, two) = twins();
    one.note_record(&[1]);
    let mut two_elsewhere = two;
    two_elsewhere.note_record(&[1]);
    let found = compared(&[&one, &two_elsewhere]);
    says(&found, Severity::Warning, &["osd.2 holds 2 blocks of PG 1.0", "is not a member"]);
    assert_eq!((found.strays, found.blocks), (2, 2));
}

#[test]
fn copies_of_a_removed_pool_are_strays() {
    let (mut one, two) = twins();
    one.note_cluster(Vec::new());
    let found = compared(&[&one, &two]);
    assert_eq!((found.strays, found.blocks), (4, 0), "{found:#?}");
    assert!(found.findings.iter().all(|finding| finding.severity == Severity::Warning));
}

#[test]
fn a_member_that_is_not_there_is_named() {
    let (one, _) = twins();
    says(&compared(&[&one]), Severity::Warning, &["osd.2", "not compared"]);
}
