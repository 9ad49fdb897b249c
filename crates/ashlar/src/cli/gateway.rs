//! `ashlar gateway`, `ashlar user` and `ashlar bucket`.

use std::path::PathBuf;

use base::size::Size;
use clap::{Args, Subcommand, ValueEnum};

use super::listen::parse_listen;
use super::log_args::LogArgs;

/// The pool that has the buckets, if no other one is named.
pub const INDEX_POOL: &str = "gateway";
/// The region, if no other one is named.
pub const REGION: &str = "us-east-1";

pub(super) const GATEWAY_EXAMPLE: &str = "Examples:
  ashlar gateway --listen tcp:0.0.0.0:9000 --data-pool default
  ashlar gateway --data-pool archive --inline-max 60KiB
  ashlar gateway --listen tcp:0.0.0.0:443 --tls-cert cert.pem --tls-key key.pem --domain s3.example.com";

/// `gateway`
#[derive(Args)]
pub struct GatewayArgs {
    /// Address to listen on; may be repeated
    #[arg(long, value_parser = parse_tcp, value_name = "tcp:[HOST]:PORT", default_value = "tcp::9000")]
    pub listen: Vec<String>,
    /// Pool of objects that has buckets, keys and users
    #[arg(long, value_name = "POOL", default_value = INDEX_POOL)]
    pub index_pool: String,
    /// Pool of volumes for the data of large objects; without it an object has at most 60 KiB
    #[arg(long, value_name = "POOL")]
    pub data_pool: Option<String>,
    /// Objects of up to this size lie in the index pool: at most 60KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_inline, default_value = "16KiB")]
    pub inline_max: Size,
    /// Region that signatures must name
    #[arg(long, default_value = REGION)]
    pub region: String,
    /// Host below which a bucket's name may stand, as in BUCKET.s3.example.com; may be repeated
    #[arg(long, value_name = "HOST")]
    pub domain: Vec<String>,
    /// Certificate in PEM, with those of its issuers; it is read again when it changes
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub tls_cert: Option<PathBuf>,
    /// Key of the certificate, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// Threads that serve connections
    #[arg(long, default_value = "2", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: u16,
    #[command(flatten)]
    pub log: LogArgs,
    /// Exit when the process with this id exits
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

fn parse_tcp(text: &str) -> Result<String, String> {
    match parse_listen(text)? {
        place if place.starts_with("tcp:") => Ok(place),
        _ => Err(format!("{text:?} is not an address to listen on: write tcp:[HOST]:PORT")),
    }
}

fn parse_inline(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error| format!("{error}"))?;
    let max = Size(bucket::INLINE_BODY_MAX);
    if size <= max { Ok(size) } else { Err(format!("must be at most {max}")) }
}

/// The index pool of a command.
#[derive(Args)]
pub struct IndexPoolArg {
    /// Pool of objects that has buckets, keys and users
    #[arg(long, value_name = "POOL", default_value = INDEX_POOL)]
    pub index_pool: String,
}

/// `user`
#[derive(Subcommand)]
pub enum UserCommand {
    /// Create a user with an access key; its secret is shown once
    #[command(after_help = "Example:\n  ashlar user create ann --json")]
    Create {
        /// 1 to 64 letters, digits, `.`, `_`, `-` and `@`
        name: String,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
    /// List users
    #[command(after_help = "Example:\n  ashlar user ls")]
    Ls {
        #[command(flatten)]
        pool: IndexPoolArg,
    },
    /// Remove a user who has neither buckets nor access keys
    #[command(after_help = "Example:\n  ashlar user rm ann")]
    Rm {
        /// Name of the user
        name: String,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
    /// Access keys of users
    #[command(subcommand, after_help = "Example:\n  ashlar user key ls ann")]
    Key(KeyCommand),
}

/// `user key`
#[derive(Subcommand)]
pub enum KeyCommand {
    /// Give a user another access key; its secret is shown once
    #[command(after_help = "Example:\n  ashlar user key add ann")]
    Add {
        /// Name of the user
        user: String,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
    /// List the access keys of a user
    #[command(after_help = "Example:\n  ashlar user key ls ann")]
    Ls {
        /// Name of the user
        user: String,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
    /// Remove an access key; a second later it signs nothing any more
    #[command(after_help = "Example:\n  ashlar user key rm AKIAIOSFODNN7EXAMPLE")]
    Rm {
        /// The access key
        key: String,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
}

/// `bucket`
#[derive(Subcommand)]
pub enum BucketCommand {
    /// Create a bucket
    #[command(after_help = "Example:\n  ashlar bucket create photos --owner ann --acl public-read")]
    Create {
        /// 3 to 63 lower-case letters, digits, dots and hyphens
        name: String,
        /// User to whom it belongs
        #[arg(long, value_name = "USER", default_value = "admin")]
        owner: String,
        /// Who else may read it
        #[arg(long, value_enum, default_value = "private")]
        acl: AclArg,
        /// In how many shards its keys lie: a power of two up to 4,096. 1 for less than 100,000 keys, 64 to
        /// 256 for more than 100 million [default: 16]
        #[arg(long, value_name = "NUMBER")]
        spread: Option<u16>,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
    /// List the buckets of a user
    #[command(after_help = "Example:\n  ashlar bucket ls --owner ann")]
    Ls {
        /// The user [default: all users]
        #[arg(long, value_name = "USER")]
        owner: Option<String>,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
    /// Show a bucket
    #[command(after_help = "Example:\n  ashlar bucket info photos --json")]
    Info {
        /// Name of the bucket
        name: String,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
    /// Remove a bucket that has no objects
    #[command(after_help = "Example:\n  ashlar bucket rm photos")]
    Rm {
        /// Name of the bucket
        name: String,
        #[command(flatten)]
        pool: IndexPoolArg,
    },
}

/// `--acl`
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum AclArg {
    /// Only the owner
    Private,
    /// Everybody may read and list
    PublicRead,
}
