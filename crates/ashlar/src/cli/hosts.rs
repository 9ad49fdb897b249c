//! Clusters of several hosts: `ashlar init` and `ashlar mon`.

use std::path::PathBuf;

use base::MonitorId;
use clap::{Args, Subcommand};

use super::log_args::LogArgs;
use super::state_place::{STATE, StatePlace, parse_state};

pub(super) const INIT_EXAMPLE: &str = "Examples:
  ashlar init --state etcd:http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379
  ashlar init --state etcd:http://10.0.0.1:2379 --network 10.0.0.0/16 --network fd00:1::/64
  ashlar mon run .ashlar/mon.1";

const MON_RUN_EXAMPLE: &str = "Examples:
  ashlar mon run /var/lib/ashlar/mon.1
  ashlar mon run mon.1 --state etcd:http://10.0.0.1:2379,http://10.0.0.2:2379";

/// `init`
#[derive(Args)]
pub struct InitArgs {
    /// Where monitors keep the state; several monitors need etcd
    #[arg(long, value_parser = parse_state, value_name = STATE)]
    pub state: StatePlace,
    /// Network that daemons listen in; connections spread over several; default: all addresses
    #[arg(long, value_parser = parse_network, value_name = "ADDRESS/BITS")]
    pub network: Vec<String>,
    /// Network between OSDs, tried before the others
    #[arg(long, value_parser = parse_network, value_name = "ADDRESS/BITS")]
    pub osd_network: Vec<String>,
    /// Where this host's monitor listens; 4130 without this
    #[arg(long)]
    pub port: Option<u16>,
    /// Directory for cluster.toml, key, and this host's monitor
    #[arg(long, default_value = ".ashlar")]
    pub dir: PathBuf,
}

/// `mon`
#[derive(Subcommand)]
pub enum MonCommand {
    /// Make the directory of another monitor of a cluster whose state lies in etcd
    #[command(after_help = "Example:\n  ashlar mon create /var/lib/ashlar/mon.2")]
    Create {
        /// A directory (made if missing)
        path: PathBuf,
        /// Where it listens, 4130 without this; a second one on a host needs a port of its own
        #[arg(long)]
        port: Option<u16>,
    },
    /// All monitors, and which one leads
    #[command(after_help = "Example:\n  ashlar mon ls")]
    Ls,
    /// Remove a monitor that does not run; its id is never used again
    #[command(after_help = "Example:\n  ashlar mon rm 3")]
    Rm {
        /// 3 or mon.3
        monitor: MonitorId,
    },
    /// Run a monitor
    #[command(after_help = MON_RUN_EXAMPLE)]
    Run {
        /// Its directory: an embedded state lies there
        path: PathBuf,
        /// Where the state is kept; default: as cluster.toml says
        #[arg(long, value_parser = parse_state, value_name = STATE)]
        state: Option<StatePlace>,
        /// Return when it serves, and leave it in the background; its log is PATH/mon.log
        #[arg(long)]
        detach: bool,
        /// Accept an empty state: the cluster is new, its state is not lost
        #[arg(long, hide = true)]
        new_cluster: bool,
        #[command(flatten)]
        log: LogArgs,
        /// End when this process ends
        #[arg(long, hide = true)]
        parent: Option<u32>,
    },
}

fn parse_network(text: &str) -> Result<String, String> {
    io::Network::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}
