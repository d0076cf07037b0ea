#!/usr/bin/env bash
# tools/layers.sh must accept the tree as it is and report each kind of forbidden include.
set -eu
cd "$(dirname "$0")/../.."
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cp -r src "$tmp/src"
tools/layers.sh "$tmp" >/dev/null

# must_fail FILE LINE WORDS: with this line added, layers.sh fails and names the file
must_fail() {
    cp -r src "$tmp/again"
    mkdir -p "$tmp/bad/src" "$(dirname "$tmp/again/$1")"
    rm -rf "$tmp/bad/src" && mv "$tmp/again" "$tmp/bad/src"
    printf '%s\n' "$2" >>"$tmp/bad/src/$1"
    if said=$(tools/layers.sh "$tmp/bad"); then
        echo "not seen: $2 in src/$1"
        exit 1
    fi
    case "$said" in *"src/$1:"*"$3"*) ;; *)
        echo "said \"$said\", without src/$1 and \"$3\""
        exit 1
        ;;
    esac
}
must_fail base/text.c '#include "ir/program.h"' 'src/base may not include "ir/program.h"'
must_fail ir/shape.c '  #  include "plan/plan.h"' 'may not include'
must_fail cli/main.c '#include "base/text.h"' 'src/cli may not include'
must_fail cpu/ref/ref_table.c '#include "exec/exec.h"' 'may not include'
must_fail cuda/emulation/stand_in.cc '#include "pass/pass.h"' 'may not include'
must_fail ir/shape.c '#include "program.h"' 'write the path relative to src/'
must_fail pass/new_pass.c '#include "plan/plan.h"' 'may not include'
must_fail plan/place.c '#include <mpi.h>' 'only src/comm may include <mpi.h>'
must_fail novel/thing.c '#include "base/text.h"' 'has no rule'
mkdir -p "$tmp/empty/src"
if tools/layers.sh "$tmp/empty" >/dev/null 2>&1; then
    echo "an empty tree passed"
    exit 1
fi

# refused NAME WORDS: the tree in $tmp/bad breaks a rule about files
refused() {
    said=$(tools/layers.sh "$tmp/bad") && { echo "not seen: $1"; exit 1; }
    case "$said" in *"$2"*) ;; *) echo "$1: said \"$said\", without \"$2\""; exit 1 ;; esac
    rm -rf "$tmp/bad/src" && cp -r src "$tmp/bad/src"
}
rm -rf "$tmp/bad/src" && cp -r src "$tmp/bad/src"
: >"$tmp/bad/src/ir/plan.c"
refused 'two files plan.c' 'share a name: plan.c'
for i in $(seq 46); do : >"$tmp/bad/src/report/more_$i.c"; done
refused 'a full folder' 'more than 45 files in src/report'
