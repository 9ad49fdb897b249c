//! `ashlar osd inspect`, `ashlar osd check` and `ashlar check PATH...`: the disks of stopped OSDs.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blockstore::{CheckOptions, CheckReport, Finding, ReadEngine, Severity, StoppedStore};
use cluster::message::Failure;
use serde_json::{Value, json};

use super::engine::{self, EngineToRead};
use super::store_file::{blocks_of, commit_name, inspect_file, open_blocks, superblock_of};
use crate::output::{Format, Progress, failure, print_json, size_text};

/// Runs `ashlar osd inspect`.
pub fn inspect(path: &Path, objects: Option<&Path>, format: Format) -> Result<(), Failure> {
    let blocks = blocks_of(path);
    let _lock = open_blocks(&blocks, true)?;
    let mut engine = engine_of(path, objects)?;
    let found = inspect_file(&blocks, false, engine.as_mut())?;
    let area = |(offset, length): (u64, u64)| json!({ "offset": offset, "bytes": length });
    let rows: Vec<Value> = found
        .recovery
        .rows
        .iter()
        .map(|(row, count)| json!({ "row": row.to_string(), "count": count }))
        .collect();
    let value = json!({
        "osd": found.identity.osd,
        "cluster": found.identity.cluster.to_string(),
        "store": found.identity.store.to_string(),
        "commit": commit_name(found.commit),
        "size_bytes": found.size_bytes,
        "sector_size": found.sector_size,
        "journal": area(found.journal),
        "journal_head": found.journal_head,
        "journal_tail": found.journal_tail,
        "checkpoints": area(found.checkpoints),
        "checkpoint_sequence": found.checkpoint_sequence,
        "data": area(found.data),
        "blocks": found.blocks,
        "tombstones": found.tombstones,
        "prepared": found.prepared,
        "notes": found.notes,
        "used_bytes": found.space.used_bytes,
        "suspect": found.suspect,
        "recovery_rows": rows,
    });
    match format {
        Format::Json => print_json(&value)?,
        Format::Text => {
            for (key, value) in value.as_object().into_iter().flatten() {
                print_line!("{:<20} {value}", key.replace('_', " "))?;
            }
        }
    }
    Ok(())
}

/// Runs `ashlar osd check`.
pub fn check(path: &Path, objects: Option<&Path>, format: Format) -> Result<(), Failure> {
    let blocks = blocks_of(path);
    let (file, size) = open_blocks(&blocks, true)?;
    let mut engine = engine_of(path, objects)?;
    if engine.is_none() {
        inspect_file(&blocks, true, None)?;
    }
    let mut progress = Progress::new(format, "checking", size);
    let mut furthest = 0;
    let mut read = |offset: u64, buffer: &mut [u8]| {
        furthest = furthest.max(offset);
        progress.set(furthest);
        file.read_exact_at(buffer, offset).map_err(|error| error.to_string())
    };
    let report = match StoppedStore::open_with(&mut read, size, engine.as_mut().map(as_reader)) {
        Ok(mut stopped) => {
            let mut report = blockstore::check_stopped(&mut stopped, CheckOptions { data: true });
            node::check_objects(&mut stopped, &mut report);
            report
        }
        Err(reason) => CheckReport::of_none(reason),
    };
    drop(progress);
    match format {
        Format::Json => {
            print_json(&json!({
                "clean": report.findings.is_empty(),
                "units_checked": report.units_checked,
                "findings": findings_value(&report.findings),
            }))?;
        }
        Format::Text => {
            for finding in &report.findings {
                print_line!("{}: {}", severity_word(finding.severity), finding.text)?;
            }
            print_line!(
                "{} compared with its checksums",
                size_text(report.units_checked * base::UNIT_SIZE)
            )?;
        }
    }
    if report.findings.iter().any(|finding| finding.severity == Severity::Error) {
        let message = format!("{} is damaged", path.display());
        return Err(failure("damaged", message, "see the findings above"));
    }
    Ok(())
}

/// Runs `ashlar check PATH... [--objects DIR]...`.
pub fn compare(paths: &[PathBuf], objects: &[PathBuf], format: Format) -> Result<(), Failure> {
    let mut named = engine::by_stores(objects)?;
    let (mut files, mut engines) = (Vec::new(), Vec::new());
    for path in paths {
        let blocks = blocks_of(path);
        // Hold the lock until the end, so that the OSD cannot start meanwhile.
        files.push(open_blocks(&blocks, true)?);
        let superblock = superblock_of(&blocks)?;
        let directory = engine::directory_of(path, named.remove(&superblock.store));
        let mut engine = engine::open_to_read(path, directory.as_deref(), &superblock)?;
        inspect_file(&blocks, false, engine.as_mut())?;
        engines.push(engine);
    }
    if let Some((_, directory)) = named.first_key_value() {
        let message = format!("{} has records of an OSD that is not listed", directory.display());
        return Err(failure("invalid", message, "list the path of its OSD, too"));
    }
    let mut readers: Vec<_> = files.iter().map(|(file, _)| reader_of(file)).collect();
    let mut stores = Vec::new();
    let opened = readers.iter_mut().zip(&files).zip(&mut engines).zip(paths);
    for (((read, (_, size)), engine), path) in opened {
        let engine = engine.as_mut().map(as_reader);
        let store = StoppedStore::open_with(read, *size, engine).map_err(|why| {
            let message = format!("{}: {why}", path.display());
            failure("not_a_store", message, "use the path given to `ashlar osd create`")
        })?;
        stores.push(store);
    }
    let identity = |store: &StoppedStore<'_>| store.store().identity();
    for (at, store) in stores.iter().enumerate() {
        let this = identity(store);
        if stores[..at].iter().any(|other| identity(other).osd == this.osd) {
            let message = format!("{} is given twice", this.osd);
            return Err(failure("invalid", message, "list each OSD once"));
        }
        if stores[..at].iter().any(|other| identity(other).cluster != this.cluster) {
            let message = format!("{} belongs to another cluster", paths[at].display());
            return Err(failure("invalid", message, "list OSDs of one cluster only"));
        }
    }
    let mut progress = None;
    let found = node::compare(&mut stores, &mut |done, total| {
        progress.get_or_insert_with(|| Progress::new(format, "comparing", total)).set(done);
    });
    drop(progress);
    print_comparison(&found, format)?;
    if found.findings.iter().any(|finding| finding.severity == Severity::Error) {
        let hint = "start the OSDs: they repair copies wherever a checksum or version shows which \
                    copy is right; see `ashlar status`";
        return Err(failure("different", "copies differ or are damaged", hint));
    }
    Ok(())
}

/// Opens the engine of the OSD at `path`, if it has one. `objects`: its directory, if it is not beside the
/// blocks.
fn engine_of(path: &Path, objects: Option<&Path>) -> Result<Option<EngineToRead>, Failure> {
    let directory = engine::directory_of(path, objects);
    engine::open_to_read(path, directory.as_deref(), &superblock_of(&blocks_of(path))?)
}

fn as_reader(engine: &mut EngineToRead) -> &mut dyn ReadEngine {
    engine
}

fn reader_of(file: &File) -> impl FnMut(u64, &mut [u8]) -> Result<(), String> {
    |offset, buffer| file.read_exact_at(buffer, offset).map_err(|error| error.to_string())
}

fn print_comparison(found: &node::Comparison, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => print_json(&json!({
            "clean": found.findings.is_empty(),
            "pgs": found.pgs,
            "blocks": found.blocks,
            "bytes_compared": found.bytes,
            "records": found.records,
            "different": found.different,
            "under_way": found.under_way,
            "strays": found.strays,
            "findings": findings_value(&found.findings),
        }))?,
        Format::Text => {
            for finding in &found.findings {
                print_line!("{}: {}", severity_word(finding.severity), finding.text)?;
            }
            let (blocks, pgs) = (found.blocks, found.pgs);
            print_line!("{blocks} blocks of {pgs} PGs, {} compared", size_text(found.bytes))?;
            if found.records > 0 {
                print_line!("{} records of objects compared", found.records)?;
            }
        }
    }
    Ok(())
}

fn severity_word(severity: Severity) -> &'static str {
    match severity {
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

fn findings_value(findings: &[Finding]) -> Value {
    let rows = findings.iter().map(
        |finding| json!({ "severity": severity_word(finding.severity), "message": finding.text }),
    );
    rows.collect()
}
