#!/usr/bin/env bash
# The runner must count what passes, fails, crashes and is skipped, and its status must say so.
set -eu
cd "$(dirname "$0")/../.."
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
# In the place of mktemp: no room for the output of a test.
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
for stray in .count .shown .failed; do
    if [ -e "$stray" ]; then echo "the runner left $stray"; exit 1; fi
done
