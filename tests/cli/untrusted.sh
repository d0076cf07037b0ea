#!/bin/bash
# Untrusted files, folders and names: endless files, links to other places, sizes that are too large, and control
# characters.
#
# usage: [SNUG=./snug] tests/cli/untrusted.sh
# shellcheck disable=SC2016 # conditions that `check` evaluates later
set -u

snug=$(realpath "${SNUG:-$(dirname "$0")/../../snug}") || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
unset SNUG_DATA NO_COLOR
export XDG_CACHE_HOME=$work/cache OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
number=0
failed=0

check() { # NAME COMMAND...: passes when the command succeeds
    local name=$1
    shift
    number=$((number + 1))
    if "$@"; then
        echo "ok $number - $name"
    else
        failed=$((failed + 1))
        echo "not ok $number - $name"
        sed 's/^/#     /' err
    fi
}
run() { # ARGUMENTS...: leaves $status, out, err
    timeout 30 "$snug" "$@" >out 2>err </dev/null
    status=$?
}
refused() { # STATUS WORDS...: that status, and one line that has the words
    [ $status -eq "$1" ] || { echo "# exit status $status, not $1"; return 1; }
    shift
    [ "$(wc -l <err)" -eq 1 ] || { echo "# not one line"; return 1; }
    for words; do
        grep -qF -e "$words" err || { echo "# the line lacks \"$words\""; return 1; }
    done
}

mkdir tiny
echo '{"model_type": "gpt2", "vocab_size": 128, "n_positions": 16, "n_embd": 8, "n_layer": 1,
"n_head": 2}' >tiny/config.json
for i in $(seq 200); do echo "line $i of a text to train with"; done >text.txt
train() { run train tiny text.txt --batch 2 --eval-every -1 "$@"; }

# ---- files that never end ------------------------------------------------------------------
# `timeout` ends a reader that waits, and its status 124 is not the expected one.

mkfifo pipe
mkdir pipes
mkfifo pipes/config.json
truncate -s 10G huge
mkdir empty
for recipe in /dev/zero pipe empty; do
    run plan mlp --recipe $recipe
    check "recipe: $recipe is refused" refused 1 "recipe $recipe" 'not a regular file'
done
run plan mlp --recipe <(echo 'batch = 2')
check "recipe: a process substitution is refused" refused 1 /dev/fd 'a pipe, not a regular file'
run plan mlp --recipe huge
check "recipe: 10 GB are refused" refused 1 'recipe huge' 'bytes; at most'
printf 'batch = 2\0\n' >nul.recipe
run plan mlp --recipe nul.recipe
check "recipe: a NUL byte is refused" refused 1 'recipe nul.recipe' NUL
run plan pipes
check "config.json: a pipe is refused" refused 1 pipes/config.json 'not a regular file'
ln -s /dev/zero tiny-zero.bin
run train tiny pipe
check "data: a pipe is refused" refused 1 pipe 'not a regular file'
run train tiny tiny-zero.bin
check "data: a device is refused" refused 1 tiny-zero.bin 'not a regular file'
run inspect pipe
check "inspect: a pipe is refused" refused 1 pipe 'not a regular file'
mkfifo weights.safetensors
run inspect weights.safetensors
check "inspect: weights that are a pipe" refused 1 weights.safetensors 'not a regular file'
mkdir -p cache/snug
mkfifo cache/snug/rates.json
run plan mlp
check "rates.json: a pipe is passed over" [ $status -eq 0 ]
rm -r cache

# ---- files that lead elsewhere -------------------------------------------------------------

planted() { # FOLDER NAME: creates a link of that name to a file that must not change
    mkdir -p "$1"
    echo 'dear to somebody' >"victim"
    ln -s "$work/victim" "$1/$2"
}
unharmed() { [ "$(cat victim)" = 'dear to somebody' ]; }
planted linked metrics.jsonl
train --steps 2 --out linked
check "metrics.jsonl: a link is refused" refused 1 linked/metrics.jsonl 'symbolic link'
check "metrics.jsonl: what a link leads to is left alone" unharmed
train --steps 2 --out resumed
mv resumed/metrics.jsonl kept
planted resumed metrics.jsonl
train --steps 3 --out resumed --resume
check "metrics.jsonl: a link is refused when a run goes on" refused 1 'symbolic link'
check "metrics.jsonl: what a link leads to is left alone then too" unharmed
mkdir piped
mkfifo piped/metrics.jsonl
train --steps 2 --out piped
check "metrics.jsonl: a pipe is refused" refused 1 piped/metrics.jsonl 'not a regular file'
for name in plan.json plan.json.tmp config.json.tmp model.safetensors.new state.json.tmp \
    optimizer.safetensors.new; do
    rm -rf linked
    planted linked $name
    train --steps 2 --out linked
    check "$name: what a link leads to is left alone" unharmed
    check "$name: the run is written all the same" [ $status -eq 0 ]
done
mkdir -p linked-adapter elsewhere
ln -s "$work/elsewhere" linked-adapter/adapter
train --steps 2 --out linked-adapter --lora 2
check "adapter: a link to a folder is refused" refused 2 linked-adapter/adapter 'symbolic link'
check "adapter: nothing is written to where it leads" [ -z "$(ls elsewhere)" ]

# ---- a limit on the size of files ----------------------------------------------------------

train --steps 4 --out whole
train --steps 2 --out limited
(ulimit -f 4 && train --steps 4 --out limited --resume; echo $status >status)
status=$(<status)
check "RLIMIT_FSIZE: a save that it stops is one line" refused 1 limited 'File too large' 'ulimit -f'
run eval limited
check "RLIMIT_FSIZE: the checkpoint before is whole" [ $status -eq 0 ]
train --steps 4 --out limited --resume
check "RLIMIT_FSIZE: the run goes on from there" [ $status -eq 0 ]
check "RLIMIT_FSIZE: to the same bits" cmp -s whole/model.safetensors limited/model.safetensors
(ulimit -f 1 && exec "$snug" plan gpt2 --timeline >out 2>err)
status=$?
check "RLIMIT_FSIZE: a result that cannot be written" refused 1 'standard output' 'File too large'

# ---- models that are too large -------------------------------------------------------------

sized() { # KEY VALUE: a config.json with that size
    mkdir -p sized
    sed "s/\"$1\": [0-9]*/\"$1\": $2/" tiny/config.json >sized/config.json
    run plan sized --json
}
for row in 'n_layer 100000' 'n_layer 513' 'n_head 100000' 'n_embd 10000000' \
    'n_positions 2000000000' 'vocab_size 2000000000'; do
    # shellcheck disable=SC2086 # two words
    sized $row
    check "config.json: ${row/ /: } is refused by name" refused 1 sized/config.json "\"${row% *}\""
done
sized n_layer 512
check "config.json: 512 layers are planned" [ $status -eq 0 ]
echo '{"model_type": "gpt2", "vocab_size": 16777216, "n_positions": 16777216, "n_embd": 131072,
"n_layer": 512, "n_head": 1024}' >sized/config.json
(ulimit -v 2000000 && run plan sized --json; echo $status >status)
status=$(<status)
check "config.json: all sizes at their bounds are planned, or refused, in 2 GB" \
    eval '[ $status -eq 0 ] || refused 2'
run plan "mlp:$(seq -s- 1 2000)"
check "mlp: 2000 layers are refused" refused 2 mlp
run plan "mlp:$(printf '268435456-%.0s' $(seq 40))10"
check "mlp: layers of 2^28 are planned, or refused" eval '[ $status -eq 0 ] || refused 2'
run plan psi:1e17
check "psi: 1e17 parameters are refused" refused 2 psi
run plan gpt2 --pipeline gpipe --ranks 2 --batch 10000 --micro-batch 1
check "plan: ten thousand micro-batches of a pipeline are refused" refused 2 'ops' '--micro-batch'

# ---- names that a terminal would obey ------------------------------------------------------

shows_only() { # FILE: no control characters but newlines, and valid UTF-8
    ! LC_ALL=C grep -qP '[\x00-\x09\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]' "$1" &&
        iconv -f UTF-8 -t UTF-8 "$1" >iconv.out 2>&1
}
evil=$'a\e]0;title\a\x7f\xc2\x9b31m\xff\xe2\x80\xaeb'
cp -r tiny "$evil"
run plan "$evil"
check "plan: the name of a folder" eval '[ $status -eq 0 ] && shows_only out'
run plan "$evil" --timeline
check "plan --timeline: the name of a folder" eval '[ $status -eq 0 ] && shows_only out'
run plan "$evil" --compare ';--micro-batch 2' --batch 2
check "plan --compare: the name of a folder" eval '[ $status -eq 0 ] && shows_only out'
run plan "$evil" --json
check "plan --json: the name of a folder" eval '[ $status -eq 0 ] && shows_only out'
check "plan --json: it can be read" python3 -c 'import json; json.load(open("out"))'
run fit "$evil" --memory 1G
check "fit: the name of a folder" eval '[ $status -eq 0 ] && shows_only out'
run plan "$evil/no$evil"
check "errors: the name of a file" eval 'refused 2 && shows_only err'
run plan mlp "--$evil"
check "errors: a flag" eval 'refused 2 && shows_only err'
run data "$evil"
check "errors: the name of a data set" eval 'refused 2 && shows_only err'
cp text.txt "text$evil.txt"
run train "$evil" "text$evil.txt" --steps 1 --eval-every -1
check "train: names of a model and of data" eval '[ $status -eq 0 ] && shows_only out'
run inspect "text$evil.txt"
check "inspect: the name of a text" eval '[ $status -eq 0 ] && shows_only out'
mv whole "whole${evil/$'\xff'/}"
run inspect "whole${evil/$'\xff'/}"
check "inspect: the name of a run" eval '[ $status -eq 0 ] && shows_only out'
run train tiny text.txt --steps 1 --eval-every -1 --out "new${evil/$'\xff'/}"
check "train --out: the name of the folder" eval '[ $status -eq 0 ] && shows_only out'
run train tiny text.txt --steps 1 --eval-every -1 --out bytes --lora-from $'\xff' --lora 2
check "train --lora-from: a name that is not UTF-8" eval '[ $status -ne 0 ] && shows_only err'
run train tiny "text$evil.txt" --steps 1 --eval-every -1 --out bytes
check "train: data that a run cannot name is refused first" refused 2 'not UTF-8'
# shellcheck disable=SC2016 # the escapes are JSON's
header='{"\u001b[2J\u009b31m\u007f\u2028name": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
{ printf "\\x$(printf %x ${#header})\0\0\0\0\0\0\0%s\0\0\0\0" "$header"; } >names.safetensors
run inspect names.safetensors
check "inspect: the name of a tensor" eval '[ $status -eq 0 ] && shows_only out && grep -q name out'

# A model may generate any bytes: a terminal gets no control characters, a pipe gets the exact bytes.
sized vocab_size 256
run train sized text.txt --batch 2 --steps 1 --eval-every -1 --out talker
prompt=$'caf\xc3\xa9 \xc2\x9b31m \e[2J'
if command -v script >/dev/null; then
    printf '%q ' "$snug" generate talker --prompt "$prompt" --tokens 400 >say.sh
    script -qec 'bash say.sh' /dev/null </dev/null 2>&1 | tr -d '\r\t' >out
    check "generate: on a terminal" eval 'shows_only out && grep -q "^café ?31m ?\[2J" out'
else
    number=$((number + 1))
    echo "ok $number # SKIP no script(1) to make a terminal"
fi
run generate talker --prompt "$prompt" --tokens 4
check "generate: in a pipe" eval 'LC_ALL=C grep -qaF "$prompt" out'

echo "1..$number"
echo "untrusted: $((number - failed)) passed, $failed failed"
[ $failed -eq 0 ]
