#!/usr/bin/env bash
# The runner must count tests that pass, fail, crash and are skipped, and return the right status.  It must stamp only
# what passed, with the files that it read.  The longest test runs first.
set -eu
cd "$(dirname "$0")/../.."
# Another runner may have started this one.
unset SNUG SNUG_TEST_SIZE SNUG_TEST_PART TEST_STAMPS TEST_AGAIN TEST_BUDGET TEST_BEGIN TEST_NAME TEST_JOBS
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

make_test() { # NAME BODY
    printf '#!/bin/sh\n%s\n' "$2" >"$tmp/$1"
    chmod +x "$tmp/$1"
}
make_test plain 'true'
make_test broken 'echo words of the failure; exit 3'
make_test skipping 'echo "skip: no such device"; exit 77'
make_test tap 'printf "1..3\nok 1 - a\nskip: not here\nnot ok 2 # SKIP b\nok 3 - c\n"'
make_test tap_bad 'printf "1..2\nok 1 - a\nnot ok 2 - b\n"; exit 1'
make_test tap_crash 'printf "1..4\nok 1 - a\n"; kill -SEGV $$'
make_test tap_leak 'printf "1..1\nok 1 - a\n"; exit 23'
make_test slow 'sleep 30'
make_test caching '[ -z "$(ls -A "$XDG_CACHE_HOME")" ] && echo 1 >"$XDG_CACHE_HOME/rates.json"'
make_test caching_too "exec $tmp/caching"
# A stand-in for mktemp that fails for the output of a test.
mkdir "$tmp/full"
make_test full/mktemp 'case "$*" in *.log) echo "mktemp: no space" >&2; exit 1 ;; esac
PATH=${PATH#*:} exec mktemp "$@"'

# expect LAST_LINE STATUS WORDS TEST...
expect() {
    want=$1 want_status=$2 words=$3
    shift 3
    status=0
    said=$(TEST_SECONDS=1 tools/run-tests.sh "${@/#/$tmp/}") || status=$?
    if [ "$(tail -n 1 <<<"$said")" != "$want" ] || [ "$status" -ne "$want_status" ] ||
        [[ $said != *"$words"* ]]; then
        printf 'for %s: status %d and\n%s\ninstead of %d and: %s\n' "$*" "$status" "$said" \
            "$want_status" "$want"
        exit 1
    fi
}
expect '1 passed, 0 failed' 0 'plain' plain
expect '0 passed, 1 failed' 1 'words of the failure' broken
expect '1 passed, 1 failed' 1 'words of the failure' broken plain
expect '1 passed, 1 failed' 1 'what failed:' broken plain
expect '3 passed, 0 failed, 2 skipped' 0 'skip: no such device' plain skipping tap
expect '1 passed, 1 failed' 1 'not ok 2 - b' tap_bad
expect '1 passed, 3 failed' 1 'tap_crash' tap_crash
expect '1 passed, 1 failed' 1 'exit status 23' tap_leak
expect '0 passed, 1 failed' 1 'stopped after 1 s' slow
expect '0 passed, 1 failed' 1 'absent' absent
expect '2 passed, 0 failed' 0 'caching_too' caching caching_too
PATH=$tmp/full:$PATH
expect '0 passed, 2 failed' 1 "plain: FAILED" plain broken
expect '0 passed, 1 failed' 1 "not run: no file" plain
PATH=${PATH#*:}

# ---- parts ----------------------------------------------------------------------------------

printf '#!/bin/sh\n# parts: 1 (small), 3 (full)\necho "part=$SNUG_TEST_PART" >>%s/parts\n' "$tmp" >"$tmp/long"
chmod +x "$tmp/long"
TEST_JOBS=1 expect '3 passed, 0 failed' 0 'long@2/3' long
if [ "$(sort "$tmp/parts" | paste -sd ' ')" != 'part=1/3 part=2/3 part=3/3' ]; then
    echo "parts that ran: $(cat "$tmp/parts")"
    exit 1
fi
SNUG_TEST_SIZE=small expect '1 passed, 0 failed' 0 'long ' long
status=0
said=$(SNUG_TEST_SIZE=tiny tools/run-tests.sh "$tmp/plain" 2>&1) || status=$?
if [ $status -ne 2 ]; then echo "a size that is not there: status $status, $said"; exit 1; fi
# Every item is in exactly one part (test_size.c: in C, too).
for part in 1/3 2/3 3/3; do
    (export SNUG_TEST_PART=$part && . tests/support/size.bash >"$tmp/size" &&
        for i in $(seq 0 9); do if part_has "$i"; then echo "$i"; fi; done)
done >"$tmp/items"
if [ "$(sort -n "$tmp/items" | paste -sd ' ')" != "$(seq -s ' ' 0 9)" ]; then
    echo "items of three parts: $(cat "$tmp/items")"
    exit 1
fi
# The size is read in one place, which also prints it: stamps rely on that.
strays=$(grep -rlE 'SNUG_TEST_SIZE' tests --include='*.c' --include='*.h' --include='*.sh' --include='*.bash' |
    grep -vE '^tests/(support/size\.(c|h|bash)|tools/(run_tests\.sh|test_size\.c))$' || true)
if [ -n "$strays" ]; then echo "read the size through tests/support/size.h: $strays"; exit 1; fi

# ---- stamps: a tree of its own --------------------------------------------------------------

run_tests=$PWD/tools/run-tests.sh
tree=$tmp/tree
mkdir -p "$tree/tests/a" "$tree/build/release/tests/a" "$tree/docs"
cd "$tree"
export SNUG=$tree/snug TEST_STAMPS=$tree/stamps TEST_SECONDS=20
echo 1 >snug
echo 1 >tests/a/one.case
echo 1 >docs/page.md
make_in_tree() { # PATH BODY: counts its runs
    printf '#!/bin/sh\necho "${SNUG_TEST_SIZE}" >>%s\n%s\n' "$tmp/runs-${1##*/}" "$2" >"$tree/$1"
    chmod +x "$tree/$1"
}
runs_of() { wc -l <"$tmp/runs-${1##*/}"; }
# after WHAT PATH RUNS [STATUS]: runs the test again; it must then have run RUNS times in all
after() {
    local status=0
    said=$("$run_tests" "$2") || status=$?
    if [ "$(runs_of "$2")" -ne "$3" ] || [ $status -ne "${4:-0}" ]; then
        printf 'after %s %s ran %d times, not %d, and the status is %d:\n%s\n' "$1" "$2" "$(runs_of "$2")" "$3" \
            $status "$said"
        exit 1
    fi
}
program=build/release/tests/a/test_one
script=tests/a/one.sh
touch tests/a/test_one.c
make_in_tree $program 'printf "1..2\nok 1 - a\nok 2 - b\n"'
make_in_tree $script 'true'
for test in $program $script; do
    after "nothing" $test 1
    after "a pass" $test 1
    SNUG_TEST_SIZE=small after "another size, which it does not read" $test 1
    TEST_AGAIN=1 after "TEST_AGAIN" $test 2
    echo "# other" >>$test
    after "a change of itself" $test 3
    echo 2 >>snug
    after "a change of the program" $test 4
    echo 2 >>tests/a/one.case
    after "a change of a case" $test 5
    SNUG_KEY=1 after "a variable of the environment" $test 6
    after "it is gone" $test 7
    after "all that" $test 7
done
if [ "$("$run_tests" $program $script | tail -n 1)" != '3 passed, 0 failed' ]; then
    echo "what passed before is not in the sum"
    exit 1
fi
echo 2 >>docs/page.md
after "a change of a page, which no program reads" $program 8
after "a change of a page, which scripts may read" $script 8
echo 'fopen("docs/page.md")' >>tests/a/test_one.c
after "its source names the pages" $program 9
echo 3 >>docs/page.md
after "a change of a page that its source names" $program 10

make_in_tree tests/a/sized.sh 'echo "# size: $SNUG_TEST_SIZE"'
SNUG_TEST_SIZE=small after "nothing" tests/a/sized.sh 1
after "the other size, which it reads" tests/a/sized.sh 2
SNUG_TEST_SIZE=small after "both sizes" tests/a/sized.sh 2
after "both sizes" tests/a/sized.sh 2

# A test that did not pass has no stamp.
for body in 'exit 1' 'kill -SEGV $$' 'echo "skip: not here"; exit 77' 'printf "1..2\nok 1 - a\n"' \
    'printf "1..1\nskip: not here\nok 1 # SKIP a\n"' 'printf "skip: a part of it\n1..1\nok 1 - a\n"'; do
    make_in_tree tests/a/bad.sh "$body"
    rm -f "$tmp/runs-bad.sh"
    status=1
    case $body in *skip:*) status=0 ;; esac
    after "$body" tests/a/bad.sh 1 $status
    after "$body" tests/a/bad.sh 2 $status
done
# A stamp does not hide a later failure.
make_in_tree tests/a/turns.sh 'true'
after "nothing" tests/a/turns.sh 1
make_in_tree tests/a/turns.sh 'exit 1'
after "a change for the worse" tests/a/turns.sh 2 1
after "a failure" tests/a/turns.sh 3 1
# Files that change while the tests run invalidate the result, even if they are changed back.
cp snug before
make_in_tree tests/a/writes.sh "echo 3 >>$tree/snug"
after "nothing" tests/a/writes.sh 1
cp before snug
after "a change while it ran" tests/a/writes.sh 2
cp before snug

# ---- the longest first ----------------------------------------------------------------------

unset TEST_STAMPS
for name in short middle longest; do make_in_tree tests/a/$name.sh "echo $name >>$tmp/order"; done
printf '%s\n' '3 any tests/a/middle.sh' '2 any tests/a/short.sh' '0.5 small tests/a/longest.sh' \
    '40 full tests/a/longest.sh' >tests/seconds
TEST_JOBS=1 "$run_tests" tests/a/short.sh tests/a/middle.sh tests/a/longest.sh >"$tmp/said"
SNUG_TEST_SIZE=small TEST_JOBS=1 "$run_tests" tests/a/short.sh tests/a/middle.sh tests/a/longest.sh >"$tmp/said"
if [ "$(paste -sd ' ' "$tmp/order")" != 'longest middle short middle short longest' ]; then
    echo "the order was: $(paste -sd ' ' "$tmp/order")"
    exit 1
fi
# Their last duration counts more than the durations of other machines.
mkdir stamps-of-order
echo '9 any tests/a/short.sh' >stamps-of-order/seconds
rm "$tmp/order"
TEST_STAMPS=stamps-of-order TEST_AGAIN=1 TEST_JOBS=1 "$run_tests" tests/a/short.sh tests/a/middle.sh >"$tmp/said"
if [ "$(paste -sd ' ' "$tmp/order")" != 'short middle' ]; then echo "the order was: $(paste -sd ' ' "$tmp/order")"; exit 1; fi
if ! grep -q '^[0-9.]* any tests/a/short.sh$' stamps-of-order/seconds || grep -q '^9 ' stamps-of-order/seconds; then
    echo "seconds that were kept: $(cat stamps-of-order/seconds)"
    exit 1
fi

# ---- the budget -------------------------------------------------------------------------------

said=$(TEST_BUDGET=100 TEST_NAME='make test' TEST_BEGIN=$(($(date +%s) - 40)) "$run_tests" tests/a/short.sh | tail -n 1)
if [[ $said != 'make test: 4'?' s of 100 s (builds 4'?' s, tests '* ]]; then echo "the budget: $said"; exit 1; fi
said=$(TEST_BUDGET=10 TEST_NAME='make test' TEST_BEGIN=$(($(date +%s) - 40)) "$run_tests" tests/a/short.sh)
if [[ $said != *' s over its budget'*'tests/a/short.sh' ]]; then echo "over the budget: $said"; exit 1; fi
cd "$tmp"
for stray in .count .shown .failed; do
    if [ -e "$stray" ]; then echo "the runner left $stray"; exit 1; fi
done
