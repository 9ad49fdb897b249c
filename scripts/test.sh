#!/usr/bin/env bash
# The tests, part by part; prints the minutes of each. `test.sh all` is what CI runs,
# `test.sh check` what every commit passes.
set -euo pipefail
cd "$(dirname "$0")/.."

what=${1:?all or check}
report=""

part() { # NAME COMMAND...
    local name=$1 start=$SECONDS
    shift
    echo "== $name"
    "$@"
    local seconds=$((SECONDS - start))
    report+=$(printf '%-28s %3d min %02d s' "$name" $((seconds / 60)) $((seconds % 60)))$'\n'
}

finish() {
    local status=$?
    echo
    echo "minutes of each part:"
    printf '%s' "$report"
    printf '%-28s %3d min %02d s\n' total $((SECONDS / 60)) $((SECONDS % 60))
    [ $status = 0 ] || echo "FAILED"
}
trap finish EXIT

cargo_ci() { cargo "$1" --profile ci --locked "${@:2}"; }

part install sh scripts/install.sh test
part format cargo fmt --all --check
part lints cargo_ci clippy --workspace --all-targets --quiet
part 'unit tests' cargo_ci test --workspace --exclude ashlar
part 'unit tests of the program' cargo_ci test -p ashlar --bins
if [ "$what" = check ]; then
    part 'documents' cargo_ci test -p ashlar --test it -- documents::
    part 'simulator, 50 seeds' cargo_ci run -p sim -- --seeds 1..50
    exit 0
fi
part 'simulator, 500 seeds' cargo_ci run -p sim -- --seeds 1..500 --cpu-minutes-max 25
part 'simulator, pools with parity' cargo_ci run -p sim -- parity --seeds 1..60
part 'planted bugs' cargo_ci run -p sim --features planted -- --planted all --seeds 1..500 \
    --cpu-minutes-max 40
part 'planted bugs of PGs and nodes' cargo_ci test -p pg -p node --features planted --lib \
    -- planted_bugs_
part 'real processes' cargo_ci test -p ashlar --test it -- --test-threads=2
