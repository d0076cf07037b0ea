#!/bin/sh
# Pastes the command that snug fit prints into a shell: snug must get the words of the recipe, whatever the length of
# the line, the path of the model and the number of ranks.
#
# usage: [SNUG=./snug] tests/cli/paste.sh       The output is TAP.
set -u

snug=$(realpath "${SNUG:-$(dirname "$0")/../../snug}") || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
export XDG_CACHE_HOME="$work/cache" OMP_WAIT_POLICY=passive
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; failed=1; fi
}

# Stand-ins for snug and mpirun that record their arguments.
mkdir bin
for program in snug mpirun; do
    printf '#!/bin/sh\n{ echo %s; for word; do printf "%%s\\n" "$word"; done; } >>"%s/words"\n' $program "$work" >bin/$program
    chmod +x bin/$program
done

# The command that a fit prints: the lines between the header and the next empty line.
command_of() { "$snug" fit "$@" | sed -n '3,/^$/p'; }

# pastes LINES WORD... -- FIT...: the shell runs these words, printed in LINES or more lines of at most 80 columns.
pastes() {
    lines=$1
    shift
    : >expected
    rm -f words
    while [ "$1" != -- ]; do
        printf '%s\n' "$1" >>expected
        shift
    done
    shift
    command_of "$@" >pasted || return 1
    sh -n pasted && PATH="$work/bin:$PATH" sh pasted && cmp words expected &&
        [ "$(grep -c . pasted)" -ge "$lines" ] && ! grep -q '.\{81\}' pasted || { cat pasted words; return 1; }
}

check "a short command" pastes 1 \
    snug train mlp --batch 8 --memory 300M -- mlp --batch 8 --memory 300M
check "a long command goes on in a second line" pastes 2 \
    snug train mlp --threads 1 --batch 8 --precision bf16 --optimizer adamw --lr 0.001 --schedule cosine --warmup 10 \
    --memory 300M --seed 7 -- mlp --threads 1 --batch 8 --precision bf16 --optimizer adamw --lr 0.001 \
    --schedule cosine --warmup 10 --memory 300M --seed 7
mkdir "my model's \$HOME" && cat >"my model's \$HOME/config.json" <<'END' || exit 1
{"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 128}
END
check "a path that needs quotes" pastes 2 \
    snug train "my model's \$HOME" --threads 1 --batch 8 --schedule cosine --warmup 10 --memory 300M --seed 7 \
    -- "my model's \$HOME" --threads 1 --batch 8 --schedule cosine --warmup 10 --memory 300M --seed 7
check "ranks are started by mpirun" pastes 1 \
    mpirun -n 2 snug train mlp --batch 8 --memory 300M --ranks 2 -- mlp --batch 8 --memory 300M --ranks 2
check "a GPU target is a command for the GPU" pastes 1 \
    snug train mlp --device cuda --batch 8 --memory 2G --target 4090 -- mlp --batch 8 --memory 2G --target 4090

# The target determines the device, for the bytes and for the command; a conflicting device is refused.
same_total() { # FLAGS -- FLAGS
    first=$1
    second=$2
    # shellcheck disable=SC2086
    [ "$("$snug" plan gpt2 $first --quiet)" = "$("$snug" plan gpt2 $second --quiet)" ]
}
differs() { ! same_total "$@"; }
check "plan: a GPU target counts the GPU's bytes" same_total "--target 4090" "--target 4090 --device cuda"
check "plan: which are not those of the CPU" differs "--target 4090" "--threads 2"
check "plan: a CPU target stays on the CPU" same_total "--target cpu --threads 2" "--threads 2"
refused() { # WORDS ARGUMENTS...
    words=$1
    shift
    "$snug" "$@" >/dev/null 2>err
    [ $? -eq 2 ] && [ "$(wc -l <err)" -eq 1 ] && grep -q -e "$words" err || { cat err; return 1; }
}
check "plan refuses a GPU target on the CPU" refused "--target 4090 is a GPU" plan gpt2 --device cpu --target 4090
check "fit refuses it" refused "--target a100 is a GPU" fit gpt2 --memory 8G --target a100 --device cpu
check "plan refuses a CPU target on a GPU" refused "--target cpu is a CPU" plan gpt2 --device cuda --target cpu
check "the layernorms of gpt3-175b have kernels on a GPU" \
    sh -c "'$snug' plan gpt3-175b --device cuda --ranks 8 --zero 3 --precision bf16 --quiet >/dev/null"
echo "1..$n"
exit $failed
