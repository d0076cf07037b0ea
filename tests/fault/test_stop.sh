#!/usr/bin/env bash
# Signals to a run that evaluates, steps or keeps checkpoints: kill -9 in the last evaluation loses nothing; SIGTERM,
# SIGHUP and SIGINT abandon an evaluation and save; a step that takes longer than the grace time is abandoned; a closed
# output pipe does not end a run with --out; and --keep N leaves N loadable checkpoints, whenever the process is killed.
#
# usage: [SNUG=./snug] [KILLS=15; 4 if small] [SEED=N] tests/fault/test_stop.sh       The output is TAP.
# shellcheck source=tests/support/size.bash
. "$(dirname "$0")/../support/size.bash"
# shellcheck source=tests/fault/fault.bash
. "$(dirname "$0")/fault.bash"
kills=${KILLS:-$(sized 4 15)}
seed=${SEED:-$((RANDOM * 32768 + RANDOM))}
start() { # COMMAND...: sets $pid to the program itself, with the default SIGINT
    (trap - INT; exec env --default-signal=INT "$@") >out 2>err &
    pid=$!
    until is_snug || ! kill -0 "$pid" 2>/dev/null; do :; done
}
signal() { # SIGNAL: to the program; sets status
    status=0
    is_snug || { echo "# $pid is not snug"; return 1; }
    kill "-$1" "$pid"
    wait "$pid" 2>/dev/null || status=$?
    pid=
}
until_step() { until [ "$(step_of "$1")" = "$2" ] || ! kill -0 "$pid" 2>/dev/null; do :; done; }
logs() { grep -q "$2" "$1/metrics.jsonl"; }

# A model whose evaluation takes seconds, and a step milliseconds.
mkdir tiny
echo '{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 6, "n_head": 4}' >tiny/config.json
awk 'BEGIN { for (i = 0; i < 200000; i++) print "line " i " of a text that is long enough to train on" }' >text
slow=("$snug" train tiny text --batch 1 --threads 1 --eval-batches 1000000 --quiet)

# ---- the last evaluation ------------------------------------------------------------------------------

check "4 steps without an evaluation" "$snug" train tiny text --batch 1 --threads 1 --eval-every -1 --steps 4 --quiet --out whole
start "${slow[@]}" --steps 4 --out killed
until_step killed 4 # from here on it evaluates
signal KILL
check "kill -9 in the last evaluation" test $status -eq 137
check "kill -9 in the last evaluation: no validation loss yet" sh -c '! grep -q val_loss killed/metrics.jsonl'
check "kill -9 in the last evaluation: the weights are there" same whole killed
check "kill -9 in the last evaluation: they load" "$snug" train tiny --out killed --resume --quiet --eval-every -1
check "kill -9 in the last evaluation: every step is in the log once" each_step_once killed 4
for name in TERM HUP INT; do
    rm -rf stopped
    start "${slow[@]}" --steps 4 --out stopped
    until_step stopped 4
    signal $name
    check "SIG$name in the last evaluation: exit status 0" test $status -eq 0
    check "SIG$name in the last evaluation: it is abandoned" sh -c '! grep -q val_loss stopped/metrics.jsonl'
    check "SIG$name in the last evaluation: says so" grep -q '^snug: all 4 steps are saved in stopped; the evaluation was canceled' err
    check "SIG$name in the last evaluation: the run is whole" same whole stopped
    check "SIG$name in the last evaluation: every step is in the log once" each_step_once stopped 4
done

# ---- one on the way, with a save at the same step ---------------------------------------------------------

for name in TERM HUP; do
    rm -rf stopped
    start "${slow[@]}" --steps 1000 --eval-every 4 --save-every 4 --out stopped
    until_step stopped 4
    signal $name
    check "SIG$name in an evaluation on the way: exit status 0" test $status -eq 0
    check "SIG$name in an evaluation on the way: stops there" grep -q '^snug: stopped at step 4 of 1000; saved in stopped' err
    check "SIG$name in an evaluation on the way: it is abandoned" sh -c '! grep -q val_loss stopped/metrics.jsonl'
    check "SIG$name in an evaluation on the way: the step is saved" same whole stopped
done

# ---- a step -----------------------------------------------------------------------------------------------

until_line() { until grep -q "$1" out || ! kill -0 "$pid" 2>/dev/null; do :; done; }
long=("$snug" train mlp:1024-2048-1024-10 --batch 2048 --micro-batch 16 --threads 1 --eval-every -1 --save-every 1 --steps 50)
start "${long[@]}" --out step
until_line 'step  1/50  saved' # the second is under way
signal HUP
check "SIGHUP in a step: it is finished, and saved" test $status -eq 0 -a "$(step_of step)" -ge 2
check "SIGHUP in a step: says so" grep -q "^snug: stopped at step $(step_of step) of 50; saved in step" err
start "${long[@]}" --grace 0 --out late
until_line 'step  1/50  saved'
signal TERM
check "a step that takes too long is not waited for" test $status -eq 130 -a "$(wc -l <err)" -eq 1
check "a step that takes too long: which checkpoint is there" \
    grep -q "^snug: stopped in step $(($(step_of late) + 1)) of 50, .*the checkpoint of step $(step_of late) is in late" err
check "a step that takes too long: it goes on" "$snug" train mlp:1024-2048-1024-10 --out late --resume --quiet \
    --eval-every -1 --steps $(($(step_of late) + 1))

name=$'la\xc2\x9b31mte\xe2\x80\xae' # a CSI of C1 and a right-to-left override: what a terminal would obey
start "${long[@]}" --grace 0 --out "$name"
until_line 'step  1/50  saved'
signal TERM
check "the line of a step that is not waited for shows names as all others do" grep -q 'is in la?31mte?; continue with --resume$' err

# A step of half a minute.  Repeated signals do not extend the grace time.
catches() { [ $((0x$(sed -n 's/^SigCgt:\t//p' "/proc/$pid/status") >> ($1 - 1) & 1)) -eq 1 ]; }
until_caught() { until catches "$1" 2>/dev/null || ! kill -0 "$pid" 2>/dev/null; do :; done; }
start "$snug" train mlp:1024-2048-1024-10 --batch 65536 --micro-batch 16 --threads 1 --eval-every -1 --steps 1 --grace 2 --out again
until_caught 14 # SIGALRM
while is_snug && kill -HUP "$pid" 2>/dev/null; do :; done
status=0
wait "$pid" 2>/dev/null || status=$?
pid=
check "further signals do not make the grace longer" test $status -eq 130
check "further signals: says which step was cut off" grep -q '^snug: stopped in step 1 of 1, ' err

# A failed step is over: a signal while its error is printed does not count as one in a step.
if [ -r /proc/self/syscall ] && grep -q '^[0-9]' /proc/self/syscall; then
    mkfifo full
    exec 9<>full
    dd if=/dev/zero of=full bs=4096 oflag=nonblock conv=notrunc 2>/dev/null # until it takes no more
    (trap - INT; exec env --default-signal=INT "$snug" train mlp:16-32-10 --batch 4 --threads 1 --eval-every -1 --steps 50 \
        --lr 1e38 --optimizer sgd --grace 0 --quiet) >out 2>full &
    pid=$!
    until grep -q '^1 0x2 ' "/proc/$pid/syscall" 2>/dev/null || ! kill -0 "$pid" 2>/dev/null; do :; done # write(2, ...)
    kill -TERM "$pid"
    until ! kill -0 "$pid" 2>/dev/null || ! catches 15 2>/dev/null; do :; done # its handler has begun: it is not set twice
    timeout 20 cat full >err & # which ends when nobody has the pipe open for writing any more
    reader=$!
    status=0
    wait "$pid" || status=$?
    pid=
    exec 9>&-
    wait "$reader"
    check "a signal while the error of a step is printed: the error stands" test $status -eq 1
    check "a signal while the error of a step is printed: no other line" \
        sh -c 'tr -d "\0" <err | grep -q "^snug: .*finite" && ! tr -d "\0" <err | grep -q "stopped in step"'
else
    n=$((n + 1))
    echo "ok $n # SKIP /proc does not say which call a process is in"
fi

# ---- a reader that goes away --------------------------------------------------------------------------------

until_exit() { status=0; wait "$pid" || status=$?; pid=; }
mkfifo gone
for name in --quiet --json ""; do
    rm -rf piped
    # shellcheck disable=SC2086
    "$snug" train mlp:16-32-10 --batch 4 --threads 1 --eval-every -1 --steps 300 --save-every 100 --out piped $name >gone 2>err &
    pid=$!
    exec 8<gone
    exec 8<&- # nobody reads what it prints
    until_exit
    check "a reader that goes away does not end the run (${name:-as it is})" test "$(step_of piped)" = 300
    check "a reader that goes away: exit status 1 and one line (${name:-as it is})" \
        sh -c "[ $status -eq 1 ] && [ \$(grep -c 'cannot write to standard output' err) -eq 1 ]"
done
"$snug" train mlp:16-32-10 --batch 4 --threads 1 --eval-every -1 --steps 300 --out both >gone 2>&1 &
pid=$!
exec 8<gone
exec 8<&-
until_exit
check "a reader of both streams that goes away does not end the run" test $status -eq 1 -a "$(step_of both)" = 300

# ---- snug eval -----------------------------------------------------------------------------------------------

start "$snug" eval whole --threads 1
until grep -q '^SigCgt:.*[4-7c-f]...$' "/proc/$pid/status" 2>/dev/null || ! kill -0 "$pid" 2>/dev/null; do :; done # SIGTERM is caught
signal TERM
check "SIGTERM in snug eval" test $status -eq 130 -a "$(wc -l <err)" -eq 1
check "SIGTERM in snug eval: says how far it was" grep -q '^snug: the evaluation was canceled after [0-9]* of [0-9]* samples' err

# ---- --keep -----------------------------------------------------------------------------------------------

kept=("$snug" train mlp:16-32-10 --batch 4 --threads 1 --eval-every -1 --quiet)
names() { (cd "$1/checkpoints" && echo *); }
check "20 steps" "${kept[@]}" --steps 20 --out alone
check "20 steps with --keep 3" "${kept[@]}" --steps 20 --save-every 4 --keep 3 --out keep
check "--keep 3: exactly three" test "$(names keep)" = "step-000012 step-000016 step-000020"
check "--keep changes nothing else" same alone keep
for step in 12 16 20; do
    check "step $step can be evaluated" "$snug" eval "keep/checkpoints/step-0000$step" --threads 1
    cp -r "keep/checkpoints/step-0000$step" copy
    check "step $step: a copy goes on" "${kept[@]}" --resume --steps 20 --out copy
    check "step $step: to the same end" same alone copy
    rm -rf copy
done
check "--keep without --out is refused" sh -c "! '$snug' train mlp:16-32-10 --keep 2 --steps 1 2>err && grep -q '^snug: --keep needs' err"

all_files() { find "$1" -exec stat -c '%n %i %s' {} + | sort; }
refused() { # STATUS WORDS FOLDER FLAGS...: in one line, and with nothing changed in the folder
    local status=0 want=$1 words=$2 folder=$3 before
    shift 3
    before=$(all_files "$folder")
    "${kept[@]}" "$@" >out 2>err || status=$?
    [ $status -eq "$want" ] && [ "$(wc -l <err)" -eq 1 ] && grep -q "^snug: .*$words" err && [ "$before" = "$(all_files "$folder")" ] ||
        { echo "# status $status: $(cat err)"; return 1; }
}
check "a run in a kept checkpoint is refused" refused 2 'copy it and pass the copy as --out' keep --resume --steps 30 --out keep/checkpoints/step-000012
check "a fresh one in its place too" refused 2 'copy it and pass the copy as --out' keep --steps 30 --out keep/checkpoints/step-000099
check "and by a link" sh -c "ln -s keep/checkpoints/step-000012 link && cd link && ! '$snug' train mlp:16-32-10 --resume --steps 30 --out . 2>'$work/err' && grep -q 'copy it and pass the copy as --out' '$work/err'"
mkdir blocked linked elsewhere
echo mine >blocked/checkpoints
ln -s ../elsewhere linked/checkpoints
check "--keep with a file in its place is refused before the first step" \
    refused 1 'blocked/checkpoints: --keep needs this path for a folder' blocked --steps 4 --keep 2 --out blocked
check "--keep with a link in its place is refused before the first step" \
    refused 1 'linked/checkpoints: --keep does not follow symbolic links' linked --steps 4 --keep 2 --out linked
check "a run without --keep does not mind it" "${kept[@]}" --steps 4 --out linked
check "--keep with a link is refused before it is resumed" \
    refused 1 'linked/checkpoints: --keep does not follow symbolic links' linked --resume --steps 8 --keep 2 --out linked
mkdir -p keep/checkpoints/step-000001
echo mine >keep/checkpoints/step-000001/notes
check "--keep goes on" "${kept[@]}" --steps 28 --save-every 4 --keep 3 --out keep --resume
check "--keep leaves a folder alone that is not one of its checkpoints" \
    test "$(names keep)" = "step-000001 step-000020 step-000024 step-000028" -a -e keep/checkpoints/step-000001/notes

# Killed at random while it saves and keeps every step: every folder named step-N is a complete run.
whole_kept() { # DIR
    local folder step
    for folder in "$1"/checkpoints/step-??????; do
        [ -d "$folder" ] || continue
        step=${folder##*-}
        [ "$(step_of "$folder")" -eq "$((10#$step))" ] || { echo "# $folder: $(ls "$folder")"; return 1; }
        "$snug" eval "$folder" --threads 1 >eval.out 2>&1 || { echo "# $folder: $(cat eval.out)"; return 1; }
    done
}
echo "# KILLS=$kills SEED=$seed"
RANDOM=$seed
n_killed=0
n_broken=0
spread=60
steps=100000
while [ $n_killed -lt "$kills" ] && [ $n_broken -eq 0 ]; do
    before=$(step_of random)
    if [ -e random/state.json ]; then goes_on=--resume; else goes_on=; fi
    # shellcheck disable=SC2086
    start "${kept[@]}" --steps $steps --save-every 1 --keep 3 --out random $goes_on
    sleep "$(printf '0.%06d' $((RANDOM * 32768 % (spread * 1000) + RANDOM % 1000)))"
    signal KILL
    if [ $status -eq 137 ]; then n_killed=$((n_killed + 1)); else n_broken=1; cat err; fi
    whole_kept random || n_broken=1
    [ "$(step_of random)" != "$before" ] || [ $spread -ge 900 ] || spread=$((spread + 20))
done
check "$kills kills with --keep: all that is kept is whole" test $n_killed -eq "$kills" -a $n_broken -eq 0
last=$(($(step_of random) + 1))
check "killed with --keep: goes on" "${kept[@]}" --steps $last --save-every 1 --keep 3 --out random --resume
check "killed with --keep: exactly three, and no rest of others" \
    test "$(names random)" = "$(printf 'step-%06d step-%06d step-%06d' $((last - 2)) $((last - 1)) $last)"
echo "1..$n"
exit $failed
