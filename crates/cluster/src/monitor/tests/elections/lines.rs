//! Log lines about which monitor leads.

use super::*;

impl Monitors {
    /// Returns a monitor's log lines since the last call, with their levels.
    fn said(&mut self, number: usize) -> Vec<String> {
        let (its, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.lines).into_iter().partition(|(who, _)| *who == number);
        self.lines = others;
        let text = |(_, event): (usize, TraceEvent)| format!("{} {event}", event.level);
        its.into_iter().map(text).collect()
    }
}

#[test]
fn leadership_that_is_won_and_lost_leaves_lines_at_every_monitor() {
    let mut monitors = Monitors::new(2);
    monitors.advance(seconds(10));
    assert!(monitors.said(0).contains(&"info this monitor leads".to_string()));
    assert_eq!(monitors.said(1), ["info another monitor leads  leader=mon.1"]);
    monitors.advance(seconds(60));
    assert!(monitors.lines.is_empty(), "a renewal is none: {:?}", monitors.lines);
    monitors.cut.insert(0);
    monitors.advance(seconds(4));
    let lost = "warn this monitor no longer leads  why=\"this monitor's lease expired before it \
                was renewed\"";
    let said = monitors.said(0);
    assert_eq!(said, [lost, "warn no monitor leads"]);
    let said = monitors.said(1);
    assert!(said.contains(&"info this monitor leads".to_string()), "{said:?}");
    monitors.mend();
    monitors.advance(seconds(4));
    assert_eq!(monitors.said(0), ["info another monitor leads  leader=mon.2"]);
}

#[test]
fn a_state_store_that_cannot_be_asked_leaves_a_line_and_so_does_its_return() {
    let mut monitors = Monitors::new(1);
    monitors.advance(seconds(1));
    monitors.said(0);
    monitors.trouble(0, Some("it does not answer"));
    monitors.trouble(0, Some("it does not answer"));
    monitors.trouble(0, None);
    let out = "error the state store cannot be reached  why=\"it does not answer\"";
    assert_eq!(monitors.said(0), [out, "info the state store can be reached again"]);
}
