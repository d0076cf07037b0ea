#!/usr/bin/env bash
# Compares the speed of two builds of snug: alternates runs and prints the medians and the ratio of after to before.
# usage: tools/compare-speed.sh BEFORE AFTER [cuda] [cpu]      folders that contain snug (and libsnug_cuda.so)
#
# cuda: GPT-2 124M in bf16 on the GPU.  cpu: GPT-2 124M on two cores, bf16 and fp32.  ROUNDS=5: how many alternations.
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

# compare NAME FLAGS...: prints both medians and their ratio
compare() {
    local name=$1 i old=() new=()
    shift
    for i in $(seq "$rounds"); do
        old+=("$(rate "$before" "$@")")
        new+=("$(rate "$after" "$@")")
    done
    printf '%s\n' "${old[@]}" | sort -g | sed -n "$(((rounds + 1) / 2))p" >/tmp/compare.$$.old
    printf '%s\n' "${new[@]}" | sort -g | sed -n "$(((rounds + 1) / 2))p" >/tmp/compare.$$.new
    awk -v name="$name" -v n="$rounds" 'FNR == 1 { x[++k] = $1 }
        END { printf "%-28s before %9.0f  after %9.0f tokens/s  ratio %.3f  (medians of %d)\n", name, x[1], x[2], x[2] / x[1], n }' \
        /tmp/compare.$$.old /tmp/compare.$$.new
    rm -f /tmp/compare.$$.old /tmp/compare.$$.new
}

for what in "${@:-cpu}"; do
    case $what in
    cuda) compare 'GPT-2 124M, GPU, bf16' --device cuda --precision bf16 --batch 32 --micro-batch 32 --steps 40 ;;
    cpu)
        compare 'GPT-2 124M, 2 threads, bf16' --threads 2 --precision bf16 --batch 1 --seq 512 --steps 4
        compare 'GPT-2 124M, 2 threads, fp32' --threads 2 --batch 1 --seq 512 --steps 4
        ;;
    *) echo "compare-speed: unknown benchmark \"$what\"; use cuda or cpu" >&2; exit 2 ;;
    esac
done
