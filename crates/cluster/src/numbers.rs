//! How high numbers may be: ids, epochs, revisions, runs, transactions. They are counted up one by one, and a
//! recovery passes over some of each; no cluster lives to see these limits. A number beyond one was
//! never issued; rejected from any source: what follows from it would overflow.

use base::{Epoch, ImageId, MapRevision, MonitorId, OsdId, PoolId, SessionId};
use format::wire::{Member, PgEntry};

use crate::map::FenceRange;

/// Transactions, runs, tasks, revisions of OSDs' entries, bytes of a disk.
pub const NUMBER_MAX: u64 = 1 << 56;
/// Revisions of a pool's map.
pub const REVISION_MAX: MapRevision = MapRevision::new(1 << 48);
/// Sessions.
pub const SESSION_MAX: SessionId = SessionId::new(1 << 48);
/// Epochs of a PG.
pub const EPOCH_MAX: Epoch = Epoch::new(u32::MAX / 2);
/// OSDs: all that were ever given are gone through, for those that are forgotten.
pub(crate) const OSD_MAX: u32 = 1 << 20;
/// Images, pools and monitors.
pub(crate) const ID_MAX: u32 = u32::MAX / 2;

/// Whether there may ever have been such an entry of a PG. An error names the number that never was.
pub(crate) fn check_entry(entry: &PgEntry) -> Result<(), String> {
    let of_pg = |why: String| format!("PG {}: {why}", entry.pg);
    check_pool(entry.pg.pool).map_err(of_pg)?;
    check_epoch(entry.epoch).map_err(of_pg)?;
    check_revision(entry.revision).map_err(of_pg)?;
    let check_member = |member: &Member| {
        check_osd(member.osd)?;
        number("incarnation", member.incarnation.get(), NUMBER_MAX)
    };
    entry.members().try_for_each(check_member).map_err(of_pg)
}

/// As [`check_entry`], of ranges of sessions: they are in order, too, and apart from each other.
pub(crate) fn check_ranges(ranges: &[FenceRange]) -> Result<(), String> {
    let is_range = |(first, last): &FenceRange| first <= last;
    if !ranges.iter().all(is_range) || !ranges.is_sorted_by(|a, b| a.1 < b.0) {
        return Err("its ranges are not in order".to_string());
    }
    ranges.last().map_or(Ok(()), |(_, last)| check_session(*last))
}

pub(crate) fn check_epoch(epoch: Epoch) -> Result<(), String> {
    number("epoch", u64::from(epoch.get()), u64::from(EPOCH_MAX.get()))
}

pub(crate) fn check_revision(revision: MapRevision) -> Result<(), String> {
    number("revision", revision.get(), REVISION_MAX.get())
}

pub(crate) fn check_session(session: SessionId) -> Result<(), String> {
    number("session", session.get(), SESSION_MAX.get())
}

pub(crate) fn check_osd(osd: OsdId) -> Result<(), String> {
    number("id", u64::from(osd.get()), u64::from(OSD_MAX))
}

pub(crate) fn check_pool(pool: PoolId) -> Result<(), String> {
    number("id", u64::from(pool.get()), u64::from(ID_MAX))
}

pub(crate) fn check_image(image: ImageId) -> Result<(), String> {
    number("id", u64::from(image.get()), u64::from(ID_MAX))
}

pub(crate) fn check_monitor(monitor: MonitorId) -> Result<(), String> {
    number("id", u64::from(monitor.get()), u64::from(ID_MAX))
}

/// An error if `number` is above `max`; it names `what`.
pub(crate) fn number(what: &str, number: u64, max: u64) -> Result<(), String> {
    if number <= max {
        return Ok(());
    }
    Err(format!("its {what} is an impossible number: {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_in_order_and_apart() {
        let ranges = |numbers: &[(u64, u64)]| -> Vec<FenceRange> {
            let session =
                |(first, last): &(u64, u64)| (SessionId::new(*first), SessionId::new(*last));
            numbers.iter().map(session).collect()
        };
        for good in [&[][..], &[(1, 1)], &[(1, 4), (5, 5), (7, SESSION_MAX.get())]] {
            assert_eq!(check_ranges(&ranges(good)), Ok(()));
        }
        for bad in [&[(2, 1)][..], &[(1, 4), (4, 5)], &[(6, 7), (1, 2)], &[(1, u64::MAX)]] {
            assert!(check_ranges(&ranges(bad)).is_err(), "{bad:?}");
        }
    }
}
