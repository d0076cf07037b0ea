#!/bin/bash
# snug data tokenize: the ids in the shards are those of snug tokenize, a model trains on them, a model with another
# tokenizer refuses them, and a failure leaves no shards.
#
# usage: [SNUG=./snug] tests/cli/data_tokenize.sh       The output is TAP.
set -u

snug=$(realpath "${SNUG:-$(dirname "$0")/../../snug}") || exit 1
fixtures=$(realpath "$(dirname "$0")/../token/fixtures") || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMP_WAIT_POLICY=passive XDG_CACHE_HOME="$work/cache"
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; failed=1; fi
}
# refuses STATUS WORDS COMMAND...: one line with these words on standard error.
refuses() {
    local status=$1 words=$2
    shift 2
    "$@" >out 2>err
    [ $? -eq "$status" ] && [ "$(wc -l <err)" -eq 1 ] && grep -qF -- "$words" err || { cat out err; return 1; }
}
model() { # FOLDER TOKENIZER
    mkdir "$1" && cp "$fixtures/$2.json" "$1/tokenizer.json" && cat >"$1/config.json" <<'END'
{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 710}
END
}
model a gpt2
model b llama3
mkdir books
seq 1 600 | sed 's/$/ bottles of beer on the wall/' >books/one.txt
printf 'Alice was beginning to get very tired.\n\nCaf\303\251.' >books/two.txt
: >books/empty.txt

tokenize() { "$snug" data tokenize "$@" --threads 2 >said; }
check "text files become shards" tokenize books -o tokens --tokenizer a
check "and it says how many" grep -qx "9,518 tokens of 2 documents (18.7 KiB)" said
check "one shard, and nothing else" test "$(ls tokens)" = train_000000.bin
ids_of() { # SHARD: its ids, a line each
    od -An -v -t u2 -w2 -j 1024 "$1" | tr -d ' '
}
expected() { # the ids of the two documents, each with token 0, <|endoftext|>, after it
    for book in books/one.txt books/two.txt; do
        "$snug" tokenize a -0 <$book | tr ' ' '\n'
        echo 0
    done
}
check "they have the ids of snug tokenize" cmp <(ids_of tokens/train_000000.bin) <(expected)
check "the header has their number" \
    test "$(od -An -t u4 -j 8 -N 4 tokens/train_000000.bin | tr -d ' ')" = "$(expected | wc -l)"
check "the bytes of a text come back" \
    cmp <(ids_of tokens/train_000000.bin | sed '/^0$/,$d' | tr '\n' ' ' | "$snug" tokenize a -0 --decode | tr -d '\0') books/one.txt

train() { "$snug" train "$@" --steps 2 --batch 2 --eval-every -1 --threads 1 --quiet >out; }
resume() { "$snug" train "$@" --out run --resume --eval-every -1 --threads 1 --quiet >out; }
check "a model trains on them" train a tokens --out run
check "another tokenizer is refused" refuses 1 "tokenize the text again, with --tokenizer b" train b tokens
cp b/tokenizer.json c.json && mkdir c && cp a/config.json c && sed 's/"lstrip":false/"lstrip":true/' a/tokenizer.json >c/tokenizer.json
check "and one that differs in a flag" refuses 1 "another tokenizer" train c tokens
rm c/tokenizer.json
check "a folder without tokenizer trains" train c tokens
check "resuming finds the same data" resume a tokens --steps 3
tokenize books -o other --tokenizer b >/dev/null
check "not those of another tokenizer" refuses 1 "other" resume c other --steps 4
mkdir mixed && cp tokens/train_000000.bin mixed && cp other/train_000000.bin mixed/train_000001.bin
check "shards of two tokenizers are refused" refuses 1 "different tokenizers" train c mixed

# Files are read in windows of 2 MiB: the ids are those of the whole text.
seq 1 300000 | awk '{ printf "%s%d bottles, %s %d\n%s", ($1 % 7 ? "Line " : " "), $1, ($1 % 3 ? "Of" : "of"), $1 * 7919 % 1000, "\n" }' >long.txt
seq 1 800000 | tr '\n' ' ' >line.txt # one line
same_ids() { # TOKENIZER FILE: a document without the special tokens around it
    rm -rf windows && tokenize "$2" -o windows --tokenizer "$fixtures/$1.json" &&
        cmp <(ids_of windows/train_000000.bin | grep -vx "$(printf '0\n1\n2')") \
            <("$snug" tokenize "$fixtures/$1.json" -0 <"$2" | tr ' ' '\n' | grep -vx "$(printf '0\n1\n2')")
}
check "long.txt has several windows" test "$(stat -c %s long.txt)" -gt 6000000
for tokenizer in gpt2 qwen2 sentencepiece sentencepiece-spaces; do
    check "windows of a long text, $tokenizer" same_ids $tokenizer long.txt
done
check "a text of one line" same_ids gpt2 line.txt
check "and of words after spaces alone" same_ids sentencepiece line.txt

check "shards are not overwritten" refuses 2 "has token shards already" tokenize books -o tokens --tokenizer a
# Text needs no shards: it is tokenized when it is opened.
losses() { sed -n 's/.*"step": \([0-9]*\), "loss": \([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl"; }
train a books --out run_text
check "training on the text itself gives the same losses" cmp <(losses run) <(losses run_text; tail -n 1 <(losses run))
check "the run keeps the tokenizer" cmp a/tokenizer.json run_text/tokenizer.json
resume_text() { "$snug" train a --out run_text --resume --steps 3 --eval-every -1 --threads 1 --quiet >out; }
check "it resumes" resume_text
check "as on the shards" cmp <(losses run) <(losses run_text)
check "it is evaluated on its text" sh -c "'$snug' eval run_text | grep -q '^perplexity'"
n_text=$(($("$snug" tokenize a -0 <books/one.txt | wc -w) + 1)) # with the token that ends it
check "and on all of another text" sh -c "
    '$snug' eval run_text books/one.txt --json | grep -q '\"n\": $(((n_text - 1) / 16 * 16)),'"
check "generate has the tokenizer" sh -c "
    '$snug' generate run_text --prompt 'bottles of' --tokens 5 --temperature 0 >text && grep -q '^bottles of' text &&
    '$snug' generate run_text --prompt 'bottles of' --tokens 5 --temperature 0 --tokenizer b | cmp -s - text; [ \$? -eq 1 ]"
# Greedy decoding: the first token is `first`.
"$snug" generate run_text --prompt 'bottles of' --tokens 1 --temperature 0 | tail -c +11 >first
printf '{"eos_token_id": [709, %s]}' "$("$snug" tokenize a <first)" >run_text/generation_config.json
check "it stops at eos_token_id" sh -c "
    '$snug' generate run_text --prompt 'bottles of' --tokens 5 --temperature 0 >out && printf 'bottles of\n' | cmp - out"
rm run_text/generation_config.json
# A tokenizer that puts a token before each text: documents and prompts begin with it.
mkdir d && cp a/config.json d && sed 's/"post_processor":[^}]*}/"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|endoftext|>"}},{"Sequence":{"id":"A"}}]}/' \
    a/tokenizer.json >d/tokenizer.json
tokenize books -o begun --tokenizer d
check "documents begin with the token of the template" \
    cmp <(ids_of begun/train_000000.bin) <(echo 0; expected | sed '$d' | sed 's/^0$/0\n0/'; echo 0)
cp d/tokenizer.json run_text/tokenizer.json
check "prompts, too" sh -c "
    '$snug' generate run_text --prompt '<|endoftext|>bottles of' --tokens 5 --temperature 0 --tokenizer a | tail -c +14 >with &&
    '$snug' generate run_text --prompt 'bottles of' --tokens 5 --temperature 0 | cmp - with"
rm run_text/tokenizer.json
check "without it, it says so" refuses 1 "give one with --tokenizer FOLDER" "$snug" generate run_text --prompt x
check "--tokenizer names another folder" train c books/one.txt --tokenizer a
check "or a file" train c books/one.txt --tokenizer a/tokenizer.json --out run_c
check "the run keeps that one" cmp a/tokenizer.json run_c/tokenizer.json
check "a model folder without tokenizer" refuses 1 "add --tokenizer FOLDER" train c books/one.txt
check "a tokenizer with more ids than the model" refuses 1 "but the model's vocabulary has 256" \
    train lm-nano books/one.txt --tokenizer a
check "a tokenizer that does not exist" refuses 1 "no_such" train c books/one.txt --tokenizer no_such
check "--tokenizer bytes reads bytes" sh -c "'$snug' train a books/one.txt --tokenizer bytes --steps 1 --batch 1 --eval-every -1 |
    grep -q 'text bytes'"
check "no text" refuses 3 "no text" tokenize books/empty.txt -o none --tokenizer a
check "JSONL" refuses 1 "only plain text" tokenize a/config.jsonl -o none --tokenizer a
printf 'a\0b' >binary
check "NUL bytes" refuses 1 "not text" tokenize binary -o none --tokenizer a
check "no such file" refuses 1 "no_such" tokenize no_such -o none --tokenizer a
check "no tokenizer" refuses 1 "has no tokenizer.json" tokenize books -o none --tokenizer books
check "no --tokenizer" refuses 2 "needs --tokenizer" tokenize books -o none
check "no -o" refuses 2 "needs -o" tokenize books --tokenizer a
check "failures leave no folder" test ! -e none
check "a full disk" refuses 1 "full" sh -c "ulimit -f 4; exec '$snug' data tokenize books -o full --tokenizer a"
check "leaves no shard, and no folder" test ! -e full
mkdir kept && touch kept/readme
check "nor removes a folder that was there" refuses 1 "kept" sh -c "ulimit -f 4; exec '$snug' data tokenize books -o kept --tokenizer a"
check "with what was in it" test "$(ls kept)" = readme
echo "1..$n"
exit $failed
