//! `ashlar object` and `ashlar kv`: commands on the objects of a pool.

mod escape;
mod kv;
mod records;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use base::{Epoch, Version};
use client::objects::{
    Assertion, Field, Listing, Name, ObjectChange, ObjectError, ObjectPool, PageEntry,
    READ_DATA_MAX, Stat, all,
};
use client::{Client, Config, block_on, block_on_for};
use cluster::message::Failure;
use cluster::stats::Table;
use objects::operation::OBJECT_SIZE_MAX;
use serde_json::{Value, json};

use crate::call::{COMMAND_TIME_MAX, table};
use crate::cli::{IfArgs, IfVersionArg, ObjectCommand, PoolArg, RangeArgs, ValueArgs};
use crate::output::{
    Column, Format, Progress, RowPages, Show, column, failure, print_bytes, print_json, print_rows,
    size_column,
};

pub use kv::kv;

const OBJECT: &[Column] = &[
    column("NAME", "name"),
    size_column("SIZE", "size_bytes"),
    column("VERSION", "version"),
    column("MODIFIED", "modified"),
    Column { title: "PARTIAL", key: "partial", show: Show::YesNo },
];

/// Of this many bytes on, commands show how far they are.
const LONG_SIZE: u64 = 8 << 20;

/// Runs `ashlar object`.
pub fn object(config: &Config, command: ObjectCommand, format: Format) -> Result<(), Failure> {
    match command {
        ObjectCommand::Put { name, file, condition, pool } => {
            let (name, assertions) = (named(&name)?, assertions_of(&condition)?);
            let data = read_file(&file)?;
            let pool = open(config, format, &pool)?;
            let (size, mut bar) = (data.len() as u64, Bar::new(format, "put"));
            let version = block_on(pool.put(&name, assertions, data, |done| bar.set(done, size)));
            drop(bar);
            let version = version.map_err(|error| failed(&name, &error))?;
            print_version(format, &name, version)?;
            Ok(())
        }
        ObjectCommand::Get { name, file, offset, length, pool } => {
            let pool = open(config, format, &pool)?;
            let name = named(&name)?;
            get(&pool, &name, (offset, length.unwrap_or(OBJECT_SIZE_MAX)), &file, format)
        }
        ObjectCommand::Stat { names, pool } => {
            let pool = open(config, format, &pool)?;
            let mut rows = Vec::new();
            for name in &names {
                let name = named(name)?;
                let stat = block_on(pool.stat(&name)).map_err(|error| failed(&name, &error))?;
                let stat = stat.ok_or_else(|| failed(&name, &ObjectError::Absent))?;
                rows.push(stat_row(format, name.bytes(), &stat));
            }
            print_rows(format, &rows.into(), OBJECT, "")?;
            Ok(())
        }
        ObjectCommand::Ls { range, delimiter, pool } => {
            let pool = open(config, format, &pool)?;
            let listing = Listing { delimiter: delimiter.as_bytes().to_vec(), ..listing(&range) };
            ls(&pool, listing, range.limit, format)
        }
        ObjectCommand::Rm { names, condition, pool } => {
            let assertions = assertions_of_version(&condition, names.len())?;
            let pool = open(config, format, &pool)?;
            remove_all(&pool, &names, &assertions)
        }
        ObjectCommand::Cp { from, to, pool } => {
            let pool = open(config, format, &pool)?;
            let (from, to) = (named(&from)?, named(&to)?);
            let mut bar = Bar::new(format, "copy");
            let copied = block_on(pool.copy(&from, &to, |done, size| bar.set(done, size)));
            drop(bar);
            let version = copied.map_err(|error| failed(&from, &error))?;
            print_version(format, &to, version)?;
            Ok(())
        }
        ObjectCommand::Setattr { name, attribute, value, condition, pool } => {
            let field = Field::Attribute(attribute.as_bytes().to_vec());
            let (value, assertions) = (value_of(value)?, assertions_of(&condition)?);
            let pool = open(config, format, &pool)?;
            set(&pool, &named(&name)?, (assertions, field, value), format)
        }
        ObjectCommand::Getattr { name, attribute, pool } => {
            let pool = open(config, format, &pool)?;
            print_field(
                &pool,
                &named(&name)?,
                Field::Attribute(attribute.as_bytes().to_vec()),
                format,
            )
        }
        ObjectCommand::Lsattr { name, pool } => {
            let pool = open(config, format, &pool)?;
            let name = named(&name)?;
            let pages = |listing| pool.attributes(&name, listing);
            records::print_fields(&name, all(), None, pages, format)
        }
        ObjectCommand::Rmattr { name, attribute, condition, pool } => {
            let assertions = assertions_of_version(&condition, 1)?;
            let pool = open(config, format, &pool)?;
            let field = Field::Attribute(attribute.as_bytes().to_vec());
            unset(&pool, &named(&name)?, &assertions, vec![field])
        }
        ObjectCommand::Records(command) => records::records(config, command, format),
    }
}

/// Opens the pool that was named, or the only one that there is.
pub fn open(config: &Config, format: Format, arg: &PoolArg) -> Result<ObjectPool, Failure> {
    // A client waits for a monitor; a command fails if none answers, and this one says why.
    let pools = table(config, format, Table::Pool)?;
    let name = match &arg.pool {
        Some(name) => name.clone(),
        None => only_pool(&pools)?,
    };
    let client = Client::start(config)?;
    let opened = block_on_for(client.open_pool(&name), COMMAND_TIME_MAX);
    opened.unwrap_or_else(|| {
        let message = format!("the monitors did not open pool {name} in time");
        Err(failure("timed_out", message, "see `ashlar status`, and try again"))
    })
}

fn only_pool(pools: &Value) -> Result<String, Failure> {
    // Objects with grouped names are those of a gateway.
    let keeps_objects = |pool: &&Value| pool["kind"] == "object" && pool["grouped"] != true;
    let mut pools = pools.as_array().into_iter().flatten().filter(keeps_objects);
    match (pools.next(), pools.next()) {
        (Some(pool), None) => Ok(pool["name"].as_str().unwrap_or_default().to_string()),
        (None, _) => Err(failure(
            "not_found",
            "there is no pool of objects",
            "create one: ashlar pool create NAME --kind object",
        )),
        (Some(_), Some(_)) => Err(failure(
            "usage",
            "there are several pools of objects",
            "name one with --pool; `ashlar pool ls` lists them",
        )),
    }
}

fn named(name: &OsStr) -> Result<Name, Failure> {
    Name::new(name.as_bytes()).ok_or_else(|| {
        failure("usage", format!("{name:?} is no name"), "a name or key has 1 to 1,088 bytes")
    })
}

fn failed(name: &Name, error: &ObjectError) -> Failure {
    let Failure { code, message, hint } = list_failed(error);
    Failure { code, message: format!("{}: {message}", escape::shown(name.bytes())), hint }
}

/// Returns what to say of a request that failed.
pub fn list_failed(error: &ObjectError) -> Failure {
    let (code, hint) = match error {
        ObjectError::Absent => ("not_found", "`ashlar object ls` lists the objects"),
        ObjectError::Changed => ("changed", "try again"),
        ObjectError::Asserted { .. } => ("asserted", "`ashlar object stat` shows the version"),
        ObjectError::Invalid { .. } => ("invalid", ""),
        ObjectError::Full => ("full", "add OSDs, or remove what is not needed"),
        ObjectError::Damaged => ("damaged", "`ashlar status` shows what is damaged"),
        ObjectError::Ended => ("ended", "try again; `ashlar pool ls` lists the pools"),
        ObjectError::Unavailable { .. } => {
            ("unavailable", "`ashlar status` shows the state of the cluster")
        }
        ObjectError::Unknown => ("unknown", "read the object: the change may have happened"),
    };
    failure(code, error.to_string(), hint)
}

/// Removes all of these objects. The first one that was not there is reported when the others are gone.
fn remove_all(
    pool: &ObjectPool,
    names: &[OsString],
    assertions: &[Assertion],
) -> Result<(), Failure> {
    let mut result = Ok(());
    for name in names {
        let name = named(name)?;
        let was_there = block_on(pool.remove(&name, assertions.to_vec()))
            .map_err(|error| failed(&name, &error))?;
        if !was_there && result.is_ok() {
            result = Err(failed(&name, &ObjectError::Absent));
        }
    }
    result
}

fn warn_of_partial(name: &Name, stat: &Stat) {
    if stat.is_partial {
        let name = escape::shown(name.bytes());
        note!("ashlar: {name} is partial: somebody is writing it, or stopped before the end");
    }
}

/// Returns what a change requires of an object.
fn assertions_of(condition: &IfArgs) -> Result<Vec<Assertion>, Failure> {
    if condition.if_absent {
        return Ok(vec![Assertion::Absent]);
    }
    version_asserted(condition.if_version.as_ref())
}

/// Returns what a removal of one of `count` things requires of its object.
fn assertions_of_version(
    condition: &IfVersionArg,
    count: usize,
) -> Result<Vec<Assertion>, Failure> {
    if condition.if_version.is_some() && count > 1 {
        let hint = "each change gives the object a new version: remove them one by one";
        return Err(failure("invalid", "--if-version is for one name only", hint));
    }
    version_asserted(condition.if_version.as_ref())
}

fn version_asserted(text: Option<&String>) -> Result<Vec<Assertion>, Failure> {
    let Some(text) = text else { return Ok(Vec::new()) };
    match version_of(text) {
        Some(version) => Ok(vec![Assertion::Version(version)]),
        None => {
            let hint = "a version is two numbers, as in 4.17; `stat` and `put` print it";
            Err(failure("usage", format!("{text:?} is no version"), hint))
        }
    }
}

fn version_of(text: &str) -> Option<Version> {
    let (epoch, counter) = text.split_once('.')?;
    Some(Version { epoch: Epoch::new(epoch.parse().ok()?), counter: counter.parse().ok()? })
}

fn print_version(format: Format, name: &Name, version: Version) -> Result<(), Failure> {
    let version = version.to_string();
    match format {
        Format::Json => {
            print_json(&merged(escape::json("name", name.bytes()), json!({ "version": version })))
        }
        Format::Text => print_line!("{version}"),
    }
}

/// Puts the fields of two JSON objects into one.
fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

fn listing(range: &RangeArgs) -> Listing {
    Listing {
        prefix: range.prefix.as_bytes().to_vec(),
        from: range.from.as_bytes().to_vec(),
        before: range.before.as_ref().map(|before| before.as_bytes().to_vec()),
        ..all()
    }
}

fn stat_row(format: Format, name: &[u8], stat: &Stat) -> Value {
    let modified = ::io::log::time_text(stat.modified);
    let fields = json!({
        "size_bytes": stat.size,
        "version": stat.version.to_string(),
        "modified": modified,
        "partial": stat.is_partial,
    });
    merged(escape::field(format, "name", name), fields)
}

fn ls(
    pool: &ObjectPool,
    listing: Listing,
    limit: Option<u64>,
    format: Format,
) -> Result<(), Failure> {
    let (mut listing, mut left) = (listing, limit.unwrap_or(u64::MAX));
    let mut pages = RowPages::new(format, OBJECT);
    while left > 0 {
        let page = block_on(pool.list(&listing, false)).map_err(|error| list_failed(&error))?;
        let mut rows = Vec::with_capacity(page.entries.len());
        for entry in page.entries.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            left -= 1;
            rows.push(match entry {
                PageEntry::Key(name, found) => stat_row(format, &name, &found.stat),
                PageEntry::CommonPrefix(prefix) => {
                    merged(escape::field(format, "name", &prefix), json!({ "common_prefix": true }))
                }
            });
        }
        pages.add(&rows)?;
        match page.next {
            Some(next) => listing.from = next,
            None => break,
        }
    }
    pages.end("no objects")?;
    Ok(())
}

fn get(
    pool: &ObjectPool,
    name: &Name,
    (offset, length): (u64, u64),
    file: &Path,
    format: Format,
) -> Result<(), Failure> {
    let failed = |error: ObjectError| failed(name, &error);
    let mut bar = Bar::new(format, "get");
    let (stat, data) = if length <= u64::from(READ_DATA_MAX) {
        block_on(pool.read(name, offset, length as u32))
    } else {
        block_on(pool.get_with(name, |done, size| bar.set(done, size)))
    }
    .map_err(failed)?
    .ok_or_else(|| failed(ObjectError::Absent))?;
    drop(bar);
    let whole = offset..offset.saturating_add(length);
    let data = match data.len() as u64 {
        _ if length <= u64::from(READ_DATA_MAX) => &data[..],
        size => &data[whole.start.min(size) as usize..whole.end.min(size) as usize],
    };
    warn_of_partial(name, &stat);
    write_file(file, data)?;
    if format == Format::Json && file != Path::new("-") {
        print_json(&stat_row(format, name.bytes(), &stat))?;
    }
    Ok(())
}

/// Shows how far long data is.
struct Bar {
    format: Format,
    title: &'static str,
    shown: Option<Progress>,
}

impl Bar {
    fn new(format: Format, title: &'static str) -> Bar {
        Bar { format, title, shown: None }
    }

    /// So many bytes are done of `size`.
    fn set(&mut self, done: u64, size: u64) {
        if size >= LONG_SIZE {
            let new = || Progress::new(self.format, self.title, size);
            self.shown.get_or_insert_with(new).set(done);
        }
    }
}

/// Returns the value of an attribute, a record or a key: that of the command line, or what a file has.
fn value_of(value: ValueArgs) -> Result<Vec<u8>, Failure> {
    match (value.value, value.file) {
        (Some(value), _) => Ok(value.into_encoded_bytes()),
        (None, Some(file)) => read_file(&file),
        (None, None) => unreachable!("one of them is required"),
    }
}

/// Reads a file, or standard input, of at most the size of the largest object.
fn read_file(file: &Path) -> Result<Vec<u8>, Failure> {
    let cannot =
        |error: io::Error| failure("io", format!("cannot read {}: {error}", file.display()), "");
    let mut data = Vec::new();
    let limit = OBJECT_SIZE_MAX + 1;
    if file == Path::new("-") {
        io::stdin().lock().take(limit).read_to_end(&mut data).map_err(cannot)?;
    } else {
        let opened = File::open(file).map_err(cannot)?;
        opened.take(limit).read_to_end(&mut data).map_err(cannot)?;
    }
    match data.len() as u64 <= OBJECT_SIZE_MAX {
        true => Ok(data),
        false => Err(failure(
            "invalid",
            format!(
                "{} has more than {} MiB, the largest object",
                file.display(),
                OBJECT_SIZE_MAX >> 20
            ),
            "cut it into several objects, or use a volume",
        )),
    }
}

fn write_file(file: &Path, data: &[u8]) -> Result<(), Failure> {
    let cannot =
        |error: io::Error| failure("io", format!("cannot write {}: {error}", file.display()), "");
    if file == Path::new("-") {
        return print_bytes(data);
    }
    // What was there stays until all is written. A pipe or a device is written as it is.
    if file.exists() && !file.is_file() {
        return std::fs::write(file, data).map_err(cannot);
    }
    let mut beside = file.as_os_str().to_owned();
    beside.push(".part");
    let beside = Path::new(&beside);
    let written = std::fs::write(beside, data).and_then(|()| std::fs::rename(beside, file));
    written.map_err(|error| {
        let _ = std::fs::remove_file(beside);
        cannot(error)
    })
}

fn set(
    pool: &ObjectPool,
    name: &Name,
    (assertions, field, value): (Vec<Assertion>, Field, Vec<u8>),
    format: Format,
) -> Result<(), Failure> {
    change(pool, name, assertions, ObjectChange::Set(field, value), format)
}

/// Changes an object. Only JSON tells its new version.
fn change(
    pool: &ObjectPool,
    name: &Name,
    assertions: Vec<Assertion>,
    change: ObjectChange,
    format: Format,
) -> Result<(), Failure> {
    let executed = block_on(pool.change_if(name, assertions, vec![change]));
    let executed = executed.map_err(|error| failed(name, &error))?;
    if format == Format::Json {
        print_version(format, name, executed.version)?;
    }
    Ok(())
}

/// Removes attributes or records. It is an error if one of them is not there.
fn unset(
    pool: &ObjectPool,
    name: &Name,
    assertions: &[Assertion],
    fields: Vec<Field>,
) -> Result<(), Failure> {
    for field in fields {
        let mut assertions = assertions.to_vec();
        let position = assertions.len();
        assertions.push(Assertion::Has(field.clone()));
        let changes = vec![ObjectChange::Unset(field.clone())];
        match block_on(pool.change_if(name, assertions, changes)) {
            Ok(_) => {}
            Err(ObjectError::Asserted { step, .. }) if step == position => {
                return Err(lacks(name, &field));
            }
            Err(error) => return Err(failed(name, &error)),
        }
    }
    Ok(())
}

fn lacks(name: &Name, field: &Field) -> Failure {
    let (what, command) = match field {
        Field::Attribute(_) => ("attribute", "`ashlar object lsattr`"),
        Field::Record(_) => ("record", "`ashlar object records ls`"),
    };
    failure(
        "not_found",
        format!("{} has no {what} {}", escape::shown(name.bytes()), escape::shown(field.key())),
        format!("{command} lists them"),
    )
}

fn print_field(
    pool: &ObjectPool,
    name: &Name,
    field: Field,
    format: Format,
) -> Result<(), Failure> {
    let values = block_on(pool.values(name, std::slice::from_ref(&field)));
    let value = values.map_err(|error| failed(name, &error))?.pop().flatten();
    let value = value.ok_or_else(|| lacks(name, &field))?;
    match format {
        Format::Json => {
            print_json(&merged(escape::json("key", field.key()), escape::json("value", &value)))?
        }
        Format::Text => write_file(Path::new("-"), &value)?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_as_it_is_printed() {
        let version = Version { epoch: Epoch::new(4), counter: 17 };
        assert_eq!(version_of(&version.to_string()), Some(version));
        for text in ["", "4", "4.", ".7", "a.b", "4.17.2", "-1.2"] {
            assert_eq!(version_of(text), None, "{text}");
        }
    }

    #[test]
    fn the_only_pool_of_objects_needs_no_name() {
        let pools = json!([
            { "name": "v", "kind": "block" },
            { "name": "index", "kind": "object", "grouped": true },
            { "name": "gateway", "kind": "object", "grouped": false },
        ]);
        assert_eq!(only_pool(&pools), Ok("gateway".to_string()));
        let pools = json!([{ "name": "v", "kind": "block" }, { "name": "kv", "kind": "object" }]);
        assert_eq!(only_pool(&pools), Ok("kv".to_string()));
        let code = |pools: Value| only_pool(&pools).unwrap_err().code;
        assert_eq!(code(json!([])), "not_found");
        let two = json!([{ "name": "a", "kind": "object" }, { "name": "b", "kind": "object" }]);
        assert_eq!(code(two), "usage");
    }
}
