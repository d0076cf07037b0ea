#!/usr/bin/env bash
# Two processes on one --out: the second is refused with one line that names the first, and changes nothing.
# Commands that only read the run need no lock and leave none.
#
# usage: [SNUG=./snug] tests/fault/test_lock.sh       The output is TAP.
# shellcheck source=tests/fault/fault.bash
. "$(dirname "$0")/fault.bash"
run=(mlp:16-32-10 --batch 4 --threads 1 --eval-every -1 --save-every 1 --quiet)
start() { # COMMAND...: the program itself is $pid
    "$@" >log 2>&1 &
    pid=$!
    until is_snug || ! kill -0 "$pid" 2>/dev/null; do :; done
}
saved() { until [ "$(step_of "$1")" != "" ] || ! kill -0 "$pid" 2>/dev/null; do :; done; } # a first time
ended() { wait "$pid"; status=$?; pid=; }
all_files() { find "$1" -type f ! -name metrics.jsonl -exec cksum {} + | sort; }

# Refused with exit status 1 and one line, and the folder does not change.  The holder is stopped meanwhile.
refused() { # DIR FLAGS...
    local dir=$1 before after status=0
    shift
    kill -STOP "$pid"
    until grep -q "^State:.*T" "/proc/$pid/status"; do :; done
    before=$(all_files "$dir")
    "$snug" train "${run[@]}" --steps 5 --out "$dir" "$@" >second.out 2>&1 || status=$?
    after=$(all_files "$dir")
    kill -CONT "$pid"
    [ $status -eq 1 ] && [ "$(wc -l <second.out)" -eq 1 ] && [ "$before" = "$after" ] &&
        grep -q "^snug: $dir: process $pid on $(uname -n) is training in this folder" second.out ||
        { echo "# status $status: $(cat second.out)"; return 1; }
}

check "500 steps alone" "$snug" train "${run[@]}" --steps 500 --out whole
check "a run that has ended leaves no lock" test ! -e whole/.lock
start "$snug" train "${run[@]}" --steps 100000 --out shared
saved shared
check "a second run in the folder is refused" refused shared
check "a second that would go on with it is refused" refused shared --resume
check "and one that would with its weights" refused shared --resume-weights-only
check "the first one is still there" kill -0 "$pid"

# Commands that only read, while it trains.
reads() { # COMMAND...
    local before
    before=$(cat shared/.lock)
    "$@" >read.out 2>&1 && [ "$(cat shared/.lock)" = "$before" ] || { cat read.out; return 1; }
}
check "eval reads it meanwhile" reads "$snug" eval shared --threads 1
check "inspect reads it meanwhile" reads "$snug" inspect shared
check "plan needs no lock" reads "$snug" plan mlp:16-32-10
kill -9 "$pid"
ended 2>/dev/null
check "the first one was killed" test $status -eq 137
check "what it left of its lock is no lock" "$snug" train "${run[@]}" --out shared --resume --steps "$(($(step_of shared) + 1))"
check "what it left is gone" test ! -e shared/.lock
for command in eval inspect; do "$snug" $command whole >/dev/null 2>&1; done
check "who only reads leaves no lock" test ! -e whole/.lock

# Four at a time, repeatedly, all new or all resuming: one trains, and what it saves is complete.
race() { # FLAGS...
    local i pids=() n_done=0 n_refused=0
    for i in 1 2 3 4; do
        "$snug" train "${run[@]}" --out race "$@" >"race.$i" 2>&1 &
        pids+=($!)
    done
    for i in 1 2 3 4; do
        wait "${pids[i - 1]}"
        case $? in
        0) n_done=$((n_done + 1)) ;;
        1) grep -q '^snug: race: .*process.* is training in this folder' "race.$i" && n_refused=$((n_refused + 1)) ;;
        2) grep -q '^snug: race already holds a run' "race.$i" && n_refused=$((n_refused + 1)) ;; # it came later
        esac
    done
    [ $n_done -ge 1 ] && [ $((n_done + n_refused)) -eq 4 ] || { tail -n 3 race.?; return 1; }
}
races=0
for round in 1 2 3 4 5; do
    rm -rf race
    race --steps 250 && race --resume --steps 500 && same whole race && each_step_once race 500 || break
    races=$((races + 1))
done
check "five times four at once, fresh and resuming: the bytes of one that was alone" test $races -eq 5

# A folder that is not a run is not written to, and a file in place of the lock does not change.
mkdir planted foreign
echo dear >dear
ln -s ../dear planted/.lock
check "a link in the place of the lock is refused" sh -c "! '$snug' train ${run[*]} --steps 2 --out planted 2>err"
check "a link in the place of the lock: one line" grep -q '^snug: planted/.lock: the lock file of a run must not be a symbolic link' err
check "a link in the place of the lock is not followed" test "$(cat dear)" = dear
echo '{}' >foreign/config.json
check "somebody's model is refused" sh -c "! '$snug' train ${run[*]} --steps 2 --out foreign 2>err"
check "somebody's model: no lock is left" test "$(ls -A foreign)" = config.json
# A state.json that cannot be read (ELOOP here, like EIO and ESTALE) does not count as missing.
mkdir unseen
ln -s state.json unseen/state.json
check "a run that cannot be seen is refused" sh -c "! '$snug' train ${run[*]} --steps 2 --out unseen 2>err"
check "a run that cannot be seen: one line" \
    test "$(wc -l <err)" -eq 1 -a "$(grep -c '^snug: unseen/state.json: cannot check whether it exists: ' err)" -eq 1
check "a run that cannot be seen: nothing is written there" test "$(ls -A unseen)" = state.json
check "an over-full plan is refused" sh -c "! '$snug' train ${run[*]} --memory 1K --out over 2>err"
check "an over-full plan: no folder is left" test ! -e over
echo "1..$n"
exit $failed
