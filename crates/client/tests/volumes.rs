//! Tests the library over real sockets; the cluster behind them is in memory.

// A test may start threads and write files.
#![allow(clippy::disallowed_methods)]

#[allow(dead_code)] // Commands use the other half.
#[path = "../src/block_on.rs"]
mod block_on;
#[path = "../../attach/tests/memory/mod.rs"]
mod memory;
#[path = "../../attach/tests/memory/served.rs"]
mod served;

use std::future::Future;
use std::path::PathBuf;
use std::task::{Context, Waker};
use std::time::Duration;

use block_on::block_on;
use client::bench::{Load, OpKind};
use client::{Client, Config, Extent, VolumeError};
use cluster::map::ClusterFile;
use cluster::message::Command;
use io::ClusterKey;

const SIZE: u64 = 64 << 20;

/// A cluster, and the directory of its sockets, which is removed when the cluster is dropped.
struct Cluster {
    config: Config,
    folder: PathBuf,
}

impl Cluster {
    fn start(name: &str) -> Cluster {
        let unique = format!("ashlar-volumes-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(unique);
        std::fs::create_dir_all(&folder).expect("the temporary folder is writable");
        let address = |file: &str| format!("unix:{}", folder.join(file).display());
        served::start(SIZE, address("monitor"), address("osd"));
        let file = ClusterFile {
            cluster: served::CLUSTER,
            monitors: vec![address("monitor")],
            state: None,
            networks: Vec::new(),
            osd_networks: Vec::new(),
            host: None,
        };
        let key = ClusterKey::from_bytes(served::KEY);
        let config = Config { dir: folder.clone(), path: folder.join("cluster.toml"), file, key };
        Cluster { config, folder }
    }

    fn session_count(&self) -> u64 {
        let ask = Command::TaskList { image: None };
        let answer = client::call(&self.config, ask, Duration::from_secs(60));
        answer.expect("the monitor answers")["sessions"].as_u64().expect("a number")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_volume_is_written_read_zeroed_and_detached() {
    let cluster = Cluster::start("whole");
    block_on(async {
        let client = Client::start(&cluster.config).expect("io_uring works");
        let missing = client.open("none", false).await.err().expect("there is none");
        assert_eq!(missing.code, "not_found");
        let disk = client.open("disk", false).await.expect("it is there");
        assert_eq!(disk.size(), SIZE);
        disk.write(5000, vec![7; 300_000]).await.expect("written");
        disk.flush().await.expect("flushed");
        assert_eq!(disk.read(4999, 3).await.expect("read"), [0, 7, 7]);
        disk.zero(8192, 4096).await.expect("zeroed");
        assert_eq!(disk.read(8191, 3).await.expect("read"), [7, 0, 0]);
        let extents = disk.extents(0, 16384).await.expect("known");
        let hole = |length| Extent { length, allocated: false };
        let data = |length| Extent { length, allocated: true };
        assert_eq!(extents, [hole(4096), data(4096), hole(4096), data(4096)]);
        assert_eq!(disk.read(SIZE, 1).await, Err(VolumeError::OutOfRange));
        assert_eq!(cluster.session_count(), 1);
    });
    assert_eq!(cluster.session_count(), 0, "dropped is detached");
}

#[test]
fn many_requests_may_wait_at_once() {
    let cluster = Cluster::start("many");
    block_on(async {
        let client = Client::start(&cluster.config).expect("io_uring works");
        let disk = client.open("disk", false).await.expect("it is there");
        let mut writes: Vec<_> =
            (0..64u64).map(|at| Box::pin(disk.write(at * 4096, vec![at as u8; 4096]))).collect();
        for write in &mut writes {
            let mut context = Context::from_waker(Waker::noop());
            let _ = write.as_mut().poll(&mut context);
        }
        for write in writes.into_iter().rev() {
            write.await.expect("written");
        }
        let bytes = disk.read(0, 64 * 4096).await.expect("read");
        assert!(bytes.chunks(4096).enumerate().all(|(at, unit)| unit[0] == at as u8));
    });
}

#[test]
fn a_load_is_measured() {
    let cluster = Cluster::start("load");
    for (kind, depth) in [(OpKind::RandomWrite, 4), (OpKind::Read, 1)] {
        let time = Duration::from_millis(100);
        let load = Load { kind, block_size: 4096, depth, time };
        let measured = client::bench::run(&cluster.config, "disk", &load).expect("it runs");
        assert!(measured.latencies.count() > 0);
        assert_eq!(measured.bytes, measured.latencies.count() * 4096);
        assert!(measured.elapsed.as_millis() >= 100);
    }
    assert_eq!(cluster.session_count(), 0, "it is detached");
    let time = Duration::from_millis(100);
    let load = Load { kind: OpKind::Write, block_size: 2 * SIZE, depth: 1, time };
    let error = client::bench::run(&cluster.config, "disk", &load).err().expect("too large");
    assert_eq!(error.code, "invalid");
}
