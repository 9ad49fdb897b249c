//! NBD servers in addition to the cluster's own, and a proxy to the monitor that can be cut.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{ASHLAR, QemuIo, wait_for};

/// A TCP proxy to the monitor that can be cut.
#[derive(Clone)]
pub struct Detour {
    pub address: SocketAddr,
    /// Both ends of each connection; `None` while the proxy is cut.
    streams: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Detour {
    pub fn to(monitor: String) -> Detour {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let detour = Detour { address, streams: Arc::new(Mutex::new(Some(Vec::new()))) };
        let streams = detour.streams.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let mut open = streams.lock().expect("nobody panics with it");
                let Some(open) = open.as_mut() else { continue };
                let Ok(far) = TcpStream::connect(&monitor) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let clone = |stream: &TcpStream| stream.try_clone().expect("a socket");
                    let (mut from, mut to) = (clone(from), clone(to));
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                open.extend([near, far]);
            }
        });
        detour
    }

    pub fn cut(&self) {
        let streams = self.streams.lock().expect("nobody panics with it").take();
        for stream in streams.expect("it was not cut") {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// An NBD server in addition to the cluster's own; dropping it stops it.
pub struct NbdServer {
    child: Child,
    socket: String,
}

impl NbdServer {
    pub fn start(cluster_files: &Path, name: &str) -> NbdServer {
        let socket = cluster_files.join(name).display().to_string();
        let mut server = Command::new(ASHLAR);
        server.args(["nbd", "--listen", &format!("unix:{socket}"), "--cluster"]);
        let child = server.arg(cluster_files).stderr(Stdio::null()).spawn().expect("starts");
        wait_for("the server to listen", || UnixStream::connect(&socket).is_ok());
        NbdServer { child, socket }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    pub fn open(&self, volume: &str) -> QemuIo {
        let uri = format!("nbd+unix:///{volume}?socket={}", self.socket);
        QemuIo::open(&["-f", "raw", &uri])
    }

    /// Opens a volume for a client that reconnects when the server closes its connection.
    pub fn open_patiently(&self, volume: &str) -> QemuIo {
        let image = format!(
            "driver=raw,file.driver=nbd,file.server.type=unix,file.server.path={},\
             file.export={volume},file.reconnect-delay=60",
            self.socket
        );
        QemuIo::open(&["--image-opts", &image])
    }

    /// Sends SIGTERM; the server must exit without further help.
    pub fn end(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().expect("a child").success());
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
