#!/bin/bash
# Folders of decoders that are damaged, hostile or ask for what snug does not have: each is refused with one line that
# says what is wrong and where, and no RUN folder appears.  Folders that only look odd are trained.
#
# usage: [SNUG=./snug] tests/cli/decoder_folders.sh
set -u

snug=$(realpath "${SNUG:-$(dirname "$0")/../../snug}") || exit 1
command -v python3 >/dev/null || { echo 'skip: no python3 to write the folders'; exit 77; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM
cd "$work" || exit 1
unset SNUG_DATA NO_COLOR
export XDG_CACHE_HOME=$work/cache OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
for i in $(seq 99); do echo "line $i of a text to train with"; done >text.txt

# Every case is a folder cases/NUMBER with the files `name` and, unless the folder is good, `words`: one per line, all
# of them in the message.
cat >make.py <<'EOF'
import json, os, struct

LLAMA = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 24,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32, "vocab_size": 256,
         "tie_word_embeddings": False}
LAYER = "model.layers.0."
SHAPES = {"model.embed_tokens.weight": [256, 16], LAYER + "input_layernorm.weight": [16],
          LAYER + "self_attn.q_proj.weight": [16, 16], LAYER + "self_attn.k_proj.weight": [8, 16],
          LAYER + "self_attn.v_proj.weight": [8, 16], LAYER + "self_attn.o_proj.weight": [16, 16],
          LAYER + "post_attention_layernorm.weight": [16], LAYER + "mlp.gate_proj.weight": [24, 16],
          LAYER + "mlp.up_proj.weight": [24, 16], LAYER + "mlp.down_proj.weight": [16, 24],
          "model.norm.weight": [16], "lm_head.weight": [256, 16]}
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
BYTES = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8, "F8_E4M3": 1}
O, Q = LAYER + "self_attn.o_proj.weight", LAYER + "self_attn.q_proj.weight"


def product(shape):
    return 1 if not shape else shape[0] * product(shape[1:])


def write_tensors(path, tensors):  # {name: (dtype, shape)}
    header, at = {}, 0
    for name, (dtype, shape) in tensors.items():
        n_bytes = product(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + bytes(at))


class Folder:
    """A good folder: one file, or two shards with their index."""

    def __init__(self, dtype="BF16"):
        self.config = dict(LLAMA)
        self.tensors = {name: (dtype, shape) for name, shape in SHAPES.items()}

    def place(self):  # the tensors of either shard
        names = list(self.tensors)
        return {ONE: names[: len(names) // 2], TWO: names[len(names) // 2 :]}

    def write(self, folder, sharded):
        os.makedirs(folder)
        with open(f"{folder}/config.json", "w") as f:
            json.dump(self.config, f)
        if not sharded:
            write_tensors(f"{folder}/model.safetensors", self.tensors)
            return
        for shard, names in self.place().items():
            write_tensors(f"{folder}/{shard}", {name: self.tensors[name] for name in names})
        self.write_index(folder, {name: shard for shard, names in self.place().items() for name in names})

    def write_index(self, folder, weight_map):
        with open(f"{folder}/{INDEX}", "w") as f:
            json.dump({"metadata": {"total_size": 0}, "weight_map": weight_map}, f)


number = 0


def case(name, words, config=None, tensors=None, damage=None, sharded=False, dtype="BF16"):
    global number
    number += 1
    folder, made = f"cases/{number:03d}", Folder(dtype)
    made.config.update(config or {})
    made.config = {key: value for key, value in made.config.items() if value != "absent"}
    for tensor, what in (tensors or {}).items():
        if what is None:
            del made.tensors[tensor]
        else:
            made.tensors[tensor] = what
    made.write(folder, sharded)
    if damage:
        damage(folder, made)
    with open(f"{folder}/name", "w") as f:
        f.write(name)
    if words is not None:
        with open(f"{folder}/words", "w") as f:
            f.write("\n".join(words) + "\n")


# ---- settings that snug does not have ------------------------------------------------------
QWEN2, MISTRAL = ({"model_type": type} for type in ("qwen2", "mistral"))
QWEN3 = {"model_type": "qwen3", "head_dim": 4}
FULL, SLIDES = "full_attention", "sliding_attention"


def scaled(kind, **more):
    return {"rope_type": kind, "factor": 4.0, **more}


for config in (
    {"num_local_experts": 8}, {"num_experts": 128}, {"n_routed_experts": 64}, {"q_lora_rank": 1536},
    {"kv_lora_rank": 512}, {"attn_logit_softcapping": 50.0}, {"final_logit_softcapping": 30.0},
    {"partial_rotary_factor": 0.5}, {"no_rope_layers": [1, 0]}, {"query_pre_attn_scalar": 256},
    {"attention_multiplier": 0.5}, {"residual_multiplier": 0.22}, {"embedding_multiplier": 12.0},
    {"logits_scaling": 8.0}, {"attention_chunk_size": 8192}, {"sliding_window_pattern": 6}, {"clip_qkv": 8.0},
    {"use_parallel_residual": True}, {"use_qk_norm": True}, {"lm_head_bias": True}, {"is_encoder_decoder": True},
    {"vision_config": {"depth": 2}}, {"num_nextn_predict_layers": 1}, {"quantization_config": {"bits": 4}},
    {"hidden_act": "gelu"}, {"hidden_act": "relu2"},
    {"layer_types": ["linear_attention"]}, {"layer_types": ["chunked_attention"]},
    {"layer_types": [SLIDES], "sliding_window": 8},
    {**MISTRAL, "attention_bias": True}, {**QWEN2, "mlp_bias": True},
):
    key = [key for key in config if key not in ("model_type", "sliding_window")][0]
    case(f"{key}: {json.dumps(config[key])}", ["config.json", f'"{key}"', "not supported"], config)
for kind in ("yarn", "dynamic", "linear", "longrope", "su", "mrope"):
    for key in ("rope_scaling", "rope_parameters"):
        case(f"{key}: {kind}", ["config.json", f'"{key}": "rope_type": "{kind}" is not supported'], {key: scaled(kind)})
case("rope_scaling: yarn as older files spell it", ["config.json", '"rope_scaling": "type": "yarn" is not supported'],
     {"rope_scaling": {"type": "yarn", "factor": 4.0}})
for model_type in ("mixtral", "qwen3_moe", "deepseek_v3", "gemma2", "phi3", "llama4", ""):
    case(f"model_type: {model_type}", ["config.json", f'"model_type": "{model_type}" is not supported'],
         {"model_type": model_type})
case("no model_type", ["config.json", '"model_type"'], {"model_type": "absent"})

# ---- sizes that do not fit -------------------------------------------------------------------
case("kv heads that do not divide the heads", ["config.json", '"num_key_value_heads" (3)'],
     {"num_key_value_heads": 3})
case("fewer heads than the kv heads that a file without them has", ["config.json", '"num_key_value_heads" is missing', "8"],
     {**MISTRAL, "num_key_value_heads": "absent"})
case("more kv heads than heads", ["config.json", '"num_key_value_heads" (8)'], {"num_key_value_heads": 8})
case("heads that do not divide the width", ["config.json", '"hidden_size" (16)', "head_dim"],
     {"num_attention_heads": 3, "num_key_value_heads": 3})
case("heads x head_dim unlike the weights", ["model.safetensors", f'"{Q}"', "[16, 16]", "[24, 16]"], {"head_dim": 6})
case("kv heads unlike the weights", ["model.safetensors", "k_proj.weight", "[8, 16]", "[4, 16]"],
     {"num_key_value_heads": 1})
for key in ("hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
            "max_position_embeddings"):
    case(f"no {key}", ["config.json", f'"{key}"'], {key: "absent"})

# ---- tensors ---------------------------------------------------------------------------------


def filled(name, element):  # the last element of a tensor in the only file
    def damage(folder, made):
        with open(f"{folder}/model.safetensors", "r+b") as f:
            n = struct.unpack("<Q", f.read(8))[0]
            end = json.loads(f.read(n))[name]["data_offsets"][1]
            f.seek(8 + n + end - len(element))
            f.write(element)
    return damage


NOT_FINITE = {"F32": (b"\x00\x00\xc0\x7f", b"\x00\x00\x80\xff"), "BF16": (b"\xc0\x7f", b"\x80\xff"),
              "F16": (b"\x00\x7e", b"\x00\xfc")}
for dtype, elements in NOT_FINITE.items():
    for element, what in zip(elements, ("NaN", "infinity")):
        case(f"{what} in {dtype}", ["model.safetensors", f'"{O}"', "not finite"], dtype=dtype, damage=filled(O, element))
for sharded in (False, True):
    where = INDEX if sharded else "model.safetensors"
    kind = "shards" if sharded else "one file"
    case(f"{kind}: a missing tensor", [where, f'no tensor "{O}", which the model needs'], tensors={O: None}, sharded=sharded)
    case(f"{kind}: a layer more than the config has", [where, 'unexpected tensor "model.layers.1.mlp.up_proj.weight"',
         'check "num_hidden_layers" in config.json'],
         tensors={"model.layers.1.mlp.up_proj.weight": ("BF16", [24, 16])}, sharded=sharded)
    case(f"{kind}: a layer fewer than the config has", [where, 'no tensor "model.layers.1.',
         'check "num_hidden_layers" in config.json'], {"num_hidden_layers": 2}, sharded=sharded)
    case(f"{kind}: a bias that the config does not have", [where, "q_proj.bias", 'check "attention_bias" and "model_type"'],
         tensors={LAYER + "self_attn.q_proj.bias": ("BF16", [16])}, sharded=sharded)
    case(f"{kind}: a bias that the weights do not have", [where, "q_proj.bias", 'check "attention_bias" and "model_type"'],
         {"attention_bias": True}, sharded=sharded)
    case(f"{kind}: a bias of the MLP", [where, "mlp.up_proj.bias", 'check "mlp_bias" in config.json'],
         tensors={LAYER + "mlp.up_proj.bias": ("BF16", [24])}, sharded=sharded)
    case(f"{kind}: a wrong shape", [".safetensors", f'"{O}"', "[16, 8]", "[16, 16]"],
         tensors={O: ("BF16", [16, 8])}, sharded=sharded)
    case(f"{kind}: a wrong number of dimensions", [".safetensors", f'"{O}"', "[256]"],
         tensors={O: ("BF16", [256])}, sharded=sharded)
    for dtype in ("I32", "I64", "F8_E4M3"):
        case(f"{kind}: tensors of {dtype}", [".safetensors", f'"{O}"', f"has type {dtype}", "needs F32"], tensors={O: (dtype, [16, 16])},
             sharded=sharded)
case("no LM head, though not tied", ["model.safetensors", '"lm_head.weight"', 'check "tie_word_embeddings" in config.json'], tensors={"lm_head.weight": None})
case("Qwen2 without biases", ["model.safetensors", "q_proj.bias"], QWEN2)
case("Qwen3 without norms of q and k", ["model.safetensors", "q_norm.weight", 'check "model_type"'], QWEN3)
case("norms of q and k that Llama does not have", ["model.safetensors", "k_norm.weight", 'check "model_type"'],
     tensors={LAYER + "self_attn.k_norm.weight": ("BF16", [4])})
case("another head, though tied", ["model.safetensors", '"lm_head.weight"', 'check "tie_word_embeddings" in config.json'],
     {"tie_word_embeddings": True}, damage=filled("lm_head.weight", b"\x80\x3f"))

# ---- shards ----------------------------------------------------------------------------------


def truncated(name, n_bytes):
    def damage(folder, made):
        os.truncate(f"{folder}/{name}", os.path.getsize(f"{folder}/{name}") - n_bytes)
    return damage


def with_header_of(n):
    def damage(folder, made):
        with open(f"{folder}/{TWO}", "r+b") as f:
            f.write(struct.pack("<Q", n))
    return damage


def indexed(change):
    def damage(folder, made):
        weight_map = {name: shard for shard, names in made.place().items() for name in names}
        change(weight_map)
        made.write_index(folder, weight_map)
    return damage


def text_index(text):
    def damage(folder, made):
        with open(f"{folder}/{INDEX}", "w") as f:
            f.write(text)
    return damage


def in_both(folder, made):
    names = made.place()[TWO] + [made.place()[ONE][0]]
    write_tensors(f"{folder}/{TWO}", {name: made.tensors[name] for name in names})


def huge_header(folder, made):
    with open(f"{folder}/{TWO}", "r+b") as f:
        f.write(struct.pack("<Q", 200 * 1000 * 1000))
        f.truncate(300 * 1000 * 1000)  # sparse


def bad(name, words, damage):
    case(name, words, damage=damage, sharded=True)


bad("a shard that is missing", [INDEX, f"{TWO} is missing"], lambda folder, made: os.remove(f"{folder}/{TWO}"))
bad("a tensor that is not in the index", [INDEX, f'"{O}"', "not in the index"], indexed(lambda m: m.pop(O)))
bad("the index has a tensor in the wrong shard", [INDEX, f'"{O}"', f"not in {TWO}"],
    indexed(lambda m: m.update({O: TWO})))
bad("the index has a tensor that no shard has", [INDEX, '"x"', f"not in {ONE}"], indexed(lambda m: m.update({"x": ONE})))
for outside in ("../" + ONE, os.path.abspath(ONE), "sub/" + ONE, "./" + ONE, "..", "", ".hidden.safetensors",
                "config.json", "a\n.safetensors/../" + ONE):
    bad(f"the index leads to {outside!a}", [INDEX, f'"{O}"', "not the name of a safetensors"],
        indexed(lambda m: m.update({O: outside})))
bad("the index has a number for a file", [INDEX, f'"{O}"'], indexed(lambda m: m.update({O: 1})))
bad("an index without weight_map", [INDEX, "weight_map"], text_index("{}"))
bad("an empty weight_map", [INDEX, "no tensor"], text_index('{"weight_map": {}}'))
bad("an index that is no JSON", [INDEX, "JSON"], text_index("<html>404</html>"))
bad("an empty index", [INDEX], text_index(""))
bad("a tensor in two shards", [INDEX, "two files", ONE, TWO], in_both)
bad("a shard that lacks 1 byte", [TWO, "truncated"], truncated(TWO, 1))
bad("a shard that lacks most bytes", [TWO], lambda folder, made: os.truncate(f"{folder}/{TWO}", 100))
bad("a shard of 3 bytes", [TWO], lambda folder, made: os.truncate(f"{folder}/{TWO}", 3))
bad("an empty shard", [TWO], lambda folder, made: os.truncate(f"{folder}/{TWO}", 0))
bad("a header longer than the file", [TWO, "header"], with_header_of(1 << 40))
bad("a header of 2^64 - 1 bytes", [TWO, "header"], with_header_of((1 << 64) - 1))
bad("a header of 200 MB", [TWO, "header", "at most"], huge_header)
bad("a Git LFS pointer", [TWO, "git lfs pull"], lambda folder, made: open(f"{folder}/{TWO}", "w").write(
    "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n"))
bad("a shard that is a folder", [TWO], lambda folder, made: (os.remove(f"{folder}/{TWO}"), os.mkdir(f"{folder}/{TWO}")))
bad("a shard that is a pipe", [TWO, "not a regular file"],
    lambda folder, made: (os.remove(f"{folder}/{TWO}"), os.mkfifo(f"{folder}/{TWO}")))



def renamed(**names):
    def damage(folder, made):
        for old, new in names.items():
            os.rename(f"{folder}/{old.replace('__', '.')}", f"{folder}/{new}")
    return damage


# A folder without weights starts at random, which these must not.
bad("shards without an index", [ONE, INDEX, "download"], lambda folder, made: os.remove(f"{folder}/{INDEX}"))
for name in ("consolidated.safetensors", "pytorch_model.bin", "pytorch_model-00001-of-00002.bin",
             "pytorch_model.bin.index.json", "consolidated.00.pth", "model-Q4_K_M.gguf", "tf_model.h5"):
    case(f"weights in {name}", [name], damage=renamed(model__safetensors=name))

# ---- folders that are good -------------------------------------------------------------------


def linked(folder, made):  # as in the cache of huggingface_hub
    os.mkdir(f"{folder}/blobs")
    for shard in (ONE, TWO):
        os.rename(f"{folder}/{shard}", f"{folder}/blobs/{shard}")
        os.symlink(f"blobs/{shard}", f"{folder}/{shard}")


for dtype in ("F32", "F16", "BF16"):
    case(f"one file of {dtype}", None, dtype=dtype)
    case(f"two shards of {dtype}", None, dtype=dtype, sharded=True)
case("tensors of different types", None, tensors={O: ("F32", [16, 16]), Q: ("F16", [16, 16])}, sharded=True)
case("shards that are links", None, damage=linked, sharded=True)
case("other files and shards that no index names", None, sharded=True, damage=lambda folder, made: (
    open(f"{folder}/tokenizer.model", "w").write("x"), write_tensors(f"{folder}/extra.safetensors", {})))
case("one file goes before an index", None, damage=text_index("{}"))
case("no weights, but an adapter and others", None, damage=lambda folder, made: (
    renamed(model__safetensors="adapter_model.safetensors")(folder, made),
    open(f"{folder}/training_args.bin", "w").write("x"), open(f"{folder}/tokenizer_config.json", "w").write("{}")))
case("a tied head that the file has as well", None, {"tie_word_embeddings": True})
case("frequencies of older files", None,
     tensors={LAYER + "self_attn.rotary_emb.inv_freq": ("F32", [2])})
case("the head tells that it is not tied", None, {"tie_word_embeddings": "absent"})
case("settings that change nothing", None,
     {"pretraining_tp": 1, "use_cache": False, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0,
      "transformers_version": "9.9", "auto_map": {"AutoConfig": "x.y"}, "_name_or_path": "../x", "num_experts": 0,
      "num_experts_per_tok": 2, "router_aux_loss_coef": 0.001, "output_router_logits": True, "rope_scaling": None,
      "sliding_window": 8, "max_window_layers": 7, "layer_types": [FULL], "attn_implementation": "eager",
      "torch_dtype": "float8", "dtype": "bfloat16", "quantization_config": None, "is_llama_config": True})
EOF
python3 make.py || exit 1

number=0
failed=0
verdict() { # NAME WHY: empty if all is well
    number=$((number + 1))
    if [ -z "$2" ]; then
        echo "ok $number - $1"
    else
        failed=$((failed + 1))
        echo "not ok $number - $1: $2"
        sed 's/^/#     /' err
    fi
}
run() { # ARGUMENTS...: leaves $status, out, err
    timeout 30 "$snug" "$@" >out 2>err </dev/null
    status=$?
}
wrong_with() { # FOLDER: prints what is wrong with a refusal
    case $status in 1 | 2) ;; *) echo "exit status $status" && return ;; esac
    [ "$(wc -l <err)" -eq 1 ] || { echo 'not one line' && return; }
    [ -s out ] && echo 'wrote to standard output' && return
    [ -e run ] && echo 'left a RUN folder' && return
    while IFS= read -r word; do
        grep -qF -e "$word" err || { echo "the line lacks $word" && return; }
    done <"$1/words"
}
for folder in cases/*; do
    name=$(<"$folder/name")
    rm -rf run
    before=$(find "$folder" | sort)
    run train "$folder" text.txt --steps 1 --batch 1 --eval-every -1 --quiet --out run
    if [ -e "$folder/words" ]; then
        why=$(wrong_with "$folder")
    else
        why=
        { [ $status -eq 0 ] && [ -e run/model.safetensors ]; } || why="exit status $status"
    fi
    [ "$before" = "$(find "$folder" | sort)" ] || why='files in the folder changed'
    verdict "$name" "$why"
done

# ---- other commands ------------------------------------------------------------------------

rm -rf run
first_with() { grep -lxF -e "$1" cases/*/name | head -1 | xargs dirname; }
for name in 'num_experts: 128' 'rope_scaling: yarn' 'model_type: mixtral'; do
    folder=$(first_with "$name")
    for command in plan fit; do
        # shellcheck disable=SC2046 # two words or none
        run $command "$folder" $([ $command = fit ] && echo --memory 1G)
        verdict "$command: $name" "$(wrong_with "$folder")"
    done
done
for name in 'a shard that is missing' 'a tensor in two shards' "the index leads to '../model-00001-of-00002.safetensors'"; do
    folder=$(first_with "$name")
    for command in eval inspect; do
        # shellcheck disable=SC2046
        run $command "$folder" $([ $command = eval ] && echo text.txt)
        verdict "$command: $name" "$(wrong_with "$folder")"
    done
done

echo "1..$number"
echo "decoder folders: $((number - failed)) passed, $failed failed"
[ $failed -eq 0 ]
