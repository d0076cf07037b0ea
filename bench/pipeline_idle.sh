#!/usr/bin/env bash
# Measures the idle share of a pipeline with two stages of one thread each, against (p - 1) / (m + p - 1).
#
# usage: [SNUG=./snug] [STEPS=6] bench/pipeline_idle.sh [SCHEDULE...]      default: gpipe 1f1b
#
# Needs a quiet machine with two cores.  Micro-batches are large enough that updates and sends take little time.
# gpt-nano's six layers are cut in the middle.  The idle share is that of both ranks together.
set -eu
snug=$(realpath "${SNUG:-$(dirname "$0")/../snug}")
steps=${STEPS:-6}
launcher=$(command -v mpirun.openmpi || command -v mpirun || command -v mpiexec)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_WAIT_POLICY=passive
[ $# -gt 0 ] || set -- gpipe 1f1b
printf '%-10s %6s %8s %8s %8s\n' schedule micro planned measured ratio
for schedule in "$@"; do
    for m in 2 4 8; do
        "$launcher" -n 2 "$snug" train gpt-nano --pipeline "$schedule" --batch $((4 * m)) --micro-batch 4 \
            --steps "$steps" --threads 1 --eval-every -1 --quiet --json |
            tr '{' '\n' | sed -nE 's/.*"seconds": ([0-9.]+), "waited_seconds": ([0-9.]+).*/\1 \2/p' |
            awk -v schedule="$schedule" -v m=$m '
                { all += $1; waited += $2 }
                END { planned = 1 / (m + 1)
                      printf "%-10s %6d %8.3f %8.3f %8.2f\n", schedule, m, planned, waited / all, waited / all / planned }'
    done
done
