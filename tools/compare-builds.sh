#!/usr/bin/env bash
# Checks that two builds of snug train to the same bits, from the same plans, with the same kernels.
# usage: tools/compare-builds.sh BEFORE AFTER [plans] [cuda] [RECIPE-NUMBER...]      BEFORE, AFTER: built trees
#
# Trains 24 recipes (models x precisions x optimizers x techniques, reference and fast kernels, 1 and 2 ranks) for
# five steps with each build, from the same seeds.  Compares model.safetensors, optimizer.safetensors and the losses
# byte for byte, and the bytes that `plan --json` reports.  If both builds support `plan --dump kernels`, also
# compares the kernel and workspace of every op: for the CPU and, with "cuda", for --device cuda as well (a plan
# needs no GPU).  With "plans" it trains nothing.
# Prints a line per recipe and the count; the exit status is 1 if any differ.
set -u
if [ $# -lt 2 ]; then
    sed -n '3p' "$0" | sed 's/^# //' >&2
    exit 2
fi
before=$(cd "$1" && pwd) after=$(cd "$2" && pwd)
shift 2
only_plans=0 devices=cpu
while [ "${1-}" = plans ] || [ "${1-}" = cuda ]; do
    [ "$1" = plans ] && only_plans=1 || devices="cpu cuda"
    shift
done
export OMP_WAIT_POLICY=passive LC_ALL=C
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
seed=tests/train/fixtures
text="$dir/text.txt"
for i in $(seq 1 400); do echo "the quick brown fox $i jumps over the lazy dog $((i * 7919 % 1000))"; done >"$text"

# RANKS  MODEL  DATA  RECIPE
recipes=(
    "1 mlp random --batch 32"
    "1 mlp random --batch 32 --optimizer sgd --lr 0.1 --kernels reference"
    "1 mlp random --batch 32 --precision bf16 --optimizer lion --checkpoint all"
    "1 cnn random --batch 16 --optimizer momentum --micro-batch 4"
    "1 cnn random --batch 4 --precision bf16 --optimizer adafactor --kernels reference"
    "1 resnet18:3x32x32,classes=10 random --batch 8 --optimizer nadamw --checkpoint sqrt"
    "1 resnet18:3x32x32,classes=10 random --batch 8 --precision bf16 --optimizer adam-8bit"
    "1 vit-tiny random --batch 2 --precision bf16 --optimizer soap"
    "1 vit-tiny random --batch 2 --optimizer shampoo --update in-backward --clip 0"
    "1 gpt-nano TEXT --batch 4 --seq 64"
    "1 gpt-nano TEXT --batch 2 --seq 8 --kernels reference --optimizer adamw --micro-batch 1"
    "1 gpt-nano TEXT --batch 4 --seq 64 --precision bf16 --optimizer muon --update in-backward"
    "1 gpt-nano TEXT --batch 4 --seq 64 --precision fp16 --optimizer adamw --checkpoint every:2"
    "1 gpt-nano TEXT --batch 4 --seq 64 --precision bf16 --master none --state-bits 8 --dropout 0.1"
    "1 gpt-nano TEXT --batch 4 --seq 64 --precision bf16 --lora 8 --lora-on all --lora-base 4"
    "1 gpt-nano TEXT --batch 4 --seq 64 --offload states+activations --optimizer amsgrad"
    "1 gpt-nano TEXT --batch 8 --seq 64 --precision bf16 --checkpoint auto --memory 200M --optimizer schedule-free-adamw"
    "1 gpt-nano TEXT --batch 4 --seq 64 --optimizer caspr --state-bits 32 --label-smoothing 0.1"
    "2 mlp random --batch 32 --optimizer adagrad"
    "2 gpt-nano TEXT --batch 4 --seq 64 --zero 1 --optimizer rmsprop"
    "2 gpt-nano TEXT --batch 4 --seq 64 --zero 2 --precision bf16 --micro-batch 1"
    "2 gpt-nano TEXT --batch 2 --seq 8 --zero 3 --kernels reference"
    "2 gpt-nano TEXT --batch 4 --seq 64 --pipeline 1f1b --micro-batch 1 --optimizer amos"
    "2 gpt-nano TEXT --batch 4 --seq 64 --pipeline pipedream --micro-batch 1 --precision bf16"
)

knows_kernels() { "$1/snug" plan mlp --dump kernels >/dev/null 2>&1; }
dumps=0
if knows_kernels "$before" && knows_kernels "$after"; then dumps=1; fi

# kernels BUILD MODEL FLAGS...: a line for each op, without the padding of columns.  The reference kernels are only for
# the CPU: for other devices the recipe is planned without them.
kernels() {
    local build=$1 model=$2 device flags
    shift 2
    for device in $devices; do
        echo "$device"
        flags=" $* "
        [ "$device" = cpu ] || flags=${flags/ --kernels reference / }
        # shellcheck disable=SC2086 # flags are words
        "$build/snug" plan "$model" --threads 1 $flags --device "$device" --dump kernels 2>&1 | tr -s ' ' | sed 's/^ //'
    done
}
# train BUILD RECIPE OUT: five steps
train() {
    local build=$1 out=$3 ranks model data flags start=()
    read -r ranks model data flags <<<"$2"
    [ "$data" != TEXT ] || data=$text
    [ "$ranks" -eq 1 ] || start=(mpirun --allow-run-as-root --oversubscribe -n "$ranks")
    [ "$only_plans" -eq 0 ] || mkdir -p "$out"
    # shellcheck disable=SC2086 # flags are words
    [ "$only_plans" -eq 1 ] ||
        "${start[@]}" "$build/snug" train "$model" "$data" --threads 1 $flags --steps 5 --eval-every -1 --out "$out" --quiet \
            >"$out.log" 2>&1 </dev/null || { sed 's/^/  | /' "$out.log"; return 1; }
    [ "$ranks" -eq 1 ] || flags="$flags --ranks $ranks"
    # shellcheck disable=SC2086
    "$build/snug" plan "$model" --threads 1 $flags --json >"$out/compared.json" 2>"$out.log" ||
        { sed 's/^/  | /' "$out.log"; return 1; }
    # shellcheck disable=SC2086
    [ "$dumps" -eq 0 ] || kernels "$build" "$model" $flags >"$out/kernels"
}
# losses OUT: the metrics of each step, without its timing
losses() { sed -E 's/"(ms|tokens_per_s|samples_per_s)": *[^,}]*//g' "$1/metrics.jsonl"; }
# bytes OUT: the bytes and flops of the plan
bytes() { tr -d ' \n' <"$1/compared.json" | grep -oE '"(parameters|bytes|recompute_flops|forward_flops)":(\{[^}]*\}|[^,}]*)'; }

# differs WHAT: adds it to the verdict
differs() { [ "$verdict" = same ] && verdict="$1 differ" || verdict="${verdict% differ}, $1 differ"; }

n_same=0 n=0
for i in "${!recipes[@]}"; do
    [ $# -eq 0 ] || [[ " $* " == *" $((i + 1)) "* ]] || continue
    n=$((n + 1)) verdict=same
    train "$before" "${recipes[i]}" "$dir/b$i" && train "$after" "${recipes[i]}" "$dir/a$i" || verdict="failed to run"
    if [ "$verdict" = same ]; then
        if [ "$only_plans" -eq 0 ]; then
            for file in model.safetensors optimizer.safetensors; do
                cmp -s "$dir/b$i/$file" "$dir/a$i/$file" || differs "${file%.safetensors}s"
            done
            [ "$(losses "$dir/b$i")" = "$(losses "$dir/a$i")" ] || differs losses
            [ -s "$dir/b$i/model.safetensors" ] || verdict="nothing was saved"
        fi
        [ "$(bytes "$dir/b$i")" = "$(bytes "$dir/a$i")" ] || differs plans
        if [ "$dumps" -eq 1 ] && ! diff "$dir/b$i/kernels" "$dir/a$i/kernels" >"$dir/diff"; then
            differs kernels
            head -5 "$dir/diff" | sed 's/^/  | /'
        fi
    fi
    [ "$verdict" != same ] || n_same=$((n_same + 1))
    printf '%-16s %2d  %s\n' "$verdict" $((i + 1)) "${recipes[i]}"
    rm -rf "$dir/b$i" "$dir/a$i"
done
compared="weights, states, losses and plans"
[ "$only_plans" -eq 0 ] || compared=plans
[ "$dumps" -eq 1 ] && compared="$compared, and kernels for $devices" || compared="$compared (kernels were not compared)"
echo "$n_same of $n recipes have the same $compared"
[ "$n_same" -eq "$n" ] && [ "$n" -gt 0 ]
