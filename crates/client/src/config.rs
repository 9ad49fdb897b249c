//! How to reach a cluster: a directory with `cluster.toml` (the cluster's id and the addresses of its
//! monitors) and `key` (mode 0600).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use cluster::map::ClusterFile;
use cluster::message::Failure;
use io::ClusterKey;

/// Environment variable with the path of the directory or file, used if `--cluster` is not given.
const ENVIRONMENT: &str = "ASHLAR_CLUSTER";
/// Name of the directory that is searched for in the current directory and its parents.
const DIRECTORY: &str = ".ashlar";
const FILE: &str = "cluster.toml";
const KEY: &str = "key";
/// Longest host name, in bytes.
const HOST_NAME_MAX: usize = 63;
/// Describes the contents of the file, in error messages.
const HOLDS: &str = "the file must have `cluster` (32 digits) and `monitors` (addresses); `state`, \
                     `networks`, `osd_networks` and `host` are optional";

/// How to reach a cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that the configuration was read from.
    pub dir: PathBuf,
    /// The path of `cluster.toml`.
    pub path: PathBuf,
    /// The contents of the file: the cluster's id, and the addresses of its monitors.
    pub file: ClusterFile,
    /// The cluster's secret key.
    pub key: ClusterKey,
}

impl Config {
    /// Reads the configuration at `named` (a directory or its `cluster.toml`), otherwise at
    /// `$ASHLAR_CLUSTER`, otherwise in `.ashlar` in the current directory or the nearest one above it.
    ///
    /// Errors: `no_cluster` (none found), `invalid` (the file is wrong), `key`.
    pub fn find(named: Option<&Path>) -> Result<Config, Failure> {
        if let Some(path) = named {
            return Config::load(path);
        }
        if let Some(path) = std::env::var_os(ENVIRONMENT).filter(|path| !path.is_empty()) {
            return Config::load(Path::new(&path));
        }
        let here = std::env::current_dir().map_err(|error| {
            let hint = "change to a directory that exists, or specify the cluster with --cluster";
            failure("io", format!("cannot determine the current directory: {error}"), hint)
        })?;
        Config::find_above(&here)
    }

    /// Returns the name of this host in the tree of OSDs and in `status`.
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
                format!(
                    "found no {DIRECTORY}/{FILE} in {} or any directory above it",
                    here.display()
                ),
                "start a cluster with `ashlar up`, add this host to one with `ashlar join`, or specify \
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
            let hint =
                "specify the directory of a cluster, as created by `ashlar up`, `init` or `join`";
            failure("no_cluster", format!("cannot read {}: {error}", file.display()), hint)
        })?;
        let parsed: ClusterFile = toml::from_str(&text).map_err(|error| {
            let message = format!("{} is not valid: {error}", file.display());
            failure("invalid", message, HOLDS)
        })?;
        if parsed.monitors.is_empty() {
            let message = format!("{} lists no monitor", file.display());
            return Err(failure("invalid", message, "add an address to `monitors`"));
        }
        if parsed.host.as_ref().is_some_and(|name| !is_host_name(name)) {
            let name = parsed.host.as_deref().unwrap_or_default();
            let message = format!("`host` in {} is not a valid name: {name:?}", file.display());
            return Err(failure(
                "invalid",
                message,
                "use up to 63 letters, digits, `.`, `_` and `-`",
            ));
        }
        let key = ClusterKey::load(&dir.join(KEY)).map_err(|error| {
            let hint = match is_of_several_hosts(&parsed) {
                true => "copy the file `key` from another host of the cluster, with mode 0600",
                false => {
                    "restore the file `key` with mode 0600; if there is no copy: run `ashlar \
                     down`, remove the file, and run `ashlar up`, which creates a new key"
                }
            };
            failure("key", error.to_string(), hint)
        })?;
        Ok(Config { dir, path: file, file: parsed, key })
    }
}

/// Whether `name` is valid as the name of a host in the tree of OSDs.
fn is_host_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || ['.', '_', '-'].contains(&c);
    (1..=HOST_NAME_MAX).contains(&name.len()) && name.chars().all(fits)
}

/// Whether the cluster spans several hosts, that is, a monitor has an address other than loopback. The
/// daemons of `ashlar up` listen only on loopback, so such a cluster was not started by `ashlar up`.
pub fn is_of_several_hosts(file: &ClusterFile) -> bool {
    let is_away = |address: &String| {
        let place = address.strip_prefix("tcp:").unwrap_or("localhost");
        let is_here = |place: SocketAddr| place.ip().is_loopback();
        !place.starts_with("localhost") && !place.parse().is_ok_and(is_here)
    };
    let has_networks = !file.networks.is_empty() || !file.osd_networks.is_empty();
    has_networks || file.monitors.len() > 1 || file.monitors.iter().any(is_away)
}

/// Returns the failure of a command that no monitor answered.
pub(crate) fn no_monitor_answers(config: &Config) -> Failure {
    let message = format!("no monitor answers at {}", config.file.monitors.join(", "));
    let hint = match is_of_several_hosts(&config.file) {
        true => {
            "start a monitor on its host with `ashlar mon run PATH`, and check that this host can reach it"
        }
        false => "start the cluster: ashlar up --detach",
    };
    failure("unreachable", message, hint)
}

pub(crate) fn failure(code: &str, message: String, hint: &str) -> Failure {
    Failure { code: code.to_string(), message, hint: hint.to_string() }
}

#[cfg(test)]
impl Config {
    /// A cluster whose only monitor is down.
    pub(crate) fn without_monitor() -> Config {
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

    /// A directory that is removed when it is dropped.
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
    fn a_cluster_is_found_from_a_directory_below() {
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
    fn clusters_of_several_hosts_are_recognized() {
        let of = |monitors: &[&str], networks: &[&str]| {
            let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect();
            let (monitors, networks) = (texts(monitors), texts(networks));
            is_of_several_hosts(&ClusterFile {
                monitors,
                networks,
                ..Config::without_monitor().file
            })
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
    fn errors_name_what_is_missing_or_wrong() {
        let code = |path: &Path| Config::load(path).expect_err("wrong").code;
        let folder = Folder::new("missing");
        assert_eq!(code(&folder.0), "no_cluster");
        let folder = Folder::with_cluster("nokey", GOOD);
        assert_eq!(code(&folder.0.join(DIRECTORY)), "key");
        let folder = Folder::with_cluster("rubbish", "cluster = 3");
        assert_eq!(code(&folder.0.join(DIRECTORY)), "invalid");
        // A misspelt name must not be ignored: the setting may be one that restricts access.
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
        assert!(error.message.contains("lists no monitor"), "{}", error.message);
    }
}
