//! Random requests, crashes at any effect, and a model that records which content must survive.

use std::collections::BTreeMap;

use base::{BlockSize, Duration, MIB, Version};

use crate::harness::{Bench, PG, Random, created, key, options, settings, unit};
use crate::{CommitMode, Request, RequestId, Settings};

/// The effect of one request on a block.
enum Change {
    Write { first: u32, count: u32, tag: u64 },
    Zero { first: u32, count: u32 },
    Delete,
}

struct Step {
    version: Version,
    id: RequestId,
    change: Change,
}

/// The content of a block: the tag of each unit that is not zeros.
type Content = BTreeMap<u32, u64>;

#[derive(Default)]
struct Model {
    /// The blocks that survived the last crash, with their versions.
    base: BTreeMap<u32, (Version, Content)>,
    steps: BTreeMap<u32, Vec<Step>>,
}

impl Model {
    fn content(&self, number: u32, up_to: Version) -> Content {
        let mut content = self.base.get(&number).map_or(Content::new(), |base| base.1.clone());
        let steps = self.steps.get(&number).into_iter().flatten();
        for step in steps.filter(|step| step.version <= up_to) {
            match step.change {
                Change::Write { first, count, tag } => {
                    content.extend((first..first + count).map(|unit| (unit, tag)));
                }
                Change::Zero { first, count } => {
                    content.retain(|unit, _| *unit < first || *unit >= first + count);
                }
                Change::Delete => content.clear(),
            }
        }
        content
    }

    /// Compares the store with the model, and updates the model with the content that survived.
    fn check(&mut self, bench: &mut Bench, blocks: u32, acknowledged: &[RequestId]) {
        for number in 0..blocks {
            let version = bench.store.version_of(&key(number));
            let base = self.base.get(&number).map_or(Version::ZERO, |base| base.0);
            assert!(version >= base, "block {number} went back in time");
            for step in self.steps.get(&number).into_iter().flatten() {
                let is_kept = step.version <= version;
                assert!(
                    is_kept || !acknowledged.contains(&step.id),
                    "block {number} lost {}, has {version}",
                    step.version
                );
            }
            let content = self.content(number, version);
            match bench.read(number, 0, 32).expect("nothing is damaged") {
                None => assert!(content.is_empty(), "block {number} lost its content"),
                Some(data) => {
                    for (index, found) in data.chunks_exact(4096).enumerate() {
                        let index = index as u32;
                        let expected = match content.get(&index) {
                            Some(tag) => unit(tag + index as u64),
                            None => vec![0; 4096],
                        };
                        assert!(found == expected, "block {number} unit {index} at {version}");
                    }
                }
            }
            self.base.insert(number, (version, content));
        }
        self.steps.clear();
    }

    fn ask(&mut self, bench: &mut Bench, random: &mut Random, blocks: u32) {
        let number = random.below(blocks as u64) as u32;
        let first = random.below(32) as u32;
        let count = 1 + random.below(32 - first as u64) as u32;
        let tag = random.below(1 << 40);
        let size = BlockSize::DEFAULT;
        let (change, request) = match random.below(12) {
            0..=5 => {
                let count = count.min(1 + random.below(3) as u32);
                let request = bench.write_of(number, size, first, count, tag);
                (Change::Write { first, count, tag }, request)
            }
            6..=7 => {
                let request = bench.write_of(number, size, first, count, tag);
                (Change::Write { first, count, tag }, request)
            }
            8..=9 => {
                let request = bench.write_of(number, size, 0, 32, tag);
                (Change::Write { first: 0, count: 32, tag }, request)
            }
            10 => {
                let version = bench.next_version();
                let request = Request::Zero {
                    pg: PG,
                    key: key(number),
                    block_size: size,
                    version,
                    offset: first * 4096,
                    length: count * 4096,
                    lazy: false,
                };
                (Change::Zero { first, count }, request)
            }
            _ => {
                let version = bench.next_version();
                (Change::Delete, Request::Delete { pg: PG, key: key(number), version })
            }
        };
        let version = match &request {
            Request::Write { version, .. }
            | Request::Zero { version, .. }
            | Request::Delete { version, .. } => *version,
            _ => unreachable!("only these are drawn"),
        };
        let id = bench.ask(request);
        self.steps.entry(number).or_default().push(Step { version, id, change });
    }
}

fn run(seed: u64, crashes: u32) {
    let mut random = Random::new(seed + 1);
    let mode = [CommitMode::Fsync, CommitMode::Immediate][random.below(2) as usize];
    let sector_size = [512, 4096][random.below(2) as usize];
    let settings = Settings {
        checkpoint_after_bytes: (1 + random.below(32)) * MIB / 8,
        memory_bytes: (1 + random.below(16)) * MIB,
        ..settings()
    };
    let mut bench = Bench::on(created(&options(mode, sector_size)), settings, seed);
    let mut model = Model::default();
    let blocks = 1 + random.below(24) as u32;
    for _ in 0..crashes {
        for _ in 0..1 + random.below(300) {
            model.ask(&mut bench, &mut random, blocks);
            if random.below(3) == 0 {
                bench.submit();
            }
            for _ in 0..random.below(6) {
                bench.step();
            }
            if random.below(60) == 0 {
                bench.pass(Duration::from_millis(150));
            }
        }
        assert_eq!(bench.stopped, None);
        let acknowledged: Vec<RequestId> = bench.answers.keys().copied().collect();
        let kills = random.below(4);
        bench = bench.crash_often(kills);
        assert!(bench.opened, "{:?}", bench.stopped);
        model.check(&mut bench, blocks, &acknowledged);
        bench.answers.clear();
    }
    let used = bench.store.space().used_bytes;
    for number in 0..blocks {
        bench.zero(number, 0, 32);
    }
    bench.run();
    bench.checkpoint();
    assert_eq!(bench.store.space().used_bytes, 0, "space leaks: {used} were used");
    let parts = bench.store.parts();
    assert_eq!(parts.blocks.area.allocator.used_bytes(), 0);
}

#[test]
fn acknowledged_writes_survive_crashes_at_any_effect() {
    for seed in base::seeds(0..=11) {
        run(seed, 6);
    }
}
