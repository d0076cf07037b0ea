#!/usr/bin/env bash
# kill -9 while a run saves, then --resume: the weights must be, byte for byte, those of a run that
# was never touched.  The process is killed at three instants of the save of step 20: as the new
# weights appear, as the new optimizer states appear, and right after the save.
#
# usage: [SNUG=./snug] tests/fault/test_kill.sh       The output is TAP.
set -u
snug=$(realpath "${SNUG:-$(dirname "$0")/../../snug}") || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    local name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; failed=1; fi
}
same() {
    cmp "$1/model.safetensors" "$2/model.safetensors" &&
        cmp "$1/optimizer.safetensors" "$2/optimizer.safetensors"
}
steps_of() { sed -n 's/.*"step": \([0-9]*\).*/\1/p' "$1/state.json" 2>/dev/null; }

# A model whose save takes long enough to be hit: 10 million parameters, 130 MB on disk.
for i in $(seq 200); do echo "line $i of a text that is long enough to train on"; done >text
recipe="--batch 2 --micro-batch 1 --seq 8 --threads 2 --eval-every -1 --schedule cosine --warmup 5"
train() { # DIR FLAGS...
    local dir=$1
    shift
    # shellcheck disable=SC2086
    "$snug" train gpt-nano text $recipe --steps 40 --save-every 10 --out "$dir" --quiet "$@"
}

resume() { "$snug" train gpt-nano --out "$1" --resume --quiet; } # the run knows the rest

check "40 steps straight" train straight
check "the same again" train again
check "two runs with the same seed and threads are identical" same straight again
rm -rf again

hit=0
for instant in model.safetensors.new optimizer.safetensors.new state.json; do
    rm -rf killed
    train killed >/dev/null 2>&1 &
    pid=$!
    until [ "$(steps_of killed)" = 10 ] || ! kill -0 "$pid" 2>/dev/null; do :; done
    if [ "$instant" = state.json ]; then
        until [ "$(steps_of killed)" = 20 ] || ! kill -0 "$pid" 2>/dev/null; do :; done
    else # the save of step 10 may still be renaming: wait until it is done, then for the next
        while [ -e "killed/$instant" ] && kill -0 "$pid" 2>/dev/null; do :; done
        until [ -e "killed/$instant" ] || ! kill -0 "$pid" 2>/dev/null; do :; done
    fi
    kill -9 "$pid" 2>/dev/null && hit=$((hit + 1))
    wait "$pid" 2>/dev/null
    check "killed at $instant: a checkpoint of step 10, 20 or later is there" \
        test "$(steps_of killed)" -ge 10
    check "killed at $instant, at step $(steps_of killed): resumes" resume killed
    check "killed at $instant: the same bytes as the run that was not" same straight killed
done
check "all three processes were killed in the middle" test "$hit" -eq 3
check "every step is in the log once" test "$(wc -l <killed/metrics.jsonl)" -eq 40
echo "1..$n"
exit $failed
