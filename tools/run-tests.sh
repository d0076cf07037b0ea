#!/usr/bin/env bash
# Runs test programs and scripts, longest first.  Prints a line per test and the full output of those that fail, and
# at the end the last lines of each failure again, the slowest tests, the totals, and the time against the budget.
# usage: tools/run-tests.sh TEST...      docs/testing.md explains how to write tests
#
#   SNUG_TEST_SIZE  small or full (default), for tests that have two sizes
#   TEST_JOBS       how many tests run at a time; default: the number of cores
#   TEST_SECONDS    time limit of one test; default 900
#   TEST_STAMPS     folder of stamps: a test that passed is skipped until something that it reads changes
#   TEST_AGAIN      1: ignore the stamps and run all
#   TEST_BUDGET     seconds that all may take, counted from TEST_BEGIN (date +%s); TEST_NAME: the name to report
#
# A test is a cmocka binary (its tests are counted) or any other program (one test, judged by its exit status).
# A test that is skipped gives the reason in a line that begins with "skip:"; a script skips with status 77.
# Each test gets an empty XDG_CACHE_HOME, so that rates measured on this machine change no estimate.
# The totals are `N passed, N failed`, and `, N skipped` if any were; the exit status is 1 if any failed.
#
# Parts: a test whose source has a line `parts: 1 (small), 4 (full)` runs as that many tests, PATH@1/4 and so on,
# with SNUG_TEST_PART=1/4.
#
# Stamps: DIR/TEST.SIZE holds a digest of everything that the test can read.  A test that prints `# size: small` gets
# a stamp for that size; a test that prints no size has none, and its stamp holds for all.  A test that failed,
# crashed or skipped something gets no stamp.
set -u
# Waiting threads sleep, because several tests share the cores.
export CMOCKA_MESSAGE_OUTPUT=TAP LC_ALL=C OMP_WAIT_POLICY=passive
# Data sets next to the checkout, if any; tests that need one are skipped without it.
if [ -z "${SNUG_DATA:-}" ] && [ -d "$(dirname "$0")/../../shared/data" ]; then
    SNUG_DATA=$(cd "$(dirname "$0")/../../shared/data" && pwd)
    export SNUG_DATA
fi
export SNUG_TEST_SIZE=${SNUG_TEST_SIZE:-full}
known_seconds=tests/seconds # durations for a clone that has not run the tests yet

# ---- what a test reads ------------------------------------------------------------------------------

# The file with the `parts:` line: the source of a program, or the script itself.
source_of() { # TEST
    local path=${1%@*}
    case $path in
    build/*/*) path=${path#build/*/}.c ;;
    esac
    [ -r "$path" ] && echo "$path" || echo "${1%@*}"
}

digest_of() { # FILE or FOLDER...: a missing file changes the digest once it appears
    find "$@" -type f -print0 2>/dev/null | sort -z | xargs -0 -r sha256sum -- | sha256sum | cut -d ' ' -f 1
}

# Digests that tests share, each computed once: KIND is program, script, cuda, docs or environment.
shared_inputs() { # KIND
    local snug=${SNUG:-./snug} folder
    folder=$(dirname "$snug")
    case $1 in
    program) # snug and its MPI plugins; cases and fixtures.  The test binary contains the library.
        digest_of "$snug" "$folder/libsnug_openmpi.so" "$folder/libsnug_mpich.so" \
            $(find tests -type f ! -name '*.[ch]' ! -name '*.sh' ! -name '*.bash' ! -path tests/seconds 2>/dev/null)
        ;;
    script) # those, and anything else in the tree
        digest_of "$snug" "$folder/libsnug_openmpi.so" "$folder/libsnug_mpich.so" "$folder/libsnug.so" \
            "$folder/libsnug.a" README.md Makefile docs include src tools examples .ci build/config.mk \
            $(find tests -type f ! -path tests/seconds 2>/dev/null)
        ;;
    cuda) digest_of "$folder/libsnug_cuda.so" build/release/libsnug_cuda_emulated.so ;;
    docs) digest_of README.md docs ;;
    environment) { env | grep -E '^(SNUG|OMP|TEST_SECONDS)' | grep -v '^SNUG_TEST_'; nproc; uname -m; cat "$0"; } | sha256sum ;;
    esac
}
inputs_of() { # TEST: a digest that changes if the result of the test could change
    local source kind=script
    source=$(source_of "$1")
    case $1 in build/*) kind=program ;; esac
    {
        echo "$1"
        sha256sum "${1%@*}"
        cat "$results/inputs.environment" "$results/inputs.$kind"
        ! grep -qiE 'cuda|--version' "$source" || cat "$results/inputs.cuda"
        ! grep -qE 'docs/|README' "$source" || cat "$results/inputs.docs"
    } 2>/dev/null | sha256sum | cut -d ' ' -f 1
}
digest_shared() { # FOLDER
    local kind
    for kind in program script cuda docs environment; do
        shared_inputs $kind >"$1/inputs.$kind"
    done
}
stamp_of() { # TEST SIZE
    echo "$TEST_STAMPS/$(tr '/' '_' <<<"$1").$2"
}

# ---- one test ---------------------------------------------------------------------------------------

# run_one RESULTS TEST: runs it, writes "passed failed skipped wall cpu size NAME" to a file, prints its line.
run_one() {
    local results=$1 test=$2 log took seconds cpu status passed failed skipped planned size verdict=ok inputs=
    if ! log=$(mktemp "$results/XXXXXXXX.log") || ! mkdir "${log%.log}.cache"; then
        printf '  %-46s not run: no file for its output in %s; is the disk full?  FAILED\n' "${test#build/}" "$results"
        return
    fi
    [ -z "${TEST_STAMPS:-}" ] || inputs=$(inputs_of "$test")
    export XDG_CACHE_HOME="${log%.log}.cache"
    [ "$test" = "${test%@*}" ] || export SNUG_TEST_PART=${test##*@}
    TIMEFORMAT='%R %U %S'
    took=$({ time timeout --kill-after=10 "${TEST_SECONDS:-900}" "${test%@*}" >"$log" 2>&1 </dev/null; } 2>&1
        echo "status $?")
    status=${took##*status }
    read -r seconds cpu < <(grep -E '^[0-9.]+ [0-9.]+ [0-9.]+$' <<<"$took" | awk '{ printf "%.2f %.2f\n", $1, $2 + $3 }')
    grep -vE '^[0-9.]+ [0-9.]+ [0-9.]+$|^status ' <<<"$took" >>"$log" # the shell's message about a crash
    if grep -qE '^1\.\.[0-9]+$' "$log"; then
        planned=$(sed -nE 's/^1\.\.([0-9]+)$/\1/p' "$log" | awk '{ n += $1 } END { print n + 0 }')
        passed=$(grep -cE '^ok [0-9]' "$log")
        skipped=$(grep -cE '^(not )?ok [0-9]+ # SKIP' "$log")
        failed=$((planned - passed - skipped)) # tests that did not run because of a crash are failures
        if [ "$failed" -le 0 ]; then
            failed=0
            [ "$status" -eq 0 ] || failed=1 # all passed, but the exit status is not 0: a leak, for example
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
    size=$(sed -nE 's/^# size: (small|full)$/\1/p' "$log" | sort -u | paste -sd+)
    [ "$skipped" -eq 0 ] || verdict='ok, some skipped'
    [ "$failed" -eq 0 ] || verdict=FAILED
    [ "$status" -ne 124 ] && [ "$status" -ne 137 ] ||
        echo "run-tests: stopped after ${TEST_SECONDS:-900} s" >>"$log"
    echo "$passed $failed $skipped $seconds $cpu ${size:-any} $test" >"${log%.log}.count"
    if [ -n "$inputs" ] && [ "$failed" -eq 0 ] && [ "$skipped" -eq 0 ] && ! grep -q '^skip:' "$log"; then
        echo "$(stamp_of "$test" "${size:-any}") $inputs $passed $test" >"${log%.log}.stamp"
    fi
    {
        printf '  %-46s %4d tests %8s s  %s\n' "${test#build/}" $((passed + failed + skipped)) \
            "$seconds" "$verdict${size:+ ($size)}"
        grep -E '^skip:' "$log" | sort | uniq -c | sed -E 's/^ +[0-9]+/     /'
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
case $SNUG_TEST_SIZE in
small | full) ;;
*)
    echo "run-tests: SNUG_TEST_SIZE is small or full, not \"$SNUG_TEST_SIZE\"" >&2
    exit 2
    ;;
esac

# ---- all of them ------------------------------------------------------------------------------------

results=$(mktemp -d) || exit 1
begin=$(date +%s)

# A stamp is valid only if nothing that the test reads has changed since the test began.
keep_stamps() {
    local file was passed test n_changed=0
    mkdir "$results/end" && digest_shared "$results/end" && cp "$results"/end/inputs.* "$results" || return
    while read -r file was passed test; do
        if [ "$(inputs_of "$test")" = "$was" ]; then
            echo "$was $passed" >"$file"
        else
            n_changed=$((n_changed + 1))
        fi
    done < <(cat "$results"/*.stamp 2>/dev/null)
    [ $n_changed -eq 0 ] || echo "files changed while $n_changed tests ran: these get no stamps"
}
keep_seconds() { # durations, for the order of the next run
    cat "$results"/*.count "$TEST_STAMPS/seconds" 2>/dev/null |
        awk 'NF == 7 && !seen[$6, $7]++ { print $4, $6, $7; next } NF == 3 && !seen[$2, $3]++' |
        sort -k 3,3 -k 2,2 >"$results/seconds" && cp "$results/seconds" "$TEST_STAMPS/seconds"
}
at_the_end() {
    trap - EXIT INT TERM
    [ -z "${TEST_STAMPS:-}" ] || { keep_stamps; keep_seconds; }
    rm -rf "$results"
}
trap at_the_end EXIT
trap 'exit 130' INT TERM

tests=()
for test in "$@"; do
    n_parts=$(sed -nE "s/^[ #*]*parts:.* ([0-9]+) \\($SNUG_TEST_SIZE\\).*/\\1/p" "$(source_of "$test")" 2>/dev/null | head -n 1)
    if [ "${n_parts:-1}" -gt 1 ] && [ "$test" = "${test%@*}" ]; then
        for ((i = 1; i <= n_parts; i++)); do tests+=("$test@$i/$n_parts"); done
    else
        tests+=("$test")
    fi
done

# Skip tests that passed with the same inputs.
todo=()
n_before=0 passed_before=0
if [ -n "${TEST_STAMPS:-}" ]; then
    mkdir -p "$TEST_STAMPS" && digest_shared "$results" || exit 1
    for test in "${tests[@]}"; do
        known=
        if [ "${TEST_AGAIN:-0}" != 1 ]; then
            for size in any "$SNUG_TEST_SIZE"; do
                stamp=$(stamp_of "$test" $size)
                [ -r "$stamp" ] || continue
                read -r was passed <"$stamp"
                [ "$was" = "$(inputs_of "$test")" ] && known=$passed
            done
        fi
        if [ -n "$known" ]; then
            n_before=$((n_before + 1)) passed_before=$((passed_before + known))
        else
            rm -f "$(stamp_of "$test" any)" "$(stamp_of "$test" "$SNUG_TEST_SIZE")"
            todo+=("$test")
        fi
    done
    [ $n_before -eq 0 ] ||
        echo "  $n_before of ${#tests[@]} passed before with the same files: not run again (TEST_AGAIN=1 runs them)"
else
    todo=("${tests[@]}")
fi

# Longest first, by the last known duration; 5 s if unknown.
longest_first() {
    {
        cat ${TEST_STAMPS:+"$TEST_STAMPS/seconds"} "$known_seconds" 2>/dev/null
        printf '%s\n' "$@"
    } | awk -v size="$SNUG_TEST_SIZE" '
        NF == 3 { if (($2 == size || $2 == "any") && !($3 in took)) took[$3] = $1; next }
        {
            release = $0 # the sanitizers make a test about three times slower
            sub(/^build\/asan\//, "build/release/", release)
            print ($0 in took) ? took[$0] : (release in took) ? 3 * took[release] : 5, $0
        }' | sort -s -k 1,1nr | cut -d ' ' -f 2-
}
# One test per core: most tests have one thread, and waiting threads of the others sleep.
jobs=${TEST_JOBS:-$(nproc)}
[ ${#todo[@]} -eq 0 ] ||
    longest_first "${todo[@]}" | tr '\n' '\0' | xargs -0 -P "$jobs" -n 1 "$0" --one "$results"

# Repeat the failures at the end of a long log.
if [ ${#todo[@]} -gt 1 ] && compgen -G "$results/*.failed" >/dev/null; then
    echo
    echo "what failed:"
    cat "$results"/*.failed
    echo
fi

ran=$(cat "$results"/*.count 2>/dev/null)
for test in "${todo[@]}"; do
    cut -d ' ' -f 7- <<<"$ran" | grep -qxF -- "$test" || echo "no result of ${test#build/}: FAILED"
done
if [ ${#todo[@]} -gt 10 ]; then
    echo "the slowest, in seconds (of CPU):"
    sort -k 4,4nr <<<"$ran" | head -n 10 | awk '{ sub(/^build\//, "", $7); printf "  %7.1f  (%.1f)  %s\n", $4, $5, $7 }'
fi

awk -v n_tests=${#todo[@]} -v before=$passed_before '
    NF > 0 { n_ran++; passed += $1; failed += $2; skipped += $3 }
    END {
        failed += n_tests - n_ran # a test without a result has failed
        printf "%d passed, %d failed", passed + before, failed
        if (skipped > 0)
            printf ", %d skipped", skipped
        print ""
        exit failed > 0
    }' <<<"$ran"
status=$?

# The time; if it is over the budget, also the slowest tests, as many as must shrink to meet it.
if [ -n "${TEST_BUDGET:-}" ]; then
    now=$(date +%s)
    awk -v began="${TEST_BEGIN:-$begin}" -v tests_began="$begin" -v now="$now" -v budget="$TEST_BUDGET" -v jobs="$jobs" \
        -v name="${TEST_NAME:-tests}" '
        { cpu += $5; took[NR] = $4; test[NR] = $7 }
        END {
            seconds = now - began
            printf "%s: %d s of %d s (builds %d s, tests %d s, which used %d s of CPU)\n", name, seconds, budget,
                tests_began - began, now - tests_began, cpu
            over = (seconds - budget) * jobs
            if (over <= 0) exit
            printf "%s is %d s over its budget.", name, seconds - budget
            if (now - tests_began > 30 && cpu < 0.6 * jobs * (now - tests_began))
                printf "  The machine was busy: the tests had %.1f of %d cores.", cpu / (now - tests_began), jobs
            print "\nReduce the small size of these (docs/testing.md):"
            for (i = 1; i <= NR && i <= 10 && over > 0; i++) { print "  " took[i] " s  " test[i]; over -= took[i] }
        }' < <(sort -k 4,4nr <<<"$ran" | grep .)
fi
exit $status
