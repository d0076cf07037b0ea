#!/usr/bin/env bash
# Adapters on the command line: the note about random bases, --resume with other flags than the run's, --lora-from.
#
# usage: [SNUG=./snug] tests/cli/adapters.sh
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
snug=$(realpath "${SNUG:-$root/snug}") || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
unset SNUG_DATA NO_COLOR
export XDG_CACHE_HOME="$work/cache" OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
. "$root/tests/support/said.bash"
resume() { # NAME WORDS FLAGS: each case with a run of its own
    rm -rf again
    cp -r "${5:-run}" again
    check "$1" "$2" "$3" "train $4 --out again"
}

mkdir tiny
cat >tiny/config.json <<'END'
{"model_type": "qwen2", "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2,
 "num_key_value_heads": 1, "max_position_embeddings": 16, "vocab_size": 64, "tie_word_embeddings": true}
END
quick='--batch 1 --steps 1 --eval-every -1 --quiet'
check 'a base to start from' 0 '!' "train tiny $quick --out base"
check 'a run with adapters' 0 '!' "train base $quick --lora 4 --out run"
check 'a run with adapters on all layers' 0 '!' "train base $quick --lora 4 --lora-on all --out all"

# ---- random bases ----------------------------------------------------------------------------
few='--batch 1 --steps 1 --seq 8 --eval-every -1'
random='the frozen weights of a preset are random|give a folder with weights'
check 'train: a preset is random' 0 "snug: --lora: $random" "train gpt-nano $few --lora 2"
check 'train: also with --json' 0 "snug: --lora: $random" "train gpt-nano $few --lora 2 --json"
check 'train: a config without weights' 0 'are random' "train tiny $few --lora 2"
check 'train: no note with --quiet' 0 '!' "train gpt-nano $few --lora 2 --quiet"
check 'train: none for a folder with weights' 0 '!' "train base $few --lora 2"
check 'train: none without adapters' 0 '!' "train gpt-nano $few"
check 'plan: a preset is random' 0 "lora $random" 'plan gpt-nano --lora 2'

# ---- resume with other flags -------------------------------------------------------------------
leave_out() { echo "leave --$1 out, or start a new run from its ${2:-weights with snug train again --out NEW}"; }
on_adapter='adapter with --lora-from again/adapter --out NEW'
go='base --steps 2 --eval-every -1 --resume'
resume 'the flags of the run' 0 '!' "$go --quiet --lora 4 --lora-on attention --lora-alpha 8"
resume 'another rank' 1 "was trained with --lora 4, not 8: $(leave_out lora)" "$go --lora 8"
resume 'no rank' 1 "was trained with --lora 4, not none: $(leave_out lora)" "$go --lora none"
resume 'other layers' 1 "was trained with --lora-on attention, not all: $(leave_out lora-on)" "$go --lora-on all"
resume 'another alpha' 1 "was trained with --lora-alpha 8, not 3: $(leave_out lora-alpha)" "$go --lora-alpha 3"
resume 'another base' 1 "was trained without --lora-base: $(leave_out lora-base "$on_adapter")" "$go --lora-base 8"
resume 'a run without adapters' 1 "was trained without --lora: $(leave_out lora)" "$go --lora 4" base
resume 'another rank, weights only' 1 "was trained with --lora 4, not 8: $(leave_out lora)" "$go-weights-only --lora 8"
resume 'another alpha, weights only' 0 '!' "$go-weights-only --quiet --lora-alpha 3"

# ---- from an adapter ----------------------------------------------------------------------------
check 'layers come from the adapter' 0 '!' "train base $quick --lora-from all/adapter --out more"
check 'the same layers by a group' 0 '!' "train base $quick --lora-from all/adapter --lora-on all"
check 'more layers' 1 'lacks 8 adapter matrices|leave --lora-on out' \
    "train base $quick --lora-from run/adapter --lora-on all"
check 'other layers' 1 'q_proj.lora_A|matches no adapter of this model|leave --lora-on out' \
    "train base $quick --lora-from run/adapter --lora-on mlp"
check 'a plan has the layers of the adapter' 0 'lora 4 on q_proj,k_proj,v_proj' 'plan base --lora-from run/adapter'
sed -i '/target_modules/,/\]/d' run/adapter/adapter_config.json
sed -i 's/"base_model/"target_modules": ".*proj", &/' run/adapter/adapter_config.json
check 'layers by a pattern' 1 '"target_modules" are not a short list of names|with --lora-on' \
    'plan base --lora-from run/adapter'
check 'layers by a pattern, and by hand' 0 '!' "train base $quick --lora-from run/adapter --lora-on q,k,v"
sed -i 's/"[.][*]proj"/["q_proj", "k proj,"]/' run/adapter/adapter_config.json
check 'a name that no layer can have' 1 '"target_modules" has a name' 'plan base --lora-from run/adapter'
echo "1..$n"
exit $failed
