//! What requests cost in the logic alone: counts of messages between OSDs, and loops that run under an
//! instruction counter (see docs/performance.md).

use super::cluster_rig::*;
use super::rig::*;

#[inline(never)]
fn writes_of_4_kib(cluster: &mut Cluster, count: u32) {
    for number in 0..count {
        let outcome = cluster.ask(0, write_in(place(1, number % 64), number / 64 % 4, 1, 7));
        assert!(is_written(&outcome), "{outcome:?}");
    }
}

#[inline(never)]
fn reads_of_4_kib(cluster: &mut Cluster, count: u32) {
    for _ in 0..count {
        assert_eq!(cluster.read_bytes(0, read(0, 1)), [7]);
    }
}

#[test]
fn a_write_costs_a_message_each_way_to_each_other_member_and_a_read_none() {
    for copies in [1, 2, 3] {
        let mut cluster = Cluster::serving(copies);
        writes_of_4_kib(&mut cluster, 256);
        let before = cluster.peer_message_count;
        writes_of_4_kib(&mut cluster, 1_000);
        let count = cluster.peer_message_count - before;
        assert_eq!(count, 2 * 1_000 * (copies as u64 - 1), "copies {copies}");
        reads_of_4_kib(&mut cluster, 1_000);
        assert_eq!(cluster.peer_message_count - before, count);
    }
}
