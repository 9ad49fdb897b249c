//! Looks: what a client may read of objects at once, within which limits, and what it is answered.
//! `docs/internals/objects.md`, rules 28 and 36 to 39.
//!
//! Invariants
//!   1. A look that [`Look::check`] accepts can be read without a check of its form, and its answers take at
//!      most [`ANSWERS_SIZE_MAX`] bytes.
//!   2. All answers of a look show one moment, except pages of names: each shows, at its own moment, what no
//!      other page of the same listing shows.

use std::collections::BTreeSet;

use base::MIB;
use bytes::Bytes;
use format::wire::LIST_PGS_MAX;

use crate::head::Stat;
use crate::keys::{ATTRIBUTE_SIZE_MAX, NAME_SIZE_MAX, Name, RECORD_KEY_SIZE_MAX, Shard, Sharding};
use crate::listing::{Listing, Page, PageValue};
use crate::operation::{FIELD_VALUE_MAX, Field, INLINE_SIZE_MAX};

/// The most reads of a look.
pub const READS_MAX: usize = 256;
/// The most attributes and records that a look names.
pub const LOOK_FIELDS_MAX: usize = 1000;
/// The most shards of which a look lists names.
pub const LOOK_SHARDS_MAX: usize = 256;
/// The most data of one read, in bytes.
pub const READ_DATA_MAX: u32 = 3 << 20;
/// The most values of one read, in bytes; one value may have more.
pub const READ_VALUES_MAX: usize = MIB as usize;
/// The most that a look takes, encoded, in bytes.
pub const LOOK_SIZE_MAX: usize = MIB as usize;
/// Bytes in front of each PG's page in the answer for several.
pub(crate) const PAGE_FRAME_SIZE: usize = 4;
/// The most that the answers of a look take, encoded, in bytes: a payload.
pub const ANSWERS_SIZE_MAX: usize = format::wire::PAYLOAD_SIZE_MAX as usize;

/// Reads of objects in the same PG.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// The reads. Their answers come in the same order.
    pub reads: Vec<Read>,
}

/// One read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// Version, size and time of an object.
    Stat {
        /// The object.
        name: Name,
    },
    /// Data of an object, with its version, size and time.
    Data {
        /// The object.
        name: Name,
        /// Where the data begins, in bytes.
        offset: u64,
        /// The most bytes, at most [`READ_DATA_MAX`]: there are fewer if the object ends before.
        length: u32,
    },
    /// The values of these attributes and records of an object.
    Values {
        /// The object.
        name: Name,
        /// The attributes and records.
        fields: Vec<Field>,
        /// No further value if all would have more bytes than this, at most [`READ_VALUES_MAX`].
        size_max: usize,
    },
    /// A page of the attributes of an object.
    Attributes {
        /// The object.
        name: Name,
        /// Which attributes.
        listing: Listing,
    },
    /// A page of the records of an object.
    Records {
        /// The object.
        name: Name,
        /// Which records.
        listing: Listing,
    },
    /// A page of the names of objects.
    List {
        /// The shards whose objects are listed, in order, each once.
        shards: Vec<Shard>,
        /// Which names.
        listing: Listing,
        /// Whether data up to [`INLINE_SIZE_MAX`] is wanted, too. It counts for the size of the page.
        with_data: bool,
        /// Objects of which the first byte of data has one of these bits are passed like those that are gone,
        /// also by common prefixes. Data longer than [`INLINE_SIZE_MAX`] does not count.
        skip: u8,
    },
}

/// The answer to a read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadAnswer {
    /// The object. `None`: there is none.
    Stat(Option<Stat>),
    /// The object, and its data in the range. `None`: there is no object.
    Data(Option<(Stat, Vec<u8>)>),
    /// The values of the first of the fields; `None`: the field does not exist. If there are fewer than
    /// fields, the others were not read: ask for them again.
    Values(Vec<Option<Vec<u8>>>),
    /// Attributes or records. Of an absent object there are none.
    Fields(Page<Bytes>),
    /// Names of objects. The page may have fewer entries than would fit, none even, and say where to go on.
    List(Page<Listed>),
}

/// An object in a listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The object.
    pub stat: Stat,
    /// Its data. `None`: it was not asked for, or is longer than [`INLINE_SIZE_MAX`].
    pub data: Option<Bytes>,
}

/// Size of an encoded [`Stat`], in bytes.
pub(crate) const STAT_SIZE: usize = 12 + 1 + 8 + 8;

impl PageValue for Listed {
    fn size(&self) -> usize {
        STAT_SIZE + self.data.as_ref().map_or(0, Bytes::len)
    }
}

impl Read {
    /// Returns the object. `None`: names are listed.
    pub fn name(&self) -> Option<&Name> {
        match self {
            Read::Stat { name }
            | Read::Data { name, .. }
            | Read::Values { name, .. }
            | Read::Attributes { name, .. }
            | Read::Records { name, .. } => Some(name),
            Read::List { .. } => None,
        }
    }

    fn check(&self) -> Result<(), String> {
        match self {
            Read::Stat { .. } => Ok(()),
            Read::Data { length, .. } if *length <= READ_DATA_MAX => Ok(()),
            Read::Data { length, .. } => Err(format!(
                "a read of {length} bytes has more than {READ_DATA_MAX}: read in parts"
            )),
            Read::Values { fields, size_max, .. } => {
                fields.iter().try_for_each(Field::check)?;
                match *size_max <= READ_VALUES_MAX {
                    true => Ok(()),
                    false => Err(format!(
                        "values are read up to {READ_VALUES_MAX} bytes at once, not {size_max}"
                    )),
                }
            }
            Read::Attributes { listing, .. } => check_listing(listing, ATTRIBUTE_SIZE_MAX),
            Read::Records { listing, .. } => check_listing(listing, RECORD_KEY_SIZE_MAX),
            Read::List { shards, listing, .. } => {
                if shards.is_empty() || !shards.is_sorted_by(|one, next| one < next) {
                    return Err("shards are listed in order, each once, at least one".into());
                }
                check_listing(listing, NAME_SIZE_MAX)
            }
        }
    }

    /// Returns the most bytes that the encoded answer takes.
    pub(crate) fn answer_size_max(&self) -> usize {
        let page = |listing: &Listing, key_max: usize, value_max: usize, entry: usize| {
            let entries = listing.size_max.max(key_max + value_max) + entry * listing.count_max;
            2 + entries + 1 + 2 + key_max + 1
        };
        1 + match self {
            Read::Stat { .. } => 1 + STAT_SIZE,
            Read::Data { length, .. } => 1 + STAT_SIZE + 4 + *length as usize,
            Read::Values { fields, size_max, .. } => {
                2 + fields.len() * 5 + FIELD_VALUE_MAX.max(*size_max)
            }
            Read::Attributes { listing, .. } => {
                page(listing, ATTRIBUTE_SIZE_MAX, FIELD_VALUE_MAX, 1 + 2 + 4)
            }
            Read::Records { listing, .. } => {
                page(listing, RECORD_KEY_SIZE_MAX, FIELD_VALUE_MAX, 1 + 2 + 4)
            }
            Read::List { listing, .. } => {
                let value_max = STAT_SIZE + INLINE_SIZE_MAX as usize;
                page(listing, NAME_SIZE_MAX, value_max, 1 + 2 + 1 + 4)
            }
        }
    }
}

/// Which objects are listed of PGs as a whole.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameQuery {
    /// Which names, and the limits for each PG.
    pub listing: Listing,
    /// Whether data up to [`INLINE_SIZE_MAX`] is wanted, too. It counts for the size of the page.
    pub with_data: bool,
}

impl NameQuery {
    /// Returns the reads that answer it for these shards, those of a PG.
    pub fn look(&self, shards: impl IntoIterator<Item = Shard>) -> Look {
        let NameQuery { listing, with_data } = self.clone();
        Look {
            reads: vec![Read::List {
                shards: shards.into_iter().collect(),
                listing,
                with_data,
                skip: 0,
            }],
        }
    }

    /// Returns the most bytes that the answer for one PG takes.
    pub fn answer_size_max(&self) -> usize {
        PAGE_FRAME_SIZE + self.look([]).answers_size_max()
    }

    /// Checks the limits; the error says what is wrong, for people.
    pub fn check(&self) -> Result<(), String> {
        check_listing(&self.listing, NAME_SIZE_MAX)
    }

    /// Returns of how many PGs one request may ask.
    pub fn pgs_max(&self) -> usize {
        (ANSWERS_SIZE_MAX / self.answer_size_max()).clamp(1, LIST_PGS_MAX)
    }
}

impl Look {
    /// Checks the form of the look; the error says what is wrong, for people.
    pub fn check(&self) -> Result<(), String> {
        let check_count = |what: &str, count: usize, max: usize| match count <= max {
            true => Ok(()),
            false => Err(format!("{count} {what} are more than {max} for one request")),
        };
        if self.reads.is_empty() {
            return Err("a request reads something".into());
        }
        check_count("reads", self.reads.len(), READS_MAX)?;
        self.reads.iter().try_for_each(Read::check)?;
        let (mut fields_count, mut shards_count) = (0, 0);
        for read in &self.reads {
            match read {
                Read::Values { fields, .. } => fields_count += fields.len(),
                Read::List { shards, .. } => shards_count += shards.len(),
                _ => {}
            }
        }
        check_count("attributes and records", fields_count, LOOK_FIELDS_MAX)?;
        check_count("shards", shards_count, LOOK_SHARDS_MAX)?;
        let answers: usize = self.reads.iter().map(Read::answer_size_max).sum();
        check_count("bytes of answers", 2 + answers, ANSWERS_SIZE_MAX)?;
        check_count("bytes of names and keys", self.encode().len(), LOOK_SIZE_MAX)
    }

    /// Returns the most bytes that its answers take.
    pub fn answers_size_max(&self) -> usize {
        2 + self.reads.iter().map(Read::answer_size_max).sum::<usize>()
    }

    /// Returns the objects that are read, without those that are listed.
    pub fn names(&self) -> BTreeSet<&Name> {
        self.reads.iter().filter_map(Read::name).collect()
    }

    /// Returns the shards that are read.
    pub fn shards(&self, sharding: Sharding) -> BTreeSet<Shard> {
        let mut shards = BTreeSet::new();
        for read in &self.reads {
            match read {
                Read::List { shards: listed, .. } => shards.extend(listed),
                _ => shards.extend(read.name().map(|it| sharding.shard(it))),
            }
        }
        shards
    }
}

/// Checks a listing of keys of this size.
fn check_listing(listing: &Listing, key_max: usize) -> Result<(), String> {
    listing.check()?;
    let Listing { prefix, from, before, delimiter, .. } = listing;
    let before_size = before.as_ref().map_or(0, Vec::len);
    // What comes behind the longest key has a byte more.
    for (what, size, max) in [
        ("the prefix", prefix.len(), key_max),
        ("the first key", from.len(), key_max + 1),
        ("the end", before_size, key_max + 1),
        ("the delimiter", delimiter.len(), key_max),
    ] {
        if size > max {
            return Err(format!("{what} of a page has {size} bytes; up to {max} are allowed"));
        }
    }
    Ok(())
}
