//! Tests the server with NBD clients of other projects: `nbdinfo`, `nbdcopy`, `qemu-io`, `qemu-img`, `fio`.
//! The server is a separate process, as in production; the cluster behind its sockets is in memory.

// A test may start threads and processes.
#![allow(clippy::disallowed_methods)]

mod memory;
#[path = "memory/served.rs"]
mod served;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use attach::nbd::{Server, ServerSettings};
use client::Config;
use cluster::map::ClusterFile;
use io::ClusterKey;
use served::{CLUSTER, KEY};

/// Environment variable that is set in the server process: the directory of its sockets.
const SERVER_FOLDER: &str = "ASHLAR_TEST_NBD_SERVER";
const SIZE: u64 = 256 << 20;

/// The server, with its cluster and directory; dropping it stops the server.
struct Running {
    server: Child,
    folder: PathBuf,
}

impl Running {
    fn start(name: &str) -> Running {
        let folder = std::env::temp_dir().join(format!("ashlar-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let address = |file: &str| format!("unix:{}", folder.join(file).display());
        served::start(SIZE, address("monitor"), address("osd"));
        let program = std::env::current_exe().expect("it runs");
        let mut server = Command::new(program);
        server.args(["--exact", "the_server_process", "--nocapture"]);
        server.env(SERVER_FOLDER, &folder).stderr(Stdio::piped());
        let mut server = server.spawn().expect("it starts");
        await_line(&mut server, "listening  address=");
        Running { server, folder }
    }

    fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.folder.join("nbd").display())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn await_line(child: &mut Child, wanted: &str) {
    use std::io::BufRead;
    let stderr = child.stderr.take().expect("it is piped");
    for line in std::io::BufReader::new(stderr).lines() {
        if line.expect("text").contains(wanted) {
            return;
        }
    }
    panic!("the server ended before it said {wanted:?}");
}

/// Runs a tool and returns its output. Panics with the output if the tool fails.
fn tool(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).output();
    let output = output.unwrap_or_else(|error| panic!("{name} is to be installed: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {printed}");
    printed
}

fn qemu_io(uri: &str, commands: &[&str]) {
    let mut arguments = vec!["-f", "raw", uri];
    for command in commands {
        arguments.extend(["-c", command]);
    }
    let printed = tool("qemu-io", &arguments);
    assert!(!printed.contains("fail") && !printed.contains("rror"), "{commands:?}: {printed}");
}

fn pattern(path: &Path, size: usize) {
    let bytes: Vec<u8> = (0..size).map(|at| (at / 7 % 251) as u8).collect();
    std::fs::write(path, bytes).expect("the folder is writable");
}

/// Not a test: the server process that the tests start.
#[test]
fn the_server_process() {
    let Some(folder) = std::env::var_os(SERVER_FOLDER) else { return };
    let folder = PathBuf::from(folder);
    let address = |file: &str| format!("unix:{}", folder.join(file).display());
    let settings = ServerSettings {
        listen: vec![address("nbd")],
        volumes: Vec::new(),
        read_only: false,
        shared: false,
        unsynced_size_max: volume::UNSYNCED_SIZE_DEFAULT,
    };
    let file = ClusterFile {
        cluster: CLUSTER,
        monitors: vec![address("monitor")],
        state: None,
        networks: Vec::new(),
        osd_networks: Vec::new(),
        host: None,
    };
    let path = folder.join("cluster.toml");
    let config = Config { dir: folder, path, file, key: ClusterKey::from_bytes(KEY) };
    Server::run(&config, settings).expect("it serves");
}

#[test]
fn nbdinfo_sees_the_export() {
    let running = Running::start("info");
    let printed = tool("nbdinfo", &[&running.uri("disk")]);
    for line in [
        "protocol: newstyle-fixed without TLS, using structured packets",
        "can_multi_conn: true",
        "can_fua: true",
        "can_trim: true",
        "can_fast_zero: true",
        "is_read_only: false",
        "block_size_minimum: 1",
        "block_size_preferred: 4096",
        "base:allocation",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
    let printed = tool("nbdinfo", &["--list", &running.uri("")]);
    assert!(printed.contains("export=\"disk\""), "{printed}");
    let printed = tool("nbdinfo", &["--size", &running.uri("")]);
    assert_eq!(printed.trim(), SIZE.to_string());
}

#[test]
fn images_come_back_as_they_went_in() {
    let running = Running::start("copy");
    let uri = running.uri("disk");
    let (image, back) = (running.file("image"), running.file("back"));
    pattern(&image, 40 << 20);
    tool("nbdcopy", &["--connections=4", image.to_str().expect("text"), &uri]);
    tool("nbdcopy", &[&uri, back.to_str().expect("text")]);
    let (sent, read) = (std::fs::read(&image), std::fs::read(&back));
    let (sent, read) = (sent.expect("written"), read.expect("written"));
    assert!(read[..sent.len()] == sent[..], "the image differs");
    assert!(read[sent.len()..].iter().all(|byte| *byte == 0));
    let image = image.to_str().expect("text");
    tool("qemu-img", &["convert", "-n", "-O", "raw", image, &uri]);
    tool("qemu-img", &["compare", "-f", "raw", "-F", "raw", image, &uri]);
    let map = tool("nbdinfo", &["--map", &uri]);
    assert!(map.contains("hole,zero"), "{map}");
    assert!(map.lines().next().is_some_and(|line| line.contains("data")), "{map}");
}

#[test]
fn unaligned_patterns_discards_and_zeroes_are_kept_apart() {
    let running = Running::start("patterns");
    qemu_io(
        &running.uri("disk"),
        &[
            "write -P 1 0 1M",
            "write -P 2 511 4099",
            "write -P 3 131070 5",
            "read -P 1 0 511",
            "read -P 2 511 4099",
            "read -P 1 4610 126460",
            "read -P 3 131070 5",
            "read -P 1 131075 1000",
            "write -z -u 200000 100000",
            "read -P 1 199999 1",
            "read -P 0 200000 100000",
            "read -P 1 300000 1000",
            "discard 524288 131072",
            "read -P 0 524288 131072",
            "read -P 1 655360 4096",
            "write -f -P 4 900000 123",
            "read -P 4 900000 123",
            "aio_write -P 5 1048576 2M",
            "aio_write -P 6 5242880 2M",
            "aio_flush",
            "read -P 5 1048576 2M",
            "read -P 6 5242880 2M",
            "flush",
        ],
    );
}

#[test]
fn fio_verifies_what_it_wrote() {
    let running = Running::start("fio");
    let uri = format!("--uri={}", running.uri("disk"));
    let folder = running.folder.to_str().expect("text");
    let aux = format!("--aux-path={folder}");
    tool(
        "fio",
        &[
            "--name=mix",
            "--ioengine=nbd",
            &uri,
            &aux,
            "--rw=randrw",
            "--bsrange=512-200k",
            "--blockalign=512",
            "--iodepth=16",
            "--size=64M",
            "--io_size=64M",
            "--verify=crc32c",
            "--verify_state_save=0",
        ],
    );
}
