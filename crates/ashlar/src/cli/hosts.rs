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
    /// Where the monitors keep their state; several monitors need etcd
    #[arg(long, value_parser = parse_state, value_name = STATE)]
    pub state: StatePlace,
    /// Network that daemons listen on; repeat the option to spread connections over several networks
    /// [default: all addresses]
    #[arg(long, value_parser = parse_network, value_name = "ADDRESS/BITS")]
    pub network: Vec<String>,
    /// Network for traffic between OSDs, tried before --network
    #[arg(long, value_parser = parse_network, value_name = "ADDRESS/BITS")]
    pub osd_network: Vec<String>,
    /// Port of this host's monitor [default: 4130]
    #[arg(long)]
    pub port: Option<u16>,
    /// Directory to create cluster.toml, key and this host's monitor in
    #[arg(long, default_value = ".ashlar")]
    pub dir: PathBuf,
}

/// `mon`
#[derive(Subcommand)]
pub enum MonCommand {
    /// Create another monitor, for a cluster that keeps its state in etcd
    #[command(after_help = "Example:\n  ashlar mon create /var/lib/ashlar/mon.2")]
    Create {
        /// Directory of the monitor (created if missing)
        path: PathBuf,
        /// Port to listen on; a second monitor on the same host needs another port [default: 4130]
        #[arg(long)]
        port: Option<u16>,
    },
    /// List monitors and show which one leads
    #[command(after_help = "Example:\n  ashlar mon ls")]
    Ls,
    /// Remove a stopped monitor; its id is never used again
    #[command(after_help = "Example:\n  ashlar mon rm 3")]
    Rm {
        /// 3 or mon.3
        monitor: MonitorId,
    },
    /// Run a monitor
    #[command(after_help = MON_RUN_EXAMPLE)]
    Run {
        /// Directory of the monitor, which also holds an embedded state store
        path: PathBuf,
        /// Where the state is kept [default: `state` in cluster.toml]
        #[arg(long, value_parser = parse_state, value_name = STATE)]
        state: Option<StatePlace>,
        /// Run in the background; return once the monitor is ready. Logs to PATH/mon.log
        #[arg(long)]
        detach: bool,
        /// Accept an empty state store, because the cluster is new
        #[arg(long, hide = true)]
        new_cluster: bool,
        #[command(flatten)]
        log: LogArgs,
        /// Exit when the process with this id exits
        #[arg(long, hide = true)]
        parent: Option<u32>,
    },
}

fn parse_network(text: &str) -> Result<String, String> {
    io::Network::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}
