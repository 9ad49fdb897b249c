//! A member's durable record of an activation: the note of the PG in its store, as JSON text. See
//! `docs/internals/notes.md`.
//!
//! Invariants
//!   1. A record is read back as it was written; unknown fields are ignored.
//!   2. Versions are written as the text `epoch.counter`, keys as `hash.image.stripe`, in the PG's pool.

use base::{Epoch, ImageId, PgId, StripeIndex, Version};
use blockstore::BlockKey;
use format::wire::{Activation, Filling, HISTORY_COUNT_MAX, PgEntry, WHOLE_COUNT_MAX};
use serde::{Deserialize, Serialize};

/// A member's durable record of an activation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The entry that was activated.
    pub entry: PgEntry,
    /// The version up to which the member was complete when the record was written. For a member with a
    /// filling: the version that the PG adopted.
    pub adopted: Version,
    /// Activations since the floor, oldest first; this one is the last.
    pub history: Vec<Activation>,
    /// What a learner lacks; `None`: nothing.
    pub filling: Option<Filling>,
    /// The member reports nothing from this version on: some of those writes were taken back.
    pub dropped: Option<Version>,
}

impl Record {
    /// Reads a record that [`Record::encode`] wrote. The error says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Record, String> {
        let text: RecordText = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        text.into_record()
    }

    /// Returns the bytes of the note.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(&RecordText::of(self)).expect("plain data with text keys")
    }
}

/// The JSON form of a record.
#[derive(Serialize, Deserialize)]
struct RecordText {
    entry: PgEntry,
    adopted: VersionText,
    #[serde(default)]
    history: Vec<(u32, VersionText)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    filling: Option<FillingText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dropped: Option<VersionText>,
}

/// The JSON form of a [`Filling`].
#[derive(Serialize, Deserialize)]
struct FillingText {
    complete: VersionText,
    cursor: Option<String>,
    since: VersionText,
    whole: Vec<String>,
    listing: bool,
}

/// A version as the text `epoch.counter`.
#[derive(Serialize, Deserialize)]
struct VersionText(String);

impl VersionText {
    fn of(version: Version) -> VersionText {
        VersionText(version.to_string())
    }

    fn read(&self) -> Result<Version, String> {
        let parts = self.0.split_once('.').and_then(|(epoch, counter)| {
            Some((epoch.parse::<u32>().ok()?, counter.parse::<u64>().ok()?))
        });
        let (epoch, counter) = parts.ok_or("not a version: expected EPOCH.COUNTER")?;
        Ok(Version { epoch: Epoch::new(epoch), counter })
    }
}

impl RecordText {
    fn of(record: &Record) -> RecordText {
        let history = record.history.iter();
        RecordText {
            entry: record.entry.clone(),
            adopted: VersionText::of(record.adopted),
            history: history
                .map(|past| (past.epoch.get(), VersionText::of(past.adopted)))
                .collect(),
            filling: record.filling.as_ref().map(FillingText::of),
            dropped: record.dropped.map(VersionText::of),
        }
    }

    fn into_record(self) -> Result<Record, String> {
        if self.history.len() > HISTORY_COUNT_MAX {
            return Err(format!("the history has too many activations: {}", self.history.len()));
        }
        let pg = self.entry.pg;
        let history = self.history.iter().map(|(epoch, adopted)| {
            Ok(Activation { epoch: Epoch::new(*epoch), adopted: adopted.read()? })
        });
        Ok(Record {
            history: history.collect::<Result<_, String>>()?,
            adopted: self.adopted.read()?,
            filling: self.filling.map(|filling| filling.into_filling(pg)).transpose()?,
            dropped: self.dropped.map(|version| version.read()).transpose()?,
            entry: self.entry,
        })
    }
}

impl FillingText {
    fn of(filling: &Filling) -> FillingText {
        FillingText {
            complete: VersionText::of(filling.complete),
            cursor: filling.cursor.map(key_text),
            since: VersionText::of(filling.since),
            whole: filling.whole.iter().copied().map(key_text).collect(),
            listing: filling.listing,
        }
    }

    fn into_filling(self, pg: PgId) -> Result<Filling, String> {
        if self.whole.len() > WHOLE_COUNT_MAX {
            return Err(format!("the backfill record lists too many blocks: {}", self.whole.len()));
        }
        let whole = self.whole.iter().map(|text| read_key(pg, text));
        Ok(Filling {
            complete: self.complete.read()?,
            cursor: self.cursor.map(|text| read_key(pg, &text)).transpose()?,
            since: self.since.read()?,
            whole: whole.collect::<Result<_, String>>()?,
            listing: self.listing,
        })
    }
}

pub(crate) fn key_text(key: BlockKey) -> String {
    format!("{}.{}.{}", key.hash, key.image.get(), key.stripe.get())
}

pub(crate) fn read_key(pg: PgId, text: &str) -> Result<BlockKey, String> {
    let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
    let key = numbers.and_then(|numbers| {
        let [hash, image, stripe] = numbers[..] else { return None };
        let (image, stripe) = (ImageId::new(image)?, StripeIndex::new(stripe));
        Some(BlockKey { pool: pg.pool, hash, image, stripe })
    });
    key.ok_or_else(|| format!("{text:?} is not a block: expected HASH.IMAGE.STRIPE"))
}
