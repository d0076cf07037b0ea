#!/usr/bin/env bash
# kill -9 at any time, then --resume: the weights must be, byte for byte, those of an undisturbed run, and
# metrics.jsonl must have every step once.
#
# A small model that saves every step is killed KILLS times at random.  A larger one is killed at three points of the
# save of step 20: when the new weights appear, when the new optimizer states appear, and right after the save.  /proc
# confirms each time that the killed process is snug itself.
#
# usage: [SNUG=./snug] [KILLS=50; 10 if small] [SEED=N] tests/fault/test_kill.sh       The output is TAP.
# shellcheck source=tests/support/size.bash
. "$(dirname "$0")/../support/size.bash"
# shellcheck source=tests/fault/fault.bash
. "$(dirname "$0")/fault.bash"
kills=${KILLS:-$(sized 10 50)}
seed=${SEED:-$((RANDOM * 32768 + RANDOM))}
# The metrics of each step, without its timing.
logged() { sed 's/, "tokens":.*//' "$1/metrics.jsonl"; }
same_log() { cmp <(logged "$1") <(logged "$2"); }

# Starts the program as $!: for a function in the background, $! would be a shell that waits for the program, and
# killing that shell would leave the program running.
start() { # COMMAND...
    "$@" >>log 2>&1 &
    pid=$!
    until is_snug || ! kill -0 "$pid" 2>/dev/null; do :; done # until it is no longer bash
}
n_killed=0
kill_it() { # sets died: whether the program died of this signal
    local was_snug=no status=0
    is_snug && was_snug=yes
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null || status=$?
    died=no
    if [ $was_snug = yes ] && [ $status -eq 137 ]; then
        died=yes
        n_killed=$((n_killed + 1))
    fi
    [ $status -eq 137 ] || [ $status -eq 0 ] || { echo "# exit status $status: $(tail -n 1 log)"; n_wrong=$((n_wrong + 1)); }
}
n_wrong=0

# ---- at random instants ---------------------------------------------------------------------------

echo "# KILLS=$kills SEED=$seed"
RANDOM=$seed
steps=400
small=("$snug" train mlp:16-32-10 --batch 4 --threads 1 --eval-every -1 --save-every 1 --steps $steps
    --schedule cosine --warmup 5 --quiet --out)
check "$steps steps of the small model straight" "${small[@]}" whole
again() { # resumes, or starts if nothing was saved
    if [ -e random/state.json ]; then start "${small[@]}" random --resume; else start "${small[@]}" random; fi
}
n_whole=0
whole() { same whole random && same_log whole random && each_step_once random $steps; }
spread=40 # ms; raised on a slow or busy machine until steps complete
while [ $n_killed -lt "$kills" ] && [ $n_wrong -eq 0 ]; do
    before=$(step_of random)
    again
    sleep "$(printf '0.%06d' $((RANDOM * 32768 % (spread * 1000) + RANDOM % 1000)))"
    kill_it
    if [ $died = no ] && [ $n_wrong -eq 0 ]; then # it had ended: all steps are done
        whole || n_wrong=$((n_wrong + 1))
        n_whole=$((n_whole + 1))
        rm -rf random
    elif [ "$(step_of random)" = "$before" ] && [ $spread -lt 900 ]; then
        spread=$((spread + 10))
    fi
done
echo "# $n_killed kills in $((n_whole + 1)) runs, the last at step $(step_of random), up to $spread ms after the start"
check "$kills kills at random instants: each was the program's, each run went on" \
    test $n_killed -eq "$kills" -a $n_wrong -eq 0
until [ "$(step_of random)" = $steps ] || [ $n_wrong -gt 0 ]; do
    again
    wait "$pid" || { n_wrong=1; tail -n 1 log; }
done
check "killed at random instants: the same bytes as the run that was not" same whole random
check "killed at random instants: the same losses" same_log whole random
check "killed at random instants: every step is in the log once" each_step_once random $steps
check "killed at random instants: nothing is left behind" test -z "$(find random -name '*.new' -o -name '*.tmp' -o -name .lock)"

# ---- at chosen instants ---------------------------------------------------------------------------

# A model whose save takes long enough to be hit: 10 million parameters, 130 MB on disk.
n_large=$(sized 24 40)
for i in $(seq 200); do echo "line $i of a text that is long enough to train on"; done >text
large=("$snug" train gpt-nano text --batch 2 --micro-batch 1 --seq 8 --threads 2 --eval-every -1 --schedule cosine
    --warmup 5 --steps $n_large --save-every 10 --quiet --out)
resume() { "$snug" train gpt-nano --out "$1" --resume --eval-every -1 --quiet; } # the run knows the rest

check "$n_large steps straight" "${large[@]}" straight
check "the same again" "${large[@]}" again
check "two runs with the same seed and threads are identical" same straight again
rm -rf again

hit=0
for instant in model.safetensors.new optimizer.safetensors.new state.json; do
    rm -rf killed
    start "${large[@]}" killed
    until [ "$(step_of killed)" = 10 ] || ! kill -0 "$pid" 2>/dev/null; do :; done
    if [ "$instant" = state.json ]; then
        until [ "$(step_of killed)" = 20 ] || ! kill -0 "$pid" 2>/dev/null; do :; done
    else # the save of step 10 may still be renaming: wait until it is done, then for the next
        while [ -e "killed/$instant" ] && kill -0 "$pid" 2>/dev/null; do :; done
        until [ -e "killed/$instant" ] || ! kill -0 "$pid" 2>/dev/null; do :; done
    fi
    kill_it
    [ $died = no ] || hit=$((hit + 1))
    check "killed at $instant: a checkpoint of step 10, 20 or later is there" \
        test "$(step_of killed)" -ge 10
    check "killed at $instant, at step $(step_of killed): resumes" resume killed
    check "killed at $instant: the same bytes as the run that was not" same straight killed
    check "killed at $instant: every step is in the log once" each_step_once killed "$n_large"
done
check "all three processes were the program, killed in the middle" test "$hit" -eq 3
echo "1..$n"
exit $failed
