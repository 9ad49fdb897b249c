#!/usr/bin/env bash
# Speed beside the machine's limits; ROUNDS=5 for steadier medians. TABLES=objects: only pools of objects, with
# RECORDS=20000 and ROUNDS=1 in two minutes. TABLES=compressions: 10,000,000 records with lz4 and zstd, 1,000,000 with
# each of the others; half an hour, 8 GiB of memory. TABLES=writes: small writes at depths 32 and 128, beside an empty
# pool with parity and in one. TABLES=removal: writes beside the removal of 100,000 objects (REMOVALS=1000000: of more).
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo bench --locked -p ashlar --bench suite
