//! The etcd that `ashlar up --state etcd` runs: the installed one, with a single member, on loopback.

use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::message::Failure;

use crate::output::failure;

/// Number of revisions that etcd keeps for watches; the embedded store keeps the same number.
const HISTORY_COUNT: &str = "10000";

/// Returns the path of the installed etcd.
pub fn find() -> Result<PathBuf, Failure> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let mut programs = std::env::split_paths(&folders).map(|folder| folder.join("etcd"));
    programs.find(|program| program.is_file()).ok_or_else(|| {
        let message = "etcd is not installed: no directory in PATH contains it";
        failure("not_installed", message, "apt-get install etcd-server")
    })
}

/// Creates the data directory of a new etcd.
pub fn create(path: &Path) -> Result<(), Failure> {
    // etcd refuses a directory that other users can read.
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| {
        failure("io", format!("cannot create {}: {error}", path.display()), "check its permissions")
    })
}

/// Replaces this process with etcd; returns only if that fails.
pub fn become_etcd(path: &Path, listen: &str) -> Failure {
    let program = match find() {
        Ok(program) => program,
        Err(error) => return error,
    };
    let url = format!("http://{listen}");
    // A single member has no peers, so any port will do.
    let peer = "http://127.0.0.1:0";
    let mut command = Command::new(&program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ETCD_") && name != "ETCD_UNSUPPORTED_ARCH" {
            command.env_remove(name);
        }
    }
    let error = command
        .args(["--name", "ashlar", "--data-dir"])
        .arg(path)
        .args(["--listen-client-urls", &url, "--advertise-client-urls", &url])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", &format!("ashlar={peer}")])
        // etcd derives the identity of its cluster from the token.
        .arg("--initial-cluster-token")
        .arg(path)
        .args(["--auto-compaction-mode", "revision"])
        .args(["--auto-compaction-retention", HISTORY_COUNT])
        .args(["--logger", "zap", "--log-level", "warn"])
        .exec();
    let message = format!("cannot run {}: {error}", program.display());
    failure("io", message, "apt-get install --reinstall etcd-server")
}
