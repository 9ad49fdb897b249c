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
    /// Where the cluster lives
    #[arg(long, default_value = ".ashlar")]
    pub dir: PathBuf,
    /// Number of OSDs; more than before adds some [default: 3, later what is there]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub osds: Option<u32>,
    /// Size of each new OSD; space is used as it is written
    #[arg(long, default_value = "10GiB")]
    pub osd_size: Size,
    /// When a write counts as done: `fsync` flushes the disk, `immediate` trusts no cache
    #[arg(long, value_enum)]
    pub commit: Option<CommitArg>,
    /// Where the state is kept: in a file, or in an etcd that runs here [default: embedded, later
    /// what is there]
    #[arg(long, value_enum)]
    pub state: Option<StoreArg>,
    /// Start a child that died again after this time, or never
    #[arg(long, default_value = "1s", value_name = "TIME|never")]
    pub restart_after: RestartAfter,
    /// Return when a volume can be written; the cluster goes on in the background
    #[arg(long)]
    pub detach: bool,
    #[command(flatten)]
    pub log: LogArgs,
}

/// `down`
#[derive(Args)]
pub struct DownArgs {
    /// Where the cluster lives
    #[arg(long, default_value = ".ashlar")]
    pub dir: PathBuf,
}

/// Where `up` keeps the state.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreArg {
    /// A file of the monitor
    Embedded,
    /// An etcd on this machine, on loopback
    Etcd,
}

impl StoreArg {
    /// The word on the command line.
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
    /// After this time.
    Time(std::time::Duration),
    /// Not at all.
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
        let wrong = || format!("{text:?} is no time: write 1s, 500ms or never");
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
