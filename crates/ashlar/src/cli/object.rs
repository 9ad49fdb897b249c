//! `ashlar object` and `ashlar kv`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The pool of a command.
#[derive(Args)]
pub struct PoolArg {
    /// Pool of objects; required if there are several
    #[arg(long)]
    pub pool: Option<String>,
}

/// What a change requires.
#[derive(Args)]
#[group(multiple = false)]
pub struct IfArgs {
    /// Only if there is nothing under this name yet
    #[arg(long)]
    pub if_absent: bool,
    /// Only if this is the version that is there, as `stat` and `put` print it
    #[arg(long, value_name = "EPOCH.COUNTER")]
    pub if_version: Option<String>,
}

/// What a removal requires of the object.
#[derive(Args)]
pub struct IfVersionArg {
    /// Only if this is the version that is there, as `stat` and `put` print it
    #[arg(long, value_name = "EPOCH.COUNTER")]
    pub if_version: Option<String>,
}

/// A value: on the command line, or in a file.
#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct ValueArgs {
    /// The value: up to 64 KiB, that of a key up to 32 KiB
    pub value: Option<OsString>,
    /// The file that has the value, with any bytes; `-` reads standard input
    #[arg(long)]
    pub file: Option<PathBuf>,
}

/// Which names or keys are listed.
#[derive(Args)]
pub struct RangeArgs {
    /// Only those that begin with this
    #[arg(long, default_value = "")]
    pub prefix: OsString,
    /// Only those from this one on
    #[arg(long, default_value = "")]
    pub from: OsString,
    /// Only those below this one
    #[arg(long)]
    pub before: Option<OsString>,
    /// At most so many
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<u64>,
}

/// `object`
#[derive(Subcommand)]
pub enum ObjectCommand {
    /// Store a file, or standard input, as an object's data. Attributes and records of an object that is
    /// there stay. More than 3 MiB are written in parts; if another client changes the object meanwhile,
    /// this fails
    #[command(after_help = "Examples:\n  ashlar object put photos/1 photo.jpg\n  \
                      date | ashlar object put today - --if-absent")]
    Put {
        /// Name of the object: 1 to 1,088 bytes
        name: OsString,
        /// The file; `-` reads standard input
        file: PathBuf,
        #[command(flatten)]
        condition: IfArgs,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Write an object's data to a file, or to standard output
    #[command(after_help = "Examples:\n  ashlar object get photos/1 photo.jpg\n  \
                      ashlar object get log - --offset 4096 --length 100")]
    Get {
        /// Name of the object
        name: OsString,
        /// The file, which is replaced; `-` writes to standard output
        #[arg(default_value = "-")]
        file: PathBuf,
        /// Where to begin, in bytes
        #[arg(long, default_value_t = 0)]
        offset: u64,
        /// At most so many bytes
        #[arg(long)]
        length: Option<u64>,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Show version, size and time of objects
    #[command(after_help = "Example:\n  ashlar object stat photos/1")]
    Stat {
        /// Names of the objects
        #[arg(required = true)]
        names: Vec<OsString>,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// List objects in the order of their names
    #[command(after_help = "Example:\n  ashlar object ls --prefix photos/ --delimiter /")]
    Ls {
        #[command(flatten)]
        range: RangeArgs,
        /// Show names that go on behind this, after the prefix, as one
        #[arg(long, default_value = "")]
        delimiter: OsString,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Remove objects with their attributes and records
    #[command(after_help = "Example:\n  ashlar object rm photos/1 photos/2")]
    Rm {
        /// Names of the objects
        #[arg(required = true)]
        names: Vec<OsString>,
        #[command(flatten)]
        condition: IfVersionArg,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Copy an object's data, attributes and records. What was under the new name goes; until everything is
    /// there the copy is partial
    #[command(after_help = "Example:\n  ashlar object cp photos/1 photos/1.old")]
    Cp {
        /// Name of the object
        from: OsString,
        /// Name of the copy
        to: OsString,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Set an attribute; creates the object
    #[command(after_help = "Example:\n  ashlar object setattr photos/1 content-type image/jpeg")]
    Setattr {
        /// Name of the object
        name: OsString,
        /// Name of the attribute: 1 to 255 bytes
        attribute: OsString,
        #[command(flatten)]
        value: ValueArgs,
        #[command(flatten)]
        condition: IfArgs,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Print the value of an attribute, as it is
    #[command(after_help = "Example:\n  ashlar object getattr photos/1 content-type")]
    Getattr {
        /// Name of the object
        name: OsString,
        /// Name of the attribute
        attribute: OsString,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// List the attributes of an object
    #[command(after_help = "Example:\n  ashlar object lsattr photos/1")]
    Lsattr {
        /// Name of the object
        name: OsString,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Remove an attribute
    #[command(after_help = "Example:\n  ashlar object rmattr photos/1 content-type")]
    Rmattr {
        /// Name of the object
        name: OsString,
        /// Name of the attribute
        attribute: OsString,
        #[command(flatten)]
        condition: IfVersionArg,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// The sorted records of an object
    #[command(subcommand, after_help = "Example:\n  ashlar object records ls photos")]
    Records(RecordsCommand),
}

/// `object records`
#[derive(Subcommand)]
pub enum RecordsCommand {
    /// List records in the order of their keys
    #[command(after_help = "Example:\n  ashlar object records ls photos --prefix 2026-")]
    Ls {
        /// Name of the object
        name: OsString,
        #[command(flatten)]
        range: RangeArgs,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Print the value of a record, as it is
    #[command(after_help = "Example:\n  ashlar object records get photos 2026-11-26")]
    Get {
        /// Name of the object
        name: OsString,
        /// Key of the record
        key: OsString,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Set a record; creates the object
    #[command(after_help = "Example:\n  ashlar object records set photos 2026-11-26 12")]
    Set {
        /// Name of the object
        name: OsString,
        /// Key of the record: 1 to 2,048 bytes
        key: OsString,
        #[command(flatten)]
        value: ValueArgs,
        #[command(flatten)]
        condition: IfArgs,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Add to a number of 8 bytes, little-endian; a record that is not there counts as 0. Prints the sum
    #[command(after_help = "Example:\n  ashlar object records add photos count 1")]
    Add {
        /// Name of the object
        name: OsString,
        /// Key of the record
        key: OsString,
        /// The number to add
        #[arg(allow_negative_numbers = true)]
        amount: i64,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Remove records
    #[command(after_help = "Example:\n  ashlar object records rm photos 2026-11-26")]
    Rm {
        /// Name of the object
        name: OsString,
        /// Keys of the records
        #[arg(required = true)]
        keys: Vec<OsString>,
        #[command(flatten)]
        condition: IfVersionArg,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Remove all records, or those of a range, at once
    #[command(
        after_help = "Example:\n  ashlar object records clear photos --from 2025- --before 2026-"
    )]
    Clear {
        /// Name of the object
        name: OsString,
        /// The first key that is removed
        #[arg(long, default_value = "")]
        from: OsString,
        /// The first key behind those that are removed; without it all that follow are
        #[arg(long)]
        before: Option<OsString>,
        #[command(flatten)]
        condition: IfVersionArg,
        #[command(flatten)]
        pool: PoolArg,
    },
}

/// `kv`
#[derive(Subcommand)]
pub enum KvCommand {
    /// Store a value under a key
    #[command(after_help = "Examples:\n  ashlar kv put colour blue\n  \
                      ashlar kv put colour red --if-version 4.17")]
    Put {
        /// The key: 1 to 1,088 bytes
        key: OsString,
        #[command(flatten)]
        value: ValueArgs,
        #[command(flatten)]
        condition: IfArgs,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Print the value of a key, as it is; with --json also its version
    #[command(after_help = "Example:\n  ashlar kv get colour")]
    Get {
        /// The key
        key: OsString,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Remove keys
    #[command(after_help = "Example:\n  ashlar kv del colour")]
    Del {
        /// The keys
        #[arg(required = true)]
        keys: Vec<OsString>,
        #[command(flatten)]
        condition: IfVersionArg,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Print keys and values in the order of the keys: KEY, a tab, VALUE. A tab, a line feed or a
    /// backslash in them is written \t, \n or \\, and bytes that are no text \xHH
    #[command(after_help = "Example:\n  ashlar kv scan --prefix user. --limit 10")]
    Scan {
        #[command(flatten)]
        range: RangeArgs,
        #[command(flatten)]
        pool: PoolArg,
    },
    /// Store many values: lines as `scan` prints them; a line without a tab removes its key. Those of one PG
    /// are stored together
    #[command(after_help = "Example:\n  ashlar kv scan --pool old | ashlar kv bulk - --pool new")]
    Bulk {
        /// The file; `-` reads standard input
        file: PathBuf,
        #[command(flatten)]
        pool: PoolArg,
    },
}
