# What the scripts beside this one share: where MPI is, and how runs are compared.  Sourced by them.
set -u
snug=$(realpath "${SNUG:-$(dirname "${BASH_SOURCE[0]}")/../../snug}") || exit 1
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)") || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    local name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; failed=1; fi
}

find_launcher() { # MPI: "" if it is not here, or snug was built without it
    [ -f "$(dirname "$snug")/libsnug_$1.so" ] || return 0
    command -v "mpirun.$1" || { [ "$1" = mpich ] && command -v mpiexec.hydra; }
}
openmpi=$(find_launcher openmpi)
mpich=$(find_launcher mpich)
first=${openmpi:-$mpich}
[ -n "$first" ] || { echo "skip: no MPI is here that snug was built with"; exit 77; }
[ -n "$openmpi" ] || echo "skip: Open MPI is not here"
[ -n "$mpich" ] || echo "skip: MPICH is not here"

ranks() { # LAUNCHER RANKS DIR FLAGS...: trains, what it said in DIR.out
    local launcher=$1 n_ranks=$2 dir=$3
    shift 3
    timeout 100 "$launcher" -n "$n_ranks" "$snug" train "$@" --threads 1 --eval-every -1 --json --quiet \
        --out "$dir" >"$dir.out" 2>"$dir.err"
}
alone() { # DIR FLAGS...
    local dir=$1
    shift
    "$snug" train "$@" --threads 1 --eval-every -1 --json --quiet --out "$dir" >"$dir.out" 2>"$dir.err"
}
losses() { sed -n 's/.*"loss": \([^,]*\),.*/\1/p' "$1/metrics.jsonl"; }
near() { # DIR DIR STEPS: every loss within 1e-5 of the other's
    paste <(losses "$1") <(losses "$2") | awk -v steps="$3" '
        { d = $1 - $2; if (d < 0) d = -d; if (!($2 > 0) || d > 1e-5 * $2) bad = 1 }
        END { exit bad || NR != steps }' || { paste <(losses "$1") <(losses "$2"); cat "$1.err"; return 1; }
}
same() { # DIR DIR: bit for bit
    cmp "$1/model.safetensors" "$2/model.safetensors" &&
        cmp "$1/optimizer.safetensors" "$2/optimizer.safetensors"
}
as_planned() { # DIR RANKS
    grep -oE '\{"planned_bytes": [0-9]+, "allocated_bytes": [0-9]+, "seconds"' "$1.out" | tr -d '{},' |
        awk -v ranks="$2" '{ if ($2 != $4 || $2 < 1) bad = 1 } END { exit bad || NR != ranks }' ||
        { cat "$1.out"; return 1; }
}
flags_of() { case $1 in ps) echo --parallel ps ;; zero*) echo --zero "${1#zero}" ;; ddp) echo --parallel ddp ;; esac; }

finish() { echo "1..$n"; exit $failed; }
