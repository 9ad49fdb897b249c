//! An NBD client that sends exactly the bytes that a test needs: clients that disconnect, send garbage or do
//! nothing.

#![allow(clippy::big_endian_bytes)] // NBD is big-endian.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Cluster, qemu_io, wait_for};

const READ: u16 = 0;
pub const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const EINVAL: u32 = 22;

/// A connection to an NBD server.
pub struct Client {
    stream: UnixStream,
}

impl Client {
    /// Connects, reads the greeting and sends the flags.
    fn connect(socket: &Path) -> Client {
        let mut stream = UnixStream::connect(socket).expect("it listens");
        // If a reply takes longer than this, the server hangs.
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a socket");
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("a greeting");
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        stream.write_all(&3u32.to_be_bytes()).expect("open");
        Client { stream }
    }

    /// Connects and selects a volume. Returns once the volume is attached.
    pub fn user(socket: &Path, volume: &str) -> Client {
        let mut client = Client::connect(socket);
        let mut option = b"IHAVEOPT".to_vec();
        option.extend_from_slice(&1u32.to_be_bytes());
        option.extend_from_slice(&(volume.len() as u32).to_be_bytes());
        option.extend_from_slice(volume.as_bytes());
        client.send(&option);
        client.stream.read_exact(&mut [0; 10]).expect("the export's size and flags");
        client
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("open");
    }

    pub fn ask(&mut self, kind: u16, offset: u64, length: u32) {
        let mut request = 0x2560_9513u32.to_be_bytes().to_vec();
        request.extend_from_slice(&0u16.to_be_bytes());
        request.extend_from_slice(&kind.to_be_bytes());
        request.extend_from_slice(&7u64.to_be_bytes());
        request.extend_from_slice(&offset.to_be_bytes());
        request.extend_from_slice(&length.to_be_bytes());
        self.send(&request);
    }

    /// Reads a simple reply and returns its error.
    pub fn reply(&mut self) -> u32 {
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply).expect("a simple reply");
        assert_eq!(reply[..4], 0x6744_6698u32.to_be_bytes());
        u32::from_be_bytes(reply[4..8].try_into().expect("4 bytes"))
    }
}

pub fn socket_of(cluster: &Cluster) -> PathBuf {
    cluster.path().join("nbd.sock")
}

fn session_count(cluster: &Cluster) -> usize {
    let volumes = cluster.json(&["volume", "ls"]);
    volumes[0]["sessions"].as_array().expect("a list").len()
}

#[test]
fn a_late_write_of_a_departed_client_never_overwrites_a_later_one() {
    let cluster = Cluster::up("departed", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x30 0 64k"]);
    let osd = Pid::from_raw(cluster.pid("osd", 1) as i32).expect("a process");
    for length in [512, 4096] {
        let mut departed = Client::user(&socket_of(&cluster), "v");
        kill_process(osd, Signal::STOP).expect("it runs");
        departed.ask(WRITE, 0, length);
        departed.send(&vec![b'A'; length as usize]);
        drop(departed);
        // The new client waits for the earlier write, but not for ever, because the OSD does not answer.
        let mut later = Client::user(&socket_of(&cluster), "v");
        later.ask(WRITE, 0, 4096);
        later.send(&[b'B'; 4096]);
        kill_process(osd, Signal::CONT).expect("it is stopped");
        assert_eq!(later.reply(), 0);
        later.ask(FLUSH, 0, 0);
        assert_eq!(later.reply(), 0);
        drop(later);
        wait_for("both to be detached", || session_count(&cluster) == 0);
        qemu_io(&cluster, "v", &["read -P 0x42 0 4096", "read -P 0x30 4096 60k"]);
    }
    cluster.check_osds();
}

#[test]
fn a_write_with_too_little_data_writes_nothing() {
    let cluster = Cluster::up("short", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    qemu_io(&cluster, "v", &["write -P 0x30 0 2M"]);
    let pid = cluster.pid("nbd", 1);
    let mut bystander = Client::user(&socket_of(&cluster), "v");
    for sent in [0, 1, 4096, (1 << 20) - 1] {
        let mut liar = Client::user(&socket_of(&cluster), "v");
        liar.ask(WRITE, 4096, 1 << 20);
        liar.send(&vec![0xee; sent]);
        bystander.ask(READ, 0, 4096);
        assert_eq!(bystander.reply(), 0, "another's I/O goes on");
        bystander.stream.read_exact(&mut [0; 4096]).expect("data");
        drop(liar);
    }
    drop(bystander);
    wait_for("all to be detached", || session_count(&cluster) == 0);
    qemu_io(&cluster, "v", &["read -P 0x30 0 2M"]);
    assert_eq!(cluster.pid("nbd", 1), pid);
}

#[test]
fn a_write_of_an_absurd_length_fails_and_disturbs_nobody() {
    let cluster = Cluster::up("absurd", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "64MiB"]);
    let pid = cluster.pid("nbd", 1);
    let mut bystander = Client::user(&socket_of(&cluster), "v");
    for length in [(32 << 20) + 1, 1 << 30, u32::MAX] {
        let mut liar = Client::user(&socket_of(&cluster), "v");
        liar.ask(WRITE, 0, length);
        // The server may close the connection at once, or answer after reading that many bytes.
        let _ = liar.stream.write_all(&[0xee; 1 << 16]);
        let mut reply = Vec::new();
        if length == (32 << 20) + 1 {
            let rest = vec![0xee; length as usize - (1 << 16)];
            let _ = liar.stream.write_all(&rest);
        }
        let _ = liar.stream.shutdown(std::net::Shutdown::Write);
        let _ = liar.stream.read_to_end(&mut reply);
        if let Some(error) = reply.get(4..8) {
            assert_eq!(error, EINVAL.to_be_bytes(), "{length}");
        }
        bystander.ask(READ, 0, 4096);
        assert_eq!(bystander.reply(), 0, "another's I/O goes on");
        let mut data = [1; 4096];
        bystander.stream.read_exact(&mut data).expect("data");
        assert_eq!(data, [0; 4096], "nothing was written");
    }
    assert_eq!(cluster.pid("nbd", 1), pid);
}

#[test]
fn idle_connections_do_not_block_the_io_of_others() {
    let cluster = Cluster::up("idle", &["--osds", "1", "--osd-size", "256MiB"]);
    cluster.run(&["volume", "create", "v", "--size", "16MiB"]);
    let mut user = Client::user(&socket_of(&cluster), "v");
    io::raise_descriptor_limit();
    let connect = |_| UnixStream::connect(socket_of(&cluster)).expect("it listens");
    let idle: Vec<_> = (0..1100).map(connect).collect();
    let closed = |stream: &UnixStream| {
        let mut stream = stream;
        let mut greeting = Vec::new();
        stream.set_read_timeout(Some(Duration::from_millis(1))).expect("a socket");
        stream.read_to_end(&mut greeting).is_ok()
    };
    wait_for("those beyond the limit to be refused", || idle.iter().rev().take(70).any(closed));
    // The server reconnects to the OSD while these clients are connected.
    cluster.kill("osd", 1);
    user.ask(WRITE, 0, 4096);
    user.send(&[b'A'; 4096]);
    assert_eq!(user.reply(), 0);
    drop(idle);
    wait_for("others to be served again", || {
        let mut stream = UnixStream::connect(socket_of(&cluster)).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(1))).expect("a socket");
        stream.read_exact(&mut [0; 18]).is_ok()
    });
}
