//! Files in the directory of a cluster that `up` runs.

use std::fs;
use std::path::{Path, PathBuf};

use base::OsdId;
use cluster::message::Failure;

use super::event::Role;
use crate::output::failure;

/// Returns the path of the socket of `up`, short enough for the kernel's limit, and the open directory.
/// Requires: the caller keeps the directory open while it uses the path.
pub fn socket_path(dir: &Path) -> Result<(fs::File, PathBuf), Failure> {
    use std::os::fd::AsRawFd;
    let open = fs::File::open(dir).map_err(|error| {
        failure(
            "not_found",
            format!("cannot open {}: {error}", dir.display()),
            "start a cluster in this directory with `ashlar up --dir`",
        )
    })?;
    let path = PathBuf::from(format!("/proc/self/fd/{}/up.sock", open.as_raw_fd()));
    Ok((open, path))
}

/// Returns where the gateway of a directory listens, as `HOST:PORT`. `None`: there is none.
pub fn gateway_place(dir: &Path) -> Option<String> {
    let text = fs::read_to_string(gateway_file(dir)).ok()?;
    Some(text.trim().to_owned()).filter(|place| !place.is_empty())
}

/// Returns the path of the file that says where the gateway listens.
pub fn gateway_file(dir: &Path) -> PathBuf {
    dir.join("gateway.listen")
}

/// Returns the path of the file that marks a cluster whose gateway is new: its first user is to be created,
/// and the key of that user to be told.
pub fn first_user_mark(dir: &Path) -> PathBuf {
    dir.join("first-user")
}

/// Returns the OSDs that are complete. A directory without `blocks` belongs to an OSD whose creation was
/// interrupted: the file gets that name only when it is complete.
pub fn existing_osds(dir: &Path) -> Vec<OsdId> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut osds: Vec<OsdId> = entries
        .filter(|entry| entry.path().join("blocks").exists())
        .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("osd.")?.parse().ok())
        .collect();
    osds.sort();
    osds
}

/// Returns the path of the log of a child.
pub fn log_of(dir: &Path, role: &Role) -> PathBuf {
    dir.join("log").join(format!("{}.log", role.log_name()))
}

/// Returns the path of the file that marks an OSD as stopped by hand; a later `up` does not start such an
/// OSD either.
pub fn stop_mark(dir: &Path, osd: OsdId) -> PathBuf {
    dir.join(osd.to_string()).join("stopped")
}

/// Whether an OSD was stopped by hand and has not been started since.
pub fn is_stopped(dir: &Path, osd: OsdId) -> bool {
    stop_mark(dir, osd).exists()
}
