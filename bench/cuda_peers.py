#!/usr/bin/env python3
"""Compares snug with PyTorch on one GPU: the same training step of a language model, alternating in one run.

usage: bench/cuda_peers.py PEER [--size 124M|350M|774M|1.5B|PRESET] [--batch 64] [--seq 1024] [--mode compile]
                           [--rounds 3] [--steps 20] [--python python3] [--recipe "--checkpoint auto ..."]...
PEER is a script that trains with PyTorch and prints a JSON line with tok_s and device_gib: torch_gpt2.py or
bench/torch_decoder.py, called as PEER SIZE BATCH SEQ MODE --steps N; or none, to run only snug.  A PRESET is a
decoder that both know by name:

    bench/cuda_peers.py bench/torch_decoder.py --size qwen2.5-0.5b --batch 16 --mode compile+chunked

Both train on random tokens in bf16 with AdamW, and clip gradients at 1.  The rate is that of the median step,
without the first ones.  GiB is the device memory in use, including the runtime.  Each --recipe adds flags for
snug; several are run one after the other in each round.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from statistics import median

HERE = os.path.dirname(os.path.abspath(__file__))
SNUG_MODELS = {"124M": "gpt2", "350M": "gpt2-medium", "774M": "gpt2-large", "1.5B": "gpt2-xl"}
WARM_UP = 3  # steps of either program that are not counted


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)}\nexited with {done.returncode}: {done.stderr.strip()[-400:]}")
    return done.stdout, done.stderr


def run_snug(a, recipe):
    out, lines = run([os.path.join(HERE, "..", "snug"), "train", SNUG_MODELS.get(a.size, a.size), "--device", "cuda",
                      "--batch", str(a.batch), "--seq", str(a.seq), "--precision", "bf16", "--steps",
                      str(a.steps + WARM_UP), "--eval-every", "-1", "--json", *shlex.split(recipe)])
    summary = json.loads(out.strip().splitlines()[-1])
    rates = [float(n.replace(",", "")) for n in re.findall(r"([\d.,]+) tokens/s", lines)]
    if summary["planned_bytes"] != summary["allocated_bytes"]:
        sys.exit(f"planned {summary['planned_bytes']} bytes, allocated {summary['allocated_bytes']}")
    rate = median(rates[WARM_UP:]) if len(rates) > WARM_UP else summary["tokens_per_s"]
    return rate, (summary["allocated_bytes"] + summary["runtime_bytes"]) / 2**30


def run_peer(a):
    if a.peer == "none":
        return None, None, a.peer
    out, _ = run([a.python, a.peer, a.size, str(a.batch), str(a.seq), a.mode, "--steps", str(a.steps)])
    found = json.loads(out.strip().splitlines()[-1])
    if "error" in found:
        return None, None, found["peer"]
    return found["tok_s"], found["device_gib"], found["peer"]


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("peer")
    for name, kind, value in (("size", str, "124M"), ("batch", int, 64), ("seq", int, 1024),
                              ("mode", str, "compile"), ("rounds", int, 3), ("steps", int, 20),
                              ("python", str, "python3")):
        p.add_argument("--" + name, type=kind, default=value)
    p.add_argument("--recipe", action="append", default=[])
    a = p.parse_args()
    recipes = a.recipe or [""]
    print(f"{'' if a.size not in SNUG_MODELS else 'GPT-2 '}{a.size}, batch {a.batch} x {a.seq}, bf16, AdamW; "
          f"torch: {a.mode}")
    print(f"{'round':>5} {'snug tokens/s':>14} {'torch tokens/s':>15} {'ratio':>7} {'snug GiB':>9} {'torch GiB':>10}")
    ratios = {recipe: [] for recipe in recipes}
    for i in range(a.rounds):
        theirs, their_gib, peer = run_peer(a)
        for recipe in recipes:
            ours, our_gib = run_snug(a, recipe)
            if theirs is None:
                print(f"{i + 1:>5} {ours:>14.0f} {'-' if peer == 'none' else 'out of memory':>15} {'':>7} {our_gib:>9.2f} {'':>10} {recipe}",
                      flush=True)
                continue
            ratios[recipe].append(ours / theirs)
            print(f"{i + 1:>5} {ours:>14.0f} {theirs:>15.0f} {ours / theirs:>7.3f} {our_gib:>9.2f} {their_gib:>10.2f} "
                  f"{recipe}", flush=True)
    for recipe in recipes:
        if ratios[recipe]:
            print(f"{peer}, {a.mode}: snug {recipe} is {median(ratios[recipe]):.3f} times as fast "
                  f"(median of {len(ratios[recipe])} rounds)")


if __name__ == "__main__":
    main()
