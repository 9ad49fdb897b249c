//! Writes that are answered before they are durable, over real stores: their cost, and what is lost when
//! power fails.

use format::wire::{Op, Outcome};

use super::cluster_rig::*;
use super::rig::*;

/// Writes a unit lazily, and checks that the answer arrives before the write is durable.
fn write_lazily(cluster: &mut Cluster, byte: u8) {
    let mut op = write(0, 1, byte);
    if let Op::Write { lazy, .. } = &mut op {
        *lazy = true;
    }
    let outcome = cluster.ask(0, op);
    assert!(matches!(outcome, Ok(Outcome::Written { durable: false, .. })), "{outcome:?}");
}

fn flushes(cluster: &Cluster) -> Vec<usize> {
    cluster.hosts.iter().map(|host| host.disk.flush_count).collect()
}

fn cut_power(cluster: &mut Cluster, host: usize) {
    cluster.kill(host);
    cluster.hosts[host].disk.lose_power();
}

/// Starts the hosts that are down; the first `copies` hosts then serve.
fn serve_again(cluster: &mut Cluster, copies: usize) {
    for host in 0..copies {
        if cluster.hosts[host].node.is_none() {
            cluster.start(host);
        }
    }
    cluster.set_entry(&(0..copies).collect::<Vec<_>>(), &[]);
    cluster.advance(1_000);
    assert!(cluster.is_served(0), "{:?}", cluster.report(0));
}

#[test]
fn a_lazy_write_flushes_nowhere_and_a_sync_once_at_each_member() {
    let mut cluster = Cluster::serving(3);
    let before = flushes(&cluster);
    for byte in 1..=10 {
        write_lazily(&mut cluster, byte);
    }
    assert_eq!(flushes(&cluster), before);
    assert_eq!(cluster.read_bytes(0, read(0, 1)), [10]);
    assert_eq!(cluster.ask(0, Op::Sync), Ok(Outcome::Synced));
    assert_eq!(flushes(&cluster), before.iter().map(|count| count + 1).collect::<Vec<_>>());
    for host in 0..3 {
        cut_power(&mut cluster, host);
    }
    serve_again(&mut cluster, 3);
    assert_eq!(cluster.read_bytes(0, read(0, 1)), [10]);
    assert_eq!(cluster.blocks(0), cluster.blocks(2));
}

#[test]
fn unsynced_writes_are_lost_only_when_all_members_lose_power() {
    for lost in [&[0][..], &[1], &[0, 1]] {
        let mut cluster = Cluster::serving(2);
        write_lazily(&mut cluster, 1);
        assert_eq!(cluster.ask(0, Op::Sync), Ok(Outcome::Synced));
        write_lazily(&mut cluster, 2);
        for host in lost {
            cut_power(&mut cluster, *host);
        }
        serve_again(&mut cluster, 2);
        let expected = if lost.len() == 2 { 1 } else { 2 };
        assert_eq!(cluster.read_bytes(0, read(0, 1)), [expected], "{lost:?}");
        assert_eq!(cluster.blocks(0), cluster.blocks(1));
    }
}

#[test]
fn lazy_writes_that_wait_for_room_do_not_wait_for_the_periodic_sync() {
    let mut cluster = Cluster::serving_parity();
    let before = flushes(&cluster);
    let lazily = |stripe| {
        let (checksums, data) = fill(1, 1);
        Op::Write {
            place: place(1, stripe),
            offset: 0,
            checksums,
            data,
            expected: None,
            lazy: true,
        }
    };
    let sent: Vec<u64> = (0..1_000).map(|stripe| cluster.send(0, lazily(stripe))).collect();
    cluster.advance(1);
    let answered =
        |cluster: &Cluster| sent.iter().filter(|it| cluster.replies.contains_key(it)).count();
    let fitted = answered(&cluster);
    assert!((1..500).contains(&fitted), "{fitted} find room at once");
    // Half the time that the periodic sync lets pass.
    cluster.advance(500);
    assert_eq!(answered(&cluster), sent.len());
    assert!(sent.iter().all(|sequence| is_written(&cluster.replies[sequence])));
    for (before, after) in before.iter().zip(flushes(&cluster)).take(3) {
        assert!((before + 1..before + 1_000 / fitted * 4).contains(&after), "{after} flushes");
    }
}

#[test]
fn unsynced_writes_are_synced_after_a_while() {
    let mut cluster = Cluster::serving(2);
    write_lazily(&mut cluster, 1);
    let written = cluster.blocks(0)[0].1;
    let delete = Op::Zero { place: place(1, 0), offset: 0, length: 4 * UNIT, lazy: false };
    assert!(cluster.ask(0, delete).is_ok());
    assert!(cluster.hosts[0].node().pgs.get(PG).expect("it has a part").mark() < written);
    cluster.advance(20_000);
    assert!(cluster.hosts[0].node().pgs.get(PG).expect("it has a part").mark() > written);
    assert_eq!(cluster.blocks(0), [], "the floor has passed the tombstone");
}
