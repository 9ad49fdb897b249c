//! The command line: every command, option and example, in one definition. `--help` and the
//! reference in `docs/commands.md` come from here.

use std::path::PathBuf;

use base::size::{BlockSize, Size};
use base::trace::Level;
use base::{MonitorId, OsdId, PgId};
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// Turns disks into fast, safe volumes.
#[derive(Parser)]
#[command(name = "ashlar", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Directory with cluster.toml and key, or the file itself. Found by itself as `.ashlar` in
    /// the current folder or above.
    #[arg(long, global = true, env = "ASHLAR_CLUSTER", value_name = "DIR|FILE")]
    pub cluster: Option<PathBuf>,
    /// Print JSON: lists are arrays, sizes are bytes; errors as {"error":{...}} on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "Examples:
  ashlar up --detach                 a whole cluster on this machine
  ashlar volume create disk1 --size 20GiB
  qemu-img convert -n image.qcow2 'nbd+unix:///disk1?socket=.ashlar/nbd.sock'
  ashlar status
  ashlar down";

const UP_EXAMPLE: &str = "Examples:
  ashlar up --dir /var/lib/ashlar --osds 3 --osd-size 100GiB --detach
  ashlar up --state etcd";

const BENCH_DISK_EXAMPLE: &str = "\
In the echo a block goes the way it goes in the load, and at most 4KiB come the other way.

Example:
  ashlar bench disk /mnt/nvme --op randwrite --depth 1";

const NBD_EXAMPLE: &str = "Example:
  ashlar nbd --listen tcp:127.0.0.1:10809
  nbdinfo --list nbd://127.0.0.1";

const STATE_PUT_EXAMPLE: &str = "Examples:
  ashlar state put config/osd_report_ms '{\"name\":\"osd_report_ms\",\"value\":500}'
  ashlar state get osd/2 | jq '.value | .in = false' | ashlar state put osd/2 -";

const STATE_RECOVER_EXAMPLE: &str = "Examples:
  ashlar state recover                          what would be done, and who is missing
  ashlar state recover --yes
  ashlar state recover --they-are-lost 3 --yes  OSDs that never come back";

const STATUS_EXAMPLE: &str = "Examples:
  ashlar status --json | jq .health
  ashlar status --watch";

const CONFIG_SET_EXAMPLE: &str = "Examples:
  ashlar config set session_timeout_ms 30s
  ashlar config set nearly_full_percent default";

const INIT_EXAMPLE: &str = "Examples:
  ashlar init --state etcd:http://10.0.0.1:2379,http://10.0.0.2:2379,http://10.0.0.3:2379
  ashlar init --state etcd:http://10.0.0.1:2379 --network 10.0.0.0/16 --network fd00:1::/64
  ashlar mon run .ashlar/mon.1";

const JOIN_EXAMPLE: &str = "Examples:
  ashlar token | ssh HOST ashlar join -
  ashlar osd create /srv/osd --size 1TiB && ashlar osd run /srv/osd
  ashlar mon create /srv/mon && ashlar mon run /srv/mon";

const MON_RUN_EXAMPLE: &str = "Examples:
  ashlar mon run /var/lib/ashlar/mon.1
  ashlar mon run mon.1 --state etcd:http://10.0.0.1:2379,http://10.0.0.2:2379";

const OSD_CREATE_EXAMPLE: &str = "Examples:
  ashlar osd create /var/lib/ashlar/osd.4 --size 100GiB
  ashlar osd create /dev/nvme0n1p2 --commit immediate";

const OSD_OUT_EXAMPLE: &str = "Examples:
  ashlar osd out 2          its data moves to the others
  ashlar osd tree           PGS of osd.2 goes to 0
  ashlar osd stop 2 && ashlar osd rm 2";

const OSD_RM_EXAMPLE: &str = "Examples:
  ashlar osd rm 2           an OSD that `osd out` emptied, and that is stopped
  ashlar osd out 3          one whose disk is lost: others get its copies first,
  ashlar osd rm 3           then it is forgotten";

const CHECK_EXAMPLE: &str = "Examples:
  ashlar check || echo trouble
  ashlar down && ashlar check .ashlar/osd.*";

const POOL_CREATE_EXAMPLE: &str = "Examples:
  ashlar pool create safe --replicas 3
  ashlar pool create fast --replicas 2 --min-size 1 --failure-domain osd";

const PG_GIVE_UP_EXAMPLE: &str = "Examples:
  ashlar pg give-up 1.1f                       what would be lost
  ashlar pg give-up 1.1f --yes                 damage that no other copy can mend
  ashlar pg give-up 1.1f --they-are-off --yes  OSDs that never come back";

/// Commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run a whole cluster on this machine: monitor, OSDs, NBD server
    #[command(after_help = UP_EXAMPLE)]
    Up(UpArgs),
    /// Stop the cluster that `up` runs
    #[command(after_help = "Example:\n  ashlar down --dir /var/lib/ashlar")]
    Down(DownArgs),
    /// Storage daemons and their disks
    #[command(subcommand, after_help = "Example:\n  ashlar osd ls")]
    Osd(OsdCommand),
    /// Volumes
    #[command(subcommand, after_help = "Example:\n  ashlar volume create disk1 --size 20GiB")]
    Volume(VolumeCommand),
    /// Pools: redundancy and placement rules
    #[command(subcommand, after_help = "Example:\n  ashlar pool ls")]
    Pool(PoolCommand),
    /// Placement groups
    #[command(subcommand, after_help = "Example:\n  ashlar pg ls")]
    Pg(PgCommand),
    /// What runs in the background
    #[command(subcommand, after_help = "Example:\n  ashlar task ls")]
    Task(TaskCommand),
    /// Settings
    #[command(subcommand, after_help = "Example:\n  ashlar config ls")]
    Config(ConfigCommand),
    /// Keys of the state store
    #[command(subcommand, after_help = "Example:\n  ashlar state ls")]
    State(StateCommand),
    /// Health, what is running, and when it will be done
    #[command(after_help = STATUS_EXAMPLE)]
    Status {
        /// Show it again as it changes, until interrupted; with --json one line each second
        #[arg(long)]
        watch: bool,
    },
    /// Health checks alone, or with paths: compare the copies on disks of stopped OSDs, byte by byte;
    /// exit code 1 if one of them is an error, or copies differ
    #[command(after_help = CHECK_EXAMPLE)]
    Check {
        /// Stopped OSDs, as given to `osd create`: all that share placement groups
        paths: Vec<PathBuf>,
    },
    /// Measure a volume or a disk
    #[command(subcommand, after_help = "Example:\n  ashlar bench volume disk1")]
    Bench(BenchCommand),
    /// Serve volumes to NBD clients
    #[command(after_help = NBD_EXAMPLE)]
    Nbd(NbdArgs),
    /// Run the etcd of `up`: becomes Debian's, and ends with its parent
    #[command(
        hide = true,
        after_help = "Example:\n  ashlar etcd .ashlar/etcd --listen=127.0.0.1:2379"
    )]
    Etcd {
        /// The directory of its data
        path: PathBuf,
        /// HOST:PORT
        #[arg(long)]
        listen: String,
        /// End when this process ends
        #[arg(long)]
        parent: Option<u32>,
    },
    /// Monitors: they plan, and react to failures; one of them leads
    #[command(subcommand, after_help = "Example:\n  ashlar mon ls")]
    Mon(MonCommand),
    /// Make a cluster of several hosts, of which this is the first
    #[command(after_help = INIT_EXAMPLE)]
    Init(InitArgs),
    /// Print what `join` needs on the next host; it holds the key of the cluster
    #[command(after_help = "Example:\n  ashlar token | ssh HOST ashlar join -")]
    Token,
    /// Make this host one of a cluster's
    #[command(after_help = JOIN_EXAMPLE)]
    Join {
        /// As `ashlar token` printed it; -: read it from standard input
        token: String,
        /// Directory for cluster.toml and key
        #[arg(long, default_value = ".ashlar")]
        dir: PathBuf,
    },
}

impl Command {
    /// The log of a daemon, the name it has before it knows its own, and whether `up` reads what it
    /// says.
    pub fn daemon_log(&self) -> Option<(LogArgs, &'static str, bool)> {
        match self {
            Command::Osd(OsdCommand::Run { log, parent, .. }) => {
                Some((*log, "osd", parent.is_some()))
            }
            Command::Mon(MonCommand::Run { log, parent, .. }) => {
                Some((*log, "mon", parent.is_some()))
            }
            Command::Nbd(args) => Some((args.log, "nbd", args.parent.is_some())),
            Command::Up(args) if crate::up::is_background() => Some((args.log, "up", true)),
            _ => None,
        }
    }

    /// Whether it serves others until it is told to end, or talks to such a one over a socket that
    /// may break.
    pub fn is_server(&self) -> bool {
        match self {
            Command::Up(_) | Command::Down(_) | Command::Nbd(_) => true,
            Command::Mon(command) => matches!(command, MonCommand::Run { .. }),
            Command::Osd(command) => !matches!(
                command,
                OsdCommand::Ls
                    | OsdCommand::Tree
                    | OsdCommand::Inspect { .. }
                    | OsdCommand::Check { .. }
            ),
            _ => false,
        }
    }
}

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

/// What a daemon writes to its log, which is its standard error; of `up` its children, too.
#[derive(Args, Clone, Copy)]
pub struct LogArgs {
    /// Lines of the log for people, or as JSON
    #[arg(long, value_enum, default_value = "human", env = LOG_FORMAT_VARIABLE)]
    pub log_format: LogFormat,
    /// The least important lines of the log: error, warn, info or debug. In OSDs and monitors the
    /// setting log_level takes its place
    #[arg(long, default_value = "info", env = LOG_LEVEL_VARIABLE, value_name = "LEVEL")]
    pub log_level: Level,
}

impl LogArgs {
    /// This process is a daemon of that name from now on.
    pub fn start(self, who: impl Into<String>) {
        let format = match self.log_format {
            LogFormat::Human => io::log::Format::Human,
            LogFormat::Json => io::log::Format::Json,
        };
        io::log::start(who, format, self.log_level);
    }

    /// The same for a child, by its environment.
    pub fn variables(self) -> [(&'static str, &'static str); 2] {
        let format = match self.log_format {
            LogFormat::Human => "human",
            LogFormat::Json => "json",
        };
        [(LOG_FORMAT_VARIABLE, format), (LOG_LEVEL_VARIABLE, self.log_level.name())]
    }
}

/// How lines of the log look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum LogFormat {
    /// Time, level, who, what, then name=value
    Human,
    /// One JSON object in each line
    Json,
}

const LOG_FORMAT_VARIABLE: &str = "ASHLAR_LOG_FORMAT";
const LOG_LEVEL_VARIABLE: &str = "ASHLAR_LOG_LEVEL";

/// `down`
#[derive(Args)]
pub struct DownArgs {
    /// Where the cluster lives
    #[arg(long, default_value = ".ashlar")]
    pub dir: PathBuf,
}

/// `osd`
#[derive(Subcommand)]
pub enum OsdCommand {
    /// Make a new OSD in a directory, or on a block device
    #[command(after_help = OSD_CREATE_EXAMPLE)]
    Create {
        /// A directory (made if missing), or an empty block device
        path: PathBuf,
        /// Size; needed for a directory, the whole device otherwise
        #[arg(long)]
        size: Option<Size>,
        /// When a write counts as done; found by measuring if not given
        #[arg(long, value_enum)]
        commit: Option<CommitArg>,
    },
    /// Run the storage daemon of a directory or device
    #[command(after_help = "Example:\n  ashlar osd run /var/lib/ashlar/osd.4 --detach")]
    Run {
        /// As given to `osd create`
        path: PathBuf,
        /// Where to listen; default: in the networks of cluster.toml, or on 127.0.0.1
        #[arg(long, value_parser = parse_listen, value_name = LISTEN)]
        listen: Option<String>,
        /// Memory for caches
        #[arg(long, default_value = "128MiB")]
        memory: Size,
        /// Return when it serves, and leave it in the background; its log is PATH/osd.log, that of a
        /// device lies beside cluster.toml
        #[arg(long)]
        detach: bool,
        #[command(flatten)]
        log: LogArgs,
        /// End when this process ends
        #[arg(long, hide = true)]
        parent: Option<u32>,
    },
    /// Start an OSD that was stopped, under `up`
    #[command(after_help = "Example:\n  ashlar osd start 2")]
    Start {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Stop an OSD under `up`; it stays stopped until `osd start`
    #[command(after_help = "Example:\n  ashlar osd stop osd.2")]
    Stop {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Empty an OSD: its data moves to other OSDs while it goes on serving
    #[command(after_help = OSD_OUT_EXAMPLE)]
    Out {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Use an OSD again that was taken out
    #[command(after_help = "Example:\n  ashlar osd in 2")]
    In {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// Remove an OSD that is stopped and empty, or lost; its id is never used again
    #[command(after_help = OSD_RM_EXAMPLE)]
    Rm {
        /// 2 or osd.2
        osd: OsdId,
    },
    /// All OSDs
    #[command(after_help = "Example:\n  ashlar osd ls --json")]
    Ls,
    /// Hosts and their OSDs, as failure domains see them: weight, state, space
    #[command(after_help = "Example:\n  ashlar osd tree")]
    Tree,
    /// What is on a disk: superblock, journal, counts
    #[command(after_help = "Example:\n  ashlar osd inspect .ashlar/osd.1")]
    Inspect {
        /// As given to `osd create`
        path: PathBuf,
    },
    /// Read everything on a stopped OSD's disk and verify it; exit code 1 if something is wrong
    #[command(after_help = "Example:\n  ashlar osd check .ashlar/osd.1")]
    Check {
        /// As given to `osd create`
        path: PathBuf,
    },
}

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

/// `volume`
#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Make a volume; it takes space as it is written
    #[command(after_help = "Example:\n  ashlar volume create disk1 --size 20GiB")]
    Create {
        /// Letters, digits, `.`, `_`, `-`; at most 63
        name: String,
        /// A multiple of 4 KiB
        #[arg(long)]
        size: Size,
        /// Not needed while there is one pool
        #[arg(long)]
        pool: Option<String>,
    },
    /// All volumes
    #[command(after_help = "Example:\n  ashlar volume ls --json")]
    Ls,
    /// One volume
    #[command(after_help = "Example:\n  ashlar volume info disk1")]
    Info {
        /// Its name
        name: String,
    },
    /// Make a volume larger, or with --shrink smaller
    #[command(after_help = "Example:\n  ashlar volume resize disk1 40GiB")]
    Resize {
        /// Its name
        name: String,
        /// The new size, a multiple of 4 KiB
        size: Size,
        /// Accept that data beyond the new size is lost
        #[arg(long)]
        shrink: bool,
    },
    /// Remove a volume and its data; refused while it is attached
    #[command(after_help = "Example:\n  ashlar volume rm disk1")]
    Rm {
        /// Its name
        name: String,
    },
    /// Take a volume's lock from a client that hangs; it is cut off for ever
    #[command(
        after_help = "Examples:\n  ashlar volume unlock disk1          who has the lock?\n  \
                            ashlar volume unlock disk1 --yes"
    )]
    Unlock {
        /// Its name
        name: String,
        /// Cut the holder off. Without this: say who has the lock, exit code 1
        #[arg(long)]
        yes: bool,
    },
}

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

/// `task`
#[derive(Subcommand)]
pub enum TaskCommand {
    /// What is being deleted and copied, how far it is, and how long it will take
    #[command(after_help = "Example:\n  ashlar task ls")]
    Ls,
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

/// `config`
#[derive(Subcommand)]
pub enum ConfigCommand {
    /// All settings
    #[command(after_help = "Example:\n  ashlar config ls")]
    Ls,
    /// One setting
    #[command(after_help = "Example:\n  ashlar config get session_timeout_ms")]
    Get {
        /// As `config ls` names it
        name: String,
    },
    /// Change a setting; it is in force at once
    #[command(after_help = CONFIG_SET_EXAMPLE)]
    Set {
        /// As `config ls` names it
        name: String,
        /// A number, or with its unit: 30s, 500ms, 85%; or `default`
        value: String,
    },
}

/// `state`
#[derive(Subcommand)]
pub enum StateCommand {
    /// Keys of the state store
    #[command(after_help = "Example:\n  ashlar state ls image/")]
    Ls {
        /// Only keys with this prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// The JSON value of a key
    #[command(after_help = "Example:\n  ashlar state get pool/1")]
    Get {
        /// The whole key
        key: String,
    },
    /// Write a key that operators may edit: config/NAME, pool/ID, osd/ID; in force at once
    #[command(after_help = STATE_PUT_EXAMPLE)]
    Put {
        /// The whole key
        key: String,
        /// JSON; `-` reads it from standard input
        #[arg(allow_hyphen_values = true)]
        value: String,
    },
    /// Restore keys that only monitors may write, and that somebody else changed
    #[command(after_help = "Example:\n  ashlar state undo --yes")]
    Undo {
        /// Do it. Without this: show the last good values, exit code 1
        #[arg(long)]
        yes: bool,
    },
    /// Bring a state store that is damaged, or was restored from a backup, up to what OSDs know
    #[command(after_help = STATE_RECOVER_EXAMPLE)]
    Recover {
        /// OSDs that will not answer any more: what they alone know is lost
        #[arg(long, value_name = "OSD", num_args = 1.., value_delimiter = ',')]
        they_are_lost: Vec<OsdId>,
        /// Do it. Without this: say what would be done, exit code 1
        #[arg(long)]
        yes: bool,
    },
    /// Print changes of keys as they happen, until interrupted; with --json one line each
    #[command(after_help = "Example:\n  ashlar state watch pool/")]
    Watch {
        /// Only keys with this prefix
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
}

/// `bench`
#[derive(Subcommand)]
pub enum BenchCommand {
    /// A volume, through its whole path. Writing modes overwrite the volume
    #[command(after_help = "Example:\n  ashlar bench volume disk1 --op randwrite --depth 32")]
    Volume {
        /// Its name
        name: String,
        /// How
        #[command(flatten)]
        load: LoadArgs,
    },
    /// The store on a scratch file in a directory, beside raw io_uring on the same file and a loopback
    /// echo, both of the same block size and depth
    #[command(after_help = BENCH_DISK_EXAMPLE)]
    Disk {
        /// A directory; the scratch file is removed at the end
        path: PathBuf,
        /// How
        #[command(flatten)]
        load: LoadArgs,
        /// Size of the scratch file
        #[arg(long, default_value = "1GiB")]
        size: Size,
        /// When a write counts as done
        #[arg(long, value_enum, default_value = "immediate")]
        commit: CommitArg,
    },
}

/// What a measurement does.
#[derive(Args, Clone)]
pub struct LoadArgs {
    /// What to do
    #[arg(long, value_enum, default_value = "randwrite")]
    pub op: OpArg,
    /// Bytes of one operation
    #[arg(long, default_value = "4KiB")]
    pub block_size: Size,
    /// Operations in flight
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub depth: u32,
    /// How long
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub seconds: u32,
}

/// `nbd`
#[derive(Args)]
pub struct NbdArgs {
    /// Serve only these; default: all volumes
    pub volumes: Vec<String>,
    /// Where to listen; default: unix:DIR/nbd.sock
    #[arg(long, value_parser = parse_listen, value_name = LISTEN)]
    pub listen: Vec<String>,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Take no locks: several servers may serve a volume, and each write waits for the disks
    #[arg(long)]
    pub shared: bool,
    /// With a lock: most data of a volume that is acknowledged but not flushed
    #[arg(long, default_value = "64MiB", value_name = "SIZE", value_parser = parse_unsynced)]
    pub unsynced: Size,
    #[command(flatten)]
    pub log: LogArgs,
    /// End when this process ends
    #[arg(long, hide = true)]
    pub parent: Option<u32>,
}

/// When a write counts as done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
pub enum CommitArg {
    /// After a flush of the disk's cache
    Fsync,
    /// Each write goes through the disk's cache
    Immediate,
}

/// Where `up` keeps the state.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum StoreArg {
    /// A file of the monitor
    Embedded,
    /// An etcd on this machine, on loopback
    Etcd,
}

/// What copies must not share.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DomainArg {
    /// A host
    Host,
    /// An OSD
    Osd,
}

/// A kind of load.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OpArg {
    /// Writes at random places
    Randwrite,
    /// Reads at random places
    Randread,
    /// Writes one after another
    Write,
    /// Reads one after another
    Read,
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

/// What a place to listen at looks like.
const LISTEN: &str = "unix:PATH|tcp:[HOST]:PORT";

fn parse_unsynced(text: &str) -> Result<Size, String> {
    let size: Size = text.parse().map_err(|error| format!("{error}"))?;
    let min = Size(volume::UNSYNCED_SIZE_MIN);
    if size >= min { Ok(size) } else { Err(format!("at least {min}")) }
}

/// Who names no host means this one, and nobody beyond it.
fn parse_listen(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} is no place to listen at: write tcp:[HOST]:PORT or unix:PATH");
    match text.split_once(':').ok_or_else(wrong)? {
        ("unix", path) if !path.is_empty() => Ok(text.to_owned()),
        ("tcp", rest) => {
            let (host, port) = rest.rsplit_once(':').ok_or_else(wrong)?;
            let port: u16 = port.parse().map_err(|_| wrong())?;
            let host = if host.is_empty() { "127.0.0.1" } else { host };
            Ok(format!("tcp:{host}:{port}"))
        }
        _ => Err(wrong()),
    }
}

/// What the place of the state looks like.
const STATE: &str = "embedded|etcd:URL,...[/PREFIX]";

/// Where a monitor's state is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StatePlace {
    /// In a file of the monitor.
    Embedded,
    /// In etcd; read by `EtcdPlace::parse`.
    Etcd(String),
}

/// Reads the place of the state.
pub fn parse_state(text: &str) -> Result<StatePlace, String> {
    if text == "embedded" {
        return Ok(StatePlace::Embedded);
    }
    let urls = text
        .strip_prefix("etcd:")
        .ok_or_else(|| format!("{text:?} is no place of a state: write {STATE}"))?;
    match io::etcd::EtcdPlace::parse(urls, "default") {
        Ok(_) => Ok(StatePlace::Etcd(urls.to_owned())),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_network(text: &str) -> Result<String, String> {
    io::Network::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn parse_block_size(text: &str) -> Result<BlockSize, String> {
    let size: Size = text.parse().map_err(|error: base::ids::ParseIdError| error.0)?;
    BlockSize::new(size.0)
        .ok_or_else(|| format!("{text:?} is no block size: a power of two from 16KiB to 1MiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn restart_times_are_read() {
        assert_eq!("never".parse(), Ok(RestartAfter::Never));
        let second = std::time::Duration::from_secs(1);
        assert_eq!("1s".parse(), Ok(RestartAfter::Time(second)));
        assert_eq!("1000ms".parse(), Ok(RestartAfter::Time(second)));
        assert!("1h".parse::<RestartAfter>().is_err());
        assert!("s".parse::<RestartAfter>().is_err());
    }

    #[test]
    fn tcp_is_served_on_loopback_unless_a_host_is_named() {
        let listen = |text: &str| parse_listen(text).ok();
        assert_eq!(listen("tcp::10809").as_deref(), Some("tcp:127.0.0.1:10809"));
        for text in ["tcp:0.0.0.0:10809", "tcp:[::1]:0", "tcp:host:1", "unix:nbd.sock"] {
            assert_eq!(listen(text).as_deref(), Some(text));
        }
        for text in ["", "tcp", "tcp:10809", "10809", "tcp::99999", "tcp:host:", "unix:", "udp::1"]
        {
            assert_eq!(listen(text), None, "{text}");
        }
    }

    #[test]
    fn the_place_of_a_state_is_read() {
        assert_eq!(parse_state("embedded"), Ok(StatePlace::Embedded));
        let urls = "http://10.0.0.1:2379,http://10.0.0.2:2379/east";
        assert_eq!(parse_state(&format!("etcd:{urls}")), Ok(StatePlace::Etcd(urls.into())));
        for text in ["", "etcd", "etcd:", "etcd:10.0.0.1", "redis:x", "http://10.0.0.1:2379"] {
            assert!(parse_state(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_help_of_every_command_has_an_example() {
        use clap::{CommandFactory, Parser};
        fn visit(command: &clap::Command, path: &[&str]) -> u32 {
            let mut words = path.to_vec();
            words.push(command.get_name());
            let shown = Cli::try_parse_from(words.iter().chain(&["--help"]));
            let help = shown.err().expect("it shows help and does nothing else");
            assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{words:?}");
            assert!(help.to_string().contains("Example"), "{words:?}: {help}");
            let children = command.get_subcommands().filter(|child| child.get_name() != "help");
            1 + children.map(|child| visit(child, &words)).sum::<u32>()
        }
        assert!(visit(&Cli::command(), &[]) > 30);
    }

    /// Every command and option, as `docs/commands.md` has them.
    fn reference() -> String {
        use clap::CommandFactory;
        fn value(argument: &clap::Arg) -> String {
            let possible = argument.get_possible_values();
            if !possible.is_empty() {
                let names: Vec<&str> = possible.iter().map(|value| value.get_name()).collect();
                return names.join("|");
            }
            let names = argument.get_value_names().unwrap_or_default();
            names.first().map(ToString::to_string).unwrap_or_default()
        }
        fn name(argument: &clap::Arg) -> String {
            match argument.get_long() {
                None => value(argument),
                Some(long) if argument.get_action().takes_values() => {
                    format!("--{long} {}", value(argument))
                }
                Some(long) => format!("--{long}"),
            }
        }
        fn usage(argument: &clap::Arg) -> String {
            let repeated = argument.get_num_args().is_some_and(|count| count.max_values() > 1)
                || matches!(argument.get_action(), clap::ArgAction::Append);
            let dots = if repeated { "..." } else { "" };
            match argument.is_required_set() {
                true => format!(" {}{dots}", name(argument)),
                false => format!(" [{}]{dots}", name(argument)),
            }
        }
        fn visit(command: &clap::Command, path: &str, text: &mut String) {
            let path = format!("{path}{}", command.get_name());
            let children = command.get_subcommands().filter(|child| child.get_name() != "help");
            let mut is_leaf = true;
            for child in children {
                is_leaf = false;
                visit(child, &format!("{path} "), text);
            }
            if !is_leaf {
                return;
            }
            let shown = |argument: &&clap::Arg| {
                let own = ["help", "version", "cluster", "json"];
                !argument.is_hide_set() && !own.contains(&argument.get_id().as_str())
            };
            let arguments: Vec<&clap::Arg> = command.get_positionals().filter(shown).collect();
            let options: Vec<&clap::Arg> = command.get_opts().filter(shown).collect();
            let flags = command.get_arguments().filter(shown);
            let flags = flags.filter(|flag| !flag.get_action().takes_values());
            let all: Vec<&clap::Arg> = arguments.into_iter().chain(options).chain(flags).collect();
            let line: String = all.iter().map(|argument| usage(argument)).collect();
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("\n### `{path}{line}`\n\n{about}.\n"));
            for (number, argument) in all.into_iter().enumerate() {
                let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
                let is_told = !argument.is_hide_default_value_set();
                let defaults = argument.get_default_values();
                let default = match defaults.first().map(|value| value.to_string_lossy()) {
                    Some(default) if is_told && argument.get_action().takes_values() => {
                        format!(" (default `{default}`)")
                    }
                    _ => String::new(),
                };
                let gap = if number == 0 { "\n" } else { "" };
                text.push_str(&format!("{gap}- `{}`: {help}{default}\n", name(argument)));
            }
        }
        let mut cli = Cli::command();
        cli.build();
        let mut text = String::new();
        let is_shown =
            |command: &&clap::Command| command.get_name() != "help" && !command.is_hide_set();
        for command in cli.get_subcommands().filter(is_shown) {
            visit(command, "ashlar ", &mut text);
        }
        text
    }

    #[test]
    fn the_reference_of_commands_is_this_definition() {
        const HEADING: &str = "## Every command\n";
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
        let document = std::fs::read_to_string(path).expect("it is there");
        let (before, after) = document.split_once(HEADING).expect("the heading is there");
        let expected = reference();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, format!("{before}{HEADING}{expected}")).expect("writable");
        } else {
            assert_eq!(after, expected, "UPDATE=1 writes docs/commands.md anew");
        }
    }
}
