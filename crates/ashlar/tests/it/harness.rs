//! A cluster of real processes in a temporary directory, and helper functions that wait for events.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The program under test.
pub const ASHLAR: &str = env!("CARGO_BIN_EXE_ashlar");

/// How long a test waits for any event before it fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// A temporary directory; dropping it deletes it.
pub struct Directory(PathBuf);

/// The directories in use: tests that run at the same time must not share one.
static DIRECTORIES: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

impl Directory {
    /// Creates an empty directory. Its path is short: socket names are limited to 107 bytes.
    pub fn new(name: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("ashlar-{}-{name}", std::process::id()));
        let is_new = DIRECTORIES.lock().expect("nobody panics with it").insert(path.clone());
        assert!(is_new, "another test uses {} now", path.display());
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("the temporary directory is writable");
        Directory(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("kept for inspection: {}", self.0.display());
        } else {
            let _ = fs::remove_dir_all(&self.0);
        }
        if let Ok(mut directories) = DIRECTORIES.lock() {
            directories.remove(&self.0);
        }
    }
}

/// A running cluster; dropping it stops it.
pub struct Cluster {
    pub directory: Directory,
}

impl Cluster {
    /// Starts a cluster with `up --detach` and further `arguments`.
    pub fn up(name: &str, arguments: &[&str]) -> Cluster {
        let cluster = Cluster { directory: Directory::new(name) };
        cluster.start(arguments);
        cluster
    }

    /// Starts the cluster, for the first time or again.
    pub fn start(&self, arguments: &[&str]) {
        let mut command = Command::new(ASHLAR);
        command.args(["up", "--no-gateway", "--detach", "--dir"]).arg(self.path()).args(arguments);
        succeed(&mut command);
    }

    /// Stops the cluster.
    pub fn down(&self) {
        succeed(Command::new(ASHLAR).arg("down").arg("--dir").arg(self.path()));
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the lines of the daemons' logs that report a panic.
    fn panics(&self) -> Vec<String> {
        let logs = fs::read_dir(self.path().join("log")).into_iter().flatten().flatten();
        let texts = logs.filter_map(|entry| fs::read_to_string(entry.path()).ok());
        let lines = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        lines.filter(|line| line.contains("bug: the program panicked")).collect()
    }

    /// Returns an `ashlar` command for this cluster.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(ASHLAR);
        command.args(arguments).arg("--cluster").arg(self.path());
        command
    }

    /// Runs a command that must succeed. Returns its output.
    pub fn run(&self, arguments: &[&str]) -> String {
        succeed(&mut self.command(arguments))
    }

    /// Runs a command with `--json` that must succeed. Returns the value.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let text = succeed(self.command(arguments).arg("--json"));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// Runs a command that must fail with exit code 1 and this error code. Returns the error.
    pub fn refused(&self, arguments: &[&str], code: &str) -> Value {
        refused(self.command(arguments).arg("--json"), code)
    }

    /// Returns the address of the monitor in cluster.toml, as `host:port`.
    pub fn monitor_address(&self) -> String {
        let text = fs::read_to_string(self.path().join("cluster.toml")).expect("it is there");
        let address = text.split("tcp:").nth(1).and_then(|rest| rest.split('"').next());
        address.expect("an address").to_owned()
    }

    /// Creates a directory with this cluster's settings, but with another address for its monitor.
    pub fn copy_of_files(&self, name: &str, monitor: &str) -> Directory {
        let copy = Directory::new(name);
        let text = fs::read_to_string(self.path().join("cluster.toml")).expect("it is there");
        let text = text.replace(&self.monitor_address(), monitor);
        fs::write(copy.path().join("cluster.toml"), text).expect("writable");
        // The copied key file keeps its mode.
        fs::copy(self.path().join("key"), copy.path().join("key")).expect("writable");
        copy
    }

    /// Returns the address of a volume for NBD clients.
    pub fn uri(&self, volume: &str) -> String {
        format!("nbd+unix:///{volume}?socket={}", self.path().join("nbd.sock").display())
    }

    /// Returns the process id of a daemon, as `status` reports it: `osd` 1, `mon` 1, `nbd` 1.
    pub fn pid(&self, role: &str, id: u64) -> u32 {
        let mut found = None;
        wait_for("the process to be known", || {
            let status = self.json(&["status"]);
            let processes = status["processes"].as_array().expect("a list");
            let row = processes.iter().find(|row| row["role"] == role && row["id"] == id);
            found = row.and_then(|row| row["pid"].as_u64());
            found.is_some()
        });
        found.expect("just seen") as u32
    }

    /// Kills a process as `kill -9` does.
    pub fn kill(&self, role: &str, id: u64) {
        kill_9(self.pid(role, id));
    }

    /// Returns every process of the cluster: `up` and its children.
    pub fn processes(&self) -> Vec<u32> {
        let directory = self.path().display().to_string();
        let pids = processes_of_ashlar().into_iter();
        pids.filter(|(_, line)| line.iter().any(|word| word.starts_with(&directory)))
            .map(|(pid, _)| pid)
            .collect()
    }

    /// Returns the process id of `up` itself.
    pub fn up_pid(&self) -> u32 {
        let directory = self.path().display().to_string();
        let is_up = |line: &[String]| {
            line.get(1..4) == Some(&["up", "--dir", &directory].map(String::from))
        };
        let found = processes_of_ashlar().into_iter().find(|(_, line)| is_up(line));
        found.expect("`up --detach` runs on").0
    }

    /// Kills every process of the cluster, including `up`, at once.
    pub fn kill_everything(&self) {
        let pids = self.processes();
        assert!(pids.len() >= 3, "up, monitor and OSDs run");
        for pid in &pids {
            kill_9(*pid);
        }
        wait_for("the killed processes to be gone", || pids.iter().all(|pid| !is_running(*pid)));
    }

    /// Kills an OSD and waits until it is gone. Requires `--restart-after never`, so that the OSD is not
    /// started again.
    pub fn kill_osd_for_good(&self, id: u64) {
        let pid = self.pid("osd", id);
        kill_9(pid);
        wait_for("the killed OSD to be gone", || !is_running(pid));
        self.wait_osd(id, false);
    }

    /// Waits until an OSD is up (`up` is true) or down.
    pub fn wait_osd(&self, id: u64, up: bool) {
        wait_for("the OSD to be as wanted", || {
            let rows = self.json(&["osd", "ls"]);
            rows.as_array().expect("a list").iter().any(|row| row["id"] == id && row["up"] == up)
        });
    }

    /// Waits until `status` reports that every PG is served.
    pub fn wait_active(&self) {
        self.wait_status("every PG to be active", |status| {
            let pgs = &status["pgs"];
            pgs["total"] == pgs["active"] && pgs["total"] != 0
        });
    }

    /// Waits until every PG has all its copies.
    pub fn wait_clean(&self) {
        self.wait_status("every PG to be clean", |status| {
            let pgs = &status["pgs"];
            pgs["total"] == pgs["clean"] && pgs["total"] == pgs["active"] && pgs["total"] != 0
        });
    }

    /// Waits until `status` has no warning.
    pub fn wait_healthy(&self) {
        self.wait_status("health to be ok", |status| status["health"] == "ok");
    }

    /// Waits until `status` satisfies a condition; prints it if it never does.
    pub fn wait_status(&self, what: &str, is_so: impl Fn(&Value) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.json(&["status"]);
            if is_so(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}: {status:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Stops the cluster, runs `osd check` on every OSD and compares the copies. Fails if anything is wrong.
    pub fn check_osds(&self) {
        self.down();
        self.check_stopped_osds();
        let found = self.compare_stopped_osds();
        assert_eq!(found["different"], 0, "{found:#}");
    }

    /// Waits until all copies are complete, and stops the cluster. Fails if copies differ or an OSD keeps
    /// holding data of PGs that it left. Returns how many blocks were compared.
    pub fn check_copies(&self) -> u64 {
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.wait_clean();
            self.down();
            self.check_stopped_osds();
            let found = self.compare_stopped_osds();
            assert_eq!(found["different"], 0, "{found:#}");
            if found["clean"] == true {
                return found["blocks"].as_u64().expect("a number");
            }
            // Members that left a PG drop its data in the background, some seconds later.
            assert!(Instant::now() < deadline, "waited {PATIENCE:?}: {found:#}");
            self.start(&[]);
            std::thread::sleep(Duration::from_secs(8));
        }
    }

    /// Returns the result of `check` for the copies on all OSDs. Requires: all OSDs are stopped.
    pub fn compare_stopped_osds(&self) -> Value {
        let mut compare = Command::new(ASHLAR);
        let output = run(compare.args(["check", "--json"]).args(self.osd_paths()));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text_of(&output)))
    }

    /// Runs `osd check` on every OSD. Requires: all OSDs are stopped.
    pub fn check_stopped_osds(&self) {
        for path in self.osd_paths() {
            let text = succeed(Command::new(ASHLAR).args(["osd", "check", "--json"]).arg(&path));
            let report: Value = serde_json::from_str(&text).expect("JSON");
            assert_eq!(report["clean"], true, "{}: {report:#}", path.display());
        }
    }

    /// Returns the directories of the OSDs.
    pub fn osd_paths(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path()).expect("the cluster's directory").flatten();
        let named = |path: &PathBuf| {
            path.file_name().and_then(|name| name.to_str()).is_some_and(|n| n.starts_with("osd."))
        };
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(named).collect();
        // Leave out an OSD that lost its disk: it has only a directory.
        paths.retain(|path| path.join("blocks").exists());
        paths.sort();
        assert!(!paths.is_empty());
        paths
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for directory in [self.path().to_owned(), self.path().join(".ashlar")] {
            let mut down = Command::new(ASHLAR);
            let _ = down.arg("down").arg("--dir").arg(directory).output();
        }
        // `up` starts a process again that has ended, so a test may pass although one panicked.
        let panics = self.panics();
        if !std::thread::panicking() {
            assert!(panics.is_empty(), "{panics:#?}");
        }
    }
}

/// Prints a line even if the test passes, for people who watch the run.
pub fn report(line: &str) {
    use std::io::Write;
    // The test runner captures only the print macros.
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Sends SIGKILL.
pub fn kill_9(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid is not 0");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

/// Sends SIGTERM.
pub fn terminate(pid: u32) {
    let pid = rustix::process::Pid::from_raw(pid as i32).expect("a pid is not 0");
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
}

/// Returns every process of the program under test, with its arguments.
fn processes_of_ashlar() -> Vec<(u32, Vec<String>)> {
    let entries = fs::read_dir("/proc").expect("Linux").flatten();
    let processes = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse::<u32>().ok()?;
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words =
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
        let words: Vec<String> = words.collect();
        (words[0] == ASHLAR).then_some((pid, words))
    });
    processes.collect()
}

/// Returns whether a process is running.
pub fn is_running(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has already exited; its parent has not waited for it yet.
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Runs a command that must succeed. Returns its standard output.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, text_of(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command that must fail with exit code 1 and this JSON error code. Returns the error.
pub fn refused(command: &mut Command, code: &str) -> Value {
    error_of(command, 1, code)
}

/// Runs a command line with a usage error; it must exit with code 2. Returns the error.
pub fn misused(command: &mut Command) -> Value {
    error_of(command, 2, "usage")
}

fn error_of(command: &mut Command, status: i32, code: &str) -> Value {
    let output = run(command);
    assert_eq!(output.status.code(), Some(status), "{command:?}\n{}", text_of(&output));
    assert!(output.stdout.is_empty(), "{command:?}: errors go to stderr: {}", text_of(&output));
    let errors = String::from_utf8_lossy(&output.stderr);
    let line = errors.lines().rfind(|line| line.starts_with('{'));
    let line = line.unwrap_or_else(|| panic!("{command:?}: no JSON error in {errors}"));
    let value: Value = serde_json::from_str(line).expect("one JSON document a line");
    let error = value["error"].clone();
    assert_eq!(error["code"], code, "{command:?}: {error}");
    assert!(error["message"].as_str().is_some_and(|message| message.len() > 10), "{error}");
    assert!(error["hint"].as_str().is_some_and(|hint| hint.len() > 10), "{command:?}: {error}");
    error
}

/// Runs a command, with a time limit.
pub fn run(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    finish(child, PATIENCE)
}

/// Runs qemu-io commands on a volume. All must succeed, and reads must find their pattern.
pub fn qemu_io(cluster: &Cluster, volume: &str, commands: &[&str]) {
    let mut qemu = Command::new("qemu-io");
    qemu.args(["-f", "raw"]).arg(cluster.uri(volume));
    for command in commands {
        qemu.args(["-c", command]);
    }
    assert_qemu_io(&run(&mut qemu), commands.iter().filter(|command| **command != "flush").count());
}

/// Asserts that qemu-io completed `count` reads, writes and discards.
pub fn assert_qemu_io(output: &Output, count: usize) {
    let text = text_of(output);
    assert!(output.status.success(), "{}: {text}", output.status);
    assert!(!text.to_lowercase().contains("failed"), "{text}");
    let done = text.lines().filter(|line| is_done_in_full(line)).count();
    assert_eq!(done, count, "{text}");
}

/// Returns whether a line `wrote N/M bytes at ...` reports that all bytes were transferred.
fn is_done_in_full(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let is_done = matches!(words.next(), Some("wrote" | "read" | "discard"));
    is_done
        && words.next().and_then(|word| word.split_once('/')).is_some_and(|(done, all)| done == all)
}

/// Returns the qemu options of an image that waits for a lost server and reconnects.
pub fn patient_image(cluster: &Cluster, volume: &str) -> String {
    let socket = cluster.path().join("nbd.sock");
    format!(
        "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={},file.export={volume},\
         file.reconnect-delay=60,file.open-timeout=60",
        socket.display()
    )
}

/// Returns the output of one qemu-io command, whether it succeeds or fails.
pub fn qemu_io_text(cluster: &Cluster, volume: &str, command: &str) -> String {
    let mut qemu = Command::new("qemu-io");
    let text = text_of(&run(qemu.args(["-f", "raw", "-c", command]).arg(cluster.uri(volume))));
    assert!(!text.contains("can't open"), "{text}");
    text
}

/// Waits for a child to exit; kills it and fails if it takes longer than `patience`.
pub fn finish(child: Child, patience: Duration) -> Output {
    let pid = child.id();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(patience) {
        Ok(output) => output.expect("the output can be read"),
        Err(_) => {
            kill_9(pid);
            panic!("process {pid} did not end within {patience:?}");
        }
    }
}

/// Returns the standard output and standard error of a command.
pub fn text_of(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

/// Polls until the condition holds.
pub fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited {PATIENCE:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A command that has to wait, and the first line that it prints about the wait.
pub struct Waiting {
    child: Child,
    /// The first line on its standard error.
    pub says: String,
}

impl Waiting {
    /// Starts the command and waits for its first line.
    pub fn start(command: &mut Command) -> Waiting {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let mut says = String::new();
        let words = child.stderr.as_mut().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(words), &mut says).expect("text");
        Waiting { child, says }
    }

    /// Waits until the command succeeds.
    pub fn done(self) {
        let output = finish(self.child, PATIENCE);
        assert!(output.status.success(), "{}{}", self.says, text_of(&output));
    }
}

/// Returns whether two files have the same bytes up to `length`.
pub fn same_bytes(a: &Path, b: &Path, length: u64) -> bool {
    use std::io::Read;
    let open = |path: &Path| {
        let file = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        std::io::BufReader::with_capacity(1 << 20, file.take(length))
    };
    let (mut a, mut b) = (open(a), open(b));
    let (mut left, mut right) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let mut seen = 0;
    loop {
        let n = read_full(&mut a, &mut left);
        let m = read_full(&mut b, &mut right);
        seen += n as u64;
        if left[..n] != right[..m] {
            return false;
        }
        if n == 0 {
            return seen == length;
        }
    }
}

fn read_full(from: &mut impl std::io::Read, buffer: &mut [u8]) -> usize {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]).expect("readable") {
            0 => break,
            n => filled += n,
        }
    }
    filled
}

/// Writes a file of `size` random bytes, which depend only on `seed`.
pub fn pattern_file(path: &Path, size: usize, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size);
    while bytes.len() < size {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    fs::write(path, bytes).expect("the temporary directory is writable");
}

/// A loop device over a file; dropping it removes it.
pub struct LoopDevice {
    /// The path of the device.
    pub path: String,
}

impl LoopDevice {
    /// Creates a device of `size` bytes over a new file in `directory`.
    pub fn new(directory: &Path, name: &str, size: u64) -> LoopDevice {
        let file = directory.join(name);
        fs::File::create(&file).and_then(|file| file.set_len(size)).expect("writable");
        LoopDevice::over(&file)
    }

    /// Creates a device over this file.
    pub fn over(file: &Path) -> LoopDevice {
        let losetup = run(Command::new("losetup").args(["--find", "--show"]).arg(file));
        assert!(losetup.status.success(), "loop devices are needed: {}", text_of(&losetup));
        LoopDevice { path: String::from_utf8_lossy(&losetup.stdout).trim().to_owned() }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.path]).output();
    }
}

/// A qemu-io process that stays attached and runs one command after another.
pub struct QemuIo {
    child: Child,
    input: std::process::ChildStdin,
    lines: std::sync::mpsc::Receiver<String>,
}

impl QemuIo {
    /// Opens an image; `image` is `--image-opts` with its options, or a file name.
    pub fn open(image: &[&str]) -> QemuIo {
        // Line buffered, so that results are visible at once.
        let mut qemu = Command::new("stdbuf");
        qemu.args(["-oL", "qemu-io"]).args(image);
        qemu.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = qemu.spawn().expect("qemu-io is installed");
        let input = child.stdin.take().expect("piped");
        let output = std::io::BufReader::new(child.stdout.take().expect("piped"));
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in std::io::BufRead::lines(output).map_while(Result::ok) {
                let _ = sender.send(line.trim_start_matches("qemu-io> ").to_owned());
            }
        });
        QemuIo { child, input, lines }
    }

    /// Sends a command without waiting. Requires: the previous one has finished; qemu-io does not notice a
    /// line that arrives too early.
    pub fn begin(&mut self, command: &str) {
        use std::io::Write;
        writeln!(self.input, "{command}").expect("it runs");
    }

    /// Waits until the current read, write or discard has finished. Returns the line that reports it.
    pub fn end(&mut self) -> String {
        let line = self.ended_within(PATIENCE);
        line.unwrap_or_else(|| panic!("waited {PATIENCE:?}: {:?}", self.child.try_wait()))
    }

    /// Waits at most this long for the current command. Returns the line that reports it, or `None`.
    pub fn ended_within(&mut self, span: Duration) -> Option<String> {
        loop {
            let line = self.lines.recv_timeout(span).ok()?;
            if is_done_in_full(&line) || line.contains("failed") {
                return Some(line);
            }
        }
    }

    /// Runs a read, write or discard, which must succeed completely.
    pub fn ask(&mut self, command: &str) {
        self.begin(command);
        let line = self.end();
        assert!(!line.contains("failed"), "{command}: {line}");
    }

    /// Closes the input; qemu-io must then exit with success.
    pub fn close(self) {
        let output = self.leave();
        assert!(output.status.success(), "{}", text_of(&output));
    }

    /// Closes the input and waits for qemu-io to exit; it exits with an error if a command failed.
    pub fn leave(self) -> Output {
        drop(self.input);
        finish(self.child, PATIENCE)
    }
}
