#!/usr/bin/env bash
# Commands that compute limit how long idle threads spin, by re-executing themselves once.  The user's own settings
# take precedence; arguments, standard streams, signals and exit statuses are preserved.
#
# OpenMP prints the settings that it has read (OMP_DISPLAY_ENV), once for every start of the program.
set -u
snug=$(realpath "${SNUG:-$(dirname "$0")/../../snug}")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
unset GOMP_SPINCOUNT OMP_WAIT_POLICY NO_COLOR
if "$snug" --version | grep -q 'without OpenMP'; then
    echo '1..0 # SKIP built without OpenMP'
    exit 0
fi
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; failed=1; fi
}

spins() { # [NAME=VALUE...] COMMAND...: the setting at each start of the program, on one line
    env OMP_DISPLAY_ENV=verbose "$@" 2>&1 >/dev/null </dev/null |
        sed -n "s/.*GOMP_SPINCOUNT = '\([0-9]*\)'.*/\1/p" | paste -sd ' ' -
}
spins_are() { # WANTED [NAME=VALUE...] COMMAND...
    wanted=$1
    shift
    found=$(spins "$@")
    [ "$found" = "$wanted" ] || { echo "# spins \"$found\", not \"$wanted\""; return 1; }
}
train="train mlp:4-3 --steps 1 --threads 1"
default=$(spins "$snug" --version) # one start, the library's own number
check 'the library has a default' test "${default:-0}" -gt 1000
check 'train is started once more, bounded' spins_are "$default 1000" "$snug" $train
check 'fit is' spins_are "$default 1000" "$snug" fit mlp --memory 1G
check 'plan is not: it does not compute' spins_are "$default" "$snug" plan mlp
check "the user's GOMP_SPINCOUNT wins" spins_are 77 GOMP_SPINCOUNT=77 "$snug" $train
check "the user's passive wins" spins_are 0 OMP_WAIT_POLICY=passive "$snug" $train
check "the user's active wins" spins_are 30000000000 OMP_WAIT_POLICY=active "$snug" $train
check 'under valgrind it stays as it is' spins_are "$default" LD_PRELOAD=/vgpreload_none.so "$snug" $train
linker=$(ldd "$snug" | sed -n 's|^[[:space:]]*\(/[^ ]*/ld-[^ ]*\) .*|\1|p')
[ -z "$linker" ] || check 'the dynamic linker can start it' spins_are "$default" "$linker" "$snug" $train

status_is() { # WANTED COMMAND...
    wanted=$1
    shift
    "$@" >out 2>err </dev/null
    found=$?
    [ $found = "$wanted" ] || { echo "# status $found, not $wanted"; return 1; }
}
check 'a run ends with 0' status_is 0 "$snug" $train
check 'a file that is not there, with 1' status_is 1 "$snug" eval there-is-none
check 'wrong usage, with 2' status_is 2 "$snug" train mlp --steps
check 'over budget, with 3' status_is 3 "$snug" train mlp --memory 1K
check 'arguments arrive as they were' status_is 1 "$snug" eval 'a  "b" $c *'
check '  and are in the message' grep -qF 'a  "b" $c *' err
from_input() { printf 'batch = 7\n' >recipe && "$snug" $train --recipe /dev/stdin <recipe | grep -q 'batch 7'; }
check 'standard input arrives' from_input
closed_output() { "$snug" $train >&- 2>err; [ $? = 1 ] && grep -q 'standard output' err; }
check 'a closed standard output is noticed' closed_output

# The process that was started is the one that trains: it gets the signal, saves and exits with 0.
stops() {
    mkfifo lines
    "$snug" train mlp:4-3 --steps 100000000 --threads 1 --out run >lines 2>err &
    pid=$!
    exec 3<lines
    while read -r line <&3; do
        case $line in step*) break ;; esac
    done
    kill -TERM $pid
    cat <&3 >/dev/null
    wait $pid && grep -q 'saved in run' err && [ -e run/state.json ]
}
check 'SIGTERM arrives' stops
echo "1..$n"
exit $failed
