//! Where monitors listen, kept in `cluster.toml` as one of them tells it: who starts later finds those
//! that are left.
//!
//! Invariants
//!   1. Only the value of `monitors` changes; all else in the file stays, comments too.
//!   2. No list is written that is empty, or that names no monitor that the file names: an address
//!      that was just changed on purpose (`up` on another port) is not taken back by a monitor that
//!      has not recorded yet where it listens now, and a way around by other addresses stays one.
//!   3. Names of hosts are people's: they stay.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use base::{ClusterId, TraceEvent};
use cluster::map::ClusterFile;
use serde_json::Value;

use crate::config::Config;

/// Addresses that are kept: as many as monitors of a cluster may have.
const ADDRESS_COUNT_MAX: usize = 800;

/// Writes lists of monitors on a thread of its own, the newest one only; the caller never waits for a
/// disk.
#[derive(Clone)]
pub struct Keeper {
    config: Config,
    /// Told what happened, for a log.
    say: fn(&TraceEvent),
    slot: Arc<Mutex<Slot>>,
}

#[derive(Default)]
struct Slot {
    /// To be written.
    told: Option<Vec<String>>,
    /// A thread writes, and looks again when it has.
    is_writing: bool,
}

impl Keeper {
    /// For the file that a configuration was read from.
    pub fn new(config: &Config, say: fn(&TraceEvent)) -> Keeper {
        Keeper { config: config.clone(), say, slot: Arc::default() }
    }

    /// A monitor said where monitors listen.
    pub fn told(&self, addresses: Vec<String>) {
        let mut slot = self.slot();
        slot.told = Some(addresses);
        if slot.is_writing {
            return;
        }
        slot.is_writing = true;
        drop(slot);
        let keeper = self.clone();
        let thread = std::thread::Builder::new().name("keeper".to_string());
        if let Err(error) = thread.spawn(move || keeper.write()) {
            self.slot().is_writing = false;
            let event = TraceEvent::error("cannot keep the list of monitors: no thread");
            (self.say)(&event.with("why", error));
        }
    }

    fn write(&self) {
        loop {
            let mut slot = self.slot();
            let Some(told) = slot.told.take() else {
                slot.is_writing = false;
                return;
            };
            drop(slot);
            let path = self.config.path.display();
            match keep(&self.config, &told) {
                Ok(true) => {
                    let event = TraceEvent::info("cluster.toml names other monitors now");
                    (self.say)(&event.with("path", path).list("monitors", &told));
                }
                Ok(false) => {}
                Err(error) => {
                    let what = "cannot keep where monitors listen: a later start may have to know";
                    let event = TraceEvent::warn(what).with("why", error);
                    (self.say)(&event.list("monitors", &told));
                }
            }
        }
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where monitors listen, by the answer to the question which there are.
pub(crate) fn addresses_of(rows: &Value) -> Vec<String> {
    let rows = rows.as_array().into_iter().flatten();
    let addresses = rows.flat_map(|row| row["addresses"].as_array().into_iter().flatten());
    addresses.filter_map(|address| address.as_str().map(str::to_string)).collect()
}

/// Whether the list that was told would change what the configuration says.
pub(crate) fn is_news(config: &Config, told: &[String]) -> bool {
    matches!(merged(&config.file, told), Ok(Some(_)))
}

/// Takes a list that a monitor told into the file. Whether it changed.
pub(crate) fn keep(config: &Config, told: &[String]) -> Result<bool, io::Error> {
    edit(config, |file| merged(file, told).map_err(io::Error))
}

/// Adds addresses of a monitor to the file.
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
    Err(io::Error(format!("cluster.toml is that of another cluster by now, {}", file.cluster)))
}

/// The list that takes the place of the file's; `None`: it says the same. In the order in which
/// monitors tell it: those that are there come first.
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
    Err(format!("cluster.toml stays as it is: it names none of the monitors ({})", list.join(", ")))
}

/// What others can connect to, as monitors tell it.
fn is_reachable(address: &str) -> bool {
    let place: Option<SocketAddr> = address.strip_prefix("tcp:").and_then(|text| text.parse().ok());
    place.is_some_and(|place| !place.ip().is_unspecified() && place.port() != 0)
}

/// The name of a host, not its address.
fn is_name(address: &str) -> bool {
    address.strip_prefix("tcp:").is_some_and(|place| place.parse::<SocketAddr>().is_err())
}

/// The text of the file with another list of monitors.
fn with_monitors(text: &str, file: &ClusterFile, list: Vec<String>) -> Result<String, io::Error> {
    let wrong = |error: &dyn std::fmt::Display| io::Error::new("cluster.toml", error);
    let table = toml::de::DeTable::parse(text).map_err(|error| wrong(&error))?;
    let entry = table.get_ref().iter().find(|(key, _)| key.get_ref() == "monitors");
    let (_, value) = entry.ok_or_else(|| wrong(&"it names no monitors"))?;
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
        ClusterFile { monitors: texts(monitors), ..Config::of_nobody().file }
    }

    #[test]
    fn the_list_is_the_one_that_was_told() {
        let list = |known: &[&str], told: &[&str]| {
            merged(&file(known), &texts(told)).expect("it is the same cluster")
        };
        let (a, b, c) = ("tcp:10.0.0.1:1", "tcp:10.0.0.2:1", "tcp:[fd00::3]:1");
        assert_eq!(list(&[a], &[b, a, c]), Some(texts(&[b, a, c])));
        assert_eq!(list(&[a, b, c], &[c]), Some(texts(&[c])));
        // The same in another order is nothing new.
        assert_eq!(list(&[a, b], &[b, a]), None);
        // Nobody is named, or nobody whom others can reach.
        assert_eq!(list(&[a], &[]), None);
        assert_eq!(list(&[a], &["tcp:0.0.0.0:1", "unix:/x", "", "tcp:10.0.0.9:0"]), None);
        assert_eq!(list(&["unix:/x"], &["unix:/x", b]), Some(texts(&["unix:/x", b])));
        // Names stay.
        assert_eq!(list(&["tcp:mon:1", a], &[b]), Some(texts(&["tcp:mon:1", b])));
        // An address that was changed on purpose stays, as does a way around.
        merged(&file(&[a]), &texts(&[b, c])).expect_err("none of them is known");
    }

    #[test]
    fn all_else_in_the_file_stays_as_it_was_written() {
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
