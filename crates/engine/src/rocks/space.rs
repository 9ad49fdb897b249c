//! Space: whether little is left in the engine's file system, and what the engine does to get some back.
//!
//! Callers are told before the file system is full, so that removals, and what was begun, still have room. Removed
//! records take space until compactions meet what removed them in the lowest level. While little is left, they are
//! brought there: what is in memory is flushed, then one file of the lowest level after the other is compacted with
//! what lies above it, until nothing does. See rule 21 of `docs/internals/objects.md`.
//!
//! An engine without families keeps nothing, and needs no space: it never has little. The OSD's volumes may share its
//! file system, and must not be refused space for its sake.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use base::PoolId;
use rocksdb::{CompactOptions, LiveFile};

use super::queue::Popped;
use super::{Family, FlushRequest, Shared};
use format::engine::EngineEvent;

/// Little is left below this part of the file system.
const LOW_SHARE: u64 = 32;
/// But not above this many bytes, nor this part.
const LOW_MAX: u64 = 2 << 30;
const LOW_SHARE_MAX: u64 = 4;
/// How often the space is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// Enough must be there for so long before little space is over: a flush or a compaction may be under way.
const ENOUGH_FOR: Duration = Duration::from_secs(2);
/// How often what was written lately is flushed while little is left.
const FLUSH_INTERVAL: Duration = Duration::from_secs(10);

/// What is known of the space.
#[derive(Default)]
pub(super) struct SpaceWatch {
    looked_at: Option<Instant>,
    is_low: bool,
    /// Since when enough is left, though it is still said that it is not.
    enough_since: Option<Instant>,
}

impl SpaceWatch {
    /// Returns whether little is left, with so many free bytes.
    fn judge(&mut self, now: Instant, free: u64, low_below: u64) -> bool {
        match self.is_low {
            false => free < low_below,
            true if free < low_below / 4 * 5 => {
                self.enough_since = None;
                true
            }
            true => now.duration_since(*self.enough_since.get_or_insert(now)) < ENOUGH_FOR,
        }
    }
}

/// Returns below how many free bytes little is left of a file system of this size.
fn low_below(size: u64, least: u64) -> u64 {
    (size / LOW_SHARE).max(least).min(LOW_MAX).min(size / LOW_SHARE_MAX)
}

/// Returns size and free bytes of the file system of a directory.
fn size_and_free(directory: &Path) -> Option<(u64, u64)> {
    let found = rustix::fs::statvfs(directory).ok()?;
    Some((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
}

impl Shared {
    /// Looks whether little space is left, unless it was looked at lately, and tells when that changes.
    pub(super) fn look_at_space(&self) {
        // Another thread is looking.
        let Ok(mut watch) = self.space.try_lock() else { return };
        let now = Instant::now();
        let is_lately = |then: Instant| now.duration_since(then) < LOOK_INTERVAL;
        if watch.looked_at.is_some_and(is_lately) {
            return;
        }
        watch.looked_at = Some(now);
        let families = self.families();
        let is_low = match families.is_empty() {
            true => false,
            false => {
                let Some((size, free)) = size_and_free(&self.directory) else { return };
                let in_memory = |family: &std::sync::Arc<Family>| {
                    let sizes = [&family.unflushed_size, &family.flushing_size];
                    sizes.map(|size| size.load(Ordering::Acquire)).iter().sum::<u64>()
                };
                let free = free.saturating_sub(families.iter().map(in_memory).sum());
                watch.judge(now, free, low_below(size, self.settings.low_space_min))
            }
        };
        if std::mem::replace(&mut watch.is_low, is_low) != is_low {
            watch.enough_since = None;
            self.tell(None, EngineEvent::Space { is_low });
        }
    }

    /// Looks at the space, and gets some back while little is left.
    pub(super) fn run_reclaims(&self) {
        let mut flushed_at: Option<Instant> = None;
        // Of each family, the first key of the last file that was compacted.
        let mut compacted: BTreeMap<PoolId, Vec<u8>> = BTreeMap::new();
        let mut turn = 0;
        while let Popped::Nothing = self.reclaims.pop_within(LOOK_INTERVAL) {
            self.look_at_space();
            let is_low = super::lock(&self.space).is_low;
            if !is_low || self.usable().is_err() || self.probe().is_err() {
                continue;
            }
            let now = Instant::now();
            if flushed_at.is_none_or(|then| now.duration_since(then) >= FLUSH_INTERVAL) {
                flushed_at = Some(now);
                for family in self.families() {
                    if family.unflushed_size.load(Ordering::Acquire) > 0 {
                        self.flushes.push(FlushRequest { op: None, family: family.id });
                    }
                }
            }
            // One at a time: the space is looked at in between, and the engine may close.
            let families = self.families();
            let sound: Vec<_> = families.iter().filter(|family| !family.is_damaged).collect();
            turn += 1;
            if let Some(family) = sound.get(turn % sound.len().max(1)) {
                self.compact_next(family, compacted.entry(family.id).or_default());
            }
        }
    }

    /// Compacts the next file of the lowest level together with what lies above it, if there is space for
    /// that.
    fn compact_next(&self, family: &Family, last: &mut Vec<u8>) {
        let Ok(column_family) = self.column_family(family) else { return };
        let Some((_, free)) = size_and_free(&self.directory) else { return };
        let files = self.database.live_files().unwrap_or_default();
        let files: Vec<LiveFile> =
            files.into_iter().filter(|file| file.column_family_name == family.name).collect();
        let Some(next) = next_range(&files, last, free) else { return };
        let mut options = CompactOptions::default();
        // Flushes and other compactions go on beside it.
        options.set_exclusive_manual_compaction(false);
        let (start, end) = (Some(next.start.clone()), next.end);
        self.database.compact_range_cf_opt(&column_family, start, end, &options);
        *last = next.start;
    }
}

/// A range of keys that is compacted.
#[derive(PartialEq, Eq, Debug)]
struct NextRange {
    start: Vec<u8>,
    /// `None`: to the end.
    end: Option<Vec<u8>>,
}

/// Returns the range of the next file of the lowest level, behind the last one, above which something lies.
/// `None`: nothing does, or there is no space for the compaction.
fn next_range(files: &[LiveFile], last: &[u8], free: u64) -> Option<NextRange> {
    let lowest = files.iter().map(|file| file.level).max()?;
    let upper = || files.iter().filter(|file| file.level < lowest);
    // A flush makes files that overlap all of the first level: what is compacted first are all of these.
    let first_levels = files.iter().filter(|file| file.level > 0).map(|file| file.level).min();
    let is_first = |file: &&LiveFile| file.level == 0 || Some(file.level) == first_levels;
    let size_of = |files: &mut dyn Iterator<Item = &LiveFile>| -> u64 {
        files.map(|file| file.size as u64).sum()
    };
    let has_flushed = files.iter().any(|file| file.level == 0);
    let of_first = if has_flushed { size_of(&mut files.iter().filter(is_first)) } else { 0 };
    if lowest == 0 {
        return (of_first < free).then_some(NextRange { start: Vec::new(), end: None });
    }
    let overlap = |one: &LiveFile, other: &LiveFile| {
        one.start_key <= other.end_key && other.start_key <= one.end_key
    };
    let mut bottom: Vec<&LiveFile> = files.iter().filter(|file| file.level == lowest).collect();
    bottom.sort_by(|one, other| one.start_key.cmp(&other.start_key));
    // What is compacted with a file: all that lies above it, and all lowest files below that.
    let fits = |file: &LiveFile| {
        let above: Vec<&LiveFile> =
            upper().filter(|other| other.level > 0 && overlap(file, other)).collect();
        let is_below = |other: &&LiveFile| {
            other.level == lowest && above.iter().any(|above| overlap(above, other))
        };
        let of_bottom = match has_flushed && first_levels == Some(lowest) {
            // Counted with the first level.
            true => 0,
            false => size_of(&mut files.iter().filter(is_below)).max(file.size as u64),
        };
        of_first + size_of(&mut above.into_iter()) + of_bottom < free
    };
    let is_due = |file: &&&LiveFile| upper().any(|other| overlap(file, other)) && fits(file);
    let is_behind = |file: &&&LiveFile| file.start_key.as_deref().unwrap_or_default() > last;
    let next =
        bottom.iter().filter(is_behind).find(is_due).or_else(|| bottom.iter().find(is_due))?;
    Some(NextRange { start: next.start_key.clone().unwrap_or_default(), end: next.end_key.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_left_below_a_part_of_the_file_system() {
        let (mib, gib) = (1 << 20, 1 << 30);
        for (size, expected) in [
            (100 * mib, 25 * mib),
            (gib, 256 * mib),
            (8 * gib, 512 * mib),
            (32 * gib, gib),
            (64 * gib, 2 * gib),
            (1 << 50, 2 * gib),
        ] {
            assert_eq!(low_below(size, 512 * mib), expected, "{size}");
        }
        let (size, free) = size_and_free(Path::new("/")).expect("it is there");
        assert!(size > free && size_and_free(Path::new("/not/there")).is_none());
    }

    fn file(level: i32, start: u8, end: u8) -> LiveFile {
        LiveFile {
            column_family_name: String::new(),
            name: String::new(),
            size: 100,
            level,
            start_key: Some(vec![start]),
            end_key: Some(vec![end]),
            num_entries: 1,
            num_deletions: 0,
        }
    }

    #[test]
    fn files_of_the_lowest_level_come_one_by_one_while_something_lies_above_them() {
        let next = |files: &[LiveFile], last: &[u8], free| {
            next_range(files, last, free).map(|next| (next.start, next.end))
        };
        let range = |start: u8, end: u8| Some((vec![start], Some(vec![end])));
        assert_eq!(next(&[], b"", 1000), None);
        let lowest = [file(6, 1, 10), file(6, 11, 20), file(6, 21, 30)];
        assert_eq!(next(&lowest, b"", 1000), None, "nothing lies above");
        let files = [&lowest[..], &[file(5, 12, 25)]].concat();
        assert_eq!(next(&files, b"", 1000), range(11, 20));
        assert_eq!(next(&files, &[11], 1000), range(21, 30));
        assert_eq!(next(&files, &[21], 1000), range(11, 20), "the first one again");
        // With the upper file go all lowest ones below it.
        assert_eq!((next(&files, b"", 300), next(&files, b"", 301)), (None, range(11, 20)));
        // What does not fit is passed.
        let more = [&files[..], &[file(6, 40, 50), file(5, 41, 42)]].concat();
        assert_eq!(next(&more, b"", 300), range(40, 50));
        // What was flushed goes down with all of the first level.
        let files = [&files[..], &[file(0, 0, 10)]].concat();
        assert_eq!((next(&files, b"", 300), next(&files, b"", 301)), (None, range(1, 10)));
        assert_eq!(next(&[file(0, 1, 2)], b"", 1000), Some((vec![], None)));
        let small = [file(0, 1, 2), file(6, 1, 9)];
        assert_eq!((next(&small, b"", 200), next(&small, b"", 201)), (None, range(1, 9)));
    }
}
