#!/usr/bin/env bash
# Rank 0 holds the lock for all ranks of a run.  A signal to one rank in an evaluation makes all abandon it.
#
# usage: [SNUG=./snug] tests/ranks/test_stop.sh       The output is TAP.
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/ranks.bash"
export OMP_WAIT_POLICY=passive
step_of() { sed -n 's/.*"step": \([0-9]*\).*/\1/p' "$1/state.json" 2>/dev/null; }

launched=
launch() { # FLAGS...: two ranks; rank 0 is ${pids[0]}, rank 1 ${pids[1]}
    "$first" -n 2 "$snug" train "$@" --threads 1 >launched.out 2>&1 &
    launched=$!
}
find_ranks() { # the processes of snug, from /proc
    local pid
    pids=()
    for pid in $(pids_below $launched); do
        [ "$(readlink "/proc/$pid/exe")" != "$snug" ] || pids[$(rank_of "$pid")]=$pid
    done
    [ ${#pids[@]} -eq 2 ]
}
until_saved() { # DIR [STEP]
    until [ "$(step_of "$1")" = "${2:-$(step_of "$1")}" ] && [ -e "$1/state.json" ] || ! kill -0 $launched 2>/dev/null; do :; done
}

# ---- the lock -------------------------------------------------------------------------------------------

small="mlp:16-32-10 --batch 4 --eval-every -1"
# shellcheck disable=SC2086
launch $small --quiet --save-every 1 --steps 1000000 --out shared
until_saved shared
check "two ranks train" find_ranks
holder="process ${pids[0]} on $(uname -n) is training in this folder"
# shellcheck disable=SC2086
check "two more are refused, all with one line" refuses "$holder" 2 $small --steps 2 --out shared
# shellcheck disable=SC2086
check "two that would go on with it are refused" refuses "$holder" 2 $small --steps 2 --out shared --resume
# shellcheck disable=SC2086
check "one is refused" refuses "$holder" 1 $small --steps 2 --out shared
check "the first two are still there" kill -0 "${pids[0]}" "${pids[1]}"
kill -9 "${pids[@]}"
wait $launched 2>/dev/null
check "killed, they leave a run that goes on" alone shared mlp:16-32-10 --resume --steps $(($(step_of shared) + 1))
check "and no lock" test ! -e shared/.lock

# ---- an evaluation ----------------------------------------------------------------------------------------

mkdir tiny
echo '{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 6, "n_head": 4}' >tiny/config.json
awk 'BEGIN { for (i = 0; i < 200000; i++) print "line " i " of a text that is long enough to train on" }' >text
abandoned() { # RANK FLAGS...: the signal goes to this rank only
    local rank=$1 status=0
    shift
    rm -rf stopped
    launch tiny text --batch 2 --micro-batch 1 --eval-batches 1000000 --steps 3 --out stopped "$@"
    until_saved stopped 3
    find_ranks || { cat launched.out; return 1; }
    kill -TERM "${pids[rank]}"
    wait $launched || status=$?
    [ $status -eq 0 ] && ! grep -q val_loss stopped/metrics.jsonl && [ "$(wc -l <stopped/metrics.jsonl)" -eq 3 ] ||
        { echo "# status $status"; cat launched.out; return 1; }
}
for how in ddp zero3; do
    for rank in 0 1; do
        # shellcheck disable=SC2046
        check "$how: SIGTERM to rank $rank ends the evaluation of both" abandoned $rank $(flags_of $how)
    done
done
check "1f1b: SIGTERM to rank 0 ends the evaluation of both" abandoned 0 --pipeline 1f1b
check "it goes on from there" alone stopped tiny --resume --steps 4 --zero 0
finish
