//! `ashlar pool` and `ashlar pg`.

use base::PgId;
use base::size::{BlockSize, Size};
use clap::{Subcommand, ValueEnum};

const POOL_CREATE_EXAMPLE: &str = "Examples:
  ashlar pool create safe --replicas 3
  ashlar pool create fast --replicas 2 --min-size 1 --failure-domain osd";

const PG_GIVE_UP_EXAMPLE: &str = "Examples:
  ashlar pg give-up 1.1f                       what would be lost
  ashlar pg give-up 1.1f --yes                 damage that no other copy can mend
  ashlar pg give-up 1.1f --they-are-off --yes  OSDs that never come back";

/// `pool`
#[derive(Subcommand)]
pub enum PoolCommand {
    /// Make a pool
    #[command(after_help = POOL_CREATE_EXAMPLE)]
    Create {
        /// Letters, digits, `.`, `_`, `-`; at most 63
        name: String,
        /// Number of copies, 1 to 8 [default: 2, or 1 where there is only one OSD]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=8))]
        replicas: Option<u32>,
        /// Fewest copies that may acknowledge a write; with fewer the pool waits [default: 2, or 1
        /// of one or two copies]
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=8))]
        min_size: Option<u32>,
        /// Number of placement groups, a power of two [default: by the number of OSDs and copies]
        #[arg(long)]
        pgs: Option<u32>,
        /// What copies must not share [default: host]
        #[arg(long, value_enum)]
        failure_domain: Option<DomainArg>,
        /// A power of two from 16KiB to 1MiB
        #[arg(long, value_parser = parse_block_size)]
        block_size: Option<BlockSize>,
    },
    /// All pools
    #[command(after_help = "Example:\n  ashlar pool ls")]
    Ls,
    /// Change what of a pool can change while it is in use
    #[command(after_help = "Example:\n  ashlar pool set fast --rename faster --failure-domain osd")]
    #[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
    Set {
        /// Its name
        name: String,
        /// A new name
        #[arg(long, group = "what", value_name = "NAME")]
        rename: Option<String>,
        /// Fewest copies that may acknowledge a write; with fewer the pool waits
        #[arg(long, group = "what", value_parser = clap::value_parser!(u32).range(1..=8))]
        min_size: Option<u32>,
        /// What copies must not share; they move to where it wants them
        #[arg(long, group = "what", value_enum)]
        failure_domain: Option<DomainArg>,
    },
    /// Remove a pool; refused while it has volumes
    #[command(after_help = "Example:\n  ashlar pool rm fast")]
    Rm {
        /// Its name
        name: String,
    },
}

/// What copies must not share.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DomainArg {
    /// A host
    Host,
    /// An OSD
    Osd,
}

fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let size: Size = text.parse().map_err(|error: base::ids::ParseIdError| error.0)?;
    BlockSize::new(size.0)
        .ok_or_else(|| format!("{text:?} is no block size: a power of two from 16KiB to 1MiB"))
}

/// `pg`
#[derive(Subcommand)]
pub enum PgCommand {
    /// All placement groups
    #[command(after_help = "Example:\n  ashlar pg ls --pool default")]
    Ls {
        /// Only of this pool
        #[arg(long)]
        pool: Option<String>,
    },
    /// One placement group: epoch, members, state and why
    #[command(after_help = "Example:\n  ashlar pg describe 1.1f")]
    Describe {
        /// POOL.HEX
        pg: PgId,
    },
    /// Accept the loss of what placement groups had, and serve what is left
    #[command(after_help = PG_GIVE_UP_EXAMPLE)]
    GiveUp {
        /// POOL.HEX, one or more: an answer each; the first that is refused ends it
        #[arg(required = true)]
        pgs: Vec<PgId>,
        /// The OSDs that it waits for are off and stay off: go on without their copies
        #[arg(long)]
        they_are_off: bool,
        /// Accept it; it cannot be undone. Without this: say what would be lost, exit code 1
        #[arg(long)]
        yes: bool,
    },
}
