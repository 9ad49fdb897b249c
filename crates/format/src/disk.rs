//! Layouts of a store on its device. See `docs/internals/disk.md`.
//!
//! All integers are little-endian. Everything that is written carries a checksum. Journal entries and
//! checkpoint pages also carry the store's tag, so that bytes of another store are never accepted.

mod batch;
pub mod bytes;
mod decision;
mod entry;
mod key;
mod leaf;
mod marks;
mod page;
mod part_table;
mod superblock;
mod unit_set;

pub use batch::{
    BODY_SIZE_MAX, BlockAction, BlockChange, Body, OBJECT_BLOCK_SIZE_MAX, UNITS_SIZE_MAX,
};
pub use decision::{DECISION_SIZE, Decision, decode_decisions, encode_decisions};
pub use entry::{ENTRY_HEADER_SIZE_MAX, EntryDecodeError, EntryFlags, EntryHeader, EntryKind};
pub use key::{BlockKey, LOCATION_NONE, LOCATION_STEP, NoteKey};
pub use leaf::{
    LEAF_CAPACITY, LeafPage, LeafRecord, LeafWriter, StoredRecord, StoredUnit, pack_flags,
    record_size, unpack_flags,
};
pub use marks::{MARK_SIZE, decode_marks, encode_marks};
pub use page::{
    DIRECTORY_ENTRY_SIZE, FamilyRecord, PAGE_NONE, PAGE_SIZE, PageDecodeError, PageRef, PgRecord,
    Root, STREAM_PAGE_CAPACITY, StreamPage, StreamRef, decode_directory, decode_families,
    decode_notes, decode_pgs, decode_ranges, encode_directory, encode_families, encode_notes,
    encode_pgs, encode_ranges,
};
pub use part_table::{TABLE_ROWS_MAX, table_rows, table_size};
pub use superblock::{
    Area, CommitMode, EngineId, FORMAT_VERSION, FORMAT_VERSION_WITHOUT_ENGINE, SUPERBLOCK_OFFSETS,
    SUPERBLOCK_SIZE, StoreId, Superblock, SuperblockError,
};
pub use unit_set::UnitSet;

/// Compares bytes with the golden file of this name; `UPDATE=1` writes it.
#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "golden files are read and written by tests")]
fn golden(name: &str, bytes: &[u8]) {
    let path = format!("{}/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let mut end = bytes.len();
    while end > 0 && bytes[end - 1] == 0 {
        end -= 1;
    }
    let mut text = format!("# {} bytes, zeros at the end left out\n", bytes.len());
    for line in bytes[..end].chunks(32) {
        text.extend(line.iter().map(|byte| format!("{byte:02x}")));
        text.push('\n');
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).expect("the golden file can be written");
    }
    let golden = std::fs::read(&path).expect("the golden file is there: UPDATE=1 writes it");
    assert_eq!(String::from_utf8_lossy(&golden), text, "{path}");
}
