//! Tests of removed pools, and of data of PGs in which an OSD no longer has a part.

use super::*;
use crate::report::why_idle;

fn cleared(rig: &Rig) -> usize {
    let told = rig.told.iter();
    told.filter(|told| **told == ToMonitor::PoolCleared { pool: POOL }).count()
}

#[test]
fn a_removed_pool_is_cleared_and_that_is_told_when_it_is_durable() {
    let mut rig = Rig::serving();
    for stripe in 0..300 {
        let op = write_in(place(1 + stripe % 2, stripe), 0, 1, 7);
        assert!(rig.ask(1, op).is_ok(), "{stripe}");
    }
    rig.advance(Duration::from_secs(2));
    assert!(last_report(&rig).used_bytes > 0);
    rig.holds_disk = true;
    let clear = FromMonitor::ClearPool { pool: POOL, pg_count: 1 };
    rig.monitor_says(clear.clone());
    assert_eq!(cleared(&rig), 0, "nothing is durable yet");
    let refused = rig.send(CLIENT, 1, write(0, 1, 9));
    rig.release_disk();
    rig.holds_disk = false;
    rig.advance(Duration::from_secs(10));
    assert_eq!(cleared(&rig), 1);
    assert!(matches!(rig.reply_to(refused), Some(Err(_))), "nobody writes to it any more");
    let report = last_report(&rig);
    assert_eq!(report.used_bytes, 0);
    assert_eq!((report.active, report.incomplete), (vec![], vec![]));
    // A repeated request is answered again: the first answer may have been lost.
    rig.monitor_says(clear.clone());
    assert_eq!(cleared(&rig), 2);
    let held: Vec<_> = rig.node.store.notes().map(|(key, _)| key).collect();
    assert_eq!(held, [blockstore::NoteKey::Cluster]);
    assert_eq!(rig.node.store.blocks(POOL, 0, u32::MAX, None).count(), 0, "no tombstone is left");
    // The data stays removed after a restart, and in a run that never saw the pool.
    let mut rig = Rig::over(rig.disk.clone());
    rig.join(2);
    assert_eq!(rig.node.store.blocks(POOL, 0, u32::MAX, None).count(), 0);
    rig.monitor_says(clear);
    assert_eq!(cleared(&rig), 1);
}

#[test]
fn a_pool_is_cleared_only_when_started_writes_have_ended() {
    let mut rig = Rig::serving();
    rig.holds_disk = true;
    let late = rig.send(CLIENT, 1, write(0, 1, 7));
    rig.monitor_says(FromMonitor::ClearPool { pool: POOL, pg_count: 1 });
    rig.release_disk();
    rig.holds_disk = false;
    rig.advance(Duration::from_secs(10));
    assert_eq!(rig.reply_to(late), Some(Err(Refusal::Stale(None))));
    assert_eq!(cleared(&rig), 1);
    assert_eq!(rig.node.store.blocks(POOL, 0, u32::MAX, None).count(), 0);
}

/// Returns a map with an entry whose only member is another OSD.
fn served_by_another(since: u64, epoch: u32) -> FromMonitor {
    elsewhere(since, since + 1, epoch)
}

/// Returns the same map in this revision.
pub fn elsewhere(since: u64, revision: u64, epoch: u32) -> FromMonitor {
    let other = OsdId::new(2).unwrap();
    let member = Member { osd: other, incarnation: Incarnation::new(1) };
    let entry = PgEntry { positions: vec![Some(member)], ..entry(epoch, 1) };
    let osd = OsdInfo {
        id: other,
        revision: 1,
        addresses: vec![],
        peer_addresses: Vec::new(),
        incarnation: member.incarnation,
        up: true,
        in_cluster: true,
    };
    let pools = vec![pool_delta(since, revision, vec![entry], &[])];
    FromMonitor::Map(MapDelta { osds: vec![osd], pools, ..MapDelta::default() })
}

/// Returns an OSD that has begun to remove its data of the PG, with a disk that completes nothing.
fn removing_superfluous_data() -> Rig {
    let mut rig = Rig::serving();
    for stripe in 0..10 {
        assert!(rig.ask(1, write_in(place(1, stripe), 0, 1, 7)).is_ok());
    }
    rig.advance(Duration::from_secs(2));
    rig.monitor_says(served_by_another(10, 2));
    rig.holds_disk = true;
    rig.advance(Duration::from_secs(4));
    assert!(!rig.node.reclaim.is_removing(PG), "not at once");
    rig.advance(Duration::from_secs(4));
    assert!(rig.node.reclaim.is_removing(PG));
    rig
}

#[test]
fn a_removal_that_failed_begins_anew_with_all_that_a_beginning_demands() {
    let mut rig = removing_superfluous_data();
    let mut effects = Vec::new();
    let failed = Err(blockstore::StoreError::Full);
    rig.node.on_reclaim_answer(rig.now, failed, &mut effects);
    rig.advance(Duration::from_secs(4));
    assert!(!rig.node.reclaim.is_removing(PG), "the wait begins anew");
    rig.advance(Duration::from_secs(4));
    assert!(rig.node.reclaim.is_removing(PG));
}

#[test]
fn an_osd_takes_no_part_while_its_old_data_is_removed_and_what_is_left_counts_for_nothing() {
    let mut rig = removing_superfluous_data();
    rig.monitor_says(map(11, 12, vec![entry(3, 1)], &[]));
    assert!(rig.node.pgs.get(PG).expect("it has a part").is_quiet());
    let why = why_idle(rig.node.pgs.get(PG).expect("it has a part"));
    assert!(why.contains("old data"), "{why}");
    rig.release_disk();
    assert!(!rig.node.reclaim.is_removing(PG));
    assert!(rig.ask(3, write(0, 1, 8)).is_ok());
    let note = rig.node.store.note(blockstore::NoteKey::Pg(PG)).unwrap();
    let record = pg::Record::decode(note).unwrap();
    assert_eq!(record.history.len(), 1, "nothing of the record before is left");
}

#[test]
fn a_suspect_pg_whose_data_was_removed_leaves_the_store_unsuspected() {
    let (mut rig, _) = super::read_after_rot(4);
    assert!(rig.node.store.has_unsettled_damage());
    rig.monitor_says(served_by_another(20, 3));
    rig.advance(Duration::from_secs(4));
    rig.advance(Duration::from_secs(4));
    assert!(rig.node.store.note(blockstore::NoteKey::Pg(PG)).is_none());
    assert!(!rig.node.store.has_unsettled_damage());
}

#[test]
fn data_of_a_pg_with_parity_is_removed_only_when_the_pg_is_active() {
    let rig = {
        let mut rig = Rig::serving();
        assert!(rig.ask(1, write_in(place(1, 0), 0, 1, 7)).is_ok());
        rig.advance(Duration::from_secs(2));
        rig
    };
    // For its removal, it makes no difference how the data came here.
    let mut rig = Rig::over(rig.disk.clone());
    rig.join(2);
    let FromMonitor::Map(mut delta) = served_by_another(0, 2) else { unreachable!() };
    let pool = &mut delta.pools[0];
    pool.revision = base::MapRevision::new(11);
    pool.pool.scheme = base::Scheme::Xor { data: 2 };
    let osds: Vec<OsdInfo> = (2..5)
        .map(|number| OsdInfo { id: OsdId::new(number).unwrap(), ..delta.osds[0].clone() })
        .collect();
    let members = osds.iter().map(|osd| Member { osd: osd.id, incarnation: osd.incarnation });
    pool.pgs[0].positions = members.map(Some).collect();
    delta.osds = osds;
    rig.monitor_says(FromMonitor::Map(delta));
    rig.advance(Duration::from_secs(20));
    let has_record = |rig: &Rig| rig.node.store.note(blockstore::NoteKey::Pg(PG)).is_some();
    assert!(has_record(&rig), "members may lack what this OSD has");
    let epoch = base::Epoch::new(2);
    assert_eq!(last_report(&rig).leftovers, [(PG, epoch)]);
    rig.monitor_says(FromMonitor::Active { pgs: vec![(PG, base::Epoch::new(1))] });
    rig.advance(Duration::from_secs(20));
    assert!(has_record(&rig), "that was an earlier epoch");
    rig.monitor_says(FromMonitor::Active { pgs: vec![(PG, epoch)] });
    rig.advance(Duration::from_secs(20));
    assert!(!has_record(&rig));
    assert_eq!(rig.node.store.blocks(POOL, 0, u32::MAX, None).count(), 0);
    assert_eq!(last_report(&rig).leftovers, []);
}
