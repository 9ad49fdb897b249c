//! `ashlar up` and `ashlar down`.

use std::path::PathBuf;

use base::size::Size;
use clap::{Args, ValueEnum};

use super::log_args::LogArgs;
use super::osd::CommitArg;

pub(super) const UP_EXAMPLE: &str = "Examples:
  ashlar up --dir /var/lib/ashlar --osds 3 --osd-size 100GiB --detach
  ashlar up --state etcd";

/// `up`
#[derive(Args)]
pub struct UpArgs {
    /// Directory of the cluster
    #[arg(long, default_value = ".ashlar")]
    pub dir: PathBuf,
    /// Number of OSDs; a larger number than before adds OSDs [default: 3 for a new cluster,
    /// otherwise the existing number]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub osds: Option<u32>,
    /// Size of each new OSD; disk space is used only as data is written
    #[arg(long, default_value = "10GiB")]
    pub osd_size: Size,
    /// When a write is durable: `fsync` flushes the disk's cache, `immediate` writes through it
    /// [default: chosen by measuring the disk]
    #[arg(long, value_enum)]
    pub commit: Option<CommitArg>,
    /// Where the monitor keeps its state: in a file, or in an etcd that `up` runs [default: embedded
    /// for a new cluster, otherwise unchanged]
    #[arg(long, value_enum)]
    pub state: Option<StoreArg>,
    /// Delay before a daemon that exited is restarted, or `never`
    #[arg(long, default_value = "1s", value_name = "TIME|never")]
    pub restart_after: RestartAfter,
    /// Run no S3 gateway, and create no pool for it
    #[arg(long)]
    pub no_gateway: bool,
    /// Run in the background; return as soon as volumes can be written
    #[arg(long)]
    pub detach: bool,
    #[command(flatten)]
    pub log: LogArgs,
}

/// `down`
#[derive(Args)]
pub struct DownArgs {
    /// Directory of the cluster
    #[arg(long, default_value = ".ashlar")]
    pub dir: PathBuf,
}

/// Where the monitor of `up` keeps its state.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreArg {
    /// In a file of the monitor
    Embedded,
    /// In an etcd on this machine, on loopback
    Etcd,
}

impl StoreArg {
    /// Returns the name of this value on the command line.
    pub fn name(self) -> &'static str {
        match self {
            StoreArg::Embedded => "embedded",
            StoreArg::Etcd => "etcd",
        }
    }
}

/// `--restart-after`
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestartAfter {
    /// After this delay.
    Time(std::time::Duration),
    /// Never.
    Never,
}

impl std::str::FromStr for RestartAfter {
    type Err = String;
    fn from_str(text: &str) -> Result<RestartAfter, String> {
        if text == "never" {
            return Ok(RestartAfter::Never);
        }
        let (digits, unit) =
            text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
        let wrong = || format!("{text:?} is not a time: write 1s, 500ms or never");
        let number: u64 = digits.parse().map_err(|_| wrong())?;
        let time = match unit {
            "s" => std::time::Duration::from_secs(number.min(86_400)),
            "ms" => std::time::Duration::from_millis(number.min(86_400_000)),
            _ => return Err(wrong()),
        };
        Ok(RestartAfter::Time(time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restart_times_are_read() {
        assert_eq!("never".parse(), Ok(RestartAfter::Never));
        let second = std::time::Duration::from_secs(1);
        assert_eq!("1s".parse(), Ok(RestartAfter::Time(second)));
        assert_eq!("1000ms".parse(), Ok(RestartAfter::Time(second)));
        assert!("1h".parse::<RestartAfter>().is_err());
        assert!("s".parse::<RestartAfter>().is_err());
    }
}
