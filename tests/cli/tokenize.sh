#!/bin/sh
# snug tokenize: records, both ways, and what it refuses.
#
# usage: [SNUG=./snug] tests/cli/tokenize.sh       The output is TAP.
set -u

snug=$(realpath "${SNUG:-$(dirname "$0")/../../snug}") || exit 1
fixtures=$(realpath "$(dirname "$0")/../token/fixtures") || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMP_WAIT_POLICY=passive
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; failed=1; fi
}
gpt2="$fixtures/gpt2.json"

# comes_back FLAGS FILE: encoded and decoded, the bytes are the same.
comes_back() {
    # shellcheck disable=SC2086 # flags
    "$snug" tokenize "$gpt2" $1 <"$2" >ids && "$snug" tokenize "$gpt2" $1 --decode <ids >back && cmp "$2" back
}
# refuses STATUS WORDS COMMAND...: one line with these words on standard error, nothing on standard output.
refuses() {
    status=$1
    words=$2
    shift 2
    "$@" >out 2>err
    [ $? -eq "$status" ] && [ ! -s out ] && [ "$(wc -l <err)" -eq 1 ] && grep -qF -- "$words" err || { cat err; return 1; }
}
lines_are() { # N FILE
    [ "$(wc -l <"$2")" -eq "$1" ]
}

printf 'one line\n\nthird\n' >lines
check "lines" comes_back "" lines
check "a line of ids for each, the empty one too" lines_are 3 ids
check "the ids of a line do not depend on its neighbors" \
    sh -c "sed -n 3p ids >third && printf third | '$snug' tokenize '$gpt2' | cmp - third"
printf 'two\nlines\0\0the third' >records
check "NUL records, the last one without its end" \
    sh -c "'$snug' tokenize '$gpt2' -0 <records >ids && [ \$(wc -l <ids) -eq 3 ] &&
           '$snug' tokenize '$gpt2' --null --decode <ids >back && { cat records; printf '\\0'; } | cmp - back"
: >empty
check "nothing in, nothing out" comes_back "" empty
head -c 300000 /dev/urandom >random
printf '\n' >>random
check "random bytes, line by line" comes_back "" random
head -c 300000 /dev/urandom | tr -d '\0' >random
printf '\0' >>random
check "random bytes in one record" comes_back -0 random
check "threads do not change ids" sh -c "
    for n in 1 2 5; do '$snug' tokenize '$gpt2' -0 --threads \$n <random | cksum; done | uniq | wc -l | grep -qx 1"
check "special tokens are recognized" \
    sh -c "printf 'a<|endoftext|>b' | '$snug' tokenize '$gpt2' | grep -q '^[0-9]* 0 [0-9]*\$'"

mkdir two_files
printf '{"a": 0, "b": 1, "ab": 2, "\304\240": 3, "<|endoftext|>": 4}\n' >two_files/encoder.json
printf '#version: 0.2\na b\r\n' >two_files/vocab.bpe
check "GPT-2's two files" sh -c "printf 'ab a<|endoftext|>' | '$snug' tokenize two_files | grep -qx '2 3 0 4'"
mkdir folder && cp "$gpt2" folder/tokenizer.json
check "a folder with tokenizer.json" \
    sh -c "'$snug' tokenize '$gpt2' <lines >ids && '$snug' tokenize folder <lines | cmp - ids"
mkdir sentencepiece && : >sentencepiece/tokenizer.model
mkdir nothing
check "no such file" refuses 1 "no_such: No such file" "$snug" tokenize no_such <lines
check "a folder without tokenizer" refuses 1 "nothing has no tokenizer.json" "$snug" tokenize nothing <lines
check "a tokenizer.model alone" refuses 1 "save_pretrained" "$snug" tokenize sentencepiece <lines
head -c 5000 "$gpt2" >cut.json
check "half a file" refuses 1 "cut.json" "$snug" tokenize cut.json <lines
check "no operand" refuses 2 "needs TOKENIZER" "$snug" tokenize <lines
check "another letter" refuses 2 "no flag -1" "$snug" tokenize "$gpt2" -1 <lines
echo "1 2 x" >ids
check "not an id" refuses 1 "line 1 of standard input" "$snug" tokenize "$gpt2" --decode <ids
printf '1 2\n3 99999\n' >ids
check "an id that does not exist" sh -c "
    '$snug' tokenize '$gpt2' --decode <ids >out 2>err; [ \$? -eq 1 ] && grep -q 'line 2 of standard input: 99999 is not an id' err"
check "a directory as input" refuses 1 "reading standard input" "$snug" tokenize "$gpt2" <nothing
check "a full disk" sh -c "[ ! -w /dev/full ] || { '$snug' tokenize '$gpt2' <lines >/dev/full 2>err; [ \$? -eq 1 ]; }"
echo "1..$n"
exit $failed
