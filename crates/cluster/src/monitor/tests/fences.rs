//! The number of fences stays bounded, however many sessions begin and end.

use base::{PoolId, SessionId};

use super::rig::{Rig, osd_id};
use crate::map::ClusterMap;
use crate::message::{FromMonitor, ToMonitor};
use crate::records::{Key, Record};

const GIB: u64 = 1 << 30;

/// Opens sessions of the volume one after another; each loses its connection and is fenced by the next
/// attach.
fn fence_many(rig: &mut Rig, volume: &str, count: usize) -> Vec<SessionId> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        let client = rig.client();
        let (session, _) = rig.open_session(client, volume).unwrap().unwrap();
        rig.say(client, &ToMonitor::CloseSession { session, unanswered: true });
        rig.break_connection(client);
        sessions.push(session);
    }
    sessions
}

#[test]
fn fences_become_ranges_that_spare_those_who_go_on() {
    let mut rig = Rig::with_pool(2, 8);
    rig.make_volume("v", GIB).unwrap();
    rig.make_volume("shared", GIB).unwrap();
    let mut watching = ClusterMap::default();
    let watcher = rig.client();
    rig.subscribe(watcher, &mut watching).unwrap();
    let (mut ended, mut open) = (Vec::new(), Vec::new());
    for _ in 0..20 {
        let client = rig.client();
        open.push(rig.open_session(client, "shared").unwrap().unwrap().0);
        ended.extend(fence_many(&mut rig, "v", 20));
        // A new subscriber receives all fences.
        let mut map = ClusterMap::default();
        let client = rig.client();
        rig.subscribe(client, &mut map).unwrap();
        rig.read_map(watcher, &mut watching).unwrap();
        let last = ended.pop().expect("its session is fenced by the next one");
        for map in [&map, &watching, &rig.osds[&osd_id(1)].map] {
            let pool = map.pools.values().next().unwrap();
            assert!(ended.iter().all(|session| pool.is_fenced(*session)));
            assert!(open.iter().chain([&last]).all(|session| !pool.is_fenced(*session)));
            assert!(pool.fences.len() <= 17.max(open.len() + 1), "{}", pool.fences.len());
        }
        ended.push(last);
    }
    let Some(Record::Fence(record)) = rig.monitor.committed.record(&Key::Fence(PoolId::FIRST))
    else {
        panic!("there are fences")
    };
    assert!(record.count() < 50, "{} for {} sessions", record.count(), ended.len());
    assert!(record.ranges.len() >= 19, "{:?}", record.ranges);
    // No open session was ended, and a new leader continues in the same way.
    rig.restart();
    rig.tick();
    for session in open {
        let client = rig.client();
        let reign = rig.monitor.committed.session(session).unwrap().reign;
        rig.say(client, &ToMonitor::ResumeSession { session, reign, turn: 0 });
        let told = rig.inbox.get(&client).into_iter().flatten();
        assert!(!told.into_iter().any(|m| *m == FromMonitor::SessionEnded { session }));
        assert_eq!(rig.monitor.sessions.connection(session), Some(client));
    }
    fence_many(&mut rig, "v", 2);
}
