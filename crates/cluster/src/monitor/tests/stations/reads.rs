//! For how long a monitor that may lose its leadership lets PGs be read.

use base::{Epoch, PgId, PoolId};

use super::*;

#[test]
fn a_leader_lets_pgs_be_read_no_longer_than_it_leads_for_sure() {
    let mut town = Town::new(2);
    town.ask(0, osd_create(1)).unwrap().unwrap();
    let osd = town.boot(0, 1, None);
    town.ask(0, pool_create()).unwrap().unwrap();
    let ask = |town: &mut Town, stamp| {
        let pg = PgId { pool: PoolId::FIRST, number: 0 };
        let pgs = (0..8).map(|epoch| (pg, Epoch::new(epoch))).collect();
        town.say(osd, &ToMonitor::ReadLease { stamp, pgs });
        let said = town.guests[osd].said.iter().rev();
        let mut answers = said.filter_map(|message| match message {
            FromMonitor::ReadLease { stamp: answered, valid_ms, pgs } => {
                assert_eq!((*answered, pgs.len()), (stamp, usize::from(*valid_ms > 0)));
                Some(u64::from(*valid_ms))
            }
            _ => None,
        });
        answers.next().expect("it is answered")
    };
    assert_eq!(ask(&mut town, 1), 600);
    // The store is not asked any more: its newest renewal may have been 500 ms ago, not more.
    town.cut.insert(0);
    let begin = town.now;
    let (mut stamp, mut lengths) = (1, Vec::new());
    while town.leaders() == [0] {
        let since = town.now.since(begin).as_millis();
        stamp += 1;
        let valid = ask(&mut town, stamp);
        // The lease is over on no clock before 1,600 ms, and ours may be a quarter faster.
        let is_over = valid == 0;
        assert!(is_over || since + valid * 5 / 4 <= 1600, "{valid} ms, after {since} ms");
        lengths.push(valid);
        town.advance(Duration::from_millis(50));
    }
    assert!(lengths.is_sorted_by(|one, next| one >= next), "{lengths:?}");
    assert_eq!((lengths.first(), lengths.last()), (Some(&600), Some(&0)), "{lengths:?}");
}
