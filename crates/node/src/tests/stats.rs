//! Tests that all of an OSD's work is counted, and that nothing is lost or counted as something else.

use base::{Duration, PoolId};
use cluster::message::{FromMonitor, ToMonitor};
use cluster::stats::{Counters, ImageSpace, OsdStats};
use format::wire::{Op, Outcome};

use super::cluster_rig::Cluster;
use super::objects;
use super::rig::*;

fn told(messages: &[ToMonitor]) -> Vec<OsdStats> {
    let stats = messages.iter().filter_map(|message| match message {
        ToMonitor::OsdStats(stats) => Some(stats.clone()),
        _ => None,
    });
    stats.collect()
}

/// Returns the sum of all counters that were reported, each period once.
fn sum(messages: &[ToMonitor]) -> Counters {
    let mut sum = Counters::default();
    let mut last = 0;
    for period in told(messages).iter().flat_map(|stats| &stats.periods) {
        if period.sequence > last {
            assert_eq!(period.sequence, last + 1);
            last = period.sequence;
            period.rows.iter().for_each(|row| sum.add(&row.counters));
            sum.add(&period.own);
        }
    }
    sum
}

#[test]
fn requests_are_counted_with_their_bytes_when_they_are_answered() {
    let mut rig = Rig::serving();
    assert!(matches!(rig.ask(1, write(0, 2, 7)), Ok(Outcome::Written { .. })));
    rig.ask(1, write(2, 1, 7)).unwrap();
    rig.ask(1, read(0, 3)).unwrap();
    rig.ask(1, Op::Zero { place: place(1, 0), offset: 0, length: 4096, lazy: false }).unwrap();
    rig.ask(1, Op::Sync).unwrap();
    rig.advance(Duration::from_secs(3));
    let sum = sum(&rig.told);
    assert_eq!((sum.write.ops, sum.write.bytes), (2, 3 * 4096));
    assert_eq!((sum.read.ops, sum.read.bytes), (1, 3 * 4096));
    assert_eq!((sum.trim.ops, sum.trim.bytes), (1, 4096));
    assert_eq!((sum.flush.ops, sum.stored.ops, sum.stored.bytes), (1, 2, 3 * 4096));
    assert_eq!((sum.failed, sum.refused_full), (0, 0));
    assert!(sum.write.latencies.percentile(99).is_some());
    let count = told(&rig.told).len();
    rig.advance(Duration::from_secs(60));
    assert_eq!(told(&rig.told).len(), count, "who does nothing says nothing");
}

#[test]
fn work_on_objects_is_counted_for_their_pool() {
    let mut rig = objects::serving_clients();
    rig.ask(1, objects::put_of(1, 300)).unwrap();
    rig.ask(1, objects::put_of(2, 60 << 10)).unwrap();
    let listed = rig.ask(1, objects::list(&[]));
    assert!(matches!(listed, Ok(Outcome::Listed { .. })));
    rig.advance(Duration::from_secs(3));
    let sum = sum(&rig.told);
    assert_eq!((sum.write.ops, sum.read.ops), (2, 1));
    assert!((60_300..62_000).contains(&sum.write.bytes), "{}", sum.write.bytes);
    assert!((10..200).contains(&sum.read.bytes), "{}", sum.read.bytes);
    assert_eq!(sum.stored.ops, 2);
    assert!((60_300..70_000).contains(&sum.stored.bytes), "{}", sum.stored.bytes);
    let pools = told(&rig.told).into_iter().flat_map(|stats| stats.periods);
    let rows: Vec<_> = pools.flat_map(|period| period.rows).collect();
    assert!(rows.iter().all(|row| (row.pool, row.image) == (PoolId::FIRST, None)), "{rows:?}");
}

#[test]
fn unsaved_periods_are_sent_again_over_the_next_connection_only() {
    let mut rig = Rig::serving();
    for count in 1..=3 {
        for _ in 0..count {
            rig.ask(1, write(0, 1, 7)).unwrap();
        }
        rig.advance(Duration::from_secs(3));
    }
    let sequences = |rig: &Rig| -> Vec<Vec<u64>> {
        let periods = |stats: &OsdStats| stats.periods.iter().map(|p| p.sequence).collect();
        told(&rig.told).iter().map(periods).collect()
    };
    assert_eq!(sequences(&rig), [[1], [2], [3]]);
    rig.monitor_says(FromMonitor::StatsSaved { sequence: 1 });
    rig.close(rig.link());
    rig.ask(1, write(0, 1, 7)).unwrap();
    rig.advance(Duration::from_secs(3));
    rig.join(1);
    rig.advance(Duration::from_secs(3));
    assert_eq!(*sequences(&rig).last().unwrap(), [2, 3, 4], "in one message");
    assert_eq!(sum(&rig.told).write.ops, 7);
    rig.monitor_says(FromMonitor::StatsSaved { sequence: 4 });
    rig.close(rig.link());
    rig.advance(Duration::from_secs(3));
    rig.join(1);
    rig.advance(Duration::from_secs(3));
    assert!(sequences(&rig).last().unwrap().is_empty());
}

#[test]
fn a_planned_stop_tells_what_was_counted_to_the_last() {
    let mut rig = Rig::serving();
    rig.ask(1, write(0, 1, 7)).unwrap();
    rig.apply(crate::Event::Shutdown);
    assert_eq!(sum(&rig.told).write.ops, 1);
}

#[test]
fn space_is_told_whole_and_then_as_it_changes() {
    let mut rig = Rig::serving();
    rig.advance(Duration::from_secs(3));
    rig.ask(1, write_in(place(1, 0), 0, 1, 7)).unwrap();
    rig.ask(1, write_in(place(1, 1), 0, 1, 7)).unwrap();
    rig.ask(1, write_in(place(2, 0), 0, 1, 7)).unwrap();
    rig.advance(Duration::from_secs(3));
    let block = base::BlockSize::MIN.bytes();
    let space = |image: u32, bytes| ImageSpace { image: place(image, 0).image, bytes };
    let first = told(&rig.told).remove(0);
    assert_eq!((first.space, first.space_is_whole), (vec![], true));
    let last = told(&rig.told).pop().unwrap();
    assert_eq!(
        (last.space, last.space_is_whole),
        (vec![space(1, 2 * block), space(2, block)], false)
    );
    // Overwriting a block uses no further space, and a zeroed block uses none.
    rig.ask(1, write_in(place(2, 0), 3, 1, 8)).unwrap();
    let length = block as u32;
    rig.ask(1, Op::Zero { place: place(1, 0), offset: 0, length, lazy: false }).unwrap();
    rig.advance(Duration::from_secs(3));
    assert_eq!(told(&rig.told).pop().unwrap().space, [space(1, block)]);
    rig.close(rig.link());
    rig.advance(Duration::from_secs(3));
    rig.join(1);
    rig.advance(Duration::from_secs(3));
    let last = told(&rig.told).pop().unwrap();
    assert_eq!((last.space, last.space_is_whole), (vec![space(1, block), space(2, block)], true));
}

#[test]
fn every_copy_is_counted_where_it_is_stored_and_recovery_apart() {
    let mut cluster = Cluster::serving(2);
    for stripe in 0..20 {
        cluster.ask(0, write_in(place(1, stripe), 0, 2, 7)).unwrap();
    }
    cluster.advance(3_000);
    let of = |cluster: &Cluster, host: usize| sum(&cluster.hosts[host].told);
    let bytes = 20 * 2 * 4096;
    let (first, second) = (of(&cluster, 0), of(&cluster, 1));
    assert_eq!((first.write.bytes, first.stored.bytes), (bytes, bytes));
    assert_eq!((second.write.bytes, second.stored.bytes), (0, bytes));
    assert_eq!((first.recovered.ops, second.recovered.ops), (0, 0));
    assert_eq!(first.read.ops, 0);
    // The third host is backfilled: the data that it receives counts as recovery.
    cluster.set_entry(&[0, 1], &[2]);
    cluster.advance(10_000);
    let third = of(&cluster, 2);
    assert_eq!((third.write.ops, third.recovered.ops, third.recovered.bytes), (0, 20, bytes));
    assert!(told(&cluster.hosts[0].told).iter().flat_map(|s| &s.periods).all(|period| {
        period.rows.iter().all(|row| row.pool == PoolId::FIRST && row.image.is_some())
    }));
}
