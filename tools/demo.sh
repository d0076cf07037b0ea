#!/usr/bin/env bash
# snug in a minute: plan a large model, train a small one on short stories, generate a story.
# Needs ./snug (`make demo` builds it).  Writes only to build/demo.
set -eu
cd "$(dirname "$0")/.."
out=build/demo
rm -rf "$out"
mkdir -p "$out"

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then bold=$'\033[1m' plain=$'\033[0m'; fi
show() { # COMMAND...: prints it, wrapped at 80 columns with backslashes, and runs it
    local line='$' unit='' word
    printf '\n%s' "$bold"
    for word in "$@" --; do
        case $word in *' '*) word="'$word'" ;; esac
        case $word in
        --*) # a flag stays with its value
            if [ $((${#line} + ${#unit})) -gt 77 ]; then
                printf '%s \\\n' "$line"
                line='   '
            fi
            line="$line$unit"
            unit=" $word"
            ;;
        *) unit="$unit $word" ;;
        esac
    done
    printf '%s%s\n' "$line" "$plain"
    "$@"
}

echo
echo "1. Where do the bytes go? A plan needs no GPU, no weights and no data."
show ./snug plan gpt2-xl --batch 32 --precision bf16

echo
echo "2. Train lm-nano, a Llama with 0.7 million parameters, from random weights. Its"
echo "   tokens are bytes, so it starts without a single word. The text is 1,500 short"
echo "   stories (examples/stories.awk). The first one:"
awk -f examples/stories.awk >"$out/stories.txt"
echo
sed -n '/^$/q; s/^/   /p' "$out/stories.txt"
show ./snug train lm-nano "$out/stories.txt" --batch 8 --steps 440 --optimizer muon --lr 0.014 \
    --schedule cosine --warmup 20 --eval-batches 4 --out "$out/run"

echo
echo "3. Let it write a story of its own."
show ./snug generate "$out/run" --prompt 'One day, ' --tokens 600 --temperature 0.5
echo
