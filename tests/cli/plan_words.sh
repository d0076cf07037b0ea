#!/usr/bin/env bash
# What plan and fit say beside their numbers: remarks, advice, units.
#
# usage: [SNUG=./snug] tests/cli/plan_words.sh
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
snug=$(realpath "${SNUG:-$root/snug}") || exit 1
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
unset SNUG_DATA NO_COLOR
export XDG_CACHE_HOME="$work/cache" OMP_WAIT_POLICY=passive
. "$root/tests/support/said.bash"

# ---- the memory of the target --------------------------------------------------------------------
check 'a plan above its card' 0 '!|target |do not fit the 23.5 GiB of one RTX 4090|--memory 23.5G refuses' \
    'plan gpt2 --batch 64 --micro-batch 64 --target 4090'
check 'a plan below its card' 0 '!|!one RTX 4090' 'plan gpt2 --target 4090 --batch 4'
check 'a budget above the card' 0 '!|target the budget of 200 GiB is more than the 139 GiB of one H200' \
    'plan gpt2 --target h200 --memory 200G'
check 'a budget of the card' 0 '!|!one H200' 'plan gpt2 --target h200 --memory 139G'
check 'a budget that neither plan nor card has' 0 'do not fit the 23.5 GiB of one RTX 4090' \
    'plan gpt2 --batch 64 --micro-batch 64 --target 4090 --memory 200G'
check 'a refusal says enough' 3 'over the budget of 10.0 GiB|!one RTX 4090' \
    'plan gpt2 --batch 64 --micro-batch 64 --target 4090 --memory 10G'
check 'parameters alone' 0 '!|do not fit the 139 GiB of one H200' 'plan psi:7.5e10 --target h200'
check 'this machine is no card' 0 '!|!target ' 'plan gpt2 --memory 20000G'
# ---- a refused --checkpoint auto --------------------------------------------------------------------
# Its plan is nearly as small as the smallest, and does not recompute the forward pass many times.
value() { sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p" "$1"; } # FILE KEY
for recipe in 'gpt2 --batch 4 --memory 1500M' \
    'llama-3.1-8b --precision bf16 --lora 16 --batch 1 --seq 2048 --target h200 --memory 16G'; do
    least=
    for checkpoint in every:1 all; do
        # shellcheck disable=SC2086
        "$snug" plan $recipe --threads 2 --checkpoint $checkpoint --json >out 2>err
        total=$(value out total)
        least=$((${least:-$total} < total ? ${least:-$total} : total))
    done
    check "refused: $recipe" 3 'over the budget' "plan $recipe --threads 2 --checkpoint auto --json"
    recomputed=$(($(value out recompute_flops) * 100 / $(value out forward_flops)))
    more=$((($(value out total) - least) * 100 / least))
    n=$((n + 1))
    if [ $recomputed -le 250 ] && [ $more -le 7 ]; then
        echo "ok $n - $more% above the smallest, recomputes $recomputed% of forward"
    else
        echo "not ok $n - $more% above the smallest, recomputes $recomputed% of forward"
        failed=1
    fi
done

# ---- a frozen base in fewer bits ---------------------------------------------------------------------
mkdir llama # the layers of an 8B, but fewer: quick to plan
cat >llama/config.json <<'END'
{"model_type": "llama", "num_hidden_layers": 6, "hidden_size": 4096, "intermediate_size": 14336,
 "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 2048, "vocab_size": 32000,
 "tie_word_embeddings": false}
END
full='llama --precision bf16 --batch 2 --target h200'
lora="$full --lora 16 --lora-on all"
check 'plan offers it' 0 '!|--lora-base 4 3.05 GiB changes rounding|--lora-base 8 3.64 GiB' "plan $lora --micro-batch 1"
check 'not where it is set' 0 '!|!--lora-base' "plan $lora --micro-batch 1 --lora-base 8"
check 'not without adapters' 0 '!|!--lora-base' "plan $full"
check 'a refusal offers it' 3 'this fits: --micro-batch 1 --checkpoint every:1 --offload states --lora-base 8' \
    "plan $lora --memory 3G"
check 'fit finds it' 0 '!|--lora 16 --lora-on all --lora-base 4' "fit $lora --memory 2500M --allow lora-base --quiet"
check 'fit takes 8 bits before 4' 0 '!|--lora-base 8' "fit $lora --memory 3500M --allow lora-base --quiet"
check 'fit leaves it, as it is not allowed' 3 'weights alone need |with --allow all: |--lora-base 4 needs' \
    "fit $lora --memory 2500M --allow state-bits,master"
check 'fit leaves it, as it is given' 0 '!|--lora-base 8' "fit $lora --lora-base 8 --memory 3500M --allow lora-base --quiet"
check 'fit adds adapters and a base' 0 '!|--lora 16 --lora-base 8' "fit $full --memory 3G --allow lora,lora-base --quiet"
check 'fit adds adapters first' 0 '!|--lora 16|!--lora-base' "fit $full --memory 4G --allow lora,lora-base --quiet"
check 'fit adds no base without adapters' 3 'over the budget|--lora-base 4 needs' "fit $full --memory 2500M --allow lora-base"
check 'all that is allowed is said once' 3 'the smallest: |--lora-base 4 needs|!with --allow all' \
    "fit $lora --memory 2G --allow lora-base"
check 'a key that --allow does not have' 2 'not one of state-bits, master, lora, lora-base, all' \
    'fit gpt2 --memory 4G --allow lora_base'

# ---- JSON ----------------------------------------------------------------------------------------------
check 'a budget' 0 '!|"budget": 107374182400, "ranks"' 'plan gpt2 --memory 100G --json'
check 'a budget that is refused' 3 '"budget": 1048576, "ranks"' 'plan gpt2 --memory 1M --json'
check 'the default budget' 0 '!|"budget": 149250113536, "budget_from": "the memory of one H200"' \
    'plan gpt2 --checkpoint auto --target h200 --json'
check 'no budget' 0 '!|!"budget"' 'plan gpt2 --json'

# ---- numbers -------------------------------------------------------------------------------------------
check 'long times have units' 0 '!| min a step' 'plan gpt2-xl --batch 4 --threads 2 --target cpu'
check 'positions have separators' 0 '!|seq 2,048 (the model allows 32,768: --seq)' 'plan qwen2.5-0.5b --batch 1 --target h200'
check 'rates have separators' 0 '!| tokens/s' \
    'fit gpt2 --batch 8 --precision bf16 --memory 30G --target a100'
echo "1..$n"
exit $failed
