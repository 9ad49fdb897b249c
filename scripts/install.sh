#!/bin/sh
# Installs what a bare Debian 12 lacks: `install.sh build` to build, `install.sh test` to test as
# well. Does nothing, and needs no root, where everything is there.
set -eu

want=${1:?build or test}
packages=""

need() { # COMMAND PACKAGE...
    command=$1
    shift
    if ! command -v "$command" >/dev/null 2>&1 && ! [ -x "/usr/sbin/$command" ]; then
        packages="$packages $*"
    fi
}

need cc gcc libc6-dev
# The messages of etcd are compiled from their definitions.
need protoc protobuf-compiler
[ -e /usr/include/google/protobuf/descriptor.proto ] || packages="$packages libprotobuf-dev"
# The sorted store of object pools; its bindings are made from its header.
[ -e /usr/include/rocksdb/c.h ] || packages="$packages librocksdb-dev"
ls /usr/lib/llvm-*/lib/libclang.so >/dev/null 2>&1 || packages="$packages libclang-dev"
# Libraries come over TLS.
[ -e /etc/ssl/certs/ca-certificates.crt ] || packages="$packages ca-certificates"
# Debian keeps a current compiler for its browsers; the plain one is too old.
cargo_version=$(cargo --version 2>/dev/null | sed -n 's/^cargo 1\.\([0-9]*\)\..*/\1/p')
if [ "${cargo_version:-0}" -lt 95 ]; then
    packages="$packages cargo-web rustc-web"
fi
if [ "$want" = test ]; then
    need etcd etcd-server
    need fio fio
    need qemu-img qemu-utils
    need nbdinfo libnbd-bin
    need nbdfuse libnbd-bin fuse3
    need fusermount3 fuse3
    need mke2fs e2fsprogs
    need fsck.ext4 e2fsprogs
    need losetup mount
    need ip iproute2
    need curl curl
    need debugfs e2fsprogs
    # The S3 clients of tests are Python programs: scripts/s3-clients.sh.
    python3 -c "import ensurepip" 2>/dev/null || packages="$packages python3 python3-venv"
    # Another implementation of the erasure codes, to compare with.
    [ -e /usr/include/isa-l.h ] || packages="$packages libisal-dev"
    cargo fmt --version >/dev/null 2>&1 || packages="$packages rustfmt-web"
    cargo clippy --version >/dev/null 2>&1 || packages="$packages rust-web-clippy"
fi

if [ -z "$packages" ]; then
    exit 0
fi
root=""
if [ "$(id -u)" != 0 ]; then
    root=sudo
fi
echo "installing:$packages"
export DEBIAN_FRONTEND=noninteractive
$root apt-get update -qq
# shellcheck disable=SC2086  # a list of words
$root apt-get install -y -qq --no-install-recommends $packages >/dev/null
