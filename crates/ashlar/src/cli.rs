//! The command line: every command, option and example, in one definition. `--help` and the
//! reference in `docs/commands.md` come from here.

mod bench;
mod gateway;
mod hosts;
mod listen;
mod log_args;
mod object;
mod osd;
mod pool;
mod state;
mod state_place;
mod up;
mod volume;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use bench::{BenchCommand, KvOpArg, LoadArgs, ObjectOpArg, OpArg, RecordArgs};
pub use gateway::{
    AclArg, BucketCommand, GatewayArgs, INDEX_POOL, KeyCommand, REGION, UserCommand,
};
pub use hosts::{InitArgs, MonCommand};
pub use log_args::LogArgs;
pub use object::{
    IfArgs, IfVersionArg, KvCommand, ObjectCommand, PoolArg, RangeArgs, RecordsCommand, ValueArgs,
};
pub use osd::{CommitArg, OsdCommand};
pub use pool::{DomainArg, KindArg, PgCommand, PoolCommand};
pub use state::{ConfigCommand, StateCommand};
pub use state_place::{StatePlace, parse_state};
pub use up::{DownArgs, RestartAfter, StoreArg, UpArgs};
pub use volume::{NbdArgs, VolumeCommand};

/// Turns disks into fast, safe volumes.
#[derive(Parser)]
#[command(name = "ashlar", version, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    /// Directory with cluster.toml and key, or the path of cluster.toml. Default: `.ashlar` in the
    /// current directory or in the nearest directory above it.
    #[arg(long, global = true, env = "ASHLAR_CLUSTER", value_name = "DIR|FILE")]
    pub cluster: Option<PathBuf>,
    /// Print JSON: lists as arrays, sizes in bytes, errors as {"error":{...}} on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// The command to run.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "Examples:
  ashlar up --detach                 a whole cluster on this machine
  ashlar volume create disk1 --size 20GiB
  qemu-img convert -n image.qcow2 'nbd+unix:///disk1?socket=.ashlar/nbd.sock'
  ashlar status
  ashlar down";

const STATUS_EXAMPLE: &str = "Examples:
  ashlar status --json | jq .health
  ashlar status --watch";

const JOIN_EXAMPLE: &str = "Examples:
  ashlar token | ssh HOST ashlar join -
  ashlar osd create /srv/osd --size 1TiB && ashlar osd run /srv/osd
  ashlar mon create /srv/mon && ashlar mon run /srv/mon";

const CHECK_EXAMPLE: &str = "Examples:
  ashlar check || echo \"the cluster needs attention\"
  ashlar down && ashlar check .ashlar/osd.*";

/// Commands.
#[derive(Subcommand)]
pub enum Command {
    /// Run a whole cluster on this machine: a monitor, OSDs, an NBD server and an S3 gateway
    #[command(after_help = up::UP_EXAMPLE)]
    Up(UpArgs),
    /// Stop a cluster that `up` started
    #[command(after_help = "Example:\n  ashlar down --dir /var/lib/ashlar")]
    Down(DownArgs),
    /// OSDs: the storage daemons and their disks
    #[command(subcommand, after_help = "Example:\n  ashlar osd ls")]
    Osd(OsdCommand),
    /// Volumes
    #[command(subcommand, after_help = "Example:\n  ashlar volume create disk1 --size 20GiB")]
    Volume(VolumeCommand),
    /// Objects: data with attributes and sorted records
    #[command(subcommand, after_help = "Example:\n  ashlar object put photos/1 photo.jpg")]
    Object(ObjectCommand),
    /// Small values under sorted keys, in a pool of objects
    #[command(subcommand, after_help = "Example:\n  ashlar kv put colour blue")]
    Kv(KvCommand),
    /// Pools: redundancy and placement rules
    #[command(subcommand, after_help = "Example:\n  ashlar pool ls")]
    Pool(PoolCommand),
    /// Placement groups
    #[command(subcommand, after_help = "Example:\n  ashlar pg ls")]
    Pg(PgCommand),
    /// Background tasks: deletions and backfill
    #[command(subcommand, after_help = "Example:\n  ashlar task ls")]
    Task(TaskCommand),
    /// Settings of the cluster
    #[command(subcommand, after_help = "Example:\n  ashlar config ls")]
    Config(ConfigCommand),
    /// Keys of the state store
    #[command(subcommand, after_help = "Example:\n  ashlar state ls")]
    State(StateCommand),
    /// Show health, load, recovery progress and processes
    #[command(after_help = STATUS_EXAMPLE)]
    Status {
        /// Print the status again whenever it changes, until interrupted; with --json, one line per
        /// second
        #[arg(long)]
        watch: bool,
    },
    /// Print the health checks; with paths, compare the copies on stopped OSDs byte by byte. Exit code
    /// 1 if a check reports an error or copies differ
    #[command(after_help = CHECK_EXAMPLE)]
    Check {
        /// Paths of stopped OSDs, as given to `osd create`; list all OSDs that share placement groups
        paths: Vec<PathBuf>,
        /// Directory with the records of objects of one of these OSDs, as given to `osd run`; may be repeated
        #[arg(long, value_name = "DIR", requires = "paths")]
        objects: Vec<PathBuf>,
    },
    /// Measure the performance of a volume or a disk
    #[command(subcommand, after_help = "Example:\n  ashlar bench volume disk1")]
    Bench(BenchCommand),
    /// Serve volumes to NBD clients
    #[command(after_help = volume::NBD_EXAMPLE)]
    Nbd(NbdArgs),
    /// Serve buckets to S3 clients
    #[command(after_help = gateway::GATEWAY_EXAMPLE)]
    Gateway(GatewayArgs),
    /// Users of the gateway, and their access keys
    #[command(subcommand, after_help = "Example:\n  ashlar user create ann")]
    User(UserCommand),
    /// Buckets of the gateway
    #[command(subcommand, after_help = "Example:\n  ashlar bucket create photos")]
    Bucket(BucketCommand),
    /// Run etcd for `up`: executes Debian's etcd, which exits when its parent process exits
    #[command(
        hide = true,
        after_help = "Example:\n  ashlar etcd .ashlar/etcd --listen=127.0.0.1:2379"
    )]
    Etcd {
        /// Data directory of etcd
        path: PathBuf,
        /// Address for clients, HOST:PORT
        #[arg(long)]
        listen: String,
        /// Exit when the process with this id exits
        #[arg(long)]
        parent: Option<u32>,
    },
    /// Monitors: they keep the cluster map and react to failures; one of them leads
    #[command(subcommand, after_help = "Example:\n  ashlar mon ls")]
    Mon(MonCommand),
    /// Create a cluster of several hosts; this host is the first one
    #[command(after_help = hosts::INIT_EXAMPLE)]
    Init(InitArgs),
    /// Print the token that `join` needs on another host; it contains the cluster's secret key
    #[command(after_help = "Example:\n  ashlar token | ssh HOST ashlar join -")]
    Token,
    /// Add this host to a cluster
    #[command(after_help = JOIN_EXAMPLE)]
    Join {
        /// The output of `ashlar token`; `-` reads it from standard input
        token: String,
        /// Directory to create cluster.toml and key in
        #[arg(long, default_value = ".ashlar")]
        dir: PathBuf,
    },
}

/// `task`
#[derive(Subcommand)]
pub enum TaskCommand {
    /// List deletions and backfill, with progress and time left
    #[command(after_help = "Example:\n  ashlar task ls")]
    Ls,
}

impl Command {
    /// Returns a daemon's log options, its name in the log until its id is known, and whether it is a child
    /// of `up`; `None` for other commands.
    pub fn daemon_log(&self) -> Option<(LogArgs, &'static str, bool)> {
        match self {
            Command::Osd(OsdCommand::Run { log, parent, .. }) => {
                Some((*log, "osd", parent.is_some()))
            }
            Command::Mon(MonCommand::Run { log, parent, .. }) => {
                Some((*log, "mon", parent.is_some()))
            }
            Command::Nbd(args) => Some((args.log, "nbd", args.parent.is_some())),
            Command::Gateway(args) => Some((args.log, "gateway", args.parent.is_some())),
            Command::Up(args) if crate::background::is_background_up() => {
                Some((args.log, "up", true))
            }
            _ => None,
        }
    }

    /// Returns whether the command handles broken connections itself, as daemons do and commands that talk to
    /// a daemon over a socket. All other commands exit quietly when their output is closed.
    pub fn is_server(&self) -> bool {
        match self {
            Command::Up(_) | Command::Down(_) | Command::Nbd(_) | Command::Gateway(_) => true,
            Command::Mon(command) => matches!(command, MonCommand::Run { .. }),
            Command::Osd(command) => !matches!(
                command,
                OsdCommand::Ls
                    | OsdCommand::Tree
                    | OsdCommand::Inspect { .. }
                    | OsdCommand::Check { .. }
                    | OsdCommand::NewEngine { .. }
            ),
            _ => false,
        }
    }
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
    fn the_help_of_every_command_has_an_example() {
        use clap::{CommandFactory, Parser};
        fn visit(command: &clap::Command, path: &[&str]) -> u32 {
            let mut words = path.to_vec();
            words.push(command.get_name());
            let shown = Cli::try_parse_from(words.iter().chain(&["--help"]));
            let help = shown.err().expect("it only prints help");
            assert_eq!(help.kind(), clap::error::ErrorKind::DisplayHelp, "{words:?}");
            assert!(help.to_string().contains("Example"), "{words:?}: {help}");
            let children = command.get_subcommands().filter(|child| child.get_name() != "help");
            1 + children.map(|child| visit(child, &words)).sum::<u32>()
        }
        assert!(visit(&Cli::command(), &[]) > 30);
    }

    /// Returns the reference of all commands and options, in the form of `docs/commands.md`.
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
        let document = std::fs::read_to_string(path).expect("the document exists");
        let (before, after) = document.split_once(HEADING).expect("it has the heading");
        let expected = reference();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(path, format!("{before}{HEADING}{expected}")).expect("writable");
        } else {
            assert_eq!(after, expected, "UPDATE=1 writes docs/commands.md anew");
        }
    }
}
