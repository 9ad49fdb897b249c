//! `ashlar bench volume`: the whole path, with the processor time of the OSDs on this host.

use client::Config;
use client::bench::Load;
use cluster::message::{Command, Failure};

use super::measured::Measured;
use crate::call::COMMAND_TIME_MAX;

/// Runs the load on a volume.
pub fn run(config: &Config, name: &str, load: Load) -> Result<Measured, Failure> {
    let osds = osd_pids(config)?;
    let before = cpu_times(&osds);
    let measured = client::bench::run(config, name, &load)?;
    let cpu = match (before, cpu_times(&osds)) {
        (Some(before), Some(after)) => {
            Some(base::Duration::from_nanos(after.saturating_sub(before)))
        }
        _ => None,
    };
    Ok(Measured {
        histogram: measured.latencies,
        elapsed: measured.elapsed,
        cpu,
        block_size: load.block_size,
    })
}

/// Returns the process ids of the OSDs that are up.
pub fn osd_pids(config: &Config) -> Result<Vec<u64>, Failure> {
    let osds = client::call(config, Command::OsdList, COMMAND_TIME_MAX)?;
    let rows = osds.as_array().into_iter().flatten();
    Ok(rows.filter(|row| row["up"] == true).filter_map(|row| row["pid"].as_u64()).collect())
}

/// Returns the total processor time of these processes in nanoseconds, including io_uring worker threads;
/// `None` if one of the processes is not on this host.
pub fn cpu_times(pids: &[u64]) -> Option<u64> {
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    let mut ticks = 0;
    for pid in pids {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The process name, in parentheses, may contain spaces; utime and stime are the 14th and 15th
        // fields.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        ticks += fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    }
    Some(ticks * (1_000_000_000 / ticks_per_second))
}
