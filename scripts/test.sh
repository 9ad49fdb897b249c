#!/usr/bin/env bash
# The tests, part by part; prints the minutes of each.
#
#   test.sh check   every commit passes it: format, lints, unit tests, 50 seeds
#   test.sh all     what CI runs; 30 minutes with an empty target folder, on two cores
#   test.sh proof   what a finished change passes beside `all`: it proves the checkers and takes longer
#
# One build serves all parts: for a single crate cargo would choose other features, and build most crates again.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:?check, all or proof}
sim="${CARGO_TARGET_DIR:-target}/ci/sim"
report=""

part() { # NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    "$@"
    local seconds=$((SECONDS - start))
    report+=$(printf '%-34s %3d min %02d s' "$name" $((seconds / 60)) $((seconds % 60)))$'\n'
}

finish() {
    local status=$?
    echo
    echo "minutes of each part:"
    printf '%s' "$report"
    printf '%-34s %3d min %02d s\n' total $((SECONDS / 60)) $((SECONDS % 60))
    [ $status = 0 ] || echo "FAILED"
}
trap finish EXIT

cargo_ci() { cargo "$1" --profile ci --locked "${@:2}"; }

# Prints the slowest tests. Their times are an unstable option of the test programs, which cargo starts
# with the variable that allows it; cargo and the compiler run without.
timed() { # COUNT COMMAND...
    local count=$1 log status=0
    shift
    log=$(mktemp)
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="env RUSTC_BOOTSTRAP=1" \
        "$@" -Z unstable-options --report-time | tee "$log" || status=$?
    echo "the slowest, in seconds:"
    sed -n 's/^test \(.*\) \.\.\. [a-z]* <\([0-9.]*\)s>$/\2 \1/p' "$log" | sort -rn | head -n "$count" || true
    rm -f "$log"
    return $status
}

# The process tests are the program `processes`; the pattern names all others.
units() { timed 20 cargo_ci test --workspace --lib --bins --test '[!p]*' -- "$@"; }
processes() { timed 20 cargo_ci test --workspace --test processes -- --test-threads=3 "$@"; }

# Each run of CI looks for a tenth of the planted bugs; the commit says which one.
planted_share() {
    local commit
    commit=$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0)
    echo $((16#$commit % 10))
}

planted_units() {
    local names
    names=$(cargo_ci test --workspace --lib -- --ignored --list planted_bugs_ |
        sed -n 's/: test$//p' | awk -v first="$(planted_share)" 'NR % 10 == first')
    # shellcheck disable=SC2086  # a list of names
    [ -z "$names" ] || cargo_ci test --workspace --lib -- --ignored --exact $names
}

part 'install' sh scripts/install.sh test
if [ "$what" = proof ]; then
    part 'build' cargo_ci test --workspace --no-run
    part 'simulator, 500 seeds' "$sim" --seeds 1..500 --cpu-minutes-max 25
    part 'simulator, pools with parity' "$sim" parity --seeds 1..200
    part 'planted bugs' "$sim" --planted all --seeds 1..500 --cpu-minutes-max 40
    part 'planted bugs of unit tests' cargo_ci test --workspace --lib -- --ignored planted_bugs_
    part 'unit tests, all seeds' env TESTS=all cargo_ci test --workspace --lib --bins --test '[!p]*'
    part 'real processes, all cases' env TESTS=all cargo_ci test --workspace --test processes -- \
        --include-ignored --test-threads=2
    part 'many runs' cargo_ci test --workspace --lib -- --ignored in_many_runs every_crash_of_one_member
    exit 0
fi
part 'format' cargo fmt --all --check
part 'lints' cargo_ci clippy --workspace --all-targets --quiet
part 'build' cargo_ci test --workspace --no-run
part 'documents' cargo_ci test --workspace --test processes -- documents::
part 'unit tests' units
if [ "$what" = check ]; then
    part 'simulator, 50 seeds' "$sim" --seeds 1..50
    exit 0
fi
part 'simulator, 150 seeds' "$sim" --seeds 1..150 --cpu-minutes-max 12
part 'simulator, pools with parity' "$sim" parity --seeds 1..20
part 'a tenth of the planted bugs' "$sim" --planted "$(planted_share)/10" --seeds 1..500
part 'a tenth of those of unit tests' planted_units
part 'real processes' processes --skip documents::
