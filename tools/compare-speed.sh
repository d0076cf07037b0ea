#!/usr/bin/env bash
# Compares the speed of two builds of snug: alternates runs and prints the medians and the ratio of after to before.
# usage: tools/compare-speed.sh BEFORE AFTER [cuda] [cpu] [plan]      folders that contain snug (and libsnug_cuda.so)
#
# cuda: GPT-2 124M in bf16 on the GPU.  cpu: GPT-2 124M on two cores, bf16 and fp32.  plan: the time of `snug plan
# gpt2-xl`, and with --checkpoint auto.  ROUNDS=5: how many alternations.
set -eu
before=$1 after=$2
shift 2
rounds=${ROUNDS:-5}
export OMP_WAIT_POLICY=passive LC_ALL=C

# rate BUILD FLAGS...: tokens per second
rate() {
    local build=$1
    shift
    "$build/snug" train gpt2 random --eval-every -1 --quiet --json "$@" | tail -n 1 |
        sed -nE 's/.*"tokens_per_s": ([0-9.e+]+).*/\1/p'
}

# plans BUILD FLAGS...: plans per second of CPU time
plans() {
    local build=$1 i TIMEFORMAT='%U %S'
    shift
    { time for i in 1 2 3; do "$build/snug" plan gpt2-xl --quiet "$@" >/dev/null; done; } 2>&1 |
        awk '{ printf "%.3f\n", 3 / ($1 + $2) }'
}

# compare MEASURE UNIT NAME FLAGS...: prints both medians and their ratio
compare() {
    local measure=$1 unit=$2 name=$3 i old=() new=()
    shift 3
    for i in $(seq "$rounds"); do
        old+=("$("$measure" "$before" "$@")")
        new+=("$("$measure" "$after" "$@")")
    done
    { printf '%s\n' "${old[@]}" | sort -g; printf '%s\n' "${new[@]}" | sort -g; } |
        awk -v name="$name" -v n="$rounds" -v unit="$unit" '{ x[NR] = $1 }
            END { median = int((n + 1) / 2)
                printf "%-28s before %.5g (%.5g to %.5g)  after %.5g (%.5g to %.5g) %s  ratio of medians %.3f, %d rounds\n",
                    name, x[median], x[1], x[n], x[n + median], x[n + 1], x[2 * n], unit, x[n + median] / x[median], n }'
}

for what in "${@:-cpu}"; do
    case $what in
    cuda) compare rate tokens/s 'GPT-2 124M, GPU, bf16' --device cuda --precision bf16 --batch 32 --micro-batch 32 --steps 40 ;;
    cpu)
        compare rate tokens/s 'GPT-2 124M, 2 threads, bf16' --threads 2 --precision bf16 --batch 1 --seq 512 --steps 4
        compare rate tokens/s 'GPT-2 124M, 2 threads, fp32' --threads 2 --batch 1 --seq 512 --steps 4
        ;;
    plan)
        compare plans plans/s 'plan gpt2-xl' --batch 32 --precision bf16
        compare plans plans/s 'plan gpt2-xl, auto' --batch 32 --precision bf16 --memory 32G --checkpoint auto
        ;;
    *) echo "compare-speed: unknown benchmark \"$what\"; use cuda, cpu or plan" >&2; exit 2 ;;
    esac
done
