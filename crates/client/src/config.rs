//! Where a cluster is: a directory with `cluster.toml` (its id and its monitors' addresses) and
//! `key` (mode 0600).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use cluster::map::ClusterFile;
use cluster::message::Failure;
use io::ClusterKey;

/// Names the directory or file when `--cluster` does not.
const ENVIRONMENT: &str = "ASHLAR_CLUSTER";
/// The directory that is found by itself, here or in a folder above.
const DIRECTORY: &str = ".ashlar";
const FILE: &str = "cluster.toml";
const KEY: &str = "key";
/// Longest name of a host, in bytes.
const HOST_NAME_MAX: usize = 63;
/// What may be in the file.
const HOLDS: &str = "it holds `cluster` (32 digits) and `monitors` (addresses), and may hold \
                     `state`, `networks`, `osd_networks`, `host`";

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory it was read from.
    pub dir: PathBuf,
    /// The file itself.
    pub path: PathBuf,
    /// Which cluster, and where its monitors are.
    pub file: ClusterFile,
    /// Proof that we belong to it.
    pub key: ClusterKey,
}

impl Config {
    /// Reads the configuration at `named` (a directory or its `cluster.toml`), else at
    /// `$ASHLAR_CLUSTER`, else in `.ashlar` in the current folder or the nearest one above.
    ///
    /// Errors: `no_cluster` (nothing is there), `invalid` (a file is wrong), `key`.
    pub fn find(named: Option<&Path>) -> Result<Config, Failure> {
        if let Some(path) = named {
            return Config::load(path);
        }
        if let Some(path) = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty()) {
            return Config::load(Path::new(&path));
        }
        let here = std::env::current_dir().map_err(|error| {
            let hint = "change to a folder that exists, or name the cluster with --cluster";
            failure("io", format!("no current folder: {error}"), hint)
        })?;
        Config::find_above(&here)
    }

    /// What this host is called in the tree of OSDs and in `status`.
    pub fn host(&self) -> String {
        self.file.host.clone().unwrap_or_else(io::host_name)
    }

    fn find_above(here: &Path) -> Result<Config, Failure> {
        let found = here
            .ancestors()
            .map(|folder| folder.join(DIRECTORY))
            .find(|folder| folder.join(FILE).is_file());
        match found {
            Some(directory) => Config::load(&directory),
            None => Err(failure(
                "no_cluster",
                format!("no {DIRECTORY}/{FILE} in {} or above", here.display()),
                "start a cluster with `ashlar up`, take this host into one with `ashlar join`, or name \
                 one with --cluster or ASHLAR_CLUSTER",
            )),
        }
    }

    /// Reads the configuration at `path`: a directory, or the `cluster.toml` in it.
    pub fn load(path: &Path) -> Result<Config, Failure> {
        let (dir, file) = if path.is_dir() {
            (path.to_path_buf(), path.join(FILE))
        } else {
            (path.parent().unwrap_or(Path::new("")).to_path_buf(), path.to_path_buf())
        };
        let text = std::fs::read_to_string(&file).map_err(|error| {
            let hint = "name a cluster's directory, as written by `ashlar up`, `init` or `join`";
            failure("no_cluster", format!("cannot read {}: {error}", file.display()), hint)
        })?;
        let parsed: ClusterFile = toml::from_str(&text).map_err(|error| {
            let message = format!("{} is not a cluster's file: {error}", file.display());
            failure("invalid", message, HOLDS)
        })?;
        if parsed.monitors.is_empty() {
            let message = format!("{} names no monitor", file.display());
            return Err(failure("invalid", message, "add an address to `monitors`"));
        }
        if parsed.host.as_ref().is_some_and(|name| !is_host_name(name)) {
            let name = parsed.host.as_deref().unwrap_or_default();
            let message = format!("`host` in {} is no name: {name:?}", file.display());
            return Err(failure("invalid", message, "letters, digits, `.`, `_`, `-`; at most 63"));
        }
        let key = ClusterKey::load(&dir.join(KEY)).map_err(|error| {
            let hint = match is_of_several_hosts(&parsed) {
                true => "put a copy of another host's file `key` there, mode 0600",
                false => {
                    "put a copy of the cluster's key there, mode 0600; if none is left: `ashlar \
                     down`, remove the file, and `ashlar up` draws a new one"
                }
            };
            failure("key", error.to_string(), hint)
        })?;
        Ok(Config { dir, path: file, file: parsed, key })
    }
}

/// Whether it may name a host in the tree of OSDs.
fn is_host_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    (1..=HOST_NAME_MAX).contains(&name.len()) && name.chars().all(fits)
}

/// Whether daemons run on several hosts, each under what its host has for that, and not below one
/// `ashlar up`, whose daemons listen on this machine alone.
pub fn is_of_several_hosts(file: &ClusterFile) -> bool {
    let is_away = |address: &String| {
        let place = address.strip_prefix("tcp:").unwrap_or("localhost");
        let is_here = |place: SocketAddr| place.ip().is_loopback();
        !place.starts_with("localhost") && !place.parse().is_ok_and(is_here)
    };
    let has_networks = !file.networks.is_empty() || !file.osd_networks.is_empty();
    has_networks || file.monitors.len() > 1 || file.monitors.iter().any(is_away)
}

/// The failure of a command that no monitor answers.
pub(crate) fn nobody_answers(config: &Config) -> Failure {
    let message = format!("no monitor answers at {}", config.file.monitors.join(", "));
    let hint = match is_of_several_hosts(&config.file) {
        true => "run one on its host: `ashlar mon run PATH`; does this host reach it?",
        false => "start the cluster: ashlar up",
    };
    failure("unreachable", message, hint)
}

pub(crate) fn failure(code: &str, message: String, hint: &str) -> Failure {
    Failure { code: code.to_string(), message, hint: hint.to_string() }
}

#[cfg(test)]
impl Config {
    /// A cluster with one monitor, which is down.
    pub(crate) fn of_nobody() -> Config {
        let file = ClusterFile {
            cluster: base::ClusterId::new(1),
            monitors: vec!["unix:/nonexistent/ashlar.sock".to_string()],
            state: None,
            networks: Vec::new(),
            osd_networks: Vec::new(),
            host: None,
        };
        Config { dir: "x".into(), path: "x/cluster.toml".into(), file, key: ClusterKey::random() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of this test that goes away with it.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let unique = format!("ashlar-client-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(unique);
            std::fs::create_dir_all(&path).expect("the temporary folder is writable");
            Folder(path)
        }

        fn with_cluster(name: &str, text: &str) -> Folder {
            let folder = Folder::new(name);
            let inside = folder.0.join(DIRECTORY);
            std::fs::create_dir_all(&inside).expect("writable");
            std::fs::write(inside.join(FILE), text).expect("writable");
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const GOOD: &str = "cluster = \"00000000000000000000000000000abc\"\nmonitors = [\"unix:/x\"]\n";

    #[test]
    fn a_cluster_is_found_from_a_folder_below() {
        let folder = Folder::with_cluster("above", GOOD);
        let key = ClusterKey::create(&folder.0.join(DIRECTORY).join(KEY)).expect("new");
        let below = folder.0.join("a/b");
        std::fs::create_dir_all(&below).expect("writable");
        let config = Config::find_above(&below).expect("found");
        assert_eq!(config.file.monitors, ["unix:/x"]);
        assert_eq!(config.key, key);
        let by_file = Config::load(&folder.0.join(DIRECTORY).join(FILE)).expect("named");
        assert_eq!(by_file.dir, config.dir);
    }

    #[test]
    fn a_cluster_of_one_machine_is_told_from_one_of_several_hosts() {
        let of = |monitors: &[&str], networks: &[&str]| {
            let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect();
            let (monitors, networks) = (texts(monitors), texts(networks));
            is_of_several_hosts(&ClusterFile { monitors, networks, ..Config::of_nobody().file })
        };
        for here in ["tcp:127.0.0.1:1", "tcp:[::1]:1", "tcp:localhost:1", "unix:/x"] {
            assert!(!of(&[here], &[]), "{here}");
            assert!(of(&[here], &["0.0.0.0/0"]), "{here}");
            assert!(of(&[here, "tcp:127.0.0.1:2"], &[]), "{here}");
        }
        for away in ["tcp:10.0.0.1:1", "tcp:[fd00::1]:1", "tcp:mon:1"] {
            assert!(of(&[away], &[]), "{away}");
        }
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let code = |path: &Path| Config::load(path).expect_err("wrong").code;
        let folder = Folder::new("missing");
        assert_eq!(code(&folder.0), "no_cluster");
        let folder = Folder::with_cluster("nokey", GOOD);
        assert_eq!(code(&folder.0.join(DIRECTORY)), "key");
        let folder = Folder::with_cluster("rubbish", "cluster = 3");
        assert_eq!(code(&folder.0.join(DIRECTORY)), "invalid");
        // A word that is misspelt must not count as none: it may be one that keeps others out.
        let wrong = format!("{GOOD}netwerks = [\"10.0.0.0/8\"]\n");
        let folder = Folder::with_cluster("misspelt", &wrong);
        let error = Config::load(&folder.0.join(DIRECTORY)).expect_err("wrong");
        assert_eq!(error.code, "invalid");
        for part in ["line 3", "`netwerks`"] {
            assert!(error.message.contains(part), "{}", error.message);
        }
        let none = GOOD.replace("\"unix:/x\"", "");
        let folder = Folder::with_cluster("nomonitor", &none);
        let error = Config::load(&folder.0.join(DIRECTORY)).expect_err("wrong");
        assert!(error.message.contains("names no monitor"), "{}", error.message);
    }
}
