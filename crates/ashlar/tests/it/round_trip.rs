//! Tests that a file system image comes back byte for byte.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::harness::{Cluster, same_bytes, succeed};

/// Copies files of installed packages into `to` until there are enough files and bytes.
fn unpacked_packages(to: &Path, bytes_min: u64, files_min: u32) {
    let (mut bytes, mut files) = (0, 0);
    let mut pending = vec![
        Path::new("/usr/share/zoneinfo").to_owned(),
        Path::new("/usr/share/doc").to_owned(),
        Path::new("/usr/share/perl").to_owned(),
        Path::new("/usr/lib/x86_64-linux-gnu").to_owned(),
        Path::new("/usr/bin").to_owned(),
        Path::new("/usr/lib").to_owned(),
    ];
    pending.reverse();
    while let Some(directory) = pending.pop() {
        if bytes >= bytes_min && files >= files_min {
            break;
        }
        let target = to.join(directory.strip_prefix("/").expect("absolute"));
        fs::create_dir_all(&target).expect("writable");
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if bytes >= bytes_min && files >= files_min {
                break;
            }
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file()
                && let Ok(size) = fs::copy(entry.path(), target.join(entry.file_name()))
            {
                bytes += size;
                files += 1;
            }
        }
    }
    assert!(bytes >= bytes_min, "{bytes} bytes found");
    assert!(files >= files_min, "{files} files found");
}

#[test]
fn ext4_image_comes_back_byte_for_byte() {
    let cluster = Cluster::up("image", &["--osds", "3", "--osd-size", "2GiB"]);
    let scratch = cluster.path().join("scratch");
    let tree = scratch.join("tree");
    fs::create_dir_all(&tree).expect("writable");
    unpacked_packages(&tree, 210 << 20, 2000);
    let image = scratch.join("image.raw");
    let size = 768 << 20;
    fs::File::create(&image).and_then(|file| file.set_len(size)).expect("writable");
    let mut make = Command::new("/usr/sbin/mke2fs");
    succeed(make.args(["-q", "-t", "ext4", "-d"]).arg(&tree).arg(&image));
    fs::remove_dir_all(&tree).expect("made above");

    cluster.run(&["volume", "create", "image", "--size", "768MiB"]);
    let uri = cluster.uri("image");
    let mut convert = Command::new("qemu-img");
    succeed(convert.args(["convert", "-n", "-f", "raw", "-O", "raw"]).arg(&image).arg(&uri));
    let back = scratch.join("back.raw");
    let mut convert = Command::new("qemu-img");
    succeed(convert.args(["convert", "-f", "raw", "-O", "raw"]).arg(&uri).arg(&back));
    assert!(same_bytes(&image, &back, size));

    let mut fsck = Command::new("/usr/sbin/fsck.ext4");
    succeed(fsck.args(["-f", "-n"]).arg(&back));
    crate::harness::report(&format!("ext4 image of {size} bytes came back byte for byte"));
    cluster.check_osds();
}
