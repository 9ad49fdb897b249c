//! What an OSD reports of PGs of which no acting member is up: copies from which an operator may continue.

use base::{Duration, Incarnation, OsdId, Position};
use cluster::map::{MapDelta, OsdInfo};
use cluster::message::FromMonitor;
use format::wire::{Learner, Member, PgEntry};

use super::*;

/// An operator may continue with what an OSD has that was a member before, if no acting member is up.
#[test]
fn what_was_recorded_before_is_reported_while_no_acting_member_is_up() {
    let mut rig = Rig::serving();
    rig.ask(1, write(0, 4, 7)).unwrap();
    rig.advance(Duration::from_secs(1));
    assert_eq!(last_report(&rig).older_copies, Some(Vec::new()), "it is a member");
    let entry = rig.node.cluster.pg(PG).expect("it has the map").clone();
    let other = OsdId::new(OSD.get() + 1).expect("it is not zero");
    let lost = Member { osd: other, incarnation: Incarnation::new(1) };
    let me = entry.acting_member(OSD).expect("it is a member");
    let learner = Learner { member: me, position: Position::FIRST };
    let (epoch, positions) = (entry.epoch.next(), vec![Some(lost)]);
    let (primary, learners) = (Some(Position::FIRST), vec![learner]);
    next_entry(&mut rig, PgEntry { epoch, positions, primary, learners, ..entry.clone() });
    rig.advance(Duration::from_secs(1));
    let copies = last_report(&rig).older_copies.clone().expect("this version says it");
    let [copy] = &copies[..] else { panic!("{copies:?}") };
    assert_eq!((copy.pg, copy.epoch, &copy.unfit), (PG, entry.epoch, &None));
    assert_eq!(copy.complete, (entry.epoch, 1), "one write");
    // The member is back: it has everything.
    let info = OsdInfo {
        id: other,
        revision: 9,
        addresses: vec!["unix:other".into()],
        peer_addresses: Vec::new(),
        incarnation: lost.incarnation,
        up: true,
        in_cluster: true,
    };
    let osds = vec![info.clone()];
    rig.monitor_says(FromMonitor::Map(MapDelta { osds, ..MapDelta::default() }));
    rig.advance(Duration::from_secs(1));
    assert_eq!(last_report(&rig).older_copies, Some(Vec::new()));
    let osds = vec![OsdInfo { up: false, revision: 10, ..info }];
    rig.monitor_says(FromMonitor::Map(MapDelta { osds, ..MapDelta::default() }));
    rig.advance(Duration::from_secs(1));
    assert_eq!(last_report(&rig).older_copies.as_ref().map(Vec::len), Some(1));
    // All positions have members: the copy here may be removed at any time.
    let (epoch, learners) = (epoch.next(), Vec::new());
    let positions = vec![Some(lost)];
    next_entry(&mut rig, PgEntry { epoch, positions, primary, learners, ..entry });
    rig.advance(Duration::from_secs(1));
    assert_eq!(last_report(&rig).older_copies, Some(Vec::new()));
}
