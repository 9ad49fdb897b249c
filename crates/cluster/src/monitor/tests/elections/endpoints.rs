//! The leader reports problems with the state store's addresses.

use super::*;
use crate::state::{EndpointDown, EndpointRoom, Endpoints};

fn tell(monitors: &mut Monitors, number: usize, found: Endpoints) {
    monitors.events.push_back((number, Event::State(StateEvent::Endpoints(found))));
    monitors.settle();
}

fn messages(checks: &[Value]) -> Vec<String> {
    checks.iter().map(|check| check["message"].as_str().unwrap().to_string()).collect()
}

#[test]
fn whoever_leads_names_the_addresses_at_which_the_store_does_not_answer() {
    let code = "state_endpoint_down";
    let down = |endpoints: &[&str]| {
        let down = endpoints.iter().map(|endpoint| EndpointDown {
            endpoint: endpoint.to_string(),
            why: "refused".to_string(),
        });
        Endpoints { down: down.collect(), nearly_full: Vec::new() }
    };
    let mut monitors = Monitors::new(2);
    tell(&mut monitors, 0, down(&["http://a:1"]));
    tell(&mut monitors, 1, down(&["http://b:1"]));
    let named = messages(&monitors.checks(1, code));
    assert_eq!(named, ["the state store does not answer at http://a:1: refused"]);
    assert_eq!(monitors.ask(1, Command::Status).unwrap().unwrap()["health"], "warn");
    monitors.trouble(0, Some("etcd has no leader"));
    assert_eq!(messages(&monitors.checks(0, code)), [""; 0], "nowhere");
    // The next leader checks the addresses itself.
    monitors.kill(0);
    monitors.advance(seconds(3));
    assert_eq!(monitors.leaders(), [1]);
    let named = messages(&monitors.checks(1, code));
    assert_eq!(named, ["the state store does not answer at http://b:1: refused"]);
    tell(&mut monitors, 1, down(&[]));
    assert_eq!(messages(&monitors.checks(1, code)), [""; 0]);
}

#[test]
fn whoever_leads_names_the_addresses_at_which_the_store_is_nearly_full() {
    let code = "state_store_nearly_full";
    let full = |used_percent: &[u64]| {
        let room = used_percent.iter().map(|used_percent| EndpointRoom {
            endpoint: "http://a:1".to_string(),
            used_percent: *used_percent,
            size_max: 2 << 30,
        });
        Endpoints { down: Vec::new(), nearly_full: room.collect() }
    };
    let mut monitors = Monitors::new(1);
    assert_eq!(monitors.checks(0, code), [Value::Null; 0]);
    tell(&mut monitors, 0, full(&[81]));
    let checks = monitors.checks(0, code);
    assert_eq!(
        messages(&checks),
        [
            "the state store uses 81 % of 2 GiB at http://a:1: once it is full, it accepts no changes"
        ]
    );
    assert!(checks[0]["hint"].as_str().unwrap().contains("etcdctl defrag"), "{checks:?}");
    assert_eq!(checks[0]["severity"], "warn");
    // If the store cannot be reached at all, only that is reported.
    monitors.trouble(0, Some("etcd has no leader"));
    assert_eq!(monitors.checks(0, code), [Value::Null; 0]);
    monitors.trouble(0, None);
    assert_eq!(monitors.checks(0, code).len(), 1);
    tell(&mut monitors, 0, full(&[]));
    assert_eq!(monitors.checks(0, code), [Value::Null; 0]);
}
