//! The `ashlar` program: arguments and wiring only. Each daemon is a loop that passes events from the
//! reactor to its logic, and effects back to the reactor; see `osd/run.rs`, `mon.rs` and the crate
//! `attach`.
//!
//! Exit codes: 0 success; 1 failure; 2 wrong usage; 3 the OSD or monitor was removed from the cluster.

#![allow(clippy::disallowed_methods)] // A program: it has a clock, threads and files.
#![deny(clippy::print_stdout, clippy::print_stderr)] // They panic if it fails; see `output.rs`.

// Its macros are for all modules below.
#[macro_use]
mod output;

mod admin;
mod background;
mod bench;
mod call;
mod cli;
mod daemon;
mod etcd;
mod gateway;
mod hosts;
mod mon;
mod nbd;
mod object;
mod osd;
mod parent;
mod status;
mod up;

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use client::Config;
use cluster::message::Failure;

use crate::cli::{Cli, Command, LogArgs, MonCommand, OsdCommand, TaskCommand};
use crate::output::Format;

/// Exit code of an OSD or monitor that was removed from the cluster, so that it is not restarted.
pub const REMOVED_CODE: u8 = 3;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return wrong_usage(&error),
    };
    let format = if cli.json { Format::Json } else { Format::Text };
    io::raise_descriptor_limit();
    if !cli.command.is_server() {
        io::end_on_closed_pipe();
    }
    let daemon_log = cli.command.daemon_log();
    match run(cli, format) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            match daemon_log {
                Some(log) => log_failure(log, format, &failure),
                None => output::print_failure(format, &failure),
            }
            ExitCode::from(match failure.code.as_str() {
                "usage" => 2,
                "removed" => REMOVED_CODE,
                _ => 1,
            })
        }
    }
}

/// Logs why a daemon exits. If its log is not started yet, the message is printed to the terminal instead,
/// as with any command.
fn log_failure((log, who, is_child): (LogArgs, &str, bool), format: Format, failure: &Failure) {
    if is_child && !io::log::is_started() {
        log.start(who);
    }
    match io::log::is_started() && format == Format::Text {
        true => io::log::write(&output::failure_line(failure)),
        false => output::print_failure(format, failure),
    }
}

/// Prints help, the version, or an error in the arguments; with `--json` the error is printed as JSON.
fn wrong_usage(error: &clap::Error) -> ExitCode {
    let wants_json = std::env::args_os().any(|argument| argument == "--json");
    if error.exit_code() == 0 || !wants_json {
        if error.print().is_err() {
            return ExitCode::from(error.exit_code().max(1) as u8);
        }
    } else {
        let text = error.to_string();
        let message = text.trim_start_matches("error: ").trim_end();
        let usage = output::failure("usage", message, "see `ashlar --help`");
        output::print_failure(Format::Json, &usage);
    }
    ExitCode::from(if error.exit_code() == 0 { 0 } else { 2 })
}

fn run(cli: Cli, format: Format) -> Result<(), Failure> {
    let cluster = cli.cluster.as_deref();
    match cli.command {
        Command::Up(args) => up::up(args, format),
        Command::Down(args) => up::down(args, format),
        Command::Osd(command) => run_osd(command, cluster, format),
        Command::Etcd { path, listen, parent } => {
            parent::follow(parent)?;
            Err(etcd::become_etcd(&path, &listen))
        }
        Command::Mon(command) => run_mon(command, cluster, format),
        Command::Init(args) => hosts::init(args, format),
        Command::Token => hosts::token(&config(cluster)?, format),
        Command::Join { token, dir } => hosts::join(&token, &dir, format),
        Command::Nbd(args) => {
            parent::follow(args.parent)?;
            nbd::run(&config(cluster)?, args)
        }
        Command::Gateway(args) => {
            parent::follow(args.parent)?;
            gateway::run(&config(cluster)?, args)
        }
        Command::User(command) => gateway::user(&config(cluster)?, command, format),
        Command::Bucket(command) => gateway::bucket(&config(cluster)?, command, format),
        Command::Volume(command) => admin::volume(&config(cluster)?, command, format),
        Command::Object(command) => object::object(&config(cluster)?, command, format),
        Command::Kv(command) => object::kv(&config(cluster)?, command, format),
        Command::Pool(command) => admin::pool(&config(cluster)?, command, format),
        Command::Pg(command) => admin::pg(&config(cluster)?, command, format),
        Command::Task(TaskCommand::Ls) => status::task_list(&config(cluster)?, format),
        Command::Config(command) => admin::config(&config(cluster)?, command, format),
        Command::State(command) => admin::state(&config(cluster)?, command, format),
        Command::Status { watch: false } => status::status(&config(cluster)?, format),
        Command::Status { watch: true } => status::watch(&config(cluster)?, format),
        Command::Check { paths, .. } if paths.is_empty() => {
            status::check(&config(cluster)?, format)
        }
        Command::Check { paths, objects } => osd::compare(&paths, &objects, format),
        Command::Bench(command) => bench::run(cluster, command, format),
    }
}

fn run_mon(command: MonCommand, cluster: Option<&Path>, format: Format) -> Result<(), Failure> {
    match command {
        MonCommand::Create { path, port } => {
            hosts::create_monitor(&config(cluster)?, &path, port, format)
        }
        MonCommand::Run { path, detach: true, .. } => {
            background::detach("monitor", &path.join("mon.log"), format)
        }
        MonCommand::Run { path, state, new_cluster, log, parent, detach: false } => {
            parent::follow(parent)?;
            mon::run(&config(cluster)?, &path, state, new_cluster, log)
        }
        MonCommand::Ls => admin::monitor_list(&config(cluster)?, format),
        MonCommand::Rm { monitor } => admin::monitor_rm(&config(cluster)?, monitor, format),
    }
}

fn run_osd(command: OsdCommand, cluster: Option<&Path>, format: Format) -> Result<(), Failure> {
    match command {
        OsdCommand::Create { path, size, commit } => {
            osd::create(&config(cluster)?, &path, size.map(|size| size.0), commit, format)
        }
        OsdCommand::Run { path, detach: true, .. } => {
            let log = osd::log_of(&config(cluster)?, &path);
            background::detach("OSD", &log, format)
        }
        OsdCommand::Run { path, listen, objects, memory, value_cache, log, parent, .. } => {
            parent::follow(parent)?;
            let (listen, objects) = (listen.as_deref(), objects.as_deref());
            let place = osd::RunPlace { path: &path, listen, objects };
            let memory = osd::Memory { caches: memory.0, values: value_cache.0 };
            osd::run(&config(cluster)?, place, memory, log, parent.is_some())
        }
        OsdCommand::Start { osd } => up::start_osd(&config(cluster)?, osd, format),
        OsdCommand::Stop { osd } => up::stop_osd(&config(cluster)?, osd, format),
        OsdCommand::Out { osd } => admin::osd_out(&config(cluster)?, osd, format),
        OsdCommand::In { osd } => admin::osd_in(&config(cluster)?, osd, format),
        OsdCommand::Scrub { osd, deep } => admin::osd_scrub(&config(cluster)?, osd, deep, format),
        OsdCommand::Rm { osd } => admin::osd_rm(&config(cluster)?, osd, format),
        OsdCommand::Ls => admin::osd_list(&config(cluster)?, format),
        OsdCommand::Tree => admin::osd_tree(&config(cluster)?, format),
        OsdCommand::Inspect { path, objects } => osd::inspect(&path, objects.as_deref(), format),
        OsdCommand::NewEngine { path, objects, yes } => {
            osd::new_engine(&path, objects.as_deref(), yes, format)
        }
        OsdCommand::Check { path, objects } => osd::check(&path, objects.as_deref(), format),
    }
}

/// Returns the configuration of the cluster that the user selected.
fn config(cluster: Option<&Path>) -> Result<Config, Failure> {
    Config::find(cluster)
}
