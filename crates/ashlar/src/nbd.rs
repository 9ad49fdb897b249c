//! `ashlar nbd`: serves volumes to NBD clients; the crate `attach` does the work.

use std::time::Duration;

use attach::nbd::{Server, ServerSettings};
use base::TraceEvent;
use client::Config;
use cluster::message::{Command, Failure};

use crate::cli::NbdArgs;
use crate::output::failure;

/// Time limit for the check of the volumes before serving; a sixth of it is for connecting to a monitor.
const LOOK_TIME_MAX: Duration = Duration::from_secs(12);

/// Runs an NBD server until it receives a signal to stop.
///
/// Errors: `not_found` (a listed volume does not exist), `untrusted` (the key belongs to another cluster),
/// `nbd` (the server cannot start).
pub fn run(config: &Config, args: NbdArgs) -> Result<(), Failure> {
    let warning = check_volumes(config, &args.volumes)?;
    args.log.start("nbd");
    warning.iter().for_each(io::log::write);
    let listen = if args.listen.is_empty() {
        vec![format!("unix:{}", config.dir.join("nbd.sock").display())]
    } else {
        args.listen
    };
    let settings = ServerSettings {
        listen,
        volumes: args.volumes,
        read_only: args.read_only,
        shared: args.shared,
        unsynced_size_max: args.unsynced.0,
    };
    Server::run(config, settings)
        .map_err(|error| failure("nbd", error.to_string(), "see `ashlar nbd --help`"))
}

/// Refuses volumes that do not exist. If the cluster is down, the server starts anyway and its clients
/// wait; then returns a warning to log.
fn check_volumes(config: &Config, names: &[String]) -> Result<Option<TraceEvent>, Failure> {
    let volumes = match client::call(config, Command::VolumeList, LOOK_TIME_MAX) {
        Ok(volumes) => volumes,
        Err(error) if crate::status::is_passing(&error) => {
            let event =
                TraceEvent::warn("no answer from the cluster: clients wait until it answers");
            return Ok(Some(event.with("why", &error.message)));
        }
        Err(error) => return Err(error),
    };
    let rows = volumes.as_array().cloned().unwrap_or_default();
    match names.iter().find(|name| !rows.iter().any(|row| row["name"] == name.as_str())) {
        None => Ok(None),
        Some(name) => {
            let hint = "list the volumes: ashlar volume ls";
            Err(failure("not_found", format!("there is no volume {name}"), hint))
        }
    }
}
