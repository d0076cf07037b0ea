# Shared by the scripts in this folder, which source it: a working folder, checks in TAP, what a run has saved, and
# whether $pid is snug itself.  The scripts set $pid when they start it.
set -u
export OMP_WAIT_POLICY=passive # waiting threads sleep: the machine may be busy
snug=$(realpath "${SNUG:-$(dirname "${BASH_SOURCE[0]}")/../../snug}") || exit 1
work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo /tmp)") || exit 1
pid=
trap '[ -z "$pid" ] || kill -9 "$pid" 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit 1
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    local name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; failed=1; fi
}
same() { # DIR DIR: bit for bit
    cmp "$1/model.safetensors" "$2/model.safetensors" &&
        cmp "$1/optimizer.safetensors" "$2/optimizer.safetensors"
}
each_step_once() { # DIR STEPS
    cmp <(seq "$2") <(sed 's/^{"step": \([0-9]*\),.*}$/\1/' "$1/metrics.jsonl")
}
step_of() { sed -n 's/.*"step": \([0-9]*\).*/\1/p' "$1/state.json" 2>/dev/null; }
is_snug() { [ "$(readlink "/proc/$pid/exe")" = "$snug" ]; }
