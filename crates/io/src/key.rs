//! The cluster key: 32 random bytes in a file of mode 0600, as 64 hexadecimal digits.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::rand::{GetRandomFlags, getrandom};

use crate::Error;
use crate::prepare::replace_file;

/// The secret that all members and clients of a cluster share.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterKey([u8; 32]);

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(secret)")
    }
}

impl ClusterKey {
    /// Creates a random key.
    pub fn random() -> ClusterKey {
        ClusterKey(random_bytes())
    }

    /// Creates a key from its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> ClusterKey {
        ClusterKey(bytes)
    }

    /// Returns the key itself, for what derives further keys from it.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns the key as text, for its file and for tokens. The text is the secret: do not log it.
    pub fn to_text(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the output of `to_text`.
    pub fn from_text(text: &str) -> Option<ClusterKey> {
        parse(text)
    }

    /// Creates a random key and writes it to a new file that only its owner can read. The file appears at
    /// `path` only when it is complete. Requires: no other process creates the same file.
    pub fn create(path: &Path) -> Result<ClusterKey, Error> {
        let key = ClusterKey::random();
        key.save(path)?;
        Ok(key)
    }

    /// Writes the key to a new file that only its owner can read. The file appears at `path` only when it
    /// is complete. Requires: no other process creates the same file.
    pub fn save(&self, path: &Path) -> Result<(), Error> {
        if path.exists() {
            return Err(Error(format!("the key {} already exists", path.display())));
        }
        replace_file(path, format!("{}\n", self.to_text()).as_bytes(), 0o600)
    }

    /// Reads a key from its file. Refuses a file that anybody except its owner can read.
    pub fn load(path: &Path) -> Result<ClusterKey, Error> {
        let failed = |error| Error::new(format!("cannot read the key {}", path.display()), error);
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(Error(format!(
                "other users can read the key {} (mode {:03o}): run chmod 600 on it",
                path.display(),
                mode & 0o777
            )));
        }
        let mut text = String::new();
        file.take(1024).read_to_string(&mut text).map_err(failed)?;
        parse(text.trim_end()).ok_or_else(|| {
            let (path, length) = (path.display(), text.len());
            Error(format!("the key {path} is damaged: {length} bytes, not 64 hexadecimal digits"))
        })
    }
}

fn parse(text: &str) -> Option<ClusterKey> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).expect("hexadecimal digits are ASCII");
        *byte = u8::from_str_radix(pair, 16).expect("two hexadecimal digits are a byte");
    }
    Some(ClusterKey(key))
}

/// Returns random bytes from the kernel, suitable for keys.
pub fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel returned no random bytes: {error}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("ashlar-io-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
        folder
    }

    #[test]
    fn a_key_is_read_as_it_was_written_and_never_shown() {
        let folder = folder("key");
        let path = folder.join("key");
        let key = ClusterKey::create(&path).expect("a new file");
        assert_eq!(ClusterKey::load(&path), Ok(key.clone()));
        assert_eq!(path.metadata().expect("it exists").permissions().mode() & 0o777, 0o600);
        assert_eq!(format!("{key:?}"), "ClusterKey(secret)");
        assert!(ClusterKey::create(&path).is_err(), "a key is never overwritten");
        std::fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn a_key_file_gets_its_name_only_when_complete() {
        let folder = folder("wholekey");
        let path = folder.join("key");
        // A leftover of a killed process, readable by everybody.
        std::fs::write(folder.join("key.new"), "12").expect("writable");
        let key = ClusterKey::create(&path).expect("nothing has the name");
        assert_eq!(ClusterKey::load(&path), Ok(key));
        assert_eq!(path.metadata().expect("it exists").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&folder).expect("ours").count(), 1);
        std::fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_invalid_is_refused() {
        let folder = folder("badkey");
        let path = folder.join("key");
        std::fs::write(&path, "12ab\n").expect("writable");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("ours");
        let error = ClusterKey::load(&path).expect_err("too short");
        assert!(error.0.contains("64 hexadecimal digits"), "{error}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("ours");
        let error = ClusterKey::load(&path).expect_err("readable by all");
        assert!(error.0.contains("chmod 600"), "{error}");
        assert!(ClusterKey::load(&folder.join("none")).is_err());
        std::fs::remove_dir_all(folder).expect("ours");
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes::<16>(), random_bytes::<16>());
    }
}
