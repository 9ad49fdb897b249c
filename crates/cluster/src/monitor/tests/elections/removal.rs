//! Monitors that were removed, and monitors whose record is missing although they were not removed.

use super::*;

#[test]
fn a_monitor_that_is_there_is_not_forgotten_and_one_that_is_not_can_be() {
    let mut monitors = Monitors::new(2);
    let remove = |monitor: usize| Command::MonitorRemove { monitor: monitor_id(monitor) };
    let code = |answer: Option<Result<Value, Failure>>| answer.unwrap().unwrap_err().code;
    assert_eq!(code(monitors.ask(0, remove(0))), "running");
    assert_eq!(code(monitors.ask(0, remove(1))), "running");
    monitors.kill(1);
    monitors.ask(0, remove(1)).unwrap().unwrap();
    let removed = monitors.stored("monitor/2");
    assert!(removed.is_some(), "it is known that it was one");
    assert_eq!(code(monitors.ask(0, remove(1))), "not_found");
    // The removed monitor is not admitted again, whether another monitor leads or it could lead itself.
    monitors.start(1);
    monitors.advance(seconds(1));
    let [StopReason::Removed(why)] = &monitors.stopped[..] else {
        panic!("{:?}", monitors.stopped)
    };
    assert!(why.contains("mon.2 was removed") && why.contains("ashlar mon create"), "{why}");
    assert_eq!(monitors.stored("monitor/2"), removed);
    let made = monitors.ask(0, Command::MonitorCreate).unwrap().unwrap();
    assert_eq!(made["id"], 3, "ids are not given again");
    monitors.kill(0);
    monitors.start(1);
    monitors.advance(seconds(10));
    let [_, StopReason::Removed(_)] = &monitors.stopped[..] else {
        panic!("{:?}", monitors.stopped)
    };
    assert_eq!(monitors.stored("monitor/2"), removed);
}

#[test]
fn a_monitor_that_the_state_does_not_know_was_not_removed() {
    // A restored state may lack the monitor's record, although the id counter shows that higher ids were
    // issued.
    let mut monitors = Monitors::new(0);
    monitors.processes.extend([None, None]);
    monitors.start(1);
    monitors.advance(seconds(10));
    assert_eq!(monitors.stored("counter/monitor").unwrap()["last"], 2);
    monitors.start(0);
    monitors.advance(seconds(1));
    assert_eq!(monitors.stopped, []);
    assert!(monitors.stored("monitor/1").is_some());
}
