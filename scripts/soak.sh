#!/usr/bin/env bash
# Fresh seeds for all that draws: fuzzers, properties, simulators.
#
# `make soak` goes on until something fails, or is stopped; each round starts at a random number.
# `make soak SEEDS=A..B` runs these seeds once, both ends included. What fails is named at the end
# of its round, with the command that repeats it.
set -euo pipefail
cd "$(dirname "$0")/.."

fuzzed="blockstore pg node cluster"
fuzzers="fuzz:: random:: no_schedule whatever_comes"
properties="format volume attach objects"
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
cargo build --profile ci --locked --workspace --bins

cargo_test() { cargo test --profile ci --locked "$@"; }

# shellcheck disable=SC2086  # a list
flags() { printf -- '-p %s ' $1; }

# CRATE PROGRAM of each test program that draws properties.
programs() {
    local crate
    for crate in $properties; do
        CARGO_TERM_QUIET=false cargo_test -p "$crate" --no-run 2>&1 |
            sed -n "s|^ *Executable .*(\(.*/deps/[^)]*\))\$|$crate \1|p"
    done
}

round() { # FIRST LAST
    local first=$1 last=$2 failed="" seed crate program log
    log=$(mktemp)
    echo "seeds $first..$last"
    # shellcheck disable=SC2046,SC2086  # lists
    SEEDS=$first..$last cargo_test $(flags "$fuzzed") --no-fail-fast -q -- $fuzzers ||
        failed+="SEEDS=$first..$last cargo test --profile ci $(flags "$fuzzed")-- $fuzzers"$'\n'
    while read -r crate program; do
        program=$(realpath "$program")
        echo "properties of $crate: $(basename "$program")"
        for ((seed = first; seed <= last; seed++)); do
            (cd "crates/$crate" && PROPTEST_RNG_SEED=$seed PROPTEST_DISABLE_FAILURE_PERSISTENCE=true \
                "$program" -q >"$log" 2>&1) && continue
            tail -25 "$log"
            failed+="PROPTEST_RNG_SEED=$seed cargo test --profile ci -p $crate"$'\n'
        done
    done <<<"$(programs)"
    for part in store cluster parity; do
        "$target/ci/sim" "$part" --seeds "$first..$last" ||
            failed+="$target/ci/sim $part --seeds $first..$last"$'\n'
    done
    rm -f "$log"
    [ -z "$failed" ] || { printf 'FAILED; repeat by:\n%s' "$failed"; exit 1; }
}

if [ -n "${SEEDS:-}" ]; then
    round "${SEEDS%%..*}" "${SEEDS##*..}"
else
    while true; do
        first=$((RANDOM * 32768 + RANDOM + 1000))
        round "$first" $((first + 199))
    done
fi
