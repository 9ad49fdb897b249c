//! `ashlar bench`: measures the whole path of a volume or of a pool of objects; the store alone, with raw io_uring
//! and a loopback echo for comparison; or the engine of objects alone.

mod disk;
mod engine;
mod measured;
mod objects;
mod volume;

use std::path::Path;

use base::{Duration, UNIT_SIZE};
use client::Config;
use client::bench::{Load, OpKind};
use cluster::message::Failure;
use serde_json::{Value, json};

use self::engine::EngineLoad;
use self::measured::{Measured, span_of};
use self::objects::{Sizes, What};
use crate::cli::{BenchCommand, LoadArgs, ObjectOpArg, OpArg};
use crate::output::{Format, failure, print_json, size_text};

/// Runs `ashlar bench`.
pub fn run(cluster: Option<&Path>, command: BenchCommand, format: Format) -> Result<(), Failure> {
    match command {
        BenchCommand::Volume { name, load } => {
            let config = Config::find(cluster)?;
            let value = volume::run(&config, &name, checked(load)?)?.value();
            print(format, &value)?;
        }
        BenchCommand::Disk { path, load, size, commit } => {
            let value = disk_beside_raw(&path, size.0, commit.mode(), checked(load)?)?;
            print(format, &value)?;
        }
        BenchCommand::Kv { op, records, load, batch, min_size, max_size } => {
            let sizes = Sizes::of_values(min_size.0, max_size.0);
            let config = Config::find(cluster)?;
            let what = What { kind: op.into(), count: records, batch, fills_first: false };
            let value = objects::run(&config, format, &what, &sizes, load)?;
            print_objects(format, &value)?;
        }
        BenchCommand::Object { op, records, load, batch, filled, min_size, max_size } => {
            let sizes = Sizes::of_objects(min_size.0, max_size.0);
            let config = Config::find(cluster)?;
            let fills_first = op == ObjectOpArg::Remove && !filled;
            let what = What { kind: op.into(), count: records, batch, fills_first };
            let value = objects::run(&config, format, &what, &sizes, load)?;
            print_objects(format, &value)?;
        }
        BenchCommand::Engine {
            path,
            records,
            batch,
            min_size,
            max_size,
            incompressible,
            compression,
            depth,
            memory,
            seconds,
        } => {
            let sizes = Sizes::of_values(min_size.0, max_size.0);
            let load = EngineLoad {
                records: sizes.records("bench/", records, incompressible)?,
                batch,
                compression,
                depth: depth as usize,
                memory: memory.0,
                time: std::time::Duration::from_secs(u64::from(seconds)),
            };
            let scratch = scratch_in(&path)?;
            let value = engine::run(&scratch.0, &load)?;
            print_engine(format, &value)?;
        }
    }
    Ok(())
}

fn print_objects(format: Format, value: &Value) -> Result<(), Failure> {
    match format {
        Format::Json => print_json(value),
        Format::Text => print_line!("{}", objects::line(value)),
    }
}

fn print_engine(format: Format, value: &Value) -> Result<(), Failure> {
    if format == Format::Json {
        return print_json(value);
    }
    for load in ["fill", "get", "scan"] {
        print_line!("{load}  {}", objects::line(&value[load]))?;
    }
    print_line!("on disk: {}", size_text(value["disk_bytes"].as_u64().unwrap_or(0)))
}

fn checked(load: LoadArgs) -> Result<Load, Failure> {
    let block_size = load.block_size.0;
    if block_size == 0 || !block_size.is_multiple_of(UNIT_SIZE) || block_size > 32 << 20 {
        let message = format!("--block-size {} is not supported", size_text(block_size));
        return Err(failure("invalid", message, "use a multiple of 4KiB, at most 32MiB"));
    }
    let kind = match load.op {
        OpArg::Randwrite => OpKind::RandomWrite,
        OpArg::Randread => OpKind::RandomRead,
        OpArg::Write => OpKind::Write,
        OpArg::Read => OpKind::Read,
    };
    let time = std::time::Duration::from_secs(u64::from(load.seconds));
    Ok(Load { kind, block_size, depth: load.depth as usize, time })
}

/// The path of the scratch file or directory; dropping this value removes it.
struct Scratch(std::path::PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns a path in a directory for a scratch file.
fn scratch_in(directory: &Path) -> Result<Scratch, Failure> {
    if !directory.is_dir() {
        let message = format!("{} is not a directory", directory.display());
        return Err(failure("invalid", message, "choose a directory with free space"));
    }
    Ok(Scratch(directory.join(format!("ashlar-bench.{}", std::process::id()))))
}

/// Measures the store, then raw io_uring on the same file, then a loopback echo.
fn disk_beside_raw(
    directory: &Path,
    size: u64,
    commit: blockstore::CommitMode,
    load: Load,
) -> Result<Value, Failure> {
    let scratch = scratch_in(directory)?;
    let path = scratch.0.clone();
    let store = disk::run(&path, size, commit, load)?;
    let mut value = store.load.value();
    let bytes = store.load.histogram.count() * load.block_size;
    value["device_bytes_per_byte"] = json!(store.device_bytes as f64 / bytes.max(1) as f64);
    value["recovery"] = json!({
        "seconds": store.recovery.as_secs_f64(),
        "journal_bytes": store.recovered.journal_bytes,
        "blocks": store.recovered.blocks,
    });
    let cannot = |error: io::Error| {
        failure("io", error.to_string(), "use a larger --size or a smaller --depth")
    };
    let raw_load = io::bench::RawLoad {
        path: path.clone(),
        size,
        is_read: load.kind.is_read(),
        is_linear: load.kind.is_linear(),
        block_size: load.block_size,
        depth: load.depth,
        time: span_of(&load),
        durable: commit == blockstore::CommitMode::Immediate,
    };
    let raw = limit(io::bench::raw(&raw_load).map_err(cannot)?, &load);
    // Also measure the minimum cost of a journal, but not for loads that do not use it: reads and writes of
    // whole blocks.
    let journaled = (load.kind == OpKind::RandomWrite && load.block_size < 64 << 10)
        .then(|| io::bench::journaled(&raw_load))
        .transpose()
        .map_err(cannot)?;
    let echo = io::bench::echo(&echo_of(&load)).map_err(cannot)?;
    drop(scratch);
    value["raw"] = raw;
    if let Some(journaled) = journaled {
        value["raw_journaled"] = limit(journaled, &load);
    }
    value["echo"] = limit(echo, &load);
    Ok(value)
}

/// Returns the load for the loopback echo: it sends blocks in the direction of the data, and small messages
/// in the other direction.
fn echo_of(load: &Load) -> io::bench::EchoLoad {
    let block = load.block_size as usize;
    let small = block.min(UNIT_SIZE as usize);
    let (request_size, answer_size) =
        if load.kind.is_read() { (small, block) } else { (block, small) };
    let time = Duration::from_millis(500);
    io::bench::EchoLoad { request_size, answer_size, depth: load.depth, time }
}

/// Returns a baseline that was measured on this machine as JSON, in the form that is printed.
fn limit(measured: io::bench::Measured, load: &Load) -> Value {
    let io::bench::Measured { histogram, elapsed, cpu } = measured;
    let block_size = load.block_size;
    let measured = Measured { histogram, elapsed, cpu: Some(cpu), block_size };
    let mut value = measured.value();
    value["cpu_us_per_op"] = value["osd_cpu_us_per_op"].clone();
    value
}

fn print(format: Format, value: &Value) -> Result<(), Failure> {
    if format == Format::Json {
        return print_json(value);
    }
    print_line!("{}", line_of(value))?;
    if value["raw"].is_object() {
        print_line!(
            "written to the device: {:.2} bytes per byte of data; reopened in {:.3} s with {} of \
             journal and {} blocks",
            number(&value["device_bytes_per_byte"]),
            number(&value["recovery"]["seconds"]),
            size_text(value["recovery"]["journal_bytes"].as_u64().unwrap_or(0)),
            value["recovery"]["blocks"],
        )?;
        print_line!("raw io_uring  {}", line_of(&value["raw"]))?;
        if value["raw_journaled"].is_object() {
            print_line!("raw, with a journal  {}", line_of(&value["raw_journaled"]))?;
        }
        print_line!("loopback echo  {}", line_of(&value["echo"]))?;
    }
    Ok(())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn line_of(value: &Value) -> String {
    let latency = &value["latency_us"];
    format!(
        "{:.0} ops/s  {}/s  latency p50 {:.1} us  p99 {:.1} us  max {:.1} us  cpu {:.2} us/op",
        number(&value["ops_per_second"]),
        size_text(number(&value["bytes_per_second"]) as u64),
        number(&latency["p50"]),
        number(&latency["p99"]),
        number(&latency["max"]),
        number(&value["osd_cpu_us_per_op"]),
    )
}
