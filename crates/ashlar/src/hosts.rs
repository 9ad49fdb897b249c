//! Clusters of several hosts: `init` creates a cluster, `token` prints a token for another host, `join` uses
//! the token on that host to write the cluster's key and settings, and `mon create` adds monitors.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::checksum::crc32c;
use base::{ClusterId, MonitorId};
use client::Config;
use cluster::map::ClusterFile;
use cluster::message::{Command, Failure};
use cluster::records::{ClusterRecord, Record, Rest, STATE_FORMAT};
use cluster::state::{
    Operation, StateEffect, StateEvent, StateRequest, StateRevision, StateStore, Transaction,
    TransactionOutcome,
};
use io::ClusterKey;
use io::etcd::{EtcdPlace, EtcdState};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::call::call;
use crate::cli::{InitArgs, StatePlace};
use crate::daemon::listen_places;
use crate::mon::MonitorFile;
use crate::output::{Format, failure, print_json};

/// Default port of monitors.
const MONITOR_PORT: u16 = 4130;
/// Start of every token; the digit is the version of its format.
const TOKEN_PREFIX: &str = "ashlar1-";
/// Time limit for etcd to store the first key of a cluster.
const STORE_TIME_MAX: Duration = Duration::from_secs(10);
/// Longest delay before the state store is polled again.
const ASK_AGAIN_DELAY: Duration = Duration::from_millis(100);
/// Time limit for the monitors to report their addresses.
const ASK_TIME_MAX: Duration = Duration::from_secs(3);
/// Networks that contain every address.
const EVERYWHERE: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// What a host needs to join a cluster. Secret, because it contains the key.
#[derive(Serialize, Deserialize)]
struct Token {
    key: String,
    file: ClusterFile,
}

impl Token {
    /// Returns the token as one line of text: JSON in hexadecimal digits, with a checksum because people
    /// copy and paste it.
    fn to_text(&self) -> String {
        let json = serde_json::to_string(self).expect("plain data serializes to JSON");
        let sum = crc32c(json.as_bytes()).get().to_le_bytes();
        let digits = json.bytes().chain(sum).map(|byte| format!("{byte:02x}"));
        format!("{TOKEN_PREFIX}{}", digits.collect::<String>())
    }

    fn parse(text: &str) -> Option<Token> {
        let digits = text.trim().strip_prefix(TOKEN_PREFIX)?.as_bytes();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(byte).collect();
        let bytes = bytes?;
        let (json, sum) = bytes.split_last_chunk::<4>()?;
        if crc32c(json).get() != u32::from_le_bytes(*sum) {
            return None;
        }
        serde_json::from_slice(json).ok()
    }
}

/// Runs `ashlar init`.
pub fn init(args: InitArgs, format: Format) -> Result<(), Failure> {
    let dir = args.dir;
    refuse_existing(&dir)?;
    let networks = match args.network.is_empty() {
        true => EVERYWHERE.map(str::to_owned).to_vec(),
        false => args.network,
    };
    let port = args.port.unwrap_or(MONITOR_PORT);
    let monitors = listen_places(&networks, port)?;
    let cluster = ClusterId::new(u128::from_le_bytes(io::random_bytes()));
    let mon = dir.join(MonitorId::FIRST.to_string());
    let state = match &args.state {
        StatePlace::Embedded => None,
        StatePlace::Etcd(urls) => Some(format!("etcd:{urls}")),
    };
    let osd_networks = args.osd_network;
    let file = ClusterFile { cluster, monitors, state, networks, osd_networks, host: None };
    let made = [&dir, &mon, &dir.join("key")].map(|path| (path.clone(), path.exists()));
    if let Err(error) = make_cluster(&dir, &mon, &args.state, &file) {
        // Remove only the files that this call created.
        for (path, _) in made.iter().filter(|(_, was_there)| !was_there) {
            let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        }
        return Err(error);
    }
    if format == Format::Json {
        print_json(&json!({ "cluster": cluster, "dir": dir, "monitors": file.monitors }))?;
        return Ok(());
    }
    print_line!(
        "created cluster {cluster}; its monitor will listen on {}",
        file.monitors.join(", ")
    )?;
    print_line!("  ashlar mon run {}", mon.display())?;
    print_line!("  ashlar token              for `ashlar join` on other hosts; keep it secret")?;
    Ok(())
}

/// Creates the files of a cluster. cluster.toml is written last, because it marks the directory as
/// complete.
fn make_cluster(
    dir: &Path,
    mon: &Path,
    state: &StatePlace,
    file: &ClusterFile,
) -> Result<(), Failure> {
    match state {
        StatePlace::Embedded => crate::mon::create(mon)?,
        StatePlace::Etcd(_) => crate::etcd::create(mon)?,
    }
    let listen = file.monitors.clone();
    MonitorFile { id: MonitorId::FIRST, listen }.save(mon)?;
    if let StatePlace::Etcd(urls) = state {
        create_in_etcd(urls, file.cluster)?;
    }
    write_cluster(dir, &ClusterKey::random(), file)
}

/// Runs `ashlar token`.
pub fn token(config: &Config, format: Format) -> Result<(), Failure> {
    // Leave out `host`: the other host has its own name.
    let mut file = ClusterFile { host: None, ..config.file.clone() };
    // Use the current addresses of the monitors; if no monitor answers, those in this host's cluster.toml.
    if let Ok(mut told) = client::monitors(config, ASK_TIME_MAX) {
        told.retain(|address| address.starts_with("tcp:"));
        if !told.is_empty() {
            file.monitors = told;
        }
    }
    let token = Token { key: config.key.to_text(), file }.to_text();
    match format {
        Format::Json => print_json(&json!({ "token": token }))?,
        Format::Text => print_line!("{token}")?,
    }
    Ok(())
}

/// Runs `ashlar join`.
pub fn join(token: &str, dir: &Path, format: Format) -> Result<(), Failure> {
    let mut text = token.to_owned();
    if token == "-" {
        text.clear();
        std::io::stdin().take(1 << 20).read_to_string(&mut text).map_err(|error| {
            failure(
                "io",
                format!("cannot read the token: {error}"),
                "pipe the token into this command",
            )
        })?;
    }
    let wrong = || {
        let message = "the token is invalid or incomplete";
        failure("invalid", message, "copy the whole line that `ashlar token` prints")
    };
    let Token { key, file } = Token::parse(&text).ok_or_else(wrong)?;
    let key = ClusterKey::from_text(&key).ok_or_else(wrong)?;
    refuse_existing(dir)?;
    write_cluster(dir, &key, &file)?;
    if format == Format::Json {
        print_json(&json!({ "cluster": file.cluster, "dir": dir }))?;
        return Ok(());
    }
    print_line!("this host has joined cluster {}", file.cluster)?;
    print_line!("  ashlar osd create PATH --size 100GiB && ashlar osd run PATH")?;
    print_line!("  ashlar mon create PATH && ashlar mon run PATH")?;
    Ok(())
}

fn refuse_existing(dir: &Path) -> Result<(), Failure> {
    let file = dir.join("cluster.toml");
    if file.exists() {
        let message = format!("{} already exists", file.display());
        return Err(failure("exists", message, "choose another directory with --dir"));
    }
    Ok(())
}

/// Writes the key, then `cluster.toml`, because a directory with `cluster.toml` counts as complete.
fn write_cluster(dir: &Path, key: &ClusterKey, file: &ClusterFile) -> Result<(), Failure> {
    fs::create_dir_all(dir).map_err(|error| cannot_write(dir, &error))?;
    key.save(&dir.join("key")).map_err(|error| cannot_write(dir, &error))?;
    write_cluster_file(dir, file)
}

fn write_cluster_file(dir: &Path, file: &ClusterFile) -> Result<(), Failure> {
    let text = toml::to_string(file).expect("plain data serializes to TOML");
    io::replace_file(&dir.join("cluster.toml"), text.as_bytes(), 0o600)
        .map_err(|error| cannot_write(dir, &error))
}

fn cannot_write(dir: &Path, error: &dyn std::fmt::Display) -> Failure {
    let message = format!("cannot write to {}: {error}", dir.display());
    failure("io", message, "check its permissions and free space")
}

/// Writes the first key of a cluster into etcd. Fails if the prefix already has keys.
fn create_in_etcd(urls: &str, cluster: ClusterId) -> Result<(), Failure> {
    let hint = "check that etcd is running at these URLs; see docs/internals/state.md";
    let place = EtcdPlace::parse(urls, &format!("ashlar/{cluster}"));
    let place = place.map_err(|error| failure("invalid", error.to_string(), hint))?;
    let (bell, rings) = std::sync::mpsc::channel();
    let wake = move || {
        // The function that waits for this may have returned already.
        let _ = bell.send(());
    };
    let state = EtcdState::connect(place, wake);
    let mut state = state.map_err(|error| failure("state", error.to_string(), hint))?;
    let record = ClusterRecord { id: cluster, format: STATE_FORMAT, rest: Rest::new() };
    let record = Record::Cluster(record);
    let (key, value) = (record.key().to_string(), record.to_json().to_string());
    let (now, mut events) = (base::Time::ZERO, Vec::new());
    let range = StateRequest(1);
    let (prefix, after, limit) = (String::new(), None, 1);
    state.apply(now, StateEffect::Range { request: range, prefix, after, limit }, &mut events);
    let deadline = std::time::Instant::now() + STORE_TIME_MAX;
    let mut trouble = "etcd does not answer".to_owned();
    loop {
        state.poll(now, &mut events);
        for event in std::mem::take(&mut events) {
            match event {
                StateEvent::Range { result: Ok(answer), .. } if answer.entries.is_empty() => {
                    let mut transaction = Transaction::new();
                    let put =
                        Operation::Put { key: key.clone(), value: value.clone(), lease: None };
                    transaction.write(put, StateRevision::ZERO);
                    let write = StateEffect::Transact { request: StateRequest(2), transaction };
                    state.apply(now, write, &mut events);
                }
                StateEvent::Range { result: Ok(_), .. }
                | StateEvent::Transacted { outcome: TransactionOutcome::Conflict, .. } => {
                    let message = "this etcd prefix already holds a cluster";
                    return Err(failure("exists", message, "use another prefix: etcd:URL/PREFIX"));
                }
                StateEvent::Range { result: Err(_), .. } => {
                    std::thread::sleep(ASK_AGAIN_DELAY);
                    let (prefix, after, limit) = (String::new(), None, 1);
                    let again = StateEffect::Range { request: range, prefix, after, limit };
                    state.apply(now, again, &mut events);
                }
                StateEvent::Transacted {
                    outcome: TransactionOutcome::Committed { .. }, ..
                } => {
                    return Ok(());
                }
                StateEvent::Transacted { .. } => {
                    let message = "etcd did not confirm that it stored the first key";
                    return Err(failure(
                        "state",
                        message,
                        "run the command again; it creates a new cluster with another id",
                    ));
                }
                StateEvent::Condition { trouble: Some(text) } => trouble = text,
                StateEvent::Failed { reason } => return Err(failure("state", reason, hint)),
                _ => {}
            }
        }
        let left = deadline.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Err(failure("state", trouble, hint));
        }
        // An event or a timeout: both are handled at the top of the loop.
        let _ = rings.recv_timeout(left.min(ASK_AGAIN_DELAY));
    }
}

/// Runs `ashlar mon create`.
pub fn create_monitor(
    config: &Config,
    path: &PathBuf,
    port: Option<u16>,
    format: Format,
) -> Result<(), Failure> {
    if MonitorFile::path(path).exists() {
        let message = format!("{} already holds a monitor", path.display());
        return Err(failure("exists", message, "start it: ashlar mon run PATH"));
    }
    if crate::mon::place_of(config)? == StatePlace::Embedded {
        let message = "this cluster keeps its state in a file of its only monitor";
        let hint = "for several monitors, create a cluster with its state in etcd: ashlar init --state \
                    etcd:URL,URL,URL";
        return Err(failure("unsupported", message, hint));
    }
    let listen = listen_places(&config.file.networks, port.unwrap_or(MONITOR_PORT))?;
    let made = call(config, format, Command::MonitorCreate)?;
    let id = made["id"].as_u64().and_then(|id| u32::try_from(id).ok()).and_then(MonitorId::new);
    let id = id.ok_or_else(|| {
        failure(
            "protocol",
            "the monitor returned no id",
            "run the same version on all hosts; compare `ashlar --version`",
        )
    })?;
    crate::etcd::create(path)?;
    MonitorFile { id, listen: listen.clone() }.save(path)?;
    // From now on commands on this host can use its own monitor.
    client::add_monitor(config, &listen).map_err(|error| cannot_write(&config.dir, &error))?;
    if format == Format::Json {
        print_json(&json!({ "id": id, "path": path, "listen": listen }))?;
        return Ok(());
    }
    print_line!("{id} will listen on {}", listen.join(", "))?;
    print_line!("  ashlar mon run {}", path.display())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_and_a_truncated_one_is_refused() {
        let file = ClusterFile {
            cluster: ClusterId::new(7),
            monitors: vec!["tcp:10.0.0.1:4130".into()],
            state: Some("etcd:http://10.0.0.1:2379".into()),
            networks: vec!["10.0.0.0/8".into()],
            osd_networks: Vec::new(),
            host: None,
        };
        let key = ClusterKey::random();
        let text = Token { key: key.to_text(), file: file.clone() }.to_text();
        assert!(!text.contains(char::is_whitespace));
        let read = Token::parse(&format!("{text}\n")).expect("whole");
        assert_eq!(read.file, file);
        assert_eq!(ClusterKey::from_text(&read.key), Some(key));
        for cut in [&text[..text.len() - 2], &text[2..], "", TOKEN_PREFIX, "ashlar1-zz"] {
            assert!(Token::parse(cut).is_none(), "{cut}");
        }
        let changed = text.replace("ashlar1-7b", "ashlar1-7c");
        assert!(Token::parse(&changed).is_none());
    }
}
