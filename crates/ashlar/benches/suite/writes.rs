//! The tables of random writes of 4 KiB at depths 32 and 128. The sides of a ratio are measured in turn, and each
//! ratio is the median of those of all rounds: what disturbs the machine for longer than a turn hits both sides.

use serde_json::Value;

use super::{Cluster, SECONDS, done, median, number};

const DEPTHS: [&str; 2] = ["32", "128"];

impl Cluster {
    /// Returns what random writes to a volume take at each of the depths.
    fn writes(&self, volume: &str) -> [Value; 2] {
        DEPTHS.map(|depth| {
            let write = ["--op", "randwrite", "--depth", depth, "--seconds", SECONDS];
            self.bench(volume, &write)
        })
    }
}

fn rate(run: &Value) -> f64 {
    number(&run["ops_per_second"])
}

fn cpu(run: &Value) -> f64 {
    number(&run["osd_cpu_us_per_op"])
}

/// A round: the two sides at each of the depths.
type Round = ([Value; 2], [Value; 2]);

/// Prints a row for each depth, and the rates at depth 128 in those at depth 32.
fn print(rounds: &[Round], names: [&str; 2]) {
    let of = |pick: &dyn Fn(&Round) -> f64| median(rounds.iter().map(pick).collect());
    for (at, depth) in DEPTHS.iter().enumerate() {
        println!(
            "| {depth} | {:.0} | {:.0} | {:.2} | {:.1} | {:.1} | {:.2} |",
            of(&|round| rate(&round.0[at])),
            of(&|round| rate(&round.1[at])),
            of(&|round| rate(&round.1[at]) / rate(&round.0[at])),
            of(&|round| cpu(&round.0[at])),
            of(&|round| cpu(&round.1[at])),
            of(&|round| cpu(&round.1[at]) / cpu(&round.0[at])),
        );
    }
    println!(
        "\ndepth 128 over depth 32: {} {:.2}, {} {:.2}\n",
        names[0],
        of(&|round| rate(&round.0[1]) / rate(&round.0[0])),
        names[1],
        of(&|round| rate(&round.1[1]) / rate(&round.1[0])),
    );
}

/// Prints the table of two copies without and beside a pool with parity in which nothing lies.
pub fn beside_empty_pool(cluster: &Cluster, osd_size: &str, rounds: usize) {
    let round = |_| {
        let without = cluster.writes("bench");
        cluster.create_parity_pool();
        let beside = cluster.writes("bench");
        done(&mut cluster.command(&["pool", "rm", "parity"]));
        cluster.wait_until_healthy();
        (without, beside)
    };
    let rounds: Vec<Round> = (0..rounds).map(round).collect();
    println!(
        "| depth; two copies, OSDs of {osd_size} | ops/s | beside an empty 2+1 pool | ratio \
         | OSD CPU us/op | beside | ratio |"
    );
    println!("|---|---|---|---|---|---|---|");
    print(&rounds, ["without", "beside"]);
}

/// Prints the table of two copies and of a pool with two data parts and one parity part.
pub fn parity_beside_copies(cluster: &Cluster, rounds: usize) {
    cluster.create_parity_pool();
    cluster.create_volume("parity", "parity", "512MiB");
    let round = |_| (cluster.writes("bench"), cluster.writes("parity"));
    let rounds: Vec<Round> = (0..rounds).map(round).collect();
    println!("| depth | two copies, ops/s | 2+1 | ratio | OSD CPU us/op | 2+1 | ratio |");
    println!("|---|---|---|---|---|---|---|");
    print(&rounds, ["copies", "2+1"]);
}
