#!/usr/bin/env bash
# A minute with snug: price a large model, train a small one on snug's own source, let it write.
# Needs ./snug (`make demo` builds it).  Writes only build/demo-run.
set -eu
cd "$(dirname "$0")/.."
run=build/demo-run
rm -rf "$run"

show() {
    printf '\n\033[1m$ %s\033[0m\n' "$*" | if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then cat; else sed 's/\x1b\[[0-9]*m//g'; fi
    "$@"
}

echo "1. Where would the bytes go? No device, no weights, no data are needed to know."
show ./snug plan gpt2-xl

echo
echo "2. The same arithmetic, then the training itself: planned and allocated bytes are equal."
show ./snug train gpt-nano src --steps 60 --batch 4 --lr 1e-3 --eval-batches 8 --out "$run"

echo
echo "3. What sixty steps on C source teach it."
show ./snug generate "$run" --prompt '/* '
echo
