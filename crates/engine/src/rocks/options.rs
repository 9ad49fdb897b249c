//! Settings of an engine, and the options of RocksDB that follow from them.

use std::ffi::c_void;

use rocksdb::{BlockBasedOptions, Cache, DBCompressionType, Env, LogLevel, Options, WriteOptions};

use format::engine::Compression;

/// RocksDB stops the writes of a family that has so many files at its first level, and slows them and lets
/// flushes wait from half of them on. Only a net: the writing thread slows them long before.
pub(super) const FIRST_FILES_STOP: u32 = 128;

/// A file is compacted if half of some records that follow one another are deletions: scans pass them one
/// by one.
const DELETIONS_WINDOW: usize = 8_192;

/// What an engine may use. Nothing of it is frozen in the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Capacity of the cache of uncompressed blocks, in bytes. Indexes and filters of the files are in it,
    /// too.
    pub cache_size: u64,
    /// When all families together have so many unflushed bytes, one is flushed. All memtables together take
    /// at most about four times as much, if flushes do not keep up.
    pub write_buffer_size: u64,
    /// Flushes and compactions at the same time, each on a thread of RocksDB. Those for compactions have the
    /// lowest priority: the OSD's loop goes before.
    pub background_jobs: u32,
    /// The limit of what they write, in bytes per second. `None`: no limit.
    pub background_rate_max: Option<u64>,
    /// Threads that answer reads.
    pub read_threads: u32,
    /// Files that are open at the same time.
    pub open_files_max: u32,
    /// The least space of the file system, in bytes, below which little is left: a 32nd of it, but at least
    /// this, and at most 2 GiB or a quarter of it.
    pub low_space_min: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            cache_size: 256 << 20,
            write_buffer_size: 64 << 20,
            background_jobs: 4,
            background_rate_max: None,
            read_threads: 2,
            open_files_max: 1024,
            low_space_min: 512 << 20,
        }
    }
}

/// Options of the database. `create`: there is none yet.
pub(super) fn database_options(settings: &Settings, cache: &Cache, create: bool) -> Options {
    let mut options = family_options(settings, cache, Compression::None);
    options.create_if_missing(create);
    options.set_error_if_exists(create);
    options.set_paranoid_checks(true);
    options.set_max_background_jobs(settings.background_jobs.clamp(1, 64) as i32);
    // RocksDB has one environment in a process, and makes a first one here only.
    if let Ok(mut environment) = Env::new() {
        environment.lower_thread_pool_cpu_priority();
        options.set_env(&environment);
    }
    if let Some(rate) = settings.background_rate_max {
        options.set_ratelimiter(i64::try_from(rate.max(1)).unwrap_or(i64::MAX), 100_000, 10);
    }
    options.set_max_open_files(settings.open_files_max.clamp(64, 1 << 20) as i32);
    // A net below our own flushes, see `docs/internals/engine.md`.
    options.set_db_write_buffer_size(bytes(settings.write_buffer_size.saturating_mul(3)));
    options.set_bytes_per_sync(1 << 20);
    // Its text log cannot be switched off, see `directory.rs`.
    options.set_log_level(LogLevel::Fatal);
    options.set_max_log_file_size(0);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    options.enable_statistics();
    options
}

/// Options of a column family.
pub(super) fn family_options(
    settings: &Settings,
    cache: &Cache,
    compression: Compression,
) -> Options {
    let mut table = BlockBasedOptions::default();
    table.set_format_version(5);
    table.set_block_size(16 << 10);
    table.set_block_cache(cache);
    table.set_bloom_filter(10.0, false);
    // Memory is bounded by the cache, however many records there are.
    table.set_cache_index_and_filter_blocks(true);
    table.set_pin_l0_filter_and_index_blocks_in_cache(true);

    let mut options = Options::default();
    options.set_block_based_table_factory(&table);
    compact_on_deletions(&mut options, cache);
    options.set_write_buffer_size(bytes(settings.write_buffer_size.saturating_mul(5) / 4));
    options.set_max_write_buffer_number(3);
    options.set_level_zero_slowdown_writes_trigger(FIRST_FILES_STOP as i32 / 2);
    options.set_level_zero_stop_writes_trigger(FIRST_FILES_STOP as i32);
    options.set_level_compaction_dynamic_level_bytes(true);
    // So much of the next level lies below a file at most: it is compacted while little space is left.
    options.set_max_compaction_bytes(512 << 20);
    options.set_compression_type(match compression {
        Compression::None => DBCompressionType::None,
        Compression::Snappy => DBCompressionType::Snappy,
        Compression::Lz4 => DBCompressionType::Lz4,
        Compression::Lz4High => DBCompressionType::Lz4hc,
        Compression::Zstd => DBCompressionType::Zstd,
        Compression::Zlib | Compression::ZlibBest => DBCompressionType::Zlib,
        Compression::Bzip2 => DBCompressionType::Bz2,
    });
    if compression == Compression::ZlibBest {
        // Window bits as by default; level; strategy; no dictionary.
        options.set_compression_options(-14, 9, 0, 0);
    }
    options
}

#[allow(unsafe_code)]
unsafe extern "C" {
    /// Part of RocksDB's C interface that the crate does not have.
    fn rocksdb_options_add_compact_on_deletion_collector_factory(
        options: *mut c_void,
        window_size: usize,
        deletions_trigger: usize,
    );
}

/// Files full of deletions are compacted. Requires: of what the options hold, nothing but a table factory
/// with this cache was set by a value of the crate.
#[allow(unsafe_code)]
fn compact_on_deletions(options: &mut Options, cache: &Cache) {
    let options = pointer_of(options, cache);
    // SAFETY: it is RocksDB's own pointer, which the options keep alive, and nothing else uses them now.
    unsafe {
        rocksdb_options_add_compact_on_deletion_collector_factory(
            options,
            DELETIONS_WINDOW,
            DELETIONS_WINDOW / 2,
        );
    }
}

/// Returns RocksDB's pointer, which the crate does not give away. The options consist of it and of what
/// must live as long as they do: of that there is a cache, whose pointer is known, and nothing else. So it
/// is the one word that is neither the cache's, nor zero, nor a tag. The workspace pins the crate's
/// version.
#[allow(unsafe_code)]
fn pointer_of(options: &Options, cache: &Cache) -> *mut c_void {
    type Word = *mut c_void;
    const WORD_COUNT: usize = size_of::<Options>() / size_of::<Word>();
    const {
        assert!(size_of::<Options>() == WORD_COUNT * size_of::<Word>());
        assert!(align_of::<Options>() == align_of::<Word>());
        assert!(size_of::<Cache>() == size_of::<Word>());
    }
    // SAFETY: sizes and alignments are equal. All words of the options are set: pointers, `None` in the
    // place of pointers, and the tag of an option that is set, which is as large as a pointer beside
    // pointers.
    let words: [Word; WORD_COUNT] = unsafe { std::mem::transmute_copy(options) };
    // SAFETY: the sizes are equal, and a cache is a pointer.
    let cache: Word = unsafe { std::mem::transmute_copy(cache) };
    let is_other = |word: &&Word| word.addr() > 1 && **word != cache;
    let mut others = words.iter().filter(is_other);
    let pointer = *others.next().expect("the options have a pointer");
    assert!(others.next().is_none(), "the crate's options have changed");
    pointer
}

/// Every write: the journal of the store is the log, so RocksDB's is off.
pub(super) fn write_options() -> WriteOptions {
    let mut options = WriteOptions::default();
    options.disable_wal(true);
    options
}

pub(super) fn cache(settings: &Settings) -> Result<Cache, rocksdb::Error> {
    Cache::new_lru_cache(bytes(settings.cache_size))
}

fn bytes(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
