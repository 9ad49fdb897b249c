//! A pool of objects beside the pools of blocks: batches and reads of records and blocks, with the twin of the engine.
//!
//! ```text
//!   batches ─▶ Store ─▶ Twin: loses, at a crash, any suffix that it did not flush
//!     │          │
//!     ▼          ▼
//!   PgModel ◀─ reads, and what the twin has at each start
//! ```
//!
//! Checked: each read shows the state after exactly one batch, which is not older than any that was journaled when the
//! read was requested. When the store has opened, it has a prefix of the batches of each PG, with all that were answered;
//! the engine has exactly the records after it, whatever it had lost, and the store exactly the blocks. Where that cannot be, because an old copy of the
//! engine was put back, or the journal lost what the engine had, the PG is suspect. With another store's engine, or
//! without its own, the store does not open.

use std::collections::{BTreeMap, BTreeSet};

use base::{BlockSize, Epoch, Lsn, PgId, PoolId, Version};
use blockstore::{
    Answer, Batch as BatchRequest, BlockKey, EngineFound, Event, NoteKey, Page, ReadEngine,
    Request, Settings, Store, StoreError,
};
use engine::{
    Answer as Found, Change, Compression, EngineEffect, EngineEvent, Flags, Folding, Identity,
    Query, Records, Twin,
};

use super::asked::{Asked, Todo};
use super::object_blocks::{
    BlockState, BlocksPlan, check_blocks, check_list, draw_lines, forget, no_blocks, used_bytes,
};
use super::object_model::{Changes, Content, Kind, PgModel, State};
use super::world::{Item, Stage, World};
use crate::random::{Chance, Random};

/// The key that only pages change.
const PAGE_KEY: u64 = 250;
/// The object pool; pools of blocks have lower numbers.
const POOL: PoolId = match PoolId::new(9) {
    Some(pool) => pool,
    None => unreachable!(),
};

/// What the engine has in its files.
pub(super) struct Files {
    found: EngineFound,
    records: Content,
}

impl ReadEngine for Files {
    fn found(&self) -> EngineFound {
        self.found.clone()
    }

    fn walk(&mut self, _: PoolId, on_record: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), String> {
        self.records.iter().for_each(|(key, value)| on_record(key, value));
        Ok(())
    }
}

/// The plan of the object pool.
#[derive(Debug)]
pub(super) struct ObjectPlan {
    pg_count: u32,
    /// The number of keys in a PG.
    key_count: u64,
    /// The size of the largest values, in bytes.
    value_size_max: u64,
    /// Probability that a request is for this pool.
    asks: Chance,
    /// Probability that such a request is a batch.
    batches: Chance,
    /// The usual time until the engine carries out a request, in nanoseconds.
    latency: u64,
    /// Probability that the engine flushes something by itself, for each of its steps.
    flushes: Chance,
    /// Probability that its file system becomes full, for each of its steps.
    fills: Chance,
    /// Probability that it has room again, for each of its steps.
    empties: Chance,
    /// How many times as long as other operations a discard takes.
    discard_slowness: u64,
    /// Probability that it fails, for each of its steps.
    fails: Chance,
    /// Probability that a read looks only into memory.
    from_memory: Chance,
    /// Probability that the family is removed, for each request.
    removes: Chance,
    /// Probability that an old copy of the engine is put back, for each crash.
    ages: Chance,
    /// Probability that the journal loses an entry that the engine has, for each crash.
    loses: Chance,
    /// Probability that a start finds another engine or none.
    foreign: Chance,
    blocks: BlocksPlan,
    /// How far the engine may be behind, in bytes, before batches and pages wait.
    backlog_bytes_max: u64,
}

impl ObjectPlan {
    /// Draws the plan: in a quarter of the seeds there is an object pool.
    pub fn draw(random: &mut Random) -> Option<ObjectPlan> {
        let some = |random: &mut Random, chance| {
            if random.chance(Chance::percent(25)) { chance } else { Chance::NEVER }
        };
        if !random.chance(Chance::percent(25)) {
            return None;
        }
        let value_size_max = *random.pick(&[300, 5_000, 60_000]);
        let mut plan = ObjectPlan {
            pg_count: 1 << random.below(3),
            key_count: random.scale(2..if value_size_max > 5_000 { 8 } else { 60 }),
            value_size_max,
            asks: Chance::percent(*random.pick(&[20, 50, 80])),
            batches: Chance::percent(*random.pick(&[20, 50, 80])),
            latency: random.scale(1_000..2_000_000),
            flushes: Chance::percent(*random.pick(&[1, 10, 30])),
            fills: some(random, Chance(2_000)),
            fails: some(random, Chance(500)),
            from_memory: Chance::percent(random.range(0..50) as u32),
            removes: some(random, Chance::percent(1)),
            ages: some(random, Chance::percent(20)),
            loses: some(random, Chance::percent(10)),
            foreign: some(random, Chance::percent(10)),
            empties: *random.pick(&[Chance::percent(5), Chance::percent(5), Chance(1_000)]),
            discard_slowness: *random.pick(&[1, 1, 1_000]),
            blocks: BlocksPlan::draw(random),
            backlog_bytes_max: Settings::default().engine_backlog_bytes_max,
        };
        if plan.ages > Chance::NEVER && random.chance(Chance::percent(50)) {
            // An old copy may have the family of before.
            plan.removes = Chance::percent(1);
        }
        Some(plan)
    }

    /// Draws how far the engine may be behind: in half of the plans batches wait for it, often.
    pub fn draw_backlog(&mut self, random: &mut Random) {
        if random.chance(Chance::percent(50)) {
            self.backlog_bytes_max = *random.pick(&[1_000, 30_000, 300_000]);
        }
    }

    /// Returns the size of the pool's blocks.
    pub fn block_size(&self) -> BlockSize {
        self.blocks.block_size
    }
}

/// What is known of the family of the pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Absent,
    There,
    /// Its creation or removal was requested.
    Changing,
}

/// The object pool of a run.
pub(super) struct Objects {
    plan: ObjectPlan,
    random: Random,
    twin: Twin,
    identity: Identity,
    is_full: bool,
    family: Family,
    pgs: BTreeMap<PgId, PgModel>,
    /// What the engine has at this start.
    found: Content,
    /// A copy of the engine from an earlier crash.
    old: Option<Twin>,
    /// Whether an old copy was put back since the store was last open: PGs may be suspect.
    was_old: bool,
    /// The lsn of the last write that the engine got.
    written: Lsn,
    /// If the last start found the engine behind, and its mark is not flushed, the lsn of that: the next
    /// start may find it behind once more, although its PGs are believed again.
    open_mark: Option<Lsn>,
    /// Whether the journal lost an entry since then.
    was_lost: bool,
    /// PGs that were suspect when the store opened, and are not absolved.
    suspects: BTreeSet<PgId>,
    /// The number of the last batch, forward or page.
    change_last: u64,
}

/// A read of records, with what is needed to check its answer.
#[derive(Debug)]
pub(super) struct RecordsAsked {
    pg: PgId,
    queries: Vec<Query>,
    from_memory: bool,
    /// The newest version of the PG that was journaled when the read was requested.
    least: Version,
}

/// Returns a key of the PG: all of them begin with its number.
fn key(pg: PgId, number: u64) -> Vec<u8> {
    vec![pg.number as u8, number as u8]
}

fn range_of(pg: PgId) -> (Vec<u8>, Vec<u8>) {
    (vec![pg.number as u8], vec![pg.number as u8 + 1])
}

/// Whether the store found the engine behind when it opened.
fn found_behind(store: &Store) -> bool {
    store.recovery_report().rows.iter().any(|(row, _)| *row == 'h')
}

impl Objects {
    /// Creates the engine.
    pub fn new(plan: ObjectPlan, seed: u64, identity: Identity) -> Objects {
        let random = Random::new(seed, "engine");
        let twin = Twin::create(identity);
        let pgs = (0..plan.pg_count).map(|number| {
            let pg = PgId { pool: POOL, number };
            let mut model = PgModel::default();
            model.base.blocks = no_blocks(pg, &plan.blocks);
            (pg, model)
        });
        let pgs = pgs.collect();
        Objects {
            plan,
            random,
            twin,
            identity,
            is_full: false,
            family: Family::Absent,
            pgs,
            found: Content::new(),
            old: None,
            was_old: false,
            written: Lsn::ZERO,
            open_mark: None,
            was_lost: false,
            suspects: BTreeSet::new(),
            change_last: 0,
        }
    }

    /// Draws whether the superblock names the engine from the beginning.
    pub fn is_named(&mut self) -> bool {
        !self.random.chance(Chance::percent(10))
    }

    /// Draws whether the next request is for this pool.
    pub fn draws(&mut self) -> bool {
        self.family != Family::Changing && self.random.chance(self.plan.asks)
    }

    /// Whether the PG may have another batch: a new epoch begins when all of the last one have ended.
    fn may_go_on(&self, pg: PgId, epoch: Epoch) -> bool {
        let model = &self.pgs[&pg];
        model.is_settled() || model.newest().epoch == epoch
    }

    fn content(&self) -> Content {
        self.twin.records(POOL).map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    /// Opens the engine, and looks at what it has.
    pub fn start(&mut self) -> EngineFound {
        let families = self.twin.open(self.identity).expect("it is the store's engine");
        self.found = self.content();
        EngineFound { identity: self.identity, families }
    }

    /// Whether an old copy of the engine was put back, and the store has not opened since.
    pub fn was_old(&self) -> bool {
        self.was_old
    }

    /// Whether the next start may find the engine behind, although its PGs are believed: the last start
    /// did, and the mark of its records is not flushed.
    pub fn may_be_behind(&self) -> bool {
        self.open_mark.is_some()
    }

    /// Returns what the engine has in its files. Requires: its process has died.
    pub fn files(&mut self) -> Files {
        let families = self.twin.open(self.identity).expect("it is the store's engine");
        let found = EngineFound { identity: self.identity, families };
        Files { found, records: self.content() }
    }

    /// The process dies.
    pub fn crash(&mut self) {
        self.twin.crash(&mut |end| self.random.below(end));
        self.set_full(false);
    }

    fn set_full(&mut self, is_full: bool) {
        self.is_full = is_full;
        // Little space is left before and for a while after.
        if is_full {
            self.twin.set_low(true);
        }
        self.twin.set_full(is_full);
    }

    /// Returns the size of the pool's blocks.
    pub fn block_size(&self) -> BlockSize {
        self.plan.block_size()
    }

    /// Returns the states of a block from that at a version of its PG on.
    pub fn block_states(
        &self,
        pg: PgId,
        least: Version,
        key: &BlockKey,
    ) -> impl Iterator<Item = &BlockState> {
        let states = self.pgs[&pg].states().filter(move |(version, _)| *version >= least);
        states.map(|(_, state)| &state.blocks[key])
    }

    /// Returns the bytes of the places that its blocks have; `None`: it is not known.
    pub fn used_bytes(&self) -> Option<u64> {
        let blocks = self.pgs.values().flat_map(|model| model.current().blocks.values());
        used_bytes(&self.plan.blocks, blocks)
    }

    /// Returns how far the engine may be behind, in bytes.
    pub fn backlog_bytes_max(&self) -> u64 {
        self.plan.backlog_bytes_max
    }

    /// Returns how many times as long as other operations a discard takes.
    pub fn discard_slowness(&self) -> u64 {
        self.plan.discard_slowness
    }

    /// Compares what the store and the engine have when the store has opened. Returns how many batches the
    /// engine had lost, and which PGs are suspect. `is_damaged`: the journal or checkpoints were damaged.
    fn opened(&mut self, store: &Store, is_damaged: bool) -> Result<(u64, Vec<PgId>), String> {
        // Each start that ends leaves a store that knows what it lost: the next one may not lose more.
        let may_lose = std::mem::take(&mut self.was_lost) || is_damaged;
        let was_old = std::mem::take(&mut self.was_old);
        let is_behind = found_behind(store);
        let mark = is_behind.then_some(self.written);
        let was_behind = std::mem::replace(&mut self.open_mark, mark).is_some();
        let is_behind_again = was_behind && is_behind;
        let may_be_behind = was_old || may_lose || is_behind_again;
        let is_there = store.has_family(POOL);
        let is_wrong = match self.family {
            Family::There => !is_there,
            Family::Absent => is_there,
            Family::Changing => false,
        };
        if is_wrong && !may_lose {
            return Err(format!("the family was {:?}, and is there: {is_there}", self.family));
        }
        let is_gone = self.family != Family::Absent && !is_there;
        self.family = if is_there { Family::There } else { Family::Absent };
        let is_left = store.odd_families().any(|(pool, is_stray)| pool == POOL && is_stray);
        if !is_there && !is_left && !self.content().is_empty() {
            return Err("the engine has records of a family that is gone".into());
        }
        let now = if is_there { self.content() } else { Content::new() };
        let (mut lost_count, mut suspects) = (0, Vec::new());
        for (pg, model) in &mut self.pgs {
            let last = store.last_version(*pg);
            let of_pg = |content: &Content| -> Content {
                let (start, end) = range_of(*pg);
                content.range(start..end).map(|(k, v)| (k.clone(), v.clone())).collect()
            };
            let base = of_pg(&now);
            if store.is_suspect(*pg) {
                if !may_be_behind && !self.suspects.contains(pg) {
                    return Err(format!("PG {pg} is suspect, but nothing was damaged"));
                }
                suspects.push(*pg);
                let mut blocks = model.current().blocks.clone();
                forget(&mut blocks);
                let note = store.note(NoteKey::Pg(*pg)).unwrap_or_default().to_vec();
                model.restart(last, State { records: base, blocks, note });
                continue;
            }
            let state = found_state(store, *pg, model, (&base, is_gone))?;
            let found = of_pg(&self.found);
            let had = model.states().filter(|(version, _)| *version <= last);
            let had: Vec<&Content> = had.map(|(_, state)| &state.records).collect();
            let at = had.iter().rposition(|content| **content == found);
            lost_count += at.map_or(0, |at| (had.len() - 1 - at) as u64);
            let state = State { records: base, ..state.clone() };
            model.restart(last, state);
        }
        let is_known =
            |key: &BlockKey| self.pgs.values().any(|model| model.base.blocks.contains_key(key));
        check_list(store, POOL, is_known)?;
        self.suspects = suspects.iter().copied().collect();
        Ok((lost_count, suspects))
    }
}

impl World {
    fn objects(&mut self) -> &mut Objects {
        self.objects.as_mut().expect("there is an object pool")
    }

    /// Hands a request to the engine.
    pub(super) fn submit_to_engine(&mut self, effect: EngineEffect) {
        self.trace.line(format_args!("{:?} {effect:?}", self.now));
        let objects = self.objects.as_mut().expect("only then there are such effects");
        if let EngineEffect::Write { lsn, .. } = &effect {
            objects.written = *lsn;
        }
        objects.twin.submit(effect, &mut |end| objects.random.below(end));
        // It takes effect, and then its event is told.
        for _ in 0..2 {
            let objects = self.objects();
            let after = 1 + objects.random.below(objects.plan.latency * 2);
            self.schedule(after, Item::Engine);
        }
    }

    /// Lets the engine do something.
    pub(super) fn engine_step(&mut self) -> Result<(), String> {
        let is_quiet = self.stage == Stage::Quiet;
        let objects = self.objects.as_mut().expect("only then there are such items");
        let choose = &mut |end| objects.random.below(end);
        objects.twin.step(choose);
        let (flushes, fills, fails) =
            (objects.plan.flushes, objects.plan.fills, objects.plan.fails);
        if objects.random.chance(flushes) {
            objects.twin.flush_some(&mut |end| objects.random.below(end));
        }
        // A start waits for room, and nothing else happens.
        let empties = match self.stage {
            Stage::Opening => Chance::percent(5),
            _ => objects.plan.empties,
        };
        let empties_more = !objects.is_full && objects.random.chance(empties);
        if is_quiet || empties_more {
            objects.twin.set_low(false);
        }
        if is_quiet || objects.is_full && objects.random.chance(empties) {
            objects.set_full(false);
        } else if !objects.is_full && objects.random.chance(fills) {
            objects.set_full(true);
            self.tally.faults.add("engine full", 1);
        }
        let objects = self.objects.as_mut().expect("just seen");
        let fails = self.stage == Stage::Open && objects.random.chance(fails);
        if fails {
            objects.twin.fail("simulated failure of the engine");
        }
        let mut events = Vec::new();
        objects.twin.take_events(&mut events);
        let start = self.start_count;
        for event in events {
            if let (EngineEvent::Flushed { lsn, .. }, Some(objects)) = (&event, &mut self.objects) {
                objects.open_mark.take_if(|mark| *mark <= *lsn);
            }
            if matches!(event, EngineEvent::Poisoned { .. }) {
                self.tally.faults.add("engine failed", 1);
                self.damage.must_stop = true;
            }
            self.trace.line(format_args!("{:?} {event:?}", self.now));
            self.apply(Event::Engine(event))?;
            if self.start_count != start {
                return Ok(());
            }
            if self.damage.must_stop {
                return Err("the store goes on after its engine failed".into());
            }
        }
        Ok(())
    }

    /// Draws a request for the object pool, and sends it.
    pub(super) fn ask_objects(&mut self) -> Result<(), String> {
        self.asked_count += 1;
        let is_open = |asked: &Asked| {
            matches!(
                asked,
                Asked::Batch { .. } | Asked::Records(_) | Asked::ObjectBlock(_) | Asked::Unordered
            )
        };
        let has_open = self.asked.values().any(is_open);
        let epoch = self.epoch;
        let objects = self.objects();
        if objects.family == Family::Absent {
            return self.ask_family(true);
        }
        let removes = objects.plan.removes;
        if objects.random.chance(removes) && !has_open {
            return self.ask_family(false);
        }
        let number = objects.random.below(u64::from(objects.plan.pg_count)) as u32;
        let pg = PgId { pool: POOL, number };
        let batches = objects.plan.batches;
        if objects.random.chance(batches) {
            let may_go_on = objects.may_go_on(pg, epoch);
            let is_new = objects.pgs[&pg].newest() == Version::ZERO;
            let weights = if is_new { [1, 0, 0] } else { [12, 1, 3] };
            match objects.random.weighted(&weights) {
                0 if may_go_on => return self.ask_batch(pg),
                1 => return self.ask_forward(pg),
                2 => return self.ask_page(pg),
                _ => {}
            }
        }
        match objects.random.chance(Chance::percent(40)) {
            true => self.ask_block_of(pg),
            false => self.ask_records(pg),
        }
    }

    fn ask_block_of(&mut self, pg: PgId) -> Result<(), String> {
        let objects = self.objects();
        let keys: Vec<BlockKey> = objects.pgs[&pg].base.blocks.keys().copied().collect();
        let random = &mut objects.random;
        let key = *random.pick(&keys);
        let unit_count = u64::from(objects.plan.block_size().unit_count());
        let from = random.below(unit_count);
        let to = from + 1 + random.below(unit_count - from);
        self.ask_object_block(pg, key, from as u32..to as u32)
    }

    fn ask_family(&mut self, creates: bool) -> Result<(), String> {
        let objects = self.objects();
        objects.family = Family::Changing;
        let compression = *objects.random.pick(&[Compression::Lz4, Compression::Zstd]);
        let compression = Some(compression).filter(|_| creates);
        self.request(Asked::Family { creates }, Request::Family { pool: POOL, compression })
    }

    pub(super) fn family_answered(&mut self, creates: bool) {
        self.tally.consequences.add("family removed", u64::from(!creates));
        let objects = self.objects();
        objects.family = if creates { Family::There } else { Family::Absent };
        for model in objects.pgs.values_mut().filter(|_| !creates) {
            // Only the records are the family's.
            let (version, state) = (model.newest(), model.current().clone());
            model.restart(version, State { records: Content::new(), ..state });
        }
    }

    fn ask_batch(&mut self, pg: PgId) -> Result<(), String> {
        self.tally.operations.add("batch", 1);
        let epoch = self.epoch;
        let objects = self.objects();
        let after = objects.pgs[&pg].newest();
        let counter = if after.epoch == epoch { after.counter } else { 0 };
        if after.epoch == epoch && objects.random.chance(Chance::percent(2)) {
            let wrong = Version { epoch, counter: counter + 1 };
            return self.ask_unordered(pg, wrong);
        }
        let version = Version { epoch, counter: counter + objects.random.range(1..5) };
        let records = self.draw_records(pg, version);
        self.ask_change((pg, Kind::Batch), (after, version), records)
    }

    /// Brings the PG to a version of its last epoch, as peering does: then a new epoch begins.
    fn ask_forward(&mut self, pg: PgId) -> Result<(), String> {
        self.tally.operations.add("forward", 1);
        let objects = self.objects();
        let after = objects.pgs[&pg].newest();
        let version = Version { counter: after.counter + objects.random.range(1..5), ..after };
        let records = self.draw_records(pg, version);
        self.epoch = self.epoch.next();
        self.ask_change((pg, Kind::Forward), (after, version), records)
    }

    /// Makes a range of records, and some blocks, something else.
    fn ask_page(&mut self, pg: PgId) -> Result<(), String> {
        self.tally.operations.add("page", 1);
        let mark = self.objects().pgs[&pg].newest();
        let mut records = self.draw_records(pg, mark);
        let objects = self.objects();
        let start = key(pg, objects.random.below(objects.plan.key_count));
        let end = vec![start[0], start[1] + 1 + objects.random.below(8) as u8];
        records.insert(0, Change::DeleteRange { start, end });
        // No other change has this key: so it tells which pages are there.
        let value = objects.change_last.to_le_bytes().to_vec();
        records.push(Change::Put { key: key(pg, PAGE_KEY), value });
        self.ask_change((pg, Kind::Page), (Version { counter: 0, ..mark }, mark), records)
    }

    /// Draws changes of records; values tell the version.
    fn draw_records(&mut self, pg: PgId, version: Version) -> Vec<Change> {
        let Objects { random, plan, .. } = self.objects();
        let count = random.below(7);
        let draw = |index: u64| {
            let at = key(pg, random.below(plan.key_count));
            match random.weighted(&[6, 2, 1]) {
                0 => {
                    let size = *random.pick(&[16, 16, 100, 300, plan.value_size_max]);
                    let size = random.range(16..size + 1) as usize;
                    let mut value = vec![index as u8; size];
                    value[..4].copy_from_slice(&version.epoch.get().to_le_bytes());
                    value[4..12].copy_from_slice(&version.counter.to_le_bytes());
                    Change::Put { key: at, value }
                }
                1 => Change::Delete { key: at },
                _ => {
                    let end = vec![at[0], at[1] + 1 + random.below(4) as u8];
                    Change::DeleteRange { start: at, end }
                }
            }
        };
        (0..count).map(draw).collect()
    }

    /// Asks for a batch, forward or page with these records, and blocks that are drawn.
    fn ask_change(
        &mut self,
        (pg, kind): (PgId, Kind),
        (after, version): (Version, Version),
        records: Vec<Change>,
    ) -> Result<(), String> {
        let is_full = self.store().space().full && self.work.chance(Chance::percent(90));
        let objects = self.objects.as_mut().expect("there is an object pool");
        objects.change_last += 1;
        let number = objects.change_last;
        let block_size = objects.plan.block_size();
        let model = objects.pgs.get_mut(&pg).expect("it was drawn");
        let blocks = match is_full || version.counter == 0 {
            true => Vec::new(),
            false => {
                let states = (&model.current().blocks, number);
                draw_lines(&mut objects.random, &objects.plan.blocks, (after, version), states)
            }
        };
        let note = (kind == Kind::Forward).then(|| number.to_le_bytes().to_vec());
        let lines = blocks.iter().map(|(line, _)| line.clone()).collect();
        let changes =
            Changes { records: records.clone(), lines, value: number, note: note.clone() };
        model.push(number, kind, version, changes);
        let note = note.map(|note| (NoteKey::Pg(pg), note));
        let goes = kind == Kind::Page && objects.random.chance(Chance::percent(10));
        let request = match kind {
            Kind::Page => {
                // Of a PG that goes; the store makes no difference.
                let version = if goes { Version::ZERO } else { version };
                Request::Page(Page { pg, block_size, version, records, blocks })
            }
            _ => Request::Batch(BatchRequest {
                pg,
                block_size,
                after,
                version,
                records,
                blocks,
                note,
            }),
        };
        self.request(Asked::Batch { pg, number }, request)
    }

    fn ask_unordered(&mut self, pg: PgId, after: Version) -> Result<(), String> {
        let version = Version { counter: after.counter + 1, ..after };
        let records = vec![Change::Delete { key: key(pg, 0) }];
        let (block_size, blocks, note) = (self.objects().block_size(), Vec::new(), None);
        let request =
            Request::Batch(BatchRequest { pg, block_size, after, version, records, blocks, note });
        self.request(Asked::Unordered, request)
    }

    fn ask_records(&mut self, pg: PgId) -> Result<(), String> {
        let objects = self.objects();
        let (key_count, from_memory) = (objects.plan.key_count, objects.plan.from_memory);
        let random = &mut objects.random;
        let from_memory = random.chance(from_memory);
        let queries = (0..random.range(1..4)).map(|_| {
            let (start, end) = range_of(pg);
            match random.below(4) {
                0 => Query::Get { key: key(pg, random.below(key_count)) },
                1 => Query::Scan { start, end: Some(end), count_max: 1000, size_max: 1 << 20 },
                2 => {
                    // The first change of a batch stands for all keys of the PG, and so does the fifth.
                    let (prefix_size, passed) = (0, vec![Flags { at: 12, mask: 3 }]);
                    let folding = Folding { prefix_size, delimiter: start, passed };
                    let start = key(pg, random.below(key_count));
                    let (end, count_max) = (Some(end), random.range(1..20) as usize);
                    Query::List { start, end, count_max, size_max: 1 << 20, folding }
                }
                _ => {
                    let start = key(pg, random.below(key_count));
                    let end = Some(key(pg, random.below(key_count) + 1)).filter(|end| start < *end);
                    let end = end.or(Some(range_of(pg).1));
                    let count_max = random.range(1..6) as usize;
                    let size_max = random.below(400) as usize;
                    Query::Scan { start, end, count_max, size_max }
                }
            }
        });
        let queries = queries.collect();
        self.request_records(pg, queries, from_memory)
    }

    fn request_records(
        &mut self,
        pg: PgId,
        queries: Vec<Query>,
        from_memory: bool,
    ) -> Result<(), String> {
        let least = self.store().last_version(pg);
        let asked = RecordsAsked { pg, queries: queries.clone(), from_memory, least };
        self.tally.operations.add("records read", 1);
        // What changes read does not fill the cache.
        let caches = self.objects().random.chance(Chance::percent(70));
        let request = Request::Records { pg, queries, from_memory, caches };
        self.request(Asked::Records(asked), request)
    }

    /// Reads all records of all PGs.
    pub(super) fn audit_objects(&mut self) -> Result<(), String> {
        let Some(objects) = &self.objects else { return Ok(()) };
        if objects.family == Family::Absent {
            return Ok(());
        }
        let pgs: Vec<PgId> = objects.pgs.keys().copied().collect();
        for pg in pgs {
            let (start, end) = range_of(pg);
            let all =
                Query::Scan { start, end: Some(end), count_max: usize::MAX, size_max: usize::MAX };
            self.request_records(pg, vec![all], false)?;
        }
        self.audit_blocks()
    }

    /// Reads all blocks of all PGs.
    fn audit_blocks(&mut self) -> Result<(), String> {
        let objects = self.objects();
        let unit_count = objects.plan.block_size().unit_count();
        let of_pg = |(pg, model): (&PgId, &PgModel)| {
            model.base.blocks.keys().map(|key| (*pg, *key)).collect::<Vec<_>>()
        };
        for (pg, key) in objects.pgs.iter().flat_map(of_pg).collect::<Vec<_>>() {
            self.ask_object_block(pg, key, 0..unit_count)?;
        }
        Ok(())
    }

    pub(super) fn batch_answered(&mut self, pg: PgId, number: u64) -> Result<(), String> {
        let model = self.objects().pgs.get_mut(&pg).expect("it was asked for");
        model.answered(number).map_err(|text| format!("PG {pg}: {text}"))
    }

    pub(super) fn batch_refused(&mut self, pg: PgId, number: u64) -> Result<(), String> {
        let model = self.objects().pgs.get_mut(&pg).expect("it was asked for");
        let refused = model.refused(number).map_err(|text| format!("PG {pg}: {text}"))?;
        if refused == Some(Kind::Batch) {
            // The PG goes on in a new epoch.
            self.epoch = self.epoch.next();
        }
        Ok(())
    }

    pub(super) fn records_answered(
        &mut self,
        asked: &RecordsAsked,
        result: Result<Answer, StoreError>,
    ) -> Result<(), String> {
        let (version, answers) = match result {
            Ok(Answer::Records { version, answers }) => (version, answers),
            Err(StoreError::WouldBlock) if asked.from_memory => {
                self.tally.consequences.add("records not in memory", 1);
                return Ok(());
            }
            result => return Err(format!("{asked:?} is answered with {result:?}")),
        };
        let RecordsAsked { pg, queries, least, .. } = asked;
        if version < *least {
            return Err(format!("a read of PG {pg} shows {version}, but had to show {least}"));
        }
        let model = &self.objects.as_ref().expect("it was asked for").pgs[pg];
        let mut error = "no batch ends there".to_owned();
        // A page has the version of the batch before it.
        for (_, state) in model.states().filter(|(of, _)| *of == version) {
            let mut compared = queries.iter().zip(&answers);
            match compared
                .try_for_each(|(query, answer)| check_answer(&state.records, query, answer))
            {
                Ok(()) => return Ok(()),
                Err(text) => error = text,
            }
        }
        Err(format!("a read of PG {pg} at {version}: {error}"))
    }

    /// Compares the object pool with the restarted store.
    pub(super) fn objects_opened(&mut self) -> Result<(), String> {
        let (Some(objects), Some(store)) = (&mut self.objects, &self.store) else { return Ok(()) };
        let (lost, suspects) = objects.opened(store, self.damage.deep)?;
        let is_behind = found_behind(store);
        self.tally.faults.add("batches lost by the engine", lost);
        self.tally.faults.add("engine behind", u64::from(is_behind));
        self.todo.extend(suspects.into_iter().map(Todo::Absolve));
        Ok(())
    }

    pub(super) fn objects_absolved(&mut self, pg: PgId) {
        if let Some(objects) = &mut self.objects {
            objects.suspects.remove(&pg);
        }
    }

    /// After a crash: puts back an old copy of the engine, or damages an entry of the journal that the engine
    /// has.
    pub(super) fn break_objects(&mut self) {
        let Some(objects) = &mut self.objects else { return };
        if self.stage == Stage::Quiet {
            return;
        }
        let random = &mut objects.random;
        let (ages, loses) = (random.chance(objects.plan.ages), random.chance(objects.plan.loses));
        let is_kept = random.chance(Chance::percent(30));
        if ages && let Some(old) = objects.old.take() {
            // It may come once more.
            objects.old = Some(old.copy()).filter(|_| random.chance(Chance::percent(50)));
            objects.twin = old;
            objects.was_old = true;
            self.trace.line(format_args!("{:?} old engine", self.now));
            self.tally.faults.add("old engine", 1);
            return;
        }
        if is_kept && objects.plan.ages > Chance::NEVER {
            objects.old = Some(objects.twin.copy());
        }
        let families = objects.twin.open(objects.identity).expect("it is its own identity");
        let lsn = families.iter().map(|found| found.lsn).max().unwrap_or(Lsn::ZERO);
        let kept = self.store.as_ref().and_then(Store::journal_kept);
        let is_there = kept.is_some_and(|(from, to)| from <= lsn && lsn < to);
        if !loses || !is_there || lsn == Lsn::ZERO {
            return;
        }
        let journal = &self.damage.journal;
        let place = journal.start + lsn.get() % (journal.end - journal.start);
        self.trace.line(format_args!("{:?} lost entry {lsn}", self.now));
        self.tally.faults.add("entry lost that the engine has", 1);
        // In the field with the lsn.
        self.disk.rot(place + 17, 1);
        (self.damage.happened, self.damage.deep) = (true, true);
        self.objects().was_lost = true;
    }

    /// At a start: the engine may be missing, or another one.
    pub(super) fn change_engine(&mut self, engine: &mut Option<EngineFound>) {
        let Some(objects) = &mut self.objects else { return };
        let is_foreign = objects.random.chance(objects.plan.foreign);
        // Without a family the store may never have had an engine.
        let found = engine.as_mut().filter(|found| is_foreign && !found.families.is_empty());
        let Some(found) = found else { return };
        match objects.random.below(3) {
            0 => *engine = None,
            1 => found.identity.engine += 1,
            _ => found.identity.store += 1,
        }
        self.is_foreign = true;
        self.tally.faults.add("foreign engine", 1);
    }
}

/// Returns the state of the PG that the restarted store has. `records`: what the engine has, and whether that
/// says nothing.
fn found_state<'a>(
    store: &Store,
    pg: PgId,
    model: &'a PgModel,
    (records, is_gone): (&Content, bool),
) -> Result<&'a State, String> {
    let last = store.last_version(pg);
    let note = store.note(NoteKey::Pg(pg)).unwrap_or_default();
    let least = model.possible().next().expect("there is always one").0;
    if last < least {
        return Err(format!("PG {pg} was answered {least}, and has {last}"));
    }
    let mut error = "which ends no batch".to_owned();
    for (_, state) in model.possible().filter(|(version, _)| *version == last) {
        let found = text_of(records.iter().map(|(k, v)| (&k[..], &v[..])));
        error = match check_blocks(store, &state.blocks) {
            Err(text) => text,
            Ok(()) if state.records != *records && !is_gone => format!("but its engine {found}"),
            Ok(()) if state.note != note => format!("but the note {note:?}, not {:?}", state.note),
            Ok(()) => return Ok(state),
        };
    }
    Err(format!("PG {pg} has {last}, {error}"))
}

/// Returns keys and the beginnings of values, which tell their version.
fn text_of<'a>(records: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> String {
    let text = records.map(|(key, value)| {
        let version = value.get(..13).unwrap_or_default();
        format!("{key:?}: {version:?} ({} bytes)", value.len())
    });
    text.collect::<Vec<String>>().join(", ")
}

/// Compares an answer with the content of the PG.
fn check_answer(content: &Content, query: &Query, answer: &Found) -> Result<(), String> {
    match (query, answer) {
        (Query::Get { key }, Found::Value(value)) if value.as_ref() == content.get(key) => Ok(()),
        (Query::Scan { start, end: Some(end), .. }, Found::Records { records, more }) => {
            let mut expected = content.range(start.clone()..end.clone());
            for (key, value) in records.iter() {
                let found = (key, value);
                let next = expected.next().map(|(key, value)| (&key[..], &value[..]));
                if next != Some(found) {
                    let (found, next) = (text_of([found].into_iter()), text_of(next.into_iter()));
                    return Err(format!("{query:?} shows {found} in place of {next}"));
                }
            }
            match expected.next() {
                Some(_) if records.is_empty() || !more => {
                    let records = text_of(records.iter());
                    Err(format!("{query:?} shows {records}, more: {more}: not all"))
                }
                _ => Ok(()),
            }
        }
        (Query::List { start, end: Some(end), folding, .. }, Found::Records { records, more }) => {
            let expected = content.range(start.clone()..end.clone());
            check_folded(expected, folding, (records, *more))
                .map_err(|text| format!("{query:?} {text}"))
        }
        _ => Err(format!("{query:?} is answered with {answer:?}")),
    }
}

/// Compares a list with the records of its range: it may lack those for which others stand that it has.
fn check_folded<'a>(
    expected: impl Iterator<Item = (&'a Vec<u8>, &'a Vec<u8>)>,
    folding: &Folding,
    (records, more): (&Records, bool),
) -> Result<(), String> {
    let mut expected = expected.peekable();
    let mut passed: Option<&[u8]> = None;
    let is_passed =
        |key: &[u8], passed: Option<&[u8]>| passed.is_some_and(|it| key.starts_with(it));
    for (key, value) in records.iter() {
        while expected.next_if(|(it, _)| &it[..] < key && is_passed(it, passed)).is_some() {}
        let next = expected.next().map(|(key, value)| (&key[..], &value[..]));
        if next != Some((key, value)) {
            let found = text_of([(key, value)].into_iter());
            return Err(format!("shows {found} in place of {}", text_of(next.into_iter())));
        }
        passed = folding.common_prefix(key, value).or(passed);
    }
    match expected.find(|(key, _)| !is_passed(key, passed)) {
        Some(_) if records.is_empty() || !more => {
            Err(format!("shows {}, more: {more}: not all", text_of(records.iter())))
        }
        _ => Ok(()),
    }
}
