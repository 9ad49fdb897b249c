//! An opening that only reads, for checks: nothing of the directory changes.

use std::path::Path;

use base::PoolId;
use rocksdb::ReadOptions;

use super::directory::{self, OpenedToRead};
use super::{Settings, read::KEY_MIN};
use format::engine::{FamilyFound, Identity, OpenError};

/// An engine that is only read. Its process is not running: what that did not flush is not there.
pub struct RocksReadOnly(OpenedToRead);

impl RocksReadOnly {
    /// Opens the engine with this identity, and says which families it has.
    pub fn open(
        directory: &Path,
        identity: Identity,
        settings: &Settings,
    ) -> Result<(RocksReadOnly, Vec<FamilyFound>), OpenError> {
        let opened = directory::open_to_read(directory, identity, settings)?;
        let found = opened.found.clone();
        Ok((RocksReadOnly(opened), found))
    }

    /// Calls `on_record` with each record of a family, in the order of keys. All blocks of its files are
    /// compared with their checksums; the error says which one cannot be read.
    pub fn walk(
        &self,
        family: PoolId,
        on_record: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), String> {
        let OpenedToRead { database, found, .. } = &self.0;
        let found = found.iter().find(|found| found.family == family);
        let Some(found) = found else { return Ok(()) };
        let name = directory::column_family_name(family, found.compression);
        let column_family = database.cf_handle(&name).ok_or("the column family is not open")?;
        let mut options = ReadOptions::default();
        options.set_verify_checksums(true);
        options.fill_cache(false);
        let mut iterator = database.raw_iterator_cf_opt(&column_family, options);
        iterator.seek(KEY_MIN);
        while let Some((key, value)) = iterator.item() {
            on_record(key, value);
            iterator.next();
        }
        iterator.status().map_err(String::from)
    }
}
