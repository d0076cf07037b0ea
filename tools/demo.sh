#!/usr/bin/env bash
# A minute with snug: price a large model, train a small one on snug's own source, let it write.
# Needs ./snug (`make demo` builds it).  Writes only build/demo-run.
set -eu
cd "$(dirname "$0")/.."
run=build/demo-run
rm -rf "$run"

show() {
    if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then printf '\n\033[1m$ %s\033[0m\n' "$*"; else printf '\n$ %s\n' "$*"; fi
    "$@"
}

echo "1. Where would the bytes go? No device, no weights, no data are needed to know."
show ./snug plan gpt2-xl --batch 32 --precision bf16

echo
echo "2. The same arithmetic for a small model, then the training itself, on the source of snug."
show ./snug train gpt-nano src --seq 128 --batch 8 --steps 150 --lr 2e-3 --warmup 15 \
    --schedule cosine --eval-batches 8 --out "$run"

echo
echo "3. What a minute of C teaches it."
show ./snug generate "$run" --prompt '/*' --tokens 300 --temperature 0.7
echo
