//! Upper limits of ids, epochs, revisions, runs and transactions. These are counted up one by one, and a
//! recovery skips some of each; no cluster lives long enough to reach the limits. A number above its limit
//! was never issued. It is rejected from any source, because calculations with it could overflow.

use base::{Epoch, ImageId, MapRevision, MonitorId, OsdId, PoolId, SessionId, SessionRange};
use format::wire::{Member, PgEntry};

/// Limit of transaction numbers, incarnations, task ids, revisions of OSD entries, and bytes of a disk.
pub const NUMBER_MAX: u64 = 1 << 56;
/// Limit of revisions of a pool's map.
pub const REVISION_MAX: MapRevision = MapRevision::new(1 << 48);
/// Limit of session ids.
pub const SESSION_MAX: SessionId = SessionId::new(1 << 48);
/// Limit of epochs of a PG.
pub const EPOCH_MAX: Epoch = Epoch::new(u32::MAX / 2);
/// Limit of OSD ids. The limit is low because the search for removed OSDs iterates over all ids ever issued.
pub(crate) const OSD_MAX: u32 = 1 << 20;
/// Limit of ids of images, pools and monitors.
pub(crate) const ID_MAX: u32 = u32::MAX / 2;

/// Checks that all numbers in a PG entry may have been issued. The error identifies one that cannot have
/// been.
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

/// Like [`check_entry`], for ranges of sessions; the ranges must also be in order and not overlap.
pub(crate) fn check_ranges(ranges: &[SessionRange]) -> Result<(), String> {
    let is_range = |(first, last): &SessionRange| first <= last;
    if !ranges.iter().all(is_range) || !ranges.is_sorted_by(|a, b| a.1 < b.0) {
        return Err("the session ranges are out of order or overlap".to_string());
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

/// Returns an error that contains `what` if `number` is above `max`.
pub(crate) fn number(what: &str, number: u64, max: u64) -> Result<(), String> {
    if number <= max {
        return Ok(());
    }
    Err(format!("the {what} is out of range: {number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_in_order_and_apart() {
        let ranges = |numbers: &[(u64, u64)]| -> Vec<SessionRange> {
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
