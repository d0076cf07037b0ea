#!/usr/bin/env bash
# Ranks that cannot see each other are refused.  The test sets the variables of launchers itself, so it needs neither
# Slurm nor MPI.
set -u
cd "$(dirname "$0")/../.." || exit 1
snug=$(realpath "${SNUG:-./snug}") || exit 1
root=$PWD
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
for name in $(compgen -e); do
    case $name in SLURM_* | PMI_* | PMIX_* | OMPI_* | SNUG_MPI) unset "$name" ;; esac
done
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    local name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; cat out err; failed=1; fi
}
train() { # VARIABLES...
    env "$@" "$snug" train mlp:4-4-2 --steps 1 --batch 4 --eval-every -1 --threads 1 --quiet >out 2>err
}
trains() { train "$@" && grep -q . out && [ ! -s err ]; }
refuses() { # STATUS WORDS VARIABLES...: one line with the words; WORDS "": no line, another rank has said it
    local status=$1 words=$2
    shift 2
    train "$@"
    [ $? -eq "$status" ] && [ ! -s out ] || return 1
    if [ -z "$words" ]; then [ ! -s err ]; else
        [ "$(wc -l <err)" -eq 1 ] && grep -q "^snug: .*$words" err
    fi
}

# An MPI plugin that finds no other process, like an MPI under a launcher that it does not support.
cat >alone.c <<'END'
#include "comm/mpi_plugin.h"
static bool begin(int *rank, int *n_ranks, char why[COMM_WHY_MAX])
{
    (void)why;
    *rank = 0;
    *n_ranks = 1;
    return true;
}
static void end(void) {}
const struct comm_plugin *snug_comm_plugin(void)
{
    static const struct comm_plugin plugin = {
        .version = COMM_PLUGIN_VERSION, .name = "A lonely MPI", .begin = begin, .end = end};
    return &plugin;
}
END
${CC:-cc} -std=c11 -fPIC -I"$root/src" -shared -o alone.so alone.c || exit 1

step="SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2"
# shellcheck disable=SC2086
{
    check "srun without MPI is refused" refuses 2 'srun started 2 tasks without MPI.*srun --mpi=pm' $step SLURM_PROCID=0
    check "of its tasks one speaks" refuses 1 '' $step SLURM_PROCID=1
    check "one task is one rank" trains SLURM_NTASKS=1 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0
    check "a batch script is one process" trains SLURM_NTASKS=2 SLURM_PROCID=0
    check "SNUG_MPI=off: separate runs" trains $step SLURM_PROCID=0 SNUG_MPI=off
    check "SNUG_MPI=off under mpirun" trains OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 SNUG_MPI=off
    check "mpirun -n 1 inside a step" trains $step OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0
    for launcher in "PMIX_RANK=0 $step" "PMI_SIZE=2 PMI_RANK=0" \
        "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0"; do
        check "an MPI that sees one of two ranks: $launcher" \
            refuses 2 '=2, but A lonely MPI sees one process' $launcher SNUG_MPI="$tmp/alone.so"
    done
    check "of those, too, one speaks" refuses 1 '' $step PMIX_RANK=1 SNUG_MPI="$tmp/alone.so"
    check "PMIx without Slurm, one process" trains PMIX_RANK=0 SNUG_MPI="$tmp/alone.so"
    check "no plugin" refuses 1 'several ranks need MPI' $step PMIX_RANK=0 SNUG_MPI="$tmp/none.so"
}

bytes() { env "$@" --quiet >out 2>err && cat out; }
few() {
    [ "$(bytes SLURM_CPUS_PER_TASK=1 "$snug" plan gpt-nano)" = "$(bytes "$snug" plan gpt-nano --threads 1)" ]
}
check "SLURM_CPUS_PER_TASK bounds --threads" few
echo "1..$n"
exit $failed
