#!/bin/sh
# Bad input on the command line: every mistake gets its exit status and a one-line message, and changes no file.
#
# usage: [SNUG=./snug] tests/cli/test_cli.sh [-v]
#
# A row of the tables below is   status | words, words | arguments of snug
# and passes if snug exits with that status, prints exactly one line on standard error that begins with "snug: " and
# contains all the words (in any case), and no file under the working folder changes.  The shell evaluates the
# arguments, in a folder with the files that `prepare` creates.  The output is TAP; -v shows the message of each row.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
snug=${SNUG:-$root/snug}
snug=$(realpath "$snug") || exit 1
verbose=0
[ "${1:-}" = -v ] && verbose=1
work=$(mktemp -d) || exit 1
logs=$(mktemp -d) || exit 1
: >"$logs/err"
tiny_disk=
clean_up() {
    [ -z "$tiny_disk" ] || umount "$tiny_disk" 2>/dev/null
    rm -rf "$work" "$logs"
}
trap clean_up EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
unset SNUG_DATA NO_COLOR
export XDG_CACHE_HOME="$logs/cache" # for the rates that bench saves
export OMP_WAIT_POLICY=passive # spinning threads are very slow on a busy machine
passed=0
failed=0
skipped=0

report() { # ok|not ok, NAME
    echo "$1 $((passed + failed + skipped)) - $2"
    { [ $verbose = 0 ] && [ "$1" = ok ]; } || sed 's/^/#     /' "$logs/err"
}
pass() { # NAME
    passed=$((passed + 1))
    report ok "$1"
}
fail() { # NAME WHY
    failed=$((failed + 1))
    report 'not ok' "$1"
    echo "#     $2"
}
skip() { # WHY
    skipped=$((skipped + 1))
    echo "skip: $1"
    echo "ok $((passed + failed + skipped)) # SKIP $1"
}
check() { # NAME WHY COMMAND...: passes when the command succeeds
    name=$1
    why=$2
    shift 2
    if "$@"; then pass "$name"; else fail "$name" "$why"; fi
}

# Names, sizes and contents of all files here.
fingerprint() { find . -type f -exec cksum {} + 2>/dev/null | sort; find . -type d | sort; }

run() { # ARGUMENTS...: leaves $status, $logs/out, $logs/err
    timeout 60 "$snug" "$@" >"$logs/out" 2>"$logs/err" </dev/null
    status=$?
}

one_line_with() { # WORDS, WORDS: prints what is missing, if anything is
    complaints "$1" | paste -sd ';' -
}
complaints() {
    [ "$(wc -l <"$logs/err")" -eq 1 ] || { echo "not one line on standard error"; return; }
    grep -q '^snug: ' "$logs/err" || { echo "the line does not begin with snug:"; return; }
    printf '%s\n' "$1" | tr ',' '\n' | while read -r word; do
        grep -qiF -e "$word" "$logs/err" || echo "the line lacks \"$word\""
    done
}

bad_row() { # STATUS WORDS ARGUMENTS
    rm -rf new # of a row that failed
    before=$(fingerprint)
    eval "run $3"
    complaint=$(one_line_with "$2")
    if [ $status -ne "$1" ]; then
        fail "snug $3" "exit status $status, not $1"
    elif [ -n "$complaint" ]; then
        fail "snug $3" "$complaint"
    elif [ "$before" != "$(fingerprint)" ]; then
        fail "snug $3" "files changed"
    else
        pass "snug $3"
    fi
}

table() { # rows on standard input
    while IFS='|' read -r row_status row_words row_args; do
        case $row_status in '' | \#*) continue ;; esac
        # shellcheck disable=SC2086,SC2116 # blanks around the bars go
        bad_row $row_status "$(echo $row_words)" "${row_args# }"
    done
}

# ---- files ---------------------------------------------------------------------------------

little_endian() { # NUMBER BYTES
    number=$1
    count=$2
    while [ "$count" -gt 0 ]; do
        # shellcheck disable=SC2059 # the octal escape is the format
        printf "\\$(printf %03o $((number % 256)))"
        number=$((number / 256))
        count=$((count - 1))
    done
}

header_bytes() { od -An -tu8 -N8 "$1" | tr -d ' '; }
header() { tail -c +9 "$1" | head -c "$(header_bytes "$1")"; }
body() { tail -c +$(($(header_bytes "$1") + 9)) "$1"; }

# weights NAME SED-SCRIPT: a folder with the good run's config and its weights, the header edited.
# (Only these two: the checksums of a run would find the edit before the reader does.)
weights() {
    mkdir "$1" || exit 1
    cp run/config.json "$1"
    header run/model.safetensors | sed "$2" >"$logs/header"
    {
        little_endian "$(wc -c <"$logs/header")" 8
        cat "$logs/header"
        body run/model.safetensors
    } >"$1/model.safetensors"
}

field() { # TENSOR FIELD VALUE: a sed script that sets a string or list in a tensor's entry
    printf 's/\\("%s": *{[^}]*"%s": *\\)[["][^]"]*[]"]/\\1%s/' "$1" "$2" "$3"
}

copy_weights() { # NAME: the same, unedited
    mkdir "$1" && cp run/config.json run/model.safetensors "$1" || exit 1
}

nan_weights() { # RUN NAME OFFSET: the same with a NaN there in its tensors
    mkdir "$2" && cp "$1"/config.json "$1"/model.safetensors "$2" || exit 1
    printf '\377\377\377\377' | dd of="$2"/model.safetensors bs=1 conv=notrunc \
        seek=$(($(header_bytes "$1"/model.safetensors) + 8 + $3)) 2>"$logs/err"
}

idx() { # MAGIC COUNT SIDES... : big-endian header of an IDX file, and that many zeros
    # shellcheck disable=SC2059 # octal escapes
    printf "$1"
    shift
    product=1
    for side in "$@"; do
        # shellcheck disable=SC2059
        printf "\\000\\000\\$(printf %03o $((side / 256)))\\$(printf %03o $((side % 256)))"
        product=$((product * side))
    done
    head -c $product /dev/zero
}

shard() { # TOKEN COUNT: llm.c's layout
    little_endian 20240520 4
    little_endian 1 4
    little_endian "$2" 4
    head -c 1012 /dev/zero
    i=0
    while [ $i -lt "$2" ]; do
        little_endian "$1" 2
        i=$((i + 1))
    done
}

prepare() {
    mkdir tiny
    printf '%s' '{"model_type": "gpt2", "vocab_size": 128, "n_positions": 16, "n_embd": 8,
"n_layer": 1, "n_head": 2}' >tiny/config.json
    awk 'BEGIN { for (i = 0; i < 200; i++) print "line " i " of a text to train with" }' >text.txt
    : >empty.txt
    printf 'short' >short.txt
    sed "s/text/$(printf 'caf\303\251')/" text.txt >beyond.txt # bytes above the vocabulary of 128
    shard 7 600 >good.bin
    shard 999 600 >beyond.bin
    for i in 1 2 3 4 5 6 7 8 9; do little_endian $((i * 3)) 4; little_endian $i 4; done >wide.bin
    head -c 1100 good.bin >cut.bin
    printf 'abcdefg' >odd.bin
    printf 'PK\003\004 and more of a zip' >magic.bin
    for set in digits cut magic labels; do
        mkdir $set
        idx '\000\000\010\003' 20 2 2 >$set/train-images-idx3-ubyte
        idx '\000\000\010\001' 20 >$set/train-labels-idx1-ubyte
        idx '\000\000\010\003' 10 2 2 >$set/t10k-images-idx3-ubyte
        idx '\000\000\010\001' 10 >$set/t10k-labels-idx1-ubyte
    done
    head -c 50 digits/train-images-idx3-ubyte >cut/train-images-idx3-ubyte
    printf 'PK\003\004 this is something else entirely' >magic/train-images-idx3-ubyte
    idx '\000\000\010\001' 7 >labels/train-labels-idx1-ubyte
    echo 'batch = 2' >good.recipe
    echo 'bathc = 2' >bad.recipe
    printf 'batch = 2\n# %02000d\n' 0 >long.recipe
    echo 'a regular file' >file

    run train tiny text.txt --steps 2 --batch 2 --out run
    [ $status -eq 0 ] || { fail "a good run to start from" "exit status $status"; return 1; }
    run train mlp:4-8-3 digits --steps 2 --batch 4 --out other
    [ $status -eq 0 ] || { fail "a good classifier to start from" "exit status $status"; return 1; }

    mkdir wordy
    sed 's/"vocab_size": *[0-9]*/"vocab_size": 300/' tiny/config.json >wordy/config.json
    run train wordy --steps 1 --batch 2 --out words
    [ $status -eq 0 ] || { fail "a model of tokens to start from" "exit status $status"; return 1; }

    run train wordy text.txt --tokenizer bytes --steps 1 --batch 2 --out spoken
    [ $status -eq 0 ] || { fail "a model of bytes to start from" "exit status $status"; return 1; }
    mkdir texts
    cp text.txt texts
    echo '{"text": "a line of JSON for each document, with its text in a key of it"}' >lines.jsonl
    cp lines.jsonl lines.jsonl.gz
    mkdir strange
    cp lines.jsonl strange/metrics.jsonl
    cp -r run begun # as it is before the first save
    rm begun/state.json begun/*.safetensors

    copy_weights whole
    copy_weights cut-weights
    head -c "$(($(wc -c <run/model.safetensors) - 10))" run/model.safetensors \
        >cut-weights/model.safetensors
    copy_weights long-header
    { little_endian 99999999 8; tail -c +9 run/model.safetensors; } >long-header/model.safetensors
    copy_weights stub
    printf 'abc' >stub/model.safetensors
    nan_weights run nan-weights 4096 # wpe.weight; wte.weight is 128 x 8 floats before it
    nan_weights other nan-hidden 0   # relu makes 0 of NaN
    weights bad-json 's/}$/,,/'
    weights wrong-dtype "$(field wte.weight dtype '"I32"')"
    weights odd-dtype "$(field wte.weight dtype '"Q7"')"
    weights wrong-shape "$(field wte.weight shape '[8,128]')"
    weights far-offset "$(field wte.weight data_offsets '[999990000,999994096]')"
    weights unused-bytes "$(field wte.weight data_offsets '[32,4128]')"
    weights shared-bytes "$(field ln_f.bias data_offsets '[0,32]')"
    weights missing 's/wte\.weight/xyz.weight/'
    weights extra 's/^{/{"surplus":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},/'
    weights same-key 's/"[a-z.]*wte.weight": *{[^}]*}/&,&/'
    for name in wrong-dtype odd-dtype wrong-shape far-offset unused-bytes shared-bytes missing \
        extra same-key; do
        cmp -s $name/model.safetensors run/model.safetensors && fail "$name" "the edit did not take"
    done
    mkdir bad-config
    echo '{"model_type": "gpt2", ' >bad-config/config.json
    mkdir odd-config
    echo '{"model_type": "quantum"}' >odd-config/config.json
    mkdir untied
    sed 's/}/, "tie_word_embeddings": false}/' tiny/config.json >untied/config.json
    return 0
}

# ---- tables --------------------------------------------------------------------------------

words_and_flags() {
    table <<'END'
# commands
2 | no command, hlep, help                 | hlep
2 | no command, trian, train               | trian gpt2
2 | unknown benchmark, gpu, cpu, cuda      | bench gpu
2 | takes only cpu, remove "c"             | bench cpu mlp:4-3 c
2 | needs NAME                             | data
2 | unknown data set, mnits, fashion-mnist | data mnits
1 | curl, download train-images, put them into | data fashion-mnist digits --from http://127.0.0.1:9
1 | cannot create this folder              | data cifar-10 text.txt/below
2 | folder name is empty                   | data cifar-10 ""
2 | needs cpu                              | bench
2 | command comes first                    | --batch 3
2 | needs MODEL                            | plan
2 | needs MODEL                            | fit
2 | fit needs a memory budget              | fit gpt2
2 | --allow, seed, state-bits, master      | fit gpt2 --memory 4G --allow seed
2 | --quiet, only the command              | fit gpt2 --memory 4G --quiet --json
2 | --quiet, --timeline                    | plan gpt2 --quiet --timeline
2 | --compare, --json                      | plan gpt2 --timeline --compare ";"
2 | --micro-batch, no value                | plan gpt2 --compare "--micro-batch;"
2 | --micro-batch, no value                | plan gpt2 --compare ";--micro-batch"
2 | no recipe key, bathc                   | plan gpt2 --compare "; bathc=3"
2 | target, a100                           | plan gpt2 --target tpu
2 | takes only MODEL, remove "surplus"     | plan gpt2 surplus
2 | needs MODEL                            | train --steps 3
2 | needs RUN                              | eval
2 | --prompt                               | generate run
2 | no operand                             | ops all
# flags
2 | --bathc, did you mean --batch?         | plan gpt2 --bathc 3
2 | --stpes, did you mean --steps?         | train gpt2 --stpes 3
# flags that people know from elsewhere
2 | --learning-rate, use --lr              | train gpt2 --learning-rate 1e-3
2 | --batch-size, use --batch              | plan gpt2 --batch-size 4
2 | --Batch_Size, use --batch              | plan gpt2 --Batch_Size=4
2 | --weight_decay, did you mean --weight-decay? | plan gpt2 --weight_decay 0.1
2 | --fp16, use --precision fp16           | plan gpt2 --fp16
2 | --bf16, use --precision bf16           | train gpt2 --bf16
2 | use --checkpoint every:1               | plan gpt2 --gradient-checkpointing
2 | use --micro-batch M, batch / (ranks x accumulation steps) | train gpt2 --gradient-accumulation-steps 4
2 | use --micro-batch                      | train gpt2 --per_device_train_batch_size 4
2 | use --epochs                           | train gpt2 --num-train-epochs 3
2 | use --steps                            | train gpt2 --max-steps 3
2 | snug train has --steps                 | plan gpt2 --max-steps 3
2 | snug generate has --tokens             | plan gpt2 --max-new-tokens 3
2 | snug generate has --temperature        | train gpt2 --temp 0.5
2 | use --out                              | train gpt2 --output_dir new
2 | use --optimizer                        | train gpt2 --optim adamw
2 | use --warmup                           | train gpt2 --warmup-steps 3
2 | use --schedule                         | train gpt2 --lr-scheduler-type cosine
2 | use --clip                             | train gpt2 --max-grad-norm 1
2 | use --lora 16 --lora-base 4            | plan gpt2 --load-in-4bit
2 | use --lora 16                          | plan gpt2 --use-lora
2 | use --zero                             | plan gpt2 --zero-stage 2
# misspelled values and models
2 | "float16", did you mean fp16?          | plan gpt2 --precision float16
2 | "Adam", did you mean adam?           | plan gpt2 --optimizer Adam
2 | "adamm", did you mean adam             | plan gpt2 --optimizer adamm
2 | "adamw_torch", did you mean adamw?     | plan gpt2 --optimizer adamw_torch
2 | "sqr", did you mean sqrt?              | plan gpt2 --checkpoint sqr
2 | "gpu", did you mean cuda?              | plan gpt2 --device gpu
2 | --quiet, --json, choose one          | plan gpt2 --quiet --json
2 | "A100", did you mean a100?             | plan gpt2 --target A100
2 | "5", it takes: 0, 1, 2, 3              | plan gpt2 --zero 5
2 | it takes: 1, or a number from 0        | plan gpt2 --clip x
2 | it takes: 0, or a whole number         | plan gpt2 --warmup x
2 | it takes: 0.1, or a number from 0 to 1 | plan gpt2 --lr-end 2
2 | it takes: 0.8, or a number from 0 to 1 | plan gpt2 --decay-from 2
2 | it takes: 1, or a whole number         | plan gpt2 --seed x
2 | adafactor and amos compute it, or a number from 0 | plan gpt2 --lr x
2 | amos has its own rule, or a number from 0 | plan gpt2 --weight-decay x
2 | ps keeps all optimizer states on rank 0, --zero 2 shards them | plan gpt2 --ranks 2 --parallel ps --zero 2
2 | leave --state-bits out                 | plan gpt2 --optimizer sgd --state-bits 8
2 | a100 is a GPU, but --device is cpu     | plan gpt2 --target a100 --device cpu
2 | no pass "foo", takes kernels, last or one of, model | plan gpt2 --dump foo
2 | "gpt3", did you mean gpt3-175b?      | plan gpt3
2 | "gpt22", did you mean gpt2?            | plan gpt22
2 | no flag --gpus, use --ranks            | plan gpt2 --gpus 8
2 | "GPT2-XL", did you mean gpt2-xl?       | plan GPT2-XL
2 | "resnet-50", did you mean resnet50?    | plan resnet-50
2 | "quantum", help models, config.json    | plan quantum
2 | mean qwen2.5-7b?                       | plan Qwen/Qwen2.5-7B-Instruct
2 | mean llama-3.1-70b?                    | plan meta-llama/Meta-Llama-3.1-70B-Instruct
2 | "./models/llama", no preset            | plan ./models/llama
# a budget without a unit, or none where one is needed
2 | --memory 24 is 24 bytes, write a unit, --memory 24G | plan gpt2 --memory 24
2 | --memory 1 is 1 bytes, write a unit    | fit gpt2 --memory 1
2 | needs a memory budget, no GPU, --memory 24G, --target | plan gpt2 --device cuda --checkpoint auto
2 | not divisible by the 64 ranks          | plan gpt2 --batch 8 --ranks 64
2 | --xyzzy                                | plan gpt2 --xyzzy 1
2 | -b                                     | plan gpt2 -b 3
2 | --batch needs a value                  | plan gpt2 --batch
2 | --batch needs a value                  | plan gpt2 --batch --json
2 | --batch, twice                         | plan gpt2 --batch 2 --batch=3
2 | --json, twice                          | plan gpt2 --json --json
2 | --json takes no value                  | plan gpt2 --json=yes
2 | --steps, whole number                  | train tiny --steps many
2 | --steps, at least 1                    | train tiny --steps 0
2 | --steps, --epochs                      | train tiny --steps 1 --epochs 1
2 | --epochs                               | train tiny --epochs 0
2 | --resume, --out                        | train tiny --resume
2 | --resume-weights-only, --out           | train tiny --resume-weights-only
2 | --save-every, --out                    | train tiny --save-every 2
2 | --temperature                          | generate run --prompt a --temperature -1
2 | --pipeline: "ring" is not a valid value | plan gpt2 --pipeline ring
2 | --zero                                 | plan gpt2 --zero 4
2 | not divisible, 3 ranks                 | plan gpt2 --batch 8 --ranks 3
2 | choose one                             | plan gpt2 --ranks 2 --parallel ps --zero 1
2 | --each, --json                         | plan gpt2 --each --timeline
2 | --device, tpu, cuda                    | plan gpt2 --device tpu
2 | --kernels reference, --device cpu      | plan gpt2 --device cuda --kernels reference
1 | no_such: No such file                  | train tiny text.txt --tokenizer no_such --steps 1
2 | --micro-bacth, mean --micro-batch?     | plan gpt2 --micro-bacth 2
# values
2 | batch                                  | plan gpt2 --batch 0
2 | batch                                  | plan gpt2 --batch -3
2 | batch                                  | plan gpt2 --batch 2.5
2 | batch                                  | plan gpt2 --batch ""
2 | precision, fp8                         | plan gpt2 --precision fp8
2 | optimizer, quantum, lion               | plan gpt2 --optimizer quantum
2 | sgd has no option, beta1, it has       | plan gpt2 --opt beta1=0.9 --optimizer sgd
2 | momentum, beta1, mu, nesterov          | plan gpt2 --optimizer momentum --opt beta1=0.9
2 | opt, eps=small, number                 | plan gpt2 --opt eps=small
2 | state-bits, 32, 16, 8, 4               | plan gpt2 --state-bits 2
2 | master, none                           | plan gpt2 --master some
2 | update, end, in-backward               | plan gpt2 --update never
2 | amos, its own weight decay, leave --weight-decay out | plan mlp --optimizer amos --weight-decay 0.1
2 | cyclic-lr, its own schedule, leave --schedule out | plan mlp --optimizer cyclic-lr --schedule cosine
2 | soap has no states, --state-bits        | plan mlp --optimizer soap --state-bits 8
2 | sgd has no states, --state-bits         | plan mlp --optimizer sgd --state-bits 16
2 | --update in-backward, --optimizer schedule-free-prodigy, --update end | plan mlp --update in-backward --optimizer schedule-free-prodigy
2 | memory, lots                           | plan gpt2 --memory lots
2 | --checkpoint every:13, 12 layers, use every:12 or less | plan gpt2 --checkpoint every:13
2 | --checkpoint, every:0, every:K, auto   | plan gpt2 --checkpoint every:0
2 | --offload, all, states+activations     | plan gpt2 --offload all
2 | lr                                     | plan gpt2 --lr nan
2 | --dropout config, gpt2, config.json    | plan gpt2 --dropout config
2 | dropout, 0.99, config                  | plan gpt2 --dropout -1
2 | schedule, wsd                          | plan gpt2 --schedule square
2 | --scale-lr needs --base-batch          | plan gpt2 --scale-lr sqrt
2 | --base-batch, --scale-lr               | plan gpt2 --base-batch 64
2 | dropout, 0.99                          | plan gpt2 --dropout 1
2 | label-smoothing                        | plan gpt2 --label-smoothing -0.1
1 | no layer to apply, dropout                    | plan mlp:4-3 --dropout 0.1
2 | --lora, a rank from 1                  | plan gpt2 --lora 0
2 | rank from 1 to 768, h.0.attn.c_attn    | plan gpt2 --lora 769
2 | --lora-on, attention, mlp, all         | plan gpt2 --lora 8 --lora-on head
2 | did you mean gate? It has q, k, v, o, gate, up, down | plan qwen2.5-0.5b --lora 8 --lora-on q,gat
2 | did you mean qkv? It has qkv, o, up, down | plan gpt2 --lora 8 --lora-on q
2 | --lora-on, a list of q,k,v,o,gate,up,down | plan gpt2 --lora 8 --lora-on q,,v
2 | --lora-base, 16, 8, 4                  | plan gpt2 --lora 8 --lora-base 2
2 | --lora-alpha                           | plan gpt2 --lora 8 --lora-alpha 0
2 | --lora-base has no effect without --lora | plan gpt2 --lora-base 8
1 | feeds attention, --lora-on all         | plan mlp --lora 4
1 | convolutions, do not support             | plan resnet18 --lora 4 --lora-on all
1 | adapter_config.json                    | plan gpt2 --lora-from nosuch
1 | adapter_config.json                    | plan gpt2 --lora-from nosuch --dump lora
1 | adapter_config.json                    | fit gpt2 --memory 8G --lora-from nosuch
1 | adapter_config.json                    | bench cpu gpt-nano --lora-from nosuch
1 | mse, never materializes                    | plan gpt2 --loss mse
2 | augment, flip+shift                    | plan gpt2 --augment shift+flip
2 | --augment, images                      | train tiny text.txt --augment flip --out new
2 | batch, micro-batch, 3, 8               | plan gpt2 --batch 8 --micro-batch 3
2 | batch, micro-batch                     | train tiny text.txt --batch 3 --micro-batch 2 --out new
2 | seq, 1024                              | plan gpt2 --seq 1025
2 | seq, 16                                | train tiny text.txt --seq 17 --out new
2 | pass, nosuch                           | plan gpt2 --dump nosuch
2 | bathc                                  | plan gpt2 --recipe bad.recipe
2 | long.recipe, line 2, 1022 bytes        | plan gpt2 --recipe long.recipe
1 | nosuch.recipe                          | plan gpt2 --recipe nosuch.recipe
1 | recipe ., is a folder, not a regular file               | plan gpt2 --recipe .
# models
2 | gtp2, gpt2                             | plan gtp2
2 | did you mean llama-3.2-1b, llama-3.2-3b, llama-3.1-8b, llama-3.1-70b | plan llama3
2 | did you mean llama-3.1-8b, llama-3.1-70b, llama-3.1-405b? | plan Llama3.1
2 | did you mean llama-3.2-1b              | plan meta-llama/Llama-2
2 | did you mean qwen2.5-0.5b, ...?        | plan qwen-2.5
2 | no preset, snug help models            | plan __
2 | no preset, snug help models            | plan mixtral
2 | mlp                                    | plan mlp:784
2 | mlp                                    | plan mlp:784-x-10
2 | psi                                    | plan psi:lots
1 | config.json, JSON                      | plan bad-config
1 | quantum                                | plan odd-config
1 | config.json, tie_word_embeddings, false | plan untied
# budget
3 | budget, 100 MiB, snug fit, --micro-batch | plan gpt2 --batch 8 --memory 100M
3 | budget, this fits: --micro-batch 4 (4.20 GiB, same up to rounding | plan gpt2 --batch 8 --memory 5G --threads 2
3 | this fits: --micro-batch 2 --checkpoint every:1 instead of --micro-batch 4 ( | plan gpt2 --batch 8 --micro-batch 4 --memory 2200M --threads 2
3 | this fits: --offload states (          | plan resnet18 --batch 64 --micro-batch 4 --memory 200M --threads 2
3 | this fits: --checkpoint every:1 (      | plan gpt2 --batch 16 --optimizer lawa-ema --ranks 2 --memory 2950M --threads 2
3 | this fits, --checkpoint every:1 (      | plan gpt2-xl --memory 24G --threads 2
3 | this fits: --zero 2 (                  | plan gpt2 --ranks 4 --memory 2200M --threads 2
3 | this fits: --checkpoint every:1 ( | plan resnet50 --batch 64 --memory 3G --threads 2
3 | budget, 1.00 MiB                       | plan gpt2 --memory 1048576
3 | 300 MiB, snug fit, --micro-batch 1     | plan gpt2 --memory 300M --lora 4 --update in-backward --threads 2
3 | budget, 1.00 KiB, snug fit             | plan tiny --memory 1K --checkpoint auto --offload states
3 | no recipe fits, smallest, --micro-batch 1, needs 1.03 GiB | fit gpt2 --memory 1G --threads 2
3 | weights alone, 475 MiB, 300 MiB        | fit gpt2 --memory 300M --threads 2
3 | the runtime alone needs, over the budget of 1.00 MiB | fit gpt-nano --memory 1M --threads 2
3 | budget, 1.00 KiB                       | train tiny text.txt --memory 1K --out new
3 | budget, 64.0 MiB                       | train gpt2-xl --memory 64M --out new
END
}

data_and_files() {
    table <<'END'
# data
1 | nosuch.txt                             | train tiny nosuch.txt --steps 1 --out new
3 | is empty                               | train tiny empty.txt --steps 1 --out new
3 | short.txt, tokens                      | train tiny short.txt --steps 1 --out new
1 | 195 at position, vocabulary has 128, no such bytes | train tiny beyond.txt --steps 50 --batch 8 --out new
1 | 999 at position 540, vocabulary has 128, this model's tokenizer | train tiny beyond.bin --steps 1 --out new
1 | 999 at position 0, vocabulary has 128 | eval run beyond.bin
1 | wide.bin, are 32-bit ids, vocabulary of 128, header | train tiny wide.bin --steps 1 --out new
1 | truncated                              | train tiny cut.bin --steps 1 --out new
1 | a zip file                             | train tiny magic.bin --steps 1 --out new
1 | not a whole number of 16-bit tokens    | train tiny odd.bin --steps 1 --out new
1 | truncated                              | train mlp:4-8-3 cut --steps 1 --out new
1 | not an IDX                             | train mlp:4-8-3 magic --steps 1 --out new
1 | labels, 7                              | train mlp:4-8-3 labels --steps 1 --out new
1 | 9, 4                                   | train mlp:9-8-3 digits --steps 1 --out new
1 | tokens                                 | train mlp:4-8-3 text.txt --steps 1 --out new
1 | images                                 | train tiny digits --steps 1 --out new
# text and vocabularies: wordy has 300 tokens, spoken was trained on bytes, words on random tokens
1 | text.txt, vocabulary of 300, --tokenizer bytes | train wordy text.txt --steps 1 --out new
1 | texts, vocabulary of 300, --tokenizer FOLDER | train wordy texts --steps 1 --out new
1 | lines.jsonl, JSONL, not supported yet  | train tiny lines.jsonl --steps 1 --out new
1 | lines.jsonl, JSONL, not supported yet  | train wordy lines.jsonl --tokenizer bytes --steps 1 --out new
1 | lines.jsonl.gz, JSONL, not supported yet | train tiny lines.jsonl.gz --steps 1 --out new
1 | text.txt, vocabulary of 300            | eval words text.txt
1 | text.txt, vocabulary of 300            | train wordy text.txt --steps 2 --out words --resume
1 | words, vocabulary of 300, --tokenizer FOLDER, --tokenizer bytes | generate words --prompt a
1 | psi                                    | train psi:1e6 --steps 1 --out new
# weights
1 | model.safetensors, header              | train long-header text.txt --steps 1 --out new
1 | model.safetensors                      | train stub text.txt --steps 1 --out new
1 | model.safetensors                      | train cut-weights text.txt --steps 1 --out new
1 | model.safetensors, JSON                | train bad-json text.txt --steps 1 --out new
1 | wte.weight, I32                        | train wrong-dtype text.txt --steps 1 --out new
1 | wte.weight, Q7                         | train odd-dtype text.txt --steps 1 --out new
1 | wte.weight, 128                        | train wrong-shape text.txt --steps 1 --out new
1 | wte.weight, outside                    | train far-offset text.txt --steps 1 --out new
1 | a gap, wte.weight                      | train unused-bytes text.txt --steps 1 --out new
1 | ln_f.bias, overlaps                    | train shared-bytes text.txt --steps 1 --out new
1 | no tensor, wte.weight                  | train missing text.txt --steps 1 --out new
1 | surplus                                | train extra text.txt --steps 1 --out new
1 | wte.weight, duplicate                  | train same-key text.txt --steps 1 --out new
1 | finite, "wpe.weight"                   | eval nan-weights text.txt
1 | finite, "wpe.weight"                   | eval nan-weights text.txt --json
1 | finite, "wpe.weight"                   | generate nan-weights --prompt a
1 | finite, "layers.0.weight"              | eval nan-hidden digits
1 | nan-weights/model.safetensors, finite, "wpe.weight" | train nan-weights text.txt --steps 1 --out new
1 | nan-hidden/model.safetensors, finite, "layers.0.weight" | train nan-hidden digits --steps 1 --batch 4 --out new
1 | step 1, held-out, finite, "h.0.attn    | train run text.txt --steps 1 --optimizer sgd --lr 1e38 --quiet
1 | model.safetensors                      | inspect long-header/model.safetensors
1 | ln_f.bias, overlaps                    | inspect shared-bytes/model.safetensors
# runs
1 | nosuch, cannot open                    | eval nosuch
1 | nosuch, cannot open                    | generate nosuch --prompt a
1 | nosuch, no such file                   | inspect nosuch
1 | begun, has no checkpoint yet           | inspect begun
1 | begun, has no checkpoint yet           | eval begun text.txt
1 | begun, has no checkpoint yet           | generate begun --prompt a
1 | lines.jsonl, JSONL is not supported    | inspect lines.jsonl
1 | strange/metrics.jsonl, JSONL is not    | inspect strange/metrics.jsonl
1 | tiny/model.safetensors                 | eval tiny text.txt
2 | tiny, not trained by snug, add DATA    | eval tiny
1 | not a language model                   | generate other --prompt a
1 | other, mlp:4-8-3, tiny                 | train tiny text.txt --steps 4 --out other --resume
1 | run, adamw, lion, --resume-weights-only | train tiny text.txt --steps 9 --out run --resume --optimizer lion
1 | run, state-bits, --resume-weights-only | train tiny text.txt --steps 9 --out run --resume --state-bits 8
1 | nosuch, no checkpoint                  | train tiny text.txt --steps 4 --out nosuch --resume
2 | already holds a run, --resume          | train tiny text.txt --steps 1 --out run
# paths that cannot be written
2 | file/new, cannot create                | train tiny text.txt --steps 1 --out file/new
2 | is a file                              | train tiny text.txt --steps 1 --out file
2 | cannot create                          | train tiny text.txt --steps 1 --out /proc/new
END
}

# ---- checks that need more than a row --------------------------------------------------------

full_standard_output() {
    "$snug" plan gpt2 >/dev/full 2>"$logs/err"
    status=$?
    check "plan to a full disk" "exit status $status" test $status -eq 1
    check "plan to a full disk: says so" "no word of it" grep -q 'standard output' "$logs/err"
    "$snug" plan gpt2 >&- 2>"$logs/err"
    status=$?
    check "plan with standard output closed" "exit status $status" test $status -eq 1
}

# A file-size limit stands in for a full disk: writes fail in the middle of a file in the same way.
full_disk() {
    cp -r run kept
    before=$(cd kept && fingerprint)
    (
        ulimit -f 1
        exec timeout 60 "$snug" train tiny text.txt --steps 4 --batch 2 --out kept --resume
    ) >"$logs/out" 2>"$logs/err"
    status=$?
    check "no room for a checkpoint" "exit status $status" test $status -eq 1
    # metrics.jsonl only grows; everything else is the last checkpoint
    check "no room: the last checkpoint stays" "it changed" \
        test "$(echo "$before" | grep -v metrics)" = "$(cd kept && fingerprint | grep -v metrics)"
    run eval kept text.txt
    check "no room: the last checkpoint loads" "exit status $status" test $status -eq 0
    rm -rf kept

    (
        ulimit -f 16
        exec timeout 60 "$snug" train mlp:64-64-10 --batch 2 --steps 1 --offload states --out new
    ) >"$logs/out" 2>"$logs/err"
    status=$?
    check "no room to offload" "exit status $status" test $status -eq 3
    check "no room to offload: one line, what to do" "$(cat "$logs/err")" \
        grep -q '^snug: .*offload file needs.*too little space.*--out or TMPDIR.*offload less' "$logs/err"
    rm -rf new

    mkdir disk
    if mount -t tmpfs -o size=16k none disk 2>/dev/null; then
        tiny_disk=$work/disk
        run train tiny text.txt --steps 1 --batch 2 --out disk/run
        check "a disk of 16 KiB" "exit status $status" test $status -eq 1
        check "a disk of 16 KiB: nothing half-written" "there is a checkpoint that does not load" \
            test ! -e disk/run/model.safetensors
        umount disk
        tiny_disk=
    else
        skip "a small disk: this user may not mount one"
    fi
    rmdir disk
}

not_finite() {
    cp -r run kept
    before=$(cd kept && fingerprint | grep -v metrics)
    run train tiny text.txt --steps 40 --batch 2 --out kept --resume --lr 1e30
    check "a loss that is not finite" "exit status $status" test $status -eq 1
    complaint=$(one_line_with "step, finite")
    check "a loss that is not finite: the line" "$complaint" test -z "$complaint"
    check "a loss that is not finite: the last checkpoint stays" "it changed" \
        test "$before" = "$(cd kept && fingerprint | grep -v metrics)"
    rm -rf kept
    copy_weights large # wte.weight comes first
    yes "$(printf '\377\377\177\177')" | tr -d '\n' | head -c 1024 |
        dd of=large/model.safetensors bs=1 conv=notrunc seek=$(($(header_bytes large/model.safetensors) + 8)) 2>"$logs/err"
    run train large text.txt --steps 1 --batch 2
    complaint=$(one_line_with "step 1, not finite, check the weights")
    check "a loss that is not finite at the first step: the line" "$complaint" test -z "$complaint"
    check "a loss that is not finite at the first step: not the rate" "it is blamed" sh -c "! grep -q -e --lr '$logs/err'"
}

# The run's config.json keeps the dropout rates; a note says that they are not applied unless the user decides.
dropout_of_config() {
    mkdir dropping
    sed 's/}/, "embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3}/' tiny/config.json \
        >dropping/config.json
    run train dropping text.txt --steps 1 --batch 2 --json --out dropped
    check "dropout of config.json" "exit status $status" test $status -eq 0
    check "dropout of config.json: one note" "there is not" \
        test "$(grep -c '^snug: .*dropout.*--dropout config' "$logs/err")" -eq 1
    for pair in embd_pdrop:0.1 attn_pdrop:0.2 resid_pdrop:0.3; do
        check "dropout of config.json: the run keeps ${pair%:*}" "it does not" \
            grep -q "\"${pair%:*}\": ${pair#*:}," dropped/config.json
    done
    for flags in --quiet '--dropout config' '--dropout 0' '--dropout 0.1'; do
        # shellcheck disable=SC2086 # a flag and its value
        run train dropping text.txt --steps 1 --batch 2 $flags
        check "dropout of config.json: no note with $flags" "there is one" \
            sh -c "[ $status -eq 0 ] && ! grep -q dropout '$logs/err'"
    done
    rm -rf dropping dropped
}

# Ctrl-C saves and exits with 0; without --out it reports that nothing was saved.
interrupted() {
    run_until_interrupted out --out stopped
    check "interrupted with --out" "exit status $status" test $status -eq 0
    check "interrupted with --out: says where" "no word of it" \
        grep -q 'stopped at step [0-9]* of 100000000; saved in stopped; continue with --resume$' \
        "$logs/err"
    run eval stopped text.txt
    check "interrupted: the run loads" "exit status $status" test $status -eq 0
    rm -rf stopped
    run_until_interrupted out
    check "interrupted without --out" "exit status $status" test $status -eq 130
    check "interrupted without --out: says so" "no word of it" \
        grep -q 'stopped at step [0-9]* of 100000000; nothing is saved without --out$' "$logs/err"
    run_until_interrupted err --json
    check "interrupted with --json" "exit status $status" test $status -eq 130
    check "interrupted with --json: one line says so" "no word of it" \
        grep -q '^{"steps": [0-9].*"stopped": true.*}$' "$logs/out"
}

# Resuming a finished run succeeds and changes no checkpoint.
resumed_at_the_end() {
    cp -r run kept
    before=$(cd kept && fingerprint)
    run train tiny text.txt --steps 2 --batch 2 --out kept --resume
    check "resumed at the end" "exit status $status" test $status -eq 0
    check "resumed at the end: says so" "no word of it" \
        grep -q '^already at step 2 of 2: increase --steps to continue$' "$logs/out"
    check "resumed at the end: no summary" "there is one" sh -c "! grep -q ^loss '$logs/out'"
    run train tiny text.txt --steps 2 --batch 2 --out kept --resume --json
    check "resumed at the end with --json" "exit status $status" test $status -eq 0
    check "resumed at the end with --json: no loss" "there is one" \
        grep -q '^{"steps": 2, "loss": null, .*}$' "$logs/out"
    check "resumed at the end: the run stays" "it changed" \
        test "$before" = "$(cd kept && fingerprint)"
    rm -rf kept
}

# Waits for the first step's line, then sends SIGTERM, because a shell starts background jobs with SIGINT
# ignored.  Kills it after thirty seconds.
run_until_interrupted() { # out|err, where progress goes; FLAGS...
    progress=$logs/$1
    shift
    : >"$progress" # else an older line would do
    "$snug" train tiny text.txt --steps 100000000 --batch 2 "$@" >"$logs/out" 2>"$logs/err" &
    pid=$!
    tries=0
    until grep -q '^step' "$progress" || [ $tries -ge 300 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    kill -TERM $pid
    while kill -0 $pid 2>/dev/null && [ $tries -lt 600 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    [ $tries -lt 600 ] || kill -KILL $pid
    wait $pid
    status=$?
}

# The flags that are said to fit are appended to the refused command.
advice_can_be_appended() {
    for memory in 1427M 2G 5G; do
        run plan gpt2 --batch 8 --threads 2 --memory $memory
        flags=$(sed -n 's/.*this fits: \(.*\) (.*/\1/p' "$logs/err")
        # shellcheck disable=SC2086 # several words
        run plan gpt2 --batch 8 --threads 2 --memory $memory $flags
        check "$memory: the advice \"$flags\" fits" "exit status $status" \
            test -n "$flags" -a $status -eq 0
    done
}

# Successful output, in the form that scripts rely on.
good_output() {
    run plan gpt2 --json
    six=$(sed -n 's/.*"bytes": {\([^}]*\)}.*/\1/p' "$logs/out" | tr ',' '\n' | awk -F: '
        /total/ { total = $2; next } { sum += $2 } END { print (sum == total && total > 0) }')
    "$snug" bench cpu mlp:8-4-2 --batch 4 --threads 1 >"$logs/out" 2>"$logs/err"
    check "bench: limits, kernels, step and products" "they are not there" \
        sh -c "grep -q 'TFLOP/s  FMA' '$logs/out' && grep -q '^kernels in isolation' '$logs/out' &&
               grep -q '^  all .*100.0%' '$logs/out' && grep -q 'the step runs at .* of that speed' '$logs/out'"
    wide=$(awk 'length > 80' "$logs/out")
    check "bench: 80 columns" "$wide" test -z "$wide"
    run bench cpu mlp:8-4-2 --batch 4 --threads 1 --json
    check "bench --json: one line" "exit status $status" test "$(wc -l <"$logs/out")" -eq 1
    for key in limits kernels ops step; do
        check "bench --json: $key" "missing" grep -q "\"$key\": [[{]" "$logs/out"
    done
    SNUG=$snug "$root/bench/large_batch.py" mlp:4-8-3 digits --batch 2 --large 4 --epochs 1 --seeds 2 \
        --threads 1 >"$logs/out" 2>"$logs/err"
    check "bench/large_batch.py: a table of seven rows" "there is none" \
        test "$(grep -cE '^ +[24] +[0-9.e-]+ ' "$logs/out")" -eq 7
    check "bench/large_batch.py: a line a run on standard error" "it is not" \
        test "$(grep -c '^batch ' "$logs/err")" -eq 14
    wide=$(awk 'length > 80' "$logs/out")
    check "bench/large_batch.py: 80 columns" "$wide" test -z "$wide"
    check "plan --json: six kinds add up" "they do not" test "$six" = 1
    run train tiny text.txt --steps 3 --batch 2 --json
    check "train --json" "exit status $status" test $status -eq 0
    check "train --json: standard output is one line" "it is not" \
        test "$(wc -l <"$logs/out")" -eq 1
    for key in steps loss planned_bytes allocated_bytes runtime_bytes measured_peak_bytes \
        tokens_per_s; do
        check "train --json: $key" "missing" grep -q "\"$key\": [0-9]" "$logs/out"
    done
    planned=$(sed 's/.*"planned_bytes": \([0-9]*\).*/\1/' "$logs/out")
    allocated=$(sed 's/.*"allocated_bytes": \([0-9]*\).*/\1/' "$logs/out")
    check "train --json: planned equals allocated" "$planned and $allocated" \
        test "$planned" = "$allocated"
    run train tiny text.txt --steps 3 --batch 2 --quiet --eval-every -1
    check "train --quiet: no progress" "there is some" sh -c "! grep -q ^step '$logs/out'"
    check "train --quiet: the summary" "there is none" grep -q '^measured peak' "$logs/out"
    run plan gpt2
    check "plan: no colour in a pipe" "there is some" sh -c "! grep -q '\[1m' '$logs/out'"
    run eval spoken
    check "eval: a run of bytes knows its text" "exit status $status" test $status -eq 0
    run eval spoken text.txt
    check "eval: a run of bytes takes a text" "exit status $status" test $status -eq 0
    run generate spoken --prompt ab --tokens 5
    check "generate: a run of bytes takes a prompt" "exit status $status" test $status -eq 0
    run generate words --prompt ab --tokens 5 --tokenizer bytes
    check "generate: bytes where it is said" "exit status $status" test $status -eq 0
    cp -r spoken older # as saved before runs recorded the tokenizer
    sed -i '/"tokenizer":/d' older/state.json
    for kept_run in spoken older; do
        run train wordy --steps 2 --batch 2 --out $kept_run --resume
        check "resume: $kept_run goes on with bytes" "exit status $status" test $status -eq 0
        check "resume: $kept_run says so" "no word of it" \
            grep -q '"tokenizer": "bytes"' $kept_run/state.json
    done
    check "resume: to the same bits" "they differ" cmp -s spoken/model.safetensors older/model.safetensors
    run train wordy good.bin --steps 1 --batch 2
    check "train: shards need no tokenizer" "exit status $status" test $status -eq 0
    run inspect begun/metrics.jsonl
    check "inspect: the log of a run" "$(cat "$logs/out" "$logs/err")" \
        grep -q '^begun/metrics.jsonl: the log of a run, 2 steps, loss [0-9.]* after step 2$' "$logs/out"
    run generate run --prompt ab --tokens 5
    check "generate: goes on from the prompt" "it does not" grep -q '^ab' "$logs/out"
    for command in plan train eval generate inspect data bench ops; do
        run help $command
        cp "$logs/out" "$logs/help"
        run $command --help
        check "help $command" "exit status $status" test $status -eq 0
        check "help $command: both ways alike" "they differ" cmp -s "$logs/help" "$logs/out"
        wide=$(awk 'length > 80' "$logs/out")
        check "help $command: 80 columns" "$wide" test -z "$wide"
    done
    run --version
    check "--version" "exit status $status" test $status -eq 0
    run
    check "snug alone" "exit status $status" test $status -eq 2
}

if prepare; then
    words_and_flags
    data_and_files
    full_standard_output
    full_disk
    not_finite
    dropout_of_config
    interrupted
    resumed_at_the_end
    advice_can_be_appended
    good_output
fi
echo "1..$((passed + failed + skipped))"
echo "cli: $passed passed, $failed failed"
[ $failed -eq 0 ]
