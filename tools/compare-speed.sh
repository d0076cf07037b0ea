#!/usr/bin/env bash
# Compares the speed of two builds of snug: alternates runs and prints the medians and the ratio of after to before.
# usage: tools/compare-speed.sh BEFORE AFTER [cuda] [cpu] [pairs] [plan]      folders that contain snug (and libsnug_cuda.so)
#
# cuda: GPT-2 124M in bf16 on the GPU.  cpu: GPT-2 124M on two cores, bf16 and fp32.  pairs: the same with both builds at
# the same time, each on two cores of its own (PAIRS="0,1 8,9"), which they swap within a round; prints the median of the
# rounds' ratios.  It suits a machine whose speed other users change from minute to minute.  plan: the time of `snug plan
# gpt2-xl`, and with --checkpoint auto.  ROUNDS=5: how many alternations.
set -eu
before=$1 after=$2
shift 2
rounds=${ROUNDS:-5}
export OMP_WAIT_POLICY=passive LC_ALL=C

# rate BUILD FLAGS...: tokens per second; on the cores "$on" if that is set
rate() {
    local build=$1
    shift
    ${on:+taskset -c "$on"} "$build/snug" train gpt2 random --eval-every -1 --quiet --json "$@" | tail -n 1 |
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

# together NAME FLAGS...: both builds at the same time; prints the median of the rounds' ratios
together() {
    local name=$1 i x y dir
    shift
    read -r x y <<<"${PAIRS:-0,1 8,9}"
    dir=$(mktemp -d)
    for i in $(seq "$rounds"); do
        on=$x rate "$before" "$@" >"$dir/b1" & on=$y rate "$after" "$@" >"$dir/a1" & wait
        on=$y rate "$before" "$@" >"$dir/b2" & on=$x rate "$after" "$@" >"$dir/a2" & wait
        paste "$dir/b1" "$dir/b2" "$dir/a1" "$dir/a2"
    done | awk '{ print sqrt($3 * $4 / ($1 * $2)), ($1 + $2) / 2, ($3 + $4) / 2 }' | sort -g |
        awk -v name="$name" '{ ratio[NR] = $1; b += $2; a += $3 }
            END { printf "%-28s before %.5g  after %.5g tokens/s (means)  median ratio %.3f (%.3f to %.3f, middle half %.3f to %.3f), %d rounds\n",
                name, b / NR, a / NR, ratio[int((NR + 1) / 2)], ratio[1], ratio[NR], ratio[int((NR + 3) / 4)], ratio[int((3 * NR + 1) / 4)], NR }'
    rm -rf "$dir"
}

for what in "${@:-cpu}"; do
    case $what in
    cuda) compare rate tokens/s 'GPT-2 124M, GPU, bf16' --device cuda --precision bf16 --batch 32 --micro-batch 32 --steps 40 ;;
    cpu)
        compare rate tokens/s 'GPT-2 124M, 2 threads, bf16' --threads 2 --precision bf16 --batch 1 --seq 512 --steps 4
        compare rate tokens/s 'GPT-2 124M, 2 threads, fp32' --threads 2 --batch 1 --seq 512 --steps 4
        ;;
    pairs)
        together 'GPT-2 124M, 2 threads, bf16' --threads 2 --precision bf16 --batch 1 --seq 512 --steps 4
        together 'GPT-2 124M, 2 threads, fp32' --threads 2 --batch 1 --seq 512 --steps 4
        ;;
    plan)
        compare plans plans/s 'plan gpt2-xl' --batch 32 --precision bf16
        compare plans plans/s 'plan gpt2-xl, auto' --batch 32 --precision bf16 --memory 32G --checkpoint auto
        ;;
    *) echo "compare-speed: unknown benchmark \"$what\"; use cuda, cpu, pairs or plan" >&2; exit 2 ;;
    esac
done
