//! `ashlar bench kv` and `ashlar bench object`: the whole path of a pool of objects, with the processor time of the
//! OSDs on this host.

use std::time::Duration as StdDuration;

use base::Duration;
use client::Config;
use client::bench::{ObjectLoad, ObjectOp, ObjectsMeasured, Records, run_objects};
use client::objects::ObjectPool;
use cluster::message::Failure;
use objects::operation::{INLINE_SIZE_MAX, OBJECT_SIZE_MAX};
use serde_json::{Value, json};

use super::volume::{cpu_times, osd_pids};
use crate::cli::{KvOpArg, ObjectOpArg, RecordArgs};
use crate::object::{list_failed, open};
use crate::output::{Counter, Format, failure, size_text};

/// How long random loads run if no time is set.
const RANDOM_TIME: StdDuration = StdDuration::from_secs(10);
/// The longest prefix: names are this and a number.
const PREFIX_SIZE_MAX: usize = 512;

/// Sizes of values, in bytes, and what they may be.
pub struct Sizes {
    pub min: u64,
    pub max: u64,
    pub limit: u64,
}

impl Sizes {
    pub fn of_values(min: u64, max: u64) -> Sizes {
        Sizes { min, max, limit: INLINE_SIZE_MAX }
    }

    pub fn of_objects(min: u64, max: u64) -> Sizes {
        Sizes { min, max, limit: OBJECT_SIZE_MAX }
    }

    /// Returns the records that have these sizes.
    pub fn records(
        &self,
        prefix: &str,
        count: u64,
        incompressible: bool,
    ) -> Result<Records, Failure> {
        if self.min > self.max || self.max > self.limit {
            let (min, max) = (size_text(self.min), size_text(self.max));
            let message = format!("sizes from {min} to {max} are not supported");
            let hint =
                format!("use --min-size up to --max-size, at most {}", size_text(self.limit));
            return Err(failure("invalid", message, hint));
        }
        if prefix.len() > PREFIX_SIZE_MAX {
            let message = format!("--prefix has {} bytes", prefix.len());
            return Err(failure("invalid", message, format!("use at most {PREFIX_SIZE_MAX}")));
        }
        let (size_min, size_max, is_text) = (self.min, self.max, !incompressible);
        Ok(Records { prefix: prefix.to_string(), count, size_min, size_max, is_text })
    }
}

impl From<KvOpArg> for ObjectOp {
    fn from(op: KvOpArg) -> ObjectOp {
        match op {
            KvOpArg::Fill => ObjectOp::Bulk,
            KvOpArg::Put => ObjectOp::Put,
            KvOpArg::Get => ObjectOp::Get,
            KvOpArg::Scan => ObjectOp::Scan,
        }
    }
}

impl From<ObjectOpArg> for ObjectOp {
    fn from(op: ObjectOpArg) -> ObjectOp {
        match op {
            ObjectOpArg::Fill => ObjectOp::Bulk,
            ObjectOpArg::Remove => ObjectOp::Remove,
            ObjectOpArg::Put => ObjectOp::Put,
            ObjectOpArg::Get => ObjectOp::Get,
            ObjectOpArg::Ls => ObjectOp::List,
        }
    }
}

/// What a load does with how many records.
pub struct What {
    pub kind: ObjectOp,
    pub count: u64,
    /// Records of one request.
    pub batch: u64,
    /// Whether each record is put before the load begins.
    pub fills_first: bool,
}

/// Runs a load on a pool of objects.
pub fn run(
    config: &Config,
    format: Format,
    what: &What,
    sizes: &Sizes,
    args: RecordArgs,
) -> Result<Value, Failure> {
    let records = sizes.records(&args.prefix, what.count, args.incompressible)?;
    let is_random = matches!(what.kind, ObjectOp::Put | ObjectOp::Get);
    let time = args.seconds.map(|seconds| StdDuration::from_secs(u64::from(seconds)));
    let time = time.or(is_random.then_some(RANDOM_TIME));
    let pool = open(config, format, &args.pool)?;
    let measure = |kind: ObjectOp, time: Option<StdDuration>| {
        // A request with several values has room only for small ones.
        let is_alone = kind == ObjectOp::Bulk && sizes.max > INLINE_SIZE_MAX;
        let batch = if is_alone { 1 } else { what.batch };
        let records = records.clone();
        let load = ObjectLoad { kind, records, batch, depth: args.depth as usize, time };
        measure(config, format, &pool, &load)
    };
    let fill = what.fills_first.then(|| measure(ObjectOp::Bulk, None)).transpose()?;
    let mut value = measure(what.kind, time)?;
    if let Some(fill) = fill {
        value["fill"] = fill;
    }
    Ok(value)
}

/// Runs one load. Returns its result as JSON.
fn measure(
    config: &Config,
    format: Format,
    pool: &ObjectPool,
    load: &ObjectLoad,
) -> Result<Value, Failure> {
    let osds = osd_pids(config)?;
    let before = cpu_times(&osds);
    let count = load.time.is_none().then_some(load.records.count);
    let mut progress = Counter::new(format, "records", count);
    let measured = run_objects(pool, load, &mut |done| progress.set(done));
    drop(progress);
    let measured = measured.map_err(|error| list_failed(&error))?;
    let cpu = before.zip(cpu_times(&osds)).map(|(before, after)| after.saturating_sub(before));
    Ok(value(&measured, cpu.map(Duration::from_nanos)))
}

/// Returns the result as JSON.
pub fn value(measured: &ObjectsMeasured, cpu: Option<Duration>) -> Value {
    let ObjectsMeasured { latencies, elapsed, records, bytes, absent } = measured;
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let micros = |duration: Duration| duration.as_nanos() as f64 / 1e3;
    json!({
        "seconds": seconds,
        "operations": latencies.count(),
        "records": records,
        "absent": absent,
        "bytes": bytes,
        "ops_per_second": latencies.count() as f64 / seconds,
        "records_per_second": *records as f64 / seconds,
        "bytes_per_second": *bytes as f64 / seconds,
        "latency_us": {
            "p50": micros(latencies.quantile(0.5)),
            "p99": micros(latencies.quantile(0.99)),
            "p999": micros(latencies.quantile(0.999)),
            "max": micros(latencies.max()),
        },
        "osd_cpu_us_per_record": cpu.map(|cpu| micros(cpu) / (*records).max(1) as f64),
    })
}

/// Returns the result as a line.
pub fn line(value: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let latency = &value["latency_us"];
    let absent = match value["absent"].as_u64() {
        Some(count) if count > 0 => format!("  ({count} were not there)"),
        _ => String::new(),
    };
    format!(
        "{:.0} records/s  {}/s  latency p50 {:.1} us  p99 {:.1} us  p99.9 {:.1} us  max {:.1} us  \
         cpu {:.2} us/record{absent}",
        number(&value["records_per_second"]),
        size_text(number(&value["bytes_per_second"]) as u64),
        number(&latency["p50"]),
        number(&latency["p99"]),
        number(&latency["p999"]),
        number(&latency["max"]),
        number(&value["osd_cpu_us_per_record"]),
    )
}
