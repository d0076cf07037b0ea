# Shared by the scripts in this folder, which source it: finds MPI and compares runs.
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

find_launcher() { # MPI: "" if it is not installed, or snug was built without it
    [ -f "$(dirname "$snug")/libsnug_$1.so" ] || return 0
    command -v "mpirun.$1" || { [ "$1" = mpich ] && command -v mpiexec.hydra; }
}
openmpi=$(find_launcher openmpi)
mpich=$(find_launcher mpich)
first=${openmpi:-$mpich}
[ -n "$first" ] || { echo "skip: no MPI is here that snug was built with"; exit 77; }
[ -n "$openmpi" ] || echo "skip: Open MPI is not here"
[ -n "$mpich" ] || echo "skip: MPICH is not here"

ranks() { # LAUNCHER RANKS DIR FLAGS...: trains, with the output in DIR.out
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
# The folder `net`: gpt-nano, 48 wide instead of 384, for the small size.
make_net() {
    mkdir net
    echo '{"model_type": "gpt2", "n_layer": 6, "n_head": 6, "n_embd": 48, "n_positions": 256, "vocab_size": 256}' >net/config.json
}
flags_of() { case $1 in ps) echo --parallel ps ;; zero*) echo --zero "${1#zero}" ;; ddp) echo --parallel ddp ;; esac; }

refuses() { # WORDS RANKS FLAGS...: fails, with one line that contains the words
    local words=$1 n_ranks=$2
    shift 2
    if timeout 60 "$first" -n "$n_ranks" "$snug" train "$@" --threads 1 --quiet >refused.out 2>&1; then
        return 1
    fi
    [ "$(grep -c '^snug: ' refused.out)" -eq 1 ] && grep -q "^snug: .*$words" refused.out ||
        { cat refused.out; return 1; }
}

# The launcher is told not to end the other ranks: they have to notice themselves.
rank_of() { tr '\0' '\n' <"/proc/$1/environ" | sed -nE 's/^(OMPI_COMM_WORLD_RANK|PMI_RANK)=//p'; }
pids_below() { local c; for c in $(pgrep -P "$1"); do echo "$c"; pids_below "$c"; done; }
is_there() { [ -d "/proc/$1" ] && ! grep -q '^State:.*Z' "/proc/$1/status" 2>/dev/null; }
killed() { # RANK FILE FLAGS LAUNCHER...: kills one of three ranks while FILE is written; the others end within 10 s, with one message
    local rank=$1 file=$2 flags=$3 pid victim='' others='' left begin
    shift 3
    # shellcheck disable=SC2086
    "$@" -n 3 "$snug" train gpt-nano $flags --seq 8 --threads 1 --steps 1000000 --eval-every -1 \
        --out killed --save-every 1 --quiet >killed.out 2>&1 &
    local launched=$!
    for _ in $(seq 300); do [ -f killed/state.json ] && break; sleep 0.1; done
    for pid in $(pids_below $launched); do
        [ "$(readlink "/proc/$pid/exe")" = "$snug" ] || continue
        if [ "$(rank_of "$pid")" = "$rank" ]; then victim=$pid; else others="$others $pid"; fi
    done
    [ -n "$victim" ] && [ "$(echo "$others" | wc -w)" -eq 2 ] || return 1
    begin=$SECONDS
    until [ -e "killed/$file.new" ] || [ $((SECONDS - begin)) -ge 20 ]; do :; done
    begin=$SECONDS
    kill -9 "$victim"
    left=yes
    while [ -n "$left" ] && [ $((SECONDS - begin)) -lt 10 ]; do
        left=
        for pid in $others; do if is_there "$pid"; then left=yes; fi; done
        sleep 0.1
    done
    for pid in $others; do if is_there "$pid"; then kill -9 "$pid"; fi; done
    kill "$launched" 2>/dev/null
    wait "$launched" 2>/dev/null
    [ -z "$left" ] && [ "$(grep -c "^snug: rank .: rank $rank died without an error message" killed.out)" -eq 1 ] ||
        { cat killed.out; return 1; }
}
goes_on() { # the checkpoint is complete: a run that takes one more step reads and checks all of it
    local step
    step=$(sed -n 's/.*"step": \([0-9]*\).*/\1/p' killed/state.json)
    alone killed gpt-nano --resume --steps $((step + 1)) --zero 0 || { cat killed.err; return 1; }
    rm -rf killed
}
patient=${openmpi:+$openmpi --enable-recovery}
patient=${patient:-$mpich -disable-auto-cleanup}

finish() { echo "1..$n"; exit $failed; }
