#!/usr/bin/env bash
# Compares snug with torch.compile on decoders of today, on one GPU: speed and memory in use, alternating.
# usage: bench/cuda_decoders.sh [ROW...]      ROW: 0.5b, 1.5b, 7b, lora; all by default
#
# ROUNDS=3: how many alternations.  STEPS=12: measured steps of each program.  PEER=none: runs only snug.
# The peer is bench/torch_decoder.py: torch.compile, PyTorch's fastest attention, and a chunked LM head with its loss.
set -u
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-3} steps=${STEPS:-12} peer=${PEER:-bench/torch_decoder.py}
low="--master none --state-bits 16"

# compare SIZE BATCH SEQ MODE RECIPE...
compare() {
    local size=$1 batch=$2 seq=$3 mode=$4 recipe recipes=()
    shift 4
    for recipe in "$@"; do
        recipes+=("--recipe=$recipe")
    done
    python3 bench/cuda_peers.py "$peer" --size "$size" --batch "$batch" --seq "$seq" --mode "$mode" \
        --rounds "$rounds" --steps "$steps" "${recipes[@]}"
}

[ $# -gt 0 ] || set -- 0.5b 1.5b 7b lora
for row in "$@"; do
    case $row in
    0.5b) compare qwen2.5-0.5b 16 1024 compile+chunked "--micro-batch 8 --checkpoint cheap" "--micro-batch 8" "$low" ;;
    1.5b) compare qwen2.5-1.5b 16 1024 compile+chunked "--micro-batch 8 --checkpoint cheap" "$low --micro-batch 8" ;;
    7b) compare qwen2.5-7b 8 1024 compile+bf16+chunked "$low --micro-batch 4" ;;
    lora) compare llama-3.1-8b 2 2048 compile+lora+chunked "--lora 16 --lora-on all --micro-batch 1" \
        "--lora 16 --lora-on all --micro-batch 1 --checkpoint auto --memory 16900M" ;;
    *)
        echo "$0: no row $row; there are 0.5b, 1.5b, 7b and lora" >&2
        exit 2
        ;;
    esac
done
