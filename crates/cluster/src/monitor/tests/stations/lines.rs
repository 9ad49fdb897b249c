//! Lines on who leads.

use super::*;

impl Town {
    /// What a station has said since the last look, with level.
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
    let mut town = Town::new(2);
    town.advance(seconds(10));
    assert!(town.said(0).contains(&"info this monitor leads".to_string()));
    assert_eq!(town.said(1), ["info another monitor leads  leader=mon.1"]);
    town.advance(seconds(60));
    assert!(town.lines.is_empty(), "a renewal is none: {:?}", town.lines);
    town.cut.insert(0);
    town.advance(seconds(4));
    let lost = "warn this monitor leads no longer  why=\"its lease ran out before it was renewed\"";
    let said = town.said(0);
    assert_eq!(said, [lost, "warn no monitor leads"]);
    let said = town.said(1);
    assert!(said.contains(&"info this monitor leads".to_string()), "{said:?}");
    town.mend();
    town.advance(seconds(4));
    assert_eq!(town.said(0), ["info another monitor leads  leader=mon.2"]);
}

#[test]
fn a_state_store_that_cannot_be_asked_leaves_a_line_and_so_does_its_return() {
    let mut town = Town::new(1);
    town.advance(seconds(1));
    town.said(0);
    town.trouble(0, Some("it does not answer"));
    town.trouble(0, Some("it does not answer"));
    town.trouble(0, None);
    let out = "error the state store cannot be asked  why=\"it does not answer\"";
    assert_eq!(town.said(0), [out, "info the state store can be asked again"]);
}
