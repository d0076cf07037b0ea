#!/usr/bin/env bash
# Tests the CUDA backend on a machine with a GPU.
# usage: tools/test-cuda.sh [BUILD]      BUILD: the build folder, default build/release
#
# Compares every op case with the CPU reference and 20 steps of gpt-nano with the CPU, tests the executor, and checks
# that planned bytes equal allocated bytes and that nothing is allocated after the first step.
# SANITIZER=compute-sanitizer also runs the op cases under memcheck and racecheck (tools/sanitize-cuda.sh).
set -u
cd "$(dirname "$0")/.."
build=${1:-build/release}
snug=${SNUG:-./snug}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export XDG_CACHE_HOME=$tmp/cache # do not use the user's tuning cache
n_passed=0 n_failed=0

# If CUDA's own folder lacks its libraries, use those that PyTorch installed.
of_python=$(python3 -c 'import glob, site
print(":".join(d for p in site.getsitepackages() for d in glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$of_python

result() { # NAME STATUS
    if [ "$2" -eq 0 ]; then n_passed=$((n_passed + 1)); echo "ok      $1"; else n_failed=$((n_failed + 1)); echo "FAILED  $1"; fi
}

run() { # NAME COMMAND...
    local name=$1
    shift
    "$@" >"$tmp/log" 2>&1
    local status=$?
    result "$name" $status
    [ $status -eq 0 ] || tail -30 "$tmp/log"
}

run 'op cases' "$build/gpu/tests/cuda/test_cuda_ops"
run 'attention reads' "$build/gpu/tests/cuda/test_cuda_attention_reads"
run 'bits' "$build/gpu/tests/cuda/test_cuda_bits"
run 'executor' "$build/gpu/tests/cuda/test_cuda_exec"
run 'updates' "$build/gpu/tests/cuda/test_cuda_update"
run 'sums' "$build/gpu/tests/cuda/test_cuda_sums"
run 'collectives' "$build/gpu/tests/cuda/test_cuda_ranks"
run 'matmuls' "$build/gpu/tests/cuda/test_cuda_gemm"
run 'attention' "$build/gpu/tests/cuda/test_cuda_attention"
if [ -n "${SANITIZER:-}" ]; then
    tools/sanitize-cuda.sh "$build"
    result 'op cases under compute-sanitizer' $?
fi

# train NAME FLAGS...: writes the losses to NAME.losses and the summary to NAME.json
train() {
    local name=$1
    shift
    "$snug" train "$@" --json --out "$tmp/$name" >"$tmp/$name.json" 2>"$tmp/$name.log" || {
        cat "$tmp/$name.log"
        return 1
    }
    sed -E 's/.*"loss": ([^,]*),.*/\1/' "$tmp/$name/metrics.jsonl" >"$tmp/$name.losses"
}

# near A B TOLERANCE: compares the losses by their relative difference
near() {
    paste "$tmp/$1.losses" "$tmp/$2.losses" | awk -v most="$3" '
        { gap = $1 > $2 ? $1 - $2 : $2 - $1; share = gap / $1; if (share > worst) worst = share; n++ }
        END { printf "largest difference %.2e of %d losses\n", worst, n; exit !(n > 0 && worst <= most) }'
}

compare() { # NAME TOLERANCE MODEL FLAGS...
    local name=$1 tolerance=$2
    shift 2
    train cpu "$@" --device cpu && train cuda "$@" --device cuda && near cpu cuda "$tolerance" >"$tmp/log" &&
        cat "$tmp/log"
    local status=$?
    result "$name" $status
    rm -rf "$tmp/cpu" "$tmp/cuda"
    [ $status -ne 0 ] && return
    python3 - "$tmp/cuda.json" <<'PY'
import json, sys
s = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
sys.exit(0 if s["planned_bytes"] == s["allocated_bytes"] else f"planned {s['planned_bytes']}, allocated {s['allocated_bytes']}")
PY
    result "$name: planned = allocated" $?
}

compare 'gpt-nano, fp32, 20 steps' 1e-4 gpt-nano random --batch 4 --seq 64 --steps 20 --eval-every -1
compare 'gpt-nano, micro-batches' 1e-4 gpt-nano random --batch 4 --micro-batch 1 --seq 64 --steps 5 --eval-every -1
compare 'gpt-nano, states offloaded' 1e-4 gpt-nano random --batch 2 --seq 64 --steps 5 --offload states --eval-every -1
compare 'gpt-nano, bf16' 1e-2 gpt-nano random --batch 4 --seq 64 --steps 20 --precision bf16 --eval-every -1

echo "$n_passed passed, $n_failed failed"
[ "$n_failed" -eq 0 ]
