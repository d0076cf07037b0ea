#!/usr/bin/env bash
# Two ranks, and the Nth allocation of one of them fails: both end soon, the status is not 0 unless the files are
# those of an undisturbed run, and no rank dies of a signal.  Afterwards the folder holds a readable checkpoint or
# none, and a log of complete lines.
#
# usage: [SNUG=./snug] [TRIES=5; 2 if small] tests/fault/no_memory_ranks.sh     TRIES for each rank; the output is TAP.
#        [MPI=mpich] [AT="1 2 3"] tests/fault/no_memory_ranks.sh     with the other MPI, these allocations
# shellcheck source=tests/support/size.bash
. "$(dirname "$0")/../support/size.bash"
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/../ranks/ranks.bash"

built=$(dirname "$snug")/build/release/tests/fault/test_no_memory
[ -x "$built" ] || { echo "skip: $built is not built (make tests-bin)"; exit 77; }
cp "$built" failing && cp "$(dirname "$snug")"/libsnug_*.so . || exit 1 # plugins must be next to the program
tries=${TRIES:-$(sized 2 5)}
[ "${MPI:-}" != mpich ] || first=$mpich

# A rank writes its output directly to the file: a launcher that kills the others may lose it.
printf '#!/bin/sh\nexec ./failing --snug "$@" 2>>said\n' >rank && chmod +x rank || exit 1
export XDG_CACHE_HOME=$work/cache

two() { # DIR: the allocation NO_MEMORY_AT of the rank NO_MEMORY_RANK fails
    rm -f said
    timeout 60 "$first" -n 2 ./rank train mlp:4-3-2 --threads 1 --batch 4 --steps 2 --save-every 1 \
        --zero 1 --eval-every -1 --quiet --json --out "$1" >"$1.out" 2>"$1.err"
}
log() { sed -E 's/"(ms|tokens_per_s)": [^,}]*/#/g' "$1/metrics.jsonl"; }
same_run() { same "$1" "$2" && [ "$(log "$1")" = "$(log "$2")" ] && cmp "$1/state.json" "$2/state.json"; }
is_whole() { # DIR: a readable checkpoint and a log of complete lines, or none yet
    [ ! -e "$1/state.json" ] || "$snug" inspect "$1" >/dev/null || return 1
    [ ! -s "$1/metrics.jsonl" ] || ! grep -qv '^{"step": [0-9]*, .*}$' "$1/metrics.jsonl"
}
injected=0
fails_well() { # RANK N
    local status=0 words
    rm -rf hit hit.count
    NO_MEMORY_RANK=$1 NO_MEMORY_AT=$2 NO_MEMORY_COUNT=$work/hit.count two hit || status=$?
    # a rank that the launcher killed could not write it, but reached the allocation
    read -r _ n_failed 2>/dev/null <hit.count || n_failed=1
    [ "$n_failed" -gt 0 ] && injected=$((injected + 1))
    words=$(grep -iE '^snug: .*(memory|no scratch)' said)
    if [ $status -eq 0 ]; then
        same_run whole hit && return 0
    elif [ $status -ne 124 ] && [ -n "$words" ] && ! grep -qE 'on signal|SIGNAL|Segmentation|Aborted' hit.err; then
        is_whole hit && return 0
    fi
    echo "# status $status"
    sed 's/^/#   /' said hit.err
    return 1
}

for rank in 0 1; do
    rm -rf whole
    NO_MEMORY_RANK=$rank NO_MEMORY_COUNT=$work/count check "rank $rank undisturbed" two whole
    read -r n_calls _ <count
    for at in ${AT:-$(seq $((1 + n_calls / tries / 2)) $((n_calls / tries)) "$n_calls")}; do
        check "rank $rank: allocation $at of $n_calls fails" fails_well "$rank" "$at"
    done
done
# Failures before the ranks have connected: Open MPI's launcher ends the others, MPICH's does not.
if [ -n "$mpich" ]; then
    first=$mpich
    for rank in 0 1; do
        check "MPICH, rank $rank: its second allocation fails" fails_well "$rank" 2
    done
fi
echo "# $injected injections"
check "allocations were made to fail" test "$injected" -gt 0
echo "1..$n"
exit $failed
