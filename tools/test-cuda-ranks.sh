#!/usr/bin/env bash
# Tests ranks on a machine with one or more GPUs: two ranks on one GPU, and NCCL with a single rank.
# usage: tools/test-cuda-ranks.sh [BUILD]      BUILD: the build folder, default build/release
#
# Trains gpt-nano for 20 steps.  Compares ddp and zero 1, 2, 3 on two ranks with one rank, within 1e-4 in fp32 and
# 1e-3 in bf16; pipelines the same way, and PipeDream with the CPU.  Checks planned = allocated on every rank.  Then
# forces NCCL with one rank.  Prints a line with the measured values for each case.
# If no mpirun works, or snug was built without MPI, the script starts the ranks itself, and they communicate
# over sockets (tests/ranks/plugin_local.c); WITHOUT_MPI=1 selects that.  MODEL, SEQ and STEPS select another model,
# for example a smaller one under the emulation (SNUG_CUDA_PLUGIN).
set -u
cd "$(dirname "$0")/.." || exit 1
build=${1:-build/release}
snug=$(realpath "${SNUG:-./snug}") || exit 1
tmp=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)") || exit 1
trap 'rm -rf "$tmp"' EXIT
export XDG_CACHE_HOME=$tmp/cache # do not use the user's tuning cache
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMP_WAIT_POLICY=passive
n_passed=0 n_failed=0

# If CUDA's own folder lacks its libraries, use those that PyTorch installed.
of_python=$(python3 -c 'import glob, site
print(":".join(d for p in site.getsitepackages() for d in glob.glob(p + "/nvidia/*/lib")))' 2>/dev/null)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$of_python

result() { # STATUS TEXT
    if [ "$1" -eq 0 ]; then n_passed=$((n_passed + 1)); echo "ok      $2"; else n_failed=$((n_failed + 1)); echo "FAILED  $2"; fi
}

# ---- how ranks are started ---------------------------------------------------------------------

by_mpi() { timeout -k 5 60 "$mpirun" -n "$@"; }
by_hand() { # RANKS COMMAND...: starts every rank in the background; fails if one does
    local n_ranks=$1 rank pids=() worst=0 meeting
    shift
    meeting=$(mktemp -d -p "$tmp")
    for rank in $(seq 0 $((n_ranks - 1))); do
        PMI_SIZE=$n_ranks PMI_RANK=$rank SNUG_MPI=$tmp/libsnug_local.so SNUG_LOCAL_RANKS=$meeting \
            timeout -k 5 60 "$@" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || worst=$?; done
    return $worst
}
find_mpi() { # sets mpirun, or prints why there is none
    local kind
    [ -z "${WITHOUT_MPI:-}" ] || { echo "WITHOUT_MPI is set"; return 1; }
    for kind in openmpi mpich; do
        [ -f "$(dirname "$snug")/libsnug_$kind.so" ] || continue
        for mpirun in "mpirun.$kind" mpirun mpiexec; do
            command -v "$mpirun" >/dev/null || continue
            timeout -k 5 20 "$mpirun" -n 2 "$snug" train mlp:7-5-3 --batch 2 --steps 1 --threads 1 --json >"$tmp/trial" 2>&1 &&
                grep -q '"ranks": \[' "$tmp/trial" && return 0
        done
    done
    command -v mpirun >/dev/null || { echo "mpirun not found"; return 1; }
    [ -s "$tmp/trial" ] && { grep -m1 '^snug' "$tmp/trial" || tail -1 "$tmp/trial"; return 1; }
    command -v mpicc >/dev/null || { echo "mpirun found, but no mpicc to build a plugin for this MPI"; return 1; }
    echo "snug was built without a plugin for this MPI: delete build/config.mk and run make"
    return 1
}
if find_mpi >"$tmp/why"; then
    start=by_mpi
    echo "starting ranks with $(command -v "$mpirun")"
else
    start=by_hand
    echo "starting ranks without MPI, from this script: $(cat "$tmp/why")"
    ${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -fPIC -Isrc -shared -o "$tmp/libsnug_local.so" tests/ranks/plugin_local.c ||
        { echo "FAILED  no MPI, and no compiler to build a stand-in"; exit 1; }
fi
"$snug" --version | grep -E 'CUDA|NCCL|MPI'

# ---- a case ------------------------------------------------------------------------------------

common=("${MODEL:-gpt-nano}" random --seq "${SEQ:-64}" --steps "${STEPS:-20}" --eval-every -1 --threads 2 --json)
losses() { sed -nE 's/.*"loss": ([^,]*),.*/\1/p' "$tmp/$1/metrics.jsonl"; }
near() { # NAME BASE TOLERANCE: prints the largest relative difference
    paste <(losses "$1") <(losses "$2") | awk -v most="$3" '
        { gap = ($1 > $2 ? $1 - $2 : $2 - $1) / $2; if (!(gap <= worst)) worst = gap; n++ }
        END { printf "difference %.1e (limit %g), %d losses", worst, most, n; exit !(n > 1 && NF == 2 && worst <= most) }'
}
as_planned() { # NAME RANKS: checks the pair of the run and, with several ranks, one pair for each
    grep -oE '"planned_bytes": [0-9]+, "allocated_bytes": [0-9]+' "$tmp/$1.out" | tr -d , |
        awk -v ranks="$2" '{ if ($2 != $4 || $2 < 1) bad = 1; seen = seen (NR > 1 ? ", " : "") $2 }
            END { bad = bad || NR != (ranks > 1 ? ranks + 1 : 1)
                  printf bad ? "NOT as planned (%s)" : "planned = allocated (%s)", seen; exit bad }'
}
transport() { sed -nE 's/.*"transport": "([^"]*)".*/\1/p' "$tmp/$1.out"; }
run() { # NAME RANKS FLAGS...: on the GPU, or on $device
    local name=$1 n_ranks=$2
    shift 2
    local command=("$snug" train "${common[@]}" --device "${device:-cuda}" "$@" --quiet --out "$tmp/$name")
    if [ "$n_ranks" -gt 1 ]; then $start "$n_ranks" "${command[@]}"; else timeout -k 5 60 "${command[@]}"; fi \
        >"$tmp/$name.out" 2>"$tmp/$name.err" </dev/null
}
compare() { # TITLE TRANSPORT BASE TOLERANCE RANKS FLAGS...: compares a run with BASE
    local title=$1 way=$2 base=$3 tolerance=$4 n_ranks=$5 begin=$EPOCHREALTIME status=0 gap bytes
    shift 5
    rm -rf "$tmp/case"
    if ! run case "$n_ranks" "$@"; then
        result 1 "$title: $(grep -m1 '^snug' "$tmp/case.err" || tail -1 "$tmp/case.err")"
        return
    fi
    gap=$(near case "$base" "$tolerance") || status=1
    bytes=$(as_planned case "$n_ranks") || status=1
    case $(transport case) in "$way"*) ;; *) status=1 ;; esac
    result $status "$(awk -v t="$title" -v g="$gap" -v b="$bytes" -v w="$(transport case)" -v a="$begin" -v z="$EPOCHREALTIME" \
        'BEGIN { printf "%-22s %s; %s; %s; %.1f s", t, g, b, w, z - a }')"
}

n_gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
dream="--batch 4 --micro-batch 1 --pipeline pipedream"
base() { # NAME RANKS FLAGS...: a run to compare others with
    run "$@" && return
    result 1 "$1, $2 ranks: $(grep -m1 '^snug' "$tmp/$1.err" || tail -1 "$tmp/$1.err")"
    echo "$n_passed passed, $n_failed failed"
    exit 1
}
for precision in fp32 bf16; do
    base $precision 1 --batch 4 --precision $precision
    base layers-$precision 1 --batch 4 --micro-batch 1 --precision $precision
done
# shellcheck disable=SC2086
device=cpu base dream 2 $dream

# ---- two ranks on one GPU ----------------------------------------------------------------------

export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
for precision in fp32 bf16; do
    case $precision in fp32) tolerance=1e-4 ;; bf16) tolerance=1e-3 ;; esac
    for how in "--parallel ddp" "--zero 1" "--zero 2" "--zero 3"; do
        # shellcheck disable=SC2086
        compare "2 ranks, $precision, ${how#--}" "MPI through host memory" $precision $tolerance 2 \
            --batch 4 --precision $precision $how
    done
    for how in naive gpipe 1f1b; do
        compare "2 ranks, $precision, $how" "MPI through host memory" layers-$precision $tolerance 2 \
            --batch 4 --micro-batch 1 --precision $precision --pipeline $how
    done
done
# shellcheck disable=SC2086
compare "2 ranks, pipedream" "MPI through host memory" dream 1e-4 2 $dream

# ---- NCCL --------------------------------------------------------------------------------------

export SNUG_NCCL=force
for how in "--parallel ddp" "--zero 1" "--zero 2 --micro-batch 2" "--zero 3"; do
    # shellcheck disable=SC2086
    compare "NCCL, 1 rank, ${how#--}" "NCCL " fp32 1e-4 1 --batch 4 $how
done
if run both 2 --batch 4; then
    result 1 "NCCL accepted two ranks on one GPU: $(transport both)"
elif grep -q 'share a GPU' "$tmp/both.err"; then
    result 0 "NCCL forced on two ranks of one GPU is refused: $(grep -m1 '^snug' "$tmp/both.err")"
else
    result 1 "NCCL forced on two ranks of one GPU: $(tail -1 "$tmp/both.err")"
fi
unset SNUG_NCCL
if [ "$n_gpus" -gt 1 ]; then
    unset CUDA_VISIBLE_DEVICES
    for how in "--parallel ddp" "--zero 2" "--zero 3"; do
        # shellcheck disable=SC2086
        compare "NCCL, 2 ranks, ${how#--}" "NCCL " fp32 1e-4 2 --batch 4 $how
    done
    for how in gpipe 1f1b; do
        compare "NCCL, 2 ranks, $how" "NCCL " layers-fp32 1e-4 2 --batch 4 --micro-batch 1 --pipeline $how
    done
    # shellcheck disable=SC2086
    compare "NCCL, 2 ranks, pipedream" "NCCL " dream 1e-4 2 $dream
else
    echo "skipped NCCL between ranks: it needs one GPU per rank, and this machine has $n_gpus"
fi
if [ -z "${SNUG_CUDA_PLUGIN:-}" ] && [ -x "$build/gpu/tests/cuda/test_cuda_ranks" ]; then
    timeout -k 5 60 "$build/gpu/tests/cuda/test_cuda_ranks" >"$tmp/unit" 2>&1
    result $? "collectives of one rank, op by op: $(grep -E '^NCCL|^without' "$tmp/unit" | head -1)"
    [ $n_failed -eq 0 ] || grep -E 'ERROR|LINE' "$tmp/unit"
fi

echo "$n_passed passed, $n_failed failed, $SECONDS s"
[ "$n_failed" -eq 0 ]
