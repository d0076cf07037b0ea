#!/usr/bin/env bash
# Ranks on emulated GPUs: two that share one and communicate through the host, and three with one each and an
# emulated NCCL.  Checks the losses against one rank, planned = allocated on every rank, and the reported transport.
# Pipelines in both ways.
#
# usage: [SNUG=./snug] tests/cuda/ranks.sh       The output is TAP.
# shellcheck source=tests/ranks/ranks.bash
. "$(dirname "$0")/../ranks/ranks.bash"
plugin=$(dirname "$snug")/build/release/libsnug_cuda_emulated.so
[ -r "$plugin" ] || { echo "skip: no $plugin"; exit 77; }
export SNUG_CUDA_PLUGIN=$plugin

mkdir tiny
echo '{"model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}' \
    >tiny/config.json
says() { grep -qF "\"transport\": \"$2\"" "$1.out" || { cat "$1.out"; return 1; }; }
planned_on_all() { # DIR RANKS: like as_planned, but ignores the GPU number
    sed -E 's/, "gpu": [0-9]+\}/}/g' "$1.out" >"$1.plain.out" && as_planned "$1.plain" "$2"
}
on_gpus() { # DIR GPU...: of rank 0, 1...
    [ "$(grep -oE '"gpu": [0-9]+' "$1.out" | cut -d' ' -f2 | paste -sd' ')" = "${*:2}" ]
}

host="MPI through host memory: ranks 0 and 1 share a GPU"
small="mlp:7-5-3 --batch 12 --micro-batch 2 --steps 4 --device cuda"
# shellcheck disable=SC2086
check "a small model on one GPU" alone small1 $small
for how in ddp ps zero1 zero2 zero3; do
    # shellcheck disable=SC2046,SC2086
    check "2 ranks on one GPU, $how" ranks "$first" 2 host-$how $small $(flags_of $how)
    check "2 ranks on one GPU, $how: the losses of one" near host-$how small1 4
    check "2 ranks on one GPU, $how: planned is allocated" planned_on_all host-$how 2
    check "2 ranks on one GPU, $how: which way" says host-$how "$host"
    # shellcheck disable=SC2046,SC2086
    SNUG_EMULATED_GPUS=3 check "3 ranks with NCCL, $how" ranks "$first" 3 nccl-$how $small $(flags_of $how)
    check "3 ranks with NCCL, $how: the losses of one" near nccl-$how small1 4
    check "3 ranks with NCCL, $how: planned is allocated" planned_on_all nccl-$how 3
    check "3 ranks with NCCL, $how: which way" says nccl-$how "NCCL 2.0.0"
done
check "one GPU for all" on_gpus host-ddp 0 0
check "one for each" on_gpus nccl-ddp 0 1 2
check "through the host ddp and zero 1 have the same bits" same host-zero1 host-ddp
check "through the host zero 2 and 3 have the same bits" same host-zero2 host-zero3

# Attention, several buckets, an evaluation that gathers weights.
gpt="tiny --batch 4 --steps 3 --device cuda"
# shellcheck disable=SC2086
check "a tiny GPT-2 on one GPU" alone gpt1 $gpt
# shellcheck disable=SC2086
check "a tiny GPT-2, zero 3 on 2 ranks" ranks "$first" 2 gpt2 $gpt --zero 3
check "a tiny GPT-2, zero 3: the losses of one" near gpt2 gpt1 3
# shellcheck disable=SC2086
SNUG_EMULATED_GPUS=2 check "a tiny GPT-2, zero 3 with NCCL" ranks "$first" 2 gpt3 $gpt --zero 3
check "a tiny GPT-2, zero 3 with NCCL: the losses of one" near gpt3 gpt1 3

# ---- pipelines ---------------------------------------------------------------------------------

# A table on both ends, and dropout masks that differ by micro-batch, with both transports.
staged() { # TITLE DIR BASE GPUS RANKS FLAGS...
    local title=$1 dir=$2 base=$3 gpus=$4 n_ranks=$5 way=$host
    shift 5
    [ "$gpus" -eq 1 ] || way="NCCL 2.0.0"
    SNUG_EMULATED_GPUS=$gpus check "$title" ranks "$first" "$n_ranks" "$dir" "$@"
    check "$title: the losses of $base" near "$dir" "$base" 3
    check "$title: planned is allocated" planned_on_all "$dir" "$n_ranks"
    check "$title: which way" says "$dir" "$way"
}
layers="tiny --batch 4 --micro-batch 1 --steps 3 --dropout 0.1"
# shellcheck disable=SC2086
check "layers on one GPU" alone layers1 $layers --device cuda
for gpus in 1 4; do
    for how in naive gpipe 1f1b; do
        # shellcheck disable=SC2086
        staged "$how on $gpus GPUs" $how-$gpus layers1 $gpus 2 $layers --device cuda --pipeline $how
        [ $how = naive ] || check "$how on $gpus GPUs: the bits of naive" same $how-$gpus naive-$gpus
    done
    # shellcheck disable=SC2086
    staged "2 stages, ddp in each, on $gpus GPUs" stages-ddp-$gpus layers1 $gpus 4 $layers --device cuda --pipeline 1f1b --stages 2
    # shellcheck disable=SC2086
    staged "2 stages, zero 1 in each, on $gpus GPUs" stages-zero-$gpus layers1 $gpus 4 $layers --device cuda \
        --pipeline gpipe --stages 2 --zero 1
done
check "through the host zero 1 in stages has the bits of ddp" same stages-zero-1 stages-ddp-1

# Versions of weights, compared with the CPU; with 3 stages the table bypasses the middle one.
dream="$layers --pipeline pipedream --lr 1e-2"
for n_ranks in 2 3; do
    # shellcheck disable=SC2086
    check "pipedream in $n_ranks stages on the CPU" ranks "$first" $n_ranks dream-$n_ranks $dream
    for gpus in 1 $n_ranks; do
        # shellcheck disable=SC2086
        staged "pipedream in $n_ranks stages on $gpus GPUs" dream-$n_ranks-$gpus dream-$n_ranks $gpus $n_ranks $dream --device cuda
    done
done

# Held-out data runs through the stages; the source of a loss that is not finite is searched on all of them.
validation() { grep -o '"val_loss": [^,]*' "$1.out"; }
evaluates() { # FLAGS...
    local device flags="tiny --batch 4 --micro-batch 1 --steps 2 --eval-batches 4 --threads 1 --json --quiet"
    for device in cpu cuda; do
        # shellcheck disable=SC2086
        timeout 100 "$first" -n 3 "$snug" train $flags "$@" --device $device >eval-$device.out 2>eval.err || { cat eval.err; return 1; }
    done
    paste <(validation eval-cpu) <(validation eval-cuda) |
        awk '{ d = $2 - $4; if (d < 0) d = -d; ok = $2 > 0 && d <= 1e-5 * $2 } END { exit !ok }' || { cat eval-*.out; return 1; }
}
diverges() { refuses "first non-finite tensor" 3 tiny --batch 4 --micro-batch 1 --steps 4 --lr 1e38 --optimizer sgd --clip 0 \
    --pipeline 1f1b --device cuda; }
for gpus in 1 3; do
    SNUG_EMULATED_GPUS=$gpus check "validation through 3 stages on $gpus GPUs" evaluates --pipeline 1f1b
    SNUG_EMULATED_GPUS=$gpus check "validation through PipeDream's on $gpus GPUs" evaluates --pipeline pipedream
    SNUG_EMULATED_GPUS=$gpus check "a loss that is not finite on $gpus GPUs" diverges
done
rm -rf naive-* gpipe-* 1f1b-* stages-* dream-*

# ---- what is missing, and what is asked for ----------------------------------------------------

# shellcheck disable=SC2086
SNUG_EMULATED_GPUS=2 SNUG_EMULATED_NCCL=missing check "without NCCL" ranks "$first" 2 none $small
check "without NCCL it goes through the host and says why" says none \
    "MPI through host memory: rank 0 has no NCCL, hidden by SNUG_EMULATED_NCCL"
# shellcheck disable=SC2086
SNUG_EMULATED_GPUS=2 SNUG_NCCL=off check "NCCL that is not wanted" ranks "$first" 2 off $small
check "NCCL that is not wanted is not used" says off "MPI through host memory: SNUG_NCCL is off"
# shellcheck disable=SC2086
SNUG_NCCL=force check "one rank that exchanges with itself" alone force $small --zero 2
check "one rank that exchanges with itself: NCCL" says force "NCCL 2.0.0"
check "one rank that exchanges with itself: the losses of one that does not" near force small1 4
# shellcheck disable=SC2086
refused() { ! SNUG_NCCL=force ranks "$first" 2 refused $small && grep -q "SNUG_NCCL=force, but NCCL cannot be used: ranks 0 and 1 share a GPU" refused.err; }
check "NCCL that is wanted where it cannot be" refused
version() { "$snug" --version | grep -qF "$1"; }
check "--version: NCCL" version "NCCL 2.0.0"
SNUG_EMULATED_NCCL=missing check "--version: without NCCL, in one line" version \
    "without NCCL, hidden by SNUG_EMULATED_NCCL: ranks on GPUs communicate through the host"

# The script for machines with a GPU, with a smaller model and without MPI.
script() {
    WITHOUT_MPI=1 MODEL=$work/tiny SEQ=16 STEPS=3 SNUG=$snug "$(dirname "$snug")/tools/test-cuda-ranks.sh" >script.out 2>&1 ||
        { cat script.out; return 1; }
}
check "tools/test-cuda-ranks.sh" script
finish
