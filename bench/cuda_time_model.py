#!/usr/bin/env python3
"""Compares predicted with measured step times, for recipes of GPT-2 on an NVIDIA GPU.

usage: bench/cuda_time_model.py [--target h200] [--steps N] [--ops FOLDER] [--only TEXT]

`snug plan` predicts; `snug train` on random data measures the median of the steps after the third.
--ops also writes what `snug bench cuda` reports for each op of some recipes, as JSON: if a prediction is
off, it shows which kind of op causes it.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys

XL = "gpt2-xl --batch 32 --seq 1024 --precision bf16"
RECIPES = [
    "gpt2 --batch 64 --seq 1024 --precision bf16 --micro-batch 32",
    XL + " --micro-batch 16",
    XL + " --micro-batch 4 --state-bits 16",
    XL + " --micro-batch 2 --state-bits 16",
    XL + " --micro-batch 4 --state-bits 16 --memory 24G --checkpoint auto",
    XL + " --micro-batch 4 --state-bits 8 --memory 24G --checkpoint auto",
    XL + " --micro-batch 8 --state-bits 8 --memory 24G --checkpoint auto",
    XL + " --micro-batch 8 --memory 24G --checkpoint auto --offload states",
    XL + " --memory 24G --checkpoint every:1 --update in-backward --offload activations --clip 0",
    XL + " --micro-batch 8 --master none --state-bits 8 --memory 24G --checkpoint auto",
    XL + " --micro-batch 2 --memory 8G --checkpoint auto --offload states",
    XL + " --micro-batch 2 --master none --state-bits 8 --memory 8G --checkpoint auto --offload states",
]
SMALL = "gpt2 --batch 8 --seq 256 --precision bf16"
BY_OPS = [
    XL + " --micro-batch 16",
    XL + " --micro-batch 4 --state-bits 8",
    XL + " --micro-batch 2 --state-bits 16",
    "gpt2 --batch 64 --seq 1024 --precision bf16 --micro-batch 32",
    SMALL + " --state-bits 4",
    SMALL + " --state-bits 4 --master none",
    SMALL + " --state-bits 8 --master none",
    SMALL + " --master none",
]
SNUG = os.environ.get("SNUG", os.path.join(os.path.dirname(__file__), "..", "snug"))


def snug(*words):
    done = subprocess.run([SNUG, *words], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\n%s" % (" ".join(words), done.stderr))
    return done


def measure(words, steps):
    tokens = int(words[words.index("--batch") + 1]) * int(words[words.index("--seq") + 1])
    done = snug("train", *words, "--device", "cuda", "--steps", str(steps), "--eval-every", "-1", "--json")
    rates = [float(r.replace(",", "")) for r in re.findall(r"([\d.,]+) tokens/s", done.stderr)]
    return tokens / statistics.median(rates[3:]), json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", default="h200")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ops")
    parser.add_argument("--only", default="")
    a = parser.parse_args()
    for i, recipe in enumerate(BY_OPS):
        if not a.ops or a.only not in recipe:
            continue
        done = snug("bench", "cuda", *recipe.split(), "--json")
        with open(os.path.join(a.ops, "ops-%d.json" % i), "w") as f:
            f.write(done.stdout)
    print("| recipe | predicted | measured | off by | tokens/s |\n|---|---|---|---|---|", flush=True)
    for recipe in RECIPES:
        if a.only not in recipe:
            continue
        words = recipe.split()
        plan = snug("plan", *words, "--device", "cuda", "--target", a.target, "--json")
        predicted = json.loads(plan.stdout)["step_seconds"]
        seconds, last = measure(words, a.steps)
        exact = "" if last["planned_bytes"] == last["allocated_bytes"] else " NOT AS PLANNED"
        tokens = int(words[words.index("--batch") + 1]) * int(words[words.index("--seq") + 1])
        print("| `%s` | %.3f s | %.3f s | %+.1f%% | %.0f%s |" % (
            recipe, predicted, seconds, 100 * (predicted / seconds - 1), tokens / seconds, exact), flush=True)


if __name__ == "__main__":
    main()
