//! Edits a settings file that people maintain by hand, while other processes may edit it too.
//!
//! Invariants
//!   1. A reader sees either the old or the new file, complete, even after a crash.
//!   2. Only one process at a time edits files in a directory.
//!   3. The file keeps its mode and owner, so everybody who could read it still can.

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};

use crate::Error;
use crate::prepare::put_in_place;

/// How long to wait for the lock while other processes edit the file.
const LOCK_TIME_MAX: Duration = Duration::from_secs(1);
const LOCK_DELAY: Duration = Duration::from_millis(10);
/// Largest settings file that is edited, in bytes; a larger file is refused.
const SIZE_MAX: u64 = 1 << 20;

/// Replaces the text of the file at `path` with the result of `edit`; if `edit` returns `None`, leaves the
/// file unchanged. Returns whether the file changed.
///
/// Errors: the file or its directory cannot be read, locked or written, or `edit` fails.
pub fn edit_file(
    path: &Path,
    edit: impl FnOnce(&str) -> Result<Option<String>, Error>,
) -> Result<bool, Error> {
    let failed = |error| Error::new(format!("cannot change {}", path.display()), error);
    // Edit the target of a symbolic link, not the link.
    let path = &std::fs::canonicalize(path).map_err(failed)?;
    let folder = path.parent().unwrap_or(Path::new("/"));
    let _lock = lock(folder)?;
    let old = std::fs::metadata(path).map_err(failed)?;
    if old.len() > SIZE_MAX {
        return Err(failed(std::io::ErrorKind::FileTooLarge.into()));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let Some(text) = edit(&text)? else { return Ok(false) };
    let keep_owner_and_mode = |file: &File| {
        let made = file.metadata()?;
        if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
            fchown(file, Some(old.uid()), Some(old.gid()))?;
        }
        file.set_permissions(std::fs::Permissions::from_mode(old.mode() & 0o7777))
    };
    put_in_place(path, text.as_bytes(), 0o600, keep_owner_and_mode).map_err(|error| {
        // Remove the temporary file; it may not exist any more.
        let _ = std::fs::remove_file(path.with_extension("new"));
        failed(error)
    })?;
    Ok(true)
}

/// Locks a directory; closing the returned file releases the lock.
fn lock(folder: &Path) -> Result<File, Error> {
    let failed =
        |why: &dyn std::fmt::Display| Error::new(format!("cannot lock {}", folder.display()), why);
    let file = File::open(folder).map_err(|error| failed(&error))?;
    let end = Instant::now() + LOCK_TIME_MAX;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if Instant::now() < end => {
                std::thread::sleep(LOCK_DELAY);
            }
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(failed(&"another process holds the lock"));
            }
            Err(error) => return Err(failed(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::tests::Folder;

    #[test]
    fn concurrent_editors_lose_nothing_and_keep_the_mode() {
        let folder = Folder::new("edit");
        let path = folder.0.join("file");
        std::fs::write(&path, "").expect("writable");
        let link = folder.0.join("link");
        std::os::unix::fs::symlink(&path, &link).expect("writable");
        let mode = || path.metadata().expect("it is there").permissions().mode() & 0o7777;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("ours");
        std::thread::scope(|scope| {
            for name in ["a", "b", "c", "d"] {
                let link = &link;
                scope.spawn(move || {
                    for _ in 0..5 {
                        let edited = edit_file(link, |text| Ok(Some(format!("{text}{name}"))));
                        assert_eq!(edited, Ok(true));
                    }
                });
            }
        });
        let text = std::fs::read_to_string(&path).expect("readable");
        assert_eq!(text.len(), 20, "{text}");
        assert_eq!(mode(), 0o640);
        assert!(link.is_symlink());
        // A refused or empty edit changes nothing.
        assert_eq!(edit_file(&path, |_| Ok(None)), Ok(false));
        let no = Error("no".to_string());
        assert_eq!(edit_file(&path, |_| Err(no.clone())), Err(no));
        assert_eq!(std::fs::read_to_string(&path).expect("readable"), text);
        let _held = lock(&folder.0).expect("free");
        let error = edit_file(&path, |_| Ok(Some(String::new()))).expect_err("it is locked");
        assert!(error.0.contains("another process"), "{error}");
    }
}
