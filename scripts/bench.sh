#!/usr/bin/env bash
# Speed beside the machine's limits; ROUNDS=5 for steadier medians. TABLES=objects: only pools of objects, with
# RECORDS=20000 and ROUNDS=1 in two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo bench --locked -p ashlar --bench suite
