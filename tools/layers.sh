#!/bin/sh
# Checks every #include "..." under src/ against the table of allowed includes below, that the folders do not include
# each other in a cycle, that no two files have the same name, and that no folder has more than 45 files.
# usage: tools/layers.sh [ROOT]      Prints what breaks a rule; exits with 1 if anything does.
set -eu
cd "${1:-$(dirname "$0")/..}"

# Kernels share the update rules of the optimizers: these headers of optim contain only functions.
kernels='optim/rules.h optim/grad_norm.h optim/direction.h optim/average.h optim/matrix_tools.h'
kernels="$kernels optim/matrix_blocks.h optim/matrix_soap.h optim/eigen.h"
# FOLDER: what it may include besides itself and snug.h -- whole folders or single headers.
rules="
base:
ir:         base
model:      base ir
optim:      base ir
pass:       base ir optim
plan:       base ir
comm:       base
token:      base
data:       base token
exec:       base ir plan/plan.h comm/comm.h
cpu:        base ir exec/backend.h $kernels
cuda:       base ir exec/backend.h $kernels
io:         base ir token
report:     base
recipe:     base optim/optim.h io/file.h
compile:    base ir model optim pass plan recipe exec/backend.h exec/collective_plan.h io/json.h
checkpoint: base ir io comm/comm.h recipe compile/compile.h exec/exec.h
train:      base ir comm/comm.h data/data.h exec io report compile checkpoint
bench:      base exec report compile checkpoint train
api:        base token model optim pass plan comm data exec io report compile checkpoint train bench
cli:
"
# Headers of external libraries (pattern) may be included in one folder only.
foreign='
cuda|cublas|cudnn|nccl   cuda
mpi\.h              comm
dnnl                cpu
'

find src -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' | sort |
    RULES=$rules FOREIGN=$foreign xargs awk '
BEGIN {
    n = split(ENVIRON["RULES"], lines, "\n")
    for (i = 1; i <= n; i++) {
        n_words = split(lines[i], words, /[: ]+/)
        if (n_words == 0)
            continue
        known[words[1]] = 1
        allowed[words[1], words[1]] = 1
        for (k = 2; k <= n_words; k++)
            if (words[k] != "")
                allowed[words[1], words[k]] = 1
    }
    n = split(ENVIRON["FOREIGN"], lines, "\n")
    for (i = 1; i <= n; i++)
        if (split(lines[i], words, / +/) == 2)
            home[words[1]] = words[2]
}
function report(what) {
    printf "%s:%d: %s\n", FILENAME, FNR, what
    n_broken++
}
FNR == 1 {
    split(FILENAME, path, "/")
    folder = path[2]
    if (!(folder in known))
        report("folder src/" folder " has no rule; add one to tools/layers.sh")
    n_files++
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    target = quoted[2]
    n_includes++
    if (target == "snug.h" || folder == "")
        next
    if (split(target, part, "/") < 2)
        report("\"" target "\": write the path relative to src/, as \"folder/file.h\"")
    else if (!((folder, part[1]) in allowed) && !((folder, target) in allowed))
        report("src/" folder " may not include \"" target "\"")
}
/^[ \t]*#[ \t]*include[ \t]*</ {
    for (pattern in home)
        if ($0 ~ pattern && folder != home[pattern])
            report("only src/" home[pattern] " may include " $NF)
}
END {
    if (n_broken > 0) {
        printf "layers: %d violations of the rules in tools/layers.sh\n", n_broken
        exit 1
    }
    if (n_includes == 0) {
        print "layers: no includes found; run it in the root of snug"
        exit 1
    }
    printf "layers: %d files, %d includes, all allowed\n", n_files, n_includes
}'

# Pairs "including folder, included folder"; tsort fails if they form a cycle.
pairs=$(find src -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cc' |
    xargs grep -Eo '^ *# *include "[a-z]+/' | sed -E 's|^src/([a-z]+)/.*"([a-z]+)/|\1 \2|' | sort -u | awk '$1 != $2')
if ! loops=$(printf '%s\n' "$pairs" | tsort 2>&1 >/dev/null); then
    echo "layers: folders include each other in a cycle:"
    printf '%s\n' "$loops"
    exit 1
fi

# One name, one file; and no folder that takes long to look through.
twice=$(find src -type f | sed 's|.*/||' | sort | uniq -d)
if [ -n "$twice" ]; then
    # shellcheck disable=SC2086 # one line
    echo "layers: several files of src/ share a name:" $twice
    exit 1
fi
full=$(find src -type f | sed 's|/[^/]*$||' | sort | uniq -c | awk '$1 > 45 { print $2 " (" $1 " files)" }')
if [ -n "$full" ]; then
    echo "layers: more than 45 files in $full"
    exit 1
fi
