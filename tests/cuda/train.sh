#!/usr/bin/env bash
# Training runs on the emulated CUDA backend, compared with the CPU: the same losses, and planned = allocated.
set -u
cd "$(dirname "$0")/../.."
snug=${SNUG:-./snug}
plugin=build/release/libsnug_cuda_emulated.so
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
[ -r "$plugin" ] || { echo "skip: no $plugin"; exit 77; }
export SNUG_CUDA_PLUGIN=$PWD/$plugin OMP_NUM_THREADS=1
n_failed=0

# losses NAME FLAGS...: writes one loss per line to NAME; planned and allocated bytes must be equal
losses() {
    local name=$1
    shift
    # a few batches suffice to test the evaluation: emulated, it takes longer than the training
    "$snug" train "$@" --threads 1 --eval-batches 4 --json --out "$tmp/run" >"$tmp/json" 2>"$tmp/log" || {
        echo "$*: $(tail -1 "$tmp/log")"
        return 1
    }
    sed -E 's/.*"loss": ([^,]*),.*/\1/' "$tmp/run/metrics.jsonl" >"$tmp/$name"
    rm -rf "$tmp/run"
    tail -1 "$tmp/json" | sed -nE 's/.*"planned_bytes": ([0-9]+), "allocated_bytes": ([0-9]+),.*/\1 \2/p' |
        awk '{ n++; if ($1 != $2) bad = 1 } END { if (bad || n != 1) print "planned is not allocated"; exit bad || n != 1 }'
}

# same TOLERANCE FLAGS...: the relative difference of every loss is at most this
same() {
    local tolerance=$1
    shift
    losses cpu "$@" --device cpu && losses cuda "$@" --device cuda &&
        paste "$tmp/cpu" "$tmp/cuda" | awk -v most="$tolerance" -v what="$*" '
            { gap = ($1 > $2 ? $1 - $2 : $2 - $1) / $1; if (!(gap <= worst)) worst = gap; n++ }
            END { printf "%-78s %d losses, largest difference %.1e\n", what, n, worst; exit !(n > 1 && worst <= most) }' ||
        { echo "FAILED: $*"; n_failed=$((n_failed + 1)); }
}

mkdir "$tmp/tiny"
echo '{"model_type": "gpt2", "vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}' \
    >"$tmp/tiny/config.json"
tiny=$tmp/tiny
mkdir "$tmp/llama"
cat >"$tmp/llama/config.json" <<'CONFIG'
{"model_type": "mistral", "vocab_size": 64, "max_position_embeddings": 16, "hidden_size": 48, "intermediate_size": 64,
 "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "sliding_window": 5, "rms_norm_eps": 1e-6}
CONFIG
llama=$tmp/llama # with grouped heads and a window
mlp="mlp:20-32-10"
same 1e-5 $mlp --batch 8 --steps 5
same 1e-5 $mlp --batch 8 --micro-batch 2 --steps 4 --update in-backward
same 1e-5 $mlp --batch 8 --steps 4 --optimizer sgd --dropout 0.2
same 1e-2 $mlp --batch 8 --steps 4 --precision bf16
same 1e-4 $tiny --batch 4 --steps 20
same 1e-4 $tiny --batch 6 --micro-batch 2 --steps 4 --dropout 0.1
same 1e-4 $tiny --batch 4 --micro-batch 2 --steps 4 --update in-backward
same 1e-4 $tiny --batch 2 --steps 4 --checkpoint all
same 1e-4 $tiny --batch 2 --steps 4 --offload states+activations
same 1e-4 $tiny --batch 2 --steps 4 --lora 2
same 1e-2 $tiny --batch 2 --steps 4 --precision bf16 --state-bits 8 --master none
same 1e-2 $tiny --batch 2 --steps 4 --precision fp16
same 1e-2 $tiny --batch 16 --steps 3 --precision bf16 --dropout 0.1
# The evaluation, without dropout, would use cuDNN's attention, whose workspace is larger than this arena.
same 1e-2 $tiny --batch 2 --steps 3 --precision bf16 --dropout 0.1
same 1e-2 $tiny --batch 2 --steps 3 --precision bf16 --deterministic no
same 1e-4 $llama --batch 4 --steps 10
same 1e-4 $llama --batch 2 --steps 4 --checkpoint all --lora 2
same 1e-2 $llama --batch 2 --steps 3 --precision bf16 --dropout 0.1
same 1e-4 cnn:1x12x12,classes=4 --batch 4 --steps 3
same 1e-4 $tiny --batch 2 --steps 4 --optimizer muon
same 1e-4 $tiny --batch 2 --steps 4 --optimizer adafactor

# --deterministic no reaches attention: its gradient has different bits then.
losses fixed $tiny --batch 2 --steps 4 --precision bf16 --device cuda
losses again $tiny --batch 2 --steps 4 --precision bf16 --device cuda --deterministic yes
losses any $tiny --batch 2 --steps 4 --precision bf16 --device cuda --deterministic no
cmp -s "$tmp/fixed" "$tmp/again" && ! cmp -s "$tmp/fixed" "$tmp/any" &&
    "$snug" plan "$tiny" --device cuda --deterministic no | head -1 | grep -q 'nondeterministic sums' &&
    ! "$snug" plan "$tiny" --device cpu --deterministic no | head -1 | grep -q 'deterministic' ||
    { echo "FAILED: the order of sums"; n_failed=$((n_failed + 1)); }

# Three of the four biases in each of two layers are summed by the op that computes their dy (pass bias_sums).
n_summed=$("$snug" plan "$tiny" --device cuda --batch 2 --dump last |
    grep -E ' = (linear_grad_x|layernorm_grad) ' | grep -c 'c_[a-z]*\.bias = ')
echo "$n_summed biases summed up where dy is made"
[ "$n_summed" -eq 6 ] || { echo "FAILED: not 6"; n_failed=$((n_failed + 1)); }

# Without a GPU: a refusal in one line.
SNUG_EMULATED_GPUS=0 "$snug" train $mlp --batch 2 --steps 1 --device cuda >"$tmp/none" 2>&1
status=$?
echo "no GPU: status $status, $(cat "$tmp/none")"
[ $status -eq 1 ] && [ "$(wc -l <"$tmp/none")" -eq 1 ] && grep -q 'found no GPU' "$tmp/none" ||
    { echo "FAILED"; n_failed=$((n_failed + 1)); }
echo "$n_failed failed"
[ "$n_failed" -eq 0 ]
