#!/usr/bin/env bash
# tools/sanitize-cuda.sh with a stand-in for compute-sanitizer and emulated kernels: how it calls the tool, and that it
# reports every error.
set -u
cd "$(dirname "$0")/../.."
. tests/support/size.bash # which the program below reads
ops=$PWD/build/release/tests/cuda/test_cuda_ops
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
[ -x "$ops" ] || { echo "skip: no $ops"; exit 77; }
n_failed=0
programs=$tmp/build/gpu/tests/cuda
mkdir -p "$programs"
cat >"$programs/test_cuda_ops" <<OPS
#!/usr/bin/env bash
echo "\${SNUG_CUDA_UNALIGNED:-0} \$*" >>"\$CALLS.ops"
case " \$* " in
*' -p 1/1 '*) ;;
*' -n '*) [ -z "\${DEAD:-}" ] || exit 1 ;;
*) [ -z "\${OFF:-}" ] || exit 1 ;;
esac
exec '$ops' "\$@"
OPS
printf '#!/bin/sh\nexit 0\n' >"$programs/planted"
cat >"$tmp/tool" <<'TOOL'
#!/usr/bin/env bash
[ "$1" = --help ] && { echo '--kernel-name --racecheck-num-workers'; exit; }
echo "$*" >>"$CALLS"
n_errors=0
case "$* " in
*/planted*) [ -n "${BLIND:-}" ] || n_errors=1 ;;
*' -p 2/2 '*) n_errors=${FINDS:-0} ;;
esac
[ -n "${SLOW:-}" ] && [ $n_errors -eq 0 ] && exec sleep 20
while [ "${1#--}" != "$1" ]; do shift 2; done
"$@"
of_program=$?
echo "========= ERROR SUMMARY: $n_errors errors"
[ "$n_errors" -eq 0 ] || exit 9
exit $of_program
TOOL
chmod +x "$programs/planted" "$programs/test_cuda_ops" "$tmp/tool"
n_sizes=$(grep -cE '^(sizes|small)' tests/ops/embedding.case)
export CALLS=$tmp/calls SANITIZER=$tmp/tool FILES=embedding SIZES=$(((n_sizes + 1) / 2)) JOBS=2 # two parts

expect() { # NAME STATUS PATTERN [VARIABLE=VALUE...]
    local name=$1 wanted=$2 pattern=$3
    shift 3
    : >"$CALLS"
    env "$@" tools/sanitize-cuda.sh "$tmp/build" >"$tmp/out" 2>&1
    local status=$?
    if [ $status -ne "$wanted" ] || ! grep -qE "$pattern" "$tmp/out"; then
        echo "FAILED: $name: rc $status"
        cat "$tmp/out"
        n_failed=$((n_failed + 1))
    fi
}

expect 'no errors' 0 '^racecheck: 2 parts, 2 without errors, 0 with, 0 not finished'
# Only racecheck runs with unaligned matmuls and unchecked results.
{ [ "$(grep -c '^1 -o -n ' "$CALLS.ops")" -eq 3 ] && [ "$(grep -c '^0 -o -p ' "$CALLS.ops")" -eq 3 ]; } ||
    { echo 'FAILED: how the op cases are called'; cat "$CALLS.ops"; n_failed=$((n_failed + 1)); }
# Every kernel that nvcc has compiled is selected for the tool.
head -1 "$CALLS" | grep -oE 'kns=[^ ]+' | sed 's/kns=/.text./' >"$tmp/watched"
grep -ahoE '\.text\._Z[A-Za-z0-9_]+' build/release/plugin/src/cuda/*/*.cu.o 2>/dev/null | sort -u |
    grep -vFf "$tmp/watched" >"$tmp/missed" &&
    { echo "FAILED: not watched: $(head -3 "$tmp/missed")"; n_failed=$((n_failed + 1)); }
[ "$(wc -l <"$tmp/watched")" -gt 50 ] || { echo 'FAILED: too few kernels are watched'; n_failed=$((n_failed + 1)); }
expect 'an error in one part' 1 '^memcheck: 2 parts, 1 without errors, 1 with, 0 not finished' FINDS=3
expect 'wrong results' 1 '^memcheck: 2 parts, 0 without errors, 2 with, 0 not finished' OFF=1
expect 'ops that do not run' 1 '^racecheck: 2 parts, 0 without errors, 2 with, 0 not finished' DEAD=1
expect 'a tool that sees nothing' 1 'memcheck did not find the planted fault' BLIND=1
expect 'a part that does not end' 1 '^memcheck: 2 parts, 0 without errors, 0 with, 2 not finished' SLOW=1 LIMIT=3 TOOLS=memcheck
exit $((n_failed > 0))
