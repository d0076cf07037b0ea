#!/usr/bin/env bash
# Runs test programs and scripts, one line each; all output of those that fail, and the end of it once more
# when all have run; then the sum.
# usage: tools/run-tests.sh TEST...      TEST_JOBS: how many at a time    TEST_SECONDS: limit for one
#
# A program is a cmocka binary (its tests are counted) or anything else (one test, by exit status).
# A test that is skipped says why in a line that begins with "skip:"; a script skips with status 77.
# Each test has an empty XDG_CACHE_HOME of its own: what was measured on this machine changes no estimate.
# The last line is `N passed, N failed`, and `, N skipped` if any were; the status is 1 if any failed.
set -u
# Waiting threads sleep: several tests run at a time on as many cores.
export CMOCKA_MESSAGE_OUTPUT=TAP LC_ALL=C OMP_WAIT_POLICY=passive
# Data sets beside a checkout; tests that want one skip without it.
if [ -z "${SNUG_DATA:-}" ] && [ -d "$(dirname "$0")/../../shared/data" ]; then
    SNUG_DATA=$(cd "$(dirname "$0")/../../shared/data" && pwd)
    export SNUG_DATA
fi

# run_one RESULTS TEST: runs it, leaves "passed failed skipped NAME" in a file, prints its line.
run_one() {
    local results=$1 test=$2 log begin seconds status passed failed skipped planned verdict=ok
    if ! log=$(mktemp "$results/XXXXXXXX.log") || ! mkdir "${log%.log}.cache"; then
        printf '  %-46s not run: no file for its output in %s  FAILED\n' "${test#build/}" "$results"
        return
    fi
    export XDG_CACHE_HOME="${log%.log}.cache"
    begin=$(date +%s%N)
    { timeout --kill-after=10 "${TEST_SECONDS:-900}" "$test" >"$log" 2>&1 </dev/null; } 2>>"$log"
    status=$?
    seconds=$(awk -v ns=$(($(date +%s%N) - begin)) 'BEGIN { printf "%.2f", ns / 1e9 }')
    if grep -qE '^1\.\.[0-9]+$' "$log"; then
        planned=$(sed -nE 's/^1\.\.([0-9]+)$/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
        passed=$(grep -cE '^ok [0-9]' "$log")
        skipped=$(grep -cE '^(not )?ok [0-9]+ # SKIP' "$log")
        failed=$((planned - passed - skipped)) # those that a crash kept from running are failures
        if [ "$failed" -le 0 ]; then
            failed=0
            [ "$status" -eq 0 ] || failed=1 # all passed and the exit did not: a leak, say
        fi
        [ "$planned" -gt 0 ] || failed=1
    else
        passed=0 failed=0 skipped=0
        case $status in
        0) passed=1 ;;
        77) skipped=1 ;;
        *) failed=1 ;;
        esac
    fi
    [ "$skipped" -eq 0 ] || verdict='ok, some skipped'
    [ "$failed" -eq 0 ] || verdict=FAILED
    [ "$status" -ne 124 ] && [ "$status" -ne 137 ] ||
        echo "run-tests: stopped after ${TEST_SECONDS:-900} s" >>"$log"
    echo "$passed $failed $skipped $test" >"${log%.log}.count"
    {
        printf '  %-46s %4d tests %8s s  %s\n' "${test#build/}" $((passed + failed + skipped)) \
            "$seconds" "$verdict"
        [ "$skipped" -eq 0 ] || grep -E '^skip:' "$log" | sort | uniq -c | sed -E 's/^ +[0-9]+/     /'
        if [ "$failed" -ne 0 ]; then
            echo "  ---- output of $test (exit status $status)"
            grep -vE '^ok [0-9]+ - ' "$log" | sed 's/^/  | /'
            echo "  ----"
        fi
    } >"${log%.log}.shown"
    [ "$failed" -eq 0 ] || { head -n 1 "${log%.log}.shown"; tail -n +2 "${log%.log}.shown" | tail -n 20; } \
        >"${log%.log}.failed"
    cat "${log%.log}.shown"
}

if [ "${1:-}" = --one ]; then
    run_one "$2" "$3"
    exit 0
fi
if [ $# -eq 0 ]; then
    echo "usage: tools/run-tests.sh TEST..." >&2
    exit 2
fi

results=$(mktemp -d) || exit 1
trap 'rm -rf "$results"' EXIT
# As many at a time as there are cores: most tests are one thread, and those of the others sleep when they wait.
jobs=${TEST_JOBS:-$(nproc)}
printf '%s\0' "$@" | xargs -0 -P "$jobs" -n 1 "$0" --one "$results"

# A log of an hour is read from its end.
if [ $# -gt 1 ] && compgen -G "$results/*.failed" >/dev/null; then
    echo
    echo "what failed:"
    cat "$results"/*.failed
    echo
fi

ran=$(cat "$results"/*.count 2>/dev/null)
for test in "$@"; do
    cut -d ' ' -f 4- <<<"$ran" | grep -qxF -- "$test" || echo "no result of ${test#build/}: FAILED"
done

awk -v n_tests=$# '
    NF > 0 { n_ran++; passed += $1; failed += $2; skipped += $3 }
    END {
        failed += n_tests - n_ran # no result came back
        printf "%d passed, %d failed", passed, failed
        if (skipped > 0)
            printf ", %d skipped", skipped
        print ""
        exit failed > 0
    }' <<<"$ran"
