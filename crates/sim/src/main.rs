//! The command line of the simulator: runs seeds of its parts and reports violations.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use clap::{Parser, ValueEnum};
use rustix::time::{ClockId, clock_gettime};
use sim::outcome::{Outcome, Run};
use sim::tally::Tally;

/// In a run of at least this many seeds, every kind of fault must happen.
const SEED_COUNT_FOR_ALL_FAULTS: u64 = 500;

/// A seed with fewer operations than this fails: such a run proves too little.
const SEED_OPERATION_COUNT_MIN: u64 = 1000;

/// A seed with fewer faults than this fails.
const SEED_FAULT_COUNT_MIN: u64 = 5;

/// The maximum number of failures that are printed; further ones are only counted.
const FIND_COUNT_PRINTED: u64 = 12;

/// The number of threads; each runs whole seeds.
const THREAD_COUNT: usize = 2;

/// Simulates whole stores and clusters with faults, and checks that they keep their promises. The
/// same seed gives the same run.
#[derive(Parser)]
#[command(name = "sim")]
struct Arguments {
    /// What to simulate. Default: store and cluster.
    part: Option<Part>,
    /// Seeds A..B, both ends included. Default: the variable SEEDS, or 1..100.
    #[arg(long, conflicts_with = "seed")]
    seeds: Option<Seeds>,
    /// One seed.
    #[arg(long)]
    seed: Option<u64>,
    /// Print every event and effect; only with --seed and a part.
    #[arg(long, requires = "seed")]
    trace: bool,
    /// Switch on a planted bug by its name, or `all` one after the other, or `N/M`: each M-th one, from
    /// the N-th on. Each must be found. Needs a build with debug assertions, like the profile `ci`.
    #[arg(long)]
    planted: Option<String>,
    /// With `--planted`: look for each bug from the first seed on, not by the seed that is known to find it.
    #[arg(long, requires = "planted")]
    from_first: bool,
    /// Fail if the whole run takes more CPU minutes than this.
    #[arg(long, value_name = "MINUTES")]
    cpu_minutes_max: Option<u64>,
}

/// What is simulated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, ValueEnum)]
enum Part {
    /// One block store on one disk.
    Store,
    /// OSDs, monitors and clients, with a replicated pool.
    Cluster,
    /// The same with a pool that keeps parity.
    Parity,
}

impl Part {
    /// The parts that run by default. Pools with parity must be requested by name until their
    /// implementation is complete.
    const ALL: [Part; 2] = [Part::Store, Part::Cluster];

    fn name(self) -> &'static str {
        match self {
            Part::Store => "store",
            Part::Cluster => "cluster",
            Part::Parity => "parity",
        }
    }

    fn run(self, run: Run) -> Outcome {
        match self {
            Part::Store => sim::store::run(run),
            Part::Cluster => sim::cluster::run(run),
            Part::Parity => sim::cluster::run_parity(run),
        }
    }

    fn tally(self) -> Tally {
        match self {
            Part::Store => sim::store::tally(),
            Part::Cluster | Part::Parity => sim::cluster::tally(),
        }
    }
}

/// A range of seeds, both ends included.
#[derive(Clone, Debug)]
struct Seeds(RangeInclusive<u64>);

impl FromStr for Seeds {
    type Err = String;
    fn from_str(text: &str) -> Result<Seeds, String> {
        base::seeds::parse(text).map(Seeds)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let chosen = arguments.seed.map(|seed| seed..=seed);
    let chosen = chosen.or(arguments.seeds.map(|seeds| seeds.0));
    let seeds = chosen.unwrap_or_else(|| base::seeds(1..=100));
    let parts = arguments.part.map_or(Part::ALL.to_vec(), |part| vec![part]);
    let parts_planted = arguments.part.map_or(Part::value_variants().to_vec(), |part| vec![part]);
    quiet_panics();
    let mut good = true;
    if let Some(name) = arguments.planted {
        match look_for_planted(&name, &parts_planted, &seeds, arguments.from_first) {
            Ok(all_found) => good = all_found,
            Err(usage) => {
                eprintln!("error: {usage}");
                return ExitCode::from(2);
            }
        }
    } else {
        for part in parts {
            good &= run_part(part, seeds.clone(), arguments.trace);
        }
    }
    good &= is_cheap(arguments.cpu_minutes_max);
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the CPU time of the run. Returns whether it is within the limit.
fn is_cheap(minutes_max: Option<u64>) -> bool {
    let seconds = clock_gettime(ClockId::ProcessCPUTime).tv_sec.cast_unsigned();
    println!("CPU: {} min {:02} s", seconds / 60, seconds % 60);
    let is_cheap = minutes_max.is_none_or(|minutes| seconds <= minutes * 60);
    if !is_cheap {
        println!("FAILED: it may take {} minutes of CPU", minutes_max.unwrap_or_default());
    }
    is_cheap
}

/// Records the location of a panic instead of printing it: a panic in the code under test is reported
/// as a failure of its seed.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        PANIC_PLACE.with(|slot| slot.replace(place));
    }));
}

thread_local! {
    static PANIC_PLACE: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Runs one seed. Panics, and runs with too few operations or faults, count as failures.
fn run_one(part: Part, run: Run) -> Outcome {
    let mut outcome = run_caught(part, run);
    let (operations, faults) = (outcome.tally.operations.sum(), outcome.tally.faults.sum());
    let is_enough = operations >= SEED_OPERATION_COUNT_MIN && faults >= SEED_FAULT_COUNT_MIN;
    if outcome.result.is_ok() && !is_enough {
        outcome.result = Err(format!(
            "the simulator tried too little: {operations} operations and {faults} faults, not \
             {SEED_OPERATION_COUNT_MIN} and {SEED_FAULT_COUNT_MIN}"
        ));
    }
    outcome
}

fn run_caught(part: Part, run: Run) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| part.run(run))).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_default();
        let place = PANIC_PLACE.with(|slot| slot.borrow().clone());
        let result = Err(format!("panic at {place}: {text}"));
        Outcome { hash: 0, tally: part.tally(), result }
    })
}

/// Runs the seeds on all threads and passes each outcome to `each`, in seed order, until `each` returns
/// false.
fn run_seeds(
    part: Part,
    seeds: RangeInclusive<u64>,
    verbose: bool,
    prepare: impl Fn() + Sync,
    each: impl FnMut(u64, Outcome) -> bool + Send,
) {
    let next = AtomicU64::new(*seeds.start());
    let stop = AtomicBool::new(false);
    let waiting = Mutex::new((*seeds.start(), BTreeMap::new(), each));
    let work = || {
        prepare();
        while !stop.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed > *seeds.end() {
                break;
            }
            let outcome = run_one(part, Run { seed, verbose });
            let mut guard = waiting.lock().expect("panics are caught above");
            let (turn, outcomes, each) = &mut *guard;
            outcomes.insert(seed, outcome);
            while let Some(outcome) = outcomes.remove(turn) {
                if !stop.load(Ordering::Relaxed) && !each(*turn, outcome) {
                    stop.store(true, Ordering::Relaxed);
                }
                *turn += 1;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..THREAD_COUNT {
            scope.spawn(work);
        }
    });
}

/// Runs the seeds of a part. Returns whether there was no failure and every kind of fault happened.
fn run_part(part: Part, seeds: RangeInclusive<u64>, verbose: bool) -> bool {
    let mut total = part.tally();
    let mut finds = 0u64;
    let mut hash = 0u64;
    let seed_count = seeds.end() - seeds.start() + 1;
    run_seeds(
        part,
        seeds.clone(),
        verbose,
        || {},
        |seed, outcome| {
            total.merge(&outcome.tally);
            hash = hash.rotate_left(1) ^ outcome.hash;
            if let Err(text) = outcome.result {
                finds += 1;
                if finds > FIND_COUNT_PRINTED {
                    return true;
                }
                println!("FOUND in seed {seed}: {text}");
                println!(
                    "  repeat: cargo run --profile ci -p sim -- {} --seed {seed} --trace",
                    part.name()
                );
            }
            true
        },
    );
    print_total(part, &seeds, &total, hash);
    let missing = [total.faults.missing(), total.consequences.missing()].concat();
    let complete = seed_count < SEED_COUNT_FOR_ALL_FAULTS || missing.is_empty();
    if !complete {
        println!("FAILED: never happened in {seed_count} seeds: {}", missing.join(", "));
    }
    if finds > 0 {
        println!("FAILED: {finds} of {seed_count} seeds found something");
    }
    finds == 0 && complete
}

fn print_total(part: Part, seeds: &RangeInclusive<u64>, total: &Tally, hash: u64) {
    println!(
        "{}: seeds {}..{}: {} operations, {} faults, trace {hash:016x}",
        part.name(),
        seeds.start(),
        seeds.end(),
        total.operations.sum(),
        total.faults.sum(),
    );
    for (name, count) in total.operations.iter() {
        println!("  {count:>9} {name}");
    }
    println!("  faults:");
    for (name, count) in total.faults.iter() {
        println!("  {count:>9} {name}");
    }
    if total.consequences.iter().next().is_some() {
        println!("  consequences:");
    }
    for (name, count) in total.consequences.iter() {
        println!("  {count:>9} {name}");
    }
}

#[cfg(not(debug_assertions))]
fn look_for_planted(
    _name: &str,
    _parts: &[Part],
    _seeds: &RangeInclusive<u64>,
    _from_first: bool,
) -> Result<bool, String> {
    Err("this build has no planted bugs: \
         cargo run --profile ci -p sim -- --planted all --seeds 1..500"
        .to_string())
}

/// Returns the part that must detect a planted bug.
#[cfg(debug_assertions)]
fn part_of(bug: base::planted::Bug) -> Part {
    use base::planted::Bug;
    match bug {
        Bug::AckBeforeFlush
        | Bug::TailReplayedTwice
        | Bug::ChecksumNotCompared
        | Bug::StaleDataAccepted
        | Bug::FreedBlockReusedEarly
        | Bug::TrimBeforeCheckpoint
        | Bug::LargeDataNotAwaited
        | Bug::MoveOverwritesNewer
        | Bug::MovedPlaceReusedEarly
        | Bug::RepairInTwoSteps
        | Bug::LazyAckBeforeWrite
        | Bug::RepairWithoutMarks
        | Bug::HeadPassesPrepared
        | Bug::WriteBackBeforeMarks
        | Bug::SettleForgotten
        | Bug::PreparedPlaceNotTaken
        | Bug::MoveCopiesView
        | Bug::RolledBackPlaceReusedEarly
        | Bug::ReplacedVersionsKept
        | Bug::CopyTreatedAsNew
        | Bug::GapAccepted
        | Bug::TombstoneDroppedUnderPrepared
        | Bug::DroppedEntrySaysNothing
        | Bug::TableNotWrittenBack
        | Bug::RolledBackTableKept
        | Bug::BatchEnteredBeforeFlush
        | Bug::PendingForgottenEarly
        | Bug::ListPassesPending
        | Bug::CachedValueKept
        | Bug::TrimBeforeEngineFlush
        | Bug::EngineNotCountedAsDurable
        | Bug::EngineBehindBelieved
        | Bug::SuspectAfterReplay
        | Bug::BatchHalfDropped
        | Bug::LaterBatchKept
        | Bug::ForwardWithoutRecord => Part::Store,
        Bug::DirectReadWithoutLease | Bug::DirectReadBesideFenced => Part::Parity,
        _ => Part::Cluster,
    }
}

/// The seed that finds each planted bug: `NAME SEED`. It is tried before the others, so that finding all
/// bugs takes minutes. Runs may change: then another seed finds the bug, and its line is to be changed.
#[cfg(debug_assertions)]
const PLANTED_SEEDS: &str = include_str!("planted_seeds.txt");

/// Returns the seed that is known to find a planted bug.
#[cfg(debug_assertions)]
fn known_seed(name: &str) -> Option<u64> {
    let mut lines = PLANTED_SEEDS.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(known, _)| *known == name)?.1.parse().ok()
}

/// Runs seeds for each planted bug until one fails with the bug and passes without it, the known one first.
/// Returns whether all bugs were detected.
#[cfg(debug_assertions)]
fn look_for_planted(
    name: &str,
    parts: &[Part],
    seeds: &RangeInclusive<u64>,
    from_first: bool,
) -> Result<bool, String> {
    use base::planted::{Bug, plant};
    let number = |text: &str| text.parse::<usize>().ok();
    let share = name.split_once('/').and_then(|(first, step)| number(first).zip(number(step)));
    let is_chosen = |index: usize, known: &str| match share {
        Some((first, step)) => step > 0 && index % step == first % step,
        None => name == "all" || name == known,
    };
    let bugs = Bug::ALL.iter().copied().enumerate();
    let chosen: Vec<(&str, Bug)> =
        bugs.filter(|(index, (known, _))| is_chosen(*index, known)).map(|(_, bug)| bug).collect();
    if chosen.is_empty() {
        let names: Vec<&str> = Bug::ALL.iter().map(|(name, _)| *name).collect();
        return Err(format!("no bug is called {name:?}: all, N/M, {}", names.join(", ")));
    }
    let mut good = true;
    for (name, bug) in chosen.into_iter().filter(|(_, bug)| parts.contains(&part_of(*bug))) {
        let part = part_of(bug);
        let mut found = None;
        let known = known_seed(name).filter(|seed| seeds.contains(seed) && !from_first);
        for seeds in known.map(|seed| seed..=seed).into_iter().chain([seeds.clone()]) {
            run_seeds(
                part,
                seeds,
                false,
                || plant(Some(bug)),
                |seed, outcome| {
                    let Err(text) = outcome.result else { return true };
                    plant(None);
                    let is_clean = run_one(part, Run { seed, verbose: false }).result.is_ok();
                    plant(Some(bug));
                    found = is_clean.then_some((seed, text));
                    found.is_none()
                },
            );
            if found.is_some() {
                break;
            }
        }
        match found {
            Some((seed, text)) => {
                let line: String = text.chars().take(100).collect();
                println!("{name:<26} found by {} {seed:>4}: {line}", part.name());
                if known != Some(seed) {
                    println!("  its line in planted_seeds.txt would be: {name} {seed}");
                }
            }
            None => {
                good = false;
                println!("{name:<26} NOT FOUND");
            }
        }
    }
    Ok(good)
}
