//! The monitors of the cluster: which ones exist, where they listen, and which are connected.

use base::{ConnectionId, MonitorId};
use format::door::Role;
use serde_json::{Value, json};

use super::committed_state::Batch;
use super::job::{Done, Job, Plan};
use super::{Effect, Identity, Monitor, busy, failure};
use crate::message::{Failure, FromMonitor, RelayedRole};
use crate::records::{CounterName, CounterRecord, MonitorRecord, Record, Rest};

/// Maximum number of monitors in a cluster.
const MONITOR_COUNT_MAX: usize = 100;

impl Monitor {
    /// Whether it is certain that the cluster has no other monitor.
    pub(super) fn is_only(&self) -> bool {
        let is_this = |record: &MonitorRecord| record.id == self.identity.monitor;
        !self.committed.is_damaged() && self.committed.monitors().all(is_this)
    }

    /// Handles a report from a non-leading monitor that it now relays another connection.
    pub(super) fn on_relay(&mut self, connection: ConnectionId, role: &RelayedRole) {
        self.connections.set_relayed_role(connection, role.role());
    }

    /// Handles the arrival of a monitor that does not lead.
    pub(super) fn on_monitor_here(
        &mut self,
        connection: ConnectionId,
        record: MonitorRecord,
        effects: &mut Vec<Effect>,
    ) {
        if self.committed.has_removed_monitor(record.id) {
            return self.connections.send(connection, &FromMonitor::MonitorRemoved, effects);
        }
        self.connections.set_monitor(connection, record.id);
        self.send_settings(connection, effects);
        self.try_push_job(Job::MonitorHere(record));
    }

    /// Queues the record of this monitor's own addresses, process and host.
    pub(super) fn record_self(&mut self) {
        let Identity { monitor, pid, addresses, host, .. } = self.identity.clone();
        let record = MonitorRecord::of_run(monitor, addresses, pid, host);
        self.try_push_job(Job::MonitorHere(record));
    }

    pub(super) fn plan_monitor_here(&self, record: &MonitorRecord) -> Plan {
        let committed = &self.committed;
        let monitor = record.id;
        let known = committed.monitor(monitor);
        let is_full = known.is_none() && committed.monitors().count() >= MONITOR_COUNT_MAX;
        if is_full || committed.has_removed_monitor(monitor) {
            return Plan::Done(Done::Silent);
        }
        let rest = known.map_or_else(Rest::new, |record| record.rest.clone());
        let record = MonitorRecord { rest, ..record.clone() };
        if known == Some(&record) {
            return Plan::Done(Done::Silent);
        }
        let mut batch = Batch::new(committed);
        batch.put(committed, Record::Monitor(record));
        // The id of the cluster's first monitor does not come from the counter.
        let last = u64::from(monitor.get());
        if committed.counter(CounterName::Monitor) < last {
            let counter = CounterRecord { name: CounterName::Monitor, last, rest: Rest::new() };
            batch.put(committed, Record::Counter(counter));
        }
        Plan::Write { batch, done: Some(Done::MonitorsChanged) }
    }

    pub(super) fn plan_monitor_create(&self) -> Result<Plan, Failure> {
        let committed = &self.committed;
        if committed.monitors().count() >= MONITOR_COUNT_MAX {
            return Err(busy());
        }
        let mut batch = Batch::new(committed);
        let number = batch.next_id(committed, CounterName::Monitor)?;
        let id = u32::try_from(number).ok().and_then(MonitorId::new).expect("counted from 1");
        let record = MonitorRecord::of_run(id, Vec::new(), 0, String::new());
        batch.put(committed, Record::Monitor(record));
        let answer = Done::Answer(Ok(json!({ "id": id })));
        Ok(Plan::Write { batch, done: Some(answer) })
    }

    pub(super) fn plan_monitor_remove(&self, monitor: MonitorId) -> Result<Plan, Failure> {
        let Some(record) = self.committed.monitor(monitor) else {
            let hint = "`ashlar mon ls` lists the monitors";
            return Err(failure("not_found", format!("there is no {monitor}"), hint));
        };
        if self.is_monitor_up(monitor) {
            let message = format!("{monitor} is running and connected");
            return Err(failure("running", message, "stop its process first"));
        }
        let mut batch = Batch::new(&self.committed);
        // The record is kept, so that a process that starts with this id is refused.
        let none = MonitorRecord::of_run(monitor, Vec::new(), 0, String::new());
        let record = MonitorRecord { removed: true, rest: record.rest.clone(), ..none };
        batch.put(&self.committed, Record::Monitor(record));
        Ok(Plan::Write { batch, done: Some(Done::Answer(Ok(json!({ "removed": monitor })))) })
    }

    pub(super) fn is_monitor_up(&self, monitor: MonitorId) -> bool {
        monitor == self.identity.monitor || self.connections.has_monitor(monitor)
    }

    /// Returns the rows of `mon ls`.
    pub(super) fn monitor_rows(&self) -> Value {
        let row = |record: &MonitorRecord| {
            json!({
                "id": record.id,
                "up": self.is_monitor_up(record.id),
                "leads": record.id == self.identity.monitor,
                "pid": record.pid,
                "host": record.host,
                "addresses": record.addresses,
            })
        };
        self.committed.monitors().map(row).collect()
    }

    /// Returns the message with the monitors' addresses, for every receiver of the map. Connected
    /// monitors come first.
    fn monitor_addresses(&self) -> FromMonitor {
        let (up, down): (Vec<_>, Vec<_>) =
            self.committed.monitors().partition(|record| self.is_monitor_up(record.id));
        let addresses = [up, down].map(|records| spread(&records));
        FromMonitor::Monitors { addresses: addresses.concat() }
    }

    pub(super) fn send_monitors(&self, connection: ConnectionId, effects: &mut Vec<Effect>) {
        self.connections.send(connection, &self.monitor_addresses(), effects);
    }

    /// Sends every receiver of the map the current list of monitors.
    pub(super) fn on_monitors_changed(&self, effects: &mut Vec<Effect>) {
        let message = self.monitor_addresses();
        for connection in self.connections.subscribers() {
            self.connections.send(connection, &message, effects);
        }
    }

    /// Whether the connection belongs to no monitor, or to a monitor other than `named`. Only monitors may
    /// report themselves and the connections that they relay.
    pub(super) fn is_no_monitor(&self, connection: ConnectionId, named: Option<MonitorId>) -> bool {
        match self.connections.role(connection) {
            Role::Monitor(id) => named.is_some_and(|named| named != id),
            _ => true,
        }
    }
}

/// Explains why a removed monitor does not run, and how to proceed.
pub(super) fn removed_text(monitor: MonitorId) -> String {
    format!(
        "{monitor} was removed from the cluster (`ashlar mon rm`): you may delete its directory; \
         `ashlar mon create` creates a new monitor with a new id"
    )
}

/// Orders the monitors' addresses so that neighbors in the list belong to different monitors and, where there
/// are several networks, to different networks: if one address cannot be reached, the next one probably can.
fn spread(records: &[&MonitorRecord]) -> Vec<String> {
    let address_count_max = records.iter().map(|record| record.addresses.len()).max();
    let mut addresses = Vec::new();
    for round in 0..address_count_max.unwrap_or(0) {
        for (place, record) in records.iter().enumerate() {
            let count = record.addresses.len();
            if round < count {
                addresses.push(record.addresses[(round + place) % count].clone());
            }
        }
    }
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_of_monitors_is_followed_by_one_of_another_monitor_and_network() {
        let record = |number: u32, addresses: &[&str]| {
            let id = MonitorId::new(number).unwrap();
            let addresses = addresses.iter().map(ToString::to_string).collect();
            MonitorRecord::of_run(id, addresses, 1, String::new())
        };
        let three = [record(1, &["a4", "a6"]), record(2, &["b4", "b6"]), record(3, &["c4", "c6"])];
        let three: Vec<&MonitorRecord> = three.iter().collect();
        assert_eq!(spread(&three), ["a4", "b6", "c4", "a6", "b4", "c6"]);
        let uneven = [record(1, &[]), record(2, &["b4"]), record(3, &["c4", "c6"])];
        let uneven: Vec<&MonitorRecord> = uneven.iter().collect();
        assert_eq!(spread(&uneven), ["b4", "c4", "c6"]);
        assert_eq!(spread(&[]), [""; 0]);
    }
}
