#!/usr/bin/env bash
# Pipelines: every schedule has the losses of one rank; micro-batches in flight; runs resumed with other stages; stages
# with several ranks each.  test_pipedream.c checks PipeDream's results.
# Small: a narrower model, and every schedule on 3 ranks only, in 4 steps.
#
# parts: 1 (small), 3 (full)
#
# usage: [SNUG=./snug] tests/ranks/test_pipelines.sh       The output is TAP.
# shellcheck source=tests/support/size.bash
. "$(dirname "$0")/../support/size.bash"
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/ranks.bash"

make_net
net=$(sized net gpt-nano)

# ---- every schedule ----------------------------------------------------------------------------

if next_is_ours; then
    n_steps=$(sized 4 20)
    nano="$net --batch 12 --micro-batch 3 --seq 2 --steps $n_steps"
    # shellcheck disable=SC2086
    check "$net on one rank" alone nano1 $nano
    for n_ranks in $(sized 3 "2 3 4"); do
        for how in gpipe 1f1b naive; do
            dir=nano-$how-$n_ranks
            # shellcheck disable=SC2086
            check "$net, $how on $n_ranks ranks" ranks "$first" $n_ranks $dir $nano --pipeline $how
            check "$how on $n_ranks: the losses of one rank" near $dir nano1 "$n_steps"
            check "$how on $n_ranks: allocated as planned on every rank" as_planned $dir $n_ranks
            [ $how = gpipe ] || check "$how on $n_ranks: the bits of gpipe" same $dir nano-gpipe-$n_ranks
            [ $how = gpipe ] || rm -rf $dir
        done
        rm -rf nano-gpipe-$n_ranks
    done
fi

# ---- with other things ---------------------------------------------------------------------------

if next_is_ours; then
    # Every stage has several ranks, dropout masks are those of one rank, both MPIs give the same result.
    mixed="$net --batch 8 --micro-batch 1 --seq 4 --steps 3 --dropout 0.1"
    # shellcheck disable=SC2086
    check "dropout on one rank" alone mixed1 $mixed
    mixes() { # DIR LAUNCHER FLAGS...
        local dir=$1 launcher=$2
        shift 2
        # shellcheck disable=SC2086
        ranks "$launcher" 4 "$dir" $mixed "$@" && near "$dir" mixed1 3 && as_planned "$dir" 4
    }
    check "4 ranks in 2 stages, ddp" mixes mixed-ddp "$first" --pipeline 1f1b --stages 2
    check "4 ranks in 2 stages, zero 1" mixes mixed-zero "$first" --pipeline gpipe --stages 2 --zero 1
    check "zero 1 in stages: the bits of ddp" same mixed-zero mixed-ddp
    check "all recomputed" mixes mixed-all "$first" --pipeline 1f1b --stages 2 --checkpoint all
    check "all recomputed: the same bits" same mixed-all mixed-ddp
    if [ -n "$openmpi" ] && [ -n "$mpich" ]; then
        check "the other MPI" mixes mixed-mpich "$mpich" --pipeline 1f1b --stages 2
        check "both MPIs give the same bits" same mixed-mpich mixed-ddp
    fi
    rm -rf mixed*

    # B recomputes with the weights that F read, including the token table.
    dream="$net --batch 6 --micro-batch 1 --seq 4 --steps 2 --pipeline pipedream --lr 1e-2"
    # shellcheck disable=SC2086
    check "pipedream in 3 stages" ranks "$first" 3 dream $dream
    # shellcheck disable=SC2086
    check "pipedream, all recomputed" ranks "$first" 3 dream-all $dream --checkpoint all
    check "pipedream, all recomputed: the same bits" same dream-all dream
    check "pipedream: allocated as planned" as_planned dream-all 3
    rm -rf dream*

    # A network without tokens; 16 bits.
    small="mlp:784-40-30-10 --batch 8 --micro-batch 2 --steps 4"
    # shellcheck disable=SC2086
    check "an mlp on one rank" alone small1 $small
    # shellcheck disable=SC2086
    check "an mlp in 3 stages" ranks "$first" 3 small3 $small --pipeline gpipe
    check "an mlp in 3 stages: the losses of one rank" near small3 small1 4
    for precision in bf16 fp16; do
        flags="$net --batch 4 --micro-batch 1 --seq 4 --steps 2 --precision $precision"
        # shellcheck disable=SC2086
        check "$precision in 2 stages" ranks "$first" 2 half $flags --pipeline 1f1b
        check "$precision: allocated as planned" as_planned half 2
        rm -rf half
    done
fi
if next_is_ours; then
    # Held-out data runs through the stages.
    validation() { grep -o '"val_loss": [^,]*' "$1.out"; }
    evaluates() { # RANKS FLAGS...: the same validation loss as one rank
        local n_ranks=$1
        shift
        local flags="$net $validated --seq 8 --steps 3 --eval-batches 4 --threads 1 --json --quiet"
        # shellcheck disable=SC2086
        "$snug" train $flags "$@" >eval1.out 2>eval1.err &&
            timeout 100 "$first" -n "$n_ranks" "$snug" train $flags "$@" >evals.out 2>evals.err &&
            paste <(validation eval1) <(validation evals) |
            awk '{ d = $2 - $4; if (d < 0) d = -d; ok = $2 > 0 && d <= 1e-5 * $2 } END { exit !ok }' ||
            { cat evals.out evals.err; return 1; }
    }
    validated="--batch 4 --micro-batch 1"
    check "validation through 3 stages" evaluates 3 --pipeline 1f1b
    check "validation through PipeDream's" evaluates 2 --pipeline pipedream --lr 0
    seq 1000 | head -c 600 >counts.txt # its last tenth is 7 windows of 8: one micro-batch of 4, then 2 and 1
    validated="counts.txt --batch 12 --micro-batch 4"
    check "validation of 7 windows through 3 stages" evaluates 3 --pipeline 1f1b
    names_nonfinite() { # all stages stop, and one message names the tensor, whichever stage holds it
        timeout 100 "$first" -n 3 "$snug" train $net counts.txt --seq 8 --batch 12 --micro-batch 4 --steps 1 \
            --threads 1 --optimizer sgd --lr 1e38 --quiet --pipeline 1f1b >nan.out 2>nan.err && return 1
        grep -q 'held-out data is not finite; first non-finite tensor: "' nan.err || { cat nan.err; return 1; }
    }
    check "a validation loss through 3 stages that is not finite" names_nonfinite

    # ---- going on with other stages --------------------------------------------------------------------

    whole="$net --batch 4 --micro-batch 1 --seq 2"
    # shellcheck disable=SC2086
    check "8 steps on one rank" alone whole $whole --steps 8
    # shellcheck disable=SC2086
    check "2 steps in 2 stages" ranks "$first" 2 parts $whole --steps 2 --pipeline 1f1b
    check "4 steps in 4" ranks "$first" 4 parts $net --resume --steps 4
    check "5 steps in 3, gpipe" ranks "$first" 3 parts $net --resume --steps 5 --pipeline gpipe
    check "7 steps, no stages but zero 3" ranks "$first" 4 parts $net --resume --steps 7 --pipeline none --zero 3
    check "8 steps, alone" alone parts $net --resume --steps 8 --zero 0
    check "the losses of the run that was never touched" near parts whole 8
    rm -rf parts whole

    # ---- what is planned -------------------------------------------------------------------------------

    of_rank() { # RANK KIND FLAGS...: bytes
        local rank=$1 kind=$2
        shift 2
        "$snug" plan gpt-nano --micro-batch 1 --seq 64 --each --json "$@" | tr '{' '\n' |
            sed -nE "s/^\"rank\": $rank,.*\"$kind\": ([0-9]+).*/\1/p"
    }
    grows() { # SCHEDULE LEAST MOST: activations at the peak of rank 1 of 4, 16 micro-batches relative to 8
        local few many
        few=$(of_rank 1 activations --ranks 4 --pipeline "$1" --batch 8)
        many=$(of_rank 1 activations --ranks 4 --pipeline "$1" --batch 16)
        awk -v few="$few" -v many="$many" -v least="$2" -v most="$3" \
            'BEGIN { exit !(few > 0 && many >= least * few && many <= most * few) }' || { echo "$few $many"; return 1; }
    }
    check "gpipe: activations grow with the micro-batches" grows gpipe 1.8 2.2
    check "1f1b: they do not" grows 1f1b 1 1.01
    stashes() { # at stage s of 4, 4 - s versions of the weights that backward reads
        local rank plain stashed
        for rank in 1 2 3; do
            plain=$(of_rank $rank parameters --ranks 4 --pipeline 1f1b --batch 8)
            stashed=$(of_rank $rank parameters --ranks 4 --pipeline pipedream --batch 8)
            awk -v plain="$plain" -v stashed="$stashed" -v n=$((4 - rank)) \
                'BEGIN { exit !(stashed <= n * plain && stashed >= (n - 0.06) * plain) }' ||
                { echo "$rank: $plain $stashed"; return 1; }
        done
    }
    check "pipedream: p - s versions at stage s" stashes
    bubble() { # SHARE FLAGS...
        local share=$1
        shift
        "$snug" plan gpt-nano --seq 64 --micro-batch 1 --json "$@" | grep -q "\"bubble\": $share"
    }
    check "the bubble of 4 stages and 8 micro-batches" bubble 0.272727 --ranks 4 --pipeline 1f1b --batch 8
    check "and of 2 stages, 16 each" bubble 0.058823 --ranks 8 --stages 2 --pipeline gpipe --batch 64
    check "one at a time" bubble 0.75 --ranks 4 --pipeline naive --batch 8
    fullest() {
        local most
        most=$("$snug" plan gpt-nano --micro-batch 1 --seq 64 --ranks 4 --pipeline 1f1b --batch 8 --each --json |
            grep -oE '"total": [0-9]+' | sort -t: -nk2 | tail -1)
        "$snug" plan gpt-nano --micro-batch 1 --seq 64 --ranks 4 --pipeline 1f1b --batch 8 --json | grep -q "$most"
    }
    check "the plan is that of the fullest" fullest
    soon() { (ulimit -t 2 && exec "$snug" plan psi:1e12 --precision fp16 --ranks 1024 --pipeline 1f1b "$@" --quiet >soon.out); } # CPU seconds: the machine may be busy
    check "a trillion parameters on 1,024 ranks in 2 s of CPU" soon --stages 64 --zero 1
    check "and in as many stages" soon

    # ---- mistakes ----------------------------------------------------------------------------------------

    wrong() { # WORDS FLAGS...: of a plan
        local words=$1
        shift
        if "$snug" plan gpt-nano "$@" >wrong.out 2>&1; then return 1; fi
        [ "$(wc -l <wrong.out)" -eq 1 ] && grep -q -- "$words" wrong.out || { cat wrong.out; return 1; }
    }
    two="--ranks 2 --pipeline 1f1b --batch 4 --micro-batch 1"
    check "more stages than blocks" wrong "gpt-nano has 8 blocks" --ranks 9 --pipeline naive --batch 9
    check "stages that do not divide the ranks" wrong "choose a divisor" --ranks 4 --stages 3 --pipeline gpipe
    check "too few micro-batches" wrong "choose a smaller --micro-batch" --ranks 4 --pipeline gpipe --batch 4
    check "stages without a pipeline" wrong "has no effect without --pipeline" --stages 2
    check "pipedream with several ranks a stage" wrong "one rank for each stage" --ranks 4 --stages 2 --pipeline pipedream
    for flags in "--update in-backward" "--offload states" "--lora 4" "--zero 2" "--zero 3" "--parallel ps"; do
        # shellcheck disable=SC2086
        check "$flags with a pipeline" wrong "${flags%% *}.* does not work with --pipeline 1f1b" $two $flags
    done
    # shellcheck disable=SC2086
    check "averages of weights" wrong "leave --pipeline out" $two --optimizer lawa-ema
    check "other schedules on other ranks" refuses "this rank has pipeline = 1f1b" 1 gpt-nano --batch 4 --micro-batch 1 \
        --pipeline gpipe --steps 2 : -n 1 "$snug" train gpt-nano --batch 4 --micro-batch 1 --pipeline 1f1b --steps 2

    # shellcheck disable=SC2086
    check "a rank in the middle is killed" killed 1 model.safetensors "--batch 6 --micro-batch 1 --pipeline 1f1b" $patient
    check "the checkpoint is whole" goes_on
fi

finish
