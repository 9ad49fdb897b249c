//! Keeps the list of monitors in `cluster.toml` up to date, so that programs started later find the current
//! monitors.
//!
//! Invariants
//!   1. Only the value of `monitors` changes; the rest of the file stays, including comments.
//!   2. A list is written only if it is not empty and shares an address with the file. So a monitor that
//!      has not recorded its new address yet cannot undo a deliberate change (`up` on another port), and
//!      manually configured addresses (for example of a proxy or port forwarding) stay.
//!   3. Host names in the file were written by people, so they stay.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{ClusterId, TraceEvent};
use cluster::map::ClusterFile;
use serde_json::Value;

use crate::config::Config;

/// Maximum number of addresses in the list: as many as all monitors of a cluster together may have.
const ADDRESS_COUNT_MAX: usize = 800;

/// Writes the newest list of monitors on a separate thread, so that the caller never waits for a disk.
#[derive(Clone)]
pub struct Keeper {
    config: Config,
    /// Logs an event.
    log: fn(&TraceEvent),
    slot: Arc<Mutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    /// The list to write next.
    next: Option<Vec<String>>,
    /// Whether a thread is writing; when it has finished, it checks `next` again.
    is_writing: bool,
}

impl Keeper {
    /// Creates a keeper for the file that `config` was read from.
    pub fn new(config: &Config, log: fn(&TraceEvent)) -> Keeper {
        Keeper { config: config.clone(), log, slot: Arc::default() }
    }

    /// Schedules a new list from a monitor to be written.
    pub fn update(&self, addresses: Vec<String>) {
        let mut slot = self.slot();
        slot.next = Some(addresses);
        if slot.is_writing {
            return;
        }
        slot.is_writing = true;
        drop(slot);
        let keeper = self.clone();
        let thread = std::thread::Builder::new().name("keeper".to_string());
        if let Err(error) = thread.spawn(move || keeper.write()) {
            self.slot().is_writing = false;
            let event =
                TraceEvent::error("cannot save the list of monitors: cannot start a thread");
            (self.log)(&event.with("why", error));
        }
    }

    fn write(&self) {
        loop {
            let mut slot = self.slot();
            let Some(told) = slot.next.take() else {
                slot.is_writing = false;
                return;
            };
            drop(slot);
            let path = self.config.path.display();
            match keep(&self.config, &told) {
                Ok(true) => {
                    let event = TraceEvent::info("saved a new list of monitors to cluster.toml");
                    (self.log)(&event.with("path", path).list("monitors", &told));
                }
                Ok(false) => {}
                Err(error) => {
                    let what =
                        "cannot save the list of monitors: the next start may not find a monitor";
                    let event = TraceEvent::warn(what).with("why", error);
                    (self.log)(&event.list("monitors", &told));
                }
            }
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the addresses in a monitor's list of monitors.
pub(crate) fn addresses_of(rows: &Value) -> Vec<String> {
    let rows = rows.as_array().into_iter().flatten();
    let addresses = rows.flat_map(|row| row["addresses"].as_array().into_iter().flatten());
    addresses.filter_map(|address| address.as_str().map(str::to_string)).collect()
}

/// Whether the list that a monitor reported would change the file.
pub(crate) fn is_news(config: &Config, told: &[String]) -> bool {
    matches!(merged(&config.file, told), Ok(Some(_)))
}

/// Writes the list that a monitor reported to the file. Returns whether the file changed.
pub(crate) fn keep(config: &Config, told: &[String]) -> Result<bool, io::Error> {
    edit(config, |file| merged(file, told).map_err(io::Error))
}

/// Adds the addresses of a monitor to the file. Returns whether the file changed.
pub fn add_monitor(config: &Config, listen: &[String]) -> Result<bool, io::Error> {
    edit(config, |file| {
        let mut list = file.monitors.clone();
        list.extend(listen.iter().filter(|address| !file.monitors.contains(address)).cloned());
        Ok((list.len() > file.monitors.len()).then_some(list))
    })
}

fn edit(
    config: &Config,
    list_of: impl FnOnce(&ClusterFile) -> Result<Option<Vec<String>>, io::Error>,
) -> Result<bool, io::Error> {
    io::edit_file(&config.path, |text| {
        let file = parse(text, config.file.cluster)?;
        match list_of(&file)? {
            Some(list) => with_monitors(text, &file, list).map(Some),
            None => Ok(None),
        }
    })
}

fn parse(text: &str, cluster: ClusterId) -> Result<ClusterFile, io::Error> {
    let file: ClusterFile =
        toml::from_str(text).map_err(|error| io::Error::new("cluster.toml", error))?;
    if file.cluster == cluster {
        return Ok(file);
    }
    Err(io::Error(format!("cluster.toml now belongs to another cluster, {}", file.cluster)))
}

/// Returns the new list for the file; `None` if the list would not change. The new list has the order of
/// the monitor's list, which begins with the monitors that are up.
fn merged(file: &ClusterFile, told: &[String]) -> Result<Option<Vec<String>>, String> {
    let told: Vec<&String> = told
        .iter()
        .filter(|address| is_reachable(address) || file.monitors.contains(address))
        .take(ADDRESS_COUNT_MAX)
        .collect();
    if told.is_empty() {
        return Ok(None);
    }
    let names = file.monitors.iter().filter(|address| is_name(address));
    let mut list: Vec<String> = names.cloned().collect();
    let is_known = !list.is_empty() || told.iter().any(|told| file.monitors.contains(told));
    for address in told {
        if !list.contains(address) {
            list.push(address.clone());
        }
    }
    let set = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    if set(&list) == set(&file.monitors) {
        return Ok(None);
    }
    if is_known {
        return Ok(Some(list));
    }
    Err(format!("not changing cluster.toml: it lists none of the monitors ({})", list.join(", ")))
}

/// Whether other programs can connect to an address that a monitor reports.
fn is_reachable(address: &str) -> bool {
    let place: Option<SocketAddr> = address.strip_prefix("tcp:").and_then(|text| text.parse().ok());
    place.is_some_and(|place| !place.ip().is_unspecified() && place.port() != 0)
}

/// Whether the address contains a host name instead of an IP address.
fn is_name(address: &str) -> bool {
    address.strip_prefix("tcp:").is_some_and(|place| place.parse::<SocketAddr>().is_err())
}

/// Returns the text of the file with the list of monitors replaced.
fn with_monitors(text: &str, file: &ClusterFile, list: Vec<String>) -> Result<String, io::Error> {
    let wrong = |error: &dyn std::fmt::Display| io::Error::new("cluster.toml", error);
    let table = toml::de::DeTable::parse(text).map_err(|error| wrong(&error))?;
    let entry = table.get_ref().iter().find(|(key, _)| key.get_ref() == "monitors");
    let (_, value) = entry.ok_or_else(|| wrong(&"the file lists no monitors"))?;
    let span = value.span();
    let new = toml::Value::from(list.clone()).to_string();
    let text = format!("{}{new}{}", &text[..span.start], &text[span.end..]);
    let read: ClusterFile = toml::from_str(&text).map_err(|error| wrong(&error))?;
    assert_eq!(read, ClusterFile { monitors: list, ..file.clone() }, "nothing else changes");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(list: &[&str]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }

    fn file(monitors: &[&str]) -> ClusterFile {
        ClusterFile { monitors: texts(monitors), ..Config::without_monitor().file }
    }

    #[test]
    fn the_list_follows_the_monitors() {
        let list = |known: &[&str], told: &[&str]| {
            merged(&file(known), &texts(told)).expect("it is the same cluster")
        };
        let (a, b, c) = ("tcp:10.0.0.1:1", "tcp:10.0.0.2:1", "tcp:[fd00::3]:1");
        assert_eq!(list(&[a], &[b, a, c]), Some(texts(&[b, a, c])));
        assert_eq!(list(&[a, b, c], &[c]), Some(texts(&[c])));
        // The same list in another order changes nothing in the file.
        assert_eq!(list(&[a, b], &[b, a]), None);
        // An empty list, or a list without any reachable address, changes nothing.
        assert_eq!(list(&[a], &[]), None);
        assert_eq!(list(&[a], &["tcp:0.0.0.0:1", "unix:/x", "", "tcp:10.0.0.9:0"]), None);
        assert_eq!(list(&["unix:/x"], &["unix:/x", b]), Some(texts(&["unix:/x", b])));
        // Host names stay.
        assert_eq!(list(&["tcp:mon:1", a], &[b]), Some(texts(&["tcp:mon:1", b])));
        // A deliberately changed or manually configured address stays.
        merged(&file(&[a]), &texts(&[b, c])).expect_err("none of them is known");
    }

    #[test]
    fn the_rest_of_the_file_stays_unchanged() {
        let before = "# ours\nmonitors = [ # two\n  \"tcp:10.0.0.1:1\",\n] # all\n\
                      cluster = '00000000000000000000000000000abc'\nnetworks = [  \"10.0.0.0/8\" ]\n";
        let read = parse(before, ClusterId::new(0xabc)).expect("whole");
        let list = texts(&["tcp:10.0.0.2:1", "tcp:10.0.0.1:1"]);
        let after = with_monitors(before, &read, list).expect("there is a list");
        let expected = "# ours\nmonitors = [\"tcp:10.0.0.2:1\", \"tcp:10.0.0.1:1\"] # all\n\
                        cluster = '00000000000000000000000000000abc'\n\
                        networks = [  \"10.0.0.0/8\" ]\n";
        assert_eq!(after, expected);
        let other = parse(before, ClusterId::new(1)).expect_err("another cluster");
        assert!(other.0.contains("another cluster"), "{other}");
    }
}
