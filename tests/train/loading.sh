#!/bin/sh
# Loading weights needs no memory beyond the plan, also if the file is larger than the plan: tensors are read one by
# one, and converted in pieces.  The peak of a run from a folder is compared with that of a run from random weights.
set -eu
cd "$(dirname "$0")/../.."
snug=${SNUG:-./snug}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export OMP_WAIT_POLICY=passive

fail()
{
    echo "loading.sh: $*" >&2
    exit 1
}

value() # FILE KEY: of the last line
{
    tail -n 1 "$1" | sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p"
}

# 8.6M parameters, most of them in one tensor: 34 MB in fp32
mkdir "$dir/start"
cat >"$dir/start/config.json" <<'EOF'
{"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4,
 "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 29999, "tie_word_embeddings": true}
EOF
train() # MODEL NAME FLAGS...
{
    from=$1 name=$2
    shift 2
    "$snug" train "$from" --batch 1 --threads 1 --steps 1 --eval-every -1 --json --quiet "$@" >"$dir/$name.json" ||
        fail "train $from $*"
    [ "$(value "$dir/$name.json" planned_bytes)" = "$(value "$dir/$name.json" allocated_bytes)" ] ||
        fail "$name: planned is not allocated"
}
train "$dir/start" first --optimizer sgd --out "$dir/run"
[ "$(wc -c <"$dir/run/model.safetensors")" -gt 30000000 ] || fail 'the file is small'
mkdir "$dir/folder" # not a run: no state.json
cp "$dir/run/config.json" "$dir/run/model.safetensors" "$dir/folder"

for flags in '' '--precision bf16' '--precision bf16 --lora-base 8'; do
    # shellcheck disable=SC2086 # words
    train "$dir/start" random --lora 2 $flags
    for model in run folder; do
        # shellcheck disable=SC2086
        train "$dir/$model" loaded --lora 2 $flags
        more=$(($(value "$dir/loaded.json" measured_peak_bytes) - $(value "$dir/random.json" measured_peak_bytes)))
        echo "# $model, --lora 2 $flags: plan of $(value "$dir/loaded.json" planned_bytes) bytes, $more more to load"
        [ $more -lt 4000000 ] || fail "$model, --lora 2 $flags: loading took $more bytes more than random weights"
    done
done
echo 'loading.sh: ok'
