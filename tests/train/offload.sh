#!/bin/sh
# Offloaded tensors leave the process's memory: the measured peak falls by as much as the plan says, and no file is
# left behind, whatever happens to the process.
set -eu
cd "$(dirname "$0")/../.."
snug=${SNUG:-./snug}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
export TMPDIR=$dir/tmp OMP_WAIT_POLICY=passive
mkdir "$TMPDIR"

fail()
{
    echo "offload.sh: $*" >&2
    exit 1
}

value() # FILE KEY: of the last line
{
    tail -n 1 "$1" | sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p"
}

recipe='--batch 4 --threads 1 --seed 1'
for what in none states; do
    # 16.8M parameters: 134 MB of states
    "$snug" train mlp:2048-4096-2048-10 $recipe --offload $what --steps 2 --json --quiet \
        >"$dir/$what.json" || fail "train --offload $what"
done
states=$((8 * 16801802))
saved=$(($(value "$dir/none.json" planned_bytes) - $(value "$dir/states.json" planned_bytes)))
fell=$(($(value "$dir/none.json" measured_peak_bytes) - $(value "$dir/states.json" measured_peak_bytes)))
[ "$saved" -gt $((states * 8 / 10)) ] || fail "the plan saves $saved of $states bytes of states"
[ $((fell - saved)) -lt 8000000 ] && [ $((saved - fell)) -lt 8000000 ] ||
    fail "the plan saves $saved bytes, the peak of the process fell by $fell"
[ "$(value "$dir/states.json" planned_bytes)" = "$(value "$dir/states.json" allocated_bytes)" ] ||
    fail "planned is not allocated"
[ -z "$(ls "$TMPDIR")" ] || fail "left behind: $(ls "$TMPDIR")"

# `plan` does not touch the disk.
TMPDIR=/there/is/no/such/folder "$snug" plan gpt2 --offload states >/dev/null ||
    fail "plan wants a disk"

# After a kill only the run itself is left.
"$snug" train mlp:64-64-10 --batch 4 --threads 1 --offload states --steps 1000000000 --quiet \
    --out "$dir/run" >"$dir/log" 2>&1 &
pid=$!
n=0
while ! [ -s "$dir/run/metrics.jsonl" ]; do
    n=$((n + 1))
    [ $n -lt 600 ] || fail "the run does not begin: $(cat "$dir/log")"
    sleep 0.1
done
ls -l "/proc/$pid/fd" | grep -q 'run/snug-offload-.*(deleted)' || fail "no store in the run's folder"
kill -KILL $pid
wait $pid 2>/dev/null || true
[ -z "$(ls -a "$dir/run" | grep offload)" ] || fail "left behind: $(ls -a "$dir/run")"

# A full disk: exit status 3 and one line.
status=0
(ulimit -f 100 && exec "$snug" train mlp:512-512-10 --offload states --steps 1) \
    >"$dir/out" 2>"$dir/err" || status=$?
[ $status -eq 3 ] || fail "without room: exit status $status, not 3: $(cat "$dir/err")"
[ "$(wc -l <"$dir/err")" -eq 1 ] || fail "not one line: $(cat "$dir/err")"
echo "offload.sh: states $states bytes, plan saves $saved, peak fell by $fell"
