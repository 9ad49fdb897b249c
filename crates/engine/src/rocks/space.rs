//! Space: whether little is left in the engine's file system, and what the engine does to get some back.
//!
//! Callers are told before the file system is full, so that removals, and what was begun, still have room. See rule 21
//! of `docs/internals/objects.md`.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{FlushRequest, Shared};
use format::engine::EngineEvent;

/// Little is left below this part of the file system.
const LOW_SHARE: u64 = 32;
/// But not above this many bytes.
const LOW_MAX: u64 = 2 << 30;
/// How often the space is looked at, at most.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How often what was removed lately is written to files while little is left, so that it is compacted away.
const RECLAIM_INTERVAL: Duration = Duration::from_secs(10);
/// How many files of flushes a family has before they are compacted: while little is left, and as usual.
const FILES_BEFORE_COMPACTION: (&str, &str) = ("1", "4");

/// What is known of the space.
#[derive(Default)]
pub(super) struct SpaceWatch {
    looked_at: Option<Instant>,
    flushed_at: Option<Instant>,
    is_low: bool,
}

/// Returns below how many free bytes little is left of a file system of this size.
fn low_below(size: u64, least: u64) -> u64 {
    (size / LOW_SHARE).max(least).min(LOW_MAX).min(size / 2)
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
        let is_within =
            |then: Option<Instant>, span| then.is_some_and(|then| now.duration_since(then) < span);
        if is_within(watch.looked_at, LOOK_INTERVAL) {
            return;
        }
        watch.looked_at = Some(now);
        let Some((size, free)) = size_and_free(&self.directory) else { return };
        let families = self.families();
        let unflushed = families.iter().map(|family| family.unflushed_size.load(Ordering::Acquire));
        let free = free.saturating_sub(unflushed.sum());
        let low_below = low_below(size, self.settings.low_space_min);
        let is_low = match watch.is_low {
            true => free < low_below / 4 * 5,
            false => free < low_below,
        };
        if std::mem::replace(&mut watch.is_low, is_low) != is_low {
            self.tell(None, EngineEvent::Space { is_low });
            let (few, usual) = FILES_BEFORE_COMPACTION;
            let count = if is_low { few } else { usual };
            for family in &families {
                // If it is not taken, space comes back later.
                let Ok(column_family) = self.column_family(family) else { continue };
                let option = [("level0_file_num_compaction_trigger", count)];
                let _ = self.database.set_options_cf(&column_family, &option);
            }
        }
        if is_low && !is_within(watch.flushed_at, RECLAIM_INTERVAL) {
            watch.flushed_at = Some(now);
            for family in families {
                if family.unflushed_size.load(Ordering::Acquire) > 0 {
                    self.flushes.push(FlushRequest { op: None, family: family.id });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn little_is_left_below_a_part_of_the_file_system() {
        let (mib, gib) = (1 << 20, 1 << 30);
        for (size, expected) in [
            (100 * mib, 50 * mib),
            (gib, 128 * mib),
            (8 * gib, 256 * mib),
            (64 * gib, 2 * gib),
            (1 << 50, 2 * gib),
        ] {
            assert_eq!(low_below(size, 128 * mib), expected, "{size}");
        }
        let (size, free) = size_and_free(Path::new("/")).expect("it is there");
        assert!(size > free && size_and_free(Path::new("/not/there")).is_none());
    }
}
