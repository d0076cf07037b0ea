#!/usr/bin/env bash
# The op cases under compute-sanitizer, on a machine with a GPU: does a kernel of ours touch memory that is not
# its own (memcheck), do threads of a block race (racecheck)?
# usage: tools/sanitize-cuda.sh BUILD      BUILD: the folder of the build, as build/release
#
# Only the kernels of src/cuda are watched; those of NVIDIA's libraries would take nearly all of the time.
# Algorithms of products are chosen by a run without the tool before; for racecheck, which ends with "failed to
# handle a hardware exception" in cuBLASLt's kernels that load by TMA, without those.  Every file of cases is
# cut into parts, a process each, JOBS of them at once; a part that takes longer than LIMIT seconds is ended and
# counts as failed.  So does one with an op that does not run, or, under memcheck, whose results are wrong; the
# algorithms that racecheck's products are left with are used nowhere else, and may round otherwise.
#   SANITIZER=compute-sanitizer  TOOLS='memcheck racecheck'  FILES='attention norm ..'  JOBS=16  LIMIT=240
#   SIZES=10, lines of sizes in a part     RACE_ROWS=1100, the most rows of a case under racecheck
# First, each tool must find a fault that is there: otherwise a summary without errors says nothing.
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
help=$("$SANITIZER" --help 2>&1) || { echo "$SANITIZER does not run: $help"; exit 1; }
export tmp of_racecheck=

has_option() {
    grep -q -- "$1" <<<"$help"
}

# A kernel NAME is _Z, the length of its name and NAME to the tool, whatever its parameters.
write_options() {
    local filter=--kernel-name name
    has_option "$filter" || filter=--kernel-regex # its name in older versions
    printf '%s\n' --error-exitcode 9 --target-processes application-only
    sed -nE 's/^(template <.*> )?KERNEL (REGISTERS_MOST\([0-9]+\) )?([a-z0-9_]+)\(.*/\3/p' src/cuda/*/*.cu \
        tests/cuda/*.cu | sort -u | while read -r name; do
        printf '%s\n' "$filter" "kns=_Z${#name}$name"
    done
}

# under TOOL PORT COMMAND...: each process listens on ports of its own
under() {
    local tool=$1 port=$2 options
    shift 2
    mapfile -t options <"$tmp/options"
    if [ "$tool" = racecheck ] && [ -n "$of_racecheck" ]; then options+=("$of_racecheck" 1); fi
    timeout "$LIMIT" "$SANITIZER" --tool "$tool" --port "$port" "${options[@]}" "$@"
}

# choices TOOL: what products are made by
choices() {
    echo "SNUG_TUNING_CACHE=$tmp/pins.$1"
    [ "$1" != racecheck ] || echo SNUG_CUDA_UNALIGNED=1
}

# looks TOOL: at what of the op cases
looks() {
    if [ "$1" = racecheck ]; then printf '%s ' -o -n -r "$RACE_ROWS"; else echo -o; fi
}

# part TOOL FILE I N PORT: a line of what it found
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
    [ $status -eq 124 ] && found="not done in $LIMIT s"
    printf '%-10s %-12s %-6s rc %-3d %4d s  %s\n' "$tool" "$file" "$share" $status $((SECONDS - began)) "$found" |
        tee "$log.line"
    # 0 errors by the tool, and the results are right
    grep -qE 'SUMMARY: 0 (errors|hazards)' "$log" && [ $status -eq 0 ] && return
    touch "$log.failed"
    [ $status -eq 124 ] || grep -vE '^\[ +(RUN|OK)' "$log" | head -40
}
export -f under choices looks part

write_options >"$tmp/options"
has_option --racecheck-num-workers && of_racecheck=--racecheck-num-workers # JOBS take the cores
status=0
for tool in $tools; do
    if under "$tool" 49152 "$programs/planted" "$tool" >"$tmp/planted" 2>&1 ||
        ! grep -qE 'SUMMARY: [1-9]' "$tmp/planted"; then
        echo "$tool did not find the fault that was planted for it"
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
        echo 'the op cases fail without the tool'
        tail -30 "$tmp/native"
        exit 1
    }
    echo "without $tool $((SECONDS - began)) s"
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
    n_late=$(cat "$tmp/$tool".*.line | grep -c 'not done')
    echo "$tool: $n_parts parts, $((n_parts - n_failed)) without errors, $((n_failed - n_late)) with, $n_late not done"
    [ "$n_failed" -eq 0 ] || status=1
done
exit $status
