//! `ashlar nbd`: serves volumes to NBD clients; the crate `attach` does the work.

use attach::nbd::{Server, ServerSettings};
use client::Config;
use cluster::message::Failure;

use crate::cli::NbdArgs;
use crate::output::failure;

/// Runs an NBD server until it is told to stop.
pub fn run(config: &Config, args: NbdArgs) -> Result<(), Failure> {
    let listen = if args.listen.is_empty() {
        vec![format!("unix:{}", config.dir.join("nbd.sock").display())]
    } else {
        args.listen
    };
    let settings = ServerSettings {
        monitors: config.file.monitors.clone(),
        listen,
        volumes: args.volumes,
        read_only: args.read_only,
    };
    let cluster = config.file.cluster;
    Server::run(cluster, config.key.clone(), settings)
        .map_err(|error| failure("nbd", error.to_string(), "see `ashlar nbd --help`"))
}
