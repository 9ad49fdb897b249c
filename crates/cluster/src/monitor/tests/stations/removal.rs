//! Monitors that are removed, and those that are not and are unknown.

use super::*;

#[test]
fn a_monitor_that_is_there_is_not_forgotten_and_one_that_is_not_can_be() {
    let mut town = Town::new(2);
    let remove = |monitor: usize| Command::MonitorRemove { monitor: monitor_id(monitor) };
    let code = |answer: Option<Result<Value, Failure>>| answer.unwrap().unwrap_err().code;
    assert_eq!(code(town.ask(0, remove(0))), "running");
    assert_eq!(code(town.ask(0, remove(1))), "running");
    town.kill(1);
    town.ask(0, remove(1)).unwrap().unwrap();
    let removed = town.stored("monitor/2");
    assert!(removed.is_some(), "it is known that it was one");
    assert_eq!(code(town.ask(0, remove(1))), "not_found");
    // It is not taken in again, whether another one leads or it would lead itself.
    town.start(1);
    town.advance(seconds(1));
    let [StopReason::Removed(why)] = &town.stopped[..] else { panic!("{:?}", town.stopped) };
    assert!(why.contains("mon.2 was removed") && why.contains("ashlar mon create"), "{why}");
    assert_eq!(town.stored("monitor/2"), removed);
    let made = town.ask(0, Command::MonitorCreate).unwrap().unwrap();
    assert_eq!(made["id"], 3, "ids are not given again");
    town.kill(0);
    town.start(1);
    town.advance(seconds(10));
    let [_, StopReason::Removed(_)] = &town.stopped[..] else { panic!("{:?}", town.stopped) };
    assert_eq!(town.stored("monitor/2"), removed);
}

#[test]
fn a_monitor_that_the_state_does_not_know_was_not_removed() {
    // A restored state may have forgotten it, while ids above its own are known to be given.
    let mut town = Town::new(0);
    town.stations.extend([None, None]);
    town.start(1);
    town.advance(seconds(10));
    assert_eq!(town.stored("counter/monitor").unwrap()["last"], 2);
    town.start(0);
    town.advance(seconds(1));
    assert_eq!(town.stopped, []);
    assert!(town.stored("monitor/1").is_some());
}
