//! The figures of an engine.

use rocksdb::properties;
use std::ffi::CStr;

use super::{Family, Progress, Shared};
use format::engine::{FamilyStatistics, Stall, Statistics};

impl Shared {
    /// Returns a number that RocksDB knows of itself; 0 if it does not.
    pub(super) fn number(&self, name: &CStr) -> u64 {
        self.database.property_int_value(name).ok().flatten().unwrap_or(0)
    }

    pub(super) fn statistics(&self) -> Statistics {
        let counters = self.options.get_statistics().unwrap_or_default();
        let stall = match self.number(properties::IS_WRITE_STOPPED) {
            0 => match self.number(properties::ACTUAL_DELAYED_WRITE_RATE) {
                0 => self.stall_of_compactions(),
                rate => Stall::Slowed(rate),
            },
            _ => Stall::Stopped,
        };
        Statistics {
            families: self.families().iter().map(|family| self.figures_of(family)).collect(),
            cache_size: self.settings.cache_size,
            cache_used: self.cache.get_usage() as u64,
            cache_hit_count: counter(&counters, "rocksdb.block.cache.hit"),
            cache_miss_count: counter(&counters, "rocksdb.block.cache.miss"),
            stall,
            background_error_count: self.number(properties::BACKGROUND_ERRORS),
        }
    }

    /// Whether the writing thread waits for compactions.
    fn stall_of_compactions(&self) -> Stall {
        let waits = self.families().into_iter().filter_map(|family| {
            let column_family = self.database.cf_handle(&family.name)?;
            Some(self.compaction_wait(&family, &column_family))
        });
        match waits.max().filter(|wait| !wait.is_zero()) {
            Some(wait) => Stall::Slowed(((1 << 20) as f64 / wait.as_secs_f64()) as u64),
            None => Stall::None,
        }
    }

    fn figures_of(&self, family: &Family) -> FamilyStatistics {
        let column_family = self.database.cf_handle(&family.name);
        let number = |name: &CStr| {
            let column_family = column_family.as_ref()?;
            self.database.property_int_value_cf(column_family, name).ok().flatten()
        };
        let Progress { applied: lsn, flushed: flushed_lsn, unflushed: unflushed_lsn, .. } =
            *family.progress();
        FamilyStatistics {
            family: family.id,
            compression: family.compression,
            lsn,
            flushed_lsn,
            unflushed_lsn,
            is_damaged: family.is_damaged,
            disk_size: number(properties::TOTAL_SST_FILES_SIZE).unwrap_or(0),
            memtable_size: number(properties::SIZE_ALL_MEM_TABLES).unwrap_or(0),
            record_count_estimate: number(properties::ESTIMATE_NUM_KEYS).unwrap_or(0),
            compaction_size_pending: number(properties::ESTIMATE_PENDING_COMPACTION_BYTES)
                .unwrap_or(0),
        }
    }
}

/// Finds `NAME COUNT : NUMBER` among RocksDB's counters.
fn counter(counters: &str, name: &str) -> u64 {
    let line = counters.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" COUNT : "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::counter;

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let text = "rocksdb.block.cache.hit.x COUNT : 1\nrocksdb.block.cache.hit COUNT : 23\n";
        assert_eq!(counter(text, "rocksdb.block.cache.hit"), 23);
        assert_eq!(counter(text, "rocksdb.block.cache.miss"), 0);
    }
}
