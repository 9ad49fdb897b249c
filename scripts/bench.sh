#!/usr/bin/env bash
# Speed beside the machine's limits; ROUNDS=5 for steadier medians. TABLES=objects: only pools of objects, with
# RECORDS=20000 and ROUNDS=1 in two minutes. TABLES=compressions: 10,000,000 records with lz4 and zstd, 1,000,000 with
# each of the others; half an hour, 8 GiB of memory.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo bench --locked -p ashlar --bench suite
