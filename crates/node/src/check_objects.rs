//! Check of the records of a store that is not running: do they agree with each other, and with its blocks?
//! See rule 23 of `docs/internals/objects.md`.
//!
//! An object has a head, and what names it has one: attributes, records, blocks. That a head names blocks which are
//! not there is no finding: data that was never written has none.

use std::collections::BTreeSet;

use base::PoolId;
use blockstore::{BlockKey, CheckReport, Severity, StoppedStore};
use objects::{Head, HeadContent, Key, Kind, Name, NameHash, Shard};

/// The bits of a stripe's number that are of the block, not of the data id.
const BLOCK_BITS: u32 = 12;

/// What is known of a pool while its records are walked, which come in the order of shards and kinds.
struct Walk {
    pool: PoolId,
    shard: Option<Shard>,
    /// Objects of the shard that are there.
    names: BTreeSet<Name>,
    /// Data ids of all shards, each as a block with the lowest number.
    data: BTreeSet<(u32, u32, u32)>,
    counts: Counts,
}

/// How many records are wrong, and how.
#[derive(Default)]
struct Counts {
    foreign: u64,
    heads: u64,
    headless: u64,
    incomplete: u64,
    lost: u64,
}

/// Adds what is wrong with the records of a store, and with blocks that belong to none of them.
pub fn check_objects(stopped: &mut StoppedStore<'_>, report: &mut CheckReport) {
    for pool in stopped.families() {
        if !stopped.store().has_family(pool) {
            // It was left from a removed pool, and the recovery table says so.
            continue;
        }
        let mut walk = Walk {
            pool,
            shard: None,
            names: BTreeSet::new(),
            data: BTreeSet::new(),
            counts: Counts::default(),
        };
        let walked = stopped.walk_records(pool, &mut |key, value| walk.look(key, value));
        walk.tell(report);
        match walked {
            // Blocks of objects that were not read would be taken for strays.
            Err(why) => {
                let text = format!("records of pool {pool} cannot be read: {why}");
                report.find(Severity::Error, text);
            }
            Ok(()) => find_strays(stopped, &walk, report),
        }
    }
}

impl Walk {
    fn look(&mut self, key: &[u8], value: &[u8]) {
        let Some(Key { shard, kind }) = Key::decode(key) else {
            self.counts.foreign += 1;
            return;
        };
        if self.shard != Some(shard) {
            self.shard = Some(shard);
            self.names.clear();
        }
        match kind {
            Kind::Head { name } => self.look_at_head(name, value),
            Kind::Attribute { name, .. } | Kind::Record { name, .. } => {
                self.counts.headless += u64::from(!self.names.contains(&name));
            }
            Kind::Incomplete { .. } => self.counts.incomplete += 1,
            Kind::Lost { .. } => self.counts.lost += 1,
            Kind::Repeat { .. } | Kind::Log(_) | Kind::Reach(_) => {}
        }
    }

    fn look_at_head(&mut self, name: Name, value: &[u8]) {
        match Head::decode(value).map(|head| head.content) {
            None => {
                // What belongs to it is not headless, too.
                self.counts.heads += 1;
                self.names.insert(name);
            }
            Some(HeadContent::Tombstone) => {}
            Some(HeadContent::Inline(_)) => drop(self.names.insert(name)),
            Some(HeadContent::Blocks { id, .. }) => {
                // A store does not say how the names of its pools become hashes.
                for names in [NameHash::Plain, NameHash::Grouped] {
                    self.data.insert(data_of(&id.block_key(self.pool, name.hash(names), 0)));
                }
                self.names.insert(name);
            }
        }
    }

    fn tell(&self, report: &mut CheckReport) {
        let Counts { foreign, heads, headless, incomplete, lost } = self.counts;
        let found = [
            (foreign, Severity::Error, "records whose keys are none of objects"),
            (heads, Severity::Error, "heads of objects that cannot be decoded"),
            (headless, Severity::Error, "attributes and records of objects that are not there"),
            (incomplete, Severity::Warning, "objects that are copied whole, and are not complete"),
            (lost, Severity::Warning, "ranges of keys that no member can read"),
        ];
        for (count, severity, what) in found.into_iter().filter(|(count, ..)| *count > 0) {
            report.find(severity, format!("pool {}: {count} {what}", self.pool));
        }
    }
}

/// Finds blocks that belong to no object.
fn find_strays(stopped: &StoppedStore<'_>, walk: &Walk, report: &mut CheckReport) {
    let is_stray = |key: &BlockKey| key.pool == walk.pool && !walk.data.contains(&data_of(key));
    let count = stopped.keys().filter(is_stray).count();
    if count > 0 {
        let text = format!("pool {}: {count} blocks that belong to no object", walk.pool);
        report.find(Severity::Error, text);
    }
}

/// Returns hash and data id of a block.
fn data_of(key: &BlockKey) -> (u32, u32, u32) {
    (key.hash, key.image.get(), key.stripe.get() >> BLOCK_BITS)
}
