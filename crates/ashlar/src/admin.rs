//! Operator commands that a monitor carries out: each sends a command, then prints the answer.

use base::{Choice, ImageId, MonitorId, OsdId, PgId, Scheme};
use client::Config;
use cluster::map::FailureDomain;
use cluster::message::{Command, Failure, ObjectOptions};
use cluster::stats::Table;
use format::engine::Compression;
use serde_json::{Value, json};

use crate::call::{call, table};
use crate::cli::{
    ConfigCommand, DomainArg, KindArg, PgCommand, PoolCommand, StateCommand, VolumeCommand,
};
use crate::output::{
    Column, Format, Show, column, exact_size_column, failure, print_json, print_object, print_rows,
    rate_column, size_column,
};
use crate::status::{fullness_text, used_percent};

const VOLUME: &[Column] = &[
    column("NAME", "name"),
    column("ID", "id"),
    column("POOL", "pool"),
    exact_size_column("SIZE", "size_bytes"),
    size_column("USED", "used_bytes"),
    column("ATTACHED", "attached"),
    rate_column("READ", "io.read"),
    rate_column("WRITE", "io.write"),
];

const VOLUME_INFO: &[Column] = &[
    column("NAME", "name"),
    column("ID", "id"),
    column("POOL", "pool"),
    exact_size_column("SIZE", "size_bytes"),
    size_column("USED", "used_bytes"),
    column("LOCK", "lock"),
    column("SESSIONS", "sessions"),
    work_column("READ", "io.read"),
    work_column("WRITE", "io.write"),
    work_column("TRIM", "io.trim"),
    rate_column("RECOVERY", "io.recovered"),
    column("I/O ERRORS", "io.failed"),
];

const VOLUME_MADE: &[Column] = &[
    column("NAME", "name"),
    column("ID", "id"),
    column("POOL", "pool"),
    exact_size_column("SIZE", "size_bytes"),
    column("ATTACHED", "attached"),
];

const POOL: &[Column] = &[
    column("NAME", "name"),
    column("ID", "id"),
    column("KIND", "kind"),
    column("SCHEME", "scheme"),
    column("MIN", "min_size"),
    column("PGS", "pg_count"),
    column("DOMAIN", "failure_domain"),
    size_column("BLOCK", "block_size"),
];

/// The columns that only a pool of objects has.
const POOL_OBJECTS: &[Column] = &[column("SHARDS", "shards"), column("COMPRESSION", "compression")];

/// The usage columns of `pool ls`.
const POOL_USE: &[Column] = &[
    size_column("USED", "used_bytes"),
    size_column("AVAILABLE", "available_bytes"),
    rate_column("READ", "io.read"),
    rate_column("WRITE", "io.write"),
    rate_column("RECOVERY", "io.recovered"),
];

const PG: &[Column] = &[
    column("PG", "pg"),
    column("STATE", "state"),
    column("EPOCH", "epoch"),
    column("PRIMARY", "primary"),
    column("ACTING", "acting"),
    column("LEARNERS", "learners"),
    column("WHY", "why"),
];

const PG_DESCRIBED: &[Column] = &[
    column("PG", "pg"),
    column("STATE", "state"),
    column("EPOCH", "epoch"),
    column("PRIMARY", "primary"),
    column("ACTING", "acting"),
    column("LEARNERS", "learners"),
    column("WHY", "why"),
    column("SCRUB", "scrub.state"),
    column("DAMAGE", "damage"),
];

const OSD: &[Column] = &[
    column("ID", "id"),
    Column { title: "UP", key: "up", show: Show::YesNo },
    Column { title: "IN", key: "in", show: Show::YesNo },
    size_column("SIZE", "size_bytes"),
    size_column("USED", "used_bytes"),
    column("FULL", "full"),
    rate_column("READ", "io.read"),
    rate_column("STORED", "io.stored"),
    rate_column("RECOVERY", "io.recovered"),
];

/// The column of `osd ls` that only OSDs with an engine have: how many of the records that clients read came
/// from the cache of values.
const OSD_ENGINE: &[Column] = &[column("CACHE HITS", "cache")];

/// The last columns of `osd ls`.
const OSD_PLACE: &[Column] =
    &[column("HOST", "host"), column("PID", "pid"), column("PATH", "path")];

const MONITOR: &[Column] = &[
    column("ID", "id"),
    Column { title: "UP", key: "up", show: Show::YesNo },
    Column { title: "LEADS", key: "leads", show: Show::YesNo },
    column("PID", "pid"),
    column("ADDRESSES", "addresses"),
];

const TREE: &[Column] = &[
    column("NAME", "name"),
    column("TYPE", "type"),
    size_column("WEIGHT", "weight_bytes"),
    column("UP", "up"),
    column("IN", "in"),
    size_column("SIZE", "size_bytes"),
    size_column("USED", "used_bytes"),
    column("PGS", "pgs"),
];

const fn work_column(title: &'static str, key: &'static str) -> Column {
    Column { title, key, show: Show::Work }
}

/// Runs `ashlar volume`.
pub fn volume(config: &Config, command: VolumeCommand, format: Format) -> Result<(), Failure> {
    match command {
        VolumeCommand::Create { name, size, pool } => {
            let create = Command::VolumeCreate { gateway: false, volume: name, size: size.0, pool };
            print_object(format, &call(config, format, create)?, VOLUME_MADE)?;
        }
        VolumeCommand::Ls { all } => {
            let empty = "no volumes; create one: ashlar volume create disk1 --size 10GiB";
            let mut rows = table(config, format, Table::Volume)?;
            rows.as_array_mut().into_iter().for_each(|rows| {
                rows.retain(|row| all || row["gateway"] != true);
            });
            print_rows(format, &rows, VOLUME, empty)?;
        }
        VolumeCommand::Info { name } => {
            let mut info = call(config, format, Command::VolumeInfo { volume: name })?;
            if format == Format::Text {
                let (lock, sessions) = (lock_text(&info), session_texts(&info));
                (info["lock"], info["sessions"]) = (json!(lock), json!(sessions));
            }
            print_object(format, &info, VOLUME_INFO)?;
        }
        VolumeCommand::Resize { name, size, shrink } => {
            let resize = Command::VolumeResize { volume: name, size: size.0, shrink };
            print_object(format, &call(config, format, resize)?, VOLUME_MADE)?;
        }
        VolumeCommand::Unlock { name, yes } => {
            let unlock = Command::VolumeUnlock { volume: name.clone(), accepted: yes };
            let answer = call(config, format, unlock)?;
            let session = &answer["session"];
            let text = format!("{name} is unlocked; session {session} can no longer write");
            print_done(format, &answer, &text)?;
        }
        VolumeCommand::Rm { name } => {
            let answer = call(
                config,
                format,
                Command::VolumeRemove { gateway: false, volume: name.clone() },
            )?;
            print_done(format, &answer, &format!("{name} is deleted; its space is being freed"))?;
        }
    }
    Ok(())
}

/// Describes in text who holds the lock of a volume and what that means.
fn lock_text(info: &Value) -> String {
    let lock = &info["lock"];
    if lock.is_null() {
        return "not locked".to_string();
    }
    let mut sessions = info["sessions"].as_array().into_iter().flatten();
    let meaning = match sessions.any(|session| session["id"] == lock["session"]) {
        false => "ended; the next client that attaches gets the lock",
        true if lock["lazy"] == true => {
            "writes are durable once flushed; no other client can attach the volume"
        }
        true => "writes are durable once acknowledged; other clients can attach the volume",
    };
    format!("session {}: {meaning}", lock["session"])
}

/// Describes in text the clients that have a volume attached, one line each.
fn session_texts(info: &Value) -> Vec<String> {
    let text = |session: &Value| {
        let mut text = session["id"].to_string();
        let mut add = |name: &str, value: &Value| match value {
            Value::Null => {}
            Value::String(word) => text.push_str(&format!(" {name} {word}")),
            value => text.push_str(&format!(" {name} {value}")),
        };
        add("of", &session["client"]);
        add("process", &session["pid"]);
        add("on", &session["host"]);
        add("at", &session["address"]);
        if session["pid"].is_null() {
            text.push_str(" (client not connected)");
        }
        if session["read_only"] == true {
            text.push_str(" (read-only)");
        }
        text
    };
    match info["sessions"].as_array() {
        Some(sessions) if !sessions.is_empty() => sessions.iter().map(text).collect(),
        _ => vec!["none".to_string()],
    }
}

/// Runs `ashlar pool`.
pub fn pool(config: &Config, command: PoolCommand, format: Format) -> Result<(), Failure> {
    match command {
        PoolCommand::Create {
            name,
            replicas,
            xor,
            ec,
            min_size,
            pgs,
            failure_domain,
            block_size,
            kind,
            shards,
            grouped,
            compression,
        } => {
            let objects = objects_of(kind, shards, grouped, compression)?;
            let is_of_objects = objects.is_some();
            let copies = replicas.map(|count| Scheme::Copies { count });
            let create = Command::PoolCreate {
                pool: name,
                scheme: copies.or(xor).or(ec),
                min_size,
                pg_count: pgs,
                failure_domain: failure_domain.map(domain_of),
                block_size,
                objects,
            };
            let pool = call(config, format, create)?;
            if is_of_objects && pool["kind"] != "object" {
                return Err(not_of_objects(&pool));
            }
            print_pool(format, &pool)?;
            if let (Format::Text, Some(warning)) = (format, pool["warning"].as_str()) {
                note!("warning: {warning}");
            }
        }
        PoolCommand::Ls => {
            let empty = "no pools; create one: ashlar pool create fast --failure-domain osd";
            print_rows(
                format,
                &table(config, format, Table::Pool)?,
                &[POOL, POOL_USE].concat(),
                empty,
            )?;
        }
        PoolCommand::Set { name, rename, ec, min_size, failure_domain } => {
            let failure_domain = failure_domain.map(domain_of);
            let set = Command::PoolSet { pool: name, rename, scheme: ec, min_size, failure_domain };
            print_pool(format, &call(config, format, set)?)?;
        }
        PoolCommand::Scrub { name, deep } => {
            let answer = call(config, format, Command::PoolScrub { pool: name, deep })?;
            print_scrub(format, &answer)?;
        }
        PoolCommand::Rm { name, yes } => {
            let remove = Command::PoolRemove { pool: name.clone(), accepted: yes };
            let answer = call(config, format, remove)?;
            print_done(
                format,
                &answer,
                &format!("{name} is deleted; the OSDs are removing its remaining data"),
            )?;
        }
    }
    Ok(())
}

fn print_pool(format: Format, pool: &Value) -> Result<(), Failure> {
    let of_objects = if pool["kind"] == "object" { POOL_OBJECTS } else { &[] };
    print_object(format, pool, &[POOL, of_objects].concat())
}

/// Returns what to say when a monitor that knows no pools of objects created one of blocks.
fn not_of_objects(pool: &Value) -> Failure {
    let name = pool["name"].as_str().unwrap_or_default();
    failure(
        "unsupported",
        format!("the monitor knows no pools of objects: it created {name} as a pool of blocks"),
        format!(
            "remove it (ashlar pool rm {name}), update the monitors and OSDs, and create it again"
        ),
    )
}

/// Returns what was chosen of a pool of objects; `None`: the pool keeps blocks.
fn objects_of(
    kind: KindArg,
    shards: Option<u32>,
    grouped: bool,
    compression: Option<Compression>,
) -> Result<Option<ObjectOptions>, Failure> {
    match kind {
        KindArg::Object => Ok(Some(ObjectOptions { shards, compression, grouped })),
        KindArg::Block if shards.is_none() && compression.is_none() && !grouped => Ok(None),
        KindArg::Block => Err(failure(
            "invalid",
            "only a pool of objects has --shards, --grouped and --compression",
            "add --kind object for a pool of objects",
        )),
    }
}

fn domain_of(domain: DomainArg) -> FailureDomain {
    match domain {
        DomainArg::Host => FailureDomain::Host,
        DomainArg::Osd => FailureDomain::Osd,
    }
}

/// Runs `ashlar pg`.
pub fn pg(config: &Config, command: PgCommand, format: Format) -> Result<(), Failure> {
    match command {
        PgCommand::Ls { pool } => {
            print_rows(
                format,
                &call(config, format, Command::PgList { pool })?,
                PG,
                "no pools yet",
            )?;
        }
        PgCommand::Describe { pg } => {
            let mut row = call(config, format, Command::PgDescribe { pg })?;
            if format == Format::Text {
                row["damage"] = damage_text(&row["scrub"]).into();
            }
            print_object(format, &row, PG_DESCRIBED)?;
        }
        PgCommand::Scrub { pgs, deep } => {
            for pg in pgs {
                let answer = call(config, format, Command::PgScrub { pg, deep })?;
                print_scrub(format, &answer)?;
            }
        }
        PgCommand::Fix { pg, block, keep, rebuild, rebuild_parity, accept_loss: _, yes } => {
            let choice = match (keep, rebuild) {
                (Some(osd), _) => Choice::Keep(osd),
                (_, Some(osd)) => Choice::Rebuild(osd),
                _ if rebuild_parity => Choice::RebuildParity,
                _ => Choice::AcceptLoss,
            };
            let fixed = fix(config, format, (pg, block), choice, yes)?;
            let key = format!("{}/{}", block.0.get(), block.1);
            let line = match fixed["outcome"] == "partly" {
                true => format!(
                    "block {key} is as you decided; it has other damage, see `ashlar pg describe {pg}`"
                ),
                false => format!("block {key} is not damaged any more"),
            };
            print_done(format, &fixed, &line)?;
        }
        PgCommand::GiveUp { pgs, they_are_off, older_copy, yes } => {
            for pg in pgs {
                let command = Command::PgGiveUp { pg, accepted: yes, they_are_off, older_copy };
                let answer = call(config, format, command)?;
                print_done(format, &answer, &format!("{pg} now serves its remaining data"))?;
            }
        }
    }
    Ok(())
}

/// How long the result of a decision about a damaged block may take.
const FIX_TIME_MAX: std::time::Duration = std::time::Duration::from_secs(40);

/// Sends a decision about a damaged block, and waits for its result.
fn fix(
    config: &Config,
    format: Format,
    (pg, (image, stripe)): (PgId, (ImageId, u32)),
    choice: Choice,
    accepted: bool,
) -> Result<Value, Failure> {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    // Only numbers up to 2^53 pass JSON unchanged everywhere.
    let number = since_1970.map_or(0, |time| time.as_micros() as u64) % (1 << 53);
    let command = Command::PgFix { pg, image, stripe, choice, number, accepted };
    call(config, format, command)?;
    let ends = std::time::Instant::now() + FIX_TIME_MAX;
    loop {
        let row = call(config, format, Command::PgDescribe { pg })?;
        let fixed = &row["scrub"]["fixed"];
        if fixed["number"] == number {
            let Some(why) = fixed["why"].as_str() else { return Ok(fixed.clone()) };
            let message = format!("nothing was changed: {why}");
            let hint = format!("`ashlar pg describe {pg}` shows what is listed now");
            return Err(failure("refused", message, hint));
        }
        if std::time::Instant::now() >= ends {
            let message = format!(
                "PG {pg} has not said within {} s what became of it",
                FIX_TIME_MAX.as_secs()
            );
            let hint = format!(
                "if `ashlar pg describe {pg}` still lists the block, its members changed meanwhile: try again"
            );
            return Err(failure("unconfirmed", message, hint));
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

/// Runs `ashlar osd scrub`.
pub fn osd_scrub(config: &Config, osd: OsdId, deep: bool, format: Format) -> Result<(), Failure> {
    let answer = call(config, format, Command::OsdScrub { osd, deep })?;
    print_scrub(format, &answer)?;
    let is_checked = answer["metadata"] == true;
    match format {
        Format::Text if deep && is_checked => {
            print_line!("The metadata of {osd} will be checked, see its log")?;
        }
        Format::Text if deep => print_line!("The metadata of {osd} is not checked: it is not up")?,
        _ => {}
    }
    Ok(())
}

/// Prints the answer to a request for scrubs.
fn print_scrub(format: Format, answer: &Value) -> Result<(), Failure> {
    let missing = answer["unavailable"].as_array().map_or(0, Vec::len);
    let mut line = format!("{} PGs will be scrubbed, see `ashlar status`", answer["asked"]);
    if missing > 0 {
        line.push_str(&format!("; {missing} PGs are skipped: their primary cannot be reached"));
    }
    print_done(format, answer, &line)
}

/// Returns the damaged blocks of a PG as one text.
fn damage_text(scrub: &Value) -> String {
    let block = |block: &Value| {
        let volume = block["volume"].as_str().map_or_else(
            || format!("image {}", block["image"]),
            |volume| format!("volume {volume}"),
        );
        let wrong = block["wrong"].as_str().unwrap_or_default();
        let key = block["key"].as_str().unwrap_or_default();
        format!("{volume}, block {key}: {wrong}")
    };
    let blocks = scrub["blocks"].as_array().map_or(&[][..], Vec::as_slice);
    blocks.iter().map(block).collect::<Vec<String>>().join("; ")
}

/// Runs `ashlar osd out`.
pub fn osd_out(config: &Config, osd: OsdId, format: Format) -> Result<(), Failure> {
    let answer = call(config, format, Command::OsdOut { osd })?;
    let line = format!("{osd} is out; its data is moving to other OSDs, see `ashlar status`");
    print_done(format, &answer, &line)?;
    Ok(())
}

/// Runs `ashlar osd in`.
pub fn osd_in(config: &Config, osd: OsdId, format: Format) -> Result<(), Failure> {
    let answer = call(config, format, Command::OsdIn { osd })?;
    print_done(
        format,
        &answer,
        &format!("{osd} is in; data is moving to it, see `ashlar status`"),
    )?;
    Ok(())
}

/// Runs `ashlar osd rm`.
pub fn osd_rm(config: &Config, osd: OsdId, format: Format) -> Result<(), Failure> {
    let answer = call(config, format, Command::OsdRemove { osd })?;
    print_done(format, &answer, &format!("{osd} is removed; you can wipe its disk"))?;
    Ok(())
}

/// Runs `ashlar mon ls`.
pub fn monitor_list(config: &Config, format: Format) -> Result<(), Failure> {
    print_rows(format, &call(config, format, Command::MonitorList)?, MONITOR, "no monitors")?;
    Ok(())
}

/// Runs `ashlar mon rm`.
pub fn monitor_rm(config: &Config, monitor: MonitorId, format: Format) -> Result<(), Failure> {
    let answer = call(config, format, Command::MonitorRemove { monitor })?;
    print_done(format, &answer, &format!("{monitor} is removed"))?;
    Ok(())
}

/// Runs `ashlar osd ls`.
pub fn osd_list(config: &Config, format: Format) -> Result<(), Failure> {
    let empty = "no OSDs; create some: ashlar up --osds N, or if `ashlar up` does not run this \
                 cluster: ashlar osd create PATH --size 10GiB";
    let mut rows = table(config, format, Table::Osd)?;
    let mut has_engine = false;
    for row in rows.as_array_mut().into_iter().flatten() {
        if format == Format::Text {
            row["full"] = used_percent(row).map(|percent| format!("{percent} %")).into();
        }
        // One that holds nothing has nothing to show.
        if row["engine"]["families"].as_array().is_some_and(|families| !families.is_empty()) {
            has_engine = true;
            let count = |key: &str| row["engine"][key].as_f64().unwrap_or_default();
            let (hits, misses) = (count("value_hits"), count("value_misses"));
            let rate = (hits + misses > 0.0).then(|| hits / (hits + misses));
            if format == Format::Text {
                row["cache"] = rate.map(|rate| format!("{:.0} %", rate * 100.0)).into();
            }
            row["engine"]["value_hit_rate"] = rate.into();
        }
    }
    let of_engine = if has_engine { OSD_ENGINE } else { &[] };
    print_rows(format, &rows, &[OSD, of_engine, OSD_PLACE].concat(), empty)?;
    if format == Format::Text
        && let Some(text) = rows.as_array().and_then(|rows| fullness_text(rows))
    {
        print_line!("\n{text}")?;
    }
    Ok(())
}

/// Runs `ashlar osd tree`.
pub fn osd_tree(config: &Config, format: Format) -> Result<(), Failure> {
    let rows = call(config, format, Command::OsdTree)?;
    match format {
        Format::Json => print_json(&rows)?,
        Format::Text => {
            let rows = rows.as_array().into_iter().flatten().map(indented).collect();
            print_rows(format, &Value::Array(rows), TREE, "no OSDs")?;
        }
    }
    Ok(())
}

/// Returns a row of the tree for text output, indented below its parent row.
fn indented(row: &Value) -> Value {
    let mut row = row.clone();
    let depth = row["depth"].as_u64().unwrap_or(0) as usize;
    let name = row["name"].as_str().unwrap_or_default();
    // Use dashes: the table strips leading spaces.
    row["name"] = Value::String(match depth {
        0 => name.to_string(),
        _ => format!("{}{name}", "- ".repeat(depth)),
    });
    if row["type"] != "osd" {
        row["up"] = Value::String(format!("{}/{}", row["osds_up"], row["osds"]));
        row["in"] = Value::String(format!("{}/{}", row["osds_in"], row["osds"]));
    } else {
        for key in ["up", "in"] {
            row[key] = Value::String(if row[key] == true { "yes" } else { "no" }.to_string());
        }
    }
    row
}

/// Runs `ashlar config`.
pub fn config(config: &Config, command: ConfigCommand, format: Format) -> Result<(), Failure> {
    const SETTING: &[Column] = &[
        column("SETTING", "name"),
        column("VALUE", "value"),
        column("DEFAULT", "default"),
        column("MIN", "min"),
        column("MAX", "max"),
        column("MEANING", "help"),
    ];
    match command {
        ConfigCommand::Ls => {
            print_rows(
                format,
                &call(config, format, Command::ConfigList)?,
                SETTING,
                "no settings",
            )?;
        }
        ConfigCommand::Get { name } => {
            let value = call(config, format, Command::ConfigGet { setting: name })?;
            print_object(format, &value, SETTING)?;
        }
        ConfigCommand::Set { name, value } => {
            let value = (value != "default").then_some(value);
            let set = call(config, format, Command::ConfigSet { setting: name, value })?;
            print_object(format, &set, SETTING)?;
        }
    }
    Ok(())
}

/// Runs `ashlar state`.
pub fn state(config: &Config, command: StateCommand, format: Format) -> Result<(), Failure> {
    match command {
        StateCommand::Ls { prefix } => {
            let keys = call(config, format, Command::StateList { prefix })?;
            match format {
                Format::Json => print_json(&keys)?,
                Format::Text => {
                    for key in keys.as_array().into_iter().flatten() {
                        print_line!(
                            "{}",
                            key.as_str().or(key["key"].as_str()).unwrap_or_default()
                        )?;
                    }
                }
            }
        }
        StateCommand::Get { key } => print_json(&call(config, format, Command::StateGet { key })?)?,
        StateCommand::Put { key, value, force } => {
            let value = if value == "-" { standard_input()? } else { value };
            let put = Command::StatePut { key: key.clone(), value, force };
            let answer = call(config, format, put)?;
            print_done(format, &answer, &format!("{key} is set"))?;
        }
        StateCommand::Recover { they_are_lost, yes } => {
            let recover = Command::StateRecover { they_are_lost, accepted: yes };
            let answer = call(config, format, recover)?;
            let line = "the state store is up to date with the OSDs' records; PGs will serve I/O again soon, \
                        see `ashlar status`";
            print_done(format, &answer, line)?;
        }
        StateCommand::Undo { yes } => {
            let answer = call(config, format, Command::StateUndo { accepted: yes })?;
            print_done(format, &answer, "the last good values are restored")?;
        }
        StateCommand::Watch { prefix } => watch_state(config, &prefix, format)?,
    }
    Ok(())
}

fn standard_input() -> Result<String, Failure> {
    std::io::read_to_string(std::io::stdin()).map_err(|error| {
        let message = format!("cannot read standard input: {error}");
        failure("io", message, "the input must be JSON in UTF-8")
    })
}

/// Runs `ashlar state watch`.
fn watch_state(config: &Config, prefix: &str, format: Format) -> Result<(), Failure> {
    let mut printed = Ok(());
    client::watch_state(config, prefix, |change| {
        let Some(change) = change else {
            note!("watching for changes");
            return true;
        };
        let client::StateChange { revision, key, value } = change;
        let line = match (format, &value) {
            (Format::Json, _) => {
                json!({ "revision": revision, "key": key, "value": value }).to_string()
            }
            (Format::Text, Some(value)) => format!("{revision} {key} {value}"),
            (Format::Text, None) => format!("{revision} {key} deleted"),
        };
        printed = print_line!("{line}");
        printed.is_ok()
    })?;
    printed
}

fn print_done(format: Format, answer: &Value, line: &str) -> Result<(), Failure> {
    match format {
        Format::Json => print_json(answer),
        Format::Text => print_line!("{line}"),
    }
}

#[cfg(test)]
mod tests {
    use cluster::settings::{Definition, Setting};

    use super::*;

    #[test]
    fn lock_and_sessions_of_a_volume_are_shown() {
        let unlocked = json!({ "lock": null, "sessions": [] });
        assert_eq!(lock_text(&unlocked), "not locked");
        assert_eq!(session_texts(&unlocked), ["none"]);
        let mut info = json!({
            "lock": { "session": 7, "lazy": true },
            "sessions": [
                { "id": 7, "client": "nbd", "read_only": false, "pid": 12, "host": "h",
                  "address": "unix:/a" },
                { "id": 9, "client": "library", "read_only": true, "pid": null, "address": null },
            ],
        });
        let sessions = [
            "7 of nbd process 12 on h at unix:/a",
            "9 of library (client not connected) (read-only)",
        ];
        assert_eq!(session_texts(&info), sessions);
        assert!(lock_text(&info).starts_with("session 7: writes are durable once flushed"));
        info["lock"]["lazy"] = json!(false);
        assert!(lock_text(&info).starts_with("session 7: writes are durable once acknowledged"));
        info["lock"]["session"] = json!(3);
        assert!(lock_text(&info).starts_with("session 3: ended"), "{}", lock_text(&info));
    }

    #[test]
    fn the_table_of_settings_matches_their_definition() {
        const HEADING: &str = "| name | default | range | |\n|---|---:|---|---|\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/state.md");
        let document = std::fs::read_to_string(path).expect("the document exists");
        let row = |setting: Setting| {
            let Definition { name, default, min, max, help, .. } = setting.definition();
            let [default, min, max] = [default, min, max].map(|value| setting.text_of(value));
            format!("| `{name}` | {default} | {min} to {max} | {help} |\n")
        };
        let expected: String = Setting::ALL.into_iter().map(row).collect();
        let (before, after) = document.split_once(HEADING).expect("it has the table");
        let end = after.find("\n\n").map_or(after.len(), |end| end + 1);
        if std::env::var_os("UPDATE").is_some() {
            let text = format!("{before}{HEADING}{expected}{}", &after[end..]);
            std::fs::write(path, text).expect("writable");
        } else {
            assert_eq!(&after[..end], expected, "UPDATE=1 writes docs/internals/state.md anew");
        }
    }
}
