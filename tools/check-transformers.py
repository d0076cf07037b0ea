#!/usr/bin/env python3
"""Checks that runs of snug load in transformers, and adapters in PEFT, as the same model.

usage: tools/check-transformers.py [RUN...]      with the installed transformers, 4.57 or 5, and PEFT; needs ./snug

Trains the decoders of tests/train/fixtures in several recipes.  A run must load with no missing, unexpected or
mismatched key, and have the held-out loss that snug had when it saved the run, and has when it loads it; so must an
adapter on its base.  What transformers saves must have the same loss in snug, and
greedy decoding must give the same tokens.
Random weights must have each tensor's mean and deviation as transformers starts them.  With RUN, checks only that these
(for example large, sharded ones) load and have the loss of `snug eval` on random tokens.
Prints TAP; exits with 77 and says why if transformers is missing.  Not part of `make test`: see docs/testing.md.
"""
import json
import math
import os
import struct
import subprocess
import sys
import tempfile

try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print("skip: %s; pip install torch transformers safetensors peft" % error)
    sys.exit(77)
try:
    import peft
except ImportError:
    peft = None

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SNUG = os.environ.get("SNUG", os.path.join(ROOT, "snug"))
FIXTURES = os.path.join(ROOT, "tests", "train", "fixtures")
LENGTH, N_WINDOWS = 29, 24
DTYPE = "torch_dtype" if transformers.__version__ < "5" else "dtype"

# transformers and `snug eval --precision fp32` compute in fp32, from weights that are saved exactly.  A run in 16 bits
# computed its own loss in 16 bits: bf16 has neighbors at a relative distance of 2^-8.
LIMIT, LIMIT_16 = 1e-6, 2**-8

# name: (flags of train, type of the run)
RECIPES = {
    "fp32": ([], torch.float32),
    "bf16": (["--precision", "bf16"], torch.bfloat16),
    "bf16 without masters": (["--precision", "bf16", "--master", "none"], torch.bfloat16),
    "fp16": (["--precision", "fp16"], torch.float16),
    "in backward, checkpointed": (["--update", "in-backward", "--checkpoint", "all"], torch.float32),
}
ADAPTERS = {"gpt2": ("qkv", "all", "o"), "decoder": ("attention", "q,v", "all", "o,down", "gate")}

n_done = n_failed = 0


def verdict(name, why=""):
    global n_done, n_failed
    n_done += 1
    n_failed += bool(why)
    print("%sok %d - %s%s" % ("not " if why else "", n_done, name, ": " + why if why else ""), flush=True)


def snug(*arguments):
    done = subprocess.run([SNUG, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError("snug %s: %s" % (arguments[0], done.stderr.strip()))
    return done.stdout


def write_tokens(folder):
    """Token shards that every vocabulary of the fixtures has: to train, and windows to evaluate."""
    generator = torch.Generator().manual_seed(1)
    os.mkdir(folder)
    for name, n in (("train", 4000), ("val", LENGTH * N_WINDOWS + 1)):
        tokens = torch.randint(0, 64, (n,), generator=generator).tolist()
        with open(os.path.join(folder, name + ".bin"), "wb") as file:
            file.write(struct.pack("<%dH" % n, *tokens))
    return torch.tensor(tokens)


def load(folder, dtype="auto"):
    """The model and what is wrong with its keys."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, **{DTYPE: dtype}, output_loading_info=True)
    return model.eval(), {kind: sorted(map(str, names)) for kind, names in report.items() if names}


@torch.no_grad()
def loss_of(model, stream):
    """As snug evaluates: windows that follow one another, the last token of one is the first of the next."""
    model = model.float()
    windows = torch.stack([stream[i * LENGTH:(i + 1) * LENGTH + 1] for i in range(N_WINDOWS)])
    logits = model(input_ids=windows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).double(), windows[:, 1:].flatten()).item()


def loss_of_snug(run, data, *more):
    return json.loads(snug("eval", run, data, "--seq", LENGTH, "--precision", "fp32", "--threads", 1, "--json",
                           *more))["loss"]


def differs(one, other, limit=LIMIT):
    return "" if abs(one / other - 1) <= limit else "loss %.9g, in snug %.9g" % (one, other)


def train(model, data, run, *flags):
    """Its held-out loss at the end."""
    return json.loads(snug("train", model, data, "--seq", LENGTH, "--batch", 4, "--threads", 1, "--out", run, "--json",
                           *flags))["val_loss"]


def fixtures():
    decoders = os.path.join(FIXTURES, "decoders")
    yield "gpt2", os.path.join(FIXTURES, "gpt2-tiny")
    for name in sorted(os.listdir(decoders)):
        yield name, os.path.join(decoders, name)


def can_read(folder):
    """Files in the spelling of version 5, which version 4 would misread, have no rope_theta."""
    with open(os.path.join(folder, "config.json")) as file:
        return transformers.__version__ >= "5" or "rope_parameters" not in json.load(file)


# ---- runs -------------------------------------------------------------------------------------------------------


def check_run(run, data, stream, dtype, trained):
    """trained: the loss that snug printed."""
    model, wrong = load(run)
    if wrong:
        return str(wrong)
    if model.dtype != dtype:
        return "its type is %s, not %s" % (model.dtype, dtype)
    config = model.config
    if config.tie_word_embeddings != (model.get_input_embeddings().weight is model.get_output_embeddings().weight):
        return "the LM head is%s tied" % (" not" if config.tie_word_embeddings else "")
    loss = loss_of(model, stream)
    return (differs(loss, loss_of_snug(run, data)) or
            differs(loss, trained, LIMIT if dtype == torch.float32 else LIMIT_16))


def check_recipes(name, folder, data, stream, work):
    for recipe, (flags, dtype) in RECIPES.items():
        run = os.path.join(work, "run %s %s" % (name, recipe))
        trained = train(folder, data, run, "--steps", 3, "--lr", 1e-2, *flags)
        verdict("%s, %s" % (name, recipe), check_run(run, data, stream, dtype, trained))


def check_adapter(folder, run, data, stream, trained, limit):
    adapter = os.path.join(run, "adapter")
    base = load(folder, torch.float32)[0]
    before = loss_of(base, stream)
    model = peft.PeftModel.from_pretrained(base, adapter)
    present = {key.replace(".default.", ".") for key in model.state_dict() if "lora_" in key}
    differing = present ^ set(load_file(os.path.join(adapter, "adapter_model.safetensors")))
    if differing:
        return "keys differ: %s" % sorted(differing)
    loss = loss_of(model, stream)
    if abs(loss / before - 1) < 1e-5:
        return "the adapter changes nothing: loss %.9g" % loss
    return (differs(loss, loss_of_snug(folder, data, "--lora-from", adapter)) or differs(loss, trained, limit))


def check_adapters(name, folder, data, stream, work):
    for on in ADAPTERS["gpt2" if name == "gpt2" else "decoder"]:
        for dtype, limit, flags in ((torch.float32, LIMIT, []), (torch.bfloat16, LIMIT_16, ["--precision", "bf16"])):
            title = "%s, adapters on %s %s" % (name, on, " ".join(flags))
            run = os.path.join(work, title)
            trained = train(folder, data, run, "--steps", 3, "--lr", 0.1, "--lora", 4, "--lora-on", on, *flags)
            verdict(title + ": merged", check_run(run, data, stream, dtype, trained))
            if peft and can_read(folder):
                verdict(title + ": PEFT", check_adapter(folder, run, data, stream, trained, limit))
            else:
                print("# skip: %s" % ("transformers 4 misreads this base" if peft else "PEFT is not installed"))


# ---- folders of transformers ------------------------------------------------------------------------------------


def check_saved_by_transformers(name, folder, data, stream, work):
    """What the installed version saves: in shards, in 16 bits, and the model without its head if that is tied."""
    if not can_read(folder):
        print("# skip: %s: transformers 4 misreads this folder" % name)
        return
    model = load(folder, torch.float32)[0]
    loss = loss_of(model, stream)
    for title, save in (("in shards", dict(max_shard_size="20KB")), ("in one file", {}), ("in bf16", {})):
        saved = os.path.join(work, "%s saved %s" % (name, title))
        if title == "in bf16":
            model = model.to(torch.bfloat16)
        model.save_pretrained(saved, **save)
        sharded = os.path.exists(os.path.join(saved, "model.safetensors.index.json"))
        loss = loss_of(load(saved)[0], stream) if title == "in bf16" else loss
        why = "not in shards" if sharded != (title == "in shards") else differs(loss, loss_of_snug(saved, data))
        verdict("%s: saved by transformers %s" % (name, title), why)
    if model.config.tie_word_embeddings:
        saved = os.path.join(work, "%s saved bare" % name)
        model.base_model.save_pretrained(saved)
        verdict("%s: saved by transformers without the head" % name, differs(loss, loss_of_snug(saved, data)))


@torch.no_grad()
def check_generated(name, folder):
    """Greedy tokens.  Text is bytes for both; every vocabulary of the fixtures has those of the prompt."""
    n_tokens, prompt = 18, "!#%&'()*+,-./0123"
    if not can_read(folder):
        print("# skip: %s: transformers 4 misreads this folder" % name)
        return
    model = load(folder, torch.float32)[0]
    tokens = torch.tensor([list(prompt.encode())])
    for _ in range(n_tokens):
        last = model(input_ids=tokens, use_cache=False).logits[0, -1]
        tokens = torch.cat([tokens, last.argmax()[None, None]], 1)
    done = subprocess.run([SNUG, "generate", folder, "--prompt", prompt, "--tokens", str(n_tokens), "--temperature", "0"],
                          capture_output=True)
    text = bytes(tokens[0].tolist())
    same = done.stdout in (text, text + b"\n")  # snug ends the line
    verdict("%s: generated" % name, "" if same else "%s, not %s" % (list(done.stdout), list(text)))


# ---- random weights ---------------------------------------------------------------------------------------------


def start_config(folder, work, name, **changes):
    """The same without weights."""
    with open(os.path.join(folder, "config.json")) as file:
        config = {**json.load(file), **changes}
    made = os.path.join(work, "start " + name)
    os.mkdir(made)
    with open(os.path.join(made, "config.json"), "w") as file:
        json.dump(config, file)
    return made


def check_start(name, folder, data, work):
    made = start_config(folder, work, name)
    run = made + " run"
    train(made, data, run, "--steps", 1, "--lr", 0)
    ours = load_file(os.path.join(run, "model.safetensors"))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(run))
    why = []
    for key, theirs in model.named_parameters():
        key = key if key in ours else key.replace("transformer.", "")
        a, b = ours[key].double(), theirs.detach().double()
        n = a.numel()
        if b.std() == 0 or n == 1:  # norms and biases
            same = bool((a == b).all())
        else:  # four deviations of the mean, and of the deviation, of n normal values; both sides are samples
            std = b.std().item()
            same = (abs(a.mean() - b.mean()) < 4 * std * math.sqrt(2 / n) and
                    abs(a.std() / std - 1) < 4 * math.sqrt(1 / n))
        if not same:
            why.append("%s: mean %.3g, deviation %.4g; transformers has %.3g, %.4g" %
                       (key, a.mean(), a.std(), b.mean(), b.std()))
    verdict("%s: random weights" % name, "; ".join(why))


# ---- main -------------------------------------------------------------------------------------------------------


def check_large(run, work):
    length = 64
    model, wrong = load(run)
    tokens = torch.randint(0, model.config.vocab_size, (length + 1,), generator=torch.Generator().manual_seed(1))
    data = tempfile.mkdtemp(dir=work)
    for name in ("train", "val"):  # llm.c's shards of 32-bit tokens
        with open(os.path.join(data, name + ".bin"), "wb") as file:
            file.write(struct.pack("<256i", 20240801, 7, length + 1, *[0] * 253))
            file.write(struct.pack("<%di" % (length + 1), *tokens.tolist()))
    dtype = model.dtype
    with torch.no_grad():
        logits = model.float()(input_ids=tokens[None, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[0], tokens[1:]).item()
    del model, logits
    shards = [name for name in os.listdir(run) if name.endswith(".safetensors") and name.startswith("model")]
    ours = json.loads(snug("eval", run, data, "--seq", length, "--precision", "fp32", "--batch", 1, "--json"))["loss"]
    verdict("%s: %d files, %s, loss %.6f on random tokens, in snug %.6f" % (run, len(shards), dtype, loss, ours),
            str(wrong) if wrong else differs(loss, ours, 1e-5))


def main():
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    print("# torch %s, transformers %s, PEFT %s" % (torch.__version__, transformers.__version__,
                                                    peft.__version__ if peft else "missing"))
    with tempfile.TemporaryDirectory() as work:
        for run in sys.argv[1:]:
            check_large(run, work)
        data = os.path.join(work, "tokens")
        stream = write_tokens(data)
        for name, folder in fixtures() if len(sys.argv) == 1 else ():
            check_recipes(name, folder, data, stream, work)
            check_adapters(name, folder, data, stream, work)
            check_saved_by_transformers(name, folder, data, stream, work)
            check_generated(name, folder)
            check_start(name, folder, data, work)
    print("1..%d" % n_done)
    sys.exit(n_failed != 0)


if __name__ == "__main__":
    main()
