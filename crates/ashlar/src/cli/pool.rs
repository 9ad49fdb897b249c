//! `ashlar pool` and `ashlar pg`.

use base::size::{BlockSize, Size};
use base::{ImageId, OsdId, PgId, Scheme};
use clap::{Subcommand, ValueEnum};
use format::engine::Compression;

const POOL_CREATE_EXAMPLE: &str = "Examples:
  ashlar pool create safe --replicas 3
  ashlar pool create fast --replicas 2 --min-size 1 --failure-domain osd
  ashlar pool create records --kind object --compression zstd";

const PG_FIX_EXAMPLE: &str = "Examples:
  ashlar pg fix 1.1f 7/12 --keep 3               shows what would be done
  ashlar pg fix 1.1f 7/12 --keep 3 --yes         the copy on osd.3 is right
  ashlar pg fix 2.4 9/0 --rebuild 5 --yes        the part on osd.5 is wrong
  ashlar pg fix 2.4 9/0 --accept-loss --yes      what nobody has any more becomes zeros";
const PG_GIVE_UP_EXAMPLE: &str = "Examples:
  ashlar pg give-up 1.1f                       shows what would be lost
  ashlar pg give-up 1.1f --yes                 for damage that no other copy can repair
  ashlar pg give-up 1.1f --they-are-off --yes  for OSDs that are lost for good";

/// `pool`
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Create a pool
    #[command(after_help = POOL_CREATE_EXAMPLE)]
    #[command(group = clap::ArgGroup::new("scheme"))]
    Create {
        /// Up to 63 letters, digits, `.`, `_` and `-`
        name: String,
        /// Number of copies, 1 to 8 [default: 2, or 1 if there is only one OSD]
        #[arg(long, group = "scheme", value_parser = clap::value_parser!(u8).range(1..=8))]
        replicas: Option<u8>,
        /// Instead of copies: 2 to 16 data parts and one XOR parity part, as in 2+1
        #[arg(long, group = "scheme", value_name = "K+1", value_parser = parse_xor)]
        xor: Option<Scheme>,
        /// Instead of copies: 2 to 16 data parts and 1 to 4 parity parts (Reed-Solomon), as in 4+2
        #[arg(long, group = "scheme", value_name = "K+M", value_parser = parse_ec)]
        ec: Option<Scheme>,
        /// Minimum number of members needed to acknowledge a write; with fewer, I/O waits [default: 2, or 1
        /// for one or two copies; K+1 with parity, or K for one parity part]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=20))]
        min_size: Option<u32>,
        /// Number of placement groups, a power of two [default: derived from the number of OSDs
        /// and members]
        #[arg(long)]
        pgs: Option<u32>,
        /// Failure domain: no two members of a placement group share one [default: host]
        #[arg(long, value_enum)]
        failure_domain: Option<DomainArg>,
        /// Size of the block that one member holds of a stripe, a power of two from 16KiB (with parity
        /// 64KiB) to 1MiB, of objects to 128KiB [default: 128KiB, of objects 64KiB]
        #[arg(long, value_parser = parse_block_size)]
        block_size: Option<BlockSize>,
        /// What the pool keeps
        #[arg(long, value_enum, default_value_t = KindArg::Block)]
        kind: KindArg,
        /// Of objects: number of shards, a power of two up to 65536, at least the number of placement
        /// groups; it limits how far those can be split [default: 4 for each placement group]
        #[arg(long)]
        shards: Option<u32>,
        /// Of objects: the names of the pool's objects have a group and a locator, by which they are placed;
        /// for the index of a gateway
        #[arg(long)]
        grouped: bool,
        /// Of objects: how each OSD compresses their records: none, snappy, lz4, lz4hc, zstd, zlib,
        /// zlib-best or bzip2 [default: lz4]
        #[arg(long, value_parser = parse_compression)]
        compression: Option<Compression>,
    },
    /// List pools
    #[command(after_help = "Example:\n  ashlar pool ls")]
    Ls,
    /// Change a pool while it is in use
    #[command(after_help = "Example:\n  ashlar pool set fast --rename faster --failure-domain osd")]
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Name of the pool
        name: String,
        /// New name
        #[arg(long, group = "what", value_name = "NAME")]
        rename: Option<String>,
        /// Add parity parts; the number of data parts must stay the same: 4+3 for a pool of 4+2
        #[arg(long, group = "what", value_name = "K+M", value_parser = parse_ec)]
        ec: Option<Scheme>,
        /// Minimum number of members needed to acknowledge a write; with fewer, I/O waits
        #[arg(long, group = "what", value_parser = clap::value_parser!(u32).range(1..=20))]
        min_size: Option<u32>,
        /// Failure domain: no two members of a placement group share one; data moves where needed
        #[arg(long, group = "what", value_enum)]
        failure_domain: Option<DomainArg>,
    },
    /// Compare the copies of all placement groups of a pool now
    #[command(after_help = "Example:\n  ashlar pool scrub fast --deep")]
    Scrub {
        /// Name of the pool
        name: String,
        /// Read all data and compare it with its checksums
        #[arg(long)]
        deep: bool,
    },
    /// Delete a pool; refused while it has volumes, and of a pool of objects without --yes
    #[command(after_help = "Example:\n  ashlar pool rm fast")]
    Rm {
        /// Name of the pool
        name: String,
        /// Remove a pool of objects with everything that is in it
        #[arg(long)]
        yes: bool,
    },
}

/// What a pool keeps.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KindArg {
    /// Blocks of volumes
    Block,
    /// Objects, with copies only
    Object,
}

/// What two members of a PG must never share.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DomainArg {
    /// A host
    Host,
    /// An OSD
    Osd,
}

fn parse_xor(text: &str) -> Result<Scheme, String> {
    Scheme::parse_xor(text).map_err(|error| error.0)
}

fn parse_ec(text: &str) -> Result<Scheme, String> {
    Scheme::parse_reed_solomon(text).map_err(|error| error.0)
}

/// Parses a block of an image, IMAGE/NUMBER.
fn parse_block(text: &str) -> Result<(ImageId, u32), String> {
    let parsed = text
        .split_once('/')
        .and_then(|(image, block)| Some((ImageId::new(image.parse().ok()?)?, block.parse().ok()?)));
    parsed.ok_or_else(|| {
        format!("{text:?} is not a block: write IMAGE/NUMBER as `ashlar pg describe` lists it")
    })
}

pub(super) fn parse_compression(text: &str) -> Result<Compression, String> {
    Compression::from_name(text).ok_or_else(|| {
        let names = Compression::ALL.map(Compression::name).join(", ");
        format!("{text:?} is not a compression: choose one of {names}")
    })
}

fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let size: Size = text.parse().map_err(|error: base::ids::ParseIdError| error.0)?;
    BlockSize::new(size.0).ok_or_else(|| {
        format!("{text:?} is not a block size: write a power of two from 16KiB to 1MiB")
    })
}

/// `pg`
#[derive(Subcommand)]
pub enum PgCommand {
    /// List placement groups
    #[command(after_help = "Example:\n  ashlar pg ls --pool default")]
    Ls {
        /// Only placement groups of this pool
        #[arg(long)]
        pool: Option<String>,
    },
    /// Show a placement group: epoch, members, state and the reason for it
    #[command(after_help = "Example:\n  ashlar pg describe 1.1f")]
    Describe {
        /// Id of the placement group, POOL.HEX
        pg: PgId,
    },
    /// Compare the copies of placement groups now, and repair those that are known to be wrong
    #[command(after_help = "Example:\n  ashlar pg scrub 1.1f --deep")]
    Scrub {
        /// One or more ids, POOL.HEX
        #[arg(required = true)]
        pgs: Vec<PgId>,
        /// Read all data and compare it with its checksums
        #[arg(long)]
        deep: bool,
    },
    /// Decide what is right of a damaged block that scrubs cannot repair
    #[command(after_help = PG_FIX_EXAMPLE)]
    #[command(group = clap::ArgGroup::new("choice").required(true))]
    Fix {
        /// Id of the placement group, POOL.HEX
        pg: PgId,
        /// The damaged block, IMAGE/NUMBER as `pg describe` lists it
        #[arg(value_parser = parse_block)]
        block: (ImageId, u32),
        /// Pools with copies: what this OSD can read of the block is right, and replaces what others have
        #[arg(long, value_name = "OSD", group = "choice")]
        keep: Option<OsdId>,
        /// Pools with parity: the part on this OSD is wrong, and is made of the other parts
        #[arg(long, value_name = "OSD", group = "choice")]
        rebuild: Option<OsdId>,
        /// Pools with parity: the data parts are right, and all parity is made of them
        #[arg(long, group = "choice")]
        rebuild_parity: bool,
        /// Units that nobody can read or make become zeros
        #[arg(long, group = "choice")]
        accept_loss: bool,
        /// Do it; this cannot be undone. Without --yes, only print what would be done and exit with code 1
        #[arg(long)]
        yes: bool,
    },
    /// Accept the loss of data in placement groups, and serve the rest
    #[command(after_help = PG_GIVE_UP_EXAMPLE)]
    GiveUp {
        /// One or more ids, POOL.HEX; stops at the first one that is refused
        #[arg(required = true)]
        pgs: Vec<PgId>,
        /// Continue without the copies on OSDs that are down and will not come back
        #[arg(long)]
        they_are_off: bool,
        /// If none of the others is left: continue with the newest older copy, of an OSD that was a member
        /// before; everything that was acknowledged since is lost
        #[arg(long, requires = "they_are_off")]
        older_copy: bool,
        /// Accept the loss; this cannot be undone. Without --yes, only print what would be lost and exit
        /// with code 1
        #[arg(long)]
        yes: bool,
    },
}
