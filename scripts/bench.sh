#!/usr/bin/env bash
# Speed beside the machine's limits; ROUNDS=5 for steadier medians.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo bench --locked -p ashlar --bench suite
