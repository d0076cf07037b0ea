#!/usr/bin/env bash
# Compares bf16 training with fp32.  Trains a small GPT on a text for 200 steps: in fp32 with the reference kernels
# (plain loops, minutes), then in bf16 and fp32 with the fast kernels at every instruction level that this machine
# has.  Prints the largest relative difference of the loss over all steps, and fails if one is above 1%.
#
# usage: bench/losses.sh [TEXT]      STEPS=200 THREADS=2 in the environment
set -eu
cd "$(dirname "$0")/.."
text=${1:-tinyshakespeare}
steps=${STEPS:-200}
threads=${THREADS:-2}
most=0.01
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/model"
echo '{"model_type": "gpt2", "n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 64,
"vocab_size": 256}' >"$dir/model/config.json"

train() { # NAME FLAGS...: writes a line "step loss" per step to NAME
    name=$1
    shift
    ./snug train "$dir/model" "$text" --batch 4 --steps "$steps" --eval-every -1 \
        --threads "$threads" --quiet --out "$dir/run.$name" "$@" >/dev/null
    sed -E 's/.*"step": ([0-9]+), "loss": ([0-9.e+-]+),.*/\1 \2/' "$dir/run.$name/metrics.jsonl" >"$dir/$name"
}

runs_level() { # LEVEL: snug ignores a level that the CPU lacks and uses the highest one
    SNUG_CPU_LEVEL=$1 ./snug --version | grep -qE "this CPU runs (.*[ ,])?$1\$"
}

train reference --kernels reference
tail -n 1 "$dir/reference" | awk '{ printf "reference fp32: loss %.4f after %d steps\n", $2, $1 }'
printf '%-14s %-5s %10s %22s %8s\n' level type 'last loss' 'largest difference' 'at step'
failed=0
for level in base v3 v4 amx amx-emulated; do
    runs_level $level || continue
    for type in bf16 fp32; do
        SNUG_CPU_LEVEL=$level train "$level.$type" --precision $type
        paste -d ' ' "$dir/reference" "$dir/$level.$type" | awk -v level=$level -v type=$type -v most=$most '
            $1 != $3 { print "steps do not match"; bad = 1; exit }
            { d = ($4 - $2) / $2; if (d < 0) d = -d; if (d >= largest) { largest = d; at = $1 } last = $4 }
            END { printf "%-14s %-5s %10.4f %21.3f%% %8d\n", level, type, last, 100 * largest, at
                  exit bad || !(largest <= most) }' || failed=1
    done
done
exit $failed
