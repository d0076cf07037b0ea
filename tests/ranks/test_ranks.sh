#!/usr/bin/env bash
# Several ranks with small models: ragged shards, both MPIs, runs resumed with another number of ranks, mistakes that
# are reported once, ranks that are killed.  Small: a narrower model, fewer schemes, fewer kills.
#
# parts: 1 (small), 4 (full)
#
# usage: [SNUG=./snug] tests/ranks/test_ranks.sh       The output is TAP.
# shellcheck source=tests/support/size.bash
. "$(dirname "$0")/../support/size.bash"
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/ranks.bash"

make_net
net=$(sized net gpt-nano)

planned_of() { grep -oE '\{"planned_bytes": [0-9]+' "$1.out" | grep -oE '[0-9]+'; }

# ---- small models: ragged tensors, more ranks than elements, both MPIs -------------------------

small="mlp:7-5-3 --batch 12 --steps 6"
# shellcheck disable=SC2086
check "a small model on one rank" alone small1 $small
if next_is_ours; then
    for launcher in $openmpi $mpich; do
        for how in ddp ps zero1 zero2 zero3; do
            dir=small-$(basename "$launcher")-$how
            # shellcheck disable=SC2046,SC2086
            check "$(basename "$launcher"), $how on 4 ranks" ranks "$launcher" 4 $dir $small $(flags_of $how)
            check "$dir: the losses of one rank" near $dir small1 6
        done
    done
    both() { [ -z "$openmpi" ] || [ -z "$mpich" ] || same "small-$(basename "$openmpi")-$1" "small-$(basename "$mpich")-$1"; }
    check "both MPIs give the same bits" both zero3

    # Whole-matrix optimizers have an owner for each weight; quantized states are cut between quant blocks.  Coupled
    # decay reads the weights of the shard.
    for optimizer in "--optimizer muon" "--optimizer adafactor" "--state-bits 8 --precision bf16" \
        "--optimizer adam --weight-decay 0.1"; do
        flags="mlp:784-40-10 --batch 4 --steps 3 $optimizer"
        for how in $(sized "ddp zero2" "ddp zero1 zero2 zero3"); do
            # shellcheck disable=SC2046,SC2086
            check "$optimizer, $how" ranks "$first" 2 odd-$how $flags $(flags_of $how)
            [ $how = ddp ] || check "$optimizer, $how: the bits of ddp" same odd-$how odd-ddp
        done
        rm -rf odd-*
    done
fi
if next_is_ours; then
    # Weights from a folder: whole, in shards, in stages, or in the versions of PipeDream.
    mkdir base
    echo '{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32, "vocab_size": 64}' >base/config.json
    check "weights to start from" alone started base --batch 4 --steps 1
    from="started --batch 12 --micro-batch 2 --steps 1 --clip 0"
    # shellcheck disable=SC2086
    check "they are loaded by one rank" alone from1 $from
    for how in "--parallel ddp" "--parallel ps" "--zero 1" "--zero 2" "--zero 3" "--zero 1 --precision bf16" "--pipeline 1f1b" \
        "--pipeline pipedream"; do
        # shellcheck disable=SC2086
        check "they are loaded by 2 ranks with $how" ranks "$first" 2 from2 $from $how
        # bf16 rounds, and pipedream updates after each micro-batch
        case $how in *bf16 | *pipedream) ;; *) check "$how: the loss of one rank" near from2 from1 1 ;; esac
        rm -rf from2
    done

    # Rank 1 holds more than rank 0: reports and budgets refer to the rank with the highest peak.
    uneven="mlp:19-37-10 --batch 12 --clip 0 --zero 1 --optimizer adafactor"
    fullest() { # DIR: the summary, plan.json and snug plan have the bytes of rank 1, which exceed those of rank 0
        local told planned both
        told=$(sed -nE 's/.*"loss": [^,]*, "planned_bytes": ([0-9]+), "allocated_bytes": ([0-9]+),.*/\1 \2/p' "$1.out")
        both=$(planned_of "$1" | tr '\n' ' ')
        # shellcheck disable=SC2086
        planned=$("$snug" plan $uneven --threads 1 --ranks 2 --json | sed -nE 's/.*"total": ([0-9]+).*/\1/p')
        # shellcheck disable=SC2086
        [ "$told" = "$planned $planned" ] && [ "${both% }" = "${both%% *} $planned" ] && [ "${both%% *}" -lt "$planned" ] &&
            grep -q "\"total\": $planned" "$1/plan.json" || { echo "$told, $both, $planned"; return 1; }
    }
    # shellcheck disable=SC2086
    check "ranks that are not alike" ranks "$first" 2 uneven $uneven --steps 1
    check "the sum is that of the fullest rank" fullest uneven
    holds() { # PLAN...: its bytes plus the runtime are enough to plan and train; one byte less is refused
        local total runtime limit
        total=$("$snug" plan "$@" --threads 1 --ranks 2 --json | sed -nE 's/.*"total": ([0-9]+).*/\1/p')
        runtime=$("$snug" fit "$@" --threads 1 --ranks 2 --memory 1G --json | sed -nE 's/.*"runtime": ([0-9]+).*/\1/p')
        limit=$((total + runtime))
        "$snug" plan "$@" --threads 1 --ranks 2 --memory "$limit" --quiet >/dev/null || return 1
        "$snug" plan "$@" --threads 1 --ranks 2 --memory $((limit - 1)) --quiet >/dev/null 2>&1
        [ $? -eq 3 ] || return 1
        ranks "$first" 2 uneven "$@" --steps 1 --memory "$limit" || { cat uneven.err; return 1; }
        refuses "over the budget" 2 "$@" --steps 1 --memory $((limit - 1))
    }
    rm -rf uneven
    # shellcheck disable=SC2086
    check "a budget is held against the fullest rank" holds $uneven
    rm -rf uneven*

    # Micro-batches and dropout: the masks are those of one rank.
    flags="$net --batch 4 --micro-batch 1 --seq 4 --steps 2 --dropout 0.1"
    # shellcheck disable=SC2086
    check "dropout on one rank" alone drop1 $flags
    for how in ddp zero2; do
        # shellcheck disable=SC2046,SC2086
        check "dropout, $how" ranks "$first" 2 drop-$how $flags $(flags_of $how)
        check "dropout, $how: the losses of one rank" near drop-$how drop1 2
    done
    rm -rf drop*

    # Adapters, which have their own files.
    flags="$net --batch 4 --seq 4 --lora 2"
    # shellcheck disable=SC2086
    check "adapters on one rank" alone lora1 $flags --steps 3
    # shellcheck disable=SC2086
    check "adapters, zero 1 on 2 ranks" ranks "$first" 2 lora $flags --steps 2 --zero 1
    # shellcheck disable=SC2086
    check "adapters go on, alone" alone lora $net --resume --steps 3
    check "adapters: the losses of one rank" near lora lora1 3
    rm -rf lora*
fi
if next_is_ours; then
    # Updates in backward follow the reduction over ranks; offloaded states are those of a rank's shards.  With more
    # ranks than weights some have no update.
    saves() { # FLAGS WITH...: the same bits with and without them
        local flags=$1
        shift
        rm -rf plain with
        # shellcheck disable=SC2086
        ranks "$first" 2 plain $flags && ranks "$first" 2 with $flags "$@" && same with plain && as_planned with 2 &&
            cmp <(losses plain) <(losses with)
    }
    smaller() { # as `saves`, and every rank plans for less
        saves "$@" && paste <(planned_of plain) <(planned_of with) | awk '{ bad += $2 >= $1 } END { exit bad || NR != 2 }'
    }
    nano="$net --batch 4 --seq 4 --steps 2"
    for how in $(sized "ps zero1" "ddp ps zero1 zero2 zero3"); do
        flags="$nano $(flags_of $how)"
        [ $how = ps ] || check "in-backward, $how: the same bits in less memory" smaller "$flags" --update in-backward
        check "in-backward without clipping, $how" saves "$flags --clip 0" --update in-backward
        check "in-backward and micro-batches, $how" saves "$flags --clip 0 --micro-batch 1" --update in-backward
        check "states in the store, $how: the same bits" saves "$flags" --offload states
    done
    check "in-backward in fp16" saves "$nano --precision fp16" --update in-backward
    check "all of it" smaller "$nano --zero 1" --update in-backward --offload states+activations
    few="mlp:7-3 --batch 12 --steps 3 --zero 1 --optimizer adafactor"
    # shellcheck disable=SC2086
    check "more ranks than weights" ranks "$first" 4 few $few
    # shellcheck disable=SC2086
    check "more ranks than weights, in-backward" ranks "$first" 4 few-early $few --update in-backward
    check "more ranks than weights: the same bits" same few-early few
    check "a store, 2 steps of zero 1 on 2" ranks "$first" 2 stored mlp:7-5-3 --batch 12 --steps 2 --zero 1 --offload states
    check "and 2 more of ddp on 3" ranks "$first" 3 stored mlp:7-5-3 --resume --steps 4 --zero 0
    check "and 2 more alone" alone stored mlp:7-5-3 --resume --steps 6 --offload none
    check "the losses of one rank" near stored small1 6
    rm -rf plain with few* stored
fi

# ---- going on with other ranks ----------------------------------------------------------------

if next_is_ours; then
    # shellcheck disable=SC2086
    check "8 steps on one rank" alone whole mlp:7-5-3 --batch 12 --steps 8
    check "2 steps, zero 3 on 2 ranks" ranks "$first" 2 parts mlp:7-5-3 --batch 12 --steps 2 --zero 3
    check "4 steps, zero 2 on 4" ranks "$first" 4 parts mlp:7-5-3 --resume --steps 4 --zero 2
    check "6 steps, zero 1 on 3" ranks "$first" 3 parts mlp:7-5-3 --resume --steps 6 --zero 1
    check "8 steps, alone" alone parts mlp:7-5-3 --resume --steps 8
    check "the losses of the run that was never touched" near parts whole 8

    # ---- mistakes, told once ----------------------------------------------------------------------

    check "ranks that do not divide the batch" refuses "not divisible by the 3 ranks" 3 mlp:7-5-3 --batch 8
    check "ps and zero" refuses "choose one" 2 mlp:7-5-3 --batch 8 --parallel ps --zero 1
    check "a number of ranks that is not there" refuses "mpirun started 2" 2 mlp:7-5-3 --ranks 3
    check "another recipe" refuses "this rank has lr = 0.25, rank 0 has lr = 0.5" 1 mlp:7-5-3 --lr 0.5 --steps 2 \
        : -n 1 "$snug" train mlp:7-5-3 --lr 0.25 --steps 2
    for i in $(seq 300); do echo "line $i of a text"; done >text1
    for i in $(seq 301); do echo "line $i of a text"; done >text2
    check "other data" refuses "this rank has data = text2" 1 gpt-nano text1 --batch 2 --seq 4 --steps 2 \
        : -n 1 "$snug" train gpt-nano text2 --batch 2 --seq 4 --steps 2
    check "a model of another size" refuses "model = " 1 mlp:7-5-3 --batch 2 --steps 2 \
        : -n 1 "$snug" train mlp:7-6-3 --batch 2 --steps 2
    alone_with_ranks() { "$snug" train mlp:7-5-3 --ranks 2 2>&1 | grep -q "mpirun -n 2"; }
    check "ranks without mpirun" alone_with_ranks

    # ---- a rank that is killed, while all of them save ----------------------------------------------

    for rank in 0 1 2; do
        for file in $(sized "$([ $rank -eq 1 ] && echo model || echo optimizer)" "model optimizer"); do
            # shellcheck disable=SC2086
            check "rank $rank is killed, $file" killed $rank $file.safetensors "--batch 3 --zero 3" $patient
            check "the checkpoint is whole" goes_on
        done
    done
fi

finish
