//! Tests of a device that completes nothing and reports no error: a loop device over a file that a user-space
//! server provides. The test pauses that server.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Cluster, LoopDevice, report, succeed, wait_for};
use crate::holders::Stream;
use crate::replication::{ask, has_check, pieces, signal};

/// The server, the file that it provides, and the loop device over that file.
struct HungDevice {
    server: Child,
    file: PathBuf,
    device: Option<LoopDevice>,
    /// The OSD that runs on the device.
    osd: Option<Child>,
}

impl HungDevice {
    fn new(cluster: &Cluster, size: u64) -> HungDevice {
        let backing = cluster.path().join("backing");
        fs::File::create(&backing).and_then(|file| file.set_len(size)).expect("writable");
        let file = cluster.path().join("served");
        fs::write(&file, b"").expect("writable");
        let mut server = Command::new("nbdfuse");
        server.arg(&file).args(["[", "qemu-nbd", "-t", "-f", "raw"]).arg(&backing).arg("]");
        let server = server.stderr(Stdio::null()).spawn().expect("nbdfuse is installed");
        let mut hung = HungDevice { server, file, device: None, osd: None };
        wait_for("the file to be served", || {
            fs::metadata(&hung.file).is_ok_and(|metadata| metadata.len() == size)
        });
        hung.device = Some(LoopDevice::over(&hung.file));
        hung
    }

    fn signal(&self, signal_: Signal) {
        signal(self.server.id(), signal_);
    }
}

impl Drop for HungDevice {
    /// Cleans up even after a failure: no hanging process may stay behind.
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        if let Some(mut osd) = self.osd.take() {
            let _ = osd.kill();
            let _ = osd.wait();
        }
        drop(self.device.take());
        // The kernel may not have released the device yet; the server exits once it has.
        let _ = Command::new("fusermount3").arg("-uz").arg(&self.file).output();
        let _ = self.server.wait();
    }
}

#[test]
fn a_hung_disk_blocks_nobody_is_reported_and_comes_back() {
    let cluster = Cluster::up("hung", &["--osds", "2", "--osd-size", "512MiB"]);
    let mut hung = HungDevice::new(&cluster, 512 << 20);
    let path = hung.device.as_ref().expect("just made").path.clone();
    let created = cluster.json(&["osd", "create", &path]);
    let id = created["id"].as_u64().expect("a number");
    let mut daemon = cluster.command(&["osd", "run", &path]);
    let log = cluster.path().join("hung.log");
    let words = fs::File::create(&log).expect("writable");
    hung.osd = Some(daemon.stderr(words).spawn().expect("starts"));
    cluster.wait_osd(id, true);
    // The OSD on the device is the primary of some PGs and a member of all others.
    let create = ["pool", "create", "safe", "--replicas", "3", "--failure-domain", "osd"];
    cluster.run(&[&create[..], &["--pgs", "16"]].concat());
    cluster.run(&["volume", "create", "v", "--size", "64MiB", "--pool", "safe"]);
    // Parts of a second volume are on all three, too; what the OSD on the device has is made of the others'.
    let create = ["pool", "create", "parity", "--ec", "2+1", "--failure-domain", "osd"];
    cluster.run(&[&create[..], &["--pgs", "16"]].concat());
    cluster.run(&["volume", "create", "w", "--size", "64MiB", "--pool", "parity"]);
    cluster.wait_clean();
    let leads = || {
        let rows = cluster.json(&["pg", "ls"]);
        let rows = rows.as_array().expect("a list");
        rows.iter().filter(|row| row["primary"].as_u64() == Some(id)).count()
    };
    assert!((1..32).contains(&leads()), "{}", leads());
    let streams = ["v", "w"].map(|volume| {
        ask(&cluster, volume, &pieces("write", 1, 64));
        Stream::start(&cluster, volume, 0)
    });
    streams.iter().for_each(|stream| stream.wait_for_more(16));

    hung.signal(Signal::STOP);
    // If the test is slow, the disk may already count as hung; then the log shows that it was slow before.
    wait_for("the disk to be named", || {
        has_check(&cluster, "disk_slow") || has_check(&cluster, "osd_stalled")
    });
    wait_for("the disk to count as hung", || has_check(&cluster, "osd_stalled"));
    let words = fs::read_to_string(&log).expect("it is there");
    assert!(words.contains("the disk is slow"), "{words}");
    streams.iter().for_each(|stream| stream.wait_for_more(64));
    wait_for("it to lead nothing", || leads() == 0);
    wait_for("the status to tell how it is", || {
        let text = cluster.run(&["status"]);
        text.contains(&format!("osd.{id}")) && text.contains("has not answered")
    });
    for volume in ["v", "w"] {
        ask(&cluster, volume, &pieces("read", 1, 64).split_off(16));
    }
    // The OSD still counts as stalled after a while: it takes no part in any PG while its disk hangs.
    std::thread::sleep(Duration::from_secs(2));
    assert!(has_check(&cluster, "osd_stalled"));

    hung.signal(Signal::CONT);
    wait_for("it to be well", || !has_check(&cluster, "osd_stalled"));
    cluster.wait_clean();
    wait_for("it to lead again", || leads() > 0);
    for (volume, stream) in ["v", "w"].into_iter().zip(streams) {
        let (reads, longest) = stream.end();
        let longest = longest.as_secs_f64();
        report(&format!("a disk hung under writes to {volume}: the longest took {longest:.2} s"));
        ask(&cluster, volume, &reads);
        ask(&cluster, volume, &pieces("read", 1, 64).split_off(16));
    }
    succeed(&mut cluster.command(&["osd", "ls"]));
}
