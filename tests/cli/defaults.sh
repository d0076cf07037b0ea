#!/usr/bin/env bash
# Defaults that the program chooses and reports: the budget of --checkpoint auto, the batch of many ranks.  Also its
# output under mpirun: printed once, and without color.
set -u
root=$(realpath "$(dirname "$0")/../..")
snug=$(realpath "${SNUG:-$root/snug}")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
unset NO_COLOR SNUG_CUDA_PLUGIN
export OMP_WAIT_POLICY=passive XDG_CACHE_HOME="$dir/cache"
n=0
failed=0
check() { # NAME COMMAND...
    n=$((n + 1))
    local name=$1
    shift
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; failed=1; fi
}
skip() { n=$((n + 1)) && echo "ok $n # SKIP $1"; }
says() { # WORDS ARGUMENTS...: on standard output
    local words=$1
    shift
    "$snug" "$@" >said 2>&1 || true
    grep -qF -- "$words" said || { sed 's/^/# /' said; return 1; }
}
says_not() { ! says "$@" >/dev/null; }
narrow() { # ARGUMENTS...: no line of standard output is wider than 80 columns
    "$snug" "$@" >said || return 1
    ! LC_ALL=C.UTF-8 grep -E '^.{81,}' said
}

# --- --checkpoint auto without --memory
check 'plan: the budget is what this process may hold' says ' default: ' \
    plan gpt-nano --checkpoint auto
check 'train says so in its header' says 'budget  ' train mlp:4-3 --checkpoint auto --steps 1
check 'a card has its own' says 'default: the memory of one H100 80G' plan gpt2 --checkpoint auto --target h100
check 'JSON has the number and where it comes from' \
    says '"budget": 84825604096, "budget_from": "the memory of one H100 80G"' \
    plan gpt2 --checkpoint auto --target h100 --json
check 'a given budget is nobody else'"'"'s' says_not 'set another with' \
    plan gpt-nano --checkpoint auto --memory 1G
saves_no_default() { # a run resumed on another machine uses the memory of that machine
    "$snug" train mlp:4-3 --checkpoint auto --steps 1 --quiet --out run >/dev/null &&
        grep -q '"checkpoint": *"auto"' run/state.json && ! grep -q '"memory"' run/state.json &&
        "$snug" train mlp:4-3 --steps 2 --quiet --resume --out run >/dev/null
}
check 'the default budget is not saved' saves_no_default
emulated=$root/build/release/libsnug_cuda_emulated.so
if [ -f "$emulated" ]; then
    SNUG_CUDA_PLUGIN=$emulated check 'the GPU here is asked' says 'GiB of this GPU' \
        plan gpt-nano --device cuda --checkpoint auto
else
    skip 'the emulated GPU is not built'
fi

# --- the batch of many ranks, titles
check 'the default batch is shared by 64 ranks' says 'batch          64, not the default 8' plan gpt2 --ranks 64 --zero 2
check 'long titles are broken: plan' narrow plan gpt2 --ranks 64 --zero 2 --precision bf16 --checkpoint every:2 \
    --update in-backward --state-bits 8 --dropout 0.1 --label-smoothing 0.1
check 'long titles are broken: timeline' narrow plan gpt2 --precision bf16 --checkpoint every:2 --master none \
    --state-bits 8 --dropout 0.1 --label-smoothing 0.1 --timeline
check 'long titles are broken: fit' narrow fit gpt-nano --memory 4G --precision bf16 --master none \
    --state-bits 8 --dropout 0.1 --label-smoothing 0.1 --lora 8
check 'long titles are broken: train' narrow train mlp:4-8-3 --steps 1 --precision bf16 --state-bits 8 \
    --dropout 0.1 --label-smoothing 0.1 --checkpoint auto --batch 4 --micro-batch 2 --schedule cosine
check 'the timeline says that it counts ops' says 'ops in program order; the axis is not time' \
    plan gpt-nano --timeline

# --- the idle share of pipelines: 2 stages, 4 micro-batches: 1 / (4 + 1)
pipeline='--ranks 2 --micro-batch 2'
check '--each has it' says 'each stage is idle for 20% of a step' plan gpt-nano $pipeline --pipeline 1f1b --each
check '--each --json has it' says '"bubble": 0.2}' plan gpt-nano $pipeline --pipeline 1f1b --each --json
check '--each without stages has none' says_not idle plan gpt-nano --ranks 2 --each
check '--compare has it' says 'stages idle               20%              -' \
    plan gpt-nano $pipeline --compare '--pipeline 1f1b; --pipeline none --micro-batch 1'
check '--compare without stages has none' says_not idle plan gpt-nano --compare '; --zero 0'

# --- under mpirun
launcher=$(command -v mpirun.openmpi || true)
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
printed_once() { # WORDS ARGUMENTS...: three processes print them on exactly one line
    local words=$1
    shift
    timeout 60 "$launcher" -n 3 "$snug" "$@" >said 2>err || { cat err; return 1; }
    [ "$(grep -cF -- "$words" said)" = 1 ] || { sed 's/^/# /' said; return 1; }
}
is_plain() { # the last output has no escapes, although mpirun gives its processes a terminal
    ! grep -q "$(printf '\033')" said
}
if [ -n "$launcher" ] && [ -f "$(dirname "$snug")/libsnug_openmpi.so" ]; then
    check 'plan prints once, for all ranks' printed_once 'on 3 ranks, ddp' plan gpt-nano
    TERM=xterm check 'and plainly' eval "printed_once 'total ' plan gpt-nano && is_plain"
    check 'eval prints once' printed_once 'loss ' eval run random
    check 'help prints once' printed_once 'snug help COMMAND ' help
    TERM=xterm check 'train is plain in a pipe' \
        eval "printed_once 'measured peak' train mlp:4-3 --steps 1 --batch 3 --threads 1 && is_plain"
    check 'ranks of one machine share its memory' printed_once ', shared by 3 ranks; set another with --memory' \
        train mlp:4-3 --checkpoint auto --steps 1 --batch 3 --threads 1
    check 'a default batch that ranks cannot share is raised, and said' \
        printed_once 'batch   129, not the default 128, so that 3 ranks get equal shares' train mlp:4-3 --steps 1 --threads 1
else
    skip 'Open MPI is not here'
fi

# --- time left is never 0s
check 'less than a second is left, not none' \
    eval "says '<1s left' train mlp:4-3 --steps 40 --threads 1 && ! grep -q ' 0s left' said"

echo "1..$n"
exit $failed
