#!/usr/bin/env bash
# Runs the op cases under compute-sanitizer, on a machine with a GPU.  memcheck finds kernels of ours that access
# memory outside their operands, racecheck finds races between the threads of a block.
# usage: tools/sanitize-cuda.sh [BUILD]      BUILD: the build folder, default build/release
#
# Only the kernels of src/cuda are checked; those of NVIDIA's libraries would take nearly all of the time.  A run
# without the tool chooses the algorithms of matmuls first.  For racecheck it excludes cuBLASLt's TMA kernels, in
# which the tool ends with "failed to handle a hardware exception".  Every file of cases is cut into parts, one
# process each, JOBS of them at once.  A part fails if it takes longer than LIMIT seconds, if an op does not run,
# or, under memcheck, if a result is wrong.  Results are not checked under racecheck, because the matmul algorithms
# without TMA are used nowhere else and may round differently.
#   SANITIZER=compute-sanitizer  TOOLS='memcheck racecheck'  FILES='attention norm ..'  JOBS=16  LIMIT=240
#   SIZES=10 lines of sizes per part     RACE_ROWS=1100 rows at most in a case under racecheck
# Before that, each tool must find a planted fault: otherwise "no errors" would mean nothing.
set -u
cd "$(dirname "$0")/.."
build=${1:-build/release}
tools=${TOOLS:-memcheck racecheck}
files=${FILES:-$(basename -s .case tests/ops/*.case | tr '\n' ' ')}
jobs=${JOBS:-$(nproc)}
export SANITIZER=${SANITIZER:-compute-sanitizer} LIMIT=${LIMIT:-240} RACE_ROWS=${RACE_ROWS:-1100}
export programs=$build/gpu/tests/cuda
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
help=$("$SANITIZER" --help 2>&1) || { echo "sanitize-cuda: cannot run $SANITIZER: $help"; exit 1; }
export tmp of_racecheck=

has_option() {
    grep -q -- "$1" <<<"$help"
}

# The tool matches the mangled name: _Z, the length of NAME and NAME, whatever the parameters.
write_options() {
    local filter=--kernel-name name
    has_option "$filter" || filter=--kernel-regex # the option's name in older versions
    printf '%s\n' --error-exitcode 9 --target-processes application-only
    sed -nE 's/^(template <.*> )?KERNEL (REGISTERS_MOST\([^()]+\) )?([a-z0-9_]+)\(.*/\3/p' src/cuda/*/*.cu \
        tests/cuda/*.cu | sort -u | while read -r name; do
        printf '%s\n' "$filter" "kns=_Z${#name}$name"
    done
}

# under TOOL PORT COMMAND...: each process needs its own ports
under() {
    local tool=$1 port=$2 options
    shift 2
    mapfile -t options <"$tmp/options"
    if [ "$tool" = racecheck ] && [ -n "$of_racecheck" ]; then options+=("$of_racecheck" 1); fi
    timeout "$LIMIT" "$SANITIZER" --tool "$tool" --port "$port" "${options[@]}" "$@"
}

# choices TOOL: environment that selects the algorithms of matmuls
choices() {
    echo "SNUG_TUNING_CACHE=$tmp/tuning.$1"
    [ "$1" != racecheck ] || echo SNUG_CUDA_UNALIGNED=1
}

# looks TOOL: options of test_cuda_ops
looks() {
    if [ "$1" = racecheck ]; then printf '%s ' -o -n -r "$RACE_ROWS"; else echo -o; fi
}

# part TOOL FILE I N PORT: prints a line with what it found
part() {
    local tool=$1 file=$2 share=$3/$4 port=$5 began=$SECONDS status found
    local log=$tmp/$1.$2.$3
    (
        # shellcheck disable=SC2046 # several words
        export $(choices "$tool") SNUG_CASES="$tmp/$file"
        # shellcheck disable=SC2046
        under "$tool" "$port" "$programs/test_cuda_ops" $(looks "$tool") -p "$share"
    ) >"$log" 2>&1
    status=$?
    found=$(grep -oE 'SUMMARY: .*' "$log" | tail -1)
    [ -n "$found" ] || found='no summary'
    [ $status -eq 124 ] && found="not finished in $LIMIT s"
    printf '%-10s %-12s %-6s rc %-3d %4d s  %s\n' "$tool" "$file" "$share" $status $((SECONDS - began)) "$found" |
        tee "$log.line"
    # the tool reports 0 errors, and the results are right
    grep -qE 'SUMMARY: 0 (errors|hazards)' "$log" && [ $status -eq 0 ] && return
    touch "$log.failed"
    [ $status -eq 124 ] || grep -vE '^\[ +(RUN|OK)' "$log" | head -40
}
export -f under choices looks part

write_options >"$tmp/options"
has_option --racecheck-num-workers && of_racecheck=--racecheck-num-workers # the parts use the cores already
status=0
for tool in $tools; do
    if under "$tool" 49152 "$programs/planted" "$tool" >"$tmp/planted" 2>&1 ||
        ! grep -qE 'SUMMARY: [1-9]' "$tmp/planted"; then
        echo "sanitize-cuda: $tool did not find the planted fault"
        tail -20 "$tmp/planted"
        status=1
    fi
done
[ $status -eq 0 ] || exit 1

for file in $files; do
    mkdir -p "$tmp/$file" "$tmp/cases"
    cp "tests/ops/$file.case" "$tmp/$file" && cp "tests/ops/$file.case" "$tmp/cases" || exit 1
done
for tool in $tools; do
    began=$SECONDS
    # shellcheck disable=SC2046 # several words
    env $(choices "$tool") SNUG_CASES="$tmp/cases" "$programs/test_cuda_ops" $(looks "$tool") -p 1/1 \
        >"$tmp/native" 2>&1 || {
        echo 'sanitize-cuda: the op cases fail without the tool'
        tail -30 "$tmp/native"
        exit 1
    }
    echo "run without $tool: $((SECONDS - began)) s"
done

n=0
for tool in $tools; do
    for file in $files; do
        n_parts=$((($(grep -cE '^(sizes|small)' "tests/ops/$file.case") + ${SIZES:-10} - 1) / ${SIZES:-10}))
        for i in $(seq "$n_parts"); do
            n=$((n + 1))
            echo "$tool $file $i $n_parts $((49152 + 10 * n))"
        done
    done
done >"$tmp/parts"
xargs -P "$jobs" -L 1 bash -c 'part "$@"' part <"$tmp/parts" || status=1

for tool in $tools; do
    n_parts=$(grep -c "^$tool " "$tmp/parts")
    n_failed=$(find "$tmp" -name "$tool.*.failed" | wc -l)
    n_late=$(cat "$tmp/$tool".*.line | grep -c 'not finished')
    echo "$tool: $n_parts parts, $((n_parts - n_failed)) without errors, $((n_failed - n_late)) with, $n_late not finished"
    [ "$n_failed" -eq 0 ] || status=1
done
exit $status
