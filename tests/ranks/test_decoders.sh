#!/usr/bin/env bash
# Decoders with RMSNorm, RoPE, SwiGLU and grouped heads on several ranks: every scheme and schedule has the losses of one
# rank, every rank allocates what is planned, runs go on with another number of ranks.  A tied head is on two stages.
# Small: 3 ranks, 4 steps.
#
# parts: 1 (small), 3 (full)
#
# usage: [SNUG=./snug] tests/ranks/test_decoders.sh       The output is TAP.
# shellcheck source=tests/support/size.bash
. "$(dirname "$0")/../support/size.bash"
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/ranks.bash"

decoder() { # FOLDER TYPE WIDTH HEADS KV_HEADS TIED MORE
    mkdir "$1"
    echo '{"model_type": "'"$2"'", "hidden_size": '"$3"', "intermediate_size": 72, "num_hidden_layers": 4,
        "num_attention_heads": '"$4"', "num_key_value_heads": '"$5"', "vocab_size": 101, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": '"$6"'
        '"${7:-}"'}' >"$1/config.json"
}
decoder tied qwen2 48 6 2 true
decoder untied qwen3 40 6 3 false ', "head_dim": 16'
decoder window mistral 48 3 1 false ', "sliding_window": 5'
n_steps=$(sized 4 12)

# ---- every scheme and schedule -------------------------------------------------------------------

if next_is_ours; then
    for net in tied untied; do
        flags="$net --batch 12 --seq 16 --steps $n_steps --lr 1e-3"
        # shellcheck disable=SC2086
        check "$net on one rank" alone $net-1 $flags
        for n_ranks in $(sized 3 "2 3"); do
            for how in ddp ps zero1 zero2 zero3; do
                dir=$net-$how
                # shellcheck disable=SC2046,SC2086
                check "$net, $how on $n_ranks ranks" ranks "$first" $n_ranks $dir $flags $(flags_of $how)
                check "$net, $how on $n_ranks: the losses of one rank" near $dir $net-1 "$n_steps"
                check "$net, $how on $n_ranks: allocated as planned on every rank" as_planned $dir "$n_ranks"
                case $how in zero*) check "$net, $how on $n_ranks: the bits of ddp" same $dir $net-ddp ;; esac
                [ $how = ddp ] || rm -rf $dir
            done
            rm -rf $net-ddp
        done
        rm -rf $net-*
    done
fi
if next_is_ours; then
    for net in tied untied; do
        flags="$net --batch 12 --micro-batch 2 --seq 16 --steps $n_steps --lr 1e-3"
        # shellcheck disable=SC2086
        check "$net in micro-batches on one rank" alone $net-1 $flags
        for n_ranks in $(sized 3 "2 3"); do
            for how in gpipe 1f1b naive; do
                dir=$net-$how
                # shellcheck disable=SC2086
                check "$net, $how on $n_ranks ranks" ranks "$first" $n_ranks $dir $flags --pipeline $how
                check "$net, $how on $n_ranks: the losses of one rank" near $dir $net-1 "$n_steps"
                check "$net, $how on $n_ranks: allocated as planned on every rank" as_planned $dir "$n_ranks"
                [ $how = gpipe ] || check "$net, $how on $n_ranks: the bits of gpipe" same $dir $net-gpipe
                [ $how = gpipe ] || rm -rf $dir
            done
            rm -rf $net-gpipe
            # shellcheck disable=SC2086
            check "$net, pipedream on $n_ranks" ranks "$first" $n_ranks $net-dream $flags --pipeline pipedream
            check "$net, pipedream on $n_ranks: allocated as planned" as_planned $net-dream "$n_ranks"
            # shellcheck disable=SC2086
            check "$net, pipedream on $n_ranks, all recomputed" ranks "$first" $n_ranks $net-again $flags \
                --pipeline pipedream --checkpoint all
            check "$net, pipedream on $n_ranks, all recomputed: the same bits" same $net-again $net-dream
            rm -rf $net-dream $net-again
        done
        rm -rf $net-1
    done
fi

# ---- with other things -----------------------------------------------------------------------------

if next_is_ours; then
    of() { # DIR BASE STEPS RANKS FLAGS...: allocated as planned; the losses of BASE
        local dir=$1 base=$2 steps=$3 n_ranks=$4
        shift 4
        ranks "$first" "$n_ranks" "$dir" "$@" || { cat "$dir.err"; return 1; }
        as_planned "$dir" "$n_ranks" && near "$dir" "$base" "$steps"
    }
    lora="untied --batch 12 --micro-batch 2 --seq 16 --steps 4 --lora 2 --lora-on all --lr 1e-2"
    # shellcheck disable=SC2086
    check "adapters on one rank" alone lora1 $lora
    for zero in 0 1 2; do
        # shellcheck disable=SC2086
        check "adapters, zero $zero" of lora-zero$zero lora1 4 3 $lora --parallel ddp --zero $zero
    done
    check "adapters, zero 1: the bits of ddp" same lora-zero1 lora-zero0
    check "adapters on one rank, 6 steps" alone lora1 untied --resume --steps 6
    check "adapters, zero 2 on 3 ranks, then alone" alone lora-zero2 untied --resume --steps 6 --zero 0
    check "adapters on 3 ranks, then alone: the losses of one rank" near lora-zero2 lora1 6
    rm -rf lora*

    mixed="window --batch 12 --micro-batch 1 --seq 16 --steps 3 --dropout 0.1"
    # shellcheck disable=SC2086
    check "a window and dropout on one rank" alone mixed1 $mixed
    # shellcheck disable=SC2086
    check "2 stages of 2 ranks, zero 1" of mixed mixed1 3 4 $mixed --pipeline 1f1b --stages 2 --zero 1
    # shellcheck disable=SC2086
    check "the same, cheap ops recomputed" of mixed-cheap mixed1 3 4 $mixed --pipeline 1f1b --stages 2 --zero 1 \
        --checkpoint cheap
    check "cheap ops recomputed: the same bits" same mixed-cheap mixed
    # shellcheck disable=SC2086
    check "zero 3, every layer recomputed" of mixed-zero mixed1 3 3 $mixed --zero 3 --checkpoint every:1
    rm -rf mixed*

    # ---- going on with other ranks ---------------------------------------------------------------------

    for net in tied untied; do
        whole="$net --batch 12 --micro-batch 2 --seq 16 --lr 1e-3 --precision fp32"
        # shellcheck disable=SC2086
        check "$net, 8 steps on one rank" alone whole $whole --steps 8
        # shellcheck disable=SC2086
        check "$net, 2 steps in 2 stages" ranks "$first" 2 parts $whole --steps 2 --pipeline 1f1b
        check "$net, 4 steps with zero 3 on 3" ranks "$first" 3 parts $net --resume --steps 4 --pipeline none --zero 3
        check "$net, 6 steps in 3 stages" ranks "$first" 3 parts $net --resume --steps 6 --zero 0 --pipeline gpipe
        check "$net, 8 steps, alone" alone parts $net --resume --steps 8 --pipeline none
        check "$net: the losses of the run that was never touched" near parts whole 8
        rm -rf parts whole
    done
fi

finish
