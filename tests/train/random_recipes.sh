#!/usr/bin/env bash
# Random recipes: every rank allocates what is planned, the process stays within plan and runtime, and train refuses
# what plan refuses, with the same status (several ranks: with the same words).
# usage: [RECIPES=20] [SEED=1] tests/train/random_recipes.sh
#
# RECIPES counts those that plan accepts; three of ten run on 2 or 3 ranks, if snug was built with an MPI:
#     plan's total = the most that a rank allocates; on each rank planned = allocated
#     peak of each rank (VmHWM) <= its allocation + the runtime that plan states
#     peak of the largest rank >= plan + runtime - (1% of the plan + 20 MB)
# Prints a summary and the largest distances at the end.  Each part has its share of the recipes and its own seed.
#
# parts: 1 (small), 2 (full)
set -u
snug=$(realpath "${SNUG:-$(dirname "$0")/../../snug}") || exit 1
# shellcheck source=tests/support/size.bash
. "$(dirname "$0")/../support/size.bash"
n_recipes=${RECIPES:-$(sized 6 $((20 / ${part#*/})))}
seed=$((${SEED:-1} + ${part%/*} - 1))
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMP_WAIT_POLICY=passive
launchers=()
for mpi in openmpi mpich; do
    if [ -f "$(dirname "$snug")/libsnug_$mpi.so" ] && command -v "mpirun.$mpi" >/dev/null; then
        launchers+=("mpirun.$mpi")
    fi
done
[ ${#launchers[@]} -gt 0 ] || echo "skip: no MPI is here that snug was built with: one rank each"

for width in 32 48; do
    mkdir gpt-$width
    echo '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": '$((width / 16))', "n_head": 2,
        "n_embd": '$width', "n_positions": 32, "vocab_size": 199, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5}' >gpt-$width/config.json
done
decoder() { # FAMILY WIDTH HEADS KV_HEADS TIED MORE...: the folder FAMILY
    mkdir "$1"
    echo '{"model_type": "'"${1%-*}"'", "hidden_size": '"$2"', "intermediate_size": 72, "num_hidden_layers": 3,
        "num_attention_heads": '"$3"', "num_key_value_heads": '"$4"', "vocab_size": 199, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": '"$5"'
        '"${6:-}"'}' >"$1/config.json"
}
decoder llama-wide 48 6 2 false ', "attention_bias": true'
decoder mistral-small 40 4 4 false ', "head_dim": 16, "sliding_window": 5'
decoder qwen2-small 48 3 1 true
decoder qwen3-small 40 6 3 true ', "head_dim": 16'
decoders="llama-wide mistral-small qwen2-small qwen3-small"

RANDOM=$seed
one_of() { local words=("$@"); picked=${words[RANDOM % $#]}; }
chance() { [ $((RANDOM % 100)) -lt "$1" ]; } # PERCENT
maybe() { # PERCENT FLAG VALUES...
    local percent=$1 flag=$2
    shift 2
    if chance "$percent"; then
        one_of "$@"
        flags+=("$flag" "$picked")
    fi
}

any_optimizer="adamw sgd momentum adagrad rmsprop adadelta amsgrad nadamw nadamp lion adafactor
    schedule-free-adamw schedule-free-prodigy adam adam-8bit adam-4bit lawa-queue lawa-ema amos muon"
draw() { # RANKS: sets n_ranks and flags
    flags=()
    # shellcheck disable=SC2086
    one_of mlp:40-64-10 mlp:784-256-10 mlp:33-17-65-5 cnn:1x16x16,classes=10 cnn:3x12x12,classes=7 gpt-32 gpt-48 \
        $decoders $decoders vit-tiny:3x32x32,classes=10 resnet18:3x16x16,classes=10
    local model=$picked
    flags+=("$model")
    n_ranks=$1
    flags+=(--batch 12)
    maybe 50 --micro-batch 1 2 3 4
    maybe 50 --precision bf16 fp16
    maybe 20 --master none
    case $model in # matrix roots of large matrices take minutes
    vit* | resnet* | mlp:784*) maybe 60 --optimizer $any_optimizer ;;
    *) maybe 60 --optimizer $any_optimizer soap shampoo caspr ;;
    esac
    case "${flags[*]}" in # compute roots within these steps, or their part of the plan would never be touched
    *shampoo* | *caspr*) flags+=(--opt every=1,start=1) ;;
    esac
    maybe 30 --state-bits 16 8 4
    maybe 40 --checkpoint cheap all sqrt every:1 every:2
    local way=
    if [ $n_ranks -gt 1 ]; then
        one_of ddp ps pipeline
        way=$picked
    fi
    if [ "$way" != pipeline ]; then # pipelines support none of these
        maybe 25 --update in-backward
        maybe 20 --offload states activations states+activations
        maybe 15 --lora 2 4
    fi
    case "${flags[*]}" in llama*--lora* | mistral*--lora* | qwen*--lora*) maybe 70 --lora-on all mlp q,v o,down ;; esac
    maybe 40 --clip 0 0.5
    maybe 15 --dropout 0.1
    maybe 15 --label-smoothing 0.1
    case $model in gpt* | llama* | mistral* | qwen*) maybe 50 --seq 8 17 32 ;; esac
    flags+=(--threads $((1 + RANDOM % 3)))
    [ $n_ranks -eq 1 ] || case $way in
    ddp) maybe 80 --zero 1 2 3 ;;
    ps) flags+=(--parallel ps) ;;
    pipeline) maybe 100 --pipeline naive gpipe 1f1b pipedream ;;
    esac
}

value() { sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p" "$1"; }
# A line per rank: planned, allocated, peak.
ranks_of() {
    awk -v RS='[{}]' '/"planned_bytes"/ {
        planned = allocated = peak = $0
        sub(/.*"planned_bytes": /, "", planned); sub(/.*"allocated_bytes": /, "", allocated)
        sub(/.*"measured_peak_bytes": /, "", peak)
        rows[++n] = planned + 0 " " allocated + 0 " " peak + 0
    } END { for (i = n > 1 ? 2 : 1; i <= n; i++) print rows[i] }' train.out # the first is that of the run, not of a rank
}

n=0 failed=0 n_accepted=0 n_refused=0 n_several=0
>distances
run_one() {
    local plan_status train_status launch=()
    "$snug" plan "${flags[@]}" --ranks $n_ranks --json >plan.out 2>plan.err
    plan_status=$?
    if [ $n_ranks -gt 1 ]; then
        one_of "${launchers[@]}"
        launch=("$picked" -n $n_ranks)
        # else it would kill the rank that is about to report the error, once another has failed
        if [ "$picked" = mpirun.mpich ]; then launch+=(-disable-auto-cleanup); fi
    fi
    local extra=(--steps 2 --eval-every -1)
    if chance 30; then extra=(--steps 2 --eval-batches 1); fi
    if chance 30; then extra+=(--out run-$n); fi
    timeout 200 "${launch[@]}" "$snug" train "${flags[@]}" "${extra[@]}" --json --quiet >train.out 2>train.err
    train_status=$?
    what="${launch[*]} ${flags[*]} ${extra[*]}"
    rm -rf run-$n
    if [ $plan_status -ne 0 ]; then
        n_refused=$((n_refused + 1))
        is_accepted=false
        why="plan ends with $plan_status, train with $train_status"
        if [ $n_ranks -eq 1 ]; then
            [ $plan_status -eq $train_status ]
        else # the launcher returns the status of the rank that ends first, which may not be the one that reports
            [ $train_status -ne 0 ] &&
                [ "$(sed -n 's/^snug: rank [0-9]*: //p' train.err)" = "$(sed 's/^snug: //' plan.err)" ]
        fi
        return
    fi
    n_accepted=$((n_accepted + 1))
    is_accepted=true
    [ $n_ranks -eq 1 ] || n_several=$((n_several + 1))
    [ $train_status -eq 0 ] || { why="plan accepts it, train ends with $train_status"; return 1; }
    why=$(ranks_of | awk -v total="$(value plan.out total)" -v runtime="$(value plan.out runtime)" -v ranks=$n_ranks '
        { if ($1 != $2) print "rank " NR - 1 " planned " $1 " and allocated " $2
          if ($3 > $2 + runtime) print "rank " NR - 1 " took " $3 - $2 " beside its plan, over the " runtime " of plan"
          if ($2 > most) { most = $2; peak = $3 }
          if ($2 + runtime - $3 < least || NR == 1) least = $2 + runtime - $3 }
        END { if (NR != ranks) print NR " ranks of " ranks
              if (most != total) print "plan has " total ", the fullest rank " most
              if (peak < total + runtime - (0.01 * total + 20e6)) print "the peak is " peak ", far below " total " and " runtime
              print least, total + runtime - peak >>"distances" }')
    [ -z "$why" ]
}

echo "# seed $seed, $n_recipes recipes"
while [ $n_accepted -lt "$n_recipes" ] && [ $n_refused -le $((2 * n_recipes)) ]; do
    case $((n_accepted % 10)) in # the same number of ranks until one is accepted
    2 | 5 | 8) ranks_wanted=$((2 + (n_accepted / 10 + n_accepted) % 2)) ;;
    *) ranks_wanted=1 ;;
    esac
    [ ${#launchers[@]} -gt 0 ] || ranks_wanted=1
    draw $ranks_wanted
    n=$((n + 1))
    if run_one; then
        if $is_accepted; then echo "ok $n - $what"; else echo "ok $n - refused: $what"; fi
    else
        echo "not ok $n - $what"
        echo "# seed $seed: $why" | tr '\n' ';'
        echo
        cat plan.err train.err | head -3
        failed=1
    fi
done
[ "$n_accepted" -eq "$n_recipes" ] || failed=1 # too few recipes are possible
echo "# $n recipes: $n_accepted run ($n_several on 2 or 3 ranks), $n_refused refused by plan and train"
awk 'NR == 1 { least = $1; most = $2 } { if ($1 < least) least = $1; if ($2 > most) most = $2 }
    END { printf "# peak below plan and runtime by %.1f to %.1f MB\n", least / 1e6, most / 1e6 }' distances
echo "1..$n"
exit $failed
