#!/usr/bin/env bash
# Fresh seeds until stopped or until one fails; each round starts at a random number.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-1000000}
while [ "$rounds" -gt 0 ]; do
    seed=$((RANDOM * 32768 + RANDOM))
    echo "PROPTEST_RNG_SEED=$seed"
    PROPTEST_RNG_SEED=$seed cargo test -q --profile ci -p format -p volume -p attach
    first=$((RANDOM * 32768 + RANDOM + 1000))
    "${CARGO_TARGET_DIR:-target}/ci/sim" --seeds "$first..$((first + 199))"
    rounds=$((rounds - 1))
done
